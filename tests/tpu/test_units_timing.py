"""Blocked at t - 1, ready at t: what each unit of a TPU waits for, in programs of a few instructions."""

from __future__ import annotations

import pytest

from arch.load import load_arch
from sim.app.run import simulate
from sim.engine.clock import TICKS_PER_CYCLE, ps_to_ticks
from sim.tpu.areas import Area, overlap
from sim.tpu.assembly import assemble
from sim.tpu.machine import Calendar, Machine, Result
from sim.tpu.program import Program

SMALL: dict[str, str | int | float] = {
    "array.rows": 8, "array.columns": 4, "accumulators.rows": 64, "unified_buffer.size": "8 KiB",
    "control.sync": "20 cycles",
}  # fmt: skip
LOAD = "read_host_memory host=0 address=0 rows=4 row_bytes=8 host_pitch=8 pitch=8\n"
WEIGHTS = "read_weights address=0\n"
WAIT = "sync waiter=matrix0 after=host_read\n"
MULTIPLY = "matrix_multiply ub=0 pitch=8 rows=4 depth=8 columns=4 acc=0\n"
ACTIVATE = "activate acc=0 rows=4 columns=4 ub=64 pitch=4\n"


def run(text: str, **figures: str | int) -> Result:
    """A program on a small machine, with the spans of its units."""
    spec = load_arch("tpu-v1", SMALL | {name.replace("__", "."): value for name, value in figures.items()})
    program = Program("lab", "lab", assemble(text), 4096, 64, lambda *_: None, lambda _: [])
    return Machine(spec, program, log=True).run()


def spent(result: Result, unit: str, cause: str) -> int:
    """Cycles that a unit spent on a cause before it had finished."""
    return result.accounts[unit].get(cause, 0) // TICKS_PER_CYCLE


def test_a_calendar_serves_in_order() -> None:
    calendar = Calendar()
    assert [calendar.book(now, ticks) for now, ticks in ((0, 10), (3, 5), (15, 1), (20, 2))] == [0, 10, 15, 20]
    assert calendar.busy == 18


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_as_many_tiles_wait_as_the_weight_fifo_holds(depth: int) -> None:
    """Weights come before their activations do: the fetch stops at a full FIFO."""
    result = run(WEIGHTS * 8 + LOAD + WAIT + MULTIPLY * 8, weight_fifo__depth=depth, pcie__latency="100 us")
    assert max(level for _, level in result.fifo_levels[0]) == depth
    assert spent(result, "weights", "fifo_full") > 10_000


@pytest.mark.parametrize("latency_ns", [100, 700])
def test_weights_come_a_latency_after_their_transfer_and_are_shifted_in_row_by_row(latency_ns: int) -> None:
    spec = load_arch("tpu-v1", SMALL)
    ends = []
    for ns in (0, latency_ns):
        text = LOAD + WAIT + WAIT.replace("matrix0", "weights") + WEIGHTS + MULTIPLY
        result = run(text, dram__latency=f"{ns} ns", array__overlap_weights="false")
        (begin,) = [begin for cause, begin, _ in result.spans["matrix0"] if cause == "weight_shift"]
        (active,) = [begin for cause, begin, _ in result.spans["matrix0"] if cause == "active"]
        assert active - begin == 8 * TICKS_PER_CYCLE
        ends.append(active)
    assert ends[1] - ends[0] == ps_to_ticks(latency_ns * 1000, spec.clock.boost_hz)


def test_tiles_follow_each_other_without_a_gap_whatever_the_latency() -> None:
    """The next tile is asked for while the last data of the one before are on their way."""
    read = assemble("read_weights address=0 repeat=4")
    program = Program("lab", "lab", read, 0, 4 << 16, lambda *_: None, lambda _: [])
    for latency_ns in (100, 400):
        spec = load_arch("tpu-v1", {"dram.latency": f"{latency_ns} ns", "dram.refresh": "bank"})
        busy = Machine(spec, program).run().accounts["weights"]["busy"] / TICKS_PER_CYCLE / spec.clock.boost_hz
        whole = 4 * spec.tile_bytes / spec.dram.bandwidth_bytes_per_s
        assert busy + latency_ns * 1e-9 == pytest.approx(whole, rel=0.04)


