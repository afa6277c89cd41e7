"""Where stages and buffers of a section stand, and the flows between them.

Stages take columns of the mesh from left to right, in an order that keeps what talks together near (`place.order_of`).
An array of PCUs is a block of whole rows; each step of a SIMD chain is a column, part i in row i, so that flows from
step to step run along rows. Small steps share a column. A block that fits a tile stands in one where columns suffice.
Where they run out, units are packed without gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.rdu import place
from sim.rdu.cost import PortCost, StageCost
from sim.rdu.place import Flow, Grid, Ints
from sim.rdu.program import WORD_BYTES, Read, Stage

ON_MESH = ("compute", "lookup")
"""Kinds of stages whose results come from units of the mesh; those of the others come from its edge."""
_STEP = 7
"""Stride over a band's units; prime to the usual numbers of rows and columns."""
_SMALL = 4
"""A step that takes less than this part of a column shares one."""


@dataclass(frozen=True)
class StageUnits:
    """Coordinates (row, column) of a stage's units: its array, then the steps of its chain."""

    array: Ints
    steps: tuple[Ints, ...] = ()

    @property
    def all(self) -> Ints:
        """All of them."""
        return np.concatenate([self.array, *self.steps])

    @property
    def takes(self) -> Ints:
        """Those that tiles go to."""
        return self.array if len(self.array) else self.steps[0]

    @property
    def gives(self) -> Ints:
        """Those that results come from."""
        return self.steps[-1] if self.steps else self.array


