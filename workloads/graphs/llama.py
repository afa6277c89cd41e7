"""Decoder layers of Llama: prefill of a prompt, or one step of decoding with a cache of keys and values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from arch.errors import InputError
from workloads.graphs.graph import Graph, GraphBuilder, GraphOperator, Value
from workloads.ops.attention import Attention
from workloads.ops.base import choice, extent, number_format
from workloads.ops.gemm import Gemm
from workloads.ops.pointwise import Pointwise
from workloads.ops.rowwise import RmsNorm


class Model(NamedTuple):
    """Sizes of a model: elements of a token's vector, query heads, key and value heads, and of the gated layers."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int


MODELS = {
    "llama2-7b": Model(4096, 32, 32, 11008, 32),
    "llama2-13b": Model(5120, 40, 40, 13824, 40),
    "llama2-70b": Model(8192, 64, 8, 28672, 80),
    "llama3-8b": Model(4096, 32, 8, 14336, 32),
    "llama3-70b": Model(8192, 64, 8, 28672, 80),
    "tiny": Model(256, 4, 2, 256, 4),
    "llama3.1-8b": Model(4096, 32, 8, 14336, 32),
    "llama3.1-70b": Model(8192, 64, 8, 28672, 80),
}
"""Published configurations, and one small enough to check with numbers."""


@dataclass(frozen=True)
class Llama(GraphOperator):
    """Decoder layers: norm, attention with rotary positions and grouped queries, norm, gated linear unit.

    `phase=prefill` runs `seq` tokens of each sequence at once, `phase=decode` one token that sees `seq` keys, its own
    included. `tp` devices share the heads and the gated layer. Attention is one operator in every form, as in
    PyTorch. Rotary positions are four element-by-element operators (half a turn, two products, a sum), fused one; their
    tables of cosines stay in caches and are not counted.
    """

    word: ClassVar[str] = "llama"
    example: ClassVar[str] = "model=llama3-8b phase=decode seq=2k"

    model: str = choice("llama3-8b", tuple(MODELS), help="sizes of the model")
    phase: str = choice(
        "prefill",
        ("prefill", "decode", "training"),
        help="prefill: the whole prompt; decode: one more token; training: forward and backward pass of one layer",
    )
    batch: int = extent(1, help="sequences")
    seq: int = extent(2048, help="tokens of a sequence")
    layers: int = extent(1, help="layers that are run")
    tp: int = extent(1, help="devices that share each layer")
    dtype: str | None = number_format("of all tensors; default: the machine's")

    def __post_init__(self) -> None:
        """Checks that the model has so many layers and that devices share it evenly."""
        super().__post_init__()
        sizes = MODELS[self.model]
        if self.layers > sizes.layers:
            raise InputError(f"llama layers={self.layers}: {self.model} has {sizes.layers}")
        if self.phase == "training" and self.layers != 1:
            raise InputError(f"llama layers={self.layers}: phase=training runs one layer; nearest: layers=1")
        fits = [d for d in range(1, sizes.heads + 1) if sizes.heads % d == 0 and sizes.ffn % d == 0]
        fits = [d for d in fits if sizes.kv_heads % d == 0 or d % sizes.kv_heads == 0]
        if self.tp not in fits:
            near = max(d for d in fits if d <= self.tp)
            raise InputError(f"llama tp={self.tp}: must share out {sizes.kv_heads} key heads; nearest below: {near}")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    @property
    def flops(self) -> int:
        """Operations of all devices together."""
        return self._passes[0] * self._forward.flops

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all devices together."""
        return self._passes[0] * self._forward.macs

    @property
    def operand_bytes(self) -> int:
        """Bytes of what exists before or after the layers, on all devices together."""
        return self._passes[1] * self._forward.lasting_bytes

    @property
    def _forward(self) -> Graph:
        phase = "decode" if self.phase == "decode" else "prefill"
        return dataclasses.replace(self, phase=phase, tp=1).graph(fused=False)

    @property
    def _passes(self) -> tuple[int, int]:
        """Times the forward pass's work (each product has two in the backward pass), and its tensors (gradients)."""
        return (3, 2) if self.phase == "training" else (1, 1)

    def graph(self, fused: bool) -> Graph:
        """The operators in the order in which they are called, on one of the devices."""
        if self.phase == "training":
            raise InputError("llama phase=training: dataflow machines alone have it (sn40l); nearest: phase=prefill")
        return _Decoder(self, fused).build()


