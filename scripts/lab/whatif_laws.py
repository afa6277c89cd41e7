#!/usr/bin/env python3
"""The law of monotony on random cases: a better machine is not slower by accident.

    scripts/lab/whatif_laws.py [--cases N] [--seed S] [--choice N] [--large] [--only PATTERN ...] [--json]
    scripts/lab/whatif_laws.py --turns N [--seed S] [--arch A ...] [--json]

A case is an operator, a shape, a machine, one of its figures and a factor by which the figure gets better: more
bandwidth, units, capacity or clock, or fewer cycles of a latency or an interval. It runs before and after, once with
the schedule of the unchanged machine held and once with the machine's own choice (`auto`). A run that gets more than
1 % slower breaks the law, and is listed with what grew and with the mechanism of hardware without which, before and
after, it would not. The first `--choice` cases also simulate all candidates of the
unchanged machine: how much slower the chosen one is than the best (regret), and how far estimates are from what was
simulated, by family. `--choice N --large` looks at N products of 2^25 to 2^29 multiply-adds on eight GPUs instead, and
at their choice alone. Exit code 1 if a run gets more than 5 % slower, or more than 1 % of the cases break the law.
Narrower channels that share one bandwidth are a trade and no better machine: what gets slower by them is listed, but
not counted.

`--turns N` looks at N cases of another law (`turn_law.py`): a primary figure that bounds a run by the report's own word
moves it; what caps it is found and listed. Exit code 1 if a figure does not move a run and nothing caps it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any, Literal, cast

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER)]

from random_cases import RandomCase, large_products, random_cases  # noqa: E402
from turn_law import TENSOR, Turn, Turned, turns  # noqa: E402
from turn_law import examine as turn  # noqa: E402

from arch.errors import InputError  # noqa: E402
from arch.leaves import leaves  # noqa: E402
from arch.load import load_arch  # noqa: E402
from arch.spec import MachineSpec  # noqa: E402
from arch.units import BYTES_PER_S, CYCLES  # noqa: E402
from sim.app.families.choice import DEAREST_PERCENT, cost_of, decide  # noqa: E402
from sim.app.families.family import (  # noqa: E402
    CandidateRun,
    Plan,
    runner_of,
)
from sim.app.report.record import RunRecord  # noqa: E402
from sim.app.report.text import percent  # noqa: E402
from sim.app.run import request_of, run  # noqa: E402

SLOWER = 0.01
"""A run that gets slower by more breaks the law."""

MUCH_SLOWER = 0.05
"""No run may get slower by more."""

SHARE = 0.01
"""Share of the cases that may break the law, for reasons that hardware has, too."""

SMALL_S = 0.3
"""Seconds of one core that a choice may take in any case."""

NEAR = 0.02
"""Candidates that are slower by no more are as good as the best."""

FACTORS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
"""By how much a figure gets better."""

HEADLINE = 0.5
"""Share of the cases that change one of the figures that people change first."""

MORE: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        *("sm.count", "clock.boost", "dram.bandwidth", "l2.bandwidth", "l2.size"),
        *("sm.registers", "sm.max_warps", "sm.max_ctas", "sm.wgmma_in_flight", "sm.instruction_prefetch"),
        *("sm.instruction_cache", "shared.bandwidth", "shared.return", "shared.queue", "shared.max_per_sm"),
        *("l1.size", "l1.bandwidth", "l1.miss_queue", "l1.queue"),
        *("port.read", "port.receive", "port.write", "port.gpc", "tma.max_in_flight", "tma.queue"),
        *("dsmem.read", "dsmem.write", "l2.ways", "l2.write_bandwidth", "l2.link_bandwidth", "l2.coalescer"),
        *("dram.channels", "dram.banks", "dram.t_refi", "power.limit", "power.burst"),
    ),
    "tpu": (
        *("clock.boost", "dram.bandwidth", "pcie.bandwidth", "pcie.path", "host.bandwidth", "host.ops"),
        *("array.rows", "array.columns", "array.count", "dram.channels"),
        *("weight_fifo.depth", "accumulators.rows", "unified_buffer.size", "unified_buffer.bandwidth"),
        *("activation.values", "vector.lanes", "control.buffer", "control.queue"),
    ),
    "rdu": (
        *("clock.boost", "pcu.count", "pmu.count", "hbm.bandwidth", "ddr.bandwidth"),
        *("pcu.lanes", "pcu.stages", "pcu.fifo", "pcu.vector_inputs", "pcu.vector_outputs", "pmu.size", "pmu.banks"),
        *("pmu.bandwidth", "pmu.addresses", "mesh.vector", "mesh.scalar", "mesh.control_wires", "mesh.credits"),
        *(
            "dies.bandwidth",
            "agcu.bandwidth",
            "agcu.in_flight",
            "hbm.channels",
            "ddr.channels",
            "hbm.banks",
            "hbm.t_refi",
            "ddr.banks",
            "ddr.t_refi",
        ),
        *("host.bandwidth", "tiles.bandwidth"),
    ),
    "gemmini": (
        *("clock.boost", "dram.bandwidth", "dma.requests", "l2.misses", "memory_cache.port"),
        *("dma.commands", "reservation.loads", "reservation.executes", "reservation.stores", "scratchpad.size"),
        *(
            "accumulator.size",
            "l2.size",
            "l2.ways",
            "memory_cache.size",
            "memory_cache.ways",
            "dram.channels",
            "dram.banks",
            "dram.t_refi",
        ),
    ),
}
"""Figures of which more is better, by family: those that people change first stand in its first line."""

_TIMINGS = ("latency", "overhead", "t_rcd", "t_rp", "t_ras", "t_rc", "t_faw", "t_ccd", "t_wtr", "t_rtw", "t_rfc")

LESS: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        *("sm.cta_launch", "sm.warp_setup", "sm.address_interval", "sm.register_conflict", "sync.barrier"),
        *("sm.beside_wgmma_fma", "sm.beside_wgmma_alu", "sm.beside_wgmma_xu"),
        *("sync.barrier_per_warp", "sync.warp_sync", "sync.mbarrier_arrive", "sync.mbarrier_wait", "sync.cluster_sync"),
        *("shared.load_latency", "shared.store_latency", "l1.hit_latency", "cp_async.latency"),
        *("tma.issue_gap", "tma.latency", "tma.multicast_latency", "dsmem.latency", "l2.hit_latency", "l2.far_latency"),
        "l2.request",
        *(f"dram.{name}" for name in _TIMINGS),
        *("launch.kernel", "launch.setup", "launch.cta_interval", "launch.drain"),
    ),
    "tpu": (
        *("array.issue_interval", "array.wide_interval", "unified_buffer.latency", "activation.latency"),
        *("vector.latency", "control.issue", "control.sync", "pcie.latency"),
        *(f"dram.{name}" for name in _TIMINGS),
        *("host.turnaround", "host.exp_ops"),
    ),
    "rdu": (
        *("pcu.tail_interval", "pcu.latency", "pmu.latency", "mesh.hop", "mesh.control", "dies.latency"),
        *(f"{memory}.{name}" for memory in ("hbm", "ddr") for name in _TIMINGS),
        *("launch.program_load", "launch.argument_load", "launch.execute", "launch.host", "launch.hardware"),
        *("tiles.latency",),
    ),
    "gemmini": (
        *("array.latency", "l2.latency", "l2.set_busy", "memory_cache.latency", "core.tile", "core.command"),
        "core.choice",
        *(f"dram.{name}" for name in _TIMINGS),
    ),
}
"""Figures of which less is better, by family."""

FIRST = 5
"""How many of `MORE` of each family are those that people change first."""

ROW_COLUMNS = ("interval", "latency")
"""Columns of instruction rows of which less is better."""

CAPACITY = ("l2.size", "l2.ways")
"""A larger L2 that is full of another kernel's stores has more of them to write back, so that both runs would not begin
alike: these begin with an empty one."""

_WAYS = ("mesh.hop=0 cycles", "mesh.control=0 cycles", "tiles.latency=0 cycles", "dies.latency=0 ns")

MECHANISMS: Mapping[str, tuple[str, ...]] = {
    "refresh of DRAM": ("dram.t_rfc=0 ns", "hbm.t_rfc=0 ns", "ddr.t_rfc=0 ns"),
    "the length of ways": _WAYS,
    "ways that streams share": (*_WAYS, "mesh.vector=4096 B/clk"),
    "clean lines that leave the L2 first": ("l2.clean_first=false",),
    "batches of writes": ("dram.write_batch=8192", "hbm.write_batch=8192", "ddr.write_batch=8192"),
    "sets that serve one request at a time": ("l2.set_busy=1 cycles",),
    "bursts that meet at slices of the L2": ("l2.bandwidth=1000 B/clk",),
    "a port that streams share": ("memory_cache.port=4096 B/clk",),
    "victims by chance": ("l2.replacement=lru", "memory_cache.replacement=lru"),
    "the order in which warps take turns": ("sm.scheduler=oldest",),
    "rows that close": ("dram.t_rp=0 ns", "hbm.t_rp=0 ns", "ddr.t_rp=0 ns"),
}
"""What can make a run on real hardware slower where a figure gets better, with the overrides that switch it off."""

NARROW = "channels that share one bandwidth, each of which takes longer for a line"
"""The mechanism of `*.channels`: without it the new ones are as fast as those that there were."""

Mode = Literal["held", "auto"]


@dataclass(frozen=True)
class Case:
    """A run and a figure that gets better. text: the figure's better value, as one types it."""

    run: RandomCase
    path: str
    text: str
    factor: float

    def __str__(self) -> str:
        return f"{self.run} with {self.path}={self.text} (x {self.factor:g})"


