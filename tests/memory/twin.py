"""A slow twin of the L2's contents in plain Python: which sectors are where, what is fetched, evicted, written back.

It shares no code with the kernels and keeps no time. Where a line belongs (home slice, set within a
slice), and whether it cleans an older one, is given from outside.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

Home = Callable[[int], int]
"""From a line to its home slice."""
Index = Callable[[int, int], int]
"""From a line and a slice to the set within that slice."""


@dataclass(eq=False)
class Way:
    """One line of one slice."""

    line: int | None = None
    valid: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)


class CacheTwin:
    """Contents of all slices; `counts` uses the names of `MemoryCounter`, and "DRAM_READ_SECTORS". limit: lines of a
    set that may be dirty. spare: lines take the room of clean ones, and those for which `cleans` holds send an older
    dirty one to DRAM."""

    def __init__(
        self,
        home: Home,
        index: Index,
        partitions: int,
        slices: int,
        ways: int,
        copies: bool,
        limit: int,
        spare: bool,
        cleans: Callable[[int], bool],
    ) -> None:
        self.home, self.index, self.partitions, self.slices, self.copies = (
            home,
            index,
            partitions,
            slices,
            copies and partitions == 2,
        )
        self.ways, self.limit, self.spare, self.cleans = ways, limit, spare, cleans
        self.sets: dict[tuple[int, int], list[Way]] = {}
        """Ways of each set that has been used, the least recently used one first."""
        self.counts: Counter[str] = Counter()

    def read(self, partition: int, line: int, sectors: set[int]) -> None:
        home = self.home(line)
        self.counts["L2_READ_SECTORS"] += len(sectors)
        missing = sectors
        if self._partition(home) != partition:
            if self.copies:
                own = (home + self.slices // 2) % self.slices
                copy = self._find_or_allocate(own, line)
                missing = sectors - copy.valid
                copy.valid |= sectors
                self.counts["L2_READ_HIT_SECTORS"] += len(sectors) - len(missing)
                if not missing:
                    return
            self.counts["L2_FAR_READ_SECTORS"] += len(missing)
            self.counts["L2_LINK_BYTES"] += 32 * len(missing)
        there = self._find_or_allocate(home, line)
        fetched = missing - there.valid
        there.valid |= missing
        self.counts["L2_READ_HIT_SECTORS"] += len(missing) - len(fetched)
        self.counts["L2_READ_MISS_SECTORS"] += len(fetched)
        self.counts["DRAM_READ_SECTORS"] += len(fetched)

    def write(self, partition: int, line: int, sectors: set[int], full: set[int], reduce: bool = False) -> None:
        home = self.home(line)
        self.counts["L2_REDUCE_SECTORS" if reduce else "L2_WRITE_SECTORS"] += len(sectors)
        if self._partition(home) != partition:
            self.counts["L2_FAR_WRITE_SECTORS"] += len(sectors)
            self.counts["L2_LINK_BYTES"] += 32 * len(sectors)
        whole = set() if reduce else sectors & full
        if self.copies:
            other = (home + self.slices // 2) % self.slices
            if whole and self._partition(home) != partition:
                self._find_or_allocate(other, line).valid |= whole
            else:
                ways = self._set(other, line)
                for way in [way for way in ways if way.line == line]:
                    ways.remove(way)
                    ways.insert(0, Way())
                    self.counts["L2_INVALIDATIONS"] += 1
        there = self._find_or_allocate(home, line)
        if not there.dirty:
            self._keep_limit(self._set(home, line), there)
        fetched = (sectors if reduce else sectors - full) - there.valid
        self.counts["L2_FETCH_SECTORS"] += len(fetched)
        self.counts["DRAM_READ_SECTORS"] += len(fetched)
        there.valid |= sectors
        there.dirty |= sectors

    def dirty(self) -> int:
        return sum(len(way.dirty) for ways in self.sets.values() for way in ways)

    def lines(self) -> int:
        return sum(way.line is not None for ways in self.sets.values() for way in ways)

    def _partition(self, home: int) -> int:
        return home * self.partitions // self.slices

    def _set(self, slice_index: int, line: int) -> list[Way]:
        key = slice_index, self.index(line, slice_index)
        return self.sets.setdefault(key, [Way() for _ in range(self.ways)])

    def _find_or_allocate(self, slice_index: int, line: int) -> Way:
        ways = self._set(slice_index, line)
        chosen = next((way for way in ways if way.line == line), None)
        if chosen is None:
            chosen = ways[0]
            if chosen.line is not None:
                self.counts["L2_EVICTIONS"] += 1
                clean = next((way for way in ways if not way.dirty), None) if self.spare else None
                if chosen.dirty:
                    if clean is None or self.cleans(line):
                        self.counts["L2_WRITE_BACK_SECTORS"] += len(chosen.dirty)
                        chosen.dirty = set()
                    chosen = clean or chosen
            chosen.line, chosen.valid, chosen.dirty = line, set(), set()
            self._keep_limit(ways, chosen)
        ways.remove(chosen)
        ways.append(chosen)
        return chosen

    def _keep_limit(self, ways: list[Way], new: Way) -> None:
        dirty = [way for way in ways if way.dirty and way is not new]
        if len(dirty) >= self.limit:
            self.counts["L2_WRITE_BACK_SECTORS"] += len(dirty[0].dirty)
            dirty[0].dirty = set()
