"""Gemmini: its mappings, what the queues wait for, and the RTL's cycles of layers on which nothing was calibrated."""

from __future__ import annotations

import csv
import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.run import row_request, run
from sim.engine.jit import kernel
from sim.gemmini.machine import _memories
from sim.gemmini.memory import request
from sim.memory.counters import MemoryCounter
from sim.memory.dram import lower_dram, new_dram_state
from workloads.gemmini import conv, gemm
from workloads.gemmini.mapping import CONVOLUTION, PRODUCT, Mapped
from workloads.parse import parse
from workloads.silicon import read_rows
from workloads.silicon.firesim import records

TABLE = Path(__file__).resolve().parents[2] / "workloads" / "silicon" / "gemmini_firesim.csv"
CONV = "conv2d n=1 c=64 h=14 w=14 k=32 r=3 s=3 pad=1 out=int8"


def cycles(workload: str, schedule: str = "ws", *overrides: str, l2: str = "cold") -> int:
    return simulate(workload, "gemmini", schedule=schedule, set=overrides, l2=l2).to_dict()["cycles"]


@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        ("gemm m=50 n=70 k=90", "ws"),
        ("gemm m=50 n=70 k=90 batch=2 out=int8", "ws m=16 n=32 k=48 order=knm"),
        ("gemm m=33 n=17 k=40", "os"),
        ("conv2d n=2 c=20 h=9 w=11 k=24 r=3 s=3 pad=1", "ws p=4 q=5 k=16 c=16 order=knc"),
        ("conv2d n=1 c=3 h=16 w=16 k=8 r=7 s=5 stride=2 pad=3 out=int8", "ws p=3 r=2"),
    ],
)
def test_the_tiles_of_a_mapping_add_up_to_the_operator(workload: str, schedule: str) -> None:
    report = simulate(workload, "gemmini", schedule=schedule, check=True)
    assert report.to_dict()["check"]["passed"]


def test_a_mapping_that_is_printed_gives_itself() -> None:
    spec = load_arch("gemmini")
    op = parse(CONV).with_defaults("int8")
    found = conv.candidates(op, spec, "auto")  # type: ignore[arg-type]
    assert len(found) > 3
    for mapping, estimate in found:
        assert conv.candidates(op, spec, str(mapping)) == [(mapping, estimate)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "size", "order"), [("gemm m=128 n=3072 k=768", (80, 80, 768), PRODUCT), (CONV, None, CONVOLUTION)]
)
def test_the_library_s_rule_is_one_of_the_mappings(workload: str, size: tuple[int, ...] | None, order: str) -> None:
    spec, op = load_arch("gemmini"), parse(workload).with_defaults("int8")
    (mapping, _), *others = (gemm if size else conv).candidates(op, spec, "ws")  # type: ignore[arg-type]
    assert not others
    assert (mapping.choices > 0) == (order == CONVOLUTION)
    assert mapping.order == order
    assert size is None or tuple(mapping.sizes.values()) == size


def test_the_library_s_tilings_are_those_of_the_table() -> None:
    """Every tiling that the artifact printed follows from the rule; products round up to blocks there."""
    spec = load_arch("gemmini")
    with TABLE.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["set"] == "both" and line["q"] != "1"]
    for line in lines:
        fields = records(TABLE, [(1, line)])[1]
        op = parse(f"{fields['op']} {fields['shape']} dtype=int8").with_defaults("int8")
        mapping: Mapped = conv.candidates(op, spec, "ws")[0][0]  # type: ignore[arg-type]
        tile = mapping.sizes
        assert "_".join(str(tile[name]) for name in "srqpck") + "_1" == line["auto_tiling"]


def test_rtl_cycles_of_held_layers() -> None:
    """Mean error of layers of ResNet-50 and BERT on which nothing was calibrated, of both kinds of tiling."""
    rows = [row for row in read_rows(TABLE) if row.split != "fitted" and row.time_us < 700]
    for schedule in ("mapping", "library"):
        kind = [row for row in rows if row.schedule == schedule]
        errors = [run(row_request(row)).time_ps * 1e-6 / row.time_us - 1 for row in kind]
        assert len(errors) > 10
        assert statistics.mean(map(abs, errors)) < 0.16


