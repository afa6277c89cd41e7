"""Which CTAs an SM holds, where CTAs go and in which order, and which warp issues."""

from __future__ import annotations

import heapq

import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE, ps_to_ticks
from sim.gpu.engine.api import Device
from sim.gpu.language import CTA_X, WARP, Kernel, KernelBuilder, RegisterTile, table
from sim.gpu.lower.occupancy import occupancy
from sim.gpu.units.cta import Cta, CtaSlots
from sim.gpu.units.events import Event
from sim.gpu.units.port import Port
from sim.gpu.units.warp import Warp
from tests.gpu.conftest import column, cycles, run

VALUE = RegisterTile("value", (1, 32), "fp32")


def plain(ctas: int = 1, warps: int = 8, registers: int = 32, shared_bytes: int = 0) -> Kernel:
    kernel = KernelBuilder("plain", (ctas, 1, 1))
    if shared_bytes:
        kernel.shared("tile", (shared_bytes,), "int8")
    with kernel.role("warps", warps=warps, registers=registers) as r:
        r.run("ffma", 1)
    return kernel.build()


# Registers a thread -> warps an SM for CTAs of 256 threads: NVIDIA's occupancy calculator, 64 K registers, 64 warps.
REGISTER_TABLE = {
    32: 64,
    33: 48,
    40: 48,
    41: 40,
    48: 40,
    49: 32,
    64: 32,
    65: 24,
    80: 24,
    81: 16,
    128: 16,
    129: 8,
    255: 8,
}


@pytest.mark.parametrize(("registers", "warps"), REGISTER_TABLE.items())
@pytest.mark.parametrize("machine", ["v100-sxm2", "a100-sxm4-80gb", "h100-sxm"])
def test_registers_limit_occupancy_in_steps(machine: str, registers: int, warps: int) -> None:
    assert occupancy(plain(registers=registers), load_arch(machine)).warps == warps


@pytest.mark.parametrize(
    ("machine", "shared_kib", "ctas"),
    [
        ("v100-sxm2", 48, 2),
        ("v100-sxm2", 49, 1),
        ("a100-sxm4-80gb", 81, 2),  # 164 KiB less 1 KiB a CTA
        ("a100-sxm4-80gb", 82, 1),
        ("h100-sxm", 113, 2),  # 228 KiB less 1 KiB a CTA
        ("h100-sxm", 114, 1),
        ("t4", 32, 2),
        ("t4", 33, 1),
    ],
)
def test_shared_memory_limits_occupancy(machine: str, shared_kib: int, ctas: int) -> None:
    held = occupancy(plain(warps=4, shared_bytes=shared_kib * 1024), load_arch(machine))
    assert (held.ctas, held.limiter) == (ctas, "shared memory")


def test_warps_and_slots_limit_occupancy() -> None:
    t4 = load_arch("t4")
    assert occupancy(plain(warps=1), t4).ctas == 16
    assert occupancy(plain(warps=32), t4).ctas == 1
    assert occupancy(plain(warps=4), load_arch("h100-sxm")).ctas == 16
    assert occupancy(plain(warps=1), load_arch("h100-sxm")).ctas == 32


def test_warps_of_a_sub_core_share_its_registers() -> None:
    """104 registers a thread: 3328 a warp, four warps in the 16384 of a sub-core although 19 would fit 65536."""
    assert occupancy(plain(warps=1, registers=104), load_arch("a100-sxm4-80gb")).ctas == 16


@pytest.mark.parametrize(("kernel", "text"), [(plain(registers=256), "255"), (plain(shared_bytes=300_000), "232448")])
def test_what_does_not_fit_is_refused(kernel: Kernel, text: str) -> None:
    with pytest.raises(InputError, match=text):
        occupancy(kernel, load_arch("h100-sxm"))


