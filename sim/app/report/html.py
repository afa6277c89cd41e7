"""HTML by templates of `sim/app/report/templates`: whatever is put into one is escaped. Imported only where needed."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sim.app.report import palette
from sim.app.report.sections import Meter


def rendered(template: str, **values: Any) -> str:
    """A template filled in; `markupsafe.Markup` alone is taken as HTML."""
    return _environment().get_template(template).render(**values)


def _meter_colour(meter: Meter) -> str:
    return palette.css(palette.of_state(meter.state) if meter.state else palette.METER)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("sim.app.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["meter_colour"] = _meter_colour
    made.tests["meter"] = lambda cell: isinstance(cell, Meter)
    return made
