"""What belongs to a primary figure of a machine, and goes with it where somebody changes that one alone.

More bandwidth of a memory means that each of its channels does more at once; the DRAM's core (activate, precharge,
refresh) keeps its times. What is set beside the primary figure stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction

from arch.families import family, load
from arch.preset_file import Figure
from arch.units import TIME

Numbers = Callable[[str], Fraction]
"""The value of a figure in its base unit, by path; 0 where the machine states none."""

GOES = "goes with "
"""What stands before the primary figure where a file's line or a source would."""

MOST_BANKS = 128
"""Banks of shared memory that the model takes."""

Value = tuple[str, str | int]
"""A figure's path and its value, as one types it."""


@dataclass(frozen=True)
class Change:
    """A primary figure that somebody has changed.

    group: the group it stands in. ratio: its new value over the old one. before, after: figures as the machine's file
    states them, and with all that is asked for, whose paths are `asked`.
    """

    group: str
    ratio: Fraction
    before: Numbers
    after: Numbers
    asked: Collection[str]


def belonging(machines: str, before: Numbers, after: Numbers, asked: Collection[str]) -> dict[str, Figure]:
    """Figures that go with the primary ones among those that are asked for, unless they are asked for, too; machines:
    their family, which declares what goes with what."""
    found: dict[str, Figure] = {}
    for primary, parts in family(machines).belongs.items():
        old, new = (figures(primary) if primary in asked else 0 for figures in (before, after))
        if old > 0 and new > 0 and old != new:
            change = Change(primary.partition(".")[0], Fraction(new) / old, before, after, asked)
            goes = {path: Figure(value, "", "", f"{GOES}{primary}") for path, value in load(parts)(change)}
            found |= {path: figure for path, figure in goes.items() if path not in asked}
    return found


def interface(change: Change) -> Iterator[Value]:
    """Of a memory: the times between bursts and between activates of a channel, which standards count in clocks of its
    interface, and the banks and the queue that keep a faster one busy.

    Channels stay, and with them where each line lies: another number of them deals the same lines less evenly, so that
    a little more bandwidth could cost. Where somebody sets their number, the rate of each is what changes.
    """
    channels = f"{change.group}.channels"
    old, now = (figures(channels) for figures in (change.before, change.after))
    if not old:
        return
    faster = change.ratio * old / now
    for path in (f"{change.group}.{name}" for name in ("t_ccd", "t_faw")):
        if time := change.before(path):
            yield path, TIME.format(round(time / faster))
    for path in (f"{change.group}.{name}" for name in ("banks", "queue")):
        if count := change.before(path):
            yield path, max(1, round(count * faster))


def slices(change: Change) -> Iterator[Value]:
    """Of an L2: what slices take in, what passes between partitions, and the time that a slice takes for a read."""
    for path in ("l2.write_bandwidth", "l2.link_bandwidth"):
        if value := change.before(path):
            yield path, f"{float(value * change.ratio)!r} B/clk"
    if value := change.before("l2.request"):
        yield "l2.request", f"{float(value / change.ratio)!r} cycles"


def array(change: Change) -> Iterator[Value]:
    """Of shared memory: banks, each of which gives a word of 4 bytes a cycle, as many as a wider array needs."""
    banks, width = change.before("shared.banks"), change.after("shared.bandwidth")
    while 4 * banks < width and banks < MOST_BANKS:
        banks *= 2
    if banks != change.before("shared.banks"):
        yield "shared.banks", int(banks)


def paths(change: Change) -> Iterator[Value]:
    """Of systolic arrays: paths that give in and take out a row of all of them a cycle, where they did before."""
    for path, side in (("unified_buffer.bandwidth", "array.rows"), ("activation.values", "array.columns")):
        width, (old, new) = change.before(path), (f(side) * f("array.count") for f in (change.before, change.after))
        if old <= width < new:
            yield path, f"{int(new)} B/clk" if path.startswith("unified") else int(new)