def test_one_register_over_a_step_costs_a_wave(ampere: GpuSpec) -> None:
    """CTAs that only meet at barriers do not slow each other down: four at once, or three and then one."""

    def kernel(registers: int) -> Kernel:
        builder = KernelBuilder("waves", (8, 1, 1))
        with builder.role("warps", warps=8, registers=registers) as r, r.loop("i", 500):
            r.bar_sync(0, 8)
        return builder.build()

    one, two = cycles(run(ampere, kernel(64))), cycles(run(ampere, kernel(65)))
    launch, barrier = ampere.sm.cta_launch_cycles, ampere.sync.barrier_cycles + 8 * ampere.sync.barrier_per_warp_cycles
    cta = launch + 500 * (barrier + 1)  # 1: the issue of the barrier itself
    assert one == cta + 3 * 8 * 3  # the SM sets up three CTAs before the fourth, 3 cycles a warp
    assert two == 2 * cta


def test_ctas_start_in_linear_order_on_the_emptiest_sm(hopper: GpuSpec) -> None:
    device = Device(hopper, cold_launch=False)
    launch = device.build(plain(ctas=6, warps=4, registers=128), {}, launch_ps=0)
    launch.advance(0)
    ctas = launch.state.ctas
    per_sm = launch.occupancy.ctas
    placed = [
        [int(row[Cta.LINEAR]) for row in ctas[sm * per_sm : (sm + 1) * per_sm] if row[Cta.ACTIVE]] for sm in (0, 1)
    ]
    assert placed == [[0, 2, 4], [1, 3, 5]]


def test_ctas_fewer_than_sms_go_to_the_gpcs_in_turn() -> None:
    """A GPC's link to the L2 is shared, so that one GPC full of CTAs beside empty ones would be slower."""
    spec = load_arch("a100-sxm4-80gb", {"sm.count": 7, "gpc.count": 3})  # GPCs of 3, 2 and 2 SMs
    launch = Device(spec, cold_launch=False).build(plain(ctas=5, warps=1), {}, launch_ps=0)
    launch.advance(0)
    per_sm = launch.occupancy.ctas
    rows = launch.state.ctas
    placed = [
        [int(row[Cta.LINEAR]) for row in rows[sm * per_sm : (sm + 1) * per_sm] if row[Cta.ACTIVE]] for sm in range(7)
    ]
    assert placed == [[0], [3], [], [1], [4], [2], []]


def test_the_chip_hands_out_one_cta_after_the_other() -> None:
    spec = load_arch("a100-sxm4-80gb", {"sm.count": 2, "gpc.count": 2, "launch.cta_interval": "10 ns"})
    result = run(spec, plain(ctas=6, warps=1))
    begun = [column(result, 0, Event.T_ISSUE, cta=cta)[0] for cta in range(6)]
    interval = ps_to_ticks(10_000, spec.clock.boost_hz) / TICKS_PER_CYCLE
    assert begun == [spec.sm.cta_launch_cycles + cta * interval for cta in range(6)]


def test_later_ctas_take_the_first_slot_that_is_free(hopper: GpuSpec) -> None:
    """List scheduling by hand: 20 CTAs of different lengths on 2 SMs that hold one each."""
    lengths = [37, 400, 12, 250, 90, 61, 333, 5, 180, 77, 140, 260, 31, 92, 111, 205, 17, 66, 300, 45]
    builder = KernelBuilder("list", (len(lengths), 1, 1))
    builder.shared("tile", (200_000,), "int8")
    with builder.role("warp", warps=1, registers=32) as r, r.loop("i", table(lengths, CTA_X)):
        r.run("ffma", 1, dst=VALUE.whole, srcs=(VALUE.whole,))
    result = run(hopper, builder.build())
    latency, launch = hopper.instruction("ffma", "fp32").latency_cycles, hopper.sm.cta_launch_cycles
    free = [0.0, 0.0]
    for cta, length in enumerate(lengths):
        begin = heapq.heappop(free) + launch
        assert column(result, 0, Event.T_ISSUE, cta=cta)[0] == begin
        # The last instruction has issued when its CTA ends: nothing waits for its result.
        heapq.heappush(free, begin + (length - 1) * latency + 1)
    assert cycles(result) == max(free)


