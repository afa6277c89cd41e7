"""Traces of a TPU, a Gemmini and a dataflow machine: units, stages, levels of buffers, agreement with the accounts."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.run import simulate, trace
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted

TPU = "gemm m=200 n=512 k=512 dtype=int8"
RDU = "softmax rows=64 cols=256 dtype=bf16"
GEMMINI = "gemm m=128 n=128 k=128"


@pytest.fixture(scope="module")
def tpu() -> Timeline:
    return trace(TPU, "tpu-v1")


@pytest.fixture(scope="module")
def rdu() -> Timeline:
    return trace(RDU, "sn40l")


@pytest.fixture(scope="module")
def gemmini() -> Timeline:
    return trace(GEMMINI, "gemmini", schedule="ws m=32 n=64 k=64")


@pytest.mark.parametrize("which", ["tpu", "rdu", "gemmini"])
def test_slices_of_a_track_do_not_overlap(which: str, request: pytest.FixtureRequest) -> None:
    found: Timeline = request.getfixturevalue(which)
    tracks = defaultdict(list)
    for piece in found.slices:
        tracks[piece.track].append(piece)
    assert len(tracks) >= 3
    for pieces in tracks.values():
        pieces.sort(key=lambda piece: (piece.begin, piece.end))
        assert all(before.end <= after.begin for before, after in pairwise(pieces))


def test_units_of_a_tpu_account_for_all_their_time(tpu: Timeline) -> None:
    report = simulate(TPU, "tpu-v1").to_dict()
    assert int(tpu.facts["cycles"]) == report["cycles"]
    for unit in ("matrix", "weights", "activation"):
        (track,) = [i for i, t in enumerate(tpu.tracks) if t.name.startswith(unit)]
        spans: Counter[str] = Counter()
        for piece in tpu.slices:
            if piece.track == track:
                spans[piece.name] += piece.end - piece.begin
        shares = {name: cycles / report["cycles"] for name, cycles in spans.items() if cycles}
        assert shares == pytest.approx(report["stalls"][unit], abs=0.002)


def test_queues_of_a_gemmini_account_for_all_their_time(gemmini: Timeline) -> None:
    """What the slices add up to is the account of a plain run, in which nothing is recorded."""
    report = simulate(GEMMINI, "gemmini", schedule="ws m=32 n=64 k=64").to_dict()
    assert int(gemmini.facts["cycles"]) == report["cycles"]
    spans: Counter[tuple[str, str]] = Counter()
    for piece in gemmini.slices:
        spans[gemmini.tracks[piece.track].name, piece.name] += piece.end - piece.begin
    for cause, share in report["stalls"]["array"].items():
        assert spans["array", cause] / report["cycles"] == pytest.approx(share, abs=1e-4)
    for queue in ("load", "store"):
        # A command takes a cycle to start, which lies inside a slice.
        assert spans[queue, "busy"] / report["cycles"] >= report["stalls"][queue]["busy"] - 1e-4
        assert spans[queue, "busy"] / report["cycles"] < report["stalls"][queue]["busy"] + 0.1


def test_two_tiles_of_a_gemmini_are_at_work_at_a_time(gemmini: Timeline) -> None:
    """One begins while the one before is still sending; of each half, one after the other."""
    halves = [i for i, track in enumerate(gemmini.tracks) if track.name.startswith("tiles")]
    tiles = sorted((p.begin, p.end, p.name) for p in gemmini.slices if p.track in halves)
    assert [name for _, _, name in tiles] == [f"tile {i}" for i in range(16)]
    assert sum(after[0] < before[1] for before, after in pairwise(tiles)) > 4
    assert all(third[0] >= first[1] for first, third in zip(tiles, tiles[2:], strict=False))
    part = trace(GEMMINI, "gemmini", Wanted(5000, 6000), schedule="ws m=32 n=64 k=64")
    assert 0 < len(part.slices) < len(gemmini.slices)


def test_weight_fifo_stays_within_its_depth(tpu: Timeline) -> None:
    depth = load_arch("tpu-v1").weight_fifo.depth
    levels = [sample.value for sample in tpu.samples if tpu.tracks[sample.track].name == "weight FIFO 0"]
    assert max(levels) <= depth
    assert min(levels) >= 0
    assert max(levels) > 1
    assert levels[-1] == 0


def test_stages_fire_as_often_as_they_should_and_buffers_keep_their_depth(rdu: Timeline) -> None:
    firings = Counter(rdu.tracks[piece.track].name for piece in rdu.slices if piece.category == "work")
    assert len(firings) >= 3
    for number, track in enumerate(rdu.tracks):
        if track.counter:
            depth = int(track.unit.rsplit(" ", 1)[1])
            levels = [sample.value for sample in rdu.samples if sample.track == number]
            assert levels
            assert min(levels) >= 0
            assert max(levels) <= depth
            assert levels[-1] == 0


@pytest.mark.parametrize("work", [RDU, "gemm m=256 n=256 k=512 dtype=bf16"])
def test_every_cycle_of_a_stage_has_the_reports_reason(work: str) -> None:
    found, report = trace(work, "sn40l"), simulate(work, "sn40l").record
    (kernel,) = report.kernels
    assert int(found.facts["cycles"]) == kernel.cycles
    for number, stage in enumerate(kernel.own.stages):
        (track,) = [i for i, t in enumerate(found.tracks) if t.name.startswith(f"{stage.name} (")]
        traced: Counter[str] = Counter()
        pieces = sorted((p for p in found.slices if p.track == track), key=lambda p: (p.begin, p.end))
        assert all(before.end == after.begin for before, after in pairwise(pieces)), number
        for piece in pieces:
            reason = str(piece.args["reason"]) if piece.category == "work" else piece.name
            traced[reason] += piece.end - piece.begin
        launch = traced.pop("reconfiguration")
        assert launch + sum(stage.cycles.values()) == kernel.cycles
        for reason, cycles in stage.cycles.items():
            if reason != "reconfiguration":
                assert traced[reason] == pytest.approx(cycles, abs=len(pieces)), (stage.name, reason)


def test_windows_and_files(tpu: Timeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = trace(TPU, "tpu-v1", Wanted(2000, 4000))
    assert 0 < len(part.slices) < len(tpu.slices)
    assert all(piece.end >= 2000 and piece.begin <= 4000 for piece in part.slices)
    with pytest.raises(InputError, match="takes"):
        trace(TPU, "tpu-v1", Wanted(10**8, 10**9))
    for arch, work in (("tpu-v1", TPU), ("sn40l", RDU)):
        path = tmp_path / f"{arch}.pftrace"
        assert main(["trace", *work.split(), "--arch", arch, "-o", str(path)]) == 0
        assert path.stat().st_size > 1000
    assert main(["trace", *TPU.split(), "--arch", "tpu-v1", "-o", str(tmp_path / "x.kanata")]) == 2
    assert "warps of GPUs" in capsys.readouterr().err
    with pytest.raises(InputError, match="sections 0 to 0"):
        trace(RDU, "sn40l", Wanted(kernel=3))
