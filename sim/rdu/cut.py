"""Sections that are too large for a machine, cut into consecutive ones that take turns on it.

A cut runs between two stages in the order of the program. A channel that crosses it goes through memory: a stage stores
its tokens, piece by piece, in a scratch tensor, and the later section loads them, as parts where its reader takes
parts. What a section loads from an array that it does not write is loaded by each part that needs it. Where to cut is
chosen by estimated time: launches and reconfiguration, bytes through memory, arithmetic, and the wait of stages whose
tokens need many firings of those before them. A loop over sections' iterations (`Section.loop`) stays whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.engine.clock import PS_PER_S
from sim.rdu.cost import StageCost, carry_pmus, ceil_div, least_pmus, stage_cost
from sim.rdu.program import (
    Call,
    Counter,
    Index,
    Out,
    Output,
    Program,
    Read,
    Section,
    Shape,
    Stage,
    Tensor,
    chain,
    walk,
)

FIGURES = (
    "clock.boost",
    "ddr.bandwidth",
    "ddr.latency",
    "hbm.bandwidth",
    "hbm.latency",
    "launch.argument_load",
    "launch.execute",
    "launch.hardware",
    "launch.program_load",
    "pcu.count",
    "pcu.lanes",
    "pcu.stages",
    "pmu.count",
    "pmu.size",
)
"""Figures of a preset that this module reads."""


@dataclass(frozen=True)
class Cut:
    """What was done to a section: for reports."""

    reason: str
    parts: tuple[str, ...]
    spilled_bytes: int
    """Stored and loaded at the cuts, a launch."""

    def __str__(self) -> str:
        return (
            f"{self.reason}: it is cut into {len(self.parts)} sections ({', '.join(self.parts)}), between which "
            f"{BYTES.format(self.spilled_bytes)} pass through memory"
        )


def fit(program: Program, spec: RduSpec) -> tuple[Program, list[Cut]]:
    """The program with its sections cut as its calls say, and what was cut for the machine's sake.

    InputError, with the reason, where a section does not fit and no cut helps.
    """
    parts: dict[int, list[Section]] = {}
    cuts = []
    named: Counts[str] = Counts()
    for call in program.calls:
        if id(call.section) not in parts:
            named[call.section.name] += 1
            again = named[call.section.name]
            parts[id(call.section)], found = _parts(call, spec, call.section.name + (f"#{again}" if again > 1 else ""))
            cuts += found
    calls: list[Call] = []
    for call in program.calls:
        first, *rest = parts[id(call.section)]
        if not rest:
            calls.append(dataclasses.replace(call, cut="fit"))
            continue
        for _ in range(call.times):
            calls += [Call(part, 1, call.prefetch) for part in (first, *rest)]
    return dataclasses.replace(program, calls=tuple(calls)), cuts


def _parts(call: Call, spec: RduSpec, name: str) -> tuple[list[Section], list[Cut]]:
    """Sections of a call, and what was done for the machine's sake. name: of the section, one in the program."""
    section = call.section
    graph = _Graph(section, spec, name)
    if isinstance(call.cut, tuple):
        starts = graph.at(call.cut)
        return (graph.split(starts) if starts else [section]), []
    reason = graph.too_large(0, len(graph.nodes))
    if not reason and call.cut == "fit":
        return [section], []
    best = graph.best()
    if best is None:
        raise InputError(f"{reason}; {graph.why_not()}")
    if not best:
        return [section], []
    parts = graph.split(best)
    reason = reason or f"section {section.name} has stages that would wait for one another"
    return parts, [Cut(reason, tuple(part.name for part in parts), graph.spilled_bytes(best))]


@dataclass(frozen=True)
class _Way:
    """How a token that was spilled comes back: whole, or in parts over one more counter."""

    output: Output
    over: tuple[Counter, ...]
    axis: int | None
    shape: Shape

    @property
    def token_bytes(self) -> int:
        """Of one load."""
        return math.prod(self.shape) * DTYPE_BYTES[self.output.out.dtype]


