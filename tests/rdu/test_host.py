"""Launches around sections: commands add up, configurations are loaded when they change, prefetch hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.rdu.host import Launch, copy_ps, run_launches, synchronisation_ps

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


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 12))
def test_equal_layers_take_the_longer_of_copy_and_run(copy_us: int, run_us: int, count: int) -> None:
    """Copies that run ahead without bound: the first fills, then each launch takes the longer of the two."""
    size = copy_us * 200_000
    copy, command = copy_ps(SPEC, size), SPEC.launch.hardware_ps
    rest = SPEC.launch.argument_load_ps + SPEC.launch.execute_ps + run_us * US
    timeline = run_launches(SPEC, [Launch(0, run_us * US, size)] * count, "hardware", configured=0)
    assert timeline.total_ps == copy + rest + (count - 1) * max(copy, command + rest)
    assert sum(timeline.parts.values()) == timeline.total_ps
    assert timeline.parts["prefetch"] <= sum(end - start for start, end in timeline.copies)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), min_size=1, max_size=10), st.integers(1, 4))
def test_copies_run_ahead_as_far_as_there_is_room(layers: list[tuple[int, int]], buffers: int) -> None:
    """Against the recurrence of a pipeline of two stages with so many buffers between them."""
    size = 300 * 200_000
    launches = [Launch(0, run * US, size if copied else 0) for copied, run in layers]
    timeline = run_launches(SPEC, launches, "hardware", configured=0, room_bytes=buffers * size)
    each, rest = copy_ps(SPEC, size), SPEC.launch.argument_load_ps + SPEC.launch.execute_ps
    freed: list[int] = []  # ends of the launches with copies so far
    copied = now = 0
    for launch in launches:
        if launch.prefetch_bytes:
            room = freed[-buffers] if len(freed) >= buffers else 0
            copied = max(copied, room) + each
            now = max(now + SPEC.launch.hardware_ps, copied)
        else:
            now += SPEC.launch.hardware_ps
        now += rest + launch.time_ps
        if launch.prefetch_bytes:
            freed.append(now)
    assert timeline.total_ps == now
    assert sum(timeline.parts.values()) == now


def test_a_copy_takes_its_share_of_memory_from_what_runs() -> None:
    """With 200 of 1800 GB/s in use, a section that keeps HBM busy all the time takes 9 / 8 of its time meanwhile."""
    size = 20_000_000
    copy = copy_ps(SPEC, size)
    for memory, stretch in ((100, 9 / 8), (80, 1.0)):  # of 100 us
        first = Launch(0, 400 * US, 0, 4 * memory * US)
        timeline = run_launches(SPEC, [first, Launch(0, US, size)], "hardware", configured=0)
        begun = timeline.spans[0][1]
        meanwhile = copy - begun
        expected = meanwhile + 400 * US - meanwhile / stretch
        assert timeline.launches[0]["execution"] == pytest.approx(expected, rel=1e-6)


def test_room_too_small_for_a_launch_is_refused() -> None:
    with pytest.raises(InputError, match=r"a launch needs .* from DDR, .* of HBM are free for it"):
        run_launches(SPEC, [Launch(0, US, 2 << 20)], "hardware", room_bytes=1 << 20)


def test_sockets_begin_together() -> None:
    """One message to each; between nodes it takes their network's latency."""
    assert synchronisation_ps(SPEC, 1) == 0
    assert synchronisation_ps(SPEC, 8) == SPEC.link.latency_ps
    assert synchronisation_ps(SPEC, 16) == SPEC.node.latency_ps
    together, alone = (run_launches(SPEC, [Launch(0, US)] * 5, "hardware", devices=d).total_ps for d in (8, 1))
    assert together - alone == 5 * SPEC.link.latency_ps
