"""In words: what bounds a run, and what would move it. Every sentence quotes the figure that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sim.app.report.figures import Figures
from sim.app.report.text import percent, time_text, words

if TYPE_CHECKING:
    from sim.app.report.report import Report

WORTH_A_WORD = 0.05
"""Losses below this share of the time are not mentioned."""

MOVES = 0.2
"""A memory that is busy for this share of the time, though it does not bound it, is worth a word: what is given is how
much twice its bandwidth can save."""

MEMORIES = {"dram": "External memory", "l2": "The L2", "pcie": "The link to the host"}
"""Levels whose bandwidth is a figure of the machine, as sentences begin."""

IDLE_MEMORY = 0.5
"""A memory that is busy for a smaller share of the time hides behind arithmetic that bounds a run: more bandwidth gives
nothing."""

ALONE = 0.85
"""A unit that is busy for this share of the time leaves so little beside it that nothing else moves the run."""

SURE = 0.76
"""A memory that is busy for this share of the time that kernels run, launches apart, moves the run: what is left may be
latency that no bandwidth shortens."""

NAMES = {
    "clock.boost": "a faster clock",
    "power.limit": "a higher power limit",
    "dram.bandwidth": "more memory bandwidth",
    "l2.bandwidth": "more bandwidth of the L2",
    "shared.bandwidth": "a wider array of shared memory",
    "pcie.bandwidth": "a faster link to the host",
    "hbm.bandwidth": "more HBM bandwidth",
    "ddr.bandwidth": "more DDR bandwidth",
}
"""Figures of machines, as sentences name them."""


_CLOCK = "clock.boost"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a verdict says of figures of the machine that get a tenth better together (a latency or an interval: a tenth
    less), with the schedule held. moves: that takes 2 % or more off the time; else less than 2 %, either way."""

    figures: tuple[str, ...]
    moves: bool

    def to_dict(self) -> dict[str, Any]:
        """The claim by schema.json."""
        return {"figures": list(self.figures), "moves": self.moves}


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a verdict, with the claims that it makes."""

    text: str
    claims: tuple[Claim, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The sentence by schema.json."""
        return {"text": self.text, "claims": [claim.to_dict() for claim in self.claims]}


def moves(*figures: str) -> Claim:
    """The claim that these figures move the time, together."""
    return Claim(figures, True)


def stays(*figures: str) -> Claim:
    """The claim that these figures do not move the time."""
    return Claim(figures, False)


def advised(text: str, claims: Sequence[Claim], others: Sequence[str] = (), *, sure: bool = True) -> Sentence:
    """A sentence with what would move the run and what would not, each as `NAMES` has it.

    others: what moves it and is no figure of the machine. sure: the unit is busy enough for that; else it may move it,
    and nothing is claimed.
    """
    claims = tuple(claims) if sure else tuple(claim for claim in claims if claim.moves)
    names = {claim: " and ".join(NAMES.get(figure, figure) for figure in claim.figures) for claim in claims}
    moving = [*others, *(name for claim, name in names.items() if claim.moves)]
    still = [name for claim, name in names.items() if not claim.moves]
    parts = []
    if moving:
        parts.append(f"{_either(moving)} {'would' if sure else 'may'} move it")
    if still:
        parts.append(f"{_either(still)} would not")
    advice = "; ".join(parts)
    return Sentence(f"{text} {advice[:1].upper()}{advice[1:]}." if advice else text, claims if sure else ())


def _either(things: Sequence[str]) -> str:
    """`a, b or c`."""
    *first, last = things
    return f"{', '.join(first)} or {last}" if first else last


def faster_chip(figures: Figures) -> str:
    """What a faster chip gives where launches and the host bound a run: no more than the rest of the time."""
    rest = 1 - figures.overhead_ps / figures.time_ps
    return f"the fastest chip would save no more than the other {percent(rest)}."


def at_most(busy: Mapping[str, float]) -> list[Sentence]:
    """Sentences about memories, by the share of the time for which they move data."""
    return [
        Sentence(
            f"{MEMORIES[level]} moves data for {percent(share)} of the time; twice its bandwidth saves at most half of "
            "it."
        )
        for level, share in sorted(busy.items(), key=lambda entry: -entry[1])
        if share >= MOVES
    ]


def memory_beside(share: float, figure: str = "dram.bandwidth") -> tuple[str, tuple[Claim, ...]]:
    """What a sentence about busy arithmetic says of a memory that is busy for this share of the time, and claims."""
    if share < IDLE_MEMORY:
        return "more memory bandwidth would not.", (stays(figure),)
    return f"memory is busy for {percent(share)}, too: more bandwidth would move it less.", ()


def bandwidth_claims(figure: str, share: float) -> tuple[Claim, ...]:
    """That a unit which is busy for this share of the time moves the run, and the clock does not where it is alone."""
    return (moves(figure), *((stays("clock.boost"),) if share >= ALONE else ()))


def sentences(report: Report) -> list[Sentence]:
    """One to a handful of sentences, the most important one first."""
    found = [*report.figures.machine.view.verdict(report), *_losses(report.figures)]
    if report.record.asked.conditions.get("clock", "isolated") in ("isolated", "sustained"):
        return found
    # A locked clock stays where it is.
    return [
        replace(said, claims=tuple(c for c in said.claims if not (c.moves and _CLOCK in c.figures))) for said in found
    ]


def _losses(figures: Figures) -> list[Sentence]:
    """Sentences about what else costs time on any machine."""
    found = []
    clock = figures.clock_hz / figures.machine.boost_hz
    if clock < 1 - WORTH_A_WORD and not figures.held_by_power:
        kernel = max(figures.kernels, key=lambda k: k.time_ps)
        reason = f" ({words(kernel.throttle_reason)})" if kernel.throttle_reason else ""
        found.append(Sentence(f"The clock is {percent(1 - clock)} below boost{reason}."))
    overhead = figures.overhead_ps / figures.time_ps
    if figures.bound != "overhead" and overhead >= WORTH_A_WORD:
        found.append(
            Sentence(f"Launch and host are {percent(overhead)} of the time ({time_text(figures.overhead_ps)}).")
        )
    return found
