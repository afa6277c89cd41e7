"""Reads the products of an ONNX model: shapes alone, no weights. Needs the package onnx (`pip install tilewave[onnx]`).

Model-local functions are put in place of their calls. Convolutions and products become layers, in the order of the
graph; cheap operators are named and counted (`onnx_operators`). Everything else is refused, and so is what is no model:
onnx's checker and its shape inference, both strict, see every file first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from arch.errors import InputError
from workloads.networks.onnx_operators import (
    CHEAP,
    LIKE,
    MOST_LAYERS,
    PRODUCTS,
    RANDOM,
    VIEWS,
    Call,
    ModelConv,
    ModelProduct,
    Products,
    Shape,
    UnknownShapeError,
    refuse_unlike,
    results_of,
)  # fmt: skip

MOST_NODES = 100_000
"""As many as a model may have, its functions in place of their calls."""

MOST_DEPTH = 100
"""How deep its functions may call each other."""

_LARGE = 1 << 10
"""Elements from which a constant is a weight, whose values do not matter."""

_OWN_DOMAINS = ("", "ai.onnx")
_OF_RUNTIME = "com.microsoft"
_MISPLACED = ("SimplifiedLayerNormalization",)
"""Operators of ONNX Runtime that it writes as if they were ONNX's."""


@dataclass(frozen=True)
class Model:
    """layers: in the order of the graph. others: operators that are no layers, by name, and how many; elements: that
    they read and write together, without weights. unknown: those with a tensor whose shape is not known, by where they
    are."""

    layers: tuple[ModelConv | ModelProduct, ...]
    others: Mapping[str, int]
    elements: Mapping[str, int]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class ModelNode:
    """An operator of a model. name: with its domain where that is not ONNX's. call: its operands and attributes.
    outputs: names of what it writes."""

    name: str
    call: Call
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class ModelNodes:
    """A model's operators in their order, without those whose results are known before it runs. shapes, formats (the
    numbers that ONNX has for them): of its tensors. outputs: names of its results."""

    nodes: tuple[ModelNode, ...]
    shapes: Mapping[str, Shape]
    formats: Mapping[str, int]
    outputs: tuple[str, ...]


def read_onnx(content: bytes, what: str, batch: int) -> Model:
    """The layers of a model. what: its name, for errors. batch: takes the place of an open first dimension of inputs.

    InputError for what is no model, for dimensions that stay open, and for operators that are not known.
    """
    found, _ = _read(content, what, batch)
    if not found.layers:
        raise InputError(f"{what}: has no operator with a product, such as Conv, Gemm or MatMul")
    return Model(tuple(found.layers), dict(sorted(found.others.items())), found.elements, tuple(found.unknown))


def read_nodes(content: bytes, what: str, batch: int) -> ModelNodes:
    """All operators of a model, as `read_onnx` reads and refuses it. InputError for shapes that are not known, too."""
    found, model = _read(content, what, batch)
    shapes, formats = _inferred(model, what)
    needed = {*(name for node in model.graph.node for name in node.input), *(out.name for out in model.graph.output)}
    nodes = []
    for number, node in enumerate(model.graph.node):
        if found.known_before.issuperset(node.output):
            continue
        call = _call(node, _where(node, number, what), shapes)
        outputs = tuple(name for name in node.output if name and (name in shapes or name in needed))
        if any(name and name not in shapes for name in (*node.input, *outputs)):
            call.refuse("its shapes cannot be inferred; network file=... others=count goes without")
        nodes.append(ModelNode(_operator(node), call, outputs))
    return ModelNodes(tuple(nodes), shapes, formats, tuple(value.name for value in model.graph.output))


def _read(content: bytes, what: str, batch: int) -> tuple[_Found, Any]:
    """What a model's nodes are, and the model with its functions in place of their calls."""
    try:
        import onnx
    except ImportError:
        raise InputError(f"{what}: needs the package onnx; pip install 'tilewave[onnx]'") from None
    try:
        model = onnx.load_model_from_string(content)
        weights = _without_values(model, what)
        _close(model, what, batch, weights)
        _refuse_endless(model, what)
        shapes = inferred(model := _inlined(_checked(model, what)), what)
    except InputError:
        raise
    except Exception as error:  # of protobuf and of onnx's own checker, which share no base
        line = " ".join(str(error).split())[:300]
        raise InputError(f"{what}: is no valid ONNX model: {line}") from None
    found = _Found(known_before={*weights, *(weight.name for weight in model.graph.initializer)})
    for number, node in enumerate(model.graph.node):
        found.add(node, _call(node, _where(node, number, what), shapes))
        if len(found.layers) > MOST_LAYERS:
            raise InputError(f"{what}: has more than {MOST_LAYERS} layers")
    return found, model


