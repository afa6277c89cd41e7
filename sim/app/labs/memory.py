"""Lab 6, the L2 and DRAM: what stays, in which order tiles are visited, when an open row matters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.labs import NOT_ANSWERED, Answers, Task, Wrong, judge
from sim.app.report.figures import hit_rates
from sim.app.report.report import Report
from sim.gpu.language import CTA_X, WARP, GlobalTensor, IntLike, KernelBuilder, Program, RegisterTile, as_expr, evaluate

MACHINE = "a100-sxm4-80gb"
HELD = 0.9
"""Share of hits from which a buffer counts as held by the L2."""
BUFFER_MIB = 32
SMALL_L2 = "l2.size=960 KiB"
SIDE, DEPTH = 4096, 256
SMALL_SIDE, SMALL_DEPTH = 256, 128
TILE, STEP, STAGES, WARPS = 128, 64, 3, 8
BYTES_OVER_ROWS = 0.6
SLOWER, NOT_SLOWER = 1.3, 2.0
NEIGHBOURS, APART = 1, 256
"""Lines between two reads of the walks that are compared."""


def _warm(mib: int, change: tuple[str, ...] = (), machine: Any = MACHINE) -> float:
    """Hits of the L2 when a buffer is read for the second time."""
    report = judge.ran(f"sum n={mib << 18} dtype=fp32", machine, l2="warm", set=list(change))
    return hit_rates(report.figures.counters)["l2"]


def held(answers: Answers) -> None:
    """`largest`: the largest power of two of MiB that the L2 of an A100 still holds."""
    mib = judge.power_of_two(answers["largest"], "largest", 128)
    if _warm(mib) < HELD:
        raise Wrong(f"of {mib} MiB that are read again, only {_warm(mib):.0%} hit")
    if _warm(2 * mib) >= HELD:
        raise Wrong(f"twice as much, {2 * mib} MiB, hits, too")


def machine(answers: Answers) -> None:
    """`machine`: a description of an A100 whose L2 holds 32 MiB, without being larger."""
    text = answers["machine"]
    if not isinstance(text, str):
        raise Wrong("machine has to be the text of a machine file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            spec = load_arch(str(path))
        except InputError as error:
            raise Wrong(str(error).replace(folder, "")) from None
        if not isinstance(spec, GpuSpec) or spec.l2.size_bytes > load_arch(MACHINE).l2.size_bytes:
            raise Wrong("a larger L2 is easy; leave its size as it is")
        found = _warm(BUFFER_MIB, machine=spec)
    if found < HELD:
        raise Wrong(
            f"on your machine {found:.0%} of {BUFFER_MIB} MiB hit: of which lines does an A100 keep two copies?"
        )


# ------------------------------------------------------------------------------------------------ order of tiles

Order = Callable[[IntLike, int, int], tuple[IntLike, IntLike]]


def product(side: int, depth: int, order: Order) -> Program:
    """C = A B with a CTA for each tile of 128 x 128. order: row and column of the tile that CTA `i` computes."""
    a = GlobalTensor("a", (side, depth), "fp16", strides=(depth, 1))
    b = GlobalTensor("b", (depth, side), "fp16", strides=(side, 1))
    c = GlobalTensor("c", (side, side), "fp16", strides=(side, 1), role="output")
    tiles, steps = side // TILE, depth // STEP
    kernel = KernelBuilder("product", grid=(tiles * tiles, 1, 1))
    row, column = (as_expr(value) * TILE for value in order(CTA_X, tiles, tiles))
    a_tile = kernel.shared("a_tile", (TILE, STEP), "fp16", STAGES, swizzle_bytes=128)
    b_tile = kernel.shared("b_tile", (TILE, STEP), "fp16", STAGES, swizzle_bytes=128)  # two halves, one below the other
    with kernel.role("warps", warps=WARPS, registers=128) as r:
        acc = RegisterTile("acc", (16, TILE), "fp32")
        a_part, b_part = RegisterTile("a_part", (16, STEP), "fp16"), RegisterTile("b_part", (STEP, TILE), "fp16")

        def load(step: IntLike) -> None:
            stage, own = as_expr(step) % STAGES, WARP * 16
            with r.when(as_expr(step) < steps):
                r.cp_async(a_tile[stage, own:16, :], a[row + own : 16, step * STEP : STEP], vector_bytes=16)  # type: ignore[misc]
                for half in range(2):
                    src = b[step * STEP + WARP * 8 : 8, column + STEP * half : STEP]  # type: ignore[misc]
                    r.cp_async(b_tile[stage, WARP * 8 + STEP * half : 8, :], src, vector_bytes=16)  # type: ignore[misc]
            r.cp_commit()

        for first in range(STAGES - 1):
            load(first)
        with r.loop("step", steps) as step:
            stage = step % STAGES
            r.cp_wait(STAGES - 2)
            r.bar_sync(0, WARPS)
            load(step + STAGES - 1)
            r.ldmatrix(a_part.whole, a_tile[stage, WARP * 16 : 16, :])  # type: ignore[misc]
            for half in range(2):
                r.ldmatrix(b_part[:, STEP * half : STEP], b_tile[stage, STEP * half : STEP, :])
            r.mma(acc.whole, a_part.whole, b_part.whole, shape="m16n8k16", dtype="fp16", accumulate=step > 0)
        r.stg(c[row + WARP * 16 : 16, column:TILE], acc.whole, vector_bytes=4)  # type: ignore[misc]
    return Program("product", (a, b, c), (kernel.build(),), "tiles", reference=lambda a, b: a @ b)


def by_rows(i: IntLike, rows: int, columns: int) -> tuple[IntLike, IntLike]:
    """One row of tiles after the other."""
    return i // columns, i % columns


def _ran(order: Order) -> Report:
    return judge.ran(product(SIDE, DEPTH, order), MACHINE, set=[SMALL_L2])


@cache
def _rows_bytes() -> int:
    return judge.counter(_ran(by_rows), "dram_read_bytes")


def order(answers: Answers) -> None:
    """`order(i, rows, columns)`: an order of tiles with neighbours close to each other."""
    found = judge.call(answers, "order", CTA_X, 8, 8)
    if found is None:
        raise Wrong(f"order returns nothing: {NOT_ANSWERED}")
    if not isinstance(found, tuple) or len(found) != 2:
        raise Wrong("order has to return two expressions: row and column of the tile")
    for rows, columns in ((32, 32), (2, 2), (16, 8)):
        row, column = (as_expr(value) for value in judge.call(answers, "order", CTA_X, rows, columns))
        seen = {(evaluate(row, {"cta_x": i}), evaluate(column, {"cta_x": i})) for i in range(rows * columns)}
        if seen != {(x, y) for x in range(rows) for y in range(columns)}:
            raise Wrong(f"with {rows} x {columns} tiles, your order visits {len(seen)} different ones, or some outside")

    def given(i: IntLike, rows: int, columns: int) -> tuple[IntLike, IntLike]:
        return judge.call(answers, "order", i, rows, columns)  # type: ignore[no-any-return]

    judge.checked(product(SMALL_SIDE, SMALL_DEPTH, given), MACHINE)
    share = judge.counter(_ran(given), "dram_read_bytes") / _rows_bytes()
    if share > BYTES_OVER_ROWS:
        raise Wrong(f"DRAM reads {share:.2f} times what it reads row by row: what do CTAs need that run together?")


# ------------------------------------------------------------------------------------------------ rows of DRAM


def strided(stride: int, sms: int = 108) -> Program:
    """Reads as many lines whatever the stride: every `stride`-th line of 128 bytes, neighbouring warps side by side."""
    ctas, warps, rounds, batch = 2 * sms, 16, 4, 8
    x = GlobalTensor("x", (ctas * warps * rounds * batch * stride, 32), "fp32", strides=(32, 1))
    y = GlobalTensor("y", (ctas * warps, 32), "fp32", strides=(32, 1), role="output")
    kernel = KernelBuilder("strided", grid=(ctas, 1, 1))
    with kernel.role("warps", warps=warps, registers=64) as r:
        values, total = RegisterTile("values", (batch, 32), "fp32"), RegisterTile("total", (1, 32), "fp32")
        own = CTA_X * warps + WARP
        r.run("fadd", 1, dtype="fp32", dst=total.whole, compute=lambda old: np.zeros((1, 32)))
        with r.loop("round", rounds) as number:
            for i in range(batch):
                line = (number * batch + i) * (ctas * warps) + own
                r.ldg(values[i, :], x[line * stride : 1, :], into="x", vector_bytes=4)  # type: ignore[misc]
            r.run(
                "fadd", batch, dtype="fp32", dst=total.whole, srcs=(values.whole,), after=("x",),
                compute=lambda old, v: old + v.sum(axis=0, keepdims=True),
            )  # fmt: skip
        r.stg(y[own, :], total.whole, vector_bytes=4)
    return Program("strided sum", (x, y), (kernel.build(),), f"every {stride} lines")


def conflicts(answers: Answers) -> None:
    """`change`: a figure of DRAM with which far reads are clearly slower than near ones."""
    change = answers["change"]
    if not isinstance(change, str) or change.count("=") != 1 or not change.startswith("dram."):
        raise Wrong("change has to be one override of a figure of dram, such as 'dram.row=2 KiB'")
    near, far = (judge.ran(strided(stride), MACHINE, set=[change]).time_us for stride in (NEIGHBOURS, APART))
    if far < SLOWER * near:
        raise Wrong(f"with {change}, far reads take {far / near:.2f} times as long as near ones")
    if near > NOT_SLOWER * judge.ran(strided(NEIGHBOURS), MACHINE).time_us:
        raise Wrong(f"with {change}, near reads alone take more than {NOT_SLOWER:g} times as long as before")


TASKS = (
    Task("what the L2 holds", 2, ("largest",), held),
    Task("an L2 that holds more", 3, ("machine",), machine),
    Task("the order of tiles", 4, ("order",), order),
    Task("when an open row matters", 3, ("change",), conflicts),
)
