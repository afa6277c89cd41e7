"""Random programs: what is conserved, and that their numbers are NumPy's, whatever is joined to what."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.load import load_arch
from sim.rdu.engine import SectionResult, run_section
from sim.rdu.interpret import interpret
from sim.rdu.layout import Log, Network, Reason
from sim.rdu.lower import firings_of
from sim.rdu.program import Call, Counter, Out, Output, Program, Section, Tensor
from tests.rdu.conftest import SMALL

ROWS, WIDTH = 32, 8
MACHINES = [
    load_arch("sn40l", SMALL | {"mesh.control_wires": wires, "mesh.scalar": scalar})
    for wires, scalar in ((16, "4 B/clk"), (1, "0.05 B/clk"))
]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    """A program over tiles of 32 x 8, its numbers, and its result: sums, scalars of a tile, and looked-up rows."""
    tokens, steps = draw(st.integers(1, 6)), draw(st.lists(st.sampled_from(["add", "scalar", "lookup"]), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    section, i = Section("random"), Counter("i", tokens)
    tile = Out((ROWS, WIDTH), "fp32", (i,))
    numbers = {"x": rng.integers(-4, 5, (tokens * ROWS, WIDTH)).astype(float)}
    x = Tensor("x", (tokens * ROWS, WIDTH), "fp32")
    made: list[Output] = [section.load("load_x", x, (i * ROWS, 0), (ROWS, WIDTH), (i,))]
    values = [numbers["x"].reshape(tokens, ROWS, WIDTH)]
    for n, step in enumerate(steps):
        pick = draw(st.integers(0, len(made) - 1))
        source, value = made[pick].read(draw(st.integers(len(steps) + 2, 8))), values[pick]
        if step == "add":
            other = draw(st.integers(0, len(made) - 1))
            inputs = {"x": source, "y": made[other].read(len(steps) + 2)}
            made.append(section.stage(f"add{n}", (i,), inputs, lambda x, y: x + y, tile))
            values.append(value + values[other])
        elif step == "scalar":
            largest = section.stage(
                f"top{n}",
                (i,),
                {"x": source},
                lambda x: x.reshape(1, ROWS * WIDTH).row_max(),
                Out((1, 1), "fp32", (i,)),
            )
            inputs = {"x": made[pick].read(len(steps) + 3), "s": largest.read(draw(st.integers(1, 3)))}
            made.append(section.stage(f"minus{n}", (i,), inputs, lambda x, s: x - s, tile))
            values.append(value - value.max(axis=(1, 2), keepdims=True))
        else:
            rows = rng.integers(0, ROWS, (tokens, ROWS))
            numbers[f"rows{n}"] = rows.reshape(-1, 1)
            index = section.load(
                f"load_rows{n}", Tensor(f"rows{n}", (tokens * ROWS, 1), "int32"), (i * ROWS, 0), (ROWS, 1), (i,)
            )
            made.append(section.lookup(f"look{n}", source, index, rows, (i,)))
            values.append(np.take_along_axis(value, rows[:, :, None], axis=1))
    y = Tensor("y", (tokens * ROWS, WIDTH), "fp32", "output")
    section.store("store_y", y, (i * ROWS, 0), made[-1], (i,))
    return Program("random", (Call(section),), "drawn"), numbers, values[-1].reshape(-1, WIDTH)


def _conserves(result: SectionResult, program: Program) -> None:
    section = program.calls[0].section
    assert (result.reasons.sum(axis=1) == result.ticks).all()
    assert (result.reasons >= 0).all()
    sizes = {role: sum(t.size_bytes for t in program.tensors if t.role == role) for role in ("input", "output")}
    assert result.read_bytes["hbm"] == sizes["input"]
    assert result.write_bytes["hbm"] == sizes["output"]
    assert (np.bincount(result.log[:, Log.STAGE]) == [stage.firings for stage in section.stages]).all()
    assert (result.log[:, Log.COMMIT] >= result.log[:, Log.END]).all()
    # Tokens: as many as were made were announced, and as many credits came back.
    load = result.configuration.link_load
    found = np.zeros(len(Network))
    for units in result.configuration.channels:
        taken, emitted, tokens = firings_of(units.read)
        assert taken == emitted == tokens
        found[units.ways.write_network] += units.ways.write.sum() * emitted
        found[units.ways.read_network] += units.ways.read.sum() * taken
        found[Network.CONTROL] += (units.ways.done.sum() + units.ways.credit.sum()) * tokens
    assert np.allclose(load.sum(axis=(1, 2, 3)), found)
    busy = result.reasons[:, Reason.BUSY]
    assert (busy > 0).all()


@settings(max_examples=30, deadline=None)
@given(programs(), st.sampled_from(MACHINES))
def test_random_programs_compute_and_conserve(drawn, machine) -> None:  # type: ignore[no-untyped-def]
    program, numbers, expected = drawn
    section = program.calls[0].section
    result = run_section(section, machine, program.addresses())
    _conserves(result, program)
    replay = interpret(program, {id(section): result.log}, {name: value[None] for name, value in numbers.items()})
    assert replay.violations == []
    assert (replay.outputs["y"][0] == expected).all()
    again = run_section(section, machine, program.addresses())
    assert again.ticks == result.ticks
    assert np.array_equal(again.log, result.log)
