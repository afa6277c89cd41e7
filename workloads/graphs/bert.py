"""One encoder layer of BERT: forward, and in training backward too, as a framework calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from workloads.graphs.graph import OTHERS, Graph, GraphBuilder, GraphOperator, Value
from workloads.ops.attention import Attention
from workloads.ops.base import choice, extent, number_format, operator
from workloads.ops.gemm import Gemm
from workloads.ops.movement import Sum
from workloads.ops.pointwise import Pointwise
from workloads.ops.rowwise import LayerNorm, LayerNormBackward, Softmax, SoftmaxBackward


@operator("bert_layer", example="batch=8 seq=512")
@dataclass(frozen=True)
class BertLayer(GraphOperator):
    """One encoder layer, post-norm, with dropout in training; sizes by default those of BERT-large.

    Unfused, attention is two batched products with a softmax between them, and heads are brought together by copies, as
    in `torch.nn.MultiheadAttention`. Fused, chains of element-by-element operators are one kernel each, and inference
    has one attention kernel.
    """

    batch: int = extent(8, help="sequences")
    seq: int = extent(512, help="tokens of a sequence")
    hidden: int = extent(1024, help="elements of a token's vector")
    heads: int = extent(16, help="attention heads")
    ffn: int = extent(4096, help="elements between the two linear layers")
    training: str = choice("0", ("0", "1"), help="1: forward and backward, with dropout; 0: forward alone")
    dtype: str | None = number_format("of all tensors, of 8 bits those of products; default: the machine's, or bf16")
    others: str = choice("refuse", OTHERS, help="operators that the machine cannot run")

    def __post_init__(self) -> None:
        """Checks that heads share the vector evenly."""
        super().__post_init__()
        if self.hidden % self.heads:
            below = max(d for d in range(1, self.heads + 1) if self.hidden % d == 0)
            raise InputError(f"bert_layer heads={self.heads}: must divide hidden={self.hidden}; nearest below: {below}")

    def graph(self, fused: bool) -> Graph:
        """The operators in the order in which they are called."""
        return _Layer(self, fused).build()


_LABELS = {
    "bias": "aten::add_ (bias)",
    "add": "aten::add",
    "scale": "aten::mul",
    "copy": "aten::copy_",
    "dropout": "aten::native_dropout",
    "dropout_backward": "aten::native_dropout_backward",
    "gelu": "aten::gelu",
    "gelu_backward": "aten::gelu_backward",
}
"""What a framework calls an element-by-element operator."""


@dataclass(frozen=True)
class _Normed:
    """What the gradient of a residual and norm needs: input and result of the norm, statistics, dropout's mask."""

    z: Value
    y: Value
    stats: tuple[Value, ...]
    mask: Value | None
    weight: Value


@dataclass(frozen=True)
class _Attended:
    """What the gradient of attention needs."""

    q: Value
    k: Value
    v: Value
    weights: Value
    dropped: Value
    mask: Value | None


