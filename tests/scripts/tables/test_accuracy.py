"""The table of accuracies holds nothing but rows that were held back, and reads back what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.library import list_archs
from scripts.tables import accuracy, main
from scripts.tables.place import END, begin, standing
from workloads.silicon.accuracy import read_accuracy


def row(machine: str, op: str, error: float, half: str = "held") -> dict[str, object]:
    return {"machine": machine, "op": op, "shape": "m=1", "error_percent": error, "half": half}


def test_errors_by_machine_and_operator(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    files[0].write_text(json.dumps({"rows": [row("t4", "gemm", 10.0), row("t4", "softmax", 1.0)]}))
    files[1].write_text(json.dumps({"rows": [row("t4", "gemm", -4.0), row("h20", "gemm", -2.0)]}))
    out, readme = tmp_path / "accuracy.csv", tmp_path / "README.md"
    readme.write_text(f"| a | {begin('accuracy')}old{END} |\n")
    places = ["--out", str(out), "--page", str(readme)]
    assert main(["accuracy", *map(str, files), *places]) == 0
    assert readme.read_text() == f"| a | {begin('accuracy')}never: {END} |\n"
    found = read_accuracy(out)
    assert [str(entry) for entry in found["t4"]] == ["gemm 7.0 % (2 rows)", "softmax 1.0 % (1 row)"]
    assert (found["t4"][0].bias_percent, found["h20"][0].bias_percent) == (3.0, -2.0)
    # Of a part of the rows, with --keep: the other operators keep their lines.
    files[0].write_text(json.dumps({"rows": [row("t4", "gemm", 5.0)]}))
    assert main(["accuracy", str(files[0]), *places, "--keep"]) == 0
    kept = read_accuracy(out)
    assert [str(entry) for entry in kept["t4"]] == ["gemm 5.0 % (1 row)", "softmax 1.0 % (1 row)"]
    assert kept["h20"] == found["h20"]


def test_the_sentence_of_the_readme_has_groups_of_enough_rows() -> None:
    of = lambda machine, op, rows, mape: {  # noqa: E731
        "machine": machine, "op": op, "rows": rows, "mape_percent": mape, "date": "2026-01-02",
    }  # fmt: skip
    lines = [of("t4", "gemm", "6", "7.04"), of("h20", "gemm", "4", "1.0"), of("h20", "add", "9", "2.6")]
    sentence = accuracy.quoted([*lines, of("a10", "gemm", "5", "3.0")])
    assert sentence == "2026-01-02: add 3 % (h20); gemm 3 % (a10), 7 % (t4)"


def test_the_readme_has_a_place_for_it() -> None:
    assert standing(accuracy.PAGE.read_text(encoding="utf-8"), "accuracy")


def test_rows_that_may_be_calibrated_on_are_refused() -> None:
    with pytest.raises(InputError, match="may be calibrated on"):
        accuracy.table([row("t4", "gemm", 1.0, "fitted")], "2026-01-01")


def test_the_table_that_ships_speaks_of_machines_that_ship() -> None:
    found = read_accuracy()
    assert set(found) <= set(list_archs())
    assert {"t4", "v100-sxm2", "a100-sxm4-80gb", "h100-sxm"} <= set(found)