@dataclass
class _Found:
    """What a model's nodes are. known_before: tensors that are known before the model runs: weights, constants, shapes,
    and what is computed of these alone."""

    known_before: set[str]
    layers: list[ModelConv | ModelProduct] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    elements: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def add(self, node: Any, call: Call) -> None:
        """Takes a node as what it is; InputError where that is not known."""
        name = _operator(node)
        if any(_graphs(attribute) for attribute in node.attribute):
            call.refuse(f"{name} runs a graph of its own, how often is not known")
        products = PRODUCTS[name](call) if name in PRODUCTS else Products([])
        self._compare(call, node, products)
        self.layers += products.layers
        if products.between:
            self._other(f"between products of {name}", products.between)
        if not products.layers:
            self._cheap(node, call, name)

    def _cheap(self, node: Any, call: Call, name: str) -> None:
        """Takes a node without products."""
        if name not in VIEWS | CHEAP | PRODUCTS.keys():
            call.refuse(f"{name} is not known; write it as a function of the model, or of operators that are")
        refuse_unlike(call, name, node.output)
        before = name not in RANDOM and all(t in self.known_before for t in node.input if t)
        if before or name in ("Shape", "Size"):
            self.known_before |= set(node.output)
        elif name not in VIEWS:
            moved = [t for t in (*node.input, *node.output) if t and t not in self.known_before]
            sizes = [math.prod(call.shapes[t]) for t in moved if t in call.shapes]
            self._other(name, sum(sizes))
            self.unknown += [call.where] if len(sizes) < len(moved) else []

    def _other(self, name: str, elements: int) -> None:
        self.others[name] += 1
        self.elements[name] += elements

    @staticmethod
    def _compare(call: Call, node: Any, products: Products) -> None:
        """InputError where a result has another shape than the model says."""
        for tensor, shape in zip(node.output, products.results, strict=False):
            said = call.shapes.get(tensor, shape)
            call.require(
                shape in (None, said), f"result {tensor} is {said and list(said)}, not {shape and list(shape)}"
            )


def _operator(node: Any) -> str:
    """The name of what a node is, with its domain where that is not ONNX's."""
    return node.op_type if node.domain in _OWN_DOMAINS else f"{node.domain}.{node.op_type}"


def _where(node: Any, number: int, what: str) -> str:
    return f"{what} node {number} ({node.op_type} {_title(node)})"


def _title(node: Any) -> str:
    return node.name or next(iter(node.output), "")


def _call(node: Any, where: str, shapes: Mapping[str, Shape]) -> Call:
    from onnx import helper

    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise InputError(f"{where}: {attribute.name} is what a function is given, but it stands in none")
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if not _graphs(a)}
    return Call(where, _title(node), attributes, node.input, shapes)


def _graphs(attribute: Any) -> list[Any]:
    """The graphs that an attribute holds: bodies of loops and branches."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _without_values(model: Any, what: str) -> set[str]:
    """Makes inputs of large weights, and of those in files of their own: only their shapes matter. Their names."""
    from onnx import TensorProto, helper

    graph = model.graph
    kept: list[Any] = []
    moved: list[Any] = []
    for weight in graph.initializer:
        _check_size(weight, what)
        large = weight.raw_data and math.prod(weight.dims) > _LARGE
        (moved if large or weight.data_location == TensorProto.EXTERNAL else kept).append(weight)
    moved += [
        TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
        for sparse in graph.sparse_initializer
    ]
    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    for weight in moved:
        dims = [dim.dim_value for dim in declared.get(weight.name, ()) if dim.HasField("dim_value")]
        if len(dims) == len(declared.get(weight.name, (None,))) and dims != list(weight.dims):
            raise InputError(f"{what} weight {weight.name}: is {list(weight.dims)}, as an input {dims}")
    values = [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in moved]
    values += [value for value in graph.input if value.name not in {weight.name for weight in moved}]
    del graph.input[:]
    graph.input.extend(values)
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(kept)
    return {weight.name for weight in moved}


def _check_size(weight: Any, what: str) -> None:
    """InputError for a weight whose bytes are not as many as its shape takes."""
    from onnx import helper

    if min(weight.dims, default=0) < 0:
        raise InputError(f"{what} weight {weight.name}: a dimension is {min(weight.dims)}; sizes are from 0 on")
    if weight.raw_data:
        bits = _BITS.get(weight.data_type) or 8 * helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize
        needed, found = -(-math.prod(weight.dims) * bits // 8), len(weight.raw_data)
        if needed != found:
            raise InputError(f"{what} weight {weight.name}: {list(weight.dims)} takes {needed} bytes, it has {found}")


_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Bits of a value that is shorter than a byte: uint4, int4, float4e2m1, uint2, int2."""


def _close(model: Any, what: str, batch: int, weights: set[str]) -> None:
    """Gives inputs whose first dimension is open the size of the batch. InputError for sizes that cannot be."""
    constants = {weight.name for weight in model.graph.initializer} | weights
    opened = False
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
        if any(size < 0 for size in sizes):
            raise InputError(f"{what} tensor {value.name}: a dimension is {min(sizes)}; sizes are from 0 on")
    for value in model.graph.input:
        if value.name in constants:
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
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
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    elif batch > 1:
        raise InputError(f"{what} batch={batch}: the model's inputs have a batch of their own; batch=1 leaves it")


