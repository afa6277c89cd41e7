"""Published results of SN40L beside what the simulator gives; figures that nobody published are swept, not chosen.

Launch, reconfiguration and link times are not public. Before the comparison they were set from arguments that
arch/presets/sn40l.yaml states; here each is also halved and doubled, and a result is the range over all of that.

    python scripts/lab/rdu/published.py [--gpu] [--json]
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arch.load import load_arch
from sim.app.families.rdu.runner import ProgramRun, play_launches, run_program
from sim.app.run import simulate
from sim.rdu.host import Launch, copy_ps, run_launches
from workloads.graphs.llama import Llama
from workloads.graphs.models import model_of
from workloads.rdu.monarch import FLOPS, FORMS, monarch
from workloads.rdu.select import build, choose

SWEPT = {
    "launch.program_load": ("10 us", "20 us", "40 us"),
    "launch.host": ("5 us", "10 us", "20 us"),
    "launch.execute": ("1 us", "2 us", "4 us"),
    "link.latency": ("200 ns", "400 ns", "800 ns"),
}
"""Unpublished figures: half, as stated, double."""

DECODE = "llama model=llama3.1-8b phase=decode seq=4096 layers={layers} tp={tp}"
LAYERS = 4
"""Layers that are run where a ratio does not depend on their number."""
SUITE = [(model, tp) for model in ("llama3.1-8b", "llama3.1-70b") for tp in (8, 16)]
"""Models and sockets over which kernel looping is compared: its gains are published as a maximum over several."""
RATED = ("llama3.1-8b", "llama3.1-70b", "llama3.1-405b")
"""Models whose token rates are published and whose sizes ship."""
LOOPED, LAUNCHED = "looped by hardware", "fused by {} tokens 1"
EXPERT, EXPERT_PARAMETERS = "llama model=llama2-7b phase=decode seq=1024 layers=32 tp=8", 6_738_415_616
"""An expert of Samba-CoE is a fine-tuned Llama 2 7B."""
SLOWER_DDR = "ddr.bandwidth=100 GB/s"
"""What Hot Chips' slides imply where table II says 200."""
ANSWER_TOKENS = 20
"""Tokens that an expert gives before the next is asked, as in the paper's evaluation."""


class Found(NamedTuple):
    """One result: as stated, and its least and greatest over the sweep of the figures that it depends on."""

    result: str
    value: float
    low: float
    high: float
    depends: tuple[str, ...] = ()


