"""What libraries take, as data: a file a library, with its releases, their rules and figures, and a source for each.

`--schedule cublas@13.1` asks for what a release takes for an operator on a machine, `--schedule cublas` for the newest.
A rule has a few named conditions, and either the kernel that is taken where they hold, as a schedule, or the function
that finds it by the release's figures, `module:function(op, machine, figures)`; it gives None where it has no kernel.
The first rule that gives one decides. Figures and tables of kernels may be read by those who build kernels, too
(`figure`, `rows`).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from arch import reading
from arch.errors import InputError
from arch.near import hint

FOLDER = Path(__file__).parent
Value = int | float | tuple[int | float, ...]
Cell = bool | int | float | str
Rank = Callable[[Any, Any, str], Any]
"""Who chooses kernels of an operator: of the operator, the machine and a schedule."""

_RULE = re.compile(r"[\w.]+:\w+")
_LIMIT = re.compile(r"(<=|>=|<|>) *(\d+)")


class Figure(NamedTuple):
    """One number of a library, or several, with where it is from and, where that needs words, a remark."""

    value: Value
    source: str
    remark: str = ""


class Table(BaseModel):
    """Kernels that a library has for an operator, by their sizes: one a row, such as its tiles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = Field(min_length=1)
    source: str
    remark: str = ""

    @model_validator(mode="after")
    def _rectangular(self) -> Table:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {list(row)} has {len(row)} cells, not {len(self.columns)}")
        return self


