"""From a kernel and a machine to the engine's integer tables.

`lower_kernel` looks up the cost of every op in the machine's instruction table, turns expressions into bytecode and
views of global tensors into boxes of addresses. `occupancy` says how many CTAs an SM holds and what limits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction
from arch.gpu_rules import WARP_SIZE
from sim.engine.clock import TICKS_PER_CYCLE, cycles_to_ticks, transfer_ticks
from sim.gpu.counters import Counter
from sim.gpu.language import (
    Assign,
    Binary,
    Const,
    Expr,
    GlobalTensor,
    Kernel,
    Loop,
    Op,
    RegisterTile,
    Role,
    Statement,
    Table,
    Var,
    View,
)
from sim.gpu.lower.banks import access_waves, ldmatrix_waves
from sim.gpu.lower.tables import (
    MAX_TERMS,
    N_SCOREBOARDS,
    N_TILES,
    N_VARS,
    Affine,
    Box,
    Col,
    GpuProgram,
    Kind,
    Operator,
    Pipe,
    WarpVariables,
)

_PIPE_COUNTER = {
    "fma": Counter.INST_FMA,
    "alu": Counter.INST_ALU,
    "half": Counter.INST_FP16,
    "xu": Counter.INST_MUFU,
    "tensor": Counter.INST_TENSOR,
    "lsu": Counter.INST_SHARED,
}
_VECTOR_MACS = {"ffma": WARP_SIZE, "hfma2": 2 * WARP_SIZE, "dp4a": 4 * WARP_SIZE}
_OPERATORS = {
    "+": Operator.ADD,
    "-": Operator.SUB,
    "*": Operator.MUL,
    "//": Operator.DIV,
    "%": Operator.MOD,
    "^": Operator.XOR,
    "&": Operator.AND,
    "<<": Operator.SHL,
    "<": Operator.LT,
    "==": Operator.EQ,
    "min": Operator.MIN,
    "max": Operator.MAX,
}
_GIVEN = ("cta_x", "cta_y", "cta_z", "cluster_rank", "warp")
"""Variables that a warp starts with, in the order of their columns."""
_GLOBAL = {"ldg": Kind.LDG, "stg": Kind.STG, "red": Kind.RED, "cp_async": Kind.CP_ASYNC}
_TMA = {"tma_load": Kind.TMA_LOAD, "tma_store": Kind.TMA_STORE, "tma_reduce": Kind.TMA_REDUCE}
_SHARED = ("lds", "sts", "ldmatrix", "stmatrix", "dsmem_ld")
_SYNC = {
    "cp_commit": Kind.CP_COMMIT,
    "cp_wait": Kind.CP_WAIT,
    "cp_async_arrive": Kind.CP_ARRIVE,
    "bulk_commit": Kind.BULK_COMMIT,
    "bulk_wait": Kind.BULK_WAIT,
    "bulk_wait_read": Kind.BULK_WAIT_READ,
    "mbarrier_wait": Kind.MBAR_WAIT,
    "mbarrier_expect": Kind.MBAR_EXPECT,
    "mbarrier_arrive": Kind.MBAR_ARRIVE,
    "bar_sync": Kind.BAR_SYNC,
    "bar_arrive": Kind.BAR_ARRIVE,
    "cluster_sync": Kind.CLUSTER_SYNC,
    "next_tile": Kind.NEXT_TILE,
    "flag_add": Kind.FLAG_ADD,
    "flag_wait": Kind.FLAG_WAIT,
    "wgmma_commit": Kind.WGMMA_COMMIT,
    "wgmma_wait": Kind.WGMMA_WAIT,
    "wgmma_fence": Kind.NOTE,
    "fence_async": Kind.FENCE,
    "setmaxnreg": Kind.NOTE,
}


@dataclass(frozen=True)
class Occupancy:
    """CTAs that one SM holds, and the resource that limits them."""

    ctas: int
    warps: int
    limiter: str


def occupancy(kernel: Kernel, spec: GpuSpec) -> Occupancy:
    """CTAs of `kernel` an SM can hold. Raises InputError if not even one fits."""
    granule = spec.sm.register_granule
    registers = -(-kernel.launch_registers * WARP_SIZE // granule) * granule
    shared, shared_total = kernel.shared_bytes, shared_of_cta(kernel, spec)
    if shared > spec.shared.max_per_cta_bytes:
        raise InputError(
            f"kernel {kernel.name} needs {shared} B of shared memory a CTA; "
            f"{spec.name} allows {spec.shared.max_per_cta_bytes} B (fewer stages or smaller tiles)"
        )
    if kernel.launch_registers > spec.sm.max_registers_per_thread:
        raise InputError(
            f"kernel {kernel.name} needs {kernel.launch_registers} registers a thread; "
            f"{spec.name} allows {spec.sm.max_registers_per_thread}"
        )
    if kernel.cluster_size > spec.max_ctas_per_cluster:
        raise InputError(
            f"kernel {kernel.name} has clusters of {kernel.cluster_size} CTAs; "
            f"{spec.name} allows {spec.max_ctas_per_cluster}"
        )
    limits = {
        "warps": spec.sm.max_warps // kernel.warps,
        # A sub-core holds whole warps: its quarter of the registers is not shared with the others.
        "registers": spec.sm.registers // spec.sm.sub_cores // registers * spec.sm.sub_cores // kernel.warps,
        "shared memory": spec.shared.max_per_sm_bytes // shared_total if shared_total else spec.sm.max_ctas,
        "CTA slots": spec.sm.max_ctas,
    }
    limiter = min(limits, key=lambda name: limits[name])
    ctas = limits[limiter]
    if ctas < 1:
        raise InputError(f"kernel {kernel.name}: one CTA exceeds the {limiter} of an SM of {spec.name}")
    if kernel.cluster_size > max(spec.sms_per_gpc) * ctas:
        raise InputError(
            f"kernel {kernel.name}: a cluster of {kernel.cluster_size} CTAs does not fit a GPC of {spec.name}"
        )
    return Occupancy(ctas, ctas * kernel.warps, limiter)


def shared_of_cta(kernel: Kernel, spec: GpuSpec) -> int:
    """Bytes of the combined array that a resident CTA takes, the system's share included."""
    step = spec.shared.granule_bytes
    return -(-(kernel.shared_bytes + spec.shared.reserved_per_cta_bytes) // step) * step


def find_row(spec: GpuSpec, opcode: str, dtype: str = "", shape: str = "") -> Instruction:
    """The instruction-table row of an opcode; without a dtype the first row of that name."""
    if dtype or shape:
        return spec.instruction(opcode, dtype, shape)
    for row in spec.instructions:
        if row.op == opcode:
            return row
    return spec.instruction(opcode, dtype, shape)  # raises, with the nearest name


def mixed_row(spec: GpuSpec, name: str) -> Instruction:
    """The row of an instruction of a mix, `opcode` or `opcode.dtype`."""
    opcode, _, dtype = name.partition(".")
    return find_row(spec, opcode, dtype)


def shared_row(spec: GpuSpec, op: Op) -> tuple[Instruction, int, int]:
    """Row, wavefronts without conflicts, wavefronts with the tile's conflicts of one shared-memory instruction."""
    view = op.dst if op.opcode in ("sts", "stmatrix") else op.srcs[0]
    assert view is not None
    if op.opcode in ("ldmatrix", "stmatrix"):
        row = find_row(spec, op.opcode, "b16", "x4")
        return row, 4, ldmatrix_waves(view)
    bits = 8 * max(4, op.vector_bytes)
    if op.opcode == "dsmem_ld":
        # An lds with the latency of the network, whose rate is not booked, nor the array of the SM that is read.
        if spec.dsmem is None:
            raise InputError(f"dsmem_ld needs clusters, which {spec.name} does not have")
        row = find_row(spec, "lds", f"b{bits}").model_copy(update={"latency_cycles": spec.dsmem.latency_cycles})
    else:
        row = find_row(spec, op.opcode, f"b{bits}")
    return row, max(1, bits // 32), access_waves(view, op.vector_bytes, op.sharers)


def _mixed(op: Op) -> tuple[tuple[str, int], ...]:
    """Instructions issued with an op and with its loads."""
    return op.mix + tuple(item for load in op.loads for item in load.mix)


class _Expressions:
    """The expression table under construction."""

    def __init__(self) -> None:
        self.words: list[tuple[int, int]] = []
        self.start: list[int] = [0]
        self.affine: list[list[int]] = []
        self.tables: list[int] = []
        self._known: dict[tuple[tuple[int, int], ...], int] = {}

    def add(self, expr: Expr, variables: Mapping[str, int], where: str) -> int:
        words = tuple(self._compile(expr, variables, where))
        if words not in self._known:
            self._known[words] = len(self.start) - 1
            self.words.extend(words)
            self.start.append(len(self.words))
            self.affine.append(_affine(words))
        return self._known[words]

    def _compile(self, expr: Expr, variables: Mapping[str, int], where: str) -> list[tuple[int, int]]:
        if isinstance(expr, Const):
            return [(Operator.CONST, expr.value)]
        if isinstance(expr, Var):
            if expr.name not in variables:
                raise InputError(f"{where}: variable {expr.name} is used outside its loop or before it is assigned")
            return [(Operator.VARIABLE, WarpVariables.FIRST + variables[expr.name])]
        if isinstance(expr, Table):
            at = len(self.tables)
            self.tables.extend(expr.values)
            return [*self._compile(expr.index, variables, where), (Operator.TABLE, at)]
        assert isinstance(expr, Binary)
        left = self._compile(expr.left, variables, where)
        return [*left, *self._compile(expr.right, variables, where), (_OPERATORS[expr.op], 0)]


def _affine(words: Sequence[tuple[int, int]]) -> list[int]:
    """An expression's row in the table of affine ones (`tables.Affine`)."""
    stack: list[dict[int, int]] = []  # factors by column of the warp's row, the constant at -1
    for op, arg in words:
        if op == Operator.CONST:
            stack.append({-1: arg})
        elif op == Operator.VARIABLE:
            stack.append({arg: 1})
        elif op in (Operator.ADD, Operator.SUB, Operator.MUL):
            b, a = stack.pop(), stack.pop()
            if op == Operator.MUL:
                a, b = (a, b) if b.keys() <= {-1} else (b, a)
                if not b.keys() <= {-1}:
                    return [-1] * Affine.WIDTH
                stack.append({column: factor * b.get(-1, 0) for column, factor in a.items()})
            else:
                sign = 1 if op == Operator.ADD else -1
                stack.append({column: a.get(column, 0) + sign * b.get(column, 0) for column in a | b})
        else:
            return [-1] * Affine.WIDTH
    (terms,) = stack
    constant = terms.pop(-1, 0)
    if len(terms) > MAX_TERMS:
        return [-1] * Affine.WIDTH
    row = [len(terms), constant, *(word for term in terms.items() for word in term)]
    return row + [0] * (Affine.WIDTH - len(row))


class _Lowering:
    """One kernel on its way into tables."""

    def __init__(self, kernel: Kernel, addresses: Mapping[str, int], spec: GpuSpec) -> None:
        self.kernel, self.addresses, self.spec = kernel, addresses, spec
        self.code: list[list[int]] = []
        self.expressions = _Expressions()
        self.boxes: list[list[int]] = []
        self.op_number = 0
        self.first_barrier: dict[str, int] = {}
        n = 0
        for barrier in kernel.barriers:
            self.first_barrier[barrier.name] = n
            n += barrier.stages
        self.shared_ticks = transfer_ticks(128, spec.shared.bandwidth_bytes_per_cycle)

    def role(self, role: Role) -> int:
        """Lowers a role; returns its first row."""
        first = len(self.code)
        self.where = f"kernel {self.kernel.name}, role {role.name}"
        self.variables: dict[str, int] = {
            name: WarpVariables.CTA_X - WarpVariables.FIRST + i for i, name in enumerate(_GIVEN)
        }
        self.count_vars = 0
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
        number = self.count_vars
        self.count_vars += 1
        if number >= N_VARS:
            raise InputError(f"{self.where}: more than {N_VARS} loop and counter variables (two a loop)")
        if name:
            self.variables[name] = number
        return number

    def _expr(self, expr: Expr) -> int:
        return self.expressions.add(expr, self.variables, self.where)

    def _slot(self, table: dict, key: object, limit: int, what: str) -> int:
        if key not in table:
            if len(table) >= limit:
                raise InputError(f"{self.where}: more than {limit} {what}")
            table[key] = len(table)
        return table[key]

    def _body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                trips, start = self._expr(statement.trips), self._expr(statement.start)
                var, hidden = self._variable(statement.var), self._variable()
                row = self._row(Kind.LOOP, arg=trips, start=start, var=var, var2=hidden)
                inside = len(self.code)
                self._body(statement.body)
                if statement.again:  # the trip counter is what the condition says now, one of it taken by NEXT
                    self._row(Kind.ASSIGN, arg=self._expr(statement.trips + 1), var=hidden)
                self._row(Kind.NEXT, step=self._expr(statement.step), var=var, var2=hidden, jump=inside)
                row[Col.JUMP] = len(self.code)
            elif isinstance(statement, Assign):
                value = self._expr(statement.value)
                self._row(Kind.ASSIGN, arg=value, var=self._variable(statement.var))
            else:
                self._op(statement)
                self.op_number += 1

    def _op(self, op: Op) -> None:
        for name in op.after:
            self._scoreboard(name)
        columns: dict[str, int] = {"op": self.op_number, "count": op.count, "wait_mask": self._waits(op)}
        columns["issue"] = op.count + sum(n for _, n in _mixed(op)) + sum(load.count for load in op.loads)
        columns["stage"] = self._expr(op.stage)
        if op.barrier is not None:
            columns["bar"] = self.first_barrier[op.barrier.name]
        if op.multicast is not None:
            columns["mask"] = self._expr(op.multicast)
        if op.into:
            columns["slot"] = self._scoreboard(op.into)
        elif op.dst is not None and isinstance(op.dst.buffer, RegisterTile) and op.opcode != "wgmma":
            columns["tile"] = self._slot(self.tiles, op.dst.buffer, N_TILES, "register tiles")
        columns |= self._mix(op)
        if op.opcode in _GLOBAL:
            row = find_row(
                self.spec, "stg" if op.opcode in ("stg", "red") else "ldg", f"b{8 * max(4, op.vector_bytes)}"
            )
            self._row(
                _GLOBAL[op.opcode], box=self._box(op.dst if op.opcode in ("stg", "red") else op.srcs[0]),
                pipe=Pipe[row.pipe.upper()],
                interval=cycles_to_ticks(self.spec.sm.address_interval_cycles), **columns,
            )  # fmt: skip
        elif op.opcode in _TMA:
            if self.spec.tma is None:
                raise InputError(f"{self.where}: {op.opcode} needs a TMA, which {self.spec.name} does not have")
            store = op.opcode != "tma_load"
            tile = op.srcs[0] if store else op.dst
            assert tile is not None
            self._row(_TMA[op.opcode], box=self._box(op.dst if store else op.srcs[0]), bytes=tile.size_bytes, **columns)
        elif op.opcode in _SHARED:
            self._shared(op, columns)
        elif op.opcode == "wgmma":
            self._wgmma(op, columns)
        elif op.opcode in _SYNC:
            self._sync(op, columns)
        else:
            self._run(op, columns)

    def _scoreboard(self, name: str) -> int:
        return self._slot(self.scoreboards, name, N_SCOREBOARDS, "scoreboards")

    def _waits(self, op: Op) -> int:
        mask = 0
        for name in op.after:
            mask |= 1 << self._scoreboard(name)
        for view in op.srcs:
            if isinstance(view.buffer, RegisterTile):
                mask |= 1 << (N_SCOREBOARDS + self._slot(self.tiles, view.buffer, N_TILES, "register tiles"))
        if op.dst is not None and isinstance(op.dst.buffer, RegisterTile):
            tile = self._slot(self.tiles, op.dst.buffer, N_TILES, "register tiles")
            mask |= 1 << (N_SCOREBOARDS + N_TILES + tile)
        return mask

    def _mix(self, op: Op) -> dict[str, int]:
        """Pipe time of the instructions issued with an op, on at most two further pipes (the busiest)."""
        ticks: dict[int, int] = {}
        for name, count in _mixed(op):
            row = mixed_row(self.spec, name)
            if row.pipe == "lsu":
                continue  # issue slots only: the SM's queue is booked by memory ops
            pipe = Pipe[row.pipe.upper()]
            ticks[pipe] = ticks.get(pipe, 0) + count * cycles_to_ticks(row.interval_cycles)
        columns: dict[str, int] = {}
        for i, (busiest, total) in enumerate(sorted(ticks.items(), key=lambda item: -item[1])[:2]):
            columns[f"mix_pipe{i}"], columns[f"mix_ticks{i}"] = busiest, total
        return columns

    def _registers(self, op: Op, accesses: int) -> int:
        """Ticks for which `accesses` of whole registers keep the tensor core from the register file.

        An op that names no register tile is address arithmetic, of which kernels for tensor cores have most in the
        uniform datapath, with registers of its own.
        """
        named = any(isinstance(v.buffer, RegisterTile) for v in (*op.srcs, *((op.dst,) if op.dst else ())))
        return accesses * cycles_to_ticks(self.spec.sm.register_conflict_cycles) if named else 0

    # ---- kinds of ops

    def _run(self, op: Op, columns: dict[str, int]) -> None:
        row = find_row(self.spec, op.opcode, op.dtype, op.shape)
        macs = row.macs if op.opcode == "mma" else _VECTOR_MACS.get(op.opcode, 0)
        interval = cycles_to_ticks(row.cadence_cycles)
        if row.pipe == "lsu":  # one pipe an SM; a sub-core issues to it through its own address unit
            interval = max(interval, cycles_to_ticks(self.spec.sm.address_interval_cycles))
        latency = cycles_to_ticks(row.latency_cycles)
        if op.chain > 1:
            # What one step waits for; the op's own issue covers a part of the chain.
            step = latency + sum(cycles_to_ticks(mixed_row(self.spec, name).latency_cycles) for name, _ in op.mix)
            latency = max(step, op.chain * step - (op.count - 1) * interval)
        self._row(
            Kind.RUN, pipe=Pipe[row.pipe.upper()], interval=interval, latency=latency, macs=macs,
            macs_counter=Counter.MACS_TENSOR if op.opcode == "mma" else Counter.MACS_VECTOR,
            counter=_PIPE_COUNTER[row.pipe], spread=int(op.spread),
            registers=0 if row.pipe == "tensor" else self._registers(op, op.count + sum(n for _, n in op.mix)),
            **self._loads(op), **columns,
        )  # fmt: skip

    def _loads(self, op: Op) -> dict[str, int]:
        """What the loads between the instructions of an op take of shared memory, all together."""
        columns = {"loads": 0, "shared": 0, "conflicts": 0, "bytes": 0}
        for load in op.loads:
            _, base, waves = shared_row(self.spec, load)
            width = 16 if load.opcode == "ldmatrix" else load.vector_bytes
            columns["loads"] += load.count
            columns["shared"] += load.count * waves * self.shared_ticks
            columns["conflicts"] += load.count * max(0, waves - base) * self.shared_ticks
            columns["bytes"] += load.count * WARP_SIZE * width
        return columns

    def _shared(self, op: Op, columns: dict[str, int]) -> None:
        row, base, waves = shared_row(self.spec, op)
        store = op.opcode in ("sts", "stmatrix")
        cycle = TICKS_PER_CYCLE
        width = 16 if op.opcode in ("ldmatrix", "stmatrix") else op.vector_bytes
        # A conflicting wavefront costs one cycle of the data path and, seen by one warp, one more of latency
        # (23/25/29/37 for 1/2/4/8-way).
        latency = cycles_to_ticks(row.latency_cycles) - base * cycle + (waves - base) * cycle
        self._row(
            Kind.SHARED, pipe=Pipe.LSU, interval=cycles_to_ticks(self.spec.sm.address_interval_cycles),
            latency=max(latency, 0),
            shared=waves * self.shared_ticks, conflicts=max(0, waves - base) * self.shared_ticks,
            bytes=WARP_SIZE * width, counter=Counter.INST_SHARED,
            bytes_counter=Counter.SHARED_WRITE_BYTES if store else Counter.SHARED_READ_BYTES,
            registers=self._registers(op, op.count * base),
            **columns,
        )  # fmt: skip

    def _wgmma(self, op: Op, columns: dict[str, int]) -> None:
        from_registers = isinstance(op.srcs[0].buffer, RegisterTile)
        row = find_row(self.spec, "wgmma_rs" if from_registers else "wgmma", op.dtype, op.shape)
        m, n, k = (int(x) for x in op.shape.replace("m", " ").replace("n", " ").replace("k", " ").split())
        element = DTYPE_BYTES[op.srcs[1].buffer.dtype]
        size_bytes = n * k * element + (0 if from_registers else m * k * element)
        ticks = transfer_ticks(size_bytes, self.spec.shared.bandwidth_bytes_per_cycle)
        interval = cycles_to_ticks(row.interval_cycles)
        # The four warps of the warpgroup each book their quarter of the operand traffic.
        self._row(
            Kind.WGMMA, pipe=Pipe.TENSOR, interval=interval, latency=cycles_to_ticks(row.latency_cycles) - interval,
            shared=ticks // 4, bytes=size_bytes // 4, macs=row.macs // 4, **columns,
        )  # fmt: skip

    def _sync(self, op: Op, columns: dict[str, int]) -> None:
        kind = _SYNC[op.opcode]
        if op.barrier is not None and self.spec.sync.mbarrier_wait_cycles is None:
            raise InputError(f"{self.where}: {op.opcode} needs mbarriers, which {self.spec.name} does not have")
        if kind == Kind.MBAR_WAIT:
            assert op.phase is not None
            columns["arg"] = self._expr(op.phase)
        elif isinstance(op.value, Const) and kind != Kind.FLAG_WAIT and kind != Kind.MBAR_EXPECT:
            columns["value"] = op.value.value
        else:
            columns["arg"] = self._expr(op.value)
        if op.opcode == "next_tile":
            columns["var"] = self._variable(op.var)
        self._row(kind, **columns)

    def _box(self, view: View | None) -> int:
        assert view is not None
        tensor = view.buffer
        if not isinstance(tensor, GlobalTensor):
            raise InputError(f"{self.where}: {view} must be a box of a global tensor")
        if len(tensor.shape) > 4:
            raise InputError(f"{self.where}: tensor {tensor.name} has {len(tensor.shape)} dimensions; at most 4")
        element = DTYPE_BYTES[tensor.dtype]
        contiguous = [d for d, s in enumerate(tensor.strides) if s == 1]
        if not contiguous:
            raise InputError(f"{self.where}: tensor {tensor.name} has no dimension of stride 1")
        column = max(contiguous, key=lambda d: (view.extents[d], d))
        rows = [d for d, n in enumerate(view.extents) if n > 1 and d != column]
        if len(rows) > 1:
            raise InputError(f"{self.where}: {view} is more than two-dimensional; copy it in two-dimensional boxes")
        box = [0] * Box.WIDTH
        box[Box.BASE], box[Box.ELEMENT] = self.addresses[tensor.name], element
        box[Box.ROW_DIM], box[Box.COL_DIM], box[Box.DIMS] = rows[0] if rows else -1, column, len(tensor.shape)
        for d, (offset, extent) in enumerate(zip(view.offsets, view.extents, strict=True)):
            at = Box.EXPR0 + 4 * d
            box[at : at + 4] = [self._expr(offset), tensor.strides[d] * element, tensor.shape[d], extent]
        self.boxes.append(box)
        return len(self.boxes) - 1


def lower_kernel(
    kernel: Kernel,
    addresses: Mapping[str, int],
    spec: GpuSpec,
) -> GpuProgram:
    """Tables of one launch. addresses: byte address of each tensor.

    Raises InputError for a kernel that the machine cannot run.
    """
    lowering = _Lowering(kernel, addresses, spec)
    entries: list[tuple[int, int]] = []
    for role in kernel.roles:
        first = lowering.role(role)
        entries.extend((first, warp) for warp in range(role.warps))
    arrivals = [barrier.arrivals for barrier in kernel.barriers for _ in range(barrier.stages)]
    expressions = lowering.expressions
    return GpuProgram(
        code=np.array(lowering.code, dtype=np.int64),
        expr=np.array(expressions.words or [(0, 0)], dtype=np.int64),
        expr_at=np.array(expressions.start, dtype=np.int64),
        affine=np.array(expressions.affine or [[-1] * Affine.WIDTH], dtype=np.int64),
        tables=np.array(expressions.tables or [0], dtype=np.int64),
        boxes=np.array(lowering.boxes or [[0] * Box.WIDTH], dtype=np.int64),
        warp_entry=np.array(entries, dtype=np.int64),
        barrier_arrivals=np.array(arrivals or [0], dtype=np.int64),
    )
