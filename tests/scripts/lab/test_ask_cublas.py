"""The script that asks cuBLAS, with a library that answers the same for everything: no GPU is needed."""

from __future__ import annotations

import csv
import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts.lab.choices import COLUMNS, library_choices

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "ask_cublas.py"
HEADER = """  CUBLASLT_MATMUL_TILE_128x80 = 417,
  CUBLASLT_CLUSTER_SHAPE_4x2x1 = 9,
"""


@pytest.fixture
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("ask_cublas", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ask_cublas"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ask_cublas"]


class Answering:
    """cublasLt whose one kernel is nvjet_.._128x80_.._4x2_h_.._TNT in two pieces. layouts: rows, columns asked for."""

    def __init__(self, family: int = 66) -> None:
        self.layouts: list[tuple[int, int]] = []
        self.family = family

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0

    def cublasLtMatrixLayoutCreate(self, _: Any, kind: int, rows: Any, columns: Any, leading: Any) -> int:
        self.layouts.append((rows.value, columns.value))
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        arguments[-1]._obj.value = 1
        return 0

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algorithm: Any, which: int, value: Any, size: ctypes.c_size_t, _: Any
    ) -> int:
        value._obj.value = {0: self.family, 1: 417, 2: 2, 5: 1 | 2, 8: 9}[which]
        assert size.value == (2 if which == 8 else 4)
        return 0


def ask(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Answering, shapes: str) -> Path:
    (tmp_path / "cublasLt.h").write_text(HEADER, encoding="utf-8")
    (tmp_path / "shapes.txt").write_text(shapes, encoding="utf-8")
    monkeypatch.setattr(script.ctypes, "CDLL", lambda path: library)
    out = tmp_path / "answers.csv"
    words = ["--header", str(tmp_path / "cublasLt.h"), "--shapes", str(tmp_path / "shapes.txt"), "-o", str(out)]
    monkeypatch.setattr(sys, "argv", ["ask_cublas.py", *words])
    assert script.main() == 0
    return out


def test_an_answer_is_a_line(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Answering()
    out = ask(script, tmp_path, monkeypatch, library, "bf16 m=160 n=3072 k=12288 tb=T\n")
    (row,) = csv.DictReader(out.open(encoding="utf-8"))
    known = next(c for c in library_choices() if (c.sms, c.shape) == (132, "m=160 n=3072 k=12288 tb=T"))
    assert {**row, "shared": row["shared"] == "1"} == {
        column: str(value) if column != "shared" else value
        for column, value in zip(COLUMNS, (getattr(known, column) for column in COLUMNS), strict=True)
    }
    # Rows of memory are its columns: B of n rows comes first, and is transposed where k is contiguous.
    assert library.layouts == [(12288, 3072), (12288, 160), (3072, 160), (3072, 160)]


def test_kernels_of_other_families_are_left_out(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ask(script, tmp_path, monkeypatch, Answering(family=21), "fp16 m=7 n=8 k=9\n")
    assert out.read_text(encoding="utf-8").splitlines() == [",".join(COLUMNS)]


def test_nothing_is_overwritten_and_formats_are_checked(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="fp32 m=1 n=1 k=1: the format must be one of bf16, fp16, fp8"):
        ask(script, tmp_path, monkeypatch, Answering(), "fp32 m=1 n=1 k=1\n")
    assert not (tmp_path / "answers.csv").exists()
    (tmp_path / "answers.csv").write_text("mine\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="exists, choose another name"):
        ask(script, tmp_path, monkeypatch, Answering(), "bf16 m=8 n=8 k=8\n")
