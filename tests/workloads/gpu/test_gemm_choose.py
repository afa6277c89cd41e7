"""The choice of a GEMM kernel: valid, repeatable, sensible; and what a person is told who asks for the impossible."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.run import simulate
from sim.gpu.language import walk
from sim.gpu.lower.kernel import lower_kernel
from sim.gpu.lower.listing import listing
from workloads import libraries
from workloads.gpu import select
from workloads.gpu.gemm import cublas, nvjet, wgmma
from workloads.gpu.gemm.choose import Config, _wgmma_candidates, _wgmma_tiles, candidates, parse
from workloads.gpu.gemm.estimate import PS_PER_S, Figures, Work, _between, _step, estimate_ps, figures, transfer
from workloads.gpu.gemm.gemv import GemvConfig
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.problem import Problem, problem, shared_sectors
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.threadblock import registers
from workloads.gpu.gemm.triton import TUTORIAL, TritonConfig, configs, warp_tile
from workloads.gpu.gemm.wgmma import Rates, WgmmaConfig
from workloads.gpu.gemm.wgmma import work as wgmma_work
from workloads.gpu.select import choose
from workloads.libraries import figure, release
from workloads.ops import Gemm
from workloads.registry import build, schedules

CUBLAS = "cublas@13.1"
WEIGHTS = nvjet.Weights.of(release(CUBLAS).values)
LEAST = figure("cublas@10", "least_piece")
MACHINES: dict[str, GpuSpec] = {name: load_arch(name) for name in ("h100-sxm", "a100-sxm4-80gb", "v100-sxm2", "t4")}
FORMATS = {
    "h100-sxm": ("bf16", "fp16", "tf32", "fp8", "int8", "fp32"),
    "a100-sxm4-80gb": ("bf16", "fp16", "tf32", "int8", "fp32"),
    "v100-sxm2": ("fp16", "fp32", "int8"),
    "t4": ("fp16", "int8", "fp32"),
}


def test_all_schedules_are_registered() -> None:
    assert schedules("gemm", "gpu") == (*("gemv", "marlin", "mma", "simt", "tcgen05", "triton", "wgmma"),)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(name, dtype) for name, dtypes in FORMATS.items() for dtype in dtypes]),
    st.tuples(*(st.integers(1, 700) for _ in range(3))),
    st.sampled_from(["NN", "NT", "TN", "TT"]),
    st.integers(1, 3),
)
def test_whatever_is_chosen_can_be_built(
    machine: tuple[str, str], sizes: tuple[int, int, int], layout: str, batch: int
) -> None:
    spec = MACHINES[machine[0]]
    m, n, k = sizes
    op = Gemm(m=m, n=n, k=k, ta=layout[0], tb=layout[1], batch=batch, dtype=machine[1])
    if machine == ("h100-sxm", "fp8") and not choosable(op, spec):
        return
    choice = choose(op, spec)
    assert choice.config == choice.candidates[0][0]
    times = [time for _, time in choice.candidates]
    assert times == sorted(times)
    for config, _ in choice.candidates[:3]:
        program = build(op, spec, config)
        assert program.schedule == str(config)


def choosable(op: Gemm, spec: GpuSpec) -> bool:
    """fp8 has no other unit than wgmma, which takes aligned rows and at most one operand without contiguous k."""
    p = problem(op)
    return p.a.tma and p.b.tma and (p.a.k_major or p.b.k_major)


def test_the_same_question_has_the_same_answer() -> None:
    op = Gemm(m=1000, n=1000, k=1000, dtype="bf16")
    first, second = (choose(op, load_arch("h100-sxm")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("machine", MACHINES)
def test_large_products_use_the_tensor_cores_with_large_tiles(machine: str) -> None:
    config = choose(Gemm(m=8192, n=8192, k=8192, dtype="fp16"), MACHINES[machine]).config
    assert isinstance(config, WgmmaConfig if machine == "h100-sxm" else MmaConfig)
    assert config.tile_m * config.tile_n >= 128 * 128
    assert config.split == 1


def test_few_outputs_with_a_deep_sum_are_cut_along_k() -> None:
    for machine in MACHINES:
        config = choose(Gemm(m=256, n=256, k=65536, dtype="fp16"), MACHINES[machine]).config
        assert isinstance(config, (WgmmaConfig, MmaConfig))
        assert config.split > 1


@pytest.mark.parametrize(
    ("machine", "dtype", "kind", "of_five"), [("a100-sxm4-80gb", "bf16", "mma", 4), ("t4", "fp32", "simt", 5)]
)
def test_before_stream_k_a_second_kernel_adds_deep_pieces(machine: str, dtype: str, kind: str, of_five: int) -> None:
    """Two pieces from twice the least depth on, none below it; both kernels are in the program. Fp32 is cut in five,
    too."""
    spec = MACHINES[machine]
    for k, most in ((2 * LEAST - 2, 1), (2 * LEAST, 2), (5 * LEAST, of_five)):
        p = problem(Gemm(64, 64, k, dtype=dtype).with_defaults(dtype))
        found = [c for c, _ in candidates(p, spec, figures(spec), (kind,)) if isinstance(c, MmaConfig | SimtConfig)]
        assert max(c.split for c in found) == most
        assert all(c.reduce == (c.split > 1) for c in found)
    assert len(build(p.op, spec, max(found, key=lambda c: c.split)).kernels) == 2


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 2048, 32), (2048, 2560, 1024)])
def test_the_library_takes_the_tile_whose_operands_are_in_first(m: int, n: int, k: int) -> None:
    """256x128 reads three quarters of what two tiles of 128x128 read, which the estimate says would be faster."""
    op, spec = Gemm(m, n, k, tb="T", dtype="bf16"), MACHINES["a100-sxm4-80gb"]
    taken = choose(op, spec, CUBLAS)
    assert [config for config, _ in taken.candidates] == [taken.config]
    assert {taken.config.tile_m, taken.config.tile_n} == {128, 256}
    best, time_ps = choose(op, spec).candidates[0]
    assert best.tile_m * best.tile_n < 128 * 256
    assert time_ps < taken.candidates[0][1]


def test_the_library_cuts_k_into_more_pieces_than_find_room_at_once() -> None:
    """56 tiles of 128x256 leave half of 108 SMs idle; three pieces of each are nearly two waves of a third."""
    op, spec = Gemm(160, 7168, 10240, tb="T", dtype="bf16"), MACHINES["a100-sxm4-80gb"]
    taken, best = choose(op, spec, CUBLAS).config, choose(op, spec, "mma").candidates
    tiles = -(-op.m // taken.tile_m) * -(-op.n // taken.tile_n)
    assert taken.reduce
    assert spec.sm.count < tiles * taken.split <= 2 * spec.sm.count
    assert str(taken) not in {str(config) for config, _ in best}


def counted(op: Gemm, text: str) -> tuple[Problem, MmaConfig, Work, Figures]:
    """What the library's rule reads of one kernel on A100."""
    spec = MACHINES["a100-sxm4-80gb"]
    p, f = problem(op), figures(spec)
    found = {str(c): (c, w) for c, w in candidates(p, spec, f, ("mma",)) if isinstance(c, MmaConfig)}
    return p, *found[text], f


