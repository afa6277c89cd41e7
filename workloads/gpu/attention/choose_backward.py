"""Which kernels compute the gradients of attention: the published ones of each kind, ranked by an estimate."""

from __future__ import annotations

from arch.errors import InputError
from arch.gpu import GpuSpec
from workloads.gpu.attention import flash2_backward, flash3_backward
from workloads.gpu.attention.flash2_backward import Flash2BackwardConfig
from workloads.gpu.attention.flash3_backward import Flash3BackwardConfig
from workloads.gpu.gemm.estimate import figures, transfer
from workloads.gpu.select import Choice
from workloads.ops import AttentionBackward
from workloads.registry import register

Config = Flash3BackwardConfig | Flash2BackwardConfig

KINDS = ("flash3", "flash2")
BUSY_SHARE = 0.6
"""Of the time, in which tensor cores multiply: assumed, for both kinds."""


@register("attention_backward", "gpu", "auto")
def choose(op: AttentionBackward, spec: GpuSpec, schedule: str = "auto") -> Choice:
    """The kernels for `op`. schedule: `auto`, a kind, or a configuration as it prints. InputError where the machine or
    the problem cannot take it."""
    kind = schedule.split()[0] if schedule.split() else schedule
    found: list[tuple[Config, int]] = []
    refused: InputError | None = None
    for name in KINDS if kind not in KINDS else (kind,):
        try:
            config = _config(name, op, spec)
        except InputError as error:
            refused = error  # the last one is of the kernels that most machines have
            continue
        found.append((config, _estimate_ps(op, spec, config.cycles_a_mac(op, spec))))
    if not found:
        assert refused is not None
        raise refused
    chosen = [entry for entry in found if schedule in ("auto", *KINDS, str(entry[0]))]
    if not chosen:
        known = " and ".join(f"{config.schedule}, which is {config} here" for config, _ in found)
        raise InputError(f"schedule={schedule}: attention_backward has {known}")
    chosen.sort(key=lambda item: item[1])  # of two that are equally fast the newest
    return Choice(chosen[0][0], chosen)


def _config(kind: str, op: AttentionBackward, spec: GpuSpec) -> Config:
    """The published configuration of a kind; InputError where it cannot run."""
    if kind == "flash3":
        flash3_backward.check(op, spec)
        return flash3_backward.default_config(op)
    flash2_backward.check(op, spec)
    return flash2_backward.default_config(op, spec)


def _estimate_ps(op: AttentionBackward, spec: GpuSpec, cycles_a_mac: float) -> int:
    """Products at the rate of their instruction, or operands from memory, and the starts of three kernels."""
    f = figures(spec)
    cycles = int(op.macs * cycles_a_mac / spec.sm.count / BUSY_SHARE)
    cycles = max(cycles, transfer(op.operand_bytes, f.dram_rate)) + 3 * (f.start + 3 * f.load_latency)
    return 3 * f.fixed_ps + cycles * 1_000_000 // (f.clock_hz // 1_000_000)
