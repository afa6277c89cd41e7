"""Stand-ins for a simulation, importable by worker processes. FOLDER (environment) is where they leave traces."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sim.app.families.request import Request
from sim.app.fingerprint import code_hash
from sim.app.study.case import Answer

FOLDER = "TILEWAVE_TEST_FOLDER"


def answer_of(case: Request) -> Answer:
    """A report of a kind: a pure function of the case."""
    return Answer(report={"cycles": len(str(case.workload)), "workload": str(case.workload)}, code=code_hash())


def noted(case: Request) -> Answer:
    """Answers, and leaves one line that says so."""
    with open(Path(os.environ[FOLDER]) / "ran", "a") as file:
        file.write(str(case.workload) + "\n")
    time.sleep(0.05)
    return answer_of(case)


def dies_once(case: Request) -> Answer:
    """The first to take m=3 is killed in the middle of it."""
    mark = Path(os.environ[FOLDER]) / "died"
    if " m=3" in str(case.workload) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(case)


def dies_always(case: Request) -> Answer:
    """Whoever takes m=3 is killed."""
    if " m=3 " in str(case.workload) + " ":
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(case)


def other_version(case: Request) -> Answer:
    """As a worker with another version of the program would answer."""
    return Answer(report={"cycles": 1}, code="0" * 64)
