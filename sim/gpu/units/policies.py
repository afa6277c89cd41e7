"""Policies of the warp scheduler: which of the warps that could issue at a tick goes first.

A policy is a name in `arch.gpu.WarpScheduler`, the member of `Policy` of that name in capitals, and its case in the
functions here; a launch has one, as a number. Other packages register more (`sim.engine.extensions`), whose numbers
follow. `sim.gpu.engine.scheduler` asks them; who starts, delays or ends a warp tells them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from arch.extensions import SCHEDULERS
from sim.engine.extensions import number_of, one_of, policies
from sim.engine.jit import inner
from sim.gpu.lower.tables import Pipe
from sim.gpu.units.chip import Chip, Part
from sim.gpu.units.cta import CtaSlots
from sim.gpu.units.events import Reason
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.warp import Block, Warp

if TYPE_CHECKING:
    from arch.gpu import GpuSpec
    from sim.gpu.units.chip import Launching

_WHOLE = 1 << 30  # no run of a kernel is longer
SPECIAL_RUN = 4  # instructions of the special-function unit that issue in one event, before an older warp may have it

FIGURES = ("sm.scheduler", "sm.round_robin_run", "sm.active_warps")


class Policy(IntEnum):
    """Policies, by the names that `sm.scheduler` has for them."""

    GTO = 0
    LRR = 1
    OLDEST = 2
    TWO_LEVEL = 3  # round robin within an active set, behind which those that have waited for long queue up


_SHIPPED = len(Policy)
_OTHERS = policies(SCHEDULERS)
_OTHER_COUNT = len(_OTHERS)
_IN_TURN = (1 << Policy.LRR | 1 << Policy.TWO_LEVEL) + sum(
    1 << (_SHIPPED + number) for number, other in enumerate(_OTHERS) if other.takes_turns
)  # policies under which warps take turns
_priority = one_of([other.priority for other in _OTHERS], lambda number, since, last: 0)

_LONG_WAITS = (
    1 << Reason.LONG_SCOREBOARD
    | 1 << Reason.BARRIER
    | 1 << Reason.MBARRIER
    | 1 << Reason.GMMA
    | 1 << Reason.TMA_STORE
    | 1 << Reason.CP_ASYNC
    | 1 << Reason.MEMBAR
    | 1 << Reason.CLUSTER_BARRIER
    | 1 << Reason.NO_INSTRUCTION
    | 1 << Reason.SLEEPING
)  # for memory, the tensor core or other warps


class Turns(IntEnum):
    """Columns of a warp's row."""

    SINCE = 63  # one more than the tick of its start or of the end of its last long wait; 0: there is no warp


class SchedulerFigure(IntEnum):
    """Parameters of the warp scheduler."""

    LONGEST_RUN = Part.SCHEDULER  # instructions a run issues in one event; 1 is `--exact`
    POLICY = Part.SCHEDULER + 1
    ACTIVE_WARPS = Part.SCHEDULER + 2  # of a sub-core, in two levels


def parameters(spec: GpuSpec, launch: Launching) -> dict[IntEnum, int]:
    """`SchedulerFigure`. Where warps take turns, no run is longer than a turn."""
    name = spec.sm.scheduler
    shipped = {policy.name.lower(): int(policy) for policy in Policy}
    policy = shipped[name] if name in shipped else _SHIPPED + number_of(SCHEDULERS, name)
    longest = spec.sm.round_robin_run if _IN_TURN >> policy & 1 else _WHOLE
    return {
        SchedulerFigure.LONGEST_RUN: 1 if launch.exact else longest,
        SchedulerFigure.POLICY: policy,
        SchedulerFigure.ACTIVE_WARPS: spec.sm.active_warps if policy == Policy.TWO_LEVEL else 0,
    }


