"""A compiled kernel executed with values, apart from time: cluster by cluster, warp by warp from barrier to barrier,
in NumPy.

Of the orders that the hardware may take there are two: what is asynchronous (LDGSTS, the TMA, HGMMA) happens at once,
or as late as its waits let it, with CTAs and warps in the reverse order. A kernel that is right on hardware gives its
results in both. Addresses are judged as the engine judges them; bytes of shared memory that are read before anything
was written there are a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.sass.floats import of_bf16, towards_zero
from sim.gpu.sass.forms import ATOMICS, BULK, CLUSTER_MEMORY, TMA, Form, form_of
from sim.gpu.sass.lower import SYNCS
from sim.gpu.sass.meanings import MEANINGS
from sim.gpu.sass.meanings_words import Words
from sim.gpu.sass.needed import target_of
from sim.gpu.sass.operands import TRUE, Kind, Operand
from sim.gpu.sass.replay_atomics import answered, changed
from sim.gpu.sass.replay_bulk import MbarrierValues, copy_bulk, move_box
from sim.gpu.sass.replay_cluster import ClusterValues, CtaValues, clusters
from sim.gpu.sass.replay_flow import FLOW, Paths, flow
from sim.gpu.sass.replay_groups import Groups
from sim.gpu.sass.tables import LANES, LOCAL_BYTES, LOCAL_WINDOW, RANK_SHIFT, WINDOW, Unit
from sim.gpu.sass.tiles import load_matrices, multiply, multiply_group, store_matrices, transposed

MOST_INSTRUCTIONS = 2_000_000
"""Of warps, that a check executes: about two minutes."""

_NONE: Mapping[int, bytes] = {}
_NOTHING = (Unit.NOTE, Unit.FENCE, Unit.ARRIVE, Unit.MEMBAR)
_LANE = np.uint64(1) << np.arange(LANES, dtype=np.uint64)
_LANE_MASKS: dict[str, NDArray[np.uint64]] = {
    "SR_EQMASK": _LANE, "SR_LTMASK": _LANE - np.uint64(1), "SR_LEMASK": 2 * _LANE - np.uint64(1),
    "SR_GTMASK": (1 << LANES) - 2 * _LANE, "SR_GEMASK": (1 << LANES) - _LANE,
}  # fmt: skip
_CLOCKS = ("SR_CLOCKLO", "SR_GLOBALTIMERLO")
"""Which count the instructions of the warp here."""
_GROUPS = (Unit.COMMIT, Unit.DEPBAR, Unit.FLUSH, Unit.GWAIT)
_BULK = (*TMA, *BULK)


@dataclass(frozen=True)
class Memory:
    """Device memory: bytes from `first` on, and the arrays in it by name: address and bytes."""

    content: NDArray[np.uint8]
    first: int
    arrays: Mapping[str, tuple[int, int]]

    def place(self, where: str, addresses: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Places of accesses in the content; InputError for one that lies in no array."""
        inside = np.zeros(len(addresses), dtype=bool)
        for begin, count in self.arrays.values():
            inside |= (addresses >= begin) & (addresses + size <= begin + count)
        if not inside.all():
            raise InputError(f"{where}: address {int(addresses[~inside][0]):#x} lies in no array; is the grid right?")
        return addresses - self.first


class Wait(NamedTuple):
    """Where a warp waits: at a named barrier for so many warps (0 all), or for a phase of an mbarrier (None)."""

    place: str
    barrier: int | None = None
    expected: int = 0


