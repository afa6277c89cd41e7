"""The cold fetch of a kernel's code and tensor maps through the L2, before the first warps of an SM start.

SMs of a GPC share an instruction cache, so that a line comes from the L2 once a GPC.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.jit import inner
from sim.gpu.engine.tma import Tma
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.events import Reason
from sim.gpu.units.l1 import SECTORS
from sim.gpu.units.port import Port, count_reads, port_read
from sim.gpu.units.tree import PARKED, leaf_of, schedule
from sim.gpu.units.waking import wake
from sim.gpu.units.warp import Block, Warp
from sim.memory.ahead import LINE, l2_prefetch
from sim.memory.sets import count_sectors

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching


_CODE_BASE_LINE = (1 << 20) // 128

# States of an SM's instruction cache.
COLD = 0
FETCHING = 1
WARM = 2

FIGURES = ("l1.line", "sm.instruction_prefetch", "launch.cold_instruction", "launch.descriptor_fetch")


class InstructionFetch(IntEnum):
    """Columns of an SM's row."""

    STATE = 14  # WARM: its instruction cache holds the kernel
    LINES = 17  # of code asked for so far


class FetchFigure(IntEnum):
    """Parameters of the code fetch."""

    CODE_LINES = Part.FETCH
    CODE_BASE = Part.FETCH + 1  # number of the first line
    LINES_AHEAD = Part.FETCH + 2  # lines fetched ahead in one go
    DESCRIPTORS = Part.FETCH + 3  # tensor maps


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`FetchFigure`."""
    lines = -(-launch.kernel.code_bytes // spec.l1.line_bytes)
    maps = launch.kernel.descriptors if spec.launch.descriptor_fetch else 0
    return {
        FetchFigure.CODE_LINES: lines if launch.cold and spec.launch.cold_instruction else 0,
        FetchFigure.CODE_BASE: _CODE_BASE_LINE + 1024 * launch.code_number,
        FetchFigure.LINES_AHEAD: max(1, spec.sm.instruction_prefetch_bytes // spec.l1.line_bytes),
        FetchFigure.DESCRIPTORS: maps if launch.cold else 0,
    }


@inner(inline=True)
def begin_fetch(p, st, sm, t):
    """The first CTA of `sm` has been placed: its SM asks for the code."""
    st.sms[sm, InstructionFetch.STATE] = FETCHING
    number = p[Chip.WARPS_PER_SM] + 2
    schedule(st, t, 32, p[Chip.SMS] * number + sm, leaf_of(p, sm, number), sm)


@inner
def fetch_line(p, st, ms, mem, sm, t, line):
    """Reads a line of code or a tensor map for an SM."""
    mem.ahead[LINE, 0] = line
    l2_prefetch(ms, mem, st.sms[sm, Port.PARTITION], 1)
    count_reads(st.counters, 1, count_sectors(SECTORS), 0)
    return port_read(p, st.sms, st.gpcs, ms, mem, sm, t, t, line, SECTORS, SECTORS, 0, True)


@inner
def fetch_code(p, st, ms, mem, sm, t):
    """Cold instruction fetch of one SM: the next lines ahead of its program counter, the tensor maps with the first.

    SMs of a GPC share an instruction cache, so that a line comes from the L2 once a GPC.
    Returns the tick of the next batch; after the last one the waiting warps start and it returns PARKED.
    """
    sms = st.sms
    done = t
    line = sms[sm, InstructionFetch.LINES]
    if line == 0:
        for d in range(p[FetchFigure.DESCRIPTORS]):
            data = fetch_line(p, st, ms, mem, sm, t, p[FetchFigure.CODE_BASE] - 1 - d)
            sms[sm, Tma.DESCRIPTORS_READY] = max(sms[sm, Tma.DESCRIPTORS_READY], data)
    if line < p[FetchFigure.CODE_LINES]:
        last = min(line + p[FetchFigure.LINES_AHEAD], p[FetchFigure.CODE_LINES])
        gpc = sms[sm, Port.GPC]
        while line < last:
            if st.code_ready[gpc, line] == 0:
                st.code_ready[gpc, line] = fetch_line(p, st, ms, mem, sm, t, p[FetchFigure.CODE_BASE] + line)
            done = max(done, st.code_ready[gpc, line])
            line += 1
        sms[sm, InstructionFetch.LINES] = line
        return done
    sms[sm, InstructionFetch.STATE] = 2
    first = sm * p[Chip.WARPS_PER_SM]
    for w in range(first, first + p[Chip.WARPS_PER_SM]):
        if st.warps[w, Warp.BLOCK] == Block.FETCH:
            wake(p, st, w, max(t, st.warps[w, Warp.OP_ISSUED]), Reason.NO_INSTRUCTION, t)
    return PARKED
