"""Replacement policies: each against a plain-Python twin, and what it does to access patterns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.gpu import Replacement
from arch.load import load_arch
from sim.engine.jit import kernel
from sim.memory.addresses import home_slice, index_of
from sim.memory.counters import MemoryCounter
from sim.memory.l2 import l2_read
from sim.memory.model import lower_memory, new_memory_state
from sim.memory.replacement import MAX_WAYS, POLICIES, drop, fill, first_word, touch, victim
from sim.memory.sets import VALID
from tests.memory.machines import CLOCK_HZ, tiny

steps = st.lists(st.tuples(st.sampled_from(["miss", "hit", "drop"]), st.integers(0, MAX_WAYS - 1)), max_size=80)


@kernel
def victim_of(policy, word, ways):  # type: ignore[no-untyped-def]
    return victim(policy, word, ways)


@kernel
def filled(policy, word, ways, way):  # type: ignore[no-untyped-def]
    return fill(policy, word, ways, way)


@kernel
def touched(policy, word, ways, way):  # type: ignore[no-untyped-def]
    return touch(policy, word, ways, way)


@kernel
def dropped(policy, word, ways, way):  # type: ignore[no-untyped-def]
    return drop(policy, word, ways, way)


class Lru:
    """Ways in a list, the least recently used one first; an empty one counts as used least recently."""

    def __init__(self, ways: int) -> None:
        self.order = list(range(ways))

    @property
    def victim(self) -> int:
        return self.order[0]

    def touch(self, way: int) -> None:
        self.order.remove(way)
        self.order.append(way)

    fill = touch

    def drop(self, way: int) -> None:
        self.order.remove(way)
        self.order.insert(0, way)


class Srrip:
    """A prediction from 0 (soon) to 3 (not expected) for each way, None where it is empty: the paper's figure 4."""

    def __init__(self, ways: int) -> None:
        self.predictions: list[int | None] = [None] * ways

    @property
    def victim(self) -> int:
        if None in self.predictions:
            return self.predictions.index(None)
        aged = [p for p in self.predictions if p is not None]
        while 3 not in aged:
            aged = [p + 1 for p in aged]
        return aged.index(3)

    def fill(self, way: int) -> None:
        if self.predictions[way] is not None:
            while self.predictions[way] != 3:
                self.predictions = [p + 1 for p in self.predictions if p is not None]
        self.predictions[way] = 2

    def touch(self, way: int) -> None:
        self.predictions[way] = 0

    def drop(self, way: int) -> None:
        self.predictions[way] = None


TWINS: dict[str, Any] = {"lru": Lru, "srrip": Srrip}


def test_every_policy_is_a_word_of_the_machine_and_has_a_twin() -> None:
    assert get_args(Replacement) == POLICIES == tuple(TWINS)


@pytest.mark.parametrize("name", POLICIES)
@given(ways=st.integers(1, MAX_WAYS), steps=steps)
def test_a_policy_is_its_twin(name: str, ways: int, steps: list[tuple[str, int]]) -> None:
    policy, twin = POLICIES.index(name), TWINS[name](ways)
    word = first_word(policy, ways)
    present: set[int] = set()
    for kind, number in steps:
        way = number % ways
        if kind != "miss" and way not in present:
            continue  # a hit, or a line that goes, is one that is there
        if kind == "miss":
            way = victim_of(policy, word, ways)
            assert way == twin.victim
            word = filled(policy, word, ways, way)
            twin.fill(way)
            present.add(way)
        elif kind == "hit":
            word = touched(policy, word, ways, way)
            twin.touch(way)
        else:
            word = dropped(policy, word, ways, way)
            twin.drop(way)
            present.remove(way)
        assert 0 <= word < 1 << 63


@pytest.mark.parametrize("name", POLICIES)
@given(ways=st.integers(1, MAX_WAYS), steps=steps)
def test_no_line_makes_room_while_a_way_is_empty(name: str, ways: int, steps: list[tuple[str, int]]) -> None:
    policy = POLICIES.index(name)
    word = first_word(policy, ways)
    present: set[int] = set()
    for kind, number in steps:
        way = number % ways
        if kind == "miss":
            way = victim_of(policy, word, ways)
            assert 0 <= way < ways
            assert way not in present or len(present) == ways
            word = filled(policy, word, ways, way)
            present.add(way)
        elif kind == "hit" and way in present:
            word = touched(policy, word, ways, way)
        elif kind == "drop" and way in present:
            word = dropped(policy, word, ways, way)
            present.remove(way)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ways", [1, 2, 15, 16])
def test_unused_ways_are_taken_in_turn(name: str, ways: int) -> None:
    policy = POLICIES.index(name)
    word, taken = first_word(policy, ways), []
    for _ in range(ways):
        way = int(victim_of(policy, word, ways))
        taken.append(way)
        word = filled(policy, word, ways, way)
    assert taken == list(range(ways))


def misses(policy: str, rounds: Iterable[list[int]]) -> list[int]:
    """Lines of each round that an L2 of one set of 16 ways (a slice) does not have; lines are numbers in that set."""
    spec = lower_memory(tiny(partitions=1, local_copies=False, ways=16, sets=1, replacement=policy), CLOCK_HZ)
    state = new_memory_state(spec)
    by_set = [line for line in range(1 << 12) if home_slice(spec, line, index_of(spec, line)) == 0]
    found = []
    t = 0
    for lines in rounds:
        before = int(state.counters[MemoryCounter.L2_READ_MISS_SECTORS])
        for number in lines:
            t += 10**6
            l2_read(spec, state, t, 0, by_set[number], VALID)
        found.append((int(state.counters[MemoryCounter.L2_READ_MISS_SECTORS]) - before) // 4)
    return found


def scanned(working: int, scan: int, rounds: int) -> list[list[int]]:
    """Rounds that use a working set twice, then a scan of lines that are never used again."""
    first = working
    found = []
    for _ in range(rounds):
        found.append(list(range(working)) * 2)
        found.append(list(range(first, first + scan)))
        first += scan
    return found


def test_a_scan_throws_a_working_set_out_of_lru_and_not_out_of_srrip() -> None:
    rounds = scanned(working=8, scan=16, rounds=6)
    lru, srrip = misses("lru", rounds), misses("srrip", rounds)
    assert lru == [8, 16] * 6  # every round from anew
    assert srrip == [8, 16] + [0, 16] * 5


def test_both_miss_always_where_a_scan_is_all_there_is() -> None:
    rounds = [list(range(20))] * 5
    assert misses("lru", rounds) == [20] * 5
    assert misses("srrip", rounds)[0] == 20


def test_a_working_set_that_fits_stays_with_either() -> None:
    for policy in POLICIES:
        assert misses(policy, [list(range(16))] * 4) == [16, 0, 0, 0]


@pytest.mark.parametrize("figure", ["l1.replacement", "l2.replacement"])
def test_the_machine_names_its_policy(figure: str) -> None:
    group = figure.partition(".")[0]
    assert getattr(load_arch("h100-sxm"), group).replacement == "lru"
    assert "gpu-benches" in load_arch("h100-sxm").sources[figure]
    assert getattr(load_arch("h100-sxm", [f"{figure}=srrip"]), group).replacement == "srrip"
