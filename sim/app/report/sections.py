"""A report as sections of table rows, in the order in which Nsight Compute taught people to read, then in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.app.report.asked import Asked
from sim.app.report.figures import Figures, hit_rates, level_bytes, shares, total
from sim.app.report.profile import classes, profile, whole
from sim.app.report.record import RunRecord
from sim.app.report.text import bytes_text, ghz_text, ops_text, percent, time_text, words
from sim.app.report.verdict import sentences

if TYPE_CHECKING:
    from sim.app.report.report import Report

BAR_WIDTH = 30
SMALLEST_ROOF = 0.01
"""A roof of which a run reaches less is not listed."""

SMALLEST_STALL = 0.005
"""Stall reasons below this share are summed up as `other`."""


_HELD = {
    "power": "held down by the board's power limit",
    "tensor": "which it leaves while tensor cores work",
    "locked": "locked",
}
"""Why a clock stayed below boost, as `KernelRecord` names it, in words."""

_HALF_PAGE = 76
"""Letters beside each other in a column of a page."""
_CELL_GAP = 2

_NUMBER = re.compile(r"[+-]?\d|-?$")


@dataclass(frozen=True, slots=True)
class Meter:
    """A cell that shows a share of 0 to 1; as text `BAR_WIDTH` characters. state: whose colour it has, if any."""

    share: float
    state: str = ""

    def __str__(self) -> str:
        filled = round(min(max(self.share, 0.0), 1.0) * BAR_WIDTH)
        return "#" * filled + "." * (BAR_WIDTH - filled)


Cell = str | Meter


@dataclass(frozen=True, slots=True)
class Section:
    """One titled table: `rows` of equally many cells; `header` may be empty. Rows of one cell are sentences."""

    title: str
    rows: tuple[tuple[Cell, ...], ...]
    header: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The rows of a section without columns; empty for a table."""
        return [] if self.header or any(len(row) != 1 for row in self.rows) else [str(row[0]) for row in self.rows]

    @property
    def wide(self) -> bool:
        """Whether its cells need more room than half a page has."""
        lines = [self.header, *self.rows] if self.header else list(self.rows)
        widths = (max(len(str(cell)) + _CELL_GAP for cell in column) for column in zip(*lines, strict=True))
        return sum(widths) > _HALF_PAGE

    @property
    def numeric(self) -> tuple[bool, ...]:
        """By column, whether it holds numbers, which stand at its right end. Names and their values do not."""
        if not self.header and all(len(row) == 2 for row in self.rows):
            return (False, False)
        columns = zip(*self.rows, strict=True)
        return tuple(all(isinstance(c, str) and bool(_NUMBER.match(c)) for c in column) for column in columns)


def sections_of(report: Report) -> list[Section]:
    """All sections of a report; those about which nothing was counted are left out."""
    makers: tuple[Callable[[Report], Section], ...] = (
        _headline,
        verdict,
        _speed_of_light,
        _roofline,
        _stalls,
        _memory,
        *report.record.machine.view.SECTIONS,
        _layers,
        _clock,
        _time_parts,
        _profile,
        _classes,
        _kernels,
        _candidates,
        _library,
        _origin,
        _trust,
    )
    return [section for section in (make(report) for make in makers) if section.rows]