@dataclass(frozen=True)
class Outcome:
    """What a better figure did: relative change of the time, the warp state or unit that grew most, and the mechanism
    without which the law holds; empty where it holds, or none of the known ones is the reason."""

    mode: Mode
    change: float
    schedules: tuple[str, str]
    grew: str
    mechanism: str = ""


@dataclass(frozen=True)
class Choice:
    """What the choice costs on the unchanged machine: time over the best candidate's, and errors of estimates (ratio of
    the estimate to what was simulated, by candidate). error: by how much the estimate of a candidate within `NEAR` of
    the best lies above the best estimate. dear: events of what was simulated to choose, over those of what was chosen.
    seconds: of one core that choosing took. alone: that the chosen one takes. tried: candidates that were simulated, of
    all.
    """

    family: str
    operator: str
    regret: float
    chosen: str
    best: str
    ratios: tuple[float, ...]
    error: float
    dear: float
    seconds: float
    alone: float
    tried: tuple[int, int]

    @property
    def cheap(self) -> bool:
        """Whether choosing stays within what it may cost."""
        return self.seconds <= max(SMALL_S, DEAREST_PERCENT / 100 * self.alone)


@dataclass
class Found:
    """All that was found. refused: cases that a machine cannot run before or after, with the reason."""

    outcomes: list[tuple[Case, Outcome]] = field(default_factory=list)
    choices: list[tuple[RandomCase, Choice]] = field(default_factory=list)
    refused: list[tuple[Case, str]] = field(default_factory=list)

    def broken(self, mode: Mode) -> list[tuple[Case, Outcome]]:
        """What breaks the law, the worst first."""
        worse = [(case, o) for case, o in self.outcomes if o.mode == mode and o.change > SLOWER]
        return sorted(worse, key=lambda pair: -pair[1].change)

    def lawful(self, mode: Mode) -> bool:
        """Whether few cases break the law, and none by much."""
        broken = [(case, o) for case, o in self.broken(mode) if o.mechanism != NARROW]
        count = sum(o.mode == mode for _, o in self.outcomes)
        return len(broken) <= SHARE * count and all(o.change <= MUCH_SLOWER for _, o in broken)


