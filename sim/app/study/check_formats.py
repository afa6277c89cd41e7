"""The outcome of a check for people, programs, JUnit readers and GitHub."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from sim.app.asked import asked_of, request_title, versions
from sim.app.report.asked import DEFAULT_CONDITIONS
from sim.app.report.render import as_text as table_text
from sim.app.report.sections import Section
from sim.app.report.text import change_text
from sim.app.study.check import CHANGED, FAILED, GONE, NEW, REFUSED, SAME, CheckRun, Outcome
from sim.app.study.digest import shown

UPDATE = "tilewave check --update records what is there now"


def explain(outcome: Outcome) -> list[str]:
    """Lines about one case: what moved, or why there is nothing to compare."""
    match outcome.status:
        case "new":
            return [f"not recorded; {UPDATE}"]
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
    """JUnit XML: a difference is a failure, a case without a result an error. Times are CPU seconds of simulation."""
    counts = Counter(outcome.status for outcome in found.outcomes)
    errors = counts[REFUSED] + counts[FAILED]
    failures = 0 if found.updated else len(found.outcomes) - counts[SAME] - errors
    totals = {"tests": str(len(found.outcomes)), "failures": str(failures), "errors": str(errors)}
    totals["time"] = f"{sum(outcome.cpu_s for outcome in found.outcomes):.3f}"
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "tilewave check", **totals})
    for outcome in found.outcomes:
        arch = next((entry.arch for entry in (outcome.new, outcome.old) if entry), "")
        test = ElementTree.SubElement(suite, "testcase", {"classname": f"cycles.{arch}", "name": outcome.name})
        test.set("time", f"{outcome.cpu_s:.3f}")
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


def as_markdown(found: CheckRun) -> str:
    """A comment for a pull request: what moved as a table, the details of each case folded."""
    counts = Counter(outcome.status for outcome in found.outcomes)
    shown_ = [outcome for outcome in found.outcomes if outcome.status != SAME]
    head = ", ".join(f"{counts[s]} {s}" for s in (SAME, CHANGED, NEW, GONE, REFUSED, FAILED) if counts[s])
    lines = [f"### tilewave check{f' against {_cell(found.against)}' if found.against else ''}: {head}", ""]
    if shown_:
        lines += ["| case | machine | status | cycles before | cycles now | change | time before | time now | why |"]
        lines += ["|---|---|---|---:|---:|---:|---:|---:|---|"]
    for outcome in shown_:
        old, new = (entry.digest if entry else None for entry in (outcome.old, outcome.new))
        change = change_text(old.cycles, new.cycles) if old and new else ""
        cycles = [f"{digest.cycles:,}" if digest else "" for digest in (old, new)]
        times = [f"{digest.time_ps / 1e6:,.2f} us" if digest else "" for digest in (old, new)]
        arch = next((entry.arch for entry in (outcome.new, outcome.old) if entry), "")
        why = _cell(outcome.reason or next(iter(outcome.notes), ""))
        lines.append(f"| {' | '.join([_cell(outcome.name), arch, outcome.status, *cycles, change, *times, why])} |")
    for outcome in shown_:
        lines += ["", f"<details><summary>{_cell(outcome.name)}</summary>", "", "```"]
        lines += [line.replace("```", "` ` `") for line in explain(outcome)]
        lines += ["```", "", "</details>"]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text in a cell of a table: no end of the cell, no markup."""
    return re.sub(r"([\\|<>`*_\[\]])", r"\\\1", text.replace("\n", " "))


FORMATS: Mapping[str, Callable[[CheckRun], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "github": as_github,
    "markdown": as_markdown,
}


def _first(outcome: Outcome) -> str:
    if outcome.old and outcome.new and outcome.old.digest.cycles != outcome.new.digest.cycles:
        return f"{outcome.old.digest.cycles} -> {outcome.new.digest.cycles} cycles"
    return (explain(outcome) or [""])[0]


def _escape(text: str, *, in_property: bool = False) -> str:
    """As GitHub's runner reads it back."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