def _count_text(value: float) -> str:
    """`0.139`, `78.4` or `1,024`."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _headline(report: Report) -> Section:
    run, figures, asked = report.record, report.figures, report.record.asked
    rows = [
        ("time", f"{time_text(figures.time_ps)} ({run.scope})"),
        ("cycles", f"{figures.cycles:,} at {ghz_text(figures.clock_hz)}"),
        *([("achieved", achieved)] if (achieved := _achieved(figures, run.dtype)) else []),
        ("schedule", run.schedule if run.schedule == asked.schedule_text else f"{run.schedule} ({_wish(asked)})"),
    ]
    if run.left_out is not None:
        rows.append(("left out", left_out_text(run.left_out.to_dict(run.macs, run.operand_bytes))))
    if run.streamed is not None:
        rows.append(("streamed", streamed_text(run.streamed.to_dict(run.time_ps))))
    if asked.conditions:
        rows.append(("conditions", ", ".join(filter(None, (_condition(*pair) for pair in asked.conditions.items())))))
    if run.check is not None:
        outcome, error = "passed" if run.check.passed else "FAILED", run.check.max_rel_error
        what = "the rules of the schedule alone" if error is None else f"largest relative error {error:.2e}"
        rows.append(("check", f"{outcome}, {what}"))
    return Section(run.title, tuple(rows))


def left_out_text(found: Mapping[str, Any]) -> str:
    """What share of a workload takes no time, of `left_out` by schema.json: `0.0 % of the multiply-adds, 31.2 % of the
    bytes: 65 operators in no time`."""
    unsized = f", {found['unsized']} of unknown size" if found["unsized"] else ""
    count = sum(found["operators"].values())
    macs, moved = percent(found["mac_share"]), percent(found["byte_share"])
    operators = "1 operator" if count == 1 else f"{count} operators"
    return f"{macs} of the multiply-adds, {moved} of the bytes: {operators} in no time{unsized}"


_NAMED = 8
"""Operators that the head of a report names; its data has all."""


def streamed_text(found: Mapping[str, Any]) -> str:
    """What share of a run bytes alone stand for, of `streamed` by schema.json: `2.1 % of the time, for which 1.5 MiB
    stand: MaxPool (1)`."""
    most = sorted(found["operators"].items(), key=lambda item: -item[1])
    names = ", ".join(f"{name} ({calls})" for name, calls in most[:_NAMED])
    names += f" and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
    return f"{percent(found['time_share'])} of the time, for which {bytes_text(found['bytes'])} stand: {names}"


def _achieved(figures: Figures, dtype: str) -> str:
    """What a run reaches, as a share of what bounds it: of the memory's bandwidth, or of the peak in its format."""
    ops = f"{ops_text(figures.ops_per_s, dtype)}, {percent(figures.share_of_peak)} of the data sheet's peak"
    level = figures.bound
    if level not in figures.machine.external:
        return ops if figures.flops else ""
    rate = sum(level_bytes(figures.counters)[level].values()) / (figures.device_ps * 1e-12)
    share = percent(figures.speed_of_light()[level])
    memory = f"{rate * 1e-9:,.0f} GB/s of {level}, {share} of its bandwidth"
    return f"{memory}; {ops_text(figures.ops_per_s, dtype)}" if figures.flops else memory


def _wish(asked: Asked) -> str:
    return f"asked: {asked.schedule_text}{', tuned' if asked.tune else ''}"


def _condition(name: str, value: str | bool) -> str:
    """`l2 cold`, `exact`; nothing where it is not exact."""
    return f"{name} {value}" if isinstance(value, str) else name if value else ""


def _origin(report: Report) -> Section:
    """What the run was made of, as far as its title does not say it."""
    asked = report.record.asked
    names = ("machine file", *asked.overrides, "program", "workload file", "versions")
    return Section("Made of", tuple((name, asked.words[name]) for name in names if name in asked.words))


def _speed_of_light(report: Report) -> Section:
    reached = report.figures.speed_of_light()
    return Section(
        "Speed of light (share of each unit's own peak at the clock that ran)",
        tuple((words(name), percent(share), Meter(share)) for name, share in reached.items()),
    )


def _roofline(report: Report) -> Section:
    figures = report.figures
    if not figures.flops:
        return Section("Roofline", ())
    roofs, dtype = figures.roofs(), report.record.dtype
    rows: list[tuple[Cell, ...]] = []
    for i, roof in enumerate(roofs):
        share = figures.ops_per_s / roof.ops_per_s
        if i and share < SMALLEST_ROOF:
            continue
        over = f"{_count_text(roof.intensity)} ops a byte" if roof.intensity else ""
        holds = "holds" if i == 0 else ""
        rows.append((words(roof.name), over, ops_text(roof.ops_per_s, dtype), percent(share), holds))
    return Section("Roofline", tuple(rows), ("unit", "moved there", "its roof", "reached", ""))


