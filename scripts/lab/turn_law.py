"""The law of turning: what bounds a run by the report's own word moves it.

A case is an operator, a machine, a primary figure and a factor. The figure is made scarce until the report says that it
bounds the run, and then gets better by the factor, the schedule held: at least half of what that would save in
proportion has to be saved. Where it is not, something else caps the figure: the one, or the few together, that
let the law hold when they are ample before and after are found by running.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from random_cases import RandomCase

from arch.errors import InputError
from arch.leaves import leaves
from arch.load import list_archs, load_arch
from arch.spec import MachineSpec
from sim.app.report.figures import LATENCY_BOUND_BELOW, Figures
from sim.app.report.record import RunRecord
from sim.app.report.report import Report
from sim.app.run import request_of, run

HALF = 0.5
"""Of what a better figure would save in proportion, the least that it has to save."""

SCARCE = (1, 2, 4, 8, 16, 32)
"""By what a figure is divided until it bounds the run."""

MOST_CAPS = 3
"""Figures that may cap another one together."""

AMPLE = (8, 4, 2)
"""By how much a figure gets better that might cap another one: the most that its machine takes."""

FACTORS = (1.1, 1.25, 1.5, 2.0)
"""By how much a rate gets better. Counts double: their parts are whole."""

TENSOR = "tensor rate"
"""Stands for the intervals of all rows of an operator's format on tensor cores."""

BOUNDS = {
    "gpu": {
        "dram.bandwidth": "dram", "l2.bandwidth": "l2", "pcie.bandwidth": "pcie", "link.bandwidth": "link",
        "sm.count": "compute", "clock.boost": "compute", TENSOR: "compute",
    },
    "tpu": {
        "dram.bandwidth": "dram", "pcie.bandwidth": "pcie", "unified_buffer.bandwidth": "unified_buffer",
        "array.rows": "compute", "array.columns": "compute", "array.count": "compute", "clock.boost": "compute",
    },
    "rdu": {
        "hbm.bandwidth": "hbm", "ddr.bandwidth": "ddr", "link.bandwidth": "link", "pcu.count": "compute",
        "clock.boost": "compute",
    },
    "gemmini": {"dram.bandwidth": "dram", "clock.boost": "compute", "array.size": "compute"},
}  # fmt: skip
"""Primary figures by family, each with the word for what bounds a run by it."""


OTHERS = {
    "gpu": ("dram.bandwidth", "l2.bandwidth", "port.gpc", "port.read", "port.write"),
    "tpu": ("dram.bandwidth", "pcie.bandwidth", "host.bandwidth"),
    "rdu": ("hbm.bandwidth", "ddr.bandwidth", "agcu.bandwidth", "agcu.in_flight", "pmu.bandwidth"),
    "gemmini": ("dram.bandwidth", "memory_cache.port", "l2.misses", "dma.requests"),
}
"""Figures by family that are ample in a case about another one."""


@dataclass(frozen=True)
class Turn:
    """A run and a primary figure that gets better by a factor."""

    run: RandomCase
    figure: str
    factor: float

    def __str__(self) -> str:
        return f"{self.run} with {self.figure} x {self.factor:g}"


@dataclass(frozen=True)
class Turned:
    """What came of it.

    scarce: by what the figure had to be divided to bound the run; 0: it never did. saved: share of the time,
    in_proportion: what it would be at most. cap: the figures that keep it from moving the run, empty where it moves or
    none were found. named: whether the report with the better figure names one of them.
    """

    scarce: int
    saved: float = 0.0
    in_proportion: float = 1.0
    cap: str = ""
    named: bool = False

    @property
    def moves(self) -> bool:
        """Whether the figure moves the run by enough; one that never bounds it need not."""
        return not self.scarce or self.saved >= HALF * self.in_proportion