def test_a_last_wave_counts_as_a_whole_one_and_k_as_deep_as_it_is() -> None:
    op, text = Gemm(8192, 8192, 512, tb="T", dtype="bf16"), "mma 128x128x32 warp 64x64 cp.async stages 4"
    p, config, work, f = counted(op, text)

    def loads(ctas: int) -> int:
        return cublas.loads_ps(p, config, work._replace(ctas=ctas), f)

    assert loads(work.resident + 1) == loads(2 * work.resident)
    assert loads(108) < loads(109) == loads(work.resident)
    shallow = counted(replace(op, k=32), text.replace("x32 ", "x64 ").replace("stages 4", "stages 3"))
    half = counted(replace(op, k=64), text.replace("x32 ", "x64 ").replace("stages 4", "stages 3"))
    assert cublas.loads_ps(*shallow) < cublas.loads_ps(*half)


def test_pieces_cost_the_library_what_their_sums_take() -> None:
    text = "mma 64x64x64 warp 32x32 cp.async stages 4 split 2 reduce"
    p, config, work, f = counted(Gemm(256, 256, 4096, tb="T", dtype="bf16"), text)
    more = work._replace(partial_bytes=2 * work.partial_bytes)
    assert cublas.loads_ps(p, config, more, f) > cublas.loads_ps(p, config, work, f)


def test_the_library_has_its_wide_tiles_in_deep_steps_alone() -> None:
    p = problem(Gemm(4096, 4096, 32, tb="T", dtype="bf16"))
    parts = [("128x256x32", False), ("128x256x64", True), ("128x128x32", True)]
    for tile, there in parts:
        config = parse(f"mma {tile}", p, MACHINES["a100-sxm4-80gb"])
        assert isinstance(config, MmaConfig)
        assert cublas.has(p, config, release(CUBLAS).values) == there


@pytest.mark.parametrize("k", [128, 256, 512])
def test_the_library_takes_tiles_below_64_for_one_step_of_k_alone(k: int) -> None:
    """16x16 with 256 B of k moves the fewest bytes to an SM at any depth."""
    taken = choose(Gemm(16, 512, k, tb="T", dtype="bf16"), MACHINES["a100-sxm4-80gb"], CUBLAS).config
    assert isinstance(taken, MmaConfig)
    assert (taken.tile_m < figure(CUBLAS, "least_tile")) == (k == 128)


def test_the_library_cuts_one_tile_into_pieces_of_its_least_depth() -> None:
    """One tile of 64x64 and many idle SMs; other libraries' pieces are deeper."""
    for k in (1024, 2048):
        op = Gemm(64, 64, k, tb="T", dtype="bf16")
        taken = choose(op, MACHINES["a100-sxm4-80gb"], CUBLAS).config
        assert isinstance(taken, MmaConfig)
        assert taken.split == k // figure(CUBLAS, "least_piece")
        other = choose(op, MACHINES["a100-sxm4-80gb"], "mma").config
        assert isinstance(other, MmaConfig)
        assert other.split <= k // LEAST


def test_the_library_has_a_kernel_for_few_rows_that_does_a_step_a_cta() -> None:
    """The grid of 8x10x20 that a trace names for 4 x 2560 x 2560: 80 tiles of 32 columns in twenty pieces of 128."""
    op, spec = Gemm(4, 2560, 2560, tb="T", dtype="bf16"), MACHINES["a100-sxm4-80gb"]
    [(config, time_ps)] = choose(op, spec, CUBLAS).candidates
    assert str(config) == "mma 32x32x128 warp 16x16 cp.async stages 2 split 20 reduce"
    assert time_ps == choose(op, spec, str(config)).candidates[0][1]
    last = choose(replace(op, k=2561 + 7), spec, CUBLAS).config
    assert isinstance(last, MmaConfig)
    assert last.split == 21
    for other in (replace(op, m=5), replace(op, n=2040), replace(op, batch=2), replace(op, k=128)):
        taken = choose(other, spec, CUBLAS).config
        assert isinstance(taken, MmaConfig)
        assert (taken.tile_m, taken.split) != (32, 20)


def test_pieces_of_few_rows_find_room_in_the_workspace() -> None:
    """8.1 MiB, 256 KiB a piece here; the product has 96 steps."""
    op, spec = Gemm(4, 16384, 12288, tb="T", dtype="bf16"), MACHINES["a100-sxm4-80gb"]
    taken = choose(op, spec, CUBLAS).config
    assert isinstance(taken, MmaConfig)
    assert taken.split == 32
    whole = choose(replace(op, n=1 << 20), spec, CUBLAS).config
    assert str(whole) == "mma 32x32x128 warp 16x16 cp.async stages 2"


@pytest.mark.parametrize(
    ("machine", "op"),
    [
        ("v100-sxm2", Gemm(4096, 2048, 64, tb="T", dtype="fp16")),
        ("t4", Gemm(4096, 2048, 64, dtype="fp16")),
        ("a100-sxm4-80gb", Gemm(1001, 1001, 1001, dtype="bf16")),
    ],
)
def test_where_no_rule_is_known_the_library_takes_the_best(machine: str, op: Gemm) -> None:
    assert choose(op, MACHINES[machine], CUBLAS) == choose(op, MACHINES[machine])


