"""`pytest docs/labs`: a test for each question of each notebook. A question without an answer is skipped, but in a solution.

`pytest docs/labs/3-pipelining.ipynb` judges one notebook. To judge it is to execute its answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from sim.app.labs import NOT_ANSWERED, tasks
from sim.app.labs.grade import Mark, grade, read


class Notebook(pytest.File):
    """A notebook; its answers are executed when its first question is judged."""

    @cached_property
    def marks(self) -> Sequence[Mark]:
        return grade(self.path).marks

    def collect(self) -> Iterator[Question]:
        for number, task in enumerate(tasks(read(self.path)[0])):
            yield Question.from_parent(self, name=f"{number + 1}. {task.title}", number=number)


class Question(pytest.Item):
    """A question: passed with all its points."""

    def __init__(self, *, number: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.number = number

    def runtest(self) -> None:
        mark = self.parent.marks[self.number]
        if NOT_ANSWERED in mark.said and self.path.parent.name != "solutions":
            pytest.skip(mark.said)
        if mark.points < mark.of:
            pytest.fail(mark.said, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Notebook | None:
    return Notebook.from_parent(parent, path=file_path) if file_path.suffix == ".ipynb" else None
