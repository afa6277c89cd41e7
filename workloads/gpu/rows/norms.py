"""Layer norm and RMS norm of rows, and the gradient of layer norm.

- `fused`: the best single kernel; as a whole configuration, a row stays in registers: one load, one store.
- `cluster`: the same with a row shared by the CTAs of a cluster (Hopper).
- `torch`: PyTorch's kernel (layer norm since 1.10, RMS norm since 2.8): a CTA of 128 threads a row, which is swept
  twice, a vector at a time; layer norm by Welford's updates.
- `triton`: the layer norm of Triton's tutorial, three sweeps (`triton_norm`).
- `inductor`: the layer norm that PyTorch's compiler makes (2.0): three sweeps in blocks of 2048, short rows held in
  registers.

The gradient by x is a kernel over rows; those by weight and bias are sums over the rows, a kernel over columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.language import GlobalTensor, Kernel, Program, RegisterTile, View
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost, HalvingReduction, Load
from workloads.gpu.rows import columns, rows, triton_norm
from workloads.gpu.rows.rows import RowConfig, RowKernel, sums
from workloads.gpu.select import Choice, unknown_schedule
from workloads.ops import LayerNorm, LayerNormBackward, RmsNorm
from workloads.ops.base import Array
from workloads.ops.rowwise import EPSILON
from workloads.registry import register

KINDS = ("cluster", "fused", "inductor", "torch", "triton")
_CHOSEN = ("cluster", "fused", "torch")
"""Kinds of which `auto` and the word `fused` take the best."""
Norm = LayerNorm | RmsNorm

# Instructions of an element (Triton layer norm and RMS norm on sm_80, 16 elements a thread).
SUM: Cost = {"fadd.fp32": 1.0}
DIFFERENCE: Cost = {"fadd.fp32": 1.0, "sel.int32": 1.0}
SQUARES: Cost = {"ffma.fp32": 1.0}
SCALE_SHIFT: Cost = {"fmul.fp32": 1.0, "ffma.fp32": 1.0}
SCALE: Cost = {"fmul.fp32": 2.0}
TORCH_VECTOR = 4
"""Elements of a vector load of PyTorch's kernel, whatever their format."""
TORCH_STEP: Cost = {"iadd.int32": 5.0, "imad.int32": 2.0}
"""Of a trip: address, counter, test and branch. The compiler unrolls neither sweep (SASS of nvcc 11.8, 12.6 and 13 for
sm_80 and sm_90): a thread has one vector on its way, and fetches weights and biases, which are not declared free of
aliases, element by element."""
TORCH_REGISTERS = {"layernorm": {2: 32, 4: 39}, "rmsnorm": {2: 27, 4: 32}}
"""Registers of a thread by the bytes of an element (the library of PyTorch 2.11, sm_90)."""
TORCH_BETWEEN: Cost = {"iadd.int32": 5.0, "setp.int32": 4.0, "ffma.fp32": 9.0}
"""Between the statistics and the second sweep: guards of 1/deviation, which of weight and bias there are, addresses."""
ROOT: Cost = {"rsq.fp32": 1.0, "fmul.fp32": 4.0, "rcp.fp32": 1.0}
"""Of a row, once a thread: mean and 1/deviation."""
WELFORD: Cost = {"rcp.fp32": 1.0, "fadd.fp32": 7.0, "ffma.fp32": 4.0, "iadd.int32": 3.0}
"""An update: count and its reciprocal, whose Newton step, range test and branch around the slow path keep updates
apart, then difference, mean, difference and sum of squares. Three branches take an issue slot each, as FADD does."""
WELFORD_CHAIN = 2
"""Nearly all of these wait for each other, about 70 cycles in all: twice each of the four opcodes once."""
EMPTY_STEP = 8
"""Instructions of a step that finds no elements on either side, beside its three shuffles."""
TORCH_ACTIVE = {2: 0, 4: 90}
"""Further ones of a warp that has columns, by the bytes of an element: 284 for its part and its first vectors, 100 for
each further ones, where bf16 has none further (`executed_instructions.csv`). What they do is not known."""


