"""The listing: a program as a person reads it, with the cost of each op on a machine where one is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arch.gpu import GpuSpec, Instruction
from sim.gpu.language import Assign, Const, Kernel, Loop, Op, Program, Statement
from sim.gpu.language.ops import Action, Space, Unit
from sim.gpu.lower.instructions import instruction, shared_access, tensor_access

FIGURES = ("instructions",)
"""Figures of a preset that this module reads."""

#: Column at which costs begin, unless an op is longer.
_COST_COLUMN = 88


def listing(program: Program, spec: GpuSpec | None = None) -> str:
    """All kernels of `program` as text; with `spec`, pipe, issue interval and latency of each op in cycles.

    An op is numbered as in the event log. Raises InputError for an instruction that the machine does not have.
    """
    lines = [f"program {program.name} ({program.schedule})"]
    for name, address in program.addresses().items():
        tensor = next(t for t in program.tensors if t.name == name)
        shape = "x".join(map(str, tensor.shape))
        lines.append(f"  {tensor.role:7} {name:12} {tensor.dtype} {shape} strides {tensor.strides} at {address:#x}")
    for kernel in program.kernels:
        lines += ["", *_kernel(kernel, spec)]
    return "\n".join(lines) + "\n"


def _kernel(kernel: Kernel, spec: GpuSpec | None) -> Iterator[str]:
    grid, cluster = ("x".join(map(str, shape)) for shape in (kernel.grid, kernel.cluster))
    yield f"kernel {kernel.name}: grid {grid}, cluster {cluster}, {kernel.warps} warps a CTA"
    yield f"  {kernel.launch_registers} registers a thread at launch, {kernel.code_bytes} B of code"
    if kernel.flags:
        yield f"  {kernel.flags} semaphores in device memory"
    yield f"  shared memory: {kernel.shared_bytes} B"
    for tile, at in kernel.shared_offsets().items():
        layout = f"swizzle {tile.swizzle_bytes} B" if tile.swizzle_bytes else f"pad {tile.pad_bytes} B"
        shape = "x".join(map(str, tile.shape))
        yield f"    {at:7} {tile.name}: {tile.stages} of {shape} {tile.dtype}, {tile.stage_bytes} B each, {layout}"
    if kernel.tensor:
        yield f"  tensor memory: {kernel.tensor_columns} columns"
    for place in kernel.tensor:
        shape = "x".join(map(str, place.shape))
        yield f"    {place.columns:7} columns, {place.name}: {place.stages} of {shape} {place.dtype}"
    for barrier in kernel.barriers:
        yield f"    mbarrier {barrier.name}: {barrier.stages} of {barrier.arrivals} arrivals"
    number = 0
    for role in kernel.roles:
        yield f"  role {role.name}: {role.warps} warps, {role.registers} registers a thread"
        for line, op in _body(role.body, "    "):
            if op is None:
                yield f"         {line}"
                continue
            cost = _cost(op, spec) if spec is not None else ""
            yield f"  {number:5}  {line:{_COST_COLUMN}}  {cost}".rstrip()
            number += 1


def _body(body: Sequence[Statement], indent: str) -> Iterator[tuple[str, Op | None]]:
    """(line, the op in it) for each statement."""
    for statement in body:
        if isinstance(statement, Op):
            yield indent + _op(statement), statement
        elif isinstance(statement, Assign):
            yield f"{indent}{statement.var} = {statement.value}", None
        else:
            yield indent + _head(statement), None
            yield from _body(statement.body, indent + "  ")


def _head(loop: Loop) -> str:
    if not loop.var:
        return f"{'while' if loop.again else 'when'} {loop.trips}:"
    start = "" if loop.start == Const(0) else f" from {loop.start}"
    step = "" if loop.step == Const(1) else f" step {loop.step}"
    return f"loop {loop.var}, {loop.trips} trips{start}{step}:"


def _op(op: Op) -> str:
    """One op: what it does to what, then what it waits for and signals."""
    words = [op.opcode + "".join(f".{part}" for part in (op.shape, op.dtype) if part)]
    words += [f"x{op.count}"] if op.count != 1 else []
    words += [f"-> {op.var}"] if op.var else []
    if op.dst is not None or op.srcs:
        sources = ", ".join(map(str, op.srcs))
        words.append(f"{op.dst} <- {sources}" if op.dst is not None and op.srcs else f"{op.dst or sources}")
    if op.barrier is not None:
        words.append(f"{op.barrier.name}[{op.stage}]")
    elif op.spec.numbered:
        words.append(f"{op.stage}")
    words += ["of a pair"] if op.pair else []
    words += [f"phase {op.phase}"] if op.phase is not None else []
    words += _value(op)
    words += [f"to CTAs {op.multicast}"] if op.multicast is not None else []
    in_memory = any(view.buffer.space is Space.GLOBAL for view in op.views)
    words += [f"{op.vector_bytes} B a thread"] if in_memory and op.vector_bytes != 16 else []
    words += ["with " + " ".join(f"{name} x{n}" for name, n in op.mix)] if op.mix else []
    words += [f"in {op.chain} dependent steps"] if op.chain > 1 else []
    words += ["spread"] if op.spread else []
    words += [f"loading by {' and '.join(f'{load.opcode} x{load.count}' for load in op.loads)}"] if op.loads else []
    words += [f"after {', '.join(op.after)}"] if op.after else []
    words += [f"into {op.into}"] if op.into else []
    return " ".join(words)


def _value(op: Op) -> list[str]:
    """The opcode's own integer in words; a product that accumulates, as most do, says nothing."""
    spec = op.spec
    if not spec.value or (spec.accumulates and op.value == Const(1)):
        return []
    return [spec.value.format(op.value)]


def _cost(op: Op, spec: GpuSpec) -> str:
    """Pipe, interval and latency of one instruction; what the memory system or a barrier decides has none."""
    if op.spec.action is not Action.OPERATE or op.spec.unit is Unit.TMA or op.opcode == "try_cancel":
        return ""
    if op.spec.unit is Unit.TCGEN05 and not op.spec.accumulates:
        access = tensor_access(spec, op)
        return f"tensor memory every {access.port_cycles:g}, latency {access.latency_cycles:g}"
    if op.spec.unit is not Unit.SHARED:
        return _row(instruction(spec, op))
    row, waves, least, *_ = shared_access(spec, op)
    conflicts = f", {waves} wavefronts ({least} without conflicts)" if waves != least else ""
    return _row(row) + conflicts


def _row(row: Instruction) -> str:
    return f"{row.pipe} every {row.cadence_cycles:g}, latency {row.latency_cycles:g}"
