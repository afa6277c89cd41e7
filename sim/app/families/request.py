"""What is asked of one run: a workload on a machine, under which conditions, in which schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

from arch.errors import InputError
from arch.extensions import Registered
from arch.near import hint
from arch.spec import MachineSpec
from sim.host.scopes import GraphReplay
from workloads.gpu.select import split_without
from workloads.graphs import Graph
from workloads.ops import Operator, extension
from workloads.ops.base import OfFile
from workloads.parse import parse

Schedules = Sequence[tuple[str, str]]
"""Operators as text, each with a schedule."""

Progress = Callable[[float], None]
"""Called with the share done, 0 to 1."""


@dataclass(frozen=True)
class Bench:
    """What a benchmark that is compared with states about itself beside the options of a run.

    clock_hz: highest core clock. replayed: how it replays a graph, where it says so. cold_code: kernels fetch their
    instructions when they first run. linear_tiles: kinds of kernels of which its library launches the
    tiles of a product row by row. host_call_ps: for how long its host is busy with a call; host_switch_call_ps: with
    one that sums through the switch, between two copies. library: what runs is a kernel that a library has. tiles:
    those that its library has for convolutions.
    """

    clock_hz: int | None = None
    replayed: GraphReplay | None = None
    cold_code: bool = True
    linear_tiles: tuple[str, ...] = ()
    host_call_ps: int = 0
    host_switch_call_ps: int = 0
    library: bool = False
    tiles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One run that is asked for; `sim.app.run.simulate` says what the fields mean.

    workload: an operator or its text, or a graph. machine: the description, which knows its overrides. schedule,
    without: a mechanism that the schedule's text names after `without` is one of `without`. measured_as: the kind of
    measurement that gave its conditions and `bench`, where it was asked for by name. It crosses process and machine
    boundaries, so it carries the description itself and not the name of a file.
    """

    workload: Operator | Graph | str
    machine: MachineSpec
    schedule: str = "auto"
    without: Sequence[str] = ()
    check: bool = False
    exact: bool = False
    l2: str = "cold"
    scope: str = "kernel"
    clock: str = "isolated"
    data: str = "normal"
    tune: bool = False
    program: str = ""
    pdl: bool = False
    held: Schedules = ()
    measured_as: str = ""
    bench: Bench = field(default_factory=Bench)

    def __post_init__(self) -> None:
        """Takes what the schedule's text leaves out to `without`, where one mechanism may stand alone."""
        schedule, left_out = split_without(self.schedule)
        asked = (self.without,) if isinstance(self.without, str) else self.without
        object.__setattr__(self, "schedule", schedule)
        object.__setattr__(self, "without", tuple(dict.fromkeys([*asked, *left_out])))

    @property
    def asked(self) -> Operator | Graph:
        """What is computed, as it was asked for: number formats may be open. InputError for a text that is none."""
        return parse(self.workload) if isinstance(self.workload, str) else self.workload

    @property
    def workload_file(self) -> OfFile | None:
        """The workload, where a file says what it is: a program of one's own, a network."""
        asked = self.asked
        return asked if isinstance(asked, OfFile) else None

    def holding(self, op: Operator) -> Self:
        """The request for an operator of this one's graph or network: with the schedule that is held of it.

        InputError where schedules are held, and none of this operator.
        """
        if not self.held:
            return replace(self, workload=op)
        schedules = dict(self.held)
        if str(op) not in schedules:
            raise InputError(f"held schedules: there is none of {op}; hold them over figures of the machine alone")
        return replace(self, workload=op, schedule=schedules[str(op)], without=(), held=())

    @property
    def extensions(self) -> dict[str, Registered]:
        """What other packages add to the run: policies by the path of the machine's figure, operators by their word."""
        asked = self.asked
        ops = [step.op for step in asked.steps] if isinstance(asked, Graph) else [asked]
        found = {op.word: extension(op.word) for op in ops if op.word}
        return {**self.machine.extensions, **{word: entry for word, entry in found.items() if entry}}

    def beyond(self, known: Collection[str]) -> list[str]:
        """Names of options that are not at their default and not in `known`."""
        return [
            name for name, default in OPTION_DEFAULTS.items() if name not in known and getattr(self, name) != default
        ]

    def only(self, known: Collection[str]) -> Self:
        """With every option outside `known` at its default."""
        return replace(self, **{name: default for name, default in OPTION_DEFAULTS.items() if name not in known})

    def chosen(self) -> dict[str, Any]:
        """Every field beside workload and machine that is not at its default, as plain data."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "bench":
                changed = {
                    b.name: _plain(getattr(value, b.name)) for b in fields(value) if getattr(value, b.name) != b.default
                }
                found |= {f.name: changed} if changed else {}
            elif f.name not in ("workload", "machine") and value != f.default:
                found[f.name] = list(value) if isinstance(value, tuple) else value
        return found


OPTION_DEFAULTS: Mapping[str, Any] = {
    f.name: f.default for f in fields(Request) if f.name not in ("workload", "machine", "held", "bench")
}
"""Options of a run, and their defaults."""


def _plain(value: Any) -> Any:
    """A field of a bench as plain data."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """InputError, with the nearest right word, if `value` is not one of `allowed`."""
    if value not in allowed:
        raise InputError(f"{option}={value}: must be one of {', '.join(allowed)}{hint(value, allowed)}")


def part(progress: Progress | None, i: int, count: int) -> Progress | None:
    """Progress of part `i` of `count` equal ones."""
    return None if progress is None else lambda share: progress((i + share) / count)
