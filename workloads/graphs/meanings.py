"""What the operators of a model mean, said once: readers of files and traces give `Node`s, which become calls here.

A reader translates names and shapes and knows no kernel. A node whose meaning is not known, or that a meaning does not
take, is called as a copy of its bytes and named (`GraphBuilder.copied`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from arch.dtypes import is_integer
from arch.errors import InputError
from workloads.graphs.graph import Graph, GraphBuilder, Unread, Value, counted, repeats_of
from workloads.networks.onnx_operators import ModelConv, ModelProduct
from workloads.ops.attention import Attention
from workloads.ops.base import Operator
from workloads.ops.contractions import Conv2d
from workloads.ops.gemm import Gemm
from workloads.ops.grouped_gemm import GroupedGemm
from workloads.ops.layouts import LETTERS, Layout
from workloads.ops.lookups import Gather
from workloads.ops.movement import Sum, Transpose
from workloads.ops.pointwise import FUNCTIONS, Pointwise
from workloads.ops.rowwise import LayerNorm, RmsNorm, Softmax

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model. strides: elements from one to the next along each dimension, where that is known."""

    name: str
    shape: Shape
    dtype: str
    strides: Shape = ()

    @property
    def turned(self) -> bool:
        """Whether its last two dimensions lie in memory the other way round."""
        return len(self.strides) > 1 and self.strides[-2] == 1 < self.strides[-1]

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)

    @property
    def order(self) -> Shape:
        """Its dimensions of more than one element as memory holds them, the contiguous one last."""
        steps = self.steps(self.shape)
        return tuple(sorted((axis for axis, step in enumerate(steps) if step), key=lambda axis: -steps[axis]))

    def steps(self, shape: Shape) -> Shape:
        """Strides beside the elements of a result; 0 along dimensions in which it is spread. Where nothing is said of
        strides it lies row by row."""
        strides = self.strides if len(self.strides) == len(self.shape) else row_by_row(self.shape)
        own = [stride if size > 1 else 0 for size, stride in zip(self.shape, strides, strict=True)]
        return (*[0] * (len(shape) - len(own)), *own)


