"""What a simulation itself costs, and by which version of the program it was made."""

from __future__ import annotations

import re
import resource
import sys
import time
from importlib import metadata
from pathlib import Path

from sim.app.report.record import SimulatorStats


def version() -> str:
    """Version of the installed program; `0+unknown` where it is not installed."""
    try:
        return metadata.version("tilewave")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def peak_memory_bytes() -> int:
    """The most memory that this process has held. Linux says it in /proc; the figure of getrusage, which other systems
    have, begins with that of the process which started this one."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="ascii", errors="replace"))
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Cost:
    """What a simulation costs, counted from the moment at which this is made."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.perf_counter()

    def stats(self, events: int, **counts: int) -> SimulatorStats:
        """The cost so far. events, counts: what the engine counted."""
        return SimulatorStats(
            events=events,
            cpu_s=time.process_time() - self._cpu_s,
            wall_s=time.perf_counter() - self._wall_s,
            peak_memory_bytes=peak_memory_bytes(),
            **counts,
        )
