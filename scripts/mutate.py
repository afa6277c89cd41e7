#!/usr/bin/env python3
"""Breaks the program in known ways, one at a time, and runs the tests that must notice.

    scripts/mutate.py [--only NAME ...] [--part K/N] [--list]

A mutant replaces a pattern within one function, class or constant of a copy of the program. The tests that stand beside
it must fail then; golden files are not among them, since an accepted update would hide the mutant. --part 1/10 takes
every tenth mutant. Prints each mutant with what became of it; exit code 1 if one survives, 2 if a pattern is not there.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("arch", "sim", "workloads", "tests", "scripts", "docs")


@dataclass(frozen=True)
class Mutant:
    """One way to break the program. symbol: `file:Class.method`, `file:function` or `file:NAME`; pattern: a regular
    expression with one match in it; tests: what must notice, as pytest is given it."""

    name: str
    symbol: str
    pattern: str
    replacement: str
    tests: str


ENERGY, REGULATOR = "sim/gpu/power/energy.py", "sim/gpu/power/regulator.py"
GPU_FAMILY = "sim/app/families/gpu.py"
POWER_TESTS = "tests/gpu/test_power.py"
SOURCE_TESTS = "tests/test_validate.py"

MUTANTS = (
    Mutant("issue energy", f"{ENERGY}:EnergyModel.__init__", r"energy\.issue_fj", "0", POWER_TESTS),
    Mutant("FMA energy of one lane", f"{ENERGY}:EnergyModel.__init__", r"INST_FMA, WARP_SIZE \*", "INST_FMA, 1 *",
           POWER_TESTS),
    Mutant("shared-memory energy", f"{ENERGY}:EnergyModel.__init__", r"SHARED_WRITE_BYTES, energy\.\w+",
           "SHARED_WRITE_BYTES, 0", POWER_TESTS),
    Mutant("L1 energy", f"{ENERGY}:EnergyModel.__init__", r"32 \* energy\.l1", "0 * energy.l1", POWER_TESTS),
    Mutant("L2-write energy", f"{ENERGY}:EnergyModel.__init__", r"PORT_WRITE_BYTES, energy\.\w+",
           "PORT_WRITE_BYTES, 0", POWER_TESTS),
    Mutant("DRAM energy", f"{ENERGY}:EnergyModel.__init__", r"energy\.dram_fj_per_byte", "0", POWER_TESTS),
    Mutant("tensor energy", f"{ENERGY}:EnergyModel.set_tensor_dtype", r"2 \* per_flop", "per_flop", POWER_TESTS),
    Mutant("data factor", f"{ENERGY}:EnergyModel.__init__", r"\(factor if moves_data else 1\)", "1", POWER_TESTS),
    Mutant("voltage of a window", f"{ENERGY}:EnergyModel.window_fj", r"core_fj \* voltage \* voltage",
           "core_fj * self._reference_mv * self._reference_mv", POWER_TESTS),
    Mutant("voltage in the search", f"{ENERGY}:EnergyModel.sustained_hz", r"core \* squared // now_squared", "core",
           POWER_TESTS),
    Mutant("static power", f"{ENERGY}:EnergyModel.window_fj", r"self\._static_mw \* window_ps", "0", POWER_TESTS),
    Mutant("memory in the search", f"{ENERGY}:EnergyModel.sustained_hz", r"now_squared \+ memory\)", "now_squared)",
           POWER_TESTS),
    Mutant("never throttles", f"{REGULATOR}:PowerRegulator.step",
           r"self\.sustained or self\.elapsed_ps >= clock\.onset_ps", "False", POWER_TESTS),
    Mutant("limit ignored", f"{REGULATOR}:PowerRegulator.__init__", r"limit_mw or ", "", POWER_TESTS),
    Mutant("highest clock ignored", f"{REGULATOR}:PowerRegulator.__init__", r"highest_hz or ", "", POWER_TESTS),
    Mutant("lowest clock ignored", f"{REGULATOR}:PowerRegulator.step", r"clock\.lowest_hz", "1", POWER_TESTS),
    Mutant("lowest clock in the search", f"{ENERGY}:EnergyModel._clock_table", r"halves\(clock\.lowest_hz",
           "halves(210_000_000", POWER_TESTS),
    Mutant("clock step ignored", f"{REGULATOR}:PowerRegulator.step", r"level // clock\.step_hz \* clock\.step_hz",
           "level", POWER_TESTS),
    Mutant("sustained ignored", f"{REGULATOR}:PowerRegulator.step", r"if self\.sustained or self", "if self",
           POWER_TESTS),
    Mutant("no undershoot", f"{REGULATOR}:PowerRegulator.step", r"level \* round\(clock\.undershoot \* 1000\) // 1000",
           "level", POWER_TESTS),
    Mutant("no recovery", f"{REGULATOR}:PowerRegulator.step", r"self\.elapsed_ps < clock\.recovery_ps", "True",
           POWER_TESTS),
    Mutant("no onset", f"{REGULATOR}:PowerRegulator.step", r"self\.elapsed_ps >= clock\.onset_ps", "True", POWER_TESTS),
    Mutant("one settling run", "sim/app/families/gpu_run.py:_SETTLING_RUNS", r"= 8", "= 1", POWER_TESTS),
    Mutant("bandwidth of a source", f"{GPU_FAMILY}:Gpu.row", r"if rate else \[\]", "if False else []", SOURCE_TESTS),
    Mutant("locked clock of a source", f"{GPU_FAMILY}:Gpu.row", r"if locked else None", "if False else None",
           SOURCE_TESTS),
    Mutant("limit of a source", f"{GPU_FAMILY}:Gpu.row", r"if limit else None", "if False else None", SOURCE_TESTS),
    Mutant("kind of a source", f"{GPU_FAMILY}:Gpu.row", r'environment\.kind\.get\(row\.dtype, "auto"\)', '"auto"',
           SOURCE_TESTS),
    Mutant("MAPE as median", "sim/app/study/validate.py:_group", r"statistics\.fmean\(absolute\)",
           "statistics.median(absolute)", SOURCE_TESTS),
    Mutant("ridge of one memory", "sim/app/report/figures.py:Figures.external_bytes_per_s", r"\bsum\(", "max(",
           "tests/report/test_report.py"),
    Mutant("tolerance of a lock doubled", "sim/app/study/digest.py:Change.beyond", r"size > tolerance",
           "size > 2 * tolerance", "tests/study/test_check.py"),
    Mutant("tolerance of a check doubled", "sim/app/families/gpu_check.py:check", r"passed = error <= op\.tolerance",
           "passed = error <= 2 * op.tolerance", "tests/test_check_mode.py"),
    Mutant("violations ignored", "sim/app/families/gpu_check.py:check", r" and not replay\.violations", "",
           "tests/test_check_mode.py"),
)  # fmt: skip
"""In the order of what they concern."""


def _range(source: str, path: Sequence[str]) -> tuple[int, int]:
    """Begin and end, in characters, of what a dotted name stands for in a source."""
    body: list[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for name in path:
        node = next((n for n in body if name in _names(n)), None)
        if node is None:
            raise ValueError(f"there is no {'.'.join(path)}")
        body = getattr(node, "body", [])
    assert node is not None
    lines = source.splitlines(keepends=True)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {getattr(node, "name", ""), *(t.id for t in targets if isinstance(t, ast.Name))}


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the mutant in it; ValueError where its pattern has not exactly one match in its symbol."""
    begin, end = _range(source, mutant.symbol.partition(":")[2].split("."))
    text, count = re.subn(mutant.pattern, lambda _: mutant.replacement, source[begin:end])
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.pattern!r} has {count} matches in {mutant.symbol}")
    return source[:begin] + text + source[end:]


