#!/usr/bin/env python3
"""Feeds the program with hostile input and looks for anything but a result or one clear error.

    scripts/fuzz.py [--cases N] [--seed S] [--only NAME ...]

Random cases change valid input in small ways (cut, double, swap, replace by a hostile token) and hand it to what reads
it; each must return or raise `InputError` with one line, within its time. Known hostile files and command lines run
as processes of their own: each must end within 20 s with exit code 2 and one line on stderr, in 4 GiB of address space.
The same seed gives the same cases. Exit code 1 if anything else happens; each finding prints what to call again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from arch.errors import InputError  # noqa: E402
from arch.load import leaves, list_archs, load_arch  # noqa: E402

SECONDS = 20
"""What any hostile input may take."""

ADDRESS_SPACE_BYTES = 4 << 30

TOKENS = (
    *("", "0", "-1", "1e999", "nan", "inf", "-inf", "1e-400", "1e400", "1_0", "0x10", "²", "٣", "𝟚"),
    *("9" * 30, "9" * 5000, "é" * 300, "true", "null", "cycles", "../", "/dev/zero", "!!python/object:os.system"),
    *(" ", "\t", "\n", "\0", "\x1b[31m", "\u202e", "=", ":", ",", "*", "[", "{", "}", "&a", "*a", "<<", "$x$"),
    *("'", '"', "--", "#", "%s", "{0}", "\\"),
)

PRESET = """base: t4
title: a board of one's own
sm: {count: [20, mine], max_warps: 32}
l2: {size: [2 MiB, mine, half]}
dram: {bandwidth: 100 GB/s}
sources: {mine: "assumed: a guess"}
instructions:
  ffma.fp32: [fma, 2, 4, mine]
