"""Layers that repeat are counted as one of them, once what they find before them repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.families.gpu.repeats import Settling
from sim.app.run import trace
from sim.app.trace.window import Wanted
from sim.gpu.power.regulator import FixedClock, PowerRegulator
from workloads.graphs import GraphBuilder, GraphOperator, Repeat, Value
from workloads.ops import Pointwise
from workloads.parse import parse

SMALL = "model=tiny hidden=512 heads=4 kv_heads=4 intermediate=1408 dtype=fp16"
MODELS = {
    "decode": (f"llama {SMALL} phase=decode seq=256 layers=10 vocab=4096", "t4", "eager", "kernel"),
    "prefill": (f"llama {SMALL} seq=64 layers=10", "t4", "fused", "stream"),
    "devices": (f"llama {SMALL} phase=decode batch=4 seq=64 layers=12 tp=2", "v100-sxm2-32gb", "graph", "kernel"),
    "shared keys": (
        "llama model=tiny hidden=512 heads=8 kv_heads=1 intermediate=1408 seq=96 batch=2 layers=9 dtype=fp16",
        "v100-sxm2",
        "graph",
        "kernel",
    ),
    "experts": (
        "llama model=mixtral-8x7b hidden=256 heads=4 kv_heads=2 intermediate=512 experts=4 topk=2 phase=decode batch=4"
        " seq=64 layers=10 dtype=fp16",
        *("jetson-agx-orin", "eager", "kernel"),
    ),
    "gpt2": (
        "llama model=gpt2 hidden=640 heads=5 kv_heads=5 intermediate=2560 phase=decode batch=2 seq=64 layers=9"
        " dtype=fp16",
        *("t4", "eager", "kernel"),
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_counted_layers_take_what_simulated_ones_do(model: str) -> None:
    workload, machine, schedule, scope = MODELS[model]
    op = parse(workload)
    assert isinstance(op, GraphOperator)
    graph = op.graph("fused" in schedule)
    counted, whole = (
        simulate(one, machine, schedule=schedule, scope=scope) for one in (graph, replace(graph, repeats=()))
    )
    assert counted.time_us == pytest.approx(whole.time_us, rel=0.005)
    assert [k.name for k in counted.record.kernels] == [k.name for k in whole.record.kernels]
    for mine, all_ in zip(counted.to_dict()["profile"], whole.to_dict()["profile"], strict=True):
        assert (mine["operator"], mine["calls"]) == (all_["operator"], all_["calls"])
        assert mine["device_us"] == pytest.approx(all_["device_us"], rel=0.05)
    assert any("are counted as layers" in note and "--exact simulates all" in note for note in counted.record.notes)
    assert not any("are counted as layer" in note for note in whole.record.notes)


@dataclass
class Took:
    """A step that has run."""

    time_ps: int


def settling(times: list[int], before: list[int], moved: int) -> Settling:
    return Settling(Repeat(0, 1, len(times)), [Took(ps) for ps in times], before, moved)


def counted_from(
    times: list[int], before: list[int], regulator: FixedClock | PowerRegulator, moved: int = 0
) -> tuple[int, int]:
    """The first layer that is counted, and as how many; (0, ...) if all are simulated."""
    spec, found = load_arch("t4"), settling(times, before, moved)
    for layer in range(len(times)):
        found.counts(layer, spec, regulator)
    return found.counted, len(found.ready)


FULL = [0, *[1 << 30] * 9]
"""Bytes before each layer: the first leaves more than an L2 holds."""


def test_one_layer_that_found_the_state_is_enough_where_the_cold_one_was_like_it() -> None:
    clock = FixedClock(10**9)
    assert counted_from([1005] + [1000] * 9, FULL, clock, 1 << 30) == (2, 1)
    assert counted_from([1005] + [1000] * 9, FULL, clock) == (4, 3)  # short layers, that vary more
    assert counted_from([2000] + [1000] * 9, FULL, clock, 1 << 30) == (4, 3)


def test_layers_that_differ_are_simulated_until_their_mean_is_known() -> None:
    clock = FixedClock(10**9)
    assert counted_from([2000, *[1000, 1040] * 4, 1000], FULL, clock) == (0, 9)
    assert counted_from([2000, 1000, 1006, 1003, 1003, 1003, 1003, 1003, 1003, 1003], FULL, clock) == (4, 3)
    assert counted_from([2000, 1000, 1010, 1003, 1003, 1003, 1003, 1003, 1003, 1003], FULL, clock) == (6, 5)


def test_the_l2_must_have_been_filled_and_the_average_of_the_clock() -> None:
    l2 = load_arch("t4").l2.size_bytes
    slow = [l2 * layer // 4 for layer in range(10)]
    assert counted_from([1000] * 10, slow, FixedClock(10**9)) == (7, 3)
    assert counted_from([1000] * 10, [0] * 10, FixedClock(10**9)) == (0, 0)
    assert counted_from([1000] * 10, FULL, PowerRegulator(load_arch("t4"), sustained=False)) == (0, 0)


def test_a_kernel_of_a_counted_layer_can_be_traced() -> None:
    assert trace(MODELS["prefill"][0], "t4", Wanted(kernel=200)).tracks  # of 29 a layer


def chain(g: GraphBuilder, x: Value, number: int) -> Value:
    return g.call("copy", Pointwise(n=64, chain="neg" if number == 2 else "copy", dtype="fp32", out="fp32"), x)


def test_layers_of_repeat_are_equal() -> None:
    g = GraphBuilder("mine")
    x = g.tensor("x", 64, "fp32")
    graph = g.build(g.repeat(2, lambda value, number: chain(g, value, number), g.call("first", *first(), x)))
    assert graph.repeats == (Repeat(1, 1, 2),)
    assert [*graph.repeats[0].layer(1)] == [2]
    with pytest.raises(InputError, match="graph mine: layer 3 of repeat has other operators than layer 1"):
        g.repeat(3, lambda value, number: chain(g, value, number), x)


def first() -> tuple[Pointwise]:
    return (Pointwise(n=64, chain="copy", dtype="fp32", out="fp32"),)


def test_a_slice_lies_within_its_tensor() -> None:
    x = Value("x", 64, "fp32").part(1, 2)
    assert x.slice(8, 24) == Value("x", 24, "fp32", 40)
    with pytest.raises(InputError, match="x: elements 8 to 33 are no part of 32"):
        x.slice(8, 25)
