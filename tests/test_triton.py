"""Triton kernels from their source: compiled, run, checked, ranked. Without Triton none of these tests runs."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from arch.errors import InputError
from arch.load import load_arch
from sim.app.autotune import autotune
from sim.app.cli import main
from sim.app.run import compare, simulate
from sim.gpu.sass.forms import form_of
from sim.gpu.sass.kernel import SassKernel
from sim.gpu.sass.needed import target_of
from workloads.parse import parse
from workloads.triton_kernels import TritonKernel, TritonLaunch
from workloads.written import function_of

FILE = Path(__file__).parent / "gpu" / "sass" / "kernels.py"
TUTORIALS = Path(__file__).parents[1] / "scripts" / "lab" / "kernels" / "tutorials.py"
MATMUL = f"{FILE}:matmul grid=cdiv(m,BM),cdiv(n,BN) a=fp16[80,64] b=fp16[64,96] c=fp16[80,96] m=80 n=96 k=64"
TILES = "BM=64 BN=32 BK=32 num-warps=4 num-stages=3"
A100, H100 = "a100-sxm4-80gb", "h100-sxm"


@pytest.mark.parametrize("machine", [A100, H100, "rtx-3090", "l4"])
def test_a_product_is_what_tritons_interpreter_says(machine: str) -> None:
    report = simulate(f"{MATMUL} {TILES}", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    assert report.record.kernels[0].counters["macs"] >= 80 * 96 * 64


@pytest.mark.parametrize(
    "text",
    [
        "dequant grid=2 q=uint8[512] s=fp16[16] out=fp16[1024] n=512 B=256",
        "cross_entropy grid=8 x=fp32[8,1000] label=int64[8]:{labels} out=fp32[8] n=1000 B=1024",
        "scan grid=2 x=fp32[2,4096] out=fp32[2,4096] n=4096 B=4096",
    ],
)
def test_formats_of_tensors_and_a_long_scan(text: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels.npy"
    np.save(labels, np.arange(8, dtype=np.int64) * 100)
    report = simulate(f"{FILE.with_name('tensors.py')}:{text.format(labels=labels)}", A100, check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_a_product_by_tensor_maps_is_what_tritons_interpreter_says() -> None:
    maps = "a=fp16[128,128]@BM,BK b=fp16[128,128]@BN,BK c=fp16[128,128]@BM,BN"
    text = f"{FILE}:matmul_tma grid=cdiv(128,BM),cdiv(128,BN) {maps} k=128 BM=64 BN=128 BK=64"
    report = simulate(text, H100, check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_a_cluster_shares_what_one_cta_does() -> None:
    maps = "a=fp16[128,128]@BM,BK b=fp16[128,128]@BN,BK c=fp16[128,128]@BM,BN"
    text = f"{FILE}:matmul_tma grid=2,2 {maps} k=128 BM=64 BN=64 BK=64"
    one, two = (simulate(f"{text}{more}", H100).record.kernels[0] for more in ("", " num-ctas=2"))
    assert (two.own.grid, two.own.cluster) == ((4, 2, 1), (2, 1, 1))
    assert two.counters["macs"] == one.counters["macs"] == 128**3
    assert two.counters["l2_write_bytes"] == one.counters["l2_write_bytes"]
    assert one.counters["l2_read_bytes"] < two.counters["l2_read_bytes"] < 2 * one.counters["l2_read_bytes"]
    check = simulate(f"{text} num-ctas=2", H100, check=True).record.check
    assert check is not None
    assert check.passed
    with pytest.raises(InputError, match="num_ctas > 1 requires"):
        simulate(f"{FILE}:add grid=4 x=fp32[2048] y=fp32[2048] out=fp32[2048] n=2048 BLOCK=512 num-ctas=2", A100)


@pytest.mark.parametrize(("machine", "dtype"), [(H100, "fp8"), ("l4", "fp8_e5m2")])
def test_a_product_of_numbers_of_8_bits_is_what_tritons_interpreter_says(machine: str, dtype: str) -> None:
    tensors = f"a={dtype}[64,128] b={dtype}[32,128] c={dtype}[64,32]"
    report = simulate(f"{FILE}:matmul_fp8 grid=1 {tensors} k=128 BM=64 BN=32 BK=64", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.max_rel_error == 0


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        (A100, "softmax grid=3 out=fp32[7,192] x=fp32[7,192] in_stride=192 out_stride=192 rows=7 columns=192 BLOCK=256 "
         "STAGES=2 num-warps=8 num-stages=2"),
        (A100, "layer_norm grid=3 x=fp16[3,192] y=fp16[3,192] w=fp16[192] b=fp16[192] mean=fp32[3] rstd=fp32[3] "
         "stride=192 n=192 eps=1e-5 BLOCK=128 num-warps=2"),
        (H100, "attention grid=2,1 q=fp16[128,64] k=fp16[128,64] v=fp16[128,64] out=fp16[128,64] lse=fp32[128] "
         "scale=0.18 stride_z=8192 stride_h=8192 stride_n=64 heads=1 tokens=128 HEAD=64 BLOCK_M=64 BLOCK_N=64 "
         "CAUSAL=True num-stages=3"),
    ],
)  # fmt: skip
def test_kernels_of_the_tutorials_are_what_tritons_interpreter_says(machine: str, text: str) -> None:
    report = simulate(f"{TUTORIALS}:{text}", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed


@pytest.mark.skipif(importlib.import_module("triton").__version__ != "3.9.0", reason="counts are of Triton 3.9.0")
@pytest.mark.parametrize(
    ("machine", "tile", "instructions", "stalls", "products", "copies"),
    [
        (A100, (128, 128, 32, 4, 4), 185, 530, 64, 8),
        (A100, (128, 128, 64, 4, 3), 282, 1065, 128, 16),
        (A100, (128, 256, 64, 8, 3), 282, 1027, 128, 12),
        (A100, (128, 256, 32, 8, 4), 181, 530, 64, 6),
        (H100, (128, 128, 32, 4, 4), 99, 179, 4, 8),
        (H100, (128, 128, 64, 4, 3), 142, 241, 8, 16),
        (H100, (128, 256, 64, 8, 3), 124, 190, 4, 12),
        (H100, (128, 256, 32, 8, 4), 83, 162, 2, 6),
    ],
)
def test_the_loop_of_a_product_has_the_instructions_that_others_counted(
    machine: str, tile: tuple[int, ...], instructions: int, stalls: int, products: int, copies: int
) -> None:
    """Static counts of the k loop, and the sum of its stall counts, from a study of Triton 3.9.0 (ptxas 12.9)."""
    bm, bn, bk, warps, stages = tile
    text = (
        f"{TUTORIALS}:matmul grid=16,1 a=fp16[2048,2048] b=fp16[2048,2048] c=fp16[2048,2048] m=2048 n=2048 k=2048 "
        f"stride_am=2048 stride_ak=1 stride_bk=2048 stride_bn=1 stride_cm=2048 stride_cn=1 BLOCK_M={bm} BLOCK_N={bn} "
        f"BLOCK_K={bk} GROUP_M=8 num-warps={warps} num-stages={stages}"
    )
    launch = parse(text)
    assert isinstance(launch, TritonLaunch)
    kernel = launch.on(load_arch(machine)).program.kernels[0]
    assert isinstance(kernel, SassKernel)
    function = kernel.compiled.function
    found = []
    for end, branch in enumerate(function.instructions):
        first = target_of(form_of(branch), function) if branch.opcode.startswith("BRA") else None
        loop = function.instructions[first : end + 1] if first is not None and first < end else []
        if any("MMA" in one.opcode for one in loop):
            found.append(loop)
    (loop,) = found
    assert len(loop) == instructions
    assert sum(one.control.stall for one in loop) == stalls
    assert sum(one.opcode.startswith(("HMMA", "HGMMA")) for one in loop) == products
    assert sum(one.opcode.startswith("LDGSTS") for one in loop) == copies


@pytest.mark.skipif(importlib.import_module("triton").__version__ != "3.9.0", reason="counts are of Triton 3.9.0")
@pytest.mark.parametrize(
    ("kernel", "target", "dtype", "tile", "counted"),
    [
        ("Triton vector add", 75, "fp16", "1024 elements, 4 warps", [(14, 0, 33), (9, 3, 21), (1, 0, 5)]),
        ("Triton softmax, one row per program", 80, "fp32", "1x1024, 4 warps",
         [(25, 0, 45), (141, 38, 358), (1, 0, 5)]),
        ("Triton softmax, persistent over rows", 80, "fp32", "1x1024, 4 warps, 4 stages",
         [(70, 1, 116), (176, 37, 395), (3, 0, 15)]),
        ("Triton layer norm fwd, three passes over the row", 80, "fp16", "block 4096, 8 warps",
         [(26, 1, 39), (51, 3, 85), (83, 3, 123), (153, 9, 248), (60, 4, 148), (70, 10, 191)]),
        ("Triton RMS norm fwd, row in registers", 80, "fp16", "1x1024, 4 warps",
         [(13, 0, 29), (87, 7, 199), (1, 0, 5)]),
        ("Triton matmul, TMA descriptors", 90, "fp16->fp32 acc", "128x256x64, 8 warps, 3 stages",
         [(323, 66, 633), (87, 21, 174), (129, 10, 204)]),
    ],
)  # fmt: skip
def test_sections_of_kernels_have_the_instructions_that_others_counted(
    kernel: str, target: int, dtype: str, tile: str, counted: list[tuple[int, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Instructions, those with a guard, and stall counts of each section, from the study that the script reads."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    script = importlib.import_module("instruction_mix")
    found = [script.counts(section) for section in script.build_of(kernel, dtype, tile).sections(target)]
    named = [tuple(one[name] for name in ("TOTAL", "PREDICATED", "STALL_SUM")) for one in found]
    assert named[: len(counted)] == counted


def test_from_python_with_a_grid_that_is_a_function() -> None:
    kernel = TritonKernel(
        function_of(str(FILE), "add"), {"x": "fp32[4096]", "y": "fp32[4096]", "out": "fp32[4096]", "n": 4096},
        grid=lambda meta: (-(-meta["n"] // meta["BLOCK"]),), constants={"BLOCK": 512},
    )  # fmt: skip
    report = simulate(kernel, H100, check=True)
    assert report.record.kernels[0].own.grid == (8, 1, 1)
    assert report.record.check is not None
    assert report.record.check.max_rel_error == 0


def test_text_and_launch_are_one() -> None:
    launch = parse(f"{MATMUL} {TILES}")
    assert isinstance(launch, TritonLaunch)
    assert str(parse(str(launch))) == str(launch)
    assert dict(launch.constants) == {"BM": 64, "BN": 32, "BK": 32}
    assert len(compare(f"{MATMUL} {TILES}", [A100, H100]).reports) == 2


def tuned(folder: Path) -> Path:
    """A file with a kernel whose list has a configuration that fits no machine's registers."""
    file = folder / "tuned.py"
    file.write_text(
        "import triton\nimport triton.language as tl\n\n"
        "def config(bm, bn, warps):\n"
        "    return triton.Config(dict(BM=bm, BN=bn, BK=32), num_warps=warps, num_stages=3)\n\n"
        "@triton.autotune([config(16, 16, 1), config(64, 64, 4), config(512, 512, 8)], key=['m'])\n"
        + "@triton.jit\ndef matmul"
        + FILE.read_text(encoding="utf-8").split("@triton.jit\ndef matmul")[1],
        encoding="utf-8",
    )
    return file


