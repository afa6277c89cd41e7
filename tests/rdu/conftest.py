"""Machines and pipelines that the dataflow engine's tests share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arch.load import load_arch
from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.engine import SectionResult, run_section
from sim.rdu.program import Counter, Out, Output, Section

SMALL: dict[str, str | int | float] = {
    "pcu.count": 32,
    "pmu.count": 32,
    "mesh.rows": 8,
    "agcu.count": 4,
    "dies.count": 1,
    "tiles.rows": 1,
    "tiles.columns": 1,
}
SILENT: dict[str, str | int | float] = {"mesh.hop": 0, "mesh.control": 0, "pmu.latency": 0, "mesh.vector": "4096 B/clk"}


@pytest.fixture(scope="session")
def small() -> RduSpec:
    """An SN40L of 32 PCUs and 32 PMUs on one die."""
    spec: RduSpec = load_arch("sn40l", SMALL)
    return spec


@pytest.fixture(scope="session")
def silent() -> RduSpec:
    """The same without latencies of network and memory units: what is left are the stages' own times."""
    spec: RduSpec = load_arch("sn40l", SMALL | SILENT)
    return spec


def pipeline(
    times: Sequence[int], tokens: int, depth: int = 2, *, latency: int = 0, pmus: int | None = 2
) -> tuple[Section, list[Output]]:
    """A linear metapipeline of stages that take `times` cycles, with `tokens` tokens of 32 x 32 numbers."""
    section, i = Section("pipeline"), Counter("i", tokens)
    out = Out((32, 32), "bf16", (i,))
    outputs: list[Output] = []
    for n, time in enumerate(times):
        inputs = {"x": outputs[-1].read(depth, pmus=pmus)} if outputs else {}
        outputs.append(section.timed(f"s{n}", (i,), inputs, out, interval_cycles=time, latency_cycles=latency))
    return section, outputs


def run(section: Section, spec: RduSpec) -> SectionResult:
    """Runs a section with its tensors laid out one after the other."""
    addresses, at = {}, 0
    for tensor in section.tensors:
        addresses[tensor.name] = at
        at += -(-tensor.size_bytes // 4096) * 4096
    return run_section(section, spec, addresses)


def cycles(result: SectionResult) -> float:
    """Cycles of a section."""
    return result.ticks / TICKS_PER_CYCLE
