"""What a report says about a GPU alone: launch shape, occupancy, warp states, and words about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import LATENCY_BOUND_BELOW, Figures, hit_rates, shares, total
from sim.app.report.record import GpuLaunch, KernelRecord, SourceLine
from sim.app.report.sections import Section
from sim.app.report.text import bytes_text, ghz_text, percent, time_text, words
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
    faster_chip,
    memory_beside,
    moves,
    stays,
)
from sim.link import nccl

if TYPE_CHECKING:
    from sim.app.report.report import Report

ENERGY_WITHOUT = "the host, copies over PCIe, links between devices"
"""What the energy of a run leaves out."""

STALL_TITLE = "Stall stack (warps: share of warp-cycles; issue: share of issue slots)"

REMEDIES = {
    "long_scoreboard": "more loads in flight (occupancy, deeper prefetch) or better locality",
    "lg_throttle": "wider loads, or fewer of them",
    "mio_throttle": "fewer wavefronts of shared memory (no bank conflicts, wider accesses, larger register tiles)",
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

CAUSE = 0.1
"""Bank conflicts that take this share of an SM's time, and sectors of which nobody uses this share of what moves, are
the first thing that a verdict names."""

SIDES = ("read", "write")

_WASTED = 0.5
"""Access that uses less than the rest of its sectors is not coalesced."""

_ALL = 0.995
"""A share that is printed as all of it."""
_PLACES = 3
"""Lines that a sentence names."""

_SURE_OF_L2 = 0.95
"""As `SURE` of the L2: below that ports and write buffers on the way to it, which are no units of a report, may hold a
run."""

_LINES = 10
"""Lines of the source that a report shows."""

_CODE = 60
"""Characters of a line of the source that a table shows."""

MEMORY_STATES = ("long_scoreboard", "lg_throttle", "mbarrier", "cp_async", "tma_store", "membar")
"""States in which a warp waits for memory: where a memory bounds a run, that is why."""

LATE = {
    "selected": "work that the warps which meet there share evenly, or fewer instructions",
    "membar": "fewer fences, or more work between stores and a fence",
    "sleeping": "less work of those whose flag it waits for",
}
"""What moves a barrier whose last warp was in a state that is not commented on by itself."""

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
        **({"barrier_waits": waits} if (waits := barrier_waits(figures)) else {}),
        **({"memory_lines": [asdict(line) for line in launch.memory]} if launch.memory else {}),
    }


def barrier_waits(figures: Figures) -> dict[str, int]:
    """Warp-cycles of waits at barriers, by what the last warp to arrive did meanwhile."""
    return total(k.own.barrier_waits for k in figures.kernels)


def causes(figures: Figures) -> dict[str, dict[str, int]]:
    """What the last warp to arrive at barriers did, where others wait for it long enough to be worth a word."""
    worth = _stall_shares(figures).get("barrier", 0.0) >= WORTH_A_WORD
    return {"last at barrier": barrier_waits(figures)} if worth else {}


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
        rows.append(("waves", f"{launch.waves_milli / 1000:.2f}"))
        rows.append(("tail", f"for the last {tail} some SMs have nothing to do, {idle} of what all SMs could do"))
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


def verdict(report: Report) -> list[Sentence]:
    """What bounds a run, and what else costs time."""
    return [*_conflicts(report.figures), *_uncoalesced(report.figures), _bound(report), *_losses(report)]


def _conflicts(figures: Figures) -> list[Sentence]:
    """Bank conflicts that take much of the time of SMs with work, with their lines and what they cost."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    lost = kernel.counters.get("smem_conflict_cycles", 0) / max(1, kernel.own.sms) / kernel.cycles
    if lost < CAUSE or figures.bound == "overhead":
        return []
    lines = sorted(kernel.own.memory, key=lambda line: -line.conflict_cycles)
    whole = sum(line.conflict_cycles for line in lines) or 1
    most = [line for line in lines[:_PLACES] if line.conflict_cycles >= WORTH_A_WORD * whole]
    return [
        Sentence(
            f"Bank conflicts keep the shared memory of an SM with work busy for {percent(lost)} of the time"
            f"{_at([(line.place, line.conflict_cycles / whole) for line in most])}: without them it takes at most "
            f"{time_text(round(lost * kernel.time_ps))} less. Rows of another length (padding), a swizzle or another "
            "order of threads keep them apart."
        )
    ]


