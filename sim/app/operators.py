"""What `tilewave ops` and the help of an operator list: operators, their keys, and the schedules of each family."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

from arch import reading
from arch.dtypes import FORMATS, is_integer
from arch.errors import InputError
from arch.families import Family, families
from arch.load import load_arch
from sim.app.families.stepwise import STEPS
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from workloads import libraries, registry, written
from workloads.graphs import GraphOperator
from workloads.ops import operator_class, operator_words, short_words
from workloads.ops.pointwise import FUNCTIONS

_TAKES = {
    "extent": "whole number from 1",
    "count": "whole number from 0",
    "dtype": "number format",
    "text": "name of a file",
    "words": "word or numbers",
}


class Operators(Shown):
    """All operators, one line each."""

    def sections(self) -> list[Section]:
        """Operators with what they compute and where they run, and the functions of `pointwise`."""
        rows = [(entry["operator"], entry["computes"], ", ".join(entry["schedules"])) for entry in self.to_dict()]
        return [
            Section("Operators (tilewave ops NAME shows the keys of one)", tuple(rows), ("", "computes", "families")),
            Section("Functions of pointwise, also operators: exp n=1M is pointwise n=1M chain=exp", (_functions(),)),
        ]

    def to_dict(self) -> Any:
        """A list of what `OneOperator` gives."""
        return [OneOperator(word).to_dict() for word in operator_words()]


class OneOperator(Shown):
    """One operator: its keys and its schedules. InputError for a word that is none."""

    def __init__(self, word: str) -> None:
        self.cls = operator_class(word)
        self.word, self.given = word, short_words(word)

    def sections(self) -> list[Section]:
        """What it computes, its keys, its schedules, examples."""
        found = self.to_dict()
        keys = tuple((key["key"], key["default"], key["takes"], key["meaning"]) for key in found["keys"])
        schedules = tuple((family, ", ".join(kinds) or "one") for family, kinds in found["schedules"].items())
        return [
            Section(f"{self.word}: {found['computes']}", keys, ("key", "default", "takes", "meaning")),
            Section(
                "Schedules (--schedule; auto takes the fastest by estimate)",
                schedules or (("none", "a part of other workloads"),),
            ),
            *_libraries(found),
            Section("Examples", tuple((line,) for line in found["examples"])),
            Section("How values are written", ((_SIZES,), (f"Number formats: {', '.join(FORMATS)}.",))),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "operator": self.word,
            "computes": (self.cls.__doc__ or "").partition("\n")[0].rstrip(".").replace("`", ""),
            "keys": [_key(f) for f in dataclasses.fields(self.cls) if f.name not in self.given],
            "schedules": schedules(self.cls.word),
            "libraries": [rule._asdict() for rule in libraries.taken(self.cls.word)],
            "figures": [dict(zip(_FIGURE, row, strict=True)) for row in libraries.shown_figures(self.cls.word)],
            "tables": [table._asdict() for table in libraries.shown_tables(self.cls.word)],
            "examples": examples(self.word),
        }


_FIGURE = ("release", "figure", "value", "source", "remark")


def _libraries(found: dict[str, Any]) -> list[Section]:
    """What libraries take for an operator, by which figures, and the kernels that they have."""
    taken = tuple((rule["schedule"], rule["where"] or "everywhere", rule["takes"]) for rule in found["libraries"])
    figures = tuple((row["release"], row["figure"], row["value"], row["source"]) for row in found["figures"])
    tables = tuple((row["release"], row["table"], row["columns"], row["rows"]) for row in found["tables"])
    sections = (
        Section("Libraries (--schedule; without a release the newest)", taken, ("", "where", "takes")),
        Section("Figures of libraries", figures, ("", "figure", "value", "source")),
        Section("Kernels of libraries, by their sizes", tables, ("", "table", "columns", "rows")),
    )
    return [section for section in sections if section.rows]


class OwnOperator(Shown):
    """A function of somebody's file as an operator. The file is read, not executed."""

    def __init__(self, word: str) -> None:
        match = written.WORD.fullmatch(word)
        assert match is not None, word
        self.word, self.path, self.name = word, match["path"], match["function"]
        self.function = self._found()

    def sections(self) -> list[Section]:
        """Its parameters, which are its keys."""
        found = self.to_dict()
        keys = tuple((key["key"], key["default"], key["takes"]) for key in found["keys"])
        return [
            Section(f"{self.word}: {found['computes']}", keys or (("no keys", "", ""),), ("key", "default", "takes")),
            Section("How values are written", ((_SIZES,), ("To run it is to execute the file.",))),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        arguments = self.function.args
        listed = [*arguments.args, *arguments.kwonlyargs]
        defaults: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
        given = [*defaults, *arguments.defaults, *arguments.kw_defaults]
        keys = [
            {
                "key": argument.arg,
                "default": "needed" if default is None else ast.unparse(default),
                "takes": ast.unparse(argument.annotation) if argument.annotation else "",
            }
            for argument, default in zip(listed, given, strict=True)
            if argument.arg != "machine"
        ]
        said = (ast.get_docstring(self.function) or "").partition("\n")[0].rstrip(".")
        return {"operator": self.word, "computes": said, "keys": keys}

    def _found(self) -> ast.FunctionDef:
        content = reading.content(self.path, f"program {self.path}", reading.MOST_BYTES)
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"program {self.path}: cannot be read: {error}") from None
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if self.name not in functions:
            raise InputError(f"program {self.path}: has no function {self.name}, it has {', '.join(functions)}")
        return functions[self.name]


