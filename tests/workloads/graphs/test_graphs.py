"""Graphs: their wiring by evaluating them in NumPy, their memory, and errors in building them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from workloads.graphs import Graph, GraphBuilder, GraphOperator, Value
from workloads.graphs.memory import Arena
from workloads.ops import CopyH2D, Gemm, KvWrite, Moe, Pointwise
from workloads.ops.attention import page_places
from workloads.parse import parse

TINY = "bert_layer batch=2 seq=4 hidden=8 heads=2 ffn=16 dtype=fp64"


def evaluate(graph: Graph, inputs: dict[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Every buffer after the graph, each operator computed by its NumPy reference; dropout draws from `seed`."""
    memory = {name: np.array(inputs[name], dtype=np.float64) for name in graph.inputs}
    sizes = {value.buffer: 0 for step in graph.steps for value in (*step.operands, *step.results)}
    for step in graph.steps:
        for value in step.results:
            sizes[value.buffer] = max(sizes[value.buffer], value.offset + value.size)
    for step in graph.steps:
        given = iter(step.operands)
        operands = []
        for operand in step.op.operands:
            value = next(given)
            operands.append(memory[value.buffer][value.offset : value.offset + value.size].reshape(operand.shape))
        for value, array in zip(step.results, step.op.references(*operands), strict=True):
            buffer = memory.setdefault(value.buffer, np.zeros(sizes[value.buffer]))
            buffer[value.offset : value.offset + value.size] = array.ravel()
    return memory


def graph_of(text: str, fused: bool) -> Graph:
    op = parse(text)
    assert isinstance(op, GraphOperator)
    return op.with_defaults("fp64").graph(fused)


