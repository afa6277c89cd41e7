"""Shared test configuration: a fixed hypothesis profile, so that a failure in CI can be repeated anywhere."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
