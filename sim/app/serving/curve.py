"""The curve of a deployment: latency and throughput over concurrency, machines and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from arch.errors import InputError
from arch.families import family
from arch.load import load_arch
from arch.spec import MachineSpec
from sim.app.families.request import Request
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from sim.app.report.text import bytes_text, percent
from sim.app.serving.deployment import WHOLE_KEYS, Deployment, Memory, fitted
from sim.app.serving.scheduler import Server
from sim.app.serving.steps import Chunk, Step, StepCost, StepTimes, grid_of, requests_of
from sim.app.study.axes import RUN_KEYS, Base, axes_of, combinations
from sim.app.study.case import Answer, key_of
from sim.app.study.executors import Executor, make_executor
from sim.app.study.runner import Progress, run_cases
from sim.app.study.store import default_store, opened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERVE_VERSION = "1.0"
"""Version of the JSON that `Curve.to_dict` gives."""


class Point(NamedTuple):
    """A deployment on a machine. values: what was varied."""

    values: Mapping[str, str]
    deployment: Deployment
    machine: MachineSpec
    memory: Memory
    options: Mapping[str, Any]

    @property
    def sequences(self) -> int:
        """Sequences of one copy that run at once."""
        return min(self.deployment.clients, self.memory.sequences(self.deployment))

    @property
    def steps(self) -> list[Step]:
        """Steps to simulate."""
        return grid_of(self.deployment, self.sequences)

    def requests(self, steps: Sequence[Step]) -> list[Request]:
        """Their simulations."""
        return requests_of(self.deployment, self.machine, steps, self.options)

    @property
    def between(self) -> list[Step]:
        """Steps between those of the grid, which show what joining costs: a decode, and one beside a prompt."""
        deployment = self.deployment
        batch = max(1, 3 * self.sequences // 4)
        keys = batch * (deployment.isl + deployment.osl // 2)
        chunk = Chunk(max(1, min(deployment.isl, deployment.budget) * 3 // 4), 0)
        return [Step(batch, keys), Step(batch, keys, (chunk,))]


@dataclass(frozen=True)
class Row:
    """What one point of a curve gives, or why it gives nothing. Seconds, tokens of answers and joules."""

    values: Mapping[str, str]
    label: str
    reason: str = ""
    concurrency: int = 0
    ttft_s: float = 0.0
    tpot_s: float | None = None
    tokens_per_s_gpu: float = 0.0
    joules_per_token: float = 0.0
    batch: float = 0.0
    prefill_share: float = 0.0
    sequences: int = 0
    memory: Memory | None = None

    @property
    def tokens_per_s_user(self) -> float | None:
        """Tokens a second that one client sees."""
        return 1 / self.tpot_s if self.tpot_s else None


@dataclass(frozen=True)
class JoinedStep:
    """A step between those that were simulated, joined from them and simulated itself."""

    label: str
    step: str
    joined_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Relative error of joining."""
        return self.joined_s / self.simulated_s - 1


