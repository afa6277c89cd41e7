"""Writes programs of a TPU: areas of its memories, tiles of weights, and the loops that all schedules share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.encoding import decoded, encoded
from arch.errors import InputError
from arch.tpu import TpuSpec
from arch.units import BYTES
from sim.tpu.program import (
    Activate,
    HostWork,
    Instruction,
    MatrixMultiply,
    ReadHostMemory,
    ReadMemory,
    ReadWeights,
    Sync,
    WriteHostMemory,
    WriteMemory,
    carriers,
    fetcher,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Weights:
    """A matrix [depth, columns] of weight memory, cut into tiles: along the depth first, planes of 16-bit integers (the
    unsigned lower half, then the upper) outside that, columns outermost. element_bytes: of one weight of a tile."""

    address: int
    depth: int
    columns: int
    planes: int
    rows: int
    width: int
    element_bytes: int = 1

    @property
    def deep(self) -> int:
        """Tiles along the depth."""
        return -(-self.depth // self.rows)

    @property
    def wide(self) -> int:
        """Tiles along the columns."""
        return -(-self.columns // self.width)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tiles, padding included."""
        return self.deep * self.wide * self.planes * self.rows * self.width * self.element_bytes

    def tile(self, n: int, number: int = 0) -> int:
        """Address of a tile of a column of tiles."""
        return self.address + (n * self.deep * self.planes + number) * self.rows * self.width * self.element_bytes

    def columns_of(self, n: int) -> int:
        """Columns with weights of a column of tiles."""
        return min(self.width, self.columns - n * self.width)

    def image(self, matrix: Array) -> NDArray[np.uint8]:
        """Bytes of the tiles of a matrix [depth, columns]."""
        padded = np.zeros((self.deep * self.rows, self.wide * self.width), dtype=np.asarray(matrix).dtype)
        padded[: self.depth, : self.columns] = matrix
        planes = [padded] if self.planes == 1 else [padded & 0xFF, padded >> 8]
        tiles = np.stack(planes).reshape(self.planes, self.deep, self.rows, self.wide, self.width)
        ordered = np.ascontiguousarray(tiles.transpose(3, 0, 1, 2, 4))
        return encoded(ordered, "bf16") if self.element_bytes == 2 else ordered.astype(np.uint8).ravel()


def alignment(spec: TpuSpec) -> int:
    """A whole number of rows of the array and of results."""
    return math.lcm(spec.array.rows, spec.array.columns) if spec.array.rows < 1 << 12 else 1


