"""What a report says about a dataflow machine alone: placement, stages with their reasons, buffers, and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.app.report.figures import Figures, shares, total
from sim.app.report.record import KernelRecord, RduSection, RduStage
from sim.app.report.sections import Section
from sim.app.report.text import bytes_text, ghz_text, percent, time_text, words
from sim.app.report.verdict import (
    SURE,
    WORTH_A_WORD,
    Sentence,
    advised,
    bandwidth_claims,
    faster_chip,
    memory_beside,
    moves,
    stays,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.app.report.report import Report

ENERGY_WITHOUT = "the host, copies over PCIe, links between sockets but for collectives"
"""What the energy of a run leaves out."""

STALL_TITLE = "Stall stack (pcus: share of PCU-cycles; memory stages: share of their cycles)"

REASONS = ("busy", "no_input", "no_room", "memory", "network", "reconfiguration", "idle")
"""Closed list of what a stage's cycles are spent on."""

REMEDIES = {
    "no_input": "a faster producer (more PCUs for the slowest stage) or smaller tiles, which fill the pipeline sooner",
    "no_room": "a faster consumer, which is more bandwidth where that is a store",
    "memory": "fewer bytes (fusion, larger tiles) or more bandwidth",
    "network": "another division over row_par and col_par, or wider links",
    "reconfiguration": "fewer launches: fusion into one section, or kernel looping",
}
"""What would move each reason; an idle stage has nothing to do, so nothing is lost."""

_PORTS = (
    "more memory units (pmu.count), with pmu.transpose where it reads across rows, and with wider ports "
    "(pmu.bandwidth) where it reads along them: the ports of memory units hold it, not memory outside"
)
"""What moves a stage that waits for memory while none outside has moved enough to explain it."""


def details(figures: Figures) -> dict[str, Any]:
    """What only a dataflow machine has; placement and stages are those of the longest launch."""
    kernel = _longest(figures)
    section: RduSection = kernel.own
    return {
        "section": section.name,
        "launches": len(figures.kernels),
        "placement": {
            "grid": list(section.grid),
            "pcus": section.pcus,
            "pcu_count": section.pcu_count,
            "pmus": section.pmus,
            "pmu_count": section.pmu_count,
            "buffer_bytes": section.sram_bytes,
            "busiest_link": max((share for share, _ in section.networks.values()), default=0),
            "link_wait_cycles": sum(waits for _, waits in section.networks.values()),
            "networks": {
                name: {"busiest_link": share, "link_wait_cycles": waits}
                for name, (share, waits) in section.networks.items()
            },
            **(
                {}
                if section.tiles is None
                else {
                    "tiles": {
                        "count": section.tiles.count,
                        "used": section.tiles.used,
                        "border_bytes": section.tiles.border_bytes,
                        "busiest_border": section.tiles.busiest_border,
                    }
                }
            ),
        },
        "stages": [
            {
                "name": stage.name,
                "kind": stage.kind,
                "pcus": stage.pcus,
                "firings": stage.firings,
                "interval_cycles": stage.interval_cycles,
                "shares": shares(stage.cycles),
            }
            for stage in section.stages
        ],
        "buffers": [
            {"name": b.name, "depth": b.depth, "token_bytes": b.token_bytes, "pmus": b.pmus} for b in section.buffers
        ],
        "speed_of_light": figures.speed_of_light(),
        "intensity": figures.intensity,
        "launch_us": {name: ps / 1e6 for name, ps in total(k.launch_ps for k in figures.kernels).items()},
        "counters": dict(figures.counters),
    }


def _longest(figures: Figures) -> KernelRecord:
    return max(figures.kernels, key=lambda k: k.time_ps)


def _placement(report: Report) -> Section:
    section: RduSection = _longest(report.figures).own
    tiles = section.tiles
    return Section(
        f"Placement of {section.name}",
        (
            ("PCUs", f"{section.pcus} of {section.pcu_count} on a grid of {section.grid[0]} x {section.grid[1]}"),
            ("PMUs", f"{section.pmus} of {section.pmu_count}, {bytes_text(section.sram_bytes)} of buffers"),
            *(
                ()
                if tiles is None
                else (
                    (
                        "tiles",
                        f"{tiles.used} of {tiles.count}; {bytes_text(tiles.border_bytes)} over their borders, whose "
                        f"busiest link has {percent(tiles.busiest_border)} of its bandwidth",
                    ),
                )
            ),
            *(
                (f"busiest {name} link", f"{percent(share)} of its bandwidth, {waits:,} cycles of waits")
                for name, (share, waits) in section.networks.items()
            ),
        ),
    )


def _prefetch(report: Report) -> Section:
    """What came from DDR beside running sections, and how much of its time they hid."""
    counters = report.figures.counters
    copied_ps = counters.get("prefetch_ps", 0)
    if not copied_ps:
        return Section("Prefetch from DDR", ())
    waited_ps = _waited_ps(report.figures)
    hidden_ps = max(0, copied_ps - waited_ps)
    return Section(
        "Prefetch from DDR",
        (
            ("copied to HBM", f"{bytes_text(counters['prefetch_bytes'])} in {time_text(copied_ps)}"),
            ("hidden by what ran", f"{time_text(hidden_ps)}, {percent(hidden_ps / copied_ps)}"),
            ("waited for", f"{time_text(waited_ps)}, {percent(waited_ps / report.figures.time_ps)} of all time"),
        ),
    )


