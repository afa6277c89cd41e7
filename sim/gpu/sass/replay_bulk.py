"""Values that the TMA moves, and mbarriers: boxes are moved at once, swizzled as wide as their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.forms import Form
from sim.gpu.sass.replay_atomics import reduced
from sim.gpu.sass.tables import RANK_SHIFT, Map, Unit
from sim.gpu.sass.tiles import swizzled

if TYPE_CHECKING:
    from sim.gpu.sass.replay import Memory, WarpValues


_BULK_BYTES = 16
"""Unit of the size of UBLKCP and UBLKRED."""


@dataclass
class MbarrierValues:
    """An mbarrier: arrivals of a phase, those and the bytes that are missing, phases completed."""

    count: int
    pending: int
    missing: int = 0
    phase: int = 0

    @classmethod
    def of(cls, low: int) -> MbarrierValues:
        """As SYNCS.EXCH writes it: the complement of the count from bit 1 on."""
        count = (1 << 20) - (low >> 1 & 0xFFFFF) & 0xFFFFF
        return cls(count, count)

    def arrive(self, arrivals: int, expected_bytes: int) -> None:
        """Arrivals, with bytes to wait for (negative: that have come)."""
        self.pending -= arrivals
        self.missing += expected_bytes
        if self.pending == 0 and self.missing == 0:
            self.pending = self.count
            self.phase += 1


def _receivers(warp: WarpValues, form: Form, address: int) -> list[int]:
    """Ranks of the CTAs that receive a box: of a multicast those that a register names from bit 16 on."""
    if not form.sources:
        return [address >> RANK_SHIFT]
    named = int(warp.word(form.sources[0])[0]) >> 16 & 0xFFFF
    return [rank for rank in range(16) if named >> rank & 1]


def move_box(warp: WarpValues, form: Form, memory: Memory, maps: NDArray[np.int64], where: str) -> None:
    """UTMALDG, UTMASTG: elements outside of the tensor are 0, or left alone."""
    if form.opcode.unit is Unit.UTMAREDG:  # whose format its tensor map says
        raise InputError(f"check: {where}: its values are not computed")
    loads = form.opcode.unit is Unit.UTMALDG
    box, pointer = (operand.uniform for operand in form.addresses)
    address = int(warp.uniform[pointer]) | int(warp.uniform[pointer + 1]) << 32
    rows = maps[maps[:, Map.ADDRESS] == address]
    if not len(rows):
        raise InputError(f"{where}: no parameter at {address:#x} is a tensor map")
    tensor = rows[0]
    element, base = int(tensor[Map.ELEMENT]), int(tensor[Map.BASE])
    first = box + (2 if loads else 1)
    offsets, inside = np.zeros((1,), dtype=np.int64), np.ones((1,), dtype=bool)
    for d in range(form.dimensions):
        extent, pitch, count = (int(tensor[Map.DIMENSION + 3 * d + k]) for k in range(3))
        at = int(warp.uniform[first + d].astype(np.int32)) + np.arange(count)
        offsets = (at * pitch)[:, None] + offsets.reshape(1, -1)
        inside = ((at >= 0) & (at < extent))[:, None] & inside.reshape(1, -1)
        offsets, inside = offsets.reshape(-1), inside.reshape(-1)
    width = int(tensor[Map.DIMENSION + 2]) * element
    target = int(warp.uniform[box])
    shared = target & ((1 << RANK_SHIFT) - 1)
    linear = shared + np.arange(len(offsets) * element).reshape(-1, element)
    there = swizzled(linear, width)
    bytes_of = offsets[inside][:, None] + np.arange(element) + base
    places = memory.place(where, bytes_of[:, 0], element)[:, None] + np.arange(element)
    if loads:
        data = np.zeros((len(offsets), element), dtype=np.uint8)
        data[inside] = memory.content[places]
        barrier = int(warp.uniform[box + 1]) & ((1 << RANK_SHIFT) - 1)
        for rank in _receivers(warp, form, target):
            cta, _ = warp.cta.named(where, rank << RANK_SHIFT)
            cta.shared[there] = data
            cta.written[there] = True
            cta.mbarrier(where, barrier).arrive(0, -data.size)
    else:
        memory.content[places] = warp.cta.shared[there[inside]]


def copy_bulk(warp: WarpValues, form: Form, memory: Memory, where: str) -> None:
    """UBLKCP, UBLKRED: bytes that lie side by side, from or to shared memory."""
    if form.parts[1:3] == ("S", "S"):
        _copy_in_cluster(warp, form, where)
        return
    loads = form.parts[1] == "S"
    to, source = (operand.uniform for operand in form.addresses)
    shared_at, device = (to, source) if loads else (source, to)
    told = int(warp.word(form.sources[0])[0])
    size = (told & 0xFFFF) * _BULK_BYTES
    address = int(warp.uniform[device]) | int(warp.uniform[device + 1]) << 32
    place = int(memory.place(where, np.array([address]), size)[0])
    target = int(warp.uniform[shared_at])
    shared = target & ((1 << RANK_SHIFT) - 1)
    if shared + size > len(warp.cta.shared):
        end = len(warp.cta.shared)
        raise InputError(f"{where}: shared address {shared:#x} lies outside of the CTA's {end:#x} bytes")
    if not loads:
        stored = warp.cta.shared[shared : shared + size]
        if form.opcode.unit is Unit.UBLKRED:
            stored = _reduced(form, memory.content[place : place + size], stored)
        memory.content[place : place + size] = stored
        return
    barrier = int(warp.uniform[to + 1]) & ((1 << RANK_SHIFT) - 1)
    several = "MULTICAST" in form.parts
    for rank in [rank for rank in range(16) if told >> 16 + rank & 1] if several else [target >> RANK_SHIFT]:
        cta, _ = warp.cta.named(where, rank << RANK_SHIFT)
        cta.shared[shared : shared + size] = memory.content[place : place + size]
        cta.written[shared : shared + size] = True
        cta.mbarrier(where, barrier).arrive(0, -size)


def _copy_in_cluster(warp: WarpValues, form: Form, where: str) -> None:
    """Bytes of the CTA's shared memory to that of a CTA of the cluster, whose mbarrier counts them."""
    to, source = (operand.uniform for operand in form.addresses)
    size = (int(warp.word(form.sources[0])[0]) & 0xFFFF) * _BULK_BYTES
    own, first = warp.cta.named(where, int(warp.uniform[source]))
    cta, place = warp.cta.named(where, int(warp.uniform[to]))
    if max(first, place) + size > len(cta.shared) or own is not warp.cta:
        raise InputError(f"{where}: a shared address lies outside of the CTA's {len(cta.shared):#x} bytes")
    found = own.shared[first : first + size]
    if form.opcode.unit is Unit.UBLKRED:
        found = _reduced(form, cta.shared[place : place + size], found)
    cta.shared[place : place + size] = found
    cta.written[place : place + size] = True
    counts, barrier = warp.cta.named(where, int(warp.uniform[to + 1]))
    counts.mbarrier(where, barrier).arrive(0, -size)


def _reduced(form: Form, old: NDArray[np.uint8], given: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(reduced(form, old.tobytes(), given.tobytes()), dtype=np.uint8)