@dataclass(frozen=True)
class Curve(Shown):
    """The rows of a deployment's curve, the steps that were simulated for them, and what joining them costs."""

    title: str
    keys: Sequence[str]
    rows: Sequence[Row]
    simulated: Sequence[tuple[str, str, StepCost]]
    joined: Sequence[JoinedStep] = ()

    def sections(self) -> list[Section]:
        """The curve, the simulated steps, and what is assumed."""
        ran = [row for row in self.rows if not row.reason]
        found = [
            Section(self.title, tuple(_cells(row, self.keys) for row in ran), (*self.keys, *_HEADER)),
            Section("Not run", tuple((_named(row.values), row.reason) for row in self.rows if row.reason)),
            Section("Memory of a device", tuple(dict.fromkeys(map(_memory_cells, ran))), _MEMORY_HEADER),
            Section("Steps that were simulated", tuple(map(_step_cells, self.simulated)), _STEP_HEADER),
            Section("What joining costs", tuple(map(_joined_cells, self.joined)), _JOINED_HEADER),
            Section("Assumed", tuple((text,) for text in _ASSUMED)),
        ]
        return [section for section in found if section.rows]

    def to_dict(self) -> dict[str, Any]:
        """Rows as plain data."""
        return {
            "schema_version": SERVE_VERSION,
            "title": self.title,
            "rows": [_plain(row) for row in self.rows],
            "steps": [{"of": of, "step": step, **taken._asdict()} for of, step, taken in self.simulated],
            "joined": [{**vars(joined), "error": joined.error} for joined in self.joined],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws tokens a second of a GPU over tokens a second that a client sees, a line for each other key."""
        from sim.app.serving.plots import curve_plot

        return curve_plot(self, ax)


def serve(
    deployment: str,
    arch: Sequence[str] | str = (),
    vary: Sequence[Sequence[str] | str] = (),
    *,
    set: Sequence[str] = (),
    schedule: str = "fused_graph",
    clock: str = "sustained",
    data: str = "normal",
    joins: bool = False,
    store: Path | None = None,
    workers: int | None = None,
    executor: str = "local",
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Serves a model: `qwen3-32b tp=2 isl=1024 osl=1024` on each machine, for every combination of the axes.

    vary: as in `sweep`; keys are those of a deployment (`sim.app.serving.deployment`), figures of the machine, `arch`,
    `schedule`, `clock` or `data`. schedule: how a step of decoding is called, a form of graphs (`simulate`). joins:
    also simulates steps between those of the grid, to show what joining costs. Other arguments are those of `sweep`.
    Raises InputError before anything runs, and where nothing can run.
    """
    archs = (arch,) if isinstance(arch, str) else tuple(arch)
    axes_words = [[words] if isinstance(words, str) else list(words) for words in vary]
    options = {"schedule": schedule, "clock": clock, "data": data}
    base, axes = axes_of(Base(deployment, archs, tuple(set), schedule, options, keys=WHOLE_KEYS), axes_words)
    found = [(values, _point(base, values)) for values in combinations(base, axes)]
    points = [point for _, point in found if isinstance(point, Point)]
    if not points:
        raise InputError(str(found[0][1]))
    extra = points[-1].between if joins else []
    cases = [case for point in points for case in point.requests(point.steps)] + points[-1].requests(extra)

    def make(cases: Sequence[Request]) -> Executor:
        return make_executor(executor, workers=workers, scheduler=scheduler, cases=cases)

    with opened(store or default_store()) as kept:
        answers = run_cases(cases, make, store=kept, progress=progress)
    known = dict(zip(map(key_of, cases), answers, strict=True))
    rows, simulated = [], dict[str, tuple[str, str, StepCost]]()
    for values, point in found:
        if isinstance(point, str):
            rows.append(Row(values, _label(base, values), reason=point))
            continue
        times = StepTimes.of(point.steps, [known[key_of(case)] for case in point.requests(point.steps)])
        rows.append(_row(point, times, _label(base, values)))
        for step, case in zip(point.steps, point.requests(point.steps), strict=True):
            simulated.setdefault(key_of(case), (_label(base, values), str(step), times.taken[step]))
    joined = [
        _joined(_label(base, points[-1].values), times, step, known[key_of(case)])
        for step, case in zip(extra, points[-1].requests(extra), strict=True)
    ]
    keys = list(dict.fromkeys(key for values, _ in found for key in values))
    return Curve(base.title, keys, rows, list(simulated.values()), joined)


def _point(base: Base, values: Mapping[str, str]) -> Point | str:
    """A point of the curve, or why there is none."""
    text = [pair for pair in base.workload.split() if pair.partition("=")[0] not in values]
    text += [f"{key}={value}" for key, value in values.items() if key in WHOLE_KEYS and key != "model"]
    text[0] = values.get("model", text[0])
    overrides = [f"{k}={v}" for k, v in values.items() if k not in WHOLE_KEYS and k not in RUN_KEYS]
    options = {**base.options, **{key: values[key] for key in RUN_KEYS[1:] if key in values}}
    try:
        machine = load_arch(values.get("arch") or base.archs[0], [*base.set, *overrides])
        if not family(machine.family).graph_forms:
            raise InputError(f"serve --arch {machine.name}: runs no graph of a model as a whole; GPUs do, as h100-sxm")
        deployment = Deployment.of(" ".join(text))
        return Point(values, deployment, machine, fitted(deployment, machine), options)
    except InputError as error:
        return str(error)


def _row(point: Point, times: StepTimes, label: str) -> Row:
    """What a point gives."""
    deployment = point.deployment
    served = Server(deployment, times, point.memory.tokens).run()
    done = served.done
    return Row(
        point.values, label, concurrency=deployment.concurrency, ttft_s=served.ttft_s, tpot_s=served.tpot_s,
        tokens_per_s_gpu=done.tokens / done.now_s / deployment.tp,
        joules_per_token=done.energy_j * deployment.tp / done.tokens,
        batch=done.decoded / max(1, done.steps), prefill_share=done.prefill_s / done.now_s,
        sequences=point.sequences, memory=point.memory,
    )  # fmt: skip


def _joined(label: str, times: StepTimes, step: Step, answer: Answer) -> JoinedStep:
    """A step by both ways."""
    if answer.report is None:
        raise InputError(answer.refused or answer.failed)
    return JoinedStep(label, str(step), times(step).time_s, StepCost.of(answer.report).time_s)


def _label(base: Base, values: Mapping[str, str]) -> str:
    """What a line of the curve stands for: all but the concurrency."""
    others = [
        value if key in ("arch", "model") else f"{key}={value}" for key, value in values.items() if key != "concurrency"
    ]
    return ", ".join(others) or (base.archs[0] if len(base.archs) == 1 else "")


_HEADER = ("to first token", "a later token", "tokens/s a client", "tokens/s a GPU", "J a token", "batch", "in prompts")
_MEMORY_HEADER = ("weights", "activations", "cache", "tokens of cache", "sequences at once")
_STEP_HEADER = ("of", "step", "time", "attention", "energy of a device")
_JOINED_HEADER = ("of", "step", "joined", "simulated", "error")
_ASSUMED = (
    "A step's time is joined by straight lines between the steps above: attention of sequences that decode by their "
    "number and mean keys, of prompts by pairs of a query and a key, all else by the tokens of the step.",
    "Clients are closed loops that begin together; of their requests the first and the last are not counted. Energy is "
    "that of steps, not of the host and of waiting.",
)


def _cells(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    user = row.tokens_per_s_user
    return (
        *(row.values.get(key, "") for key in keys),
        _ms(row.ttft_s), _ms(row.tpot_s) if row.tpot_s else "", f"{user:.1f}" if user else "",
        f"{row.tokens_per_s_gpu:,.0f}", f"{row.joules_per_token:.3g}", f"{row.batch:.1f}", percent(row.prefill_share),
    )  # fmt: skip


def _memory_cells(row: Row) -> tuple[str, ...]:
    memory = row.memory
    assert memory is not None
    room = "all" if row.sequences >= row.concurrency else f"{row.sequences} of {row.concurrency}"
    cells = (bytes_text(memory.weights), bytes_text(memory.activations), bytes_text(memory.free))
    return (*cells, f"{memory.tokens:,}", room)


def _step_cells(entry: tuple[str, str, StepCost]) -> tuple[str, ...]:
    of, step, taken = entry
    return of, step, _ms(taken.time_s), _ms(taken.attention_s), f"{taken.energy_j:.3g} J"


def _joined_cells(joined: JoinedStep) -> tuple[str, ...]:
    times = (_ms(joined.joined_s), _ms(joined.simulated_s))
    return joined.label, joined.step, *times, f"{100 * joined.error:+.1f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _plain(row: Row) -> dict[str, Any]:
    """A row as plain data; of one that did not run its reason."""
    if row.reason:
        return {"values": dict(row.values), "reason": row.reason}
    fields = {name: value for name, value in vars(row).items() if name not in ("values", "label", "reason", "memory")}
    return {"values": dict(row.values), **fields, "memory": dict(vars(row.memory))}