class _Graph:
    """A section as a row of nodes, between which it can be cut.

    A node is a stage with the stores that hang on it. Loads of arrays that the section does not write belong to no
    node: each part makes those that it needs.
    """

    def __init__(self, section: Section, spec: RduSpec, name: str) -> None:
        self.section, self.spec, self.name = section, spec, name
        written = {stage.tensor.name for stage in section.stages if stage.kind == "store" and stage.tensor}
        self.free = {
            id(s) for s in section.stages if s.kind == "load" and s.tensor is not None and s.tensor.name not in written
        }
        self.nodes: list[list[Stage]] = []
        self.numbers: list[int] = []
        """Of each node's first stage in the section."""
        self.node: dict[int, int] = {}
        """Node of each stage by its identity."""
        for number, stage in enumerate(section.stages):
            if id(stage) in self.free:
                continue
            of = next((self.node.get(id(r.output.stage)) for r in stage.reads.values()), None)
            if stage.kind == "store" and of is not None:
                self.nodes[of].append(stage)
            else:
                of = len(self.nodes)
                self.nodes.append([stage])
                self.numbers.append(number)
            self.node[id(stage)] = of
        self.bound = self._bound()
        self.least: dict[int, StageCost] = {
            id(s): stage_cost(s if s.row_par else dataclasses.replace(s, row_par=1, col_par=1, simd_par=1), spec)
            for s in section.stages
        }
        self.readers = Counts(_key(read.output) for read in section.channels)
        self.counts: dict[tuple[Counter, ...], int] = {}
        self.later: dict[tuple[int, str], int] = {}
        """Last node that reads an output, by its stage and name."""
        for read in section.channels:
            key = _key(read.output)
            if key[0] in self.node and not read.initial:
                self.later[key] = max(self.later.get(key, 0), self._reader(read))

    def _bound(self) -> dict[int, str]:
        """Places at which no cut is possible, with the reason: between the ends of a loop."""
        found: dict[int, str] = {}
        for read in self.section.channels:
            if read.initial and read.reader is not None:
                first, last = sorted((self._reader(read), self.node[id(read.output.stage)]))
                outer = read.output.out.token_over[0].name if read.output.out.token_over else "its iterations"
                text = f"the loop over {outer} through {read.name} needs all of its stages on the chip at once"
                found.update(dict.fromkeys(range(first + 1, last + 1), text))
        return found

    def _reader(self, read: Read) -> int:
        return self.node[id(read.reader)]

    # ---- what a part needs

    def _spills(self, first: int, last: int) -> Iterator[Output]:
        """Outputs of a part that later ones need."""
        for node in self.nodes[first:last]:
            for stage in node:
                for output in stage.outputs.values():
                    if self.later.get(_key(output), 0) >= last:
                        yield output

    def _loads(self, first: int, last: int) -> dict[_Way, list[Read]]:
        """What a part brings back from memory, with its readers."""
        found: dict[_Way, list[Read]] = {}
        for read in self._reads(first, last):
            if self.node.get(id(read.output.stage), first) < first:
                found.setdefault(_way(read), []).append(read)
        return found

    def _reads(self, first: int, last: int) -> Iterator[Read]:
        for node in self.nodes[first:last]:
            for stage in node:
                yield from stage.reads.values()

    def _depth(self, way: _Way, reads: Sequence[Read], read: Read) -> int:
        """Of the buffer behind a load of what was spilled; with other readers, what the program says."""
        parts = way.over[len(read.output.out.token_over) :]
        depth = read.depth * math.prod(counter.trips for counter in parts)
        if len(reads) == 1:
            depth = min(depth, self._ahead(way.token_bytes))
        return min(depth, self._count(way.over))

    def _ahead(self, token_bytes: int) -> int:
        """Tokens that hide memory's latency, and two in use: what one reader of a load can need."""
        memory = self.spec.main_memory
        in_flight = memory.bandwidth_bytes_per_s * memory.latency_ps // PS_PER_S
        return 2 + ceil_div(in_flight, token_bytes)

    def _kept(self, first: int, last: int) -> dict[int, Read]:
        """Reads of a part, by identity, as they stay but for deep buffers whose other readers are in other parts."""
        reads = list(self._reads(first, last))
        readers = Counts(_key(read.output) for read in reads)
        found = {}
        for read in reads:
            if self.node.get(id(read.output.stage), first) < first:
                continue
            if id(read.output.stage) in self.free and readers[_key(read.output)] == 1 < self.readers[_key(read.output)]:
                read_alone = dataclasses.replace(read, depth=min(read.depth, self._ahead(read.token_bytes)))
                found[id(read)] = read_alone
            else:
                found[id(read)] = read
        return found

    def _pmus(self, first: int, last: int) -> int:
        """PMUs of a part's buffers and carried tiles at the least."""
        size = self.spec.pmu.size_bytes
        found = sum(
            carry_pmus(stage, self.least[id(stage)], self.spec) for node in self.nodes[first:last] for stage in node
        )
        for read in self._kept(first, last).values():
            found += least_pmus(read, self.least[id(read.reader)], self.spec)
        for way, reads in self._loads(first, last).items():
            found += sum(ceil_div(self._depth(way, reads, read) * way.token_bytes, size) for read in reads)
        return found + sum(ceil_div(2 * _piece_bytes(output), size) for output in self._spills(first, last))

    def _pcus(self, first: int, last: int) -> int:
        return sum(self.least[id(stage)].pcus for node in self.nodes[first:last] for stage in node)

    def too_large(self, first: int, last: int) -> str:
        """Why a part does not fit; empty where it does."""
        name, spec = self.section.name, self.spec
        pcus, pmus = self._pcus(first, last), self._pmus(first, last)
        if pcus > spec.pcu.count:
            return f"section {name} needs at least {pcus} PCUs, {spec.name} has pcu.count = {spec.pcu.count}"
        if pmus > spec.pmu.count:
            return f"section {name} needs at least {pmus} PMUs, {spec.name} has pmu.count = {spec.pmu.count}"
        return ""

    def why_not(self) -> str:
        """Why no cut makes it fit."""
        for n in range(len(self.nodes)):
            if reason := self.too_large(n, n + 1):
                stage = self.nodes[n][0].name
                _, needs = reason.split(" needs ", 1)
                reads = self._kept(n, n + 1).values()
                sizes = {read.name: least_pmus(read, self.least[id(read.reader)], self.spec) for read in reads}
                most = max(sizes, key=lambda name: sizes[name], default="")
                most = f" ({sizes[most]} PMUs in {most})" if most else ""
                return (
                    f"no cut helps, as {stage} alone needs {needs}{most}: smaller tiles or a smaller division would fit"
                )
        whole = next(iter(self.bound.values()), "too much of it belongs together")
        return f"it cannot be cut, as {whole}"

    # ---- where to cut

    def at(self, stages: Sequence[int]) -> list[int]:
        """Nodes with which parts begin that begin with the stages of these numbers, or the next that is a node."""
        found = [next((n for n, number in enumerate(self.numbers) if number >= stage), 0) for stage in stages]
        starts = sorted({n for n in found if n})
        for n in starts:
            if n in self.bound:
                raise InputError(
                    f"section {self.section.name} cannot be cut before {self.nodes[n][0].name}: {self.bound[n]}"
                )
        return starts

    def best(self) -> list[int] | None:
        """Nodes with which the parts after the first begin, in the order of least estimated time; None: none fits."""
        count = len(self.nodes)
        times: list[int | None] = [0, *([None] * count)]
        before = [0] * (count + 1)
        for last in range(1, count + 1):
            if last in self.bound:
                continue
            for first in range(last - 1, -1, -1):
                so_far = times[first]
                if self._pcus(first, last) > self.spec.pcu.count:
                    break
                if so_far is None or self.too_large(first, last):
                    continue
                time = so_far + self._cycles(first, last)
                known = times[last]
                if known is None or time < known:
                    times[last], before[last] = time, first
        if times[count] is None:
            return None
        starts: list[int] = []
        at = before[count]
        while at:
            starts.append(at)
            at = before[at]
        return starts[::-1]

    def _cycles(self, first: int, last: int) -> int:
        """Estimated cycles of a part: launch, and the longer of arithmetic with its waits and memory."""
        spec = self.spec
        launch = spec.launch
        once_ps = launch.program_load_ps + launch.argument_load_ps + launch.execute_ps + launch.hardware_ps
        once = once_ps * spec.clock.boost_hz // PS_PER_S
        moved = self._moved_bytes(first, last) * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s
        stages = [stage for node in self.nodes[first:last] for stage in node]
        busy = ceil_div(sum(self._work[id(stage)] for stage in stages), spec.pcu.count)
        for stage in stages:
            if stage.row_par or stage.kind != "compute":
                busy = max(busy, self._firings[id(stage)] * self.least[id(stage)].interval_cycles)
        # A stage that reads n tokens can begin when the n-th part of the work before it is done.
        begins: dict[int, int] = {}
        for stage in stages:
            begins[id(stage)] = max(
                (
                    begins[id(read.output.stage)] + busy // self._tokens[id(read)]
                    for read in stage.reads.values()
                    if id(read.output.stage) in begins and not read.initial
                ),
                default=0,
            )
        return once + max(busy + max(begins.values(), default=0), moved)

    def _count(self, over: tuple[Counter, ...]) -> int:
        """Values of nested counters."""
        if over not in self.counts:
            self.counts[over] = len(walk(over))
        return self.counts[over]

    @cached_property
    def _firings(self) -> dict[int, int]:
        return {id(stage): self._count(stage.over) for stage in self.section.stages}

    @cached_property
    def _tokens(self) -> dict[int, int]:
        return {id(read): self._count(read.output.out.token_over) for read in self.section.channels}

    @cached_property
    def _work(self) -> dict[int, int]:
        """Cycles that one PCU would need for all firings of a stage."""
        found = {}
        for stage in self.section.stages:
            cost = self.least[id(stage)]
            each = cost.interval_cycles * cost.array_pcus
            if stage.body is not None:
                each += sum(ceil_div(s[0], self.spec.pcu.lanes) for s in chain(stage.body, *self._shape))
            found[id(stage)] = each * self._firings[id(stage)]
        return found

    @property
    def _shape(self) -> tuple[int, int]:
        return self.spec.pcu.lanes, self.spec.pcu.stages

    def _moved_bytes(self, first: int, last: int) -> int:
        """Bytes from and to memory."""
        stages = [stage for node in self.nodes[first:last] for stage in node]
        memory = [stage for stage in stages if stage.tensor is not None]
        memory += {
            id(r.output.stage): r.output.stage for r in self._reads(first, last) if id(r.output.stage) in self.free
        }.values()
        found = 0
        for stage in memory:
            assert stage.tensor is not None
            found += self._firings[id(stage)] * math.prod(stage.tile) * DTYPE_BYTES[stage.tensor.dtype]
        return found + self._spilled(first, last)

    def _spilled(self, first: int, last: int) -> int:
        stored = sum(self._count(o.out.over) * _piece_bytes(o) for o in self._spills(first, last))
        return stored + sum(self._count(way.over) * way.token_bytes for way in self._loads(first, last))

    def spilled_bytes(self, starts: Sequence[int]) -> int:
        """Bytes that pass through memory for the cuts alone."""
        ends = [0, *starts, len(self.nodes)]
        return sum(self._spilled(*pair) for pair in pairwise(ends))

    # ---- the parts

    def split(self, starts: Sequence[int]) -> list[Section]:
        """The parts, as sections of their own."""
        ends = [0, *starts, len(self.nodes)]
        tensors: dict[tuple[int, str], Tensor] = {}
        return [self._part(n + 1, first, last, tensors) for n, (first, last) in enumerate(pairwise(ends))]

    def _part(self, number: int, first: int, last: int, tensors: dict[tuple[int, str], Tensor]) -> Section:
        part = Section(f"{self.name}.{number}", self.section.grain)
        made: dict[tuple[int, str], Output] = {}
        back: dict[int, tuple[Output, int]] = {}
        """By read: the load's output, and the depth of the buffer behind it."""
        for n, (way, reads) in enumerate(self._loads(first, last).items()):
            loaded = _load(part, f"load_{_name(way.output)}_{n}", tensors[_key(way.output)], way)
            back.update({id(read): (loaded, self._depth(way, reads, read)) for read in reads})
        for read in self._reads(first, last):
            if id(read.output.stage) in self.free and _key(read.output) not in made:
                _copy(part, read.output.stage, made)
        kept = self._kept(first, last)
        copies = [(stage, _copy(part, stage, made)) for node in self.nodes[first:last] for stage in node]
        for stage, copy in copies:
            for port, read in stage.reads.items():
                if id(read) in back:
                    output, depth = back[id(read)]
                    whole = len(output.out.over) == len(read.output.out.token_over)
                    piece = read.piece if whole else None
                    new = Read(output, depth, piece, read.transposed, read.stride, False, None)
                else:
                    new = dataclasses.replace(kept[id(read)], output=made[_key(read.output)])
                new.reader, new.port = copy, port
                copy.reads[port] = new
        for output in self._spills(first, last):
            tensors[_key(output)] = _scratch(self.name, output)
            _store(part, tensors[_key(output)], made[_key(output)])
        return part


