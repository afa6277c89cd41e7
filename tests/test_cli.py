"""The command line end to end: what is printed where, exit codes, files, interruption, the same result everywhere."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arch.gpu import GpuSpec
from arch.leaves import leaves
from arch.rdu import RduSpec
from arch.tpu import TpuSpec
from sim.app.cli import main
from sim.app.cli.progress import Progress
from sim.app.operators import examples
from sim.app.run import _plan, request_of
from workloads.ops import Gemm, operator_class, operator_words
from workloads.silicon import Row

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text(encoding="utf-8"))
A100 = "a100-sxm4-80gb"
SMALL = ("gemm", "m=256", "n=256", "k=256", "dtype=bf16")
MMA = "mma 64x64x32 warp 32x32 stages 3"
ON_A100 = (*SMALL, "--arch", A100, "--schedule", MMA)


def fresh(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = (sys.executable, "-m", "sim.app.cli", *arguments)
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_run_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *ON_A100, "--check"]) == 0
    out, err = capsys.readouterr()
    for words in ("on a100-sxm4-80gb", "cycles", "Speed of light", "Stall stack", "What bounds it"):
        assert words in out
    assert re.search(r"check +passed", out)
    assert "tilewave: " not in err.replace("tilewave: compiling", "")


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *ON_A100, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["schedule"].startswith("mma 64x64x32")


def test_listing_prints_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *ON_A100, "--listing"]) == 0
    out = capsys.readouterr().out
    assert "kernel gemm_mma_64x64x32" in out
    assert "ldmatrix" in out


def test_compare_prints_rows_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    fp8 = ("gemm", "m=256", "n=256", "k=256", "dtype=fp8", "tb=T")
    assert main(["compare", *fp8, "--arch", A100, "h100-sxm"]) == 1  # one of two did not run
    out = capsys.readouterr().out
    assert "Not run" in out
    assert "What bounds it: h100-sxm" in out
    assert main(["compare", *fp8, "--arch", A100]) == 2


def test_a_repeated_option_adds_to_the_list_and_replaces_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "add", "n=1024", "--arch", "t4", "--json", "--schedule", "fused", "--arch", "l4", "--arch"]
    assert main([*words, "a10", "a40"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["machine"] for row in rows] == ["t4", "l4", "a10", "a40"]
    from sim.app.cli import _parser

    asked = _parser().parse_args(["optimize", "add", "--goal", "energy_j", "--goal", "time_us"])
    assert asked.goal == ["energy_j", "time_us"]
    assert _parser().parse_args(["optimize", "add"]).goal == ["time_us"]
    only = ["sensitivity", "add", "--arch", "t4", "--only", "l2.*", "dram.*", "--only", "sm.count"]
    assert _parser().parse_args(only).only == ["l2.*", "dram.*", "sm.count"]
    assert _parser().parse_args(["validate", "--op", "gemm", "--op", "add"]).op == ["gemm", "add"]


def test_a_failed_check_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Gemm, "relative_error", lambda *_: 1.0)
    assert main(["run", *ON_A100, "--check"]) == 1
    assert re.search(r"check +FAILED", capsys.readouterr().out)


def test_archs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archs"]) == 0
    listed = capsys.readouterr().out
    chips = [line for line in listed.splitlines() if line and not line.startswith(" ")]
    assert chips.index("GB100") < chips.index("GH100") < chips.index("GA102") < chips.index("TPU v1")
    assert max(map(len, listed.splitlines())) <= 130
    ga102 = listed.partition("GA102\n")[2].partition("\n\n")[0]
    assert all(board in ga102 for board in ("a10 ", "a40 ", "rtx-3090 ", "rtx-a6000 "))
    assert re.search(r"h100-sxm +gemm [0-9.]+ % \(\d+ rows\)", listed)
    for word in ("H100", "GH100", "hopper"):
        assert main(["archs", word]) == 0
        assert {"GH100"} == {line for line in capsys.readouterr().out.splitlines() if line.startswith("G")}
    assert main(["archs", "h100-sxm", "--set", "l2.size=60 MiB"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("l2.size"))
    assert line.split()[1:3] == ["60", "MiB"]
    assert "set by the user" in line
    assert main(["archs", "t4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["sm.count"]["value"] == "40"
    assert main(["archs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["l40s"]["chip"] == "AD102"
    assert found["l40"]["validated"] == []
    assert {entry["op"] for entry in found["t4"]["validated"]} >= {"gemm"}
    assert main(["archs", "--schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


WRONG = [
    (("rum",), "rum"),
    (("run", *SMALL), "--arch"),
    (("run", "--arch", A100), "no operator given"),
    (("run", *SMALL, "--arch", "a100"), "a100-"),
    (("run", *SMALL, "--arch", "no/such.yaml"), "no/such.yaml"),
    (("run", "gemn", "m=1", "n=1", "k=1", "--arch", A100), "did you mean gemm"),
    (("run", "gemm", "m=1", "n=1", "--arch", A100), "k missing"),
    (("run", "gemm", "m=-1", "n=1", "k=1", "--arch", A100), "m=-1"),
    (("run", "gemm", "m=x", "n=1", "k=1", "--arch", A100), "whole number"),
    (("run", "gemm", "m=1", "n=1", "k=1", "dtype=bf61", "--arch", A100), "did you mean bf16"),
    (("run", "bert_layer", "sequence=8", "--arch", A100), "did you mean seq?"),
    (("run", *SMALL, "--arch", A100, "--set", "l2.size"), "path=value"),
    (("run", *SMALL, "--arch", A100, "--set", "l2.size=60"), "unit"),
    (("run", *SMALL, "--arch", A100, "--set", "l2.szie=60 MiB"), "l2.size"),
    (("run", *SMALL, "--arch", A100, "--schedule", "wgmma"), "wgmma"),
    (("run", *SMALL, "--arch", A100, "--clock", "9 GHz"), "nearest"),
    (("run", *SMALL, "--arch", A100, "--plot", "picture.txt"), ".png"),
    (("run", *SMALL, "--arch", A100, "--plot", "no/such/folder/p.png"), "no folder"),
    (("run", *SMALL, "--arch", A100, "--force"), "--plot"),
    (("run", *SMALL, "--arch", A100, "--listing", "--json"), "leave out --json"),
    (("run", *SMALL, "--arch", A100, "--profile"), "bert_layer"),
    (("run", *SMALL, "--arch", A100, "--clock", "1"), "1.41 GHz"),
    (("run", *SMALL, "--arch", A100, "l2.size=60 MiB"), "unknown key 'l2.size'"),
    (("run", *SMALL, "--arch", "gh100"), "is what boards build on"),
    (("run", *SMALL, "--arch", "h100"), "it can mean gh200-96gb, h100-nvl, h100-pcie or h100-sxm"),
    (("run", *SMALL, "--arch", A100, "--set", "l2.size=1e999999999 MiB"), "out of range"),
    (("run", *SMALL, "--arch", A100, "--set", "clock.boost=0 GHz"), "1 MHz"),
    (("run", *SMALL, "--arch", A100, "--set", "sm.count=5000"), "the model takes 978"),
    (("run", "exp", "n=8", "repeat=5000", "--arch", A100), "nearest: 4096"),
    (("run", "allreduce", "bytes=8", "devices=999", "--arch", A100), "the model takes 256"),
    (("run", "gemm", "m=8", "n=8", "k=8", "acc=fp64", "--arch", A100), "summed in fp32"),
    (("compare", "gemm", "m=8", "n=8", "k=8", "dtype=fp8", "--arch", A100, "t4"), "t4 multiplies"),
    (("sweep", *SMALL, "--arch", A100, "--force"), "--csv"),
    (("check", "--out", "no/such/folder/x.xml"), "no folder"),
    (("optimize", *SMALL, "--arch", A100, "--vary", "sm.count=1:3"), "cannot fill"),
    (("optimize", *SMALL, "--arch", A100, "--vary", "sm.count=64:66", "--seed", "-1"), "--seed -1"),
    (("run", "gemm", "m=300000", "n=300000", "k=300000", "--arch", "t4"), "dram.size"),
    (("run", *SMALL, "--arch", A100, "--jsn"), "unknown option --jsn; did you mean --json?"),
    (("run", *SMALL, "--arhc", A100), "unknown option --arhc; did you mean --arch?"),
    (("runn", *SMALL, "--arch", A100), "unknown command runn, one of run, model, compare"),
    (("sweeep", *SMALL), "did you mean sweep?"),
    (("run", *SMALL, "--arch", A100, "--schedule", "wgma"), "did you mean wgmma, which does not run here?"),
    (("run", *SMALL, "--arch", A100, "--sched", "mma"), "did you mean --schedule?"),
    (("run", *SMALL, "--arch", A100, "--sched=mma"), "did you mean --schedule?"),
    (("--hepl",), "did you mean --help?"),
    (("ops", "gemn"), "did you mean gemm"),
    (("run", "gemn", "--help"), "did you mean gemm"),
    (("run", "no/such.py:f", "--help"), "no/such.py"),
    (("archs", "h1000"), "h100-"),
    (("archs", "--set", "sm.count=1"), "NAME"),
    (("validate", "--reference", "no.csv"), "no.csv"),
    (("validate", "--arch", "h100"), "nearest"),
    (("validate", "--workers", "0"), "at least 1"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(case[0]) or "nothing" for case in WRONG])
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("tilewave: ")
    assert says in line


UNLIKE = [
    ("run", *SMALL[:-1], "dtype=fp4", "--arch", A100),
    ("run", *SMALL, "--arch", A100, "--scope", "wall"),
    ("run", *SMALL, "--arch", A100, "--l2", "on"),
    ("run", *SMALL, "--arch", A100, "--set", "zzz=1"),
    ("run", *SMALL, "--arch", "tulip"),
    ("run", "xyzzy", "--arch", A100),
    ("run", *SMALL, "--arch", A100, "--zz"),
    ("check", "--format", "xyz"),
]


@pytest.mark.parametrize("arguments", UNLIKE, ids=" ".join)
def test_what_is_like_nothing_gets_no_silly_name(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert "did you mean" not in line
    assert "nearest" not in line


def test_alone_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "usage: tilewave" in out
    assert "sensitivity" in out


def test_ops_lists_operators_and_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    listed = {entry["operator"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(operator_words())
    for word, entry in listed.items():
        assert [key["key"] for key in entry["keys"]] == [f.name for f in fields(operator_class(word))]
        assert entry["schedules"], word
        assert all(key["meaning"] and key["takes"] and key["default"] for key in entry["keys"])
    assert next(key for key in listed["gemm"]["keys"] if key["key"] == "ta")["choices"] == ["N", "T"]
    assert main(["ops"]) == 0
    assert "Functions of pointwise" in capsys.readouterr().out
    assert main(["ops", "exp"]) == 0
    shown = capsys.readouterr().out
    assert not re.search(r"^ +chain ", shown, re.MULTILINE)  # the word says it
    assert "tilewave run exp n=4M --arch h100-sxm" in shown


@pytest.mark.parametrize("word", operator_words())
def test_examples_of_the_help_can_be_asked_for(word: str) -> None:
    """Each is an operator of its own machine: a plan is made, nothing runs."""
    for line in examples(word):
        *command, machine = line.split()[2:]
        text = " ".join(command[: command.index("--arch")])
        assert _plan(request_of(text, machine))


def test_help_of_an_operator_shows_its_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "softmax", "rows=4", "--help"])
    assert left.value.code == 0
    assert "elements of a row" in capsys.readouterr().out
    own = tmp_path / "own.py"
    own.write_text("def f(n: int, half: bool = True):\n    'Does it.'\nraise RuntimeError('executed')\n")
    with pytest.raises(SystemExit):
        main(["run", f"{own}:f", "--help"])
    out = capsys.readouterr().out
    assert "Does it" in out
    assert re.search(r"n +needed +int", out)
    assert re.search(r"half +True +bool", out)


def test_sizes_may_be_written_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "gemm", "m=4k", "n=2**5", "k=1_024", "--arch", A100, "--listing"]) == 0
    assert "program gemm m=4096 n=32 k=1024" in capsys.readouterr().out


def test_keys_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "gemm", "--arch", A100, "m=64", "n=64", "--schedule", "mma", "k=64", "--listing"]) == 0
    assert "program gemm m=64 n=64 k=64" in capsys.readouterr().out


NUMBERS = ("", "0", "-1", "1", "7", "64", "1.5", "1e3", "nan", "inf", "²", "9" * 30, "0x10", "1_0", "bf16", "T", "cos+")
UNITS = ("", "B", " MiB", " MB/s", " GHz", " cycles", " us", " W", " B/clk", "%", " KB", " parsecs")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


def outcome(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The exit code; whatever was typed, it is a result or one line."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert out == ""
        assert err.startswith("tilewave: ")
        assert err.count("\n") == 1
    return code


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    word=st.sampled_from(operator_words()) | TEXTS,
    keys=st.dictionaries(
        st.sampled_from(sorted({f.name for word in operator_words() for f in fields(operator_class(word))})) | TEXTS,
        st.sampled_from(NUMBERS) | TEXTS,
        max_size=4,
    ),
    machine=st.sampled_from(("t4", "h100-sxm", "tpu-v1", "sn40l")) | TEXTS,
    schedule=st.sampled_from(("auto", "wgmma", "mma 0x0x0", "eager", "simt 1 2")) | TEXTS,
)
def test_no_workload_makes_a_traceback(
    word: str, keys: dict[str, str], machine: str, schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [f"{key}={value}" for key, value in keys.items()]
    options = (f"--arch={machine}", f"--schedule={schedule}", "--listing")
    outcome(["run", *options, "--", word, *pairs], capsys)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    machine=st.sampled_from(("h100-sxm", "t4", "tpu-v1", "sn40l", "plasticine")),
    path=st.sampled_from([path for spec in (GpuSpec, TpuSpec, RduSpec) for path in leaves(spec)]) | TEXTS,
    number=st.sampled_from(NUMBERS) | st.integers(-(10**20), 10**20).map(str) | TEXTS,
    unit=st.sampled_from(UNITS),
)
def test_no_override_makes_a_traceback(
    machine: str, path: str, number: str, unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome(["archs", machine, f"--set={path}={number}{unit}"], capsys)


def test_pictures_are_drawn_and_never_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "run.png"
    assert main(["run", *ON_A100, "--plot", str(picture)]) == 0
    drawn = picture.read_bytes()
    assert drawn.startswith(b"\x89PNG")
    picture.write_text("mine")
    assert main(["compare", *SMALL, "--arch", A100, "--plot", str(picture)]) == 2
    assert picture.read_text() == "mine"
    assert main(["compare", *SMALL, "--arch", A100, "--plot", str(picture), "--force"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "--force overwrites it" in capsys.readouterr().err


def test_files_are_written_though_the_reader_of_the_report_has_gone(tmp_path: Path) -> None:
    page, read, write = tmp_path / "a.html", *os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sim.app.cli", "run", "add", "n=1024", "--arch", "t4", "--html", str(page)]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert "<html" in page.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = (sys.executable, "-m", "sim.app.cli", "archs")
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "tilewave: No space left on device\n"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell has put into the background ignores interrupts, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("background", [False, True])
def test_interrupt_is_clean(
    background: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if background:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupted(self: Progress, share: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "__call__", interrupted)
    assert main(["run", *SMALL, "--arch", "h100-sxm"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "tilewave: interrupted"


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_the_workers_of_a_validation(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "\n".join(
            (
                "import dataclasses, os, signal, time",
                "from sim.app.study.case import Answer, code_hash",
                "from sim.app.study.executors import Processes",
                "from sim.app.study.validate import validate",
                "from workloads.silicon import read_rows",
                "def work(request):",
                "    if 'm=1 ' not in request.workload: time.sleep(3600)",
                "    return Answer({'schedule': 's', 'cycles': 1, 'time_us': 1.0}, code=code_hash())",
                "if __name__ == '__main__':",
                "    first = next(row for row in read_rows() if row.op == 'gemm')",
                "    rows = [dataclasses.replace(first, shape=f'm={i} n=1 k=1', time_us=9 - i) for i in (1, 2, 3)]",
                "    def progress(done, of): done and os.kill(os.getpid(), signal.SIGINT)",
                "    try: validate(rows, make=lambda cases: Processes(2, work), progress=progress)",
                "    except KeyboardInterrupt: print('ended')",
            )
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        (sys.executable, script), env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_progress_is_for_terminals_and_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        def __init__(self, terminal: bool) -> None:
            self.terminal, self.text = terminal, ""

        def isatty(self) -> bool:
            return self.terminal

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setenv("TERM", "xterm")

    def shown(terminal: bool, seconds: float, width: int = 80, label: str = "work") -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        screen: Any = Screen(terminal)
        clock[0] = 0.0
        with Progress(label, screen) as progress:
            clock[0] = seconds
            progress(0.5)
            progress(0.6)
        return re.sub(r"\x1b\[[0-9;]*m", "", str(screen.text))

    assert shown(True, 0.5) == shown(False, 5) == ""
    assert "work ━━━━━━━━━━╺━━━━━━━━━  50 %" in shown(True, 5)
    assert "50 %, 0:05 left, 10 %/s" in shown(True, 5)
    assert "50 %, 1:23:20 left, 0.01 %/s" in shown(True, 5000)
    assert "60 %" not in shown(True, 5)  # so soon after the last picture there is no new one
    assert "1:02:05 left" in shown(True, 3725)
    assert shown(True, 5).endswith("\x1b[1A\x1b[2K")  # it is gone at the end
    narrow = shown(True, 5, 40, "a label that has no room at all")
    assert "…" in narrow
    assert "50 %, 0:05 left" in narrow
    assert "%/s" not in narrow


def reference(path: Path, shapes: tuple[str, ...]) -> str:
    """A file of reference rows."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
        writer.writeheader()
        for shape in shapes:
            row = Row(A100, "gemm", "bf16", shape, "vendor", 10.0, "event", 0.0, "warm", "A", "made_up", "url")
            writer.writerow(row.as_dict())
        writer.writerow({**row.as_dict(), "op": "allreduce", "shape": "bytes=64 devices=2"})
    return str(path)


