"""Decoder layers: numbers in every form and on several devices, and what looping and fusion are worth."""

from __future__ import annotations

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.report.report import Report
from sim.app.run import simulate
from workloads.rdu.decoder import copied_layers

DECODE = "llama model=tiny phase=decode seq=40 batch=2"
PREFILL = "llama model=tiny phase=prefill seq=64 batch=2"
CASES = [
    (f"{DECODE} layers=3", "looped"),
    (f"{DECODE} layers=3 tp=2", "looped"),
    (f"{DECODE} tp=4", "fused"),
    (DECODE, "unfused"),
    (f"{PREFILL} layers=2", "looped"),
    (PREFILL, "fused"),
    (f"{PREFILL} tp=2", "cut"),
    (PREFILL, "unfused"),
]


@pytest.mark.parametrize(("text", "schedule"), CASES)
def test_layers_compute_what_numpy_says(text: str, schedule: str) -> None:
    report = simulate(text, "sn40l", schedule=schedule, check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def decode(schedule: str, tp: int = 8, overrides: tuple[str, ...] = ()) -> Report:
    spec = load_arch("sn40l", overrides)
    return simulate(f"llama model=llama3.1-8b phase=decode seq=4096 layers=4 tp={tp}", spec, schedule=schedule)


def test_looping_keeps_memory_busy_where_launches_let_it_wait() -> None:
    looped = decode("looped by hardware")
    launched = {who: decode(f"fused by {who} tokens 1") for who in ("hardware", "host")}
    assert looped.figures.speed_of_light()["hbm"] > 0.8
    assert len(looped.record.kernels) == 1
    assert len(launched["host"].record.kernels) == 4
    assert 1 < launched["hardware"].time_us / looped.time_us < launched["host"].time_us / looped.time_us < 4


def test_unfused_layers_pay_for_launches_and_reconfiguration() -> None:
    fused, unfused = decode("fused by hardware tokens 1"), decode("unfused by hardware tokens 1")
    assert unfused.time_us / fused.time_us > 2
    cheap = decode("unfused by hardware tokens 1", overrides=("launch.program_load=0 us",))
    assert cheap.time_us < unfused.time_us / 2


def test_more_sockets_shorten_a_token_less_than_they_are() -> None:
    times = {tp: decode("looped by hardware", tp).time_us for tp in (1, 8, 16)}
    assert times[1] > 5 * times[8]
    assert 1.2 < times[8] / times[16] < 2


def test_a_layer_that_does_not_fit_is_cut_and_a_loop_is_refused() -> None:
    text = "llama model=llama3-8b phase=prefill seq=1024 batch=8"
    report = simulate(text, "sn40l", schedule="fused")
    assert len(report.record.kernels) > 1
    assert any("it is cut into" in note for note in report.record.notes)
    with pytest.raises(InputError, match=r"needs at least .* PMUs.*cannot be cut, as the loop over layer"):
        simulate(f"{text} layers=2", "sn40l", schedule="looped")
    with pytest.raises(InputError, match="plasticine has no links to other devices"):
        simulate("llama model=tiny phase=decode tp=2 dtype=fp32", "plasticine")


def test_layers_beyond_hbm_come_from_ddr_beside_those_that_run() -> None:
    """70B on two sockets: 69 layers of weights and caches fit, 11 are copied; DDR's bandwidth bounds the token."""
    text = "llama model=llama3.1-70b phase=decode seq=4096 layers=80 tp=2"
    report = simulate(text, "sn40l")
    assert report.record.schedule == "fused by hardware tokens 1 from ddr"
    counters = report.figures.counters
    copied = sum(k.counters.get("prefetch_bytes", 0) > 0 for k in report.record.kernels)
    layer = 2 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 4 * 8192)  # norms on both
    assert counters["prefetch_bytes"] == copied * layer == counters["ddr_read_bytes"]
    copy_us = copied * layer / 2 / 200e9 * 1e6
    waited_us = sum(k.launch_ps.get("prefetch", 0) for k in report.record.kernels) / 1e6
    runs_us = report.time_us - waited_us
    assert report.time_us == pytest.approx(max(copy_us, runs_us), rel=0.02)
    assert waited_us < 0.2 * copy_us
    assert "hidden by what ran" in str(report)
    assert report.bound == "ddr"
    assert report.figures.speed_of_light()["ddr"] == pytest.approx(copy_us / report.time_us, rel=1e-3)
    assert "Copies from DDR to HBM bound it" in str(report)
    with pytest.raises(InputError, match=r"arrays take .* sn40l has hbm.size"):
        simulate(text, "sn40l", schedule="looped by hardware")
    with pytest.raises(InputError, match=r"arrays take .* sn40l has hbm.size"):
        simulate(text, "sn40l", schedule="fused by hardware tokens 1")
    with pytest.raises(InputError, match="looped keeps its layers in HBM; nearest: looped by host"):
        simulate(text, "sn40l", schedule="looped by host from ddr")


def test_copied_layers_are_spread_evenly() -> None:
    assert copied_layers(6, 6) == [False] * 6
    assert copied_layers(6, 4) == [False, False, True, False, False, True]
    assert copied_layers(4, 0) == [True] * 4


@pytest.mark.parametrize("form", ["fused", "unfused"])
def test_numbers_are_the_same_from_ddr(form: str) -> None:
    """With 4 MiB of HBM two of four layers come from DDR; cut into sections, each brings its own weights."""
    spec = load_arch("sn40l", ("hbm.size=4 MiB",))
    report = simulate(f"{DECODE} layers=4", spec, schedule=f"{form} by hardware from ddr", check=True)
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    weights = 256 * ((2 * 4 + 2 * 2) * 64 + 3 * 256 + 2) * 2
    assert report.figures.counters["prefetch_bytes"] == 2 * weights


def test_tiles_of_weights_fill_the_chip() -> None:
    """A tile of the product has blocks for all PCUs: with narrower ones most arrays would have none."""
    report = simulate("llama model=llama3-8b phase=prefill seq=1024 batch=8", "sn40l")
    assert report.figures.share_of_peak > 0.65


def test_the_command_line_chooses_and_reports_prefetch(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ["llama", "model=tiny", "phase=decode", "seq=40", "batch=2", "layers=4"]
    assert main(["run", *workload, "--arch", "sn40l", "--set", "hbm.size=3 MiB"]) == 0
    printed = capsys.readouterr().out
    assert "fused by hardware tokens 2 from ddr" in printed
    assert "Prefetch from DDR" in printed
    assert "waited for" in printed


def test_layers_that_leave_no_room_for_the_rest_come_from_ddr_too() -> None:
    """Weights alone fit, with what passes between sections they do not: all forms in HBM are left out first."""
    spec = load_arch("sn40l", ("hbm.size=3200 KiB",))
    report = simulate("llama model=tiny phase=prefill seq=256 layers=4", spec)
    assert report.record.schedule.endswith("from ddr")
    assert all("arrays take" in note for note in report.record.notes if "left out" in note)
    assert report.figures.counters["prefetch_bytes"] > 0
