"""How far the time of a run can be trusted, by what measured rows like it were off by."""

from __future__ import annotations

import functools
from typing import Any

from arch import load_arch
from arch.errors import InputError
from sim.app.report.record import RunRecord, Trust
from sim.app.report.text import percent
from workloads.accuracy.known import Board, Case, Known, known, ratios
from workloads.accuracy.results import judges

_FAMILIES = "No row of this operator was measured on a machine of this kind."


def trust(run: RunRecord) -> Trust:
    """What is known of a run's time: of an operator by rows like it, of a whole model by those of its operators."""
    op = _op(run.workload)
    found = None if run.operators else _known(run, op, run.dtype, run.time_ps or _device_ps(run))
    said = [found.text] if found else [_of_steps(run) if run.operators else _FAMILIES]
    ratio = _ratios(op)
    if run.asked.overrides:
        said += ["Figures of the machine were changed, which nobody measured.", *([ratio] if ratio else [])]
    return Trust(said, _errors(found) if found else None, ratio)


def _errors(found: Known) -> dict[str, Any]:
    """By schema.json."""
    return {
        "rows_of": found.of, "own_machine": found.own, "rows": found.rows, "mean_percent": found.mean,
        "bias_percent": found.bias, "low_percent": found.low, "high_percent": found.high,
    }  # fmt: skip


def _ratios(op: str) -> str:
    """What is known of ratios between machines for an operator; empty where that is nothing."""
    pairs = ratios(op, judges())
    if not pairs:
        return ""
    return (
        f"Ratios between machines: of {pairs.pairs} pairs of measured rows that differ in the machine alone, they are "
        f"{pairs.mean:.0f} % off in the mean."
    )


def _of_steps(run: RunRecord) -> str:
    """What is known of the operators of a whole model, weighed by their time."""
    total = errors = 0.0
    for step in run.operators:
        found = _known(run, _op(step.workload), run.dtype, step.device_ps) if step.device_ps else None
        if found:
            total += step.device_ps
            errors += step.device_ps * found.mean
    share = total / max(sum(step.device_ps for step in run.operators), 1)
    if not total:
        return _FAMILIES
    return (
        f"No whole model was measured here. Operators that take {percent(share)} of its device time have measured "
        f"rows, which are {errors / total:.0f} % off in the mean, weighed by time; errors of steps partly cancel in "
        "the sum."
    )


def _known(run: RunRecord, op: str, dtype: str, time_ps: int) -> Known | None:
    machine = run.machine
    board = Board(machine.family, str(machine.spec.get("chip", "")), machine.name)
    return known(Case(board, op, dtype, max(time_ps, 1) * 1e-6), judges(), board_of)


def _op(workload: str) -> str:
    return workload.split(maxsplit=1)[0]


def _device_ps(run: RunRecord) -> int:
    return sum(kernel.time_ps for kernel in run.kernels)


@functools.cache
def board_of(machine: str) -> Board:
    """The board of a machine with rows; one that is no preset has neither family nor chip."""
    try:
        spec = load_arch(machine)
    except InputError:
        return Board("", "", machine)
    return Board(spec.family, spec.chip, machine)
