"""Tables of errors: figures by hand, halves apart, rows that did not run, a page that keeps its text."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.tables import main
from scripts.tables.place import END, begin

ROW = {
    "machine": "t4", "op": "gemm", "dtype": "fp16", "schedule": "vendor", "source": "here", "shape": "m=1 n=1 k=1",
    "time_us": 1.0, "scope": "kernel", "l2": "cold", "half": "held", "error_percent": 0.0,
}  # fmt: skip


def written(path: Path, rows: list[dict[str, Any]], **others: list[dict[str, Any]]) -> str:
    """A file as validate prints it."""
    path.write_text(json.dumps({"rows": rows, "skipped": [], "failed": [], **others}))
    return str(path)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with a place for tables."""
    path = tmp_path / "page.md"
    path.write_text(f"before\n{begin('errors')}\nold\n{END}\nafter\n")
    return path


def test_errors_by_hand_and_halves_apart(tmp_path: Path, page: Path) -> None:
    errors = {"held": (10.0, -30.0, 5.0), "fitted": (1.0,)}
    rows = [
        {**ROW, "half": half, "error_percent": error, "shape": f"m={error}"}
        for half, found in errors.items()
        for error in found
    ]
    skipped = [{**ROW, "reason": "no such kernel"}]
    assert main(["errors", written(tmp_path / "r.json", rows, skipped=skipped), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| t4 | gemm | fp16 | vendor | here | 3 | 15.0 | 10.0 | -5.0 | -30 | 1 | 1.0 | 1.0 | +1.0 | +1 | 20" in text
    assert "| 1 | here | no such kernel |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text


def test_a_later_file_replaces_rows_of_an_earlier_one(tmp_path: Path, page: Path) -> None:
    # Two rows that differ in nothing are two rows.
    files = [written(tmp_path / f"{error}.json", [{**ROW, "error_percent": error}] * 2) for error in (40.0, 20.0)]
    assert main(["errors", *files, "--page", str(page)]) == 0
    assert "| here | 2 | 20.0 |" in page.read_text()


def test_groups_that_were_not_run_again_keep_their_line_and_day(tmp_path: Path, page: Path) -> None:
    older = [{**ROW, "error_percent": 9.0}, {**ROW, "machine": "a10", "error_percent": 7.0}]
    older += [{**ROW, "half": "fitted", "error_percent": 3.0}]
    skipped = [{**ROW, "reason": "no such kernel"}]
    assert main(["errors", written(tmp_path / "a.json", older, skipped=skipped), "--page", str(page)]) == 0
    first = page.read_text()
    day = first.partition("| +7 |")[2].splitlines()[0].split("|")[-2]
    page.write_text(first.replace(f"|{day}|", "| 1999-12-31 |"))
    new = written(tmp_path / "b.json", [{**ROW, "error_percent": 2.0}])
    assert main(["errors", new, "--keep", "--page", str(page)]) == 0
    lines = {line.split(" | ")[0].strip("| "): line for line in page.read_text().splitlines() if " gemm " in line}
    assert list(lines) == ["a10", "t4"]
    assert "| 7.0 |" in lines["a10"]
    assert lines["a10"].endswith("| 1999-12-31 |")
    assert "| 1 | 2.0 | 2.0 | +2.0 | +2 | 1 | 3.0 |" in lines["t4"]
    assert lines["t4"].endswith(f"|{day}|")
    assert "| 1 | here | no such kernel |" in page.read_text()
    assert main(["errors", new, "--page", str(page)]) == 0
    assert "a10" not in page.read_text()


def test_wrong_input_is_named(tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tmp_path / "bad.json", written(tmp_path / "r.json", [ROW])
    bad.write_text("[]")
    assert main(["errors", str(bad), "--page", str(page)]) == 2
    assert "bad.json: not what tilewave validate --json prints" in capsys.readouterr().err
    page.write_text("no place")
    assert main(["errors", good, "--page", str(page)]) == 2
    assert "between which the table goes" in capsys.readouterr().err
