"""What instructions compute, in NumPy for the 32 lanes of a warp: for checks of values, apart from the timing engine.

Each function takes a warp (`replay.WarpValues`) and the form of an instruction, and returns its words: one array of
uint32, or two for 64 bits. It sets predicates itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.floats import NAMES, bf16, fp8, of_fp8
from sim.gpu.sass.forms import Form
from sim.gpu.sass.operands import Kind, Operand

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

Words = NDArray[np.uint32]
Function = Callable[["WarpValues", Form], tuple[Words, ...]]

_MASK = 0xFFFFFFFF
_LANES = np.arange(32)


def _signed(form: Form) -> bool:
    return not any(part.startswith("U") and part[1:].isdigit() for part in form.parts)


def _word(value: NDArray[np.int64]) -> Words:
    return (value & _MASK).astype(np.uint32)


def _both(value: NDArray[np.int64]) -> tuple[Words, Words]:
    return _word(value), _word(value >> 32)


def _integer(warp: WarpValues, form: Form, operand: Operand, signed: bool) -> NDArray[np.int64]:
    """A word or pair of words as a number, its sign included."""
    if form.is_wide(operand):
        low, high = warp.word(operand), warp.word(operand, 1)
        found = (high.astype(np.int64) << 32) | low.astype(np.int64)
    else:
        words = warp.word(operand)
        found = (words.view(np.int32) if signed else words).astype(np.int64)
    return -found if operand.negated and operand.kind is not Kind.IMMEDIATE else found


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
    return (_word(total),)


def _imad(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    signed = _signed(form)
    a, b = (_integer(warp, form, one, signed) for one in form.sources[:2])
    c = _integer(warp, form, form.sources[2], signed)
    with np.errstate(over="ignore"):
        found = a * b + c
    if "WIDE" in form.parts:
        return _both(found)
    if "HI" in form.parts:
        return (_word(found >> 32),)
    if "X" in form.parts:
        found = found + warp.predicate(form.inputs[0])
    return (_word(found),)


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
    return (_word(total),)


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
    elif _signed(form):
        moved = (both.view(np.int64) >> count).view(np.uint64)
    else:
        moved = both >> by
    return ((moved >> np.uint64(32 if "HI" in parts else 0)).astype(np.uint32),)


def _sgxt(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value, bits = (warp.word(one).astype(np.int64) for one in form.sources[:2])
    bits = np.minimum(bits, 32)
    found = value & ((1 << bits) - 1)
    if _signed(form):
        found = np.where((bits > 0) & (found >> np.maximum(bits - 1, 0) & 1 != 0), found - (1 << bits), found)
    return (_word(found),)


def _bmsk(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    first, count = (np.minimum(warp.word(one).astype(np.int64), 32) for one in form.sources[:2])
    return (_word(((1 << count) - 1) << first),)


def _prmt(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, chosen, c = (warp.word(one).astype(np.int64) for one in form.sources)
    both, found = (c << 32) | a, np.zeros(32, dtype=np.int64)
    for k in range(4):
        which = chosen >> (4 * k) & 15
        byte = both >> (8 * (which & 7)) & 255
        byte = np.where(which & 8, np.where(byte & 128, 255, 0), byte)
        found |= byte << (8 * k)
    return (_word(found),)


def _iabs(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return (_word(np.abs(_integer(warp, form, form.sources[0], True))),)


def _imnmx(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_integer(warp, form, one, _signed(form)) for one in form.sources[:2])
    return (_word(np.where(warp.predicate(form.inputs[0]), np.minimum(a, b), np.maximum(a, b))),)


def _sel(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_signed_bits(warp, one, form) for one in form.sources[:2])
    return (np.where(warp.predicate(form.inputs[0]), a, b),)


def _signed_bits(warp: WarpValues, operand: Operand, form: Form) -> Words:
    """The bits of an operand; of FSEL with its sign."""
    return warp.fp32(operand).view(np.uint32) if form.parts[0] == "FSEL" else warp.word(operand)


def _holds(name: str, a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.bool_]:
    less, equal = np.less(a, b), np.equal(a, b)
    more = np.greater(a, b)
    found: NDArray[np.bool_] = {
        "LT": less, "LE": less | equal, "EQ": equal, "NE": ~equal, "GT": more, "GE": more | equal
    }[name]  # fmt: skip
    return found


def _compared(warp: WarpValues, form: Form, holds: NDArray[np.bool_]) -> tuple[Words, ...]:
    """Sets the predicates of a comparison, joined with the one that it takes."""
    other = warp.predicate(form.inputs[0])
    for output, value in zip(form.outputs, (holds, ~holds), strict=False):
        joined = value | other if "OR" in form.parts else value ^ other if "XOR" in form.parts else value & other
        warp.set_predicate(output, joined)
    return ()


def _isetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_integer(warp, form, one, _signed(form)) for one in form.sources[:2])
    name = next(part for part in form.parts if part in ("LT", "LE", "EQ", "NE", "GT", "GE"))
    if "EX" not in form.parts:
        return _compared(warp, form, _holds(name, a, b))
    lower = warp.predicate(form.inputs[1])
    if name == "NE":
        return _compared(warp, form, (a != b) | ((a == b) & lower))
    strict = _holds({"LE": "LT", "GE": "GT", "LT": "LT", "GT": "GT"}.get(name, name), a, b)
    return _compared(warp, form, ((a == b) & lower) | (strict & (a != b)))


def _fsetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return _ordered(warp, form, *(warp.fp32(one) for one in form.sources[:2]))


def _ordered(warp: WarpValues, form: Form, a: NDArray[np.floating], b: NDArray[np.floating]) -> tuple[Words, ...]:
    """Sets the predicates of a comparison of floating-point numbers."""
    name = form.parts[1]
    if name in ("NAN", "NUM"):
        nan = np.isnan(a) | np.isnan(b)
        return _compared(warp, form, nan if name == "NAN" else ~nan)
    holds = _holds(name[:2], a, b)
    if name[:2] == "NE" and name != "NEU":
        holds &= ~(np.isnan(a) | np.isnan(b))
    elif name.endswith("U"):
        holds |= np.isnan(a) | np.isnan(b)
    return _compared(warp, form, holds)


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
    lane = int(np.argmax(warp.mask)) if warp.mask.any() else 31
    return (np.full(32, warp.word(form.sources[0])[lane], dtype=np.uint32),)


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
    found = [int(v).bit_length() - 1 & _MASK for v in warp.word(form.sources[0])]
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


# ---- floating point


def _put(value: NDArray[np.floating]) -> tuple[Words]:
    return (value.astype(np.float32).view(np.uint32),)


def _fadd(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return _put(warp.fp32(form.sources[0]) + warp.fp32(form.sources[1]))


def _fmul(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return _put(warp.fp32(form.sources[0]) * warp.fp32(form.sources[1]))


def _ffma(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b, c = (warp.fp32(one).astype(np.float64) for one in form.sources)
    return _put(a * b + c)


def _fmnmx(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (warp.fp32(one) for one in form.sources[:2])
    return _put(np.where(warp.predicate(form.inputs[0]), np.fmin(a, b), np.fmax(a, b)))


def _fp64(warp: WarpValues, operand: Operand) -> NDArray[np.float64]:
    """A pair of words as fp64, with its sign."""
    found = (warp.word(operand, 1).astype(np.uint64) << np.uint64(32) | warp.word(operand)).view(np.float64)
    found = np.abs(found) if operand.absolute else found
    return -found if operand.negated and operand.kind is not Kind.IMMEDIATE else found


def _double(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """DADD, DMUL, DFMA; the product of the last one is rounded before it is added."""
    values = [_fp64(warp, one) for one in form.sources]
    name = form.parts[0]
    first = values[0] + values[1] if name == "DADD" else values[0] * values[1]
    found = (first + values[2] if name == "DFMA" else first).view(np.uint64)
    return (found & np.uint64(_MASK)).astype(np.uint32), (found >> np.uint64(32)).astype(np.uint32)


def _dsetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return _ordered(warp, form, *(_fp64(warp, one) for one in form.sources[:2]))


_ROOTS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "RCP": lambda x: 1 / x,
    "RSQ": lambda x: 1 / np.sqrt(x),
    "SQRT": np.sqrt,
    "EX2": np.exp2,
    "LG2": np.log2,
    "SIN": lambda x: np.sin(2 * np.pi * x),
    "COS": lambda x: np.cos(2 * np.pi * x),
    "TANH": np.tanh,
}


def _mufu(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    if form.parts[1] not in _ROOTS or len(form.parts) > 2:
        raise InputError(f"{form.instruction.place}: {form.instruction}: its values are not computed")
    return _put(_ROOTS[form.parts[1]](warp.fp32(form.sources[0]).astype(np.float64)))


def _fchk(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    warp.set_predicate(form.outputs[0], np.zeros(32, dtype=bool))
    return ()


def _i2f(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    exact = _integer(warp, form, form.sources[0], _signed(form))
    found = exact.astype(np.float32)
    if "RP" in form.parts:
        found = np.where(found.astype(np.float64) < exact, np.nextafter(found, np.float32(np.inf)), found)
    return _put(found)


def _f2i(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    number = np.nan_to_num(warp.fp32(form.sources[0]).astype(np.float64), nan=0.0)
    number = np.trunc(number) if "TRUNC" in form.parts else np.rint(number)
    low, high = (-(2.0**31), 2.0**31 - 1) if _signed(form) else (0.0, 2.0**32 - 1)
    return (_word(np.clip(number, low, high).astype(np.int64)),)


def _frnd(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value = warp.fp32(form.sources[0])
    rounded = {"FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc}.get(form.parts[-1], np.rint)
    return _put(rounded(value))


def _packed(low: NDArray[np.floating], high: NDArray[np.floating], brain: bool) -> tuple[Words]:
    with np.errstate(over="ignore"):
        a, b = (bf16(v) if brain else v.astype(np.float16).view(np.uint16) for v in (low, high))
    return (a.astype(np.uint32) | b.astype(np.uint32) << np.uint32(16),)


def _f2fp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    narrow = next((NAMES[part] for part in form.parts if part in NAMES), "")
    if narrow and form.parts[1] == "F16" and "UNPACK_B" in form.parts:
        word = warp.word(form.sources[0]) >> np.uint32(16 if form.sources[0].text.endswith(".H1") else 0)
        low, high = (of_fp8((word >> np.uint32(8 * k) & np.uint32(0xFF)).astype(np.uint8), narrow) for k in range(2))
        return _packed(low, high, False)
    high, low = (warp.fp32(one) for one in form.sources[:2])
    if narrow and "F32" in form.parts and "PACK_AB_MERGE_C" in form.parts:
        a, b = (fp8(one, narrow).astype(np.uint32) for one in (low, high))
        return (a | b << np.uint32(8) | warp.word(form.sources[2]) << np.uint32(16),)
    if "PACK_AB" not in form.parts or narrow:
        raise InputError(f"{form.instruction.place}: {form.instruction}: its values are not computed")
    if "RELU" in form.parts:
        high, low = np.maximum(high, 0), np.maximum(low, 0)
    return _packed(low, high, "BF16" in form.parts)


def _halves(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """HADD2, HMUL2, HFMA2: both halves; with F32 the sum of lower ones as fp32."""
    brain = any(part.startswith("BF16") for part in form.parts)
    numbers = warp.halves(form, brain)
    found = []
    for k in range(2):
        values = [one[k].astype(np.float64) for one in numbers]
        name = form.parts[0]
        found.append(
            values[0] + values[1] if name == "HADD2" else values[0] * values[1] + (values[2] if name == "HFMA2" else 0)
        )
    if "RELU" in form.parts:
        found = [np.maximum(one, 0) for one in found]
    return _put(found[0]) if "F32" in form.parts else _packed(found[0], found[1], brain)


MEANINGS: dict[str, Function] = {
    "MOV": _mov, "UMOV": _mov, "LDC": _mov, "ULDC": _mov,
    "IADD3": _iadd3, "VIADD": _iadd3, "UIADD3": _iadd3, "IMAD": _imad, "UIMAD": _imad,
    "LEA": _lea, "ULEA": _lea, "LOP3": _lop3, "ULOP3": _lop3, "SHF": _shf, "USHF": _shf,
    "SGXT": _sgxt, "USGXT": _sgxt, "BMSK": _bmsk, "UBMSK": _bmsk, "PRMT": _prmt, "UPRMT": _prmt,
    "IABS": _iabs, "IMNMX": _imnmx, "VIMNMX": _imnmx, "SEL": _sel, "USEL": _sel, "FSEL": _sel,
    "ISETP": _isetp, "UISETP": _isetp, "FSETP": _fsetp, "PLOP3": _plop3, "UPLOP3": _plop3,
    "VOTE": _vote, "VOTEU": _vote, "SHFL": _shfl, "ELECT": _elect, "R2UR": _r2ur, "POPC": _popc, "UPOPC": _popc,
    "REDUX": _redux,
    "FLO": _flo, "UFLO": _flo, "P2R": _p2r, "R2P": _r2p, "S2R": _s2r, "S2UR": _s2r, "CS2R": _s2r,
    "DADD": _double, "DMUL": _double, "DFMA": _double, "DSETP": _dsetp,
    "FADD": _fadd, "FMUL": _fmul, "FFMA": _ffma, "FMNMX": _fmnmx, "MUFU": _mufu, "FCHK": _fchk,
    "I2F": _i2f, "I2FP": _i2f, "F2I": _f2i, "FRND": _frnd, "F2FP": _f2fp,
    "HADD2": _halves, "HMUL2": _halves, "HFMA2": _halves,
}  # fmt: skip
"""By the first part of the opcode."""
