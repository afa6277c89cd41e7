"""A compiled kernel as the engine launches it: grid, block and parameters beside its code."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.reads import recorded
from sim.engine.buffers import filled
from sim.gpu.engine.own_loop import OwnLoopKernel, ShownInstruction, SpentLine, warps_of
from sim.gpu.language import GlobalTensor, Program, Role, SharedTile
from sim.gpu.sass.cubin import HOPPER, RESERVED_BYTES, CompiledKernel
from sim.gpu.sass.forms import CLUSTER, form_of
from sim.gpu.sass.listing import listing
from sim.gpu.sass.livelock import Watch
from sim.gpu.sass.loop import advance
from sim.gpu.sass.lower import Lowered, lower
from sim.gpu.sass.opcodes import opcode_of
from sim.gpu.sass.tables import (
    LANES,
    LOCAL_BYTES,
    LOCAL_WINDOW,
    PATTERNS,
    WAITING,
    WINDOW,
    Cell,
    Fault,
    FaultKind,
    Launched,
    Map,
    Meeting,
    SassProgram,
    Scalar,
    Traced,
    Turn,
    Unit,
)
from sim.gpu.sass.text import INSTRUCTION_BYTES, Instruction
from sim.gpu.units.barriers import BarrierFigure
from sim.gpu.units.chip import Chip
from sim.gpu.units.cta import Cta, CtaFigure
from sim.gpu.units.events import Reason
from sim.gpu.units.tree import FAR, TreeFigure
from sim.gpu.units.warp import Block, Warp

FIGURES = ("compute_capability", "shared.banks")
"""Figures of a preset that this module reads."""

_BLOCK_AT, _GRID_AT, _STACK_AT = 0x0, 0xC, 0x28
_WINDOW_AT = 0x18  # before Hopper: the generic address of shared memory
_POINTER_AT = 0x198  # of Hopper: the generic address of the parameters
_CLUSTER_AT = 0x140  # of Hopper: 1 for a launch of clusters; what `%cluster_nctaid` and its like are made of
_CLUSTER_SIZE_AT = 0x188
_LOCAL_WINDOW_AT = 0x20  # the generic address of local memory
_PARAMETERS_ADDRESS = 1 << 40
_MBARRIERS = 64
_FIRST_ADDRESS = 1 << 21
_LOCAL_ADDRESS = 1 << 37
_GAP_BYTES = 1 << 20  # between arrays, at least
VARIABLES = "device variables"
"""The array that holds the variables of a cubin in device memory."""
_GIVE = "whose content is not known; give it as NAME=dtype[shape]:FILE.npy"


@dataclass(frozen=True)
class Pointer:
    """A parameter that is the address of an array's first element."""

    array: str


@dataclass(frozen=True)
class TensorMap:
    """A parameter that is a tensor map. extents: of the tensor and, in bytes, from one element to the next, the
    innermost dimension first; box: of what one instruction of the TMA moves."""

    array: str
    element_bytes: int
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]

    def row(self, address: int, base: int) -> list[int]:
        """Its row in the table of maps. address: of the map, base: of the array."""
        row = [0] * Map.WIDTH
        row[Map.ADDRESS], row[Map.BASE], row[Map.ELEMENT] = address, base, self.element_bytes
        for d, dimension in enumerate(zip(self.extents, self.strides_bytes, self.box, strict=True)):
            row[Map.DIMENSION + 3 * d : Map.DIMENSION + 3 * d + 3] = dimension
        return row


Value = Pointer | TensorMap | int | float


