"""Compiled kernels next to the tile language and to what was measured: the tables of docs/compiled-kernels.md.

    scripts/docs tables compiled pairs             kernels of Triton's tutorials next to schedules that stand for them
    scripts/docs tables compiled rows [--most US]  measured rows of Triton, compiled with the version that is installed
    scripts/docs tables compiled rows --older DIR  rows of 2024, compiled with the Triton 3.0 that DIR holds

With --write the page takes the tables in place of those that it has.

Needs Triton, no GPU. A product runs in the tiles that the tile language finds fastest of the tutorial's list. For
DIR see scripts/lab/older_triton.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from arch.load import load_arch
from scripts.tables.place import DOCS, put
from sim.app.run import row_request, run, simulate
from workloads.parse import parse
from workloads.silicon import Row, environment_of, packaged_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = DOCS / "compiled-kernels.md"
KERNELS = ROOT / "scripts" / "lab" / "kernels" / "tutorials.py"
A100, H100 = "a100-sxm4-80gb", "h100-sxm"


@dataclass(frozen=True)
class Pair:
    """A compiled kernel and the schedule of the tile language that stands for it."""

    machine: str
    name: str
    compiled: str
    workload: str
    schedule: str


def matmul(m: int, n: int, k: int, tiles: tuple[int, int, int], warps: int, stages: int, dtype: str = "fp16") -> str:
    """The launch of tutorial 3; of 8-bit operands the second one is transposed in memory."""
    bm, bn, bk = tiles
    b_shape, stride_bk, stride_bn = (f"{n},{k}", 1, k) if dtype == "fp8" else (f"{k},{n}", n, 1)
    return (
        f"{KERNELS}:matmul grid=cdiv(m,BLOCK_M)*cdiv(n,BLOCK_N) a={dtype}[{m},{k}] b={dtype}[{b_shape}] "
        f"c=fp16[{m},{n}] m={m} n={n} k={k} stride_am={k} stride_ak=1 stride_bk={stride_bk} stride_bn={stride_bn} "
        f"stride_cm={n} stride_cn=1 BLOCK_M={bm} BLOCK_N={bn} BLOCK_K={bk} GROUP_M=8 num-warps={warps} "
        f"num-stages={stages}"
    )


def softmax(machine: str, rows: int, cols: int) -> str:
    """The launch of tutorial 2: as many programs as fit."""
    block = 2 ** math.ceil(math.log2(cols))
    spec = load_arch(machine)
    stages = 4 if spec.shared.max_per_cta_bytes > 200_000 else 2

    def text(programs: int) -> str:
        return (
            f"{KERNELS}:softmax grid={programs} out=fp32[{rows},{cols}] x=fp32[{rows},{cols}] in_stride={cols} "
            f"out_stride={cols} rows={rows} columns={cols} BLOCK={block} STAGES={stages} num-warps=8 "
            f"num-stages={stages}"
        )

    kernel = parse(text(rows)).on(spec).program.kernels[0]
    fit = min(
        spec.sm.registers // (kernel.launch_registers * 32 * 8), spec.shared.max_per_cta_bytes // kernel.shared_bytes,
        spec.sm.max_threads // (32 * 8),
    )  # fmt: skip
    return text(min(spec.sm.count * fit, rows))


def layer_norm(rows: int, cols: int) -> str:
    """The launch of tutorial 5."""
    block = 2 ** math.ceil(math.log2(cols))
    return (
        f"{KERNELS}:layer_norm grid={rows} x=fp16[{rows},{cols}] y=fp16[{rows},{cols}] w=fp16[{cols}] b=fp16[{cols}] "
        f"mean=fp32[{rows}] rstd=fp32[{rows}] stride={cols} n={cols} eps=1e-5 BLOCK={block} "
        f"num-warps={min(max(block // 256, 1), 8)}"
    )


def attention(heads: int, tokens: int, head: int, tiles: tuple[int, int], causal: bool, warps: int, stages: int) -> str:
    """The launch of tutorial 6."""
    tensors = " ".join(f"{name}=fp16[{heads},{tokens},{head}]" for name in ("q", "k", "v", "out"))
    return (
        f"{KERNELS}:attention grid={tokens // tiles[0]},{heads} {tensors} lse=fp32[{heads},{tokens}] scale=0.18 "
        f"stride_z={heads * tokens * head} stride_h={tokens * head} stride_n={head} heads={heads} tokens={tokens} "
        f"HEAD={head} BLOCK_M={tiles[0]} BLOCK_N={tiles[1]} CAUSAL={causal} num-warps={warps} num-stages={stages}"
    )


def pairs() -> Iterator[Pair]:
    """What is compared. Products and attention: whole waves of CTAs, and one that is not."""
    for m, n, k in ((3072, 2304, 2048), (2048, 2048, 2048)):
        yield Pair(
            A100,
            f"matmul {m} x {n} x {k}",
            matmul(m, n, k, (128, 128, 32), 4, 4),
            f"gemm m={m} n={n} k={k} dtype=fp16",
            "triton 128x128x32 stages 4",
        )
    for cols in (1024, 4096):
        yield Pair(
            A100, f"softmax 4096 x {cols}", softmax(A100, 4096, cols), f"softmax rows=4096 cols={cols} dtype=fp32",
            "triton",
        )  # fmt: skip
    for cols in (1024, 4096):
        yield Pair(
            A100, f"layer norm 4096 x {cols}", layer_norm(4096, cols),
            f"layernorm rows=4096 cols={cols} dtype=fp16 stats=1", "triton",
        )  # fmt: skip
    for head, tiles, causal, stages in (
        (64, (64, 64), False, 3), (64, (64, 64), True, 3), (128, (128, 32), False, 4),
    ):  # fmt: skip
        yield Pair(
            H100, f"attention, 66 heads of {head}, 1024 tokens{', causal' if causal else ''}",
            attention(66, 1024, head, tiles, causal, 4, stages),
            f"attention batch=1 heads=66 seq_q=1024 seq_k=1024 head_dim={head} causal={int(causal)} dtype=fp16",
            f"flash2-triton {tiles[0]}x{tiles[1]} warps 4 stages {stages}",
        )  # fmt: skip


def show_pairs(only: str) -> list[str]:
    """Prints the table of pairs; its lines."""
    lines = ["| machine | kernel | compiled, cycles | tile language, cycles | apart |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    for pair in pairs():
        if only in pair.name:
            compiled = simulate(pair.compiled, pair.machine).cycles
            written = simulate(pair.workload, pair.machine, schedule=pair.schedule).cycles
            apart = f"{100 * (written / compiled - 1):+.1f} %"
            lines.append(f"| {pair.machine} | {pair.name} | {compiled:,} | {written:,} | {apart} |")
            print(lines[-1], flush=True)
    return lines


@dataclass(frozen=True)
class Older:
    """Compiles with an older Triton. folder: holds it. cubins: where they go."""

    folder: str
    cubins: str

    def launch(self, kernel: str, grid: str, warps: int, stages: int, arguments: dict[str, str]) -> str:
        """The launch of a kernel of the tutorials. arguments: arrays, numbers and, in capitals, constants."""
        out = f"{self.cubins}/{kernel}.cubin"
        pairs = [f"{name}={self._kind(value)}" for name, value in arguments.items()]
        tool = [sys.executable, str(ROOT / "scripts" / "lab" / "older_triton.py")]
        made = subprocess.run(
            [*tool, f"{KERNELS}:{kernel}", out, str(warps), str(stages), *pairs], check=True, capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": self.folder},
        )  # fmt: skip
        facts = json.loads(made.stdout)
        words = " ".join(f"{name}={arguments[name]}" for name in facts["kept"])
        return f"{out}:{facts['name']} grid={grid} block={32 * warps} shared={facts['shared']} {words}"

    @staticmethod
    def _kind(value: str) -> str:
        """What `older_triton.py` is told of an argument."""
        if array := re.match(r"(\w+)\[", value):
            return "*fp8e5" if array[1] == "fp8_e5m2" else f"*{array[1]}"
        return "fp32" if "." in value else value

    def fp8(self, size: tuple[int, int, int], tiles: tuple[int, int, int], warps: int, stages: int) -> str:
        """The product of 8-bit operands of the tutorial's benchmark, which takes e5m2."""
        m, n, k = size
        strides = {"stride_am": k, "stride_ak": 1, "stride_bk": 1, "stride_bn": k, "stride_cm": n, "stride_cn": 1}
        constants = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"), (*tiles, 8), strict=True))
        numbers = {"m": m, "n": n, "k": k, **strides, **constants}
        arrays = {"a": f"fp8_e5m2[{m},{k}]", "b": f"fp8_e5m2[{n},{k}]", "c": f"fp16[{m},{n}]"}
        grid = math.ceil(m / tiles[0]) * math.ceil(n / tiles[1])
        return self.launch("matmul", str(grid), warps, stages, {**arrays, **{x: str(y) for x, y in numbers.items()}})

    def attention(self, shape: dict[str, int]) -> str:
        """Attention in tiles of 64 x 64, 4 warps, 3 stages: ptxas 12.4 makes the products of larger ones wait for each
        other, and smaller ones are slower."""
        tokens, head, heads = shape["seq_q"], shape["head_dim"], shape["heads"]
        both = shape["batch"] * heads
        numbers = {f"stride_{x}h": tokens * head for x in "qkvo"}
        numbers |= {f"stride_{x}z": heads * tokens * head for x in "qkvo"}
        numbers |= {"stride_qm": head, "stride_kn": head, "stride_vn": head, "stride_om": head, "heads": heads}
        numbers |= {"TOKENS": tokens, "HEAD": head, "BLOCK_M": 64, "BLOCK_N": 64, "CAUSAL": shape["causal"]}
        arrays = dict.fromkeys(("q", "k", "v", "out"), f"fp16[{both},{tokens},{head}]")
        arrays |= {"lse": f"fp32[{both},{tokens}]", "scale": "0.125"}
        texts = {**arrays, **{name: str(value) for name, value in numbers.items()}}
        return self.launch("attention_2024", f"{tokens // 64},{both}", 4, 3, texts)


