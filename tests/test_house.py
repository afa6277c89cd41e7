"""The size of what the engines are made of: a function of an engine does one thing, and is read at a glance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ENGINES = ("sim/engine", "sim/memory", "sim/gpu/engine", "sim/tpu", "sim/rdu", "sim/link", "sim/host")

MOST_LINES = 80


def long_functions(source: str) -> list[str]:
    """Names of the functions that have more lines than they should, decorators not counted."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f.name for f in functions if (f.end_lineno or f.lineno) - f.lineno + 1 > MOST_LINES]


@pytest.mark.parametrize("folder", ENGINES)
def test_no_function_of_an_engine_is_long(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [f"{path.name}: {name}" for path in files for name in long_functions(path.read_text(encoding="utf-8"))]
    assert found == []


def test_a_long_function_is_found() -> None:
    body = "    x = 0\n"
    assert long_functions(f"def short():\n{body * (MOST_LINES - 1)}") == []
    assert long_functions(f"class C:\n  def long(self):\n{body * MOST_LINES}") == ["long"]
