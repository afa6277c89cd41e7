"""ONNX models as graphs: what each operator of ONNX means (`workloads.graphs.meanings`)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from arch import reading
from arch.dtypes import is_integer
from workloads.graphs.fusion import fused, turned
from workloads.graphs.graph import OTHERS, Graph, GraphOperator
from workloads.graphs.meanings import Link, Model, Node, Tensor, written
from workloads.graphs.network_file import given_or_shipped
from workloads.networks.onnx_model import ModelNode, ModelNodes, read_nodes
from workloads.networks.onnx_operators import PRODUCTS, VIEWS, Call, ModelProduct, Shape
from workloads.ops.base import choice, extent, number_format, operator


@operator("onnx", example="file=bert_base_layer batch=8")
@dataclass(frozen=True)
class OnnxModel(GraphOperator):
    """All operators of an ONNX model, joined by its tensors; `network` runs the products of such a file alone.

    Operators without a kernel take as long as their bytes, and are named.
    """

    file: str = field(metadata={"kind": "text", "help": "an ONNX model, or bert_base_layer, which is shipped"})
    batch: int = extent(1, help="size of a first dimension that the model leaves open")
    others: str = choice("stream", OTHERS, help="operators that the machine cannot run, or that have no kernel")
    dtype: str | None = number_format("of all fractions, of 8 bits those of products; default: the machine's")

    def __post_init__(self) -> None:
        """Reads the file."""
        super().__post_init__()
        self._read  # noqa: B018 - what is wrong with the file is said before anything runs

    @property
    def path(self) -> Path:
        """Where the file lies: as it was typed, or among those that are shipped."""
        return given_or_shipped(self.file, ".onnx")

    @property
    def sha256(self) -> str:
        """Hash of the file: a changed model is another workload to every store and lock."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[str, ModelNodes]:
        what = f"onnx file={self.file}"
        content = reading.content(self.path, what, reading.MOST_BINARY_BYTES)
        return hashlib.sha256(content).hexdigest(), read_nodes(content, what, self.batch)

    @property
    def between(self) -> str:
        """Number format of what is between products."""
        return self.chosen_dtype if is_integer(self.chosen_dtype) else super().between

    def with_defaults(self, dtype: str) -> Self:
        """With the machine's number format filled in."""
        return dataclasses.replace(self, dtype=self.dtype or dtype)

    def graph(self, fused: bool) -> Graph:
        """The operators in the model's order, or with chains of them as one each."""
        key = "fused" if fused else "eager"
        return self._graphs.setdefault(key, written(self._model(fused), self.others, self.chosen_dtype))

    @cached_property
    def _graphs(self) -> dict[str, Graph]:
        return {}

    def _model(self, as_fused: bool) -> Model:
        found = model_of(str(self), self._read[1], self.between)
        return fused(found) if as_fused else found


def model_of(name: str, found: ModelNodes, dtype: str) -> Model:
    """What the nodes of a model mean. dtype: number format of fractions, and of what is quantised."""
    tensors = {
        tensor: Tensor(tensor, shape, _INTEGERS.get(found.formats.get(tensor, 0), dtype))
        for tensor, shape in found.shapes.items()
    }
    made = _Made(tensors)
    nodes = [node for one in found.nodes for node in made.meant(one)]
    return turned(Model(name, tensors, tuple(nodes), found.outputs))


_INTEGERS = {4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 12: "uint32", 13: "uint64"}
"""Number formats that stay as they are, by ONNX's numbers for them. Integers of 8 bits are quantised numbers."""