def sweep(names: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """(whether all are as stated, overrides) for each combination of the swept figures `names`."""
    for choice in itertools.product(*(range(3) for _ in names)):
        yield all(c == 1 for c in choice), [f"{n}={SWEPT[n][c]}" for n, c in zip(names, choice, strict=True)]


def ranged(result: str, names: Sequence[str], measure) -> Found:  # type: ignore[no-untyped-def]
    """A result over the sweep of the figures on which it depends."""
    values = [(stated, measure(overrides)) for stated, overrides in sweep(names)]
    return Found(
        result,
        next(v for stated, v in values if stated),
        min(v for _, v in values),
        max(v for _, v in values),
        tuple(names),
    )


def decode_us(overrides: Sequence[str], schedule: str, tp: int = 8, layers: int = LAYERS) -> float:
    """Time of decoder layers, one token."""
    text = DECODE.format(layers=layers, tp=tp)
    return simulate(text, load_arch("sn40l", list(overrides)), schedule=schedule).time_us


@functools.cache
def _sections(model: str, tp: int, schedule: str, latency: str) -> ProgramRun:
    """All layers of a model decoding a token, for one latency of the links: launch times do not reach the sections."""
    op = Llama(model=model, phase="decode", seq=4096, layers=model_of(model).layers, tp=tp)
    spec = load_arch("sn40l", [latency] if latency else [])
    op = op.with_defaults(spec.default_dtype)
    return run_program(build(op, spec, choose(op, spec, schedule).config), spec)


def token_us(overrides: Sequence[str], model: str, tp: int, schedule: str) -> float:
    """Time of all decoder layers, one token."""
    latency = next((o for o in overrides if o.startswith("link.latency")), "")
    done = _sections(model, tp, schedule, latency)
    return play_launches(done.program, done.results, load_arch("sn40l", list(overrides))).time_ps / 1e6


def looping() -> Iterator[Found]:
    """One launch for all layers against one for each, which the papers name as what looping replaces.

    Who gives those launches, the host or an AGCU, they do not say: both are shown.
    """
    swept = ("launch.host", "launch.execute", "link.latency")

    def gains(overrides: Sequence[str], who: str) -> list[float]:
        return [
            token_us(overrides, model, tp, LAUNCHED.format(who)) / token_us(overrides, model, tp, LOOPED)
            for model, tp in SUITE
        ]

    for who in ("host", "hardware"):
        yield ranged(f"kernel_looping_max_{who}", swept, lambda o, who=who: max(gains(o, who)))
        yield ranged(f"kernel_looping_geomean_{who}", swept, lambda o, who=who: geometric_mean(gains(o, who)))
    yield ranged(
        "scaling_8_to_16",
        ("link.latency",),
        lambda o: token_us(o, "llama3.1-8b", 8, LOOPED) / token_us(o, "llama3.1-8b", 16, LOOPED),
    )
    yield ranged(
        "looped_16_against_launched_8",
        swept,
        lambda o: token_us(o, "llama3.1-8b", 8, LAUNCHED.format("host")) / token_us(o, "llama3.1-8b", 16, LOOPED),
    )


def token_rates() -> Iterator[Found]:
    """Tokens a second of one user on 16 sockets. A service is what is published; here it is the decoder layers alone,
    without head, sampling, network and speculation."""
    for model in RATED:
        yield ranged(
            f"tokens_per_second_{model.removeprefix('llama3.1-')}",
            ("launch.execute", "link.latency"),
            lambda o, model=model: 1e6 / token_us(o, model, 16, LOOPED),
        )


def experts() -> Iterator[Found]:
    """A composition of experts on a node of 8 sockets: each prompt goes to another model, which comes from DDR."""
    spec, slower = load_arch("sn40l"), load_arch("sn40l", [SLOWER_DDR])
    each = 2 * EXPERT_PARAMETERS // 8
    for name, machine in (("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm")):
        # A DGX copies over the PCIe link of one GPU, as the published ratio of bandwidths says; in eight parts.
        dgx_ps = 8 * simulate(f"copy_h2d bytes={each}", machine).record.time_ps
        ratio, low = dgx_ps / copy_ps(spec, each), dgx_ps / copy_ps(slower, each)
        yield Found(f"expert_switch_against_{name}", ratio, low, ratio)
    token_ps = round(simulate(EXPERT, spec, schedule=LOOPED).time_us * 1e6)
    prompts = [Launch(0, ANSWER_TOKENS * token_ps, each)] * 10
    timeline = run_launches(spec, prompts, "hardware", configured=0, devices=8, room_bytes=2 * each)
    later = timeline.launches[1:]
    hidden = 1 - sum(parts["prefetch"] for parts in later) / sum(end - begin for begin, end in timeline.copies[1:])
    yield Found("expert_switch_hidden", *[100 * hidden] * 3)


def sockets() -> Iterator[Found]:
    """Everything that runs on SN40L alone."""
    spec = load_arch("sn40l")
    for form in FORMS:
        done = run_program(monarch(form), spec)
        moved = sum(k.counters[f"hbm_{side}_bytes"] for k in done.records for side in ("read", "write"))
        yield Found(f"monarch_fft_intensity_{form}", *[FLOPS / moved] * 3)

    def fft(overrides: Sequence[str]) -> float:
        machine = load_arch("sn40l", list(overrides))
        return run_program(monarch("none"), machine).time_ps / run_program(monarch("full"), machine).time_ps

    launches = ("launch.program_load", "launch.execute")
    yield ranged("flash_fft_conv_fused", launches, fft)
    yield ranged(
        "fused_against_unfused",
        launches,
        lambda o: decode_us(o, "unfused by hardware", layers=1) / decode_us(o, "fused by hardware", layers=1),
    )
    yield ranged(
        "hardware_against_host_decode",
        ("launch.host", "launch.execute"),
        lambda o: decode_us(o, "fused by host") / decode_us(o, "fused by hardware"),
    )
    yield from looping()
    for tp in (8, 16):

        def share(overrides: Sequence[str], tp: int = tp) -> float:
            machine = load_arch("sn40l", list(overrides))
            report = simulate(DECODE.format(layers=32, tp=tp), machine, schedule="looped by hardware")
            moved = report.figures.external_bytes / (report.time_us * 1e-6)
            return 100 * moved / (tp * machine.hbm.bandwidth_bytes_per_s)

        yield ranged(f"peak_bandwidth_share_{tp}", ("launch.execute", "link.latency"), share)
    looped = simulate(DECODE.format(layers=32, tp=8), "sn40l", schedule="looped by hardware")
    calls = len(looped.record.kernels) + 2  # embedding, and the head with its sampling
    yield Found("calls_per_token_looped", calls, calls, calls)
    # Embedding and head are read once a token too: 128256 x 4096 in bf16, of which the embedding gives one row.
    head_bytes = 128256 * 4096 * 2
    gb = (looped.figures.external_bytes + head_bytes) / 1e9
    yield Found("bytes_per_token_8b", gb, gb, gb)
    yield from token_rates()
    yield from experts()


def gpus() -> Iterator[Found]:
    """What needs the GPU engine: a decoder layer on eight H100."""
    layers = {
        tp: simulate(DECODE.format(layers=1, tp=tp), "h100-sxm", schedule="fused_graph", scope="stream", l2="cold")
        for tp in (1, 2, 4, 8)
    }
    kernels = len(layers[8].record.kernels) * 32 + 3
    yield Found("calls_per_token_gpu", kernels, kernels, kernels)
    report = layers[8]
    share = (
        100 * report.figures.external_bytes / (report.time_us * 1e-6) / load_arch("h100-sxm").dram.bandwidth_bytes_per_s
    )
    yield Found("gpu_decode_bandwidth_share", share, share, share)
    for tp, layer in layers.items():
        reduce_us = sum(k.time_ps for k in layer.record.kernels if "all_reduce" in k.name) / 1e6
        yield Found(f"h100_x{tp}_layer_us (of which all-reduce {reduce_us:.1f})", *[layer.time_us] * 3)
    looped = simulate(DECODE.format(layers=32, tp=16), "sn40l", schedule="looped by hardware")
    ratio = 32 * report.time_us / looped.time_us
    yield Found("against_dgx_h100", ratio, ratio, ratio)


def known() -> dict[str, dict[str, str]]:
    """What is published, by result."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8") as file:
        return {row["result"]: row for row in csv.DictReader(file)}


def missed(row: Found, found: Mapping[str, str] | None) -> bool:
    """Whether a result as stated lies outside what is published, a single value by more than a tenth."""
    if found is None:
        return False
    low, high = float(found["low"]), float(found["high"])
    slack = 0.1 if low == high else 0.0
    return not low * (1 - slack) <= row.value <= high * (1 + slack)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gpu", action="store_true", help="also what needs the GPU engine (H100)")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    options = parser.parse_args()
    published = known()
    rows = list(itertools.chain(sockets(), gpus() if options.gpu else ()))
    rows.sort(key=lambda row: (row.result not in published, not missed(row, published.get(row.result))))
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    print(f"{'result':<34}{'simulated':>10}  {'over the sweep':>18}  {'published':>14}  depends on")
    for row in rows:
        found = published.get(row.result)
        text = "" if found is None else f"{found['low']} to {found['high']} {found['unit']}"
        if found is not None and found["low"] == found["high"]:
            text = f"{found['low']} {found['unit']}"
        span = "" if row.low == row.high else f"{row.low:.2f} to {row.high:.2f}"
        mark = "MISSED " if missed(row, found) else ""
        print(f"{row.result:<34}{row.value:>10.2f}  {span:>18}  {text:>14}  {mark}{', '.join(row.depends)}")


if __name__ == "__main__":
    main()
