"""How much a program may ask for: one limit of its length, held against an estimate before it runs and a count while
it does.

A step is a warp that starts, a trip of one of its loops (of `loop_while`, whose end nobody knows, a tenth of one) or 64
instructions of one op; of a dataflow section, a firing of a stage.
"""

from __future__ import annotations

import os

from arch.digits import whole_size
from arch.errors import InputError

VARIABLE = "TILEWAVE_STEPS"
"""Environment variable that allows more; processes that a study starts have it, too."""

STEPS = 100_000_000
"""What a program may take without it: some minutes of simulation."""


def steps() -> int:
    """Steps that a program may take."""
    text = os.environ.get(VARIABLE, "")
    found = whole_size(text) if text else STEPS
    if not found or found > 1 << 40:
        raise InputError(f"{VARIABLE}={text[:40]}: must be a whole number from 1 to 2**40, such as {STEPS}")
    return found


def too_long(where: str, number: int | None = None) -> InputError:
    """The error for a program of `number` steps; None: it was stopped at the limit."""
    most = steps()
    takes = f"takes at least {number} steps" if number is not None else f"has not ended after {most} steps"
    return InputError(
        f"{where}: {takes} (trips of loops of all warps, firings); the limit is {most}; "
        f"{VARIABLE}=N in the environment allows N"
    )


def check_steps(where: str, number: int) -> None:
    """Refuses what is known to take more steps than a program may."""
    if number > steps():
        raise too_long(where, number)
