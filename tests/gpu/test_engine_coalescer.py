"""Reads of one line by SMs of a GPC at about the same time: which are one for the slice, and which are not."""

from __future__ import annotations

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device, KernelResult
from sim.gpu.language import CTA_X, GlobalTensor, KernelBuilder, Program, RegisterTile
from workloads.gpu import overhead

SECTORS = 4
WAIT = 45


def machine(sms: int = 2, **figures: str | int) -> GpuSpec:
    """SMs of one GPC of an H100, if nothing else is said, that start together."""
    small: dict[str, str | int | float] = {
        **{"sm.count": sms, "gpc.count": 1, "gpc.single_tpcs": 0, "launch.cta_interval": "0 ns"},
        **{"l2.coalescer_wait": f"{WAIT} cycles"},
    }
    return load_arch("h100-sxm", small | {name.replace("_", ".", 1): value for name, value in figures.items()})


def reader(ctas: int, delay: int = 0, lines: int = 1) -> Program:
    """A warp on each SM that reads the same lines, the second and later ones `delay` cycles after the first."""
    x = GlobalTensor("x", (lines, 32), "fp32", (32, 1))
    kernel = KernelBuilder("reader", (ctas, 1, 1))
    kernel.shared("only one on an SM", (32 * 1024,), "fp32")
    with kernel.role("warp", warps=1, registers=64) as r:
        with r.when(CTA_X.equals(0)):
            overhead.waits(r, 1000)
        with r.when(CTA_X >= 1):
            overhead.waits(r, 1000 + delay)
        r.ldg(RegisterTile("value", (lines, 32), "fp32").whole, x[0:lines, :], lines, into="x", vector_bytes=4)
        r.run("ffma", 1, after=("x",))
    return Program("reader", (x,), (kernel.build(),), "test")


def warm_run(spec: GpuSpec, program: Program) -> KernelResult:
    """Of a kernel whose lines the L2 holds."""
    device = Device(spec, cold_launch=False)
    device.run(program.kernels[0], program.addresses(), launch_ps=0, drain_ps=0)
    return device.run(program.kernels[0], program.addresses(), launch_ps=0, drain_ps=0)


def joined(result: KernelResult) -> int:
    """Reads of a whole line that joined another."""
    return result.memory["l2_coalesced_sectors"] // SECTORS


@pytest.mark.parametrize(("delay", "expected"), [(0, 1), (WAIT - 3, 1), (WAIT + 3, 0), (300, 0)])
def test_a_read_joins_one_whose_data_have_not_left(delay: int, expected: int) -> None:
    assert joined(warm_run(machine(), reader(2, delay))) == expected


@pytest.mark.parametrize(("together", "expected"), [(1, 0), (2, 4), (4, 6), (8, 7)])
def test_one_read_answers_so_many_at_most(together: int, expected: int) -> None:
    assert joined(warm_run(machine(8, **{"l2_coalescer_reads": together}), reader(8))) == expected


@pytest.mark.parametrize(("ctas", "expected"), [(2, 0), (4, 2)])
def test_sms_of_different_gpcs_do_not_join(ctas: int, expected: int) -> None:
    """One CTA reads first, the others 20 cycles later: those of its GPC join it, and those of the other each other."""
    assert joined(warm_run(machine(ctas, gpc_count=2), reader(ctas, delay=20))) == expected


def test_without_a_coalescer_all_reads_reach_the_slice() -> None:
    assert joined(warm_run(machine(8, l2_coalescer=0), reader(8))) == 0


def test_a_read_that_joins_takes_no_time_of_slice_and_port() -> None:
    """Four SMs that read 32 lines through a narrow port of their GPC: together in the time of one SM."""
    took = {}
    for sms, together in ((1, 4), (4, 4), (4, 1)):
        spec = machine(sms, port_gpc="16 B/clk", **{"l2_coalescer_reads": together})
        took[sms, together] = warm_run(spec, reader(sms, lines=32)).ticks // TICKS_PER_CYCLE
    assert took[4, 4] == pytest.approx(took[1, 4], abs=10)
    assert took[4, 1] - took[1, 4] == pytest.approx(3 * 32 * 128 / 16 * 1.98 / 1.7, rel=0.05)


def test_it_holds_so_many_reads_for_a_gpc() -> None:
    """All lines of one slice: with two places, the third line's read has taken that of the first."""
    spec = machine(2, l2_slices=2, l2_coalescer=2)
    late = reader(2, delay=20, lines=32)
    few, many = (joined(warm_run(machine(2, l2_slices=2, l2_coalescer=places), late)) for places in (2, 16))
    assert spec.l2.coalescer == 2
    assert few < many
