"""Sections by vectors: cycles by hand, an independent twin, the same program with tokens of one vector, and traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from arch.rdu import RduSpec
from sim.app.run import program_listing, simulate
from sim.engine.clock import TICKS_PER_CYCLE
from sim.rdu.engine import run_section
from sim.rdu.interpret import interpret
from sim.rdu.layout import Reason
from sim.rdu.program import Call, Counter, Out, Output, Program, Section, Tensor
from tests.rdu.conftest import SILENT, SMALL, cycles, run

EACH = 32
"""Vectors of a token of 32 x 32 numbers."""


def chain(times: list[int], tokens: int, grain: str, depth: int = 2, latency: int = 0) -> Section:
    """Timed stages in a row; times in cycles of a token."""
    section, i = Section("chain", grain), Counter("i", tokens)  # type: ignore[arg-type]
    made: list[Output] = []
    for n, time in enumerate(times):
        inputs = {"x": made[-1].read(depth, pmus=1)} if made else {}
        out = Out((EACH, 32), "bf16", (i,))
        made.append(section.timed(f"s{n}", (i,), inputs, out, interval_cycles=time, latency_cycles=latency))
    return section


def small_tokens(times: list[int], tokens: int, depth: int, latency: int) -> Section:
    """The same with a token for each vector, in the engine's way of firing by tokens."""
    section, i, v = Section("chain"), Counter("i", tokens), Counter("v", EACH)
    made: list[Output] = []
    for n, time in enumerate(times):
        inputs = {"x": made[-1].read(depth, pmus=1)} if made else {}
        out = Out((1, 32), "bf16", (i, v))
        made.append(section.timed(f"s{n}", (i, v), inputs, out, interval_cycles=time // EACH, latency_cycles=latency))
    return section


@given(st.lists(st.integers(2, 20), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 40))
@settings(max_examples=25)
def test_a_chain_takes_one_vector_through_all_stages_and_the_rest_at_the_slowest(
    times: list[int], tokens: int, latency: int
) -> None:
    """Cycles a vector: their sum and the latencies once, then the longest for each vector that follows."""
    spec = load_arch("sn40l", SMALL | SILENT)
    found = run(chain([time * EACH for time in times], tokens, "vector", latency=latency), spec)
    assert cycles(found) == sum(times) + len(times) * latency + (tokens * EACH - 1) * max(times)
    assert (found.reasons.sum(axis=1) == found.ticks).all()
    assert (found.reasons[:, Reason.BUSY] == np.array(times) * EACH * tokens * TICKS_PER_CYCLE).all()


@pytest.mark.parametrize(("times", "tokens", "depth"), [([2, 2], 1, 1), ([2, 5, 3], 3, 2), ([4, 2, 3, 3], 2, 30)])
def test_it_is_what_a_program_with_tokens_of_one_vector_takes(times: list[int], tokens: int, depth: int) -> None:
    """Latencies of memory units and stages included; there, each vector of each stage is an event."""
    spec = load_arch("sn40l", SMALL | SILENT | {"pmu.latency": 8})
    whole = chain([time * EACH for time in times], tokens, "vector", latency=5)
    for read in whole.channels:
        read.vectors, read.depth = True, depth
    found, one = run(whole, spec), run(small_tokens([time * EACH for time in times], tokens, depth, 5), spec)
    assert found.ticks == one.ticks
    assert one.events >= tokens * EACH * len(times)


def twin(times: list[int], edges: list[tuple[int, int, int]], vectors: int) -> int:
    """Ticks of the last vector's end, stage by stage and vector by vector; edges: (from, to, room in vectors)."""
    end = np.zeros((len(times), vectors), np.int64)
    for k in range(vectors):
        for s, ticks in enumerate(times):
            begin = end[s, k - 1] if k else 0
            begin = max([begin, *(end[a, k] for a, b, _ in edges if b == s)])
            begin = max([begin, *(end[b, k - room] for a, b, room in edges if a == s and k >= room)])
            j = k % EACH
            end[s, k] = begin + ticks * (j + 1) // EACH - ticks * j // EACH
    return int(end.max())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]], int]:
    """Stages with their cycles a token, at most three inputs each from stages before them, and tokens."""
    count = draw(st.integers(2, 6))
    times = draw(st.lists(st.integers(33, 400), min_size=count, max_size=count))
    edges = []
    for b in range(1, count):
        for a in draw(st.sets(st.integers(0, b - 1), min_size=1, max_size=2)):
            edges.append((a, b, draw(st.integers(1, 40))))
    return times, edges, draw(st.integers(1, 4))


@example(([33, 400, 33, 33, 33], [(0, 1, 1), (1, 2, 40), (1, 3, 40), (1, 4, 40)], 2))  # more than two come or go
@given(graphs())
@settings(max_examples=40)
def test_any_graph_runs_as_its_twin_says(drawn: tuple[list[int], list[tuple[int, int, int]], int]) -> None:
    times, edges, tokens = drawn
    section, i = Section("graph", "vector"), Counter("i", tokens)
    made: list[Output] = []
    for s, time in enumerate(times):
        inputs = {f"x{a}": made[a].read(room, vectors=True, pmus=1) for a, b, room in edges if b == s}
        made.append(section.timed(f"s{s}", (i,), inputs, Out((EACH, 32), "bf16", (i,)), interval_cycles=time))
    found = run(section, load_arch("sn40l", SMALL | SILENT))
    assert found.ticks == twin([time * TICKS_PER_CYCLE for time in times], edges, tokens * EACH)
    assert (found.reasons.sum(axis=1) == found.ticks).all()


