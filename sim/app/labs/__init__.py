"""Labs of the course: what each asks for, and how an answer is judged. The notebooks are in `docs/labs`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LABS = {
    name: f"sim.app.labs.{name}"
    for name in ("roofline", "tiling", "pipelining", "tensor_cores", "attention", "memory", "systolic", "dataflow")
}
"""Modules by the name that a notebook carries in its metadata (`tilewave: {lab: NAME}`)."""

Answers = Mapping[str, Any]
"""What the cells of a notebook have defined, by name."""


NOT_ANSWERED = "not answered yet"
"""What is said of a question where nothing, or what the notebook came with, stands in its cell."""


class Wrong(Exception):
    """An answer that is not right; the message is a hint, not the solution."""


@dataclass(frozen=True)
class Task:
    """One question. names: what the answer has to define. check: raises `Wrong` where it is not right; of a program
    that is ranked, it returns the cycles."""

    title: str
    points: int
    names: Sequence[str]
    check: Callable[[Answers], int | None]


def tasks(lab: str) -> Sequence[Task]:
    """The questions of a lab."""
    found: Sequence[Task] = importlib.import_module(LABS[lab]).TASKS
    return found
