"""What happened when: a run as a timeline, for Perfetto, Konata and the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

if TYPE_CHECKING:
    from sim.app.trace.timeline import Timeline
    from sim.app.trace.window import Wanted


def trace(
    workload: Any,
    machine: Any,
    wanted: Wanted | None = None,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Timeline:
    """Runs an operator and records a part of it.

    workload, machine, schedule, set, options: as in `sim.simulate`. wanted: cycles, units and kernel; default: all of
    the first kernel on the first SM. Raises InputError before anything runs, and for a part that holds nothing or too
    much.
    """
    from arch.load import load_arch
    from sim.app.families import runner
    from sim.app.families.options import Options
    from sim.app.trace.window import Wanted
    from workloads.parse import parse

    spec = load_arch(machine, set) if isinstance(machine, str) else machine
    op = parse(workload) if isinstance(workload, str) else workload
    asked = Options(schedule=schedule, **options)
    for name in asked.beyond(runner(spec.family).OPTIONS):
        raise InputError(f"{name}={getattr(asked, name)}: means nothing on {spec.name}, leave it out")
    record = import_module(f"sim.app.trace.{spec.family}").trace
    found: Timeline = record(op, spec, asked, wanted or Wanted(), progress)
    return found
