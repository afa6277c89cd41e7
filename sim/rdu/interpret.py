"""Carries numbers through a program, at the times at which the engine moved them.

The interpreter walks each stage's counters itself and takes from the event log only when a firing started, ended and
had its results in place. A token that is taken before it is complete reads as NaN; one that is written into a slot
whose old token is still needed is a violation. Every array has the devices in front: [devices, ...].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arch.dtypes import round_to
from sim.rdu.grain import whole_because
from sim.rdu.layout import Log
from sim.rdu.program import LANES, Array, Body, Node, Program, Read, Section, Stage, walk

_FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": np.sin,
    "cos": np.cos,
    "row_sum": lambda x: x.sum(axis=-1, keepdims=True),
    "row_max": lambda x: x.max(axis=-1, keepdims=True),
    "transpose": lambda x: x.swapaxes(-1, -2),
}


@dataclass
class Replay:
    """Arrays of the program's output tensors, [devices, ...], and what was wrong, one sentence each."""

    outputs: dict[str, Array]
    violations: list[str] = field(default_factory=list)


def interpret(program: Program, logs: Mapping[int, Array], inputs: Mapping[str, Array]) -> Replay:
    """Replays a program. logs: event log of each section by its identity (`id`). inputs: by tensor, [devices, ...]."""
    arrays: dict[str, Array] = {}
    for tensor in program.tensors:
        if tensor.name in inputs:
            arrays[tensor.name] = np.array(inputs[tensor.name], np.float64)
        else:
            arrays[tensor.name] = np.full((program.devices, *tensor.shape), np.nan)
    replay = Replay({})
    for call in program.calls:
        for _ in range(call.times):
            _Section(call.section, arrays, replay.violations).run(logs[id(call.section)])
    replay.outputs = {t.name: arrays[t.name] for t in program.tensors if t.role == "output"}
    return replay


