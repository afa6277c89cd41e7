"""Draws an array cell by cell as an animation: GIF, or a page of HTML. Imported only where one is drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib.pyplot as plt
from markupsafe import Markup
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sim.app.report import palette
from sim.app.report.html import rendered
from sim.app.report.plots import picture_title

FRAMES_PER_S = 2
_BUTTONS = {
    "minus": "−", "fast-backward": "|◀", "step-backward": "‹", "play flip-horizontal": "◀", "pause": "❚❚", "play": "▶",
    "step-forward": "›", "fast-forward": "▶|", "plus": "+",
}  # fmt: skip
"""What stands on a button, by the name of matplotlib's picture."""
LETTERS_AN_INCH = 11
"""Of a title."""
FORMATS = (".gif", ".html")
_COLOURS = {
    "multiplies": "#a9cfa6",
    "weight moves": palette.of_state("weight_shift"),
    "weight rests": palette.IDLE,
    "empty": "white",
}
"""Work in a lighter tone, since numbers stand on it."""


class Frame(Protocol):
    """What the cells hold in one cycle, [rows, columns] each (`sim.tpu.pe.Cells`)."""

    @property
    def cycle(self) -> int:
        """Number of the cycle."""

    @property
    def valid(self) -> NDArray[Any]:
        """The cell multiplies."""

    @property
    def moving(self) -> NDArray[Any]:
        """A weight passes."""

    @property
    def loaded(self) -> NDArray[Any]:
        """A weight has come to it."""

    @property
    def act(self) -> NDArray[Any]:
        """Activation."""

    @property
    def weight(self) -> NDArray[Any]:
        """Weight that multiplies."""

    @property
    def shadow(self) -> NDArray[Any]:
        """Weight of the second registers."""

    @property
    def total(self) -> NDArray[Any]:
        """Sum."""


def animate(title: str, frames: Sequence[Frame], path: Path) -> None:
    """Writes one picture a cycle to a .gif or .html file."""
    rows, columns = frames[0].act.shape
    figure, ax = plt.subplots(figsize=(1.3 + 1.15 * columns, 1.4 + 1.0 * rows), layout="constrained")
    ax.set(xlim=(-0.6, columns - 0.4), ylim=(rows - 0.4, -0.6), aspect="equal")
    ax.set_xticks(range(columns), [f"column {c}" for c in range(columns)], fontsize=7)
    ax.set_yticks(range(rows), [f"row {r}" for r in range(rows)], fontsize=7)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    boxes = {(r, c): ax.add_patch(Rectangle((c - 0.46, r - 0.46), 0.92, 0.92, ec="0.5")) for r, c in cells}
    texts = {(r, c): ax.text(c, r, "", ha="center", va="center", fontsize=8) for r, c in cells}
    title = picture_title(title, int(LETTERS_AN_INCH * figure.get_size_inches()[0]))
    heading = ax.set_title(f"{title}\n", fontsize=10)
    keys = [Rectangle((0, 0), 1, 1, fc=colour, ec="0.5") for colour in _COLOURS.values()]
    figure.legend(keys, list(_COLOURS), loc="outside lower center", ncols=4, fontsize=7, frameon=False)

    figure.canvas.draw()
    figure.set_layout_engine("none")  # the layout stays; making it anew for every picture takes most of the time

    def draw(number: int) -> list[Any]:
        frame = frames[number]
        heading.set_text(f"{title}\ncycle {frame.cycle}: {int(frame.valid.sum())} of {frame.valid.size} cells multiply")
        for cell in cells:
            kind, text = _cell(frame, *cell)
            boxes[cell].set_facecolor(_COLOURS[kind])
            texts[cell].set_text(text)
        return [heading]

    movie = FuncAnimation(figure, draw, frames=len(frames), interval=1000 // FRAMES_PER_S)
    if path.suffix == ".html":
        page = rendered("movie.html", title=title, movie=Markup(_offline(movie.to_jshtml(fps=FRAMES_PER_S))))
        path.write_text(page, encoding="utf-8")
    else:
        movie.save(path, writer=PillowWriter(fps=FRAMES_PER_S), dpi=110)
    plt.close(figure)


def _offline(movie: str) -> str:
    """The animation with letters on its buttons, in place of pictures from the network."""
    movie = re.sub(r"<link[^>]*>", "", movie)
    return re.sub(r'<i class="fa fa-([\w-]+)(?: fa-([\w-]+))?"></i>', _button, movie)


def _button(found: re.Match[str]) -> str:
    return _BUTTONS[f"{found[1]} {found[2]}" if found[2] else found[1]]


def _cell(frame: Frame, r: int, c: int) -> tuple[str, str]:
    """How a cell is coloured, and what stands in it."""
    if frame.valid[r, c]:
        return "multiplies", f"{frame.act[r, c]} × {frame.weight[r, c]}\nΣ {frame.total[r, c]}"
    if frame.moving[r, c]:
        return "weight moves", f"w {frame.shadow[r, c]}"
    return ("weight rests", f"w {frame.shadow[r, c]}") if frame.loaded[r, c] else ("empty", "")