class _Made:
    """Makes nodes of operators, and tensors between the parts of one."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def meant(self, one: ModelNode) -> Iterator[Node]:
        """An operator of ONNX as one node, or as several."""
        name = one.name.removeprefix("com.microsoft.")
        given = tuple(operand for operand in one.call.given if operand)
        if name in _SKIP:
            sum_of = one.outputs[3] if len(one.outputs) > 3 else self.between(one, given[0])
            yield Node(name, "pointwise", given[:2], (sum_of,), {"function": "add"})
            keys = {"kind": _NORMS[name], "cols": self.tensors[given[0]].shape[-1]}
            yield Node(name, "norm", (sum_of, *given[2:4]), one.outputs[:1], keys)
        elif name in _BY_GROUPS:
            within, shape = self.between(one, given[0]), one.call.shape(0)
            cols = math.prod(shape[1:]) // one.call.attributes.get("num_groups", shape[1])
            yield Node(name, "norm", given[:1], (within,), {"kind": "layernorm", "cols": cols})
            yield Node(name, "pointwise", (within, *given[1:3]), one.outputs, {"links": _scaled_and_added(one.call)})
        elif one.name in PRODUCTS and name.endswith("Attention"):
            yield from self._attention(one, name)
        else:
            meaning, keys = self._meaning(one, name)
            if meaning == "pointwise":
                given = tuple(operand for operand in given if self.tensors[operand].size > 1) or given[:1]
                given = (*given[1:], given[0]) if name == "Where" else given
            yield from self._finished(one, Node(name, meaning, given, one.outputs, keys))

    def _finished(self, one: ModelNode, node: Node) -> Iterator[Node]:
        """A convolution, then its bias; a product of ONNX Runtime, then its activation."""
        after = []
        if node.label in _BIASED and one.call.has(2):
            node = dataclasses.replace(node, inputs=node.inputs[:2])
            after.append(("add", f"{node.label} (bias)", one.call.given[2:3]))
        if name := one.call.text("activation") if node.label in ("FusedConv", "FusedGemm") else "":
            after.append((_FUNCTIONS[name], name, ()))
        for number, (function, label, more) in enumerate(after):
            within = self.between(one, one.outputs[0], number)
            yield dataclasses.replace(node, outputs=(within,))
            node = Node(label, "pointwise", (within, *more), one.outputs, {"function": function})
        yield node

    def between(self, one: ModelNode, like: str, number: int = 0) -> str:
        """A tensor within an operator, of another one's shape."""
        name = f"{one.outputs[0]}.within{number}"
        self.tensors[name] = dataclasses.replace(self.tensors[like], name=name)
        return name

    def _meaning(self, one: ModelNode, name: str) -> tuple[str, dict[str, Any]]:
        """What an operator means, with its keys; nothing where no kernel is known."""
        call = one.call
        if one.name in PRODUCTS:
            return self._products(one, name)
        if name in _FUNCTIONS:
            return "pointwise", {"function": _FUNCTIONS[name]}
        if name in _CHAINS:
            return "pointwise", {"links": _CHAINS[name](call)}
        x = call.shape(0) if call.given and call.given[0] else ()
        if name in VIEWS:
            return "view", {}
        if name == "Cast":
            same = self.tensors[call.given[0]].dtype == self.tensors[one.outputs[0]].dtype
            return ("view", {}) if same else ("pointwise", {"function": "cast"})
        if name == "Transpose":
            return "move", {"perm": call.listed("perm") or tuple(reversed(range(len(x))))}
        if name in _MOVES or (name == "Gather" and not self._rows(call)):
            return "move", {}
        if name == "Gather":
            return "gather", {}
        if name in ("Softmax", "LogSoftmax"):
            return "softmax", {"cols": x[call.attributes.get("axis", -1)]}
        if name in _NORMS:
            axis = call.attributes.get("axis", -1)
            return "norm", {"kind": _NORMS[name], "cols": math.prod(x[axis if axis < 0 else axis - len(x) :])}
        if name in _SUMS or name.startswith("Reduce"):
            return "reduce", {"axes": _summed(x, self.tensors[one.outputs[0]].shape)}
        return "", {}

    @staticmethod
    def _rows(call: Call) -> bool:
        """Whether whole rows are looked up."""
        return call.attributes.get("axis", 0) == 0 and math.prod(call.shape(1)) > 1

    def _products(self, one: ModelNode, name: str) -> tuple[str, dict[str, Any]]:
        """An operator with products: as one of matrices, as an attention, or as what `PRODUCTS` makes of it."""
        call, products = one.call, PRODUCTS[one.name](one.call)
        if not products.layers:
            return "", {}
        if name in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "TransposeMatMul"):
            flags = {key: bool(call.number(attribute, 0)) for key, attribute in (("ta", "transA"), ("tb", "transB"))}
            return "matmul", flags
        return "layers", {"layers": products.layers, "between": products.between}

    def _attention(self, one: ModelNode, name: str) -> Iterator[Node]:
        call, products = one.call, PRODUCTS[one.name](one.call)
        *before, scores, values = products.layers
        assert isinstance(scores, ModelProduct)
        assert isinstance(values, ModelProduct)
        result = products.results[0] or ()
        batch = result[0]
        positions = result[1] if len(result) == 3 else result[2]
        kv_heads = scores.batch // batch
        sizes = {
            "batch": batch, "heads": kv_heads * scores.m // positions, "kv_heads": kv_heads, "seq_q": positions,
            "seq_k": scores.n, "head_dim": scores.k, "head_dim_v": values.n,
        }  # fmt: skip
        causal = call.attributes.get("is_causal", call.attributes.get("unidirectional", name.startswith("Group")))
        given = tuple(operand for operand in call.given if operand)
        given = given[:3] if call.has(1) and call.has(2) and not before else given[:1] * 3
        if before:
            read = before[0]
            assert isinstance(read, ModelProduct)
            within = self.between(one, call.given[0])
            self.tensors[within] = dataclasses.replace(self.tensors[within], shape=(read.m, read.n))
            yield Node(name, "matmul", tuple(filter(None, call.given[:3])), (within,), {})
            given = (within,) * 3
        yield Node(name, "attention", given, one.outputs, {"op": {**sizes, "causal": "1" if causal else "0"}})


