"""Which attention kernel runs: the published configuration of each kind, ranked by an interval estimate.

The estimate reads counts of the kernel and figures of the machine only; ties are broken by the text.
"""

from __future__ import annotations

from collections.abc import Callable

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from workloads.gpu.attention import (
    flash2,
    flash3,
    flash3_varlen,
    flash4,
    flash4_decode,
    flash_decode,
    flash_mla,
    flash_triton,
)
from workloads.gpu.attention.blocks import WIDEST, AttentionProblem, problem
from workloads.gpu.attention.configuration import AttentionConfig
from workloads.gpu.attention.torch_math import TorchMathConfig
from workloads.gpu.attention.unfused import UnfusedConfig
from workloads.gpu.select import Choice, unknown_schedule
from workloads.ops.attention import Attention
from workloads.registry import register

SCHEDULES = ("flash4", "flash3", "flash2", "decode", "unfused")
"""What `auto` ranks."""
PAGED = ("flash4-decode", "flash3-varlen", "flash2-varlen")
"""What it takes the first of for a cache in pages."""
BEST = ("auto", "vendor", "cudnn")
"""Names of the best that a machine has: nothing public says which tiles a vendor's closed kernels have."""
VARLEN = ("decode-varlen", "flash2-varlen", "flash3-varlen")
"""What FlashAttention's interface for sequences of different lengths runs: of the newest version that the machine can,
of FlashAttention-2, and of 3."""
KINDS = (*SCHEDULES, "flash4-decode", *VARLEN, "flash-mla", "flash2-triton", "torch-math")


@register("attention", "gpu", "auto")
def choose(op: Attention, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`.

    schedule: `auto`, the name of a kind, or one configuration as it prints, such as `flash3 128x128 stages 2 pingpong
    overlap`. Raises InputError where the machine or the problem cannot take it.
    """
    p = problem(op)
    kind = schedule.split()[0] if schedule.split() else schedule
    if kind not in (*KINDS, *BEST):
        raise unknown_schedule(op, spec, schedule, KINDS)
    if len(schedule.split()) > 1:
        config = parse(schedule, p, spec)
        config.check(p, spec)
        return Choice(config, [(config, config.estimate_ps(p, spec))])
    found: list[tuple[AttentionConfig, int]] = []
    refused: InputError | None = None
    for name in _ranked(p, spec) if kind in BEST else (kind,):
        if found and (name == "unfused" or p.op.page or p.ragged):
            continue  # for machines that have nothing better
        # What the interface of FlashAttention-2 makes of few queries; `auto` has a kind of its own for them.
        cut = flash_decode.fixed_config(p, spec) if kind == "flash2" else None
        config = cut or default(name, p, spec)
        try:
            config.check(p, spec)
        except InputError as error:
            refused = error  # the last one is of the kernels that every machine has
            continue
        if config in (other for other, _ in found):
            continue
        found.append((config, config.estimate_ps(p, spec)))
    if not found:
        assert refused is not None
        raise refused
    found.sort(key=lambda item: (item[1], str(item[0])))
    return Choice(found[0][0], found)


def _ranked(p: AttentionProblem, spec: GpuSpec) -> tuple[str, ...]:
    """The kinds that `auto` looks at."""
    kinds = PAGED if p.op.page or p.ragged else SCHEDULES
    return ("flash-mla", *kinds) if flash_mla.available(p, spec) else kinds


def default(kind: str, p: AttentionProblem, spec: GpuSpec) -> AttentionConfig:
    """The published configuration of a kind."""
    return _DEFAULTS[kind](p, spec)


def _decode(p: AttentionProblem, spec: GpuSpec) -> AttentionConfig:
    if flash4_decode.available(p, spec):
        return flash4_decode.default_config(p, spec)
    parts = flash_decode.default_config(p, spec)
    # Of one part, FlashAttention-3 runs its kernel as it is.
    whole = parts.splits == 1 and not p.op.window and flash3.available(p, spec) and p.together
    return flash3.default_config(p) if whole else parts


def _varlen_2(p: AttentionProblem, spec: GpuSpec) -> AttentionConfig:
    """What the interface of FlashAttention-2 for sequences of different lengths runs: it reads pages in the kernel that
    cuts keys, cut or not."""
    cut = p.op.page or p.op.queries == 1
    return flash_decode.default_config(p, spec, True) if cut else flash2.default_config(p, spec)


def _varlen(p: AttentionProblem, spec: GpuSpec) -> AttentionConfig:
    """What that of the newest version runs that the machine can."""
    if flash4_decode.available(p, spec):
        return flash4_decode.default_config(p, spec)
    newest = flash3.available(p, spec) and p.op.head_dim <= WIDEST
    return flash3_varlen.default_config(p, spec) if newest else _varlen_2(p, spec)


_DEFAULTS: dict[str, Callable[[AttentionProblem, GpuSpec], AttentionConfig]] = {
    "flash4": flash4.default_config,
    "flash3": lambda p, spec: flash3.default_config(p),
    "flash2": flash2.default_config,
    "decode": _decode,
    "flash4-decode": flash4_decode.default_config,
    "unfused": lambda p, spec: UnfusedConfig(),
    "decode-varlen": _varlen,
    "flash2-varlen": _varlen_2,
    "flash3-varlen": flash3_varlen.default_config,
    "flash-mla": flash_mla.default_config,
    "flash2-triton": lambda p, spec: flash_triton.default_config(p),
    "torch-math": lambda p, spec: TorchMathConfig(),
}
"""Of each kind, its published configuration for a problem on a machine."""


def parse(text: str, p: AttentionProblem, spec: GpuSpec) -> AttentionConfig:
    """The configuration that `text` describes; what it leaves out is off or as published."""
    name = text.split()[0]
    if name not in _DEFAULTS:
        raise InputError(f"schedule={text}: {name} is no configuration's name{hint(name, _DEFAULTS)}")
    config = flash_decode.default_config(p, spec) if name == "decode" else default(name, p, spec)
    return config.as_said(text)
