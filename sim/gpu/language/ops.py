"""OPS: what the tile language knows of each opcode, one entry an opcode.

Everybody who reads an op derives from its entry: the builder (which operands it takes), the lowering (row of the
instruction table, what the engine does), the listing, the interpreter, the mutants and the trace. Another opcode is
another entry; only one that does something new (`Action`) or is executed by something new (`Unit`) needs code in the
readers besides. Cycles are not here: they come from the machine's instruction table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag, auto


class Space(Flag):
    """Where an operand lies."""

    NONE = 0
    GLOBAL = auto()
    SHARED = auto()
    CLUSTER = auto()
    """Shared memory of the CTAs of the cluster that `multicast` names; of the warp's own CTA without it."""
    REGISTERS = auto()
    TENSOR = auto()
    """Tensor memory of the warp's CTA, and of its pair's other one for what both do together."""

    def __str__(self) -> str:
        return " or ".join(_SPACES[space] for space in Space if space in self) or "nothing"


_SPACES = {
    Space.GLOBAL: "global memory",
    Space.SHARED: "shared memory",
    Space.CLUSTER: "shared memory of the cluster",
    Space.REGISTERS: "registers",
    Space.TENSOR: "tensor memory",
}


class Unit(Enum):
    """Who executes an op: a module of `sim.gpu.engine`."""

    ISSUE = "issue"
    """The pipes of the warp's sub-core, of fixed latency."""
    TENSOR = "tensor"
    """The tensor core, beside its warp."""
    TCGEN05 = "tcgen05"
    """The tensor core of an SM with tensor memory, what reaches that, and requests for CTAs that have not started."""
    SHARED = "shared"
    GLOBAL = "global_memory"
    CP_ASYNC = "cp_async"
    """Groups of asynchronous copies; the copies themselves are requests like loads."""
    TMA = "tma"
    BARRIERS = "barriers"
    SEMAPHORES = "semaphores"
    """Semaphores in device memory, and the counter of a dynamic scheduler."""


class Action(Enum):
    """What an op does besides taking time."""

    OPERATE = "computes with its operands, or moves them"
    COMMIT_GROUP = "closes a group of asynchronous ops"
    AWAIT_GROUPS = "waits until at most `value` groups are pending"
    FENCE_REGISTERS = "orders register accesses before the asynchronous ops of its group"
    FENCE_PROXY = "makes the warp's writes of shared memory visible to the asynchronous proxy"
    EXPECT_BYTES = "arrives on an mbarrier and expects `value` bytes"
    ARRIVE = "arrives on an mbarrier"
    ARRIVE_AFTER_GROUP = "arrives on an mbarrier once the warp's asynchronous ops are complete"
    AWAIT_PHASE = "waits for a phase of an mbarrier"
    MEET = "waits until all warps of a barrier have arrived"
    JOIN = "arrives at such a barrier without waiting"
    AWAIT_JOINED = "waits until all warps of a barrier at which it has arrived have done so"
    NEXT_TILE = "takes a number from a counter of the launch"
    READ_CANCELLED = "reads which cluster a request has cancelled"
    RELEASE = "increments a semaphore in device memory"
    ACQUIRE = "waits for a semaphore in device memory"
    ALLOCATE = "takes columns of tensor memory for its CTA, waiting until there are some"
    FREE = "gives them back"
    FENCE_BEFORE = "orders the warp's accesses of tensor memory that are over before what it signals next"
    FENCE_AFTER = "orders what the warp has learned of tensor memory before its accesses of it"
    NOTE = "nothing"


@dataclass(frozen=True, eq=False)
class Group:
    """Asynchronous ops of one kind, which a warp commits in groups and awaits in that order.

    warps: neighbouring warps that execute one such op together. asynchronous_proxy: they see ordinary writes of shared
    memory only after a proxy fence. owns_registers: their register operands belong to them until they are awaited.
    reads_first: their sources are free before their results are there, and may be awaited alone.
    register_fence: accesses of their registers before them need a fence. in_order: those of one warp take effect in the
    order of their issue. tensor_memory: they access tensor memory, which fences order between warps. closes: they are
    awaited in groups that a warp closes; else all of the warp's at once, or by the mbarriers that these arrive on.
    """

    name: str
    warps: int = 1
    asynchronous_proxy: bool = False
    owns_registers: bool = False
    reads_first: bool = False
    register_fence: bool = False
    in_order: bool = False
    tensor_memory: bool = False
    closes: bool = True


