#!/usr/bin/env python3
"""Compares two `cycles.lock` files by value: cycles, time, clock, energy, counters and stalls of every case.

    scripts/compare_locks.py OLD NEW [--allow-new] [--allow-short]

Hashes, versions and the layout of the files do not matter. Prints what differs; exit code 0 if nothing does, 1 if
something does, 2 for wrong input. --allow-new: cases that OLD lacks are no difference. --allow-short: nor are counters
and stalls of cases of which NEW keeps none.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HASHES = ("machine", "kernels")
"""Keys of a case that say where it came from and not what came out."""


def values(case: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a case by its dotted name, hashes left out."""
    for key, value in case.items():
        if isinstance(value, Mapping):
            yield from values(value, f"{prefix}{key}.")
        elif prefix or key not in HASHES:
            yield f"{prefix}{key}", value


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, allow_new: bool = False, allow_short: bool = False
) -> list[str]:
    """One line for each case that only one side has and for each value that differs. allow_short: but for details of
    cases of which `new` has none."""
    found = [f"{name}: is gone" for name in old if name not in new]
    found += [f"{name}: is new" for name in new if name not in old and not allow_new]
    for name in (name for name in old if name in new):
        before, after = dict(values(old[name])), dict(values(new[name]))
        if allow_short and not any("." in key for key in after):
            before = {key: value for key, value in before.items() if "." not in key}
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                found.append(f"{name}: {key} {before.get(key)} -> {after.get(key)}")
    return found


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--allow-new", action="store_true", help="cases that OLD lacks are no difference")
    parser.add_argument("--allow-short", action="store_true", help="nor are details of cases of which NEW has none")
    options = parser.parse_args(words)
    try:
        old, new = (
            tomllib.loads(path.read_text(encoding="utf-8")).get("case", {}) for path in (options.old, options.new)
        )
    except (OSError, ValueError) as error:
        print(f"compare_locks: {error}", file=sys.stderr)
        return 2
    found = differences(old, new, allow_new=options.allow_new, allow_short=options.allow_short)
    print("\n".join([*found, f"{len(old)} and {len(new)} cases, {len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
