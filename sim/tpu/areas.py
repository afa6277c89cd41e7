"""Which bytes of the unified buffer an instruction reads and writes."""

from __future__ import annotations

from typing import NamedTuple

from sim.tpu.program import (
    Activate,
    Convolve,
    Instruction,
    MatrixMultiply,
    ReadHostMemory,
    Vector,
    WriteHostMemory,
)


class Area(NamedTuple):
    """`rows` rows of `width` bytes, `pitch` apart."""

    address: int
    rows: int
    width: int
    pitch: int

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.address + (self.rows - 1) * self.pitch + self.width


def reads(i: Instruction) -> list[Area]:
    """What an instruction reads of the unified buffer."""
    match i:
        case Convolve():
            image, wide = i.image, i.bits // 8
            per_image = image.p * image.q
            first, last = i.first // per_image, (i.first + i.rows - 1) // per_image
            pixels = image.h * image.w
            width = image.channels * wide
            offset = image.first_channel * wide
            return [Area(i.ub + first * pixels * i.pitch + offset, (last - first + 1) * pixels, width, i.pitch)]
        case MatrixMultiply():
            return [Area(i.ub, i.rows, i.depth * (i.bits // 8), i.pitch)]
        case WriteHostMemory():
            return [Area(i.ub, i.rows, i.row_bytes, i.pitch)]
        case Vector(op="max_pool"):
            image, width = i.image, i.columns * (i.bits // 8)
            images = -(-i.rows // (image.p * image.q))
            return [Area(i.a, images * image.h * image.w, width, width)]
        case Vector():
            width = i.columns * (i.bits // 8)
            found = [Area(i.a, i.rows, width, i.pitch)]
            if i.op in ("add", "multiply"):
                found.append(Area(i.b, i.rows, width, i.b_pitch or i.pitch))
            return found
    return []


def writes(i: Instruction) -> list[Area]:
    """What an instruction writes of the unified buffer."""
    match i:
        case ReadHostMemory(weights=0):
            return [Area(i.address, i.rows, i.row_bytes, i.pitch)]
        case Activate():
            return [Area(i.ub, i.rows, i.columns * (i.bits // 8), i.pitch)]
        case Vector() if i.op not in ("row_max", "exp_sum"):
            return [Area(i.ub, i.rows, i.columns * ((i.out_bits or i.bits) // 8), i.out_pitch or i.pitch)]
    return []


def overlap(a: Area, b: Area) -> bool:
    """Whether two areas may share a byte: those of one pitch are compared by column, others as a whole."""
    if a.address >= b.end or b.address >= a.end:
        return False
    if a.pitch != b.pitch or a.rows == 1 or b.rows == 1:
        return True
    ahead = (b.address - a.address) % a.pitch
    return ahead < a.width or a.pitch - ahead < b.width