# ---------------------------------------------------------------------------------------------------- what changes


def _value(spec: MachineSpec, path: str) -> Any:
    """A figure's value; None where the machine has no such part."""
    leaf = leaves(type(spec)).get(path)
    value: Any = spec if leaf else None
    for attribute in leaf.attributes if leaf else ():
        value = getattr(value, attribute, None)
    return value


def better(spec: MachineSpec, path: str, factor: float) -> str | None:
    """The value of a figure made better by a factor, as one types it; None where that is no change."""
    if path.startswith("instructions."):
        name, column = path.removeprefix("instructions.").rpartition(".")[::2]
        row = next(row for row in spec.instructions if row.name == name)  # type: ignore[attr-defined]
        value, unit, more = getattr(row, f"{column}_cycles"), CYCLES, False
    else:
        value = _value(spec, path)
        if value is None:
            return None
        unit, more = leaves(type(spec))[path].unit, path in MORE[spec.family]
    if not isinstance(value, int | float) or isinstance(value, bool) or not value:
        return None
    moved: int | float = value * factor if more else value / factor
    if isinstance(value, int):
        moved = math.ceil(moved) if more else math.floor(moved)
    if moved == value:
        return None
    return f"{moved!r} {unit.printed[-1]}".strip() if unit else repr(moved)


