"""Studies on a real Dask scheduler with real workers on loopback, some of which are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from sim.app.study import executors
from sim.app.study.executors import Dask
from sim.app.study.runner import run_cases
from sim.app.study.store import ResultStore
from sim.app.study.sweep import sweep
from tests.study import work
from tests.study.test_runner import CASES, EXPECTED, cycles, ran

distributed = pytest.importorskip("distributed", reason="the dask extra is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dask")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    with (
        pytest.MonkeyPatch.context() as patch,
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=folder,
            silence_logs=50,
            env={work.FOLDER: str(folder)},
        ) as started,
    ):
        patch.setenv(work.FOLDER, str(folder))
        yield started


def test_workers_that_die_in_mid_sweep_change_nothing(cluster: Any, folder: Path, tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        answers = run_cases(CASES, lambda n: Dask(cluster.scheduler_address, work.dies_once), store=store)
        assert store.count() == len(CASES)
    assert cycles(answers) == EXPECTED
    assert (folder / "died").exists()
    assert set(ran(folder)) == {case.workload for case in CASES}


def test_same_results_bit_for_bit(cluster: Any, tmp_path: Path) -> None:
    def run(name: str, **where: Any) -> Any:
        found = sweep("gemm m=64 n=64 dtype=fp16", "t4", ["k=64,128"], store=tmp_path / name, **where)
        return found.to_dict(), found.kept

    here = run("local", workers=1)
    there = run("dask", executor="dask", scheduler=cluster.scheduler_address)
    assert here == there
    assert here[1] == 0
    assert run("dask", workers=1)[1] == 2


def test_no_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "DASK_ANSWERS_WITHIN_S", 0.5)
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        Dask("tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        Dask("nonsense://x")