def random_inputs(graph: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    widths = {value.buffer: DTYPE_BYTES[value.dtype] for step in graph.steps for value in step.operands}
    return {name: random.normal(size=graph.sizes_bytes[name] // widths[name]) / 3 for name in graph.inputs}


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_bert_layer_are_those_of_its_forward_part(fused: bool) -> None:
    """d(dy . y) along a random direction, by difference and by the gradients that the graph computes."""
    graph = graph_of(f"{TINY} training=1", fused)
    inputs = random_inputs(graph)
    memory = evaluate(graph, inputs)
    y, dx, *rest = graph.outputs
    # Gradients are kept in the order in which they are computed: from the end of the layer to its beginning.
    parameters = ["norm2_weight", "norm2_bias", "down_bias", "down_weight", "up_bias", "up_weight"]
    parameters += ["norm1_weight", "norm1_bias", "out_bias", "out_weight", "qkv_bias", "qkv_weight"]
    for name, gradient in [("x", dx), *zip(parameters, rest, strict=True)]:
        direction = np.random.default_rng(2).normal(size=inputs[name].shape)

        def along(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            moved = evaluate(graph, {**inputs, name: inputs[name] + step * direction})
            return float(inputs["dy"] @ moved[y])

        measured = (along(1e-5) - along(-1e-5)) / 2e-5
        assert memory[gradient] @ direction == pytest.approx(measured, rel=1e-4, abs=1e-7), name


def test_fusing_a_bert_layer_changes_kernels_not_numbers() -> None:
    plain, fused = (graph_of(f"{TINY} training=1", fused) for fused in (False, True))
    assert len(fused.steps) < len(plain.steps)
    inputs = random_inputs(plain)
    left, right = evaluate(plain, inputs), evaluate(fused, inputs)
    for a, b in zip(plain.outputs, fused.outputs, strict=True):
        np.testing.assert_allclose(left[a], right[b], rtol=1e-9, atol=1e-12)


def test_operations_of_a_bert_layer_by_hand() -> None:
    tokens, hidden = 8 * 512, 1024
    linear = 2 * tokens * (3 * hidden**2 + hidden**2 + 2 * 4 * hidden**2)
    attention = 2 * 2 * 8 * 16 * 512 * 512 * 64
    graph = graph_of("bert_layer training=1", fused=False)
    products = sum(step.op.flops for step in graph.steps if step.kind == "contraction")
    assert products == 3 * (linear + attention)
    assert products / graph.flops > 0.99


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_llama_layer(phase: str, fused: bool) -> None:
    graph = graph_of(f"llama model=llama3-8b phase={phase} batch=2 seq=128 layers=2", fused)
    new = 2 * (128 if phase == "prefill" else 1)
    weights = 4096 * 128 * (32 + 2 * 8) + 4096**2 + 3 * 4096 * 14336
    products = sum(step.op.macs for step in graph.steps if step.op.word == "gemm")
    assert products == 2 * new * weights
    assert len(graph.steps) == 2 * (13 if fused else 20)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_cache_in_pages_changes_where_keys_lie_not_what_is_computed(phase: str, fused: bool) -> None:
    text = f"llama phase={phase} batch=2 seq=6 hidden=16 heads=4 kv_heads=2 head_dim=8 intermediate=12"
    plain, paged = (graph_of(f"{text} page={page}", fused) for page in (0, 4))
    inputs = random_inputs(paged)
    (write,) = (step.op for step in paged.steps if step.op.word == "kv_write")
    assert isinstance(write, KvWrite)
    together = dict(inputs)
    if phase == "decode":
        # What the plain graph writes behind the cache is the last token of each sequence only for one sequence.
        text = text.replace("batch=2", "batch=1")
        plain, paged = (graph_of(f"{text} page={page}", fused) for page in (0, 4))
        inputs = random_inputs(paged)
        places = page_places(1, 2)[0]
        together = dict(inputs)
        for name in ("0.keys", "0.values"):
            together[name] = inputs[name].reshape(2, 4, -1)[places].reshape(8, -1)[:6].ravel()
    left, right = evaluate(plain, together), evaluate(paged, inputs)
    np.testing.assert_allclose(left[plain.outputs[0]], right[paged.outputs[0]], rtol=1e-9, atol=1e-12)


def test_sequences_have_lengths_of_their_own() -> None:
    text = "llama hidden=16 heads=4 kv_heads=2 head_dim=8 intermediate=12 page=4 batch=2"
    same, listed = (graph_of(f"{text} {lengths}", fused=True) for lengths in ("seq=6", "seqlens=6,6"))
    inputs = random_inputs(same)
    given = {name: inputs.get(name, values) for name, values in random_inputs(listed).items()}
    left, right = evaluate(same, inputs), evaluate(listed, given)
    np.testing.assert_allclose(left[same.outputs[0]], right[listed.outputs[0]], rtol=1e-9, atol=1e-12)
    uneven = graph_of(f"{text} seqlens=6,3", fused=True)
    assert evaluate(uneven, random_inputs(uneven))[uneven.outputs[0]].size == 9 * 16
    products = [sum(step.op.macs for step in graph.steps if step.op.word == "gemm") for graph in (same, uneven)]
    assert products[1] * 12 == products[0] * 9
    # A step of decoding: one token of each, and pages for all that they have.
    step = graph_of(f"{text} phase=decode seqlens=6,3", fused=True)
    (write,) = (step.op for step in step.steps if step.op.word == "kv_write")
    assert isinstance(write, KvWrite)
    assert [o.shape for o in write.operands] == [(2, 1, 2, 8)] * 2 + [(2, 1)] + [(3, 4, 2, 8)] * 2


def test_a_whole_model_ends_with_the_logits_of_last_tokens() -> None:
    text = "llama batch=3 seq=4 hidden=16 heads=2 kv_heads=2 intermediate=8 layers=2 vocab=11"
    graph = graph_of(text, fused=False)
    words = [step.op.word for step in graph.steps]
    assert words[0] == "gather"
    assert words[-3:] == ["rmsnorm", "gather", "gemm"]
    memory = evaluate(graph, random_inputs(graph))
    assert memory[graph.outputs[0]].size == 3 * 11
    # The head reads the rows that the look-up before it has picked, of the last layer's normed result.
    norm, pick, head = graph.steps[-3:]
    rows = memory[norm.results[0].buffer].reshape(12, 16)[pick.op.index]  # type: ignore[attr-defined]
    weight = memory[head.operands[1].buffer].reshape(11, 16)
    np.testing.assert_allclose(memory[graph.outputs[0]].reshape(3, 11), rows @ weight.T)
    # Decoding has no other tokens than the last ones.
    assert "gather" not in [step.op.word for step in graph_of(f"{text} phase=decode", fused=False).steps[1:]]


def test_devices_share_embedding_and_head() -> None:
    graph = graph_of("llama batch=2 seq=64 phase=decode vocab=1001 tp=4", fused=False)
    assert graph.devices == 4
    assert graph_of("llama batch=2 seq=64", fused=False).devices == 1
    words = [step.op.word for step in graph.steps]
    assert words[:2] == ["gather", "allreduce"]
    assert words[-2:] == ["gemm", "all_gather"]
    assert words.count("allreduce") == 3
    # Rows of both tables are shared out, the last device's padded.
    (head,) = (step for step in graph.steps if step.results[0] == graph.steps[-1].operands[0])
    assert head.op.n == 251  # type: ignore[attr-defined]
    assert graph.steps[-1].results[0].size == 4 * 2 * 251


@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_of_experts_by_hand(fused: bool) -> None:
    graph = graph_of("llama seq=6 hidden=16 heads=2 intermediate=8 kv_heads=1 experts=4 topk=2", fused)
    (step,) = (step for step in graph.steps if step.op.word == "moe")
    moe = step.op
    assert isinstance(moe, Moe)
    assert (moe.tokens, moe.hidden, moe.inter, moe.experts, moe.topk) == (6, 16, 8, 4, 2)
    memory = evaluate(graph, random_inputs(graph))
    x, logits, w1, w2 = (memory[value.buffer] for value in step.operands)
    expected = moe.references(x.reshape(6, 16), logits.reshape(6, 4), w1.reshape(4, 16, 16), w2.reshape(4, 16, 8))[0]
    np.testing.assert_allclose(memory[step.results[0].buffer].reshape(6, 16), expected)
    router = next(other for other in graph.steps if other.results[0] == step.operands[1])
    np.testing.assert_allclose(
        logits.reshape(6, 4), x.reshape(6, 16) @ memory[router.operands[1].buffer].reshape(4, 16).T
    )


def test_sizes_of_ones_own_stand_in_the_place_of_the_models() -> None:
    ours = parse("llama model=tiny hidden=4096 heads=32 kv_heads=8 intermediate=14336 layers=100").with_defaults("bf16")
    theirs = parse("llama model=llama3-8b").with_defaults("bf16")
    assert ours.flops == 100 * theirs.flops
    assert parse("llama model=mixtral-8x7b").sizes.topk == 2  # type: ignore[attr-defined]
    for text, message in (
        (
            "llama hidden=100 heads=32",
            "heads=32: must divide hidden=100 where head_dim is not given; nearest below: 25",
        ),
        ("llama kv_heads=5", "kv_heads=5: must divide heads=32; nearest below: 4"),
        ("llama topk=2", "topk=2: llama3-8b has no experts; nearest: experts=8"),
        ("llama experts=2 topk=3", "topk=3: at most experts=2"),
    ):
        with pytest.raises(InputError, match=message):
            parse(text)


def test_a_model_is_shared_evenly_or_not_at_all() -> None:
    with pytest.raises(InputError, match="tp=3: must share out 8 key heads; nearest below: 2"):
        parse("llama tp=3")
    with pytest.raises(InputError, match="layers=33: llama3-8b has 32"):
        parse("llama layers=33")
    with pytest.raises(InputError, match="heads=3: must divide hidden=1024; nearest below: 2"):
        parse("bert_layer heads=3")
    shared = graph_of("llama tp=2", fused=False)
    assert [step.op.word for step in shared.steps].count("allreduce") == 2
    assert 2 * sum(s.op.macs for s in shared.steps) == sum(s.op.macs for s in graph_of("llama", fused=False).steps)


def test_operands_must_fit() -> None:
    g = GraphBuilder("g")
    x = g.tensor("x", 64, "fp16")
    multiply = Gemm(m=8, n=8, k=8, dtype="fp16")
    with pytest.raises(InputError, match=r"graph g, mm: gemm .* takes a of 64 fp16, b of 64 fp16; there are \[\(64"):
        g.call("mm", multiply, x)
    with pytest.raises(InputError, match="gives c of 64 fp16"):
        g.call("mm", multiply, x, x, into=g.empty("half", 32, "fp16"))
    with pytest.raises(InputError, match="do not fall into 3 equal parts"):
        x.part(0, 3)
    with pytest.raises(InputError, match="has parts 0 to 1, no part 2"):
        x.part(2, 2)
    with pytest.raises(InputError, match="declared twice"):
        g.tensor("x", 1, "fp16")


def test_a_step_reads_what_is_there() -> None:
    """Memory of no tensor, or of one that nothing has written, would be read as if it held something."""
    g, other = GraphBuilder("g"), GraphBuilder("other")
    x, empty = g.tensor("x", 64, "fp16"), g.empty("later", 64, "fp16")
    exp = Pointwise(n=64, chain="exp", dtype="fp16").with_defaults("fp16")
    for value, told in (
        (other.tensor("y", 64, "fp16"), "y is no tensor of this graph"),
        (empty, "reads 0.later, which nothing has written"),
        (Value("x", 64, "fp16", offset=1), "bytes 2 to 130 of x, which has 128"),
        (Value("x", 64, "fp16", offset=-64), "bytes -128 to 0 of x"),
    ):
        with pytest.raises(InputError, match=f"graph g, exp: {told}"):
            g.call("exp", exp, value)
        with pytest.raises(InputError, match="graph g"):
            g.build(value)
    with pytest.raises(InputError, match="graph g: has no step"):
        g.build(x)
    assert g.build(g.call("exp", exp, g.call("exp", exp, x, into=empty))).steps[1].operands == (empty,)


@pytest.mark.parametrize(
    ("size", "dtype", "told"),
    [(0, "fp16", "size=0 must"), (-5, "fp16", "size=-5"), (1.5, "fp16", "size"), (1, "zz", "dtype=zz")],
)
def test_a_tensor_has_a_size_and_a_format(size: int, dtype: str, told: str) -> None:
    with pytest.raises(InputError, match=f"graph g, x: {told}"):
        GraphBuilder("g").tensor("x", size, dtype)


def test_buffers_are_reused_after_their_last_use() -> None:
    g = GraphBuilder("chain")
    value = g.tensor("x", 1024, "fp32")
    for _ in range(10):
        value = g.call("exp", Pointwise(n=1024, chain="exp", dtype="fp32").with_defaults("fp32"), value)
    graph = g.build(value)
    addresses, end = graph.addresses(0)
    # The input stays; two buffers take turns.
    assert end == 3 * 4096
    assert addresses[graph.outputs[0]] != addresses["x"]


def test_a_copy_makes_what_the_next_operator_reads() -> None:
    g = GraphBuilder("copy")
    (raw,) = g.calls("copy", CopyH2D(bytes=64))
    graph = g.build(raw)
    assert [step.kind for step in graph.steps] == ["copy"]
    assert graph.lasting_bytes == 64


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60))
def test_blocks_never_overlap(moves: list[tuple[bool, int]]) -> None:
    arena = Arena(512)
    held: dict[int, int] = {}
    for take, size in moves:
        if take or not held:
            address = arena.allocate(size)
            assert address % 512 == 0
            assert address + size <= arena.end
            assert all(address + size <= a or a + s <= address for a, s in held.items())
            held[address] = size
        else:
            address = sorted(held)[size % len(held)]
            arena.free(address)
            del held[address]
    # Everything freed is one block again.
    for address in held:
        arena.free(address)
    if arena.end > 512:
        assert arena.allocate(arena.end - 512) == 512


def test_values_lie_inside_their_buffers() -> None:
    for text in (TINY, f"{TINY} training=1", "llama seq=64 layers=1 phase=decode", "llama seq=64"):
        for fused in (False, True):
            graph = graph_of(text, fused)
            known: set[str] = set(graph.inputs)
            for step in graph.steps:
                for value in step.operands:
                    assert value.buffer in known, step
                known |= {value.buffer for value in step.results}
                values: list[Value] = [*step.operands, *step.results]
                for value in values:
                    size = graph.sizes_bytes[value.buffer]
                    width = value.offset_bytes // value.offset if value.offset else 1
                    assert value.offset_bytes + value.size * width <= size


def test_the_same_text_gives_the_same_graph() -> None:
    one: Any = graph_of(f"{TINY} training=1", fused=True)
    assert one == graph_of(f"{TINY} training=1", fused=True)
