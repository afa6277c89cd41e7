"""What was asked of a run beside its operator, as records, JSON and titles say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arch.spec import labelled

DEFAULT_CONDITIONS: Mapping[str, str | bool] = {
    "clock": "isolated",
    "l2": "cold",
    "data": "normal",
    "scope": "kernel",
    "exact": False,
}
"""Conditions of a run, and what they are where nobody says otherwise."""


_FILES = ("machine_file", "program", "workload_file")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that went into a run. sha256: of what it says; of a machine's file, of its figures and its bases'."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy of another package that a machine names. sha256: of what is registered and of the package's source."""

    name: str
    package: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked beside the operator: everything else that a number can depend on.

    conditions: those of `DEFAULT_CONDITIONS` that mean something on the machine. overrides: figures of the machine that
    were changed, as typed, by path; unread: those of them that nothing read in this run. program: a listing that
    was run instead. workload_file: the file that says what is computed: a
    program, a network. versions: of the program and
    of what it computes with; no number depends on them, so that studies do not keep them. implausible: figures beyond
    what real machines have, in words. extensions: policies and operators of other
    packages, by the path of the figure or the word. pdl:
    programmatic dependent launch. held: schedules that operators of a graph or a network were to run, by operator.
    measured_as: the kind of measurement by whose name conditions were asked for.
    """

    schedule: str = "auto"
    without: Sequence[str] = ()
    tune: bool = False
    conditions: Mapping[str, str | bool] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    unread: Sequence[str] = ()
    machine_file: FileRecord | None = None
    program: FileRecord | None = None
    workload_file: FileRecord | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    implausible: Sequence[str] = ()
    extensions: Mapping[str, PolicyRecord] = field(default_factory=dict)
    pdl: bool = False
    held: Mapping[str, str] = field(default_factory=dict)
    measured_as: str = ""

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Asked:
        """What a report by schema.json says."""
        files = {key: FileRecord(report[key]["name"], report[key]["hash"]) if key in report else None for key in _FILES}
        return cls(
            schedule=report["schedule_asked"],
            without=tuple(report["without"]),
            tune=report.get("tune", False),
            pdl=report.get("pdl", False),
            measured_as=report.get("measured_as", ""),
            held=dict(report.get("schedules_held", {})),
            conditions={name: value for name, value in report["conditions"].items() if name in DEFAULT_CONDITIONS},
            overrides=dict(report["overrides"]),
            unread=tuple(report.get("overrides_unread", ())),
            implausible=tuple(report.get("figures_implausible", ())),
            versions=dict(report.get("versions", {})),
            extensions={
                path: PolicyRecord(said["name"], said["package"], said["hash"])
                for path, said in report.get("extensions", {}).items()
            },
            **files,
        )

    def to_dict(self) -> dict[str, Any]:
        """The keys of schema.json that say all this."""
        files = {key: getattr(self, key) for key in _FILES}
        others = {
            path: {"name": said.name, "package": said.package, "hash": said.sha256}
            for path, said in self.extensions.items()
        }
        return {
            "overrides": dict(self.overrides),
            **({"overrides_unread": list(self.unread)} if self.unread else {}),
            **({"figures_implausible": list(self.implausible)} if self.implausible else {}),
            **({"extensions": others} if others else {}),
            "conditions": dict(self.conditions),
            "schedule_asked": self.schedule,
            "without": list(self.without),
            **({"tune": True} if self.tune else {}),
            **({"pdl": True} if self.pdl else {}),
            **({"measured_as": self.measured_as} if self.measured_as else {}),
            **({"schedules_held": dict(self.held)} if self.held else {}),
            **{key: {"name": file.name, "hash": file.sha256} for key, file in files.items() if file},
            **({"versions": dict(self.versions)} if self.versions else {}),
        }

    @property
    def unusual(self) -> list[str]:
        """What is not at its default, in words that titles can show; the machine's figures are in its label."""
        changed = [
            name if value is True else f"{name} {value}"
            for name, value in self.conditions.items()
            if value != DEFAULT_CONDITIONS[name]
        ]
        left_out = [f"without {' '.join(self.without)}"] if self.without else []
        held = [f"schedules of {len(self.held)} operators held"] if self.held else []
        program = [f"program {self.program.name}"] if self.program else []
        kind = [f"as {self.measured_as}"] if self.measured_as else []
        more = [*(["tuned"] if self.tune else []), *(["pdl"] if self.pdl else [])]
        return [*kind, *changed, *left_out, *more, *held, *program]

    @property
    def words(self) -> dict[str, str]:
        """Everything by name, as text; what nobody asked for is absent."""
        files = {key.replace("_", " "): getattr(self, key) for key in _FILES}
        found = {
            **self.overrides,
            **{name: str(value) for name, value in self.conditions.items()},
            "schedule asked": self.schedule,
            "without": " ".join(self.without),
            "tuned": "True" if self.tune else "",
            "programmatic dependent launch": "True" if self.pdl else "",
            "measured as": self.measured_as,
            **{f"schedule held of {op}": schedule for op, schedule in self.held.items()},
            **{name: f"{file.name}, SHA-256 {file.sha256[:16]}" for name, file in files.items() if file},
            **{f"{path} of": f"{said.package}, SHA-256 {said.sha256[:16]}" for path, said in self.extensions.items()},
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }
        return {name: text for name, text in found.items() if text}

    @property
    def schedule_text(self) -> str:
        """The schedule as it was asked for, with what it was to leave out."""
        return " without ".join([self.schedule, *([" ".join(self.without)] if self.without else [])])


def titled(what: str, unusual: Sequence[str]) -> str:
    """A title with what is not as usual about it, if there is any such thing."""
    return f"{what} ({', '.join(unusual)})" if unusual else what


def title_of(report: Mapping[str, Any]) -> str:
    """What a report by schema.json is about: workload, machine with its changes, unusual conditions."""
    asked = Asked.of(report)
    return titled(f"{report['workload']} on {labelled(report['machine'], asked.overrides)}", asked.unusual)
