"""Instructions beside the mathematics, as compilers emit them.

Addresses, predicates, loop control, moves, conversions.

Counts are per warp, from the machine code of CUTLASS GEMM kernels (sm_75 and sm_80: 2.x device::Gemm, 4.7.0; sm_90a:
3.x collective builder, 4.7.0; nvcc 13.0), static counts along the hot path. Integer, logic, predicate and
uniform-datapath instructions are `alu`, multiplies and moves on the multiply pipe are `imad`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.gpu.language import RegisterTile, RoleBuilder

Mix = tuple[tuple[str, int], ...]

ALU, IMAD = "iadd", "imad"
"""Rows of the instruction table that stand for the two classes."""
DEPENDENT_CYCLES = 4
"""After which an integer instruction can use the result of another."""
TURN = 16
INSTRUCTION_BYTES = 16
"""Size of one machine instruction since Volta."""


def mix(alu: int = 0, imad: int = 0) -> Mix:
    """Further instructions of one op row; classes with none are left out."""
    return tuple((name, count) for name, count in ((ALU, alu), (IMAD, imad)) if count > 0)


@dataclass(frozen=True)
class Overhead:
    """alu and imad instructions of one warp in one section of a kernel."""

    alu: int
    imad: int = 0

    def plus(self, other: Overhead, times: int) -> Overhead:
        """Both together, the other one `times` times."""
        return Overhead(self.alu + times * other.alu, self.imad + times * other.imad)

    @property
    def mix(self) -> Mix:
        """As the `mix` of an op."""
        return mix(self.alu, self.imad)

    @property
    def instructions(self) -> int:
        """All of them."""
        return self.alu + self.imad

    def write(self, role: RoleBuilder) -> None:
        """As an op of its own."""
        role.run(ALU, self.alu, dtype="int32", mix=mix(imad=self.imad))


# nvjet of cuBLAS 13, sm_90, executed instructions a warp by Nsight Compute (64x64, 128x64, 256x128, 8x64). Those of the
# uniform datapath count as `alu`: a sub-core starts one every 2 cycles, too (measured).
WGMMA_BARRIERS = Overhead(alu=29, imad=15)
"""Up to the arrival at the cluster's barrier."""
WGMMA_CTA_SETUP = Overhead(alu=75, imad=16)
"""From there to the wait for it. Of both 90 instructions are uniform."""
WGMMA_CONSUMER_TILE = Overhead(alu=14, imad=10)
WGMMA_CONSUMER_STEP = Overhead(alu=32)
WGMMA_PAIR = Overhead(alu=3)
"""Descriptor arithmetic of two wgmma of a k step, on top of WGMMA_CONSUMER_STEP (56 instructions with 8, 46 with 4)."""
WGMMA_PRODUCER_STEP = Overhead(alu=33, imad=3)
WGMMA_EPILOGUE_TILE = Overhead(alu=44, imad=36)
"""Once a tile; a subtile adds a fence, two barriers and its own address: WGMMA_EPILOGUE_SUBTILE."""
WGMMA_EPILOGUE_SUBTILE = Overhead(alu=2)
TCGEN05_PRODUCER_STEP, TCGEN05_STEP = Overhead(alu=24), Overhead(alu=24)
"""Of one k step of the thread that asks for operands, and of the one that multiplies: barriers' addresses, descriptors,
counters. Assumed; each waits for its step far longer."""
TF32_PER_FRAGMENT_WORD = 1
"""Integer additions by which CUTLASS rounds an fp32 operand of mma.sync to tf32, a register each
(`round_half_ulp_truncate`): 64x64_32x6 has 205 instructions a warp and step, of which 51 are not counted otherwise."""

# sm_80 tensor op, 128x128x32: prologue 434, loop 162 (64 HMMA, 16 LDSM, 8 LDGSTS), epilogue 499.
MMA_SETUP = Overhead(alu=250, imad=86)
MMA_STEP = Overhead(alu=29, imad=2)
MMA_PER_COPY = Overhead(alu=5)
MMA_EPILOGUE = Overhead(alu=118, imad=31)

# Triton's tutorial matmul, sm_80 (3.9.0, ptxas 12.9): loops of 185 (128x128x32, 8 LDGSTS), 193 (64x256x32, 10), 138
# (128x64x32, 6), 105 (128x32x32, 5) and 282 (128x256x64, 12), among them a move for each register of a part's
# fragments; prologues of 455 to 597 with 18 to 32 LDGSTS; epilogues of 306 to 360.
TRITON_SETUP = Overhead(alu=320, imad=110)
TRITON_STEP = Overhead(alu=22, imad=6)
TRITON_PER_COPY = Overhead(alu=3)
TRITON_EPILOGUE = Overhead(alu=130, imad=78)

