"""Mappings of products on a TPU: sizes of tiles, order of the loops, and how much stays in the unified buffer.

A product [rows, depth] x [depth, columns] runs in blocks of `m` rows, which stream, and groups of `n` columns, which
rest in the array tile by tile. Sums of a block stay in the accumulators until they are whole: nothing brings them back
there, so that the loop over the depth runs inside those over blocks and, but for the columns of a group, over columns.
Of a vector product, and where inputs stay in the array, the operands have changed places.

Rows of a convolution are patches of images. What comes and stays are parts of the images (`part`, `held`), of which a
block has some positions; with nmk all blocks of a part meet a group before the next one. Weights come through the FIFO
for each block anew, whatever the order: the array has room for two tiles and the FIFO for a few, and a column of tiles
has to pass before a block's sums are whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from arch.errors import InputError
from arch.near import hint
from arch.tpu import TpuSpec
from workloads.tpu.choose import Config, Ranked, block_estimate, block_rows, doublings, merged
from workloads.tpu.emit import alignment, spread

ORDERS = ("mnk", "mkn", "nmk")
"""Loops, the outermost first. mnk: a column of tiles after the other; mkn: each slice of the depth meets all columns of
the group; nmk: all blocks meet a group before the next one."""

WORDS = ("halves", "whole", "8x16")

MOST = 8
"""Mappings of a search that tuning simulates, beside the usual ones."""


@dataclass(frozen=True)
class Product:
    """What is multiplied, for each batch: left [rows, depth] streams, right [depth, columns] rests as weights.
    gathered: rows are patches of images; what the unified buffer holds are parts of these (`workloads.tpu.conv`)."""

    what: str
    rows: int
    depth: int
    columns: int
    batch: int
    bits: int
    out_bits: int
    planes: int
    gathered: bool = False

    def pitch(self, spec: TpuSpec) -> int:
        """Bytes from one row of activations in the unified buffer to the next: whole tiles."""
        return -(-self.depth // spec.array.rows) * spec.array.rows * (self.bits // 8)

    def blocks(self, m: int) -> int:
        """Blocks of `m` rows of all batches."""
        return self.batch * -(-self.rows // m)

    def tiles(self, spec: TpuSpec, columns: int) -> int:
        """Columns of tiles of so many columns."""
        return -(-columns // spec.array.columns)


def candidates(spec: TpuSpec, p: Product, schedule: str, tuned: bool = False) -> Ranked:
    """Mappings with the estimate of their cycles, the best first; tuned: of all that are worth a simulation."""
    p = replace(p, bits=16) if "8x16" in schedule.split() else p
    asked = [word.removeprefix("arrays=") for word in schedule.split() if word.startswith("arrays=")]
    rest = " ".join(word for word in schedule.split() if not word.startswith("arrays=")) or "auto"
    counts = doublings(spec.array.count, 1)
    for text in asked:
        if text not in map(str, counts):
            raise InputError(f"schedule={schedule}: arrays={text}: one of {', '.join(map(str, counts))}")

    def on(count: int) -> Ranked:
        part = Config("", arrays=count).cut(spec)
        found = []
        for config in _mapped(part, p, rest, tuned):
            copies = _copies(spec, p, config)
            # Arrays stay idle where others would fetch the same weights once more.
            if asked or count == spec.array.count or _copies(part, p, config) < copies:
                named = replace(config, arrays=count if asked or copies > 1 else 0)
                found.append((named, estimate(part, p, config)))
        return found

    return merged(on, map(int, asked[-1:]) if asked else counts)


def _mapped(spec: TpuSpec, p: Product, schedule: str, tuned: bool) -> list[Config]:
    """Mappings on all arrays of a machine."""
    found = list(_usual(spec, p)) if schedule == "auto" else list(_written(spec, p, schedule))
    if schedule == "auto" and tuned:
        found += _ranked(spec, p, _searched(spec, p))[:MOST]
    return _ranked(spec, p, found)


def _copies(spec: TpuSpec, p: Product, config: Config) -> int:
    """Arrays that fetch the same weights, each for some rows of a block."""
    return len(spread(spec, min(config.m, p.rows), p.tiles(spec, config.n)))


def _ranked(spec: TpuSpec, p: Product, found: Iterable[Config]) -> list[Config]:
    """Each once, the best estimate first."""
    return sorted(dict.fromkeys(found), key=lambda config: estimate(spec, p, config))


def estimate(spec: TpuSpec, p: Product, config: Config) -> int:
    """Cycles: the longer of the matrix unit's work and of what crosses to the memory behind the unified buffer, the
    first block's way in and the last one's way out, which nothing hides."""
    block, blocks = config.m, -(-p.rows // config.m)
    cycles = block_estimate(spec, p.rows, p.depth, p.columns, p.bits, p.planes, block)
    groups = -(-p.columns // config.n)
    together = -(-p.tiles(spec, config.n) // spec.array.count) if config.order == "mkn" else 1
    if config.order == "mkn":
        # Sums of all columns of a group leave at its end.
        cycles += blocks * groups * block
    if p.gathered:
        return p.batch * cycles
    host = spec.unified_buffer.behind == "host"
    rate = (spec.pcie if host else spec.dram).bandwidth_bytes_per_s / spec.clock.boost_hz
    again = groups if config.order == "nmk" and config.held < blocks else 1
    row_in, row_out = p.depth * p.bits // 8, p.columns * p.out_bits // 8
    brought, taken = p.rows * row_in * again / rate, p.rows * row_out / rate
    wide = p.tiles(spec, p.columns)
    tiles = -(-p.depth // spec.array.rows) * p.planes * wide * len(spread(spec, min(block, p.rows), wide))
    if host and config.order == "nmk" and again == 1:
        # All rows come with the first group, and the results of the others after that.
        taken = max(brought, taken / groups) + taken * (groups - 1) / groups
    moved = max(brought, taken) if host else brought + taken + blocks * tiles * spec.tile_bytes / rate
    column = -(-p.depth // spec.array.rows) * p.planes * max(block, spec.array.rows)
    lead = max(0, block * row_in / rate - column * together)
    trail = block * min(p.columns, spec.array.columns * spec.array.count * together) * p.out_bits / 8 / rate
    return int(p.batch * max(cycles, moved) + lead + trail)


def nest(spec: TpuSpec, p: Product, config: Config) -> tuple[tuple[str, str, str], ...]:
    """The loops as mapping tools print them, the outermost first: memory, what it holds, loop."""
    array = spec.array
    blocks, groups = -(-p.rows // config.m), -(-p.columns // config.n)
    deep, wide = -(-p.depth // array.rows), p.tiles(spec, min(config.n, p.columns))
    outer = "host memory" if spec.unified_buffer.behind == "host" else "DRAM"
    m, n = f"m: {blocks} of {config.m} rows", f"n: {groups} of {config.n} columns"
    across = f", on {array.count} arrays" if array.count > 1 else ""
    inner = [f"n: {wide} of {array.columns} columns{across}", f"k: {deep * p.planes} of {array.rows}"]
    if config.order == "mkn":
        inner.reverse()
    over = [n, m] if config.order == "nmk" else [m, n]
    if p.batch > 1:
        over.insert(0, f"batch: {p.batch}")
    rows = [(outer, "activations, results", loop) for loop in over]
    blocks_held = f"{config.held} block{'s' if config.held > 1 else ''} of {config.m} x {p.depth} activations"
    together = -(-wide // array.count) if config.order == "mkn" else 1
    rows += [("unified buffer", blocks_held, inner[0])]
    rows += [("accumulators", f"{config.m * together} x {array.columns} sums", inner[1])]
    rows += [("array", f"{array.rows} x {array.columns} weights", f"m: {config.m} rows")]
    return tuple(rows)


def _usual(spec: TpuSpec, p: Product) -> Iterator[Config]:
    """Blocks that take half of the accumulators, the other half being read meanwhile, or all of them."""
    for whole in (False, True):
        yield _filled(spec, p, Config("tiled", block_rows(spec, p.rows, whole)))


def _searched(spec: TpuSpec, p: Product) -> Iterator[Config]:
    """Blocks that take all, half, a quarter or an eighth of the accumulators, in all orders of loops, some groups."""
    limit, wide = spec.accumulators.rows, p.tiles(spec, p.columns)
    for m in sorted({-(-p.rows // -(-p.rows // max(1, limit // part))) for part in (1, 2, 4, 8)}, reverse=True):
        for order in ORDERS:
            for group in (1, 2, 4, wide) if order != "mnk" else (wide,):
                n = min(p.columns, group * spec.array.count * spec.array.columns)
                alike = (order == "mkn" and group == 1) or (order == "nmk" and (n == p.columns or m == p.rows))
                config = _filled(spec, p, Config("tiled", m, n, order))
                if not alike and _refusal(spec, p, config) is None:
                    yield config


def _filled(spec: TpuSpec, p: Product, config: Config) -> Config:
    """A mapping with as many blocks held as its order has a use for, and with fewer rows where they do not fit."""
    config = replace(config, n=config.n or p.columns)
    if p.gathered:
        return config
    blocks = p.blocks(config.m)
    if config.order == "nmk" and config.n < p.columns and _row_bytes(spec, p, blocks) * config.m <= _room(spec):
        return replace(config, held=blocks)
    held = min(2, blocks)
    if _row_bytes(spec, p, held) * config.m <= _room(spec):
        return replace(config, held=held)
    fits = max(1, _room(spec) // _row_bytes(spec, p, 2))
    m = -(-p.rows // -(-p.rows // fits))
    return replace(config, m=m, held=min(2, p.blocks(m)))


def _row_bytes(spec: TpuSpec, p: Product, held: int) -> int:
    """Bytes of the unified buffer for each row of a block: activations, and results on their way."""
    return held * p.pitch(spec) + 2 * spec.array.count * spec.array.columns * p.out_bits // 8


def _room(spec: TpuSpec) -> int:
    """Bytes of the unified buffer but for what aligning areas may take."""
    return spec.unified_buffer.size_bytes - 8 * alignment(spec)


def _written(spec: TpuSpec, p: Product, schedule: str) -> Iterator[Config]:
    """What a schedule's text says; InputError for a wrong word. `tiled` alone: both usual mappings."""
    kind, *words = schedule.split()
    if kind != "tiled":
        raise InputError(
            f"schedule={schedule}: must be auto or tiled [halves|whole] [m=ROWS] [n=COLUMNS] [order=LOOPS] "
            "[held=BLOCKS] [part=ROWS] [8x16]; did you mean tiled?"
        )
    sizes: dict[str, int] = {}
    order = ORDERS[0]
    known = (*WORDS, "m=", "n=", "order=", "held=", *(("part=",) if p.gathered else ()))
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and word in WORDS:
            continue
        if name == "order":
            order = _order(schedule, value)
        elif name in ("m", "n", "held", "part") and f"{name}=" in known and re.fullmatch("[1-9][0-9]*", value):
            sizes[name] = int(value)
        else:
            raise InputError(f"schedule={schedule}: unknown word {word}, one of {', '.join(known)}{hint(word, known)}")
    wide = "8x16" in words
    wanted = [whole for whole, word in ((False, "halves"), (True, "whole")) if word in words] or [False, True]
    for m in [sizes["m"]] if "m" in sizes else [block_rows(spec, p.rows, whole) for whole in wanted]:
        asked = Config("tiled", m, sizes.get("n", p.columns), order, sizes.get("held", 0), sizes.get("part", 0), wide)
        config = asked if "held" in sizes else _filled(spec, p, asked)
        if sizes:
            config = replace(config, m=m if "m" in sizes else config.m)
            refused = _refusal(spec, p, config)
            if refused:
                raise InputError(f"schedule={schedule}: {refused}")
        yield config


