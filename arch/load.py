"""Loads machine descriptions: presets by name or files by path, inheritance, overrides, validation.

`load_arch("h100-sxm", ["l2.size=60 MiB"])` returns a frozen spec. Everything that can be wrong with the input raises
`arch.errors.InputError` with one line that says where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from arch.belongs import GOES, belonging
from arch.dram_standards import with_standards
from arch.errors import InputError
from arch.families import families
from arch.gpu import Instruction
from arch.leaves import documents, has_instructions, leaves, spec_class
from arch.library import chain, find, list_chips
from arch.library import list_archs as list_archs
from arch.near import hint
from arch.plausible import implausible
from arch.preset_file import IDENTITY, Figure, PresetFile, source_text
from arch.show import as_html
from arch.spec import MachineFile, MachineSpec
from arch.units import CYCLES, word

_COLUMNS = [word(name) for name in Instruction.model_fields if name not in ("op", "dtype", "shape")]
"""Columns of an instruction row, as people type them."""

MachineSpec.page = as_html

Overrides = Mapping[str, str | int | float] | Sequence[str]


def load_arch(name_or_path: str | Path, overrides: Overrides = ()) -> Any:
    """Load a preset by name, or a machine file by path (anything with a slash or ending in .yaml), and apply overrides.

    The result is the spec of the family that the file names: a `GpuSpec`, or another `MachineSpec`.

    Overrides are a mapping of paths to values or a sequence of "path=value"; text needs its unit ("60 MiB"), a number
    is in the base unit that the attribute's name carries. Raises InputError.
    """
    path = find(str(name_or_path))
    if isinstance(overrides, str):
        overrides = [overrides]
    stated = _stated(path, tuple(chain(path)))
    asked = dict(override_pairs(overrides))
    for key in asked:
        if key.startswith("instructions.") and key not in stated.figures and not key.endswith((".floor", ".stall")):
            near = hint(key, stated.figures, "; nearest: {}")
            raise InputError(f"override: {key} is no figure of {path.stem}{near} (tilewave archs lists all)")
    asked_for = with_standards(
        PresetFile(figures={key: Figure(value, "", "", "override") for key, value in asked.items()})
    )
    for key, figure in asked_for.figures.items():
        _check_word(stated.model, key, figure.where)
    for key in asked:
        if (mark := documents(stated.model, key)) is not None:
            raise InputError(f"override: {key} documents only: {mark.reason}; change {mark.instead} instead")
    table = {**stated.table, **asked_for.sources}
    sources = {key: _source(figure, table, key) for key, figure in asked_for.figures.items()}
    more = _belonging(stated.figures, asked_for.figures)
    sources |= {key: _source(figure, table, key) for key, figure in more.items()}
    figures = {**stated.figures, **asked_for.figures, **more}
    spec = _build(stated.model, figures, {**stated.sources, **sources}, stated.texts)
    spec._file = stated.origin
    spec._implausible = tuple(implausible(spec, leaves(stated.model)))
    spec._overrides.update({key: str(value) for key, value in asked.items()})
    spec._belonging.update({key: str(figure.text) for key, figure in more.items()})
    return spec


def _belonging(before: Mapping[str, Figure], asked: Mapping[str, Figure]) -> dict[str, Figure]:
    """Figures that go with primary ones that are asked for; values that cannot be read count as not stated."""
    family = before.get("family")
    if family is None or family.text not in families():
        return {}
    known = leaves(spec_class(str(family.text)))

    def value(figures: Mapping[str, Figure], path: str) -> Fraction:
        if path not in figures or path not in known:
            return Fraction(0)
        text, unit = figures[path].text, known[path].unit
        try:
            return unit.parse(text) if unit else Fraction(text)
        except (ValueError, TypeError):
            return Fraction(0)

    return belonging(str(family.text), partial(value, before), partial(value, {**before, **asked}), asked)


@dataclass(frozen=True)
class _Stated:
    """What machine files say, before any override. table: sources by id; sources: of each figure, in full; texts: of
    figures."""

    model: type[MachineSpec]
    figures: Mapping[str, Figure]
    table: Mapping[str, str]
    sources: Mapping[str, str]
    texts: Mapping[str, str]
    origin: MachineFile


@lru_cache(maxsize=64)
def _stated(path: Path, files: tuple[PresetFile, ...]) -> _Stated:
    """What a file and its bases, the root base first, say. Raises InputError for what no machine can have."""
    table: dict[str, str] = {}
    figures: dict[str, Figure] = {}
    for file in map(with_standards, files):
        table |= file.sources
        figures = _inherited(file, figures)
        more = {} if file.shipped else _belonging(figures, file.figures)
        figures |= file.figures | more
    if not path.stem.isprintable():
        raise InputError(f"machine file {path.name!a}: the name has a control character")
    figures.setdefault("name", Figure(path.stem, "", "", path.name))
    family = figures.get("family")
    if family is None:
        raise InputError(
            f"{path.name}: family is missing; one of: {', '.join(families())}, or name a base, a chip such as"
            f" {', '.join(list_chips())} or a machine such as {', '.join(list_archs())}"
        )
    try:
        model = spec_class(str(family.text))
    except InputError as error:
        raise InputError(f"{family.where}: {error}") from None
    for key, figure in figures.items():
        _check_word(model, key, figure.where)
    sources = {key: _source(figure, table, key) for key, figure in figures.items()}
    texts = {key: str(figure.text) for key, figure in figures.items()}
    origin = MachineFile(path.name if path.suffix else f"{path.name}.yaml", _figures_hash(figures))
    return _Stated(model, figures, table, sources, texts, origin)


def _inherited(file: PresetFile, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures of a file's bases that hold in it; those of other silicon, which the file `nearest` names, say so."""
    held = dict(figures)
    for lacking, where in file.lacks.items():
        gone = [path for path in held if f"{path}.".startswith(f"{lacking}.")]
        if not gone:
            near = hint(lacking, held, "; nearest: {}")
            raise InputError(f"{where}: lacks {lacking}, which the base does not have either{near}")
        for path in gone:
            del held[path]
    if file.nearest:
        stem = str(file.base).rpartition("/")[2].removesuffix(".yaml")
        own = f"{stem}.yaml line"
        for path, figure in held.items():
            if figure.where.startswith(own) and path not in IDENTITY:
                held[path] = replace(figure, taken_from=stem.upper())
    return held