def test_a_list_of_configurations_is_ranked_the_fastest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tuned(tmp_path)
    arguments = [word for name, shape in (("a", "256,256"), ("b", "256,256"), ("c", "256,256"))
                 for word in ("--arg", f"{name}=fp16[{shape}]")]  # fmt: skip
    numbers = [word for name in "mnk" for word in ("--arg", f"{name}=256")]
    words = ["run", "--triton", f"{file}:matmul", "--grid", "cdiv(m,BM),cdiv(n,BN)", *arguments, *numbers, "--arch",
             A100, "--autotune"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    times = [row["report"]["time_us"] for row in rows if "report" in row]
    assert len(times) == 2
    assert times == sorted(times)
    assert "tuned.py, line " in rows[-1]["reason"]  # it spills registers that addresses are made of
    kernel = parse(f"{file}:matmul grid=cdiv(m,BM),cdiv(n,BN) a=fp16[256,256] b=fp16[256,256] c=fp16[256,256] "
                   "m=256 n=256 k=256")  # fmt: skip
    assert isinstance(kernel, TritonLaunch)
    assert autotune(kernel, A100).best.configuration["BM"] == rows[0]["configuration"]["BM"]
    assert main([*words, "--num-warps", "4"]) == 2
    assert "leave out --num-warps" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"missing --const BM=.*--autotune takes them from its @triton.autotune list"):
        simulate(str(kernel), A100)


