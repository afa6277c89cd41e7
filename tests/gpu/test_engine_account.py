"""Accounts that add up, results that do not depend on how they are asked for, and errors that name their cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.counters import Counter
from sim.gpu.engine.api import Device, KernelResult, Launch
from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.language import WARP, GlobalTensor, KernelBuilder, Program, RegisterTile
from sim.gpu.power.regulator import FixedClock
from sim.gpu.units.events import Window
from sim.gpu.units.warp import Warp
from tests.gpu.conftest import run
from tests.gpu.kernels import dynamic_copy, matrix, mma_gemm, split_sum, tma_copy, wgmma_gemm


def wgmma(*shape: int, cluster: int = 1) -> Program:
    """The warp-specialised multiply; its roles re-allocate registers, so that all warps start with 168."""
    program = wgmma_gemm(*shape, cluster=cluster)
    return replace(program, kernels=tuple(replace(kernel, launch_registers=168) for kernel in program.kernels))


def reduction() -> Program:
    """Eight CTAs add to one vector at the L2."""
    y, value = GlobalTensor("y", (128,), "fp32", (1,), "output"), RegisterTile("value", (128,), "fp32")
    kernel = KernelBuilder("reduction", (8, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        r.run("ffma", 4, dst=value.whole)
        r.red(y[0:128], value.whole, 1)
    return Program("reduction", (y,), (kernel.build(),), "test")


Case = tuple[str, Callable[[], Program]]
CASES: dict[str, Case] = {
    "tma copy": ("h100-sxm", tma_copy),
    "wgmma": ("h100-sxm", lambda: wgmma(256, 256, 256)),
    "wgmma cluster": ("h100-sxm", lambda: wgmma(256, 128, 256, cluster=2)),
    "mma": ("a100-sxm4-80gb", mma_gemm),
    "semaphore": ("a100-sxm4-80gb", split_sum),
    "dynamic": ("h100-sxm", dynamic_copy),
    "reduction": ("v100-sxm2", reduction),
}


def machine(name: str, sms: int = 2) -> GpuSpec:
    """A few SMs of one GPC, so that clusters of two fit."""
    return load_arch(name, {"sm.count": sms, "gpc.count": 1})


def outcome(result: KernelResult) -> dict[str, object]:
    """Everything about a result that must be reproducible."""
    return {
        "ticks": result.ticks,
        "time_ps": result.time_ps,
        "energy_fj": result.energy_fj,
        "counters": {name: count for name, count in result.counters.items() if name != "events"},
        "memory": result.memory,
        "warp_states": result.warp_states,
        "barrier_waits": result.barrier_waits,
        "issue_slots": result.issue_slots,
    }


def run_case(case: str, quantum: int = 0) -> list[dict[str, object]]:
    """Outcomes of a case's kernels; quantum: ticks of each call of `advance`, 0 for one go."""
    name, make = CASES[case]
    program, device = make(), Device(machine(name))
    results = []
    for kernel in program.kernels:
        launch = device.build(kernel, program.addresses())
        tick = 0
        while quantum and launch.advance(tick) >= 0:
            tick += quantum
        result = outcome(launch.run())
        if quantum:  # energy is booked by the windows of `run`; how often the engine was entered is no result
            del result["energy_fj"]
        results.append(result)
    return results


@pytest.mark.parametrize("case", CASES)
def test_warp_states_sum_to_residency_and_issue_slots_to_sub_cores_times_ticks(case: str) -> None:
    name, make = CASES[case]
    spec = machine(name, sms=4)
    program, device = make(), Device(spec)
    for kernel in program.kernels:
        launch = device.build(kernel, program.addresses())
        tick = 0
        while launch.state.counters[Counter.CTAS] < kernel.ctas:  # one wave: all CTAs are placed at once
            tick += 256
            launch.advance(tick)
        begun = launch.state.warps[:, Warp.ACCOUNTED].copy()
        accounted = int(launch.state.warp_states.sum())
        result = launch.run()
        ended = launch.state.warps[:, Warp.ACCOUNTED]
        assert int((ended > 0).sum()) == kernel.ctas * kernel.warps
        assert sum(result.warp_states.values()) - accounted == int((ended - begun).sum())
        assert sum(result.issue_slots.values()) == spec.sm.count * spec.sm.sub_cores * result.ticks
        assert sum(result.barrier_waits.values()) == result.warp_states["barrier"]
        assert result.warp_states["selected"] == result.issue_slots["selected"]
        assert min(*result.warp_states.values(), *result.issue_slots.values()) >= 0