def _figures_hash(figures: Mapping[str, Figure]) -> str:
    """SHA-256 of figures as they are written."""
    texts = {path: str(figure.text) for path, figure in figures.items()}
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def override_pairs(overrides: Overrides) -> Iterator[tuple[str, str | int | float]]:
    """Return each override as path and value, as they were typed. Raises InputError for what is none."""
    if isinstance(overrides, Mapping):
        yield from overrides.items()
        return
    for item in overrides:
        path, equals, value = item.partition("=")
        if not equals or not path.strip() or not value.strip():
            raise InputError(f"override {item!r} is not of the form path=value, such as 'l2.size=60 MiB'")
        yield path.strip(), value.strip().strip("\"'")


def _check_word(model: type[BaseModel], path: str, where: str) -> None:
    if path.startswith("instructions.") and has_instructions(model):
        key, column = path.removeprefix("instructions.").rpartition(".")[::2]
        if column not in _COLUMNS:
            raise InputError(
                f"{where}: {column!r} is no column of an instruction row, one of {', '.join(_COLUMNS)}"
                f"{hint(column, _COLUMNS, '; nearest: {}')}"
            )
        if not 1 <= key.count(".") <= 2:
            raise InputError(f"{where}: instruction row {key!r} must be named op.dtype or op.dtype.shape")
    elif path not in leaves(model):
        groups = [known for known in leaves(model) if known.startswith(f"{path}.")]
        if groups:
            raise InputError(f"{where}: {path} is a group, not a figure; it has: {', '.join(groups)}")
        near = hint(path, leaves(model), "; nearest: {}") or "; tilewave archs NAME lists all of a machine"
        raise InputError(f"{where}: unknown figure {path!r}{near}")


