"""Compiles the Triton kernels of tests/gpu/sass/kernels.py, and PTX beside it, and writes their disassembly, as text.

Needs Triton (`pip install '.[triton]'`), which brings `ptxas`, no GPU. The tests read the text, so that they run
without Triton. The version of Triton that made it is in tests/gpu/sass/README.md.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sim.gpu.sass.cubin import disassemble, kernel_of  # noqa: E402

FOLDER = ROOT / "tests/gpu/sass"

KERNELS: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, int]]] = {
    "add": ({"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 512}, {"num_warps": 4}),
    "softmax": (
        {"out": "*fp32", "rows": "*fp32", "columns": "i32", "stride": "i32"},
        {"BLOCK": 1024},
        {"num_warps": 4},
    ),
    "matmul": (
        {"a": "*fp16", "b": "*fp16", "c": "*fp16", "m": "i32", "n": "i32", "k": "i32"},
        {"BM": 64, "BN": 64, "BK": 32},
        {"num_warps": 4, "num_stages": 3},
    ),
    "matmul_tma": (
        {"a": "tensordesc<fp16[64,64]>", "b": "tensordesc<fp16[64,64]>", "c": "tensordesc<fp16[64,64]>", "k": "i32"},
        {"BM": 64, "BN": 64, "BK": 64},
        {"num_warps": 4, "num_stages": 3},
    ),
    "matmul_fp8": (
        {"a": "*fp8e4nv", "b": "*fp8e4nv", "c": "*fp8e5", "k": "i32"},
        {"BM": 64, "BN": 32, "BK": 64},
        {"num_warps": 4, "num_stages": 2},
    ),
    "gather": ({"x": "*fp32", "index": "*i32", "out": "*fp32"}, {"BLOCK": 128}, {"num_warps": 4}),
}
"""By name: types of parameters, constants, options of the compiler. All numbers are multiples of 16."""

PTX = {"cluster_tiles": 90, "cluster_exchange": 90, "cluster_reductions": 90}
"""By name: compute capability."""

GENERATIONS = {"matmul_tma": (90,), "matmul_fp8": (89, 90), "gather": (80,)}
"""Compute capabilities, of all others 80 and 90."""


def main() -> None:
    """Writes a file for each kernel and generation."""
    with tempfile.TemporaryDirectory() as cache:  # else what was compiled before, whose line tables may be others'
        triton.knobs.cache.dir = cache
        compile_kernels()
    for name, sm in PTX.items():
        write(assembled(FOLDER / f"{name}.ptx", sm), name, sm)


def compile_kernels() -> None:
    """Writes the files of the kernels in Triton."""
    specification = importlib.util.spec_from_file_location("kernels", FOLDER / "kernels.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name, (types, constants, options) in KERNELS.items():
        for sm in GENERATIONS.get(name, (80, 90)):
            fn = getattr(module, name)
            signature = types | dict.fromkeys(constants, "constexpr")
            divisible = {(fn.arg_names.index(n),): [["tt.divisibility", 16]] for n in types if "<" not in types[n]}
            made = triton.compile(
                ASTSource(fn, signature, constants, divisible), target=GPUTarget("cuda", sm, 32), options=options
            )
            write(made.asm["cubin"], name, sm)
            print(f"{name}: {made.metadata.shared} bytes of shared memory, Triton {triton.__version__}")


def assembled(source: Path, sm: int) -> bytes:
    """The cubin that `ptxas` makes of PTX."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        subprocess.run([tool, f"-arch=sm_{sm}a", "-o", cubin, source], check=True)
        return cubin.read_bytes()


def write(cubin: bytes, name: str, sm: int) -> None:
    """Writes the disassembly of a kernel."""
    text = disassemble(cubin).replace(f"{FOLDER}/", "").replace(f"{Path(triton.__file__).parents[1]}/", "")
    path = FOLDER / f"{name}.sm{sm}.sass"
    path.write_text(kernel_of(cubin, text, name, name).written(text), encoding="utf-8")
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
