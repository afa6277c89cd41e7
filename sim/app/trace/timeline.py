"""What happened when, on tracks: the form that all families' engines are brought into and all writers read.

Times are whole core cycles. On one track slices do not overlap; a track may have another as its parent. A counter holds
its value until its next sample. A flow joins slices that caused one another, in their order in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Track(NamedTuple):
    """A row, a group of rows, or a counter. unit: of a counter; empty for others."""

    name: str
    parent: int | None
    counter: bool
    unit: str


class Slice(NamedTuple):
    """Something that lasted from `begin` to `end` (cycles). category: what kind of thing. flows: numbers."""

    track: int
    begin: int
    end: int
    name: str
    category: str
    args: Mapping[str, str | int]
    flows: tuple[int, ...]


class Sample(NamedTuple):
    """A counter's value from `at` (cycles) on."""

    track: int
    at: int
    value: float


class HeatMap(NamedTuple):
    """A quantity of many alike parts over time, such as the slices of a cache. track: below which it belongs. at:
    cycles, in order. values: of each part in turn (rows) at each of these."""

    track: int
    name: str
    unit: str
    at: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]


@dataclass
class Timeline:
    """One traced run. facts: what a reader must know about it, by name."""

    title: str
    facts: dict[str, str]
    tracks: list[Track] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    maps: list[HeatMap] = field(default_factory=list)
    _lanes: dict[tuple[int, str], list[tuple[int, int]]] = field(default_factory=dict, repr=False)
    _named: dict[tuple[str, int | None], int] = field(default_factory=dict, repr=False)
    _flows: int = field(default=0, repr=False)

    def track(self, name: str, parent: int | None = None) -> int:
        """Adds a row or group; its number."""
        self.tracks.append(Track(name, parent, False, ""))
        return len(self.tracks) - 1

    def counter(self, name: str, parent: int | None, unit: str) -> int:
        """Adds a counter; its number."""
        self.tracks.append(Track(name, parent, True, unit))
        return len(self.tracks) - 1

    def child(self, name: str, parent: int | None, unit: str | None = None) -> int:
        """The row, group or (with a unit) counter of this name; it is made where there is none yet."""
        if (name, parent) not in self._named:
            made = self.track(name, parent) if unit is None else self.counter(name, parent, unit)
            self._named[name, parent] = made
        return self._named[name, parent]

    def flow(self) -> int:
        """A new flow's number."""
        self._flows += 1
        return self._flows

    def add(
        self,
        track: int,
        begin: int,
        end: int,
        name: str,
        category: str,
        args: Mapping[str, str | int] | None = None,
        flows: tuple[int, ...] = (),
    ) -> None:
        """Adds a slice; one that would end before it begins is not there."""
        if end >= begin:
            self.slices.append(Slice(track, begin, end, name, category, args or {}, flows))

    def add_in_lane(
        self, group: int, lane: str, begin: int, end: int, name: str, category: str, **more: object
    ) -> None:
        """Adds a slice to the first row `lane N` of a group that is free then; slices come in the order of begins."""
        lanes = self._lanes.setdefault((group, lane), [])
        for i, (track, free) in enumerate(lanes):
            if free <= begin:
                lanes[i] = (track, max(end, begin))
                self.add(track, begin, end, name, category, **more)  # type: ignore[arg-type]
                return
        track = self.track(f"{lane} {len(lanes)}", group)
        lanes.append((track, max(end, begin)))
        self.add(track, begin, end, name, category, **more)  # type: ignore[arg-type]

    def sample(self, track: int, at: int, value: float) -> None:
        """Adds a counter's value."""
        self.samples.append(Sample(track, at, value))

    def within(self, first: int, last: int | None) -> Timeline:
        """The part that touches a window of cycles; counters keep the value that they have when it begins, and maps are
        whole."""
        end = last if last is not None else max(self.span[1], first)
        slices = [s for s in self.slices if s.begin <= end and s.end >= first]
        before: dict[int, Sample] = {}
        for sample in sorted(self.samples, key=lambda s: s.at):
            if sample.at <= first:
                before[sample.track] = sample._replace(at=first)
        samples = [*before.values(), *(s for s in self.samples if first < s.at <= end)]
        return Timeline(self.title, self.facts, self.tracks, slices, samples if slices else [], self.maps)

    @property
    def roots(self) -> list[int]:
        """Tracks without a parent."""
        return [number for number, track in enumerate(self.tracks) if track.parent is None]

    def below(self, root: int) -> Timeline:
        """The part on a track and all below it."""
        wanted: set[int] = set()
        for number, track in enumerate(self.tracks):  # parents come before their children
            if number == root or track.parent in wanted:
                wanted.add(number)
        slices = [s for s in self.slices if s.track in wanted]
        samples = [s for s in self.samples if s.track in wanted]
        maps = [m for m in self.maps if m.track in wanted]
        return Timeline(self.title, self.facts, self.tracks, slices, samples, maps)

    def path(self, track: int) -> str:
        """A track's name with those of its parents: `h100-sxm / GPC 0 / SM 0`."""
        found = self.tracks[track]
        return found.name if found.parent is None else f"{self.path(found.parent)} / {found.name}"

    @property
    def span(self) -> tuple[int, int]:
        """First and last cycle of anything recorded."""
        begins = [s.begin for s in self.slices] + [s.at for s in self.samples]
        return min(begins, default=0), max([s.end for s in self.slices] + [s.at for s in self.samples], default=0)
