"""What moves cycles, and by exactly how much: each test adds one thing and compares with a calculation by hand."""

from __future__ import annotations

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.language import WARP, GlobalTensor, KernelBuilder, Op, Program, RegisterTile, SharedTile
from sim.gpu.lower.banks import access_waves
from tests.gpu.conftest import cycles, run
from workloads.gpu import micro

TRIPS = 64


def compute(ffma: int, warps: int = 8, trips: int = TRIPS) -> Program:
    """A loop of `ffma` independent FFMA in each warp."""
    kernel = KernelBuilder("compute", (1, 1, 1))
    with kernel.role("warps", warps=warps, registers=32) as r, r.loop("i", trips):
        r.run("ffma", ffma)
    return Program("compute", (), (kernel.build(),), "test")


@pytest.mark.parametrize("machine", ["ampere", "hopper", "volta"])
@pytest.mark.parametrize("ffma", [1, 8, 63])
def test_one_more_ffma_costs_its_interval_every_trip(request: pytest.FixtureRequest, machine: str, ffma: int) -> None:
    """Two warps a sub-core keep the pipe busy, so a trip grows by two intervals."""
    spec: GpuSpec = request.getfixturevalue(machine)
    interval = spec.instruction("ffma", "fp32").cadence_cycles
    one, more = (cycles(run(spec, compute(n))) for n in (ffma, ffma + 1))
    assert more - one == pytest.approx(2 * interval * TRIPS, abs=2 * interval)


def test_another_pipe_takes_slots_but_no_pipe_time(ampere: GpuSpec) -> None:
    """FFMA issue every second cycle on this machine; ALU instructions fit into the slots between."""

    def kernel(alu: int) -> Program:
        builder = KernelBuilder("two_pipes", (1, 1, 1))
        with builder.role("warps", warps=4, registers=32) as r, r.loop("i", TRIPS):
            r.run("ffma", 16, mix=(("iadd", alu),) if alu else ())
        return Program("two_pipes", (), (builder.build(),), "test")

    none, half, full, over = (cycles(run(ampere, kernel(alu))) for alu in (0, 8, 16, 24))
    assert none == half == pytest.approx(full, abs=2)
    # 24 ALU instructions hold their own pipe for 48 cycles, against 32 of the FFMA.
    assert over - none == pytest.approx(16 * TRIPS, abs=17)


@pytest.mark.parametrize("store", [False, True])
def test_address_instructions_of_loads_and_stores_take_issue_slots(ampere: GpuSpec, store: bool) -> None:
    """Many warps hide every latency; then a sub-core issues one instruction a cycle, whatever it belongs to."""

    def kernel(alu: int) -> Program:
        x, value = GlobalTensor("x", (32,), "fp32", (1,)), RegisterTile("value", (32,), "fp32")
        builder = KernelBuilder("addresses", (1, 1, 1))
        with builder.role("warps", warps=32, registers=32) as r, r.loop("i", TRIPS):
            if store:
                r.stg(x[0:32], value.whole, 1, vector_bytes=4, mix=(("iadd", alu),))
            else:
                r.ldg(value.whole, x[0:32], 1, into="x", vector_bytes=4, mix=(("iadd", alu),))
        return Program("addresses", (x,), (builder.build(),), "test")

    less, more = (cycles(run(ampere, kernel(alu))) for alu in (100, 150))
    # Eight warps a sub-core.
    assert more - less == pytest.approx(50 * 8 * TRIPS, rel=0.05)


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
def test_one_more_lds_costs_its_wavefronts(ampere: GpuSpec, ways: int) -> None:
    """16 warps keep the shared-memory array busy; one more load a trip is `ways` cycles for each of them."""

    def kernel(loads: int) -> Program:
        builder = KernelBuilder("lds", (1, 1, 1))
        tile = builder.shared("tile", (32, ways), "fp32")
        value = RegisterTile("value", (1, 32), "fp32")
        with builder.role("warps", warps=16, registers=32) as r, r.loop("i", TRIPS):
            r.lds(value.whole, tile[0, :, 0:1].T, loads, into="loads", vector_bytes=4)
        return Program("lds", (), (builder.build(),), "test")

    few, more = (cycles(run(ampere, kernel(loads))) for loads in (8, 9))
    assert more - few == pytest.approx(16 * ways * TRIPS, rel=0.02)


