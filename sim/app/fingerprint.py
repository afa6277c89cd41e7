"""Hash of the program itself: results of one version are never taken for those of another."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("arch", "sim", "workloads")
SUFFIXES = (".py", ".yaml", ".csv", ".json")

NOT_IN_RESULTS = (
    "arch/chips/",
    "arch/presets/",  # machines count by their own contents
    "arch/show.py",
    "sim/app/cli/",
    "sim/app/study/",
    "sim/app/trace/",
    *(
        f"sim/app/report/{name}"
        for name in ("compare.py", "html", "plots.py", "render.py", "schema.json", "sections.py")
    ),
    "sim/app/report/verdict.py",
    "workloads/accuracy/left_out",
    "workloads/accuracy/stated.csv",
    "workloads/silicon/",
)
"""Files that no number of a report depends on, by the beginning of their path."""


def result_sources(root: Path = ROOT) -> list[Path]:
    """Every file of the program that a simulated number can depend on, in a fixed order."""
    return [root / name for name in _names(root)]


@functools.cache
def code_hash(root: Path = ROOT) -> str:
    """SHA-256 over names and contents of `result_sources`."""
    digest = hashlib.sha256()
    for name in _names(root):
        with open(f"{root}/{name}", "rb") as file:
            content = file.read()
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _names(root: Path) -> list[str]:
    """Paths of these files below the root, with slashes. Every first result pays for this: texts are quicker than paths
    as objects."""
    found = []
    for package in PACKAGES:
        for folder, _, files in os.walk(root / package):
            place = os.path.relpath(folder, root).replace(os.sep, "/")
            found += [f"{place}/{name}" for name in files if name.endswith(SUFFIXES)]
    return sorted(name for name in found if not name.startswith(NOT_IN_RESULTS))
