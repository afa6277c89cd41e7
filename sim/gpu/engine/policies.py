"""Policies of the warp scheduler: which of the warps that could issue at a tick goes first.

A policy is a name in `arch.gpu.WarpScheduler`, the member of `Policy` of that name in capitals, and its case in the
functions here; a launch has one, as a number. `sim.gpu.engine.scheduler` asks them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sim.engine.jit import inner
from sim.gpu.engine.chip import Part
from sim.gpu.engine.cta import CtaSlots
from sim.gpu.engine.pipes import SubCore
from sim.gpu.engine.warp import Warp

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.engine.chip import Launching

_WHOLE = 1 << 30  # no run of a kernel is longer

FIGURES = ("sm.scheduler", "sm.round_robin_run")


class Policy(IntEnum):
    """Policies, by the names that `sm.scheduler` has for them."""

    GTO = 0
    LRR = 1
    OLDEST = 2


class SchedulerFigure(IntEnum):
    """Parameters of the warp scheduler."""

    LONGEST_RUN = Part.SCHEDULER  # instructions a run issues in one event; 1 is `--exact`
    POLICY = Part.SCHEDULER + 1


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`SchedulerFigure`. Where warps take turns, no run is longer than a turn."""
    policy = Policy[spec.sm.scheduler.upper()]
    longest = spec.sm.round_robin_run if policy == Policy.LRR else _WHOLE
    return {SchedulerFigure.LONGEST_RUN: 1 if launch.exact else longest, SchedulerFigure.POLICY: policy}


@inner(inline=True)
def rank_of(p, st, w):
    """What the policy ranks warp `w` by while it stands in line: its last issue, or the launch of its CTA."""
    return st.warps[w, Warp.LAST_ISSUE] if p[SchedulerFigure.POLICY] == Policy.LRR else st.warps[w, Warp.LAUNCH_ORDER]


@inner(inline=True)
def priority_of(p, st, s, sm, w, rank):
    """Place of warp `w` of sub-core `s` among warps that are due at the same tick: 0 first, 63 last."""
    policy = p[SchedulerFigure.POLICY]
    if policy == Policy.LRR:  # the least recently issued
        return 63 - min(62, st.sub_cores[s, SubCore.SEQUENCE] - rank)
    if policy == Policy.GTO and st.sub_cores[s, SubCore.LAST_WARP] == w:  # greedy
        return 0
    return 62 - min(61, st.sms[sm, CtaSlots.NEWEST] - rank)


@inner(inline=True)
def goes_between(p, st, w, holder):
    """Whether warp `w` may issue between the instructions of a spread op of warp `holder`.

    A greedy scheduler stays with a warp until that stalls, and its multiplies stall for the pipe. An older warp issues
    other instructions meanwhile, becomes the greedy one, and has the pipe for as long as it has multiplies.
    """
    return (
        p[SchedulerFigure.POLICY] != Policy.LRR and st.warps[w, Warp.LAUNCH_ORDER] < st.warps[holder, Warp.LAUNCH_ORDER]
    )
