"""Which figures of a GPU took part in a run: an override of another one moved nothing, and the report says so.

A figure takes part with the unit that reads it, and a unit with the ops that it executes; rows of the instruction table
are looked up by op. What every run reads is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from arch.gpu import GpuSpec
from sim.app.families.gpu.conditions import Conditions
from sim.app.families.gpu.steps import Work
from sim.gpu.engine.own_loop import OwnLoopKernel
from sim.gpu.language import Op, walk
from sim.gpu.language.ops import CP_ASYNC, Action, Unit
from sim.gpu.lower.instructions import instruction, mixed_instruction
from sim.link.nccl import path_between


@dataclass(frozen=True)
class Took:
    """What took part in a run. units: that executed an op. rows: names of instruction rows that ops took; opcodes: of
    the ops. formats: of products on tensor cores. data, scheduler: their words. compiled: whether a kernel is."""

    units: frozenset[Unit]
    rows: frozenset[str]
    formats: frozenset[str]
    cp_async: bool
    clusters: bool
    opcodes: frozenset[str]
    mbarriers: bool
    copies: bool
    collectives: bool
    over_pcie: bool
    host: bool
    regulated: bool
    data: str
    scheduler: str
    compiled: bool = False

    def reads(self, path: str) -> bool:
        """Whether the run read a figure, by the path that people type."""
        if self.compiled:  # whose opcodes are not ops of the language
            return True
        if path.startswith("instructions."):
            return path.removeprefix("instructions.").rpartition(".")[0] in self.rows
        if path.startswith("power.energy.tensor."):
            return path.rpartition(".")[2] in self.formats
        if path.startswith("power.data."):
            return path.rpartition(".")[2] == self.data
        for prefix, took_part in _CONDITIONS.items():
            if path == prefix or path.startswith(f"{prefix}."):
                return took_part(self)
        return True


_CONDITIONS: Mapping[str, Callable[[Took], bool]] = {
    "tma": lambda took: Unit.TMA in took.units,
    "launch.descriptor_fetch": lambda took: Unit.TMA in took.units,
    "cp_async": lambda took: took.cp_async,
    "dsmem.max_cluster": lambda _: True,  # choosers of kernels ask for it
    "dsmem.max_portable_cluster": lambda _: True,
    "dsmem.read": lambda took: "dsmem_ld" in took.opcodes,
    "dsmem.write": lambda took: "dsmem_st" in took.opcodes,
    "dsmem": lambda took: took.clusters,
    "sync.cluster_sync": lambda took: took.clusters,
    "sync.mbarrier_arrive": lambda took: took.mbarriers,
    "sync.mbarrier_wait": lambda took: took.mbarriers,
    "sync": lambda took: Unit.BARRIERS in took.units,
    "sm.wgmma_in_flight": lambda took: Unit.TENSOR in took.units,
    "sm.beside_wgmma": lambda took: Unit.TENSOR in took.units,
    "sm.active_warps": lambda took: took.scheduler == "two_level",
    "sm.round_robin_run": lambda took: took.scheduler not in ("gto", "oldest"),
    "link": lambda took: took.collectives,
    "node": lambda took: took.collectives,
    "collectives": lambda took: took.collectives,
    "pcie": lambda took: took.copies or took.over_pcie,
    "host": lambda took: took.host,
    "launch.api": lambda took: took.host,
    "launch.gap_stream": lambda took: took.host,
    "launch.gap_graph": lambda took: took.host,
    "launch.release_stream": lambda took: took.host,
    "launch.release_graph": lambda took: took.host,
    "launch.gap_replay": lambda took: took.host,
    "launch.event": lambda took: took.host,
    "clock.step": lambda took: took.regulated,
    "clock.lowest": lambda took: took.regulated,
    "clock.onset": lambda took: took.regulated,
    "clock.recovery": lambda took: took.regulated,
    "clock.undershoot": lambda took: took.regulated,
    "clock.under_tensor": lambda took: took.regulated,
    "power.limit": lambda took: took.regulated,
    "power.burst": lambda took: took.regulated,
}
"""Figures, by the beginning of their path, and when they take part; the first that fits holds."""


def took_part(work: Work, spec: GpuSpec, conditions: Conditions, scope: str) -> Took:
    """What takes part in some steps. scope: of the time that is asked for."""
    kernels = [kernel for step in work.steps if step.program for kernel in step.program.kernels]
    ops = [op for kernel in kernels for role in kernel.roles for op in walk(role.body)]
    ops += [load for op in ops for load in op.loads]
    return Took(
        units=frozenset(op.spec.unit for op in ops),
        rows=frozenset(_rows(ops, spec)),
        formats=frozenset(_formats(work, spec)),
        cp_async=any(op.spec.group is CP_ASYNC for op in ops),
        opcodes=frozenset(op.opcode for op in ops),
        clusters=any(kernel.cluster_size > 1 for kernel in kernels),
        mbarriers=any(kernel.barriers for kernel in kernels),
        copies=any(step.copy for step in work.steps),
        collectives=any(step.shared for step in work.steps),
        over_pcie=any(step.shared and not path_between(spec, step.shared.devices).nvlink for step in work.steps),
        host=scope != "kernel",
        regulated=conditions.clock != "locked",
        data=conditions.data,
        scheduler=spec.sm.scheduler,
        compiled=any(isinstance(kernel, OwnLoopKernel) for kernel in kernels),
    )


def _formats(work: Work, spec: GpuSpec) -> Iterator[str]:
    """Formats whose energy on tensor cores counts; one without a figure of its own takes that of fp16."""
    for step in work.steps:
        bodies = [role.body for kernel in step.kernels if kernel for role in kernel.roles]
        if any(op.spec.accumulates for body in bodies for op in walk(body)):
            stated = getattr(spec.power.energy.tensor, f"{step.op.dtype}_fj_per_flop", None) is not None
            yield str(step.op.dtype) if stated else "fp16"


def _rows(ops: Sequence[Op], spec: GpuSpec) -> Iterator[str]:
    for op in ops:
        if op.spec.row or (op.spec.unit is Unit.ISSUE and op.spec.action is Action.OPERATE):
            yield instruction(spec, op).name
        for name, _ in op.mix:
            yield mixed_instruction(spec, name).name