@pytest.mark.parametrize("case", ["tma copy", "wgmma", "wgmma cluster", "semaphore", "dynamic", "reduction"])
@pytest.mark.parametrize("quantum", [333, 4096])
def test_advancing_in_quanta_gives_the_same_result(case: str, quantum: int) -> None:
    in_one_go = run_case(case)
    for result in in_one_go:
        del result["energy_fj"]
    assert run_case(case, quantum) == in_one_go


@pytest.mark.parametrize("window_ps", [0, 150_000])
def test_a_limit_gives_up_what_takes_longer_and_leaves_the_rest_as_it_is(window_ps: int) -> None:
    name, make = CASES["wgmma"]
    program = make()
    spec, (kernel,) = machine(name), program.kernels

    def launch(limit_ps: int | None) -> Launch:
        made = Device(spec, regulator=FixedClock(spec.clock.boost_hz, window_ps)).build(kernel, program.addresses())
        for _ in made.windows(limit_ps=limit_ps):
            pass
        return made

    free = launch(None)
    assert launch(free.result.time_ps).result == free.result
    given_up = launch(free.result.time_ps * 9 // 10)
    assert given_up.late
    assert not hasattr(given_up, "result")
    assert 0 < given_up.events < free.events


@pytest.mark.parametrize("case", CASES)
def test_the_same_input_gives_the_same_result_again(case: str) -> None:
    assert run_case(case) == run_case(case)


def test_bytes_are_conserved(hopper: GpuSpec) -> None:
    """A copy reads and writes each byte once; what it reads cold comes from DRAM, what it writes is in the L2."""
    program = tma_copy(rows=192, columns=64)
    result = run(hopper, program)
    size = 192 * 64 * 4
    assert result.counters["global_read_bytes"] == result.counters["global_write_bytes"] == size
    assert result.counters["port_read_bytes"] == result.counters["port_receive_bytes"] == size
    assert result.counters["port_write_bytes"] == size
    memory = result.memory
    assert 32 * memory["l2_read_sectors"] == 32 * memory["l2_write_sectors"] == size
    assert 32 * memory["l2_read_miss_sectors"] == size
    assert memory["dram_read_bytes"] == size
    assert memory["l2_fetch_sectors"] == 0  # whole sectors are written without a fetch


def test_multicast_reads_once_what_two_ctas_receive() -> None:
    result = run(machine("h100-sxm"), wgmma(256, 128, 256, cluster=2))
    a, b = 256 * 256 * 2, 256 * 128 * 2
    assert result.counters["port_read_bytes"] == a + b
    assert result.counters["port_receive_bytes"] == a + 2 * b


def test_macs_are_those_of_the_product() -> None:
    assert run(machine("h100-sxm"), wgmma(256, 256, 256)).counters["macs_tensor"] == 256**3
    # Tiles of 64 x 64 x 32 pad 96 x 64 x 96.
    assert run(machine("a100-sxm4-80gb"), mma_gemm(96, 64, 96)).counters["macs_tensor"] == 128 * 64 * 96


def test_a_second_run_finds_its_data_in_the_l2(ampere: GpuSpec) -> None:
    program = mma_gemm()
    device = Device(ampere, cold_launch=False)
    (kernel,), addresses = program.kernels, program.addresses()
    cold, warm = (device.run(kernel, addresses) for _ in range(2))
    device.flush_l2()
    flushed = device.run(kernel, addresses)
    assert warm.ticks < cold.ticks
    assert warm.memory["dram_read_bytes"] == 0
    assert flushed.memory["dram_read_bytes"] == cold.memory["dram_read_bytes"] > 0


def test_rows_that_share_lines_fill_those_lines() -> None:
    x = matrix("x", 64, 16, "fp32")
    kernels = []
    for columns in (8, 16):  # 32 of the 64 bytes of each row, then all
        kernel, tile = KernelBuilder(f"read_{columns}", (1, 1, 1)), RegisterTile("tile", (64, columns), "fp32")
        with kernel.role("warp", warps=1, registers=64) as r:
            r.ldg(tile.whole, x[0:64, 0:columns], 2 * columns, into="tile")
        kernels.append(kernel.build())
    program, device = Program("read", (x,), tuple(kernels), "test"), Device(machine("v100-sxm2"), cold_launch=False)
    narrow, wide = (device.run(kernel, program.addresses()) for kernel in program.kernels)
    assert narrow.memory["l2_read_miss_sectors"] == wide.memory["l2_read_hit_sectors"] == 64


# ------------------------------------------------------------------------------------------------------------- errors


def deadlock(kind: str) -> Program:
    """Programs that wait for what nobody does."""
    kernel = KernelBuilder("stuck", (1, 1, 1), flags=1)
    barrier = kernel.mbarrier("full", 2, 1)
    with kernel.role("waits", warps=2, registers=32) as r:
        if kind == "mbarrier":
            r.mbarrier_wait(barrier, 1, 0)
        elif kind == "bar_sync":
            with r.when(WARP.equals(0)):
                r.bar_sync(3, 2)
        else:
            r.flag_wait(0, 5)
    return Program("stuck", (), (kernel.build(),), "test")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mbarrier", ["warps 0-1 at mbarrier full[1] for phase 0 (waits, mbarrier_wait at test_engine_account.py:"]),
        ("bar_sync", ["warp 0 at bar_sync 3 for 2 warps (waits, bar_sync at test_engine_account.py:"]),
        ("flag", ["warps 0-1 at flag 0 for 5 (waits, flag_wait at test_engine_account.py:"]),
    ],
)
def test_a_deadlock_names_who_waits_for_what(hopper: GpuSpec, kind: str, words: list[str]) -> None:
    with pytest.raises(DeadlockError) as error:
        run(hopper, deadlock(kind))
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("kernel stuck deadlocks: CTA (0, 0, 0)")
    for word in words:
        assert word in message


