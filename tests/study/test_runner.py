"""Running the cases of a study: nothing twice, dying workers, rivals, versions. Stand-ins do the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.families.request import Bench, Request
from sim.app.study import case as case_module
from sim.app.study.case import key_of
from sim.app.study.executors import Executor, Inline, Processes, make_executor
from sim.app.study.runner import run_cases
from sim.app.study.store import ResultStore
from tests.study import work

MACHINE = load_arch("t4")
CASES = [Request(f"gemm m={m} n=1 k={10**m}", MACHINE) for m in range(1, 9)]
"""Texts of eight lengths, so that answers in another order show."""
EXPECTED = [len(str(case.workload)) for case in CASES]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(work.FOLDER, str(tmp_path))
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResultStore]:
    with ResultStore(tmp_path / "r.sqlite") as opened:
        yield opened


def ran(folder: Path) -> list[str]:
    """Workloads that were worked on, in order."""
    path = folder / "ran"
    return path.read_text().splitlines() if path.exists() else []


def cycles(answers: Any) -> list[int]:
    return [answer.report["cycles"] for answer in answers]


def never(cases: Sequence[Request]) -> Executor:
    raise AssertionError(f"{len(cases)} cases are run again")


def test_nothing_is_run_twice(folder: Path, store: ResultStore) -> None:
    shown: list[tuple[int, int]] = []
    first = run_cases([*CASES, *CASES], lambda n: Inline(work.noted), store=store, progress=lambda *p: shown.append(p))
    assert cycles(first) == EXPECTED * 2
    assert ran(folder) == [case.workload for case in CASES]
    assert shown[0] == (0, 8)
    assert shown[-1] == (8, 8)
    assert cycles(run_cases(CASES, never, store=store)) == EXPECTED


def test_an_interrupted_study_goes_on_where_it_stopped(folder: Path, store: ResultStore) -> None:
    def stops(case: Request) -> Any:
        if "m=4" in str(case.workload):
            raise KeyboardInterrupt
        return work.noted(case)

    with pytest.raises(KeyboardInterrupt):
        run_cases(CASES, lambda n: Inline(stops), store=store)
    assert cycles(run_cases(CASES, lambda n: Inline(work.noted), store=store)) == EXPECTED
    assert ran(folder) == [case.workload for case in CASES]


def test_a_dying_process_costs_nothing(folder: Path, store: ResultStore) -> None:
    assert cycles(run_cases(CASES, lambda n: Processes(2, work.dies_once), store=store)) == EXPECTED
    assert set(ran(folder)) == {case.workload for case in CASES}


@pytest.mark.parametrize("wait_s", [1.0, 0.01], ids=["at once", "after many looks"])
def test_a_case_that_kills_its_process_fails_alone(
    folder: Path, store: ResultStore, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    monkeypatch.setattr("sim.app.study.runner._WAIT_S", wait_s)
    answers = run_cases(CASES, lambda n: Processes(2, work.dies_always), store=store)
    assert [bool(answer.failed) for answer in answers] == [" m=3" in str(case.workload) for case in CASES]
    assert "died" in answers[2].failed


def test_concurrent_studies_share_the_work(folder: Path, tmp_path: Path) -> None:
    found: list[list[int]] = []

    def study(cases: list[Request]) -> None:
        with ResultStore(tmp_path / "r.sqlite") as store:
            found.append(cycles(run_cases(cases, lambda n: Inline(work.noted), store=store)))
            assert store.trouble == ""

    ResultStore(tmp_path / "r.sqlite").close()
    studies = [threading.Thread(target=study, args=(CASES,)) for _ in range(3)]
    for thread in studies:
        thread.start()
    for thread in studies:
        thread.join()
    assert found == [EXPECTED] * 3
    assert sorted(ran(folder)) == sorted(str(case.workload) for case in CASES)


def test_a_worker_of_another_version_is_refused(store: ResultStore) -> None:
    with pytest.raises(InputError, match="another version"):
        run_cases(CASES, lambda n: Inline(work.other_version), store=store)
    assert store.count() == 0


def test_another_version_does_not_see_the_results(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cases(CASES[:1], lambda n: Inline(work.answer_of), store=store)
    key = key_of(CASES[0])
    monkeypatch.setattr(case_module, "code_hash", lambda: "f" * 64)
    assert key_of(CASES[0]) != key
    assert store.get(key_of(CASES[0])) is None


ANOTHER: dict[str, Any] = {
    "workload": "gemm m=2 n=1 k=1", "machine": load_arch("t4", ["sm.count=39"]), "schedule": "mma",
    "without": ("swizzle",), "check": True, "exact": True, "l2": "warm", "scope": "stream", "clock": "sustained",
    "data": "zeros", "tune": True, "program": "mine.py:make", "pdl": True, "held": (("gemm m=1 n=1 k=1", "mma"),),
    "measured_as": "loop",
}  # fmt: skip
"""By field of a request, what else may be asked for; those of `Bench` follow from their types."""


def changed(case: Request, name: str) -> Request:
    """A request that differs in one field, of itself or of its benchmark; KeyError for one that nobody thought of."""
    _, _, inner = name.partition("bench.")
    if not inner:
        return replace(case, **{name: ANOTHER[name]})
    value = getattr(case.bench, inner)
    other: dict[str, Any] = {inner: not value if isinstance(value, bool) else (value or 0) + 1}
    return replace(case, bench=replace(case.bench, **other))


FIELDS = [*(f.name for f in fields(Request) if f.name != "bench"), *(f"bench.{f.name}" for f in fields(Bench))]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_a_request_is_in_its_key(name: str) -> None:
    case = Request("gemm m=1 n=1 k=1", MACHINE)
    other = changed(case, name)
    assert other != case
    assert key_of(other) != key_of(case)


def test_requests_that_differ_in_one_field_have_keys_of_their_own() -> None:
    case = Request("gemm m=1 n=1 k=1", MACHINE)
    assert len({key_of(case), *(key_of(changed(case, name)) for name in FIELDS)}) == 1 + len(FIELDS)


def test_one_figure_set_in_two_ways_is_two_results() -> None:
    """The reports say how the machine was asked for, and so differ."""
    machines = [load_arch("t4", overrides) for overrides in ([], ["l2.size=3 MiB"], ["l2.size=3072 KiB"])]
    assert machines[1].content_hash() == machines[2].content_hash()
    assert len({key_of(Request("gemm m=1 n=1 k=1", machine)) for machine in machines}) == 3


def test_what_changes_no_answer_is_not_in_the_key() -> None:
    case = Request("gemm m=1 n=1 k=1", MACHINE)
    assert key_of(Request("gemm m=1 n=1 k=1", MACHINE, l2="cold")) == key_of(case)
    assert key_of(replace(case, machine=MACHINE.model_copy(update={"title": "another"}))) == key_of(case)


def test_options_of_executors_are_checked() -> None:
    for options, words in (
        ({"name": "dask", "scheduler": None}, "--scheduler ADDRESS"),
        ({"name": "local", "scheduler": "tcp://127.0.0.1:1"}, "--executor dask"),
    ):
        with pytest.raises(InputError, match=words):
            make_executor(**options, workers=1, cases=[])  # type: ignore[arg-type]
