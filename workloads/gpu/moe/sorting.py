"""Sorting of a layer's choices by expert, in whole blocks.

Kernels of vLLM (csrc/moe/moe_align_sum_kernels.cu) and PyTorch. Numbers that decide where rows lie are known when the
program is written; here they are read and written for their time, and so that what is read has been written before.
Instructions are those that Nsight Compute counted on H100 (vLLM 0.24, PyTorch 2.11, CUDA 13), in classes as in
`steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, RegisterTile, RoleBuilder, View
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import Blocks, Numbers, looked_up
from workloads.gpu.moe.product import SortedRows, in_a_row
from workloads.gpu.moe.steps import alone, chain, fill, sample
from workloads.gpu.overhead import DEPENDENT_CYCLES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.ops import Moe

WARPS, PLACING_WARPS, REGISTERS, CODE_BYTES = 32, 8, 48, 9600
"""Of the two CTAs that fill and count, and of those that place rows."""
SMALL_CHOICES, SMALL_EXPERTS, SMALL_WARPS = 1024, 64, 9
"""Below so many choices and up to so many experts one CTA does it all, with one warp that counts."""
ENTRY: Cost = {"iadd.int32": 2.0, "ffma.fp32": 5.0}
FILL_STEP: Cost = {"iadd.int32": 5.0, "ffma.fp32": 2.0}
"""Of a word of the list of rows."""
CLEAR: Cost = {"iadd.int32": 94.0, "ffma.fp32": 38.0}
CLEARED = 32
"""Counters that each warp sets to zero, one after the other."""
CLEAR_PATH = CLEARED // 4 * 6 * DEPENDENT_CYCLES
COUNT_SETUP: Cost = {"iadd.int32": 6.0, "ffma.fp32": 16.0}
COUNT_AHEAD: Cost = {"iadd.int32": 3.0, "ffma.fp32": 2.0}
COUNT: Cost = {"iadd.int32": 3.0, "ffma.fp32": 4.0}
"""Of each step of as many choices as threads: 14 instructions with its load and an addition in shared memory. Five of
them do not wait for the load, and the next one does for all of them."""
COUNTED: Cost = {"iadd.int32": 5.0, "ffma.fp32": 9.0}
ROUND: Cost = {"iadd.int32": 11.0, "ffma.fp32": 14.0, "cvt.int32": 2.0, "rcp.fp32": 1.0}
"""To whole blocks, of warps whose lanes have an expert: a division by a conversion, a reciprocal and back."""
ROUNDED: Cost = {"iadd.int32": 2.0, "ffma.fp32": 3.0}
PREFIX, PREFIX_BEHIND = 32, {"iadd.int32": 23.0, "ffma.fp32": 33.0}
"""Numbers of a lane of the warp that makes a prefix sum: added up, over the lanes by shuffles, and stored again."""
STORE: Cost = {"iadd.int32": 3.0, "ffma.fp32": 7.0}
BLOCKS: Cost = {"iadd.int32": 20.0, "ffma.fp32": 18.0, "cvt.int32": 2.0, "rcp.fp32": 1.0}
BLOCK: Cost = {"iadd.int32": 13.0, "ffma.fp32": 7.0}
"""Of warps whose lanes have an expert: where its blocks lie; each of them, one after the other."""
REST: Cost = {"iadd.int32": 27.0, "ffma.fp32": 21.0, "cvt.int32": 2.0, "rcp.fp32": 1.0}
PLACE_SETUP: Cost = {"iadd.int32": 2.0, "ffma.fp32": 9.0}
PLACE_LOAD: Cost = {"iadd.int32": 2.0, "ffma.fp32": 17.0}
PLACE_ADD: Cost = {"iadd.int32": 2.0, "ffma.fp32": 4.0}
PLACE_END: Cost = {"iadd.int32": 3.0, "ffma.fp32": 6.0}
"""48 instructions a warp: its choices are loaded, their counters grow by atomics that return what they were, the number
is stored."""
GATHER_WARPS, GATHERED = 4, 4
"""Of a CTA of PyTorch's element-wise kernels, and elements of a thread."""
WIDEN_SETUP: Cost = {"iadd.int32": 10.0, "ffma.fp32": 29.0}
WIDEN_LOAD: Cost = {"iadd.int32": 9.0, "ffma.fp32": 11.0}
WIDEN_STORE: Cost = {"iadd.int32": 9.0, "ffma.fp32": 12.0}
"""int32 to int64, with a branch for each format that there is: 217 instructions a warp with four elements a thread, 40
with none."""
INDEX_SETUP: Cost = {"iadd.int32": 8.0, "ffma.fp32": 20.0}
INDEX_LOAD: Cost = {"iadd.int32": 20.0, "ffma.fp32": 22.0}
INDEX_LOOK: Cost = {"iadd.int32": 14.0, "ffma.fp32": 17.0}
INDEX_STORE: Cost = {"iadd.int32": 3.0, "ffma.fp32": 4.0}
"""One element after the other: its number, whether it is in range, what lies there; 344 instructions a warp with four,
33 with none."""


