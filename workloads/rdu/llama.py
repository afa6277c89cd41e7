"""Which program runs decoder layers of Llama, or a training step of one, on a dataflow machine."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.program import Program
from workloads.graphs.llama import Llama
from workloads.rdu.decoder import USABLE, Decoder, LlamaConfig, layer_bytes
from workloads.rdu.select import check_dtype, pick
from workloads.rdu.training import training_step
from workloads.registry import register

FORMS = ("looped", "fused", "cut", "unfused")
_FORM = re.compile(r"(looped|fused|cut|unfused) by (hardware|host)(?: tokens (\d+))?( from ddr)?")


@register("llama", "rdu", "cut", "fused", "looped", "unfused")
def build(op: Llama, spec: RduSpec, config: LlamaConfig) -> Program:
    """The program of all layers, or of a training step, on one of the devices."""
    return training_step(op, spec, config) if op.phase == "training" else Decoder(op, spec, config).program()


@register("llama", "rdu", "auto")
def choose(op: Llama, spec: RduSpec, schedule: str) -> list[tuple[LlamaConfig, int]]:
    """Forms, the one that keeps most on chip first."""
    check_dtype(op, spec)
    op.check_plain(spec.name)
    if op.tp > 1 and spec.link is None:
        raise InputError(f"llama tp={op.tp}: {spec.name} has no links to other devices; nearest: tp=1")
    new = 1 if op.phase == "decode" else op.seq
    tokens = op.batch if op.phase == "decode" else max(d for d in range(1, min(512, new) + 1) if new % d == 0)
    filled = Fraction(op.layers * layer_bytes(op), spec.hbm.size_bytes) if spec.hbm else Fraction(0)
    configs = [
        LlamaConfig(form, who, tokens, filled > 1 and form != "looped")  # type: ignore[arg-type]
        for who in ("hardware", "host")
        for form in FORMS
    ]
    if op.phase == "training":
        configs = [config for config in configs if config.form in ("cut", "unfused")]
    if op.phase == "prefill":
        # Attention needs all keys of a sequence: with few sequences the stages before and after it would take turns,
        # and `cut` says whether that is worth launches. Loops hold the tokens of a whole layer.
        first = ("cut", "looped", "fused", "unfused")
        configs.sort(key=lambda c: (c.orchestration == "host", first.index(c.form)))

    if filled > 1:  # a section that loops over the layers reads all of them in HBM
        configs.sort(key=lambda c: c.form == "looped")
    elif filled > USABLE:
        configs += [dataclasses.replace(c, from_ddr=True) for c in configs if c.form != "looped"]

    def parse(text: str) -> LlamaConfig | None:
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        if match[4] and (match[1] == "looped" or spec.hbm is None or op.phase == "training"):
            why = f"{'training' if op.phase == 'training' else 'looped'} keeps its layers in HBM"
            if spec.hbm is None:
                why = f"{spec.name} has no HBM to copy to"
            raise InputError(f"schedule={text}: {why}; nearest: {text.removesuffix(' from ddr')}")
        return LlamaConfig(match[1], match[2], int(match[3] or tokens), bool(match[4]))  # type: ignore[arg-type]

    moved = op.layers * layer_bytes(op)
    # Every form moves the weights once and multiplies as often: the bound that all of them share.
    cycles = max(
        moved * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s,
        op.macs // (op.tp * spec.pcu.count * spec.macs_per_cycle),
    )
    return list(pick("llama", schedule, [(config, cycles) for config in configs], parse))
