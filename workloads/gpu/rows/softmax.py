"""Softmax of rows, in the ways in which it is really computed, and its backward form.

- `fused`: the best single kernel; as a whole configuration, a row stays in registers, one load and one store; a warp a
  row while rows are short, a CTA a row when long.
- `cluster`: the same with a row shared by the CTAs of a cluster, which exchange maximum and sum through distributed
  shared memory (Hopper).
- `online`: the row is swept twice; maximum and sum come from the first sweep, in which each lane rescales what it has
  summed whenever its maximum grows (Milakov and Gimelshein 2018).
- `threepass`: maximum, sum and result in a sweep each.
- `torch`: PyTorch since 2.7: a warp a row up to 2048 elements; beyond, a CTA of 1024 threads keeps the row in registers
  (up to 9216 elements), in shared memory while it fits into 48 KiB, or sweeps it three times.
- `torch-2.1`: PyTorch 2.1 to 2.6: a warp a row up to 1024 elements; beyond as `torch`, but never in registers.
- `torch-2.0`: PyTorch up to 2.0: a warp a row up to 1024 elements, `threepass` beyond, one warp adding up.
- `triton`: the softmax of Triton's tutorial: eight warps, rows padded to a power of two, as many CTAs as fit, each
  doing row after row with the next one on its way to shared memory.
- `unfused`: PyTorch's five kernels, each through memory: maximum, difference, exponential, sum, quotient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import GlobalTensor, Kernel, Program, View
from workloads import libraries
from workloads.gpu.pointwise import lanes, pointwise
from workloads.gpu.pointwise.functions import DIVIDE, EXPONENTIAL
from workloads.gpu.pointwise.lanes import Cost, Load
from workloads.gpu.pointwise.pointwise import PointwiseConfig, Stage
from workloads.gpu.rows import rows
from workloads.gpu.rows.rows import RowConfig, RowKernel, largest, sums
from workloads.gpu.select import Choice, unknown_schedule
from workloads.ops import RowOperator, Softmax, SoftmaxBackward
from workloads.ops.base import Array
from workloads.registry import register

MAXIMUM: Cost = {"fmnmx.fp32": 1.0}
ADDITION: Cost = {"fadd.fp32": 1.0}
TORCH = libraries.releases_by_kernel("pytorch", "softmax")
"""The release whose kernels each of PyTorch's kinds are."""
TORCH_SHARED_BYTES = 48 * 1024
"""Static limit of a CTA's shared memory, which rows that it keeps there and a number a warp must fit into."""


@dataclass(frozen=True)
class Costs:
    """Instructions of an element: e = exp(x - m), and y = e / s; of a thread once: the quotient's reciprocal."""

    exponential: Cost
    quotient: Cost
    once: Cost
    quotient_chain: int = 0
    """Steps of an element's quotient that wait for each other, each as long as its reciprocal takes, one element after
    the other; 0: elements overlap."""