# ------------------------------------------------------------------------------------------ other processes and modes


def tiny() -> dict[str, int]:
    """Ticks of launches that are small enough to run without compilation, through every kind of op."""
    x = GlobalTensor("x", (512,), "fp32", (1,))
    value = RegisterTile("value", (128,), "fp32")
    kernel = KernelBuilder("tiny", (2, 1, 1))
    with kernel.role("warps", warps=2, registers=32) as r, r.loop("i", 2) as i:
        r.ldg(value.whole, x[i * 256 + WARP * 128 : 128], 1, into="x")
        r.run("ffma", 8, dst=value.whole, srcs=(value.whole,), after=("x",), mix=(("iadd", 3),))
        r.bar_sync(0, 2)
        r.stg(x[i * 256 + WARP * 128 : 128], value.whole, 1)
    programs = {
        "plain": ("v100-sxm2", Program("tiny", (x,), (kernel.build(),), "test")),
        "tma copy": ("h100-sxm", tma_copy(64, 32)),
        "wgmma": ("h100-sxm", wgmma(128, 128, 64)),
        "semaphore": ("a100-sxm4-80gb", split_sum(32, 2)),
        "dynamic": ("h100-sxm", dynamic_copy(2)),
        "cp.async": ("a100-sxm4-80gb", mma_gemm(64, 64, 32)),
    }
    ticks = {}
    for name, (arch, program) in programs.items():
        # They record, so that each mode has one version of the engine to compile, the larger one.
        device = Device(load_arch(arch, {"sm.count": 2, "gpc.count": 1}), window=Window(0, 1 << 40, 0, 1, 1 << 14))
        results = [device.run(kernel, program.addresses()) for kernel in program.kernels]
        digest = json.dumps([outcome(result) for result in results], sort_keys=True)
        ticks[name] = int(np.frombuffer(digest.encode(), np.uint8).astype(np.int64) @ np.arange(1, len(digest) + 1))
        ticks[name] = ticks[name] * 1_000_003 + sum(result.ticks for result in results)
        for result in results:
            assert result.trace is not None
            assert result.events is not None
            rows = [*result.trace.tolist(), *result.events.tolist()]
            ticks[name] += sum((i + 1) * value for i, row in enumerate(rows) for value in row)
    return ticks


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({}, id="jit"),
        pytest.param({"NUMBA_DISABLE_JIT": "1"}, id="py"),
        pytest.param({"NUMBA_BOUNDSCHECK": "1"}, id="bounds", marks=pytest.mark.slow),
    ],
)
def test_every_mode_and_process_gives_the_same_result(mode: dict[str, str]) -> None:
    """Compiled, as plain Python (an index beyond an array raises, integers do not wrap), and with bounds checked."""
    code = "import json; from tests.gpu.test_engine_account import tiny; print(json.dumps(tiny()))"
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, **mode, "PYTHONPATH": root, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == tiny()
