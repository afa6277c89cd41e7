"""What a report says about a TPU alone: the matrix unit's counters as published, and words about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import Figures
from sim.app.report.levels import Level, table, traffic
from sim.app.report.sections import Section
from sim.app.report.text import percent, time_text, words
from sim.app.report.verdict import (
    ALONE,
    MOVES,
    SURE,
    WORTH_A_WORD,
    Claim,
    Sentence,
    advised,
    at_most,
    bandwidth_claims,
    memory_beside,
    moves,
    stays,
)

if TYPE_CHECKING:
    from sim.app.report.report import Report

ENERGY_WITHOUT = "the host and what it computes, activation and vector unit but for their share of static power"
"""What the energy of a run leaves out."""

STALL_TITLE = "Where each unit's cycles went"

WEIGHT_CAUSES = ("weight_stall", "weight_shift")

CAUSES = {
    "weight_stall": "more bandwidth of weight memory, or more rows a weight (a larger batch)",
    "weight_shift": "more rows a weight: a shift hides behind a multiply that is at least as long",
    "drain": "longer layers: sums leave the array at the end of each",
    "activation": (
        "smaller output tiles, whose results leave while others are made, or a faster and nearer link to the host "
        "(pcie.bandwidth, pcie.latency)"
    ),
    "raw": "fewer layers that depend on each other, or a shorter way through the activation unit",
    "input": "a faster and nearer link to the host, or input that arrives while something else runs",
    "output": "a faster and nearer link to the host, or narrower results",
    "host": "less work on the host, a faster one (host.ops, host.bandwidth), or a vector unit",
    "accumulators": "a faster activation unit, or output tiles of half the accumulators",
    "unified_buffer": "wider ports",
}
"""What moves a cause of idle cycles of the matrix unit."""


@dataclass(frozen=True, slots=True)
class TpuRun:
    """What only a TPU's run has. array_cycles: of the array with neighbours that never make it wait; useful and active
    cycles: of the cells that hold useful weights, and of all; raw and input stalls may overlap other counters."""

    array_cycles: int
    useful_cycles: int
    active_cycles: int
    raw_stall_cycles: int
    input_stall_cycles: int
    host_cycles: int = 0
    """For which the host works or turns round, while the chip waits: no part of the published counters."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of an application whose layer sizes are not published: least and largest of each counter over all sizes that fit
    what is; empty where they were not run."""
    loops: Sequence[tuple[str, str, str]] = ()
    """Of its mapping, the outermost first: memory, what it holds, loop; empty of a program that has none."""
    levels: Sequence[Level] = ()
    """Traffic by memory, from the array outwards."""


def counters(figures: Figures) -> dict[str, float]:
    """Shares of the matrix units' cycles as published, those left out in which the chip waits for what the host does:
    the first four sum to 1, useful and unused to active."""
    matrix = figures.stalls.get("matrix", {})
    runs: list[TpuRun] = [k.own for k in figures.kernels]
    units = figures.machine.instances.get("matrix", 1)
    waits = sum(matrix.get(cause, 0) for cause in ("input", "output", "host"))
    whole = sum(matrix.values()) - min(waits, units * sum(run.host_cycles for run in runs)) or 1
    active = matrix.get("active", 0)
    cells = sum(run.active_cycles for run in runs) or 1
    useful = active * sum(run.useful_cycles for run in runs) / cells
    weights = {cause: matrix.get(cause, 0) / whole for cause in WEIGHT_CAUSES}
    return {
        "array_active": active / whole,
        **weights,
        "non_matrix": (whole - active) / whole - sum(weights.values()),
        "useful_macs": useful / whole,
        "unused_macs": (active - useful) / whole,
        "raw_stalls": sum(run.raw_stall_cycles for run in runs) / whole,
        "input_stalls": sum(run.input_stall_cycles for run in runs) / whole,
    }


def details(figures: Figures) -> dict[str, Any]:
    """The family's object in a report."""
    return {
        "array_cycles": sum(k.own.array_cycles for k in figures.kernels),
        "counters": counters(figures),
        **_ranges(figures),
        **_mapped(figures),
        "counts": dict(figures.counters),
        "speed_of_light": figures.speed_of_light(),
        "intensity": figures.intensity,
        "macs_per_weight_byte": figures.intensity / 2,
    }