CP_ASYNC = Group("cp_async")
WGMMA = Group("wgmma", warps=4, asynchronous_proxy=True, owns_registers=True, register_fence=True)
BULK = Group("bulk", asynchronous_proxy=True, reads_first=True)
TCGEN05 = Group("tcgen05", asynchronous_proxy=True, in_order=True, tensor_memory=True, closes=False)
TENSOR_LOADS = Group("tcgen05_ld", owns_registers=True, tensor_memory=True, closes=False)
TENSOR_STORES = Group("tcgen05_st", owns_registers=True, tensor_memory=True, closes=False)


@dataclass(frozen=True)
class OpSpec:
    """One opcode.

    Who and what. unit, action: who executes it and what it does. kind: what the engine does for its row, a name of
    `sim.gpu.lower.tables.Kind`. group: the asynchronous ops that it belongs to, closes or waits for.

    Operands. dst, srcs: where they may lie; `variadic` takes any number of sources like the last. barrier: it names an
    mbarrier. cluster: its barrier is of the cluster instead of the CTA. atomic: what it does to its destination is one
    step. accumulates: it multiplies matrices and adds to its destination, which starts from zero where `value` is 0.
    until_read: it waits for sources instead of results.

    Costs. row: opcode of its row in the instruction table ("" if it has none, or costs nothing of its own);
    row_of_registers: the row if its first source lies in registers; dtype, shape: of the row, where an op of this
    opcode has none.

    Text. value: what the integer of the op means, as the listing prints it. evaluated: that integer may be an
    expression, evaluated each time. numbered: `stage` is the number of a barrier or semaphore. track: lane of the
    trace that shows it from issue to completion, beside the warp that went on ("" for none).
    """

    opcode: str
    unit: Unit
    kind: str
    action: Action = Action.OPERATE
    group: Group | None = None
    dst: Space = Space.NONE
    srcs: tuple[Space, ...] = ()
    variadic: bool = False
    barrier: bool = False
    cluster: bool = False
    atomic: bool = False
    accumulates: bool = False
    until_read: bool = False
    row: str = ""
    row_of_registers: str = ""
    dtype: str = ""
    shape: str = ""
    value: str = ""
    evaluated: bool = False
    numbered: bool = False
    track: str = ""

    @property
    def stores_shared(self) -> bool:
        """Whether its destination is in shared memory, of its own CTA or of others of the cluster."""
        return bool(self.dst & (Space.SHARED | Space.CLUSTER))

    @property
    def waits(self) -> bool:
        """Whether what follows it in its warp depends on others having come so far."""
        return self.action in (
            Action.AWAIT_PHASE,
            Action.AWAIT_GROUPS,
            Action.MEET,
            Action.AWAIT_JOINED,
            Action.ACQUIRE,
            Action.ALLOCATE,
        )

    @property
    def fences(self) -> bool:
        """Whether it orders what is before it for others, without waiting."""
        return self.action in (Action.FENCE_REGISTERS, Action.FENCE_PROXY, Action.FENCE_BEFORE, Action.FENCE_AFTER)

    @property
    def lands(self) -> bool:
        """Whether its result is complete with a phase of its mbarrier, by bytes."""
        return self.action is Action.OPERATE and self.barrier

    @property
    def asynchronous_proxy(self) -> bool:
        """Whether it accesses shared memory through the asynchronous proxy."""
        of_group = self.group is not None and self.group.asynchronous_proxy
        return self.action is Action.OPERATE and (self.lands or of_group)

    @property
    def owns_registers(self) -> bool:
        """Whether its register operands belong to it until its group is awaited."""
        return self.action is Action.OPERATE and self.group is not None and self.group.owns_registers


_GLOBAL, _SHARED, _CLUSTER, _REGISTERS = Space.GLOBAL, Space.SHARED, Space.CLUSTER, Space.REGISTERS
_TENSOR = Space.TENSOR

#: Arithmetic on registers: each opcode that a machine's instruction table has besides those of `OPS`. A source in
#: shared memory is brought by the op's `loads`.
ARITHMETIC = OpSpec("arithmetic", Unit.ISSUE, "RUN", dst=_REGISTERS, srcs=(_REGISTERS | _SHARED,), variadic=True)

#: Multiply-accumulates of a thread, of the vector instructions that have any.
THREAD_MACS = {"ffma": 1, "hfma2": 2, "dp4a": 4}

