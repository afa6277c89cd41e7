"""Rows of a tile in PMUs read at computed addresses: numbers, banks, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from arch.rdu import RduSpec
from sim.app.families.rdu.runner import run_program
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.banks import lookup_cycles
from sim.rdu.engine import run_section
from sim.rdu.interpret import interpret
from sim.rdu.layout import Reason
from sim.rdu.listing import listing
from sim.rdu.program import Call, Counter, Out, Section, Tensor
from tests.rdu.conftest import SMALL, cycles, run
from workloads.rdu.sparse import sparse_matvec

LENGTH, ROWS, NONZEROS = 300, 192, 8


def _columns(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, LENGTH, (ROWS, NONZEROS))


def _numbers(columns: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.integers(-9, 9, (1, LENGTH, 1)).astype(float)
    return {"x": x, "columns": columns.reshape(1, -1, 1), "values": rng.integers(-9, 9, (1, ROWS, NONZEROS))}


def test_a_sparse_product_is_what_numpy_says(small: RduSpec) -> None:
    columns = _columns()
    program = sparse_matvec(columns, LENGTH)
    section = program.calls[0].section
    result = run_section(section, small, program.addresses())
    numbers = _numbers(columns)
    replay = interpret(program, {id(section): result.log}, numbers)
    assert replay.violations == []
    assert (replay.outputs["y"][0, :, 0] == (numbers["x"][0, columns, 0] * numbers["values"][0]).sum(axis=1)).all()
    assert "512 rows a firing out of 4 PMUs" in listing(program, small)


@pytest.mark.parametrize(
    ("wrong", "said"), [(LENGTH, "asks for row 300 of a table of 300 rows"), (7, "row 7 was asked")]
)
def test_numbers_that_differ_from_those_timed_are_violations(small: RduSpec, wrong: int, said: str) -> None:
    columns = _columns()
    columns[70, 2] = 8
    program = sparse_matvec(columns, LENGTH)
    section = program.calls[0].section
    result = run_section(section, small, program.addresses())
    columns = columns.copy()
    columns[70, 2] = wrong
    replay = interpret(program, {id(section): result.log}, _numbers(columns))
    assert any(said in violation for violation in replay.violations), replay.violations
    assert np.isnan(replay.outputs["y"][0, 70, 0]) == (wrong == LENGTH)


def test_row_numbers_outside_the_table_are_refused_before_anything_runs() -> None:
    columns = _columns()
    columns[130, 1] = -1
    with pytest.raises(InputError, match="look_up: firing 2 asks for row -1 of a table of 300 rows"):
        sparse_matvec(columns, LENGTH)
    with pytest.raises(InputError, match="not whole tiles of 64; nearest below: 50"):
        sparse_matvec(_columns()[:100], LENGTH)
    section, i = Section("wrong"), Counter("i", 2)
    table = section.timed("table", (), {}, Out((16, 4), "fp32", ()), interval_cycles=1)
    index = section.timed("index", (i,), {}, Out((8,), "int32", (i,)), interval_cycles=1)
    with pytest.raises(InputError, match=r"look: row numbers of shape \(2, 4\); 2 firings of 8 numbers need \(2, 8\)"):
        section.lookup("look", table, index, np.zeros((2, 4)), (i,))
    with pytest.raises(InputError, match="look2: a table to look up is a whole tile"):
        section.lookup("look2", table.read(stream=True), index, np.zeros((2, 8)), (i,))


def test_banks_serve_what_meets_in_them_one_after_the_other(small: RduSpec) -> None:
    """16 banks of a word, 4 addresses a cycle."""
    side_by_side, one_bank = np.arange(64)[None], 16 * np.arange(64)[None]
    assert lookup_cycles(side_by_side, 4, 1, small)[0] == 64 / 4
    assert lookup_cycles(one_bank, 4, 1, small)[0] == 64
    assert lookup_cycles(one_bank, 4, 16, small)[0] == 64 / 4  # all in one PMU of the sixteen, side by side
    assert lookup_cycles(side_by_side, 4, 16, small)[0] == 1
    assert lookup_cycles(side_by_side, 64, 1, small)[0] == 64  # a row is as wide as all banks
    assert lookup_cycles(side_by_side, 256, 2, small)[0] == 64 * 4 / 2
    assert lookup_cycles(np.array([[0, 1, 2, 16]]), 4, 1, small)[0] == 2


@given(st.data())
def test_cycles_are_those_of_a_model_that_counts_words(data: st.DataObject) -> None:
    spec = load_arch("sn40l", SMALL)
    pmus, width = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([2, 4, 6, 8, 32, 64, 100, 256]))
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 30)))
    numbers = st.lists(st.integers(0, 200), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    rows = np.array(data.draw(numbers)).reshape(shape)
    found, even = lookup_cycles(rows, width, pmus, spec)
    for firing, cycle in zip(rows, found, strict=True):
        slowest = 0
        for unit in range(pmus):
            mine = [int(row) // pmus * width for row in firing if row % pmus == unit]
            total = 0
            for at in range(0, len(mine), spec.pmu.addresses):
                load = [0] * spec.pmu.banks
                for begin in mine[at : at + spec.pmu.addresses]:
                    for word in range(begin // 4, (begin + width - 1) // 4 + 1):
                        load[word % spec.pmu.banks] += 1
                total += max(load)
            slowest = max(slowest, total)
        assert cycle == slowest >= even


def _lookups(rows: np.ndarray, pmus: int = 1) -> Section:
    section, i = Section("lookups"), Counter("i", len(rows))
    table = section.timed("table", (), {}, Out((2048, 1), "fp32", ()), interval_cycles=10)
    index = section.timed("index", (i,), {}, Out((rows.shape[1],), "int32", (i,)), interval_cycles=1)
    found = section.lookup("look", table.read(1, pmus=pmus), index.read(stream=True), rows, (i,))
    section.timed("use", (i,), {"x": found.read(stream=True)}, Out((1, 1), "fp32", (i,)), interval_cycles=1)
    return section


def test_conflicts_take_their_cycles_and_are_called_memory(silent: RduSpec) -> None:
    free, same = np.tile(np.arange(64), (20, 1)), np.tile(16 * np.arange(64), (20, 1))
    fast, slow = run(_lookups(free), silent), run(_lookups(same), silent)
    fill = 2048 * 4 // 64  # the table's way into its PMU
    assert cycles(fast) == fill + 20 * 16 + 1
    assert cycles(slow) == fill + 20 * 64 + 1
    assert slow.reasons[2, Reason.BUSY] == 20 * 16 * TICKS_PER_CYCLE
    assert slow.reasons[2, Reason.MEMORY] == 20 * (64 - 16) * TICKS_PER_CYCLE
    assert fast.reasons[2, Reason.MEMORY] == 0
    assert cycles(run(_lookups(free, pmus=4), silent)) == fill // 4 + 20 * 4 + 1


def test_a_cut_in_front_of_a_lookup_brings_its_table_back(small: RduSpec) -> None:
    """The table is made by a stage of an earlier section and comes through memory."""
    columns = _columns()
    program = sparse_matvec(columns, LENGTH)
    section = program.calls[0].section
    i = section.stages[-1].over[0]
    y = Tensor("z", (ROWS, 1), "fp32", "output")
    squares = section.stage("square", (i,), {"y": section.stages[-2].outputs["out"]}, lambda y: y * y, _tile(i))
    section.store("store_z", y, (i * 64, 0), squares, (i,))
    look = next(n for n, stage in enumerate(section.stages) if stage.kind == "lookup")
    done = run_program(dataclasses.replace(program, calls=(Call(section, cut=(look + 1,)),)), small)
    assert len(done.records) == 2
    numbers = _numbers(columns)
    replay = interpret(done.program, {key: result.log for key, result in done.results.items()}, numbers)
    assert replay.violations == []
    expected = (numbers["x"][0, columns, 0] * numbers["values"][0]).sum(axis=1)
    assert (replay.outputs["z"][0, :, 0] == expected**2).all()


def _tile(i: Counter) -> Out:
    return Out((64, 1), "fp32", (i,))