def _uncoalesced(figures: Figures) -> list[Sentence]:
    """Access of global memory of which much of each sector is not used, with its lines and what they move."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    wide = sorted(
        (line for line in kernel.own.memory if line.used_bytes <= (1 - _WASTED) * line.sector_bytes),
        key=lambda line: line.used_bytes - line.sector_bytes,
    )
    wasted = sum(line.sector_bytes - line.used_bytes for line in wide)
    moved = sum(
        kernel.counters.get(f"l2_{side}_bytes", 0) + kernel.counters.get(f"l1_{side}_bytes", 0) for side in SIDES
    )
    if wasted < CAUSE * moved or not wasted or figures.bound in ("overhead", "compute"):
        return []
    asked, requests = (sum(getattr(line, name) for line in wide) for name in ("sector_bytes", "requests"))
    return [
        Sentence(
            f"Access of global memory is not coalesced{_at([(line.place, 0.0) for line in wide[:_PLACES]])}: "
            f"{asked / 32 / max(1, requests):.1f} sectors a request, {percent(wasted / asked)} of whose bytes "
            f"({bytes_text(wasted)}) nobody asked for. Neighbouring threads should take neighbouring addresses."
        )
    ]


def _at(places: Sequence[tuple[str, float]]) -> str:
    """`, at a.py:3 (60.0 % of that) and a.py:7 (40.0 % of that)`; `, all at a.py:3`; shares left out that are 0."""
    if len(places) == 1 and places[0][0] and places[0][1] > _ALL:
        return f", all at {places[0][0]}"
    named = [f"{place} ({percent(share)} of that)" if share else place for place, share in places if place]
    return f", at {' and '.join(named)}" if named else ""


def _bound(report: Report) -> Sentence:
    """The sentence about the limiting unit."""
    figures = report.figures
    reached = figures.speed_of_light()
    match figures.bound:
        case "overhead":
            return _overhead(figures)
        case "power":
            return _power(figures)
        case "dram":
            rate = figures.external_bytes_per_s * 1e-12
            what = f"External memory is busy: {percent(reached['dram'])} of {rate:.2f} TB/s."
            fewer = "fewer bytes (fusion, a narrower format, better reuse in the L2)"
            sure = figures.running(reached["dram"]) >= SURE and _ways_out(figures)[0] < reached["dram"]
            return advised(what, bandwidth_claims("dram.bandwidth", reached["dram"]), [fewer], sure=sure)
        case "l2":
            what = f"The L2 is busy: {percent(reached['l2'])} of its bandwidth."
            sure = figures.running(reached["l2"]) >= _SURE_OF_L2
            return advised(what, (moves("l2.bandwidth"),), _fewer_reads(report), sure=sure)
        case "smem":
            what = f"Shared memory is busy: {percent(reached['smem'])} of its cycles."
            others = ["larger register tiles", "operands from registers", "fewer bank conflicts"]
            return advised(what, (moves("shared.bandwidth"), stays("dram.bandwidth")), others)
        case "pcie" if "link_write_bytes" in figures.counters:
            what = f"PCIe, the path to the other devices, is busy for {percent(reached['pcie'])} of the time."
            return advised(what, (moves("pcie.bandwidth"),), ["fewer bytes"], sure=reached["pcie"] >= ALONE)
        case "pcie":
            rate = figures.machine.bandwidths["pcie"] * 1e-9
            what = f"The link to the host is busy: {percent(reached['pcie'])} of {rate:.1f} GB/s."
            link = (moves("pcie.bandwidth"), stays("clock.boost"))
            return advised(what, link, ["copying less", "copying while kernels run"])
        case "link":
            what = (
                f"The path to the other devices is busy for {percent(reached['link'])} of the time, headers included."
            )
            links = (moves("link.bandwidth"), stays("clock.boost"))
            return advised(what, links, ["fewer bytes"], sure=reached["link"] >= ALONE)
        case "compute":
            return _arithmetic(figures, reached)
        case _:
            best = max(reached, key=lambda name: reached[name])
            remedy, claims = _remedy_of_waits(report)
            return Sentence(
                f"No unit is near its peak (the busiest, {best}, reaches {percent(reached[best])} over the whole run): "
                f"waits bound it. {remedy}",
                claims,
            )


def _overhead(figures: Figures) -> Sentence:
    """Launches and the host bound a run."""
    share = percent(figures.overhead_ps / figures.time_ps)
    own = 2 * figures.launch_ps >= figures.overhead_ps
    return Sentence(
        f"Launch and host take {time_text(figures.overhead_ps)} ({share} of the time): fewer or larger kernels, a "
        f"graph, or fusion would move it; {faster_chip(figures)}",
        (moves("launch.kernel", "launch.setup"),) if own else (),
    )


def _limit_text(figures: Figures) -> str:
    """The clock that power allowed: `0.376 of 1.590 GHz, at 79 W of 70 W`."""
    watts, limit_mw = figures.power_w, figures.machine.power_limit_mw
    drawn = ""
    if watts is not None and limit_mw is not None:
        burst = " in a burst" if 1000 * watts > 1.03 * limit_mw else ""
        drawn = f", at {watts:.0f} W of {limit_mw / 1000:.0f} W{burst}"
    return f"{figures.clock_hz * 1e-9:.3f} of {ghz_text(figures.machine.boost_hz)}{drawn}"


def _power(figures: Figures) -> Sentence:
    """The board's limit of power bounds a run."""
    what = f"The power limit bounds it: it holds the clock at {_limit_text(figures)}."
    return advised(what, (moves("power.limit"), stays("clock.boost")), ["fewer bytes and operations"])


