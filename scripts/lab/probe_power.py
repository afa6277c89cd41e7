#!/usr/bin/env python3
"""Measures power, clock and rate of classes of GPU instructions and writes rows of the schema of memory_probes.csv.

    python probe_power.py --out power.csv --series power_series.csv --time-limit 170
    python probe_power.py --out power.csv --only wgmma --quick

It needs CuPy, nvidia-ml-py and `probe_power.cu` beside it, which it compiles with nvcc, or else NVRTC. A cubin named
after the text of that file, as `--compile-only` writes it, is taken first. It changes no setting of the card. Rows are
written as they come; a measurement that fails prints a line, and the rest goes on.

How it measures. A kernel repeats a body of instructions until a time by the global timer is over; each warp counts its
bodies and the cycles of its SM after a warm-up. Rate and clock are of these. Meanwhile the host polls NVML: power is
the difference of the energy counter between two of its updates; the two power readings are averaged beside it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SCHEMA = ("source_id", "device", "op", "dtype", "shape", "impl", "metric", "value", "unit", "method_notes", "url")
EXTRA = ("date", "driver", "cuda", "clock_mhz", "power_w", "temperature_c")
SERIES = ("series", "time_us", "clock_mhz", "power_w")
SERIES_ROWS = 20000
LOG_PAIRS = 16384
BIG = 1 << 32
"""Bytes of the two buffers in device memory."""
SMALL = 1 << 18
"""Bytes of operands of the other kernels."""
L2_SPAN = 1 << 24
L1_SPAN = 1 << 17
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe_power.cu")


class Refusal(Exception):
    """Something that a person can put right; the message says how."""


@dataclass(frozen=True)
class Kernel:
    """What one body of a kernel does: instructions a warp, work of each, and how it is launched."""

    dtype: str
    count: int
    work: float
    unit: str
    inner: int
    values: str = "bits"
    threads: int = 1024
    ctas: int = 1
    carveout: int = -1
    span: int = 0
    traffic: str = ""
    sass: str = ""


def _chain(dtype: str, inner: int, values: str, sass: str, work: float = 32, unit: str = "lane op") -> Kernel:
    return Kernel(dtype, 256, work, unit, inner, values, sass=sass)


def _wgmma(dtype: str, k: int, sass: str) -> Kernel:
    flops = 2 * 64 * 256 * k / 4
    return Kernel(dtype, 16, flops, "FLOP", 10, dtype, threads=128, ctas=2, carveout=100, sass=sass)


KERNELS: dict[str, Kernel] = {
    "spin_clock": Kernel("none", 64, 1, "warp instruction", 64, sass="CS2R.32, half a LOP3 each"),
    "sleep_only": Kernel("none", 1, 1, "warp instruction", 8, sass="NANOSLEEP of 2 us"),
    "empty_loop": Kernel("none", 4, 1, "warp instruction", 2000, sass="LOP3, UIADD3, ISETP, BRA"),
    "ffma": _chain("fp32", 24, "unit", "FFMA"),
    "fadd": _chain("fp32", 24, "opposite", "FADD"),
    "fmul": _chain("fp32", 24, "inverse", "FMUL"),
    "hfma2": _chain("fp16", 24, "unit_fp16", "HFMA2 and HFMA2.MMA in turn", 64),
    "hfma2_bf16": _chain("bf16", 24, "unit_bf16", "HFMA2.BF16_V2 and HFMA2.MMA.BF16_V2 in turn", 64),
    "dfma": _chain("fp64", 12, "unit_fp64", "DFMA"),
    "iadd3": _chain("int32", 12, "bits", "IADD3"),
    "imad": _chain("int32", 12, "bits", "IMAD"),
    "lop3": _chain("int32", 12, "bits", "LOP3 (exclusive or of three)"),
    "shf": _chain("int32", 12, "bits", "SHF.L.W"),
    "prmt": _chain("int32", 12, "bits", "PRMT"),
    "fmnmx": _chain("fp32", 12, "opposite", "FMNMX"),
    "f2fp": _chain("fp16", 12, "normal", "F2FP.F16.F32.PACK_AB"),
    "f2i": _chain("int32", 4, "integers", "F2I and I2FP in turn"),
    "f2f64": _chain("fp64", 3, "normal", "F2F.F64.F32 and F2F.F32.F64 in turn"),
    "mufu_ex2_lg2": _chain("fp32", 3, "normal", "MUFU.EX2 and MUFU.LG2 in turn"),
    "shfl": _chain("int32", 6, "bits", "SHFL.BFLY"),
    "lds32": Kernel("b32", 64, 128, "B", 24, sass="LDS"),
    "lds64": Kernel("b64", 64, 256, "B", 12, sass="LDS.64"),
    "lds128": Kernel("b128", 64, 512, "B", 6, sass="LDS.128"),
    "sts32": Kernel("b32", 64, 128, "B", 24, sass="STS"),
    "sts128": Kernel("b128", 64, 512, "B", 6, sass="STS.128 with 3 MOV to 8"),
    "ldg32_l1": Kernel("b32", 8, 128, "B", 100, carveout=0, span=L1_SPAN, sass="LDG.E, half a LOP3 each"),
    "ldg128_l1": Kernel("b128", 8, 512, "B", 48, carveout=0, span=L1_SPAN, sass="LDG.E.128, 2 LOP3 each"),
    "ldg128_cg": Kernel("b128", 8, 512, "B", 12, span=BIG, traffic="in", sass="LDG.E.128.STRONG.GPU, 2 LOP3 each"),
    "stg128": Kernel("b128", 8, 512, "B", 8, span=BIG, traffic="out", sass="STG.E.128, 3 MOV each"),
    "copy128": Kernel("b128", 8, 512, "B", 8, span=BIG, traffic="both", sass="LDG.E.128 and STG.E.128; bytes of both"),
    "mma_fp16": Kernel("fp16", 64, 4096, "FLOP", 30, "mma_fp16", 512, sass="HMMA.16816.F32"),
    "mma_bf16": Kernel("bf16", 64, 4096, "FLOP", 30, "mma_bf16", 512, sass="HMMA.16816.F32.BF16"),
    "mma_tf32": Kernel("tf32", 64, 2048, "FLOP", 30, "mma_tf32", 512, sass="HMMA.1688.F32.TF32"),
    "mma_int8": Kernel("int8", 64, 8192, "FLOP", 30, "mma_int8", 512, sass="IMMA.16832.S8.S8"),
    "mma_fp64": Kernel("fp64", 64, 512, "FLOP", 24, "mma_fp64", 512, sass="DMMA.8x8x4"),
    **{
        f"wgmma_{dtype}_{side}": _wgmma(dtype, k, f"{sass}, A from {place}")
        for dtype, k, sass in (
            ("bf16", 16, "HGMMA.64x256x16.F32.BF16"),
            ("fp16", 16, "HGMMA.64x256x16.F32"),
            ("tf32", 8, "HGMMA.64x256x8.F32.TF32"),
            ("fp8", 32, "QGMMA.64x256x32.F32.E4M3.E4M3"),
            ("int8", 32, "IGMMA.64x256x32.S8.S8"),
        )
        for side, place in (("ss", "shared memory"), ("rs", "registers"))
    },
}  # fmt: skip
"""Work is of a warp; `values` says what random operands are."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    name: str
    kernel: str
    data: str = "random"
    seconds: float = 1.0
    warm: float = 0.3
    share: float = 1.0
    """Of the SMs."""
    grid: int = 0
    """CTAs, if not by the share."""
    threads: int = 0
    ctas: int = 0
    on_us: float = 0.0
    period_us: float = 0.0
    spread: bool = True
    """CTAs begin their periods one after the other, instead of all at once."""
    span: int = 0
    beside: str = ""
    """A second kernel that runs at the same time."""
    series: str = ""
    log_us: float = 2000.0
    idle_s: float = 0.0
    """Idle time before it."""

    @property
    def lasts(self) -> float:
        """Seconds."""
        return self.idle_s + self.warm + self.seconds + 0.05


