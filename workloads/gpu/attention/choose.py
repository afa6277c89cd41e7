"""Which attention kernel runs: the published configuration of each kind, ranked by an interval estimate.

The estimate reads counts of the kernel and figures of the machine only; ties are broken by the text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from arch.digits import whole_number
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from workloads.gpu.attention import flash2, flash3, flash3_varlen, flash_decode, flash_mla, flash_triton, unfused
from workloads.gpu.attention.blocks import WIDEST, AttentionProblem, packed, problem, width
from workloads.gpu.attention.flash2 import Flash2Config
from workloads.gpu.attention.flash3 import Flash3Config
from workloads.gpu.attention.flash3_varlen import Flash3VarlenConfig
from workloads.gpu.attention.flash_decode import DecodeConfig
from workloads.gpu.attention.flash_mla import FlashMlaConfig
from workloads.gpu.attention.flash_triton import FlashTritonConfig
from workloads.gpu.attention.torch_math import TorchMathConfig
from workloads.gpu.attention.unfused import UnfusedConfig
from workloads.gpu.gemm.estimate import figures, transfer
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.wgmma import BLOCK_ROWS
from workloads.gpu.select import Choice
from workloads.ops.attention import Attention
from workloads.registry import register

Config = (
    Flash3Config | Flash3VarlenConfig | Flash2Config | FlashTritonConfig | DecodeConfig | FlashMlaConfig | UnfusedConfig
)

SCHEDULES = ("flash3", "flash2", "decode", "unfused")
"""What `auto` ranks."""
PAGED = ("flash3-varlen", "flash2-varlen")
"""What it takes the first of for a cache in pages."""
BEST = ("auto", "vendor", "cudnn")
"""Names of the best that a machine has: nothing public says which tiles a vendor's closed kernels have."""
VARLEN = ("decode-varlen", "flash2-varlen", "flash3-varlen")
"""What FlashAttention's interface for sequences of different lengths runs: of the newest version that the machine can,
of FlashAttention-2, and of 3."""
KINDS = (*SCHEDULES, *VARLEN, FlashMlaConfig.schedule, "flash2-triton", flash3.FIRST_RELEASE, TorchMathConfig.schedule)