def sort_rows(op: Moe, b: Blocks, spec: GpuSpec, ids: GlobalTensor, found: SortedRows) -> tuple[Kernel, ...]:
    """Counts the choices of each expert in one CTA, which adds up whole blocks, while another fills the list of rows;
    then many place each row. Where choices are not sorted, a fill of the number of rows."""
    assert found.padded is not None
    if found.rows is None:
        return (fill("fill", found.padded, np.zeros(1, dtype=np.int64), b.count * b.size),)
    if ids.shape[0] * ids.shape[1] < SMALL_CHOICES and op.experts <= SMALL_EXPERTS:
        return (_small(op, b, spec, ids, found),)
    return _align(op, b, spec, ids, found), _place(op, b, spec, ids, found)


def _run(
    r: RoleBuilder,
    spec: GpuSpec,
    cost: Cost,
    tile: RegisterTile,
    path: float | None = None,
    after: tuple[str, ...] = (),
) -> None:
    """Instructions most of which wait for the one before, and all for `tile`."""
    if path is None:
        path = sum(count * max(DEPENDENT_CYCLES, _latency(spec, name)) for name, count in cost.items())
    lanes.write(
        r,
        spec,
        cost,
        dst=tile.whole,
        srcs=(tile.whole,),
        compute=lanes.keep,
        after=after,
        chain=chain(spec, cost, path),
    )


def _latency(spec: GpuSpec, name: str) -> float:
    return lanes.instruction(spec, name).latency_cycles


def _rows(b: Blocks, flat: int) -> Numbers:
    """The list of rows: that of the number that none has where blocks are padded, and behind the last one."""
    values = np.full(b.launched * b.size, flat, dtype=np.int64)
    values[: b.flat.size] = np.where(b.flat >= 0, b.flat, flat).reshape(-1)
    return values


def _fill_rows(r: RoleBuilder, spec: GpuSpec, b: Blocks, found: SortedRows, first: Expr, warps: int, flat: int) -> None:
    """The list of rows, by warps from `first` on; the kernel stores a number that no row has, and the numbers count
    here."""
    assert found.rows is not None
    values = _rows(b, flat)
    padded = np.append(values, np.full(WARP_SIZE, flat)).astype(np.float64)
    some = RegisterTile("some", (1, WARP_SIZE), "int32")
    with r.loop("filled", ceil_div(len(values), warps * WARP_SIZE)) as step:
        at = (step * warps + first) * WARP_SIZE
        with r.when(at < len(values)):
            lanes.write(
                r, spec, FILL_STEP, dst=some.whole, indices=(at,), compute=lambda _, i: padded[None, i : i + WARP_SIZE]
            )
            r.stg(found.rows[0:1, at:WARP_SIZE], some.whole, vector_bytes=4)  # type: ignore[misc]


