"""What instructions on floating-point numbers compute, in NumPy for the lanes of a warp, as `meanings`.

Sums and products are made in fp64 and rounded once more to the format of the result, as the instruction says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.floats import NAMES, bf16, fp8, of_fp8
from sim.gpu.sass.forms import Form
from sim.gpu.sass.meanings_words import Function, Words, both, compared, holds, integer, joined, signed, word
from sim.gpu.sass.operands import Operand

if TYPE_CHECKING:
    from sim.gpu.sass.replay import WarpValues

Numbers = NDArray[np.floating]

_MASK = 0xFFFFFFFF
_SMALLEST = np.float32(2.0**-126)  # normal number of fp32
_SPLIT = float((1 << 27) + 1)
_NOT_COMPUTED = "its values are not computed"


def _refuse(form: Form) -> InputError:
    return InputError(f"{form.instruction.place}: {form.instruction}: {_NOT_COMPUTED}")


# ---- rounding


def _single(exact: NDArray[np.float64], parts: Sequence[str] = ()) -> NDArray[np.float32]:
    """Numbers as fp32, rounded as an opcode says: to the nearest, or RM down, RP up, RZ towards zero."""
    found = exact.astype(np.float32)
    back = found.astype(np.float64)
    if "RM" in parts:
        found = np.where(back > exact, np.nextafter(found, np.float32(-np.inf)), found)
    elif "RP" in parts:
        found = np.where(back < exact, np.nextafter(found, np.float32(np.inf)), found)
    elif "RZ" in parts:
        found = np.where(np.abs(back) > np.abs(exact), np.nextafter(found, np.float32(0)), found)
    return found


def _flushed(found: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """Numbers below the smallest normal one are 0 where the opcode says FTZ."""
    return (
        np.where(np.abs(found) < _SMALLEST, np.copysign(np.float32(0), found), found) if "FTZ" in form.parts else found
    )


def _put(exact: NDArray[np.float64], form: Form) -> tuple[Words, ...]:
    found = _flushed(_single(exact, form.parts), form)
    if "SAT" in form.parts:
        found = np.where(np.isnan(found), np.float32(0), np.clip(found, np.float32(0), np.float32(1)))
    return (found.astype(np.float32).view(np.uint32),)


def _halves_of(exact: NDArray[np.float64], brain: bool, parts: Sequence[str] = ()) -> NDArray[np.uint16]:
    """Numbers as fp16 or bf16."""
    if brain:
        near = bf16(exact)
        if "RZ" in parts:
            near = (exact.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return near
    found = exact.astype(np.float16)
    if "RZ" in parts:
        found = np.where(np.abs(found.astype(np.float64)) > np.abs(exact), np.nextafter(found, np.float16(0)), found)
    return found.view(np.uint16)


def _packed(
    low: NDArray[np.float64], high: NDArray[np.float64], brain: bool, parts: Sequence[str] = ()
) -> tuple[Words, ...]:
    a, b = (_halves_of(one, brain, parts).astype(np.uint32) for one in (low, high))
    return (a | b << np.uint32(16),)


def _fp32(warp: WarpValues, form: Form, operand: Operand) -> NDArray[np.float64]:
    return _flushed(warp.fp32(operand), form).astype(np.float64)


def _pair(found: NDArray[np.float64]) -> tuple[Words, Words]:
    whole = found.view(np.uint64)
    return (whole & np.uint64(_MASK)).astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)


# ---- arithmetic


def _sum(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_fp32(warp, form, one) for one in form.sources[:2])
    return _put(a + b, form)


def _product(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (_fp32(warp, form, one) for one in form.sources[:2])
    return _put(a * b, form)


def _fused(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b, c = (_fp32(warp, form, one) for one in form.sources[:3])
    return _put(_added(a * b, c), form)


def _added(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """A sum whose last bit says whether it is exact, so that rounding it again is rounding once."""
    found = a + b
    other = found - a
    error = (a - (found - other)) + (b - other)
    odd = found.view(np.int64) & 1 != 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & ~odd & np.isfinite(found), np.nextafter(found, towards), found)


def _double(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """DADD, DMUL, DFMA."""
    values = [warp.fp64(one) for one in form.sources]
    name = form.parts[0]
    if name == "DADD":
        return _pair(values[0] + values[-1])
    if name == "DMUL":
        return _pair(values[0] * values[1])
    return _pair(fused(*values[:3]))


def fused(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """a b + c in fp64 with the product's rounding put right, by splitting the factors (Dekker 1971)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = (
        (_SPLIT * x - (_SPLIT * x - x), x - (_SPLIT * x - (_SPLIT * x - x))) for x in (a, b)
    )
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    other = total - product
    rest = (product - (total - other)) + (c - other)
    found = total + (rest + error)
    return np.where(np.isfinite(found) & np.isfinite(total), found, total)