def _arithmetic(figures: Figures, reached: Mapping[str, float]) -> Sentence:
    """Arithmetic bounds a run, at the clock that power allows."""
    pipes = {name: share for name, share in reached.items() if name.endswith(" pipe")}
    busiest = max(pipes, key=lambda name: pipes[name], default="compute")
    busy = max(pipes.get(busiest, 0.0), reached["compute"])
    memory, claims = memory_beside(reached.get("dram", 0.0))
    what = f"Arithmetic is busy: {percent(busy)} of what the {busiest} can do at"
    if figures.held_by_power:
        return Sentence(
            f"{what} the clock that the power limit allows ({_limit_text(figures)}). A higher limit or a narrower "
            f"format would move it; a faster clock would not; {memory}",
            (moves("power.limit"), stays("clock.boost"), *claims),
        )
    return Sentence(
        f"{what} {ghz_text(figures.clock_hz)}. More clock, more SMs or a narrower format would move it; {memory}",
        (moves("clock.boost"), *claims),
    )


def _fewer_reads(report: Report) -> list[str]:
    """What takes less of the L2 and this operator and this machine can do."""
    if not report.record.macs:
        return ["fewer bytes (fusion, a narrower format)"]
    clusters = report.figures.machine.spec.get("dsmem") is not None
    return ["larger tiles", *(["multicast in clusters"] if clusters else [])]


def _losses(report: Report) -> list[Sentence]:
    """Sentences about what else costs time."""
    figures = report.figures
    reached = figures.speed_of_light()
    found = at_most({level: reached.get(level, 0.0) for level in ("dram", "l2")}) if figures.bound == "latency" else []
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    return [
        *found,
        *_held_clock(figures, reached),
        *_waiting(figures),
        *_pipes_apart(figures, reached),
        *_tail(report, kernel),
        *_closed_rows(figures),
        *_ways(figures),
    ]


