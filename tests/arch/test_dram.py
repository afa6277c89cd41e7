"""DRAM standards: complete tables with sources, and what naming one does to a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.dram_standards import FOLDER, list_standards, read_standard
from arch.errors import InputError
from arch.load import list_archs, load_arch
from arch.preset_file import read

FIGURES = {
    "type", "banks", "row", "atom", "t_rcd", "t_rp", "t_ras", "t_rc", "t_faw", "t_wtr", "t_rtw", "t_refi", "t_rfc",
}  # fmt: skip
KINDS = ("vendor: ", "measured: ", "derived: ", "model: ", "assumed: ")


def memories(machine: str) -> dict[str, str]:
    """Standard of each group of a preset that names one."""
    spec = load_arch(machine)
    groups = ((name, getattr(spec, name, None)) for name in ("dram", "hbm", "ddr"))
    return {name: found for name, group in groups if (found := getattr(group, "standard", ""))}


@pytest.mark.parametrize("name", list_standards())
def test_a_standard_is_complete_and_every_figure_has_a_source(name: str) -> None:
    table = read_standard(name)
    assert set(table.figures) == FIGURES
    for path, figure in table.figures.items():
        assert table.sources[figure.source].startswith(KINDS), path
    own = read(FOLDER / f"{name}.yaml")
    assert {figure.source for figure in own.figures.values()} == set(own.sources)


@pytest.mark.parametrize("name", list_standards())
def test_a_machine_that_names_a_standard_has_its_figures_and_their_sources(name: str) -> None:
    spec = load_arch("t4", {"dram.standard": name})
    before = load_arch("t4")
    table = read_standard(name)
    row = {"banks": spec.dram.banks, "type": spec.dram.type}
    assert {key: str(value) for key, value in row.items()} == {key: table.figures[key].text for key in row}
    for path, figure in table.figures.items():
        assert table.sources[figure.source] in spec.sources[f"dram.{path}"]
    assert spec.sources["dram.standard"] == "set by the user"
    for kept in ("size_bytes", "bandwidth_bytes_per_s", "channels", "latency_ps", "overhead", "write_batch"):
        assert getattr(spec.dram, kept) == getattr(before.dram, kept)


@pytest.mark.parametrize("machine", list_archs())
def test_every_preset_with_banks_names_its_standard(machine: str) -> None:
    assert memories(machine)


def test_one_figure_beats_the_standard_that_is_named_beside_it() -> None:
    for overrides in (["dram.standard=lpddr5x", "dram.t_rcd=20 ns"], ["dram.t_rcd=20 ns", "dram.standard=lpddr5x"]):
        dram = load_arch("h100-sxm", overrides).dram
        assert (dram.t_rcd_ps, dram.t_rp_ps, dram.t_wtr_ps) == (20_000, 18_000, 27_500)


def test_a_machine_file_names_one_and_states_what_differs(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: h100-sxm\ndram: {standard: lpddr5x, channels: 160, bandwidth: 2.7 TB/s, t_faw: 15 ns}\n")
    spec = load_arch(mine)
    assert (spec.dram.type, spec.dram.t_faw_ps, spec.dram.t_rc_ps) == ("LPDDR5X", 15_000, 60_000)
    assert "mine.yaml" in spec.sources["dram.t_faw"]
    assert "LPDDR5X" in spec.summary
    again = load_arch(mine, {"dram.standard": "hbm3"})
    assert (again.dram.t_faw_ps, again.dram.bandwidth_bytes_per_s) == (16_000, 2.7e12)


def test_a_machine_file_need_not_name_one(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: h100-sxm\ndram: {type: stacked, t_rcd: 11 ns}\n")
    assert (load_arch(mine).dram.type, load_arch(mine).dram.t_rcd_ps) == ("stacked", 11_000)


def test_each_memory_of_a_dataflow_machine_has_its_own() -> None:
    spec = load_arch("sn40l", {"ddr.standard": "lpddr5x"})
    assert (spec.ddr.type, spec.hbm.type) == ("LPDDR5X", "HBM3")


def test_what_is_no_standard_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^override: dram.standard = LPDDR5Y: is no DRAM standard; nearest: lpddr5"):
        load_arch("h100-sxm", {"dram.standard": "LPDDR5Y"})
