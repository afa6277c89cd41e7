#!/usr/bin/env python3
"""Compiles the kernels of tests/gpu/sass/lab.cu with nvcc for each architecture, runs them and compares their values.

    scripts/lab/lab_kernels.py [--sm 75,90] [--only f_roots,c_calls] [--write]

Each kernel is executed with values, in both orders that the check of compiled kernels takes, and what it leaves in its
arrays is compared with NumPy. Then it is simulated on a machine of the architecture. Nothing is needed but nvcc and
nvdisasm. --write makes the fixtures of some kernels that the tests read.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from arch.errors import InputError  # noqa: E402
from sim.app.run import simulate  # noqa: E402
from sim.gpu.sass.cubin import disassemble, kernel_of  # noqa: E402
from tests.gpu.lab import LAB, Lab, judged  # noqa: E402

FOLDER = ROOT / "tests/gpu/sass"
MACHINES = {75: "t4", 80: "a100-sxm4-80gb", 86: "rtx-3090", 89: "rtx-4090", 90: "h100-sxm"}
FIXTURES = {
    75: ("c_switch", "c_calls", "w_votes", "w_masked", "p_half_rc", "p_s8_rc", "i_bits", "d_divide"),
    80: ("c_nested", "c_local_stack", "w_match", "m_barriers", "m_globals", "p_tf32", "i_divide64"),
    90: ("w_tiles", "i_dynamic_programming", "i_simd4", "p_bits", "s_bitonic", "h_compare", "f_conversions"),
}


def compiled(sm: int, folder: Path) -> tuple[bytes, str]:
    """The cubin and its disassembly."""
    cubin = folder / f"lab.{sm}.cubin"
    command = ["nvcc", "-std=c++17", "-cubin", f"-arch=sm_{sm}", "-O3", "-w", "-o", cubin, FOLDER / "lab.cu"]
    subprocess.run(command, check=True)
    content = cubin.read_bytes()
    return content, disassemble(content)


def of_machine(lab: Lab, text: Path, arrays: Mapping[str, Any], sm: int) -> str:
    """Simulates a kernel by its text; how it went."""
    words = [f"{text}:{lab.name}", f"grid={','.join(map(str, lab.grid))}", f"block={','.join(map(str, lab.block))}"]
    words += [f"shared={lab.shared}"] if lab.shared else []
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            file = text.with_name(f"{name}.npy")
            np.save(file, value)
            words.append(f"{name}={lab.format(name, value)}[{','.join(map(str, value.shape))}]:{file}")
        else:
            words.append(f"{name}={int.from_bytes(value, 'little') if isinstance(value, bytes) else value}")
    report = simulate(" ".join(words), MACHINES[sm])
    return f"{report.cycles:,} cycles"


def main() -> int:
    """Prints a line each kernel and architecture that fails, and how many of all ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sm", default=",".join(map(str, MACHINES)))
    parser.add_argument("--only", default="")
    parser.add_argument("--values", action="store_true", help="values alone, no simulation")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    only = [word for word in args.only.split(",") if word]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for sm in map(int, args.sm.split(",")):
            failed += _architecture(sm, Path(name), only, args)
    return min(failed, 1)


def _architecture(sm: int, folder: Path, only: list[str], args: argparse.Namespace) -> int:
    cubin, text = compiled(sm, folder)
    wanted = [lab for lab in LAB if sm >= lab.least and (not only or lab.name in only)]
    right, ran, began = 0, 0, time.process_time()
    for lab in wanted:
        try:
            kernel = kernel_of(cubin, text, lab.name, "lab.cu")
            if args.write and lab.name in FIXTURES.get(sm, ()):
                (FOLDER / "lab" / f"{lab.name}.sm{sm}.sass").write_text(
                    kernel.written(_own(text, lab.name)), encoding="utf-8"
                )
            wrong = judged(lab, kernel)
        except InputError as error:
            wrong = str(error)
        right += not wrong
        if wrong:
            print(f"sm_{sm} {lab.name}: values: {wrong}")
        if args.values:
            continue
        try:
            file = folder / "kernel.sass"
            file.write_text(kernel.written(_own(text, lab.name)), encoding="utf-8")
            done = of_machine(lab, file, lab.arrays(), sm)
            ran += 1
            if only:
                print(f"sm_{sm} {lab.name}: {done}")
        except InputError as error:
            print(f"sm_{sm} {lab.name}: time: {error}")
    seconds = time.process_time() - began
    done = f"{right} have NumPy's values, {ran} ran on {MACHINES[sm]}"
    print(f"sm_{sm}: of {len(wanted)} kernels {done}, {seconds:.0f} CPU s")
    return len(wanted) - right


def _own(text: str, kernel: str) -> str:
    """The part of a disassembly that is a kernel's."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split(",")[0].split() == [".section", f".text.{kernel}"])
    end = next((i for i in range(begin + 1, len(lines)) if lines[i].lstrip().startswith("//-----")), len(lines))
    return "\n".join(line for line in lines[begin:end] if "//##" not in line)


if __name__ == "__main__":
    raise SystemExit(main())
