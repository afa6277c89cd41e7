"""Traces of PyTorch's profiler beside what is simulated: what is paired with what, and what is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from sim.app.study.traces import SIMULATED, TraceComparison, compare_trace
from tests.study.kineto_trace import BF16, EACH, LONG, Trace, decoder_layer, model
from workloads.graphs import kineto
from workloads.graphs.kineto import read_trace

MACHINE = "h100-sxm"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> TraceComparison:
    return compare_trace(model(tmp_path_factory.mktemp("trace") / "layer.json.gz"), MACHINE)


def test_each_kernel_stands_beside_the_operator_of_its_shapes(found: TraceComparison) -> None:
    ours = {(pair.operator, pair.ours): pair.calls for pair in found.pairs}
    mm = "aten::mm", "gemm m=256 n={} k={} tb=T dtype=bf16 out=bf16 acc=fp32"
    causal = "attention batch=1 heads=4 head_dim=128 kv_heads=4 seq_q=256 seq_k=256 causal=1 head_dim_v=128 dtype=bf16"
    expected = {
        **{(mm[0], mm[1].format(n, k)): calls for n, k, calls in ((512, 512, 4), (1024, 512, 2), (512, 1024, 1))},
        ("aten::addmm", "gemm m=256 n=1000 k=512 tb=T dtype=bf16 out=bf16 acc=fp32 epilogue=bias"): 1,
        ("aten::_flash_attention_forward", f"{causal} out=bf16"): 1,
        ("aten::native_layer_norm", "layernorm rows=256 cols=512 dtype=bf16 out=bf16"): 1,
        ("aten::_softmax", "softmax rows=256 cols=1000 dtype=bf16 out=bf16"): 1,
        ("aten::embedding", "gather rows=256 cols=512 of=32000 dtype=bf16 index_dtype=int64"): 1,
        ("aten::silu", "silu n=262144 dtype=bf16 out=bf16"): 1,
        ("aten::mul", "mul n=262144 dtype=bf16 out=bf16"): 1,
        ("aten::mul", "bias n=131072 cols=512 dtype=bf16 out=bf16"): 2,  # a norm's weight
        ("aten::mul", "bias n=131072 cols=256 dtype=fp32 out=fp32"): 2,  # a number a row
        ("aten::mean", "sum rows=256 cols=512 axis=1 dtype=fp32 out=fp32"): 2,
        ("aten::pow", "scale n=131072 dtype=fp32 out=fp32"): 2,
        ("aten::copy_", "cast n=131072 dtype=bf16 out=fp32"): 2,
        ("aten::copy_", "cast n=131072 dtype=fp32 out=bf16"): 2,
        ("aten::cat", "copy n=131072 dtype=bf16 out=bf16"): 2,
        ("nccl:all_reduce", "all_reduce gpus=2 elements=131072 dtype=bf16"): 2,
        ("Memcpy HtoD (Pinned -> Device)", "copy_h2d bytes=2048"): 1,
    }
    assert expected.items() <= ours.items()
    for pair in found.pairs:
        assert 0.4 * pair.calls < pair.simulated_us < 30 * pair.calls
        assert pair.kernels
        assert pair.schedule


def test_nearly_all_device_time_is_paired_and_the_rest_is_named(found: TraceComparison) -> None:
    whole = found.to_dict()
    assert whole["paired_share"] > 0.95
    assert {(one["operator"], one["why"]) for one in whole["unpaired"]} == {
        ("triton_poi_fused_add_mul_0", "no kernel of this meaning is known"),
        ("mine::secret", "no kernel of this meaning is known"),
        ("void unknown_launcher_kernel()", "no operator launched it"),
    }
    sizes = [abs(pair["difference_us"]) for pair in whole["pairs"]]
    assert sizes == sorted(sizes, reverse=True)
    assert whole["measured_us"] == pytest.approx(sum(one["measured_us"] for one in whole["pairs"] + whole["unpaired"]))
    text = str(found)
    assert f"paired       {100 * whole['paired_share']:.1f} % of it" in text
    assert "NVIDIA H100 80GB HBM3" in text


def test_all_device_time_of_a_layer_is_paired(tmp_path: Path) -> None:
    """Of operators with few kernels between them, in a file without ids of operators beside kernels, and as text."""
    trace = Trace(ids=False)
    decoder_layer(trace)
    read = read_trace(trace.save(tmp_path / "layer.json"))
    kernels = [event for event in trace.events if event.get("cat") == "kernel"]
    assert sum(len(call.kernels) for call in read.calls) == len(kernels) == 38
    assert read.measured_us == pytest.approx(sum(event["dur"] for event in kernels))
    assert all(call.nodes or call.workload for call in read.calls)


def test_layers_that_are_equal_are_simulated_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def counted(workload: Any, *arguments: Any, **options: Any) -> Any:
        steps.append(len(getattr(workload, "steps", ())))
        return simulate(workload, *arguments, **options)

    monkeypatch.setattr("sim.app.study.traces.simulate", counted)
    whole = compare_trace(model(tmp_path / "layers.json", 4), MACHINE)
    mm = next(pair for pair in whole.pairs if "n=512 k=1024" in pair.ours)
    assert mm.calls == 4
    of_kinds = [min(pair.calls, SIMULATED) for pair in whole.pairs]
    assert max(steps) <= sum(of_kinds)
    assert whole.paired_share > 0.98


def test_what_is_within_an_operator_counts_as_that(tmp_path: Path) -> None:
    """Two kernels of one call are one pair; an unknown operator within a known one is this one."""
    trace = Trace()
    outer = trace.op("aten::silu", ([64, 64],), dur=40.0)
    inner = trace.op("mine::inner", ([64, 64],), dur=10.0, within=5.0)
    trace.kernel("void first()", 1.0, inner)
    trace.kernel("void second()", 2.0, inner)
    trace.kernel("Memcpy DtoD (Device -> Device)", 1.5, trace.op("aten::copy_", ([64, 64],), ([64, 64],)), "gpu_memcpy",
                 bytes=8192)  # fmt: skip
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 1.5, outer, "gpu_memcpy", bytes=8192)
    read = read_trace(trace.save(tmp_path / "trace.json"))
    first, copy, back = read.calls
    assert (first.label, first.kernels, first.measured_us) == ("aten::silu", ("void second()", "void first()"), 3.0)
    assert first.nodes[0].meaning == "pointwise"
    assert copy.workload == "copy n=8192 dtype=int8"
    assert back.why == "leaves the device"


def test_operators_that_runtimes_bring_along(tmp_path: Path) -> None:
    """Convolutions whose library fills its scratch first, vLLM's operators, and lists that were not written down."""
    trace = Trace()
    conv = trace.op("aten::cudnn_convolution", ([2, 8, 16, 16],), ([16, 8, 3, 3],), [1, 1], [1, 1], [1, 1], 1, False,
                    False, True)  # fmt: skip
    trace.kernel("Memset (Device)", 0.5, conv, "gpu_memset", bytes=64)
    trace.kernel("void cudnn::convolve()", 4.0, conv)
    trace.ran("void silu_and_mul", 2.0, "_C::silu_and_mul", ([4, 64],), ([4, 128],))
    trace.ran("void rms_norm", 2.0, "_C::rms_norm", ([4, 64],), ([4, 64],), ([64],), 1e-6)
    trace.ran("void fused_add_rms_norm", 2.0, "_C::fused_add_rms_norm", ([4, 64],), ([4, 64],), ([64],), 1e-6)
    trace.ran("void cache", 2.0, "_C_cache_ops::reshape_and_cache_flash", ([4, 2, 32],), ([4, 2, 32],),
              ([9, 16, 2, 32],), ([9, 16, 2, 32],), ([4], LONG))  # fmt: skip
    trace.ran("void group_norm", 2.0, "aten::native_group_norm", ([2, 8, 4, 4],), ([8],), ([8],), 2, 8, 16, 4, 1e-5)
    trace.ran("void index_elementwise", 2.0, "aten::index", ([4, 64],), None)
    whole = compare_trace(trace.save(tmp_path / "trace.json"), MACHINE, kernels="pytorch")
    ours = {pair.operator: pair.ours for pair in whole.pairs}
    own = "dtype=bf16 out=bf16"
    channels = f"pointwise n=256 chain=bias+bias cols=8 {own}"
    assert ours == {
        "aten::cudnn_convolution": f"conv2d n=2 c=8 h=16 w=16 k=16 r=3 s=3 pad=1 {own} acc=fp32",
        "_C::silu_and_mul": f"pointwise n=256 chain=silu+mul {own}",
        "_C::rms_norm": f"rmsnorm rows=4 cols=64 {own}",
        "_C::fused_add_rms_norm": f"rmsnorm rows=4 cols=64 {own} add=1",
        "_C_cache_ops::reshape_and_cache_flash": f"copy n=512 {own}",
        "aten::native_group_norm": f"layernorm rows=8 cols=32 {own} affine=0 + {channels}",
    }
    conv_pair = next(pair for pair in whole.pairs if "conv" in pair.operator)
    assert (conv_pair.measured_us, conv_pair.kernels[0]) == (4.5, "void cudnn::convolve()")
    assert [(one.operator, one.why) for one in whole.unpaired] == [
        ("aten::index", "no kernel of this meaning is known")
    ]


