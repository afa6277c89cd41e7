"""Products of CUTLASS 2.x as `instruction_mix.py` counts them: their sources, compiled by nvcc without a GPU.

What is needed, all from PyPI, in one folder: `pip install --no-deps --target DIR nvidia-cuda-nvcc==13.0.88
nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
nvidia-cutlass==4.2.0`. The counted kernels were made with the headers of CUTLASS 4.7.0, which is not there.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.gpu.sass.cubin import CompiledKernel, read_compiled

_TARGETS = {"sm_75": "75", "sm_80": "80", "sm_90": "90"}

_KERNEL = """
#include "cutlass/gemm/device/gemm.h"
using namespace cutlass;
using Product = gemm::device::Gemm<
    {element}, layout::{a}, {element}, layout::{b}, {element}, layout::RowMajor, float, arch::OpClass{unit},
    arch::{generation}, gemm::GemmShape<{tile}>, gemm::GemmShape<{warp}>, gemm::GemmShape<{instruction}>,
    epilogue::thread::LinearCombination<{element}, {width}, float, float>,
    gemm::threadblock::GemmIdentityThreadblockSwizzle<>, {stages}>;
template __global__ void cutlass::Kernel<Product::GemmKernel>(Product::GemmKernel::Params);
"""


@dataclass(frozen=True)
class Product:
    """A product as the table of counts names it. row_by_row: operand B lies in rows; else both lie along k, of SIMT
    kernels both across."""

    arch: str
    simt: bool
    row_by_row: bool
    tile: Sequence[int]
    warp: Sequence[int]
    stages: int

    def source(self) -> str:
        """CUDA C++."""
        layouts = ("ColumnMajor", "RowMajor") if self.simt else ("RowMajor", "ColumnMajor")
        if self.row_by_row:
            layouts = ("RowMajor", "RowMajor")
        turing = self.arch == "sm_75"
        if self.simt:
            generation, instruction = "Sm80" if self.stages > 2 else "Sm50", (1, 1, 1)
        else:
            generation, instruction = ("Sm75", (16, 8, 8)) if turing else ("Sm80", (16, 8, 16))
        return _KERNEL.format(
            element="float" if self.simt else "half_t", a=layouts[0], b=layouts[1],
            unit="Simt" if self.simt else "TensorOp", generation=generation, tile=_listed(self.tile),
            warp=_listed((*self.warp, self.tile[2])), instruction=_listed(instruction),
            width=1 if self.simt else 8, stages=self.stages,
        )  # fmt: skip

    def compiled(self, folder: Path) -> CompiledKernel:
        """Its machine code. folder: has nvcc and the headers."""
        cuda = folder / "nvidia" / "cu13"
        headers = (cuda / "include", cuda / "include" / "cccl", folder / "cutlass_library" / "source" / "include")
        with tempfile.TemporaryDirectory() as own:
            source, cubin = Path(own) / "product.cu", Path(own) / "product.cubin"
            source.write_text(self.source(), encoding="utf-8")
            subprocess.run(
                [cuda / "bin" / "nvcc", "-O3", "-std=c++17", f"-arch=sm_{_TARGETS[self.arch]}", "-cubin", "-w",
                 *(f"-I{one}" for one in headers), "-o", cubin, source], check=True,
            )  # fmt: skip
            return read_compiled(str(cubin))


def product_of(kernel: str, arch: str, tile: str) -> Product | None:
    """The product that a row of the table names; None for one of CUTLASS 3.x."""
    if not kernel.startswith(("CUTLASS GEMM tensorop", "CUTLASS SGEMM SIMT")):
        return None
    numbers = [int(word) for word in re.findall(r"\d+", tile)]
    return Product(arch, "SIMT" in kernel, "row x row" in tile, numbers[:3], numbers[3:5], numbers[-1])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
