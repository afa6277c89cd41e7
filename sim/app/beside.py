"""Beside the fastest kernel that there is, what a library takes: where a library decides, a run has two answers."""

from __future__ import annotations

from dataclasses import replace

from arch.errors import InputError
from arch.near import hint
from sim.app.families.request import Progress, Request
from sim.app.report.record import LibraryRun, RunRecord
from sim.app.run import run
from workloads import libraries
from workloads.graphs import Graph, GraphOperator
from workloads.registry import chooser


def check_library(request: Request, name: str) -> None:
    """InputError, with what there is, where a library has nothing for the workload of a request."""
    asked = request.asked
    if isinstance(asked, Graph | GraphOperator):
        raise InputError(f"--beside {name}: goes with one operator, not with a graph of them")
    known = libraries.words(asked.word)
    if not known:
        raise InputError(f"--beside {name}: no library is known that decides on {asked.word}")
    if name not in known:
        raise InputError(f"--beside {name}: must be one of {', '.join(known)}{hint(name, known)}")


def beside(request: Request, record: RunRecord, name: str, progress: Progress | None = None) -> RunRecord:
    """The record of a run, with what a library takes simulated under the same conditions.

    A library of which no rule is known on the machine takes what tilewave itself would: it is not run again.
    """
    asked = request.asked
    assert not isinstance(asked, Graph)
    op = asked.with_defaults(record.dtype)
    decision = libraries.decide(op, request.machine, name, chooser(op, request.machine))
    assert decision
    found = LibraryRun(decision.name, decision.rule.source)
    if decision.known:
        ran = run(replace(request, schedule=name, without=(), tune=False), progress)
        cycles = sum(kernel.cycles for kernel in ran.kernels)
        found = replace(found, schedule=ran.schedule, cycles=cycles, time_ps=ran.time_ps)
    return replace(record, library=found)