def figures_of(spec: MachineSpec) -> list[str]:
    """Figures of a machine of which we know which way is better, instruction rows included."""
    rows = [f"instructions.{row.name}.{column}" for row in getattr(spec, "instructions", ()) for column in ROW_COLUMNS]
    return [*MORE[spec.family], *LESS[spec.family], *rows]


def cases(seed: int, only: Sequence[str] = (), archs: tuple[str, ...] = ()) -> Iterator[Case]:
    """Cases without end, the same ones for the same seed. only: patterns of figures; archs: machines, default all."""
    rng = random.Random(f"laws {seed}")
    for drawn in random_cases(seed, archs):
        spec = load_arch(drawn.arch, drawn.set)
        paths = figures_of(spec)
        first = MORE[spec.family][:FIRST] if rng.random() < HEADLINE else ()
        wanted = [path for path in first or paths if not only or any(fnmatch.fnmatch(path, p) for p in only)]
        if not wanted:
            continue
        path, factor = rng.choice(wanted), rng.choice(FACTORS)
        text = better(spec, path, factor)
        options = {key: value for key, value in drawn.options.items() if key != "exact"}
        if path in CAPACITY and options.get("l2") == "dirty":
            options["l2"] = "cold"
        if text is not None:
            yield Case(RandomCase(drawn.workload, drawn.arch, drawn.set, options), path, text, factor)


# ---------------------------------------------------------------------------------------------------- what runs


def examine(case: Case) -> list[Outcome]:
    """The case with the schedule held, then with the machine's own choice. InputError where a machine cannot run it."""
    before = _run(case, (), "auto")
    changed = (f"{case.path}={case.text}",)
    held = _run(case, changed, before.schedule)
    outcomes = [_outcome("held", before, held), _outcome("auto", before, _run(case, changed, "auto"))]
    return [replace(o, mechanism=_mechanism(case, changed, o)) if o.change > SLOWER else o for o in outcomes]


def _mechanism(case: Case, changed: Sequence[str], outcome: Outcome) -> str:
    """The first mechanism without which the better figure makes the run no slower."""
    spec = load_arch(case.run.arch)
    ways = {name: [text for text in off if _value(spec, text.partition("=")[0])] for name, off in MECHANISMS.items()}
    for name, off in ways.items():
        if off and _lawful_with(case, outcome, off, [*changed, *off]):
            return name
    memory, _, figure = case.path.partition(".")
    if figure == "channels":
        more = int(case.text) / _value(spec, case.path)
        same = f"{memory}.bandwidth={_value(spec, f'{memory}.bandwidth') * more:.0f} B/s"
        if _lawful_with(case, outcome, [], [*changed, same]):
            return NARROW
    return ""


