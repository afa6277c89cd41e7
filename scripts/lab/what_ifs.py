"""Runs the what-ifs that once went wrong again, and writes them into docs/studies.md.

    scripts/docs tables what-ifs [--only WORD ...] [--page FILE]

Each line is a run on a machine and on better ones, or with and without a mechanism. Exit code 1 if one of the better
ones is more than 1 % slower than the run before it. With `--only` the lines that have one of the words are printed,
and the page stays.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from scripts.tables.place import DOCS, put, today
from sim import simulate

PAGE = DOCS / "studies.md"
SLOWER = 0.01


@dataclass(frozen=True)
class WhatIf:
    """A line: what is asked, and what the runs gave before it was mended.

    runs: overrides of the machine, a run each; each is better than the one before, or as good. without: a mechanism
    that the last run does without, alone. hold: all take the schedule of the first. tune: they are tuned as well.
    """

    text: str
    workload: str
    machine: str
    before: str
    runs: tuple[tuple[str, ...], ...]
    without: str = ""
    hold: bool = False
    tune: bool = False


_BIG = "gemm m=1024 n=1024 k=1024 dtype=bf16"

WHAT_IFS = (
    WhatIf(
        "with 132, 160, 264 SMs", _BIG, "h100-sxm", "8.74, 9.74, 9.74 us",
        tuple((f"sm.count={n}",) for n in (132, 160, 264)), tune=True,
    ),
    WhatIf(
        "twice the DRAM bandwidth", "layernorm rows=512 cols=1000 dtype=bf16", "h100-sxm", "3.47, 4.46 us",
        ((), ("dram.bandwidth=6.704 TB/s",)), tune=True,
    ),
    WhatIf(
        "twice the L2 bandwidth and 8 TB/s", "softmax rows=1024 cols=4096 dtype=bf16", "h100-sxm", "6.18, 6.40 us",
        ((), ("l2.bandwidth=128 B/clk", "dram.bandwidth=8 TB/s")), tune=True,
    ),
    WhatIf(
        "clock 1.25 GHz", "gemm m=32 n=200 k=384", "plasticine", "30.8, 44.3 us", ((), ("clock.boost=1.25 GHz",)),
    ),
    WhatIf(
        "one schedule, twice the SMs", "sum n=1000000", "h200-sxm", "3.61, 3.92 us", ((), ("sm.count=264",)), hold=True,
    ),
    WhatIf(
        "`launch.setup` of 1.3, 1.25, 1.2, 1.17, 1.1 us", _BIG, "h100-sxm", "one time down to 1.17 us, then 2.5 % less",
        tuple((f"launch.setup={us} us",) for us in (1.3, 1.25, 1.2, 1.17, 1.1)), hold=True,
    ),
    WhatIf("`--without pingpong`", _BIG, "h100-sxm", "8.74, 8.55 us", ((), ()), without="pingpong"),
    WhatIf(
        "`--without tma`", "gemm m=128 n=128 k=128 dtype=bf16", "h100-sxm", "5.21, 5.08 us", ((), ()), without="tma",
    ),
    WhatIf(
        "`--without warp_specialization`", "gemm m=256 n=256 k=256 dtype=bf16", "h100-sxm", "5.50, 5.39 us",
        ((), ()), without="warp_specialization",
    ),
)  # fmt: skip


def times(what: WhatIf, **options: Any) -> list[float]:
    """us of each run, in order; none of a run without a mechanism that the chosen schedule does not have."""
    found: list[float] = []
    schedule = "auto"
    for number, overrides in enumerate(what.runs):
        asked = {**options, "set": overrides, "schedule": schedule}
        try:
            without = (what.without,) if what.without and number else ()
            report = simulate(what.workload, what.machine, without=without, **asked).to_dict()
        except InputError as error:
            if "does not use it" not in str(error):
                raise
            continue
        found.append(report["time_us"])
        schedule = report["schedule"] if what.hold else schedule
    return found


def broken(what: WhatIf, found: Sequence[float]) -> bool:
    """Whether a better machine is slower, or the run without a mechanism faster than the one that chooses."""
    pairs = [(b, a) for a, b in itertools.pairwise(found)] if what.without else itertools.pairwise(found)
    return any(after > (1 + SLOWER) * before for before, after in pairs)


def shown(found: Sequence[float]) -> str:
    """Times of a line."""
    return ", ".join(f"{us:.2f}" for us in found) + " us"


def row(what: WhatIf) -> tuple[str, bool]:
    """A line of the table, and whether it is wrong again."""
    found = times(what)
    text, wrong = shown(found), broken(what, found)
    if len(found) < len(what.runs):
        text += f", which does not use {what.without}"
    if what.tune:
        tuned = times(what, tune=True)
        text += "; tuned " + ("the same" if shown(tuned) == shown(found) else shown(tuned))
        wrong = wrong or broken(what, tuned)
    return f"| `{what.workload}` on {what.machine}, {what.text} | {what.before} | {text} |", wrong


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")


def write(options: argparse.Namespace) -> int:
    """Runs the lines and, where all were run, writes the table."""
    rows, wrong = [], []
    for what in WHAT_IFS:
        line = f"{what.workload} {what.machine} {what.text}"
        if not options.only or any(word in line for word in options.only):
            text, again = row(what)
            rows.append(text)
            wrong += [text] if again else []
            print(text, flush=True)
    for text in wrong:
        print(f"wrong again: {text}", file=sys.stderr)
    if not options.only:
        put(options.page, "what-ifs", "\n".join([f"{today()}.", "", "| run | before | now |", "|---|---|---|", *rows]))
    return 1 if wrong else 0
