#!/usr/bin/env python3
"""Writes what the laws of a better machine have shown into docs/studies.md.

    scripts/whatif_laws.py --cases 40 --choice 10 --seed 1 --json > 1.json
    scripts/law_tables.py 1.json [MORE.json ...] [--page FILE]

Each file is what `scripts/whatif_laws.py --json` prints. The tables replace what stands between the two markers of the
page, and say when and with which version they were made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arch.errors import InputError
from sim.app.cost import version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "studies.md"
BEGIN, END = "<!-- figures of the laws: scripts/law_tables.py -->", "<!-- end of figures -->"
SLOWER, NEAR, DEAREST, SMALL_S = 0.01, 0.02, 3, 0.2
Result = Mapping[str, Any]


def read(paths: Iterable[str]) -> dict[str, list[Result]]:
    """All outcomes, choices and refused cases of some files. InputError for what is none."""
    found: dict[str, list[Result]] = {"outcomes": [], "choices": [], "refused": []}
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            for kind, results in found.items():
                results += document[kind]
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not what scripts/whatif_laws.py --json prints: {error}") from None
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
        f"Made on {made} with tilewave {version()}: {cases} cases, of which {len(refused)} were refused by their "
        "machine.",
        "",
        *laws(outcomes),
        "",
        *choices(picked),
    ]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Puts the text between the markers of the page; InputError where it has none."""
    document = page.read_text(encoding="utf-8")
    if BEGIN not in document or END not in document:
        raise InputError(f"{page}: has no markers; the tables go between {BEGIN} and {END}")
    before, _, rest = document.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(words)
    try:
        write(options.page, tables(read(options.files), datetime.now(UTC).date().isoformat()))
    except InputError as error:
        print(f"law_tables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
