"""Traces of GPU kernels: the structure of the decoded protobuf, agreement with the counters, windows, cost nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from numba.core import config

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.run import simulate, trace
from sim.app.trace import kanata, perfetto
from sim.app.trace.rates import coarser, served
from sim.app.trace.timeline import Slice, Timeline
from sim.app.trace.window import Wanted, parse_range
from sim.gpu.engine import loop as native

HOPPER = "gemm m=256 n=256 k=256 dtype=bf16"


@pytest.fixture(scope="module")
def hopper() -> Timeline:
    return trace(HOPPER, "h100-sxm", schedule="wgmma")


@pytest.fixture(scope="module")
def turing() -> Timeline:
    return trace("gemm m=128 n=128 k=128 dtype=fp16", "t4", Wanted(last_unit=39))


def by_track(found: Timeline) -> dict[str, list[Slice]]:
    result: dict[str, list[Slice]] = defaultdict(list)
    for piece in sorted(found.slices, key=lambda s: (s.track, s.begin, s.end)):
        result[found.path(piece.track)].append(piece)
    return result


def test_tracks_are_those_of_the_chip(hopper: Timeline, turing: Timeline) -> None:
    on_hopper, on_turing = set(by_track(hopper)), set(by_track(turing))
    root = "h100-sxm: 1 ns = 1 core cycle"
    for path in ("kernel", "GPC 0 / SM 0 / TMA load 0", "GPC 0 / SM 0 / sub-core 3 / tensor pipe"):
        assert f"{root} / {path}" in on_hopper
    assert any(path.startswith(f"{root} / GPC 0 / SM 0 / sub-core 0 / warp 0") for path in on_hopper)
    assert sum("/ warp " in path for path in on_hopper) == 8
    assert not any("TMA" in path for path in on_turing)
    assert any("loads in flight" in path for path in on_turing)
    units = {tuple(path.split(" / ")[1:3]) for path in on_turing if "SM" in path}
    assert ("GPC 0", "SM 0") in units
    assert len({gpc for gpc, _ in units}) == min(len(units), 5), "CTAs go to the GPCs in turn"
    counters = {found.name for found in hopper.tracks if found.counter}
    assert {"L2 read", "DRAM read", "tensor pipes busy"} <= counters


def test_products_of_a_pair_are_on_both_tensor_cores() -> None:
    """A row for the tensor core of an SM, loads of tensor memory beside it; what a pair multiplies is on both SMs."""
    schedule = "tcgen05 256x128x64 pair stages 3"
    found = by_track(trace("gemm m=256 n=128 k=256 tb=T dtype=bf16", "b200", Wanted(last_unit=147), schedule=schedule))
    cores = [path for path in found if path.endswith("/ tensor core")]
    assert len(cores) == 2
    first, second = ([(s.begin, s.end, s.name) for s in found[path]] for path in cores)
    assert first == second
    assert [name for *_, name in first] == ["tcgen05_mma x4 of a pair"] * 4
    assert any("tensor memory 0" in path for path in found)
    assert not any("tensor pipe" in path for path in found)


@pytest.mark.parametrize("which", ["hopper", "turing"])
def test_slices_of_a_track_do_not_overlap_and_warps_are_never_without_a_state(
    which: str, request: pytest.FixtureRequest
) -> None:
    for path, pieces in by_track(request.getfixturevalue(which)).items():
        for before, after in pairwise(pieces):
            assert before.end <= after.begin, path
            if "warp " in path and before.args["CTA"] == after.args["CTA"]:
                assert before.end == after.begin


def test_states_sum_to_the_reports_account() -> None:
    spec = load_arch("t4", ["sm.count=1", "gpc.count=1"])
    work = "gemm m=64 n=64 k=64 dtype=fp16"
    found = trace(work, spec)
    (kernel,) = simulate(work, spec).record.kernels
    traced: Counter[str] = Counter()
    for piece in found.slices:
        if piece.category in ("stall", "issue"):
            traced["selected" if piece.category == "issue" else piece.name] += piece.end - piece.begin
    slices = sum(piece.category in ("stall", "issue") for piece in found.slices)
    for name, cycles in kernel.stalls["warps"].items():
        assert traced[name] == pytest.approx(cycles, abs=slices), name  # each slice is cut to whole cycles
    assert sum(traced.values()) == pytest.approx(sum(kernel.stalls["warps"].values()), abs=2 * 16)


def test_tracing_changes_no_cycle() -> None:
    for arch, work in (("h100-sxm", HOPPER), ("t4", "gemm m=128 n=128 k=128 dtype=fp16")):
        assert int(trace(work, arch).facts["cycles"]) == simulate(work, arch).cycles


@pytest.mark.skipif(bool(getattr(config, "DISABLE_JIT", 0)), reason="needs compiled code")
def test_a_launch_that_records_nothing_has_no_code_for_it(hopper: Timeline) -> None:
    simulate(HOPPER, "h100-sxm", schedule="wgmma")
    files = native.advance._cache._cache_file  # type: ignore[attr-defined]
    found = {}
    for (signature, *_), name in files._load_index().items():
        code = Path(files._cache_path, name).read_bytes()
        found[str(signature[2].types[-1])] = {word for word in (b"add_log", b"add_trace", b"advance") if word in code}
    assert found == {"none": {b"advance"}, "array(int64, 2d, C)": {b"advance", b"add_log", b"add_trace"}}


def test_flows_lead_from_tma_through_the_wait_to_the_multiply(hopper: Timeline) -> None:
    steps: dict[int, list[Slice]] = defaultdict(list)
    for piece in hopper.slices:
        for flow in piece.flows:
            steps[flow].append(piece)
    boxes = [piece for piece in hopper.slices if piece.category == "tma" and "load" in piece.name]
    assert len(steps) == len(boxes) > 0
    for flow, pieces in steps.items():
        (box,) = [piece for piece in pieces if piece.category == "tma"]
        waits = [piece for piece in pieces if piece.category in ("stall", "issue")]
        multiplies = [piece for piece in pieces if piece.category == "tensor"]
        assert len(waits) == len(multiplies) == 4, flow  # the four warps of a group
        assert all(wait.end >= box.end for wait in waits)
        assert all(multiply.begin >= box.end for multiply in multiplies)


def test_counters_integrate_to_the_reports(hopper: Timeline) -> None:
    report = simulate(HOPPER, "h100-sxm", schedule="wgmma").to_dict()
    (track,) = [i for i, t in enumerate(hopper.tracks) if t.name == "L2 read"]
    samples = [sample for sample in hopper.samples if sample.track == track]
    moved = sum(a.value * (b.at - a.at) for a, b in pairwise(samples))
    assert moved == pytest.approx(report["bytes"]["l2"]["read"], rel=0.02)
    assert samples[-1].value == 0


def test_no_rate_is_above_the_peak_of_its_unit(hopper: Timeline) -> None:
    spec = load_arch("h100-sxm")
    slices = spec.l2.slices
    peaks = {
        "L2 read": float(spec.l2.in_core_cycles(slices * spec.l2.bandwidth_bytes_per_cycle, spec.clock.boost_hz)),
        "DRAM read": spec.dram.bandwidth_bytes_per_s / spec.clock.boost_hz,
        "issued": spec.sm.count * spec.sm.sub_cores,
        "tensor pipes busy": 100,
    }
    for name, peak in peaks.items():
        (track,) = [i for i, t in enumerate(hopper.tracks) if t.name == name]
        values = [sample.value for sample in hopper.samples if sample.track == track]
        assert 0 < max(values) <= peak * (1 + 1e-9), name


def test_what_a_unit_cannot_serve_at_once_waits() -> None:
    assert list(served([30, 0, 5, 0], [10, 10, 10, 10], 2)) == [2, 1, 0.5, 0]
    assert list(served([0, 50], [10, 10], 2)) == [0, 5]  # nothing is lost
    assert coarser([0, 4, 8, 12, 13], 5) == [0, 2, 4]
    assert coarser([7], 5) == [0]


def test_clock_power_and_energy_are_those_of_the_report(hopper: Timeline) -> None:
    record = simulate(HOPPER, "h100-sxm", schedule="wgmma").record
    (kernel,), spec = record.kernels, load_arch("h100-sxm")
    tracks = {t.name: i for i, t in enumerate(hopper.tracks)}
    clock, power, energy = (
        [sample for sample in hopper.samples if sample.track == tracks[name]]
        for name in ("core clock", "power", "energy")
    )
    assert {sample.value for sample in clock} == {spec.clock.boost_hz / 1e6}
    drained_fj = spec.power.static_mw * spec.launch.drain_ps  # after the last sample
    assert energy[0].value == 0
    assert energy[-1].value * 1e9 == pytest.approx(kernel.energy_fj - drained_fj, rel=0.01)
    uj = sum(a.value * (b.at - a.at) for a, b in pairwise(power)) / spec.clock.boost_hz * 1e6
    assert uj == pytest.approx(energy[-1].value, rel=0.01)


def test_a_window_is_the_part_of_the_whole_that_touches_it(hopper: Timeline) -> None:
    first, last = 6000, 9000
    part = trace(HOPPER, "h100-sxm", Wanted(first, last), schedule="wgmma")
    inside = {
        (hopper.path(s.track), s.begin, s.end)
        for s in hopper.slices
        if s.category in ("stall", "tensor") and s.begin >= first and s.end <= last
    }
    found = {(part.path(s.track), s.begin, s.end) for s in part.slices}
    assert inside
    assert inside - found == set()
    assert len(part.slices) < len(hopper.slices)


def decoded(path: Path) -> Any:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    found = Trace()
    found.ParseFromString(path.read_bytes())
    return found


def test_the_protobuf_says_what_the_timeline_says(hopper: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    perfetto.write(hopper, path)
    packets = decoded(path).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    assert len(tracks) == len(hopper.tracks)
    assert all(d.parent_uuid in tracks for d in tracks.values() if d.parent_uuid)
    assert sum(d.HasField("counter") for d in tracks.values()) == sum(t.counter for t in hopper.tracks)
    events = [p for p in packets if p.HasField("track_event")]
    times = [p.timestamp for p in events]
    assert times == sorted(times)
    open_: dict[int, list[str]] = defaultdict(list)
    for packet in events:
        event = packet.track_event
        assert event.track_uuid in tracks
        if event.type == event.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append(event.name)
            assert len(open_[event.track_uuid]) == 1
        elif event.type == event.TYPE_SLICE_END:
            open_[event.track_uuid].pop()
    assert not any(open_.values())
    flows: dict[int, list[str]] = defaultdict(list)
    for packet in events:
        for flow in packet.track_event.flow_ids:
            flows[flow].append(tracks[packet.track_event.track_uuid].name.split(" ")[0])
    assert flows
    for number, steps in flows.items():  # in the order of time
        assert sorted(set(steps)) == ["TMA", "tensor", "warp"], number
        assert steps.index("TMA") < steps.index("tensor")  # waits of warps may have begun before
        assert steps[-1] == "tensor"
    kinds = Counter(p.track_event.type for p in events)
    assert kinds[1] == kinds[2] == len(hopper.slices)
    assert kinds[4] == len(hopper.samples)
    (about,) = [p.track_event for p in events if p.track_event.type == 3]
    notes = {note.name: note.string_value for note in about.debug_annotations}
    assert notes["time"].startswith("1 ns in this trace is 1 core cycle")
    assert notes["cycles"] == hopper.facts["cycles"]


def test_trace_processor_reads_it(hopper: Timeline, tmp_path: Path) -> None:
    import shutil

    binary = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if binary is None:
        pytest.skip("Perfetto's trace_processor is not installed")
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    path = tmp_path / "x.pftrace"
    perfetto.write(hopper, path)
    with TraceProcessor(str(path), config=TraceProcessorConfig(bin_path=binary)) as processor:
        (row,) = processor.query("select count(*) as n from slice")
        assert row.n >= len(hopper.slices)


def test_kanata_is_read_back(hopper: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "x.kanata"
    kanata.write(hopper, path)
    lines = path.read_text().splitlines()
    assert lines[0] == "Kanata\t0004"
    assert lines[1].startswith("C=\t")
    now = 0
    started: dict[str, int] = {}
    retired: dict[str, int] = {}
    stages: dict[tuple[str, str], str] = {}
    for line in lines[1:]:
        command, *fields = line.split("\t")
        if command == "C=":
            now = int(fields[0])
        elif command == "C":
            assert int(fields[0]) > 0
            now += int(fields[0])
        elif command == "I":
            started[fields[0]] = now
        elif command == "S":
            assert fields[0] in started
            stages[fields[0], fields[1]] = fields[2]
        elif command == "E":
            assert stages.pop((fields[0], fields[1])) == fields[2]
        elif command == "R":
            retired[fields[0]] = now
    assert started.keys() == retired.keys()
    assert all(retired[row] >= started[row] for row in started)
    assert stages == {}
    assert len(started) == sum(piece.category == "issue" for piece in hopper.slices)
    assert "mbarrier" in path.read_text()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "gemm", "m=64", "n=64", "k=64", "dtype=fp16", "--arch", "t4"]
    for name in ("a.pftrace", "a.kanata"):
        assert main([*words, "-o", str(tmp_path / name), "--window", "5000:8000"]) == 0
        assert "tracks" in capsys.readouterr().err
        assert (tmp_path / name).stat().st_size > 1000
    for wrong, message in (
        (["-o", str(tmp_path / "a.json")], ".pftrace"),
        (["-o", str(tmp_path / "a.kanata")], "--force"),
        (["-o", str(tmp_path / "no" / "a.kanata")], "no folder"),
        (["-o", str(tmp_path / "b.pftrace"), "--window", "9:3"], "write 3:9"),
        (["-o", str(tmp_path / "b.pftrace"), "--window", "a"], "FIRST:LAST"),
        (["-o", str(tmp_path / "b.pftrace"), "--window", "900000:"], "takes"),
        (["-o", str(tmp_path / "b.pftrace"), "--sm", "40"], "SMs 0 to 39"),
        (["-o", str(tmp_path / "b.pftrace"), "--sm", "4:"], "both ends"),
        (["-o", str(tmp_path / "b.pftrace"), "--kernel", "1"], "kernels 0 to 0"),
        ([], "-o"),
    ):
        assert main([*words, *wrong]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.app.families.gpu import trace as gpu_trace

    monkeypatch.setattr(gpu_trace, "ROWS", 16)
    with pytest.raises(InputError, match="shorter --window"):
        trace("gemm m=64 n=64 k=64 dtype=fp16", "t4")


@pytest.mark.parametrize(("text", "found"), [("3", (3, 3)), ("3:7", (3, 7)), ("3:", (3, None)), (":7", (0, 7))])
def test_ranges(text: str, found: tuple[int, int | None]) -> None:
    assert parse_range("--window", text) == found