def test_operands_in_another_order_are_read_as_they_lie(tmp_path: Path) -> None:
    """A copy of turned heads, a sum with a transpose, a product in an order that all share, and one beside a row."""
    heads, turned, matrix = [2, 16, 64, 128], [64 * 16 * 128, 128, 16 * 128, 1], [512, 256]
    trace = Trace()
    trace.ran("void elementwise_kernel", 3.0, "aten::copy_", (heads,), (heads, BF16, turned))
    trace.ran("void elementwise_kernel", 3.0, "aten::add", (matrix,), (matrix, BF16, [1, 512]), 1)
    trace.ran("void vectorized_elementwise_kernel", 3.0, "aten::mul", (heads, BF16, turned), (heads, BF16, turned))
    trace.ran("void elementwise_kernel", 3.0, "aten::addcmul", (matrix,), (matrix, BF16, [1, 512]), ([256],))
    trace.ran("void elementwise_kernel", 3.0, "aten::copy_", (heads,), (heads,))
    whole = compare_trace(trace.save(tmp_path / "trace.json"), MACHINE, kernels="pytorch")
    own = "dtype=bf16 out=bf16"
    assert sorted(pair.ours for pair in whole.pairs) == [
        f"add n=131072 shape=512x256 layout=ab+ba {own}",
        f"copy n=262144 {own}",
        f"copy n=262144 shape=2x16x64x128 layout=acbd {own}",
        f"mul n=262144 {own}",
        f"pointwise n=131072 chain=add+mul shape=512x256 layout=ab+ba+b {own}",
    ]
    times = {pair.ours.partition(" dtype")[0]: pair.simulated_us for pair in whole.pairs}
    assert times["copy n=262144 shape=2x16x64x128 layout=acbd"] > 1.1 * times["copy n=262144"]