def _order(schedule: str, text: str) -> str:
    """The order that begins as a text does."""
    found = [order for order in ORDERS if text and order.startswith(text)]
    if not found:
        raise InputError(
            f"schedule={schedule}: order={text}: one of {', '.join(ORDERS)}: sums stay in the accumulators until they "
            "are whole, so that k runs inside m"
        )
    return found[0]


def _refusal(spec: TpuSpec, p: Product, config: Config) -> str | None:
    """Why a mapping does not fit the machine or the product, if it does not."""
    array = spec.array
    if config.m > p.rows:
        return f"the product streams {p.rows} rows, m is 1 to {p.rows}"
    if config.n > p.columns or (config.n < p.columns and config.n % array.columns):
        nearest = min(p.columns, max(1, round(config.n / array.columns)) * array.columns)
        return f"groups are whole columns of tiles, {array.columns} each; nearest: {nearest}"
    if config.order == "mkn" and array.dataflow == "os":
        return "with array.dataflow=os sums stay in the cells until they are whole; nearest: mnk"
    together = -(-p.tiles(spec, config.n) // array.count) if config.order == "mkn" else 1
    if config.m * together > spec.accumulators.rows:
        most = max(1, spec.accumulators.rows // together)
        return f"a group takes {config.m * together} rows of accumulators, there are {spec.accumulators.rows}; " \
               f"nearest: m={most}"  # fmt: skip
    if p.gathered:
        return None
    blocks = p.blocks(config.m)
    if config.held > blocks:
        return f"the product has {blocks} blocks of {config.m} rows"
    need = config.m * _row_bytes(spec, p, config.held)
    if need > _room(spec):
        return (
            f"{config.held} blocks of {config.m} rows and their results take {need:,} B of the unified buffer, "
            f"{_room(spec):,} B are free; nearest: m={max(1, _room(spec) // _row_bytes(spec, p, config.held))}"
        )
    return None