def described(word: str) -> Shown:
    """The help of an operator or of a function of a file."""
    return OwnOperator(word) if written.WORD.fullmatch(word) else OneOperator(word)


def schedules(word: str) -> dict[str, list[str]]:
    """Kinds of schedules by the family of machines that runs an operator; empty where there is no choice."""
    cls = operator_class(word)
    if issubclass(cls, GraphOperator):
        return {name: _forms(cls, family) for name, family in families().items()}
    without: dict[str, list[str]] = {name: [] for name, family in families().items() if word in family.without_kernels}
    if without:
        return without
    found = {name: list(registry.schedules(word, name)) for name in families()}
    return {name: kinds for name, kinds in found.items() if kinds}


def _forms(cls: type[GraphOperator], family: Family) -> list[str]:
    """How a family runs a graph: in forms of its own, and step by step; in one way alone where nothing joins steps."""
    if not cls.joined:
        return []
    own = family.load("graph_forms") if family.graph_forms else registry.schedules(cls.word, family.name)
    return [*own, STEPS]


def examples(word: str) -> list[str]:
    """Command lines that run as they stand, one for each family that computes the operator."""
    cls = operator_class(word)
    keys = " ".join(key for key in cls.example.split() if key.partition("=")[0] not in short_words(word))
    text = f"{word} {keys}".rstrip()
    found = schedules(cls.word)
    more = {name: _counted(families()[name].example) if kinds == [STEPS] else "" for name, kinds in found.items()}
    return [f"tilewave run {text}{more[name]} --arch {families()[name].example}" for name in found]


def _counted(machine: str) -> str:
    """Keys with which a graph runs step by step: in the machine's format, without what it cannot run."""
    dtype = load_arch(machine).default_dtype
    return f"{f' dtype={dtype}' * is_integer(dtype)} others=count"


_SIZES = "Whole numbers: 4096, 4_096, 4k (k, M and G are powers of 1024), 2**12."


def _functions() -> tuple[str]:
    return (", ".join(FUNCTIONS),)


def _key(f: dataclasses.Field[Any]) -> dict[str, Any]:
    meaning, _, default = f.metadata["help"].partition("; default: ")
    if f.default is dataclasses.MISSING:
        default = "needed"
    elif f.default is not None:
        default = str(f.default)
    choices = list(f.metadata.get("choices", ()))
    takes = " | ".join(choices) or _TAKES.get(f.metadata["kind"], "functions, joined by +")
    return {"key": f.name, "default": default, "takes": takes, "meaning": meaning, "choices": choices}