# ---------------------------------------------------------------------------------------------------- pieces


def _key(output: Output) -> tuple[int, str]:
    return id(output.stage), output.name


def _name(output: Output) -> str:
    return output.stage.name + ("" if output.name == "out" else f".{output.name}")


def _piece_bytes(output: Output) -> int:
    return math.prod(output.out.shape) * DTYPE_BYTES[output.out.dtype]


def _way(read: Read) -> _Way:
    """Parts come one by one where the reader walks over them next: no part is then loaded twice."""
    out, reader = read.output.out, read.reader
    assert reader is not None
    if read.piece is not None:
        axis, counter = read.piece
        level = len(out.token_over)
        if reader.over[level : level + 1] == (counter,) and counter.outer is None:
            shape = list(out.token_shape)
            shape[axis] //= counter.trips
            return _Way(read.output, (*out.token_over, counter), axis % len(shape), tuple(shape))
    return _Way(read.output, out.token_over, None, out.token_shape)


def _scratch(prefix: str, output: Output) -> Tensor:
    """All tokens of an output."""
    out = output.out
    trips = tuple(counter.trips for counter in out.token_over)
    return Tensor(f"{prefix}.{_name(output)}", (*trips, *out.token_shape), out.dtype, "scratch")


def _store(part: Section, tensor: Tensor, output: Output) -> None:
    """Stores an output piece by piece."""
    out = output.out
    level = len(out.token_over)
    origin: list[Index | Counter | int] = [*out.token_over, *([0] * len(out.shape))]
    number = Index()
    for counter in out.over[level:]:
        number = Index(0, tuple((c, step * counter.trips) for c, step in number.terms)) + counter * 1
    axis = level + out.axis % len(out.shape)
    origin[axis] = Index(0, tuple((c, step * out.shape[out.axis]) for c, step in number.terms))
    piece = Output(output.stage, output.name, Out(out.shape, out.dtype, out.over))
    part.store(f"store_{_name(output)}", tensor, origin, piece, out.over, tile=(*([1] * level), *out.shape))


def _load(part: Section, name: str, tensor: Tensor, way: _Way) -> Output:
    level = len(way.output.out.token_over)
    origin: list[Index | Counter | int] = [*way.over[:level], *([0] * len(way.shape))]
    if way.axis is not None:
        origin[level + way.axis] = way.over[level] * way.shape[way.axis]
    return part.load(name, tensor, origin, (*([1] * level), *way.shape), way.over, shape=way.shape)


def _copy(part: Section, stage: Stage, made: dict[tuple[int, str], Output]) -> Stage:
    """The same stage in another section, its inputs still to be joined."""
    copy = dataclasses.replace(stage, reads={}, outputs={})
    part.stages.append(copy)
    for name, output in stage.outputs.items():
        copy.outputs[name] = made[_key(output)] = Output(copy, name, output.out, output.first)
    return copy
