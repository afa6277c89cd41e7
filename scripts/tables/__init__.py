"""Writers of the tables of the documentation: `scripts/docs tables NAME` runs the module that NAMES has for it.

A module has PAGE, the page it writes (None for several); `arguments(parser)`, what it takes beside `--page`; and
`write(options)`, which puts its table on the page and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from arch.errors import InputError

NAMES = {
    "accuracy": "scripts.tables.accuracy",
    "compiled": "scripts.lab.compiled",
    "laws": "scripts.lab.laws",
    "libraries": "scripts.tables.libraries",
    "power": "scripts.lab.power",
    "probes": "scripts.lab.probes",
    "ratios": "scripts.lab.ratios",
    "reference": "scripts.tables.reference",
    "serving": "scripts.tables.serving",
    "what-ifs": "scripts.lab.what_ifs",
    "write-back": "scripts.lab.write_back",
}
"""The module of each table."""


def main(words: Sequence[str] | None = None) -> int:
    """Writes one table; 2 for wrong input."""
    parser = argparse.ArgumentParser(prog="scripts/docs tables", description="Writes a table of the documentation.")
    parser.add_argument("name", choices=sorted(NAMES), metavar="NAME", help=", ".join(sorted(NAMES)))
    name = parser.parse_args(words[:1] if words is not None else sys.argv[1:2]).name
    module = importlib.import_module(NAMES[name])
    own = argparse.ArgumentParser(
        prog=f"scripts/docs tables {name}", description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if module.PAGE:
        own.add_argument("--page", type=Path, default=module.PAGE, help="another page to write it to")
    module.arguments(own)
    try:
        return int(module.write(own.parse_args((words if words is not None else sys.argv[1:])[1:])))
    except (InputError, OSError) as error:
        print(f"docs tables {name}: {error}", file=sys.stderr)
        return 2
