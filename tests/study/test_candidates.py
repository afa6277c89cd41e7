"""What a choice has simulated is remembered: the same answer again, for one simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arch.load import load_arch
from sim.app.families.choice import RememberedRun
from sim.app.families.gpu.runner import OperatorPlan
from sim.app.families.request import Request
from sim.app.run import run
from sim.app.study.candidates import Candidates

ASKED = Request("softmax rows=64 cols=1024 dtype=fp16", load_arch("t4"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the candidates that are simulated."""
    numbers: list[int] = []
    simulate = OperatorPlan.run

    def counted(plan: OperatorPlan, number: int, *arguments: Any, **options: Any) -> Any:
        numbers.append(number)
        return simulate(plan, number, *arguments, **options)

    monkeypatch.setattr(OperatorPlan, "run", counted)
    return numbers


def test_the_second_run_simulates_what_is_chosen_alone(tmp_path: Path, ran: list[int]) -> None:
    path = tmp_path / "results.sqlite"
    first = run(ASKED, memory=Candidates(ASKED, path))
    tried = len(ran)
    assert tried > 1
    second = run(ASKED, memory=Candidates(ASKED, path))
    assert len(ran) == tried + 1
    assert replace(second, simulator=first.simulator) == first
    assert first.simulator is not None
    assert second.simulator is not None
    assert second.simulator.events == first.simulator.events


def test_another_machine_and_another_condition_are_simulated(tmp_path: Path, ran: list[int]) -> None:
    path = tmp_path / "results.sqlite"
    for other in (ASKED, replace(ASKED, l2="warm"), replace(ASKED, machine=load_arch("t4", ["sm.count=20"]))):
        before = len(ran)
        run(other, memory=Candidates(other, path))
        assert len(ran) - before > 1
    before = len(ran)
    run(replace(ASKED, tune=True), memory=Candidates(replace(ASKED, tune=True), path))
    assert 1 <= len(ran) - before < len(ran)


def test_a_store_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_text("something else" * 100)
    known = Candidates(ASKED, path)
    assert known.get("mma") is None
    known.put("mma", RememberedRun({"events": 1}, None, 2, 3))
    assert known.get("mma") == RememberedRun({"events": 1}, None, 2, 3)
    known.close()
