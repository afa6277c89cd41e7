"""Builders of kernels: buffers and barriers are declared, then each role is written, a method an op."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from arch.arguments import name as text
from arch.arguments import shown, three, whole
from arch.errors import InputError
from arch.near import hint
from sim.gpu.language.counts import too_few, usual
from sim.gpu.language.expressions import ZERO, Const, IntLike, Var, as_expr
from sim.gpu.language.meanings import added, copied, multiplied
from sim.gpu.language.ops import OPS, Space, Unit
from sim.gpu.language.program import Assign, Kernel, Loop, Op, Role, Statement, walk
from sim.gpu.language.ring import Ring
from sim.gpu.language.rules import MOST_COUNT, MOST_REGISTERS, MOST_SIDE, MOST_WARPS, check_kernel, misfit
from sim.gpu.language.tensors import MBarrier, SharedTile, TensorTile, View, allocated_columns

_FIELDS = tuple(field.name for field in fields_of(Op) if field.name not in ("opcode", "count", "line"))
_HERE = os.path.dirname(__file__)


class RoleBuilder:
    """Writes the body of one role; every method appends one statement. See `Op` for the common keywords."""

    def __init__(self, kernel: KernelBuilder, name: str, warps: int, registers: int) -> None:
        self._kernel = kernel
        self._where = f"kernel {kernel.name}, role {text('role name', name)}"
        self.name, self.warps = name, whole(f"{self._where}: warps", warps, 1, MOST_WARPS)
        self.registers = whole(f"{self._where}: registers", registers, 1, MOST_REGISTERS)
        self._bodies: list[list[Statement]] = [[]]

    # --- control

    @contextmanager
    def loop(self, var: str, trips: IntLike, start: IntLike = 0, step: IntLike = 1) -> Iterator[Var]:
        """`with role.loop("k", trips) as k:` runs the body `trips` times."""
        variable = Var(var)
        self._bodies.append([])
        yield variable
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop(var, as_expr(trips), as_expr(start), as_expr(step), body))

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[None]:
        """Runs the body where `condition` (0 or 1) is 1."""
        self._bodies.append([])
        yield
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop("", as_expr(condition), ZERO, Const(1), body))

    @contextmanager
    def loop_while(self, condition: IntLike) -> Iterator[None]:
        """Runs the body again and again as long as `condition` is 1: for counters that the body sets."""
        self._bodies.append([])
        yield
        body = tuple(self._bodies.pop())
        self._bodies[-1].append(Loop("", as_expr(condition), ZERO, Const(1), body, again=True))

    def assign(self, var: str, value: IntLike) -> Var:
        """Sets the counter `var`; returns it for use in expressions."""
        self._bodies[-1].append(Assign(var, as_expr(value)))
        return Var(var)

    def op(self, opcode: str, count: int | None = None, **fields: Any) -> None:
        """Appends `Op(opcode, count, ...)`; the named methods below are the readable way.

        count: warp instructions; what the views need where it is None, nothing is appended where it is 0. Raises
        InputError where it is less than they need (`sim.gpu.language.counts`).
        """
        if unknown := [field for field in fields if field not in _FIELDS]:
            raise InputError(f"{self._where}, {opcode}: has no {unknown[0]}{hint(unknown[0], _FIELDS)}")
        number = 1 if count is None else whole(f"{self._where}, {opcode}: count", count, 0, MOST_COUNT)
        op = Op(opcode, number, **fields, line=_written_at())
        if op.count:
            self._append(op if count is not None or misfit(op) else replace(op, count=usual(op)))

    def _append(self, op: Op) -> None:
        wrong = misfit(op) or too_few(op)
        if wrong:
            raise InputError(f"{self._where}, {op}: {wrong}")
        self._bodies[-1].append(op)

    # --- arithmetic on registers

    def run(self, opcode: str, count: int | None = None, **fields: Any) -> None:
        """`count` instructions of a fixed-latency opcode of the machine's table (ffma, imad, fmnmx, ex2, ...)."""
        if opcode in OPS:
            raise InputError(f"{self._where}: `run` is for arithmetic, {opcode} has its own method")
        self.op(opcode, count, **fields)

    def mma(
        self,
        acc: View,
        a: View,
        b: View,
        *,
        shape: str,
        dtype: str,
        count: int | None = None,
        accumulate: IntLike = 1,
        **fields: Any,
    ) -> None:
        """`count` warp-level mma.sync of `shape`, together acc += a @ b for this warp's register tiles.

        accumulate: 0 where the sum starts from zero (the first step of a loop: `accumulate=k > 0`).
        """
        value = as_expr(accumulate)
        self.op("mma", count, dst=acc, srcs=(a, b), shape=shape, dtype=dtype, value=value, compute=multiplied, **fields)

    def wgmma(
        self,
        acc: View,
        a: View,
        b: View,
        *,
        shape: str,
        dtype: str,
        count: int | None = None,
        accumulate: IntLike = 1,
        **fields: Any,
    ) -> None:
        """`count` asynchronous wgmma of the warp's warpgroup; a is shared or registers, b shared.

        The views are this warp's part of a and acc. accumulate: 0 where the sum starts from zero, as for `mma`. To be
        preceded by `wgmma_fence` and followed by `wgmma_commit` and, some time later, `wgmma_wait`.
        """
        value = as_expr(accumulate)
        self.op(
            "wgmma", count, dst=acc, srcs=(a, b), shape=shape, dtype=dtype, value=value, compute=multiplied, **fields
        )

    def wgmma_fence(self) -> None:
        """Orders register accesses before the following wgmma."""
        self.op("wgmma_fence")

    def wgmma_commit(self) -> None:
        """Closes a group of wgmma."""
        self.op("wgmma_commit")

    def wgmma_wait(self, left: int) -> None:
        """Waits until at most `left` groups of wgmma are pending."""
        self.op("wgmma_wait", value=as_expr(left))

    # --- tensor memory

    def tcgen05_alloc(self) -> None:
        """Takes the kernel's columns of tensor memory for its CTA, and waits until an SM has as many free; by one
        warp."""
        self.op("tcgen05_alloc", value=as_expr(self._kernel.tensor_columns))

    def tcgen05_dealloc(self) -> None:
        """Gives the columns back: once a CTA, by one warp, when nobody uses them any more."""
        self.op("tcgen05_dealloc", value=as_expr(self._kernel.tensor_columns))

    def tcgen05_mma(
        self,
        acc: View,
        a: View,
        b: View,
        *,
        shape: str,
        dtype: str,
        scales: tuple[View, View] | None = None,
        accumulate: IntLike = 1,
        pair: bool = False,
        **fields: Any,
    ) -> None:
        """Asynchronous products of an SM's tensor core, or of both of a pair, issued by one thread; a is shared or in
        tensor memory, b shared, acc in tensor memory. `tcgen05_commit` says when they are over.

        The views are those of one CTA: all rows of a and acc; in a pair half of the shape's rows and of the columns of
        b. scales: of a and b, in tensor memory, for formats that have some. accumulate: 0 where the sum starts from
        zero.
        """
        fields.setdefault("compute", multiplied)
        srcs = (a, b, *(scales or ()))
        value = as_expr(accumulate)
        self.op("tcgen05_mma", dst=acc, srcs=srcs, shape=shape, dtype=dtype, value=value, pair=pair, **fields)

    def tcgen05_cp(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` asynchronous copies from shared to tensor memory, in order with products."""
        fields.setdefault("compute", copied)
        self.op("tcgen05_cp", count, dst=dst, srcs=(src,), **fields)

    def tcgen05_commit(self, barrier: MBarrier, stage: IntLike, cluster: IntLike | None = None) -> None:
        """Arrives on `barrier[stage]`, of its own CTA or of every CTA in the mask `cluster`, when this warp's products
        and copies so far are over."""
        mask = None if cluster is None else as_expr(cluster)
        self.op("tcgen05_commit", barrier=barrier, stage=as_expr(stage), multicast=mask)

    def tcgen05_ld(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` loads from the warp's 32 lanes of tensor memory; the registers are there after `tcgen05_wait_ld`."""
        self.op("tcgen05_ld", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def tcgen05_st(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` stores to the warp's 32 lanes of tensor memory; they are made after `tcgen05_wait_st`."""
        self.op("tcgen05_st", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def tcgen05_wait_ld(self) -> None:
        """Waits for this warp's loads from tensor memory."""
        self.op("tcgen05_wait_ld")

    def tcgen05_wait_st(self) -> None:
        """Waits for this warp's stores to tensor memory."""
        self.op("tcgen05_wait_st")

    def tcgen05_fence_before(self) -> None:
        """Orders this warp's accesses of tensor memory so far, which it has waited for, before what it signals next."""
        self.op("tcgen05_fence_before")

    def tcgen05_fence_after(self) -> None:
        """Orders this warp's accesses of tensor memory behind what it has waited for."""
        self.op("tcgen05_fence_after")

    # --- shared memory

    def load(self, dst: View, op: Op) -> None:
        """`op`, an `lds` or `ldmatrix` without dst, to the registers `dst`."""
        if not isinstance(op, Op):
            raise InputError(f"{self._where}: load of {shown(op)}: must be an op such as an lds without dst")
        self._append(replace(op, dst=dst, compute=copied, line=_written_at()))

    def ldmatrix(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` ldmatrix.x4 (8x8 matrices of 16-bit elements) from shared memory into fragments."""
        self.op("ldmatrix", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def stmatrix(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` stmatrix.x4 (8x8 matrices of 16-bit elements) from fragments to shared memory; Hopper has it."""
        self.op("stmatrix", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def lds(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` LDS of `vector_bytes` a thread."""
        self.op("lds", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def sts(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` STS of `vector_bytes` a thread."""
        self.op("sts", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def dsmem_ld(self, dst: View, src: View, count: int, rank: IntLike, **fields: Any) -> None:
        """`count` ld.shared::cluster of `vector_bytes` a thread from the same tile of CTA `rank` of the cluster."""
        mask = Const(1) << rank
        self.op("dsmem_ld", count, dst=dst, srcs=(src,), multicast=mask, compute=copied, **fields)

    def dsmem_st(self, dst: View, src: View, count: int, rank: IntLike, **fields: Any) -> None:
        """`count` st.shared::cluster of `vector_bytes` a thread to the same tile of CTA `rank` of the cluster.

        That CTA may read them after a `cluster_sync`, or an `mbarrier_arrive` there, of the warp that has stored.
        """
        mask = Const(1) << rank
        self.op("dsmem_st", count, dst=dst, srcs=(src,), multicast=mask, compute=copied, **fields)

    # --- global memory through L1

    def ldg(self, dst: View, src: View, count: int | None = None, *, into: str, **fields: Any) -> None:
        """`count` LDG of `vector_bytes` a thread, covering the box `src`; completion on scoreboard `into`."""
        self.op("ldg", count, dst=dst, srcs=(src,), into=into, compute=copied, **fields)

    def stg(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` STG of `vector_bytes` a thread, covering the box `dst`."""
        self.op("stg", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def red(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` RED.ADD to global memory, done at the L2."""
        self.op("red", count, dst=dst, srcs=(src,), compute=added, **fields)

    def cp_async(self, dst: View, src: View, count: int | None = None, **fields: Any) -> None:
        """`count` cp.async (global to shared, past the registers)."""
        self.op("cp_async", count, dst=dst, srcs=(src,), compute=copied, **fields)

    def cp_commit(self) -> None:
        """Closes a group of cp.async."""
        self.op("cp_commit")

    def cp_wait(self, left: int) -> None:
        """Waits until at most `left` groups of cp.async are pending (this warp's own)."""
        self.op("cp_wait", value=as_expr(left))

    def cp_async_arrive(self, barrier: MBarrier, stage: IntLike) -> None:
        """cp.async.mbarrier.arrive.noinc: arrives when this warp's earlier cp.async are complete."""
        self.op("cp_async_arrive", barrier=barrier, stage=as_expr(stage))

    # --- TMA

    def tma_load(
        self,
        dst: View,
        src: View,
        barrier: MBarrier,
        stage: IntLike,
        multicast: IntLike | None = None,
        *,
        pair: bool = False,
    ) -> None:
        """One bulk tensor copy, box `src` of a global tensor to a shared tile; completes by bytes on `barrier[stage]`.

        multicast: mask of cluster ranks that all receive it, each on its own barrier. pair: on the barrier of the first
        CTA of the receiver's pair.
        """
        mask = None if multicast is None else as_expr(multicast)
        self.op(
            "tma_load", dst=dst, srcs=(src,), barrier=barrier, stage=as_expr(stage), multicast=mask, compute=copied,
            pair=pair,
        )  # fmt: skip

    def tma_store(self, dst: View, src: View, *, add: bool = False) -> None:
        """One bulk tensor store (or reduction at the L2) from a shared tile, grouped by `bulk_commit`, `bulk_wait`."""
        self.op("tma_reduce" if add else "tma_store", dst=dst, srcs=(src,), compute=added if add else copied)

    def bulk_commit(self) -> None:
        """Closes a group of bulk stores."""
        self.op("bulk_commit")

    def bulk_wait(self, left: int, *, read: bool = True) -> None:
        """Waits until at most `left` groups of bulk stores are pending; `read`: until their source has been read."""
        self.op("bulk_wait_read" if read else "bulk_wait", value=as_expr(left))

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
        self.op("bar_sync", stage=as_expr(barrier), value=as_expr(warps))

    def bar_arrive(self, barrier: IntLike, warps: int) -> None:
        """bar.arrive: counts as one of the `warps` warps of named barrier `barrier` and does not wait."""
        self.op("bar_arrive", stage=as_expr(barrier), value=as_expr(warps))

    def cluster_sync(self) -> None:
        """barrier.cluster arrive and wait by all warps of all CTAs of the cluster."""
        self.op("cluster_sync")

    def cluster_arrive(self) -> None:
        """barrier.cluster.arrive: the warp goes on, and comes to a `cluster_wait` before it arrives again."""
        self.op("cluster_arrive")

    def cluster_wait(self) -> None:
        """barrier.cluster.wait for all warps of all CTAs of the cluster, behind a `cluster_arrive`."""
        self.op("cluster_wait")

    # --- tile schedulers and fix-ups between CTAs

    def next_tile(self, var: str) -> Var:
        """atomicAdd of a global counter, broadcast in the CTA: the next tile of a dynamic scheduler in `var`."""
        self.op("next_tile", var=var)
        return Var(var)

    def try_cancel(self, answer: View, barrier: MBarrier, stage: IntLike, multicast: IntLike | None = None) -> None:
        """Asks for a cluster of the grid that has not started, which then never starts (cluster launch control). The
        answer, 16 bytes of shared memory, lands by bytes on `barrier[stage]`, of each CTA in the mask `multicast`."""
        mask = None if multicast is None else as_expr(multicast)
        self.op("try_cancel", dst=answer, barrier=barrier, stage=as_expr(stage), multicast=mask)

    def query_cancel(self, var: str, answer: View) -> Var:
        """The next of the CTA's answers in `var`: the number of the cluster that was cancelled, -1 if none was left."""
        self.op("query_cancel", var=var, srcs=(answer,))
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
        self.op("setmaxnreg", value=as_expr(registers))


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
        self.name = text("kernel name", name)
        self.grid = three(f"kernel {name}: grid", grid, MOST_SIDE)
        self.cluster = three(f"kernel {name}: cluster", cluster, MOST_SIDE)
        self.code_bytes, self.flags = code_bytes, flags
        self._shared: list[SharedTile] = []
        self._barriers: list[MBarrier] = []
        self._rings: list[Ring] = []
        self._roles: list[RoleBuilder] = []
        self._tensor: list[TensorTile] = []

    def shared(
        self, name: str, shape: Sequence[int], dtype: str, stages: int = 1, swizzle_bytes: int = 0, pad_bytes: int = 0
    ) -> SharedTile:
        """Declares a shared tile."""
        tile = SharedTile(name, shape, dtype, stages, swizzle_bytes, pad_bytes)  # type: ignore[arg-type]
        self._shared.append(tile)
        return tile

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str, stages: int = 1, over: TensorTile | None = None
    ) -> TensorTile:
        """Declares a tile in tensor memory, before the role that allocates it is written. over: in the columns of
        another one."""
        tile = TensorTile(name, shape, dtype, stages, over)  # type: ignore[arg-type]
        self._tensor.append(tile)
        return tile

    @property
    def tensor_columns(self) -> int:
        """Columns that the tiles declared so far are allocated."""
        return allocated_columns(self._tensor)

    def mbarrier(self, name: str, stages: int, arrivals: int) -> MBarrier:
        """Declares an array of mbarriers."""
        barrier = MBarrier(name, stages, arrivals)
        self._barriers.append(barrier)
        return barrier

    def ring(self, stages: int, *, producers: int = 1, consumers: int, name: str = "") -> Ring:
        """Declares a ring of stages with its barriers `full` and `empty`, `name` before both.

        producers: arrivals that complete a stage, 1 where one warp expects bytes. consumers: warps that release it.
        """
        ring = Ring(self.mbarrier(f"{name}full", stages, producers), self.mbarrier(f"{name}empty", stages, consumers))
        self._rings.append(ring)
        return ring

    @contextmanager
    def role(self, name: str, warps: int, registers: int) -> Iterator[RoleBuilder]:
        """`with kernel.role("consumer", warps=8, registers=232) as r:`; roles take warps in order of declaration."""
        builder = RoleBuilder(self, name, warps, registers)
        yield builder
        self._roles.append(builder)

    def build(self, launch_registers: int | None = None) -> Kernel:
        """The finished kernel. Raises InputError for undeclared names and sizes that cannot be."""
        if not self._roles:
            raise InputError(f"kernel {self.name} has no role; write one with `with kernel.role(...)`")
        roles = [Role(r.name, r.warps, r.registers, tuple(r._bodies[0])) for r in self._roles]
        registers = launch_registers or max(r.registers for r in roles)
        bulk = [op for role in roles for op in walk(role.body) if op.spec.unit is Unit.TMA]
        tensors = {view.buffer for op in bulk for view in op.views if view.buffer.space is Space.GLOBAL}
        kernel = Kernel(
            self.name, self.grid, self.cluster, tuple(roles), tuple(self._shared), tuple(self._barriers), registers,
            self.code_bytes, self.flags, descriptors=len(tensors), rings=tuple(self._rings),
            tensor=tuple(self._tensor),
        )  # fmt: skip
        check_kernel(kernel)
        return kernel


def _written_at() -> str:
    """File and line of whoever uses the language, its templates left out: what findings about an op name."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