def test_a_worse_swizzle_multiplies_the_wavefronts(ampere: GpuSpec) -> None:
    """Rows of 128 B: eight rows of an ldmatrix start in one bank without a swizzle, in two groups of four with 32 B."""

    def kernel(swizzle_bytes: int) -> Program:
        builder = KernelBuilder("swizzle", (1, 1, 1))
        tile = builder.shared("tile", (64, 64), "fp16", swizzle_bytes=swizzle_bytes)
        value = RegisterTile("value", (16, 16), "fp16")
        with builder.role("warps", warps=16, registers=32) as r, r.loop("i", TRIPS):
            r.ldmatrix(value.whole, tile[0, 0:16, 0:16], 4, into="loads")
        return Program("swizzle", (), (builder.build(),), "test")

    none, half, full = (run(ampere, kernel(swizzle)) for swizzle in (0, 64, 128))
    wavefronts = 16 * TRIPS * 4 * 4  # warps, trips, instructions, matrices
    for result, ways in ((full, 1), (half, 2), (none, 8)):
        assert cycles(result) == pytest.approx(wavefronts * ways + ampere.sm.cta_launch_cycles, rel=0.02)
        assert result.counters["shared_conflict_ticks"] == wavefronts * (ways - 1) * 256
        # Nothing waits for the last of them: what is booked beyond the end does not count.
        assert result.counters["shared_ticks"] == pytest.approx(wavefronts * ways * 256, rel=0.02)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_hide_latency_until_the_rate_is_reached(hopper: GpuSpec, stages: int) -> None:
    """A load-and-consume loop with `stages` buffers: a step takes the loop's latency over the stages, or the work."""
    steps, work = 96, 300

    def kernel(count: int, trips: int) -> Program:
        builder = KernelBuilder("stages", (1, 1, 1))
        x = GlobalTensor("x", (16 * 1024,), "fp32", (1,))
        tile = builder.shared("tile", (256,), "fp32", count)
        full, empty = builder.mbarrier("full", count, 1), builder.mbarrier("empty", count, 1)
        value = RegisterTile("value", (1, 32), "fp32")
        with builder.role("producer", warps=1, registers=32) as r, r.loop("i", trips) as i:
            r.mbarrier_wait(empty, i % count, i // count - 1)
            r.mbarrier_expect(full, i % count, 1024)
            r.tma_load(tile.stage(i % count), x[(i % 64) * 256 : 256], full, i % count)
        with builder.role("consumer", warps=1, registers=32) as r, r.loop("i", trips) as i:
            r.mbarrier_wait(full, i % count, i // count)
            r.run("ffma", work, dst=value.whole)
            r.mbarrier_arrive(empty, i % count)
        return Program("stages", (x,), (builder.build(),), "test")

    # The second half of the steps reads what the first half brought into the L2.
    step = (cycles(run(hopper, kernel(stages, 64 + steps))) - cycles(run(hopper, kernel(stages, 64)))) / steps
    assert hopper.tma is not None
    assert hopper.sync.mbarrier_wait_cycles is not None
    assert hopper.sync.mbarrier_arrive_cycles is not None
    waits = 2 * hopper.sync.mbarrier_wait_cycles + hopper.sync.mbarrier_arrive_cycles
    near = hopper.l2.hit_latency_cycles + hopper.tma.latency_cycles
    low = (near + waits + work) / stages
    high = (near + hopper.l2.far_latency_cycles + waits + work + 40) / stages
    # It asks for its buffer in every step, whether that is full or not.
    consumer = work + hopper.sync.mbarrier_wait_cycles + hopper.instruction("ffma", "fp32").interval_cycles
    assert max(low, consumer) <= step <= max(high, consumer + 8)


def test_the_chip_shares_what_it_has(ampere: GpuSpec) -> None:
    """Two SMs read from L2 at twice the rate of one: the port of each is the limit."""

    def rate(ctas: int) -> float:
        short, long = (cycles(run(ampere, micro.private_read(32 * 1024, sweeps, ctas))) for sweeps in (2, 6))
        return 4 * 32 * 1024 * 8 * ctas / (long - short)

    one, two = rate(1), rate(2)
    assert two == pytest.approx(2 * one, rel=0.05)
    assert one <= ampere.port.read_bytes_per_cycle * 1.001


def test_a_deeper_loop_costs_what_its_body_costs(ampere: GpuSpec) -> None:
    """Control flow itself is free: the loop's own instructions are written as ops by those who know them."""

    def kernel(outer: int, inner: int) -> Program:
        builder = KernelBuilder("nest", (1, 1, 1))
        value = RegisterTile("value", (1, 32), "fp32")
        with builder.role("warps", warps=1, registers=32) as r, r.loop("i", outer), r.loop("j", inner):
            r.run("ffma", 1, dst=value.whole, srcs=(value.whole,))
            with r.when(WARP.equals(1)):
                r.run("ffma", 1000)
        return Program("nest", (), (builder.build(),), "test")

    assert (
        cycles(run(ampere, kernel(1, 60))) == cycles(run(ampere, kernel(60, 1))) == cycles(run(ampere, kernel(6, 10)))
    )


@pytest.mark.parametrize(
    ("vector_bytes", "sharers", "waves"),
    [(16, 1, 4), (16, 4, 2), (16, 8, 2), (8, 1, 2), (8, 2, 1), (4, 8, 1)],
)
def test_pairs_that_read_the_same_vector_return_together(vector_bytes: int, sharers: int, waves: int) -> None:
    """NVIDIA's rule for compute capability 7.0 to 7.5: such LDS.128 take 2 wavefronts instead of 4."""
    tile = SharedTile("s", (8, 128), "fp32")
    assert access_waves(tile[0, 0:8, 0:128], vector_bytes, 32, sharers) == waves


def test_what_follows_a_spread_op_issues_between_its_instructions(ampere: GpuSpec) -> None:
    """32 mma hold their pipe for 256 cycles but take 32 slots: loads after them are hidden if spread, else they add."""

    def took(spread: bool) -> float:
        kernel = KernelBuilder("spread", (1, 1, 1))
        tile = kernel.shared("tile", (32, 64), "fp16", swizzle_bytes=128)
        a, b = RegisterTile("a", (16, 64), "fp16"), RegisterTile("b", (16, 64), "fp16")
        acc = RegisterTile("acc", (16, 64), "fp32")
        with kernel.role("warps", warps=1, registers=64) as r, r.loop("i", 16):
            for old, new in ((a, b), (b, a)):
                r.mma(acc.whole, old.whole, old.whole, shape="m16n8k16", dtype="fp16", count=32, spread=spread)
                r.ldmatrix(new.whole, tile[0, 0:16, 0:16], 16)
        return cycles(run(ampere, Program("spread", (), (kernel.build(),), "test")))

    hidden, exposed = took(True), took(False)
    assert hidden == pytest.approx(32 * 256, rel=0.1)
    # The first load issues 7 cycles before the pipe is free; then come 15 more, 4 cycles apart.
    assert exposed - hidden >= 32 * (15 * 4 - 7)


@pytest.mark.parametrize(("loads", "bound"), [(0, 2048), (256, 2048), (1024, 4096)])
def test_loads_between_multiplies_cost_what_the_array_cannot_hide(ampere: GpuSpec, loads: int, bound: int) -> None:
    """1024 FFMA hold their pipe for 2048 cycles; each LDS.128 takes four wavefronts of the array."""

    def took(trips: int) -> float:
        kernel = KernelBuilder("stream", (1, 1, 1))
        tile = kernel.shared("tile", (8, 128), "fp32")
        acc = RegisterTile("acc", (8, 128), "fp32")
        source = tile[0, 0:8, 0:128]
        with kernel.role("warps", warps=1, registers=64) as r, r.loop("i", trips):
            between = (Op("lds", loads, srcs=(source,)),) if loads else ()
            r.run("ffma", 1024, dst=acc.whole, srcs=(source,), loads=between)
        return cycles(run(ampere, Program("stream", (), (kernel.build(),), "test")))

    assert (took(9) - took(1)) / 8 == pytest.approx(bound, rel=0.01)


def test_another_warps_store_finds_room_between_the_loads_of_a_stream(ampere: GpuSpec) -> None:
    """A stream asks for the array bit by bit: a store that comes later does not wait for the stream's end."""

    def took(loads: int) -> float:
        kernel = KernelBuilder("stream", (1, 1, 1))
        tile = kernel.shared("tile", (8, 128), "fp32", 2)
        acc = RegisterTile("acc", (8, 128), "fp32")
        with kernel.role("multiply", warps=1, registers=64) as r:
            r.run(
                "ffma",
                1024,
                dst=acc.whole,
                srcs=(tile[0, 0:8, 0:128],),
                loads=(Op("lds", loads, srcs=(tile[0, 0:8, 0:128],)),),
            )
        with kernel.role("store", warps=1, registers=64) as r:
            for _ in range(20):
                r.sts(tile[1, 0:8, 0:128], acc.whole, 8)
                r.fence_async()
        return cycles(run(ampere, Program("stream", (), (kernel.build(),), "test")))

    assert took(400) == pytest.approx(took(1), rel=0.02)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_vector_instruction_takes_the_register_file_from_the_tensor_core(asynchronous: bool) -> None:
    """Beside warps that keep the tensor cores busy, each of 40 x 60 exponentials on registers costs mma.sync one cycle,
    and wgmma nothing, which rather keep the exponentials waiting."""
    hopper = load_arch("h100-sxm", ["sm.register_conflict=1 cycle"])
    conflict = hopper.sm.register_conflict_cycles

    def kernel(vector: int) -> Program:
        builder = KernelBuilder("beside", (1, 1, 1))
        a = builder.shared("a", (64, 64), "bf16", swizzle_bytes=128)
        b = builder.shared("b", (64, 256), "bf16", swizzle_bytes=128)
        acc = RegisterTile("acc", (16, 256), "fp32")
        fragment = RegisterTile("fragment", (16, 16), "bf16")
        value = RegisterTile("value", (16, 64), "fp32")
        with builder.role("tensor", warps=4, registers=168) as r, r.loop("i", TRIPS):
            if asynchronous:
                r.wgmma_fence()
                r.wgmma(acc.whole, a[0, 0:16, :], b.stage(), shape="m64n256k16", dtype="bf16", count=4)
                r.wgmma_commit()
                r.wgmma_wait(1)
            else:
                r.mma(acc[:, 0:8], fragment.whole, fragment[:, 0:8], shape="m16n8k16", dtype="bf16", count=64)
        with builder.role("vector", warps=4, registers=64) as r, r.loop("i", 40):
            r.run("ex2", 60, dtype="fp32", dst=value.whole if vector else None)
        return Program("beside", (), (builder.build(),), "test")

    none, some = (cycles(run(hopper, kernel(vector))) for vector in (0, 1))
    assert some - none == pytest.approx(0 if asynchronous else 40 * 60 * conflict, rel=0.08)
