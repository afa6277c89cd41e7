"""Refuses programs that cannot work before anything runs: sizes, missing weights, and accesses that nothing orders.

Orders are those of `sim.tpu.program`: a unit's own instructions, `Sync`, and the accumulators' interlock. An access to
the unified buffer that is ordered only by lucky timing is an error, whatever the timing would be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from arch.arguments import shown, whole
from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.areas import Area, overlap, reads, writes
from sim.tpu.program import (
    ACTIVATIONS,
    ELEMENTWISE,
    VECTOR_UNIT,
    Activate,
    Image,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    Program,
    ReadHostMemory,
    ReadWeights,
    Sync,
    Vector,
    WriteHostMemory,
    carriers,
    units,
    wrong,
)

FIGURES = (
    "accumulators.rows",
    "array.columns",
    "array.count",
    "array.dataflow",
    "array.operands",
    "array.rows",
    "dram.size",
    "unified_buffer.size",
)
"""Figures of a preset that this module reads."""


@dataclass
class _Buffer:
    """Who wrote and who read each granule of the unified buffer last: numbers of a unit's instructions, 0: nobody."""

    granule: int
    written_by: NDArray[np.int32]
    written: NDArray[np.int32]
    read: NDArray[np.int32]

    def granules(self, area: Area) -> NDArray[np.int64] | slice:
        """Numbers of the granules that an area touches."""
        if area.rows == 1 or area.width == area.pitch:
            return slice(area.address // self.granule, -(-area.end // self.granule))
        first = area.address + area.pitch * np.arange(area.rows)
        width = (area.address % self.granule + area.width + 2 * self.granule - 2) // self.granule
        found = first[:, None] // self.granule + np.arange(width)
        inside = found * self.granule < (first + area.width)[:, None]
        found_inside: NDArray[np.int64] = found[inside]
        return found_inside


@dataclass
class _Order:
    """What each unit knows to have ended: row u, column v: instructions of v that have ended before u's next."""

    known: NDArray[np.int64]
    history: list[list[NDArray[np.int64]]] = field(default_factory=list)

    def learn(self, unit: int, other: int, count: int) -> None:
        """`unit` has waited for `count` instructions of `other`, and so for what those had waited for."""
        if count > self.known[unit, other]:
            np.maximum(self.known[unit], self.history[other][count - 1], out=self.known[unit])
            self.known[unit, other] = max(self.known[unit, other], count)


def verify(program: Program, spec: TpuSpec) -> None:
    """InputError for the first instruction that is wrong, with its number."""
    _check_numbers(program)
    spec = program.part(spec)
    names = units(spec)
    read, write = carriers(spec)
    index = {name: i for i, name in enumerate(names)}
    order = _Order(np.zeros((len(names), len(names)), dtype=np.int64), [[] for _ in names])
    buffer = _buffer(program, spec, len(names))
    issued = [0] * len(names)
    tiles = [0] * spec.array.count
    loaded: list[tuple[int, int, int]] = []  # first and last byte of weight memory that the host wrote, and when
    sent: list[tuple[int, int, int]] = []  # address and size of host memory that the chip wrote, and when
    passed: dict[str, deque[tuple[int, Area]]] = {
        read: deque(),
        write: deque(),
    }  # what each took from there or put there
    worked: list[tuple[int, int, int]] = []  # the same of pieces of work of the host
    rows = np.zeros((spec.array.count, spec.accumulators.rows), dtype=bool)
    users = np.zeros((2, spec.array.count, spec.accumulators.rows), dtype=np.int64)
    for number, i in enumerate(program.instructions):
        if isinstance(i, Sync):
            for name in (i.waiter, i.after):
                if name not in index:
                    raise wrong(number, i, f"there is no unit {name}, one of {', '.join(names)}")
            order.learn(index[i.waiter], index[i.after], issued[index[i.after]])
            continue
        if not i.unit:
            continue
        if getattr(i, "array", 0) >= spec.array.count:
            raise wrong(number, i, f"{spec.name} has array.count = {spec.array.count}, arrays count from 0")
        if i.unit not in index:
            raise wrong(number, i, f"{spec.name} has unified_buffer.behind = {spec.unified_buffer.behind}")
        unit = index[i.unit]
        _check_fields(number, i, program, spec)
        if isinstance(i, ReadWeights):
            tiles[i.array] += i.repeat
            end = i.address + i.repeat * spec.tile_bytes
            count = max((c for first, last, c in loaded if first < end and i.address < last), default=0)
            _need(number, i, order, index, i.unit, read, count)
        if isinstance(i, ReadHostMemory) and i.weights:
            loaded.append((i.address, i.address + (i.rows - 1) * i.pitch + i.row_bytes, issued[unit] + 1))
        if isinstance(i, InterruptHost) and i.work:
            work = program.host_work[i.work]
            _need(number, i, order, index, "host", write, _latest(sent, *work.reads))
            worked.append((*work.writes, issued[unit] + 1))
        if isinstance(i, ReadHostMemory | WriteHostMemory):
            size = (i.rows - 1) * i.host_pitch + i.row_bytes
            taken, carrier = Area(i.host, i.rows, i.row_bytes, i.host_pitch), write if i.unit == read else read
            before = _unordered(passed[carrier], taken, int(order.known[unit, index[carrier]]))
            _need(number, i, order, index, i.unit, carrier, before)
            passed[i.unit].append((issued[unit] + 1, taken))
            if isinstance(i, WriteHostMemory):
                sent.append((i.host, size, issued[unit] + 1))
            else:
                _need(number, i, order, index, read, "host", _latest(worked, i.host, size))
        if isinstance(i, MatrixMultiply | Activate):
            area = slice(i.acc, i.acc + i.rows)
            matrix = isinstance(i, MatrixMultiply)
            other = index["activation"] if matrix else index[f"matrix{i.array}"]
            # The hardware holds an instruction back until the last other user of its accumulators has ended.
            order.learn(unit, other, int(users[int(matrix), i.array, area].max()))
            users[int(not matrix), i.array, area] = issued[unit] + 1
            if isinstance(i, MatrixMultiply):
                tiles[i.array] -= i.repeat * i.switch
                if tiles[i.array] < 0:
                    raise wrong(number, i, "takes a weight tile that no read_weights before it fetches")
                if i.accumulate and not rows[i.array, area].all():
                    raise wrong(number, i, f"adds to accumulator {_first(~rows[i.array, area]) + i.acc}, never written")
                rows[i.array, area] = True
            elif not rows[i.array, area].all():
                raise wrong(number, i, f"reads accumulator {_first(~rows[i.array, area]) + i.acc}, never written")
        _check_buffer(number, i, unit, issued[unit] + 1, names, buffer, order)
        issued[unit] += 1
        order.known[unit, unit] = issued[unit]
        order.history[unit].append(order.known[unit].copy())


def _check_numbers(program: Program) -> None:
    """Refuses what is no instruction and fields that are no whole numbers of at least 0."""
    for number, i in enumerate(program.instructions):
        if not isinstance(i, Instruction):
            raise InputError(f"instruction {number}: {shown(i)} is none")
        image = getattr(i, "image", None)
        for part in (i, image) if isinstance(image, Image) else (i,):
            for one in fields(part):
                value = getattr(part, one.name)
                where = f"instruction {number} ({i.NAME}): {one.name}"
                if one.type == "int":
                    whole(where, value)
                elif one.type == "str" and not isinstance(value, str):
                    raise InputError(f"{where}={shown(value)}: must be a word")
                elif one.type == "Image" and not isinstance(value, Image):
                    raise InputError(f"{where}={shown(value)}: must be an image")
    for name in ("host_bytes", "weight_bytes"):
        whole(f"program {program.name}: {name}", getattr(program, name))


def _latest(areas: list[tuple[int, int, int]], address: int, size: int) -> int:
    """Number of the last access among `areas` that overlaps `size` bytes at `address`; 0: none."""
    return max((count for a, s, count in areas if a < address + size and address < a + s), default=0)


def _unordered(passed: deque[tuple[int, Area]], area: Area, known: int) -> int:
    """Number of the last access to what `area` overlaps of which a unit that knows of `known` does not know; 0: none.
    Those of which it knows are forgotten: it never needs them again."""
    while passed and passed[0][0] <= known:
        passed.popleft()
    return max((count for count, one in passed if overlap(one, area)), default=0)


def _need(
    number: int, i: Instruction, order: _Order, index: dict[str, int], waiter: str, after: str, count: int
) -> None:
    """InputError unless `waiter` knows that `count` instructions of `after` have ended."""
    if order.known[index[waiter], index[after]] < count:
        raise wrong(number, i, f"may come before {after} has ended; missing: sync waiter={waiter} after={after}")


def _buffer(program: Program, spec: TpuSpec, count: int) -> _Buffer:
    """The map, as coarse as the program's addresses and pitches allow: every area starts with a granule of its own."""
    areas = [area for i in program.instructions for area in (*reads(i), *writes(i))]
    numbers = {n for area in areas for n in (area.address, area.pitch if area.rows > 1 else 0)}
    granule = max(1, int(np.gcd.reduce(sorted(numbers))) if numbers else 1)
    size = -(-spec.unified_buffer.size_bytes // granule)
    shape = (size,)
    buffer = _Buffer(granule, np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros((count, size), np.int32))
    for address, length in program.resident:
        buffer.written[address // granule : -(-(address + length) // granule)] = -1  # before anything else
    return buffer


def _check_buffer(
    number: int, i: Instruction, unit: int, mine: int, names: tuple[str, ...], buffer: _Buffer, order: _Order
) -> None:
    """Reads must follow their write, writes the last accesses, in an order that something enforces."""
    known = order.known[unit]
    for area in reads(i):
        where = buffer.granules(area)
        by, written = buffer.written_by[where], buffer.written[where]
        if not written.all():
            gap = _first(written == 0)
            at = (where.start + gap if isinstance(where, slice) else int(where[gap])) * buffer.granule
            raise wrong(number, i, f"reads byte {at} of the unified buffer, which nothing has written")
        late = (written > known[by]) & (by != unit)
        if late.any():
            writer = names[int(by[_first(late)])]
            raise wrong(
                number,
                i,
                f"may read what {writer} has not written yet; missing: sync waiter={names[unit]} after={writer}",
            )
        buffer.read[unit][where] = mine
    for area in writes(i):
        where = buffer.granules(area)
        by, written = buffer.written_by[where], buffer.written[where]
        late = (written > known[by]) & (by != unit)
        users = [int(by[_first(late)])] if late.any() else []
        users += [v for v in range(len(names)) if v != unit and (buffer.read[v][where] > known[v]).any()]
        if users:
            name = names[users[0]]
            missing = f"sync waiter={names[unit]} after={name}"
            raise wrong(number, i, f"may overwrite what {name} still uses; missing: {missing}")
        buffer.written_by[where], buffer.written[where] = unit, mine


def _check_fields(number: int, i: Instruction, program: Program, spec: TpuSpec) -> None:
    """Sizes and words of one instruction."""
    size = spec.unified_buffer.size_bytes
    for area in (*reads(i), *writes(i)):
        if area.rows < 1 or area.width < 1:
            raise wrong(number, i, "rows and columns must be at least 1")
        if area.rows > 1 and area.pitch < area.width:
            raise wrong(number, i, f"pitch={area.pitch}: a row has {area.width} bytes; nearest: {area.width}")
        if area.end > size:
            raise wrong(number, i, f"ends at byte {area.end} of the unified buffer, unified_buffer.size is {size}")
    match i:
        case MatrixMultiply() | Activate():
            if i.acc + i.rows > spec.accumulators.rows:
                raise wrong(
                    number, i, f"ends at accumulator {i.acc + i.rows}, accumulators.rows is {spec.accumulators.rows}"
                )
            if i.columns + getattr(i, "first", 0) * isinstance(i, Activate) > spec.array.columns or i.columns < 1:
                raise wrong(number, i, f"columns={i.columns}: must be 1 to array.columns, {spec.array.columns}")
            if i.bits not in (8, 16, 32) or (isinstance(i, MatrixMultiply) and i.bits == 32):
                raise wrong(number, i, f"bits={i.bits}: must be 8 or 16 (results also 32)")
    match i:
        case MatrixMultiply():
            if not (i.repeat - 1) * spec.array.rows < i.depth <= i.repeat * spec.array.rows:
                right = -(-i.depth // spec.array.rows)
                raise wrong(number, i, f"depth={i.depth} takes repeat={right} with array.rows={spec.array.rows}")
            if spec.array.dataflow == "os" and i.rows > spec.array.rows:
                raise wrong(number, i, f"rows={i.rows}: an output-stationary array takes array.rows={spec.array.rows}")
            if i.repeat > 1 and not i.switch:
                raise wrong(number, i, "switch=0 keeps one tile, so repeat must be 1")
        case Activate() if i.function not in ACTIVATIONS:
            raise wrong(number, i, f"function={i.function}: one of {', '.join(ACTIVATIONS)}")
        case Vector():
            if i.op in VECTOR_UNIT and spec.vector is None:
                raise wrong(number, i, f"{spec.name} has no vector unit, which {i.op} needs")
            if i.op not in (*ELEMENTWISE, *VECTOR_UNIT):
                raise wrong(number, i, f"op={i.op}: one of {', '.join((*ELEMENTWISE, *VECTOR_UNIT))}")
        case ReadWeights():
            end = i.address + i.repeat * spec.tile_bytes
            if end > max(program.weight_bytes, 0) or end > spec.dram.size_bytes:
                limit = min(program.weight_bytes, spec.dram.size_bytes)
                raise wrong(number, i, f"ends at byte {end} of weight memory, which holds {limit}")
        case InterruptHost() if i.work and i.work not in program.host_work:
            raise wrong(number, i, f"work={i.work}: the program has {', '.join(program.host_work) or 'none'}")
        case WriteHostMemory() | ReadHostMemory():
            end = i.host + (i.rows - 1) * i.host_pitch + i.row_bytes
            if end > program.host_bytes:
                raise wrong(number, i, f"ends at byte {end} of host memory, the program has {program.host_bytes}")


def _first(mask: NDArray[np.bool_]) -> int:
    """Index of the first True."""
    return int(np.argmax(mask))
