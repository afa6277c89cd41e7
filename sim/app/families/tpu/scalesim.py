"""SCALE-Sim's report files of a run on a systolic array, for tools that read them.

Cycles are printed as SCALE-Sim does: the number of the last one, counted from 0. Nothing is fetched before cycle 0, so
that both columns of total cycles are the same; stalls are what a layer takes beyond the array alone. Words are bytes:
what streams, tiles of weights with their padding, and sums as they leave the array; outside the chip what comes from
the host, from weight memory, and what goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arch.errors import InputError
from sim.app.families.tpu import report as view
from sim.app.report.figures import Figures
from sim.app.report.report import Report

COMPUTE = (
    *("LayerID", "Total Cycles (incl. prefetch)", "Total Cycles", "Stall Cycles"),
    *("Overall Util %", "Mapping Efficiency %", "Compute Util %"),
)
BANDWIDTH = (
    "LayerID",
    *(f"Avg {operand} {level} BW" for level in ("SRAM", "DRAM") for operand in ("IFMAP", "FILTER", "OFMAP")),
)

_SUM_BYTES = 4


def report_files(report: Report) -> Mapping[str, str]:
    """Contents by file name. InputError for a run that has no array."""
    run = report.record
    if run.machine.view is not view:
        raise InputError(f"scalesim-reports: {run.machine.name} is no systolic array; tpu-v1 is one")
    layers = [own for _, own in Figures.of_layers(run)] or [report.figures]
    compute = [(str(i), *_compute(own)) for i, own in enumerate(layers)]
    bandwidth = [(str(i), *_bandwidth(own)) for i, own in enumerate(layers)]
    return {"COMPUTE_REPORT.csv": _text(COMPUTE, compute), "BANDWIDTH_REPORT.csv": _text(BANDWIDTH, bandwidth)}


def _text(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Rows with the comma at their ends that SCALE-Sim writes."""
    return "".join(f"{', '.join(row)},\n" for row in (header, *rows))


def _compute(own: Figures) -> Iterator[str]:
    array = own.machine.spec["array"]
    cells = array["rows"] * array["columns"]
    macs, total = own.flops // 2, own.cycles - 1
    alone = sum(k.own.array_cycles for k in own.kernels)
    active = sum(k.own.active_cycles for k in own.kernels)
    # SCALE-Sim's compute utilisation counts the columns' skew of a fold twice, but where outputs stay.
    folds = 0 if array["dataflow"] == "os" else own.counters["dram_read_bytes"] // cells
    yield from (str(total), str(total), str(own.cycles - alone))
    yield f"{100 * macs / (total * cells):.6f}"
    yield f"{100 * macs / (active * cells):.6f}"
    yield f"{100 * macs / ((alone + folds * (array['columns'] - 1)) * cells):.6f}"


def _bandwidth(own: Figures) -> Iterator[str]:
    counts, cycles = own.counters, own.cycles - 1
    results = counts["pcie_write_bytes"]
    weights = counts["dram_read_bytes"]
    on_chip = (
        counts["unified_buffer_read_bytes"] - results,
        weights,
        counts["accumulators_write_bytes"] // _SUM_BYTES,
    )
    for count in (*on_chip, counts["pcie_read_bytes"], weights, results):
        yield f"{count / cycles:.6f}"
