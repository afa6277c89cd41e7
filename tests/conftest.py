"""Shared test configuration: a fixed hypothesis profile, so that a failure in CI can be repeated anywhere."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden-update`: write the recorded cycle counts anew."""
    parser.addoption("--golden-update", action="store_true", help="write cycles.lock anew")
