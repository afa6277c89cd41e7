"""Compiled kernels: what the TMA and lanes change in the shared memory of other CTAs, and in device memory; 64-bit
floating point on a pipe that sub-cores share. Micro-benchmarks of their rates and latencies."""

from dataclasses import replace

import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.engine.api import Launch
from sim.gpu.sass.cubin import read_compiled
from sim.gpu.sass.tables import Cell, Unit
from tests.gpu.test_sass import CLUSTER, FOLDER, HOPPER, launch, machine, written

CYCLE = 256
WAVE = CYCLE  # ticks that 128 bytes take of an array


def hopper(*overrides: str) -> GpuSpec:
    spec = load_arch("h100-sxm", list(overrides))
    assert isinstance(spec, GpuSpec)
    return spec


def reductions(*overrides: str) -> Launch:
    """Two CTAs of a cluster, 64 threads each, that change each other's shared memory."""
    compiled = read_compiled(str(FOLDER / "cluster_reductions.sm90.sass"))
    return launch(
        compiled, grid=(2, 1, 1), threads=64, sizes=(4096, 64), shared=compiled.shared_bytes, spec=hopper(*overrides)
    )


def test_a_kernel_of_ptx_takes_the_time_of_the_network() -> None:
    base = reductions()
    assert base.result.counters["tma_boxes"] == 2 * 3
    # One after the other: the copy, an exchange, a load and an atomic for each step of a loop of compare and swap.
    later = reductions("dsmem.latency=730 cycles").result.ticks - base.result.ticks
    assert later >= 60 * CYCLE * 500
    slow = reductions("dsmem.write=0.25 B/clk").result.ticks - base.result.ticks
    assert slow > 0.8 * CYCLE * 2 * 256 / 0.25
    # One lane of each warp succeeds each time: 32 rounds at least of a word that all lanes add to.
    atomics_issued = base.program.issued[base.program.code[:, Cell.UNIT] == Unit.ATOM, 0]
    assert sorted(atomics_issued) == [4, 4, 4, 4 * 32]


