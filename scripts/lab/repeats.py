"""Layers that repeat, counted against all of them simulated: the error of the rule, and what it saves.

    .venv/bin/python -m scripts.lab.repeats [NUMBER ...]

Runs models of `MODELS` (default: all) twice on their machines, as they are and without what repeats, and prints both
times.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from arch.load import load_arch
from sim import simulate
from workloads.graphs import GraphOperator
from workloads.parse import parse

MODELS = (
    ("llama model=llama3.1-8b phase=decode batch=8 seq=2048 layers=16", "h100-sxm", "eager"),
    ("llama model=llama3.1-70b phase=decode batch=32 seq=1024 layers=16 tp=8", "h100-sxm", "fused_graph"),
    ("llama model=llama3.1-8b phase=prefill seq=256 layers=8", "h100-sxm", "eager"),
    ("llama model=llama2-7b phase=decode batch=1 seq=512 layers=12 dtype=fp16", "a100-sxm4-80gb", "fused"),
    ("llama model=mixtral-8x7b phase=decode batch=4 seq=512 layers=6 tp=4", "h100-sxm", "graph"),
    ("llama model=tiny phase=decode hidden=1024 heads=8 kv_heads=8 intermediate=2816 seq=256 layers=12", "t4", "eager"),
    ("llama model=tiny hidden=1024 heads=8 kv_heads=8 intermediate=2816 seq=128 layers=10", "v100-sxm2-32gb", "eager"),
)


def main() -> int:
    """Prints a line a model."""
    for number in map(int, sys.argv[1:] or range(len(MODELS))):
        workload, machine, schedule = MODELS[number]
        op = parse(workload).with_defaults(load_arch(machine).default_dtype)
        assert isinstance(op, GraphOperator)
        graph = op.graph("fused" in schedule)
        times_us, cpu_s, notes = [], [], []
        for one in (graph, replace(graph, repeats=())):
            begin_s = time.process_time()
            report = simulate(one, machine, schedule=schedule)
            cpu_s.append(time.process_time() - begin_s)
            times_us.append(report.time_us)
            notes += [note for note in report.record.notes if "are counted as layer" in note]
        counted_us, whole_us = times_us
        print(f"{workload} on {machine}, {schedule}: {counted_us:.1f} us, all {whole_us:.1f} us", end=", ")
        print(
            f"{100 * (counted_us / whole_us - 1):+.2f} %; CPU {cpu_s[0]:.1f} s of {cpu_s[1]:.1f} s. {notes}", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
