"""New keys and values into a cache in pages, as vLLM's `reshape_and_cache_flash` writes them.

A CTA a token, of a thread for each element of its keys, 512 at most. Each warp reads the token's slot and divides it by
the size of a page, in 64 bits, whether or not it then has something to copy; then it copies vectors of 16 B, keys
before values.
"""

from __future__ import annotations

from sim.gpu.language import CTA_X, WARP, GlobalTensor, Kernel, KernelBuilder, RegisterTile, RoleBuilder, Table, as_expr
from workloads.gpu import overhead
from workloads.gpu.attention.blocks import AttentionProblem
from workloads.gpu.gemm.problem import ceil_div

MOST_WARPS = 16
WARP_ELEMENTS = 256
"""That a warp copies at a time, of 2 B each."""
SLOT = overhead.Overhead(alu=220, imad=95)
"""Of a warp: quotient and remainder of 64 bits, addresses, the cases of vectors that are not aligned. Calibrated on
aiconfigurator_vllm_paged_prefill, A100, fitted half."""
CODE_BYTES = 600 * overhead.INSTRUCTION_BYTES


def kernel(p: AttentionProblem) -> Kernel:
    """Writes `p.new` to the places in K and V that the table of pages gives them."""
    op = p.op
    width = min(op.key_heads * op.head_dim, 32 * MOST_WARPS)
    warps = ceil_div(width, 32)
    k = KernelBuilder("reshape_and_cache", (op.batch * op.queries, 1, 1), code_bytes=CODE_BYTES)
    batch, token = CTA_X // op.queries, CTA_X % op.queries
    position = token + (op.keys - op.queries)
    index = batch * op.pages + position // op.page
    page = Table(tuple(int(place) for place in op.page_table.flat), as_expr(index))
    assert p.table is not None
    with k.role("warps", warps, 40) as r:
        slot = p.table[batch, position // op.page]
        r.op("ldg", 1, srcs=(slot,), into="slot", vector_bytes=4)
        r.run(overhead.ALU, SLOT.alu, dtype="int32", mix=overhead.mix(imad=SLOT.imad), after=("slot",))
        for new, cache in zip(p.new, (p.k, p.v), strict=True):
            _copy(r, new, cache, warps, (batch, token), (page, position % op.page))
    return k.build()


def _copy(r: RoleBuilder, new: GlobalTensor, cache: GlobalTensor, warps: int, source, target) -> None:  # type: ignore[no-untyped-def]
    """A token's heads, as many at a time as the warps hold."""
    heads, elements = new.shape[2], new.shape[3]
    each = min(heads, max(1, WARP_ELEMENTS // elements))
    here = RegisterTile(f"here_{new.name}", (each, elements), new.dtype)
    count = ceil_div(each * elements, WARP_ELEMENTS)
    with r.loop(f"i_{new.name}", ceil_div(heads, warps * each)) as i:
        first = (i * warps + WARP) * each
        with r.when(first < heads):
            r.ldg(here.whole, new[(*source, slice(first, each), slice(0, elements))], count, into="here")
            r.stg(cache[(*target, slice(first, each), slice(0, elements))], here.whole, count, after=("here",))
