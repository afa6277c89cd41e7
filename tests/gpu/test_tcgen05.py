"""Products on tensor memory against what they take on a B200 (`tcgen05_b200.csv`), and who may use that memory when."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.language import WARP, KernelBuilder, Program, RegisterTile, RoleBuilder
from sim.gpu.language.rules import check_kernel
from sim.gpu.lower.kernel import lower_kernel
from sim.gpu.units.events import Event
from tests.gpu.kernels import numbers, tensor_gemm
from workloads.gpu.micro import tensor_products

ROWS = list(csv.DictReader((Path(__file__).parent / "tcgen05_b200.csv").open()))
"""SemiAnalysisAI/microbench-blackwell at 1.965 GHz: cycles from issue to the end of a wait for the commit, between two
of a burst, and of one of `depth`; layout TS has the first operand in tensor memory."""

BEYOND = {
    "interval": {("SS", 2, 256, 96)},
    "latency": {("SS", 2, 128, 64)},
}
"""What is more than 2 % off, at most 5: products of a pair that wait for operands as long as for multipliers, and the
latency of its shortest one."""


@cache
def machine() -> GpuSpec:
    return load_arch("b200", ["gpc.count=1", "sm.count=2"])


def cycles(row: dict[str, str], count: int) -> float:
    """From the issue of the first of some products to the end of the wait for the last."""
    shape, pair = f"m{row['m']}n{row['n']}k{row['k']}", row["ctas"] == "2"
    program = tensor_products(shape, row["dtype"], count, pair=pair, from_shared=row["layout"] == "SS")
    events = Device(machine(), log=True).run(program.kernels[0], {}).events
    assert events is not None
    begin = events[events[:, Event.OP] == 2, Event.T_ISSUE]
    return float(events[events[:, Event.OP] == 4, Event.T_DONE][0] - begin[0]) / 256


def allowed(row: dict[str, str], what: str) -> float:
    place = (row["layout"], int(row["ctas"]), int(row["m"]), int(row["n"]))
    return 0.05 if place in BEYOND.get(what, ()) else 0.031 if row["dtype"] in ("int8", "mxfp8", "mxfp4") else 0.02


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8", "mxfp8", "mxfp4"])
def test_products_take_what_a_b200_takes(dtype: str) -> None:
    off = []
    for row in (row for row in ROWS if row["dtype"] == dtype):
        alone, many = cycles(row, 1), cycles(row, 65)
        found = {"latency": alone, "interval": (many - alone) / 64}
        if row["sustained"]:
            depth = int(row["depth"])
            found["sustained"] = (alone + (depth - 1) * found["interval"]) / depth
        for what, value in found.items():
            error = value / float(row[what]) - 1
            if abs(error) > allowed(row, "interval" if what == "sustained" else what):
                off.append(f"{row} {what}: {value:.1f}, {100 * error:+.1f} %")
    assert off == []


def test_sums_of_pairs_copies_and_stores_are_right_on_the_machine() -> None:
    """The engine's times, with numbers: a CTA's own tile and that of a pair, tiles asked for from launch control."""
    spec = load_arch("b200", ["gpc.count=1", "sm.count=2"])
    for pair, times, products in ((False, 4, 3), (True, 3, 2)):
        program = tensor_gemm(512, pair=pair, clc=True)
        run = Device(spec, log=True).run(program.kernels[0], program.addresses())
        assert run.events is not None
        x, y = numbers(512, 192), numbers(192, 128, seed=1)
        check = interpret(program, run.events, {"a": x, "b": y})
        assert check.violations == []
        np.testing.assert_array_equal(check.outputs["c"], times * (x @ y))
        assert run.counters["macs_tensor"] == products * 512 * 192 * 128


def _kernel(write: object, warps: int = 4, columns: int = 64) -> Program:
    kernel = KernelBuilder("k", (2, 1, 1))
    tile = kernel.tensor("tile", (128, columns), "fp32")
    with kernel.role("r", warps, 64) as r:
        write(r, tile)  # type: ignore[operator]
    return Program("p", (), (kernel.build(),), "")


def test_an_allocation_waits_until_another_cta_has_freed_its_columns() -> None:
    """Two CTAs on one SM want all columns: the second one begins when the first one ends."""

    def write(r: RoleBuilder, tile: object) -> None:
        r.tcgen05_alloc()
        r.run("iadd", 5000, dtype="int32")
        r.tcgen05_dealloc()

    one = load_arch("b200", ["gpc.count=1", "sm.count=1", "sm.per_tpc=1"])
    times = {}
    for columns in (256, 512):
        program = _kernel(write, 1, columns)
        times[columns] = Device(one, log=True).run(program.kernels[0], {}).ticks / 256
    assert times[512] - times[256] > 9000


def test_columns_that_nobody_frees_are_a_deadlock_with_a_name() -> None:
    program = _kernel(lambda r, tile: r.tcgen05_alloc(), 1, 512)
    one = load_arch("b200", ["gpc.count=1", "sm.count=1", "sm.per_tpc=1"])
    with pytest.raises(DeadlockError, match="warp 0 at tensor_memory \\(r, tcgen05_alloc at"):
        Device(one).run(program.kernels[0], {})


WRONG = {
    "another warp's lanes": (
        lambda r, tile: r.tcgen05_ld(RegisterTile("x", (32, 64), "fp32").whole, tile[0, 0:32, :]),
        "reaches lanes 0 to 31; its warp has 32 and 31 more",
    ),
    "used and never allocated": (
        lambda r, tile: r.tcgen05_ld(RegisterTile("x", (32, 64), "fp32").whole, tile[0, WARP * 32 : 32, :]),
        "uses tensor memory that its CTA does not have",
    ),
    "never allocated": (
        lambda r, tile: r.tcgen05_dealloc(),
        "frees tensor memory that its CTA does not have",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_check_names_what_no_warp_may_do(case: str) -> None:
    write, message = WRONG[case]
    program = _kernel(write)
    run = Device(machine(), log=True).run(program.kernels[0], {})
    assert run.events is not None
    assert any(message in text for text in interpret(program, run.events, {}).violations)


def test_machines_without_tensor_memory_and_wrong_shapes_are_refused() -> None:
    program = tensor_products("m128n64k16", "bf16", 1)
    with pytest.raises(InputError, match="needs tensor memory, which h100-sxm does not have"):
        lower_kernel(program.kernels[0], {}, load_arch("h100-sxm"))
    with pytest.raises(InputError, match="multiplies m64 or m128, such as m128n256k16"):
        lower_kernel(tensor_products("m32n64k16", "bf16", 1).kernels[0], {}, machine())
    alone = replace(tensor_products("m256n64k16", "bf16", 1, pair=True).kernels[0], cluster=(1, 1, 1))
    with pytest.raises(InputError, match="a pair is two CTAs of a cluster"):
        lower_kernel(alone, {}, machine())
    alone = replace(tensor_gemm(512, 64, 64, pair=True).kernels[0], cluster=(1, 1, 1))
    with pytest.raises(InputError, match=r"role producer, .*tma_load: a pair is two CTAs of a cluster"):
        check_kernel(alone)
