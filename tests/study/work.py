"""Stand-ins for a simulation, importable by worker processes. FOLDER (environment) is where they leave traces."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sim.app.families.request import Request
from sim.app.fingerprint import code_hash
from sim.app.report.report import SCHEMA_VERSION
from sim.app.study.case import Answer

FOLDER = "TILEWAVE_TEST_FOLDER"


def answer_of(case: Request) -> Answer:
    """The least that is a report by the schema: a pure function of the case."""
    measured = {
        "cycles": len(str(case.workload)), "clock_hz": 10**9, "time_us": 1.0, "flops": 2, "macs": 1, "tflops": 1.0,
        "percent_of_peak": 1.0, "bound": "latency", "bytes": {}, "stalls": {},
    }  # fmt: skip
    asked = {
        "machine": "t4", "family": "gpu", "overrides": {}, "conditions": {"scope": "kernel"},
        "schedule_asked": "auto", "without": [], "workload": str(case.workload), "dtype": "fp16",
    }  # fmt: skip
    kernels = [{"name": "kernel", "schedule": "mma", **measured}]
    report = {
        "schema_version": SCHEMA_VERSION,
        **asked,
        "schedule": "mma",
        "candidates": [],
        "kernels": kernels,
        **measured,
    }
    return Answer(report=report, code=code_hash())


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
