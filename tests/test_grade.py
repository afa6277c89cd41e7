"""Labs: the notebooks are whole, their solutions are right, and what is wrong gets a hint or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.app.cli import main
from sim.app.labs import LABS, tasks
from sim.app.labs import grade as module
from sim.app.labs.grade import ANSWER, marks_of, read

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "labs"
LAB = FOLDER / "1-roofline-and-regimes.ipynb"
SOLUTION = FOLDER / "solutions" / LAB.name


def changed(path: Path, tmp_path: Path, old: str, new: str) -> Path:
    """A notebook with a piece of its answers replaced."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if ANSWER in cell["metadata"].get("tags", ()):
            cell["source"] = "".join(cell["source"]).replace(old, new)
    made = tmp_path / "changed.ipynb"
    made.write_text(json.dumps(notebook), encoding="utf-8")
    assert read(made)[1] != read(path)[1]
    return made


@pytest.mark.parametrize("path", [LAB, SOLUTION], ids=["lab", "solution"])
def test_notebooks_are_whole(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    lab, answers = read(path)
    assert lab in LABS
    assert len(answers) == len(tasks(lab))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 400_000


def test_the_lab_differs_from_its_solution_in_answers_alone() -> None:
    lab, solution = (json.loads(path.read_text(encoding="utf-8"))["cells"] for path in (LAB, SOLUTION))
    differing = [a["metadata"].get("tags") for a, b in zip(lab, solution, strict=True) if a["source"] != b["source"]]
    assert differing == [[ANSWER]] * len(tasks("roofline"))


def test_the_solution_has_every_point_and_the_empty_lab_none() -> None:
    marks = marks_of(SOLUTION)
    assert [(mark.points, mark.said) for mark in marks] == [(task.points, "") for task in tasks("roofline")]
    empty = marks_of(LAB)
    assert sum(mark.points for mark in empty) == 0
    assert all(mark.said for mark in empty)


@pytest.mark.parametrize(
    ("old", "new", "question", "hint"),
    [
        ("peak_ops_per_s /", "peak_ops_per_s * 2 /", 0, "which two figures"),
        ('k dtype=fp16": "dram"', 'k dtype=fp16": "compute"', 1, "compare its intensity"),
        ("smallest = next(", "smallest = 2 * next(", 2, "not overhead bound either"),
        ("dram.bandwidth=6 TB/s", "sm.count=264", 3, "does that figure bound the run"),
        ("dram.bandwidth=6 TB/s", "dram.bandwith=6 TB/s", 3, "nearest: dram.bandwidth"),
        ("def ridge", "raise RuntimeError('no')\ndef ridge", 0, "answer 1: RuntimeError: no"),
    ],
)
def test_a_wrong_answer_gets_a_hint(
    old: str, new: str, question: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tasks", lambda lab: [tasks(lab)[question]])
    (mark,) = marks_of(changed(SOLUTION, tmp_path, old, new))
    assert mark.points == 0
    assert hint in mark.said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("{", "is no notebook of a lab"),
        ({"cells": [], "metadata": {}}, "is no notebook of a lab"),
        ({"cells": [], "metadata": {"tilewave": {"lab": "roofine"}}}, "did you mean roofline?"),
    ],
)
def test_what_is_no_lab_is_one_line(
    content: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    assert main(["grade", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_the_command_prints_marks_and_stops_what_never_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.ipynb"
    cell = {"cell_type": "code", "metadata": {"tags": [ANSWER]}, "source": "print('{')\nchange = 3", "outputs": []}
    path.write_text(json.dumps({"cells": [cell], "metadata": {"tilewave": {"lab": "roofline"}}}), encoding="utf-8")
    assert main(["grade", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["points"], found["of"]) == (0, 10)
    assert found["marks"][3]["said"].startswith("change has to be one override")
    path.write_text(path.read_text().replace("change = 3", "while True: pass"), encoding="utf-8")
    assert main(["grade", str(path), "--seconds", "1"]) == 2
    assert "took more than 1 s" in capsys.readouterr().err
