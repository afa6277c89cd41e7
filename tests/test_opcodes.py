"""The listing of opcodes: complete, with the machine's own figures, and nearest names for what people type."""

from __future__ import annotations

import json

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.opcodes import opcodes
from sim.gpu.language.ops import OPS


@pytest.mark.parametrize("machine", ["t4", "h100-sxm"])
def test_every_opcode_and_every_row_is_listed(machine: str) -> None:
    spec = load_arch(machine)
    found = opcodes(machine)["opcodes"]
    assert set(OPS) <= {entry["opcode"] for entry in found}
    listed = {row["name"]: row for entry in found for row in entry["rows"]}
    missing = {row.name for row in spec.instructions} - set(listed)
    assert all(name.startswith("wgmma_rs") for name in missing), "rows of wgmma whose first operand is in registers"
    for row in spec.instructions:
        if row.name in listed:
            assert listed[row.name]["latency_cycles"] == row.latency_cycles


def test_an_override_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opcodes", "t4", "--set", "instructions.ffma.fp32.latency=9 cycles", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for entry in document["opcodes"] for row in entry["rows"]}
    assert rows["ffma.fp32"]["latency_cycles"] == 9
    assert main(["opcodes", "t4"]) == 0
    text = capsys.readouterr().out
    assert "ldmatrix" in text
    assert "ffma.fp32" in text


def test_other_machines_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opcodes", "sn40l"]) == 2
    assert "sn40l is of family rdu" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "meant"), [("fmax", "fmnmx"), ("exp2", "ex2"), ("fma", "ffma"), ("rsqrt", "rsq")])
def test_names_of_other_languages_find_the_opcode(typed: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"nearest: {meant}\."):
        load_arch("h100-sxm").instruction(typed, "fp32")
