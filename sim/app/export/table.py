"""Times of a model's operators on a machine, over tokens of a step, and over sequences and their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from arch.errors import InputError
from arch.load import load_arch
from arch.spec import MachineSpec
from sim.app.families.request import Request
from sim.app.shared_model import SharedModel
from sim.app.study.case import key_of
from sim.app.study.executors import Executor, make_executor
from sim.app.study.runner import Progress, run_cases
from sim.app.study.store import default_store, opened
from workloads.graphs import Step
from workloads.graphs.llama import Llama
from workloads.ops import AllReduce, Operator
from workloads.ops.base import extent

_FIRST_KEYS = 128
"""Fewest keys and tokens of attention."""


@dataclass(frozen=True)
class TableRequest(SharedModel):
    """A model, and how far its table goes: powers of two up to `tokens` of a step, up to `batch` sequences that decode,
    and up to `keys` of each; prompts have up to `tokens` in a step."""

    command: ClassVar[str] = "export"

    tokens: int = extent(8192, help="most tokens of a step")
    batch: int = extent(256, help="most sequences that decode")
    keys: int = extent(8192, help="most keys of a sequence")

    def __post_init__(self) -> None:
        """Checks each key, and that there is such a step."""
        super().__post_init__()
        self.step(phase="decode", seq=1)

    def step(self, **keys: Any) -> Llama:
        """A step of one layer with embedding and head."""
        own = {"layers": self.sizes.dense + 1, "vocab": self.sizes.vocab, "page": self.page_tokens}
        return super().step(**(own | keys))


@dataclass(frozen=True)
class Dense:
    """What all tokens of a step go through. role: what it is in the layer; tokens: of the step."""

    role: str
    tokens: int


@dataclass(frozen=True)
class Prompts:
    """Attention of `batch` prompts of `tokens` each."""

    batch: int
    tokens: int


@dataclass(frozen=True)
class Decode:
    """Attention of `batch` sequences, one token each, that see `keys`."""

    batch: int
    keys: int


Place = Dense | Prompts | Decode
Kind = TypeVar("Kind", Dense, Prompts, Decode)


@dataclass(frozen=True)
class Table:
    """The operators by their place, with their times in picoseconds. machine: on which."""

    asked: TableRequest
    machine: MachineSpec
    ops: Mapping[Place, Operator]
    times_ps: Mapping[Operator, int]

    def time_us(self, place: Place) -> float:
        """Microseconds of an operator."""
        return self.times_ps[self.ops[place]] * 1e-6

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The places of one kind, in order."""
        return [place for place in self.ops if isinstance(place, kind)]


_ROLES = {
    "embedding_weight": "embedding", "qkv_weight": "qkv", "out_weight": "out", "gate_up_weight": "gate_up",
    "up_weight": "gate_up", "down_weight": "down", "head_weight": "head", "router_weight": "router",
    "norm1_weight": "norm1", "norm2_weight": "norm2", "norm_weight": "norm", "q_norm_weight": "q_norm",
    "k_norm_weight": "k_norm", "w1_weight": "experts",
}  # fmt: skip
"""Roles by the weight that an operator reads, without its layer."""
_LABELS = {
    "fused_rotary": "rotary", "fused_silu_mul": "act", "fused_gelu_mul": "act", "aten::gelu": "act", "aten::add": "add",
    "vllm:reshape_and_cache_flash": "cache", "vllm:all_reduce": "all_reduce",
}  # fmt: skip
"""Roles of what reads no weight, by what it is called."""


def role(step: Step) -> str:
    """What a step is in its layer; nothing for attention, and for what no table has."""
    for value in step.operands:
        name = value.buffer.rpartition(".")[2]
        if name in _ROLES:
            return "head" if name == "embedding_weight" and step.op.macs else _ROLES[name]
    return _LABELS.get(step.label, "")


def powers(first: int, last: int) -> list[int]:
    """Powers of two from the first number to the last."""
    return [1 << n for n in range(first.bit_length() - 1, last.bit_length()) if first <= 1 << n <= last]


def places(asked: TableRequest, machine: MachineSpec) -> dict[Place, Operator]:
    """The operators of the table by their places."""
    found: dict[Place, Operator] = {}

    def graph(**keys: Any) -> Sequence[Step]:
        return asked.step(**keys).with_defaults(machine.default_dtype).graph(fused=True).steps

    for tokens in powers(1, asked.tokens):
        for step in graph(phase="decode", batch=tokens, seq=asked.page_tokens):
            name = role(step)
            if name and (name != "head" or tokens <= asked.batch):
                # The first rotation is that of queries, the first sum that of attention.
                found.setdefault(Dense(name, tokens), step.op)
    attention = "vllm:unified_attention"
    for tokens in powers(_FIRST_KEYS, asked.tokens):
        for batch in powers(1, max(1, asked.tokens // tokens)):
            op = next(step.op for step in graph(batch=batch, seq=tokens) if step.label == attention)
            found[Prompts(batch, tokens)] = op
    for batch in powers(1, asked.batch):
        for keys in powers(_FIRST_KEYS, asked.keys):
            op = next(s.op for s in graph(phase="decode", batch=batch, seq=keys) if s.label == attention)
            found[Decode(batch, keys)] = op
    return found


def table(
    text: str, arch: str, *, set: Sequence[str] = (), store: Path | None = None, workers: int | None = None,
    progress: Progress | None = None,
) -> Table:  # fmt: skip
    """Simulates the operators of a model, each by itself on a busy chip, with nothing of its operands in the L2.
    InputError before anything runs, and for an operator that cannot run."""
    asked, machine = TableRequest.of(text), load_arch(arch, set)
    ops = places(asked, machine)

    def make(cases: Sequence[Request]) -> Executor:
        return make_executor("local", workers=workers, scheduler=None, cases=cases)

    distinct = list(dict.fromkeys(ops.values()))
    cases = [_request(op, machine) for op in distinct]
    with opened(store or default_store()) as kept:
        answers = run_cases(cases, make, store=kept, progress=progress)
    times: dict[Operator, int] = {}
    for op, case, answer in zip(distinct, cases, answers, strict=True):
        if answer.report is None:
            raise InputError(f"export: {op}: {answer.refused or answer.failed} ({key_of(case)[:8]})")
        times[op] = round(answer.report["time_us"] * 1e6)
    return Table(asked, machine, ops, times)


def _request(op: Operator, machine: MachineSpec) -> Request:
    if isinstance(op, AllReduce):
        return Request(str(op), machine, schedule="fused_graph", clock="sustained")
    return Request(str(op), machine, clock="sustained")
