"""What a report says about it alone."""

from typing import Any

from sim.app.report.figures import Figures
from sim.app.report.sections import Section
from sim.app.report.verdict import Sentence

ENERGY_WITHOUT = "everything"
STALL_TITLE = "What the adder did"
SECTIONS = (lambda report: Section("The adder", (("numbers a cycle", str(report.record.kernels[0].own)),)),)
LAYER_COLUMNS = ()
draw = None
source_section = None
causes = None


def details(figures: Figures) -> dict[str, Any]:
    """Its object in a report."""
    return {"width": figures.kernels[0].own, "counters": dict(figures.counters)}


def verdict(report: Any) -> list[Sentence]:
    """What limits it."""
    return [Sentence("The adder is busy.")]
