"""The host model against hand calculations on a machine with round figures."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from arch import GpuSpec, InputError, load_arch
from sim.host.model import Copy, Dependent, Host, Kernel, Node, Overlap, Process
from sim.host.scopes import SCOPES, Call, GraphReplay, call_times, calls_ps, scope_ps

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
            "launch.gap_replay=3 us",
            "launch.release_stream=0 ns",
            "launch.release_graph=0 ns",
            "launch.api=4 us",
            "pcie.bandwidth=10 GB/s",
            "pcie.latency=1 us",
            "host.framework_overhead=5 us",
            "host.graph_launch=0 ns",
            "launch.event=0 ns",
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
    host = Host(spec)
    stream = host.stream()

    def program() -> Process:
        for _ in range(4):
            yield from host.dispatch()
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
    assert times == {"kernel": 10 * US, "event": 11_500_000, "stream": 11_500_000, "graph": 10_500_000, "host": 15 * US}
    assert (scope_ps(spec, [NULL], "stream"), scope_ps(spec, [NULL], "graph")) == (3 * US, 2 * US)


def with_figures(spec: GpuSpec, **launch_ps: int) -> GpuSpec:
    """The machine with other costs of a time stamp or of launching a graph."""
    host = {"graph_launch_ps"} & launch_ps.keys()
    launch = launch_ps.keys() - host
    return spec.model_copy(
        update={
            "host": spec.host.model_copy(update={name: launch_ps[name] for name in host}),
            "launch": spec.launch.model_copy(update={name: launch_ps[name] for name in launch}),
        }
    )


def test_replays_pay_the_borders_between_graphs(spec: GpuSpec) -> None:
    layer = [Call("product", (NULL, NULL))]
    # Kernels of a graph start 2 us apart, the first of a replay 3 us after the last of the replay before.
    assert calls_ps(spec, layer, "graph") == 4 * US
    one, many = (calls_ps(spec, layer, "graph", replayed=GraphReplay(1, replays)) for replays in (100, 200))
    assert 2 * many - one == 5 * US
    one, many = (5 * calls_ps(spec, layer, "graph", replayed=GraphReplay(5, replays)) for replays in (100, 200))
    assert 2 * many - one == pytest.approx(21 * US, abs=10)
    slow = with_figures(spec, gap_replay_ps=8 * US)
    one, many = (calls_ps(slow, layer, "graph", replayed=GraphReplay(1, replays)) for replays in (100, 200))
    assert 2 * many - one == 10 * US
    assert calls_ps(slow, layer, "graph") == 4 * US  # inside one graph there is no border


def test_graphs_of_many_kernels_pay_more_at_their_border(spec: GpuSpec) -> None:
    slow = with_figures(spec, gap_replay_more_ps=4 * US)
    ready = with_figures(slow, replay_ready=4)
    for kernels, more, of_ready in ((3, 0, 0), (4, 4 * US, 0), (5, 4 * US, 4 * US)):
        layer = [Call("call", (NULL,) * kernels)]
        taken = [calls_ps(machine, layer, "graph", replayed=GraphReplay(1, 100)) for machine in (spec, slow, ready)]
        assert taken[1] - taken[0] == pytest.approx(more, rel=0.02)
        assert taken[2] - taken[0] == pytest.approx(of_ready, rel=0.02)


def test_short_replays_wait_for_the_host(spec: GpuSpec) -> None:
    slow = with_figures(spec, graph_launch_ps=50 * US)
    layer = [Call("product", (NULL, NULL))]
    # The first event comes 4 us after its call, when the host has begun to launch; each replay takes the host 50 us.
    assert calls_ps(slow, layer, "graph", replayed=GraphReplay(1, 100)) == pytest.approx(50 * US, rel=0.01)
    # What is longer hides it but for the first launch.
    long = calls_ps(slow, [Call("product", (200 * US,))], "graph", replayed=GraphReplay(1, 10))
    assert long == pytest.approx((50 + 10 * 202) * US // 10, rel=0.01)


def test_a_time_stamp_takes_time_itself(spec: GpuSpec) -> None:
    slow = with_figures(spec, event_ps=7 * US)
    assert scope_ps(slow, [10 * US], "event") == scope_ps(spec, [10 * US], "event") + 7 * US
    assert [scope_ps(slow, [10 * US], scope) for scope in ("kernel", "stream")] == [10 * US, 11_500_000]


def test_bad_copies_are_refused(spec: GpuSpec) -> None:
    host = Host(spec)
    stream = host.stream()
    with pytest.raises(InputError, match="h2d, d2h"):
        host.run(host.copy(stream, "up", 1))
    with pytest.raises(InputError, match="at least 1"):
        host.run(host.copy(stream, "h2d", 0))


def test_a_sequence_of_small_operators_by_form(spec: GpuSpec) -> None:
    calls = [Call(f"op{i}", (NULL,)) for i in range(10)]
    times = {form: calls_ps(spec, calls, "stream", form) for form in ("direct", "eager", "graph")}
    # A launch every 3 us; 5 us of framework on top; in a graph 2 us apart, and 3 us to the next graph.
    assert times == {"direct": 30 * US, "eager": 80 * US, "graph": 21 * US}
    # In time of the device alone they are all the same.
    assert {calls_ps(spec, calls, "kernel", form) for form in times} == {10 * NULL}


def test_long_kernels_hide_the_framework(spec: GpuSpec) -> None:
    calls = [Call(f"op{i}", (50 * US,)) for i in range(4)]
    assert calls_ps(spec, calls, "stream", "eager") == calls_ps(spec, calls, "stream", "direct") == 4 * 51_500_000


def test_an_operator_of_several_kernels_is_dispatched_once(spec: GpuSpec) -> None:
    together = calls_ps(spec, [Call("op", (NULL, NULL))], "stream", "eager")
    apart = calls_ps(spec, [Call("a", (NULL,)), Call("b", (NULL,))], "stream", "eager")
    assert (together, apart) == (11 * US, 16 * US)


@pytest.mark.parametrize("form", ["direct", "eager", "graph"])
def test_call_times(spec: GpuSpec, form: str) -> None:
    calls = [Call("a", (10 * US, 10 * US)), Call("copy", copy=Copy("h2d", 1_000_000)), Call("b", (10 * US,))]
    found = call_times(Host(spec), calls, form)
    assert [len(time.spans) for time in found] == [2, 1, 1]
    host = {"direct": [6, 3, 3], "eager": [11, 8, 8], "graph": [3, 0, 0]}
    assert [time.host_ps // US for time in found] == host[form]
    assert found[1].spans[0].end_ps - found[1].spans[0].start_ps == 101 * US
    assert found[0].spans[1].end_ps <= found[1].spans[0].start_ps <= found[2].spans[0].start_ps


def test_a_kernel_beside_others_starts_where_there_is_room_and_is_waited_for(spec: GpuSpec) -> None:
    def ends(room: list[int]) -> tuple[int, int, int]:
        """Room for others after each 5 us of a kernel of 20 us; start of what needs 2, and of who waits for it."""
        host = Host(spec)
        first, second = host.stream(), host.stream()
        left = iter(room)
        found = [0]

        def work() -> Iterator[int]:
            for i in range(4):
                found[0] = next(left)
                yield 5 * US * (i + 1)

        def program() -> Process:
            nodes = [
                Node(first, Kernel("long", work(), room=lambda: found[0])),
                Node(second, Kernel("beside", (8 * US,), needs=2)),
                Node(first, Kernel("after", (5 * US,)), (1,)),
            ]
            yield from host.launch_chains(nodes)

        host.run(program())
        long, after = first.spans
        (beside,) = second.spans
        assert after.start_ps >= max(long.end_ps, beside.end_ps)
        return beside.start_ps - long.start_ps, long.end_ps - long.start_ps, after.start_ps - long.start_ps

    assert ends([0, 0, 0, 0])[0] == 19 * US  # behind the long one
    assert ends([0, 2, 2, 2])[0] == 4 * US  # at its first step that leaves room
    assert ends([0, 0, 0, 2])[0] == 14 * US


# ---- programmatic dependent launch


def dependent(
    prologue_us: float = 1, trigger_us: float = 8, exit_us: float = 0.5, takes: int = 1, left: int = 1
) -> Dependent:
    """A kernel whose CTAs all run `trigger_us` before its end and leave `left` of an SM; one of them takes `takes`."""
    found = Overlap(int(prologue_us * US), int(trigger_us * US), int(exit_us * US), (left,))
    return Dependent((takes,), lambda: found)


def in_turn(spec: GpuSpec, later: Dependent | None, scope: str) -> int:
    """Time of a call of one kernel of 10 us among others like it."""
    return calls_ps(spec, [Call("k", (10 * US,), dependents=(later,) if later else ())], scope)


@pytest.mark.parametrize(("scope", "hand_over"), [("stream", 2_500_000), ("graph", 1_500_000)])
def test_a_dependent_kernel_saves_hand_over_and_prologue(spec: GpuSpec, scope: str, hand_over: int) -> None:
    plain = in_turn(spec, None, scope)
    for prologue_us in (0, 1, 3):
        assert plain - in_turn(spec, dependent(prologue_us), scope) == hand_over + prologue_us * US
    # What does not fit between trigger and end is not hidden: hand-over and prologue have the 4 us between them.
    assert plain - in_turn(spec, dependent(5, trigger_us=4), scope) == 4 * US
    # Where its CTAs have no room, the trigger is the end of the last CTA.
    assert plain - in_turn(spec, dependent(3, takes=2), scope) == 500_000
    # One that triggers at its end hides nothing.
    assert in_turn(spec, dependent(3, trigger_us=0, exit_us=0), scope) == plain


@pytest.mark.parametrize(("scope", "hand_over"), [("stream", 2_500_000), ("graph", 1_500_000)])
def test_a_dependent_kernel_goes_on_some_time_after_the_one_before(spec: GpuSpec, scope: str, hand_over: int) -> None:
    slow = with_figures(spec, release_stream_ps=400_000, release_graph_ps=400_000)
    plain = in_turn(spec, None, scope)
    assert in_turn(slow, None, scope) == plain
    assert plain - in_turn(slow, dependent(1), scope) == hand_over + 1 * US - 400_000
    # What is longer than a launch is no reason to wait for longer.
    longer = with_figures(spec, release_stream_ps=9 * US, release_graph_ps=9 * US)
    assert plain - in_turn(longer, dependent(1), scope) == 1 * US


def test_a_kernel_that_lets_the_next_one_begin_need_not_begin_early_itself(spec: GpuSpec) -> None:
    """The first of two waits for the call before, the second only for its data."""
    first = dependent()._replace(takes=None)
    calls = [Call("pair", (10 * US, 10 * US), dependents=(first, dependent()))]
    plain = calls_ps(spec, [Call("pair", (10 * US, 10 * US))], "stream")
    assert plain - calls_ps(spec, calls, "stream") == 2_500_000 + 1 * US


def test_a_dependent_kernel_never_works_before_its_data(spec: GpuSpec) -> None:
    for prologue_us, trigger_us in ((0.5, 0.5), (2, 7), (6, 3), (4, 5)):
        call = Call("k", (10 * US,) * 4, dependents=(dependent(prologue_us, trigger_us),) * 4)
        (time,) = call_times(Host(spec), [call], "direct")
        for before, after in pairwise(time.spans):
            assert after.start_ps + int(prologue_us * US) >= before.end_ps
            assert after.start_ps >= before.end_ps - int(trigger_us * US)
            assert after.end_ps - after.start_ps == 9 * US


def test_dependent_kernels_wait_for_the_end_of_what_is_no_such_kernel(spec: GpuSpec) -> None:
    def gap(later: Dependent | None, form: str) -> int:
        """From the end of what is before a kernel to its start: an event, a copy, another kernel, another graph."""
        host = Host(spec)
        stream = host.stream()

        def kernel() -> Kernel:
            return Kernel("k", (10 * US,), dependent=later)

        def program() -> Process:
            yield from host.launch(stream, kernel())
            if form == "event":
                host.record(stream)
            elif form == "copy":
                yield from host.copy(stream, "h2d", 1000)
            elif form == "plain":
                yield from host.launch(stream, Kernel("plain", (10 * US,)))
            if form == "graph":
                yield from host.launch_graph(stream, [kernel()])
            else:
                yield from host.launch(stream, kernel())

        host.run(program())
        before, after = stream.spans[-2:]
        return after.start_ps - before.end_ps

    for form in ("event", "copy", "plain", "graph"):
        assert gap(dependent(), form) == gap(None, form), form
    assert (gap(dependent(), "none"), gap(None, "none")) == (-1 * US, 2_500_000)


def test_a_dependent_kernel_that_is_called_late_starts_when_it_comes(spec: GpuSpec) -> None:
    calls = [Call(f"op{i}", (NULL,), dependents=(dependent(0.1, 0.5),)) for i in range(4)]
    # 3 us a launch and 5 of the framework: nothing is left to hide, and each starts when its command is processed.
    assert calls_ps(spec, calls, "stream", "eager") == 32 * US
    spans = [span for time in call_times(Host(spec), calls, "eager") for span in time.spans]
    assert [span.start_ps - span.called_ps for span in spans] == [5 * US] * 4