def compiled_row(row: Row, older: Older | None = None) -> str | None:
    """The launch that a measured row stands for; None for one that is not Triton's, or not of the older one."""
    shape = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", row.shape)}
    if older is not None and row.op == "gemm" and row.dtype != "fp8":
        return None
    if row.op == "gemm" and row.schedule == "triton":
        chosen = run(row_request(row)).schedule
        found = re.search(r"(\d+)x(\d+)(?:x(\d+))? .*stages (\d+)", chosen)
        assert found is not None, chosen
        m, n, k, stages = (int(word or 0) for word in found.groups())
        if row.dtype == "fp8":  # a buffer more than the tutorial has: `hopper_tiles` of workloads/libraries/triton.yaml
            size, tiles, warps = (shape["m"], shape["n"], shape["k"]), (m, n, 128), 8 if m * n == 32768 else 4
            if older is not None:
                return older.fp8(size, tiles, warps, stages - 1)
            return matmul(*size, tiles, warps, stages - 1, "fp8")
        warps = {(128, 256, 64): 8, (64, 32, 32): 2, (32, 64, 32): 2}.get((m, n, k), 4)
        return matmul(shape["m"], shape["n"], shape["k"], (m, n, k), warps, stages)
    if row.op == "softmax" and row.kind == "triton" and older is None:
        return softmax(row.machine, shape["rows"], shape["cols"])
    if row.op == "attention" and row.schedule == "flash2-triton":
        if older is not None:
            return older.attention(shape)
        tiles, stages = ((64, 64), 3) if shape["head_dim"] == 64 else ((128, 32), 4)
        heads = shape["batch"] * shape["heads"]
        return attention(heads, shape["seq_q"], shape["head_dim"], tiles, bool(shape["causal"]), 4, stages)
    return None


