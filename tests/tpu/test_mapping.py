"""Mappings of products on a TPU: any that can be written computes, brings what its loops say, and can be tuned."""

from __future__ import annotations

from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate

V1 = ("array.rows=8", "array.columns=4", "accumulators.rows=64", "unified_buffer.size=64 KiB", "weight_fifo.depth=2")
V4 = ("array.rows=8", "array.columns=4", "array.count=3", "accumulators.rows=64", "unified_buffer.size=64 KiB")
WORKLOAD = "gemm m=50 n=22 k=30 batch=2"


def ran(schedule: str, name: str = "tpu-v1", workload: str = WORKLOAD, **options: Any) -> Any:
    """A product on a machine with small arrays."""
    spec = load_arch(name, V1 if name == "tpu-v1" else V4)
    return simulate(workload, spec, schedule=schedule, **options)


@pytest.mark.parametrize("name", ["tpu-v1", "tpu-v4"])
@pytest.mark.parametrize(
    "schedule",
    [
        "tiled m=20 n=12 order=nmk held=2", "tiled m=10 n=12 order=mkn held=2", "tiled m=20 n=22 order=mnk held=1",
        "tiled m=20 n=12 order=nmk held=6", "tiled m=7 n=12 order=mkn held=1",
    ],
)  # fmt: skip
def test_every_mapping_computes_and_is_what_was_typed(name: str, schedule: str) -> None:
    report = ran(schedule, name, check=True)
    assert report.record.check.passed
    assert report.record.schedule == schedule


def test_wide_activations_are_sliced_as_well() -> None:
    assert ran("tiled m=10 n=12 order=mkn 8x16", check=True).record.check.passed
    assert ran("tiled m=10 n=12 order=mkn", workload=f"{WORKLOAD} dtype=int16", check=True).record.check.passed


@pytest.mark.parametrize(
    ("schedule", "blocks", "again"),
    [("m=10 order=mnk", 5, 1), ("m=25 n=8 order=nmk held=2", 2, 1), ("m=10 n=8 order=nmk held=2", 5, 3),
     ("m=10 n=8 order=nmk held=5", 5, 1), ("m=10 n=8 order=mkn", 5, 1)],
)  # fmt: skip
def test_traffic_is_what_the_loops_say(schedule: str, blocks: int, again: int) -> None:
    """Weights come for each block of rows, activations once, or again for each group where not all blocks stay."""
    report = ran(f"tiled {schedule}", workload="gemm m=50 n=22 k=30").to_dict()
    traffic = report["tpu"]["mapping"]["traffic"]
    assert traffic["DRAM"]["read_bytes"] == blocks * 4 * 6 * 32
    assert traffic["host memory"] == {"read_bytes": again * 50 * 30, "written_bytes": 50 * 22 * 4}
    assert traffic["accumulators"]["written_bytes"] == 4 * 4 * 50 * 22
    assert report["tpu"]["mapping"]["utilisation"] == pytest.approx(report["percent_of_peak"] / 100)


def test_loops_are_printed_as_they_run() -> None:
    document = ran("tiled m=10 n=8 order=mkn", workload="gemm m=50 n=22 k=30").to_dict()
    loops = [row["loop"] for row in document["tpu"]["mapping"]["loops"]]
    assert loops == ["m: 5 of 10 rows", "n: 3 of 8 columns", "k: 4 of 8", "n: 2 of 4 columns", "m: 10 rows"]


def test_slices_of_the_depth_start_before_a_block_has_come() -> None:
    """All columns of a group meet what is there already: less of the link's time is in front of the array's."""
    cycles = [
        simulate("gemm m=512 n=512 k=4096 out=int8", "tpu-v1", schedule=f"tiled m=512 order={order}").cycles
        for order in ("mnk", "mkn")
    ]
    assert cycles[1] < 0.98 * cycles[0]


def test_arrays_do_not_wait_for_the_block_behind_theirs() -> None:
    """The next block is asked for when all arrays have begun with this one."""
    found = simulate("gemm m=4096 n=1024 k=128", "tpu-v2", schedule="tiled m=1024").to_dict()["tpu"]["counters"]
    assert found["input_stalls"] < 0.15


def test_a_search_finds_a_mapping_that_can_be_written() -> None:
    """Both `auto` and tuning search; `tiled` is the usual mapping."""
    workload = "gemm m=3000 n=512 k=512 out=int8"
    usual, auto = (simulate(workload, "tpu-v1", schedule=schedule) for schedule in ("tiled", "auto"))
    tuned = simulate(workload, "tpu-v1", tune=True)
    assert tuned.cycles < 0.97 * usual.cycles
    assert auto.cycles <= 1.02 * tuned.cycles
    assert len(tuned.to_dict()["candidates"]) > 4
    assert simulate(workload, "tpu-v1", schedule=tuned.record.schedule).cycles == tuned.cycles


