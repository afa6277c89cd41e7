"""What Qwen3-32B costs on two H100s, and what would change it: time and energy of a token, by operator and by what-if.

One step of decoding is simulated, all 64 layers with embedding and head: one token of 16 sequences, which see 1536 keys
in a cache in pages, as in the middle of answers of 1024 tokens to prompts of 1024. Products by weights are most of it,
and they are bound by memory: half the bandwidth costs nearly twice the time, twice the link between the GPUs nothing
that one can see. Narrower weights and more devices change what is read; calling kernels one by one brings the host in.
The same deployment behind a server, prompts included, stands beside what was measured
(`workloads/silicon/lab/serving.csv`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lesson import Claim, bars, main

from sim.app.report import palette
from sim.app.run import simulate
from sim.app.serving.curve import serve
from workloads.graphs.models import model_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL, MACHINE, CLIENTS, KEYS = "qwen3-32b", "h100-sxm", 16, 1536
MEASURED_MS = {"prefill=mixed": 17.38, "prefill=alone": 15.80}
"""Per output token, prompts of 1024 tokens: of vLLM 0.12 with answers of 1024, of SGLang 0.5 with answers of 512."""
ANSWERS = {"prefill=mixed": 1024, "prefill=alone": 512}

KINDS = {
    "aten::mm": "products by weights", "vllm:unified_attention": "attention", "vllm:all_reduce": "sums over both",
    "nccl:all_gather": "sums over both",
}  # fmt: skip


class Step(NamedTuple):
    """One step of decoding. parts_ms: by kind of operator, of the kernels."""

    ms: float
    joules: float
    parts_ms: Mapping[str, float]


class WhatIf(NamedTuple):
    """A change of the machine or the deployment. keys: of the operator; figures: of the machine."""

    keys: str = "tp=2"
    figures: tuple[str, ...] = ()
    machine: str = MACHINE
    schedule: str = "fused_graph"


WHAT_IFS: Mapping[str, WhatIf] = {
    "two H100": WhatIf(),
    "half the memory bandwidth": WhatIf(figures=("dram.bandwidth=1.676 TB/s",)),
    "two H200 (4.8 TB/s)": WhatIf(machine="h200-sxm"),
    "half the SMs": WhatIf(figures=("sm.count=66",)),
    "twice the link": WhatIf(figures=("link.bandwidth=900 GB/s",)),
    "weights of 8 bits": WhatIf(keys="tp=2 dtype=fp8"),
    "four H100": WhatIf(keys="tp=4"),
    "kernels called one by one": WhatIf(schedule="eager"),
}


def decode(what: WhatIf, layers: int) -> Step:
    """A step of decoding, with embedding and head where it has all layers."""
    sizes = model_of(MODEL)
    whole = f" vocab={sizes.vocab}" if layers == sizes.layers else ""
    text = f"llama model={MODEL} layers={layers}{whole} phase=decode batch={CLIENTS} seq={KEYS} page=16 {what.keys}"
    report = simulate(
        text, what.machine, set=what.figures, schedule=what.schedule, scope="stream", clock="sustained"
    ).to_dict()  # fmt: skip
    devices = int(what.keys.partition("tp=")[2].split()[0])
    parts: dict[str, float] = {}
    for row in report["profile"]:
        kind = KINDS.get(row["operator"], "norms, positions and the rest")
        parts[kind] = parts.get(kind, 0.0) + row["device_us"] / 1000
    return Step(report["time_us"] / 1000, devices * report["energy_j"] / CLIENTS, parts)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """A token by operator and by what-if, and behind a server beside what was measured."""
    from matplotlib import pyplot

    asked = dict(list(WHAT_IFS.items())[:2]) if quick else WHAT_IFS
    found = {name: decode(what, 2 if quick else model_of(MODEL).layers) for name, what in asked.items()}
    base = found["two H100"]
    claims = [Claim(f"{name}, a step", step.ms, "ms") for name, step in found.items()]
    claims += [Claim(f"{name}, a token", step.joules, "J") for name, step in found.items()]
    for prefill in () if quick else MEASURED_MS:
        curve = serve(f"{MODEL} tp=2 osl={ANSWERS[prefill]} concurrency={CLIENTS} {prefill}", MACHINE)
        (row,) = curve.rows
        claims.append(
            Claim(f"behind a server, {prefill}", 1000 * (row.tpot_s or 0), "ms a token", MEASURED_MS[prefill])
        )
    figure, (parts, times, energies) = pyplot.subplots(
        1, 3, figsize=(12, 0.9 + 0.38 * max(len(found), 4)), layout="constrained", width_ratios=(1, 1.15, 0.85)
    )
    shares = dict(sorted(base.parts_ms.items(), key=lambda part: -part[1]))
    bars(parts, shares, color=palette.of_series(0))
    parts.set(xlabel="ms of a step", title="Two H100, by operator")
    bars(times, {name: step.ms for name, step in found.items()}, color=palette.of_series(1))
    times.axvline(base.ms, color=palette.GUIDE, linewidth=0.8, linestyle=":")
    times.set(xlabel="ms of a step", title="What would change it")
    bars(energies, {name: step.joules for name, step in found.items()}, color=palette.of_series(2))
    energies.set_yticks([])
    energies.set(xlabel="J a token, all devices", title="and its energy")
    for axes in (parts, times, energies):
        axes.margins(x=0.25)
    figure.suptitle(f"A token of {MODEL}: {CLIENTS} sequences of {KEYS} keys")
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