def _smaller_or_larger(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = (warp.fp32(one) for one in form.sources[:2])
    found = np.where(warp.predicate(form.inputs[0]), np.fmin(a, b), np.fmax(a, b))
    if "NAN" in form.parts:
        found = np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), found)
    return (found.astype(np.float32).view(np.uint32),)


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
    name, *form_of = form.parts[1:]
    if name in ("RCP64H", "RSQ64H"):  # of the upper word of fp64, whose lower one is 0
        source = form.sources[0]
        sign, bits = np.uint32(source.negated << 31), warp.word(source)
        bits = (bits & np.uint32(0x7FFFFFFF) if source.absolute else bits) ^ sign
        upper = (bits.astype(np.uint64) << np.uint64(32)).view(np.float64)
        return (_pair(_ROOTS[name[:3]](upper))[1],)
    if name not in _ROOTS or any(part not in ("F16", "F16_V2") for part in form_of):
        raise _refuse(form)
    if form_of:
        low, high = (_ROOTS[name](one.astype(np.float64)) for one in warp.halves(form, False)[0])
        return _packed(low, high, False)
    value = warp.fp32(form.sources[0])
    value = np.where(np.abs(value) < _SMALLEST, np.copysign(np.float32(0), value), value)
    return (_ROOTS[name](value.astype(np.float64)).astype(np.float32).view(np.uint32),)


# ---- comparisons


def _fsetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    return compared(warp, form, _ordered(form, form.parts[1], *(_fp32(warp, form, one) for one in form.sources[:2])))


def _ordered(form: Form, name: str, a: Numbers, b: Numbers) -> NDArray[np.bool_]:
    """Whether a comparison of floating-point numbers holds."""
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("NAN", "NUM"):
        return unordered if name == "NAN" else ~unordered
    if name[:2] not in ("LT", "LE", "EQ", "NE", "GT", "GE"):
        raise _refuse(form)
    found = holds(name[:2], a, b)
    if name[:2] == "NE" and name != "NEU":
        return found & ~unordered
    return found | unordered if name.endswith("U") else found


