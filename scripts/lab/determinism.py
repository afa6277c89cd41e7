#!/usr/bin/env python3
"""Runs random cases in several processes and compares every number that they report, bit for bit.

    scripts/lab/determinism.py [--cases N] [--seed S]

Three processes run the same cases: one as it is; one with another hash seed, one thread and the cases in reverse order;
one with another hash seed again, four threads and an empty compile cache. Prints how many cases ran, how many were
refused, and each number that differs; exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER)]

from random_cases import random_cases  # noqa: E402

PROCESSES: dict[str, dict[str, str]] = {
    "as it is": {},
    "hash seed 1, one thread, last case first": {"PYTHONHASHSEED": "1", "NUMBA_NUM_THREADS": "1", "REVERSE": "1"},
    "hash seed 2, four threads, cold cache": {"PYTHONHASHSEED": "2", "NUMBA_NUM_THREADS": "4", "COLD": "1"},
}


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what the simulation itself cost."""
    return {key: value for key, value in report.items() if key not in ("simulator", "versions")}


def child(count: int, seed: int) -> None:
    """Runs the cases and prints one JSON line each: its number, and the report or the reason."""
    from arch.errors import InputError
    from sim import simulate

    cases = list(enumerate(islice(random_cases(seed), count)))
    for number, case in reversed(cases) if os.environ.get("REVERSE") else cases:
        try:
            found: Any = numbers(simulate(case.workload, case.arch, set=case.set, **case.options).to_dict())
        except InputError as error:
            found = str(error)
        print(json.dumps([number, found]), flush=True)


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.child:
        child(options.cases, options.seed)
        return 0
    runs: dict[str, dict[int, Any]] = {}
    for name, environment in PROCESSES.items():
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            cold = {"NUMBA_CACHE_DIR": folder} if "COLD" in environment else {}
            command = [sys.executable, str(Path(__file__).resolve()), "--child"]
            command += ["--cases", str(options.cases), "--seed", str(options.seed)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment, **cold}
            )
        runs[name] = dict(json.loads(line) for line in done.stdout.splitlines())
        print(f"{name}: {len(runs[name])} cases in {time.perf_counter() - begin:.0f} s", flush=True)
    first, *others = runs
    cases = list(islice(random_cases(options.seed), options.cases))
    different = [
        f"{cases[number]}: {name} differs from {first}"
        for name in others
        for number in runs[first]
        if runs[name].get(number) != runs[first][number]
    ]
    refused = sum(isinstance(found, str) for found in runs[first].values())
    print("\n".join([*different, f"{len(cases)} cases, {refused} refused, {len(different)} differences"]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
