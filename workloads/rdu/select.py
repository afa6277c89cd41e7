"""Which program an operator runs on a dataflow machine, and what its choosers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.near import hint
from arch.rdu import RduSpec
from sim.rdu.program import BY_VECTORS, Program, by_vectors
from workloads import registry
from workloads.ops import Operator

PS_PER_S = 10**12
REQUEST_BYTES = 512
"""Of an address generator, at most."""


@dataclass(frozen=True)
class Choice:
    """The configuration to run, and the best candidates with their estimated cycles, best first."""

    candidates: list[tuple[Any, int]]

    @property
    def config(self) -> Any:
        """The best."""
        return self.candidates[0][0]


@dataclass(frozen=True)
class ByVectors:
    """A configuration whose sections hand over vectors where they can, not whole tokens."""

    config: Any

    @property
    def schedule(self) -> str:
        """The kind of the program."""
        kind: str = self.config.schedule
        return kind

    def __str__(self) -> str:
        return f"{self.config}{BY_VECTORS}"


def choose(op: Operator, spec: RduSpec, schedule: str = "auto") -> Choice:
    """The programs for `op`, by vectors where `schedule` ends so; InputError where the machine or the problem cannot
    take it."""
    asked = schedule.removesuffix(BY_VECTORS)
    found = registry.chooser(op, spec)(op, spec, asked)
    return Choice(found if asked == schedule else [(ByVectors(config), cycles) for config, cycles in found])


def build(op: Operator, spec: RduSpec, config: Any) -> Program:
    """The program of a configuration; a program that somebody wrote by hand, of no kind, makes itself."""
    if isinstance(config, ByVectors):
        return by_vectors(build(op, spec, config.config))
    by_kind = registry.registered(op.word, spec.family, config.schedule)
    program: Program = by_kind(op, spec, config) if by_kind else config.build(op, spec)
    return program


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def pick(word: str, schedule: str, ranked: Sequence[tuple[Any, int]], parse: Callable[[str], Any] | None = None) -> Any:
    """Those of `ranked` that a schedule asks for: all (`auto`), one kind, or one configuration as it prints."""
    if schedule == "auto":
        return list(ranked)
    kind = [entry for entry in ranked if entry[0].schedule == schedule]
    exact = [entry for entry in ranked if str(entry[0]) == schedule]
    if kind or exact:
        return kind or exact
    if parse is not None and (made := parse(schedule)) is not None:
        return [(made, 0)]
    kinds = sorted({entry[0].schedule for entry in ranked})
    near = hint(schedule, kinds)
    raise InputError(f"schedule={schedule}: {word} has {', '.join(kinds)} or a configuration{near}")


def launch_cycles(spec: RduSpec) -> int:
    """Cycles of a section's launch by hardware whose configuration is on the chip: command, arguments, start."""
    launch = spec.launch
    return (launch.hardware_ps + launch.argument_load_ps + launch.execute_ps) * spec.clock.boost_hz // PS_PER_S


def load_cycles(spec: RduSpec) -> int:
    """Cycles until a request to memory is answered: its latency, a row's opening, a unit through its channel."""
    memory = spec.main_memory
    unit_ps = REQUEST_BYTES * memory.channels * PS_PER_S // memory.bandwidth_bytes_per_s
    return (memory.latency_ps + memory.t_rcd_ps + unit_ps) * spec.clock.boost_hz // PS_PER_S


def check_dtype(op: Operator, spec: RduSpec) -> None:
    """InputError where the machine does not compute with the operator's format."""
    allowed = [*spec.array_dtypes, *(["fp32"] if "fp32" not in spec.array_dtypes else [])]
    if op.dtype not in allowed:
        raise InputError(f"{op.word} dtype={op.dtype}: {spec.name} computes in {', '.join(allowed)}; try {allowed[0]}")