@pytest.mark.parametrize(
    ("op", "pieces"),
    [
        (Gemm(7, 32, 3072, tb="T", dtype="bf16"), 2),
        (Gemm(7, 64, 6144, tb="T", dtype="bf16"), 4),
        (Gemm(11, 128, 7168, tb="T", dtype="bf16"), 5),
        (Gemm(17, 768, 2560, tb="T", dtype="bf16"), 1),
        (Gemm(7, 32, 3072, tb="T", dtype="fp8"), 1),
        (Gemm(7, 32, 6144, tb="T", dtype="fp8"), 2),
    ],
)
def test_pieces_of_nvjet_are_deep(op: Gemm, pieces: int) -> None:
    """As many as cuBLAS 13 makes, by its grids (measured_kernels.csv); the fastest kernel has more."""
    spec = MACHINES["h100-sxm"]
    assert (
        max(kernel.split for kernel in nvjet.ranked(problem(op.with_defaults(str(op.dtype))), spec, WEIGHTS)) == pieces
    )
    taken, fastest = choose(op, spec, CUBLAS).config, choose(op, spec).candidates
    assert isinstance(taken, WgmmaConfig)
    assert taken.reduce == (taken.split > 1)
    assert max(config.split for config, _ in fastest if isinstance(config, WgmmaConfig)) > taken.split


def test_sums_of_nvjet_in_fp8_are_in_fp32() -> None:
    """Its kernels add each step's products on the vector pipes, in tiles that leave them registers. The fastest kernel
    leaves the sums to the tensor cores."""
    spec = MACHINES["h100-sxm"]
    for op in (Gemm(480, 9216, 3456, tb="T", dtype="fp8"), Gemm(80, 7696, 17184, tb="T", dtype="fp8")):
        for config, _ in choose(op, spec, CUBLAS).candidates:
            assert isinstance(config, WgmmaConfig)
            assert config.promote
            assert config.accumulators <= wgmma.MOST_PROMOTED
            assert parse(str(config), problem(op.with_defaults("fp8")), spec) == config
        fastest = choose(op, spec).config
        assert isinstance(fastest, WgmmaConfig)
        assert not fastest.promote


def test_one_warpgroup_multiplies_nothing_while_it_adds() -> None:
    """64 additions a thread each step, where no port holds up the operands."""
    ports = ["port.read=400 B/clk", "port.receive=400 B/clk", "tma.max_in_flight=256 KiB"]
    plain, added = (
        simulate("gemm m=64 n=128 k=4096 tb=T dtype=fp8", "h100-sxm", schedule=schedule, l2="warm", set=ports).cycles
        for schedule in ("wgmma 64x128x128 stages 8", "wgmma 64x128x128 stages 8 promote")
    )
    assert added - plain > (4096 // 128 - 1) * 64


@pytest.mark.parametrize(
    ("shape", "clusters"),
    [
        ((8, 64, 1024), {1}),
        ((8, 128, 1024), {2}),
        ((48, 6144, 1024), {4, 8}),
        ((161, 7168, 512), {4}),
        ((2816, 256, 2560), {2}),
        ((4096, 4096, 512), {2}),
    ],
)
def test_clusters_of_nvjet_go_by_the_size_of_the_grid(shape: tuple[int, int, int], clusters: set[int]) -> None:
    """Up to 120 CTAs have clusters of four and eight, more have two, and a single tile is alone."""
    m, n, k = shape
    taken = choose(Gemm(m, n, k, tb="T", dtype="bf16"), MACHINES["h100-sxm"], CUBLAS).config
    assert isinstance(taken, WgmmaConfig)
    assert taken.cluster in clusters


def test_vectors_stream_where_tensor_cores_do_not_take_the_format() -> None:
    spec = MACHINES["a100-sxm4-80gb"]
    for dtype, kind in (("fp32", GemvConfig), ("fp16", MmaConfig)):
        assert isinstance(choose(Gemm(m=1, n=4096, k=4096, tb="T", dtype=dtype), spec).config, kind)
    odd = Gemm(m=1, n=4095, k=4095, dtype="fp8")  # TMA needs rows at multiples of 16 B, mma takes no fp8 there
    assert isinstance(choose(odd, MACHINES["h100-sxm"]).config, GemvConfig)


def test_unaligned_rows_are_loaded_through_registers() -> None:
    config = choose(Gemm(m=1001, n=1001, k=1001, dtype="bf16"), MACHINES["h100-sxm"]).config
    assert isinstance(config, MmaConfig)
    assert config.copy == "ldg"


def test_the_estimate_knows_that_cut_tiles_do_not_share_operands_in_time() -> None:
    """H100: A and B take 84 MB, a partition of the L2 holds 25 MiB; 256 tiles read 48 KiB in each of 64 steps."""
    op = Gemm(1024, 4096, 2048, batch=2).with_defaults("tf32")
    spec = load_arch("h100-sxm")
    config = "mma 128x256x32 warp 64x64 cp.async stages 3"
    whole, cut = (choose(op, spec, config + tail).candidates[0][1] for tail in ("", " stream-k"))
    operand_bytes = 2 * 2048 * (1024 + 4096) * 4
    read = 256 * 64 * 48 * 2**10 * (1 - 25 * 2**20 / operand_bytes)
    assert cut > whole
    assert cut > read / 3.352e12 * 1e12


def test_a_second_kernel_adds_pieces_on_hopper() -> None:
    """As traces of cuBLAS name it, and nothing by stream-K; it costs a launch, so that shallow sums stay whole."""
    spec = MACHINES["h100-sxm"]
    deep = choose(Gemm(64, 64, 16384, dtype="bf16", tb="T"), spec).config
    assert isinstance(deep, WgmmaConfig)
    assert deep.split > 1
    assert deep.reduce
    assert len(build(Gemm(64, 64, 16384, dtype="bf16", tb="T"), spec, deep).kernels) == 2
    shallow = choose(Gemm(64, 64, 512, dtype="bf16", tb="T"), spec)
    assert not any(getattr(c, "stream_k", False) for c, _ in shallow.candidates)
    assert shallow.config.split == 1  # type: ignore[union-attr]


def test_kernels_for_tf32_are_of_a_family_of_their_own() -> None:
    """sm90_xmma: tiles of whole 64, clusters along n that share rows of A, pieces of k only where these are deep; B of
    row-major times row-major goes through registers."""
    spec = MACHINES["h100-sxm"]
    for tb, least in (("N", {(64, 128)}), ("T", {(64, 64), (128, 64), (64, 128)})):
        p = problem(Gemm(512, 1024, 512, tb=tb).with_defaults("tf32"))
        found = [c for c, _ in _wgmma_candidates(p, spec, figures(spec)) if isinstance(c, WgmmaConfig)]
        assert {c.cluster_m for c in found} == {1, 2, 4, 8}
        assert {c.cluster_n for c in found} == {1}
        assert {c.split for c in found} == {1}
        assert {(c.tile_m, c.tile_n) for c in found if c.tile_m * c.tile_n <= 64 * 128} == least
        assert all(c.swap and c.persistent and c.pingpong != (c.tile_m * c.tile_n > 64 * 256) for c in found)
    deep = problem(Gemm(512, 256, 16384).with_defaults("tf32"))
    assert max(c.split for c, _ in _wgmma_candidates(deep, spec, figures(spec)) if isinstance(c, WgmmaConfig)) == 4


def test_where_b_alone_has_k_contiguous_the_operands_change_places() -> None:
    spec = MACHINES["h100-sxm"]
    p = problem(Gemm(512, 1024, 512, ta="T", tb="T").with_defaults("tf32"))
    assert {c.swap for c, _ in _wgmma_candidates(p, spec, figures(spec)) if isinstance(c, WgmmaConfig)} == {False}
    neither = problem(Gemm(512, 1024, 512, ta="T").with_defaults("tf32"))
    assert not list(_wgmma_candidates(neither, spec, figures(spec)))


@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ((256, 2048, 256, 1), "mma 64x64x32"),
        ((1024, 1024, 1024, 1), "wgmma 64x128x32 stages"),
        ((512, 1024, 1024, 1), "wgmma 64x128x32 cluster 4x1"),
        ((2048, 2048, 512, 1), "wgmma 64x128x32 cluster 8x1"),
        ((4096, 4096, 1024, 1), "wgmma 128x128x32 cluster 2x1"),
        ((2048, 4096, 4096, 1), "wgmma 128x256x32"),
        ((512, 2048, 1024, 4), "wgmma 64x256x32 cluster 8x1"),
        ((1024, 4096, 512, 4), "wgmma 64x256x32 cluster 2x1"),
        ((1024, 2048, 2048, 4), "wgmma 64x256x32 cluster 4x1"),
        ((512, 512, 1024, 2), "wgmma 64x128x32 cluster 8x1"),
    ],
)
def test_the_library_takes_for_tf32_what_names_say(shape: tuple[int, int, int, int], taken: str) -> None:
    m, n, k, batch = shape
    config = choose(Gemm(m, n, k, batch=batch, dtype="tf32"), MACHINES["h100-sxm"], "cublas-2025").config
    assert str(config).startswith(taken)


