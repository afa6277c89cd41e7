"""What was asked of a run is in all that comes of it: no output of a changed machine calls it by its plain name."""

from __future__ import annotations

import csv
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import matplotlib.pyplot as plt
import pytest

from arch.load import load_arch
from sim import compare, simulate
from sim.app.cli import main
from sim.app.report.asked import DEFAULT_CONDITIONS, Asked, FileRecord, title_of
from sim.app.report.plots import TITLE_WIDTH
from sim.app.report.record import RunRecord
from sim.app.report.report import SCHEMA_VERSION, Report
from sim.app.study.sensitivity import sensitivity
from sim.app.study.sweep import sweep

SCHEMA = json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text(encoding="utf-8"))
WORK = "gemm m=64 n=64 k=64 dtype=fp16"
CHANGED = ("sm.count=39", "l2.size=2 MiB")
LABEL = "t4 with sm.count=39, l2.size=2 MiB"
ASKED: dict[str, Any] = {"set": CHANGED, "l2": "warm", "clock": "1.2 GHz", "schedule": "mma"}
WORDS = ("--arch", "t4", "--set", *CHANGED, "--l2", "warm", "--clock", "1.2 GHz", "--schedule", "mma")
TITLE = f"{WORK} on {LABEL} (clock 1.2 GHz, l2 warm)"
PLAIN = re.compile(r"\bt4\b(?! with sm\.count|\.yaml|[^ ]*\")")
"""The machine's name without what was changed, but for its file."""


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(WORK, "t4", **ASKED)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    capsys.readouterr()
    main(words)
    return capsys.readouterr().out


def flat(text: str) -> str:
    """A text without breaks of lines."""
    return " ".join(text.split())


def test_json_says_what_was_asked(report: Report) -> None:
    document = report.to_dict()
    jsonschema.validate(document, SCHEMA)
    assert document["machine"] == "t4"
    assert document["overrides"] == {"sm.count": "39", "l2.size": "2 MiB"}
    assert document["conditions"] == {**DEFAULT_CONDITIONS, "l2": "warm", "clock": "1.2 GHz"}
    assert (document["schedule_asked"], document["schedule"][:4], document["without"]) == ("mma", "mma ", [])
    assert document["machine_file"]["name"] == "t4.yaml"
    assert set(document["versions"]) == {"tilewave", "python", "numpy", "numba"}
    assert not {"overrides_unread", "program", "tune"} & set(document)
    assert title_of(document) == TITLE


def test_the_hash_is_that_of_the_file_and_not_of_the_run(tmp_path: Path) -> None:
    def hash_of(machine: str, *overrides: str) -> str:
        file = load_arch(machine, overrides).file
        assert file is not None
        return file.sha256

    assert hash_of("t4") == hash_of("t4", *CHANGED) != hash_of("v100-sxm2")
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: t4\ntitle: mine\n")
    first = hash_of(str(mine))
    mine.write_text("base: t4\ntitle: mine\nsources: {guess: a guess}\nsm.count: [39, guess]\n")
    assert len({first, hash_of(str(mine)), hash_of("t4")}) == 3


def test_a_machine_that_comes_as_an_object_knows_its_overrides() -> None:
    found = simulate(WORK, load_arch("t4", ["sm.count=39"])).to_dict()
    assert found["overrides"] == {"sm.count": "39"}
    assert simulate(WORK, load_arch("t4", {"sm.count": 39})).to_dict()["overrides"] == {"sm.count": "39"}


def test_conditions_that_mean_nothing_on_a_machine_are_absent() -> None:
    document = simulate("gemm m=64 n=64 k=64 dtype=int8", "tpu-v1").to_dict()
    jsonschema.validate(document, SCHEMA)
    assert "l2" not in document["conditions"]
    assert document["conditions"]["scope"] == "kernel"


def test_what_is_left_out_tuned_or_a_program_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = simulate("gemm m=64 n=512 k=2048 dtype=bf16", "h100-sxm", without=["multicast"], tune=True)
    document = tuned.to_dict()
    assert (document["schedule_asked"], document["without"], document["tune"]) == ("auto", ["multicast"], True)
    assert "(asked: auto without multicast, tuned)" in str(tuned)
    assert str(tuned).splitlines()[0].endswith("on h100-sxm (without multicast, tuned)")
    words = ("run", "gemm", "m=64", "n=64", "k=64", "dtype=int8", "--arch", "tpu-v1")
    program = tmp_path / "mine.tpu"
    program.write_text(run(capsys, *words, "--listing"), encoding="utf-8")
    document = json.loads(run(capsys, *words, "--program", str(program), "--json"))
    jsonschema.validate(document, SCHEMA)
    assert document["program"]["name"] == "mine.tpu"
    assert title_of(document).endswith("(program mine.tpu)")


