"""Buffers of the tile language, and views of them: tensors in device memory, tiles in shared memory and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.language.expressions import ZERO, Expr, IntLike, as_expr
from sim.gpu.language.ops import Space


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor in device memory.

    shape: elements per dimension. strides: elements per step of each dimension; exactly one of the last two is 1 (the
    contiguous one). role: "input", "output" or "scratch". align_bytes: alignment of its first element. alias: name of
    the tensor of which this one is another shape, dense as that one is and in the order in which that one lies.
    """

    space: ClassVar[Space] = Space.GLOBAL

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    role: str = "input"
    align_bytes: int = 512
    alias: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes from the first to the last element."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * DTYPE_BYTES[self.dtype]

    def __getitem__(self, index: Any) -> View:
        return _view(self, index)


@dataclass(frozen=True)
class SharedTile:
    """A tile in shared memory: `stages` copies of `shape`.

    swizzle_bytes: 0, 32, 64 or 128, the XOR pattern of TMA and ldmatrix; pad_bytes: added to each row instead. The
    contiguous dimension is the last one.
    """

    space: ClassVar[Space] = Space.SHARED

    name: str
    shape: tuple[int, ...]
    dtype: str
    stages: int = 1
    swizzle_bytes: int = 0
    pad_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next, padding included."""
        return self.shape[-1] * DTYPE_BYTES[self.dtype] + self.pad_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage."""
        rows = 1
        for n in self.shape[:-1]:
            rows *= n
        return rows * self.row_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all stages."""
        return self.stages * self.stage_bytes

    def stage(self, stage: IntLike = 0) -> View:
        """The whole tile of one stage."""
        return View(self, as_expr(stage), tuple(ZERO for _ in self.shape), self.shape)

    def __getitem__(self, index: tuple[Any, ...]) -> View:
        """`tile[stage, r0:rows, c0:cols]`: the stage first, then `offset:extent` (or a full `:`) per dimension."""
        return _view(self, index[1:], as_expr(index[0]))


@dataclass(frozen=True)
class RegisterTile:
    """A tile in registers, private to each warp of its role: shape and dtype as one warp sees it."""

    space: ClassVar[Space] = Space.REGISTERS

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __getitem__(self, index: Any) -> View:
        return _view(self, index)

    @property
    def whole(self) -> View:
        """All of it."""
        return View(self, ZERO, tuple(ZERO for _ in self.shape), self.shape)


Buffer = GlobalTensor | SharedTile | RegisterTile


@dataclass(frozen=True)
class View:
    """A box of a buffer: offsets (expressions) and extents (integers) per dimension.

    transposed: the reader sees the last two dimensions swapped.
    """

    buffer: Buffer
    stage: Expr
    offsets: tuple[Expr, ...]
    extents: tuple[int, ...]
    transposed: bool = False

    @property
    def T(self) -> View:
        """The same box with its last two dimensions swapped."""
        return View(self.buffer, self.stage, self.offsets, self.extents, not self.transposed)

    @property
    def size_bytes(self) -> int:
        """Bytes of the box, not clipped."""
        n = DTYPE_BYTES[self.buffer.dtype]
        for e in self.extents:
            n *= e
        return n

    def __str__(self) -> str:
        box = ", ".join(f"{o}:{e}" for o, e in zip(self.offsets, self.extents, strict=True))
        stage = f"{self.stage}, " if isinstance(self.buffer, SharedTile) and self.buffer.stages > 1 else ""
        return f"{self.buffer.name}[{stage}{box}]" + (".T" if self.transposed else "")


def _view(buffer: Buffer, index: Any, stage: Expr = ZERO) -> View:
    """A view from `offset:extent` slices; a bare integer or expression means extent 1, `:` the whole dimension."""
    if not isinstance(index, tuple):
        index = (index,)
    if len(index) != len(buffer.shape):
        raise InputError(f"view of {buffer.name}: {len(index)} indices for {len(buffer.shape)} dimensions")
    offsets, extents = [], []
    for i, n in zip(index, buffer.shape, strict=True):
        if isinstance(i, slice):
            if i.step is not None:
                raise InputError(f"view of {buffer.name}: write offset:extent, a step is not supported")
            offsets.append(as_expr(0 if i.start is None else i.start))
            extents.append(n if i.stop is None else int(i.stop))
        else:
            offsets.append(as_expr(i))
            extents.append(1)
    return View(buffer, stage, tuple(offsets), tuple(extents))


@dataclass(frozen=True)
class MBarrier:
    """`stages` mbarriers in shared memory; a phase completes after `arrivals` arrivals and all expected bytes."""

    name: str
    stages: int
    arrivals: int
