"""Which kernels an operator runs on a GPU, with all their mechanisms or without some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from workloads import libraries, registry
from workloads.gpu.configuration import Configuration
from workloads.ops import Operator

WITHOUT = " without "
MECHANISMS = (
    "wgmma", "tensor_memory", "tma", "warp_specialization", "pingpong", "overlap", "multicast", "pairs", "clc",
    "exp_on_fma",
)  # fmt: skip
"""What a schedule can be asked to do without, where its kernels use it: each gives another program. Several are left
out in this order, those first that others need, whatever the order in which they are asked for. A configuration's
`without` gives the schedule that is left."""


@dataclass(frozen=True)
class Choice:
    """The configuration to run, and the best candidates with their estimated times in picoseconds, best first.

    A configuration's `schedule` names its builder in the registry.
    """

    config: Any
    candidates: list[tuple[Any, int]]


def split_without(schedule: str) -> tuple[str, tuple[str, ...]]:
    """A schedule's text, `flash3 without pingpong`, as the schedule itself and the mechanisms that it leaves out."""
    whole, _, left_out = schedule.partition(WITHOUT)
    return whole, tuple(left_out.split())


def choose(op: Operator, spec: GpuSpec, schedule: str = "auto", without: Sequence[str] = ()) -> Choice:
    """The kernels for `op`. schedule: `auto`, the name of one kind, a library or its release
    (`cublas@13.1`), or one configuration as it prints. without:
    mechanisms that the program is to leave out.

    Raises InputError where the machine or the problem cannot take it.
    """
    rank = registry.chooser(op, spec)
    decision = libraries.decide(op, spec, schedule, rank)
    choice: Choice = decision.choice if decision else rank(op, spec, schedule)
    whole = choice.config
    for mechanism in sorted(without, key=_order):
        if mechanism not in MECHANISMS:
            near = hint(mechanism, MECHANISMS)
            raise InputError(f"without {mechanism}: one of {', '.join(MECHANISMS)}{near}")
        if whole.without(mechanism) == str(whole):
            raise InputError(f"without {mechanism}: {whole} does not use it")
        # What another one needs may be gone with it already.
        after = choice.config.without(mechanism)
        if after != str(choice.config):
            choice = rank(op, spec, after)
    return choice


def simpler(op: Operator, spec: GpuSpec, config: Configuration) -> list[tuple[Any, int]]:
    """A configuration without each of its mechanisms in turn, with the estimated times in picoseconds: a small problem
    may be over before a mechanism has paid for itself."""
    rank, found = registry.chooser(op, spec), []
    for mechanism in MECHANISMS:
        try:
            left = config.without(mechanism)
            if left != str(config):
                found.append(rank(op, spec, left).candidates[0])
        except InputError:  # its kernels do not have the mechanism, or cannot do without
            continue
    return found


def unknown_schedule(op: Operator, spec: GpuSpec, schedule: str, kinds: Sequence[str]) -> InputError:
    """The error for a schedule that there is not: of the kinds and of the libraries it offers those that run here."""
    known = (*kinds, *libraries.words(op.word))
    here = [word for word in known if _runs(op, spec, word)]
    near = hint(schedule, here) or hint(schedule, known, "; did you mean {}, which does not run here?")
    return InputError(f"schedule={schedule}: one of {', '.join(('auto', *here))}, or a whole configuration{near}")


def _runs(op: Operator, spec: GpuSpec, schedule: str) -> bool:
    try:
        choose(op, spec, schedule)
    except InputError:
        return False
    return True


def _order(mechanism: str) -> int:
    return MECHANISMS.index(mechanism) if mechanism in MECHANISMS else -1