def _stages(report: Report) -> Section:
    section: RduSection = _longest(report.figures).own
    rows = tuple(
        (
            stage.name,
            str(stage.pcus) if stage.pcus else words(stage.kind),
            f"{stage.firings:,}",
            *(percent(stage.cycles.get(reason, 0) / max(sum(stage.cycles.values()), 1)) for reason in REASONS),
        )
        for stage in section.stages
    )
    return Section("Stages", rows, ("stage", "PCUs", "firings", *(words(r) for r in REASONS)))


SECTIONS = (_placement, _stages, _prefetch)
source_section = None
causes = None
LAYER_COLUMNS = ()


def _waited_ps(figures: Figures) -> int:
    """Time in which launches waited for copies from DDR."""
    return total(k.launch_ps for k in figures.kernels).get("prefetch", 0)


def _copies(figures: Figures) -> Sentence:
    rate = figures.machine.bandwidths["ddr"] * 1e-12
    waited_ps = _waited_ps(figures)
    return Sentence(
        f"Copies from DDR to HBM bound it: {percent(figures.speed_of_light()['ddr'])} of {rate:.2f} TB/s, and launches "
        f"wait for them {time_text(waited_ps)} ({percent(waited_ps / figures.time_ps)} of the time). More sockets, "
        "whose HBM holds more, larger batches or more DDR bandwidth would move it.",
        (moves("ddr.bandwidth"),),
    )


def verdict(report: Report) -> list[Sentence]:
    """What bounds a run, and what the slowest stage waits for."""
    return [_bound(report.figures), *_losses(report.figures)]


def _bound(figures: Figures) -> Sentence:
    """The sentence about the limiting unit."""
    reached = figures.speed_of_light()
    match figures.bound:
        case "ddr" if figures.counters.get("prefetch_ps"):
            return _copies(figures)
        case "overhead":
            if 2 * _waited_ps(figures) > figures.overhead_ps:
                return _copies(figures)
            share = percent(figures.overhead_ps / figures.time_ps)
            return Sentence(
                f"Launches take {time_text(figures.overhead_ps)} ({share} of the time): fusing sections, kernel "
                f"looping or hardware orchestration would move it; {faster_chip(figures)}"
            )
        case "hbm" | "ddr" as level:
            rate = figures.machine.bandwidths[level] * 1e-12
            what = f"External memory is busy: {percent(reached[level])} of {rate:.2f} TB/s."
            claims = bandwidth_claims(f"{level}.bandwidth", reached[level])
            sure = figures.running(reached[level]) >= SURE
            return advised(what, claims, ["fewer bytes (fusion, larger tiles)"], sure=sure)
        case "compute":
            busy = max(reached["compute"], reached.get("pcu pipe", 0.0))
            level = max(("hbm", "ddr"), key=lambda name: reached.get(name, 0.0))
            memory, claims = memory_beside(reached.get(level, 0.0), f"{level}.bandwidth")
            return Sentence(
                f"Arithmetic is busy: {percent(busy)} of the PCUs' cycles at {ghz_text(figures.clock_hz)}. More clock "
                f"or more PCUs would move it; {memory}",
                (moves("clock.boost"), *claims),
            )
    best = max(reached, key=lambda name: reached[name])
    if not _longest(figures).own.stages:
        share = percent(reached.get("link", 0.0))
        return Sentence(f"Links bound it: {share} of their bandwidth; the rest is latency, step by step.")
    slowest = _slowest(_longest(figures).own)
    busy = slowest.cycles["busy"]
    waits = max((count for reason, count in slowest.cycles.items() if reason in REMEDIES), default=0)
    works = busy > waits
    return Sentence(
        f"No unit is near its peak (the busiest, {best}, reaches {percent(reached[best])}). The slowest stage is "
        f"{slowest.name}, busy {percent(busy / max(sum(slowest.cycles.values()), 1))} of the time"
        + (
            ": more PCUs and PMUs for it would move it."
            if works
            else ", and waits for longer: more PCUs would not move it."
        ),
        () if works else (stays("pcu.count"),),
    )


def _slowest(section: RduSection) -> RduStage:
    return max(section.stages, key=lambda stage: stage.cycles.get("busy", 0))


def _outside(figures: Figures, share: float) -> bool:
    """Whether memory outside was busy for at least half as long, launches apart, as a stage waited for memory."""
    reached = figures.speed_of_light()
    running = max(figures.time_ps - figures.overhead_ps, 1)
    return max(reached.get(m, 0.0) for m in ("hbm", "ddr")) * figures.time_ps >= 0.5 * share * running


def _losses(figures: Figures) -> list[Sentence]:
    """Sentences about what else costs time."""
    section: RduSection = _longest(figures).own
    if not section.stages:
        return []
    slowest = _slowest(section)
    whole = max(sum(slowest.cycles.values()), 1)
    lost = {reason: count / whole for reason, count in slowest.cycles.items() if reason in REMEDIES}
    reason = max(lost, key=lambda name: lost[name])
    found = []
    if lost[reason] >= WORTH_A_WORD:
        remedy = _PORTS if reason == "memory" and not _outside(figures, lost[reason]) else REMEDIES[reason]
        found.append(
            Sentence(
                f"The busiest stage, {slowest.name}, spends {percent(lost[reason])} of its cycles in {words(reason)}; "
                f"it moves with {remedy}."
            )
        )
    unused = 1 - section.pcus / section.pcu_count
    if figures.bound == "compute" and unused >= WORTH_A_WORD:
        found.append(Sentence(f"{percent(unused)} of the PCUs hold no stage."))
    return found


def draw(report: Report, figure: Figure) -> None:
    """The picture of a run: the pipeline on the grid, and when its stages fired."""
    from sim.app.families.rdu.plots import placement, timeline

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    section: RduSection = _longest(report.figures).own
    placement(section, left)
    timeline(section, right)
