"""The kernels of cuBLAS for Hopper, against what the library says (cublas_choices.csv) and its kernels' names."""

from __future__ import annotations

from collections import Counter

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from scripts.lab.choices import LibraryChoice, library_choices
from workloads.gpu.gemm import nvjet, wgmma
from workloads.gpu.gemm.problem import Problem, problem
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.gpu.select import choose
from workloads.libraries import figure, release
from workloads.ops import Gemm
from workloads.parse import parse

SPEC = load_arch("h100-sxm")
WEIGHTS = nvjet.Weights.of(release("cublas@13.1").values)
CHOICES = library_choices()


def asked(choice: LibraryChoice) -> Problem:
    op = parse(f"gemm {choice.shape} dtype={choice.dtype}")
    assert isinstance(op, Gemm)
    return problem(op)


def test_all_tiles_of_the_library_are_here() -> None:
    """With the same warpgroups, but where a warpgroup of the library's has more columns than one wgmma."""
    kinds = {(*tile.sides, "n" if tile.swap else "m"): tile.shared for tile in nvjet.tiles()}
    for choice in CHOICES:
        if choice.dtype != "fp8":
            shared = kinds[choice.tile_n, choice.tile_m, choice.first]
            across = choice.tile_m if choice.first == "n" else choice.tile_n
            assert shared == choice.shared or across > nvjet.figure("widest"), choice


@pytest.mark.parametrize(
    ("dtype", "sms", "tiles", "all_of_it", "cut"),
    [
        ("bf16", 132, 0.52, 0.45, 0.95),
        ("bf16", 78, 0.52, 0.38, 0.92),
        ("fp16", 132, 0.2, 0.17, 0.95),
        ("fp8", 132, 0.35, 0.3, 0.92),
    ],
)
def test_it_takes_what_the_library_takes(dtype: str, sms: int, tiles: float, all_of_it: float, cut: float) -> None:
    """Shares of the held half; 78 SMs were never looked at when the weights were calibrated."""
    spec = SPEC if sms == 132 else load_arch("h20")
    held = [c for c in CHOICES if c.dtype == dtype and c.sms == sms and c.half == "held"]
    every = max(1, len(held) // 300)
    same: Counter[str] = Counter()
    for choice in held[::every]:
        tile, cluster, split = nvjet.ranked(asked(choice), spec, WEIGHTS)[0]
        alike = tile.sides == (choice.tile_n, choice.tile_m)
        same["tile"] += alike
        same["cut"] += (split > 1) == (choice.split > 1)
        same["all"] += alike and split == choice.split and cluster == (choice.cluster_n, choice.cluster_m)
    count = len(held[::every])
    shares = same["tile"] / count, same["all"] / count, same["cut"] / count
    assert all(share >= least for share, least in zip(shares, (tiles, all_of_it, cut), strict=True)), shares


def test_a_tile_has_the_librarys_cluster() -> None:
    slots = {n * m: wgmma.clusters_resident(SPEC, n * m) * n * m for n, m in nvjet.clusters()}
    same, padded = 0, {}
    asked_for = [choice for choice in CHOICES if choice.dtype == "bf16" and choice.sms == 132]
    for choice in asked_for:
        keys = {key: int(value) for key, value in (pair.split("=") for pair in choice.shape.split()) if key[0] != "t"}
        counts = -(-keys["n"] // choice.tile_n), -(-keys["m"] // choice.tile_m)
        copies = choice.split * keys.get("batch", 1)
        cluster, *_ = nvjet._cluster(counts, (choice.tile_n, choice.tile_m), copies, slots)
        same += cluster == (choice.cluster_n, choice.cluster_m)
        padded[choice.shape] = cluster
    assert same > 0.93 * len(asked_for)
    # 9 tiles along m, of which clusters of two would waste one: they lie along n.
    assert padded["m=2305 n=4096 k=128 tb=T"] == (2, 1)


def taken(m: int, n: int, k: int, spec: GpuSpec = SPEC) -> WgmmaConfig:
    config = choose(Gemm(m, n, k, tb="T", dtype="bf16"), spec, "cublas@13.1").config
    assert isinstance(config, WgmmaConfig)
    return config


@pytest.mark.parametrize(
    ("tile", "stages"),
    [
        ((64, 8), 16), ((64, 48), 15), ((64, 56), 14), ((64, 64), 13), ((128, 8), 12), ((128, 80), 8), ((128, 128), 6),
        ((192, 104), 5), ((256, 88), 4), ((512, 8), 3),
    ],
)  # fmt: skip
def test_stages_are_those_in_the_names(tile: tuple[int, int], stages: int) -> None:
    rows, width = tile
    found = next(t for t in nvjet.tiles() if (t.rows, t.width, t.swap) == (rows, width, True))
    assert nvjet.stages(found, SPEC) == stages
    p = problem(Gemm(4096, 4096, 4096, tb="T", dtype="bf16"))
    config = WgmmaConfig(rows, width, 64, stages=stages, pingpong=not found.shared, swap=True)
    assert wgmma.shared_bytes(p, config) <= stages * ((rows + width) * 128 + 24) + 16384 + 84
    assert wgmma.max_stages(p, config, SPEC) >= stages


@pytest.mark.parametrize(("m", "n", "along_n"), [(128, 4096, True), (192, 6144, True), (1024, 1024, False)])
def test_tiles_go_the_way_that_names_say(m: int, n: int, along_n: bool) -> None:
    """nvjet_.._2x1_v_.. goes along n first, .._1x2_h_.. along m. 128 x 4096 x 2048 takes 8.0 us (product_ladders.csv):
    where clusters that share rows lie in one GPC 7.7, else 9.2."""
    config = taken(m, n, 512)
    plan = wgmma.plan(problem(Gemm(m, n, 512, tb="T", dtype="bf16")), SPEC, config)
    first, second, *_ = plan.firsts(2)
    assert (first.m != second.m) == (config.swap == along_n)
    beside = plan.firsts(9)[8] if max(plan.tiles_m, plan.tiles_n) > 8 else None
    if beside is not None:
        assert (beside.m if config.swap == along_n else beside.n) == 0, "the ninth reads what the first one reads"


def test_fp8_has_half_the_registers() -> None:
    widest = {
        rows: max(t.width for t in nvjet.tiles(True) if t.rows == rows and not t.shared) for rows in (64, 128, 256)
    }
    assert widest == {64: 176, 128: 88, 256: 40}


def test_who_times_kernels_takes_the_fastest_that_the_library_names() -> None:
    op = Gemm(1024, 1024, 4096, dtype="bf16")
    named = {
        str(config) for config in nvjet.configurations(problem(op), SPEC, WEIGHTS, figure("cublas-tuned@13.1", "named"))
    }
    tuned = choose(op, SPEC, "cublas-tuned@13.1")
    assert len(tuned.candidates) > 1
    assert {str(config) for config, _ in tuned.candidates} <= named
    times = [time_ps for _, time_ps in tuned.candidates]
    assert times == sorted(times)
    [(_, first_ps)] = choose(op, SPEC, "cublas@13.1").candidates
    assert times[0] <= first_ps
    ampere = load_arch("a100-sxm4-80gb")
    assert choose(op, ampere, "cublas-tuned@13.1").config == choose(op, ampere, "cublas@13.1").config
