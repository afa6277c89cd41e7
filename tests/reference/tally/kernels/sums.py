"""Its one schedule."""

from typing import Any

from workloads.registry import register


@register("sum", "tally", "auto")
def choose(op: Any, spec: Any, schedule: str = "auto") -> list[str]:
    """One way."""
    return ["serial"]


@register("sum", "tally", "serial")
def build(op: Any, spec: Any, config: Any) -> int:
    """Cycles: as many numbers as the adder is wide in each."""
    return int(-(-op.operand_bytes // (4 * spec.adder.width)))
