"""Reads one machine file into figures by path, each with its text, its source and its line.

A figure is written `word: value` or, with its source, `word: [value, source]` or `word: [value, source, remark]`, where
source is an id from the `sources:` table of the file or of its bases. `instructions:` is a table of rows
`op.dtype.shape: [pipe, interval, latency, source, remark]` in cycles, or of mappings where a row needs more columns.

`base: gh100` says whose figures hold where the file has none. `nearest: gh100` says the same of silicon that nobody has
measured there: what the file gh100 itself states is marked as assumed. `lacks:` names what of these it has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from arch import reading
from arch.errors import InputError
from arch.near import hint

IDENTITY = ("name", "family", "chip", "title", "notes", "architecture")
"""Words that name a machine; they are no figures and need no source."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml reads a preset in a fraction of the time, where PyYAML was built with it."""

_ROW_COLUMNS = ("pipe", "interval", "latency", "source", "remark")


MOST_BYTES = 1 << 20
"""Of a machine file; the largest preset has 16 KB."""

MOST_DEPTH = 16
"""Groups in groups."""

MOST_FIGURES = 10_000
"""Of one file, those included that an alias repeats."""


@dataclass(frozen=True)
class Figure:
    """One value as written, its source id and remark (empty if none), and where it stands ("h100-sxm.yaml line 12").

    taken_from: the other silicon whose figure it is, for want of one of the machine's own; empty if none.
    """

    text: str | int | float
    source: str
    remark: str
    where: str
    taken_from: str = ""


@dataclass(eq=False)
class PresetFile:
    """One file: its base, its source table and its figures by path. Nobody changes it once it has been read.

    nearest: the base is other silicon, whose figures are assumed. lacks: paths, or the groups and ops before them, of
    the base's figures that do not hold here, with where that is said.
    shipped: it states all that its board has; in a file of one's own more goes with a primary figure (`arch.belongs`).
    """

    base: str | None = None
    nearest: bool = False
    lacks: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    shipped: bool = False


def read(path: Path) -> PresetFile:
    """Read a machine file; raises InputError with file and line for anything that is not in the form above.

    A file of the same name and contents as one before is the same object.
    """
    return _parsed(path.name, reading.text(path, f"machine file {path}", MOST_BYTES))


@lru_cache(maxsize=256)
def _parsed(name: str, text: str) -> PresetFile:
    """The file of a name and contents."""
    try:
        _check_depth(text, name)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise InputError(f"{name} line {line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{name}: not valid YAML: {error}") from None
    reader = _Reader(name)
    for key, node in reader.pairs(root, "the file"):
        reader.top(key, node)
    return reader.file


def _check_depth(text: str, name: str) -> None:
    """InputError for what is nested deeper than `MOST_DEPTH`: the parser that follows calls itself for each level."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                where = f"{name} line {event.start_mark.line + 1}" if event.start_mark else name
                raise InputError(f"{where}: more than {MOST_DEPTH} levels of nesting; a machine needs four")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Turns the nodes of one document into a PresetFile. All scalars stay text: the specs parse them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.file = PresetFile()

    def where(self, node: yaml.Node) -> str:
        return f"{self.name} line {node.start_mark.line + 1}"

    def pairs(self, node: yaml.Node | None, what: str) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            where = self.where(node) if node is not None else self.name
            raise InputError(f"{where}: {what} must be a mapping of words to values, such as 'l2: {{size: 50 MiB}}'")
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self.scalar(key_node, f"a word of {what}")
            if key in seen:
                raise InputError(
                    f"{self.where(key_node)}: {key!r} is given twice in {what} (first on line {seen[key]})"
                )
            seen[key] = key_node.start_mark.line + 1
            yield key, value_node

    def scalar(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise InputError(f"{self.where(node)}: {what} must be a single value")
        text = str(node.value)
        # Names reach terminals, pages and reports: no escape codes, nothing that turns the direction of writing.
        if not text.replace("\n", "").isprintable():
            raise InputError(f"{self.where(node)}: {what} has the control character {_unprintable(text)!a}")
        return text

    def top(self, key: str, node: yaml.Node) -> None:
        if key in ("base", "nearest"):
            if self.file.base is not None:
                raise InputError(f"{self.where(node)}: base and nearest both name what the file builds on; one of them")
            self.file.base, self.file.nearest = self.scalar(node, key), key == "nearest"
        elif key == "lacks":
            if not isinstance(node, yaml.SequenceNode):
                raise InputError(f"{self.where(node)}: lacks must be a list of paths, such as [instructions.wgmma]")
            self.file.lacks = {self.scalar(item, key): self.where(item) for item in node.value}
        elif key == "sources":
            self.file.sources = {ident: self.scalar(text, f"source {ident}") for ident, text in self.pairs(node, key)}
        elif key == "instructions":
            for row, columns in self.pairs(node, key):
                self.row(row, columns)
        else:
            self.group(key, node)

    def group(self, path: str, node: yaml.Node) -> None:
        if path.count(".") >= MOST_DEPTH or len(self.file.figures) >= MOST_FIGURES:  # by aliases, of itself or of many
            what = f"levels of groups ({MOST_DEPTH})" if path.count(".") >= MOST_DEPTH else f"figures ({MOST_FIGURES})"
            raise InputError(f"{self.where(node)}: {path[:40]}: the file has too many {what}; write it without aliases")
        if isinstance(node, yaml.MappingNode):
            for key, value in self.pairs(node, path):
                self.group(f"{path}.{key}", value)
        elif isinstance(node, yaml.SequenceNode):
            texts = [self.scalar(item, path) for item in node.value]
            if not 2 <= len(texts) <= 3:
                raise InputError(
                    f"{self.where(node)}: {path} must be 'value', '[value, source]' or '[value, source, remark]'"
                )
            self.file.figures[path] = Figure(texts[0], texts[1], texts[2] if len(texts) == 3 else "", self.where(node))
        else:
            self.file.figures[path] = Figure(self.scalar(node, path), "", "", self.where(node))

    def row(self, key: str, node: yaml.Node) -> None:
        path = f"instructions.{key}"
        if isinstance(node, yaml.SequenceNode):
            texts = [self.scalar(item, path) for item in node.value]
            if not 4 <= len(texts) <= 5:
                raise InputError(
                    f"{self.where(node)}: {path} must be [pipe, interval, latency, source] with a remark or without"
                )
            columns = dict(zip(_ROW_COLUMNS, texts, strict=False))
        else:
            columns = {word: self.scalar(value, f"{path}.{word}") for word, value in self.pairs(node, path)}
        source, remark = columns.pop("source", ""), columns.pop("remark", "")
        for word, text in columns.items():
            # Columns of the table are in cycles; a unit may be written all the same.
            unit = " cycles" if word != "pipe" and _is_number(text) else ""
            self.file.figures[f"{path}.{word}"] = Figure(text + unit, source, remark, self.where(node))


def _unprintable(text: str) -> str:
    return next(c for c in text if not c.isprintable() and c != "\n")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def source_text(figure: Figure, table: Mapping[str, str], path: str) -> str:
    """Return the full text of a figure's source; raises InputError with the nearest id for one that the table lacks."""
    if figure.source and figure.source not in table:
        near = hint(figure.source, table, "; nearest: {}") if table else "; the file has no sources table"
        raise InputError(f"{figure.where}: {path} names the unknown source {figure.source!r}{near}")
    text = table[figure.source] if figure.source else f"stated in {figure.where}"
    text = f"{text}; {figure.remark}" if figure.remark else text
    return f"assumed: as {figure.taken_from} has it ({text})" if figure.taken_from else text
