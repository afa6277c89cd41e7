"""What handing over vectors instead of tokens changes: cycles, and the time that a simulation takes.

    python scripts/lab/rdu/vectors.py [--repeats 3]

For each program: cycles of its sections by tokens and by vectors, and the ratio of processor time, of the engine's loop
alone and with what comes before it (costs, placement, routes), each the median of several interleaved runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arch.load import load_arch
from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.cut import fit
from sim.rdu.engine import Run
from sim.rdu.lower import Configuration, lower_section
from sim.rdu.program import Call, Counter, Out, Output, Program, Section, by_vectors
from workloads.parse import parse
from workloads.rdu.select import build, choose

WORK = [
    *(("sn40l", "softmax rows=4096 cols=512", f"streaming {rows} rows") for rows in (8, 64, 512)),
    ("sn40l", "softmax rows=8192 cols=8192", "streaming"),
    ("sn40l", "gelu n=67108864", "auto"),
    ("sn40l", "layernorm rows=4096 cols=4096", "streaming"),
    ("sn40l", "attention batch=1 heads=8 seq=4096 head_dim=128", "auto"),
    ("sn40l", "gemm m=4096 n=4096 k=4096", "auto"),
    ("plasticine", "softmax rows=1024 cols=512", "streaming"),
]


def timed(rows: int) -> Program:
    """Five units that take a vector a cycle, and nothing else: tokens of `rows` rows of 32 numbers."""
    firings = 2048
    section, i = Section("units"), Counter("i", firings)
    made: list[Output] = []
    for n in range(5):
        inputs = {"x": made[-1].read()} if made else {}
        out = Out((rows, 32), "bf16", (i,))
        made.append(section.timed(f"unit{n}", (i,), inputs, out, interval_cycles=rows))
    return Program(f"five units, {firings} tokens of {rows} vectors", (Call(section),), "by hand")


def of_workload(text: str, schedule: str, spec: RduSpec) -> Program:
    """The program that would run."""
    op = parse(text).with_defaults(spec.default_dtype)
    return fit(build(op, spec, choose(op, spec, schedule).config), spec)[0]


def lowered(program: Program, spec: RduSpec) -> list[Configuration]:
    """Its sections on the machine."""
    addresses = program.addresses()
    return [lower_section(call.section, spec, addresses) for call in program.calls]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time, and the result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def compared(make: Callable[[], Program], spec: RduSpec, repeats: int) -> Sequence[float]:
    """Cycles by tokens and by vectors, the ratio of the engine's time, and that of all of it."""
    times: list[list[tuple[float, float]]] = [[], []]
    ticks = [0, 0]
    for _ in range(repeats):
        for number, program in enumerate((make(), by_vectors(make()))):
            before, whole = seconds(partial(lowered, program, spec))
            runs = [Run(configuration, log=False) for configuration in whole]
            ticks[number] = sum(run.run().ticks for run in runs)
            runs = [Run(configuration, log=False) for configuration in whole]
            engine = sum(seconds(run.run)[0] for run in runs)
            times[number].append((engine, before + engine))
    loop, every = ([median(t[k] for t in side) for side in times] for k in (0, 1))
    return ticks[0] / TICKS_PER_CYCLE, ticks[1] / TICKS_PER_CYCLE, loop[1] / loop[0], every[1] / every[0]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)  # type: ignore[union-attr]
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"{'program':<62}{'tokens':>10}{'vectors':>10}{'engine':>9}{'all':>7}")
    rows: list[tuple[str, RduSpec, Callable[[], Program]]] = []
    for count in (8, 64, 512):
        rows.append((timed(count).name, load_arch("sn40l"), partial(timed, count)))
    for machine, text, schedule in WORK:
        spec = load_arch(machine)
        rows.append((f"{text}, {schedule}, {machine}", spec, partial(of_workload, text, schedule, spec)))
    for name, spec, make in rows:
        tokens, vectors, engine, whole = compared(make, spec, repeats)
        print(f"{name:<62}{tokens:>10.0f}{vectors:>10.0f}{engine:>8.1f}x{whole:>6.1f}x", flush=True)


if __name__ == "__main__":
    main()
