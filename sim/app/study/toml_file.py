"""Reads TOML that people write or merge: whatever is wrong with it is one error that names the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError


def read_toml(path: Path, hint: str) -> dict[str, Any]:
    """The tables of the file at `path`. InputError where it cannot be read or is no TOML. hint: what would be right."""
    try:
        return tomllib.loads(reading.text(path))
    except InputError as error:
        raise InputError(f"{error}; {hint}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply; {hint}") from None
    except ValueError as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise InputError(f"{path}: {error}; {hint}") from None
