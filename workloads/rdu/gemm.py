"""Matrix multiply as a metapipeline: an outer one loads row panels of A, an inner one column panels of B.

A panel of A stays in its buffer while the inner loop walks over the columns; each pair of panels gives one tile of C.
`row_par` and `col_par` divide that tile over PCUs. Where two panels of whole rows are too large for the chip, an
innermost loop cuts k, and partial sums are carried.
"""

from __future__ import annotations

import re
from collections import Counter as Counted
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from arch.units import BYTES
from sim.rdu.program import Call, Carry, Counter, Index, Out, Program, Read, Section, Tensor, Value
from workloads.ops import Gemm
from workloads.rdu.select import ceil_div, check_dtype, launch_cycles, load_cycles, pick
from workloads.registry import register

SHOWN = 12
"""Candidates that are shown."""
DIVISIONS = 3
"""Of one tile."""
PS_PER_S = 10**12
_FORM = re.compile(r"metapipeline (\d+)x(\d+)x(\d+) par (\d+)x(\d+) over ([mn])")


@dataclass(frozen=True)
class GemmConfig:
    """Extents of a tile, how it is divided over PCUs, and which loop is the outer one."""

    m: int
    n: int
    k: int
    row_par: int
    col_par: int
    outer: str

    schedule = "metapipeline"

    def __str__(self) -> str:
        return f"metapipeline {self.m}x{self.n}x{self.k} par {self.row_par}x{self.col_par} over {self.outer}"

    def build(self, op: Gemm, spec: RduSpec) -> Program:
        """The program, one section."""
        section = Section("gemm")
        add_gemm(section, op, self)
        return Program(str(op), (Call(section),), str(self))


@register("gemm", "rdu", "metapipeline")
def build(op: Gemm, spec: RduSpec, config: GemmConfig) -> Program:
    """The program of a configuration."""
    return config.build(op, spec)


@register("gemm", "rdu", "auto")
def choose(op: Gemm, spec: RduSpec, schedule: str) -> list[tuple[GemmConfig, int]]:
    """Configurations by estimated cycles."""
    if op.scale != "none" or op.finished or op.quantised:
        raise InputError(f"{op}: {spec.name} has neither scales, epilogues nor packed weights; nearest: leave them out")
    check_dtype(op, spec)
    ranked = sorted(((estimate(op, spec, c), i, c) for i, c in enumerate(_candidates(op, spec))), key=lambda e: e[:2])
    if not ranked:
        raise InputError(
            f"{op}: no tile fits {spec.name}: {BYTES.format(spec.pmu.count * spec.pmu.size_bytes)} on chip, "
            f"{spec.pcu.count} PCUs"
        )
    shown = _unlike((c, cycles) for cycles, _, c in ranked)
    return list(pick("gemm", schedule, list(islice(shown, SHOWN)), _parse))


def _unlike(ranked: Iterable[tuple[GemmConfig, int]]) -> Iterator[tuple[GemmConfig, int]]:
    """The best divisions of each tile: dozens of them differ in the length of ways alone."""
    seen: Counted[tuple[int, int, int, str]] = Counted()
    for config, cycles in ranked:
        tile = config.m, config.n, config.k, config.outer
        seen[tile] += 1
        if seen[tile] <= DIVISIONS:
            yield config, cycles


def _parse(text: str) -> GemmConfig | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    m, n, k, row_par, col_par = map(int, match.groups()[:5])
    return GemmConfig(m, n, k, row_par, col_par, match[6])


def tile_cycles(rows: int, columns: int, k: int, spec: RduSpec, row_par: int, col_par: int, dtype: str) -> int:
    """Cycles of a product of tiles on row_par x col_par PCUs, as arrays where they multiply the format."""
    if not (spec.pcu.systolic and dtype in spec.array_dtypes):
        return ceil_div(rows, row_par) * ceil_div(columns, col_par) * ceil_div(k, spec.pcu.lanes)

    def blocks(m: int, n: int, down: int, across: int) -> int:
        return ceil_div(ceil_div(m, spec.pcu.lanes), down) * ceil_div(ceil_div(n, spec.pcu.stages), across)

    straight, crossed = blocks(rows, columns, row_par, col_par), blocks(columns, rows, col_par, row_par)
    rounds = crossed if 8 * crossed < 7 * straight else straight
    return rounds * ceil_div(k, spec.pcu.macs)


