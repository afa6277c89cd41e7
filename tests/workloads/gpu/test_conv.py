"""Convolutions on GPUs: numbers against NumPy, what is moved and multiplied, what is refused."""

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.run import simulate_row
from workloads.gpu.conv import winograd
from workloads.gpu.conv.depthwise import DepthwiseConfig
from workloads.gpu.conv.geometry import Geometry
from workloads.gpu.conv.implicit import Config, ConvSimtConfig, ImplicitConfig, choose, of_library
from workloads.gpu.conv.winograd import WinogradConfig
from workloads.ops import Conv2d
from workloads.parse import parse
from workloads.silicon import Row, operator_of

CASES = [
    ("a100-sxm4-80gb", "bf16", "n=2 c=16 h=9 w=13 k=24 r=3 s=3 pad=1"),
    ("a100-sxm4-80gb", "fp32", "n=3 c=24 h=8 w=8 k=33 r=1 s=1 stride=2"),
    ("v100-sxm2", "fp16", "n=1 c=3 h=13 w=13 k=40 r=7 s=7 stride=2 pad=3"),
    ("t4", "fp16", "n=2 c=8 h=10 w=18 k=48 r=5 s=2 stride_h=3 stride_w=1 pad_h=2 pad_w=0"),
    ("h100-sxm", "fp16", "n=1 c=40 h=7 w=7 k=32 r=3 s=3 pad=1"),
    ("a100-sxm4-80gb", "fp16", "n=2 c=16 h=13 w=11 k=24 r=3 s=3 pad=2 dilation=2"),
    ("t4", "fp32", "n=1 c=12 h=14 w=15 k=9 r=3 s=2 stride=2 pad=3 dilation=3 groups=3"),
    ("a100-sxm4-80gb", "bf16", "n=2 c=32 h=7 w=9 k=64 r=3 s=3 pad=1 groups=4"),
]


