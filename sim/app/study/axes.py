"""What a study varies: `KEY=VALUES` as people type it, turned into the cases to run.

A key is a figure of the machine (`dram.bandwidth`), a key of the workload (`m`), `arch`, `schedule` or an option of the
run (`l2`, `clock`, `scope`, `data`). Several keys that share values are joined by commas (`m,n,k=1024:8192:*2`). Values
are separated by commas; each is a value or a range:

- `A:B` and `A:B:STEP`: from A to B in steps of STEP (whole numbers: 1),
- `A:B:*F`: each F times the one before,
- `A:B:linN`, `A:B:logN`: N values at equal distances, or at equal ratios.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from arch.digits import MOST_DIGITS, whole_size, within_range
from arch.errors import InputError
from arch.leaves import leaves
from arch.load import load_arch, override_pairs
from arch.near import hint
from arch.spec import labelled
from arch.units import Unit
from sim.app.families.request import OPTION_DEFAULTS, Request
from sim.app.report.asked import DEFAULT_CONDITIONS, Asked, titled
from workloads.parse import parse, whole_keys

RUN_KEYS = ("arch", *(name for name, value in OPTION_DEFAULTS.items() if isinstance(value, str) and name != "program"))
"""Keys that are neither figures of the machine nor keys of the workload."""

MOST_POINTS = 100_000

_LOG_DIGITS = 6
"""Significant digits of values at equal ratios."""

_STEPS = re.compile(r"(lin|log)([0-9]+)")
_NUMBER = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Axis:
    """Keys that vary together, and their values: one tuple of texts, a text a key, for each position."""

    keys: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Base:
    """What a study starts from: everything that its axes leave alone. archs: every machine of the study. choice: how
    schedules are chosen, in words. keys: of what is run, and whether their values are whole numbers, where it is no
    operator."""

    workload: str
    archs: tuple[str, ...]
    set: tuple[str, ...] = ()
    schedule: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    choice: str = ""
    keys: Mapping[str, bool] | None = None

    @property
    def whole_keys(self) -> Mapping[str, bool]:
        """Keys of what is run, and whether their values are whole numbers."""
        return whole_keys(self.workload) if self.keys is None else self.keys

    @property
    def asked(self) -> Asked:
        """What is asked of every run whose axes do not say otherwise."""
        return Asked(
            schedule=self.schedule,
            without=tuple(self.options.get("without", ())),
            tune=self.options.get("tune", False),
            pdl=self.options.get("pdl", False),
            conditions={name: self.options.get(name, default) for name, default in DEFAULT_CONDITIONS.items()},
            overrides={path: str(value) for path, value in override_pairs(self.set)},
        )

    @property
    def title(self) -> str:
        """What all runs have in common; a machine is named where there is but one."""
        machine = f"{self.workload} on {self.archs[0]}" if len(self.archs) == 1 else self.workload
        schedule = [f"schedule {self.schedule}"] if self.schedule != "auto" else []
        choice = [self.choice] if self.choice else []
        return titled(labelled(machine, self.asked.overrides), [*schedule, *choice, *self.asked.unusual])


@dataclass(frozen=True)
class Point:
    """One position of all axes, with the case it stands for, or the reason why there is none."""

    values: Mapping[str, str]
    case: Request | None
    reason: str = ""


def axes_of(base: Base, vary: Sequence[Sequence[str]]) -> tuple[Base, list[Axis]]:
    """The base with every machine that the axes name, and the axes of all `--vary`."""
    named = [text.partition("=")[2] for words in vary for text in words if text.partition("=")[0].strip() == "arch"]
    if named and base.archs:
        raise InputError("--vary arch=...: the machines are named twice, leave --arch out")
    if not named and not base.archs:
        raise InputError("--arch A is needed, or --vary arch=A,B")
    archs = base.archs or tuple(name.strip() for names in named for name in names.split(","))
    base = replace(base, archs=archs)
    return base, [parse_axis(words, base) for words in vary]


def parse_axis(words: Sequence[str], base: Base) -> Axis:
    """One `--vary`: its words go together, position by position. InputError names what is wrong."""
    columns: list[tuple[tuple[str, ...], list[str]]] = []
    for text in words:
        left, equals, values = text.partition("=")
        keys = tuple(name.strip() for name in left.split(","))
        if not equals or not values.strip() or not all(keys):
            raise InputError(
                f"--vary {text!r} is not of the form KEY=VALUES, such as 'sm.count=66,132' or 'm=256:4096:*2'"
            )
        kinds = {key: _kind(key, base) for key in keys}
        unit, whole = kinds[keys[0]]
        other = next((key for key in keys if kinds[key] != kinds[keys[0]]), None)
        if other:
            raise InputError(f"--vary {text!r}: {keys[0]} and {other} are of different kinds and cannot share values")
        columns.append((keys, [value for part in values.split(",") for value in _expand(part, unit, whole, text)]))
    lengths = sorted({len(values) for _, values in columns})
    if len(lengths) > 1:
        shown = ", ".join(f"{','.join(keys)} has {len(values)}" for keys, values in columns)
        raise InputError(
            f"--vary {' '.join(words)}: keys of one --vary go together and need equally many values; {shown}"
        )
    names = tuple(key for keys, _ in columns for key in keys)
    if len(set(names)) < len(names):
        raise InputError(f"--vary {' '.join(words)}: a key is given twice")
    rows = [[value for keys, values in columns for value in [values[i]] * len(keys)] for i in range(lengths[0])]
    return Axis(names, tuple(dict.fromkeys(map(tuple, rows))))


def points(base: Base, axes: Sequence[Axis]) -> list[Point]:
    """Every combination of machines and axes, the last axis fastest.

    A machine that some values do not fit is a point with the reason; if that holds for all, InputError with the first.
    """
    found = [_point(base, values) for values in combinations(base, axes)]
    if all(point.case is None for point in found):
        raise InputError(found[0].reason)
    return found


def combinations(base: Base, axes: Sequence[Axis]) -> list[dict[str, str]]:
    """The values of every combination of machines and axes, the last axis fastest."""
    axes = list(axes)
    named = [key for axis in axes for key in axis.keys]
    doubled = next((key for key in named if named.count(key) > 1), None)
    if doubled:
        raise InputError(f"--vary: {doubled} is varied twice")
    if "arch" not in named and len(base.archs) > 1:
        axes.insert(0, Axis(("arch",), tuple((name,) for name in base.archs)))
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise InputError(
            f"--vary: {count} combinations, at most {MOST_POINTS}; take longer steps or zip the keys in one --vary"
        )
    return [
        {k: v for axis, texts in zip(axes, position, strict=True) for k, v in zip(axis.keys, texts, strict=True)}
        for position in itertools.product(*(axis.values for axis in axes))
    ]


def point_at(base: Base, axes: Sequence[Axis], places: Sequence[int]) -> Point:
    """One combination, by the position on each axis."""
    texts = [(axis, axis.values[place]) for axis, place in zip(axes, places, strict=True)]
    return _point(base, {k: v for axis, values in texts for k, v in zip(axis.keys, values, strict=True)})


def numeric(key: str, value: str, base: Base) -> tuple[str, float | int | str]:
    """Column name with the unit in it, and the value as a number of that unit: `dram.bandwidth_bytes_per_s`, 2e12.

    Words stay words.
    """
    if key in RUN_KEYS:
        return key, value
    for model in _models(base):
        leaf = leaves(model).get(key)
        if leaf is not None:
            name = ".".join((*key.split(".")[:-1], leaf.attributes[-1]))
            if leaf.unit is None:
                return name, _plain(value)
            exact = leaf.unit.parse(value)
            return name, int(exact) if exact.denominator == 1 else float(exact)
    return key, _plain(value)


def _point(base: Base, values: Mapping[str, str]) -> Point:
    arch = values.get("arch") or base.archs[0]
    options = {"schedule": base.schedule, **base.options, **{key: values[key] for key in RUN_KEYS[1:] if key in values}}
    keys = whole_keys(base.workload)
    words = {k: v for k, v in values.items() if k in keys}
    overrides = [f"{k}={v}" for k, v in values.items() if k not in words and k not in RUN_KEYS]
    try:
        machine = load_arch(arch, [*base.set, *overrides])
        return Point(values, Request(str(parse(_with(base.workload, words))), machine, **options))
    except InputError as error:
        return Point(values, None, str(error))


def _with(workload: str, words: Mapping[str, str]) -> str:
    """A workload's text with some keys set."""
    kept = [pair for pair in workload.split() if pair.partition("=")[0] not in words]
    return " ".join([*kept, *(f"{key}={value}" for key, value in words.items())])


