"""Compiled kernels as a user asks for them: command line, Python, mistakes."""

import contextlib
import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from sim.app.cli import main
from sim.app.run import compare, request_of, simulate, trace
from sim.app.study.case import key_of
from sim.app.study.sweep import sweep
from workloads.compiled_arguments import ArrayArgument, read_argument, read_constant, read_dimensions, read_grid
from workloads.parse import parse

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


def test_the_table_of_lines_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    assert main(["run", *ADD, "--grid", "16", *PARAMETERS, "--param", "n=8192", "--source"]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert (title, header.split()[:2]) == ("Source", ["line", "warp-cycles"])
    assert [row.split()[0] for row in rows] == ["kernels.py:11", "kernels.py:10", "kernels.py:14", "kernels.py:9"]
    assert "long scoreboard" in rows[0]
    assert "tl.store(out + at, tl.load(x + at" in rows[0]
    assert sum(float(row.split()[1]) for row in rows) == pytest.approx(100, abs=0.2)
    assert main(["run", "gemm", "m=64", "n=64", "k=64", "--arch", "t4", "--source"]) == 2
    assert "--source: gemm m=64 n=64 k=64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gemm", "m=64", "n=64", "k=64", "--grid", "3", "--arch", "t4"), "--grid goes with --triton FILE:KERNEL or"),
        (ADD, "--cubin needs --grid"),
        (
            (*ADD, "--grid", "16", *PARAMETERS, "--param", "n=1", "--exact"),
            "add is a compiled kernel, whose instructions always",
        ),
        ((*ADD, "--grid", "0"), "--grid 0: must be one to three whole numbers"),
        ((*ADD, "--grid", "1", "--num-warps", "4"), "--num-warps goes with --triton"),
        ((*ADD, "--grid", "1", "--param", "x"), "--param x: must be NAME=VALUE"),
        ((*ADD, "--grid", "1", "--param", "x=fp31[4]"), "dtype=fp31: unknown number format"),
        ((*ADD, "--grid", "1", *PARAMETERS), "the first 3 are given, and its code reads number 4, of 4 bytes"),
        ((*ADD, "--grid", "1", "--param", "n=4"), "at least one argument must be an array"),
        ((*ADD, "--grid", "1", *PARAMETERS, "--param", "n=fp32[4]"), "parameter n of add has 4 bytes, an address 8"),
        ((*ADD, "--grid", "1", "--kernel", "ad", *PARAMETERS), "has no kernel ad; there are add; did you mean add?"),
        (
            (*ADD, "--grid", "1", "--shared", "200000", *PARAMETERS, "--param", "n=1"),
            "needs 200000 B of shared memory a CTA",
        ),
        (("--cubin", "none.cubin", "--grid", "1", "--block", "32", "--arch", "t4"), "none.cubin: cannot be read"),
        (("--triton", "matmul", "--grid", "1", "--arch", "t4"), "--triton matmul: must be FILE.py:KERNEL"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *words)


TEXT = f"{FOLDER / 'add.sm80.sass'}:add grid=16 block=128 x=fp32[8192] y=fp32[8192] out=fp32[8192] n=8192"
A100 = "a100-sxm4-80gb"


@pytest.mark.parametrize("machine", ["tpu-v4", "sn40l", "gemmini"])
def test_compiled_kernels_run_on_gpus_alone(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *TEXT.split(), "--arch", machine]) == 2
    assert f"is a kernel compiled for GPUs, {machine} is of family" in capsys.readouterr().err


