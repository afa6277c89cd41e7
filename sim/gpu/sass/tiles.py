"""Values of tiles that a warp holds in its registers: LDSM, STSM, MOVM, HMMA, IMMA, BMMA, QMMA, DMMA, HGMMA, QGMMA.

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
from sim.gpu.sass.meanings_words import Words
from sim.gpu.sass.operands import Kind, Operand

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

_INTEGERS = {"S8": "int8", "U8": "uint8", "S4": "int4", "U4": "uint4"}
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
    if form.parts[0] == "BMMA":
        return "bits", "bits"
    narrow = [{**NAMES, **_INTEGERS}[part] for part in form.parts if part in NAMES or part in _INTEGERS]
    if "TF32" in form.parts:
        return "tf32", "tf32"
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


_TALL = ((0, 0), (1, 0))
_DEEP = ((0, 0), (0, 1))
_SQUARE = ((0, 0), (1, 0), (0, 1), (1, 1))
_ONE = ((0, 0),)
_SHAPES: dict[str, tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]] = {
    **dict.fromkeys(("HMMA.16816", "IMMA.16832", "QMMA.16832", "TF32.1688"), (_SQUARE, _DEEP)),
    **dict.fromkeys(("S4.16864", "BMMA.168256"), (_SQUARE, _DEEP)),
    **dict.fromkeys(("HMMA.1688", "IMMA.16816", "TF32.1684", "S4.16832", "BMMA.168128"), (_TALL, _ONE)),
    **dict.fromkeys(("IMMA.8816", "S4.8832", "BMMA.88128"), (_ONE, _ONE)),
}
"""Places of the registers of a and b, in blocks of 8 rows of 16 bytes; b's rows are the columns of the product."""


def multiply(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """HMMA, IMMA, BMMA, QMMA: d = a b + c, sums in fp32, fp16 or int32; DMMA in fp64."""
    name, kind = form.parts[:2]
    if name == "DMMA":
        return _multiply_fp64(warp, form)
    of_a, of_b = _formats(form)
    family = {"tf32": "TF32", "int4": "S4", "uint4": "S4"}.get(of_a, name)
    shape = _SHAPES.get(f"{family}.{kind}")
    if shape is None:
        raise InputError(f"check: {form.instruction.place}: {form.instruction}: its values are not computed")
    a, b, c = form.sources[:3]
    left, right = _tile(warp, a, shape[0], of_a), _tile(warp, b, shape[1], of_b)
    if "F16" in form.parts[2:3]:
        halves = (left @ right.T + _tile(warp, c, _TALL, "fp16")).astype(np.float16).view(np.uint16)
        return load_matrices(halves.reshape(2, 8, 8), transposed=False)
    product = _logical(form, left, right) if name == "BMMA" else left @ right.T
    rows = (0,) if shape[0] is _ONE else (0, 8)
    at = [(_ROW + row, 2 * _PAIR + k) for row in rows for k in range(2)]
    if name in ("IMMA", "BMMA"):
        sums = [product[place].astype(np.int64) + warp.word(c, k).view(np.int32) for k, place in enumerate(at)]
        sums = [np.clip(one, -(1 << 31), (1 << 31) - 1) for one in sums] if "SAT" in form.parts else sums
        return tuple((one & 0xFFFFFFFF).astype(np.uint32) for one in sums)
    total = [warp.word(c, k).view(np.float32) for k in range(4)]
    return tuple(
        (product[place] + one).astype(np.float32).view(np.uint32) for place, one in zip(at, total, strict=True)
    )


def _logical(form: Form, left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of rows of bits, how many are set in both, or in one of them."""
    both = left @ right.T
    return both if "AND" in form.parts else left.sum(axis=1)[:, None] + right.sum(axis=1)[None, :] - 2 * both


def _multiply_fp64(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """DMMA: a lane holds of a and b one number of each block of 8 x 4, of c two neighbours of each block of 8 x 8."""
    large = form.parts[1] == "16x8x8"
    if not large and form.parts[1] not in ("884", "8x8x4"):
        raise InputError(f"check: {form.instruction.place}: {form.instruction}: its values are not computed")
    places = (_SQUARE, _DEEP) if large else (_ONE, _ONE)
    tiles = []
    for operand, where in zip(form.sources, places, strict=False):
        tile = np.zeros((16, 8))
        for k, (row, column) in enumerate(where):
            tile[8 * row + _ROW, 4 * column + _PAIR] = warp.fp64(operand, 2 * k)
        tiles.append(tile)
    product = tiles[0] @ tiles[1][:8].T
    found = list[Words]()
    for k in range(4 if large else 2):
        at = product[_ROW + 8 * (k // 2), 2 * _PAIR + k % 2] + warp.fp64(form.sources[2], 2 * k)
        whole = at.view(np.uint64)
        found += [(whole & np.uint64(0xFFFFFFFF)).astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)]
    return tuple(found)


def transposed(words: Words) -> Words:
    """MOVM: a matrix of 8 x 8 halves in a register, its rows and columns exchanged."""
    return load_matrices(store_matrices([words], transposed=False), transposed=True)[0]


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