@pytest.mark.slow
def without_cpu_time(part: dict[str, object]) -> dict[str, object]:
    """An object of a JSON document without the seconds that its simulation took."""
    return {name: value for name, value in part.items() if name != "cpu_s"}


def test_the_same_input_gives_the_same_cycles_everywhere(tmp_path: Path) -> None:
    runs = [
        fresh("run", *SMALL, "--arch", "h100-sxm", "--clock", "sustained", "--json", PYTHONHASHSEED=seed)
        for seed in ("1", "2")
    ]
    documents = [json.loads(run.stdout) for run in runs]
    for document in documents:
        del document["simulator"]
    assert documents[0] == documents[1]

    rows = reference(tmp_path / "rows.csv", ("m=64 n=64 k=64", "m=128 n=64 k=256", "m=64 n=96 k=64"))
    validated = [
        fresh(
            "validate",
            "--reference",
            rows,
            "--json",
            "--workers",
            str(workers),
            "--store",
            str(tmp_path / f"{workers}"),
        )
        for workers in (1, 2)
    ]
    assert [run.returncode for run in validated] == [0, 0]
    results = [json.loads(run.stdout, object_hook=without_cpu_time) for run in validated]
    assert results[0] == results[1]
    document = results[0]
    assert (len(document["rows"]), len(document["skipped"]), document["failed"]) == (3, 1, [])


def test_validate_prints_groups_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = reference(tmp_path / "rows.csv", ("m=64 n=64 k=64", "m=128 n=64 k=256"))
    store, picture = str(tmp_path / "store"), tmp_path / "v.png"
    arguments = ["validate", "--reference", rows, "--workers", "1", "--store", store, "--plot", str(picture)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "Simulated against measured: 2 rows" in out
    assert "Skipped: 1 rows" in out
    assert picture.exists()


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tilewave 0.")