def _stalls(report: Report) -> Section:
    rows: list[tuple[Cell, ...]] = []
    view = report.record.machine.view
    more = view.causes(report.figures) if view.causes else {}
    for unit, counts in (report.figures.stalls | more).items():
        split = shares(counts)
        shown = {reason: share for reason, share in split.items() if share >= SMALLEST_STALL}
        rest = sum(split.values()) - sum(shown.values())
        if len(shown) < len(split):
            shown["other"] = rest
        rows += [(words(unit), words(reason), percent(share), Meter(share, reason)) for reason, share in shown.items()]
    return Section(view.STALL_TITLE, tuple(rows))


def _memory(report: Report) -> Section:
    figures = report.figures
    rates = hit_rates(figures.counters)
    device_s = figures.device_ps * 1e-12
    rows = []
    for level, sides in level_bytes(figures.counters).items():
        if not any(sides.values()):
            continue
        rate = rates.get("dram_row" if level == "dram" else level)
        hits = "" if rate is None else percent(rate) + (" in open rows" if level == "dram" else "")
        bandwidth = f"{sum(sides.values()) / device_s * 1e-9:,.0f} GB/s"
        rows.append(
            (words(level), *(bytes_text(sides[s]) if s in sides else "" for s in ("read", "write")), bandwidth, hits)
        )
    return Section("Memory chart", tuple(rows), ("level", "read", "written", "rate", "hits"))


def _clock(report: Report) -> Section:
    figures = report.figures
    machine = figures.machine
    reasons = sorted({_HELD[k.throttle_reason] for k in figures.kernels if k.throttle_reason})
    held = f", {' and '.join(reasons)}" if reasons else ""
    rows = [("mean", f"{ghz_text(figures.clock_hz)} of {ghz_text(machine.boost_hz)} boost{held}")]
    if figures.power_w is not None and figures.energy_j is not None:
        limit = "" if machine.power_limit_mw is None else f" (limit {machine.power_limit_mw / 1000:.0f} W"
        above = _above_the_limit(figures.power_w, machine.power_limit_mw, report.record.asked.conditions.get("clock"))
        limit += f"{above})" if limit else ""
        rows.append(("power", f"{figures.power_w:.0f} W{limit}; {figures.energy_j * 1000:.3g} mJ"))
    return Section("Clock and power", tuple(rows))


def _above_the_limit(power_w: float, limit_mw: int | None, clock: str | bool | None) -> str:
    """Why mean power is above the board's limit, where it is by more than the regulator's steps."""
    if limit_mw is None or power_w <= 1.03 * limit_mw / 1000:
        return ""
    if clock in (None, "isolated", "sustained"):
        return ", a mean over milliseconds, which a run as short as this may exceed"
    return ", which does not act on a locked clock"


def _time_parts(report: Report) -> Section:
    figures = report.figures
    launch = total(k.launch_ps for k in figures.kernels)
    parts = {"kernels": figures.device_ps - sum(launch.values())} | launch | dict(report.record.host_ps)
    if len(parts) == 1:
        return Section("Where the time went", ())
    whole = sum(parts.values())
    rows = tuple((words(name), time_text(ps), percent(ps / whole)) for name, ps in parts.items() if ps)
    return Section("Where the time went", rows)


def _profile(report: Report) -> Section:
    if not report.record.operators:
        return Section("Profile", ())
    return profile_section(report.record)


def _classes(report: Report) -> Section:
    by_kind = classes(report.record)
    if len(by_kind) < 2:
        return Section("Operator classes", ())
    rows = tuple(
        (kind, percent(entry.flop_share), percent(entry.device_share), time_text(entry.device_ps))
        for kind, entry in by_kind.items()
    )
    return Section("Operator classes", rows, ("class", "operations", "device time", ""))


