"""Quantities: what people may write, what is refused and why, and that printing loses nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch import units


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        (units.BYTES, "50 MiB", 50 * 2**20),
        (units.BYTES, "80GB", 80 * 10**9),
        (units.BYTES, "227 KiB", 227 * 1024),
        (units.BYTES, "1_024 B", 1024),
        (units.BYTES_PER_S, "3.35 TB/s", 3_350_000_000_000),
        (units.BYTES_PER_CYCLE, "35.5 B/clk", Fraction(71, 2)),
        (units.CYCLES, "265 cycles", 265),
        (units.HERTZ, "1.755 GHz", 1_755_000_000),
        (units.TIME, "3.9 us", 3_900_000),
        (units.TIME, "45 ns", 45_000),
        (units.POWER, "700 W", 700_000),
        (units.VOLTAGE, "0.75 V", 750),
        (units.ENERGY_PER_BYTE, "13.1 pJ/bit", 104_800),
        (units.ENERGY_PER_FLOP, "0.575 pJ/FLOP", 575),
    ],
)
def test_people_units_are_exact(unit: units.Unit, text: str, value: int | Fraction) -> None:
    assert unit.parse(text) == value


@pytest.mark.parametrize(
    ("unit", "text", "hint"),
    [
        (units.BYTES, "50", "'50 MiB'"),
        (units.BYTES, "50 KB", "'50 kB' (1000 bytes) or '50 KiB' (1024 bytes)"),
        (units.BYTES, "50 mib", "'50 MiB'"),
        (units.BYTES, "50 ns", "'50 MiB'"),
        (units.BYTES_PER_S, "3 TB", "'3.35 TB/s'"),
        (units.TIME, "fast", "'45 ns'"),
        (units.TIME, "", "'45 ns'"),
    ],
)
def test_other_text_is_refused_with_the_right_spelling(unit: units.Unit, text: str, hint: str) -> None:
    with pytest.raises(ValueError, match="write") as caught:
        unit.parse(text)
    assert hint in str(caught.value)


def test_numbers_from_python_are_in_the_base_unit_and_booleans_are_no_quantity() -> None:
    assert units.BYTES.parse(128) == 128
    assert units.BYTES_PER_CYCLE.parse(35.1) == Fraction("35.1")
    with pytest.raises(ValueError, match="not a quantity"):
        units.BYTES.parse(True)


@given(
    st.integers(0, 2**53), st.sampled_from([units.BYTES, units.HERTZ, units.TIME, units.POWER, units.ENERGY_PER_BYTE])
)
def test_printed_values_are_exact(value: int, unit: units.Unit) -> None:
    assert unit.parse(unit.format(value)) == value


def test_printed_values_use_the_unit_that_people_would() -> None:
    assert units.BYTES.format(50 * 2**20) == "50 MiB"
    assert units.BYTES.format(141 * 10**9) == "141 GB"
    assert units.BYTES_PER_S.format(3352 * 10**9) == "3.352 TB/s"
    assert units.BYTES_PER_CYCLE.format(35.5) == "35.5 B/clk"
    assert units.TIME.format(0) == "0 ps"


@pytest.mark.parametrize(
    ("attribute", "typed"),
    [
        ("size_bytes", "size"),
        ("bandwidth_bytes_per_s", "bandwidth"),
        ("read_bytes_per_cycle", "read"),
        ("count", "count"),
    ],
)
def test_words_drop_the_unit(attribute: str, typed: str) -> None:
    assert units.word(attribute) == typed
