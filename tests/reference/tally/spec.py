"""What such a machine is."""

from typing import Literal

from arch.spec import Count, Group, MachineSpec
from arch.units import HERTZ, Hertz


class Clock(Group):
    """One frequency."""

    boost_hz: Hertz


class Adder(Group):
    """The only unit."""

    width: Count


class TallySpec(MachineSpec):
    """One adder."""

    family: Literal["tally"]
    clock: Clock
    adder: Adder

    @property
    def default_dtype(self) -> str:
        """What is added."""
        return "fp32"

    @property
    def summary(self) -> str:
        """In one line."""
        return f"{self.adder.width} numbers a cycle at {HERTZ.format(self.clock.boost_hz)}"

    def peak_flops(self, dtype: str) -> float:
        """Operations a second."""
        return float(self.adder.width * self.clock.boost_hz)