def estimate(op: Gemm, spec: RduSpec, c: GemmConfig) -> int:
    """Cycles: the launch, the first panels, the busier of arithmetic, memory and the way round of a buffer, the last
    tile. Exact integers, for ranking."""
    hz = spec.clock.boost_hz
    width = DTYPE_BYTES[str(op.dtype)]
    out = DTYPE_BYTES[str(op.out)]
    tiles_m, tiles_n, tiles_k = ceil_div(op.m, c.m), ceil_div(op.n, c.n), ceil_div(op.k, c.k)
    compute = tile_cycles(c.m, c.n, c.k, spec, c.row_par, c.col_par, str(op.dtype))
    needed, given = _crowding(spec, c, width)
    compute = compute * needed // given
    inner_again, outer_again = (tiles_m, 1) if c.outer == "m" else (1, tiles_n)
    if tiles_k > 1:
        inner_again, outer_again = tiles_m, tiles_n
    a, b, c_tile = _panel_bytes(op, spec, c, width, out)
    read = (a * tiles_m * outer_again + b * tiles_n * inner_again) * tiles_k
    moved = op.batch * (read + c_tile * tiles_m * tiles_n * (2 if op.adds else 1))
    rate = spec.main_memory.bandwidth_bytes_per_s
    load, way = load_cycles(spec), _way_cycles(spec, c.row_par * c.col_par)
    # A buffer holds two tiles: the next but one is asked for when a tile is done and its credit is back.
    tiles = op.batch * tiles_m * tiles_n * tiles_k
    panel = b if c.outer == "m" else a
    turn = load + panel * hz // rate + 2 * way + compute
    rounds, rest = divmod(tiles - 1, 2)
    steady = max((tiles - 1) * compute, rounds * turn + rest * compute)
    first = load + (a + b) * hz // rate + way
    last = compute + spec.pcu.lanes + spec.pcu.stages + spec.pcu.latency_cycles + way + c_tile * hz // rate
    return launch_cycles(spec) + max(first + steady, load + moved * hz // rate) + compute + last


def _way_cycles(spec: RduSpec, pcus: int) -> int:
    """Cycles of the longest way of a tile to so many units: through a PMU, along a column of the mesh and over as many
    columns as they take, from one die to another where they take more than one has."""
    wide = min(spec.columns, ceil_div(pcus * (spec.pcu.count + spec.pmu.count), spec.pcu.count * spec.mesh.rows))
    dies = spec.dies.latency_ps * spec.clock.boost_hz // PS_PER_S if wide * spec.dies.count > spec.columns else 0
    return int(spec.pmu.latency_cycles + spec.mesh.hop_cycles * (spec.mesh.rows + wide)) + dies


def _panel_bytes(op: Gemm, spec: RduSpec, c: GemmConfig, width: int, out: int) -> tuple[int, int, int]:
    """What a panel of A, one of B and a tile of C move: memory gives whole bursts, each row of a panel its own, but
    where the panel has whole rows of its tensor."""
    burst = spec.main_memory.atom_bytes

    def moved(rows: int, row_bytes: int, whole: bool) -> int:
        pieces, size = (1, rows * row_bytes) if whole else (rows, row_bytes)
        return pieces * ceil_div(size, burst) * burst

    m, n, k = min(c.m, op.m), min(c.n, op.n), min(c.k, op.k)
    a = moved(k, m * width, m == op.m) if op.ta == "T" else moved(m, k * width, k == op.k)
    b = moved(n, k * width, k == op.k) if op.tb == "T" else moved(k, n * width, n == op.n)
    return a, b, moved(m, n * out, n == op.n)


def _crowding(spec: RduSpec, c: GemmConfig, width: int) -> tuple[int, int]:
    """By how much, as a fraction, links slow the product: streams that share a row of the mesh.

    An array's bands of rows each stream A. Where lanes add up inner products, every part of A and of B is a stream of a
    vector a cycle, as wide as a link: those of A go along the rows, those of B along the columns.
    """
    if not spec.pcu.systolic:
        wide = max(1, spec.columns * spec.pcu.count // (spec.pcu.count + spec.pmu.count))
        return max(ceil_div(c.row_par, spec.mesh.rows), ceil_div(c.col_par, wide)), 1
    link = round(spec.link_bytes_per_cycle(spec.pcu.count // (c.row_par * c.col_par)))
    stream = ceil_div(c.row_par, spec.mesh.rows) * spec.pcu.lanes * spec.pcu.macs * width
    return max(stream, link), link


def _candidates(op: Gemm, spec: RduSpec) -> Iterator[GemmConfig]:
    """Divisions of the PCUs, and tiles that are one or a few blocks of them."""
    width, out = DTYPE_BYTES[str(op.dtype)], DTYPE_BYTES[str(op.out)]
    room = spec.pmu.count * spec.pmu.size_bytes * 9 // 10
    arrays = spec.pcu.systolic and op.dtype in spec.array_dtypes
    down, across = (spec.pcu.lanes, spec.pcu.stages) if arrays else (1, 1)
    for k in _k_cuts(op.k):
        found = False
        budget = spec.pcu.count // (2 if k < op.k else 1) // (2 if op.adds else 1)
        for row_par, col_par in spec.divisions(budget):
            for blocks_m in (1, 2, 4, 8, 16):
                for blocks_n in (1, 2, 4, 8, 16, 32):
                    m, n = down * row_par * blocks_m, across * col_par * blocks_n
                    if (blocks_m > 1 and m >= 2 * op.m) or (blocks_n > 1 and n >= 2 * op.n):
                        continue
                    m, n = min(m, op.m), min(n, op.n)
                    size = 2 * ((m + n) * k * width + m * n * out * (2 if op.adds else 1))
                    if size <= room:
                        found = True
                        for outer in ("m", "n") if op.m > m and op.n > n else ("m",):
                            yield GemmConfig(m, n, k, row_par, col_par, outer)
        if found:
            return


def _k_cuts(k: int) -> Iterator[int]:
    yield k
    cut = 1 << (k - 1).bit_length()
    while cut > 256:
        cut //= 2
        if cut < k:
            yield cut


def add_gemm(section: Section, op: Gemm, c: GemmConfig) -> None:
    """Adds the stages of a multiply with its loads and its store."""
    a = Tensor("a", op.a_shape, str(op.dtype))
    b = Tensor("b", op.b_shape, str(op.dtype))
    result = Tensor("c", op.c_shape, str(op.out), "output")
    batch = Counter("batch", op.batch)
    m, n = Counter("m", ceil_div(op.m, c.m)), Counter("n", ceil_div(op.n, c.n))
    k = Counter("k", ceil_div(op.k, c.k))
    first, second = (m, n) if c.outer == "m" else (n, m)
    nest: tuple[Counter, ...] = (batch, first, second)
    a_over: tuple[Counter, ...] = (batch, m) if c.outer == "m" else nest
    b_over: tuple[Counter, ...] = nest if c.outer == "m" else (batch, n)
    inner = nest
    if k.trips > 1:
        inner = a_over = b_over = (*nest, k)
    at = {"m": m * c.m, "n": n * c.n, "k": k * c.k if k.trips > 1 else Index()}
    panel_a = _panel(section, a, batch, (at["m"], at["k"]), (c.m, c.k), a_over, op.ta == "T")
    panel_b = _panel(section, b, batch, (at["k"], at["n"]), (c.k, c.n), b_over, op.tb == "T")
    inputs: dict[str, Any] = {"a": panel_a, "b": panel_b}
    if op.adds:
        inputs["c"] = section.load("load_c", result, (batch, at["m"], at["n"]), (1, c.m, c.n), nest, shape=(c.m, c.n))
    carry = {"sums": Carry((c.m, c.n), 0.0, nest)} if k.trips > 1 else {}
    tile = section.stage(
        "multiply",
        inner,
        inputs,
        _body(op.adds, bool(carry)),
        Out((c.m, c.n), str(op.out), nest),
        row_par=c.row_par,
        col_par=c.col_par,
        carry=carry,
    )
    section.store("store_c", result, (batch, at["m"], at["n"]), tile, nest)


def _body(adds: bool, carries: bool) -> Any:
    def multiply(a: Value, b: Value, c: Value | None = None, sums: Value | None = None) -> Any:
        total = a @ b
        if sums is not None:
            total = sums + total
        value = total + c if c is not None else total
        return {"out": value, "sums": total} if carries else value

    return multiply


def _panel(
    section: Section,
    tensor: Tensor,
    batch: Counter,
    origin: tuple[Index, Index],
    tile: tuple[int, int],
    over: tuple[Counter, ...],
    stored_transposed: bool,
) -> Read:
    if stored_transposed:
        origin, tile = (origin[1], origin[0]), (tile[1], tile[0])
    token = section.load(f"load_{tensor.name}", tensor, (batch, *origin), (1, *tile), over, shape=tile)
    return token.read(transposed=stored_transposed)
