"""Tables of the laws: counts by hand, each violation with its mechanism, a page that keeps its text."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.tables import main
from scripts.tables.place import END, begin

OUTCOME = {"case": "gemm with sm.count=7", "mode": "held", "change": 0.0, "mechanism": ""}
CHOICE = {
    "family": "gpu", "operator": "gemm", "regret": 0.0, "ratios": [0.5, 1.0], "dear": 2.0, "seconds": 0.1,
    "alone": 0.01, "tried": [3, 12],
}  # fmt: skip


def written(path: Path, **found: list[dict[str, Any]]) -> str:
    """A file as the script prints it."""
    path.write_text(json.dumps({"outcomes": [], "choices": [], "refused": [], **found}))
    return str(path)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with a place for tables."""
    path = tmp_path / "page.md"
    path.write_text(f"before\n{begin('laws')}\nold\n{END}\nafter\n")
    return path


def test_laws_and_choices_by_hand(tmp_path: Path, page: Path) -> None:
    held = [{**OUTCOME, "change": change} for change in (0.06, -0.5, 0.01)]
    held[0]["mechanism"] = "refresh of DRAM"
    first = written(tmp_path / "1.json", outcomes=held, refused=[{"case": "x", "reason": "y"}])
    costly = {**CHOICE, "regret": 0.03, "seconds": 0.5, "alone": 0.1}
    second = written(tmp_path / "2.json", outcomes=[{**OUTCOME, "mode": "auto"}], choices=[CHOICE, costly])
    assert main(["laws", first, second, "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "4 cases, of which 1 were refused" in text
    assert "| held | 3 | 1 (33.3 %) | 1 | +6.0 % |" in text
    assert "| auto | 1 | 0 (0.0 %) | 0 |  |" in text
    assert "| 6.0 % | held | `gemm with sm.count=7` | refresh of DRAM |" in text
    assert "| gpu gemm | 2 | 1 (50 %) | 1.5 %, 3.0 % | 1.41, 2.00 | 3.0 of 12.0 | 2.0 | 1 (50 %) |" in text


def test_what_is_no_result_is_one_line(tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert main(["laws", str(other), "--page", str(page)]) == 2
    assert "not what scripts/lab/whatif_laws.py --json prints" in capsys.readouterr().err
    page.write_text("no markers")
    assert main(["laws", written(tmp_path / "1.json"), "--page", str(page)]) == 2
