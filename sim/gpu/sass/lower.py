"""From a disassembled kernel, a launch and a machine to the tables that the engine reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction
from sim.engine.clock import TICKS_PER_CYCLE, cycles_to_ticks, transfer_ticks
from sim.gpu.counters import Counter
from sim.gpu.sass.forms import ATOMICS, BULK, CLUSTER_MEMORY, GENERIC, MEMORY, STORES, TMA, Form, form_of
from sim.gpu.sass.needed import ValuesError, changes_content, needed, rare_ways, target_of
from sim.gpu.sass.operands import TRUE, Kind, Operand
from sim.gpu.sass.tables import ASKED, Atomic, Bulk, Cell, Change, Meaning, Mode, Source, Special, Sync, Unit, Way
from sim.gpu.sass.text import INSTRUCTION_BYTES, Function
from sim.gpu.sass.text import Instruction as SassInstruction
from sim.gpu.units.l1 import AS_ASKED, fills

FIGURES = (
    "dsmem.latency",
    "dsmem.read",
    "dsmem.write",
    "instructions",
    "shared.bandwidth",
    "sm.address_interval",
    "sm.sub_cores",
    "sync.named_barriers",
)
"""Figures of a preset that this module reads."""

_SECTOR_BYTES = 32  # what the SM-to-SM network moves at least
_PIPES = {"fma": 0, "alu": 1, "half": 2, "xu": 3, "tensor": 4, "lsu": 5, "fp64": 6, "fp64_shared": 6}
_COUNTERS = {
    "fma": Counter.INST_FMA,
    "alu": Counter.INST_ALU,
    "half": Counter.INST_FP16,
    "fp64": Counter.INST_FP64,
    "fp64_shared": Counter.INST_FP64,
    "xu": Counter.INST_MUFU,
    "tensor": Counter.INST_TENSOR,
    "lsu": Counter.INST_SHARED,
}
_COMPARISONS = {"LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6}
_VECTOR_MACS = {"FFMA": 32, "HFMA2": 64, "IDP": 128, "DFMA": 32}
_SPECIALS = {
    "SR_TID.X": Special.TID_X,
    "SR_TID.Y": Special.TID_Y,
    "SR_TID.Z": Special.TID_Z,
    "SR_CTAID.X": Special.CTAID_X,
    "SR_CTAID.Y": Special.CTAID_Y,
    "SR_CTAID.Z": Special.CTAID_Z,
    "SR_LANEID": Special.LANEID,
    "SR_CgaCtaId": Special.RANK,
    "SR_SWINHI": Special.WINDOW,
    "SRZ": Special.ZERO,
    **{f"SR_{name}MASK": Special[f"{name}_MASK"] for name in ("EQ", "LT", "LE", "GT", "GE")},
}
_FETCHES = {"LTC64B": fills(64), "LTC128B": fills(128), "LTC256B": fills(128)}
"""Prefetch sizes of loads. Of 256 B the line that is asked for, not its neighbour."""
SYNCS = {
    "EXCH.64": (Sync.SETUP, 0, 0),
    "ARRIVE.TRANS64": (Sync.ARRIVE, 1, 1),
    "ARRIVE.TRANS64.A1T0": (Sync.ARRIVE, 1, 0),
    "ARRIVE.TRANS64.A0T1": (Sync.ARRIVE, 0, 1),
    "PHASECHK.TRANS64.TRYWAIT": (Sync.AWAIT, 1, 0),
    "PHASECHK.TRANS64": (Sync.AWAIT, 0, 0),
    "CCTL.IV": (Sync.NOTE, 0, 0),
    "ARRIVE.TRANS64.ART0": (Sync.ARRIVE, -1, 0),
}
SYNCS |= {what.replace("TRANS64", "TRANS64.RED"): does for what, does in SYNCS.items() if "ARRIVE" in what}
SYNCS["ARRIVE.TRANS64.RED.A0TR"] = SYNCS["ARRIVE.TRANS64.A0T1"]
"""Operation, arrivals (of AWAIT: patience; -1: as its register says), whether it expects bytes. RED: perhaps of
another CTA of the cluster."""
_BULK: dict[tuple[str, ...], Bulk] = {
    ("S", "G"): Bulk.FROM_DEVICE,
    ("G", "S"): Bulk.TO_DEVICE,
    ("S", "S"): Bulk.IN_CLUSTER,
}
"""Of UBLKCP and UBLKRED: to what and from what."""
_FLOW = (Unit.BRANCH, Unit.JUMP, Unit.CALL, Unit.BSSY, Unit.BSYNC, Unit.BREAK, Unit.WARPSYNC, Unit.EXIT)
_OTHER_FORMATS = ("F64", "F16", "BF16", "S64", "U64", "S16", "U16", "S8", "U8")
_NONE: Mapping[int, bytes] = {}
_WGMMA_FORMATS = {"HGMMA": "fp16", "QGMMA": "fp8", "IGMMA": "int8"}


@dataclass(frozen=True)
class Lowered:
    """Tables of a kernel. registers: of a thread that are computed or read, in the order in which they are kept."""

    code: np.ndarray
    registers: tuple[int, ...]


def lower(
    function: Function, bank: bytes, spec: GpuSpec, *, data: bool = False, others: Mapping[int, bytes] = _NONE
) -> Lowered:
    """Tables of a kernel. bank: the constant bank of the launch: its dimensions and parameters. data: contents of
    arrays are given. others: the other banks of constants, by number.

    Raises InputError for an opcode that is not known, and for what the machine does not have; ValuesError where
    addresses or branches depend on what is not computed. Where they depend on numbers that decide whether a division or
    a root takes its rare way, these are taken to be ordinary.
    """
    forms = [form_of(instruction) for instruction in function.instructions]
    ordinary = frozenset[int]()
    try:
        computed = needed(forms, function, data=data)
    except ValuesError:
        ordinary = rare_ways(forms)
        if not ordinary:
            raise
        computed = needed(forms, function, data=data, ordinary=ordinary)
    banks = {**others, 0: bank}
    changes = any(changes_content(form, asked) for form, asked in zip(forms, computed, strict=True))
    made = [_Row(form, banks, spec, target_of(form, function), changes) for form in forms]
    rows = [row.cells(asked) for row, asked in zip(made, computed, strict=True)]
    for i in ordinary:
        made[i].always()
    registers = _renumber(rows)
    return Lowered(np.array(rows, dtype=np.int64), registers)


def timed(function: Function, spec: GpuSpec) -> np.ndarray:
    """Rows of a kernel whose warps follow what has been executed: of the flow of control an issue slot is left."""
    rows = []
    for instruction in function.instructions:
        form = form_of(instruction)
        row = _Row(form, {}, spec, target_of(form, function)).cells(0)
        if form.opcode.unit in _FLOW:
            row[Cell.UNIT] = Unit.NOTE
        rows.append(row)
    return np.array(rows, dtype=np.int64)


def bank_places(banks: Mapping[int, bytes]) -> dict[int, int]:
    """Where the banks of constants lie among those of a launch, by number: side by side in their order."""
    places, at = dict[int, int](), 0
    for number in sorted(banks):
        places[number] = at
        at += len(banks[number])
    return places


def _renumber(rows: list[list[int]]) -> tuple[int, ...]:
    """Numbers the registers that are computed or read side by side, as all warps' of them lie in the host's caches;
    notes those that are asked for ahead. Returns them."""
    cells = [(row, cell) for row in rows for cell in _register_cells(row)]
    used = sorted({row[cell] + word for row, cell in cells for word in range(_words(row, cell))})
    number = {register: i for i, register in enumerate(used)}
    for row, cell in cells:
        row[cell] = number[row[cell]]
    for row in rows:
        read = [row[c] + word for c in _register_cells(row) if c != Cell.DST for word in range(_words(row, c))][:ASKED]
        for k in range(ASKED):
            row[Cell.ASKED + k] = read[min(k, len(read) - 1)] if read else -1
    return tuple(used)


def _register_cells(row: Sequence[int]) -> list[int]:
    """Columns of a row that name registers of a thread."""
    cells = [int(cell) for cell in (Cell.ADDRESS, Cell.SOURCE) if row[cell] >= 0]
    if (
        row[Cell.MEANING] != Meaning.NONE
        or row[Cell.UNIT] == Unit.JUMP
        or (row[Cell.KEEPS] and row[Cell.UNIT] in ATOMICS)
    ):
        cells += [cell + 1 for cell in (Cell.A, Cell.B, Cell.C) if row[cell] == Source.REGISTER]
    if row[Cell.DST] >= 0 and not row[Cell.UNIFORM] and (row[Cell.MEANING] != Meaning.NONE or row[Cell.KEEPS]):
        cells.append(int(Cell.DST))
    return cells


def _words(row: Sequence[int], cell: int) -> int:
    """Registers of a thread that a column names, the first of which it holds."""
    if cell == Cell.DST:
        return max(1, row[Cell.BYTES] // 4) if row[Cell.KEEPS] else 2
    if cell == Cell.ADDRESS:
        return 2 if row[Cell.ADDRESS_WIDE] else 1
    return 2 if cell != Cell.SOURCE and row[cell + 1] & Change.WIDE else 1


def lower_row(instruction: SassInstruction, spec: GpuSpec) -> list[int]:
    """The row of one instruction by itself, that is only timed."""
    return _Row(form_of(instruction), {}, spec, None).cells(0)


class _Row:
    """One instruction on its way into the table."""

    def __init__(
        self, form: Form, banks: Mapping[int, bytes], spec: GpuSpec, target: int | None, changes: bool = False
    ) -> None:
        self.form, self.banks, self.spec, self.target, self.changes = form, banks, spec, target, changes
        self.row = [0] * Cell.WIDTH
        self.parts = form.parts

    def cells(self, computed: int) -> list[int]:
        """Its row. computed: what of its results something depends on."""
        form, row, control = self.form, self.row, self.form.instruction.control
        for cell in (
            Cell.PIPE, Cell.DST, Cell.PREDICATE0, Cell.PREDICATE1, Cell.ADDRESS, Cell.ADDRESS_UNIFORM, Cell.SOURCE,
            Cell.SOURCE_UNIFORM, Cell.ASKED, Cell.RANKS,
        ):  # fmt: skip
            row[cell] = -1
        row[Cell.UNIT] = form.opcode.unit
        row[Cell.STALL] = max(1, control.stall) * TICKS_PER_CYCLE
        row[Cell.GIVES_WAY] = control.gives_way
        row[Cell.WRITE], row[Cell.READ], row[Cell.WAIT] = control.write, control.read, control.wait
        row[Cell.COUNTER] = Counter.INST_OTHER
        row[Cell.TARGET] = -1 if self.target is None else self.target
        self._predicate(Cell.GUARD, form.guard)
        for cell in (Cell.INPUT0, Cell.INPUT1, Cell.INPUT2):
            self._predicate(cell, None)
        try:
            self._timing()
            if form.opcode.unit in MEMORY:
                self._access()
                if form.opcode.unit in ATOMICS:
                    self._atomic(computed)
            elif form.opcode.unit in TMA:
                self._box()
            elif form.opcode.unit in BULK:
                self._bulk()
            elif form.opcode.unit is Unit.SYNCS:
                self._sync()
            if computed and form.opcode.unit in (Unit.LDG, Unit.LD):
                self._keep()
            elif computed and form.opcode.unit not in (Unit.SYNCS, *ATOMICS):
                self._meaning()
        except ValuesError as error:
            raise ValuesError(f"{form.instruction.place}: {form.instruction}: {error}") from None
        except InputError as error:
            raise InputError(f"{form.instruction.place}: {form.instruction}: {error}") from None
        self._control()
        return row

    def always(self) -> None:
        """A branch that is taken, whatever its predicates are."""
        self._predicate(Cell.GUARD, None)
        self._predicate(Cell.INPUT0, None)

    # ---- what it takes

    def _timing(self) -> None:
        row, unit, opcode = self.row, self.form.opcode.unit, self.form.opcode
        row[Cell.LATENCY] = cycles_to_ticks(opcode.cycles)
        row[Cell.READ_LATENCY] = cycles_to_ticks(opcode.cycles)
        if unit is Unit.HGMMA:
            self._products()
        elif unit in MEMORY:
            found = self._memory_row()
            self._on_pipe(found)
            row[Cell.INTERVAL] = cycles_to_ticks(self.spec.sm.address_interval_cycles)
            if unit in STORES:
                row[Cell.READ_LATENCY] = cycles_to_ticks(found.latency_cycles)
            if unit in CLUSTER_MEMORY:
                self._network()
            if unit in (*GENERIC, Unit.ATOMS):
                bits = 8 * max(4, self.form.access_bytes)
                shared = self.spec.instruction("sts" if unit is Unit.ST else "lds", f"b{bits}")
                row[Cell.OWN_LATENCY] = cycles_to_ticks(shared.latency_cycles)
        elif opcode.row:
            op, dtype, *shape = opcode.row.split(".")
            self._on_pipe(self._without_tensor_core() or self.spec.instruction(op, dtype, shape[0] if shape else ""))
            row[Cell.READ_LATENCY] = row[Cell.LATENCY]
            if unit is Unit.SHUFFLE:
                share = row[Cell.INTERVAL] * self.spec.sm.sub_cores
                row[Cell.INTERVAL] = max(share, cycles_to_ticks(self.spec.sm.address_interval_cycles))

    def _without_tensor_core(self) -> Instruction | None:
        """DMMA where tensor cores do not take fp64: as many DFMA as its products need."""
        if self.parts[0] != "DMMA" or self.spec.has_instruction(*self.form.opcode.row.split(".")):
            return None
        alone = self.spec.instruction("dfma", "fp64")
        interval = alone.interval_cycles * (32 if self.parts[1] == "16x8x8" else 8)
        behind = alone.latency_cycles - alone.interval_cycles
        return alone.model_copy(update={"interval_cycles": interval, "latency_cycles": interval + behind})

    def _network(self) -> None:
        """Latency and rate of accesses in a cluster are the network's between its SMs."""
        dsmem, unit = self.spec.dsmem, self.form.opcode.unit
        if dsmem is None:
            if unit in GENERIC:  # which are of the CTA's own shared memory, or of device memory
                return
            raise InputError(f"{self.spec.name} has no clusters")
        loads = unit is Unit.LD
        rate = dsmem.read_bytes_per_cycle if loads else dsmem.write_bytes_per_cycle
        latency = Cell.OWN_LATENCY if unit in BULK else Cell.LATENCY
        self.row[latency] = cycles_to_ticks(dsmem.latency_cycles)
        self.row[Cell.NETWORK] = transfer_ticks(_SECTOR_BYTES, rate)

    def _memory_row(self) -> Instruction:
        name = self.form.opcode.row
        if "." in name:
            return self.spec.instruction(*name.split("."))
        return self.spec.instruction(name, f"b{8 * max(4, self.form.access_bytes)}")

    def _on_pipe(self, found: Instruction) -> None:
        row = self.row
        row[Cell.PIPE] = _PIPES[found.pipe]
        row[Cell.INTERVAL] = cycles_to_ticks(found.cadence_cycles)
        row[Cell.LATENCY] = cycles_to_ticks(found.latency_cycles)
        packed = self.form.opcode.row.startswith("hfma2")  # with an energy of its own, also on the FMA pipe
        row[Cell.COUNTER] = Counter.INST_FP16 if packed else _COUNTERS[found.pipe]
        if found.pipe == "fp64_shared":
            row[Cell.UNIT] = Unit.SHARED_MATH
        row[Cell.MACS_COUNTER] = Counter.MACS_VECTOR
        zeros = all(o.kind is Kind.REGISTER and o.index < 0 for o in self.form.sources[:2])  # a constant
        row[Cell.MACS] = 0 if zeros else _VECTOR_MACS.get(self.parts[0], 0)
        if found.pipe == "tensor":
            row[Cell.MACS], row[Cell.MACS_COUNTER] = found.macs, Counter.MACS_TENSOR

    def _products(self) -> None:
        """HGMMA: a product of a warpgroup, of which each warp has a quarter."""
        row, parts = self.row, self.parts
        m, n, k = parts[1].split("x")
        dtype = _WGMMA_FORMATS[parts[0]]
        if parts[0] == "HGMMA":
            dtype = "bf16" if "BF16" in parts else "tf32" if "TF32" in parts else "fp16"
        from_registers = self.form.sources[0].kind is Kind.REGISTER
        found = self.spec.instruction("wgmma_rs" if from_registers else "wgmma", dtype, f"m{m}n{n}k{k}")
        self._on_pipe(found)
        row[Cell.LATENCY] -= row[Cell.INTERVAL]
        element = {"fp16": 2, "bf16": 2, "tf32": 4}.get(dtype, 1)
        size_bytes = int(n) * int(k) * element + (0 if from_registers else int(m) * int(k) * element)
        row[Cell.SHARED] = transfer_ticks(size_bytes, self.spec.shared.bandwidth_bytes_per_cycle) // 4
        row[Cell.BYTES] = size_bytes // 4
        row[Cell.MACS] = found.macs // 4
        row[Cell.COMMITS] = int(any(o.text.startswith("gsb") for o in self.form.sources))

    # ---- accesses

    def _access(self) -> None:
        form, row = self.form, self.row
        if not form.addresses:
            raise InputError("has no address")
        row[Cell.BYTES] = 16 if form.opcode.unit in (Unit.LDSM, Unit.STSM) else form.access_bytes
        if form.opcode.unit in (Unit.LDSM, Unit.STSM):
            row[Cell.MATRICES] = form.matrices
        if form.opcode.unit is Unit.LDGSTS:
            shared = form.addresses[0]
            row[Cell.SOURCE], row[Cell.SOURCE_OFFSET] = shared.index, shared.value
            row[Cell.SOURCE_SHIFT] = shared.shift
            row[Cell.SOURCE_UNIFORM] = shared.uniform if shared.uniform >= 0 else -1
        of_warp = form.opcode.unit in (Unit.LDG, Unit.STG, Unit.RED, Unit.LDGSTS, Unit.ATOMG, *GENERIC)
        self._address(form.addresses[-1], of_warp)
        row[Cell.LOCAL] = self.parts[0] in ("LDL", "STL")
        strong = any(part in ("STRONG", "BYPASS", "PF2") for part in self.parts) and "SM" not in self.parts
        row[Cell.CACHED] = not strong
        row[Cell.FETCHES] = next((_FETCHES[part] for part in self.parts if part in _FETCHES), AS_ASKED)
        if form.opcode.unit is Unit.LDGSTS and form.inputs:
            self._predicate(Cell.INPUT0, form.inputs[0])

    def _address(self, address: Operand, of_warp: bool) -> None:
        row = self.row
        row[Cell.ADDRESS], row[Cell.ADDRESS_WIDE], row[Cell.ADDRESS_SHIFT] = address.index, address.wide, address.shift
        row[Cell.ADDRESS_UNIFORM] = address.uniform if address.uniform >= 0 else -1
        row[Cell.ADDRESS_UNIFORM_WIDE] = of_warp and (address.uniform_wide or address.unsigned)
        row[Cell.OFFSET] = address.value

    def _box(self) -> None:
        """UTMALDG, UTMASTG, UTMAREDG: registers of the box (shared address, mbarrier, coordinates) and of its map."""
        if self.spec.tma is None:
            raise InputError(f"{self.spec.name} has no TMA")
        box, pointer = self.form.addresses
        if box.value or pointer.value or min(box.uniform, pointer.uniform) < 0:
            raise InputError("its addresses must be uniform registers")
        self.row[Cell.DIMS] = self.form.dimensions
        self.row[Cell.SOURCE_UNIFORM], self.row[Cell.ADDRESS_UNIFORM] = box.uniform, pointer.uniform
        for ranks in self.form.sources:
            if ranks.kind is not Kind.UNIFORM or ranks.index < 0:
                raise InputError("the ranks of its multicast must be in a uniform register")
            self.row[Cell.RANKS] = ranks.index

    def _bulk(self) -> None:
        """UBLKCP, UBLKRED: registers of both addresses (that in shared memory, where bytes go, with the mbarrier) and
        of the size."""
        form, row, what = self.form, self.row, self.parts[3:]
        if self.spec.tma is None:
            raise InputError(f"{self.spec.name} has no TMA")
        between = _BULK.get(self.parts[1:3])
        if form.opcode.unit is Unit.UBLKRED:
            operation_of(form)
            known = between in (Bulk.TO_DEVICE, Bulk.IN_CLUSTER)
        else:
            known = between is not None and (not what or (what == ("MULTICAST",) and between is Bulk.FROM_DEVICE))
        if between is None or not known or len(form.addresses) != 2 or len(form.sources) != 1:
            raise InputError("what it moves from where to where is not known")
        to, source, size = *form.addresses, form.sources[0]
        if to.value or source.value or min(to.uniform, source.uniform, size.index) < 0:
            raise InputError("its addresses and its size must be uniform registers")
        if between is Bulk.IN_CLUSTER:
            self._network()
        row[Cell.OPERATION], row[Cell.COUNT], row[Cell.BYTES] = between, "MULTICAST" in what, 16
        row[Cell.SOURCE_UNIFORM], row[Cell.ADDRESS_UNIFORM], row[Cell.RANKS] = to.uniform, source.uniform, size.index

    def _atomic(self, computed: int) -> None:
        """What an atomic does, and where something depends on its result the registers by which it changes an array."""
        form, row = self.form, self.row
        row[Cell.OPERATION] = operation_of(form)
        row[Cell.MODE] = int(Mode.SIGNED) * ("S32" in self.parts)
        if form.opcode.unit is Unit.ATOM and form.says_where():
            row[Cell.PREDICATE0] = self._predicate_number(form.outputs[0])
        shared, operation = form.opcode.unit is Unit.ATOMS, row[Cell.OPERATION]
        if computed & ~form.says_where() == 0:
            changes = self.changes and operation < Atomic.SPIN and form.access_bytes == 4
            if not changes or shared or form.opcode.unit is Unit.REDAS:
                return
        known = operation < Atomic.SPIN and form.access_bytes == 4 and not shared
        known |= operation == Atomic.SPIN and form.opcode.unit in (Unit.ATOMS, Unit.ATOM)
        if not known:
            raise ValuesError("addresses or branches depend on its result, which is not computed")
        row[Cell.KEEPS], row[Cell.DST] = 1, form.destination.index if form.destination else -1
        if not shared:
            for cell, source in zip((Cell.A, Cell.B), form.sources, strict=False):
                self._source(cell, source)

    def _sync(self) -> None:
        """SYNCS: what it does to which mbarrier."""
        form, row, what = self.form, self.row, ".".join(self.parts[1:])
        if what not in SYNCS or not form.addresses:
            raise InputError(f"what it does to an mbarrier is not known; known are {', '.join(SYNCS)}")
        self._address(form.addresses[0], of_warp=False)
        row[Cell.OPERATION], row[Cell.COUNT], row[Cell.BYTES] = SYNCS[what]
        row[Cell.SOURCE] = row[Cell.SOURCE_UNIFORM] = -1
        if row[Cell.OPERATION] == Sync.SETUP:
            row[Cell.SOURCE_UNIFORM] = form.sources[0].index
        elif form.sources:
            if form.sources[0].kind is not Kind.REGISTER:
                raise InputError("its value must be in a register")
            row[Cell.SOURCE] = form.sources[0].index
        for output in form.outputs:
            row[Cell.PREDICATE0] = -1 if output.index == TRUE else self._predicate_number(output)

    # ---- what it computes

    def _meaning(self) -> None:
        form, row, meaning = self.form, self.row, self.form.opcode.meaning
        sources = list(form.sources)
        row[Cell.UNIFORM] = form.opcode.uniform
        row[Cell.MODE] = _mode(self.parts)
        if form.destination is not None:
            row[Cell.DST] = form.destination.index
        for cell, output in zip((Cell.PREDICATE0, Cell.PREDICATE1), form.outputs, strict=False):
            row[cell] = -1 if output.index == TRUE else self._predicate_number(output)
        for cell, given in zip((Cell.INPUT0, Cell.INPUT1, Cell.INPUT2), form.inputs, strict=False):
            self._predicate(cell, given)
        self._refuse_wide()
        if (
            meaning is Meaning.MOV
            and sources[0].kind is Kind.CONSTANT
            and max(sources[0].index, sources[0].uniform) >= 0
        ):
            meaning, sources = Meaning.LOOKUP, [self._looked_up(sources[0])]
        elif meaning is Meaning.HFMA2:
            meaning = self._constant_halves(sources)
        elif meaning is Meaning.S2R or meaning is Meaning.CS2R:
            name = sources.pop().text
            if name not in _SPECIALS:
                raise ValuesError(f"addresses or branches depend on {name}, which is not known")
            row[Cell.OPERATION] = _SPECIALS[name]
            if meaning is Meaning.CS2R and form.result_words == 2:
                row[Cell.MODE] |= Mode.WIDE
        elif meaning in (Meaning.ISETP, Meaning.FSETP):
            row[Cell.OPERATION] = next((_COMPARISONS[p[:2]] for p in self.parts if p[:2] in _COMPARISONS), 0)
            if not row[Cell.OPERATION] or (meaning is Meaning.FSETP and self.parts[1] in ("NAN", "NUM")):
                raise ValuesError("its comparison is not known")
        elif meaning is Meaning.LOP3:
            row[Cell.OPERATION] = sources.pop(3).value
        elif meaning is Meaning.PLOP3:
            row[Cell.OPERATION] = sources[0].value | sources[1].value << 8
            sources = []
        elif meaning in (Meaning.LEA, Meaning.LEA_HI):
            row[Cell.OPERATION] = sources.pop().value
        elif meaning is Meaning.P2R or meaning is Meaning.R2P:
            if [o.text for o in sources if o.kind is Kind.NAME] != ["PR"] or len(self.parts) > 1:
                raise InputError("only whole sets of predicates are known")
            row[Cell.OPERATION] = form.packed_predicates
            sources = [o for o in sources if o.kind is Kind.REGISTER][:1]
        elif meaning is Meaning.ELECT:
            if row[Cell.DST] >= 0 or any(output.index != TRUE for output in form.outputs[1:]):
                raise InputError("only the predicate of the elected lane is known")
            row[Cell.DST] = -1
        elif meaning is Meaning.QSPC:
            sources = [self._whole_address()]
            row[Cell.DST], row[Cell.OPERATION] = -1, self.parts[2] == "D"
        elif meaning is Meaning.SHFL or meaning is Meaning.VOTE:
            row[Cell.OPERATION] = {"IDX": 0, "UP": 1, "DOWN": 2, "BFLY": 3, "ANY": 0, "ALL": 1, "EQ": 2}[self.parts[1]]
        row[Cell.MEANING] = meaning
        for cell, source in zip((Cell.A, Cell.B, Cell.C), sources, strict=False):
            self._source(cell, source)

    def _refuse_wide(self) -> None:
        """ValuesError for forms of what is computed that are not: numbers of other widths, carries of products, other
        ways to round."""
        form, meaning, parts = self.form, self.form.opcode.meaning, set(self.parts)
        products, sums = (Meaning.IMAD, Meaning.IMAD_WIDE, Meaning.IMAD_HI), (Meaning.FADD, Meaning.FMUL, Meaning.FFMA)
        found = (
            meaning in (Meaning.I2F, Meaning.F2I) and not parts.isdisjoint(_OTHER_FORMATS),
            meaning is Meaning.F2I and not parts.isdisjoint(("FLOOR", "CEIL")),
            meaning in products and (form.outputs != () or (meaning is not Meaning.IMAD and "X" in parts)),
            meaning in sums and not parts.isdisjoint(("RM", "RP", "RZ", "SAT")),
            meaning is Meaning.FLO and ("SH" in parts or "U32" not in parts),
            meaning is Meaning.R2UR and form.outputs != (),
        )
        if any(found):
            raise ValuesError("addresses or branches depend on its result, which is not computed")

    def _whole_address(self) -> Operand:
        """The pair of registers that names the generic address of QSPC."""
        (address,) = self.form.addresses
        if self.parts[1:] not in (("E", "S"), ("E", "D")) or (address.index >= 0) == (address.uniform >= 0):
            raise InputError("what it asks of an address is not known")
        if address.uniform >= 0:
            return Operand(Kind.UNIFORM, address.text, index=address.uniform, wide=True)
        return Operand(Kind.REGISTER, address.text, index=address.index, wide=True)

    def _keep(self) -> None:
        """A load on whose values addresses or branches depend."""
        assert self.form.destination is not None
        self.row[Cell.KEEPS], self.row[Cell.DST] = 1, self.form.destination.index
        self.row[Cell.MODE] = _mode(self.parts)

    def _constant_halves(self, sources: list[Operand]) -> Meaning:
        """HFMA2 of zeros with two numbers, as compilers write constants."""
        zeros = all(o.kind is Kind.REGISTER and o.index < 0 for o in sources[:2])
        if not zeros or len(sources) != 4:
            raise ValuesError("addresses or branches depend on its halves, which are not computed")
        bits = [_half(o.value) for o in sources[2:]]
        sources[:] = [Operand(Kind.IMMEDIATE, "", value=bits[0] << 16 | bits[1])]
        return Meaning.MOV

    def _source(self, cell: int, source: Operand) -> None:
        row, wide = self.row, self.form.is_wide(source)
        change = (
            Change.NEGATE * (source.negated and source.kind is not Kind.IMMEDIATE)
            | Change.INVERT * source.inverted
            | Change.ABSOLUTE * source.absolute
            | Change.WIDE * wide
        )
        if source.kind is Kind.REGISTER or source.kind is Kind.UNIFORM:
            kind = Source.REGISTER if source.kind is Kind.REGISTER else Source.UNIFORM
            value = source.index
            if value < 0:
                kind, value = Source.NUMBER, 0
        elif source.kind is Kind.IMMEDIATE:
            kind, value = Source.NUMBER, source.value & (-1 if wide else 0xFFFFFFFF)
        elif source.kind is Kind.CONSTANT:
            both = wide or (self.form.opcode.meaning is Meaning.MOV and self.form.result_words == 2)
            kind, value = Source.NUMBER, self._constant(source, 8 if both else 4)
        else:
            raise InputError(f"{source.text} is not understood here")
        row[cell], row[cell + 1], row[cell + 2] = kind, value, change

    def _constant(self, source: Operand, size: int) -> int:
        bank = self.banks.get(source.bank, b"")
        if source.value + size > len(bank) or source.index >= 0 or source.uniform >= 0:
            raise ValuesError(f"{source.text}: addresses or branches depend on a constant that no parameter gives")
        return int.from_bytes(bank[source.value : source.value + size], "little", signed=size == 8)

    def _looked_up(self, source: Operand) -> Operand:
        """The register that says which constant of a bank LDC reads."""
        row, bank = self.row, self.banks.get(source.bank, b"")
        row[Cell.OFFSET] = bank_places(self.banks).get(source.bank, 0)
        row[Cell.COUNT], row[Cell.OPERATION] = len(bank), source.value
        if source.uniform >= 0:
            return Operand(Kind.UNIFORM, source.text, index=source.uniform)
        return Operand(Kind.REGISTER, source.text, index=source.index)

    # ---- control

    def _control(self) -> None:
        form, row, unit = self.form, self.row, self.form.opcode.unit
        numbers = [o.value for o in form.sources if o.kind is Kind.IMMEDIATE]
        names = [o.text for o in form.sources if o.kind is Kind.NAME]
        if unit in (Unit.BSSY, Unit.BSYNC):
            row[Cell.OPERATION] = int(names[0][1:])
        elif unit is Unit.DEPBAR:
            row[Cell.OPERATION] = int(names[0][2:])
            row[Cell.COUNT] = numbers[0] if numbers else 0
        elif unit is Unit.GWAIT:
            row[Cell.COUNT] = numbers[0]
        elif unit in (Unit.BARRIER, Unit.ARRIVE):
            if not numbers:
                raise InputError(f"{form.instruction.place}: {form.instruction}: the barrier's number must be constant")
            named = self.spec.sync.named_barriers
            if numbers[0] >= named:
                where = f"{form.instruction.place}: {form.instruction}"
                raise InputError(f"{where}: {self.spec.name} has named barriers 0 to {named - 1}")
            row[Cell.OPERATION] = numbers[0]
            row[Cell.COUNT] = numbers[1] // 32 if len(numbers) > 1 else 0
        elif unit is Unit.JUMP:
            register, *added = form.sources
            self._source(Cell.A, register)
            relative = form.instruction.address + INSTRUCTION_BYTES if self.parts[0] in ("BRX", "BRXU") else 0
            row[Cell.OFFSET] = relative + sum(one.value for one in added if one.kind is Kind.IMMEDIATE)
        elif unit is Unit.BREAK:
            row[Cell.OPERATION] = int(names[0][1:])
            if form.inputs:
                self._predicate(Cell.INPUT0, form.inputs[0])
        elif unit is Unit.WARPSYNC:
            row[Cell.COUNT] = "ALL" in self.parts
        elif unit is Unit.BRANCH:
            if form.asks_lanes:
                row[Cell.OPERATION] = Way.TOGETHER if "CONV" in self.parts else Way.APART
                self._predicate(Cell.GUARD, None)
            if self.target is None and self.parts[0] == "CALL":
                row[Cell.UNIT] = Unit.CALL
            elif self.target is None:
                raise InputError(f"{form.instruction.place}: {form.instruction}: only branches to labels are known")
            if form.inputs:
                self._predicate(Cell.INPUT0, form.inputs[0])

    # ---- predicates

    def _predicate(self, cell: int, operand: Operand | None) -> None:
        """A predicate that is read, the true one where there is none."""
        self.row[cell] = TRUE if operand is None else self._predicate_number(operand)
        self.row[cell + 1] = int(operand is not None and operand.negated)

    @staticmethod
    def _predicate_number(operand: Operand) -> int:
        return operand.index + (8 if operand.kind is Kind.UNIFORM_PREDICATE else 0)


