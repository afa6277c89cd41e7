"""Expressions as the engine evaluates them; views and kernels that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.gpu.engine import expressions as native
from sim.gpu.engine.api import Device
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, KernelBuilder, Program, Table, Var
from sim.gpu.lower.boxes import box_row
from sim.gpu.lower.expressions import Expressions, ExpressionScope, given_variables
from sim.gpu.lower.ranges import Known, Range
from sim.gpu.lower.tables import Affine, Box, Scratch
from sim.gpu.lower.tables import WarpVariables as V
from sim.gpu.units.warp import Warp
from tests.gpu.kernels import matrix

H, J, K, L = (Var(name) for name in "hjkl")


@pytest.mark.parametrize(
    ("expr", "affine"),
    [
        (H * 0 + 7, True),
        ((K + 1) * 16 + WARP * 4, True),
        (3 * (H - J * 2) - (K - 5), True),
        (H + J + K + L, False),  # more columns than a row of the table has
        (K % 2, True),
        ((K * 128 + L - 21) // 4 - 1, True),
        ((H * 3 - 40) % 7 + J, False),
        ((K // 2) // 2, False),
        (K * 4 // L, False),
        (H * J, False),
        (CTA_X * 128, True),
        (Table((5, 6, 7), L - 1), True),
        (Table((5, 6, 7), L) + 3, True),
        (Table((5, 6, 7), K % 3), False),
    ],
)
def test_affine_expressions_have_the_value_of_their_bytecode(expr: Expr, affine: bool) -> None:
    expressions = Expressions()
    known = Known({"k": Range(1, 9), "l": Range(1, 2)}, frozenset())
    e = expressions.add(expr, ExpressionScope({**given_variables(), "h": 0, "j": 1, "k": 2, "l": 3}, known, "test"))
    row = expressions.affine[e]
    assert (row[Affine.TERMS] >= 0) == affine
    if not affine:
        return
    warps = np.zeros((1, Warp.WIDTH), np.int64)
    warps[0, V.FIRST : V.FIRST + 4], warps[0, V.CTA_X : V.CTA_X + 5] = (11, 3, 8, 2), (9, 7, 6, 4, 5)
    run = getattr(native.run_bytecode, "py_func", native.run_bytecode)
    step = getattr(native.step, "py_func", native.step)
    words, at = np.array(expressions.words), np.array(expressions.start)
    tables, stack = np.array(expressions.tables or [0]), np.zeros(Scratch.WIDTH, np.int64)
    limits = np.array(expressions.limits or [(0, 0)])
    value = row[Affine.CONST]
    for i in range(row[Affine.TERMS]):
        value += row[Affine.FACTOR0 + 2 * i] * warps[0, row[Affine.COLUMN0 + 2 * i]]
    if row[Affine.THEN] != 0:
        value = step(np.array(expressions.affine), tables, e, value)
    assert value == run(words, at, tables, limits, warps, stack, 0, e)


def test_a_box_walks_its_rows_along_the_contiguous_dimension() -> None:
    columns_first = GlobalTensor("t", (8, 32), "fp16", strides=(1, 8))
    row = box_row(columns_first[2:4, 16:16], {"t": 4096}, lambda e: 7, "here")
    assert (row[Box.BASE], row[Box.ELEMENT]) == (4096, 2)
    assert (row[Box.COL_DIM], row[Box.ROW_DIM], row[Box.DIMS]) == (0, 1, 2)
    assert row[Box.EXPR0 : Box.EXPR0 + 8] == [7, 2, 8, 4, 7, 16, 32, 16]


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [
        ((2, 2, 2, 2, 2), (16, 8, 4, 2, 1), "here: tensor t has 5 dimensions; at most 4"),
        ((4, 4), (8, 2), "here: tensor t has no dimension of stride 1"),
        ((4, 4, 4), (16, 4, 1), "more than two-dimensional; copy it in two-dimensional boxes"),
    ],
)
def test_a_view_that_is_no_box_is_refused(shape: tuple[int, ...], strides: tuple[int, ...], message: str) -> None:
    tensor = GlobalTensor("t", shape, "fp16", strides=strides)
    with pytest.raises(InputError, match=message):
        box_row(tensor[tuple(slice(None) for _ in shape)], {"t": 0}, lambda e: 0, "here")


def multicast_copy() -> Program:
    """Two CTAs of four warps, of which the first loads a box into the shared memory of both."""
    x = matrix("x", 32, 64, "fp32")
    kernel = KernelBuilder("copy", (2, 1, 1), (2, 1, 1))
    tile, full = kernel.shared("tile", (32, 64), "fp32"), kernel.mbarrier("full", 1, 1)
    with kernel.role("warps", warps=4, registers=32) as r:
        r.tma_load(tile.stage(), x[0:32, :], full, 0, multicast=3)
    return Program("copy", (x,), (kernel.build(),), "copy")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("tma.max_multicast=1", "to a cluster of 2 CTAs; h100-sxm has tma.max_multicast = 1"),
        ("sm.max_threads_per_cta=64", "has 128 threads a CTA; h100-sxm allows 64"),
    ],
)
def test_a_kernel_beyond_a_limit_of_the_machine_is_refused(limit: str, words: str) -> None:
    program = multicast_copy()
    (kernel,) = program.kernels
    Device(load_arch("h100-sxm")).build(kernel, program.addresses())
    with pytest.raises(InputError, match=words):
        Device(load_arch("h100-sxm", [limit])).build(kernel, program.addresses())
