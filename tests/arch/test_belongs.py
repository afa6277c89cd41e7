"""What goes with a primary figure where somebody changes that one alone, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.load import list_archs, load_arch

CORE = ("t_rcd", "t_rp", "t_ras", "t_rc", "t_wtr", "t_rtw", "t_refi", "t_rfc", "latency")
"""Figures of a memory whose times do not depend on how fast its interface is."""


@pytest.mark.parametrize("machine", list_archs())
@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
def test_bandwidth_of_a_memory_brings_its_interface_and_leaves_the_core(machine: str, factor: float) -> None:
    base = load_arch(machine)
    for group in {"rdu": ("hbm", "ddr")}.get(base.family, ("dram",)):
        if getattr(base, group, None) is None:
            continue
        before = getattr(base, group)
        fast = load_arch(machine, [f"{group}.bandwidth={before.bandwidth_bytes_per_s * factor / 1e9:.3f} GB/s"])
        after = getattr(fast, group)
        assert after.channels == before.channels
        for name in ("banks", "queue"):
            assert getattr(after, name) == max(1, round(getattr(before, name) * factor))
        for name in CORE:
            assert getattr(after, f"{name}_ps") == getattr(before, f"{name}_ps")
        for name in ("t_ccd_ps", "t_faw_ps"):
            assert getattr(after, name, 0) == pytest.approx(getattr(before, name, 0) / factor, abs=1)


def test_what_is_set_beside_a_primary_figure_stays() -> None:
    faster = load_arch("h100-sxm", ["dram.bandwidth=6.704 TB/s", "dram.channels=320"])
    assert (faster.dram.channels, faster.dram.t_ccd_ps, faster.dram.banks) == (320, 1750, 16)
    timed = load_arch("h100-sxm", ["dram.bandwidth=6.704 TB/s", "dram.t_ccd=1 ns"])
    assert (timed.dram.channels, timed.dram.t_ccd_ps) == (160, 1000)
    assert dict(timed.belonging) == {"dram.t_faw": "10 ns", "dram.banks": "32", "dram.queue": "22"}


def test_the_value_that_a_machine_has_changes_nothing() -> None:
    assert load_arch("h100-sxm", ["dram.bandwidth=3.352 TB/s"]).content_hash() == load_arch("h100-sxm").content_hash()


def test_a_file_of_ones_own_says_the_same_as_an_override(tmp_path: Path) -> None:
    """A file that ships states all that its board has: nothing goes with what it says."""
    own = tmp_path / "mine.yaml"
    own.write_text("base: h100-sxm\nname: h100-sxm\ndram: {bandwidth: 6 TB/s}\n", encoding="utf-8")
    typed = load_arch("h100-sxm", ["dram.bandwidth=6 TB/s"])
    assert load_arch(own).content_hash() == typed.content_hash()
    assert load_arch("h200-sxm").dram.t_ccd_ps == 1600


def test_bandwidth_of_the_l2_is_that_of_writes_and_of_the_link_too() -> None:
    base, fast = load_arch("a100-sxm4-80gb"), load_arch("a100-sxm4-80gb", ["l2.bandwidth=96 B/clk"])
    ratio = 96 / base.l2.bandwidth_bytes_per_cycle
    for name in ("write_bandwidth", "link_bandwidth"):
        before, after = (getattr(spec.l2, f"{name}_bytes_per_cycle") for spec in (base, fast))
        assert after == pytest.approx(ratio * before)


def test_a_wider_array_of_shared_memory_has_the_banks_for_it() -> None:
    assert load_arch("a100-sxm4-80gb", ["shared.bandwidth=140 B/clk"]).shared.banks == 64
    assert load_arch("a100-sxm4-80gb", ["shared.bandwidth=64 B/clk"]).shared.banks == 32
    assert load_arch("a100-sxm4-80gb", ["shared.bandwidth=1024 B/clk"]).shared.banks == 128


def test_paths_of_arrays_are_as_wide_as_they() -> None:
    larger = load_arch("tpu-v1", ["array.rows=512", "array.columns=320"])
    assert (larger.unified_buffer.bandwidth_bytes_per_cycle, larger.activation.values) == (512, 320)
    smaller = load_arch("tpu-v1", ["array.rows=128"])
    assert smaller.unified_buffer.bandwidth_bytes_per_cycle == 256
    assert not load_arch("tpu-v4", ["array.rows=256"]).belonging  # its paths are wider than all arrays together
