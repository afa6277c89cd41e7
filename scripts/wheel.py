"""Builds a wheel, into dist/, that brings the engines' machine code for one level of CPUs and the versions that are
installed here (`sim.engine.jit.ready_directory`); beside others, what is installed from it compiles as ever."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sim.engine.jit import LEVEL

ROOT = Path(__file__).resolve().parents[1]
ADD = f"{ROOT}/tests/gpu/sass/add.sm80.sass:add grid=16 block=128 x=fp32[8192] y=fp32[8192] out=fp32[8192] n=8192"
SMALL = "gemm m=64 n=64 k=64"

RUNS = (
    *((SMALL, machine) for machine in ("h100-sxm", "sn40l", "gemmini", "tpu-v4")),
    (SMALL, "h100-sxm", "--html", "page.html"),
    (ADD, "a100-sxm4-80gb"),
)
"""What compiles all engines: of the tile language and of other machines, that which records, of compiled kernels."""


def source_tree(folder: Path) -> None:
    """A copy of what a wheel is built of."""
    for name in ("arch", "sim", "workloads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "ready"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "tilewave.py"):
        shutil.copy(ROOT / name, folder / name)


def compile_engines(source: Path) -> None:
    """Runs what compiles the engines of a copy, for the level, and leaves their machine code in it."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHON"))}
        environment |= {"NUMBA_CPU_NAME": LEVEL, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": cache}
        environment |= {"PYTHONPATH": str(source), "XDG_CACHE_HOME": cache}
        for workload, machine, *options in RUNS:
            print("compiling:", workload, machine, *options, file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "tilewave", "run", workload, "--arch", machine, *options]
            subprocess.run(command, cwd=cache, env=environment, stdout=subprocess.DEVNULL, check=True)
        for folder in (Path(cache) / "tilewave").glob("kernels-*"):
            if any(folder.iterdir()):
                shutil.copytree(folder, source / "sim" / "ready" / folder.name)


def build(source: Path, out: Path) -> Path:
    """The wheel of a source tree, in a folder."""
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], cwd=source, check=True)
    return max(out.glob("tilewave-*.whl"), key=lambda path: path.stat().st_mtime)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        source_tree(Path(made))
        compile_engines(Path(made))
        print(build(Path(made), ROOT / "dist"))