def _models(base: Base) -> list[type]:
    """Kinds of machines of the study, each once."""
    return list(dict.fromkeys(type(load_arch(name, base.set)) for name in base.archs))


def _kind(key: str, base: Base) -> tuple[Unit | None, bool]:
    """The unit of a key's values, and whether they are whole numbers. InputError if there is no such key."""
    if key in RUN_KEYS:
        return None, False
    fields = base.whole_keys
    if key in fields:
        return None, fields[key]
    models = _models(base)
    for model in models:
        leaf = leaves(model).get(key)
        if leaf is not None:
            return leaf.unit, leaf.unit is None and "int" in str(leaf.field.annotation)
    if key.startswith("instructions."):
        return None, False
    known = [*RUN_KEYS, *fields, *(path for model in models for path in leaves(model))]
    near = hint(key, known, "; nearest: {}")
    raise InputError(f"--vary {key}: no figure of the machine and no key of {base.workload.split()[0]}{near}")


def _expand(text: str, unit: Unit | None, whole: bool, given: str) -> Iterable[str]:
    """The values of one part between commas."""
    parts = [part.strip().strip("\"'") for part in text.split(":")]
    if whole:
        parts = [_written_out(part) for part in parts]
    if len(parts) == 1:
        return parts
    low, high = _quantity(parts[0], unit, given), _quantity(parts[1], unit, given)
    step = parts[2] if len(parts) == 3 else ""
    if len(parts) > 3 or low is None or high is None:
        raise InputError(
            f"--vary {given!r}: {text} is not a range; write A:B, A:B:STEP, A:B:*FACTOR, A:B:linN or A:B:logN"
        )
    if high < low:
        raise InputError(f"--vary {given!r}: {text} runs backwards; write {parts[1]}:{parts[0]}")
    numbers = _numbers(low, high, step, unit, given)
    if whole:
        numbers = [Fraction(round(number)) for number in numbers]
    return dict.fromkeys(unit.format(number) if unit else _text(number) for number in numbers)


