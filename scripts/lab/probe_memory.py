#!/usr/bin/env python3
"""Measures launches, DRAM, L2, SM and synchronisation of a real NVIDIA GPU and writes rows of one CSV file.

    python probe_memory.py --out probes.csv                      # everything, about two minutes
    python probe_memory.py --out probes.csv --only l2 sm.wgmma   # groups or measurements whose name contains a pattern
    python probe_memory.py --out smoke.csv --quick               # few sizes, one repetition
    python probe_memory.py --build probes.cubin                  # only compile, which needs nvcc and no GPU

Needs CuPy, the file `probe_memory.cu` beside this one, and nvcc or NVRTC (or `--cubin` built before). It changes no
setting of the card. The columns are those of the memory probes of tilewave, followed by date, driver, cuda and
clock_mhz, the core clock while the row was measured. Each group runs in a process of its own, so that a fault in one
costs the rest of that group only; every row is written as soon as it is known.

How it measures. Cycles are differences of clock64 inside the kernel. Rates take globaltimer and clock64 of every CTA:
bytes over the time from the first start to the last end, per second and per cycle. Launches are timed by events behind
a kernel that only waits, so that the host is out of the way, or by globaltimer inside the kernels.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import datetime
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

SCHEMA = ("source_id", "device", "op", "dtype", "shape", "impl", "metric", "value", "unit", "method_notes", "url")
"""Columns of the memory probes."""

EXTRA = ("date", "driver", "cuda", "clock_mhz")
"""Columns that follow them."""

GROUPS = {"launch": 20.0, "dram": 30.0, "l2": 30.0, "sm": 20.0, "async": 20.0}
"""Groups in their order, with their shares of the time."""

SOURCE = Path(__file__).with_name("probe_memory.cu")
ARCH = "90a"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_MASK = (1 << 62) - 1
WHOLE_SM = 200 * KIB
"""Dynamic shared memory with which one CTA fills an SM."""

FACTORS = {"iadd": 0.5, "fmnmx": 2, "lop3": 2, "ex2_f16x2": 2}
"""Instructions a step of the PTX becomes, other than one, as disassembled; a step of these also holds another one:"""

PAIRED = {
    "rcp": "MUFU.RCP and FADD",
    "sin": "FMUL and MUFU.SIN",
    "vote": "ISETP and VOTE",
    "cvt_e4m3x2": "F2FP and PRMT",
    "redux": "REDUX and a move from a uniform register",
    "hfma2": "HFMA2 and HFMA2.MMA in turn",
    "hfma2_bf16": "HFMA2 and HFMA2.MMA in turn",
    "hadd2": "HADD2 and HFMA2.MMA in turn",
    "cvt_f16_f32": "HADD2.F32",
}
OPS = (
    *("ffma", "fadd", "fmul", "hfma2", "hfma2_bf16", "hadd2", "iadd", "imad", "lop3", "shf", "prmt", "fmnmx"),
    *("cvt_bf16x2", "cvt_f16x2", "cvt_e4m3x2", "cvt_f16_f32", "f2i", "i2f", "ex2", "rcp", "rsq", "lg2", "sin", "tanh"),
    *("ex2_f16x2", "shfl", "vote", "redux", "popc", "dfma", "dadd"),
)
MMAS = {
    "fp16_k16": "m16n8k16",
    "bf16_k16": "m16n8k16",
    "fp16acc_k16": "m16n8k16",
    "fp16_k8": "m16n8k8",
    "tf32_k8": "m16n8k8",
    "int8_k32": "m16n8k32",
    "fp64_k4": "m8n8k4",
}
MMA_MACS = {"m16n8k16": 2048, "m16n8k8": 1024, "m16n8k32": 4096, "m8n8k4": 256}

WGMMA_K = {"bf16": 16, "tf32": 8, "fp8": 32, "int8": 32}
WGMMA_TYPES = {"bf16": "f32.bf16.bf16", "tf32": "f32.tf32.tf32", "fp8": "f32.e4m3.e4m3", "int8": "s32.s8.s8"}
WGMMAS = (
    *(("bf16", n, a) for n in (8, 16, 32, 64, 96, 128, 192, 256) for a in ("ss", "rs")),
    *((dtype, n, "ss") for dtype in ("tf32", "fp8", "int8") for n in (8, 64, 256)),
    *((dtype, 256, "rs") for dtype in ("tf32", "fp8", "int8")),
)
CHAINS = (1, 4, 16)
"""Products of one group that a wgmma kernel times."""


class Refusal(Exception):
    """Something that a person can put right; the message says how."""


class OutOfTime(Exception):
    """The group's share of the time is used up."""


def wgmma_source(dtype: str, n: int, a: str) -> str:
    """Kernel of one shape of wgmma: for each chain length, cycles of one group of so many products and the wait."""
    count = n // 2
    kind, con = ("int", "r") if dtype == "int8" else ("float", "f")
    regs = ", ".join(f"%{i}" for i in range(count))
    first = count
    a_text = f"%{first}" if a == "ss" else "{" + ", ".join(f"%{first + i}" for i in range(4)) + "}"
    b_at = first + (1 if a == "ss" else 4)
    tail = {"bf16": ", 1, 1, 0, 0" if a == "ss" else ", 1, 1, 0", "int8": ""}.get(dtype, ", 1, 1")
    a_in = '"l"(da)' if a == "ss" else ", ".join(f'"r"(a[{i}])' for i in range(4))
    outs = ", ".join(f'"+{con}"(d[{i}])' for i in range(count))
    blocks = []
    for at, chain in enumerate(CHAINS):
        blocks.append(
            f"""  for (int pass = 0; pass < passes; pass++) {{
    __syncthreads();
    u64 s = clk();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < {chain}; i++) STEP
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    u64 e = clk();
    if (threadIdx.x % 128 == 0) t[(threadIdx.x / 128) * {len(CHAINS)} + {at}] = e - s;
  }}
"""
        )
    step = (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k{WGMMA_K[dtype]}.{WGMMA_TYPES[dtype]} '
        f'{{{regs}}}, {a_text}, %{b_at}, 1{tail};" : {outs} : {a_in}, "l"(db) : "memory");'
    )
    body = "".join(blocks).replace("STEP", step)
    return f"""
KERNEL __launch_bounds__(256) wg_{dtype}_{n}_{a}(int passes, u32* sink, u64* t) {{
  for (u32 i = threadIdx.x; i < 12288; i += blockDim.x) ((u32*)shm)[i] = 0;
  asm volatile("fence.proxy.async;" ::: "memory");
  {kind} d[{count}];
#pragma unroll
  for (int i = 0; i < {count}; i++) d[i] = 0;
  u32 a[4] = {{(u32)passes, (u32)passes, (u32)passes, (u32)passes}};
  u64 da = wg_desc(smem_of(shm)), db = wg_desc(smem_of(shm) + 16384);
{body}  {kind} sum = a[0];
#pragma unroll
  for (int i = 0; i < {count}; i++) sum += d[i];
  if (sum == 12345) *sink = 1;
}}
"""


def source_text() -> str:
    """The CUDA source: the file and the wgmma kernels."""
    text = SOURCE.read_text(encoding="utf-8")
    text += """
// ---- wgmma: K-major tiles of zeros, swizzled by 128 bytes ---------------------------------------------------------

DEV u64 wg_desc(u32 at) { return (u64)((at & 0x3ffffu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
"""
    return text + "".join(wgmma_source(*case) for case in WGMMAS)


C_TYPES = {
    **{"int": ctypes.c_int, "u32": ctypes.c_uint32, "float": ctypes.c_float, "long long": ctypes.c_longlong},
    "u64": ctypes.c_uint64,
}


def signatures(text: str) -> dict[str, list[Any]]:
    """C types of the arguments of every kernel of a source, by its name."""
    streams = r"KERNEL (mix_##R##_##W|NAME)\("
    found: dict[str, list[Any]] = {}
    macros = {
        "MIX": (r"^MIX\((\d+), (\d+)\)", lambda m: [f"mix_{m[1]}_{m[2]}"],
                "V4* p, long long pitch, long long n, u32* sink, u64* t"),
        "OP": (r"^OP\((\w+),", lambda m: [f"op1_{m[1]}", f"op8_{m[1]}"], "int iters, u32* sink, u64* t"),
        "MMA": (r"^MMA\((\w+),", lambda m: [f"mma{c}_{m[1]}" for c in (1, 4, 8)], "int iters, u32* sink, u64* t"),
        "REDUCE": (r"^REDUCE\((\w+),", lambda m: [m[1]], "char* p, int stride, u32 mask, int n, u64* t"),
        "BIG_CODE": (r"^BIG_CODE\((\w+),", lambda m: [m[1]], "u64* t, int passes, float x"),
        "RATE": (r"^RATE\((\w+),", lambda m: [m[1]],
                 "char* p, int stride, u32 mask, u32 zero, int iters, u32* sink, u64* t"),
    }  # fmt: skip
    plain = re.sub(streams, "", text)
    for match in re.finditer(r"KERNEL (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)", plain):
        found[match[1]] = types_of(match[2])
    for pattern, names, arguments in macros.values():
        for match in re.finditer(pattern, text, re.MULTILINE):
            for name in names(match):
                found[name] = types_of(arguments)
    return found


def types_of(arguments: str) -> list[Any]:
    """C types of a parameter list."""
    result = []
    for argument in arguments.split(","):
        words = argument.strip().rsplit(" ", 1)[0].replace("const ", "").strip()
        result.append(ctypes.c_uint64 if "*" in argument else C_TYPES[words])
    return result


def compile_source(path: Path, text: str) -> None:
    """Writes the cubin of a source, by nvcc where there is one, else by NVRTC."""
    nvcc = shutil.which("nvcc")
    if nvcc:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cu"
            source.write_text(text, encoding="utf-8")
            options = ["-std=c++17", "-O3", f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}", "-cubin"]
            done = subprocess.run([nvcc, *options, "-o", str(path), str(source)], capture_output=True, text=True)
            if done.returncode == 0:
                return
            print(f"nvcc: {(done.stderr or done.stdout)[:2000]}", file=sys.stderr)
    from cupy.cuda import nvrtc  # only where there is a GPU

    program = nvrtc.createProgram(text, "probe.cu", [], [])
    nvrtc.compileProgram(program, ["-std=c++17", f"-arch=sm_{ARCH}"])
    path.write_bytes(nvrtc.getCUBIN(program))


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


