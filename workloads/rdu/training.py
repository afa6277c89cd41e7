"""One training step of a decoder layer: forward with saved activations, then the whole backward pass, one section each
before they are cut.

The forward pass is the layer's (`workloads.rdu.llama`) with stores of what the backward pass reads: queries, keys,
values and the attended result, the values between attention and gated layer, and both halves of the gated layer.
Norms and attention's probabilities are computed anew from them. All tokens are one tile, which stays on the chip while
weights pass once: columns of the gated layer one after the other, then key heads. Gradients of weights are sums over
all tokens of the step. Loss and optimizer are not part of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from arch.rdu import RduSpec
from sim.rdu.program import Call, Carry, Counter, Index, Out, Output, Program, Read, Section, Tensor, Value
from workloads.graphs.llama import Llama
from workloads.rdu.decoder import EPSILON, Decoder, LlamaConfig

NORM_TOKENS = 128
"""Tokens of a tile where a norm walks over them."""


def training_step(op: Llama, spec: RduSpec, config: LlamaConfig) -> Program:
    """The program of a step: two calls, each cut where that saves time, or (`unfused`) operator by operator."""
    forward = Decoder(op, spec, config)
    forward.write()
    backward = _Backward(forward)
    backward.write()
    where: tuple[Literal["time"] | tuple[int, ...], ...] = ("time", "time")
    if config.form == "unfused":
        where = tuple(forward.operators), tuple(range(len(backward.section.stages)))
    calls = tuple(Call(s, cut=w) for s, w in zip((forward.section, backward.section), where, strict=True))
    return Program(str(op), calls, str(config), config.orchestration, op.tp)


class _Backward:
    """Writes the section of the backward pass."""

    def __init__(self, forward: Decoder) -> None:
        self.op, self.spec, self.dtype = forward.op, forward.spec, forward.dtype
        self.hidden, self.head_dim, self.ffn = forward.hidden, forward.head_dim, forward.ffn
        self.heads, self.kv_heads, self.group = forward.heads, forward.kv_heads, forward.group
        self.tokens, self.seq = forward.tokens, forward.op.seq
        self.section = Section("backward")
        self.whole = (self.tokens, self.hidden)

    def write(self) -> None:
        """Gated layer and its norm, attention and its norm: from the result's gradient to x's."""
        dy = self.section.load("load_dy", self._tensor("dy", self.whole), (0, 0), self.whole, ())
        middle = self._tensor("middle", self.whole, "scratch")
        after = self._norm("norm2", middle, self._gated(dy, self._normed("norm2", middle)), "dy", None)
        x = self._tensor("x", self.whole)
        self._norm("norm1", x, self._attention(after, self._normed("norm1", x)), None, after)

    # ---- pieces

    def _tensor(
        self, name: str, shape: tuple[int, ...], role: Literal["input", "output", "scratch"] = "input"
    ) -> Tensor:
        return Tensor(name, shape, self.dtype, role)

    def _stage(
        self,
        name: str,
        over: tuple[Counter, ...],
        inputs: dict[str, Any],
        body: Callable[..., Any],
        out: Out,
        **more: Any,
    ) -> Output:
        made: Output = self.section.stage(name, over, inputs, body, out, **more)
        return made

    def _weight(
        self,
        name: str,
        extent: tuple[int, int],
        step: Counter,
        at: tuple[Index | int, Index | int],
        size: tuple[int, int],
    ) -> Read:
        """A tile of a weight matrix as the forward pass has it, read with rows and columns exchanged."""
        tensor = self._tensor(f"{name}_weight", (1, *extent))
        loaded = self.section.load(
            f"load_{name}_{len(self.section.stages)}", tensor, (0, *at), (1, *size), (step,), shape=size
        )
        return loaded.read(transposed=True)

    def _gradient(
        self,
        name: str,
        extent: tuple[int, int],
        at: tuple[Index | int, Index | int],
        value: Output,
        over: tuple[Counter, ...],
    ) -> None:
        self.section.store(f"store_d{name}", self._tensor(f"d_{name}", extent, "output"), at, value, over)

    def _steps(self, name: str, n: int) -> Counter:
        """Equal parts of n columns, the narrowest whose product with all tokens has four blocks of cells a PCU."""
        pcu = self.spec.pcu
        least = min(n, max(pcu.lanes, 4 * pcu.count * pcu.lanes * pcu.stages // self.tokens))
        return Counter(name, next(t for t in range(n // least, 0, -1) if n % t == 0))

    def _tiles(self, name: str) -> tuple[Counter, int]:
        """A walk over all tokens, and the tokens of a tile."""
        rows = next(r for r in range(min(NORM_TOKENS, self.tokens), 0, -1) if self.tokens % r == 0)
        return Counter(name, self.tokens // rows), rows

    def _vector(self, name: str) -> Read:
        tensor = self._tensor(name, (1, self.hidden))
        loaded = self.section.load(
            f"load_{name}_{len(self.section.stages)}",
            tensor,
            (0, 0),
            (1, self.hidden),
            (),
            units=1,
            shape=(self.hidden,),
        )
        return loaded.read(1)

    # ---- norms

    def _root(self, x: Value) -> Value:
        return ((x * x).row_sum() * (1 / self.hidden) + EPSILON).tail("rsqrt")

    def _normed(self, name: str, source: Tensor) -> Output:
        """What the norm gave in the forward pass, all tokens in one tile."""
        t, rows = self._tiles(f"{name}_again")
        x = self.section.load(f"load_{name}_again", source, (t * rows, 0), (rows, self.hidden), (t,))
        root = self._stage(f"{name}_root", (t,), {"x": x}, self._root, Out((rows, 1), "fp32", (t,)))
        return self._stage(
            f"{name}_again", (t,), {"x": x.read(3), "r": root, "w": self._vector(name)}, lambda x, r, w: x * r * w,
            Out((rows, self.hidden), self.dtype, (t,), (), 0),
        )  # fmt: skip

    def _norm(self, name: str, source: Tensor, dh: Output, skip: str | None, past: Output | None) -> Output:
        """Gradients of a norm's operand and weight, added to what goes past it: a tensor's tiles, or a token of all."""
        t, rows = self._tiles(f"{name}_tile")
        tile, hidden = (rows, self.hidden), self.hidden
        at = (t * rows, 0)
        x = self.section.load(f"load_{name}_x", source, at, tile, (t,))
        if past is None:
            beside = self.section.load(f"load_{name}_past", self._tensor(str(skip), self.whole), at, tile, (t,)).read()
        else:
            beside = past.read(1, piece=(0, t))

        def slope(x: Value, dh: Value, past: Value, w: Value, sums: Value) -> dict[str, Value]:
            root = self._root(x)
            unit = x * root
            scaled = dh * w
            share = (scaled * unit).row_sum() * (1 / hidden)
            sums = sums + (dh * unit).transpose().row_sum().transpose()
            return {"dx": (scaled - unit * share) * root + past, "dw": sums, "sums": sums}

        last = past is not None
        made = self.section.stage(
            f"{name}_slope", (t,),
            {"x": x, "dh": dh.read(1, piece=(0, t)), "past": beside, "w": self._vector(name)}, slope,
            {"dx": Out(tile, self.dtype, (t,), (t,) if last else (), 0), "dw": Out((1, hidden), "fp32", ())},
            carry={"sums": Carry((1, hidden), 0.0, ())},
        )  # fmt: skip
        self._gradient(name, (1, hidden), (0, 0), made["dw"], ())
        if last:
            self.section.store("store_dx", self._tensor("dx", self.whole, "output"), at, made["dx"], (t,))
        found: Output = made["dx"]
        return found

    # ---- gated layer

    def _gated(self, dy: Output, h: Output) -> Output:
        """Gradients of the three matrices, and of what the layer reads."""
        f = self._steps("ffn", self.ffn)
        width, nest = self.ffn // f.trips, (f,)
        tile = Out((self.tokens, width), self.dtype, nest)
        halves = {
            name: self.section.load(
                f"load_{name}", self._tensor(name, (self.tokens, self.ffn), "scratch"), (0, f * width), tile.shape, nest
            )
            for name in ("gate", "up")
        }
        down = self._weight("down", (self.ffn, self.hidden), f, (f * width, 0), (width, self.hidden))
        active = self._stage("dactive", nest, {"dy": dy.read(1), "w": down}, lambda dy, w: dy @ w, tile)

        def slopes(g: Value, u: Value, d: Value) -> dict[str, Value]:
            s = g.tail("sigmoid")
            silu = g * s
            return {"a": silu * u, "dg": d * u * (s * (g * (s * -1.0 + 1.0) + 1.0)), "du": d * silu}

        made = self.section.stage(
            "silu_slopes", nest, {"g": halves["gate"], "u": halves["up"], "d": active}, slopes,
            dict.fromkeys(("a", "dg", "du"), tile),
        )  # fmt: skip
        inputs = {"a": made["a"].read(transposed=True), "dy": dy.read(1)}
        out = Out((width, self.hidden), self.dtype, nest)
        product = self._stage("ddown", nest, inputs, lambda a, dy: a @ dy, out)
        self._gradient("down", (self.ffn, self.hidden), (f * width, 0), product, nest)
        for name, port in (("gate", "dg"), ("up", "du")):
            inputs = {"h": h.read(1, transposed=True), "d": made[port]}
            out = Out((self.hidden, width), self.dtype, nest)
            product = self._stage(f"d{name}", nest, inputs, lambda h, d: h @ d, out)
            self._gradient(name, (self.hidden, self.ffn), (0, f * width), product, nest)
        weights = {
            f"w{name}": self._weight(name, (self.hidden, self.ffn), f, (0, f * width), (self.hidden, width))
            for name in ("gate", "up")
        }

        def back(dg: Value, du: Value, wgate: Value, wup: Value, sums: Value) -> dict[str, Value]:
            sums = sums + dg @ wgate + du @ wup
            return {"out": sums, "sums": sums}

        found = self._stage(
            "dnorm2", nest, {"dg": made["dg"], "du": made["du"], **weights}, back, Out(self.whole, "fp32", ()),
            carry={"sums": Carry(self.whole, 0.0, ())},
        )  # fmt: skip
        return self._reduce("dnorm2_sum", found)

    def _reduce(self, name: str, value: Output) -> Output:
        """Summed over the devices that share the layer."""
        return value if self.op.tp == 1 else self.section.all_reduce(name, value, (), self.op.tp)

    # ---- attention

    def _attention(self, after: Output, h: Output) -> Output:
        """Gradients of output projection, attention and projections, key head by key head, each for its queries."""
        head, b = Counter("head", self.kv_heads), Counter("sequence", self.op.batch)
        rows = next(r for r in range(min(NORM_TOKENS, self.seq), 0, -1) if self.seq % r == 0)
        i = Counter("queries", self.seq // rows)
        wide, d = self.group * self.head_dim, self.head_dim
        at = b * self.seq
        attended = self.heads * d
        do = self._output(after, head, b, wide, attended)
        nest, inner = (head, b), (head, b, i)
        group, seq, scale = self.group, self.seq, 1 / math.sqrt(d)
        q = self.section.load(
            "load_q", self._tensor("q", (self.tokens, attended), "scratch"), (at + i * rows, head * wide), (rows, wide),
            inner, view=(rows, group, d), permute=(1, 0, 2), shape=(group * rows, d),
        )  # fmt: skip
        k, v = (
            self.section.load(
                f"load_{name}",
                self._tensor(name, (self.tokens, self.kv_heads * d), "scratch"),
                (at, head * d),
                (seq, d),
                nest,
            )
            for name in ("k", "v")
        )

        def by_head(x: Value) -> Value:
            return x.reshape(rows, group, d).permute(1, 0, 2).reshape(group * rows, d)

        def scores(q: Value, k: Value) -> Value:
            return (q @ k * scale).causal(i * rows, Index(0), period=rows)

        def softmax(s: Value) -> Value:
            e = (s - s.row_max()).exp()
            return e / e.row_sum()

        tile = (group * rows, seq)
        part = (0, i)
        turned = self._stage(
            "dattended", inner, {"x": do.read(piece=part)}, by_head, Out((group * rows, d), self.dtype, inner)
        )
        s = self._stage("scores", inner, {"q": q, "k": k.read(transposed=True)}, scores, Out(tile, "fp32", inner))
        p = self._stage("probabilities", inner, {"s": s}, softmax, Out(tile, self.dtype, inner))
        dp = self._stage(
            "dprobabilities", inner, {"do": turned, "v": v.read(transposed=True)}, lambda do, v: do @ v,
            Out(tile, "fp32", inner),
        )  # fmt: skip
        ds = self._stage(
            "dscores", inner, {"p": p.read(3), "dp": dp}, lambda p, dp: p * (dp - (p * dp).row_sum()) * scale,
            Out(tile, self.dtype, inner),
        )  # fmt: skip
        dq = self._stage(
            "dqueries", inner, {"ds": ds, "k": k.read()}, lambda ds, k: ds @ k, Out((group * rows, d), "fp32", inner)
        )

        def add(left: Value, right: Value, sums: Value) -> dict[str, Value]:
            sums = sums + left @ right
            return {"out": sums, "sums": sums}

        dk, dv = (
            self._stage(
                name, inner, {"left": left.read(depth, transposed=True), "right": right.read(depth)}, add,
                Out((seq, d), self.dtype if whole else "fp32", nest, whole, 0),
                carry={"sums": Carry((seq, d), 0.0, nest)},
            )
            for name, left, right, depth, whole in (("dkeys", ds, q, 8, None), ("dvalues", p, turned, 4, (head,)))
        )  # fmt: skip
        dq, dk = self._turn_back(dq, dk, (head, b, i), rows)
        return self._projections({"q": (dq, wide), "k": (dk, d), "v": (dv, d)}, h, head)

    def _output(self, after: Output, head: Counter, b: Counter, wide: int, attended: int) -> Output:
        """Gradients of the output projection's matrix and operand, [seq, heads of a group] by head and sequence."""
        nest, part = (head, b), (0, b)
        wo = self._weight("wo", (attended, self.hidden), head, (head * wide, 0), (wide, self.hidden))
        do = self._stage(
            "dheads", nest, {"dx": after.read(1, piece=part), "w": wo}, lambda dx, w: dx @ w,
            Out((self.seq, wide), self.dtype, nest),
        )  # fmt: skip
        o = self.section.load(
            "load_attended", self._tensor("attended", (self.tokens, attended), "scratch"), (b * self.seq, head * wide),
            (self.seq, wide), nest,
        )  # fmt: skip

        def add(o: Value, dx: Value, sums: Value) -> dict[str, Value]:
            sums = sums + o @ dx
            return {"out": sums, "sums": sums}

        shape = (wide, self.hidden)
        product = self._stage(
            "dwo", nest, {"o": o.read(transposed=True), "dx": after.read(1, piece=part)}, add,
            Out(shape, self.dtype, (head,)), carry={"sums": Carry(shape, 0.0, (head,))},
        )  # fmt: skip
        self._gradient("wo", (attended, self.hidden), (head * wide, 0), product, (head,))
        return do

    def _turn_back(self, dq: Output, dk: Output, inner: tuple[Counter, ...], rows: int) -> tuple[Output, Output]:
        """Gradients of queries and keys before rotary positions: all tokens, by head."""
        head, _, i = inner
        group, d, seq = self.group, self.head_dim, self.seq

        def back(x: Value, cos: Value, sin: Value) -> Value:
            return x * cos - (x * sin).rotate_half()

        def queries(x: Value, cos: Value, sin: Value) -> Value:
            x = back(x.reshape(group, rows, d), cos.reshape(1, rows, d), sin.reshape(1, rows, d))
            return x.permute(1, 0, 2).reshape(rows, group * d)

        tables = {name: Tensor(name, (seq, d), "fp32") for name in ("cos", "sin")}
        by_tile: dict[str, Any] = {
            name: self.section.load(f"load_{name}_q", tensor, (i * rows, 0), (rows, d), inner, units=1)
            for name, tensor in tables.items()
        }
        by_head: dict[str, Any] = {
            name: self.section.load(f"load_{name}_k", tensor, (0, 0), (seq, d), (), units=1).read(1)
            for name, tensor in tables.items()
        }
        return (
            self._stage(
                "turn_queries", inner, {"x": dq, **by_tile}, queries,
                Out((rows, group * d), self.dtype, inner, (head,), 0),
            ),
            self._stage(
                "turn_keys", inner[:2], {"x": dk, **by_head}, back, Out((seq, d), self.dtype, inner[:2], (head,), 0)
            ),
        )  # fmt: skip

    def _projections(self, made: dict[str, tuple[Output, int]], h: Output, head: Counter) -> Output:
        """Gradients of the projections' matrix and operand. made: by name, with columns of a head."""
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        first = {"q": 0, "k": self.heads * self.head_dim, "v": (self.heads + self.kv_heads) * self.head_dim}
        inputs: dict[str, Any] = {}
        for name, (value, columns) in made.items():
            at = (0, head * columns + first[name])
            product = self._stage(
                f"dw{name}", (head,), {"h": h.read(1, transposed=True), "d": value}, lambda h, d: h @ d,
                Out((self.hidden, columns), self.dtype, (head,)),
            )  # fmt: skip
            tensor = self._tensor("d_qkv", (self.hidden, width), "output")
            self.section.store(f"store_dw{name}", tensor, at, product, (head,))
            inputs[f"d{name}"] = value
            inputs[f"w{name}"] = self._weight("qkv", (self.hidden, width), head, at, (self.hidden, columns))

        def back(dq: Value, wq: Value, dk: Value, wk: Value, dv: Value, wv: Value, sums: Value) -> dict[str, Value]:
            sums = sums + dq @ wq + dk @ wk + dv @ wv
            return {"out": sums, "sums": sums}

        found = self._stage(
            "dnorm1", (head,), inputs, back, Out(self.whole, "fp32", ()), carry={"sums": Carry(self.whole, 0.0, ())}
        )
        return self._reduce("dnorm1_sum", found)
