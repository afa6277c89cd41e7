#!/usr/bin/env python3
"""Verdicts of random runs, judged by doing what they say.

    scripts/lab/verdict_laws.py [--cases N] [--seed S] [--json]

A verdict claims of figures of the machine that they would move a run, or would not. Here each figure of a claim gets a
tenth better, with the schedule held: what is said to move the run has to take 2 % or more off its time, what is said
not to has to move it by less than that. Besides, no figure may be claimed to do both, and no share that a report shows
may be larger than 1. Exit code 1 if any of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parents[1]), str(FOLDER)]

from random_cases import RandomCase, busy_cases, random_cases  # noqa: E402
from whatif_laws import better  # noqa: E402

from arch.errors import InputError  # noqa: E402
from arch.load import load_arch  # noqa: E402
from sim.app.report.report import Report  # noqa: E402
from sim.app.report.verdict import Claim, sentences  # noqa: E402
from sim.app.run import simulate  # noqa: E402

TENTH = 1.1
"""By how much a figure gets better."""

MOVED = 0.02
"""Change of the time, relative, from which on it has moved."""

SHARES = ("speed_of_light", "stalls", "hit_rates", "shares")
"""Objects of a report's data whose numbers are shares, beside numbers that are called so."""

PERCENT = re.compile(r"(?<![-+\d.])(\d[\d.,]*) %")
"""A share in the text of a report; what estimates are off by has a sign."""


@dataclass(frozen=True)
class Judged:
    """A claim of a run's verdict, and by how much the time changed when its figures got better."""

    figures: tuple[str, ...]
    moves: bool
    change: float

    @property
    def right(self) -> bool:
        """Whether the claim holds."""
        return self.change <= -MOVED if self.moves else abs(self.change) < MOVED


@dataclass
class Found:
    """What all cases have shown: claims by case, rules that reports break, runs that machines refuse."""

    judged: list[tuple[RandomCase, str, Judged]] = field(default_factory=list)
    broken: list[tuple[RandomCase, str]] = field(default_factory=list)
    refused: list[tuple[RandomCase, str]] = field(default_factory=list)

    @property
    def wrong(self) -> list[tuple[RandomCase, str, Judged]]:
        """Claims that do not hold."""
        return [entry for entry in self.judged if not entry[2].right]


def cases(seed: int) -> Iterator[RandomCase]:
    """Cases without end: small runs, most of which wait, and runs that keep a unit busy, in turn."""
    for small, busy in zip(random_cases(seed), busy_cases(seed), strict=False):
        yield small
        yield busy


def claims_of(report: Report) -> list[Claim]:
    """What the verdict of a run claims."""
    return [claim for said in sentences(report) for claim in said.claims]


def judge(case: RandomCase, report: Report, claim: Claim) -> Judged | None:
    """Does what a claim is about; None where a figure cannot get better."""
    spec = load_arch(case.arch, case.set)
    values = {path: better(spec, path, TENTH) for path in claim.figures}
    if None in values.values():
        return None
    changed = [*case.set, *(f"{path}={value}" for path, value in values.items())]
    after = simulate(case.workload, case.arch, set=changed, **{**case.options, "schedule": report.record.schedule})
    return Judged(claim.figures, claim.moves, after.time_us / report.time_us - 1)


def rules_broken(report: Report) -> list[str]:
    """What a report says that cannot be: shares over 1, a figure that both moves the run and does not."""
    over = [f"{name} is {share:.3f}" for name, share in shares_of(report.to_dict()) if share > 1 + 1e-9]
    text = str(report).replace(f"stated: {report.record.estimate_error_percent} %", "")
    over += [f"the text says {found} %" for found in PERCENT.findall(text) if float(found.replace(",", "")) > 100]
    claims = claims_of(report)
    alone = {
        moves: {c.figures[0] for c in claims if len(c.figures) == 1 and c.moves == moves} for moves in (True, False)
    }
    return [*over, *(f"{figure} moves it and does not" for figure in sorted(alone[True] & alone[False]))]


def shares_of(value: Any, name: str = "", share: bool = False) -> Iterator[tuple[str, float]]:
    """All shares of a report's data with their names."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from shares_of(part, f"{name}.{key}".lstrip("."), share or key in SHARES or key.endswith("_share"))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from shares_of(part, f"{name}[{number}]", share)
    elif share and isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def examine(some: Sequence[RandomCase], *, say: bool = False) -> Found:
    """Runs all cases, and each again for every claim."""
    found = Found()
    for number, case in enumerate(some):
        try:
            report = simulate(case.workload, case.arch, set=list(case.set), **case.options)
            found.broken += [(case, rule) for rule in rules_broken(report)]
            for claim in claims_of(report):
                if (judged := judge(case, report, claim)) is not None:
                    found.judged.append((case, report.bound, judged))
        except InputError as error:
            found.refused.append((case, str(error)))
        if say:
            print(f"\r{number + 1} of {len(some)}", end="", file=sys.stderr, flush=True)
    if say:
        print(file=sys.stderr)
    return found


def text_of(found: Found) -> str:
    """What was found, for people."""
    lines = []
    for case, bound, judged in found.wrong:
        says = "moves" if judged.moves else "does not move"
        lines.append(f"  {100 * judged.change:+.2f} %  {' and '.join(judged.figures)} {says} {case} ({bound})")
    lines += [f"  {rule}: {case}" for case, rule in found.broken]
    for moves in (True, False):
        some = [judged for _, _, judged in found.judged if judged.moves == moves]
        right = sum(judged.right for judged in some)
        lines.append(f"said {'to move' if moves else 'not to move'} a run: {right} of {len(some)} claims hold")
    lines.append(f"{len(found.refused)} cases were refused by their machine")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    found = examine(list(islice(cases(asked.seed), asked.cases)), say=sys.stderr.isatty())
    if asked.json:
        document = [{"case": str(case), "bound": bound, **asdict(judged)} for case, bound, judged in found.judged]
        print(json.dumps({"claims": document, "broken": [[str(case), rule] for case, rule in found.broken]}, indent=1))
    else:
        print(text_of(found))
    return 1 if found.wrong or found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
