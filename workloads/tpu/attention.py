"""Attention where TPU v1 stands: the array makes Q K^T and P V, the host the softmax between, over PCIe.

K and V come into being at run time, but what rests in the array comes from weight memory only: the host writes them
there, in tiles. Scores are scaled by a power of two to 8 bits with 4 fraction bits, shares have 7. While the host works
on one head, the array makes the scores of the next. A head whose queries exceed half of the accumulators, or whose
scores do not fit the unified buffer twice, comes in blocks of queries over the same keys. With a vector unit
(`tpu-v1-ext`) the softmax stays on the chip; masks still need the host.

Machines for floating-point numbers have Q, K, V and O in their own memory, from which K and V go straight to the array;
scores are fp32, shares bf16, and the vector unit masks. All pairs are computed, masked or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import InterruptHost, MatrixMultiply, Program, Vector
from workloads.ops import Attention
from workloads.registry import register
from workloads.tpu.choose import Config, estimate
from workloads.tpu.emit import (
    BITS,
    FLOAT_BITS,
    Emitter,
    Weights,
    formats,
    load,
    numbers,
    spread,
    store,
    store_bytes,
)
from workloads.tpu.rows import host_softmax, softmax

SHARE_BITS = 7


@register("attention", "tpu", "auto")
def candidates(op: Attention, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """Softmax on the host, or in the vector unit where there is one."""
    op.check_plain(spec.name)
    if spec.floats:
        formats(op, spec, str(op.dtype), str(op.out))
    elif op.dtype != "int8" or op.out not in BITS:
        raise InputError(
            f"{op}: {spec.name} does attention in int8 to int8, int16 or int32, not {op.dtype} to {op.out}"
        )
    if spec.array.dataflow != "ws":
        raise InputError(f"{op}: attention needs array.dataflow=ws, {spec.name} has {spec.array.dataflow}")
    on_chip = spec.vector is not None and (spec.floats or not _masked(op))
    name = "vector" if on_chip else "host"
    if schedule not in ("auto", name):
        raise InputError(f"schedule={schedule}: attention on {spec.name} must be auto or {name}; did you mean {name}?")
    bits = 16 if spec.floats else 8
    each = estimate(spec, op.queries, op.head_dim, op.keys, bits, 1, False)
    each += estimate(spec, op.queries, op.keys, op.head_dim, bits, 1, False)
    if spec.floats and spec.vector:
        each = max(each, (1 + 2 * spec.vector.exp) * op.queries * op.keys // spec.vector.lanes)
    if not on_chip:
        each += 2 * op.queries * op.keys * spec.clock.boost_hz // spec.pcie.bandwidth_bytes_per_s
    return [(Config(name), op.batch * op.heads * each)]


@register("attention", "tpu", "vector")
@register("attention", "tpu", "host")
def build(op: Attention, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where the scores of one query do not fit."""
    return _Writer(op, Emitter(spec, str(op)), config).program()


@dataclass(frozen=True)
class _Head:
    """A block of a head's queries: where its operands lie in host memory, and keys and values in weight memory."""

    batch: int
    number: int
    start: int
    """Its first query."""
    queries: int
    q: int
    scores: int
    shares: int
    o: int
    keys: Weights
    values: Weights
    k_tiles: int
    v_tiles: int
    first: bool
    """Whether it is the first to use its keys and values."""


