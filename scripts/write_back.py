#!/usr/bin/env python3
"""Runs programs of writes and reads on the L2 of H100 SXM beside what a profiler counted there.

scripts/write_back.py [PROGRAM ...] [--page FILE]

Measurements: `workloads/silicon/h100_write_back.csv`, by `scripts/probe_write_back.cu`; all but those with a wait,
which changes nothing. Without programs all are run, in half a minute, and the table of docs/accuracy/memory.md is
written.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arch.errors import InputError
from arch.load import load_arch
from scripts.validation_tables import replaced
from sim.app.cost import version
from sim.memory.counters import MemoryCounter
from sim.memory.dram import drop_writes
from sim.memory.l2 import ALL_PARTITIONS, read_lines, write_lines
from sim.memory.model import LINE_BYTES, lower_memory, new_memory_state, settle
from sim.memory.sets import VALID
from workloads import silicon

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy" / "memory.md"
CSV = Path(silicon.__file__).with_name("h100_write_back.csv")
BEGIN, END = "<!-- what the L2 writes back: scripts/write_back.py -->", "<!-- end of write-back -->"
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 for wrong input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    counted = measured()
    try:
        if options.programs:
            for program in options.programs:
                found, real = simulated(program), counted.get(program)
                beside = f" (counted {real.read:.2f} and {real.written:.2f})" if real else ""
                print(f"{program}: DRAM reads {found.read:.2f} and writes {found.written:.2f} MiB{beside}")
            return 0
        pairs = {program: (simulated(program), real) for program, real in counted.items() if "wait" not in program}
        text = table(pairs, f"{datetime.now(UTC):%Y-%m-%d}, tilewave {version()}")
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(replaced(page, text, BEGIN, END), encoding="utf-8")
    except (InputError, OSError, ValueError) as error:
        print(f"write_back: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
