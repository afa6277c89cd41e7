"""ONNX models: shapes of their products, what is left out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.run import compare
from sim.app.study.sweep import sweep
from workloads.graphs.network_file import NetworkFile
from workloads.ops import Conv2d, Gemm

onnx = pytest.importorskip("onnx")
helper: Any = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def saved(path: Path, nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, tuple[int, ...]]) -> str:
    """A model in a file; its weights are ones."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)])
    onnx.save(model, str(path))
    return str(path)


@pytest.fixture
def network(tmp_path: Path) -> str:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], "depthwise", group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("Conv", ["c", "w3"], ["d"], "pointwise"),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "w4"], ["y"], transB=1),
    ]
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (16, 8, 1, 1), "w4": (10, 16)}
    return saved(tmp_path / "net.onnx", nodes, {"x": ["N", 3, 18, 18]}, weights)


def test_products_become_layers(network: str) -> None:
    found = NetworkFile(network, batch=2)
    assert [layer.name for layer in found.layers] == ["first", "depthwise", "pointwise", "y"]
    assert [layer.op for layer in found.layers] == [
        Conv2d(n=2, c=3, h=18, w=18, k=8, r=3, s=3, stride=2, pad=1),
        Conv2d(n=2, c=8, h=9, w=9, k=8, r=3, s=3, stride=2, pad=1, groups=8),
        Gemm(m=2 * 5 * 5, n=16, k=8, tb="T"),
        Gemm(m=2, n=10, k=16),
    ]
    assert found.others_left_out == {"GlobalAveragePool": 1, "Relu": 2}


def test_one_report_says_what_was_left_out(network: str, tmp_path: Path) -> None:
    report = simulate(f"network file={network}", "tpu-v1", check=True)
    document = report.to_dict()
    assert [layer["name"] for layer in document["layers"]] == ["first", "depthwise", "pointwise", "y"]
    assert document["check"]["passed"]
    assert document["workload_file"]["name"] == "net.onnx"
    assert "Left out, in no time: GlobalAveragePool (1), Relu (2)." in document["notes"]
    moved = 2 * 8 * 81 + 3 * 16 * 25 + 16  # elements of one byte: both functions read and write, the mean writes 16
    share = moved / (moved + report.record.operand_bytes)
    left_out = {"operators": {"GlobalAveragePool": 1, "Relu": 2}, "mac_share": 0.0, "byte_share": share, "unsized": 0}
    assert document["left_out"] == left_out
    said = f"0.0 % of the multiply-adds, {100 * share:.1f} % of the bytes: 3 operators in no time"
    assert said in str(report).splitlines()[5]
    assert said in str(compare(f"network file={network}", ["tpu-v1"]))
    rates = ["pcie.bandwidth=12 GB/s"]
    assert said in str(sweep(f"network file={network}", "tpu-v1", rates, store=tmp_path / "store", workers=1))
    with pytest.raises(
        InputError, match=r"others=refuse: has GlobalAveragePool \(1\), Relu \(2\), which are no layers"
    ):
        simulate(f"network file={network} others=refuse", "tpu-v1")


def test_the_host_does_what_is_no_layer(network: str) -> None:
    """Each other operator takes the host's turnaround, its bytes and its operations; weights do not count."""
    counted, host = (
        simulate(f"network file={network} others={others}", "tpu-v1", set=["host.turnaround=3 us"])
        for others in ("count", "host")
    )
    elements = {"Relu": 2 * (8 * 81) + 2 * (16 * 25), "GlobalAveragePool": 16 * 25 + 16}
    found = host.to_dict()["host_us"]
    for name, count in (("Relu", 2), ("GlobalAveragePool", 1)):
        assert found[name] == pytest.approx(count * 3 + elements[name] / 51e3, rel=1e-3)
    assert host.time_us == pytest.approx(counted.time_us + sum(found.values()))
    assert host.cycles == counted.cycles
    assert "On the host, one after the other: GlobalAveragePool (1), Relu (2)." in host.to_dict()["notes"]
    assert "left_out" not in host.to_dict()


def test_a_host_that_cannot_do_it_says_so(network: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="others=host: sn40l has no host that computes, tpu-v1 has one"):
        simulate(f"network file={network} others=host", "sn40l")
    with pytest.raises(InputError, match="scope=array is the array alone"):
        simulate(f"network file={network} others=host", "tpu-v1", scope="array")
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["b"], "strange"),
        helper.make_node("Cast", ["b"], ["y"], to=FLOAT),
    ]
    path = saved(tmp_path / "strange.onnx", nodes, {"x": [4, 8]}, {"w": (8, 6)})
    with pytest.raises(InputError, match=r"node 1 \(NonZero strange\): its shapes cannot be inferred"):
        NetworkFile(path, others="host")


def test_on_chips_with_a_memory_of_their_own_activations_cross_the_link(network: str) -> None:
    fast, slow = (
        simulate(f"network file={network} others=host", "tpu-v2", set=[f"pcie.bandwidth={rate}"]).to_dict()["host_us"]
        for rate in ("16 GB/s", "8 GB/s")
    )
    assert slow["Relu"] - fast["Relu"] == pytest.approx(2 * (8 * 81 + 16 * 25) * 2 / 16e3, rel=1e-3)


def test_matrix_products_as_numpy_multiplies(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "rows"),
        helper.make_node("Conv", ["x", "lopsided"], ["d"], "lopsided", pads=[1, 0, 0, 2]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "t"], ["b"], "scores"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    weights = {"w": (8, 6), "lopsided": (4, 3, 2, 3)}
    found = NetworkFile(saved(tmp_path / "attention.onnx", nodes, {"x": [2, 3, 5, 8]}, weights))
    assert [layer.op for layer in found.layers] == [
        Gemm(m=30, n=6, k=8),
        Conv2d(n=2, c=3, h=6, w=10, k=4, r=2, s=3),
        Gemm(batch=6, m=5, n=5, k=8),
    ]
    assert found.others_left_out == {"Relu": 1, "Transpose": 1}


@pytest.mark.parametrize(
    ("op", "shape", "told"),
    [
        ("Conv", ["N", 3, "height", 8], r"input x: dimension 2 \(height\) is open"),
        ("Relu", ["N", 3, 8, 8], "has no operator with a product"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, op: str, shape: list[Any], told: str) -> None:
    operands = ["x"] if op == "Relu" else ["x", "w"]
    path = saved(tmp_path / "net.onnx", [helper.make_node(op, operands, ["y"])], {"x": shape}, {"w": (3, 3, 3, 3)})
    with pytest.raises(InputError, match=told):
        NetworkFile(path)


def test_files_that_are_no_models(tmp_path: Path, network: str) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x08no model")
    with pytest.raises(InputError, match=r"broken\.onnx: is no valid ONNX model"):
        NetworkFile(str(path))
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"broken\.onnx: "):
        NetworkFile(str(path))
    fixed = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(InputError, match="batch=4: the model's inputs have a batch of their own"):
        NetworkFile(saved(tmp_path / "fixed.onnx", fixed, {"x": [1, 3, 8, 8]}, {}), batch=4)
