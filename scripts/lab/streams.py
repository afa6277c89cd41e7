#!/usr/bin/env python3
"""Replays published streams of B200's memory on the engine: rates into its SMs, and counters of its L2.

    scripts/lab/streams.py [--half fitted|held] [--every N] [--set PATH=VALUE ...]

Rows: `b200_streams.csv` of the laboratory. Each kernel is the published one on less data, whose start and end the
difference of two lengths takes out. The half of a row is that of its shape.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from typing import NamedTuple

from arch.gpu import GpuSpec
from arch.load import load_arch
from scripts.lab.data import LAB
from sim.gpu.engine.api import Device
from sim.gpu.language import Program
from sim.gpu.power.regulator import FixedClock
from workloads.accuracy.splits import half
from workloads.gpu import micro

STREAMS_CSV = LAB / "b200_streams.csv"
_COUNTERS = ("l2_read_sectors", "l2_coalesced_sectors", "l2_far_read_sectors", "dram_read_bytes")
_BYTES = 24 << 20
"""Into SMs, of the shorter of two lengths."""


class Stream(NamedTuple):
    """One row. shape: its words as numbers, `box` as columns and rows."""

    kind: str
    shape: dict[str, int | tuple[int, int]]
    text: str
    measured: dict[str, float]


def rows() -> list[Stream]:
    """All rows of the file."""
    with STREAMS_CSV.open(newline="", encoding="utf-8") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: dict[str, str]) -> Stream:
    words = dict(word.split("=") for word in record["shape"].split())
    shape = {key: _pair(text) if key == "box" else int(text) for key, text in words.items()}
    found = {"rate": record["gb_per_s"], "sectors": record["l2_sectors_per_32_bytes"]}
    found["dram"] = record["dram_bytes_per_byte"]
    return Stream(record["stream"], shape, record["shape"], {key: float(text) for key, text in found.items() if text})


def _pair(text: str) -> tuple[int, int]:
    columns, _, rows_of = text.partition("x")
    return int(columns), int(rows_of)


def program(spec: GpuSpec, row: Stream, share: int) -> tuple[Program, int]:
    """The kernel of a row with `share` times the least data, and the bytes that it brings into SMs."""
    shape: dict = row.shape  # type: ignore[type-arg]
    sms = spec.sm.count
    if row.kind == "cp_async":
        ctas = sms * shape["ctas_per_sm"]
        each = ctas * shape["threads"] * shape["bytes"]
        trips = share * max(2 * shape["stages"], -(-_BYTES // each))
        built = micro.copy_stream(ctas, shape["threads"], shape["bytes"], shape["stages"], trips)
        return built, trips * each
    columns, box_rows = shape["box"]
    box = columns * box_rows * 4
    if row.kind == "tma":
        trips = share * max(2 * shape["stages"], -(-_BYTES // (sms * box)))
        return micro.tma_stream(sms, shape["box"], shape["stages"], trips), trips * sms * box
    cluster, sharing = shape["cluster"], shape["sharing"]
    ctas = sms // max(cluster, sharing) * max(cluster, sharing)
    trips = share * max(4, -(-_BYTES // (ctas * 4 * box)))
    alike = 1 if row.kind == "apart" else sharing
    built = micro.shared_tiles(ctas, shape["box"], trips, cluster, alike, multicast=row.kind == "multicast")
    return built, trips * ctas * 4 * box


def simulated(spec: GpuSpec, row: Stream) -> dict[str, float]:
    """What the engine says of a row, by column: the difference of two lengths."""
    shorter, longer = (_run(spec, *program(spec, row, share)) for share in (1, 3))
    time_ps, lookups, dram, moved = (b - a for a, b in zip(shorter, longer, strict=True))
    return {"rate": moved / time_ps * 1e3, "sectors": lookups * 32 / moved, "dram": dram / moved}


def _run(spec: GpuSpec, built: Program, moved: int) -> tuple[int, int, int, int]:
    """Picoseconds, look-ups of the L2, bytes of DRAM, and the bytes into SMs."""
    device = Device(spec, regulator=FixedClock(spec.clock.boost_hz), cold_launch=False)
    found = device.run(built.kernels[0], built.addresses(), launch_ps=0, drain_ps=0)
    read, joined, far, dram = (found.memory[counter] for counter in _COUNTERS)
    return found.time_ps, read - joined + far, dram, moved


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line a row and the mean errors by kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("fitted", "held"))
    parser.add_argument("--kind", action="append")
    parser.add_argument("--every", type=int, default=1, help="of the rows, one of so many")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    options = parser.parse_args(argv)
    spec = load_arch("b200", options.set)
    chosen = [row for row in rows() if options.half in (None, half(row.text))]
    chosen = [row for row in chosen if not options.kind or row.kind in options.kind]
    errors: dict[tuple[str, str], list[float]] = {}
    for row in chosen[:: options.every]:
        found = simulated(spec, row)
        for name, value in row.measured.items():
            errors.setdefault((row.kind, name), []).append(100 * (found[name] / value - 1) if value else 0.0)
        line = "  ".join(f"{name} {found[name]:.4g} ({value:.4g})" for name, value in row.measured.items())
        print(f"{row.kind:10} {row.text:48} {line}", flush=True)
    for (kind, name), found_errors in sorted(errors.items()):
        mean = sum(map(abs, found_errors)) / len(found_errors)
        bias = sum(found_errors) / len(found_errors)
        print(f"{kind:10} {name:8} {len(found_errors):4} rows  mean {mean:5.1f} %  bias {bias:+5.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
