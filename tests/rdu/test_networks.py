"""Scalar and control traffic, and outputs that several stages read: hand calculations on single links."""

from __future__ import annotations

import numpy as np
import pytest

from arch.load import load_arch
from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.engine import build
from sim.rdu.layout import Log, Network, Reason, Stages
from sim.rdu.lower import lower_section
from sim.rdu.program import Counter, Out, Section
from tests.rdu.conftest import SILENT, SMALL, cycles, pipeline, run


def _pair(shape: tuple[int, ...] = (1, 1), tokens: int = 1, depth: int = 2) -> Section:
    """Two stages that fire at the same ticks and send a token to one PCU, by the same links."""
    section, i = Section("pair"), Counter("i", tokens)
    made = [section.timed(name, (i,), {}, Out(shape, "fp32", (i,)), interval_cycles=100) for name in ("a", "b")]
    inputs = {name: output.read(depth) for name, output in zip(("a", "b"), made, strict=True)}
    section.stage("add", (i,), inputs, lambda a, b: a + b, Out(shape, "fp32", (i,)), row_par=1)
    return section


def _machine(**figures: str | int) -> RduSpec:
    spec: RduSpec = load_arch("sn40l", SMALL | SILENT | {k.replace("_", ".", 1): v for k, v in figures.items()})
    return spec


def _blocked_then_ready(section: Section, spec: RduSpec, stage: int, cycle: int) -> None:
    """The stage's first firing begins at the cycle, not a tick before."""
    waiting = build(section, spec, {})
    waiting.advance(cycle * TICKS_PER_CYCLE - 1)
    assert waiting.state.stage[stage, Stages.FIRED] == 0
    waiting.advance(cycle * TICKS_PER_CYCLE)
    assert waiting.state.stage[stage, Stages.FIRED] == 1


def test_two_scalars_over_one_link_follow_one_another() -> None:
    """A word takes 400 cycles at 0.01 B/clk: the first is through at 400, the second at 800."""
    narrow = _machine(mesh_scalar="0.01 B/clk")
    _blocked_then_ready(_pair(), narrow, 2, 800)
    result = run(_pair(), narrow)
    assert result.link_wait_ticks[Network.SCALAR] > 0
    assert result.link_wait_ticks[Network.VECTOR] == 0
    assert result.reasons[1, Reason.NETWORK] == 700 * TICKS_PER_CYCLE
    # The vector network is another: it does not notice, and a tile of many words goes over it.
    _blocked_then_ready(_pair(), _machine(mesh_vector="0.01 B/clk"), 2, 100)
    _blocked_then_ready(_pair((2, 4)), narrow, 2, 100)


@pytest.mark.parametrize(("credits", "cycles_a_word"), [(1, 40), (10, 4), (40, 1)])
def test_credits_by_the_hop_bound_the_rate_of_a_scalar_link(credits: int, cycles_a_word: int) -> None:
    """So many words in flight over a round trip of 40 cycles; the second of two is through after two of their times."""
    section = _pair()
    for stage in section.stages[:2]:
        stage.interval_cycles = 1
    spec = _machine(mesh_hop="20 cycles", mesh_credits=credits)
    way = lower_section(section, spec, {}).channels[0].ways
    _blocked_then_ready(section, spec, 2, 2 * cycles_a_word + 20 * way.hops)


def test_tokens_that_share_a_control_wire_take_turns() -> None:
    _blocked_then_ready(_pair(), _machine(), 2, 100)
    shared = _machine(mesh_control_wires=1)
    _blocked_then_ready(_pair(), shared, 2, 101)
    result = run(_pair(), shared)
    assert result.link_wait_ticks[Network.CONTROL] > 0
    assert result.reasons[2, Reason.NETWORK] == TICKS_PER_CYCLE


def test_done_and_credit_tokens_take_a_hop_a_cycle(silent: RduSpec) -> None:
    """With one slot a token's round trip is the stages' own times, the way to the reader, and the way back."""
    section, _ = pipeline([100, 100], 10, depth=1)
    spec = _machine(mesh_control="3 cycles")
    (way,) = (units.ways for units in lower_section(section, spec, {}).channels)
    assert way.hops > 0
    assert cycles(run(section, silent)) == 10 * 200
    assert cycles(run(section, spec)) == 10 * (200 + 3 * way.hops) + 9 * 3 * way.hops
    result = run(section, spec)
    assert result.reasons[0, Reason.NETWORK] == 9 * 3 * way.hops * TICKS_PER_CYCLE
    assert result.reasons[1, Reason.NETWORK] == 10 * 3 * way.hops * TICKS_PER_CYCLE
    assert (result.log[:, Log.START] % TICKS_PER_CYCLE == 0).all()


def test_a_scalar_goes_to_every_pcu_that_needs_it(small: RduSpec) -> None:
    section, i = Section("broadcast"), Counter("i", 5)
    factor = section.timed("factor", (i,), {}, Out((1, 1), "fp32", (i,)), interval_cycles=10)
    tile = section.timed("tile", (i,), {}, Out((64, 64), "bf16", (i,)), interval_cycles=10)
    section.stage("scale", (i,), {"x": tile, "s": factor}, lambda x, s: x * s, Out((64, 64), "bf16", (i,)), row_par=8)
    configuration = lower_section(section, small, {})
    scalar = next(c for c in configuration.channels if c.read.output.stage.name == "factor")
    assert len(scalar.pmus) == 0  # it waits in the FIFOs of the PCUs
    reached = {(int(row), int(column)) for row, column in configuration.pcus[2]}
    rows, columns = np.nonzero(scalar.ways.write.sum(axis=0))
    touched = {(int(r), int(c)) for r, c in zip(rows, columns, strict=True)}
    near = {(r + dr, c + dc) for r, c in touched for dr, dc in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))}
    assert reached <= near
    assert set(scalar.ways.write[scalar.ways.write > 0]) == {4.0}  # a word once over every link of the tree
    total = run(section, small).configuration.link_load[Network.SCALAR].sum()
    assert total == 5 * 4 * np.count_nonzero(scalar.ways.write)


@pytest.mark.parametrize("readers", [2, 3])
def test_an_output_with_several_readers_is_sent_once(small: RduSpec, readers: int) -> None:
    def build(count: int) -> Section:
        section, i = Section("fan"), Counter("i", 8)
        out = Out((64, 256), "bf16", (i,))
        x = section.timed("make", (i,), {}, out, interval_cycles=64)
        for n in range(count):
            section.stage(f"use{n}", (i,), {"x": x.read(pmus=2)}, lambda x: x + 1.0, out, row_par=4)
        return section

    configuration = lower_section(build(readers), small, {})
    first, *others = (units.ways.write for units in configuration.channels)
    assert first.sum() > 0
    assert all(load.sum() == 0 for load in others)
    alone = lower_section(build(1), small, {}).channels[0].ways.write
    assert alone.sum() < first.sum()
    # No link carries a part twice: at most the piece's bytes, however many buffers lie behind it.
    assert first.max() <= 64 * 256 * 2
