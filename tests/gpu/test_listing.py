"""The listing says what is in a program, and what it costs on a machine."""

from __future__ import annotations

from arch.load import load_arch
from sim.gpu.language import walk
from sim.gpu.lower.listing import listing
from tests.gpu.kernels import mma_gemm, split_sum, wgmma_gemm


def _line(text: str, *words: str) -> str:
    """The one line that has all the words."""
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, (words, lines)
    return lines[0]


def test_every_op_is_there_under_its_number_in_the_event_log() -> None:
    program = wgmma_gemm(cluster=2)
    text = listing(program)
    kernel = program.kernels[0]
    ops = [op for role in kernel.roles for op in walk(role.body)]
    roles = text[text.index("  role ") :].splitlines()
    listed = [line.split()[:2] for line in roles if line.split()[0].isdigit()]
    assert [(int(number), word.split(".")[0]) for number, word in listed] == [
        (number, op.opcode) for number, op in enumerate(ops)
    ]


def test_tensors_shared_memory_barriers_and_roles() -> None:
    text = listing(wgmma_gemm(stages=3))
    kernel = wgmma_gemm(stages=3).kernels[0]
    assert f"shared memory: {kernel.shared_bytes} B" in text
    assert "3 of 128x64 bf16, 16384 B each, swizzle 128 B" in _line(text, " sa: ")
    assert _line(text, " sb: ").split()[0] == str(3 * 16384)
    assert "3 of 2 arrivals" in _line(text, "mbarrier empty")
    assert "8 warps, 232 registers" in _line(text, "role consumer")
    assert "output" in _line(text, " c ", "256x256", "strides (256, 1)")
    assert "semaphores" not in text
    assert "1 semaphores" in listing(split_sum())


def test_loops_are_indented_and_operands_printed() -> None:
    text = listing(wgmma_gemm())
    loops = [line for line in text.splitlines() if "loop k, 4 trips:" in line]
    inside = _line(text, "wgmma.m64n128k16.bf16 x4")
    assert len(inside[9:]) - len(inside[9:].lstrip()) == len(loops[-1][9:]) - len(loops[-1][9:].lstrip()) + 2
    assert "acc[0:16, 0:128] <- sa[(k % 3), (warp * 16):16, 0:64]" in inside
    assert "accumulate (0 < k)" in inside
    assert "full[(k % 3)] phase (k // 3)" in _line(text, "mbarrier_wait full")
    assert "1 left" in _line(listing(mma_gemm(stages=3)), "cp_wait")
    assert "into fragments" in _line(listing(mma_gemm()), "ldmatrix", "sa[")
    assert "after fragments" in _line(listing(mma_gemm()), " mma.")


def test_costs_are_those_of_the_machine() -> None:
    spec = load_arch("h100-sxm")
    row = spec.instruction("wgmma", "bf16", "m64n128k16")
    text = listing(wgmma_gemm(), spec)
    assert _line(text, "wgmma.m64").endswith(
        f"{row.pipe} every {row.interval_cycles:g}, latency {row.latency_cycles:g}"
    )
    slower = load_arch("a100-sxm4-80gb")
    row = slower.instruction("mma", "fp16", "m16n8k16")
    assert f"every {row.interval_cycles:g}, latency {row.latency_cycles:g}" in _line(
        listing(mma_gemm(), slower), " mma."
    )
    assert "every" not in listing(wgmma_gemm())


def test_bank_conflicts_are_printed() -> None:
    """Rows of 64 bytes without a swizzle: every other row of an 8x8 matrix is in the same banks: 4 waves."""
    text = listing(mma_gemm(), load_arch("a100-sxm4-80gb"))
    assert "16 wavefronts (4 without conflicts)" in _line(text, "ldmatrix", "sa[")
