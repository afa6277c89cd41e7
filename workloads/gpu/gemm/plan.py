"""Which output tiles, and which part of k, each CTA (or cluster) computes, and in which order.

Expressions of the tile language.

One plan covers one tile a CTA, persistent CTAs, split-K and stream-K (Osama et al., PPoPP 2023): the first
`shared_tiles` tiles are a line of k steps cut into equal pieces, one a worker; the others are whole tiles dealt out
in turn. A worker is a CTA or a cluster of CTAs. A tile's part that starts at k = 0 belongs to its owner, who adds the
parts of the workers that follow. They never wait for anybody, so that workers that start in order cannot lock each
other up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sim.gpu.language import Const, Expr, IntLike, RoleBuilder, as_expr, maximum, minimum


@dataclass(frozen=True)
class Tile:
    """Coordinates of one output tile: batch, and its position in tiles along m and n."""

    batch: Expr
    m: Expr
    n: Expr


@dataclass(frozen=True)
class Unit:
    """A worker's piece of one tile.

    k_begin, k_trips: its first step of k, and how many it has.
    first: steps of k that this worker did before.
    index: pieces that it did before.
    owner: 1 if the piece starts at k = 0.
    peers: workers after this one that hold the rest of the tile's steps.
    """

    tile_index: Expr
    tile: Tile
    k_begin: Expr
    k_trips: Expr
    first: Expr
    index: Expr
    owner: Expr
    peers: Expr


def stream_tiles(tiles: int, resident: int) -> int:
    """Tiles that stream-K cuts among `resident` workers; 0 if whole tiles fill all waves.

    The last, partial wave and one full wave before it are cut evenly (two-tile stream-K, as in CUTLASS): no piece is
    smaller than a tile, and the whole tiles that follow share operands in time.
    """
    rest = tiles % resident
    return min(tiles, rest + resident) if rest else 0


def _where(condition: Expr, yes: IntLike, no: IntLike) -> Expr:
    """`yes` where the condition is 1, else `no`."""
    return condition * yes + (1 - condition) * no


class Place(NamedTuple):
    """A tile's matrix of the batch, row and column."""

    batch: int
    m: int
    n: int


@dataclass(frozen=True)
class Plan:
    """How the output tiles are dealt to workers, which are CTAs or clusters.

    tiles_m, tiles_n, batch: output tiles, each of one worker.
    k_steps: steps of k of a tile.
    workers: those that are launched.
    shared_tiles: tiles whose steps of k are cut into equal pieces.
    group: tiles along m (or n) that are done together for the sake of the L2.
    along_n: groups are of columns and run along m.
    """

    tiles_m: int
    tiles_n: int
    batch: int
    k_steps: int
    workers: int
    shared_tiles: int = 0
    group: int = 1
    along_n: bool = False

    @property
    def tiles(self) -> int:
        """Output tiles."""
        return self.tiles_m * self.tiles_n * self.batch

    def tile(self, index: Expr) -> Tile:
        """Grouped order: within a group `group` tiles of one direction, then the next step of the other one."""
        across, along = (self.tiles_n, self.tiles_m) if self.along_n else (self.tiles_m, self.tiles_n)
        a_tile = across * along
        batch = index // a_tile if self.batch > 1 else Const(0)
        rest = index % a_tile if self.batch > 1 else index
        group = min(self.group, across)
        position, step = self._grouped(rest, across, along, group)
        return Tile(batch, step, position) if self.along_n else Tile(batch, position, step)

    def firsts(self, count: int) -> list[Place]:
        """First tiles of the first `count` workers."""
        across, along = (self.tiles_n, self.tiles_m) if self.along_n else (self.tiles_m, self.tiles_n)
        group = min(self.group, across)
        found = []
        for index in range(count):
            batch, inner = divmod(index, across * along)
            first, rest = divmod(inner, group * along)
            step, position = divmod(rest, min(group, across - first * group))
            position += first * group
            found.append(Place(batch, step, position) if self.along_n else Place(batch, position, step))
        return found

    @staticmethod
    def _grouped(rest: Expr, across: int, along: int, group: int) -> tuple[Expr, Expr]:
        full, last = across // group, across % group
        position = rest // (group * along) * group + rest % group
        step = rest % (group * along) // group
        if last == 0:
            return position, step
        # The last group is narrower: its own closed form, chosen by comparison.
        beyond = rest - full * group * along
        in_last = beyond >= 0
        inner = maximum(beyond, 0)
        return _where(in_last, full * group + inner % last, position), _where(in_last, inner // last, step)

    def steps_done(self, worker: Expr) -> Expr:
        """K steps that `worker` does in all."""
        total = self._shared_begin(worker + 1) - self._shared_begin(worker)
        return total + self._whole_tiles(worker) * self.k_steps

    def pieces(self, worker: Expr) -> Expr:
        """Pieces that `worker` does in all."""
        return self._shared_pieces(worker) + self._whole_tiles(worker)

    def _shared_begin(self, worker: IntLike) -> Expr:
        return as_expr(worker) * (self.shared_tiles * self.k_steps) // self.workers

    def _shared_pieces(self, worker: Expr) -> Expr:
        if not self.shared_tiles:
            return Const(0)
        begin, end = self._shared_begin(worker), self._shared_begin(worker + 1)
        return (begin < end) * ((end - 1) // self.k_steps - begin // self.k_steps + 1)

    def _whole_tiles(self, worker: Expr) -> Expr:
        rest = self.tiles - self.shared_tiles
        return (rest - worker + (self.workers - 1)) // self.workers

    def unit(self, worker: Expr, index: Expr) -> Unit:
        """Piece number `index` of `worker`."""
        steps = self.k_steps
        if not self.shared_tiles:
            tile = worker + index * self.workers
            return Unit(tile, self.tile(tile), Const(0), Const(steps), index * steps, index, Const(1), Const(0))
        begin, end, pieces = self._shared_begin(worker), self._shared_begin(worker + 1), self._shared_pieces(worker)
        cut = index < pieces
        tile = _where(cut, begin // steps + index, self.shared_tiles + worker + (index - pieces) * self.workers)
        k_begin = cut * maximum(begin - tile * steps, 0)
        k_end = _where(cut, minimum(end - tile * steps, steps), steps)
        first = _where(cut, maximum(tile * steps - begin, 0), end - begin + (index - pieces) * steps)
        owner = k_begin.equals(0)
        # Worker w begins at floor(w * total / workers): the one that holds step x is ceil((x + 1) * workers / total)
        # - 1.
        total = self.shared_tiles * steps
        last = ((tile + 1) * steps * self.workers - 1) // total
        peers = cut * owner * (last - worker)
        return Unit(tile, self.tile(tile), k_begin, k_end - k_begin, first, index, owner, peers)

    @contextmanager
    def units(
        self, role: RoleBuilder, worker: Expr, first: int = 0, stride: int = 1, name: str = "unit"
    ) -> Iterator[Unit]:
        """Writes the loop over the pieces `first`, `first + stride`, ... of a worker."""
        if stride == 1 and self.workers == self.tiles and not self.shared_tiles:
            yield self.unit(worker, Const(0))
            return
        pieces = self.pieces(worker)
        trips = pieces if stride == 1 else maximum(pieces - first + (stride - 1), 0) // stride
        with role.loop(name, trips, first, stride) as index:
            yield self.unit(worker, index)