def test_pytorchs_own_kernels_stand_beside_those_of_the_trace(tmp_path: Path) -> None:
    trace = Trace()
    rows = [512, 1024]
    trace.ran("void vectorized_layer_norm", 3.0, "aten::native_layer_norm", (rows,), [1024], ([1024],), ([1024],), 1e-5)
    trace.ran("void softmax_warp_forward", 3.0, "aten::_softmax", (rows,), -1, False)
    path = trace.save(tmp_path / "trace.json")
    best, own = ({pair.operator: pair.schedule for pair in compare_trace(path, MACHINE, kernels=kernels).pairs}
                 for kernels in ("best", "pytorch"))  # fmt: skip
    assert all(schedule.startswith("torch") for schedule in own.values())
    assert best != own
    with pytest.raises(InputError, match="kernels='fast': must be one of best, pytorch"):
        compare_trace(path, MACHINE, kernels="fast")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace()
    trace.ran(EACH.format("silu", "BFloat16"), 2.4, "aten::silu", ([64, 64],))
    path = str(trace.save(tmp_path / "one.json"))
    assert main(["validate", path, "--arch", MACHINE, "--clock", "1.2 GHz", "--json"]) == 0
    slow = json.loads(capsys.readouterr().out)["pairs"][0]
    assert main(["validate", path, "--arch", MACHINE, "--json"]) == 0
    assert slow["simulated_us"] > json.loads(capsys.readouterr().out)["pairs"][0]["simulated_us"]
    for words, told in (
        ((), "needs one machine, such as --arch h100-sxm"),
        (("--arch", "tpu-v4"), "tpu-v4 is of family tpu"),
        (("--arch", MACHINE, "--op", "gemm"), "--op goes with rows of measurements"),
    ):
        assert main(["validate", path, *words]) == 2
        assert told in capsys.readouterr().err
    assert main(["validate", "--set", "sm.count=2"]) == 2
    assert "--set goes with a TRACE" in capsys.readouterr().err


def test_a_packed_trace_is_read_within_a_limit_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, packed = tmp_path / "wrong.json.gz", gzip.compress(b"[" + b" " * 100_000 + b"]")
    monkeypatch.setattr(kineto, "MOST_BYTES", 50_000)
    path.write_bytes(packed)
    with pytest.raises(InputError, match="unpacks to more than 48 KiB"):
        kineto.read_trace(path)
    for at in range(len(packed)):
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 64]) + packed[at + 1 :])
        with pytest.raises(InputError, match="trace"):
            kineto.read_trace(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no json", "is no trace of PyTorch's profiler"),
        ("\x1f\x8b no archive", "is no trace of PyTorch's profiler"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "long"}]}', "is no trace of PyTorch's profiler"),
        ('{"traceEvents": 3}', "is no trace of PyTorch's profiler"),
        ('{"traceEvents": []}', "has no kernels of a device"),
        ('[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]', "profile with record_shapes=True"),
    ],
)
def test_files_that_are_no_such_traces(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=told):
        read_trace(path)
