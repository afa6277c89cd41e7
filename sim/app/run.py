"""The program as a library: `simulate` one operator on one machine, `compare` several, `simulate_row` for validation.

What a family of machines does with an operator is in `sim.app.families`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from arch.errors import InputError
from arch.load import load_arch
from arch.spec import MachineSpec
from sim.app.families import runner
from sim.app.families.options import Options, Progress, part
from sim.app.report.compare import Comparison, Unsupported
from sim.app.report.report import Report
from sim.app.study.validate import RowResult
from workloads.gpu.select import WITHOUT
from workloads.graphs import Graph
from workloads.ops import Operator
from workloads.parse import parse
from workloads.silicon import Row

if TYPE_CHECKING:
    from sim.tpu.show import ArrayRun


def simulate(
    workload: Operator | Graph | str,
    machine: MachineSpec | str,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    check: bool = False,
    exact: bool = False,
    l2: str = "cold",
    scope: str = "kernel",
    clock: str = "isolated",
    data: str = "normal",
    tune: bool = False,
    without: Sequence[str] = (),
    program: str = "",
    progress: Progress | None = None,
) -> Report:
    """Simulates one operator, or one graph of operators, on one machine.

    workload: an operator, its text (`gemm m=4096 n=4096 k=4096 dtype=bf16`) or a graph (`workloads.graphs`). machine:
    a description, or a preset's name or file. schedule: `auto`, a kind (`wgmma`, `mma`, ...) or a whole configuration
    as reports print it; of graphs `eager`, `graph`, `fused`, `fused_graph`. set: overrides of the machine,
    `path=value`. check: replay the schedule with numbers and compare with NumPy. exact: every instruction issues
    singly. l2: `cold`, `warm` after an untimed run, or `dirty`, full of what something else wrote. scope: what the
    time covers (`sim.host.scopes`). clock: `isolated` (the chip was idle before), `sustained` (it was busy for long),
    or a locked clock such as `1.41 GHz`, at which the power limit does not act. data: operands for the power model.
    program: a file with the program to run instead, as `program_listing` prints it (TPUs), or a Python file that
    makes it (docs/dataflow-language.md). tune: simulate the best few candidates and take the fastest. without:
    mechanisms that the kernel is to do without, which gives another program (`workloads.gpu.select.MECHANISMS`).
    progress: called with the share done, 0 to 1.
    Raises InputError before anything runs, also for an option that means nothing on the machine.
    """
    spec = _machine(machine, set)
    op = parse(workload) if isinstance(workload, str) else workload
    options = Options(_leaving_out(schedule, without), check, exact, l2, scope, clock, data, tune, program)
    return _simulate(op, spec, options, progress)


def compare(
    workload: Operator | str,
    machines: Sequence[MachineSpec | str],
    schedules: Sequence[str] = ("auto",),
    *,
    set: Sequence[str] = (),
    l2: str = "cold",
    scope: str = "kernel",
    clock: str = "isolated",
    data: str = "normal",
    tune: bool = False,
    exact: bool = False,
    check: bool = False,
    without: Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Simulates one operator on several machines, with each schedule; options as in `simulate`.

    A machine that cannot run it, or lacks a figure that `set` overrides, is a row with the reason; an option that means
    nothing on a machine is noted in its report. Raises InputError for an unknown machine or operator.
    """
    op = parse(workload) if isinstance(workload, str) else workload
    specs = _machines(machines, set)
    options = Options("auto", check, exact, l2, scope, clock, data, tune)
    pairs = [(spec, _leaving_out(schedule, without)) for spec in specs for schedule in schedules]
    rows: list[Report | Unsupported] = []
    for i, (spec, schedule) in enumerate(pairs):
        if isinstance(spec, Unsupported):
            rows.append(spec)
            continue
        known = runner(spec.family).OPTIONS
        try:
            report = _simulate(op, spec, replace(options, schedule=schedule).only(known), part(progress, i, len(pairs)))
        except InputError as error:
            rows.append(Unsupported(spec.name, str(error)))
            continue
        notes = [f"The option {name} means nothing on {spec.name}." for name in options.beyond(known)]
        rows.append(Report(replace(report.record, notes=[*report.record.notes, *notes])))
    return Comparison(str(op), rows)


def simulate_row(row: Row) -> RowResult:
    """Simulates a row of reference data in its source's environment. Raises InputError where it cannot be run."""
    family = load_arch(row.machine).family
    simulate_one = getattr(runner(family), "row", None)
    if simulate_one is None:
        raise InputError(f"{row.machine}: rows of measured times cannot be run on machines of family {family}")
    result: RowResult = simulate_one(row)
    return result


def program_listing(
    workload: Operator | str,
    machine: MachineSpec | str,
    *,
    schedule: str = "auto",
    set: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """The program that `simulate` would run, as text with the cost of each instruction."""
    spec = _machine(machine, set)
    op = parse(workload) if isinstance(workload, str) else workload
    return str(runner(spec.family).listing(op, spec, _leaving_out(schedule, without)))


def _leaving_out(schedule: str, without: Sequence[str]) -> str:
    """The schedule as families read it, with the mechanisms that it is to leave out."""
    return f"{schedule}{WITHOUT}{' '.join(without)}" if without else schedule


def show_array(workload: Operator | str, machine: MachineSpec | str, *, set: Sequence[str] = ()) -> ArrayRun:
    """What every cell of a systolic array holds in every cycle of a small product."""
    spec = _machine(machine, set)
    op = parse(workload) if isinstance(workload, str) else workload
    show = getattr(runner(spec.family), "show_array", None)
    if show is None:
        raise InputError(f"show-array: {spec.name} is no systolic array; tpu-v1 is one")
    found: ArrayRun = show(op, spec)
    return found


def _simulate(op: Operator | Graph, spec: MachineSpec, options: Options, progress: Progress | None) -> Report:
    family = runner(spec.family)
    for name in options.beyond(family.OPTIONS):
        raise InputError(f"{name}={getattr(options, name)}: means nothing on {spec.name}, leave it out")
    return Report(family.run(op, spec, options, progress))


def _machines(machines: Sequence[MachineSpec | str], overrides: Sequence[str]) -> list[MachineSpec | Unsupported]:
    """The machines of a comparison; one that lacks an overridden figure which another has is a reason."""
    found: list[MachineSpec | Unsupported] = []
    errors = []
    for machine in machines:
        plain = _machine(machine, ())
        try:
            found.append(_machine(machine, overrides))
        except InputError as error:
            errors.append(error)
            found.append(Unsupported(plain.name, str(error)))
    if len(errors) == len(found):
        raise errors[0]
    return found


def _machine(machine: MachineSpec | str, overrides: Sequence[str]) -> MachineSpec:
    if isinstance(machine, str):
        spec: MachineSpec = load_arch(machine, overrides)
        return spec
    if overrides:
        right = f"load_arch({machine.name!r}, {list(overrides)})"
        raise InputError(f"set: overrides go with a machine's name; make the description with {right}")
    return machine
