"""`tilewave grade`: runs the answers of a lab's notebook and judges them. To grade a notebook is to execute it.

Answers are the code cells with the tag `answer`; they are executed alone, in their order, with `simulate` at hand, in a
process of their own (`sim.app.labs.answers`) within bounds (`sim.app.labs.confine`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from arch.near import hint
from sim.app.labs import LABS, NOT_ANSWERED, Task, Wrong, confine, tasks
from sim.app.labs.answers import Answers
from sim.app.report.render import Shown
from sim.app.report.sections import Section

ANSWER = "answer"
_GRACE_S = 60
MOST_BYTES = 20 << 20
"""Of a notebook, pictures included."""


@dataclass(frozen=True)
class Mark:
    """What one question brought. said: a hint where that is not all. cycles: of a right program that is ranked."""

    title: str
    points: int
    of: int
    said: str = ""
    cycles: int | None = None


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

    def for_gradescope(self) -> dict[str, Any]:
        """The marks as Gradescope's autograder takes them, in `results.json`."""
        tests = [
            {
                "name": mark.title,
                "score": mark.points,
                "max_score": mark.of,
                "output": mark.said,
                "visibility": "visible",
            }
            for mark in self.marks
        ]
        ranked = [mark for mark in self.marks if mark.cycles is not None]
        board = [{"name": f"{mark.title}, cycles", "value": mark.cycles, "order": "asc"} for mark in ranked]
        output = f"Lab {self.lab}: {self.points} of {self.of} points"
        return {"score": self.points, "output": output, "tests": tests, "leaderboard": board}


@dataclass(frozen=True)
class Board(Shown):
    """Notebooks of one lab beside each other, by name: their points, and their programs by simulated cycles."""

    grades: Mapping[str, Grade]

    def ranking(self, title: str) -> list[tuple[int, str, int]]:
        """Place, name and cycles of the right answers to a question, the fewest first; equals share a place."""
        marks = {name: mark for name, grade in self.grades.items() for mark in grade.marks if mark.title == title}
        found = sorted((mark.cycles, name) for name, mark in marks.items() if mark.cycles is not None)
        return [(1 + sum(other < cycles for other, _ in found), name, cycles) for cycles, name in found]

    def sections(self) -> list[Section]:
        """Points by notebook, then a ranking for each question that has one."""
        points = tuple((name, f"{grade.points} of {grade.of}") for name, grade in self.grades.items())
        titles = dict.fromkeys(mark.title for grade in self.grades.values() for mark in grade.marks)
        ranked = {title: self.ranking(title) for title in titles}
        boards = [
            Section(title, tuple((str(place), name, f"{cycles:,}") for place, name, cycles in found), _BOARD)
            for title, found in ranked.items()
            if found
        ]
        return [Section("Points", points), *boards]

    def to_dict(self) -> dict[str, Any]:
        """The marks by notebook."""
        return {name: grade.to_dict() for name, grade in self.grades.items()}


_BOARD = ("place", "notebook", "cycles")


def grade(path: Path, seconds: int = 600) -> Grade:
    """Judges a notebook; InputError where it is none of a lab, or takes too long or too much.

    A process supervises, a second one judges and a third one has the answers. The marks come from the second one, over
    a pipe that the third one does not hold.
    """
    lab = read(path)[0]
    command = (sys.executable, "-m", "sim.app.labs.grade", str(path), str(seconds))
    try:
        done = subprocess.run(command, timeout=seconds + _GRACE_S, stdout=subprocess.PIPE, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: its answers took more than {seconds} s") from None
    why = {
        confine.TOO_LONG: f"its answers took more than {seconds} s",
        confine.TOO_MUCH: f"its answers took more than {confine.MOST_BYTES >> 30} GiB or {confine.MOST_PROCESSES} "
        "processes",
    }
    if done.returncode:
        said = why.get(done.returncode, f"the process that judged its answers ended with {done.returncode}")
        raise InputError(f"{path}: {said}")
    return Grade(lab, [Mark(**mark) for mark in json.loads(done.stdout)])


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
    if not isinstance(lab, str) or lab not in LABS:
        raise InputError(f"{path}: unknown lab {lab!r}, one of {', '.join(LABS)}{hint(str(lab), LABS)}")
    return lab, sources


def unanswered(task: Task, answers: Mapping[str, Any]) -> str:
    """The names that a question asks for and nobody has given, in a line; empty where all are there."""
    missing = [name for name in task.names if answers.get(name) is None or answers[name] is ...]
    return f"{', '.join(missing)}: {NOT_ANSWERED}" if missing else ""


def marked(task: Task, answers: Mapping[str, Any], broken: str = "") -> Mark:
    """What one question brings. broken: why answers may be missing."""
    said, cycles = unanswered(task, answers), None
    if said:
        said = broken or said
    else:
        try:
            cycles = task.check(answers)
        except Wrong as error:
            said = str(error)
        except Exception as error:  # somebody's code
            said = f"{type(error).__name__}: {error}"
    return Mark(task.title, 0 if said else task.points, task.points, said, cycles)


def marks_of(lab: str, sources: Sequence[str]) -> list[Mark]:
    """Executes the answers in a process of their own, and judges here what it says."""
    questions = tasks(lab)
    with Answers(sources, [name for task in questions for name in task.names]) as answers:
        return [marked(task, answers, answers.broken) for task in questions]


def _judge(path: Path) -> None:
    """Judges a notebook and writes its marks to what was stdout; what is printed meanwhile goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    marks = [asdict(mark) for mark in marks_of(*read(path))]
    with os.fdopen(out, "w", encoding="utf-8") as file:
        json.dump(marks, file)


if __name__ == "__main__":
    sys.exit(confine.supervise(partial(_judge, Path(sys.argv[1])), float(sys.argv[2])))
