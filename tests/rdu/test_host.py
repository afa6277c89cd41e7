"""Launches around sections: commands add up, configurations are loaded when they change, prefetch hides."""

from __future__ import annotations

from arch.load import load_arch
from sim.rdu.host import Launch, run_launches

SPEC = load_arch("sn40l")
US = 1_000_000


def test_commands_of_a_kernel_add_up() -> None:
    launch = SPEC.launch
    each = launch.argument_load_ps + launch.execute_ps + 50 * US
    for who, command in (("host", launch.host_ps), ("hardware", launch.hardware_ps)):
        timeline = run_launches(SPEC, [Launch(0, 50 * US)] * 4, who, configured=0)
        assert timeline.total_ps == 4 * (command + each)
        assert sum(timeline.parts.values()) == timeline.total_ps


def test_another_configuration_is_loaded_and_the_same_is_not() -> None:
    calls = [Launch(number, 10 * US) for number in (0, 0, 1, 1, 0)]
    loads = run_launches(SPEC, calls, "hardware", configured=0).parts["program_load"]
    assert loads == 2 * SPEC.launch.program_load_ps
    cold = run_launches(SPEC, calls, "hardware").parts["program_load"]
    assert cold == 3 * SPEC.launch.program_load_ps


def test_prefetch_from_ddr_hides_behind_what_runs_before() -> None:
    size = 20_000_000  # 100 us at 200 GB/s
    hidden = run_launches(SPEC, [Launch(0, 500 * US), Launch(0, 10 * US, size)], "hardware", configured=0)
    exposed = run_launches(SPEC, [Launch(0, 10 * US, size), Launch(0, 500 * US)], "hardware", configured=0)
    assert hidden.parts["prefetch"] == 0
    assert exposed.parts["prefetch"] == 100 * US + SPEC.ddr.latency_ps - SPEC.launch.hardware_ps
    assert exposed.total_ps - hidden.total_ps == exposed.parts["prefetch"]