def test_few_rows_in_tf32_are_cut_for_a_second_kernel() -> None:
    """By mma.sync: 6 x 1920 x 448 in four pieces, as names say. No batch is."""
    spec = MACHINES["h100-sxm"]
    config = choose(Gemm(6, 1920, 448, dtype="tf32"), spec, "cublas-2025").config
    assert isinstance(config, MmaConfig)
    assert (config.split, config.reduce) == (4, True)
    batch = choose(Gemm(6, 1920, 448, batch=2, dtype="tf32"), spec, "cublas-2025").config
    assert isinstance(batch, WgmmaConfig | MmaConfig)
    assert batch.split == 1


def test_of_tiles_that_cut_a_problem_alike_only_the_narrowest_is_tried() -> None:
    """257 columns: 1 x 264, 2 x 136, 3 x 88, ...; 192-row tiles are shared by columns, in steps of 16."""
    tiles = list(_wgmma_tiles(16384, 257))
    assert {n for m, n, pingpong, _ in tiles if m == 128 and n > 64 and not pingpong} == {72, 88, 136, 272}
    assert {n for m, n, _, columns in tiles if m == 192 and columns} == {64, 80, 96, 144}


@pytest.mark.parametrize(("machine", "m", "n", "k"), [("h100-sxm", 300, 304, 4096), ("a100-sxm4-80gb", 24, 400, 16384)])
def test_every_tile_fits_the_engine(machine: str, m: int, n: int, k: int) -> None:
    """Each tile whole, cut and in stream-K: loops, scoreboards and register tiles of the program have their limits."""
    spec, op = MACHINES[machine], Gemm(m, n, k, dtype="fp16").with_defaults("fp16")
    p = problem(op)
    tiles: dict[tuple[object, ...], Config] = {}
    for config, _ in candidates(p, spec, figures(spec), ("wgmma", "mma")):
        assert isinstance(config, WgmmaConfig | MmaConfig)
        tiles.setdefault((type(config), config.tile_m, config.tile_n, config.split > 1, config.stream_k), config)
    for config in tiles.values():
        program = build(op, spec, config)
        lower_kernel(program.kernels[0], program.addresses(), spec)


def test_libraries_have_no_tiles_that_no_kernel_of_theirs_has() -> None:
    """A100: of tiles under 64 rows only those of wmma kernels. Hopper multiplies what TMA can fetch by wgmma."""
    for m in (1, 16, 48):
        p = problem(Gemm(m, 4096, 4096, dtype="bf16").with_defaults("bf16"))
        spec = MACHINES["a100-sxm4-80gb"]
        tiles = {
            (c.tile_m, c.tile_n) for c, _ in candidates(p, spec, figures(spec), ("mma",)) if isinstance(c, MmaConfig)
        }
        assert {tile for tile in tiles if min(tile) < 64} == {(16, 16), (32, 32)}
        spec = MACHINES["h100-sxm"]
        assert all(isinstance(c, WgmmaConfig) for c, _ in candidates(p, spec, figures(spec), ("wgmma", "mma")))
    odd = problem(Gemm(64, 4095, 4095, dtype="bf16").with_defaults("bf16"))  # rows that TMA cannot fetch
    assert {type(c) for c, _ in candidates(odd, spec, figures(spec), ("wgmma", "mma"))} == {MmaConfig}


def test_no_warpgroup_is_without_a_tile() -> None:
    """1024 cubed is 128 tiles of 64x128 on 132 SMs: in a ping-pong kernel the second consumer would do nothing."""
    spec = MACHINES["h100-sxm"]
    p = problem(Gemm(1024, 1024, 1024).with_defaults("bf16"))
    found = [(c, w) for c, w in _wgmma_candidates(p, spec, figures(spec)) if isinstance(c, WgmmaConfig) and c.pingpong]
    assert found
    assert all(w.tiles > w.resident for _, w in found)


def test_a_ragged_side_does_not_cost_a_whole_tile() -> None:
    """257 rows take 2 tiles of 136, not 3 of 128: 6 % more than 256, where whole tiles are 50 % more."""
    times = [
        choose(Gemm(m, 16384, 16384, tb="T", dtype="bf16"), MACHINES["h100-sxm"]).candidates[0][1] for m in (256, 257)
    ]
    assert times[1] < 1.15 * times[0]


