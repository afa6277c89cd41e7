"""CI regression: configuration, lock file, comparison, formats, exit codes, the difference of two reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.cli import _parser, main
from sim.app.cli.arguments import parse
from sim.app.report.text import change_text
from sim.app.run import simulate
from sim.app.study import check as module
from sim.app.study import lockfile
from sim.app.study.case import Answer
from sim.app.study.check import read_config
from sim.app.study.digest import Change, Digest, changes, shown
from sim.app.study.history import history
from sim.app.study.lockfile import Entry, Lock
from sim.app.study.tolerance import Tolerance, tolerance_of

ROOT = Path(__file__).resolve().parents[2]

TOML = """\
# two machines, one shape
[[case]]
name = "small"
arch = ["t4", "v100-sxm2"]
workload = "gemm m=64 n=64 k=64 dtype=fp16"

[[case]]
name = "half the SMs"
arch = "t4"
workload = "gemm m=64 n=64 k=64 dtype=fp16"
set = ["sm.count=20"]
l2 = "warm"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tilewave.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", "--workers", "1", *words])
    out, err = capsys.readouterr()
    return code, out, err


def edit(project: Path, pattern: str, text: str) -> None:
    """Changes the first match in the lock, as another version of the program would have written it."""
    path = project / "cycles.lock"
    before = path.read_text()
    after = re.sub(pattern, text, before, count=1)
    assert before != after
    path.write_text(after)


def test_record_compare_and_explain(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys)
    assert (code, "check --update records it" in err) == (2, True)
    code, out, _ = run(capsys, "--update")
    assert (code, out.splitlines()[-1]) == (0, "3 cases: 3 new; recorded in cycles.lock")
    lock = (project / "cycles.lock").read_bytes()
    assert run(capsys)[:2] == (0, "3 cases: 3 same\n")
    assert run(capsys, "--update")[0] == 0
    assert (project / "cycles.lock").read_bytes() == lock
    recorded = lockfile.read(project / "cycles.lock").entries["small t4"].digest
    assert recorded.cycles == simulate("gemm m=64 n=64 k=64 dtype=fp16", "t4").cycles

    edit(project, r"cycles = \d+", "cycles = 9000")
    edit(project, r"stalls.warps.selected = [\d.]+", "stalls.warps.selected = 50.0")
    edit(project, r"counters.l2_read_bytes = \d+", "counters.l2_read_bytes = 1")
    edit(project, r'kernels = "\w+"', 'kernels = "0123456789abcdef"')
    code, out, _ = run(capsys)
    assert code == 1
    assert re.search(r"half the SMs: CHANGED\n +cycles +9,000 +[\d,]+ +[+-][\d.]+ %", out)
    assert re.search(r"warps\.selected +50\.00 % +[\d.]+ % +-[\d.]+ points", out)
    assert "l2_read_bytes" in out
    assert "simulator: 0123456789abcdef -> " in out
    assert out.endswith("3 cases: 2 same, 1 changed\n")
    assert run(capsys, "small*")[0] == 0
    assert run(capsys, "half*", "--update")[0] == 0
    assert run(capsys)[0] == 0


