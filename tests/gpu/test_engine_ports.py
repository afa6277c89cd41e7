"""What lies between SMs and the L2, one figure at a time: each is made the bottleneck, and rates are counted."""

from __future__ import annotations

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device
from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile
from sim.gpu.units.events import Event
from tests.gpu.conftest import column, run

VALUE, HALVES = RegisterTile("value", (8, 32), "fp32"), RegisterTile("halves", (8, 16), "fp32")
LINE_BYTES = 128


def stream(lines: int, kind: str) -> Program:
    """Two CTAs of four warps that load, store or copy lines of their own, eight at a time. half: of each loaded."""
    x, y = (
        GlobalTensor(name, (8 * lines, 32), "fp32", (32, 1), role) for name, role in (("x", "input"), ("y", "output"))
    )
    kernel = KernelBuilder("stream", (2, 1, 1))
    with kernel.role("warps", warps=4, registers=64) as r:
        with r.loop("i", lines // 8) as i:
            row = ((CTA_X * 4 + WARP) * (lines // 8) + i) * 8
            if kind == "half":
                r.ldg(HALVES.whole, x[row:8, 0:16], 8, into="x", vector_bytes=4)
            elif kind != "store":
                r.ldg(VALUE.whole, x[row:8, :], 8, into="x", vector_bytes=4)
            if kind in ("store", "copy"):
                r.stg(y[row:8, :], VALUE.whole, 8, vector_bytes=4)
        if kind != "store":
            r.run("ffma", 1, after=("x",))
    return Program("stream", (x, y), (kernel.build(),), "test")


def bytes_per_cycle(spec: GpuSpec, kind: str = "load") -> float:
    """Rate at which two CTAs go through lines that the L2 holds, by the time that more lines take."""
    took = []
    for lines in (16, 64):
        program, device = stream(lines, kind), Device(spec, cold_launch=False)
        for _ in range(2):
            result = device.run(program.kernels[0], program.addresses(), launch_ps=0, drain_ps=0)
        took.append(result.ticks)
    return 2 * 4 * 48 * LINE_BYTES * TICKS_PER_CYCLE / (took[1] - took[0])


def machine(**figures: str | int) -> GpuSpec:
    """Two SMs of an A100, in two GPCs if nothing else is said."""
    small: dict[str, str | int | float] = {"sm.count": 2, "gpc.count": 2, "launch.cta_interval": "0 ns"}
    return load_arch("a100-sxm4-80gb", small | {name.replace("_", ".", 1): value for name, value in figures.items()})


@pytest.mark.parametrize("rate", [8, 16])
@pytest.mark.parametrize("figure", ["port_read", "port_receive"])
def test_an_sm_reads_and_receives_at_the_rate_of_its_port(figure: str, rate: int) -> None:
    assert bytes_per_cycle(machine(**{figure: f"{rate} B/clk"})) == pytest.approx(2 * rate, rel=0.03)


@pytest.mark.parametrize("rate", [4, 8])
def test_an_sm_writes_at_the_rate_of_its_port(rate: int) -> None:
    assert bytes_per_cycle(machine(port_write=f"{rate} B/clk"), kind="store") == pytest.approx(2 * rate, rel=0.03)


@pytest.mark.parametrize("rate", [8, 16])
def test_sms_of_a_gpc_share_its_port(rate: int) -> None:
    """One GPC's port limits both SMs together; in two GPCs each has such a port."""
    together = bytes_per_cycle(machine(port_gpc=f"{rate} B/clk", gpc_count=1))
    apart = bytes_per_cycle(machine(port_gpc=f"{rate} B/clk", gpc_count=2))
    assert together == pytest.approx(rate, rel=0.03)
    assert apart == pytest.approx(2 * rate, rel=0.03)


@pytest.mark.parametrize("kind", ["load", "half"])
@pytest.mark.parametrize("interval", [4, 8])
def test_the_l2_takes_a_read_in_each_interval_whole_line_or_part(interval: int, kind: str) -> None:
    """`bytes_per_cycle` counts whole lines, of which a half takes as long."""
    spec = machine(l2_request="0 cycles")
    slow = machine(l2_request=f"{interval * spec.l2.slices} cycles")
    assert bytes_per_cycle(slow, kind) == pytest.approx(LINE_BYTES / interval, rel=0.03)
    assert bytes_per_cycle(spec, kind) > 1.5 * LINE_BYTES / interval


def test_a_request_takes_the_place_of_a_sector_on_the_way_out() -> None:
    """Through a slow way out a line costs four sectors if it is stored, and five if another one is loaded before."""
    found = bytes_per_cycle(machine(port_write="2 B/clk"), kind="copy")
    assert found == pytest.approx(2 * LINE_BYTES / (5 * 32 / 2), rel=0.03)


@pytest.mark.parametrize("entries", [1, 2, 4])
def test_no_more_lines_are_on_their_way_than_entries(entries: int) -> None:
    """Each line takes the L2's latency, as many at once as the L1 has entries for misses."""
    spec = machine(l1_miss_queue=entries)
    found = bytes_per_cycle(spec) / 2 / LINE_BYTES
    far = spec.l2.far_latency_cycles
    assert entries / (spec.l2.hit_latency_cycles + far + 8) < found < entries / spec.l2.hit_latency_cycles


@pytest.mark.parametrize("first", [0, 8, 16])
@pytest.mark.parametrize("sectors", [1, 2, 4])
def test_a_load_moves_the_sectors_that_it_touches(ampere: GpuSpec, sectors: int, first: int) -> None:
    """Lanes that read `sectors` times 32 bytes in a row, from an element of a line on."""
    x = GlobalTensor("x", (4096,), "fp32", (1,))
    kernel = KernelBuilder("sectors", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        value = RegisterTile("value", (8 * sectors,), "fp32")
        r.ldg(value.whole, x[first : 8 * sectors], 1, into="x", vector_bytes=4)
    result = run(ampere, kernel.build(), x)
    assert result.counters["port_read_bytes"] == result.counters["port_receive_bytes"] == 32 * sectors
    assert result.counters["l1_read_sectors"] == sectors
    assert result.counters["l1_hit_sectors"] == 0
    assert result.memory["dram_read_bytes"] == 32 * sectors


def test_the_last_of_several_loads_of_a_row_has_fewer_lanes_and_all_begin_at_sectors(ampere: GpuSpec) -> None:
    """3.5 times 128 B in four loads and four stores: no sector is moved twice."""
    x = GlobalTensor("x", (112,), "fp32", (1,))
    kernel = KernelBuilder("tail", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        value = RegisterTile("value", (112,), "fp32")
        r.ldg(value.whole, x[0:112], 4, into="x", vector_bytes=4)
        r.stg(x[0:112], value.whole, 4, vector_bytes=4, after=("x",))
    result = run(ampere, kernel.build(), x)
    assert result.counters["l1_read_sectors"] == 14
    assert result.counters["l1_hit_sectors"] == 0
    assert result.counters["port_read_bytes"] == result.counters["port_write_bytes"] == 448


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 32])
def test_lanes_of_a_warp_share_sectors(ampere: GpuSpec, stride: int) -> None:
    """32 lanes that read every `stride`-th word: a sector comes once, however many lanes read it."""
    x = GlobalTensor("x", (32, stride), "fp32", (stride, 1))
    kernel = KernelBuilder("coalesce", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        r.ldg(RegisterTile("value", (32, 1), "fp32").whole, x[0:32, 0:1], 1, into="x", vector_bytes=4)
    result = run(ampere, kernel.build(), x)
    assert result.counters["port_read_bytes"] == 32 * min(32, 4 * stride)
    assert result.memory["dram_read_bytes"] == 32 * min(32, 4 * stride)


def test_a_copy_without_registers_comes_later_than_a_load(ampere: GpuSpec) -> None:
    x = GlobalTensor("x", (4096,), "fp32", (1,))
    kernel = KernelBuilder("copy", (1, 1, 1))
    tile = kernel.shared("tile", (32,), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        r.cp_async(tile.stage(), x[0:32], 1)
        r.cp_commit()
        r.cp_wait(0)
        r.ldg(RegisterTile("value", (32,), "fp32").whole, x[32:32], 1, into="x", vector_bytes=4)
    result = run(ampere, kernel.build(), x)
    copied, loaded = (column(result, op, Event.T_DONE)[0] - column(result, op, Event.T_ISSUE)[0] for op in (0, 3))
    assert ampere.cp_async is not None
    assert copied > loaded > 0


@pytest.mark.parametrize(("first", "second", "hit"), [(0, 0, True), (0, 8, True), (8, 0, True), (0, 16, False)])
def test_the_l1_keeps_the_sectors_that_it_was_given(ampere: GpuSpec, first: int, second: int, hit: bool) -> None:
    """Two sectors of a line come one after the other; a third load finds what either of them brought, and no more."""
    x, value = GlobalTensor("x", (32,), "fp32", (1,)), RegisterTile("value", (8,), "fp32")
    kernel = KernelBuilder("sectors", (1, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        for number, element in enumerate((first, 8 - first if hit else 24, second)):
            r.ldg(value.whole, x[element:8], 1, into=f"x{number}", vector_bytes=4)
            r.run("ffma", 1, after=(f"x{number}",))
    result = run(ampere, kernel.build(), x)
    took = column(result, 4, Event.T_DONE)[0] - column(result, 4, Event.T_ISSUE)[0]
    assert result.counters["l1_hit_sectors"] == hit
    if hit:
        assert took == ampere.l1.hit_latency_cycles
    else:
        assert took >= ampere.l2.hit_latency_cycles


def test_a_load_does_not_wait_for_copies_that_found_no_place_yet() -> None:
    """Copies hold no registers: without a place among the misses on their way they stay in their warp, and a load of
    another warp waits for those alone that have one."""
    x = GlobalTensor("x", (257, 32), "fp32", (32, 1))
    kernel = KernelBuilder("copies", (1, 1, 1))
    tile = kernel.shared("tile", (256, 32), "fp32")
    with kernel.role("copies", warps=1, registers=32) as r:
        r.cp_async(tile.stage(), x[0:256, :], 256, vector_bytes=4)
        r.cp_commit()
        r.cp_wait(0)
    with kernel.role("loads", warps=1, registers=32) as r:
        r.run("iadd", 500, dtype="int32")
        r.ldg(RegisterTile("value", (1, 32), "fp32").whole, x[256:1, :], 1, into="x", vector_bytes=4)
    result = run(machine(l1_miss_queue=8), kernel.build(), x)
    copies, load = (
        column(result, op, Event.T_DONE, warp)[0] - column(result, op, Event.T_ISSUE, warp)[0]
        for warp, op in ((0, 0), (1, 4))
    )
    assert load < copies / 4
