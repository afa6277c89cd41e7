"""Tables of ratios: pairs by hand, a page that keeps its text, rows that have a partner."""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.lab.ratios import repeats
from scripts.tables import main
from scripts.tables.place import END, begin
from workloads.silicon import packaged_rows

A, B = "a100-sxm4-80gb", "h100-sxm"


def row(machine: str, shape: str, measured: float, simulated: float, **fields: Any) -> dict[str, Any]:
    """A row as `tilewave validate --json` prints it."""
    known = {"op": "gemm", "dtype": "bf16", "source": "x", "scope": "kernel", "schedule": "vendor"}
    return {**known, "machine": machine, "shape": shape, "compared_us": measured, "simulated_us": simulated, **fields}


def test_pairs_by_hand(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"before\n{begin('ratios')}\nold\n{END}\nafter\n")
    rows = [
        *(row(A, "m=1", 20, 22), row(B, "m=1", 10, 10)),  # 2.0 measured, 2.2 predicted
        *(row(A, "m=2", 6, 6), row(B, "m=2", 3, 4)),  # 2.0 measured, 1.5 predicted
        *(row(A, "m=3", 6, 6), row("t4", "m=3", 3, 3), row(B, "m=3", 3, 3, dtype="fp8")),
        *(row(A, "seq_q=1 k=2", 8, 8, op="attention"), row(B, "seq_q=1 k=2", 4, 4, op="attention")),
    ]
    results.write_text(json.dumps({"rows": rows}))
    assert main(["ratios", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "3 shapes" in text
    assert "| all |  | 3 | 11.7 % | -5.0 % | -25 % | +3.3 % | +11.1 % |" in text
    assert "| gemm | under 10 us | 1 | 25.0 % | -25.0 % | -25 % | +0.0 % | +33.3 % |" in text
    assert "| gemm | 10 to 100 us | 1 | 10.0 % | +10.0 % | +10 % | +10.0 % | +0.0 % |" in text
    assert "| decode attention | all | 1 |" in text
    assert "| `gemm m=2 dtype=bf16` | 2.00 | 1.50 | -25 % |" in text


def test_what_is_no_result_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert main(["ratios", str(other), "--page", str(other)]) == 2
    assert "not what tilewave validate --json prints" in capsys.readouterr().err
    other.write_text('{"rows": []}')
    assert main(["ratios", str(other), "--page", str(other)]) == 2
    assert "no shape that both" in capsys.readouterr().err


def test_rows_that_have_a_partner(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    assert main(["ratios", "--pairs", str(path), "--most-us", "20"]) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["machine"] for row in rows} == {A, B}
    assert all(float(row["time_us"]) <= 20 for row in rows)
    halves = [
        Counter((row["op"], row["dtype"], row["shape"]) for row in rows if row["machine"] == name) for name in (A, B)
    ]
    assert halves[0] == halves[1]
    assert len(halves[0]) > 20


def test_a_pair_is_of_one_source_where_one_has_both(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"{begin('ratios')}\n{END}\n")
    rows = [
        # The same version before another one, another one before another source.
        *(
            row(A, "m=1", 4, 4, source="lib 1"),
            row(B, "m=1", 4, 1, source="lib 2"),
            row(B, "m=1", 2, 2, source="lib 1"),
        ),
        *(row(A, "m=2", 4, 4, source="lib 1"), row(B, "m=2", 4, 1, source="x"), row(B, "m=2", 2, 2, source="lib 2")),
        *(row(A, "m=3", 4, 4, source="lib 1"), row(B, "m=3", 2, 2, source="y")),
        # Two kernels of a collective are two pairs; kernels of products have other names on other machines.
        *(
            row(name, "gpus=2", 4, 4, op="all_reduce", schedule=f"custom {k}")
            for name in (A, B)
            for k in ("one", "two")
        ),
        *(row(A, "m=4", 4, 4, schedule="mma"), row(B, "m=4", 2, 2, schedule="wgmma")),
    ]
    results.write_text(json.dumps({"rows": rows}))
    assert main(["ratios", str(results), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| all |  | 6 | 0.0 % |" in text
    assert "| all_reduce | all | 2 |" in text


def test_how_far_two_measurements_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.lab.ratios.LEAST_REPEATS", 2)
    rows = [row for row in packaged_rows() if row.machine == B and row.op == "gemm"][:2]
    first = [replace(row, source="a", scope="graph", time_us=10.0) for row in rows]
    second = [
        replace(row, source="b", scope="graph", time_us=time) for row, time in zip(rows, (11.0, 8.0), strict=True)
    ]
    other = [replace(row, source="c", scope="kernel") for row in rows]
    assert repeats(first + second + other).splitlines()[2:] == [
        f"| {B} | gemm | a | b | 2 | 15.0 % | 15.0 % | -5.0 % |"
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin('repeats', 'ratios --repeats')}\nold\n{END}\nafter\n")
    assert main(["ratios", "--repeats", "--page", str(page)]) == 0
    assert "| h100-sxm | gemm | aiconfigurator_vllm | measure_gpu_graph_zeros | 163 |" in page.read_text()