class _Writer:
    """Writes heads one after the other; the softmax of one runs beside the scores of the next."""

    def __init__(self, op: Attention, e: Emitter, config: Config) -> None:
        self.op, self.e, self.on_chip = op, e, config.schedule == "vector"
        self.config = config
        self.own = e.spec.unified_buffer.behind == "dram"
        """Whether operands lie in the machine's own memory."""
        floats = e.spec.floats
        self.out_bits = (FLOAT_BITS if floats else BITS)[str(op.out)]
        self.bits, self.score_bits, self.share_bits = (16, 32, 16) if floats else (8, 8, 8)
        self.heads = self._lay_out()
        queries, keys, dim = self.heads[0].queries, op.keys, op.head_dim
        self.q = [e.ub(queries * dim * self.bits // 8) for _ in range(2)]
        self.scores = [e.ub(queries * keys * self.score_bits // 8) for _ in range(2)]
        self.shares = [e.ub(queries * keys * self.share_bits // 8) for _ in range(2)]
        self.o = [e.ub(queries * dim * self.out_bits // 8) for _ in range(2)]

    def _lay_out(self) -> list[_Head]:
        op, e = self.op, self.e
        heads = []
        block = self._block()
        for batch in range(op.batch):
            areas = []
            for _ in range(op.key_heads):
                keys, values = e.weights(op.head_dim, op.keys), e.weights(op.keys, op.head_dim)
                k_tiles, v_tiles = (0 if self.own else e.host(area.size_bytes) for area in (keys, values))
                areas.append((keys, values, k_tiles, v_tiles))
            for h in range(op.heads):
                shared = h * op.key_heads // op.heads
                between = 0 if self.own else op.keys
                each = (op.head_dim * self.bits // 8, between, between, op.head_dim * self.out_bits // 8)  # of a query
                first = h == 0 or shared != (h - 1) * op.key_heads // op.heads
                areas_of_head = [e.host(op.queries * size) for size in each]
                for start in range(0, op.queries, block):
                    q, scores, shares, o = (a + start * size for a, size in zip(areas_of_head, each, strict=True))
                    rows, new = min(block, op.queries - start), first and start == 0
                    heads.append(_Head(batch, h, start, rows, q, scores, shares, o, *areas[shared], new))
        return heads

    def _block(self) -> int:
        """Queries of a block: as few blocks as fit, evenly filled."""
        op, spec = self.op, self.e.spec
        scores = op.keys * (self.score_bits + self.share_bits) // 8
        each = 2 * (op.head_dim * self.bits // 8 + scores + op.head_dim * self.out_bits // 8)
        room = (spec.unified_buffer.size_bytes - 8 * self.e.align) // each
        most = max(1, min(spec.accumulators.rows // 2, room))
        return -(-op.queries // -(-op.queries // most))

    def program(self) -> Program:
        """All heads."""
        e = self.e
        self._scores(0)
        self._softmax(0)
        for i in range(len(self.heads)):
            if i + 1 < len(self.heads):
                self._scores(i + 1)
            self._values(i)
            if i + 1 < len(self.heads):
                self._softmax(i + 1)
            self._send(i)
        floats = e.spec.floats
        return Program(
            self.op.word, str(self.config), e.instructions, e.host_bytes, e.weight_bytes, self._fill, self._results,
            reference=None if floats else lambda operands: [_reference(self.op, *operands)], host_work=e.host_work,
            notes=() if floats else ("Fixed point: scores in 8 bits with 4 fraction bits, shares with 7.",),
        )  # fmt: skip

    def _scores(self, i: int) -> None:
        """Q K^T of a head, as 8-bit fixed point, to the host."""
        e, op, head = self.e, self.op, self.heads[i]
        # Slots are free again when the head before the last has been read from them.
        e.sync(e.inbound, *e.matrices)
        size = head.queries * op.head_dim * self.bits // 8
        e.read(head.q, self.q[i % 2], 1, size, size, size)
        if head.first and not self.own:
            for area, tiles in ((head.keys, head.k_tiles), (head.values, head.v_tiles)):
                e.sync(e.inbound, *e.fetchers)
                e.read(tiles, area.address, 1, area.size_bytes, area.size_bytes, area.size_bytes, 1)
            for fetcher in e.fetchers:
                e.sync(fetcher, e.inbound)
        for array in e.matrices:
            e.sync(array, e.inbound)
        e.sync("activation", e.outbound)
        if e.spec.array.count > 1:
            e.sync("activation", *e.matrices)  # every array has read the shares that its softmax replaces
        shift = 0 if e.spec.floats else _score_shift(op)
        bits = self.score_bits
        self._multiply(head, self.q[i % 2], op.head_dim, head.keys, self.scores[i % 2], op.keys, shift, bits)
        if not self.on_chip:
            size = head.queries * op.keys
            e.sync(e.outbound, "activation")
            e.write(self.scores[i % 2], head.scores, 1, size, size, size)

    def _softmax(self, i: int) -> None:
        """Shares of a head's scores: on the host, or by the vector unit."""
        e, op, head = self.e, self.op, self.heads[i]
        if self.on_chip:
            for step in ("row_max", "exp_sum", "softmax"):
                e.add(self._pass(step, head, self.scores[i % 2], self.shares[i % 2]))
            return
        name = f"softmax{i}"
        rows = slice(head.start, head.start + head.queries)
        seen = (lambda: _seen(op)[rows]) if _masked(op) else None
        e.host_work[name] = host_softmax(e.spec, head.scores, head.shares, (head.queries, op.keys), 8, seen)
        e.sync("host", "host_write")
        e.add(InterruptHost(name))

    def _pass(self, step: str, head: _Head, scores: int, shares: int) -> Vector:
        """One pass of the vector unit over a head's scores."""
        op, pitch = self.op, self.op.keys * self.score_bits // 8
        if not self.e.spec.floats:
            return Vector(step, scores, 0, shares, head.queries, op.keys, pitch)
        return Vector(
            step, scores, 0, shares, head.queries, op.keys, pitch, bits=self.score_bits,
            out_pitch=op.keys * self.share_bits // 8, out_bits=self.share_bits, dim=op.head_dim, query=head.start,
            queries=op.queries if _masked(op) else 0, causal=int(op.causal), window=op.window,
        )  # fmt: skip

    def _values(self, i: int) -> None:
        """P V of a head."""
        e, op, head = self.e, self.op, self.heads[i]
        source = "activation" if self.on_chip else e.inbound
        if not self.on_chip:
            size = head.queries * op.keys
            e.sync(e.inbound, "host", *e.matrices)
            e.read(head.shares, self.shares[i % 2], 1, size, size, size)
        for array in e.matrices:
            e.sync(array, source)
        e.sync("activation", e.outbound)
        share, out = self.shares[i % 2], self.o[i % 2]
        shift = 0 if e.spec.floats else SHARE_BITS
        self._multiply(head, share, op.keys, head.values, out, op.head_dim, shift, self.out_bits)

    def _send(self, i: int) -> None:
        """A head's result to the host."""
        size = self.heads[i].queries * self.op.head_dim * self.out_bits // 8
        self.e.sync(self.e.outbound, "activation")
        self.e.write(self.o[i % 2], self.heads[i].o, 1, size, size, size)

    def _multiply(
        self, head: _Head, source: int, depth: int, area: Weights, target: int, columns: int, shift: int, bits: int
    ) -> None:
        """`columns`: of the result, which has `bits`."""
        e = self.e
        height, wide = e.spec.array.rows, self.bits // 8

        def make(first: int, rows: int, step: int, repeat: int) -> MatrixMultiply:
            start = step * height
            left = min(repeat * height, depth - start)
            place = source + (first * depth + start) * wide
            return MatrixMultiply(place, depth * wide, rows, left, area.width, 0, bits=self.bits, repeat=repeat)

        parts = spread(e.spec, head.queries, area.wide)
        for job in range(area.wide * len(parts)):
            n, (first, rows) = job // len(parts), parts[job % len(parts)]
            array = job % e.spec.array.count
            acc = e.accumulators(array, rows, e.spec.accumulators.rows)
            e.column(area, n, partial(make, first, rows), acc, array)
            place = target + (first * columns + n * area.width) * bits // 8
            e.activate(acc, rows, area.columns_of(n), place, columns * bits // 8, bits, array, shift=shift)

    def _fill(self, memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        op = self.op
        q, k, v = (numbers(self.e.spec, x) for x in operands)
        for head in self.heads:
            b, rows = head.batch, slice(head.start, head.start + head.queries)
            shared = head.number * op.key_heads // op.heads
            store(memory.host, head.q, q[b, rows, head.number], self.e.spec.format_of(self.bits))
            areas = ((head.keys, head.k_tiles, k[b, :, shared].T), (head.values, head.v_tiles, v[b, :, shared]))
            for area, tiles, matrix in areas:
                target, address = (memory.weights, area.address) if self.own else (memory.host, tiles)
                store_bytes(target, address, area.image(matrix))

    def _results(self, memory: Any) -> list[NDArray[Any]]:
        op = self.op
        kind = self.e.spec.format_of(self.out_bits)
        found = np.zeros((op.batch, op.queries, op.heads, op.head_dim))
        for head in self.heads:
            rows = slice(head.start, head.start + head.queries)
            found[head.batch, rows, head.number] = load(memory.host, head.o, (head.queries, op.head_dim), kind)
        return [found]


def _score_shift(op: Attention) -> int:
    """Bits by which scores are scaled: products of full-range operands fill 8 bits and seldom leave them."""
    return 3 + round(math.log2(op.head_dim) / 2)


def _masked(op: Attention) -> bool:
    return op.causal == "1" or op.window > 0


def _seen(op: Attention) -> NDArray[np.bool_]:
    """Which keys each query sees, [queries, keys]."""
    i, j = np.arange(op.queries)[:, None] + op.keys - op.queries, np.arange(op.keys)[None]
    seen = j <= i if op.causal == "1" else np.ones((op.queries, op.keys), dtype=bool)
    if op.window:
        seen &= j > i - op.window
        if op.causal != "1":
            seen &= j < i + op.window
    return seen


def _reference(op: Attention, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> NDArray[np.int64]:
    """The quantised attention in NumPy."""
    found = np.zeros(q.shape, dtype=np.int64)
    seen = _seen(op) if _masked(op) else None
    for b in range(op.batch):
        for h in range(op.heads):
            shared = h * op.key_heads // op.heads
            keys, values = (x[b, :, shared].astype(np.int64) for x in (k, v))
            scores = _quantised(q[b, :, h].astype(np.int64) @ keys.T, _score_shift(op), 8)
            found[b, :, h] = _quantised(softmax(scores, 8, seen) @ values, SHARE_BITS, BITS[str(op.out)])
    return found


def _quantised(sums: NDArray[np.int64], shift: int, bits: int) -> NDArray[np.int64]:
    """sums / 2**shift to nearest, halves up, held to `bits`."""
    largest = 2 ** (bits - 1)
    return np.clip(np.floor_divide(sums + (1 << shift) // 2, 1 << shift), -largest, largest - 1)