def test_a_launch_as_text_is_the_launch_of_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(parse(TEXT)) == TEXT
    assert main(["run", *ADD, "--grid", "16", "--kernel", "add", *PARAMETERS, "--param", "n=8192", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["workload"], report["cycles"]) == (TEXT, simulate(TEXT, A100).record.kernels[0].cycles)


def test_a_launch_as_text_can_be_swept_and_compared() -> None:
    found = sweep(TEXT, [A100], [["n=4096,8192"]], workers=1)
    assert [row["n"] for row in found.table] == [4096, 8192]
    times = [row["time_us"] for row in found.table]
    assert 0 < times[0] < times[1]
    machines = [row.to_dict()["machine"] for row in compare(TEXT, [A100, "rtx-3090"]).reports]
    assert len(machines) == 2


def test_another_content_of_a_kernels_file_is_another_request(tmp_path: Path) -> None:
    keys = []
    for more in ("", "// changed\n"):
        file = tmp_path / "add.sass"
        file.write_text((FOLDER / "add.sm80.sass").read_text(encoding="utf-8") + more, encoding="utf-8")
        keys.append(key_of(request_of(TEXT.replace(str(FOLDER / "add.sm80.sass"), str(file)), A100)))
    assert keys[0] != keys[1]


def test_the_listing_has_control_words_lines_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *ADD, "--grid", "16", *PARAMETERS, "--param", "n=8192", "--listing"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "kernel add (cubin): grid 16x1x1, 4 warps a CTA"
    (load,) = (line.split() for line in said if "LDG.E.128 R8" in line)
    assert load == ["00f0", "4", "w2", "@!P0", "LDG.E.128", "R8,", "[R4.64]", "lsu", "4/38"]
    assert any(line.strip() == "kernels.py:14" for line in said)


def test_a_trace_tiles_each_warps_life_and_carries_lines() -> None:
    found = trace(TEXT, A100)
    (track,) = [i for i, one in enumerate(found.tracks) if one.name.startswith("warp 0 ")][:1]
    states = sorted((s for s in found.slices if s.track == track), key=lambda s: s.begin)
    assert all(a.end == b.begin for a, b in itertools.pairwise(states))
    waits = [s for s in states if s.name == "long_scoreboard"]
    assert waits
    assert waits[0].args["line"] == "kernels.py:11"
    assert {found.tracks[s.track].name for s in found.slices if s.category == "load"} >= {"loads in flight 0"}


def test_the_page_of_a_compiled_kernel(tmp_path: Path) -> None:
    page = tmp_path / "add.html"
    assert main(["run", *ADD, "--grid", "16", *PARAMETERS, "--param", "n=8192", "--html", str(page)]) == 0
    assert "LDG.E.128" in page.read_text(encoding="utf-8")


def test_tensor_maps_and_grids_as_text() -> None:
    argument = read_argument("fp16[2304, 64]@BM,64")
    assert isinstance(argument, ArrayArgument)
    assert (str(argument), argument.extents({"BM": 128})) == ("fp16[2304,64]@BM,64", (128, 64))
    with pytest.raises(InputError, match=r"its block must be whole numbers, or tl\.constexpr parameters"):
        argument.extents({})
    with pytest.raises(InputError, match="a block has as many extents as the array"):
        read_argument("fp16[2304,64]@64")
    assert read_grid("cdiv(M,BM)*2,3", {"M": 100, "BM": 64}) == (4, 3, 1)
    for wrong in ("0", "a", "M**2", "cdiv(M)", "1,2,3,4", "M/2", "__import__('os')"):
        with pytest.raises(InputError, match="--grid"):
            read_grid(wrong, {"M": 100})


def test_an_array_file_must_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "index.npy", np.zeros(4, dtype=np.int32))
    argument = read_argument(f"int32[5]:{tmp_path / 'index.npy'}")
    assert isinstance(argument, ArrayArgument)
    with pytest.raises(InputError, match=r"index.npy holds int32\[4\]"):
        argument.content()


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


def test_a_lock_holds_compiled_kernels_and_notices_another_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tilewave.toml").write_text(
        '[[case]]\nname = "add"\narch = "a100-sxm4-80gb"\nworkload = "add.sass grid=16 block=128 '
        'x=fp32[8192] y=fp32[8192] out=fp32[8192] n=8192"\n',
        encoding="utf-8",
    )
    code = (FOLDER / "add.sm80.sass").read_text(encoding="utf-8")
    Path("add.sass").write_text(code, encoding="utf-8")
    words = ["check", "--workers", "1", "--store", str(tmp_path / "store.sqlite")]
    assert main([*words, "--update"]) == 0
    assert main(words) == 0
    with contextlib.chdir("/"):  # the kernel lies beside the lock, wherever the check is started
        assert main([*words, "--config", str(tmp_path / "tilewave.toml")]) == 0
    Path("add.sass").write_text(code.replace("0x000fe2", "0x000fea"), encoding="utf-8")
    capsys.readouterr()
    assert main(words) == 1
    assert "add: CHANGED" in capsys.readouterr().out
