"""Compiled kernels: reading SASS, executing it for the lanes of a warp, its time. No compiler is needed."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.engine.api import Device, Launch
from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.cubin import CompiledKernel, read_compiled
from sim.gpu.sass.kernel import Pointer, SassKernel, TensorMap, Value, sass_program
from sim.gpu.sass.lower import lower
from sim.gpu.sass.opcodes import opcodes
from sim.gpu.sass.text import read_functions
from sim.gpu.units.events import Reason

FOLDER = Path(__file__).parent / "sass"


@cache
def machine(name: str = "a100-sxm4-80gb") -> GpuSpec:
    spec = load_arch(name)
    assert isinstance(spec, GpuSpec)
    return spec


def written(*lines: str) -> CompiledKernel:
    """A kernel of instructions such as `IADD3 R0, R0, 0x1, RZ ; stall=4 write=0 wait=1`, EXIT last."""
    rows = [" .section .text.own,"]
    count = 0
    for line in (*lines, "EXIT"):
        if line.startswith("."):
            rows.append(f"{line}:")
            continue
        text, _, control = line.partition(";")
        given = {"stall": 1, "write": 7, "read": 7, "wait": 0, "yields": 0}
        given |= {key: int(value) for key, value in (pair.split("=") for pair in control.split())}
        word = (
            given["stall"] << 41 | (1 - given["yields"]) << 45 | given["write"] << 46 | given["read"] << 49
            | given["wait"] << 52
        )  # fmt: skip
        rows.append(f' //## File "own.py", line {count + 1}')
        rows += [f" /*{16 * count:04x}*/ {text.strip()} ; /* 0x{0:016x} */", f" /* 0x{word:016x} */"]
        count += 1
    (function,) = read_functions("\n".join(rows)).values()
    return CompiledKernel("own", 80, 16, 0, 0x160, ((0, 8), (8, 8), (16, 4)), function)


def launch(
    compiled: CompiledKernel,
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 32,
    values: tuple[Value, ...] = (),
    sizes: tuple[int, ...] = (4096,),
    shared: int = 0,
    spec: GpuSpec | None = None,
) -> Launch:
    """Runs a kernel on arrays of fp32, named a, b, c, to its end."""
    arrays = tuple(GlobalTensor("abc"[i], (n,), "fp32", (1,)) for i, n in enumerate(sizes))
    given = values or tuple(Pointer(array.name) for array in arrays)
    program = sass_program(compiled, grid, (threads, 1, 1), given, arrays, shared, "test")
    made = Device(spec or machine(), cold_launch=False).build(program.kernels[0], program.addresses())
    made.run()
    return made


def held(run: Launch, register: int) -> np.ndarray:
    """What a register holds in the lanes of the first warp."""
    kernel, spec = run.kernel, machine()
    assert isinstance(kernel, SassKernel)
    bank = kernel.bank(dict.fromkeys("abc", 0))
    kept = lower(kernel.compiled.function, bank, spec, data=bool(kernel.contents)).registers
    return np.asarray(run.program.registers[0, kept.index(register)])


LANE = np.arange(32, dtype=np.int64)
#: Instructions behind `R0 = lane`, `R1 = -lane`, and what R4 (and R5) hold then.
MEANINGS: tuple[tuple[tuple[str, ...], Callable[[np.ndarray], Any]], ...] = (
    (("IADD3 R4, R0, -0x5, 0x7",), lambda x: x + 2),
    (("IADD3 R4, P0, R0, -0x10, RZ", "IADD3.X R4, RZ, RZ, RZ, P0, !PT"), lambda x: (x >= 16).astype(int)),
    (("IADD3 R4, P0, R0, R1, RZ", "IADD3.X R4, R0, ~R0, RZ, P0, !PT"), lambda x: -1 + (x > 0)),
    (("IMAD R4, R0, 0x7, -R0",), lambda x: 6 * x),
    (("IMAD.WIDE R4, R1, 0x10000000, RZ",), lambda x: -x * 0x10000000),
    (("IMAD.WIDE.U32 R4, R1, 0x3, RZ",), lambda x: (-x & 0xFFFFFFFF) * 3),
    (("IMAD.HI.U32 R4, R1, 0x3, RZ",), lambda x: (-x & 0xFFFFFFFF) * 3 >> 32),
    (("IMAD.HI R4, R1, 0x3, RZ",), lambda x: -x * 3 >> 32),
    (("LEA R4, R0, 0x3, 0x2",), lambda x: 4 * x + 3),
    (("LEA.HI R4, R1, R0, RZ, 0x1",), lambda x: x + (x > 0)),
    (("LEA.HI.SX32 R4, R1, RZ, 0x1e",), lambda x: -x >> 2),
    (("LOP3.LUT R4, R0, 0x6, RZ, 0xc0, !PT",), lambda x: x & 6),
    (("LOP3.LUT R4, R0, 0x6, R1, 0x78, !PT",), lambda x: x ^ (6 & -x)),
    (("LOP3.LUT P0, RZ, R0, 0x6, RZ, 0xc0, !PT", "SEL R4, RZ, 0x1, !P0"), lambda x: x & 6 != 0),
    (("SHF.L.U32 R4, R0, 0x3, RZ",), lambda x: 8 * x),
    (("SHF.R.S32.HI R4, RZ, 0x1f, R1",), lambda x: -x >> 31),
    (("SHF.R.U32.HI R4, RZ, 0x1c, R1",), lambda x: (-x & 0xFFFFFFFF) >> 28),
    (("SHF.L.U64.HI R4, R1, 0x4, RZ",), lambda x: (-x & 0xFFFFFFFF) << 4 >> 32),
    (("SGXT R4, R0, 0x4",), lambda x: (x & 15) - 16 * ((x & 8) > 0)),
    (("SGXT.U32 R4, R0, 0x4",), lambda x: x & 15),
    (("PRMT R4, R0, 0x4510, R1",), lambda x: x | (-x >> 8 & 255) << 16 | (-x & 255) << 24),
    (("IABS R4, R1",), lambda x: x),
    (("IMNMX R4, R1, -0x8, !PT",), lambda x: np.maximum(-x, -8)),
    (("IMNMX.U32 R4, R0, 0x8, PT",), lambda x: np.minimum(x, 8)),
    (("ISETP.GE.AND P0, PT, R1, -0x3, PT", "SEL R4, R0, 0x63, P0"), lambda x: np.where(-x >= -3, x, 99)),
    (("ISETP.GT.U32.AND P0, P1, R1, 0x3, PT", "SEL R4, R0, 0x63, P1"), lambda x: np.where(x > 0, 99, x)),
    (
        ("ISETP.LT.U32.AND P0, PT, R0, 0x8, PT", "ISETP.LT.AND.EX P0, PT, RZ, RZ, PT, P0", "SEL R4, RZ, 0x1, !P0"),
        lambda x: x < 8,
    ),
    (("ISETP.LT.AND P0, PT, R0, 0x8, PT", "@P0 MOV R4, 0x5"), lambda x: np.where(x < 8, 5, 0)),
    (
        ("ISETP.LT.AND P0, PT, R0, 0x8, PT", "ISETP.LT.OR P1, PT, R1, -0x14, P0", "SEL R4, RZ, 0x1, !P1"),
        lambda x: (x < 8) | (x > 20),
    ),
    (
        ("ISETP.LT.AND P2, PT, R0, 0x8, PT", "P2R R4, PR, RZ, 0x4", "R2P PR, R4, 0x4", "SEL R4, R4, 0x1, P2"),
        lambda x: np.where(x < 8, 4, 1),
    ),
    (
        ("ISETP.LT.AND P0, PT, R0, 0x8, PT", "PLOP3.LUT P1, PT, P0, PT, PT, 0x8, 0x0", "SEL R4, RZ, 0x1, !P1"),
        lambda x: x >= 8,
    ),
    (("ISETP.LT.AND P0, PT, R0, 0x8, PT", "VOTE.ANY R4, PT, P0"), lambda x: 0 * x + 255),
    (("SHFL.BFLY PT, R4, R0, 0x10, 0x1f",), lambda x: x ^ 16),
    (("SHFL.UP P0, R4, R0, 0x1, RZ", "SEL R4, R4, 0x63, P0"), lambda x: np.where(x == 0, 99, x - 1)),
    (("POPC R4, R0",), lambda x: np.array([int(v).bit_count() for v in x])),
    (("FLO.U32 R4, R0",), lambda x: np.array([int(v).bit_length() - 1 for v in x])),
    (("I2F.RP R4, R0", "F2I.FTZ.U32.TRUNC.NTZ R4, R4"), lambda x: x),
    (
        ("I2F R4, R0", "FADD R4, R4, 1", "MUFU.RCP R4, R4", "FMUL R4, R4, 64", "F2I.TRUNC.NTZ R4, R4"),
        lambda x: 64 // (x + 1),
    ),
    (("HFMA2.MMA R4, -RZ, RZ, 0, 2.384185791015625e-07",), lambda x: 0 * x + 4),
    (("CS2R R4, SRZ",), lambda x: 0 * x),
    (("UMOV UR4, 0x7", "ULEA UR4, UR4, 0x1, 0x2", "IMAD.U32 R4, RZ, RZ, UR4"), lambda x: 0 * x + 29),
    (("R2UR UR4, R1", "IMAD.U32 R4, RZ, RZ, UR4"), lambda x: 0 * x),
)


@pytest.mark.parametrize(("lines", "expected"), MEANINGS, ids=[lines[-1] for lines, _ in MEANINGS])
def test_lanes_compute_what_the_instruction_means(lines: tuple[str, ...], expected: Callable[..., Any]) -> None:
    run = launch(
        written(
            "S2R R0, SR_LANEID; write=0", "IADD3 R1, -R0, RZ, RZ; wait=1", "MOV R4, RZ", "MOV R5, RZ", *lines,
            # A branch depends on both words, so that they are computed.
            "LOP3.LUT P6, RZ, R4, R5, RZ, 0xfc, !PT", "@P6 BRA `(.L_x_end)", ".L_x_end",
        )
    )  # fmt: skip
    wanted = np.asarray(expected(LANE)).astype(np.int64)
    wide = any(line.startswith(("IMAD.WIDE", "CS2R")) for line in lines)
    found = held(run, 4).astype(np.int64) | (held(run, 5).astype(np.int64) << 32 if wide else 0)
    np.testing.assert_array_equal(found, wanted if wide else wanted & 0xFFFFFFFF)


def test_what_nothing_depends_on_takes_time_but_is_not_computed() -> None:
    run = launch(written("MOV R4, 0x7 ; stall=4", "FADD R4, R4, R4"))
    assert not run.program.registers.any()
    assert run.result.counters["instructions"] == 3


# ---- reading


def test_control_words_of_a_compiled_kernel() -> None:
    compiled = read_compiled(str(FOLDER / "add.sm80.sass"))
    by_text = {str(i): i for i in compiled.function.instructions}
    tid = by_text["S2R R0, SR_TID.X"]
    assert (tid.control.stall, tid.control.write, tid.control.read, tid.control.wait) == (1, 0, -1, 0)
    assert by_text["SHF.L.U32 R0, R0, 0x2, RZ"].control.wait == 1
    source = (FOLDER / tid.file).read_text(encoding="utf-8").splitlines()
    assert "tl.arange(0, BLOCK)" in source[tid.line - 1]
    assert compiled.registers == 18
    assert compiled.parameters[:4] == ((0, 8), (8, 8), (16, 8), (24, 4))


def test_an_unknown_opcode_names_itself_with_its_line() -> None:
    with pytest.raises(InputError, match=r"/\*0010\*/ \(own.py, line 2\): opcode FROB.X is not known"):
        launch(written("NOP", "FROB.X R0, R1"))


def test_addresses_that_come_from_memory_are_refused() -> None:
    with pytest.raises(InputError, match=r"line 3\): LDG.E R4.*depend on R4, which comes from memory"):
        launch(
            written("MOV R2, c[0x0][0x160]", "MOV R3, c[0x0][0x164]", "LDG.E R4, [R2.64] ; write=0",
                    "IMAD.WIDE R6, R4, 0x4, R2 ; wait=1", "STG.E [R6.64], R0")
        )  # fmt: skip


def test_each_entry_of_the_opcode_table_has_a_source_and_a_row_that_some_machine_has() -> None:
    machines = [machine(name) for name in ("a100-sxm4-80gb", "h100-sxm", "rtx-3090", "l4")]
    for name, entry in opcodes().items():
        assert entry.source, name
        op, _, rest = entry.row.partition(".")
        if rest:
            dtype, _, shape = rest.partition(".")
            assert any(spec.has_instruction(op, dtype, shape) for spec in machines), name


def test_code_of_another_generation_is_refused() -> None:
    with pytest.raises(InputError, match="compiled for sm_80; h100-sxm is sm_90"):
        launch(written("NOP"), spec=machine("h100-sxm"))


# ---- control flow


def test_lanes_diverge_and_meet_again() -> None:
    run = launch(
        written(
            "S2R R0, SR_LANEID; write=0", "ISETP.LT.AND P0, PT, R0, 0x8, PT; wait=1", "BSSY B0, `(.L_x_meet)",
            "@P0 BRA `(.L_x_few)", "IADD3 R4, R0, 0x64, RZ", "BRA `(.L_x_meet)", ".L_x_few", "IADD3 R4, R0, 0xc8, RZ",
            ".L_x_meet", "BSYNC B0", "LOP3.LUT P6, RZ, R4, RZ, RZ, 0xfc, !PT", "@P6 BRA `(.L_x_end)", ".L_x_end",
        )
    )  # fmt: skip
    assert held(run, 4).tolist() == [lane + (200 if lane < 8 else 100) for lane in range(32)]
    assert isinstance(run.kernel, SassKernel)
    issued = dict(zip(map(str, run.kernel.instructions()), run.program.issued[:, 0].tolist(), strict=True))
    assert issued["BSYNC B0"] == 2  # once a way
    assert issued["@P6 BRA `(.L_x_end)"] == 1  # together


def test_all_lanes_of_a_warp_meet() -> None:
    run = launch(
        written("S2R R0, SR_LANEID ; write=0", "ISETP.GE.AND P0, PT, R0, 0x8, PT ; wait=1", "@P0 BRA `(.L_x_other)",
                "MOV R4, 0x64", "BRA `(.L_x_meet)", ".L_x_other", "MOV R4, 0xc8", ".L_x_meet", "WARPSYNC.ALL",
                "IADD3 R4, R4, R0, RZ", "STS.U8 [R4], R0"), shared=1024,
    )  # fmt: skip
    assert run.program.issued[6:9, 0].tolist() == [2, 1, 1]


def test_a_call_of_a_label_is_a_branch_and_one_of_a_function_stops_the_run() -> None:
    run = launch(written("CALL.REL.NOINC `(.L_x_end)", "MOV R4, 0x7", ".L_x_end"))
    assert run.program.issued[:, 0].tolist() == [1, 0, 1]
    # What only a call reaches may depend on whatever it likes.
    division = ("FCHK P0, R4, R5", "@!P0 BRA `(.L_x_end)", "CALL.REL.NOINC `($division)", ".L_x_end")
    assert launch(written(*division)).result.counters["instructions"] == 3
    with pytest.raises(InputError, match=r"line 1\): CALL.REL.NOINC .* calls are not modelled"):
        launch(written("CALL.REL.NOINC `($division)"))


def test_local_memory_lies_lane_beside_lane() -> None:
    run = launch(written("MOV R1, c[0x0][0x28]", "STL.64 [R1+-0x8], R4; write=1", "LDL R6, [R1+-0x4]; write=0 wait=2"))
    assert run.result.memory["l2_write_sectors"] == 8
    assert run.result.counters["l1_read_sectors"] == 4


def test_a_loop_runs_as_often_as_its_lane_that_stays_longest() -> None:
    run = launch(
        written("S2R R0, SR_LANEID; write=0", "NOP; wait=1", ".L_x_top", "IADD3 R0, R0, -0x1, RZ",
                "ISETP.GE.AND P0, PT, R0, RZ, PT", "@P0 BRA `(.L_x_top)"),
    )  # fmt: skip
    assert run.program.issued[2, 0] == 32
    assert held(run, 0).astype(np.int32).tolist() == [-1] * 32


def test_a_barrier_that_a_warp_never_reaches_is_a_deadlock_that_names_it() -> None:
    with pytest.raises(DeadlockError, match=r"warp 0 waits at barrier 0, /\*0030\*/ \(own.py, line 4\)"):
        launch(
            written("S2R R0, SR_TID.X; write=0", "ISETP.GE.AND P0, PT, R0, 0x20, PT; wait=1", "@P0 EXIT",
                    "BAR.SYNC.DEFER_BLOCKING 0x0"),
            threads=64,
        )  # fmt: skip


@pytest.mark.parametrize("stall", [5, 8, 11])
def test_a_loop_whose_condition_nothing_changes_never_ends(stall: int) -> None:
    # The register counts modulo four: the warp leaves its state and comes back to it.
    step = ("IADD3 R0, R0, 0x1, RZ; stall=4", "LOP3.LUT R0, R0, 0x3, RZ, 0xc0, !PT; stall=4")
    with pytest.raises(
        DeadlockError, match=r"never ends: CTA \(0, 0, 0\), warp 0 is in a loop, /\*00[123]0\*/ \(own.py"
    ):
        launch(written("MOV R0, RZ", ".L_x_0", *step, f"BRA `(.L_x_0); stall={stall}"))


def test_a_long_loop_that_counts_ends() -> None:
    counts = ("IADD3 R1, R1, 0x1, RZ; stall=4", "ISETP.LT.AND P0, PT, R1, 0x4000, PT; stall=13")
    run = launch(written("MOV R1, RZ", ".L_x_0", *counts, "@P0 BRA `(.L_x_0); stall=5"))
    assert held(run, 1)[0] == 0x4000


def test_addresses_that_come_from_an_array_whose_content_is_given() -> None:
    compiled = read_compiled(str(FOLDER / "gather.sm80.sass"))
    arrays = (GlobalTensor("x", (8192,), "fp32", (1,)), GlobalTensor("index", (128,), "int32", (1,)),
              GlobalTensor("out", (128,), "fp32", (1,)))  # fmt: skip
    pointers = tuple(Pointer(array.name) for array in arrays)

    def sectors(index: np.ndarray | None) -> int:
        contents = None if index is None else {"index": index.astype(np.int32)}
        program = sass_program(compiled, (1, 1, 1), (128, 1, 1), pointers, arrays, 0, "test", contents=contents)
        made = Device(machine(), cold_launch=False).build(program.kernels[0], program.addresses())
        made.run()
        return int(made.result.counters["l1_read_sectors"])

    assert sectors(np.arange(128)) == 2 * 16
    assert sectors(8 * np.arange(128)) == 16 + 128
    with pytest.raises(InputError, match=r"line 46\): LDG.E .*0x\w+ lies 4 bytes before array x|is the grid right"):
        sectors(np.full(128, -1))
    with pytest.raises(InputError, match=r"comes from memory \(give its array as NAME=dtype\[shape\]:FILE.npy\)"):
        sectors(None)


# ---- the TMA


def tma_matmul(m: int, n: int, k: int, rows: int = 0) -> Launch:
    """A product in tiles of 64 x 64 x 64; rows: of a, where that has fewer than m."""
    made = tma_launch(m, n, k, rows)
    made.run()
    return made


def tma_launch(m: int, n: int, k: int, rows: int = 0) -> Launch:
    """The same, not yet run."""

    def tensor_map(name: str, extents: tuple[int, int]) -> TensorMap:
        return TensorMap(name, 2, extents[::-1], (2, 2 * extents[1]), (64, 64))

    shapes = {"a": (rows or m, k), "b": (n, k), "c": (m, n)}
    arrays = tuple(GlobalTensor(name, shape, "fp16", (shape[1], 1)) for name, shape in shapes.items())
    values: list[Value] = []
    for name, shape in shapes.items():
        values += [tensor_map(name, shape), *shape, shape[1], 1]
    compiled = read_compiled(str(FOLDER / "matmul_tma.sm90.sass"))
    program = sass_program(compiled, (m // 64, n // 64, 1), (128, 1, 1), (*values, k), arrays, 49176, "test")
    return Device(machine("h100-sxm"), cold_launch=False).build(program.kernels[0], program.addresses())


def test_a_product_by_tensor_maps_moves_whole_tiles_and_multiplies_all() -> None:
    run = tma_matmul(128, 192, 320)
    counters = run.result.counters
    assert counters["macs_tensor"] == 128 * 192 * 320
    assert counters["global_read_bytes"] == 2 * 320 * (128 * 3 + 192 * 2)
    assert counters["global_write_bytes"] == 2 * 128 * 192
    assert counters["tma_boxes"] == 6 * (2 * 5 + 1)
    assert run.result.warp_states["mbarrier"] > 0


def test_what_lies_outside_of_a_tensor_is_not_fetched() -> None:
    assert tma_matmul(128, 64, 64, rows=100).result.counters["global_read_bytes"] == 2 * 64 * (100 + 2 * 64)


def test_time_by_line_includes_waits_for_other_units() -> None:
    run = tma_matmul(64, 64, 640)
    by_line = run.program.spent.sum(axis=0)
    for reason in (Reason.MBARRIER, Reason.TMA_STORE, Reason.BARRIER):
        assert int(by_line[reason]) == run.result.warp_states[reason.name.lower()], reason


HOPPER = machine("h100-sxm")


def hopper(*lines: str) -> Launch:
    return launch(replace(written(*lines), sm=90, bank_bytes=0x210), shared=1024, spec=HOPPER)


SET_UP = ("UMOV UR4, 0x400", "UMOV UR6, 0x1ffffe", "UMOV UR7, 0x7ffff800", "SYNCS.EXCH.64 URZ, [UR4], UR6")


def test_an_mbarrier_lets_those_pass_who_wait_for_an_older_phase() -> None:
    arrive = "@P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ"
    wait = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R6"
    run = hopper(*SET_UP, "ELECT P0, URZ, PT", arrive, "MOV R6, RZ", wait, "SEL R4, RZ, 0x1, !P1",
                 "SYNCS.PHASECHK.TRANS64 P1, [UR4], R6", "@!P1 EXIT")  # fmt: skip
    assert run.result.counters["instructions"] == len(SET_UP) + 7 + 1
    with pytest.raises(DeadlockError, match=r"warp 0 waits for a phase of the mbarrier at 0x400, .*line 6\)"):
        hopper(*SET_UP, "MOV R6, RZ", wait)


def test_mbarriers_that_nobody_has_set_up_and_other_mistakes() -> None:
    with pytest.raises(InputError, match=r"line 2\).*no mbarrier has been set up at shared address 0x400"):
        hopper("UMOV UR4, 0x400", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ")
    with pytest.raises(InputError, match=r"line 1\).*what it does to an mbarrier is not known; known are EXCH.64"):
        hopper("SYNCS.ARRIVE.TRANS64.ARTR RZ, [UR4], RZ")
    with pytest.raises(InputError, match=r"line 5\).*no parameter at 0x\w+ is a tensor map; give it as"):
        hopper(*SET_UP, "UTMALDG.2D [UR4], [UR6]")
    with pytest.raises(InputError, match="only boxes, and their multicast, are modelled"):
        hopper("UTMALDG.2D.IM2COL [UR4], [UR6], UR8")
    with pytest.raises(InputError, match="a100-sxm4-80gb has no TMA"):
        launch(written("UTMALDG.2D [UR4], [UR6]"))


# ---- clusters


def cluster_tiles(steps: int, clusters: int = 1, spec: GpuSpec = HOPPER, without: str = "") -> Launch:
    """Runs clusters of two CTAs. Each loads a tile of its own and, by multicast, half of a shared one. without: an
    opcode that does nothing."""
    compiled = read_compiled(str(FOLDER / "cluster_tiles.sm90.sass"))
    ctas = 2 * clusters
    if without:
        rows = [replace(row, opcode="NOP", operands=()) if row.opcode == without else row
                for row in compiled.function.instructions]  # fmt: skip
        compiled = replace(compiled, function=replace(compiled.function, instructions=rows))
    shapes = {"a": (64 * ctas, 64 * steps), "b": (64, 64 * steps)}
    maps = tuple(TensorMap(name, 2, shape[::-1], (2, 2 * shape[1]), (64, 64 if name == "a" else 32))
                 for name, shape in shapes.items())  # fmt: skip
    arrays = tuple(GlobalTensor(name, shape, "fp16", (shape[1], 1)) for name, shape in shapes.items())
    out = GlobalTensor("out", (32 * ctas,), "int32", (1,))
    program = sass_program(compiled, (ctas, 1, 1), (64, 1, 1), (*maps, Pointer("out"), steps), (*arrays, out),
                           compiled.shared_bytes, "test")  # fmt: skip
    made = Device(spec, cold_launch=False).build(program.kernels[0], program.addresses())
    made.run()
    return made


def test_a_multicast_reads_what_a_cluster_shares_once() -> None:
    steps, clusters = 6, 3
    run = cluster_tiles(steps, clusters)
    counters = run.result.counters
    assert run.kernel.cluster == (2, 1, 1)
    assert counters["ctas"] == 2 * clusters
    assert counters["tma_boxes"] == 2 * 2 * clusters * steps
    assert counters["global_read_bytes"] == counters["port_read_bytes"] == 2 * 64 * steps * clusters * (2 * 64 + 64)
    assert counters["port_receive_bytes"] == 2 * 64 * steps * clusters * (2 * 64 + 2 * 64)
    assert counters["global_write_bytes"] == 4 * 32 * 2 * clusters


def test_a_cluster_waits_for_its_barrier_and_for_arrivals_of_its_other_cta() -> None:
    unrefreshed = "dram.t_rfc=1 ps"  # what comes later meets other refreshes
    base = cluster_tiles(8, spec=load_arch("h100-sxm", [unrefreshed]))
    slow_barrier = load_arch("h100-sxm", [unrefreshed, "sync.cluster_sync=1190 cycles"])
    slow_arrivals = load_arch("h100-sxm", [unrefreshed, "dsmem.latency=1180 cycles"])
    assert isinstance(slow_barrier, GpuSpec)
    assert isinstance(slow_arrivals, GpuSpec)
    assert base.result.warp_states["cluster_barrier"] > 0
    by_line = base.program.spent.sum(axis=0)
    assert int(by_line[Reason.CLUSTER_BARRIER]) == base.result.warp_states["cluster_barrier"]
    later = 1190 - HOPPER.sync.cluster_sync_cycles  # type: ignore[operator]
    longer = cluster_tiles(8, spec=slow_barrier).result.ticks - base.result.ticks
    assert 1.5 * later < longer / 256 <= 2 * later  # two barriers
    # With two stages every second step waits for the arrival on a stage of the step before.
    assert cluster_tiles(8, spec=slow_arrivals).result.ticks > base.result.ticks + 3 * 256 * 900


def test_a_cluster_that_misses_arrivals_deadlocks() -> None:
    with pytest.raises(DeadlockError, match=r"waits for a phase of the mbarrier at 0x8410"):
        cluster_tiles(8, without="SYNCS.ARRIVE.TRANS64.RED.A1T0")
    lines = ("S2R R0, SR_CgaCtaId", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 EXIT", "UCGABAR_ARV", "UCGABAR_WAIT")
    ended = pair(*lines)
    assert ended.result.warp_states["cluster_barrier"] > 0  # a warp that has ended is not waited for
    with pytest.raises(DeadlockError, match=r"warp 0 waits at the barrier of its cluster, .*line 5\)"):
        pair(*lines[:2], "@P0 BAR.SYNC 0x1, 0x40", *lines[3:])


def pair(*lines: str) -> Launch:
    """Two CTAs of a cluster."""
    compiled = replace(written(*lines), sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    return launch(compiled, grid=(2, 1, 1), shared=1024, spec=HOPPER)


def test_lanes_arrive_on_the_mbarriers_of_the_ctas_that_they_name() -> None:
    rank = ("S2R R0, SR_CgaCtaId", "S2R R2, SR_LANEID", "S2UR UR8, SR_CgaCtaId", "UMOV UR4, 0x400")
    place = ("ULEA UR4, UR8, UR4, 0x18", "UMOV UR6, 0x1ffffc", "UMOV UR7, 0x7ffff000", "SYNCS.EXCH.64 URZ, [UR4], UR6",
             "UCGABAR_ARV", "UCGABAR_WAIT", "MOV R3, 0x400", "PRMT R3, R2, 0x654, R3", "MOV R6, RZ",
             "ISETP.GT.AND P0, PT, R2, 0x1, PT")  # fmt: skip
    arrive = "@!P0 SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R3], RZ"
    wait = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R6"
    run = pair(*rank, *place, arrive, wait)
    assert run.result.warp_states["mbarrier"] >= 2 * 256 * HOPPER.dsmem.latency_cycles  # type: ignore[union-attr]
    with pytest.raises(DeadlockError, match="waits for a phase of the mbarrier at 0x400"):
        pair(*rank, *place, arrive.replace("@!P0", "@P1"), wait)
    with pytest.raises(InputError, match=r"line 15\).*lane 2: shared address 0x2000400 lies outside"):
        pair(*rank, *place, arrive.removeprefix("@!P0 "), wait)


def exchange(*overrides: str) -> Launch:
    """Two CTAs of a cluster, 64 threads each, that read, write and send each other a word a thread."""
    spec = load_arch("h100-sxm", list(overrides))
    assert isinstance(spec, GpuSpec)
    compiled = read_compiled(str(FOLDER / "cluster_exchange.sm90.sass"))
    return launch(compiled, grid=(2, 1, 1), threads=64, shared=compiled.shared_bytes, spec=spec)


def test_accesses_of_another_cta_take_the_time_of_the_network() -> None:
    base = exchange()
    counters, warps = base.result.counters, 4
    assert counters["global_write_bytes"] == 3 * warps * 512  # a word in each 16 bytes, by sectors
    assert counters["shared_read_bytes"] == warps * (128 + 2 * 128)  # LD; LDS of both words that the other has written
    assert counters["shared_write_bytes"] == warps * 3 * 128  # STS, ST, STAS
    # One after the other: a load, the store of what it brought, before the cluster meets.
    later = exchange("dsmem.latency=730 cycles").result.ticks - base.result.ticks
    assert 2 * 256 * 500 <= later <= 3 * 256 * 500
    for figure, bytes_moved in (("read", 2 * 128), ("write", 2 * 2 * 128)):
        slow = exchange(f"dsmem.{figure}=0.25 B/clk").result.ticks - base.result.ticks
        assert slow > 0.8 * 256 * bytes_moved / 0.25 - 256 * 100


#: Rank in R0, lane in R9, and in R4 and R5 a word of the other CTA for each lane.
CLUSTER = ("S2R R0, SR_CgaCtaId", "S2R R9, SR_LANEID", "S2R R5, SR_SWINHI", "LOP3.LUT R3, R0, 0x1, RZ, 0x3c, !PT",
           "MOV R4, 0x400", "PRMT R4, R3, 0x654, R4", "IMAD R4, R9, 0x4, R4")  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("MOV R5, RZ", "LD.E R6, [R4]"), r"line 9\): LD.E R6, \[R4\].*is the grid right"),
        (("ATOM.E.ADD.STRONG.GPU PT, R6, [R4+0x1000], R9",), r"lane 0: shared address 0x1400 lies outside"),
        (("LD.E R6, [R4+0x1000]",), r"lane 0: shared address 0x1400 lies outside of the CTA's 0x400 to 0x800"),
        (("LD.E.64 R6, [R4]",), r"lane 1: address 0x404 is no multiple of the 8 bytes of the access"),
        (("PRMT R4, R9, 0x654, R4", "ST.E [R4], R6"), r"lane 2: shared address 0x2\w+ lies outside"),
        (("MOV R5, R4", "STAS [R4.64], R6"), r"no mbarrier has been set up at shared address 0x1000400"),
        (("ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 EXIT", *("NOP ; stall=15",) * 40, "ST.E [R4], R6"),
         r"shared address 0x1000400 is of a CTA of the cluster that has ended"),
    ],
)  # fmt: skip
def test_wrong_accesses_of_another_cta_name_line_and_lane(lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pair(*CLUSTER, *lines)


def test_lanes_may_name_several_ctas() -> None:
    alternate = ("LOP3.LUT R10, R9, 0x1, RZ, 0xc0, !PT", "MOV R4, 0x400", "PRMT R4, R10, 0x654, R4",
                 "IMAD R4, R9, 0x4, R4")  # fmt: skip
    load = ("LD.E R6, [R4] ; write=0", "NOP ; wait=1", "UCGABAR_ARV", "UCGABAR_WAIT")
    both, one = (pair(*CLUSTER, *lines, *load).result for lines in (alternate, ()))
    wave = 256 * 128 // 128  # ticks that 128 bytes take of an array
    assert one.counters["shared_ticks"] == 2 * 2 * wave  # of its own array and the other's
    assert both.counters["shared_ticks"] == 2 * (2 + 1) * wave  # as two accesses, one of which stays
    assert both.counters["shared_read_bytes"] == 2 * one.counters["shared_read_bytes"]
    with pytest.raises(InputError, match="a100-sxm4-80gb has no clusters"):
        launch(written(*CLUSTER, "STAS [R4.64], R6"))


def test_launches_of_clusters_that_do_not_fit() -> None:
    compiled = read_compiled(str(FOLDER / "cluster_tiles.sm90.sass"))
    assert compiled.cluster == (2, 1, 1)
    with pytest.raises(InputError, match="its grid of 3x1x1 CTAs is no multiple of its clusters of 2x1x1"):
        sass_program(compiled, (3, 1, 1), (64, 1, 1), (), (), 0, "test")
    with pytest.raises(InputError, match="is compiled for clusters of 2x1x1 CTAs, not 4x1x1"):
        sass_program(compiled, (4, 1, 1), (64, 1, 1), (), (), 0, "test", cluster=(4, 1, 1))


def test_a_fence_of_the_gpu_waits_for_acknowledgements_of_stores() -> None:
    store = ("MOV R2, c[0x0][0x210]", "MOV R3, c[0x0][0x214]", "STG.E [R2.64], R4 ; read=0")
    fenced = hopper(*store, "MEMBAR.ALL.GPU")
    assert fenced.result.warp_states["membar"] > 256 * 200
    assert hopper(*store, "MEMBAR.ALL.CTA").result.warp_states.get("membar", 0) == 0


def test_a_uniform_instruction_whose_predicate_is_false_writes_nothing() -> None:
    run = launch(written("UMOV UR4, 0x7", "UISETP.GT.AND UP0, UPT, UR4, 0x9, UPT", "@UP0 UMOV UR4, 0x1",
                         "IMAD.U32 R4, RZ, RZ, UR4", "ISETP.EQ.AND P0, PT, R4, RZ, PT", "@P0 EXIT"))  # fmt: skip
    assert held(run, 4).tolist() == [7] * 32


# ---- memory


def copy(width: str, stride: int) -> tuple[str, ...]:
    """Lanes load and store `width` at a stride in bytes, all below 4 KiB."""
    return (
        "S2R R0, SR_LANEID; write=0", f"MOV R6, {stride:#x}", "MOV R2, c[0x0][0x160]", "MOV R3, c[0x0][0x164]",
        "IMAD.WIDE R4, R0, R6, R2; wait=1", f"LDG.E{width} R8, [R4.64]; write=1", f"STG.E{width} [R4.64], R8; wait=2",
    )  # fmt: skip


@pytest.mark.parametrize(("width", "stride", "sectors"), [("", 4, 4), (".64", 8, 8), (".128", 16, 16), ("", 32, 32)])
def test_sectors_follow_from_the_addresses_of_lanes(width: str, stride: int, sectors: int) -> None:
    run = launch(written(*copy(width, stride)))
    assert run.result.counters["l1_read_sectors"] == sectors
    assert run.result.memory["l2_write_sectors"] == sectors


@pytest.mark.parametrize(("size", "beside"), [("", 0), (".LTC64B", 1), (".LTC128B", 3)])
def test_a_load_says_what_the_l2_fetches_beside_its_sectors(size: str, beside: int) -> None:
    run = launch(written(*copy(size, 128)[:-1]))
    assert run.result.memory["l2_prefetched_sectors"] == 32 * beside
    assert run.result.counters["l1_read_sectors"] == 32


def test_an_access_outside_of_every_array_names_line_and_lane() -> None:
    wanted = r"line 6\): LDG.E R8, \[R4.64\]: CTA \(0, 0, 0\), warp 0, lane 16: .* 64 bytes into array a of 64 bytes"
    with pytest.raises(InputError, match=wanted):
        launch(written(*copy("", 4)), sizes=(16,))


def test_a_misaligned_access_is_refused() -> None:
    with pytest.raises(InputError, match=r"lane 1: address 0x\w+ is no multiple of the 16 bytes"):
        launch(written(*copy(".128", 4)))


@pytest.mark.parametrize(("shift", "conflicts"), [(2, 0), (3, 1), (7, 31)])
def test_banks_conflict_by_the_addresses_of_lanes(shift: int, conflicts: int) -> None:
    run = launch(
        written("S2R R0, SR_LANEID; write=0", f"SHF.L.U32 R0, R0, {shift:#x}, RZ; wait=1 stall=4",
                "LDS R4, [R0]; write=1", "FADD R5, R4, R4; wait=2"),
        shared=4096,
    )  # fmt: skip
    assert run.result.counters["shared_conflict_ticks"] == 256 * conflicts
    assert run.result.counters["shared_ticks"] == 256 * (1 + conflicts)


@pytest.mark.parametrize(("form", "conflicts"), [(".X4", 0), (".X8", 1), (".X16", 3)])
def test_a_register_of_an_address_may_be_scaled(form: str, conflicts: int) -> None:
    run = launch(written("S2R R0, SR_LANEID; write=0", f"LDS R4, [R0{form}+0x40]; write=1 wait=1"), shared=0x240)
    assert run.result.counters["shared_conflict_ticks"] == 256 * conflicts
    with pytest.raises(InputError, match=r"address \[R0.X32\] is not understood"):
        launch(written("LDS R4, [R0.X32]"), shared=64)


def test_shared_memory_that_the_cta_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="shared address 0x40 lies outside of the CTA's 0x0 to 0x40"):
        launch(written("MOV R0, 0x40", "LDS R4, [R0]; write=1"), shared=64)


# ---- time


def ticks(*lines: str, threads: int = 32) -> int:
    run = launch(written(*lines), threads=threads)
    return run.last_warp_tick - run.start_tick


def test_a_warp_waits_for_the_compilers_stall_counts() -> None:
    quick, slow = ticks(*["IADD3 R4, R4, 0x1, RZ; stall=2"] * 10), ticks(*["IADD3 R4, R4, 0x1, RZ; stall=6"] * 10)
    assert slow - quick == 10 * 4 * 256


def test_a_pipe_takes_one_instruction_an_interval_whatever_the_stall_counts_say() -> None:
    one, many = ticks("FFMA R4, R4, R4, R4"), ticks(*["FFMA R4, R4, R4, R4"] * 11)
    assert many - one == 10 * 2 * 256  # 16 lanes a sub-core


def test_fp64_has_a_pipe_of_its_own() -> None:
    """Eight lanes a sub-core of GA100, beside the FMA pipe; DMMA runs on the tensor core."""
    one, many = ticks("DFMA R4, R4, R4, R4"), ticks(*["DFMA R4, R4, R4, R4"] * 11)
    assert many - one == 10 * 4 * 256
    assert ticks(*["DFMA R4, R4, R4, R4", "FFMA R8, R8, R8, R8"] * 11) < many + 4 * 256
    products = launch(written(*["DMMA.884 R4, R8, R10, R4"] * 10)).result.counters
    assert (products["macs_tensor"], products["tensor_ticks"]) == (10 * 8 * 8 * 4, 10 * 16 * 256)


def test_a_scoreboard_releases_when_the_result_is_there() -> None:
    waits = ticks("MUFU.EX2 R4, R4; write=2", "FADD R5, R4, R4; wait=4")
    goes_on = ticks("MUFU.EX2 R4, R4; write=2", "FADD R5, R4, R4; stall=1")
    row = machine().instruction("ex2", "fp32")
    assert waits - goes_on == (row.latency_cycles - 1) * 256


def test_ten_tensor_products_take_ten_intervals_on_each_sub_core() -> None:
    products = ["HMMA.16816.F32 R4, R8, R10, R4"] * 10
    alone, four = ticks(*products), ticks(*products, threads=128)
    assert four - alone < 256 * 32  # other sub-cores have tensor cores of their own
    run = launch(written(*products), threads=128)
    assert run.result.counters["macs_tensor"] == 4 * 10 * 16 * 8 * 16
    assert run.result.counters["tensor_ticks"] == 4 * 10 * 8 * 256


def test_products_of_a_warp_wait_in_the_tensor_cores_queue_as_far_as_it_reaches() -> None:
    products = ["HGMMA.64x64x16.F32 R24, gdesc[UR8], R24"] * 6
    waited = {}
    for in_flight in (1, 2, 4):
        spec = load_arch("h100-sxm", [f"sm.wgmma_in_flight={in_flight}"])
        code = replace(written(*products), sm=90, bank_bytes=0x210)
        run = launch(code, threads=128, shared=1024, spec=spec)
        assert run.result.counters["tensor_ticks"] == 4 * 6 * 32 * 256
        waited[in_flight] = run.result.warp_states["math_pipe_throttle"]
    assert waited[1] - waited[2] == 4 * 32 * 256
    assert waited[1] - waited[4] == 4 * 3 * 32 * 256


def test_time_of_warps_and_slots_is_accounted_for_whole() -> None:
    run = launch(
        read_compiled(str(FOLDER / "softmax.sm80.sass")),
        grid=(300, 1, 1),
        threads=128,
        values=(Pointer("a"), Pointer("b"), 1024, 1024),
        sizes=(300 * 1024, 300 * 1024),
        shared=16,
    )
    result = run.result
    assert sum(result.issue_slots.values()) == result.ticks * 108 * 4
    by_line = run.program.spent.sum(axis=0)
    assert int(by_line[Reason.BARRIER]) == result.warp_states["barrier"]
    assert int(by_line[Reason.SELECTED]) == 256 * result.counters["instructions"] == result.warp_states["selected"]


# ---- compiled kernels


@pytest.mark.parametrize(("name", "board"), [("sm80", "a100-sxm4-80gb"), ("sm90", "h100-sxm"), ("sm80", "rtx-3090")])
def test_add_moves_each_element_once(name: str, board: str) -> None:
    n = 100_000 - 100_000 % 16
    run = launch(
        read_compiled(str(FOLDER / f"add.{name}.sass")),
        grid=(-(-n // 512), 1, 1),
        threads=128,
        values=(Pointer("a"), Pointer("b"), Pointer("c"), n),
        sizes=(n, n, n),
        spec=machine(board),
    )
    assert run.result.counters["global_read_bytes"] == 8 * n
    assert run.result.counters["global_write_bytes"] == 4 * n
    assert run.result.counters["ctas"] == -(-n // 512)


def test_a_grid_that_is_too_large_for_the_mask_is_noticed() -> None:
    compiled = read_compiled(str(FOLDER / "add.sm80.sass"))
    with pytest.raises(
        InputError, match=r"kernel add: .*kernels.py, line 14.*LDG.*CTA \(2, 0, 0\).*is the grid right\?"
    ):
        launch(compiled, grid=(3, 1, 1), threads=128, values=(Pointer("a"), Pointer("b"), Pointer("c"), 4096),
               sizes=(1024, 1024, 1024))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "board", "shared"), [("sm80", "a100-sxm4-80gb", 16384), ("sm90", "h100-sxm", 24576), ("sm80", "l4", 16384)]
)
def test_matmul_computes_and_stores_all_of_its_product(name: str, board: str, shared: int) -> None:
    m, n, k = 192, 128, 96
    run = launch(read_compiled(str(FOLDER / f"matmul.{name}.sass")), grid=(3, 2, 1), threads=128,
                 values=(Pointer("a"), Pointer("b"), Pointer("c"), m, n, k),
                 sizes=(m * k // 2, k * n // 2, m * n // 2), shared=shared, spec=machine(board))  # fmt: skip
    counters = run.result.counters
    assert counters["macs_tensor"] == m * n * k
    assert counters["global_write_bytes"] == 2 * m * n
    assert counters["global_read_bytes"] == 2 * (m * k * (n // 64) + k * n * (m // 64))


@pytest.mark.parametrize("maps", [False, True])
def test_what_runs_ahead_of_other_events_changes_nothing(maps: bool) -> None:
    """Steps of a cycle let no sub-core run ahead of the others."""
    whole, stepped = (tma_launch(128, 128, 128) if maps else matmul_launch() for _ in range(2))
    whole.run()
    tick = 0
    while stepped.advance(tick) >= 0:
        tick += 256
    stepped.run()
    counters = [dict(run.result.counters) for run in (whole, stepped)]
    assert counters[0].pop("events") < counters[1].pop("events")
    assert counters[0] == counters[1]
    assert whole.last_warp_tick == stepped.last_warp_tick
    np.testing.assert_array_equal(whole.program.spent, stepped.program.spent)


def matmul_launch() -> Launch:
    """Four tiles of a product, not yet run."""
    arrays = tuple(GlobalTensor(name, (128 * 128,), "fp16", (1,)) for name in "abc")
    program = sass_program(
        read_compiled(str(FOLDER / "matmul.sm80.sass")), (2, 2, 1), (128, 1, 1),
        (*(Pointer(name) for name in "abc"), 128, 128, 128), arrays, 16384, "test",
    )  # fmt: skip
    return Device(machine(), cold_launch=False).build(program.kernels[0], program.addresses())


def test_a_masked_edge_of_a_matmul_reads_and_writes_only_what_is_inside() -> None:
    m, n, k = 80, 48, 48
    run = launch(read_compiled(str(FOLDER / "matmul.sm80.sass")), grid=(2, 1, 1), threads=128,
                 values=(Pointer("a"), Pointer("b"), Pointer("c"), m, n, k),
                 sizes=(m * k // 2, k * n // 2, m * n // 2), shared=16384)  # fmt: skip
    assert run.result.counters["global_write_bytes"] == 2 * m * n
    assert isinstance(run.kernel, SassKernel)