"""

CONFIG = """tolerance = "1 %"
[[case]]
name = "a"
arch = ["t4", "h100-sxm"]
workload = "gemm m=64 n=64 k=64 dtype=fp16"
schedule = "auto"
set = ["sm.count=20"]
l2 = "warm"
exact = true
"""

PROGRAM = """read_weights address=0 rows=256
matrix_multiply ub=0 pitch=256 rows=4 depth=4 columns=4 acc=0
activate acc=0 ub=65536 pitch=256 rows=4 columns=4 function=identity
halt
"""


TOPOLOGY = """Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
first, 12, 9, 3, 3, 4, 8, 2,
DP_second, 8, 8, 3, 3, 4, 1, 1, 1:1,
"""

SCALESIM = """[general]
run_name = "run"
[architecture_presets]
ArrayHeight: 32
ArrayWidth: 32
IfmapSramSzkB: 64
FilterSramSzkB: 64
OfmapSramSzkB: 64
Dataflow: ws
Bandwidth: 10, 20, 30
[run_presets]
InterfaceBandwidth: USER
"""


@dataclass(frozen=True)
class Target:
    """Something that reads input. valid: inputs from which cases are made. call: reads one."""

    name: str
    valid: tuple[str, ...]
    call: Callable[[str, Path], object]


def _file(text: str, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    return path


def _machine_file(text: str, folder: Path) -> object:
    return load_arch(str(_file(text, folder, "machine.yaml")))


def _override(text: str, folder: Path) -> object:
    return load_arch("h100-sxm", [text])


def _workload(text: str, folder: Path) -> object:
    from workloads.parse import parse

    return parse(text)


def _topology(text: str, folder: Path) -> object:
    from workloads.ops import NetworkFile

    return NetworkFile(str(_file(text, folder, "net.csv"))).with_defaults("int8").macs


def _scalesim(text: str, folder: Path) -> object:
    from arch.scalesim import read_config

    machine = load_arch("tpu-v1")
    config = read_config(str(_file(text, folder, "scale.cfg")), machine)
    return load_arch("tpu-v1", config.overrides)


def _schedule(text: str, folder: Path) -> object:
    from sim.app.run import program_listing

    return program_listing("gemm m=64 n=64 k=64 dtype=fp16", "h100-sxm", schedule=text)


def _attention_schedule(text: str, folder: Path) -> object:
    from sim.app.run import program_listing

    text_of = "attention batch=1 heads=1 seq=128 head_dim=64 dtype=fp16"
    return program_listing(text_of, "h100-sxm", schedule=text)


def _vary(text: str, folder: Path) -> object:
    from sim.app.study.axes import Base, axes_of

    return axes_of(Base("gemm m=64 n=64 k=64 dtype=fp16", ("t4",)), [[text]])


def _expression(text: str, folder: Path) -> object:
    from sim.app.study.expressions import Constraint, check_names

    known = {"sm.count": 4.0, "l2.size_bytes": 2.0**20}
    constraint = Constraint.parse(text, "--subject-to")
    check_names(constraint, known, "--subject-to")
    return constraint.excess(known)


def _config(text: str, folder: Path) -> object:
    from sim.app.study.check import read_config

    return read_config(_file(text, folder, "tilewave.toml"))


def _lock(text: str, folder: Path) -> object:
    from sim.app.study.digest import changes, shown
    from sim.app.study.lockfile import read

    lock = read(_file(text, folder, "cycles.lock"))
    return [shown(changes(entry.digest, entry.digest)) for entry in lock.entries.values()]


def _diff(text: str, folder: Path) -> object:
    from sim.app.study.difference import difference

    path = _file(text, folder, "report.json")
    return str(difference(path, path))


def _tpu_program(text: str, folder: Path) -> object:
    from sim.tpu.assembly import assemble

    return assemble(text)


def _window(text: str, folder: Path) -> object:
    from sim.app.trace.window import parse_range

    return parse_range("--window", text)


def _command_line(text: str, folder: Path) -> object:
    from sim.app.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as stderr:
        code = main(["archs", *text.split(" ")])
    said = stderr.getvalue()
    if code not in (0, 2) or (code == 2 and said.count("\n") != 1):
        raise AssertionError(f"exit code {code}, {said!r}")
    return code


def _report() -> str:
    """A small report as `run --json` prints it."""
    return json.dumps(
        {
            "schema_version": "2.0", "machine": "t4", "family": "gpu", "workload": "gemm m=64", "dtype": "fp16",
            "schedule": "mma", "scope": "kernel", "cycles": 100, "clock_hz": 10**9, "time_us": 0.1, "flops": 4,
            "macs": 2, "bound": "latency", "bytes": {"dram": {"read": 4, "write": 2}}, "energy_j": 1e-6,
            "stalls": {"warps": {"wait": 0.25, "selected": 0.75}}, "kernels": [], "gpu": {"counters": {"ctas": 1}},
        }
    )  # fmt: skip


def _lock_text() -> str:
    """The first cases of the project's own lock."""
    return "".join((ROOT / "cycles.lock").read_text(encoding="utf-8").partition("[case.")[:2]) + (
        '"a"]\narch = "t4"\nworkload = "gemm m=64 n=64 k=64"\nmachine = "00"\nkernels = "11"\nschedule = "mma"\n'
        "cycles = 5\ntime_ps = 7\nclock_hz = 9\nenergy_fj = 8\ncounters.ctas = 3\nstalls.warps.wait = 1.5\n"
    )


