"""Check mode on GPUs: schedules replayed with numbers, their results compared with NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.units import BYTES
from sim.app.families.family import NO_REFERENCE
from sim.app.families.gpu.compiled_check import check_compiled
from sim.app.families.gpu.conditions import Conditions
from sim.app.families.gpu.steps import PlannedStep
from sim.app.report.record import CheckResult
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.language import Program
from sim.gpu.sass.kernel import SassLaunchProgram
from sim.gpu.units.events import EVENT_COLUMNS, Event
from workloads.ops import Operator
from workloads.written import OwnProgram

_LOG_ROWS = 1 << 18
_MAX_LOG_ROWS = 1 << 23
"""Event log of a check: 64 bytes a row, 512 MiB at most."""


def check_steps(steps: Sequence[PlannedStep], spec: GpuSpec, conditions: Conditions) -> tuple[CheckResult, list[str]]:
    """Checks every operator on its own; the worst result, and a sentence for each thing wrong."""
    passed, worst, notes = True, None, []
    for entry in steps:
        if entry.program is None:
            continue
        outcome, found = check(entry.op, spec, entry.program, conditions)
        passed = passed and outcome.passed
        if outcome.max_rel_error is not None:
            worst = max(worst or 0.0, outcome.max_rel_error)
        notes += [f"{entry.label}: {note}" if entry.label else note for note in found]
    return CheckResult(passed, worst), notes


def check(op: Operator, spec: GpuSpec, program: Program, conditions: Conditions) -> tuple[CheckResult, list[str]]:
    """Replays the schedule with numbers and compares with NumPy; the result, and a sentence for each thing wrong."""
    if isinstance(program, SassLaunchProgram):
        return check_compiled(program)
    if sampled := [kernel.name for kernel in program.kernels if kernel.stands_for]:
        raise InputError(
            f"check: {op} is so long that a sample of {sampled[0]} is simulated, which has no numbers; "
            "a smaller problem runs the same code"
        )
    operands = op.inputs(seed=0)
    by_role = {role: [t for t in program.tensors if t.role == role] for role in ("input", "output")}
    # Operands beyond the inputs are results that the operator adds to.
    stored = program.config.get("stored", {})
    inputs = {
        tensor.name: stored[tensor.name](array) if tensor.name in stored else array.reshape(tensor.shape)
        for tensor, array in zip([*by_role["input"], *by_role["output"]], operands, strict=False)
    }
    replay = interpret(program, _events(program, spec, conditions), inputs)
    if isinstance(op, OwnProgram) and not op.compared:
        return CheckResult(not replay.violations, None), [NO_REFERENCE, *(f"Check: {v}." for v in replay.violations)]
    shown = program.config.get("shown", {})
    outputs = {name: shown[name](array) if name in shown else array for name, array in replay.outputs.items()}
    error = op.largest_error([outputs[tensor.name] for tensor in by_role["output"]], *operands)
    passed = error <= op.tolerance and not replay.violations
    notes = [f"Check: {violation}." for violation in replay.violations]
    if not error <= op.tolerance:
        notes.append(f"Check: relative error {error:.2e}, rounding alone explains {op.tolerance:.2e}.")
    return CheckResult(passed, error if math.isfinite(error) else math.inf), notes


def _events(program: Program, spec: GpuSpec, conditions: Conditions) -> np.ndarray:
    """The event log of all kernels of a program, shape (rows, 8); InputError if it would be too large."""
    rows = _LOG_ROWS
    while True:
        device = Device(spec, regulator=conditions.regulator(spec), exact=conditions.exact, log=True)
        logs = []
        needed = 0
        for number, kernel in enumerate(program.kernels):
            launch = device.build(kernel, program.addresses())
            launch.state = launch.state._replace(log=np.zeros((rows, EVENT_COLUMNS), dtype=np.int64))
            try:
                events = launch.run().events
            except MemoryError:
                needed = max(needed, launch.log_rows_needed)
                continue
            assert events is not None
            events[:, Event.KERNEL] = number
            logs.append(events)
        if not needed:
            return np.concatenate(logs)
        if needed > _MAX_LOG_ROWS:
            raise InputError(
                f"check: {program.name} with {program.schedule} logs {needed} events, more than the {_MAX_LOG_ROWS} "
                f"that fit in {BYTES.format(64 * _MAX_LOG_ROWS)}; a smaller problem runs the same code"
            )
        rows = needed
