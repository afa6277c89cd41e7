"""What a report says about a Gemmini alone: its mapping's traffic by level, and words about what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import Figures
from sim.app.report.levels import Level, summed, table, traffic
from sim.app.report.sections import Section
from sim.app.report.text import percent, words
from sim.app.report.verdict import WORTH_A_WORD, Claim, Sentence, memory_beside, moves

if TYPE_CHECKING:
    from sim.app.report.report import Report

ENERGY_WITHOUT = "everything: no energies of this machine are published"
"""What the energy of a run leaves out."""

STALL_TITLE = "Where the cycles of the array and of both queues went"

CAUSES = {
    "load": (
        "larger tiles, which bring less again, or nearer operands (--l2 warm, memory_cache.latency, memory_cache.port)"
    ),
    "entry": "rows of results as long as the array, or more entries (reservation.executes)",
    "drain": "smaller last tiles, whose stores nothing hides",
}
"""What moves a cause of idle cycles of the array."""


@dataclass(frozen=True, slots=True)
class GemminiRun:
    """What only a run on a Gemmini has. levels: from the array outwards."""

    tiles: int
    levels: Sequence[Level]


def _runs(figures: Figures) -> list[GemminiRun]:
    return [kernel.own for kernel in figures.kernels]


def utilisation(figures: Figures) -> float:
    """Multiply-accumulates of the operator over those that the array could do in the time."""
    return figures.share_of_peak


def details(figures: Figures) -> dict[str, Any]:
    """The family's object in a report."""
    return {
        "tiles": sum(run.tiles for run in _runs(figures)),
        "utilisation": utilisation(figures),
        "traffic": traffic(_levels(figures)),
        "counts": dict(figures.counters),
        "speed_of_light": figures.speed_of_light(),
        "intensity": figures.intensity,
    }


def _levels(figures: Figures) -> list[Level]:
    """Traffic of all kernels by level."""
    return summed([run.levels for run in _runs(figures)])


def _mapping(report: Report) -> Section:
    """Utilisation and traffic by level, as mapping tools print them."""
    figures = report.figures
    tiles = sum(run.tiles for run in _runs(figures))
    title = f"Mapping: {tiles:,} tiles, the array is used to {percent(utilisation(figures))}"
    return table(title, _levels(figures), figures.flops / 2)


SECTIONS = (_mapping,)
LAYER_COLUMNS = (("tiles", lambda figures: f"{sum(run.tiles for run in _runs(figures)):,}"),)
draw = None
source_section = None
causes = None


FAR = (
    "Operands that the L2 holds before (--l2 warm), or a faster clock together with a nearer memory (clock.boost, "
    "memory_cache.latency, memory_cache.port)"
)
"""What moves a run whose operands come from behind the L2."""


def _remedy_of_waits(figures: Figures) -> tuple[str, tuple[Claim, ...]]:
    """What moves a run in which queues wait for each other: nearer operands, unless the L2 has them."""
    held = figures.counters.get("dram_read_bytes", 0) < figures.counters.get("l2_read_bytes", 0) / 10
    if held:
        return "Another mapping, or more commands and requests on their way,", ()
    return FAR, (moves("clock.boost", "memory_cache.latency", "memory_cache.port"),)


def verdict(report: Report) -> list[Sentence]:
    """What bounds a run, and what the array waits for most."""
    return [_bound(report.figures), *_losses(report.figures)]


def _bound(figures: Figures) -> Sentence:
    """The sentence about the limiting unit."""
    reached = figures.speed_of_light()
    match figures.bound:
        case "compute":
            memory, claims = memory_beside(reached.get("dram", 0.0))
            return Sentence(
                f"The array is busy for {percent(reached.get('array pipe', 0.0))} of the cycles. A larger array or a "
                f"faster clock would move it; {memory}",
                (moves("clock.boost"), *claims),
            )
        case "latency":
            best = max(reached, key=lambda name: reached[name])
            remedy, claims = _remedy_of_waits(figures)
            return Sentence(
                f"No unit is near its peak (the busiest, {words(best)}, reaches {percent(reached[best])}): queues wait "
                f"for each other. {remedy} would move it.",
                claims,
            )
        case level:
            return Sentence(
                f"The {words(level)} is busy: {percent(reached[level])} of its bandwidth. A wider one would move it."
            )


def _losses(figures: Figures) -> list[Sentence]:
    """A sentence about what the array waits for most."""
    array = figures.stalls.get("array", {})
    whole = sum(array.values())
    waits = {cause: count for cause, count in array.items() if cause in CAUSES}
    if not waits or not whole:
        return []
    cause = max(waits, key=lambda name: waits[name])
    if waits[cause] / whole < WORTH_A_WORD:
        return []
    names = {"load": "loads", "entry": "a place in the reservation station", "drain": "the last stores"}
    return [
        Sentence(
            f"The array waits for {names[cause]} in {percent(waits[cause] / whole)} of its cycles; it moves with "
            f"{CAUSES[cause]}."
        )
    ]
