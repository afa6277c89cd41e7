#!/usr/bin/env python3
"""Breaks the program in known ways, one at a time, and runs the tests that must notice.

    scripts/mutate.py [--only NAME ...] [--part K/N] [--list]

A mutant replaces a pattern within one function, class or constant of a copy of the program. One of the tests that stand
beside it must fail then, and pass without it; golden files are not among them, since an accepted update would hide the
mutant. Mutants stand in mutants.toml. Those of compiled code run as plain Python. --part 1/10 takes every tenth mutant.
Prints each mutant with what became of it, `hung` (which counts as noticed) where its tests take over five times as long
as without it; exit code 1 if one survives, 2 if a pattern is not there or a test that failed does so without it, too,
which is tried at the end, for all at once.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("arch", "sim", "workloads", "tests", "scripts", "docs")


@dataclass(frozen=True)
class Mutant:
    """One way to break the program. symbol: `file:Class.method`, `file:function` or `file:NAME`; pattern: a regular
    expression with one match in it; tests: what must notice, as pytest is given it; unjitted: they run without numba's
    compiler."""

    name: str
    symbol: str
    pattern: str
    replacement: str
    tests: str
    unjitted: bool = False


def load(file: Path) -> tuple[Mutant, ...]:
    """The mutants of a file like `mutants.toml`, in its order."""
    found = []
    for group in tomllib.loads(file.read_text(encoding="utf-8"))["file"]:
        plain = group.get("unjitted", _COMPILED in (ROOT / group["path"]).read_text(encoding="utf-8"))
        for name, symbol, pattern, replacement in group["mutants"]:
            found.append(Mutant(name, f"{group['path']}:{symbol}", pattern, replacement, group["tests"], plain))
    return tuple(found)


_COMPILED = "from sim.engine.jit import"
"""A file that imports it has compiled functions: a mutant of one would have the engine compiled anew."""

MUTANTS = load(Path(__file__).with_name("mutants.toml"))


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


PATIENCE_S = 60.0
"""Tests of a mutant that run longer may wait for ever: how long they take without it says whether they do."""

LONGEST_S = 900.0
"""Tests that run longer without a mutant do not end."""

KEPT = {"PYTHONDONTWRITEBYTECODE": ""}
"""The copy is used by dozens of processes, and thrown away with their bytecode."""

KERNELS = ROOT / "sim" / "__pycache__"
"""Where copies find what the checkout has compiled, in folders named by a hash of what it was compiled from."""


@dataclass(frozen=True)
class Failures:
    """Tests that failed, by their pytest ids, and the end of what pytest printed."""

    tests: frozenset[str] = frozenset()
    printed: str = ""


def failures(
    root: Path, tests: Sequence[str], unjitted: bool, limit_s: float = LONGEST_S, *, first: bool = False
) -> Failures | None:
    """What of some tests fails in the copy at `root`, None if they have not ended within limit_s seconds; ValueError
    where they do not run at all. first: they end at the first that fails."""
    kept = root / ".failed"
    shutil.rmtree(kept, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={kept}", *(["-x"] if first else []), *tests]
    mode = {"NUMBA_DISABLE_JIT": "1"} if unjitted else {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={"NUMBA_CACHE_DIR": str(KERNELS), **os.environ, **mode, **KEPT, "PYTHONPATH": str(root)},
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
        output.seek(0)
        printed = output.read()[-3000:]
    if code == 0:
        return Failures()
    if code != 1:
        raise ValueError(f"{' '.join(tests)} did not run: {printed}")
    return Failures(frozenset(json.loads((kept / "v/cache/lastfailed").read_text(encoding="utf-8"))), printed)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process with all that it started; what a mutant left waiting would go on for ever."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def noticed(mutant: Mutant, root: Path) -> frozenset[str] | None:
    """The test that fails with a mutant in the copy at `root`, which is as it was afterwards: none where it survives;
    None where the tests hang. ValueError where they do not end without the mutant either."""
    found = _failures_with(mutant, root, PATIENCE_S)
    if found is None:
        begin = time.monotonic()
        if failures(root, mutant.tests.split(), mutant.unjitted, first=True) is None:
            raise ValueError(f"{mutant.tests} does not end without {mutant.name!r} either")
        limit_s = 30 + 5 * (time.monotonic() - begin)
        if limit_s > PATIENCE_S:
            found = _failures_with(mutant, root, limit_s)
    return None if found is None else found.tests


def _failures_with(mutant: Mutant, root: Path, limit_s: float) -> Failures | None:
    """The first of `failures` with a mutant in the copy at `root`."""
    file = root / mutant.symbol.partition(":")[0]
    source = file.read_text(encoding="utf-8")
    _write(file, mutated(source, mutant))
    try:
        return failures(root, mutant.tests.split(), mutant.unjitted, limit_s, first=True)
    finally:
        _write(file, source)


def _write(file: Path, source: str) -> None:
    """Writes a source without the bytecode of the one before, which Python takes for its own where both were written in
    one second and have one size."""
    file.write_text(source, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def check_without(notices: Mapping[Mutant, frozenset[str]], root: Path) -> None:
    """Runs what noticed mutants in the copy at `root`, which has none. ValueError where a test fails there, too."""
    for unjitted in (False, True):
        tests = sorted({test for mutant, found in notices.items() if mutant.unjitted == unjitted for test in found})
        found = failures(root, tests, unjitted) if tests else Failures()
        if found is None:
            raise ValueError(f"{' '.join(tests)} do not end without a mutant")
        for mutant, by in notices.items():
            if mutant.unjitted == unjitted and by & found.tests:
                raise ValueError(f"{' '.join(by)} fails without {mutant.name!r}, too: {found.printed}")


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
    notices: dict[Mutant, frozenset[str]] = {}
    alive = 0
    try:
        for mutant in chosen:  # before any test runs
            mutated((ROOT / mutant.symbol.partition(":")[0]).read_text(encoding="utf-8"), mutant)
        with tempfile.TemporaryDirectory() as folder:
            root = copied(Path(folder))
            for mutant in chosen:
                found = noticed(mutant, root)
                alive += found == frozenset()
                notices[mutant] = found or frozenset()
                became = "hung" if found is None else "killed" if found else "SURVIVED"
                print(f"{became:8} {mutant.name} ({mutant.symbol})", flush=True)
            check_without(notices, root)
    except (ValueError, OSError) as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    print(f"{len(chosen)} mutants, {alive} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