def _layers(report: Report) -> Section:
    """The layers of a network in order, and what they take of its time."""
    own = report.record.machine.view.LAYER_COLUMNS
    whole = report.figures.time_ps
    rows = tuple(
        (
            layer.name, layer.workload, f"{figures.cycles:,}", time_text(layer.time_ps), percent(layer.time_ps / whole),
            percent(figures.share_of_peak), figures.bound, *(cell(figures) for _, cell in own), layer.schedule,
        )
        for layer, figures in Figures.of_layers(report.record)
    )  # fmt: skip
    names = (name for name, _ in own)
    header = ("layer", "operator", "cycles", "time", "of the time", "of peak", "bound", *names, "schedule")
    return Section("Layers", rows, header)


def _kernels(report: Report) -> Section:
    if len(report.record.kernels) < 2 or report.record.operators or report.record.layers:
        return Section("Kernels", ())
    rows = tuple(
        (k.name, f"{k.cycles:,}", time_text(k.time_ps), Figures.of_kernel(report.record, k).bound)
        for k in report.record.kernels
    )
    return Section("Kernels", rows, ("name", "cycles", "time", "bound"))


def profile_section(run: RunRecord) -> Section:
    """Time by operator, as a framework's profiler prints it."""
    entries = profile(run)
    if not entries:
        return Section("Profile", ())
    rows = tuple(
        (
            entry.name, str(entry.calls), str(entry.kernels),
            time_text(entry.host_ps), percent(entry.host_share),
            time_text(entry.device_ps), percent(entry.device_share), time_text(entry.device_ps // entry.calls),
            _count_text(entry.gb_per_s), f"{entry.tflops:.4g}", entry.bound,
        )
        for entry in (*entries, whole(entries))
    )  # fmt: skip
    header = (
        "operator", "calls", "kernels", "host", "host %", "device", "device %", "device a call", "GB/s", "TFLOPS",
        "bound",
    )  # fmt: skip
    return Section("Profile", rows, header)


def _candidates(report: Report) -> Section:
    candidates = report.record.candidates
    if len(candidates) < 2:
        return Section("Candidates", ())
    rows = []
    for c in candidates:
        simulated, off = "", ""
        if c.simulated_cycles:
            simulated, off = f"{c.simulated_cycles:,}", f"{100 * c.estimate_cycles / c.simulated_cycles - 100:+.0f} %"
        elif c.given_up_ps:
            simulated = f"given up at {time_text(c.given_up_ps)}"
        elif c.pace_ps:
            simulated = f"begun, at a pace of {time_text(c.pace_ps)}"
        rows.append((c.schedule, f"{c.estimate_cycles:,}", simulated, off, "chosen" if c.chosen else ""))
    stated = f"estimate's error ({report.record.estimate_error_percent} % expected)"
    return Section("Candidates", tuple(rows), ("schedule", "estimated cycles", "simulated", stated, ""))


def _library(report: Report) -> Section:
    """The fastest kernel that there is and the library's, side by side."""
    found, run = report.record.library, report.record
    title = f"What {found.release} takes" if found else ""
    if found is None:
        return Section(title, ())
    if not found.schedule:
        return Section(
            title, ((f"No rule of it is known on {run.machine.name}: there is one answer, tilewave's own.",),)
        )
    fastest_ps = report.figures.time_ps
    rows = (
        ("tilewave's fastest" if run.asked.schedule == "auto" else "as asked", run.schedule, time_text(fastest_ps), ""),
        (found.release, found.schedule, time_text(found.time_ps), f"{100 * found.time_ps / fastest_ps - 100:+.1f} %"),
    )
    return Section(title, rows, ("kernel of", "schedule", "time", "against the first"))


def verdict(report: Report) -> Section:
    """What bounds the run, in sentences, and what else a reader must know."""
    unread = [f"Nothing that ran read {path}." for path in report.record.asked.unread]
    warnings = [f"Warning: {words}." for words in report.record.asked.implausible]
    lines = [*warnings, *(said.text for said in sentences(report)), *unread, *report.record.notes]
    return Section("What bounds it", tuple((line,) for line in lines))


def _trust(report: Report) -> Section:
    said = report.record.trust
    return Section("How far to trust it", tuple((line,) for line in said.sentences) if said else ())
