"""What ATen's operators mean (`workloads.graphs.meanings`), by the names under which PyTorch calls and records them.

Arguments are in the order of an operator's schema: tensors, numbers, texts, lists, None for what is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from workloads.graphs.meanings import Link, Node, Shape, Tensor, row_by_row
from workloads.networks.onnx_operators import ModelConv

Arguments = Sequence[Any]


_NOT_WRITTEN_DOWN = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""What is raised where an argument is missing that a trace or a program did not write down."""


class Meant(NamedTuple):
    """What a call means. shape, dtype, strides: of its result, where the call does not say."""

    meaning: str
    inputs: tuple[Tensor, ...]
    shape: Shape
    dtype: str
    keys: Mapping[str, Any] = {}
    strides: Shape = ()


@dataclass
class Aten:
    """Makes nodes of calls. tensors: by name, those of a model so far."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    _positions_first: set[str] = field(default_factory=set)

    def _lay(self, back: bool, result: Tensor) -> None:
        """Fused attention writes its result positions first: turned back, it lies in order and is copied no more."""
        if not back:
            self._positions_first.add(result.name)
        else:
            self.take(replace(result, strides=row_by_row(result.shape)))

    def fresh(self, shape: Shape, dtype: str, strides: Shape = ()) -> Tensor:
        """A tensor that the model does not have yet."""
        return self.take(Tensor(f"t{len(self.tensors)}", shape, dtype, strides))

    def take(self, tensor: Tensor) -> Tensor:
        """Takes a tensor under its name."""
        self.tensors[tensor.name] = tensor
        return tensor

    def nodes(self, label: str, args: Arguments, outputs: Sequence[Tensor] = ()) -> list[Node]:
        """A call as nodes; its last one has the results. label: the operator, `aten::mm`. outputs: as far as they are
        known. A node without a meaning where the operator is not known, or its arguments are not."""
        name = label if label in _CALLS else label.rpartition("::")[2]
        name = name if name in _CALLS else name.rstrip("_")
        inputs = tuple(tensor.name for tensor in tensors_of(args))
        try:
            found = _CALLS[name](args) if name in _CALLS else None
        except _NOT_WRITTEN_DOWN:
            found = None
        if found is None:
            return [Node(label, "", inputs, tuple(tensor.name for tensor in outputs))]
        outputs = outputs or (self.fresh(found.shape, found.dtype, found.strides),)
        if found.meaning == "attention" or (inputs and inputs[0] in self._positions_first):
            self._lay(name in ("transpose", "permute"), outputs[0])
        return list(self._parts(label, found, tuple(tensor.name for tensor in outputs)))

    def _parts(self, label: str, found: Meant, outputs: tuple[str, ...]) -> Iterator[Node]:
        """A call as its nodes: what follows a first one (a bias, channels' weights) is a node of its own."""
        keys, inputs = dict(found.keys), tuple(tensor.name for tensor in found.inputs)
        halves, after = keys.pop("halves", False), keys.pop("after", ())
        if halves:  # of one tensor, the second of which meets the first
            parts = tuple(self.fresh(found.shape, found.dtype).name for _ in range(2))
            yield Node(label, "view", inputs, parts, {"first": (0, math.prod(found.shape))})
            inputs = parts
            keys["links"] = tuple(Link(link.function, parts[1] if link.other else "") for link in keys["links"])
        if not after:
            yield Node(label, found.meaning, inputs, outputs, keys)
            return
        result = self.tensors[outputs[0]]
        within = self.fresh(result.shape, result.dtype).name
        yield Node(label, found.meaning, inputs, (within,), keys)
        others = tuple(tensor.name for _, tensor in after)
        links = tuple(Link(function, tensor.name) for function, tensor in after)
        yield Node(f"{label} (bias)", "pointwise", (within, *others), outputs, {"links": links})


def tensors_of(args: Any) -> Iterator[Tensor]:
    """All tensors among arguments, those of lists too."""
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from tensors_of(one)


# --------------------------------------------------------------------------------------------------- element by element


def _spread(shapes: Sequence[Shape]) -> Shape:
    """The shape in which several meet."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def _pointwise(function: str, dtype: str = "") -> Callable[[Arguments], Meant]:
    """A function of all operands; numbers among them are part of the instructions."""

    def meant(args: Arguments) -> Meant:
        given = list(tensors_of(args))
        shape = _spread([tensor.shape for tensor in given])
        own = tuple(tensor for tensor in given if tensor.size > 1) or tuple(given[:1])
        own = (*own[1:], own[0]) if function == "where" and own[0].dtype == "bool" else own
        return Meant("pointwise", own, shape, dtype or own[0].dtype, {"function": function})

    return meant


def _gelu(args: Arguments) -> Meant:
    return _pointwise("gelu_tanh" if "tanh" in args[1:] else "gelu")(args)


def _masked_fill(args: Arguments) -> Meant:
    x, mask = args[:2]
    return Meant("pointwise", (x, mask), x.shape, x.dtype, {"function": "where"})


def _add_product(args: Arguments) -> Meant:
    """x + a b, and x + t (y - x)."""
    x, *others = tensors_of(args)
    links = tuple(Link(function, other.name) for function, other in zip(("add", "mul"), others, strict=False))
    return Meant("pointwise", (x, *others), x.shape, x.dtype, {"links": links})


def _gated(function: str) -> Callable[[Arguments], Meant]:
    """Half of the second argument through a function, times the other half; the first one is the result."""

    def meant(args: Arguments) -> Meant:
        result, x = args[:2]
        links = (Link(function), Link("mul", "half"))
        return Meant("pointwise", (x,), result.shape, result.dtype, {"halves": True, "links": links})

    return meant


def _quantised(args: Arguments) -> Meant:
    """The second argument, scaled, into the first."""
    result, x = args[:2]
    links = (Link("scale"), Link("cast"))
    return Meant("pointwise", (x,), result.shape, result.dtype, {"links": links})


def _turned_positions(args: Arguments) -> Meant:
    """Rotary positions of queries and keys where they lie: both are read and written."""
    _, q, k = args[:3]
    return Meant("move", (q, k), (q.size + k.size,), q.dtype)


def _cached(args: Arguments) -> Meant:
    """New keys and values to their places in a cache."""
    k, v = args[:2]
    return Meant("move", (k, v), (k.size + v.size,), k.dtype)


def _cast(args: Arguments) -> Meant:
    """A copy to another format; PyTorch writes that down as a number or by its name."""
    x = args[0]
    dtype = next((found for one in args[1:] if (found := dtype_of(one))), x.dtype)
    meaning = "pointwise" if dtype != x.dtype else "move"
    return Meant(meaning, (x,), x.shape, dtype, {"function": "cast"} if dtype != x.dtype else {})


def _copy(args: Arguments) -> Meant:
    """A copy into the first argument."""
    to, source = args[:2]
    meaning, keys = ("pointwise", {"function": "cast"}) if to.dtype != source.dtype else ("move", {})
    return Meant(meaning, (source,), to.shape, to.dtype, keys, to.strides)


# ------------------------------------------------------------------------------------------------ moves, views and rows


def _view(args: Arguments) -> Meant:
    x = next(tensors_of(args))
    return Meant("view", (x,), x.shape, x.dtype)


def _reshape(args: Arguments) -> Meant:
    """A view where the elements lie as it needs them, else a copy."""
    x = args[0]
    shape = tuple(args[1]) if len(args) > 1 and isinstance(args[1], list | tuple) else x.shape
    if -1 in shape:
        known = -math.prod(shape)
        shape = tuple(x.size // known if size == -1 else size for size in shape)
    return Meant("view" if _lies_as(x, shape) else "move", (x,), shape, x.dtype)


def _lies_as(x: Tensor, shape: Shape) -> bool:
    """Whether a tensor can be seen in another shape where it lies: what is joined lies side by side."""
    if len(x.strides) != len(x.shape):
        return True
    runs: list[int] = []  # elements that lie side by side, from the last dimension on
    step = 0
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size == 1:
            continue
        if runs and stride == step:
            runs[-1] *= size
        else:
            runs.append(size)
        step = stride * size
    sizes = [size for size in reversed(shape) if size != 1]
    for run in runs:
        found = 1
        while found < run and sizes:
            found *= sizes.pop(0)
        if found != run:
            return False
    return not sizes


def _to(args: Arguments) -> Meant:
    """A cast, or nothing."""
    found = _cast(args)
    return found if found.meaning == "pointwise" else found._replace(meaning="view")


def _contiguous(args: Arguments) -> Meant:
    """A copy of what lies in another order."""
    x = args[0]
    steps = [stride for size, stride in zip(x.shape, x.strides, strict=False) if size > 1]
    in_order = _lies_as(x, (x.size,)) and steps == sorted(steps, reverse=True)
    return Meant("view" if in_order else "move", (x,), x.shape, x.dtype, strides=row_by_row(x.shape))


def _flatten(args: Arguments) -> Meant:
    x, first, last = (*args, *(0, -1)[len(args) - 1 :])[:3]
    first, last = first % len(x.shape), last % len(x.shape)
    return _reshape((x, [*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]]))


def _part(args: Arguments) -> Meant:
    """Some of the elements, from those on that lie before them along the dimension."""
    x, axis, *where = args
    axis = axis % len(x.shape)
    first = where[0] if where and isinstance(where[0], int) else 0
    first = min(max(first % max(x.shape[axis], 1), 0), x.shape[axis])
    return Meant("view", (x,), x.shape, x.dtype, {"first": (first * x.size // x.shape[axis],)})


def _parts(args: Arguments) -> Meant:
    x = args[0]
    return Meant("view", (x,), x.shape, x.dtype, {"split": True})


def _move(args: Arguments) -> Meant:
    x = next(tensors_of(args))
    return Meant("move", (x,), x.shape, x.dtype)


def _cat(args: Arguments) -> Meant:
    given = list(tensors_of(args[:1]))
    axis = (args[1] or 0) % len(given[0].shape)
    shape = list(given[0].shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in given)
    return Meant("move", tuple(given), tuple(shape), given[0].dtype)


def _fill(args: Arguments) -> Meant:
    given = list(tensors_of(args))
    shape = given[0].shape if given else tuple(args[0]) if isinstance(args[0], list | tuple) else ()
    return Meant("fill", (), shape, given[0].dtype if given else "fp32")


def _embedding(args: Arguments) -> Meant:
    table, index = args[:2]
    return Meant("gather", (table, index), (*index.shape, table.shape[-1]), table.dtype)


def _index(args: Arguments) -> Meant | None:
    """Rows by their numbers, along the first dimension."""
    x, *rest = args
    index = next(tensors_of(rest))
    if rest[0] not in (0,) and isinstance(rest[0], int):
        return None
    return Meant("gather", (x, index), (*index.shape, *x.shape[1:]), x.dtype)


def _reduce(args: Arguments) -> Meant:
    x, *rest = args
    axes = rest[0] if rest and isinstance(rest[0], list | tuple | int) and not isinstance(rest[0], bool) else []
    axes = [axes] if isinstance(axes, int) else list(axes)
    axes = [axis % len(x.shape) for axis in axes] or list(range(len(x.shape)))
    kept = len(rest) > 1 and rest[1] is True
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape) if kept or axis not in axes)
    return Meant("reduce", (x,), shape, x.dtype, {"axes": tuple(axes)})


def _vector_norm(args: Arguments) -> Meant:
    """A sum of squares (or of sizes) over dimensions."""
    x, _, *rest = args
    return _reduce((x, *rest))


def _pool(args: Arguments) -> Meant | None:
    """A mean over all of an image; other pools have no kernel."""
    x, sizes = args[:2]
    if math.prod(sizes) != 1:
        return None
    axes = tuple(range(len(x.shape) - len(sizes), len(x.shape)))
    return Meant("reduce", (x,), (*x.shape[: axes[0]], *sizes), x.dtype, {"axes": axes})


# ------------------------------------------------------------------------------------------------- rows and their norms


def _softmax(args: Arguments) -> Meant:
    x, axis = args[:2]
    return Meant("softmax", (x,), x.shape, x.dtype, {"cols": x.shape[axis]})


def _norm(kind: str, weights: slice) -> Callable[[Arguments], Meant]:
    """x, the shape of a row, then weights."""

    def meant(args: Arguments) -> Meant:
        x, shape = args[:2]
        given = tuple(tensors_of(args[weights]))
        return Meant("norm", (x, *given), x.shape, x.dtype, {"kind": kind, "cols": math.prod(shape)})

    return meant


def _rms_norm_into(args: Arguments) -> Meant:
    """vLLM's: result, x, weight."""
    *given, weight = list(tensors_of(args))[:3]
    return Meant("norm", (given[-1], weight), given[-1].shape, weight.dtype,
                 {"kind": "rmsnorm", "cols": weight.size})  # fmt: skip


def _added_rms_norm(args: Arguments) -> Meant:
    """vLLM's: x, residual and weight; both matrices are written, too."""
    x, residual, weight = list(tensors_of(args))[:3]
    keys = {"kind": "rmsnorm", "cols": weight.size, "add": residual.name}
    return Meant("norm", (x, weight, residual), x.shape, weight.dtype, keys)


def _group_norm(args: Arguments) -> Meant:
    x, weight, bias = args[:3]
    groups = next(int(one) for one in args[6:7] or args[1:2])
    after = tuple(zip(("mul", "add"), tensors_of((weight, bias)), strict=False))
    keys = {"kind": "layernorm", "cols": math.prod(x.shape[1:]) // groups, "after": after}
    return Meant("norm", (x,), x.shape, x.dtype, keys)


def _batch_norm(args: Arguments) -> Meant:
    x, weight, bias = args[:3]
    links = tuple(Link(function, tensor.name) for function, tensor in (("mul", weight), ("add", bias)))
    return Meant("pointwise", (x, weight, bias), x.shape, x.dtype, {"links": links})


# ------------------------------------------------------------------------------------------------------------- products


def _product(a: Tensor, b: Tensor, *added: Tensor, tb: bool = False) -> Meant:
    """A and B as they are multiplied, whichever way round they lie."""
    rows, n = a.shape[:-1], b.shape[-2 if tb else -1]
    shape = (*_spread([a.shape[:-2], b.shape[:-2]]), a.shape[-2], n) if len(a.shape) > 1 < len(b.shape) else (*rows, n)
    keys = {"ta": a.turned, "tb": b.turned != tb}
    return Meant("matmul", (a, b, *added), shape, a.dtype, keys)


def _linear(args: Arguments) -> Meant:
    a, b, *bias = args[:3]
    found = _product(a, b, *tensors_of(bias), tb=True)
    return found._replace(shape=(*a.shape[:-1], b.shape[0]))


def _grouped(args: Arguments) -> Meant | None:
    """Rows of groups one after the other, each group's by a matrix of its own, [groups, k, n]."""
    x, w = args[:2]
    if len(x.shape) != 2 or len(w.shape) != 3:
        return None
    return Meant("grouped", (x, w), (x.shape[0], w.shape[2]), x.dtype, {"groups": w.shape[0]})


def _convolution(args: Arguments, order: Sequence[int] = (3, 4, 5, 8)) -> Meant | None:
    """A convolution of one or two dimensions. order: where strides, padding, dilations and groups stand."""
    x, w = args[:2]
    stride, pad, spread, groups = (args[number] for number in order)
    space = len(x.shape) - 2
    if space not in (1, 2) or (len(args) > 6 and args[6] is True):
        return None

    def pair(sides: Any, row: int) -> tuple[int, int]:
        sides = [sides] * space if isinstance(sides, int) else list(sides) * (space // len(sides) or 1)
        return (row, sides[0]) if space == 1 else (sides[0], sides[1])

    down, beside = pair(pad, 0)
    layer = ModelConv(
        "", x.shape[0], x.shape[1], pair(x.shape[2:], 1), w.shape[0], pair(w.shape[2:], 1), pair(stride, 1),
        (down, beside, down, beside), pair(spread, 1), groups,
    )  # fmt: skip
    sizes = layer.output if space == 2 else layer.output[1:]
    after = tuple(("add", tensor) for tensor in tensors_of(args[2:3]))
    keys = {"layers": [layer], "after": after}
    return Meant("layers", (x, w), (x.shape[0], w.shape[0], *sizes), x.dtype, keys)


def _attention(causal: int, *, heads_first: bool = True) -> Callable[[Arguments], Meant]:
    """Queries, keys and values, [batch, heads, positions, depth] or positions first. causal: where that is said."""

    def meant(args: Arguments) -> Meant:
        q, k, v = args[:3]
        heads, rows = (1, 2) if heads_first else (2, 1)
        sizes = {
            "batch": q.shape[0], "heads": q.shape[heads], "kv_heads": k.shape[heads], "seq_q": q.shape[rows],
            "seq_k": k.shape[rows], "head_dim": q.shape[3], "head_dim_v": v.shape[3],
            "causal": "1" if len(args) > causal and args[causal] in (True, 1) else "0",
        }  # fmt: skip
        return Meant("attention", (q, k, v), (*q.shape[:3], v.shape[3]), q.dtype, {"op": sizes})

    return meant


def dtype_of(said: Any) -> str:
    """A number format as PyTorch writes it: `c10::BFloat16`, `torch.bfloat16`, its number; nothing for what is none."""
    if isinstance(said, int) and not isinstance(said, bool):
        return _NUMBERED.get(said, "")
    return _FORMATS.get(str(said).removeprefix("torch.").removeprefix("c10::"), "")


_NUMBERED = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 11: "bool",
             15: "bf16", 23: "fp8_e5m2", 24: "fp8"}  # fmt: skip
_FORMATS = {
    **{"float": "fp32", "float32": "fp32", "double": "fp64", "float64": "fp64", "Half": "fp16", "float16": "fp16"},
    **{"BFloat16": "bf16", "bfloat16": "bf16", "Float8_e4m3fn": "fp8", "float8_e4m3fn": "fp8"},
    **{"Float8_e5m2": "fp8_e5m2", "float8_e5m2": "fp8_e5m2", "bool": "bool", "int": "int32", "int32": "int32"},
    **{"long": "int64", "long int": "int64", "int64": "int64", "short": "int16", "int16": "int16"},
    **{"signed char": "int8", "int8": "int8", "unsigned char": "uint8", "uint8": "uint8"},
}

_CALLS: Mapping[str, Callable[[Arguments], Meant | None]] = {
    **dict.fromkeys(("add", "rsub", "add_relu", "_foreach_add"), _pointwise("add")),
    **dict.fromkeys(("sub", "maximum", "minimum", "remainder", "fmod"), _pointwise("sub")),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _pointwise("sub", "bool")),
    **dict.fromkeys(("mul", "div", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "__and__",
                     "__or__", "floor_divide"), _pointwise("mul")),
    **dict.fromkeys(("relu", "clamp", "clamp_min", "clamp_max", "leaky_relu", "hardtanh", "hardsigmoid"),
                    _pointwise("relu")),
    **dict.fromkeys(("silu", "hardswish", "mish"), _pointwise("silu")),
    **dict.fromkeys(("exp", "elu", "softplus", "exp2", "expm1"), _pointwise("exp")),
    **dict.fromkeys(("pow", "square", "floor", "ceil", "round", "sign", "logical_not", "bitwise_not", "trunc"),
                    _pointwise("scale")),
    **dict.fromkeys(("rsqrt", "reciprocal"), _pointwise("rsqrt")),
    **{name: _pointwise(name) for name in ("sigmoid", "tanh", "log", "sqrt", "neg", "abs", "sin", "cos", "where")},
    **{"gelu": _gelu, "erf": _pointwise("gelu"), "masked_fill": _masked_fill},
    **dict.fromkeys(("addcmul", "addcdiv", "lerp"), _add_product),
    **{"silu_backward": _pointwise("silu_backward"), "gelu_backward": _pointwise("gelu_backward")},
    **{"threshold_backward": _pointwise("relu_backward"), "tanh_backward": _pointwise("mul")},
    **{"silu_and_mul": _gated("silu"), "gelu_and_mul": _gated("gelu"), "gelu_tanh_and_mul": _gated("gelu_tanh")},
    **{"_C::static_scaled_fp8_quant": _quantised, "_C::rotary_embedding": _turned_positions},
    **{"_C_cache_ops::reshape_and_cache_flash": _cached, "_C_cache_ops::reshape_and_cache": _cached},
    **{"_to_copy": _cast, "to": _to, "copy_": _copy, "copy": _copy},
    **{"reshape": _reshape, "contiguous": _contiguous, "flatten": _flatten},
    **dict.fromkeys(
        ("view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "alias",
         "detach", "unflatten", "view_as", "as_strided", "lift_fresh_copy", "unfold", "diagonal", "dropout",
         "_reshape_alias", "numpy_T", "movedim", "wait_tensor", "expand_as", "squeeze_"), _view,
    ),
    **dict.fromkeys(("slice", "select", "narrow"), _part),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind", "tensor_split"), _parts),
    **dict.fromkeys(
        ("clone", "gather", "repeat", "flip", "roll", "constant_pad_nd", "pad", "tril", "triu", "pixel_shuffle",
         "pixel_unshuffle", "repeat_interleave", "slice_scatter", "select_scatter", "im2col"), _move,
    ),
    **{"cat": _cat, "stack": _move},
    **dict.fromkeys(("zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
                     "new_ones", "new_full", "fill", "arange", "scalar_tensor"), _fill),
    **{"embedding": _embedding, "index_select": _index, "index": _index},
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "any", "all"), _reduce),
    **{"argmax": _reduce, "argmin": _reduce, "linalg_vector_norm": _vector_norm, "norm": _vector_norm},
    **{"adaptive_avg_pool2d": _pool, "_adaptive_avg_pool2d": _pool, "adaptive_avg_pool1d": _pool},
    **dict.fromkeys(("_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax"), _softmax),
    **dict.fromkeys(("native_layer_norm", "layer_norm"), _norm("layernorm", slice(2, 4))),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm"), _norm("rmsnorm", slice(2, 3))),
    **{"_C::rms_norm": _rms_norm_into, "_C::fused_add_rms_norm": _added_rms_norm},
    "native_group_norm": _group_norm,
    "group_norm": lambda args: _group_norm((args[0], *args[2:4], 0, 0, 0, args[1])),
    **dict.fromkeys(("native_batch_norm", "batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"),
                    _batch_norm),
    "_grouped_mm": _grouped,
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "_scaled_mm", "_int_mm"), lambda args: _product(*args[:2])),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), lambda args: _product(args[1], args[2], args[0])),
    "linear": _linear,
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    **dict.fromkeys(("conv1d", "conv2d"), lambda args: _convolution(args, (3, 4, 5, 6))),
    "cudnn_convolution": lambda args: _convolution((*args[:2], None, *args[2:]), (4, 3, 5, 6)),
    "scaled_dot_product_attention": _attention(5),
    **dict.fromkeys(("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
                    _attention(4)),
    **dict.fromkeys(("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
                     "_scaled_dot_product_fused_attention_overrideable"), _attention(6)),
    "_flash_attention_forward": _attention(8, heads_first=False),
    "_efficient_attention_forward": _attention(9, heads_first=False),
    "_flash_attn_forward": _attention(5, heads_first=False),
}  # fmt: skip
"""By name, without its namespace, what a call means."""
