"""How time passes: engines, memory, host, reports, command line. The public interface is `simulate` and `compare`.

Names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.app.report.compare import Comparison
    from sim.app.report.report import Report
    from sim.app.run import compare, simulate, simulate_row
    from sim.app.study.optimize import optimize
    from sim.app.study.sensitivity import sensitivity
    from sim.app.study.sweep import Sweep, sweep

_HOMES = {
    "Comparison": "report.compare",
    "Report": "report.report",
    "compare": "run",
    "simulate": "run",
    "simulate_row": "run",
    "Sweep": "study.sweep",
    "optimize": "study.optimize",
    "sensitivity": "study.sensitivity",
    "sweep": "study.sweep",
}

__all__ = ["Comparison", "Report", "Sweep", "compare", "optimize", "sensitivity", "simulate", "simulate_row", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sim.app.{_HOMES[name]}"), name)
