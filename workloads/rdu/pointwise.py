"""Chains of elementwise functions: fused, one pipeline of PCUs between a load and a store; unfused, a section each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor, Value
from workloads.ops import Pointwise
from workloads.ops.pointwise import EXPONENT, SCALE
from workloads.rdu.select import ceil_div, check_dtype, pick
from workloads.registry import register

_FORM = re.compile(r"(?:fused|unfused) (\d+) elements")


def _silu_slope(x: Value, s: Value) -> Value:
    return s * (x * (s * -1.0 + 1.0) + 1.0)


BODIES: dict[str, Callable[..., Value]] = {
    "copy": lambda x: x,
    "cast": lambda x: x,
    "scale": lambda x: x * SCALE,
    "neg": lambda x: x * -1.0,
    "abs": lambda x: x.maximum(x * -1.0),
    "relu": lambda x: x.maximum(0.0),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.tail("log"),
    "log10": lambda x: x.tail("log") * (1 / math.log(10)),
    "sin": lambda x: x.tail("sin"),
    "cos": lambda x: x.tail("cos"),
    "tanh": lambda x: x.tail("tanh"),
    "sqrt": lambda x: x.tail("sqrt"),
    "rsqrt": lambda x: x.tail("rsqrt"),
    "pow": lambda x: (x.tail("log") * EXPONENT).exp(),
    "sigmoid": lambda x: x.tail("sigmoid"),
    "silu": lambda x: x * x.tail("sigmoid"),
    "gelu": lambda x: x * ((x * math.sqrt(0.5)).tail("erf") + 1.0) * 0.5,
    "gelu_tanh": lambda x: x * (((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)).tail("tanh") + 1.0) * 0.5,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "triad": lambda x, y: x + y * SCALE,
    "silu_backward": lambda dy, x: dy * _silu_slope(x, x.tail("sigmoid")),
}
"""What the functions of a chain are on lanes and tails."""


@dataclass(frozen=True)
class PointwiseConfig:
    """Elements of a tile; `fused`: one section for the whole chain."""

    elements: int
    fused: bool

    @property
    def schedule(self) -> str:
        """`fused` or `unfused`."""
        return "fused" if self.fused else "unfused"

    def __str__(self) -> str:
        return f"{self.schedule} {self.elements} elements"

    def build(self, op: Pointwise, spec: RduSpec) -> Program:
        """The program: one section, or one a function through memory."""
        names = op.functions * op.repeat
        given = [t for t in op.operands if t.name != "x"]
        per_call = [[o for o in given if o.name == f"{name}{n}"] for n, name in enumerate(op.functions)] * op.repeat
        groups = [(names, per_call)] if self.fused else [([n], [o]) for n, o in zip(names, per_call, strict=True)]
        source = Tensor("x", (op.n,), str(op.dtype))
        calls = []
        for number, (functions, others) in enumerate(groups):
            last = number == len(groups) - 1
            target = (
                Tensor("y", (op.n,), op.out_dtype, "output")
                if last
                else Tensor(f"t{number}", (op.n,), str(op.dtype), "scratch")
            )
            calls.append(Call(self._section(op, number, functions, others, source, target)))
            source = target
        return Program(str(op), tuple(calls), str(self))

    def _section(
        self,
        op: Pointwise,
        number: int,
        functions: Sequence[str],
        others: Sequence[Sequence[Any]],
        source: Tensor,
        target: Tensor,
    ) -> Section:
        section = Section("chain" if self.fused else f"{functions[0]}{number}")
        i = Counter("tile", ceil_div(op.n, self.elements))
        at, tile = (i * self.elements,), (self.elements,)
        inputs = {"x": section.load("load_x", source, at, tile, (i,))}
        for operand in dict.fromkeys(o for group in others for o in group):
            tensor = Tensor(operand.name, operand.shape, operand.dtype)
            inputs[operand.name] = section.load(f"load_{operand.name}", tensor, at, tile, (i,))

        def body(x: Value, **values: Value) -> Value:
            for name, group in zip(functions, others, strict=True):
                x = BODIES[name](x, *(values[o.name] for o in group))
            return x

        out = Out(tile, target.dtype, (i,))
        section.store("store_y", target, at, section.stage("compute", (i,), inputs, body, out), (i,))
        return section


@register("pointwise", "rdu", "fused", "unfused")
def build(op: Pointwise, spec: RduSpec, config: PointwiseConfig) -> Program:
    """The program of a configuration."""
    return config.build(op, spec)


@register("pointwise", "rdu", "auto")
def choose(op: Pointwise, spec: RduSpec, schedule: str) -> list[tuple[PointwiseConfig, int]]:
    """One form, as the operator says; tiles that fill the pipeline and leave enough of them to overlap."""
    check_dtype(op, spec)
    if op.layout is not None:
        raise InputError(f"{op}: {spec.name} has no chain of operands in another order; leave shape and layout out")
    for name in op.functions:
        if name not in BODIES:
            raise InputError(f"{name}: has no form on {spec.name}; available: {', '.join(BODIES)}")
    elements = min(op.n, max(4096, min(1 << 18, op.n // 32)))
    config = PointwiseConfig(elements, op.fused == "1")
    moved = op.operand_bytes * (1 if config.fused else len(op.functions) * op.repeat)
    cycles = moved * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s

    def parse(text: str) -> PointwiseConfig | None:
        match = _FORM.fullmatch(text)
        return PointwiseConfig(int(match[1]), text.startswith("fused")) if match else None

    return list(pick(op.word, schedule, [(config, cycles)], parse))
