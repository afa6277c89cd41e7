"""What `tilewave archs` lists: the machines that ship by chip, with what each was validated on and how well."""

from __future__ import annotations

from typing import Any

from arch import list_archs, load_arch
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from workloads.accuracy.results import Errors, Result, read_results

NOT_VALIDATED = "not validated"
MOST = 2
"""Operators whose errors the list of machines names."""

ERRORS = "Mean error of rows on which nothing was calibrated (of others no row was measured)"


class Machines(Shown):
    """All presets. Errors are mean absolute ones on rows on which nothing was calibrated (`docs/machines.md`)."""

    def __init__(self, matching: str = "") -> None:
        """matching: a part of the name, title, chip or architecture of those that are meant, in any case."""
        specs = [load_arch(name) for name in list_archs()]
        self.specs = [spec for spec in specs if matching.lower() in _words(spec)]
        by_machine: dict[str, dict[str, list[Result]]] = {}
        for result in read_results():
            if result.split != "fitted" and result.ran:
                by_machine.setdefault(result.machine, {}).setdefault(result.op, []).append(result)
        self.accuracy = {
            machine: {op: errors for op, found in _longest(ops) if (errors := Errors.of(found))}
            for machine, ops in by_machine.items()
        }

    def validated(self, machine: str, most: int | None = None) -> str:
        """Operators, errors and rows of a machine in one line. most: operators that it names; None for all."""
        found = list(self.accuracy.get(machine, {}).items())
        words = [f"{op} {e.mean:.1f} % ({_rows(e.rows)})" for op, e in found[:most]]
        more = [f"{len(found) - len(words)} more operators"] if len(found) > len(words) else []
        return ", ".join([*words, *more]) or NOT_VALIDATED

    def sections(self) -> list[Section]:
        """A section a chip, a line a machine."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for spec in sorted(self.specs, key=_newest):
            found.setdefault(spec.chip, []).append((spec.name, spec.summary))
        chips = [Section(chip, tuple(rows)) for chip, rows in found.items()]
        names = [spec.name for spec in sorted(self.specs, key=_newest) if spec.name in self.accuracy]
        errors = tuple((name, self.validated(name, MOST)) for name in names)
        return [*chips, Section(ERRORS, errors)] if errors else chips

    def to_dict(self) -> dict[str, Any]:
        """By machine: its chip, its main figures, its errors by operator."""
        return {
            spec.name: {
                "chip": spec.chip,
                "summary": spec.summary,
                "validated": [
                    {"op": op, "rows": e.rows, "mape_percent": round(e.mean, 1), "bias_percent": round(e.bias, 1)}
                    for op, e in self.accuracy.get(spec.name, {}).items()
                ],
            }
            for spec in self.specs
        }


def _words(spec: Any) -> str:
    """What people call a machine."""
    return f"{spec.name} {spec.title} {spec.chip} {getattr(spec, 'architecture', '')}".lower()


def _newest(spec: Any) -> tuple[Any, ...]:
    """GPUs by their compute capability, the newest first; then other families."""
    capability = float(getattr(spec, "compute_capability", 0.0))
    return (-capability, spec.family, spec.chip, spec.name)


def _longest(ops: dict[str, list[Result]]) -> list[tuple[str, list[Result]]]:
    """Operators with most rows first."""
    return sorted(ops.items(), key=lambda entry: (-len(entry[1]), entry[0]))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
