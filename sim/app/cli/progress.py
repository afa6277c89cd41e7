"""A line of progress with the time left and the rate on a terminal, for anything that takes more than a second; silent
elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from arch.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Line

DELAY_S = 1.0
INTERVAL_S = 0.2
_WIDTH = 30
_SHARE = 22
"""Columns of `100 %, 1:02:03 left` and of the gaps beside it."""
_RATE = 13
"""Columns of `, 0.00012 %/s`."""
_ROOM_FOR_RATE = 60
"""Columns of a terminal on which the rate has room."""


class Progress:
    """`with Progress("gemm") as p: ... p(0.3)`: draws a bar after the first second and removes it at the end."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._line: Line | None = None

    def __call__(self, share: float) -> None:
        """Shows `share` (0 to 1) as done."""
        now_s = time.monotonic()
        if not self._on or now_s - self._started_s < DELAY_S or now_s - self._drawn_s < INTERVAL_S:
            return
        self._drawn_s = now_s
        line = self._line or _line(self._stream)
        taken_s = now_s - self._started_s
        left = f", {_clock(taken_s * (1 - share) / share)} left" if 0 < share < 1 else ""
        if left and line.console.width >= _ROOM_FOR_RATE:
            left += f", {100 * share / taken_s:.2g} %/s"
        line.update(line.task_ids[0], completed=share, description=printable(self.label), left=left)
        if self._line:
            line.refresh()
        else:
            self._line = line
            line.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line:
            self._line.stop()


def _line(stream: TextIO) -> Line:
    """A bar that is drawn when it is told to: a thread that draws would be copied into the processes of a study."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(file=stream, force_terminal=True, highlight=False)
    room = max(console.width * 3 // 4 - _SHARE - (_RATE if console.width >= _ROOM_FOR_RATE else 0), 8)
    label = TextColumn("{task.description}", markup=False, table_column=Column(max_width=room, no_wrap=True))
    share = TextColumn("{task.percentage:3.0f} %{task.fields[left]}", markup=False, table_column=Column(no_wrap=True))
    line = Progress(
        *(label, BarColumn(min(_WIDTH, console.width // 4)), share),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    line.add_task("", total=1.0, left="")
    return line


def _clock(seconds: float) -> str:
    """`0:42`, or `1:02:03` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
