"""What `tilewave archs` lists: the machines that ship by chip, with what each was validated on and how well."""

from __future__ import annotations

from typing import Any

from arch import list_archs, load_arch
from sim.app.report.render import Shown
from sim.app.report.sections import Section
from workloads.silicon.accuracy import read_accuracy

NOT_VALIDATED = "not validated"


class Machines(Shown):
    """All presets. Errors are mean absolute ones on rows on which nothing was calibrated (`docs/machines.md`)."""

    def __init__(self) -> None:
        self.specs = [load_arch(name) for name in list_archs()]
        self.accuracy = read_accuracy()

    def validated(self, machine: str) -> str:
        """Operators, errors and rows of a machine in one line."""
        return ", ".join(map(str, self.accuracy.get(machine, ()))) or NOT_VALIDATED

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
                    {
                        "op": entry.op,
                        "rows": entry.rows,
                        "mape_percent": entry.mape_percent,
                        "bias_percent": entry.bias_percent,
                        "date": entry.date,
                    }
                    for entry in self.accuracy.get(spec.name, ())
                ],
            }
            for spec in self.specs
        }
