"""What runs around the products of a layer of experts: choice of experts, sorting by expert, activation, sum.

Kernels of vLLM (csrc/moe, csrc/activation_kernels.cu). Numbers that decide where rows lie are known when the program
is written; here they are read and written for their time, and so that what is read has been written before.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, WARP, GlobalTensor, Kernel, KernelBuilder, RegisterTile
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import Blocks, Numbers, looked_up
from workloads.gpu.moe.product import Sorted, in_a_row
from workloads.gpu.pointwise import lanes
from workloads.ops import Moe
from workloads.ops.base import Array

REGISTERS = 32
MAX_WARPS = 32
SORTING_WARPS = 32
"""Of the one CTA that counts (csrc/moe/moe_align_sum_kernels.cu)."""
COUNTING_WARPS = 8
"""Of the CTAs that place the rows."""
COUNT = {"iadd.int32": 8.0}
"""Of one choice that is counted or placed: its address, bounds, the shared counter's."""
SILU = {"ffma.fp32": 5.0, "ex2.fp32": 1.0, "rcp.fp32": 1.0, "iadd.int32": 4.0}
RELU2 = {"ffma.fp32": 2.0, "iadd.int32": 3.0}
FILL_WARPS, FILL_VECTORS, GATHER_WARPS = 4, 4, 4
"""Of a CTA that fills a tensor; vectors of a thread (aten/src/ATen/native/cuda/CUDALoops.cuh); of one that gathers."""
CODE_BYTES = 4096
MOST_OPS, LEAST_CTAS = 500_000, 2000
"""Size of a sample of a long kernel: ops of all its CTAs, and CTAs at least."""


