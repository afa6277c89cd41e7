"""Writes what the laws of a better machine have shown into docs/studies.md.

    scripts/lab/whatif_laws.py --cases 40 --choice 10 --seed 1 --json > 1.json
    scripts/docs tables laws 1.json [MORE.json ...] [--page FILE]

Each file is what `scripts/lab/whatif_laws.py --json` prints. The tables say when and with which version they were
made.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scripts.tables.place import DOCS, printed, put, today

PAGE = DOCS / "studies.md"
SLOWER, NEAR, DEAREST, SMALL_S = 0.01, 0.02, 3, 0.2
Result = Mapping[str, Any]


def read(paths: Iterable[str]) -> dict[str, list[Result]]:
    """All outcomes, choices and refused cases of some files. InputError for what is none."""
    found: dict[str, list[Result]] = {"outcomes": [], "choices": [], "refused": []}
    for path in paths:
        document = printed(path, "scripts/lab/whatif_laws.py --json", lambda said: {kind: said[kind] for kind in found})
        for kind, results in found.items():
            results += document[kind]
    return found


def laws(outcomes: Sequence[Result]) -> list[str]:
    """Runs and violations by mode, then each violation with its mechanism."""
    lines = ["| schedule | runs | more than 1 % slower | more than 5 % | worst |", "|---|---|---|---|---|"]
    broken = []
    for mode in ("held", "auto"):
        changes = [outcome["change"] for outcome in outcomes if outcome["mode"] == mode]
        slower = [change for change in changes if change > SLOWER]
        worst = f"{100 * max(changes):+.1f} %" if slower else ""
        share = f" ({100 * len(slower) / max(len(changes), 1):.1f} %)"
        much = sum(change > 0.05 for change in changes)
        lines.append(f"| {mode} | {len(changes)} | {len(slower)}{share} | {much} | {worst} |")
        broken += [outcome for outcome in outcomes if outcome["mode"] == mode and outcome["change"] > SLOWER]
    if broken:
        lines += ["", "| slower by | schedule | case | not without |", "|---|---|---|---|"]
        for outcome in sorted(broken, key=lambda o: -o["change"]):
            why = outcome["mechanism"] or "not known"
            lines.append(f"| {100 * outcome['change']:.1f} % | {outcome['mode']} | `{outcome['case']}` | {why} |")
    return lines


def choices(made: Sequence[Result]) -> list[str]:
    """Regret, errors of estimates and cost by family and operator."""
    lines = [
        "| family, operator | choices | within 2 % of the best | regret, mean and worst | estimate off by a factor of, "
        "median and 19 of 20 | simulated, of candidates | events, times the chosen one's "
        "| within three times or 0.2 s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[Result]] = defaultdict(list)
    for one in made:
        groups[f"{one['family']} {one['operator']}"].append(one)
    families = sorted({one["family"] for one in made})
    rows = [(family, [one for one in made if one["family"] == family]) for family in families]
    for name, some in [*rows, *sorted(groups.items())]:
        errors = sorted(abs(math.log(max(ratio, 1e-9))) for one in some for ratio in one["ratios"])
        regret = [one["regret"] for one in some]
        near = sum(r <= NEAR for r in regret)
        cheap = sum(one["seconds"] <= max(SMALL_S, DEAREST * one["alone"]) for one in some)
        cells = (
            f"**{name}**" if name in families else name,
            str(len(some)),
            f"{near} ({100 * near / len(some):.0f} %)",
            f"{100 * statistics.fmean(regret):.1f} %, {100 * max(regret):.1f} %",
            f"{math.exp(statistics.median(errors)):.2f}, {math.exp(errors[int(0.95 * (len(errors) - 1))]):.2f}",
            f"{statistics.fmean(one['tried'][0] for one in some):.1f} of "
            f"{statistics.fmean(one['tried'][1] for one in some):.1f}",
            f"{statistics.fmean(one['dear'] for one in some):.1f}",
            f"{cheap} ({100 * cheap / len(some):.0f} %)",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def tables(found: Mapping[str, Sequence[Result]], made: str) -> str:
    """What stands between the markers."""
    outcomes, picked, refused = found["outcomes"], found["choices"], found["refused"]
    cases = len(refused) + sum(outcome["mode"] == "held" for outcome in outcomes)
    lines = [
        f"{made}: {cases} cases, of which {len(refused)} were refused by their machine.",
        "",
        *laws(outcomes),
        "",
        *choices(picked),
    ]
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("results", nargs="+", metavar="FILE")


def write(options: argparse.Namespace) -> int:
    """Writes the tables."""
    put(options.page, "laws", tables(read(options.results), today()))
    return 0
