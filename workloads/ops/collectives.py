"""Collectives over GPUs as benchmarks of libraries write them: what each GPU has, and what each ends with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops.base import Array, Operand, Operator, count, extent, number_format, operator, rounding, size

MOST = 2**50
"""Of elements or bytes: they are counted, and never simulated one by one."""


@dataclass(frozen=True)
class Collective(Operator):
    """Base: `gpus` devices, of whose largest buffer `elements` or `bytes` are counted; with elements, bytes are 0."""

    kind: ClassVar[str] = "communication"
    example: ClassVar[str] = "gpus=8 elements=1M"
    parts: ClassVar[bool] = True
    """Whether a buffer has a part for each GPU."""

    gpus: int = extent(help="devices that take part")
    elements: int = count(0, help="elements of a device's largest buffer", most=MOST)
    dtype: str | None = number_format("of the elements; default: the machine's")
    bytes: int = size(help="its bytes, such as 64MiB, in place of elements", most=MOST)

    def __post_init__(self) -> None:
        """Checks that there is somebody to talk to, that something is sent, and that parts are whole."""
        super().__post_init__()
        if self.gpus < 2:
            raise InputError(f"{self.word} gpus={self.gpus}: must be at least 2")
        if bool(self.elements) == bool(self.bytes):
            raise InputError(f"{self.word}: needs elements or bytes of a device's largest buffer, one of both")
        if self.bytes and self.dtype:
            self._count(self.dtype)
        if self.parts and self.elements % self.gpus:
            nearest = max(self.gpus, self.elements // self.gpus * self.gpus)
            raise InputError(
                f"{self.word} elements={self.elements}: must be a multiple of gpus={self.gpus}; nearest: {nearest}"
            )

    def _count(self, dtype: str) -> None:
        """Takes the elements that its bytes hold."""
        one = Operand("x", (1,), dtype).size_bytes
        if self.bytes % one:
            raise InputError(f"{self.word} bytes={self.bytes}: must be a multiple of {one}, the bytes of {dtype}")
        object.__setattr__(self, "elements", self.bytes // one)
        object.__setattr__(self, "bytes", 0)

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in, and with elements."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of a device's largest buffer."""
        return Operand("x", (self.elements,), self.chosen_dtype).size_bytes

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A buffer of each device."""
        return (Operand("x", (self.gpus, self.elements), self.chosen_dtype),)

    @property
    def results(self) -> tuple[Operand, ...]:
        """What each device ends with."""
        return (Operand("y", (self.gpus, self.elements), self.chosen_dtype),)

    @property
    def tolerance(self) -> float:
        """Nothing is rounded."""
        return 0.0


@operator("all_reduce")
@dataclass(frozen=True)
class AllReduceGpus(Collective):
    """Sums equally long buffers of several GPUs, as a library does; each ends with the sum."""

    parts: ClassVar[bool] = False

    @property
    def flops(self) -> int:
        """Additions on all devices together."""
        return (self.gpus - 1) * self.elements

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of all buffers, rounded once, on each device."""
        total = round_to(np.asarray(operands[0]).sum(axis=0), self.chosen_dtype)
        return (np.broadcast_to(total, (self.gpus, self.elements)),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of absolute values."""
        return (np.broadcast_to(np.abs(operands[0]).sum(axis=0), (self.gpus, self.elements)),)

    @property
    def tolerance(self) -> float:
        """One rounding to the format at each device that adds."""
        return self.gpus * rounding(self.chosen_dtype)


@operator("reduce_scatter")
@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Sums buffers of several GPUs, as a library does; each ends with its part of the sum."""

    @property
    def flops(self) -> int:
        """Additions on all devices together."""
        return (self.gpus - 1) * self.elements

    @property
    def results(self) -> tuple[Operand, ...]:
        """A part of each device."""
        return (Operand("y", (self.gpus, self.elements // self.gpus), self.chosen_dtype),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of all buffers, rounded once, a row a device."""
        total = round_to(np.asarray(operands[0]).sum(axis=0), self.chosen_dtype)
        return (np.asarray(total).reshape(self.gpus, -1),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of absolute values."""
        return (np.abs(operands[0]).sum(axis=0).reshape(self.gpus, -1),)

    @property
    def tolerance(self) -> float:
        """One rounding to the format at each device that adds."""
        return self.gpus * rounding(self.chosen_dtype)


@operator("all_gather")
@dataclass(frozen=True)
class AllGather(Collective):
    """Brings the parts of several GPUs together on each of them, as a library does."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A part of each device."""
        return (Operand("x", (self.gpus, self.elements // self.gpus), self.chosen_dtype),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """All parts, on each device."""
        return (np.broadcast_to(np.asarray(operands[0]).reshape(-1), (self.gpus, self.elements)),)


@operator("alltoall")
@dataclass(frozen=True)
class AllToAll(Collective):
    """Gives each GPU the part that every other one has for it, as a library does."""

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The parts of all, in the order of the devices."""
        parts = np.asarray(operands[0]).reshape(self.gpus, self.gpus, -1)
        return (parts.swapaxes(0, 1).reshape(self.gpus, self.elements),)
