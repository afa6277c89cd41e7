"""Measures the speed of the simulator itself and prints it beside its limits.

    scripts/bench [--only NAME ...] [--json]

Each case runs in a process of its own on warm compile caches; CPU seconds are of that process from the launch of the
kernel to its end. Exit code 1 if a limit is missed, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Case:
    """One measurement. limit: the most (`most`) or the least that is allowed, in `unit`."""

    name: str
    what: str
    unit: str
    limit: float
    most: bool = True

    def within(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        return value <= self.limit if self.most else value >= self.limit


CASES = (
    Case("wgmma-4096", "wgmma bf16 4096^3 on h100-sxm", "CPU s", 1.5),
    Case("wgmma-8192", "wgmma bf16 8192^3 on h100-sxm", "CPU s", 12.0),
    Case("mma-4096", "mma bf16 4096^3 on a100-sxm4-80gb", "M warp instructions a CPU s", 5.0, most=False),
    Case("stream-add", "streaming add of 64 Mi floats on a100-sxm4-80gb", "M warp instructions a CPU s", 2.0, False),
    Case("simt-8192", "fp32 8192^3 on t4", "CPU s", 60.0),
    Case("first-result", "process start to the first result, warm", "s", 1.5),
    Case("cold-compile", "process start to the first result, nothing compiled", "s", 40.0),
    Case("memory", "largest peak of memory of these cases", "MiB", 1024.0),
)


def _warm() -> None:
    """Loads the compiled engine, which is not part of a rate."""
    from arch.load import load_arch
    from sim.gpu.engine.api import Device
    from workloads.gpu import micro

    device = Device(load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 1}))
    device.run(micro.null(1).kernels[0], {})


def _gemm(size: int, dtype: str, arch: str, schedule: str) -> tuple[float, int]:
    """CPU seconds and warp instructions of a GEMM, through the public interface. The schedule is held: what `auto`
    picks, and how many candidates it simulates for it, changes between versions."""
    from arch.load import load_arch
    from sim.app.run import simulate
    from workloads.ops import Gemm

    spec = load_arch(arch)
    _warm()
    begin = time.process_time()
    report = simulate(Gemm(m=size, n=size, k=size, dtype=dtype), spec, schedule=schedule).to_dict()
    return time.process_time() - begin, int(report["simulator"]["warp_instructions"])


def _stream_add() -> tuple[float, int]:
    """CPU seconds and warp instructions of z = x + y, 16 B a thread."""
    from arch.load import load_arch
    from sim.gpu.engine.api import Device
    from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile

    elements, threads = 64 << 20, 256
    x, y, z = (GlobalTensor(name, (elements,), "fp32", (1,)) for name in "xyz")
    kernel = KernelBuilder("add", (elements // (4 * threads), 1, 1))
    with kernel.role("warps", warps=threads // 32, registers=32) as r:
        at = (CTA_X * (threads // 32) + WARP) * 128
        a, b = RegisterTile("a", (128,), "fp32"), RegisterTile("b", (128,), "fp32")
        r.ldg(a.whole, x[at:128], 1, into="x", mix=(("iadd", 6), ("imad", 4)))
        r.ldg(b.whole, y[at:128], 1, into="y")
        r.run("fadd", 4, dst=a.whole, srcs=(a.whole, b.whole), after=("x", "y"))
        r.stg(z[at:128], a.whole, 1)
    program = Program("add", (x, y, z), (kernel.build(),), "bench")
    device = Device(load_arch("a100-sxm4-80gb"))
    _warm()
    begin = time.process_time()
    result = device.run(program.kernels[0], program.addresses())
    return time.process_time() - begin, result.counters["instructions"]


RUNS: dict[str, Callable[[], tuple[float, int]]] = {
    "wgmma-4096": lambda: _gemm(4096, "bf16", "h100-sxm", "wgmma 256x128x64 cluster 2x2 stages 4"),
    "wgmma-8192": lambda: _gemm(8192, "bf16", "h100-sxm", "wgmma 256x128x64 cluster 2x2 stages 4"),
    "mma-4096": lambda: _gemm(4096, "bf16", "a100-sxm4-80gb", "mma 128x256x64 warp 64x64 cp.async stages 3"),
    "stream-add": _stream_add,
    "simt-8192": lambda: _gemm(8192, "fp32", "t4", "simt 128x64x16 warp 32x64 ldg stages 2"),
}


def _child(*arguments: str, **environment: str) -> str:
    """Standard output of this script (or a command line) in a fresh process."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout


def _first_result(**environment: str) -> float:
    """Seconds from process start to the first result of the command line."""
    code = "import sys; from sim.app.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ("run", "gemm", "m=256", "n=256", "k=256", "dtype=bf16", "--arch", "h100-sxm", "--json")
    begin = time.perf_counter()
    _child("-c", code, *words, **environment)
    return time.perf_counter() - begin


def measure(case: Case, peaks: list[float]) -> float:
    """The value of a case, in its unit; peaks: MiB of the cases so far."""
    if case.name == "memory":
        return max(peaks, default=0.0)
    if case.name == "first-result":
        _first_result()
        return min(_first_result() for _ in range(3))
    if case.name == "cold-compile":
        with tempfile.TemporaryDirectory() as folder:
            return _first_result(NUMBA_CACHE_DIR=folder)
    cpu_s, instructions, peak = json.loads(_child(os.path.abspath(__file__), "--child", case.name))
    peaks.append(peak)
    return float(cpu_s if case.most else instructions / cpu_s / 1e6)


def main() -> int:
    """Command line."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(RUNS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from sim.app.cost import peak_memory_bytes

        cpu_s, instructions = RUNS[options.child]()
        print(json.dumps([cpu_s, instructions, peak_memory_bytes() / (1 << 20)]))
        return 0
    peaks: list[float] = []
    results = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        value = measure(case, peaks)
        results.append({**asdict(case), "value": round(value, 3), "within": case.within(value)})
        if not options.json:
            sign = "<=" if case.most else ">="
            flag = "" if case.within(value) else "  MISSED"
            print(f"{case.what:52} {value:9.2f} {sign} {case.limit:g} {case.unit}{flag}", flush=True)
    if options.json:
        print(json.dumps(results, indent=1))
    return 0 if all(result["within"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