def test_only_the_first_layer_of_a_program_finds_nothing_in_the_caches() -> None:
    cold = [row for row in read_rows(TABLE) if row.l2 == "cold"]
    assert {row.schedule for row in cold} == {"library"}
    assert len(cold) == 3 * 4, "three sets of buffers: convolutions of two networks, products of two"


def test_the_library_looks_for_its_tiling_while_the_time_runs() -> None:
    """It grows the channels of a tile one by one, and looks at every tiling on its way."""
    workload = "conv2d n=1 c=512 h=14 w=14 k=64 r=1 s=1 out=int8"
    report = simulate(workload, "gemmini", schedule="ws").to_dict()
    tiling, _, choices = report["schedule"].partition(" choices=")
    assert int(choices) > 400
    looked = 275 * int(choices)
    assert report["cycles"] == cycles(workload, report["schedule"])
    assert report["cycles"] == pytest.approx(cycles(workload, tiling) + looked, rel=0.01)
    assert report["stalls"]["array"]["core"] == pytest.approx(looked / report["cycles"])
    assert sum(report["stalls"]["array"].values()) == pytest.approx(1)


def test_by_chance_some_of_what_does_not_fit_is_still_there() -> None:
    """What a loop reads that is larger than a cache is never there in time where the oldest line leaves."""
    workload, schedule = "gemm m=64 n=512 k=2048", "ws m=16 n=512 k=128 order=mkn"
    oldest, chance = (
        simulate(workload, "gemmini", schedule=schedule, set=[f"l2.replacement={policy}"]).record.kernels[0].counters
        for policy in ("lru", "random")
    )
    assert chance["l2_misses"] < 0.9 * oldest["l2_misses"]


def test_the_cache_in_front_of_the_dram_gives_one_line_at_a_time() -> None:
    """A beat a cycle, and one to begin: 9 cycles for each line of 64 B that the L2 misses."""
    report = simulate("gemm m=1 n=1024 k=1024 out=int8", "gemmini", schedule="ws m=1 n=512 k=64", l2="warm")
    misses = report.record.kernels[0].counters["l2_misses"]
    assert 9 * misses < report.cycles < 12 * misses


def test_products_of_few_rows_wait_for_the_reservation_station() -> None:
    """With 4 columns of results a product streams 4 rows, but only 8 pairs of commands are known at a time."""
    wide, narrow = cycles(CONV, "ws q=14"), cycles(CONV, "ws q=4")
    assert narrow > 1.4 * wide
    assert cycles(CONV, "ws q=4", "reservation.executes=64") < 0.85 * narrow


def test_two_tiles_hide_each_other_s_loads_and_one_after_the_other_does_not() -> None:
    product = "gemm m=256 n=256 k=256"
    stays = simulate(product, "gemmini", schedule="ws m=64 n=64 k=256", l2="warm").to_dict()
    alone = simulate(product, "gemmini", schedule="os m=64 n=64 k=256", l2="warm").to_dict()
    assert stays["cycles"] < 1.25 * 256**3 / 256
    assert alone["cycles"] > 1.5 * stays["cycles"]


def test_what_lies_in_the_caches_need_not_come_from_memory() -> None:
    report = simulate(CONV, "gemmini", schedule="ws", l2="warm").to_dict()
    assert report["gemmini"]["traffic"]["DRAM"]["read_bytes"] == 0
    assert report["cycles"] < cycles(CONV)


def test_small_requests_of_one_line_follow_each_other() -> None:
    """Pixels of one channel share lines, whose set serves one request at a time."""
    workload = "conv2d n=1 c=1 h=64 w=64 k=16 r=1 s=1 out=int8"
    tiling = "ws p=22 q=22"
    assert cycles(workload, tiling, "l2.set_busy=1 cycles") < 0.8 * cycles(workload, tiling)


@kernel
def _taken(figures, caches, dram, t, line, write):  # type: ignore[no-untyped-def]
    return request(figures, caches, dram, t, 64 * line, 64, write)[0]


def test_a_miss_without_a_place_keeps_everybody_out() -> None:
    """One channel leads into the cache: what it cannot take stays in front of all that follow."""
    spec = load_arch("gemmini", {"l2.misses": 1})
    figures, caches = _memories(spec)
    channel = lower_dram(spec.dram, spec.memory_cache.line_bytes, spec.clock.boost_hz)
    dram = (channel, new_dram_state(channel), np.zeros(len(MemoryCounter), np.int64))

    def taken(t: int, line: int, write: int) -> int:
        return int(_taken(figures, caches, dram, t, line, write))

    assert taken(0, 0, 0) == 0
    filled = int(caches.misses[0])
    assert filled > 60
    assert taken(1, 1, 1) == filled
    # A line that is there needs no place, but its turn.
    assert taken(2, 0, 0) == filled + 1
    assert taken(filled + 9, 0, 0) == filled + 9