def test_the_estimate_counts_all_users_of_shared_memory() -> None:
    """128x256 and 256x128 move the same bytes, but 256 rows mean twice the loads to registers: in cycles of a k step of
    128 B, 512 of wgmma's reads, 128 or 256 of the loads. What the TMA writes takes none."""
    p = problem(Gemm(4096, 4096, 512).with_defaults("tf32"))
    spec = MACHINES["h100-sxm"]
    rates = Rates.of(spec, "tf32")
    assert rates is not None
    shared = [
        wgmma_work(p, figures(spec), WgmmaConfig(m, n, 32, stages=3, swap=True), rates).shared
        for m, n in ((128, 256), (256, 128))
    ]
    assert shared == [512 + 128, 512 + 256]


def test_the_estimate_of_multicast_parts_is_near() -> None:
    """A column of A is contiguous: four CTAs fetch parts of 16 rows, 32 B of a line each. Shared memory has 80 cycles
    of wgmma's reads a step either way."""
    spec = MACHINES["h100-sxm"]
    rates = Rates.of(spec, "fp16")
    assert rates is not None
    f = figures(spec)
    p = problem(Gemm(768, 128, 768, ta="T", dtype="fp16").with_defaults("fp16"))
    alone, four = WgmmaConfig(64, 16, 64, stages=12), WgmmaConfig(64, 16, 64, cluster_n=4, stages=12)
    assert [wgmma_work(p, f, c, rates).shared for c in (alone, four)] == [80, 80]
    simulated = [simulate(str(p.op), "h200-sxm", schedule=str(c)).record.time_ps for c in (alone, four)]
    estimates = [choose(p.op, load_arch("h200-sxm"), str(c)).candidates[0][1] for c in (alone, four)]
    # The estimate has the cluster's parts of lines cost nothing beside the port, which here is 8 % fast.
    assert estimates[1] / estimates[0] == pytest.approx(simulated[1] / simulated[0], abs=0.08)


def test_tiles_of_sm_80_lie_as_their_names_say() -> None:
    """Names have the contiguous dimension first, which is n: 160x128 is 128 rows by 160 columns. A profile of A800 has
    two CTAs of it an SM (254 registers, 72 KiB), and 196 registers for 96x128."""
    spec = MACHINES["a100-sxm4-80gb"]
    p = problem(Gemm(2048, 2048, 2048).with_defaults("fp16"))
    found = dict(candidates(p, spec, figures(spec), ("mma",)))
    sides = {(c.tile_m, c.tile_n) for c in found if isinstance(c, MmaConfig)}
    assert {(128, 96), (128, 160), (128, 192), (64, 96), (96, 64)} < sides
    assert not {(96, 128), (160, 128), (192, 128)} & sides
    wide, narrow = (parse(text, p, spec) for text in ("mma 128x160x32 warp 64x80 stages 4", "mma 128x96x32 warp 64x48"))
    assert found[wide].resident == 2 * spec.sm.count
    for config, least, most in ((wide, 254, 255), (narrow, 190, 196)):
        assert isinstance(config, MmaConfig)
        assert least <= registers(p, config, config.inner(p, spec)) <= most


def test_the_estimate_lets_the_second_cta_of_an_sm_hide_pauses() -> None:
    """An SM of A100 holds two CTAs of 128x128 and one of 192x128; nine and six tiles an SM have equal multiplies. The
    first is 5 % faster in the simulation, since one CTA multiplies while the other stores and starts anew. Reads, of
    which the smaller tile has more, do not count here."""
    spec = load_arch("a100-sxm4-80gb", ["l2.request=0 cycles"])
    op = Gemm(2304, 2304, 1024, dtype="fp16")
    pair = ("mma 128x128x32 warp 64x64 cp.async stages 4", "mma 192x128x64 warp 48x64 cp.async stages 3")
    simulated = [simulate(str(op), spec, schedule=c, l2="warm", clock="1.41 GHz").record.time_ps for c in pair]
    estimates = [choose(op, spec, c).candidates[0][1] for c in pair]
    assert simulated[0] < simulated[1]
    assert estimates[1] / estimates[0] == pytest.approx(simulated[1] / simulated[0], abs=0.03)


