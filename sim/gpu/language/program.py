"""The tile language: the vocabulary in which GPU kernels are written.

A `Kernel` is built once per launch by a plain function of (problem, machine, tile configuration). It names global
tensors, shared tiles, barriers and roles; a role's body is `Op`s, `Loop`s and `Assign`s. Loops stay symbolic: bounds
and coordinates are integer expressions over CTA coordinates, loop variables and warp numbers. One object, three
readers: the lowering (`sim.gpu.lower.kernel`), the interpreter (`sim.gpu.check.interpret`) and the listing
(`sim.gpu.lower.listing`).

An op never carries a cost. It says what is done (opcode, how many warp instructions, on which tiles); intervals and
latencies come from the machine's instruction table. Opcodes are PTX's, names of tiles and pipelines follow
ThunderKittens and CUTLASS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError

# -------------------------------------------------------------------------------------------------------- expressions


class Expr:
    """An integer expression; build it with + - * // % ^ & comparisons, `minimum`, `maximum` and `table`."""

    __slots__ = ()

    def __add__(self, other: IntLike) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: IntLike) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: IntLike) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: IntLike) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: IntLike) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: IntLike) -> Expr:
        return _binary("*", other, self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return _binary("//", other, self)

    def __mod__(self, other: IntLike) -> Expr:
        return _binary("%", self, other)

    def __rmod__(self, other: IntLike) -> Expr:
        return _binary("%", other, self)

    def __xor__(self, other: IntLike) -> Expr:
        return _binary("^", self, other)

    def __rxor__(self, other: IntLike) -> Expr:
        return _binary("^", other, self)

    def __and__(self, other: IntLike) -> Expr:
        return _binary("&", self, other)

    def __rand__(self, other: IntLike) -> Expr:
        return _binary("&", other, self)

    def __lshift__(self, other: IntLike) -> Expr:
        return _binary("<<", self, other)

    def __rlshift__(self, other: IntLike) -> Expr:
        return _binary("<<", other, self)

    def __lt__(self, other: IntLike) -> Expr:
        return _binary("<", self, other)

    def __le__(self, other: IntLike) -> Expr:
        return _binary("<", self, as_expr(other) + 1)

    def __gt__(self, other: IntLike) -> Expr:
        return _binary("<", other, self)

    def __ge__(self, other: IntLike) -> Expr:
        return _binary("<", other, self + 1)

    def equals(self, other: IntLike) -> Expr:
        """1 where both sides are equal, else 0 (`==` keeps Python's meaning)."""
        return _binary("==", self, other)


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A fixed integer."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A variable: a CTA coordinate, the warp's number in its role, a loop counter or an assigned counter."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`left op right`; division and modulo round towards minus infinity, comparisons give 0 or 1."""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class Table(Expr):
    """`values[index]`: a constant integer table."""

    values: tuple[int, ...]
    index: Expr

    def __str__(self) -> str:
        return f"table{len(self.values)}[{self.index}]"


IntLike = Expr | int


def as_expr(value: IntLike) -> Expr:
    """`value` as an expression."""
    return value if isinstance(value, Expr) else Const(int(value))


_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "<<": lambda a, b: a << b,
    "<": lambda a, b: int(a < b),
    "==": lambda a, b: int(a == b),
    "min": min,
    "max": max,
}


def _binary(op: str, left: IntLike, right: IntLike) -> Expr:
    a, b = as_expr(left), as_expr(right)
    if op in ("//", "%") and isinstance(b, Const) and b.value <= 0:
        raise InputError(f"expression ({a} {op} {b}): the divisor must be a positive integer")
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(_FOLD[op](a.value, b.value))
    if isinstance(b, Const):
        if (op in ("+", "-", "^", "<<") and b.value == 0) or (op in ("*", "//") and b.value == 1):
            return a
        if (op == "*" and b.value == 0) or (op == "%" and b.value == 1):
            return Const(0)
    if isinstance(a, Const):
        if op == "+" and a.value == 0:
            return b
        if op == "*" and a.value in (0, 1):
            return b if a.value == 1 else Const(0)
    return Binary(op, a, b)


def minimum(left: IntLike, right: IntLike) -> Expr:
    """The smaller of two expressions."""
    return _binary("min", left, right)


def maximum(left: IntLike, right: IntLike) -> Expr:
    """The larger of two expressions."""
    return _binary("max", left, right)


def table(values: Sequence[int], index: IntLike) -> Expr:
    """`values[index]` for a constant tuple of integers."""
    return Table(tuple(int(v) for v in values), as_expr(index))


def evaluate(expr: Expr, env: dict[str, int]) -> int:
    """Value of `expr` with variables from `env` (the interpreter's and the tests' evaluator)."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        return env[expr.name]
    if isinstance(expr, Binary):
        return _FOLD[expr.op](evaluate(expr.left, env), evaluate(expr.right, env))
    if isinstance(expr, Table):
        return expr.values[evaluate(expr.index, env)]
    raise TypeError(f"not an expression: {expr!r}")


#: Variables that every warp has: CTA coordinates in the grid, rank in its cluster, number of its warp in its role.
CTA_X, CTA_Y, CTA_Z, CLUSTER_RANK, WARP = Var("cta_x"), Var("cta_y"), Var("cta_z"), Var("cluster_rank"), Var("warp")
BUILTIN_VARS = ("cta_x", "cta_y", "cta_z", "cluster_rank", "warp")

# ------------------------------------------------------------------------------------------------------------ buffers


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor in device memory.

    shape: elements per dimension. strides: elements per step of each dimension; exactly one of the last two is 1 (the
    contiguous one). role: "input", "output" or "scratch". align_bytes: alignment of its first element. alias: name of
    the tensor of which this one is another shape, dense as that one is and in the order in which that one lies.
    """

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
        return View(self, as_expr(stage), tuple(Const(0) for _ in self.shape), self.shape)

    def __getitem__(self, index: tuple[Any, ...]) -> View:
        """`tile[stage, r0:rows, c0:cols]`: the stage first, then `offset:extent` (or a full `:`) per dimension."""
        return _view(self, index[1:], as_expr(index[0]))


@dataclass(frozen=True)
class RegisterTile:
    """A tile in registers, private to each warp of its role: shape and dtype as one warp sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __getitem__(self, index: Any) -> View:
        return _view(self, index)

    @property
    def whole(self) -> View:
        """All of it."""
        return View(self, Const(0), tuple(Const(0) for _ in self.shape), self.shape)


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


def _view(buffer: Buffer, index: Any, stage: Expr = Const(0)) -> View:
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


# --------------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class Op:
    """One row of a program: `count` warp instructions of one opcode on tiles.

    dst, srcs: views (a store's dst is global). barrier, stage, phase: the mbarrier used (phase n is complete when the
    barrier has completed n + 1 phases). value: opcode-specific integer expression (bytes expected, groups left, flag
    value, whether mma accumulates, ...). after: names of scoreboards waited for before issue; into: the scoreboard that
    its completion signals. mix: further (opcode, count) instructions issued with it on other pipes (addresses,
    predicates, moves). spread: the compiler places the independent instructions that follow between those of this op,
    as `ptxas` does with loads and multiplies; they issue in the slots that it leaves. loads: shared-memory loads
    (`lds`, `ldmatrix`, without dst) that bring this op's shared sources to registers and issue evenly between its
    instructions, as in a software-pipelined loop. vector_bytes: bytes a thread of a global or shared access. sharers:
    neighbouring threads that read the same vector of shared memory. multicast: mask of cluster ranks. compute: NumPy
    meaning `new_dst = compute(old_dst, *srcs, *indices)`. indices: integer expressions that `compute` gets as numbers,
    such as the coordinates that a mask compares. chain: steps of which each waits for the one before, as the shuffles
    of a reduction do; the instructions and their mix are shared out over them.
    """

    opcode: str
    count: int = 1
    dst: View | None = None
    srcs: tuple[View, ...] = ()
    dtype: str = ""
    shape: str = ""
    barrier: MBarrier | None = None
    stage: Expr = Const(0)
    phase: Expr | None = None
    value: Expr = Const(0)
    after: tuple[str, ...] = ()
    into: str = ""
    mix: tuple[tuple[str, int], ...] = ()
    spread: bool = False
    loads: tuple[Op, ...] = ()
    vector_bytes: int = 16
    sharers: int = 1
    multicast: Expr | None = None
    var: str = ""
    compute: Callable[..., np.ndarray] | None = None
    indices: tuple[Expr, ...] = ()
    chain: int = 1


@dataclass(frozen=True)
class Loop:
    """`for var in range(start, start + trips * step, step)`; a guard is a loop of 0 or 1 trips.

    again: `trips` is a condition that is evaluated before each trip, and the loop ends when it is 0.
    """

    var: str
    trips: Expr
    start: Expr
    step: Expr
    body: tuple[Statement, ...]
    again: bool = False


@dataclass(frozen=True)
class Assign:
    """`var = value`, a counter in a (uniform) register: pipeline positions across tiles of different depth."""

    var: str
    value: Expr


Statement = Op | Loop | Assign


@dataclass(frozen=True)
class Role:
    """Warps that run one body. registers: per thread (after setmaxnreg if the kernel uses it)."""

    name: str
    warps: int
    registers: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Kernel:
    """One launch: grid of CTAs in clusters, the roles of a CTA, and its shared memory.

    grid, cluster: CTAs in x, y, z. launch_registers: registers a thread at launch (what occupancy counts).
    code_bytes: size of its machine code (for the cold instruction fetch); flags: number of 32-bit global semaphores
    (zero at launch); descriptors: TMA descriptors that it reads.
    """

    name: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    roles: tuple[Role, ...]
    shared: tuple[SharedTile, ...]
    barriers: tuple[MBarrier, ...]
    launch_registers: int
    code_bytes: int
    flags: int = 0
    descriptors: int = 0

    @property
    def warps(self) -> int:
        """Warps a CTA."""
        return sum(r.warps for r in self.roles)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def shared_offsets(self) -> dict[SharedTile, int]:
        """First byte of each shared tile, aligned to 128 B (1024 B where swizzled)."""
        at, out = 0, {}
        for tile in self.shared:
            align = 1024 if tile.swizzle_bytes else 128
            out[tile] = -(-at // align) * align
            at = out[tile] + tile.size_bytes
        return out

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA: its tiles, 8 bytes a barrier."""
        end = max((at + tile.size_bytes for tile, at in self.shared_offsets().items()), default=0)
        return end + sum(8 * b.stages for b in self.barriers)


@dataclass(frozen=True)
class Program:
    """What one operator runs on one machine: tensors in device memory, kernels launched one after the other."""

    name: str
    tensors: tuple[GlobalTensor, ...]
    kernels: tuple[Kernel, ...]
    schedule: str
    config: dict[str, Any] = field(default_factory=dict)

    def addresses(self) -> dict[str, int]:
        """Byte address of each tensor's first element: in order, aligned as device allocators do."""
        address = 1 << 21
        out: dict[str, int] = {}
        for tensor in self.tensors:
            if tensor.alias:
                out[tensor.name] = out[tensor.alias]
                continue
            address = -(-address // tensor.align_bytes) * tensor.align_bytes
            out[tensor.name] = address
            address += tensor.size_bytes
        return out


# ------------------------------------------------------------------------------------------------------------ builder


class RoleBuilder:
    """Writes the body of one role; every method appends one statement. See `Op` for the common keywords."""

    def __init__(self, kernel: KernelBuilder, name: str, warps: int, registers: int) -> None:
        self._kernel = kernel
        self.name, self.warps, self.registers = name, warps, registers
        self._bodies: list[list[Statement]] = [[]]
        self._vars: set[str] = set()

    # --- control

    @contextmanager
    def loop(self, var: str, trips: IntLike, start: IntLike = 0, step: IntLike = 1) -> Iterator[Var]:
        """`with role.loop("k", trips) as k:` runs the body `trips` times."""
        self._bodies.append([])
        self._vars.add(var)
        yield Var(var)
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop(var, as_expr(trips), as_expr(start), as_expr(step), body))

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[None]:
        """Runs the body where `condition` (0 or 1) is 1."""
        self._bodies.append([])
        yield
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop("", as_expr(condition), Const(0), Const(1), body))

    @contextmanager
    def loop_while(self, condition: IntLike) -> Iterator[None]:
        """Runs the body again and again as long as `condition` is 1: for counters that the body sets."""
        self._bodies.append([])
        yield
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop("", as_expr(condition), Const(0), Const(1), body, again=True))

    def assign(self, var: str, value: IntLike) -> Var:
        """Sets the counter `var`; returns it for use in expressions."""
        self._vars.add(var)
        self._bodies[-1].append(Assign(var, as_expr(value)))
        return Var(var)

    def op(self, opcode: str, count: int = 1, **fields: Any) -> None:
        """Appends `Op(opcode, count, ...)`; the named methods below are the readable way."""
        if count < 0:
            raise InputError(f"kernel {self._kernel.name}, role {self.name}: {opcode} count {count} is negative")
        if count:
            self._bodies[-1].append(Op(opcode, count, **fields))

    # --- arithmetic on registers

    def run(self, opcode: str, count: int, **fields: Any) -> None:
        """`count` instructions of a fixed-latency opcode of the machine's table (ffma, hfma2, imad, alu, mufu, ...)."""
        self.op(opcode, count, **fields)

    def mma(
        self, acc: View, a: View, b: View, *, shape: str, dtype: str, count: int, accumulate: IntLike = 1, **fields: Any
    ) -> None:
        """`count` warp-level mma.sync of `shape`, together acc += a @ b for this warp's register tiles.

        accumulate: 0 where the sum starts from zero (the first step of a loop: `accumulate=k > 0`).
        """
        value = as_expr(accumulate)
        self.op(
            "mma", count, dst=acc, srcs=(a, b), shape=shape, dtype=dtype, value=value, compute=_matmul_into, **fields
        )

    def wgmma(
        self, acc: View, a: View, b: View, *, shape: str, dtype: str, count: int, accumulate: IntLike = 1, **fields: Any
    ) -> None:
        """`count` asynchronous wgmma of the warp's warpgroup; a is shared or registers, b shared.

        The views are this warp's part of a and acc. accumulate: 0 where the sum starts from zero, as for `mma`. To be
        preceded by `wgmma_fence` and followed by `wgmma_commit` and, some time later, `wgmma_wait`.
        """
        value = as_expr(accumulate)
        self.op(
            "wgmma", count, dst=acc, srcs=(a, b), shape=shape, dtype=dtype, value=value, compute=_matmul_into, **fields
        )

    def wgmma_fence(self) -> None:
        """Orders register accesses before the following wgmma."""
        self.op("wgmma_fence")

    def wgmma_commit(self) -> None:
        """Closes a group of wgmma."""
        self.op("wgmma_commit")

    def wgmma_wait(self, left: int) -> None:
        """Waits until at most `left` groups of wgmma are pending."""
        self.op("wgmma_wait", value=Const(left))

    # --- shared memory

    def load(self, dst: View, op: Op) -> None:
        """`op`, an `lds` or `ldmatrix` without dst, to the registers `dst`."""
        self._bodies[-1].append(replace(op, dst=dst, compute=_copy))

    def ldmatrix(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` ldmatrix.x4 (8x8 matrices of 16-bit elements) from shared memory into fragments."""
        self.op("ldmatrix", count, dst=dst, srcs=(src,), compute=_copy, **fields)

    def lds(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` LDS of `vector_bytes` a thread."""
        self.op("lds", count, dst=dst, srcs=(src,), compute=_copy, **fields)

    def sts(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` STS of `vector_bytes` a thread."""
        self.op("sts", count, dst=dst, srcs=(src,), compute=_copy, **fields)

    def dsmem_ld(self, dst: View, src: View, count: int, rank: int, **fields: Any) -> None:
        """`count` LDS of `vector_bytes` a thread from the same tile of CTA `rank` of the cluster."""
        self.op("dsmem_ld", count, dst=dst, srcs=(src,), multicast=Const(1 << rank), compute=_copy, **fields)

    # --- global memory through L1

    def ldg(self, dst: View, src: View, count: int, *, into: str, **fields: Any) -> None:
        """`count` LDG of `vector_bytes` a thread, covering the box `src`; completion on scoreboard `into`."""
        self.op("ldg", count, dst=dst, srcs=(src,), into=into, compute=_copy, **fields)

    def stg(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` STG of `vector_bytes` a thread, covering the box `dst`."""
        self.op("stg", count, dst=dst, srcs=(src,), compute=_copy, **fields)

    def red(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` RED.ADD to global memory, done at the L2."""
        self.op("red", count, dst=dst, srcs=(src,), compute=_add_into, **fields)

    def cp_async(self, dst: View, src: View, count: int, **fields: Any) -> None:
        """`count` cp.async (global to shared, past the registers)."""
        self.op("cp_async", count, dst=dst, srcs=(src,), compute=_copy, **fields)

    def cp_commit(self) -> None:
        """Closes a group of cp.async."""
        self.op("cp_commit")

    def cp_wait(self, left: int) -> None:
        """Waits until at most `left` groups of cp.async are pending (this warp's own)."""
        self.op("cp_wait", value=Const(left))

    def cp_async_arrive(self, barrier: MBarrier, stage: IntLike) -> None:
        """cp.async.mbarrier.arrive.noinc: arrives when this warp's earlier cp.async are complete."""
        self.op("cp_async_arrive", barrier=barrier, stage=as_expr(stage))

    # --- TMA

    def tma_load(
        self, dst: View, src: View, barrier: MBarrier, stage: IntLike, multicast: IntLike | None = None
    ) -> None:
        """One bulk tensor copy, box `src` of a global tensor to a shared tile; completes by bytes on `barrier[stage]`.

        multicast: mask of cluster ranks that all receive it, each on its own barrier.
        """
        mask = None if multicast is None else as_expr(multicast)
        self.op("tma_load", dst=dst, srcs=(src,), barrier=barrier, stage=as_expr(stage), multicast=mask, compute=_copy)

    def tma_store(self, dst: View, src: View, *, add: bool = False) -> None:
        """One bulk tensor store (or reduction at the L2) from a shared tile, grouped by `bulk_commit`, `bulk_wait`."""
        self.op("tma_reduce" if add else "tma_store", dst=dst, srcs=(src,), compute=_add_into if add else _copy)

    def bulk_commit(self) -> None:
        """Closes a group of bulk stores."""
        self.op("bulk_commit")

    def bulk_wait(self, left: int, *, read: bool = True) -> None:
        """Waits until at most `left` groups of bulk stores are pending; `read`: until their source has been read."""
        self.op("bulk_wait_read" if read else "bulk_wait", value=Const(left))

    def fence_async(self) -> None:
        """fence.proxy.async: shared-memory writes of this warp become visible to TMA and wgmma."""
        self.op("fence_async")

    # --- barriers

    def mbarrier_wait(self, barrier: MBarrier, stage: IntLike, phase: IntLike) -> None:
        """Waits until `barrier[stage]` has completed phase `phase` (0 is the first; negative phases are complete)."""
        self.op("mbarrier_wait", barrier=barrier, stage=as_expr(stage), phase=as_expr(phase))

    def mbarrier_expect(self, barrier: MBarrier, stage: IntLike, size_bytes: IntLike) -> None:
        """Arrives on `barrier[stage]` and expects `size_bytes` of bulk copies in this phase."""
        self.op("mbarrier_expect", barrier=barrier, stage=as_expr(stage), value=as_expr(size_bytes))

    def mbarrier_arrive(self, barrier: MBarrier, stage: IntLike, cluster: IntLike | None = None) -> None:
        """One arrival of this warp on `barrier[stage]`, of its own CTA or of every CTA in the mask `cluster`."""
        mask = None if cluster is None else as_expr(cluster)
        self.op("mbarrier_arrive", barrier=barrier, stage=as_expr(stage), multicast=mask)

    def bar_sync(self, barrier: IntLike, warps: int) -> None:
        """bar.sync: waits for `warps` warps of the CTA on named barrier `barrier` (0-15); 0 is __syncthreads."""
        self.op("bar_sync", stage=as_expr(barrier), value=Const(warps))

    def bar_arrive(self, barrier: IntLike, warps: int) -> None:
        """bar.arrive: counts as one of the `warps` warps of named barrier `barrier` and does not wait."""
        self.op("bar_arrive", stage=as_expr(barrier), value=Const(warps))

    def cluster_sync(self) -> None:
        """barrier.cluster arrive and wait by all warps of all CTAs of the cluster."""
        self.op("cluster_sync")

    # --- tile schedulers and fix-ups between CTAs

    def next_tile(self, var: str) -> Var:
        """atomicAdd of a global counter, broadcast in the CTA: the next tile of a dynamic scheduler in `var`."""
        self._vars.add(var)
        self.op("next_tile", var=var)
        return Var(var)

    def flag_add(self, index: IntLike) -> None:
        """Release: this warp's earlier stores are visible, then global semaphore `index` grows by 1."""
        self.op("flag_add", stage=as_expr(index))

    def flag_wait(self, index: IntLike, value: IntLike) -> None:
        """Acquire: waits until global semaphore `index` has reached `value`."""
        self.op("flag_wait", stage=as_expr(index), value=as_expr(value))

    # --- registers

    def setmaxnreg(self, registers: int) -> None:
        """Re-allocates registers of the role's warps."""
        self.op("setmaxnreg", value=Const(registers))


class KernelBuilder:
    """Builds a `Kernel`: declare buffers and barriers, then write each role in a `with` block."""

    def __init__(
        self,
        name: str,
        grid: tuple[int, int, int],
        cluster: tuple[int, int, int] = (1, 1, 1),
        *,
        code_bytes: int = 8192,
        flags: int = 0,
    ) -> None:
        self.name, self.grid, self.cluster = name, grid, cluster
        self.code_bytes, self.flags = code_bytes, flags
        self._shared: list[SharedTile] = []
        self._barriers: list[MBarrier] = []
        self._roles: list[RoleBuilder] = []

    def shared(
        self, name: str, shape: Sequence[int], dtype: str, stages: int = 1, swizzle_bytes: int = 0, pad_bytes: int = 0
    ) -> SharedTile:
        """Declares a shared tile."""
        tile = SharedTile(name, tuple(shape), dtype, stages, swizzle_bytes, pad_bytes)
        self._shared.append(tile)
        return tile

    def mbarrier(self, name: str, stages: int, arrivals: int) -> MBarrier:
        """Declares an array of mbarriers."""
        barrier = MBarrier(name, stages, arrivals)
        self._barriers.append(barrier)
        return barrier

    @contextmanager
    def role(self, name: str, warps: int, registers: int) -> Iterator[RoleBuilder]:
        """`with kernel.role("consumer", warps=8, registers=232) as r:`; roles take warps in order of declaration."""
        builder = RoleBuilder(self, name, warps, registers)
        yield builder
        self._roles.append(builder)

    def build(self, launch_registers: int | None = None) -> Kernel:
        """The finished kernel. Raises InputError for undeclared names and sizes that cannot be."""
        roles = []
        for r in self._roles:
            roles.append(Role(r.name, r.warps, r.registers, tuple(r._bodies[0])))
        registers = launch_registers or max(r.registers for r in roles)
        copies = [op for role in roles for op in walk(role.body) if op.opcode.startswith("tma_")]
        tensors = {op.srcs[0].buffer if op.opcode == "tma_load" or op.dst is None else op.dst.buffer for op in copies}
        kernel = Kernel(
            self.name, self.grid, self.cluster, tuple(roles), tuple(self._shared), tuple(self._barriers), registers,
            self.code_bytes, self.flags, descriptors=sum(isinstance(t, GlobalTensor) for t in tensors),
        )  # fmt: skip
        _check(kernel)
        return kernel


def walk(body: Sequence[Statement]) -> Iterator[Op]:
    """All ops of a body, loops entered once."""
    for s in body:
        if isinstance(s, Op):
            yield s
        elif isinstance(s, Loop):
            yield from walk(s.body)


def _check(kernel: Kernel) -> None:
    """Refuses kernels that name what they do not declare or exceed what any machine has."""
    if min(kernel.grid) < 1 or min(kernel.cluster) < 1:
        raise InputError(f"kernel {kernel.name}: grid {kernel.grid} and cluster {kernel.cluster} must be positive")
    if any(g % c for g, c in zip(kernel.grid, kernel.cluster, strict=True)):
        raise InputError(f"kernel {kernel.name}: grid {kernel.grid} is not a multiple of its cluster {kernel.cluster}")
    if kernel.warps > 32:
        raise InputError(f"kernel {kernel.name}: {kernel.warps} warps a CTA; at most 32 (1024 threads)")
    shared, barriers = set(kernel.shared), set(kernel.barriers)
    first_warp = 0
    for role in kernel.roles:
        if (first_warp % 4 or role.warps % 4) and any(op.opcode == "wgmma" for op in walk(role.body)):
            raise InputError(
                f"kernel {kernel.name}, role {role.name}: wgmma needs whole warpgroups, four warps from a multiple of "
                f"four on; the role has warps {first_warp} to {first_warp + role.warps - 1}"
            )
        first_warp += role.warps
        signalled = {op.into for op in walk(role.body) if op.into}
        for op in walk(role.body):
            where = f"kernel {kernel.name}, role {role.name}, {op.opcode}"
            for view in (*op.srcs, *((op.dst,) if op.dst else ())):
                if isinstance(view.buffer, SharedTile) and view.buffer not in shared:
                    raise InputError(f"{where}: shared tile {view.buffer.name} is not declared in this kernel")
            if op.barrier is not None and op.barrier not in barriers:
                raise InputError(f"{where}: barrier {op.barrier.name} is not declared in this kernel")
            if missing := set(op.after) - signalled:
                raise InputError(f"{where}: waits for scoreboard {sorted(missing)[0]}, which no op signals")


# -------------------------------------------------------------------------------------------------- meanings in NumPy


def _copy(_: np.ndarray, src: np.ndarray) -> np.ndarray:
    return src


def _add_into(old: np.ndarray, src: np.ndarray) -> np.ndarray:
    return old + src


def _matmul_into(acc: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return acc + a @ b
