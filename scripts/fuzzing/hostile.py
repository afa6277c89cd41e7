"""Command lines that have broken the program once; each runs as a process of its own."""

from __future__ import annotations

import gzip
import lzma
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzing import samples
from fuzzing.frame import ADDRESS_SPACE_BYTES, SECONDS, file

ROOT = Path(__file__).resolve().parents[2]


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
        found[name] = ["run", *gemm, "--arch", str(file(text, folder, f"{name}.yaml"))]
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
        program = str(file(value, folder, f"{len(value)}.txt"))
        found[value.strip()] = ["run", *gemm, "--arch", "tpu-v1", "--program", program]
    for packing, command in ((gzip, ["validate", "bomb.json.gz"]), (lzma, ["run", "bomb.traceg.xz"])):
        path = str(file(samples.bomb(packing), folder, command[-1]))
        found[command[-1]] = [*command[:-1], path, "--arch", "a100-sxm4-80gb"]
    locked = folder / "locked"
    locked.mkdir()
    file('format = 2\nversion = "0"\n[case.a]\ncycles = "x"\n', locked, "cycles.lock")
    found["cycles of a lock"] = ["check", "--config", str(file(samples.CONFIG, locked, "tilewave.toml"))]
    reports = [str(file(text, folder, name)) for name, text in (("none.json", '{"cycles": null}'), ("one.json", "1"))]
    found["cycles of a report"] = ["diff", *reports]
    found["tolerance of a comparison"] = ["diff", *reports, "--tolerance", "nan"]
    config = str(file(samples.CONFIG.replace('["t4", "h100-sxm"]', "[5]"), folder, "numbers.toml"))
    found["machine that is a number"] = ["check", "--config", config]
    found["nested configuration"] = ["check", "--config", str(file("a=" + "[" * 50_000, folder, "deep.toml"))]
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
