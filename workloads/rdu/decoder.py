"""Decoder layers of Llama as dataflow programs, on one device or shared by several (tensor parallel).

`looped` is one section with the layers as its outermost loop: a layer's result goes round on chip, and the weights of
the next layer are on their way while this one still computes. `fused` is one section for a layer, launched by layer.
`cut` is the fused layer cut into sections where stages would take turns for longer than a launch takes. `unfused` is a
section for each operator, with its tensors in memory between them.

Where HBM does not hold all layers (`from ddr`), some stay there and the others, evenly between them, are copied from
DDR beside the layers before them, as far ahead as HBM has room.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from arch.dtypes import DTYPE_BYTES
from arch.rdu import RduSpec
from sim.rdu.program import Call, Carry, Counter, Index, Out, Output, Program, Read, Section, Tensor, Value
from workloads.graphs.llama import Llama
from workloads.ops import Attention
from workloads.rdu.attention import LOWEST, AttentionConfig, attention_stages

EPSILON = 1e-5
USABLE = Fraction(9, 10)
"""Of HBM, by weights and caches where layers are copied; the rest is for what passes between sections."""
_AHEAD = 2
"""Layers of weights for which HBM has room beside those that stay: one in use, one on its way."""


@dataclass(frozen=True)
class LlamaConfig:
    """Form, who launches, and tokens of a tile (prefill)."""

    form: str
    orchestration: Literal["host", "hardware"]
    tokens: int
    from_ddr: bool = False
    """Whether DDR is the home of the weights that HBM does not hold."""

    @property
    def schedule(self) -> str:
        """`looped`, `fused`, `cut` or `unfused`."""
        return self.form

    def __str__(self) -> str:
        return f"{self.form} by {self.orchestration} tokens {self.tokens}" + " from ddr" * self.from_ddr


def layer_bytes(op: Llama) -> int:
    """Bytes of weights and cache of a layer on one device."""
    m = op.sizes
    d = m.hidden // m.heads
    kv = max(1, m.kv_heads // op.tp)
    weights = m.hidden * ((2 * m.heads // op.tp + 2 * kv) * d + 3 * m.ffn // op.tp)
    cache = 2 * op.batch * op.seq * kv * d if op.phase == "decode" else 0
    return (weights + cache) * DTYPE_BYTES[str(op.dtype)]


def copied_layers(layers: int, kept: int) -> list[bool]:
    """Which layers are copied from DDR where HBM keeps `kept`: the others, spread evenly, the last one among them."""
    copied = layers - kept
    return [(layer + 1) * copied // layers > layer * copied // layers for layer in range(layers)]


class Decoder:
    """Writes the sections."""

    def __init__(self, op: Llama, spec: RduSpec, config: LlamaConfig) -> None:
        self.op, self.spec, self.config = op, spec, config
        self.dtype = str(op.dtype)
        sizes = op.sizes
        self.hidden, self.head_dim = sizes.hidden, sizes.hidden // sizes.heads
        self.heads, self.kv_heads = sizes.heads // op.tp, max(1, sizes.kv_heads // op.tp)
        self.group = self.heads // self.kv_heads
        self.ffn = sizes.ffn // op.tp
        self.decode = op.phase == "decode"
        self.looped = config.form == "looped"
        self.held = op.layers if self.looped else 1
        """Layers whose weights one section walks over."""
        self.layer = Counter("layer", self.held)
        self.rows = op.batch if self.decode else config.tokens
        self.batch = Counter("batch", 1 if self.decode else op.batch)
        self.tile = Counter("tile", 1 if self.decode else op.seq // config.tokens)
        self.nest: tuple[Counter, ...] = (self.layer, self.batch, self.tile)
        self.tokens = op.batch * (1 if self.decode else op.seq)
        self.at = self.batch * (self.tokens // op.batch) + self.tile * self.rows
        self.section = Section("layer")
        self.operators: list[int] = []
        """Numbers of the stages with which operators begin."""

    def program(self) -> Program:
        """The section, as often as there are layers (looped: once)."""
        self.write()
        where: Any = {"cut": "time", "unfused": tuple(self.operators)}.get(self.config.form, "fit")
        copied = (
            copied_layers(self.op.layers, self.kept)
            if self.config.from_ddr
            else [False] * (self.op.layers // self.held)
        )
        calls = tuple(
            Call(self.section, len(list(layers)), prefetch, where) for prefetch, layers in itertools.groupby(copied)
        )
        room = _AHEAD * max(call.prefetch_bytes for call in calls)
        return Program(str(self.op), calls, str(self.config), self.config.orchestration, self.op.tp, room)

    def write(self) -> None:
        """Writes the section."""
        x = x_of_loop = self._input()
        attended = self._attention(x)
        self._operator()
        x = self._residual("output", self._project(attended, "wo", self.heads * self.head_dim), x)
        self._keep("middle", self.hidden, (self.at, 0), x, self.nest)
        self._operator()
        y = self._residual("result", self._gated(self._norm(x, "norm2")), x)
        shape = (self.held, self.tokens, self.hidden)
        self.section.store("store_y", Tensor("y", shape, self.dtype, "output"), (self.layer, self.at, 0), y, self.nest)
        if self.looped:
            self.section.close(x_of_loop, y)

    # ---- values

    def _operator(self) -> None:
        """What follows is another operator: a section of its own in `unfused` form."""
        self.operators.append(len(self.section.stages))

    def _keep(
        self, name: str, columns: int, at: tuple[Any, ...], value: Output, over: tuple[Counter, ...], **how: Any
    ) -> None:
        """Stores, in training, what the backward pass reads: a row a token."""
        if self.op.phase == "training":
            tensor = Tensor(name, (self.tokens, columns), self.dtype, "scratch")
            self.section.store(f"keep_{name}", tensor, at, value, over, **how)

    def _input(self) -> Output:
        first = Tensor("x", (self.tokens, self.hidden), self.dtype)
        if self.looped:
            return self.section.loop(first, Out((self.rows, self.hidden), self.dtype, self.nest))
        return self.section.load("load_x", first, (self.at, 0), (self.rows, self.hidden), self.nest)

    def _make(
        self, name: str, inputs: dict[str, Any], body: Callable[..., Value], shape: tuple[int, ...], dtype: str
    ) -> Output:
        made: Output = self.section.stage(name, self.nest, inputs, body, Out(shape, dtype, self.nest))
        return made

    def _vector(self, name: str) -> Read:
        """A weight vector, one a layer."""
        tensor = self._layers_tensor(name, (self.held, self.hidden))
        loaded = self.section.load(
            f"load_{name}", tensor, (self.layer, 0), (1, self.hidden), (self.layer,), units=1, shape=(self.hidden,)
        )
        return loaded.read()

    def _layers_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight, of which every layer has its own; HBM holds `kept` of them where the others come from DDR."""
        if self.config.from_ddr:
            return Tensor(name, shape, self.dtype, copies=self.kept, home="ddr")
        return Tensor(name, shape, self.dtype, copies=self.op.layers // self.held)

    @property
    def kept(self) -> int:
        """Layers whose weights stay in what is usable of HBM, beside all caches and the room for copies."""
        assert self.spec.hbm is not None
        one = dataclasses.replace(self.op, layers=1)
        cache = layer_bytes(one) - layer_bytes(dataclasses.replace(one, phase="prefill"))
        weights = layer_bytes(one) - cache
        room = int(self.spec.hbm.size_bytes * USABLE) - self.op.layers * cache - _AHEAD * weights
        return max(0, min(self.op.layers, room // weights))

    # ---- operators

    def _norm(self, x: Output, name: str) -> Output:
        hidden = self.hidden

        def root(x: Value) -> Value:
            return ((x * x).row_sum() * (1 / hidden) + EPSILON).tail("rsqrt")

        scale = self._make(f"{name}_root", {"x": x}, root, (self.rows, 1), "fp32")
        inputs = {"x": x.read(depth=3), "s": scale, "w": self._vector(name)}
        made = self._make(f"{name}_scale", inputs, lambda x, s, w: x * s * w, (self.rows, hidden), self.dtype)
        self._operator()
        return made

    def _weight(self, name: str, k: int, n: int, step: Counter, rows: bool = False) -> Read:
        """A tile of a weight matrix [layers, k, n] for each step over its columns (or rows).

        Where tokens come in many tiles and all weights fit the chip, a layer's matrix is loaded once and stays.
        """
        tensor = self._layers_tensor(name, (self.held, k, n))
        size = (k // step.trips, n) if rows else (k, n // step.trips)
        at: tuple[Any, ...] = (step * size[0], 0) if rows else (0, step * size[1])
        if self._resident:
            whole = self.section.load(
                f"load_{name}", tensor, (self.layer, 0, 0), (1, k, n), (self.layer,), shape=(k, n)
            )
            return whole.read(2 if self._resident > 1 and self.held > 1 else 1, piece=(-2 if rows else -1, step))
        over = (*self.nest, step)
        loaded = self.section.load(f"load_{name}", tensor, (self.layer, *at), (1, *size), over, shape=size)
        return loaded.read(self._ahead(step.trips))

    @property
    def _resident(self) -> int:
        """Copies of a layer's weights that stay on chip while tokens pass: 0, 1, or 2 where the next can be loaded."""
        if self.tile.trips * self.batch.trips == 1:
            return 0
        room = self.spec.pmu.count * self.spec.pmu.size_bytes * 6 // 10
        return min(2, room // layer_bytes(self.op))

    def _ahead(self, trips: int) -> int:
        """Tiles that a load may run ahead: its share of half the chip's memory, two at least."""
        room = self.spec.pmu.count * self.spec.pmu.size_bytes // 2
        return max(2, min(2 * trips, room * trips // layer_bytes(self.op)))

    def _steps(self, name: str, n: int, k: int) -> Counter:
        """Equal tiles of a matrix with n columns (or rows) of k elements: about a megabyte each.

        With many tokens, wider where a tile of the product would have fewer than four blocks of cells for each PCU.
        """
        most = max(1, (1 << 20) // (k * DTYPE_BYTES[self.dtype]), 32)
        if not self.decode:
            pcu = self.spec.pcu
            most = max(most, 4 * pcu.count * pcu.lanes * pcu.stages // self.rows)
        return Counter(name, next(t for t in range(1, n + 1) if n % t == 0 and n // t <= most))

    def _linear(self, name: str, x: Output, k: int, n: int, out: str | None = None) -> Output:
        if self.decode:
            return self._by_rows(name, x, k, n, out)
        step = self._steps(f"{name}_columns", n, k)
        over = (*self.nest, step)
        made = self.section.stage(
            name,
            over,
            {"x": x, "w": self._weight(f"{name}_weight", k, n, step)},
            lambda x, w: x @ w,
            Out((self.rows, n // step.trips), out or self.dtype, over, self.nest),
        )
        return made

    def _by_rows(self, name: str, x: Output, k: int, n: int, out: str | None) -> Output:
        """With a row or two of x: tiles of whole rows of the matrix, so that its columns fill many PCUs."""
        step = self._steps(f"{name}_rows", k, n)
        shape = (self.rows, n)

        def add(x: Value, w: Value, sums: Value) -> dict[str, Value]:
            total = sums + x @ w
            return {"out": total, "sums": total}

        made = self.section.stage(
            name,
            (*self.nest, step),
            {"x": x.read(piece=(-1, step)), "w": self._weight(f"{name}_weight", k, n, step, rows=True)},
            add,
            Out(shape, out or self.dtype, self.nest),
            carry={"sums": Carry(shape, 0.0, self.nest)},
        )
        return made

    def _reduce(self, name: str, x: Output) -> Output:
        """Sums partial results over the devices that share the layer."""
        if self.op.tp == 1:
            return x
        return self.section.all_reduce(name, x, self.nest, self.op.tp)

    def _project(self, x: Output, name: str, k: int) -> Output:
        made = self._reduce(f"{name}_sum", self._linear(name, x, k, self.hidden, "fp32"))
        self._operator()
        return made

    def _residual(self, name: str, x: Output, skip: Output) -> Output:
        depth = 3 if self.looped or self.tile.trips == 1 else self.tile.trips + 3
        inputs = {"x": x, "skip": skip.read(depth=depth)}
        return self._make(name, inputs, lambda x, skip: x + skip, (self.rows, self.hidden), self.dtype)

    def _gated(self, x: Output) -> Output:
        if self.config.form == "unfused" or self.decode:
            gate, up = (self._split_linear(name, x) for name in ("gate", "up"))
            for name, value in (("gate", gate), ("up", up)):
                self._keep(name, self.ffn, (self.at, 0), value, self.nest)
            inputs = {"g": gate, "u": up}
            shape = (self.rows, self.ffn)
            active = self._make("silu", inputs, lambda g, u: g * g.tail("sigmoid") * u, shape, self.dtype)
            self._operator()
            return self._project(active, "down", self.ffn)
        step = self._steps("ffn", self.ffn, self.hidden)
        over, width = (*self.nest, step), self.ffn // step.trips
        tile = Out((self.rows, width), self.dtype, over)
        gate_, up_ = (
            self.section.stage(
                name, over,
                {"x": x, "w": self._weight(f"{name}_weight", self.hidden, self.ffn, step)},
                lambda x, w: x @ w, tile,
            )
            for name in ("gate", "up")
        )  # fmt: skip
        for name, value in (("gate", gate_), ("up", up_)):
            self._keep(name, self.ffn, (self.at, step * width), value, over)
        active_ = self.section.stage("silu", over, {"g": gate_, "u": up_}, lambda g, u: g * g.tail("sigmoid") * u, tile)

        def down(x: Value, w: Value, sums: Value) -> dict[str, Value]:
            total = sums + x @ w
            return {"out": total, "sums": total}

        shape = (self.rows, self.hidden)
        made = self.section.stage(
            "down", over,
            {"x": active_, "w": self._weight("down_weight", self.ffn, self.hidden, step, rows=True)},
            down, Out(shape, "fp32", self.nest), carry={"sums": Carry(shape, 0.0, self.nest)},
        )  # fmt: skip
        return self._reduce("down_sum", made)

    def _split_linear(self, name: str, x: Output) -> Output:
        made = self._linear(name, x, self.hidden, self.ffn)
        self._operator()
        return made

    # ---- attention

    def _attention(self, x: Output) -> Output:
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        qkv = self._linear("qkv", self._norm(x, "norm1"), self.hidden, width)
        self._operator()
        q, k, v = self._rotate(qkv)
        self._operator()
        return self._decode_attention(q, k, v) if self.decode else self._prefill_attention(q, k, v)

    def _rotate(self, qkv: Output) -> tuple[Output, Output, Output]:
        """Queries and keys turned by their positions, by head: q [kv, group * rows, d], k and v [kv, rows, d]."""
        d, heads, kv, group, rows = self.head_dim, self.heads, self.kv_heads, self.group, self.rows
        positions = 1 if self.decode else self.op.seq
        tile = 1 if self.decode else rows
        tables = {}
        for name in ("cos", "sin"):
            tensor = Tensor(name, (positions, d), "fp32")
            origin = (Index() if self.decode else self.tile * rows, 0)
            tables[name] = self.section.load(f"load_{name}", tensor, origin, (tile, d), self.nest, units=1)

        def turn(x: Value, cos: Value, sin: Value) -> Value:
            return x * cos + x.rotate_half() * sin

        def q_body(x: Value, cos: Value, sin: Value) -> Value:
            x = x.columns(0, heads * d).reshape(rows, heads, d)
            x = turn(x, cos.reshape(tile, 1, d), sin.reshape(tile, 1, d)).reshape(rows, kv, group, d)
            if self.decode:
                return x.reshape(rows * kv, group, d)
            return x.permute(1, 2, 0, 3).reshape(kv, group * rows, d)

        def k_body(x: Value, cos: Value, sin: Value) -> Value:
            x = x.columns(heads * d, (heads + kv) * d).reshape(rows, kv, d)
            x = turn(x, cos.reshape(tile, 1, d), sin.reshape(tile, 1, d))
            return x.reshape(rows * kv, 1, d) if self.decode else x.permute(1, 0, 2)

        def v_body(x: Value) -> Value:
            x = x.columns((heads + kv) * d, (heads + 2 * kv) * d).reshape(rows, kv, d)
            return x.reshape(rows * kv, 1, d) if self.decode else x.permute(1, 0, 2)

        shape = (rows * kv, 1, d) if self.decode else (kv, rows, d)
        q_shape = (rows * kv, group, d) if self.decode else (kv, group * rows, d)
        whole = self.nest[:2]
        """Keys and values of a sequence are one token."""
        made = []
        for name, body, extent, names in (
            ("rotate_q", q_body, q_shape, ("cos", "sin")),
            ("rotate_k", k_body, shape, ("cos", "sin")),
            ("split_v", v_body, shape, ()),
        ):
            inputs: dict[str, Any] = {"x": qkv} | {n: tables[n].read() for n in names}
            collect = whole if name != "rotate_q" and not self.decode else None
            out = Out(extent, self.dtype, self.nest, collect, -2)
            made.append(self.section.stage(name, self.nest, inputs, body, out))
        for name, value, n, over in zip("qkv", made, (heads, kv, kv), (self.nest, whole, whole), strict=True):
            at = (self.at if name == "q" else self.batch * self.op.seq, 0)
            length = rows if name == "q" else self.op.seq
            view = (kv, n // kv, length, d)
            self._keep(name, n * d, at, value, over, tile=(length, n * d), view=view, permute=(2, 0, 1, 3))
        return made[0], made[1], made[2]

    def _prefill_attention(self, q: Output, k: Output, v: Output) -> Output:
        d, rows, kv, group = self.head_dim, self.rows, self.kv_heads, self.group
        keys = max(t for t in range(1, min(512, self.op.seq) + 1) if self.op.seq % t == 0)
        op = Attention(
            batch=1, heads=self.heads, kv_heads=kv, seq=self.op.seq, head_dim=d, causal="1", dtype=self.dtype
        ).with_defaults(self.dtype)
        config = AttentionConfig("streaming", rows, keys, kv)

        def view(o: Value) -> Value:
            return o.reshape(kv, group, rows, d).permute(2, 0, 1, 3).reshape(rows, kv * group * d)

        made = attention_stages(self.section, op, config, self.nest, q.read(), k, v, self.dtype, view=view)
        self._keep("attended", kv * group * d, (self.at, 0), made, self.nest)
        return made

    def _decode_attention(self, q: Output, k: Output, v: Output) -> Output:
        """One query a sequence against the cache; its own key and value, not in the cache yet, come last."""
        op, d, kv, group = self.op, self.head_dim, self.kv_heads, self.group
        past = op.seq - 1
        keys = max(t for t in range(1, min(1024, max(past, 1)) + 1) if t == past or t % 32 == 0 or t == 1)
        b, j = Counter("sequence", op.batch), Counter("keys", max(1, -(-past // keys)))
        nest = (*self.nest, b)
        inner = (*nest, j)
        scale = 1 / math.sqrt(d)
        cache = [
            self.section.load(
                f"load_{name}",
                Tensor(name, (self.held, op.batch, op.seq, kv, d), self.dtype, copies=op.layers // self.held),
                (self.layer, b, j * keys, 0, 0), (1, 1, keys, kv, d), inner,
                view=(keys, kv, d), permute=(1, 0, 2), shape=(kv, keys, d),
            )
            for name in ("keys", "values")
        ]  # fmt: skip
        ahead = max(2, min(2 * j.trips, (32 << 20) // (kv * keys * d * DTYPE_BYTES[self.dtype])))

        def scores(q: Value, k: Value) -> Value:
            return (q @ k * scale).causal(Index(past - 1), j * keys, period=1)

        def part() -> Read:
            return q.read(piece=(0, b))

        s = self.section.stage(
            "scores", inner, {"q": part(), "k": cache[0].read(ahead, transposed=True)}, scores,
            Out((kv, group, keys), "fp32", inner),
        )  # fmt: skip

        def online(s: Value, top: Value, total: Value) -> dict[str, Value]:
            new = top.maximum(s.row_max())
            p = (s - new).exp()
            shrink = (top - new).exp()
            sums = total * shrink + p.row_sum()
            return {"p": p, "shrink": shrink, "tops": new, "sums": sums, "top": new, "total": sums}

        column = (kv, group, 1)
        soft = self.section.stage(
            "softmax", inner, {"s": s}, online,
            {
                "p": Out((kv, group, keys), self.dtype, inner),
                "shrink": Out(column, "fp32", inner),
                "tops": Out(column, "fp32", nest),
                "sums": Out(column, "fp32", nest),
            },
            carry={"top": Carry(column, LOWEST, nest), "total": Carry(column, 0.0, nest)},
        )  # fmt: skip

        def gather(p: Value, v: Value, shrink: Value, o: Value) -> dict[str, Value]:
            o = o * shrink + p @ v
            return {"out": o, "o": o}

        shape = (kv, group, d)
        values = self.section.stage(
            "values", inner, {"p": soft["p"], "v": cache[1].read(ahead), "shrink": soft["shrink"]}, gather,
            Out(shape, "fp32", nest), carry={"o": Carry(shape, 0.0, nest)},
        )  # fmt: skip

        def own(o: Value, top: Value, total: Value, q: Value, k: Value, v: Value) -> Value:
            s = (q * k).row_sum() * scale
            new = top.maximum(s)
            old, mine = (top - new).exp(), (s - new).exp()
            return ((o * old + v * mine) / (total * old + mine)).reshape(1, self.heads * d)

        inputs = {
            "o": values, "top": soft["tops"], "total": soft["sums"], "q": part(),
            "k": k.read(piece=(0, b)), "v": v.read(piece=(0, b)),
        }  # fmt: skip
        out = Out((1, self.heads * d), self.dtype, nest, self.nest, 0)
        made = self.section.stage("own_key", nest, inputs, own, out)
        return made
