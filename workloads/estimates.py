"""How far the estimates that rank candidates may be trusted, by family of machines and operator.

An estimate's error is what it says wrongly about two candidates of one problem: by how many per cent the estimate of
the fastest may lie above the best estimate. Each figure covers 95 % of random shapes and machines
(`scripts/whatif_laws.py --choice`), where all candidates were simulated.
"""

from __future__ import annotations

from collections.abc import Mapping

ERROR_PERCENT: Mapping[str, Mapping[str, int]] = {
    "gpu": {"gemm": 20, "conv2d": 12, "attention": 25},
    "tpu": {},
    "rdu": {"gemm": 5, "softmax": 10, "softmax_backward": 10, "layernorm": 10, "rmsnorm": 10},
    "gemmini": {},
}
OTHERS_PERCENT: Mapping[str, int] = {"gpu": 40, "tpu": 25, "rdu": 40, "gemmini": 40}
"""Of operators that have no figure of their own."""


def error_percent(family: str, operator: str) -> int:
    """The stated error of the estimate of an operator's candidates."""
    return ERROR_PERCENT[family].get(operator, OTHERS_PERCENT[family])