def turns(seed: int | str, archs: tuple[str, ...] = ()) -> Iterator[Turn]:
    """Cases without end, the same ones for the same seed; each family has as many."""
    rng = random.Random(f"turns {seed}")
    by_family: dict[str, list[str]] = {}
    for name in archs or list_archs():
        by_family.setdefault(load_arch(name).family, []).append(name)
    while True:
        family = rng.choice(sorted(by_family))
        arch, figure = rng.choice(by_family[family]), rng.choice([*BOUNDS[family]])
        workload = _workload(rng, family, BOUNDS[family][figure])
        whole = figure.endswith(("count", "rows", "columns", "size"))
        factor = 2.0 if whole else rng.choice(FACTORS)
        if figure == TENSOR or scaled(load_arch(arch), figure, 1) is not None:
            yield turn(workload, arch, figure, factor)


def turn(workload: str, arch: str, figure: str, factor: float, held: tuple[str, ...] = ()) -> Turn:
    """A case with others ample, of arithmetic on few SMs, of an L2 that has the operands. held: further overrides."""
    spec = load_arch(arch)
    word = BOUNDS[spec.family][figure]
    few = spec.family == "gpu" and word == "compute" and figure != "sm.count"
    ample = [text for path in OTHERS[spec.family] if path != figure for text in _ample(spec, path, True)]
    sets = (*([f"sm.count={spec.gpc.count}"] if few else []), *ample, *held)
    return Turn(RandomCase(workload, arch, sets, {"l2": "warm"} if word == "l2" else {}), figure, factor)


def _workload(rng: random.Random, family: str, word: str) -> str:
    """An operator that a unit can bound."""
    size = 2 ** rng.randint(22, 27)
    if word == "link":
        return f"allreduce bytes={size} devices={rng.choice((2, 4, 8))}"
    if word == "pcie" and family == "gpu":
        return f"copy_h2d bytes={size}"
    if word == "compute":
        sizes = {"gpu": (512, 768, 1024), "tpu": (512, 768, 1024), "rdu": (256, 384, 512), "gemmini": (128, 192, 256)}
        m, n, k = (rng.choice(sizes[family]) for _ in "mnk")
        return f"gemm m={m} n={n} k={k}"
    rows, cols = rng.choice((256, 512, 1024)), rng.choice((512, 1024, 2048))
    weights = f"gemm m={rng.choice((1, 4, 16, 32))} n={2 * rows} k={cols}"
    if family == "gemmini":
        return f"gemm m={rng.choice((1, 16, 64))} n={rows // 2} k={cols // 4}"
    if family == "tpu":
        return weights
    if family == "rdu":
        return rng.choice((weights, f"softmax rows={rows} cols={cols}", f"gelu n={rows * cols}"))
    kind = rng.choice(("softmax", "rmsnorm", "add", "transpose", "weights", "weights"))
    if kind == "weights":
        return f"{weights} dtype=fp16 tb={rng.choice('NT')}"
    shape = f"n={rows * cols}" if kind == "add" else f"rows={rows} cols={cols}"
    return f"{kind} {shape} dtype={rng.choice(('fp16', 'fp32'))}"


def examine(turn: Turn, caps: Sequence[tuple[str, bool]]) -> Turned:
    """What came of a case. caps: figures that might cap another, and whether more of each is better.

    Raises InputError where the machine cannot run it.
    """
    base = load_arch(turn.run.arch)
    for scarce in SCARCE:
        sets = _scaled(base, turn, 1 / scarce)
        try:
            before = _run(turn, sets, "auto")
        except InputError:
            if scarce == 1:
                raise
            break  # so little of it is no machine
        if _bounds(before, BOUNDS[base.family][turn.figure], turn.figure):
            return _judge(turn, base, scarce, before, caps)
    return Turned(0)