# vLLM's fused kernel of experts (0.24), tiles of 16x32x64 to 128x128x64 on sm_80 and sm_90a; as Triton 3.9.0 and ptxas
# 12.9 compile it where no other release is named. What vLLM 0.24 runs was counted later (Triton 3.6, CUDA 13, H100).
# 66 to 73 instructions up to the exit of CTAs beyond the last block, 13 to 38 up to the branch to the zeros; those take
# 17 (one store) to 76 (eight). From there to the loop 167 to 505 with 3 to 12 LDGSTS a step. By mma loops have 36 to 89
# beside multiplies, fragments and copies, epilogues 29 to 150 for 4 to 64 accumulators; by wgmma 98 and 115, about 80.
EXPERTS_PLACE = Overhead(alu=46, imad=26)
EXPERTS_PLACE_CYCLES, EXPERTS_SETUP_CYCLES, EXPERTS_PER_WEIGHTS_CYCLES = 390, 240, 190
"""What these take a warp alone: the stall counts in the machine code (257 to 270 up to the exit, 422 to 1387 from the
branch to the loop) and 20 for each of the 6 to 24 conversions and reciprocals by which it divides."""
EXPERTS_ROUTE, EXPERTS_PER_ROW_NUMBER = Overhead(alu=9, imad=1), Overhead(alu=2)
"""Once a block is known to have rows: a thread loads the numbers of those that it copies and of those that it stores
(6 of 64 rows, 12 of 128), one by one, beside the expert's: 31 and 48 instructions by Nsight Compute."""
EXPERTS_ROUTE_CYCLES = 80
"""Before the first of these loads: its pointer is made from parameters by ten instructions, each behind the other, and
a constant is waited for (134 cycles a warp in all beside the loads, by stall samples)."""
EXPERTS_ZEROS = Overhead(alu=5, imad=4)
EXPERTS_PER_ZEROS = Overhead(alu=3, imad=5)
"""For each store of zeros: 44 instructions with four, 79 with eight."""
EXPERTS_SETUP = Overhead(alu=70, imad=25)
EXPERTS_PER_ROWS = Overhead(alu=15, imad=5)
"""For each copy instruction of tokens' rows of a step: its pointer."""
EXPERTS_PER_WEIGHTS = Overhead(alu=20, imad=12)
"""The same for weights, whose column is taken modulo their number."""
EXPERTS_STEP = Overhead(alu=12, imad=11)
"""By mma, of Triton 3.5.1, which vLLM 0.14 brings: 73 instructions a step with 16 multiplies, 8 LDSM and 4 LDGSTS. By
Triton 3.6 they are 112 with 16 multiplies, 16 LDSM and 10 LDGSTS, in the same order."""
EXPERTS_WGMMA_AHEAD, EXPERTS_WGMMA_AHEAD_PER_COPY = Overhead(alu=13, imad=3), Overhead(alu=1)
EXPERTS_WGMMA_PER_COPY = Overhead(alu=2, imad=2)
EXPERTS_WGMMA_STEP = Overhead(alu=4, imad=3)
"""With wgmma a step has 91 instructions with 6 copies and 108 with 8 (Triton 3.6, CUDA 13, by Nsight Compute). Of these
23 and 26 come between the barrier and the first multiply, as many between the multiplies: descriptors, places in the
buffers, predicates. The copies follow, each with the arithmetic of its pointer."""
EXPERTS_PER_COPY = Overhead(alu=4)
EXPERTS_EPILOGUE = Overhead(alu=22)

# sm_75 tensor op, 128x128x32: prologue 313, loop 240 (128 HMMA, 16 LDSM, 8 LDG, 8 STS, 16 CS2R), epilogue 619.
PREFETCH_SETUP = Overhead(alu=180, imad=54)
PREFETCH_STEP = Overhead(alu=13, imad=2)
PREFETCH_PER_COPY = Overhead(alu=8)
# Of operands that begin anywhere (alignments of 4, 2 and 1 value of 16 bit; sm_89): loops of 268, 330 and 536 with 16,
# 32 and 64 LDG, and 8 STS of 16 B as before. Most of it lies among the multiplies.
PREFETCH_PER_PART = Overhead(alu=3)
"""A predicate for each load beyond one of 16 B."""
PACK_PAIR = Overhead(alu=3)
"""Two values of 2 B, each loaded by itself, to one register."""

# SIMT, 128x128x8: prologue 290, loop 625 (512 FFMA, 32 LDS, 8 LDG, 8 STS), epilogue 480 to 577.
SIMT_SETUP = Overhead(alu=140, imad=49)
SIMT_STEP = Overhead(alu=32)
SIMT_PER_COPY = Overhead(alu=4)
SIMT_EPILOGUE = Overhead(alu=160, imad=22)