def sent(copies: int, size: int, spec: GpuSpec, opcode: str = "UBLKCP.S.S") -> Launch:
    """The first CTA of a cluster sends bytes of its shared memory to the second one, which waits for them."""
    step = size // 16
    low = (0x100000 - 1) << 1 & 0xFFFFFFFF  # an mbarrier for one arrival
    lines = (
        "S2R R0, SR_LANEID", "ISETP.EQ.AND P0, PT, R0, RZ, PT", "S2R R1, SR_CgaCtaId", "S2UR UR16, SR_CgaCtaId",
        "UMOV UR4, 0x400", "ULEA UR4, UR16, UR4, 0x18", f"UMOV UR6, {hex(low)}", "UMOV UR7, 0x7ffff800",
        f"MOV R5, {hex(copies * size)}", "@P0 SYNCS.EXCH.64 URZ, [UR4], UR6",
        "@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4], R5", "UCGABAR_ARV", "UCGABAR_WAIT",
        "ISETP.EQ.AND P1, PT, R1, RZ, P0", "UMOV UR8, 0x1002000", "UMOV UR9, 0x1000400", "UMOV UR10, 0x1000",
        f"UMOV UR12, {hex(step)}", *(f"@P1 {opcode} [UR8], [UR10], UR12" for _ in range(copies)),
        "ISETP.EQ.AND P2, PT, R1, RZ, PT", "@P2 BRA `(.L_x_1)", "MOV R6, RZ",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [UR4], R6", ".L_x_1", "UCGABAR_ARV", "UCGABAR_WAIT",
    )  # fmt: skip
    compiled = replace(written(*lines), sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    return launch(compiled, grid=(2, 1, 1), shared=0x4000, spec=spec)


@pytest.mark.parametrize("rate", [8, 16])
def test_bulk_copies_to_another_cta_move_at_the_rate_of_the_network(rate: int) -> None:
    few, more = (sent(n, 4096, hopper(f"dsmem.write={rate} B/clk")) for n in (2, 6))
    moved = (more.result.ticks - few.result.ticks) / CYCLE
    assert moved == pytest.approx(4 * 4096 / rate, rel=0.02)
    assert more.result.counters["shared_write_bytes"] - few.result.counters["shared_write_bytes"] == 4 * 4096


def test_a_bulk_copy_to_another_cta_takes_its_latency() -> None:
    near, far = (sent(1, 128, hopper(f"dsmem.latency={n} cycles")).result.ticks for n in (190, 690))
    assert far - near == 500 * CYCLE


def test_a_bulk_reduction_reads_and_writes_the_other_array() -> None:
    copied, changed = (sent(1, 4096, HOPPER, opcode).result.counters for opcode in ("UBLKCP.S.S", "UBLKRED.S.S.ADD"))
    assert changed["shared_ticks"] - copied["shared_ticks"] == 4096 // 128 * WAVE


@pytest.mark.parametrize(
    ("opcode", "said"),
    [
        ("UBLKRED.S.S.FLY", "what it does is not known"),
        ("UBLKRED.S.G.ADD", "what it moves from where to where is not known"),
        ("UBLKCP.S.S.MULTICAST", "what it moves from where to where is not known"),
    ],
)
def test_bulk_copies_that_are_not_known_are_refused(opcode: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sent(1, 128, HOPPER, opcode)


def test_a_bulk_copy_outside_of_shared_memory_names_its_line() -> None:
    with pytest.raises(InputError, match=r"line 19\): @P1 UBLKCP.S.S .*shared address 0x1002000 lies outside"):
        sent(1, 0x3000, HOPPER)


def to_device(opcode: str) -> Launch:
    """A warp that sends 4 KiB of its shared memory to array a."""
    lines = (
        "S2R R0, SR_LANEID", "ISETP.EQ.AND P0, PT, R0, RZ, PT", "ULDC.64 UR8, c[0x0][0x160]", "UMOV UR10, 0x400",
        "UMOV UR12, 0x100", f"@P0 {opcode} [UR8], [UR10], UR12", "@P0 UTMACMDFLUSH", "DEPBAR.LE SB0, 0x0",
    )  # fmt: skip
    compiled = replace(written(*lines), sm=90, bank_bytes=0x160)
    return launch(compiled, sizes=(1024,), shared=0x2000, spec=HOPPER)


def test_a_bulk_reduction_of_device_memory_is_done_at_the_l2() -> None:
    plain, changed = (to_device(opcode).result for opcode in ("UBLKCP.G.S", "UBLKRED.G.S.ADD.F32.RN"))
    assert changed.counters["global_write_bytes"] == plain.counters["global_write_bytes"] == 4096
    assert (plain.memory["l2_reduce_sectors"], changed.memory["l2_reduce_sectors"]) == (0, 4096 // 32)
    assert plain.memory["dram_read_bytes"] == 0
    assert changed.memory["dram_read_bytes"] >= 4096  # what was there


# ---- atomics of lanes


def atomics(count: int, stride: int, *overrides: str, opcode: str = "ATOM.E.ADD.STRONG.GPU PT, R6") -> Launch:
    """Each of two CTAs of a cluster adds to words of the other one."""
    place = ("IMAD R4, R9, -0x4, R4", f"IMAD R4, R9, {hex(stride)}, R4")
    atomic = f"{opcode}, [R4], R9 ; write=0"
    lines = (*CLUSTER, *place, *((atomic, "NOP ; wait=1") * count), "UCGABAR_ARV", "UCGABAR_WAIT")
    compiled = replace(written(*lines), sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    return launch(compiled, grid=(2, 1, 1), shared=1024, spec=hopper(*overrides))


def test_an_atomic_of_another_cta_goes_there_and_back() -> None:
    few, more = (atomics(n, 4).result for n in (2, 6))
    each = (more.ticks - few.ticks) / 4 / CYCLE
    assert HOPPER.dsmem is not None
    rate = HOPPER.dsmem.write_bytes_per_cycle
    assert each == pytest.approx(HOPPER.dsmem.latency_cycles + 2 * 128 / rate + 3, abs=6)  # there and back, the array
    slow = (atomics(6, 4, "dsmem.latency=730 cycles").result.ticks - more.ticks) / CYCLE
    assert slow == 6 * 500


@pytest.mark.parametrize(("stride", "passes"), [(4, 1), (8, 2), (0, 32)])
def test_lanes_of_one_bank_of_another_cta_come_one_after_the_other(stride: int, passes: int) -> None:
    one, two = (atomics(n, stride).result.counters for n in (1, 2))
    waves = max(1, stride // 4)  # in which the warp hands its addresses over
    assert two["shared_ticks"] - one["shared_ticks"] == 2 * (2 * passes + waves) * WAVE


def test_what_depends_on_the_result_of_such_an_atomic_is_refused() -> None:
    with pytest.raises(InputError, match="depend on R6, which comes from memory"):
        launch(
            replace(
                written(*CLUSTER, "ATOM.E.ADD.STRONG.GPU PT, R6, [R4], R9", "IMAD R4, R6, 0x4, R4", "ST.E [R4], R6"),
                sm=90, bank_bytes=0x210, cluster=(2, 1, 1),
            ),
            grid=(2, 1, 1), shared=1024, spec=HOPPER,
        )  # fmt: skip


def test_an_atomic_says_where_it_could_not_be_done() -> None:
    """Of shared memory a sum of fp32 is left to a loop; of device memory it is done at once."""
    add = "ATOM.E.ADD.F32.FTZ.RN.STRONG.GPU P0, RZ"
    ask = ("QSPC.E.D P1, RZ, [R4]", "QSPC.E.S P2, RZ, [R4]", "@P0 EXIT", "@P2 EXIT", "@!P1 EXIT")
    shared = ("UCGABAR_ARV", "UCGABAR_WAIT")
    compiled = written(*CLUSTER, f"{add}, [R4], R9", *ask, *shared)
    made = replace(compiled, sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    run = launch(made, grid=(2, 1, 1), shared=1024, spec=HOPPER)
    assert run.result.counters["instructions"] == 2 * (len(CLUSTER) + 1 + len(ask) + len(shared) + 1)  # all go on
    device = (*CLUSTER, "MOV R4, c[0x0][0x210]", "MOV R5, c[0x0][0x214]")
    compiled = written(*device, f"{add}, [R4], R9", *ask, *shared)
    made = replace(compiled, sm=90, bank_bytes=0x210, cluster=(2, 1, 1))
    run = launch(made, grid=(2, 1, 1), shared=1024, spec=HOPPER)
    assert run.result.counters["instructions"] == 2 * (len(device) + 1 + 3)  # none goes on


# ---- 64-bit floating point


def fp64(name: str, threads: int, count: int) -> float:
    """Cycles of dependence-free DFMA in a warp of each sub-core."""
    lines = (*(f"DFMA R{4 + 2 * (i % 8)}, R2, R2, R2" for i in range(count)), "NOP")
    compiled = replace(written(*lines), sm=75 if name == "t4" else 80)
    return launch(compiled, threads=threads, spec=machine(name)).result.ticks / CYCLE


@pytest.mark.parametrize(("name", "alone", "together"), [("a100-sxm4-80gb", 4, 4), ("t4", 16, 64), ("a40", 16, 64)])
def test_chips_with_two_fp64_lanes_an_sm_share_them_among_sub_cores(name: str, alone: int, together: int) -> None:
    for threads, cycles in ((32, alone), (128, together)):
        assert (fp64(name, threads, 72) - fp64(name, threads, 8)) / 64 == pytest.approx(cycles, rel=0.02)
