#!/usr/bin/env python3
"""Measures operators on a real GPU through PyTorch and writes rows of the reference schema of tilewave.

    python measure_gpu.py --out rows.csv                                  # the default set, cold and warm L2
    python measure_gpu.py --out rows.csv --op gemm softmax --dtype bf16
    python measure_gpu.py --out rows.csv "gemm m=4096 n=4096 k=4096" "attention batch=4 heads=16 seq=4096 head_dim=128"
    tilewave validate --reference rows.csv                                # simulated against measured

The file needs nothing but PyTorch, so it can be copied to the machine with the GPU. It changes no setting of the card
(no clocks, no power limit, no persistence), holds at most `--memory-limit` of its memory, ends by `--time-limit`, and
writes every row as soon as it has it, so it may be stopped at any time.

How it measures. Operands are normal random numbers. `cold`: every call takes the next of several sets of operands and
results, which together exceed the L2 several times or serve one batch only, and before each batch something larger than
the L2 is read. `warm`: the same set each time. A batch of calls is queued behind a
kernel that only waits, so that the host is out of the way; device events around each call give one time each
(scope `event`), or events around the whole batch give the mean call (scope `stream`). Scope `graph`: `--layers` calls
on the same first operand, each with others of its own, are captured in a CUDA graph, and events around `--replays`
replays after three give the mean call. Scope `kernel`: CUPTI's durations of the kernels of a call, through PyTorch's
profiler, with their names and launches. The median of all batches is written, with the 10th and 90th percentile
beside it. Where CuPy is installed, `core_mhz` is the mean core clock during the batches, by clock64 and globaltimer.
Clocks, power and temperature are read by NVML (nvidia-ml-py), or else by nvidia-smi, while more of the same calls
run. On the CPU (`--device cpu`, to try the script) calls are timed by the host's clock.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

SCHEMA = (
    *("machine", "op", "dtype", "shape", "schedule", "time_us", "scope", "overhead_us", "l2", "quality", "source"),
    "url",
)
"""Columns of the reference schema, in its order."""

CARD = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
"""What nvidia-smi is asked for, MHz, watts and degrees Celsius."""

LAUNCH = ("kernels", "grid", "block", "registers", "shared_bytes")
"""What the profiler says of the kernels of a call, by kernel in their order, joined by +."""

EXTRA = (
    *("samples", "p10_us", "p90_us", "sets", "data", "core_mhz", "device", "driver", "cuda", "torch", "date"),
    *(*CARD, *LAUNCH),
)
"""Columns that follow the schema's; readers of the schema ignore them."""

PRESETS = {
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100-sxm2",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA H20": "h20",
    "NVIDIA H800": "h800-sxm",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200 NVL": "h200-nvl",
    "Tesla V100-PCIE-32GB": "v100-pcie",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080ti",
    "NVIDIA TITAN RTX": "titan-rtx",
    "NVIDIA A10": "a10",
    "NVIDIA A30": "a30",
    "NVIDIA A40": "a40",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA L4": "l4",
    "NVIDIA L40": "l40",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GH200 480GB": "gh200-96gb",
}
"""Name of a machine description by the name that the driver gives the device."""

DTYPE_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
TORCH_DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
OF_PRODUCTS = ("tf32", "fp8")
"""Formats that only products have; the result of fp8 is bf16."""

SCOPES = ("event", "stream", "graph", "kernel")
DATA = ("normal", "zeros", "half_zeros")
"""Values of operands; half_zeros: all but the first are zeros."""

UNARY = ("scale", "gelu", "silu", "exp", "sin", "sqrt", "log", "sigmoid")
KEYS: dict[str, dict[str, int | str | None]] = {
    "gemm": {"m": None, "n": None, "k": None, "batch": 1, "ta": "N", "tb": "N"},
    "softmax": {"rows": None, "cols": None},
    "layernorm": {"rows": None, "cols": None},
    "rmsnorm": {"rows": None, "cols": None},
    "transpose": {"rows": None, "cols": None},
    "sum": {"n": None},
    "copy": {"n": None},
    "fill": {"n": None},
    "add": {"n": None},
    **{word: {"n": None} for word in UNARY},
    "attention": {
        **{"batch": None, "heads": None, "kv_heads": 0, "seq": 0, "seq_q": 0, "seq_k": 0, "head_dim": None},
        "causal": 0,
    },
}
"""Keys of each operator with their defaults; None: must be given. 0 in attention: as `heads` or `seq`."""

