"""What `tilewave archs` lists: the machines that ship by chip, with what each was validated on and how well."""

from __future__ import annotations

from typing import Any

from arch import list_archs, load_arch
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from workloads.accuracy.results import Errors, Result, read_results

NOT_VALIDATED = "not validated"


class Machines(Shown):
    """All presets. Errors are mean absolute ones on rows on which nothing was calibrated (`docs/machines.md`)."""

    def __init__(self) -> None:
        self.specs = [load_arch(name) for name in list_archs()]
        by_machine: dict[str, dict[str, list[Result]]] = {}
        for result in read_results():
            if result.split != "fitted" and result.ran:
                by_machine.setdefault(result.machine, {}).setdefault(result.op, []).append(result)
        self.accuracy = {
            machine: {op: errors for op, found in _longest(ops) if (errors := Errors.of(found))}
            for machine, ops in by_machine.items()
        }

    def validated(self, machine: str) -> str:
        """Operators, errors and rows of a machine in one line."""
        found = self.accuracy.get(machine, {})
        return ", ".join(f"{op} {e.mean:.1f} % ({_rows(e.rows)})" for op, e in found.items()) or NOT_VALIDATED

    def sections(self) -> list[Section]:
        """A section a chip, a line a machine."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for spec in sorted(self.specs, key=lambda spec: (spec.family, spec.chip, spec.name)):
            found.setdefault(spec.chip, []).append((spec.name, spec.summary, self.validated(spec.name)))
        header = ("machine", "figures", "mean error on held rows")
        return [Section(chip, tuple(rows), header) for chip, rows in found.items()]

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


def _longest(ops: dict[str, list[Result]]) -> list[tuple[str, list[Result]]]:
    """Operators with most rows first."""
    return sorted(ops.items(), key=lambda entry: (-len(entry[1]), entry[0]))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
