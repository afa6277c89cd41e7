"""What a report says about a GPU alone: launch shape, occupancy, warp states, and words about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import LATENCY_BOUND_BELOW, Figures, hit_rates, shares, total
from sim.app.report.record import Candidate, GpuLaunch, KernelRecord, SourceLine
from sim.app.report.sections import Section, ghz_text, percent, time_text, words
from sim.app.report.verdict import WORTH_A_WORD, at_most, faster_chip, no_bandwidth

if TYPE_CHECKING:
    from sim.app.report.report import Report

ENERGY_WITHOUT = "the host, copies over PCIe, links between devices"
"""What the energy of a run leaves out."""

STALL_TITLE = "Stall stack (warps: share of warp-cycles; issue: share of issue slots)"

REMEDIES = {
    "long_scoreboard": "more loads in flight (occupancy, deeper prefetch) or better locality",
    "lg_throttle": "wider loads, or fewer of them",
    "mio_throttle": "fewer shared-memory instructions (wider accesses, larger register tiles)",
    "short_scoreboard": "more work between a shared-memory load and its use, or fewer bank conflicts",
    "wait": "more independent instructions between dependent ones",
    "barrier": "fewer synchronisations a tile, or more stages",
    "mbarrier": "more stages or faster loads, where it is the consumers that wait",
    "gmma": "a larger tile or a second warpgroup, which keep the tensor pipe busy meanwhile",
    "tma_store": "faster stores, or more buffers for them",
    "cp_async": "more stages or faster loads",
    "cluster_barrier": "less skew between the CTAs of a cluster, or smaller clusters",
    "no_instruction": "shorter code, or a warm instruction cache",
    "not_selected": "fewer instructions: more warps are ready than can issue",
}
"""What moves a warp state; states without an entry are not commented on. `_remedy` knows those that depend on more."""

_LINES = 10
"""Lines of the source that a report shows."""

_CODE = 60
"""Characters of a line of the source that a table shows."""

PIPE_STATES = ("math_pipe_throttle", "gmma")
"""States in which a warp waits for a pipe."""


def details(figures: Figures) -> dict[str, Any]:
    """What only a GPU has. Of several kernels, launch shape and occupancy are those of the longest."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    launch: GpuLaunch = kernel.own
    return {
        "grid": list(launch.grid),
        "cluster": list(launch.cluster),
        "waves": launch.waves_milli / 1000,
        "tail_fraction": launch.tail_cycles / kernel.cycles,
        "tail_idle_fraction": launch.tail_idle_cycles / kernel.cycles,
        "occupancy": occupancy_dict(launch),
        "hit_rates": hit_rates(figures.counters),
        "speed_of_light": figures.speed_of_light(),
        "intensity": figures.intensity,
        "launch_us": {name: ps / 1e6 for name, ps in total(k.launch_ps for k in figures.kernels).items()},
        "counters": dict(figures.counters),
        "throttle_reason": kernel.throttle_reason,
        **({"source": source_dicts(launch)} if launch.source else {}),
    }


def source_dicts(launch: GpuLaunch) -> list[dict[str, Any]]:
    """Lines of the source of a compiled kernel."""
    return [
        {"file": s.file, "line": s.line, "instructions": s.instructions, "warp_cycles": dict(s.cycles)}
        for s in launch.source
    ]


def occupancy_dict(launch: GpuLaunch) -> dict[str, Any] | None:
    """Residency of a kernel: what fits, what limits it, what was achieved on average."""
    if launch.occupancy is None:
        return None
    occupancy = launch.occupancy
    result = {
        "ctas_per_sm": occupancy.ctas_per_sm,
        "warps_per_sm": occupancy.warps_per_sm,
        "max_warps_per_sm": occupancy.max_warps_per_sm,
        "limiter": occupancy.limiter,
    }
    if occupancy.achieved_warps_milli:
        return {**result, "achieved": occupancy.achieved_warps_milli / 1000}
    return result