def operation_of(form: Form) -> Atomic:
    """What an atomic does. InputError for what is not known."""
    if "SPIN" in form.parts:
        return Atomic.SPIN
    if "POPC" in form.parts:  # of a counter, one for each lane
        return Atomic.ADD
    found = next((Atomic[part] for part in form.parts if part in Atomic.__members__), None)
    if found is None:
        raise InputError(f"what it does is not known; known are {', '.join(Atomic.__members__)}")
    return Atomic.OTHER if any(part.startswith(("F16", "F32", "F64", "BF16")) for part in form.parts) else found


def _mode(parts: Sequence[str]) -> int:
    """Flags that the dotted parts of an opcode give."""
    unsigned = any(part.startswith("U") and part[1:].isdigit() for part in parts)
    flags = {
        Mode.SIGNED: not unsigned,
        Mode.EXTENDED: "X" in parts or "EX" in parts,
        Mode.HIGH: "HI" in parts,
        Mode.LEFT: "L" in parts,
        Mode.WIDE: any(part in ("64", "U64", "S64") for part in parts),
        Mode.WRAPS: "W" in parts,
        Mode.OR: "OR" in parts,
        Mode.XOR: "XOR" in parts,
        Mode.SIGN: "SX32" in parts,
        Mode.TRUNCATES: "TRUNC" in parts,
        Mode.UP: "RP" in parts,
        Mode.UNORDERED: len(parts) > 1 and parts[0] == "FSETP" and parts[1].endswith("U"),
    }
    return sum(int(flag) for flag, given in flags.items() if given)


def _half(bits: int) -> int:
    """An fp32 number, given by its bits, as those of fp16."""
    number = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
    return int(np.float16(number).view(np.uint16))