FAST = Costs(
    exponential={"fadd.fp32": 1.0, "fmul.fp32": 3.0, "setp.int32": 1.0, "ex2.fp32": 1.0},
    quotient={"fmul.fp32": 3.0},
    once={"rcp.fp32": 1.0},
)
"""Triton 3.9 on sm_80: FADD, FMUL by log2 e, range test and two guarded FMUL, EX2; two guarded FMUL and one FMUL."""
ACCURATE = Costs(
    exponential={"fadd.fp32": 2.0, "ffma.fp32": 4.0, "fmul.fp32": 1.0, "imad.int32": 1.0, "ex2.fp32": 1.0},
    quotient={
        "fmul.fp32": 1.0, "ffma.fp32": 5.0, "imad.int32": 2.0, "rcp.fp32": 2.0, "iadd.int32": 3.0
    },
    once={},
    quotient_chain=2,
)  # fmt: skip
"""CUDA without fast math: `expf` and IEEE division, whose branch around its slow path keeps elements apart, so that
each makes the reciprocal and two constants anew (SASS of nvcc 11.8 to 13, sm_80). FCHK, which chooses the path, has
the encoding and the scoreboard of MUFU and conversions (machine code of PyTorch 2.11): it passes their pipe, as a
reciprocal does. The path through a quotient
is a reciprocal (23 cycles) and five FFMA of 4; the exponentials of a vector come before and overlap."""
GUARD: Cost = {"iadd.int32": 3.0}
"""BSSY, BRA and BSYNC around an element that may lie beyond the row (cunn_SoftMaxForwardReg)."""
ADDRESS: Cost = {"iadd.int32": 4.0}
"""64 bits of an element's address, made anew behind each branch (the same kernel)."""
WARP_GUARD: Cost = {"iadd.int32": 2.0, "setp.int32": 1.0}
"""IADD3, ISETP and MOV of minus infinity before a load, which happens if the element is one of the row
(softmax_warp_forward of PyTorch 2.11, sm_90, with the next four)."""
WARP_MAXIMUM: Cost = {"setp.int32": 1.0, "iadd.int32": 1.0}
"""FSETP and FSEL, not FMNMX."""
WARP_QUOTIENT: Cost = {"rcp.fp32": 2.0, "ffma.fp32": 5.0, "setp.int32": 1.0, "iadd.int32": 11.0}
"""RCP, FCHK, five FFMA; 7 of two branches and their joins; whether the next element is one of the row: S2R of the
lane, ULDC, VIADD, ISETP and EXIT."""
WARP_RESULT_CHAIN = 3
"""Steps of an element's result that wait for each other, each as long as a reciprocal with its turn at the pipe, 27
cycles: that and five FFMA of 4 cycles are nearly two, S2R, VIADD, ISETP and EXIT the third."""
WARP_LOADS = 7
"""Loads of 2 B on their way: each keeps one of seven predicates until it has arrived and is widened; loads of 4 B are
not widened and keep none."""
HELD_EXPONENTIAL_CHAIN = 2
HELD_RESULT_CHAIN = 3
"""Steps that wait for each other, as those of `Costs`: guards keep the elements apart, in the sum of exponentials, too.
An exponential is EX2 and seven operations of 4 cycles; behind it a result has three FFMA and three more for its
address."""
SWEEP_SETUP: Cost = {"rcp.fp32": 1.0, "cvt.int32": 2.0, "imad.int32": 5.0, "iadd.int32": 6.0}
"""Before a sweep of PyTorch's: the remainder of its division into whole vectors of the CTA."""
SWEEP_SETUP_CHAIN = 2
"""All of these wait for each other: the four opcodes once take 45 cycles, together they take about 100."""


