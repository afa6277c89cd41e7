"""Buffers of the tile language, and views of them: tensors in device memory, tiles in shared memory and registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from arch import arguments
from arch.dtypes import DTYPE_BYTES, format_of
from arch.errors import InputError
from sim.gpu.language.expressions import ZERO, Expr, IntLike, as_expr
from sim.gpu.language.ops import Space

MOST_BYTES = 1 << 50
"""Of one tensor, far above any machine's memory."""

MOST_REGISTER_BYTES = 1 << 22
"""Of one register tile, far above the registers of a warp: loops may stand for more than they hold at once."""

MOST_BOX_BYTES = 1 << 28
"""Of one view."""

SWIZZLES_BYTES = (0, 32, 64, 128)
"""XOR patterns of TMA and ldmatrix."""

MOST_ARRIVALS = (1 << 20) - 1
"""Of one phase of an mbarrier, as PTX has it."""

ROLES = ("input", "output", "scratch")

LANES, COLUMN_BYTES = 128, 4
"""Of tensor memory: its lanes, and what one of them holds in a column."""


def _set(made: object, **values: Any) -> None:
    """Writes fields of a frozen dataclass in their plain form."""
    for field, value in values.items():
        object.__setattr__(made, field, value)


def _checked(made: Any, what: str, least: int) -> str:
    """Name, shape (extents from `least` on) and number format of a buffer in their plain form; what it is called."""
    where = f"{what} {arguments.name(f'{what} name', made.name)}"
    shape = arguments.wholes(f"{where}: shape", made.shape, least)
    if not shape:
        raise InputError(f"{where}: shape=(): must have at least one dimension")
    _set(made, shape=shape)
    format_of(arguments.name(f"{where}: dtype", made.dtype), f"{where}: dtype")
    return where


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

    def __post_init__(self) -> None:
        where = _checked(self, "tensor", 0)
        strides = arguments.wholes(f"{where}: strides", self.strides)
        if len(strides) != len(self.shape):
            raise InputError(f"{where}: strides={strides}: must have a stride for each dimension of {self.shape}")
        arguments.one_of(f"{where}: role", self.role, ROLES)
        align = arguments.whole(f"{where}: align_bytes", self.align_bytes, 1, 1 << 30)
        if not isinstance(self.alias, str):
            raise InputError(f"{where}: alias={arguments.shown(self.alias)}: must be the name of a tensor")
        _set(self, strides=strides, align_bytes=align)
        if self.size_bytes > MOST_BYTES:
            raise InputError(f"{where}: has {self.size_bytes} B; at most {MOST_BYTES}")

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

    def __post_init__(self) -> None:
        where = _checked(self, "shared tile", 1)
        _set(
            self,
            stages=arguments.whole(f"{where}: stages", self.stages, 1),
            swizzle_bytes=arguments.one_of(f"{where}: swizzle_bytes", self.swizzle_bytes, SWIZZLES_BYTES),
            pad_bytes=arguments.whole(f"{where}: pad_bytes", self.pad_bytes),
        )

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
        if not isinstance(index, tuple) or isinstance(index[0], slice):
            raise InputError(f"view of {self.name}: write the stage first, then offset:extent per dimension")
        return _view(self, index[1:], as_expr(index[0]))


@dataclass(frozen=True)
class RegisterTile:
    """A tile in registers, private to each warp of its role: shape and dtype as one warp sees it."""

    space: ClassVar[Space] = Space.REGISTERS

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        where = _checked(self, "register tile", 1)
        if self.whole.size_bytes > MOST_REGISTER_BYTES:
            raise InputError(f"{where}: has {self.whole.size_bytes} B; at most {MOST_REGISTER_BYTES}")

    def __getitem__(self, index: Any) -> View:
        return _view(self, index)

    @property
    def whole(self) -> View:
        """All of it."""
        return View(self, ZERO, tuple(ZERO for _ in self.shape), self.shape)


