"""The rules of rings, judged by what warps do and not by when: a ring that only luck keeps from harm is a finding, too.

Of each CTA: producers acquire each step and fill its stage, consumers wait for each of those steps, and each stage gets
as many releases a step as the ring has consumers. One finding a ring; and no mbarrier ends within a phase.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sim.gpu.check.findings import Violations
from sim.gpu.check.gates import MBarrierStage
from sim.gpu.check.warps import Step
from sim.gpu.language import Kernel, MBarrier, Ring, SharedTile
from sim.gpu.language.ops import Action

_FILLS = (Action.EXPECT_BYTES, Action.ARRIVE, Action.ARRIVE_AFTER_GROUP)
"""How a warp says that a stage is, or will be, full."""


@dataclass
class _Use:
    """What the warps of a CTA have done with a ring.

    acquired, filled: numbers of steps, and stages, by warp in its order. waited: numbers of the steps that were waited
    for. released: arrivals by stage and by the warp that made them. astray: of a copy into another stage than that of
    its barrier. lines: of the source, by what they do.
    """

    acquired: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    filled: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    waited: set[int] = field(default_factory=set)
    released: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    astray: str = ""
    lines: dict[str, str] = field(default_factory=dict)


class Rings:
    """What has been done with the rings of a kernel, CTA by CTA."""

    def __init__(self, kernel: Kernel) -> None:
        self._of = {barrier: ring for ring in kernel.rings for barrier in (ring.full, ring.empty)}
        self._uses: dict[tuple[int, Ring], _Use] = defaultdict(_Use)

    def note(self, step: Step, targets: Iterable[int]) -> None:
        """An op that a warp has issued; targets: CTAs at whose mbarriers it arrives."""
        op, instance, warp = step.instance.op, step.instance, step.warp
        ring = self._of.get(op.barrier) if op.barrier is not None else None
        if ring is None:
            return
        use, stage, full = self._uses[warp.place.cta, ring], instance.stage, op.barrier == ring.full
        action = step.spec.action
        if action is Action.AWAIT_PHASE:
            if full:
                use.waited.add(instance.phase * ring.stages + stage)
            else:
                use.acquired[warp.number].append((instance.phase + 1) * ring.stages + stage)
            use.lines.setdefault("waits" if full else "acquires", op.line)
        elif action in _FILLS and full:
            use.filled[warp.number].append(stage)
            use.lines.setdefault("fills", op.line)
        elif action in _FILLS:
            for cta in targets:
                self._uses[cta, ring].released[stage, warp.place.cta, warp.number] += 1
                self._uses[cta, ring].lines.setdefault("releases", op.line)
        elif instance.dst is not None and isinstance(instance.dst.buffer, SharedTile):
            tile = instance.dst.buffer
            if tile.stages == ring.stages and instance.dst.stage != stage and not use.astray:
                use.astray = f"{op} brings stage {instance.dst.stage} of {tile.name} on the barrier of stage {stage}"

    def judge(self, violations: Violations) -> set[MBarrier]:
        """Adds a finding for each ring that is used otherwise than its rules say; the barriers of those."""
        broken: set[MBarrier] = set()
        for (cta, ring), use in self._uses.items():
            if wrong := next(_broken(ring, use), ""):
                broken |= {ring.full, ring.empty}
                violations.add(
                    ("ring", ring.full.name), f"ring {ring.full.name}, {ring.empty.name} (CTA {cta}): {wrong}"
                )
        return broken


def judge_ends(
    mbarriers: Iterable[tuple[int, str, int, MBarrierStage]], broken: set[MBarrier], violations: Violations
) -> None:
    """Adds a finding for each mbarrier that ends within a phase, those of broken rings left out.

    mbarriers: CTA, name, stage, state of each.
    """
    names = {barrier.name for barrier in broken}
    for cta, name, stage, state in mbarriers:
        if name not in names and not state.parked and (state.pending != state.arrivals or state.bytes):
            text = f"mbarrier {name}[{stage}] (CTA {cta}) ends within a phase: {state.missing()}"
            violations.add(("phase", name), text)


def _broken(ring: Ring, use: _Use) -> Iterator[str]:
    """Which rules the use of a ring breaks, in words."""

    def at(what: str) -> str:
        line = use.lines.get(what, "")
        return f" ({line})" if line else ""

    if use.astray:
        yield use.astray
    made: set[int] = set()
    for warp, steps in use.acquired.items():
        filled = use.filled.get(warp, [step % ring.stages for step in steps])
        begun = max(0, len(filled) - len(steps))  # without waiting for stages that nobody has used yet
        for step, stage in zip(steps, filled[begun:], strict=False):
            if step % ring.stages != stage:
                yield (
                    f"warp {warp} acquires stage {step % ring.stages}{at('acquires')} and fills stage {stage}"
                    f"{at('fills')} in step {step}"
                )
        made |= {*steps[: len(filled)], *filled[:begun]}  # the last waits may be for the end of all reading
    for step in sorted(made ^ use.waited if made else ()):
        does, lacks = ("acquires", "waits") if step in made else ("waits", "acquires")
        yield f"step {step}: a warp {does}{at(does)}, none {lacks}{at(lacks)}"
    turns, released = Counter(step % ring.stages for step in use.waited), Counter[int]()
    for (stage, _, warp), times in use.released.items():
        released[stage] += times
        if times > turns[stage]:
            yield f"warp {warp} releases stage {stage} {times} times{at('releases')}; it is used {turns[stage]} times"
    for stage in sorted(turns.keys() | released.keys()):
        right = turns[stage] * ring.empty.arrivals
        if released[stage] != right:
            yield (
                f"stage {stage} is used {turns[stage]} times{at('waits')} and released {released[stage]} times"
                f"{at('releases')}; {ring.empty.arrivals} consumers make {right}"
            )