@pytest.mark.parametrize(("machine", "dtype", "shape"), CASES)
def test_numbers_are_those_of_numpy(machine: str, dtype: str, shape: str) -> None:
    report = simulate(f"conv2d {shape} dtype={dtype}", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    assert report.record.check.max_rel_error is not None


def test_cut_sums_are_those_of_numpy() -> None:
    text = "conv2d n=1 c=64 h=6 w=6 k=32 r=3 s=3 dtype=fp16"
    op = parse(text).with_defaults("fp16")
    assert isinstance(op, Conv2d)
    cut = next(str(c) for c, _ in choose(op, load_arch("v100-sxm2")).candidates if c.split > 1)
    report = simulate(text, "v100-sxm2", schedule=cut, check=True)
    assert report.record.schedule == cut
    assert report.record.check is not None
    assert report.record.check.passed


def test_multiplies_are_those_of_the_tiling() -> None:
    text = "conv2d n=2 c=16 h=16 w=16 k=64 r=3 s=3 pad=1 dtype=fp16"
    report = simulate(text, "a100-sxm4-80gb")
    # 48 values under a row of the filter take two steps of 32, or one of 64.
    assert report.record.kernels[0].counters["macs"] == (2 * 16 * 16) * 64 * (3 * 64)


@pytest.mark.parametrize(("columns", "width"), [(8, 7), (4, 28), (16, 17)])
def test_geometry_covers_every_position_once(columns: int, width: int) -> None:
    op = Conv2d(n=2, c=3, h=9, w=width + 2, k=5, r=3, s=3, dtype="fp16").with_defaults("fp16")
    g = Geometry(op, columns, 32)
    assert (g.blocks - 1) * columns < width <= g.blocks * columns
    assert g.gemm.m == 2 * 7 * g.blocks * columns
    assert g.gemm.k == 3 * 32
    x, _ = op.inputs()
    windows = g.windows(x)
    assert windows.shape == g.problem().a.tensor.shape
    assert (windows[9 + 4, 0, 2] == x[1, 4, 2:5].reshape(-1)).all()


def test_spread_filters_see_the_channels_of_their_group_in_every_other_pixel() -> None:
    op = Conv2d(n=1, c=6, h=9, w=12, k=4, r=3, s=3, stride=2, dilation=2, groups=2, dtype="fp16").with_defaults("fp16")
    g = Geometry(op, 4, 32)
    x, _ = op.inputs()
    windows = g.windows(x)
    assert windows.shape == g.problem().a.tensor.shape == (9, 5 * 2, op.output[1], 3)
    # The second group in the third column of the filter, for the fourth result of a row.
    assert (windows[5, 2 * 2 * 2 + 1, 3] == x[0, 5, 3 * 2 + 2 * 2, 3:6]).all()
    assert (g.gemm.batch, g.gemm.n, g.gemm.k) == (2, 2, 3 * 3 * 32)


@pytest.mark.parametrize(
    ("machine", "dtype", "shape", "turned"),
    [
        ("t4", "fp16", "n=2 c=16 h=9 w=13 k=24 r=3 s=3 pad=1", ["to_x_nhwc", "to_w_nhwc", "to_y"]),
        ("v100-sxm2", "fp32", "n=1 c=12 h=8 w=11 k=9 r=3 s=2 stride=2 pad=1 dilation=2 groups=3", None),
        ("a100-sxm4-80gb", "bf16", "n=1 c=40 h=7 w=8 k=33 r=1 s=1", ["to_x_nhwc", "to_y"]),
    ],
)
def test_images_channel_by_channel_are_transposed_before_and_after(
    machine: str, dtype: str, shape: str, turned: list[str] | None
) -> None:
    report = simulate(f"conv2d {shape} dtype={dtype} layout=nchw", machine, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    names = [kernel.name for kernel in report.record.kernels]
    found = [name for name in names if name.startswith("to_")]
    assert found == (turned or ["to_x_nhwc", "to_w_nhwc", "to_y"])
    assert len(names) == len(found) + 1
    assert names[-1] == "to_y"


def test_transposes_move_every_value_once_there_and_back() -> None:
    shape = "conv2d n=4 c=64 h=16 w=16 k=64 r=1 s=1 dtype=fp16"
    first, last = (simulate(f"{shape} layout={layout}", "t4") for layout in ("nchw", "nhwc"))
    size = 4 * 64 * 16 * 16 * 2
    for kernel in (first.record.kernels[0], first.record.kernels[-1]):
        assert kernel.counters["l2_write_bytes"] == size
        assert size <= kernel.counters["l2_read_bytes"] < 1.2 * size  # code comes on top
    assert first.time_us > last.time_us


def test_the_estimate_ranks_and_a_configuration_can_be_asked_for() -> None:
    spec = load_arch("a100-sxm4-80gb")
    op = Conv2d(n=1, c=64, h=30, w=30, k=64, r=3, s=3).with_defaults("fp16")
    found = choose(op, spec).candidates
    assert [time for _, time in found] == sorted(time for _, time in found)
    assert choose(op, spec, str(found[-1][0])).config == found[-1][0]
    assert {config.schedule for config, _ in found} == {"mma"}
    assert choose(op.with_defaults("fp16"), spec, "mma").candidates == found
    assert {config.schedule for config, _ in choose(op, spec, "simt").candidates} == {"simt"}
    with pytest.raises(InputError, match=r"schedule=winograd: a100-sxm4-80gb runs .* with mma, simt"):
        choose(op, spec, "winograd")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"dtype": "bf16"}, "dtype=bf16: t4 has no kernel"),
        ({"dtype": "bf16", "layout": "nchw"}, "dtype=bf16: t4 has no kernel"),
    ],
)
def test_what_no_kernel_does_is_refused(more: dict[str, object], told: str) -> None:
    words = {"n": 1, "c": 4, "h": 8, "w": 8, "k": 4, "r": 3, "s": 3, "dtype": "fp16"} | more
    with pytest.raises(InputError, match=told):
        simulate("conv2d " + " ".join(f"{key}={value}" for key, value in words.items()), "t4")
    with pytest.raises(InputError, match="is none of the configurations"):
        simulate("conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3", "t4", schedule="mma 1x1x1 columns 3")
    with pytest.raises(InputError, match="one of auto, mma, simt"):
        simulate("conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3", "t4", schedule="wgmma")


