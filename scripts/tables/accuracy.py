"""Writes what the pages say of accuracy, from `workloads/accuracy/results.csv`, which `scripts/accuracy` makes.

    scripts/docs tables accuracy

README gets one line by machine; `docs/validation.md` all groups, what did not run, and whether the intervals of reports
hold; a page of a topic its groups; `docs/images/intervals.svg` the intervals at other shares.
"""

from __future__ import annotations

import argparse
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.tables.place import DOCS, put
from sim.app.trust import board_of
from workloads.accuracy.known import SHARE, Case, holds, known, word_and_kind
from workloads.accuracy.left_out import left_out
from workloads.accuracy.results import LEFT_OUT_CSV, STATED_CSV, Errors, Result, judges, read_results
from workloads.silicon import Row, environment_of, packaged_rows

PAGE = None
README = DOCS.parent / "README.md"
VALIDATION = DOCS / "validation.md"
ANY: tuple[str, ...] = ()
AMPERE = ("a100-pcie-80gb", "a100-sxm4-80gb")
HOPPER = ("gh200-96gb", "h100-sxm", "h200-sxm", "h800-sxm")
BLACKWELL = ("b200", "gb200", "b300", "gb300", "rtx-5090", "rtx-pro-6000")
PAGES: Mapping[Path, tuple[tuple[str, ...], tuple[str, ...]]] = {
    DOCS / "blackwell.md": (ANY, BLACKWELL),
    DOCS / "accuracy" / "attention.md": (("attention",), (*AMPERE, *HOPPER)),
    DOCS / "accuracy" / "collectives.md": (("all_reduce", "reduce_scatter", "all_gather", "alltoall"), ANY),
    DOCS / "accuracy" / "convolution.md": (("conv2d",), ("t4", "v100-sxm2")),
    DOCS / "accuracy" / "experts.md": (("moe",), (*AMPERE, *HOPPER)),
    DOCS / "accuracy" / "gemm-ampere.md": (("gemm",), AMPERE),
    DOCS / "accuracy" / "gemm-hopper.md": (("gemm",), HOPPER),
    DOCS / "accuracy" / "gemm-volta-turing.md": (("gemm",), ("t4", "titan-rtx", "v100-sxm2")),
    DOCS / "accuracy" / "rows.md": (("add", "gelu", "layernorm", "rmsnorm", "softmax", "transpose"), ANY),
}
"""Pages with the groups of some operators on some machines."""

PICTURE = DOCS / "images" / "intervals.svg"
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

LONG_US = 10
"""README quotes kernels that were measured to take longer than this."""
FEWEST = 20
"""Rows of a machine that README quotes."""
SCOPE_OF_HOST = "host"


def quoted(results: Iterable[Result]) -> str:
    """README's line: errors by machine, of rows on which nothing was calibrated, without those that the host bounds."""
    by_machine = defaultdict(list)
    for result in results:
        if result.split != "fitted" and result.measured_us > LONG_US and result.scope != SCOPE_OF_HOST:
            by_machine[result.machine].append(result)
    found = {machine: Errors.of(rows) for machine, rows in sorted(by_machine.items())}
    cells = [f"{machine} {e.mean:.0f} % ({e.rows} rows)" for machine, e in found.items() if e and e.rows >= FEWEST]
    return ", ".join(cells)


def _cells(results: Sequence[Result]) -> list[str]:
    """Number, mean absolute error, median, bias and worst of some rows; empty without one."""
    found = Errors.of(results)
    if found is None:
        return ["", "", "", "", ""]
    return [
        str(found.rows), f"{found.mean:.1f}", f"{found.median:.1f}", f"{found.bias:+.1f}", f"{found.worst:+.0f}",
    ]  # fmt: skip


