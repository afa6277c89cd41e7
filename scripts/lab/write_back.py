"""Runs programs of writes and reads on the L2 of H100 SXM beside what a profiler counted there.

scripts/docs tables write-back [PROGRAM ...] [--page FILE]

Measurements: `workloads/silicon/lab/h100_write_back.csv`, by `probe_write_back.cu`; all but those with a wait, which
changes nothing. Without programs all are run, in half a minute, and the table of docs/accuracy/memory.md is written.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from arch.errors import InputError
from arch.load import load_arch
from scripts.lab.data import LAB
from scripts.tables.place import DOCS, put, today
from sim.memory.counters import MemoryCounter
from sim.memory.dram import drop_writes
from sim.memory.l2 import ALL_PARTITIONS, read_lines, write_lines
from sim.memory.model import LINE_BYTES, lower_memory, new_memory_state, settle
from sim.memory.sets import VALID

PAGE = DOCS / "accuracy" / "memory.md"
CSV = LAB / "h100_write_back.csv"
SHOWN = (
    *("write A 22", "write A 24", "write A 32", "write A 64", "write A 256"),
    *("write A 8; read B 24", "write A 8; read B 40", "write A 24; read B 8", "write A 24; read B 32"),
    *("write A 256; read B 8", "write A 256; read B 32", "write A 256; copy B C 8", "write A 256; copy B C 32"),
    *("copy B C 32", "write A 32; read A 32", "write A 64; read A 64", "write A 24; read C 16; read A 24"),
    *("write A 28; read C 16; read A 28", "write A 40; read C 16; read A 40", "read B 28; read C 16; read B 28"),
    *("read B 36; read B 36; read B 36; read B 36", "read B 44; read B 44; read B 44; read B 44"),
    *("write A 28; write A 28; write A 28; write A 28", "write A 36; write A 36; write A 36; write A 36"),
)
LEAST_MIB = 3
"""Counts below this are in no mean of relative differences."""

_CORE_HZ = 1_980_000_000
_LINES_A_MIB = (1 << 20) // LINE_BYTES
_REGION = 256 * _LINES_A_MIB
_PIECE = 256  # lines that a copy reads before it writes as many


@dataclass(frozen=True)
class Count:
    """MiB that DRAM reads and writes during a program."""

    read: float
    written: float


def measured() -> dict[str, Count]:
    """What was counted, by program."""
    with CSV.open(encoding="utf-8") as file:
        return {
            row["program"]: Count(float(row["dram_read_mib"]), float(row["dram_written_mib"]))
            for row in csv.DictReader(file)
        }


def simulated(program: str, arch: str = "h100-sxm") -> Count:
    """A program on an empty L2; InputError for one that is none."""
    spec = lower_memory(load_arch(arch), _CORE_HZ)
    state = new_memory_state(spec)
    for phase in program.split("; "):
        kind, *regions, size = phase.replace("scattered", "read").split() if phase.count(" ") > 1 else ("", "", "")
        if kind not in ("read", "write", "copy") or len(regions) != 1 + (kind == "copy"):
            raise InputError(f"{phase!r}: a phase is `write A 24`, `read B 8` or `copy B C 16`, sizes in MiB")
        first = [_REGION * (ord(region) - ord("A")) for region in regions]
        lines = round(float(size) * _LINES_A_MIB)
        piece = _PIECE if kind == "copy" else lines
        for at in range(0, lines, piece):
            if kind != "write":
                read_lines(spec, state, 0, 0, ALL_PARTITIONS, first[0] + at, piece, VALID)
            if kind != "read":
                write_lines(spec, state, 0, 0, ALL_PARTITIONS, first[-1] + at, piece)
        settle(state)
    drop_writes(state.dram)
    counters = state.counters
    return Count(
        counters[MemoryCounter.DRAM_READ_BYTES] / 2**20,
        counters[MemoryCounter.L2_WRITE_BACK_SECTORS] * spec.sector_bytes / 2**20,
    )


def table(pairs: Mapping[str, tuple[Count, Count]], made: str) -> str:
    """pairs: by program, simulated and counted. made: when and with which version."""
    parts = []
    for name, figures in (
        ("read", [(a.read, b.read) for a, b in pairs.values()]),
        ("written", [(a.written, b.written) for a, b in pairs.values()]),
    ):
        off = [abs(a / b - 1) for a, b in figures if b > LEAST_MIB]
        parts.append(f"{100 * statistics.fmean(off):.1f} % of what is {name} ({len(off)} programs)")
    lines = [
        f"{made}: {len(pairs)} programs, mean difference {' and '.join(parts)},",
        f"of counts over {LEAST_MIB} MiB. Some of them, in MiB:",
        "",
        "| program | DRAM reads | counted | DRAM writes | counted |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {program} | {a.read:.1f} | {b.read:.1f} | {a.written:.1f} | {b.written:.1f} |"
        for program, (a, b) in pairs.items()
        if program in SHOWN
    ]
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")


def write(options: argparse.Namespace) -> int:
    """Runs the programs that are named, or all and writes the table."""
    counted = measured()
    for program in options.programs:
        found, real = simulated(program), counted.get(program)
        beside = f" (counted {real.read:.2f} and {real.written:.2f})" if real else ""
        print(f"{program}: DRAM reads {found.read:.2f} and writes {found.written:.2f} MiB{beside}")
    if not options.programs:
        pairs = {program: (simulated(program), real) for program, real in counted.items() if "wait" not in program}
        put(options.page, "write-back", table(pairs, today()))
    return 0