class _Section:
    """One launch of a section."""

    def __init__(self, section: Section, arrays: dict[str, Array], violations: list[str]) -> None:
        self.section, self.arrays, self.violations = section, arrays, violations
        self.walks = [walk(stage.over) for stage in section.stages]
        self.carried: list[dict[str, Array]] = [{} for _ in section.stages]
        self.tokens: dict[int, list[Array]] = {}
        self.times: dict[int, list[tuple[int, int]]] = {}
        """By channel: (first write, complete) of each token."""
        self.released: dict[int, list[int]] = {}
        self.pieces: dict[int, list[Array]] = {}
        self.begun: dict[int, int] = {}
        by_vectors = section.channels if section.grain == "vector" else []
        self.streamed = {id(read) for read in by_vectors if not whole_because(read)}
        """Channels of vectors: a reader may begin behind the first one, and ends behind the last. Their room is counted
        in vectors, of which the log says nothing."""
        for read in section.channels:
            key = id(read)
            self.tokens[key], self.times[key], self.released[key], self.pieces[key] = [], [], [], []
            for token in self._initial(read):
                self.tokens[key].append(token)
                self.times[key].append((-1, -1))

    def _initial(self, read: Read) -> list[Array]:
        if not read.initial:
            return []
        assert read.first is not None
        whole = self.arrays[read.first.name]
        devices = whole.shape[0]
        return list(whole.reshape(devices, read.initial, *read.output.out.token_shape).swapaxes(0, 1))

    def run(self, log: Array) -> None:
        """Fires in the order of starts; those that start together in the order of the stages."""
        for row in log[np.lexsort((log[:, Log.STAGE], log[:, Log.START]))]:
            self._fire(*(int(value) for value in row[: Log.COMMIT + 1]))

    def _fire(self, number: int, firing: int, start: int, end: int, commit: int) -> None:
        stage, counters = self.section.stages[number], self.walks[number]
        values = dict(zip(stage.over, counters[firing].tolist(), strict=True))
        inputs = {
            port: self._take(read, stage, counters, firing, values, start, end) for port, read in stage.reads.items()
        }
        results = self._results(number, stage, firing, counters, values, inputs)
        for read in stage.reads.values():
            if _moves(counters, firing, len(read.output.out.token_over)):
                self.released[id(read)].append(end)
        for read in self.section.channels:
            if read.output.stage is stage:
                self._emit(read, counters, firing, results[read.output.name], start, end, commit)

    def _take(
        self, read: Read, stage: Stage, counters: Array, firing: int, values: Mapping[Any, int], start: int, end: int
    ) -> Array:
        level = len(read.output.out.token_over)
        number = _count(counters, firing, level)
        key = id(read)
        taken = end if key in self.streamed else start
        if number >= len(self.tokens[key]) or self.times[key][number][1] > taken:
            self._violate(f"{read.name}: token {number} was taken before it was complete")
            token = np.full((self._devices(), *read.output.out.token_shape), np.nan)
        else:
            token = self.tokens[key][number]
        if read.piece is not None:
            axis, counter = read.piece
            size = token.shape[1:][axis] // counter.trips
            axis = axis + 1 if axis >= 0 else axis
            token = np.take(token, np.arange(values[counter] * size, (values[counter] + 1) * size), axis=axis)
        return token.swapaxes(-1, -2) if read.transposed else token

    def _emit(self, read: Read, counters: Array, firing: int, value: Array, start: int, end: int, commit: int) -> None:
        out, key = read.output.out, id(read)
        if not _moves(counters, firing, len(out.over)):
            return
        if not self.pieces[key]:
            self.begun[key] = start
            number = len(self.tokens[key])
            old = number - read.depth
            whole = key not in self.streamed
            if whole and old >= 0 and (old >= len(self.released[key]) or self.released[key][old] > start):
                self._violate(f"{read.name}: token {number} overwrites one that is still needed")
                for back in range(max(0, old), min(number, len(self.tokens[key]))):
                    if back % read.depth == number % read.depth:
                        self.tokens[key][back] = np.full_like(self.tokens[key][back], np.nan)
        self.pieces[key].append(round_to(value, out.dtype))
        if _moves(counters, firing, len(out.token_over)):
            axis = out.axis + 1 if out.axis >= 0 else out.axis
            pieces = self.pieces[key]
            self.tokens[key].append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=axis))
            self.times[key].append((self.begun[key], end if key in self.streamed else commit))
            self.pieces[key] = []

    def _results(
        self, number: int, stage: Stage, firing: int, counters: Array, values: Mapping[Any, int], inputs: Any
    ) -> dict[str, Array]:
        match stage.kind:
            case "load":
                return {"out": self._load(stage, values)}
            case "gather":
                assert stage.tensor is not None
                source = self.arrays[stage.tensor.name]
                table = source.reshape(source.shape[0], -1, source.shape[-1])
                return {"out": self._rows(stage, firing, table, inputs["index"])}
            case "lookup":
                return {"out": self._rows(stage, firing, inputs["table"], inputs["index"])}
            case "store":
                self._store(stage, values, inputs["value"])
                return {}
            case "collective":
                value = inputs["value"]
                return {"out": np.broadcast_to(value.sum(axis=0, keepdims=True), value.shape)}
            case "timed":
                shape = stage.outputs["out"].out.shape if stage.outputs else ()
                zeros = np.zeros((self._devices(), *shape))
                return {"out": next(iter(inputs.values()), zeros)}
        carried = self.carried[number]
        for name, carry in stage.carry.items():
            if firing == 0 or _moves(counters, firing - 1, len(carry.per)):
                carried[name] = np.full((self._devices(), *carry.shape), carry.initial)
        assert stage.body is not None
        results, updates = evaluate(stage.body, {**inputs, **carried}, values)
        carried.update(updates)
        return results

    def _load(self, stage: Stage, values: Mapping[Any, int]) -> Array:
        assert stage.tensor is not None
        source = self.arrays[stage.tensor.name]
        tile = np.full((source.shape[0], *stage.tile), stage.fill)
        inside, part = self._inside(stage, values)
        tile[(slice(None), *part)] = source[(slice(None), *inside)]
        tile = tile.reshape(source.shape[0], *stage.view)
        if stage.permute:
            tile = tile.transpose(0, *(axis + 1 for axis in stage.permute))
        return tile.reshape(source.shape[0], *stage.outputs["out"].out.shape)

    def _store(self, stage: Stage, values: Mapping[Any, int], value: Array) -> None:
        assert stage.tensor is not None
        target = self.arrays[stage.tensor.name]
        inside, part = self._inside(stage, values)
        tile = value.reshape(value.shape[0], *stage.view)
        if stage.permute:
            tile = tile.transpose(0, *(axis + 1 for axis in stage.permute))
        tile = round_to(tile.reshape(value.shape[0], *stage.tile), stage.tensor.dtype)
        target[(slice(None), *inside)] = tile[(slice(None), *part)]

    def _inside(self, stage: Stage, values: Mapping[Any, int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What a stage's tile covers of its array, and where that lies in the tile."""
        assert stage.tensor is not None
        origin = [int(index.at(values)) for index in stage.origin]
        inside = []
        for at, extent, size in zip(origin, stage.tile, stage.tensor.shape, strict=True):
            first = max(at, 0)
            inside.append(slice(first, max(first, min(at + extent, size))))
        part = tuple(slice(s.start - at, s.stop - at) for s, at in zip(inside, origin, strict=True))
        return tuple(inside), part

    def _rows(self, stage: Stage, firing: int, table: Array, index: Array) -> Array:
        """Rows of a table [devices, rows, width] by the numbers that came; what is outside it is NaN."""
        assert stage.rows is not None
        timed = np.atleast_1d(stage.rows[firing])
        numbers = np.broadcast_to(index.reshape(len(index), -1), (len(table), len(timed)))
        asked = np.where(np.isfinite(numbers), numbers, -1).astype(np.int64)
        inside = (asked >= 0) & (asked < table.shape[1])
        if not inside.all():
            self._violate(
                f"{stage.name}: firing {firing} asks for row {asked[~inside][0]} of a table of {table.shape[1]} rows"
            )
        elif (asked != timed).any():
            other = tuple(np.argwhere(asked != timed)[0])
            self._violate(f"{stage.name}: row {asked[other]} was asked for, row {timed[other[1]]} was timed")
        found = np.take_along_axis(table, np.where(inside, asked, 0)[:, :, None], axis=1)
        return np.where(inside[:, :, None], found, np.nan)

    def _devices(self) -> int:
        return next(iter(self.arrays.values())).shape[0]

    def _violate(self, text: str) -> None:
        if text not in self.violations and len(self.violations) < 20:
            self.violations.append(text)


def evaluate(
    body: Body, inputs: Mapping[str, Array], values: Mapping[Any, int]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Results and carried tiles of a body on numbers, [devices, ...]. Lanes and sums are fp32."""
    found: list[Array] = []
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for node in body.nodes:
            found.append(_node(node, found, inputs, values))
    return (
        {name: found[number] for name, number in body.outputs.items()},
        {name: found[number] for name, number in body.updates.items()},
    )


def _node(node: Node, found: list[Array], inputs: Mapping[str, Array], values: Mapping[Any, int]) -> Array:
    args = [found[i] for i in node.args]
    if node.op in LANES:  # a tile of fewer dimensions is spread over the outer ones, not over the devices
        args = [a.reshape(len(a), *[1] * (len(node.shape) + 1 - a.ndim), *a.shape[1:]) for a in args]
    match node.op:
        case "input":
            return inputs[node.attrs[0]]
        case "constant":
            return np.full((1, 1, 1), node.attrs[0])
        case "matmul":
            return round_to(np.matmul(*args), "fp32")
        case "reshape":
            return args[0].reshape(args[0].shape[0], *node.shape)
        case "permute":
            return args[0].transpose(0, *(axis + 1 for axis in node.attrs))
        case "windows":
            return _windows(args[0], *node.attrs)
        case "columns":
            return args[0][..., node.attrs[0] : node.attrs[1]]
        case "rotate_half":
            half = args[0].shape[-1] // 2
            return np.concatenate([-args[0][..., half:], args[0][..., :half]], axis=-1)
        case "causal":
            rows_from, columns_from, window, period = node.attrs
            return _causal(args[0], rows_from.at(values), columns_from.at(values), window, period)
    return round_to(_FUNCTIONS[node.op](*args), "fp32")


def _windows(
    image: Array, window: tuple[int, int], stride: tuple[int, int], count: tuple[int, int], channels: int
) -> Array:
    """The patches of rows of an image, a row each."""
    pixels = image.reshape(*image.shape[:-1], -1, channels)
    found = [
        pixels[..., r : r + (count[0] - 1) * stride[0] + 1 : stride[0], :, :]
        [..., s : s + (count[1] - 1) * stride[1] + 1 : stride[1], :]
        for r in range(window[0])
        for s in range(window[1])
    ]  # fmt: skip
    return np.stack(found, axis=-2).reshape(*image.shape[:-2], math.prod(count), -1)


def _causal(tile: Array, first_row: int, first_column: int, window: int, period: int) -> Array:
    rows = first_row + np.arange(tile.shape[-2])[:, None] % period
    columns = first_column + np.arange(tile.shape[-1])[None, :]
    keep = columns <= rows
    if window:
        keep &= columns > rows - window
    return np.where(keep, tile, -np.inf)


def _moves(counters: Array, firing: int, level: int) -> bool:
    """Whether a counter below `level` moves on after a firing."""
    if firing + 1 == len(counters):
        return True
    return bool((counters[firing + 1, :level] != counters[firing, :level]).any())


def _count(counters: Array, firing: int, level: int) -> int:
    """How often counters below `level` have moved on before a firing."""
    return int((counters[1 : firing + 1, :level] != counters[:firing, :level]).any(axis=1).sum())