def targets() -> list[Target]:
    """Everything that reads what people write."""
    paths = [f"{path}=1" for path in leaves(type(load_arch("h100-sxm")))]
    sets = ("l2.size=60 MiB", "sm.count=66", "dram.bandwidth=1.5 TB/s", "instructions.ffma.fp32.interval=3 cycles")
    return [
        Target("machine file", (PRESET,), _machine_file),
        Target("override", (*sets, *paths), _override),
        Target("workload", ("gemm m=64 n=64 k=64 dtype=fp16", "softmax rows=4 cols=8", "sum n=100"), _workload),
        Target("topology", (TOPOLOGY, "Layer, M, N, K,\nq, 40, 24, 16,\n"), _topology),
        Target("SCALE-Sim configuration", (SCALESIM,), _scalesim),
        Target("schedule", ("wgmma 128x128x64 cluster 2x1 stages 4 pingpong", "auto", "mma 64x64x32"), _schedule),
        Target("attention schedule", ("flash3 128x128 stages 2", "flash2", "unfused"), _attention_schedule),
        Target("vary", ("m=256:4096:*2", "sm.count=66,132", "l2.size=25 MiB:50 MiB:lin3", "m,n=1:9:4"), _vary),
        Target("constraint", ("sm.count * 4.2 + l2.size_bytes / 2**20 * 0.9 <= 900", "max(1, 2) >= 1"), _expression),
        Target("configuration", (CONFIG,), _config),
        Target("lock", (_lock_text(),), _lock),
        Target("report", (_report(),), _diff),
        Target("TPU program", (PROGRAM,), _tpu_program),
        Target("window", ("0:20000", "3", ":7"), _window),
        Target("command line", tuple(f"{name} --set sm.count=4 --json" for name in list_archs()[:4]), _command_line),
    ]


def changed(rng: random.Random, text: str) -> str:
    """A text with one to three small changes."""
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(text) + 1)
        j = min(len(text), i + rng.choice((1, 1, 2, 5, 20)))
        words = text.split()
        match rng.randrange(7):
            case 0:
                text = text[:i] + text[j:]
            case 1:
                text = text[:i] + rng.choice(TOKENS) + text[i:]
            case 2:
                text = text[:i] + rng.choice(TOKENS) + text[j:]
            case 3:
                text = text[:j] + text[i:j] * rng.choice((1, 3, 50)) + text[j:]
            case 4 if words:
                text = text.replace(rng.choice(words), rng.choice(TOKENS), 1)
            case 5 if "=" in text:
                left, _, right = text.partition("=")
                text = f"{left}={rng.choice(TOKENS)}{right if rng.random() < 0.3 else ''}"
            case _:
                text = text[:i] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD7FF)))) + text[i:]
    return text


