"""Runs sections: what Python sees of the dataflow engine."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.memory.counters import MemoryCounter
from sim.rdu.grain import TO_SPARE_BYTES
from sim.rdu.kernel import advance
from sim.rdu.layout import Channels, Network, Reason, Scalars, Stages
from sim.rdu.lower import Configuration, EngineState, lower_section
from sim.rdu.place import Ints
from sim.rdu.program import Read, Section

FAR = 1 << 50
_MAX_DEPTH = 1 << 16


class Deadlock(RuntimeError):
    """Stages wait for one another. `channels`: those whose producers find no room."""

    def __init__(self, message: str, full: list[Read], empty: list[Read]) -> None:
        super().__init__(message)
        self.full, self.empty = full, empty


@dataclass(frozen=True)
class SectionResult:
    """What a section did in one launch, after its configuration; times in ticks."""

    configuration: Configuration
    ticks: int
    """First start to the last result in its place."""
    reasons: Ints
    """Ticks by stage and reason (columns: `Reason`); each row sums to `ticks`."""
    log: Ints
    """One row a firing (columns: `Log`), empty where none was kept."""
    read_bytes: Mapping[str, int]
    """By memory: `hbm`, `ddr`."""
    write_bytes: Mapping[str, int]
    events: int
    requests: int
    link_wait_ticks: Sequence[int]
    """Ticks that transfers waited for shared links, by network (`Network`)."""


class Run:
    """One launch of a configuration."""

    def __init__(self, configuration: Configuration, *, log: bool = True) -> None:
        self.configuration = configuration
        self.state: EngineState = configuration.fresh(log)

    def advance(self, until: int) -> int:
        """Runs to tick `until`; the next event's tick, -1 when all is done. Raises `Deadlock`."""
        found = int(advance(self.configuration.engine, self.state, until))
        if found == -2:
            raise self._deadlock()
        return found

    def windows(self, step: int) -> Iterator[int]:
        """Advances window by window and yields the ticks reached; the last is the section's end."""
        at = 0
        while self.advance(at + step) >= 0:
            at += step
            yield at
        yield self.result.ticks

    def run(self) -> SectionResult:
        """Runs to the end."""
        self.advance(FAR)
        return self.result

    @property
    def share_done(self) -> float:
        """Share of all firings so far."""
        return float(self.state.stage[:, Stages.FIRED].sum() / self.state.stage[:, Stages.FIRINGS].sum())

    @property
    def result(self) -> SectionResult:
        """After the end."""
        state = self.state
        ticks = int(state.x[Scalars.END])
        reasons = state.reasons.copy()
        reasons[:, Reason.IDLE] = ticks - reasons.sum(axis=1)
        moved = {"hbm": state.hbm_counters, "ddr": state.ddr_counters}
        first = sum(r.initial * r.token_bytes for r in self.configuration.section.channels)
        read = {name: int(c[MemoryCounter.DRAM_READ_BYTES]) for name, c in moved.items()}
        read["hbm"] += first
        return SectionResult(
            configuration=self.configuration,
            ticks=ticks,
            reasons=reasons,
            log=state.log[: state.x[Scalars.LOGGED]],
            read_bytes=read,
            write_bytes={name: int(c[MemoryCounter.DRAM_WRITE_BYTES]) for name, c in moved.items()},
            events=int(state.x[Scalars.EVENTS]),
            requests=int(state.stage[:, Stages.UNITS].sum()),
            link_wait_ticks=state.x[Scalars.LINK_WAIT : Scalars.LINK_WAIT + len(Network)].tolist(),
        )

    def _deadlock(self) -> Deadlock:
        reads = [units.read for units in self.configuration.channels]
        full: list[Read] = []
        empty: list[Read] = []
        for s, row in enumerate(self.state.stage):
            if row[Stages.PARKED] >= 0:
                read = reads[int(row[Stages.PARKED])]
                (full if self.state.channel[int(row[Stages.PARKED]), Channels.PRODUCER] == s else empty).append(read)
        names = ", ".join(f"{r.name} (depth {r.depth})" for r in full) or "none"
        waits = ", ".join(r.name for r in empty)
        return Deadlock(f"full: {names}; empty: {waits}", full, empty)


def build(section: Section, spec: RduSpec, addresses: Mapping[str, int], *, log: bool = True) -> Run:
    """A section ready to run."""
    return Run(lower_section(section, spec, addresses), log=log)


def run_section(section: Section, spec: RduSpec, addresses: Mapping[str, int], *, log: bool = True) -> SectionResult:
    """Runs a section; an InputError names the channels of a deadlock and depths that resolve it."""
    run = build(section, spec, addresses, log=log)
    try:
        return run.run()
    except Deadlock as stuck:
        raise InputError(_advice(section, spec, addresses, stuck)) from None


def _advice(section: Section, spec: RduSpec, addresses: Mapping[str, int], stuck: Deadlock) -> str:
    """What is stuck, and the least depths of its full channels that let the section run."""
    text = f"section {section.name} deadlocks: {stuck}"
    before: dict[Read, int] = {}
    try:
        found: Deadlock | None = stuck
        while found is not None:
            if not found.full or max(read.depth for read in found.full) > _MAX_DEPTH:
                return f"{text}; no depth lets it run: each of these waits for a token of another"
            for read in found.full:
                before.setdefault(read, read.depth)
                read.depth *= 2
            found = _deadlock_of(section, spec, addresses)
        for read, depth in before.items():
            read.depth = depth + bisect_left(
                range(depth, read.depth), True, key=functools.partial(_runs, section, spec, addresses, read)
            )
        deeper = [f"{read.depth} of {read.name}" for read, depth in before.items() if read.depth > depth]
        return f"{text}; depth {' and '.join(deeper)} {'lets' if len(deeper) == 1 else 'let'} it run"
    finally:
        for read, depth in before.items():
            read.depth = depth


def _runs(section: Section, spec: RduSpec, addresses: Mapping[str, int], read: Read, depth: int) -> bool:
    """Whether the section runs to its end with another depth of one channel."""
    kept, read.depth = read.depth, depth
    try:
        return _deadlock_of(section, spec, addresses) is None
    finally:
        read.depth = kept


def _deadlock_of(section: Section, spec: RduSpec, addresses: Mapping[str, int]) -> Deadlock | None:
    """How the section gets stuck, if it does, on a chip with memory to spare."""
    roomy = spec.model_copy(update={"pmu": spec.pmu.model_copy(update={"size_bytes": TO_SPARE_BYTES})})
    try:
        build(section, roomy, addresses, log=False).run()
    except Deadlock as stuck:
        return stuck
    return None
