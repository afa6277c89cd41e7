"""The result store under everything that goes wrong: killed writers, full disks, damage, rivals."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.families.request import Request
from sim.app.study import store as module
from sim.app.study.case import Answer, key_of, run_case
from sim.app.study.executors import Inline
from sim.app.study.runner import run_cases
from sim.app.study.store import ResultStore

WRITER = """
import sys
from pathlib import Path
from sim.app.study.store import ResultStore
store = ResultStore(Path(sys.argv[1]))
print("ready", flush=True)
for i in range(1_000_000):
    store.put(f"{sys.argv[2]}-{i}", {"i": i, "text": [str(j * i) for j in range(4000)]})
"""


def document(i: int) -> dict[str, object]:
    return {"i": i, "text": [str(j * i) for j in range(4000)]}


def test_what_is_kept_comes_back_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.sqlite"
    with ResultStore(path) as store:
        assert store.get("a") is None
        assert store.put("a", {"cycles": 2**60, "share": 0.1})
    with ResultStore(path) as store:
        assert store.get("a") == {"cycles": 2**60, "share": 0.1}
        assert store.count() == 1


def test_killed_writers_leave_whole_results_only(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    for round_ in range(4):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"{round_}-{n}"], stdout=subprocess.PIPE)
            for n in range(2)
        ]
        for writer in writers:
            assert writer.stdout
            writer.stdout.readline()
        time.sleep(0.05 + 0.06 * round_)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    database = sqlite3.connect(path)
    assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    keys = [key for (key,) in database.execute("select key from results")]
    database.close()
    assert len(keys) > 8
    with ResultStore(path) as store:
        assert all(store.get(key) == document(int(key.rsplit("-", 1)[1])) for key in keys)
        assert store.put("after", {"fine": True})


def full(path: Path) -> None:
    """Fills the store until the disk (a limit on the size of files) is full, goes on, and checks itself."""
    sys.dont_write_bytecode = True  # it would be cut without a word
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    store = ResultStore(path)
    kept = [store.put(f"k{i}", document(i)) for i in range(200)]
    assert kept[0]
    assert not kept[-1]
    assert "not kept" in store.trouble
    assert store.get("k0") == document(0)
    assert store.claim("k-new")


def test_a_full_disk_costs_results_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    process = multiprocessing.get_context("fork").Process(target=full, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with ResultStore(path) as store:
        assert 0 < store.count() < 200
        for i in range(store.count()):
            assert store.get(f"k{i}") == document(i)
        assert store.put("now there is room", {})


def test_full_database_is_reported_once(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        store._db.execute("pragma max_page_count = 12")
        kept = [store.put(str(i), document(i)) for i in range(50)]
        assert not kept[-1]
        assert "full" in store.trouble
        assert store.get("0") == document(0)


def test_a_damaged_result_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as store:
        store.put("a", {"cycles": 1})
        store._db.execute("update results set document = substr(document, 1, length(document) - 2) || x'0000'")
        assert store.get("a") is None
        store.put("a", {"cycles": 2})
        assert store.get("a") == {"cycles": 2}


def test_a_damage_that_sqlite_quotes_is_one_error(tmp_path: Path) -> None:
    """Its text about a table's name that is no UTF-8 cannot be read."""
    path = tmp_path / "store"
    with ResultStore(path) as store:
        store.put("k", {"a": 1})
    content = path.read_bytes()
    assert b"tableclaimsclaims" in content
    path.write_bytes(content.replace(b"tableclaimsclaims", b"tablecl\x80imscl\x80ims"))
    with pytest.raises(InputError, match="cannot be used as a results file"):
        ResultStore(path)


def test_files_that_are_no_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but a text that is long enough to be read as one\n" * 40)
    with pytest.raises(InputError, match="not a database"):
        ResultStore(tmp_path / "text")
    assert (tmp_path / "text").read_text().startswith("no database")
    database = sqlite3.connect(tmp_path / "newer")
    database.execute("pragma user_version = 99")
    database.close()
    with pytest.raises(InputError, match="format 99"):
        ResultStore(tmp_path / "newer")


def test_places_that_cannot_be_written_keep_nothing_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a file")
    for place in (tmp_path, tmp_path / "text" / "below", Path("/proc/results.sqlite")):
        with ResultStore(place) as store:
            assert store.trouble.startswith(f"results are not kept in {place}: ")
            assert store.claim("a")
            store.put("a", {"cycles": 1})
        with ResultStore(place) as store:
            assert store.get("a") is None


