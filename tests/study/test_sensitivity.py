"""Sensitivity: signs and sizes that are known beforehand, steps that fit the geometry, the chart, the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.study.sensitivity import Bar, Sensitivity, Side, _figures, sensitivity
from sim.app.study.store import ResultStore

WORK = "gemm m=256 n=256 k=256 dtype=fp16"
ONLY = ("clock.boost", "dram.bandwidth", "launch.drain", "sm.count", "pcie.*", "instructions.mma.fp16.*", "l2.line")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Sensitivity:
    store = tmp_path_factory.mktemp("store") / "r.sqlite"
    return sensitivity(WORK, "t4", only=ONLY, store=store, workers=1)


def test_signs_and_ranks(found: Sensitivity) -> None:
    bars = {bar.path: bar for bar in found.bars}
    assert (bars["clock.boost"].elasticity or 0) < -0.3
    assert 0 < (bars["launch.drain"].elasticity or 0) < 1
    assert bars["pcie.bandwidth"].swing == 0
    assert (bars["instructions.mma.fp16.m16n8k8.latency"].elasticity or 0) >= 0
    swings = [bar.swing for bar in found.bars]
    assert swings == sorted(swings, reverse=True)
    assert [path for path, _ in found.skipped] == ["l2.line"]
    drain = bars["launch.drain"]
    assert drain.up
    assert drain.down
    # What is added at the end of a kernel changes the time by the figure's own change.
    share = 0.1 * load_arch("t4").launch.drain_ps / found.time_ps
    assert drain.up.time_change == pytest.approx(share, rel=0.01)
    assert drain.down.time_change == pytest.approx(-share, rel=0.01)


def test_counts_move_by_whole_steps(found: Sensitivity) -> None:
    bar = next(bar for bar in found.bars if bar.path == "sm.count")
    assert bar.down
    assert bar.up
    assert (bar.down.value, bar.up.value) == ("36", "44")
    assert bar.down.change == pytest.approx(-0.1)


def test_every_figure_has_its_turn() -> None:
    machine = load_arch("h100-sxm")
    paths = [path for path, _ in _figures(machine)]
    assert len(paths) == len(set(paths)) > 150
    for path in (
        "dram.t_rcd",
        "power.energy.tensor.bf16",
        "instructions.wgmma.bf16.m64n*k16.interval",
        "l2.link_bandwidth",
    ):
        assert path in paths
    zero = load_arch("h100-sxm", ["launch.drain=0 ns"])
    assert "launch.drain" in paths
    assert "launch.drain" not in dict(_figures(zero))  # no relative change


def test_output(found: Sensitivity, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    axes = found.plot()
    assert "10 % of the figure" in axes.get_xlabel()
    assert axes.get_yticklabels()[0].get_text().startswith(found.bars[0].path)
    pyplot.close("all")
    assert "what moves it" in str(found)
    assert "bandwidth, latency" in str(found)
    assert "<table>" in found._repr_html_()
    store, picture = str(tmp_path / "r.sqlite"), tmp_path / "t.svg"
    words = [
        "sensitivity",
        *WORK.split(),
        "--arch",
        "t4",
        "--only",
        "launch.kernel",
        "--store",
        store,
        "--workers",
        "1",
    ]
    assert main([*words, "--json", "--step", "20 %", "--plot", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["figures"][0]["up"]["change"] == pytest.approx(0.2)
    assert picture.exists()
    with ResultStore(Path(store)) as opened:
        assert opened.count() == 3
    for wrong, message in (
        (["--step", "2"], "between 0 and 1"),
        (["--step", "x"], "share"),
        (["--only", "nope"], "nope"),
    ):
        assert main([*words, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_wrong_machine_or_workload_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for workload, arch in (("gemm m=0 n=1 k=1", "t4"), (WORK, "t5"), ("gemm m=64 n=64 k=64 dtype=bf16", "t4")):
        with pytest.raises(InputError):
            sensitivity(workload, arch, store=tmp_path / "r.sqlite", workers=1)


def _bar(down: tuple[float, float] | None, up: tuple[float, float] | None) -> Bar:
    """A bar by change of the figure and of the time on either side."""
    sides = [None if side is None else Side("", side[0], 0, side[1]) for side in (down, up)]
    return Bar("x", "", *sides)


@pytest.mark.parametrize(
    ("down", "up", "response"),
    [
        ((-0.1, 0.08), (0.1, -0.07), "smooth"),
        ((-0.1, 0.08), (0.1, -0.001), "bend"),  # another unit bounds it
        ((-0.125, 0.37), (0.125, 0.37), "cliff"),  # slower both ways
        ((-0.1, 0.30), (0.1, -0.09), "cliff"),  # more than in proportion
        ((-0.1, 0.0), (0.1, 0.002), "bend"),
        (None, (0.1, -0.05), "one side"),
    ],
)
def test_elasticity_is_for_smooth_responses_alone(
    down: tuple[float, float] | None, up: tuple[float, float] | None, response: str
) -> None:
    bar = _bar(down, up)
    assert bar.response == response
    assert (bar.elasticity is None) == (response != "smooth")
    if down and up and bar.elasticity is not None:
        one, other = (math.log1p(time) / math.log1p(change) for change, time in (down, up))
        assert bar.elasticity == pytest.approx((one + other) / 2)


def test_a_held_schedule_stays_and_a_changed_one_is_marked(tmp_path: Path) -> None:
    def found(hold: bool) -> Sensitivity:
        words = ("gemm m=512 n=512 k=512 dtype=fp16", "t4")
        return sensitivity(*words, only=["sm.count"], step=0.5, store=tmp_path / "r", workers=1, hold=hold)

    held, tuned = found(True), found(False)
    assert "schedule held" in held.base.title
    assert "tuned" in tuned.base.title
    (bar,), (free,) = held.bars, tuned.bars
    for before, after in ((bar.down, free.down), (bar.up, free.up)):
        assert before
        assert after
        assert not before.switched
        assert after.time_ps <= before.time_ps
        assert ("*" in str(tuned)) == any(side.switched for side in (free.down, free.up) if side)
