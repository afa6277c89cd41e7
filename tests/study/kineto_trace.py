"""Traces as torch.profiler exports them with record_shapes=True, of a decoder's layer in bf16 on one of two devices."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BF16, LONG = "c10::BFloat16", "long int"


def strides_of(shape: Sequence[int]) -> list[int]:
    found = [1]
    for size in reversed(shape[1:]):
        found.insert(0, found[0] * size)
    return found if shape else []


class Trace:
    """Events of a profile: operators on a thread, what they launch, and what ran."""

    def __init__(self, ids: bool = True) -> None:
        self.ids = ids  # whether kernels have an `External id`, as newer profilers write it
        self.events: list[dict[str, Any]] = []
        self.time = self.last = 1000.0
        self.number = 0

    def op(self, name: str, *inputs: Any, dur: float = 20.0, within: float = 0.0) -> int:
        """An operator's call: shapes (with a format or strides after them) are tensors, anything else is written as is.
        within: it begins so much after the last one did, which goes on. Its External id."""
        self.number += 1
        dims: list[Any] = []
        kinds: list[Any] = []
        strides: list[Any] = []
        concrete: list[str] = []
        for one in inputs:
            shape, kind, own = (*one, *(BF16, None)[len(one) - 1 :]) if isinstance(one, tuple) else ([], "", [])
            listed = bool(shape) and isinstance(shape[0], list)
            tensor = isinstance(one, tuple)
            dims.append(shape)
            kinds.append("TensorList" if listed else kind if tensor else "ScalarList" if isinstance(one, list) else
                         "Scalar" if one is not None else "")  # fmt: skip
            strides.append([] if listed or not tensor else own or strides_of(shape))
            concrete.append("" if tensor or one is None else str(one))
        args = {"External id": self.number, "Record function id": 0, "Concrete Inputs": concrete, "Input type": kinds,
                "Input Strides": strides, "Input Dims": dims, "Ev Idx": self.number}  # fmt: skip
        start = self.last + within if within else self.time
        self.last = start
        self.events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": start, "dur": dur,
                            "args": args})  # fmt: skip
        self.time = max(self.time, start + dur)
        return self.number

    def kernel(self, name: str, us: float, op: int, cat: str = "kernel", **args: Any) -> None:
        """What an operator launches; it runs later, on the device."""
        self.number += 1
        ids = {"External id": op} if self.ids and op else {}
        mother = next((event for event in self.events if event.get("args", {}).get("External id") == op), None)
        at = mother["ts"] + 0.5 * mother["dur"] if mother else self.time + 0.1
        launch = {"correlation": self.number, **ids}
        self.events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": at,
                            "dur": 1.0, "args": launch})  # fmt: skip
        self.events.append({"ph": "s", "id": self.number, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 7, "ts": at})
        start = max([at + 5.0, *(e["ts"] + e["dur"] for e in self.events if e["pid"] == 0)])
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": us,
                            "args": {"device": 0, "stream": 7, "correlation": self.number, **ids, **args}})  # fmt: skip

    def ran(self, kernel: str, us: float, name: str, *inputs: Any) -> None:
        """An operator and its one kernel."""
        self.kernel(kernel, us, self.op(name, *inputs))

    def save(self, path: Path) -> Path:
        document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
                    "record_shapes": 1, "traceEvents": self.events}  # fmt: skip
        text = json.dumps(document).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


GEMM = "nvjet_tst_128x128_64x6_2x1_v_bz_coopA_TNN"
EACH = "void at::native::vectorized_elementwise_kernel<8, at::native::{}>(int, at::native::{})"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def decoder_layer(trace: Trace, tokens: int = 256, hidden: int = 512, heads: int = 4, ffn: int = 1024) -> None:
    """One layer of a Llama as Hugging Face writes it, in eager mode."""
    depth = hidden // heads
    x, wide = [1, tokens, hidden], [1, tokens, ffn]

    def rms_norm() -> None:
        kernel = EACH.format("bfloat16_copy_kernel_cuda", "BFloat16")
        copied = trace.op("aten::to", (x,), 6, False, False, None, dur=30.0)
        inner = trace.op("aten::copy_", (x, "float"), (x,), False, dur=10.0, within=5.0)
        trace.kernel(kernel, 2.1, inner)
        assert copied < inner
        trace.ran(EACH.format("pow", "float"), 2.4, "aten::pow", (x, "float"), 2)
        trace.ran("void at::native::reduce_kernel<512, 1, float>", 3.9, "aten::mean", (x, "float"), [-1], True, None)
        trace.ran(EACH.format("add", "float"), 1.9, "aten::add", ([1, tokens, 1], "float"), 1e-05, 1)
        trace.ran(EACH.format("rsqrt", "float"), 1.9, "aten::rsqrt", ([1, tokens, 1], "float"))
        trace.ran(EACH.format("mul", "float"), 2.6, "aten::mul", (x, "float"), ([1, tokens, 1], "float"))
        trace.ran(kernel, 2.1, "aten::copy_", (x,), (x, "float"), False)
        trace.ran(EACH.format("mul", "BFloat16"), 2.2, "aten::mul", ([hidden],), (x,))

    def linear(inputs: int, outputs: int, us: float) -> None:
        trace.op("aten::linear", ([1, tokens, inputs],), ([outputs, inputs],), None, dur=40.0)
        weight = ([inputs, outputs], BF16, [1, inputs])
        trace.kernel(GEMM, us, trace.op("aten::mm", ([tokens, inputs],), weight, dur=15.0, within=5.0))

    def all_reduce() -> None:
        op = trace.op("c10d::allreduce_", ([[tokens, hidden]],), "", "", None, False, -1, dur=25.0)
        sizes: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": tokens * hidden,
                     "Out msg nelems": tokens * hidden, "Group size": 2, "dtype": "BFloat16"}  # fmt: skip
        trace.kernel(NCCL, 21.0, op, **sizes)

    rms_norm()
    for _ in range(3):
        linear(hidden, hidden, 5.8)
    heads_first = ([1, heads, tokens, depth], BF16, [hidden * tokens, depth, hidden, 1])
    for _ in range(2):  # rotary positions of queries and of keys
        trace.ran(EACH.format("neg", "BFloat16"), 2.0, "aten::neg", ([1, heads, tokens, depth // 2],))
        half = [1, heads, tokens, depth // 2]
        trace.ran("void at::native::CatArrayBatchedCopy<>", 3.0, "aten::cat", ([half, half],), -1)
        trace.ran(EACH.format("mul", "BFloat16"), 2.4, "aten::mul", heads_first, ([1, 1, tokens, depth],))
        trace.ran(EACH.format("add", "BFloat16"), 2.2, "aten::add", heads_first, heads_first, 1)
    trace.op("aten::scaled_dot_product_attention", *[heads_first] * 3, None, 0.0, True, None, False, dur=60.0)
    flash = trace.op("aten::_scaled_dot_product_flash_attention", *[heads_first] * 3, 0.0, True, False, None, dur=40.0,
                     within=5.0)  # fmt: skip
    positions_first = ([1, tokens, heads, depth],)
    inner = trace.op("aten::_flash_attention_forward", *[positions_first] * 3, None, None, tokens, tokens, 0.0, True,
                     False, None, dur=20.0, within=5.0)  # fmt: skip
    trace.kernel("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", 12.0, inner)
    assert flash < inner
    linear(hidden, hidden, 5.8)
    all_reduce()
    trace.ran(EACH.format("add", "BFloat16"), 2.2, "aten::add", (x,), (x,), 1)
    rms_norm()
    linear(hidden, ffn, 7.4)
    trace.ran(EACH.format("silu", "BFloat16"), 2.4, "aten::silu", (wide,))
    linear(hidden, ffn, 7.4)
    trace.ran(EACH.format("mul", "BFloat16"), 2.6, "aten::mul", (wide,), (wide,))
    linear(ffn, hidden, 7.9)
    all_reduce()
    trace.ran(EACH.format("add", "BFloat16"), 2.2, "aten::add", (x,), (x,), 1)


def model(path: Path, layers: int = 1, *, ids: bool = True) -> Path:
    """Embedding, layers, a layer norm, head and softmax; beside them what nothing here stands beside."""
    trace = Trace(ids)
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 1.4, trace.op("aten::copy_", ([256], LONG), ([256], LONG), True),
                 "gpu_memcpy", bytes=2048)  # fmt: skip
    trace.ran("void at::native::index_elementwise", 2.5, "aten::embedding", ([32000, 512],), ([1, 256], LONG), -1,
              False, False)  # fmt: skip
    for _ in range(layers):
        decoder_layer(trace)
    x = [1, 256, 512]
    trace.ran("void at::native::vectorized_layer_norm_kernel", 3.4, "aten::native_layer_norm", (x,), [512], ([512],),
              ([512],), 1e-05)  # fmt: skip
    bias = ([1000],)
    trace.ran(GEMM, 6.0, "aten::addmm", bias, ([256, 512],), ([512, 1000], BF16, [1, 512]), 1, 1)
    trace.ran("void softmax_warp_forward", 2.9, "aten::_softmax", ([256, 1000],), -1, False)
    trace.ran("triton_poi_fused_add_mul_0", 1.5, "triton_poi_fused_add_mul_0", ([256, 512],), ([256, 512],), 131072)
    trace.ran("void mine::secret_kernel(float*)", 1.0, "mine::secret", ([256, 512],))
    trace.kernel("void unknown_launcher_kernel()", 0.5, 0)
    return trace.save(path)