@pytest.mark.parametrize("sync", [0, 20, 300])
def test_a_synchronisation_costs_its_cycles(sync: int) -> None:
    free, found = (run(LOAD + WEIGHTS + WAIT + MULTIPLY, control__sync=f"{n} cycles") for n in (0, sync))
    begin, at = (next(b for c, b, _ in r.spans["matrix0"] if c == "active") for r in (free, found))
    assert at - begin == sync * TICKS_PER_CYCLE


def test_accumulators_are_not_written_before_they_have_been_read() -> None:
    """The second product of the same accumulators starts when the activation unit has ended; of others, at once."""
    text = LOAD + WEIGHTS * 2 + WAIT + MULTIPLY + ACTIVATE
    slow: dict[str, str | int] = {"activation__values": 1, "activation__latency": "50 cycles"}
    same, other = run(text + MULTIPLY, **slow), run(text + MULTIPLY.replace("acc=0", "acc=32"), **slow)
    second = [[b for c, b, _ in r.spans["matrix0"] if c == "active"][1] for r in (same, other)]
    read_end = max(end for cause, _, end in same.spans["activation"] if cause == "accumulators")
    assert second[0] == read_end + 50 * TICKS_PER_CYCLE
    assert second[1] < read_end
    assert spent(other, "matrix0", "accumulators") == 0 < spent(same, "matrix0", "accumulators")


LAYER = "sync waiter=matrix0 after=activation\n" + MULTIPLY.replace("ub=0 pitch=8", "ub=64 pitch=4").replace(
    "depth=8", "depth=4"
)


@pytest.mark.parametrize(("rows", "depth"), [(4, 32), (4, 90), (16, 32)])
def test_a_layer_waits_for_the_way_of_its_input_through_the_pipeline(rows: int, depth: int) -> None:
    """Out of the array, through the activation unit, and a signal: nothing else, so that the stall is predicted."""
    figures: dict[str, str | int] = {"activation__latency": f"{depth} cycles", "control__sync": "1 cycles"}
    text = (LOAD + WEIGHTS * 2 + WAIT + MULTIPLY + ACTIVATE + LAYER).replace("rows=4", f"rows={rows}")
    result = run(text, activation__values=4, **figures)
    skew, buffer = 8 + 4 - 2, 16
    assert result.counters["raw_stall_ticks"] == (buffer + skew + rows + depth + 1) * TICKS_PER_CYCLE


@pytest.mark.parametrize(("a", "waits"), [(64, True), (96, False)])
def test_the_activation_unit_waits_for_results_of_its_own(a: int, waits: bool) -> None:
    """What is read again right away has first to come through the pipeline; other bytes of the buffer have not."""
    first = "vector op=tanh a=0 b=0 ub=64 rows=4 columns=4 pitch=8\n"
    text = LOAD + LOAD.replace("address=0", "address=96") + WAIT.replace("matrix0", "activation") + first
    result = run(text + first.replace("a=0", f"a={a}").replace("ub=64", "ub=128"), activation__latency="50 cycles")
    assert spent(result, "activation", "pipeline") == (50 if waits else 0)


def test_areas_of_one_pitch_overlap_by_column() -> None:
    left, right = Area(0, 4, 8, 32), Area(8, 4, 8, 32)
    assert not overlap(left, right)
    assert overlap(left, Area(7, 4, 8, 32))
    assert overlap(right, Area(0, 4, 32, 32))
    assert overlap(left, Area(32 + 31, 2, 2, 32))  # the last byte of its rows is the first of the next
    assert not overlap(left, Area(104, 4, 8, 32))


def test_transfers_are_what_a_run_would_save_whose_data_are_there_at_once() -> None:
    """A small product waits for its input and its output; ten times the link leaves little of that."""
    plain, wide = (
        simulate("gemm m=200 n=256 k=256", "tpu-v1", set=words).record.kernels[0]
        for words in ([], ["pcie.bandwidth=125 GB/s", "pcie.latency=0.01 us"])
    )
    assert 0.3 * plain.time_ps < plain.transfer_ps < plain.time_ps
    assert wide.transfer_ps < 0.3 * plain.transfer_ps
    assert wide.time_ps - wide.transfer_ps == pytest.approx(plain.time_ps - plain.transfer_ps, rel=0.01)
