"""From a kernel and a machine to the engine's integer tables.

`lower_kernel` looks up the cost of every op in the machine's instruction table, turns expressions into bytecode and
views of global tensors into boxes of addresses. How an op becomes a row depends on who executes it (`LOWERING`); the
rest its entry in OPS says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction
from arch.gpu_rules import WARP_SIZE
from arch.limits import check_steps
from sim.engine.clock import TICKS_PER_CYCLE, cycles_to_ticks, transfer_ticks
from sim.gpu.counters import Counter
from sim.gpu.language import (
    Assign,
    Const,
    Expr,
    Kernel,
    Loop,
    Op,
    RegisterTile,
    Role,
    SharedTile,
    Statement,
    TensorTile,
    View,
)
from sim.gpu.language.ops import THREAD_MACS, Action, Space, Unit
from sim.gpu.language.program import walk
from sim.gpu.language.rules import check_kernel
from sim.gpu.lower.boxes import box_row
from sim.gpu.lower.expressions import Expressions, ExpressionScope, brief, given_variables
from sim.gpu.lower.instructions import (
    SharedAccess,
    instruction,
    mixed_instruction,
    shared_access,
    tensor_access,
    tensor_product,
)
from sim.gpu.lower.ranges import ANY, Known, Range, after, at_entry, behind, changed, inside, range_of, variables
from sim.gpu.lower.tables import (
    N_SCOREBOARDS,
    N_TILES,
    N_VARS,
    Affine,
    Box,
    Col,
    GpuProgram,
    Kind,
    Pipe,
)

FIGURES = (
    "dsmem.read",
    "dsmem.write",
    "instructions",
    "shared.bandwidth",
    "shared.banks",
    "sm.address_interval",
    "sm.beside_wgmma_alu",
    "sm.beside_wgmma_fma",
    "sm.beside_wgmma_xu",
    "sm.register_conflict",
    "sm.sub_cores",
    "sync.mbarrier_wait",
    "sync.named_barriers",
    "tma.max_multicast",
)
"""Figures of a preset that this module reads."""

_PIPE_COUNTER = {
    "fma": Counter.INST_FMA,
    "alu": Counter.INST_ALU,
    "half": Counter.INST_FP16,
    "fp64": Counter.INST_FP64,
    "fp64_shared": Counter.INST_FP64,
    "xu": Counter.INST_MUFU,
    "tensor": Counter.INST_TENSOR,
    "lsu": Counter.INST_SHARED,
}


_STEPS_AGAIN, _COUNT_OF_STEP = 10, 64
"""Steps of a program's length that a trip of `loop_while` counts as, and instructions of an op that are one."""

_BESIDE = 1 << 24
"""Elements that a box of a tensor may lie beside it, where there is nothing to move: what the last step of a large grid
leaves over."""

_BYTES_EXPECTED = Range(0, (1 << 20) - 1)
"""Of one phase of an mbarrier, as PTX has it."""


def _mixed(op: Op) -> tuple[tuple[str, int], ...]:
    """Instructions issued with an op and with its loads."""
    return op.mix + tuple(item for load in op.loads for item in load.mix)


def _names_registers(op: Op) -> bool:
    """Whether an op works on vector registers."""
    return any(view.buffer.space is Space.REGISTERS for view in op.views)


