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
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.errors import InputError
from arch.load import load_arch
from scripts.tables.place import DOCS, put, today
from sim.app.serving.curve import serve
from sim.app.serving.deployment import Deployment, fitted
from sim.app.shared_model import LATENT_PAGE
from workloads.accuracy.splits import SPLITS, split
from workloads.graphs.models import model_of

PAGE = DOCS / "models.md"
ROWS_CSV = Path(__file__).resolve().parents[2] / "workloads" / "silicon" / "lab" / "serving.csv"

HABITS = {
    "vllm": "prefill=mixed budget=2048 page=16",
    "trtllm": "prefill=mixed budget=8192 page=32",
    "sglang": "prefill=alone budget=8192 page=16",
}
"""By framework: whether prompts come beside the sequences that decode, tokens of a step (vLLM's `SchedulerConfig`,
TensorRT-LLM's `max_num_tokens`, SGLang's `chunked_prefill_size` on 80 GB), tokens of a page."""

BY_BLOCK = ("qwen3-235b-a22b",)
"""Models that are served from their checkpoint in fp8, whose scales are by block; DeepSeek's own is such a one."""
FORMATS = {"unstated": "bf16", "bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "bf16",
           "int4_wo": "bf16 experts_dtype=int4"}  # fmt: skip
"""Of products. Experts of GPT-OSS are served as published, in mxfp4; rows name its 4 bits nvfp4."""
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
    ep, sharers = int(row["moe_ep"] or 1), int(row["tp"])
    gpus = max(sharers * int(row["attention_dp"] or 1), ep * int(row["moe_tp"] or 1))
    if gpus > 8:
        raise InputError("several nodes")
    parallel = f"tp={gpus}" + (f" ep={ep}" if ep > 1 else "") + (f" adp={gpus // sharers}" if gpus > sharers else "")
    scale = " scale=block" if row["model"] in BY_BLOCK and FORMATS[row["dtype"]] == "fp8" else ""
    form = f"isl={row['isl']} osl={row['osl']} dtype={FORMATS[row['dtype']]}{scale}"
    habits = HABITS[row["framework"]]
    if model_of(row["model"]).latent:
        habits = f"{habits.rpartition(' ')[0]} page={LATENT_PAGE}"
    return f"{row['model']} {parallel} {form} {habits}"


def run(asked: Iterable[dict[str, str]], known: Sequence[dict[str, Any]], keep: Path, workers: int) -> None:
    """Runs rows that are not known and have a form here, those of one deployment together. keep: where results go."""
    done = {_key(result) for result in known}
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in asked:
        if _key(row) not in done and not refusal(row):
            groups[row["machine"], deployment(row)].append(row)
    for (machine, text), group in groups.items():
        clients = sorted({int(row["concurrency"]) for row in group})
        curve = serve(text, machine, [f"concurrency={','.join(map(str, clients))}"], workers=workers)
        by_clients = {int(point.values["concurrency"]): point for point in curve.rows}
        new = [_result(row, by_clients[int(row["concurrency"])]) for row in group]
        print("\n".join(map(_line, new)), file=sys.stderr, flush=True)
        with keep.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(result) + "\n" for result in new)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a row from others."""
    return tuple(row[name] for name in (*GROUP, "tp", "moe_ep", "concurrency", "isl", "osl", "version", "tpot_ms"))


def refusal(row: Mapping[str, str]) -> str:
    """Why a row has no form here, or does not fit; nothing where it runs."""
    try:
        fitted(Deployment.of(f"{deployment(row)} concurrency={row['concurrency']}"), load_arch(row["machine"]))
    except InputError as error:
        return str(error).partition(":")[0] if "leave no room" not in str(error) else "does not fit the memory"
    return ""


def _result(row: dict[str, str], simulated: Any) -> dict[str, Any]:
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
    times = f"{result['tpot']:.2f} of {result['tpot_ms']} ms ({result['error']:+.1f} %)"
    return f"{where}: {times}, first token {result['ttft']:.0f} of {result['ttft_ms']} ms"


def table(results: Sequence[Mapping[str, Any]], refused: Mapping[tuple[str, str, str], int], of: int) -> str:
    """The tables: errors by model, board, format and framework, and rows that do not run. of: rows in all."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        groups[tuple(result[name] for name in GROUP)].append(result)
    lines = [
        f"{today()}. Time per output token at concurrency up to 16, errors in per cent of the measured time: mean of "
        f"the absolute, bias, worst; of {len(results)} rows of {of}, {sum(refused.values())} of which do not run. On "
        "`fitted` rows figures may be calibrated (none was), `held` and `sealed` ones judge.",
        "",
        "| model | board | format | framework | fitted | mean | bias | worst | held | mean | bias | worst "
        "| sealed | mean | bias | worst |",
        "|" + "---|" * 16,
    ]
    for key, found in sorted(groups.items()):
        parts = [[r["error"] for r in found if r["split"] == name] for name in SPLITS]
        cells = [cell for errors in parts for cell in _cells(errors)]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    if refused:
        lines += ["", "| rows that do not run | model | board | why |", "|---|---|---|---|"]
        lines += [f"| {count} | {' | '.join(key)} |" for key, count in sorted(refused.items())]
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
    kept, all_rows = options.results, rows()
    words = [set(word.split(",")) for word in options.only]
    asked = [row for row in all_rows if not words or any(word <= set(row.values()) for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        keep = kept or Path(folder) / "results"
        run(asked, _read(keep), keep, options.workers)
        results = _read(keep)
    refused = Counter((row["model"], row["machine"], why) for row in all_rows if (why := refusal(row)))
    put(options.page, "serving", table(results, refused, len(all_rows)))
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    """Results that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
