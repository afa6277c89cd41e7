"""Labs: the notebooks are whole, their solutions are right, and what is wrong gets a hint or one line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sim.app.cli import main
from sim.app.labs import LABS, NOT_ANSWERED, tasks
from sim.app.labs.answers import Answers
from sim.app.labs.grade import ANSWER, Board, Grade, Mark, marked, read

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "labs"
LAB = FOLDER / "1-roofline-and-regimes.ipynb"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SOLUTIONS = [FOLDER / "solutions" / path.name for path in NOTEBOOKS]
LAB_NAMES = [read(path)[0] for path in NOTEBOOKS]


def names(lab: str) -> list[str]:
    """All that a lab asks for."""
    return [name for task in tasks(lab) for name in task.names]


@cache
def answered(path: Path) -> Answers:
    """What the answers of a notebook define; their process ends with this one."""
    lab, sources = read(path)
    return Answers(sources, names(lab))


def mark_of(lab: str, number: int, sources: Sequence[str]) -> Mark:
    """What a question brings with these answers."""
    with Answers(sources, names(lab)) as answers:
        return marked(tasks(lab)[number], answers, answers.broken)


def changed_answers(lab: str, old: str, new: str) -> list[str]:
    """The answers of a solution, with a piece of them replaced."""
    sources = read(SOLUTIONS[LAB_NAMES.index(lab)])[1]
    changed = [source.replace(old, new) for source in sources]
    assert changed != sources
    return changed


def test_every_lab_has_a_notebook_and_a_solution() -> None:
    assert sorted(LAB_NAMES) == sorted(LABS)
    assert sorted(FOLDER.glob("solutions/*.ipynb")) == SOLUTIONS


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SOLUTIONS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_notebooks_are_whole(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    lab, answers = read(path)
    named = {name for task in tasks(lab) for name in task.names}
    assert len(answers) == len(tasks(lab))
    assert all(re.search(rf"^(def )?{name}\b", "\n".join(answers), re.MULTILINE) for name in named)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not any(output["output_type"] == "error" for output in outputs)
    assert path.stat().st_size < 400_000


@pytest.mark.parametrize(("lab", "solution"), list(zip(NOTEBOOKS, SOLUTIONS, strict=True)), ids=LAB_NAMES)
def test_a_lab_differs_from_its_solution_in_answers_alone(lab: Path, solution: Path) -> None:
    given, solved = (json.loads(path.read_text(encoding="utf-8"))["cells"] for path in (lab, solution))
    differing = [(a, b["metadata"]) for a, b in zip(given, solved, strict=True) if a["source"] != b["source"]]
    assert [meta["tags"] for _, meta in differing] == [[ANSWER]] * len(tasks(read(lab)[0]))
    assert ["".join(cell["source"]) for cell, _ in differing] == ["".join(meta["stub"]) for _, meta in differing]


@pytest.mark.parametrize(
    ("lab", "number"), [(lab, number) for lab in LAB_NAMES for number in range(len(tasks(lab)))], ids=str
)
def test_a_solution_has_every_point(lab: str, number: int) -> None:
    task = tasks(lab)[number]
    mark = marked(task, answered(SOLUTIONS[LAB_NAMES.index(lab)]))
    assert (mark.points, mark.said) == (task.points, "")


@pytest.mark.parametrize("lab", LAB_NAMES)
def test_an_empty_lab_has_no_point(lab: str) -> None:
    marks = [marked(task, answered(NOTEBOOKS[LAB_NAMES.index(lab)])) for task in tasks(lab)]
    assert [mark.points for mark in marks] == [0] * len(marks)
    assert all(NOT_ANSWERED in mark.said for mark in marks)


@pytest.mark.parametrize(
    ("lab", "number", "old", "new", "hint"),
    [
        ("roofline", 0, "peak_ops_per_s /", "peak_ops_per_s * 2 /", "which two figures"),
        ("roofline", 1, 'k dtype=fp16": "dram"', 'k dtype=fp16": "compute"', "compare its intensity"),
        ("roofline", 2, "smallest = next(", "smallest = 2 * next(", "not overhead bound either"),
        ("roofline", 3, "dram.bandwidth=6 TB/s", "sm.count=264", "does that figure bound the run"),
        ("roofline", 3, "dram.bandwidth=6 TB/s", "dram.bandwith=6 TB/s", "nearest: dram.bandwidth"),
        ("roofline", 0, "def ridge", "raise RuntimeError('no')\ndef ridge", "answer 1: RuntimeError: no"),
        ("tiling", 0, "(tile_m + tile_n)", "(2 * tile_m)", "what does the CTA of one of them read"),
        ("tiling", 1, "size + 1024", "size", "with 1 KiB beside the tiles"),
        ("tiling", 2, "thread * pitch % 32", "thread % 32", "how many ask for the same"),
        ("tiling", 3, ", pad_bytes=4", "", "cycles of bank conflicts"),
        ("tiling", 3, "r.bar_sync(0, 8)", "pass", "the check of your kernel does not pass"),
        ("tiling", 3, "y[column + WARP * 4 : 4, row:32]", "y[row + WARP * 4 : 4, column:32]", "does not pass"),
        ("pipelining", 0, "(latency + work) / stages", "latency / stages", "how often does one buffer"),
        ("pipelining", 1, "r.cp_wait(stages - 2)", "r.cp_wait(stages - 1)", "the check of your kernel"),
        ("pipelining", 1, "r.cp_wait(stages - 2)", "r.cp_wait(0)", "what does it wait for"),
        ("pipelining", 2, "enough = 4", "enough = 8", "fewer than 8 stages are enough"),
        ("pipelining", 2, 'limit = "dram"', 'limit = "latency"', "is not what `report.bound` says"),
        ("pipelining", 3, "ring.wait(r, step)", "pass", "the check of your kernel"),
        ("pipelining", 3, "ring.release(r, step)", "pass", "wait"),
        ("pipelining", 3, "def with_tma", "with_tma = pipelined\ndef other", "has no tma_load"),
        ("tensor_cores", 0, "64 * 16 * 2", "64 * 16", "how many multiplications does one wgmma do"),
        ("tensor_cores", 1, "fewest = 8", "fewest = 4", "have to fit into 255"),
        ("tensor_cores", 2, "r.wgmma_wait(0)", "r.wgmma_wait(1)", "the check of your kernel"),
        ("tensor_cores", 2, "kernel.ring(stages, ", "kernel.ring(1, ", "what do its warps wait for"),
        ("tensor_cores", 3, "b_tile[stage, half:32, :]", "b_tile[stage, 0:32, :]", "does not pass"),
        ("tensor_cores", 3, "def shared_by_two", "shared_by_two = specialised\ndef other", "which loads go to both"),
        ("attention", 0, "4 * heads * seq * seq * 2", "2 * heads * seq * seq * 2", "written as weights"),
        ("attention", 1, "def softmax", "from sim.app.labs.attention import three_sweeps as softmax\ndef f", "3.00"),
        ("attention", 1, '"ex2", each', '"fadd", each', "needs an ex2"),
        ("attention", 1, "across_lanes(r, total)", "r.run('fadd', 1, dst=v.whole)", "does not pass"),
        ("attention", 2, "total * factor", "total", "what becomes of the earlier ones"),
        ("attention", 3, "return tile + 1", "return 16 - 12 * (tile < 4)", "which blocks see nothing"),
        ("attention", 3, "return tile + 1", "return tile + 0 * 1", "does not pass"),
        ("memory", 0, "largest = 16", "largest = 32", "only 19% hit"),
        ("memory", 0, "largest = 16", "largest = 8", "hits, too"),
        ("memory", 1, "{local_copies: false}", "{size: 80 MiB}", "a larger L2 is easy"),
        ("memory", 1, "{local_copies: false}", "{hit_latency: 100 cycles}", "two copies"),
        ("memory", 1, "local_copies", "local_copy", "nearest"),
        ("memory", 2, "min(4, rows)", "1", "what do CTAs need that run together"),
        ("memory", 2, "min(4, rows)", "4", "visits"),
        ("memory", 3, "dram.banks=4", "dram.row=2 KiB", "far reads take"),
        ("memory", 3, "dram.banks=4", "dram.bandwidth=500 GB/s", "far reads take"),
        ("systolic", 0, "cycle - r", "cycle + r", "begins r cycles after"),
        ("systolic", 1, "act[:, :-1]", "act[:, 1:]", "what comes from the left"),
        ("systolic", 1, "return new_act, above", "return new_act, total", "is not A B"),
        ("systolic", 2, "rows + tiles * m + rows", "tiles * m + rows", "what does each wait for"),
        ("systolic", 3, "(64, 1024)", "(256, 256)", "between two tiles"),
        ("systolic", 3, "(64, 1024)", "(32, 1024)", "are not 65536"),
        ("dataflow", 0, "max(times)", "min(times)", "the machine takes"),
        ("dataflow", 0, "max(a + b for a, b in pairwise(times))", "max(times)", "the machine takes"),
        ("dataflow", 1, "(8, 2, 4)", "(5, 5, 4)", "which stage do all others wait for"),
        ("dataflow", 1, "(8, 2, 4)", "(16, 4, 8)", "are more than 14"),
        ("dataflow", 2, "row_par=8", "row_par=1", "what do its stages wait for"),
        ("dataflow", 2, "row_par=8", "row_par=16", "PCUs; 40 have to do"),
        ("dataflow", 2, "e / e.row_sum()", "e", "the check of your program does not pass"),
        ("dataflow", 3, "(k, n), ()", "(k, n), (i,)", "over which counters"),
        ("dataflow", 3, "x.maximum(0.0)", "x.maximum(1.0)", "the check of your program does not pass"),
        ("dataflow", 3, "row_par=8, col_par=8", "row_par=4, col_par=4", "how many units multiply"),
    ],
)  # fmt: skip
def test_a_wrong_answer_gets_a_hint(lab: str, number: int, old: str, new: str, hint: str) -> None:
    mark = mark_of(lab, number, changed_answers(lab, old, new))
    assert mark.points == 0
    assert hint in mark.said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ({"cells": [], "metadata": {"tilewave": {"lab": ["roofline"]}}}, "unknown lab"),
        ({"cells": [], "metadata": {"tilewave": {"lab": {}}}}, "unknown lab"),
        ({"cells": 3, "metadata": {"tilewave": {"lab": "roofline"}}}, "is no notebook of a lab"),
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
    scope = tmp_path / "results.json"
    assert main(["grade", str(path), "--json", "--gradescope", str(scope)]) == 1
    found = json.loads(capsys.readouterr().out)
    results = json.loads(scope.read_text(encoding="utf-8"))
    assert results["score"] == found["points"]
    assert [(test["name"], test["score"], test["max_score"]) for test in results["tests"]] == [
        (mark["title"], mark["points"], mark["of"]) for mark in found["marks"]
    ]
    assert (found["points"], found["of"]) == (0, 10)
    assert found["marks"][3]["said"].startswith("change has to be one override")
    path.write_text(path.read_text().replace("change = 3", "while True: pass"), encoding="utf-8")
    assert main(["grade", str(path), "--seconds", "1"]) == 2
    assert "took more than 1 s" in capsys.readouterr().err


def test_notebooks_of_one_lab_are_ranked_by_cycles() -> None:
    fast, slow, equal, wrong = (
        Grade("tiling", [Mark("t", p, 4, "", c)]) for p, c in ((4, 9), (4, 12), (4, 9), (0, None))
    )
    board = Board({"slow": slow, "b": fast, "a": equal, "wrong": wrong})
    assert board.ranking("t") == [(1, "a", 9), (1, "b", 9), (3, "slow", 12)]
    points, ranked = board.sections()
    assert points.rows[-1] == ("wrong", "0 of 4")
    assert ranked.rows[0] == ("1", "a", "9")
    assert slow.for_gradescope()["leaderboard"] == [{"name": "t, cycles", "value": 12, "order": "asc"}]
    assert wrong.for_gradescope()["leaderboard"] == []


def test_programs_that_are_ranked_say_their_cycles() -> None:
    number = next(i for i, task in enumerate(tasks("tiling")) if task.names == ("transpose",))
    mark = mark_of("tiling", number, read(SOLUTIONS[LAB_NAMES.index("tiling")])[1])
    assert mark.points == mark.of
    assert mark.cycles == mark_of("tiling", number, read(SOLUTIONS[LAB_NAMES.index("tiling")])[1]).cycles
    assert mark.cycles
    assert mark.cycles > 1000
