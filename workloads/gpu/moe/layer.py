"""A layer of a mixture of experts as vLLM runs it with Triton's fused kernel: the same kernel for both products.

Choice of experts (where it belongs to the layer), sorting of the choices by expert, first product, activation, second
product, sum over a token's choices. With experts on other devices, rows of theirs get zeros from both products; before
vLLM 0.17 the products leave them out, and zeros are stored before the second one. The activation and the sum take all
rows (`vllm/model_executor/layers/fused_moe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import GlobalTensor, Kernel, Program
from workloads.gpu.configuration import class_of
from workloads.gpu.gemm.estimate import figures, transfer
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.wgmma import INSTRUCTION_K_BYTES
from workloads.gpu.moe import group_product, routing, sorting, steps, tensor_product, warp_product
from workloads.gpu.moe.blocks import Blocks, Numbers
from workloads.gpu.moe.config import (
    KINDS,
    EarlierMoeConfig,
    MarlinMoeConfig,
    MoeConfig,
    blockwise_config,
    default_config,
    earlier_config,
    marlin_config,
)
from workloads.gpu.moe.product import GroupedProduct, Part, SortedRows, Tokens, in_a_row
from workloads.gpu.pointwise import lanes
from workloads.gpu.select import Choice
from workloads.ops import Moe
from workloads.ops.gemm import SCALE_BLOCK
from workloads.registry import register

C = TypeVar("C", bound=MoeConfig)

PS_PER_S = 10**12
MOST_OPS = 4_000_000
"""Ops of a product that are simulated; of a longer one a sample is."""
OPS_A_STEP = 12
"""Of a warp in 32 of k, about."""
LEAST_TILES, LEAST_GROUPS, GROUP = 3000, 2, 8
"""Of a sample: tiles, groups of blocks, and blocks of a group where the kernel's own groups are smaller."""


