"""Search: it finds what a full sweep finds, keeps constraints, repeats itself; expressions are arithmetic only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.study.expressions import Constraint, Expression, machine_names
from sim.app.study.optimize import optimize
from sim.app.study.sweep import sweep

pytest.importorskip("optuna", reason="the optimize extra is not installed")

WORK = "gemm m=256 n=256 k=64 dtype=fp16"
VARY = ["sm.count=10:40:10", "clock.boost=1 GHz:1.5 GHz:lin3"]
AREA: dict[str, Any] = {"define": ["area=sm.count * 10 + clock.boost_hz / 1e7"], "subject_to": ["area <= 430"]}


def test_it_finds_what_a_sweep_finds_and_keeps_constraints(tmp_path: Path) -> None:
    store = tmp_path / "r.sqlite"
    found = optimize(WORK, "t4", VARY, trials=24, store=store, workers=1, **AREA)
    whole = sweep(WORK, "t4", VARY, store=store, workers=1)
    allowed = [
        row
        for row in whole.rows
        if 10 * int(row.point.values["sm.count"]) + 100 * float(row.point.values["clock.boost"].split()[0]) <= 430
    ]
    assert 0 < len(allowed) < len(whole.rows)
    assert found.best[0].values["time_us"] == min(row.metric("time_us") or 0 for row in allowed)
    assert found.best[0].values["area"] <= 430
    assert all(not trial.row.answer.report for trial in found.trials if trial.broken)
    again = optimize(WORK, "t4", VARY, trials=24, store=store, workers=1, **AREA)
    assert again.to_dict() == found.to_dict()


def test_a_space_that_the_trials_cover_is_run_as_a_whole_and_no_position_twice(tmp_path: Path) -> None:
    store = tmp_path / "r"
    whole = optimize(WORK, "t4", VARY[:1], trials=4, store=store, workers=1)
    assert [trial.row.point.values["sm.count"] for trial in whole.trials] == ["10", "20", "30", "40"]
    most = optimize(WORK, "t4", VARY, trials=11, store=store, workers=1)  # of 12
    tried = [tuple(trial.row.point.values.values()) for trial in most.trials]
    assert len(tried) == len(set(tried)) == 11
    held = optimize(WORK, "t4", VARY[:1], trials=2, hold=True, store=store, workers=1)
    assert len({(trial.row.answer.report or {})["schedule"] for trial in held.trials}) == 1


def test_two_goals_give_a_front(tmp_path: Path) -> None:
    found = optimize(
        WORK, "t4", VARY, goals=["time_us", "area"], define=AREA["define"], trials=16, store=tmp_path / "r", workers=1
    )
    pairs = [(trial.values["time_us"], trial.values["area"]) for trial in found.best]
    assert pairs == sorted(pairs)
    assert [area for _, area in pairs] == sorted((area for _, area in pairs), reverse=True)
    for trial in found.trials:
        point = (trial.values["time_us"], trial.values["area"])
        assert any(best[0] <= point[0] and best[1] <= point[1] for best in pairs)


def test_limits_on_what_was_simulated(tmp_path: Path) -> None:
    found = optimize(
        WORK, "t4", ["sm.count=10:40:10"], subject_to=["power_w <= 1"], trials=3, store=tmp_path / "r", workers=1
    )
    assert found.best == []
    assert all(trial.broken for trial in found.trials)
    assert "no position keeps every constraint" in str(found)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "p.png"
    words = ["optimize", *WORK.split(), "--arch", "t4", "--vary", VARY[0], "--trials", "4", "--workers", "1"]
    words += ["--store", str(tmp_path / "r")]
    assert main([*words, "--json", "--plot", str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["goals"] == ["time_us"]
    assert picture.exists()
    for wrong, message in (
        (["--goal", "tim"], "nearest: time_us"),
        (["--goal", "time_us", "cycles", "power_w"], "one or two"),
        (["--define", "area"], "NAME=EXPRESSION"),
        (["--define", "time_us=1"], "already"),
        (["--define", "area=sm.cuont"], "nearest: sm.count"),
        (["--define", "area=open('x')"], "only numbers"),
        (["--subject-to", "area"], "A <= B"),
        (["--subject-to", "power <= 3"], "nearest"),
    ):
        assert main([*words, *wrong]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


@given(a=st.integers(-99, 99), b=st.integers(1, 99), c=st.floats(0.1, 9))
def test_expressions_are_arithmetic(a: int, b: int, c: float) -> None:
    names = {"x.y": float(a), "z": c}
    assert Expression.parse("max(x.y, 2) * -z + 3 / 4 ** 2", "--define").value(names) == max(a, 2) * -c + 3 / 16
    assert (Constraint.parse(f"x.y >= {b}", "-").excess(names) <= 0) == (a >= b)


@pytest.mark.parametrize(
    "text",
    [
        "a.b()",
        "[1]",
        "a if b else c",
        "a[0]",
        "a and b",
        "__import__('os')",
        "1 +",
        "'x'",
        "f'{a}'",
        "lambda: 1",
        "abs(1)",
        "True",
        "min(*a)",
        "a % 2",
    ],
)
def test_nothing_else_is_understood(text: str) -> None:
    with pytest.raises(InputError, match="--define"):
        Expression.parse(text, "--define")


def test_names_are_those_of_python() -> None:
    machine = load_arch("h100-sxm")
    names = machine_names(machine)
    assert names["l2.size_bytes"] == machine.l2.size_bytes
    assert names["dram.bandwidth_bytes_per_s"] == machine.dram.bandwidth_bytes_per_s
    with pytest.raises(InputError, match="no finite number"):
        Expression.parse("1 / (sm.count - 132)", "--define").value(names)
