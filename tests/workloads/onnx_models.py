"""Small models of known kinds, as exporters write them: a residual network, an encoder, a decoder's block, a ViT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper: Any = onnx.helper
FLOAT = onnx.TensorProto.FLOAT
N = helper.make_node


class Writer:
    """Collects nodes, weights (ones) and constants of a model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def node(self, kind: str, *names: str, **attributes: Any) -> str:
        """A node; the last name is its result's."""
        self.nodes.append(N(kind, list(names[:-1]), [names[-1]], names[-1], **attributes))
        return names[-1]

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = np.ones(shape, np.float32)
        return name

    def constant(self, name: str, value: Any) -> str:
        self.weights[name] = np.asarray(value)
        return name

    def linear(self, x: str, y: str, inputs: int, outputs: int) -> str:
        """A product and its bias, as PyTorch exports a linear layer."""
        product = self.node("MatMul", x, self.weight(f"{y}_w", inputs, outputs), f"{y}_m")
        return self.node("Add", product, self.weight(f"{y}_b", outputs), y)

    def norm(self, x: str, y: str, width: int) -> str:
        return self.node("LayerNormalization", x, self.weight(f"{y}_g", width), self.weight(f"{y}_b", width), y)

    def attention(self, x: Sequence[str], shape: Sequence[int], masks: Sequence[tuple[str, ...]]) -> str:
        """Heads of queries, keys and values that lie side by side. shape: batch, positions, heads, depth."""
        batch, positions, heads, depth = shape
        self.constant("heads", np.array([batch, positions, heads, depth]))
        self.constant("merged", np.array([batch, positions, heads * depth]))
        for name, perm in zip(x, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            self.node("Transpose", self.node("Reshape", name, "heads", f"{name}_r"), f"{name}_t", perm=perm)
        q, k, v = (f"{name}_t" for name in x)
        scores = self.node("MatMul", q, k, "scores")
        scores = self.node("Div", scores, self.constant("root", np.float32(4.0)), "scaled")
        for number, (kind, *others) in enumerate(masks):
            names = [scores if name == "scores" else name for name in others]
            scores = self.node(kind, *names, f"masked{number}")
        values = self.node("MatMul", self.node("Softmax", scores, "shares"), v, "values")
        return self.node("Reshape", self.node("Transpose", values, "together", perm=[0, 2, 1, 3]), "merged", "attended")

    def save(self, path: Path, inputs: Mapping[str, Sequence[Any]], result: str, integers: Sequence[str] = ()) -> str:
        """The model in a file."""
        kinds = {name: onnx.TensorProto.INT64 if name in integers else FLOAT for name in inputs}
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(result, FLOAT, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), str(path))
        return str(path)


