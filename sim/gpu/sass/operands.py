"""Operands of SASS instructions, read from their text."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from enum import Enum

from arch.errors import InputError

TRUE = 7
"""The predicate that is always true: PT, and UPT."""


class Kind(Enum):
    """What an operand is."""

    REGISTER = "a register"
    UNIFORM = "a uniform register"
    PREDICATE = "a predicate"
    UNIFORM_PREDICATE = "a uniform predicate"
    IMMEDIATE = "a number"
    CONSTANT = "a constant"
    ADDRESS = "an address"
    LABEL = "a label"
    NAME = "a name"
    DESCRIPTOR = "descriptors of tiles in shared memory"


@dataclass(frozen=True)
class Operand:
    """One operand. index: of a register, -1 for RZ and URZ; of a predicate. value: of a number; of a constant its
    offset in the bank, to which a register may be added; of an address what is added to its registers.

    negated: minus, or not of a predicate. inverted: `~`. wide: 64 bits (`R2.64`). uniform: uniform register of an
    address or of a constant, -2 none. unsigned: the register of an address is 32 bits wide beside a uniform base.
    shift: bits by which the register of an address is shifted (`R2.X16`).
    """

    kind: Kind
    text: str
    index: int = -1
    value: int = 0
    bank: int = 0
    negated: bool = False
    inverted: bool = False
    absolute: bool = False
    wide: bool = False
    uniform: int = -2
    uniform_wide: bool = False
    unsigned: bool = False
    shift: int = 0


_SHIFTS = {".X4": 2, ".X8": 3, ".X16": 4}
_ADDRESS_FORMS = {"", ".64", ".U32", *_SHIFTS}
_REGISTER = re.compile(r"(U?)R(\d+|Z)((?:\.\w+)*)")
_PREDICATE = re.compile(r"(U?)P(\d|T)((?:\.\w+)*)")
_CONSTANT = re.compile(r"c\[(0x[0-9a-f]+)\]\[(?:(U?)R(\d+|Z)\+?)?(-?0x[0-9a-f]+)?\]((?:\.\w+)*)")
_HEX = re.compile(r"0x[0-9a-f]+")
_FLOAT = re.compile(r"\d+(\.\d*)?(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?")
_SPECIAL_FLOATS = {"INF": 0x7F800000, "QNAN": 0x7FC00000, "SNAN": 0x7FA00000}


def read_operand(text: str, floating: int = 0) -> Operand:
    """An operand. floating: bits of the format of decimal numbers, 32 or 64; 0: they are integers. InputError for text
    that is none."""
    whole, negated, inverted, absolute = text, False, False, False
    while text[:1] in ("-", "~", "!", "|", "+"):
        sign, text = text[0], text[1:]
        negated |= sign in "-!"
        inverted |= sign == "~"
        absolute |= sign == "|"
    text = text.replace("|", "")
    if text.endswith(".reuse"):
        text = text.removesuffix(".reuse")
    flags = {"negated": negated, "inverted": inverted, "absolute": absolute}
    if match := _REGISTER.fullmatch(text):
        index = -1 if match[2] == "Z" else int(match[2])
        kind = Kind.UNIFORM if match[1] else Kind.REGISTER
        return Operand(kind, whole, index, wide=".64" in match[3], **flags)
    if match := _PREDICATE.fullmatch(text):
        index = TRUE if match[2] == "T" else int(match[2])
        return Operand(Kind.UNIFORM_PREDICATE if match[1] else Kind.PREDICATE, whole, index, **flags)
    if match := _CONSTANT.fullmatch(text):
        offset, register = int(match[4] or "0", 16), int(match[3]) if (match[3] or "Z") != "Z" else -1
        uniform = register if match[2] and register >= 0 else -2
        index = -1 if match[2] else register
        return Operand(Kind.CONSTANT, whole, index, offset, int(match[1], 16), uniform=uniform, **flags)
    if text.startswith("gdesc["):
        return Operand(Kind.DESCRIPTOR, whole)
    if "[" in text and not text.startswith("c["):
        return _address(whole)
    if text.startswith("`("):
        return Operand(Kind.LABEL, text[2:].partition(")")[0])
    if _HEX.fullmatch(text):
        value = int(text, 16)
        return Operand(Kind.IMMEDIATE, whole, value=-value if negated else value)
    if text in _SPECIAL_FLOATS:
        if floating == 64:
            number = {"INF": math.inf}.get(text, math.nan)
            return Operand(Kind.IMMEDIATE, whole, value=_double(-number if negated else number))
        return Operand(Kind.IMMEDIATE, whole, value=_SPECIAL_FLOATS[text] ^ (negated << 31))
    if _FLOAT.fullmatch(text):
        number = -float(text) if negated else float(text)
        if floating == 64:
            return Operand(Kind.IMMEDIATE, whole, value=_double(number))
        bits = struct.unpack("<I", struct.pack("<f", number))[0] if floating else int(number)
        return Operand(Kind.IMMEDIATE, whole, value=bits)
    if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", text) or text.startswith(("c[", "{")):
        return Operand(Kind.NAME, text)
    raise InputError(f"operand {whole} is not understood")


def _double(number: float) -> int:
    """The bits of an fp64 number."""
    return int.from_bytes(struct.pack("<d", number), "little")


def _address(whole: str) -> Operand:
    """`[R2.64+0x10]`, `[R3+UR4]`, `desc[UR22][R26.64]`."""
    inside = whole.rpartition("[")[2].rstrip("]")
    index, uniform, value, shift = -1, -2, 0, 0
    wide = unsigned = uniform_wide = False
    for part in inside.replace("+-", "+~").split("+"):
        if match := _REGISTER.fullmatch(part):
            number, form = -1 if match[2] == "Z" else int(match[2]), match[3].removesuffix(".reuse")
            if form not in _ADDRESS_FORMS or (match[1] and form in _SHIFTS):
                raise InputError(f"address {whole} is not understood")
            if match[1]:
                uniform, uniform_wide = number, form == ".64"
            else:
                index, wide, unsigned, shift = number, form == ".64", form == ".U32", _SHIFTS.get(form, 0)
        elif _HEX.fullmatch(part.lstrip("~-")):
            value += -int(part.lstrip("~-"), 16) if part[0] in "~-" else int(part, 16)
        else:
            raise InputError(f"address {whole} is not understood")
    return Operand(
        Kind.ADDRESS, whole, index, value, wide=wide, uniform=uniform, uniform_wide=uniform_wide, unsigned=unsigned,
        shift=shift,
    )  # fmt: skip