def _fset(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    name = next(part for part in form.parts[1:] if part != "BF")
    found = joined(warp, form, _ordered(form, name, *(_fp32(warp, form, one) for one in form.sources[:2])))
    yes = 0x3F800000 if "BF" in form.parts else _MASK
    return (np.where(found, np.uint32(yes), np.uint32(0)),)


def _dsetp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """DSETP; MIN and MAX say whether the first one is it, and whether neither is a number."""
    a, b = (warp.fp64(one) for one in form.sources[:2])
    if form.parts[1] not in ("MIN", "MAX"):
        return compared(warp, form, _ordered(form, form.parts[1], a, b))
    first = (a < b if form.parts[1] == "MIN" else a > b) | np.isnan(b)
    for output, found in zip(form.outputs, (first, np.isnan(a) & np.isnan(b)), strict=False):
        warp.set_predicate(output, found)
    return ()


def _fchk(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """Whether a quotient needs more than the short way: of exponents near the ends of the format."""
    a, b = (warp.fp32(one).view(np.uint32).astype(np.int64) >> 23 & 0xFF for one in form.sources[:2])
    ordinary = (a > 24) & (a < 254) & (b > 1) & (b < 253) & (a - b > -125) & (a - b < 126)
    warp.set_predicate(form.outputs[0], ~ordinary)
    return ()


# ---- conversions


def _i2f(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    source = form.sources[0]
    exact = _narrowed(warp, form, source)
    if "F64" in form.parts:
        unsigned = exact.view(np.uint64) if "U64" in form.parts else exact
        return _pair(unsigned.astype(np.float64))
    if "U64" in form.parts or "S64" in form.parts:
        whole = exact.view(np.uint64) if "U64" in form.parts else exact
        found = whole.astype(np.float32)
        away = [int(x) - int(y) for x, y in zip(found.astype(np.float64), whole, strict=True)]
        if "RP" in form.parts:
            found = np.where(np.array([x < 0 for x in away]), np.nextafter(found, np.float32(np.inf)), found)
        return (found.view(np.uint32),)
    number = exact.astype(np.float64)
    if "F16" in form.parts or "BF16" in form.parts:
        return (_halves_of(number, "BF16" in form.parts).astype(np.uint32),)
    return (_single(number, form.parts).view(np.uint32),)


def _narrowed(warp: WarpValues, form: Form, source: Operand) -> NDArray[np.int64]:
    """A whole number, or the byte or half of a register that is one."""
    kind = next((part for part in form.parts if part in ("U8", "S8", "U16", "S16")), "")
    if not kind:
        return integer(warp, form, source, signed(form))
    size = int(kind[1:])
    selected = source.text.rpartition(".")[2]
    shift = int(selected[1]) * size if selected[:1] in ("B", "H") and selected[1:2].isdigit() else 0
    value = warp.word(source).astype(np.int64) >> shift & (1 << size) - 1
    return value - ((value >> size - 1) << size) if kind[0] == "S" else value


def _rounded(value: Numbers, parts: Sequence[str]) -> Numbers:
    ways: dict[str, Callable[[Numbers], Numbers]] = {"FLOOR": np.floor, "CEIL": np.ceil, "TRUNC": np.trunc}
    found: Numbers = next((ways[part] for part in parts if part in ways), np.rint)(value)
    return found


def _given(warp: WarpValues, form: Form) -> NDArray[np.float64]:
    """The number that a conversion reads, of the format that its opcode names last."""
    kinds = [part for part in form.parts[1:] if part in ("F64", "F32", "F16", "BF16")]
    kind = kinds[-1] if kinds else "F32"
    if kind == "F64":
        return warp.fp64(form.sources[0])
    if kind == "F32":
        return _fp32(warp, form, form.sources[0])
    return warp.halves(form, kind == "BF16")[0][0].astype(np.float64)


def _f2i(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    kind = next((part for part in form.parts[1:] if part[0] in "SU" and part[1:].isdigit()), "S32")
    size, signs = int(kind[1:]), kind[0] == "S"
    number = _given(warp, form)
    number = np.nan_to_num(
        _rounded(number, form.parts), nan=-np.inf if size == 64 else 0.0, posinf=np.inf, neginf=-np.inf
    )
    low, high = (-(1 << size - 1), (1 << size - 1) - 1) if signs else (0, (1 << size) - 1)
    whole = [low if x <= low else high if x >= high else int(x) for x in number]
    found = np.array([one & (1 << 64) - 1 for one in whole], dtype=np.uint64).view(np.int64)
    return both(found) if size == 64 else (word(found),)


def _f2f(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    value, kind = _given(warp, form), form.parts[1]
    if kind == "F64":
        return _pair(value)
    if kind in ("F16", "BF16"):
        return (_halves_of(value, kind == "BF16", form.parts).astype(np.uint32),)
    return _put(value, form)


def _frnd(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    found = _rounded(_given(warp, form), form.parts).astype(np.float64)
    if "F64" in form.parts:
        return _pair(found)
    if "F16" in form.parts or "BF16" in form.parts:
        return (_halves_of(found, "BF16" in form.parts).astype(np.uint32),)
    return _put(found, form)


def _f2fp(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    narrow = next((NAMES[part] for part in form.parts if part in NAMES), "")
    if narrow and form.parts[1] == "F16" and "UNPACK_B" in form.parts:
        words = warp.word(form.sources[0]) >> np.uint32(16 if form.sources[0].text.endswith(".H1") else 0)
        parts = [(words >> np.uint32(8 * k) & np.uint32(0xFF)).astype(np.uint8) for k in range(2)]
        first, second = (of_fp8(part, narrow).astype(np.float64) for part in parts)
        return _packed(first, second, False)
    high, low = (warp.fp32(one).astype(np.float64) for one in form.sources[:2])
    if narrow and "F32" in form.parts and "PACK_AB_MERGE_C" in form.parts:
        a, b = (fp8(one, narrow).astype(np.uint32) for one in (low, high))
        return (a | b << np.uint32(8) | warp.word(form.sources[2]) << np.uint32(16),)
    if "PACK_AB" not in form.parts or narrow:
        raise _refuse(form)
    if "RELU" in form.parts:
        high, low = np.maximum(high, 0), np.maximum(low, 0)
    return _packed(low, high, "BF16" in form.parts, form.parts)


# ---- pairs of halves


def _brain(form: Form) -> bool:
    return any(part.startswith("BF16") for part in form.parts)


def _halves(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    """HADD2, HMUL2, HFMA2: both halves; with F32 the sum of lower ones as fp32."""
    brain = _brain(form)
    numbers = warp.halves(form, brain)
    found = []
    for k in range(2):
        a, b, *c = (one[k].astype(np.float64) for one in numbers)
        name = form.parts[0]
        found.append(a + b if name == "HADD2" else _added(a * b, c[0]) if name == "HFMA2" else a * b)
    if "RELU" in form.parts:
        found = [np.maximum(one, 0) for one in found]
    if "SAT" in form.parts:
        found = [np.clip(one, 0, 1) for one in found]
    return _put(found[0], form) if "F32" in form.parts else _packed(found[0], found[1], brain)


def _compared_halves(warp: WarpValues, form: Form) -> list[NDArray[np.bool_]]:
    """Whether a comparison holds, of lower and upper halves."""
    name = next(part for part in form.parts[1:] if part != "BF" and not part.startswith("BF16"))
    a, b = warp.halves(form, _brain(form))
    return [_ordered(form, name, a[k], b[k]) for k in range(2)]


def _hset2(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    yes = (0x3F80 if _brain(form) else 0x3C00) if "BF" in form.parts else 0xFFFF
    low, high = (
        np.where(joined(warp, form, one), np.uint32(yes), np.uint32(0)) for one in _compared_halves(warp, form)
    )
    return (low | high << np.uint32(16),)


def _hsetp2(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    low, high = _compared_halves(warp, form)
    if "H_AND" in form.parts:
        return compared(warp, form, low & high)
    for output, found in zip(form.outputs, (low, high), strict=False):
        warp.set_predicate(output, joined(warp, form, found))
    return ()


def _hmnmx2(warp: WarpValues, form: Form) -> tuple[Words, ...]:
    a, b = warp.halves(form, _brain(form))
    least = warp.predicate(form.inputs[0])
    found = []
    for k in range(2):
        one = np.where(least, np.fmin(a[k], b[k]), np.fmax(a[k], b[k])).astype(np.float64)
        found.append(np.where(np.isnan(a[k]) | np.isnan(b[k]), np.nan, one) if "NAN" in form.parts else one)
    return _packed(found[0], found[1], _brain(form))


FLOATS: dict[str, Function] = {
    "FADD": _sum, "FMUL": _product, "FFMA": _fused, "FMNMX": _smaller_or_larger, "MUFU": _mufu, "FSETP": _fsetp,
    "FSET": _fset, "FCHK": _fchk, "DADD": _double, "DMUL": _double, "DFMA": _double, "DSETP": _dsetp, "I2F": _i2f,
    "I2FP": _i2f, "F2I": _f2i, "F2F": _f2f, "FRND": _frnd, "F2FP": _f2fp, "HADD2": _halves, "HMUL2": _halves,
    "HFMA2": _halves, "HSET2": _hset2, "HSETP2": _hsetp2, "HMNMX2": _hmnmx2, "VHMNMX": _hmnmx2,
}  # fmt: skip
"""By the first part of the opcode."""
