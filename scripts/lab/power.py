"""Writes the table of power into docs/accuracy/power.md: loops of one instruction, measured and by a preset's energies.

    scripts/docs tables power [--arch NAME] [--json] [--page FILE]

A loop's work is what `probe_power.py` counted. Its power here is what the energy model makes of that work in a second
at the measured clock, so that neither time nor clock is simulated. Loops of tensor cores at the limit also have the
clock at which the model would hold them.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from arch.gpu import GpuSpec
from arch.load import load_arch
from scripts.lab.data import LAB
from scripts.tables.place import DOCS, put
from sim.engine.clock import PS_PER_S
from sim.gpu.counters import Counter
from sim.gpu.power.energy import EnergyModel
from sim.memory.counters import MemoryCounter
from workloads.accuracy.splits import half

POWER_CSV = LAB / "h100_power.csv"
PAGE = DOCS / "accuracy" / "power.md"
WINDOW_PS = PS_PER_S // 1000
"""Work of a millisecond: sums in femtojoules stay within 64 bits."""

_WGMMA = {"bf16": 16, "fp16": 16, "tf32": 8, "fp8": 32, "int8": 32}
"""Steps of k of an instruction of 64 x 256."""
_LANES = 32
_SMS = 132
_VECTOR = {
    **dict.fromkeys(("ffma", "fadd", "fmul", "imad"), ("multiply-add", Counter.INST_FMA)),
    **dict.fromkeys(("hfma2", "hfma2_bf16"), ("packed multiply-add", Counter.INST_FP16)),
    "dfma": ("FP64 multiply-add", Counter.INST_FP64),
    **dict.fromkeys(("iadd3", "lop3", "shf", "prmt", "fmnmx", "f2fp"), ("ALU", Counter.INST_ALU)),
    **dict.fromkeys(("mufu_ex2_lg2", "f2i", "f2f64"), ("special function", Counter.INST_MUFU)),
}
_EXTRA = {"ldg128_l1": 2, "ldg32_l1": 0.5, "ldg128_cg": 2, "stg128": 3, "copy128": 1.5, "sts128": 0.375}
"""Instructions beside each that is counted: LOP3 of loads, MOV of stores."""


@dataclass(frozen=True)
class Loop:
    """One loop. work: counters of the SMs and of memory in a second."""

    name: str
    group: str
    data: str
    half: str
    measured_w: float
    clock_mhz: float
    core: Mapping[int, float]
    memory: Mapping[int, float]
    dtype: str
    capped: bool


@dataclass(frozen=True)
class Answer:
    """What the model says of a loop. held_mhz: its clock at the board's limit."""

    name: str
    group: str
    data: str
    half: str
    measured_w: float
    model_w: float
    clock_mhz: float
    held_mhz: float

    @property
    def error(self) -> float:
        """Of the power."""
        return self.model_w / self.measured_w - 1


def loop_of(row: Mapping[str, str]) -> Loop | None:
    """A row of h100_power.csv; None where it does no counted work, or rests in between."""
    kernel, data, dtype = row["kernel"], row["data"], row["dtype"]
    if not row["work_per_s"] or row["period_us"] or row["beside"] or kernel in ("sleep_only", "spin_clock"):
        return None
    work, issued, span = float(row["work_per_s"]), float(row["warp_instructions_per_s"]), int(row["span"] or 0)
    core: dict[int, float] = {Counter.INSTRUCTIONS: issued * (1 + _EXTRA.get(kernel, 0))}
    memory: dict[int, float] = {}
    in_l2 = 0 < span * min(int(row["ctas"]), _SMS) // _SMS < 1 << 25
    if kernel in _VECTOR:
        group, counter = _VECTOR[kernel]
        core[counter] = issued
    elif kernel.startswith(("lds", "sts")):
        group = "shared memory"
        core[Counter.SHARED_READ_BYTES if kernel.startswith("lds") else Counter.SHARED_WRITE_BYTES] = work
    elif kernel.endswith("_l1"):
        group = "L1"
        core[Counter.L1_READ_SECTORS] = work / 32
    elif kernel in ("ldg128_cg", "stg128", "copy128"):
        read = {"ldg128_cg": 1.0, "stg128": 0.0, "copy128": 0.5}[kernel]
        group = "L2" if in_l2 else "DRAM"
        core |= {
            Counter.PORT_READ_BYTES: work * read,
            Counter.L1_READ_SECTORS: work * read / 32,
            Counter.PORT_WRITE_BYTES: work * (1 - read),
        }
        if not in_l2:
            memory = {
                MemoryCounter.DRAM_READ_BYTES: work * read,
                MemoryCounter.DRAM_WRITE_BYTES: work * (1 - read),
            }
            if row["ctas"] == "33":
                return None  # its lines come from the L2 in part
    elif kernel.startswith("mma"):
        group = f"mma.sync {dtype}"
        core[Counter.MACS_TENSOR] = work / 2
    elif kernel.startswith("wgmma"):
        group = f"wgmma {dtype}"
        core[Counter.MACS_TENSOR] = work / 2
        rows = 256 + (64 if kernel.endswith("_ss") else 0)
        core[Counter.SHARED_READ_BYTES] = work / (2 * 64 * 256 * _WGMMA[dtype]) * rows * 32
    elif kernel == "empty_loop":
        group = "issue"
    else:
        return None
    name = " ".join([kernel, data, *(f"{key}={row[key]}" for key in ("ctas", "threads", "span") if row[key])])
    return Loop(
        name, group, data, half(name), float(row["power_w"]), float(row["core_mhz"]), core, memory, dtype,
        float(row["capped"]) > 0.5 and data == "random",
    )  # fmt: skip


