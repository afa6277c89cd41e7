"""Reads TOML that people write or merge: whatever is wrong with it is one error that names the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from arch.errors import InputError

MOST_BYTES = 64 << 20
"""Of one file: a lock of a hundred thousand cases."""


def read_toml(path: Path, hint: str) -> dict[str, Any]:
    """The tables of the file at `path`. InputError where it cannot be read or is no TOML. hint: what would be right."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; {hint}")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; {hint}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply; {hint}") from None
    except InputError:
        raise
    except ValueError as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise InputError(f"{path}: {error}; {hint}") from None
