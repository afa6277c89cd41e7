"""One run of a study: the key of a request in the store, and the answer to it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from arch.errors import InputError
from sim.app.families.request import Request
from sim.app.fingerprint import code_hash

DOCUMENT = 3
"""Version of what `Answer.document` holds; part of every key."""


@dataclass(frozen=True)
class Answer:
    """What came of a request: the report as plain data, or why there is none.

    cpu_s: seconds of CPU that the simulation took, whenever that was. refused: the machine cannot run it. failed: the
    simulator broke, or its process died. code: hash of the program that answered.
    """

    report: Mapping[str, Any] | None = None
    cpu_s: float = 0.0
    refused: str = ""
    failed: str = ""
    code: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """What a store keeps of it."""
        return {"report": self.report, "cpu_s": self.cpu_s}

    @classmethod
    def kept(cls, document: Mapping[str, Any]) -> Answer | None:
        """An answer from a store; None if the document is none, or its report lacks what schema.json requires."""
        report, cpu_s = document.get("report"), document.get("cpu_s")
        if not isinstance(cpu_s, int | float) or not is_report(report):
            return None
        return cls(report=report, cpu_s=cpu_s, code=code_hash())


def code_of(request: Request) -> str:
    """Hash of the program that answers a request, what other packages add to it included."""
    others = [other.sha256 for other in request.extensions.values()]
    return hashlib.sha256("".join([code_hash(), *others]).encode()).hexdigest() if others else code_hash()


def is_report(document: Any) -> bool:
    """Whether a document has the version of schema.json and the keys that it requires, as do its kernels."""
    version, keys, measured = _required()
    return (
        isinstance(document, dict)
        and document.get("schema_version") == version
        and document.keys() >= keys | measured
        and isinstance(document["kernels"], list)
        and all(isinstance(kernel, dict) and kernel.keys() >= measured for kernel in document["kernels"])
    )


@cache
def _required() -> tuple[str, frozenset[str], frozenset[str]]:
    """Version, keys of a report, keys of what is measured, by schema.json."""
    schema = json.loads((resources.files("sim.app.report") / "schema.json").read_text(encoding="utf-8"))
    version = schema["properties"]["schema_version"]["const"]
    return version, frozenset(schema["required"]), frozenset(schema["$defs"]["measured"]["required"])


def key_of(request: Request) -> str:
    """SHA-256 of everything that the answer depends on: machine, workload, options, conditions, program."""
    machine, workload = request.machine, str(request.workload)
    # The report says how the machine was asked for, so that one figure set in two ways is two results.
    described = (machine.content_hash(), list(machine.overrides.items()), machine.file and machine.file.name)
    own = request.workload_file
    asked = (DOCUMENT, code_of(request), described, workload, own and own.sha256, request.chosen())
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def run_case(request: Request) -> Answer:
    """Simulates one request. Everything in the report that is not deterministic (CPU time, memory) is left out."""
    from sim.app.report.report import Report
    from sim.app.run import run

    start_s = time.process_time()
    try:
        report = Report(run(request)).to_dict()
    except InputError as error:
        return Answer(refused=str(error), code=code_of(request))
    except Exception as error:  # one broken case must not cost the others; it is listed as failed
        return Answer(failed=f"{type(error).__name__}: {error}", code=code_of(request))
    report.pop("simulator", None)
    report.pop("versions", None)
    return Answer(json.loads(json.dumps(report)), time.process_time() - start_s, code=code_of(request))
