"""Where a section's units stand on the mesh, and which links its channels use.

PCUs and PMUs alternate over the grid; address generators stand at both outer edges. Stages take PCUs in a serpentine
along the columns, in an order that a seeded annealing improves by bytes times distance; a buffer's PMUs are the free
ones nearest to the PCUs that read them. Routes go along the row first, then along the column; what many units need is
sent once and branches (multicast).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from arch.rdu import RduSpec

FIGURES = (
    "agcu.count",
    "dies.count",
    "mesh.rows",
    "pcu.count",
    "pmu.count",
    "tiles.columns",
    "tiles.rows",
)
"""Figures of a preset that this module reads."""

Ints = NDArray[np.int64]
EAST, WEST, SOUTH, NORTH = range(4)
_SEED = 40
_MOVES = 400


@dataclass(frozen=True)
class Grid:
    """Units of the socket: coordinates (row, column) of PCUs, PMUs and address generators."""

    rows: int
    columns: int
    pcus: Ints
    pmus: Ints
    generators: Ints
    dies: int
    tile_rows: tuple[int, ...] = ()
    """First row of each tile below another one."""
    tile_columns: tuple[int, ...] = ()
    """First column of each tile to the right of another one of its die."""

    @property
    def borders(self) -> NDArray[np.bool_]:
        """Links between tiles of a die, shape (4, rows, columns)."""
        found = np.zeros((4, self.rows, self.columns), bool)
        for row in self.tile_rows:
            found[SOUTH, row - 1] = found[NORTH, row] = True
        for column in self.tile_columns:
            found[EAST, :, column - 1] = found[WEST, :, column] = True
        return found

    def tiles_of(self, units: Ints | NDArray[np.float64]) -> Ints:
        """In how manieth tile, from the top and from the left, each unit (row, column) stands. A border of dies is
        none of tiles: the last tile of a die and the first of the next have the same number from the left."""
        return np.column_stack(
            [np.searchsorted(at, units[:, i], "right") for i, at in enumerate((self.tile_rows, self.tile_columns))]
        )

    def tile_of(self, units: Ints) -> Ints:
        """The number of each unit's tile: die by die, in each by rows of tiles."""
        down, right = self.tiles_of(units).T
        each = self.columns // self.dies
        die = units[:, 1] // each
        across = len(self.tile_columns) // self.dies + 1
        return (die * (len(self.tile_rows) + 1) + down) * across + right - die * (across - 1)

    @cached_property
    def ways(self) -> tuple[Ints, Ints]:
        """From each row, and from each column, to every PMU: links along the column and along the row."""
        row, column = self.pmus.T
        return np.abs(np.arange(self.rows)[:, None] - row), np.abs(np.arange(self.columns)[:, None] - column)

    @cached_property
    def ways_inside(self) -> tuple[Ints, Ints]:
        """The same, and of equals those with fewer borders of tiles come first: each link counts for more than all
        borders."""
        count = max(self.rows, self.columns)
        line = np.column_stack([np.minimum(np.arange(count), end - 1) for end in (self.rows, self.columns)])
        own, tiles = self.tiles_of(line), self.tiles_of(self.pmus)
        weight = 2 * int(tiles.max()) + 1
        found = [weight * way + np.abs(own[: len(way), i, None] - tiles[:, i]) for i, way in enumerate(self.ways)]
        return found[0], found[1]

    @property
    def links(self) -> int:
        """Links of the mesh; link (direction, row, column) leaves the unit at (row, column)."""
        return 4 * self.rows * self.columns


def grid_of(spec: RduSpec) -> Grid:
    """The checkerboard of a machine, each kind in serpentine order along the columns."""
    counts = spec.pcu.count, spec.pmu.count, spec.agcu.count
    tiles = tuple(spec.tile_rows), tuple(spec.tile_columns)
    return _grid(spec.mesh.rows, spec.columns, *counts, spec.dies.count, *tiles)


