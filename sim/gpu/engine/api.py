"""One GPU as a host program sees it: a device with memory that persists, on which kernels are built and advanced.

`Device` owns what outlives a kernel (L2 contents, DRAM rows). `Device.build` lowers a kernel and places its first
wave; `Launch.advance` goes on to a tick and returns, so that a host model can interleave devices; `Launch.run` goes
to the end, returning to the regulator at its boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from arch import limits
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.reads import Remembered
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE, ps_to_ticks
from sim.engine.extensions import compiled
from sim.gpu.counters import Counter
from sim.gpu.engine import loop as native
from sim.gpu.engine.beside import STEP_CYCLES, Beside, Held
from sim.gpu.engine.deadlock import DeadlockError, waiting
from sim.gpu.engine.flow import Trips
from sim.gpu.engine.global_memory import Stores
from sim.gpu.engine.own_loop import STOPPED, OwnLoopKernel
from sim.gpu.engine.parameters import parameters
from sim.gpu.engine.state import drop_state, new_state
from sim.gpu.language import Kernel
from sim.gpu.lower.kernel import left_limit, lower_kernel
from sim.gpu.lower.occupancy import Occupancy, occupancy, shared_of_cta
from sim.gpu.lower.tables import Col, GpuProgram, Kind, Scratch
from sim.gpu.power.energy import EnergyModel
from sim.gpu.power.regulator import FixedClock, Regulator
from sim.gpu.units.chip import Chip, Launching
from sim.gpu.units.cta import Cta, CtaFigure, CtaSlots, Grid
from sim.gpu.units.events import Reason, Window
from sim.gpu.units.pipes import SubCore
from sim.gpu.units.port import gpc_ports
from sim.gpu.units.record import Recorder
from sim.gpu.units.shared import SharedMemory
from sim.gpu.units.warp import Warp
from sim.memory.counters import MemoryCounter
from sim.memory.dram import BUS_FREE, CHANNEL_WORDS
from sim.memory.model import MemorySpec, drop_memory_state, flush, lower_memory, new_memory_state, settle

FIGURES = ("clock.boost", "launch.drain", "launch.kernel", "launch.setup", "sm.instruction_cache")
"""Figures of a preset that this module reads."""

_LOG_ROWS = 1 << 16
_WHOLE_KERNEL_TICKS = 1 << 40
_LOOK_TICKS, _SHORT_LOOK_TICKS = 16384 * TICKS_PER_CYCLE, 37 * TICKS_PER_CYCLE
"""Steps of a kernel that is watched: more than a window of the regulator; and, of every eighth step, a multiple that
falls on any place of a loop, however long the loop is."""
_CODE_SLOTS = 64  # places for machine code below the tensors


_LOWERED = Remembered[tuple[Kernel, GpuProgram]](16)
"""Tables of the last kernels, with the kernels themselves, by whose identity they are found."""

_ADVANCE: dict[tuple[Callable[..., int], bool], Callable[..., int]] = {}
"""The compiled loops, by whether they record; types of arguments differ in nothing else."""


def _lowered(kernel: Kernel, addresses: Mapping[str, int], spec: GpuSpec) -> GpuProgram:
    key = (id(kernel), tuple(addresses.items()))
    return _LOWERED.of(key, spec, lambda machine: (kernel, lower_kernel(kernel, addresses, machine)))[1]


def _meets(program: Any) -> bool:
    """Whether warps of a kernel meet at named barriers, as far as its tables tell."""
    kinds = (Kind.BAR_SYNC, Kind.BAR_ARRIVE)
    return not isinstance(program, GpuProgram) or bool(np.isin(program.code[:, Col.KIND], kinds).any())


@dataclass
class KernelResult:
    """What one kernel did.

    ticks: from launch to the end, drain included, at 256 a core cycle. time_ps: the same in picoseconds, clock
    changes included. warp_states and issue_slots are in ticks and sum to warp residency and to sub-cores x ticks.
    barrier_waits are those of `barrier` in warp_states, by what the last warp of each meeting did meanwhile; `barrier`
    among them is the barrier's own time.
    """

    kernel: Kernel
    occupancy: Occupancy
    ticks: int
    time_ps: int
    energy_fj: int
    counters: dict[str, int]
    memory: dict[str, int]
    warp_states: dict[str, int]
    barrier_waits: dict[str, int]
    issue_slots: dict[str, int]
    clock_hz: int
    clocks: list[tuple[int, int]] = field(default_factory=list)  # (time in ps, Hz) at each change
    events: np.ndarray | None = None
    trace: np.ndarray | None = None  # rows of `sim.gpu.units.events.TraceRow`


class HeldCode:
    """The code that instruction caches hold: of the kernels that ran last."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._bytes: dict[str, int] = {}  # by kernel, the last used at the end

    def __contains__(self, kernel: Kernel) -> bool:
        return kernel.name in self._bytes

    def hold(self, kernel: Kernel) -> bool:
        """Leaves a kernel's code there, as a run of it does; whether it was there before."""
        known = self._bytes.pop(kernel.name, None)
        self._bytes[kernel.name] = kernel.code_bytes
        while sum(self._bytes.values()) > self._size_bytes and len(self._bytes) > 1:
            del self._bytes[next(iter(self._bytes))]
        return known is not None