def _occupancy(report: Report) -> Section:
    kernel = max(report.record.kernels, key=lambda k: k.time_ps)
    launch: GpuLaunch = kernel.own
    rows = []
    if launch.occupancy is not None:
        o = launch.occupancy
        fits = f"{o.ctas_per_sm} CTAs an SM, {o.warps_per_sm} of {o.max_warps_per_sm} warps; limit: {words(o.limiter)}"
        rows.append(("resident", fits))
        if o.achieved_warps_milli:
            rows.append(("achieved", f"{o.achieved_warps_milli / 1000:.1f} warps an SM"))
    clusters = f", clusters of {' x '.join(map(str, launch.cluster))}" if max(launch.cluster) > 1 else ""
    rows.append(("grid", " x ".join(map(str, launch.grid)) + clusters))
    if launch.waves_milli:
        tail, idle = (percent(cycles / kernel.cycles) for cycles in (launch.tail_cycles, launch.tail_idle_cycles))
        rows.append(("waves", f"{launch.waves_milli / 1000:.2f}; tail {tail} of the cycles, idle SMs {idle}"))
    return Section("Occupancy", tuple(rows))


def _source(report: Report) -> Section:
    """The lines of a compiled kernel's source that take most; without rows for others."""
    return source_section(report, _LINES)


def source_section(report: Report, most: int | None = None) -> Section:
    """Where in the source of a compiled kernel the time of its warps went, the lines that take most first: in which two
    states they waited longest. most: lines, the rest together in one; None for all of them, with their code where the
    file is at hand."""
    kernel = max(report.record.kernels, key=lambda k: k.time_ps)
    lines: Sequence[SourceLine] = kernel.own.source
    every = max(1, sum(sum(line.cycles.values()) for line in lines))
    rows = []
    for line in lines[:most]:
        first, second = [*sorted(line.cycles.items(), key=lambda one: -one[1]), ("", 0)][:2]
        states = [f"{words(state)} {percent(spent / every)}" if spent else "" for state, spent in (first, second)]
        place = f"{Path(line.file).name}:{line.line}"
        share = percent(sum(line.cycles.values()) / every)
        rows.append((place, share, *states, f"{line.instructions:,}", *([_code(line)] if most is None else [])))
    if rest := lines[len(rows) :]:
        share = percent(sum(sum(line.cycles.values()) for line in rest) / every)
        rows.append((f"{len(rest)} others", share, "", "", f"{sum(line.instructions for line in rest):,}"))
    header = ("line", "warp-cycles", "most in", "then in", "instructions", *(["code"] if most is None else []))
    return Section("Source", tuple(rows), header)


