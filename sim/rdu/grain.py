"""Which channels of a section by vectors hand over vectors, how many a token has, and how far results trail behind.

A channel does where its reader works through a token once and in the order in which it is made: chains of operations
along rows, reductions over rows, loads and stores as they lie. Operands of products, tiles in another order or in
pieces, and tokens that a reader takes several times stay whole, in the buffers that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.cost import StageCost, ceil_div
from sim.rdu.program import LANES, REDUCTIONS, VIEWS, Output, Read, Section, Stage, chain, walk

FIGURES = (
    "pcu.lanes",
    "pcu.stages",
    "pcu.systolic",
    "pmu.size",
)
"""Figures of a preset that this module reads."""

TO_SPARE_BYTES = 1 << 40
"""Size of a memory unit on a chip that is asked for least depths: buffers there are as deep as the program says."""

_IN_ORDER = ("reshape", "columns", "rotate_half")
"""Views that leave the rows in their order."""


def whole_because(read: Read) -> str:
    """Why a channel hands over whole tokens; empty where it hands over vectors."""
    producer, reader, out = read.output.stage, read.reader, read.output.out
    assert reader is not None
    if producer.kind not in ("compute", "load", "timed") or reader.kind not in ("compute", "store", "timed"):
        return f"a {producer.kind if producer.kind not in ('compute', 'load', 'timed') else reader.kind} takes it whole"
    if read.first is not None or read.initial:
        return "a loop hands over whole tokens"
    if out.collect is not None or reader.over != out.over or read.piece is not None:
        return "its reader takes it in pieces, or several times"
    if read.transposed or read.stride != 1:
        return "its reader takes it in another order"
    for stage in (producer, reader):
        if stage.permute or not _in_order(stage):
            return f"{stage.name} puts it in another order"
        if stage.tensor is not None and not _inside(stage):
            return f"{stage.name} has tiles outside of {stage.tensor.name}"
    if reader.body is not None:
        if any(node.op == "matmul" for node in reader.body.nodes):
            return "a product takes its operands from buffers"
        widest = max(reader.body.nodes, key=lambda node: math.prod(node.shape)).shape
        size = math.prod(read.shape)
        if size not in (math.prod(widest), math.prod(widest[:-1])):
            return "its reader takes it once for each row"
    return ""


def _in_order(stage: Stage) -> bool:
    return stage.body is None or all(n.op not in VIEWS or n.op in _IN_ORDER for n in stage.body.nodes)


def _inside(stage: Stage) -> bool:
    """Whether each tile of a memory stage has at least a part inside its array."""
    assert stage.tensor is not None
    table = walk(stage.over)
    values = {counter: table[:, i] for i, counter in enumerate(stage.over)}
    corners = [
        (np.asarray(index.at(values)), size, extent)
        for index, size, extent in zip(stage.origin, stage.tile, stage.tensor.shape, strict=True)
    ]
    return all(bool((at < extent).all() and (at + size > 0).all()) for at, size, extent in corners)


def steps_of(stage: Stage, cost: StageCost, spec: RduSpec) -> int:
    """Vectors that each PCU of a stage works on in a firing; 0 for a stage that memory paces."""
    if stage.body is not None:
        if cost.array_pcus:
            size = max(math.prod(output.out.shape) for output in stage.outputs.values())
            each = spec.pcu.lanes * (spec.pcu.stages if spec.pcu.systolic else 1)
            return max(1, min(cost.interval_cycles, ceil_div(size, each * cost.array_pcus)))
        steps = chain(stage.body, spec.pcu.lanes, spec.pcu.stages)
        sizes = [step[0] for step in steps] or [math.prod(read.shape) for read in stage.reads.values()]
        return max(1, ceil_div(max(sizes), spec.pcu.lanes * max(1, stage.simd_par)))
    if stage.kind == "timed":
        sizes = [math.prod(read.shape) for read in stage.reads.values()]
        sizes += [math.prod(output.out.shape) for output in stage.outputs.values()]
        return max(1, min(cost.interval_cycles, ceil_div(max(sizes), spec.pcu.lanes)))
    return 0


def vectors_of(section: Section, stages: Sequence[Stage], costs: Sequence[StageCost], spec: RduSpec) -> list[int]:
    """For each channel of a section the vectors of a token, 0 where it comes whole.

    They are those of the end that takes longer over them; of a column, a row for each of the producer's PCUs.
    """
    steps = {id(stage): steps_of(stage, cost, spec) for stage, cost in zip(stages, costs, strict=True)}
    found = []
    for read in section.channels:
        reason = whole_because(read) if section.grain == "vector" else "its section is by tokens"
        if reason and read.vectors:
            raise InputError(f"{read.name}: its depth counts vectors, but {reason}; give it in tokens")
        if reason:
            found.append(0)
            continue
        producer, size = read.output.stage, math.prod(read.output.out.shape)
        most = max(steps[id(producer)], steps[id(read.reader)]) or ceil_div(size, spec.pcu.lanes)
        units = producer.simd_par if producer.body is not None else 1
        found.append(max(1, min(most, ceil_div(size, max(1, units)))))
    return found


def room_of(read: Read, vectors: int, pmus: int, spec: RduSpec) -> int:
    """Vectors that a channel has room for, `vectors` of a token: a FIFO in memory units has all of their room, if that
    is more than the depth in tokens; a depth in vectors is what it is."""
    if read.vectors:
        return read.depth
    least = read.depth * vectors
    if not pmus or spec.pmu.size_bytes >= TO_SPARE_BYTES:
        return least
    tokens = len(walk(read.output.out.token_over))
    return max(least, min(pmus * spec.pmu.size_bytes * vectors // read.token_bytes, tokens * vectors))


def trail_ticks(output: Output, cost: StageCost, interval_ticks: int, spec: RduSpec) -> int:
    """Ticks by which a stage's results leave it later than the vectors they are made of came: rows that it must have
    seen to their end before what it does with their sum, or largest, can begin."""
    body = output.stage.body
    if body is None:
        return 0
    steps = steps_of(output.stage, cost, spec)
    rows: list[int] = []
    """By operation: vectors of a row that its results trail, times the rows seen before."""
    column: list[bool] = []
    for node in body.nodes:
        before = [rows[i] for i in node.args]
        columns = [column[i] for i in node.args]
        if node.op in REDUCTIONS:
            rows.append(before[0])
            column.append(True)
            continue
        wide = [b for b, c in zip(before, columns, strict=True) if not c]
        late = [b for b, c in zip(before, columns, strict=True) if c]
        row = ceil_div(node.shape[-1], spec.pcu.lanes) if node.shape else 1
        mixed = node.op in LANES and late and any(body.nodes[i].shape[-1] > 1 for i in node.args)
        if node.op in ("columns", "rotate_half"):
            wide = [b + ceil_div(body.nodes[node.args[0]].shape[-1], spec.pcu.lanes) for b in before]
        rows.append(max([*wide, *(b + (row if mixed else 0) for b in late)], default=0))
        column.append(bool(late) and not mixed)
    trailed = rows[body.outputs[output.name]]
    return min(trailed, steps) * interval_ticks // steps