ATTENTION_SCHEDULES = {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "unfused": "MATH"}
"""Schedule names of the schema and PyTorch's backend of each."""

POINTWISE_SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 27)
DEFAULT_SET = (
    *(f"gemm m={n} n={n} k={n}" for n in (256, 512, 1024, 2048, 4096, 8192)),
    *(f"gemm m={m} n=4096 k=4096" for m in (1, 16, 64, 128)),
    "gemm m=1024 n=1024 k=64 batch=64",
    "gemm m=4096 n=4096 k=4096 tb=T",
    *(f"softmax rows=16384 cols={cols}" for cols in (128, 512, 1024, 4096, 16384)),
    *(f"{norm} rows=16384 cols={cols}" for norm in ("layernorm", "rmsnorm") for cols in (1024, 4096, 8192)),
    *(f"{word} n={n}" for word in ("copy", "add", "scale", "gelu", "exp") for n in POINTWISE_SIZES),
    *(f"sum n={n}" for n in (1 << 20, 1 << 27)),
    "transpose rows=8192 cols=8192",
    *(
        f"attention batch={16384 // seq} heads=16 seq={seq} head_dim=128 causal={causal}"
        for seq in (1024, 4096, 16384)
        for causal in (0, 1)
    ),
)

ROTATION = 4
"""Sets of operands of a cold measurement exceed the L2 by this factor, unless each is used only once a batch."""

FLUSH = 2
"""What is read before a cold batch exceeds the L2 by this factor."""

CALLS = 32
"""Calls of one batch."""

WAIT_CYCLES = 200_000
"""Core cycles of the waiting kernel a queued call: more than the host takes for any call here."""

ANSWER_S = 20.0
"""How long nvidia-smi may take, seconds."""


class Refusal(Exception):
    """Something that a person can put right; the message says how."""