def test_text_and_notebook(report: Report) -> None:
    text = str(report)
    assert text.splitlines()[0] == TITLE
    assert not PLAIN.search(text.partition("How far to trust it")[0])  # rows were measured on the plain one
    assert "(asked: mma)" in text
    assert re.search(r"conditions +clock 1.2 GHz, l2 warm, data normal, scope kernel\n", text)
    assert re.search(r"machine file +t4.yaml, SHA-256 [0-9a-f]{16}", text)
    assert re.search(r"versions +tilewave ", text)
    assert f"<h4>{TITLE}</h4>" in report._repr_html_()


def test_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert main(["run", *WORK.split(), *WORDS, "--html", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert f"<title>{TITLE}</title>" in page
    assert f"<h1>{TITLE}</h1>" in page
    assert f"{LABEL}: cycles 0 to " in page
    assert "machine file" in page


def test_pictures(report: Report) -> None:
    other = simulate(WORK, "t4")
    roofline = report.plot_roofline()
    assert flat(roofline.get_title()) == TITLE
    assert flat(report.plot_stalls().get_title()) == f"where cycles went: warps, {TITLE}"
    assert max(map(len, report.plot_stalls().get_title().splitlines())) <= TITLE_WIDTH
    both = compare(WORK, ["t4"], set=CHANGED).plot_roofline()
    assert flat(both.get_legend_handles_labels()[1][0]) == f"{LABEL} fp16"
    assert flat(other.plot_stalls().get_title()).endswith(f"{WORK} on t4")
    graph = simulate("bert_layer batch=1 seq=128 hidden=128 heads=2 ffn=128", "t4", set=CHANGED)
    assert LABEL in flat(graph.plot_profile().get_title())
    plt.close("all")


def test_compare() -> None:
    found = compare(WORK, ["t4", "v100-sxm2"], set=["sm.count=39"], l2="warm")
    lines = str(found).splitlines()
    assert lines[0] == f"{WORK} (l2 warm)"
    assert lines[2].startswith("  t4 with sm.count=39 ")
    assert lines[3].startswith("  v100-sxm2 with sm.count=39 ")
    assert "What bounds it: t4 with sm.count=39" in lines
    assert [row["overrides"] for row in found.to_dict()["rows"]] == [{"sm.count": "39"}] * 2


def test_sweep_and_sensitivity(tmp_path: Path) -> None:
    store = tmp_path / "store"
    found = sweep(WORK, "t4", ["l2.size=2 MiB,4 MiB"], set=["sm.count=39"], store=store, workers=1, l2="warm")
    title = f"{WORK} on t4 with sm.count=39 (each point tuned, l2 warm)"
    assert str(found).splitlines()[0] == f"{title}: 2 of 2 runs"
    assert flat(found.plot().get_title()) == flat(found.plot_pareto().get_title()) == title
    document = found.to_dict()
    assert (document["overrides"], document["conditions"]["l2"]) == ({"sm.count": "39"}, "warm")
    reports = [row["report"] for row in document["rows"]]
    assert [report["overrides"] for report in reports] == [
        {"sm.count": "39", "l2.size": size} for size in ("2 MiB", "4 MiB")
    ]
    for report in reports:
        jsonschema.validate(report, SCHEMA)
        assert not {"versions", "simulator"} & set(report)
    found.write(tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        asked = [row["asked"] for row in csv.DictReader(file)]
    assert asked == [f"sm.count=39; l2.size={size}; schedule auto; l2 warm; tuned" for size in ("2 MiB", "4 MiB")]

    ranked = sensitivity(WORK, "t4", set=["sm.count=39"], only=["dram.latency"], store=store, workers=1, l2="warm")
    assert str(ranked).splitlines()[0].startswith(f"{title}: ")
    assert "no figure moves it" in str(ranked) or "elasticity" in str(ranked)
    assert flat(ranked.plot().get_title()) == title
    assert ranked.to_dict()["overrides"] == {"sm.count": "39"}
    plt.close("all")


def test_optimize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("optimize", *WORK.split(), "--arch", "t4", "--set", "sm.count=39", "--vary", "l2.size=2 MiB,4 MiB")
    more = ("--trials", "2", "--workers", "1", "--store", str(tmp_path / "store"))
    assert run(capsys, *words, *more).startswith(f"{WORK} on t4 with sm.count=39 (each point tuned): best by")
    assert json.loads(run(capsys, *words, *more, "--json"))["overrides"] == {"sm.count": "39"}


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("a", ("--arch", "t4")), ("b", WORDS)):
        (tmp_path / f"{name}.json").write_text(run(capsys, "run", *WORK.split(), *words, "--json"))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    out = run(capsys, "diff", a, b)
    assert out.splitlines()[0] == f"{a}: {WORK} on t4 -> {b}: {TITLE}"
    assert re.search(r"sm.count +as in its file +39", out)
    assert re.search(r"l2 +cold +warm", out)
    assert re.search(r"schedule asked +auto +mma", out)
    assert "versions" not in out
    asked = {row["name"]: row for row in json.loads(run(capsys, "diff", a, b, "--json"))["asked"]}
    assert asked["clock"] == {"name": "clock", "old": "isolated", "new": "1.2 GHz"}
    assert "machine" not in asked


@pytest.mark.parametrize("change", [{"schema_version": "1.1"}, {"overrides": None}, {"conditions": 3}])
def test_a_report_of_another_schema_is_one_line(
    change: dict[str, Any], report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    document = report.to_dict()
    new.write_text(json.dumps(document))
    old.write_text(json.dumps(document | change))
    for pair in ((old, new), (new, old)):
        assert main(["diff", *map(str, pair)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"tilewave: {old}: ")
        assert f"{SCHEMA_VERSION}; make it again with tilewave run" in line or "schema_version" not in change


TOML = f"""
[[case]]
name = "small"
arch = "t4"
workload = "{WORK}"
set = ["sm.count=39"]
l2 = "warm"
"""


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tilewave.toml").write_text(TOML)
    words = ("check", "--workers", "1")
    run(capsys, *words, "--update")
    lock = tmp_path / "cycles.lock"
    lock.write_text(re.sub(r"cycles = \d+", "cycles = 9000", lock.read_text()))
    title = f"{WORK} on t4 with sm.count=39 (l2 warm)"
    assert f"  it ran {title}" in run(capsys, *words).splitlines()
    assert f"it ran {title}" in run(capsys, *words, "--format", "github")
    suites = ElementTree.fromstring(run(capsys, *words, "--format", "junit"))
    assert [found.attrib for found in suites.iter("property")] == [{"name": "run", "value": title}]
    document = json.loads(run(capsys, *words, "--json"))
    assert document["versions"]["tilewave"]
    (case,) = document["cases"]
    assert (case["machine"], case["overrides"], case["conditions"]["l2"]) == ("t4", {"sm.count": "39"}, "warm")
    assert case["schedule_asked"] == "auto"


def test_traces(tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    from sim.app.run import trace

    found = trace(WORK, "t4", set=CHANGED, l2="warm", clock="1.2 GHz", schedule="mma")
    assert found.title == TITLE
    assert found.tracks[found.roots[0]].name.startswith(f"{LABEL}: ")
    for name, text in (("sm.count", "39"), ("l2", "warm"), ("clock", "1.2 GHz"), ("schedule asked", "mma")):
        assert found.facts[name] == text
    assert found.facts["machine"] == LABEL
    assert "numba" in found.facts["versions"]
    path = tmp_path / "t.pftrace"
    assert main(["trace", *WORK.split(), *WORDS, "-o", str(path)]) == 0
    content = path.read_bytes()
    for text in (LABEL, "sm.count", "1.2 GHz"):
        assert text.encode() in content


def test_overrides_that_nothing_read_are_noted(report: Report) -> None:
    record: RunRecord = report.record
    fields = {name: getattr(record.asked, name) for name in Asked.__dataclass_fields__}
    asked = Asked(**{**fields, "unread": ("l2.size",)})
    noted = Report(RunRecord(**{**{n: getattr(record, n) for n in RunRecord.__dataclass_fields__}, "asked": asked}))
    document = noted.to_dict()
    jsonschema.validate(document, SCHEMA)
    assert document["overrides_unread"] == ["l2.size"]
    assert "Nothing that ran read l2.size." in flat(str(noted))
    assert "Nothing in this run read" not in str(report)


def test_what_a_report_says_is_read_back() -> None:
    full = Asked(
        "mma", ("tma",), True, {"scope": "kernel", "exact": True}, {"sm.count": "3"}, ("sm.count",),
        FileRecord("t4.yaml", "0" * 64), FileRecord("p.txt", "1" * 64),
        FileRecord("k.py", "2" * 64), {"numba": "1"},
    )  # fmt: skip
    assert Asked.of(full.to_dict()) == full
    assert full.unusual == ["exact", "without tma", "tuned", "program p.txt"]


def test_dollar_signs_in_a_name_are_no_formula(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    (tmp_path / "mine.yaml").write_text("base: t4\nname: x$\\frac$z\n")
    report = simulate("gemm m=64 n=64 k=64 dtype=fp16", str(tmp_path / "mine.yaml"))
    for draw in (report.plot_roofline, report.plot_stalls):
        draw()
        pyplot.gcf().savefig(tmp_path / "p.png")
    pyplot.close("all")