def _summed(x: Shape, result: Shape) -> tuple[int, ...]:
    """Dimensions that a result lacks, or that are 1 in it."""
    if len(x) == len(result):
        return tuple(axis for axis, size in enumerate(x) if size != result[axis]) or (len(x) - 1,)
    left, axes = list(result), []
    for axis, size in enumerate(x):
        if left and left[0] == size:
            left.pop(0)
        else:
            axes.append(axis)
    return tuple(axes)


_BIASED = ("Conv", "ConvTranspose", "FusedConv")
_BY_GROUPS = ("GroupNormalization", "InstanceNormalization")
_SKIP = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_NORMS = {
    "LayerNormalization": "layernorm",
    "SkipLayerNormalization": "layernorm",
    "RMSNormalization": "rmsnorm",
    "SimplifiedLayerNormalization": "rmsnorm",
    "SkipSimplifiedLayerNormalization": "rmsnorm",
}
_SUMS = frozenset(("GlobalAveragePool", "GlobalMaxPool"))
_MOVES = frozenset(
    (
        *("CenterCropPad", "Concat", "DepthToSpace", "Expand", "GatherElements", "GatherND", "Pad", "ReverseSequence"),
        *("Slice", "SpaceToDepth", "Split", "Tile", "Trilu"),
    )
)
"""Operators that copy what they read to another place."""
_FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("Add", "BiasAdd", "BiasDropout", "Sum", "Mean", "QLinearAdd"), "add"),
    **dict.fromkeys(("Sub", "Max", "Min", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"), "sub"),
    **dict.fromkeys(("Mul", "Div", "And", "Or", "Xor", "PRelu", "QLinearMul"), "mul"),
    **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "QLinearLeakyRelu", "HardSigmoid", "ThresholdedRelu"), "relu"),
    **dict.fromkeys(("Sigmoid", "QLinearSigmoid", "Softsign"), "sigmoid"),
    **dict.fromkeys(("Swish", "QuickGelu", "HardSwish", "Mish"), "silu"),
    **dict.fromkeys(("Ceil", "Floor", "Not", "Round", "Shrink", "Sign", "IsNaN", "IsInf"), "scale"),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "CastLike"), "scale"),
    **dict.fromkeys(("Exp", "Elu", "Selu", "Celu", "Softplus"), "exp"),
    **{"Gelu": "gelu", "Erf": "gelu", "FastGelu": "gelu_tanh", "Tanh": "tanh", "Sqrt": "sqrt", "Log": "log"},
    **{"Reciprocal": "rsqrt", "Pow": "scale", "Neg": "neg", "Abs": "abs", "Sin": "sin", "Cos": "cos", "Where": "where"},
}
"""The function of `pointwise` that moves as much and takes about as many instructions."""


def _scaled_and_added(call: Call) -> tuple[Link, ...]:
    """A weight and a bias by channel."""
    return Link("mul", call.given[1]), Link("add", call.given[2])


_CHAINS: Mapping[str, Callable[[Call], tuple[Link, ...]]] = {
    "BatchNormalization": _scaled_and_added,
    "BiasGelu": lambda call: (Link("add", call.given[1]), Link("gelu")),
    "RotaryEmbedding": lambda call: (Link("triad", call.given[0]),),
}
"""Operators that are chains of such functions, each with what it takes beside what runs through."""