def _fused(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")

    def body(w: RowKernel) -> None:
        given = w.load(x)
        wide = lanes.widen(x.dtype)
        top = w.reduce(
            "top", "fmnmx", lanes.total(MAXIMUM, wide), (given,), _largest_inside, largest, after=w.arrived(x)
        )
        e = w.map("e", FAST.exponential, (given, top), lambda ok, v, m: np.where(ok, np.exp(v - m), 0.0))
        total = w.reduce("total", "fadd", ADDITION, (e,), lambda ok, v: v.sum(axis=1), sums)
        out = w.map(
            "out", lanes.total(FAST.quotient, lanes.narrow(spec, y.dtype)), (e, total), lambda ok, v, s: v / s,
            dtype=y.dtype, once=FAST.once,
        )  # fmt: skip
        w.store(y, out)

    kernel = RowKernel("softmax", spec, op.rows, op.cols, config, ahead=x.dtype).write(body, ahead=x)
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _warp(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    """PyTorch's kernel of a warp a row, whose lanes compute on a power of two of elements and divide only those of the
    row."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    whole = 2 ** math.ceil(math.log2(op.cols))
    computed = max(1.0, whole / (-(-op.cols // WARP_SIZE) * WARP_SIZE))

    def body(w: RowKernel) -> None:
        wide = lanes.widen(x.dtype)
        given = w.load_in_turns(x, WARP_LOADS, wide) if wide else w.load(x)
        top = w.reduce(
            "top", "fmnmx", lanes.scaled(lanes.total(WARP_GUARD, WARP_MAXIMUM), computed), (given,), _largest_inside,
            largest, after=() if wide else (x.name,),
        )  # fmt: skip
        e = w.map(
            "e", lanes.scaled(ACCURATE.exponential, computed), (given, top),
            lambda ok, v, m: np.where(ok, np.exp(v - m), 0.0),
        )  # fmt: skip
        total = w.reduce("total", "fadd", lanes.scaled(ADDITION, computed), (e,), lambda ok, v: v.sum(axis=1), sums)
        out = w.map(
            "out", lanes.total(WARP_QUOTIENT, lanes.narrow(spec, y.dtype)), (e, total), lambda ok, v, s: v / s,
            dtype=y.dtype, chain=WARP_RESULT_CHAIN,
        )  # fmt: skip
        w.store(y, out)

    kernel = RowKernel(
        "softmax_warp", spec, op.rows, op.cols, config, vector=1, registers_=_held_registers(op, spec, config)
    ).write(body)
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _held(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    """PyTorch's kernel that keeps the row of a CTA in registers: it does not keep the exponentials but makes them again
    for the results."""
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    wide = lanes.widen(x.dtype)

    def body(w: RowKernel) -> None:
        given = w.load(x)
        top = w.reduce("top", "fmnmx", lanes.total(MAXIMUM, wide), (given,), _largest_inside, largest, after=(x.name,))
        total = w.local(
            "total", lanes.total(ACCURATE.exponential, GUARD), (given, top),
            lambda ok, v, m: np.where(ok, np.exp(v - m), 0.0).sum(axis=1), chain=HELD_EXPONENTIAL_CHAIN * w.elements,
        )  # fmt: skip
        w.across(total, "fadd", sums)
        cost = lanes.total(ACCURATE.exponential, ACCURATE.quotient, GUARD, ADDRESS, lanes.narrow(spec, y.dtype))
        out = w.map(
            "out", cost, (given, top, total), lambda ok, v, m, s: np.exp(v - m) / s, dtype=y.dtype,
            chain=HELD_RESULT_CHAIN,
        )  # fmt: skip
        w.store(y, out)

    kernel = RowKernel(
        "softmax_held", spec, op.rows, op.cols, config, vector=1, exchange=_exchange(config),
        registers_=_held_registers(op, spec, config),
    ).write(body)  # fmt: skip
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _held_registers(op: Softmax, spec: GpuSpec, config: RowConfig) -> int:
    """Registers of a thread of PyTorch that holds its part of a row."""
    if config.shared:
        held = libraries.figure(TORCH[config.schedule], "held_registers_hopper" if spec.tma else "held_registers")
        return held[rows.elements(op.cols, config) - 1]
    size = max(8, math.ceil(math.log2(max(1, op.cols))))
    return libraries.figure(TORCH[config.schedule], "warp_registers")[size - 8]


def _largest_inside(ok: Array, v: Array) -> Array:
    return np.asarray(np.where(ok, v, -np.inf).max(axis=1))


def _online(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    wide = lanes.widen(x.dtype)
    # A vector's maximum, one rescale of the lane's sum a vector, then an exponential and an addition an element.
    rescale = lanes.scaled(lanes.total(FAST.exponential, {"fmul.fp32": 1.0}), 1 / config.elements)
    first = lanes.total(MAXIMUM, FAST.exponential, ADDITION, rescale, wide, _step(config))

    def update(ok: Array, before: Array, v: Array) -> Array:
        top = np.maximum(before[:, 0], _largest_inside(ok, v))
        base = np.where(np.isfinite(top), top, 0.0)
        shrunk = before[:, 1] * np.exp(np.where(np.isfinite(before[:, 0]), before[:, 0] - base, -np.inf))
        return np.stack([top, shrunk + np.where(ok, np.exp(v - base[:, None]), 0.0).sum(axis=1)], axis=1)

    def combine(every: Array) -> Array:
        top = every[:, 0].max()
        return np.array([top, (every[:, 1] * np.exp(every[:, 0] - top)).sum()])

    def body(w: RowKernel) -> None:
        state = w.start("state", (-np.inf, 0.0))
        with w.sweep(0):
            given = w.load(x)
            w.local("state", first, (given,), update, values=2, after=(x.name,), old=True)
        # A step of the butterfly takes both numbers, two exponentials and two products.
        w.across(state, "fmnmx", combine, steps=2)
        _write_sweep(w, 1, x, y, (state,), lambda ok, v, s: np.exp(v - s[:, :1]) / s[:, 1:], FAST)

    kernel = RowKernel("softmax_online", spec, op.rows, op.cols, config, values=2).write(body)
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _threepass(op: Softmax, spec: GpuSpec, config: RowConfig, costs: Costs) -> Program:
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    wide = lanes.widen(x.dtype)
    kept = _kept(op, config)

    divides = config.schedule in TORCH and not kept

    def body(w: RowKernel) -> None:
        top = w.start("top", (-np.inf,))
        if divides:
            w.prepare("vectors", SWEEP_SETUP, SWEEP_SETUP_CHAIN)
        with w.sweep(0):
            given = w.load(x, "x0")
            w.local(
                "top", lanes.total(MAXIMUM, wide, _step(config)), (given,),
                lambda ok, before, v: np.maximum(before[:, 0], _largest_inside(ok, v)), after=("x0",), old=True,
            )  # fmt: skip
            if kept:
                w.keep(x, given)
        w.across(top, "fmnmx", largest)
        total = w.start("total", (0.0,))
        if divides:
            w.prepare("vectors", SWEEP_SETUP, SWEEP_SETUP_CHAIN)
        with w.sweep(1):
            given = w.load_kept(x, "x1") if kept else w.load(x, "x1")
            w.local(
                "total", lanes.total(costs.exponential, ADDITION, wide, _step(config)), (given, top),
                lambda ok, before, v, m: before[:, 0] + np.where(ok, np.exp(v - m), 0.0).sum(axis=1),
                after=("x1",), old=True,
            )  # fmt: skip
        w.across(total, "fadd", sums)
        if divides:
            w.prepare("vectors", SWEEP_SETUP, SWEEP_SETUP_CHAIN)
        _write_sweep(w, 2, x, y, (top, total), lambda ok, v, m, s: np.exp(v - m) / s, costs, kept)

    name = "softmax_shared" if kept else "softmax_threepass"
    kernel = RowKernel(
        name, spec, op.rows, op.cols, config, exchange=_exchange(config), registers_=_swept_registers(op, spec, config)
    ).write(body)  # fmt: skip
    return Program(str(op), (x, y), (kernel,), str(config), {"config": config})


def _swept_registers(op: Softmax, spec: GpuSpec, config: RowConfig) -> int:
    """Registers of a thread that sweeps a row, where its kernel is known; else 0."""
    if config.schedule != "torch-2.0":
        return 0
    table = libraries.rows(TORCH[config.schedule], "swept_registers")
    swept = next(row for row in table if row.dtype == op.chosen_dtype)
    return swept.since_ampere if spec.cp_async else swept.before


def _exchange(config: RowConfig) -> rows.Exchange:
    """How the warps of a row combine their numbers."""
    return {"torch-2.0": "serial", "torch-2.1": "first_warp", "torch": "first_warp"}.get(config.schedule, "all")  # type: ignore[return-value]


def _kept(op: Softmax, config: RowConfig) -> bool:
    """Whether a CTA of PyTorch reads a row once and keeps it in shared memory."""
    width = DTYPE_BYTES[op.chosen_dtype]
    room = (TORCH_SHARED_BYTES - 4 * config.warps) // width
    return config.schedule in ("torch", "torch-2.1") and op.cols < room and op.cols * width % 16 == 0


def _step(config: RowConfig) -> Cost:
    """Loop control of a sweep, as a share of an element."""
    return lanes.scaled(rows.STEP, 1 / config.elements)


def _write_sweep(
    w: RowKernel, number: int, x: GlobalTensor, y: GlobalTensor, numbers: tuple[View, ...],
    compute: Callable[..., Array], costs: Costs, kept: bool = False,
) -> None:  # fmt: skip
    """The last sweep: results from the row and its numbers."""
    cost = lanes.total(
        costs.exponential, costs.quotient, lanes.widen(x.dtype), lanes.narrow(w.spec, y.dtype), _step(w.config)
    )
    with w.sweep(number):
        name = f"x{number}"
        given = w.load_kept(x, name) if kept else w.load(x, name)
        out = w.map(
            "out",
            cost,
            (given, *numbers),
            compute,
            dtype=y.dtype,
            once=costs.once,
            after=(name,),
            chain=costs.quotient_chain,
        )
        w.store(y, out)


# -------------------------------------------------------------------------------------------------------- unfused


def row_numbers(
    name: str, spec: GpuSpec, shape: tuple[int, int], x: GlobalTensor, y: GlobalTensor, config: RowConfig, opcode: str,
    *, vector: int = 0, place: Cost | None = None,
) -> Kernel:  # fmt: skip
    """One kernel: the maximum (fmnmx) or sum (fadd) of each row. vector: elements of an access, 0 for the widest;
    place: instructions an element that also find the maximum's place."""
    is_sum = opcode == "fadd"
    numbers = lanes.sum_format(x.dtype, y.dtype) if is_sum else "fp32"
    wide = lanes.widen(x.dtype, numbers)
    addition = ADDITION if numbers == "fp32" else lanes.ADDITION[numbers]

    def update(ok: Array, before: Array, v: Array) -> Array:
        if is_sum:
            return before[:, 0] + np.where(ok, v, 0.0).sum(axis=1)
        return np.maximum(before[:, 0], _largest_inside(ok, v))

    def body(w: RowKernel) -> None:
        found = w.start("found", (0.0 if is_sum else -np.inf,))
        with w.sweep(0):
            given = w.load(x)
            cost = lanes.total(addition if is_sum else MAXIMUM, wide, _step(config), place or {})
            w.local("found", cost, (given,), update, after=(x.name,), old=True)
        w.across(found, lanes.ADD_OPCODE[numbers] if is_sum else opcode, sums if is_sum else largest)
        w.store(y, found)

    return RowKernel(name, spec, *shape, config, vector=vector, numbers=numbers).write(body)


def _sub(_: Array, v: Array, m: Array) -> tuple[Array]:
    return (v - m,)


def _exp(_: Array, v: Array) -> tuple[Array]:
    return (np.exp(v),)


def _div(_: Array, v: Array, s: Array) -> tuple[Array]:
    return (v / s,)


Part = Stage | tuple[str, GlobalTensor, GlobalTensor]
"""A kernel of the unfused form: an elementwise one, or a reduction of rows (opcode, from, to)."""


def _unfused_parts(
    op: Softmax,
) -> tuple[tuple[GlobalTensor, ...], list[Stage | tuple[str, GlobalTensor, GlobalTensor]]]:
    """Tensors, and the five kernels in their order."""
    dtype, shape = op.chosen_dtype, (op.rows, op.cols)
    x, y = lanes.tensor(op.operands[0]), lanes.tensor(op.results[0], "output")
    top, total = (GlobalTensor(name, (op.rows, 1), dtype, (1, 1), "scratch") for name in ("top", "total"))
    z, e = (GlobalTensor(name, shape, dtype, (op.cols, 1), "scratch") for name in ("z", "e"))
    parts: list[Part] = [
        ("fmnmx", x, top),
        Stage("sub", *shape, (x, top), (z,), {"ffma.fp32": 1.0}, _sub),
        Stage("exp", *shape, (z,), (e,), EXPONENTIAL, _exp),
        ("fadd", e, total),
        Stage("div", *shape, (e, total), (y,), DIVIDE, _div),
    ]
    return (x, y, top, total, z, e), parts


ELEMENTWISE = PointwiseConfig("torch", 4, 4)
PLACE: Cost = {"setp.int32": 3.0, "sel.int32": 3.0}
"""`torch.max` of rows also gives each maximum's place, in 64 bits: comparisons of value, NaN and place, and moves."""
REDUCTION_WARPS = 16
"""Warps of a CTA of PyTorch's reductions."""
REDUCTION_VALUES = 4
"""Elements, read one by one, that a thread of them has on their way."""


def _reduction_config(op: Softmax) -> RowConfig:
    """What PyTorch launches for reductions of rows (ATen/native/cuda/Reduce.cuh): a warp a row; a whole CTA where a
    lane would have 16 elements for each of the CTA's rows; more warps where there are fewer rows than they."""
    abreast = min(REDUCTION_WARPS, 1 << op.rows.bit_length() - 1)
    of_row = max(1, min(REDUCTION_WARPS // abreast, (1 << op.cols.bit_length() - 1) // WARP_SIZE))
    if op.cols >= 16 * abreast * of_row * WARP_SIZE:
        return RowConfig("unfused", REDUCTION_WARPS, 1, REDUCTION_VALUES)
    if of_row == 1:
        return RowConfig("unfused", REDUCTION_WARPS, REDUCTION_WARPS, REDUCTION_VALUES)
    return RowConfig("unfused", of_row, 1, REDUCTION_VALUES)


def any_of_rows(name: str, spec: GpuSpec, shape: tuple[int, int], x: GlobalTensor, y: GlobalTensor) -> Kernel:
    """PyTorch's reduction of rows of booleans, four of them a load: the largest of each."""
    config = _reduction_config(Softmax(rows=shape[0], cols=shape[1], dtype="fp16"))
    return row_numbers(name, spec, shape, x, y, config, "fmnmx", vector=REDUCTION_VALUES)


def _unfused(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    tensors, parts = _unfused_parts(op)
    kernels = []
    for one in parts:
        if isinstance(one, Stage):
            kernels.append(pointwise.kernel(spec, one, ELEMENTWISE))
        else:
            opcode, source, target = one
            name = "row_sum" if opcode == "fadd" else "row_max"
            place = None if opcode == "fadd" else PLACE
            shape = (op.rows, op.cols)
            kernels.append(row_numbers(name, spec, shape, source, target, config, opcode, vector=1, place=place))
    return Program(str(op), tensors, tuple(kernels), str(config), {"config": config})


# ---------------------------------------------------------------------------------------------------- backward form


@register("softmax_backward", "gpu", "fused")
def _backward(op: SoftmaxBackward, spec: GpuSpec, config: RowConfig) -> Program:
    dy, y = (lanes.tensor(operand) for operand in op.operands)
    dx = lanes.tensor(op.results[0], "output")

    def body(w: RowKernel) -> None:
        g, p = w.load(dy), w.load(y)
        wide = lanes.scaled(lanes.widen(dy.dtype), 2)
        total = w.reduce(
            "total", "fadd", lanes.total({"ffma.fp32": 1.0}, wide), (g, p), lambda ok, a, b: (a * b).sum(axis=1), sums,
            after=(dy.name, y.name),
        )  # fmt: skip
        cost = lanes.total({"fadd.fp32": 1.0, "fmul.fp32": 1.0}, lanes.narrow(spec, dx.dtype))
        w.store(dx, w.map("out", cost, (g, p, total), lambda ok, a, b, s: b * (a - s), dtype=dx.dtype))

    kernel = RowKernel("softmax_backward", spec, op.rows, op.cols, config, tensors=2).write(body)
    return Program(str(op), (dy, y, dx), (kernel,), str(config), {"config": config})


# -------------------------------------------------------------------------------------------------------- choice

KINDS = ("cluster", "fused", "online", "threepass", *TORCH, "triton", "unfused")
_SINGLE = ("fused", "cluster", "online")
"""Kinds of one kernel, of which `auto` and the word `fused` take the best."""


def _torch_config(op: Softmax, kind: str) -> RowConfig:
    """The kernel that a version of PyTorch dispatches to."""
    cols, dtype = op.cols, op.chosen_dtype
    if cols <= libraries.figure(TORCH[kind], "warp_columns"):
        return RowConfig(kind, 4, 8 if cols <= 128 else 4)
    vector = lanes.MAX_VECTOR_BYTES // DTYPE_BYTES[dtype]
    if kind == "torch-2.0":
        return RowConfig(kind, _torch_block(cols, dtype), 1, vector)
    warps = libraries.figure(TORCH[kind], "cta_warps")
    if kind == "torch" and cols <= len(libraries.figure(TORCH[kind], "held_registers")) * warps * WARP_SIZE:
        return RowConfig(kind, warps, 1)
    return RowConfig(kind, warps, 1, vector)


def _torch_block(cols: int, dtype: str) -> int:
    """Warps of the CTA up to 2.0: half as many threads as the row has vectors, at most 512."""
    vectors = cols * DTYPE_BYTES[dtype] // lanes.MAX_VECTOR_BYTES
    threads = 1
    while threads < min(vectors, 1024) // 2:
        threads *= 2
    return max(1, threads // 32)


def _configs(op: Softmax, spec: GpuSpec, kind: str) -> list[RowConfig]:
    dtype = op.chosen_dtype
    match kind:
        case "fused":
            return _fused_configs(op, spec)
        case "torch" | "torch-2.1" | "torch-2.0":
            return [_torch_config(op, kind)]
        case "cluster":
            return rows.cluster_candidates(spec, op.cols)
        case "triton":
            return [RowConfig("triton", 8, 1, buffers=1)]
        case "unfused":
            return [_reduction_config(op)]
        case _:
            return rows.sweep_candidates(spec, kind, op.cols, dtype)


def _fused_configs(op: Softmax, spec: GpuSpec) -> list[RowConfig]:
    return rows.register_candidates(spec, "fused", op.cols)


def _estimate(op: Softmax, spec: GpuSpec, config: RowConfig) -> list[Load]:
    size = op.rows * op.cols * DTYPE_BYTES[op.chosen_dtype]
    written = op.rows * op.cols * DTYPE_BYTES[op.out_dtype]
    if config.schedule == "unfused":
        _, parts = _unfused_parts(op)
        out = []
        for one in parts:
            if isinstance(one, Stage):
                out.append(pointwise.load(spec, one, ELEMENTWISE))
            else:
                out.append(
                    rows.load(
                        spec, op.rows, op.cols, config, read_bytes=size, written_bytes=0, cost=ADDITION, reductions=1
                    )
                )
        return out
    sweeps = 1 if not config.elements else 2 if config.schedule == "online" else 3
    costs = lanes.total(FAST.exponential, FAST.quotient, ADDITION, MAXIMUM)
    cost = costs if sweeps == 1 else lanes.total(costs, FAST.exponential)
    return [
        rows.load(
            spec, op.rows, op.cols, config, read_bytes=size, written_bytes=written, cost=cost, reductions=2,
            sweeps=sweeps,
        )
    ]  # fmt: skip


@register("softmax", "gpu", "auto")
@register("softmax_backward", "gpu", "auto")
def choose(op: Softmax | SoftmaxBackward, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernels of a softmax; `auto` and `fused` take the best single one. The backward form has only `fused`."""
    _check_formats(op)
    if isinstance(op, SoftmaxBackward):
        return choose_registers(op, spec, schedule, reads=2, cost={"ffma.fp32": 1.0, "fadd.fp32": 2.0}, tensors=2)
    words = schedule.split()
    if schedule != "auto" and (not words or words[0] not in KINDS):
        raise unknown_schedule(op, spec, schedule, KINDS)
    kinds = _SINGLE if schedule in ("auto", "fused") else (words[0],)
    if schedule == "cluster" and spec.dsmem is None:
        raise InputError(f"schedule=cluster: {spec.name} has no clusters; nearest: fused")
    configs = [config for kind in kinds for config in _configs(op, spec, kind)]
    if len(words) > 1:
        base = configs[0] if configs else RowConfig(words[0], 8, 1)
        configs = [base.changed(schedule)]
        rows.check(spec, op.cols, configs[0])
    for config in configs:
        rows.check(spec, op.cols, config)
    found = rows.ranked(op, spec, configs, lambda config: _estimate(op, spec, config))
    return Choice(found[0][0], found)


def _check_formats(op: RowOperator) -> None:
    for dtype in (op.chosen_dtype, op.out_dtype):
        lanes.check_format(op, dtype)


def choose_registers(
    op: RowOperator, spec: GpuSpec, schedule: str, *, reads: int, cost: Cost, tensors: int, reductions: int = 1
) -> Choice:
    """The kernel of an operator that has only the kind `fused`."""
    words = schedule.split()
    if schedule != "auto" and words[0] != "fused":
        raise InputError(f"schedule={schedule}: one of auto, fused, or a whole configuration")
    configs = rows.register_candidates(spec, "fused", op.cols, tensors)
    if len(words) > 1:
        configs = [(configs[0] if configs else RowConfig("fused", 8, 1)).changed(schedule)]
        rows.check(spec, op.cols, configs[0], tensors)
    size = op.rows * op.cols * DTYPE_BYTES[op.chosen_dtype]
    found = rows.ranked(
        op, spec, configs,
        lambda c: [
            rows.load(
                spec, op.rows, op.cols, c, read_bytes=reads * size, written_bytes=size, cost=cost,
                reductions=reductions, tensors=tensors,
            )
        ],
    )  # fmt: skip
    return Choice(found[0][0], found)


@register(
    "softmax", "gpu", "cluster", "fused", "online", "threepass", "torch", "torch-2.0", "torch-2.1", "triton", "unfused"
)
def _build(op: Softmax, spec: GpuSpec, config: RowConfig) -> Program:
    rows.check(spec, op.cols, config)
    match config.schedule:
        case "online":
            return _online(op, spec, config)
        case "threepass":
            return _threepass(op, spec, config, FAST)
        case "unfused":
            return _unfused(op, spec, config)
        case kind if kind in TORCH:
            if config.shared and not config.elements:
                return _held(op, spec, config)
            return _threepass(op, spec, config, ACCURATE) if config.elements else _warp(op, spec, config)
    return _fused(op, spec, config)