class Rule(BaseModel):
    """What a release takes for an operator where the conditions hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: str
    has: tuple[str, ...] = ()
    """Parts that the machine has to have, such as `tma`."""
    lacks: tuple[str, ...] = ()
    """Parts that it must not have."""
    when: Mapping[str, str | int | tuple[str | int, ...]] = Field(default_factory=dict)
    """Keys of the operator with their values: one, one of several, or a limit such as `<= 64`."""
    kernel: str = ""
    """The schedule that is taken."""
    rule: str = ""
    """Or the function that finds it."""
    source: str

    @model_validator(mode="after")
    def _one_of_both(self) -> Rule:
        if bool(self.kernel) == bool(self.rule):
            raise ValueError("has either a kernel or a rule")
        if self.rule and not _RULE.fullmatch(self.rule):
            raise ValueError(f"rule {self.rule} is no module:function")
        return self

    def holds(self, op: Any, spec: Any) -> bool:
        """Whether its conditions hold for an operator on a machine."""
        parts = all(getattr(spec, part) is not None for part in self.has)
        return (
            parts
            and all(getattr(spec, part) is None for part in self.lacks)
            and all(_meets(_key(op, key), wanted) for key, wanted in self.when.items())
        )

    @property
    def conditions(self) -> str:
        """They, in words; empty where it always holds."""
        found = [*(f"with {part}" for part in self.has), *(f"without {part}" for part in self.lacks)]
        for key, wanted in self.when.items():
            several = " or ".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted)
            found.append(f"{key} {several}" if _LIMIT.fullmatch(several) else f"{key}={several}")
        return ", ".join(found)


class Release(BaseModel):
    """One release of a library.

    words: schedules that asked for it in earlier versions of this program. note: what it says that it has, where it has
    nothing for a problem. takes: empty where nobody asks for the library, and its kernels are among those of others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    words: tuple[str, ...] = ()
    note: str = ""
    figures: Mapping[str, Figure] = Field(default_factory=dict)
    tables: Mapping[str, Table] = Field(default_factory=dict)
    takes: tuple[Rule, ...] = ()

    @field_validator("figures", mode="before")
    @classmethod
    def _lists(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, figure in given.items():
            if not isinstance(figure, list) or not 2 <= len(figure) <= 3:
                raise ValueError(f"{name}: write [value, source] or [value, source, remark]")
        return {name: Figure(*figure) for name, figure in given.items()}

    @property
    def values(self) -> dict[str, Any]:
        """The figures' values."""
        return {name: figure.value for name, figure in self.figures.items()}


class Library(BaseModel):
    """A library with its releases, the newest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: str
    title: str
    releases: Mapping[str, Release] = Field(min_length=1)


class AskedRelease(NamedTuple):
    """A release as it is asked for: `cublas@13.1`."""

    name: str
    release: Release


@functools.cache
def read(path: Path) -> Library:
    """The library of a file. InputError for what is wrong in it, by the place."""
    try:
        table = yaml.load(reading.text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(f"{path.name}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(table, dict):
        raise InputError(f"{path.name}: a library has the keys {', '.join(Library.model_fields)}")
    try:
        return Library(**table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        near = hint(str(first["loc"][-1]), _known_keys()) if first["type"] == "extra_forbidden" else ""
        raise InputError(f"{path.name}: {place}: {first['msg'].removeprefix('Value error, ')}{near}") from None


def _known_keys() -> list[str]:
    return [key for model in (Library, Release, Rule, Table) for key in model.model_fields]


def libraries() -> list[Library]:
    """All libraries, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.yaml"))]


@functools.cache
def release(name: str) -> Release:
    """A release by library and number, `cublas@13.1`. InputError where there is none."""
    library, _, number = name.partition("@")
    known = read(FOLDER / f"{library}.yaml").releases
    if number not in known:
        raise InputError(f"{name}: {library} has {', '.join(known)}{hint(number, known)}")
    return known[number]


def figure(name: str, key: str) -> Any:
    """The value of one figure of a release."""
    return release(name).figures[key].value


@functools.cache
def rows(name: str, key: str) -> tuple[Any, ...]:
    """The rows of one table of a release, each with its columns as attributes."""
    table = release(name).tables[key]
    row = namedtuple("row", table.columns)  # type: ignore[misc]  # the columns stand in a file
    return tuple(row(*cells) for cells in table.rows)


def releases_by_kernel(library: str, operator: str) -> dict[str, str]:
    """By schedule, the release of a library that takes it for an operator, the oldest first."""
    releases = reversed(list(read(FOLDER / f"{library}.yaml").releases.items()))
    takes = ((rule, f"{library}@{number}") for number, one in releases for rule in one.takes)
    return {rule.kernel: name for rule, name in takes if rule.operator == operator}


def words(operator: str) -> list[str]:
    """All schedules by which a library is asked for an operator: libraries, releases, and what these were called."""
    found = []
    for library in libraries():
        for number, one in library.releases.items():
            if any(rule.operator == operator for rule in one.takes):
                name = library.library
                found += [*([] if name in found else [name]), f"{name}@{number}", *one.words]
    return found


def asked(schedule: str, operator: str) -> AskedRelease | None:
    """The release that a schedule asks for; None where it is no library's. InputError for a release that there is
    not."""
    name, at, number = schedule.partition("@")
    for library in libraries():
        of_operator = {n: r for n, r in library.releases.items() if any(t.operator == operator for t in r.takes)}
        for version, one in of_operator.items():
            named = name == library.library and (number == version if at else True)
            if named or schedule in one.words:
                return AskedRelease(f"{library.library}@{version}", one)
        if name == library.library and at and of_operator:
            near = hint(number, of_operator, "; nearest: {}")
            raise InputError(f"schedule={schedule}: releases of {name} are {', '.join(of_operator)}{near}")
    if at:
        near = hint(name, [one.library for one in libraries()])
        raise InputError(f"schedule={schedule}: {name} is no library that has {operator}{near}")
    return None


class Decision(NamedTuple):
    """What a release takes, and by which rule."""

    name: str
    rule: Rule
    choice: Any

    @property
    def known(self) -> bool:
        """Whether a rule of the library decided: where none is known, what is taken is what tilewave itself would."""
        return self.rule.kernel != "auto"


def decide(op: Any, spec: Any, schedule: str, rank: Rank) -> Decision | None:
    """What the release that a schedule asks for takes; None where no library is asked for. rank: who finds a kernel by
    its schedule. InputError where the release has none."""
    found = asked(schedule, op.word) if schedule != "auto" and len(schedule.split()) == 1 else None
    if found is None:
        return None
    rules = [rule for rule in found.release.takes if rule.operator == op.word]
    for rule in rules:
        if rule.holds(op, spec):
            choice = rank(op, spec, rule.kernel) if rule.kernel else _function(rule)(op, spec, found.release.values)
            if choice is not None:
                return Decision(found.name, rule, choice)
    known = found.release.note or "it has kernels for " + "; ".join(rule.conditions for rule in rules)
    raise InputError(f"schedule={schedule}: {found.name} has none for {op} on {spec.name}; {known}")


def choose(op: Any, spec: Any, schedule: str, rank: Rank) -> Any:
    """What `decide` finds for a schedule that is a library's."""
    decision = decide(op, spec, schedule, rank)
    assert decision, f"{schedule} is no library that has {op.word}"
    return decision.choice


def _function(rule: Rule) -> Callable[[Any, Any, Mapping[str, Any]], Any]:
    module, _, name = rule.rule.partition(":")
    found: Callable[[Any, Any, Mapping[str, Any]], Any] = getattr(importlib.import_module(module), name)
    return found


def _key(op: Any, key: str) -> Any:
    if not hasattr(op, key):
        raise InputError(f"{op.word} has no key {key}, which a library's rule asks for")
    chosen = getattr(op, f"chosen_{key}", None)
    return getattr(op, key) if chosen is None else chosen


def _meets(value: Any, wanted: str | int | tuple[str | int, ...]) -> bool:
    if isinstance(wanted, tuple):
        return any(_meets(value, one) for one in wanted)
    limit = _LIMIT.fullmatch(str(wanted))
    if limit is None:
        return str(value) == str(wanted)
    most = int(limit[2])
    return {"<=": value <= most, ">=": value >= most, "<": value < most, ">": value > most}[limit[1]]


class ShownRule(NamedTuple):
    """A rule as tables show it: the schedule that asks for it, where it holds, what is taken, where that is from."""

    schedule: str
    where: str
    takes: str
    source: str


def taken(operator: str = "") -> list[ShownRule]:
    """All rules of an operator, or of all operators."""
    found = []
    for library in libraries():
        for number, one in library.releases.items():
            name = ", ".join((f"{library.library}@{number}", *one.words))
            for rule in one.takes:
                if operator in ("", rule.operator):
                    where = rule.conditions if operator else ", ".join(filter(None, (rule.operator, rule.conditions)))
                    takes = rule.kernel or f"by {rule.rule.rpartition('.')[2]}"
                    found.append(ShownRule(name, where, takes, rule.source))
    return found


def shown_figures(operator: str = "") -> list[tuple[str, str, str, str, str]]:
    """Release, figure, value, source and remark of all figures of libraries that have an operator, or of all."""
    found = []
    for library in libraries():
        for number, one in library.releases.items():
            if not operator or any(rule.operator == operator for rule in one.takes):
                for name, figure in one.figures.items():
                    several = figure.value if isinstance(figure.value, tuple) else (figure.value,)
                    value = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in several)
                    found.append((f"{library.library}@{number}", name, value, figure.source, figure.remark))
    return found


class ShownTable(NamedTuple):
    """A table as pages show it: columns and rows are words with spaces between, rows with semicolons."""

    release: str
    table: str
    columns: str
    rows: str
    source: str
    remark: str


def shown_tables(operator: str = "") -> list[ShownTable]:
    """All tables of an operator, or of all operators."""
    found = []
    for library in libraries():
        for number, one in library.releases.items():
            for name, table in one.tables.items():
                if operator in ("", table.operator):
                    cells = "; ".join(" ".join(str(cell).lower() for cell in row) for row in table.rows)
                    columns = " ".join(table.columns)
                    found.append(
                        ShownTable(f"{library.library}@{number}", name, columns, cells, table.source, table.remark)
                    )
    return found
