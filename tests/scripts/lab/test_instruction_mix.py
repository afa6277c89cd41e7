"""Counting the instructions of products of CUTLASS, without nvcc: their sources, and the cuts of their paths."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.gpu.test_sass import written


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    return importlib.import_module("scripts.lab.instruction_mix")


def test_an_epilogue_is_counted_with_c_and_without(script: ModuleType) -> None:
    function = written(
        "MOV R0, RZ", ".L_x_1", "HMMA.16816.F32 R4, R8, R10, R4", "@P0 BRA `(.L_x_1)",
        "ISETP.NE.AND P3, PT, R0, RZ, PT", "@!P3 BRA `(.L_x_2)", ".L_x_2", "FSETP.NEU.AND P2, PT, R20, RZ, PT",
        "@!P2 BRA `(.L_x_3)", "LDG.E.128 R4, [R2.64]", "STG.E.128 [R2.64], R4", "EXIT",
        ".L_x_3", "STG.E.128 [R2.64], R4",
    ).function  # fmt: skip
    totals = [script.counts(section)["TOTAL"] for section in script.of_product(function)]
    assert totals == [1, 2, 6, 7]
    loads = [script.counts(section)["LDG.128"] for section in script.of_product(function)]
    assert loads == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("kernel", "arch", "tile", "parts"),
    [
        ("CUTLASS GEMM tensorop", "sm_80", "128x256x64, warp 64x64, TN, 3 stages",
         ("half_t, layout::RowMajor, half_t, layout::ColumnMajor", "arch::Sm80, gemm::GemmShape<128, 256, 64>",
          "gemm::GemmShape<64, 64, 64>, gemm::GemmShape<16, 8, 16>", "ThreadblockSwizzle<>, 3>")),
        ("CUTLASS GEMM tensorop", "sm_80", "128x128x32, warp 64x64, row x row, 4 stages",
         ("half_t, layout::RowMajor, half_t, layout::RowMajor",)),
        ("CUTLASS GEMM tensorop", "sm_75", "256x128x32, warp 64x64, TN, 2 stages",
         ("arch::Sm75", "gemm::GemmShape<16, 8, 8>")),
        ("CUTLASS SGEMM SIMT", "sm_90", "128x128x8, warp 32x64, thread 8x8, NT, 2 stages",
         ("float, layout::ColumnMajor, float, layout::RowMajor", "arch::Sm50", "gemm::GemmShape<32, 64, 8>")),
    ],
)  # fmt: skip
def test_a_product_is_written_as_its_row_says(
    script: ModuleType, kernel: str, arch: str, tile: str, parts: tuple[str, ...]
) -> None:
    product = script.product_of(kernel, arch, tile)
    source = " ".join(product.source().split())
    assert all(part in source for part in parts)
    assert script.product_of("CUTLASS sm90 GEMM cooperative", "sm_90a", tile) is None
