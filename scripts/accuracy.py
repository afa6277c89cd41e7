"""Simulates the measured rows, keeps what came out in `workloads/accuracy/results.csv`, and writes the pages of it.

    scripts/accuracy [--arch A ...] [--op O ...] [--source S ...] [--to-us T]   simulate these rows, short ones first
    scripts/accuracy --stale    simulate the groups whose sentinel does not give what the file says
    scripts/accuracy --check    only say which these are; exit code 1 where there is one
    scripts/accuracy --stated [...]   simulate rows again with what their sources state alone (`stated.csv`)
    scripts/accuracy --leave-out BOARD [...]   simulate its products over 10 us without what was calibrated on its rows

A group's sentinel is its row that costs least to simulate. What an interrupted run simulated stays in a file `.part`
beside the results, and the next run takes it in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from arch.errors import InputError
from scripts.tables.accuracy import LONG_US, result_of, write
from sim.app.run import row_request, simulate_row
from sim.app.study.validate import select, validate
from workloads.accuracy.left_out import left_out
from workloads.accuracy.results import LEFT_OUT_CSV, RESULTS_CSV, STATED_CSV, Group, Result, read_results, write_results
from workloads.silicon import Row, packaged_rows

BATCH = 64
SAME_US = 1e-6
"""Times are the same within the digits that the file keeps."""


def group_of(row: Row) -> Group:
    """The group in which a row is counted."""
    return (row.machine, row.op, row.dtype, row.schedule, row.source)


def sentinels(results: Iterable[Result]) -> dict[Group, Result]:
    """By group, the row that costs least to simulate."""
    found: dict[Group, Result] = {}
    for result in results:
        if result.ran and (result.group not in found or result.cpu_s < found[result.group].cpu_s):
            found[result.group] = result
    return found


def keyed(rows: Iterable[Row]) -> dict[tuple[str | float, ...], Row]:
    """Rows by what tells them apart, as results are."""
    return {result_of(row).key: row for row in rows}


def stale(results: Sequence[Result], rows: Iterable[Row]) -> Iterator[Group]:
    """Groups whose sentinel does not give what the file says of it, or is no row any more."""
    found = keyed(rows)
    for group, sentinel in sentinels(results).items():
        row = found.get(sentinel.key)
        if row is None or abs(simulate_row(row).time_ps * 1e-6 - sentinel.simulated_us) > SAME_US:
            yield group


def only_stated(rows: Iterable[Row]) -> list[Row]:
    """Rows as their sources state them, where that is another run than the one with what was inferred."""
    return [row.as_stated for row in rows if row.environment.inferred and _differs(row)]


def without_own(machine: str, rows: Iterable[Row]) -> list[Row]:
    """Rows of a board on which nothing was calibrated and that take over `LONG_US`, with its figures from elsewhere."""
    taken = left_out(machine, {row.source for row in packaged_rows() if row.machine == machine}).taken
    judging = [row for row in rows if row.machine == machine and row.split != "fitted" and row.compared_us > LONG_US]
    return [replace(row, overrides=(*row.overrides, *taken)) for row in judging]


def _differs(row: Row) -> bool:
    try:
        return row_request(row.as_stated) != row_request(row)
    except InputError:
        return False


def simulate(rows: Sequence[Row], path: Path, workers: int | None) -> None:
    """Simulates rows, the short ones first, and puts what came out into a file of results, from which those of rows
    that are gone go. After each batch it stands beside that file, which is of the program that workers have to share.
    """
    alive = keyed(row.as_stated if path == STATED_CSV else row for row in packaged_rows())
    partial = path.with_suffix(".part")
    before = (*read_results(path), *(read_results(partial) if partial.exists() else ()))
    kept = {result.key: result for result in before if result.key in alive}
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    ordered = sorted(rows, key=lambda row: row.time_us)
    for begin in range(0, len(ordered), BATCH):
        part = ordered[begin : begin + BATCH]
        found = validate(part, workers=workers)
        ran = [result_of(o.row, o.predicted_us, o.result.schedule, o.result.cpu_s, day) for o in found.outcomes]
        missed = [result_of(m.row, 0.0, m.reason, 0.0, day) for m in (*found.skipped, *found.failed)]
        kept.update({result.key: result for result in (*ran, *missed)})
        write_results(kept.values(), partial)
        print(f"{begin + len(part)} of {len(rows)} rows, up to {part[-1].time_us:.0f} us", file=sys.stderr)
    if ordered:
        partial.replace(path)
        read_results.cache_clear()


def main() -> int:
    """Runs the command; 1 where `--check` finds a stale group, 2 for wrong input."""
    parser = argparse.ArgumentParser(
        prog="scripts/accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("arch", "op", "source"):
        parser.add_argument(f"--{name}", nargs="+", default=[])
    parser.add_argument("--to-us", type=float, default=float("inf"), help="rows measured to take so long at most")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stated", action="store_true")
    parser.add_argument("--leave-out", metavar="BOARD")
    options = parser.parse_args()
    results, rows = read_results(), packaged_rows()
    try:
        if options.stale or options.check:
            old = set(stale(results, rows))
            print("\n".join(" ".join(group) for group in sorted(old)) or "no group is stale")
            if options.check:
                return 1 if old else 0
            rows = [row for row in rows if group_of(row) in old]
        else:
            rows = select(rows, arch=options.arch, op=options.op, source=options.source)
            rows = [row for row in rows if row.time_us <= options.to_us]
        if options.leave_out:
            products = [row for row in rows if row.op in (options.op or ["gemm"])]
            simulate(without_own(options.leave_out, products), LEFT_OUT_CSV, options.workers)
        elif options.stated:
            simulate(only_stated(rows), STATED_CSV, options.workers)
        else:
            simulate(rows, RESULTS_CSV, options.workers)
    except InputError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    return write(options)


if __name__ == "__main__":
    sys.exit(main())
