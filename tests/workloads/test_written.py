"""Programs of one's own as workloads: from the command line, from Python, in studies; what is refused, and how."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.cli import main
from sim.app.run import request_of
from sim.app.study.case import key_of
from workloads.parse import parse

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tile-language.md"

COPY = """
from helper import TILE
from sim.gpu.language import CTA_X, WARP, GlobalTensor, KernelBuilder, Program, RegisterTile


def copy(n: int, warps: int = 4, wrong: bool = False, machine=None) -> Program:
    x, y = (GlobalTensor(name, (n,), "fp32", (1,), role) for name, role in (("x", "input"), ("y", "output")))
    kernel = KernelBuilder("copy", (-(-n // (warps * TILE)), 1, 1))
    with kernel.role("warps", warps=warps, registers=32) as r:
        at = (CTA_X * warps + WARP) * TILE
        a = RegisterTile("a", (TILE,), "fp32")
        r.ldg(a.whole, x[at:TILE], into="x")
        r.stg(y[at:TILE], a.whole, **({} if wrong else {"after": ("x",)}))
    return Program("copy", (x, y), (kernel.build(),), machine.name, reference=lambda x: x)


def unjudged(n: int) -> Program:
    made = copy(n, machine=type("Machine", (), {"name": "any"}))
    return Program(made.name, made.tensors, made.kernels, made.schedule)


def broken(n: int) -> Program:
    return undefined


def stuck(n: int) -> Program:
    kernel = KernelBuilder("stuck", (1, 1, 1))
    ring = kernel.ring(2, consumers=1)
    x = GlobalTensor("x", (n,), "fp32", (1,))
    with kernel.role("reader", warps=1, registers=32) as r:
        ring.wait(r, 3)
    return Program("stuck", (x,), (kernel.build(),), "by hand")


def nothing(n: int):
    return n


def untyped(n) -> Program:
    return copy(n)


class Kernels:
    pass


def odd(n: int, width: int = 3) -> Program:
    kernel, x = KernelBuilder("odd", (1, 1, 1)), GlobalTensor("x", (n,), "fp32", (1,))
    with kernel.role("warps", warps=1, registers=32) as r:
        r.ldg(RegisterTile("a", (n,), "fp32").whole, x[0:n], into="x", vector_bytes=width)
    return Program("odd", (x,), (kernel.build(),), "by hand")


def slip(n: int) -> Program:
    with KernelBuilder("slip", (1, 1, 1)).role("warps", warps=1, registers=32) as r:
        r.wgmma_fense()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("TILE = 128\n", encoding="utf-8")
    path = tmp_path / "mine.py"
    path.write_text(COPY, encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(words))
    return code, *capsys.readouterr()


def test_a_deadlock_names_the_line_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = 1 + next(i for i, text in enumerate(COPY.splitlines()) if "ring.wait(r, 3)" in text)
    code, out, err = run(capsys, "run", "mine.py:stuck", "n=32", "--arch", "h100-sxm")
    assert (code, out) == (2, "")
    assert f"warp 0 at mbarrier full[1] for phase 1 (reader, mbarrier_wait at mine.py:{line})" in err
    assert err.rstrip().count("\n") == 0 or "compiling" in err


def test_the_first_block_of_the_page_is_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    Path("my_kernel.py").write_text(block, encoding="utf-8")
    words = ("run", "my_kernel.py:gemm", "m=130", "n=128", "k=100", "--arch", "h100-sxm", "--check", "--json")
    code, out, _ = run(capsys, *words)
    report = json.loads(out)
    assert code == 0
    assert report["check"]["passed"]
    assert 0 < report["check"]["max_rel_error"] < 1e-5
    assert report["workload"] == "my_kernel.py:gemm m=130 n=128 k=100"
    assert report["workload_file"]["name"] == "my_kernel.py"
    assert report["macs"] == 2 * 128 * 128 * 128  # two CTAs of whole tiles: what is issued


def test_a_program_has_the_reports_of_an_operator(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("mine.py:copy", "n=4096", "--arch", "t4")
    code, out, _ = run(capsys, "run", *words, "--check")
    assert code == 0
    assert "passed, largest relative error 0.00e+00" in out
    assert "schedule    t4" in out  # `machine` gets the description
    assert run(capsys, "run", *words, "--html", "a.html", "--plot", "a.png")[0] == 0
    assert Path("a.html").stat().st_size > 10_000
    assert "ldg" in run(capsys, "run", *words, "--listing")[1]
    assert run(capsys, "trace", *words, "-o", "a.pftrace")[0] == 0
    code, out, _ = run(capsys, "sweep", *words, "--vary", "warps=1,2,4", "--json", "--workers", "1")
    assert [row["values"]["warps"] for row in json.loads(out)["rows"]] == ["1", "2", "4"]
    code, out, _ = run(capsys, "compare", "mine.py:copy", "n=4096", "--arch", "t4", "tpu-v1")
    assert "is a program for machines of family gpu, tpu-v1 is of tpu" in " ".join(out.split())


def test_the_rules_alone_are_judged_without_a_reference(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", "mine.py:unjudged", "n=4096", "--arch", "t4", "--check")
    assert code == 0
    assert "passed, the rules of the schedule alone" in out
    assert "has no reference" in " ".join(out.split())


def test_a_broken_rule_names_the_line_of_the_op(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", "mine.py:copy", "n=4096", "wrong=true", "--arch", "t4", "--check")
    line = 1 + COPY.splitlines().index('        r.stg(y[at:TILE], a.whole, **({} if wrong else {"after": ("x",)}))')
    assert code == 1
    assert f"warps stg (mine.py:{line}, op 1," in " ".join(out.split())


def test_a_program_object_is_a_workload() -> None:
    space: dict = {}
    exec(COPY.replace("from helper import TILE", "TILE = 128"), space)
    machine = load_arch("t4")
    program = space["copy"](4096, machine=machine)
    report = simulate(program, machine, check=True)
    assert report.record.workload == "copy"
    assert report.record.check is not None
    assert report.record.check.passed
    with pytest.raises(InputError, match="family gpu, sn40l is of rdu"):
        simulate(program, "sn40l")
    with pytest.raises(InputError, match="not dict"):
        simulate({}, "t4")  # type: ignore[arg-type]


def test_a_changed_file_is_another_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def key() -> str:
        return key_of(request_of("mine.py:copy n=4096", "t4"))

    first = key()
    assert key() == first
    helper = file.with_name("helper.py")
    helper.write_text("TILE = 256\n", encoding="utf-8")
    assert key() != first, "what it imports from its folder counts"
    assert simulate("mine.py:copy n=4096", "t4").record.kernels[0].own.grid == (4, 1, 1)
    saved = helper.stat()
    helper.write_text("TILE = 128\n", encoding="utf-8")
    os.utime(helper, ns=(saved.st_atime_ns, saved.st_mtime_ns))  # saved twice within a second, with one length
    assert key() == first
    assert simulate("mine.py:copy n=4096", "t4").record.kernels[0].own.grid == (8, 1, 1)
    assert {path.name for path in file.parent.iterdir()} == {"helper.py", "mine.py"}, "nothing is left beside them"
    file.write_text(COPY + "\n# a word\n", encoding="utf-8")
    assert key() != first


def test_a_program_beside_the_packages_meets_the_same_ones(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    place = tmp_path / "checkout"
    place.mkdir()
    for name in ("arch", "sim", "workloads"):
        shutil.copytree(root / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    (place / "helper.py").write_text("TILE = 128\n", encoding="utf-8")
    (place / "mine.py").write_text(COPY, encoding="utf-8")
    code = (
        "from workloads.written import function_of; f = function_of('mine.py', 'copy'); import sim.gpu.language as l; "
    )
    code += "m = type('Machine', (), {'name': 'any'}); assert isinstance(f(4096, machine=m), l.Program)"
    subprocess.run([sys.executable, "-c", code], cwd=place, check=True, env={**os.environ, "PYTHONPATH": str(place)})


def test_a_lock_knows_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = '[[case]]\nname = "copy"\narch = "t4"\nworkload = "mine.py:copy n=4096"\n'
    Path("tilewave.toml").write_text(case, encoding="utf-8")
    assert run(capsys, "check", "--update", "--workers", "1")[0] == 0
    assert run(capsys, "check", "--workers", "1")[0] == 0
    file.write_text(COPY.replace("warps: int = 4", "warps: int = 8"), encoding="utf-8")
    code, out, _ = run(capsys, "check", "--workers", "1")
    assert code == 1
    assert "the workload's file:" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("absent.py:copy n=1", "program absent.py: cannot be read: No such file"),
        ("mine.py:cop n=1", "has no function cop; did you mean copy?"),
        ("mine.py:copy", "n missing, needed are n"),
        ("mine.py:copy n=x", "mine.py:copy n=x: must be a whole number"),
        ("mine.py:copy n=1 wrong=maybe", "wrong=maybe: must be true or false"),
        ("mine.py:copy n=1 warp=2", "unknown key 'warp', one of n, warps, wrong; did you mean warps?"),
        ("mine.py:copy n=1 n=2", "key n is given twice"),
        ("mine.py:slip n=1", "has no attribute 'wgmma_fense'; did you mean wgmma_fence?"),
        ("mine.py:odd n=96", "role warps, ldg (mine.py:"),
        ("mine.py:odd n=96", "vector_bytes=3: a thread moves 1, 2, 4, 8, 16, 32"),
        ("mine.py:broken n=1", "line 23: NameError: name 'undefined' is not defined"),
        ("mine.py:nothing n=1", "mine.py:nothing: gives int, it must give a Program"),
        ("mine.py:untyped n=1", "parameter n needs an annotation int, float, bool or str"),
        ("mine.py:Kernels", "mine.py:Kernels: gives Kernels, it must give a Program"),
        ("mine.py:copy n=0", "program mine.py line"),
    ],
)
def test_a_mistake_is_one_line(file: Path, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    code, out, err = run(capsys, "run", *words.split(), "--arch", "t4")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_program_that_moves_nothing_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
from sim.tpu.program import Halt, Nop, Program


def idle(count: int = 2) -> Program:
    work = [*(Nop(),) * count, Halt()]
    return Program("idle", "by hand", work, 64, 0, lambda m, o: None, lambda m: [], reference=lambda o: [])
"""
    file = tmp_path / "idle.py"
    file.write_text(text, encoding="utf-8")
    code, out, _ = run(capsys, "run", f"{file}:idle", "--arch", "tpu-v1", "--json", "--check")
    report = json.loads(out)
    assert (code, report["check"]["passed"], report["tpu"]["intensity"]) == (0, True, 0.0)


TPU_PRODUCT = """
import numpy as np

from sim.tpu.program import (
    Activate, Halt, MatrixMultiply, Program, ReadHostMemory, ReadWeights, Sync, WriteHostMemory,
)

X = np.random.default_rng(0).integers(-8, 8, (4, 256)).astype(np.int8)
TURN = np.roll(np.eye(256, dtype=np.int8), 3, axis=1)


def product(wrong: bool = False) -> Program:
    work = [
        ReadHostMemory(0, 0, 4, 256, 256, 256), ReadWeights(0), Sync("matrix0", "host_read"),
        MatrixMultiply(0, 256, 4, 256, 256, 0), Sync("activation", "matrix0"), Activate(0, 4, 256, 4096, 256),
        Sync("host_write", "activation"), WriteHostMemory(4096, 1024, 4, 256, 256, 256), Halt(),
    ]

    def fill(memory, operands):
        memory.host[:1024] = X.view(np.uint8).reshape(-1)
        memory.weights[:65536] = TURN.view(np.uint8).reshape(-1)

    def results(memory):
        return [memory.host[1024:].view(np.int8).reshape(4, 256).astype(int)]

    return Program(
        "product", "by hand", work, 2048, 65536, fill, results,
        reference=lambda operands: [X.astype(int) @ TURN + int(wrong)],
    )
"""


@pytest.mark.parametrize(("wrong", "error"), [(False, 0.0), (True, 1.0)])
def test_values_of_a_tpu_program_are_compared_with_its_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: bool, error: float
) -> None:
    file = tmp_path / "product.py"
    file.write_text(TPU_PRODUCT, encoding="utf-8")
    code, out, _ = run(capsys, "run", f"{file}:product", f"wrong={wrong}", "--arch", "tpu-v1", "--json", "--check")
    check = json.loads(out)["check"]
    assert (code, check["passed"], check["max_rel_error"]) == (int(wrong), not wrong, error)


def test_a_machine_without_a_language_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "mine.py:copy", "n=4096", "--arch", "gemmini")
    assert code == 2
    assert "mine.py:copy: gemmini runs no programs; machines of family gpu, rdu, tpu do" in err


@pytest.mark.parametrize("text", ["def copy(:", "import sys; sys.exit(3)", "raise ValueError('no')", "import nowhere"])
def test_a_file_that_cannot_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    code, _, err = run(capsys, "run", f"{file}:copy", "--arch", "t4")
    assert code == 2
    assert "line 1: " in err
    assert err.count("\n") == 1


def test_other_options_than_its_own_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--schedule", "simt"], ["--without", "tma"]):
        code, _, err = run(capsys, "run", "mine.py:copy", "n=4096", "--arch", "t4", *option)
        assert code == 2
        assert "is a program of its own, leave it out" in err


def test_what_a_file_prints_stays_out_of_the_report(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("print('hello')\n" + COPY, encoding="utf-8")
    _, out, err = run(capsys, "run", "mine.py:copy", "n=4096", "--arch", "t4", "--json")
    assert json.loads(out)["workload"] == "mine.py:copy n=4096"
    assert "hello" in err


def test_text_and_program_agree(file: Path) -> None:
    op = parse("mine.py:copy n=4096 wrong=false warps=2")
    assert str(op) == "mine.py:copy n=4096 warps=2 wrong=False"
    assert str(parse(str(op))) == str(op)
