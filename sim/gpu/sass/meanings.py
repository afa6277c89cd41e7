"""What instructions on integers and predicates compute, in NumPy for the 32 lanes of a warp, apart from the timing
engine.

Each function takes a warp (`replay.WarpValues`) and the form of an instruction, and returns its words: one array of
uint32, or two for 64 bits. It sets predicates itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.gpu.sass.forms import Form
from sim.gpu.sass.meanings_floats import FLOATS
from sim.gpu.sass.meanings_words import Function, Words, both, compared, holds, integer, signed, word
from sim.gpu.sass.operands import Kind, Operand
from sim.gpu.sass.replay_flow import bits
from sim.gpu.sass.tables import LANES

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

_MASK = 0xFFFFFFFF
_MASK64 = (1 << 64) - 1
_LANES = np.arange(LANES)


def _complemented(warp: WarpValues, operand: Operand) -> NDArray[np.int64]:
    found = warp.word(operand).astype(np.int64)
    return (1 << 32) - found if operand.negated and operand.kind is not Kind.IMMEDIATE else found


def _mov(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return tuple(warp.word(form.sources[0], k) for k in range(form.result_words))


def _iadd3(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    total = sum((_complemented(warp, one) for one in form.sources), np.zeros(32, dtype=np.int64))
    if "X" in form.parts:
        for operand in form.inputs:
            total = total + warp.predicate(operand)
    for count, output in enumerate(form.outputs, start=1):
        warp.set_predicate(output, total >> 32 >= count)
    return (word(total),)


def _viadd(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """VIADD; 16x2: of both halves."""
    if "16x2" not in form.parts:
        return _iadd3(warp, form)
    found = np.zeros(LANES, dtype=np.int64)
    for shift in (0, 16):
        halves = [(warp.word(one) >> np.uint32(shift)).astype(np.int64) & 0xFFFF for one in form.sources]
        signs = [-1 if one.negated and one.kind is not Kind.IMMEDIATE else 1 for one in form.sources]
        found |= (sum(sign * half for sign, half in zip(signs, halves, strict=True)) & 0xFFFF) << shift
    return (word(found),)


def _imad(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    signs = signed(form)
    a, b = (integer(warp, form, one, signs) for one in form.sources[:2])
    c = integer(warp, form, form.sources[2], signs)
    if form.outputs or {"WIDE", "X"} <= set(form.parts):
        return _carried(warp, form, a, b, c)
    with np.errstate(over="ignore"):
        found = a * b + c
    if "WIDE" in form.parts:
        return both(found)
    if "HI" in form.parts:
        return (word(found >> 32),)
    if "X" in form.parts:
        found = found + warp.predicate(form.inputs[0])
    return (word(found),)


def _carried(
    warp: WarpValues, form: Form, a: NDArray[np.int64], b: NDArray[np.int64], c: NDArray[np.int64]
) -> tuple[Words, ...]:
    """IMAD.WIDE and IMAD.HI that take or give a carry, beyond 64 bits."""
    carry = warp.predicate(form.inputs[0]) if "X" in form.parts else np.zeros(LANES, dtype=bool)
    totals = [int(x) * int(y) + (int(z) & _MASK64) + int(k) for x, y, z, k in zip(a, b, c, carry, strict=True)]
    for output in form.outputs:
        warp.set_predicate(output, np.array([total >> 64 & 1 for total in totals], dtype=bool))
    found = np.array([total & _MASK64 for total in totals], dtype=np.uint64)
    low, high = (found & np.uint64(_MASK)).astype(np.uint32), (found >> np.uint64(32)).astype(np.uint32)
    return (high,) if "HI" in form.parts else (low, high)


def _lea(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    *sources, shift = form.sources
    count = shift.value & 31
    first = warp.word(sources[0]).astype(np.int64)
    if "HI" not in form.parts:
        first = -first if sources[0].negated else first
        first = (first << count) & _MASK
    else:
        if "SX32" in form.parts:
            first = first.astype(np.uint32).view(np.int32).astype(np.int64)
        else:
            first = first | (warp.word(sources[2]).astype(np.int64) << 32)
        first = -first if sources[0].negated else first
        first = ((first << count) >> 32) & _MASK
    total = first + _complemented(warp, sources[1])
    if "X" in form.parts:
        total = total + warp.predicate(form.inputs[0])
    for output in form.outputs:
        warp.set_predicate(output, total >> 32 != 0)
    return (word(total),)


def _lop3(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b, c = (warp.word(one) for one in form.sources[:3])
    table, found = form.sources[3].value, np.zeros(32, dtype=np.uint32)
    for term in range(8):
        if table >> term & 1:
            found |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
    for output in form.outputs:
        warp.set_predicate(output, (found != 0) | warp.predicate(form.inputs[0]))
    return (found,)


def _shf(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    low, amount, high = (warp.word(one) for one in form.sources)
    parts = form.parts
    wide = any(part in ("64", "U64", "S64") for part in parts)
    most = 63 if wide else 32
    count = amount.astype(np.int64)
    count = count & (63 if wide else 31) if "W" in parts else np.minimum(count, most)
    both = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    by = count.astype(np.uint64)
    if "L" in parts:
        moved = both << by
    elif signed(form):
        moved = (both.view(np.int64) >> count).view(np.uint64)
    else:
        moved = both >> by
    return ((moved >> np.uint64(32 if "HI" in parts else 0)).astype(np.uint32),)


def _sgxt(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value, bits = (warp.word(one).astype(np.int64) for one in form.sources[:2])
    bits = np.minimum(bits, 32)
    found = value & ((1 << bits) - 1)
    if signed(form):
        found = np.where((bits > 0) & (found >> np.maximum(bits - 1, 0) & 1 != 0), found - (1 << bits), found)
    return (word(found),)


def _bmsk(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    first, count = (np.minimum(warp.word(one).astype(np.int64), 32) for one in form.sources[:2])
    return (word(((1 << count) - 1) << first),)


def _prmt(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, chosen, c = (warp.word(one).astype(np.int64) for one in form.sources)
    both, found = (c << 32) | a, np.zeros(32, dtype=np.int64)
    for k in range(4):
        which = chosen >> (4 * k) & 15
        byte = both >> (8 * (which & 7)) & 255
        byte = np.where(which & 8, np.where(byte & 128, 255, 0), byte)
        found |= byte << (8 * k)
    return (word(found),)


def _iabs(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return (word(np.abs(integer(warp, form, form.sources[0], True))),)


def _least_or_most(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """IMNMX and VIMNMX: the smaller or larger one; VIMNMX3 of three; VIADDMNMX of a sum and a number. Of words, or of
    both halves."""
    halves = next((part for part in form.parts if part in ("S16x2", "U16x2")), "")
    signs = not halves.startswith("U") if halves else signed(form)
    least = warp.predicate(form.inputs[0])
    found = np.zeros(LANES, dtype=np.int64)
    for shift in (0, 16) if halves else (0,):
        if halves:
            a, b, *rest = (_half(warp.word(one) >> np.uint32(shift), signs) for one in form.sources)
        else:
            a, b, *rest = (integer(warp, form, one, signs) for one in form.sources)
        if form.parts[0].startswith("VIADD"):
            total = a + b
            a, b, rest = _half(word(total), signs) if halves else _wrapped(total, signs), rest[0], []
        for other in (b, *rest):
            a = np.where(least, np.minimum(a, other), np.maximum(a, other))
        a = np.maximum(a, 0) if "RELU" in form.parts else a
        found |= (a & 0xFFFF) << shift if halves else a & _MASK
    return (word(found),)


def _half(words: Words, signs: bool) -> NDArray[np.int64]:
    """The lower halves of words as numbers."""
    low = (words & np.uint32(0xFFFF)).astype(np.uint16)
    return (low.view(np.int16) if signs else low).astype(np.int64)


def _wrapped(value: NDArray[np.int64], signs: bool) -> NDArray[np.int64]:
    """Numbers as 32 bits hold them."""
    words = word(value)
    return (words.view(np.int32) if signs else words).astype(np.int64)


def _distance(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """VABSDIFF: how far apart two numbers are, plus a third; VABSDIFF4 of four bytes, ACC their sum."""
    if form.parts[0] == "VABSDIFF":
        a, b, c = (integer(warp, form, one, signed(form)) for one in form.sources[:3])
        return (word(np.abs(a - b) + c),)
    kind = np.int8 if "S8" in form.parts else np.uint8
    first, second = (_bytes(warp.word(one), kind) for one in form.sources[:2])
    apart = np.abs(first - second)
    if "ACC" in form.parts:
        return (word(apart.sum(axis=1) + warp.word(form.sources[2])),)
    return (word((apart << 8 * np.arange(4)).sum(axis=1)),)


def _bytes(words: Words, kind: type[np.integer]) -> NDArray[np.int64]:
    """Words as four numbers each."""
    return np.ascontiguousarray(words).view(kind).reshape(LANES, 4).astype(np.int64)


def _dot(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """IDP: four products of bytes, or two of halves with the lower or upper bytes, and a number."""
    of_a, of_b = (part.startswith("S") for part in form.parts[-2:])
    a, b, c = (warp.word(one) for one in form.sources[:3])
    right = _bytes(b, np.int8 if of_b else np.uint8)
    if "4A" in form.parts:
        left = _bytes(a, np.int8 if of_a else np.uint8)
    else:
        left = np.stack([_half(a >> np.uint32(16 * k), of_a) for k in range(2)], axis=1)
        right = right[:, 2:] if "HI" in form.parts else right[:, :2]
    return (word((left * right).sum(axis=1) + c),)


def _brev(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return (np.array([int(f"{v:032b}"[::-1], 2) for v in warp.word(form.sources[0])], dtype=np.uint32),)


def _match(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """MATCH: lanes that hold the same; ALL: all lanes, and whether they do."""
    lanes = warp.mask
    source = form.sources[0]
    value = warp.word(source).astype(np.uint64)
    if "U64" in form.parts:
        value = value | warp.word(source, 1).astype(np.uint64) << np.uint64(32)
    if form.parts[1] == "ANY":
        return (np.array([bits(lanes & (value == one)) for one in value], dtype=np.uint32),)
    alike = len(set(value[lanes].tolist())) <= 1
    for output in form.outputs:
        warp.set_predicate(output, np.full(LANES, alike))
    return (np.full(LANES, bits(lanes) if alike else 0, dtype=np.uint32),)


def _result(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """B2R: what the latest reduction at a barrier has given."""
    for output in form.outputs:
        warp.set_predicate(output, np.full(LANES, warp.reduced != 0))
    return (np.full(LANES, warp.reduced, dtype=np.uint32),)


def _bmov(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """BMOV: a convergence barrier to a register, which clears it, or back."""
    barrier = next(int(one.text[1:]) for one in form.sources if one.kind is Kind.NAME)
    masks = warp.paths.barriers[barrier]
    held = masks.copy()
    given = [one for one in form.sources if one.kind is Kind.REGISTER]
    if "CLEAR" in form.parts:
        masks[warp.mask] = 0
    elif given and form.destination is None:
        masks[warp.mask] = warp.word(given[0])[warp.mask]
    return (held,)


def _lepc(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return np.full(LANES, form.instruction.address, dtype=np.uint32), np.zeros(LANES, dtype=np.uint32)


def _sel(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_signed_bits(warp, one, form) for one in form.sources[:2])
    return (np.where(warp.predicate(form.inputs[0]), a, b),)


def _signed_bits(warp: WarpValues, operand: Operand, form: Form) -> Words:
    """The bits of an operand; of FSEL with its sign."""
    return warp.fp32(operand).view(np.uint32) if form.parts[0] == "FSEL" else warp.word(operand)


def _isetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (integer(warp, form, one, signed(form)) for one in form.sources[:2])
    name = next(part for part in form.parts if part in ("LT", "LE", "EQ", "NE", "GT", "GE"))
    if "EX" not in form.parts:
        return compared(warp, form, holds(name, a, b))
    lower = warp.predicate(form.inputs[1])
    if name == "NE":
        return compared(warp, form, (a != b) | ((a == b) & lower))
    strict = holds({"LE": "LT", "GE": "GT", "LT": "LT", "GT": "GT"}.get(name, name), a, b)
    return compared(warp, form, ((a == b) & lower) | (strict & (a != b)))


def _plop3(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b, c = (warp.predicate(one) for one in form.inputs[:3])
    for output, source in zip(form.outputs, form.sources, strict=False):
        found = np.zeros(32, dtype=bool)
        for term in range(8):
            if source.value >> term & 1:
                found |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
        warp.set_predicate(output, found)
    return ()


def _vote(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    yes = warp.predicate(form.inputs[0]) & warp.mask
    kind = form.parts[1]
    answer = yes.any() if kind == "ANY" else (yes == warp.mask).all() or (kind == "EQ" and not yes.any())
    for output in form.outputs:
        warp.set_predicate(output, np.full(32, answer))
    return (np.full(32, int(np.packbits(yes, bitorder="little").view(np.uint32)[0]), dtype=np.uint32),)


def _shfl(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value, distance, control = (warp.word(one) for one in form.sources)
    by, segment = distance.astype(np.int64) & 31, control.astype(np.int64) >> 8 & 31
    clamp = control.astype(np.int64) & 31
    most = (_LANES & segment) | (clamp & ~segment)
    kind = form.parts[1]
    other = {
        "IDX": (_LANES & segment) | (by & ~segment), "UP": _LANES - by, "DOWN": _LANES + by, "BFLY": _LANES ^ by
    }[kind]  # fmt: skip
    there = other >= most if kind == "UP" else other <= most
    for output in form.outputs:
        warp.set_predicate(output, there)
    return (value[np.where(there, other, _LANES)],)


def _elect(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    chosen = np.zeros(32, dtype=bool)
    if warp.mask.any():
        chosen[int(np.argmax(warp.mask))] = True
    warp.set_predicate(form.outputs[0], chosen)
    return ()


def _r2ur(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """R2UR: what the first lane holds, and whether others hold something else."""
    lane = int(np.argmax(warp.mask)) if warp.mask.any() else 31
    words = warp.word(form.sources[0])
    for output in form.outputs:
        warp.set_predicate(output, np.full(LANES, (words[warp.mask] != words[lane]).any()))
    return (np.full(LANES, words[lane], dtype=np.uint32),)


def _popc(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return (np.array([int(v).bit_count() for v in warp.word(form.sources[0])], dtype=np.uint32),)


def _redux(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    words = warp.word(form.sources[0])[warp.mask]
    signed = words.view(np.int32)
    found = {
        "SUM": lambda: int(words.astype(np.uint64).sum()),
        "OR": lambda: int(np.bitwise_or.reduce(words)),
        "XOR": lambda: int(np.bitwise_xor.reduce(words)),
        "MIN": lambda: int((signed if "S32" in form.parts else words).min()),
        "MAX": lambda: int((signed if "S32" in form.parts else words).max()),
    }.get(form.parts[1] if len(form.parts) > 1 else "", lambda: int(np.bitwise_and.reduce(words)))()
    return (np.full(32, found & _MASK, dtype=np.uint32),)


def _flo(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    words = warp.word(form.sources[0])
    words = np.where(words >> np.uint32(31) != 0, ~words, words) if signed(form) else words
    found = [int(v).bit_length() - 1 & _MASK for v in words]
    if "SH" in form.parts:  # the distance from the upper end
        found = [31 - one if one <= 31 else one for one in found]
    return (np.array(found, dtype=np.uint32),)


def _p2r(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    packed = form.packed_predicates
    base = next((one for one in form.sources if one.kind is Kind.REGISTER), None)
    found = (warp.word(base) if base else np.zeros(32, dtype=np.uint32)) & np.uint32(~packed & _MASK)
    for k in range(7):
        if packed >> k & 1:
            found |= warp.predicates[k].astype(np.uint32) << np.uint32(k)
    return (found,)


def _r2p(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value = warp.word(next(one for one in form.sources if one.kind is Kind.REGISTER))
    for k in range(7):
        if form.packed_predicates >> k & 1:
            bits = (value >> np.uint32(k) & 1).astype(bool)
            warp.predicates[k] = np.where(warp.mask, bits, warp.predicates[k])
    return ()


def _s2r(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    found = warp.special(form.sources[-1].text)
    return (found,) if form.result_words == 1 else (found, np.zeros(32, dtype=np.uint32))


MEANINGS: dict[str, Function] = {
    "MOV": _mov, "UMOV": _mov, "LDC": _mov, "ULDC": _mov,
    "IADD3": _iadd3, "VIADD": _viadd, "UIADD3": _iadd3, "IMAD": _imad, "UIMAD": _imad,
    "LEA": _lea, "ULEA": _lea, "LOP3": _lop3, "ULOP3": _lop3, "SHF": _shf, "USHF": _shf,
    "SGXT": _sgxt, "USGXT": _sgxt, "BMSK": _bmsk, "UBMSK": _bmsk, "PRMT": _prmt, "UPRMT": _prmt,
    "IABS": _iabs, "IMNMX": _least_or_most, "VIMNMX": _least_or_most, "VIMNMX3": _least_or_most,
    "VIADDMNMX": _least_or_most, "VABSDIFF": _distance, "VABSDIFF4": _distance, "IDP": _dot, "BREV": _brev,
    "MATCH": _match, "B2R": _result, "BMOV": _bmov,
    "LEPC": _lepc, "SEL": _sel, "USEL": _sel, "FSEL": _sel,
    "ISETP": _isetp, "UISETP": _isetp, "PLOP3": _plop3, "UPLOP3": _plop3,
    "VOTE": _vote, "VOTEU": _vote, "SHFL": _shfl, "ELECT": _elect, "R2UR": _r2ur, "POPC": _popc, "UPOPC": _popc,
    "REDUX": _redux,
    "FLO": _flo, "UFLO": _flo, "P2R": _p2r, "R2P": _r2p, "S2R": _s2r, "S2UR": _s2r, "CS2R": _s2r,
    **FLOATS,
}  # fmt: skip
"""By the first part of the opcode."""
