#!/usr/bin/env python3
"""Feeds the program with hostile input and looks for anything but a result or one clear error.

    scripts/fuzz.py [--cases N] [--seed S] [--only KIND ...] [--case NUMBER]

Random cases change valid input in small ways (cut, double, swap, replace by a hostile token, a pipe or a folder in a
file's place) and hand it to what reads it; each must return or raise `InputError` with one line, within 20 s and 4 GiB
of address space. Known hostile files and command lines run as processes of their own: each must end within 20 s with
exit code 2 and one line on stderr. The same seed gives the same cases. Exit code 1 if anything else happens. What a
finding names as its case is tried again, in this process, by `--only KIND --case NUMBER`.

A kind of input is a function under `@kind` in a file of `scripts/fuzzing`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

from fuzzing import commands, models, pipelines, programs, readers, stored  # noqa: E402, F401  (they register their kinds)
from fuzzing.frame import KINDS, Kind, case, changed, tried, tried_cases  # noqa: E402, F401
from fuzzing.hostile import hostile, hostile_cases  # noqa: E402, F401


def random_cases(cases: int, seed: int, only: list[str]) -> list[str]:
    """Findings of `cases` random cases, shared out over the kinds; each kind's are said on stderr."""
    found = []
    chosen = [KINDS[name] for name in only] or list(KINDS.values())
    for tested in chosen:
        began_s = time.monotonic()
        number = max(1, cases // len(chosen))
        problems = tried_cases(tested, seed, range(number))
        print(f"{tested.name}: {number} cases, {len(problems)} findings, {time.monotonic() - began_s:.1f} s",
              file=sys.stderr)  # fmt: skip
        found += problems
    return found


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=10_000, help="random cases, over all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--case", type=int, metavar="NUMBER", help="only this case, of the first KIND, in this process")
    options = parser.parse_args(words)
    if options.case is not None:
        tested = KINDS[(options.only or list(KINDS))[0]]
        given = case(tested, options.seed, options.case)
        with tempfile.TemporaryDirectory() as folder:
            print(f"{given!r}\n{tried(tested, given, Path(folder)) or 'nothing is wrong'}")
        return 0
    found = random_cases(options.cases, options.seed, options.only)
    if not options.only:
        found += hostile_cases()
    print("\n".join([*found, f"{len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
