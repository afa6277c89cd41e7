"""How far the estimates that rank candidates may be trusted, by family of machines and operator.

An estimate's error is what it says wrongly about two candidates of one problem: by how many per cent the estimate of
the fastest may lie above the best estimate. Each figure covers 95 % of random shapes and machines
(`scripts/lab/whatif_laws.py --choice`), where all candidates were simulated.
"""

from __future__ import annotations

from collections.abc import Mapping

from arch.families import family

EXCESS_PERCENT: Mapping[str, int] = {"simt": 1}
"""By how many per cent the estimate of a kernel may lie above what it takes, by the word that its way begins with; of
kernels whose simulation is dear, which have many rounds of CTAs. Of 17 products in fp32 with 4 to 24 billion multiplies
on T4, V100 and A100 the estimates of 92 candidates lay 11 % below to 1.6 % above, 91 of them no more than 1 % above.
Those of tensor cores lay 51 % below to 12 % above, which says nothing."""


def excess_percent(way: str) -> int | None:
    """`EXCESS_PERCENT` of what computes in a way (`Plan.ways`); None where estimates do not say."""
    return EXCESS_PERCENT.get(way.partition(" ")[0])


def error_percent(machines: str, operator: str) -> int:
    """The stated error of the estimate of an operator's candidates on machines of a family, as that declares it."""
    own = family(machines)
    return own.estimate_errors.get(operator, own.others_error)