def _judge(turn: Turn, base: MachineSpec, scarce: int, before: RunRecord, caps: Sequence[tuple[str, bool]]) -> Turned:
    """What the better figure does to a run that it bounds, and what caps it."""
    slow, fast = (_scaled(base, turn, factor / scarce) for factor in (1, turn.factor))
    after = _better(turn, fast, before.schedule)
    found = Turned(scarce, 1 - after.time_ps / before.time_ps, 1 - 1 / turn.factor)
    if found.moves:
        return found
    known = {turn.figure, *load_arch(turn.run.arch, [*turn.run.set, *fast]).belonging}
    ample = {path: texts for path, more in caps if path not in known and (texts := _ample(base, path, more))}

    def saved(paths: Sequence[str]) -> float:
        """What the better figure saves where others are ample before and after."""
        more = [text for path in paths for text in ample[path]]
        try:
            slower = _run(turn, [*slow, *more], before.schedule).time_ps
            faster = _better(turn, [*fast, *more], before.schedule).time_ps
        except InputError:
            return 0.0
        # What makes the run before slower, not the one after faster, caps nothing.
        return 1 - faster / slower if faster < after.time_ps else 0.0

    # A faster clock turns all units, which says nothing of one: it is asked last.
    for pool in (ample.keys() - {"clock.boost"}, ample.keys() & {"clock.boost"}):
        together: tuple[str, ...] = ()
        while len(together) < MOST_CAPS and (left := sorted(pool - {*together})):
            together = max(((*together, path) for path in left), key=saved)
            if saved(together) >= HALF * found.in_proportion:
                text = str(Report(after))
                return replace(found, cap=" and ".join(together), named=any(path in text for path in together))
    return found


def _better(turn: Turn, sets: Sequence[str], schedule: str) -> RunRecord:
    """The run on the better machine, its schedule held; where there are more units, which a schedule made for fewer
    would leave idle, its own choice if that is faster."""
    held = _run(turn, sets, schedule)
    if turn.figure not in ("sm.count", "pcu.count", "array.count", "array.rows", "array.columns", "array.size"):
        return held
    return min(held, _run(turn, sets, "auto"), key=lambda record: record.time_ps)


def _run(turn: Turn, sets: Sequence[str], schedule: str) -> RunRecord:
    alone = turn.run.workload.startswith(("allreduce", "copy"))  # there is no choice
    options = {**turn.run.options, "schedule": "auto" if alone else schedule}
    return run(request_of(turn.run.workload, turn.run.arch, [*turn.run.set, *sets], **options))


def _bounds(record: RunRecord, word: str, figure: str) -> bool:
    """Whether the report says that a figure bounds the run; of arithmetic, that useful products are near the peak,
    where more of its units are asked about."""
    figures = Figures.of_run(record)
    if figures.bound != word:
        return False
    return word != "compute" or figure == "clock.boost" or figures.speed_of_light()["compute"] >= LATENCY_BOUND_BELOW


def _scaled(base: MachineSpec, turn: Turn, factor: float) -> list[str]:
    """Overrides that scale the primary figure."""
    return [] if factor == 1 else _overrides(base, turn.figure, factor)


def _ample(base: MachineSpec, path: str, more: bool) -> list[str]:
    """Overrides that make a figure ample; none where the machine has no such part, or takes no more of it."""
    for factor in AMPLE:
        texts = _overrides(base, path, factor if more else 1 / factor)
        with suppress(InputError):
            load_arch(base.name, texts)
            return texts
    return []


def _overrides(base: MachineSpec, path: str, factor: float) -> list[str]:
    """Overrides that multiply a figure, or the rate of tensor cores, by a factor; none without such a part."""
    if path == TENSOR:
        rows = [row for row in getattr(base, "instructions", ()) if row.pipe == "tensor"]
        return [f"instructions.{row.name}.interval={row.interval_cycles / factor:.6g} cycles" for row in rows]
    text = scaled(base, path, factor)
    return [] if text is None else [f"{path}={text}"]


def scaled(base: MachineSpec, path: str, factor: float) -> str | None:
    """A figure's value times a factor, as one types it, a count at least 1; None where the machine has none."""
    leaf = leaves(type(base)).get(path)
    value = base if leaf else None
    for attribute in leaf.attributes if leaf else ():
        value = getattr(value, attribute, None)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value:
        return None
    moved = max(1, round(value * factor)) if isinstance(value, int) else value * factor
    return f"{moved!r} {leaf.unit.printed[-1]}" if leaf and leaf.unit else repr(moved)