@dataclass(frozen=True)
class Case:
    """One operator to measure."""

    op: str
    dtype: str
    keys: dict[str, Any]

    @property
    def shape(self) -> str:
        """The shape column: keys that differ from their defaults, and those without one."""
        keys, found = KEYS[self.op], self.keys
        return " ".join(f"{key}={value}" for key, value in found.items() if keys[key] is None or value != keys[key])

    @property
    def extents(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of operands and result."""
        k = self.keys
        match self.op:
            case "gemm":
                a = (k["m"], k["k"]) if k["ta"] == "N" else (k["k"], k["m"])
                b = (k["k"], k["n"]) if k["tb"] == "N" else (k["n"], k["k"])
                return tuple((k["batch"], *shape) for shape in (a, b, (k["m"], k["n"])))
            case "attention":
                q = (k["batch"], k["heads"], k["seq_q"], k["head_dim"])
                kv = (k["batch"], k["kv_heads"], k["seq_k"], k["head_dim"])
                return (q, kv, kv, q)
            case "transpose":
                return ((k["rows"], k["cols"]), (k["cols"], k["rows"]))
            case "sum":
                return ((k["n"],), (1,))
            case "add":
                return ((k["n"],),) * 3
            case "fill":
                return ((k["n"],),)
            case "softmax" | "layernorm" | "rmsnorm":
                return ((k["rows"], k["cols"]),) * 2
            case _:
                return ((k["n"],),) * 2

    @property
    def formats(self) -> tuple[str, ...]:
        """Number format of each operand and of the result."""
        return (*(self.dtype for _ in self.extents[1:]), "bf16" if self.dtype == "fp8" else self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of one set of operands and result."""
        return sum(DTYPE_BYTES[f] * math.prod(shape) for f, shape in zip(self.formats, self.extents, strict=True))

    def __str__(self) -> str:
        return f"{self.op} {self.shape} {self.dtype}"


def parse_case(text: str, dtype: str) -> Case:
    """The case of `OP key=value ...`; a `dtype=` in the text wins."""
    word, *pairs = text.split() or [""]
    if word not in KEYS:
        raise Refusal(f"unknown operator {word!r}, one of {', '.join(KEYS)}")
    keys: dict[str, Any] = dict(KEYS[word])
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key == "dtype":
            dtype = value
        elif key not in keys:
            raise Refusal(f"{word}: unknown key {key!r}, one of {', '.join(keys)}, dtype")
        elif key in ("ta", "tb"):
            if value not in ("N", "T"):
                raise Refusal(f"{word} {pair}: must be N or T")
            keys[key] = value
        else:
            least = 0 if key == "causal" else 1
            if not value.isdigit() or int(value) < least:
                raise Refusal(f"{word} {pair}: must be a whole number of at least {least}")
            keys[key] = int(value)
    if word == "attention":
        seq = keys.pop("seq")
        keys["kv_heads"] = keys["kv_heads"] or keys["heads"]
        keys["seq_q"], keys["seq_k"] = keys["seq_q"] or seq or None, keys["seq_k"] or seq or None
        if keys["causal"] and keys["seq_q"] != keys["seq_k"]:
            raise Refusal(f"{text}: PyTorch's causal mask starts at the first key; make seq_q and seq_k equal")
    missing = [key for key, value in keys.items() if value is None]
    if missing:
        raise Refusal(f"{text}: {', '.join(missing)} missing")
    if dtype not in DTYPE_BYTES or (dtype in OF_PRODUCTS and word != "gemm"):
        allowed = [name for name in DTYPE_BYTES if name not in OF_PRODUCTS or word == "gemm"]
        raise Refusal(f"{text}: dtype {dtype} must be one of {', '.join(allowed)}")
    if dtype == "fp8" and (keys["ta"], keys["tb"], keys["batch"]) != ("N", "T", 1):
        raise Refusal(f"{text}: PyTorch multiplies fp8 with tb=T, ta=N and without batch only")
    return Case(word, dtype, keys)


def cases_of(workloads: Sequence[str], ops: Sequence[str], dtypes: Sequence[str]) -> list[Case]:
    """What to measure: `workloads`, or the default set, in each of `dtypes`, only operators `ops` if any are given."""
    found: list[Case] = []
    for text in workloads or DEFAULT_SET:
        word = text.split()[0] if text.split() else ""
        if ops and word not in ops:
            continue
        for dtype in dtypes:
            if dtype in OF_PRODUCTS and word != "gemm":
                continue
            case = parse_case(text, dtype)
            if case not in found:
                found.append(case)
    if not found:
        raise Refusal(f"no workload is left; operators are {', '.join(KEYS)}")
    return found


def rotation(case: Case, l2: str, l2_bytes: int, memory_bytes: int) -> int:
    """Sets of operands that take turns; Refusal where the memory limit does not hold what is needed."""
    wanted = 1 if l2 == "warm" else min(CALLS, 1 + -(-ROTATION * l2_bytes // case.size_bytes))
    # One set more for results that are made anew while the old ones are still held, and workspace of the library.
    need = (wanted + 1) * case.size_bytes + FLUSH * l2_bytes
    if need > memory_bytes:
        raise Refusal(f"{case} {l2} needs {need / 2**30:.1f} GiB, --memory-limit is {memory_bytes / 2**30:.1f} GiB")
    return wanted


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def machine_of(device: str) -> str:
    """Name of the machine description of a device; of one that has none, its own name, which `validate` then skips."""
    return PRESETS.get(device, device.lower().replace(" ", "-"))


# ---------------------------------------------------------------------------------------------------- PyTorch


def operation(torch: Any, device: Any, case: Case, schedule: str) -> Callable[[list[Any]], Any]:
    """The call that is measured. It takes one set of tensors, the last of which is for the result.

    Where PyTorch offers no `out`, the call makes its result anew, and the caller holds it.
    """
    functional = torch.nn.functional
    match case.op:
        case "gemm":
            turned = [case.keys["ta"] == "T", case.keys["tb"] == "T"]
            single = case.keys["batch"] == 1

            if case.dtype == "fp8":
                one = torch.ones((), device=device)
                options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
                return lambda t: torch._scaled_mm(t[0][0], t[1][0].mT, **options)

            def gemm(tensors: list[Any]) -> Any:
                a, b = (t.mT if turn else t for t, turn in zip(tensors, turned, strict=False))
                c = tensors[2]
                return torch.mm(a[0], b[0], out=c[0]) if single else torch.bmm(a, b, out=c)

            return gemm
        case "softmax":
            return lambda t: torch.softmax(t[0], -1, out=t[1])
        case "layernorm" | "rmsnorm":
            cols = (case.keys["cols"],)
            weight = torch.ones(cols, dtype=getattr(torch, TORCH_DTYPES[case.dtype]), device=device)
            bias = torch.zeros_like(weight)
            if case.op == "layernorm":
                return lambda t: functional.layer_norm(t[0], cols, weight, bias)
            return lambda t: functional.rms_norm(t[0], cols, weight)
        case "transpose":
            return lambda t: t[1].copy_(t[0].mT)
        case "sum":
            return lambda t: torch.sum(t[0])
        case "copy":
            return lambda t: t[1].copy_(t[0])
        case "fill":
            return lambda t: t[0].fill_(1.0)
        case "add":
            return lambda t: torch.add(t[0], t[1], out=t[2])
        case "scale":
            return lambda t: torch.mul(t[0], 1.5, out=t[1])
        case "gelu" | "silu":
            function = getattr(functional, case.op)
            return lambda t: function(t[0])
        case "attention":
            try:
                from torch.nn.attention import SDPBackend, sdpa_kernel

                backend = getattr(SDPBackend, ATTENTION_SCHEDULES[schedule])
            except (ImportError, AttributeError):
                raise Refusal(f"{case} {schedule}: PyTorch {torch.__version__} has no such backend") from None
            reduced = getattr(torch.backends.cuda, "allow_fp16_bf16_reduction_math_sdp", None)
            if reduced is not None:  # else separate kernels convert fp16 and bf16 to fp32 first (since PyTorch 2.5)
                reduced(True)
            mask: dict[str, Any] = {"is_causal": bool(case.keys["causal"])}
            if case.keys["kv_heads"] != case.keys["heads"]:
                mask["enable_gqa"] = True

            def attention(t: list[Any]) -> Any:
                with sdpa_kernel(backend):
                    return functional.scaled_dot_product_attention(t[0], t[1], t[2], **mask)

            return attention
        case _:
            function = getattr(torch, case.op)
            return lambda t: function(t[0], out=t[1])


class Rotation:
    """Sets of tensors that take turns, so that a call does not find in the L2 what the call before left there.

    flush: a tensor that is read before each batch, which leaves the L2 full of clean lines; None for a warm L2.
    data: values of the operands, one of DATA. one_input: all sets share their first operand.
    """

    def __init__(
        self, torch: Any, device: Any, case: Case, call: Callable[[list[Any]], Any], sets: int, flush: Any,
        data: str = "normal", one_input: bool = False,
    ) -> None:  # fmt: skip
        self._call = call
        self._sets = [_tensors(torch, device, case, data) for _ in range(sets)]
        if one_input:
            for tensors in self._sets:
                tensors[0] = self._sets[0][0]
        self._results: list[Any] = [None] * sets
        self._turn = 0
        self._flush = flush

    def begin(self) -> None:
        """What comes before a batch."""
        if self._flush is not None:
            self._flush.sum()

    def __call__(self) -> None:
        """One call on the next set."""
        self._results[self._turn] = self._call(self._sets[self._turn])
        self._turn = (self._turn + 1) % len(self._sets)

    def __len__(self) -> int:
        return len(self._sets)


def _tensors(torch: Any, device: Any, case: Case, data: str) -> list[Any]:
    """One set of operands with values as `data` says, and the result."""
    tensors = []
    for place, (shape, name) in enumerate(zip(case.extents, case.formats, strict=True)):
        kind = getattr(torch, TORCH_DTYPES[name])
        if data == "zeros" or (data == "half_zeros" and place):
            tensors.append(torch.zeros(shape, device=device, dtype=kind))
        else:
            tensors.append(torch.randn(shape, device=device, dtype=torch.bfloat16 if name == "fp8" else kind).to(kind))
    if case.op in ("sqrt", "log"):
        tensors[0].abs_()
    return tensors


class CoreClock:
    """Mean core clock between two points of the stream, by clock64 and globaltimer of one SM; needs CuPy."""

    SOURCE = r"""
    extern "C" __global__ void stamp(unsigned long long *out) {
        unsigned long long time, clock, sm;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
        asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
        asm volatile("{ .reg .u32 s; mov.u32 s, %%smid; cvt.u64.u32 %0, s; }" : "=l"(sm));
        out[0] = time; out[1] = clock; out[2] = sm;
    }
    """

    def __init__(self, torch: Any, device: Any) -> None:
        import cupy  # type: ignore[import-not-found, unused-ignore]

        self._kernel = cupy.RawKernel(self.SOURCE, "stamp")
        self._stream = lambda: cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        self._marks = torch.zeros((2, 3), dtype=torch.int64, device=device)
        self.readings_mhz: list[float] = []

    def mark(self, place: int) -> None:
        """Queues the begin (0) or end (1) of what is measured."""
        with self._stream():
            self._kernel((1,), (1,), (self._marks[place].data_ptr(),))

    def read(self) -> None:
        """Keeps what the marks say, unless they ran on different SMs."""
        (begin_ns, begin, sm), (end_ns, end, other) = self._marks.tolist()
        if sm == other and end_ns > begin_ns:
            self.readings_mhz.append(1000 * (end - begin) / (end_ns - begin_ns))


def core_clock(torch: Any, device: Any) -> CoreClock | None:
    """A reader of the core clock; None without CuPy."""
    try:
        return CoreClock(torch, device)
    except Exception as error:  # CuPy may miss, or its compiler; times can be measured without it
        _say(f"core_mhz stays empty: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        return None


def cuda_batch(torch: Any, calls: Rotation, scope: str, clock: CoreClock | None = None) -> list[float]:
    """Times of one batch of calls in microseconds: each call's for `event`, the mean one for `stream`."""
    for cycles in (WAIT_CYCLES * CALLS * 4**i for i in range(4)):
        stamps = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1 if scope == "event" else 2)]
        calls.begin()
        torch.cuda._sleep(cycles)  # PyTorch's own benchmarks fill the stream with it
        if clock:
            clock.mark(0)
        stamps[0].record()
        for i in range(CALLS):
            calls()
            if scope == "event":
                stamps[i + 1].record()
        if scope == "stream":
            stamps[1].record()
        ahead = not stamps[0].query()
        if clock:
            clock.mark(1)
        torch.cuda.synchronize()
        if clock:
            clock.read()
        if not ahead:  # the host was slower than the wait, and the device may have run dry
            continue
        if scope == "stream":
            return [1000 * stamps[0].elapsed_time(stamps[1]) / CALLS]
        return [1000 * a.elapsed_time(b) for a, b in itertools.pairwise(stamps)]
    raise Refusal("the host is too slow to keep the device busy; something else runs on it")


def captured(torch: Any, calls: Rotation, layers: int) -> Any:
    """A CUDA graph of `layers` calls in a row."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # libraries set themselves up outside the graph
        for _ in range(layers):
            calls()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(layers):
            calls()
    return graph


def graph_batch(torch: Any, graph: Any, layers: int, replays: int, clock: CoreClock | None = None) -> list[float]:
    """Mean time of a call in `replays` replays of a graph of `layers` calls, after three others, microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    for _ in range(3):
        graph.replay()
    if clock:
        clock.mark(0)
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    if clock:
        clock.mark(1)
    torch.cuda.synchronize()
    if clock:
        clock.read()
    return [1000 * begin.elapsed_time(end) / (layers * replays)]


def kernels_of(trace: dict[str, Any], calls: int) -> tuple[list[float], dict[str, str]]:
    """From a trace of `calls` alike calls: durations of the kernels of each in microseconds, and columns LAUNCH.

    Refusal where the kernels cannot be told apart by call.
    """
    events = [e for e in trace.get("traceEvents", []) if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    events.sort(key=lambda event: float(event["ts"]))
    each, rest = divmod(len(events), calls)
    if rest or not each:
        raise Refusal(f"the profiler saw {len(events)} kernels of {calls} calls")
    groups = [events[i : i + each] for i in range(0, len(events), each)]
    columns = {"kernels": [e["name"] for e in groups[-1]]}
    for column, key in (
        ("grid", "grid"), ("block", "block"), ("registers", "registers per thread"), ("shared_bytes", "shared memory"),
    ):  # fmt: skip
        found = [e.get("args", {}).get(key, "") for e in groups[-1]]
        columns[column] = ["x".join(map(str, value)) if isinstance(value, list) else str(value) for value in found]
    return [sum(float(e["dur"]) for e in group) for group in groups], {k: " + ".join(v) for k, v in columns.items()}


PROFILED = 8
"""Calls of a batch of scope `kernel`."""


def kernel_batch(torch: Any, calls: Rotation) -> tuple[list[float], dict[str, str]]:
    """Durations of the kernels of each call of a batch in microseconds, and what was launched."""
    from torch.profiler import ProfilerActivity, profile

    calls.begin()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            calls()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            return kernels_of(json.load(file), PROFILED)


def cpu_batch(calls: Rotation) -> list[float]:
    """Times of a batch of calls by the host's clock, microseconds."""
    times = []
    calls.begin()
    for _ in range(CALLS):
        begin = time.perf_counter()
        calls()
        times.append(1e6 * (time.perf_counter() - begin))
    return times


BUSY_S = 0.06
"""How long a card is busy before NVML is asked."""


def read_nvml(uuid: str, keep_busy: Callable[[], None]) -> dict[str, str]:
    """As `read_card` by NVML, which answers at once; nothing if nvidia-ml-py is not installed or does not answer."""
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        end_s = time.monotonic() + BUSY_S
        while time.monotonic() < end_s:
            keep_busy()
        version = pynvml.nvmlSystemGetDriverVersion()
        return {
            "driver_version": version if isinstance(version, str) else version.decode(),
            "clocks.sm": str(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)),
            "clocks.max.sm": str(pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM)),
            "clocks.mem": str(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM)),
            "power.draw": f"{pynvml.nvmlDeviceGetPowerUsage(card) / 1000:.1f}",
            "power.limit": f"{pynvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000:.0f}",
            "temperature.gpu": str(pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU)),
        }
    except Exception:  # not installed, or a board that does not answer one of them
        return {}


