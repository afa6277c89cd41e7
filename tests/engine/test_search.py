"""Vector searches find what a loop finds."""

from __future__ import annotations

import numpy as np

from sim.engine.jit import kernel
from sim.engine.search import TAGS, TICKS, equal_tags, find_due, find_tag


@kernel
def _tag(tags, first, tag):  # type: ignore[no-untyped-def]
    return find_tag(tags, first, tag)


@kernel
def _due(ticks, first, tick):  # type: ignore[no-untyped-def]
    return find_due(ticks, first, tick)


@kernel
def _equal(tags, first, tag):  # type: ignore[no-untyped-def]
    return equal_tags(tags, first, tag)


def test_a_tag_is_found_in_its_own_set_alone() -> None:
    tags = np.arange(3 * TAGS, dtype=np.int32) * 7
    for place in range(TAGS):
        assert _tag(tags, TAGS, 7 * (TAGS + place)) == place
    assert _tag(tags, TAGS, 7 * (TAGS - 1)) == -1
    assert _tag(tags, TAGS, 7 * 2 * TAGS) == -1


def test_the_first_tick_that_is_due_is_found() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        ticks = random.integers(-(1 << 62), 1 << 62, 3 * TICKS)
        tick = int(random.choice([ticks.min(), np.median(ticks), ticks[TICKS : 2 * TICKS].min()]))
        due = np.flatnonzero(ticks[TICKS : 2 * TICKS] <= tick)
        assert _due(ticks, TICKS, tick) == (due[0] if due.size else -1)


def test_all_places_of_a_tag_are_found() -> None:
    random = np.random.default_rng(2)
    for _ in range(50):
        tags = random.integers(0, 5, 3 * TAGS).astype(np.int32)
        wanted = sum(1 << int(place) for place in np.flatnonzero(tags[TAGS : 2 * TAGS] == 3))
        assert _equal(tags, TAGS, 3) == wanted