class _TooLongError(Exception):
    pass


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raises `_TooLongError` where the body takes longer."""

    def ring(*_: object) -> None:
        raise _TooLongError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(target: Target, text: str, folder: Path) -> str:
    """What is wrong with how a target takes a text; empty if nothing is."""
    try:
        with _within(SECONDS):
            target.call(text, folder)
    except InputError as error:
        return "" if str(error) else "an error without a text"
    except (Exception, RecursionError):
        return traceback.format_exc(limit=-3)
    return ""


def random_cases(cases: int, seed: int, only: list[str]) -> list[str]:
    """Findings of `cases` random cases, shared out over the targets."""
    found = []
    chosen = [target for target in targets() if not only or target.name in only]
    with tempfile.TemporaryDirectory() as folder:
        for target in chosen:
            rng = random.Random(f"{seed} {target.name}")
            for text in target.valid[:3]:
                if problem := tried(target, text, Path(folder)):
                    found.append(f"{target.name}, valid input {text!r}: {problem}")
            for number in range(max(1, cases // max(1, len(chosen)))):
                text = changed(rng, rng.choice(target.valid))
                if problem := tried(target, text, Path(folder)):
                    found.append(f"{target.name}, case {number}: {text[:300]!r}: {problem}")
    return found


def hostile(folder: Path) -> dict[str, list[str]]:
    """Command lines that have broken the program once, by name; files are made in `folder`."""
    gemm, t4 = ["gemm", "m=64", "n=64", "k=64"], ["--arch", "t4"]
    os.mkfifo(folder / "pipe.yaml")
    files = {
        "nested brackets": "[" * 50_000,
        "nested mappings": "{a: " * 50_000,
        "alias bomb": "base: t4\na: &a0 {x: 1}\n" + "".join(
            f"c{i}: &a{i + 1} {{p: *a{i}, q: *a{i}, r: *a{i}}}\n" for i in range(40)
        ),
        "recursive alias": "base: t4\nl2: &l2 {x: *l2}\n",
        "base that never ends": "base: /dev/zero\n",
        "base of itself": f"base: ../{folder.name}/base of itself.yaml\n",
        "two megabytes": "# x\n" * 500_000,
    }  # fmt: skip
    found = {}
    for name, text in files.items():
        found[name] = ["run", *gemm, "--arch", str(_file(text, folder, f"{name}.yaml"))]
    found["pipe"] = ["run", *gemm, "--arch", str(folder / "pipe.yaml")]
    found["device"] = ["run", *gemm, "--arch", "/dev/zero"]
    for value in ("instructions.ffma.fp32.interval=1e999 cycles", "l2.size=1e99999999 MiB"):
        found[value] = ["run", *gemm, *t4, "--set", value]
    for value in ("m=1:2:*1.00000001", "m=1:1e99999999", "m=1:1e400:*2", "m=1:2:lin" + "9" * 5000):
        found[value[:40]] = ["sweep", *gemm, *t4, "--vary", value]
    for value in ("nan", "inf", "-1", "1e400"):
        found[f"tolerance {value}"] = ["check", f"--tolerance={value}"]
    found["window"] = ["trace", *gemm, *t4, "--window", "9" * 5000, "--out", str(folder / "x.pftrace")]
    for value in ("mma 64x64x32 stages ²", f"mma {'9' * 5000}x64"):
        found[value[:40]] = ["run", *gemm, *t4, "--schedule", value]
    found["digits"] = ["run", "gemm", f"m={'9' * 5000}", "n=1", "k=1", *t4]
    for value in ("halt x=5\n", "matrix_multiply ub=²\n"):
        program = str(_file(value, folder, f"{len(value)}.txt"))
        found[value.strip()] = ["run", *gemm, "--arch", "tpu-v1", "--program", program]
    locked = folder / "locked"
    locked.mkdir()
    _file('format = 2\nversion = "0"\n[case.a]\ncycles = "x"\n', locked, "cycles.lock")
    found["cycles of a lock"] = ["check", "--config", str(_file(CONFIG, locked, "tilewave.toml"))]
    reports = [str(_file(text, folder, name)) for name, text in (("none.json", '{"cycles": null}'), ("one.json", "1"))]
    found["cycles of a report"] = ["diff", *reports]
    found["tolerance of a comparison"] = ["diff", *reports, "--tolerance", "nan"]
    config = str(_file(CONFIG.replace('["t4", "h100-sxm"]', "[5]"), folder, "numbers.toml"))
    found["machine that is a number"] = ["check", "--config", config]
    found["nested configuration"] = ["check", "--config", str(_file("a=" + "[" * 50_000, folder, "deep.toml"))]
    return found


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def hostile_cases(names: list[str] | None = None) -> list[str]:
    """Findings of the known hostile command lines."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in hostile(Path(folder)).items():
            if names is not None and name not in names:
                continue
            command = [sys.executable, "-m", "sim.app.cli", *words]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SECONDS, preexec_fn=_limit, cwd=ROOT, check=False
                )
            except subprocess.TimeoutExpired:
                found.append(f"{name}: longer than {SECONDS} s")
                continue
            lines = done.stderr.strip().splitlines()
            if done.returncode != 2 or len(lines) != 1:
                found.append(f"{name}: exit code {done.returncode}, {len(lines)} lines, the last {lines[-1:]}")
    return found


def main(words: list[str] | None = None) -> int:
    """Command line."""
    names = [target.name for target in targets()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=13_000, help="random cases, over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="NAME", help=", ".join(names))
    options = parser.parse_args(words)
    found = random_cases(options.cases, options.seed, options.only)
    if not options.only:
        found += hostile_cases()
    print("\n".join([*found, f"{len(found)} findings"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
