"""Applications of the TPU v1 paper as graphs: their work is that of the layers, and every family runs them."""

from __future__ import annotations

import pytest

from arch.errors import InputError
from sim import simulate
from workloads.graphs.inference import Inference
from workloads.ops import networks


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("app", networks.APPS)
def test_a_graph_has_the_work_of_the_layers(app: str, fused: bool) -> None:
    op = Inference(app, batch=4).with_defaults("bf16")
    graph = op.graph(fused)
    assert graph.macs == op.macs == op.network.macs(4)
    read = {value.buffer: value for step in graph.steps for value in step.operands}
    weights = [value.size for name, value in read.items() if name in graph.inputs and name.startswith("w")]
    assert sum(weights) == op.network.weights


def test_a_cell_is_joined_by_a_compiler() -> None:
    """Eager it is a product, four gates and five functions; fused the functions are two kernels."""
    op = Inference("lstm1", batch=8).with_defaults("bf16")
    eager, joined = (op.graph(fused) for fused in (False, True))
    assert [step.label for step in eager.steps[2:12]] == [
        *("MatMul", "Sigmoid", "Sigmoid", "Sigmoid", "Tanh", "Mul", "Mul", "Add", "Tanh", "Mul")
    ]
    products = [number for number, step in enumerate(joined.steps) if step.op.word == "gemm"]
    assert len(products) == 37
    assert products[2] - products[1] == 3


def test_what_a_layer_reads_of_two_tensors_is_joined_first() -> None:
    op = Inference("lstm0", batch=8).with_defaults("bf16")
    steps = op.graph(fused=False).steps
    joined = [step for step in steps if step.label == "Concat"]
    assert len(joined) == 23  # states and new inputs of all cells but the first
    assert all(step.results[0].size == 8 * 768 for step in joined)


@pytest.mark.parametrize("machine", ["a100-sxm4-80gb", "gemmini", "sn40l", "tpu-v2"])
def test_every_family_runs_it(machine: str) -> None:
    schedule = "steps" if machine == "tpu-v2" else "auto"
    report = simulate("inference app=mlp1 batch=8", machine, schedule=schedule)
    assert report.record.macs == 4 * 8 * 1118**2


def test_who_multiplies_fractions_is_told_how_it_runs() -> None:
    with pytest.raises(InputError, match="tpu-v1 runs it, schedule=steps"):
        simulate("inference app=mlp1 batch=8", "tpu-v2")
