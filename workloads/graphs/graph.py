"""A graph of operators: which operator reads and writes which tensor, in the order of its calls.

All are on one stream, but for collectives that are called `beside` others: these are on a second one, wait for what
they read, and are waited for by who reads their results.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np

from arch.arguments import one_of
from arch.dtypes import DTYPE_BYTES, format_of, is_integer
from arch.errors import InputError
from workloads.graphs.memory import plan
from workloads.ops.base import Operand, Operator
from workloads.ops.collectives import AllGather, Collective, ReduceScatter
from workloads.ops.movement import AllReduce
from workloads.ops.pointwise import Pointwise

OTHERS = ("refuse", "count", "host", "stream")
"""What becomes of steps that a machine cannot run: the graph is refused, they are counted in no time, the host computes
them, or they take as long as their bytes take from and to memory."""


@dataclass(frozen=True)
class Value:
    """A tensor of a graph, or a contiguous part of one: `size` elements of `dtype` from element `offset` on."""

    buffer: str
    size: int
    dtype: str
    offset: int = 0

    def part(self, number: int, of: int) -> Value:
        """Part `number` of `of` equal ones."""
        if of < 1 or self.size % of:
            raise InputError(f"{self.buffer}: {self.size} elements do not fall into {of} equal parts")
        if not 0 <= number < of:
            raise InputError(f"{self.buffer}: has parts 0 to {of - 1}, no part {number}")
        size = self.size // of
        return self.slice(number * size, size)

    def slice(self, first: int, size: int) -> Value:
        """`size` elements from element `first` on."""
        if first < 0 or size < 1 or first + size > self.size:
            end = first + size
            raise InputError(f"{self.buffer}: elements {first} to {end} are no part of {self.size}")
        return Value(self.buffer, size, self.dtype, self.offset + first)

    @property
    def size_bytes(self) -> int:
        """Bytes of it."""
        return self.size * DTYPE_BYTES[self.dtype]

    @property
    def offset_bytes(self) -> int:
        """Bytes before it in its buffer."""
        return self.offset * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Step:
    """One call of an operator. label: its name in a profile. operands, results: in the operator's own order. stream: 0,
    or 1 for what runs beside the others. stands_in: `op` is a copy of as many bytes as an operator moves that has no
    kernel."""

    label: str
    op: Operator
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    stream: int = 0
    stands_in: bool = False

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return self.op.kind


@dataclass(frozen=True)
class Unread:
    """Operators of a model that no step computes. calls: by name, how many. elements: by name, what they read and write
    together, without weights, each of `element_bytes`. unsized: how many have a tensor whose size is not known."""

    calls: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    element_bytes: int = 1
    unsized: int = 0


@dataclass(frozen=True)
class Repeat:
    """Equal layers after each other: `times` times as many steps as `steps`, from step `first` on."""

    first: int
    steps: int
    times: int

    def layer(self, number: int) -> range:
        """The steps of a layer."""
        begin = self.first + number * self.steps
        return range(begin, begin + self.steps)

    @property
    def all(self) -> range:
        """The steps of all layers."""
        return range(self.first, self.first + self.steps * self.times)


@dataclass(frozen=True)
class Graph:
    """Operators in the order in which they are called.

    inputs: buffers that exist before. outputs: buffers that stay after. others: one of `OTHERS`. joined: whether steps
    read what others wrote; a file that says shapes alone has steps without operands, which always run apart. unread:
    what a model has beside them. notes: what a reader of a report must know. repeats: layers that are equal but for
    their tensors.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sizes_bytes: dict[str, int] = field(default_factory=dict)
    others: str = "refuse"
    joined: bool = True
    unread: Unread = Unread()
    notes: tuple[str, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    @functools.cached_property
    def waits(self) -> tuple[tuple[int, ...], ...]:
        """By step, the last step of the other stream that it has to wait for, if there is one."""
        made: dict[str, tuple[int, int]] = {}  # by buffer: stream and number of the last step that wrote it
        found = []
        for number, step in enumerate(self.steps):
            others = [made[value.buffer] for value in step.operands if value.buffer in made]
            before = [n for stream, n in others if stream != step.stream]
            found.append((max(before),) if before else ())
            made |= {value.buffer: (step.stream, number) for value in step.results}
        return tuple(found)

    def addresses(self, first_address: int = 1 << 21) -> tuple[dict[str, int], int]:
        """Byte address of each buffer, and where free memory begins: buffers that are not used again are reused."""
        lives: dict[str, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            first, last = self._span(number)
            for value in (*step.operands, *step.results):
                if value.buffer not in self.inputs:
                    begin, end = lives.get(value.buffer, (first, last))
                    lives[value.buffer] = (min(begin, first), max(end, last))
        end = len(self.steps)
        for name in self.outputs:
            if name in lives:
                lives[name] = (lives[name][0], end)
        return plan(first_address, self.sizes_bytes, self.inputs, lives)

    def _span(self, number: int) -> tuple[int, int]:
        """First and last step of the first stream while which a step may run."""
        step = self.steps[number]
        if step.stream == 0:
            return number, number
        joins = (n for n in range(number + 1, len(self.steps)) if self.waits[n] and self.waits[n][0] >= number)
        return max(self.waits[number], default=0), next(joins, len(self.steps))

    def __str__(self) -> str:
        """Its name."""
        return self.name

    def streaming(self, refused: Callable[[Operator], bool]) -> Graph:
        """The graph with copies of their bytes in the place of steps whose operators are refused."""
        sizes, steps = dict(self.sizes_bytes), []
        for step in self.steps:
            if refused(step.op):
                step = copying(step.label, step.operands, step.results, sizes)
            steps.append(step)
        return dataclasses.replace(self, steps=tuple(steps), sizes_bytes=sizes)

    @property
    def lasting_bytes(self) -> int:
        """Bytes of what exists before the graph or stays after it; of all tensors where nothing does, and of each step
        by itself where nothing joins them."""
        if not self.joined:
            return sum(step.op.operand_bytes for step in self.steps)
        lasting = dict.fromkeys((*self.inputs, *self.outputs)) or self.sizes_bytes
        return sum(self.sizes_bytes[name] for name in lasting)

    @property
    def devices(self) -> int:
        """Devices that run it together, each with its own share."""
        sums = [step.op.devices for step in self.steps if isinstance(step.op, AllReduce)]
        return max([1, *sums, *(step.op.gpus for step in self.steps if isinstance(step.op, Collective))])

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
    """Writes a graph: `tensor` declares what is there before, `call` calls an operator and gives its results. others:
    one of `OTHERS`."""

    name: str
    others: str = "refuse"
    _steps: list[Step] = field(default_factory=list)
    _sizes: dict[str, int] = field(default_factory=dict)
    _inputs: list[str] = field(default_factory=list)
    _repeats: list[Repeat] = field(default_factory=list)
    _filled: set[str] = field(default_factory=set)
    """Buffers in which there is something: those that exist before, and those that a step has written."""

    def __post_init__(self) -> None:
        """Checks `others`."""
        one_of(f"graph {self.name} others", self.others, OTHERS)

    def __len__(self) -> int:
        """Calls so far."""
        return len(self._steps)

    def tensor(self, name: str, size: int, dtype: str) -> Value:
        """A tensor that exists before the graph: an input, or a weight."""
        if name in self._sizes:
            raise InputError(f"graph {self.name}: tensor {name} is declared twice")
        value = self._value(name, size, dtype)
        self._inputs.append(name)
        self._filled.add(name)
        return value

    def empty(self, name: str, size: int, dtype: str) -> Value:
        """A tensor that calls fill part by part, with `into`."""
        return self._value(f"{len(self._steps)}.{name}", size, dtype)

    def call(self, label: str, op: Operator, *operands: Value, into: Value | None = None) -> Value:
        """Calls an operator that has one result. into: where the result goes, default: a tensor of its own."""
        (result,) = self.calls(label, op, *operands, into=None if into is None else (into,))
        return result

    def calls(
        self, label: str, op: Operator, *operands: Value, into: tuple[Value, ...] | None = None
    ) -> tuple[Value, ...]:
        """Calls an operator; its results, in its order. InputError where operands or results do not fit it, and for a
        whole model or program, which is no step."""
        if not op.kind:
            raise InputError(f"graph {self.name}, {label}: {op} is no operator that can be a step of a graph")
        self._fit(label, op, "takes", operands, op.operands)
        if into is None:
            number = len(self._steps)
            into = tuple(
                self._value(f"{number}.{label}.{result.name}", math.prod(result.shape), result.dtype)
                for result in op.results
            )
        self._fit(label, op, "gives", into, op.results)
        self._add(Step(label, op, operands, into))
        return into

    def copied(
        self, label: str, operands: Sequence[Value], *results: tuple[int, str], stands_in: bool = True
    ) -> tuple[Value, ...]:
        """Calls an operator that moves its bytes and does nothing else, or of which no more is known: a copy of as many
        bytes. results: size and number format of each."""
        number = len(self._steps)
        values = tuple(self._value(f"{number}.{label}.y{i}", *result) for i, result in enumerate(results))
        self._add(copying(label, operands, values, self._sizes, stands_in=stands_in))
        self._filled.update(value.buffer for value in values)
        return values

    def product(self, label: str, op: Operator, *operands: Value, into: Value | None = None) -> Value:
        """Calls an operator in number formats of its own: operands are cast to them, the result to the first one's."""
        given = [self.cast(value, operand.dtype) for value, operand in zip(operands, op.operands, strict=True)]
        (result,), dtype = op.results, operands[0].dtype
        if result.dtype == dtype:
            return self.call(label, op, *given, into=into)
        return self.cast(self.call(label, op, *given), dtype, into)

    def cast(self, value: Value, dtype: str, into: Value | None = None) -> Value:
        """The value in another number format; itself where it has this one."""
        if value.dtype == dtype:
            return value
        op = Pointwise(n=value.size, chain="cast", dtype=value.dtype, out=dtype)
        return self.call("aten::to", op, value, into=into)

    def all_reduce(self, label: str, value: Value, devices: int, *, beside: bool = False) -> Value:
        """Sums a value over devices, each of which runs this graph with its own share. beside: what is called next."""
        op = AllReduce(bytes=value.size * DTYPE_BYTES[value.dtype], devices=devices, dtype=value.dtype)
        return self._collective(label, op, value, value.size, int(beside))

    def all_gather(self, label: str, value: Value, devices: int) -> Value:
        """The values of all devices side by side; each runs this graph with its own share."""
        size = devices * value.size
        op = AllGather(gpus=devices, elements=size, dtype=value.dtype)
        return self._collective(label, op, value, size)

    def reduce_scatter(self, label: str, value: Value, devices: int) -> Value:
        """This device's part of the sum over devices, each of which runs this graph with its own share."""
        op = ReduceScatter(gpus=devices, elements=value.size, dtype=value.dtype)
        return self._collective(label, op, value, value.size // devices)

    def repeat(self, times: int, layer: Callable[[Value, int], Value], x: Value) -> Value:
        """Layers that are equal but for their tensors: `layer(x, number)` calls the operators of one, and gives what
        the next one takes. InputError where two are not equal."""
        first, size = len(self._steps), 0
        for number in range(times):
            begin = len(self._steps)
            x = layer(x, number)
            own, size = self._steps[begin:], size or len(self._steps) - begin
            if _pattern(own) != _pattern(self._steps[first : first + size]):
                raise InputError(f"graph {self.name}: layer {number + 1} of repeat has other operators than layer 1")
        if size and times > 1:
            self._repeats.append(Repeat(first, size, times))
        return x

    def _collective(self, label: str, op: Operator, value: Value, size: int, stream: int = 0) -> Value:
        """A call with this device's buffer alone as operand, and its result of `size` elements."""
        result = self._value(f"{len(self._steps)}.{label}.y", size, value.dtype)
        self._add(Step(label, op, (value,), (result,), stream))
        return result

    def _add(self, step: Step) -> None:
        """Takes a step; InputError for values that are not of this graph, and for what nothing has written."""
        where = f"graph {self.name}, {step.label}"
        for value in (*step.operands, *step.results):
            self._check(where, value)
        self._check_filled(where, step.operands)
        self._filled.update(value.buffer for value in step.results)
        self._steps.append(step)

    def _check(self, where: str, value: Value) -> None:
        """InputError for a value that is no part of a buffer of this graph."""
        if value.buffer not in self._sizes:
            raise InputError(f"{where}: {value.buffer} is no tensor of this graph")
        end = value.offset_bytes + value.size_bytes
        if not 0 <= value.offset_bytes < end <= self._sizes[value.buffer]:
            raise InputError(
                f"{where}: bytes {value.offset_bytes} to {end} of {value.buffer}, which has {self._sizes[value.buffer]}"
            )

    def _check_filled(self, where: str, values: Sequence[Value]) -> None:
        """InputError for values in which there is nothing yet."""
        for value in values:
            if value.buffer not in self._filled:
                raise InputError(f"{where}: reads {value.buffer}, which nothing has written")

    def _fit(self, label: str, op: Operator, does: str, values: Sequence[Value], expected: Sequence[Operand]) -> None:
        """InputError where values are not what an operator takes or gives."""
        wanted = [(math.prod(operand.shape), operand.dtype) for operand in expected]
        given = [(value.size, value.dtype) for value in values]
        if given != wanted:
            right = ", ".join(f"{o.name} of {math.prod(o.shape)} {o.dtype}" for o in expected)
            raise InputError(f"graph {self.name}, {label}: {op} {does} {right}; there are {given}")

    def build(self, *outputs: Value) -> Graph:
        """The graph; `outputs` stay in memory. InputError where nothing is called, or an output is not there."""
        if not self._steps:
            raise InputError(f"graph {self.name}: has no step")
        for value in outputs:
            self._check(f"graph {self.name}", value)
        self._check_filled(f"graph {self.name}", outputs)
        names = tuple(dict.fromkeys(value.buffer for value in outputs))
        return Graph(
            self.name, tuple(self._steps), tuple(self._inputs), names, dict(self._sizes), self.others,
            repeats=tuple(self._repeats),
        )  # fmt: skip

    def _value(self, name: str, size: int, dtype: str) -> Value:
        format_of(dtype, f"graph {self.name}, {name}: dtype")
        if not isinstance(size, Integral) or size < 1:
            raise InputError(f"graph {self.name}, {name}: size={size} must be a whole number from 1 on")
        self._sizes[name] = size * DTYPE_BYTES[dtype]
        return Value(name, size, dtype)


def copying(
    label: str, operands: Sequence[Value], results: Sequence[Value], sizes: dict[str, int], *, stands_in: bool = True
) -> Step:
    """A copy of as many bytes as an operator reads and writes: from its largest operand to its largest result, whose
    buffers grow in `sizes` to what that takes."""
    largest = max(results, key=lambda value: value.size_bytes)
    each = DTYPE_BYTES[largest.dtype]
    n = max(1, -(-sum(value.size_bytes for value in (*operands, *results)) // (2 * each if operands else each)))

    def grown(value: Value) -> Value:
        found = Value(value.buffer, n, largest.dtype, value.offset_bytes // each)
        sizes[value.buffer] = max(sizes[value.buffer], found.offset_bytes + found.size_bytes)
        return found

    chain = "copy" if operands else "fill"
    op = Pointwise(n=n, chain=chain, dtype=largest.dtype).with_defaults(largest.dtype)
    read = (grown(max(operands, key=lambda value: value.size_bytes)),) if operands else ()
    return Step(label, op, read, (grown(largest),), stands_in=stands_in)


def repeats_of(steps: Sequence[Step]) -> tuple[Repeat, ...]:
    """The layers (of four steps at least) that repeat three times or more and have the most steps together, where
    nobody says which do."""
    kinds: dict[Any, int] = {}
    tokens = np.array([kinds.setdefault(kind, len(kinds)) for kind in _pattern(steps)])
    best = Repeat(0, 0, 0)
    for size in range(4, len(tokens) // 3 + 1):
        same = np.flatnonzero(np.diff(np.concatenate(([0], tokens[size:] == tokens[:-size], [0]))))
        for begin, end in zip(same[::2], same[1::2], strict=True):
            found = Repeat(int(begin), size, int(end - begin) // size + 1)
            if found.times >= 3 and len(found.all) > len(best.all):
                best = found
    return (best,) if best.times else ()


def _pattern(steps: Sequence[Step]) -> list[tuple[str, Operator, int]]:
    """What must be equal in layers that repeat."""
    return [(step.label, step.op, step.stream) for step in steps]


class GraphOperator(Operator):
    """An operator that is a graph of others. Its schedules are forms of the graph.

    joined: as of its graph. others: a field of its own, one of `OTHERS`. A `dtype` of 8 bits is that of products: what
    is between them stays in `between`.
    """

    joined: ClassVar[bool] = True
    others: str

    @property
    def between(self) -> str:
        """Number format of what is between products."""
        return "bf16" if DTYPE_BYTES[self.chosen_dtype] == 1 else self.chosen_dtype

    @property
    def product_out(self) -> str | None:
        """Number format of a product's result, None for the operator's default: integers are scaled to their own."""
        return self.chosen_dtype if is_integer(self.chosen_dtype) else None

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in: the machine's, or bf16 where that is an integer, which only who asks for it gets."""
        chosen: Any = {"dtype": self.dtype or ("bf16" if is_integer(dtype) else dtype)}
        return dataclasses.replace(self, **chosen)

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
        """Bytes of what exists before the graph or stays after it."""
        return self.graph(fused=False).lasting_bytes


def counted(names: Mapping[str, int]) -> str:
    """`Relu (49), Add (16)`."""
    return ", ".join(f"{name} ({count})" for name, count in names.items())
