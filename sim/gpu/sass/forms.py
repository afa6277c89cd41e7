"""What each operand of an instruction is for: results, predicates, sources, addresses, in one form for all opcodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from arch.errors import InputError
from sim.gpu.sass.opcodes import Opcode, opcode_of
from sim.gpu.sass.operands import TRUE, Kind, Operand, read_operand
from sim.gpu.sass.tables import Meaning, Unit
from sim.gpu.sass.text import Instruction

GENERIC = (Unit.LD, Unit.ST, Unit.ATOM)
CLUSTER_MEMORY = (*GENERIC, Unit.STAS, Unit.REDAS)
ATOMICS = (Unit.RED, Unit.ATOMG, Unit.ATOMS, Unit.ATOM, Unit.REDAS)
MEMORY = (
    Unit.LDS, Unit.STS, Unit.LDSM, Unit.STSM, Unit.LDG, Unit.STG, Unit.RED, Unit.LDGSTS, Unit.ATOMG, Unit.ATOMS,
    *CLUSTER_MEMORY,
)  # fmt: skip
TMA = (Unit.UTMALDG, Unit.UTMASTG, Unit.UTMAREDG)
BULK = (Unit.UBLKCP, Unit.UBLKRED)
STORES = (Unit.STS, Unit.STSM, Unit.STG, Unit.RED, Unit.ST, Unit.STAS, Unit.REDAS)
CLUSTER = (Unit.CLUSTER_ARRIVE, Unit.CLUSTER_WAIT)
CONTROL = (
    Unit.BRANCH, Unit.JUMP, Unit.BSSY, Unit.BSYNC, Unit.BREAK, Unit.WARPSYNC, Unit.EXIT, Unit.BARRIER, Unit.ARRIVE,
    Unit.CALL, *CLUSTER,
)  # fmt: skip
ASYNCHRONOUS = (*TMA, *BULK, Unit.FLUSH, Unit.SYNCS, Unit.DEPBAR)
_SAME_UNIT = {
    Unit.SHUFFLE: "shfl", Unit.LDS: "lds", Unit.STS: "sts", Unit.ATOMS: "sts", Unit.LDSM: "ldmatrix",
    Unit.STSM: "stmatrix", Unit.LDG: "ldg", Unit.STG: "stg", Unit.RED: "red", Unit.ATOMG: "red",
    Unit.LDGSTS: "cp_async", Unit.COMMIT: "cp_commit", Unit.LD: "dsmem_ld", Unit.ST: "dsmem_st",
    Unit.STAS: "dsmem_st", Unit.REDAS: "dsmem_st", Unit.ATOM: "dsmem_st", Unit.UTMALDG: "tma_load",
    Unit.UBLKCP: "tma_load", Unit.UTMASTG: "tma_store", Unit.UTMAREDG: "tma_reduce", Unit.UBLKRED: "tma_reduce",
    Unit.FLUSH: "bulk_commit", Unit.SYNCS: "mbarrier_wait", Unit.BARRIER: "bar_sync", Unit.ARRIVE: "bar_arrive",
    Unit.CLUSTER_ARRIVE: "cluster_arrive", Unit.CLUSTER_WAIT: "cluster_wait", Unit.FENCE: "fence_async",
    Unit.HGMMA: "wgmma", Unit.GWAIT: "wgmma_wait",
}  # fmt: skip
"""Ops of the tile language by who executes instructions."""
_COMPARISONS = ("ISETP", "UISETP", "FSETP", "PLOP3", "UPLOP3", "HSETP2", "FCHK", "DSETP")
_VOTES = ("VOTE", "VOTEU")
DOUBLES = ("DADD", "DMUL", "DFMA", "DSETP")
"""Whose operands are pairs of registers, as those of fp64 are."""

CONVERSIONS = ("F2I", "I2F", "F2F", "FRND")
_WIDE = ("F64", "S64", "U64")
_FORMATS = (*_WIDE, "F32", "F16", "BF16", "S32", "U32", "S16", "U16", "S8", "U8")

# Names of what an instruction reads and writes: bits of a set.
_UNIFORM_BASE, _PREDICATE_BASE, _UNIFORM_PREDICATE_BASE = 256, 320, 328


@dataclass(frozen=True)
class Form:
    """An instruction with its operands by purpose. outputs, inputs: predicates. addresses: the shared one first."""

    instruction: Instruction
    opcode: Opcode
    guard: Operand | None
    destination: Operand | None
    outputs: tuple[Operand, ...]
    sources: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    addresses: tuple[Operand, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Dotted parts of the opcode."""
        return tuple(self.instruction.opcode.split("."))

    @property
    def stands_for(self) -> str:
        """The op of the tile language that uses the same unit of the machine; empty where none does."""
        if self.opcode.unit in BULK and self.parts[1:3] == ("S", "S"):
            return "dsmem_st"
        return "mma" if self.opcode.row.startswith("mma.") else _SAME_UNIT.get(self.opcode.unit, "")

    @property
    def access_bytes(self) -> int:
        """Bytes that a lane accesses."""
        for part in self.parts[1:]:
            if part in ("128", "64"):
                return int(part) // 8
            if part in _WIDE:
                return 8
            if part in ("U8", "S8", "U16", "S16"):
                return int(part[1:]) // 8
        return 4

    @property
    def matrices(self) -> int:
        """Of LDSM and STSM: `M88.4` is four, `M88` one."""
        return int(self.parts[-1]) if self.parts[-1].isdigit() else 1

    @property
    def result_words(self) -> int:
        """Registers of a lane that the result takes."""
        parts, unit = self.parts, self.opcode.unit
        if unit is Unit.HGMMA:
            n = int(parts[1].split("x")[1])
            return n // 4 if "F16" in parts[2:3] else n // 2
        if unit in (Unit.LDG, Unit.LDS, Unit.LD):
            return max(1, self.access_bytes // 4)
        if unit is Unit.LDSM:
            return self.matrices
        if parts[0] == "DMMA":
            return 8 if parts[1] == "16x8x8" else 4
        if parts[0] in ("HMMA", "IMMA", "BMMA"):
            return 2 if parts[2] == "F16" or parts[1].startswith("88") else 4
        if parts[0] in CONVERSIONS:
            return 2 if self._converted[0] in _WIDE else 1
        if parts[0] == "MATCH":
            return 1
        if parts[0] == "CS2R":
            return 1 if "32" in parts else 2
        wide = "WIDE" in parts or "64" in parts[1:] or parts[0] in DOUBLES
        return 2 if wide else 1

    def reads(self) -> int:
        """What its result depends on, its guard and addresses included, as a set of bits."""
        found = 0
        for operand in (*self.sources, *self.inputs, *((self.guard,) if self.guard else ())):
            found |= _bits(operand, 2 if self.is_wide(operand) else 1)
        if self.opcode.meaning is Meaning.P2R:
            found |= self.packed_predicates << _PREDICATE_BASE
        return found | self.address_reads()

    def says_where(self) -> int:
        """Predicates, as a set of bits, by which an atomic by generic addresses says whether it was done: it is not in
        shared memory, where its operation has to be made of others."""
        return sum(_bits(operand, 1) for operand in self.outputs) if self.opcode.unit is Unit.ATOM else 0

    @property
    def dimensions(self) -> int:
        """Of the tensor that the TMA reads or writes. InputError for a form of access that is not modelled."""
        kind, *form = self.parts[1:]
        if self.opcode.unit is Unit.UTMAREDG:
            form = form[1:]  # the rest says what it makes of what is there
        known = kind in ("1D", "2D", "3D", "4D", "5D") and form in ([], ["MULTICAST"])
        if not known or len(self.addresses) != 2 or len(self.sources) != len(form):
            raise InputError(
                f"{self.instruction.place}: {self.instruction}: only boxes, and their multicast, are modelled"
            )
        return int(kind[0])

    @property
    def packed_predicates(self) -> int:
        """Mask of the predicates that P2R packs into a register, or R2P takes from one."""
        return self.sources[-1].value & 0x7F if self.sources[-1].kind is Kind.IMMEDIATE else 0x7F

    def address_reads(self) -> int:
        """What its addresses depend on."""
        found = 0
        for operand in self.addresses:
            if operand.index >= 0:
                found |= (3 if operand.wide else 1) << operand.index
            if operand.uniform >= 0:
                wide = operand.uniform_wide or operand.unsigned
                found |= (3 if wide else 1) << (_UNIFORM_BASE + operand.uniform)
        if self.opcode.unit in TMA:
            box, pointer = (operand.uniform for operand in self.addresses)
            words = self.dimensions + (2 if self.opcode.unit is Unit.UTMALDG else 1)
            found |= ((1 << words) - 1) << (_UNIFORM_BASE + box) | 3 << (_UNIFORM_BASE + pointer)
            for operand in self.sources:
                found |= _bits(operand, 1)
        if self.opcode.unit in BULK:  # of its addresses one is a pair, or a place and an mbarrier
            for operand in self.addresses:
                found |= 3 << (_UNIFORM_BASE + max(operand.uniform, 0))
            for operand in self.sources:
                found |= _bits(operand, 1)
        return found

    @property
    def asks_lanes(self) -> bool:
        """Whether a branch is taken by whether the lanes of the warp run together."""
        return self.opcode.unit is Unit.BRANCH and ("CONV" in self.parts or "DIV" in self.parts)

    def control_reads(self) -> int:
        """What has to be known to say what it does: who takes part, and where."""
        if self.asks_lanes:
            return 0
        found = self.address_reads()
        if self.guard:
            found |= _bits(self.guard, 1)
        for operand in self.inputs:
            found |= _bits(operand, 1)
        if self.opcode.unit is Unit.SYNCS:
            for operand in self.sources:
                found |= _bits(operand, self.access_bytes // 4)
        if self.opcode.unit is Unit.JUMP:
            found |= _bits(self.sources[0], 1)
        return found

    def writes(self) -> int:
        """What it changes."""
        found = 0
        for operand in self.outputs:
            found |= _bits(operand, 1)
        if self.destination is not None:
            found |= _bits(self.destination, self.result_words)
        if self.opcode.meaning is Meaning.R2P:
            found |= self.packed_predicates << _PREDICATE_BASE
        return found

    @property
    def _converted(self) -> tuple[str, str]:
        """Formats of a conversion's result and of what it reads."""
        name, *rest = self.parts
        kinds = [part for part in rest if part in _FORMATS]
        result, given = {"F2I": ("S32", "F32"), "I2F": ("F32", "S32")}.get(name, ("F32", "F32"))
        for kind in kinds:
            of_integer = kind[0] in "SU"
            if name == "F2F":
                result, given = kinds[0], kinds[-1]
            elif name == "FRND":
                result = given = kind
            elif of_integer == (name == "F2I"):
                result = kind
            else:
                given = kind
        return result, given

    @property
    def _wide_source(self) -> Operand | None:
        """The source that is a pair of registers by the opcode's meaning."""
        if (self.parts[0] in CONVERSIONS and self._converted[1] in _WIDE) or self.parts[0] == "MATCH":
            wide = self.parts[0] in CONVERSIONS or "U64" in self.parts
            return self.sources[0] if wide else None
        if self.opcode.meaning in (Meaning.IMAD_WIDE, Meaning.IMAD_HI) and len(self.sources) == 3:
            return self.sources[2]
        return None

    def is_wide(self, source: Operand) -> bool:
        """Whether a source is a pair of registers."""
        return source.wide or source is self._wide_source or self.parts[0] in DOUBLES


def _bits(operand: Operand, words: int) -> int:
    mask = (1 << words) - 1
    if operand.kind is Kind.CONSTANT:  # the registers that its place depends on
        return (1 << operand.index if operand.index >= 0 else 0) | (
            1 << (_UNIFORM_BASE + operand.uniform) if operand.uniform >= 0 else 0
        )
    if operand.kind is Kind.REGISTER and operand.index >= 0:
        return mask << operand.index
    if operand.kind is Kind.UNIFORM and operand.index >= 0:
        return mask << (_UNIFORM_BASE + operand.index)
    if operand.kind is Kind.PREDICATE and operand.index != TRUE:
        return 1 << (_PREDICATE_BASE + operand.index)
    if operand.kind is Kind.UNIFORM_PREDICATE and operand.index != TRUE:
        return 1 << (_UNIFORM_PREDICATE_BASE + operand.index)
    return 0


def form_of(instruction: Instruction) -> Form:
    """The form of an instruction. InputError, with its line, for what is not understood."""
    opcode = opcode_of(instruction)
    name = instruction.opcode.split(".")[0]
    floating = name.startswith(("F", "MUFU", "H")) and not name.startswith(("FLO", "FENCE"))
    bits = 64 if name in DOUBLES else 32 if floating else 0
    try:
        operands = [read_operand(text, bits) for text in instruction.operands]
    except InputError as error:
        raise InputError(f"{instruction.place}: {instruction}: {error}") from None
    guard = read_operand(instruction.guard) if instruction.guard else None
    addresses = tuple(o for o in operands if o.kind is Kind.ADDRESS)
    generic = opcode.unit in (*CLUSTER_MEMORY, *ATOMICS) or opcode.meaning is Meaning.QSPC
    wide = generic and "E" in instruction.opcode.split(".")
    if wide:  # a pair of registers, also where the text does not say it
        addresses = tuple(replace(o, wide=True) for o in addresses)
    rest = [o for o in operands if o.kind is not Kind.ADDRESS]
    destination: Operand | None = None
    if name in _COMPARISONS:
        count = 1 if name == "FCHK" else 2
        outputs, rest = rest[:count], rest[count:]
    elif opcode.unit is Unit.SYNCS:  # a predicate or a register that nobody reads, then the value
        outputs, rest = [o for o in rest[:1] if _is_predicate(o)], rest[1:]
    else:
        stores = opcode.unit in (*STORES, *TMA, *BULK, *CONTROL, Unit.LDGSTS)
        outputs, destination, rest = ([], None, rest) if stores else _results(rest, name in _VOTES)
    inputs = tuple(o for o in rest if _is_predicate(o))
    sources = tuple(o for o in rest if not _is_predicate(o))
    return Form(instruction, opcode, guard, destination, tuple(outputs), sources, inputs, addresses)


def _results(operands: list[Operand], votes: bool) -> tuple[list[Operand], Operand | None, list[Operand]]:
    """Predicates written, the register written, and the rest: what stands before the first source."""
    outputs: list[Operand] = []
    destination: Operand | None = None
    for i, operand in enumerate(operands):
        if _is_predicate(operand):
            if votes and outputs:
                return outputs, destination, operands[i:]
            outputs.append(operand)
        elif destination is None and operand.kind in (Kind.REGISTER, Kind.UNIFORM):
            destination = operand
        else:
            return outputs, destination, operands[i:]
    return outputs, destination, []


def _is_predicate(operand: Operand) -> bool:
    return operand.kind in (Kind.PREDICATE, Kind.UNIFORM_PREDICATE)


def names(bits: int) -> Iterator[str]:
    """Registers and predicates of a set, for messages."""
    for i in range(bits.bit_length()):
        if bits >> i & 1:
            if i < _UNIFORM_BASE:
                yield f"R{i}"
            elif i < _PREDICATE_BASE:
                yield f"UR{i - _UNIFORM_BASE}"
            elif i < _UNIFORM_PREDICATE_BASE:
                yield f"P{i - _PREDICATE_BASE}"
            else:
                yield f"UP{i - _UNIFORM_PREDICATE_BASE}"