@lru_cache(maxsize=16)
def _grid(
    rows: int,
    columns: int,
    pcu_count: int,
    pmu_count: int,
    generators: int,
    dies: int,
    tile_rows: tuple[int, ...],
    tile_columns: tuple[int, ...],
) -> Grid:
    each = columns // dies
    pcus: list[tuple[int, int]] = []
    pmus: list[tuple[int, int]] = []
    for die in range(dies):
        here = range(die * each, (die + 1) * each)
        order = [(r if c % 2 == 0 else rows - 1 - r, c) for c in here for r in range(rows)]
        own_pcus = pcu_count * (die + 1) // dies - pcu_count * die // dies
        own_pmus = min(-((len(pmus) - pmu_count) // (dies - die)), len(order) - own_pcus)
        pairs = min(own_pcus, own_pmus)
        pmus += order[: 2 * pairs : 2]
        pcus += order[1 : 2 * pairs : 2]
        # What one kind has more of stands behind the checkerboard, which keeps its rows.
        (pcus if own_pcus > pairs else pmus).extend(order[2 * pairs : own_pcus + own_pmus])
    half = generators // 2
    edge = [(i * rows // half, column) for column in (0, columns - 1) for i in range(half)]
    return Grid(rows, columns, np.array(pcus), np.array(pmus), np.array(edge), dies, tile_rows, tile_columns)


def order_of(sizes: Sequence[int], edges: Sequence[tuple[int, int, int]]) -> list[int]:
    """An order of stages along the serpentine in which edges (from, to, bytes) are short.

    Annealing over exchanges and moves, from the given order, on integers; the generator is seeded.
    """
    order = list(range(len(sizes)))
    if len(order) < 3:
        return order

    def length(candidate: list[int]) -> int:
        position, at = [0] * len(sizes), 0
        for stage in candidate:
            position[stage] = 2 * at + sizes[stage]
            at += sizes[stage]
        return sum(size * abs(position[a] - position[b]) for a, b, size in edges)

    rng = np.random.Generator(np.random.PCG64(_SEED))
    draws = rng.integers(0, len(order), (_MOVES, 2)).tolist()
    best, now = list(order), list(order)
    best_length = now_length = length(order)
    for move, (i, j) in enumerate(draws):
        candidate = list(now)
        candidate.insert(j, candidate.pop(i))
        found = length(candidate)
        # A worse order is taken while it is within a share that shrinks to nothing.
        if found <= now_length + now_length * (_MOVES - 2 * move) // (10 * _MOVES):
            now, now_length = candidate, found
            if found < best_length:
                best, best_length = candidate, found
    return best


def nearest_free(free: Ints, targets: Ints, grid: Grid, *, inside: bool = True) -> Ints:
    """For each target (row, column) the number of the nearest PMU that is still free; takes it.

    inside: of several as near, the one with the fewest borders of tiles between.
    """
    chosen = np.empty(len(targets), np.int64)
    rows, columns = grid.ways_inside if inside else grid.ways
    taken = np.where(free == 0, np.int64(1) << 40, 0)
    for i, (row, column) in enumerate(targets):
        chosen[i] = int(np.argmin(rows[row] + columns[column] + taken))
        taken[chosen[i]] = 1 << 40
    free[chosen] = 0
    return chosen


@dataclass
class Flow:
    """Bytes from units to units: sources[i] sends `size_bytes` to every unit of targets[i], once on shared links."""

    sources: Ints
    targets: list[Ints]
    size_bytes: float


NOWHERE = Flow(np.zeros((1, 2), np.int64), [np.zeros((1, 2), np.int64)], 0)
"""What stays where it is."""


def even_flow(sources: Ints, targets: Ints, size_bytes: int) -> Flow:
    """A tile cut in equal parts, each from one source to one target."""
    return spread_flow(sources, [singly(targets)], size_bytes)


def spread_flow(sources: Ints, receivers: Sequence[Sequence[Ints]], size_bytes: int) -> Flow:
    """A tile that all `receivers` get, each cut in parts of its own that go to all units of the part."""
    count = max(len(sources), *map(len, receivers))
    chosen = [np.concatenate([parts[i * len(parts) // count] for parts in receivers]) for i in range(count)]
    return Flow(sources[np.arange(count) * len(sources) // count], chosen, size_bytes / count)


def singly(units: Ints) -> list[Ints]:
    """Each unit as a group of its own."""
    return [unit[None] for unit in units]


def link_bytes(grid: Grid, flow: Flow) -> NDArray[np.float64]:
    """Bytes on each link, shape (4, rows, columns).

    Ways are counted by their ends: one more from the unit where a stretch of links begins, one less behind its end.
    """
    targets = np.concatenate(flow.targets)
    number = np.repeat(np.arange(len(flow.sources)), [len(some) for some in flow.targets])
    begin = np.zeros((4, grid.rows + 1, grid.columns + 1), np.int64)
    rows, columns = flow.sources.T
    first = np.concatenate([[0], np.flatnonzero(np.diff(number)) + 1])
    right = np.maximum(np.maximum.reduceat(targets[:, 1], first), columns)
    left = np.minimum(np.minimum.reduceat(targets[:, 1], first), columns)
    np.add.at(begin, (EAST, rows, columns), 1)
    np.add.at(begin, (EAST, rows, right), -1)
    np.add.at(begin, (WEST, rows, left + 1), 1)
    np.add.at(begin, (WEST, rows, columns + 1), -1)
    # A column that several targets of a source share is walked once, to the farthest of them on either side.
    keys, group = np.unique(number * grid.columns + targets[:, 1], return_inverse=True)
    at, start = keys % grid.columns, rows[keys // grid.columns]
    low, high = start.copy(), start.copy()
    np.minimum.at(low, group, targets[:, 0])
    np.maximum.at(high, group, targets[:, 0])
    np.add.at(begin, (SOUTH, start, at), 1)
    np.add.at(begin, (SOUTH, high, at), -1)
    np.add.at(begin, (NORTH, low + 1, at), 1)
    np.add.at(begin, (NORTH, start + 1, at), -1)
    begin[EAST : WEST + 1] = begin[EAST : WEST + 1].cumsum(axis=2)
    begin[SOUTH : NORTH + 1] = begin[SOUTH : NORTH + 1].cumsum(axis=1)
    return begin[:, : grid.rows, : grid.columns] * np.float64(flow.size_bytes)


def hops(flow: Flow) -> int:
    """Links on the longest way of a flow."""
    sources, targets = _ends(flow)
    return int(np.abs(targets - sources).sum(axis=1).max())


def borders(grid: Grid, flow: Flow) -> int:
    """Borders between tiles on the way of a flow that crosses the most."""
    sources, targets = _ends(flow)
    return int(np.abs(grid.tiles_of(targets) - grid.tiles_of(sources)).sum(axis=1).max())


def crosses_dies(flow: Flow, spec: RduSpec) -> bool:
    """Whether any of its ways leads from one die to another."""
    sources, targets = _ends(flow)
    each = spec.columns // spec.dies.count
    return bool((targets[:, 1] // each != sources[:, 1] // each).any())


def _ends(flow: Flow) -> tuple[Ints, Ints]:
    """Where each way begins and ends."""
    return np.repeat(flow.sources, [len(targets) for targets in flow.targets], axis=0), np.concatenate(flow.targets)


def nearest_generators(grid: Grid, units: Ints) -> Ints:
    """For each unit the coordinates of its address generator: at the nearer edge, in the nearest row."""
    half = len(grid.generators) // 2
    right = 2 * units[:, 1] >= grid.columns
    return grid.generators[right * half + np.minimum(units[:, 0] * half // grid.rows, half - 1)]