def _source(figure: Figure, table: Mapping[str, str], path: str) -> str:
    if figure.where == "override":
        return "set by the user"
    return figure.where if figure.where.startswith(GOES) else source_text(figure, table, path)


def _build(
    model: type[MachineSpec], figures: Mapping[str, Figure], sources: Mapping[str, str], present: Mapping[str, str]
) -> MachineSpec:
    """The spec of some figures. present: their texts before overrides.

    Groups of figures that have been found valid before are taken as they are, and are the same objects.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, figure in figures.items():
        group, _, rest = path.partition(".")
        groups.setdefault(group, []).append((rest, repr(figure.text)))
    keys = {group: (model, group, tuple(texts)) for group, texts in groups.items() if texts[0][0]}
    tree: dict[str, Any] = {group: valid for group, key in keys.items() if (valid := _valid.get(key)) is not None}
    known = frozenset(tree)
    rows: dict[str, dict[str, Any]] = {}
    for path, figure in figures.items():
        node = tree
        *names, last = path.split(".")
        if names and names[0] in known:
            continue
        if path.startswith("instructions."):
            key, column = path.removeprefix("instructions.").rpartition(".")[::2]
            row = rows.setdefault(key, dict(zip(("op", "dtype", "shape"), key.split("."), strict=False)))
            row[column] = figure.text
            continue
        for name in names:
            node = node.setdefault(name, {})
        node[last] = figure.text
    if has_instructions(model):
        tree.setdefault("instructions", list(rows.values()))
    try:
        spec = model.model_validate(tree)
    except ValidationError as error:
        raise InputError(_one_line(error.errors()[0], model, figures, list(rows), present)) from None
    spec._sources.update(sources)
    if len(_valid) > _MOST_VALID:
        _valid.clear()
    _valid.update({key: _group(spec, group) for group, key in keys.items() if group not in known})
    return spec


_valid: dict[tuple[type[MachineSpec], str, tuple[tuple[str, str], ...]], Any] = {}
"""Groups of figures that were found valid, by the texts of their figures."""

_MOST_VALID = 1000
"""Entries that are kept of these."""


def _group(spec: MachineSpec, name: str) -> Any:
    """A group of a spec by the word that people type; instruction rows are one, too."""
    return next(getattr(spec, attribute) for attribute in type(spec).model_fields if word(attribute) == name)


def _one_line(
    error: ErrorDetails,
    model: type[MachineSpec],
    figures: Mapping[str, Figure],
    rows: Sequence[str],
    present: Mapping[str, str],
) -> str:
    """Say in one line what pydantic found first: where, path, value, rule."""
    location = [str(part) for part in error["loc"]]
    reason = error["msg"].removeprefix("Value error, ")
    if location[:1] == ["instructions"] and len(location) > 1:
        location[1] = rows[int(location[1])]
    path = ".".join(location)
    if not path:  # a rule between figures: the message names the path itself
        path, _, reason = reason.partition(": ")
    figure = figures.get(path)
    machine = figures["name"]
    if error["type"] == "missing":
        return f"{machine.where}: {path} is missing"
    where = figure.where if figure else machine.where
    value = f" = {figure.text}" if figure and location else ""
    if error["type"] == "literal_error" and figure:
        choices = [choice.strip(" '") for choice in str(error["ctx"]["expected"]).replace(" or ", ", ").split(",")]
        reason = f"must be one of {', '.join(choices)}{hint(str(figure.text), choices, '; nearest: {}')}"
    reason = reason.replace("Input should", "must").split(", unable to parse")[0]
    leaf, limit = leaves(model).get(path), next(iter(error.get("ctx", {}).values()), None)
    unit = leaf.unit if leaf else CYCLES if path.startswith("instructions.") else None
    now = present.get(path, "")
    if unit and not now.replace(".", "").isdecimal():  # an example of the figure's own size
        reason = reason.replace(repr(unit.example), repr(now or unit.example))
    if leaf and leaf.unit and isinstance(limit, int | float):
        reason = reason.replace(str(limit), leaf.unit.format(limit))
    return f"{where}: {path}{value}: {reason}"
