"""The subcommand `tilewave trace`. What it needs is imported when it runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from arch.errors import InputError
from sim.app.cli import arguments

FORMATS = (".pftrace", ".kanata")


def add_command(commands: Any) -> None:
    """Adds the parser of `trace` to the command line's."""
    trace = commands.add_parser("trace", help="what happened when, for Perfetto or Konata", allow_abbrev=False)
    arguments.add_workload(trace)
    arguments.add_machine(trace)
    add = trace.add_argument
    add("-o", "--out", required=True, metavar="FILE", help="FILE.pftrace for ui.perfetto.dev, FILE.kanata for Konata")
    add(
        "--window", default="0:", metavar="A:B",
        help="cycles since the kernel's launch (of a graph, since the host's first call); default: all",
    )  # fmt: skip
    add("--sm", default="0", metavar="A:B", help="SMs of a GPU; default 0")
    add("--kernel", type=int, metavar="N", help="which kernel (GPU), section (SN40L); default 0, of a graph all")
    arguments.add_schedule(trace)
    arguments.add_conditions(trace)
    arguments.add_program(trace)
    add("--force", action="store_true", help="let FILE be overwritten")
    trace.set_defaults(command=_trace)


def _trace(options: argparse.Namespace) -> int:
    path = arguments.target("-o", options.out, FORMATS, options.force)
    assert path is not None
    if options.kernel is not None and options.kernel < 0:
        raise InputError(f"--kernel {options.kernel}: must be 0 or more")
    from sim.app.cli.progress import Progress
    from sim.app.run import trace
    from sim.app.trace.window import Wanted, parse_range

    first, last = parse_range("--window", options.window)
    low, high = parse_range("--sm", options.sm)
    if high is None:
        raise InputError(f"--sm {options.sm}: write both ends, such as {low}:{low + 1}")
    text = options.workload
    with Progress(text) as progress:
        found = trace(
            text,
            options.arch,
            Wanted(first, last, low, high, options.kernel),
            schedule=options.schedule,
            set=options.set,
            without=options.without,
            l2=options.l2,
            clock=options.clock,
            data=options.data,
            exact=options.exact,
            program=options.program,
            progress=progress,
        )
    with arguments.written("-o", path) as part:
        if path.suffix == ".pftrace":
            from sim.app.trace.perfetto import write
        else:
            from sim.app.trace.kanata import write
        write(found, part)
    size = path.stat().st_size
    begin, end = found.span
    what = f"{len(found.slices)} slices on {len(found.tracks)} tracks, cycles {begin} to {end}"
    print(f"{path}: {what}, {size / 1e6:.2f} MB", file=sys.stderr)
    return 0
