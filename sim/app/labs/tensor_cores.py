"""Lab 4, tensor cores and warp specialisation: what feeds them, a ring of roles, loads that two SMs share."""

from __future__ import annotations

from functools import cache

from sim.app.labs import Answers, Task, Wrong, judge
from sim.app.report.report import Report
from sim.gpu.language import CTA_X, CTA_Y, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile

MACHINE = "h100-sxm"
SMS, MACS_A_CYCLE = 132, 2048
SMALL, LARGE = (256, 256, 256), (2048, 1024, 1024)
STAGES = 4
SECTOR_BYTES = 32
TILE, TILE_K = 128, 64
CYCLES_OVER_ALONE, CYCLES_OVER_SPECIALISED, BYTES_OVER_ALONE = 0.65, 1.05, 0.8


def tensor_cycles(answers: Answers) -> None:
    """`tensor_cycles(m, n, k)`: the least that the tensor cores of the chip take."""

    def right(m: int, n: int, k: int) -> float:
        return m * n * k / (MACS_A_CYCLE * SMS)

    hint = "how many multiplications does one wgmma do in a cycle, and how many SMs do it at the same time?"
    judge.agrees(answers, "tensor_cycles", right, [LARGE, (8192, 8192, 8192), (128, 4096, 512)], hint)


def accumulators(answers: Answers) -> None:
    """`accumulators(tile_m, tile_n, warps)` of a thread, and `fewest` warps for a tile of 128 x 256."""

    def right(tile_m: int, tile_n: int, warps: int) -> float:
        return tile_m * tile_n / (32 * warps)

    judge.agrees(answers, "accumulators", right, [(128, 128, 8), (64, 256, 4), (256, 128, 12)], "a warp has 32 threads")
    if answers["fewest"] != 8:
        raise Wrong(
            f"fewest = {answers['fewest']!r}: accumulators and 40 more have to fit into 255 registers, and fewer do too"
        )


def _tensors(m: int, n: int, k: int) -> tuple[GlobalTensor, GlobalTensor, GlobalTensor]:
    return (
        GlobalTensor("a", (m, k), "bf16", strides=(k, 1)),
        GlobalTensor("b", (k, n), "bf16", strides=(n, 1)),
        GlobalTensor("c", (m, n), "bf16", strides=(n, 1), role="output"),
    )


def specialised_kernel(m: int, n: int, k: int, stages: int) -> Program:
    """The product with a producer warp, as a solution has it."""
    a, b, c = _tensors(m, n, k)
    kernel = KernelBuilder("specialised", grid=(m // TILE, n // TILE, 1))
    a_tile = kernel.shared("a_tile", (TILE, TILE_K), "bf16", stages, swizzle_bytes=128)
    b_tile = kernel.shared("b_tile", (TILE_K, TILE), "bf16", stages, swizzle_bytes=128)
    ring = kernel.ring(stages, consumers=8)
    acc = RegisterTile("acc", (16, TILE), "fp32")
    row, column, steps = CTA_X * TILE, CTA_Y * TILE, k // TILE_K
    with kernel.role("consumer", warps=8, registers=168) as r:
        r.bar_sync(0, 9)
        with r.loop("step", steps) as step:
            stage = ring.stage(step)
            ring.wait(r, step)
            r.wgmma_fence()
            r.wgmma(
                acc.whole, a_tile[stage, WARP * 16 : 16, :], b_tile.stage(stage), shape=f"m64n{TILE}k16", dtype="bf16",  # type: ignore[misc]
                accumulate=step > 0,
            )  # fmt: skip
            r.wgmma_commit()
            r.wgmma_wait(0)
            ring.release(r, step)
        r.run("cvt", 32, dtype="bf16", dst=acc.whole, srcs=(acc.whole,), compute=lambda _, x: x)
        r.stg(c[row + WARP * 16 : 16, column:TILE], acc.whole, vector_bytes=4)  # type: ignore[misc]
    with kernel.role("producer", warps=1, registers=40) as r:
        r.bar_sync(0, 9)
        with r.loop("step", steps) as step:
            stage = ring.stage(step)
            ring.acquire(r, step, a_tile.stage_bytes + b_tile.stage_bytes)
            r.tma_load(a_tile.stage(stage), a[row:TILE, step * TILE_K : TILE_K], ring.full, stage)  # type: ignore[misc]
            r.tma_load(b_tile.stage(stage), b[step * TILE_K : TILE_K, column:TILE], ring.full, stage)  # type: ignore[misc]
    return Program("gemm", (a, b, c), (kernel.build(),), "specialised")


@cache
def _of_the_teacher(stages: int) -> Report:
    """One stage: nothing is loaded while the warps multiply, as in the notebook's `alone`."""
    return judge.ran(specialised_kernel(*LARGE, stages), MACHINE)


def _made(answers: Answers, name: str, shape: tuple[int, int, int], stages: int) -> Program:
    m, n, k = shape
    program = judge.gpu_program(answers, name, (m, n, k, stages), [(m, k), (k, n), (m, n)], lambda a, b: a @ b)
    if "wgmma" not in judge.opcodes(program):
        raise Wrong(f"{name} has no wgmma")
    return program


def _judged(answers: Answers, name: str) -> Report:
    """The kernel at full size, after its check at two depths."""
    for stages in (2, 3):
        judge.checked(_made(answers, name, SMALL, stages), MACHINE)
    report = judge.ran(_made(answers, name, LARGE, STAGES), MACHINE)
    m, n, k = LARGE
    if judge.counter(report, "macs") != m * n * k:
        raise Wrong(f"{name} multiplies {judge.counter(report, 'macs')} times; the product needs {m * n * k}")
    return report


def specialised(answers: Answers) -> int:
    """`specialised(m, n, k, stages)`: a producer, consumers and a ring."""
    report = _judged(answers, "specialised")
    limit = CYCLES_OVER_ALONE * _of_the_teacher(1).cycles
    if report.cycles > limit:
        raise Wrong(f"with {STAGES} stages: {report.cycles} cycles, more than {limit:.0f}; what do its warps wait for?")
    return report.cycles


def _asked_bytes(report: Report) -> int:
    """What the SMs asked the L2 for: with what it read once for several that asked together."""
    return judge.counter(report, "l2_read_bytes") + SECTOR_BYTES * judge.counter(report, "l2_coalesced")


def shared_by_two(answers: Answers) -> int:
    """`shared_by_two(m, n, k, stages)`: half of each piece of B is loaded by either CTA, for both."""
    report = _judged(answers, "shared_by_two")
    asked, before = (_asked_bytes(r) for r in (report, _of_the_teacher(STAGES)))
    if asked > BYTES_OVER_ALONE * before:
        raise Wrong(f"your kernel asks the L2 for {asked / before:.2f} times as much: which loads go to both CTAs?")
    limit = CYCLES_OVER_SPECIALISED * _of_the_teacher(STAGES).cycles
    if report.cycles > limit:
        raise Wrong(f"your kernel takes {report.cycles} cycles, more than {limit:.0f}")
    return report.cycles


TASKS = (
    Task("what the tensor cores need", 2, ("tensor_cycles",), tensor_cycles),
    Task("room for a tile's results", 2, ("accumulators", "fewest"), accumulators),
    Task("specialised warps", 4, ("specialised",), specialised),
    Task("a load for two SMs", 4, ("shared_by_two",), shared_by_two),
)