def row_by_row(shape: Shape) -> Shape:
    """Strides of what lies densely in the order of its dimensions."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def layout_of(result: Tensor, operands: Sequence[Tensor]) -> Layout | None:
    """How operands lie beside a result, where one of them lies in another order.

    A result of unknown strides lies as its operands do, the first of them that tells two dimensions apart (PyTorch's
    TensorIterator). None where elements are neighbours in all of them, and where kernels do not address it.
    """
    shape = result.shape
    for tensor in operands:
        missing = len(shape) - len(tensor.shape)
        if missing < 0 or any(own not in (1, n) for own, n in zip(tensor.shape, shape[missing:], strict=True)):
            return None
    all_steps = [tensor.steps(shape) for tensor in operands]
    leading = [result.steps(shape)] * bool(result.strides) + all_steps

    def before(a: int, b: int) -> int:
        return next((steps[b] - steps[a] for steps in leading if steps[a] and steps[b] and steps[a] != steps[b]), a - b)

    walked = sorted(range(len(shape)), key=functools.cmp_to_key(before))
    orders = []
    for steps in all_steps:
        own = [number for number, axis in enumerate(walked) if steps[axis]]
        orders.append(tuple(sorted(own, key=lambda number: -steps[walked[number]])))
    found = Layout(tuple(shape[axis] for axis in walked), tuple(orders)).merged()
    reached = all(len(found.shape) - 1 in order for order in found.orders)
    return found if found.permuted and reached and len(found.shape) <= len(LETTERS) else None


@dataclass(frozen=True)
class Node:
    """An operator of a model where it is called.

    label: its name in a profile. meaning: one of `MEANINGS`, or nothing. inputs, outputs: names of tensors; numbers
    that are part of the call are no inputs. keys: what the meaning takes beside them.
    """

    label: str
    meaning: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """Operators in their order. outputs: tensors that stay. notes: what a reader of a report must know."""

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Link(NamedTuple):
    """A function of a chain, with the tensor that it takes beside what runs through the chain."""

    function: str
    other: str = ""


def written(model: Model, others: str, dtype: str = "") -> Graph:
    """The model as calls of operators. dtype: number format of products where it is another than that of their
    operands."""
    writer = Writer(model, GraphBuilder(model.name, others), dtype)
    for node in model.nodes:
        writer.add(node)
    graph = writer.g.build(*(writer.value(name) for name in model.outputs if name in writer.values))
    graph = _without_stand_ins(graph)
    return replace(graph, notes=model.notes, repeats=repeats_of(graph.steps))


def _without_stand_ins(graph: Graph) -> Graph:
    """The graph as `others` says: operators without a kernel stay as copies of their bytes, are left out and counted,
    or are refused."""
    stand_ins = [step for step in graph.steps if step.stands_in]
    if graph.others == "stream" or not stand_ins:
        return graph
    calls = Counter(step.label for step in stand_ins)
    if graph.others == "refuse":
        raise InputError(
            f"{graph}: there is no kernel for {counted(calls)}; others=stream (no --strict) takes their bytes"
        )
    moved: Counter[str] = Counter()
    for step in stand_ins:
        moved[step.label] += step.op.operand_bytes
    steps = tuple(step for step in graph.steps if not step.stands_in)
    return replace(graph, steps=steps, unread=Unread(calls, moved))


class Writer:
    """Calls the operators of a model. values: by tensor, where it lies; several may share a buffer."""

    def __init__(self, model: Model, g: GraphBuilder, dtype: str = "") -> None:
        self.model, self.g, self.dtype = model, g, dtype
        self.values: dict[str, Value] = {}

    def add(self, node: Node) -> None:
        """Calls a node as what it means, or as a copy of its bytes."""
        outputs = [self.model.tensors[name] for name in node.outputs]
        if not all(tensor.size for tensor in outputs):
            return
        found: Sequence[Value] | None = None
        if node.meaning:
            try:
                found = MEANINGS[node.meaning](self, node)
            except InputError:  # sizes or formats that the operator does not take
                found = None
        if found is None:
            operands = [self.value(name) for name in node.inputs if self.model.tensors[name].size]
            found = self.g.copied(node.label, operands, *((tensor.size, tensor.dtype) for tensor in outputs))
        self.values |= dict(zip(node.outputs, found, strict=False))

    def tensor(self, name: str) -> Tensor:
        """A tensor by its name."""
        return self.model.tensors[name]

    def value(self, name: str) -> Value:
        """Where a tensor lies; what no operator has written is there before."""
        if name not in self.values:
            tensor = self.tensor(name)
            self.values[name] = self.g.tensor(name, max(1, tensor.size), tensor.dtype)
        return self.values[name]

    def taken(self, name: str, size: int, dtype: str) -> Value:
        """A tensor as an operator takes it: `size` elements of it; a tensor of its own where it has fewer (it is spread
        out, or padded), or another format."""
        value = self.value(name)
        if value.dtype == dtype and value.size >= size:
            return value.slice(0, size)
        return self.beside(name, size, dtype)

    def beside(self, name: str, size: int, dtype: str) -> Value:
        """A tensor that is there before, and that the model does not have."""
        key = f"{name}.{size}.{dtype}"
        if key not in self.values:
            self.values[key] = self.g.tensor(key, size, dtype)
        return self.values[key]

    def product(self, label: str, op: Operator, result: str, *names: str) -> Value:
        """Calls a product of tensors in the format of products. result: the tensor whose format it gets."""
        between = self.tensor(names[0]).dtype
        op = op.with_defaults(self.dtype or between)
        given = [self.taken(name, math.prod(o.shape), self._stored(name, between, o.dtype))
                 for name, o in zip(names, op.operands, strict=True)]  # fmt: skip
        given = [self.g.cast(value, operand.dtype) for value, operand in zip(given, op.operands, strict=True)]
        return self.g.cast(self.g.call(label, op, *given), self.tensor(result).dtype)

    def _stored(self, name: str, between: str, dtype: str) -> str:
        """The format in which an operand of a product lies: weights have the product's."""
        return between if name in self.values or dtype == between else dtype

    def out(self, dtype: str) -> str | None:
        """The format of a product's result: of integers their own, to which sums are scaled."""
        chosen = self.dtype or dtype
        return chosen if is_integer(chosen) else None


