"""ONNX models as graphs: what each operator becomes, what is fused, what stands for the rest, on every family."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from sim.app.run import compare
from sim.app.study.sweep import sweep
from tests.workloads.onnx_models import FLOAT, MODELS, N, Writer, helper, onnx
from tests.workloads.test_onnx_operators import COUNTED, model
from workloads.graphs import Graph
from workloads.graphs.network_file import NetworkFile
from workloads.graphs.onnx_graph import OnnxModel
from workloads.ops import Pointwise

FAMILIES = ("h100-sxm", "tpu-v1", "sn40l", "gemmini")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: make(folder / f"{name}.onnx") for name, make in MODELS.items()}


def graph_of(file: str, fused: bool = False, **keys: Any) -> Graph:
    return OnnxModel(file, **keys).with_defaults("bf16").graph(fused)


def words_of(graph: Graph) -> Counter[str]:
    return Counter(step.op.word for step in graph.steps if not step.stands_in)


def chains_of(graph: Graph) -> set[str]:
    return {step.op.chain for step in graph.steps if isinstance(step.op, Pointwise)}


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_multiplies_what_the_products_alone_do(files: dict[str, str], name: str) -> None:
    """Both readings of a file agree, eager and fused; only pools have no kernel."""
    alone = NetworkFile(files[name]).with_defaults("bf16").graph().macs
    for fused in (False, True):
        graph = graph_of(files[name], fused)
        assert graph.macs == alone > 1_000_000
        stand_ins = [(step.label, step.op.operand_bytes) for step in graph.steps if step.stands_in]
        assert stand_ins == ([("MaxPool", 2 * 16 * (28 * 28 + 14 * 14))] if name == "resnet" else [])


def test_what_operators_become(files: dict[str, str]) -> None:
    """Reshapes are free; what moves is a copy, what adds a vector reads it once."""
    bert = graph_of(files["bert"])
    texts = Counter(f"{step.label}: {step.op}" for step in bert.steps)
    for text, count in {
        "Gather: gather rows=64 cols=128 of=1000 dtype=bf16 index_dtype=int64": 1,
        "MatMul: gemm m=64 n=128 k=128 dtype=bf16 out=bf16 acc=fp32": 4,
        "MatMul: gemm m=32 n=32 k=32 batch=8 dtype=bf16 out=bf16 acc=fp32": 2,
        "Transpose: copy n=8192 dtype=bf16 out=bf16": 4,
        "Softmax: softmax rows=256 cols=32 dtype=bf16 out=bf16": 1,
        "Add: bias n=8192 cols=128 dtype=bf16 out=bf16": 5,
        "Add: bias n=8192 cols=64 dtype=bf16 out=bf16": 1,  # the mask of all heads
    }.items():
        assert texts[text] == count, (text, texts)
    assert words_of(graph_of(files["vit"]))["conv2d"] == 1
    assert words_of(graph_of(files["vit"]))["transpose"] == 2  # the patches, and keys of the only sequence
    resnet = graph_of(files["resnet"], batch=2)
    assert words_of(resnet) == {"conv2d": 3, "gemm": 6, "pointwise": 17, "sum": 1}
    assert str(resnet.steps[-2].op) == "sum rows=128 cols=196 axis=1 dtype=bf16 out=bf16"
    assert str(resnet.steps[-1].op) == "gemm m=2 n=10 k=64 tb=T dtype=bf16 out=bf16 acc=fp32 epilogue=bias"


def test_chains_attention_and_norms_are_one_kernel_each_when_fused(files: dict[str, str]) -> None:
    sizes = {"bert": (2, 4, 32, 32), "gpt2": (1, 2, 32, 32), "vit": (1, 2, 17, 32)}
    for name, (batch, heads, positions, depth) in sizes.items():
        graph = graph_of(files[name], fused=True)
        (attention,) = (step.op for step in graph.steps if step.op.word == "attention")
        expected = f"attention batch={batch} heads={heads} head_dim={depth} kv_heads={heads}"
        assert str(attention).startswith(f"{expected} seq_q={positions} seq_k={positions}")
        assert words_of(graph)["softmax"] == 0
        assert words_of(graph)["gemm"] == words_of(graph_of(files[name]))["gemm"] - 2
    assert chains_of(graph_of(files["bert"], fused=True)) == {"bias", "bias+add", "bias+scale+gelu+scale+scale+scale"}
    assert chains_of(graph_of(files["resnet"], fused=True)) == {
        "copy",
        "bias+relu",
        "bias+add+relu",
        "bias+bias+add+relu",
    }


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_norm_that_is_written_out_is_one_when_fused(tmp_path: Path, kind: str) -> None:
    w = Writer()
    x = w.node("MatMul", "x", w.weight("w", 64, 64), "h")
    w.constant("two", np.float32(2))
    w.constant("tiny", np.float32(1e-5))
    w.constant("axis", np.array([-1]))
    if kind == "layernorm":
        x = w.node("Sub", x, w.node("ReduceMean", x, "axis", "mean"), "away")
    square = w.node("ReduceMean", w.node("Pow", x, "two", "square"), "axis", "variance")
    root = w.node("Sqrt", w.node("Add", square, "tiny", "safe"), "root")
    y = w.node("Mul", w.node("Div", x, root, "normal"), w.weight("g", 64), "scaled")
    y = w.node("Add", y, w.weight("b", 64), "shifted") if kind == "layernorm" else y
    w.node("Add", y, "x", "y")  # a residual: one more matrix to read
    file = w.save(tmp_path / "norm.onnx", {"x": [8, 64]}, "y")
    steps = graph_of(file, fused=True).steps
    assert [step.label for step in steps] == ["MatMul", f"fused_{kind}", "Add"]
    assert str(steps[1].op) == f"{kind} rows=8 cols=64 dtype=bf16 out=bf16"
    assert words_of(graph_of(file))["sum"] == (2 if kind == "layernorm" else 1)


@pytest.mark.parametrize("machine", FAMILIES)
def test_every_family_runs_a_model_and_says_what_bytes_stand_for(files: dict[str, str], machine: str) -> None:
    report = simulate(f"onnx file={files['resnet']}", machine)
    found = report.to_dict()
    if machine != "tpu-v1":
        jsonschema.validate(found, json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text()))
    assert sum(entry["calls"] for entry in found["profile"]) == (28 if machine == "h100-sxm" else 19)  # 19: fused
    streamed = found["streamed"]
    assert streamed["operators"]["MaxPool"] == 1
    if machine == "h100-sxm":
        assert streamed["operators"] == {"MaxPool": 1}
        assert streamed["bytes"] == 2 * 16 * (28 * 28 + 14 * 14)
    else:
        assert streamed["operators"]["GlobalAveragePool"] == 1
    assert 0 < streamed["time_share"] < 0.3
    text = next(line for line in str(report).splitlines() if line.split()[:1] == ["streamed"])
    assert f"{100 * streamed['time_share']:.1f} % of the time" in text
    assert "MaxPool (1)" in text


def test_streams_take_as_long_as_their_bytes(files: dict[str, str]) -> None:
    whole, half = (simulate(f"onnx file={files['resnet']}", "tpu-v4", set=[f"dram.bandwidth={rate}"]).to_dict()
                   for rate in ("1200 GB/s", "600 GB/s"))  # fmt: skip
    streams = sum(whole["host_us"].values())
    assert streams == pytest.approx(whole["streamed"]["bytes"] / 1200e3, rel=1e-3)
    assert sum(half["host_us"].values()) == pytest.approx(2 * streams, rel=1e-3)


def test_studies_say_what_bytes_stand_for(files: dict[str, str], tmp_path: Path) -> None:
    workload = f"onnx file={files['resnet']}"
    both = str(compare(workload, ["tpu-v4", "gemmini"]))
    assert both.count("MaxPool (1)") >= 2
    assert "Streamed" in both
    varied = sweep(workload, "tpu-v4", ["batch=1,2"], store=tmp_path / "store", workers=1)
    assert "Streamed" in str(varied)


def test_others_are_counted_refused_or_on_the_host(files: dict[str, str]) -> None:
    workload = f"onnx file={files['resnet']}"
    counted = simulate(f"{workload} others=count", "h100-sxm").to_dict()
    assert counted["left_out"]["operators"] == {"MaxPool": 1}
    assert "streamed" not in counted
    with pytest.raises(InputError, match=r"there is no kernel for MaxPool \(1\); others=stream"):
        simulate(f"{workload} others=refuse", "h100-sxm")
    host = simulate(f"{workload} others=host", "tpu-v1").to_dict()
    assert host["host_us"]["MaxPool"] > 0
    with pytest.raises(InputError, match=r"gemm.*: gemmini multiplies int8"):
        simulate(f"{workload} dtype=bf16", "gemmini")  # bytes do not stand for products


def test_the_command_takes_a_file_for_a_model(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", files["gpt2"], "--arch", "h100-sxm", "--schedule", "fused", "--profile"]) == 0
    said = capsys.readouterr().out
    for label in ("MatMul", "fused_attention", "fused_add_gelu", "LayerNormalization"):
        assert label in said
    assert main(["run", "onnx", "--file", files["vit"], "--arch", "h100-sxm", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["check"]["passed"]
    assert report["workload_file"]["name"] == "vit.onnx"
    assert main(["run", "onnx", "file=none.onnx", "--arch", "h100-sxm"]) == 2
    assert "none.onnx" in capsys.readouterr().err


@pytest.mark.parametrize("name", COUNTED)
def test_every_operator_with_products_multiplies_as_much_in_a_graph(tmp_path: Path, name: str) -> None:
    node, inputs, expected, more = COUNTED[name]
    path = tmp_path / "one.onnx"
    path.write_bytes(model([node], inputs, **more).SerializeToString())
    for fused in (False, True):
        graph = graph_of(str(path), fused)
        causal = any("causal=1" in str(step.op) for step in graph.steps)  # what is masked is not multiplied
        assert graph.macs == expected or (causal and graph.macs < expected)


def test_operators_of_onnx_runtime(tmp_path: Path) -> None:
    """Attention, norms with a residual and recurrent layers are what they are, not their names alone."""
    w = Writer()
    names = ["x", w.weight("w", 64, 192), w.weight("b", 192), "attended"]
    w.node("Attention", *names, domain="com.microsoft", num_heads=2, unidirectional=1)
    names = ["attended", "x", w.weight("g", 64), w.weight("h", 64), "normed"]
    w.node("SkipLayerNormalization", *names, domain="com.microsoft")
    w.node("TopK", "normed", w.constant("k", np.array([4])), "y", domain="")
    w.nodes[-1] = N("TopK", ["normed", "k"], ["y", "places"], "most")
    file = w.save(tmp_path / "runtime.onnx", {"x": [2, 32, 64]}, "y")
    steps = graph_of(file).steps
    assert [step.op.word for step in steps] == ["gemm", "attention", "pointwise", "layernorm", "pointwise"]
    assert [step.stands_in for step in steps] == [False] * 4 + [True]
    assert "batch=2 heads=2 head_dim=32 kv_heads=2 seq_q=32 seq_k=32 causal=1" in str(steps[1].op)


@pytest.mark.parametrize(
    ("nodes", "shape", "told"),
    [
        ([("Relu", "b", "a"), ("Relu", "a", "b"), ("Relu", "b", "y")], [4, 8], "is no valid ONNX model"),
        ([("MatMul", "x", "x", "y")], [4, 8], "wrong"),
        ([("Relu", "x", "y")], [4, -8], "a dimension is -8"),
        ([("Relu", "x", "y")], [4, "wide"], r"dimension 1 \(wide\) is open"),
        ([("Unheard", "x", "y")], [4, 8], "is no valid ONNX model"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, nodes: Any, shape: list[Any], told: str) -> None:
    values = [helper.make_tensor_value_info(name, FLOAT, shape if name == "x" else None) for name in ("x", "y")]
    made = [N(kind, names[:-1], names[-1:]) for kind, *names in nodes]
    graph = helper.make_graph(made, "graph", values[:1], values[1:])
    path = tmp_path / "wrong.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    for word in ("onnx", "network"):
        with pytest.raises(InputError, match=told):
            simulate(f"{word} file={path}", "h100-sxm")


def test_what_has_no_shape_is_refused(tmp_path: Path) -> None:
    w = Writer()
    w.node("Cast", w.node("NonZero", w.node("Relu", "x", "a"), "b"), "y", to=FLOAT)
    file = w.save(tmp_path / "strange.onnx", {"x": [4, 8]}, "y")
    with pytest.raises(InputError, match=r"NonZero b\): its shapes cannot be inferred"):
        OnnxModel(file)
    assert onnx.load(file).graph.node
