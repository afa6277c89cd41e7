"""SCALE-Sim's configuration files as overrides, and its report files, against reports of its own (3.0.0)."""

import csv
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from arch.scalesim import read_config
from sim import simulate
from sim.app.cli import main
from sim.app.families.tpu.scalesim import report_files

CONFIG = """[general]
run_name = "scale_run"
[architecture_presets]
ArrayHeight : 128
ArrayWidth : 128
IfmapSramSzkB = 6144
FilterSramSzkB = 6144
OfmapSramSzkB = 2048
IfmapOffset = 0
Dataflow = ws
Bandwidth = 10
[run_presets]
InterfaceBandwidth = CALC
"""

# scalesim 3.0.0 on mobilenet.csv with this configuration: layer, total cycles, overall, mapping and compute
# utilisation in per cent, words a cycle of inputs and of sums on the chip.
MOBILENET = {
    0: (12925, 5.117988, 5.273438, 5.067801, 26.204101, 31.056712),
    1: (37445, 0.568021, 0.585938, 0.562284, 93.064496, 0.969422),
    23: (15515, 0.088825, 0.78125, 0.068604, 14.553142, 0.113696),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cfg"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_a_configuration_as_overrides(config: Path) -> None:
    found = read_config(str(config), load_arch("tpu-v1"))
    assert found.scope == "array"
    assert set(found.overrides) == {
        "array.rows=128", "array.columns=128", "array.dataflow=ws", "array.overlap_weights=false",
        "unified_buffer.size=8192 KiB", "weight_fifo.depth=384",
            "weight_fifo.tile_rows=128", "weight_fifo.tile_columns=128",
    }  # fmt: skip
    config.write_text(CONFIG.replace("CALC", "USER").replace("Bandwidth = 10", "Bandwidth = 20, 10, 5"), "utf-8")
    user = read_config(str(config), load_arch("tpu-v1"))
    assert user.scope == "kernel"
    machine = load_arch("tpu-v1", user.overrides)
    assert machine.dram.bandwidth_bytes_per_s == 10 * machine.clock.boost_hz
    assert machine.pcie.bandwidth_bytes_per_s == 5 * machine.clock.boost_hz


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("ArrayHeight : 128", "ArrayHeight : x", "arrayheight=x: must be a whole number"),
        ("ArrayHeight : 128\n", "", "arrayheight is missing"),
        ("ArrayWidth", "ArayWidth", r"\[architecture_presets\]: unknown key araywidth; did you mean arraywidth"),
        ("Dataflow = ws", "Dataflow = rs", "dataflow=rs: must be one of os, ws, is"),
        ("= CALC", "= MAYBE", "interfacebandwidth=MAYBE: must be CALC or USER"),
        ("= CALC", "= CALC\nUseRamulatorTrace = True", "latencies from a run of Ramulator cannot be modelled"),
        ("= CALC", "= CALC\n[sparsity]\nSparsitySupport = true", "sparse weights cannot be modelled"),
        ("[general]", "no section", "no section headers"),
        ("= CALC", "= USER\nBandwidth = 1, 2", "bandwidth=1, 2: must be words a cycle"),
    ],
)
def test_what_is_wrong_with_a_configuration(config: Path, before: str, after: str, told: str) -> None:
    text = CONFIG.replace(before, after)
    if "Bandwidth = 1, 2" in after:
        text = text.replace("Bandwidth = 10\n", "")
    config.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        read_config(str(config), load_arch("tpu-v1"))


def test_configurations_are_of_systolic_arrays(config: Path) -> None:
    with pytest.raises(InputError, match="h100-sxm is none; tpu-v1 is one"):
        read_config(str(config), load_arch("h100-sxm"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_config(str(config) + "x", load_arch("tpu-v1"))


def test_reports_are_scale_sims(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "network", "file=mobilenet", "--arch", "tpu-v1", "--config", str(config)]
    assert main([*words, "--scalesim-reports", str(tmp_path)]) == 0
    assert "scope array" in capsys.readouterr().out
    compute, bandwidth = (
        list(csv.reader((tmp_path / f"{name}_REPORT.csv").open(encoding="utf-8"))) for name in ("COMPUTE", "BANDWIDTH")
    )
    assert [cell.strip() for cell in compute[0]] == [
        "LayerID", "Total Cycles (incl. prefetch)", "Total Cycles", "Stall Cycles", "Overall Util %",
        "Mapping Efficiency %", "Compute Util %", "",
    ]  # fmt: skip
    assert len(compute) == len(bandwidth) == 28
    for layer, expected in MOBILENET.items():
        row = compute[1 + layer]
        assert (int(row[0]), int(row[2]), int(row[3])) == (layer, expected[0], 0)
        assert [float(cell) for cell in row[4:7]] == pytest.approx(expected[1:4], abs=2e-6)
        words_a_cycle = [float(bandwidth[1 + layer][column]) for column in (1, 3)]
        assert words_a_cycle == pytest.approx(expected[4:], abs=2e-6)


def test_reports_need_an_array_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "gemm", "m=8", "n=8", "k=8", "--arch", "tpu-v1", "--scalesim-reports"]
    assert main([*words, str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    with pytest.raises(InputError, match="sn40l is no systolic array"):
        report_files(simulate("gemm m=64 n=64 k=64", "sn40l"))
