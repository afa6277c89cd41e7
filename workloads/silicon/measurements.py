"""Kinds of measurement by name: what a source's environment and a run as people measure it take from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from arch.errors import InputError
from arch.near import hint

MEASUREMENTS_YAML = Path(__file__).with_name("measurements.yaml")


class Measurement(BaseModel):
    """How people time an operator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    """What it is, in words."""
    scope: Literal["kernel", "event", "stream", "graph", "host"]
    """What its times cover."""
    l2: Literal["cold", "warm", "dirty", "turns"]
    """State of the L2 before each call."""
    settings: Mapping[str, Any]
    """Fields of `Environment` that it gives."""
    sources: str
    """Whose code measures so."""


@functools.cache
def measurements() -> Mapping[str, Measurement]:
    """All kinds by name, in the file's order."""
    table = yaml.safe_load(MEASUREMENTS_YAML.read_text(encoding="utf-8"))
    return {name: Measurement(**fields) for name, fields in table.items()}


def measurement(name: str) -> Measurement:
    """The kind of a name; InputError, with the nearest one, where there is none."""
    known = measurements()
    if name not in known:
        raise InputError(f"as {name}: no kind of measurement, one of {', '.join(known)}{hint(name, known)}")
    return known[name]