def test_the_estimate_counts_pauses_between_rounds_alone() -> None:
    """Two whole rounds have one pause, of one CTA an SM whole; the second CTA's multiplies cover it, but not that the
    results of both leave through one port."""
    f = figures(MACHINES["a100-sxm4-80gb"])
    p = problem(Gemm(128 * 12, 128 * 18, 4096).with_defaults("fp16"))
    spec = MACHINES["a100-sxm4-80gb"]
    work = parse("mma 128x128x32 warp 64x64", p, spec).work(p, spec, f)
    pause = work.latency + work.epilogue + transfer(work.store_bytes, f.write_rate)
    assert _between(work, f, work.steps, 1) == pause
    assert _between(work, f, work.steps, 2) == 0
    store = transfer(work.store_bytes, f.write_rate)
    assert _between(work, f, 1, 2) == max(pause - work.busy, 2 * (store - work.busy))
    one, two = (work._replace(ctas=rounds * work.resident, tiles=rounds * work.resident) for rounds in (1, 2))
    alone = [w._replace(resident=f.sms, ctas=w.ctas // 2, tiles=w.tiles // 2) for w in (one, two)]
    second = (estimate_ps(alone[1], f) - estimate_ps(alone[0], f)) * f.clock_hz // PS_PER_S
    assert second == pytest.approx(work.steps * _step(alone[0], f, f.sms, 1) + pause, rel=0.01)


def test_the_estimate_has_owners_alone_fetch_the_parts_of_a_cut_product() -> None:
    """60 tiles in 8 parts on 132 SMs: 4 workers an SM store theirs, and one in eight fetches those of seven others."""
    spec = MACHINES["h100-sxm"]
    f = figures(spec)
    op = Gemm(19, 3799, 1537, ta="T", tb="T").with_defaults("fp16")
    name = "mma 64x64x32 warp 32x32 ldg stages 2 split 8"
    cut = next(work for config, work in candidates(problem(op), spec, f, ("mma",)) if str(config) == name)
    assert cut.ctas == 8 * 60
    more = cut._replace(partial_bytes=2 * cut.partial_bytes)
    part = cut.partial_bytes
    cycles = 4 * part / spec.port.write_bytes_per_cycle + 7 * part / spec.port.read_bytes_per_cycle
    found = (estimate_ps(more, f) - estimate_ps(cut, f)) * spec.clock.tensor_hz / 1e12
    assert found == pytest.approx(cycles, rel=0.05)


def test_a_k_step_through_registers_is_written_out_three_times() -> None:
    """Two more copies of a step's 46 instructions, and three times the LDS: 16 words of a 16x32 fragment of 4 B."""
    spec = MACHINES["h100-sxm"]
    config = WgmmaConfig(64, 64, 32, stages=4, swap=True)
    sizes = [build(Gemm(64, 64, 64, tb=tb, dtype="tf32"), spec, config).kernels[0].code_bytes for tb in ("N", "T")]
    # With tb=T, k is contiguous in both operands.
    assert sizes[0] - sizes[1] == (2 * 46 + 3 * 16) * 16


def test_the_tutorials_kernel_has_its_tiles_and_warps() -> None:
    """Warp tiles as Triton prints them (warpsPerCTA) for the tutorial's configurations; only those are tried."""
    warps = {(128, 256, 8): (64, 64), (64, 256, 4): (64, 64), (128, 128, 4): (64, 64), (128, 64, 4): (32, 64),
             (64, 128, 4): (32, 64), (128, 32, 4): (32, 32), (64, 32, 2): (32, 32), (32, 64, 2): (32, 32)}  # fmt: skip
    assert all(warp_tile(*tile) == expected for tile, expected in warps.items())
    assert {(c.tile_m, c.tile_n, c.warps) for c in configs()} == set(warps)
    op = Gemm(m=2048, n=2048, k=2048, dtype="fp16")
    tried = [config for config, _ in choose(op, MACHINES["a100-sxm4-80gb"], "triton").candidates]
    assert set(tried) == set(configs())
    assert all(not isinstance(c, TritonConfig) for c, _ in choose(op, MACHINES["a100-sxm4-80gb"]).candidates)


def test_a_faster_machine_takes_less_time() -> None:
    op = Gemm(m=4096, n=4096, k=4096, dtype="fp16")
    base = choose(op, MACHINES["h100-sxm"]).candidates[0][1]
    fewer = choose(op, load_arch("h100-sxm", {"sm.count": 64})).candidates[0][1]
    assert fewer > 1.5 * base
    slower = choose(Gemm(m=4096, n=64, k=8192, dtype="fp16"), load_arch("h100-sxm", {"dram.bandwidth": "0.5 TB/s"}))
    usual = choose(Gemm(m=4096, n=64, k=8192, dtype="fp16"), MACHINES["h100-sxm"])
    assert slower.candidates[0][1] > 2 * usual.candidates[0][1]


CONFIGS: list[tuple[str, Config]] = [
    ("wgmma 128x256x64 cluster 2x1 stages 4", WgmmaConfig(128, 256, 64, 2, 1, 4)),
    ("wgmma 64x256x64 stages 4 pingpong swap", WgmmaConfig(64, 256, 64, stages=4, pingpong=True, swap=True)),
    ("wgmma 192x192x64 stages 4 columns", WgmmaConfig(192, 192, 64, stages=4, columns=True)),
    ("wgmma 64x256x64 stages 4 group 4", WgmmaConfig(64, 256, 64, stages=4, group=4)),
    ("wgmma 128x128x64 stages 4 one-tile split 2", WgmmaConfig(128, 128, 64, stages=4, persistent=False, split=2)),
    ("wgmma 128x256x64 stages 4 cp.async", WgmmaConfig(128, 256, 64, stages=4, tma=False)),
    ("wgmma 128x256x64 stages 4 unspecialized", WgmmaConfig(128, 256, 64, stages=4, specialized=False)),
    (
        "wgmma 128x256x64 stages 4 cp.async unspecialized",
        WgmmaConfig(128, 256, 64, stages=4, tma=False, specialized=False),
    ),
    ("mma 128x128x32 warp 64x64 cp.async stages 4", MmaConfig(128, 128, 32, 64, 64, 4, "cp.async")),
    ("mma 128x128x32 warp 64x64 ldg stages 2 stream-k", MmaConfig(128, 128, 32, 64, 64, 2, "ldg", stream_k=True)),
    ("simt 64x64x8 warp 32x32 ldg stages 2 split 4", SimtConfig(64, 64, 8, 32, 32, split=4)),
    ("simt 64x64x8 warp 32x32 ldg stages 2 split 4 reduce", SimtConfig(64, 64, 8, 32, 32, split=4, reduce=True)),
    ("gemv warps 4 rows 2 unroll 8", GemvConfig(4, 2, 8)),
    ("triton 128x64x32 warp 32x64 cp.async stages 4", TritonConfig(128, 64, 32, 32, 64, 4, "cp.async")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "config"), CONFIGS)
def test_configurations_are_printed_and_read(text: str, config: Config) -> None:
    assert str(config) == text
    p = problem(Gemm(m=512, n=512, k=512, dtype="fp16"))
    assert parse(text, p, MACHINES["h100-sxm"]) == config


MECHANISMS = {
    "tma": ("cp_async", "tma_load"),
    "wgmma": ("mma", "wgmma"),
    "warp_specialization": ("tma_load", "setmaxnreg"),
    "pingpong": ("wgmma", ""),
    "multicast": ("tma_load", "cluster_sync"),
    "tma warp_specialization": ("cp_async", "mbarrier_wait"),
    "warp_specialization multicast": ("tma_load", "cluster_sync"),
    "tma wgmma": ("mma", "wgmma"),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_mechanism_left_out_gives_another_program(mechanism: str) -> None:
    spec = MACHINES["h100-sxm"]
    op = Gemm(m=512, n=512, k=256, dtype="bf16")
    schedule = "wgmma 64x128x64 cluster 2x1 stages 4 pingpong"
    with_it = build(op, spec, select.choose(op, spec, schedule).config)
    program = build(op, spec, select.choose(op, spec, schedule, mechanism.split()).config)
    assert listing(program, spec) != listing(with_it, spec)
    used, gone = MECHANISMS[mechanism]
    opcodes = {op.opcode for role in program.kernels[0].roles for op in walk(role.body)}
    assert used in opcodes
    assert gone not in opcodes


@pytest.mark.parametrize("names", list(itertools.permutations(("tma", "wgmma", "multicast"))))
def test_several_mechanisms_are_left_out_in_any_order(names: tuple[str, ...]) -> None:
    spec, op = MACHINES["h100-sxm"], Gemm(m=512, n=512, k=256, dtype="tf32")
    schedule = "wgmma 128x128x32 cluster 2x1 stages 3 swap"  # copies by cp.async cannot go through registers
    with pytest.raises(InputError, match=r"leave out cp\.async"):
        select.choose(op, spec, schedule, ["tma"])
    assert select.choose(op, spec, schedule, names).config.schedule == "mma"


def test_mechanisms_that_gemm_does_not_have_are_named() -> None:
    op = Gemm(m=512, n=512, k=256, dtype="bf16")
    with pytest.raises(InputError, match="without overlap: GEMM has no such program"):
        select.choose(op, MACHINES["h100-sxm"], "auto", ["overlap"])


def test_what_a_configuration_leaves_out_is_filled_in() -> None:
    op = Gemm(m=512, n=512, k=512, dtype="bf16")
    config = choose(op, MACHINES["h100-sxm"], "wgmma 128x256").config
    assert config == WgmmaConfig(128, 256, 64, stages=4)


WRONG: list[tuple[str, Gemm, str, str]] = [
    ("t4", Gemm(m=64, n=64, k=64, dtype="bf16"), "auto", "dtype=bf16"),
    ("v100-sxm2", Gemm(m=64, n=64, k=64, dtype="tf32"), "mma", "tf32"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="fp16"), "triton", "asynchronous tensor unit of h100-sxm"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="fp16"), "wgmma 64x64 cluster 2x1 cp.async", "its own CTA alone"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="fp16"), "wgmma 64x64 promote", "promote is for fp8 without"),
    ("h100-sxm", Gemm(m=64, n=64, k=128, tb="T", dtype="fp8"), "wgmma 64x192 promote", "nearest: tile n = 176"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="tf32"), "wgmma 64x24 swap cp.async", "reads from shared memory"),
    (
        "h100-sxm",
        Gemm(m=64, n=64, k=64, dtype="fp16"),
        "wgmma 64x64 stages 2 cp.async unspecialized",
        "warps that load need 3 stages",
    ),
    ("v100-sxm2", Gemm(m=64, n=64, k=64, dtype="fp16"), "triton", "no cp.async"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, ta="T", dtype="tf32"), "wgmma", "needs k contiguous in B"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="fp16"), "gemv", "needs m = 1 or n = 1"),
    ("t4", Gemm(m=64, n=1, k=64, dtype="tf32"), "auto", "dtype=tf32: t4 multiplies fp32, fp16, int8"),
    ("a100-sxm4-80gb", Gemm(m=1, n=64, k=64, dtype="fp8"), "gemv", "dtype=fp8"),
    ("v100-sxm2", Gemm(m=1, n=64, k=64, dtype="bf16"), "gemv warps 4", "does not multiply bf16"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp8"), "triton", "multiplies"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "triton 64x32x32 warp 32x32 split 2", "does not cut k"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "mma 64x64x32 reduce", "nearest: split 2 reduce"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "triton 64x32x32 warp 32x32 ldg", "not by ldg"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "wgmma", "schedule=wgmma: a100-sxm4-80gb"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "wgmma 128x128x64 stages 3", "no wgmma"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgma", "one of auto, wgmma, mma, cublas"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 128x256x64 stages 9", "nearest: stages = 4"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 100x256x64 stages 4", "nearest: 128"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 256x256x64 stages 2", "accumulators"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 128x100x64 stages 2", "multiple of 8"),
    ("h100-sxm", Gemm(m=64, n=65, k=64, dtype="bf16"), "wgmma 64x64x64 stages 2", "TMA needs 16 B"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="tf32"), "wgmma 64x64x32 stages 2", "nearest: swap"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 64x64x64 turbo", "turbo"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="bf16"), "wgmma 64x64x64 stages many", "needs a number"),
    ("h100-sxm", Gemm(m=64, n=64, k=65, dtype="fp8"), "auto", "TMA needs 16 B"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, tb="T", dtype="fp8"), "vllm", "scale=block"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, tb="T", dtype="fp8", scale="block"), "auto", "needs wgmma"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, dtype="fp8", scale="block"), "auto", "nearest: tb=T"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, tb="T", dtype="fp8", scale="block"), "wgmma 64x152x128", "64x128x128"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, tb="T", dtype="fp8", scale="block"), "wgmma 64x64 pingpong", "leave them out"),
    (
        "h100-sxm",
        Gemm(m=64, n=64, k=64, tb="T", dtype="fp8", scale="block"),
        "wgmma 256x128",
        "sums and as many products",
    ),
    ("h100-sxm", Gemm(m=64, n=64, k=64, tb="T", dtype="fp8"), "wgmma 64x64 flat", "leave out flat"),
    ("h100-sxm", Gemm(m=1, n=64, k=64, tb="T", dtype="fp8", scale="block"), "gemv warps 4", "nearest: wgmma"),
    ("h100-sxm", Gemm(m=64, n=64, k=64, ta="T", dtype="fp8"), "auto", "needs k contiguous in"),
    ("t4", Gemm(m=64, n=64, k=64, dtype="fp16"), "mma 64x64x32 warp 32x32 cp.async stages 3", "no cp.async"),
    ("t4", Gemm(m=64, n=64, k=64, dtype="fp16"), "mma 64x64x32 warp 48x32", "nearest"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "mma 128x256x64 warp 64x64 stages 9", "nearest: stages 3"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "mma 256x256x32 warp 128x128 stages 2", "registers"),
    ("a100-sxm4-80gb", Gemm(m=64, n=64, k=64, dtype="fp16"), "gemv warps 4", "m = 1 or n = 1"),
]


