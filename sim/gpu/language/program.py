"""What a kernel is once it is built: ops, loops and counters in roles, and the program that launches it.

An op never carries a cost. It says what is done (opcode, how many warp instructions, on which tiles); intervals and
latencies come from the machine's instruction table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from arch import arguments
from arch.errors import InputError
from sim.gpu.language.expressions import ZERO, Expr
from sim.gpu.language.ops import OpSpec, op_spec
from sim.gpu.language.tensors import GlobalTensor, MBarrier, SharedTile, TensorTile, View, allocated_columns

if TYPE_CHECKING:
    from sim.gpu.language.ring import Ring


@dataclass(frozen=True)
class Op:
    """One row of a program: `count` warp instructions of one opcode on tiles.

    dst, srcs: views (a store's dst is global). barrier, stage, phase: the mbarrier used (phase n is complete when the
    barrier has completed n + 1 phases). value: opcode-specific integer expression (bytes expected, groups left, flag
    value, whether mma accumulates, ...). after: names of scoreboards waited for before issue; into: the scoreboard that
    its completion signals; of cp_async, that its addresses have been read. mix: further (opcode, count) instructions
    issued with it on other pipes (addresses, predicates, moves). spread: the compiler places the independent
    instructions that follow between those of this op, as `ptxas` does with loads and multiplies; they issue in the
    slots that it leaves. loads: shared-memory loads (`lds`, `ldmatrix`, without dst) that bring this op's shared
    sources to registers and issue evenly between its instructions, as in a software-pipelined loop. vector_bytes: bytes
    a thread of a global or shared access. sharers: neighbouring threads that read the same vector of shared memory.
    any_order: threads take the elements of a shared view in an order in which none meet in a bank, where what they hold
    may be in any order. multicast: mask of cluster ranks. compute: NumPy meaning `new_dst = compute(old_dst, *srcs,
    *indices)`. indices: integer expressions that `compute` gets as numbers, such as the coordinates that a mask
    compares. chain: steps of which each waits for the one before, as the shuffles of a reduction do; the instructions
    and their mix are shared out over them. pair: both CTAs of a pair (those of rank 2 i and 2 i + 1) take part: a
    product of both, issued by the first one, which has its rows, and half of its columns, in each; a load whose bytes
    count on the first one's mbarrier. nominal: arithmetic whose count is taken as stated: it stands for registers that
    a compiler renames, or for what the mix of another op does. line: file and line that wrote it.
    """

    opcode: str
    count: int = 1
    dst: View | None = None
    srcs: tuple[View, ...] = ()
    dtype: str = ""
    shape: str = ""
    barrier: MBarrier | None = None
    stage: Expr = ZERO
    phase: Expr | None = None
    value: Expr = ZERO
    after: tuple[str, ...] = ()
    into: str = ""
    mix: tuple[tuple[str, int], ...] = ()
    spread: bool = False
    loads: tuple[Op, ...] = ()
    vector_bytes: int = 16
    sharers: int = 1
    any_order: bool = False
    multicast: Expr | None = None
    var: str = ""
    compute: Callable[..., np.ndarray] | None = None
    indices: tuple[Expr, ...] = ()
    chain: int = 1
    pair: bool = False
    nominal: bool = False
    line: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.line}, {self.opcode}" if self.line else self.opcode

    @property
    def spec(self) -> OpSpec:
        """What the language knows of its opcode."""
        return op_spec(self.opcode)

    @property
    def views(self) -> tuple[View, ...]:
        """Its operands, the destination last."""
        return self.srcs if self.dst is None else (*self.srcs, self.dst)


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
    (zero at launch); descriptors: TMA descriptors that it reads. stands_for: CTAs of the launch of which its grid is an
    even sample; 0 where it is all of it. dependent: it is made for programmatic dependent launch, as the kernel before
    it is: on machines that have it its CTAs may be there before that has ended, and wait for it. prefetches: its
    cp.async carry the machine's prefetch size; else the L2 fetches the sectors that they ask for. rings: pairs of its
    barriers that keep to a ring's rules, which the check judges. tensor: its tiles in tensor memory.
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
    stands_for: int = 0
    dependent: bool = False
    prefetches: bool = True
    rings: tuple[Ring, ...] = ()
    tensor: tuple[TensorTile, ...] = ()

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that its tiles take, as they are allocated: a power of two from 32 on; 0 without."""
        return allocated_columns(self.tensor)

    @property
    def warps(self) -> int:
        """Warps a CTA."""
        return sum(int(r.warps) for r in self.roles)  # NumPy's numbers, too

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
    """What one operator runs on one machine: tensors in device memory, kernels launched one after the other.

    reference: results in NumPy (an array, or one each) from the input arrays in the order of `tensors`; check mode
    compares with it where the program stands for no operator. tolerance: error relative to the largest result that
    such a comparison allows; None: what rounding explains. notes: what the user of the program should know, sentences
    of a report.
    """

    name: str
    tensors: tuple[GlobalTensor, ...]
    kernels: tuple[Kernel, ...]
    schedule: str
    config: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    tolerance: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"program {arguments.name('program name', self.name)}"
        for what, kind, items in (("tensors", GlobalTensor, self.tensors), ("kernels", Kernel, self.kernels)):
            if not all(isinstance(item, kind) for item in arguments.sequence(f"{where}: {what}", items)):
                raise InputError(f"{where}: {what}={arguments.shown(items)}: must be a tuple of {kind.__name__}")
        names = [tensor.name for tensor in self.tensors]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"{where}: two tensors are named {twice[0]}; each needs a name of its own")
        for number, tensor in enumerate(self.tensors):
            if tensor.alias and tensor.alias not in names[:number]:
                raise InputError(
                    f"{where}: tensor {tensor.name} is another shape of {tensor.alias}, which none before is"
                )
        if not self.kernels:
            raise InputError(f"{where}: has no kernel")
        if self.tolerance is not None:
            arguments.finite(f"{where}: tolerance", self.tolerance, 0)
        if self.reference is not None and not callable(self.reference):
            raise InputError(f"{where}: reference={arguments.shown(self.reference)}: must be a function")

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


def walk(body: Sequence[Statement]) -> Iterator[Op]:
    """All ops of a body, loops entered once."""
    for s in body:
        if isinstance(s, Op):
            yield s
        elif isinstance(s, Loop):
            yield from walk(s.body)
