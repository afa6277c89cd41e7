"""pytest plugin of tilewave: the fixture `cycles`, which holds kernels to recorded cycle counts.

    def test_kernel(cycles):
        cycles.check(Gemm(m=1024, n=1024, k=1024, dtype="bf16"), "h100-sxm")

The counts lie in `cycles.lock` beside the test file; `pytest --cycles-update` writes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sim.app.report.report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cycles-update`: record cycle counts instead of comparing them."""
    group = parser.getgroup("tilewave")
    group.addoption("--cycles-update", action="store_true", help="record the cycle counts of the `cycles` fixture")


@pytest.fixture
def cycles(request: pytest.FixtureRequest) -> Cycles:
    """Compares runs with those recorded in `cycles.lock` beside the test file."""
    return Cycles(request.node.path, request.node.name, request.config.getoption("--cycles-update"))


class Cycles:
    """The recorded runs of one test."""

    def __init__(self, file: Path, test: str, update: bool) -> None:
        self._test = f"{file.stem}::{test}"
        self._lock = file.with_name("cycles.lock")
        self._update = update
        self._checked = 0

    def check(self, workload: Any, machine: Any, *, name: str = "", tolerance: Any = 0.0, **options: Any) -> Report:
        """Simulates an operator (or its text) on a machine, and fails the test if it differs from the record.

        Files that a text names lie in the test file's folder.

        name: of the record, where a test has several; default: their number. tolerance: relative change that is
        accepted, 0 for exact equality; or by kind, {"cycles": 0, "energy": 0.02}. options: as in `sim.simulate`.
        Returns the report.
        """
        from arch.load import load_arch
        from sim.app.run import simulate
        from sim.app.study import lockfile
        from sim.app.study.check import compared, entry_of
        from sim.app.study.check_formats import explain
        from sim.app.study.tolerance import tolerance_of

        __tracebackhide__ = True
        self._checked += 1
        suffix = f" {name}" if name else f" {self._checked}" if self._checked > 1 else ""
        with lockfile.beside(self._lock):
            spec = load_arch(machine, options.pop("set", ())) if isinstance(machine, str) else machine
            report = simulate(workload, spec, **options)
        new = entry_of(spec.name, spec, report.record.workload, report.to_dict())
        key = self._test + suffix
        if self._update:
            with _alone(self._lock.parent):
                lock = lockfile.read(self._lock) if self._lock.exists() else lockfile.Lock()
                if lock.entries.get(key) != new:
                    lockfile.write(self._lock, replace(lockfile.here(), entries={**lock.entries, key: new}))
            return report
        lock = lockfile.read(self._lock) if self._lock.exists() else lockfile.Lock()
        old = lock.entries.get(key)
        if old is None:
            pytest.fail(f"{self._lock.name} has no record of {key!r}; pytest --cycles-update makes it", pytrace=False)
        outcome = compared(key, old, new, tolerance_of(tolerance, key))
        if outcome.status != "same":
            lines = "\n  ".join(explain(outcome))
            what = f"{key}, {report.record.title}, differs from {self._lock}"
            pytest.fail(f"{what}\n  {lines}\npytest --cycles-update accepts it", pytrace=False)
        return report


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes of the same test run from writing the same file meanwhile."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