@register("layernorm", "gpu", "cluster", "fused", "inductor", "torch", "triton")
@register("rmsnorm", "gpu", "cluster", "fused", "torch")
def _build(op: Norm, spec: GpuSpec, config: RowConfig) -> Program:
    rows.check(spec, op.cols, config)
    tensors = [lanes.tensor(o, shape=(1, op.cols) if len(o.shape) == 1 else None) for o in op.operands]
    results = [lanes.tensor(o, "output", (op.rows, 1) if len(o.shape) == 1 else None) for o in op.results]
    x, *vectors = tensors
    y, *stats = results
    residual = (vectors.pop(), stats.pop()) if _added(op) else None
    name = "layernorm" if isinstance(op, LayerNorm) else "rmsnorm"
    if _thrice(config):
        registers = triton_norm.registers(config)
        swept_thrice = RowKernel(name, spec, op.rows, op.cols, config, registers_=registers)
        kernel = swept_thrice.write(triton_norm.Sweeps(x, vectors, y, stats).write)
    else:
        kernel = _Rows(op, spec, config, x, vectors, y, stats, residual).kernel(name)
    return Program(str(op), (*tensors, *results), (kernel,), str(config), {"config": config})


@dataclass(frozen=True)
class _Rows:
    """Writes the kernel of a norm that keeps a row in registers, or (`config.elements`) reads it twice. residual: what
    is added to x, and where the sum goes."""

    op: Norm
    spec: GpuSpec
    config: RowConfig
    x: GlobalTensor
    vectors: Sequence[GlobalTensor]
    y: GlobalTensor
    stats: Sequence[GlobalTensor]
    residual: tuple[GlobalTensor, GlobalTensor] | None = None

    @property
    def wide(self) -> Cost:
        """What it takes to widen a value of x."""
        return lanes.widen(self.x.dtype)

    def kernel(self, name: str) -> Kernel:
        """The kernel."""
        twice = self.config.elements
        kernel = RowKernel(
            name, self.spec, self.op.rows, self.op.cols, self.config,
            values=3 if twice and isinstance(self.op, LayerNorm) else 1, vector=TORCH_VECTOR if twice else 0,
            exchange="halving" if twice else "all",
            registers_=TORCH_REGISTERS[name][DTYPE_BYTES[self.x.dtype]] if twice else 0,
        )  # fmt: skip
        return kernel.write(self._swept if twice else self._fused, ahead=self.x)

    def _fused(self, w: RowKernel) -> None:
        """Keeps the row: mean square of an RMS norm; of a layer norm mean, then squares of what is left."""
        given, arrived = w.load(self.x), w.arrived(self.x)
        if self.residual is not None:
            given, arrived = self._added(w, given), ()
        if isinstance(self.op, RmsNorm):
            total = w.reduce(
                "total", "fadd", lanes.total(SUM, {"fmul.fp32": 1.0}, self.wide), (given,),
                lambda ok, v: np.where(ok, v * v, 0.0).sum(axis=1), sums, after=arrived,
            )  # fmt: skip
            numbers = _numbers(w, (total,), self._root)
        else:
            cols = self.op.cols
            total = w.reduce(
                "total", "fadd", lanes.total(SUM, self.wide), (given,),
                lambda ok, v: np.where(ok, v, 0.0).sum(axis=1), sums, after=w.arrived(self.x),
            )  # fmt: skip
            centred = w.map("centred", DIFFERENCE, (given, total), lambda ok, v, t: np.where(ok, v - t / cols, 0.0))
            squares = w.reduce("squares", "fadd", SQUARES, (centred,), lambda ok, v: (v * v).sum(axis=1), sums)
            numbers = _numbers(
                w, (total, squares), lambda t, q: np.concatenate([t / cols, 1 / np.sqrt(q / cols + EPSILON)], axis=1)
            )
            self._store_stats(w, numbers)
        self._finish(w, given, numbers, ())

    def _added(self, w: RowKernel, given: View) -> View:
        """x with the residual, rounded and stored."""
        assert self.residual is not None
        residual, total = self.residual
        cost = lanes.total(SUM, self.wide, self.wide, lanes.narrow(self.spec, total.dtype))
        after = (*w.arrived(self.x), residual.name)
        found = w.map("sum", cost, (given, w.load(residual)), lambda ok, v, r: v + r, dtype=total.dtype, after=after)
        w.store(total, found)
        return found

    def _swept(self, w: RowKernel) -> None:
        """Reads the row twice: for its sums (a layer norm's by Welford), then for what is written."""
        cols, step = self.op.cols, lanes.scaled(TORCH_STEP, 1 / self.config.elements)
        if isinstance(self.op, RmsNorm):
            state = w.start("state", (0.0,))
            with w.sweep(0):
                given = w.load(self.x, "x0")
                w.local(
                    "state", lanes.total(SQUARES, self.wide, step), (given,),
                    lambda ok, before, v: before[:, 0] + np.where(ok, v * v, 0.0).sum(axis=1), after=("x0",), old=True,
                )  # fmt: skip
            w.across(state, "fadd", sums)
            numbers = _numbers(w, (state,), self._root)
        else:
            state = w.start("state", (0.0, 0.0, 0.0))
            with w.sweep(0):
                given = w.load(self.x, "x0")
                values = w.map("values", lanes.total(self.wide, step), (given,), lambda ok, v: v, after=("x0",))
                chain = WELFORD_CHAIN * self.config.elements
                w.local("state", WELFORD, (values,), _welford, values=3, old=True, chain=chain)
            _write_lanes(w, state, DTYPE_BYTES[self.x.dtype])
            w.across(state, "fadd", _combine_welford, steps=0)
            numbers = _numbers(
                w, (state,), lambda s: np.stack([s[:, 1], 1 / np.sqrt(s[:, 2] / cols + EPSILON)], axis=1)
            )
            self._store_stats(w, numbers)
        w.prepare("tensors", TORCH_BETWEEN, 1)
        with w.sweep(1):
            again = w.load(self.x, "x1")
            self._finish(w, again, numbers, ("x1",))

    def _root(self, t: Array) -> Array:
        """What an RMS norm takes off, nothing, and multiplies by."""
        return np.concatenate([0 * t, 1 / np.sqrt(t / self.op.cols + EPSILON)], axis=1)

    def _store_stats(self, w: RowKernel, numbers: View) -> None:
        """Stores mean and reciprocal deviation, where they are results."""
        for number, tensor in enumerate(self.stats):
            column = numbers.buffer[:, number:1]  # type: ignore[index]
            w.store(tensor, column)

    def _finish(self, w: RowKernel, given: View, numbers: View, after: tuple[str, ...]) -> None:
        """Scales and shifts the row by its numbers and by the vectors, and stores it."""
        elements = self.config.elements
        loaded = [w.load(v, single=bool(elements)) for v in self.vectors]
        waits = (*after, *(v.name for v in self.vectors))
        scale = SCALE if isinstance(self.op, RmsNorm) else lanes.total(SCALE_SHIFT, {"fadd.fp32": 1.0})
        cost = lanes.total(scale, *(self.wide for _ in self.vectors), lanes.narrow(self.spec, self.y.dtype))
        if elements:
            cost = lanes.total(cost, self.wide, lanes.scaled(TORCH_STEP, 1 / elements))

        def compute(_: Array, v: Array, n: Array, weight: Array | float = 1.0, bias: Array | float = 0.0) -> Array:
            return (v - n[:, :1]) * n[:, 1:] * weight + bias

        out = w.map("out", cost, (given, numbers, *loaded), compute, dtype=self.y.dtype, after=waits)
        w.store(self.y, out)


