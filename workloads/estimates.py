"""How far the estimates that rank candidates may be trusted, by family of machines and operator.

An estimate's error is what it says wrongly about two candidates of one problem: by how many per cent the estimate of
the fastest may lie above the best estimate. Each figure covers 95 % of random shapes and machines
(`scripts/lab/whatif_laws.py --choice`), where all candidates were simulated.
"""

from __future__ import annotations

from arch.families import family


def error_percent(machines: str, operator: str) -> int:
    """The stated error of the estimate of an operator's candidates on machines of a family, as that declares it."""
    own = family(machines)
    return own.estimate_errors.get(operator, own.others_error)
