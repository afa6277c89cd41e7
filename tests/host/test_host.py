"""The host model against hand calculations on a machine with round figures."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from arch import GpuSpec, InputError, load_arch
from sim.host.model import Host, Kernel, Process
from sim.host.scopes import SCOPES, scope_ps

US = 1_000_000


@pytest.fixture(scope="module")
def spec() -> GpuSpec:
    return load_arch(
        "h100-sxm",
        [
            "launch.kernel=1 us",
            "launch.setup=0 ns",
            "launch.drain=0.5 us",
            "launch.gap_stream=3 us",
            "launch.gap_graph=2 us",
            "launch.api=4 us",
            "pcie.bandwidth=10 GB/s",
            "pcie.latency=1 us",
            "host.framework_overhead=5 us",
        ],
    )


NULL = (3 * US) // 2
"""Duration of a kernel that does nothing: command processing and drain."""


def test_one_kernel_on_an_idle_device(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        yield from host.launch(stream, Kernel("k", (10 * US,)))
        yield from host.synchronise(stream)

    # The command arrives at 4 us, is processed until 5 us, and the duration includes that.
    assert host.run(program()) == 4 * US + 10 * US + 1 * US
    (span,) = stream.spans
    assert (span.called_ps, span.start_ps, span.end_ps) == (0, 5 * US, 14 * US)


@pytest.mark.parametrize(("graph", "gap_us"), [(False, 3), (True, 2)])
def test_minimal_kernels_start_a_gap_apart(spec: GpuSpec, graph: bool, gap_us: int) -> None:
    host = Host(spec)
    stream = host.stream()
    kernels = [Kernel(f"k{i}", (NULL,)) for i in range(5)]

    def program() -> Process:
        if graph:
            yield from host.launch_graph(stream, kernels)
        else:
            for kernel in kernels:
                yield from host.launch(stream, kernel)

    host.run(program())
    begun = [span.start_ps for span in stream.spans]
    assert {after - before for before, after in pairwise(begun)} == {gap_us * US}


def test_command_processing_hides_behind_the_kernel_before(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        for _ in range(3):
            yield from host.launch(stream, Kernel("k", (10 * US,)))

    host.run(program())
    first, second, third = stream.spans
    # Handing over takes gap less drain; the 9 us after command processing are its execution.
    assert second.start_ps - first.end_ps == third.start_ps - second.end_ps == 2_500_000
    assert second.end_ps - second.start_ps == 9 * US


def test_an_event_keeps_the_front_end_from_working_ahead(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        yield from host.launch(stream, Kernel("busy", (50 * US,)))
        host.record(stream)
        yield from host.launch(stream, Kernel("k", (10 * US,)))

    host.run(program())
    busy, stamp, kernel = stream.spans
    assert stamp.end_ps == busy.end_ps
    assert kernel.start_ps - stamp.end_ps == 2_500_000


def test_a_slow_host_leaves_the_device_idle(spec: GpuSpec) -> None:
    host = Host(spec, eager=True)
    stream = host.stream()

    def program() -> Process:
        for _ in range(4):
            yield from host.launch(stream, Kernel("k", (NULL,)))

    host.run(program())
    begun = [span.start_ps for span in stream.spans]
    assert {after - before for before, after in pairwise(begun)} == {(3 + 5) * US}


def test_copies_overlap_kernels_and_the_other_direction(spec: GpuSpec) -> None:
    host = Host(spec)
    up, down, compute = host.stream(), host.stream(), host.stream()
    size = 1_000_000  # 100 us at 10 GB/s

    def program() -> Process:
        yield from host.copy(up, "h2d", size)
        yield from host.copy(down, "d2h", size)
        yield from host.launch(compute, Kernel("k", (50 * US,)))
        yield from host.copy(up, "h2d", size)

    host.run(program())
    first, second = up.spans
    assert first.end_ps - first.start_ps == 101 * US
    assert second.start_ps == first.end_ps
    assert down.spans[0].start_ps < first.end_ps
    assert compute.spans[0].end_ps < first.end_ps


def test_a_kernel_is_advanced_only_when_the_device_gets_there(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()
    asked: list[int] = []

    def work() -> Iterator[int]:
        for elapsed_ps in (4 * US, 8 * US, 10 * US):
            asked.append(host.now_ps)
            yield elapsed_ps

    def program() -> Process:
        yield from host.launch(stream, Kernel("before", (20 * US,)))
        yield from host.launch(stream, Kernel("k", work()))

    host.run(program())
    span = stream.spans[1]
    assert asked == [span.start_ps, span.start_ps + 3 * US, span.start_ps + 7 * US]
    assert span.end_ps - span.start_ps == 9 * US


def test_scopes_of_one_kernel(spec: GpuSpec) -> None:
    times = {scope: scope_ps(spec, [10 * US], scope) for scope in SCOPES}
    # On a busy stream the gap of minimal kernels stays: 3 us start to start less the 1.5 us that they last.
    assert times == {"kernel": 10 * US, "event": 11_500_000, "stream": 11_500_000, "host": 15 * US}
    assert scope_ps(spec, [NULL], "stream") == 3 * US


def test_bad_copies_are_refused(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()
    with pytest.raises(InputError, match="h2d, d2h"):
        host.run(host.copy(stream, "up", 1))
    with pytest.raises(InputError, match="at least 1"):
        host.run(host.copy(stream, "h2d", 0))