@register("moe", "gpu", "auto")
def choose(op: Moe, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """vLLM's tiles for the layer: of a release (`vllm`, `vllm-0.14`), or a configuration as it prints."""
    if spec.cp_async is None:
        raise InputError(f"moe: {spec.name} has no cp.async, by which Triton's fused kernel copies; a100-sxm4-80gb has")
    config: MoeConfig
    packed = op.packed is not None
    if schedule != "auto" and class_of(schedule, KINDS).packed != packed:
        right = (MarlinMoeConfig if packed else MoeConfig).schedule
        raise InputError(f"moe weights={op.weights} schedule={schedule}: has no such kernel; nearest: {right}")
    match schedule:
        case "auto" | MarlinMoeConfig.schedule if packed:
            config = marlin_config(op)
        case "auto" | MoeConfig.schedule if op.blockwise:
            config = blockwise_config()
        case "auto" | MoeConfig.schedule:
            rows = (op.hidden, op.first_columns, op.local_inter)
            config = multiplied(spec, op.chosen_dtype, rows, default_config(op, spec.name))
        case EarlierMoeConfig.schedule:
            config = earlier_config(op, spec.name)
        case _:
            config = class_of(schedule, KINDS).parse(schedule)
    return Choice(config, [(config, estimate_ps(op, spec))])


def multiplied(spec: GpuSpec, dtype: str, lengths: Sequence[int], config: C) -> C:
    """The tile; that of tensor memory where a machine has it, and blocks of 64 rows by four warps where only wgmma
    multiplies a format, as 8-bit floats on Hopper. lengths: of rows of operands and results."""
    if tensor_product.multiplies(spec, dtype, lengths):
        return tensor_product.fitted(spec, dtype, config)
    step = INSTRUCTION_K_BYTES // DTYPE_BYTES[dtype]
    if spec.has_instruction("mma", dtype, f"m16n8k{step}") or not spec.has_instruction("wgmma", dtype, f"m64n*k{step}"):
        return config
    rows, depth = max(config.block_m, 64), max(config.block_k, 128 // DTYPE_BYTES[dtype])
    return replace(config, block_m=rows, block_k=depth, warps=max(config.warps, 4))


def estimate_ps(op: Moe, spec: GpuSpec) -> int:
    """Rough time: what is read once from DRAM, what is multiplied at half of the peak."""
    f = figures(spec)
    active = len({int(e) for e in set(op.ids.reshape(-1)) if e < op.local_experts})
    width = DTYPE_BYTES[op.chosen_dtype]
    bits = 8 * width if op.packed is None else op.packed.bits
    rows = op.tokens * op.topk
    weights = active * op.hidden * (op.first_columns + op.local_inter) * bits // 8
    cycles = transfer(weights + rows * (2 * op.first_columns + 2 * op.hidden) * width, f.dram_rate)
    multiplied = 4 * op.macs * PS_PER_S // max(int(spec.peak_flops(op.chosen_dtype)), 1)
    return 5 * f.fixed_ps + max(cycles * PS_PER_S // f.clock_hz, multiplied)


@register("moe", "gpu", "vllm", "vllm-0.14", "marlin")
def build(op: Moe, spec: GpuSpec, config: MoeConfig) -> Program:
    """The program: its kernels in their order."""
    b = Blocks.of(op, config.block_m, config.filters)
    dtype = op.chosen_dtype
    inputs = {operand.name: lanes.tensor(operand) for operand in op.operands}
    tokens = Tokens(b)
    x = tokens.tensor(dtype)
    ids, weights = (
        inputs.get(name) or _scratch(name, (op.tokens, op.topk), form)
        for name, form in (("ids", "int32"), ("weights", "fp32"))
    )
    found = SortedRows.of(b, ids, op.experts)
    between = (
        ("first", op.first_columns, op.out_dtype),
        ("active", op.local_inter, op.out_dtype if op.blockwise else dtype),
        ("inner", op.local_inter, dtype),
        ("inner_scales", op.local_inter // SCALE_BLOCK or 1, "fp32"),
        ("second", op.hidden, op.out_dtype),
    )
    first, active, inner, scales, second = (
        _scratch(name, (b.count, b.size, columns), form) for name, columns, form in between
    )
    if op.blockwise:
        inputs["sx"] = tokens.scales(op.hidden // SCALE_BLOCK)
    y = lanes.tensor(op.results[0], "output")
    kernels: list[Kernel] = []
    made = [tensor for tensor in (ids, weights) if tensor.role == "scratch"]
    if op.router == "1":
        chosen = routing.ExpertChoices.of(op, ids, weights, inputs["logits"].dtype)
        kernels += routing.choose_experts(op, spec, inputs["logits"], chosen)
        made += chosen.scratch
    kernels += sorting.sort_rows(op, b, spec, ids, found)
    if op.ep > 1 and not config.filters:
        kernels += sorting.number_locally(b, spec, found)
    for part in parts(b, config, op.first_columns, op.hidden):
        up = GroupedProduct(
            "up", b, found, x, inputs["w1"], first, part, tokens, None, op.packed, inputs.get("s1"), inputs.get("sx")
        )
        kernels.append(product(up, spec, config))
    kernels += steps.activate(op, b, spec, first, active)
    if op.blockwise:
        kernels.append(steps.quantise(b, spec, active, inner, scales))
    else:
        inner = active
    if len(b.taken) < b.count:
        kernels.append(steps.fill("clear", steps.by_rows(second), b.places, 0))
    for part in parts(b, config, op.hidden, op.local_inter):
        down = GroupedProduct(
            "down", b, found, inner, inputs["w2"], second, part, None, weights, op.packed, inputs.get("s2"),
            scales if op.blockwise else None,
        )  # fmt: skip
        kernels.append(product(down, spec, config))
    kernels.append(steps.add_up(op, b, spec, second, weights, y))
    given = [x, *(tensor for name, tensor in inputs.items() if name != "x")]
    rows = (first, *((active, inner, scales) if op.blockwise else (inner,)), second)
    aliases = (in_a_row(ids), *(steps.by_rows(tensor) for tensor in rows))
    tensors = (*given, *made, *found.tensors, *rows, *aliases, y)
    settings = {"config": config, "stored": {"x": tokens.stored, "sx": lambda given: tokens.stored(given.T)}}
    return Program(str(op), tensors, tuple(kernels), str(config), settings)


def product(g: GroupedProduct, spec: GpuSpec, config: MoeConfig) -> Kernel:
    """The kernel of a product: on tensor memory or by wgmma where the tile allows it."""
    if tensor_product.takes(g, spec, config):
        return tensor_product.kernel(g, spec, config)
    if group_product.takes(g, spec, config):
        return group_product.kernel(g, spec, config)
    if g.scales_a is not None:
        raise InputError(
            f"moe scale=block schedule={config}: needs wgmma in fp8 on {spec.name}; nearest: "
            "block_m 64 and 4 warps on Hopper, elsewhere scale=none (of a model scale=tensor)"
        )
    return warp_product.kernel(g, spec, config)


def parts(b: Blocks, config: MoeConfig, columns: int, depth: int) -> list[Part]:
    """What is simulated of a product: all of it, or of a long one samples of what has work and of what stores zeros."""
    tiles, steps_k = ceil_div(columns, config.block_n), ceil_div(depth, config.block_k)
    here = b.taken[b.experts[b.taken] >= 0]
    elsewhere = b.taken[b.experts[b.taken] < 0]
    cost = config.warps * ceil_div(config.block_k, 32)
    most = MOST_OPS // (cost * OPS_A_STEP)
    if len(here) * tiles * steps_k + len(elsewhere) * tiles <= most:
        return [Part.whole(b, tiles)]
    found = []
    for blocks, each in ((here, steps_k), (elsewhere, 1)):
        if not len(blocks):
            continue
        allowed = max(most // each, LEAST_TILES)
        group = max(config.group, GROUP)
        kept = tiles if len(blocks) * tiles <= allowed else min(tiles, max(1, allowed // (LEAST_GROUPS * group)))
        picked = _window(blocks, b.experts, max(1, allowed // kept), group)
        simulated, all_tiles = len(picked) * kept, len(blocks) * tiles
        found.append(Part(picked, len(picked), kept, all_tiles if simulated < all_tiles else 0))
    return found


def _window(blocks: Numbers, experts: Numbers, most: int, group: int) -> Numbers:
    """About `most` of the blocks: neighbours in whole groups of the launch, so that weights are read again as often as
    there. Of all places the one is taken where groups have most nearly as many experts a block as on the whole."""
    groups = ceil_div(most, group)
    if len(blocks) <= groups * group:
        return blocks
    number = np.arange(len(blocks)) // group
    fresh = np.ones(len(blocks), dtype=np.int64)  # the first block of an expert in a group: it reads the weights
    fresh[1:] = (np.diff(experts[blocks]) != 0) | (np.diff(number) != 0)
    before = np.concatenate(([0], np.cumsum(fresh)))
    first = np.arange(len(blocks) // group - groups + 1) * group
    away = np.abs((before[first + groups * group] - before[first]) / (groups * group) - before[-1] / len(blocks))
    begin = int(first[away.argmin()])
    return blocks[begin : begin + groups * group]


def _scratch(name: str, shape: tuple[int, ...], dtype: str) -> GlobalTensor:
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    return GlobalTensor(name, shape, dtype, tuple(strides), "scratch")
