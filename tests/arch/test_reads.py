"""What is made of a machine is kept as long as what was read of it is the same."""

from __future__ import annotations

from typing import Any

import pytest

from arch.gpu import GpuSpec
from arch.load import load_arch
from arch.reads import Remembered


def _made(remembered: Remembered[Any], spec: GpuSpec, key: str = "it", made: list[str] | None = None) -> Any:
    def make(machine: GpuSpec) -> tuple[int, float]:
        if made is not None:
            made.append(spec.label)
        return machine.sm.count, machine.instruction("ffma", "fp32").interval_cycles

    return remembered.of(key, spec, make)


def test_a_figure_that_was_not_read_keeps_what_was_made() -> None:
    remembered, made = Remembered[Any](4), list[str]()
    first = _made(remembered, load_arch("t4"), made=made)
    for override in ("l2.size=2 MiB", "clock.boost=1.4 GHz", "dram.bandwidth=200 GB/s"):
        assert _made(remembered, load_arch("t4", [override]), made=made) is first
    assert made == ["t4"]


@pytest.mark.parametrize("override", ["sm.count=20", "instructions.ffma.fp32.interval=4 cycles"])
def test_a_figure_that_was_read_makes_it_anew(override: str) -> None:
    remembered = Remembered[Any](4)
    first = _made(remembered, load_arch("t4"))
    changed = load_arch("t4", [override])
    assert (
        _made(remembered, changed) == (changed.sm.count, changed.instruction("ffma", "fp32").interval_cycles) != first
    )
    assert _made(remembered, load_arch("t4")) is first


def test_another_key_is_another_thing_and_the_last_ones_stay() -> None:
    remembered, made, spec = Remembered[Any](2), list[str](), load_arch("t4")
    for key in ("a", "b", "a", "c", "a", "b"):
        _made(remembered, spec, key, made)
    assert len(made) == 4  # a, b, c, and b again, which c had driven out


def test_a_copy_of_the_machine_is_all_of_it() -> None:
    remembered = Remembered[int](4)

    def doubled(machine: GpuSpec) -> int:
        return machine.model_copy(update={"sm": machine.sm.model_copy(update={"count": 80})}).l2.size_bytes

    first = remembered.of("copy", load_arch("t4"), doubled)
    assert remembered.of("copy", load_arch("t4", ["l2.size=2 MiB"]), doubled) == 2 << 20 != first


def test_what_a_machine_derives_is_made_once() -> None:
    remembered, spec = Remembered[bool](4), load_arch("t4")
    assert remembered.of("rows", spec, lambda machine: machine._rows is machine._rows)