class WarpValues:
    """A warp with what its lanes hold. mask: lanes that take part in the instruction in progress; phase: of the
    cluster's barrier, in which it arrived there last; reductions: at barriers so far, the latest gave `reduced`;
    copies, stores, products: LDGSTS, stores of the TMA and HGMMA that have not happened yet."""

    def __init__(
        self, number: int, cta: CtaValues, block: tuple[int, int, int], bank: bytes, others: Mapping[int, bytes] = _NONE
    ) -> None:
        self.number, self.cta, self.block = number, cta, block
        self.banks = {**others, 0: bank}
        self.registers = np.zeros((256, LANES), dtype=np.uint32)
        self.uniform = np.zeros(64, dtype=np.uint32)
        self.predicates = np.zeros((8, LANES), dtype=bool)
        self.uniform_predicates = np.zeros(8, dtype=bool)
        self.predicates[TRUE] = self.uniform_predicates[TRUE] = True
        self.local = np.zeros((LANES, LOCAL_BYTES), dtype=np.uint8)
        threads = block[0] * block[1] * block[2] - number * LANES
        self.active = np.arange(LANES) < threads
        self.exited = ~self.active
        self.row, self.paths = 0, Paths()
        self.mask = self.active
        self.phase, self.executed = 0, 0
        self.reductions, self.reduced = 0, 0
        self.copies, self.stores, self.products = Groups(), Groups(), Groups()

    # ---- operands

    def word(self, operand: Operand, k: int = 0) -> Words:
        """An operand's word, or the upper one of a pair, inverted where it says so."""
        if operand.kind is Kind.REGISTER:
            found = self.registers[operand.index + k] if operand.index >= 0 else np.zeros(LANES, dtype=np.uint32)
        elif operand.kind is Kind.UNIFORM:
            found = np.full(LANES, self.uniform[operand.index + k] if operand.index >= 0 else 0, dtype=np.uint32)
        elif operand.kind is Kind.CONSTANT:
            found = self._constant(operand, 4 * k)
        elif operand.kind is Kind.IMMEDIATE:
            found = np.full(LANES, operand.value >> (32 * k) & 0xFFFFFFFF, dtype=np.uint32)
        else:
            raise InputError(f"{operand.text}: its value is not known")
        return ~found if operand.inverted else found

    def _constant(self, operand: Operand, offset: int) -> Words:
        """A word of a bank of constants; what lies outside of it is 0."""
        bank = self.banks.get(operand.bank, b"")
        if operand.index < 0 and operand.uniform < 0:
            at = operand.value + offset
            return np.full(LANES, int.from_bytes(bank[at : at + 4], "little"), dtype=np.uint32)
        register = self.registers[operand.index] if operand.uniform < 0 else self.uniform[operand.uniform]
        places = np.broadcast_to(register, LANES).view(np.int32) + operand.value + offset
        return np.array(
            [int.from_bytes(bank[at : at + 4], "little") if at >= 0 else 0 for at in places], dtype=np.uint32
        )

    def fp32(self, operand: Operand) -> NDArray[np.float32]:
        """An operand as fp32, with its sign."""
        found = self.word(operand).view(np.float32)
        found = np.abs(found) if operand.absolute else found
        return -found if operand.negated and operand.kind is not Kind.IMMEDIATE else found

    def fp64(self, operand: Operand, k: int = 0) -> NDArray[np.float64]:
        """An operand's pair of words as fp64, with its sign."""
        found = (self.word(operand, k + 1).astype(np.uint64) << np.uint64(32) | self.word(operand, k)).view(np.float64)
        found = np.abs(found) if operand.absolute else found
        return -found if operand.negated and operand.kind is not Kind.IMMEDIATE else found

    def halves(self, form: Form, brain: bool) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Sources as lower and upper halves; two numbers in place of a register stand for its upper and lower half."""
        found, numbers = [], list[NDArray[np.float32]]()
        for operand in form.sources:
            if operand.kind is Kind.IMMEDIATE:
                numbers.append(self.word(operand).view(np.float32))
                if len(numbers) == 2:
                    found.append((numbers[1], numbers[0]))
                    numbers = []
                continue
            words = self.word(operand)
            parts = [(words >> np.uint32(16 * k) & np.uint32(0xFFFF)).astype(np.uint16) for k in range(2)]
            low, high = (of_bf16(p) if brain else p.view(np.float16).astype(np.float32) for p in parts)
            if operand.text.rstrip("|").endswith(".F32"):
                low = high = towards_zero(words.view(np.float32), brain)
            elif "H0_H0" in operand.text:
                high = low
            elif "H1_H1" in operand.text:
                low = high
            if operand.absolute:
                low, high = np.abs(low), np.abs(high)
            found.append((-low, -high) if operand.negated else (low, high))
        if numbers:
            raise InputError(f"{form.instruction.place}: {form.instruction}: its values are not computed")
        return found

    def predicate(self, operand: Operand) -> NDArray[np.bool_]:
        """A predicate that is read, of each lane."""
        if operand.kind is Kind.UNIFORM_PREDICATE:
            found = np.full(LANES, self.uniform_predicates[operand.index])
        else:
            found = self.predicates[operand.index]
        return ~found if operand.negated else found

    def set_predicate(self, operand: Operand, value: NDArray[np.bool_]) -> None:
        """Writes a predicate for the lanes that take part."""
        if operand.index == TRUE:
            return
        if operand.kind is Kind.UNIFORM_PREDICATE:
            if self.mask.any():
                self.uniform_predicates[operand.index] = value[0]
        else:
            self.predicates[operand.index] = np.where(self.mask, value, self.predicates[operand.index])

    def write(self, operand: Operand | None, words: tuple[Words, ...]) -> None:
        """Writes results to registers, for the lanes that take part."""
        if operand is None or operand.index < 0:
            return
        for k, word in enumerate(words):
            if operand.kind is Kind.UNIFORM:
                if self.mask.any():
                    self.uniform[operand.index + k] = word[0]
            else:
                row = self.registers[operand.index + k]
                np.copyto(row, word, where=self.mask)

    def special(self, name: str) -> Words:
        """A special register."""
        thread = self.number * LANES + np.arange(LANES)
        x, y, _ = self.block
        found = {
            "SR_TID.X": thread % x, "SR_TID.Y": thread // x % y, "SR_TID.Z": thread // (x * y),
            "SR_LANEID": np.arange(LANES), "SRZ": 0, "SR_CgaCtaId": self.cta.rank, "SR_SWINHI": WINDOW,
            "SR_VIRTID": self.number << 8, **dict.fromkeys(_CLOCKS, self.executed), **_LANE_MASKS,
            **{f"SR_CTAID.{axis}": self.cta.place[k] for k, axis in enumerate("XYZ")},
        }.get(name)  # fmt: skip
        if found is None:
            raise InputError(f"special register {name}: its value is not known")
        return np.full(LANES, found, dtype=np.uint32) if np.isscalar(found) else np.asarray(found, dtype=np.uint32)

    def address(self, operand: Operand, *, wide: bool) -> NDArray[np.int64]:
        """Addresses of the lanes."""
        found = np.full(LANES, operand.value, dtype=np.int64)
        if operand.index >= 0:
            found += self.registers[operand.index].astype(np.int64) << operand.shift
            if operand.wide:
                found += self.registers[operand.index + 1].astype(np.int64) << 32
        if operand.uniform >= 0:
            found += int(self.uniform[operand.uniform])
            if wide and (operand.uniform_wide or operand.unsigned):
                found += int(self.uniform[operand.uniform + 1]) << 32
        return found


def _contribution(warp: WarpValues, form: Form) -> list[NDArray[np.bool_]]:
    """What the warps of a CTA bring to a reduction at a barrier (BAR.RED), that of this one added; none elsewhere."""
    if "RED" not in form.parts:
        return []
    warp.reductions += 1
    found = warp.cta.reductions.setdefault(warp.reductions, [])
    found.append(warp.predicate(form.inputs[0])[warp.mask])
    return found


def _reduced(form: Form, given: list[NDArray[np.bool_]]) -> int:
    lanes = np.concatenate(given)
    return int(lanes.sum() if "POPC" in form.parts else lanes.all() if "AND" in form.parts else lanes.any())


class KernelValues:
    """The execution of a kernel; `violations` are filled in. late: what is asynchronous happens as late as it may, CTAs
    and warps come in the reverse order."""

    def __init__(
        self, kernel: object, bank: bytes, memory: Memory, shared: tuple[int, int], *, late: bool = False
    ) -> None:
        from sim.gpu.sass.kernel import SassKernel

        assert isinstance(kernel, SassKernel)
        function = kernel.compiled.function
        self.kernel, self.bank, self.memory, self.shared = kernel, bank, memory, shared
        self.forms = [form_of(instruction) for instruction in function.instructions]
        self.targets = [target_of(form, function) for form in self.forms]
        addresses = {name: begin for name, (begin, _) in memory.arrays.items()}
        self.maps, self.others = kernel.maps(addresses), kernel.constants(addresses)
        self.violations: list[str] = []
        self.executed, self.late = 0, late

    def run(self) -> None:
        """Executes all CTAs. InputError for what has no values, an address that is wrong, and a deadlock."""
        kernel = self.kernel
        for cluster in clusters(kernel.grid, kernel.cluster, kernel.warps, self.shared[1], backwards=self.late):
            self._run_cluster(cluster)

    def noted(self, warp: WarpValues, form: Form) -> None:
        """Called before a warp executes an instruction."""

    def _run_cluster(self, cluster: ClusterValues) -> None:
        numbers = range(self.kernel.warps)
        warps = [WarpValues(n, cta, self.kernel.block, self.bank, self.others) for cta in cluster.ctas for n in numbers]
        warps = warps[::-1] if self.late else warps
        running = {(warp.cta.rank, warp.number): self._execute(warp) for warp in warps}
        at: dict[tuple[int, int], Wait] = {}
        while running:
            before = self.executed
            for key, steps in list(running.items()):
                if key in at and at[key].barrier is not None:
                    continue
                stopped = next(steps, None)
                if stopped is None:
                    del running[key]
                    at.pop(key, None)
                    cluster.leave(cluster.ctas[key[0]])
                else:
                    at[key] = stopped
            released = self._release(at, cluster)
            if self.executed == before and not released and cluster.bring_box():
                continue
            if running and not released and self.executed == before:
                rank = next(iter(at))[0]
                waits = "; ".join(f"warp {number}: {wait.place}" for (of, number), wait in at.items() if of == rank)
                place = cluster.ctas[rank].place
                raise InputError(f"check: kernel {self.kernel.name}: CTA {place} deadlocks: {waits}")

    @staticmethod
    def _release(at: dict[tuple[int, int], Wait], cluster: ClusterValues) -> bool:
        """Lets those go on whose named barrier is complete; whether there are any."""
        found = False
        for rank, barrier in {(key[0], wait.barrier) for key, wait in at.items() if wait.barrier is not None}:
            waiting = [key for key, wait in at.items() if (key[0], wait.barrier) == (rank, barrier)]
            running = cluster.ctas[rank].running
            if len(waiting) >= min(at[waiting[0]].expected or running, running):
                found = True
                for key in waiting:
                    del at[key]
        return found

    def _execute(self, warp: WarpValues) -> Iterator[Wait]:
        """Executes a warp; yields whenever it waits for others."""
        while True:
            form = self.forms[warp.row]
            unit = form.opcode.unit
            self.executed += 1
            warp.executed += 1
            if self.executed > MOST_INSTRUCTIONS:
                raise InputError(
                    f"check: {self.kernel.name} executes more than {MOST_INSTRUCTIONS:,} warp instructions; a smaller "
                    "grid runs the same code"
                )
            guard = warp.predicate(form.guard) if form.guard else warp.predicates[TRUE]
            warp.mask = warp.active & guard
            self.noted(warp, form)
            if unit in FLOW:
                if not self._flow(warp, form):
                    for groups in (warp.copies, warp.products, warp.stores):
                        groups.finish()
                    return
                continue
            warp.row += 1
            if unit is Unit.BARRIER:
                if warp.mask.any():
                    number, *count = (o.value for o in form.sources if o.kind is Kind.IMMEDIATE)
                    given = _contribution(warp, form)
                    yield Wait(form.instruction.place, number, count[0] // LANES if count else 0)
                    if given:
                        warp.reduced = _reduced(form, given)
            elif unit is Unit.SYNCS:
                if warp.mask.any():
                    yield from self._synchronise(warp, form)
            elif unit is Unit.CLUSTER_ARRIVE:
                if warp.mask.any():
                    warp.phase = warp.cta.cluster.arrive()
            elif unit is Unit.CLUSTER_WAIT:
                while warp.mask.any() and warp.cta.cluster.phase == warp.phase:
                    yield Wait(form.instruction.place)
            elif warp.mask.any() or form.opcode.uniform:
                self._effect(warp, form)

    # ---- mbarriers

    def _synchronise(self, warp: WarpValues, form: Form) -> Iterator[Wait]:
        """SYNCS, as `sim.gpu.sass.bulk` has it."""
        what = form.parts[1]
        lanes = np.flatnonzero(warp.mask)
        addresses = warp.address(form.addresses[0], wide=False)[lanes]
        where = f"check: {form.instruction.place}"
        if what == "EXCH":
            place = int(warp.cta.own(addresses)[0])
            warp.cta.mbarriers[place] = MbarrierValues.of(int(warp.word(form.sources[0])[0]))
        elif what == "ARRIVE":
            for address in np.unique(addresses):
                self._arrive(warp, form, lanes[addresses == address], where, int(address))
        elif what == "PHASECHK":
            barrier = warp.cta.mbarrier(where, int(warp.cta.own(addresses)[0]))
            parity = int(warp.word(form.sources[0])[lanes[0]]) >> 31
            while form.parts[-1] == "TRYWAIT" and barrier.phase & 1 == parity:
                yield Wait(form.instruction.place)
            if barrier.phase & 1 == parity:  # it only looks
                warp.cta.cluster.bring_box()
            warp.mask = warp.active & (warp.predicate(form.guard) if form.guard else True)
            warp.set_predicate(form.outputs[0], np.full(LANES, barrier.phase & 1 != parity))

    @staticmethod
    def _arrive(warp: WarpValues, form: Form, lanes: NDArray[np.int64], where: str, address: int) -> None:
        """Arrivals of some lanes on one mbarrier, perhaps of another CTA of the cluster."""
        cta, place = warp.cta.named(where, address)
        _, arrivals, expects = SYNCS[".".join(form.parts[1:])]
        value = int(warp.word(form.sources[0])[lanes[0]]) if form.sources else 0
        size = value * expects
        cta.mbarrier(where, place).arrive(len(lanes) * (value if arrivals < 0 else arrivals), size * len(lanes))

    def _flow(self, warp: WarpValues, form: Form) -> bool:
        """Where a warp goes on; False at its end. InputError with its place where it cannot."""
        try:
            return flow(warp, form, self.targets[warp.row])
        except InputError as error:
            raise InputError(f"check: kernel {self.kernel.name}: {error}") from None

    # ---- everything else

    def _effect(self, warp: WarpValues, form: Form) -> None:
        unit, name = form.opcode.unit, form.parts[0]
        where = f"kernel {self.kernel.name}: {form.instruction.place}: {form.instruction}: CTA {warp.cta.place}"
        if unit in _NOTHING:
            return
        if unit in _GROUPS:
            self._group(warp, form)
        elif unit in (Unit.LDG, Unit.STG):
            self._global(warp, form, np.flatnonzero(warp.mask), where)
        elif unit in ATOMICS:
            self._atomic(warp, form, where)
        elif unit in CLUSTER_MEMORY:
            self._generic(warp, form, where)
        elif unit is Unit.LDGSTS:
            self._copy(warp, form, where)
        elif unit in (Unit.LDS, Unit.STS):
            self._shared(warp, form, where)
        elif unit is Unit.LDSM:
            rows = self._rows(warp, form, where)
            warp.write(form.destination, load_matrices(rows, "MT88" in form.parts))
        elif unit is Unit.STSM:
            self._store_matrices(warp, form, where)
        elif name == "MOVM":
            warp.write(form.destination, (transposed(warp.word(form.sources[0])),))
        elif name in ("HMMA", "QMMA", "IMMA", "BMMA", "DMMA"):
            warp.write(form.destination, multiply(warp, form))
        elif name in ("HGMMA", "QGMMA"):
            self._happens(warp.products, warp, lambda: warp.write(form.destination, multiply_group(warp, form)))
            if any(source.text.startswith("gsb") for source in form.sources):
                warp.products.close()
        elif unit in _BULK:
            if warp.mask.any():
                self._bulk(warp, form, where)
        elif name == "QSPC":
            address = warp.address(form.addresses[0], wide=True)
            own = (address & 0xFFFFFFFF) >> RANK_SHIFT == warp.cta.rank
            warp.set_predicate(form.outputs[0], (address >> 32 == WINDOW) & (own if "S" in form.parts else ~own))
        elif name in MEANINGS:
            with np.errstate(all="ignore"):
                warp.write(form.destination, MEANINGS[name](warp, form))
        else:
            raise InputError(f"check: {where}: its values are not computed")

    # ---- what is asynchronous

    def _happens(self, groups: Groups, warp: WarpValues, effect: Callable[[], None]) -> None:
        """An asynchronous effect: at once, or in its group, with the uniform registers and lanes of now."""
        if not self.late:
            effect()
            return
        then = warp.uniform.copy(), warp.mask.copy()

        def happen() -> None:
            now = warp.uniform, warp.mask
            warp.uniform, warp.mask = then
            effect()
            warp.uniform, warp.mask = now

        groups.add(happen)

    def _bulk(self, warp: WarpValues, form: Form, where: str) -> None:
        """The TMA: loads are brought when no warp can go on without."""

        def move() -> None:
            if form.opcode.unit in BULK:
                copy_bulk(warp, form, self.memory, where)
            else:
                move_box(warp, form, self.memory, self.maps, where)

        loads = form.opcode.unit is Unit.UTMALDG or form.parts[1] == "S"
        self._happens(warp.cta.cluster.boxes if loads else warp.stores, warp, move)

    @staticmethod
    def _group(warp: WarpValues, form: Form) -> None:
        """Groups that end, and waits for all but some of them."""
        unit = form.opcode.unit
        if unit is Unit.COMMIT:
            warp.copies.close()
        elif unit is Unit.FLUSH:
            warp.stores.close()
        else:
            numbers = [one.value for one in form.sources if one.kind is Kind.IMMEDIATE]
            for groups in (warp.products,) if unit is Unit.GWAIT else (warp.copies, warp.stores):
                groups.await_all_but(numbers[0] if numbers else 0)

    # ---- memory

    def _global(self, warp: WarpValues, form: Form, lanes: NDArray[np.int64], where: str) -> None:
        addresses = warp.address(form.addresses[-1], wide=True)[lanes]
        if form.parts[0] in ("LDL", "STL"):
            self._local(warp, form, lanes, addresses)
        else:
            places = self.memory.place(where, addresses, form.access_bytes)
            self._move(warp, form, lanes, self.memory.content, places)

    def _local(self, warp: WarpValues, form: Form, lanes: NDArray[np.int64], addresses: NDArray[np.int64]) -> None:
        """LDL and STL, and generic addresses of local memory."""
        places = lanes * LOCAL_BYTES + (addresses & (LOCAL_BYTES - 1))
        self._move(warp, form, lanes, warp.local.reshape(-1), places)

    def _move(
        self,
        warp: WarpValues,
        form: Form,
        lanes: NDArray[np.int64],
        content: NDArray[np.uint8],
        places: NDArray[np.int64],
    ) -> None:
        at = places[:, None] + np.arange(form.access_bytes)
        if form.opcode.unit in (Unit.LDG, Unit.LD):
            self._loaded(warp, form, lanes, content[at])
        else:
            content[at] = self._stored(warp, form, lanes)

    def _shared(self, warp: WarpValues, form: Form, where: str) -> None:
        lanes = np.flatnonzero(warp.mask)
        at = self._places(warp, form, lanes, form.access_bytes, where)
        if form.opcode.unit is Unit.LDS:
            self._judge_written(warp.cta, at, where)
            self._loaded(warp, form, lanes, warp.cta.shared[at])
        else:
            warp.cta.shared[at] = self._stored(warp, form, lanes)
            warp.cta.written[at] = True

    def _generic(self, warp: WarpValues, form: Form, where: str) -> None:
        """LD and ST of device memory and of the cluster's shared memory, STAS."""
        addresses = warp.address(form.addresses[-1], wide=True)
        lanes = np.flatnonzero(warp.mask)
        inside = (addresses[lanes] >> 32 == WINDOW) | (form.opcode.unit is Unit.STAS)
        local = addresses[lanes] >> 32 == LOCAL_WINDOW
        if local.any():
            self._local(warp, form, lanes[local], addresses[lanes[local]])
            lanes, inside = lanes[~local], inside[~local]
        if inside.any():
            self._cluster(warp, form, lanes[inside], addresses, where)
        if not inside.all():
            self._global(warp, form, lanes[~inside], where)

    def _own_place(self, warp: WarpValues, address: int, size: int, where: str) -> tuple[CtaValues, NDArray[np.int64]]:
        """The CTA that an address in the cluster's shared memory names, and the places of its bytes."""
        cta, place = warp.cta.named(where, address & 0xFFFFFFFF)
        if place < self.shared[0] or place + size > self.shared[1]:
            low, high = self.shared
            raise InputError(f"{where}: shared address lies outside of the CTA's {low:#x} to {high:#x}")
        return cta, place + np.arange(size)

    def _atomic(self, warp: WarpValues, form: Form, where: str) -> None:
        """RED, ATOMG, ATOM, ATOMS and REDAS, lane by lane."""
        size, unit = form.access_bytes, form.opcode.unit
        addresses = warp.address(form.addresses[-1], wide=unit is not Unit.ATOMS)
        answers = np.zeros((LANES, size), dtype=np.uint8)
        taking_part = warp.mask
        if form.says_where():
            taking_part = warp.mask & (addresses >> 32 != WINDOW)
            warp.set_predicate(form.outputs[0], taking_part)
        lanes = np.flatnonzero(taking_part)
        operands = [self._words(warp, source, lanes, size) for source in form.sources]
        for k, lane in enumerate(lanes):
            address = int(addresses[lane])
            if unit is Unit.ATOMS:
                address = int(warp.cta.own(np.array([address]))[0]) | warp.cta.rank << RANK_SHIFT
            if unit in (Unit.ATOMS, Unit.REDAS) or (unit is Unit.ATOM and address >> 32 == WINDOW):
                cta, at = self._own_place(warp, address, size, where)
                self._judge_written(cta, at, where)
                content = cta.shared
                if unit is Unit.REDAS:
                    counts, barrier = warp.cta.named(where, address >> 32)
                    counts.mbarrier(where, barrier).arrive(0, -size)
            else:
                content = self.memory.content
                at = int(self.memory.place(where, np.array([address]), size)[0]) + np.arange(size)
            old, given = content[at].tobytes(), operands[0][k].tobytes() if operands else (1).to_bytes(size, "little")
            other = operands[1][k].tobytes() if len(operands) > 1 else b""
            content[at] = np.frombuffer(changed(form, old, given, other), dtype=np.uint8)
            answers[lane] = np.frombuffer(answered(form, old, given), dtype=np.uint8)
        if form.destination is not None:
            self._loaded(warp, form, lanes, answers[lanes])

    def _cluster(
        self, warp: WarpValues, form: Form, lanes: NDArray[np.int64], addresses: NDArray[np.int64], where: str
    ) -> None:
        """LD, ST and STAS: shared memory of the cluster."""
        size, unit = form.access_bytes, form.opcode.unit
        data = np.zeros((LANES, size), dtype=np.uint8)
        if unit is not Unit.LD:
            data[lanes] = self._stored(warp, form, lanes)
        for lane in lanes:
            cta, at = self._own_place(warp, int(addresses[lane]), size, where)
            if unit is Unit.LD:
                self._judge_written(cta, at, where)
                data[lane] = cta.shared[at]
            else:
                cta.shared[at], cta.written[at] = data[lane], True
            if unit is Unit.STAS:
                counts, barrier = warp.cta.named(where, int(addresses[lane]) >> 32)
                counts.mbarrier(where, barrier).arrive(0, -size)
        if unit is Unit.LD:
            self._loaded(warp, form, lanes, data[lanes])

    def _places(
        self, warp: WarpValues, form: Form, lanes: NDArray[np.int64], size: int, where: str
    ) -> NDArray[np.int64]:
        """Places of lanes' bytes in shared memory."""
        addresses = warp.cta.own(warp.address(form.addresses[0], wide=False)[lanes])
        low, high = self.shared
        if len(addresses) and (addresses.min() < low or addresses.max() + size > high):
            raise InputError(f"{where}: shared address lies outside of the CTA's {low:#x} to {high:#x}")
        found: NDArray[np.int64] = addresses[:, None] + np.arange(size)
        return found

    def _judge_written(self, cta: CtaValues, at: NDArray[np.int64], where: str) -> None:
        if not cta.written[at].all() and len(self.violations) < 8:
            self.violations.append(f"{where}: reads shared memory that nothing has written")
            cta.written[at] = True  # said once

    def _copy(self, warp: WarpValues, form: Form, where: str) -> None:
        """LDGSTS: lanes whose predicate is false write zeros."""
        size, lanes = form.access_bytes, np.flatnonzero(warp.mask)
        reads = warp.predicate(form.inputs[0])[lanes] if form.inputs else np.ones(len(lanes), dtype=bool)
        addresses = warp.address(form.addresses[-1], wide=True)[lanes]
        places = self.memory.place(where, addresses[reads], size)
        at = self._places(warp, form, lanes, size, where)

        def move() -> None:
            data = np.zeros((len(lanes), size), dtype=np.uint8)
            data[reads] = self.memory.content[places[:, None] + np.arange(size)]
            warp.cta.shared[at] = data
            warp.cta.written[at] = True

        self._happens(warp.copies, warp, move)

    def _rows(self, warp: WarpValues, form: Form, where: str) -> NDArray[np.uint16]:
        """The rows of LDSM's matrices: (matrices, 8, 8) halves."""
        count = form.matrices
        at = self._places(warp, form, np.arange(8 * count), 16, where)
        self._judge_written(warp.cta, at, where)
        found: NDArray[np.uint16] = warp.cta.shared[at].reshape(count, 8, 16).copy().view(np.uint16)
        return found

    def _store_matrices(self, warp: WarpValues, form: Form, where: str) -> None:
        count = form.matrices
        at = self._places(warp, form, np.arange(8 * count), 16, where)
        words = [warp.registers[form.sources[0].index + k] for k in range(count)]
        warp.cta.shared[at] = store_matrices(words, "MT88" in form.parts).view(np.uint8).reshape(8 * count, 16)
        warp.cta.written[at] = True

    def _loaded(self, warp: WarpValues, form: Form, lanes: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Writes bytes of lanes to the registers of a load."""
        size = data.shape[1]
        if size < 4:
            wide = np.zeros((len(lanes), 4), dtype=np.uint8)
            wide[:, :size] = data
            if any(part in ("S8", "S16") for part in form.parts):
                wide[:, size:] = np.where(data[:, -1:] & 128, 255, 0)
            data = wide
        words = np.ascontiguousarray(data).view(np.uint32)
        found = []
        for k in range(words.shape[1]):
            whole = np.zeros(LANES, dtype=np.uint32)
            whole[lanes] = words[:, k]
            found.append(whole)
        held, warp.mask = warp.mask, np.isin(np.arange(LANES), lanes)
        warp.write(form.destination, tuple(found))
        warp.mask = held

    @classmethod
    def _stored(cls, warp: WarpValues, form: Form, lanes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Bytes of lanes that a store writes."""
        return cls._words(warp, form.sources[0], lanes, form.access_bytes)

    @staticmethod
    def _words(warp: WarpValues, source: Operand, lanes: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Bytes of an operand, of some lanes."""
        words = np.stack([warp.word(source, k)[lanes] for k in range(max(1, size // 4))], axis=1)
        found: NDArray[np.uint8] = np.ascontiguousarray(words).view(np.uint8)[:, :size]
        return found