def groups(results: Iterable[Result]) -> str:
    """Errors by group: of held rows, of fitted ones, and the mean of sealed ones."""
    lines = [
        "| machine | operator | format | schedule | source | held | mean | median | bias | worst "
        "| fitted | mean | median | bias | worst | sealed | mean | run |",
        "|" + "---|" * 18,
    ]
    by_group: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        if result.ran:
            by_group[result.group].append(result)
    for group, rows in sorted(by_group.items()):
        held, fitted, sealed = ([r for r in rows if r.split == split] for split in ("held", "fitted", "sealed"))
        days = min(result.day for result in rows)
        cells = [*group, *_cells(held), *_cells(fitted), *_cells(sealed)[:2], days]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def not_run(results: Iterable[Result]) -> str:
    """How many rows of a source did not run, and why."""
    counts = Counter((result.source, result.kernel) for result in results if not result.ran)
    lines = ["| rows that did not run | source | reason |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {count} | {source} | {why} |" for (source, why), count in sorted(counts.items()))])


def sealed_cases(results: Iterable[Result], share: float) -> Iterator[tuple[Result, bool]]:
    """Sealed rows, and whether the interval that held rows give for them holds them."""
    for result in results:
        if result.ran and result.split == "sealed":
            said = known(_case(result), judges(), board_of, share)
            if said:
                yield result, holds(said, result.error_percent)


def boards_left_out(results: Iterable[Result], without: Iterable[Result], rows: Sequence[Row]) -> str:
    """Errors by board with what was calibrated on its rows, and of the same rows with these figures from elsewhere."""
    simulated = {result.key: result for result in results if result.ran}
    pairs: dict[str, list[tuple[Result, Result]]] = defaultdict(list)
    for result in without:
        if result.ran and result.key in simulated:
            pairs[result.machine].append((simulated[result.key], result))
    lines = [
        "| board | figures from elsewhere | of which there is no other value | rows | mean | bias "
        "| mean without its own | bias |",
        "|" + "---|" * 8,
    ]
    for board, found in sorted(pairs.items()):
        figures = left_out(board, {row.source for row in rows if row.machine == board})
        cells = [cell for side in zip(*found, strict=True) if (e := Errors.of(side)) for cell in _mean_and_bias(e)]
        named = [", ".join(path for path in paths if not path.startswith("collectives.")) for paths in figures]
        lines.append(f"| {board} | {' | '.join([*named, str(len(found)), *cells])} |")
    return "\n".join(lines)


def foreign_cases(results: Iterable[Result], share: float) -> Iterator[tuple[Result, bool]]:
    """Rows of boards as if none of the board's rows were known."""
    others: Callable[[str], tuple[Result, ...]] = functools.cache(
        lambda machine: tuple(result for result in judges() if result.machine != machine)
    )
    for result in results:
        if result.ran and result.split != "fitted":
            said = known(_case(result), others(result.machine), board_of, share)
            if said:
                yield result, holds(said, result.error_percent)


def result_of(row: Row, simulated_us: float = 0.0, kernel: str = "", cpu_s: float = 0.0, day: str = "") -> Result:
    """The result of a row, with as many digits as tell times apart."""
    return Result(
        row.machine, row.op, row.dtype, row.schedule, row.kind, row.source, row.shape, row.scope, row.l2,
        row.compared_us, round(simulated_us, 6), kernel, round(cpu_s, 2), day,
    )  # fmt: skip


