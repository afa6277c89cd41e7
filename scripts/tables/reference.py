"""Writes the tables of the Python reference (docs/api) and of the commands (docs/commands.md).

    scripts/docs tables reference

A page names what it holds in comments, one a module: `<!-- reference: sim.app.run: simulate compare -->` up to the next
`<!-- end -->`. Between them go a table, to be read as it is, and the directives by which the site shows whole
docstrings. `*` stands for all that a module exports or defines; names may stand behind it. On the page of commands
`<!-- commands -->` is where the help of each command goes.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import itertools
import os
import re
import types
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from scripts.tables.place import DOCS

PAGE = None
PAGES = DOCS / "api"
COMMANDS = DOCS / "commands.md"

_BLOCK = re.compile(r"(<!-- reference: ([\w.]+): ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = "100"
"""Columns of the help of commands."""


def first_sentence(text: str | None) -> str:
    """The beginning of a docstring, up to its first full stop that ends a sentence; without line ends."""
    whole = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", whole)[0].rstrip(":")


def parameters(function: Any) -> str:
    """Names of a function's parameters, with `=` where they may be left out."""
    shown, keywords = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not keywords:
            shown.append("*")
        keywords = keywords or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        shown.append(star + p.name + ("=" if p.default is not p.empty else ""))
    return f"({', '.join(shown)})"


def constant(module: ModuleType, name: str) -> str:
    """What a name that is neither function nor class stands for: the docstring below it where it is defined, or, of an
    alias of types, these types."""
    body = ast.parse(inspect.getsource(module)).body
    # A name that is loaded on first use is imported for type checkers.
    body = [inner for statement in body for inner in (statement.body if isinstance(statement, ast.If) else [statement])]
    for statement, after in itertools.pairwise(body):
        if isinstance(statement, ast.ImportFrom) and {"*", name} & {alias.name for alias in statement.names}:
            source = importlib.import_module(str(statement.module))
            if hasattr(source, name):
                return constant(source, name)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name) and target.id == name and isinstance(after.value, ast.Constant):
                return first_sentence(str(after.value.value))
    alias = getattr(module, name)
    if not isinstance(alias, types.UnionType):
        return ""
    return "One of " + ", ".join(f"`{kind.__name__}`" for kind in alias.__args__) + "."


def members(owner: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties that a class defines, as they are called, with their first sentence."""
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(plain):
            yield f"{name}{parameters(plain)}", first_sentence(inspect.getdoc(plain))
        elif isinstance(plain, property) or hasattr(plain, "func"):
            yield name, first_sentence(inspect.getdoc(plain))


def exported(module: ModuleType) -> list[str]:
    """What `*` stands for: `__all__`, else the public functions and classes that the module itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    public = ((n, v) for n, v in vars(module).items() if not n.startswith("_"))
    own = ((n, v) for n, v in public if getattr(v, "__module__", "") == module.__name__)
    return [n for n, v in own if inspect.isclass(v) or inspect.isfunction(v)]


def named(module: ModuleType, names: str) -> list[str]:
    """The names of a block's comment."""
    return [name for text in names.split() for name in (exported(module) if text == "*" else [text])]


def row(what: str, meaning: str) -> str:
    """One line of a table."""
    return f"| `{what}` | {meaning.replace('|', chr(92) + '|')} |"


def reference(module_name: str, names: str) -> str:
    """Table and directives of some names of a module."""
    module = importlib.import_module(module_name)
    rows, tables, directives = [], [], []
    for name in named(module, names):
        value = getattr(module, name)
        if inspect.isclass(value):
            rows.append(row(name, first_sentence(inspect.getdoc(value))))
            of_class = [row(f".{call}", meaning) for call, meaning in members(value)]
            if of_class:
                tables += ["", f"| of `{name}` | what it does |", "|---|---|", *of_class]
        elif inspect.isfunction(value):
            rows.append(row(f"{name}{parameters(value)}", first_sentence(inspect.getdoc(value))))
        elif meaning := constant(module, name):
            rows.append(row(name, meaning))
        if inspect.isclass(value) or inspect.isfunction(value):
            directives.append(f"::: {value.__module__}.{value.__qualname__}")
    head = ["", f"| in `{module_name}` | what it is |", "|---|---|"]
    return "\n".join([*head, *rows, *tables, "", "\n\n".join(directives), "", ""])


def with_tables(text: str) -> str:
    """A page with the tables and directives of what it names today."""
    return _BLOCK.sub(lambda m: m[1] + reference(m[2], m[3]) + m[4], text)


def help_of_commands() -> str:
    """What each command says with `--help`."""
    from sim.app.cli import _parser

    os.environ["COLUMNS"] = _WIDTH
    (commands,) = (a.choices for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return "\n" + "".join(f"## {name}\n\n```text\n{one.format_help()}```\n\n" for name, one in commands.items())


def arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing: all pages are written."""


def write(options: argparse.Namespace) -> int:
    """Writes all pages."""
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text), encoding="utf-8")
    text = COMMANDS.read_text(encoding="utf-8")
    COMMANDS.write_text(_COMMANDS.sub(lambda m: m[1] + help_of_commands() + m[2], text), encoding="utf-8")
    return 0
