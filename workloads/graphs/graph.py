"""A graph of operators on one stream: which operator reads and writes which tensor, in the order of its calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from workloads.graphs.memory import plan
from workloads.ops.base import Operator

KINDS = ("contraction", "normalisation", "elementwise", "copy")
"""Classes of operators by how they move data: sums of products; reductions and what rests on them; element by element;
to and from the host."""

_KIND_OF_WORD = {
    **dict.fromkeys(("gemm", "conv2d", "attention", "matvec"), "contraction"),
    **dict.fromkeys(("softmax", "softmax_backward", "sum", "rmsnorm"), "normalisation"),
    **dict.fromkeys(("layernorm", "layernorm_backward"), "normalisation"),
    **dict.fromkeys(("pointwise", "transpose"), "elementwise"),
    "copy_h2d": "copy",
}


@dataclass(frozen=True)
class Value:
    """A tensor of a graph, or a contiguous part of one: `size` elements of `dtype` from element `offset` on."""

    buffer: str
    size: int
    dtype: str
    offset: int = 0

    def part(self, number: int, of: int) -> Value:
        """Part `number` of `of` equal ones."""
        if self.size % of:
            raise InputError(f"{self.buffer}: {self.size} elements do not fall into {of} equal parts")
        size = self.size // of
        return Value(self.buffer, size, self.dtype, self.offset + number * size)

    @property
    def offset_bytes(self) -> int:
        """Bytes before it in its buffer."""
        return self.offset * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Step:
    """One call of an operator. label: its name in a profile. operands, results: in the operator's own order."""

    label: str
    op: Operator
    operands: tuple[Value, ...]
    results: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return _KIND_OF_WORD[self.op.word]


@dataclass(frozen=True)
class Graph:
    """Operators in the order in which they are called. inputs: buffers that exist before; outputs: that stay after."""

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes_bytes: dict[str, int]

    def addresses(self, first_address: int = 1 << 21) -> tuple[dict[str, int], int]:
        """Byte address of each buffer, and where free memory begins: buffers that are not used again are reused."""
        lives: dict[str, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for value in (*step.operands, *step.results):
                if value.buffer not in self.inputs:
                    lives[value.buffer] = (lives.get(value.buffer, (number, 0))[0], number)
        end = len(self.steps)
        for name in self.outputs:
            if name in lives:
                lives[name] = (lives[name][0], end)
        return plan(first_address, self.sizes_bytes, self.inputs, lives)

    @property
    def flops(self) -> int:
        """Operations of all operators."""
        return sum(step.op.flops for step in self.steps)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operators."""
        return sum(step.op.macs for step in self.steps)


@dataclass
class GraphBuilder:
    """Writes a graph: `tensor` declares what is there before, `call` calls an operator and gives its results."""

    name: str
    _steps: list[Step] = field(default_factory=list)
    _sizes: dict[str, int] = field(default_factory=dict)
    _inputs: list[str] = field(default_factory=list)

    def tensor(self, name: str, size: int, dtype: str) -> Value:
        """A tensor that exists before the graph: an input, or a weight."""
        if name in self._sizes:
            raise InputError(f"graph {self.name}: tensor {name} is declared twice")
        self._inputs.append(name)
        return self._value(name, size, dtype)

    def call(self, label: str, op: Operator, *operands: Value) -> Value:
        """Calls an operator that has one result."""
        (result,) = self.calls(label, op, *operands)
        return result

    def calls(self, label: str, op: Operator, *operands: Value) -> tuple[Value, ...]:
        """Calls an operator; its results, in its order. InputError where operands do not fit it."""
        expected = [operand for operand in op.operands if operand.stored]
        given = [(value.size, value.dtype) for value in operands]
        wanted = [(math.prod(operand.shape), operand.dtype) for operand in expected]
        if given != wanted:
            names = ", ".join(f"{o.name} of {math.prod(o.shape)} {o.dtype}" for o in expected)
            raise InputError(f"graph {self.name}, {label}: {op} takes {names}; given are {given}")
        number = len(self._steps)
        results = tuple(
            self._value(f"{number}.{label}.{result.name}", math.prod(result.shape), result.dtype)
            for result in op.results
        )
        self._steps.append(Step(label, op, operands, results))
        return results

    def inplace(self, label: str, op: Operator, *operands: Value) -> Value:
        """Calls an operator that writes its one result over its first operand."""
        self.calls(label, op, *operands)
        step = self._steps.pop()
        (result,) = step.results
        del self._sizes[result.buffer]
        if (result.size, result.dtype) != (operands[0].size, operands[0].dtype):
            raise InputError(f"graph {self.name}, {label}: {op} cannot write over an operand of another size")
        self._steps.append(Step(label, op, operands, (operands[0],)))
        return operands[0]

    def build(self, *outputs: Value) -> Graph:
        """The graph; `outputs` stay in memory."""
        names = tuple(dict.fromkeys(value.buffer for value in outputs))
        return Graph(self.name, tuple(self._steps), tuple(self._inputs), names, dict(self._sizes))

    def _value(self, name: str, size: int, dtype: str) -> Value:
        self._sizes[name] = size * DTYPE_BYTES[dtype]
        return Value(name, size, dtype)


class GraphOperator(Operator):
    """An operator that is a graph of others. Its schedules are forms of the graph."""

    def graph(self, fused: bool) -> Graph:
        """The graph; fused: neighbouring element-by-element operators are one kernel. Number formats must be known."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Operations of all operators."""
        return self.graph(fused=False).flops

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operators."""
        return self.graph(fused=False).macs

    @property
    def operand_bytes(self) -> int:
        """Bytes of device memory that the graph takes."""
        first = 0
        return self.graph(fused=False).addresses(first)[1]

    def inputs(self, seed: int = 0, data: str = "normal") -> Sequence[Any]:  # type: ignore[override]
        """Not made here: operands of a graph belong to its operators."""
        raise NotImplementedError
