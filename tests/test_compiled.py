"""Compiled kernels as a user asks for them: command line, Python, mistakes."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from sim.app.cli import main
from workloads.compiled import ArrayArgument, read_argument, read_constant, read_dimensions

FOLDER = Path(__file__).parent / "gpu" / "sass"
ADD = ("--cubin", str(FOLDER / "add.sm80.sass"), "--block", "128", "--arch", "a100-sxm4-80gb")
PARAMETERS = [word for name in ("x", "y", "out") for word in ("--param", f"{name}=fp32[8192]")]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that is refused."""
    assert main(["run", *words]) == 2
    return capsys.readouterr().err


def test_a_cubins_kernel_gives_the_report_of_any_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *ADD, "--grid", "16", *PARAMETERS, "--param", "n=8192", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["cycles"] > 1000
    assert report["bytes"]["dram"]["read"] == pytest.approx(2 * 4 * 8192, rel=0.1)
    assert report["bytes"]["l2"]["write"] == 4 * 8192
    assert report["workload_file"]["name"] == "add.sm80.sass"
    assert report["macs"] == 0


def test_the_report_says_where_in_the_source_warps_spent_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", *ADD, "--grid", "16", *PARAMETERS, "--param", "n=8192"]
    assert main([*words, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["gpu"]["source"]
    assert (lines[0]["file"], max(lines[0]["warp_cycles"], key=lines[0]["warp_cycles"].get)) == (
        "kernels.py",
        "long_scoreboard",
    )
    assert "tl.load" in (FOLDER / "kernels.py").read_text(encoding="utf-8").splitlines()[lines[0]["line"] - 1]
    assert all(line["instructions"] % (16 * 4) == 0 for line in lines)  # of each of the 64 warps
    assert main(words) == 0
    assert f"kernels.py:{lines[0]['line']}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gemm", "m=64", "n=64", "k=64", "--grid", "3", "--arch", "t4"), "--grid goes with --triton FILE:KERNEL or"),
        (ADD, "--cubin needs --grid"),
        ((*ADD, "--grid", "16", *PARAMETERS, "--check"), "add is a compiled kernel, whose floating-point values"),
        ((*ADD, "--grid", "16", *PARAMETERS, "--exact"), "add is a compiled kernel, whose instructions always"),
        ((*ADD, "--grid", "16", *PARAMETERS, "--listing"), "nvdisasm prints its code"),
        ((*ADD, "--grid", "0"), "--grid 0: must be one to three whole numbers"),
        ((*ADD, "--grid", "1", "--num-warps", "4"), "--num-warps goes with --triton"),
        ((*ADD, "--grid", "1", "--param", "x"), "--param x: must be NAME=VALUE"),
        ((*ADD, "--grid", "1", "--param", "x=fp31[4]"), "there is no number format fp31"),
        ((*ADD, "--grid", "1", "--param", "n=4"), "at least one argument must be an array"),
        ((*ADD, "--grid", "1", *PARAMETERS, "--param", "n=fp32[4]"), "parameter n of add has 4 bytes, an address 8"),
        ((*ADD, "--grid", "1", "--kernel", "ad", *PARAMETERS), "has no kernel ad; there are add; did you mean add?"),
        ((*ADD, "--grid", "1", "--shared", "200000", *PARAMETERS), "needs 200000 B of shared memory a CTA"),
        (("--cubin", "none.cubin", "--grid", "1", "--block", "32", "--arch", "t4"), "none.cubin: cannot be read"),
        (("--triton", "matmul", "--grid", "1", "--arch", "t4"), "--triton matmul: must be FILE.py:KERNEL"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *words)


def test_without_triton_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refused(capsys, "--triton", f"{FOLDER / 'kernels.py'}:add", "--grid", "1", "--arch", "a100-sxm4-80gb")
    assert "pip install 'tilewave[triton]'" in said


def test_arguments_read_from_text() -> None:
    assert read_argument("fp16[2304, 64]") == ArrayArgument("fp16", (2304, 64))
    assert read_argument("0x10") == 16
    assert read_argument("1e-5") == 1e-5
    assert read_constant("true") is True
    assert read_constant("relu") == "relu"
    assert read_dimensions("--grid", "18,18") == (18, 18, 1)
    assert str(ArrayArgument("fp16", (2304, 64)).tensor("a").strides) == "(64, 1)"
    with pytest.raises(InputError, match="must be an array such as"):
        read_argument("fp16")
