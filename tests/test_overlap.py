"""Graphs whose collectives run beside kernels: laws of the times, memory that is not reused too early, both streams."""

from __future__ import annotations

import json

import pytest

from arch.errors import InputError
from sim.app.report.record import RunRecord
from sim.app.run import simulate, trace
from workloads.graphs import Graph, GraphBuilder, GraphOperator
from workloads.ops import Gemm, Pointwise
from workloads.parse import parse

MACHINE, DEVICES = "h100-sxm", 4
ROWS, COLUMNS = 2048, 1024


def graph(beside: bool) -> Graph:
    """A product that is summed over devices, an independent one, and what joins them."""
    g = GraphBuilder("overlap")
    op = Gemm(m=ROWS, n=COLUMNS, k=COLUMNS, dtype="fp16").with_defaults("fp16")
    x, z = (g.tensor(name, ROWS * COLUMNS, "fp16") for name in "xz")
    w = g.tensor("w", COLUMNS * COLUMNS, "fp16")
    found = g.all_reduce("sum", g.call("first", op, x, w), DEVICES, beside=beside)
    for i in range(3):
        z = g.call(f"beside {i}", op, z, w)
    add = Pointwise(n=ROWS * COLUMNS, chain="add", dtype="fp16").with_defaults("fp16")
    return g.build(g.call("joined", add, found, z))


@pytest.fixture(scope="module")
def runs() -> tuple[RunRecord, RunRecord]:
    """One after the other, and beside each other."""
    one, two = (simulate(graph(beside), MACHINE, schedule="graph").record for beside in (False, True))
    return one, two


def named(run: RunRecord, start: str) -> list[int]:
    return [kernel.time_ps for kernel in run.kernels if kernel.name.startswith(start)]


def test_together_they_take_longer_than_alone_and_less_than_in_turn(runs: tuple[RunRecord, RunRecord]) -> None:
    apart, together = runs
    alone, slowed = named(apart, "beside"), named(together, "beside")
    assert all(a < b for a, b in zip(alone, slowed, strict=True))
    assert named(together, "first") == named(apart, "first")
    assert named(together, "sum")[0] >= named(apart, "sum")[0]
    gain = apart.time_ps - together.time_ps
    assert 0 < gain < min(sum(alone), named(apart, "sum")[0])


def test_time_beside_is_counted_once(runs: tuple[RunRecord, RunRecord]) -> None:
    _, together = runs
    beside = sum(kernel.beside_ps for kernel in together.kernels)
    assert together.time_ps == sum(kernel.time_ps for kernel in together.kernels) - beside
    (found,) = [kernel for kernel in together.kernels if kernel.beside_ps]
    assert found.name.startswith("sum")
    assert 0 < found.beside_ps <= found.time_ps


def test_work_and_bytes_are_conserved(runs: tuple[RunRecord, RunRecord]) -> None:
    apart, together = runs
    for one, two in zip(apart.kernels, together.kernels, strict=True):
        for count in ("macs", "link_write_bytes", "warp_instructions"):
            assert one.counters.get(count) == two.counters.get(count)
    size = 2 * ROWS * COLUMNS
    moved = next(k.counters for k in together.kernels if k.beside_ps)
    # Values are read and results written; through the switch both go by way of a buffer.
    assert moved["l2_write_bytes"] == pytest.approx(2 * size, rel=0.01)
    assert moved["l2_read_bytes"] == pytest.approx(2 * size, rel=0.01)
    written = [sum(k.counters.get("l2_write_bytes", 0) for k in run.kernels if not k.beside_ps) for run in runs]
    assert written[0] == written[1]


def test_report_and_trace_show_both_streams() -> None:
    report = simulate(graph(beside=True), MACHINE, schedule="graph")
    assert "Stream 2: sums over devices" in " ".join(report.record.notes)
    assert "on 16 of 132 SMs" in " ".join(report.record.notes)
    json.dumps(report.to_dict())
    found = trace(graph(beside=True), MACHINE, schedule="graph")
    first, second = (
        [s for s in found.slices if found.path(s.track).endswith(f" / stream {n}") and s.category == "kernel"]
        for n in (1, 2)
    )
    assert [s.name for s in second] == ["all_reduce"]
    assert any(s.begin < second[0].end and second[0].begin < s.end for s in first)
    # What needs the sum waits for it.
    assert max(first, key=lambda s: s.begin).begin >= second[0].end


@pytest.mark.parametrize("phase", ["prefill seq=64", "decode seq=64", "decode seq=64 page=16 vocab=1000"])
def test_halves_of_a_batch_do_the_work_of_the_whole(phase: str) -> None:
    def of(overlap: int) -> Graph:
        op = parse(f"llama model=tiny phase={phase} batch=4 tp=2 layers=2 dtype=fp16 overlap={overlap}")
        assert isinstance(op, GraphOperator)
        return op.graph(fused=True)

    whole, halves = of(0), of(1)
    assert halves.flops == whole.flops
    assert halves.devices == whole.devices
    weights = [{name for name in g.inputs if name.endswith("_weight")} for g in (whole, halves)]
    assert weights[0] == weights[1]
    assert sum(halves.sizes_bytes[name] for name in halves.inputs) == sum(
        whole.sizes_bytes[name] for name in whole.inputs
    )
    assert {step.stream for step in halves.steps if step.op.word == "allreduce"} >= {1}


def test_no_buffer_is_used_again_while_a_sum_may_still_run() -> None:
    op = parse("llama model=tiny batch=2 seq=64 tp=2 layers=3 dtype=fp16 overlap=1")
    assert isinstance(op, GraphOperator)
    found = op.graph(fused=False)
    addresses, _ = found.addresses()
    sums = [n for n, step in enumerate(found.steps) if step.stream]
    assert len(sums) == 2 * 2 * 3

    def boxes(number: int) -> list[tuple[str, int, int]]:
        step = found.steps[number]
        names = {value.buffer for value in (*step.operands, *step.results)}
        return [(name, addresses[name], addresses[name] + found.sizes_bytes[name]) for name in names]

    for number in sums:
        since = max(found.waits[number])
        until = next(n for n in range(number, len(found.steps)) if found.waits[n] and found.waits[n][0] >= number)
        assert until > number + 1  # kernels of the other half are called meanwhile
        for other in range(since + 1, until):
            for name, begin, end in boxes(number):
                clash = [b for b in boxes(other) if b[0] != name and b[1] < end and begin < b[2]]
                assert other == number or not clash, (number, other, name, clash)


def test_wrong_input_is_one_line() -> None:
    with pytest.raises(InputError, match="llama overlap=1: one device has no sums over devices; nearest: tp=2"):
        parse("llama overlap=1 batch=2")
    with pytest.raises(InputError, match="llama batch=3: overlap=1 halves it; nearest: 4"):
        parse("llama overlap=1 batch=3 tp=2")
    with pytest.raises(InputError, match=r"overlap=1: allreduce .* leaves the node"):
        simulate("llama model=llama3-70b batch=2 seq=16 tp=16 overlap=1", "h100-sxm")
    with pytest.raises(InputError, match="llama overlap=1: has no form on sn40l"):
        simulate("llama model=llama3-8b batch=2 seq=64 tp=8 overlap=1", "sn40l")