def cases() -> list[Case]:
    """The full set, what matters most first."""
    found = [
        Case("idle_no_context", "", seconds=3.0, warm=0.0),
        Case("idle_context", "", seconds=2.5, warm=0.0),
        Case("sensors", "spin_clock", grid=1, threads=32, seconds=1.5, warm=0.3),
        Case("spin_one_warp", "spin_clock", grid=1, threads=32),
        Case("spin_warp_each_sm", "spin_clock", threads=32),
        Case("spin_full", "spin_clock"),
        Case("sleep_full", "sleep_only"),
        Case("empty_loop_full", "empty_loop"),
        Case("idle_after_load", "", seconds=1.5, warm=0.0),
        Case("steady_wgmma_bf16_ss", "wgmma_bf16_ss", seconds=3.7, series="wgmma_bf16_random", idle_s=1.5),
        Case("bursts_wgmma_bf16_ss", "wgmma_bf16_ss", seconds=1.7, series="wgmma_bf16_bursts", idle_s=1.5, log_us=250,
             on_us=3000, period_us=30000, spread=False),
        Case("steady_ffma", "ffma", seconds=1.7, series="ffma_random", idle_s=1.5),
    ]  # fmt: skip
    first = (
        *("ffma", "wgmma_fp16_ss", "wgmma_fp8_ss", "wgmma_tf32_ss", "wgmma_int8_ss", "wgmma_bf16_rs"),
        *("ldg128_cg", "dfma", "hfma2", "imad", "iadd3", "lop3", "mufu_ex2_lg2", "lds128", "ldg128_l1"),
        *("mma_fp16", "mma_bf16", "mma_tf32", "mma_int8", "mma_fp64", "copy128", "stg128"),
    )
    rest = (
        *("fadd", "fmul", "hfma2_bf16", "shf", "prmt", "fmnmx", "f2fp", "f2i", "f2f64", "shfl", "lds32", "lds64"),
        *("sts32", "sts128", "ldg32_l1", "wgmma_fp8_rs", "wgmma_fp16_rs", "wgmma_tf32_rs", "wgmma_int8_rs"),
    )
    found += [Case(name, name) for name in first]
    found.insert(found.index(Case("ldg128_cg", "ldg128_cg")), Case("ldg128_l2", "ldg128_cg", span=L2_SPAN))
    brief = {"seconds": 0.75, "warm": 0.25}
    steady = Case("steady_wgmma_bf16_ss", "wgmma_bf16_ss", "zeros", seconds=3.0, series="wgmma_bf16_zeros", idle_s=1.0)
    found.append(steady)
    found.append(Case("wgmma_bf16_ss_beside_copy", "wgmma_bf16_ss", seconds=2.5, ctas=1, beside="copy128"))
    wide = ("ffma", "dfma", "imad", "iadd3", "lop3", "hfma2", "lds128", "ldg128_l1", "ldg128_cg", "copy128", "stg128",
            "mma_fp16", "mma_bf16", "mma_int8", "mma_fp64", "wgmma_fp16_ss", "wgmma_tf32_ss", "wgmma_fp8_ss",
            "wgmma_int8_ss", "wgmma_bf16_rs")  # fmt: skip
    found += [Case(name, name, "zeros", **brief) for name in wide]
    found.append(Case("ldg128_l2", "ldg128_cg", "zeros", span=L2_SPAN, **brief))
    for name in ("wgmma_bf16_ss", "ffma"):
        for data in ("random", "zeros"):
            found += [Case(name, name, data, share=share, **brief) for share in (0.5, 0.25)]
            found.append(Case(name, name, data, on_us=400, period_us=800, **brief))
    found += [
        Case("wgmma_bf16_ss", "wgmma_bf16_ss", ctas=1, **brief),
        Case("ffma", "ffma", threads=128, **brief),
        Case("lds128", "lds128", share=0.5, **brief),
        Case("ldg128_cg", "ldg128_cg", share=0.25, **brief),
        Case("ldg128_cg", "ldg128_cg", share=0.125, **brief),
        Case("mufu_ex2_lg2", "mufu_ex2_lg2", threads=128, **brief),
        Case("spin_full", "spin_clock", share=0.5, **brief),
    ]
    found += [Case(name, name, **brief) for name in rest]
    found += [
        Case(name, name, "zeros", seconds=0.6, warm=0.2)
        for name in (*rest[:15], "mufu_ex2_lg2", "mma_tf32") if KERNELS[name].unit != "FLOP"
    ]  # fmt: skip
    return found


