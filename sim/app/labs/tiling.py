"""Lab 2, tiling and shared memory: what a tile saves, what it needs, how it is stored; a transpose."""

from __future__ import annotations

from functools import cache

from arch.load import load_arch
from sim.app.labs import Answers, Task, Wrong, judge
from sim.gpu.language import CTA_X, CTA_Y, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile
from sim.gpu.lower.occupancy import occupancy

MACHINE = "a100-sxm4-80gb"
SMALL, LARGE = 128, 1024
"""Sides of the matrices: that whose numbers are compared, and that which is timed."""
PRODUCTS = ((1024, 1024, 1024, 64, 64, 2), (1024, 512, 256, 128, 32, 4), (4096, 2048, 1024, 128, 256, 1))
STEPS = ((32, 32, 32, 5, 2), (64, 64, 32, 3, 2), (128, 128, 32, 4, 2), (128, 256, 64, 3, 2), (128, 64, 32, 2, 4))
PITCHES = (32, 33, 34, 36, 40, 48, 63)
CYCLES_OVER_NAIVE = 0.9
SPARE_BYTES = 128 << 10
"""What a run may read or write beside its matrices: code, descriptors."""


def _bytes(m: int, n: int, k: int, tile_m: int, tile_n: int, size: int) -> float:
    return m // tile_m * (n // tile_n) * (tile_m + tile_n) * k * size


def tile_bytes(answers: Answers) -> None:
    """`tile_bytes(m, n, k, tile_m, tile_n, size)`: what all CTAs of a product read."""
    hint = "how many tiles are there, and what does the CTA of one of them read?"
    judge.agrees(answers, "tile_bytes", _bytes, PRODUCTS, hint)


def _resident(tile_m: int, tile_n: int, tile_k: int, stages: int, size: int) -> float:
    """As the simulator sees it, of a kernel that has nothing but the tiles."""
    kernel = KernelBuilder("tiles", grid=(1, 1, 1))
    kernel.shared("a", (tile_m, tile_k), {1: "int8", 2: "fp16", 4: "fp32"}[size], stages)
    kernel.shared("b", (tile_k, tile_n), {1: "int8", 2: "fp16", 4: "fp32"}[size], stages)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.bar_sync(0, 1)
    return occupancy(kernel.build(), load_arch(MACHINE)).ctas  # type: ignore[arg-type]


def resident(answers: Answers) -> None:
    """`resident(tile_m, tile_n, tile_k, stages, size)`: CTAs that fit the shared memory of an SM."""
    hint = "the simulator finds another number; whole CTAs, with 1 KiB beside the tiles of each"
    judge.agrees(answers, "resident", _resident, STEPS, hint)


def column(answers: Answers) -> None:
    """`cycles_of_a_column(pitch)`: cycles of a warp that reads a column of a tile."""
    hint = "which banks do the 32 threads ask for, and how many ask for the same?"
    judge.agrees(answers, "cycles_of_a_column", _column, [(pitch,) for pitch in PITCHES], hint)


def _column(pitch: int) -> float:
    banks = [thread * pitch % 32 for thread in range(32)]
    return max(map(banks.count, banks))


def naive(n: int) -> Program:
    """The transpose of the notebook: stores that take a sector each for four bytes."""
    x = GlobalTensor("x", (n, n), "fp32", strides=(n, 1))
    y = GlobalTensor("y", (n, n), "fp32", strides=(n, 1), role="output")
    kernel = KernelBuilder("naive", grid=(n // 32, n // 32, 1))
    row, column = CTA_Y * 32 + WARP * 4, CTA_X * 32
    with kernel.role("warps", warps=8, registers=32) as r:
        numbers = RegisterTile("numbers", (4, 32), "fp32")
        r.ldg(numbers.whole, x[row:4, column:32], into="loaded", vector_bytes=4)  # type: ignore[misc]
        r.stg(y[column:32, row:4].T, numbers.whole, vector_bytes=4, after=("loaded",))  # type: ignore[misc]
    return Program("transpose", (x, y), (kernel.build(),), "naive")


@cache
def _naive_cycles() -> int:
    return judge.ran(naive(LARGE), MACHINE).cycles


def transpose(answers: Answers) -> int:
    """`transpose(n)`: a kernel without conflicts that stores whole lines."""

    def made(n: int) -> Program:
        return judge.gpu_program(answers, "transpose", (n,), [(n, n), (n, n)], lambda x: x.T)

    judge.checked(made(SMALL), MACHINE)
    report = judge.ran(made(LARGE), MACHINE)
    size = 4 * LARGE**2
    for name, what in (("l2_write_bytes", "stores"), ("dram_read_bytes", "reads from DRAM")):
        if judge.counter(report, name) > size + SPARE_BYTES:
            raise Wrong(
                f"your kernel {what} {judge.counter(report, name) / 2**20:.1f} MiB; the matrix has {size >> 20}"
            )
    conflicts = judge.counter(report, "smem_conflict_cycles")
    if conflicts:
        raise Wrong(
            f"your kernel computes the transpose, with {conflicts} cycles of bank conflicts: how long is a row?"
        )
    if report.cycles > CYCLES_OVER_NAIVE * _naive_cycles():
        raise Wrong(f"your kernel takes {report.cycles} cycles, `naive` {_naive_cycles()}")
    return report.cycles


TASKS = (
    Task("bytes that a tiled product reads", 2, ("tile_bytes",), tile_bytes),
    Task("tiles that fit an SM", 2, ("resident",), resident),
    Task("cycles of a column", 2, ("cycles_of_a_column",), column),
    Task("a transpose through shared memory", 4, ("transpose",), transpose),
)
