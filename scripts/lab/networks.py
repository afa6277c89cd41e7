#!/usr/bin/env python3
"""Networks on a systolic array against SCALE-Sim's wheel: cycles of every layer, time and memory.

    scripts/lab/networks.py --scalesim PYTHON [--network NAME ...] [--side N] [--dataflow ws|os|is]

PYTHON is the interpreter of an environment with SCALE-Sim in it; it needs a NumPy of its own:

    python -m venv /tmp/scalesim && /tmp/scalesim/bin/pip install scalesim==3.0.0 "numpy<2"

Each network runs in a process of each program, one after the other, without traces: N x N cells, buffers of 6, 6 and 2
MiB, no stalls (SCALE-Sim's CALC mode; here `--scope array` with `array.overlap_weights=false`). SCALE-Sim prints the
number of the last cycle, one less than the cycles. Exit code 1 if a layer differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from arch.errors import InputError  # noqa: E402

MEASURE = """
import json, resource, sys, time
cpu, wall = time.process_time(), time.perf_counter()
{body}
used = {{"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}}
used["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{**used, "cycles": found}}))
"""
"""Runs a body that leaves the cycles of each layer in `found`; imports count, the start of Python does not."""

OURS = MEASURE.format(
    body="""
sys.path.insert(0, sys.argv[1])
from sim import simulate
report = simulate(sys.argv[2], "tpu-v1", scope="array", set=sys.argv[3:]).to_dict()
found = [layer["cycles"] for layer in report["layers"]]
"""
)

THEIRS = MEASURE.format(
    body="""
from scalesim.scale_sim import scalesim
config, topology, layout, kind = sys.argv[1:]
runs = scalesim(
    save_disk_space=True, verbose=False, config=config, topology=topology, layout=layout,
    input_type_gemm=kind == "gemm",
)
runs.run_scale(top_path="out")
found = None
"""
)

CONFIG = """[general]
run_name = networks
[architecture_presets]
ArrayHeight = {side}
ArrayWidth = {side}
IfmapSramSzkB = 6144
FilterSramSzkB = 6144
OfmapSramSzkB = 2048
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Bandwidth = 10
Dataflow = {dataflow}
ReadRequestBuffer = 512
WriteRequestBuffer = 512
[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = False
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
"""


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--scalesim", required=True, metavar="PYTHON", help="interpreter that has SCALE-Sim")
    parser.add_argument("--network", nargs="+", default=["resnet50", "mobilenet"], metavar="NAME")
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--dataflow", default="ws", choices=("ws", "os", "is"))
    options = parser.parse_args(words)
    print(
        f"{options.side} x {options.side} cells, {options.dataflow}: cycles of all layers, and what finding them took"
    )
    print(f"{'':<18}{'':>7}{'':>7}{'':>15}{'seconds of CPU':>26}{'':>8}{'MiB':>18}")
    head = ("layers", "differ", "cycles", "tilewave", "SCALE-Sim", "times", "tilewave", "SCALE-Sim")
    widths = (7, 7, 15, 13, 13, 8, 9, 10)
    print(f"{'network':<18}" + "".join(f"{word:>{width}}" for word, width in zip(head, widths, strict=True)))
    differ = 0
    for name in options.network:
        ours, theirs = run_ours(name, options.side, options.dataflow), run_theirs(options, name)
        wrong = sum(a - 1 != b for a, b in zip(ours["cycles"], theirs["cycles"], strict=True))
        differ += wrong
        times = theirs["cpu_s"] / ours["cpu_s"]
        print(
            f"{name:<18}{len(ours['cycles']):>7}{wrong:>7}{sum(ours['cycles']):>15,}{ours['cpu_s']:>13.2f}"
            f"{theirs['cpu_s']:>13.1f}{times:>8.0f}{ours['mib']:>9.0f}{theirs['mib']:>10.0f}",
            flush=True,
        )
    return 1 if differ else 0


def run_ours(name: str, side: int, dataflow: str) -> dict[str, Any]:
    """Cycles of each layer, time and memory of a process of tilewave."""
    figures = {"rows": side, "columns": side, "dataflow": dataflow, "overlap_weights": "false"}
    overrides = [f"array.{name}={value}" for name, value in figures.items()]
    return measured([sys.executable, "-c", OURS, str(ROOT), f"network file={name}", *overrides], None)


def run_theirs(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The same of SCALE-Sim's; cycles are those of its report."""
    from workloads.graphs.network_file import NetworkFile
    from workloads.networks.topology import GemmLayer, read_topology

    network = NetworkFile(name)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "scale.cfg"
        config.write_text(CONFIG.format(side=options.side, dataflow=options.dataflow), encoding="utf-8")
        layers = read_topology(network.path.read_text(encoding="utf-8"), name)
        kind = "gemm" if isinstance(layers[0], GemmLayer) else "conv"
        topology = str(network.path.resolve())
        found = measured([options.scalesim, "-c", THEIRS, str(config), topology, topology, kind], folder)
        with (Path(folder) / "out" / "networks" / "COMPUTE_REPORT.csv").open(encoding="utf-8") as file:
            rows = list(csv.reader(file))
        column = [head.strip() for head in rows[0]].index("Total Cycles")
        found["cycles"] = [int(float(row[column])) for row in rows[1:] if row]
    return found


def measured(command: list[str], folder: str | None) -> dict[str, Any]:
    """What the last line of a process's output says; InputError where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{command[0]} fails: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"networks.py: {error}")