def _held_clock(figures: Figures, reached: Mapping[str, float]) -> list[Sentence]:
    """A clock that power holds where something else bounds a run."""
    if not figures.held_by_power or figures.bound in ("power", "compute"):
        return []
    held = f"The power limit holds the clock at {_limit_text(figures)}"
    if figures.bound == "dram" and figures.running(reached["dram"]) >= SURE:
        return [Sentence(f"{held}; as memory bounds it, a higher one would not move it.", (stays("power.limit"),))]
    return [Sentence(f"{held}.")]


def _waiting(figures: Figures) -> list[Sentence]:
    """The state in which warps wait most."""
    waiting = {s: share for s, share in _stall_shares(figures).items() if s in REMEDIES or s in PIPE_STATES}
    if not waiting:
        return []
    state, share = next(iter(waiting.items()))
    if share < WORTH_A_WORD:
        return []
    spent = f"Warps spend {percent(share)} of their cycles in {words(state)}"
    if state == "barrier":
        state, part = next(iter(shares(barrier_waits(figures)).items()))
        does = {"barrier": "the barrier itself takes time", "selected": "the last warp to arrive has more to issue"}
        why = does.get(state, f"the last warp to arrive is longer in {words(state)}")
        spent += f", {percent(part)} of that because {why}"
    if state in MEMORY_STATES and figures.bound in ("dram", "l2", "pcie", "power"):
        return [Sentence(f"{spent}: they wait for what bounds it.")]
    return [Sentence(f"{spent}; it moves with {LATE.get(state) or _remedy(figures, state)}.")]


def _pipes_apart(figures: Figures, reached: Mapping[str, float]) -> list[Sentence]:
    """Exponentials beside products, where both take time."""
    special, tensor = reached.get("mufu pipe", 0.0), reached.get("tensor pipe", 0.0)
    if min(special, tensor) < WORTH_A_WORD:
        return []
    issued = shares(figures.stalls["issue"])["issued"]
    return [
        Sentence(
            f"Exponentials keep the MUFU {percent(special)} busy, and {percent(issued)} of the issue slots are taken, "
            f"beside {percent(tensor)} of the tensor cores: where they do not run side by side they add up."
        )
    ]


def _tail(report: Report, kernel: KernelRecord) -> list[Sentence]:
    """SMs without work at the end."""
    idle = kernel.own.tail_idle_cycles / kernel.cycles
    if idle < WORTH_A_WORD:
        return []
    return [
        Sentence(
            f"SMs that have run out of work wait for {percent(idle)} of the cycles "
            f"({kernel.own.waves_milli / 1000:.2f} waves): "
            f"another tile size{', stream-K' if _is_product(kernel) else ''} or a shape that fills the last wave would "
            "shorten that."
        )
    ]


def _closed_rows(figures: Figures) -> list[Sentence]:
    """Accesses of DRAM that mostly open a row."""
    rates = hit_rates(figures.counters)
    found = []
    if figures.bound == "dram" and rates.get("dram_row", 1.0) < 0.5:
        hits = percent(rates["dram_row"])
        found.append(Sentence(f"Only {hits} of DRAM accesses hit an open row: longer contiguous pieces help."))
    share, figure = rows_opened(figures)
    if share >= LATENCY_BOUND_BELOW and share > figures.speed_of_light().get("dram", 0.0):
        held = (
            f"Rows that DRAM channels open one after the other hold them for {percent(share)} of the time ({figure}):"
        )
        way = "more bandwidth moves that where this figure goes with it, or less of this figure alone."
        found.append(Sentence(f"{held} {way}"))
    return found


