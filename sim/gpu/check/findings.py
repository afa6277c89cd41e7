"""What a replay finds wrong, in words: who did it, and how often."""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.engine.clock import TICKS_PER_CYCLE


def cycles(ticks: int) -> str:
    """A time as people read it."""
    return f"{ticks / TICKS_PER_CYCLE:.2f}".rstrip("0").rstrip(".")


class What(NamedTuple):
    """One executed op, as a violation names it. issue, done: ticks. line: of the source that wrote it."""

    opcode: str
    number: int
    role: str
    cta: int
    warp: int
    issue: int
    done: int
    line: str = ""

    def __str__(self) -> str:
        at = f"{cycles(self.issue)}..{cycles(self.done)}"
        line = f"{self.line}, " if self.line else ""
        return f"{self.role} {self.opcode} ({line}op {self.number}, CTA {self.cta}, warp {self.warp}, cycles {at})"

    @property
    def who(self) -> str:
        """The warp and the place in its program, without times."""
        return f"{self.role} warp {self.warp}{f' at {self.line}' if self.line else ''}"


class Violations:
    """Violations, each kind between the same two ops once, with its first occurrence and their number."""

    def __init__(self) -> None:
        self.kernel = ""  # name of the kernel that is replayed
        self._first: dict[tuple[Any, ...], str] = {}
        self._count: dict[tuple[Any, ...], int] = {}

    def add(self, key: tuple[Any, ...], text: str) -> None:
        """One more violation; those of one key are told as one."""
        key = (self.kernel, *key)
        self._first.setdefault(key, f"kernel {self.kernel}: {text}")
        self._count[key] = self._count.get(key, 0) + 1

    def of(self, what: What, kind: str, text: str, *other: int | str) -> None:
        """A violation by one op; `other` tells those of one kind apart."""
        self.add((kind, what.number, *other), f"{what} {text}")

    def lines(self) -> list[str]:
        """All of them, one line each."""
        return [
            text if self._count[key] == 1 else f"{text} (the first of {self._count[key]} such)"
            for key, text in self._first.items()
        ]