SOURCES = ("triton_docs_a100", "triton_pr_3546", "flashattention3_paper")


def show_rows(least_us: float, most_us: float, op: str, source: str, older: Older | None) -> list[str]:
    """Prints a table of the measured rows of each source; lines of a summary."""
    groups: dict[str, list[tuple[Row, float]]] = {}
    for one in SOURCES:
        if source not in one:
            continue
        print(f"{one}\n\n| row | compiled, us | measured, us | error |\n|---|---|---|---|")
        for row in packaged_rows():
            if not least_us < row.time_us <= most_us or row.source != one or op not in row.op:
                continue
            text = compiled_row(row, older)
            if text is None:
                continue
            time_us = run(replace(row_request(row), workload=text, schedule="auto")).time_ps / 1e6
            error = 100 * (time_us / row.time_us - 1)
            print(f"| {row.op} {row.shape} | {time_us:.1f} | {row.time_us:g} | {error:+.1f} % |", flush=True)
            groups.setdefault(group_of(row, time_us), []).append((row, error))
    return summary(groups)


def group_of(row: Row, time_us: float) -> str:
    """Rows that a summary puts together. Where the host's call is longer than the kernel, they do not judge it."""
    host_us = environment_of(row.source).host_call_us.get(row.schedule, 0.0)
    masked = ", causal" if "causal=1" in row.shape else ""
    waits = ", host's call" if row.op == "gemm" and abs(time_us - host_us) < _SAME_US else ""
    return f"{row.machine}, {row.op} {row.dtype}{masked}{waits}"


