"""What a product takes on the tensor core of an SM with tensor memory, by the figures of a machine: as long as its
multipliers need, or as shared memory does for its operands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES
from arch.errors import InputError

if TYPE_CHECKING:
    from arch.gpu import GpuSpec, Instruction

OP = "tcgen05_mma"
SCALED_FORMATS = tuple(BLOCK_FORMATS)
"""Operands with a scale for each 32, or 16, elements of k."""

_SHAPE = re.compile(r"m(64|128|256)n(\d+)k(\d+)")


def bits_of(dtype: str) -> int:
    """Bits of an element of an operand in memory."""
    return BLOCK_FORMATS[dtype].bits if dtype in BLOCK_FORMATS else 8 * DTYPE_BYTES[dtype]


class Product(NamedTuple):
    """One product of an SM, or of both of a pair. row: with its interval, and its latency from the issue to the end of
    a wait for it. macs: of all. operand_bytes: that each SM reads of its shared memory."""

    row: Instruction
    macs: int
    operand_bytes: int


def product(spec: GpuSpec, dtype: str, shape: str, *, pair: bool = False, first_in_shared: bool = True) -> Product:
    """The product of a shape, such as m128n256k16, of which a pair's SMs have half of the rows and of the columns each.

    Raises InputError for what the machine does not have.
    """
    unit, match = spec.tcgen05, _SHAPE.fullmatch(shape)
    if unit is None:
        raise InputError(f"{OP} needs tensor memory, which {spec.name} does not have")
    if match is None or int(match[1]) not in ((128, 256) if pair else (64, 128)):
        rows = "m128 or m256 of a pair" if pair else "m64 or m128"
        raise InputError(f"{OP} has no shape {shape}; it multiplies {rows}, such as m128n256k16")
    sms = 2 if pair else 1
    rows_each, columns, depth = int(match[1]) // sms, int(match[2]), int(match[3])
    row = spec.instruction(OP, dtype, f"m128n{columns}k{depth}")
    half = pair and rows_each == 64  # both halves of the array then have half of the columns each
    step_bytes = depth * bits_of(dtype) // 8
    first_bytes = rows_each * step_bytes if first_in_shared else 0
    operand_bytes = first_bytes + columns // sms * step_bytes
    multiplied = row.interval_cycles / (2 if half else 1)
    read = operand_bytes / spec.shared.bandwidth_bytes_per_cycle
    if first_bytes and pair and read > multiplied:
        read += unit.half_gap_cycles if half else unit.pair_gap_cycles
    latency = unit.latency_cycles + multiplied + first_bytes / spec.shared.bandwidth_bytes_per_cycle
    latency += (unit.pair_latency_cycles if pair else 0) + (unit.half_latency_cycles if half else 0)
    latency += unit.scaled_latency_cycles if dtype in SCALED_FORMATS else 0
    interval = max(multiplied, read, unit.floor_cycles)
    found = row.model_copy(update={"interval_cycles": interval, "latency_cycles": latency})
    return Product(found, sms * rows_each * columns * depth, operand_bytes)
