"""Reads the products of an ONNX model: shapes alone, no weights. Needs the package onnx (`pip install tilewave[onnx]`).

Convolutions and matrix products become layers, in the order of the graph. What only changes shapes takes no time.
Everything else (activations, additions, pools, norms) is named and counted. What multiplies in another way, and what
has a graph of its own, is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError

VIEWS = frozenset(
    (
        *("Cast", "Constant", "ConstantOfShape", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Range"),
        *("Reshape", "Shape", "Size", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
"""Operators that move nothing, or only what layers read anyway."""

REFUSED = frozenset(
    (
        *("Attention", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "If", "LSTM", "Loop"),
        *("MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Scan", "SequenceMap"),
    )
)
"""Operators that multiply, or may, and are no layer that is known."""

_LARGE = 1 << 10
"""Elements from which a constant is a weight, whose values do not matter."""

_OWN_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class ModelConv:
    """A convolution of a model. pads: above, left, below, right."""

    name: str
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    window: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int


@dataclass(frozen=True)
class ModelProduct:
    """C[m, n] = A[m, k] B[k, n], `batch` times."""

    name: str
    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Model:
    """layers: in the order of the graph. others: operators that are no layers, by name, and how many; elements: that
    they read and write together, without weights. unknown: the first one with a tensor whose shape is not known."""

    layers: tuple[ModelConv | ModelProduct, ...]
    others: Mapping[str, int]
    elements: Mapping[str, int]
    unknown: str


def read_onnx(content: bytes, what: str, batch: int) -> Model:
    """The layers of a model. what: its name, for errors. batch: takes the place of an open first dimension of inputs.

    InputError for what is no model, for dimensions that stay open, and for operators that cannot be read.
    """
    try:
        import onnx
        from onnx import shape_inference
    except ImportError:
        raise InputError(f"{what}: needs the package onnx; pip install 'tilewave[onnx]'") from None
    try:
        model = onnx.load_model_from_string(content)
        _close(model, what, batch)
        for weight in model.graph.initializer:
            if math.prod(weight.dims) > _LARGE:
                weight.ClearField("raw_data")
                weight.ClearField("float_data")
        model = shape_inference.infer_shapes(model, data_prop=True)
    except InputError:
        raise
    except Exception as error:  # of protobuf and of onnx's own checker, which share no base
        line = " ".join(str(error).split())[:200]
        raise InputError(f"{what}: is no ONNX model: {line}") from None
    shapes = _shapes(model.graph)
    layers: list[ModelConv | ModelProduct] = []
    others: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    weights, unknown = {weight.name for weight in model.graph.initializer}, ""
    for number, node in enumerate(model.graph.node):
        where = f"{what} node {number} ({node.op_type} {node.name or node.output[0]})"
        if _is_other(node):
            name = node.op_type if node.domain in _OWN_DOMAINS else f"{node.domain}.{node.op_type}"
            moved = [shapes.get(tensor) for tensor in (*node.input, *node.output) if tensor and tensor not in weights]
            others[name] += 1
            elements[name] += sum(math.prod(shape) for shape in moved if shape is not None)
            unknown = unknown or (where if None in moved else "")
        elif node.op_type in REFUSED:
            raise InputError(f"{where}: {node.op_type} cannot be read; layers are Conv, Gemm and MatMul")
        elif node.op_type in _LAYERS:
            operands = [shapes.get(name) for name in node.input[:2]]
            if None in operands:
                raise InputError(f"{where}: the shapes of its operands cannot be inferred")
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            layers.append(_LAYERS[node.op_type](where, node.name or node.output[0], attributes, *operands))
    if not layers:
        raise InputError(f"{what}: has no Conv, Gemm or MatMul")
    return Model(tuple(layers), dict(sorted(others.items())), elements, unknown)


def _is_other(node: Any) -> bool:
    """Whether a node is neither a layer, nor refused, nor something that takes no time."""
    known = node.op_type in REFUSED or node.op_type in _LAYERS or node.op_type in VIEWS
    return node.domain not in _OWN_DOMAINS or not known


def _close(model: Any, what: str, batch: int) -> None:
    """Gives inputs whose first dimension is open the size of the batch."""
    constants = {weight.name for weight in model.graph.initializer}
    opened = False
    for value in model.graph.input:
        if value.name in constants:
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value > 0:
                continue
            if axis:
                name = dim.dim_param or "?"
                raise InputError(
                    f"{what} input {value.name}: dimension {axis} ({name}) is open; fix it, as with "
                    "onnxruntime.tools.make_dynamic_shape_fixed"
                )
            dim.ClearField("dim_param")
            dim.dim_value = batch
            opened = True
    if opened:
        del model.graph.value_info[:]
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    elif batch > 1:
        raise InputError(f"{what} batch={batch}: the model's inputs have a batch of their own; batch=1 leaves it")


def _shapes(graph: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors that have one, by name."""
    found = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            if all(dims):
                found.setdefault(value.name, dims)
    return found


def _conv(
    where: str, name: str, attributes: Mapping[str, Any], x: Sequence[int], w: Sequence[int]
) -> ModelConv:  # fmt: skip
    """One or two dimensions of space; one is a single row."""
    space = len(x) - 2
    if space not in (1, 2):
        raise InputError(f"{where}: {space} dimensions of space; 1 and 2 can be read")

    def pair(values: Sequence[int], default: int) -> tuple[int, int]:
        found = [*values] or [default] * space
        return (default, found[0]) if space == 1 else (found[0], found[1])

    size, window = pair(x[2:], 1), pair(w[2:], 1)
    strides, dilations = (pair(attributes.get(key, ()), 1) for key in ("strides", "dilations"))
    pads = [*attributes.get("pads", ())] or [0] * (2 * space)
    above, left, below, right = (0, pads[0], 0, pads[1]) if space == 1 else pads
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        needed = [
            max(0, (-(-n // step) - 1) * step + (f - 1) * spread + 1 - n)
            for n, step, f, spread in zip(size, strides, window, dilations, strict=True)
        ]
        less, more = [n // 2 for n in needed], [n - n // 2 for n in needed]
        (above, left), (below, right) = (more, less) if auto == "SAME_LOWER" else (less, more)
    return ModelConv(
        name, x[0], x[1], size, w[0], window, strides, (above, left, below, right), dilations,
        int(attributes.get("group", 1)),
    )  # fmt: skip


def _gemm(where: str, name: str, attributes: Mapping[str, Any], a: Sequence[int], b: Sequence[int]) -> ModelProduct:
    m, k = reversed(a) if attributes.get("transA") else a
    n = b[0] if attributes.get("transB") else b[1]
    return ModelProduct(name, 1, m, n, k)


def _matmul(where: str, name: str, attributes: Mapping[str, Any], a: Sequence[int], b: Sequence[int]) -> ModelProduct:
    """As NumPy multiplies; where all matrices on the left meet one on the right, their rows are one matrix."""
    left, right = (1, *a) if len(a) == 1 else tuple(a), (*b, 1) if len(b) == 1 else tuple(b)
    if math.prod(right[:-2]) == 1:
        return ModelProduct(name, 1, math.prod(left[:-1]), right[-1], left[-1])
    depth = max(len(left), len(right)) - 2
    outer = [(1,) * (depth - len(side) + 2) + side[:-2] for side in (left, right)]
    batch = math.prod(max(pair) for pair in zip(*outer, strict=True))
    return ModelProduct(name, batch, left[-2], right[-1], left[-1])


_LAYERS: Mapping[str, Any] = {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul}
"""Operators that are layers."""