CLUSTER_ATTRIBUTE, DEPENDENT_ATTRIBUTE = 4, 6
MAX_SHARED, NON_PORTABLE = 8, 14


class Gpu:
    """A device with the kernels loaded: launches by the driver, memory, streams, events and graphs by CuPy."""

    def __init__(self, cupy: Any, driver: Any, cubin: bytes, types: dict[str, list[Any]]) -> None:
        self.cupy, self.driver, self.types = cupy, driver, types
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.sms = int(cupy.cuda.runtime.deviceGetAttribute(16, 0))  # cudaDevAttrMultiProcessorCount
        self.module = ctypes.c_void_p()
        self.image = cubin
        self.check(driver.cuModuleLoadData(ctypes.byref(self.module), cubin), "load the kernels")
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.shared: dict[str, int] = {}
        self.times = cupy.zeros(1 << 20, dtype="uint64")
        self.sink = cupy.zeros(64, dtype="uint32")
        self.wanted = self.numbers([1] * 1024, "uint8")

    def check(self, error: int, what: str) -> None:
        """Raises if a call of the driver failed."""
        if error:
            raise RuntimeError(f"cannot {what}: CUDA error {error}")

    def function(self, name: str) -> ctypes.c_void_p:
        """A kernel by its name."""
        if name not in self.functions:
            pointer = ctypes.c_void_p()
            got = self.driver.cuModuleGetFunction(ctypes.byref(pointer), self.module, name.encode())
            self.check(got, f"find {name}")
            self.functions[name] = pointer
        return self.functions[name]

    def prepare(
        self, name: str, grid: int, block: int, *args: Any, shared: int = 0, cluster: int = 1, dependent: bool = False
    ) -> Callable[[], None]:
        """A launch with everything but the call done."""
        function = self.function(name)
        types = self.types[name]
        if len(types) != len(args):
            raise TypeError(f"{name} takes {len(types)} arguments, not {len(args)}")
        if shared > 48 * KIB and self.shared.get(name, 0) < shared:
            self.check(self.driver.cuFuncSetAttribute(function, MAX_SHARED, shared), f"give {name} {shared} bytes")
            self.shared[name] = shared
        if cluster > 8:
            self.check(self.driver.cuFuncSetAttribute(function, NON_PORTABLE, 1), "allow clusters of 16")
        values = [kind(getattr(arg, "data", arg).ptr if hasattr(arg, "data") else arg)
                  for kind, arg in zip(types, args, strict=True)]  # fmt: skip
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        attributes = (LaunchAttribute * 2)()
        count = 0
        if cluster > 1:
            attributes[count].id = CLUSTER_ATTRIBUTE
            attributes[count].value[0], attributes[count].value[1], attributes[count].value[2] = cluster, 1, 1
            count += 1
        if dependent:
            attributes[count].id = DEPENDENT_ATTRIBUTE
            attributes[count].value[0] = 1
            count += 1
        config = LaunchConfig(
            (ctypes.c_uint * 3)(grid, 1, 1), (ctypes.c_uint * 3)(block, 1, 1), shared, self.stream.ptr,
            ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute)), count,
        )  # fmt: skip
        reference, call = ctypes.byref(config), self.driver.cuLaunchKernelEx
        kept = (values, attributes, config)

        def launch() -> None:
            error = call(reference, function, pointers, None)
            if error:
                raise RuntimeError(f"cannot launch {name} {grid} x {block}: CUDA error {error} {len(kept)}")

        return launch

    def run(self, name: str, grid: int, block: int, *args: Any, **options: Any) -> None:
        """One launch and its end."""
        self.prepare(name, grid, block, *args, **options)()
        self.stream.synchronize()

    def numbers(self, values: Sequence[int], dtype: str) -> Any:
        """An array of the device, without a kernel of CuPy's own (which it would have to compile first)."""
        import numpy  # comes with CuPy

        return self.cupy.asarray(numpy.array(values, dtype=dtype))

    def clear(self, array: Any, count: int = 0) -> None:
        """Sets the first entries, or all of them, to zero; in the stream."""
        size = array.itemsize * (count or array.size)
        self.cupy.cuda.runtime.memsetAsync(array.data.ptr, 0, size, self.stream.ptr)

    def read(self, count: int) -> Any:
        """The first entries of the times, as numbers."""
        return self.cupy.asnumpy(self.times[:count])

    def graph(self, launches: Iterable[Callable[[], None]]) -> Any:
        """A graph of launches in a row."""
        self.stream.begin_capture()
        try:
            for launch in launches:
                launch()
        finally:
            graph = self.stream.end_capture()
        return graph

    def waiting(self, microseconds: float) -> Callable[[], None]:
        """A kernel that only waits."""
        return self.prepare("wait_cycles", 1, 1, int(microseconds * 2000))

    def elapsed_us(self, calls: Sequence[Callable[[], None]], wait_us: float) -> float:
        """Time of the calls, by events, queued behind a kernel that waits."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        wait = self.waiting(wait_us)
        self.stream.synchronize()
        wait()
        began = time.perf_counter()
        start.record(self.stream)
        for call in calls:
            call()
        end.record(self.stream)
        host_us = (time.perf_counter() - began) * 1e6
        self.stream.synchronize()
        if host_us > wait_us:
            return self.elapsed_us(calls, 2 * host_us) if wait_us < 50_000 else float("nan")
        return float(self.cupy.cuda.get_elapsed_time(start, end)) * 1e3


class Probe:
    """What the groups share: the device, the rows and the time left."""

    def __init__(self, gpu: Gpu, options: argparse.Namespace, info: dict[str, str], deadline_s: float) -> None:
        self.gpu, self.options, self.info, self.deadline_s = gpu, options, info, deadline_s
        self.quick = options.quick
        self.rows = 0
        self.clock_mhz = 0.0
        self.group = ""
        self.task = ""

    def check_time(self) -> None:
        """Ends the group in order when its time is over."""
        if time.monotonic() > self.deadline_s:
            raise OutOfTime

    def row(self, op: str, shape: str, metric: str, value: float, unit: str, notes: str = "", dtype: str = "",
            impl: str = "CUDA kernel") -> None:  # fmt: skip
        """Writes one row."""
        cells = {
            "source_id": "probe_memory", "device": self.info["device"], "op": op, "dtype": dtype, "shape": shape,
            "impl": impl, "metric": metric, "value": f"{value:.6g}", "unit": unit, "method_notes": notes, "url": "",
            "date": self.info["date"], "driver": self.info["driver"], "cuda": self.info["cuda"],
            "clock_mhz": f"{self.clock_mhz:.0f}",
        }  # fmt: skip
        with open(self.options.out, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, (*SCHEMA, *EXTRA)).writerow(cells)
        self.rows += 1
        print(f"{op:22} {shape:60} {metric:22} {value:12.6g} {unit}", flush=True)

    def stats(self, op: str, shape: str, samples: Any, unit: str, notes: str = "", impl: str = "CUDA kernel") -> None:
        """Rows of a sample's distribution."""
        ordered = sorted(float(x) for x in samples)
        if not ordered:
            return
        at = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
        for metric, share in at.items():
            self.row(op, shape, metric, ordered[round(share * (len(ordered) - 1))], unit, notes, impl=impl)
        self.row(op, shape, "mean", statistics.fmean(ordered), unit, notes, impl=impl)

    def rate(self, op: str, shape: str, size: float, ctas: int, launch: Callable[[], None], notes: str = "",
             repeats: int = 3, unit: str = "B") -> float:  # fmt: skip
        """Rows of a rate: `size` over the time from the first CTA's start to the last one's end."""
        self.check_time()
        gpu = self.gpu
        results = []
        for _ in range(1 if self.quick else repeats):
            gpu.clear(gpu.times, 4 * ctas)
            launch()
            gpu.stream.synchronize()
            t = gpu.read(4 * ctas).reshape(-1, 4)
            t = t[t[:, 2] > 0].astype("int64")
            if not len(t):
                continue
            elapsed = int(t[:, 2].max() - t[:, 0].min())
            own = (t[:, 2] - t[:, 0]).clip(1)
            clock = float(statistics.median(((t[:, 3] - t[:, 1]) / own).tolist()))
            if elapsed > 0:
                results.append((size / elapsed, clock, elapsed))
        if not results:
            return 0.0
        results.sort()
        best, clock, elapsed = results[len(results) // 2]
        if elapsed > 3000:
            self.clock_mhz = clock * 1e3
        name = {"B": "GB/s", "op": "Gop/s"}[unit]
        self.row(op, shape, "bandwidth" if unit == "B" else "throughput", best, name, notes)
        if clock > 0:
            self.row(op, shape, f"{unit}_per_clk", best / clock, f"{unit}/clk", notes)
        return best

    def measure_clock(self) -> None:
        """The core clock of one busy CTA."""
        self.gpu.run(
            "read_u1", self.gpu.sms, 1024, self.gpu.times[1 << 19 :], (1 << 22) // 16, self.gpu.sink, self.gpu.times
        )
        spin = self.gpu.prepare("cta_spin", self.gpu.sms, 32, self.gpu.times, 2_000_000)
        spin()
        self.gpu.stream.synchronize()
        t = self.gpu.read(3 * self.gpu.sms).reshape(-1, 3).astype("int64")
        own = [int(x) for x in (t[:, 1] - t[:, 0]) if x > 0]
        if own:
            self.clock_mhz = 2_000_000e3 / statistics.median(own)


class Pool:
    """One large buffer of zeros."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        free = int(gpu.cupy.cuda.runtime.memGetInfo()[0])
        while size > 0.7 * free:
            size //= 2
        self.size = size
        self.memory = gpu.cupy.cuda.alloc(size)
        self.ptr = int(self.memory.ptr)
        self.runtime = gpu.cupy.cuda.runtime
        self.clear()

    def clear(self) -> None:
        """Zeros again: chains of loads add what they read to the next address."""
        self.runtime.memset(self.ptr, 0, self.size)
        self.runtime.deviceSynchronize()


def flush_l2(probe: Probe, pool: Pool, at: int) -> None:
    """Reads 256 MiB from a place that is otherwise unused."""
    gpu = probe.gpu
    gpu.run("read_u4", gpu.sms, 1024, pool.ptr + at, 256 * MIB // 16, gpu.sink, gpu.times)


def median_of(values: Iterable[float]) -> float:
    """The median, nan of nothing."""
    known = [x for x in values if x == x]
    return statistics.median(known) if known else float("nan")


# ---- launches --------------------------------------------------------------------------------------------------------


def launch_times(probe: Probe, shape: str, calls: Sequence[Callable[[], None]], notes: str = "") -> None:
    """Rows of a null kernel (or several in turn): one by events, in a stream, in graphs, at the border of graphs."""
    probe.check_time()
    gpu, repeats = probe.gpu, 3 if probe.quick else 9
    many = 64 if probe.quick else 192
    turn = [calls[i % len(calls)] for i in range(many)]
    single = median_of(gpu.elapsed_us([calls[0]], 60) for _ in range(repeats))
    nothing = median_of(gpu.elapsed_us([], 60) for _ in range(3))
    probe.row(
        "null_kernel", shape, "event_time", single, "us", f"events around one launch; empty pair {nothing:.2f} us"
    )
    stream = median_of(gpu.elapsed_us(turn, 8 * many) for _ in range(3)) / many
    probe.row(
        "null_kernel", shape, "stream_period", stream, "us", f"{many} launches queued behind a waiting kernel{notes}"
    )
    long, short = gpu.graph(turn[:64]), gpu.graph(turn[:16])
    one = gpu.graph(turn[: len(calls)])
    for graph in (long, short, one):
        graph.launch(gpu.stream)
    gpu.stream.synchronize()

    def timed(graph: Any, count: int) -> float:
        return median_of(gpu.elapsed_us([lambda: graph.launch(gpu.stream)] * count, 400) for _ in range(3)) / count

    t64, t16, t1 = timed(long, 4), timed(short, 4), timed(one, 32)
    probe.row("null_kernel", shape, "graph_node_period", (t64 - t16) / 48, "us", f"graphs of 64 and 16 nodes{notes}")
    probe.row("null_kernel", shape, "graph_replay_64", t64, "us", f"4 replays back to back of 64 nodes, each{notes}")
    probe.row("null_kernel", shape, "graph_replay_small", t1, "us",
              f"32 replays back to back of {len(calls)} node(s), each{notes}")  # fmt: skip


def launch_null(probe: Probe) -> None:
    """Null kernels by grid and block."""
    gpu = probe.gpu
    launch_times(probe, "ctas=1 threads=32 shared=0", [gpu.prepare("null_a", 1, 32, 0)])
    for grid in (1, gpu.sms, 10 * gpu.sms):
        for block in (128,) if probe.quick else (32, 128, 384, 1024):
            if (grid, block) != (1, 32):
                launch_times(probe, f"ctas={grid} threads={block} shared=0", [gpu.prepare("null_a", grid, block, 0)])


def launch_shared(probe: Probe) -> None:
    """Null kernels with shared memory, the same and alternating."""
    gpu, grid = probe.gpu, probe.gpu.sms
    for kib in (48, 100, 200):
        calls = [gpu.prepare("null_a", grid, 128, 0, shared=kib * KIB)]
        launch_times(probe, f"ctas={grid} threads=128 shared={kib * KIB}", calls)
    for pair in ((0, 200), (100, 200), (48, 100)):
        calls = [gpu.prepare("null_a", grid, 128, 0, shared=kib * KIB) for kib in pair]
        launch_times(probe, f"ctas={grid} threads=128 shared={pair[0] * KIB}|{pair[1] * KIB}", calls, "; sizes in turn")


def launch_pairs(probe: Probe) -> None:
    """Two kernels in turn."""
    gpu = probe.gpu
    for grid in (1, gpu.sms):
        calls = [gpu.prepare("null_a", grid, 128, 0), gpu.prepare("null_b", grid, 128, 0, 0)]
        launch_times(probe, f"ctas={grid} threads=128 shared=0 kernels=2", calls, "; two kernels in turn")


def launch_stamps(probe: Probe) -> None:
    """Gaps by globaltimer: from the end of a kernel's only CTA to the start of the next, in streams and graphs."""
    gpu = probe.gpu
    counter = gpu.cupy.zeros(4, dtype="uint32")
    cases = {
        "kernel=same": [("stamp", False)],
        "kernel=two in turn": [("stamp", False), ("stamp_b", False)],
        "kernel=programmatic dependent": [("stamp_dependent", True)],
    }
    for shape, kinds in cases.items():
        calls = [gpu.prepare(name, 1, 32, gpu.times, counter, dependent=flag) for name, flag in kinds]
        turn = [calls[i % len(calls)] for i in range(64)]
        for mode in ("stream", "graph of 64", "graph of 1"):
            probe.check_time()
            gpu.clear(counter)
            gpu.stream.synchronize()
            if mode == "stream":
                gpu.elapsed_us(turn * 2, 1500)
                edges: set[int] = set()
            elif mode == "graph of 64":
                graph = gpu.graph(turn)
                gpu.elapsed_us([lambda graph=graph: graph.launch(gpu.stream)] * 4, 400)  # type: ignore[misc]
                edges = {63, 127, 191}
            else:
                graph = gpu.graph(turn[:1])
                gpu.elapsed_us([lambda graph=graph: graph.launch(gpu.stream)] * 64, 900)  # type: ignore[misc]
                edges = set(range(63))
            count = int(counter[0])
            t = gpu.read(2 * count).reshape(-1, 2).astype("int64")
            gaps = (t[1:, 0] - t[:-1, 1]).tolist()
            periods = (t[1:, 0] - t[:-1, 0]).tolist()
            inner = [g for i, g in enumerate(gaps) if i not in edges]
            border = [g for i, g in enumerate(gaps) if i in edges]
            name = f"{shape} in={mode}"
            note = "globaltimer in the only CTA, last entry to next start"
            if inner:
                probe.row("kernel_gap", name, "gap", median_of(inner), "ns", note)
                probe.row("kernel_gap", name, "period", median_of(
                    p for i, p in enumerate(periods) if i not in edges), "ns", note)  # fmt: skip
            if border:
                probe.row("kernel_gap", name, "gap_between_graphs", median_of(border), "ns", note)
    t = gpu.read(64).tolist()
    steps = sorted({abs(a - b) for a, b in zip(t[1:], t[:-1], strict=True)} - {0})
    if steps:
        probe.row("globaltimer", "", "smallest_step", steps[0], "ns", "smallest difference among stamps")


def launch_ctas(probe: Probe) -> None:
    """Rates of CTA launches, and the turnaround of a slot."""
    gpu = probe.gpu
    ctas = gpu.sms * (100 if probe.quick else 1000)
    for block, shared in (
        (32, 0),
        (128, 0),
        (1024, 0),
        (32, 100 * KIB),
        (128, 100 * KIB),
        (384, 200 * KIB),
        (1024, 100 * KIB),
    ):
        count = ctas if not shared else ctas // 10
        null = gpu.prepare("null_a", count, block, 0, shared=shared)
        us = median_of(gpu.elapsed_us([null], 60) for _ in range(3))
        shape = f"ctas={count} threads={block} shared={shared}"
        probe.row("cta_rate", shape, "time_per_cta", us * 1e3 / count, "ns", f"null kernel of {us:.1f} us by events")
        if 2 * count <= len(gpu.times):
            gpu.run("cta_stamp", count, block, gpu.times, shared=shared)
            gpu.run("cta_stamp", count, block, gpu.times, shared=shared)
            t = gpu.read(2 * count).reshape(-1, 2).astype("int64")
            length = int(t[:, 0].max() - t[:, 0].min())
            probe.row("cta_rate", shape, "time_per_cta_stores", length / count, "ns", "each CTA stores its start")
            if shared:
                slots = (227 * KIB) // (shared + KIB)
                probe.row("cta_rate", shape, "slot_turnaround", length / (count / gpu.sms / slots), "ns",
                          f"{slots} slots an SM, each CTA stores its start")  # fmt: skip


def launch_spread(probe: Probe) -> None:
    """First and last start of the CTAs of one wave, and the time by events beyond the kernel's own."""
    gpu = probe.gpu
    for grid, block, shared in (
        (1, 32, 0), (gpu.sms, 32, 0), (gpu.sms, 128, WHOLE_SM), (gpu.sms, 384, WHOLE_SM), (gpu.sms, 1024, 0),
        (2 * gpu.sms, 1024, 0),
        (8 * gpu.sms, 128, 0), (16 * gpu.sms, 128, 0), (32 * gpu.sms, 32, 0),
    ):  # fmt: skip
        launch = gpu.prepare("cta_spin", grid, block, gpu.times, 60_000, shared=shared)
        results = []
        for _ in range(5):
            us = gpu.elapsed_us([launch], 100)
            t = gpu.read(3 * grid).reshape(-1, 3).astype("int64")
            results.append((us * 1e3 - float(t[:, 1].max() - t[:, 0].min()), float(t[:, 0].max() - t[:, 0].min()),
                            len(set(t[:, 2].tolist()))))  # fmt: skip
        shape = f"ctas={grid} threads={block} shared={shared}"
        probe.row("cta_start", shape, "spread", median_of(r[1] for r in results), "ns",
                  f"last start less first start; {results[-1][2]} SMs used")  # fmt: skip
        probe.row("cta_start", shape, "event_beyond_kernel", median_of(r[0] for r in results), "ns",
                  "time by events less first start to last end")  # fmt: skip


def launch_code(probe: Probe) -> None:
    """Straight code: cold, warm, with other code between, after the L2 was flushed."""
    gpu = probe.gpu
    pool = Pool(gpu, GIB)
    for name, kib in (("code_16k", 16), ("code_64k", 64), ("code_256k", 256)):
        for grid in (1, gpu.sms):
            shape = f"code={kib} KiB ctas={grid} threads=32"
            launch = gpu.prepare(name, grid, 32, gpu.times, 4, 1.0)
            for state in ("first launch", "again", "other code between", "L2 flushed"):
                probe.check_time()
                if state == "other code between":
                    gpu.run("code_256k" if kib < 256 else "code_64k", gpu.sms, 32, gpu.times, 1, 1.0)
                if state == "L2 flushed":
                    gpu.run("code_256k" if kib < 256 else "code_64k", gpu.sms, 32, gpu.times, 1, 1.0)
                    flush_l2(probe, pool, 0)
                us = gpu.elapsed_us([launch], 60)
                t = gpu.read(4).tolist()
                steps = kib * 64
                probe.row(
                    "code",
                    shape,
                    f"first_pass {state}",
                    t[0] / steps,
                    "cycles/instruction",
                    f"{us:.1f} us for 4 passes",
                )
                probe.row("code", shape, f"fourth_pass {state}", t[3] / steps, "cycles/instruction", "chains of 4 FFMA")
    same = [gpu.prepare("code_64k", gpu.sms, 128, gpu.times, 1, 1.0)]
    two = [*same, gpu.prepare("code_64k_other", gpu.sms, 128, gpu.times, 1, 1.0)]
    for name, calls in (("same", same), ("two in turn", two)):
        turn = [calls[i % len(calls)] for i in range(32)]
        graph = gpu.graph(turn)
        graph.launch(gpu.stream)
        us = median_of(gpu.elapsed_us([lambda graph=graph: graph.launch(gpu.stream)], 200) for _ in range(3)) / 32  # type: ignore[misc]
        probe.row(
            "code", f"code=64 KiB ctas={gpu.sms} threads=128 kernels={name}", "graph_node_period", us, "us", "32 nodes"
        )
    small = [gpu.prepare("code_16k", gpu.sms, 128, gpu.times, 1, 1.0)]
    graph = gpu.graph(small * 32)
    graph.launch(gpu.stream)
    us = median_of(gpu.elapsed_us([lambda: graph.launch(gpu.stream)], 200) for _ in range(3)) / 32
    probe.row("code", f"code=16 KiB ctas={gpu.sms} threads=128 kernels=same", "graph_node_period", us, "us", "32 nodes")


def launch_dependent(probe: Probe) -> None:
    """Programmatic dependent launches."""
    gpu = probe.gpu
    for grid in (1, gpu.sms):
        calls = [gpu.prepare("null_dependent", grid, 128, 0, dependent=True)]
        launch_times(probe, f"ctas={grid} threads=128 programmatic dependent", calls)


def launch_clusters(probe: Probe) -> None:
    """Null kernels of clusters."""
    gpu = probe.gpu
    for cluster in (2, 4, 8):
        for grid in (cluster, 128, 1280):
            calls = [gpu.prepare("null_a", grid, 128, 0, cluster=cluster)]
            launch_times(probe, f"ctas={grid} threads=128 cluster={cluster}", calls)
    calls = [gpu.prepare("null_a", 128, 128, 0), gpu.prepare("null_a", 128, 128, 0, cluster=2)]
    launch_times(probe, "ctas=128 threads=128 cluster=1|2", calls, "; in turn")


# ---- DRAM ------------------------------------------------------------------------------------------------------------


def dram_pool(probe: Probe) -> Pool:
    """The buffer of the group, 16 GiB where there is room."""
    if not hasattr(probe, "pool"):
        probe.pool = Pool(probe.gpu, GIB if probe.quick else 16 * GIB)  # type: ignore[attr-defined]
    return probe.pool  # type: ignore[attr-defined, no-any-return]


def dram_read(probe: Probe) -> None:
    """Reads by bytes in flight."""
    gpu, pool = probe.gpu, dram_pool(probe)
    size = min(4 * GIB, pool.size // 4)
    for name, deep, width in (
        ("read_u1", 1, 16),
        ("read_u4", 4, 16),
        ("read_u8", 8, 16),
        ("read8_u1", 1, 8),
        ("read_u2", 2, 16),
    ):
        for threads in (1024,) if probe.quick else (32, 64, 128, 256, 512, 1024, 2048):
            block = min(threads, 1024)
            grid = gpu.sms * threads // block
            flight = threads * deep * width
            part = size if flight > 2048 else size // 4
            launch = gpu.prepare(name, grid, block, pool.ptr, part // width, gpu.sink, gpu.times)
            probe.rate("dram_read", f"bytes={part} threads_per_sm={threads} loads={deep} of {width} in_flight={flight}",
                       part, grid, launch, "grid-stride, ld.global.cg")  # fmt: skip


def dram_mix(probe: Probe) -> None:
    """Reads and writes in several proportions."""
    gpu, pool = probe.gpu, dram_pool(probe)
    pitch = pool.size // 4
    for threads in (2048,) if probe.quick else (2048, 1024, 512, 256, 64):
        block = min(threads, 1024)
        grid = gpu.sms * threads // block
        for reads, writes in ((1, 0), (0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)):
            part = pitch if threads > 256 else pitch // 4
            launch = gpu.prepare(
                f"mix_{reads}_{writes}", grid, block, pool.ptr, pitch // 16, part // 16, gpu.sink, gpu.times
            )
            probe.rate("dram_mix", f"reads={reads} writes={writes} array={part} threads_per_sm={threads}",
                       part * (reads + writes), grid, launch,
                       "grid-stride, 16 B a thread and array; 50 MB of writes stay in the L2",
                       repeats=2)  # fmt: skip


def dram_random(probe: Probe) -> None:
    """Pieces at random places."""
    gpu, pool = probe.gpu, dram_pool(probe)
    grid, block = 2 * gpu.sms, 1024
    for span in (pool.size // 2, pool.size // 16):
        for piece in (32, 64, 128, 256, 512, 1024, 2048, 4096):
            shift = (piece // 16).bit_length() - 1
            rounds = 16 if probe.quick else 128
            mask = span // piece - 1
            size = grid * block * 16 * rounds
            launch = gpu.prepare("random_read", grid, block, pool.ptr, shift, mask, rounds, piece, gpu.sink, gpu.times)
            probe.rate(
                "dram_random_read",
                f"piece={piece} span={span}",
                size,
                grid,
                launch,
                "useful bytes; 2048 threads an SM, 4 loads of 16 B each",
            )
            if span == pool.size // 2:
                launch = gpu.prepare("random_write", grid, block, pool.ptr, shift, mask, rounds // 2, piece, gpu.times)
                probe.rate(
                    "dram_random_write", f"piece={piece} span={span}", size / 2, grid, launch, "useful bytes", repeats=2
                )


def chase(
    probe: Probe,
    at: int,
    stride: int,
    n: int,
    warm: int,
    mode: int = 0,
    lines: int = 1,
    mask: int = NO_MASK,
    sm: int = -1,
) -> Any:
    """Cycles of each load of a chain by one thread."""
    gpu = probe.gpu
    out = gpu.times.view("uint32")
    grid = gpu.sms if sm >= 0 else 1
    shared = WHOLE_SM if sm >= 0 else 4 * n + 64
    gpu.run("chase", grid, 32, at, sm, mode, stride, lines, mask, warm, n, out, shared=shared)
    return gpu.cupy.asnumpy(out[:n])


def dram_latency(probe: Probe) -> None:
    """Latencies of single loads that miss the L2."""
    pool = dram_pool(probe)
    pool.clear()
    probe.measure_clock()
    far = pool.size // 2
    for span in (32 * MIB, 512 * MIB, far // 2):
        flush_l2(probe, pool, far)
        t = chase(probe, pool.ptr, 128, 4096, 0, mode=1, lines=span // 128)
        probe.stats(
            "dram_latency",
            f"random lines of {span}",
            t[256:],
            "cycles",
            "one thread, each load by clock64, L2 flushed before",
        )
    for stride in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768):
        probe.check_time()
        flush_l2(probe, pool, far)
        t = chase(probe, pool.ptr, stride, 4096, 0)
        probe.stats(
            "dram_latency", f"stride={stride}", t[64:], "cycles", "one thread, ascending addresses, L2 flushed before"
        )


def dram_tlb(probe: Probe) -> None:
    """One line in each of so many pages of 2 MiB, the second time: lines in the L2, pages perhaps not in the TLBs."""
    pool = dram_pool(probe)
    pool.clear()
    step = 2 * MIB + 4096 + 128
    for pages in (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6144, 8000):
        if pages * step < pool.size:
            probe.check_time()
            t = chase(probe, pool.ptr, step, pages, 1 if pages > 256 else 4)
            probe.stats(
                "tlb",
                f"pages={pages} of 2 MiB, span={pages * step}",
                t,
                "cycles",
                "one thread, one line a page, L2 hits",
            )
    flush_l2(probe, pool, pool.size // 2)
    count = min(2000, pool.size // 4 // step)
    t = chase(probe, pool.ptr + 8 * KIB, step, count, 0)
    probe.stats("tlb", f"pages={count} of 2 MiB cold lines", t, "cycles", "one thread, one line a page, DRAM")


# ---- L2 --------------------------------------------------------------------------------------------------------------


def sm_mask(probe: Probe, wanted: Iterable[int]) -> Any:
    """Bytes that are set for the wanted SMs."""
    chosen = set(wanted)
    return probe.gpu.numbers([1 if i in chosen else 0 for i in range(1024)], "uint8")


def l2_latency(probe: Probe) -> None:
    """Latency of L2 hits from every SM over the same lines: near and far partition."""
    gpu = probe.gpu
    pool = Pool(gpu, 512 * MIB)
    probe.measure_clock()
    n = 512
    columns = []
    for sm in range(0, gpu.sms, 16 if probe.quick else 1):
        t = chase(probe, pool.ptr, 128, n, 2, sm=sm).astype("float64")
        columns.append((sm, t))
        if sm in (0, 1, 2, 17, 66, gpu.sms - 1):
            probe.check_time()
            probe.stats(
                "l2_latency",
                f"sm={sm} lines={n}",
                t,
                "cycles",
                "one thread, hits after 2 passes, ld.global.cg by clock64",
            )
    first = columns[0][1]
    low, high = sorted(first)[len(first) // 10], sorted(first)[9 * len(first) // 10]
    middle = (low + high) / 2
    same = []
    for sm, t in columns:
        near = [x for x in t.tolist() if x < middle]
        other = [x for x in t.tolist() if x >= middle]
        a, b = t - t.mean(), first - first.mean()
        correlation = float((a * b).sum() / max(1e-9, float(((a * a).sum() * (b * b).sum()) ** 0.5)))
        same.append((sm, correlation > 0))
        note = f"lines below and above {middle:.0f} cycles; correlation with SM 0 {correlation:.2f}"
        probe.row("l2_latency", f"sm={sm} lines={n}", "near_share", len(near) / n, "", note)
        probe.row(
            "l2_latency", f"sm={sm} lines={n}", "near_mean", statistics.fmean(near) if near else 0, "cycles", note
        )
        probe.row(
            "l2_latency", f"sm={sm} lines={n}", "far_mean", statistics.fmean(other) if other else 0, "cycles", note
        )
    everything = [x for _, t in columns for x in t.tolist()]
    probe.stats("l2_latency", f"all {len(columns)} SMs, lines={n}", everything, "cycles", "one SM at a time")
    probe.row(
        "l2_partition",
        "",
        "sms_like_sm0",
        sum(flag for _, flag in same),
        "SMs",
        " ".join(str(sm) for sm, flag in same if flag),
    )
    counts: dict[int, int] = {}
    for x in everything:
        counts[int(x) // 10 * 10] = counts.get(int(x) // 10 * 10, 0) + 1
    text = " ".join(f"{k}:{v}" for k, v in sorted(counts.items()) if v > len(everything) / 1000)
    probe.row("l2_latency", f"all {len(columns)} SMs, lines={n}", "histogram", len(everything), "loads", text)
    for size in (256 * KIB, 4 * MIB, 16 * MIB, 24 * MIB, 32 * MIB, 48 * MIB):
        probe.check_time()
        for _ in range(2):
            gpu.run("read_u1", gpu.sms, 1024, pool.ptr, size // 16, gpu.sink, gpu.times)
        for sm in (0, 5):
            t = chase(probe, pool.ptr, 128, 2048, 0, mode=1, lines=size // 128, sm=sm)
            probe.stats(
                "l2_latency",
                f"sm={sm} random lines of {size} that all SMs shared out",
                t,
                "cycles",
                "read first by another SM",
            )


def l2_bandwidth(probe: Probe) -> None:
    """Reads and writes of footprints by all SMs."""
    gpu = probe.gpu
    pool = Pool(gpu, GIB)
    footprints = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 96)
    width = 8 * 1024 * 16
    for mode, name in ((0, "in step"), (1, "rotated"), (3, "hashed")):
        for mib in (4, 16) if probe.quick else footprints:
            size = mib * MIB // width * width
            passes = max(1, 32 // mib)
            launch = gpu.prepare(
                "l2_read",
                gpu.sms,
                1024,
                pool.ptr,
                size // 16,
                passes,
                mode,
                gpu.wanted,
                gpu.sink,
                gpu.times,
                shared=WHOLE_SM,
            )
            launch()
            probe.rate("l2_read", f"footprint={mib} MiB order={name}", float(size) * passes * gpu.sms, gpu.sms, launch,
                       "every SM reads all of it, 1024 threads, 8 loads of 16 B each in flight", repeats=2)  # fmt: skip
    for blocks in (2,) if probe.quick else (1, 2, 3, 4, 5, 6, 8, 12):
        size = blocks * 8 * 512 * 16 * gpu.sms
        passes = max(4, 32 // blocks)
        for name in ("l2_read", "l2_write"):
            if name == "l2_read":
                launch = gpu.prepare(
                    name,
                    gpu.sms,
                    512,
                    pool.ptr,
                    size // 16,
                    passes,
                    2,
                    gpu.wanted,
                    gpu.sink,
                    gpu.times,
                    shared=WHOLE_SM,
                )
            else:
                launch = gpu.prepare(
                    name, gpu.sms, 512, pool.ptr, size // 16, passes, gpu.wanted, gpu.times, shared=WHOLE_SM
                )
            launch()
            probe.rate(name, f"footprint={size / MIB:.2f} MiB order=own share", float(size) * passes, gpu.sms, launch,
                       "every SM its own part, 512 threads, 8 of 16 B each; a fence ends writes")  # fmt: skip
    for mib in (4,) if probe.quick else (2, 4, 6, 8, 10):
        size = mib * MIB // (128 * 128 * gpu.sms) * (128 * 128 * gpu.sms)
        if size:
            launch = gpu.prepare(
                "l2_write", gpu.sms, 128, pool.ptr, mib * MIB // 16, 64, gpu.wanted, gpu.times, shared=WHOLE_SM
            )
            launch()
            probe.rate(
                "l2_write",
                f"footprint={size / MIB:.2f} MiB order=own share threads=128",
                float(size) * 64,
                gpu.sms,
                launch,
                "every SM its own part",
            )


def l2_gpcs(probe: Probe) -> None:
    """Which SMs share a GPC, and the rates of groups of SMs."""
    gpu = probe.gpu
    parent = list(range(gpu.sms))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    out = gpu.times.view("uint32")
    for cluster in (2, 4, 6, 8, 3, 5, 7, 16, 12, 10, 14):
        try:
            for _ in range(4):
                grid = cluster * (gpu.sms // cluster)
                gpu.run("where_am_i", grid, 32, out, shared=WHOLE_SM, cluster=cluster)
                t = gpu.cupy.asnumpy(out[: 2 * grid]).reshape(-1, 2).tolist()
                for i in range(0, grid, cluster):
                    for j in range(1, cluster):
                        parent[root(t[i + j][0])] = root(t[i][0])
        except Exception as error:
            print(f"clusters of {cluster}: {error}", flush=True)
    members: dict[int, list[int]] = {}
    for sm in range(gpu.sms):
        members.setdefault(root(sm), []).append(sm)
    gpcs = sorted(members.values(), key=lambda group: (-len(group), group))
    probe.row(
        "gpc_map",
        "",
        "gpcs",
        len(gpcs),
        "groups",
        "SMs that were ever in one cluster; sizes " + " ".join(str(len(g)) for g in gpcs),
    )
    for i, group in enumerate(gpcs):
        probe.row("gpc_map", f"gpc={i}", "sms", len(group), "SMs", " ".join(str(sm) for sm in group))
    pool = Pool(gpu, 64 * MIB)
    width = 8 * 1024 * 16
    by_turn = [group[i] for i in range(18) for group in gpcs if i < len(group)]
    sets: list[tuple[str, list[int]]] = [("one SM", [0]), ("one TPC", [0, 1]), ("two TPCs", [0, 2])]
    for i, group in enumerate(gpcs):
        sets.append((f"all of GPC {i}", group))
    sets += [(f"{k} of GPC 0", gpcs[0][:k]) for k in (2, 4, 6, 8, 10, 12, 14, 16)]
    sets += [("even SMs of GPC 0", [sm for sm in gpcs[0] if sm % 2 == 0])]
    sets += [(f"{k} over the GPCs", by_turn[:k]) for k in (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, gpu.sms)]
    if len(gpcs) > 1:
        sets += [("GPCs 0 and 1", gpcs[0] + gpcs[1])]
    if len(gpcs) > 3:
        sets += [("GPCs 0 to 3", gpcs[0] + gpcs[1] + gpcs[2] + gpcs[3])]
    size = 4 * MIB // width * width
    for name, group in sets[:3] if probe.quick else sets:
        wanted = sm_mask(probe, group)
        for mode, order in ((1, "rotated"), (0, "in step"), (3, "hashed")):
            passes = 8
            launch = gpu.prepare(
                "l2_read",
                gpu.sms,
                1024,
                pool.ptr,
                size // 16,
                passes,
                mode,
                wanted,
                gpu.sink,
                gpu.times,
                shared=WHOLE_SM,
            )
            launch()
            probe.rate("l2_read_sms", f"sms={len(group)} ({name}) footprint=4 MiB order={order}",
                       float(size) * passes * len(group), gpu.sms, launch,
                       "each wanted SM reads all of it", repeats=1)  # fmt: skip
        part = float(width * len(group))
        launch = gpu.prepare(
            "l2_write", gpu.sms, 1024, pool.ptr, width * gpu.sms // 16, 64, wanted, gpu.times, shared=WHOLE_SM
        )
        probe.rate(
            "l2_write_sms",
            f"sms={len(group)} ({name}) own 128 KiB",
            part * 64,
            gpu.sms,
            launch,
            "stores of 16 B a thread",
            repeats=1,
        )
    for threads in (32, 64, 128, 256, 512, 1024):
        wanted = sm_mask(probe, [0])
        block = 8 * threads * 16
        part = MIB // block * block
        launch = gpu.prepare(
            "l2_read", gpu.sms, threads, pool.ptr, part // 16, 4, 0, wanted, gpu.sink, gpu.times, shared=WHOLE_SM
        )
        launch()
        probe.rate(
            "l2_read_sms",
            f"sms=1 footprint=1 MiB threads={threads} in_flight={block}",
            part * 4.0,
            gpu.sms,
            launch,
            "one SM alone",
        )


def l2_capacity(probe: Probe) -> None:
    """How much of what was read or written is still there, and what a sweep costs after writes."""
    gpu = probe.gpu
    pool = Pool(gpu, 2 * GIB)
    out = gpu.times.view("uint32")
    width = 8 * 128 * 16
    n = 32 if probe.quick else 96
    for kind in ("clean", "dirty"):
        for mib in (16, 48) if probe.quick else (8, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 64, 96):
            probe.check_time()
            flush_l2(probe, pool, GIB)
            size = mib * MIB // width // gpu.sms * width * gpu.sms
            if not size:
                continue
            passes = 2
            if kind == "clean":
                gpu.run(
                    "l2_read",
                    gpu.sms,
                    128,
                    pool.ptr,
                    mib * MIB // 16,
                    passes,
                    2,
                    gpu.wanted,
                    gpu.sink,
                    gpu.times,
                    shared=WHOLE_SM,
                )
            else:
                gpu.run(
                    "l2_write", gpu.sms, 128, pool.ptr, mib * MIB // 16, passes, gpu.wanted, gpu.times, shared=WHOLE_SM
                )
            gpu.run("sample_lines", gpu.sms, 32, pool.ptr, size // 128, mib * 977, n, out, shared=WHOLE_SM)
            t = gpu.cupy.asnumpy(out[: gpu.sms * n])
            # Distinct lines only: a line drawn twice hits the second time.
            hits = float((t < 560).mean())
            probe.row("l2_resident", f"{kind} footprint={size / MIB:.2f} MiB", "hit_share", hits, "",
                      f"{gpu.sms * n} random lines, one thread an SM, 2 passes before; hit below 560")  # fmt: skip
            probe.row(
                "l2_resident",
                f"{kind} footprint={size / MIB:.2f} MiB",
                "median",
                float(sorted(t.tolist())[len(t) // 2]),
                "cycles",
                "of all samples",
            )
    for mib in (0, 16, 32, 48) if probe.quick else (0, 8, 16, 20, 24, 28, 32, 40, 48, 64):
        launch_write = gpu.prepare(
            "l2_write", gpu.sms, 128, pool.ptr, mib * MIB // 16, 4, gpu.wanted, gpu.times, shared=WHOLE_SM
        )
        size = 128 * MIB
        sweep = gpu.prepare("read_u8", gpu.sms, 1024, pool.ptr + GIB, size // 16, gpu.sink, gpu.times)

        def both(
            launch_write: Callable[[], None] = launch_write, sweep: Callable[[], None] = sweep, mib: int = mib
        ) -> None:
            flush_l2(probe, pool, GIB + 512 * MIB)
            if mib:
                launch_write()
                gpu.stream.synchronize()
            gpu.clear(gpu.times, 4 * gpu.sms)
            sweep()

        probe.rate(
            "l2_write_back",
            f"dirty={mib} MiB then read 128 MiB elsewhere",
            size,
            gpu.sms,
            both,
            "written 4 times before; the sweep alone is timed",
        )


def l2_atomics(probe: Probe) -> None:
    """Reductions and atomics at the L2."""
    gpu = probe.gpu
    pool = Pool(gpu, 64 * MIB)
    gpu.run("atomic_chain", 1, 1, pool.ptr, 512, gpu.times)
    probe.row(
        "atomic_latency", "atom.add.u32 one thread", "latency", float(gpu.read(2)[1]) / 512, "cycles", "chain of 512"
    )
    patterns = (
        ("same address", 0, 0),
        ("consecutive", 0, 1 << 24),
        ("one a sector", 32, 1 << 24),
        ("one a line", 128, 1 << 24),
    )
    for name, width in (("red_u32", 4), ("red_f32", 4), ("red_bf16x2", 4), ("red_v2", 8), ("red_v4", 16)):
        for pattern, stride, span in patterns:
            step = stride or (width if span else 0)
            n = 8 if not span else 64
            grid, block = gpu.sms, 1024
            launch = gpu.prepare(name, grid, block, pool.ptr, step, max(0, span - 1), n, gpu.times)
            probe.rate(
                "atomic_rate",
                f"{name} {pattern} span={span}",
                float(grid * block * n),
                grid,
                launch,
                "reductions without result, 1024 threads an SM",
                repeats=2,
                unit="op",
            )
    launch = gpu.prepare("red_u32", gpu.sms, 32, pool.ptr, 128, (1 << 20) - 1, 64, gpu.times)
    probe.rate(
        "atomic_rate", "red_u32 one a line span=1 MiB threads=32", gpu.sms * 32 * 64.0, gpu.sms, launch, "", unit="op"
    )


# ---- SM --------------------------------------------------------------------------------------------------------------


def warp_cycles(probe: Probe, name: str, block: int, *args: Any, shared: int = 0) -> float:
    """Cycles of one CTA from the first warp's start to the last one's end; the second of two runs."""
    gpu = probe.gpu
    for _ in range(2):
        gpu.run(name, 1, block, *args, gpu.times, shared=shared)
    t = gpu.read(2 * ((block + 31) // 32)).reshape(-1, 2).astype("int64")
    return float(t[:, 1].max() - t[:, 0].min())


def sm_ops(probe: Probe) -> None:
    """Latency and interval of instructions."""
    gpu = probe.gpu
    probe.measure_clock()
    iters = 16
    for name in OPS:
        probe.check_time()
        factor = FACTORS.get(name, 1)
        note = "as disassembled: " + PAIRED[name] if name in PAIRED else ""
        latency = warp_cycles(probe, f"op1_{name}", 32, iters, gpu.sink) / (64 * iters * factor)
        probe.row(
            "instruction", name, "latency", latency, "cycles", f"chain of 64 in a loop of {iters}, one warp; {note}"
        )
        for warps in (4, 16, 32):
            cycles = warp_cycles(probe, f"op8_{name}", 32 * warps, iters, gpu.sink) / (
                64 * iters * factor * (warps / 4)
            )
            probe.row(
                "instruction",
                f"{name} warps={warps}",
                "interval",
                cycles,
                "cycles",
                f"a sub-core's, 8 chains a warp; {note}",
            )


def sm_barriers(probe: Probe) -> None:
    """bar.sync by the number of threads."""
    for threads in (32, 64, 128, 256, 384, 512, 1024):
        cycles = warp_cycles(probe, "bar_sync", threads, 64) / (64 * 16)
        probe.row("bar_sync", f"threads={threads}", "period", cycles, "cycles", "1024 barriers in a row")


def sm_mma(probe: Probe) -> None:
    """mma.sync: latency and intervals."""
    gpu, iters = probe.gpu, 64
    for name, shape in MMAS.items():
        probe.check_time()
        cycles = warp_cycles(probe, f"mma1_{name}", 32, iters, gpu.sink) / (16 * iters)
        probe.row("mma", f"{name} {shape}", "latency", cycles, "cycles", "chain through the accumulators, one warp")
        for chains in (1, 4, 8):
            for warps in (1, 2, 4, 8, 16):
                cycles = warp_cycles(probe, f"mma{chains}_{name}", 32 * warps, iters, gpu.sink)
                per = cycles / (16 * iters * max(1.0, warps / 4))
                probe.row(
                    "mma",
                    f"{name} {shape} warps={warps} chains={chains}",
                    "interval",
                    per,
                    "cycles",
                    "a product of one sub-core",
                )
                if warps >= 4:
                    macs = MMA_MACS[shape] * 16 * iters * warps / cycles
                    probe.row(
                        "mma",
                        f"{name} {shape} warps={warps} chains={chains}",
                        "macs_per_clk",
                        macs,
                        "MAC/clk",
                        "of one SM",
                    )


def sm_shared(probe: Probe) -> None:
    """L1 and shared memory."""
    gpu = probe.gpu
    pool = Pool(gpu, 64 * MIB)
    for words, stride in ((64, 8), (512, 32), (256, 128), (1024, 128)):
        gpu.run("l1_chase", 1, 1, pool.ptr, words, stride, 2048, gpu.times)
        probe.row(
            "l1_latency",
            f"ring={words} stride={stride}",
            "latency",
            float(gpu.read(3)[2]) / 2048,
            "cycles",
            "pointer chase, ld.global.ca",
        )
    gpu.run("shared_chase", 1, 1, 256, 2048, gpu.times, shared=8192)
    probe.row(
        "shared_latency",
        "ring=256 words",
        "latency",
        float(gpu.read(3)[2]) / 2048,
        "cycles",
        "pointer chase, ld.shared",
    )
    gpu.cupy.cuda.runtime.memset(pool.ptr, 0, MIB)
    gpu.cupy.cuda.runtime.deviceSynchronize()
    shared = 40 * KIB + 2048
    iters = 32

    def one(name: str, stride: int, mask: int, size: int, note: str, blocks: Sequence[int]) -> None:
        probe.check_time()
        for block in blocks:
            cycles = warp_cycles(probe, name, block, pool.ptr, stride, mask, 0, iters, gpu.sink, shared=shared)
            shape = f"{name} stride={stride} threads={block}"
            probe.row(
                "sm_memory",
                shape,
                "interval",
                cycles / (16 * iters * block / 32),
                "cycles",
                f"a warp's instruction on the SM; {note}",
            )
            if size:
                probe.row("sm_memory", shape, "B_per_clk", size * 16 * iters * block / cycles, "B/clk", note)

    for name, size in (("ldg32", 4), ("ldg64", 8), ("ldg128", 16)):
        one(name, size, 8191, size, "L1 hits", (32, 256, 1024))
    for name, size in (("lds32", 4), ("lds64", 8), ("lds128", 16), ("sts32", 4), ("sts64", 8), ("sts128", 16)):
        one(name, size, 16383, size, "no conflicts", (32, 256, 1024))
    for name in ("lds32", "sts32"):
        for ways in (2, 4, 8, 16, 32):
            one(name, 4 * ways, 32767, 4, f"{ways} ways of bank conflict", (32, 256))
    for name, stride in (
        ("lds64", 16),
        ("lds128", 32),
        ("lds128", 64),
        ("lds32", 0),
        ("lds128", 0),
        ("ldg32", 128),
        ("ldg128", 128),
        ("ldg32", 32),
    ):
        one(name, stride, 32767, 0, "strided", (32, 256))
    for name in ("ldsm_x4", "ldsm_x4t", "ldsm_x2", "ldsm_x1", "stsm_x4", "stsm_x1"):
        rows = {"4": 32, "t": 32, "2": 16, "1": 8}[name[-1]]
        one(name, 16, 16383, 16 * rows // 32, "rows of 16 B in a row", (32, 128, 256, 1024))
    one("ldsm_x4", 128, 32767, 16, "rows 128 B apart: 8 ways of conflict", (32, 256))
    one("stsm_x4", 128, 32767, 16, "rows 128 B apart: 8 ways of conflict", (32, 256))
    one("stg32", 4, 8191, 4, "stores, 4 B a thread", (256, 1024))
    one("stg128", 16, 8191, 16, "stores, 16 B a thread", (256, 1024))
    for stride, note in ((4, "distinct addresses"), (0, "one address")):
        one("atoms_u32", stride, 8191 if stride else 0, 0, note, (32, 256))
    for name, note in (
        ("lds32_chain", "load and add"), ("lds128_chain", "load and add"), ("ldsm_x4_chain", "ldmatrix and add"),
        ("sts_lds_chain", "store, then load"),
        ("stsm_lds_chain", "stmatrix x4, then load"), ("atoms_chain", "atomic with result"),
    ):  # fmt: skip
        stride = 16
        cycles = warp_cycles(probe, name, 32, pool.ptr, stride, 511, 0, iters, gpu.sink, shared=shared)
        probe.row("sm_memory", name, "latency", cycles / (16 * iters), "cycles", f"one warp, chain of {note}")


def sm_wgmma(probe: Probe) -> None:
    """wgmma: interval and latency."""
    gpu = probe.gpu
    for dtype, n, a in WGMMAS:
        probe.check_time()
        for groups in (1, 2):
            for _ in range(2):
                gpu.run(f"wg_{dtype}_{n}_{a}", 1, 128 * groups, 4, gpu.sink, gpu.times, shared=56 * KIB)
            t = gpu.read(len(CHAINS) * groups).reshape(-1, len(CHAINS)).astype("float64").max(axis=0).tolist()
            shape = f"m64n{n}k{WGMMA_K[dtype]} {a} warpgroups={groups}"
            note = "zeros, 128 B swizzle, all products on the same accumulators"
            interval = (t[2] - t[1]) / (CHAINS[2] - CHAINS[1]) / groups
            probe.row(
                "wgmma",
                shape,
                "interval",
                interval,
                "cycles",
                f"{CHAINS[2]} less {CHAINS[1]} products in one group; {note}",
                dtype=dtype,
            )
            probe.row(
                "wgmma",
                shape,
                "latency",
                t[0],
                "cycles",
                f"one product: fence to the end of the wait; {note}",
                dtype=dtype,
            )
            probe.row("wgmma", shape, "latency_4", t[1], "cycles", f"four products; {note}", dtype=dtype)
            macs = 64 * n * WGMMA_K[dtype] / interval if interval > 0 else 0
            probe.row("wgmma", shape, "macs_per_clk", macs, "MAC/clk", "of one SM", dtype=dtype)


# ---- synchronisation and bulk copies ---------------------------------------------------------------------------------


def async_mbarrier(probe: Probe) -> None:
    """mbarrier between two warps and on a completed phase."""
    gpu, n = probe.gpu, 512
    probe.measure_clock()
    for _ in range(2):
        gpu.run("mbar_pingpong", 1, 64, n, gpu.times)
    probe.row("mbarrier", "two warps", "round_trip", float(gpu.read(1)[0]) / n, "cycles", "arrive and try_wait in turn")
    for _ in range(2):
        gpu.run("mbar_ops", 1, 1, n, gpu.times)
    t = gpu.read(4).tolist()
    for metric, value in zip(("arrive_interval", "try_wait_done", "test_wait_done", "arrive_and_wait"), t, strict=True):
        probe.row("mbarrier", "one thread", metric, value / n, "cycles", "chain through the result for waits")


def async_flags(probe: Probe) -> None:
    """Flags through the L2, fences, a barrier of the whole grid."""
    gpu = probe.gpu
    flags = gpu.cupy.zeros(1 << 20, dtype="uint32")
    for other in (1, 2, 3, 16, 40, 80, gpu.sms - 1):
        gpu.clear(flags)
        gpu.run("flag_pingpong", gpu.sms, 32, flags, other, 512, gpu.times, shared=WHOLE_SM)
        t = gpu.read(3).tolist()
        probe.row(
            "flag",
            f"sm={t[1]} and sm={t[2]}",
            "round_trip",
            t[0] / 384,
            "cycles",
            "st.release.gpu and ld.acquire.gpu in turn through the L2",
        )
    out = gpu.times.view("uint32")
    for mode, name in enumerate(("membar.gl", "fence.acq_rel.gpu", "membar.cta", "membar.sys")):
        for stores in (0, 1, 8):
            gpu.run("fence_latency", 1, 32, flags, mode, stores, 256, out)
            t = sorted(gpu.cupy.asnumpy(out[:256]).tolist()[32:])
            probe.row(
                "fence",
                f"{name} stores={stores}",
                "median",
                t[len(t) // 2],
                "cycles",
                "store(s) and fence by one thread",
            )
    gpu.clear(flags)
    gpu.run("grid_barrier", gpu.sms, 128, flags, 256, gpu.times, shared=WHOLE_SM)
    t = gpu.read(gpu.sms).tolist()
    probe.row(
        "grid_barrier",
        f"ctas={gpu.sms}",
        "period",
        max(t) / 192,
        "cycles",
        "counter in the L2: red.release and ld.acquire",
    )


def async_copies(probe: Probe) -> None:
    """cp.async against plain loads."""
    gpu = probe.gpu
    pool = Pool(gpu, 512 * MIB)
    out = gpu.times.view("uint32")
    n = 256
    for mode, name in enumerate(("ld.cg", "ld.ca", "cp.async.cg", "cp.async.ca")):
        for warm, place in ((2, "warm: L2, or L1 for .ca"), (0, "cold: DRAM")):
            flush_l2(probe, pool, 256 * MIB)
            gpu.run("copy_latency", 1, 32, pool.ptr, mode, 256, n, warm, out, shared=8 * KIB)
            t = gpu.cupy.asnumpy(out[:n])
            probe.stats(
                "copy_latency",
                f"{name} 16 B {place}",
                t,
                "cycles",
                "issue to data in shared memory, one thread, 256 lines",
            )


def async_clusters(probe: Probe) -> None:
    """Cluster barriers and distributed shared memory."""
    gpu, n = probe.gpu, 256
    for cluster in (1, 2, 4, 8, 16):
        for threads in (32, 128, 384):
            try:
                gpu.run("cluster_barrier", cluster, threads, n, gpu.times, cluster=cluster)
                gpu.run("cluster_barrier", cluster, threads, n, gpu.times, cluster=cluster)
            except RuntimeError as error:
                print(f"cluster of {cluster}: {error}", flush=True)
                continue
            t = gpu.read(cluster).tolist()
            probe.row(
                "cluster_barrier",
                f"cluster={cluster} threads={threads}",
                "period",
                max(t) / n,
                "cycles",
                "arrive and wait, with their memory ordering",
            )
    for cluster in (2, 4, 8):
        for peer in range(cluster):
            gpu.run("dsmem_chase", cluster, 32, peer, 1024, gpu.times, cluster=cluster)
            probe.row(
                "dsmem_latency",
                f"cluster={cluster} rank 0 from rank {peer}",
                "latency",
                float(gpu.read(2)[1]) / 1024,
                "cycles",
                "chain of a load and an add",
            )
    for cluster in (2, 4, 8):
        for name in ("dsmem_read", "dsmem_write"):
            for clusters in (1, 128 // cluster):
                grid, threads, iters = cluster * clusters, 1024, 64
                launch = gpu.prepare(name, grid, threads, iters, gpu.sink, gpu.times, shared=WHOLE_SM, cluster=cluster)
                launch()
                size = float(grid * threads * iters * 4 * 16)
                got = probe.rate(
                    name,
                    f"cluster={cluster} ctas={grid} threads={threads}",
                    size,
                    grid,
                    launch,
                    "each CTA the next rank's shared memory, 16 B a thread",
                )
                if got and probe.clock_mhz:
                    probe.row(
                        name,
                        f"cluster={cluster} ctas={grid} threads={threads}",
                        "B_per_clk_per_sm",
                        got / grid / probe.clock_mhz * 1e3,
                        "B/clk",
                        "",
                    )


def async_bulk_latency(probe: Probe) -> None:
    """Bulk copies by one thread."""
    gpu = probe.gpu
    pool = Pool(gpu, GIB)
    out = gpu.times.view("uint32")
    n = 48
    for size in (16, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
        for warm, place in ((3, "L2"), (0, "DRAM")):
            probe.check_time()
            if not warm:
                flush_l2(probe, pool, 512 * MIB)
            gpu.run("bulk_latency", 1, 32, pool.ptr, size, max(size, 1024), n, warm, out, shared=WHOLE_SM)
            t = sorted(gpu.cupy.asnumpy(out[:n]).tolist()[4:])
            shape = f"bytes={size} from {place}"
            for metric, at in (("min", 0), ("median", len(t) // 2), ("p90", 9 * len(t) // 10)):
                probe.row(
                    "bulk_load_latency",
                    shape,
                    metric,
                    t[at],
                    "cycles",
                    "expect_tx, cp.async.bulk, wait; one SM",
                    impl="cp.async.bulk",
                )
    for size in (128, 1024, 4096, 16384):
        for mode, name in ((0, "read"), (1, "written")):
            gpu.run("bulk_store_latency", 1, 32, pool.ptr, size, mode, n, out, shared=WHOLE_SM)
            t = sorted(gpu.cupy.asnumpy(out[:n]).tolist()[8:])
            probe.row(
                "bulk_store_latency",
                f"bytes={size} until {name}",
                "median",
                t[len(t) // 2],
                "cycles",
                "one thread, one group",
                impl="cp.async.bulk",
            )


def async_bulk_rate(probe: Probe) -> None:
    """Rates of bulk copies by bytes in flight."""
    gpu = probe.gpu
    pool = Pool(gpu, 4 * GIB)
    one = sm_mask(probe, [0])
    cases = ((1024, 1), (1024, 4), (1024, 16), (1024, 48), (2048, 32), (4096, 1),
             (4096, 2), (4096, 4), (4096, 8), (4096, 16), (4096, 32), (4096, 48), (16384, 1),
             (16384, 2), (16384, 4), (16384, 8), (16384, 12), (32768, 6), (65536, 3))  # fmt: skip
    for place, span in (("L2", 16 * MIB), ("DRAM", pool.size)):
        for who, wanted, sms in (("one SM", one, 1), ("all SMs", gpu.wanted, gpu.sms)):
            for size, depth in cases:
                if probe.quick and (size, depth) != (16384, 8):
                    continue
                per_sm = 4 * MIB if place == "DRAM" or sms == 1 else 8 * MIB
                if size * depth < 8192:
                    per_sm //= 8
                n = per_sm // size
                launch = gpu.prepare(
                    "bulk_rate", gpu.sms, 32, pool.ptr, size, depth, span // size, n, wanted, gpu.times, shared=WHOLE_SM
                )
                if place == "L2":
                    launch()
                else:
                    flush_l2(probe, pool, pool.size - 256 * MIB)
                shape = f"{who} from {place} piece={size} depth={depth} in_flight={size * depth}"
                got = probe.rate("bulk_load", shape, float(n) * size * sms, gpu.sms, launch,
                                 "one thread an SM keeps the pieces in flight", repeats=1)  # fmt: skip
                if got and probe.clock_mhz and sms > 1:
                    probe.row("bulk_load", shape, "B_per_clk_per_sm",
                              got / sms / probe.clock_mhz * 1e3, "B/clk", "", impl="cp.async.bulk")  # fmt: skip


def async_bulk_store(probe: Probe) -> None:
    """Rates of bulk stores."""
    gpu = probe.gpu
    pool = Pool(gpu, 4 * GIB)
    for place, span in (("L2", 16 * MIB), ("DRAM", pool.size)):
        for ctas in (1, gpu.sms):
            for size, depth in ((4096, 1), (4096, 8), (16384, 1), (16384, 4), (16384, 8), (65536, 2)):
                n = 4 * MIB // size
                launch = gpu.prepare(
                    "bulk_store", ctas, 32, pool.ptr, size, depth, span // size, n, gpu.times, shared=WHOLE_SM
                )
                if place == "L2":
                    launch()
                probe.rate("bulk_store", f"ctas={ctas} to {place} piece={size} depth={depth}", float(n) * size * ctas,
                           ctas, launch,
                           "one thread an SM, to the last write's end", repeats=2)  # fmt: skip


def async_multicast(probe: Probe) -> None:
    """Bulk copies with multicast in clusters."""
    gpu = probe.gpu
    pool = Pool(gpu, GIB)
    size = 96 * KIB
    for cluster in (1, 2, 4, 8):
        for clusters in (1, 128 // cluster):
            grid, rounds = cluster * clusters, 64
            launch = gpu.prepare(
                "bulk_multicast_rate",
                grid,
                32,
                pool.ptr,
                size,
                16 * MIB // size,
                rounds,
                gpu.times,
                shared=WHOLE_SM,
                cluster=cluster,
            )
            launch()
            shape = f"cluster={cluster} ctas={grid} from L2"
            got = probe.rate("bulk_multicast", shape, float(size) * rounds * grid, grid, launch,
                             "bytes that arrive; each CTA loads a part, 2 rounds in flight", repeats=2)  # fmt: skip
            if got and probe.clock_mhz:
                probe.row("bulk_multicast", shape, "B_per_clk_per_sm", got / grid / probe.clock_mhz * 1e3, "B/clk", "",
                          impl="cp.async.bulk")  # fmt: skip


TASKS: dict[str, tuple[Callable[[Probe], None], ...]] = {
    "launch": (
        launch_null, launch_stamps, launch_shared, launch_pairs, launch_ctas, launch_spread,
        launch_code, launch_dependent, launch_clusters,
    ),
    "dram": (dram_read, dram_mix, dram_latency, dram_random, dram_tlb),
    "l2": (l2_latency, l2_bandwidth, l2_gpcs, l2_capacity, l2_atomics),
    "sm": (sm_ops, sm_mma, sm_barriers, sm_shared, sm_wgmma),
    "async": (async_mbarrier, async_flags, async_copies, async_clusters, async_bulk_latency,
              async_bulk_rate, async_bulk_store, async_multicast),
}  # fmt: skip


def name_of(task: Callable[[Probe], None]) -> str:
    """A measurement's name: l2_latency is l2.latency."""
    return task.__name__.replace("_", ".", 1)


def chosen(patterns: Sequence[str]) -> dict[str, list[Callable[[Probe], None]]]:
    """The measurements whose name contains one of the patterns, by group; all without patterns."""
    result = {}
    for group, tasks in TASKS.items():
        kept = [task for task in tasks if not patterns or any(pattern in name_of(task) for pattern in patterns)]
        if kept:
            result[group] = kept
    return result


def run_group(probe: Probe, group: str, tasks: Sequence[Callable[[Probe], None]]) -> int:
    """Measures a group; the number of measurements that failed."""
    failed = 0
    probe.group = group
    for i, task in enumerate(tasks):
        began = time.monotonic()
        try:
            probe.check_time()
            task(probe)
        except OutOfTime:
            print(
                f"out of time in {name_of(task)}; skipped: {', '.join(map(name_of, tasks[i + 1 :])) or 'nothing more'}",
                flush=True,
            )
            break
        except Exception as error:
            failed += 1
            print(f"failed: {name_of(task)}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        print(f"# {name_of(task)}: {time.monotonic() - began:.1f} s", flush=True)
    return failed


def device_info(cupy: Any) -> dict[str, str]:
    """What every row says of the device."""
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(0)["name"]
    driver = ""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip().split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        driver = str(runtime.driverGetVersion())
    version = runtime.runtimeGetVersion()
    return {
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "driver": driver,
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "date": datetime.date.today().isoformat(),
    }


def child(options: argparse.Namespace) -> int:
    """Runs one group in this process."""
    import cupy

    driver = ctypes.CDLL("libcuda.so.1")
    text = source_text()
    cupy.cuda.runtime.setDevice(0)
    cupy.zeros(1)  # makes the context
    gpu = Gpu(cupy, driver, Path(options.cubin).read_bytes(), signatures(text))
    probe = Probe(gpu, options, device_info(cupy), time.monotonic() + options.time_limit)
    probe.measure_clock()
    group = options.group
    failed = run_group(probe, group, chosen(options.only)[group])
    print(f"# {group}: {probe.rows} rows, {failed} failed, clock {probe.clock_mhz:.0f} MHz", flush=True)
    return 1 if failed else 0


def need_device() -> None:
    """Refuses where there is no CuPy or no GPU."""
    try:
        import cupy
    except ImportError:
        raise Refusal("probe_memory needs CuPy: pip install cupy-cuda13x") from None
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
        capability = str(cupy.cuda.Device(0).compute_capability) if count else ""
    except Exception as error:
        raise Refusal(f"probe_memory needs an NVIDIA GPU: {type(error).__name__}: {str(error)[:100]}") from None
    if not count:
        raise Refusal("probe_memory needs an NVIDIA GPU")
    if capability != "90":
        raise Refusal(f"probe_memory is for compute capability 9.0 (Hopper), not {capability}")


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    result.add_argument("--out", default="probes.csv", help="CSV file to write (an existing one is continued)")
    result.add_argument("--time-limit", type=float, default=120.0, help="seconds for everything")
    result.add_argument("--only", nargs="*", default=[], help="groups or measurements, by parts of their names")
    result.add_argument("--quick", action="store_true", help="few sizes and repetitions")
    result.add_argument("--list", action="store_true", help="print the names of the measurements")
    result.add_argument("--cubin", help="kernels compiled before")
    result.add_argument("--build", metavar="FILE", help="compile the kernels into FILE and end")
    result.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    return result


def cubin_of(options: argparse.Namespace, folder: str) -> Path:
    """The kernels: given, found beside this file with the source's checksum in the name, or compiled now."""
    text = source_text()
    if options.cubin:
        return Path(options.cubin)
    stamp = hashlib.sha256(text.encode()).hexdigest()[:12]
    beside = SOURCE.with_name(f"probe_memory-{stamp}.cubin")
    if beside.exists():
        return beside
    path = Path(folder) / beside.name
    compile_source(path, text)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen groups, each in a process of its own."""
    options = parser().parse_args(arguments)
    groups = chosen(options.only)
    if options.list:
        for tasks in groups.values():
            for task in tasks:
                print(name_of(task))
        return 0
    if options.build:
        compile_source(Path(options.build), source_text())
        return 0
    if options.group:
        return child(options)
    try:
        if not groups:
            raise Refusal(f"no measurement is called {' or '.join(options.only)}; --list prints them")
        need_device()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    start = time.monotonic()
    out = Path(options.out)
    if not out.exists() or out.stat().st_size == 0:
        with open(out, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow((*SCHEMA, *EXTRA))
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        cubin = cubin_of(options, folder)
        print(f"# kernels: {cubin.name}, {time.monotonic() - start:.1f} s", flush=True)
        names = list(groups)
        for i, group in enumerate(names):
            left = options.time_limit - (time.monotonic() - start)
            if left < 4:
                print(f"out of time; skipped: {', '.join(names[i:])}", flush=True)
                break
            share = left * GROUPS[group] / sum(GROUPS[name] for name in names[i:])
            command = [sys.executable, str(Path(__file__).resolve()), "--group", group, "--out", str(out),
                       "--cubin", str(cubin),
                       "--time-limit", f"{max(1.0, share - 3):.1f}", *(["--quick"] if options.quick else []),
                       *(["--only", *options.only] if options.only else [])]  # fmt: skip
            try:
                worst = max(worst, subprocess.run(command, timeout=share + 15).returncode)
            except subprocess.TimeoutExpired:
                print(f"{group} was ended after {share + 15:.0f} s", flush=True)
                worst = 1
    print(f"# {time.monotonic() - start:.0f} s", flush=True)
    return 1 if worst else 0


if __name__ == "__main__":
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    sys.exit(main())