@pytest.mark.parametrize(("machine", "op", "schedule", "part"), WRONG)
def test_errors_say_what_is_wrong(machine: str, op: Gemm, schedule: str, part: str) -> None:
    with pytest.raises(InputError) as error:
        choose(op, MACHINES[machine], schedule)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_machine_smaller_than_a_cluster_has_a_kernel() -> None:
    machine = load_arch("h100-sxm", {"sm.count": 1, "gpc.count": 1})
    config = choose(Gemm(m=256, n=256, k=256, dtype="bf16"), machine).config
    assert getattr(config, "cluster", 1) == 1


def test_blocks_of_k_are_promoted_by_the_kernels_that_serving_libraries_have() -> None:
    """Every step of 128 costs vLLM's kernel the same, whatever m is; DeepGEMM's narrower tiles use more of the chip."""
    op = Gemm(m=24, n=1280, k=5120, tb="T", dtype="fp8", scale="block")
    vllm, deepgemm, auto = (choose(op, MACHINES["h100-sxm"], name) for name in ("vllm", "deepgemm", "auto"))
    assert str(vllm.config).startswith("wgmma 128x128x128 cluster 1x2")
    assert len(vllm.candidates) == 1
    assert deepgemm.candidates[0][1] < vllm.candidates[0][1]
    assert auto.config == deepgemm.config


