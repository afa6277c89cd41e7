"""Libraries as data: rules, what asks for them, errors, and one that is a file alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from scripts.tables import libraries as tables
from scripts.tables.place import standing
from sim import simulate
from workloads import libraries
from workloads.gpu.select import choose
from workloads.ops import Gemm
from workloads.parse import parse

H100, A100 = load_arch("h100-sxm"), load_arch("a100-sxm4-80gb")

MINE = """
library: mine
title: A library of one file
releases:
  "2":
    figures: {widest: [64, a trace, columns of its widest tile]}
    tables:
      tiles: {operator: gemm, columns: [rows, wide], rows: [[64, true], [128, false]], source: a trace}
    takes:
      - operator: gemm
        when: {dtype: [bf16, fp16], m: <= 64}
        has: [tma]
        kernel: wgmma 64x64x64 stages 4
        source: a trace
      - operator: gemm
        lacks: [tma]
        kernel: mma
        source: a trace
  "1":
    words: [mine-first]
    takes:
      - {operator: softmax, kernel: online, source: a trace}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The libraries that ship, and one more."""
    folder = tmp_path / "libraries"
    shutil.copytree(libraries.FOLDER, folder)
    path = folder / "mine.yaml"
    path.write_text(MINE, encoding="utf-8")
    monkeypatch.setattr(libraries, "FOLDER", folder)
    yield path
    libraries.release.cache_clear()
    libraries.rows.cache_clear()


def test_a_library_is_one_file(mine: Path) -> None:
    for schedule in ("mine", "mine@2"):
        report = simulate("gemm m=64 n=128 k=128 dtype=bf16", "h100-sxm", schedule=schedule)
        assert report.record.schedule == "wgmma 64x64x64 stages 4"
    assert str(choose(parse("softmax rows=64 cols=512 dtype=fp32"), A100, "mine-first").config).startswith("online ")
    assert choose(Gemm(64, 64, 64, dtype="fp16"), A100, "mine").config.schedule == "mma"
    assert {"mine", "mine@2"} <= {*libraries.words("gemm")}
    assert libraries.figure("mine@2", "widest") == 64
    assert [row.rows for row in libraries.rows("mine@2", "tiles") if row.wide] == [64]
    shown = next(table for table in libraries.shown_tables("gemm") if table.release == "mine@2")
    assert shown[1:] == ("tiles", "rows wide", "64 true; 128 false", "a trace", "")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("mine@3", "releases of mine are 2"),
        (
            "mine@2",
            r"mine@2 has none for gemm m=65 .* for with tma, dtype=bf16 or fp16, m <= 64; without tma",
        ),
        ("min@2", "min is no library that has gemm; did you mean mine"),
        ("min", "one of auto, wgmma.*did you mean mine, which does not run here"),
    ],
)
def test_what_a_library_does_not_have_is_named(mine: Path, schedule: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(Gemm(65, 64, 64, dtype="bf16"), H100, schedule)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source: a trace\n  "1"', '\n  "1"', r"mine.yaml: releases.2.takes.1.source: Field required"),
        ("lacks:", "lack:", r"mine.yaml: releases.2.takes.1.lack: .*did you mean lacks"),
        ("kernel: mma", "kernel: mma\n        rule: a.b:c", "has either a kernel or a rule"),
        ("[128, false]", "[128]", r"releases.2.tables.tiles: row \[128\] has 1 cells, not 2"),
        ("rows: [[64, true], [128, false]]", "row: []", r"tiles.rows: Field required"),
        ("kernel: mma", "rule: mma", "rule mma is no module:function"),
        ("[64, a trace, columns of its widest tile]", "64", r"widest: write \[value, source\]"),
        ("title: A library of one file", "title: [", "mine.yaml: is not YAML"),
        (MINE.strip(), "- 1", "a library has the keys library, title, releases"),
    ],
)
def test_a_wrong_file_is_refused_by_the_place(mine: Path, old: str, new: str, message: str) -> None:
    mine.write_text(MINE.strip().replace(old, new), encoding="utf-8")
    libraries.read.cache_clear()
    with pytest.raises(InputError, match=message):
        libraries.words("gemm")
    libraries.read.cache_clear()


def test_words_of_earlier_versions_ask_for_the_same() -> None:
    op = Gemm(64, 4096, 4096, tb="T", dtype="bf16")
    for spec in (H100, A100):
        assert choose(op, spec, "cublas-2025") == choose(op, spec, "cublas") == choose(op, spec, "cublas@13.1")
        assert choose(op, spec, "cublas-2025-tuned") == choose(op, spec, "cublas-tuned")
    scaled = Gemm(4096, 7168, 2048, tb="T", dtype="fp8", scale="block")
    assert choose(scaled, H100, "deepgemm-2025-02") == choose(scaled, H100, "deepgemm@2025-02")
    layer = parse("moe tokens=64 hidden=1024 inter=512 topk=2 experts=8 dtype=bf16")
    assert choose(layer, A100, "vllm-0.14") == choose(layer, A100, "vllm@0.14") != choose(layer, A100, "vllm")
    rows = parse("softmax rows=512 cols=4096 dtype=fp16")
    assert choose(rows, A100, "torch-2.0") == choose(rows, A100, "pytorch@2.0")


def test_every_rule_has_a_source_and_every_function_is_there() -> None:
    for library in libraries.libraries():
        for release in library.releases.values():
            assert all(figure.source for figure in release.figures.values())
            assert all(table.source for table in release.tables.values())
            for rule in release.takes:
                assert rule.source
                assert rule.kernel or callable(libraries._function(rule))


def test_the_page_has_the_tables() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert standing(page, "libraries").strip() == tables.rules()
    assert standing(page, "figures of libraries").strip() == tables.figures()
    assert standing(page, "tables of libraries").strip() == tables.tables()


def test_tiles_come_from_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that is taken out of a table is tried no longer."""
    op = Gemm(4096, 4096, 4096, dtype="bf16")
    taken = choose(op, A100, "mma").config
    assert (taken.tile_m, taken.tile_n) in {row[:2] for row in libraries.rows("cutlass@2", "tiles")}
    folder = tmp_path / "libraries"
    shutil.copytree(libraries.FOLDER, folder)
    path = folder / "cutlass.yaml"
    row = f"          - [{taken.tile_m}, {taken.tile_n}, {taken.warp_m}, {taken.warp_n}"
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith(row)), encoding="utf-8")
    monkeypatch.setattr(libraries, "FOLDER", folder)
    for cached in (libraries.release, libraries.rows):
        cached.cache_clear()
    assert all((c.tile_m, c.tile_n) != (taken.tile_m, taken.tile_n) for c, _ in choose(op, A100, "mma").candidates)
    for cached in (libraries.release, libraries.rows):
        cached.cache_clear()