def _checked(model: Any, what: str) -> Any:
    """The model, which onnx's checker takes: operators of its version with the attributes and the number of operands
    that they have, each tensor made once, and before it is read."""
    from onnx import checker

    _name_alike(model, what)
    tensors = [value.type.tensor_type for value in model.graph.output if value.type.HasField("tensor_type")]
    unshaped = [tensor for tensor in tensors if not tensor.HasField("shape")]
    for tensor in unshaped:  # the checker asks for one, inference finds it
        tensor.shape.SetInParent()
    checker.check_model(model)
    for tensor in unshaped:
        tensor.ClearField("shape")
    return model


def _name_alike(model: Any, what: str) -> None:
    """Gives domains and versions one name each. InputError for versions that are not known."""
    from onnx import defs, helper

    versions: dict[str, int] = {}
    for entry in model.opset_import:
        entry.domain = "" if entry.domain in _OWN_DOMAINS else entry.domain
        if versions.setdefault(entry.domain, entry.version) != entry.version:
            raise InputError(f"{what}: imports two versions of the operators of {entry.domain or 'ai.onnx'}")
    newest = defs.onnx_opset_version()
    if versions.get("", 0) > newest:
        raise InputError(f"{what}: opset {versions['']} is newer than {newest}, which the installed onnx knows")
    for function in model.functions:
        for entry in function.opset_import:
            if entry.domain in _OWN_DOMAINS:  # or it would not be put in place; what changed in between is refused
                entry.domain, entry.version = "", versions.get("", entry.version)
    for node in (node for holder in (model.graph, *model.functions) for node in holder.node):
        if node.domain in _OWN_DOMAINS:
            node.domain = _OF_RUNTIME if node.op_type in _MISPLACED else ""
    if _OF_RUNTIME not in versions:
        model.opset_import.append(helper.make_opsetid(_OF_RUNTIME, 1))


def _refuse_endless(model: Any, what: str) -> None:
    """InputError for functions that call themselves, and for what is too large once they are put in place."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}

    def called(nodes: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
        for node in nodes:
            yield (node.domain, node.op_type, node.overload)
            for attribute in node.attribute:
                for graph in _graphs(attribute):
                    yield from called(graph.node)

    calls = {key: list(called(function.node)) for key, function in functions.items()}
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}  # by function: operators, and how deep calls go
    try:
        for key in TopologicalSorter({k: set(v) & functions.keys() for k, v in calls.items()}).static_order():
            inner = [sizes.get(one, (1, 0)) for one in calls[key]]
            sizes[key] = (sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0))
    except CycleError as error:
        raise InputError(f"{what}: function {error.args[1][0][1]} calls itself") from None
    if any(depth > MOST_DEPTH for _, depth in sizes.values()):
        raise InputError(f"{what}: functions call functions more than {MOST_DEPTH} deep")
    if sum(sizes.get(one, (1, 0))[0] for one in called(model.graph.node)) > MOST_NODES:
        raise InputError(f"{what}: has more than {MOST_NODES} operators, its functions counted where they are called")


def _inlined(model: Any) -> Any:
    """The model with its functions in place of their calls."""
    from onnx import inliner

    return inliner.inline_local_functions(model) if model.functions else model


def inferred(model: Any, what: str) -> dict[str, Shape]:
    """Shapes of all tensors that have one, by name: as onnx infers them and, where it does not, as `onnx_operators`
    does."""
    return _inferred(model, what)[0]


def _inferred(model: Any, what: str) -> tuple[dict[str, Shape], dict[str, int]]:
    """As `inferred`, with number formats of tensors by name, as ONNX numbers them."""
    from onnx import TensorProto, helper, shape_inference

    own = [(i, node) for i, node in enumerate(model.graph.node) if {_operator(node)} & (PRODUCTS.keys() | CHEAP)]
    while True:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        shapes, types = _shapes(inferred.graph, what)
        added = False
        for number, node in own:
            if all(tensor in shapes for tensor in node.output):
                continue
            try:
                results = results_of(_call(node, _where(node, number, what), shapes), _operator(node))
            except UnknownShapeError:
                continue
            for tensor, shape in zip(node.output, results, strict=False):
                if tensor and shape is not None and tensor not in shapes:
                    shapes[tensor] = shape
                    like = dict(enumerate(node.input)).get(LIKE.get(_operator(node), 0), "")
                    types[tensor] = types.get(like, TensorProto.FLOAT)
                    model.graph.value_info.append(helper.make_tensor_value_info(tensor, types[tensor], shape))
                    added = True
        if not added:
            return shapes, types


def _shapes(graph: Any, what: str) -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes of all tensors that have one, and number formats, by name."""
    shapes = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    types = {weight.name: weight.data_type for weight in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        types.setdefault(value.name, tensor.elem_type)
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            dims = tuple(dim.dim_value for dim in tensor.shape.dim)
            if any(size < 0 for size in dims):
                raise InputError(f"{what} tensor {value.name}: would be {list(dims)}; its operands do not go together")
            if shapes.setdefault(value.name, dims) != dims:
                raise InputError(f"{what} tensor {value.name}: is {list(shapes[value.name])} and {list(dims)}")
    return shapes, types
