"""What one GPU kernel recorded, as tracks: warps with their states, tensor pipes, TMA, memory in flight, counters.

Rows come from what the engine records in a window of ticks and SMs (`sim.gpu.units.events`). A warp's states tile its
life: a tick that no stall covers is one in which it issued. Counters are sampled; what the engine books when something
is asked for is shown as the unit serves it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from arch.gpu import GpuSpec
from sim.app.trace.rates import POWER_CYCLES, coarser, served
from sim.app.trace.timeline import HeatMap, Timeline
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE, ps_to_ticks
from sim.gpu.check.instances import places
from sim.gpu.counters import Counter
from sim.gpu.engine.api import KernelResult, Launch
from sim.gpu.engine.own_loop import OwnLoopKernel
from sim.gpu.language import Kernel, Op, walk
from sim.gpu.language.ops import TCGEN05, Action, Space, Unit
from sim.gpu.units.events import PHASE_SHIFT, TRACE_BEGIN, TRACE_END, Event, Reason, TraceRow
from sim.memory.counters import MemoryCounter

_SECTOR_BYTES = 32
_MAP_COLUMNS = 160
"""Moments of a map, at most."""


class _State(NamedTuple):
    """A piece of a warp's life, in ticks."""

    begin: int
    end: int
    name: str
    category: str
    place: str = ""


class _Shown(NamedTuple):
    """How an op or instruction is shown. lane: beside its warp, empty for none. lands: on a barrier; awaits: a phase of
    one. instructions: how many it stands for. place: in the listing, and in the source. queued: by the tensor core
    of its SM, or of both of a pair."""

    label: str
    lane: str
    category: str
    lands: bool
    awaits: bool
    multiplies: bool
    barrier: str
    instructions: int
    place: str
    queued: bool = False
    pair: bool = False


class _Rate(NamedTuple):
    """A counter of the chip. most: the unit's peak. columns: what each counter of the engine stands for, by its number.
    divisor: by which their sum is divided."""

    name: str
    unit: str
    most: float
    columns: dict[int, int]
    divisor: int = 1


