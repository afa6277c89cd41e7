"""Published streams of B200: what the engine says of a few of the held half."""

from __future__ import annotations

import pytest

from arch.load import load_arch
from scripts.lab import streams
from workloads.accuracy.splits import half

BY_TEXT = {(row.kind, row.text): row for row in streams.rows()}
RATES = (
    ("tma", "box=128x4 stages=1"),
    ("tma", "box=128x8 stages=1"),
    ("cp_async", "ctas_per_sm=1 threads=64 bytes=8 stages=1"),
    ("cp_async", "ctas_per_sm=4 threads=128 bytes=16 stages=1"),
)


@pytest.mark.parametrize(("kind", "text"), RATES)
def test_streams_reach_the_rates_of_the_held_half(kind: str, text: str) -> None:
    row = BY_TEXT[kind, text]
    assert half(row.text) == "held"
    found = streams.simulated(load_arch("b200"), row)
    assert found["rate"] == pytest.approx(row.measured["rate"], rel=0.08)


def test_reads_of_the_far_die_look_up_both_halves_and_leave_a_copy() -> None:
    """Nobody shares: half of the lines are far. Four SMs share: the home and its copy each serve two."""
    spec = load_arch("b200")
    apart = streams.simulated(spec, BY_TEXT["apart", "cluster=2 sharing=2 box=64x64"])
    assert apart["sectors"] == pytest.approx(1.5, rel=0.01)
    across = streams.simulated(spec, BY_TEXT["across", "cluster=1 sharing=4 box=64x64"])
    assert across["dram"] == pytest.approx(0.25, rel=0.01)
    alone = streams.simulated(
        load_arch("b200", ["l2.local_copies=false"]), BY_TEXT["across", "cluster=1 sharing=4 box=64x64"]
    )
    assert alone["sectors"] > across["sectors"]