@dataclass(frozen=True, eq=False)
class SassKernel(OwnLoopKernel):
    """A compiled kernel with its launch. values: of its parameters, in order. arrays: name and bytes of each.
    contents: of arrays that addresses or branches depend on."""

    compiled: CompiledKernel = None  # type: ignore[assignment]
    block: tuple[int, int, int] = (LANES, 1, 1)
    values: tuple[Value, ...] = ()
    arrays: tuple[tuple[str, int], ...] = ()
    contents: Mapping[str, np.ndarray] = field(default_factory=dict)

    def parameters(self, p: np.ndarray) -> None:
        """Makes room for the events of sub-cores beside those of warps."""
        p[TreeFigure.LEVELS] = int(p[Chip.WARPS_PER_SM] + 2 + p[Chip.SUB_CORES]).bit_length()
        p[BarrierFigure.MBARRIERS] = self._mbarriers

    @property
    def _mbarriers(self) -> int:
        """Places for mbarriers of a CTA."""
        sets_up = any(one.opcode.startswith("SYNCS") for one in self.compiled.function.instructions)
        return _MBARRIERS if sets_up else 1

    def tables(self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec) -> SassProgram:
        """Lowers the code for these addresses, and makes what warps hold."""
        self.check_machine(spec)
        lowered = self.lowered(addresses, spec)
        return self.tables_of(p, addresses, spec, lowered.code, len(lowered.registers) or 1)

    def check_machine(self, spec: GpuSpec) -> None:
        """InputError for code of another generation than the machine's."""
        major, _, minor = str(spec.compute_capability).partition(".")
        machine, compiled = 10 * int(major) + int(minor or 0), self.compiled
        if compiled.sm // 10 != machine // 10 or compiled.sm > machine:
            raise InputError(f"kernel {compiled.name} is compiled for sm_{compiled.sm}; {spec.name} is sm_{machine}")

    def lowered(self, addresses: Mapping[str, int], spec: GpuSpec) -> Lowered:
        """Its code for these addresses. ValuesError where addresses or branches depend on what is not computed."""
        others = self.constants(addresses)
        return lower(self.compiled.function, self.bank(addresses), spec, data=bool(self.contents), others=others)

    @property
    def opcodes(self) -> frozenset[str]:
        """Ops of the tile language that stand for its instructions, as far as they use the same units."""
        return frozenset(op for one in self.compiled.function.instructions if (op := form_of(one).stands_for))

    def rows(self, addresses: Mapping[str, int], spec: GpuSpec) -> frozenset[str]:
        """Rows of the machine's instruction table that its instructions take."""
        noting, notes = recorded(spec)
        self.lowered(addresses, noting)
        paths = (path.removeprefix("instructions.").rpartition(".") for path, _ in notes if "instructions." in path)
        return frozenset(row for row, _, column in paths if column in ("interval", "latency"))

    def tables_of(
        self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec, code: np.ndarray, registers: int
    ) -> SassProgram:
        """The tables of lowered code. registers: how many of a thread are kept."""
        warps, rows = warps_of(p), len(code)
        sub_cores, per_sub_core = (
            int(p[Chip.SMS] * p[Chip.SUB_CORES]),
            -(-int(p[Chip.WARPS_PER_SM]) // int(p[Chip.SUB_CORES])),
        )
        turns = filled((sub_cores, per_sub_core, Turn.WIDTH), np.int64, 0)
        turns[:, :, Turn.READY] = FAR
        lowered = filled(code.shape, np.int64, 0)
        lowered[:] = code
        floats = np.zeros(4, dtype=np.float32)
        banks = {0: self.bank(addresses), **self.constants(addresses)} if self.compiled.bank_bytes else {}
        constants = np.frombuffer(b"".join(banks[number] for number in sorted(banks)), dtype=np.uint8)
        contents = [_bytes(one) for one in self.contents.values()]
        data = np.concatenate([np.zeros(1, dtype=np.uint8), *contents, constants])
        sizes = [1, *(one.nbytes for one in self.contents.values())]
        places = dict(zip(self.contents, np.cumsum(sizes), strict=False))
        ranges = [(addresses[n], addresses[n] + size, places.get(n, -1)) for n, size in self.arrays] or [(0, 0, -1)]
        return SassProgram(
            code=lowered,
            warp_entry=np.array([(-1, warp) for warp in range(self.warps)], dtype=np.int64),
            barrier_arrivals=np.ones(self._mbarriers, dtype=np.int64),
            mbarriers=np.full(self._mbarriers, -1, dtype=np.int64),
            maps=self.maps(addresses),
            launch=self._launch(warps, p, spec, len(data) - len(constants)),
            ranges=np.array(ranges, dtype=np.int64),
            data=data,
            registers=filled((warps, registers, LANES), np.uint32, 0),
            scalars=filled((warps, Scalar.WIDTH), np.int64, 0),
            turns=turns,
            queues=np.zeros((sub_cores, WAITING + 1), dtype=np.int64),
            clusters=np.zeros((self._meetings(p, code), Meeting.WIDTH), dtype=np.int64),
            operands=np.zeros((5, LANES), dtype=np.int64),
            floats=floats,
            words=floats.view(np.int32),
            addresses=np.zeros((1, LANES), dtype=np.int64),
            lines=np.zeros((3, 2 * LANES), dtype=np.int64),
            covered=np.zeros((2 * LANES, 4), dtype=np.int64),
            spent=np.zeros((rows, len(Reason)), dtype=np.int64),
            issued=np.zeros((rows, 2), dtype=np.int64),
            patterns=np.full((rows * PATTERNS, LANES + 2), -1, dtype=np.int64),
            fault=np.zeros(Fault.WIDTH, dtype=np.int64),
            trace=np.zeros((0, Traced.WIDTH), dtype=np.int64),
            trace_first=np.zeros(1, dtype=np.int64),
            trace_lanes=np.zeros((1, LANES), dtype=np.int64),
        )

    @staticmethod
    def _meetings(p: np.ndarray, code: np.ndarray) -> int:
        """Clusters that meet at their barrier."""
        meets = np.isin(code[:, Cell.UNIT], CLUSTER).any()
        return int(p[CtaFigure.CLUSTERS]) if meets else 0

    @property
    def loop(self) -> Callable[..., int]:
        """The loop of compiled kernels."""
        return advance

    def _launch(self, warps: int, p: np.ndarray, spec: GpuSpec, constants: int) -> np.ndarray:
        launch = np.zeros(Launched.WIDTH, dtype=np.int64)
        launch[: Launched.THREADS] = self.block
        launch[Launched.THREADS] = self.block[0] * self.block[1] * self.block[2]
        launch[Launched.SHARED_BEGIN], launch[Launched.SHARED_END] = self.shared_range
        launch[Launched.BANKS] = spec.shared.banks
        launch[Launched.LOCAL_BEGIN], launch[Launched.CONSTANTS] = _LOCAL_ADDRESS, constants
        launch[Launched.FIRST_SUB_CORE] = warps + 3 * p[Chip.SMS]
        launch[Launched.PRODUCTS] = any(form_of(one).opcode.unit is Unit.HGMMA for one in self.instructions())
        return launch

    @property
    def shared_range(self) -> tuple[int, int]:
        """First address of a CTA's shared memory, and the one behind it."""
        begin = RESERVED_BYTES if self.compiled.sm >= HOPPER else 0
        return begin, begin + self.shared_bytes

    def bank(self, addresses: Mapping[str, int]) -> bytes:
        """The constant bank: what a launch writes to it."""
        compiled = self.compiled
        end = max((offset + size for offset, size in compiled.parameters), default=0)
        bank = bytearray(compiled.bank_bytes + end)
        struct.pack_into("<III", bank, _BLOCK_AT, *self.block)
        struct.pack_into("<III", bank, _GRID_AT, *self.grid)
        struct.pack_into("<Q", bank, _LOCAL_WINDOW_AT, LOCAL_WINDOW << 32)
        struct.pack_into("<I", bank, _STACK_AT, LOCAL_BYTES)
        if compiled.sm < HOPPER:
            struct.pack_into("<Q", bank, _WINDOW_AT, WINDOW << 32)
        for (offset, size), value in zip(compiled.parameters, self.values, strict=False):
            at = compiled.bank_bytes + offset
            if isinstance(value, TensorMap):  # what it holds is never read but by the TMA
                continue
            if isinstance(value, float):
                bank[at : at + size] = struct.pack("<f" if size == 4 else "<d", value)
            else:
                number = addresses[value.array] if isinstance(value, Pointer) else value
                bank[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        if compiled.sm >= HOPPER and self.cluster_size > 1:
            clusters = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
            reciprocals = [1 / c for c in self.cluster]
            struct.pack_into("<I3I3f3I", bank, _CLUSTER_AT, 1, *self.cluster, *reciprocals, *clusters)
            struct.pack_into("<I", bank, _CLUSTER_SIZE_AT, self.cluster_size)
        if compiled.sm >= HOPPER and len(bank) >= _POINTER_AT + 8:
            struct.pack_into("<Q", bank, _POINTER_AT, _PARAMETERS_ADDRESS)
        return bytes(bank)

    def constants(self, addresses: Mapping[str, int]) -> dict[int, bytes]:
        """The other banks of constants by number, with the addresses of the cubin's variables in them."""
        found = {number: bytearray.fromhex(content) for number, content in self.compiled.constants}
        for place, offset in self.compiled.pointers:
            struct.pack_into("<Q", found[4], place, addresses[VARIABLES] + offset)
        return {number: bytes(content) for number, content in found.items()}

    def maps(self, addresses: Mapping[str, int]) -> np.ndarray:
        """The table of tensor maps."""
        rows = [
            value.row(_PARAMETERS_ADDRESS + offset, addresses[value.array])
            for (offset, _), value in zip(self.compiled.parameters, self.values, strict=False)
            if isinstance(value, TensorMap)
        ]
        return np.array(rows or [[-1] * Map.WIDTH], dtype=np.int64)

    def source(self, tables: SassProgram) -> list[SpentLine]:
        """Ticks of warps by line, on which they waited to issue its instructions or issued them."""
        rows: dict[tuple[str, int], list[int]] = {}
        for row, instruction in enumerate(self.compiled.function.instructions):
            rows.setdefault((instruction.file, instruction.line), []).append(row)
        found = []
        for (file, line), of_line in rows.items():
            spent = tables.spent[of_line].sum(axis=0)
            ticks = {reason.name.lower(): int(spent[reason]) for reason in Reason if spent[reason]}
            if line and ticks:
                found.append(SpentLine(file, line, int(tables.issued[of_line, 0].sum()), ticks))
        return found

    # ---- how it is shown

    def shown(self) -> list[ShownInstruction]:
        """Opcodes with their lines; loads and the TMA run beside their warps."""
        return [_shown(one) for one in self.compiled.function.instructions]

    def listing(self, addresses: Mapping[str, int], spec: GpuSpec) -> list[str]:
        """Each instruction with its control word and what it takes."""
        self.check_machine(spec)
        others = self.constants(addresses)
        return listing(
            self.compiled, lower(self.compiled.function, self.bank(addresses), spec, data=True, others=others)
        )

    # ---- what goes wrong

    def stopped(self, tables: SassProgram) -> Exception:
        """The access that no kernel may make: its line, lane and address."""
        fault = tables.fault
        instruction = self.compiled.function.instructions[int(fault[Fault.ROW])]
        cta, warp, lane, address = (int(fault[c]) for c in (Fault.CTA, Fault.WARP, Fault.LANE, Fault.ADDRESS))
        x, y, z = cta % self.grid[0], cta // self.grid[0] % self.grid[1], cta // (self.grid[0] * self.grid[1])
        where = f"{instruction.place}: {instruction}: CTA ({x}, {y}, {z}), warp {warp}, lane {lane}"
        kind = FaultKind(int(fault[Fault.KIND]))
        if kind is FaultKind.CALL:
            return InputError(f"kernel {self.name}: {instruction.place}: {instruction}: calls are not modelled")
        if kind is FaultKind.DIVERGENCE:
            return InputError(f"kernel {self.name}: {instruction.place}: {instruction}: lanes wait for each other")
        if kind is FaultKind.SHARED:
            low, high = (int(tables.launch[c]) for c in (Launched.SHARED_BEGIN, Launched.SHARED_END))
            text = f"shared address {address:#x} lies outside of the CTA's {low:#x} to {high:#x}"
        elif kind is FaultKind.ENDED:
            text = f"shared address {address:#x} is of a CTA of the cluster that has ended"
        elif kind is FaultKind.CONTENT and address >> 32 == WINDOW:
            text = f"something depends on what lies at shared address {address & 0xFFFFFFFF:#x}, which is not computed"
        elif kind is FaultKind.CONTENT:
            text = f"something depends on address {address:#x}, which {self._nearest(address, tables)}, {_GIVE}"
        elif kind is FaultKind.MAP:
            text = f"no parameter at {address:#x} is a tensor map; give it as NAME=dtype[shape]@BOX"
        elif kind is FaultKind.MBARRIER:
            text = f"no mbarrier has been set up at shared address {address:#x}, or more than {_MBARRIERS}"
        elif kind is FaultKind.MISALIGNED:
            size = int(tables.code[fault[Fault.ROW], Cell.BYTES])
            text = f"address {address:#x} is no multiple of the {size} bytes of the access"
        else:
            text = f"address {address:#x} {self._nearest(address, tables)}; is the grid right?"
        return InputError(f"kernel {self.name}: {where}: {text}")

    def _nearest(self, address: int, tables: SassProgram) -> str:
        """Where an address lies with respect to the array that is nearest."""
        distances = []
        for (name, size), (begin, end, _) in zip(self.arrays, tables.ranges.tolist(), strict=False):
            if address < begin:
                distances.append((begin - address, f"lies {begin - address} bytes before array {name}"))
            else:
                distances.append((address - end, f"lies {address - begin} bytes into array {name} of {size} bytes"))
        return min(distances)[1] if distances else "lies in no array, of which the kernel has none"

    def watch(self) -> Watch:
        """Notices loops that never end."""
        return Watch(self)

    def waiting(self, tables: SassProgram, state: Any) -> str:
        """The barriers at which warps of the first CTA that has not ended wait, with the lines behind them."""
        for slot in np.flatnonzero(state.ctas[:, Cta.ACTIVE] == 1)[:1]:
            row, found = state.ctas[slot], []
            for number in range(self.warps):
                warp = int(row[Cta.FIRST_WARP]) + number
                barrier = int(tables.scalars[warp, Scalar.BARRIER_WAIT]) - 1
                at = int(state.warps[warp, Warp.PROGRAM_COUNTER]) - 1
                place = self.compiled.function.instructions[max(at, 0)].place
                if barrier >= 0:
                    found.append(f"warp {number} waits at barrier {barrier}, {place}")
                elif state.warps[warp, Warp.BLOCK] == Block.MBARRIER:
                    address = int(tables.mbarriers[state.warps[warp, Warp.BLOCK_WHAT]])
                    found.append(f"warp {number} waits for a phase of the mbarrier at {address:#x}, {place}")
                elif state.warps[warp, Warp.BLOCK] == Block.CLUSTER:
                    found.append(f"warp {number} waits at the barrier of its cluster, {place}")
            where = f"CTA ({row[Cta.X]}, {row[Cta.Y]}, {row[Cta.Z]})"
            return f"kernel {self.name} deadlocks: {where}: " + "; ".join(found)
        return f"kernel {self.name} deadlocks: CTAs are left and no SM can take one"

    def instructions(self) -> list[Instruction]:
        """The code, a row each."""
        return self.compiled.function.instructions


@dataclass(frozen=True)
class SassLaunchProgram(Program):
    """A launch of a compiled kernel. Nothing lies between its arrays, so that an access behind one is noticed.

    expected: the arrays that the kernel changes, from all of them by name; None where nobody knows.
    """

    expected: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]] | None = None

    def addresses(self) -> dict[str, int]:
        """Byte address of each array's first element."""
        address, found = _FIRST_ADDRESS, {}
        for tensor in self.tensors:
            found[tensor.name] = address
            address += -(-(tensor.size_bytes + _GAP_BYTES) // _GAP_BYTES) * _GAP_BYTES
        return found


_LANES_SHOWN = {
    Unit.LDG: ("loads in flight", "load"),
    Unit.LDGSTS: ("loads in flight", "load"),
    Unit.UTMALDG: ("TMA load", "tma"),
    Unit.UTMASTG: ("TMA store", "tma"),
    Unit.UTMAREDG: ("TMA store", "tma"),
}
"""What runs beside its warp: its lane of the timeline, and the kind of thing."""


def _shown(instruction: Instruction) -> ShownInstruction:
    opcode = opcode_of(instruction)
    lane, category = _LANES_SHOWN.get(opcode.unit, ("", ""))
    place = f"{instruction.file}:{instruction.line}" if instruction.line else ""
    multiplies = opcode.unit is Unit.HGMMA or opcode.row.startswith("mma.")
    return ShownInstruction(instruction.opcode, place, lane, category, multiplies)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), dtype=np.uint8)


