"""What a record says about the asking: options of the run, the machine's file and overrides, versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection
from functools import cache
from importlib import metadata
from pathlib import Path

from arch import reading
from sim.app.cost import version
from sim.app.families.request import Request
from sim.app.report.asked import DEFAULT_CONDITIONS, Asked, FileRecord, PolicyRecord, titled


def asked_of(request: Request, known: Collection[str]) -> Asked:
    """What the record of a run says about the request. known: names of options that mean something on the machine."""
    file = request.machine.file
    return Asked(
        schedule=request.schedule,
        without=request.without,
        tune=request.tune,
        pdl=request.pdl,
        measured_as=request.measured_as,
        held=dict(request.held),
        conditions={name: getattr(request, name) for name in DEFAULT_CONDITIONS if name in (*known, "scope")},
        overrides=dict(request.machine.overrides),
        implausible=tuple(request.machine.implausible),
        machine_file=FileRecord(file.name, file.sha256) if file else None,
        program=_read(request.program) if request.program else None,
        workload_file=FileRecord(Path(own.path).name, own.sha256) if (own := request.workload_file) else None,
        versions=versions(),
        extensions={
            path: PolicyRecord(other.name, other.package, other.sha256) for path, other in request.extensions.items()
        },
    )


def request_title(request: Request) -> str:
    """What a request is about: workload, machine with its changes, schedule where one is asked for, conditions."""
    asked = asked_of(request, DEFAULT_CONDITIONS)
    schedule = [f"schedule {request.schedule}"] if request.schedule != "auto" else []
    return titled(f"{request.asked} on {request.machine.label}", [*schedule, *asked.unusual])


@cache
def versions() -> dict[str, str]:
    """Versions of the program and of what it computes with."""
    return {
        "tilewave": version(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba")},
    }


def _read(name: str) -> FileRecord:
    path = Path(name)
    return FileRecord(path.name, hashlib.sha256(reading.content(path)).hexdigest())