def inferred(results: Iterable[Result], stated: Iterable[Result], rows: Iterable[Row]) -> str:
    """Errors by source with the settings that were inferred of it, and of the same rows with what it states alone."""
    simulated, without = ({result.key: result for result in found if result.ran} for found in (results, stated))
    pairs: dict[str, list[tuple[Result, Result]]] = defaultdict(list)
    for row in rows:
        both = simulated.get(result_of(row).key), without.get(result_of(row.as_stated).key)
        if row.environment.inferred and both[0] and both[1] and row.split != "fitted":
            pairs[row.source].append((both[0], both[1]))
    lines = ["| source | inferred | rows | mean | bias | mean without it | bias |", "|---|---|---|---|---|---|---|"]
    for source, found in sorted(pairs.items()):
        cells = [cell for side in zip(*found, strict=True) if (e := Errors.of(side)) for cell in _mean_and_bias(e)]
        what = ", ".join(environment_of(source).inferred)
        lines.append(f"| {source} | {what} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_and_bias(errors: Errors) -> list[str]:
    return [f"{errors.mean:.1f}", f"{errors.bias:+.1f}"]


def _case(result: Result) -> Case:
    return Case(board_of(result.machine), result.op, result.dtype, result.simulated_us)


def intervals(results: Sequence[Result]) -> str:
    """What share of rows the intervals of 80 % hold: by kind of operator, and of boards that are left out."""
    lines = ["| rows | number | held by their interval |", "|---|---|---|"]
    cases = list(sealed_cases(results, SHARE))
    by_kind = {kind: [ok for r, ok in cases if word_and_kind(r.op)[1] == kind] for kind in kinds(cases)}
    lines += _shares({"sealed rows": [ok for _, ok in cases]} | {f"of them {k}": found for k, found in by_kind.items()})
    cases = list(foreign_cases(results, SHARE))
    by_board = {board: [ok for r, ok in cases if r.machine == board] for board in sorted({r.machine for r, _ in cases})}
    lines += _shares(
        {"held and sealed rows of boards left out one at a time": [ok for _, ok in cases]}
        | {f"of them {board}": found for board, found in by_board.items() if len(found) >= FEWEST}
    )
    return "\n".join(lines)


def kinds(cases: Iterable[tuple[Result, bool]]) -> list[str]:
    """Kinds of the operators of some rows."""
    return sorted({word_and_kind(result.op)[1] for result, _ in cases})


def _shares(found: Mapping[str, Sequence[bool]]) -> list[str]:
    return [f"| {what} | {len(ok)} | {100 * sum(ok) / len(ok):.0f} % |" for what, ok in found.items() if ok]


def draw(results: Sequence[Result], path: Path) -> None:
    """Draws the share of sealed rows that intervals hold over the share that they shall hold."""
    from matplotlib.figure import Figure

    found = {share: list(sealed_cases(results, share)) for share in SHARES}
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = figure.add_subplot()
    ax.plot([0, 100], [0, 100], color="0.7", linewidth=1, label="exact")
    for kind in ["", *kinds(found[SHARE])]:
        shares = [[ok for r, ok in cases if kind in ("", word_and_kind(r.op)[1])] for cases in found.values()]
        if len(shares[0]) >= FEWEST:
            held = [100 * sum(ok) / len(ok) for ok in shares]
            label = f"{kind or 'all'} ({len(shares[0])} rows)"
            ax.plot([100 * share for share in SHARES], held, marker="o", linewidth=1 + (not kind), label=label)
    ax.set(xlabel="share that an interval shall hold, %", ylabel="share of sealed rows that it holds, %")
    ax.set(xlim=(25, 95), ylim=(25, 100))
    ax.legend(frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes: nothing."""


def texts() -> dict[tuple[Path, str], str]:
    """By page and name of its place, what the results say there."""
    results = read_results()
    found = {
        (README, "accuracy"): quoted(results),
        (VALIDATION, "errors"): groups(results),
        (VALIDATION, "not run"): not_run(results),
        (VALIDATION, "inferred"): inferred(results, read_results(STATED_CSV), packaged_rows()),
        (VALIDATION, "intervals"): intervals(results),
        (VALIDATION, "left out"): boards_left_out(results, read_results(LEFT_OUT_CSV), packaged_rows()),
    }
    for page, (ops, machines) in PAGES.items():
        some = [r for r in results if (not ops or r.op in ops) and (not machines or r.machine in machines)]
        found[page, "errors"] = groups(some)
    return found


def write(options: argparse.Namespace) -> int:
    """Writes all pages and the picture."""
    for (page, name), text in texts().items():
        put(page, name, text)
    draw(read_results(), PICTURE)
    return 0