# FlashAttention-3, sm_90a: set-up of a CTA 232 and of a consumer 61 instructions; a consumer's step of 128x176 has 590,
# of which 19 HGMMA with two uniform moves each, 4 mbarrier operations, 2 named barriers and 382 of the online softmax.
FLASH3_CTA_SETUP = Overhead(alu=210, imad=20)
FLASH3_CONSUMER_TILE = Overhead(alu=150, imad=72)
FLASH3_CONSUMER_STEP = Overhead(alu=40, imad=6)
FLASH3_PRODUCER_TILE = Overhead(alu=130, imad=40)
FLASH3_PRODUCER_STEP = Overhead(alu=58, imad=7)
FLASH3_EPILOGUE = Overhead(alu=100, imad=20)

# FlashAttention-2, sm_80 and sm_90: set-up 239 of which 24 LDGSTS; a step of 128x64x128 has 939 instructions: 256 HMMA,
# 80 LDSM, 16 LDGSTS, 450 of the online softmax; register pressure makes 71 of the rest moves.
FLASH2_SETUP = Overhead(alu=120, imad=95)
FLASH2_STEP = Overhead(alu=90, imad=40)
FLASH2_PER_SCORES, FLASH2_PER_OUTPUTS = Overhead(alu=55, imad=55), Overhead(alu=8, imad=8)
"""Among its multiplies, for each 32 scores and 32 outputs of a thread. Nsight Compute counts 1245 instructions a warp
and step of 128x64x128 (PyTorch 2.11 on H200, `executed_instructions.csv`), 1808 of 128x128x64, and 1230 of 64x128x128
in the kernel that cuts keys, set-up and end included. What they are no counter tells; half are taken for IMAD."""
FLASH2_EPILOGUE = Overhead(alu=110, imad=30)
FLASH2_COMBINE = Overhead(alu=375, imad=150)
"""Of the kernel that adds parts, beside loads, weights and sums: 619 instructions a warp with four parts
(`executed_instructions.csv`). Weights pass through shared memory twice, and places are found by division: most wait for
the one before."""

# Triton's tutorial attention, sm_90a (3.9.0, ptxas 12.9): set-up of 226 to 310 instructions, 32 of them copies; a step
# of 128x128x64 by 8 warps has 456: 12 HGMMA with two uniform moves each, 8 LDGSTS and 334 of the online softmax.
FLASH_TRITON_SETUP = Overhead(alu=130, imad=55)
FLASH_TRITON_STEP = Overhead(alu=50, imad=6)
FLASH_TRITON_EPILOGUE = Overhead(alu=150, imad=110)


def chained(role: RoleBuilder, cost: Overhead, cycles: int) -> None:
    """Instructions of both classes most of which wait for the one before, so that a warp alone takes `cycles`."""
    done = RegisterTile("chained", (1, 1), "int32")
    chain = cycles // (2 * DEPENDENT_CYCLES)  # a step has one of each
    role.run(
        ALU, cost.alu, dtype="int32", mix=mix(imad=cost.imad), dst=done.whole, nominal=True, chain=chain,
        compute=np.zeros_like,
    )  # fmt: skip
    role.run(ALU, 1, dtype="int32", dst=done.whole, srcs=(done.whole,), compute=_kept)


def in_turn(role: RoleBuilder, cost: Overhead) -> None:
    """Instructions of which each waits for the one before, so that the warps of a sub-core take turns: address
    arithmetic, and what sets barriers up. They take turns here every `TURN` instructions."""
    done = RegisterTile("turns", (1, 1), "int32")
    parts = -(-cost.instructions // TURN)
    for part in range(parts):
        alu, imad = (each * (part + 1) // parts - each * part // parts for each in (cost.alu, cost.imad))
        chain = (alu + imad) // (2 if imad else 1)  # a step has one of each
        first = {"nominal": True, "compute": np.zeros_like} if part == 0 else {"srcs": (done.whole,), "compute": _kept}
        role.run(ALU, alu, dtype="int32", mix=mix(imad=imad), dst=done.whole, chain=chain, **first)
    role.run(ALU, 1, dtype="int32", dst=done.whole, srcs=(done.whole,), compute=_kept)


def waits(role: RoleBuilder, cycles: int) -> None:
    """As many cycles in which a warp has nothing to do: additions of which each waits for the one before."""
    done = RegisterTile("waited", (1, 1), "int32")
    chain = cycles // DEPENDENT_CYCLES
    role.run(ALU, 1, dtype="int32", dst=done.whole, nominal=True, chain=chain, compute=np.zeros_like)
    role.run(ALU, 1, dtype="int32", dst=done.whole, srcs=(done.whole,), compute=_kept)


def _kept(_: np.ndarray, value: np.ndarray) -> np.ndarray:
    return value
