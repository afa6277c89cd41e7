"""One training step of a decoder layer on SN40L: time, work and traffic of each section, by schedule.

    scripts/lab/rdu/training.py [--model llama3.1-8b] [--seq 2048] [--batch 1] [--tp 1] [--schedule cut] [--check]

`cut`: forward and backward pass fused and cut into sections; `unfused`: a section for each operator. --check carries
numbers through the step and compares all gradients with NumPy: for small models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from sim.app.run import simulate


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables; 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="llama3.1-8b")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--schedule", nargs="+", default=["cut", "unfused"])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    text = f"llama model={options.model} phase=training seq={options.seq} batch={options.batch} tp={options.tp}"
    failed = False
    for schedule in options.schedule:
        report = simulate(text, "sn40l", schedule=schedule, check=options.check)
        checked = report.record.check
        failed = failed or (checked is not None and not checked.passed)
        print(f"{schedule:<14}{'time, us':>12}{'TFLOPS':>9}{'GB':>8}  stages")
        for kernel in report.record.kernels:
            time_us = kernel.time_ps / 1e6
            moved = sum(count for name, count in kernel.counters.items() if name.startswith("hbm_")) / 1e9
            stages = ", ".join(stage.name for stage in kernel.own.stages if stage.kind == "compute")
            flops = 2 * kernel.counters["macs"]
            print(f"{kernel.name:<14}{time_us:>12.1f}{flops / time_us * 1e-6:>9.1f}{moved:>8.2f}  {stages}")
        share = 100 * report.figures.share_of_peak
        error = "" if checked is None else f", relative error {checked.max_rel_error:.1e}"
        print(f"{'step':<14}{report.time_us:>12.1f}{report.tflops:>9.1f}{'':>8}  {share:.1f} % of the peak{error}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