# ------------------------------------------------------------------------------------------------------------ meanings


def _view(w: Writer, node: Node) -> list[Value]:
    """Results are the operand, or parts of it: nothing moves. first: elements before each part; split: they follow each
    other."""
    value = w.value(node.inputs[0])
    sizes = [min(w.tensor(name).size, value.size) for name in node.outputs]
    before = [sum(sizes[:number]) for number in range(len(sizes))]
    firsts = node.keys.get("first") or (before if node.keys.get("split") else [0] * len(sizes))
    return [value.slice(min(first, value.size - size), size) for first, size in zip(firsts, sizes, strict=True)]


def _fill(w: Writer, node: Node) -> Sequence[Value]:
    """A constant in all elements."""
    sizes = [(w.tensor(name).size, w.tensor(name).dtype) for name in node.outputs]
    return w.g.copied(node.label, (), *sizes, stands_in=False)


def _move(w: Writer, node: Node) -> Sequence[Value]:
    """A copy to another order, shape or place: each byte of the result is read and written."""
    result = w.tensor(node.outputs[0])
    if node.keys.get("perm") and (sides := _as_matrix(w.tensor(node.inputs[0]).shape, node.keys["perm"])):
        op = Transpose(rows=sides[0], cols=sides[1], dtype=result.dtype)
        return [w.g.call(node.label, op, w.taken(node.inputs[0], result.size, result.dtype))]
    if len(node.inputs) == 1 and (layout := _copied_layout(w.tensor(node.inputs[0]), result)):
        (shape, orders), n = layout.text, result.size
        copy = Pointwise(n=n, shape=shape, layout=orders, dtype=result.dtype, out=result.dtype)
        return [w.g.call(node.label, copy, w.taken(node.inputs[0], n, result.dtype))]
    sizes = [(w.tensor(name).size, result.dtype) for name in node.outputs]
    read = [w.value(name) for name in node.inputs]
    if len(read) == 1:
        read = [read[0].slice(0, min(read[0].size, sum(size for size, _ in sizes)))]
    return w.g.copied(node.label, read, *sizes, stands_in=False)


def _copied_layout(x: Tensor, result: Tensor) -> Layout | None:
    """How a tensor lies beside its copy; one of another shape lies row by row."""
    if x.size != result.size:
        return None
    if x.shape != result.shape:
        result = replace(result, shape=x.shape, strides=row_by_row(x.shape))
    return layout_of(result, [x])


def _as_matrix(shape: Shape, perm: Sequence[int]) -> tuple[int, int] | None:
    """Rows and columns of a matrix that a permutation of dimensions turns; None where it is no such thing."""
    order = [axis for axis in perm if shape[axis] > 1]
    kept = sorted(order)
    for cut in range(1, len(kept)):
        if kept[cut:] + kept[:cut] == order:
            rows, columns = (math.prod(shape[axis] for axis in part) for part in (kept[:cut], kept[cut:]))
            return rows, columns
    return None


