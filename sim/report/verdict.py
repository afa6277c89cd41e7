"""In words: what bounds a run, and what would move it. Every sentence quotes the figure that it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.figures import Figures, hit_rates, shares, total
from sim.report.sections import ghz_text, percent, time_text, words

if TYPE_CHECKING:
    from sim.report.report import Report

WORTH_A_WORD = 0.05
"""Losses below this share of the time are not mentioned."""

REMEDIES = {
    "long_scoreboard": "more loads in flight (occupancy, deeper prefetch) or better locality",
    "lg_throttle": "wider loads, or fewer of them",
    "mio_throttle": "fewer shared-memory instructions (wider accesses, larger register tiles)",
    "short_scoreboard": "more work between a shared-memory load and its use, or fewer bank conflicts",
    "math_pipe_throttle": "nothing in the schedule: the pipe is busy; a faster pipe or a narrower format",
    "wait": "more independent instructions between dependent ones",
    "barrier": "fewer synchronisations a tile, or more stages",
    "mbarrier": "more stages or faster loads, where it is the consumers that wait",
    "gmma": "nothing while the tensor pipe is busy; else a larger tile or a second warpgroup",
    "tma_store": "faster stores, or more buffers for them",
    "cp_async": "more stages or faster loads",
    "cluster_barrier": "less skew between the CTAs of a cluster, or smaller clusters",
    "no_instruction": "shorter code, or a warm instruction cache",
    "not_selected": "nothing: there are more ready warps than issue slots",
}
"""What moves a warp state; states without an entry are not commented on."""


def sentences(report: Report) -> list[str]:
    """One to a handful of sentences."""
    figures = report.figures
    return [_bound(figures), *_losses(figures)]


def _bound(figures: Figures) -> str:
    """The sentence about the limiting unit."""
    reached = figures.speed_of_light()
    machine = figures.machine
    match figures.bound:
        case "overhead":
            share = percent(figures.overhead_ps / figures.time_ps)
            return (
                f"Launch and host take {time_text(figures.overhead_ps)} ({share} of the time): fewer or larger "
                "kernels, a graph, or fusion would move it, a faster chip would not."
            )
        case "dram":
            rate = machine.dram_bytes_per_s * 1e-12
            return (
                f"External memory is busy: {percent(reached['dram'])} of {rate:.2f} TB/s. Fewer bytes (fusion, a "
                "narrower format, better reuse in the L2) or more bandwidth would move it; a faster clock would not."
            )
        case "l2":
            return (
                f"The L2 is busy: {percent(reached['l2'])} of its bandwidth. Larger tiles or multicast in clusters "
                "would move it."
            )
        case "compute":
            pipes = {name: share for name, share in reached.items() if name.endswith(" pipe")}
            busiest = max(pipes, key=lambda name: pipes[name], default="compute")
            busy = max(pipes.get(busiest, 0.0), reached["compute"])
            return (
                f"Arithmetic is busy: {percent(busy)} of what the {busiest} can do at {ghz_text(figures.clock_hz)}. "
                "More clock, more SMs or a narrower format would move it; more memory bandwidth would not."
            )
        case _:
            best = max(reached, key=lambda name: reached[name])
            return (
                f"No unit is near its peak (the busiest, {best}, reaches {percent(reached[best])}): latencies bound "
                "it. More parallelism would move it: smaller tiles or split-K for more CTAs, more stages, more warps."
            )


def _losses(figures: Figures) -> list[str]:
    """Sentences about what else costs time."""
    found = []
    kernel = max(figures.kernels, key=lambda k: k.time_ps)
    waiting = {state: share for state, share in _stall_shares(figures).items() if state in REMEDIES}
    if waiting:
        state, share = next(iter(waiting.items()))
        if share >= WORTH_A_WORD:
            found.append(
                f"Warps spend {percent(share)} of their cycles in {words(state)}; it moves with {REMEDIES[state]}."
            )
    clock = figures.clock_hz / figures.machine.boost_hz
    if clock < 1 - WORTH_A_WORD:
        reason = f" ({words(kernel.throttle_reason)})" if kernel.throttle_reason else ""
        found.append(f"The clock is {percent(1 - clock)} below boost{reason}; at boost the same cycles take less time.")
    tail = kernel.tail_cycles / kernel.cycles
    if tail >= WORTH_A_WORD:
        found.append(
            f"The tail, in which SMs run out of work, is {percent(tail)} of the cycles "
            f"({kernel.waves_milli / 1000:.2f} waves): "
            "another tile size, stream-K or a shape that fills the last wave would shorten it."
        )
    rates = hit_rates(figures.counters)
    if figures.bound == "dram" and rates.get("dram_row", 1.0) < 0.5:
        found.append(
            f"Only {percent(rates['dram_row'])} of DRAM accesses hit an open row: longer contiguous pieces help."
        )
    overhead = figures.overhead_ps / figures.time_ps
    if figures.bound != "overhead" and overhead >= WORTH_A_WORD:
        found.append(f"Launch and host are {percent(overhead)} of the time ({time_text(figures.overhead_ps)}).")
    return found


def _stall_shares(figures: Figures) -> dict[str, float]:
    """Shares of all warp-cycles by state, largest first, without those in which a warp issued."""
    split = shares(total(k.warp_state_cycles for k in figures.kernels))
    return {state: share for state, share in split.items() if state != "selected"}
