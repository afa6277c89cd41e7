"""Layers of a graph that repeat: simulated until what they find before them repeats too, then counted as one of these.

A layer's time depends on the layer itself, on what the L2 holds, and on the clock. Once more has been touched than the
L2 holds, its contents are those that the layer before left, relative to the layers' own addresses; once the regulator's
average is full, its clock is that of layers of this kind. What is left between such layers is where their lines lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, stdev
from typing import Protocol

from arch.gpu import GpuSpec
from sim.gpu.power.regulator import PowerRegulator, Regulator
from workloads.graphs import Repeat

LEAST = 3
"""Layers of which a mean is taken at least."""
SETTLED = 0.002
"""To how much of it their mean must be known, as its standard error: less than half of what the rule may be off."""
LONG = 20
"""How often a layer must move what the L2 holds, so that neither that nor where lines lie matters much to its time: one
layer is enough then, if the one before, which began cold, is `ALIKE`."""
ALIKE = 0.01
"""To how much of it."""


class Entry(Protocol):
    """A step that has run."""

    @property
    def time_ps(self) -> int:
        """Device time of its kernels."""


@dataclass
class Settling:
    """One repeat of a graph while it runs. before: by layer, bytes that are touched before it begins. moved: bytes of
    the operands and results of a layer's steps. ready: those
    layers that found the state that repeats; from layer `counted` on all are counted as these in turn, if it is not 0.
    begun: layers that have.
    """

    repeat: Repeat
    entries: Sequence[Entry]
    before: Sequence[int]
    moved: int
    ready: list[int] = field(default_factory=list)
    counted: int = 0
    begun: int = 0

    def counts(self, layer: int, spec: GpuSpec, regulator: Regulator) -> bool:
        """Whether a layer is counted. Asked before each kernel, in order."""
        if layer >= self.begun and not self.counted:
            self.begun = layer + 1
            self._begin(layer, spec, regulator)
        return bool(self.counted) and layer >= self.counted

    def source(self, layer: int) -> int:
        """The layer as which a counted one is counted."""
        return self.ready[(layer - self.counted) % len(self.ready)]

    def _begin(self, layer: int, spec: GpuSpec, regulator: Regulator) -> None:
        """A layer is next: it is simulated, or from here on all are counted."""
        if self._settled(layer, spec.l2.size_bytes):
            self.counted = layer
        elif layer and self.before[layer] >= spec.l2.size_bytes and _steady(regulator):
            self.ready.append(layer)

    def _settled(self, layer: int, l2_bytes: int) -> bool:
        """Whether the time of the layers that found the state that repeats is known well enough."""
        times = [self._time_ps(number) for number in self.ready]
        if len(times) == 1 and self.moved >= LONG * l2_bytes:
            before = self._time_ps(layer - 2)
            return abs(times[0] - before) <= ALIKE * before
        return len(times) >= LEAST and stdev(times) <= SETTLED * mean(times) * sqrt(len(times))

    def _time_ps(self, layer: int) -> int:
        return sum(self.entries[step].time_ps for step in self.repeat.layer(layer))

    @property
    def note(self) -> str:
        """What a report says; empty where all layers are simulated."""
        if not self.counted:
            return ""
        first, last = self.ready[0] + 1, self.ready[-1] + 1
        times = [self._time_ps(number) for number in self.ready]
        spread = f"{100 * (max(times) - min(times)) / max(times):.2f} %"
        which = f"layers {first} to {last} in turn, which differ by {spread}" if last > first else f"layer {first}"
        return (
            f"Layers {self.counted + 1} to {self.repeat.times} are counted as {which}: what they find in the L2 and "
            "their clock repeat. --exact simulates all."
        )


def _steady(regulator: Regulator) -> bool:
    """Whether the clock is that of work of this kind: locked, or regulated by an average that is full of it."""
    if not isinstance(regulator, PowerRegulator):
        return True
    return regulator.full and (regulator.busy or regulator.elapsed_ps >= regulator.spec.clock.recovery_ps)