class _Lists:
    """What the counting CTA leaves: rows with their padding, by its first warp, and experts of blocks by some."""

    def __init__(self, op: Moe, b: Blocks, found: SortedRows, warps: int) -> None:
        self.b, self.found, self.warps = b, found, warps
        numbers = np.append(b.experts, np.full(b.launched - b.count, -1)).astype(np.float64)
        self.share = ceil_div(b.launched, warps)
        self.numbers = np.append(numbers, np.full(warps * self.share - b.launched, -1))[None, :]
        self.most = int(np.max(-(-np.bincount(op.ids.reshape(-1)) // b.size)))
        self.one, self.blocks = RegisterTile("one", (1, 1), "int32"), RegisterTile("blocks", (1, self.share), "int32")

    def store_padded(self, r: RoleBuilder) -> None:
        """The number of rows."""
        assert self.found.padded is not None
        value = float(self.b.count * self.b.size)
        r.run("iadd", 1, dtype="int32", dst=self.one.whole, nominal=True, compute=lambda _: np.full((1, 1), value))
        r.stg(self.found.padded[0:1, 0:1], self.one.whole, vector_bytes=4)  # type: ignore[misc]

    def store_experts(self, r: RoleBuilder, spec: GpuSpec, warp: Expr) -> None:
        """The experts of blocks, as many one after the other as one has blocks."""
        share = self.share
        cost = lanes.scaled(BLOCK, self.most)
        path = self.most * DEPENDENT_CYCLES * sum(BLOCK.values())
        lanes.write(r, spec, cost, dst=self.one.whole, compute=np.zeros_like, chain=chain(spec, cost, path))
        r.run(
            "iadd", 1, dtype="int32", dst=self.blocks.whole, srcs=(self.one.whole,), indices=(warp,), nominal=True,
            compute=lambda _, __, w: self.numbers[:, w * share : (w + 1) * share],
        )  # fmt: skip
        r.stg(self.found.experts[0:1, warp * share : share], self.blocks.whole, vector_bytes=4)  # type: ignore[misc]


def _align(op: Moe, b: Blocks, spec: GpuSpec, ids: GlobalTensor, found: SortedRows) -> Kernel:
    flat = op.tokens * op.topk
    choices = in_a_row(ids)
    holders = ceil_div(op.experts, WARP_SIZE)
    k = KernelBuilder("moe_align_block_size", (2, 1, 1), code_bytes=CODE_BYTES)
    counters = k.shared("counters", (WARPS, CLEARED), "int32")
    sums = k.shared("sums", (WARPS, PREFIX), "int32")
    mine, word = RegisterTile("choice", (1, WARP_SIZE), "int32"), RegisterTile("word", (1, CLEARED), "int32")
    own = RegisterTile("own", (WARPS, PREFIX), "int32")
    lists = _Lists(op, b, found, holders)
    assert found.starts is not None
    with k.role("warps", WARPS, REGISTERS) as r:
        alone(r, spec, ENTRY)
        with r.when(CTA_X.equals(1)):
            _fill_rows(r, spec, b, found, WARP, WARPS, flat)
        with r.when(CTA_X.equals(0)):
            lanes.write(r, spec, CLEAR, dst=word.whole, compute=np.zeros_like, chain=chain(spec, CLEAR, CLEAR_PATH))
            r.sts(counters[0, WARP, :], word.whole, CLEARED, vector_bytes=4)
            alone(r, spec, COUNT_SETUP)
            r.bar_sync(0, WARPS)
            with r.loop("step", ceil_div(flat, WARPS * WARP_SIZE)) as step:
                at = (step * WARPS + WARP) * WARP_SIZE
                with r.when(at < flat):
                    r.ldg(mine.whole, choices[0:1, at:WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
                    lanes.write(r, spec, COUNT_AHEAD, dst=word.whole, compute=np.zeros_like)
                    _run(r, spec, COUNT, mine, after=("choice",))
                    r.sts(counters[0, WARP, :], mine.whole, vector_bytes=4)
            r.bar_sync(0, WARPS)
            _run(r, spec, COUNTED, word)
            with r.when(holders > WARP):
                r.lds(word.whole, counters[0, WARP, :], vector_bytes=4)
                _run(r, spec, ROUND, word)
            r.sts(sums[0, WARP, :], word.whole, vector_bytes=4)
            _run(r, spec, ROUNDED, word)
            r.bar_sync(0, WARPS)
            with r.when(WARP.equals(0)):
                r.lds(own.whole, sums.stage(), PREFIX, vector_bytes=4)
                r.run(
                    "shfl", lanes.SHUFFLES, dtype="b32", dst=word.whole, srcs=(own.whole,), chain=lanes.SHUFFLES,
                    compute=lambda old, _: np.zeros((1, CLEARED)), mix=(("iadd", lanes.SHUFFLES),), nominal=True,
                )  # fmt: skip
                _run(r, spec, PREFIX_BEHIND, word, PREFIX * DEPENDENT_CYCLES)
                r.run(
                    "iadd", 1, dtype="int32", dst=own.whole, srcs=(word.whole,), nominal=True,
                   compute=lambda old, _: old,
                )  # fmt: skip
                r.sts(sums.stage(), own.whole, PREFIX, vector_bytes=4)
            r.bar_sync(0, WARPS)
            r.lds(word.whole, sums[0, WARP, :], vector_bytes=4)
            _run(r, spec, STORE, word)
            with r.when(holders > WARP):
                r.stg(found.starts[0:1, WARP * WARP_SIZE : WARP_SIZE], word.whole, vector_bytes=4)  # type: ignore[misc]
            with r.when(WARP.equals(0)):
                lists.store_padded(r)
            r.bar_sync(0, WARPS)
            with r.when(holders > WARP):
                box = found.starts[0:1, WARP * WARP_SIZE : WARP_SIZE]  # type: ignore[misc]
                r.ldg(mine.whole, box, into="start", vector_bytes=4)
                _run(r, spec, BLOCKS, mine, after=("start",))
                lists.store_experts(r, spec, WARP)
            # What stands behind the last expert, which the L1 has as it has the first choices.
            r.ldg(mine.whole, choices[0:1, 0:WARP_SIZE], into="start", vector_bytes=4)  # type: ignore[misc]
            _run(r, spec, REST, mine, after=("start",))
    return k.build()


def _place(op: Moe, b: Blocks, spec: GpuSpec, ids: GlobalTensor, found: SortedRows) -> Kernel:
    assert found.rows is not None
    assert found.starts is not None
    flat = op.tokens * op.topk
    choices = in_a_row(ids)
    ctas = ceil_div(flat, PLACING_WARPS * WARP_SIZE)
    simulated, sampled = sample(ctas, 10 * PLACING_WARPS)
    k = KernelBuilder("count_and_sort_expert_tokens", (len(simulated), 1, 1), code_bytes=CODE_BYTES // 8)
    mine, start = RegisterTile("choice", (1, WARP_SIZE), "int32"), RegisterTile("start", (1, WARP_SIZE), "int32")
    workers = ceil_div(flat, WARP_SIZE)
    values = np.append(_rows(b, flat), np.full(WARP_SIZE, flat)).astype(np.float64)
    places = RegisterTile("places", (1, WARP_SIZE), "int32")
    lines = ceil_div(op.experts, WARP_SIZE)
    with k.role("warps", PLACING_WARPS, REGISTERS) as r:
        at = r.assign("at", (looked_up(simulated, CTA_X) if sampled else CTA_X) * PLACING_WARPS + WARP)
        alone(r, spec, PLACE_SETUP)
        with r.when(at < workers):
            alone(r, spec, PLACE_LOAD)
            r.ldg(mine.whole, choices[0:1, at * WARP_SIZE : WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
            _run(r, spec, PLACE_ADD, mine, after=("choice",))
            # An atomic that returns a number takes as long as a load.
            box = found.starts[0:1, at % lines * WARP_SIZE : WARP_SIZE]  # type: ignore[misc]
            r.ldg(start.whole, box, into="start", vector_bytes=4)
            lanes.write(
                r, spec, PLACE_END, dst=places.whole, srcs=(start.whole, mine.whole), indices=(at,), after=("start",),
                compute=lambda _, __, ___, i: values[None, i * WARP_SIZE : (i + 1) * WARP_SIZE],
            )  # fmt: skip
            # As many words as choices, wherever their rows lie.
            r.stg(found.rows[0:1, at * WARP_SIZE : WARP_SIZE], places.whole, vector_bytes=4)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def _small(op: Moe, b: Blocks, spec: GpuSpec, ids: GlobalTensor, found: SortedRows) -> Kernel:
    """One CTA: a warp counts and places, each lane choices of its own in counters of its own, which lie one after the
    other; eight fill the list. Its instructions are not counted, but for what the source has."""
    assert found.rows is not None
    flat = op.tokens * op.topk
    choices = in_a_row(ids)
    k = KernelBuilder("moe_align_block_size_small", (1, 1, 1), code_bytes=CODE_BYTES // 2)
    counters = k.shared("counters", (op.experts, WARP_SIZE), "int32")
    mine, word = RegisterTile("choice", (1, WARP_SIZE), "int32"), RegisterTile("word", (1, WARP_SIZE), "int32")
    lists = _Lists(op, b, found, 1)
    values = np.append(_rows(b, flat), np.full(WARP_SIZE, flat)).astype(np.float64)
    places = RegisterTile("places", (1, WARP_SIZE), "int32")
    step: Cost = {"iadd.int32": 4.0, "ffma.fp32": 3.0}

    def change(row: Expr | int, cost: Cost) -> None:
        """A counter of each lane is read, changed and written back."""
        r.lds(word.whole, counters[0, row:1, :], vector_bytes=4)  # type: ignore[misc]
        _run(r, spec, cost, word)
        r.sts(counters[0, row:1, :], word.whole, vector_bytes=4)  # type: ignore[misc]

    with k.role("warps", SMALL_WARPS, REGISTERS) as r:
        alone(r, spec, ENTRY)
        with r.when(WARP < SMALL_WARPS - 1):
            _fill_rows(r, spec, b, found, WARP, SMALL_WARPS - 1, flat)
        counts = WARP.equals(SMALL_WARPS - 1)
        with r.when(counts):
            r.run("iadd", 1, dtype="int32", dst=word.whole, compute=np.zeros_like, nominal=True)
            with r.loop("cleared", op.experts) as row:
                r.sts(counters[0, row:1, :], word.whole, vector_bytes=4)  # type: ignore[misc]
                lanes.write(r, spec, FILL_STEP, dst=mine.whole, compute=np.zeros_like)
            with r.loop("step", ceil_div(flat, WARP_SIZE)) as i:
                r.ldg(mine.whole, choices[0:1, i * WARP_SIZE : WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
                _run(r, spec, step, mine, after=("choice",))
                change(0, step)
        r.bar_sync(0, SMALL_WARPS)
        with r.when(counts), r.loop("lane", WARP_SIZE):
            # The counters of an expert, a lane an expert.
            change(0, step)
        r.bar_sync(0, SMALL_WARPS)
        with r.when(counts):
            with r.loop("expert", op.experts) as row:
                r.lds(word.whole, counters[0, row:1, :], vector_bytes=4)  # type: ignore[misc]
                _run(r, spec, ROUND, word)
                r.sts(counters[0, row:1, :], word.whole, vector_bytes=4)  # type: ignore[misc]
            lists.store_padded(r)
            assert found.starts is not None
            for line in range(0, op.experts, WARP_SIZE):
                r.stg(found.starts[0:1, line:WARP_SIZE], word.whole, vector_bytes=4)  # type: ignore[misc]
        r.bar_sync(0, SMALL_WARPS)
        with r.when(counts):
            _run(r, spec, BLOCKS, word)
            lists.store_experts(r, spec, WARP - (SMALL_WARPS - 1))
            with r.loop("placed", ceil_div(flat, WARP_SIZE)) as i:
                r.ldg(mine.whole, choices[0:1, i * WARP_SIZE : WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
                _run(r, spec, step, mine, after=("choice",))
                change(0, step)
                lanes.write(
                    r, spec, FILL_STEP, dst=places.whole, srcs=(word.whole,), indices=(i,),
                    compute=lambda _, __, at: values[None, at * WARP_SIZE : (at + 1) * WARP_SIZE],
                )  # fmt: skip
                r.stg(found.rows[0:1, i * WARP_SIZE : WARP_SIZE], places.whole, vector_bytes=4)  # type: ignore[misc]
    return k.build()


def number_locally(b: Blocks, spec: GpuSpec, found: SortedRows) -> tuple[Kernel, ...]:
    """Numbers of the blocks' experts on this device in place of those of the layer, as PyTorch gathers
    (`expert_map[expert_ids]`): a kernel that widens them to int64, and the look-up."""
    return _elements("widen", b, spec, found, _widen), _elements("index", b, spec, found, _look_up)


def _elements(name: str, b: Blocks, spec: GpuSpec, found: SortedRows, write: Callable[..., None]) -> Kernel:
    each = GATHER_WARPS * GATHERED * WARP_SIZE
    k = KernelBuilder(name, (ceil_div(b.launched, each), 1, 1), code_bytes=CODE_BYTES)
    with k.role("warps", GATHER_WARPS, REGISTERS) as r:
        alone(r, spec, WIDEN_SETUP if write is _widen else INDEX_SETUP)
        write(r, spec, b, found)
    return k.build()


def _boxes(b: Blocks, found: SortedRows) -> list[tuple[Expr, View]]:
    """Elements of a warp: whether there are any, and where."""
    boxes = []
    for i in range(GATHERED):
        at = ((CTA_X * GATHERED + i) * GATHER_WARPS + WARP) * WARP_SIZE
        boxes.append((at < b.launched, found.experts[0:1, at:WARP_SIZE]))  # type: ignore[misc]
    return boxes


def _widen(r: RoleBuilder, spec: GpuSpec, b: Blocks, found: SortedRows) -> None:
    """All loads, then all stores."""
    numbers = [RegisterTile(f"numbers{i}", (1, WARP_SIZE), "int32") for i in range(GATHERED)]
    for tile, (here, box) in zip(numbers, _boxes(b, found), strict=True):
        with r.when(here):
            alone(r, spec, WIDEN_LOAD)
            r.ldg(tile.whole, box, into="numbers", vector_bytes=4)
    for tile, (here, box) in zip(numbers, _boxes(b, found), strict=True):
        with r.when(here):
            _run(r, spec, WIDEN_STORE, tile, after=("numbers",))
            r.stg(box, tile.whole, vector_bytes=4)


def _look_up(r: RoleBuilder, spec: GpuSpec, b: Blocks, found: SortedRows) -> None:
    """One element after the other."""
    numbers, looked = RegisterTile("numbers", (1, WARP_SIZE), "int32"), RegisterTile("looked", (1, WARP_SIZE), "int32")
    assert found.starts is not None
    for i, (here, box) in enumerate(_boxes(b, found)):
        lines = ceil_div(found.starts.shape[1], WARP_SIZE)
        with r.when(here):
            alone(r, spec, INDEX_LOAD)
            r.ldg(numbers.whole, box, into="numbers", vector_bytes=4)
            _run(r, spec, INDEX_LOOK, numbers, after=("numbers",))
            at = i % lines * WARP_SIZE  # a table of as many numbers, which the kernels before have left
            r.ldg(looked.whole, found.starts[0:1, at:WARP_SIZE], into="looked", vector_bytes=4)  # type: ignore[misc]
            _run(r, spec, INDEX_STORE, looked, after=("looked",))
            r.stg(box, numbers.whole, vector_bytes=4)
