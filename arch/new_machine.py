"""A machine that nobody has built yet: a machine file from a base and wishes, in which what belongs together fits."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import yaml

from arch.errors import InputError
from arch.families import family
from arch.leaves import leaves, spec_class
from arch.load import load_arch
from arch.near import hint
from arch.show import describe

_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)x")


@dataclass(frozen=True)
class NewMachine:
    """text: the machine file. spec: what it describes. changes: figures that differ from the base's, with both values
    and why. warnings: figures beyond what real machines have."""

    text: str
    spec: Any
    changes: tuple[tuple[str, str, str, str], ...]
    warnings: tuple[str, ...]


def new_machine(name: str, base: str, wishes: Mapping[str, str], title: str = "") -> NewMachine:
    """A machine called `name` on `base`, a preset or a chip.

    wishes: by word of its family (`tilewave new-machine --help`), a value with its unit, or a factor such as `2x`.
    Raises InputError for a wish that its family does not have, a value that is none, and a machine that does not fit
    together, with what is nearest.
    """
    spec = load_arch(base)
    rules = _rules(spec)
    unknown = next((word for word in wishes if word not in rules), "")
    if unknown:
        near = hint(unknown, rules, "; nearest: {}")
        raise InputError(f"new-machine: unknown wish {unknown!r}, one of {', '.join(rules)}{near}")
    if not wishes:
        raise InputError(f"new-machine: say what is new: {', '.join(f'--{word}' for word in rules)}")
    lines: dict[str, tuple[str, str]] = {}
    made = spec
    for word, (path, rule) in rules.items():
        if word in wishes:
            value = _value(spec, word, path, wishes[word])
            lines |= {figure: (text, why) for figure, text, why in rule(made, value)}
            made = load_arch(base, {figure: text for figure, (text, _) in lines.items()})
    asked = " ".join(f"--{word} {value}" for word, value in wishes.items())
    text = _text(name, base, title or f"{spec.name} with {asked}", asked, lines)
    return NewMachine(text, made, _changes(spec, made, lines), tuple(made.implausible))


def _rules(spec: Any) -> Mapping[str, Any]:
    found = family(spec.family)
    if not found.new_machine:
        raise InputError(
            f"new-machine: {spec.name} is of the family {spec.family}, which has no rules of what belongs together; "
            "write a machine file with base: and the figures that differ (docs/machines.md)"
        )
    return found.load("new_machine")  # type: ignore[no-any-return]


def _value(spec: Any, word: str, path: str, text: str) -> Fraction:
    """What a wish asks for, in the base unit of its figure; of one without a figure the factor."""
    factor = _FACTOR.fullmatch(text)
    leaf = leaves(spec_class(spec.family)).get(path)
    try:
        if factor is not None:
            value = Fraction(factor[1]) * (_exact(spec, leaf.attributes) if leaf else 1)
        elif leaf is None:
            raise ValueError("must be a factor")
        else:
            value = leaf.unit.parse(text) if leaf.unit else Fraction(text)
        if value <= 0:
            raise ValueError("must be more than 0")
    except ValueError as error:
        raise InputError(f"new-machine: --{word} {text}: {error}; or write a factor, such as 2x") from None
    return value


def _exact(spec: Any, attributes: Iterable[str]) -> Fraction:
    """A figure of a machine in its base unit."""
    value = functools.reduce(getattr, attributes, spec)
    return Fraction(repr(value) if isinstance(value, float) else value)


def _text(name: str, base: str, title: str, asked: str, lines: Mapping[str, tuple[str, str]]) -> str:
    """The machine file."""
    source = f"assumed: tilewave new-machine --base {base} {asked}"
    figures = {path: [_typed(value), "wish", why] for path, (value, why) in lines.items()}
    head = yaml.safe_dump(
        {"base": base, "name": name, "title": title, "sources": {"wish": source}}, sort_keys=False, width=1000
    )
    entries = {path: yaml.safe_dump(entry, default_flow_style=True, width=1000) for path, entry in figures.items()}
    return head + "".join(f"{path}: {entry.strip()}\n" for path, entry in entries.items())


def _typed(value: str) -> str | int:
    return int(value) if value.isdigit() else value


def _changes(old: Any, new: Any, lines: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str, str, str], ...]:
    """Figures that differ: their path, both values, and why. Rows of instructions that change alike are one line."""
    before = {row.path: row.value for row in describe(old)}
    found: list[tuple[str, str, str, str]] = []
    rows: Counter[str] = Counter()
    for row in describe(new):
        if row.value == before.get(row.path):
            continue
        if row.path.startswith("instructions."):
            rows[next(why for path, (_, why) in lines.items() if path.startswith(f"{row.path}."))] += 1
        else:
            why = lines[row.path][1] if row.path in lines else new.sources.get(row.path, "")
            found.append((row.path, before.get(row.path, ""), row.value, why))
    return (*found, *(("instructions", f"{count} rows", "intervals", why) for why, count in rows.items()))