class _Layer:
    """Writes the graph of one layer."""

    def __init__(self, layer: BertLayer, fused: bool) -> None:
        self.layer, self.fused, self.dtype = layer, fused, layer.between
        self.training = layer.training == "1"
        self.g = GraphBuilder(str(layer), layer.others)
        self.tokens = layer.batch * layer.seq
        self.groups = layer.batch * layer.heads
        self.head_dim = layer.hidden // layer.heads
        self.gradients: list[Value] = []

    def build(self) -> Graph:
        """Forward, and backward in the opposite order."""
        hidden, ffn = self.layer.hidden, self.layer.ffn
        x = self.g.tensor("x", self.tokens * hidden, self.dtype)
        qkv_weight, qkv_bias = self._parameters("qkv", hidden, 3 * hidden)
        out_weight, out_bias = self._parameters("out", hidden, hidden)
        up_weight, up_bias = self._parameters("up", hidden, ffn)
        down_weight, down_bias = self._parameters("down", ffn, hidden)
        norms = [self._vectors(f"norm{i}", ("weight", "bias"), hidden) for i in (1, 2)]

        qkv = self._linear(x, qkv_weight, 3 * hidden)
        merged, kept = self._attention(qkv, qkv_bias)
        first = self._add_and_norm(self._linear(merged, out_weight, hidden), out_bias, x, norms[0])
        up = self._linear(first.y, up_weight, ffn)
        if self.fused and not self.training:  # the gradient of GELU needs what lies between
            before, active = up, self._pointwise("bias+gelu", up, up_bias)
        else:
            before = self._pointwise("bias", up, up_bias)
            active = self._pointwise("gelu", before)
        second = self._add_and_norm(self._linear(active, down_weight, hidden), down_bias, first.y, norms[1])
        if not self.training:
            return self.g.build(second.y)

        dy = self.g.tensor("dy", self.tokens * hidden, self.dtype)
        dresidual, dz = self._add_and_norm_backward(dy, second)
        dactive = self._linear_backward(dz, active, down_weight, ffn, hidden)
        dup = self._pointwise("gelu_backward", dactive, before)
        dfirst = self._linear_backward(dup, first.y, up_weight, hidden, ffn)
        dfirst = self._pointwise("add", dfirst, dresidual, into=dfirst)
        dresidual, dz = self._add_and_norm_backward(dfirst, first)
        dmerged = self._linear_backward(dz, merged, out_weight, hidden, hidden)
        dqkv = self._attention_backward(dmerged, kept)
        dx = self._linear_backward(dqkv, x, qkv_weight, hidden, 3 * hidden)
        dx = self._pointwise("add", dx, dresidual, into=dx)
        return self.g.build(second.y, dx, *self.gradients)

    def _vectors(self, name: str, parts: Sequence[str], size: int) -> list[Value]:
        return [self.g.tensor(f"{name}_{part}", size, self.dtype) for part in parts]

    def _parameters(self, name: str, inputs: int, outputs: int) -> tuple[Value, Value]:
        """Weight, stored as [outputs, inputs], and bias of a linear layer."""
        weight = self.g.tensor(f"{name}_weight", inputs * outputs, self.layer.chosen_dtype)
        return weight, self.g.tensor(f"{name}_bias", outputs, self.dtype)

    # ---- operators

    def _pointwise(self, chain: str, x: Value, *others: Value, into: Value | None = None) -> Value:
        """An element-by-element operator, or a chain of them, with one result."""
        return self._pointwise_all(chain, x, *others, into=None if into is None else (into,))[0]

    def _pointwise_all(
        self, chain: str, x: Value, *others: Value, into: tuple[Value, ...] | None = None
    ) -> tuple[Value, ...]:
        cols = others[0].size if chain.startswith("bias") else None
        op = Pointwise(n=x.size, chain=chain, cols=cols, dtype=self.dtype).with_defaults(self.dtype)
        return self.g.calls(_LABELS.get(chain, f"fused_{chain.replace('+', '_')}"), op, x, *others, into=into)

    def _multiply(self, a: Value, b: Value, into: Value | None = None, **keys: Any) -> Value:
        op = Gemm(dtype=self.layer.chosen_dtype, out=self.layer.product_out, **keys).with_defaults(self.dtype)
        return self.g.product("aten::bmm" if "batch" in keys else "aten::mm", op, a, b, into=into)

    def _linear(self, x: Value, weight: Value, outputs: int) -> Value:
        return self._multiply(x, weight, m=self.tokens, n=outputs, k=x.size // self.tokens, tb="T")

    def _linear_backward(self, dy: Value, x: Value, weight: Value, inputs: int, outputs: int) -> Value:
        """Gradient by the input; those by weight and bias are kept."""
        bias = Sum(rows=self.tokens, cols=outputs, axis=0, dtype=self.dtype).with_defaults(self.dtype)
        self.gradients.append(self.g.call("aten::sum", bias, dy))
        dx = self._multiply(dy, weight, m=self.tokens, n=inputs, k=outputs)
        self.gradients.append(self._multiply(dy, x, m=outputs, n=inputs, k=self.tokens, ta="T"))
        return dx

    # ---- residual and norm

    def _add_and_norm(self, x: Value, bias: Value, residual: Value, parameters: Sequence[Value]) -> _Normed:
        """Layer norm of dropout(x + bias) + residual."""
        mask = None
        if self.training and self.fused:
            z, mask = self._pointwise_all("bias+dropout+add", x, bias, residual)
        elif self.fused:
            z = self._pointwise("bias+add", x, bias, residual)
        else:
            z = self._pointwise("bias", x, bias)
            if self.training:
                z, mask = self._pointwise_all("dropout", z)
            z = self._pointwise("add", z, residual)
        rows, cols = self.tokens, self.layer.hidden
        op = LayerNorm(rows=rows, cols=cols, stats="1" if self.training else "0", dtype=self.dtype)
        y, *stats = self.g.calls("aten::native_layer_norm", op.with_defaults(self.dtype), z, *parameters)
        return _Normed(z, y, tuple(stats), mask, parameters[0])

    def _add_and_norm_backward(self, dy: Value, normed: _Normed) -> tuple[Value, Value]:
        """Gradients by the residual and by what came out of the linear layer."""
        op = LayerNormBackward(rows=self.tokens, cols=self.layer.hidden, dtype=self.dtype).with_defaults(self.dtype)
        operands = (dy, normed.z, *normed.stats, normed.weight)
        dz, dweight, dbias = self.g.calls("aten::native_layer_norm_backward", op, *operands)
        self.gradients += [dweight, dbias]
        assert normed.mask is not None
        return dz, self._pointwise("dropout_backward", dz, normed.mask)

    # ---- attention

    def _attention(self, qkv: Value, bias: Value) -> tuple[Value, _Attended | None]:
        """The heads' results side by side, and what the gradient needs."""
        layer, groups, head_dim = self.layer, self.groups, self.head_dim
        biased = self._pointwise("bias", qkv, bias)
        q, k, v = (biased.part(i, 3) for i in range(3))
        if self.fused and not self.training:
            dtype = layer.product_out or self.dtype
            whole = Attention(batch=layer.batch, heads=layer.heads, head_dim=head_dim, seq=layer.seq, dtype=dtype)
            label = "aten::scaled_dot_product_attention"
            return self.g.product(label, whole.with_defaults(dtype), q, k, v), None
        q = self._pointwise("scale", q)
        if not self.fused:
            k, v = self._pointwise("copy", k), self._pointwise("copy", v)
        scores = self._multiply(q, k, batch=groups, m=layer.seq, n=layer.seq, k=head_dim, tb="T")
        op = Softmax(rows=groups * layer.seq, cols=layer.seq, dtype=self.dtype).with_defaults(self.dtype)
        weights = self.g.call("aten::_softmax", op, scores)
        dropped, mask = self._pointwise_all("dropout", weights) if self.training else (weights, None)
        heads = self._multiply(dropped, v, batch=groups, m=layer.seq, n=head_dim, k=layer.seq)
        return self._pointwise("copy", heads), _Attended(q, k, v, weights, dropped, mask)

    def _attention_backward(self, dmerged: Value, kept: _Attended | None) -> Value:
        """Gradient by queries, keys and values side by side."""
        assert kept is not None
        assert kept.mask is not None
        layer, groups, head_dim = self.layer, self.groups, self.head_dim
        over: dict[str, Any] = {"batch": groups, "n": head_dim, "k": layer.seq, "m": layer.seq}
        dheads = self._pointwise("copy", dmerged)
        dqkv = self.g.empty("dqkv", 3 * dmerged.size, self.dtype)
        dq_part, dk_part, dv_part = (dqkv.part(i, 3) if self.fused else None for i in range(3))
        dv = self._multiply(kept.dropped, dheads, into=dv_part, ta="T", **over)
        ddropped = self._multiply(dheads, kept.v, batch=groups, m=layer.seq, n=layer.seq, k=head_dim, tb="T")
        dweights = self._pointwise("dropout_backward", ddropped, kept.mask)
        op = SoftmaxBackward(rows=groups * layer.seq, cols=layer.seq, dtype=self.dtype).with_defaults(self.dtype)
        dscores = self.g.call("aten::_softmax_backward_data", op, dweights, kept.weights)
        dscaled = self._multiply(dscores, kept.k, **over)
        dk = self._multiply(dscores, kept.q, into=dk_part, ta="T", **over)
        dq = self._pointwise("scale", dscaled, into=dq_part)
        if not self.fused:  # torch.cat
            for i, gradient in enumerate((dq, dk, dv)):
                self._pointwise("copy", gradient, into=dqkv.part(i, 3))
        return dqkv