def test_a_document_is_bound_to_its_key(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        store.put("a", {"cycles": 1})
        store._db.execute(
            "insert into results select 'b', kind, document, digest, made_at from results where key = 'a'"
        )
        assert store.get("a") == {"cycles": 1}
        assert not store.trouble
        assert store.get("b") is None
        assert "result b in" in store.trouble
        assert "another run" in store.trouble


def test_a_document_that_is_no_report_is_made_again(tmp_path: Path) -> None:
    request = Request("gemm m=64 n=64 k=64", load_arch("t4"))
    with ResultStore(tmp_path / "r.sqlite") as store:
        (first,) = run_cases([request], lambda _: Inline(), store=store)
        report = dict(first.report or {})
        del report["kernels"]
        store.put(key_of(request), {"report": report, "cpu_s": 0.0})
        (again,) = run_cases([request], lambda _: Inline(), store=store)
        assert again.report == first.report
        assert "does not follow the schema" in store.trouble


def reports(count: int) -> list[Request]:
    machine = load_arch("t4")
    return [Request(f"copy n={1024 * (i + 1)}", machine, schedule="fused warps 4 elements 4") for i in range(count)]


def test_reports_take_half_of_what_they_do_packed_one_by_one(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        answers = run_cases(reports(12), lambda _: Inline(), store=store)
        (kept,) = store._db.execute("select sum(length(document)) from results").fetchone()
        alone = sum(len(zlib.compress(json.dumps(answer.document).encode())) for answer in answers)
        assert kept < alone / 2
        assert [store.get(key_of(case)) for case in reports(12)] == [answer.document for answer in answers]
        with ResultStore(tmp_path / "other.sqlite") as other:
            other.put("of its own", {"report": {}}, "gpu")  # another sample
            assert other.take(tmp_path / "r.sqlite") == 12
            assert [other.get(key_of(case)) for case in reports(12)] == [answer.document for answer in answers]


class Answering:
    """Answers every case as the first; the one after `until` interrupts."""

    def __init__(self, until: int = 1000) -> None:
        self.until, self.answer = until, run_case(reports(1)[0])

    def __call__(self, case: Request) -> Answer:
        self.until -= 1
        if self.until < 0:
            raise KeyboardInterrupt
        return self.answer


def test_a_study_writes_about_once_a_second(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        work, written = Inline(Answering()), []
        store._db.set_trace_callback(lambda text: written.append(text) if text == "commit" else None)
        begun_s = time.monotonic()
        run_cases(reports(200), lambda _: work, store=store)
        assert store.count() == 200
        assert len(written) <= 12 + 3 * (time.monotonic() - begun_s)  # more keys at once each time


def test_what_was_made_is_kept_when_a_study_is_interrupted(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "r.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            run_cases(reports(9), lambda _: Inline(Answering(5)), store=store)
        assert store.count() == 5


def test_claims_keep_rivals_away_until_they_lapse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.sqlite"
    with ResultStore(path) as mine, ResultStore(path) as other:
        assert mine.claim("a")
        assert mine.claim("a")
        assert not other.claim("a")
        mine.put("a", {})
        assert other.claim("a")
        other.release("a")
        assert mine.claim("b")
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + module.CLAIM_S + 1)
        assert other.claim("b")
        assert not mine.claim("b")


def test_the_claims_of_a_dead_process_are_void(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    code = "import sys, os; from pathlib import Path; from sim.app.study.store import ResultStore; "
    code += "print(ResultStore(Path(sys.argv[1])).claim('a'), flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with ResultStore(path) as store:
        assert store._db.execute("select count(*) from claims").fetchone() == (1,)
        assert store.claim("a")


def test_a_claim_of_another_host_holds_until_it_lapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may live there, whatever has its number here."""
    with ResultStore(tmp_path / "r.sqlite") as store:
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        for host, free in (("elsewhere", False), (socket.gethostname(), True)):
            until = time.time() + module.CLAIM_S
            store._db.execute("insert or replace into claims values ('a', ?, ?)", (f"{host}:{dead.pid}:0", until))
            assert store.claim("a") is free
        store._db.execute("insert or replace into claims values ('a', 'elsewhere:1:0', ?)", (until,))
        monkeypatch.setattr(time, "time", lambda: until + 1)
        assert store.claim("a")


def test_default_place_follows_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.default_store() == tmp_path / "tilewave" / f"results-{module.FORMAT}.sqlite"
    assert os.access(tmp_path, os.W_OK)