def resnet(path: Path) -> str:
    """ResNet-50's stem, two of its blocks, its pool and classifier; few channels."""
    w = Writer()

    def conv(x: str, y: str, inputs: int, filters: int, window: int, stride: int = 1) -> str:
        given = (x, w.weight(f"{y}_w", filters, inputs, window, window), w.weight(f"{y}_b", filters), y)
        return w.node("Conv", *given, strides=[stride] * 2, pads=[window // 2] * 4)

    x = w.node("Relu", conv("x", "stem", 3, 16, 7, 2), "stem_r")
    x = w.node("MaxPool", x, "pooled", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for block, channels in enumerate((16, 64)):
        y = w.node("Relu", conv(x, f"{block}a", channels, 16, 1), f"{block}ar")
        y = conv(w.node("Relu", conv(y, f"{block}b", 16, 16, 3), f"{block}br"), f"{block}c", 16, 64, 1)
        beside = conv(x, f"{block}d", channels, 64, 1) if channels == 16 else x
        x = w.node("Relu", w.node("Add", y, beside, f"{block}s"), f"{block}y")
    x = w.node("Flatten", w.node("GlobalAveragePool", x, "mean"), "flat")
    w.node("Gemm", x, w.weight("fc_w", 10, 64), w.weight("fc_b", 10), "y", transB=1)
    return w.save(path, {"x": ["N", 3, 56, 56]}, "y")


def bert(path: Path) -> str:
    """BERT-base's embedding and one of its layers, GELU written out; a sixth of its width."""
    w = Writer()
    width, heads, batch, positions = 128, 4, 2, 32
    x = w.node("Gather", w.weight("words", 1000, width), "ids", "embedded")
    parts = [w.linear(x, name, width, width) for name in ("q", "k", "v")]
    y = w.attention(parts, (batch, positions, heads, width // heads), [("Add", "scores", "mask")])
    x = w.norm(w.node("Add", w.linear(y, "out", width, width), x, "sum1"), "norm1", width)
    up = w.linear(x, "up", width, 4 * width)
    erf = w.node("Erf", w.node("Div", up, w.constant("root2", np.float32(2**0.5)), "over"), "erf")
    one = w.node("Add", erf, w.constant("one", np.float32(1)), "plus")
    gelu = w.node("Mul", w.node("Mul", up, one, "times"), w.constant("half", np.float32(0.5)), "gelu")
    w.norm(w.node("Add", w.linear(gelu, "down", 4 * width, width), x, "sum2"), "y", width)
    return w.save(path, {"ids": [batch, positions], "mask": [batch, 1, 1, positions]}, "y", ("ids",))


def gpt2(path: Path) -> str:
    """A block of GPT-2: one product for queries, keys and values, a causal mask, GELU by tanh."""
    w = Writer()
    width, heads, positions = 64, 2, 32
    x = w.linear(w.norm("x", "norm1", width), "qkv", width, 3 * width)
    w.nodes.append(N("Split", [x], ["q", "k", "v"], axis=2, num_outputs=3))
    w.constant("causal", np.tril(np.ones((1, 1, positions, positions), bool)))
    w.constant("low", np.float32(-1e9))
    masks = [("Where", "causal", "scores", "low")]
    y = w.attention(("q", "k", "v"), (1, positions, heads, width // heads), masks)
    x = w.node("Add", w.linear(y, "out", width, width), "x", "sum1")
    up = w.node("Gelu", w.linear(w.norm(x, "norm2", width), "up", width, 4 * width), "gelu", approximate="tanh")
    w.node("Add", w.linear(up, "down", 4 * width, width), x, "y")
    return w.save(path, {"x": [1, positions, width]}, "y")


def vit(path: Path) -> str:
    """A ViT: patches by a convolution, a class's token before them, a layer, the token's classes."""
    w = Writer()
    width, heads, side = 64, 2, 4
    given = ("x", w.weight("patch_w", width, 3, 16, 16), w.weight("patch_b", width), "patches")
    x = w.node("Conv", *given, strides=[16, 16])
    x = w.node("Reshape", x, w.constant("flat", np.array([1, width, side * side])), "rows")
    x = w.node(
        "Concat", w.weight("token", 1, 1, width), w.node("Transpose", x, "turned", perm=[0, 2, 1]), "all", axis=1
    )
    x = w.node("Add", x, w.weight("places", 1, side * side + 1, width), "placed")
    normed = w.norm(x, "norm1", width)
    parts = [w.linear(normed, name, width, width) for name in ("q", "k", "v")]
    y = w.attention(parts, (1, side * side + 1, heads, width // heads), [])
    x = w.node("Add", w.linear(y, "out", width, width), x, "sum1")
    up = w.node("Gelu", w.linear(w.norm(x, "norm2", width), "up", width, 4 * width), "gelu")
    x = w.norm(w.node("Add", w.linear(up, "down", 4 * width, width), x, "sum2"), "norm3", width)
    w.linear(w.node("Gather", x, w.constant("first", np.array(0)), "class", axis=1), "y", width, 10)
    return w.save(path, {"x": [1, 3, 16 * side, 16 * side]}, "y")


MODELS = {"resnet": resnet, "bert": bert, "gpt2": gpt2, "vit": vit}