def summary(groups: dict[str, list[tuple[Row, float]]]) -> list[str]:
    """A line for each group of rows with their errors, and one for all rows of an operator that has several."""
    lines = ["| rows | number | mean error | bias | worst |", "|---|---|---|---|---|"]
    operators: dict[str, list[str]] = {}
    for name in groups:
        operators.setdefault(", ".join(name.split(", ")[:2]), []).append(name)
    shown: dict[str, list[tuple[Row, float]]] = {}
    for operator, names in operators.items():
        shown |= {name: groups[name] for name in names}
        if len(names) > 1:
            shown[f"{operator}, all"] = [one for name in names for one in groups[name]]
    for name, rows in shown.items():
        errors, times = [error for _, error in rows], [row.time_us for row, _ in rows]
        row, worst = max(rows, key=lambda one: abs(one[1]))
        mean, bias = statistics.fmean(map(abs, errors)), statistics.fmean(errors)
        lines.append(
            f"| {name}, {min(times):.0f} to {max(times):.0f} us | {len(rows)} | {mean:.1f} % | {bias:+.1f} % | "
            f"{worst:+.1f} % ({row.shape}) |"
        )
    print("\n".join(["", *lines]))
    return lines


_SAME_US = 0.2
"""Between a time and the host's call, where that is all that counts."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("table", choices=("pairs", "rows"))
    parser.add_argument("--least", type=float, default=10.0, metavar="US", help="rows measured shorter are left out")
    parser.add_argument("--most", type=float, default=1000.0, metavar="US", help="rows measured longer are left out")
    parser.add_argument("--only", default="", help="pairs whose name, or rows whose operator, has this in it")
    parser.add_argument("--source", default="", help="rows of sources that have this in their name")
    parser.add_argument("--older", default="", metavar="DIR", help="holds Triton 3.0, which compiles rows of 2024")
    parser.add_argument("--write", action="store_true", help="put the table on the page")


def write(options: argparse.Namespace) -> int:
    """Prints one of the tables, and writes it where that is asked for."""
    if options.table == "pairs":
        name, lines = "compiled pairs", show_pairs(options.only)
    else:
        name = "compiled rows --older DIR" if options.older else "compiled rows"
        with tempfile.TemporaryDirectory() as cubins:
            older = Older(options.older, cubins) if options.older else None
            lines = show_rows(options.least, options.most, options.only, options.source, older)
    if options.write:
        put(options.page, name, "\n".join(lines))
    return 0
