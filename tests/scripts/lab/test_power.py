"""The script that compares the power of loops with a preset's energies."""

import json
from pathlib import Path

import pytest

from arch.load import load_arch
from scripts.lab import power
from scripts.tables import main
from scripts.tables.place import END, begin


def test_a_loop_takes_its_static_power_its_issue_and_its_lanes() -> None:
    (loop,) = [one for one in power.loops() if one.name == "imad random ctas=132 threads=1024"]
    spec = load_arch("h100-sxm", {"clock.boost": "1.6 GHz"})  # the clock at which the energies hold
    answer = power.ask(spec, power.Loop(**{**vars(loop), "clock_mhz": 1600}))
    energy = spec.power.energy
    a_warp_fj = energy.issue_fj + 32 * energy.fma_fj
    assert answer.model_w == pytest.approx(spec.power.static_mw / 1e3 + 5.20604e11 * a_warp_fj * 1e-15, rel=1e-5)
    assert answer.error == pytest.approx(answer.model_w / 436.371 - 1)


def test_bytes_of_device_memory_pass_the_l2_and_those_of_a_small_span_do_not_come_from_it() -> None:
    found = {loop.name: loop for loop in power.loops()}
    far = found["ldg128_cg random ctas=132 threads=1024 span=4294967296"]
    near = found["ldg128_cg random ctas=132 threads=1024 span=16777216"]
    assert far.group == "DRAM"
    assert near.group == "L2"
    assert set(near.core) == set(far.core)
    assert far.memory
    assert not near.memory


def test_the_table_goes_between_its_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin('power')}\nold\n{END}\nafter\n")
    assert main(["power", "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| wgmma bf16 (4) | random |" in text
    assert main(["power", "--json"]) == 0
    assert {answer["half"] for answer in json.loads(capsys.readouterr().out)} == {"fitted", "held"}
    assert main(["power", "--arch", "a900"]) == 2