def choose_experts(op: Moe, spec: GpuSpec, logits: GlobalTensor, ids: GlobalTensor, weights: GlobalTensor) -> Kernel:
    """Softmax over the router's logits and its largest, a warp a token: each choice is a maximum over the lanes."""
    warps = 4
    simulated, sampled = _sample(ceil_div(op.tokens, warps), 10 * warps)
    k = KernelBuilder("topk_softmax", (len(simulated), 1, 1), code_bytes=CODE_BYTES)
    row = RegisterTile("logits", (1, op.experts), logits.dtype)
    picked, numbers = (RegisterTile(name, (1, op.topk), dtype) for name, dtype in (("w", "fp32"), ("ids", "int32")))
    each = ceil_div(op.experts, WARP_SIZE)

    def weigh(_: Array, values: Array, token: int) -> Array:
        chosen = op.ids[min(token, op.tokens - 1)]
        exponents = np.exp(values[0, chosen].astype(np.float64))
        return np.asarray(exponents / exponents.sum())[None, :]

    with k.role("warps", warps, REGISTERS) as r:
        token = (looked_up(simulated, CTA_X) if sampled else CTA_X) * warps + WARP
        r.run("iadd", 20, dtype="int32")
        r.ldg(row.whole, logits[token:1, :], into="row", vector_bytes=_vector(op.experts, logits.dtype))  # type: ignore[misc]
        lanes.write(
            r, spec, lanes.scaled({"ex2.fp32": 1.0, "ffma.fp32": 3.0}, each), dst=picked.whole, srcs=(row.whole,),
            compute=weigh, indices=(token,), after=("row",),
        )  # fmt: skip
        # The maximum and the sum of the softmax, then a maximum with its number for each choice.
        lanes.warp_reduce(r, "fadd", picked.whole, 2)
        steps = lanes.SHUFFLES * op.topk
        r.run(
            "shfl", 2 * steps, dtype="b32", dst=picked.whole, srcs=(picked.whole,), compute=lanes.keep, chain=steps,
            mix=(("iadd", 3 * steps + 2 * each * op.topk),),
        )  # fmt: skip
        r.run(
            "iadd", op.topk, dtype="int32", dst=numbers.whole, indices=(token,), nominal=True,
            compute=lambda _, t: op.ids[min(t, op.tokens - 1)][None, :].astype(np.float64),
        )  # fmt: skip
        r.stg(weights[token:1, :], picked.whole, vector_bytes=4)  # type: ignore[misc]
        r.stg(ids[token:1, :], numbers.whole, vector_bytes=4)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def sort_rows(op: Moe, b: Blocks, spec: GpuSpec, ids: GlobalTensor, found: Sorted) -> tuple[Kernel, ...]:
    """Counts the choices of each expert in one CTA, which adds up whole blocks; then many place each row. Where
    choices are not sorted, a fill of the number of rows."""
    assert found.padded is not None
    if found.rows is None:
        return (fill("fill", found.padded, np.zeros(1, dtype=np.int64), b.count * b.size),)
    flat = op.tokens * op.topk
    choices = in_a_row(ids)
    count = KernelBuilder("moe_align_block_size", (1, 1, 1), code_bytes=CODE_BYTES)
    counters = count.shared("counters", (1, op.experts), "int32")
    mine, totals = RegisterTile("choice", (1, WARP_SIZE), "int32"), RegisterTile("totals", (1, op.experts), "int32")
    numbers = np.append(b.experts, np.full(b.launched - b.count, -1)).astype(np.float64)
    blocks = RegisterTile("blocks", (1, b.launched), "int32")
    one = RegisterTile("one", (1, 1), "int32")
    threads = SORTING_WARPS * WARP_SIZE
    with count.role("warps", SORTING_WARPS, REGISTERS) as r:
        r.run("iadd", 20, dtype="int32")
        with r.loop("step", ceil_div(flat, threads)) as step:
            at = step * threads + WARP * WARP_SIZE
            r.ldg(mine.whole, choices[0:1, at:WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
            lanes.write(r, spec, COUNT, dst=mine.whole, srcs=(mine.whole,), compute=lanes.keep, after=("choice",))
        r.bar_sync(0, SORTING_WARPS)
        with r.when(WARP.equals(0)):
            r.run("iadd", op.experts, dtype="int32", dst=totals.whole, compute=np.zeros_like, nominal=True)
            r.sts(counters.stage(), totals.whole, vector_bytes=4)
        r.bar_sync(0, SORTING_WARPS)
        # A prefix sum over the experts.
        r.run("shfl", 10, dtype="b32", chain=10, mix=(("iadd", 20),))
        r.lds(totals.whole, counters.stage(), vector_bytes=4)
        with r.when(WARP.equals(0)):
            r.run(
                "iadd", 1, dtype="int32", dst=one.whole, srcs=(totals.whole,), nominal=True,
                compute=lambda _, __: np.full((1, 1), float(b.count * b.size)),
            )  # fmt: skip
            r.stg(found.padded[0:1, 0:1], one.whole, vector_bytes=4)  # type: ignore[misc]
            r.run("iadd", 1, dtype="int32", dst=blocks.whole, compute=lambda _: numbers[None, :], nominal=True)
            r.stg(found.experts[0:1, :], blocks.whole, vector_bytes=4)  # type: ignore[misc]
    ctas = ceil_div(flat, COUNTING_WARPS * WARP_SIZE)
    simulated, sampled = _sample(ctas, 4 * COUNTING_WARPS)
    place = KernelBuilder("count_and_sort_expert_tokens", (len(simulated), 1, 1), code_bytes=CODE_BYTES)
    workers = ctas * COUNTING_WARPS
    share = ceil_div(b.launched * b.size, workers)
    values = np.full((1, workers * share), flat, dtype=np.float64)
    values[0, : b.flat.size] = np.where(b.flat >= 0, b.flat, flat).reshape(-1)
    places = RegisterTile("places", (1, share), "int32")
    with place.role("warps", COUNTING_WARPS, REGISTERS) as r:
        at = (looked_up(simulated, CTA_X) if sampled else CTA_X) * COUNTING_WARPS + WARP
        r.run("iadd", 15, dtype="int32")
        r.ldg(mine.whole, choices[0:1, at * WARP_SIZE : WARP_SIZE], into="choice", vector_bytes=4)  # type: ignore[misc]
        r.run(
            "iadd", 10, dtype="int32", dst=places.whole, indices=(at,), after=("choice",), nominal=True,
            compute=lambda _, i: values[:, i * share : i * share + share],
        )  # fmt: skip
        r.stg(found.rows[0:1, at * share : share], places.whole, vector_bytes=4)  # type: ignore[misc]
    return count.build(), replace(place.build(), stands_for=sampled)


def number_locally(b: Blocks, found: Sorted) -> Kernel:
    """Numbers of the blocks' experts on this device in place of those of the layer, as PyTorch gathers: four elements
    a thread (`expert_map[expert_ids]`)."""
    each = GATHER_WARPS * FILL_VECTORS * WARP_SIZE
    k = KernelBuilder("index", (ceil_div(b.launched, each), 1, 1), code_bytes=CODE_BYTES)
    numbers = RegisterTile("numbers", (1, WARP_SIZE), "int32")
    with k.role("warps", GATHER_WARPS, REGISTERS) as r:
        r.run("iadd", 30, dtype="int32")
        for i in range(min(FILL_VECTORS, ceil_div(b.launched, WARP_SIZE))):
            at = ((CTA_X * FILL_VECTORS + i) * GATHER_WARPS + WARP) * WARP_SIZE
            box = found.experts[0:1, at:WARP_SIZE]  # type: ignore[misc]
            r.ldg(numbers.whole, box, into="numbers", vector_bytes=4)
            r.run("iadd", 12, dtype="int32", dst=numbers.whole, srcs=(numbers.whole,), compute=lanes.keep,
                  after=("numbers",))  # fmt: skip
            r.stg(box, numbers.whole, vector_bytes=4)
    return k.build()


def fill(name: str, tensor: GlobalTensor, rows: Numbers, value: float) -> Kernel:
    """One value to some rows of a tensor, as PyTorch fills one: CTAs of four warps, a few vectors a thread."""
    columns = tensor.shape[1]
    vector = _vector(columns, tensor.dtype)
    span = WARP_SIZE * vector // DTYPE_BYTES[tensor.dtype]
    steps = ceil_div(columns, span)
    units = len(rows) * steps
    ctas, sampled = _sample(ceil_div(units, FILL_WARPS * FILL_VECTORS), 2 * FILL_WARPS * FILL_VECTORS)
    k = KernelBuilder(name, (len(ctas), 1, 1), code_bytes=CODE_BYTES)
    values = RegisterTile("values", (1, span), tensor.dtype)
    with k.role("warps", FILL_WARPS, REGISTERS) as r:
        cta = looked_up(ctas, CTA_X) if sampled else CTA_X
        r.run(
            "iadd", 12, dtype="int32", dst=values.whole, nominal=True,
            compute=lambda _: np.full((1, span), value),
        )  # fmt: skip
        for i in range(min(FILL_VECTORS, units)):
            unit = r.assign(f"unit{i}", (cta * FILL_VECTORS + i) * FILL_WARPS + WARP)
            with r.when(unit < units):
                row, at = looked_up(rows, unit // steps), unit % steps * span
                r.stg(tensor[row:1, at:span], values.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def activate(op: Moe, b: Blocks, spec: GpuSpec, first: GlobalTensor, inner: GlobalTensor, vector: int) -> Kernel:
    """f of the first product, a CTA a row. vector: bytes a thread reads at once."""
    dtype = first.dtype
    columns, halves = op.local_inter, op.first_columns // op.local_inter
    vector = math.gcd(vector, columns * DTYPE_BYTES[dtype])
    span = WARP_SIZE * vector // DTYPE_BYTES[dtype]
    warps = min(MAX_WARPS, ceil_div(columns, span))
    rows, sampled = _sample(len(b.places), (halves + 2) * warps * ceil_div(columns, warps * span))
    k = KernelBuilder("silu_and_mul" if halves == 2 else "relu2", (len(rows), 1, 1), code_bytes=CODE_BYTES)
    read, written = by_rows(first), by_rows(inner)
    tiles = [RegisterTile(name, (1, span), dtype) for name in ("gate", "up")[:halves]]
    result = RegisterTile("result", (1, span), dtype)
    cost = lanes.total(
        SILU if halves == 2 else RELU2, lanes.scaled(lanes.widen(dtype), halves), lanes.narrow(spec, dtype)
    )

    def f(_: Array, *values: Array) -> Array:
        return op.activated(np.concatenate([np.asarray(v, dtype=np.float64) for v in values], axis=1))

    with k.role("warps", warps, REGISTERS) as r:
        r.run("iadd", 25, dtype="int32")
        row = r.assign("row", looked_up(b.places[rows], CTA_X))
        with r.loop("step", ceil_div(columns, warps * span)) as step:
            at = (step * warps + WARP) * span
            with r.when(at < columns):
                for i, tile in enumerate(tiles):
                    r.ldg(tile.whole, read[row:1, at + i * columns : span], into="in", vector_bytes=vector)  # type: ignore[misc]
                lanes.write(
                    r, spec, lanes.scaled(cost, span // WARP_SIZE), dst=result.whole,
                    srcs=tuple(tile.whole for tile in tiles), compute=f, after=("in",),
                )  # fmt: skip
                r.stg(written[row:1, at:span], result.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def add_up(
    op: Moe, b: Blocks, spec: GpuSpec, second: GlobalTensor, weights: GlobalTensor, y: GlobalTensor, vector: int
) -> Kernel:
    """The sum over a token's choices, a CTA a token. The weights, by which the second product has multiplied, count
    here for the numbers."""
    dtype = y.dtype
    vector = math.gcd(vector, op.hidden * DTYPE_BYTES[dtype])
    span = WARP_SIZE * vector // DTYPE_BYTES[dtype]
    warps = min(MAX_WARPS, ceil_div(op.hidden, span))
    tokens, sampled = _sample(op.tokens, (op.topk + 2) * warps * ceil_div(op.hidden, warps * span))
    k = KernelBuilder("moe_sum", (len(tokens), 1, 1), code_bytes=CODE_BYTES)
    read = by_rows(second)
    places = b.places
    own = RegisterTile("own", (1, op.topk), "fp32")
    choices = RegisterTile("choices", (op.topk, span), dtype)
    result = RegisterTile("sum", (1, span), dtype)
    cost = lanes.total(
        lanes.scaled(lanes.total({"fadd.fp32": 1.0}, lanes.widen(dtype)), op.topk), lanes.narrow(spec, dtype)
    )

    def weighed(_: Array, w: Array, values: Array) -> Array:
        return np.asarray(w.astype(np.float64) @ values.astype(np.float64))

    with k.role("warps", warps, REGISTERS) as r:
        r.run("iadd", 25, dtype="int32")
        token = r.assign("token", looked_up(tokens, CTA_X)) if sampled else CTA_X
        r.ldg(own.whole, weights[token:1, :], into="w", vector_bytes=4)  # type: ignore[misc]
        r.run("iadd", 1, dtype="int32", after=("w",))
        with r.loop("step", ceil_div(op.hidden, warps * span)) as step:
            at = (step * warps + WARP) * span
            with r.when(at < op.hidden):
                for i in range(op.topk):
                    row = looked_up(places[i :: op.topk][tokens], CTA_X)
                    r.ldg(choices[i:1, :], read[row:1, at:span], into="in", vector_bytes=vector)  # type: ignore[misc]
                lanes.write(
                    r, spec, lanes.scaled(cost, span // WARP_SIZE), dst=result.whole,
                    srcs=(own.whole, choices.whole), compute=weighed, after=("in",),
                )  # fmt: skip
                r.stg(y[token:1, at:span], result.whole, vector_bytes=vector)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def _sample(ctas: int, ops: int) -> tuple[Numbers, int]:
    """Numbers of the CTAs of a long kernel that are simulated, evenly over all, and how many they stand for; 0 where
    they are all. ops: of one of them."""
    simulated = min(ctas, max(LEAST_CTAS, MOST_OPS // ops))
    return np.arange(simulated) * ctas // simulated, ctas if simulated < ctas else 0


def by_rows(tensor: GlobalTensor) -> GlobalTensor:
    """A tensor that lies block by block, as its rows."""
    blocks, size, columns = tensor.shape
    name, shape = f"{tensor.name}_rows", (blocks * size, columns)
    return GlobalTensor(name, shape, tensor.dtype, (columns, 1), "scratch", alias=tensor.name)


def _vector(elements: int, dtype: str) -> int:
    """Bytes that a thread reads at once of a row."""
    return math.gcd(16, elements * DTYPE_BYTES[dtype])
