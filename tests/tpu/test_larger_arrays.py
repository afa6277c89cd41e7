"""Arrays that are larger, or more of them, than a problem has a use for: what stays idle costs nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import simulate

SMALL = ("accumulators.rows=64", "unified_buffer.size=64 KiB", "weight_fifo.tile_rows=8", "weight_fifo.tile_columns=4")
WORKLOAD = "gemm m=50 n=22 k=30"


def ran(workload: str, name: str, *figures: str, **options: Any) -> Any:
    return simulate(workload, load_arch(name, figures), **options)


@pytest.mark.parametrize(
    ("workload", "name", "figures"),
    [
        *(("gemm m=32 n=512 k=384", "tpu-v1", f"array.columns={columns}") for columns in (320, 384, 512)),
        *(("gemm m=32 n=512 k=384", "tpu-v1", f"array.rows={rows}") for rows in (320, 1024)),
        ("gemm m=32 n=1024 k=1024", "tpu-v4", "array.columns=160"),
        ("conv2d n=1 h=14 w=14 c=64 k=96 r=3 s=3 pad=1", "tpu-v1", "array.rows=384"),
        ("gemm m=1024 n=768 k=1024", "tpu-v4", "array.count=16"),
    ],
)
def test_more_of_an_array_is_not_slower(workload: str, name: str, figures: str) -> None:
    """With the schedule that the machine had, and with its own choice."""
    before = ran(workload, name).record
    for schedule in ("auto", before.schedule):
        assert ran(workload, name, figures, schedule=schedule).record.time_ps <= before.time_ps


def test_a_larger_array_is_used_where_there_is_work_for_it() -> None:
    before, after = (ran("gemm m=2048 n=1024 k=512", "tpu-v3", f"array.columns={n}").record for n in (128, 256))
    assert after.time_ps < 0.9 * before.time_ps
    assert after.schedule.endswith("tile=128x256")


def test_a_narrow_tile_brings_and_takes_what_a_narrow_array_does() -> None:
    whole, part = (
        ran(WORKLOAD, "tpu-v1", *SMALL, "array.rows=24", "array.columns=12", schedule=f"tiled tile={tile}").to_dict()
        for tile in ("24x12", "8x4")
    )
    small = ran(WORKLOAD, "tpu-v1", *SMALL, "array.rows=8", "array.columns=4", schedule="tiled").to_dict()
    assert whole["bytes"]["dram"]["read"] == 2 * 2 * 24 * 12
    assert part["bytes"]["dram"]["read"] == small["bytes"]["dram"]["read"] == 4 * 6 * 8 * 4
    assert part["tpu"]["array_cycles"] == small["tpu"]["array_cycles"]
    assert part["percent_of_peak"] < small["percent_of_peak"]


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
@pytest.mark.parametrize("tile", ["20x10", "16x4", "8x8"])
def test_what_a_part_of_the_array_computes_is_right(dataflow: str, tile: str) -> None:
    figures = (*SMALL, "array.rows=20", "array.columns=10", f"array.dataflow={dataflow}")
    report = ran(WORKLOAD, "tpu-v1", *figures, schedule=f"tiled tile={tile}", check=True)
    assert report.record.check.passed
    assert report.record.schedule.endswith(f"tile={tile}")


@pytest.mark.parametrize("arrays", [1, 2, 4, 5])
def test_arrays_that_stay_idle_fetch_no_weights(arrays: int) -> None:
    """Eight columns in two tiles: each array more than two fetches them once more for its rows."""
    figures = (*SMALL, "array.rows=8", "array.columns=4", "array.count=5")
    report = ran("gemm m=32 n=8 k=16", "tpu-v4", *figures, schedule=f"tiled arrays={arrays}", check=True)
    assert report.record.check.passed
    brought = report.to_dict()["bytes"]["dram"]["read"] - 32 * 16 * 2
    assert brought == max(1, arrays // 2) * 2 * 2 * 8 * 4 * 2
    assert report.record.schedule.endswith(f"arrays={arrays}")


def test_128_arrays_have_more_units_than_a_byte_counts() -> None:
    figures = (*SMALL, "array.rows=8", "array.columns=4", "array.count=128", "unified_buffer.size=1 MiB")
    report = ran("gemm m=8 n=512 k=16", "tpu-v4", *figures, check=True)
    assert report.record.check.passed
    assert report.to_dict()["bytes"]["dram"]["read"] == 128 * 2 * 8 * 4 * 2 + 8 * 16 * 2


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("tiled tile=8x5", "tile=8x5: tpu-v4 here has 8x4"),
        ("tile=wide", "tile=wide: tpu-v4 here has 8x4"),
        ("tiled arrays=3", "arrays=3: one of 4, 2, 1"),
    ],
)
def test_parts_that_an_array_does_not_have(schedule: str, message: str) -> None:
    figures = (*SMALL, "array.rows=8", "array.columns=4", "array.count=4")
    with pytest.raises(InputError, match=re.escape(message)):
        ran(WORKLOAD, "tpu-v4", *figures, schedule=schedule)