def _ranges(figures: Figures) -> dict[str, Any]:
    """Least and largest of each counter, where they are known of the one program that ran."""
    runs: list[TpuRun] = [k.own for k in figures.kernels]
    found = runs[0].ranges if len(runs) == 1 else {}
    return {"counter_ranges": {name: list(ends) for name, ends in found.items()}} if found else {}


def _mapped(figures: Figures) -> dict[str, Any]:
    """The mapping of the one program that ran, where it has one."""
    runs: list[TpuRun] = [k.own for k in figures.kernels]
    if len(runs) != 1 or not runs[0].loops:
        return {}
    loops = [{"memory": memory, "holds": holds, "loop": loop} for memory, holds, loop in runs[0].loops]
    return {"mapping": {"utilisation": figures.share_of_peak, "loops": loops, "traffic": traffic(runs[0].levels)}}


def _loops(report: Report) -> Section:
    """The loops of the mapping, the outermost first."""
    runs: list[TpuRun] = [k.own for k in report.figures.kernels]
    rows = runs[0].loops if len(runs) == 1 else ()
    return Section("Loops of the mapping, the outermost first", tuple(rows), ("memory", "holds", "loop"))


def _traffic(report: Report) -> Section:
    """Utilisation and traffic by level, as mapping tools print them."""
    figures = report.figures
    runs: list[TpuRun] = [k.own for k in figures.kernels]
    levels = runs[0].levels if len(runs) == 1 and runs[0].loops else ()
    title = f"Traffic of the mapping, the array is used to {percent(figures.share_of_peak)}"
    return table(title, levels, figures.flops / 2)


def _matrix_unit(report: Report) -> Section:
    figures = report.figures
    ranges = _ranges(figures).get("counter_ranges", {})
    rows = [(words(name), percent(share), _between(ranges.get(name))) for name, share in counters(figures).items()]
    alone = sum(k.own.array_cycles for k in figures.kernels)
    rows.append(("array alone", f"{alone:,} cycles", ""))
    if not ranges:
        return Section("Counters of the matrix unit", tuple(row[:2] for row in rows))
    return Section("Counters of the matrix unit", tuple(rows), ("", "these sizes", "all sizes that fit"))


def _between(ends: list[float] | None) -> str:
    """A range in words."""
    return f"{percent(ends[0])} to {percent(ends[1])}" if ends else ""


SECTIONS = (_matrix_unit, _loops, _traffic)
LAYER_COLUMNS = (("array alone", lambda figures: f"{sum(k.own.array_cycles for k in figures.kernels):,}"),)
draw = None
source_section = None
causes = None


OWN_MEMORY = {
    "activation": "smaller output tiles, whose results leave while others are made, or nearer memory (dram.latency)",
    "input": "more memory bandwidth, or a problem with more work for each value that comes in",
    "output": "more memory bandwidth, or narrower results",
}
"""What moves causes on a machine whose operands lie in its own memory."""

_OF_UNIT: Mapping[str, tuple[str, tuple[Claim, ...]]] = {
    "host": (
        "A faster host (host.ops, host.bandwidth, host.turnaround) or a vector unit would move it",
        (moves("host.ops", "host.bandwidth", "host.turnaround"),),
    ),
    "pcie": (
        "A faster and nearer link to the host (pcie.bandwidth, pcie.latency), or work that overlaps with its "
        "transfers, would move it",
        (moves("pcie.bandwidth", "pcie.latency"),),
    ),
}
"""What moves a run whose busiest unit this is."""


def verdict(report: Report) -> list[Sentence]:
    """What bounds a run, and what the matrix unit waits for most."""
    return [_bound(report.figures), *_losses(report.figures)]