def _lawful_with(case: Case, outcome: Outcome, slow: Sequence[str], fast: Sequence[str]) -> bool:
    """Whether the law holds with further overrides before and after, with one of the schedules that ran: of the better
    machine any of both, for its choice could have stayed."""
    first, second = outcome.schedules
    try:
        before = _run(case, slow, first)
        after = [_run(case, fast, schedule) for schedule in dict.fromkeys((second, first))]
    except InputError:  # this machine has no such mechanism
        return False
    return min(record.time_ps for record in after) <= (1 + SLOWER) * before.time_ps


@dataclass
class _Clocked:
    """A plan that notes what seconds of one core the first run of each candidate took, building included."""

    plan: Plan
    seconds: dict[int, float] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def run(self, number: int, *arguments: Any, **named: Any) -> CandidateRun:
        """As the plan does."""
        begun = process_time()
        try:
            return self.plan.run(number, *arguments, **named)
        finally:
            self.seconds.setdefault(number, process_time() - begun)


def choice(case: RandomCase) -> Choice | None:
    """What all candidates of the unchanged machine take, those included that only tuning tries; None where there is no
    choice."""
    asked = request_of(case.workload, case.arch, case.set, **case.options)
    family = runner_of(asked.machine.family)
    plan, tuned = (cast("Plan", _Clocked(family.plan(replace(asked, tune=tune)))) for tune in (False, True))
    if len(tuned.candidates) < 2:
        return None
    begun = process_time()
    some = decide(plan)
    seconds = process_time() - begun
    names = [name for name, _ in plan.candidates]
    more = [number for number, (name, _) in enumerate(tuned.candidates) if name not in names]
    each = [(plan, number) for number in range(len(names))] + [(tuned, number) for number in more]
    names += [tuned.candidates[number][0] for number in more]
    estimates = [from_.candidates[number][1] for from_, number in each]
    times: dict[int, CandidateRun] = {}
    for number, (from_, own) in enumerate(each):
        with suppress(InputError):
            times[number] = from_.run(own, None)
    chosen = some.chosen
    best = min(times, key=lambda number: times[number].device_ps)
    ratios = tuple(estimates[number] / max(1, ran.cycles) for number, ran in times.items())
    near = min(estimates[n] for n in times if times[n].device_ps <= (1 + NEAR) * times[best].device_ps)
    return Choice(
        asked.machine.family,
        asked.asked.word,
        times[chosen].device_ps / times[best].device_ps - 1,
        names[chosen],
        names[best],
        ratios,
        near / estimates[min(times)] - 1,
        some.cost / cost_of(plan, some.best),
        seconds,
        plan.seconds[chosen],  # type: ignore[attr-defined]
        (len(some.runs) + len(some.late) + len(some.paces), len(times)),
    )


def examine_all(some: Sequence[Case], choices: int, *, say: bool = False) -> Found:
    """Runs all cases, and the candidates of the first `choices`."""
    found = Found()
    for number, case in enumerate(some):
        try:
            found.outcomes += [(case, outcome) for outcome in examine(case)]
            if number < choices and (made := choice(case.run)) is not None:
                found.choices.append((case.run, made))
        except InputError as error:
            found.refused.append((case, str(error)))
        if say:
            print(f"\r{number + 1} of {len(some)}", end="", file=sys.stderr, flush=True)
    if say:
        print(file=sys.stderr)
    return found


def caps_of(machine: str) -> list[tuple[str, bool]]:
    """Figures that might cap another one, and whether more of each is better; the clock, which caps most, is last."""
    spec = load_arch(machine)
    found = [(path, True) for path in ("dram.channels", "hbm.channels", "ddr.channels", TENSOR)]
    found += [(path, table is MORE) for table in (MORE, LESS) for path in table[spec.family]]
    # What libraries' kernels of collectives pass on, and how long each step of one takes.
    own = {path: leaf for path, leaf in leaves(type(spec)).items() if path.startswith("collectives.")}
    found += [(path, leaf.unit == BYTES_PER_S) for path, leaf in own.items()]
    return sorted(found, key=lambda cap: cap[0] == "clock.boost")