@dataclass(frozen=True)
class TensorTile:
    """A tile in tensor memory: `stages` copies of `shape`, a row a lane; the columns of 32 bits hold one element of
    four bytes, or several smaller ones. over: the tile whose columns it has, in turn with that one."""

    space: ClassVar[Space] = Space.TENSOR

    name: str
    shape: tuple[int, ...]
    dtype: str
    stages: int = 1
    over: TensorTile | None = None

    def __post_init__(self) -> None:
        where = _checked(self, "tensor tile", 1)
        _set(self, stages=arguments.whole(f"{where}: stages", self.stages, 1))
        if len(self.shape) != 2 or self.shape[0] > LANES:
            raise InputError(f"{where}: shape={self.shape}: must be rows, at most {LANES}, and columns")

        if self.over is not None and self.row_bytes * self.stages > self.over.row_bytes * self.over.stages:
            raise InputError(f"{where}: {self.shape} {self.dtype} does not fit the columns of {self.over.name}")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of one stage, whole columns."""
        return -(-self.shape[1] * DTYPE_BYTES[self.dtype] // COLUMN_BYTES) * COLUMN_BYTES

    @property
    def columns(self) -> int:
        """Columns of tensor memory of all stages; none where it has those of another tile."""
        return 0 if self.over else self.stages * self.row_bytes // COLUMN_BYTES

    def place(self, stage: int, first: int, last: int) -> tuple[TensorTile, int, int]:
        """The tile whose columns it has, and where in these, in bytes, its elements from `first` to `last` lie."""
        width, begin = DTYPE_BYTES[self.dtype], stage * self.row_bytes
        return self.over or self, begin + first * width, begin + last * width

    def stage(self, stage: IntLike = 0) -> View:
        """The whole tile of one stage."""
        return View(self, as_expr(stage), tuple(ZERO for _ in self.shape), self.shape)

    def __getitem__(self, index: tuple[Any, ...]) -> View:
        """`tile[stage, r0:rows, c0:cols]`, as of a shared tile."""
        if not isinstance(index, tuple) or isinstance(index[0], slice):
            raise InputError(f"view of {self.name}: write the stage first, then offset:extent per dimension")
        return _view(self, index[1:], as_expr(index[0]))


def allocated_columns(tiles: Sequence[TensorTile]) -> int:
    """Columns of tensor memory that tiles take as they are allocated: a power of two from 32 on; 0 without any."""
    taken = sum(tile.columns for tile in tiles)
    return max(32, 1 << (taken - 1).bit_length()) if taken else 0


Buffer = GlobalTensor | SharedTile | RegisterTile | TensorTile


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

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Buffer):
            raise InputError(f"view of {arguments.shown(self.buffer)}: must be of a tensor or tile")
        where = f"view of {self.buffer.name}"
        extents = arguments.wholes(f"{where}: extent", self.extents, 1, count=len(self.buffer.shape))
        offsets = tuple(as_expr(offset) for offset in arguments.sequence(f"{where}: offsets", self.offsets))
        if len(offsets) != len(extents):
            raise InputError(f"{where}: {len(offsets)} offsets for {len(extents)} dimensions")
        if self.buffer.space is not Space.GLOBAL:
            for extent, n in zip(extents, self.buffer.shape, strict=True):
                if extent > n:
                    raise InputError(f"{where}: {extents} does not fit its shape {self.buffer.shape}")
        _set(self, extents=extents, offsets=offsets, stage=as_expr(self.stage))
        if self.size_bytes > MOST_BOX_BYTES:
            raise InputError(f"{where}: {extents} has {self.size_bytes} B; at most {MOST_BOX_BYTES} in one box")

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
        stage = f"{self.stage}, " if isinstance(self.buffer, SharedTile | TensorTile) and self.buffer.stages > 1 else ""
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
            extents.append(n if i.stop is None else i.stop)
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

    def __post_init__(self) -> None:
        where = f"mbarrier {arguments.name('mbarrier name', self.name)}"
        stages = arguments.whole(f"{where}: stages", self.stages, 1)
        _set(self, stages=stages, arrivals=arguments.whole(f"{where}: arrivals", self.arrivals, 1, MOST_ARRIVALS))
