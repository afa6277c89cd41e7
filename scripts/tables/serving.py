"""Runs served points of published benchmarks, and writes the table of their errors into docs/models.md.

    scripts/docs tables serving [--only WORD ...] [--results FILE] [--workers N] [--page FILE]

A row of `workloads/silicon/lab/serving.csv` is a deployment under a framework's habits (`HABITS`). With --only the rows
whose model, machine, format or framework is one of the words are run. With --results what has been run is kept in a
file, and not run again; what it holds of other rows is in the table, too.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.errors import InputError
from scripts.tables.place import DOCS, put, today
from sim.app.serving.curve import serve
from workloads.accuracy.splits import SPLITS, split

PAGE = DOCS / "models.md"
ROWS_CSV = Path(__file__).resolve().parents[2] / "workloads" / "silicon" / "lab" / "serving.csv"

HABITS = {
    "vllm": "prefill=mixed budget=2048 page=16",
    "trtllm": "prefill=mixed budget=8192 page=32",
    "sglang": "prefill=alone budget=8192 page=16",
}
"""By framework: whether prompts come beside the sequences that decode, tokens of a step (vLLM's `SchedulerConfig`,
TensorRT-LLM's `max_num_tokens`, SGLang's `chunked_prefill_size` on 80 GB), tokens of a page."""

FORMATS = {"unstated": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
GROUP = ("model", "machine", "dtype", "framework")


def rows() -> list[dict[str, str]]:
    """The measured rows."""
    with ROWS_CSV.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def shape(row: Mapping[str, str]) -> str:
    """What is deployed: rows of one shape are of one part."""
    return f"{row['model']} tp={row['tp']} isl={row['isl']} osl={row['osl']}"


def deployment(row: Mapping[str, str]) -> str:
    """A row's deployment but for its concurrency; InputError for one that has no form here."""
    tp, ep = int(row["tp"]), int(row["moe_ep"] or 1)
    if row["dtype"] not in FORMATS:
        raise InputError(f"dtype={row['dtype']}: weights of 4 bits")
    if int(row["attention_dp"] or 1) > 1 or ep > tp or tp > 8:
        raise InputError("attention of data parallel devices")
    experts = f" ep={ep}" if ep > 1 else ""
    return f"{shape(row)}{experts} dtype={FORMATS[row['dtype']]} {HABITS[row['framework']]}"


def run(
    found: Iterable[dict[str, str]], known: list[dict[str, Any]], keep: Path | None, workers: int
) -> list[dict[str, Any]]:
    """Results of rows, those that are known first. keep: where new ones go."""
    done = {tuple(result[name] for name in result["row"]) for result in known}
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    results = list(known)
    for row in found:
        if tuple(row.values()) in done:
            continue
        try:
            groups[row["machine"], deployment(row)].append(row)
        except InputError as error:
            results.append({**row, "row": list(row), "reason": str(error)})
    for (machine, text), group in groups.items():
        clients = sorted({int(row["concurrency"]) for row in group})
        try:
            curve = serve(text, machine, [f"concurrency={','.join(map(str, clients))}"], workers=workers)
            by_clients: dict[int, Any] = {int(r.values["concurrency"]): r for r in curve.rows}
        except InputError as error:
            results += [{**row, "row": list(row), "reason": str(error)} for row in group]
            continue
        new = [_result(row, by_clients[int(row["concurrency"])]) for row in group]
        print("\n".join(map(_line, new)), file=sys.stderr, flush=True)
        results += new
        if keep:
            with keep.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(result) + "\n" for result in new)
    return results


def _result(row: dict[str, str], simulated: Any) -> dict[str, Any]:
    if simulated.reason:
        return {**row, "row": list(row), "reason": simulated.reason}
    tpot_ms, ttft_ms = 1000 * simulated.tpot_s, 1000 * simulated.ttft_s
    error = 100 * (tpot_ms / float(row["tpot_ms"]) - 1)
    return {
        **row,
        "row": list(row),
        "split": split(shape(row), row["source"]),
        "tpot": tpot_ms,
        "ttft": ttft_ms,
        "error": error,
    }


def _line(result: Mapping[str, Any]) -> str:
    where = f"{result['machine']} {result['framework']} {result['dtype']} {shape(result)} c={result['concurrency']}"
    if result.get("split") == "sealed":
        return f"{where}: sealed"
    if "error" not in result:
        return f"{where}: {result['reason']}"
    times = f"{result['tpot']:.2f} of {result['tpot_ms']} ms ({result['error']:+.1f} %)"
    return f"{where}: {times}, first token {result['ttft']:.0f} of {result['ttft_ms']} ms"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The tables: errors by model, board, format and framework, and rows that do not run."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        if "error" in result:
            groups[tuple(result[name] for name in GROUP)].append(result)
    lines = [
        f"{today()}. Time per output token at concurrency up to 16, errors in per cent of the measured time: mean of "
        "the absolute, bias, worst. On `fitted` rows figures may be calibrated, `held` and `sealed` ones judge.",
        "",
        "| model | board | format | framework | fitted | mean | bias | worst | held | mean | bias | worst "
        "| sealed | mean | bias | worst |",
        "|" + "---|" * 16,
    ]
    for key, found in sorted(groups.items()):
        parts = [[r["error"] for r in found if r["split"] == name] for name in SPLITS]
        cells = [cell for errors in parts for cell in _cells(errors)]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    reasons = Counter((r["model"], r["machine"], r["reason"].partition(":")[0]) for r in results if "reason" in r)
    if reasons:
        lines += ["", "| rows that did not run | model | board | why |", "|---|---|---|---|"]
        lines += [f"| {count} | {' | '.join(key)} |" for key, count in sorted(reasons.items())]
    return "\n".join(lines)


def _cells(errors: Sequence[float]) -> list[str]:
    if not errors:
        return ["", "", "", ""]
    mean = statistics.fmean(map(abs, errors))
    return [str(len(errors)), f"{mean:.1f}", f"{statistics.fmean(errors):+.1f}", f"{max(errors, key=abs):+.0f}"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=1, metavar="N")


def write(options: argparse.Namespace) -> int:
    """Runs the rows, and writes the table."""
    kept = options.results
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept and kept.is_file() else []
    words = {tuple(word.split(",")) for word in options.only}
    asked = [row for row in rows() if not words or any(set(word) <= set(row.values()) for word in words)]
    put(options.page, "serving", table(run(asked, known, kept, options.workers)))
    return 0
