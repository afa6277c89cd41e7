"""`tilewave new-machine`: a machine file for a chip that nobody has built yet."""

from __future__ import annotations

import argparse
from typing import Any

from sim.app.cli import arguments
from sim.app.cli.arguments import Parser

WISHES = {
    "sms": ("N", "SMs, with GPCs and the board's power"),
    "tensor": ("2x", "rate of the tensor cores, with the bandwidth of shared memory"),
    "l2": ("SIZE", "size of the L2: the nearest that its sets have"),
    "l2-bandwidth": ("B", "of a slice of the L2, with its writes and the link between partitions"),
    "dram": ("B", "bandwidth of the memory, with the timings of its interface"),
    "dram-size": ("SIZE", "size of the memory"),
    "clock": ("F", "highest clock, with that of the highest voltage"),
    "energy": ("0.7x", "energy of each action: another node"),
    "power": ("W", "what the board may draw"),
    "link": ("B", "bandwidth of the links to other devices, one way"),
}
"""Options of `new-machine`: what a family has rules for (`arch.new_machine`)."""


def add_command(commands: Any) -> None:
    """Adds the parser of `new-machine`."""
    new: Parser = commands.add_parser(
        "new-machine", help="a machine file for a chip of your own, in which what belongs together fits",
        allow_abbrev=False,
    )  # fmt: skip
    new.add_argument("--base", required=True, metavar="NAME", help="machine, chip or file that it is built on")
    for word, (value, what) in WISHES.items():
        new.add_argument(f"--{word}", metavar=value, help=f"{what}; or a factor, such as 1.5x")
    new.add_argument("--title", default="", help="what reports call it")
    new.add_argument("-o", "--out", required=True, metavar="FILE.yaml", help="where the machine file goes")
    new.add_argument("--force", action="store_true", help="let files be overwritten")
    new.set_defaults(command=_new_machine)


def _new_machine(options: argparse.Namespace) -> int:
    from arch.new_machine import new_machine
    from sim.app.report.render import show
    from sim.app.report.sections import Section

    path = arguments.target("--out", options.out, (".yaml",), options.force)
    assert path is not None
    wishes = {word: found for word in WISHES if (found := getattr(options, word.replace("-", "_"))) is not None}
    made = new_machine(path.stem, options.base, wishes, options.title)
    with arguments.written("--out", path) as part:
        part.write_text(made.text, encoding="utf-8")
    where = path if path.is_absolute() or path.parent.name else f"./{path}"
    show(
        [
            Section(f"{path}, on {options.base}", made.changes, ("figure", "was", "is", "why")),
            *([Section("Warning", tuple((line,) for line in made.warnings))] if made.warnings else []),
            Section("Next", ((f"tilewave compare gemm m=4k n=4k k=4k --arch {options.base} {where}",),)),
        ]
    )
    return 0