def test_a_step_of_the_library_has_channels_of_one_pixel() -> None:
    spec = load_arch("t4")
    op = Conv2d(n=1, c=8, h=12, w=20, k=64, r=3, s=5, dtype="fp16").with_defaults("fp16")
    found = implicit(of_library(op, spec, ("128x128", "256x64")))
    assert all(str(config).endswith(" by tap") for config in found)
    g = Geometry(op, 8, 32, by_tap=True)
    assert g.gemm.k == 3 * 5 * 32
    assert Geometry(op, 8, 32).gemm.k == 3 * 64
    report = simulate(str(op), "t4", schedule=str(found[0]), check=True)
    assert report.record.schedule == str(found[0])
    assert report.record.check is not None
    assert report.record.check.passed


def test_filters_of_int8_are_brought_in_order_first() -> None:
    # Their vectors under a row of the filter follow each other.
    op = Conv2d(n=1, c=32, h=12, w=20, k=64, r=3, s=3, dtype="int8").with_defaults("int8")
    (config, _), *_ = of_library(op, load_arch("t4"), ("128x128", "256x64"))
    assert str(config).endswith(" reordered")
    report = simulate(str(op), "t4", schedule=str(config), check=True)
    assert report.record.schedule == str(config)
    assert report.record.check is not None
    assert report.record.check.passed
    first = report.record.kernels[0]
    assert first.name == "reorder_filters"
    assert first.counters["l2_write_bytes"] == 32 * 64 * 9 <= first.counters["l2_read_bytes"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_short_steps_spare_zeros_on_the_vector_pipes(dtype: str) -> None:
    text = f"conv2d n=1 c=1 h=9 w=30 k=32 r=3 s=20 dtype={dtype}"
    op = parse(text).with_defaults(dtype)
    assert isinstance(op, Conv2d)
    found = [c for c, _ in choose(op, load_arch("t4"), "simt").candidates if isinstance(c, ConvSimtConfig)]
    depth = {c.tile_k: Geometry(op, c.columns, c.tile_k).gemm.k for c in found}
    assert depth[8] == 3 * 24
    assert min(depth.values()) == depth[8]
    short = next(c for c in found if c.tile_k == 8)
    report = simulate(text, "t4", schedule=str(short), check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    # A row of 32 values is filled by the longer steps, too.
    even = parse(text.replace("s=20", "s=4").replace("c=1 ", "c=8 ")).with_defaults(dtype)
    assert isinstance(even, Conv2d)
    found = [c for c, _ in choose(even, load_arch("t4"), "simt").candidates if isinstance(c, ConvSimtConfig)]
    assert 8 not in {c.tile_k for c in found}


def implicit(found: list[tuple[Config, int]]) -> list[ImplicitConfig]:
    """Those that are implicit GEMMs."""
    return [config for config, _ in found if not isinstance(config, WinogradConfig | DepthwiseConfig)]


def test_a_library_has_its_own_tiles_and_cuts_no_sums() -> None:
    op = Conv2d(n=8, c=256, h=7, w=7, k=512, r=3, s=3, pad=1, dtype="fp16").with_defaults("fp16")
    spec = load_arch("t4")
    assert any(config.split > 1 for config in implicit(choose(op, spec).candidates))
    found = of_library(op, spec, ("128x128", "256x64"))
    assert {(config.tile_m, config.tile_n) for config in implicit(found)} == {(128, 128), (256, 64)}
    assert all(config.split == 1 and config.warps == 8 for config in implicit(found))
    assert [time_ps for _, time_ps in found] == sorted(time_ps for _, time_ps in found)
    cut = of_library(op, spec, ("128x128", "128x128 split", "256x64"))
    assert {config.tile_m for config in implicit(cut) if config.split > 1} == {128}
    with pytest.raises(InputError, match="has no kernel with tiles 7x7"):
        of_library(op, spec, ("7x7",))


def test_narrow_tiles_of_a_library_are_for_few_filters() -> None:
    spec, tiles = load_arch("v100-sxm2"), ("128x128", "128x64", "128x32")
    widths = {}
    for k in (20, 32, 48, 64, 256):
        op = Conv2d(n=1, c=64, h=14, w=14, k=k, r=1, s=1, dtype="fp32").with_defaults("fp32")
        widths[k] = min(config.tile_n for config in implicit(of_library(op, spec, tiles)))
    assert widths == {20: 32, 32: 32, 48: 64, 64: 64, 256: 64}


def test_winograds_product_has_the_tiles_of_the_library() -> None:
    op = Conv2d(n=2, c=64, h=7, w=7, k=64, r=3, s=3, pad=1, dtype="fp32").with_defaults("fp32")
    spec = load_arch("v100-sxm2")
    [(any_tile, _)] = winograd.candidates(op, spec)
    [(own_tile, _)] = winograd.candidates(op, spec, ("128x64",))
    assert own_tile.product.split()[1] == "128x64x16"
    assert any_tile.product.split()[1] != "128x64x16"


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "tiles", "floor_us"),
    [
        ("int8", "n=1 c=512 h=7 w=7 k=512 r=1 s=1", "mma", ("128x128", "256x128", "256x64"), 18),
        ("fp32", "n=8 c=128 h=28 w=28 k=512 r=1 s=1 stride_h=2 stride_w=2", "simt", ("128x128", "128x64", "128x32"), 0),
    ],
)
def test_rows_of_deepbench_run_the_kernels_of_their_library(
    dtype: str, shape: str, kind: str, tiles: tuple[str, ...], floor_us: int
) -> None:
    row = Row("t4", "conv2d", dtype, shape, "fused", 18.0, "stream", 0.0, "warm", "A", "deepbench", "", "vendor")
    result = simulate_row(row)
    assert result.schedule.split()[:1] == [kind]
    assert result.schedule.split()[1].rpartition("x")[0] in tiles
    assert result.time_ps >= floor_us * 10**6


