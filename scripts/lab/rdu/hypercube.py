"""In which share of what is not known do the claims about SN40L hold?

    python scripts/lab/rdu/hypercube.py [--points 200] [--seed 0] [--json FILE]

Every assumed figure of the preset is drawn between half and twice its value (whole numbers stay whole), all together,
as a Latin hypercube: of N points each figure has one in each Nth of its range. `HELD` stay, with the reason. A claim
holds at a point where its simulated value lies within what is published (`published.csv`), a single value within a
tenth. A point at which a program no longer fits the machine is counted by itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import published  # noqa: E402

from arch.errors import InputError  # noqa: E402
from arch.library import find  # noqa: E402
from arch.load import load_arch  # noqa: E402
from arch.preset_file import read  # noqa: E402
from sim.app.families.rdu.runner import run_program  # noqa: E402
from sim.app.run import simulate  # noqa: E402
from workloads.graphs.models import model_of  # noqa: E402
from workloads.rdu.monarch import monarch  # noqa: E402

MACHINE = "sn40l"

HELD: Mapping[str, str] = {
    "devices": "a request says it",
    "clock.boost": "with the cells of a PCU it is the published peak",
    "pcu.lanes": "the published peak",
    "pcu.stages": "the published peak",
    "pcu.macs": "the published peak",
    "mesh.rows": "the published number of units",
    "mesh.flit": "one vector of a PCU's lanes",
    "hbm.overhead": "zero, which has no half",
    "ddr.overhead": "zero, which has no half",
    "hbm.page_policy": "a word",
    "ddr.page_policy": "a word",
}
"""Assumed figures that stay as they are, and energies, on which no claim depends."""


class Claim(NamedTuple):
    """One claim: its row of `published.csv`, and its value on a machine with some overrides."""

    result: str
    measure: Callable[[Sequence[str]], float]


def _fft(overrides: Sequence[str]) -> float:
    machine = load_arch(MACHINE, list(overrides))
    return run_program(monarch("none"), machine).time_ps / run_program(monarch("full"), machine).time_ps


def _gain(overrides: Sequence[str], model: str, tp: int) -> float:
    return tokens(overrides, model, tp, published.LAUNCHED.format("host")) / tokens(
        overrides, model, tp, published.LOOPED
    )


def _scaling(overrides: Sequence[str]) -> float:
    launched = tokens(overrides, "llama3.1-8b", 8, published.LAUNCHED.format("host"))
    return launched / tokens(overrides, "llama3.1-8b", 16, published.LOOPED)


def tokens(overrides: Sequence[str], model: str, tp: int, schedule: str) -> float:
    """Time of all decoder layers of a model, one token, in microseconds."""
    return _tokens(tuple(overrides), model, tp, schedule)


@functools.lru_cache(maxsize=8)
def _tokens(overrides: tuple[str, ...], model: str, tp: int, schedule: str) -> float:
    """The same, kept for the claims of one point, several of which need it."""
    text = f"llama model={model} phase=decode seq=4096 layers={model_of(model).layers} tp={tp}"
    return simulate(text, load_arch(MACHINE, list(overrides)), schedule=schedule).time_us


CLAIMS = (
    Claim("flash_fft_conv_fused", _fft),
    Claim(
        "fused_against_unfused",
        lambda o: (
            published.decode_us(o, "unfused by hardware", layers=1)
            / published.decode_us(o, "fused by hardware", layers=1)
        ),
    ),
    Claim(
        "hardware_against_host_decode",
        lambda o: published.decode_us(o, "fused by host") / published.decode_us(o, "fused by hardware"),
    ),
    Claim("kernel_looping_max_host", lambda o: max(_gain(o, "llama3.1-8b", tp) for tp in (8, 16))),
    Claim("looped_16_against_launched_8", _scaling),
    Claim("tokens_per_second_8b", lambda o: 1e6 / tokens(o, "llama3.1-8b", 16, published.LOOPED)),
)


def assumed() -> dict[str, str]:
    """Assumed figures that are drawn, by path, as the preset writes them."""
    figures = read(find(MACHINE)).figures
    return {
        path: str(figure.text)
        for path, figure in figures.items()
        if figure.source == "assumed" and path not in HELD and not path.startswith("power.")
    }


def drawn(text: str, factor: float) -> str:
    """A figure times a factor, in its unit; whole numbers stay whole and at least 1, even ones even."""
    found = re.fullmatch(r"([0-9.]+)\s*(.*)", text)
    assert found is not None, text
    number, unit = float(found[1]) * factor, found[2]
    whole = unit in ("", "cycle", "cycles", "B/clk") or unit.endswith("iB")
    if not whole:
        return f"{round(number, 4)} {unit}"
    even = float(found[1]) % 2 == 0  # units at two edges, words of two bytes: what is even stays so
    return f"{max(2, 2 * round(number / 2)) if even else max(1, round(number))} {unit}".strip()


def points(figures: Mapping[str, str], count: int, seed: int) -> list[list[str]]:
    """Overrides of each point of a Latin hypercube over the logarithms of factors from a half to two."""
    random = np.random.default_rng(seed)
    columns = {}
    for path, text in figures.items():
        strata = (random.permutation(count) + random.random(count)) / count
        columns[path] = [f"{path}={drawn(text, 2.0 ** (2 * u - 1))}" for u in strata]
    return [[column[i] for column in columns.values()] for i in range(count)]


def main() -> None:
    """Prints each claim with the share of points at which it holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)  # type: ignore[union-attr]
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="every value at every point")
    options = parser.parse_args()
    figures, known = assumed(), published.known()
    values: dict[str, list[float]] = {claim.result: [] for claim in CLAIMS}
    refused = 0
    for overrides in points(figures, options.points, options.seed):
        try:
            found = {claim.result: claim.measure(overrides) for claim in CLAIMS}
        except InputError:
            refused += 1
            continue
        for result, value in found.items():
            values[result].append(value)
        if options.json:
            options.json.write_text(json.dumps(values, indent=1), encoding="utf-8")
    print(f"{len(figures)} assumed figures, {options.points} points, {refused} at which a program does not fit")
    print(f"{'claim':<32}{'published':>14}{'least':>9}{'median':>9}{'most':>9}{'holds at':>10}")
    for result, some in sorted(values.items(), key=lambda item: holding(item[0], item[1], known)):
        low, high = known[result]["low"], known[result]["high"]
        text = low if low == high else f"{low} to {high}"
        share = f"{100 * holding(result, some, known):.0f} %"
        print(f"{result:<32}{text:>14}{min(some):>9.2f}{median(some):>9.2f}{max(some):>9.2f}{share:>10}")


def holding(result: str, values: Sequence[float], known: Mapping[str, Mapping[str, str]]) -> float:
    """Share of the values that lie within what is published."""
    return 1 - sum(published.missed(published.Found(result, v, v, v), known[result]) for v in values) / len(values)


if __name__ == "__main__":
    main()