def blocks_of(stage: Stage, cost: StageCost) -> list[int]:
    """PCUs of a stage's array (0: none) and of each step of its chain."""
    chained = cost.pcus - cost.array_pcus
    return [cost.array_pcus, *([stage.simd_par] * (chained // stage.simd_par if chained else 0))]


def columns_needed(sizes: Sequence[int], height: int) -> int:
    """Columns of `height` PCUs that blocks of these sizes need; small ones share."""
    small = sum(size for size in sizes if size * _SMALL <= height)
    return sum(-(-size // height) for size in sizes if size * _SMALL > height) + -(-small * 5 // (4 * height))


def place_stages(
    grid: Grid,
    stages: Sequence[Stage],
    costs: Sequence[StageCost],
    reads: Sequence[Read],
    number: Mapping[int, int],
) -> list[StageUnits]:
    """Units of every stage; of memory stages and collectives, address generators."""
    sizes = [cost.pcus for cost in costs]
    edges = [
        (number[id(r.output.stage)], number[id(r.reader)], costs[number[id(r.reader)]].ports[r.port].read_bytes)
        for r in reads
    ]
    order = place.order_of(sizes, edges)
    found = (
        _in_columns(grid, stages, costs, order, apart=True)
        or _in_columns(grid, stages, costs, order, apart=False)
        or _packed(grid, stages, costs, order)
    )
    for i, stage in enumerate(stages):
        if not sizes[i]:
            found[i] = StageUnits(grid.generators[: max(1, generators_of(stage, len(grid.generators)))])
    return [found[i] for i in range(len(stages))]


def generators_of(stage: Stage, count: int) -> int:
    """Address generators of a memory stage, of `count`."""
    return min(count, stage.units) if stage.units > 0 else count


def _in_columns(
    grid: Grid, stages: Sequence[Stage], costs: Sequence[StageCost], order: Sequence[int], *, apart: bool
) -> dict[int, StageUnits] | None:
    """Units by stage, None where columns run out. apart: blocks that a tile can hold keep off the borders of tiles."""
    columns = [grid.pcus[grid.pcus[:, 1] == c] for c in np.unique(grid.pcus[:, 1])]
    columns = [column[np.argsort(column[:, 0])] for column in columns]
    height, at = max(len(column) for column in columns), np.array([column[0, 1] for column in columns])
    borders = sorted({*grid.tile_columns, *range(0, grid.columns, grid.columns // grid.dies)})
    free, shelf, shelved = 0, -1, 0
    found: dict[int, StageUnits] = {}
    for i in order:
        parts: list[Ints] = []
        for size in blocks_of(stages[i], costs[i]):
            if size and size * _SMALL <= height:
                if apart and shelf >= 0:
                    shelved = _past_border(columns[shelf][:, 0], grid.tile_rows, shelved, size)
                if shelf < 0 or shelved + size > len(columns[shelf]):
                    if free == len(columns) or size > len(columns[free]):
                        return None
                    shelf, shelved, free = free, 0, free + 1
                parts.append(columns[shelf][shelved : shelved + size])
                shelved += size
                continue
            if apart:
                free = _past_border(at, borders, free, -(-size // height))
            taken = [np.zeros((0, 2), np.int64)]
            while sum(map(len, taken)) < size:
                if free == len(columns):
                    return None
                taken.append(columns[free])
                free += 1
            region = np.concatenate(taken)
            region = region[np.lexsort((region[:, 1], region[:, 0]))]
            parts.append(region[np.arange(size) * len(region) // max(size, 1)])
        found[i] = StageUnits(_bands(parts[0], stages[i], costs[i].crossed), tuple(parts[1:]))
    return found


def _past_border(at: Ints, borders: Sequence[int], first: int, count: int) -> int:
    """Where in `at` (rows or columns in order) `count` of them begin that lie in one tile: at `first` or behind the
    next border; at `first` too where no tile has as many."""
    tiles = np.searchsorted(borders, at, "right")
    if len(set(tiles[first : first + count].tolist())) <= 1:
        return first
    behind = int(np.searchsorted(tiles, tiles[first], "right"))
    return behind if len(set(tiles[behind : behind + count].tolist())) == 1 else first


def _packed(
    grid: Grid, stages: Sequence[Stage], costs: Sequence[StageCost], order: Sequence[int]
) -> dict[int, StageUnits]:
    at = 0
    found = {}
    for i in order:
        parts = []
        for size in blocks_of(stages[i], costs[i]):
            units = grid.pcus[at : at + size]
            parts.append(units[np.lexsort((units[:, 1], units[:, 0]))])
            at += size
        found[i] = StageUnits(_bands(parts[0], stages[i], costs[i].crossed), tuple(parts[1:]))
    return found


def _bands(array: Ints, stage: Stage, crossed: bool) -> Ints:
    """An array's units by number row * col_par + column of the division.

    What shares a part of the operand over the lanes is a band of the region's rows, from left to right.
    """
    if not len(array):
        return array
    wide = stage.row_par if crossed else stage.col_par
    bands = [array[i : i + wide] for i in range(0, len(array), wide)]
    bands = [band[np.lexsort((band[:, 0], band[:, 1]))] for band in bands]
    return np.stack(bands, axis=1).reshape(-1, 2) if crossed else np.concatenate(bands)


def place_buffer(
    grid: Grid,
    free: Ints,
    count: int,
    port: PortCost,
    reader: Stage,
    used: StageUnits,
    producer: Stage,
    made: StageUnits,
    *,
    inside: bool = True,
) -> Ints:
    """Coordinates of a buffer's PMUs: near the units that read it, or that write it where a generator reads it; inside:
    rather in their tiles."""
    if not count:
        return np.zeros((0, 2), np.int64)
    if reader.kind == "compute":
        near = _readers(used, reader, port, count)
    else:
        units = made.gives if producer.kind == "compute" else grid.pmus[:1]
        near = units[np.arange(count) * len(units) // count]
    return grid.pmus[place.nearest_free(free, near, grid, inside=inside)]


def place_table(grid: Grid, free: Ints, count: int, readers: Sequence[Ints]) -> Ints:
    """Coordinates of the PMUs of a table that is looked up: near the units that take what is read."""
    units = np.concatenate([grid.pmus[:1], *readers])[bool(readers) :]
    near = units[np.arange(count) * len(units) // count]
    return grid.pmus[place.nearest_free(free, near, grid)]


def _groups(used: StageUnits, stage: Stage, port: PortCost) -> list[Ints]:
    """Units that need the same part of a tile, by part."""
    units = used.takes
    if port.spread == "rows" and len(used.array):
        return [units[i * stage.col_par : (i + 1) * stage.col_par] for i in range(stage.row_par)]
    if port.spread == "columns" and len(used.array):
        return [units[i :: stage.col_par] for i in range(stage.col_par)]
    if used.steps and len(used.array):  # what only the chain behind an array needs
        units = used.steps[0]
    return [unit[None] for unit in units]


def _readers(used: StageUnits, stage: Stage, port: PortCost, count: int) -> Ints:
    """For each of `count` PMUs a unit that it should be near: one of those that read its part, here and there.

    A part that many units read lies in a band across the mesh; its PMUs are spread along it, so that what fills them
    does not all come through the same links.
    """
    groups = _groups(used, stage, port)
    chosen = [groups[j * len(groups) // count] for j in range(count)]
    return np.array([group[(_STEP * j) % len(group)] for j, group in enumerate(chosen)])


def receivers(pmus: Ints, used: StageUnits, read: Read, reader: Stage) -> list[Ints]:
    """Units that a channel's tiles go to first, by part: its PMUs, or FIFOs of the reader; all need a scalar."""
    if len(pmus):
        return place.singly(pmus)
    if reader.kind == "lookup" or (reader.kind == "compute" and read.output.out.scalar):
        return [used.takes]
    return place.singly(used.takes[:1] if read.output.out.scalar else used.takes)


def write_flow(grid: Grid, read: Read, made: StageUnits, to: Sequence[Sequence[Ints]]) -> Flow:
    """Pieces on their way from the producer to the receivers in `to`: sent once, they branch to all of them.

    Where a generator loads them, each part comes from the one that is nearest to its first unit.
    """
    out, producer = read.output.out, read.output.stage
    if producer.kind in ON_MESH:
        return place.spread_flow(made.gives[-1:] if out.scalar else made.gives, to, out.piece_bytes)
    count = max(map(len, to))
    first = np.concatenate([to[0][i * len(to[0]) // count][:1] for i in range(count)])
    return place.spread_flow(place.nearest_generators(grid, first), to, out.piece_bytes)


def read_flow(grid: Grid, read: Read, reader: Stage, used: StageUnits, pmus: Ints, port: PortCost) -> Flow:
    """What one firing of the reader takes out of the buffer's PMUs."""
    if not len(pmus) or (reader.kind == "lookup" and read.port == "table"):  # what is looked up leaves as the output
        return place.NOWHERE
    if reader.kind == "lookup" or (reader.kind == "compute" and port.read_bytes <= WORD_BYTES):
        return place.spread_flow(pmus, [[used.takes]], port.read_bytes)
    if reader.kind == "compute":
        return place.spread_flow(pmus, [_groups(used, reader, port)], port.read_bytes)
    return place.even_flow(pmus, place.nearest_generators(grid, pmus), port.read_bytes)


def token_flows(
    grid: Grid, producer: Stage, reader: Stage, made: StageUnits, used: StageUnits, pmus: Ints
) -> tuple[Flow, Flow]:
    """Control tokens of a channel: `done` from the producer to buffer and reader, and the credit back."""
    source = _master(grid, producer, made.gives[-1:], pmus)
    sink = _master(grid, reader, used.takes[:1], pmus)
    return (
        Flow(source, [np.concatenate([pmus, sink])], 1),
        Flow(sink, [np.concatenate([pmus, source])], 1),
    )


def _master(grid: Grid, stage: Stage, unit: Ints, pmus: Ints) -> Ints:
    """The unit that speaks for a stage; of generators the one nearest to the buffer."""
    return unit if stage.kind in ON_MESH or not len(pmus) else place.nearest_generators(grid, pmus[:1])
