"""Values that compiled kernels compute: fixtures against NumPy, and each instruction against the timing engine's."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch.dtypes import round_to
from arch.errors import InputError
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.cubin import CompiledKernel, read_compiled
from sim.gpu.sass.floats import fp8, of_fp8
from sim.gpu.sass.kernel import Pointer, SassKernel, TensorMap, Value, sass_program
from sim.gpu.sass.replay import KernelValues, Memory, WarpValues
from tests.gpu.test_sass import CLUSTER, FOLDER, MEANINGS, SET_UP, written

RANDOM = np.random.default_rng(0)
Arrays = dict[str, np.ndarray[Any, Any]]


def replayed(
    compiled: CompiledKernel,
    arrays: Arrays,
    *,
    values: tuple[Value, ...] = (),
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 32,
    shared: int = 0,
) -> tuple[Arrays, KernelValues]:
    """The arrays behind a launch, which both orders of its parts leave alike."""
    formats = {1: "fp8", 2: "fp16", 4: "fp32", 8: "fp64"}
    tensors = tuple(
        GlobalTensor(name, a.shape, formats[a.itemsize], tuple(step // a.itemsize for step in a.strides))
        for name, a in arrays.items()
    )
    given = values or tuple(Pointer(name) for name in arrays)
    program = sass_program(compiled, grid, (threads, 1, 1), given, tensors, shared, "test")
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    at = program.addresses()
    first = min(at.values())
    content = np.zeros(max(at[name] + a.nbytes for name, a in arrays.items()) - first, dtype=np.uint8)
    for name, a in arrays.items():
        content[at[name] - first :][: a.nbytes] = np.frombuffer(a.tobytes(), dtype=np.uint8)
    places = {name: (at[name], a.nbytes) for name, a in arrays.items()}
    late = content.copy()
    replay = KernelValues(kernel, kernel.bank(at), Memory(content, first, places), kernel.shared_range)
    replay.run()
    if not replay.violations:
        other = KernelValues(kernel, kernel.bank(at), Memory(late, first, places), kernel.shared_range, late=True)
        other.run()
        assert other.violations == []
        np.testing.assert_array_equal(late, content)
    after = {n: content[at[n] - first :][: a.nbytes].view(a.dtype).reshape(a.shape) for n, a in arrays.items()}
    return after, replay


def fixture(name: str) -> CompiledKernel:
    return read_compiled(str(FOLDER / f"{name}.sass"))


def random(*shape: int, dtype: type = np.float16) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("sm", ["sm80", "sm90"])
def test_add_and_softmax(sm: str) -> None:
    arrays = {"x": random(1024, dtype=np.float32), "y": random(1024, dtype=np.float32), "o": np.zeros(1024, np.float32)}
    values: tuple[Value, ...] = (Pointer("x"), Pointer("y"), Pointer("o"), 1008)
    after, _ = replayed(fixture(f"add.{sm}"), arrays, values=values, grid=(2, 1, 1), threads=128)
    np.testing.assert_array_equal(after["o"][:1008], (arrays["x"] + arrays["y"])[:1008])
    assert not after["o"][1008:].any()
    rows = random(3, 992, dtype=np.float32)
    arrays = {"o": np.zeros_like(rows), "r": rows}
    values = (Pointer("o"), Pointer("r"), 992, 992)
    after, replay = replayed(fixture(f"softmax.{sm}"), arrays, values=values, grid=(3, 1, 1), threads=128, shared=16)
    expected = np.exp(rows - rows.max(axis=1, keepdims=True))
    np.testing.assert_allclose(after["o"], expected / expected.sum(axis=1, keepdims=True), rtol=1e-5)
    assert replay.violations == []


def test_numbers_of_64_bits() -> None:
    code = written(
        "S2R R0, SR_LANEID; write=0", "MOV R10, c[0x0][0x160]; wait=1", "MOV R11, c[0x0][0x164]",
        "MOV R12, c[0x0][0x168]", "MOV R13, c[0x0][0x16c]", "IMAD.WIDE R10, R0, 0x8, R10",
        "IMAD.WIDE R12, R0, 0x8, R12", "LDG.E.64 R4, [R10.64]; write=1", "DADD R6, R4, -1.5; wait=2",
        "DFMA R6, R6, R4, 0.25", "DSETP.GT.AND P0, PT, |R6|, R4, PT", "@P0 DMUL R6, R6, -R4",
        "STG.E.64 [R12.64], R6",
    )  # fmt: skip
    x = random(32, dtype=np.float64)
    after, _ = replayed(code, {"x": x, "y": np.zeros_like(x)})
    sums = np.array([float(Fraction(v - 1.5) * Fraction(v) + Fraction(0.25)) for v in x])  # rounded once
    np.testing.assert_array_equal(after["y"], np.where(np.abs(sums) > x, -sums * x, sums))


@pytest.mark.parametrize(("sm", "shared"), [("sm80", 16384), ("sm90", 24576)])
def test_a_product_of_the_tensor_cores(sm: str, shared: int) -> None:
    a, b = random(80, 48), random(48, 64)
    values = (Pointer("a"), Pointer("b"), Pointer("c"), 80, 64, 48)
    arrays = {"a": a, "b": b, "c": np.zeros((80, 64), dtype=np.float16)}
    after, replay = replayed(fixture(f"matmul.{sm}"), arrays, values=values, grid=(2, 1, 1), threads=128, shared=shared)
    np.testing.assert_allclose(after["c"], a.astype(np.float32) @ b.astype(np.float32), atol=0.02)
    assert replay.violations == []


@pytest.mark.parametrize(("sm", "shared"), [("sm89", 6144), ("sm90", 12288)])
def test_a_product_of_numbers_of_8_bits(sm: str, shared: int) -> None:
    """E4M3 by E4M3, sums in fp32, results in E5M2: exactly what NumPy and the rounding of the formats say."""
    a, b = (fp8(random(rows, 128), "fp8") for rows in (64, 32))
    arrays = {"a": a, "b": b, "c": np.zeros((64, 32), dtype=np.uint8)}
    values: tuple[Value, ...] = (*(Pointer(name) for name in arrays), 128)
    after, replay = replayed(fixture(f"matmul_fp8.{sm}"), arrays, values=values, threads=128, shared=shared)
    wanted = of_fp8(a, "fp8").astype(np.float64) @ of_fp8(b, "fp8").astype(np.float64).T
    np.testing.assert_array_equal(of_fp8(after["c"], "fp8_e5m2"), round_to(wanted, "fp8_e5m2"))
    assert replay.violations == []


@pytest.mark.parametrize(("name", "largest", "smallest"), [("fp8", 448.0, 2.0**-9), ("fp8_e5m2", 57344.0, 2.0**-16)])
def test_numbers_of_8_bits_are_what_the_specification_says(name: str, largest: float, smallest: float) -> None:
    bits = np.arange(256, dtype=np.uint8)
    values = of_fp8(bits, name)
    numbers = np.isfinite(values)
    assert values[numbers].max() == largest
    assert values[values > 0].min() == smallest
    np.testing.assert_array_equal(fp8(values[numbers], name), bits[numbers])
    np.testing.assert_array_equal(
        fp8(np.array([1e6, -1e6, np.nan]), name)[:2], fp8(np.array([largest, -largest]), name)
    )
    assert np.isnan(of_fp8(fp8(np.array([np.nan]), name), name)[0])


def test_a_product_by_tensor_maps() -> None:
    shapes = {"a": (128, 192), "b": (64, 192), "c": (128, 64)}
    arrays = {name: random(*shape) for name, shape in shapes.items()}
    values: list[Value] = []
    for name, shape in shapes.items():
        values += [TensorMap(name, 2, shape[::-1], (2, 2 * shape[1]), (64, 64)), *shape, shape[1], 1]
    wanted = arrays["a"].astype(np.float32) @ arrays["b"].T.astype(np.float32)
    after, replay = replayed(
        fixture("matmul_tma.sm90"), arrays, values=(*values, 192), grid=(2, 1, 1), threads=128, shared=49176
    )
    np.testing.assert_allclose(after["c"], wanted, atol=0.03)
    assert replay.violations == []


def cluster_exchange(without: tuple[int, ...] = ()) -> tuple[Arrays, KernelValues]:
    """Two CTAs that exchange words through the shared memory of their cluster. without: rows that do nothing."""
    compiled = fixture("cluster_exchange.sm90")
    rows = [replace(one, opcode="NOP", operands=()) if i in without else one
            for i, one in enumerate(compiled.function.instructions)]  # fmt: skip
    changed = replace(compiled, function=replace(compiled.function, instructions=rows))
    words = {"out": np.zeros((128, 4), dtype=np.float32)}
    return replayed(changed, words, grid=(2, 1, 1), threads=64, shared=compiled.shared_bytes)


def rows_of(name: str, opcode: str) -> list[int]:
    """Rows of a fixture with an opcode."""
    return [i for i, one in enumerate(fixture(name).function.instructions) if one.opcode == opcode]


def test_words_that_the_ctas_of_a_cluster_exchange() -> None:
    after, replay = cluster_exchange()
    assert replay.violations == []
    found, thread = after["out"].view(np.int32), np.arange(64)
    own = np.stack([thread, 1000 + thread])
    np.testing.assert_array_equal(found[:, 0], own[::-1].reshape(-1))  # read from the other CTA
    np.testing.assert_array_equal(found[:, 1], own.reshape(-1))  # what the other has read, written back
    np.testing.assert_array_equal(found[:, 2], 3 * own[::-1].reshape(-1))  # sent by it


def test_copies_reductions_and_atomics_in_a_cluster() -> None:
    compiled = fixture("cluster_reductions.sm90")
    words = {"out": np.zeros((128, 8), dtype=np.float32), "sums": np.zeros(64, dtype=np.float32)}
    after, replay = replayed(compiled, words, grid=(2, 1, 1), threads=64, shared=compiled.shared_bytes)
    assert replay.violations == []
    found, thread = after["out"].view(np.int32), np.arange(64)
    own = np.stack([thread, 1000 + thread])
    others = own[::-1].reshape(-1)
    np.testing.assert_array_equal(found[:, 0], others)  # UBLKCP.S.S
    np.testing.assert_array_equal(found[:, 1], others + np.tile(thread, 2))  # UBLKRED.S.S
    assert list(found[::64, 2]) == [1063, 63]  # the maximum that lanes of the other CTA have made
    np.testing.assert_array_equal(found[63::64, 2].view(np.float32), [2016.0, 2016.0])  # their sum of 0 to 63, in fp32
    np.testing.assert_array_equal(found[:, 3], others)  # exchanged
    np.testing.assert_array_equal(found[:, 4], others)  # and what was there
    np.testing.assert_array_equal(after["sums"].view(np.int32), own.sum(axis=0))  # UBLKRED.G.S


@pytest.mark.parametrize(
    ("opcodes", "which", "said"),
    [
        (("UCGABAR_ARV", "UCGABAR_WAIT"), 0, "no mbarrier has been set up at 0x1400"),
        (("UCGABAR_WAIT",), 0, "no mbarrier has been set up at 0x1400"),
        (("UCGABAR_ARV",), 0, "deadlocks: "),
        (("ST.E",), 0, "reads shared memory that nothing has written"),
        (("STAS",), 0, "deadlocks: "),
        (("SYNCS.EXCH.64",), 0, "no mbarrier has been set up"),
    ],
)
def test_a_cluster_that_misses_a_step_is_found_out(opcodes: tuple[str, ...], which: int, said: str) -> None:
    rows = tuple(rows_of("cluster_exchange.sm90", opcode)[which] for opcode in opcodes)
    try:
        found = cluster_exchange(rows)[1].violations[0]
    except InputError as error:
        found = str(error)
    assert said in found


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("ISETP.EQ.AND P0, PT, R0, RZ, PT", "@P0 EXIT", "ST.E [R4], R6"),
         r"ST.E \[R4\], R6: CTA \(1, 0, 0\): shared address 0x400 is of a CTA of the cluster that has ended"),
        (("ST.E [R4+0x400], R6",), "shared address lies outside of the CTA's 0x400 to 0x800"),
        (("PRMT R4, R9, 0x654, R4", "ST.E [R4], R6"), r"shared address 0x2\w+ names no CTA of the cluster"),
        (("MOV R5, RZ", "LD.E R6, [R4]"), "lies in no array"),
        (("ISETP.EQ.AND P0, PT, R9, RZ, PT", "@P0 EXIT", "UCGABAR_WAIT"), "deadlocks: warp 0: .*line 10"),
        (("ISETP.EQ.AND P0, PT, R9, RZ, PT", "BSSY B0, `(.L_x_1)", "@P0 BRA `(.L_x_1)",
          "WARPSYNC.ALL", ".L_x_1", "BSYNC B0"), "lanes wait for lanes of their warp"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_cluster_is_told_with_its_line(lines: tuple[str, ...], said: str) -> None:
    compiled = replace(written(*CLUSTER, *lines), sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    with pytest.raises(InputError, match=said):
        replayed(compiled, {"a": np.zeros(256, dtype=np.float32)}, grid=(2, 1, 1), shared=1024)


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_box_that_is_multicast_reaches_all_ctas(clusters: int) -> None:
    steps, ctas = 5, 2 * clusters
    arrays = {"a": random(64 * ctas, 64 * steps), "b": random(64, 64 * steps), "out": np.zeros(32 * ctas, np.float32)}
    maps = tuple(TensorMap(name, 2, arrays[name].shape[::-1], (2, 128 * steps), (64, 64 if name == "a" else 32))
                 for name in "ab")  # fmt: skip
    compiled = fixture("cluster_tiles.sm90")
    after, replay = replayed(compiled, arrays, values=(*maps, Pointer("out"), steps), grid=(ctas, 1, 1), threads=64,
                             shared=compiled.shared_bytes)  # fmt: skip
    assert replay.violations == []
    a, b = (arrays[name].view(np.int32).reshape(-1, steps, 32) for name in "ab")
    with np.errstate(over="ignore"):
        wanted = (a[::64] * b[:1]).sum(axis=1, dtype=np.int32)
    np.testing.assert_array_equal(after["out"].view(np.int32), wanted.reshape(-1))


def test_a_multicast_that_leaves_a_cta_out_is_a_deadlock() -> None:
    compiled = fixture("cluster_tiles.sm90")
    rows = [replace(one, operands=one.operands[:2], opcode="UTMALDG.2D") if "MULTICAST" in one.opcode else one
            for one in compiled.function.instructions]  # fmt: skip
    changed = replace(compiled, function=replace(compiled.function, instructions=rows))
    arrays = {"a": random(128, 64), "b": random(64, 64), "out": np.zeros(64, np.float32)}
    maps = tuple(TensorMap(name, 2, arrays[name].shape[::-1], (2, 128), (64, 64 if name == "a" else 32))
                 for name in "ab")  # fmt: skip
    with pytest.raises(InputError, match=r"CTA \(0, 0, 0\) deadlocks: "):
        replayed(changed, arrays, values=(*maps, Pointer("out"), 1), grid=(2, 1, 1), threads=64,
                 shared=compiled.shared_bytes)  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), MEANINGS, ids=[lines[-1] for lines, _ in MEANINGS])
def test_each_instruction_has_the_value_that_the_engine_computes(lines: tuple[str, ...], expected: Any) -> None:
    """The same table as of the engine: two implementations of one meaning."""
    run, held = written(
        "S2R R0, SR_LANEID", "IADD3 R1, -R0, RZ, RZ", "MOV R4, RZ", "MOV R5, RZ", *lines,
    ), list[WarpValues]()  # fmt: skip

    class Kept(KernelValues):
        def _execute(self, warp: WarpValues) -> Any:
            held.append(warp)
            return super()._execute(warp)

    program = sass_program(run, (1, 1, 1), (32, 1, 1), (Pointer("a"),), (GlobalTensor("a", (8,), "fp32", (1,)),), 0, "")
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    memory = Memory(np.zeros(32, dtype=np.uint8), 1 << 21, {"a": (1 << 21, 32)})
    Kept(kernel, kernel.bank(program.addresses()), memory, (0, 0)).run()
    wide = any(line.startswith(("IMAD.WIDE", "CS2R")) for line in lines)
    wanted = np.asarray(expected(np.arange(32, dtype=np.int64))).astype(np.int64)
    found = held[0].registers[4].astype(np.int64) | (held[0].registers[5].astype(np.int64) << 32 if wide else 0)
    np.testing.assert_array_equal(found, wanted if wide else wanted & 0xFFFFFFFF)


def one(*lines: str, shared: int = 64) -> KernelValues:
    return replayed(written(*lines), {"a": np.zeros(256, dtype=np.float32)}, shared=shared)[1]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_go_to_shared_memory_and_come_back(count: int) -> None:
    width = f".{count}" if count > 1 else ""
    replay = one(
        "S2R R0, SR_LANEID", "SHF.L.U32 R1, R0, 0x4, RZ", *(f"IADD3 R{4 + k}, R0, {hex(k)}, RZ" for k in range(count)),
        f"STSM.16.M88{width} [R1], R4", f"LDSM.16.M88{width} R8, [R1]",
        *(line for k in range(count) for line in (f"ISETP.EQ.AND P0, PT, R{4 + k}, R{8 + k}, PT", "@P0 LDS R3, [0x0]",
                                                  "@!P0 LDS R3, [0x200]")), shared=512,
    )  # fmt: skip
    assert replay.violations == []


def test_a_scaled_address_is_where_it_says() -> None:
    replay = one(
        "S2R R0, SR_LANEID", "IADD3 R1, R0, 0x9, RZ", "STS [R0.X4+0x8], R1", "SHF.L.U32 R2, R0, 0x2, RZ",
        "LDS R3, [R2+0x8]", "ISETP.NE.AND P0, PT, R1, R3, PT", "@P0 LDS R3, [0x200]", shared=0x200,
    )  # fmt: skip
    assert replay.violations == []


def test_what_is_wrong_is_told_with_its_line() -> None:
    assert (
        "line 1): LDS R4, [RZ]: CTA (0, 0, 0): reads shared memory that nothing has written"
        in (one("LDS R4, [RZ]").violations[0])
    )
    assert one("STS [RZ], R4", "LDS R4, [RZ]").violations == []
    with pytest.raises(InputError, match=r"line 1\): LDS R4, \[0x40\].*lies outside of the CTA's 0x0 to 0x40"):
        one("LDS R4, [0x40]")
    with pytest.raises(InputError, match=r"line 1\): STG.E \[R2.64\], R4.*lies in no array; is the grid right\?"):
        one("STG.E [R2.64], R4")
    with pytest.raises(InputError, match=r"line 1\): MUFU.EX2.F64 R4, R4: its values are not computed"):
        one("MUFU.EX2.F64 R4, R4")
    with pytest.raises(InputError, match=r"deadlocks: warp 0: /\*0040\*/ \(own.py, line 5\)"):
        one(*SET_UP, "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], RZ")


def test_a_check_compares_with_a_function_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sim.app.cli import main

    file = tmp_path / "reference.py"
    file.write_text(
        "def right(a):\n    return {'out': a['x'] + a['y']}\n\ndef wrong(a):\n    return {'out': a['x'] - a['y']}\n",
        encoding="utf-8",
    )
    arrays = [word for name in ("x", "y", "out") for word in ("--param", f"{name}=fp32[1024]")]
    words = ["run", "--cubin", str(FOLDER / "add.sm80.sass"), "--block", "128", "--arch", "a100-sxm4-80gb", "--grid",
             "2", *arrays, "--param", "n=1024", "--check"]  # fmt: skip
    assert main([*words, "--reference", f"{file}:right"]) == 0
    assert "passed, largest relative error 0.00e+00" in capsys.readouterr().out
    assert main([*words, "--reference", f"{file}:wrong"]) == 1
    assert "out: relative error" in capsys.readouterr().out
    assert main(words) == 0
    assert "the kernel has no reference" in capsys.readouterr().out