@inner(inline=True)
def rank_of(p, st, w):
    """What the policy ranks warp `w` by while it stands in line: its last issue, or the launch of its CTA."""
    return st.warps[w, Warp.LAST_ISSUE] if takes_turns(p) else st.warps[w, Warp.LAUNCH_ORDER]


@inner(inline=True)
def priority_of(p, st, s, sm, w, rank, pipe=-1):
    """Place of warp `w` of sub-core `s` among warps that are due at the same tick: 0 first, 63 last.

    pipe: that it waits for, -1 none. A greedy scheduler does not stay with a warp that waits for the special-function
    unit: others issue in the cycles between two of its instructions, and that unit goes to the oldest. In single issue
    they do so by themselves.
    """
    policy = p[SchedulerFigure.POLICY]
    if policy == Policy.LRR:  # the least recently issued
        return 63 - min(62, st.sub_cores[s, SubCore.SEQUENCE] - rank)
    if policy == Policy.TWO_LEVEL:
        behind = before_in_turn(p, st, sm, w) - p[SchedulerFigure.ACTIVE_WARPS]
        if behind < 0:  # in the active set
            return 31 - min(31, st.sub_cores[s, SubCore.SEQUENCE] - rank)
        return 33 + min(30, behind)
    greedy = pipe != Pipe.XU or p[SchedulerFigure.LONGEST_RUN] == 1
    last = greedy and st.sub_cores[s, SubCore.LAST_WARP] == w
    if _OTHER_COUNT > 0 and policy >= _SHIPPED:
        newest = st.sub_cores[s, SubCore.SEQUENCE] if takes_turns(p) else st.sms[sm, CtaSlots.NEWEST]
        return min(63, max(0, _priority(policy - _SHIPPED, newest - rank, 1 if last else 0)))
    if policy == Policy.GTO and last:
        return 0
    return 62 - min(61, st.sms[sm, CtaSlots.NEWEST] - rank)


@inner(inline=True)
def goes_between(p, st, w, holder):
    """Whether warp `w` may issue between the instructions of a spread op of warp `holder`.

    A greedy scheduler stays with a warp until that stalls, and its multiplies stall for the pipe. An older warp issues
    other instructions meanwhile, becomes the greedy one, and has the pipe for as long as it has multiplies.
    """
    return not takes_turns(p) and st.warps[w, Warp.LAUNCH_ORDER] < st.warps[holder, Warp.LAUNCH_ORDER]


@inner(inline=True)
def takes_turns(p):
    """Whether warps issue in turn, and none between the instructions of another's op."""
    return (_IN_TURN >> p[SchedulerFigure.POLICY]) & 1 != 0


@inner
def before_in_turn(p, st, sm, w):
    """How many warps of its sub-core have been ready, but for short waits, for longer than warp `w`.

    The first `ACTIVE_WARPS` are the active set: who waits for long leaves it and queues up behind the others when that
    is over, and the one that has queued for longest moves up.
    """
    warps = st.warps
    first = sm * p[Chip.WARPS_PER_SM]
    since = warps[w, Turns.SINCE]
    count = 0
    for other in range(first + (w - first) % p[Chip.SUB_CORES], first + p[Chip.WARPS_PER_SM], p[Chip.SUB_CORES]):
        theirs = warps[other, Turns.SINCE]
        earlier = theirs < since or (theirs == since and other < w)
        if theirs > 0 and earlier and warps[other, Warp.BLOCK] == Block.NONE:
            count += 1
    return count


@inner(inline=True)
def note_start(st, w, tick):
    """Warp `w` starts at a tick."""
    st.warps[w, Turns.SINCE] = tick + 1


@inner(inline=True)
def note_wait(st, w, tick, reason):
    """Warp `w` waits until a tick."""
    if (_LONG_WAITS >> reason) & 1:
        st.warps[w, Turns.SINCE] = tick + 1


@inner(inline=True)
def note_end(st, w):
    """Warp `w` has ended."""
    st.warps[w, Turns.SINCE] = 0
