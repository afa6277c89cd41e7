"""Verdicts of a few random runs, judged by doing what they say; `scripts/lab/verdict_laws.py` notices wrong ones."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from sim.app.report.report import Report

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "lab"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("verdict_laws")


def test_verdicts_do_what_they_say(script: ModuleType) -> None:
    busy = [
        script.RandomCase("gemm m=512 n=512 k=512 dtype=fp32", "v100-sxm2-32gb", (), {"l2": "warm"}),
        script.RandomCase("gemm m=256 n=256 k=256", "tpu-v1", (), {"scope": "array"}),
        script.RandomCase("pointwise n=2M chain=add dtype=fp32", "t4", ("dram.bandwidth=640 GB/s",)),
    ]
    found = script.examine([*busy, *islice(script.cases(seed=0), 8)])
    assert [f"{judged} {case}" for case, _, judged in found.wrong] == []
    assert [f"{rule}: {case}" for case, rule in found.broken] == []
    assert len(found.judged) >= 8
    assert {judged.moves for _, _, judged in found.judged} == {True, False}


def test_what_a_verdict_says_wrongly_is_noticed(script: ModuleType) -> None:
    case = script.RandomCase("copy n=8000000 dtype=fp32", "t4")
    report = script.simulate(case.workload, case.arch)
    wrong = [script.Claim(("dram.bandwidth",), False), script.Claim(("l2.hit_latency",), True)]
    assert [script.judge(case, report, claim).right for claim in wrong] == [False, False]
    assert script.judge(case, report, script.Claim(("dram.bandwidth",), True)).right


def test_a_share_over_one_and_claims_that_exclude_each_other_are_noticed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = script.simulate("copy n=8000000 dtype=fp32", "t4")
    assert script.rules_broken(report) == []
    slow = dataclasses.replace(report.record.machine, bandwidths={"dram": 10**9, "l2": 10**9, "pcie": 10**9})
    over = script.rules_broken(Report(dataclasses.replace(report.record, machine=slow)))
    assert any(rule.startswith("gpu.speed_of_light.dram is ") for rule in over)
    assert any(rule.startswith("the text says ") for rule in over)
    both = [script.Claim(("clock.boost",), moves) for moves in (True, False)]
    monkeypatch.setattr(script, "claims_of", lambda report: both)
    assert script.rules_broken(report) == ["clock.boost moves it and does not"]
