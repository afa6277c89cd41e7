"""Sets of layer sizes that fit what is published of an application of the TPU v1 paper, and what they count.

What is published and held (table 1): layers by kind, weights within 3 %, batch, multiply-accumulates a weight byte
within 2 %; of MLP0 also the share of cells without a weight, within half a point. No measured counter takes part.
Free are:

- MLPs: the widths of the input and of the result, each half, once or twice the width of the hidden layers;
- CNN1: image, stages, convolutions of each, channels and dense width (`pyramids`), of which one set in fifteen is run;
- LSTMs and CNN0: nothing; the one set of `networks` is whole tiles throughout, or the size that is printed.

`counter_ranges.csv` holds the least and largest of each counter over all sets, written by `scripts/lab/tpu/ranges.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path

from workloads.ops.networks import APPS, Dense, Network, pyramid
from workloads.ops.pyramids import pyramids

RANGES_CSV = Path(__file__).with_name("counter_ranges.csv")

COLUMNS = ("app", "counter", "sets", "low", "high", "machine_sha256")

EVERY = 15
"""Of the sets that fit CNN1, ordered by how even their stages are, one in so many is run."""

_RATIOS = (0.5, 1.0, 2.0)
_WEIGHTS = {"mlp0": 20e6, "mlp1": 5e6}
_USEFUL = {"mlp0": 12.5 / 12.8}
_TILE = 256


def sets(app: str) -> list[Network]:
    """The networks that are run, the named one first."""
    named = APPS[app]()
    if app in _WEIGHTS:
        layers = len(named.layers)
        found = [_mlp(app, layers, before, after, named.batch) for before, after in product(_RATIOS, _RATIOS)]
        return [named, *(net for net in found if _ends(net) != (1.0, 1.0) and _fits(app, net))]
    if app == "cnn1":
        return [pyramid(app, sizes) for sizes in pyramids()[::EVERY]]
    return [named]


@cache
def ranges(app: str, machine_sha256: str) -> Mapping[str, tuple[float, float]]:
    """Least and largest of each counter over all sets; none for a machine other than the one that was run."""
    with RANGES_CSV.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["app"] == app and row["machine_sha256"] == machine_sha256]
    return {row["counter"]: (float(row["low"]), float(row["high"])) for row in rows}


def _mlp(app: str, layers: int, before: float, after: float, batch: int) -> Network:
    """Dense layers whose hidden width makes the published weights."""
    share = before + (layers - 2) + after
    hidden = round((_WEIGHTS[app] / share) ** 0.5)
    widths = [round(before * hidden), *[hidden] * (layers - 1), round(after * hidden)]
    tensors = {f"x{i}": (1, width) for i, width in enumerate(widths)}
    made = tuple(Dense(f"x{i}", f"x{i + 1}", widths[i], widths[i + 1]) for i in range(layers))
    return Network(app, batch, 8, tensors, ("x0",), f"x{layers}", made)


def _ends(net: Network) -> tuple[float, float]:
    """Width of input and result over that of the first hidden layer."""
    first, last = net.layers[0], net.layers[-1]
    assert isinstance(first, Dense)
    assert isinstance(last, Dense)
    return first.inputs / first.outputs, last.outputs / last.inputs


def _fits(app: str, net: Network) -> bool:
    """Whether weights and, where it is published, the share of cells with a weight are those of the application."""
    tiles = sum(-(-x.inputs // _TILE) * -(-x.outputs // _TILE) for x in net.layers if isinstance(x, Dense))
    useful = net.weights / (tiles * _TILE**2)
    return abs(net.weights / _WEIGHTS[app] - 1) < 0.03 and abs(useful - _USEFUL.get(app, useful)) < 0.005