def read_card(uuid: str, keep_busy: Callable[[], None]) -> dict[str, str]:
    """Clocks, power, temperature and driver version of the card while `keep_busy` is called again and again; nothing if
    nvidia-smi does not answer."""
    names = ("driver_version", *CARD)
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", "-i", uuid]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    with process:
        end_s = time.monotonic() + ANSWER_S
        while process.poll() is None:
            keep_busy()
            if time.monotonic() > end_s:
                process.kill()
        answer = process.stdout.read() if process.stdout else ""
    fields = [field.strip() for field in answer.strip().split(",")]
    return dict(zip(names, fields, strict=True)) if not process.returncode and len(fields) == len(names) else {}


@dataclass
class Bench:
    """One device under measurement."""

    torch: Any
    device: Any
    machine: str
    name: str
    uuid: str
    l2_bytes: int
    memory_bytes: int
    source: str
    case_s: float
    deadline_s: float
    data: str = "normal"
    layers: int = 1
    replays: int = 6
    clock: CoreClock | None = None

    def rows(self, case: Case, l2: str, scope: str) -> Iterable[dict[str, Any]]:
        """A row for each way in which PyTorch runs the case; says on stderr what cannot be measured."""
        schedules = {"gemm": ("vendor",), "attention": tuple(ATTENTION_SCHEDULES)}.get(case.op, ("torch",))
        for schedule in schedules:
            if time.monotonic() > self.deadline_s:
                return
            try:
                yield self._row(case, schedule, l2, scope)
            except Refusal as error:
                _say(f"skipped: {error}")
            except RuntimeError as error:  # PyTorch: a backend that does not take the case, or no memory
                _say(f"skipped: {case} {schedule}: {str(error).splitlines()[0]}")
            finally:
                if self.device.type == "cuda":
                    self.torch.cuda.empty_cache()

    def _row(self, case: Case, schedule: str, l2: str, scope: str) -> dict[str, Any]:
        torch, cuda = self.torch, self.device.type == "cuda"
        graph = cuda and scope == "graph"
        sets = self.layers if graph else rotation(case, l2, self.l2_bytes, self.memory_bytes)
        torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
        flush = torch.ones(FLUSH * self.l2_bytes // 4, device=self.device) if l2 == "cold" else None
        call = operation(torch, self.device, case, schedule)
        calls = Rotation(torch, self.device, case, call, sets, flush, self.data, one_input=graph)
        for _ in range(max(3, min(len(calls), CALLS))):
            calls()
        replayed = captured(torch, calls, self.layers) if graph else None
        times: list[float] = []
        launch: dict[str, str] = {}
        if self.clock:
            self.clock.readings_mhz.clear()
        end_s = min(time.monotonic() + self.case_s, self.deadline_s)
        while not times or time.monotonic() < end_s:
            if not cuda:
                times += cpu_batch(calls)
            elif scope == "kernel":
                found, launch = kernel_batch(torch, calls)
                times += found
            elif graph:
                times += graph_batch(torch, replayed, self.layers, self.replays, self.clock)
            else:
                times += cuda_batch(torch, calls, scope, self.clock)
        card: dict[str, str] = {}
        if cuda and scope != "kernel":

            def keep_busy() -> None:
                for _ in range(CALLS):
                    calls()
                torch.cuda.synchronize()

            card = read_nvml(self.uuid, keep_busy) or read_card(self.uuid, keep_busy)
        mhz = self.clock.readings_mhz if self.clock else []
        return {
            "machine": self.machine,
            "op": case.op,
            "dtype": case.dtype,
            "shape": case.shape,
            "schedule": schedule,
            "time_us": f"{percentile(times, 0.5):.4g}",
            "scope": scope if cuda else "host",
            "overhead_us": 0,
            "l2": l2,
            "quality": "A",
            "source": self.source,
            "url": "",
            "samples": len(times),
            "p10_us": f"{percentile(times, 0.1):.4g}",
            "p90_us": f"{percentile(times, 0.9):.4g}",
            "sets": sets,
            "data": self.data,
            "core_mhz": f"{percentile(mhz, 0.5):.0f}" if mhz else "",
            "device": self.name,
            "driver": card.pop("driver_version", ""),
            "cuda": torch.version.cuda or "",
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            **card,
            **launch,
        }


def open_device(options: argparse.Namespace) -> Bench:
    """The device that was asked for; Refusal where there is no PyTorch or no such device."""
    try:
        import torch
    except ImportError:
        raise Refusal("PyTorch is not installed; install it for your GPU as pytorch.org says") from None
    deadline_s = time.monotonic() + options.time_limit
    limit = options.memory_limit * 2**30 if options.memory_limit else None
    shared = {
        **{"torch": torch, "source": options.source, "case_s": options.case_time, "deadline_s": deadline_s},
        **{"data": options.data, "layers": options.layers, "replays": options.replays},
    }
    if options.device == "cpu":
        return Bench(
            device=torch.device("cpu"), machine=options.machine or "cpu", name="CPU", uuid="",
            l2_bytes=32 * 2**20, memory_bytes=int(limit or 2**30), **shared,
        )  # fmt: skip
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise Refusal(
            f"PyTorch {torch.__version__} (built with {build}) finds no CUDA device; a GPU, its driver and a CUDA "
            "build are needed, and --device cpu tries the script without them"
        )
    device = torch.device(options.device)
    if (device.index or 0) >= torch.cuda.device_count():
        raise Refusal(f"--device {options.device}: there are {torch.cuda.device_count()} devices, counted from cuda:0")
    torch.cuda.set_device(device)
    figures = torch.cuda.get_device_properties(device)
    free, _ = torch.cuda.mem_get_info()
    uuid = str(getattr(figures, "uuid", ""))
    return Bench(
        device=device, machine=options.machine or machine_of(figures.name), name=figures.name,
        uuid=uuid if uuid.startswith("GPU-") else f"GPU-{uuid}", l2_bytes=figures.L2_cache_size,
        memory_bytes=min(int(limit or min(8 * 2**30, free // 2)), free), clock=core_clock(torch, device), **shared,
    )  # fmt: skip


def _say(text: str) -> None:
    print(f"measure_gpu: {text}", file=sys.stderr, flush=True)


def write_rows(bench: Bench, cases: Sequence[Case], states: Sequence[str], scope: str, file: TextIO) -> int:
    """Measures every case in each state of the L2 and writes its rows as they come; how many were written."""
    writer = csv.DictWriter(file, [*SCHEMA, *EXTRA], restval="")
    writer.writeheader()
    written = 0
    for i, case in enumerate(cases):
        if time.monotonic() > bench.deadline_s:
            _say(f"--time-limit is over: {len(cases) - i} of {len(cases)} cases are left out")
            break
        for l2 in states:
            for row in bench.rows(case, l2, scope):
                writer.writerow(row)
                file.flush()
                written += 1
                _say(f"{case} {row['schedule']} {l2}: {row['time_us']} us")
    return written


def _positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return value


def _count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def _lines(path: str) -> list[str]:
    """Workloads of a text file, one a line."""
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--workloads {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when there are rows, 2 for wrong input or no device, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("workload", nargs="*", metavar="WORKLOAD", help='such as "gemm m=64 n=64 k=64"; default: a set of all kinds')
    add("--out", metavar="FILE", help="CSV to write, default: stdout; must not exist")
    add("--workloads", metavar="FILE", help="text file of workloads, one a line")
    add("--op", nargs="+", default=[], choices=tuple(KEYS), metavar="OP", help=f"only these: {', '.join(KEYS)}")
    dtypes = tuple(DTYPE_BYTES)
    add(
        "--dtype", nargs="+", default=["bf16"], choices=dtypes, metavar="D", help=f"bf16 (default): {', '.join(dtypes)}"
    )
    flushed = ("cold", "warm")
    add("--l2", nargs="+", default=flushed, choices=flushed, metavar="L2", help="cold, warm, default both; not graphs")
    add("--scope", default="event", choices=SCOPES, help="event (default): each call; stream: mean call; graph; kernel")
    add("--layers", type=_count, default=1, metavar="N", help="calls of a graph with operands of their own, default 1")
    add("--replays", type=_count, default=6, metavar="N", help="timed replays of a graph, default 6")
    add("--data", default="normal", choices=DATA, help="values of operands; half_zeros: all but the first")
    add("--device", default="cuda:0", metavar="DEVICE", help="cuda:0 (default), cuda:1, ..., cpu")
    add("--machine", metavar="NAME", help="machine column; default: the description that fits the device's name")
    add("--source", default="measure_gpu", metavar="NAME", help="source column, default measure_gpu")
    add("--case-time", type=_positive, default=0.5, metavar="S", help="seconds of timed calls a row, default 0.5")
    add("--time-limit", type=_positive, default=900.0, metavar="S", help="seconds in all, default 900")
    add("--memory-limit", type=_positive, metavar="GIB", help="device memory, default: 8, at most half the free")
    options = parser.parse_args(arguments)
    try:
        named = [*options.workload, *(_lines(options.workloads) if options.workloads else ())]
        cases = cases_of(named, options.op, options.dtype)
        bench = open_device(options)
        if bench.machine not in PRESETS.values() and options.device != "cpu":
            _say(f"no machine description fits {bench.name}: validate will skip these rows; --machine NAME sets one")
        if options.out and os.path.exists(options.out):
            raise Refusal(f"--out {options.out}: the file exists")
        try:
            file = open(options.out, "w", newline="", encoding="utf-8") if options.out else sys.stdout  # noqa: SIM115
        except OSError as error:
            raise Refusal(f"--out {options.out}: cannot be written: {error.strerror}") from None
        try:
            # Whether operands of a call are in the L2 is a matter of the graph's layers, not of a flush.
            states = options.l2 if options.scope != "graph" else ["mixed" if options.layers > 1 else "warm"]
            written = write_rows(bench, cases, states, options.scope, file)
        finally:
            if options.out:
                file.close()
        if not written:
            raise Refusal("nothing could be measured; the lines above say why")
        return 0
    except Refusal as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        _say("interrupted; the rows so far are kept")
        return 130


if __name__ == "__main__":
    sys.exit(main())
