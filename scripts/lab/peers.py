#!/usr/bin/env python3
"""The same products through tilewave and through other simulators, side by side.

    scripts/lab/peers.py [--scalesim PYTHON] [--size N ...] [--side N] [--dataflow ws|os|is] [--json]

PYTHON is the interpreter of an environment with SCALE-Sim in it (`scripts/lab/networks.py` says how it is made). Each
product of N x N x N runs in a process of each program, on SIDE x SIDE cells without stalls: CPU seconds are of what it
took after Python had started, imports included. What was not run is listed as such, with what its authors state.
Exit code 1 if cycles differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from arch.errors import InputError  # noqa: E402
from scripts.lab.networks import run_ours, run_theirs  # noqa: E402
from sim.app.cost import version  # noqa: E402


@dataclass(frozen=True)
class Peer:
    """Another simulator. computes, leaves_out: of the products here. stated: its speed, where it was not run, and who
    says so."""

    name: str
    computes: str
    leaves_out: str
    stated: str = ""


SCALESIM = Peer(
    "SCALE-Sim",
    "addresses of every operand in every cycle, folds of the array one after the other",
    "numbers, instructions, queues; overlap of folds",
)
NOT_RUN = (
    Peer(
        "LLMCompass",
        "closed forms of a tiling, and a search over tilings",
        "caches, contention, instructions; it has no wheel",
        "seconds to minutes a model (arXiv 2312.03134)",
    ),
    Peer(
        "ONNXim",
        "tiles of an ONNX graph on NPU cores, DRAM and network cycle by cycle",
        "cells of the array, numbers; it is built from C++",
        "no figure for one product",
    ),
    Peer(
        "Accel-Sim 2.0",
        "traces of SASS cycle by cycle",
        "numbers; traces are recorded on a GPU",
        "27,500 warp instructions a second (its pull request 553)",
    ),
)


@dataclass(frozen=True)
class Compared:
    """A product in both programs. cycles: as SCALE-Sim prints them, the number of the last one."""

    size: int
    cycles: tuple[int, int]
    cpu_s: tuple[float, float]
    mib: tuple[float, float]

    @property
    def times(self) -> float:
        """How many times as much CPU the other one takes."""
        return self.cpu_s[1] / self.cpu_s[0]


def compare(options: argparse.Namespace, size: int) -> Compared:
    """A square product in both programs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.csv"
        path.write_text(f"Layer, M, N, K,\nproduct, {size}, {size}, {size},\n", encoding="utf-8")
        ours = run_ours(str(path), options.side, options.dataflow)
        theirs = run_theirs(options, str(path))
    pairs = ((ours[name], theirs[name]) for name in ("cpu_s", "mib"))
    return Compared(size, (ours["cycles"][0] - 1, theirs["cycles"][0]), *pairs)


def scalesim_version(python: str) -> str:
    """What its environment says of it. InputError where it has none."""
    code = "from importlib.metadata import version; print(version('scalesim'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"--scalesim {python}: has no SCALE-Sim; python -m venv E && E/bin/pip install scalesim")
    return done.stdout.strip()


def text_of(found: list[Compared], versions: dict[str, str]) -> str:
    """Both tables, for people."""
    lines = []
    if found:
        lines += [", ".join(f"{name} {number}" for name, number in versions.items())]
        lines += [f"{'product':<10}{'cycles':>12}{'differ':>8}{'tilewave CPU s':>16}{'SCALE-Sim':>11}{'times':>7}"]
        lines += [
            f"{one.size:>4}^3   {one.cycles[0]:>12,}{one.cycles[1] - one.cycles[0]:>8}{one.cpu_s[0]:>16.2f}"
            f"{one.cpu_s[1]:>11.2f}{one.times:>7.0f}"
            for one in found
        ]
        lines += [f"{SCALESIM.name} computes {SCALESIM.computes}; it leaves out {SCALESIM.leaves_out}."]
    others = NOT_RUN if found else (SCALESIM, *NOT_RUN)
    lines += [
        f"Not run: {peer.name}, which computes {peer.computes}; it leaves out {peer.leaves_out}."
        + f" Stated: {peer.stated}." * bool(peer.stated)
        for peer in others
    ]
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--scalesim", metavar="PYTHON", help="interpreter that has SCALE-Sim")
    parser.add_argument("--size", type=int, nargs="+", default=[256, 512], metavar="N")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--dataflow", default="ws", choices=("ws", "os", "is"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    versions = {"tilewave": version()}
    found: list[Compared] = []
    if options.scalesim:
        versions["SCALE-Sim"] = scalesim_version(options.scalesim)
        found = [compare(options, size) for size in options.size]
    if options.json:
        ran = [{**asdict(one), "times": one.times} for one in found]
        print(json.dumps({"versions": versions, "ran": ran, "not_run": [asdict(peer) for peer in NOT_RUN]}, indent=1))
    else:
        print(text_of(found, versions))
    return int(any(one.cycles[0] != one.cycles[1] for one in found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"peers.py: {error}")