class _Lowering:
    """One kernel on its way into tables."""

    def __init__(self, kernel: Kernel, addresses: Mapping[str, int], spec: GpuSpec) -> None:
        self.kernel, self.addresses, self.spec = kernel, addresses, spec
        self.code: list[list[int]] = []
        self.expressions = Expressions()
        self.boxes: list[list[int]] = []
        self.op_number = 0
        self.steps, self.repeats = 0, 1  # trips of the loops of a warp, at least; how often the place is reached
        opcodes = {op.opcode for role in kernel.roles for op in walk(role.body)}
        self.multiplies, self.multiplies_beside = "mma" in opcodes, "wgmma" in opcodes
        self.first_barrier: dict[str, int] = {}
        n = 0
        for barrier in kernel.barriers:
            self.first_barrier[barrier.name] = n
            n += barrier.stages

    def role(self, role: Role) -> int:
        """Lowers a role; returns its first row."""
        first = len(self.code)
        self.where = f"kernel {self.kernel.name}, role {role.name}"
        self.known: Known | None = at_entry(self.kernel, role)
        self.variables = given_variables()
        self.count_vars = 0
        self.ended: list[int] = []  # trip counters of loops that are over
        self.scoreboards: dict[str, int] = {}
        self.tiles: dict[RegisterTile, int] = {}
        self._body(role.body)
        self._row(Kind.EXIT)
        return first

    # ---- rows

    def _row(self, kind: Kind, **columns: int) -> list[int]:
        row = [0] * Col.WIDTH
        row[Col.KIND] = kind
        row[Col.OP] = row[Col.SLOT] = row[Col.TILE] = row[Col.MASK] = row[Col.BOX] = -1
        row[Col.COUNT] = row[Col.ISSUE] = 1
        for name, value in columns.items():
            row[Col[name.upper()]] = value
        self.code.append(row)
        return row

    def _variable(self, name: str = "") -> int:
        if name and name in self.variables:
            return self.variables[name]
        if not name and self.ended:
            return self.ended.pop()
        number = self.count_vars
        self.count_vars += 1
        if number >= N_VARS:
            raise InputError(f"{self.where}: more than {N_VARS} loop and counter variables")
        if name:
            self.variables[name] = number
        return number

    def _expr(self, expr: Expr, what: str = "value", allowed: Range = ANY) -> int:
        """Index of an expression, which must keep to what is `allowed` of it."""
        return self.expressions.add(expr, ExpressionScope(self.variables, self.known, self.where), what, allowed)

    def _check(self, expr: Expr, what: str = "value", allowed: Range = ANY) -> None:
        """Refuses an expression that only the interpreter evaluates and that surely leaves what is `allowed` of it."""
        self.expressions.check(expr, ExpressionScope(self.variables, self.known, self.where), what, allowed)

    def _slot(self, table: dict, key: object, limit: int, what: str) -> int:
        if key not in table:
            if len(table) >= limit:
                raise InputError(f"{self.where}: more than {limit} {what}")
            table[key] = len(table)
        return table[key]

    def _body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement)
                continue
            if isinstance(statement, Assign):
                value = self._expr(statement.value, f"{statement.var} =")
                self._row(Kind.ASSIGN, arg=value, var=self._variable(statement.var))
            else:
                self._op(statement)
                self.op_number += 1
            self.known = after(statement, self.known) if self.known else None

    def _loop(self, loop: Loop) -> None:
        if loop.again and not changed(loop.body) & set(variables(loop.trips)):
            raise InputError(
                f"{self.where}: loop_while({brief(loop.trips)}) never ends once it has begun: its body does not change "
                "its condition; `when` runs a body once"
            )
        trips, start = self._expr(loop.trips), self._expr(loop.start)
        var, hidden = self._variable(loop.var), self._variable()
        row = self._row(Kind.LOOP, arg=trips, start=start, var=var, var2=hidden)
        first, before = len(self.code), self.known
        self.known = inside(loop, before) if before else None
        repeats = self.repeats
        self.repeats *= 0 if loop.again or before is None else max(0, range_of(loop.trips, before).low)
        self.steps += self.repeats
        self._body(loop.body)
        self.repeats = repeats
        if loop.again:  # the trip counter is what the condition says now, one of it taken by NEXT
            self._row(Kind.ASSIGN, arg=self._expr(loop.trips + 1), var=hidden)
        steps = _STEPS_AGAIN if loop.again else 1
        self._row(Kind.NEXT, step=self._expr(loop.step), var=var, var2=hidden, jump=first, count=steps)
        row[Col.JUMP] = len(self.code)
        self.known = behind(loop, before, self.known) if before else None
        self.ended.append(hidden)

    def _op(self, op: Op) -> None:
        role = self.where
        self.where = f"{role}, {op}"
        self.steps += self.repeats * (op.count // _COUNT_OF_STEP)
        for name in op.after:
            self._scoreboard(name)
        columns: dict[str, int] = {"op": self.op_number, "count": op.count, "wait_mask": self._waits(op)}
        columns["issue"] = op.count + sum(n for _, n in _mixed(op)) + sum(load.count for load in op.loads)
        columns["stage"] = self._expr(op.stage, *self._numbered(op))
        if op.barrier is not None:
            columns["bar"] = self.first_barrier[op.barrier.name]
        if op.into:
            columns["slot"] = self._scoreboard(op.into)
        elif op.dst is not None and isinstance(op.dst.buffer, RegisterTile) and not op.spec.owns_registers:
            columns["tile"] = self._tile(op.dst.buffer)
        for view in (*op.views, *(view for load in op.loads for view in load.views)):
            self._place(view)
        for expr in (op.value, *op.indices):
            self._check(expr)
        try:
            columns |= self._mix(op)
            columns |= LOWERING[op.spec.unit](self, op) if op.spec.action is Action.OPERATE else self._control(op)
        except InputError as error:  # of the machine's table, which does not know for whom it is asked
            text = str(error)
            raise InputError(text if text.startswith(self.where) else f"{self.where}: {text}") from None
        if op.multicast is not None:
            every = Range(0, (1 << self.kernel.cluster_size) - 1)
            columns["mask"] = self._expr(op.multicast, "mask of the cluster's CTAs", every)
        self._row(Kind[op.spec.kind], **columns)
        self.where = role

    def _numbered(self, op: Op) -> tuple[str, Range]:
        """What the `stage` of an op numbers, and which numbers there are."""
        if op.barrier is not None:
            return f"stage of mbarrier {op.barrier.name}", Range(0, op.barrier.stages - 1)
        if not op.spec.numbered:
            return "stage", ANY
        if op.spec.unit is Unit.SEMAPHORES:
            if self.kernel.flags == 0:
                raise InputError(f"{self.where}: the kernel has no flags; KernelBuilder(..., flags=N) declares them")
            return "flag", Range(0, self.kernel.flags - 1)
        return "named barrier", Range(0, self.spec.sync.named_barriers - 1)

    def _place(self, view: View) -> None:
        """Checks where a view lies: within its tile, and of a tensor in device memory not wholly beside it."""
        name, shape = view.buffer.name, view.buffer.shape
        if isinstance(view.buffer, SharedTile | TensorTile):
            self._check(view.stage, f"stage of {name}", Range(0, view.buffer.stages - 1))
        for d, (offset, extent) in enumerate(zip(view.offsets, view.extents, strict=True)):
            edges = Range(0, shape[d] - extent)
            if view.buffer.space is Space.GLOBAL:
                edges = Range(-extent - _BESIDE, shape[d] + _BESIDE)
            self._check(offset, f"offset of {name} in dimension {d}", edges)

    def _scoreboard(self, name: str) -> int:
        return self._slot(self.scoreboards, name, N_SCOREBOARDS, "scoreboards")

    def _tile(self, tile: RegisterTile) -> int:
        return self._slot(self.tiles, tile, N_TILES, "register tiles")

    def _waits(self, op: Op) -> int:
        mask = 0
        for name in op.after:
            mask |= 1 << self._scoreboard(name)
        for view in op.srcs:
            if isinstance(view.buffer, RegisterTile):
                mask |= 1 << (N_SCOREBOARDS + self._tile(view.buffer))
        if op.dst is not None and isinstance(op.dst.buffer, RegisterTile):
            mask |= 1 << (N_SCOREBOARDS + N_TILES + self._tile(op.dst.buffer))
        return mask

    def _mix(self, op: Op) -> dict[str, int]:
        """Pipe time of the instructions issued with an op, on at most two further pipes (the busiest)."""
        ticks: dict[int, int] = {}
        for name, count in _mixed(op):
            row = mixed_instruction(self.spec, name)
            if row.pipe == "lsu":
                continue  # issue slots only: the SM's queue is booked by memory ops
            pipe = Pipe[row.pipe.upper()]
            share = cycles_to_ticks(row.interval_cycles) * self._sharers(row)
            ticks[pipe] = ticks.get(pipe, 0) + count * share
        columns: dict[str, int] = {}
        for i, (busiest, total) in enumerate(sorted(ticks.items(), key=lambda item: -item[1])[:2]):
            columns[f"mix_pipe{i}"], columns[f"mix_ticks{i}"] = busiest, total
        return columns

    def _sharers(self, row: Instruction) -> int:
        """Sub-cores that a pipe serves, each of which has its share of the time."""
        return self.spec.sm.sub_cores if row.pipe in ("lsu", "fp64_shared") else 1

    def _registers(self, op: Op, accesses: int) -> int:
        """Ticks for which `accesses` of whole registers keep mma.sync from the register file, where all of its operands
        lie; wgmma loses nothing to a mix of instructions, but slows them (`_beside`).

        An op that names no register tile is address arithmetic, of which kernels for tensor cores have most in the
        uniform datapath, with registers of its own.
        """
        shares = self.multiplies and _names_registers(op)
        return accesses * cycles_to_ticks(self.spec.sm.register_conflict_cycles) if shares else 0

    def _beside(self, op: Op) -> int:
        """Ticks for which the instructions of an op on vector registers hold the register file while wgmma run, whose
        accumulators lie in it: one after the other, whatever their pipe."""
        if not self.multiplies_beside or not _names_registers(op):
            return 0
        sm = self.spec.sm
        beside = {"fma": sm.beside_wgmma_fma_cycles, "alu": sm.beside_wgmma_alu_cycles, "xu": sm.beside_wgmma_xu_cycles}
        pipes = ((instruction(self.spec, op).pipe, op.count), *self._mix_pipes(op))
        return sum(count * cycles_to_ticks(beside.get(pipe) or 0) for pipe, count in pipes)

    def _mix_pipes(self, op: Op) -> tuple[tuple[str, int], ...]:
        return tuple((mixed_instruction(self.spec, name).pipe, count) for name, count in op.mix)

    def _operand(self, op: Op, space: Space) -> View:
        for view in op.views:
            if view.buffer.space is space:
                return view
        raise InputError(f"{self.where}: {op.opcode} needs an operand in {space}")

    def _box(self, op: Op) -> int:
        view = self._operand(op, Space.GLOBAL)
        self.boxes.append(box_row(view, self.addresses, self._expr, self.where))
        return len(self.boxes) - 1

    # ---- columns of an op, by who executes it

    def _arithmetic(self, op: Op) -> dict[str, int]:
        row = instruction(self.spec, op)
        macs = row.macs if op.spec.accumulates else WARP_SIZE * THREAD_MACS.get(op.opcode, 0)
        interval = cycles_to_ticks(row.cadence_cycles) * self._sharers(row)
        if row.pipe == "lsu":  # behind an address unit of its own
            interval = max(interval, cycles_to_ticks(self.spec.sm.address_interval_cycles))
        latency = cycles_to_ticks(row.latency_cycles)
        if op.chain > 1:
            # What one step waits for; the op's own issue covers a part of the chain.
            mixed = (mixed_instruction(self.spec, name) for name, _ in op.mix)
            step = latency + sum(cycles_to_ticks(other.latency_cycles) for other in mixed)
            latency = max(step, op.chain * step - (op.count - 1) * interval)
        return {
            "pipe": Pipe[row.pipe.upper()],
            "interval": interval,
            "latency": latency,
            "macs": macs,
            "macs_counter": Counter.MACS_TENSOR if op.spec.accumulates else Counter.MACS_VECTOR,
            # Packed halves have an energy of their own, also where the FMA pipe runs them.
            "counter": Counter.INST_FP16 if op.opcode == "hfma2" else _PIPE_COUNTER[row.pipe],
            "spread": int(op.spread),
            "registers": 0 if row.pipe == "tensor" else self._registers(op, op.count + sum(n for _, n in op.mix)),
            "beside": self._beside(op),
            **self._loads(op),
        }

    def _loads(self, op: Op) -> dict[str, int]:
        """What the loads between the instructions of an op take of shared memory, all together."""
        columns = {"loads": 0, "shared": 0, "conflicts": 0, "bytes": 0}
        for load in op.loads:
            access = shared_access(self.spec, load)
            ticks = self._wave_ticks(access)
            columns["loads"] += load.count
            columns["shared"] += load.count * access.waves * ticks
            columns["conflicts"] += load.count * max(0, access.waves - access.least_waves) * ticks
            columns["bytes"] += load.count * WARP_SIZE * access.thread_bytes
        return columns

    def _wave_ticks(self, access: SharedAccess) -> int:
        """Ticks of one wavefront: at the array's bandwidth, but no bank gives more than a word a cycle."""
        shared = self.spec.shared
        return transfer_ticks(access.wave_bytes, min(shared.bandwidth_bytes_per_cycle, 4 * shared.banks))

    def _network_ticks(self, op: Op, access: SharedAccess) -> int:
        """Ticks that an access of another SM's shared memory takes of the network at the SM that it brings data to."""
        dsmem = self.spec.dsmem
        if access.network_bytes == 0 or dsmem is None:
            return 0
        rank = op.multicast
        if isinstance(rank, Const) and rank.value >> self.kernel.cluster_size:
            raise InputError(
                f"{self.where}: {op.opcode} names rank {rank.value.bit_length() - 1} of a cluster of "
                f"{self.kernel.cluster_size} CTAs; the last is {self.kernel.cluster_size - 1}"
            )
        rate = dsmem.write_bytes_per_cycle if op.spec.stores_shared else dsmem.read_bytes_per_cycle
        return transfer_ticks(access.network_bytes, rate)

    def _shared(self, op: Op) -> dict[str, int]:
        access = shared_access(self.spec, op)
        ticks, conflicts = self._wave_ticks(access), access.waves - access.least_waves
        # A conflicting wavefront costs one cycle of the data path and, seen by one warp, one more of latency
        # (23/25/29/37 for 1/2/4/8-way).
        latency = cycles_to_ticks(access.row.latency_cycles) + (conflicts - access.registers) * TICKS_PER_CYCLE
        return {
            "pipe": Pipe.LSU,
            "interval": cycles_to_ticks(self.spec.sm.address_interval_cycles),
            "latency": max(latency, 0),
            "shared": access.waves * ticks,
            "conflicts": max(0, conflicts) * ticks,
            "network": self._network_ticks(op, access),
            "bytes": WARP_SIZE * access.thread_bytes,
            "counter": Counter.INST_SHARED,
            "bytes_counter": Counter.SHARED_WRITE_BYTES if op.spec.stores_shared else Counter.SHARED_READ_BYTES,
            "registers": self._registers(op, op.count * access.registers),
        }

    def _global(self, op: Op) -> dict[str, int]:
        row = instruction(self.spec, op)
        interval = cycles_to_ticks(self.spec.sm.address_interval_cycles)
        return {"box": self._box(op), "pipe": Pipe[row.pipe.upper()], "interval": interval}

    def _bulk(self, op: Op) -> dict[str, int]:
        if self.spec.tma is None:
            raise InputError(f"{self.where}: {op.opcode} needs a TMA, which {self.spec.name} does not have")
        most = self.spec.tma.max_multicast
        if op.multicast is not None and self.kernel.cluster_size > most:
            raise InputError(
                f"{self.where}: {op.opcode} to a cluster of {self.kernel.cluster_size} CTAs; {self.spec.name} has "
                f"tma.max_multicast = {most}"
            )
        size_bytes = self._operand(op, Space.SHARED).size_bytes
        return {"box": self._box(op), "bytes": size_bytes, "value": int(op.pair)}

    def _matrices(self, op: Op) -> dict[str, int]:
        """A product by the tensor core beside its warp, its operands from shared memory or, the first, registers."""
        row = instruction(self.spec, op)
        m, n, k = (int(x) for x in op.shape.replace("m", " ").replace("n", " ").replace("k", " ").split())
        element = DTYPE_BYTES[op.srcs[1].buffer.dtype]
        from_registers = op.srcs[0].buffer.space is Space.REGISTERS
        size_bytes = n * k * element + (0 if from_registers else m * k * element)
        ticks = transfer_ticks(size_bytes, self.spec.shared.bandwidth_bytes_per_cycle)
        interval = cycles_to_ticks(row.interval_cycles)
        # Warps that execute it together book equal parts of the operand traffic.
        warps = op.spec.group.warps if op.spec.group else 1
        return {
            "pipe": Pipe[row.pipe.upper()],
            "interval": interval,
            "latency": cycles_to_ticks(row.latency_cycles) - interval,
            "shared": ticks // warps,
            "bytes": size_bytes // warps,
            "macs": row.macs // warps,
        }

    def _tensor_memory(self, op: Op) -> dict[str, int]:
        """Products whose sums lie in tensor memory, what else reaches that, and requests of launch control."""
        if op.opcode == "try_cancel":
            assert op.dst is not None
            return {"bytes": op.dst.size_bytes}
        if op.spec.accumulates:
            product = tensor_product(self.spec, op)
            # Rows of the table say when a wait for them ends, which takes a part of it.
            waits = self.spec.sync.mbarrier_wait_cycles or 0
            tail = product.row.latency_cycles - product.row.interval_cycles - waits
            return {
                "pipe": Pipe.TENSOR,
                "interval": cycles_to_ticks(product.row.interval_cycles),
                "latency": max(0, cycles_to_ticks(tail)),
                "shared": transfer_ticks(product.operand_bytes, self.spec.shared.bandwidth_bytes_per_cycle),
                "bytes": product.operand_bytes,
                "macs": product.macs,
                "value": int(op.pair),
            }
        access = tensor_access(self.spec, op)
        interval = cycles_to_ticks(access.port_cycles)
        return {
            "pipe": Pipe.LSU,
            "interval": interval,
            "latency": cycles_to_ticks(access.latency_cycles),
            "value": int(op.pair),
        }

    def _control(self, op: Op) -> dict[str, int]:
        """What has no operands: barriers, groups, semaphores, counters."""
        if op.barrier is not None and self.spec.sync.mbarrier_wait_cycles is None:
            raise InputError(f"{self.where}: {op.opcode} needs mbarriers, which {self.spec.name} does not have")
        if op.spec.unit is Unit.TCGEN05 and self.spec.tcgen05 is None:
            raise InputError(f"{self.where}: {op.opcode} needs tensor memory, which {self.spec.name} does not have")
        if op.phase is not None:
            return {"arg": self._expr(op.phase)}
        if op.spec.evaluated:
            expects = op.spec.action is Action.EXPECT_BYTES
            return {"arg": self._expr(op.value, "bytes expected", _BYTES_EXPECTED if expects else ANY)}
        assert isinstance(op.value, Const)
        columns = {"value": op.value.value}
        if op.var:
            columns["var"] = self._variable(op.var)
        return columns


#: Columns of an op with operands, by who executes it.
LOWERING: Mapping[Unit, Callable[[_Lowering, Op], dict[str, int]]] = {
    Unit.ISSUE: _Lowering._arithmetic,
    Unit.TENSOR: _Lowering._matrices,
    Unit.SHARED: _Lowering._shared,
    Unit.GLOBAL: _Lowering._global,
    Unit.TMA: _Lowering._bulk,
    Unit.TCGEN05: _Lowering._tensor_memory,
}


def lower_kernel(
    kernel: Kernel,
    addresses: Mapping[str, int],
    spec: GpuSpec,
) -> GpuProgram:
    """Tables of one launch. addresses: byte address of each tensor.

    Raises InputError for a kernel that the machine cannot run.
    """
    check_kernel(kernel)
    lowering = _Lowering(kernel, addresses, spec)
    entries: list[tuple[int, int]] = []
    steps = 0
    for role in kernel.roles:
        lowering.steps = 1
        first = lowering.role(role)
        entries.extend((first, warp) for warp in range(role.warps))
        steps += role.warps * lowering.steps
    check_steps(f"kernel {kernel.name}", steps * kernel.ctas)
    arrivals = [barrier.arrivals for barrier in kernel.barriers for _ in range(barrier.stages)]
    expressions = lowering.expressions
    return GpuProgram(
        code=np.array(lowering.code, dtype=np.int64),
        expr=np.array(expressions.words or [(0, 0)], dtype=np.int64),
        expr_at=np.array(expressions.start, dtype=np.int64),
        affine=np.array(expressions.affine or [[-1] * Affine.WIDTH], dtype=np.int64),
        tables=np.array(expressions.tables or [0], dtype=np.int64),
        limits=np.array(expressions.limits or [(0, 0)], dtype=np.int64),
        boxes=np.array(lowering.boxes or [[0] * Box.WIDTH], dtype=np.int64),
        warp_entry=np.array(entries, dtype=np.int64),
        barrier_arrivals=np.array(arrivals or [0], dtype=np.int64),
    )


def left_limit(kernel: Kernel, addresses: Mapping[str, int], spec: GpuSpec, limit: int, value: int) -> str:
    """What is said of a value that has left the limit of that number while the kernel ran."""
    lowering = _Lowering(kernel, addresses, spec)
    for role in kernel.roles:
        lowering.role(role)
    place, allowed = lowering.expressions.places[limit], Range(*lowering.expressions.limits[limit])
    return f"{place} is {value} while it runs; allowed are {allowed}"
