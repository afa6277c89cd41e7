"""The words in which dataflow programs are written: counters, stages, buffers, streams, sections.

A `Section` is one configuration of the chip: a graph of stages, joined by channels, that all run at once. A stage walks
a nest of counters (`over=(m, n, k)`) and fires once for each of their values. What it reads and writes are tokens, each
a tile of numbers. A token has counters too, the outermost ones of the nests at both its ends: a tile that was made over
`(m,)` and is read by a stage over `(m, n)` stays in its buffer for the whole of the inner loop. Stages in a chain of
nested loops therefore are a metapipeline: while one works on value i, the one before works on i + 1.

Every reader has a buffer (or FIFO) of its own, `depth` tokens deep: depth 1 makes its two stages take turns, depth 2 is
a double buffer. A stage that finds no token, or no room, waits.

What a stage computes is a plain function over tiles (`body`): it is called once, with symbolic values, and gives the
operations that are counted, placed and, in check mode, carried out with numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from arch.arguments import MOST, one_of, sequence, shown, whole, wholes
from arch.arguments import name as text
from arch.dtypes import DTYPE_BYTES, format_of
from arch.errors import InputError
from arch.limits import check_steps
from arch.near import hint

Array = NDArray[Any]
Shape = tuple[int, ...]

# ---------------------------------------------------------------------------------------------------- loops


@dataclass(frozen=True, eq=False)
class Counter:
    """One loop. `trips` values from 0; with `outer` the number of trips is `table[value of outer]`, at most `trips`."""

    name: str
    trips: int
    outer: Counter | None = None
    table: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole(f"counter {text('counter', self.name)}: trips", self.trips, 1)
        wholes(f"counter {self.name}: table", self.table)
        if self.outer is not None:
            counters(f"counter {self.name}: outer", (self.outer,))
        if self.outer is not None and (
            len(self.table) != self.outer.trips or not all(1 <= t <= self.trips for t in self.table)
        ):
            raise InputError(
                f"counter {self.name}: its table must hold {self.outer.trips} numbers (one a value of "
                f"{self.outer.name}), each from 1 to trips={self.trips}"
            )

    def __mul__(self, step: int) -> Index:
        """The index `value * step`."""
        return Index(0, ((self, whole(f"counter {self.name}: step", step, -MOST)),))

    __rmul__ = __mul__


@dataclass(frozen=True)
class Index:
    """An affine function of counters: where a tile begins in one dimension."""

    const: int = 0
    terms: tuple[tuple[Counter, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, Index):
            return Index(self.const + other.const, self.terms + other.terms)
        return Index(self.const + whole("index: what is added", other, -MOST), self.terms)

    __radd__ = __add__

    def at(self, values: Mapping[Counter, Any]) -> Any:
        """Its value, or array of values, at the counters' values."""
        return self.const + sum(step * values[counter] for counter, step in self.terms)


def counters(where: str, values: object) -> tuple[Counter, ...]:
    """Counters, each once. where: names the argument."""
    found = sequence(where, values)
    if not all(isinstance(counter, Counter) for counter in found) or len(set(found)) < len(found):
        raise InputError(f"{where}={shown(values)}: must be counters, each once")
    return found


def walk(over: Sequence[Counter]) -> NDArray[np.int64]:
    """Values of nested counters in the order of the loops, one row a firing, one column a counter."""
    check_steps(f"a stage over ({_names(over)})", math.prod(counter.trips for counter in over))
    table = np.zeros((1, 0), np.int64)
    for counter in over:
        if counter.outer is None:
            trips = np.full(len(table), counter.trips)
        else:
            if counter.outer not in over[: table.shape[1]]:
                raise InputError(f"counter {counter.name} depends on {counter.outer.name}, which must be outside it")
            trips = np.asarray(counter.table)[table[:, list(over).index(counter.outer)]]
        rows = np.repeat(np.arange(len(table)), trips)
        inner = np.arange(len(rows)) - np.repeat(np.cumsum(trips) - trips, trips)
        table = np.column_stack([table[rows], inner])
    return table


# ---------------------------------------------------------------------------------------------------- bodies

TAIL = ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "erf", "sin", "cos")
"""Functions of a PCU's tail: one at the end of a PCU's pipeline."""

LANES = ("add", "sub", "mul", "div", "maximum", "minimum", "causal")
"""One stage of the SIMD pipeline each."""

REDUCTIONS = ("row_sum", "row_max")
"""Over the last dimension, kept with extent 1: the reduction tree across lanes and an accumulator."""

