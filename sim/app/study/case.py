"""One simulation of a study: what is asked, its key in the store, and the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arch.errors import InputError
from sim.app.fingerprint import code_hash

DOCUMENT = 1
"""Version of what `Answer.report` holds; part of every key."""

OPTION_DEFAULTS: Mapping[str, Any] = {
    "l2": "cold",
    "scope": "kernel",
    "clock": "isolated",
    "data": "normal",
    "tune": False,
    "exact": False,
    "check": False,
}
"""Options of `sim.simulate` that change a result, and their defaults."""


@dataclass(frozen=True)
class Case:
    """One run: an operator's text on a machine's description (of any family).

    options: those of `OPTION_DEFAULTS` that differ from their default. It crosses process and machine boundaries, so it
    carries the description itself and not the name of a file.
    """

    workload: str
    machine: Any
    schedule: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, workload: str, machine: Any, schedule: str = "auto", **options: Any) -> Case:
        """A case; options that have their default value are dropped, so that both ways of asking share a result."""
        given = {name: value for name, value in sorted(options.items()) if value != OPTION_DEFAULTS[name]}
        return cls(workload, machine, schedule, given)

    @property
    def key(self) -> str:
        """SHA-256 of everything that the answer depends on: machine, workload, schedule, options, program."""
        asked = (DOCUMENT, code_hash(), self.machine.content_hash(), self.workload, self.schedule, dict(self.options))
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What came of a case: the report as plain data, or why there is none.

    refused: the machine cannot run it. failed: the simulator broke, or its process died. code: hash of the program that
    answered.
    """

    report: Mapping[str, Any] | None = None
    refused: str = ""
    failed: str = ""
    code: str = ""


def run_case(case: Case) -> Answer:
    """Simulates one case. Everything in the report that is not deterministic (CPU time, memory) is left out."""
    from sim.app.run import simulate

    try:
        report = simulate(case.workload, case.machine, schedule=case.schedule, **case.options).to_dict()
    except InputError as error:
        return Answer(refused=str(error), code=code_hash())
    except Exception as error:  # one broken case must not cost the others; it is listed as failed
        return Answer(failed=f"{type(error).__name__}: {error}", code=code_hash())
    report.pop("simulator", None)
    return Answer(report=json.loads(json.dumps(report)), code=code_hash())