class Device:
    """A GPU with its memory system. clock: the regulator; exact: every instruction issues in an event of its own.

    cold_launch: kernels whose code the instruction caches do not hold fetch it, and tensor maps, through the L2; they
    are empty at first.

    window: what kernels record while they run; None with `log` for all ops and no warp states.
    """

    def __init__(
        self,
        spec: GpuSpec,
        *,
        regulator: Regulator | None = None,
        exact: bool = False,
        log: bool = False,
        cold_launch: bool = True,
        data: str = "normal",
        window: Window | None = None,
    ) -> None:
        self.spec = spec
        self.window = window
        self.regulator = regulator or FixedClock(spec.clock.boost_hz)
        self.exact, self.log, self.cold_launch = exact, log, cold_launch
        self.energy = EnergyModel(spec, data)
        self._memory_specs: dict[int, MemorySpec] = {}
        self.memory = new_memory_state(self.memory_spec(self.regulator.clock_hz))
        self.beside: Beside | None = None
        """The collective that runs now, beside which kernels start."""
        self._code: dict[str, int] = {}
        self._held_code = HeldCode(spec.sm.instruction_cache_bytes)

    def memory_spec(self, clock_hz: int) -> MemorySpec:
        """The memory system lowered for a core clock."""
        if clock_hz not in self._memory_specs:
            self._memory_specs[clock_hz] = lower_memory(self.spec, clock_hz, *gpc_ports(self.spec))
        return self._memory_specs[clock_hz]

    def flush_l2(self) -> None:
        """Empties the L2, as before a cold run."""
        flush(self.memory_spec(self.regulator.clock_hz), self.memory)

    def drop(self) -> None:
        """Hands back the memory of the L2's contents: nothing runs here any more."""
        drop_memory_state(self.memory)

    def build(
        self, kernel: Kernel, addresses: Mapping[str, int], *, launch_ps: int | None = None, origin_ps: int = 0
    ) -> Launch:
        """Lowers `kernel` and places its first CTAs after `launch_ps` (default: the preset's command processing, and
        the set-up of a kernel whose code is cold). origin_ps: its launch, on the clock of what runs beside it."""
        number = self._code.setdefault(kernel.name, len(self._code) % _CODE_SLOTS)
        cold = not self.hold_code(kernel) and self.cold_launch
        if launch_ps is None:
            launch_ps = self.spec.launch.kernel_ps + (self.spec.launch.setup_ps if cold else 0)
        return Launch(self, kernel, addresses, number, launch_ps, cold, origin_ps)

    def hold_code(self, kernel: Kernel) -> bool:
        """Leaves a kernel's code in the instruction caches, as a run of it does; whether they held it before."""
        return self._held_code.hold(kernel)

    def run(
        self,
        kernel: Kernel,
        addresses: Mapping[str, int],
        *,
        launch_ps: int | None = None,
        drain_ps: int | None = None,
    ) -> KernelResult:
        """Builds and runs a kernel to its end."""
        return self.build(kernel, addresses, launch_ps=launch_ps).run(drain_ps)


