"""Sections cut for a machine that is too small: the same numbers, the least traffic, and a reason where none helps."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.dtypes import round_to
from arch.errors import InputError
from arch.load import load_arch
from arch.rdu import RduSpec
from sim.app.families.rdu.runner import ProgramRun, run_program
from sim.app.run import simulate
from sim.rdu.cut import fit
from sim.rdu.interpret import Replay, interpret
from sim.rdu.program import Call, Carry, Counter, Out, Output, Program, Section, Tensor, Value
from tests.rdu.conftest import SMALL

ROWS, WIDTH, TILES, PARTS = 32, 48, 3, 4


def machine(pcus: int = 32, **overrides: str | int) -> RduSpec:
    spec: RduSpec = load_arch("sn40l", SMALL | {"pcu.count": pcus} | overrides)
    return spec


def replay(done: ProgramRun) -> Replay:
    inputs = {
        t.name: round_to(np.random.default_rng(len(t.name)).standard_normal((1, *t.shape)), t.dtype)
        for t in done.program.tensors
        if t.role == "input"
    }
    return interpret(done.program, {key: result.log for key, result in done.results.items()}, inputs)


def graph(ops: list[tuple[int, int, int]], whole: bool) -> Program:
    """Stages that each read two earlier ones; ops: (kind, first input, second input). whole: all tiles gather once."""
    section, i = Section("graph"), Counter("i", TILES)
    x = Tensor("x", (TILES * ROWS, WIDTH), "bf16")
    w = Tensor("w", (WIDTH, WIDTH), "bf16")
    values: list[Output] = [section.load("load_x", x, (i * ROWS, 0), (ROWS, WIDTH), (i,))]
    weight = section.load("load_w", w, (0, 0), (WIDTH, WIDTH), ())
    tile = Out((ROWS, WIDTH), "bf16", (i,))
    for n, (kind, a, b) in enumerate(ops):
        left, right = values[a % len(values)], values[b % len(values)]
        name = f"s{n}"
        match kind:
            case 0:
                made = section.stage(name, (i,), {"x": left, "w": weight.read(1)}, lambda x, w: x @ w * 0.125, tile)
            case 1:
                inputs = {"x": left.read(TILES + 1), "y": right.read(TILES + 1)}
                made = section.stage(name, (i,), inputs, lambda x, y: x.maximum(y) + y * 0.5, tile)
            case _:  # parts of a tile, summed in an inner loop
                j = Counter(f"j{n}", PARTS)

                def add(x: object, total: object) -> dict[str, object]:
                    sums = total + (x @ x.transpose())  # type: ignore[operator, attr-defined]
                    return {"out": sums, "total": sums}

                gram = section.stage(
                    f"{name}_gram", (i, j), {"x": left.read(TILES + 1, piece=(-1, j))}, add,
                    Out((ROWS, ROWS), "bf16", (i,)), carry={"total": Carry((ROWS, ROWS), 0.0, (i,))},
                )  # fmt: skip
                inputs = {"g": gram, "x": right.read(TILES + 1)}
                made = section.stage(name, (i,), inputs, lambda g, x: g @ x * 0.01, tile)
        values.append(made)
    out = Tensor("y", (TILES * ROWS, WIDTH), "bf16", "output")
    if whole:  # the last value of all tiles in one token, read part by part
        over, k = Out((ROWS, WIDTH), "bf16", (i,), (), 0), Counter("k", TILES)
        all_tiles = section.stage("gather", (i,), {"x": values[-1]}, lambda x: x * 2.0, over)
        last = section.stage(
            "spread", (k,), {"x": all_tiles.read(piece=(0, k))}, lambda x: x + 1.0, Out((ROWS, WIDTH), "bf16", (k,))
        )
        section.store("store_y", out, (k * ROWS, 0), last, (k,))
    else:
        section.store("store_y", out, (i * ROWS, 0), values[-1], (i,))
    return Program("graph", (Call(section),), "test")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=7), st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_a_cut_graph_computes_what_the_whole_one_does(ops: list[tuple[int, int, int]], whole: bool) -> None:
    plain = run_program(graph(ops, whole), machine(96))
    assert not plain.cuts
    parts = run_program(graph(ops, whole), machine(4))
    assert parts.cuts or len(ops) < 4
    outputs = [replay(done) for done in (plain, parts)]
    assert outputs[0].violations == outputs[1].violations == []
    assert np.array_equal(outputs[0].outputs["y"], outputs[1].outputs["y"])
    for found in parts.records:
        assert found.own.pcus <= 4


def chain_of(widths: list[int], depth: int = 2) -> Section:
    """x W1 W2 ... over tiles of rows: the product between two weights is as wide as the number says."""
    section, i = Section("chain"), Counter("i", 4)
    value = section.load("load_x", Tensor("x", (128, widths[0]), "bf16"), (i * 32, 0), (32, widths[0]), (i,))
    for n, (k, width) in enumerate(pairwise(widths)):
        w = section.load(f"load_w{n}", Tensor(f"w{n}", (k, width), "bf16"), (0, 0), (k, width), ())
        out = Out((32, width), "bf16", (i,))
        value = section.stage(f"s{n}", (i,), {"x": value.read(depth), "w": w.read(1)}, lambda x, w: x @ w, out)
    section.store("store_y", Tensor("y", (128, widths[-1]), "bf16", "output"), (i * 32, 0), value, (i,))
    return section


def test_the_cut_is_where_fewest_bytes_pass() -> None:
    program = Program("chain", (Call(chain_of([64, 256, 32, 256, 64])),), "test")
    fitted, (found,) = fit(program, machine(3))
    assert [[s.name for s in c.section.stages if s.kind == "compute"] for c in fitted.calls] == [
        ["s0", "s1"],
        ["s2", "s3"],
    ]
    assert found.spilled_bytes == 2 * 128 * 32 * 2
    done = run_program(program, machine(3))
    assert [k.name for k in done.records] == ["chain.1", "chain.2"]
    assert "reconfiguration" in done.records[1].launch_ps
    assert "needs at least 4 PCUs" in str(done.cuts[0])


def test_repeated_launches_of_a_cut_section_run_all_its_parts_in_turn() -> None:
    program = Program("chain", (Call(chain_of([64, 32, 64]), times=3),), "test")
    fitted, _ = fit(program, machine(1))
    assert [call.section.name for call in fitted.calls] == ["chain.1", "chain.2"] * 3


def test_sections_of_the_same_name_have_scratch_tensors_of_their_own() -> None:
    calls = tuple(Call(chain_of(widths)) for widths in ([64, 32, 64], [64, 96, 64]))
    fitted, _ = fit(Program("two", calls, "test"), machine(1))
    assert [call.section.name for call in fitted.calls] == ["chain.1", "chain.2", "chain#2.1", "chain#2.2"]
    scratch = {t.name: t.shape for t in fitted.tensors if t.role == "scratch"}
    assert scratch == {"chain.s0": (4, 32, 32), "chain#2.s0": (4, 32, 96)}


def test_what_no_cut_helps_says_why() -> None:
    wide = Program("chain", (Call(chain_of([64, 64], depth=1 << 16)),), "test")
    with pytest.raises(
        InputError, match=r"no cut helps, as s0 alone needs at least 5\d\d PMUs.*512 PMUs in load_x -> s0"
    ):
        fit(wide, machine())
    section, i = Section("layers"), Counter("layer", 3)
    first = Tensor("first", (32, 32), "bf16")
    out = Out((32, 32), "bf16", (i,))
    loop = section.loop(first, out)
    value = loop
    for n in range(4):
        value = section.stage(f"s{n}", (i,), {"x": value}, lambda x: x + 1.0, out)
    section.close(loop, value)
    with pytest.raises(InputError, match="cannot be cut, as the loop over layer through s3 -> s0 needs all"):
        fit(Program("layers", (Call(section),), "test"), machine(2))


def test_carried_tiles_take_room() -> None:
    """Sums of a megabyte and a half: what 192 cells of the one PCU do not hold lies in PMUs."""
    section, i = Section("sums"), Counter("i", 2)
    shape = (768, 512)
    x = section.load("load_x", Tensor("x", (64, 768), "bf16"), (i * 32, 0), (32, 768), (i,))
    y = section.load("load_y", Tensor("y", (64, 512), "bf16"), (i * 32, 0), (32, 512), (i,))

    def add(x: Value, y: Value, total: Value) -> dict[str, Value]:
        total = total + x @ y
        return {"out": total, "total": total}

    section.stage(
        "add", (i,), {"x": x.read(transposed=True), "y": y}, add, Out(shape, "bf16", ()),
        carry={"total": Carry(shape, 0.0, ())}, row_par=1,
    )  # fmt: skip
    program = Program("sums", (Call(section),), "test")
    assert not run_program(program, machine(**{"pmu.count": 7})).cuts  # 3 of sums, one an operand at least
    with pytest.raises(InputError, match="add alone needs at least 5 PMUs"):
        fit(program, machine(**{"pmu.count": 4}))


def test_a_section_is_cut_where_stages_would_take_turns_if_that_pays() -> None:
    """One token of all tiles between two halves makes the second wait: worth a launch where the work is long."""

    def halves(tiles: int) -> Section:
        section, i, j = Section("halves"), Counter("i", tiles), Counter("j", tiles)
        x, w = Tensor("x", (tiles * 64, 512), "bf16"), Tensor("w", (512, 512), "bf16")
        weights = [section.load(f"w{n}", w, (0, 0), (512, 512), ()) for n in range(2)]
        rows = section.load("x", x, (i * 64, 0), (64, 512), (i,))
        first = section.stage(
            "first", (i,), {"x": rows, "w": weights[0].read(1)}, lambda x, w: x @ w,
            Out((64, 512), "bf16", (i,), (), 0),
        )  # fmt: skip
        inputs = {"x": first.read(1, piece=(0, j)), "w": weights[1].read(1)}
        last = section.stage("last", (j,), inputs, lambda x, w: x @ w, Out((64, 512), "bf16", (j,)))
        section.store("y", Tensor("y", (tiles * 64, 512), "bf16", "output"), (j * 64, 0), last, (j,))
        return section

    def program(tiles: int, where: Literal["fit", "time"]) -> Program:
        return Program("halves", (Call(halves(tiles), cut=where),), "test")

    for tiles, parts in ((2, 1), (64, 2)):
        assert len(fit(program(tiles, "fit"), machine())[0].calls) == 1
        assert len(fit(program(tiles, "time"), machine())[0].calls) == parts
    whole, two = (run_program(program(64, where), machine()) for where in ("fit", "time"))
    assert two.time_ps < whole.time_ps


def test_a_section_is_cut_where_it_is_told_to() -> None:
    section = chain_of([64, 32, 32, 64])
    stages = [stage.name for stage in section.stages]
    calls = (Call(section, cut=(stages.index("s2"),)),)
    parts = [call.section for call in fit(Program("chain", calls, "test"), machine())[0].calls]
    assert [[s.name for s in part.stages if s.kind == "compute"] for part in parts] == [["s0", "s1"], ["s2"]]
    assert parts[1].stages[0].name == "load_s1_0"


def test_operators_too_are_cut_and_reports_say_so() -> None:
    report = simulate("softmax rows=64 cols=96", machine(4), check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    assert len(report.record.kernels) > 1
    assert any("it is cut into" in note for note in report.record.notes)