@pytest.mark.parametrize(
    ("warps", "first"), [(1, [0, 1, 2, 3]), (2, [0, 2, 1, 3]), (4, [0, 1, 2, 3]), (6, [0, 2, 1, 3])]
)
def test_ctas_begin_on_the_sub_cores_in_turn(warps: int, first: list[int]) -> None:
    """Rows of 192 numbers, of which two warps of four have all: 16,384 on H200 take 60,724 cycles, in which the first
    warps of 124 CTAs of an SM execute more than 58,000 instructions."""
    spec = load_arch("a100-sxm4-80gb", {"sm.count": 1, "gpc.count": 1})
    launch = Device(spec, cold_launch=False).build(plain(ctas=4, warps=warps), {}, launch_ps=0)
    launch.advance(0)
    rows = launch.state.warps[: 4 * warps]
    assert [int(row[Warp.SUB_CORE]) for row in rows if row[Warp.NUMBER] == 0] == first
    for cta in range(4):
        places = [int(row[Warp.SUB_CORE]) for row in rows if row[Warp.CTA] == cta]
        assert max(map(places.count, places)) == -(-warps // 4), "a CTA's warps are spread over all of them"


def test_first_warps_with_all_the_work_share_an_sm(ampere: GpuSpec) -> None:
    """Four CTAs whose first warp alone has something to do take as long as one."""

    def kernel(ctas: int) -> Kernel:
        builder = KernelBuilder("first", (ctas, 1, 1))
        with builder.role("warps", warps=4, registers=32) as r, r.when(WARP.equals(0)):
            r.run("ffma", 4000)
        return builder.build()

    one, four = cycles(run(ampere, kernel(1))), cycles(run(ampere, kernel(4)))
    assert one <= four <= one + 3 * 4 * 3  # the SM sets up CTAs one by one


def test_the_ctas_of_a_cluster_share_a_gpc() -> None:
    spec = load_arch("h100-sxm", {"sm.count": 13, "sm.per_tpc": 1, "gpc.count": 3, "gpc.single_tpcs": 0})
    builder = KernelBuilder("clusters", (12, 1, 1), (4, 1, 1))
    builder.shared("tile", (200_000,), "int8")
    with builder.role("warp", warps=1, registers=32) as r:
        r.cluster_sync()
    launch = Device(spec, cold_launch=False).build(builder.build(), {}, launch_ps=0)
    launch.advance(0)
    sms = launch.state.sms
    gpcs: dict[int, set[int]] = {}
    for sm, row in enumerate(launch.state.ctas):
        if row[Cta.ACTIVE]:
            gpcs.setdefault(int(row[Cta.CLUSTER]), set()).add(int(sms[sm, Port.GPC]))
    assert [len(g) for g in gpcs.values()] == [1, 1, 1]
    assert set.union(*gpcs.values()) == {0, 1, 2}
    assert launch.run().counters["ctas"] == 12


@pytest.mark.parametrize(
    ("sms", "gpcs", "size", "ctas", "on_sms"),
    [
        (13, 3, 2, 12, [1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]),  # GPCs of 5, 4 and 4 SMs
        (13, 3, 2, 14, [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),  # the seventh finds no two SMs that are empty
        (4, 2, 4, 4, [2, 2, 0, 0]),  # no GPC has as many SMs
    ],
)
def test_clusters_go_where_each_of_their_ctas_finds_an_empty_sm(
    sms: int, gpcs: int, size: int, ctas: int, on_sms: list[int]
) -> None:
    """An SM holds two of these CTAs. A larger GPC has more room, but no second CTA on an SM while others are empty."""
    spec = load_arch("h100-sxm", {"sm.count": sms, "sm.per_tpc": 1, "gpc.count": gpcs, "gpc.single_tpcs": 0})
    builder = KernelBuilder("clusters", (ctas, 1, 1), (size, 1, 1))
    builder.shared("tile", (100_000,), "int8")
    with builder.role("warp", warps=1, registers=32) as r:
        r.cluster_sync()
    launch = Device(spec, cold_launch=False).build(builder.build(), {}, launch_ps=0)
    launch.advance(0)
    active = launch.state.ctas[:, Cta.ACTIVE].reshape(sms, -1)
    assert active.sum(axis=1).tolist() == on_sms


@pytest.mark.parametrize(
    ("size", "number", "places"),
    [
        # As counted on H100 and H200, but for the GPC where turns begin (`cluster_places.csv`).
        (1, 24, [*range(12), *range(12)]),
        (2, 66, [*range(4), *[4, 5, 6, 7, 8, 9, 10, 11] * 4, *[4, 5, 6, 7, 9, 10, 11] * 4, 4, 5]),
        (4, 30, [*[4, 5, 6, 7, 8, 9, 10, 11] * 2, *[4, 5, 6, 7, 9, 10, 11] * 2]),
        (8, 15, [4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 9, 10, 11]),
    ],
)
def test_clusters_go_to_single_tpcs_and_then_to_the_gpcs_in_turn(size: int, number: int, places: list[int]) -> None:
    """No SM gets the second CTA that it has room for."""
    builder = KernelBuilder("clusters", (size * number, 1, 1), (size, 1, 1))
    builder.shared("tile", (100_000,), "int8")
    with builder.role("warp", warps=1, registers=32) as r:
        r.cluster_sync()
    launch = Device(load_arch("h100-sxm"), cold_launch=False).build(builder.build(), {}, launch_ps=0)
    launch.advance(0)
    ctas, sms = launch.state.ctas, launch.state.sms
    place_of = {
        int(cta[Cta.CLUSTER]): int(sms[slot * len(sms) // len(ctas), CtaSlots.PLACE])
        for slot, cta in enumerate(ctas)
        if cta[Cta.ACTIVE]
    }
    assert [place_of[cluster] for cluster in range(number)] == places


def test_persistent_ctas_take_each_tile_once_and_in_order_of_time(hopper: GpuSpec) -> None:
    tiles = 24
    builder = KernelBuilder("persistent", (2, 1, 1))
    with builder.role("warp", warps=1, registers=32) as r, r.loop("i", tiles + 1):
        tile = r.next_tile("tile")
        with r.when(tile < tiles):
            r.run("ffma", 40, dst=VALUE.whole)
        with r.when(tile.equals(3)):
            r.run("ffma", 4000, dst=VALUE.whole)
    result = run(hopper, builder.build())
    taken = [column(result, 0, Event.VALUE, cta=cta) for cta in (0, 1)]
    assert sorted(tile for cta in taken for tile in cta if tile < tiles) == list(range(tiles))
    assert all(cta == sorted(cta) for cta in taken)
    # The CTA that met the long tile leaves the rest to the other.
    busy = next(cta for cta in taken if 3 in cta)
    assert [tile for tile in busy if tile < tiles][-1] <= 5 or len([tile for tile in busy if tile < tiles]) < tiles // 2


@pytest.mark.parametrize("policy", ["gto", "lrr", "oldest"])
def test_the_policy_decides_who_issues(policy: str) -> None:
    """Two warps of one sub-core, each with 20 independent instructions of one pipe: greedy finishes one warp first."""
    spec = load_arch("a100-sxm4-80gb", {"sm.count": 1, "gpc.count": 1, "sm.scheduler": policy})
    builder = KernelBuilder("policy", (1, 1, 1))
    with builder.role("warps", warps=5, registers=32) as r, r.when((WARP % 4).equals(0)), r.loop("i", 20):
        r.run("ffma", 1)
    result = run(spec, builder.build(), exact=True)
    finished = {warp: column(result, 0, Event.T_ISSUE, warp)[-1] for warp in (0, 4)}
    begun = min(column(result, 0, Event.T_ISSUE, warp)[0] for warp in (0, 4))
    gap = abs(finished[0] - finished[4])
    assert max(finished.values()) - begun == 39 * 2  # the pipe is never idle, whoever goes first
    if policy == "lrr":
        assert gap == 2
    else:
        assert gap == 20 * 2


@pytest.mark.parametrize(("policy", "stays"), [("gto", True), ("oldest", False)])
def test_a_greedy_scheduler_stays_with_a_warp_when_an_older_one_is_ready(policy: str, stays: bool) -> None:
    """The older CTA's warp waits for a result while the younger one's begins its 40 instructions of one pipe."""
    spec = load_arch("a100-sxm4-80gb", {"sm.count": 1, "gpc.count": 1, "sm.scheduler": policy})
    builder = KernelBuilder("greedy", (2, 1, 1))
    with builder.role("warps", warps=4, registers=32) as r:
        with r.when(CTA_X.equals(0)):
            r.run("ex2", 8, dtype="fp32", dst=VALUE.whole)
            r.run("ffma", 1, srcs=(VALUE.whole,))
        with r.when(CTA_X.equals(1)), r.loop("i", 40):
            r.run("ffma", 1)
    result = run(spec, builder.build(), exact=True)
    ready, older = column(result, 0, Event.T_DONE)[0], column(result, 1, Event.T_ISSUE)[0]
    younger = column(result, 2, Event.T_ISSUE, cta=1)
    assert younger[0] < ready < younger[-1]
    assert (older > younger[-1]) == stays
    if not stays:
        assert older <= ready + 2


def test_launch_ticks_are_whole_cycles_of_the_clock(hopper: GpuSpec) -> None:
    result = run(hopper, plain())
    assert result.ticks % TICKS_PER_CYCLE == 0


def test_an_older_warp_overtakes_a_spread_op_and_puts_its_end_off() -> None:
    """Two CTAs, a warp each on every sub-core: the older one's next 32 mma start inside the younger one's 32.

    Under loose round robin they start after them. An mma holds the pipe for 8 cycles.
    """

    def issued_and_done(policy: str) -> tuple[float, float]:
        kernel = KernelBuilder("overtake", (2, 1, 1))
        a = RegisterTile("a", (16, 16), "fp16")
        accumulators = [RegisterTile(f"acc{i}", (16, 16), "fp32") for i in range(2)]
        with kernel.role("warps", warps=4, registers=64) as r:
            for acc in accumulators:
                r.mma(acc.whole, a.whole, a.whole, shape="m16n8k16", dtype="fp16", count=32, spread=True)
                r.run("ffma", 1, dst=VALUE.whole, srcs=(acc.whole,))
        spec = load_arch("a100-sxm4-80gb", {"sm.count": 1, "gpc.count": 1, "sm.scheduler": policy})
        result = run(spec, kernel.build())
        return column(result, 2, Event.T_ISSUE)[0], column(result, 0, Event.T_DONE, cta=1)[0]

    (issued, done), (late_issued, late_done) = issued_and_done("gto"), issued_and_done("lrr")
    launch, pipe = load_arch("a100-sxm4-80gb").sm.cta_launch_cycles, 32 * 8
    assert launch + pipe < issued < launch + 1.2 * pipe
    assert launch + 2 * pipe <= late_issued
    assert done == late_done + pipe


@pytest.mark.parametrize("policy", ["gto", "oldest"])
def test_the_special_function_unit_goes_to_the_older_warp_whoever_had_it(hopper: GpuSpec, policy: str) -> None:
    """An exponential takes the unit for 8 cycles, and four of them issue in one event.

    Warps 0 to 3 come 100 cycles later than warps 4 to 7, whose 200 exponentials are in progress: their 40 take 40 x 8
    cycles, and put the end of the others off by as much.
    """
    kernel = KernelBuilder("special", (1, 1, 1))
    with kernel.role("older", warps=4, registers=64) as r:
        r.run("iadd", 50, dtype="int32", dst=VALUE.whole)
        r.run("ex2", 40, dtype="fp32", dst=VALUE.whole)
    with kernel.role("younger", warps=4, registers=64) as r:
        r.run("ex2", 200, dtype="fp32", dst=VALUE.whole)
    result = run(load_arch("h100-sxm", {"sm.count": 1, "gpc.count": 1, "sm.scheduler": policy}), kernel.build())
    begun = column(result, 0, Event.T_ISSUE)[0]
    latency = hopper.instruction("ex2", "fp32", "").latency_cycles
    assert column(result, 1, Event.T_DONE)[0] - begun == pytest.approx(100 + 40 * 8 + latency, abs=4 * 8 + 8)
    assert column(result, 2, Event.T_DONE, 4)[0] - begun == pytest.approx(240 * 8 + latency, abs=16)