@register("attention", "gpu", "auto")
def choose(op: Attention, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernel for `op` on `spec`.

    schedule: `auto`, the name of a kind, or one configuration as it prints, such as `flash3 128x128 stages 2 pingpong
    overlap`. Raises InputError where the machine or the problem cannot take it.
    """
    p = problem(op)
    kind = schedule.split()[0] if schedule.split() else schedule
    if kind not in (*KINDS, *BEST):
        near = hint(schedule, KINDS)
        raise InputError(f"schedule={schedule}: one of auto, {', '.join(KINDS)}, or a whole configuration{near}")
    if len(schedule.split()) > 1:
        config = parse(schedule, p, spec)
        _check(p, spec, config)
        return Choice(config, [(config, _estimate_ps(p, spec, config))])
    found: list[tuple[Config, int]] = []
    refused: InputError | None = None
    for name in _ranked(p, spec) if kind in BEST else (kind,):
        if found and (name == "unfused" or p.op.page or p.ragged):
            continue  # for machines that have nothing better
        # What the interface of FlashAttention-2 makes of few queries; `auto` has a kind of its own for them.
        cut = flash_decode.fixed_config(p, spec) if kind == "flash2" else None
        config = cut or default(name, p, spec)
        try:
            _check(p, spec, config)
        except InputError as error:
            refused = error  # the last one is of the kernels that every machine has
            continue
        if config in (other for other, _ in found):
            continue
        found.append((config, _estimate_ps(p, spec, config)))
    if not found:
        assert refused is not None
        raise refused
    found.sort(key=lambda item: (item[1], str(item[0])))
    return Choice(found[0][0], found)


def _ranked(p: AttentionProblem, spec: GpuSpec) -> tuple[str, ...]:
    """The kinds that `auto` looks at."""
    kinds = PAGED if p.op.page or p.ragged else SCHEDULES
    return (FlashMlaConfig.schedule, *kinds) if flash_mla.available(p, spec) else kinds


def default(kind: str, p: AttentionProblem, spec: GpuSpec) -> Config:
    """The published configuration of a kind."""
    if kind == "unfused":
        return UnfusedConfig()
    if kind == TorchMathConfig.schedule:
        return TorchMathConfig()
    if kind == FlashMlaConfig.schedule:
        return flash_mla.default_config(p, spec)
    if kind in VARLEN:
        return _varlen(kind, p, spec)
    if kind == DecodeConfig.schedule:
        parts = flash_decode.default_config(p, spec)
        # Of one part, FlashAttention-3 runs its kernel as it is.
        whole = parts.splits == 1 and not p.op.window and flash3.available(p, spec) and p.together
        return flash3.default_config(p) if whole else parts
    if kind == "flash2-triton":
        return flash_triton.default_config(p)
    if kind == flash3.FIRST_RELEASE:
        return flash3.first_release(p)
    return flash3.default_config(p) if kind == "flash3" else flash2.default_config(p, spec)


def _varlen(kind: str, p: AttentionProblem, spec: GpuSpec) -> Config:
    """What the interface for sequences of different lengths runs."""
    newest = flash3.available(p, spec) and p.op.head_dim <= WIDEST
    if kind == "flash3-varlen" or (kind == "decode-varlen" and newest):
        return flash3_varlen.default_config(p, spec)
    # FlashAttention-2 reads pages in the kernel that cuts keys, cut or not.
    cut = p.op.page or p.op.queries == 1
    return flash_decode.default_config(p, spec, True) if cut else flash2.default_config(p, spec)


_CHECKS: dict[str, Callable[[AttentionProblem, GpuSpec, Any], None]] = {
    "flash3": flash3.check,
    "flash3-varlen": flash3_varlen.check,
    "flash2": flash2.check,
    "flash2-triton": flash_triton.check,
    "decode": flash_decode.check,
    "flash-mla": flash_mla.check,
}
"""Of a configuration's kind, where it is not the separate kernels'."""


def _check(p: AttentionProblem, spec: GpuSpec, config: Config) -> None:
    _CHECKS.get(config.schedule, unfused.check)(p, spec, config)


def _estimate_ps(p: AttentionProblem, spec: GpuSpec, config: Config) -> int:
    return _ESTIMATES.get(config.schedule, _estimate_rounds_ps)(p, spec, config)


def _estimate_separate_ps(p: AttentionProblem, spec: GpuSpec, config: UnfusedConfig) -> int:
    """Scores are written and read three times each, weights read once more; the safe softmax reads both once more, and
    writes weights again."""
    f = figures(spec)
    score_bytes = p.op.batch * p.op.heads * p.op.queries * p.op.keys * width(p)
    passes = (6 if p.masked else 4) + (4 if isinstance(config, TorchMathConfig) else 0)
    cycles = transfer(passes * score_bytes, f.dram_rate) + 7 * (f.start + 2 * f.load_latency)
    return 7 * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


def _estimate_rounds_ps(
    p: AttentionProblem, spec: GpuSpec, config: Flash3Config | Flash3VarlenConfig | Flash2Config | FlashTritonConfig
) -> int:
    """Rounds of CTAs, each a start and its steps of products and softmax, one beside the other or in turn."""
    f, d = figures(spec), p.head_dim
    tensor: float
    if isinstance(config, Flash3Config):
        p = packed(p)
    if isinstance(config, Flash3Config | Flash3VarlenConfig):
        d = flash3.columns(p)
    if isinstance(config, Flash3Config | Flash3VarlenConfig | FlashTritonConfig):
        scores = spec.instruction("wgmma", p.dtype, f"m64n{config.block_n}k{flash3.step_k(p)}")
        outputs = spec.instruction("wgmma", p.dtype, f"m64n{d}k{flash3.step_k(p)}")
        tensor = scores.interval_cycles * (d // flash3.step_k(p)) + outputs.interval_cycles * (
            config.block_n // flash3.step_k(p)
        )
        tensor *= config.block_m // BLOCK_ROWS
        overlapped = not isinstance(config, FlashTritonConfig) and config.overlap
    else:
        row = spec.instruction("mma", p.dtype, flash2.SHAPE)
        tensor = 2 * config.block_m * config.block_n * d / row.macs * row.cadence_cycles / spec.sm.sub_cores
        overlapped = False
    exponents = config.block_m * config.block_n // 32 * spec.instruction("ex2", "fp32", "").interval_cycles
    softmax = 2 * exponents / spec.sm.sub_cores
    step = max(tensor, softmax) if overlapped else tensor + softmax
    pairs = p.op.pairs
    steps = ceil_div(pairs, config.block_m * config.block_n)
    rounds = max(ceil_div(steps * p.op.batch * p.op.heads, spec.sm.count), ceil_div(p.op.keys, config.block_n))
    cycles = f.start + 3 * f.load_latency + int(rounds * step)
    return f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


def _estimate_decode_ps(p: AttentionProblem, spec: GpuSpec, config: DecodeConfig) -> int:
    """K and V from memory beside products and softmax of whole tiles, in as many CTAs as find room; then the parts."""
    f, rows, d = figures(spec), flash_decode.rows_of(p, fixed=config.fixed), p.head_dim
    row = spec.instruction("mma", p.dtype, flash2.SHAPE)
    step = 2 * config.block_m * config.block_n * d / row.macs * row.cadence_cycles / spec.sm.sub_cores
    ctas = rows.groups * ceil_div(rows.count, config.block_m) * config.splits
    trips = ceil_div(ceil_div(min(p.op.keys, p.op.window or p.op.keys), config.block_n), config.splits)
    work = ceil_div(ctas, 2 * spec.sm.count) * trips * int(2 * step)
    visited = ctas * trips * config.block_n * d * 2 * width(p)
    parts = config.splits * rows.groups * rows.count * d * 4 if config.splits > 1 else 0
    kernels = 2 if config.splits > 1 else 1
    cycles = max(work, transfer(visited, f.dram_rate)) + transfer(2 * parts, f.l2_rate)
    cycles += kernels * (f.start + 3 * f.load_latency)
    return kernels * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)


_ESTIMATES: dict[str, Callable[[AttentionProblem, GpuSpec, Any], int]] = {
    "unfused": _estimate_separate_ps,
    TorchMathConfig.schedule: _estimate_separate_ps,
    "decode": _estimate_decode_ps,
    "flash-mla": flash_mla.estimate_ps,
}
"""Of a configuration's kind, where it has one of its own."""


@register("attention", "gpu", "without")
def without(config: Config, mechanism: str) -> str:
    """The schedule that is left without a mechanism of flash3; the same where it does not use it."""
    return str(flash3.without(config, mechanism) if isinstance(config, Flash3Config) else config)


# ---------------------------------------------------------------------------------------------- configurations as text

_NUMBERS = {"cluster": "cluster", "stages": "stages", "warps": "warps", "splits": "splits", "parts": "parts"}
_FLAGS = {
    "pingpong": ("pingpong", True),
    "overlap": ("overlap", True),
    "cp.async": ("tma", False),
    "mma": ("wgmma", False),
    "unspecialized": ("specialized", False),
    "in-order": ("longest_first", False),
    "varlen": ("varlen", True),
    "fixed": ("fixed", True),
    "tma": ("whole_blocks", True),
}
"""Words that set a field; it is the other way round where the word is missing."""


def parse(text: str, p: AttentionProblem, spec: GpuSpec) -> Config:
    """The configuration that `text` describes; what it leaves out is off or as published."""
    name, *words = text.split()
    where = f"schedule={text}"
    config = flash_decode.default_config(p, spec) if name == DecodeConfig.schedule else default(name, p, spec)
    known = {f.name for f in dataclasses.fields(config)}
    fields: dict[str, int | bool] = {field: not value for field, value in _FLAGS.values() if field in known}
    if "cluster" in known:
        fields["cluster"] = 1
    rest = iter(words)
    for word in rest:
        tile = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", word)
        if tile:
            fields |= {"block_m": int(tile[1]), "block_n": int(tile[2])}
        elif word in _NUMBERS:
            value = next(rest, "")
            number = whole_number(value)
            if number is None:
                raise InputError(f"{where}: {word} needs a number, such as {word} 2")
            fields[_NUMBERS[word]] = number
        elif word in _FLAGS:
            field, value_if_named = _FLAGS[word]
            fields[field] = value_if_named
        else:
            raise InputError(f"{where}: {word} is no word of a {name} configuration")
    if unknown := [key for key in fields if key not in known]:
        raise InputError(f"{where}: {unknown[0]} does not belong to {name}")
    return dataclasses.replace(config, **fields)  # type: ignore[arg-type]
