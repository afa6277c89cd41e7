"""Serving Llama-3.1-70B: tokens a second against the time of a token on 1, 2, 4 and 8 GPUs, and where sums end it.

One of the 80 equal decoder layers is simulated and counted 80 times: one token of each sequence, which sees 2048 keys,
in bf16 on H100s behind NVSwitches, operators fused and replayed as a graph. Embedding and head, 2 % of the weights, are
left out. Devices share heads and gated layer (tensor parallelism); each layer sums over them twice, with the kernels
that vLLM brings along. Weights and caches must fit the devices' memory: points that do not are hollow. On PCIe boards
more than two devices sum with NCCL through PCIe (here all below one switch), and that ends it: half of the time of
eight are sums.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lesson import Claim, legend_below, main, plain_log

from arch.load import load_arch
from sim.app.report import palette
from sim.app.run import simulate
from workloads.graphs.models import model_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE, OVER_PCIE = "h100-sxm", "h100-pcie"
SWITCH = (
    "slots.peer=48 GB/s", "slots.bridge_devices=8", "slots.bridge_flow=48 GB/s", "slots.bridge=384 GB/s",
    "slots.socket_devices=8", "slots.socket_flow=48 GB/s", "slots.socket=384 GB/s",
)  # fmt: skip
"""Eight slots of the fifth generation below one switch."""
MODEL = "llama3.1-70b"
KEYS = 2048
DEVICES = (1, 2, 4, 8)
BATCHES = (1, 4, 16, 64)


class Token(NamedTuple):
    """One step of decoding on some devices. sums_ms: in sums over devices."""

    batch: int
    ms: float
    sums_ms: float
    fits: bool

    @property
    def per_second(self) -> float:
        """Tokens of all sequences."""
        return 1000 * self.batch / self.ms


def decode(devices: int, batch: int, machine: str = MACHINE) -> Token:
    """All layers, from one of them."""
    sizes, spec = model_of(MODEL), load_arch(machine, SWITCH if machine == OVER_PCIE else ())
    text = f"llama model={MODEL} phase=decode seq={KEYS} batch={batch} tp={devices} dtype=bf16"
    report = simulate(text, spec, schedule="fused_graph")
    sums_us = sum(k.time_ps for k in report.record.kernels if "all_reduce" in k.name) / 1e6
    head_dim = sizes.hidden // sizes.heads
    weights = sizes.hidden * (2 * sizes.hidden + 2 * sizes.kv_heads * head_dim + 3 * sizes.ffn)
    cache = 2 * batch * KEYS * sizes.kv_heads * head_dim
    needed_bytes = 2 * sizes.layers * (weights + cache)
    fits = needed_bytes <= devices * spec.dram.size_bytes
    return Token(batch, sizes.layers * report.time_us / 1000, sizes.layers * sums_us / 1000, fits)


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Throughput and latency by devices and sequences, and what one token is made of."""
    from matplotlib import pyplot

    counts, batches = ((1, 8), (1, 16)) if quick else (DEVICES, BATCHES)
    found = {devices: [decode(devices, batch) for batch in batches] for devices in counts}
    boards = {MACHINE: {devices: tokens[-1] for devices, tokens in found.items()}}
    boards[OVER_PCIE] = {devices: decode(devices, batches[-1], OVER_PCIE) for devices in counts}
    first, last = found[counts[0]][0], found[counts[-1]][0]
    claims = [
        *(Claim(f"one sequence on {devices}", tokens[0].ms, "ms a token") for devices, tokens in found.items()),
        Claim(f"{counts[-1]} devices against one", first.ms / last.ms, "x"),
        Claim("without sums it would be", first.ms / (last.ms - last.sums_ms), "x"),
        *(Claim(f"{batches[-1]} sequences, sums over {devices} {machine}", 100 * token.sums_ms / token.ms, "%")
          for machine, tokens in boards.items() for devices, token in tokens.items() if devices > 1),
    ]  # fmt: skip
    figure, (curves, parts) = pyplot.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for number, (devices, tokens) in enumerate(found.items()):
        color = palette.of_series(number)
        curves.plot([t.ms for t in tokens], [t.per_second for t in tokens], "-", color=color)
        for fits, face in ((True, color), (False, "white")):
            shown = [t for t in tokens if t.fits == fits]
            word = f"{devices} GPU{'s' if devices > 1 else ''}" + ("" if fits else ", beyond their memory")
            at = ([t.ms for t in shown], [t.per_second for t in shown])
            curves.plot(*at, "o", color=color, markerfacecolor=face, label=word if shown else None)
    plain_log(curves)
    curves.set(xlabel="ms a token", ylabel="tokens a second")
    for number, (machine, tokens) in enumerate(boards.items()):
        at = [place + 0.4 * number - 0.2 for place in range(len(tokens))]
        rest, sums = [t.ms - t.sums_ms for t in tokens.values()], [t.sums_ms for t in tokens.values()]
        parts.bar(at, rest, 0.36, color=palette.of_series(4 + 2 * number), label=f"{machine}: layers")
        drawn = parts.bar(
            at, sums, 0.36, bottom=rest, color=palette.of_series(5 + 2 * number), label=f"{machine}: sums"
        )
        parts.bar_label(drawn, [f"{t.ms:.3g}" for t in tokens.values()], padding=2, fontsize=8)
    parts.set_xticks(range(len(counts)), [str(devices) for devices in counts])
    parts.set_ylim(0, 1.1 * max(t.ms for tokens in boards.values() for t in tokens.values()))
    parts.set(xlabel="GPUs", ylabel="ms a token", title=f"{batches[-1]} sequences")
    curves.set_title(f"{MACHINE}; {', '.join(map(str, batches))} sequences")
    figure.suptitle(f"Decoding {MODEL}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