@pytest.mark.parametrize(
    ("m", "n", "schedule", "tile"),
    [
        (64, 7168, "deepgemm", "wgmma 64x56x128 stages 6 flat"),  # 128 of 132 SMs, in two blocks of columns
        (64, 32768, "deepgemm", "wgmma 64x128x128 stages 8 flat"),
        (4096, 2112, "deepgemm-2025-02", "wgmma 128x112x128 stages 6 flat"),
        (4096, 7168, "deepgemm-2025-02", "wgmma 128x128x128 cluster 1x2 stages 5 flat"),
        (4096, 7168, "deepgemm", "wgmma 128x160x128 cluster 2x1 stages 5 flat"),  # 11 waves for 14
    ],
)
def test_deepgemm_takes_the_width_with_the_fewest_waves(m: int, n: int, schedule: str, tile: str) -> None:
    op = Gemm(m=m, n=n, k=2048, tb="T", dtype="fp8", scale="block")
    assert [str(config) for config, _ in choose(op, load_arch("h800-sxm"), schedule).candidates] == [tile]


def test_scales_belong_to_fp8() -> None:
    with pytest.raises(InputError, match="nearest: dtype=fp8"):
        Gemm(m=8, n=8, k=8, dtype="bf16", scale="block")
    with pytest.raises(InputError, match="nearest: beta=0"):
        Gemm(m=8, n=8, k=8, dtype="fp8", scale="block", beta="1")


def test_fp64_runs_on_tensor_cores_at_their_rate() -> None:
    """19.5 TFLOPS on A100, 67 on H100 (at boost, beyond its tensor peak's clock); boards for export have 1."""
    for name, tflops in (("a100-sxm4-80gb", 19.5), ("h100-sxm", 67), ("h20", 1), ("h800-sxm", 1)):
        spec = load_arch(name)
        assert spec.peak_flops("fp64") == pytest.approx(tflops * 1e12, rel=0.08)
        found = choose(Gemm(m=512, n=512, k=512, dtype="fp64"), spec).candidates
        assert {config.schedule for config, _ in found} == {"mma"}
        assert all(not getattr(config, "stream_k", False) and getattr(config, "split", 1) == 1 for config, _ in found)
    with pytest.raises(InputError, match="gemm dtype=fp64: v100-sxm2 multiplies fp32, fp16"):
        choose(Gemm(m=64, n=64, k=64, dtype="fp64"), load_arch("v100-sxm2"))
    with pytest.raises(InputError, match="nothing adds sums of fp64"):
        choose(Gemm(m=64, n=64, k=64, dtype="fp64"), load_arch("h100-sxm"), "mma 64x64x16 warp 32x32 split 2")


def test_triton_multiplies_8_bits_by_wgmma_on_hopper() -> None:
    spec = load_arch("h100-sxm")
    found = choose(Gemm(m=1024, n=1024, k=1024, tb="T", dtype="fp8"), spec, "triton").candidates
    assert {(c.tile_m, c.tile_n) for c, _ in found} == {(m, n) for m, n, _ in libraries.rows(TUTORIAL, "hopper_tiles")}
    assert all(isinstance(c, WgmmaConfig) and c.multistage and not c.persistent for c, _ in found)
    with pytest.raises(InputError, match="wgmma fp8 needs k contiguous in B"):
        choose(Gemm(m=1024, n=1024, k=1024, dtype="fp8"), spec, "triton")


def test_triton_multiplies_fp32_by_multiply_adds() -> None:
    op = Gemm(m=300, n=300, k=300, dtype="fp32")
    found = choose(op, load_arch("a100-pcie-80gb"), "triton").candidates
    assert {config.schedule for config, _ in found} == {"simt"}
    assert all(isinstance(config, SimtConfig) and config.split == 1 for config, _ in found)


def test_fp32_takes_the_tiles_that_libraries_name() -> None:
    """The contiguous dimension comes first in a name: 128x64 and 64x32 are 64x128 and 32x64 here; int8 has no names."""
    spec = MACHINES["t4"]
    tiles = {}
    for dtype in ("fp32", "int8"):
        p = problem(Gemm(1024, 1024, 512, dtype=dtype).with_defaults(dtype))
        found = [config for config, _ in candidates(p, spec, figures(spec), ("simt",))]
        tiles[dtype] = {(c.tile_m, c.tile_n) for c in found if isinstance(c, SimtConfig)}
    named = {(128, 128), (64, 128), (64, 64), (32, 128), (128, 32), (32, 64)}
    assert tiles["fp32"] == named
    assert tiles["int8"] == named | {(128, 64), (64, 32), (32, 32)}


@pytest.mark.parametrize("n", [1017, 1016, 1000, 1024])
@pytest.mark.parametrize("columns", [16, 32, 48, 128])
def test_sectors_that_two_stores_share(n: int, columns: int) -> None:
    p, width, rows = problem(Gemm(m=256, n=n, k=16, dtype="fp16")), 2, 256
    stores: dict[int, int] = {}
    for row, first in itertools.product(range(rows), range(0, n, columns)):
        begin, end = (row * n + first) * width, (row * n + min(n, first + columns)) * width
        for sector in range(begin // 32, -(-end // 32)):
            stores[sector] = stores.get(sector, 0) + 1
    shared = sum(count > 1 for count in stores.values())
    assert shared_sectors(p, "fp16", columns) == pytest.approx(shared, rel=0.05)


@pytest.mark.parametrize(
    "schedule", ["mma 128x96x32 warp 64x48 cp.async stages 4", "mma 128x128x64 warp 64x64 cp.async stages 3"]
)
def test_the_estimate_counts_the_sectors_that_are_fetched_to_be_written(schedule: str) -> None:
    op, spec = Gemm(m=512, n=1017, k=16, tb="T", dtype="fp16"), load_arch("l40s")
    ((config, _),) = choose(op, spec, schedule).candidates
    (kernel,) = simulate(op, spec, schedule=schedule).record.kernels
    fetched = kernel.counters["dram_read_bytes"] - 2 * 16 * (512 + 1017)
    work = config.work(problem(op), spec, figures(spec))
    assert 32 * work.shared_sectors == pytest.approx(fetched, rel=0.15)
