"""Under which conditions kernels run on a GPU: what its L2 holds, its clock, its operands."""

from __future__ import annotations

from dataclasses import dataclass

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.units import HERTZ
from sim.app.families.request import Request, one_of
from sim.gpu.power.regulator import FixedClock, PowerRegulator, Regulator
from sim.host.scopes import REPEATED, GraphReplay

L2_STATES = ("cold", "warm", "dirty", "turns", "uploaded")
CLOCKS = ("isolated", "sustained")
DATA = ("normal", "uniform", "zeros", "half_zeros")

DEPENDENT_LAUNCH = 9.0
"""Compute capability from which on there is programmatic dependent launch (CUDA C++ Programming Guide)."""

_LOWEST_HZ = 100_000_000


@dataclass(frozen=True)
class Conditions:
    """Under which a run happens. l2: `cold` is empty, `dirty` full of lines that something else has written, `warm` as
    an earlier run leaves it, `turns` as runs on other operands leave it, `uploaded` with operands that the host has
    copied. clock_hz: locked there. cold_code: kernels fetch their instructions when they first run. replayed: how a
    benchmark replays the work in a graph. pdl: programmatic dependent launch of all kernels; dependents: of those that
    are made for it."""

    l2: str = "cold"
    clock: str = "isolated"
    clock_hz: int | None = None
    data: str = "normal"
    exact: bool = False
    cold_code: bool = True
    replayed: GraphReplay | None = None
    pdl: bool = False
    dependents: bool = False

    @property
    def fetches_code(self) -> bool:
        """Whether kernels that run for the first time fetch their code: a run before has left it where it ran warm."""
        return self.cold_code and self.l2 != "warm"

    def regulator(self, spec: GpuSpec) -> Regulator:
        """A fresh regulator; all return every few microseconds, so that progress shows and Ctrl-C is heard."""
        if self.clock == "locked":
            assert self.clock_hz is not None
            return FixedClock(self.clock_hz, PowerRegulator.WINDOW_PS)
        sustained = self.clock == "sustained"
        return PowerRegulator(spec, sustained=sustained, busy=self.replayed is not None, highest_hz=self.clock_hz)


def conditions_of(request: Request, spec: GpuSpec) -> Conditions:
    """What a request asks for; InputError where a word or a clock is wrong."""
    one_of("l2", request.l2, L2_STATES)
    one_of("data", request.data, DATA)
    bench, clock, clock_hz = request.bench, request.clock, request.bench.clock_hz
    if clock not in CLOCKS:
        clock, clock_hz = "locked", _locked_hz(clock, spec)
    return Conditions(
        l2=request.l2,
        clock=clock,
        clock_hz=clock_hz,
        data=request.data,
        exact=request.exact,
        # The mean of many calls is of kernels that have run before.
        cold_code=bench.cold_code and request.scope not in REPEATED,
        replayed=bench.replayed,
        pdl=request.pdl and _check_dependents(spec),
        # A profiler's times are those of kernels one by one: who waits for the kernel before counts twice in their sum.
        dependents=_has_dependents(spec) and request.scope != "kernel",
    )


def _has_dependents(spec: GpuSpec) -> bool:
    """Whether it can launch kernels before those that they depend on have ended."""
    return float(spec.compute_capability or 0) >= DEPENDENT_LAUNCH


def _check_dependents(spec: GpuSpec) -> bool:
    """True; InputError where it cannot."""
    if not _has_dependents(spec):
        raise InputError(
            f"pdl: programmatic dependent launch needs compute capability {DEPENDENT_LAUNCH}, {spec.name} has "
            f"{spec.compute_capability}; leave it out"
        )
    return True


def _locked_hz(clock: str, spec: GpuSpec) -> int:
    """The clock that a text such as `1.41 GHz` locks."""
    try:
        clock_hz = round(HERTZ.parse(clock))
    except ValueError:
        raise InputError(f"clock={clock}: must be {', '.join(CLOCKS)} or a clock such as 1.41 GHz") from None
    highest_hz = spec.clock.boost_hz
    if not _LOWEST_HZ <= clock_hz <= highest_hz:
        nearest = HERTZ.format(min(max(clock_hz, _LOWEST_HZ), highest_hz))
        limits = f"{HERTZ.format(_LOWEST_HZ)} to {HERTZ.format(highest_hz)}"
        raise InputError(f"clock={clock}: {spec.name} takes {limits}, nearest: {nearest}")
    return clock_hz
