"""A grouped product by the kernel of vLLM's experts, without what sorts: rows lie in the order of their groups."""

from __future__ import annotations

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import GlobalTensor, Program
from workloads.gpu.gemm.estimate import figures, transfer
from workloads.gpu.moe import layer
from workloads.gpu.moe.blocks import Blocks
from workloads.gpu.moe.config import GroupedConfig, grouped_config
from workloads.gpu.moe.product import GroupedProduct, SortedRows
from workloads.gpu.pointwise import lanes
from workloads.gpu.select import Choice
from workloads.ops import GroupedGemm
from workloads.registry import register

PS_PER_S = 10**12


@register("grouped_gemm", "gpu", "auto")
def choose(op: GroupedGemm, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """A tile by vLLM's rules for as many tokens, or a configuration as it prints."""
    if spec.cp_async is None:
        raise InputError(f"grouped_gemm: {spec.name} has no cp.async, by which Triton copies; a100-sxm4-80gb has")
    config = grouped_config(op, schedule)
    if schedule in ("auto", GroupedConfig.schedule):
        config = layer.multiplied(spec, op.chosen_dtype, (op.k, op.n), config)
    if op.align % config.block_m:
        raise InputError(
            f"grouped_gemm align={op.align}: blocks of {config.block_m} rows must divide it; nearest: "
            f"align={-(-op.align // config.block_m) * config.block_m}"
        )
    return Choice(config, [(config, estimate_ps(op, spec))])


def estimate_ps(op: GroupedGemm, spec: GpuSpec) -> int:
    """Rough time: what is read once from DRAM, what is multiplied at half of the peak."""
    f = figures(spec)
    moved = sum(operand.size_bytes for operand in (*op.operands, *op.results))
    multiplied = 4 * op.macs * PS_PER_S // max(int(spec.peak_flops(op.chosen_dtype)), 1)
    return f.fixed_ps + max(transfer(moved, f.dram_rate) * PS_PER_S // f.clock_hz, multiplied)


@register("grouped_gemm", "gpu", "grouped")
def build(op: GroupedGemm, spec: GpuSpec, config: GroupedConfig) -> Program:
    """The program: one kernel."""
    size, rows = config.block_m, len(op.group_of)
    count = rows // size
    given = {operand.name: operand for operand in op.operands}
    x, y = (
        lanes.tensor(operand, role, (count, size, columns))
        for operand, role, columns in ((given["x"], "input", op.k), (op.results[0], "output", op.n))
    )
    groups, w = lanes.tensor(given["group_of"]), lanes.tensor(given["w"])
    of_blocks = GlobalTensor("group_of_block", (count, size), "int32", (size, 1), "scratch", alias=groups.name)
    flat = np.arange(rows).reshape(count, size)
    blocks = Blocks(op, size, op.group_of[::size], flat, count, sorted=False)
    kernels = [
        layer.product(GroupedProduct("grouped", blocks, SortedRows(None, of_blocks, None), x, w, y, part), spec, config)
        for part in layer.parts(blocks, config, op.n, op.k)
    ]
    return Program(str(op), (x, groups, w, of_blocks, y), tuple(kernels), str(config), {"config": config})