def test_vectors_take_no_more_events_than_tokens_do() -> None:
    """What else they cost, a pass over the vectors of each firing, `scripts/lab/rdu/vectors.py` measures."""
    spec, times = load_arch("sn40l", SMALL | SILENT), [2 * EACH] * 5
    tokens, vectors = (run(chain(times, 64, grain), spec).events for grain in ("token", "vector"))
    assert vectors <= tokens < run(small_tokens(times, 64, depth=2 * EACH, latency=0), spec).events / 10


def test_the_rows_of_a_token_do_not_matter() -> None:
    """By tokens small ones are slow, because two of them hold less than memory's latency needs."""
    text = "softmax rows=1024 cols=512"
    tokens, vectors = (
        [simulate(text, "sn40l", schedule=f"streaming {rows} rows{by}").cycles for rows in (16, 64, 256)]
        for by in ("", " by vectors")
    )
    assert max(tokens) > 1.8 * min(tokens)
    assert max(vectors) < 1.02 * min(vectors)
    assert max(vectors) < min(tokens)


@pytest.mark.parametrize(
    "text",
    [
        "softmax rows=70 cols=96",
        "layernorm rows=33 cols=128",
        "pointwise chain=exp+add+silu fused=0 n=9000",
        "attention batch=1 heads=2 seq_q=40 seq_k=100 head_dim=32 causal=1",
        "gemm m=100 n=70 k=64 beta=1",
    ],
)
def test_operators_compute_the_same_and_move_the_same_bytes(text: str) -> None:
    spec = load_arch("sn40l", SMALL)
    whole = simulate(text, spec)
    schedule = whole.record.kernels[0].schedule
    report = simulate(text, spec, schedule=f"{schedule} by vectors", check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    assert report.record.kernels[0].schedule == f"{schedule} by vectors"
    counted = [{k: n for k, n in r.figures.counters.items() if k != "events"} for r in (whole, report)]
    assert counted[0] == counted[1]
    for kernel in report.record.kernels:
        assert sum(kernel.stalls["pcus"].values()) == kernel.cycles * 32


@pytest.mark.parametrize("readers", [1, 3])
def test_a_whole_row_is_seen_before_what_its_largest_is_taken_from(silent: RduSpec, readers: int) -> None:
    """One stage that subtracts the row's maximum gives its first vector a row later than one that adds 1, over as many
    channels as the engine takes in one pass and over more."""

    def first_store(body: object) -> float:
        section, i = Section("rows", "vector"), Counter("i", 2)
        x = section.timed("x", (i,), {}, Out((4, 512), "bf16", (i,)), interval_cycles=64)
        tile = Out((4, 512), "bf16", (i,))
        y = section.stage("y", (i,), {"x": x.read(pmus=1)}, body, tile, row_par=1)  # type: ignore[arg-type]
        for n in range(readers):
            section.timed(f"z{n}", (i,), {"y": y.read(pmus=1)}, tile, interval_cycles=64)
        result = run(section, silent)
        return float(result.log[result.log[:, 0] == 2][0, 2]) / TICKS_PER_CYCLE

    cost = silent.pcu.stages + silent.pcu.latency_cycles  # the tree takes a unit, the difference another one
    assert first_store(lambda x: x + 1.0) == 2 + cost
    assert first_store(lambda x: x - x.row_max()) == 2 + 2 * cost + 512 // 32


def test_numbers_flow_through_loads_and_stores() -> None:
    section, i = Section("copy", "vector"), Counter("i", 3)
    x, y = Tensor("x", (60, 40), "fp32"), Tensor("y", (60, 40), "fp32", "output")
    read = section.load("load", x, (i * 24, 0), (24, 40), (i,))
    twice = section.stage("twice", (i,), {"x": read}, lambda x: x + x, Out((24, 40), "fp32", (i,)))
    section.store("store", y, (i * 24, 0), twice, (i,))
    program = Program("copy", (Call(section),), "by hand")
    machine = load_arch("sn40l", SMALL)
    result = run_section(section, machine, program.addresses())
    numbers = np.arange(2400.0).reshape(1, 60, 40)
    replay = interpret(program, {id(section): result.log}, {"x": numbers})
    assert (replay.outputs["y"] == 2 * numbers).all()
    assert not replay.violations
    assert result.read_bytes["hbm"] == result.write_bytes["hbm"] == x.size_bytes
    assert (result.reasons.sum(axis=1) == result.ticks).all()


def test_what_cannot_go_by_vectors_says_why(silent: RduSpec) -> None:
    with pytest.raises(InputError, match="grain='line': must be one of token, vector"):
        Section("x", "line")  # type: ignore[arg-type]
    section = chain([64, 64], 2, "token")
    section.channels[0].vectors = True
    with pytest.raises(InputError, match="its depth counts vectors, but its section is by tokens"):
        run(section, silent)
    section, i = Section("product", "vector"), Counter("i", 2)
    x = section.timed("x", (i,), {}, Out((32, 32), "bf16", (i,)), interval_cycles=64)
    tile = Out((32, 32), "bf16", (i,))
    section.stage("square", (i,), {"x": x.read(16, vectors=True)}, lambda x: x @ x, tile, row_par=1)
    with pytest.raises(InputError, match=r"x -> square: .* a product takes its operands from buffers"):
        run(section, silent)


def test_the_listing_says_where_vectors_go() -> None:
    text = program_listing("softmax rows=64 cols=64", "sn40l", schedule="streaming 32 rows by vectors")
    assert "vectors a token" in text
