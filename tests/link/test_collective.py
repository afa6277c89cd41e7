"""Collectives: the sums are right, and the times are those of the textbook where it applies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.link.collective import ALGORITHMS, KINDS, Fabric, Kind, collective, fabric_of, fastest

GB = 10**9


@given(st.integers(1, 3), st.integers(2, 5), st.integers(1, 40), st.sampled_from(KINDS), st.data())
def test_every_collective_gives_every_device_what_it_should(
    nodes: int, each: int, n: int, kind: Kind, data: st.DataObject
) -> None:
    p = nodes * each
    fabric = Fabric(p, GB, 1000, each, GB // 3, 7000)
    rng = np.random.default_rng(p * 100 + n)
    values = [rng.integers(-9, 9, n).astype(float) for _ in range(p)]
    found = collective(fabric, kind, data.draw(st.sampled_from(fabric.algorithms)), 8 * n, values).values
    total = np.sum(values, axis=0)
    if kind == "all_gather":
        expected = [np.concatenate(values)] * p
    elif kind == "reduce_scatter":
        expected = list(np.array_split(total, p))
    else:
        expected = [total] * p
    for got, right in zip(found, expected, strict=True):
        assert np.array_equal(got, right)


@given(st.integers(2, 4), st.integers(2, 8), st.integers(1, 1000))
def test_a_hierarchy_takes_its_three_steps(nodes: int, each: int, kib: int) -> None:
    size = kib * 1024 * nodes * each
    fabric = Fabric(nodes * each, GB, 1_000_000, each, GB // 2, 5_000_000)
    share_ps = size // each * 1000
    inside, across = (each - 1) * share_ps + 1_000_000, (nodes - 1) * 2 * share_ps + 5_000_000
    assert collective(fabric, "all_reduce", "hierarchical", size).time_ps == 2 * inside + across
    own_ps = share_ps // nodes
    scattered = collective(fabric, "reduce_scatter", "hierarchical", size).time_ps
    assert scattered == inside + (nodes - 1) * 2 * own_ps + 5_000_000
    assert fabric.algorithms == ALGORITHMS
    assert (
        fastest(Fabric(16, 200 * GB, 400_000, 8, 100 * GB, 1_000_000), "all_reduce", 16384).algorithm == "hierarchical"
    )


@given(st.integers(2, 16), st.integers(1, 1000))
def test_ring_takes_its_steps(p: int, kib: int) -> None:
    size = kib * 1024 * p
    fabric = Fabric(p, GB, 5_000_000)
    step = size // p * 1000 + 5_000_000
    assert collective(fabric, "all_reduce", "ring", size).time_ps == 2 * (p - 1) * step
    assert collective(fabric, "all_gather", "ring", size).time_ps == (p - 1) * step
    one_shot = collective(fabric, "all_reduce", "one_shot", size)
    assert one_shot.time_ps == (p - 1) * size * 1000 + 5_000_000
    assert one_shot.sent_bytes == p * (p - 1) * size


def test_small_buffers_go_in_one_shot_and_large_ones_in_a_ring() -> None:
    fabric = Fabric(8, 450 * GB, 1_000_000)
    assert fastest(fabric, "all_reduce", 8192).algorithm == "one_shot"
    assert fastest(fabric, "all_reduce", 1 << 28).algorithm == "ring"


def test_nodes_are_joined_by_a_slower_network() -> None:
    inside = Fabric(16, 450 * GB, 1_000_000)
    nodes = Fabric(16, 450 * GB, 1_000_000, 8, 50 * GB, 5_000_000)
    size = 1 << 24
    fast, slow = (collective(f, "all_reduce", "ring", size) for f in (inside, nodes))
    # The two edges that cross are slower; the others' lead hides part of their latency, not their bytes.
    busy, latency = (size // 16) * 10**12 // (50 * GB), 5_000_000
    assert 30 * busy < slow.time_ps <= 30 * (busy + latency)
    assert fast.time_ps < slow.time_ps / 4


def test_machines_say_what_they_are_joined_by() -> None:
    assert fabric_of(load_arch("h100-sxm"), 8).bandwidth_bytes_per_s == 450 * GB
    assert fabric_of(load_arch("sn40l"), 16).per_node == 8
    with pytest.raises(InputError, match="has no links to other devices"):
        fabric_of(load_arch("t4"), 2)
    with pytest.raises(InputError, match="nodes of sn40l have 8; nearest: 8 or 16"):
        fabric_of(load_arch("sn40l"), 12)
