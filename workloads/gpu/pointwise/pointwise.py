"""Elementwise kernels: a CTA takes one tile of neighbouring elements, each thread a few vectors of it.

Two kinds, as they are found compiled: `torch`, PyTorch's vectorised kernel since 2.7 (128 threads, four elements of 4 B
each, eight on GH100 and GB100, eight of 2 B, 16 of 1 B; vectors of up to 16 B on GH100 and GB100, of four elements
elsewhere; where an operand is broadcast or lies in another order than the result, the one that computes the places of
each element and does one after the other), and `fused`, what Triton and other fusing compilers make (128 threads, a
tile of 1024 elements, 16 B a load). A chain that is not fused runs as one kernel a function, through memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CTA_X,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    View,
    as_expr,
)
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.overhead import INSTRUCTION_BYTES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.functions import costs_in
from workloads.gpu.pointwise.lanes import Cost, Load
from workloads.gpu.select import Choice, unknown_schedule
from workloads.ops import FUNCTIONS, Operand, Pointwise
from workloads.ops.base import Array
from workloads.registry import register

SETUP: Cost = {"iadd.int32": 9.0, "imad.int32": 2.0}
"""Block and thread index, bounds, addresses: 11 to 15 instructions before the first load (CUDA, sm_80)."""
REGISTERS = 14
"""Registers of a thread beside its elements: 14 to 30 in the compiled functions."""
KINDS = ("fused", "torch")
WIDE_VECTORS = ("9.0", "10.0")
"""Compute capabilities for which PyTorch has vectors of more than four elements (CUDALoops.cuh)."""


def offsets(tensors: int, dimensions: int) -> Cost:
    """Of an element whose operands lie in different places: for each dimension a division of its number by
    multiplication, for each tensor, the result among them, offsets and an address (PyTorch's OffsetCalculator: integer
    instructions that nvcc 13.0 makes of it for two and three tensors, sm_80 and sm_90)."""
    return {"imad.int32": (2.0 + tensors) * dimensions, "iadd.int32": 4.0 + 2.0 * tensors + 4.0 * dimensions}


PLACES = offsets(3, 2)
"""The same where one of two operands is broadcast along rows."""
PLACES_REGISTERS = 16
SECTOR_BYTES = 32


@dataclass(frozen=True)
class PointwiseConfig(Configuration):
    """How elements are shared out: warps of a CTA, and elements of a thread."""

    schedule: str
    warps: int
    elements: int

    grammar: ClassVar[tuple[Word, ...]] = (Word.number("warps"), Word.number("elements"))


@dataclass(frozen=True)
class Stage:
    """One elementwise kernel over a matrix of `rows` x `cols`.

    inputs: matrices, rows (1, cols) or columns (rows, 1). outputs: matrices. cost: instructions an element, conversions
    left out. compute(index, *values): the outputs, `index` being the numbers of the elements. arithmetic: the format
    that it is computed in. orders: by name, inputs that lie in another order than the outputs, whose dimensions are
    `shape` then and whose elements are one row here: those dimensions as memory holds them.
    """

    name: str
    rows: int
    cols: int
    inputs: tuple[GlobalTensor, ...]
    outputs: tuple[GlobalTensor, ...]
    cost: Cost
    compute: Callable[..., tuple[Array, ...]]
    arithmetic: str = "fp32"
    shape: tuple[int, ...] = ()
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def kernel(spec: GpuSpec, stage: Stage, config: PointwiseConfig) -> Kernel:
    """The kernel of one stage."""
    turns, each = _turns(stage, config)
    span = each * WARP_SIZE
    tiles = -(-stage.cols // (span * config.warps * turns))
    code = 40 + math.ceil(config.elements * sum(_cost(stage, config).values()))
    k = KernelBuilder(stage.name, (tiles * stage.rows, 1, 1), code_bytes=code * INSTRUCTION_BYTES)
    row, tile = (CTA_X // tiles, CTA_X % tiles) if stage.rows > 1 else (as_expr(0), CTA_X)
    with k.role("warps", config.warps, registers(stage, config)) as r:
        place = RegisterTile("place", (1, 1), "int32")
        lanes.write(r, spec, SETUP, dst=place.whole, compute=lambda _: np.zeros((1, 1)))
        for turn in range(turns):
            _elements(
                r,
                spec,
                stage,
                replace(config, elements=each),
                row,
                ((tile * turns + turn) * config.warps + WARP) * span,
            )
    return k.build()


def _elements(r: RoleBuilder, spec: GpuSpec, stage: Stage, config: PointwiseConfig, row: Expr, column: Expr) -> None:
    """What a warp does with its elements of one row from a column on."""
    span = config.elements * WARP_SIZE
    loaded = []
    for number, x in enumerate(stage.inputs):
        if x.name in stage.orders:
            loaded.append(_gathered(r, spec, stage, x, column))
            continue
        at = (row if x.shape[0] > 1 else 0, column if x.shape[1] > 1 else 0)
        extents = (1, span if x.shape[1] > 1 else 1)
        value = RegisterTile(f"in{number}", extents, x.dtype)
        vector = _vector_bytes(spec, x, config)
        count = max(1, extents[1] * DTYPE_BYTES[x.dtype] // (WARP_SIZE * vector))
        box = x[at[0] : extents[0], at[1] : extents[1]]
        r.ldg(value.whole, box, count, into="loaded", vector_bytes=vector)
        loaded.append(value.whole)
    waits = ("loaded",) if loaded else ()
    index = (row * stage.cols + column,)
    cost = lanes.total(
        _cost(stage, config),
        *(lanes.widen(x.dtype, stage.arithmetic) for x in stage.inputs if _widens(stage) and x.shape[-1] > 1),
        *(lanes.narrow(spec, y.dtype, stage.arithmetic) for y in stage.outputs if stage.cost or _converts(stage)),
    )
    for number, y in enumerate(stage.outputs):
        value = RegisterTile(f"out{number}", (1, span), y.dtype)
        lanes.write(
            r, spec, lanes.scaled(cost, config.elements if number == 0 else 0), dst=value.whole, srcs=tuple(loaded),
            compute=_result(stage, number, span), indices=index, after=waits if number == 0 else (),
        )  # fmt: skip
        vector = _vector_bytes(spec, y, config)
        count = max(1, span * DTYPE_BYTES[y.dtype] // (WARP_SIZE * vector))
        r.stg(y[row:1, column:span], value.whole, count, vector_bytes=vector)  # type: ignore[misc]


def _gathered(r: RoleBuilder, spec: GpuSpec, stage: Stage, x: GlobalTensor, first: Expr) -> View:
    """A warp's elements from number `first` on of an input that lies in another order: each thread loads its own.

    A warp that crosses ends of the last dimension has one load for each part, where the machine has one in all.
    """
    order, last, cols = stage.orders[x.name], len(stage.shape) - 1, stage.shape[-1]
    extents = (1, WARP_SIZE) if order[-1] == last else (WARP_SIZE, 1)

    def load(tile: RegisterTile, more: Expr, into: str) -> None:
        row = first // cols + more
        box = []
        for d in order:
            if d == last:
                box.append(slice(first % cols - more * cols, WARP_SIZE))
                continue
            place = row // math.prod(stage.shape[d + 1 : last])
            box.append(slice(place % stage.shape[d] if d else place, 1))
        r.ldg(tile.whole, x[tuple(box)], 1, into=into, vector_bytes=DTYPE_BYTES[x.dtype])

    here = RegisterTile(f"in_{x.name}", extents, x.dtype)
    load(here, as_expr(0), "loaded")
    if cols % WARP_SIZE:
        part = RegisterTile(f"part_{x.name}", extents, x.dtype)
        with r.loop(f"parts_{x.name}", (first % cols + WARP_SIZE - 1) // cols, start=1) as more:
            load(part, more, "part")
            after = ("loaded", "part")
            lanes.write(r, spec, {}, dst=here.whole, srcs=(part.whole,), compute=lambda a, b: a + b, after=after)
    return here.whole


def _apart(stage: Stage, config: PointwiseConfig) -> bool:
    """Whether PyTorch takes the kernel that computes the places of each element: an operand is broadcast, or lies in
    another order."""
    whole = (stage.rows, stage.cols)
    return config.schedule == "torch" and any(x.shape != whole for x in stage.inputs)


def _turns(stage: Stage, config: PointwiseConfig) -> tuple[int, int]:
    """How often a thread does how many elements at once."""
    if not _apart(stage, config):
        return 1, config.elements
    widest = max(DTYPE_BYTES[x.dtype] for x in stage.inputs)
    return (2 if widest >= 4 else 4), 1


def _cost(stage: Stage, config: PointwiseConfig) -> Cost:
    """Instructions of an element, conversions left out."""
    if not _apart(stage, config):
        return stage.cost
    tensors = len(stage.inputs) + len(stage.outputs)
    return lanes.total(stage.cost, offsets(tensors, len(stage.shape)) if stage.orders else PLACES)


def registers(stage: Stage, config: PointwiseConfig) -> int:
    """Registers of a thread: its elements of every tensor, in fp32."""
    if _apart(stage, config):
        return PLACES_REGISTERS
    wide = sum((x.shape[1] > 1) * max(1, DTYPE_BYTES[x.dtype] // 4) for x in (*stage.inputs, *stage.outputs))
    return REGISTERS + config.elements * max(1, wide)


def load(spec: GpuSpec, stage: Stage, config: PointwiseConfig) -> Load:
    """Counts for the estimate. A thread whose neighbours read elsewhere moves a sector for its element."""
    turns, each = _turns(stage, config)
    span = turns * each * WARP_SIZE * config.warps
    instructions = 16 + math.ceil(turns * each * sum(_cost(stage, config).values())) + 2 * len(stage.inputs)
    return Load(
        ctas=-(-stage.cols // span) * stage.rows,
        resident=lanes.resident(spec, config.warps, registers(stage, config)),
        read_bytes=sum(x.size_bytes for x in stage.inputs),
        written_bytes=sum(y.size_bytes for y in stage.outputs),
        issue=-(-config.warps * instructions // spec.sm.sub_cores),
        path=2 * instructions,
        trips=turns,
        again_bytes=sum(
            max(0, SECTOR_BYTES - DTYPE_BYTES[x.dtype]) * stage.cols
            for x in stage.inputs if x.name in stage.orders and stage.orders[x.name][-1] != len(stage.shape) - 1
        ),
    )  # fmt: skip


def _converts(stage: Stage) -> bool:
    return any(x.dtype != y.dtype for x in stage.inputs for y in stage.outputs)


def _widens(stage: Stage) -> bool:
    """Whether elements are brought to the format that is computed in. Between fp32 and 16 bits a cast is one
    instruction."""
    return bool(stage.cost) or (
        _converts(stage) and any(t.dtype not in lanes.FLOATS for t in (*stage.inputs, *stage.outputs))
    )


def _vector_bytes(spec: GpuSpec, x: GlobalTensor, config: PointwiseConfig) -> int:
    """Vectors of a thread's elements, at most 16 B, that start where rows do."""
    if x.shape[1] == 1:
        return DTYPE_BYTES[x.dtype]
    narrow = config.schedule == "torch" and spec.compute_capability not in WIDE_VECTORS
    elements = min(config.elements, 4) if narrow else config.elements
    most = min(lanes.MAX_VECTOR_BYTES, elements * DTYPE_BYTES[x.dtype])
    return lanes.vector_bytes(x.shape[1], x.dtype, most) if x.shape[0] > 1 else most