def _thrice(config: RowConfig) -> bool:
    """Whether a row is swept three times."""
    return config.schedule in ("inductor", "triton") and config.elements > 0


def _numbers(w: RowKernel, given: tuple[View, ...], compute: Callable[..., Array]) -> View:
    """Mean and 1/deviation of each row from its sums, (rows, 2)."""
    tile = RegisterTile("numbers", (w.tile_rows, 2), "fp32")
    lanes.write(
        w.r, w.spec, ROOT, dst=tile.whole, srcs=given,
        compute=lambda _, *parts: compute(*(np.asarray(p, dtype=np.float64) for p in parts)),
    )  # fmt: skip
    return tile.whole


def _write_lanes(w: RowKernel, state: View, width: int) -> None:
    """Count, mean and squares of all lanes of a warp, by a butterfly of three numbers. width: bytes of an element."""
    r, steps, mix = w.r, lanes.SHUFFLES, HalvingReduction.WELFORD_MIX
    has_columns = w.column < w.cols
    with r.when(has_columns):
        r.run("shfl", 3 * steps, dtype="b32", dst=state, srcs=(state,), compute=lanes.keep, chain=steps)
        r.run(
            "rcp", steps, dtype="fp32", dst=state, srcs=(state,), compute=lanes.keep,
            chain=steps * HalvingReduction.WELFORD_CHAIN, mix=tuple((opcode, steps * count) for opcode, count in mix),
        )  # fmt: skip
        if more := TORCH_ACTIVE[width]:
            r.run("iadd", more // 2, dtype="int32", mix=(("imad", more // 2),))
    with r.when(has_columns.equals(0)):
        r.run(
            "shfl", 3 * steps, dtype="b32", dst=state, srcs=(state,), compute=lanes.keep, chain=steps,
            mix=(("iadd.int32", steps * EMPTY_STEP),),
        )  # fmt: skip


def _welford(ok: Array, before: Array, v: Array) -> Array:
    """Count, mean and sum of squared differences with the elements of a tile added."""
    count = ok.sum(axis=1) * np.ones(v.shape[0])
    held = np.maximum(count, 1)
    mean = np.where(ok, v, 0.0).sum(axis=1) / held
    squares = np.where(ok, (v - mean[:, None]) ** 2, 0.0).sum(axis=1)
    every = np.stack([before, np.stack([count, mean, squares], axis=1)])
    return np.stack([_combine_welford(every[:, row]) for row in range(v.shape[0])])


def _combine_welford(every: Array) -> Array:
    """Count, mean and sum of squared differences of all parts together."""
    every = np.asarray(every, dtype=np.float64)
    count = every[:, 0].sum()
    mean = (every[:, 0] * every[:, 1]).sum() / max(count, 1)
    return np.array([count, mean, (every[:, 2] + every[:, 0] * (every[:, 1] - mean) ** 2).sum()])


# ---------------------------------------------------------------------------------------------------- backward form


@register("layernorm_backward", "gpu", "fused")
def _build_backward(op: LayerNormBackward, spec: GpuSpec, config: RowConfig) -> Program:
    rows.check(spec, op.cols, config, tensors=2)
    shapes = {"mean": (op.rows, 1), "rstd": (op.rows, 1), "weight": (1, op.cols)}
    dy, x, mean, rstd, weight = (lanes.tensor(o, shape=shapes.get(o.name)) for o in op.operands)
    dx, dweight, dbias = (lanes.tensor(o, "output", (1, op.cols) if len(o.shape) == 1 else None) for o in op.results)

    def body(w: RowKernel) -> None:
        g, v, m, s, scale = (w.load(t) for t in (dy, x, mean, rstd, weight))
        wide = lanes.scaled(lanes.widen(x.dtype), 3)
        totals = w.reduce(
            "totals", "fadd", lanes.total({"fmul.fp32": 1.0, "fadd.fp32": 2.0, "ffma.fp32": 2.0}, wide),
            (g, v, m, s, scale),
            lambda ok, g, v, m, s, w: np.stack([(g * w).sum(axis=1), (g * w * (v - m) * s).sum(axis=1)], axis=1),
            sums, values=2, after=tuple(t.name for t in (dy, x, mean, rstd, weight)),
        )  # fmt: skip
        out = w.map(
            "out", lanes.total({"fmul.fp32": 3.0, "fadd.fp32": 1.0, "ffma.fp32": 3.0}, lanes.narrow(spec, dx.dtype)),
            (g, v, m, s, scale, totals),
            lambda ok, g, v, m, s, w, t: s * (g * w - (t[:, :1] + (v - m) * s * t[:, 1:]) / op.cols),
            dtype=dx.dtype,
        )  # fmt: skip
        w.store(dx, out)

    kernel = RowKernel("layernorm_backward", spec, op.rows, op.cols, config, tensors=2, values=2).write(body)
    wide = lanes.scaled(lanes.widen(x.dtype), 2)
    gradients = columns.kernels(
        "layernorm_weights", spec, (op.rows, op.cols), (dy, x), (mean, rstd), (dweight, dbias),
        lanes.total({"fadd.fp32": 2.0, "ffma.fp32": 1.0, "fmul.fp32": 1.0}, wide),
        lambda g, v, m, s: (np.asarray((g * (v - m) * s).sum(axis=0)), np.asarray(g.sum(axis=0))),
    )  # fmt: skip
    tensors = (dy, x, mean, rstd, weight, dx, dweight, dbias, *gradients.scratch)
    return Program(str(op), tensors, (kernel, *gradients.kernels), str(config), {"config": config})


# ------------------------------------------------------------------------------------------------------------ choice


@register("layernorm", "gpu", "auto")
@register("rmsnorm", "gpu", "auto")
@register("layernorm_backward", "gpu", "auto")
def choose(op: Norm | LayerNormBackward, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel of a norm: `auto` and `fused` take the best. The backward form has only `fused`."""
    lanes.check_format(op, op.chosen_dtype)
    if op.out_dtype in lanes.FP8:
        lanes.check_conversions(op, spec, op.out_dtype)
    else:
        lanes.check_format(op, op.out_dtype)
    kinds = {LayerNorm: KINDS, RmsNorm: _CHOSEN, LayerNormBackward: ("fused",)}[type(op)]
    if _added(op):  # PyTorch adds in a kernel of its own
        kinds = tuple(kind for kind in kinds if kind != "torch")
    words = schedule.split()
    if schedule != "auto" and (not words or words[0] not in kinds):
        raise unknown_schedule(op, spec, schedule, kinds)
    wanted = [kind for kind in kinds if kind in _CHOSEN] if schedule in ("auto", "fused") else (words[0],)
    if schedule == "cluster" and spec.dsmem is None:
        raise InputError(f"schedule=cluster: {spec.name} has no clusters; nearest: fused")
    configs = [config for kind in wanted for config in _configs(op, spec, kind)]
    if len(words) > 1:
        configs = [(configs[0] if configs else RowConfig(words[0], 8, 1)).changed(schedule)]
        rows.check(spec, op.cols, configs[0], tensors=_matrices(op))
    found = rows.ranked(op, spec, configs, lambda config: _estimate(op, spec, config))
    return Choice(found[0][0], found)


def _configs(op: Norm | LayerNormBackward, spec: GpuSpec, kind: str) -> list[RowConfig]:
    if kind == "torch":
        return [RowConfig("torch", 4, 1, TORCH_VECTOR)]
    if kind == "inductor":
        return [triton_norm.compiled_config(op.cols)]
    if kind == "triton":
        return [triton_norm.config(op.cols * DTYPE_BYTES[op.chosen_dtype], op.cols)]
    if kind == "cluster":
        return rows.cluster_candidates(spec, op.cols)
    return rows.register_candidates(spec, "fused", op.cols, _matrices(op))


def _added(op: Norm | LayerNormBackward) -> bool:
    """Whether a residual is added first."""
    return isinstance(op, RmsNorm) and op.add == "1"


def _matrices(op: Norm | LayerNormBackward) -> int:
    """Matrices that are read."""
    return 2 if isinstance(op, LayerNormBackward) or _added(op) else 1


def _estimate(op: Norm | LayerNormBackward, spec: GpuSpec, config: RowConfig) -> list[Load]:
    size = op.rows * op.cols * DTYPE_BYTES[op.chosen_dtype]
    cost = lanes.total(SUM, DIFFERENCE, SQUARES, SCALE_SHIFT)
    thrice, matrices = _thrice(config), _matrices(op)
    if config.elements and not thrice:
        cost = lanes.total(cost, WELFORD)
    return [
        rows.load(
            spec, op.rows, op.cols, config, read_bytes=size * matrices,
            written_bytes=op.rows * op.cols * DTYPE_BYTES[op.out_dtype] + size * _added(op), cost=cost,
            reductions=1 if isinstance(op, RmsNorm) or (config.elements and not thrice) else 2,
            sweeps=3 if thrice else 2 if config.elements else 1,
            tensors=matrices,
        )
    ]  # fmt: skip
