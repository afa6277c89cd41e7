"""`tilewave grade`: runs the answers of a lab's notebook and judges them. To grade a notebook is to execute it.

Answers are the code cells with the tag `answer`; they are executed alone, in their order, with `simulate` at hand, in a
process of their own that ends after a while.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from arch.near import hint
from sim.app.labs import LABS, NOT_ANSWERED, Answers, Task, Wrong, tasks
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.run import simulate

ANSWER = "answer"
MOST_BYTES = 20 << 20
"""Of a notebook, pictures included."""


@dataclass(frozen=True)
class Mark:
    """What one question brought. said: a hint where that is not all."""

    title: str
    points: int
    of: int
    said: str = ""


@dataclass(frozen=True)
class Grade(Shown):
    """The marks of a notebook."""

    lab: str
    marks: Sequence[Mark]

    @property
    def points(self) -> int:
        """The sum of all marks."""
        return sum(mark.points for mark in self.marks)

    @property
    def of(self) -> int:
        """What all right answers would bring."""
        return sum(mark.of for mark in self.marks)

    def sections(self) -> list[Section]:
        """A line a question, and the sum."""
        rows = [(mark.title, f"{mark.points} of {mark.of}", mark.said) for mark in self.marks]
        total = ("total", f"{self.points} of {self.of}", "")
        return [Section(f"Lab {self.lab}", (*rows, total), ("question", "points", ""))]

    def to_dict(self) -> dict[str, Any]:
        """The marks as plain data, for autograders."""
        marks = [asdict(mark) for mark in self.marks]
        return {"lab": self.lab, "points": self.points, "of": self.of, "marks": marks}


def grade(path: Path, seconds: int = 600) -> Grade:
    """Judges a notebook in a process of its own; InputError where it is none of a lab, or takes longer."""
    lab = read(path)[0]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "grade.json"
        command = (sys.executable, "-m", "sim.app.labs.grade", str(path), str(out))
        try:
            done = subprocess.run(command, timeout=seconds, stdout=subprocess.DEVNULL, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(f"{path}: its answers took more than {seconds} s") from None
        if done.returncode or not out.exists():
            raise InputError(f"{path}: the process that ran its answers ended with {done.returncode}")
        marks = json.loads(out.read_text(encoding="utf-8"))
    return Grade(lab, [Mark(**mark) for mark in marks])


def read(path: Path) -> tuple[str, list[str]]:
    """The lab of a notebook and the sources of its answers; InputError where it is none."""
    try:
        notebook = reading.document(reading.text(path, most_bytes=MOST_BYTES), str(path))
        lab = notebook["metadata"]["tilewave"]["lab"]
        cells = [cell for cell in notebook["cells"] if ANSWER in cell["metadata"].get("tags", ())]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: is no notebook of a lab; they are in docs/labs") from None
    if lab not in LABS:
        raise InputError(f"{path}: unknown lab {lab!r}, one of {', '.join(LABS)}{hint(str(lab), LABS)}")
    return lab, sources


def executed(sources: Sequence[str]) -> tuple[dict[str, Any], str]:
    """What the answers define, executed here one after the other; and the first error, in a line."""
    answers: dict[str, Any] = {"__name__": "lab", "simulate": simulate}
    broken = ""
    for number, source in enumerate(sources, 1):
        try:
            exec(compile(source, f"answer {number}", "exec"), answers)
        except Exception as error:  # somebody's code
            broken = broken or f"answer {number}: {type(error).__name__}: {error}"
    return answers, broken


def unanswered(task: Task, answers: Answers) -> str:
    """The names that a question asks for and nobody has given, in a line; empty where all are there."""
    missing = [name for name in task.names if answers.get(name) in (None, ...)]
    return f"{', '.join(missing)}: {NOT_ANSWERED}" if missing else ""


def marked(task: Task, answers: Answers, broken: str = "") -> Mark:
    """What one question brings. broken: why answers may be missing."""
    said = unanswered(task, answers)
    if said:
        said = broken or said
    else:
        try:
            task.check(answers)
        except Wrong as error:
            said = str(error)
        except Exception as error:  # somebody's code
            said = f"{type(error).__name__}: {error}"
    return Mark(task.title, 0 if said else task.points, task.points, said)


def marks_of(path: Path) -> list[Mark]:
    """Executes the answers here, and judges them."""
    lab, sources = read(path)
    answers, broken = executed(sources)
    return [marked(task, answers, broken) for task in tasks(lab)]


if __name__ == "__main__":
    notebook, out = map(Path, sys.argv[1:])
    with contextlib.redirect_stdout(sys.stderr):
        found = marks_of(notebook)
    out.write_text(json.dumps([asdict(mark) for mark in found]), encoding="utf-8")