class Fullness(NamedTuple):
    """What each part of the chip has before it at one moment. resident: CTAs of each SM. slices, channels: ticks for
    which each slice of the L2, and each channel's bus, is booked ahead."""

    resident: np.ndarray
    slices: np.ndarray
    channels: np.ndarray


class Launch:
    """One kernel on its way: `build` has been done, `advance` goes on; `result` is there after `windows` or `run`.

    samples: (tick, counters of SMs and memory one after the other), where the device's window asks for them, and
    fullness: of the same moments. clocks: (time in ps since the launch, Hz) at its start and at each change so far.
    late: it was given up, since it takes longer than the limit that it was given; it has no result.
    """

    result: KernelResult
    late = False

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        addresses: Mapping[str, int],
        number: int,
        launch_ps: int,
        cold: bool,
        origin_ps: int = 0,
    ) -> None:
        self.device, self.kernel, self.origin_ps, self.addresses = device, kernel, origin_ps, addresses
        spec = device.spec
        self.occupancy = occupancy(kernel, spec)
        self.clock_hz = device.regulator.clock_hz
        launch = Launching(
            kernel,
            self.occupancy,
            shared_bytes=shared_of_cta(kernel, spec),
            clock_hz=self.clock_hz,
            start_ps=launch_ps,
            code_number=number,
            exact=device.exact,
            cold=cold,
        )
        self.p = parameters(spec, launch)
        self._loop: Callable[..., int] = native.advance
        self._watch: Callable[[Any, Any], None] | None = None
        self._reached = self._looks = self._tick = 0
        self._window = (0, 0)  # tick and time in ps since the launch, of the last change of the clock
        self._held: Held | None = None
        self._foreign = np.zeros(len(MemoryCounter), np.int64)
        if device.beside is not None:
            device.beside.move(device, self.clock_hz, 0, origin_ps)
        if isinstance(kernel, OwnLoopKernel):
            kernel.parameters(self.p)
            self._loop, self._watch = kernel.loop, kernel.watch()
            self.program = kernel.tables(self.p, addresses, spec)
        else:
            self.program = _lowered(kernel, addresses, spec)
            for array in self.program:
                array.flags.writeable = False  # as `sim.engine.jit` takes them
        self.p.flags.writeable = False
        self.launch_ps = launch_ps
        window = device.window
        if window is None and device.log:
            window = Window(0, _WHOLE_KERNEL_TICKS, 0, int(self.p[Chip.SMS]) - 1, _LOG_ROWS, trace=False)
        self.state = new_state(self.p, spec, window, meets=_meets(self.program))
        self._memory_before = device.memory.counters.copy()
        self.samples: list[tuple[int, np.ndarray]] = []
        self.fullness: list[Fullness] = []
        self.clocks: list[tuple[int, int]] = [(0, self.clock_hz)]
        settle(device.memory)
        if device.beside is not None:
            self.hold(device.beside)

    def hold(self, beside: Beside) -> None:
        """A collective that has started takes SMs that have no work."""
        self._held = Held(beside, self)

    def idle_sms(self) -> np.ndarray:
        """SMs without a CTA, in the order in which CTAs are placed."""
        sms = self.state.sms
        turns = sms[:, CtaSlots.IN_TURN]
        return np.asarray(turns[sms[turns, CtaSlots.FREE] == self.occupancy.ctas])

    @property
    def room(self) -> int:
        """SMs that no CTA of this kernel has or will have."""
        return 0 if self._clusters_left() else len(self.idle_sms())

    def now_ps(self, tick: int) -> int:
        """Time at a tick of this window, on the clock of `origin_ps`."""
        first, time_ps = self._window
        return self.origin_ps + time_ps + (tick - first) * PS_PER_S // (TICKS_PER_CYCLE * self.clock_hz)

    def since_launch_ps(self, tick: int) -> int:
        """Time since the launch at a tick so far, through all changes of the clock."""
        reached, reached_ps, hz = 0, 0, self.clock_hz
        for change_ps, changed_hz in self.clocks:
            at = reached + ps_to_ticks(change_ps - reached_ps, hz)
            if at > tick:
                break
            reached, reached_ps, hz = at, change_ps, changed_hz
        return reached_ps + (tick - reached) * PS_PER_S // (TICKS_PER_CYCLE * hz)

    @property
    def _memory_spec(self) -> MemorySpec:
        return self.device.memory_spec(self.clock_hz)

    def advance(self, until: int) -> int:
        """Processes events up to tick `until`; returns the tick of the next one, -1 when the kernel has ended."""
        window = self.device.window
        if window is not None and window.sample_ticks:
            at = self.samples[-1][0] + window.sample_ticks if self.samples else window.from_tick
            while at < min(until, window.to_tick):
                ended = self._advance(at) < 0
                self._sample(at)
                if ended:
                    break
                at += window.sample_ticks
        return self._advance(until)

    def _advance(self, until: int) -> int:
        """As `advance`; a kernel that is watched in steps of changing length, so that what never ends is noticed."""
        if self._held is not None:
            return self._to_beside(self._held, until)
        if self._watch is None:
            return self._to(until)
        tick = 0
        while True:
            self._looks += 1
            short = self._looks % 8 == 0
            step = self._looks // 8 % 61 * _SHORT_LOOK_TICKS if short else _LOOK_TICKS
            self._reached = min(until, max(self._reached, tick) + step)
            tick = self._to(self._reached)
            if tick >= 0 and short:
                self._watch(self.program, self.state)
            if tick < 0 or self._reached >= until:
                return tick

    def _to_beside(self, held: Held, until: int) -> int:
        """As `advance`, in short steps with what a collective moves, until that has ended."""
        following = 0
        while self._tick < until:
            held.step(self._tick)
            if held.over:
                return self._to(until, self._admitting())
            self._tick = min(until, self._tick + STEP_CYCLES * TICKS_PER_CYCLE)
            following = self._process(self._tick)
            if following < 0 and not self._clusters_left():
                return self._to(until)
        return max(following, until)

    def _admitting(self) -> np.ndarray:
        """Parameters with which the loop places the CTAs that wait now; nothing is held from now on."""
        assert self._held is not None
        self._foreign += self._held.added
        self._held = None
        self.state.chip[Grid.STARTED] = 0
        p = self.p.copy()
        p[CtaFigure.START] = max(self.start_tick, self._tick)
        p.flags.writeable = False
        return p

    def _to(self, until: int, p: np.ndarray | None = None) -> int:
        tick = self._process(until, p)
        if not isinstance(self.kernel, OwnLoopKernel):
            self._refuse_faults()
        if tick == STOPPED and isinstance(self.kernel, OwnLoopKernel):
            raise self.kernel.stopped(self.program)
        if tick < 0 and self._clusters_left() + self.state.chip[Grid.LIVE_CTAS] > 0:
            if isinstance(self.kernel, OwnLoopKernel):
                raise DeadlockError(self.kernel.waiting(self.program, self.state))
            raise DeadlockError(waiting(self.kernel, self.state))
        return tick

    def _refuse_faults(self) -> None:
        """InputError where a value has left its limits, or the kernel takes more steps than a program may."""
        fault, value = (int(self.state.stack[column]) for column in (Scratch.FAULT, Scratch.VALUE))
        if fault:
            raise InputError(left_limit(self.kernel, self.addresses, self.device.spec, fault - 1, value))
        if self.state.chip[Trips.LEFT] <= 0:
            raise limits.too_long(f"kernel {self.kernel.name}")

    def _process(self, until: int, p: np.ndarray | None = None) -> int:
        """Calls the compiled loop."""
        self._tick = until
        p = self.p if p is None else p
        arguments = (p, self.program, self.state, self._memory_spec, self.device.memory, until)
        records = self.state.log is not None
        if (self._loop, records) not in _ADVANCE:
            _ADVANCE[self._loop, records] = compiled(self._loop, *arguments)
        return int(_ADVANCE[self._loop, records](*arguments))

    def windows(self, drain_ps: int | None = None, limit_ps: int | None = None) -> Iterator[int]:
        """Goes to the end of the kernel, a window of the regulator at a time: for host models that interleave devices.

        Yields the time since the launch in ps at the end of each window, at last the kernel's whole time; `result`
        is there afterwards. drain_ps: from the last CTA's end to the kernel's (default: the preset's). limit_ps: a
        kernel that takes longer is given up as soon as that is known, and is `late`.
        """
        drain_ps = self.device.spec.launch.drain_ps if drain_ps is None else drain_ps
        regulator, chip = self.device.regulator, self.state.chip
        time_ps, tick, energy_fj, owed_fj = 0, 0, 0, 0
        window = regulator.window_ps
        step = ps_to_ticks(window, self.clock_hz) if window else _WHOLE_KERNEL_TICKS
        model = self.device.energy
        counters, memory = self.state.counters, self.device.memory.counters
        before_core, before_memory = model.actions_fj(counters, memory)
        before_macs = int(counters[Counter.MACS_TENSOR])
        while True:
            left = step
            if limit_ps is not None:
                left = min(step, ps_to_ticks(max(limit_ps - drain_ps - time_ps, 0), self.clock_hz))
            if self.advance(tick + left) < 0:
                break
            self.late = left < step
            if self.late:
                return
            tick += step
            time_ps += window
            self._window = (tick, time_ps)
            core, dram = model.actions_fj(counters, memory)
            # Counters begin when bytes are asked for; what DRAM cannot move within the window is spent in later ones.
            asked_fj = dram - before_memory + owed_fj
            moved_fj = min(asked_fj, model.memory_most_fj(window))
            owed_fj = asked_fj - moved_fj
            macs = int(counters[Counter.MACS_TENSOR])
            spent = model.window_fj(core - before_core, moved_fj, window, self.clock_hz, macs - before_macs)
            before_core, before_memory, before_macs = core, dram, macs
            energy_fj += spent.total_fj
            clock_hz = regulator.step(spent)
            if clock_hz != self.clock_hz:
                self.clock_hz = clock_hz
                self.clocks.append((time_ps, clock_hz))
                step = ps_to_ticks(window, clock_hz)
            yield time_ps
        end = max(int(chip[Grid.END]), int(chip[Stores.LAST]))
        rest_ps = (end - tick) * PS_PER_S // (TICKS_PER_CYCLE * self.clock_hz) + drain_ps
        if self.samples and tick < end <= chip[Recorder.TO]:
            if self.samples[-1][0] > end:  # it was taken when the kernel had ended
                self.samples.pop()
                self.fullness.pop()
            self._sample(end)
        core, dram = model.actions_fj(counters, memory)
        macs = int(counters[Counter.MACS_TENSOR]) - before_macs
        left_fj = dram - before_memory + owed_fj
        spent = model.window_fj(core - before_core, left_fj, max(rest_ps, 0), self.clock_hz, macs)
        regulator.step(spent)
        time_ps += rest_ps
        end += ps_to_ticks(drain_ps, self.clock_hz)
        self.result = self._result(end, time_ps, energy_fj + spent.total_fj)
        yield time_ps

    def record_within(self, from_tick: int, to_tick: int) -> None:
        """Moves the window of ticks that is recorded from now on."""
        self.state.chip[Recorder.FROM], self.state.chip[Recorder.TO] = from_tick, to_tick

    @property
    def events(self) -> int:
        """Events so far."""
        return int(self.state.counters[Counter.EVENTS])

    @property
    def counts(self) -> dict[str, int]:
        """What simulating it has taken so far: events, and lines of memory."""
        return {"events": self.events, "memory_lines": int(self.state.counters[Counter.LINES])}

    @property
    def share_done(self) -> float:
        """Share of the CTAs that have ended."""
        waiting = self._clusters_left() * self.kernel.cluster_size
        return 1 - (int(self.state.chip[Grid.LIVE_CTAS]) + waiting) / self.kernel.ctas

    @property
    def macs_done(self) -> int:
        """Multiply-accumulates so far."""
        counters = self.state.counters
        return int(counters[Counter.MACS_TENSOR] + counters[Counter.MACS_VECTOR])

    @property
    def start_tick(self) -> int:
        """Tick of the first CTA."""
        return int(self.p[CtaFigure.START])

    @property
    def last_warp_tick(self) -> int:
        """Tick at which the last warp so far has ended."""
        return int(self.state.chip[Grid.END])

    @property
    def log_rows_needed(self) -> int:
        """Rows of the event log so far, those included for which there was no room."""
        return int(self.state.chip[Recorder.LOG_ROWS])

    def last_cta_ticks(self) -> np.ndarray:
        """By SM: the end of its last CTA so far, 0 without one."""
        ends: np.ndarray = self.state.ctas[:, Cta.END].reshape(-1, self.occupancy.ctas).max(axis=1)
        return ends

    def sub_core_of(self, place: int) -> int:
        """Sub-core of its SM that a place for a warp on the chip belongs to."""
        return int(self.state.warps[place, Warp.SUB_CORE]) % int(self.p[Chip.SUB_CORES])

    def _clusters_left(self) -> int:
        """Clusters that have not started."""
        return int(self.p[CtaFigure.CLUSTERS] - self.state.chip[Grid.NEXT_CLUSTER])

    def run(self, drain_ps: int | None = None) -> KernelResult:
        """Goes to the end of the kernel in one go; see `windows`."""
        for _ in self.windows(drain_ps):
            pass
        return self.result

    def drop(self) -> None:
        """Hands back the memory of the state, tens of megabytes; only `result`, `samples` and `clocks` are left."""
        drop_state(self.state)
        del self.state

    # ---- results

    def _sample(self, tick: int) -> None:
        """Keeps counters and what each part of the chip has before it."""
        self.samples.append((tick, self._actions()))
        memory = self.device.memory
        slices = np.maximum(memory.read_free, memory.write_free) - tick
        channels = memory.dram.channel.reshape(-1, CHANNEL_WORDS)[:, BUS_FREE] - tick
        resident = int(self.p[Chip.CTAS_PER_SM]) - self.state.sms[:, CtaSlots.FREE]
        self.fullness.append(Fullness(resident, slices.clip(0), channels.clip(0)))

    def _actions(self) -> np.ndarray:
        """Counters of SMs and memory, one after the other."""
        return np.concatenate([self.state.counters, self._memory_counts()])

    def _memory_counts(self) -> np.ndarray:
        """Of the memory system, without what a collective has moved beside this kernel."""
        counts = self.device.memory.counters - self._memory_before - self._foreign
        return np.asarray(counts - self._held.added if self._held else counts)

    def _result(self, end: int, time_ps: int, energy_fj: int) -> KernelResult:
        state = self.state
        slots = state.issue_slots.copy()
        cursors = state.sub_cores[:, SubCore.CURSOR]
        slots[Reason.NO_WARP] += int((end - cursors).clip(min=0).sum())
        slots[Reason.SELECTED] += int((end - cursors).clip(max=0).sum())
        counts = {c.name.lower(): int(state.counters[c]) for c in Counter if c.name != "WIDTH"}
        # Loads that are spread over a run of instructions are booked ahead, some beyond the kernel's end.
        counts["shared_ticks"] -= int((state.sms[:, SharedMemory.BACKGROUND_FREE] - end).clip(min=0).sum())
        memory = self._memory_counts()
        mean_hz = end * PS_PER_S // (TICKS_PER_CYCLE * max(time_ps, 1))
        events = trace = None
        if state.log is not None and state.trace is not None:
            n_events, n_states = self.log_rows_needed, int(state.chip[Recorder.TRACE_ROWS])
            for needed, rows in ((n_events, state.log), (n_states, state.trace)):
                if needed > len(rows):
                    raise MemoryError(
                        f"the event log of kernel {self.kernel.name} holds {len(rows)} rows, {needed} needed"
                    )
            events = state.log[:n_events].copy()
            trace = state.trace[:n_states].copy()
        return KernelResult(
            kernel=self.kernel,
            occupancy=self.occupancy,
            ticks=end,
            time_ps=time_ps,
            energy_fj=energy_fj,
            counters=counts,
            memory={c.name.lower(): int(memory[c]) for c in MemoryCounter},
            warp_states={r.name.lower(): int(state.warp_states[r]) for r in Reason},
            barrier_waits={r.name.lower(): int(state.barrier_waits[r]) for r in Reason},
            issue_slots={r.name.lower(): int(slots[r]) for r in Reason},
            clock_hz=int(mean_hz),
            clocks=self.clocks,
            events=events,
            trace=trace,
        )
