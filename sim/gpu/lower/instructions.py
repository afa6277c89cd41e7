"""Rows of the machine's instruction table that ops take, and what an access of shared memory costs."""

from __future__ import annotations

from typing import NamedTuple

from arch import tcgen05
from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction, Tcgen05
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import Op
from sim.gpu.language.ops import OPS, Space, Unit
from sim.gpu.lower.banks import access_waves, ldmatrix_waves

FIGURES = (
    "dsmem.latency",
    "instructions",
    "shared.bandwidth",
    "shared.banks",
    "tcgen05.copy",
    "tcgen05.copy_latency",
    "tcgen05.floor",
    "tcgen05.half_gap",
    "tcgen05.half_latency",
    "tcgen05.latency",
    "tcgen05.pair_gap",
    "tcgen05.pair_latency",
    "tcgen05.read",
    "tcgen05.read_latency",
    "tcgen05.scaled_latency",
    "tcgen05.write",
    "tcgen05.write_latency",
)
"""Figures of a preset that this module reads."""


_SECTOR_BYTES = 32  # what the SM-to-SM network moves at least


def instruction(spec: GpuSpec, op: Op) -> Instruction:
    """The row of one op: by its format and shape, an access of memory by its width.

    Raises InputError, with the nearest row, for an instruction that the machine does not have.
    """
    if op.opcode not in OPS:
        return _find(spec, op.opcode, op.dtype, op.shape)
    entry = op.spec
    opcode = entry.row
    if entry.row_of_registers and op.srcs[0].buffer.space is Space.REGISTERS:
        opcode = entry.row_of_registers
    if entry.shape:
        return _find(spec, opcode, entry.dtype, entry.shape)
    if entry.unit in (Unit.SHARED, Unit.GLOBAL):
        return _find(spec, opcode, f"b{_bits(op)}")
    if entry.unit is Unit.TCGEN05:
        return tensor_product(spec, op).row
    return _find(spec, opcode, op.dtype, op.shape)


def mixed_instruction(spec: GpuSpec, name: str) -> Instruction:
    """The row of an instruction of a mix, `opcode` or `opcode.dtype`."""
    opcode, _, dtype = name.partition(".")
    return _find(spec, opcode, dtype)


def _find(spec: GpuSpec, opcode: str, dtype: str = "", shape: str = "") -> Instruction:
    """A row; without a dtype the first one of that opcode."""
    if not (dtype or shape):
        for row in spec.instructions:
            if row.op == opcode:
                return row
    return spec.instruction(opcode, dtype, shape)


def _bits(op: Op) -> int:
    """Width of a thread's access."""
    return 8 * max(4, op.vector_bytes)


def tensor_product(spec: GpuSpec, op: Op) -> tcgen05.Product:
    """What a product of an op takes."""
    shared = op.srcs[0].buffer.space is not Space.TENSOR
    return tcgen05.product(spec, op.dtype, op.shape, pair=op.pair, first_in_shared=shared)


def _tensor_memory(spec: GpuSpec, op: Op) -> Tcgen05:
    if spec.tcgen05 is None:
        raise InputError(f"{op.opcode} needs tensor memory, which {spec.name} does not have")
    return spec.tcgen05


class TensorAccess(NamedTuple):
    """One instruction's access of tensor memory: cycles of its port, and from their end to that of a wait for it."""

    port_cycles: float
    latency_cycles: int


def tensor_access(spec: GpuSpec, op: Op) -> TensorAccess:
    """What a load, store or copy of tensor memory takes; a warp has a quarter of the ports of loads and stores."""
    unit = _tensor_memory(spec, op)
    if op.opcode == "tcgen05_cp":
        port_cycles = op.srcs[0].size_bytes / (op.count * unit.copy_bytes_per_cycle)
        return TensorAccess(port_cycles, unit.copy_latency_cycles)
    loads = op.opcode == "tcgen05_ld"
    view = op.srcs[0] if loads else op.dst
    if view is None:
        raise InputError(f"{op.opcode} needs an operand in tensor memory")
    rate = unit.read_bytes_per_cycle if loads else unit.write_bytes_per_cycle
    latency = unit.read_latency_cycles if loads else unit.write_latency_cycles
    return TensorAccess(4 * view.size_bytes / (op.count * rate), latency)


class SharedAccess(NamedTuple):
    """One instruction's access of shared memory. waves: wavefronts, with the conflicts of the tile's layout.

    least_waves: without conflicts. wave_bytes: what one of them moves at most. thread_bytes: what each thread asks for.
    network_bytes: what comes from or goes to another SM of the cluster, in sectors.
    """

    row: Instruction
    waves: int
    least_waves: int
    wave_bytes: int
    thread_bytes: int
    network_bytes: int = 0

    @property
    def registers(self) -> int:
        """Registers of a thread that it fills or empties."""
        return max(1, self.thread_bytes // 4)


def shared_access(spec: GpuSpec, op: Op) -> SharedAccess:
    """What one instruction of an op on shared memory takes of it."""
    view = op.dst if op.spec.stores_shared else op.srcs[0] if op.srcs else None
    if view is None:
        raise InputError(f"{op.opcode} needs an operand in shared memory")
    row, banks = instruction(spec, op), spec.shared.banks
    if op.spec.shape:  # 8x8 matrices, each a row of 16 B by eight threads
        matrices = int(op.spec.shape.removeprefix("x"))
        waves = ldmatrix_waves(view, banks, matrices)
        return SharedAccess(row, waves, matrices * max(1, 32 // banks), min(4 * banks, 128), 16)
    remote = Space.CLUSTER in (op.spec.dst if op.spec.stores_shared else op.spec.srcs[0])
    if remote:  # latency and rate are the network's
        if spec.dsmem is None:
            raise InputError(f"{op.opcode} needs clusters, which {spec.name} does not have")
        row = row.model_copy(update={"latency_cycles": spec.dsmem.latency_cycles})
    waves = access_waves(view, op.vector_bytes, banks, op.sharers)
    warp_bytes = WARP_SIZE * _bits(op) // 8
    network_bytes = 0
    if remote and op.multicast is not None:
        network_bytes = -(-min(warp_bytes, view.size_bytes) // _SECTOR_BYTES) * _SECTOR_BYTES
    least = -(-warp_bytes // (4 * banks))
    if op.any_order:
        waves = least
    return SharedAccess(row, waves, least, min(4 * banks, warp_bytes), op.vector_bytes, network_bytes)
