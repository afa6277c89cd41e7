"""New machines: what belongs together goes together, the file says the same, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch import load_arch
from arch.errors import InputError
from arch.families import families
from arch.new_gpu import WISHES
from arch.new_machine import NewMachine, new_machine
from sim.app.cli import machines as cli
from sim.app.cli import main

H100 = load_arch("h100-sxm")


def made(**wishes: str) -> NewMachine:
    return new_machine("mine", "h100-sxm", {word.replace("_", "-"): value for word, value in wishes.items()})


def written(machine: NewMachine, tmp_path: Path) -> Any:
    path = tmp_path / "mine.yaml"
    path.write_text(machine.text)
    return load_arch(path)


def test_the_command_line_has_the_wishes_that_there_are() -> None:
    assert set(cli.WISHES) == set(WISHES)
    assert [name for name, family in families().items() if family.new_machine] == ["gpu"]


def test_what_belongs_together_goes_together(tmp_path: Path) -> None:
    machine = made(sms="200", tensor="2x", l2="96MiB", dram="5TB/s")
    spec = machine.spec
    assert (spec.sm.count, spec.gpc.count) == (200, 12)  # of up to 17 SMs, as 132 in 8
    assert spec.l2.size_bytes == 96 * 2**20
    assert spec.l2.slices == 128
    assert spec.port.gpc_bytes_per_cycle == H100.port.gpc_bytes_per_cycle * 128 / 80
    assert spec.power.limit_mw == pytest.approx(700_000 * 200 / 132, rel=1e-6)
    assert spec.shared.bandwidth_bytes_per_cycle == 256
    old, new = ({row.name: row for row in machine.instructions} for machine in (H100, spec))
    for name, row in old.items():
        times = 2 if row.pipe == "tensor" else 1
        assert new[name].interval_cycles * times == pytest.approx(row.interval_cycles)
        assert new[name].latency_cycles == row.latency_cycles
    assert spec.dram.t_ccd_ps == pytest.approx(H100.dram.t_ccd_ps * 3.352 / 5, abs=1)
    changed = [path for path, *_ in machine.changes]
    assert {"sm.count", "gpc.count", "l2.slices", "dram.t_ccd", "instructions"} <= set(changed)
    file = written(machine, tmp_path)
    assert file.name == "mine"
    assert "tilewave new-machine --base h100-sxm --sms 200" in file.sources["sm.count"]
    assert file.model_dump(exclude={"name", "title"}) == spec.model_dump(exclude={"name", "title"})


def test_wishes_add_up() -> None:
    both = made(sms="264", energy="0.5x").spec
    assert both.power.static_mw == H100.power.static_mw  # twice the SMs, half the energy
    assert both.power.energy.fma_fj == pytest.approx(H100.power.energy.fma_fj / 2, abs=1)
    assert made(sms="264", power="600 W").spec.power.limit_mw == 600_000


def test_an_l2_that_no_number_of_slices_holds_is_the_nearest_that_fits() -> None:
    machine = made(l2="51MB")
    assert machine.spec.l2.slices == 80
    assert abs(machine.spec.l2.size_bytes - 51_000_000) <= H100.l2.granule_bytes / 2
    assert "nearest to 51 MB" in next(why for path, _, _, why in machine.changes if path == "l2.size")


@settings(deadline=None, max_examples=25)
@given(
    sms=st.integers(16, 400), tensor=st.sampled_from(["0.5x", "1.5x", "2x", "4x"]), l2=st.integers(8, 256),
    dram=st.integers(500, 20_000), clock=st.sampled_from(["0.8x", "1.3x"]),
)  # fmt: skip
def test_whatever_is_wished_fits_together(sms: int, tensor: str, l2: int, dram: int, clock: str) -> None:
    spec = made(sms=str(sms), tensor=tensor, l2=f"{l2} MiB", dram=f"{dram} GB/s", clock=clock).spec
    assert spec.sm.count == sms
    assert abs(spec.l2.size_bytes / (l2 * 2**20) - 1) < 0.03


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({}, "say what is new: --sms, --tensor"),
        ({"smz": "2x"}, "unknown wish 'smz', .*; nearest: sms"),
        ({"sms": "0"}, "--sms 0: must be more than 0; or write a factor"),
        ({"tensor": "3"}, "--tensor 3: must be a factor"),
        ({"dram": "fast"}, "--dram fast: 'fast' is not a number with a unit"),
        ({"sms": "1e9"}, "count = "),
    ],
)
def test_bad_wishes_are_refused_in_one_line(wishes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        new_machine("mine", "h100-sxm", wishes)
    assert "\n" not in str(error.value)


def test_families_without_rules_say_what_to_write() -> None:
    with pytest.raises(InputError, match=r"tpu-v4 is of the family tpu.*machine file with base:"):
        new_machine("mine", "tpu-v4", {"sms": "2"})


def test_the_command_writes_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["new-machine", "--base", "a100-sxm4-80gb", "--sms", "128", "-o", "mine.yaml"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "mine.yaml, on a100-sxm4-80gb" in out
    assert "--arch a100-sxm4-80gb ./mine.yaml" in out
    assert main(["archs", "./mine.yaml", "--json"]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "--force overwrites it" in capsys.readouterr().err
