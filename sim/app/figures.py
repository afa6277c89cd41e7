"""Which unit reads which figure of a machine: the units of each family, and what they declare.

A unit is a module with `FIGURES`, the paths of the figures that it reads (`instructions`: the table). What lies above
the engines, reports and checks of requests, reads figures too; these are declared here. Tests hold the declarations
against what is really read (`arch.reads`) and against every preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from arch.load import documents, leaves, spec_class
from arch.preset_file import IDENTITY

APP = "sim.app"
"""The unit of reports and of checks of requests, by the prefix of its modules."""

KERNELS = "workloads"
"""The unit of limits that builders of programs keep to."""

LOADER = "arch"
"""The unit of figures that stand for others, which the loader fills in."""

UNITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpu": (
            "sim.gpu.engine.api",
            "sim.gpu.engine.barriers",
            "sim.gpu.engine.chip",
            "sim.gpu.engine.cp_async",
            "sim.gpu.engine.cta",
            "sim.gpu.engine.fetch",
            "sim.gpu.engine.global_memory",
            "sim.gpu.engine.l1",
            "sim.gpu.engine.policies",
            "sim.gpu.engine.port",
            "sim.gpu.engine.semaphores",
            "sim.gpu.engine.shared",
            "sim.gpu.engine.tensor",
            "sim.gpu.engine.tma",
            "sim.gpu.engine.tree",
            "sim.gpu.lower.instructions",
            "sim.gpu.lower.kernel",
            "sim.gpu.lower.occupancy",
            "sim.gpu.power.energy",
            "sim.gpu.power.regulator",
            "sim.memory.model",
            "sim.memory.dram",
            "sim.host.model",
            "sim.host.scopes",
            "sim.link.collective",
            "sim.link.custom",
            "sim.link.nccl",
        ),
        "tpu": (
            "sim.tpu.data",
            "sim.tpu.dram",
            "sim.tpu.floats",
            "sim.tpu.machine",
            "sim.tpu.model",
            "sim.tpu.program",
            "sim.tpu.verify",
            "sim.memory.dram",
        ),
        "rdu": (
            "sim.rdu.balance",
            "sim.rdu.banks",
            "sim.rdu.cost",
            "sim.rdu.cut",
            "sim.rdu.grain",
            "sim.rdu.host",
            "sim.rdu.lower",
            "sim.rdu.network",
            "sim.rdu.place",
            "sim.memory.dram",
            "sim.link.collective",
        ),
        "gemmini": ("sim.gemmini.machine", "sim.memory.dram"),
    }
)
"""Modules that are units, by family."""

_MEMORIES: Mapping[str, tuple[str, ...]] = MappingProxyType({"rdu": ("hbm", "ddr")})
"""What a family calls its external memories, where that is not `dram`."""

_ABOVE: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "gpu": {
            APP: (
                "clock.boost",
                "clock.tensor",
                "compute_capability",
                "dram.bandwidth",
                "dram.latency",
                "dram.size",
                "gpc.count",
                "gpc.single_tpcs",
                "sm.per_tpc",
                "instructions",
                "l1.replacement",
                "l2.bandwidth",
                "l2.clock",
                "l2.coalescer",
                "l2.partitions",
                "l2.replacement",
                "l2.size",
                "l2.slices",
                "launch.drain",
                "launch.kernel",
                "pcie.bandwidth",
                "power.energy.tensor.bf16",
                "power.energy.tensor.fp16",
                "power.energy.tensor.fp64",
                "power.energy.tensor.fp8",
                "power.energy.tensor.int8",
                "power.energy.tensor.tf32",
                "power.limit",
                "sm.count",
                "sm.max_warps",
                "sm.scheduler",
                "sm.sub_cores",
            ),
            KERNELS: ("dsmem.max_portable_cluster",),
            LOADER: ("dram.standard",),
        },
        "tpu": {
            APP: (
                "accumulators.rows",
                "array.columns",
                "array.count",
                "array.operands",
                "array.rows",
                "array.wide_interval",
                "clock.boost",
                "dram.bandwidth",
                "dram.size",
                "host.turnaround",
                "pcie.bandwidth",
                "power.energy.buffer",
                "power.energy.dram",
                "power.energy.mac",
                "power.energy.pcie",
                "power.limit",
                "power.static",
                "unified_buffer.bandwidth",
                "unified_buffer.size",
            ),
            KERNELS: ("host.exp_ops",),
            LOADER: ("dram.standard",),
        },
        "gemmini": {
            APP: (
                "accumulator.size",
                "array.size",
                "clock.boost",
                "dma.bus",
                "dram.bandwidth",
                "dram.size",
                "l2.size",
                "scratchpad.size",
            ),
            KERNELS: ("reservation.executes",),
            LOADER: ("dram.standard",),
        },
        "rdu": {
            LOADER: ("ddr.standard", "hbm.standard"),
            APP: (
                "clock.boost",
                "ddr.bandwidth",
                "ddr.size",
                "dies.count",
                "hbm.bandwidth",
                "hbm.size",
                "host.bandwidth",
                "host.latency",
                "launch.host",
                "launch.program_load",
                "link.bandwidth",
                "mesh.control_wires",
                "mesh.rows",
                "mesh.scalar",
                "mesh.vector",
                "pcu.count",
                "pcu.dtypes",
                "pcu.lanes",
                "pcu.macs",
                "pcu.stages",
                "pmu.bandwidth",
                "pmu.count",
                "power.energy.ddr",
                "power.energy.hbm",
                "power.energy.hop",
                "power.energy.link",
                "power.energy.mac",
                "power.energy.pmu",
                "power.energy.simd",
                "power.static",
                "tiles.bandwidth",
                "tiles.columns",
                "tiles.rows",
            ),
        },
    }
)


@cache
def declared(family: str) -> Mapping[str, frozenset[str]]:
    """What each unit of a family declares to read: paths by the name of its module."""
    found = {name: _of_family(family, import_module(name).FIGURES) for name in UNITS[family]}
    return found | {name: frozenset(paths) for name, paths in _ABOVE[family].items()}


def _of_family(family: str, paths: tuple[str, ...]) -> frozenset[str]:
    """Paths of a module that several families share, as this family calls them."""
    known = leaves(spec_class(family))
    found = []
    for path in paths:
        group, _, name = path.partition(".")
        names = [f"{memory}.{name}" for memory in _MEMORIES.get(family, ())] if group == "dram" else []
        found += [path for path in names or [path] if path in known or path == "instructions"]
    return frozenset(found)


def owners(family: str, path: str) -> tuple[str, ...]:
    """Units that read a figure, or a column of an instruction row; none of what only documents or names."""
    if path in IDENTITY or documents(spec_class(family), path) is not None:
        return ()
    name = "instructions" if path.startswith("instructions.") else path
    return tuple(unit for unit, paths in declared(family).items() if name in paths)