def _result(stage: Stage, number: int, span: int) -> Callable[..., Array]:
    """What one output's registers become."""

    def compute(_: Array, *given: Array) -> Array:
        values, first = given[:-1], int(given[-1])
        index = first + np.arange(span)[None, :]
        return np.broadcast_to(
            stage.compute(index, *(v.astype(np.float64).reshape(1, -1) for v in values))[number], (1, span)
        )

    return compute


# ------------------------------------------------------------------------------------------------------- the operator


def stages(op: Pointwise) -> tuple[tuple[GlobalTensor, ...], list[Stage]]:
    """Tensors in the order of operands, results and scratch, and the kernels of a chain."""
    rows, cols = (op.n // op.cols, op.cols) if op.cols else (1, op.n)
    shape = (rows, cols)
    orders = _orders(op)
    given = [_tensor(o, orders, shape) for o in op.operands]
    results = [lanes.tensor(o, "output", shape) for o in op.results]
    starts = FUNCTIONS[op.functions[0]].starts
    others = given if starts else given[1:]
    names = op.functions * op.repeat
    own = _own_operands(op, others)
    if op.fused == "1":
        stage = _stage(op, names, shape, given, own, results)
        return (*given, *results), [stage]
    scratch = [
        GlobalTensor(f"between{i}", shape, op.chosen_dtype, (cols, 1), "scratch") for i in range(min(2, len(names) - 1))
    ]
    out = []
    before: GlobalTensor | None = None if starts else given[0]
    for number, name in enumerate(names):
        after = results[0] if number == len(names) - 1 else scratch[number % 2]
        mine = own[number % len(op.functions)]
        mask = results[1:] if FUNCTIONS[name].mask else []
        inputs = [*([] if before is None else [before]), *mine]
        out.append(_stage(op, [name], shape, inputs, [mine], [after, *mask]))
        before = after
    return (*given, *results, *scratch), out


def _orders(op: Pointwise) -> dict[str, tuple[int, ...]]:
    """By name, operands that do not lie as the result does."""
    if op.lying is None:
        return {}
    as_result = tuple(range(len(op.lying.shape)))
    named = zip((operand.name for operand in op.operands), op.lying.orders, strict=True)
    return {name: order for name, order in named if order != as_result}


def _tensor(operand: Operand, orders: Mapping[str, tuple[int, ...]], shape: tuple[int, int]) -> GlobalTensor:
    """An operand as kernels see it: as a matrix, a row of it, or as it lies."""
    if operand.name in orders:
        return lanes.tensor(operand)
    whole = math.prod(operand.shape) == math.prod(shape)
    return lanes.tensor(operand, shape=shape if whole else (1, shape[1]))


def _own_operands(op: Pointwise, others: Sequence[GlobalTensor]) -> list[list[GlobalTensor]]:
    """What each function of the chain takes beside x."""
    rest = iter(others)
    return [[next(rest) for kind in FUNCTIONS[name].others if kind != "index"] for name in op.functions]


def _stage(
    op: Pointwise, names: Sequence[str], shape: tuple[int, int], inputs: Sequence[GlobalTensor],
    own: Sequence[Sequence[GlobalTensor]], outputs: Sequence[GlobalTensor],
) -> Stage:  # fmt: skip
    """The functions `names` as one kernel; own: operands of each function of one round of the chain."""
    places = {x.name: i for i, x in enumerate(inputs)}

    def compute(index: Array, *values: Array) -> tuple[Array, ...]:
        value: Array | None = None if FUNCTIONS[names[0]].starts else values[0]
        mask: list[Array] = []
        for number, name in enumerate(names):
            function = FUNCTIONS[name]
            mine = iter(values[places[x.name]] for x in own[number % len(own)])
            arguments = [index if kind == "index" else next(mine) for kind in function.others]
            value = op.kept(function.apply(*([] if function.starts else [value]), *arguments))
            if function.mask:
                mask.append((function.apply(np.ones(index.shape), index) != 0).astype(np.float64))
        assert value is not None
        return (op.stored(value, outputs[0].dtype), *mask)

    costs = costs_in(op.arithmetic)
    cost = lanes.total(*(costs[name] for name in names))
    title = op.chain if len(names) > 1 else names[0]
    orders = {name: order for name, order in _orders(op).items() if name in places}
    return Stage(
        title.replace("+", "_"), *shape, tuple(inputs), tuple(outputs), cost, compute, op.arithmetic,
        op.lying.shape if op.lying else (), orders,
    )  # fmt: skip


def check_formats(op: Pointwise, spec: GpuSpec) -> None:
    """InputError where a machine or these kernels cannot compute the operator's functions in its formats."""
    costs = costs_in(op.arithmetic)
    for name in op.functions:
        if name not in costs:
            known = ", ".join(name for name, cost in costs.items() if cost)
            raise InputError(f"{op}: {name} in {op.arithmetic} is a routine that was not counted; of {known}")
    if any(costs[name] for name in op.functions) or op.out_dtype != op.chosen_dtype:
        lanes.check_conversions(op, spec, op.chosen_dtype, op.out_dtype)


def check(op: Pointwise, spec: GpuSpec, config: PointwiseConfig) -> None:
    """InputError where the machine or the operator cannot take it."""
    most = spec.sm.max_threads_per_cta // WARP_SIZE
    if not 1 <= config.warps <= most:
        raise InputError(f"schedule={config}: warps must be 1 to {most}")
    if config.schedule == "fused" and op.lying is not None:
        raise InputError(f"schedule={config}: reads operands that lie as the result does; nearest: schedule=torch")
    if config.elements < 1 or config.elements & (config.elements - 1) or config.elements > 64:
        raise InputError(f"schedule={config}: elements must be a power of two from 1 to 64")


@register("pointwise", "gpu", "auto")
def choose(op: Pointwise, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernels of a chain; `auto` takes the kind with the lower estimate."""
    words = schedule.split()
    if schedule != "auto" and (not words or words[0] not in KINDS):
        raise unknown_schedule(op, spec, schedule, KINDS)
    check_formats(op, spec)
    possible = tuple(kind for kind in KINDS if kind == "torch" or op.lying is None)
    kinds = possible if schedule == "auto" else (words[0],)
    base = {"torch": PointwiseConfig("torch", 4, _torch_elements(op, spec)), "fused": PointwiseConfig("fused", 4, 8)}
    configs = [base[kind] for kind in kinds]
    if len(words) > 1:
        configs = [base[words[0]].changed(schedule)]
    _, chain = stages(op)
    ranked = []
    for config in configs:
        check(op, spec, config)
        ranked.append((lanes.load_ps(spec, [load(spec, stage, config) for stage in chain]), str(config), config))
    ranked.sort(key=lambda item: item[:2])
    return Choice(ranked[0][2], [(config, time_ps) for time_ps, _, config in ranked])


def _torch_elements(op: Pointwise, spec: GpuSpec) -> int:
    """Elements of a thread of PyTorch (elems_per_thread in CUDALoops.cuh). Those of 4 B on GH100 are by the grids of
    four additions on H200, 1024 elements a CTA (workloads/silicon/lab/executed_instructions.csv)."""
    size = min(DTYPE_BYTES[op.chosen_dtype], DTYPE_BYTES[op.out_dtype])
    return 16 if size == 1 else 8 if size < 4 or spec.compute_capability in WIDE_VECTORS else 4


@register("pointwise", "gpu", "fused", "torch")
def _build(op: Pointwise, spec: GpuSpec, config: PointwiseConfig) -> Program:
    check_formats(op, spec)
    check(op, spec, config)
    tensors, chain = stages(op)
    kernels = tuple(kernel(spec, stage, config) for stage in chain)
    return Program(str(op), tensors, kernels, str(config), {"config": config})
