"""What a report says about one family of machines alone, as a run brings it along: a module `report` of the family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.app.report.figures import Figures
    from sim.app.report.report import Report
    from sim.app.report.sections import Section
    from sim.app.report.verdict import Sentence


class FamilyView(Protocol):
    """What such a module has."""

    @property
    def STALL_TITLE(self) -> str:
        """Heading of the stall stack."""

    @property
    def ENERGY_WITHOUT(self) -> str:
        """What the energy of a run leaves out."""

    @property
    def SECTIONS(self) -> Sequence[Callable[[Report], Section]]:
        """Makers of sections, after the memory chart."""

    @property
    def LAYER_COLUMNS(self) -> Sequence[tuple[str, Callable[[Figures], str]]]:
        """What the table of a network's layers has beside what all families have: name and cell."""

    @property
    def draw(self) -> Callable[[Report, Figure], None] | None:
        """Draws what only the family has below roofline and stalls; None where that is nothing."""

    @property
    def source_section(self) -> Callable[[Report], Section] | None:
        """Makes the table of the lines of a program's source; None where programs name none."""

    @property
    def causes(self) -> Callable[[Figures], dict[str, dict[str, int]]] | None:
        """What stands below the stall stack: why units were in one of its states, in cycles; None where nothing is."""

    def details(self, figures: Figures) -> dict[str, Any]:
        """The object that the schema names after the family; None values are left out."""

    def verdict(self, report: Report) -> list[Sentence]:
        """Sentences about what bounds a run and what else costs time, the most important one first."""