def _matmul(w: Writer, node: Node) -> Sequence[Value] | None:
    """[..., m, k] times [..., k, n], as NumPy has it. ta, tb: an operand lies in memory the other way round. A third
    operand of n elements is added."""
    b, result = w.tensor(node.inputs[1]), w.tensor(node.outputs[0])
    ta, tb = (node.keys.get(key, False) for key in ("ta", "tb"))
    n, matrices = (result.shape[-1], math.prod(b.shape[:-2])) if len(b.shape) > 1 else (1, 1)
    k = b.size // (matrices * n)
    batch = 1 if matrices == 1 and not ta else math.prod(result.shape[:-2])
    m = result.size // (n * batch)
    names = list(node.inputs[:2])
    epilogue = {}
    if len(node.inputs) > 2:
        added = w.tensor(node.inputs[2]).size
        if added not in (n, batch * m * n):
            return None
        names.append(node.inputs[2])
        epilogue["epilogue"] = "bias" if added == n else "add"
    op = Gemm(
        m=m, n=n, k=k, batch=batch, ta="T" if ta else "N", tb="T" if tb else "N", dtype=w.dtype or None,
        out=w.out(w.tensor(names[0]).dtype), **epilogue,  # type: ignore[arg-type]
    )  # fmt: skip
    return [w.product(node.label, op, node.outputs[0], *names)]