def loops(path: Path = POWER_CSV) -> list[Loop]:
    """All that can be compared."""
    with path.open(encoding="utf-8", newline="") as file:
        return [loop for row in csv.DictReader(file) if (loop := loop_of(row))]


def ask(spec: GpuSpec, loop: Loop) -> Answer:
    """A loop by the energies of a preset."""
    model = EnergyModel(spec, "zeros" if loop.data == "zeros" else "normal")
    model.set_tensor_dtype(loop.dtype)
    part = WINDOW_PS / PS_PER_S
    counters, memory = np.zeros(Counter.WIDTH, np.int64), np.zeros(len(MemoryCounter), np.int64)
    for index, count in loop.core.items():
        counters[index] = round(count * part)
    for index, count in loop.memory.items():
        memory[index] = round(count * part)
    hz = round(loop.clock_mhz * 1e6)
    spent = model.window_fj(*model.actions_fj(counters, memory), WINDOW_PS, hz)
    held = model.sustained_hz(hz, model.at_reference(spent, hz), spec.power.limit_mw, spec.clock.under_tensor_hz)
    return Answer(
        loop.name, loop.group, loop.data, loop.half, loop.measured_w, spent.total_fj / WINDOW_PS / 1000, loop.clock_mhz,
        held / 1e6 if loop.capped else 0.0,
    )  # fmt: skip


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(answers: Sequence[Answer]) -> str:
    """A line a group and kind of data, and what the two halves say."""
    lines = [
        _line(("loops", "data", "measured, W", "model, W", "error", "bias", "measured, MHz", "model at limit, MHz")),
        _line(["---"] * 8),
    ]  # fmt: skip
    keys = sorted({(a.group, a.data) for a in answers})
    for group, data in keys:
        found = [a for a in answers if (a.group, a.data) == (group, data)]
        held = [a for a in found if a.held_mhz]

        def mean(of: Callable[[Answer], float], among: Sequence[Answer] = found) -> float:
            return statistics.fmean(map(of, among))

        lines.append(
            _line(
                (
                    f"{group} ({len(found)})",
                    data,
                    f"{mean(lambda a: a.measured_w):.0f}",
                    f"{mean(lambda a: a.model_w):.0f}",
                    f"{100 * mean(lambda a: abs(a.error)):.1f} %",
                    f"{100 * mean(lambda a: a.error):+.1f} %",
                    f"{mean(lambda a: a.clock_mhz, held):.0f}" if held else "",
                    f"{mean(lambda a: a.held_mhz, held):.0f}" if held else "",
                )
            )
        )
    lines.append("")
    for part in ("fitted", "held"):
        errors = [100 * a.error for a in answers if a.half == part]
        if errors:
            lines.append(
                f"{len(errors)} loops of the {part} half: mean absolute error "
                f"{statistics.fmean(map(abs, errors)):.1f} %, bias {statistics.fmean(errors):+.1f} %."
            )
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--arch", default="h100-sxm", metavar="NAME", help="preset, default h100-sxm")
    parser.add_argument("--set", action="append", default=[], metavar="FIGURE=VALUE", help="change a figure")
    parser.add_argument("--json", action="store_true", help="every loop as JSON on stdout, and write nothing")


def write(options: argparse.Namespace) -> int:
    """Writes the table, or prints all loops."""
    spec = load_arch(options.arch, options.set)
    answers = [ask(spec, loop) for loop in loops()]
    if options.json:
        print(json.dumps([{**asdict(a), "error": round(a.error, 4)} for a in answers], indent=1))
    else:
        put(options.page, "power", table(answers))
    return 0
