"""The outcome of a check for people, programs, JUnit readers and GitHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from sim.app.asked import asked_of, request_title, versions
from sim.app.report.asked import DEFAULT_CONDITIONS
from sim.app.report.render import as_text as table_text
from sim.app.report.sections import Section
from sim.app.study.check import CHANGED, FAILED, GONE, NEW, REFUSED, SAME, CheckRun, Outcome
from sim.app.study.digest import shown

UPDATE = "tilewave check --update records what is there now"


def explain(outcome: Outcome) -> list[str]:
    """Lines about one case: what moved, or why there is nothing to compare."""
    match outcome.status:
        case "new":
            return [f"not recorded yet; {UPDATE}"]
        case "gone":
            return [f"recorded, but no longer among the cases; {UPDATE}"]
        case "refused" | "failed":
            return [outcome.reason]
    moved = Section("", tuple(shown(list(outcome.moved))))
    ran = [f"it ran {request_title(outcome.wanted.case)}"] if outcome.wanted else []
    return [*(table_text([moved]).splitlines() if moved.rows else []), *outcome.notes, *ran]


def as_text(found: CheckRun) -> str:
    """Old, new and change of every case that is not the same, then the counts."""
    lines = []
    for outcome in found.outcomes:
        if outcome.status == SAME or (found.updated and outcome.status == GONE):
            continue
        cycles = f": {outcome.new.digest.cycles:,} cycles" if outcome.status == NEW and outcome.new else ""
        lines.append(f"{outcome.name}: {outcome.status.upper()}{cycles}")
        if not found.updated or outcome.status in (CHANGED, REFUSED, FAILED):
            lines += [f"  {line}" for line in explain(outcome)]
    counts = Counter(outcome.status for outcome in found.outcomes)
    order = (SAME, CHANGED, NEW, GONE, REFUSED, FAILED)
    done = f"; recorded in {found.lock}" if found.updated else ""
    lines.append(f"{len(found.outcomes)} cases: {', '.join(f'{counts[s]} {s}' for s in order if counts[s])}{done}")
    return "\n".join(lines)


def as_json(found: CheckRun) -> str:
    """Every case with its status, old and new numbers, and what moved."""

    def plain(outcome: Outcome) -> dict[str, Any]:
        shown_: dict[str, Any] = {"name": outcome.name, "status": outcome.status}
        if outcome.wanted is not None:
            case = outcome.wanted.case
            said = asked_of(case, DEFAULT_CONDITIONS).to_dict()
            del said["versions"]  # of all cases, at the top
            shown_ |= {"workload": str(case.workload), "machine": case.machine.name, **said}
        for side in ("old", "new"):
            entry = getattr(outcome, side)
            if entry is not None:
                shown_[side] = asdict(entry)
        if outcome.moved:
            shown_["moved"] = [{**asdict(change), "relative": change.relative} for change in outcome.moved]
        if outcome.notes:
            shown_["notes"] = list(outcome.notes)
        if outcome.reason:
            shown_["reason"] = outcome.reason
        return shown_

    document = {
        "schema_version": "2.0", "exit_code": found.exit_code, "updated": found.updated, "versions": versions()
    }  # fmt: skip
    return json.dumps({**document, "cases": [plain(outcome) for outcome in found.outcomes]}, indent=2, allow_nan=False)


def as_junit(found: CheckRun) -> str:
    """JUnit XML: a difference is a failure, a case without a result is an error."""
    counts = Counter(outcome.status for outcome in found.outcomes)
    errors = counts[REFUSED] + counts[FAILED]
    failures = 0 if found.updated else len(found.outcomes) - counts[SAME] - errors
    totals = {"tests": str(len(found.outcomes)), "failures": str(failures), "errors": str(errors)}
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "tilewave check", **totals})
    for outcome in found.outcomes:
        arch = next((entry.arch for entry in (outcome.new, outcome.old) if entry), "")
        test = ElementTree.SubElement(suite, "testcase", {"classname": f"cycles.{arch}", "name": outcome.name})
        if outcome.wanted:
            properties = ElementTree.SubElement(test, "properties")
            ran = {"name": "run", "value": request_title(outcome.wanted.case)}
            ElementTree.SubElement(properties, "property", ran)
        if outcome.status == SAME or (found.updated and outcome.status not in (REFUSED, FAILED)):
            continue
        kind = "error" if outcome.status in (REFUSED, FAILED) else "failure"
        lines = explain(outcome)
        node = ElementTree.SubElement(test, kind, {"message": f"{outcome.status}: {_first(outcome)}"})
        node.text = "\n".join(lines)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def as_github(found: CheckRun) -> str:
    """Workflow commands of GitHub Actions: each difference is an annotation at the case's line of the configuration."""
    lines = []
    for outcome in found.outcomes:
        if outcome.status == SAME or (found.updated and outcome.status not in (REFUSED, FAILED)):
            continue
        line = outcome.wanted.line if outcome.wanted else 1
        title = _escape(f"{outcome.name}: {outcome.status}", in_property=True)
        place = f"file={_escape(str(found.config), in_property=True)},line={line},title={title}"
        lines.append(f"::error {place}::{_escape(chr(10).join(explain(outcome)))}")
    return "\n".join([*lines, as_text(found).splitlines()[-1]])


FORMATS: Mapping[str, Callable[[CheckRun], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "github": as_github,
}


def _first(outcome: Outcome) -> str:
    if outcome.old and outcome.new and outcome.old.digest.cycles != outcome.new.digest.cycles:
        return f"{outcome.old.digest.cycles} -> {outcome.new.digest.cycles} cycles"
    return (explain(outcome) or [""])[0]


def _escape(text: str, *, in_property: bool = False) -> str:
    """As GitHub's runner reads it back."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
