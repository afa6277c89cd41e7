"""New keys and values into a cache in pages, as vLLM's `reshape_and_cache_flash` writes them.

A CTA a token, of a thread for each element of its keys, 512 at most. Each warp reads the token's slot and divides it by
the size of a page, in 64 bits, whether or not it then has something to copy; then it copies vectors of 16 B, keys
before values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import (
    CTA_X,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    Table,
    View,
    as_expr,
)
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import AttentionProblem
from workloads.gpu.configuration import Configuration
from workloads.gpu.figures import PS_PER_S, figures, transfer
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.pointwise import lanes
from workloads.gpu.select import Choice
from workloads.ops import Attention, KvWrite
from workloads.registry import register

MOST_WARPS = 16
WARP_ELEMENTS = 256
"""That a warp copies at a time, of 2 B each."""
SLOT = overhead.Overhead(alu=110, imad=7)
"""Of a warp, after the slot has come: quotient and remainder of 64 bits, of which 32 do, addresses, the cases of
vectors that are not aligned. Like COPY executed instructions of vLLM 0.24 (CUDA 13, sm_90), Nsight Compute."""
SLOT_STEPS = 102
"""Of these, each after the one before."""
COPY = overhead.Overhead(alu=31, imad=20)
"""Of a warp that copies, for keys and for values: a division by the threads that share the vectors, addresses."""
COPY_STEPS = 30
CODE_BYTES = 600 * overhead.INSTRUCTION_BYTES


@dataclass(frozen=True)
class CacheWriteConfig(Configuration):
    """The published kernel: nothing about it is chosen."""

    schedule: ClassVar[str] = "vllm"


@register("kv_write", "gpu", "auto")
def choose(op: KvWrite, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The one kernel. InputError for elements and heads of which no whole vectors are copied."""
    if schedule not in ("auto", CacheWriteConfig.schedule):
        raise InputError(f"schedule={schedule}: kv_write has {CacheWriteConfig.schedule}")
    if DTYPE_BYTES[op.chosen_dtype] != 2:
        raise InputError(f"kv_write dtype={op.chosen_dtype}: the kernel copies elements of 2 B; nearest: dtype=bf16")
    for key, size in (("head_dim", op.head_dim), ("head_dim_v", op.head_dim_v or op.head_dim)):
        if size % 8 or size > WARP_ELEMENTS:
            nearest = min(WARP_ELEMENTS, max(8, size // 8 * 8))
            raise InputError(f"kv_write {key}={size}: a multiple of 8, {WARP_ELEMENTS} at most; nearest: {nearest}")
    f, config = figures(spec), CacheWriteConfig()
    cycles = f.start + 4 * f.load_latency + transfer(op.operand_bytes, f.dram_rate)
    return Choice(config, [(config, f.fixed_ps + cycles * PS_PER_S // f.clock_hz)])


@register("kv_write", "gpu", "vllm")
def build(op: KvWrite, spec: GpuSpec, config: CacheWriteConfig) -> Program:
    """The program of `op`. Its table of slots is read by the kernel; which they are is known when it is written."""
    tensors = {
        operand.name: lanes.tensor(operand, "output" if operand.name in "kv" else "input") for operand in op.operands
    }
    batch, token = CTA_X // op.slots.shape[1], CTA_X % op.slots.shape[1]
    slot = Table(tuple(int(place) for place in op.slots.flat), CTA_X)
    k = _kernel(
        op.slots.size,
        _warps(op.kv_heads, op.head_dim),
        ((tensors["k_new"], tensors["k"]), (tensors["v_new"], tensors["v"])),
        (batch, token),
        tensors["slots"][batch, token],
        (slot // op.page, slot % op.page),
    )
    return Program(str(op), tuple(tensors.values()), (k,), str(config), {"config": config})


def kernel(p: AttentionProblem) -> Kernel:
    """Writes `p.new` to the places in K and V that the table of pages gives them."""
    op = p.op
    in_row = op.slots.shape[1]
    batch, token = CTA_X // in_row, CTA_X % in_row
    sequence, position = (batch, token + (op.keys - op.queries)) if not p.ragged else _tokens(op)
    index = sequence * op.pages + position // op.page
    page = Table(tuple(int(place) for place in op.page_table.flat), as_expr(index))
    assert p.table is not None
    return _kernel(
        op.slots.size,
        _warps(op.key_heads, op.head_dim),
        tuple(zip(p.new, (p.k, p.v), strict=True)),
        (batch, token),
        p.table[sequence, position // op.page],
        (page, position % op.page),
    )


def _tokens(op: Attention) -> tuple[Expr, Expr]:
    """Sequence of the CTA's token and its place there, where lengths differ."""
    tokens = [
        (sequence, position)
        for sequence, (queries, keys) in enumerate(zip(op.lengths_q, op.lengths_k, strict=True))
        for position in range(keys - queries, keys)
    ]
    sequences, positions = zip(*tokens, strict=True)
    return Table(sequences, CTA_X), Table(positions, CTA_X)


def _warps(heads: int, head_dim: int) -> int:
    """Of a CTA: a thread for each element of a token's keys."""
    return ceil_div(min(heads * head_dim, 32 * MOST_WARPS), 32)


def _kernel(
    tokens: int, warps: int, copies: tuple[tuple[GlobalTensor, GlobalTensor], ...], source: tuple[Expr, Expr],
    slot: View, target: tuple[Expr, Expr],
) -> Kernel:  # fmt: skip
    """A CTA a token. copies: new tensors and their caches. source: sequence and token. slot: what says where it goes.
    target: page and row of that."""
    k = KernelBuilder("reshape_and_cache", (tokens, 1, 1), code_bytes=CODE_BYTES)
    with k.role("warps", warps, 40) as r:
        r.op("ldg", 1, srcs=(slot,), into="slot", vector_bytes=4)
        mix = overhead.mix(imad=SLOT.imad)
        r.run(overhead.ALU, SLOT.alu, dtype="int32", mix=mix, chain=SLOT_STEPS, after=("slot",))
        for new, cache in copies:
            _copy(r, new, cache, warps, source, target)
    return k.build()


def _copy(r: RoleBuilder, new: GlobalTensor, cache: GlobalTensor, warps: int, source, target) -> None:  # type: ignore[no-untyped-def]
    """A token's heads, as many at a time as the warps hold."""
    heads, elements = new.shape[2], new.shape[3]
    each = min(heads, max(1, WARP_ELEMENTS // elements))
    here = RegisterTile(f"here_{new.name}", (each, elements), new.dtype)
    count = ceil_div(each * elements, WARP_ELEMENTS)
    with r.when(WARP * each < heads):
        mix = overhead.mix(imad=COPY.imad)
        r.run(overhead.ALU, COPY.alu, dtype="int32", mix=mix, chain=COPY_STEPS)
    with r.loop(f"i_{new.name}", ceil_div(heads, warps * each)) as i:
        first = (i * warps + WARP) * each
        with r.when(first < heads):
            r.ldg(here.whole, new[(*source, slice(first, each), slice(0, elements))], count, into="here")
            r.stg(cache[(*target, slice(first, each), slice(0, elements))], here.whole, count, after=("here",))