def _cluster(
    compiled: CompiledKernel, grid: tuple[int, int, int], asked: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """CTAs of a cluster. InputError for others than the kernel asks for, and for a grid that they do not fill."""
    cluster = asked or compiled.cluster or (1, 1, 1)
    if compiled.cluster not in (None, cluster):
        needs = "x".join(map(str, compiled.cluster or ()))
        raise InputError(
            f"kernel {compiled.name} is compiled for clusters of {needs} CTAs, not {'x'.join(map(str, cluster))}"
        )
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        whole, part = ("x".join(map(str, shape)) for shape in (grid, cluster))
        raise InputError(f"kernel {compiled.name}: its grid of {whole} CTAs is no multiple of its clusters of {part}")
    return cluster


def sass_program(
    compiled: CompiledKernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    values: tuple[Value, ...],
    arrays: tuple[GlobalTensor, ...],
    shared_bytes: int,
    schedule: str,
    *,
    contents: Mapping[str, np.ndarray] | None = None,
    cluster: tuple[int, int, int] | None = None,
) -> SassLaunchProgram:
    """One launch of a compiled kernel as a program. values: of its parameters, in order; those that are left out are 0.
    shared_bytes: shared memory of a CTA, what the kernel declares itself included. contents: of arrays that addresses
    or branches depend on. cluster: CTAs of a cluster, those that the kernel asks for where it is left out."""
    threads = block[0] * block[1] * block[2]
    warps = -(-threads // LANES)
    contents = dict(contents or {})
    if compiled.pointers:
        content = np.frombuffer(bytes.fromhex(compiled.variables), dtype=np.int8)
        arrays = (*arrays, GlobalTensor(VARIABLES, content.shape, "int8", (1,)))
        contents[VARIABLES] = content
    kernel = SassKernel(
        name=compiled.name,
        grid=grid,
        cluster=_cluster(compiled, grid, cluster),
        roles=(Role("warps", warps, compiled.registers, ()),),
        shared=(SharedTile("shared", (shared_bytes,), "int8"),) if shared_bytes else (),
        barriers=(),
        launch_registers=max(compiled.registers, 1),
        code_bytes=INSTRUCTION_BYTES * len(compiled.function.instructions),
        compiled=compiled,
        block=block,
        values=values,
        arrays=tuple((array.name, array.size_bytes) for array in arrays),
        contents=contents,
        descriptors=sum(isinstance(value, TensorMap) for value in values),
    )
    return SassLaunchProgram(compiled.name, arrays, (kernel,), schedule)
