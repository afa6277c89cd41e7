"""Times of a server's steps: a few are simulated, the others joined from them.

A step's time is that of its attention and of all else. All else depends on the tokens of the step alone, attention of
sequences that decode on their number and their keys, and that of prompts on the pairs of a query and a key. Steps that
are simulated lie on a grid; between its points times are joined by straight lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from arch.errors import InputError
from arch.spec import MachineSpec
from sim.app.families.request import Request
from sim.app.serving.deployment import Deployment
from sim.app.study.case import Answer
from workloads.graphs.llama import Llama

_ATTENTION = "vllm:unified_attention"


class Chunk(NamedTuple):
    """Tokens of a prompt that one step takes along, behind `past` ones."""

    tokens: int
    past: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees."""
        return self.tokens * self.past + self.tokens * (self.tokens + 1) // 2


@dataclass(frozen=True)
class Step:
    """Sequences that decode with the keys of all of them, and chunks of prompts."""

    decode: int
    keys: int = 0
    chunks: tuple[Chunk, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all."""
        return self.decode + sum(chunk.tokens for chunk in self.chunks)

    def op(self, deployment: Deployment) -> Llama:
        """The step as an operator; chunks are equal."""
        page = deployment.page_tokens
        if not self.chunks:
            return deployment.step(phase="decode", batch=self.decode, seq=-(-self.keys // self.decode), page=page)
        first = self.chunks[0]
        if not self.decode:
            return deployment.step(batch=len(self.chunks), seq=first.tokens, past=first.past, page=page)
        return deployment.step(
            phase="decode", batch=self.decode, seq=-(-self.keys // self.decode), page=page,
            prompts=len(self.chunks), chunk=first.tokens, past=first.past,
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [f"decode {self.decode} x {-(-self.keys // self.decode)} keys"] if self.decode else []
        if self.chunks:
            first = self.chunks[0]
            behind = f" behind {first.past}" if first.past else ""
            parts.append(f"prefill {len(self.chunks)} x {first.tokens} tokens{behind}")
        return " + ".join(parts)


class StepCost(NamedTuple):
    """What a step takes of one device: seconds, those of its attention among them, and joules."""

    time_s: float
    attention_s: float
    energy_j: float

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> StepCost:
        """A simulated step. Attention has the share of its time that it has of the kernels' time."""
        profile = report["profile"]
        share = sum(row["device_share"] for row in profile if row["operator"] == _ATTENTION)
        time_s = report["time_us"] * 1e-6
        return cls(time_s, share * time_s, report.get("energy_j", 0.0))


def grid_of(deployment: Deployment, sequences: int) -> list[Step]:
    """Steps to simulate for up to so many sequences at once, which points of a curve share: decoding of all and of half
    of them at the powers of two around their lengths; of prompts the most tokens that a step takes, and the power of
    two below the least."""
    batches = sorted({max(1, sequences // 2), sequences})
    last = deployment.isl + deployment.osl
    keys = sorted({_power(deployment.isl), 2 * _power(last - 1)})
    found = [Step(batch, batch * each) for batch in batches for each in keys]
    budget, isl = deployment.budget, deployment.isl
    if isl <= budget:
        least, most = _power(isl), min(sequences, budget // isl)
        return [
            *found,
            *(Step(0, 0, (Chunk(tokens, 0),) * n) for n, tokens in dict.fromkeys(((1, least), (most, isl)))),
        ]
    behind = (isl - 1) // budget * budget
    return [*found, *(Step(0, 0, (Chunk(budget, past),)) for past in (0, behind))]


def _power(number: int) -> int:
    """The power of two that is at most a number."""
    return 1 << (max(1, number).bit_length() - 1)


def requests_of(
    deployment: Deployment, machine: MachineSpec, steps: Sequence[Step], options: Mapping[str, Any]
) -> list[Request]:
    """The simulations of steps. Decoding is one graph launch where the schedule is one; prompts are called kernel by
    kernel, by their operators."""
    schedule = options["schedule"]
    eager = {"graph": "eager", "fused_graph": "fused"}.get(schedule, schedule)
    return [
        Request(
            str(step.op(deployment)),
            machine,
            scope="stream",
            **{**options, "schedule": eager if step.chunks else schedule},
        )
        for step in steps
    ]


class StepTimes:
    """What any step of a deployment takes, joined from simulated ones."""

    def __init__(self, taken: Mapping[Step, StepCost]) -> None:
        self.taken = taken
        self._decode: dict[int, list[tuple[float, StepCost]]] = {}
        rest, pairs, watts = [], [(0.0, 0.0)], []
        for step, found in taken.items():
            if step.chunks:
                rest.append((step.tokens, found.time_s - found.attention_s))
                pairs.append((sum(chunk.pairs for chunk in step.chunks), found.attention_s))
                watts.append((step.tokens, found.energy_j / found.time_s))
            else:
                self._decode.setdefault(step.decode, []).append((step.keys / step.decode, found))
        for batch, points in self._decode.items():
            points.sort()
            rest.append((batch, min(found.time_s - found.attention_s for _, found in points)))
        self._rest, self._pairs, self._watts = (sorted(dict(points).items()) for points in (rest, pairs, watts))

    @classmethod
    def of(cls, steps: Sequence[Step], answers: Sequence[Answer]) -> StepTimes:
        """From simulated steps; InputError for one that cannot run."""
        for answer in answers:
            if answer.report is None:
                raise InputError(answer.refused or answer.failed)
        return cls(
            {step: StepCost.of(answer.report) for step, answer in zip(steps, answers, strict=True) if answer.report}
        )

    def __call__(self, step: Step) -> StepCost:
        """Time and energy of a step."""
        decode = self._decoded(step.decode, step.keys) if step.decode else StepCost(0.0, 0.0, 0.0)
        if not step.chunks:
            return decode
        own_s = between(self._rest, step.tokens) + between(self._pairs, sum(chunk.pairs for chunk in step.chunks))
        energy_j = own_s * between(self._watts, step.tokens)
        if step.decode:
            energy_j += decode.energy_j * decode.attention_s / decode.time_s
        return StepCost(own_s + decode.attention_s, decode.attention_s, energy_j)

    def _decoded(self, batch: int, keys: int) -> StepCost:
        """A step that decodes, between batches and between mean keys of the grid."""
        mean, batches = keys / batch, sorted(self._decode)
        found = []
        for part in range(3):
            at = [(b, between([(x, taken[part]) for x, taken in self._decode[b]], mean)) for b in batches]
            found.append(between(at, batch))
        return StepCost(*found)


def between(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x of straight lines through points, whose x rise; beyond them the nearest line goes on."""
    if len(points) == 1:
        return points[0][1]
    place = min(max(bisect_left(points, (x,)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
