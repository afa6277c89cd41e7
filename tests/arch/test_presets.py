"""The shipped presets: complete, sourced, and in agreement with what their data sheets say."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from arch.library import CHIPS, PRESETS, chain
from arch.load import FAMILIES, leaves, list_archs, load_arch
from arch.preset_file import IDENTITY, read
from arch.show import describe, json_schema

KINDS = ("vendor: ", "measured: ", "derived: ", "model: ", "assumed: ", "calibrated on ")
ALL = list_archs()
GPUS = [name for name in ALL if load_arch(name).family == "gpu"]


def test_every_machine_that_is_promised_ships() -> None:
    wanted = (
        "t4 v100-sxm2 v100-sxm2-32gb a100-sxm4-40gb a100-sxm4-80gb a100-pcie-80gb "
        "h100-pcie h100-sxm h200-sxm h20 h800-sxm gh200-96gb a40"
    )
    assert set(wanted.split()) <= set(ALL)
    assert {"sn40l", "sn40l-256mac", "plasticine"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_of_a_preset_names_its_source(name: str) -> None:
    spec = load_arch(name)
    assert spec.name == name
    rows = [row for row in describe(spec) if row.path not in IDENTITY]
    assert len(rows) > {"gpu": 130, "rdu": 60, "tpu": 35}[spec.family]
    unsourced = [row.path for row in rows if not row.source.startswith(KINDS)]
    assert unsourced == []


FILES = sorted([*PRESETS.glob("*.yaml"), *CHIPS.glob("*.yaml")])
USES = {name: chain(PRESETS / f"{name}.yaml") for name in ALL}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_source_of_a_preset_is_idle(path: Path) -> None:
    file = read(path)
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
        assert read(CHIPS / f"{spec.chip.lower()}.yaml") in USES[name]


def test_the_chip_is_no_figure() -> None:
    spec = load_arch("a40")
    assert spec.model_copy(update={"chip": "other"}).content_hash() == spec.content_hash()


# Dense peaks in TFLOPS (int8: TOPS) of the data sheets.
# V100: the measured rate of back-to-back HMMA, 0.92 of the 125 TFLOPS of the sheet.
PEAKS = [
    ("t4", {"fp32": 8.1, "fp16": 65, "int8": 130}),
    ("v100-sxm2", {"fp32": 15.7, "fp16": 125}),
    ("a100-sxm4-80gb", {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}),
    ("a40", {"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7, "int8": 299.3}),
    ("h100-pcie", {"fp32": 51, "tf32": 378, "bf16": 756, "fp8": 1513, "int8": 1513}),
    ("h100-sxm", {"fp32": 67, "tf32": 494.5, "fp16": 989, "bf16": 989, "fp8": 1979, "int8": 1979}),
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
    ("a40", 384),
    ("t4", 256),
    ("v100-sxm2", 4096),
    ("a100-sxm4-40gb", 5120),
    ("a100-sxm4-80gb", 5120),
    ("h100-pcie", 5120),
    ("h100-sxm", 5120),
]


@pytest.mark.parametrize(("name", "bits"), BUSES, ids=[name for name, _ in BUSES])
def test_bandwidth_is_memory_clock_times_bus_width(name: str, bits: int) -> None:
    spec = load_arch(name)
    assert spec.dram.bandwidth_bytes_per_s == pytest.approx(spec.clock.memory_hz * 2 * bits / 8, rel=0.005)


@pytest.mark.parametrize("name", GPUS)
def test_generations_have_what_they_have_and_nothing_more(name: str) -> None:
    spec = load_arch(name)
    generation = ("volta", "turing", "ampere", "hopper").index(spec.architecture)
    assert (spec.cp_async is not None) == (generation >= 2)
    assert (spec.tma is not None) == (spec.dsmem is not None) == (generation == 3)
    assert spec.has_instruction("ldmatrix", "b16", "x4") == (generation >= 1)
    assert spec.has_instruction("wgmma", "bf16", "m64n256k16") == (generation == 3)
    assert any(row.dtype == "bf16" and row.pipe == "tensor" for row in spec.instructions) == (generation >= 2)
    assert spec.l2.partitions == (2 if spec.chip in ("GA100", "GH100") else 1)
    assert spec.has_instruction("mma", "fp16", {0: "m8n8k4", 1: "m16n8k8", 2: "m16n8k16", 3: "m16n8k16"}[generation])


@pytest.mark.parametrize("name", ALL)
def test_description_rebuilds_the_machine(name: str) -> None:
    spec = load_arch(name)
    known = leaves(FAMILIES[spec.family])
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
