"""Writes into docs/studies.md how well the ratio of two machines is predicted.

    tilewave validate --reference pairs.csv --json > results.json
    scripts/docs tables ratios results.json [MORE.json ...] [--machines A B] [--page FILE]
    scripts/docs tables ratios --pairs pairs.csv [--most-us T] [--machines A B]
    scripts/docs tables ratios --repeats [--page FILE]

Each file is what `tilewave validate --json` prints. Rows of one operator, format, shape and scope that both machines
have are a pair: its measured ratio is the time on A over that on B, its error the predicted ratio over the measured
one, less 1. Both are of one source and, of collectives, of one kernel; versions of a library may differ. Where no
source has both machines, the first of each is taken. `--pairs` writes the packaged rows that have a partner, of
measured times up to T, for `validate` to run.
`--repeats` writes how far two measurements of one shape on one machine are apart: no prediction of a ratio can be
expected to come nearer.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from arch.errors import InputError
from scripts.tables.place import DOCS, printed, put, today
from workloads.silicon import Row, packaged_rows
from workloads.silicon.rows import COLUMNS

PAGE = DOCS / "studies.md"
MACHINES = ("a100-sxm4-80gb", "h100-sxm")
SIZES = ((10, "under 10 us"), (100, "10 to 100 us"), (float("inf"), "over 100 us"))
"""By the measured time on the second machine."""
WORST = 5
LEAST_REPEATS = 20
"""Shapes that two sources must share for a line."""
_PAIR = ("op", "dtype", "shape", "scope")


T = TypeVar("T")
_Found: TypeAlias = dict[tuple[str, ...], dict[str, dict[tuple[str, str], T]]]
"""By what a pair has in common, by machine, by source and kernel."""


@dataclass(frozen=True)
class Pair:
    """One shape on both machines. measured, predicted: time on the first over that on the second. errors: of the
    simulated time on each, as a share of the measured one. time_us: measured on the second."""

    op: str
    shape: str
    dtype: str
    measured: float
    predicted: float
    errors: tuple[float, float]
    time_us: float

    @property
    def error(self) -> float:
        """Of the ratio."""
        return self.predicted / self.measured - 1

    @property
    def kind(self) -> str:
        """The operator; attention of one query a sequence is another one."""
        return "decode attention" if self.op == "attention" and " seq_q=1 " in f" {self.shape} " else self.op


def read(paths: Iterable[str], machines: Sequence[str]) -> list[Pair]:
    """The pairs of some files, in the order of their rows. InputError for what is none."""
    found: _Found[dict[str, Any]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        for row in printed(path, "tilewave validate --json", lambda document: list(document["rows"])):
            if row["machine"] in machines:
                key = tuple(row[word] for word in _PAIR)
                found[key][row["machine"]].setdefault(_key(row["source"], row["schedule"]), row)
    return [_pair(*rows) for rows in _both(found, machines)]


def _both(found: _Found[T], machines: Sequence[str]) -> Iterator[tuple[T, T]]:
    """What both machines have: of each source and kernel that has both, else the first of each."""
    for rows in found.values():
        if not all(name in rows for name in machines):
            continue
        first, second = (rows[name] for name in machines)
        pairs: dict[tuple[str, str], tuple[T, T]] = {}
        for (source, kernel), row in first.items():
            others = [(key == (source, kernel), other) for key, other in second.items() if _alike(key, source, kernel)]
            if others:
                pairs.setdefault((_unversioned(source), kernel), (row, max(others, key=lambda one: one[0])[1]))
        yield from pairs.values() or [(next(iter(first.values())), next(iter(second.values())))]


def _alike(key: tuple[str, str], source: str, kernel: str) -> bool:
    return (_unversioned(key[0]), key[1]) == (_unversioned(source), kernel)


def _unversioned(source: str) -> str:
    """A source without the version of its library."""
    return source.split()[0]


def _key(source: str, schedule: str) -> tuple[str, str]:
    """A source, and the kernel of a collective, which has one name on all machines."""
    return source, schedule if schedule.startswith("custom") else ""


def _pair(a: dict[str, Any], b: dict[str, Any]) -> Pair:
    errors = tuple(row["simulated_us"] / row["compared_us"] - 1 for row in (a, b))
    measured, predicted = (a[key] / b[key] for key in ("compared_us", "simulated_us"))
    return Pair(a["op"], a["shape"], a["dtype"], measured, predicted, (errors[0], errors[1]), b["compared_us"])


def tables(pairs: Sequence[Pair], machines: Sequence[str], made: str) -> str:
    """What stands between the markers. InputError without a pair."""
    if not pairs:
        raise InputError(f"no shape that both {' and '.join(machines)} have")
    a, b = machines
    lines = [
        f"{made}: {len(pairs)} shapes. Error of the ratio of the times on {a} and {b}; below 0 the",
        f"simulator favours {a}.",
        "",
        f"| operator | size ({b}) | shapes | mean error | bias | worst | bias of {a} | of {b} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Pair]] = {("all", ""): list(pairs)}
    for kind in sorted({pair.kind for pair in pairs}):
        some = [pair for pair in pairs if pair.kind == kind]
        groups[kind, "all"] = some
        for least, (most, name) in zip((0.0, *(size for size, _ in SIZES)), SIZES, strict=False):
            if sized := [pair for pair in some if least <= pair.time_us < most]:
                groups[kind, name] = sized
    for (kind, size), some in groups.items():
        errors = [100 * pair.error for pair in some]
        cells = (
            *(kind, size, str(len(some)), f"{statistics.fmean(map(abs, errors)):.1f} %"),
            *(f"{statistics.fmean(errors):+.1f} %", f"{max(errors, key=abs):+.0f} %"),
            *(f"{100 * statistics.fmean(pair.errors[side] for pair in some):+.1f} %" for side in (0, 1)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| shape | measured ratio | predicted | off by |", "|---|---|---|---|"]
    for pair in sorted(pairs, key=lambda pair: -abs(pair.error))[:WORST]:
        ratios = f"{pair.measured:.2f} | {pair.predicted:.2f} | {100 * pair.error:+.0f} %"
        lines.append(f"| `{pair.op} {pair.shape} dtype={pair.dtype}` | {ratios} |")
    return "\n".join(lines)


def repeats(rows: Sequence[Row]) -> str:
    """How far the times of two sources are apart, of one machine, operator, format, shape and scope."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        key = (row.machine, row.op, row.dtype, row.shape, row.schedule, row.scope, row.l2)
        found[key].setdefault(row.source, row.time_us)
    groups: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for (machine, op, *_), times in found.items():
        for first, second in combinations(sorted(times), 2):
            groups[machine, op, first, second].append(100 * (times[second] / times[first] - 1))
    lines = [
        "| machine | operator | source | another | shapes | mean difference | median | bias |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for words, off in sorted(groups.items()):
        if len(off) >= LEAST_REPEATS:
            sizes = list(map(abs, off))
            figures = (
                f"{statistics.fmean(sizes):.1f} % | {statistics.median(sizes):.1f} % | {statistics.fmean(off):+.1f} %"
            )
            lines.append(f"| {' | '.join(words)} | {len(off)} | {figures} |")
    return "\n".join(lines)


def partners(rows: Sequence[Row], machines: Sequence[str], most_us: float) -> list[Row]:
    """Rows whose shape both machines have, none of which takes longer; one a machine and shape."""
    found: _Found[Row] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.machine in machines:
            key = tuple(getattr(row, word) for word in _PAIR)
            found[key][row.machine].setdefault(_key(row.source, row.schedule), row)
    return [row for pair in _both(found, machines) if all(row.time_us <= most_us for row in pair) for row in pair]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--machines", nargs=2, default=list(MACHINES), metavar=("A", "B"))
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="write the rows of pairs, and do nothing else")
    parser.add_argument("--repeats", action="store_true", help="write the table of repeats, and do nothing else")
    parser.add_argument("--most-us", type=float, default=float("inf"), metavar="T")


def write(options: argparse.Namespace) -> int:
    """Writes the table of ratios, or what the options name."""
    if options.pairs:
        rows = partners(packaged_rows(), options.machines, options.most_us)
        with options.pairs.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row.as_dict() for row in rows)
        print(f"{len(rows) // 2} pairs")
    elif options.repeats:
        put(options.page, "repeats", repeats(packaged_rows()))
    else:
        put(options.page, "ratios", tables(read(options.files, options.machines), options.machines, today()))
    return 0