def _bound(figures: Figures) -> Sentence:
    """The sentence about the limiting unit."""
    reached = figures.speed_of_light()
    match figures.bound:
        case "overhead":
            share = percent(figures.overhead_ps / figures.time_ps)
            return Sentence(
                f"The host takes {time_text(figures.overhead_ps)} ({share} of the time); a larger batch would move it."
            )
        case "compute":
            return _array(figures, reached)
        case "latency":
            return _waits(figures, reached)
        case "host":
            still = (stays("clock.boost"),) if reached["host"] >= ALONE else ()
            return Sentence(
                f"The host is busy: it computes for {percent(reached['host'])} of the time. A faster host (host.ops, "
                "host.bandwidth, host.turnaround) or a vector unit would move it"
                f"{'; a faster chip would not' if still else ''}.",
                (moves("host.ops", "host.bandwidth", "host.turnaround"), *still),
            )
        case "dram":
            weights = "host_read" in figures.stalls
            fewer = (
                "more rows a weight (a larger batch), narrower weights"
                if weights
                else "fewer bytes (a narrower format, more work for each value that comes in)"
            )
            what = f"{'Weight' if weights else 'External'} memory is busy: {percent(reached['dram'])} of its bandwidth."
            sure = figures.running(reached["dram"]) >= SURE
            return advised(what, bandwidth_claims("dram.bandwidth", reached["dram"]), [fewer], sure=sure)
        case "pcie":
            what = f"The link to the host is busy: {percent(reached['pcie'])} of one direction."
            claims = bandwidth_claims("pcie.bandwidth", reached["pcie"])
            return advised(what, claims, ["narrower results", "more layers between input and output"])
        case level:
            return Sentence(
                f"The {words(level)} is busy: {percent(reached[level])} of its bandwidth. A wider one would move it."
            )


def _array(figures: Figures, reached: Mapping[str, float]) -> Sentence:
    """The array bounds a run: it is busy, or nothing else takes time."""
    busy = max(reached.get("matrix pipe", 0.0), reached.get("activation pipe", 0.0))
    clock = moves("clock.boost")
    if figures.machine.free:
        return Sentence(
            f"The array bounds it: it multiplies for {percent(busy)} of the cycles, and fills, drains and changes "
            "weights in the others. A faster clock or a larger array would move it; no memory and no link would.",
            (clock, stays("dram.bandwidth"), stays("pcie.bandwidth")),
        )
    memory, claims = memory_beside(reached.get("dram", 0.0))
    return Sentence(
        f"The array is busy for {percent(busy)} of the cycles. More clock or a larger array would move it; {memory}",
        (clock, *claims),
    )


def _waits(figures: Figures, reached: Mapping[str, float]) -> Sentence:
    """No unit is busy: they wait for each other."""
    best = max(reached, key=lambda name: reached[name])
    own = "host_read" not in figures.stalls
    nearer = ["dram.latency"]
    if max(reached.values()) >= MOVES:
        nearer = ["clock.boost", "dram.bandwidth", "dram.latency"]
    near = f"{'a faster clock with faster and ' if len(nearer) > 1 else ''}nearer memory ({', '.join(nearer)})"
    rows = f"More rows at a time, or {near}," if own else "More rows a weight"
    # What the link carries takes latency, too, though it is not busy then.
    through = "pcie" if best != "host" and figures.transfer_ps >= MOVES * figures.time_ps else best
    remedy, claims = _OF_UNIT.get(through, (f"{rows} would move it", (moves(*nearer),) if own else ()))
    return Sentence(
        f"No unit is near its peak (the busiest, {words(best)}, reaches {percent(reached[best])}): units wait for each "
        f"other. {remedy}.",
        claims,
    )


def _losses(figures: Figures) -> list[Sentence]:
    """A sentence about what the matrix unit waits for most."""
    matrix = figures.stalls.get("matrix", {})
    whole = sum(matrix.values())
    waits = {cause: count for cause, count in matrix.items() if cause in CAUSES}
    if not waits:
        return []
    reached = figures.speed_of_light()
    remedies = CAUSES if "host_read" in figures.stalls else CAUSES | OWN_MEMORY
    # Where a transfer out and one in follow each other, both count.
    both = sum(figures.counters.get(f"pcie_{side}_bytes", 0) for side in ("read", "write"))
    moved = both / (figures.machine.bandwidths["pcie"] * figures.device_ps * 1e-12)
    found = at_most({"pcie": moved}) if figures.bound in ("latency", "host") and moved <= 1 else []
    cause = max(waits, key=lambda name: waits[name])
    share = waits[cause] / whole
    if share < WORTH_A_WORD or not reached.get("matrix pipe"):
        return found
    if cause in ("input", "output") and reached.get("host", 0.0) > reached.get("pcie", 0.0):
        # The transfer itself waits for what the host computes.
        waited = (
            f"The matrix unit waits for the host in {percent(share)} of its cycles; it moves with {CAUSES['host']}."
        )
    else:
        waited = (
            f"The matrix unit spends {percent(share)} of its cycles in {words(cause)}; it moves with {remedies[cause]}."
        )
    return [*found, Sentence(waited)]
