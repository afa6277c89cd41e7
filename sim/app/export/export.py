"""Writes a model's operators, or one step of it, for another simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arch.errors import InputError
from arch.families import family
from arch.load import load_arch
from arch.near import hint
from sim.app.export import chakra
from sim.app.export.table import table
from sim.app.export.writers import WRITERS
from sim.app.families.request import Request
from sim.app.run import run
from sim.app.study.runner import Progress
from workloads.graphs.models import whole_model
from workloads.parse import parse

FORMS = (*WRITERS, "chakra")
"""What is written."""


def export(
    form: str, text: str, arch: str, folder: Path, *, set: Sequence[str] = (), schedule: str = "fused_graph",
    store: Path | None = None, workers: int | None = None, progress: Progress | None = None,
) -> list[Path]:  # fmt: skip
    """Writes the files of one of `FORMS` into a folder, and gives their paths.

    text: a model with keys, of tables those of `sim.app.export.table.TableRequest`, of traces those of the operator
    `llama`. schedule: of the step of a trace. store, workers, progress: as in `sweep`. InputError before anything runs.
    """
    if form not in FORMS:
        raise InputError(f"export {form}: must be one of {', '.join(FORMS)}{hint(form, FORMS)}")
    machine = load_arch(arch, set)
    if not family(machine.family).graph_forms:
        raise InputError(f"export --arch {machine.name}: runs no graph of a model as a whole; GPUs do, as h100-sxm")
    if form in WRITERS:
        made = table(text, arch, set=set, store=store, workers=workers, progress=progress)
        return WRITERS[form](made, folder)
    name, *keys = text.split()
    op = parse(whole_model(name, keys))
    record = run(Request(str(op), machine, schedule=schedule, clock="sustained"))
    graph = op.with_defaults(machine.default_dtype).graph(fused=schedule.startswith("fused"))  # type: ignore[attr-defined]
    return chakra.write(graph, list(record.operators), folder)
