"""Hash of the program itself: results of one version are never taken for those of another."""

from __future__ import annotations

import functools
import hashlib
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
    "workloads/silicon/",
)
"""Files that no number of a report depends on, by the beginning of their path."""


def result_sources(root: Path = ROOT) -> list[Path]:
    """Every file of the program that a simulated number can depend on, in a fixed order."""
    files = (path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in SUFFIXES)
    return sorted(path for path in files if not path.relative_to(root).as_posix().startswith(NOT_IN_RESULTS))


@functools.cache
def code_hash(root: Path = ROOT) -> str:
    """SHA-256 over names and contents of `result_sources`."""
    digest = hashlib.sha256()
    for path in result_sources(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()
