"""The shipped presets: complete, sourced, and in agreement with what their data sheets say."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from arch.leaves import leaves, spec_class
from arch.library import CHIPS, PRESETS, chain
from arch.load import list_archs, load_arch
from arch.preset_file import IDENTITY
from arch.show import describe, json_schema

KINDS = ("vendor: ", "measured: ", "derived: ", "model: ", "assumed: ", "calibrated on ", "announced: ", "range: ")
ALL = list_archs()
GPUS = [name for name in ALL if load_arch(name).family == "gpu"]


def test_every_machine_that_is_promised_ships() -> None:
    wanted = (
        "t4 rtx-2080ti titan-rtx v100-sxm2 v100-sxm2-32gb v100-pcie a100-sxm4-40gb a100-sxm4-80gb a100-pcie-80gb a30 "
        "a10 a40 rtx-a6000 rtx-3090 jetson-agx-orin l4 l40 l40s rtx-6000-ada rtx-4090 "
        "h100-pcie h100-sxm h100-nvl h200-sxm h200-nvl h20 h800-sxm gh200-96gb b200 gb200 b300 gb300 "
        "rtx-5090 rtx-pro-6000 rubin-announced"
    )
    assert set(wanted.split()) <= set(ALL)
    assert {"sn40l", "sn40l-256mac", "plasticine"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_of_a_preset_names_its_source(name: str) -> None:
    spec = load_arch(name)
    assert spec.name == name
    rows = [row for row in describe(spec) if row.path not in IDENTITY]
    assert len(rows) > {"gpu": 130, "rdu": 60, "tpu": 35, "gemmini": 40}[spec.family]
    unsourced = [row.path for row in rows if not row.source.startswith(KINDS)]
    assert unsourced == []


FILES = sorted([*PRESETS.glob("*.yaml"), *CHIPS.glob("*.yaml")])
USES = {name: chain(PRESETS / f"{name}.yaml") for name in ALL}


@pytest.mark.parametrize("name", ALL)
def test_a_calibrated_figure_does_not_say_that_it_was_measured(name: str) -> None:
    for row in describe(load_arch(name)):
        if not row.path.startswith("instructions."):  # whose columns have sources of their own
            assert not (row.source.startswith("measured") and "calibrated" in row.source), f"{row.path}: {row.source}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_source_of_a_preset_is_idle(path: Path) -> None:
    file = chain(path)[-1]
    users = [files for files in USES.values() if file in files]
    assert users, "no machine builds on it"
    cited = {figure.source for files in users for used in files for figure in used.figures.values()}
    assert set(file.sources) <= cited


@pytest.mark.parametrize("name", ALL)
def test_a_machine_names_its_chip_and_boards_of_one_chip_share_its_file(name: str) -> None:
    spec = load_arch(name)
    assert spec.chip
    if spec.family == "gpu":
        assert (CHIPS / f"{spec.chip.lower()}.yaml").is_file()
        assert chain(CHIPS / f"{spec.chip.lower()}.yaml")[-1] in USES[name]


def test_the_chip_is_no_figure() -> None:
    spec = load_arch("a40")
    assert spec.model_copy(update={"chip": "other"}).content_hash() == spec.content_hash()


# Dense peaks in TFLOPS (int8: TOPS) of the data sheets.
# V100: the measured rate of back-to-back HMMA, 0.92 of the 125 TFLOPS of the sheet.
PEAKS = [
    ("t4", {"fp32": 8.1, "fp16": 65, "int8": 130}),
    ("v100-sxm2", {"fp32": 15.7, "fp16": 125}),
    ("a100-sxm4-80gb", {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}),
    # Boards that go beyond their rated boost clock reach more than the sheet's fp32 peak.
    ("rtx-2080ti", {"fp16": 53.8}),
    ("titan-rtx", {"fp16": 130.5, "int8": 261}),
    ("a30", {"tf32": 82, "fp16": 165, "bf16": 165, "int8": 330}),
    ("a10", {"fp32": 31.2, "tf32": 62.5, "fp16": 125, "bf16": 125, "int8": 250}),
    ("a40", {"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7, "int8": 299.3}),
    ("rtx-a6000", {"fp32": 38.7, "tf32": 77.4, "fp16": 154.8, "int8": 309.7}),
    ("rtx-3090", {"tf32": 35.6, "fp16": 71, "bf16": 71, "int8": 284}),
    ("jetson-agx-orin", {"fp32": 5.3, "fp16": 42.5, "int8": 85}),
    ("l4", {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242, "int8": 242}),
    ("l40", {"fp32": 90.5, "tf32": 90.5, "fp16": 181, "bf16": 181, "fp8": 362, "int8": 362}),
    ("l40s", {"fp32": 91.6, "tf32": 183, "fp16": 362, "fp8": 733, "int8": 733}),
    ("rtx-6000-ada", {"fp32": 91.1, "fp16": 364.2, "fp8": 728.5}),
    ("rtx-4090", {"tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6}),
    ("v100-pcie", {"fp32": 14.1, "fp16": 112}),
    ("h100-nvl", {"fp32": 60.3, "tf32": 417.5, "bf16": 835.5, "fp8": 1670.5, "int8": 1670.5}),
    ("h200-nvl", {"bf16": 835.5, "fp8": 1670.5}),
    ("h100-pcie", {"fp32": 51, "tf32": 378, "bf16": 756, "fp8": 1513, "int8": 1513}),
    ("h100-sxm", {"fp32": 67, "tf32": 494.5, "fp16": 989, "bf16": 989, "fp8": 1979, "int8": 1979}),
    ("b200", {"fp32": 74.5, "bf16": 2250, "fp8": 4500}),
    ("b300", {"bf16": 2250, "nvfp4": 13500}),
    ("rubin-announced", {"nvfp4": 35000, "fp8": 17500, "bf16": 4000}),
    ("rtx-5090", {"bf16": 209.5, "fp8": 419, "mxfp8": 838, "nvfp4": 1676, "int8": 838}),
    ("rtx-pro-6000", {"bf16": 503.8, "fp8": 1007.6, "nvfp4": 2015}),
    ("h20", {"bf16": 148, "fp8": 296, "int8": 296}),
    ("sn40l", {"bf16": 638}),
    ("sn40l-256mac", {"bf16": 638}),
    ("plasticine", {"fp32": 12.3}),
]


@pytest.mark.parametrize(("name", "peaks"), PEAKS, ids=[name for name, _ in PEAKS])
def test_instruction_table_gives_the_peaks_of_the_data_sheet(name: str, peaks: dict[str, float]) -> None:
    spec = load_arch(name)
    for dtype, tera in peaks.items():
        assert spec.peak_flops(dtype) / 1e12 == pytest.approx(tera, rel=0.01), dtype


# Bus width in bits; both clock edges carry data (GDDR6: the memory clock is quoted at half the pin rate).
BUSES = [
    *((name, 384) for name in ("titan-rtx", "a10", "a40", "rtx-a6000", "rtx-3090")),
    *((name, 384) for name in ("l40", "l40s", "rtx-6000-ada", "rtx-4090")),
    ("rtx-2080ti", 352),
    ("l4", 192),
    ("jetson-agx-orin", 256),
    ("a30", 3072),
    ("v100-pcie", 4096),
    ("h100-nvl", 6016),
    ("h200-nvl", 6016),
    ("t4", 256),
    ("v100-sxm2", 4096),
    ("a100-sxm4-40gb", 5120),
    ("a100-sxm4-80gb", 5120),
    ("h100-pcie", 5120),
    ("h100-sxm", 5120),
    *((name, 7680) for name in ("b200", "gb200", "b300", "gb300")),
    *((name, 512) for name in ("rtx-5090", "rtx-pro-6000")),
]


@pytest.mark.parametrize(("name", "bits"), BUSES, ids=[name for name, _ in BUSES])
def test_bandwidth_is_memory_clock_times_bus_width(name: str, bits: int) -> None:
    spec = load_arch(name)
    assert spec.dram.bandwidth_bytes_per_s == pytest.approx(spec.clock.memory_hz * 2 * bits / 8, rel=0.005)


@pytest.mark.parametrize("name", GPUS)
def test_generations_have_what_they_have_and_nothing_more(name: str) -> None:
    spec = load_arch(name)
    generation = ("volta", "turing", "ampere", "ada", "hopper", "blackwell").index(spec.architecture)
    assert (spec.cp_async is not None) == (generation >= 2)
    assert (spec.tma is not None) == (spec.dsmem is not None) == (generation >= 4)
    assert spec.has_instruction("ldmatrix", "b16", "x4") == (generation >= 1)
    assert spec.has_instruction("wgmma", "bf16", "m64n256k16") == (generation == 4)
    formats = {row.dtype for row in spec.instructions if row.pipe == "tensor"}
    assert ({"bf16", "tf32"} <= formats) == (generation >= 2)
    assert ("fp8" in formats) == (generation >= 3)
    assert ("int8" in formats) == (generation >= 1)
    lanes = 32 / spec.instruction("ffma", "fp32").interval_cycles * spec.sm.sub_cores
    assert lanes == (
        128 if spec.chip in ("GA102", "GA10B", "AD102", "AD104", "GH100", "GB100", "GB110", "GB202", "R100") else 64
    )
    assert spec.l2.partitions == (2 if spec.chip in ("GA100", "GH100", "GB100", "GB110", "R100") else 1)
    assert spec.has_instruction("mma", "fp16", ("m8n8k4", "m16n8k8", *4 * ["m16n8k16"])[generation])


@pytest.mark.parametrize("name", ALL)
def test_description_rebuilds_the_machine(name: str) -> None:
    spec = load_arch(name)
    known = leaves(spec_class(spec.family))
    rows = [row for row in describe(spec) if row.path in known and row.path not in IDENTITY]
    rows = [row for row in rows if known[row.path].documents is None]
    again = load_arch(name, {row.path: row.value for row in rows})
    assert again.content_hash() == spec.content_hash()


@pytest.mark.parametrize("name", ALL)
def test_summary_is_one_line_with_the_main_figures(name: str) -> None:
    line = load_arch(name).summary
    assert "\n" not in line
    assert "SMs" in line or name not in GPUS
    assert "TFLOPS" in line or "TOPS" in line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_presets_fit_the_schema_for_editors(path) -> None:  # type: ignore[no-untyped-def]
    family = load_arch(path.stem).family if path.stem in ALL else "gpu"
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema(family))


@pytest.mark.parametrize(
    "text",
    [
        "l2: {sise: 4 MiB}",
        "l2: {size: 4 MB/s}",
        "sm: {scheduler: fifo}",
        "instructions: {ffma.fp32: [fma]}",
        "colour: red",
    ],
)
def test_schema_refuses_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), json_schema())