def fp8_codes(numpy: Any, values: Any) -> Any:
    """Nearest e4m3 codes of numbers."""
    codes = [code for code in range(256) if code & 0x7F != 0x7F and code != 0x80]

    def value(code: int) -> float:
        exponent, mantissa = code >> 3 & 15, code & 7
        size = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
        return -size if code & 0x80 else size

    codes.sort(key=value)
    table = numpy.array([value(code) for code in codes])
    middle = (table[1:] + table[:-1]) / 2
    return numpy.array(codes, dtype=numpy.uint8)[numpy.searchsorted(middle, values)]


def operands(numpy: Any, values: str, seed: int = 1) -> bytes:
    """`SMALL` bytes of random operands."""
    random = numpy.random.default_rng(seed)
    words = SMALL // 4
    chain = 8 * 1024
    """Words of one of x, a, b of the eight chains (four in 64 bits)."""

    def unit(count: int) -> Any:
        return (random.uniform(0.5, 0.95, count) * random.choice([-1.0, 1.0], count)).astype(numpy.float32)

    def bf16(array: Any) -> Any:
        return (array.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)

    kind = values.removeprefix("mma_")
    if kind == "bits":
        return random.integers(0, 256, SMALL, dtype=numpy.uint8).tobytes()
    if kind == "unit":
        return unit(words).tobytes()
    if kind == "unit_fp16":
        return unit(2 * words).astype(numpy.float16).tobytes()
    if kind == "unit_bf16":
        return bf16(unit(2 * words)).tobytes()
    if kind == "unit_fp64":
        return (random.uniform(0.5, 0.95, words // 2) * random.choice([-1.0, 1.0], words // 2)).tobytes()
    if kind == "opposite":
        array = random.standard_normal(words).astype(numpy.float32)
        array[chain : 2 * chain] = -numpy.abs(array[chain : 2 * chain]) - numpy.float32(0.1)
        array[2 * chain : 3 * chain] = -array[chain : 2 * chain]
        return array.tobytes()
    if kind == "inverse":
        x, a = (random.uniform(1, 2, 64 * chain).astype(numpy.float32) for _ in range(2))
        b = numpy.float32(1) / a
        good = numpy.flatnonzero((x * a) * b == x)[:chain]
        rest = numpy.zeros(words - 3 * chain, dtype=numpy.float32)
        return numpy.concatenate([x[good], a[good], b[good], rest]).tobytes()
    if kind == "integers":
        return random.integers(-(1 << 22), 1 << 22, words).astype(numpy.float32).tobytes()
    if kind in ("normal", "tf32"):
        return random.standard_normal(words).astype(numpy.float32).tobytes()
    if kind == "fp16":
        return random.standard_normal(2 * words).astype(numpy.float16).tobytes()
    if kind == "bf16":
        return bf16(random.standard_normal(2 * words)).tobytes()
    if kind == "fp64":
        return random.standard_normal(words // 2).tobytes()
    if kind == "fp8":
        return fp8_codes(numpy, random.standard_normal(4 * words)).tobytes()
    if kind == "int8":
        array = numpy.clip(numpy.rint(random.standard_normal(4 * words) * 32), -127, 127)
        return array.astype(numpy.int8).tobytes()
    raise ValueError(values)


def counter_power(samples: Sequence[tuple[float, float]]) -> float | None:
    """Power in watts of (seconds, joules), from the first change to the last; None with fewer than two changes."""
    changes = [now for before, now in itertools.pairwise(samples) if now[1] != before[1]]
    if len(changes) < 2 or changes[-1][0] <= changes[0][0]:
        return None
    return (changes[-1][1] - changes[0][1]) / (changes[-1][0] - changes[0][0])


def intervals(samples: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds from one change of a value to the next."""
    changes = [now[0] for before, now in itertools.pairwise(samples) if now[1] != before[1]]
    return [b - a for a, b in itertools.pairwise(changes)]


def mean(values: Sequence[float]) -> float | None:
    """Mean; None of nothing."""
    return sum(values) / len(values) if values else None


def say(text: str) -> None:
    """A line to people."""
    print(f"probe_power: {text}", file=sys.stderr, flush=True)


@dataclass
class Sample:
    """One round of NVML readings; None where one is not to be had."""

    at: float
    energy_j: float | None = None
    instant_w: float | None = None
    usage_w: float | None = None
    clock_mhz: float | None = None
    memory_mhz: float | None = None
    reasons: float | None = None
    temperature_c: float | None = None


class Board:
    """What NVML says of one GPU. Nothing is set."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.instant = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", 186)
        self.dead: set[str] = set()

    def ask(self, name: str, question: Callable[[], float]) -> float | None:
        """An answer, or None; a question that failed is not asked again."""
        if name in self.dead:
            return None
        try:
            return question()
        except Exception as error:
            self.dead.add(name)
            say(f"NVML has no {name}: {error}")
            return None

    def energy(self) -> float | None:
        """Joules since the driver was loaded."""
        return self.ask("energy", lambda: self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1000)

    def instant_w(self) -> float | None:
        """Instant power."""

        def question() -> float:
            value = self.nvml.nvmlDeviceGetFieldValues(self.handle, [self.instant])[0]
            if value.nvmlReturn != 0:
                raise RuntimeError(f"NVML error {value.nvmlReturn}")
            return value.value.uiVal / 1000

        return self.ask("instant power", question)

    def usage_w(self) -> float | None:
        """Power as nvidia-smi has it: averaged."""
        return self.ask("power", lambda: self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000)

    def clock(self, kind: int = 1) -> float | None:
        """MHz of the SMs (1) or of the memory (2)."""
        return self.ask(f"clock {kind}", lambda: float(self.nvml.nvmlDeviceGetClockInfo(self.handle, kind)))

    def temperature(self) -> float | None:
        """Degrees Celsius."""
        return self.ask("temperature", lambda: float(self.nvml.nvmlDeviceGetTemperature(self.handle, 0)))

    def limit_w(self) -> float | None:
        """The limit in force."""
        return self.ask("limit", lambda: self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1000)

    def reasons(self) -> float | None:
        """Bits of why the clock is not higher."""
        return self.ask("reasons", lambda: float(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)))

    def sample(self, clock: bool = False) -> Sample:
        """Energy, both powers, and if asked for clocks, what holds them down and temperature."""
        taken = Sample(time.perf_counter(), self.energy(), self.instant_w(), self.usage_w())
        if clock:
            taken.clock_mhz, taken.memory_mhz = self.clock(), self.clock(2)
            taken.reasons, taken.temperature_c = self.reasons(), self.temperature()
        return taken


def cubin_path() -> str:
    """The compiled kernels of this text beside it."""
    with open(SOURCE, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:12]
    return os.path.join(os.path.dirname(SOURCE), f"probe_power.{digest}.cubin")


def compile_kernels(target: str, arch: str) -> str:
    """Compiles into `target` and says with what."""
    nvcc = shutil.which("nvcc") or next((p for p in ("/usr/local/cuda/bin/nvcc",) if os.path.exists(p)), None)
    if nvcc:
        number = arch.removeprefix("sm_")
        order = [nvcc, f"-gencode=arch=compute_{number},code={arch}", "-cubin", "-o", target, SOURCE]
        done = subprocess.run(order, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return "nvcc"
        say(f"nvcc failed, NVRTC is tried: {done.stderr[:500]}")
    from cupy_backends.cuda.libs import nvrtc

    with open(SOURCE, encoding="utf-8") as source:
        program = nvrtc.createProgram(source.read(), "probe_power.cu", [], [])
    try:
        nvrtc.compileProgram(program, [f"--gpu-architecture={arch}"])
    except Exception:
        say(str(nvrtc.getProgramLog(program))[:1000])
        raise
    with open(target, "wb") as file:
        file.write(nvrtc.getCUBIN(program) + b"\0")  # CuPy leaves out the last byte
    return "NVRTC"


@dataclass
class Found:
    """What a launch gave: bodies a second and clock, and NVML's readings within the window."""

    samples: list[Sample]
    rate: float = 0.0
    beside_rate: float = 0.0
    clock_mhz: float | None = None
    clock_low: float | None = None
    clock_high: float | None = None
    window_s: float = 0.0
    log: list[tuple[int, int]] = field(default_factory=list)
    before: list[Sample] = field(default_factory=list)
    during: list[Sample] = field(default_factory=list)
    launched: float = 0.0
    notes: list[str] = field(default_factory=list)


class Bench:
    """The GPU with its buffers and kernels."""

    def __init__(self, cupy: Any, numpy: Any, board: Board) -> None:
        self.cp, self.np, self.board = cupy, numpy, board
        cupy.cuda.Device(0).use()
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        name = properties["name"]
        self.device = name.decode() if isinstance(name, bytes) else str(name)
        self.sms = int(properties["multiProcessorCount"])
        self.arch = f"sm_{properties['major']}{properties['minor']}" + ("a" if properties["major"] >= 9 else "")
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        self.module: Any = None
        self.small = cupy.cuda.alloc(SMALL)
        self.stats = [cupy.empty(4 * self.sms * 64, dtype=numpy.uint64) for _ in range(2)]
        self.log = cupy.empty(1 + 2 * LOG_PAIRS, dtype=numpy.uint64)
        self.sink = cupy.cuda.alloc(1 << 24)
        self.big: dict[str, Any] = {}
        self.state: dict[str, str] = {}
        self.made: dict[str, bytes] = {}
        self.offset_s: float | None = None

    def load(self) -> None:
        """The kernels, compiled if need be."""
        path = cubin_path()
        if os.path.exists(path) and self.arch == "sm_90a":
            say(f"kernels of {os.path.basename(path)}")
        else:
            path = os.path.join(tempfile.mkdtemp(prefix="probe_power"), "probe_power.cubin")
            say(f"compiled for {self.arch} with {compile_kernels(path, self.arch)}")
        self.module = self.cp.RawModule(path=path)

    def put(self, target: int, data: bytes) -> None:
        """Copies bytes to the device."""
        array = self.np.frombuffer(data, dtype=self.np.uint8)
        self.cp.cuda.runtime.memcpy(target, array.ctypes.data, len(data), 1)

    def prepare(self, kernel: Kernel, data: str) -> tuple[int, int]:
        """Addresses of operands and results."""
        values = kernel.values if data == "random" else "zeros"
        if kernel.traffic not in ("in", "both") and self.state.get("small") != values:
            if values not in self.made:
                self.made[values] = bytes(SMALL) if values == "zeros" else operands(self.np, values)
            self.put(self.small.ptr, self.made[values])
            self.state["small"] = values
        source, target = self.small.ptr, self.sink.ptr
        if kernel.traffic in ("in", "both"):
            source = self.buffer("in", values)
        if kernel.traffic in ("out", "both"):
            target = self.buffer("out", "")
        return source, target

    def buffer(self, name: str, values: str) -> int:
        """A large buffer that holds random bits or zeros."""
        if name not in self.big:
            self.big[name] = self.cp.cuda.alloc(BIG)
        address = self.big[name].ptr
        if values and self.state.get(name) != values:
            runtime = self.cp.cuda.runtime
            if values == "zeros":
                runtime.memset(address, 0, BIG)
            else:
                part = 1 << 26
                self.put(address, self.np.random.default_rng(2).integers(0, 256, part, dtype=self.np.uint8).tobytes())
                while part < BIG:
                    runtime.memcpy(address + part, address, part, 3)
                    part *= 2
            runtime.deviceSynchronize()
            self.state[name] = values
        return address

    def launch(self, case: Case, name: str, slot: int, ctas: int, threads: int) -> Callable[[], None]:
        """Makes ready; the result launches."""
        kernel, np = KERNELS[name], self.np
        function = self.module.get_function(f"probe_{name}")
        carveout = 100 if case.beside else kernel.carveout
        if carveout >= 0:
            try:
                function.preferred_shared_memory_carveout = carveout
            except Exception as error:
                say(f"{case.name}: no carve-out: {error}")
        source, target = self.prepare(kernel, case.data)
        stat = self.stats[slot]
        stat.set(np.zeros(stat.shape, dtype=np.uint64))
        log = 0
        if case.series:
            self.log.set(np.zeros(self.log.shape, dtype=np.uint64))
            log = self.log.data.ptr
        period = int(case.period_us * 1000)
        inner = max(1, kernel.inner // (2 if case.series else 1))
        numbers = (
            int(case.warm * 1e9), int((case.warm + case.seconds) * 1e9), inner,
            int(case.on_us * 1000), period, period // ctas if case.spread else 0, case.span or kernel.span,
            LOG_PAIRS if log else 0, int(case.log_us * 1000),
        )  # fmt: skip
        arguments = (*(np.uint64(a) for a in (source, target, stat.data.ptr, log)), *(np.int64(n) for n in numbers))
        self.cp.cuda.runtime.deviceSynchronize()

        def go() -> None:
            with self.streams[slot]:
                function((ctas,), (threads,), arguments)

        return go

    def shape(self, case: Case, name: str) -> tuple[int, int]:
        """CTAs and threads of each."""
        kernel = KERNELS[name]
        ctas = case.grid or max(1, round(self.sms * case.share)) * (case.ctas or kernel.ctas)
        return ctas, case.threads or kernel.threads

    def poll(self, until: Callable[[], bool], pause_s: float = 0.002) -> list[Sample]:
        """NVML's readings until something is so."""
        samples: list[Sample] = []
        while not until():
            samples.append(self.board.sample(len(samples) % 16 == 0))
            time.sleep(pause_s)
        return samples

    def idle(self, seconds: float) -> list[Sample]:
        """Readings while nothing is launched."""
        end = time.perf_counter() + seconds
        return self.poll(lambda: time.perf_counter() >= end)

    def clocks_agree(self) -> float:
        """Seconds to add to the GPU's timer for the host's, from the quickest of some small launches."""
        if self.offset_s is None:
            case = Case("stamp", "empty_loop", seconds=1e-6, warm=0.0, grid=1, threads=32)
            best = (math.inf, 0.0)
            for _ in range(10):
                go = self.launch(case, "empty_loop", 0, 1, 32)
                begin = time.perf_counter()
                go()
                self.streams[0].synchronize()
                end = time.perf_counter()
                best = min(best, (end - begin, end - float(int(self.stats[0].get()[3])) * 1e-9))
            self.offset_s = best[1]
        return self.offset_s

    def measure(self, case: Case) -> Found:
        """Runs one case."""
        if not case.kernel:
            return Found(self.idle(case.seconds))
        ctas, threads = self.shape(case, case.kernel)
        if case.series:
            self.clocks_agree()
        starts = [self.launch(case, case.kernel, 0, ctas, threads)]
        if case.beside:
            beside_ctas, beside_threads = self.shape(replace(case, ctas=0, grid=0, threads=0), case.beside)
            starts.append(self.launch(case, case.beside, 1, beside_ctas, beside_threads))
        before = self.idle(case.idle_s) if case.idle_s else []
        launched = time.perf_counter()
        for go in starts:
            go()
        streams = self.streams[: len(starts)]
        limit = launched + 3 * (case.warm + case.seconds) + 5

        def over() -> bool:
            if time.perf_counter() > limit:
                raise RuntimeError("the kernel does not end; what follows it cannot be trusted")
            return all(stream.done for stream in streams)

        during = self.poll(over)
        ended = time.perf_counter()
        for stream in streams:
            stream.synchronize()
        begin = launched + case.warm
        end = min(ended, launched + case.warm + case.seconds)
        found = Found([s for s in during if begin <= s.at <= end], before=before, during=during, launched=launched)
        self.read_stats(found, case, ctas, threads)
        if case.beside:
            found.beside_rate = self.rate(1, beside_ctas * beside_threads // 32)
        if case.series:
            log = self.log.get()
            count = int(log[0])
            found.log = [(int(log[1 + 2 * i]), int(log[2 + 2 * i])) for i in range(count)]
        if ended - launched > 1.5 * (case.warm + case.seconds) + 0.2:
            found.notes.append(f"took {ended - launched:.2f} s: not all CTAs were resident, rate and power are wrong")
        return found

    def rate(self, slot: int, warps: int) -> float:
        """Bodies a second of all warps."""
        rows = self.stats[slot].get()[: 4 * warps].reshape(-1, 4).astype(self.np.float64)
        return float((rows[:, 0] / self.np.maximum(rows[:, 2], 1)).sum() * 1e9)

    def read_stats(self, found: Found, case: Case, ctas: int, threads: int) -> None:
        """Rate and clock by what the warps wrote."""
        rows = self.stats[0].get()[: 4 * ctas * (threads // 32)].reshape(-1, 4).astype(self.np.float64)
        found.rate = self.rate(0, ctas * (threads // 32))
        clocks = rows[:, 1] / self.np.maximum(rows[:, 2], 1) * 1e3
        found.clock_mhz, found.clock_low, found.clock_high = (
            float(f) for f in (clocks.mean(), clocks.min(), clocks.max())
        )
        found.window_s = float(rows[:, 2].mean()) * 1e-9


class Writer:
    """Rows and series, flushed as they come."""

    def __init__(self, path: str, series_path: str, fixed: dict[str, str]) -> None:
        self.fixed = fixed
        self.files = [open(p, "a", newline="", encoding="utf-8") for p in (path, series_path)]  # noqa: SIM115
        self.rows = csv.DictWriter(self.files[0], [*SCHEMA, *EXTRA], restval="")
        self.series = csv.writer(self.files[1])
        if self.files[0].tell() == 0:
            self.rows.writeheader()
        if self.files[1].tell() == 0:
            self.series.writerow(SERIES)
        self.series_left = SERIES_ROWS
        self.flush()

    def flush(self) -> None:
        """To the disk."""
        for file in self.files:
            file.flush()

    def row(self, **columns: Any) -> None:
        """One row; a value of None is left out."""
        if columns.get("value") is not None:
            shown = {k: f"{v:.7g}" if isinstance(v, float) else v for k, v in columns.items() if v is not None}
            self.rows.writerow({**self.fixed, **shown})

    def time_series(self, case: Case, found: Found, offset_s: float) -> int:
        """Clock between two entries of the log, and the nearest power of NVML; how many rows."""
        readings = [(s.at, s.instant_w if s.instant_w is not None else s.usage_w) for s in found.before + found.during]
        readings = [(at, watts) for at, watts in readings if watts is not None]
        zero = found.log[0][0] * 1e-9 + offset_s if found.log else found.launched
        rows: list[tuple[float, float | None]] = [((at - zero) * 1e6, None) for at, _ in readings if at < zero][-100:]
        for (t0, c0), (t1, c1) in itertools.pairwise(found.log):
            if t1 > t0:
                rows.append((((t0 + t1) / 2 - found.log[0][0]) * 1e-3, (c1 - c0) / (t1 - t0) * 1e3))
        step = max(1, math.ceil(len(rows) / max(1, self.series_left)))
        rows = rows[::step] if self.series_left > 0 else []
        nearest = 0
        for us, clock in rows:
            at = zero + us * 1e-6
            while nearest + 1 < len(readings) and abs(readings[nearest + 1][0] - at) <= abs(readings[nearest][0] - at):
                nearest += 1
            power = f"{readings[nearest][1]:.1f}" if readings else ""
            self.series.writerow([case.series, f"{us:.1f}", "" if clock is None else f"{clock:.1f}", power])
        self.series_left -= len(rows)
        return len(rows)

    def close(self) -> None:
        """Closes both files."""
        for file in self.files:
            file.close()


def write_case(bench: Any, writer: Writer, case: Case, found: Found) -> None:
    """The rows of one measurement, and a line."""
    board = bench.board
    samples = found.samples
    counter = counter_power([(s.at, s.energy_j) for s in samples if s.energy_j is not None])
    instant = mean([s.instant_w for s in samples if s.instant_w is not None])
    usage = mean([s.usage_w for s in samples if s.usage_w is not None])
    shown = mean([s.clock_mhz for s in samples if s.clock_mhz is not None])
    power = counter if counter is not None else instant if instant is not None else usage
    held = [int(s.reasons) for s in samples if s.reasons is not None]
    memory = mean([s.memory_mhz for s in samples if s.memory_mhz is not None])
    warmth = [s.temperature_c for s in samples if s.temperature_c is not None]
    temperature = warmth[-1] if warmth else board.temperature()
    kernel = KERNELS.get(case.kernel)
    shape, notes = f"data={case.data if kernel else 'none'}", [*found.notes]
    if kernel:
        ctas, threads = bench.shape(case, case.kernel)
        shape = f"ctas={ctas} threads={threads} {shape}"
        notes += [f"kernel {case.kernel}: {kernel.count} a body: {kernel.sass}", f"window {found.window_s:.3f} s"]
        if case.period_us:
            shape += f" on_us={case.on_us:g} period_us={case.period_us:g}"
            notes.append("CTAs one after the other" if case.spread else "all SMs at once")
        span = case.span or kernel.span
        if span:
            shape += f" span={span}"
        notes.append(f"clock of warps {found.clock_low or 0:.0f} to {found.clock_high or 0:.0f} MHz")
        if case.beside:
            other = KERNELS[case.beside]
            notes.append(f"beside {case.beside}: {found.beside_rate * other.count * other.work:.5g} {other.unit}/s")
    often = ", ".join(f"{bits:#x} in {held.count(bits)}" for bits in sorted(set(held)))
    notes += [f"{len(samples)} NVML readings", f"clock reasons {often} of {len(held)}"]
    if memory is not None:
        notes.append(f"memory clock {memory:.0f} MHz")
    rows: list[tuple[str, float | None, str]] = [
        ("power_counter", counter, "W"), ("power_instant", instant, "W"), ("power_usage", usage, "W"),
        ("clock_nvml", shown, "MHz"),
    ]  # fmt: skip
    work = 0.0
    if kernel:
        issued = found.rate * kernel.count
        work = issued * kernel.work
        rows += [("clock", found.clock_mhz, "MHz"), ("issue_rate", issued, "warp instruction/s"),
                 ("work_rate", work, f"{kernel.unit}/s")]  # fmt: skip
        if power is not None and work > 0:
            rows.append(("energy_gross", power / work * 1e12, f"pJ/{kernel.unit}"))
    if power is not None:
        rows.append(("energy", power * (found.window_s or case.seconds), "J"))
    clock = found.clock_mhz if kernel else shown
    for metric, value, unit in rows:
        writer.row(
            op=case.name, dtype=kernel.dtype if kernel else "none", shape=shape, impl="CUDA kernel", metric=metric,
            value=value, unit=unit, method_notes="; ".join(notes), clock_mhz=clock, power_w=power,
            temperature_c=temperature,
        )  # fmt: skip
    if case.series:
        count = writer.time_series(case, found, bench.clocks_agree())
        notes.append(f"{count} rows of series {case.series}")
    writer.flush()
    text = f" {work:.4g} {kernel.unit}/s" if kernel else ""
    say(f"{case.name} {shape}: {power or 0:.1f} W, {clock or 0:.0f} MHz{text}" + "".join(f"; {n}" for n in found.notes))


def write_sensors(bench: Any, writer: Writer, case: Case) -> None:
    """How often each reading of NVML changes, and how long one takes, while one warp spins."""
    board = bench.board
    ctas, threads = bench.shape(case, case.kernel)
    go = bench.launch(case, case.kernel, 0, ctas, threads)
    go()
    time.sleep(case.warm)
    for name, question in (("energy", board.energy), ("instant", board.instant_w), ("usage", board.usage_w)):
        samples: list[tuple[float, float]] = []
        end = time.perf_counter() + case.seconds / 3
        while time.perf_counter() < end:
            value = question()
            if value is None:
                break
            samples.append((time.perf_counter(), value))
        steps = sorted(intervals(samples))
        call = (samples[-1][0] - samples[0][0]) / (len(samples) - 1) * 1e3 if len(samples) > 1 else None
        middle = steps[len(steps) // 2] * 1e3 if steps else None
        common = {"op": f"nvml_{name}", "dtype": "none", "shape": "one warp spins", "impl": "NVML", "unit": "ms"}
        spread = f"{steps[0] * 1e3:.2f} to {steps[-1] * 1e3:.2f} ms" if steps else "no change"
        writer.row(**common, metric="update_interval", value=middle, method_notes=f"median of {len(steps)}; {spread}")
        writer.row(**common, metric="call", value=call, method_notes=f"mean of {len(samples)}")
        say(f"NVML {name}: changes every {middle or 0:.1f} ms ({spread}), a call takes {call or 0:.3f} ms")
    bench.streams[0].synchronize()
    writer.flush()


def run(bench: Any, writer: Writer, todo: Sequence[Case], deadline: float) -> tuple[int, list[str]]:
    """Measures what fits; how many were, and the names of what was left out."""
    done, left = 0, []
    for case in todo:
        if time.perf_counter() + case.lasts > deadline:
            left.append(f"{case.name}/{case.data}")
            continue
        try:
            if case.name == "idle_no_context" and bench.module is not None:
                continue  # main() took it before there was a context
            if case.name == "sensors":
                write_sensors(bench, writer, case)
            else:
                write_case(bench, writer, case, bench.measure(case))
            done += 1
        except Exception as error:
            say(f"{case.name} {case.data} failed: {type(error).__name__}: {str(error)[:300]}")
            if any(word in str(error).lower() for word in ("illegal", "launch fail", "misaligned", "does not end")):
                say("the device's context is lost; everything after this would fail")
                left += [f"{c.name}/{c.data}" for c in todo[todo.index(case) + 1 :]]
                break
    return done, left


def open_board(cupy: Any) -> Board:
    """NVML's handle of CUDA's device 0."""
    try:
        import pynvml
    except ImportError:
        raise Refusal("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(cupy.cuda.runtime.deviceGetPCIBusId(0))
    except Exception as error:
        say(f"NVML by the bus address: {error}; its device 0 is taken")
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return Board(pynvml, handle)


def open_cupy() -> tuple[Any, Any]:
    """CuPy and NumPy; Refusal where they or a GPU are missing."""
    try:
        import cupy
        import numpy
    except ImportError:
        raise Refusal("CuPy is not installed: pip install cupy-cuda13x, or cupy-cuda12x for older drivers") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise Refusal(f"CuPy finds no CUDA device: {error}") from None
    if not count:
        raise Refusal("CuPy finds no CUDA device")
    return cupy, numpy


def selected(options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for; with --quick, brief ones."""
    found = [c for c in cases() if not options.only or re.search(options.only, f"{c.name}/{c.data}")]
    if options.quick:
        found = [replace(c, seconds=0.1, warm=0.03, idle_s=min(c.idle_s, 0.05)) for c in found]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when there are rows, 2 for wrong input or no device, 130 after Ctrl-C."""
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", default="probe_power.csv", metavar="FILE", help="rows, appended; default probe_power.csv")
    add("--series", default="probe_power_series.csv", metavar="FILE", help="clock and power over time, appended")
    add("--time-limit", type=float, default=120.0, metavar="S", help="seconds, default 120; the full set takes 160")
    add("--only", metavar="PATTERN", help="cases whose name/data holds this regular expression, such as wgmma.*zeros")
    add("--quick", action="store_true", help="0.1 s each, to see whether all works")
    add("--source", default="probe_power", metavar="NAME", help="source_id, default probe_power")
    add("--list", action="store_true", help="print the cases and their seconds, measure nothing")
    add("--compile-only", action="store_true", help="write the cubin for sm_90a beside this file, measure nothing")
    options = parser.parse_args(arguments)
    try:
        try:
            todo = selected(options)
        except re.error as error:
            raise Refusal(f"--only {options.only}: {error}") from None
        if options.list:
            for case in todo:
                print(f"{case.name}/{case.data} {case.lasts:.2f}")
            print(f"{len(todo)} cases, {sum(c.lasts for c in todo):.0f} s")
            return 0
        if options.compile_only:
            print(compile_kernels(cubin_path(), "sm_90a"), cubin_path())
            return 0
        cupy, numpy = open_cupy()
        board = open_board(cupy)
        try:
            driver = board.nvml.nvmlSystemGetDriverVersion()
            driver = driver.decode() if isinstance(driver, bytes) else str(driver)
        except Exception:
            driver = ""
        before: list[Sample] = []
        cold = next((c for c in todo if c.name == "idle_no_context"), None)
        if cold:
            end = time.perf_counter() + cold.seconds
            while time.perf_counter() < end:
                before.append(board.sample(len(before) % 16 == 0))
                time.sleep(0.005)
        bench = Bench(cupy, numpy, board)
        fixed = {
            "source_id": options.source, "device": bench.device, "date": time.strftime("%Y-%m-%d"), "driver": driver,
            "cuda": str(cupy.cuda.runtime.driverGetVersion()),
        }  # fmt: skip
        try:
            writer = Writer(options.out, options.series, fixed)
        except OSError as error:
            raise Refusal(f"{error.filename}: cannot be written: {error.strerror}") from None
        try:
            limit = board.limit_w()
            say(f"{bench.device}, {bench.sms} SMs, limit {limit or 0:.0f} W; {len(todo)} cases, "
                f"{sum(c.lasts for c in todo):.0f} s")  # fmt: skip
            writer.row(op="board", dtype="none", shape="", impl="NVML", metric="power_limit", value=limit, unit="W")
            done = 0
            if cold:
                write_case(bench, writer, cold, Found(before))
                done = 1
            try:
                bench.load()
            except Exception as error:
                raise Refusal(f"the kernels cannot be had: {type(error).__name__}: {str(error)[:300]}") from None
            more, left = run(bench, writer, [c for c in todo if c is not cold], start + options.time_limit)
            done += more
            if left:
                say(f"left out, {len(left)}: {' '.join(left)}")
            say(f"{done} measured in {time.perf_counter() - start:.0f} s")
        finally:
            writer.close()
        if not done:
            raise Refusal("nothing was measured; the lines above say why")
        return 0
    except Refusal as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted; the rows so far are kept")
        return 130


if __name__ == "__main__":
    sys.exit(main())