_SPECS = (
    OpSpec(
        "mma", Unit.ISSUE, "RUN", accumulates=True, row="mma", value="accumulate {}", evaluated=True,
        dst=_REGISTERS, srcs=(_REGISTERS | _SHARED,), variadic=True,
    ),
    OpSpec(
        "wgmma", Unit.TENSOR, "WGMMA", group=WGMMA, accumulates=True, row="wgmma", row_of_registers="wgmma_rs",
        dst=_REGISTERS, srcs=(_REGISTERS | _SHARED, _SHARED), value="accumulate {}", evaluated=True,
    ),
    OpSpec("wgmma_fence", Unit.TENSOR, "NOTE", Action.FENCE_REGISTERS, WGMMA),
    OpSpec("wgmma_commit", Unit.TENSOR, "WGMMA_COMMIT", Action.COMMIT_GROUP, WGMMA),
    OpSpec("wgmma_wait", Unit.TENSOR, "WGMMA_WAIT", Action.AWAIT_GROUPS, WGMMA, value="{} left"),
    OpSpec(
        "tcgen05_mma", Unit.TCGEN05, "TCGEN05_MMA", group=TCGEN05, accumulates=True, row="tcgen05_mma",
        dst=_TENSOR, srcs=(_SHARED | _TENSOR, _SHARED, _TENSOR, _TENSOR), value="accumulate {}", evaluated=True,
        track="tensor core",
    ),
    OpSpec(
        "tcgen05_cp", Unit.TCGEN05, "TCGEN05_CP", group=TCGEN05, dst=_TENSOR, srcs=(_SHARED,),
        track="copies to tensor memory",
    ),
    OpSpec(
        "tcgen05_commit", Unit.TCGEN05, "TCGEN05_COMMIT", Action.ARRIVE_AFTER_GROUP, TCGEN05, barrier=True,
    ),
    OpSpec(
        "tcgen05_ld", Unit.TCGEN05, "TCGEN05_LD", group=TENSOR_LOADS, dst=_REGISTERS, srcs=(_TENSOR,),
        track="tensor memory",
    ),
    OpSpec(
        "tcgen05_st", Unit.TCGEN05, "TCGEN05_ST", group=TENSOR_STORES, dst=_TENSOR, srcs=(_REGISTERS,),
        track="tensor memory",
    ),
    OpSpec("tcgen05_wait_ld", Unit.TCGEN05, "TCGEN05_WAIT_LD", Action.AWAIT_GROUPS, TENSOR_LOADS),
    OpSpec("tcgen05_wait_st", Unit.TCGEN05, "TCGEN05_WAIT_ST", Action.AWAIT_GROUPS, TENSOR_STORES),
    OpSpec("tcgen05_fence_before", Unit.TCGEN05, "NOTE", Action.FENCE_BEFORE),
    OpSpec("tcgen05_fence_after", Unit.TCGEN05, "NOTE", Action.FENCE_AFTER),
    OpSpec("tcgen05_alloc", Unit.TCGEN05, "TCGEN05_ALLOC", Action.ALLOCATE, value="{} columns"),
    OpSpec("tcgen05_dealloc", Unit.TCGEN05, "TCGEN05_DEALLOC", Action.FREE, value="{} columns"),
    OpSpec("lds", Unit.SHARED, "SHARED", dst=_REGISTERS, srcs=(_SHARED,), row="lds"),
    OpSpec("sts", Unit.SHARED, "SHARED", dst=_SHARED, srcs=(_REGISTERS,), row="sts"),
    OpSpec(
        "ldmatrix", Unit.SHARED, "SHARED", dst=_REGISTERS, srcs=(_SHARED,), row="ldmatrix", dtype="b16", shape="x4"
    ),
    OpSpec(
        "stmatrix", Unit.SHARED, "SHARED", dst=_SHARED, srcs=(_REGISTERS,), row="stmatrix", dtype="b16", shape="x4"
    ),
    OpSpec("dsmem_ld", Unit.SHARED, "SHARED", dst=_REGISTERS, srcs=(_CLUSTER,), row="lds"),
    OpSpec("dsmem_st", Unit.SHARED, "SHARED", dst=_CLUSTER, srcs=(_REGISTERS,), row="sts"),
    OpSpec("ldg", Unit.GLOBAL, "LDG", dst=_REGISTERS, srcs=(_GLOBAL,), row="ldg", track="loads in flight"),
    OpSpec("stg", Unit.GLOBAL, "STG", dst=_GLOBAL, srcs=(_REGISTERS,), row="stg"),
    OpSpec("red", Unit.GLOBAL, "RED", dst=_GLOBAL, srcs=(_REGISTERS,), row="stg", atomic=True),
    OpSpec(
        "cp_async", Unit.GLOBAL, "CP_ASYNC", group=CP_ASYNC, dst=_SHARED, srcs=(_GLOBAL,), row="ldg",
        track="loads in flight",
    ),
    OpSpec("cp_commit", Unit.CP_ASYNC, "CP_COMMIT", Action.COMMIT_GROUP, CP_ASYNC),
    OpSpec("cp_wait", Unit.CP_ASYNC, "CP_WAIT", Action.AWAIT_GROUPS, CP_ASYNC, value="{} left"),
    OpSpec("cp_async_arrive", Unit.BARRIERS, "CP_ARRIVE", Action.ARRIVE_AFTER_GROUP, CP_ASYNC, barrier=True),
    OpSpec("tma_load", Unit.TMA, "TMA_LOAD", dst=_CLUSTER, srcs=(_GLOBAL,), barrier=True, track="TMA load"),
    OpSpec("tma_store", Unit.TMA, "TMA_STORE", group=BULK, dst=_GLOBAL, srcs=(_SHARED,), track="TMA store"),
    OpSpec(
        "tma_reduce", Unit.TMA, "TMA_REDUCE", group=BULK, dst=_GLOBAL, srcs=(_SHARED,), atomic=True,
        track="TMA store",
    ),
    OpSpec("bulk_commit", Unit.TMA, "BULK_COMMIT", Action.COMMIT_GROUP, BULK),
    OpSpec("bulk_wait", Unit.TMA, "BULK_WAIT", Action.AWAIT_GROUPS, BULK, value="{} left"),
    OpSpec("bulk_wait_read", Unit.TMA, "BULK_WAIT_READ", Action.AWAIT_GROUPS, BULK, until_read=True, value="{} left"),
    OpSpec("fence_async", Unit.SHARED, "FENCE", Action.FENCE_PROXY),
    OpSpec("mbarrier_wait", Unit.BARRIERS, "MBAR_WAIT", Action.AWAIT_PHASE, barrier=True),
    OpSpec(
        "mbarrier_expect", Unit.BARRIERS, "MBAR_EXPECT", Action.EXPECT_BYTES, barrier=True, value="{} bytes",
        evaluated=True,
    ),
    OpSpec("mbarrier_arrive", Unit.BARRIERS, "MBAR_ARRIVE", Action.ARRIVE, barrier=True),
    OpSpec("bar_sync", Unit.BARRIERS, "BAR_SYNC", Action.MEET, value="{} warps", numbered=True),
    OpSpec("bar_arrive", Unit.BARRIERS, "BAR_ARRIVE", Action.JOIN, value="{} warps", numbered=True),
    OpSpec("cluster_sync", Unit.BARRIERS, "CLUSTER_SYNC", Action.MEET, cluster=True),
    OpSpec("cluster_arrive", Unit.BARRIERS, "CLUSTER_ARRIVE", Action.JOIN, cluster=True),
    OpSpec("cluster_wait", Unit.BARRIERS, "CLUSTER_WAIT", Action.AWAIT_JOINED, cluster=True),
    OpSpec("next_tile", Unit.SEMAPHORES, "NEXT_TILE", Action.NEXT_TILE),
    OpSpec("try_cancel", Unit.TCGEN05, "TRY_CANCEL", dst=_CLUSTER, barrier=True, track="launch control"),
    OpSpec("query_cancel", Unit.TCGEN05, "QUERY_CANCEL", Action.READ_CANCELLED, srcs=(_SHARED,)),
    OpSpec("flag_add", Unit.SEMAPHORES, "FLAG_ADD", Action.RELEASE, numbered=True),
    OpSpec(
        "flag_wait", Unit.SEMAPHORES, "FLAG_WAIT", Action.ACQUIRE, value="{} reached", evaluated=True, numbered=True
    ),
    OpSpec("setmaxnreg", Unit.ISSUE, "NOTE", Action.NOTE, value="{} registers"),
)  # fmt: skip

OPS: dict[str, OpSpec] = {spec.opcode: spec for spec in _SPECS}
"""Every opcode but those of arithmetic (`ARITHMETIC`)."""

GROUPS = tuple(dict.fromkeys(spec.group for spec in _SPECS if spec.group is not None))
"""The groups of asynchronous ops, in the order of the table."""


def op_spec(opcode: str) -> OpSpec:
    """The entry of an opcode: its own, or that of arithmetic."""
    return OPS.get(opcode, ARITHMETIC)
