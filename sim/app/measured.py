"""Runs as people measure operators: what a kind of measurement of `workloads/silicon/measurements.yaml` sets."""

from __future__ import annotations

from typing import Any

from sim.app.families.request import Bench
from sim.host.scopes import GraphReplay
from workloads.silicon.measurements import measurement


def conditions_as(name: str) -> dict[str, Any]:
    """Options of a run, under the names that `sim.app.run.simulate` takes; InputError for a kind that is none."""
    kind = measurement(name)
    return {"scope": kind.scope, "l2": kind.l2, "clock": kind.settings["clock"]}


def bench_as(name: str, scope: str) -> Bench:
    """What the kind says beside them of a benchmark. scope: of the run, which may have been asked for otherwise."""
    settings = measurement(name).settings
    replays = settings.get("replays", 0) if scope == "graph" else 0
    return Bench(
        replayed=GraphReplay(settings.get("layers", 1), replays) if replays else None,
        cold_code=settings.get("code") != "warm",
    )
