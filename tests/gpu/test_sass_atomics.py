"""Compiled kernels: atomics, generic addresses, copies of bytes by the TMA; time, and values in two orders."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from sim.gpu.engine.api import Device, Launch
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.kernel import Pointer, SassKernel, sass_program
from sim.gpu.sass.replay import KernelValues, Memory
from tests.gpu.test_sass import HOPPER, launch, machine, written

Words = np.ndarray[Any, Any]

WAVE = 256 * 128 // 128  # ticks that 128 bytes take of the array
LANE = np.arange(32)
#: Lane in R0, address of `a` in R2 and R3, that of the lane's word in R8 and R9.
PLACE = (
    "S2R R0, SR_LANEID", "MOV R2, c[0x0][0x160]", "MOV R3, c[0x0][0x164]", "MOV R9, R3", "IMAD R8, R0, 0x4, R2",
    "SHF.L.U32 R1, R0, 0x2, RZ",
)  # fmt: skip


def ran_with(content: Words, *lines: str) -> Launch:
    """A warp whose addresses or branches depend on what array a holds."""
    array = GlobalTensor("a", content.shape, "int32", (1,))
    contents = {"a": content.astype(np.int32)}
    program = sass_program(
        written(*lines), (1, 1, 1), (32, 1, 1), (Pointer("a"),), (array,), 0, "test", contents=contents
    )
    run = Device(machine(), cold_launch=False).build(program.kernels[0], program.addresses())
    run.run()
    return run


def values(lines: tuple[str, ...], content: Words, *, late: bool = False, shared: int = 0, threads: int = 32,
           hopper: bool = False) -> tuple[Words, list[str]]:  # fmt: skip
    """What array a holds behind a CTA, and what was violated."""
    compiled = written(*lines)
    if hopper:
        compiled = replace(compiled, sm=90, bank_bytes=0x160)
    array = GlobalTensor("a", content.shape, "int32", (1,))
    program = sass_program(compiled, (1, 1, 1), (threads, 1, 1), (Pointer("a"),), (array,), shared, "test")
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    at = program.addresses()
    bytes_of = np.frombuffer(content.tobytes(), dtype=np.uint8).copy()
    memory = Memory(bytes_of, at["a"], {"a": (at["a"], content.nbytes)})
    replay = KernelValues(kernel, kernel.bank(at), memory, kernel.shared_range, late=late)
    replay.run()
    return bytes_of.view(content.dtype), replay.violations


# ---- device memory


def test_an_atomic_that_returns_waits_for_the_l2_and_one_that_does_not_goes_on() -> None:
    asks = launch(written(*PLACE, "ATOMG.E.ADD.STRONG.GPU PT, R6, [R8.64], R0 ; write=0", "NOP ; wait=1"))
    tells = launch(written(*PLACE, "RED.E.ADD.STRONG.GPU [R8.64], R0 ; read=0", "NOP ; wait=1"))
    assert asks.result.warp_states["long_scoreboard"] > 256 * machine().l2.hit_latency_cycles
    assert tells.result.warp_states["long_scoreboard"] == 0
    for run in (asks, tells):
        assert run.result.counters["global_write_bytes"] == 128
        assert run.result.counters["lines"] == run.result.counters["inst_global"] == 1


def test_lanes_take_tickets_from_a_counter_whose_content_is_given() -> None:
    ticket = (
        "ATOMG.E.ADD.STRONG.GPU PT, R6, [R2.64], R4 ; write=0",
        "IMAD R8, R6, 0x4, R2 ; wait=1",
        "STG.E [R8.64], R0",
    )
    run = ran_with(np.full(64, 20), *PLACE, "MOV R4, 0x1", *ticket)
    assert run.result.counters["global_write_bytes"] == 32 + 5 * 32  # words 20 to 51 begin and end within a sector
    assert int(run.program.data[1:5].view(np.int32)[0]) == 20 + 32
    with pytest.raises(InputError, match=r"line 10\): STG.E .*lane 24: address .* lies 256 bytes into array a"):
        ran_with(np.full(64, 40), *PLACE, "MOV R4, 0x1", *ticket)
    with pytest.raises(InputError, match=r"R6, which comes from memory \(give its array"):
        launch(written(*PLACE, "MOV R4, 0x1", *ticket))
    with pytest.raises(InputError, match="depend on its result, which is not computed"):
        ran_with(np.full(64, 20), *PLACE, "MOV R4, 0x1", ticket[0].replace("ADD", "ADD.F32.FTZ.RN"), *ticket[1:])


#: Operation, what it makes of a word, and of an operand.
OPERATIONS: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("ADD", lambda a, b: a + b), ("MIN.S32", min), ("MAX.S32", max), ("MAX", lambda a, b: max(a & 0xFFFFFFFF, b)),
    ("AND", lambda a, b: a & b), ("OR", lambda a, b: a | b), ("XOR", lambda a, b: a ^ b), ("EXCH", lambda a, b: b),
    ("INC", lambda a, b: 0 if (a & 0xFFFFFFFF) >= b else a + 1),
    ("DEC", lambda a, b: b if a == 0 or (a & 0xFFFFFFFF) > b else a - 1),
    ("CAS", lambda a, b: 77 if a == b else a),
)  # fmt: skip


@pytest.mark.parametrize(("operation", "wanted"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_each_atomic_changes_words_alike_in_the_engine_and_with_values(
    operation: str, wanted: Callable[[int, int], int]
) -> None:
    before = np.where(LANE % 2, LANE, 3 * LANE - 40).astype(np.int32)
    swap = ", R5" if operation == "CAS" else ""
    atomic = f"ATOMG.E.{operation}.STRONG.GPU PT, R6, [R8.64], R0{swap} ; write=0"
    lines = (*PLACE, "MOV R5, 0x4d", atomic, "ISETP.EQ.AND P0, PT, R6, RZ, PT ; wait=1", "@P0 EXIT")
    right = np.array([wanted(int(a), int(b)) for a, b in zip(before, LANE, strict=True)], dtype=np.int64)
    right = (right & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    found, _ = values((*PLACE, "MOV R5, 0x4d", atomic, "STG.E [R8.64+0x80], R6"), np.concatenate([before, 0 * before]))
    np.testing.assert_array_equal(found[:32], right)
    np.testing.assert_array_equal(found[32:], before)  # what was there
    engine = ran_with(before, *lines)
    np.testing.assert_array_equal(engine.program.data[1:129].view(np.int32), right)


def test_sums_of_floating_point_numbers_and_of_64_bits() -> None:
    numbers = np.linspace(-1, 1, 32).astype(np.float32)
    found, _ = values((*PLACE, "MOV R4, 0x3f800000", "RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R4"), numbers)
    assert found[0] == 31
    long = np.array([2**40, 0], dtype=np.int64)
    found, _ = values((*PLACE, "MOV R4, 0x2", "MOV R5, 0x1", "REDG.E.ADD.64.STRONG.GPU [R2.64], R4"), long)
    assert found[0] == 2**40 + 32 * (2**32 + 2)
    with pytest.raises(InputError, match=r"line 7.*its values are not computed"):
        values((*PLACE, "RED.E.MIN.F16x2.RN.STRONG.GPU [R2.64], R4"), numbers)


# ---- shared memory


@pytest.mark.parametrize(("stride", "passes"), [(4, 1), (8, 2), (0, 32)])
def test_lanes_of_one_bank_change_it_one_after_the_other(stride: int, passes: int) -> None:
    lines = ("S2R R0, SR_LANEID", f"IMAD R1, R0, {hex(stride)}, RZ", "ATOMS.ADD R4, [R1], R0 ; write=0",
             "NOP ; wait=1")  # fmt: skip
    run = launch(written(*lines), shared=1024)
    assert run.result.counters["shared_ticks"] == 2 * passes * WAVE
    assert run.result.counters["shared_conflict_ticks"] == 2 * (passes - 1) * WAVE


def test_a_loop_of_compare_and_swap_lets_one_lane_of_an_address_through_each_time() -> None:
    def rounds(stride: int) -> int:
        lines = (
            "S2R R0, SR_LANEID", f"IMAD R1, R0, {hex(stride)}, RZ", "BSSY B0, `(.L_x_2)", ".L_x_1", "LDS R2, [R1]",
            "FADD R3, R2, 1", "ATOMS.CAST.SPIN R3, [R1], R2, R3 ; write=0",
            "ISETP.EQ.U32.AND P0, PT, R3, 0x1, PT ; wait=1",
            "@!P0 BRA `(.L_x_1)", ".L_x_2", "BSYNC B0",
        )  # fmt: skip
        run = launch(written(*lines), shared=1024)
        return int(run.program.issued[5, 0])

    assert rounds(4) == 1
    assert rounds(0) == 32


def test_a_histogram_in_shared_memory_has_the_counts_of_numpy() -> None:
    lines = (
        *PLACE, "LDG.E R4, [R8.64]", "STS [R1], RZ", "BAR.SYNC 0x0", "IMAD R4, R4, 0x4, RZ", "MOV R5, 0x1",
        "ATOMS.ADD RZ, [R4], R5", "BAR.SYNC 0x0", "LDS R6, [R1]", "STG.E [R8.64], R6",
    )  # fmt: skip
    bins = np.random.default_rng(1).integers(0, 32, 32).astype(np.int32)
    for late in (False, True):
        found, violations = values(lines, bins, late=late, shared=128)
        np.testing.assert_array_equal(found, np.bincount(bins, minlength=32))
        assert violations == []


# ---- generic addresses


def test_generic_accesses_of_device_memory_take_the_time_of_plain_ones() -> None:
    def both(load: str, store: str) -> Launch:
        return launch(written(*PLACE, f"{load} R4, [R8.64] ; write=0", f"{store} [R8.64+0x100], R4 ; wait=1"))

    generic, plain = both("LD.E", "ST.E").result, both("LDG.E", "STG.E").result
    assert generic.ticks == plain.ticks
    for name in ("global_read_bytes", "global_write_bytes", "l1_read_sectors"):
        assert generic.counters[name] == plain.counters[name]
    with pytest.raises(InputError, match=r"line 7\): LD.E R4.*lies 128 bytes before array a"):
        launch(written(*PLACE, "LD.E R4, [R8.64+-0x80]"))


#: Of lanes below 8 the address is that of their word in shared memory, of the others that in `a`.
MIXED = (
    *PLACE, "ISETP.LT.AND P0, PT, R0, 0x8, PT", "SEL R8, R1, R8, P0", "SEL R9, R3, c[0x0][0x1c], !P0",
)  # fmt: skip


def test_lanes_name_device_memory_and_shared_memory_in_one_access() -> None:
    run = launch(written(*MIXED, "LD.E R4, [R8.64] ; write=0", "NOP ; wait=1"), shared=128)
    assert run.result.counters["global_read_bytes"] == 3 * 32
    assert run.result.counters["shared_ticks"] == WAVE
    lines = (*MIXED, "STS [R1], R0", "ATOM.E.ADD.STRONG.GPU PT, R6, [R8.64], R0", "LD.E R4, [R8.64]",
             "IMAD R10, R0, 0x4, R2", "MOV R11, R3", "@P0 STG.E [R10.64], R4")  # fmt: skip
    found, _ = values(lines, np.full(32, 100, dtype=np.int32), shared=128)
    np.testing.assert_array_equal(found, np.where(LANE < 8, 2 * LANE, 100 + LANE))


# ---- copies of bytes by the TMA


def bulk(size: int, expected: int, wait: str = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], RZ") -> tuple[str, ...]:
    """A copy to shared memory, a word of which each lane doubles, and a copy back; sizes in units of 16 bytes and in
    bytes."""
    return (
        "S2R R0, SR_LANEID", "ISETP.EQ.AND P0, PT, R0, RZ, PT", "UMOV UR4, 0x400", "UMOV UR6, 0xfffffffe",
        "UMOV UR7, 0x7fffffff", f"MOV R5, {hex(expected)}", "ULDC.64 UR8, c[0x0][0x160]", "UMOV UR10, 0x500",
        "UMOV UR11, 0x400", f"UMOV UR12, {hex(size)}", "@P0 SYNCS.EXCH.64 URZ, [UR4], UR6",
        "@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4], R5", "BAR.SYNC 0x0", "@P0 UBLKCP.S.G [UR10], [UR8], UR12", wait,
        "IMAD R1, R0, 0x4, RZ", "LDS R2, [R1+0x500]", "IADD3 R2, R2, R2, RZ", "STS [R1+0x500], R2",
        "FENCE.VIEW.ASYNC.S", "BAR.SYNC 0x0", "@P0 UBLKCP.G.S [UR8], [UR10], UR12", "@P0 UTMACMDFLUSH",
        "DEPBAR.LE SB0, 0x0",
    )  # fmt: skip


def bulk_run(size: int, expected: int) -> Launch:
    compiled = replace(written(*bulk(size, expected)), sm=90, bank_bytes=0x160)
    return launch(compiled, sizes=(1024,), shared=1024, spec=HOPPER)


def test_bytes_go_to_shared_memory_and_back() -> None:
    run = bulk_run(8, 128)
    assert run.result.counters["global_read_bytes"] == run.result.counters["global_write_bytes"] == 128
    assert run.result.warp_states["mbarrier"] > 256 * HOPPER.l2.hit_latency_cycles
    numbers = LANE.astype(np.int32)
    for late in (False, True):
        found, violations = values(bulk(8, 128), numbers, late=late, shared=1024, hopper=True)
        np.testing.assert_array_equal(found, 2 * numbers)
        assert violations == []


def test_wrong_copies_of_bytes_are_told() -> None:
    with pytest.raises(InputError, match=r"lies in no array|bytes into array a"):
        bulk_run(0x200, 0x2000)


# ---- two orders


def test_a_wait_that_is_missing_shows_where_copies_come_late() -> None:
    def copy(*wait: str) -> tuple[str, ...]:
        return (*PLACE, "LDGSTS.E [R1], [R8.64]", "LDGDEPBAR", *wait, "LDS R4, [R1]", "STG.E [R8.64+0x80], R4")

    numbers = np.arange(1, 65).astype(np.int32)
    for late in (False, True):
        found, violations = values(copy("DEPBAR.LE SB0, 0x0"), numbers, late=late, shared=128)
        np.testing.assert_array_equal(found[32:], numbers[:32])
        assert violations == []
    assert values(copy(), numbers, shared=128)[1] == []
    assert "reads shared memory that nothing has written" in values(copy(), numbers, late=True, shared=128)[1][0]
    early = bulk(8, 128, wait="NOP")
    assert values(early, numbers[:32], shared=1024, hopper=True)[1] == []
    assert "that nothing has written" in values(early, numbers[:32], shared=1024, hopper=True, late=True)[1][0]


def test_warps_that_race_give_different_results_in_the_two_orders() -> None:
    lines = ("S2R R0, SR_TID.X", "SHF.R.U32.HI R4, RZ, 0x5, R0", "MOV R2, c[0x0][0x160]", "MOV R3, c[0x0][0x164]",
             "STG.E [R2.64], R4")  # fmt: skip
    first, second = (values(lines, np.zeros(4, dtype=np.int32), late=late, threads=64)[0][0] for late in (False, True))
    assert (first, second) == (1, 0)
