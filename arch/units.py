"""Quantities as people write them ("50 MiB", "3.35 TB/s", "45 ns"), turned into numbers of one base unit.

Text always needs its unit; a bare number that comes from Python is taken in the base unit that the attribute's name
carries. SI and IEC prefixes are kept apart: 1 kB is 1000 bytes, 1 KiB is 1024, and "KB", which is used for both, is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from arch.digits import within_range

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")
_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
# Above these no figure makes sense, and int64 ticks of a run would be at risk.
_MAX = 2**53
_MAX_CYCLES = 2**31
_MAX_PS = 10**13  # 10 s
# Below this a kernel of any size would take hours of simulated time.
_MIN_BYTES_PER_S = 10**8
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, eq=False)
class Unit:
    """One kind of quantity: the spellings of its units with their factors to the base unit, and those printed."""

    example: str
    factors: dict[str, Fraction]
    printed: tuple[str, ...]

    def parse(self, value: object) -> Fraction:
        """Return the value in the base unit, exactly; raise ValueError with the reason for any other text."""
        if isinstance(value, bool) or not isinstance(value, str | int | float | Fraction):
            raise ValueError(f"{value!r} is not a quantity: write for example {self.example!r}")
        if not isinstance(value, str):
            return Fraction(value) if not isinstance(value, float) else Fraction(repr(value))
        return self._parse(value)

    @lru_cache(maxsize=4096)  # noqa: B019  (there are a dozen units, for as long as the program runs)
    def _parse(self, value: str) -> Fraction:
        match = _NUMBER.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a number with a unit: write for example {self.example!r}")
        number, unit = match[1], match[2]
        if not within_range(number):
            raise ValueError(f"{number[:40]!r} is out of range: write for example {self.example!r}")
        if unit == "" and Fraction(number.replace("_", "")) == 0:
            return Fraction(0)
        if unit in self.factors:
            return Fraction(number.replace("_", "")) * self.factors[unit]
        if unit == "":
            raise ValueError(f"{value!r} has no unit: write for example {self.example!r}")
        if unit.replace("KB", "kB") in self.factors:
            raise ValueError(f"{value!r} is ambiguous: write '{number} kB' (1000 bytes) or '{number} KiB' (1024 bytes)")
        same_letters = {spelling.lower(): spelling for spelling in self.factors}.get(unit.lower())
        hint = f"{number} {same_letters}" if same_letters else self.example
        raise ValueError(f"{unit!r} in {value!r} is not a unit of this quantity: write for example {hint!r}")

    @lru_cache(maxsize=4096)  # noqa: B019
    def format(self, value: float | Fraction) -> str:
        """Write a value of the base unit exactly, with the largest unit in which it is a short number."""
        exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
        texts = [(_decimal(exact / self.factors[unit]), unit) for unit in self.printed if exact >= self.factors[unit]]
        short = [text for text in texts if len(text[0]) <= 8]
        number, unit = (short or texts[-1:] or [(_decimal(exact), self.printed[-1])])[0]
        return f"{number} {unit}"


def _decimal(number: Fraction) -> str:
    """Write a number with every digit; one without a finite decimal as the nearest float."""
    if number.denominator == 1:
        return str(number.numerator)
    digits = Decimal(number.numerator) / Decimal(number.denominator)
    return f"{digits.normalize():f}" if Fraction(digits) == number else repr(float(number))


def _prefixed(unit: str, prefixes: dict[str, int], scale: Fraction | int = 1) -> dict[str, Fraction]:
    return {prefix + unit: Fraction(factor) * scale for prefix, factor in prefixes.items()}


_BYTE_UNITS = _prefixed("B", _SI) | _prefixed("B", _IEC)
_CYCLE_WORDS = ("clk", "cycle")
_TIMES = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_PICO, _NANO = Fraction(1000), Fraction(10**6)  # a picojoule and a nanojoule in femtojoules

BYTES = Unit("50 MiB", _BYTE_UNITS, ("GiB", "GB", "MiB", "MB", "KiB", "kB", "B"))
BYTES_PER_S = Unit("3.35 TB/s", {f"{u}/s": f for u, f in _BYTE_UNITS.items()}, ("TB/s", "GB/s", "MB/s", "B/s"))
BYTES_PER_CYCLE = Unit("64 B/clk", {f"B/{word}": Fraction(1) for word in _CYCLE_WORDS}, ("B/clk",))
CYCLES = Unit("265 cycles", {word: Fraction(1) for word in ("cycles", "cycle", "clk")}, ("cycles",))
HERTZ = Unit("1.755 GHz", _prefixed("Hz", _SI), ("GHz", "MHz", "kHz", "Hz"))
TIME = Unit("45 ns", {unit: Fraction(factor) for unit, factor in _TIMES.items()}, ("ms", "us", "ns", "ps"))
POWER = Unit("700 W", {"W": Fraction(1000), "mW": Fraction(1), "kW": Fraction(10**6)}, ("W", "mW"))
VOLTAGE = Unit("0.75 V", {"V": Fraction(1000), "mV": Fraction(1)}, ("V", "mV"))
ENERGY = Unit("25 pJ", {"fJ": Fraction(1), "pJ": _PICO, "nJ": _NANO}, ("nJ", "pJ", "fJ"))
ENERGY_PER_BYTE = Unit(
    "13.1 pJ/bit",
    {"fJ/B": Fraction(1), "pJ/B": _PICO, "nJ/B": _NANO, "pJ/bit": 8 * _PICO, "fJ/bit": Fraction(8)},
    ("pJ/B", "fJ/B"),
)
ENERGY_PER_FLOP = Unit("0.55 pJ/FLOP", {"fJ/FLOP": Fraction(1), "pJ/FLOP": _PICO}, ("pJ/FLOP", "fJ/FLOP"))


def _to_int(unit: Unit) -> Callable[[object], int]:
    def convert(value: object) -> int:
        exact = unit.parse(value)
        if exact.denominator != 1:
            # Datasheets round: a figure such as 13.13 pJ/bit need not be whole in the base unit.
            return round(exact)
        return int(exact)

    return convert


def _to_float(unit: Unit) -> Callable[[object], float]:
    return lambda value: float(unit.parse(value))


def _schema(unit: Unit) -> WithJsonSchema:
    spellings = "|".join(re.escape(spelling) for spelling in unit.factors)
    text: dict[str, Any] = {
        "type": "string",
        "pattern": rf"^\s*[0-9._eE+-]+\s*({spellings})\s*$",
        "examples": [unit.example],
    }
    return WithJsonSchema({"anyOf": [text, {"type": "number", "minimum": 0}]})


# Annotated types of the specs. Integers except where a figure is a rate or an average that need not be whole: a
# lowering rounds those once, to ticks or to bytes per tick, and engines never add them up.
Bytes = Annotated[int, BeforeValidator(_to_int(BYTES)), Field(ge=0, le=_MAX), BYTES, _schema(BYTES)]
BytesPerSecond = Annotated[
    int, BeforeValidator(_to_int(BYTES_PER_S)), Field(ge=_MIN_BYTES_PER_S, le=_MAX), BYTES_PER_S, _schema(BYTES_PER_S)
]
BytesPerCycle = Annotated[
    float, BeforeValidator(_to_float(BYTES_PER_CYCLE)), Field(gt=0, le=_MAX), BYTES_PER_CYCLE, _schema(BYTES_PER_CYCLE)
]
Cycles = Annotated[int, BeforeValidator(_to_int(CYCLES)), Field(ge=0, le=_MAX_CYCLES), CYCLES, _schema(CYCLES)]
MeanCycles = Annotated[float, BeforeValidator(_to_float(CYCLES)), Field(ge=0, le=_MAX_CYCLES), CYCLES, _schema(CYCLES)]
Hertz = Annotated[int, BeforeValidator(_to_int(HERTZ)), Field(ge=10**6, le=10**12), HERTZ, _schema(HERTZ)]
Picoseconds = Annotated[int, BeforeValidator(_to_int(TIME)), Field(ge=0, le=_MAX_PS), TIME, _schema(TIME)]
Milliwatts = Annotated[int, BeforeValidator(_to_int(POWER)), Field(ge=0, le=_MAX), POWER, _schema(POWER)]
Millivolts = Annotated[int, BeforeValidator(_to_int(VOLTAGE)), Field(gt=0, le=_MAX), VOLTAGE, _schema(VOLTAGE)]
Femtojoules = Annotated[int, BeforeValidator(_to_int(ENERGY)), Field(ge=0, le=_MAX), ENERGY, _schema(ENERGY)]
FemtojoulesPerByte = Annotated[
    int, BeforeValidator(_to_int(ENERGY_PER_BYTE)), Field(ge=0, le=_MAX), ENERGY_PER_BYTE, _schema(ENERGY_PER_BYTE)
]
FemtojoulesPerFlop = Annotated[
    int, BeforeValidator(_to_int(ENERGY_PER_FLOP)), Field(ge=0, le=_MAX), ENERGY_PER_FLOP, _schema(ENERGY_PER_FLOP)
]

# A path is what people type; the attribute adds the unit. `word` turns one into the other.
_SUFFIXES = (
    "_bytes_per_cycle",
    "_bytes_per_s",
    "_bytes",
    "_cycles",
    "_ps",
    "_hz",
    "_mw",
    "_mv",
    "_fj_per_byte",
    "_fj_per_flop",
    "_fj",
)


@lru_cache(maxsize=1024)
def word(attribute: str) -> str:
    """Return the word that people type for an attribute: its name without the unit ("size_bytes" is typed "size")."""
    return next((attribute.removesuffix(suffix) for suffix in _SUFFIXES if attribute.endswith(suffix)), attribute)