def _code(line: SourceLine) -> str:
    """A line of the source as it stands in the file now; nothing where that is not at hand."""
    try:
        lines = Path(line.file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return lines[line.line - 1].strip()[:_CODE] if 0 < line.line <= len(lines) else ""


SECTIONS = (_occupancy, _source)
LAYER_COLUMNS = ()
draw = None


def bound(figures: Figures, candidates: Sequence[Candidate]) -> str:
    """The sentence about the limiting unit."""
    reached = figures.speed_of_light()
    match figures.bound:
        case "overhead":
            share = percent(figures.overhead_ps / figures.time_ps)
            return (
                f"Launch and host take {time_text(figures.overhead_ps)} ({share} of the time): fewer or larger "
                f"kernels, a graph, or fusion would move it; {faster_chip(figures)}"
            )
        case "dram":
            rate = figures.external_bytes_per_s * 1e-12
            return (
                f"External memory is busy: {percent(reached['dram'])} of {rate:.2f} TB/s. Fewer bytes (fusion, a "
                "narrower format, better reuse in the L2) or more bandwidth would move it; a faster clock would not."
            )
        case "l2":
            return (
                f"The L2 is busy: {percent(reached['l2'])} of its bandwidth. Larger tiles or multicast in clusters "
                "would move it."
            )
        case "smem":
            return (
                f"Shared memory is busy: {percent(reached['smem'])} of its cycles. Larger register tiles, operands "
                "from registers, fewer bank conflicts or a wider array would move it; more DRAM bandwidth would not."
            )
        case "pcie":
            rate = figures.machine.bandwidths["pcie"] * 1e-9
            return (
                f"The link to the host is busy: {percent(reached['pcie'])} of {rate:.1f} GB/s. Copying less, or "
                "copying while kernels run, would move it; a faster chip would not."
            )
        case "compute":
            pipes = {name: share for name, share in reached.items() if name.endswith(" pipe")}
            busiest = max(pipes, key=lambda name: pipes[name], default="compute")
            busy = max(pipes.get(busiest, 0.0), reached["compute"])
            return (
                f"Arithmetic is busy: {percent(busy)} of what the {busiest} can do at {ghz_text(figures.clock_hz)}. "
                f"More clock, more SMs or a narrower format would move it; {no_bandwidth(reached.get('dram', 0.0))}"
            )
        case _:
            best = max(reached, key=lambda name: reached[name])
            return (
                f"No unit is near its peak (the busiest, {best}, reaches {percent(reached[best])} over the whole run): "
                f"waits bound it. {_remedy_of_waits(figures, candidates)}"
            )


def losses(figures: Figures) -> list[str]:
    """Sentences about what else costs time."""
    reached = figures.speed_of_light()
    found = at_most({level: reached.get(level, 0.0) for level in ("dram", "l2")}) if figures.bound == "latency" else []
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    waiting = {s: share for s, share in _stall_shares(figures).items() if s in REMEDIES or s in PIPE_STATES}
    if waiting:
        state, share = next(iter(waiting.items()))
        if share >= WORTH_A_WORD:
            remedy = _remedy(figures, state)
            found.append(f"Warps spend {percent(share)} of their cycles in {words(state)}; it moves with {remedy}.")
    special, tensor = reached.get("mufu pipe", 0.0), reached.get("tensor pipe", 0.0)
    if min(special, tensor) >= WORTH_A_WORD:
        issued = shares(figures.stalls["issue"])["issued"]
        found.append(
            f"Exponentials keep the MUFU {percent(special)} busy, and {percent(issued)} of the issue slots are taken, "
            f"beside {percent(tensor)} of the tensor cores: where they do not run side by side they add up."
        )
    idle = kernel.own.tail_idle_cycles / kernel.cycles
    if idle >= WORTH_A_WORD:
        found.append(
            f"SMs that have run out of work wait for {percent(idle)} of the cycles "
            f"({kernel.own.waves_milli / 1000:.2f} waves): "
            f"another tile size{', stream-K' if _is_product(kernel) else ''} or a shape that fills the last wave would "
            "shorten that."
        )
    rates = hit_rates(figures.counters)
    if figures.bound == "dram" and rates.get("dram_row", 1.0) < 0.5:
        found.append(
            f"Only {percent(rates['dram_row'])} of DRAM accesses hit an open row: longer contiguous pieces help."
        )
    return found


NEARER = (
    "a higher clock together with nearer caches and memory (clock.boost, l2.hit_latency, dram.latency) would move it, "
    "or more work in one launch"
)
"""What moves a run that waits, whatever its schedule."""


def _remedy_of_waits(figures: Figures, candidates: Sequence[Candidate]) -> str:
    """What moves a run that waits: a schedule that gives the chip more to do at once, unless others were tried."""
    simulated = sum(c.simulated_cycles is not None or c.given_up_ps is not None for c in candidates)
    if simulated > 1:
        return f"None of the {simulated} schedules that were simulated is faster; {NEARER}."
    return f"Another schedule, where there is one, may move it (--tune tries all): {_more_at_a_time(figures)}."


def _more_at_a_time(figures: Figures) -> str:
    """What gives the chip more to do at once. Few CTAs leave SMs empty; a product can also be split along k."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    launch: GpuLaunch = kernel.own
    if launch.waves_milli >= 1000:
        return "more loads in flight, more stages, more warps or CTAs an SM"
    split = " or parts of k" if _is_product(kernel) else ""
    filled = percent(launch.waves_milli / 1000)
    return (
        f"smaller tiles{split} for more CTAs (these fill {filled} of the places on the chip), more stages, more warps"
    )


def _is_product(kernel: KernelRecord) -> bool:
    """Whether a kernel multiplies matrices, whose sums over k can be split."""
    return kernel.counters.get("tensor_busy_cycles", 0) > 0


def _remedy(figures: Figures, state: str) -> str:
    """What moves a warp state. A pipe for which warps wait is busy, or used in bursts."""
    if state not in PIPE_STATES:
        return REMEDIES[state]
    pipes = {name: share for name, share in figures.speed_of_light().items() if name.endswith(" pipe")}
    busiest = max(pipes, key=lambda name: pipes[name], default="")
    if busiest and pipes[busiest] >= LATENCY_BOUND_BELOW:
        return (
            f"a faster {busiest}, a narrower format or less padding: the {busiest} is busy for "
            f"{percent(pipes[busiest])} of the time"
        )
    if state in REMEDIES:
        return REMEDIES[state]
    used = f": over the whole run the {busiest} is busy for {percent(pipes[busiest])}" if busiest else ""
    return f"work that is spread over time and SMs, so that warps do not ask at once{used}"


def _stall_shares(figures: Figures) -> dict[str, float]:
    """Shares of all warp-cycles by state, largest first, without those in which a warp issued."""
    split = shares(figures.stalls.get("warps", {}))
    return {state: share for state, share in split.items() if state != "selected"}
