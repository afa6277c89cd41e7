"""What all lessons share: figures simulated and published side by side, a picture, and the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.ticker import LogLocator, NullFormatter

from arch.errors import InputError
from sim.app.report import palette
from sim.app.report.render import as_text
from sim.app.report.sections import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Claim:
    """One published figure and what the simulator gives for it.

    published: None where there is no figure, only a comparison to see. said: the published statement where it is one in
    words, such as "1.1 or less". limit: largest relative deviation that is asked for; None where none is.
    """

    what: str
    simulated: float
    unit: str
    published: float | None = None
    limit: float | None = None
    remark: str = ""
    said: str = ""

    @property
    def deviation(self) -> float | None:
        """(simulated - published) / published."""
        return self.simulated / self.published - 1 if self.published else None

    @property
    def missed(self) -> bool:
        """Whether the deviation is beyond the limit."""
        return self.limit is not None and self.deviation is not None and abs(self.deviation) > self.limit

    def row(self) -> tuple[str, ...]:
        """The claim as cells of a table."""
        published = self.said or ("" if self.published is None else f"{self.published:.4g} {self.unit}")
        deviation = "" if self.deviation is None else f"{100 * self.deviation:+.1f} %"
        asked = ""
        if self.limit is not None and self.published is not None:
            asked = f"within {100 * self.limit:.0f} %{': MISSED' if self.missed else ''}"
        return (self.what, f"{self.simulated:.4g} {self.unit}", published, deviation, asked, self.remark)


def bars(
    axes: Axes, values: Mapping[str, float], *, form: str = "{:.3g}", across: bool = True,
    marks: Mapping[str, float] | None = None, **how: Any,
) -> None:  # fmt: skip
    """Bars that say their values: across in the order of reading, or upright. how: as `barh` and `bar` take it.

    marks: values that `published_marks` will mark beside bars across; what a bar says stands behind its mark.
    """
    how = {"color": palette.of_series(0), **how}
    if across:
        drawn = axes.barh(list(values), list(values.values()), **how)
        axes.invert_yaxis()
        axes.margins(x=0.12)
    else:
        drawn = axes.bar(list(values), list(values.values()), **how)
        axes.margins(y=0.12)
    said = axes.bar_label(drawn, [form.format(value) for value in values.values()], padding=3, fontsize=8)
    for text, (name, value) in zip(said, values.items(), strict=True):
        if marks and marks.get(name, value) > value:
            text.xy = (marks[name], text.xy[1])


def published_marks(axes: Axes, values: Mapping[str, float], label: str = "published") -> None:
    """A mark at each published value beside its bar, and its word in the legend; nothing where none is published."""
    if values:
        axes.plot(list(values.values()), list(values), "|", color="black", markersize=16, linestyle="", label=label)


LETTERS_AN_INCH = 14
"""Of a legend."""
LETTERS_BESIDE = 6
"""Room that the mark of an entry and the gap before the next one take."""


def legend_below(figure: Figure) -> None:
    """One legend of all that has a label, below the axes, where it covers nothing; none where nothing has."""
    found = {word: handle for ax in figure.axes for handle, word in zip(*ax.get_legend_handles_labels(), strict=True)}
    if found:
        room = LETTERS_AN_INCH * figure.get_size_inches()[0] // (max(map(len, found)) + LETTERS_BESIDE)
        beside = max(1, min(4, len(found), int(room)))
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=beside)


def plain_log(axes: Axes, sides: str = "xy") -> None:
    """Logarithmic sides whose ticks are plain numbers, 0.5 and 200 instead of powers of ten."""
    for side in sides:
        axis = axes.xaxis if side == "x" else axes.yaxis
        axes.set(**{f"{side}scale": "log"})
        low, high = axis.get_view_interval()
        steps = range(1, 10) if high < 4 * low else (1, 2, 5) if high < 1000 * low else (1,)
        axis.set_major_locator(LogLocator(subs=tuple(steps)))
        axis.set_major_formatter(_plain)
        axis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: int) -> str:
    """0.5, 200 or 1,000,000."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def table(title: str, claims: Sequence[Claim]) -> Section:
    """The claims; columns of which no claim has anything are left out."""
    header = ("", "simulated", "published", "deviation", "asked for", "")
    rows = [claim.row() for claim in claims]
    used = [i for i in range(len(header)) if i < 2 or any(row[i] for row in rows)]
    return Section(title, tuple(tuple(row[i] for i in used) for row in rows), tuple(header[i] for i in used))


Lesson = Callable[[bool], tuple[Sequence[Claim], "Figure"]]
"""Runs the lesson, in a reduced form if asked; what came out, and its picture."""


def main(document: str, lesson: Lesson, arguments: Sequence[str] | None = None) -> int:
    """The command line of a lesson: 0 fine, 1 where a claim is missed, 2 for wrong input."""
    import matplotlib

    matplotlib.use("Agg")
    title, _, text = document.partition("\n")
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(description=title, epilog=text)
    parser.add_argument("--plot", metavar="FILE", default=f"{name}.png", help=f"picture, default {name}.png here")
    parser.add_argument("--quick", action="store_true", help="fewer or smaller runs")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    options = parser.parse_args(arguments)
    try:
        claims, figure = lesson(options.quick)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([{**asdict(claim), "deviation": claim.deviation} for claim in claims], indent=1))
    else:
        print(as_text([table(title, claims)]))
    figure.savefig(options.plot, dpi=150)
    return 1 if any(claim.missed for claim in claims) else 0
