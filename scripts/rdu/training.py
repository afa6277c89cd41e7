"""One training step of a decoder layer on SN40L: time, operations and traffic by operator.

    python scripts/rdu/training.py [--model llama3.1-8b] [--seq 2048] [--check]

--check carries numbers through every operator and compares with NumPy: for small models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from arch.load import load_arch
from sim.api import simulate
from workloads.rdu.training import training_step


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    spec = load_arch("sn40l")
    time_us = flops = 0.0
    failed = False
    print(f"{'operator':<18}{'time, us':>12}{'TFLOPS':>9}{'GB':>8}  bound")
    for step in training_step(options.model, options.seq):
        report = simulate(step.op, spec, schedule=step.schedule, check=options.check)
        failed = failed or (report.record.check is not None and not report.record.check.passed)
        # Every operator of the backward pass is another configuration.
        each = report.time_us + spec.launch.program_load_ps / 1e6
        time_us += step.times * each
        flops += step.times * report.record.flops
        moved = step.times * report.figures.external_bytes / 1e9
        print(f"{step.name:<18}{step.times * each:>12.1f}{report.tflops:>9.1f}{moved:>8.2f}  {report.bound}")
    share = flops / (time_us * 1e-6) / spec.peak_flops("bf16")
    print(f"{'step':<18}{time_us:>12.1f}{flops / time_us * 1e-6:>9.1f}          {100 * share:.1f} % of the peak")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