class Collector:
    """Brings one kernel's rows into a timeline, on tracks that kernels share.

    root: track above all of them. at: a tick of the kernel as a cycle of the timeline. alone: no other kernel uses the
    tracks, and a warp's is named after its role.
    """

    def __init__(
        self,
        found: Timeline,
        root: int,
        spec: GpuSpec,
        launch: Launch,
        result: KernelResult,
        at: Callable[[int], int],
        *,
        alone: bool,
    ) -> None:
        self.found, self.root, self.spec, self.launch, self.result = found, root, spec, launch, result
        self.at, self.alone = at, alone
        kernel = result.kernel
        self.ops = _shown(kernel)
        self.roles = [role.name for role in kernel.roles for _ in range(role.warps)]
        self.places = places(kernel) if kernel.cluster_size > 1 else []
        self.clusters = [place.cluster for place in self.places] if self.places else None
        self.warps_per_sm = launch.occupancy.warps
        assert result.events is not None
        assert result.trace is not None
        self.events, self.rows = result.events, result.trace
        self.slots = {(int(r[TraceRow.CTA]), int(r[TraceRow.WARP])): int(r[TraceRow.SLOT]) for r in self.rows}
        self.by_warp: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        for row in self.events[np.argsort(self.events[:, Event.T_ISSUE], kind="stable")]:
            self.by_warp[int(row[Event.CTA]), int(row[Event.WARP])].append(row)
        # TMA boxes by what they fill: CTAs, barrier, phase.
        self.flows: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def collect(self) -> None:
        """Fills in everything."""
        self._counters()
        self._maps()
        sms = self._sms()
        self._tma(sms)
        self._warps(sms)

    def _counters(self) -> None:
        """Rates between samples, a cycle, of the whole chip; none of them above the peak of its unit."""
        samples, spec = self.launch.samples, self.spec
        group = self.found.child("counters of the chip", self.root)
        width, sub_cores = int(Counter.WIDTH), spec.sm.count * spec.sm.sub_cores
        l2 = float(spec.l2.slices * spec.l2.in_core_cycles(spec.l2.bandwidth_bytes_per_cycle, spec.clock.boost_hz))
        dram = spec.dram.bandwidth_bytes_per_s / spec.clock.boost_hz
        kinds = (
            _Rate("L2 read", "B/cycle", l2, {
                width + MemoryCounter.L2_READ_SECTORS: _SECTOR_BYTES,
                width + MemoryCounter.L2_COALESCED_SECTORS: -_SECTOR_BYTES,  # which no bank gave again
            }),
            _Rate("L2 written", "B/cycle", l2, {
                width + MemoryCounter.L2_WRITE_SECTORS: _SECTOR_BYTES,
                width + MemoryCounter.L2_REDUCE_SECTORS: _SECTOR_BYTES,
            }),
            _Rate("DRAM read", "B/cycle", dram, {width + MemoryCounter.DRAM_READ_BYTES: 1}),
            _Rate("DRAM written", "B/cycle", dram, {width + MemoryCounter.DRAM_WRITE_BYTES: 1}),
            _Rate("issued", "warp instructions/cycle", sub_cores, {int(Counter.INSTRUCTIONS): 1}),
            _Rate("tensor pipes busy", "% of the chip", 100, {int(Counter.TENSOR_TICKS): 100},
                  sub_cores * TICKS_PER_CYCLE),
        )  # fmt: skip
        spans = [after - before for (before, _), (after, _) in pairwise(samples)]
        for kind in kinds:
            track = self.found.child(kind.name, group, kind.unit)
            asked = [
                sum(k * int(after[c] - before[c]) for c, k in kind.columns.items())
                for (_, before), (_, after) in pairwise(samples)
            ]
            most = kind.most * kind.divisor / TICKS_PER_CYCLE
            for (tick, _), rate in zip(samples, served(asked, spans, most), strict=False):
                self.found.sample(track, self.at(tick), rate * TICKS_PER_CYCLE / kind.divisor)
            if samples:
                self.found.sample(track, self.at(samples[-1][0]), 0)
        self._power(group)

    def _maps(self) -> None:
        """Each SM, slice of the L2 and channel over time: how full it is, or how far ahead it is booked, at the most in
        the time of a column."""
        full = self.launch.fullness
        firsts = np.arange(0, len(full), -(-len(full) // _MAP_COLUMNS) or 1)
        at = tuple(self.at(self.launch.samples[first][0]) for first in firsts)
        for name, unit, rows in (
            ("SMs", "CTAs", [one.resident for one in full]),
            ("L2 slices", "cycles booked ahead", [one.slices // TICKS_PER_CYCLE for one in full]),
            ("DRAM channels", "cycles booked ahead", [one.channels // TICKS_PER_CYCLE for one in full]),
        ):
            if rows:
                values = tuple(map(tuple, np.maximum.reduceat(np.stack(rows, axis=1), firsts, axis=1).tolist()))
                self.found.maps.append(HeatMap(self.root, name, unit, at, values))

    def _power(self, group: int) -> None:
        """Clock, mean power of the board over `POWER_CYCLES` or more, and its energy since the first sample."""
        samples, model, width = self.launch.samples, self.launch.device.energy, int(Counter.WIDTH)
        units = {"core clock": "MHz", "power": "W", "energy": "uJ"}
        tracks = {name: self.found.child(name, group, unit) for name, unit in units.items()}
        coarse = set(coarser([tick for tick, _ in samples], POWER_CYCLES * TICKS_PER_CYCLE))
        total_fj, begin, window_fj, window_ps = 0, samples[0][0] if samples else 0, 0, 0
        for i, ((t0, before), (t1, after)) in enumerate(pairwise(samples)):
            hz = self._clock_hz(t0)
            done = after - before
            ps = (t1 - t0) * PS_PER_S // (TICKS_PER_CYCLE * hz)
            spent = model.window_fj(*model.actions_fj(done[:width], done[width:]), ps, hz).total_fj
            self.found.sample(tracks["core clock"], self.at(t0), hz / 1e6)
            self.found.sample(tracks["energy"], self.at(t0), total_fj * 1e-9)
            total_fj, window_fj, window_ps = total_fj + spent, window_fj + spent, window_ps + ps
            if i + 1 in coarse:
                self.found.sample(tracks["power"], self.at(begin), window_fj / max(window_ps, 1) / 1000)  # fJ/ps is mW
                begin, window_fj, window_ps = t1, 0, 0
        if samples:
            end = self.at(samples[-1][0])
            self.found.sample(tracks["core clock"], end, self._clock_hz(samples[-1][0]) / 1e6)
            self.found.sample(tracks["power"], end, 0)
            self.found.sample(tracks["energy"], end, total_fj * 1e-9)

    def _clock_hz(self, tick: int) -> int:
        """The clock at a tick of the kernel."""
        clocks, begin = self.launch.clocks, 0
        for (from_ps, hz), (to_ps, _) in pairwise(clocks):
            begin += ps_to_ticks(to_ps - from_ps, hz)
            if tick < begin:
                return hz
        return clocks[-1][1]

    def _sms(self) -> dict[int, int]:
        """Tracks GPC > SM of the SMs that have anything to show."""
        found: dict[int, int] = {}
        gpc_of = [gpc for gpc, count in enumerate(self.spec.sms_per_gpc) for _ in range(count)]
        for sm in sorted({slot // self.warps_per_sm for slot in self.slots.values()}):
            found[sm] = self.found.child(f"SM {sm}", self.found.child(f"GPC {gpc_of[sm]}", self.root))
        return found

    def _sm_of(self, cta: int, warp: int) -> int | None:
        slot = self.slots.get((cta, warp))
        return None if slot is None else slot // self.warps_per_sm

    def _tma(self, sms: dict[int, int]) -> None:
        """What runs beside its warp, TMA boxes and loads, in lanes; what lands on an mbarrier begins a flow."""
        queued: list[tuple[int, _Shown, np.ndarray]] = []
        for row in self.events[np.argsort(self.events[:, Event.T_ISSUE], kind="stable")]:
            op = self.ops[int(row[Event.OP])]
            sm = self._sm_of(int(row[Event.CTA]), int(row[Event.WARP]))
            if sm is None:
                continue
            begin, end = self.at(int(row[Event.T_ISSUE])), self.at(int(row[Event.T_DONE]))
            args: dict[str, str | int] = {"op": int(row[Event.OP]), "CTA": int(row[Event.CTA]), **_line(op)}
            flows: tuple[int, ...] = ()
            if op.lands:
                flows = (self.found.flow(),)
                bar, phase = _barrier(int(row[Event.VALUE]))
                self.flows[self._group(int(row[Event.CTA])), bar, phase] += flows
                args["barrier"] = f"{op.barrier} phase {phase}"
            if op.queued:
                queued.append((sm, op, row))
            elif op.lane:
                self.found.add_in_lane(sms[sm], op.lane, begin, end, op.label, op.category, args=args, flows=flows)

        self._tensor_cores(sms, queued)

    def _tensor_cores(self, sms: dict[int, int], queued: list[tuple[int, _Shown, np.ndarray]]) -> None:
        """What the tensor cores with tensor memory execute, one after the other, copies beside it; a pair's on both."""
        free: dict[tuple[int, str], int] = defaultdict(int)
        for sm, op, row in sorted(queued, key=lambda one: int(one[2][Event.T_READ])):
            cta, end = int(row[Event.CTA]), int(row[Event.T_READ])
            both = {sm, self._partner(cta)} if op.pair else {sm}
            for place in sorted(one for one in both if one in sms):
                begin = max(int(row[Event.T_ISSUE]), free[place, op.lane])
                args: dict[str, str | int] = {"CTA": cta, "instructions": op.instructions, **_line(op)}
                label = f"{op.label} of a pair" if op.pair else op.label
                track = self.found.child(op.lane, sms[place])
                self.found.add(track, self.at(min(begin, end)), self.at(end), label, "tensor", args)
                free[place, op.lane] = max(free[place, op.lane], end)

    def _partner(self, cta: int) -> int:
        """SM of the other CTA of a pair, -1 if it is not shown."""
        place = self.places[cta]
        peer = place.peers[place.rank ^ 1]
        return next((slot // self.warps_per_sm for (other, _), slot in self.slots.items() if other == peer), -1)

    def _group(self, cta: int) -> int:
        """CTAs whose barriers one TMA box can fill: those of a cluster."""
        return cta if self.clusters is None else self.clusters[cta]

    def _warps(self, sms: dict[int, int]) -> None:
        """Sub-cores with their tensor pipe and warps, states tiling each warp's life."""
        subs: dict[tuple[int, int], int] = {}
        tracks: dict[int, int] = {}
        pipes: dict[tuple[int, int], list[tuple[int, int, np.ndarray, tuple[int, ...]]]] = defaultdict(list)
        lives = self._lives()
        placed = sorted((slot, life) for life, slot in self.slots.items())
        for slot, _ in placed:
            sm, sub = slot // self.warps_per_sm, self._sub(slot)
            subs.setdefault((sm, sub), -1)
        for sm, sub in sorted(subs):
            subs[sm, sub] = self.found.child(f"sub-core {sub}", sms[sm])
            pipes[sm, sub] = []
        pipe_tracks = (
            {at: self.found.child("tensor pipe", track) for at, track in subs.items()} if self._tensor() else {}
        )
        for slot, (cta, warp) in placed:
            sm, sub = slot // self.warps_per_sm, self._sub(slot)
            if slot not in tracks:
                name = f"warp {slot % self.warps_per_sm}" + (f" ({self.roles[warp]})" if self.alone else "")
                tracks[slot] = self.found.child(name, subs[sm, sub])
            states = lives[cta, warp]
            rows = self.by_warp.get((cta, warp), [])
            flows, multiplied = self._waits(cta, states, rows)
            for i, state in enumerate(states):
                args: dict[str, str | int] = {"CTA": cta, "warp": warp, "role": self.roles[warp]}
                if state.place:
                    args["line"] = state.place
                self.found.add(
                    tracks[slot], self.at(state.begin), self.at(state.end), state.name, state.category, args,
                    tuple(flows.get(i, ())),
                )  # fmt: skip
            for j, row in enumerate(rows):
                if self.ops[int(row[Event.OP])].multiplies:
                    begin, end = int(row[Event.T_ISSUE]), int(row[Event.T_READ])
                    pipes[sm, sub].append((begin, end, row, tuple(multiplied.get(j, ()))))
        for at, runs in pipes.items():
            free = 0
            for begin, end, row, flow in sorted(runs, key=lambda run: (run[1], run[0])):
                op = self.ops[int(row[Event.OP])]
                args = {"CTA": int(row[Event.CTA]), "warp": int(row[Event.WARP])}
                args |= {"instructions": op.instructions, **_line(op)}
                first = max(begin, free)
                self.found.add(pipe_tracks[at], self.at(first), self.at(end), op.label, "tensor", args, flow)
                free = max(free, end)

    def _tensor(self) -> bool:
        return any(op.multiplies for op in self.ops)

    def _sub(self, slot: int) -> int:
        """Sub-core of a place on an SM, as the engine deals warps out."""
        return self.launch.sub_core_of(slot)

    def _lives(self) -> dict[tuple[int, int], list[_State]]:
        """Each warp's states in order: stalls as recorded, and between them what it issued."""
        rows: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for row in self.rows:
            key = int(row[TraceRow.CTA]), int(row[TraceRow.WARP])
            rows[key].append((int(row[TraceRow.BEGIN]), int(row[TraceRow.END]), int(row[TraceRow.STATE])))
        window = self.launch.device.window
        assert window is not None
        found: dict[tuple[int, int], list[_State]] = {}
        for key, pieces in rows.items():
            pieces.sort()
            issued = [(int(row[Event.T_ISSUE]), self.ops[int(row[Event.OP])]) for row in self.by_warp.get(key, [])]
            at = pieces[0][0]
            states: list[_State] = []
            for begin, end, state in pieces:
                if state == TRACE_BEGIN:
                    continue
                if begin > at:
                    states += _issue(at, begin, issued)
                if state == TRACE_END:
                    break
                states.append(_State(begin, end, Reason(state).name.lower(), "stall", _waiting(begin, issued)))
                at = end
            found[key] = states
        return found

    def _waits(
        self, cta: int, states: list[_State], rows: list[np.ndarray]
    ) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Flows that arrive at a warp: by the state that waited for the barrier, and by the multiply after it."""
        waiting: dict[int, list[int]] = defaultdict(list)
        multiplied: dict[int, list[int]] = defaultdict(list)
        begins = [state.begin for state in states]
        carried: list[int] = []
        for j, row in enumerate(rows):
            op = self.ops[int(row[Event.OP])]
            if op.awaits:
                bar, phase = _barrier(int(row[Event.VALUE]))
                arrived = self.flows.get((self._group(cta), bar, phase), [])
                if not arrived:
                    continue
                at = bisect_right(begins, int(row[Event.T_DONE]) - 1) - 1
                if at >= 0:
                    waiting[at] += arrived
                carried += arrived
            elif op.multiplies and carried:
                multiplied[j] += carried
                carried = []
        return waiting, multiplied


def _issue(begin: int, end: int, issued: list[tuple[int, _Shown]]) -> list[_State]:
    """What a warp issued within a gap between stalls: one piece an op, from its issue to the next one's."""
    cuts = issued[bisect_left(issued, begin, key=_at) : bisect_left(issued, end, key=_at)]
    pieces: list[_State] = []
    if not cuts:
        return [_State(begin, end, "issue", "issue")]
    if cuts[0][0] > begin:
        pieces.append(_State(begin, cuts[0][0], "issue", "issue"))
    for (at, op), following in zip(cuts, [*(at for at, _ in cuts[1:]), end], strict=True):
        if following > at:
            pieces.append(_State(at, following, op.label, "issue", op.place))
    return pieces


def _at(entry: tuple[int, _Shown]) -> int:
    return entry[0]


def _waiting(begin: int, issued: list[tuple[int, _Shown]]) -> str:
    """Place of the instruction that a warp waits to issue from a tick on."""
    following = bisect_left(issued, begin, key=_at)
    return issued[following][1].place if following < len(issued) else ""


def _line(op: _Shown) -> dict[str, str | int]:
    """The place in the source, where it is known."""
    return {"line": op.place} if op.place else {}


def _shown(kernel: Kernel) -> list[_Shown]:
    """Ops of the language, or instructions of compiled code, by their numbers in the event log."""
    if isinstance(kernel, OwnLoopKernel):
        return [
            _Shown(one.label, one.lane, one.category, False, False, one.multiplies, "", 1, one.place)
            for one in kernel.shown()
        ]
    return [
        _Shown(
            _label(op), op.spec.track, "tma" if op.spec.unit is Unit.TMA else "load", op.spec.lands,
            op.spec.action is Action.AWAIT_PHASE, op.spec.accumulates and op.spec.group is not TCGEN05,
            op.barrier.name if op.barrier else "", op.count, _place(number, op),
            op.spec.group is TCGEN05 and bool(op.spec.track), op.pair,
        )
        for number, op in enumerate(op for role in kernel.roles for op in walk(role.body))
    ]  # fmt: skip


def _place(number: int, op: Op) -> str:
    """Where an op stands: its number in the listing, and in the source."""
    return ", ".join(filter(None, (f"op {number}: {_label(op)}", op.line)))


def _label(op: Op) -> str:
    """An op in a word or two: `mma x4`, `tma_load A`."""
    targets = [view for view in op.views if view.buffer.space is Space.GLOBAL] if op.spec.unit is Unit.TMA else []
    words = [
        op.opcode,
        *([f"x{op.count}"] if op.count > 1 else []),
        *(target.buffer.name for target in targets),
    ]
    return " ".join(words)


def _barrier(value: int) -> tuple[int, int]:
    """Number of an mbarrier in its CTA, and the phase."""
    return value & ((1 << PHASE_SHIFT) - 1), value >> PHASE_SHIFT
