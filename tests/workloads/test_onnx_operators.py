"""ONNX models: every operator is cheap by a list, counted exactly, or refused; what is no model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from workloads.networks.onnx_model import Model, inferred, read_onnx
from workloads.networks.onnx_operators import AS_FIRST, CHEAP, PRODUCTS, VIEWS, ModelConv

onnx = pytest.importorskip("onnx")
helper: Any = onnx.helper
FLOAT, UINT8, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT8
MICROSOFT = "com.microsoft"
Shapes = dict[str, tuple[Any, ...]]


def model(nodes: list[Any], inputs: Shapes, weights: Shapes | None = None, opset: int = 23, **more: Any) -> Any:
    """A model of nodes whose results have no shape. more: `functions`, `kinds` of inputs, format of the `result`."""
    kinds = more.get("kinds", {})
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [value(name, kinds.get(name, FLOAT), shape) for name, shape in inputs.items()],
        [value(next(name for name in nodes[-1].output if name), more.get("result", FLOAT), None)],
        [onnx.numpy_helper.from_array(np.zeros(s, np.float32), name) for name, s in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid(name, number) for name, number in (("", opset), (MICROSOFT, 1), ("mine", 1))]
    return helper.make_model(graph, opset_imports=opsets, functions=more.get("functions", []), ir_version=10)


def read(found: Any, batch: int = 1) -> Model:
    return read_onnx(found.SerializeToString(), "m", batch)


def macs(found: Model) -> int:
    total = 0
    for one in found.layers:
        if isinstance(one, ModelConv):
            rows, columns = one.output
            per_result = one.channels // one.groups * one.window[0] * one.window[1]
            total += one.images * one.filters * rows * columns * per_result
        else:
            total += one.batch * one.m * one.n * one.k
    return total


def test_a_weight_of_the_wrong_size_is_refused() -> None:
    found = model([own("MatMul", ["x", "w"])], {"x": (4, 80)}, {"w": (80, 60)})
    found.graph.initializer[0].raw_data += b"four"
    with pytest.raises(InputError, match=r"weight w: \[80, 60\] takes 19200 bytes, it has 19204"):
        read(found)


def linear() -> Any:
    """y = x w as a function of a model."""
    body = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_function("mine", "Linear", ["x", "w"], ["y"], body, opsets)


def test_functions_of_a_model_are_counted_where_they_are_called() -> None:
    twice = helper.make_function(
        "mine", "Twice", ["x", "u", "v"], ["y"],
        [helper.make_node("Linear", [x, w], [y], domain="mine") for x, w, y in ("xuh", "hvy")],
        [helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Twice", ["x", "u", "v"], ["a"], domain="mine"),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    weights = {"u": (1024, 4096), "v": (4096, 1024), "w": (1024, 128)}
    found = read(model(nodes, {"x": (16, 1024)}, weights, functions=[linear(), twice]))
    assert macs(found) == 16 * (2 * 1024 * 4096 + 1024 * 128)
    assert found.others == {"Relu": 2}


def test_functions_that_never_end_are_refused() -> None:
    def calls(name: str, *inner: str) -> Any:
        nodes = [helper.make_node(one, ["x"], [f"y{i}"], domain="mine") for i, one in enumerate(inner)]
        return helper.make_function("mine", name, ["x"], ["y0"], nodes, [helper.make_opsetid("mine", 1)])

    def whole(*functions: Any) -> Any:
        return model([helper.make_node("f0", ["x"], ["y"], domain="mine")], {"x": (2, 2)}, functions=functions)

    with pytest.raises(InputError, match="calls itself"):
        read(whole(calls("f0", "f1"), calls("f1", "f0")))
    with pytest.raises(InputError, match="more than 100000 operators"):
        read(whole(*(calls(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(60))))
    with pytest.raises(InputError, match="more than 100 deep"):
        read(whole(*(calls(f"f{i}", f"f{i + 1}") for i in range(2000))))


def micro(name: str, operands: list[str], results: int = 1, **attributes: Any) -> Any:
    return helper.make_node(name, operands, [f"{MICROSOFT}{i}" for i in range(results)], domain=MICROSOFT, **attributes)


def own(name: str, operands: list[str], **attributes: Any) -> Any:
    return helper.make_node(name, operands, ["y"], **attributes)


INTEGERS = {"kinds": {"x": UINT8, "w": INT8}, "result": onnx.TensorProto.INT32}
QUANTISED = {"kinds": {"x": UINT8, "w": INT8, "xz": UINT8, "wz": INT8}, "result": UINT8}
SCALED = {"xs": (), "xz": (), "ws": (), "wz": (), "ys": ()}

COUNTED: dict[str, tuple[Any, Shapes, int, dict[str, Any]]] = {
    "grouped": (own("Conv", ["x", "w"], group=4), {"x": (2, 8, 9, 9), "w": (12, 2, 3, 3)}, 2 * 49 * 12 * 2 * 9, {}),
    "one row": (own("Conv", ["x", "w"], pads=[1, 2]), {"x": (1, 3, 10), "w": (4, 3, 5)}, 9 * 4 * 3 * 5, {}),
    "same lower": (
        own("Conv", ["x", "w"], auto_pad="SAME_LOWER", strides=[2, 2], dilations=[2, 2]),
        {"x": (1, 3, 7, 8), "w": (4, 3, 3, 2)},
        4 * 4 * 4 * 3 * 6,
        {},
    ),
    "transposed": (
        own("ConvTranspose", ["x", "w"], strides=[2, 2], group=2),
        {"x": (3, 4, 5, 6), "w": (4, 8, 3, 3)},
        90 * 4 * 8 * 9,
        {},
    ),
    "deformed": (
        own("DeformConv", ["x", "w", "o"]),
        {"x": (1, 4, 6, 6), "w": (8, 4, 3, 3), "o": (1, 18, 4, 4)},
        16 * 8 * 36,
        {},
    ),
    "integers": (own("MatMulInteger", ["x", "w"]), {"x": (3, 5, 8), "w": (8, 6)}, 15 * 8 * 6, INTEGERS),
    "integer windows": (own("ConvInteger", ["x", "w"]), {"x": (1, 2, 4, 4), "w": (3, 2, 3, 3)}, 4 * 3 * 18, INTEGERS),
    "quantised": (
        own("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "xz"]),
        {"x": (4, 8), "w": (8, 6), **SCALED},
        192,
        QUANTISED,
    ),
    "quantised windows": (
        own("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "xz"]),
        {"x": (1, 2, 4, 4), "w": (3, 2, 3, 3), **SCALED},
        4 * 3 * 18,
        QUANTISED,
    ),
    "batches": (
        own("Einsum", ["a", "b"], equation="bhqd,bhkd->bhqk"),
        {"a": (2, 3, 4, 5), "b": (2, 3, 6, 5)},
        6 * 4 * 6 * 5,
        {},
    ),
    "ellipsis": (own("Einsum", ["a", "b"], equation="...ij,jk"), {"a": (7, 4, 5), "b": (5, 6)}, 7 * 4 * 5 * 6, {}),
    "broadcast": (
        own("Einsum", ["a", "b"], equation="...ij,...jk->...ik"),
        {"a": (1, 4, 5), "b": (3, 5, 6)},
        3 * 120,
        {},
    ),
    "summed": (own("Einsum", ["a", "b"], equation="ijz,jk->ki"), {"a": (4, 5, 9), "b": (5, 6)}, 120, {}),
    "lstm": (
        own("LSTM", ["x", "w", "r"], hidden_size=5, direction="bidirectional"),
        {"x": (7, 2, 3), "w": (2, 20, 3), "r": (2, 20, 5)},
        2 * 7 * 2 * 20 * 8,
        {},
    ),
    "gru": (
        own("GRU", ["x", "w", "r"], layout=1),
        {"x": (2, 7, 3), "w": (1, 15, 3), "r": (1, 15, 5)},
        7 * 2 * 15 * 8,
        {},
    ),
    "rnn": (
        own("RNN", ["x", "w", "r"], hidden_size=5),
        {"x": (7, 2, 3), "w": (1, 5, 3), "r": (1, 5, 5)},
        7 * 2 * 5 * 8,
        {},
    ),
    "attention": (
        own("Attention", ["q", "k", "v", "", "pk", "pv"], q_num_heads=6, kv_num_heads=2),
        {"q": (2, 4, 48), "k": (2, 5, 16), "v": (2, 5, 20), "pk": (2, 2, 7, 8), "pv": (2, 2, 7, 10)},
        2 * 6 * 4 * 12 * (8 + 10),
        {},
    ),
    "self-attention": (
        micro("Attention", ["x", "w", "b"], num_heads=4),
        {"x": (2, 6, 32), "w": (32, 96), "b": (96,)},
        12 * 32 * 96 + 2 * 2 * 6 * 6 * 32,
        {},
    ),
    "heads": (
        micro("MultiHeadAttention", ["q", "k", "v"], num_heads=4),
        dict.fromkeys("qkv", (2, 6, 32)),
        2 * 2 * 36 * 32,
        {},
    ),
    "packed heads": (micro("MultiHeadAttention", ["q"], num_heads=4), {"q": (2, 6, 4, 3, 8)}, 2 * 2 * 36 * 32, {}),
    "groups": (
        micro("GroupQueryAttention", ["q", "", "", "p", "p"], num_heads=4, kv_num_heads=2),
        {"q": (2, 3, 64), "p": (2, 2, 9, 8)},
        2 * 2 * 3 * 12 * 32,
        {},
    ),
    "fused": (micro("FusedMatMul", ["x", "w"], transB=1), {"x": (2, 5, 8), "w": (6, 8)}, 480, {}),
    "fused gemm": (micro("FusedGemm", ["x", "w"], transA=1), {"x": (8, 5), "w": (8, 6)}, 240, {}),
    "fused conv": (
        micro("FusedConv", ["x", "w"], activation="Relu"),
        {"x": (1, 3, 5, 5), "w": (4, 3, 3, 3)},
        9 * 4 * 27,
        {},
    ),
    "dynamic": (micro("DynamicQuantizeMatMul", ["x", "w"]), {"x": (5, 8), "w": (8, 6)}, 240, {}),
}


@pytest.mark.parametrize("name", COUNTED)
def test_products_are_counted_exactly(name: str) -> None:
    node, inputs, expected, more = COUNTED[name]
    assert macs(read(model([node], inputs, **more))) == expected


def test_packed_weights_are_counted_and_followed() -> None:
    """Nothing says the shapes behind the operators of ONNX Runtime: each follows from what is before it."""
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["n"]),
        helper.make_node("MatMulNBits", ["n", "q", "s"], ["h"], domain=MICROSOFT, K=64, N=96, bits=4, block_size=32),
        helper.make_node("Reshape", ["h", "to"], ["p"]),
        helper.make_node("SkipLayerNormalization", ["p", "p", "z"], ["i", "", "", "j"], domain=MICROSOFT),
        helper.make_node("FusedMatMul", ["i", "j"], ["y"], domain=MICROSOFT, transB=1),
    ]
    found = model(nodes, {"x": (4, 64)}, {"g": (64,), "z": (32,), "s": (192,)}, opset=17)
    tensors = (np.zeros((96, 2, 16), np.uint8), np.array([12, 32]))
    found.graph.initializer.extend(map(onnx.numpy_helper.from_array, tensors, ("q", "to")))
    assert macs(read(found)) == 4 * 64 * 96 + 12 * 12 * 32
    found.graph.node[1].attribute[1].i = 95
    with pytest.raises(InputError, match=r"node 1 \(MatMulNBits h\): \[96, 2, 16\] are no weights of N=95 K=64"):
        read(found)


def test_number_formats_are_followed() -> None:
    """Strict inference would refuse the addition and the last product if fp16 or integers were taken for fp32."""
    half = onnx.TensorProto.FLOAT16
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["n"]),
        helper.make_node("FusedMatMul", ["n", "n"], ["s"], domain=MICROSOFT, transB=1),
        helper.make_node("MatMul", ["s", "x"], ["h"]),
        helper.make_node("MatMulIntegerToFloat", ["i", "j", "a", "b"], ["f"], domain=MICROSOFT),
        helper.make_node("Add", ["f", "c"], ["y"]),
    ]
    formats = {"x": half, "g": half, "i": UINT8, "j": INT8}
    inputs: Shapes = {"x": (4, 8), "g": (8,), "i": (5, 6), "j": (6, 7), "a": (), "b": ()}
    found = read(model(nodes, inputs, {"c": (7,)}, opset=17, kinds=formats))
    assert macs(found) == 4 * 4 * 8 * 2 + 5 * 6 * 7


def test_weights_in_files_of_their_own_are_not_needed() -> None:
    found = model([own("MatMul", ["x", "w"])], {"x": (3, 8)}, {"w": (8, 2048)})
    weight = found.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../nowhere.bin")
    assert macs(read(found)) == 3 * 8 * 2048


def test_sparse_weights_and_open_inputs_have_the_shape_of_the_weight() -> None:
    found = model([own("MatMul", ["x", "w"])], {"x": (3, 8), "w": ("rows", "columns")}, {"w": (8, 2048)})
    found.graph.node[0].domain = "ai.onnx"
    assert macs(read(found)) == 3 * 8 * 2048
    values, places = (onnx.numpy_helper.from_array(np.ones(1, kind), "w") for kind in (np.float32, np.int64))
    del found.graph.initializer[:], found.graph.input[1:]
    found.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [8, 2048]))
    assert macs(read(found)) == 3 * 8 * 2048


def test_what_is_known_before_the_model_runs_does_not_count() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["g"]),
        helper.make_node("Cast", ["g"], ["c"], to=onnx.TensorProto.INT64),
        helper.make_node("Transpose", ["x"], ["u"]),
        helper.make_node("RandomNormal", [], ["r"], shape=[8, 6]),
        helper.make_node("MatMul", ["u", "t"], ["y"]),
    ]
    found = model(nodes, {"x": (8, 4)}, {"w": (6, 8)})
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "i"))
    assert macs(read(found)) == 4 * 8 * 6
    assert read(found).others == {"RandomNormal": 1, "Transpose": 1}


def product(x: tuple[int, ...] = (4, 8), w: tuple[int, ...] = (8, 6), *behind: Any, **more: Any) -> Any:
    """A MatMul, and what stands behind it."""
    return model([own("MatMul", ["x", "w"]), *behind], {"x": x}, {"w": w}, **more)


def window(x: tuple[int, ...] = (1, 4, 8, 8), w: tuple[int, ...] = (6, 4, 3, 3), **attributes: Any) -> Any:
    return model([own("Conv", ["x", "w"], **attributes)], {"x": x}, {"w": w})


def recurrent(name: str, steps: int, gates: int, other: int, **attributes: Any) -> Any:
    node = own(name, ["x", "w", "r"], hidden_size=5, **attributes)
    return model([node], {"x": (steps, 2, 3), "w": (1, 5 * gates, 3), "r": (1, 5 * other, 5)})


def changed(change: Callable[[Any], Any]) -> Any:
    found = product()
    change(found)
    return found


def behind(name: str, *operands: str, **more: Any) -> Any:
    return helper.make_node(name, operands, ["z"], **more)


BODY = helper.make_graph([own("MatMul", ["x", "w"])], "body", [], [helper.make_tensor_value_info("y", FLOAT, None)])
BRANCH = helper.make_node("If", ["c"], ["y"], then_branch=BODY, else_branch=BODY)
MYSTERY = behind("Mystery", "y", domain="mine")
SIX_BY_SEVEN = helper.make_node("Constant", [], ["s"], value_ints=[6, 7])
RESHAPED = [SIX_BY_SEVEN, helper.make_node("Reshape", ["x", "s"], ["r"]), own("MatMul", ["r", "w"])]
SKIP = helper.make_node("SkipLayerNormalization", ["x", "k", "k"], ["s"], domain=MICROSOFT)
WRONG = helper.make_tensor_value_info("y", FLOAT, (9, 9))
UNKNOWN = [
    helper.make_node("NonZero", ["x"], ["n"]),
    helper.make_node("Cast", ["n"], ["f"], to=1),
    own("MatMul", ["f", "w"]),
]
BACK = [own("MatMul", ["b", "w"]), helper.make_node("MatMul", ["y", "w"], ["b"])]

REFUSED: dict[str, tuple[Any, str]] = {
    "another domain": (product((4, 8), (8, 6), MYSTERY), r"node 1 \(Mystery z\): mine\.Mystery is not"),
    "a cycle": (model(BACK, {"x": (4, 4)}, {"w": (4, 4)}), "topologically sorted, however input 'b'"),
    "its own output": (model([own("MatMul", ["y", "w"])], {"x": (4, 4)}, {"w": (4, 4)}), "however input 'y'"),
    "one result twice": (product((4, 8), (8, 6), own("MatMul", ["x", "w"])), "'y' has been used"),
    "k": (product((4, 7)), "Incompatible dimensions"),
    "k of another domain": (
        model([micro("FusedMatMul", ["x", "w"])], {"x": (4, 7)}, {"w": (8, 6)}),
        r"columns on the left \(7\) and rows on the right \(8\)",
    ),
    "batches": (
        model([micro("FusedMatMul", ["x", "w"])], {"x": (3, 4, 8)}, {"w": (2, 8, 6)}), r"\[3\] and \[2\] do not go",
    ),
    "addition": (product((4, 8), (8, 4), behind("Add", "y", "w")), "Incompatible dimensions"),
    "negative": (product((-4, 8)), "tensor x: a dimension is -4"),
    "negative weight": (changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -8)), "w: a dimension is -8"),
    "nothing": (product((0, 8)), "has no elements"),
    "short weight": (changed(lambda m: setattr(m.graph.initializer[0], "raw_data", b"abc")), "takes 192 bytes, it"),
    "attribute": (model([own("MatMul", ["x", "w"], sideways=1)], {"x": (4, 8)}, {"w": (8, 6)}), "attribute: sideways"),
    "declared": (changed(lambda m: m.graph.output[0].CopyFrom(WRONG)), "existing shape differ"),
    "number format": (product(kinds={"x": 7}), "inconsistent type"),
    "no opset": (changed(lambda m: m.ClearField("opset_import")), "opset"),
    "future opset": (changed(lambda m: setattr(m.opset_import[0], "version", 999)), "opset 999 is newer than"),
    "two opsets": (changed(lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 7))), "two versions"),
    "reshape": (model(RESHAPED, {"x": (4, 8)}, {"w": (7, 6)}), "of 32 elements 42; a Reshape keeps them"),
    "norm": (product((4, 8), (8, 6), behind("LayerNormalization", "y", "x")), r"\[4, 8\] and|\[4, 6\] and"),
    "skipped": (model([SKIP, own("MatMul", ["s", "w"])], {"x": (4, 8), "k": (3, 8)}, {"w": (8, 6)}), "do not go"),
    "bias": (model([own("Conv", ["x", "w", "b"])], {"x": (1, 3, 8, 8)}, {"w": (4, 3, 3, 3), "b": (5,)}), "a bias"),
    "added": (model([own("Gemm", ["x", "w", "c"])], {"x": (4, 8)}, {"w": (8, 6), "c": (5,)}), r"\[5\] do not go"),
    "two shapes": (model([own("MatMul", ["x", "w"])], {"x": (4, 8), "w": (7, 999)}, {"w": (8, 999)}), "as an input"),
    "pads": (window(pads=[1]), "pads has incorrect size"),
    "negative pads": (window(pads=[-1] * 4), "pads must not contain negative"),
    "channels": (window((1, 3, 8, 8)), "3 channels, 1 groups of 4"),
    "groups": (window((1, 16, 8, 8), group=4), "6 filters do not fall into 4 groups"),
    "no groups": (window(group=0), "0 groups"),
    "window": (window((1, 4, 2, 2)), "does not fit"),
    "kernel_shape": (window(kernel_shape=[5, 5]), "kernel_shape"),
    "auto_pad": (window(auto_pad="SOME"), "auto_pad=SOME"),
    "space": (window((1, 4, 8, 8, 8), (6, 4, 3, 3, 3)), "3 dimensions of space"),
    "three operands": (model([own("Einsum", [*"xxx"], equation="ij,jk,kl->il")], {"x": (4, 4)}), "than one product"),
    "recurrent weights": (recurrent("LSTM", 7, 4, 3), "do not go together"),
    "direction": (recurrent("LSTM", 7, 4, 4, direction="sideways"), "direction=sideways"),
    "steps": (recurrent("RNN", 10**6, 1, 1), "1000000 steps"),
    "branch": (model([BRANCH], {"c": (), "x": (4, 8)}, {"w": (8, 6)}, kinds={"c": 9}), r"\(If y\): If runs a graph"),
    "unknown sizes": (model(UNKNOWN, {"x": (4, 8)}, {"w": (8, 6)}), r"node 2 \(MatMul y\): the shapes of its operands"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_is_refused(name: str) -> None:
    found, told = REFUSED[name]
    with pytest.raises(InputError, match=told) as caught:
        read(found)
    assert "\n" not in str(caught.value)


def _inner(schema: Any) -> set[str]:
    """Operators of the function that ONNX says an operator is; empty where it says none."""
    body = schema.function_body if schema.has_function else None
    return {node.op_type for node in body.node} if body else set()


def test_every_operator_of_onnx_is_cheap_or_counted_or_refused() -> None:
    """None passes as cheap that ONNX itself writes with a product, and none that no list names."""
    schemas = {s.name if s.domain == "" else f"{s.domain}.{s.name}": s for s in onnx.defs.get_all_schemas()}
    own_names = {name for name in VIEWS | CHEAP | PRODUCTS.keys() if not name.startswith(MICROSOFT)}
    lists = (VIEWS, CHEAP, PRODUCTS.keys())
    assert all(sum(name in one for one in lists) == 1 for name in own_names | AS_FIRST)
    newer = {name for name in own_names if name not in schemas}
    assert newer <= {"BitCast", "CumProd", "RMSNormalization", "RotaryEmbedding", "SwiGLU", "Swish", "TensorScatter"}
    for name, schema in schemas.items():
        if name in VIEWS or name in CHEAP:
            assert not _inner(schema) & PRODUCTS.keys(), name
        elif name not in PRODUCTS:
            operands = [f"x{i}" for i in range(schema.min_input)]
            node = helper.make_node(
                schema.name, operands, [f"y{i}" for i in range(max(1, schema.min_output))], domain=schema.domain
            )
            found = model(
                [own("MatMul", ["x", "w"]), node], {"x": (4, 8), **dict.fromkeys(operands, (4, 8))}, {"w": (8, 6)}
            )
            found.opset_import[0].version = onnx.defs.onnx_opset_version()
            if schema.domain:
                found.opset_import.append(helper.make_opsetid(schema.domain, schema.since_version))
            with pytest.raises(InputError):
                read(found)


def test_a_result_that_is_declared_with_another_shape_is_refused() -> None:
    """Whoever knows its shape, ONNX or this project."""
    for node, inputs, _, more in COUNTED.values():
        right, name = model([node], inputs, **more), node.output[0]
        wrong = [size + 1 for size in inferred(right, "m")[name]] or [7]
        right.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, more.get("result", FLOAT), wrong))
        with pytest.raises(InputError, match=r"differ in|rank|tensor"):
            read(right)
