"""Shared test configuration: a fixed hypothesis profile, so that a failure in CI can be repeated anywhere."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

_MANY = 300
"""Tests of a run that will need the whole engine."""


@pytest.fixture(autouse=True)
def _figures_are_closed() -> Iterator[None]:
    """What a test draws goes with it: twenty figures are all that matplotlib keeps without a warning."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden-update`: write the recorded cycle counts anew; `--pictures-update`: the pictures that are kept."""
    parser.addoption(
        "--golden-update", action="store_true", help="write cycles.lock and docs/running.md's example anew"
    )
    parser.addoption("--pictures-update", action="store_true", help="write the pictures of tests/report/pictures anew")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Of two processes that run the suite each compiles one version of the GPU engine, plain or recording, for both."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker in ("gw0", "gw1") and len(session.items) > _MANY:
        from arch.load import load_arch
        from sim.gpu.engine.api import Device
        from workloads.gpu import micro

        machine = load_arch("t4", {"sm.count": 2, "gpc.count": 1})
        Device(machine, log=worker == "gw1").run(micro.null(1).kernels[0], {})