@dataclass
class Emitter:
    """Instructions so far, and what has been taken of each memory."""

    spec: TpuSpec
    what: str
    instructions: list[Instruction] = field(default_factory=list)
    host_work: dict[str, HostWork] = field(default_factory=dict)
    host_bytes: int = 0
    weight_bytes: int = 0
    ub_bytes: int = 0
    acc_next: list[int] = field(default_factory=list)

    @property
    def align(self) -> int:
        """Areas start at multiples of it."""
        return alignment(self.spec)

    def add(self, *instructions: Instruction) -> None:
        """Adds instructions."""
        self.instructions.extend(instructions)

    def sync(self, waiter: str, *after: str) -> None:
        """`waiter` waits for what the program has given the others so far."""
        self.add(*(Sync(waiter, unit) for unit in after if unit != waiter))

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the arrays' units."""
        return tuple(f"matrix{i}" for i in range(self.spec.array.count))

    @property
    def fetchers(self) -> tuple[str, ...]:
        """Names of the units that fetch weights."""
        return tuple(fetcher(i) for i in range(self.spec.array.count))

    @property
    def inbound(self) -> str:
        """Name of the unit that fills the unified buffer."""
        return carriers(self.spec)[0]

    @property
    def outbound(self) -> str:
        """Name of the unit that takes results from it."""
        return carriers(self.spec)[1]

    def read(self, *fields: int) -> None:
        """From the memory behind the unified buffer, fields as of ReadHostMemory."""
        self.add((ReadHostMemory if self.spec.unified_buffer.behind == "host" else ReadMemory)(*fields))

    def write(self, *fields: int) -> None:
        """To the memory behind the unified buffer, fields as of WriteHostMemory."""
        self.add((WriteHostMemory if self.spec.unified_buffer.behind == "host" else WriteMemory)(*fields))

    def host(self, size: int) -> int:
        """Address of `size` bytes of host memory."""
        self.host_bytes += size
        return self.host_bytes - size

    def ub(self, size: int) -> int:
        """Address of `size` bytes of the unified buffer; InputError if it is full."""
        address = -(-self.ub_bytes // self.align) * self.align
        self.ub_bytes = address + size
        limit = self.spec.unified_buffer.size_bytes
        if self.ub_bytes > limit:
            raise InputError(
                f"{self.what}: takes {BYTES.format(self.ub_bytes)} of the unified buffer, {self.spec.name} has "
                f"unified_buffer.size = {BYTES.format(limit)}; a smaller problem or a larger buffer fits"
            )
        return address

    def weights(self, depth: int, columns: int, planes: int = 1) -> Weights:
        """Tiles for a matrix in weight memory; InputError if it is full."""
        array = self.spec.array
        made = Weights(
            self.weight_bytes, depth, columns, planes, array.rows, array.columns, self.spec.weight_bytes
        )  # fmt: skip
        self.weight_bytes += made.size_bytes
        if self.weight_bytes > self.spec.dram.size_bytes:
            raise InputError(
                f"{self.what}: weights take {BYTES.format(self.weight_bytes)} in whole tiles, {self.spec.name} has "
                f"dram.size = {BYTES.format(self.spec.dram.size_bytes)}; a smaller problem or a larger memory fits"
            )
        return made

    def accumulators(self, array: int, rows: int, limit: int) -> int:
        """First row of the next `rows` accumulators of an array, round and round."""
        if not self.acc_next:
            self.acc_next = [0] * self.spec.array.count
        if self.acc_next[array] + rows > limit:
            self.acc_next[array] = 0
        first = self.acc_next[array]
        self.acc_next[array] = first + rows
        return first

    def column(
        self,
        weights: Weights,
        n: int,
        multiply: Callable[[int, int], MatrixMultiply],
        acc: int,
        array: int,
        before: Callable[[int], None] | None = None,
        grain: int = 1,
    ) -> None:
        """One column of tiles: reads the tiles and multiplies.

        multiply: `(step, repeat) -> instruction` for `repeat` tiles from `step` on. before: called ahead of each
        `grain` tiles, where their activations must be waited for.
        """
        self.add(ReadWeights(weights.tile(n), weights.deep * weights.planes, array))
        for plane in range(weights.planes):
            waits = before if plane == 0 else None
            some = grain if waits else weights.deep
            for step in range(0, weights.deep, some):
                if waits:
                    waits(step)
                self.product(weights, n, plane, step, multiply(step, min(some, weights.deep - step)), acc, array)

    def tile(
        self, weights: Weights, n: int, plane: int, step: int, multiply: Callable[[int, int], MatrixMultiply], acc: int,
        array: int,
    ) -> None:  # fmt: skip
        """One tile of a column alone; as `column`."""
        self.add(ReadWeights(weights.tile(n, plane * weights.deep + step), 1, array))
        self.product(weights, n, plane, step, multiply(step, 1), acc, array)

    def product(
        self, weights: Weights, n: int, plane: int, step: int, multiply: MatrixMultiply, acc: int, array: int
    ) -> None:
        """A multiplication by tiles of a column from `step` on; accumulators, array and flags are filled in here."""
        self.add(
            replace(
                multiply, acc=acc, array=array, columns=weights.columns_of(n), accumulate=int(plane > 0 or step > 0),
                shift=8 * plane, unsigned=int(plane == 0 and weights.planes == 2),
            )
        )  # fmt: skip

    def activate(
        self, acc: int, rows: int, columns: int, ub: int, pitch: int, bits: int, array: int, *,
        function: str = "identity", shift: int = 0, first: int = 0,
    ) -> None:  # fmt: skip
        """Accumulators to the unified buffer."""
        self.add(Activate(acc, rows, columns, ub, pitch, function, bits, shift, array, first))


def spread(spec: TpuSpec, rows: int, wide: int) -> list[tuple[int, int]]:
    """Parts (first row, rows) of a block whose product has `wide` columns of tiles: as many as give each array a column
    of its own, each with as many rows as the array at least, so that shifting weights in does not take longer."""
    parts = max(1, min(spec.array.count // wide, rows // spec.array.rows))
    size = -(-rows // parts)
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]


@dataclass
class Outbox:
    """Results on their way to the host: a ring of slots in the unified buffer, filled by the activation unit. A slot
    leaves one column of tiles late, so that it is free again when its turn comes."""

    e: Emitter
    rows: int
    bits: int
    slots: list[int] = field(default_factory=list)
    pending: list[tuple[int, ...]] = field(default_factory=list)
    used: int = 0

    def __post_init__(self) -> None:
        """Takes two slots an array."""
        array = self.e.spec.array
        self.slots = [self.e.ub(self.rows * self.pitch) for _ in range(2 * array.count)]

    @property
    def pitch(self) -> int:
        """Bytes from one row of a slot to the next."""
        return self.e.spec.array.columns * self.bits // 8

    def send(self, acc: int, rows: int, columns: int, array: int, host: int, host_pitch: int, shift: int = 0) -> None:
        """Accumulators to `host`, through a slot."""
        self.e.sync("activation", self.e.outbound)
        self.flush()
        slot = self.slots[self.used % len(self.slots)]
        self.used += 1
        self.e.activate(acc, rows, columns, slot, self.pitch, self.bits, array, shift=shift)
        self.pending.append((slot, host, rows, columns * self.bits // 8, self.pitch, host_pitch))

    def flush(self) -> None:
        """Sends what the last column left."""
        if self.pending:
            self.e.sync(self.e.outbound, "activation")
            self.e.write(*self.pending.pop())


BITS = {"int8": 8, "int16": 16, "int32": 32}
"""Widths of the integer formats that a machine knows."""

FLOAT_BITS = {"bf16": 16, "fp32": 32}
"""Widths of results of floating-point arrays."""


def formats(op: object, spec: TpuSpec, dtype: str, out: str) -> tuple[int, int]:
    """Bits of operands and of results; InputError for formats that the machine does not have."""
    if spec.floats:
        if dtype != "bf16":
            raise InputError(f"{op}: {spec.name} multiplies bf16, not {dtype}")
        if out not in FLOAT_BITS:
            raise InputError(f"{op}: {spec.name} writes bf16 and fp32, not out={out}")
        return 16, FLOAT_BITS[out]
    if dtype not in ("int8", "int16"):
        raise InputError(f"{op}: {spec.name} multiplies int8 and int16, not {dtype}")
    if out not in BITS:
        raise InputError(f"{op}: {spec.name} writes int8, int16 and int32, not out={out}")
    return BITS[dtype], BITS[out]


def planes_of(spec: TpuSpec, bits: int) -> int:
    """Tiles that hold the weights of `bits` bits of one place in the array."""
    return 1 if spec.floats else bits // 8


def numbers(spec: TpuSpec, operand: NDArray[Any]) -> NDArray[Any]:
    """An operand as the machine's kind of number: float64, or int64."""
    return np.asarray(operand).astype(np.float64 if spec.floats else np.int64)


def store(memory: NDArray[np.uint8], address: int, values: NDArray[Any], name: str) -> None:
    """Writes an array to a memory, in the format called `name`."""
    raw = encoded(values, name)
    memory[address : address + raw.size] = raw


def store_bytes(memory: NDArray[np.uint8], address: int, raw: NDArray[np.uint8]) -> None:
    """Writes bytes to a memory."""
    memory[address : address + raw.size] = raw


def load(memory: NDArray[np.uint8], address: int, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Reads an array from a memory, in the format called `name`."""
    size = int(np.prod(shape)) * DTYPE_BYTES[name]
    return decoded(memory[address : address + size].copy(), name).reshape(shape)
