"""A line of progress with the time left on a terminal, for anything that takes more than a second; silent elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

DELAY_S = 1.0
INTERVAL_S = 0.2
_WIDTH = 30


class Progress:
    """`with Progress("gemm") as p: ... p(0.3)`: draws a bar after the first second and removes it at the end."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self._drawn = 0

    def __call__(self, share: float) -> None:
        """Shows `share` (0 to 1) as done."""
        now_s = time.monotonic()
        if not self._on or now_s - self._started_s < DELAY_S or now_s - self._drawn_s < INTERVAL_S:
            return
        self._drawn_s = now_s
        filled = round(min(max(share, 0.0), 1.0) * _WIDTH)
        line = f"{self.label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * share:3.0f} %"
        if 0 < share < 1:
            line += f", {_clock((now_s - self._started_s) * (1 - share) / share)} left"
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()


def _clock(seconds: float) -> str:
    """`0:42`, or `1:02:03` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
