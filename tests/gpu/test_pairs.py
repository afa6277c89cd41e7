"""Pairs: what a unit takes is the same whichever front end asks for it, the tile language or compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.language import GlobalTensor, Program
from sim.gpu.sass.kernel import Pointer, sass_program
from tests.gpu.conftest import run
from tests.gpu.test_sass import CLUSTER, written
from workloads.gpu import micro

SHORT, LONG = 8, 72  # steps; the difference leaves out how warps start and end

PRODUCT = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"
GROUPS = "WARPGROUP.DEPBAR.LE gsb0, "
SLOT = ("S2R R0, SR_LANEID ; write=0", "IMAD R0, R0, {bytes}, RZ ; wait=1 stall=6")


def products(groups: int, waits: bool, steps: int) -> Program:
    """Steps of a product by each of some warpgroups."""
    return micro.wgmma_loop("bf16", "m64n64k16", steps, groups, wait=waits)


# By name: machine, warps, CTAs of its cluster, the program of the tile language of some steps; of compiled code what
# comes before the steps, a step, and what comes behind them.
Pair = tuple[str, int, int, Callable[[int], Program], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
PAIRS: dict[str, Pair] = {
    **{
        f"products of {groups} warpgroups, {'awaited' if waits else 'in flight'}": (
            "h100-sxm", 4 * groups, 1,
            partial(products, groups, waits),
            (), (PRODUCT, *([f"{GROUPS}0x0"] if waits else [])), (f"{GROUPS}0x0",),
        )
        # Three that are awaited each time come apart in compiled code, whose scheduler lets one issue after the other.
        for groups, waits in ((1, False), (2, False), (3, False), (1, True), (2, True))
    },
    "products that wait for each other": (
        "a100-sxm4-80gb", 4, 1, lambda n: micro.mma_loop("fp16", "m16n8k16", n),
        (), ("HMMA.16816.F32 R4, R8, R10, R4 ; write=0 wait=1",), (),
    ),
    "products of 8 warps": (
        "a100-sxm4-80gb", 8, 1, lambda n: micro.mma_loop("fp16", "m16n8k16", n // 8, 8, warps=8),
        (), ("HMMA.16816.F32 R4, R8, R10, R4",), (),
    ),
    "named barriers": (
        "a100-sxm4-80gb", 8, 1, lambda n: micro.barriers(8, n), (), ("BAR.SYNC.DEFER_BLOCKING 0x0",), (),
    ),
    "barriers of a cluster": (
        "h100-sxm", 4, 2, lambda n: micro.cluster_barriers(2, 4, n), (), ("UCGABAR_ARV", "UCGABAR_WAIT"), (),
    ),
    **{
        f"dependent loads from shared memory, {ways} of a bank": (
            "a100-sxm4-80gb", 1, 1, partial(micro.shared_chase, ways=ways),
            tuple(line.format(bytes=hex(4 * ways)) for line in SLOT), ("LDS R4, [R0] ; write=0 wait=1",), (),
        )
        for ways in (1, 2, 8)
    },
    "dependent matrices from shared memory": (
        "a100-sxm4-80gb", 1, 1, micro.ldmatrix_chain,
        tuple(line.format(bytes="0x10") for line in SLOT), ("LDSM.16.M88.4 R4, [R0] ; write=0 wait=1",), (),
    ),
    "loads of 16 warps from shared memory": (
        "a100-sxm4-80gb", 16, 1, lambda n: micro.shared_read(n, 1),
        tuple(line.format(bytes="0x10") for line in SLOT), ("LDS.128 R4, [R0]",), (),
    ),
    "dependent loads from another CTA": (
        "h100-sxm", 1, 2, lambda n: micro.dsmem_chase(2, n),
        (*CLUSTER, "ISETP.EQ.AND P0, PT, R3, RZ, PT"), ("@!P0 LD.E R6, [R4] ; write=0 wait=1",),
        ("UCGABAR_ARV ; wait=1", "UCGABAR_WAIT"),
    ),
}  # fmt: skip


def compiled(pair: Pair, steps: int) -> Program:
    """The compiled kernel of a pair."""
    machine, warps, ctas, _, before, step, behind = pair
    code = written(*before, *(step * steps), *behind)
    if machine == "h100-sxm":
        code = replace(code, sm=90, bank_bytes=0x210)
    given = (Pointer("a"),)
    arrays = (GlobalTensor("a", (4096,), "fp32", (1,)),)
    return sass_program(code, (ctas, 1, 1), (32 * warps, 1, 1), given, arrays, 8192, "test", cluster=(ctas, 1, 1))


@pytest.mark.parametrize("name", PAIRS)
def test_a_step_takes_as_long_in_the_tile_language_as_compiled(name: str) -> None:
    pair = PAIRS[name]
    spec = load_arch(pair[0], {"sm.count": 2, "gpc.count": 1, "launch.cta_interval": "0 ns"})
    assert isinstance(spec, GpuSpec)
    of_tiles, of_code = (
        run(spec, make(LONG)).ticks - run(spec, make(SHORT)).ticks for make in (pair[3], partial(compiled, pair))
    )
    assert of_tiles == pytest.approx(of_code, rel=0.05), (
        of_tiles / 256 / (LONG - SHORT),
        of_code / 256 / (LONG - SHORT),
    )