class _Decoder:
    """Writes the graph of the layers."""

    def __init__(self, op: Llama, fused: bool) -> None:
        self.op, self.fused, self.dtype = op, fused, op.chosen_dtype
        self.g = GraphBuilder(str(op))
        self.sizes = MODELS[op.model]
        self.head_dim = self.sizes.hidden // self.sizes.heads
        self.heads, self.kv_heads = self.sizes.heads // op.tp, max(1, self.sizes.kv_heads // op.tp)
        self.ffn = self.sizes.ffn // op.tp
        self.new = 1 if op.phase == "decode" else op.seq
        self.tokens = op.batch * self.new

    def build(self) -> Graph:
        """All layers, each with weights and a cache of its own."""
        x = self.g.tensor("x", self.tokens * self.sizes.hidden, self.dtype)
        for layer in range(self.op.layers):
            x = self._gated(self._attention(x, f"{layer}"), f"{layer}")
        return self.g.build(x)

    def _attention(self, x: Value, layer: str) -> Value:
        op, sizes = self.op, self.sizes
        parts = self.heads + 2 * self.kv_heads
        qkv = self._linear(self._norm(x, f"{layer}.norm1"), f"{layer}.qkv", parts * self.head_dim)
        size = self.tokens * self.head_dim
        q = dataclasses.replace(qkv, size=size * self.heads)
        k = dataclasses.replace(qkv, size=size * self.kv_heads, offset=q.size)
        v = dataclasses.replace(k, offset=q.size + k.size)
        q = self._rotate(q)
        cached = op.batch * op.seq * self.kv_heads * self.head_dim
        if op.phase == "decode":
            keys, values = (self.g.tensor(f"{layer}.{name}", cached, self.dtype) for name in ("keys", "values"))
            # One token's keys go to the end of the cache; where they lie in it moves no byte.
            at = cached - k.size
            self._rotate(k, into=dataclasses.replace(keys, size=k.size, offset=at))
            self._pointwise("copy", v, into=dataclasses.replace(values, size=v.size, offset=at))
        else:
            keys, values = self._rotate(k), self._pointwise("copy", v)
        attention = Attention(
            batch=op.batch, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, seq_q=self.new,
            seq_k=op.seq, causal="1", dtype=self.dtype,
        ).with_defaults(self.dtype)  # fmt: skip
        attended = self.g.call("aten::scaled_dot_product_attention", attention, q, keys, values)
        return self._pointwise("add", self._shared_sum(self._linear(attended, f"{layer}.out", sizes.hidden)), x)

    def _gated(self, x: Value, layer: str) -> Value:
        both = self._linear(self._norm(x, f"{layer}.norm2"), f"{layer}.gate_up", 2 * self.ffn)
        gate, up = both.part(0, 2), both.part(1, 2)
        if self.fused:
            active = self._pointwise("silu+mul", gate, up)
        else:
            active = self._pointwise("mul", self._pointwise("silu", gate), up)
        return self._pointwise("add", self._shared_sum(self._linear(active, f"{layer}.down", self.sizes.hidden)), x)

    # ---- operators

    def _norm(self, x: Value, name: str) -> Value:
        weight = self.g.tensor(f"{name}_weight", self.sizes.hidden, self.dtype)
        op = RmsNorm(rows=self.tokens, cols=self.sizes.hidden, dtype=self.dtype)
        return self.g.call("aten::rms_norm", op.with_defaults(self.dtype), x, weight)

    def _shared_sum(self, x: Value) -> Value:
        """Partial results of all devices, summed."""
        label = "vllm:all_reduce" if self.fused else "nccl:all_reduce"
        return x if self.op.tp == 1 else self.g.all_reduce(label, x, self.op.tp)

    def _linear(self, x: Value, name: str, outputs: int) -> Value:
        inputs = x.size // self.tokens
        weight = self.g.tensor(f"{name}_weight", inputs * outputs, self.dtype)
        op = Gemm(m=self.tokens, n=outputs, k=inputs, tb="T", dtype=self.dtype)
        return self.g.call("aten::mm", op.with_defaults(self.dtype), x, weight)

    def _rotate(self, x: Value, into: Value | None = None) -> Value:
        if self.fused:
            return self._pointwise("triad", x, x, into=into)
        turned = self._pointwise("neg", x)
        return self._pointwise("add", self._pointwise("scale", x), self._pointwise("scale", turned), into=into)

    def _pointwise(self, chain: str, x: Value, *others: Value, into: Value | None = None) -> Value:
        op = Pointwise(n=x.size, chain=chain, dtype=self.dtype).with_defaults(self.dtype)
        return self.g.call(_LABELS[chain], op, x, *others, into=into)


_LABELS = {
    "add": "aten::add",
    "copy": "aten::copy_",
    "mul": "aten::mul",
    "neg": "aten::neg",
    "scale": "aten::mul",
    "silu": "aten::silu",
    "silu+mul": "fused_silu_mul",
    "triad": "fused_rotary",
}
"""What a framework calls an element-by-element operator."""