def rows_opened(figures: Figures) -> tuple[float, str]:
    """Share of the time for which channels of the DRAM wait to open the next row, and the figure that makes them."""
    counters, dram = figures.counters, figures.machine.spec.get("dram", {})
    opened = counters.get("dram_row_misses", 0)
    if not opened:
        return 0.0, ""
    moved = counters.get("dram_read_bytes", 0) + counters.get("dram_write_bytes", 0)
    bursts = moved / dram["atom"] / (opened + counters["dram_row_hits"])
    each_ps = {"dram.t_faw": dram["t_faw"] / 4, "dram.t_ccd": bursts * dram["t_ccd"]}
    figure = max(each_ps, key=lambda path: each_ps[path])
    return opened * each_ps[figure] / (dram["channels"] * figures.device_ps), figure


def _ways(figures: Figures) -> list[Sentence]:
    """What else holds a run for longer than the unit that bounds it: the path by which requests and stores leave SMs,
    and copies inside the devices of a collective."""
    share, figure, what = max(_ways_out(figures), _copies(figures))
    reached = figures.speed_of_light()
    alone = figures.bound == "latency" and figure == _copies(figures)[1]
    if share < (MOVES if alone else LATENCY_BOUND_BELOW) or share < reached.get(
        "link" if alone else figures.bound, 0.0
    ):
        return []
    return [Sentence(f"{what} for {percent(share)} of the time ({figure}): that caps what more bandwidth gives.")]


def _ways_out(figures: Figures) -> tuple[float, str, str]:
    """For which share of the time the ports of SMs with work are busy with stores and with requests, which take the
    place of a sector each; at least, as all lines that are read count as whole ones."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    left = kernel.counters.get("l2_write_bytes", 0) + kernel.counters.get("l2_read_bytes", 0) // 4
    width = figures.machine.spec.get("port", {}).get("write", 0.0) * kernel.own.sms * kernel.cycles
    share = left / width if width else 0.0
    return share, "port.write", "Requests and stores keep the ports by which they leave SMs busy"


def _copies(figures: Figures) -> tuple[float, str, str]:
    """For which share of the time a collective's CTAs copy inside their device."""
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    algorithm, protocol = [*kernel.schedule.split()[-2:], "", ""][:2]
    busy = kernel.counters.get("copy_busy_cycles", 0) / kernel.cycles
    return busy, nccl.copying(algorithm, protocol), "CTAs of the collective copy inside their devices"


def _nearer(reached: Mapping[str, float]) -> Claim:
    """What moves a run that waits, whatever its schedule: all that it waits for, together."""
    busy = ["dram.bandwidth"] if reached.get("dram", 0.0) >= MOVES else []
    if reached.get("l2", 0.0) >= MOVES:
        busy += ["l2.bandwidth", "l2.write_bandwidth", "port.write"]
    return moves("clock.boost", "l2.hit_latency", "dram.latency", *busy)


def _remedy_of_waits(report: Report) -> tuple[str, tuple[Claim, ...]]:
    """What moves a run that waits: a schedule that gives the chip more to do at once, unless others were tried."""
    if "link_write_bytes" in report.figures.counters and "warps" not in report.figures.stalls:
        return "Steps between the devices follow each other: more bytes at a time would use the links better.", ()
    tried = [c for c in report.record.candidates if c.simulated_cycles or c.given_up_ps or c.pace_ps]
    if len(tried) > 1:
        claim = _nearer(report.figures.speed_of_light())
        return (
            f"None of the {len(tried)} schedules that were simulated is faster; a higher clock together with nearer "
            f"and faster caches and memory ({', '.join(claim.figures)}) would move it, or more work in one launch.",
            (claim,),
        )
    more = _more_at_a_time(report.figures)
    if not any(c.estimate_cycles for c in report.record.candidates):  # a program of one's own: there is no other
        return f"What may move it: {more}.", ()
    return f"Another schedule may move it (--tune tries all): {more}.", ()


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
