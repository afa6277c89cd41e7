"""Traces of graphs on a GPU: host, stream, copies and messages beside the inside of kernels, on one axis."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.families.gpu.trace_graph import Axis
from sim.app.run import simulate, trace
from sim.app.trace import perfetto
from sim.app.trace.timeline import Slice, Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import TICKS_PER_CYCLE
from tests.trace.test_gpu_trace import decoded
from workloads.graphs import Graph, GraphBuilder
from workloads.ops import CopyH2D, Gemm, Softmax

MACHINE = "a100-sxm4-80gb"
SIZE = 128


def small() -> Graph:
    """A copy, two products with a softmax between them, and their sum over four devices."""
    g = GraphBuilder("small")
    op = Gemm(m=SIZE, n=SIZE, k=SIZE, dtype="fp16").with_defaults("fp16")
    x, w = (g.tensor(name, SIZE * SIZE, "fp16") for name in "xw")
    g.calls("copy", CopyH2D(bytes=1 << 20))
    y = g.call("first", op, x, w)
    y = g.call("softmax", Softmax(rows=SIZE, cols=SIZE, dtype="fp16").with_defaults("fp16"), y)
    y = g.call("second", op, y, w)
    return g.build(g.all_reduce("sum", y, 4))


@pytest.fixture(scope="module")
def whole() -> Timeline:
    return trace(small(), MACHINE)


def on(found: Timeline, name: str) -> list[Slice]:
    """Slices of the track whose path ends in `name`, in order."""
    pieces = [s for s in found.slices if found.path(s.track).endswith(f" / {name}")]
    return sorted(pieces, key=lambda s: (s.begin, s.end))


def inside(found: Timeline) -> list[Slice]:
    return [s for s in found.slices if s.category in ("stall", "issue", "tensor")]


def test_slices_of_a_track_do_not_overlap(whole: Timeline) -> None:
    tracks = defaultdict(list)
    for piece in whole.slices:
        tracks[piece.track].append(piece)
    for track, pieces in tracks.items():
        pieces.sort(key=lambda piece: (piece.begin, piece.end))
        assert all(before.end <= after.begin for before, after in pairwise(pieces)), whole.path(track)


def test_the_stream_has_every_command_and_every_gap(whole: Timeline) -> None:
    run = simulate(small(), MACHINE).record
    pieces = on(whole, "stream 1")
    commands = [piece for piece in pieces if piece.category == "kernel"]
    assert [piece.args["number"] for piece in commands] == list(range(len(run.kernels)))
    assert [piece.args["operator"] for piece in commands] == ["copy", "first", "softmax", "second", "sum"]
    assert all(before.end == after.begin for before, after in pairwise(pieces))
    assert {piece.name for piece in pieces if piece.category == "gap"} == {"waits for the host", "launch"}
    launch_ps = load_arch(MACHINE).launch.kernel_ps
    for piece, kernel in zip(commands, run.kernels, strict=True):
        # A kernel's time has its launch in it, which the front end works on before.
        on_stream_ps = kernel.time_ps - (0 if piece.name == "copy_h2d" else launch_ps)
        assert piece.end - piece.begin == pytest.approx(on_stream_ps * run.machine.boost_hz / 1e12, abs=2)
    kernels = [commands[number].args["cycles"] for number in (1, 2, 3)]
    assert kernels == [run.kernels[number].cycles for number in (1, 2, 3)]  # recording moves nothing


def test_flows_lead_from_the_hosts_calls_to_the_stream(whole: Timeline) -> None:
    calls = [piece for piece in on(whole, "host thread: calls") if piece.name != "framework"]
    commands = [piece for piece in on(whole, "stream 1") if piece.category == "kernel"]
    assert [call.flows for call in calls] == [command.flows for command in commands]
    assert all(call.begin < command.begin for call, command in zip(calls, commands, strict=True))
    operators = on(whole, "host thread: operators")
    assert [piece.name for piece in operators] == ["copy", "first", "softmax", "second", "sum"]
    for call, operator in zip(calls, operators, strict=True):
        assert operator.begin <= call.begin
        assert call.end <= operator.end + 1


def test_links_carry_what_the_report_counts(whole: Timeline) -> None:
    *_, reduced = simulate(small(), MACHINE).record.kernels
    (copy,) = on(whole, "PCIe, host to device")
    assert copy.args["bytes"] == 1 << 20
    sent = [sum(int(piece.args["bytes"]) for piece in on(whole, f"device {d}")) for d in range(4)]
    assert sent == [reduced.counters["link_write_bytes"]] * 4
    (command,) = [piece for piece in on(whole, "stream 1") if piece.name == "all_reduce"]
    for piece in on(whole, "device 0"):
        assert command.begin <= piece.begin <= piece.end <= command.end


def test_what_happens_in_sms_lies_in_its_kernel(whole: Timeline) -> None:
    commands = [piece for piece in on(whole, "stream 1") if piece.category == "kernel"]
    found = inside(whole)
    assert {"tensor", "stall", "issue"} <= {piece.category for piece in found}
    for command in commands:
        own = [piece for piece in found if command.begin <= piece.begin and piece.end <= command.end]
        assert bool(own) == (command.name not in ("copy_h2d", "all_reduce"))
        found = [piece for piece in found if piece not in own]
    assert not found


def test_windows_and_single_kernels(whole: Timeline) -> None:
    commands = [piece for piece in on(whole, "stream 1") if piece.category == "kernel"]
    last = commands[3]
    one = trace(small(), MACHINE, Wanted(kernel=3))
    stream = [[piece._replace(track=0) for piece in on(found, "stream 1")] for found in (one, whole)]
    assert stream[0] == stream[1]
    assert inside(one) == [
        piece._replace(track=t.track) for piece, t in zip(_of(whole, last), inside(one), strict=True)
    ]
    first, end = last.begin + 2000, last.begin + 3000
    part = trace(small(), MACHINE, Wanted(first, end))
    pieces = inside(part)
    assert pieces
    assert len(pieces) < len(inside(one))
    states = [piece for piece in pieces if piece.category != "tensor"]  # which lasts until its results are there
    assert all(piece.end >= first - 1 and piece.begin <= end + 1 for piece in states)
    with pytest.raises(InputError, match="nothing happens on these SMs in this window; small takes"):
        trace(small(), MACHINE, Wanted(10**9, 10**9 + 5))
    for number in (0, 4, 9):
        with pytest.raises(InputError, match=f"--kernel {number}: the kernels of small are 1 to 3"):
            trace(small(), MACHINE, Wanted(kernel=number))


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.app.families.gpu import trace_graph

    monkeypatch.setattr(trace_graph, "ROWS", 100)  # enough for the first kernel
    with pytest.raises(InputError, match="one --kernel or fewer --sm"):
        trace(small(), MACHINE)


def _of(found: Timeline, command: Slice) -> list[Slice]:
    return [piece for piece in inside(found) if command.begin <= piece.begin and piece.end <= command.end]


def test_one_graph_launch(whole: Timeline) -> None:
    found = trace(small(), MACHINE, Wanted(kernel=1), schedule="graph")
    (call,) = on(found, "host thread: calls")
    (launch,) = on(found, "host thread: operators")
    assert (call.name, launch.name) == ("graph launch", "launch of small")
    assert on(found, "stream 1")[-1].end < on(whole, "stream 1")[-1].end


def test_files_and_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pftrace"
    found = trace(small(), MACHINE, Wanted(kernel=1))
    perfetto.write(found, path)
    packets = decoded(path).packet
    names = {p.track_descriptor.name for p in packets if p.HasField("track_descriptor")}
    assert {"stream 1", "host thread: calls", "PCIe, host to device", "device 3", "SM 0"} <= names
    assert sum(p.track_event.type == 1 for p in packets if p.HasField("track_event")) == len(found.slices)
    words = ["copy_h2d", "bytes=1048576", "--arch", "t4"]
    assert main(["trace", *words, "-o", str(tmp_path / "copy.pftrace")]) == 0
    assert "6 slices on 6 tracks" in capsys.readouterr().err
    assert main(["run", *words, "--html", str(tmp_path / "copy.html")]) == 0
    text = (tmp_path / "copy.html").read_text(encoding="utf-8")
    assert "waits for the host" in text
    assert "host, stream and links: cycles of the boost clock (1590 MHz) 0 to" in text
    assert main(["trace", *words, "-o", str(tmp_path / "no.pftrace"), "--kernel", "0"]) == 2
    assert "has no kernel with SM tracks" in capsys.readouterr().err


CLOCKS = st.lists(st.tuples(st.integers(1, 50), st.sampled_from((10**9, 1_410_000_000, 210_000_000))), max_size=4)


@given(CLOCKS, st.integers(0, 10**9), st.lists(st.integers(0, 10**8), min_size=2, max_size=5))
def test_the_axis_keeps_the_order_and_turns_back(
    changes: list[tuple[int, int]], origin_ps: int, ticks: list[int]
) -> None:
    clocks, at_ps = [(0, 1_410_000_000)], 0
    for windows, hz in changes:
        at_ps += windows * 2_000_000
        clocks.append((at_ps, hz))
    axis = Axis(origin_ps, clocks, 1_410_000_000)
    cycles = [axis.cycle(tick) for tick in sorted(ticks)]
    assert cycles == sorted(cycles)
    slowest = 1_410_000_000 / min(hz for _, hz in clocks)
    for tick in ticks:
        ps = axis.cycle(tick) * 10**12 // 1_410_000_000
        assert tick - axis.tick(ps) <= 2 * TICKS_PER_CYCLE
        assert axis.cycle(tick + TICKS_PER_CYCLE) - axis.cycle(tick) <= slowest + 2
    if len(clocks) == 1:
        assert axis.cycle(512 * TICKS_PER_CYCLE) - axis.cycle(0) in (511, 512, 513)
