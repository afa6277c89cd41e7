"""Number formats against bit-level conversions, the GEMM against plain loops, and operators as text."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.dtypes import FORMATS, format_of, is_integer, round_to, wrapped_to
from arch.errors import InputError
from sim.app.run import simulate_row
from workloads.ops import DATA_KINDS, FUNCTIONS, Conv2d, Gemm, operator_class, operator_words
from workloads.ops.dtypes import default_accumulator, default_output
from workloads.parse import parse
from workloads.silicon import SILICON_CSV, environment_of, operator_of, packaged_rows, read_rows

finite_fp32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def truncated_fp32(values: np.ndarray, dropped_bits: int) -> np.ndarray:
    """Round-to-nearest-even of fp32 bit patterns that lose their last bits: integer arithmetic only."""
    bits: np.ndarray = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.int64)
    odd = (bits >> dropped_bits) & 1
    bits = (bits + (1 << (dropped_bits - 1)) - 1 + odd) >> dropped_bits << dropped_bits
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


@given(st.lists(finite_fp32, min_size=1))
def test_rounding_agrees_with_bit_patterns(values: list[float]) -> None:
    x = np.array(values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_to(x, "fp16"), x.astype(np.float16).astype(np.float64))
        np.testing.assert_array_equal(round_to(x, "bf16"), truncated_fp32(x, 16))
        np.testing.assert_array_equal(round_to(x, "tf32"), truncated_fp32(x, 13))


@pytest.mark.parametrize(("name", "exponent_bits", "mantissa_bits"), [("fp8", 4, 3), ("fp8_e5m2", 5, 2)])
def test_fp8_takes_the_nearest_of_all_its_values(name: str, exponent_bits: int, mantissa_bits: int) -> None:
    bias = 2 ** (exponent_bits - 1) - 1
    values = [m * 2.0 ** (1 - bias - mantissa_bits) for m in range(2**mantissa_bits)]  # zero and subnormals
    for e, m in itertools.product(range(1, 2**exponent_bits), range(2**mantissa_bits)):
        values.append((1 + m / 2**mantissa_bits) * 2.0 ** (e - bias))
    values = [v for v in values if v <= FORMATS[name].largest]
    np.testing.assert_array_equal(round_to(np.array(values), name), values)
    for (i, low), high in zip(enumerate(values[:-1]), values[1:], strict=True):
        middle = (low + high) / 2
        assert round_to(np.array(np.nextafter(middle, 0)), name) == low
        assert round_to(np.array(np.nextafter(middle, np.inf)), name) == high
        assert round_to(np.array(middle), name) == (low if i % 2 == 0 else high), "a tie goes to the even mantissa"
    np.testing.assert_array_equal(round_to(np.array([1e9, -1e9]), name), [values[-1], -values[-1]])


def test_integers_round_to_even_and_saturate() -> None:
    np.testing.assert_array_equal(round_to(np.array([0.5, 1.5, -2.5, 300.0, -300.0]), "int8"), [0, 2, -2, 127, -128])


def test_integers_without_a_sign_and_of_64_bits() -> None:
    values = np.array([-3.0, 1.5, 300.0, 1e30, np.nan])
    np.testing.assert_array_equal(round_to(values, "uint8"), [0, 2, 255, 255, np.nan])
    np.testing.assert_array_equal(round_to(values, "uint64"), [0, 2, 300, 2.0**64, np.nan])
    np.testing.assert_array_equal(round_to(values, "int64"), [-3, 2, 300, 2.0**63, np.nan])
    np.testing.assert_array_equal(round_to(values, "bool"), [1, 1, 1, 1, np.nan])
    assert [FORMATS[f"{sign}int{bits}"].bytes * 8 for sign in ("u", "") for bits in (8, 16, 32, 64)] == [
        8,
        16,
        32,
        64,
    ] * 2


@pytest.mark.parametrize("name", [name for name in FORMATS if is_integer(name) and name != "bool"])
def test_arithmetic_wraps_as_numpy_does(name: str) -> None:
    exact = np.array([0, 5, -5, 127, 128, 255, 256, -129, 40000, -70000, 2**31, 2**32 + 7, -(2**33) - 1, 2**52])
    np.testing.assert_array_equal(wrapped_to(exact, name), exact.astype(name).astype(np.float64))


def test_an_unknown_format_is_told_the_nearest_of_its_bits() -> None:
    with pytest.raises(InputError, match=r"dtype=unit8: unknown number format, one of fp64.*did you mean uint8"):
        format_of("unit8")
    with pytest.raises(InputError, match=r"x=fp4: unknown number format, one of [^?]*$"):
        format_of("fp4", "x")


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_twice_changes_nothing(name: str) -> None:
    values = np.random.default_rng(1).standard_normal(500) * np.logspace(-12, 12, 500)
    once = round_to(values, name)
    np.testing.assert_array_equal(round_to(once, name), once)


def test_nan_and_infinity_pass_through_floats() -> None:
    out = round_to(np.array([np.nan, np.inf, -np.inf]), "bf16")
    assert np.isnan(out[0])
    assert out[1] == np.inf
    assert out[2] == -np.inf


@pytest.mark.parametrize("ta", ["N", "T"])
@pytest.mark.parametrize("tb", ["N", "T"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8", "int8"])
def test_gemm_reference_equals_plain_loops(ta: str, tb: str, dtype: str) -> None:
    gemm = Gemm(m=3, n=4, k=5, batch=2, ta=ta, tb=tb, dtype=dtype)
    a, b = gemm.inputs(seed=3, data="integers")
    assert a.shape == gemm.a_shape
    assert b.shape == gemm.b_shape
    expected = np.zeros(gemm.c_shape)
    for i, m, n, k in itertools.product(range(2), range(3), range(4), range(5)):
        expected[i, m, n] += (a[i, m, k] if ta == "N" else a[i, k, m]) * (b[i, k, n] if tb == "N" else b[i, n, k])
    np.testing.assert_array_equal(gemm.reference(a, b), expected)


def test_int32_sums_wrap_as_registers_do() -> None:
    k = 2**31 // 127**2 + 1
    gemm = Gemm(m=1, n=1, k=k, dtype="int8")
    ones = np.full((1, 1, k), 127)
    assert gemm.reference(ones, ones.reshape(1, k, 1)).item() == k * 127**2 - 2**32


def test_column_major_keys_describe_the_same_numbers() -> None:
    given = Gemm(m=3, n=4, k=5, ta="T", tb="N", dtype="fp32")
    rng = np.random.default_rng(0)
    stored_a, stored_b = rng.standard_normal((5, 3)), rng.standard_normal((5, 4))  # column-major k x m and k x n
    row_major = given.read_as_column_major()
    # A column-major matrix read row by row is its transpose; operands change places.
    result = row_major.reference(stored_b.T, stored_a.T)
    np.testing.assert_allclose(result.T, stored_a.T @ stored_b, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp8"])
def test_tolerance_admits_rounding_and_refuses_a_wrong_element(dtype: str) -> None:
    gemm = Gemm(m=16, n=16, k=64, dtype=dtype, out="fp32")
    a, b = gemm.inputs(seed=5)
    in_order = np.zeros((1, 16, 16), dtype=np.float32)
    for k in range(64):
        in_order += (a[:, :, k, None] * b[:, None, k, :]).astype(np.float32)
    assert gemm.relative_error(in_order, a, b) <= gemm.tolerance
    wrong = in_order.copy()
    wrong[0, 3, 3] -= a[0, 3, 7] * b[0, 7, 3]
    assert gemm.relative_error(wrong, a, b) > gemm.tolerance
    wrong[0, 3, 3] = np.nan
    assert gemm.relative_error(wrong, a, b) == np.inf


@pytest.mark.parametrize("data", DATA_KINDS)
@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_inputs_repeat_and_are_exact_in_their_format(data: str, dtype: str) -> None:
    gemm = Gemm(m=8, n=8, k=8, dtype=dtype)
    for first, second in zip(gemm.inputs(1, data), gemm.inputs(1, data), strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, round_to(first, dtype))
    if data != "zeros":
        assert (gemm.inputs(1, data)[0] != gemm.inputs(2, data)[0]).any()


def test_work_and_bytes() -> None:
    gemm = Gemm(m=10, n=20, k=30, batch=2, dtype="int8")
    assert gemm.macs == 12000
    assert gemm.flops == 24000
    assert gemm.operand_bytes == 2 * (10 * 30 + 30 * 20 + 4 * 10 * 20)


def test_defaults_follow_the_contract() -> None:
    outputs = {name: default_output(name) for name in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")}
    expected = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "bf16", "int8": "int32"}
    assert outputs == expected
    assert [default_accumulator(name) for name in ("fp16", "int8", "fp64")] == ["fp32", "int32", "fp64"]
    full = Gemm(m=1, n=1, k=1).with_defaults("bf16")
    assert (full.dtype, full.out, full.acc) == ("bf16", "bf16", "fp32")
    assert Gemm(m=1, n=1, k=1, dtype="int8").with_defaults("bf16").dtype == "int8"


extents = st.integers(1, 2**31 - 1)


@given(
    st.builds(
        Gemm,
        m=extents,
        n=extents,
        k=extents,
        batch=extents,
        ta=st.sampled_from("NT"),
        tb=st.sampled_from("NT"),
        dtype=st.sampled_from([None, "bf16", "fp32"]),
        out=st.sampled_from([None, "fp32"]),
    )
)
def test_text_and_operator_are_inverse(gemm: Gemm) -> None:
    assert parse(str(gemm)) == gemm


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no operator"),
        ("gem m=1 n=1 k=1", "did you mean gemm"),
        ("gemm mm=3", "did you mean m?"),
        ("gemm m=3 n=4", "k missing"),
        ("gemm m=3.5 n=1 k=1", "m=3.5: must be a whole number"),
        ("gemm m=0 n=1 k=1", "m=0: must be an integer from 1"),
        ("gemm m=4294967296 n=1 k=1", "from 1 to 2147483647"),
        ("gemm m=1 n=1 k=1 dtype=bf61", "did you mean bf16"),
        ("gemm m=1 n=1 k=1 ta=X", "ta=X: must be one of N, T"),
        ("gemm m=1 n=1 k=1 dtype=int8 acc=fp32", "summed in int32"),
        ("gemm m=1 n=1 k=1 dtype=fp16 out=int8", "such as fp16"),
        ("gemm m= n=1 k=1", "'m=' has no value"),
        ("gemm m=1 m=2 n=1 k=1", "given twice"),
        ("bert_layr", "did you mean bert_layer?"),
    ],
)
def test_wrong_text_is_one_clear_line(text: str, named: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_the_documentation_lists_every_key_with_its_meaning() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    listed = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    for word in operator_words():
        rows = {
            key: (default, meaning) for op, key, default, meaning in (r for r in listed if len(r) == 4) if op == word
        }
        keys = dataclasses.fields(operator_class(word))
        assert list(rows) == [f.name for f in keys]
        for f in keys:
            default, meaning = rows[f.name]
            assert f.metadata["help"].partition("; default:")[0] == meaning
            assert (default == "needed") == (f.default is dataclasses.MISSING)
            if f.default is None:
                assert f.metadata["help"].endswith("default: " + default)
            elif f.default is not dataclasses.MISSING:
                assert default == str(f.default)
    assert all(f"`{name}`" in page for name in FUNCTIONS)


def test_open_dtype_is_named_where_bytes_need_it() -> None:
    with pytest.raises(InputError, match="dtype is not set"):
        _ = Gemm(m=1, n=1, k=1).operand_bytes
    with pytest.raises(InputError, match="did you mean uniform"):
        Gemm(m=1, n=1, k=1, dtype="fp16").inputs(data="unifrom")


def test_every_reference_row_is_an_operator() -> None:
    for row in packaged_rows():
        if (row.op, row.dtype) == ("attention", "mxfp8"):
            continue  # a format that attention does not have yet: said where the row is asked for
        operator = operator_of(row)
        assert str(operator).split()[0] == environment_of(row.source).functions.get(row.op, row.op)
        shape = {key: int(value) for key, value in (w.split("=") for w in row.shape.split()) if value.isdigit()}
        if row.op == "gemm":
            assert operator.macs == shape.get("batch", 1) * shape["m"] * shape["n"] * shape["k"]
        elif row.op == "conv2d":
            assert isinstance(operator, Conv2d)
            rows, columns = shape.get("p", operator.output[0]), shape.get("q", operator.output[1])
            results = shape["n"] * shape["k"] * rows * columns
            macs = results * shape["c"] * shape["r"] * shape["s"]
            step = environment_of(row.source).pad_channels.get(f"conv2d {row.dtype}", 1)
            assert operator.macs == macs or (operator.macs > macs and operator.c % step == operator.k % step == 0)
            assert (operator.c, operator.k) < (shape["c"] + step, shape["k"] + step)
        else:
            assert operator.with_defaults("bf16").operand_bytes > 0


def test_environments_hold_for_sources_that_exist_and_name_no_shape() -> None:
    sources = {row.source for row in packaged_rows()}
    assert environment_of("xla_matmul_table").clock == "isolated"
    assert all(environment_of(source) != environment_of("default") for source in sources)
    assert environment_of("a source of somebody's own") == environment_of("default")


def test_column_major_source_swaps_its_operands() -> None:
    row = next(r for r in read_rows() if r.source == "deepbench" and r.op == "gemm" and "ta=T tb=N" in r.shape)
    shape = dict(word.split("=") for word in row.shape.split())
    gemm = operator_of(row)
    assert isinstance(gemm, Gemm)
    assert (gemm.m, gemm.n, gemm.ta, gemm.tb) == (int(shape["n"]), int(shape["m"]), "N", "T")


def test_a_call_that_fixes_the_layout_gives_it_to_its_rows() -> None:
    for row in read_rows():
        if row.source == "mamf":
            gemm = operator_of(row)
            assert isinstance(gemm, Gemm)
            assert gemm.ta + gemm.tb == {"bf16": "NN", "fp8": "NT"}[row.dtype]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("time_us", "time_ms", "time_ms looks like it"),
        (",kernel,0,", ",kernle,0,", "scope=kernle"),
        (",72,", ",fast,", "time_us=fast"),
        (",72,", ",0,", "more than 0"),
    ],
)
def test_bad_reference_file_names_the_place(tmp_path, old: str, new: str, named: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    head = "".join(SILICON_CSV.read_text().splitlines(keepends=True)[:2])
    path.write_text(head.replace(old, new, 1))
    with pytest.raises(InputError, match=named) as error:
        read_rows(path)
    assert str(path) in str(error.value)


def test_rows_are_frozen_values() -> None:
    row = read_rows()[0]
    assert dataclasses.replace(row) == row


def test_products_in_graphs_have_weights_that_nothing_was_written_to() -> None:
    rows = [row for row in packaged_rows() if row.source == "aiconfigurator_vllm"]
    found = {(row.machine, environment_of(row.source).data_of(row)) for row in rows}
    assert found == {("a100-sxm4-80gb", "half_zeros"), ("h100-sxm", "normal"), ("b200", "normal")}


def test_deepbench_multiplies_zeros_except_in_fp32_and_adds_to_c() -> None:
    environment = environment_of("deepbench")
    found = {(row.dtype, environment.data_of(row)) for row in read_rows() if row.source == "deepbench"}
    assert found == {("fp16", "zeros"), ("int8", "zeros"), ("fp32", "uniform")}
    row = next(r for r in read_rows() if r.source == "deepbench" and r.op == "gemm" and r.dtype == "fp16")
    gemm = operator_of(row)
    assert isinstance(gemm, Gemm)
    assert (gemm.beta, gemm.acc) == ("1", "fp16")


def test_deepbenchs_library_launches_tiles_of_vector_pipes_in_linear_order() -> None:
    assert environment_of("deepbench").raster == {"simt": "linear"}
    assert not environment_of("default").raster
    row = next(r for r in read_rows() if (r.source, r.machine, r.dtype) == ("deepbench", "t4", "fp32"))
    assert "group 1" in simulate_row(dataclasses.replace(row, shape="m=512 n=256 k=64 ta=N tb=N")).schedule
    assert "group" not in simulate_row(dataclasses.replace(row, shape="m=512 n=256 k=64", source="x")).schedule
