"""Decoupled access and execute: addresses that are known run ahead, addresses that are data cannot."""

from __future__ import annotations

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.families.rdu.runner import run_program
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.interpret import interpret
from sim.rdu.layout import Log
from sim.rdu.program import Counter, Out, Section, Tensor
from workloads.rdu.access import chase, linked_rows, stream
from workloads.rdu.monarch import FLOPS, FORMS, monarch

COUNT = 512


def cycles(program, **overrides: str) -> int:  # type: ignore[no-untyped-def]
    done = run_program(program, load_arch("sn40l", overrides))
    return next(iter(done.results.values())).ticks // 256


def test_a_list_pays_memory_latency_for_every_row_and_a_stream_once() -> None:
    streamed, chased = cycles(stream(COUNT)), cycles(chase(COUNT))
    latency_cycles = 300e-9 * 1.6e9
    assert chased > COUNT * latency_cycles
    assert chased > 20 * streamed
    slow = {"hbm.latency": "500 ns"}
    assert cycles(chase(COUNT), **slow) - chased == pytest.approx(COUNT * 200e-9 * 1.6e9, rel=0.05)
    assert cycles(stream(COUNT), **slow) - streamed < 10 * latency_cycles


def test_a_list_in_memory_units_pays_their_latency_and_the_mesh() -> None:
    """Each step: the table's latency and the row's buffer, a PCU's depth, a cycle in each stage, and the hops."""
    spec = load_arch("sn40l")
    (result,) = run_program(chase(COUNT, on_chip=True), spec).results.values()
    channels = result.configuration.channels
    hops = sum(c.ways.hops for c in channels if c.read.name in ("fetch -> next", "next -> fetch"))
    depth = spec.pcu.stages + spec.pcu.latency_cycles
    starts = result.log[result.log[:, Log.STAGE] == 1][:, Log.START] / TICKS_PER_CYCLE
    assert len(starts) == COUNT
    assert (np.diff(starts) == 2 * spec.pmu.latency_cycles + depth + 2 + hops).all()
    assert np.diff(starts).max() < cycles(chase(COUNT)) / COUNT / 5


def test_both_read_what_is_there() -> None:
    for program in (stream(COUNT), chase(COUNT), chase(COUNT, on_chip=True)):
        done = run_program(program, load_arch("sn40l"))
        table = linked_rows(COUNT).astype(float)
        inputs = {"rows": table[None], "head": np.zeros((1, 1, 1))}
        replay = interpret(program, {key: result.log for key, result in done.results.items()}, inputs)
        assert replay.violations == []
        words = replay.outputs["words"][0, :, 0]
        assert sorted(words) == sorted(table[:, 1])


def test_a_link_that_leads_outside_the_list_is_named() -> None:
    program = chase(64)
    done = run_program(program, load_arch("sn40l"))
    table = linked_rows(64).astype(float)
    table[0, 0] = 64
    inputs = {"rows": table[None], "head": np.zeros((1, 1, 1))}
    replay = interpret(program, {key: result.log for key, result in done.results.items()}, inputs)
    assert "fetch: firing 1 asks for row 64 of a table of 64 rows" in replay.violations
    section, i = Section("wrong"), Counter("i", 3)
    index = section.timed("index", (i,), {}, Out((1, 1), "int32", (i,)), interval_cycles=1)
    with pytest.raises(InputError, match="fetch: firing 2 asks for row 9 of a table of 8 rows"):
        section.gather("fetch", Tensor("rows", (8, 4), "fp32"), index, np.array([0, 1, 9]), (i,))


def test_fusion_raises_the_intensity_of_a_monarch_fragment() -> None:
    """Published: 39.5, 102.6, 410.4 operations a byte."""
    found = {}
    for form in FORMS:
        records = run_program(monarch(form), load_arch("sn40l")).records
        found[form] = FLOPS / sum(k.counters[f"hbm_{side}_bytes"] for k in records for side in ("read", "write"))
    assert found["none"] == pytest.approx(39.5, rel=0.03)
    assert found["partial"] == pytest.approx(102.6, rel=0.06)
    assert found["full"] == pytest.approx(410.4, rel=0.01)
