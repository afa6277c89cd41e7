"""Kinds: ONNX models with fields changed through protobuf's own interface, or with bytes changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, load_model_from_string, numpy_helper

from fuzzing.frame import changed_bytes, file, kind

_NUMBERS = (0, 1, 2, 3, 7, 64, -1, -2, 127, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_NAMES = (
    "",
    "ai.onnx",
    "com.microsoft",
    "MatMul",
    "If",
    "Loop",
    "Einsum",
    "..., ->",
    "\x1b[31m\n",
    "é" * 3,
    "x" * 5000,
)


def _saved(nodes: list[Any], inputs: dict[str, tuple[Any, ...]], weights: dict[str, Any], functions: Any = ()) -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [value(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(w, np.float32 if np.ndim(w) > 1 else None), n) for n, w in weights.items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 17), ("com.microsoft", 1), ("mine", 1))]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)
    found: bytes = model.SerializeToString()
    return found


def _of(kind_of: str, operands: str, result: str, domain: str = "", **attributes: Any) -> Any:
    """A node; `-` stands for an operand or a result that is absent."""
    names = ([name.strip("-") for name in text.split()] for text in (operands, result))
    return helper.make_node(kind_of, *names, domain=domain, **attributes)


def _images() -> bytes:
    nodes = [
        _of("Conv", "x w", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        _of("Relu", "a", "b"),
        _of("Conv", "b v", "c", group=8, auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        _of("ConvTranspose", "c t", "d", strides=[2, 2]),
        _of("GlobalAveragePool", "d", "e"),
        _of("Flatten", "e", "f"),
        _of("Gemm", "f g", "y", transB=1),
    ]
    shapes = {"w": (8, 3, 3, 3), "v": (8, 1, 3, 3), "t": (8, 4, 2, 2), "g": (10, 4)}
    return _saved(nodes, {"x": ("N", 3, 18, 18)}, {name: np.ones(shape) for name, shape in shapes.items()})


def _words() -> bytes:
    own = "com.microsoft"
    nodes = [
        _of("MatMulNBits", "x q s", "h", own, K=64, N=64, bits=4, block_size=32),
        _of("Shape", "h", "n"),
        _of("Reshape", "h n", "p"),
        _of("GroupQueryAttention", "p p p k k l m", "i j o", own, num_heads=4, kv_num_heads=4),
        _of("SkipLayerNormalization", "i p g", "r - - u", own),
        _of("Einsum", "r u", "e", equation="bij,bkj->bik"),
        _of("LSTM", "e lw lr", "z", hidden_size=5),
        _of("FusedMatMul", "e e", "y", own, transB=1),
    ]
    weights = {
        "q": np.ones((64, 2, 16)), "s": np.ones((1, 128)), "g": np.ones((1, 64)), "l": np.array([5]),
        "m": np.array([12]), "lw": np.ones((1, 20, 6)), "lr": np.ones((1, 20, 5)),
    }  # fmt: skip
    return _saved(nodes, {"x": (2, 6, 64), "k": (2, 4, 6, 16)}, weights)


def _calls() -> bytes:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    body = [_of("MatMul", "x w", "h"), _of("Softmax", "h", "y")]
    inner = helper.make_function("mine", "Inner", ["x", "w"], ["y"], body, opsets)
    outer = helper.make_function("mine", "Outer", ["x", "w"], ["y"], [_of("Inner", "x w", "y", "mine")], opsets)
    nodes = [_of("Outer", "x v", "a", "mine"), _of("Outer", "a v", "b", "mine"), _of("MatMul", "b v", "y")]
    return _saved(nodes, {"x": (4, 40)}, {"v": np.ones((40, 40))}, [inner, outer])


MODELS = (_images(), _words(), _calls())


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every field of a message and of those in it, with the message that holds it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            held = getattr(message, field.name)
            for one in held if field.is_repeated else [held] if message.HasField(field.name) else []:
                yield from _fields(one)


def _odd(rng: random.Random, field: Any, names: list[str]) -> Any:
    """A value of a field's type that a model might have, or not."""
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return rng.choice(names).encode() or b"\0\xff"
        case field.CPPTYPE_STRING:
            return rng.choice(names)
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return rng.choice((0.0, -1.0, float("nan"), float("inf"), 3e38))
        case field.CPPTYPE_ENUM:
            return rng.choice(list(field.enum_type.values_by_number))
        case field.CPPTYPE_INT32:
            return rng.choice([n for n in _NUMBERS if -(2**31) <= n < 2**31])
        case field.CPPTYPE_UINT32 | field.CPPTYPE_UINT64:
            return rng.choice([n for n in _NUMBERS if 0 <= n < 2**32])
        case _:
            return rng.choice(_NUMBERS)


def _change(rng: random.Random, message: Any, field: Any, names: list[str]) -> None:
    """Changes one field: another value, none, or other elements."""
    if field.type == field.TYPE_MESSAGE:
        if not field.is_repeated:
            rng.choice((message.ClearField, lambda name: getattr(message, name).SetInParent()))(field.name)
            return
        held = getattr(message, field.name)
        copies = list(held)
        if copies:
            i = rng.randrange(len(copies))
            again = rng.choice(([], [copies[i]] * 2, [rng.choice(copies)]))
            copies[i : i + 1] = again
        else:
            copies = [type(held.add())()]
        copies = [type(one).FromString(one.SerializeToString()) for one in copies]
        rng.random() < 0.2 and rng.shuffle(copies)
        message.ClearField(field.name)
        getattr(message, field.name).extend(copies)
    elif field.is_repeated:
        values = list(getattr(message, field.name))
        i = rng.randrange(len(values) + 1)
        values[i : i + rng.randrange(2)] = [_odd(rng, field, names) for _ in range(rng.choice((0, 1, 1, 5)))]
        message.ClearField(field.name)
        getattr(message, field.name).extend(values)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _odd(rng, field, names))


def changed_model(rng: random.Random, content: bytes) -> bytes:
    """A model with one to three fields changed; strings become others of the model, so that operators change places."""
    model = load_model_from_string(content)
    for _ in range(rng.randint(1, 3)):
        places = list(_fields(model))
        held = [getattr(m, f.name) for m, f in places if f.type == f.TYPE_STRING and not f.is_repeated]
        tensors = [name for node in model.graph.node for name in (*node.input, *node.output)]
        message, field = rng.choice([p for p in places if p[0] is not model] or places)
        _change(rng, message, field, [*_NAMES, *tensors, *held])
    found: bytes = model.SerializeToString()
    return found


@kind("fields of a model", *MODELS, change=changed_model)
@kind("bytes of a model", *MODELS, change=changed_bytes)
def _model(content: bytes | str, folder: Path) -> object:
    from workloads.graphs.network_file import NetworkFile
    from workloads.graphs.onnx_graph import OnnxModel

    path = str(file(content, folder, "net.onnx"))
    graph = OnnxModel(path).with_defaults("bf16")
    return NetworkFile(path).with_defaults("int8").macs, graph.graph(fused=False).macs, graph.graph(fused=True).macs