VIEWS = ("rotate_half", "reshape", "columns", "transpose", "permute", "windows")
"""No arithmetic: addresses of the buffer in front."""


@dataclass(frozen=True)
class Node:
    """One operation of a body on whole tiles; `args` are numbers of earlier nodes."""

    op: str
    args: tuple[int, ...]
    shape: Shape
    attrs: tuple[Any, ...] = ()


class Value:
    """A tile inside a body, while the body is recorded."""

    def __init__(self, nodes: list[Node], number: int) -> None:
        self._nodes, self.number = nodes, number

    @property
    def shape(self) -> Shape:
        """Extents of the tile."""
        return self._nodes[self.number].shape

    def _new(self, op: str, others: Sequence[Any], shape: Shape, *attrs: Any) -> Value:
        args = [self.number]
        for other in others:
            if not isinstance(other, Value):
                self._nodes.append(Node("constant", (), (1, 1), (float(other),)))
                args.append(len(self._nodes) - 1)
            else:
                args.append(other.number)
        self._nodes.append(Node(op, tuple(args), shape, attrs))
        return Value(self._nodes, len(self._nodes) - 1)

    def _lanes(self, op: str, other: Any) -> Value:
        shape = np.broadcast_shapes(self.shape, other.shape) if isinstance(other, Value) else self.shape
        return self._new(op, [other], tuple(shape))

    def __add__(self, other: Any) -> Value:
        return self._lanes("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        return self._lanes("sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._lanes("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Value:
        return self._lanes("div", other)

    def maximum(self, other: Any) -> Value:
        """The larger of two, element by element."""
        return self._lanes("maximum", other)

    def minimum(self, other: Any) -> Value:
        """The smaller of two, element by element."""
        return self._lanes("minimum", other)

    def tail(self, function: str) -> Value:
        """One of the tail's functions, such as `exp`."""
        if function not in TAIL:
            near = hint(function, TAIL)
            raise InputError(f"body: {function} is no function of a PCU's tail, one of {', '.join(TAIL)}{near}")
        return self._new(function, [], self.shape)

    def exp(self) -> Value:
        """e to the power of each element."""
        return self.tail("exp")

    def row_sum(self) -> Value:
        """Sum over the last dimension."""
        return self._new("row_sum", [], (*self.shape[:-1], 1))

    def row_max(self) -> Value:
        """Largest of the last dimension."""
        return self._new("row_max", [], (*self.shape[:-1], 1))

    def rotate_half(self) -> Value:
        """(-second half, first half) of the last dimension, as rotary embeddings need it."""
        return self._new("rotate_half", [], self.shape)

    def transpose(self) -> Value:
        """The last two dimensions exchanged."""
        return self._new("transpose", [], (*self.shape[:-2], self.shape[-1], self.shape[-2]))

    def reshape(self, *shape: int) -> Value:
        """The same elements in another shape."""
        if math.prod(shape) != math.prod(self.shape):
            raise InputError(f"body: {self.shape} cannot become {shape}")
        return self._new("reshape", [], shape)

    def permute(self, *axes: int) -> Value:
        """Dimensions in another order."""
        return self._new("permute", [], tuple(self.shape[axis] for axis in axes), *axes)

    def columns(self, start: int, stop: int) -> Value:
        """Columns `start` to `stop` of the last dimension."""
        return self._new("columns", [], (*self.shape[:-1], stop - start), start, stop)

    def windows(self, window: tuple[int, int], stride: tuple[int, int], count: tuple[int, int], channels: int) -> Value:
        """Rows of an image, [rows, width * channels], as the patches of a convolution: one row for each of `count`
        positions, down and across, with the values under its `window`."""
        down, across = ((n - 1) * step + size for n, step, size in zip(count, stride, window, strict=True))
        if self.shape[-2] < down or self.shape[-1] < across * channels:
            raise InputError(f"body: windows over {down} x {across * channels} do not lie within {self.shape}")
        patch = math.prod(window) * channels
        return self._new("windows", [], (*self.shape[:-2], math.prod(count), patch), window, stride, count, channels)

    def causal(self, rows_from: Index, columns_from: Index, *, window: int = 0, period: int = 0) -> Value:
        """Minus infinity where the column's number is above the row's (or `window` or more below, if given).

        period: rows of the tile after which row numbers begin anew (several heads in one tile).
        """
        return self._new("causal", [], self.shape, rows_from, columns_from, window, period or self.shape[-2])

    def __matmul__(self, other: Value) -> Value:
        if self.shape[-1] != other.shape[-2]:
            raise InputError(f"body: {self.shape} @ {other.shape}: inner extents differ")
        batch = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        return self._new("matmul", [other], (*batch, self.shape[-2], other.shape[-1]))


@dataclass(frozen=True)
class Body:
    """A recorded body: its operations, and which of them are its inputs, carried tiles and results."""

    nodes: tuple[Node, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    updates: Mapping[str, int]
    """New value of each carried tile."""


def record(
    function: Callable[..., Any], inputs: Mapping[str, Shape], carried: Mapping[str, Shape], outputs: Sequence[str]
) -> Body:
    """Calls `function(**inputs, **carried)` with symbolic tiles and keeps what it did."""
    nodes: list[Node] = []
    values = {}
    for name, shape in (*inputs.items(), *carried.items()):
        nodes.append(Node("input", (), shape, (name,)))
        values[name] = Value(nodes, len(nodes) - 1)
    numbers = {name: value.number for name, value in values.items()}
    result = function(**values)
    if isinstance(result, Value):
        result = {outputs[0]: result}
    if not isinstance(result, Mapping) or not all(isinstance(value, Value) for value in result.values()):
        right = ", ".join(f'"{name}": ...' for name in (*outputs, *carried))
        raise InputError(f"body: returns a {type(result).__name__}; expected tiles by name, {{{right}}}")
    missing = [name for name in (*outputs, *carried) if name not in result]
    if missing or len(result) != len(outputs) + len(carried):
        raise InputError(
            f"body: gives {', '.join(result) or 'nothing'}; expected {', '.join((*outputs, *carried)) or 'nothing'}"
        )
    updates = {name: result[name].number for name in carried}
    for name in carried:
        if result[name].shape != carried[name]:
            raise InputError(f"body: carried tile {name} changes from {carried[name]} to {result[name].shape}")
    return Body(tuple(nodes), numbers, {name: result[name].number for name in outputs}, updates)


def chain(body: Body, lanes: int, stages: int) -> list[tuple[int, bool, int]]:
    """PCUs of a body's SIMD chain, one after the other: (elements that stream through, uses the tail, operations).

    A PCU takes up to `stages` operations and, at its end, one function of the tail; a reduction is a tree over `lanes`
    and an accumulator.
    """
    found: list[tuple[int, bool, int]] = []
    used = elements = operations = 0
    for node in body.nodes:
        if node.op in LANES:
            slots = 1
        elif node.op in REDUCTIONS:
            slots = (lanes - 1).bit_length() + 1
        elif node.op in TAIL:
            slots = 0
        else:
            continue
        size = math.prod(body.nodes[node.args[0]].shape if node.op in REDUCTIONS else node.shape)
        if used and used + slots > stages:
            found.append((elements, False, operations))
            used = elements = operations = 0
        used, elements, operations = used + slots, max(elements, size), operations + size
        while used > stages:  # a tree that is deeper than one PCU
            found.append((elements, False, 0))
            used -= stages
        if node.op in TAIL:
            found.append((elements, True, operations))
            used = elements = operations = 0
    if used:
        found.append((elements, False, operations))
    return found


# ---------------------------------------------------------------------------------------------------- graph

WORD_BYTES = 4
"""What the scalar network carries at once."""

BY_VECTORS = " by vectors"
"""What a schedule ends with whose sections hand over vectors."""

Place = Literal["hbm", "ddr"]


@dataclass(frozen=True)
class Tensor:
    """An array in external memory, row-major. `shared`: all devices hold the same numbers."""

    name: str
    shape: Shape
    dtype: str
    role: Literal["input", "output", "scratch"] = "input"
    place: Place = "hbm"
    shared: bool = True
    copies: int = 1
    """Arrays like it that lie in `place`, for launches that differ in addresses alone."""
    home: Place = "hbm"
    """`ddr`: launches with `Call.prefetch` have it copied from there to HBM."""

    def __post_init__(self) -> None:
        where = f"tensor {text('tensor', self.name)}"
        wholes(f"{where}: shape", self.shape, 1)
        format_of(text(f"{where}: dtype", self.dtype), f"{where}: dtype")
        one_of(f"{where}: role", self.role, ("input", "output", "scratch"))
        one_of(f"{where}: place", self.place, get_args(Place))
        one_of(f"{where}: home", self.home, get_args(Place))
        whole(f"{where}: copies", self.copies, 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of the array on one device."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Carry:
    """A tile that a stage keeps from firing to firing; it starts as `initial` whenever a counter of `per` moves."""

    shape: Shape
    initial: float
    per: tuple[Counter, ...]

    def __post_init__(self) -> None:
        wholes("carry: shape", self.shape, 1)
        counters("carry: per", self.per)
        if isinstance(self.initial, bool) or not isinstance(self.initial, int | float | np.floating):
            raise InputError(f"carry: initial={shown(self.initial)}: must be a number")


@dataclass(frozen=True)
class Out:
    """What a stage emits: a tile of `shape`, whenever the counters inside `over` have come to their ends.

    With `collect`, pieces made over `over` are put side by side along `axis` into one token over `collect`.
    """

    shape: Shape
    dtype: str
    over: tuple[Counter, ...]
    collect: tuple[Counter, ...] | None = None
    axis: int = -1

    def __post_init__(self) -> None:
        shape = wholes("output: shape", self.shape, 1)
        for what, values in (("over", self.over), ("collect", self.collect or ())):
            counters(f"output: {what}", values)
        format_of(text("output: dtype", self.dtype), "output: dtype")
        whole("output: axis", self.axis, -len(shape), max(0, len(shape) - 1))

    @property
    def token_over(self) -> tuple[Counter, ...]:
        """Counters of a whole token."""
        return self.over if self.collect is None else self.collect

    @property
    def pieces(self) -> int:
        """Pieces of a token."""
        return math.prod(c.trips for c in self.over[len(self.token_over) :])

    @property
    def token_shape(self) -> Shape:
        """Extents of a whole token."""
        shape = list(self.shape)
        shape[self.axis] *= self.pieces
        return tuple(shape)

    @property
    def scalar(self) -> bool:
        """Whether each piece is a single word, which goes over the scalar network."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype] <= WORD_BYTES

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece on the mesh; a scalar takes a whole word."""
        return max(WORD_BYTES, math.prod(self.shape) * DTYPE_BYTES[self.dtype])


@dataclass(eq=False)
class Output:
    """One output of a stage, to be read by other stages."""

    stage: Stage
    name: str
    out: Out
    first: Tensor | None = None

    def read(
        self,
        depth: int = 2,
        *,
        vectors: bool = False,
        piece: tuple[int, Counter] | None = None,
        transposed: bool = False,
        stride: int = 1,
        stream: bool = False,
        pmus: int | None = None,
    ) -> Read:
        """How a stage reads it. depth: tokens. piece: (axis, counter), the part of the token that a firing sees.

        transposed: the last two dimensions exchanged by the buffer's addresses. stride: elements from one lane's word
        to the next, which banks may not like. stream: a FIFO, read once and in order. pmus: memory units; default: what
        size and rate need. vectors: depth counts vectors of each of the reader's PCUs, in a section by vectors.
        """
        return Read(self, depth, piece, transposed, stride, stream, pmus, vectors=vectors)


@dataclass(eq=False)
class Read:
    """A channel: one output on its way to one input, through a buffer of its own."""

    output: Output
    depth: int
    piece: tuple[int, Counter] | None
    transposed: bool
    stride: int
    stream: bool
    pmus: int | None
    reader: Stage | None = None
    port: str = ""
    initial: int = 0
    """Tokens that are there before anything runs: those of a loop."""
    first: Tensor | None = None
    """Array that holds them."""
    vectors: bool = False
    """Whether `depth` counts vectors."""

    @property
    def name(self) -> str:
        """`producer.output -> consumer`."""
        reader = self.reader.name if self.reader else "?"
        output = self.output.stage.name + ("" if self.output.name == "out" else f".{self.output.name}")
        return f"{output} -> {reader}"

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        out = self.output.out
        return math.prod(out.token_shape) * DTYPE_BYTES[out.dtype]

    @property
    def shape(self) -> Shape:
        """What one firing of the reader sees."""
        shape = list(self.output.out.token_shape)
        if self.piece is not None:
            axis, counter = self.piece
            if shape[axis] % counter.trips:
                raise InputError(f"{self.name}: extent {shape[axis]} is not {counter.trips} equal pieces")
            shape[axis] //= counter.trips
        if self.transposed:
            shape[-2:] = shape[:-3:-1]
        return tuple(shape)


Kind = Literal["compute", "load", "store", "gather", "lookup", "collective", "timed"]


@dataclass(eq=False)
class Stage:
    """One node of a section: what fires. Made by the methods of `Section`."""

    name: str
    kind: Kind
    over: tuple[Counter, ...]
    reads: dict[str, Read] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    body: Body | None = None
    carry: Mapping[str, Carry] = field(default_factory=dict)
    row_par: int = 0
    """Into how many parts the rows of a tile are divided over PCUs; 0: as balances the section."""
    col_par: int = 0
    simd_par: int = 0
    """PCUs side by side in each step of the SIMD chain."""
    tensor: Tensor | None = None
    origin: tuple[Index, ...] = ()
    tile: Shape = ()
    units: int = 0
    """Address generators of a load, store or gather; 0: all."""
    rows: Array | None = None
    """Row numbers that a gather (one a firing) or a lookup (some a firing, [firings, m]) asks for: timing needs them
    before the numbers flow."""
    fill: float = 0.0
    """What a load puts where its tile is outside the tensor."""
    view: Shape = ()
    """A load's tile in another shape, and `permute` its dimensions in another order, before it becomes the token."""
    permute: tuple[int, ...] = ()
    interval_cycles: int | None = None
    """Of a timed stage."""
    latency_cycles: int = 0
    devices: int = 1
    """That take part in a collective."""

    @property
    def firings(self) -> int:
        """How often it fires."""
        return len(walk(self.over))


Grain = Literal["token", "vector"]


class Section:
    """One configuration: stages and the channels between them.

    grain: what a stage waits for before it begins, and lets go of when it is done with it: a whole `token`, or each
    `vector` of it, where both ends of a channel go through it in one order (`sim.rdu.grain`).
    """

    def __init__(self, name: str, grain: Grain = "token") -> None:
        self.name = text("section", name)
        self.grain: Grain = one_of(f"section {name}: grain", grain, get_args(Grain))
        self.stages: list[Stage] = []

    @property
    def channels(self) -> list[Read]:
        """All channels, in the order of their readers."""
        return [read for stage in self.stages for read in stage.reads.values()]

    @property
    def tensors(self) -> list[Tensor]:
        """Arrays that it touches, each once."""
        named = [s.tensor for s in self.stages if s.tensor is not None]
        named += [read.first for read in self.channels if read.first is not None]
        return list({tensor.name: tensor for tensor in named}.values())

    def load(
        self,
        name: str,
        tensor: Tensor,
        origin: Sequence[Index | Counter | int],
        tile: Shape,
        over: Sequence[Counter],
        *,
        units: int = 0,
        fill: float = 0.0,
        collect: Sequence[Counter] | None = None,
        axis: int = -1,
        shape: Shape | None = None,
        view: Shape = (),
        permute: tuple[int, ...] = (),
    ) -> Output:
        """An address generator that runs ahead: one tile of `tensor` a firing, `fill` where it is outside.

        shape: the token's shape where it is not the tile's (leading dimensions of extent 1 dropped). The order of
        addresses can be another one: the tile in the shape `view`, its dimensions in the order `permute`.
        """
        stage = self._memory_stage(name, "load", tensor, origin, tile, over, units)
        stage.fill, stage.view, stage.permute = fill, view or tile, permute
        token = tile if shape is None else shape
        return self._output(stage, "out", Out(token, tensor.dtype, tuple(over), _tuple(collect), axis))

    def gather(
        self, name: str, tensor: Tensor, index: Output | Read, rows: Array, over: Sequence[Counter], *, units: int = 0
    ) -> Output:
        """Fetches the row of `tensor` whose number comes as a token (extent 1 x 1), one a firing.

        rows: the numbers that will come; check mode compares.
        """
        tile = (1, tensor.shape[-1])
        stage = self._memory_stage(name, "gather", tensor, (0, 0), tile, over, units)
        stage.rows = np.asarray(rows, np.int64)
        if len(stage.rows) != stage.firings:
            raise InputError(f"{name}: {len(stage.rows)} row numbers for {stage.firings} firings")
        _refuse_rows_outside(stage, math.prod(tensor.shape[:-1]))
        output = self._output(stage, "out", Out(tile, tensor.dtype, tuple(over)))
        self._connect(stage, {"index": index})
        return output

    def lookup(
        self, name: str, table: Output | Read, index: Output | Read, rows: Array, over: Sequence[Counter]
    ) -> Output:
        """Reads rows of a tile [n, width] that lies in PMUs, at numbers that come as tokens [m] or [m, 1].

        One firing gives the rows [m, width]. The PMUs make the addresses themselves: row r lies in PMU r mod their
        number, and rows that meet in a bank follow one another. rows: the numbers that will come, [firings, m]; check
        mode compares.
        """
        if isinstance(table, Output):
            table = table.read(2 if table.out.token_over else 1)
        stage = self._add(Stage(name, "lookup", tuple(over)))
        self._connect(stage, {"table": table, "index": index})
        extent, count = table.shape, math.prod(stage.reads["index"].shape)
        if len(extent) != 2 or table.transposed or table.stream or table.piece is not None:
            raise InputError(f"{name}: a table to look up is a whole tile of rows and columns in a buffer, as it lies")
        stage.rows = np.asarray(rows, np.int64)
        if stage.rows.shape != (stage.firings, count):
            raise InputError(
                f"{name}: row numbers of shape {stage.rows.shape}; {stage.firings} firings of {count} numbers need "
                f"({stage.firings}, {count})"
            )
        _refuse_rows_outside(stage, extent[0])
        return self._output(stage, "out", Out((count, extent[1]), table.output.out.dtype, tuple(over)))

    def store(
        self,
        name: str,
        tensor: Tensor,
        origin: Sequence[Index | Counter | int],
        value: Output | Read,
        over: Sequence[Counter],
        *,
        units: int = 0,
        tile: Shape | None = None,
        view: Shape = (),
        permute: tuple[int, ...] = (),
    ) -> None:
        """Writes one tile a firing; what is outside the tensor is left out.

        The token, in the shape `view` and with its dimensions in the order `permute`, is the tile.
        """
        read = value.read() if isinstance(value, Output) else value
        shape = read.shape
        tile = tile or (1,) * (len(tensor.shape) - len(shape)) + shape
        stage = self._memory_stage(name, "store", tensor, origin, tile, over, units)
        stage.view, stage.permute = view or shape, permute
        self._connect(stage, {"value": read})

    def stage(
        self,
        name: str,
        over: Sequence[Counter],
        inputs: Mapping[str, Output | Read],
        body: Callable[..., Any],
        out: Out | Mapping[str, Out],
        *,
        row_par: int = 0,
        col_par: int = 0,
        simd_par: int = 0,
        carry: Mapping[str, Carry] | None = None,
    ) -> Any:
        """PCUs that compute `body`; its output, or its outputs by name.

        row_par, col_par: into how many parts the rows and columns of a tile are divided over PCUs; left out, the parts
        that balance the section. simd_par: the same for what is no matrix product. carry: tiles that the body takes and
        gives back under the same name.
        """
        for what, parts in (("row_par", row_par), ("col_par", col_par), ("simd_par", simd_par)):
            whole(f"{name}: {what}", parts)
        stage = self._add(Stage(name, "compute", tuple(over), row_par=row_par, carry=carry or {}))
        stage.col_par = col_par or int(row_par > 0)
        stage.simd_par = simd_par or stage.row_par * stage.col_par
        outs = {"out": out} if isinstance(out, Out) else dict(out)
        found = {key: self._output(stage, key, what) for key, what in outs.items()}
        self._connect(stage, inputs)
        shapes = {key: read.shape for key, read in stage.reads.items()}
        stage.body = record(body, shapes, {k: c.shape for k, c in stage.carry.items()}, list(outs))
        for key, number in stage.body.outputs.items():
            if stage.body.nodes[number].shape != outs[key].shape:
                raise InputError(
                    f"{name}: output {key} is {stage.body.nodes[number].shape}, declared as {outs[key].shape}"
                )
        return found["out"] if isinstance(out, Out) else found

    def all_reduce(self, name: str, value: Output | Read, over: Sequence[Counter], devices: int) -> Output:
        """Sums tiles over all devices; the time is that of the machine's links."""
        read = value.read() if isinstance(value, Output) else value
        out = Out(read.shape, read.output.out.dtype, tuple(over))
        output = self._known(name, "collective", over, {"value": read}, out, None, 0)
        output.stage.devices = devices
        return output

    def timed(
        self,
        name: str,
        over: Sequence[Counter],
        inputs: Mapping[str, Output | Read],
        out: Out,
        *,
        interval_cycles: int,
        latency_cycles: int = 0,
    ) -> Output:
        """A stage that hands its first input on (or zeros) in a known time: for experiments with pipelines."""
        return self._known(name, "timed", over, inputs, out, interval_cycles, latency_cycles)

    def _known(
        self,
        name: str,
        kind: Kind,
        over: Sequence[Counter],
        inputs: Mapping[str, Output | Read],
        out: Out,
        interval_cycles: int | None,
        latency_cycles: int,
    ) -> Output:
        stage = self._add(
            Stage(name, kind, tuple(over), interval_cycles=interval_cycles, latency_cycles=latency_cycles)
        )
        output = self._output(stage, "out", out)
        self._connect(stage, inputs)
        return output

    def loop(self, first: Tensor, out: Out) -> Output:
        """What the graph makes in one value of its outermost counter and needs in the next; `first` holds the start.

        Its tokens are over (outermost, ...); `close` says which output they are.
        """
        return Output(Stage("loop", "compute", out.token_over), "out", out, first)

    def close(self, loop: Output, made: Output) -> None:
        """Closes a loop: from the second value of the outermost counter on, its tokens are those of `made`."""
        if made.out.token_shape != loop.out.token_shape or made.out.token_over != loop.out.token_over:
            raise InputError(f"{made.stage.name}: gives {made.out.token_shape}, the loop needs {loop.out.token_shape}")
        for read in self.channels:
            if read.output is loop:
                read.output, read.first = made, loop.first
                read.initial = math.prod(c.trips for c in loop.out.token_over[1:])
                read.depth = max(read.depth, read.initial + 1)

    # ---- making

    def _add(self, stage: Stage) -> Stage:
        text(f"section {self.name}: stage", stage.name)
        counters(f"{stage.name}: over", stage.over)
        for carried, carry in stage.carry.items():
            if not isinstance(carry, Carry):
                raise InputError(f"{stage.name}: carry {carried}={shown(carry)}: must be a Carry")
        for what, number in (("units", stage.units), ("latency_cycles", stage.latency_cycles)):
            whole(f"{stage.name}: {what}", number)
        if stage.interval_cycles is not None:
            whole(f"{stage.name}: interval_cycles", stage.interval_cycles)
        if any(other.name == stage.name for other in self.stages):
            raise InputError(f"section {self.name}: two stages are called {stage.name}")
        self.stages.append(stage)
        return stage

    def _output(self, stage: Stage, name: str, out: Out) -> Output:
        for counters in (out.over, out.token_over):
            if stage.over[: len(counters)] != counters:
                raise InputError(
                    f"{stage.name}: an output over ({_names(counters)}) must begin as the stage's own nest "
                    f"({_names(stage.over)})"
                )
        output = Output(stage, name, out)
        stage.outputs[name] = output
        return output

    def _connect(self, stage: Stage, inputs: Mapping[str, Output | Read]) -> None:
        for port, value in inputs.items():
            read = value.read() if isinstance(value, Output) else value
            if read.reader is not None:
                raise InputError(f"{read.name}: a channel has one reader; read the output once more for {stage.name}")
            prefix = read.output.out.token_over
            if stage.over[: len(prefix)] != prefix:
                raise InputError(
                    f"{stage.name}: reads tokens over ({_names(prefix)}), with which its own nest "
                    f"({_names(stage.over)}) must begin"
                )
            channel = f"{read.output.stage.name} -> {stage.name}"
            whole(f"{channel}: depth", read.depth, 1)
            whole(f"{channel}: stride", read.stride, 1)
            if read.pmus is not None:
                whole(f"{channel}: pmus", read.pmus, 1)
            read.reader, read.port = stage, port
            stage.reads[port] = read

    def _memory_stage(
        self,
        name: str,
        kind: Kind,
        tensor: Tensor,
        origin: Sequence[Index | Counter | int],
        tile: Shape,
        over: Sequence[Counter],
        units: int,
    ) -> Stage:
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name}: tensor={shown(tensor)}: must be a Tensor")
        tile = wholes(f"{name}: tile", tile, 1)
        if len(sequence(f"{name}: origin", origin)) != len(tensor.shape) or len(tile) != len(tensor.shape):
            raise InputError(f"{name}: {tensor.name} has {len(tensor.shape)} dimensions; origin and tile need as many")
        indices = tuple(Index() + (at * 1 if isinstance(at, Counter) else at) for at in origin)
        for counter in (counter for index in indices for counter, _ in index.terms):
            if counter not in over:
                raise InputError(f"{name}: its origin uses counter {counter.name}, which is not in ({_names(over)})")
        return self._add(Stage(name, kind, tuple(over), tensor=tensor, origin=indices, tile=tile, units=units))


@dataclass(frozen=True)
class Call:
    """One launch of a section, `times` over: launches that only differ in addresses take the same time."""

    section: Section
    times: int = 1
    prefetch: bool = False
    """Whether each launch needs its arrays whose home is DDR copied to HBM before; what runs before hides that."""
    cut: Literal["fit", "time"] | tuple[int, ...] = "fit"
    """Where it becomes several sections: where it does not fit the chip (`fit`), also where that saves time by estimate
    (`time`), or before the stages of these numbers."""

    def __post_init__(self) -> None:
        if not isinstance(self.section, Section):
            raise InputError(f"call: section={shown(self.section)}: must be a Section")
        whole(f"call of {self.section.name}: times", self.times, 1)
        if isinstance(self.cut, str):
            one_of(f"call of {self.section.name}: cut", self.cut, ("fit", "time"))
        else:
            wholes(f"call of {self.section.name}: cut", self.cut)

    @property
    def prefetch_bytes(self) -> int:
        """Bytes that come from DDR for each launch."""
        return sum(t.size_bytes for t in self.section.tensors if t.home == "ddr") if self.prefetch else 0


@dataclass(frozen=True)
class Program:
    """Sections in the order of their launches. `schedule` is what reports call the way in which it was built."""

    name: str
    calls: tuple[Call, ...]
    schedule: str
    orchestration: Literal["host", "hardware"] = "hardware"
    devices: int = 1
    prefetch_room_bytes: int = 0
    """Of HBM, for what is copied from DDR."""
    reference: Callable[..., Any] | None = None
    """Results in NumPy from the input arrays, in the order of `tensors`; check mode compares with it where a program
    stands for no operator."""
    tolerance: float | None = None
    """Error relative to the largest result that such a comparison allows; None: what rounding explains."""

    def __post_init__(self) -> None:
        where = f"program {text('program', self.name)}"
        text(f"{where}: schedule", self.schedule)
        if not all(isinstance(call, Call) for call in sequence(f"{where}: calls", self.calls)) or not self.calls:
            raise InputError(f"{where}: calls={shown(self.calls)}: must be calls of sections, at least one")
        one_of(f"{where}: orchestration", self.orchestration, ("host", "hardware"))
        for section in {id(call.section): call.section for call in self.calls}.values():
            _refuse_races(section)
        whole(f"{where}: devices", self.devices, 1)
        whole(f"{where}: prefetch_room_bytes", self.prefetch_room_bytes)
        if self.reference is not None and not callable(self.reference):
            raise InputError(f"{where}: reference={shown(self.reference)}: must be a function")

    @property
    def tensors(self) -> list[Tensor]:
        """Arrays of all sections, each once."""
        return list({t.name: t for call in self.calls for t in call.section.tensors}.values())

    def addresses(self) -> dict[str, int]:
        """First byte of each array in its memory, in order, aligned to 4 KiB."""
        found, ends = {}, {"hbm": 0, "ddr": 0}
        for tensor in self.tensors:
            found[tensor.name] = ends[tensor.place]
            ends[tensor.place] += -(-tensor.size_bytes // 4096) * 4096
        return found

    def memory_bytes(self, place: Place) -> int:
        """Bytes that the arrays take in one memory, what is copied between them included."""
        own = sum(t.copies * -(-t.size_bytes // 4096) * 4096 for t in self.tensors if t.place == place)
        copied = sum(call.times * call.prefetch_bytes for call in self.calls)
        return own + (self.prefetch_room_bytes if place == "hbm" else copied)

    @property
    def launches(self) -> int:
        """Kernel calls."""
        return sum(call.times for call in self.calls)


def _refuse_races(section: Section) -> None:
    """InputError where a section loads an array that it stores and no channel orders the two: only a store that depends
    on the load of the very tile that it overwrites comes after it, whatever the timing."""
    stores = [stage for stage in section.stages if stage.kind == "store"]
    for load in (stage for stage in section.stages if stage.kind in ("load", "gather")):
        for store in (stage for stage in stores if stage.tensor == load.tensor):
            tiles = [(stage.origin, stage.tile, stage.over) for stage in (load, store)]
            if load.kind == "gather" or tiles[0] != tiles[1] or load not in _upstream(store):
                raise InputError(
                    f"section {section.name}: {load.name} loads what {store.name} stores, and no channel "
                    "orders them; load it in a later section, or read the stage that makes it"
                )


def _upstream(stage: Stage) -> list[Stage]:
    """The stages whose tokens a stage depends on."""
    found = [stage]
    for one in found:
        found += [read.output.stage for read in one.reads.values() if read.output.stage not in found]
    return found


def by_vectors(program: Program) -> Program:
    """The program with all its sections by vectors."""
    for call in program.calls:
        call.section.grain = "vector"
    return replace(program, schedule=program.schedule + BY_VECTORS)


def _tuple(counters: Sequence[Counter] | None) -> tuple[Counter, ...] | None:
    return None if counters is None else tuple(counters)


def _refuse_rows_outside(stage: Stage, count: int) -> None:
    """InputError where a row number that a gather or lookup is given lies outside a table of `count` rows."""
    assert stage.rows is not None
    outside = np.argwhere((stage.rows < 0) | (stage.rows >= count))
    if len(outside):
        row = stage.rows[tuple(outside[0])]
        raise InputError(f"{stage.name}: firing {outside[0][0]} asks for row {row} of a table of {count} rows")


def _names(counters: Sequence[Counter]) -> str:
    return ", ".join(counter.name for counter in counters)
