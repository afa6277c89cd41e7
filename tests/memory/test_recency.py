"""The packed order of use against a plain list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.jit import kernel
from sim.memory.recency import MAX_WAYS, dropped, first_order, oldest_way, used

steps = st.lists(st.tuples(st.booleans(), st.integers(0, MAX_WAYS - 1)), max_size=60)


@kernel
def step(order, ways, way, drop):  # type: ignore[no-untyped-def]
    return dropped(order, ways, way) if drop else used(order, ways, way)


@kernel
def oldest(order, ways):  # type: ignore[no-untyped-def]
    return oldest_way(order, ways)


@given(ways=st.integers(1, MAX_WAYS), steps=steps)
def test_order_is_that_of_a_list(ways: int, steps: list[tuple[bool, int]]) -> None:
    order, expected = first_order(ways), list(range(ways))
    for drop, number in steps:
        way = number % ways
        order = step(order, ways, way, drop)
        expected.remove(way)
        expected.insert(0 if drop else ways, way)
        assert oldest(order, ways) == expected[0]
        assert 0 <= order < 1 << 60


@pytest.mark.parametrize("ways", [1, 2, 15, 16])
def test_unused_ways_are_taken_in_turn(ways: int) -> None:
    order, taken = first_order(ways), []
    for _ in range(ways):
        way = oldest(order, ways)
        taken.append(way)
        order = step(order, ways, way, False)
    assert taken == list(range(ways))
