"""Figures that only document: listed in the docs with a reason each, and refused as overrides."""

import textwrap
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.families import families
from arch.leaves import documents, leaves, spec_class
from arch.load import list_archs, load_arch
from arch.show import documentation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "machines.md"


@pytest.mark.parametrize("family", families())
def test_the_page_lists_every_figure_that_only_documents(family: str) -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [f"| `{path}` | {reason} | {instead} |" for path, reason, instead in documentation(family)]
    assert [row for row in rows if row not in page] == []


def test_the_page_lists_no_other_figure() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Figures that only document")[2]
    listed = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(listed) == sum(len(documentation(family)) for family in families())


@pytest.mark.parametrize("machine", list_archs())
def test_an_override_of_one_is_refused_with_what_to_change_instead(machine: str) -> None:
    spec = load_arch(machine)
    model = spec_class(spec.family)
    known = leaves(model)
    marked = {path: mark for path in spec.sources if path in known and (mark := documents(model, path))}
    assert "dram.type" in marked or "ddr.type" in marked
    for path, mark in marked.items():
        with pytest.raises(InputError, match=f"^override: {path} documents only: .*; change .* instead$") as caught:
            load_arch(machine, [f"{path}=1"])
        assert mark.reason in str(caught.value)
        assert mark.instead in str(caught.value)


def test_a_column_of_an_instruction_row_may_only_document() -> None:
    with pytest.raises(InputError, match=r"change shared\.bandwidth or sm\.address_interval instead"):
        load_arch("h100-sxm", ["instructions.lds.b32.interval=2 cycles"])
    assert (
        load_arch("h100-sxm", ["instructions.lds.b32.latency=30 cycles"]).instruction("lds", "b32").latency_cycles == 30
    )


def test_a_machine_file_may_state_one(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: h100-sxm\nclock: {base: 1.2 GHz}\n")
    assert load_arch(mine).clock.base_hz == 1_200_000_000


def test_the_machine_file_of_the_page_is_a_machine(tmp_path: Path) -> None:
    block = PAGE.read_text().partition("    # rtx-3080.yaml\n")[2].partition("\n\n")[0]
    mine = tmp_path / "rtx-3080.yaml"
    mine.write_text(textwrap.dedent(block))
    spec = load_arch(mine)
    assert (spec.name, spec.chip, spec.sm.count, spec.dram.type) == ("rtx-3080", "GA102", 68, "GDDR6X")
    assert spec.sources["sm.count"] == "vendor: data sheet"
    assert spec.sources["l1.size"] == load_arch("a40").sources["l1.size"]
