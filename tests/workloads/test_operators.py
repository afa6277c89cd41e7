"""Operators other than the GEMM: references against plain loops, bytes, text, errors."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops import (
    FUNCTIONS,
    AllReduce,
    Attention,
    Conv2d,
    LayerNorm,
    LayerNormBackward,
    Matvec,
    Operator,
    Pointwise,
    RmsNorm,
    Softmax,
    SoftmaxBackward,
    Sum,
    Transpose,
)
from workloads.parse import parse

EXAMPLES = (
    "softmax rows=4 cols=9",
    "softmax_backward rows=4 cols=9",
    "layernorm rows=4 cols=9 stats=1",
    "layernorm_backward rows=5 cols=7",
    "rmsnorm rows=3 cols=4",
    "sum n=100",
    "sum rows=3 cols=4 axis=0",
    "sum rows=3 cols=4 axis=1",
    "transpose rows=3 cols=4",
    "gather rows=5 cols=4 of=7",
    "kv_write batch=2 seq_q=3 seq_k=5 kv_heads=2 head_dim=4 page=2",
    "kv_write batch=2 seqlens_q=3,1 seqlens_k=5,4 kv_heads=2 head_dim=4 page=2",
    "allreduce bytes=64 devices=4",
    "all_reduce gpus=4 elements=10",
    "reduce_scatter gpus=4 elements=12",
    "all_gather gpus=3 elements=12",
    "alltoall gpus=3 elements=12",
    "matvec rows=4 cols=5",
    "conv2d n=2 c=4 h=7 w=8 k=6 r=3 s=2 stride_h=2 pad=1 dilation=2 groups=2 layout=nchw",
    "attention batch=2 heads=4 head_dim=8 kv_heads=2 seq_q=5 seq_k=9 causal=1",
    "attention_backward batch=2 heads=4 head_dim=8 kv_heads=2 seq_q=5 seq_k=9 causal=1",
    "attention_backward batch=1 heads=2 head_dim=8 seq=9 window=3",
    "moe tokens=6 hidden=8 inter=4 topk=2 experts=4 ep=2",
    "moe tokens=6 hidden=8 inter=4 topk=2 experts=4 gate=0 router=1 distribution=balanced",
    "pointwise n=12 chain=bias+gelu+dropout+add cols=4",
    "pointwise n=30 chain=cos+cos repeat=3 fused=0",
    "pointwise n=24 chain=add+mul shape=2x3x4 layout=cab+abc+bc",
    *(f"{name} n=6" for name in FUNCTIONS if name != "bias"),
)


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_references_fit_their_formats_and_a_wrong_element_shows(text: str, dtype: str) -> None:
    op = parse(text).with_defaults(dtype)
    operands = op.inputs(seed=3)
    assert [a.shape for a in operands] == [o.shape for o in op.operands]
    for array, operand in zip(operands, op.operands, strict=True):
        np.testing.assert_array_equal(array, round_to(array, operand.dtype))
    results = op.references(*operands)
    assert [a.shape for a in results] == [o.shape for o in op.results]
    for array, described in zip(results, op.results, strict=True):
        np.testing.assert_array_equal(array, round_to(array, described.dtype))
    assert op.largest_error(results, *operands) == 0
    assert op.tolerance < 0.1
    for i, result in enumerate(results):
        for wrong in (np.nan, 1.5 * result.flat[-1] + 1.0):
            changed = [np.array(r, dtype=np.float64) for r in results]
            changed[i].flat[-1] = wrong
            assert op.largest_error(changed, *operands) > op.tolerance


@pytest.mark.parametrize("text", EXAMPLES)
def test_text_and_operator_are_inverse(text: str) -> None:
    op = parse(text)
    assert parse(str(op)) == op
    assert set(str(op).split()) == set(text.split())


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_softmax_and_its_backward_form_equal_plain_loops() -> None:
    x, dy = values((3, 5)), values((3, 5), 1)
    y = Softmax(rows=3, cols=5, dtype="fp64").reference(x)
    dx = SoftmaxBackward(rows=3, cols=5, dtype="fp64").reference(dy, y)
    for i in range(3):
        total = sum(math.exp(v) for v in x[i])
        assert y[i] == pytest.approx([math.exp(v) / total for v in x[i]])
        for j in range(5):  # the Jacobian of softmax: y_j (delta_jk - y_k)
            expected = sum(dy[i, k] * y[i, k] * ((j == k) - y[i, j]) for k in range(5))
            assert dx[i, j] == pytest.approx(expected)


def test_norms_equal_plain_loops() -> None:
    x, w, b = values((3, 5)), values((5,), 1), values((5,), 2)
    layer = LayerNorm(rows=3, cols=5, dtype="fp64", stats="1")
    y, mean, rstd = layer.references(x, w, b)
    rms = RmsNorm(rows=3, cols=5, dtype="fp64").reference(x, w)
    for i in range(3):
        m = sum(x[i]) / 5
        deviation = math.sqrt(sum((v - m) ** 2 for v in x[i]) / 5 + 1e-5)
        assert mean[i] == pytest.approx(m, rel=1e-6)
        assert rstd[i] == pytest.approx(1 / deviation, rel=1e-6)
        assert y[i] == pytest.approx([(v - m) / deviation * w[j] + b[j] for j, v in enumerate(x[i])])
        root = math.sqrt(sum(v * v for v in x[i]) / 5 + 1e-5)
        assert rms[i] == pytest.approx([v / root * w[j] for j, v in enumerate(x[i])])


def test_gradients_of_layer_norm_equal_difference_quotients() -> None:
    x, w, b, dy = values((3, 5)), values((5,), 1), values((5,), 2), values((3, 5), 3)
    layer = LayerNorm(rows=3, cols=5, dtype="fp64")
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + 1e-5)
    gradients = LayerNormBackward(rows=3, cols=5, dtype="fp64").references(dy, x, mean, rstd, w)
    for number, gradient in zip((0, 1, 2), gradients, strict=True):
        for index in np.ndindex(gradient.shape):
            given = [x.copy(), w.copy(), b.copy()]
            given[number][index] += 1e-6
            quotient = ((layer.reference(*given) - layer.reference(x, w, b)) * dy).sum() / 1e-6
            assert gradient[index] == pytest.approx(quotient, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["gelu", "silu", "relu"])
def test_gradients_of_activations_equal_difference_quotients(name: str) -> None:
    x, dy = values((20,)), values((20,), 1)
    gradient = Pointwise(n=20, chain=f"{name}_backward", dtype="fp64").reference(dy, x)
    f = FUNCTIONS[name].apply
    np.testing.assert_allclose(gradient, dy * (f(x + 1e-6) - f(x - 1e-6)) / 2e-6, rtol=1e-5, atol=1e-7)


def test_a_chain_runs_from_left_to_right_and_rounds_where_it_goes_through_memory() -> None:
    fused = Pointwise(n=3, chain="scale+add", repeat=2, dtype="bf16")
    unfused = Pointwise(n=3, chain="scale+add", repeat=2, dtype="bf16", fused="0")
    x, y = round_to(np.array([1.0, 0.3, -2.7]), "bf16"), round_to(np.array([0.1, 0.2, 5.0]), "bf16")
    a = 0.96875
    np.testing.assert_array_equal(fused.reference(x, y), round_to(a * (a * x + y) + y, "bf16"))

    def bf16(v: np.ndarray) -> np.ndarray:
        return round_to(v, "bf16")

    np.testing.assert_array_equal(unfused.reference(x, y), bf16(bf16(a * bf16(bf16(a * x) + y)) + y))


def test_dropout_keeps_what_its_mask_says_and_its_backward_form_reads_it() -> None:
    forward = Pointwise(n=1000, chain="dropout", dtype="fp32")
    (x,) = forward.inputs()
    y, mask = forward.references(x)
    assert 0.85 < mask.mean() < 0.9
    np.testing.assert_array_equal(y, np.where(mask == 1, round_to(x / 0.875, "fp32"), 0))
    np.testing.assert_array_equal(Pointwise(n=1000, chain="dropout_backward", dtype="fp32").reference(x, mask), y)


def test_sums_and_transpose() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert Sum(n=12, dtype="fp32").reference(x.ravel()).tolist() == [66]
    assert Sum(rows=3, cols=4, dtype="fp32").reference(x).tolist() == [66]
    assert Sum(rows=3, cols=4, axis=0, dtype="fp32").reference(x).tolist() == [12, 15, 18, 21]
    assert Sum(rows=3, cols=4, axis=1, dtype="fp32").reference(x).tolist() == [6, 22, 38]
    assert Transpose(rows=3, cols=4, dtype="fp16").reference(x)[3].tolist() == [3, 7, 11]
    assert AllReduce(bytes=16, devices=3, dtype="fp32").reference(x).tolist() == [12, 15, 18, 21]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_convolution_equals_plain_loops(layout: str) -> None:
    conv = Conv2d(
        n=2, c=4, h=6, w=7, k=2, r=3, s=2, stride_h=2, pad_w=1, dilation=2, groups=2, layout=layout, dtype="fp32"
    )
    x, w = conv.inputs(data="integers")
    y = conv.reference(x, w)
    if layout == "nhwc":
        x, w, y = x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), y.transpose(0, 3, 1, 2)
    rows, columns = conv.output
    for n, k, p, q in itertools.product(range(2), range(2), range(rows), range(columns)):
        total = 0.0
        for c, r, s in itertools.product(range(2), range(3), range(2)):
            i, j = 2 * p + 2 * r, q + 2 * s - 1
            if 0 <= i < 6 and 0 <= j < 7:
                total += x[n, k * 2 + c, i, j] * w[k, c, r, s]
        assert y[n, k, p, q] == total


@pytest.mark.parametrize(
    ("fields", "sees"),
    [
        ({"seq": 4}, lambda i, j: True),
        ({"seq": 4, "causal": "1"}, lambda i, j: j <= i),
        ({"seq_q": 3, "seq_k": 5, "causal": "1"}, lambda i, j: j <= i + 2),
        ({"seq": 6, "causal": "1", "window": 2}, lambda i, j: i - 1 <= j <= i),
        ({"seq": 6, "window": 2}, lambda i, j: i - 1 <= j <= i + 1),
        ({"seq_q": 5, "seq_k": 3, "causal": "1"}, lambda i, j: j <= i - 2),
    ],
)
def test_attention_equals_plain_loops(fields, sees) -> None:  # type: ignore[no-untyped-def]
    op = Attention(batch=2, heads=4, kv_heads=2, head_dim=3, dtype="fp64", **fields)
    q, k, v = op.inputs(seed=1)
    o = op.reference(q, k, v)
    visible = [[j for j in range(op.keys) if sees(i, j)] for i in range(op.queries)]
    assert op.pairs == sum(map(len, visible))
    assert op.flops == 4 * 2 * 4 * 3 * op.pairs
    for b, h, i in itertools.product(range(2), range(4), range(op.queries)):
        weights = {j: math.exp(q[b, i, h] @ k[b, j, h // 2] / math.sqrt(3)) for j in visible[i]}
        expected = sum((x * v[b, j, h // 2] for j, x in weights.items()), np.zeros(3)) / (sum(weights.values()) or 1)
        assert o[b, i, h] == pytest.approx(expected)


def test_bytes_count_each_operand_once() -> None:
    def size(text: str) -> int:
        return parse(text).with_defaults("bf16").operand_bytes

    assert size("softmax rows=3 cols=5") == 2 * 2 * 15
    assert size("softmax rows=3 cols=5 out=fp32") == (2 + 4) * 15
    assert size("layernorm rows=3 cols=5 stats=1") == 2 * (2 * 15 + 2 * 5) + 2 * 4 * 3
    assert size("add n=7") == 3 * 2 * 7
    assert size("fill n=7") == 2 * 7
    assert size("dropout n=8") == (2 + 2 + 1) * 8
    assert size("sum n=7") == 2 * 8
    assert size("attention batch=1 heads=4 kv_heads=1 seq=8 head_dim=16") == 2 * 16 * 8 * (4 + 1 + 1 + 4)
    assert Matvec(rows=3, cols=5, dtype="int8").operand_bytes == 15 + 5 + 4 * 3


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), st.booleans(), st.integers(0, 50))
def test_visible_pairs_are_within_bounds(q: int, ahead: int, k: int, causal: bool, window: int) -> None:
    op: Operator = Attention(
        batch=1, heads=1, head_dim=1, seq_q=q, seq_k=k, causal=str(int(causal)), window=window, dtype="fp32"
    )
    assert isinstance(op, Attention)
    assert 0 <= op.pairs <= q * k


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sofmax rows=1 cols=1", "did you mean softmax"),
        ("softmax rows=0 cols=1", "rows=0: must be an integer from 1"),
        ("softmax rows=1 cols=1 dim=0", "unknown key 'dim'"),
        ("softmax rows=1", "cols missing"),
        ("layernorm rows=1 cols=1 stats=2", "must be one of 0, 1"),
        ("exp n=0", "n=0"),
        ("pointwise n=4 chain=cso", "did you mean cos"),
        ("pointwise n=4 chain=cos+", "unknown function ''"),
        ("add n=8 shape=2x4", "shape and layout go together"),
        ("add n=9 shape=2x4 layout=ab+ba", "has 8 elements, n=9"),
        ("add n=8 shape=8 layout=ab+ba", "two to four dimensions"),
        ("add n=8 shape=2x4 layout=ba", "the dimensions of 2 operands"),
        ("add n=8 shape=2x4 layout=ab+a", "b among them"),
        ("add n=8 shape=2x4 layout=ab+ab", "leave shape and layout out"),
        ("add n=16 shape=2x4x2 layout=cab+cab", "nearest: shape=8x2 layout=ba+ba"),
        ("bias n=8 cols=4 shape=2x4 layout=ba+b", "add does, layout=abc+c"),
        ("pointwise n=4 chain=cos+fill", "nearest: chain=fill"),
        ("pointwise n=4 chain=dropout repeat=2", "one dropout a chain"),
        ("bias n=10 cols=4", "2 are left over"),
        ("bias n=10", "it is not set"),
        ("exp n=10 cols=5", "only bias takes cols"),
        ("sum", "n is missing"),
        ("sum n=4 axis=1", "n goes without"),
        ("sum rows=4 cols=4 axis=2", "axis=2: must be 0"),
        ("conv2d n=1 c=3 h=8 w=8 k=4 r=3 s=3 groups=2", "c=3: must be a multiple of groups=2"),
        ("conv2d n=1 c=2 h=2 w=8 k=4 r=3 s=3", "h>=3"),
        ("conv2d n=1 c=2 h=8 w=8 k=4 r=3 s=3 p=7", "the other keys give p=6"),
        ("attention batch=1 heads=4 head_dim=64", "seq is missing"),
        ("attention batch=1 heads=4 head_dim=64 seq=8 kv_heads=3", "nearest below: 2"),
        ("attention batch=1 heads=4 head_dim=64 seq=8 causal=yes", "must be one of 0, 1"),
        ("allreduce bytes=64 devices=1", "at least 2"),
        ("kv_write batch=2 seq_q=3 seq_k=2 kv_heads=2 head_dim=4", "seq_k=2: must be at least seq_q=3"),
        ("kv_write batch=2 seqlens_k=3,4 seq_k=4 kv_heads=2 head_dim=4", "seqlens_k=3,4: seq_k says the same"),
        ("llama batch=2 seqlens=3,4", "needs a cache in pages; nearest: page=16"),
        ("allreduce bytes=63 devices=2 dtype=fp32", "nearest: 60"),
    ],
)
def test_wrong_text_is_one_clear_line(text: str, named: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
