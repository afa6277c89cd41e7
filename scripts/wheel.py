"""Builds a wheel that brings the engines' machine code, for one level of CPUs and the versions that are installed here.

Machine code is taken from the wheel where Python's minor version, numba, llvmlite, numpy and the sources are the same
and the CPU has the level's instructions (`sim.engine.jit.ready_directory`); elsewhere it is compiled, as ever.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sim.engine.jit import LEVEL

ROOT = Path(__file__).resolve().parents[1]
ADD = "tests/gpu/sass/add.sm80.sass:add grid=16 block=128 x=fp32[8192] y=fp32[8192] out=fp32[8192] n=8192"

RUNS = (
    ("run", "gemm m=64 n=64 k=64", "--arch", "h100-sxm"),
    ("run", "gemm m=64 n=64 k=64", "--arch", "h100-sxm", "--html", "page.html", "--force"),
    ("run", f"{ROOT}/{ADD}", "--arch", "a100-sxm4-80gb"),
    ("run", "gemm m=64 n=64 k=64", "--arch", "sn40l"),
    ("run", "gemm m=64 n=64 k=64", "--arch", "gemmini"),
    ("run", "gemm m=64 n=64 k=64", "--arch", "tpu-v4"),
)
"""Runs that compile all engines: of the tile language, that which records, of compiled kernels, of other machines."""


def source_tree(folder: Path) -> None:
    """A copy of what a wheel is built of."""
    for name in ("arch", "sim", "workloads"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "ready"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "tilewave.py"):
        shutil.copy(ROOT / name, folder / name)


def compile_engines(source: Path, runs: Sequence[Sequence[str]] = RUNS) -> None:
    """Runs what compiles the engines of a copy, for the level, and leaves their machine code in it."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHON"))}
        environment |= {"NUMBA_CPU_NAME": LEVEL, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": cache}
        environment |= {"PYTHONPATH": str(source), "XDG_CACHE_HOME": cache}
        for words in runs:
            print("compiling:", *words, file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "tilewave", *words]
            subprocess.run(command, cwd=cache, env=environment, stdout=subprocess.DEVNULL, check=True)
        for folder in (Path(cache) / "tilewave").glob("kernels-*"):
            if any(folder.iterdir()):
                shutil.copytree(folder, source / "sim" / "ready" / folder.name)


def build(source: Path, out: Path) -> Path:
    """The wheel of a source tree, in a folder."""
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], cwd=source, check=True)
    return max(out.glob("tilewave-*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    """Builds it."""
    parser = argparse.ArgumentParser(prog="scripts/wheel", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheel goes; default: dist/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        source_tree(source)
        compile_engines(source)
        print(build(source, options.out))


if __name__ == "__main__":
    main()
