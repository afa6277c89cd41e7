"""Which function builds the program of an operator on a family of machines with a given schedule."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from arch.errors import InputError

Builder = Callable[[Any, Any, Any], Any]
"""`build(op, spec, config) -> Program`."""

MODULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("gemm", "gpu"): tuple(f"workloads.gpu.gemm.{name}" for name in ("wgmma", "mma", "triton", "simt", "gemv")),
    ("pointwise", "gpu"): ("workloads.gpu.pointwise.pointwise",),
    ("softmax", "gpu"): ("workloads.gpu.rows.softmax",),
    ("softmax_backward", "gpu"): ("workloads.gpu.rows.softmax",),
    ("sum", "gpu"): ("workloads.gpu.rows.sums",),
    ("transpose", "gpu"): ("workloads.gpu.pointwise.transpose",),
    **{(word, "gpu"): ("workloads.gpu.rows.norms",) for word in ("layernorm", "rmsnorm", "layernorm_backward")},
    ("gemm", "tpu"): ("workloads.tpu.gemm",),
    ("conv2d", "tpu"): ("workloads.tpu.conv",),
    ("softmax", "tpu"): ("workloads.tpu.rows",),
    ("attention", "tpu"): ("workloads.tpu.attention",),
    ("inference", "tpu"): ("workloads.tpu.network",),
    ("matvec", "tpu"): ("workloads.tpu.gemm",),
    ("attention", "gpu"): (
        "workloads.gpu.attention.flash3",
        "workloads.gpu.attention.flash2",
        "workloads.gpu.attention.flash_triton",
        "workloads.gpu.attention.flash_decode",
        "workloads.gpu.attention.unfused",
    ),
}
"""Modules whose import registers the schedules of (operator, family)."""

_BUILDERS: dict[tuple[str, str, str], Builder] = {}


def register(operator: str, family: str, schedule: str) -> Callable[[Builder], Builder]:
    """Decorator: registers a builder under (operator word, machine family, schedule name)."""

    def add(builder: Builder) -> Builder:
        _BUILDERS[operator, family, schedule] = builder
        return builder

    return add


def schedules(operator: str, family: str) -> tuple[str, ...]:
    """Names of the schedules registered for an operator on a family, in alphabetical order."""
    for module in MODULES.get((operator, family), ()):
        importlib.import_module(module)
    return tuple(sorted(s for o, f, s in _BUILDERS if (o, f) == (operator, family)))


def builder(operator: str, family: str, schedule: str) -> Builder:
    """The builder of a schedule; InputError with the nearest name if there is none."""
    names = schedules(operator, family)
    if not names:
        raise InputError(f"operator {operator} has no schedule on machines of family {family}")
    if schedule not in names:
        near = difflib.get_close_matches(schedule, names, n=1, cutoff=0.0)[0]
        raise InputError(f"schedule={schedule}: {operator} has {', '.join(names)} on {family}; did you mean {near}?")
    return _BUILDERS[operator, family, schedule]


def build(op: Any, spec: Any, config: Any) -> Any:
    """The program of `op` on the machine `spec`; `config.schedule` names the builder."""
    return builder(op.word, spec.family, config.schedule)(op, spec, config)