def test_kernels_of_eight_warps_have_the_numbers_of_numpy() -> None:
    text = "conv2d n=1 c=16 h=12 w=12 k=64 r=3 s=3 pad=1 dtype=fp16"
    op = parse(text).with_defaults("fp16")
    assert isinstance(op, Conv2d)
    for config, _ in of_library(op, load_arch("t4"), ("128x128", "256x64"))[:2]:
        report = simulate(text, "t4", schedule=str(config), check=True)
        assert report.record.schedule == str(config)
        assert report.record.check is not None
        assert report.record.check.passed


@pytest.mark.parametrize(
    ("machine", "dtype", "size"),
    [("v100-sxm2", "fp32", (3, 12, 7, 9)), ("t4", "fp16", (8, 16, 7, 9)), ("t4", "int8", (32, 32, 8, 12))],
)
def test_a_benchmark_pads_what_tensor_cores_need(machine: str, dtype: str, size: tuple[int, int, int, int]) -> None:
    shape = "n=2 c=3 h=7 w=9 k=12 r=3 s=3 p=5 q=7"
    row = Row(machine, "conv2d", dtype, shape, "fused", 18.0, "stream", 0.0, "warm", "A", "deepbench", "", "vendor")
    op = operator_of(row)
    assert isinstance(op, Conv2d)
    assert (op.c, op.k, op.h, op.w) == size
    assert op.output == (size[2] - 2, size[3] - 2)
