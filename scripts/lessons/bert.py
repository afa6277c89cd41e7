"""The BERT breakdown: tensor contractions are nearly all of the operations and only part of the time.

Published (Data Movement Is All You Need, arxiv.org/abs/2007.00072, Table 1: V100, PyTorch, one BERT-large encoder
layer in training): share of operations and of run time of tensor contractions, normalisations and element-by-element
operators. Batch and length are assumed: 8 sequences of 512 tokens. As in the source, reductions that give the gradient
of a bias count as normalisations, and so do the scaling and the dropout that are part of its softmax.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lesson import Claim, legend_below, main

from sim.app.report import palette
from sim.app.report.profile import classes
from sim.app.report.record import OperatorTime
from sim.app.report.render import as_text
from sim.app.report.sections import profile_section
from sim.app.run import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MACHINE = "v100-sxm2"
PUBLISHED = {"contraction": (99.8, 61.0), "normalisation": (0.17, 25.5), "elementwise": (0.03, 13.5)}
"""Per cent of operations and of run time."""
WEIGHTS = 8 * 16 * 512 * 512
"""Attention weights of the layer, which only the softmax's dropout has so many of."""


def _classed(operator: OperatorTime) -> OperatorTime:
    """An operator in the source's class: what belongs to its softmax is a normalisation."""
    scaling = operator.name == "aten::mul"
    of_weights = operator.name.startswith("aten::native_dropout") and f"n={WEIGHTS}" in operator.workload.split()
    return dataclasses.replace(operator, kind="normalisation") if scaling or of_weights else operator


def lesson(quick: bool) -> tuple[Sequence[Claim], Figure]:
    """Shares by class of operator."""
    from matplotlib import pyplot

    size = "batch=1 seq=64 hidden=256 heads=4 ffn=1024" if quick else "batch=8 seq=512"
    report = simulate(f"bert_layer {size} training=1 dtype=fp16", MACHINE, clock="isolated" if quick else "sustained")
    print(as_text([profile_section(report.record)]), file=sys.stderr)
    by_kind = classes(dataclasses.replace(report.record, operators=[_classed(o) for o in report.record.operators]))
    claims = []
    for kind, (operations, time) in PUBLISHED.items():
        entry = by_kind[kind]
        claims.append(Claim(f"{kind}: operations", 100 * entry.flop_share, "%", None if quick else operations))
        claims.append(Claim(f"{kind}: run time", 100 * entry.device_share, "%", None if quick else time))
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    rows = ["operations", "time, simulated", *([] if quick else ["operations, published", "time, published"])]
    left = dict.fromkeys(rows, 0.0)
    for number, (kind, published) in enumerate(PUBLISHED.items()):
        entry = by_kind[kind]
        values = dict(zip(rows, (100 * entry.flop_share, 100 * entry.device_share, *published), strict=False))
        drawn = axes.barh(rows, list(values.values()), left=list(left.values()), label=kind,
                          color=palette.of_series(number))  # fmt: skip
        shown = [f"{value:.3g} %" if value > 5 else "" for value in values.values()]
        axes.bar_label(drawn, shown, label_type="center", fontsize=8, color="white")
        left = {name: left[name] + values[name] for name in rows}
    axes.invert_yaxis()
    size = "a small layer (reduced)" if quick else "BERT-large encoder layer"
    axes.set(xlabel="per cent", xlim=(0, 100), title=f"{size}, training, on {MACHINE}")
    legend_below(figure)
    return claims, figure


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", lesson))
