"""Attention as one pipeline: scores, softmax, weighted values; memory is touched for Q, K, V and O alone.

`streaming` is FlashAttention's form: running maximum and sum are carried over the tiles of keys, so that intermediate
buffers hold a few tiles however long the sequence is. `naive` keeps the exponentials of a whole row in a FIFO until the
row's sum is known: the FIFO must hold a row, or the pipeline stands still.

Scores in fp32 and their exponentials go from stage to stage, and one pipeline over all dies sends both across the
border, which is the slowest link. Several pipelines, one a die, have their own heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.program import Call, Carry, Counter, Index, Out, Output, Program, Read, Section, Tensor, Value, record
from workloads.ops import Attention
from workloads.rdu.select import ceil_div, check_dtype, pick
from workloads.registry import register

_FORM = re.compile(r"(streaming|naive) (\d+)x(\d+) heads (\d+)(?: fifo (\d+))?(?: pipelines (\d+))?")
AHEAD = 4
"""Tiles between two stages: a firing takes about as long as the way to the next stage, so that two would be one too few
for the stage at work, one on its way and one being taken."""
LOWEST = -1e30
"""Start of a running maximum: finite, so that its difference from itself is 0."""


@dataclass(frozen=True)
class AttentionConfig:
    """Queries and keys of a tile, key heads side by side in it; `fifo`: tokens of the naive form's row FIFO;
    `pipelines`: side by side, each with its part of the heads."""

    form: str
    queries: int
    keys: int
    heads: int
    fifo: int = 0
    pipelines: int = 1

    @property
    def schedule(self) -> str:
        """`streaming` or `naive`."""
        return self.form

    def __str__(self) -> str:
        fifo = f" fifo {self.fifo}" if self.fifo else ""
        pipelines = f" pipelines {self.pipelines}" if self.pipelines > 1 else ""
        return f"{self.form} {self.queries}x{self.keys} heads {self.heads}{fifo}{pipelines}"

    def build(self, op: Attention, spec: RduSpec) -> Program:
        """The program, one section."""
        section = Section("attention")
        dtype = str(op.dtype)
        (q, k, v), (o,) = op.operands, op.results
        tensors = [Tensor(x.name, x.shape, dtype) for x in (q, k, v)]
        add_attention(section, op, self, tensors, Tensor("o", o.shape, str(op.out), "output"))
        return Program(str(op), (Call(section),), str(self))


@register("attention", "rdu", "naive", "streaming")
def build(op: Attention, spec: RduSpec, config: AttentionConfig) -> Program:
    """The program of a configuration."""
    return config.build(op, spec)


@register("attention", "rdu", "auto")
def choose(op: Attention, spec: RduSpec, schedule: str) -> list[tuple[AttentionConfig, int]]:
    """Tiles by estimated cycles."""
    check_dtype(op, spec)
    op.check_plain(spec.name)
    if op.window:
        raise InputError(f"attention window={op.window}: has no form on {spec.name}; leave window out")
    if op.causal == "1" and op.queries > op.keys:
        raise InputError(f"attention causal=1: seq_q={op.queries} queries see no more than seq_k={op.keys} keys")
    ranked: list[tuple[int, AttentionConfig]] = []
    for form in ("streaming", "naive"):
        for queries in (32, 64, 128, 256):
            for keys in (96, 192, 384, 768):
                for heads in (1, 2, 4, 8, 16, 32):
                    if op.key_heads % heads or (queries > 32 and queries >= 2 * op.queries):
                        continue
                    rows, columns = min(queries, op.queries), min(keys, op.keys)
                    fifo = ceil_div(op.keys, columns) + 1 if form == "naive" else 0
                    for pipelines in sorted({1, spec.dies.count}):
                        config = AttentionConfig(form, rows, columns, heads, fifo, pipelines)
                        cycles = _estimate(op, spec, config)
                        if cycles is not None and config not in [c for _, c in ranked]:
                            ranked.append((cycles, config))
    ranked.sort(key=lambda entry: (entry[0], str(entry[1])))
    best = [(config, cycles) for cycles, config in ranked]
    shown = [entry for form in ("streaming", "naive") for entry in best if entry[0].form == form]
    if schedule == "auto":
        shown = [entry for entry in shown if entry[0].form == "streaming"]
    if not shown:
        raise InputError(f"{op}: no tile fits {spec.name}; fewer keys or heads in flight would")
    return _some_of_each(list(pick("attention", schedule, shown, _parse)))


def _some_of_each(entries: list[tuple[AttentionConfig, int]]) -> list[tuple[AttentionConfig, int]]:
    """The best six, of which as many have one pipeline as several: what links cost depends on where stages stand, which
    an estimate does not know."""
    counts = sorted({c.pipelines for c, _ in entries})
    each = [[entry for entry in entries if entry[0].pipelines == n][: 6 // len(counts)] for n in counts]
    return sorted((entry for part in each for entry in part), key=lambda entry: (entry[1], str(entry[0])))


def _parse(text: str) -> AttentionConfig | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    queries, keys, heads = (int(number) for number in match.groups()[1:4])
    return AttentionConfig(match[1], queries, keys, heads, int(match[5] or 0), int(match[6] or 1))


def _estimate(op: Attention, spec: RduSpec, c: AttentionConfig) -> int | None:
    """Cycles of the slowest of arithmetic, memory, links and the least depth of a firing; None where heads do not
    divide or buffers do not fit."""
    if op.key_heads % (c.heads * c.pipelines):
        return None
    width = DTYPE_BYTES[str(op.dtype)]
    group = op.heads // op.key_heads
    rows = c.heads * group * c.queries
    tile = rows * c.keys
    room = spec.pmu.count * spec.pmu.size_bytes // 2
    whole = 2 * c.heads * op.keys * op.head_dim * width * 2
    row = tile * 4 * (3 + c.fifo) + 2 * rows * op.head_dim * (width + 4)
    if c.pipelines * (whole + row) > room:
        return None
    tiles = op.batch * (op.key_heads // c.heads // c.pipelines) * sum(trips(op, c))
    macs = 2 * tile * op.head_dim
    # Two products and a chain of about six PCUs share the chip.
    compute = c.pipelines * macs // (spec.pcu.count * 2 // 3 * spec.macs_per_cycle) + 1
    deep = 3 * (spec.pcu.lanes + spec.pcu.stages + spec.pcu.latency_cycles + spec.mesh.rows * spec.mesh.hop_cycles)
    # Scores and exponentials go along the rows of the mesh, over the borders of tiles and dies that a pipeline has.
    link = spec.link_bytes_per_cycle(c.pipelines)
    compute = max(compute, round(tile * (4 + width) / (link * spec.mesh.rows)))
    memory = op.operand_bytes * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s
    first = c.pipelines * whole // 2 * spec.clock.boost_hz // spec.main_memory.bandwidth_bytes_per_s
    return max(tiles * max(compute, deep), memory) + first + 4 * max(compute, deep)


def trips(op: Attention, c: AttentionConfig) -> tuple[int, ...]:
    """Tiles of keys that each tile of queries sees."""
    count, every = ceil_div(op.queries, c.queries), ceil_div(op.keys, c.keys)
    if op.causal == "0":
        return (every,) * count
    ahead = op.keys - op.queries
    return tuple(min(every, ceil_div(min(op.queries, (i + 1) * c.queries) + ahead, c.keys)) for i in range(count))


def add_attention(
    section: Section,
    op: Attention,
    c: AttentionConfig,
    operands: Sequence[Tensor],
    o: Tensor,
) -> None:
    """Adds the stages of an attention with its loads and its store. operands: Q, K, V."""
    q, k, v = operands
    group, d = op.heads // op.key_heads, op.head_dim
    rows = group * c.queries
    keys = ceil_div(op.keys, c.keys) * c.keys
    own = op.key_heads // c.pipelines
    if op.key_heads % (c.pipelines * c.heads):
        raise InputError(f"{op}: {c.pipelines} pipelines of {c.heads} heads a tile do not divide {op.key_heads} heads")
    for part in range(c.pipelines):
        mark = f"_{part}" if c.pipelines > 1 else ""
        b, h = Counter("batch", op.batch), Counter("heads", own // c.heads)
        i = Counter("queries", ceil_div(op.queries, c.queries))
        first = h * c.heads + part * own
        whole = [
            section.load(
                f"load_{t.name}{mark}", t, (b, 0, first, 0), (1, keys, c.heads, d), (b, h),
                view=(keys, c.heads, d), permute=(1, 0, 2), shape=(c.heads, keys, d),
            )
            for t in (k, v)
        ]  # fmt: skip
        at = (b, i * c.queries, h * (c.heads * group) + part * own * group, 0)
        tile_q = section.load(
            f"load_q{mark}", q, at, (1, c.queries, c.heads * group, d), (b, h, i),
            view=(c.queries, c.heads, group, d), permute=(1, 2, 0, 3), shape=(c.heads, rows, d),
        )  # fmt: skip
        nest = (b, h, i)
        made = attention_stages(section, op, c, nest, tile_q.read(), whole[0], whole[1], str(op.out), mark=mark)
        section.store(
            f"store_o{mark}", o, at, made, nest,
            tile=(1, c.queries, c.heads * group, d), view=(c.heads, group, c.queries, d), permute=(2, 0, 1, 3),
        )  # fmt: skip


def attention_stages(
    section: Section,
    op: Attention,
    c: AttentionConfig,
    nest: tuple[Counter, ...],
    q: Read,
    k: Output,
    v: Output,
    out: str,
    *,
    view: Callable[[Value], Value] = lambda o: o,
    mark: str = "",
) -> Output:
    """Scores, softmax and weighted values of tiles [heads, rows, head_dim] over `nest`, whose last counter is queries.

    K and V are tokens of all keys, [heads, keys, head_dim]. view: how the result is laid out. mark: behind the
    names of the stages.
    """
    group, d, queries = op.heads // op.key_heads, op.head_dim, nest[-1]
    counts = trips(op, c)
    j = Counter("keys", max(counts), queries, counts) if len(set(counts)) > 1 else Counter("keys", counts[0])
    every = k.out.token_shape[1] // c.keys
    pieces = j if j.trips == every else Counter("keys", every)
    rows = group * c.queries
    inner = (*nest, j)
    scale = 1 / math.sqrt(d)
    masked = op.causal == "1" or op.keys % c.keys
    rows_from = queries * c.queries + (op.keys - op.queries) if op.causal == "1" else Index(op.keys - 1)
    period = c.queries if op.causal == "1" else 1

    def scores(q: Value, k: Value) -> Value:
        s = q @ k * scale
        return s.causal(rows_from, j * c.keys, period=period) if masked else s

    part = (-2, j)
    tile = (c.heads, rows, c.keys)
    column = Carry((c.heads, rows, 1), 0.0, nest)
    if pieces is not j:
        raise InputError(f"{op}: keys beyond the last tile that a query sees; a smaller tile of keys fits")
    s = section.stage(
        f"scores{mark}", inner, {"q": q, "k": k.read(piece=(-2, j), transposed=True)}, scores, Out(tile, "fp32", inner)
    )
    if c.form == "naive":
        return _naive(section, c, nest, inner, s, v, part, (rows, d), out=out, mark=mark)

    def online(s: Value, top: Value, total: Value) -> dict[str, Value]:
        new = top.maximum(s.row_max())
        p = (s - new).exp()
        shrink = (top - new).exp()
        sums = total * shrink + p.row_sum()
        return {"p": p, "shrink": shrink, "top": new, "total": sums, "sums": sums}

    soft = section.stage(
        f"softmax{mark}", inner, {"s": s.read(AHEAD)}, online,
        {
            "p": Out(tile, str(op.dtype), inner),
            "shrink": Out((c.heads, rows, 1), "fp32", inner),
            "sums": Out((c.heads, rows, 1), "fp32", nest),
        },
        carry={"top": Carry(column.shape, LOWEST, nest), "total": column},
    )  # fmt: skip

    def gather(p: Value, v: Value, shrink: Value, o: Value) -> dict[str, Value]:
        o = o * shrink + p @ v
        return {"out": o, "o": o}

    values = section.stage(
        f"values{mark}", inner,
        {"p": soft["p"].read(AHEAD), "v": v.read(piece=part), "shrink": soft["shrink"].read(AHEAD)}, gather,
        Out((c.heads, rows, d), "fp32", nest), carry={"o": Carry((c.heads, rows, d), 0.0, nest)},
    )  # fmt: skip
    shape = record(lambda o: view(o), {"o": (c.heads, rows, d)}, {}, ["out"])
    result: Output = section.stage(
        f"divide{mark}",
        nest,
        {"o": values, "s": soft["sums"]},
        lambda o, s: view(o / s),
        Out(shape.nodes[shape.outputs["out"]].shape, out, nest),
    )
    return result


def _naive(
    section: Section,
    c: AttentionConfig,
    nest: tuple[Counter, ...],
    inner: tuple[Counter, ...],
    s: Output,
    v: Output,
    part: tuple[int, Counter],
    extent: tuple[int, int],
    *,
    out: str,
    mark: str,
) -> Output:
    """Exponentials (unshifted, as the streaming paper's starting point), their row sums, and a FIFO for the row."""
    rows, d = extent
    tile = (c.heads, rows, c.keys)
    e = section.stage(f"exponent{mark}", inner, {"s": s}, lambda s: s.exp(), Out(tile, "bf16", inner))

    def add(e: Value, total: Value) -> dict[str, Value]:
        total = total + e.row_sum()
        return {"out": total, "total": total}

    column = (c.heads, rows, 1)
    total = section.stage(
        f"row_sum{mark}", inner, {"e": e}, add, Out(column, "fp32", nest), carry={"total": Carry(column, 0.0, nest)}
    )
    weights = section.stage(
        f"divide{mark}", inner, {"e": e.read(max(c.fifo, 1), stream=True), "total": total}, lambda e, total: e / total,
        Out(tile, "bf16", inner),
    )  # fmt: skip

    def gather(p: Value, v: Value, o: Value) -> dict[str, Value]:
        o = o + p @ v
        return {"out": o, "o": o}

    shape = (c.heads, rows, d)
    result: Any = section.stage(
        f"values{mark}", inner, {"p": weights, "v": v.read(piece=part)}, gather, Out(shape, out, nest),
        carry={"o": Carry(shape, 0.0, nest)},
    )  # fmt: skip
    made: Output = result
    return made
