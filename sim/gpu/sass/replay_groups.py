"""Groups of asynchronous effects of a warp: copies, stores of the TMA, products of the tensor cores."""

from __future__ import annotations

from collections.abc import Callable


class Groups:
    """Effects that have not happened yet, in groups as they were closed, the oldest first."""

    def __init__(self) -> None:
        self._closed: list[list[Callable[[], None]]] = []
        self._open: list[Callable[[], None]] = []

    def add(self, effect: Callable[[], None]) -> None:
        """An effect of the group that is open."""
        self._open.append(effect)

    def close(self) -> None:
        """The group that is open ends."""
        self._closed.append(self._open)
        self._open = []

    def await_all_but(self, count: int) -> None:
        """Lets all groups happen but the newest ones."""
        while len(self._closed) > count:
            for effect in self._closed.pop(0):
                effect()

    def finish_oldest(self) -> bool:
        """Lets the oldest effect of the open group happen; False without one."""
        if not self._open:
            return False
        self._open.pop(0)()
        return True

    def finish(self) -> None:
        """Lets all happen."""
        self.close()
        self.await_all_but(0)
