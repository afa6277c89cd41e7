"""Measures the speed of the simulator itself and prints it beside its limits.

    scripts/bench [--only NAME ...] [--json]
    scripts/bench --against COMMIT [--pairs N] [--only NAME ...] [--json]

Each case runs in a process of its own on warm compile caches; CPU seconds are of that process from the launch of the
kernel to its end. `--against` states how many times as fast this version is as another: both run at the same time on
one CPU, which the system gives to them in turns of milliseconds, so that neighbours, clocks and caches of the host slow
both alike: ratios of one pair repeat to 1 % where seconds differ by half. Where the host put a process's memory still
tells, so that N pairs (default 5) of new processes run and the median of their ratios is stated.
Exit code 1 if a limit is missed, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)


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
    Case("stream-add", "addition of 1 GiB in fp32 on a100-sxm4-80gb", "CPU s", 6.0),
    Case("softmax-1gib", "softmax of 1 GiB in bf16 on h100-sxm", "CPU s", 10.0),
    Case("simt-8192", "fp32 8192^3 on t4", "CPU s", 60.0),
    Case("auto-gemm", "gemm bf16 4096^3 on h100-sxm, auto", "CPU s", 3.0),
    Case("auto-softmax", "softmax 8192 x 4096 on h100-sxm, auto", "CPU s", 3.0),
    Case("auto-tpu", "gemm int8 8192^3 on tpu-v1, auto", "CPU s", 8.0),
    Case("auto-sn40l", "gemm bf16 8192^3 on sn40l, auto", "CPU s", 4.0),
    Case("auto-sweep", "24 points of small products on h100-sxm, auto", "CPU s", 15.0),
    Case("auto-layer", "a decoder layer of llama3.1-8b on h100-sxm, auto", "CPU s", 4.0),
    Case("first-result", "process start to the first result, warm", "s", 1.5),
    Case("cold-compile", "process start to the first result, nothing compiled", "s", 40.0),
    Case("memory", "largest peak of memory of these cases", "MiB", 1024.0),
)


class Timed(NamedTuple):
    """What one run took and did."""

    cpu_s: float
    instructions: int
    cycles: int


def _warm() -> None:
    """Loads the compiled engine, which is not part of a rate."""
    from arch.load import load_arch
    from sim.gpu.engine.api import Device
    from workloads.gpu import micro

    device = Device(load_arch("h100-sxm", {"sm.count": 2, "gpc.count": 1}))
    device.run(micro.null(1).kernels[0], {})


def _run(op: str, arch: str, schedule: str) -> Timed:
    """An operator, through the public interface. Where the schedule is held, cycles tell versions apart, too: what
    `auto` picks, and how many candidates it simulates for it, changes between them."""
    from arch.load import load_arch
    from sim.app.run import simulate

    spec = load_arch(arch)
    _warm()
    begin = time.process_time()
    report = simulate(op, spec, schedule=schedule).to_dict()
    cpu_s = time.process_time() - begin
    return Timed(cpu_s, int(report["simulator"].get("warp_instructions", 0)), int(report["cycles"]))


def _gemm(size: int, dtype: str, arch: str, schedule: str) -> Timed:
    """A square product."""
    return _run(f"gemm m={size} n={size} k={size} dtype={dtype}", arch, schedule)


def _sweep() -> Timed:
    """A sweep in this process whose points choose for themselves."""
    from pathlib import Path

    from sim.app.study.sweep import sweep

    _warm()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        found = sweep(
            "gemm n=512 k=512 dtype=bf16", "h100-sxm", ["m=128:512:128", "sm.count=66:132:13"],
            tune=False, workers=1, store=Path(folder) / "store.sqlite",
        )  # fmt: skip
        cpu_s = time.process_time() - begin
    return Timed(cpu_s, 0, sum(int(row.answer.report["cycles"]) for row in found.rows if row.answer.report))


RUNS: dict[str, Callable[[], Timed]] = {
    "wgmma-4096": lambda: _gemm(4096, "bf16", "h100-sxm", "wgmma 256x128x64 cluster 2x2 stages 4"),
    "wgmma-8192": lambda: _gemm(8192, "bf16", "h100-sxm", "wgmma 256x128x64 cluster 2x2 stages 4"),
    "mma-4096": lambda: _gemm(4096, "bf16", "a100-sxm4-80gb", "mma 128x256x64 warp 64x64 cp.async stages 3"),
    "stream-add": lambda: _run("add n=89478485 dtype=fp32", "a100-sxm4-80gb", "fused warps 4 elements 8"),
    "softmax-1gib": lambda: _run("softmax rows=131072 cols=4096 dtype=bf16", "h100-sxm", "fused warps 4 rows 1"),
    "simt-8192": lambda: _gemm(8192, "fp32", "t4", "simt 128x64x16 warp 32x64 ldg stages 2"),
    "auto-gemm": lambda: _gemm(4096, "bf16", "h100-sxm", "auto"),
    "auto-softmax": lambda: _run("softmax rows=8192 cols=4096 dtype=bf16", "h100-sxm", "auto"),
    "auto-tpu": lambda: _gemm(8192, "int8", "tpu-v1", "auto"),
    "auto-sn40l": lambda: _gemm(8192, "bf16", "sn40l", "auto"),
    "auto-sweep": _sweep,
    "auto-layer": lambda: _run("llama model=llama3.1-8b phase=decode batch=1 seq=2048 layers=1", "h100-sxm", "auto"),
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
    cpu_s, instructions, _, peak = json.loads(_child(os.path.abspath(__file__), "--child", case.name))
    peaks.append(peak)
    return float(cpu_s if case.most else instructions / cpu_s / 1e6)


def _tree_of(commit: str, folder: str) -> None:
    """Unpacks the packages of a commit. Raises SystemExit (2) where git does not know it."""
    asked = ["git", "-C", ROOT, "archive", commit, "arch", "sim", "workloads"]
    done = subprocess.run(asked, capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode().strip().splitlines()[-1]
        print(f"bench: --against {commit}: no commit of this repository ({why})", file=sys.stderr)
        raise SystemExit(2)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def _pair(name: str, trees: Sequence[str], first: int) -> list[Timed]:
    """A case in both trees at the same time on one CPU. first: whose run begins."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    words = [sys.executable, os.path.abspath(__file__), "--child", name]
    words += [] if cpu is None else ["--cpu", str(cpu)]
    running = [
        subprocess.Popen([*words, "--wait", "--tree", tree], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for tree in trees
    ]
    for process in running:
        if not (process.stdout and process.stdout.readline()):  # it ended without its word
            raise SystemExit(process.wait())
    for process in (running[first], running[1 - first]):
        print(file=process.stdin, flush=True)
    return [Timed(*json.loads(process.communicate()[0])[:3]) for process in running]


def compare(names: Sequence[str], commit: str, pairs: int, as_json: bool = False) -> int:
    """Prints how many times as fast as `commit` this version is. Raises SystemExit (2) for an unknown commit."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        _tree_of(commit, folder)
        trees = (folder, ROOT)
        for tree in trees:  # neither compiles while the other is measured
            _child(os.path.abspath(__file__), "--child", "", "--tree", tree)
        for name in names:
            runs = [_pair(name, trees, number % 2) for number in range(pairs)]
            ratios = [before.cpu_s / now.cpu_s for before, now in runs]
            median, (before, now) = statistics.median(ratios), (run.cycles for run in runs[0])
            found.append({"name": name, "ratio": median, "ratios": ratios, "cycles": [before, now]})
            if not as_json:
                same = "same cycles" if before == now else f"{before} cycles then, {now} now"
                spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
                print(f"{name:12} {median:.3f} times as fast ({spread}), {same}", flush=True)
    if as_json:
        print(json.dumps(found, indent=1))
    return 0


def child(name: str, tree: str, cpu: int | None, wait: bool) -> int:
    """One case in the tree, or what comes before it alone. wait: for a line, when all is loaded, and says so."""
    sys.path.insert(0, tree)
    if cpu is not None:
        with suppress(OSError):  # not allowed to choose
            os.sched_setaffinity(0, {cpu})
    if wait or not name:
        _warm()
    if not name:
        return 0
    if wait:
        print("ready", flush=True)
        sys.stdin.readline()
    timed = RUNS[name]()
    from sim.app.cost import peak_memory_bytes

    print(json.dumps([*timed, peak_memory_bytes() / (1 << 20)]))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Command line."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", metavar="COMMIT", help="compare with this version, case by case")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="of processes, for --against (default 5)")
    parser.add_argument("--child", choices=["", *RUNS], help=argparse.SUPPRESS)
    parser.add_argument("--tree", default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.child is not None:
        return child(options.child, options.tree, options.cpu, options.wait)
    if options.against is not None:
        if options.pairs < 1:
            parser.error(f"--pairs {options.pairs}: at least 1")
        if unpaired := [name for name in options.only or () if name not in RUNS]:
            parser.error(f"--against compares {', '.join(RUNS)}, not {', '.join(unpaired)}")
        return compare(options.only or list(RUNS), options.against, options.pairs, options.json)
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