CONV = "conv2d n=3 c=6 h=9 w=8 k=22 r=3 s=3 pad=1"


def test_convolutions_have_their_positions_as_rows() -> None:
    workload = "conv2d n=1 c=8 h=8 w=8 k=8 r=3 s=3 pad=1"
    few, many = (ran(f"tiled m={m}", workload=workload, check=True) for m in (16, 64))
    assert few.record.check.passed
    read = [r.to_dict()["tpu"]["mapping"]["traffic"]["DRAM"]["read_bytes"] for r in (few, many)]
    assert read[0] == 4 * read[1]


@pytest.mark.parametrize("name", ["tpu-v1", "tpu-v4"])
@pytest.mark.parametrize(
    "schedule",
    [
        "tiled m=20 n=22 order=mnk held=2 part=9", "tiled m=20 n=12 order=nmk held=1 part=4",
        "tiled m=10 n=12 order=mkn held=3 part=2", "tiled m=9 n=22 order=mkn held=1 part=27",
        "tiled m=20 n=12 order=nmk held=2 part=18",
    ],
)  # fmt: skip
def test_every_mapping_of_a_convolution_computes_and_is_what_was_typed(name: str, schedule: str) -> None:
    report = ran(schedule, name, CONV, check=True)
    assert report.record.check.passed
    assert report.record.schedule == schedule


@pytest.mark.parametrize("schedule", ["order=nmk n=4 m=16", "order=mkn m=10"])
def test_groups_of_channels_have_mappings_too(schedule: str) -> None:
    assert ran(f"tiled {schedule}", workload=f"{CONV} groups=2", check=True).record.check.passed
    assert ran(f"tiled {schedule}", workload=f"{CONV} dtype=int16", check=True).record.check.passed


def test_loops_of_a_convolution_are_printed_as_they_run() -> None:
    document = ran("tiled m=20 n=12 order=nmk held=1 part=4", workload=CONV).to_dict()
    loops = [row["loop"] for row in document["tpu"]["mapping"]["loops"]]
    assert loops == [
        "n, p: 9 of 4 rows of an image", "k: 2 of 3 columns of tiles", "m: 2 of 20 positions", "k: 3 of 4 filters",
        "c, r, s: 7 of 8", "m: 20 positions",
    ]  # fmt: skip


def test_a_part_that_is_alone_in_the_buffer_is_not_brought_ahead() -> None:
    """With one part held, the matrix unit waits for each; with two, the next one comes meanwhile."""
    one, two = (ran(f"tiled m=24 part=3 held={held}", workload=CONV).to_dict() for held in (1, 2))
    assert one["tpu"]["mapping"]["traffic"] == two["tpu"]["mapping"]["traffic"]
    assert one["cycles"] > 1.05 * two["cycles"]


def test_tuning_a_convolution_simulates_other_orders() -> None:
    tuned = simulate("conv2d n=2 c=64 h=14 w=14 k=512 r=3 s=3 pad=1", "tpu-v1", tune=True).to_dict()
    assert {order for c in tuned["candidates"] for order in ("mnk", "mkn", "nmk") if order in c["schedule"]} > {"mnk"}


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("tiled part=28", "1 to 9 rows of one image, or whole images of 9; nearest: 27"),
        ("tiled part=9 held=4", "the images have 3 parts; nearest: held=3"),
        ("tiled n=6", "whole columns of tiles, 4 each; nearest: 8"),
        ("tiled order=kmn", "one of mnk, mkn, nmk"),
        ("tiled 8x16", "8x16 is for matrix products"),
    ],
)
def test_a_mapping_of_a_convolution_that_cannot_be_is_refused(schedule: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ran(schedule, workload=CONV)


def test_products_have_no_parts_of_images() -> None:
    with pytest.raises(InputError, match="unknown word part=4"):
        ran("tiled part=4")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("tiled m=51", "streams 50 rows, m is 1 to 50"),
        ("tiled m=0", "unknown word m=0"),
        ("tiled n=6", "whole columns of tiles, 4 each; nearest: 8"),
        ("tiled order=kmn", "one of mnk, mkn, nmk"),
        ("tiled m=50 order=mkn", "takes 300 rows of accumulators, there are 64; nearest: m=10"),
        ("tiled m=25 held=5", "has 4 blocks of 25 rows"),
        ("tilde", "did you mean tiled?"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(schedule: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ran(schedule)


def test_a_block_that_does_not_fit_the_buffer_is_refused() -> None:
    with pytest.raises(InputError, match="of the unified buffer") as error:
        ran("tiled m=50 held=2", workload="gemm m=100 n=22 k=700")
    nearest = str(error.value).rsplit("m=", 1)[1]
    assert ran(f"tiled m={nearest} held=2", workload="gemm m=100 n=22 k=700").cycles > 0