@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        (
            "conv2d n=1 c=16 h=17 w=17 k=128 r=1 s=1 stride=2 out=int8",
            "ws n=1 p=2 q=9 k=128 s=1 r=1 c=16 order=npqksrc",
        ),
        ("conv2d n=1 c=3 h=19 w=19 k=10 r=1 s=1 out=int8", "ws n=1 p=2 q=19 k=10 s=1 r=1 c=3 order=npqksrc"),
    ],
)
def test_loads_do_not_wait_for_a_burst_of_stores(workload: str, schedule: str) -> None:
    """Rows of loads and stores reach the cache in the order of their times: more requests on their way do not let the
    stores of one tile pass the loads of the next (7 and 12 % slower with 24, when a command asked for all of its rows
    at once)."""
    took = [cycles(workload, schedule, f"dma.requests={n}") for n in (8, 12, 14, 16, 18, 20, 24, 32)]
    assert all(more <= 1.005 * fewer for fewer, more in pairwise(took))
    assert took[-1] < 0.8 * took[0]


def test_rows_leave_when_the_cache_takes_them() -> None:
    """With as many requests on their way as one likes, a store is at its rows until the cache has places for them."""

    def busy(misses: int) -> int:
        set_ = ("dma.requests=64", f"l2.misses={misses}")
        return (
            simulate("gemm m=64 n=64 k=16", "gemmini", schedule="ws", set=set_)
            .record.kernels[0]
            .stalls["store"]["busy"]
        )

    assert busy(1) > 5 * busy(64)


@pytest.mark.parametrize(
    ("workload", "schedule", "said"),
    [
        (CONV, "ws x=3", "unknown word x=3"),
        (CONV, "ws p=99", "1 to 14 of p"),
        (CONV, "ws order=pp", "each of"),
        (CONV, "os", "nearest: ws"),
        ("gemm m=64 n=64 k=64", "wr", "begins with auto, ws or os"),
        ("gemm m=4096 n=4096 k=64", "ws m=4096 n=4096", "rows of the"),
        ("gemm m=64 n=64 k=64 dtype=bf16", "ws", "multiplies int8"),
    ],
)
def test_a_wrong_schedule_says_what_is_wrong(workload: str, schedule: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(workload, "gemmini", schedule=schedule)


def test_a_network_runs_layer_by_layer(tmp_path: Path) -> None:
    file = tmp_path / "net.csv"
    file.write_text("Layer,M,N,K,\na,32,32,32,\nb,16,64,32,\n", encoding="utf-8")
    report = simulate(f"network file={file}", "gemmini").to_dict()
    assert [layer["name"] for layer in report["layers"]] == ["a", "b"]


@pytest.mark.parametrize("t_ras", ["8250 ps", "20 ns"])
def test_a_row_closes_no_earlier_than_its_bank_can_use(t_ras: str) -> None:
    """With tRC as it is, a shorter tRAS lets no other row open sooner, so that rows stay open for requests to come."""
    workload, schedule = "gemm m=135 n=17 k=122", "ws m=135 n=17 k=122 order=mnk"
    assert cycles(workload, schedule, f"dram.t_ras={t_ras}") == cycles(workload, schedule)


def test_orders_that_differ_in_loops_that_run_once_are_one_mapping() -> None:
    spec = load_arch("gemmini", ("accumulator.size=256 KiB",))
    op = parse("conv2d n=1 c=16 h=20 w=20 k=140 r=1 s=1 stride=2 pad=0 out=int8").with_defaults("int8")
    found = [mapping for mapping, _ in conv.candidates(op, spec, "auto")]  # type: ignore[arg-type]
    whole = conv.extents(op)  # type: ignore[arg-type]
    loops = [(m.tile, tuple(name for name in m.order if m.sizes[name] < whole[name])) for m in found]
    assert len(set(loops)) == len(loops) == 8
    assert len({m.tile for m in found}) < 8
