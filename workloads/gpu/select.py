"""Which kernels an operator runs on a GPU: finds the module that chooses for it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.gpu import GpuSpec
from workloads.ops import Operator

CHOOSERS: dict[str, str] = {
    "gemm": "workloads.gpu.choose",
    "pointwise": "workloads.gpu.pointwise",
    "softmax": "workloads.gpu.softmax",
    "softmax_backward": "workloads.gpu.softmax",
    "sum": "workloads.gpu.sums",
    "transpose": "workloads.gpu.transpose",
    **dict.fromkeys(("layernorm", "rmsnorm", "layernorm_backward"), "workloads.gpu.norms"),
    "attention": "workloads.gpu.attention_choose",
}
"""By operator, the module whose `choose(op, spec, schedule)` ranks the configurations that a GPU can run."""


@dataclass(frozen=True)
class Choice:
    """The configuration to run, and the best candidates with their estimated times in picoseconds, best first.

    A configuration prints as the schedule that asks for it, and its `schedule` names its builder in the registry.
    """

    config: Any
    candidates: list[tuple[Any, int]]


def choose(op: Operator, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernels for `op`. schedule: `auto`, the name of one kind, or one configuration as it prints.

    Raises InputError where the machine or the problem cannot take it.
    """
    if op.word not in CHOOSERS:
        raise InputError(f"operator {op.word} has no schedule on {spec.name}; available: {', '.join(CHOOSERS)}")
    choice: Choice = importlib.import_module(CHOOSERS[op.word]).choose(op, spec, schedule)
    return choice
