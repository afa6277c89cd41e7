"""Sweeps: axes as people type them, tables, fronts, pictures, the command line."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.cli import main
from sim.app.run import simulate
from sim.app.study.axes import Base, axes_of, numeric, points
from sim.app.study.case import Answer
from sim.app.study.sweep import Row, Sweep, _cell, sweep

SMALL = "gemm n=64 k=64 dtype=fp16"
BASE = Base(SMALL, ("t4",))


def values(*vary: str, base: Base = BASE) -> list[tuple[str, ...]]:
    (axis,) = axes_of(base, [vary])[1]
    return list(axis.values)


def flat(*vary: str) -> list[str]:
    return [value for (value,) in values(*vary)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m=1,2,4", ["1", "2", "4"]),
        ("m=64:256:64", ["64", "128", "192", "256"]),
        ("m=1:4", ["1", "2", "3", "4"]),
        ("m=64:1024:*4", ["64", "256", "1024"]),
        ("m=1,8:32:*2,100", ["1", "8", "16", "32", "100"]),
        ("m=1:1000:log4", ["1", "10", "100", "1000"]),
        ("m=1:10:log3", ["1", "3", "10"]),
        ("m=0:8:lin3", ["0", "4", "8"]),
        ("dram.bandwidth=2 TB/s,3.35 TB/s", ["2 TB/s", "3.35 TB/s"]),
        ("dram.bandwidth=1 TB/s:8 TB/s:log4", ["1 TB/s", "2 TB/s", "4 TB/s", "8 TB/s"]),
        ("dram.bandwidth=100 GB/s:300 GB/s:100 GB/s", ["100 GB/s", "200 GB/s", "300 GB/s"]),
        ("l2.size=1 MiB:4 MiB:*2", ["1 MiB", "2 MiB", "4 MiB"]),
        ("clock.boost=1 GHz:2 GHz:lin3", ["1 GHz", "1.5 GHz", "2 GHz"]),
        ("schedule=mma,simt", ["mma", "simt"]),
        ("dtype=fp16,int8", ["fp16", "int8"]),
        ("instructions.ffma.fp32.interval=2,4", ["2", "4"]),
    ],
)
def test_values_as_people_type_them(text: str, expected: list[str]) -> None:
    assert flat(text) == expected


@given(low=st.integers(1, 500), steps=st.integers(2, 9), size=st.integers(1, 50))
def test_ranges_hold_both_ends_and_keep_their_step(low: int, steps: int, size: int) -> None:
    high = low + steps * size
    found = [int(text) for text in flat(f"m={low}:{high}:{size}")]
    assert (found[0], found[-1], len(found)) == (low, high, steps + 1)
    assert {b - a for a, b in itertools.pairwise(found)} == {size}
    spread = [int(text) for text in flat(f"m={low}:{high}:log{steps}")]
    assert (spread[0], spread[-1]) == (low, high)
    assert spread == sorted(set(spread))


def test_keys_of_one_vary_go_together_and_several_are_crossed() -> None:
    assert values("m=1,2", "schedule=mma,simt") == [("1", "mma"), ("2", "simt")]
    assert values("m,n,k=64:128:64") == [("64", "64", "64"), ("128", "128", "128")]
    base, axes = axes_of(BASE, [["m=1,2"], ["sm.count=20,40", "l2.size=2 MiB,4 MiB"]])
    found = points(base, axes)
    assert [tuple(point.values.values()) for point in found] == [
        ("1", "20", "2 MiB"),
        ("1", "40", "4 MiB"),
        ("2", "20", "2 MiB"),
        ("2", "40", "4 MiB"),
    ]
    case = found[3].case
    assert case
    assert isinstance(case.machine, GpuSpec)
    assert (case.machine.sm.count, case.machine.l2.size_bytes) == (40, 4 << 20)
    assert case.workload == "gemm m=2 n=64 k=64 dtype=fp16"


def test_machines_are_an_axis_too() -> None:
    for base, vary in ((Base(SMALL, ("t4", "v100-sxm2")), ["m=64"]), (Base(SMALL, ()), ["m=64", "arch=t4,v100-sxm2"])):
        found = points(*axes_of(base, [[word] for word in vary]))
        assert sorted(point.values["arch"] for point in found) == ["t4", "v100-sxm2"]


WRONG = [
    (["m"], "KEY=VALUES"),
    (["m="], "KEY=VALUES"),
    (["mm=1"], "nearest: m"),
    (["dram.bandwith=1 TB/s"], "nearest: dram.bandwidth"),
    (["m=4:1"], "backwards"),
    (["m=1:2:3:4"], "not a range"),
    (["m=1:x"], "not a range"),
    (["m=1:9:0"], "step"),
    (["m=1:9:*1"], "factor"),
    (["m=1:9:log1"], "at least 2"),
    (["m=0:9:log3"], "above 0"),
    (["dram.bandwidth=1:2:lin3"], "unit"),
    (["dram.bandwidth=1 TB/s:2 TB/s"], "step"),
    (["m=1,2", "schedule=mma"], "equally many"),
    (["m=1", "m=2"], "twice"),
    (["m,schedule=1"], "different kinds"),
    (["m=1:1000000"], "at most"),
]


@pytest.mark.parametrize(("vary", "words"), WRONG)
def test_wrong_axes_are_one_line(vary: list[str], words: str) -> None:
    with pytest.raises(InputError) as raised:
        axes_of(BASE, [vary])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_wrong_combinations_are_refused_before_anything_runs() -> None:
    for base, vary, words in (
        (Base(SMALL, ("t4",)), [["m=1"], ["m=2"]], "varied twice"),
        (Base(SMALL, ("t4",)), [["arch=t4"]], "named twice"),
        (Base(SMALL, ()), [["m=1"]], "--arch"),
        (Base(SMALL, ("t4",)), [["m=1:1000"], ["n=1:1000"]], "at most"),
        (Base(SMALL, ("t4",)), [["m=0,-1"]], "m=0"),
        (Base(SMALL, ("t4",)), [["sm.count=0"]], "sm.count"),
    ):
        with pytest.raises(InputError, match=words):
            points(*axes_of(base, vary))


def test_numbers_carry_their_unit_in_the_columns_name() -> None:
    assert numeric("dram.bandwidth", "2 TB/s", BASE) == ("dram.bandwidth_bytes_per_s", 2 * 10**12)
    assert numeric("m", "64", BASE) == ("m", 64)
    assert numeric("sm.count", "40", BASE) == ("sm.count", 40)
    assert numeric("arch", "t4", BASE) == ("arch", "t4")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Six runs, two of which cannot be."""
    store = tmp_path_factory.mktemp("store") / "r.sqlite"
    return sweep(SMALL, "t4", ["m=64,128", ("sm.count=20,40,0",)], store=store, workers=1)


