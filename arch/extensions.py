"""What other packages register by entry points: warp schedulers, replacement policies, operators, families of machines.

A machine names a policy that ships or one of these (`sm.scheduler`, `l1.replacement`, `l2.replacement`), a workload an
operator. Known here are name, package and source, without a line of it being executed; `sim.engine.extensions` loads a
policy's functions, `workloads.ops` an operator's class.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

SCHEDULERS, REPLACEMENTS = "tilewave.schedulers", "tilewave.replacement"
OPERATORS, FAMILIES = "tilewave.operators", "tilewave.families"
"""Groups of entry points."""


@dataclass(frozen=True)
class Registered:
    """A policy or an operator of another package.

    value: where its object is, as `module:name`. package: its distribution and version. others: further packages that
    register the name, too, so that it cannot be used.
    """

    group: str
    name: str
    value: str
    package: str
    others: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[Path, ...]:
        """Python files of its package, of which a number may depend on any."""
        return _sources(self.value.partition(":")[0].partition(".")[0])

    @property
    def sha256(self) -> str:
        """SHA-256 over what is registered, and over names and contents of its sources."""
        digest = hashlib.sha256(f"{self.group}:{self.name}={self.value}".encode())
        for path in self.sources:
            content = path.read_bytes()
            digest.update(f"{path.name}:{len(content)}:".encode())
            digest.update(content)
        return digest.hexdigest()

    def load(self) -> Any:
        """The object. Whatever its module raises is passed on."""
        return metadata.EntryPoint(self.name, self.value, self.group).load()


@cache
def registered(group: str) -> tuple[Registered, ...]:
    """What is registered in a group, by name: the same for the life of a process."""
    found: dict[str, Registered] = {}
    for entry in sorted(_entry_points().select(group=group), key=lambda entry: (entry.name, _package(entry))):
        package, known = _package(entry), found.get(entry.name)
        if known is None:
            found[entry.name] = Registered(group, entry.name, entry.value, package)
        elif package not in (known.package, *known.others):
            others = (*known.others, package)
            found[entry.name] = Registered(group, known.name, known.value, known.package, others)
    return tuple(found.values())


@cache
def _entry_points() -> Any:
    """Those of all packages, whose metadata is read once for all groups (their class has changed with Python)."""
    return metadata.entry_points()


def _package(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""


@cache
def _sources(top: str) -> tuple[Path, ...]:
    """Python files of a package or module by its first name; none where it cannot be found."""
    try:
        spec = util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return ()
    folders = spec.submodule_search_locations or ()
    files = {path for folder in folders for path in Path(folder).rglob("*.py")}
    return tuple(sorted(files)) if folders else (Path(spec.origin),) if spec.origin else ()
