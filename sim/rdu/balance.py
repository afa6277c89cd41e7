"""How many PCUs each stage gets where a program leaves it open: as many as make all stages take the same time.

A section is as fast as its slowest stage, so the PCUs go where the work is: the least time is sought for which the
smallest sufficient division of every stage fits the chip. Where memory is slower than that, PCUs beyond twice its pace
would only wait, and are left out; stages that take turns share that time. The links over which a stage's results leave
its columns are such a pace, too: a stage that takes turns has them to itself, and waits for them alone.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.cost import ceil_div, simd_links, stage_cost
from sim.rdu.place import grid_of
from sim.rdu.program import Section, Stage, chain, walk
from sim.rdu.route import blocks_of, columns_needed

FIGURES = (
    "clock.boost",
    "ddr.bandwidth",
    "dies.count",
    "hbm.bandwidth",
    "mesh.rows",
    "mesh.vector",
    "pcu.count",
    "pcu.lanes",
    "pcu.stages",
    "pmu.count",
)
"""Figures of a preset that this module reads."""

Division = tuple[int, int, int, int, int, tuple[int, ...]]
"""(cycles of all firings, PCUs, row_par, col_par, simd_par, PCUs by block)."""


def balance(section: Section, spec: RduSpec) -> None:
    """Sets `row_par`, `col_par` and `simd_par` of the stages that have none."""
    compute = [stage for stage in section.stages if stage.kind == "compute"]
    still_open = [stage for stage in compute if stage.row_par == 0]
    if not still_open:
        return
    budget = spec.pcu.count - sum(stage_cost(stage, spec).pcus for stage in compute if stage.row_par)
    choices = [_divisions(stage, spec, max(budget, 1)) for stage in still_open]
    times = sorted({division[0] for options in choices for division in options})
    if sum(options[0][1] for options in choices) > budget:
        least = sum(min(division[1] for division in options) for options in choices)
        raise InputError(
            f"section {section.name} needs at least {least} PCUs beside the {spec.pcu.count - budget} that are given; "
            f"{spec.name} has pcu.count = {spec.pcu.count}: cut it into sections"
        )
    turns = _turns(section, compute)
    crossing = _crossing_cycles(section, spec) // (2 if turns == 1 else 1)
    first = bisect_left(times, max(memory_cycles(section, spec) // (2 * turns), crossing))
    columns = np.unique(grid_of(spec).pcus[:, 1], return_counts=True)[1]
    height = int(columns[0])  # of the checkerboard; what stands behind it, of one kind alone, is counted like it
    fixed = [size for stage in compute if stage.row_par for size in blocks_of(stage, stage_cost(stage, spec))]

    def fits(time: int) -> bool:
        """Whether divisions that are done in `time` fit, each block in columns of its own."""
        chosen = [_least(options, time) for options in choices]
        sizes = fixed + [size for division in chosen for size in division[5]]
        if columns_needed(sizes, height) > (columns // height).sum():
            return time == times[-1]
        return sum(division[1] for division in chosen) <= budget

    low, high = min(first, len(times) - 1), len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(times[middle]):
            high = middle
        else:
            low = middle + 1
    for stage, options in zip(still_open, choices, strict=True):
        _, _, stage.row_par, stage.col_par, stage.simd_par, _ = _least(options, times[low])


def _turns(section: Section, compute: list[Stage]) -> int:
    """Stages that take turns rather than work at once: many where few tokens are on their way through the section."""
    loops = [read.initial for read in section.channels if read.first is not None]
    in_flight = min([*loops, *(stage.firings for stage in compute)])
    return max(1, len(compute) // max(1, in_flight))


def _crossing_cycles(section: Section, spec: RduSpec) -> int:
    """Cycles that the links of all rows need for the widest stream from stage to stage."""
    between = [r for r in section.channels if r.reader and r.output.stage.kind == r.reader.kind == "compute"]
    widest = max((len(walk(read.output.out.token_over)) * read.token_bytes for read in between), default=0)
    return int(widest / (spec.mesh.rows * spec.mesh.vector_bytes_per_cycle))


def memory_cycles(section: Section, spec: RduSpec) -> int:
    """Cycles that external memory needs for the loads and stores of a section at its full rate."""
    moved = 0
    for stage in section.stages:
        if stage.tensor is not None:
            moved += stage.firings * math.prod(stage.tile) * DTYPE_BYTES[stage.tensor.dtype]
    return moved * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s


def _least(options: list[Division], time: int) -> Division:
    """The division with fewest PCUs that is done within a time, or the fastest there is."""
    within = [division for division in options if division[0] <= time]
    return min(within, key=lambda d: (d[1], d[0])) if within else min(options, key=lambda d: (d[0], d[1]))


def _divisions(stage: Stage, spec: RduSpec, budget: int) -> list[Division]:
    """Divisions of a stage, fewest PCUs first, without those that others beat in both; of equal ones the one that
    streams least over the mesh."""
    assert stage.body is not None
    firings = stage.firings
    found: list[tuple[Division, int]] = []
    """With the bytes that leave the buffers a firing."""
    steps = chain(stage.body, spec.pcu.lanes, spec.pcu.stages)
    links = simd_links(stage, spec)
    if any(node.op == "matmul" for node in stage.body.nodes):
        bands = spec.divisions(budget)
        for row_par, col_par, swapped in [(a, b, False) for a, b in bands] + [(b, a, True) for a, b in bands]:
            alone = dataclasses.replace(stage, row_par=row_par, col_par=col_par, simd_par=1 << 20)
            cost = stage_cost(alone, spec)
            if cost.crossed is not swapped and min(row_par, col_par) > 1:
                continue  # bands belong to the operand over the lanes
            cycles = cost.interval_cycles
            elements = max((step[0] for step in steps), default=0)
            simd_par = max(1, ceil_div(elements, spec.pcu.lanes * max(cycles, 1)))
            sizes = (row_par * col_par, *([simd_par] * links))
            streamed = sum(port.read_bytes for port in cost.ports.values())
            found.append(((firings * cycles, sum(sizes), row_par, col_par, simd_par, sizes), streamed))
    else:
        length = max(1, links)
        streams = [step[0] for step in steps] or [max(math.prod(read.shape) for read in stage.reads.values())]
        most = max(1, budget // length)
        for par in sorted({par for n in streams for par in _paying(ceil_div(n, spec.pcu.lanes), most)}):
            tried = dataclasses.replace(stage, row_par=par, col_par=1, simd_par=par)
            cycles = stage_cost(tried, spec).interval_cycles
            found.append(((firings * cycles, par * length, par, 1, par, (par,) * length), 0))
    found.sort(key=lambda entry: (entry[0][1], entry[0][0], entry[1]))
    kept: list[Division] = []
    for division, _ in found:
        if division[1] <= budget and (not kept or division[0] < kept[-1][0]):
            kept.append(division)
    return kept or [found[0][0]]


def _paying(vectors: int, most: int) -> Iterator[int]:
    """Numbers of units, up to `most`, each the least for which the busiest has that few of so many vectors."""
    par = 1
    while par <= most:
        yield par
        rounds = ceil_div(vectors, par)
        if rounds <= 1:
            return
        par = ceil_div(vectors, rounds - 1)