def test_rows_are_what_simulate_gives(small: Sweep) -> None:
    for row in small.rows:
        if row.answer.report:
            count = row.point.values["sm.count"]
            report = simulate(f"{SMALL} m={row.point.values['m']}", "t4", set=[f"sm.count={count}"])
            assert row.answer.report["cycles"] == report.cycles
            assert row.metric("time_us") == report.time_us
            assert "simulator" not in row.answer.report
    assert [bool(row.reason) for row in small.rows] == [False, False, True] * 2


def test_tables(small: Sweep, tmp_path: Path) -> None:
    import pyarrow.parquet

    small.write(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["m"], row["sm.count"]) for row in rows][:3] == [("64", "20"), ("64", "40"), ("64", "0")]
    assert int(rows[0]["cycles"]) == small.rows[0].metric("cycles")
    assert "sm.count" in rows[2]["reason"]
    small.write(tmp_path / "t.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table["sm.count"].to_pylist() == [20, 40, 0] * 2
    assert table["cycles"].to_pylist()[2] is None
    small.write(tmp_path / "long.csv", melt=True)
    with open(tmp_path / "long.csv", newline="") as file:
        long = list(csv.DictReader(file))
    times = [float(row["value"]) for row in long if row["metric"] == "time_us"]
    assert times == [row.metric("time_us") for row in small.rows if not row.reason]


def test_text_html_and_json(small: Sweep) -> None:
    assert "4 of 6 runs" in str(small)
    assert "Not run: 2" in str(small)
    assert "<table>" in small._repr_html_()
    document = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    assert [("report" in row, "reason" in row) for row in document["rows"]][1:3] == [(True, False), (False, True)]


def test_front_of_two_metrics(small: Sweep) -> None:
    def row(time_us: float, tflops: float) -> Row:
        return Row(small.rows[0].point, Answer(report={"time_us": time_us, "tflops": tflops}))

    rows = [row(3, 9), row(1, 5), row(2, 4), row(2, 7), row(4, 9), row(1, 6)]
    front = Sweep(small.base, small.keys, rows).pareto("time_us", "tflops")
    assert [(r.metric("time_us"), r.metric("tflops")) for r in front] == [(1, 6), (2, 7), (3, 9)]
    with pytest.raises(InputError, match="nearest: time_us"):
        small.pareto("time", "tflops")


def test_the_scale_of_a_wide_heat_map_has_plain_numbers(small: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    monkeypatch.setattr("sim.app.study.plots._WIDE_RANGE", 1)
    figure: Any = small.plot("tflops", kind="heat").figure
    figure.canvas.draw()
    scale = figure.axes[1]
    assert scale.get_yscale() == "log"
    texts = [label.get_text() for label in scale.get_yticklabels()]
    assert texts
    assert all(float(text) for text in texts)


def test_pictures_fit_what_was_varied(small: Sweep) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    lines: Any = small.plot()
    assert len(lines.lines) == 2
    assert {tuple(line.get_ydata()) for line in lines.lines} == {
        tuple(row.metric("time_us") for row in small.rows if row.point.values[key] == value and not row.reason)
        for key, value in _lines(small)
    }
    heat: Any = small.plot("tflops", kind="heat")
    assert heat.images[0].get_array().shape == (2, 3)
    front = small.plot_pareto()
    assert "lower is better" in front.get_xlabel()
    words: Any = Sweep(small.base, ["schedule"], [_with(row, {"schedule": str(i)}) for i, row in enumerate(small.rows)])
    assert len(words.plot().patches) == 4
    with pytest.raises(InputError, match="nothing was varied"):
        Sweep(small.base, [], small.rows[:1]).plot()
    pyplot.close("all")


def test_a_line_starts_at_zero_names_machine_and_regimes_and_marks_another_schedule(small: Sweep) -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    rows = [row for row in small.rows if not row.reason and row.point.values["m"] == "64"]
    other = {**(rows[1].answer.report or {}), "schedule": "another", "bound": "dram"}
    moved = Sweep(small.base, small.keys, [rows[0], Row(rows[1].point, replace(rows[1].answer, report=other))])
    assert moved.switched == [False, True]
    assert [record["schedule_changed"] for record in moved.table] == [False, True]
    assert "* another" in str(moved)
    axes: Any = moved.plot()
    assert axes.get_ylim()[0] == 0
    highest = max((row.answer.report or {})["time_us"] for row in rows)
    assert axes.get_ylim()[1] == pytest.approx(1.05 * highest), "the topmost marker is whole"
    assert "t4" in axes.get_title()
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == [f"bound: {(rows[0].answer.report or {})['bound']}", "bound: dram", "another schedule"]
    assert Sweep(small.base, small.keys, rows).switched == [False, False]
    pyplot.close("all")


def test_hold_keeps_the_first_points_schedule_and_tune_takes_the_best_of_each(tmp_path: Path) -> None:
    vary, store = ["m=64,1024"], tmp_path / "r"
    work = "gemm n=512 k=512 dtype=fp16"
    held, tuned = (sweep(work, "t4", vary, hold=hold, store=store, workers=1) for hold in (True, False))
    plain = sweep(work, "t4", vary, tune=False, store=store, workers=1)
    first, *others = [(row.answer.report or {})["schedule"] for row in held.rows]
    assert others == [first]
    assert "schedule held" in held.base.title
    assert "each point tuned" in tuned.base.title
    for best, one, auto in zip(tuned.rows, held.rows, plain.rows, strict=True):
        report = best.answer.report or {}
        assert report["tune"]
        assert report["time_us"] <= min(row.metric("time_us") or 0 for row in (one, auto))
    assert tuned.rows[0].metric("time_us") == held.rows[0].metric("time_us")
    with pytest.raises(InputError, match="--hold keeps one schedule"):
        sweep(work, "t4", ["schedule=mma,auto"], hold=True, store=store, workers=1)


def _lines(small: Sweep) -> list[tuple[str, str]]:
    """Key and value that each line of the picture stands for: sm.count has more values, so it is the x axis."""
    return [("m", value) for value in dict.fromkeys(row.point.values["m"] for row in small.rows)]


def _with(row: Row, texts: dict[str, str]) -> Row:
    return Row(type(row.point)(texts, row.point.case, row.point.reason), row.answer)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, picture, store = tmp_path / "t.csv", tmp_path / "p.png", str(tmp_path / "r.sqlite")
    words = ["sweep", *SMALL.split(), "--arch", "t4", "--vary", "m=64,128", "--workers", "1", "--store", store]
    assert main([*words, "--csv", str(table), "--plot", str(picture), "--pareto", "time_us", "energy_j"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 runs" in out
    assert "Best in time_us and energy_j" in out
    assert table.exists()
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main(words) == 0
    assert "2 results were in the store" in capsys.readouterr().out
    for wrong, message in (
        (["--csv", str(table)], "the file exists"),
        (["--csv", "t.txt"], ".parquet"),
        (["--melt"], "--csv"),
        (["--metric", "tim"], "nearest: time_us"),
        (["--kind", "pie"], "line"),
        (["--executor", "dask"], "--scheduler"),
        (["--scheduler", "tcp://127.0.0.1:1"], "--executor dask"),
        (["--clock", "sustaind"], "clock=sustaind"),
    ):
        assert main([*words, *wrong]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert main([*words, "--store", str(tmp_path)]) == 0, "results that cannot be kept are results"
    assert f"results are not kept in {tmp_path}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store = tmp_path / "r.sqlite"
    words = ["sweep", "gemm", "n=512", "k=512", "dtype=fp16", "--arch", "t4", "--vary", "m=64:1024:64"]
    command = [sys.executable, "-m", "sim.app.cli", *words, "--workers", "1", "--json", "--store", str(store)]
    from sim.app.study.store import ResultStore

    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with ResultStore(store) as opened:
        while opened.count() < 2:
            assert killed.poll() is None
            time.sleep(0.02)
        killed.kill()
        killed.wait()
        kept = opened.count()
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    fresh = subprocess.run([*command[:-1], str(tmp_path / "other")], capture_output=True, text=True, check=True)
    assert 2 <= kept < 16
    assert whole.stdout == fresh.stdout


def _children(pid: int) -> set[int]:
    """Processes below a process, over all steps."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                child = int(path.parent.name)
                found |= {child} | _children(child)
    return found


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_a_killed_parent(tmp_path: Path, how: signal.Signals) -> None:
    words = ["sweep", "gemm", "n=4096", "k=4096", "dtype=fp32", "--arch", "t4", "--vary", "m=4096:8192:1024"]
    command = [sys.executable, "-m", "sim.app.cli", *words, "--workers", "2", "--store", str(tmp_path / "r.sqlite")]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 120
    while len(workers := _children(parent.pid)) < 2:  # and the pool's helper process
        assert parent.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    time.sleep(1)
    workers |= _children(parent.pid)
    parent.send_signal(how)
    parent.wait()
    deadline_s = time.monotonic() + 30
    while any(map(_alive, workers)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not [pid for pid in workers if _alive(pid)]


def test_cells_that_a_spreadsheet_would_run_are_text() -> None:
    assert [_cell(value) for value in ("=1+1", "+x", "-x", "@x", "\tx", "x=1", -1.5, 3, True)] == [
        "'=1+1", "'+x", "'-x", "'@x", "'\tx", "x=1", -1.5, 3, True,
    ]  # fmt: skip


def test_shards_are_the_study_and_their_stores_join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SMALL.split(), "--arch", "t4", "--vary", "m=16:80:16", "--schedule", "mma", "--workers", "1"]
    parts = [tmp_path / f"part{number}.sqlite" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        assert main([*words, "--shard", f"{number}/2", "--store", str(part), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert [row["values"]["m"] for row in document["rows"]] == [str(m) for m in range(16 * number, 81, 32)]
    whole = [*words, "--store", str(tmp_path / "all.sqlite"), "--from", *map(str, parts)]
    assert main(whole) == 0
    assert "5 results were in the store" in capsys.readouterr().out


def test_a_few_points_say_how_long_all_will_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SMALL.split(), "--arch", "t4", "--vary", "m=16:320:16", "--schedule", "mma", "--estimate"]
    words += ["--store", str(tmp_path / "s.sqlite"), "--workers", "4"]
    begin = time.process_time()
    assert main([*words, "--json"]) == 0
    spent = time.process_time() - begin
    found = json.loads(capsys.readouterr().out)
    assert (found["points"], len(found["tried_s"]), found["workers"]) == (20, 5, 4)
    assert 0 < sum(found["tried_s"]) < spent
    assert found["core_s"] == pytest.approx(4 * sum(found["tried_s"]))
    assert main(words) == 0
    assert "20; those tried are in the store" in capsys.readouterr().out


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "6/6"])
def test_a_shard_that_is_none_is_refused(shard: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--shard .*: (must be I/N|the study has 5 points)"):
        sweep(SMALL, "t4", ["m=16:80:16"], schedule="mma", shard=shard, store=tmp_path / "a.sqlite", workers=1)


def test_a_file_that_is_no_store_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.sqlite"
    other.write_text("no database")
    words = ["sweep", *SMALL.split(), "--arch", "t4", "--vary", "m=16,32", "--store", str(tmp_path / "all.sqlite")]
    for path, says in ((other, "cannot be used"), (tmp_path / "none.sqlite", "no such file")):
        assert main([*words, "--from", str(path)]) == 2
        assert says in capsys.readouterr().err


def test_figures_of_which_a_range_is_known_give_answers_as_ranges(tmp_path: Path) -> None:
    asked = {"schedule": "tcgen05 128x64x64 stages 4", "hold": True, "workers": 1, "store": tmp_path / "s.sqlite"}
    found = sweep("gemm m=256 n=256 k=256 dtype=bf16", "rubin-announced", ranges=True, **asked)  # type: ignore[arg-type]
    assert set(found.ranged) == {"l2.size", "shared.max_per_sm", "tcgen05.columns", "power.limit"}
    assert len(found.rows) == 2 ** len(found.ranged)
    times = [row.metric("time_us") for row in found.rows]
    assert found.to_dict()["ranges"]["time_us"] == [min(times), max(times)]  # type: ignore[type-var]
    first = found.sections()[0]
    assert first.title.startswith("Answers over the ranges of ")
    assert [row[0] for row in first.rows] == ["time_us", "tflops", "energy_j"]
    assert "ranges" not in sweep(SMALL, "t4", ["m=64"], workers=1, store=tmp_path / "t.sqlite").to_dict()
    for arch, told in (("t4", "t4 has no figure of which only a range"), (("t4", "rubin-announced"), "one machine")):
        with pytest.raises(InputError, match=told):
            sweep(SMALL, arch, ranges=True, workers=1, store=tmp_path / "u.sqlite")
