"""The L1 data cache of an SM: a tag a line, sectors valid one by one; stores go through it and leave their lines."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from arch.errors import InputError
from sim.engine.clock import cycles_to_ticks, transfer_ticks
from sim.engine.jit import inner
from sim.engine.prefetch import prefetch
from sim.engine.search import TAGS, find_tag
from sim.gpu.units.chip import Part
from sim.gpu.units.sectors import full_mask
from sim.memory.ahead import LINE, whole_vectors
from sim.memory.hashing import divide, product, reciprocal
from sim.memory.replacement import MAX_WAYS, fill, policy_number, touch, victim

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


SECTORS = 0xF  # of a line
_PART_BYTES = 32  # of a line: what masks of requests count in; a sector is one part, two or four
READY_SHIFT = 4  # a line's word: mask of the valid sectors, ready tick above it

FIGURES = (
    "l1.size",
    "l1.reserved",
    "l1.ways",
    "l1.replacement",
    "l1.line",
    "l1.sector",
    "l1.hit_latency",
    "l1.bandwidth",
    "l1.miss_queue",
)


class L1(IntEnum):
    """Columns of an SM's row."""

    NEXT_MISS = 18  # entry of the miss queue that was taken longest ago


class L1Figure(IntEnum):
    """Parameters of the L1."""

    SETS = Part.L1
    WAYS = Part.L1 + 1
    HIT_LATENCY = Part.L1 + 2
    SECTOR = Part.L1 + 3  # ticks 32 B on its data path
    MISS_QUEUE = Part.L1 + 4  # entries; as many stores
    SET_MULTIPLIER = Part.L1 + 5  # to divide by SETS (`sim.memory.hashing.divide`)
    SET_SHIFT = Part.L1 + 6
    REPLACEMENT = Part.L1 + 7  # a policy of `sim.memory.replacement`
    FILLS = Part.L1 + 8  # by mask of a line's parts of 32 B, the parts of the sectors that hold them: 16 nibbles


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`L1Figure`. Raises InputError for ways that a word of the replacement order cannot hold."""
    l1 = spec.l1
    if l1.ways > MAX_WAYS:
        raise InputError(f"l1.ways={l1.ways}: the L1 model takes 1 to {MAX_WAYS}; the nearest is {MAX_WAYS}")
    # The driver leaves to shared memory what as many CTAs as fit need, also where the grid has fewer.
    size_bytes = l1.size_bytes - l1.reserved_bytes - launch.held.ctas * launch.shared_bytes
    sets = max(1, size_bytes // (l1.ways * l1.line_bytes))
    multiplier, shift = reciprocal(sets)
    return {
        L1Figure.SETS: sets,
        L1Figure.WAYS: l1.ways,
        L1Figure.HIT_LATENCY: cycles_to_ticks(l1.hit_latency_cycles),
        L1Figure.SECTOR: transfer_ticks(_PART_BYTES, l1.bandwidth_bytes_per_cycle),
        L1Figure.MISS_QUEUE: l1.miss_queue,
        L1Figure.SET_MULTIPLIER: multiplier,
        L1Figure.SET_SHIFT: shift,
        L1Figure.REPLACEMENT: policy_number(l1.replacement),
        L1Figure.FILLS: fills(l1.sector_bytes),
    }


def fills(sector_bytes: int) -> int:
    """`L1Figure.FILLS` of sectors of 32, 64 or 128 B, as an int64."""
    parts = sector_bytes // _PART_BYTES
    sectors = [((1 << parts) - 1) << first for first in range(0, 4, parts)]
    masks = [sum(sector for sector in sectors if sector & mask) for mask in range(16)]
    table = sum(filled << 4 * mask for mask, filled in enumerate(masks))
    return table - (1 << 64) if table >> 63 else table


AS_ASKED = fills(_PART_BYTES)
"""Of loads without a prefetch size: the L2 fetches what they ask for."""


@inner(inline=True)
def whole_sectors(table, mask):
    """The parts of a line in sectors of which a mask holds any part. table: `L1Figure.FILLS`."""
    return (table >> (mask << 2)) & SECTORS


@inner(inline=True)
def locate_in_l1(p, st, sm, lines, count):
    """Sets in the L1 of `sm` of the first `count` lines (numbers, CHUNK of them), which the host is asked for."""
    sets, multiplier, shift = p[L1Figure.SETS], p[L1Figure.SET_MULTIPLIER], p[L1Figure.SET_SHIFT]
    first = sm * sets
    ways = p[L1Figure.WAYS]
    for k in range(whole_vectors(count)):  # as in `l2_prefetch`
        line = lines[LINE, k]
        mixed = line ^ (line >> 7)
        st.l1_ahead[k] = first + mixed - product(divide(mixed, multiplier, shift), sets)
    for k in range(count):
        prefetch(st.l1_tags, st.l1_ahead[k] * TAGS)
        prefetch(st.l1_lines, st.l1_ahead[k] * ways)
        prefetch(st.l1_order, st.l1_ahead[k])


@inner(inline=True)
def find_line(st, policy, ways, cache_set, line):
    """Way of a line in a set of an L1 with `ways` and a replacement policy, allocated for it if need be."""
    order = st.l1_order[cache_set]
    way = find_tag(st.l1_tags, cache_set * TAGS, line)
    if way < 0:
        way = victim(policy, order, ways)
        st.l1_order[cache_set] = fill(policy, order, ways, way)
        st.l1_tags[cache_set * TAGS + way] = line
        st.l1_lines[cache_set, way] = 0
    else:
        st.l1_order[cache_set] = touch(policy, order, ways, way)
    return way


@inner(inline=True)
def write_line(st, policy, ways, table, cache_set, address, end, t):
    """A store to [address, end) of one line goes through an L1, which keeps it; sectors written whole are valid.

    table: `L1Figure.FILLS`."""
    way = find_line(st, policy, ways, cache_set, address >> 7)
    word = st.l1_lines[cache_set, way]
    written = SECTORS ^ whole_sectors(table, SECTORS ^ full_mask(address, end))
    valid = (word & SECTORS) | written
    st.l1_lines[cache_set, way] = (max(word >> READY_SHIFT, t) << READY_SHIFT) | valid
