"""Which figures of a GPU took part in a run: an override of another one moved nothing, and the report says so.

A figure takes part with the unit that reads it, and a unit with the ops that it executes; rows of the instruction table
are looked up by op. What every run reads is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from arch.gpu import GpuSpec
from sim.app.families.gpu.conditions import Conditions
from sim.app.families.gpu.steps import Work
from sim.gpu.engine.own_loop import OwnLoopKernel
from sim.gpu.language import Kernel, Op, walk
from sim.gpu.language.ops import CP_ASYNC, Action, OpSpec, Unit, op_spec
from sim.gpu.lower.instructions import instruction, mixed_instruction
from sim.link.nccl import path_between

_THROUGH_LSU = frozenset((Unit.SHARED, Unit.GLOBAL))
"""Units that are reached through the address unit of a sub-core."""


@dataclass(frozen=True)
class Took:
    """What took part in a run.

    opcodes: of the ops, those of the language that stand for instructions of compiled kernels included; written: of the
    language's alone, whose lowering says what they take of the register file. rows: names of
    the instruction rows that these took. formats: of products on tensor cores. data, scheduler: their words.
    """

    opcodes: frozenset[str]
    written: frozenset[str]
    rows: frozenset[str]
    formats: frozenset[str]
    clusters: bool
    descriptors: bool
    copies: bool
    collectives: bool
    over_pcie: bool
    host: bool
    regulated: bool
    data: str
    scheduler: str

    @cached_property
    def specs(self) -> tuple[OpSpec, ...]:
        """The ops by their entries of the language's table."""
        return tuple(map(op_spec, self.opcodes))

    @cached_property
    def units(self) -> frozenset[Unit]:
        """Units that executed an op."""
        return frozenset(spec.unit for spec in self.specs)

    def reads(self, path: str) -> bool:
        """Whether the run read a figure, by the path that people type."""
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
    "tcgen05": lambda took: Unit.TCGEN05 in took.units,
    "launch.descriptor_fetch": lambda took: took.descriptors,
    "cp_async": lambda took: any(spec.group is CP_ASYNC for spec in took.specs),
    "dsmem.max_cluster": lambda _: True,  # choosers of kernels ask for it
    "dsmem.max_portable_cluster": lambda _: True,
    "dsmem.read": lambda took: took.clusters and "dsmem_ld" in took.opcodes,
    "dsmem.write": lambda took: took.clusters and "dsmem_st" in took.opcodes,
    "dsmem": lambda took: took.clusters,
    "sync.barrier": lambda took: "bar_sync" in took.opcodes,
    "sync.barrier_per_warp": lambda took: "bar_sync" in took.opcodes,
    "sync.cluster_sync": lambda took: took.clusters,
    "sync.mbarrier_arrive": lambda took: any(spec.barrier for spec in took.specs),
    "sync.mbarrier_wait": lambda took: any(spec.barrier for spec in took.specs),
    "sync": lambda took: Unit.BARRIERS in took.units,
    "sm.wgmma_in_flight": lambda took: Unit.TENSOR in took.units,
    "sm.register_conflict": lambda took: "mma" in took.written,
    "sm.beside_wgmma_fma": lambda took: "wgmma" in took.written,
    "sm.beside_wgmma_alu": lambda took: "wgmma" in took.written,
    "sm.beside_wgmma_xu": lambda took: "wgmma" in took.written,
    "sm.address_interval": lambda took: bool(_THROUGH_LSU & took.units) or "shfl" in took.opcodes,
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
    "launch.replay_ready": lambda took: took.host,
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
    programs = [step.program for step in work.steps if step.program]
    kernels = [kernel for program in programs for kernel in program.kernels]
    ops = [op for kernel in kernels for op in _ops(kernel)]
    own = [
        (kernel, program.addresses())
        for program in programs
        for kernel in program.kernels
        if isinstance(kernel, OwnLoopKernel)
    ]
    written = frozenset(op.opcode for op in ops)
    return Took(
        opcodes=written | {opcode for kernel, _ in own for opcode in kernel.opcodes},
        written=written,
        rows=frozenset((*_rows(ops, spec), *(row for kernel, at in own for row in kernel.rows(at, spec)))),
        formats=frozenset(_formats(work, spec)),
        clusters=any(kernel.cluster_size > 1 for kernel in kernels),
        descriptors=any(kernel.descriptors for kernel in kernels),
        copies=any(step.copy for step in work.steps),
        collectives=any(step.shared for step in work.steps),
        over_pcie=any(step.shared and not path_between(spec, step.shared.devices).nvlink for step in work.steps),
        host=scope != "kernel",
        regulated=conditions.clock != "locked",
        data=conditions.data,
        scheduler=spec.sm.scheduler,
    )


def _ops(kernel: Kernel) -> Iterator[Op]:
    """The ops of a kernel of the tile language, the loads between their instructions included."""
    for role in kernel.roles:
        for op in walk(role.body):
            yield op
            yield from op.loads


def _formats(work: Work, spec: GpuSpec) -> Iterator[str]:
    """Formats whose energy on tensor cores counts."""
    for step in work.steps:
        kernels = [kernel for kernel in step.kernels if kernel]
        own = (opcode for kernel in kernels if isinstance(kernel, OwnLoopKernel) for opcode in kernel.opcodes)
        opcodes = (*own, *(op.opcode for kernel in kernels for op in _ops(kernel)))
        if any(op_spec(opcode).accumulates for opcode in opcodes):
            yield spec.power.energy.tensor.figure_of(str(step.op.dtype))


def _rows(ops: list[Op], spec: GpuSpec) -> Iterator[str]:
    for op in ops:
        if op.spec.row or (op.spec.unit is Unit.ISSUE and op.spec.action is Action.OPERATE):
            yield instruction(spec, op).name
        for name, _ in op.mix:
            yield mixed_instruction(spec, name).name
