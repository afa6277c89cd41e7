"""Modules of PyTorch as graphs: what each operator becomes, what is fused, what is named; without it, by stand-ins."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from workloads.graphs import Graph
from workloads.graphs.aten import Aten
from workloads.graphs.meanings import Model, written
from workloads.graphs.torch_graph import read_exported

FILE = str(Path(__file__).with_name("torch_models.py"))
MACHINE = "h100-sxm"


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    from tests.workloads import torch_models

    found = {}
    for name in ("decoder", "images"):
        with torch.device("meta"):
            module, args = getattr(torch_models, name)()
        found[name] = torch.export.export(module.eval(), args)
    return found


def texts_of(graph: Graph) -> Counter[str]:
    return Counter(f"{step.label}: {step.op}" for step in graph.steps)


def test_operators_are_what_pytorch_calls_them(programs: dict[str, Any]) -> None:
    model = read_exported(programs["decoder"])
    eager = texts_of(model.graph(False))
    assert model.dtype == "bf16"
    bf16 = "dtype=bf16 out=bf16"
    expected = {
        f"aten::linear: gemm m=64 n=256 k=256 tb=T {bf16} acc=fp32": 2,
        f"aten::linear: gemm m=64 n=128 k=256 tb=T {bf16} acc=fp32": 2,
        f"aten::linear: gemm m=64 n=512 k=256 tb=T {bf16} acc=fp32": 2,
        f"aten::linear: gemm m=64 n=256 k=512 tb=T {bf16} acc=fp32": 1,
        f"aten::linear: gemm m=1 n=1000 k=256 tb=T {bf16} acc=fp32": 1,
        "aten::embedding: gather rows=64 cols=256 of=1000 dtype=bf16 index_dtype=int64": 1,
        "aten::to: cast n=16384 dtype=bf16 out=fp32": 3,
        "aten::mean: sum rows=64 cols=256 axis=1 dtype=fp32 out=fp32": 3,
        "aten::mul: bias n=16384 cols=64 dtype=fp32 out=fp32": 3,  # a number a row
        f"aten::cat: copy n=16384 {bf16}": 1,
        f"aten::neg: neg n=8192 {bf16}": 1,
        f"aten::reshape: copy n=16384 {bf16}": 0,  # attention writes positions first: heads lie side by side
        f"aten::silu: silu n=32768 {bf16}": 1,
    }
    assert {text: eager[text] for text in expected} == expected
    attention = next(text for text in eager if "attention" in text)
    assert "batch=1 heads=4 head_dim=64 kv_heads=2 seq_q=64 seq_k=64 causal=1" in attention
    assert not any("view" in text or "transpose" in text or "chunk" in text for text in eager)


def test_norms_and_chains_are_one_kernel_each_when_fused(programs: dict[str, Any]) -> None:
    model = read_exported(programs["decoder"])
    fused, eager = model.graph(True), model.graph(False)
    texts = texts_of(fused)
    assert texts["fused_rmsnorm: rmsnorm rows=64 cols=256 dtype=bf16 out=bf16"] == 3
    assert texts["fused_silu_mul: pointwise n=32768 chain=silu+mul dtype=bf16 out=bf16"] == 1
    assert texts["fused_mul_add: pointwise n=16384 chain=bias+bias+add cols=4096 dtype=bf16 out=bf16"] == 1
    assert fused.macs == eager.macs
    assert len(fused.steps) < len(eager.steps) - 20
    times = [simulate(model, MACHINE, schedule=form).time_us for form in ("eager", "fused")]
    assert times[1] < 0.8 * times[0]


def test_an_exported_program_is_a_workload(programs: dict[str, Any]) -> None:
    report = simulate(programs["images"], MACHINE).to_dict()
    profile = {entry["operator"]: entry["calls"] for entry in report["profile"]}
    assert profile == {
        "aten::conv2d": 2, "aten::conv2d (bias)": 1, "aten::batch_norm": 1, "aten::relu": 2, "aten::max_pool2d": 1,
        "aten::add": 1, "aten::adaptive_avg_pool2d": 1, "aten::linear": 1,
    }  # fmt: skip
    assert report["streamed"]["operators"] == {"aten::max_pool2d": 1}
    assert report["streamed"]["bytes"] == 2 * 2 * 16 * (16 * 16 + 8 * 8)
    assert 0 < report["streamed"]["time_share"] < 0.3
    with pytest.raises(InputError, match=r"there is no kernel for aten::max_pool2d \(1\)"):
        simulate(read_exported(programs["images"], strict=True), MACHINE)
    counted = simulate(programs["images"], "sn40l").to_dict()
    assert counted["streamed"]["operators"]["aten::max_pool2d"] == 1


def test_equal_layers_are_known() -> None:
    torch = pytest.importorskip("torch")
    from tests.workloads import torch_models

    with torch.device("meta"):
        module, args = torch_models.decoder(4)
    graph = read_exported(torch.export.export(module, args)).graph(True)
    (repeat,) = graph.repeats
    assert repeat.times == 4
    assert [step.label for step in graph.steps[repeat.first : repeat.first + repeat.steps]].count("aten::linear") == 7


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    command = ["run", f"{FILE}:decoder", "seq=32", "--torch", "--arch", MACHINE]
    assert main([*command, "--schedule", "fused", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["workload"] == f"{FILE}:decoder seq=32"
    assert report["workload_file"]["name"] == "torch_models.py"
    assert {entry["operator"] for entry in report["profile"]} >= {"aten::linear", "fused_rmsnorm"}
    for function, told in (
        ("images --strict", "there is no kernel for aten::max_pool2d (1)"),
        ("a_module_alone", "must return (module, args), (module, args, kwargs) or an exported program"),
        ("by_values", "by_values: cannot be exported: "),
    ):
        name, *more = function.split()
        assert main(["run", f"{FILE}:{name}", *more, "--torch", "--arch", MACHINE]) == 2
        assert told in capsys.readouterr().err
    assert main(["run", "gemm", "m=64", "n=64", "k=64", "--torch", "--arch", MACHINE]) == 2
    assert "--torch: gemm is no function of a file" in capsys.readouterr().err
    assert main(["run", "gemm", "m=64", "n=64", "k=64", "--strict", "--arch", MACHINE]) == 2
    assert "--strict goes with onnx models and --torch" in capsys.readouterr().err


def test_without_pytorch_the_command_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "model.py").write_text("def make():\n    return None, ()\n")
    assert main(["run", f"{tmp_path}/model.py:make", "--torch", "--arch", MACHINE]) == 2
    assert "needs PyTorch, its wheel for CPUs suffices: pip install 'tilewave[torch]'" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- stand-ins


class Fake:
    """A tensor as `meta["val"]` shows it."""

    def __init__(self, *shape: Any, dtype: str = "torch.bfloat16", strides: tuple[int, ...] = ()) -> None:
        self.shape, self.dtype, self._strides = shape, dtype, strides

    def stride(self) -> tuple[int, ...]:
        found = [1]
        for size in reversed(self.shape[1:]):
            found.insert(0, found[0] * size)
        return self._strides or tuple(found)


class Call:
    """A node of an exported program."""

    def __init__(self, op: str, name: str, target: Any = None, args: tuple[Any, ...] = (), value: Any = None,
                 **kwargs: Any) -> None:  # fmt: skip
        self.op, self.name, self.target, self.args, self.kwargs = op, name, target, args, kwargs
        self.meta = {"val": value}


def operator(name: str, *arguments: str) -> Any:
    listed = [SimpleNamespace(name=one, default_value=None, has_default_value=lambda: True) for one in arguments]
    return SimpleNamespace(_schema=SimpleNamespace(name=name, arguments=listed))


def program(*nodes: Call) -> Any:
    return SimpleNamespace(graph_module=SimpleNamespace(graph=SimpleNamespace(nodes=nodes)), graph_signature=None)


def test_a_program_is_read_by_its_nodes_alone() -> None:
    x, weight = Call("placeholder", "x", value=Fake(4, 64)), Call("placeholder", "w", value=Fake(32, 64))
    turned = Call("call_function", "t", operator("aten::t", "self"), (weight,), Fake(64, 32, strides=(1, 64)))
    product = Call("call_function", "mm", operator("aten::mm", "self", "mat2"), (x,), Fake(4, 32), mat2=turned)
    strange = Call("call_function", "s", operator("mine::strange", "self"), (product,), [Fake(4, 32), Fake(4, 1)])
    getitem = Call("call_function", "g", SimpleNamespace(__name__="getitem"), (strange, 0), Fake(4, 32))
    given = program(x, weight, turned, product, strange, getitem, Call("output", "out", None, ((getitem,),)))
    product_step, stand_in = read_exported(given).graph(False).steps
    assert str(product_step.op) == "gemm m=4 n=32 k=64 tb=T dtype=bf16 out=bf16 acc=fp32"
    assert (stand_in.label, stand_in.stands_in, stand_in.op.operand_bytes) == ("mine::strange", True, 2 * 260)


@pytest.mark.parametrize("fused", [False, True])
def test_permuted_tensors_are_read_as_they_lie(fused: bool) -> None:
    """By a sum with what lies in order, and by the copy that a reshape makes; alone they need no other order."""
    x, y = Call("placeholder", "x", value=Fake(4, 64, 8, 32)), Call("placeholder", "y", value=Fake(4, 8, 64, 32))
    turned = Fake(4, 8, 64, 32, strides=(64 * 256, 32, 256, 1))
    heads = Call("call_function", "p", operator("aten::permute", "self", "dims"), (x, (0, 2, 1, 3)), turned)
    relu = Call("call_function", "r", operator("aten::relu", "self"), (heads,), turned)
    total = Call("call_function", "a", operator("aten::add", "self", "other"), (y, relu), Fake(4, 8, 64, 32))
    flat = Call("call_function", "f", operator("aten::reshape", "self", "shape"), (heads, (4, -1)), Fake(4, 64 * 256))
    given = program(x, y, heads, relu, total, flat, Call("output", "out", None, ((total, relu, flat),)))
    texts = [str(step.op) for step in read_exported(given).graph(fused).steps]
    own = "shape=4x8x64x32 layout={} dtype=bf16 out=bf16"
    assert texts == [
        "relu n=65536 dtype=bf16 out=bf16",
        f"add n=65536 {own.format('abcd+acbd')}",
        f"copy n=65536 {own.format('acbd')}",
    ]


def written_by(label: str, *args: Any, strides: tuple[int, ...] = ()) -> list[str]:
    """What a call of ATen is simulated as. Lists among its arguments are shapes of tensors, tuples lists of numbers."""
    aten = Aten()
    given = [aten.fresh(tuple(one), "bf16", strides) if isinstance(one, list) else
             list(one) if isinstance(one, tuple) else one for one in args]  # fmt: skip
    nodes = aten.nodes(label, given)
    graph = written(Model("mine", aten.tensors, tuple(nodes), nodes[-1].outputs), "stream")
    return [str(step.op) for step in graph.steps]


def test_calls_of_aten_are_what_they_mean() -> None:
    own = "dtype=bf16 out=bf16"
    turned = f"copy n=256 shape=2x8x16 layout=acb {own}"
    assert written_by("aten::_grouped_mm", [64, 32], [4, 32, 48], None) == [
        "grouped_gemm m=64 n=48 k=32 groups=4 align=16 dtype=bf16"
    ]
    assert written_by("aten::contiguous", [2, 8, 16], 0, strides=(128, 1, 8)) == [turned]
    with pytest.raises(InputError, match="has no step"):
        written_by("aten::contiguous", [2, 8, 16], 0, strides=(128, 16, 1))
    assert written_by("aten::reshape", [2, 8, 16], (2, -1), strides=(128, 1, 8)) == [turned]
    assert written_by("aten::addcmul", [8, 4], [8, 4], [4]) == [f"pointwise n=32 chain=add+bias cols=4 {own}"]
    assert written_by("aten::masked_fill", [8, 4], [8, 4], 0.0) == [f"dropout_backward n=32 {own}"]
    assert written_by("aten::native_batch_norm", [2, 8, 4, 4], [8], [8], [8], [8], False, 0.1, 1e-5) == [
        f"pointwise n=256 chain=bias+bias cols=8 {own}"
    ]
    assert written_by("aten::var", [8, 64], (1,), True) == ["sum rows=8 cols=64 axis=1 dtype=bf16 out=bf16"]
    assert written_by("aten::linear", [2, 8, 16], [32, 16], [32]) == [
        "gemm m=16 n=32 k=16 tb=T dtype=bf16 out=bf16 acc=fp32 epilogue=bias"
    ]
    assert written_by("aten::conv1d", [2, 8, 64], [16, 8, 3], None, (2,), (1,), (1,), 1) == [
        "conv2d n=2 c=8 h=1 w=64 k=16 r=1 s=3 pad=0 stride_w=2 pad_w=1 dtype=bf16 out=bf16 acc=fp32".replace(
            "pad=0 ", ""
        )
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (program(Call("placeholder", "x", value=Fake("s0", 64))), r"x is \['s0', 64\]; export it with fixed sizes"),
        (program(Call("placeholder", "x", value=Fake(4, dtype="torch.complex64"))), "complex64, which is no number"),
        (program(Call("output", "out", None, ((),))), "calls no operator"),
        (SimpleNamespace(), "SimpleNamespace is no exported program"),
    ],
)
def test_programs_that_cannot_be_read(given: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_exported(given)