def test_cases_come_and_go(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--update")
    (project / "tilewave.toml").write_text(TOML.replace("half the SMs", "fewer SMs"))
    code, out, _ = run(capsys)
    assert code == 1
    assert "fewer SMs: NEW" in out
    assert "half the SMs: GONE" in out
    assert run(capsys, "--update")[0] == 0
    assert run(capsys)[:2] == (0, "3 cases: 3 same\n")


def test_a_lock_keeps_what_is_asked_for(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--update")[0] == 0
    whole = lockfile.read(project / "cycles.lock").entries
    toml = 'record = "cycles"\n' + TOML.replace('name = "half', 'record = "all"\nname = "half')
    (project / "tilewave.toml").write_text(toml)
    assert run(capsys)[0] == 0, "a whole record holds what a brief one would"
    assert run(capsys, "--update")[0] == 0
    brief = lockfile.read(project / "cycles.lock").entries
    assert brief["half the SMs"] == whole["half the SMs"]
    assert brief["small t4"].digest == whole["small t4"].digest.brief
    assert run(capsys)[0] == 0
    edit(project, r"counters\.macs = \d+", "counters.macs = 1")
    assert run(capsys)[0] == 1, "half the SMs has counters"
    edit(project, r"counters\.macs = 1\n", f"counters.macs = {64**3}\n")
    assert run(capsys)[0] == 0
    (project / "tilewave.toml").write_text(TOML)
    assert run(capsys)[0] == 1, "what is to be recorded now is not there"
    (project / "tilewave.toml").write_text(toml.replace('"cycles"', '"time"'))
    code, _, err = run(capsys)
    assert code == 2
    assert "record = 'time': one of all, cycles" in err


def test_tolerance(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--update")
    cycles = lockfile.read(project / "cycles.lock").entries["half the SMs"].digest.cycles
    edit(project, r"cycles = \d+", f"cycles = {round(cycles * 0.995)}")
    assert run(capsys)[0] == 1
    assert run(capsys, "--tolerance", "1%")[0] == 0
    assert run(capsys, "--tolerance", "0.001")[0] == 1
    (project / "tilewave.toml").write_text('tolerance = "1 %"\n' + TOML)
    assert run(capsys)[0] == 0
    assert run(capsys, "--tolerance", "0")[0] == 1


def change(kind: str, name: str, relative: float) -> Change:
    """From 100: of a stall reason so many points of its 100 %."""
    return Change(kind, name, 100.0, 100.0 + 100 * relative)


@pytest.mark.parametrize(
    ("stated", "accepted", "refused"),
    [
        (0.01, change("cycles", "cycles", 0.009), change("cycles", "cycles", 0.011)),
        ({"energy": "2 %"}, change("energy", "energy", 0.019), change("cycles", "cycles", 0.001)),
        ({"cycles": 0, "default": "1 %"}, change("time", "time", 0.009), change("cycles", "cycles", 0.001)),
        ({"counters": 0.1}, change("counter", "l2_read_bytes", 0.09), change("stall", "warps.barrier", 0.09)),
        (
            {"counters": 0.1, "l2_read_bytes": 0.01},
            change("counter", "dram_read_bytes", 0.09),
            change("counter", "l2_read_bytes", 0.09),
        ),
        (
            {"stalls": 0.5, "warps.barrier": 0},
            change("stall", "warps.wait", 0.1),
            change("stall", "warps.barrier", 0.1),
        ),
    ],
)
def test_tolerances_by_metric(stated: Any, accepted: Change, refused: Change) -> None:
    found = tolerance_of(stated, "here")
    assert found.accepts(accepted)
    assert not found.accepts(refused)
    assert not found.exact


@pytest.mark.parametrize(
    ("stated", "says"),
    [({"cycels": 0}, "did you mean cycles"), ({"energy": "x"}, "here: energy"), (2, "share"), ("-1 %", "share")],
)
def test_a_tolerance_that_is_none_is_refused(stated: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        tolerance_of(stated, "here")


@pytest.mark.parametrize(("change", "code"), [(0.991, 0), (1.009, 0), (0.985, 1), (1.015, 1)])
def test_a_tolerance_is_neither_halved_nor_doubled(
    project: Path, capsys: pytest.CaptureFixture[str], change: float, code: int
) -> None:
    run(capsys, "--update")
    cycles = lockfile.read(project / "cycles.lock").entries["half the SMs"].digest.cycles
    edit(project, rf"cycles = {cycles}\b", f"cycles = {round(cycles / change)}")
    assert run(capsys, "half*", "--tolerance", "1%")[0] == code


def test_what_cannot_be_run_is_2_and_nothing_is_recorded(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tilewave.toml").write_text(TOML + 'schedule = "wgmma"\n')
    code, out, _ = run(capsys, "--update")
    assert code == 2
    assert "half the SMs: REFUSED" in out
    assert not (project / "cycles.lock").exists()


def test_a_broken_simulator_is_1(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "--update")
    monkeypatch.setattr(module, "run_cases", lambda cases, *_, **__: [Answer(failed="DeadlockError: x")] * len(cases))
    code, out, _ = run(capsys)
    assert (code, out.count("FAILED")) == (1, 3)


def test_formats(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--update")
    edit(project, r"cycles = \d+", "cycles = 9000")
    code, out, _ = run(capsys, "--json")
    document = json.loads(out)
    assert (code, document["exit_code"]) == (1, 1)
    assert {case["name"]: case["status"] for case in document["cases"]} == {
        "small t4": "same", "small v100-sxm2": "same", "half the SMs": "changed",
    }  # fmt: skip
    (moved,) = document["cases"][2]["moved"]
    assert (moved["name"], moved["old"]) == ("cycles", 9000)

    code, out, _ = run(capsys, "--format", "junit", "--out", "report.xml")
    assert (code, out) == (1, "")
    suites = ElementTree.parse(project / "report.xml").getroot()
    times = [float(test.attrib["time"]) for test in suites.iter("testcase")]
    assert min(times) > 0
    assert float(suites.attrib.pop("time")) == pytest.approx(sum(times), abs=0.01)
    assert suites.attrib == {"tests": "3", "failures": "1", "errors": "0"}
    failure = next(test for test in suites.iter("testcase") if test.get("name") == "half the SMs").find("failure")
    assert failure is not None
    assert "9000 -> " in failure.attrib["message"]

    code, out, _ = run(capsys, "--format", "github")
    line = TOML.splitlines().index('name = "half the SMs"')
    assert out.startswith(f"::error file=tilewave.toml,line={line},title=half the SMs%3A changed::cycles")
    assert len(out.splitlines()) == 2

    code, out, _ = run(capsys, "--format", "markdown")
    assert out.startswith("### tilewave check: 2 same, 1 changed\n")
    (row,) = [line for line in out.splitlines() if line.startswith("| half the SMs")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["t4", "changed", "9,000"]
    assert cells[5].endswith(" %")
    assert out.count("<details>") == out.count("</details>") == 1
    assert run(capsys, "--format", "xml")[0] == 2


def test_the_history_of_a_case_is_that_of_its_lock(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    lock = project / "cycles.lock"
    entry = Entry("t4", "gemm m=1", "0" * 16, Digest(100, 10, "mma"))

    def git(*words: str) -> None:
        subprocess.run(("git", *words), check=True, capture_output=True, timeout=20)

    def record(cycles: int, subject: str, other: int = 0) -> None:
        kept = {"a": replace(entry, digest=replace(entry.digest, cycles=cycles)), "b c": entry}
        lockfile.write(lock, Lock("1", kept))
        if other:
            lock.write_text(lock.read_text() + f"\n# {other}\n")
        git("add", ".")
        git("commit", "-m", subject)

    with pytest.raises(InputError, match="Git"):
        history(lock, "a")
    git("init", "-q")
    record(100, "first")
    record(90, "Engine: waits end earlier")
    record(90, "a comment moves nothing", other=1)
    lock.write_text(lock.read_text().replace("cycles = 90", "cycles = 99"))
    found = history(lock, "a")
    assert [(r.entry.digest.cycles, r.subject) for r in found.records] == [
        (100, "first"),
        (90, "Engine: waits end earlier"),
        (99, "the working copy"),
    ]
    assert len(history(lock, "b c").records) == 1
    assert "-10.0 %" in str(found)
    with pytest.raises(InputError, match="nearest: b c"):
        history(lock, "b d")
    picture = project / "h.png"
    assert main(["history", "a", "--plot", str(picture), "--json"]) == 0
    assert [entry["cycles"] for entry in json.loads(capsys.readouterr().out)["records"]] == [100, 90, 99]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["history", "a", "--metric", "energy_j", "--plot", str(project / "e.png")]) == 2
    assert "energy_j was never recorded" in capsys.readouterr().err


WRONG = [
    ("", "no [[case]]"),
    ("[[case]", "line 1"),
    ("[case]\nname='a'", "[[case]]"),
    ("[[case]]\nname='a'\narch='t4'", "workload is missing"),
    ("[[cases]]\nname='a'", "nearest: case"),
    ("[[case]]\nname='a'\narch='t4'\nworklod='gemm m=1'", "nearest: workload"),
    ("[[case]]\nname='a'\narch='t5'\nworkload='gemm m=1 n=1 k=1'", "line 1: unknown machine"),
    ("\n\n[[case]]\nname='a'\narch='t4'\nworkload='gemm m=1'", "line 3: gemm"),
    ("[[case]]\nname='a'\narch='t4'\nworkload='gemm m=1 n=1 k=1'\ntune='yes'", "true or false"),
    ("[[case]]\nname=3\narch='t4'\nworkload='gemm m=1 n=1 k=1'", "text"),
    ("[[case]]\nname='a'\narch='t4'\nworkload='gemm m=1 n=1 k=1'\ntolerance='x'", "tolerance"),
    ("[[case]]\nname='a'\narch='t4'\nworkload='gemm m=1 n=1 k=1'\nset=['l2.size=3']", "unit"),
    (TOML + TOML, "given twice"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_wrong_configurations_are_one_line(project: Path, text: str, words: str) -> None:
    (project / "tilewave.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        read_config(Path("tilewave.toml"))
    assert words in str(raised.value)
    assert "tilewave.toml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_wrong_input(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--config", "no.toml"], "no.toml"),
        (["smal"], "nearest: small t4"),
        (["--tolerance", "x"], "share"),
        (["--out", "no/folder/x", "--update"], "--out"),
    ):
        code, _, err = run(capsys, *words)
        assert (code, err.count("\n"), message in err) == (2, 1, True)
    for text in ("format = 9", "nonsense", "format = 2", "format = 2\nversion=''\n[case.a]\ncycles=1"):
        (project / "cycles.lock").write_text(text)
        code, _, err = run(capsys)
        assert (code, "--update" in err or "upgrade" in err) == (2, True)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ('cycles = "x"\ntime_ps = 1\nschedule = ""', r"is damaged \(cycles = 'x' is no whole number\)"),
        ("", r"is damaged \(has no 'cycles'\)"),
    ],
)
def test_a_damaged_lock_says_what_is_wrong_with_it(project: Path, block: str, says: str) -> None:
    head = f'format = {lockfile.FORMAT}\nversion = "0"\n[case.a]\narch = "t4"\n'
    (project / "cycles.lock").write_text(head + block)
    with pytest.raises(InputError, match=says):
        lockfile.read(project / "cycles.lock")


def test_machine_files_are_found_from_the_configuration(project: Path) -> None:
    (project / "deep").mkdir()
    (project / "deep" / "mine.yaml").write_text(
        "base: t4\ntitle: mine\nsources: {guess: a guess}\nsm.count: [10, guess]\n"
    )
    (project / "deep" / "tilewave.toml").write_text(
        "[[case]]\nname='a'\narch='mine.yaml'\nworkload='gemm m=64 n=64 k=64'\n"
    )
    (wanted,) = read_config(Path("deep/tilewave.toml"))
    assert isinstance(wanted.case.machine, GpuSpec)
    assert wanted.case.machine.sm.count == 10


# Letters by category: those of a codec are listed within the first draw, a second that counts as a slow example.
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
words = st.from_regex(r"[a-z_0-9]{1,8}", fullmatch=True)
shares = st.integers(1, 10000).map(lambda n: n / 100)
digests = st.builds(
    Digest,
    cycles=st.integers(1, 2**50),
    time_ps=st.integers(1, 2**60),
    schedule=names,
    counters=st.dictionaries(words, st.integers(1, 2**60), max_size=4),
    stalls=st.dictionaries(words.map(lambda w: f"warps.{w}"), shares, max_size=4),
)
entries = st.builds(Entry, arch=names, workload=names, machine=names, digest=digests)


@settings(max_examples=40)
@given(st.dictionaries(names, entries, max_size=3))
def test_what_is_written_is_read_back(tmp_path_factory: Any, found: dict[str, Entry]) -> None:
    path = tmp_path_factory.mktemp("lock") / "cycles.lock"
    lockfile.write(path, Lock("1", found))
    assert lockfile.read(path) == Lock("1", found)


@settings(max_examples=40)
@given(st.dictionaries(names, entries, max_size=4), st.dictionaries(names, entries, max_size=2), st.data())
def test_an_update_leaves_everything_else_alone(
    tmp_path_factory: Any, found: dict[str, Entry], other: dict[str, Entry], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lock") / "cycles.lock"
    lockfile.write(path, Lock("1", found))
    gone = data.draw(st.sets(st.sampled_from(sorted(found)))) if found else set()
    after = {name: entry for name, entry in found.items() if name not in gone} | other
    lockfile.write(path, Lock("2", after))
    assert lockfile.read(path) == Lock("2", after)
    updated = path.read_bytes()
    path.unlink()
    lockfile.write(path, Lock("2", after))
    assert path.read_bytes() == updated


COMMENTED = """\
# Recorded by tilewave.

# Our own remark, with a gap below it.

format = 2  # as of spring
version = "0.1.0"

# above a
[case."a"]  # beside a
arch = "t4"
# above workload
workload   =   "gemm m=1 n=1 k=1"  # spaces
machine = "x"
kernels = "y"
schedule = "s"
cycles = 5  # beside cycles
time_ps = 7
counters.macs = 3
# above a counter that goes
counters.zz = 4
stalls.issue.wait = 1.00000
# at the end of a

# stays with c
[case.c]
arch = "t4"
workload = "gemm m=3 n=3 k=3"
machine = "x"
kernels = "y"
schedule = "s"
cycles = 6
time_ps = 8
"""


def test_comments_and_blocks_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "cycles.lock"
    path.write_text(COMMENTED)
    lock = lockfile.read(path)
    lockfile.write(path, lock)
    assert path.read_text() == COMMENTED
    a = lock.entries["a"]
    lockfile.write(path, replace(lock, entries={**lock.entries, "b": a}))
    before, after = COMMENTED.split("\n# stays with c")
    text = path.read_text()
    assert text.startswith(before)
    assert text.endswith(f"\n# stays with c{after}")
    assert text.index('[case."b"]') < text.index("# stays with c")

    moved = replace(a.digest, cycles=50, counters={"macs": 3}, stalls={"issue.wait": 0.5})
    lockfile.write(path, replace(lock, entries={**lock.entries, "a": replace(a, digest=moved)}))
    text = path.read_text()
    assert lockfile.read(path).entries["a"].digest == moved
    assert text.endswith(f"\n# stays with c{after}")
    for line in (
        '# above a\n[case."a"]  # beside a\n',
        '# above workload\nworkload = "gemm m=1 n=1 k=1"  # spaces\n',
        "cycles = 50  # beside cycles\n",
        "stalls.issue.wait = 0.50000\n",
        "# above a counter that goes\n",
        "# at the end of a\n",
        "format = 2  # as of spring\n",
    ):
        assert line in text, line


@settings(max_examples=40)
@given(digests, digests)
def test_changes_are_everything_that_differs(old: Digest, new: Digest) -> None:
    moved = changes(old, new)
    assert changes(old, old) == []
    assert bool(moved) == (replace(old, schedule=new.schedule) != new)
    assert {c.name for c in moved if c.kind == "counter"} == {
        n for n in {*old.counters, *new.counters} if old.counters.get(n) != new.counters.get(n)
    }


def test_a_clock_that_rounds_to_what_it_was_is_no_row() -> None:
    old = Digest(100, 200, "s", clock_hz=10**9)
    assert [row[0] for row in shown(changes(old, replace(old, cycles=101, clock_hz=10**9 + 1)))] == ["cycles"]
    assert [row[0] for row in shown(changes(old, replace(old, clock_hz=10**9 + 1)))] == ["clock"]
    assert [row[0] for row in shown(changes(old, replace(old, cycles=101, clock_hz=2 * 10**9)))] == ["cycles", "clock"]


def test_a_clock_and_an_energy_that_move_are_seen_where_both_have_one() -> None:
    old = Digest(1, 2, "s", clock_hz=10**9, energy_fj=5)
    assert [(c.kind, c.old, c.new) for c in changes(old, replace(old, clock_hz=2 * 10**9, energy_fj=6))] == [
        ("clock", 10**9, 2 * 10**9),
        ("energy", 5, 6),
    ]
    assert changes(old, replace(old, clock_hz=None, energy_fj=None)) == []


def test_a_failed_write_leaves_the_lock_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "cycles.lock"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        lockfile.write(path, Lock("1", {}))
    assert path.read_text() == "before"
    assert [p.name for p in project.iterdir() if p.name.startswith(".")] == []


def test_a_tolerance_of_stall_reasons_is_in_points_of_their_hundred_per_cent() -> None:
    change = Change("stall", "warps.barrier", 40.0, 41.5)
    assert change.beyond(0.014)
    assert not change.beyond(0.016)
    assert replace(change, kind="counter").beyond(0.03)  # relative: 3.75 %


def test_difference_of_two_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, arch in (("a", "t4"), ("b", "t4"), ("c", "v100-sxm2")):
        path = tmp_path / f"{name}.json"
        assert main(["run", "gemm", "m=64", "n=64", "k=64", "dtype=fp16", "--arch", arch, "--json"]) == 0
        path.write_text(capsys.readouterr().out)
        paths.append(str(path))
    assert main(["diff", paths[0], paths[1]]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["diff", paths[0], paths[2]]) == 1
    out = capsys.readouterr().out
    assert re.search(r"machine +t4 +v100-sxm2", out)
    assert "What moved" in out
    assert main(["diff", paths[0], paths[2], "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["asked"][0] == {"name": "machine", "old": "t4", "new": "v100-sxm2"}
    (tmp_path / "d.json").write_text("[1]")
    (tmp_path / "e.json").write_text('{"cycles": 3}')
    for wrong in ("d.json", "e.json", "f.json", "../nothing/g.json"):
        assert main(["diff", paths[0], str(tmp_path / wrong)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("value", [1, 1.0, "100 %", -0.01, float("nan")])
def test_a_tolerance_of_everything_is_none(value: object) -> None:
    with pytest.raises(InputError, match="must be a share"):
        tolerance_of(value, "tilewave.toml")
    with pytest.raises(InputError, match="must be a share"):
        tolerance_of({"cycles": value}, "tilewave.toml")


def test_a_change_as_large_as_the_tolerance_is_accepted() -> None:
    quarter, points = Change("cycles", "cycles", 4, 5), Change("stall", "warps.wait", 10.0, 35.0)
    for change in (quarter, points):
        assert not change.beyond(0.25)
        assert change.beyond(0.2499)
        assert Tolerance(0.25).accepts(change)


def test_a_pull_request_is_compared_with_a_commit(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    config = project / "tilewave.toml"
    small = '[[case]]\nname = "{}"\narch = "t4"\nworkload = "gemm m=64 n={} k=64"\nschedule = "mma"\n'
    config.write_text(small.format("small", 64))
    assert main(["check", "--update", "--workers", "1"]) == 0
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "base")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)
    config.write_text(small.format("small", 2048) + small.format("more", 64))
    assert main(["check", "--update", "--workers", "1"]) == 0  # the branch records its own
    capsys.readouterr()
    assert main(["check", "--against", "HEAD", "--format", "markdown", "--workers", "1"]) == 1
    comment = capsys.readouterr().out
    assert comment.startswith("### tilewave check against HEAD: 1 changed, 1 new")
    (row,) = [line for line in comment.splitlines() if line.startswith("| small")]
    assert "| t4 | changed |" in row
    assert "workload: gemm m=64 n=64 k=64" in row
    config.write_text(small.format("small", 64) + small.format("more", 64))
    assert main(["check", "--against", "HEAD", "--workers", "1"]) == 0  # what is new is no difference
    assert main(["check", "--against", "nowhere", "--workers", "1"]) == 2
    assert main(["check", "--against", "HEAD", "--update"]) == 2
    assert "goes without --update" in capsys.readouterr().err


def test_a_lock_of_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "cycles.lock"
    path.write_text("format = 99\n")
    with pytest.raises(InputError, match="of a newer tilewave; upgrade tilewave"):
        lockfile.read(path)


@pytest.mark.parametrize(
    ("old", "new", "text"), [(100, 90, "-10.0 %"), (1e6, 1e6 + 1, "+0.0001 %"), (1, 63_488, "63,488 times"), (0, 5, "")]
)
def test_a_change_is_a_share_or_times(old: float, new: float, text: str) -> None:
    assert change_text(old, new) == text


def test_the_workflow_to_copy_runs_commands_that_there_are() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "workflows" / "cycles.yml").read_text(encoding="utf-8"))
    lines = [line for step in workflow["jobs"]["cycles"]["steps"] for line in step.get("run", "").splitlines()]
    words = [re.split(r" >> | \|\| ", line)[0].split()[1:] for line in lines if line.startswith("tilewave ")]
    assert len(words) == 4
    for line in words:
        assert parse(_parser(), line).command.__name__ == "_check"