def turned_all(some: Sequence[Turn], *, say: bool = False) -> list[tuple[Turn, Turned | str]]:
    """What came of each case, or why its machine cannot run it."""
    found: list[tuple[Turn, Turned | str]] = []
    for number, case in enumerate(some):
        try:
            found.append((case, turn(case, caps_of(case.run.arch))))
        except InputError as error:
            found.append((case, str(error)))
        if say:
            print(f"\r{number + 1} of {len(some)}", end="", file=sys.stderr, flush=True)
    return found


def choices_of(some: Sequence[RandomCase]) -> Found:
    """The choice of each run alone."""
    made = [(case, choice(case)) for case in some]
    return Found(choices=[(case, one) for case, one in made if one is not None])


def _run(case: Case, changed: Sequence[str], schedule: str) -> RunRecord:
    options = {**case.run.options, "schedule": schedule}
    return run(request_of(case.run.workload, case.run.arch, [*case.run.set, *changed], **options))


def _outcome(mode: Mode, before: RunRecord, after: RunRecord) -> Outcome:
    grown = {name: count - _states(before).get(name, 0) for name, count in _states(after).items()}
    most = max(grown, key=lambda name: grown[name], default="")
    change = after.time_ps / before.time_ps - 1
    return Outcome(mode, change, (before.schedule, after.schedule), most if grown.get(most, 0) > 0 else "")


def _states(record: RunRecord) -> dict[str, int]:
    """Cycles by unit and reason, over all kernels."""
    total: dict[str, int] = {}
    for kernel in record.kernels:
        for unit, reasons in kernel.stalls.items():
            for reason, count in reasons.items():
                if unit != "issue":
                    total[f"{unit}: {reason}"] = total.get(f"{unit}: {reason}", 0) + count
    return total


# ---------------------------------------------------------------------------------------------------- what is shown


def text_of(found: Found) -> str:
    """What was found, for people."""
    lines = []
    for mode in ("held", "auto"):
        broken = found.broken(mode)  # type: ignore[arg-type]
        changes = sorted(o.change for _, o in found.outcomes if o.mode == mode)
        if not changes:
            continue
        worst = f", the worst by {100 * changes[-1]:.2f} %"
        lines.append(f"schedule {mode}: {len(broken)} of {len(changes)} runs get more than 1 % slower{worst}")
        for case, outcome in broken:
            moved = "" if outcome.schedules[0] == outcome.schedules[1] else "; {} -> {}".format(*outcome.schedules)
            lines.append(
                f"  {100 * outcome.change:+.2f} %  {case}; grew: {outcome.grew or 'nothing'}{moved}; "
                f"{f'not without {outcome.mechanism}' if outcome.mechanism else 'no known mechanism'}"
            )
    for family in sorted({made.family for _, made in found.choices}):
        some = [made for _, made in found.choices if made.family == family]
        errors = sorted(abs(math.log(max(ratio, 1e-9))) for made in some for ratio in made.ratios)
        near = sum(made.regret <= NEAR for made in some)
        lines.append(
            f"choice on {family}: within 2 % of the best candidate in {near} of {len(some)} cases, mean regret "
            f"{100 * statistics.mean(made.regret for made in some):.1f} %, worst "
            f"{100 * max(made.regret for made in some):.1f} %; estimates are off by a factor of "
            f"{math.exp(statistics.median(errors)):.2f} (median), "
            f"{math.exp(errors[int(0.95 * (len(errors) - 1))]):.2f} (19 of 20)"
        )
    for family, operator in sorted({(made.family, made.operator) for _, made in found.choices}):
        some = [made for _, made in found.choices if (made.family, made.operator) == (family, operator)]
        needed = sorted(made.error for made in some)[math.ceil(0.95 * len(some)) - 1]
        regret, dear = (100 * statistics.mean(m.regret for m in some)), statistics.mean(m.dear for m in some)
        cheap = sum(made.cheap for made in some)
        lines.append(
            f"  {family} {operator}: {len(some)} cases, mean regret {regret:.1f} %, the best lies within "
            f"{100 * needed:.0f} % of the best estimate (19 of 20), choosing took {dear:.1f} times one simulation; "
            f"{cheap} within {DEAREST_PERCENT / 100:g} times or {SMALL_S} s"
        )
    lines.append(f"{len(found.refused)} cases were refused by their machine")
    return "\n".join(lines)


