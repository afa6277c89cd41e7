"""The table of micro-benchmarks: figures by hand, contradicted rows apart, wrong input."""

import json
from pathlib import Path

import pytest

from scripts.tables import main
from scripts.tables.place import END, begin


def row(machine: str, deviation: float, *, within: bool = True, contradicted_by: str = "") -> dict[str, object]:
    return {
        "probe": "chase", "machine": machine, "deviation_percent": deviation, "within": within,
        "contradicted_by": contradicted_by,
    }  # fmt: skip


def test_errors_by_probe_and_machine(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "probes.json"
    page.write_text(f"before\n{begin('probes')}\nold\n{END}\nafter\n")
    rows = [row("t4", 4.0), row("t4", -6.0, within=False), row("h20", 1.0), row("h20", 90.0, contradicted_by="another")]
    results.write_text(json.dumps(rows))
    assert main(["probes", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "2 of 3 rows are within their limits" in text
    assert "| chase | t4 | 2 | 5.0 | -6.0 | +4.0 |" in text
    assert "| chase | h20 | 1 | 1.0 | +1.0 | +1.0 |" in text


def test_what_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, results = tmp_path / "page.md", tmp_path / "probes.json"
    page.write_text("a page without a place\n")
    results.write_text("[1]")
    assert main(["probes", str(results), "--page", str(page)]) == 2
    assert "not what scripts/lab/microbench.py --json prints" in capsys.readouterr().err
    results.write_text("[]")
    assert main(["probes", str(results), "--page", str(page)]) == 2
    assert "has no line <!-- table probes" in capsys.readouterr().err