def _numbers(low: Fraction, high: Fraction, step: str, unit: Unit | None, given: str) -> list[Fraction]:
    """The values of a range in the base unit."""
    if match := _STEPS.fullmatch(step):
        count = int(match[2]) if len(match[2]) <= MOST_DIGITS else 0
        if not 2 <= count <= MOST_POINTS:
            raise InputError(f"--vary {given!r}: {step}: write a number of at least 2, such as {match[1]}5")
        if match[1] == "lin":
            return [low + (high - low) * Fraction(i, count - 1) for i in range(count)]
        if low <= 0:
            raise InputError(f"--vary {given!r}: equal ratios need a first value above 0")
        ratio = (_log(high) - _log(low)) / (count - 1)
        inner = [Fraction(f"{float(low) * math.exp(ratio * i):.{_LOG_DIGITS}g}") for i in range(1, count - 1)]
        return [low, *inner, high]
    if step.startswith("*"):
        factor = _quantity(step[1:], None, given)
        if factor is None or factor <= 1 or low <= 0:
            raise InputError(f"--vary {given!r}: {step}: write a factor above 1, such as *2, and start above 0")
        steps = (_log(high) - _log(low)) / (_log(factor) or sys.float_info.min)
        if steps > MOST_POINTS:
            raise InputError(f"--vary {given!r}: {step}: more than {MOST_POINTS} values; write a larger factor")
        count = int(steps + 1e-9)
        return [low * factor**i for i in range(count + 1)]
    size = _quantity(step, unit, given) if step else Fraction(1) if unit is None else None
    if size is None or size <= 0:
        example = unit.format((high - low) / 4) if unit else "128"
        raise InputError(f"--vary {given!r}: {step or 'no step'}: write the step as A:B:{example}, or A:B:lin5")
    count = int((high - low) / size)
    if count > MOST_POINTS:
        raise InputError(f"--vary {given!r}: {count} values, at most {MOST_POINTS}")
    return [low + size * i for i in range(count + 1)]


def _quantity(text: str, unit: Unit | None, given: str) -> Fraction | None:
    """A number in the base unit; None for what is no number."""
    if unit is None:
        if not _NUMBER.fullmatch(text):
            return None
        if not within_range(text):
            raise InputError(f"--vary {given[:60]!r}: {text[:40]} is out of range")
        return Fraction(text.replace("_", ""))
    try:
        return unit.parse(text)
    except ValueError as error:
        raise InputError(f"--vary {given!r}: {error}") from None


def _written_out(text: str) -> str:
    """A size such as `4k` or `2**12` in digits, also as a factor or a step; other texts as they are."""
    factor = "*" if text.startswith("*") else ""
    number = whole_size(text.removeprefix(factor))
    return text if number is None else f"{factor}{number}"


def _log(number: Fraction) -> float:
    """Natural logarithm, also close to 1, where the ratio of two floats has lost the difference."""
    return math.log1p(float(number - 1)) if 0.5 < number < 2 else math.log(number)


def _text(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else repr(float(number))


def _plain(value: str) -> float | int | str:
    """A number if it is one."""
    number = Fraction(value.replace("_", "")) if _NUMBER.fullmatch(value) and within_range(value) else None
    if number is None:
        return value
    return int(number) if number.denominator == 1 else float(number)