def survives(mutant: Mutant, root: Path) -> bool:
    """Whether the tests of a mutant pass in the copy at `root`, which is as it was afterwards."""
    file = root / mutant.symbol.partition(":")[0]
    source = file.read_text(encoding="utf-8")
    file.write_text(mutated(source, mutant), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
    finally:
        file.write_text(source, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise ValueError(f"{mutant.name}: {mutant.tests} did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == 0


def copied(folder: Path) -> Path:
    """A copy of the program in a folder."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "tilewave.toml", "cycles.lock"):
        shutil.copy(ROOT / file, folder / file)
    return folder


def main(words: list[str] | None = None) -> int:
    """Command line."""
    names = [mutant.name for mutant in MUTANTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts, such as 1/10")
    parser.add_argument("--list", action="store_true", help="print the mutants and what must notice each")
    options = parser.parse_args(words)
    part = re.fullmatch(r"([1-9][0-9]?)/([1-9][0-9]?)", options.part)
    if part is None or int(part[1]) > int(part[2]):
        print(f"mutate: --part {options.part}: write it as K/N, such as 1/10", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    chosen = chosen[int(part[1]) - 1 :: int(part[2])]
    if options.list:
        print("\n".join(f"{mutant.name}: {mutant.symbol}; {mutant.tests}" for mutant in chosen))
        return 0
    alive = 0
    try:
        for mutant in chosen:  # before any test runs
            mutated((ROOT / mutant.symbol.partition(":")[0]).read_text(encoding="utf-8"), mutant)
        with tempfile.TemporaryDirectory() as folder:
            root = copied(Path(folder))
            for mutant in chosen:
                survived = survives(mutant, root)
                alive += survived
                print(f"{'SURVIVED' if survived else 'killed':8} {mutant.name} ({mutant.symbol})", flush=True)
    except (ValueError, OSError) as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    print(f"{len(chosen)} mutants, {alive} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