@pytest.mark.parametrize(
    ("name", "slower", "faster"),
    [
        ("pipeline_stages", "1 stage: time", "3 stages: time"),
        ("five_ways", "double-buffered: time", "tensor cores: time"),
    ],
)
def test_lessons_in_their_reduced_form(
    name: str, slower: str, faster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = Path(__file__).parents[1] / "scripts" / "lessons"
    monkeypatch.syspath_prepend(str(folder))
    lesson, module = importlib.import_module("lesson"), importlib.import_module(name)
    picture = tmp_path / "picture.png"
    assert lesson.main(module.__doc__, module.lesson, ["--quick", "--json", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 5000
    found = {claim["what"]: claim["simulated"] for claim in json.loads(capsys.readouterr().out)}
    assert found[faster] < 0.75 * found[slower]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{FILE}:matmul a=fp16[64,64]", "needs grid="),
        (f"{MATMUL} {TILES} q=3", "has no parameter q, one of a, b, c"),
        (f"{MATMUL} BM=64 BN=32", r"missing --const BK=\.\.\."),
        (MATMUL.replace("m=80 ", "") + f" {TILES}", r"missing --arg m=\.\.\."),
        (f"{MATMUL} {TILES}".replace("cdiv(n,BN)", "cdiv(q,BN)"), "--grid: q is no whole number that is given"),
        (f"{MATMUL} BM=64 BN=32 BK=33", "AssertionError|arange|power of 2"),
        (f"{MATMUL} BM=256 BN=256 BK=128 num-stages=5", "shared memory a CTA"),
        (f"{MATMUL} {TILES}".replace("num-warps=4", "num-warps=x"), "num-warps=x: must be a whole number"),
        (f"{FILE}:nothing grid=1", "has no function nothing"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(text, A100)


def test_a_length_that_is_no_multiple_of_16_is_told_where_it_costs_accesses() -> None:
    def notes(n: int) -> list[str]:
        size = f"fp32[{n}]"
        return list(simulate(f"{FILE}:add grid=9 x={size} y={size} out={size} n={n} BLOCK=512", A100).record.notes)

    assert any("n=4097: no multiple of 16" in note and "has 12 loads and stores" in note for note in notes(4097))
    assert any("n=250: no multiple of 16" in note and "has 12 loads and stores" in note for note in notes(250))
    assert not any("multiple" in note for note in notes(4112))


def test_a_tensor_map_of_rows_that_the_hardware_cannot_take_is_refused() -> None:
    maps = "a=fp16[128,100]@BM,BK b=fp16[64,100]@BN,BK c=fp16[128,64]@BM,BN"
    with pytest.raises(InputError, match=r"a: its rows have 200 bytes; those of a tensor map are multiples of 16"):
        simulate(f"{FILE}:matmul_tma grid=2 {maps} k=100 BM=64 BN=64 BK=64", H100)


def test_turing_runs_what_the_wheels_read() -> None:
    add = f"{FILE}:add grid=2 x=fp32[1024] y=fp32[1024] out=fp32[1024] n=1024 BLOCK=512"
    report = simulate(add, "t4", check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    with pytest.raises(InputError, match=r"SM70.*; compiled kernels run on sm_75 to sm_90"):
        simulate(add, "v100-sxm2")
    with pytest.raises(InputError, match=r"line \d+\): LDL .*depend on R\d+, which comes from memory"):
        simulate(f"{MATMUL} BM=64 BN=64 BK=32", "t4")


def test_an_array_that_is_smaller_than_the_grid_is_told_with_its_line_and_lane() -> None:
    text = f"{FILE}:add grid=9 x=fp32[4096] y=fp32[4096] out=fp32[4096] n=8192 BLOCK=512"
    line = 1 + [row.lstrip()[:8] for row in FILE.read_text(encoding="utf-8").splitlines()].index("tl.store")
    with pytest.raises(
        InputError, match=rf"kernels.py, line {line}\): .*LDG.*CTA \(8, 0, 0\), warp 0, lane 0: .*array"
    ):
        simulate(text, A100)
    with pytest.raises(InputError, match=r"lies in no array; is the grid right\?|bytes into array"):
        simulate(text, A100, check=True)