def _layers(w: Writer, node: Node) -> list[Value]:
    """Products and convolutions one after the other (`layers`), and what lies `between` them: elements that are read
    and written. The first input is what is multiplied, the second are weights."""
    result = w.tensor(node.outputs[0])
    out = w.out(result.dtype)
    value = None
    for layer in node.keys["layers"]:
        op = layer_operator(layer, w.dtype or result.dtype, out)
        value = w.product(node.label, op, node.outputs[0], *node.inputs[:2])
    if between := node.keys.get("between", 0):
        (value,) = w.g.copied(node.label, [w.beside(node.outputs[0], max(1, between // 2), result.dtype)],
                              (max(1, between - between // 2), result.dtype))  # fmt: skip
    assert value is not None
    if value.size < result.size:
        value = w.beside(node.outputs[0], result.size, result.dtype)
    value = value.slice(0, result.size)
    others = [w.beside(name, w.tensor(name).size, w.tensor(name).dtype) for name in node.outputs[1:]]
    return [value, *others]


def links_of(tensors: Mapping[str, Tensor], node: Node) -> tuple[str, tuple[Link, ...]] | None:
    """What runs through a pointwise node, and its functions: `links`, or those of a `function`, of which `where` takes
    its mask last. None where no operand is as large as the result."""
    if "links" in node.keys:
        return node.inputs[0], node.keys["links"]
    n, function = tensors[node.outputs[0]].size, node.keys["function"]
    start = next((name for name in node.inputs if tensors[name].size == n), None)
    if start is None:
        return None
    others = [name for number, name in enumerate(node.inputs) if number != node.inputs.index(start)]
    if function == "where":
        return start, (*(Link("add", name) for name in others[:-1]), Link("dropout_backward", node.inputs[-1]))
    if not FUNCTIONS[function].others:
        return start, (Link(function),)
    return start, tuple(Link(function, name) for name in others) or (Link("scale"),)


def _pointwise(w: Writer, node: Node) -> Sequence[Value]:
    """A function, or a chain of them, element by element; operands that are smaller are spread out. Where no chain
    spreads them so, a copy moves as much."""
    return _chain(w, node) or w.g.copied(
        node.label,
        [w.value(name) for name in dict.fromkeys(node.inputs)],
        *((w.tensor(name).size, w.tensor(name).dtype) for name in node.outputs),
        stands_in=False,
    )


def _chain(w: Writer, node: Node) -> list[Value] | None:
    """The chain that a node is; None where an operand is spread in another way than by rows, and none lies in another
    order."""
    found = links_of(w.model.tensors, node)
    if found is None:
        return None
    start, result = w.tensor(found[0]), w.tensor(node.outputs[0])
    n = result.size
    operands = [start, *(w.tensor(link.other) for link in found[1] if link.other and w.tensor(link.other).size > 1)]
    layout = layout_of(result, operands)
    given = [w.taken(start.name, math.prod(layout.sizes(0)) if layout else n, start.dtype)]
    functions, cols = [], None
    for link in found[1]:
        size = min(w.tensor(link.other).size, w.value(link.other).size) if link.other else 0
        constant = "neg" if is_integer(start.dtype) else "scale"  # of a number that is part of the instruction
        dtype = "bool" if link.function == "dropout_backward" else start.dtype
        if size in (0, n):
            functions.append(constant if link.function == "scale" else link.function)
        elif size == 1:
            functions.append(constant)
        elif layout:
            functions.append(link.function)
            size = math.prod(layout.sizes(len(given)))
        elif n % size == 0 and cols in (None, size):
            functions.append("bias")
            cols, dtype = size, start.dtype
        else:
            return None
        if size > 1 or size == n:
            given.append(w.taken(link.other, size, dtype))
    shape, orders = layout.text if layout else (None, None)
    op = Pointwise(
        n=n, chain="+".join(functions), cols=cols, shape=shape, layout=orders, dtype=start.dtype, out=result.dtype
    )
    return [w.g.call(node.label, op, *given)]


def _norm(w: Writer, node: Node) -> list[Value]:
    """Rows of `cols` elements, each normalised by itself. kind: layernorm, rmsnorm. A second and third input are weight
    and bias. add: what is added to the first one before."""
    x = w.tensor(node.inputs[0])
    cols, dtype, out = node.keys["cols"], x.dtype, w.tensor(node.outputs[0]).dtype
    rows = x.size // cols
    op: Operator
    if node.keys["kind"] == "rmsnorm":
        op = RmsNorm(rows=rows, cols=cols, dtype=dtype, out=out, add="1" if "add" in node.keys else "0")
    else:
        op = LayerNorm(rows=rows, cols=cols, affine="1" if len(node.inputs) > 1 else "0", dtype=dtype, out=out)
    names = [name for name in node.inputs[1:] if w.tensor(name).size == cols]
    names += [f"{node.outputs[0]}.{number}" for number in range(2)]
    given = [w.taken(name, cols, dtype) if name in w.model.tensors else w.beside(name, cols, dtype)
             for name, _ in zip(names, (o for o in op.operands if len(o.shape) == 1), strict=False)]  # fmt: skip
    if "add" in node.keys:
        given.append(w.taken(node.keys["add"], rows * cols, dtype))
    return list(w.g.calls(node.label, op.with_defaults(dtype), w.taken(x.name, rows * cols, dtype), *given))[:1]


def _softmax(w: Writer, node: Node) -> list[Value]:
    """Rows of `cols` elements."""
    x = w.tensor(node.inputs[0])
    out = w.tensor(node.outputs[0]).dtype
    op = Softmax(rows=x.size // node.keys["cols"], cols=node.keys["cols"], dtype=x.dtype, out=out)
    return [w.g.call(node.label, op.with_defaults(x.dtype), w.taken(x.name, x.size, x.dtype))]


def _reduce(w: Writer, node: Node) -> list[Value]:
    """A sum (a mean, a maximum: as many elements are read) over `axes`; results are as many as the model says."""
    x, result = w.tensor(node.inputs[0]), w.tensor(node.outputs[0])
    axes = sorted(axis % len(x.shape) for axis in node.keys["axes"]) or list(range(len(x.shape)))
    leading = axes == list(range(len(axes))) and len(axes) < len(x.shape)
    rows, cols = (x.size // result.size, result.size) if leading else (result.size, x.size // result.size)
    op = Sum(rows=rows, cols=cols, axis=0 if leading else 1, dtype=x.dtype, out=result.dtype)
    return [w.g.call(node.label, op, w.taken(x.name, x.size, x.dtype))]


def _gather(w: Writer, node: Node) -> list[Value]:
    """Rows of the first input by the numbers in the second."""
    table, index, result = (w.tensor(name) for name in (*node.inputs, *node.outputs))
    dtype = index.dtype if index.dtype in ("int32", "int64") else "int32"
    cols = result.size // index.size
    op = Gather(rows=index.size, cols=cols, of=table.size // cols, dtype=table.dtype, index_dtype=dtype)
    operands = (w.taken(table.name, op.of * cols, table.dtype), w.taken(index.name, index.size, dtype))
    return [w.g.call(node.label, op, *operands)]


def _attention(w: Writer, node: Node) -> list[Value]:
    """Queries, keys and values, as the keys of `Attention` say."""
    dtype = w.tensor(node.inputs[0]).dtype
    op = Attention(dtype=w.dtype or dtype, out=w.out(dtype), **node.keys["op"]).with_defaults(dtype)
    found = [w.product(node.label, op, node.outputs[0], *node.inputs[:3])]
    return [*found, *(w.beside(name, w.tensor(name).size, w.tensor(name).dtype) for name in node.outputs[1:])]


def _grouped(w: Writer, node: Node) -> list[Value]:
    """Rows of `groups` groups, which are even and padded to tiles of 16, each times a matrix of its own."""
    x, weight, result = (w.tensor(name) for name in (*node.inputs[:2], node.outputs[0]))
    groups, n = node.keys["groups"], result.shape[-1]
    m, k = x.size // (weight.size // (groups * n)), weight.size // (groups * n)
    op = GroupedGemm(m=m, n=n, k=k, groups=groups, align=16, dtype=x.dtype)
    rows, of, matrices = (math.prod(operand.shape) for operand in op.operands)
    operands = (
        w.taken(x.name, rows, x.dtype),
        w.beside(f"{node.outputs[0]}.groups", of, "int32"),
        w.taken(weight.name, matrices, x.dtype),
    )
    return [w.g.call(node.label, op, *operands).slice(0, result.size)]


def _all_reduce(w: Writer, node: Node) -> list[Value]:
    """A sum over `devices`."""
    return [w.g.all_reduce(node.label, w.value(node.inputs[0]), node.keys["devices"])]


MEANINGS: Mapping[str, Callable[[Writer, Node], Sequence[Value] | None]] = {
    "view": _view,
    "fill": _fill,
    "move": _move,
    "matmul": _matmul,
    "layers": _layers,
    "pointwise": _pointwise,
    "norm": _norm,
    "softmax": _softmax,
    "reduce": _reduce,
    "gather": _gather,
    "attention": _attention,
    "grouped": _grouped,
    "all_reduce": _all_reduce,
}
"""By meaning, who calls its operators; None where it does not take the node."""


def layer_operator(layer: ModelConv | ModelProduct, dtype: str | None, out: str | None) -> Operator:
    """A product or a convolution of a model as an operator; a convolution whose patches lie side by side as a product.

    InputError for what no operator takes.
    """
    if isinstance(layer, ModelProduct):
        return Gemm(m=layer.m, n=layer.n, k=layer.k, batch=layer.batch, dtype=dtype, out=out)
    if layer.dilations[0] != layer.dilations[1]:
        raise InputError(f"dilations {layer.dilations} differ; they must be equal")
    (h, w), (above, left, below, right) = layer.size, layer.pads
    pads: dict[str, Any] = pair("pad", above, left)
    if (above, left) != (below, right):  # an image that is larger by its padding
        h, w, pads = h + above + below, w + left + right, {}
    conv = Conv2d(
        n=layer.images, c=layer.channels, h=h, w=w, k=layer.filters, r=layer.window[0], s=layer.window[1],
        groups=layer.groups, dilation=layer.dilations[0], dtype=dtype, out=out,
        **pair("stride", *layer.strides), **pads,
    )  # fmt: skip
    return conv.as_gemm() if is_product(conv) else conv


def is_product(conv: Conv2d) -> bool:
    """Whether patches are rows of X as they lie in memory, side by side: the convolution is a product already."""
    if conv.groups > 1 or any(conv.padding):
        return False
    (rows, columns), (down, right) = conv.output, conv.strides
    single = conv.r == conv.s == 1 and (down == 1 or rows == 1) and (right == 1 or columns == 1)
    whole_rows = conv.s == conv.w and (rows == 1 or conv.r == down)
    return single or whole_rows


def pair(key: str, down: int, right: int) -> dict[str, Any]:
    """Keys of a convolution for its two directions, as short as they can be."""
    return {key: down} if down == right else {key: down, f"{key}_w": right}
