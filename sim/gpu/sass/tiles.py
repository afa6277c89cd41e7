"""Values of tiles that a warp holds in its registers: LDSM, STSM, HMMA, QMMA, HGMMA, QGMMA.

Lane `i` holds of an 8 x 8 matrix of 16-bit numbers those of row i / 4, columns 2 (i mod 4) and the next, in one word
(PTX ISA, matrix fragments of mma.m16n8k16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.gpu.sass.floats import NAMES, numbers
from sim.gpu.sass.forms import Form
from sim.gpu.sass.meanings import Words
from sim.gpu.sass.operands import Kind, Operand

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

_ROW, _PAIR = np.arange(32) // 4, np.arange(32) % 4


def load_matrices(rows: NDArray[np.uint16], transposed: bool) -> tuple[Words, ...]:
    """Words of the lanes from matrices (count, 8, 8)."""
    tiles = rows.swapaxes(1, 2) if transposed else rows
    low, high = tiles[:, _ROW, 2 * _PAIR], tiles[:, _ROW, 2 * _PAIR + 1]
    return tuple(low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))


def store_matrices(words: Sequence[Words], transposed: bool) -> NDArray[np.uint16]:
    """Matrices (count, 8, 8) from words of the lanes."""
    tiles = np.zeros((len(words), 8, 8), dtype=np.uint16)
    for k, word in enumerate(words):
        tiles[k, _ROW, 2 * _PAIR] = word & np.uint32(0xFFFF)
        tiles[k, _ROW, 2 * _PAIR + 1] = word >> np.uint32(16)
    return np.ascontiguousarray(tiles.swapaxes(1, 2)) if transposed else tiles


def _formats(form: Form) -> tuple[str, str]:
    """Number formats of the operands of a product."""
    narrow = [NAMES[part] for part in form.parts if part in NAMES]
    wide = "bf16" if "BF16" in form.parts else "fp16"
    return (narrow[0], narrow[-1]) if narrow else (wide, wide)


def _tile(warp: WarpValues, operand: Operand, places: Sequence[tuple[int, int]], dtype: str) -> NDArray[np.float32]:
    """A tile in registers; places: in blocks of 8 rows of 16 bytes, of each register in turn."""
    blocks = store_matrices([warp.word(operand, k) for k in range(len(places))], transposed=False)
    values = numbers(blocks.view(np.uint8), dtype)
    width = values.shape[2]
    rows, columns = (max(axis) + 1 for axis in zip(*places, strict=True))
    found = np.zeros((8 * rows, width * columns), dtype=np.float32)
    for block, (row, column) in zip(values, places, strict=True):
        found[8 * row : 8 * row + 8, width * column : width * column + width] = block
    return found


def multiply(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """HMMA and QMMA: d = a b + c, sums in fp32, of HMMA also in fp16."""
    kind = form.parts[1]
    of_fp32 = "F32" in form.parts[2:3]
    known = ("16832",) if form.parts[0] == "QMMA" and of_fp32 else ("16816", "1688") if form.parts[0] == "HMMA" else ()
    if kind not in known or "TF32" in form.parts:
        raise InputError(f"check: {form.instruction.place}: {form.instruction}: its values are not computed")
    a, b, c = form.sources[:3]
    deep = kind != "1688"
    of_a, of_b = _formats(form)
    left = _tile(warp, a, [(0, 0), (1, 0), (0, 1), (1, 1)] if deep else [(0, 0), (1, 0)], of_a)
    right = _tile(warp, b, [(0, 0), (0, 1)] if deep else [(0, 0)], of_b)  # its columns are those of k
    product = left @ right.T
    if of_fp32:
        total = [warp.word(c, k).view(np.float32) for k in range(4)]
        at = [(_ROW, 2 * _PAIR), (_ROW, 2 * _PAIR + 1), (_ROW + 8, 2 * _PAIR), (_ROW + 8, 2 * _PAIR + 1)]
        return tuple((product[place] + one).view(np.uint32) for place, one in zip(at, total, strict=True))
    total16 = _tile(warp, c, [(0, 0), (1, 0)], of_a)
    halves = (product + total16).astype(np.float16).view(np.uint16)
    return load_matrices(halves.reshape(2, 8, 8), transposed=False)


def swizzled(addresses: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Shared addresses as the TMA and HGMMA permute them in rows of 128, 64 or 32 bytes; others are left alone."""
    bits = {128: 7, 64: 3, 32: 1}.get(width, 0)
    found: NDArray[np.int64] = addresses ^ ((addresses >> 7 & bits) << 4)
    return found


_WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes of a row by the mode of a descriptor (PTX ISA, matrix descriptor of wgmma)."""


def _described(
    warp: WarpValues, uniform: int, rows: int, depth: int, dtype: str, transposed: bool
) -> NDArray[np.float32]:
    """A tile in shared memory as a descriptor says, (rows, depth); transposed: rows are contiguous, not depth."""
    low, high = int(warp.uniform[uniform]), int(warp.uniform[uniform + 1])
    start, lead = (low & 0x3FFF) << 4, (low >> 16 & 0x3FFF) << 4
    stride, width = (high & 0x3FFF) << 4, _WIDTHS[high >> 30]
    size = DTYPE_BYTES[dtype]
    r, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if transposed:
        across = width // size
        at = start + r // across * lead + r % across * size + k % 8 * width + k // 8 * stride
    elif width == 16:
        at = start + r // 8 * stride + r % 8 * 16 + k * size // 16 * lead + k * size % 16
    else:
        at = start + r // 8 * stride + r % 8 * width + size * k
    places = swizzled(at, width)[..., None] + np.arange(size)
    if places.max() >= len(warp.cta.shared):
        raise InputError(f"check: a descriptor of HGMMA names shared address {int(places.max()):#x}")
    return numbers(warp.cta.shared[places].reshape(rows, depth * size), dtype)


def multiply_group(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """HGMMA and QGMMA: this warp's sixteen rows of d = a b + c, sums in fp32; a in registers or shared memory."""
    m, n, depth = (int(word) for word in form.parts[1].split("x"))
    operands = [o for o in form.sources if not o.text.startswith("gsb")]
    if "F32" not in form.parts or "TF32" in form.parts or m != 64:
        raise InputError(f"check: {form.instruction.place}: {form.instruction}: its values are not computed")
    of_a, of_b = _formats(form)
    described = next(o for o in operands if o.kind is Kind.DESCRIPTOR)
    number = int(described.text.partition("[UR")[2].partition("]")[0])
    registers = operands[0].kind is Kind.REGISTER
    if registers:
        left = _tile(warp, operands[0], [(0, 0), (1, 0), (0, 1), (1, 1)], of_a)
    else:
        whole = _described(warp, number, m, depth, of_a, "tnspA" in described.text)
        left = whole[16 * (warp.number % 4) :][:16]
    right = _described(warp, number + 2, n, depth, of_b, "tnspB" in described.text)  # behind a's, wherever a is
    product = left @ right.T
    c = operands[-1]
    adds = not form.inputs or bool(warp.predicate(form.inputs[0])[0])
    found = []
    for block in range(n // 8):
        for k in range(4):
            at = product[_ROW + 8 * (k // 2), 8 * block + 2 * _PAIR + k % 2]
            found.append((at + (warp.word(c, 4 * block + k).view(np.float32) if adds else 0)).view(np.uint32))
    return tuple(found)