def turns_text(found: Sequence[tuple[Turn, Turned | str]]) -> str:
    """What came of the law of turning, for people: how often each figure moves what it bounds, and what caps it."""
    ran = [(case, o) for case, o in found if isinstance(o, Turned)]
    bound = [(case, o) for case, o in ran if o.scarce]
    lines = [
        f"{len(found)} cases: {len(bound)} bound by their figure, of which {sum(o.moves for _, o in bound)} move with "
        f"it, {sum(bool(o.cap) for _, o in bound)} are capped; {len(ran) - len(bound)} not bound by it, "
        f"{len(found) - len(ran)} refused by their machine"
    ]
    for family, figure in sorted({(load_arch(case.run.arch).family, case.figure) for case, _ in bound}):
        some = [o for c, o in bound if (load_arch(c.run.arch).family, c.figure) == (family, figure)]
        caps = Counter(o.cap for o in some if o.cap)
        by = f"; capped by {', '.join(f'{cap} ({count})' for cap, count in caps.most_common())}" if caps else ""
        lines.append(f"  {family} {figure}: {sum(o.moves for o in some)} of {len(some)} move{by}")
    for case, outcome in bound:
        if not outcome.moves:
            what = f"capped by {outcome.cap}" if outcome.cap else "NO CAP FOUND"
            saved = f"saves {percent(outcome.saved)} of {percent(outcome.in_proportion)}"
            lines.append(f"  {case}, divided by {outcome.scarce}: {saved}, {what}")
    return "\n".join(lines)


def dict_of(found: Found) -> dict[str, Any]:
    """What was found, as plain data."""
    return {
        "outcomes": [{"case": str(case), **asdict(outcome)} for case, outcome in found.outcomes],
        "choices": [{"case": str(case), **asdict(made)} for case, made in found.choices],
        "refused": [{"case": str(case), "reason": reason} for case, reason in found.refused],
    }


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=lambda text: int(text) if text.isdigit() else text, default=0)
    parser.add_argument("--choice", type=int, default=0, metavar="N", help="simulate all candidates of the first N")
    parser.add_argument("--large", action="store_true", help="larger products instead, their choice alone")
    parser.add_argument("--turns", type=int, default=0, metavar="N", help="cases of the law of turning instead")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="figures, such as 'dram.*'")
    parser.add_argument("--arch", nargs="+", default=[], metavar="A", help="machines; default: all presets")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.large:
        large = choices_of([*islice(large_products(options.seed, tuple(options.arch)), options.choice)])
        print(json.dumps(dict_of(large)) if options.json else text_of(large))
        return 0
    if options.turns:
        turned = turned_all([*islice(turns(options.seed, tuple(options.arch)), options.turns)], say=sys.stderr.isatty())
        plain = [{"case": str(case), **(asdict(o) if isinstance(o, Turned) else {"refused": o})} for case, o in turned]
        print(json.dumps(plain) if options.json else turns_text(turned))
        return int(any(isinstance(o, Turned) and not o.moves and not o.cap for _, o in turned))
    drawn = cases(options.seed, options.only, tuple(options.arch))
    found = examine_all([next(drawn) for _ in range(options.cases)], options.choice, say=sys.stderr.isatty())
    print(json.dumps(dict_of(found)) if options.json else text_of(found))
    return 0 if found.lawful("held") and found.lawful("auto") else 1


if __name__ == "__main__":
    sys.exit(main())
