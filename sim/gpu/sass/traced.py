"""Kernels of Accel-Sim's traces on the engine of compiled kernels: what each warp has executed, with its addresses.

A trace has no control words; the shortest that its dependences allow are put in their place: stall counts for what has
a fixed latency, scoreboards for the rest. Branches have been taken already and cost their issue slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.language import GlobalTensor, Program, Role, SharedTile
from sim.gpu.lower.tables import Pipe
from sim.gpu.sass.cubin import CompiledKernel
from sim.gpu.sass.forms import MEMORY, form_of
from sim.gpu.sass.kernel import SassKernel, SassLaunchProgram
from sim.gpu.sass.listing import listing
from sim.gpu.sass.lower import Lowered, lower_row
from sim.gpu.sass.opcodes import opcode_of
from sim.gpu.sass.tables import LANES, SCOREBOARDS, Cell, SassProgram, Traced, Unit
from sim.gpu.sass.text import INSTRUCTION_BYTES, Control, Function, Instruction
from sim.gpu.sass.trace_files import TracedKernel, TracedRow, instructions

_PAGE_BITS = 21
_ARRAY = "memory"
_FLOW = (
    "BRA",
    "BRX",
    "JMP",
    "JMX",
    "BSSY",
    "BSYNC",
    "BREAK",
    "BMOV",
    "WARPSYNC",
    "CALL",
    "RET",
    "EXIT",
    "YIELD",
    "NOP",
)
_NO_CONTROL = Control(1, False, -1, -1, 0)
_UNKNOWN = (
    "HGMMA", "QGMMA", "IGMMA", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "SYNCS", "LD", "ST", "ATOM",
    "QSPC", "STAS", "REDAS",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TracedSassKernel(SassKernel):
    """A kernel whose warps follow a trace."""

    traced: TracedKernel = None  # type: ignore[assignment]

    def tables(self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec) -> SassProgram:
        """The tables of its code with rebuilt control words, and the trace."""
        lowered = self.lowered(addresses, spec)
        base = super().tables_of(p, addresses, spec, lowered.code, LANES)
        trace, first, lanes = _streams(self.traced, self.warps, addresses[_ARRAY], self.shared_range[0])
        return base._replace(trace=trace, trace_first=first, trace_lanes=lanes)

    def listing(self, addresses: Mapping[str, int], spec: GpuSpec) -> list[str]:
        """Each instruction with the control word that was rebuilt for it, and with what it takes."""
        lowered, function = self.lowered(addresses, spec), self.compiled.function
        with_control = [
            replace(one, control=_control_of(row)) for one, row in zip(function.instructions, lowered.code, strict=True)
        ]
        return listing(replace(self.compiled, function=replace(function, instructions=with_control)), lowered)

    def lowered(self, addresses: Mapping[str, int], spec: GpuSpec) -> Lowered:
        """Its code, with control words rebuilt."""
        rows = np.array([lower_row(_timed(one), spec) for one in self.compiled.function.instructions], dtype=np.int64)
        _rebuild_control(self.traced, rows)
        return Lowered(rows, ())


def _control_of(row: np.ndarray) -> Control:
    return Control(
        int(row[Cell.STALL]) // TICKS_PER_CYCLE, bool(row[Cell.GIVES_WAY]), int(row[Cell.WRITE]), int(row[Cell.READ]),
        int(row[Cell.WAIT]),
    )  # fmt: skip


def _timed(instruction: Instruction) -> Instruction:
    """The instruction as it takes time: of the flow of control an issue slot is left."""
    if instruction.opcode.split(".")[0] in _FLOW:
        return replace(instruction, opcode="NOP", operands=())
    return instruction


def _instruction(row: TracedRow, path: str) -> Instruction:
    """A traced instruction with its operands as disassembly has them."""
    name = row.opcode.split(".")[0]
    if name in _UNKNOWN:
        raise InputError(f"{path}: PC {row.pc:04x}: {row.opcode}: traces do not say what it does; run the cubin")
    written, read = ([_register(r) for r in registers] for registers in (row.written, row.read))
    found = Instruction(row.pc, "", row.opcode, (), _NO_CONTROL)
    if name in _FLOW:
        return found
    unit = opcode_of(found).unit
    if unit in MEMORY and not row.size_bytes:
        raise InputError(f"{path}: PC {row.pc:04x}: {row.opcode}: has no width and no addresses")
    if unit is Unit.LDGSTS:
        operands = [f"[{read[0] if read else 'RZ'}]", f"[{read[-1] if read else 'RZ'}.64]"]
    elif unit in MEMORY:
        address = f"[{read[0] if read else 'RZ'}]"
        operands = [address, *(read[1:2] or ["RZ"])] if not written else [written[0], address]
    elif unit in (Unit.BARRIER, Unit.ARRIVE):
        operands = [hex(row.immediate)]
    elif unit is Unit.DEPBAR:
        operands = ["SB0", hex(row.immediate)]
    else:
        operands = [*written, *read]
    return replace(found, operands=tuple(operands))


def _register(name: str) -> str:
    return "RZ" if name == "R255" else name


def _widths(row: TracedRow) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Registers written and read: first one, and how many."""
    name = row.opcode.split(".")[0]
    data = max(1, row.size_bytes // 4) if not name.startswith("LDGSTS") else 1
    if name == "HMMA":
        deep = "16816" in row.opcode
        reads = [4 if deep else 2, 2 if deep else 1, 4]
        return _spans(row.written, [4]), _spans(row.read, reads)
    if row.size_bytes:
        return _spans(row.written, [data]), _spans(row.read, [2, data])
    wide = 2 if "WIDE" in row.opcode else 1
    return _spans(row.written, [wide]), _spans(row.read, [1, 1, wide])


def _spans(names: tuple[str, ...], widths: list[int]) -> list[tuple[int, int]]:
    found = []
    for i, name in enumerate(names):
        number = name.lstrip("R")
        if number.isdigit() and number != "255":
            found.append((int(number), widths[min(i, len(widths) - 1)]))
    return found


def _rebuild_control(traced: TracedKernel, rows: np.ndarray) -> None:
    """Writes stall counts, scoreboards and waits of every row: what any warp's stream needs."""
    spans = [_widths(row) for row in traced.code]
    varies = [_varies(row) for row in rows]
    turn = 0
    for i, yes in enumerate(varies):
        rows[i, Cell.STALL], rows[i, Cell.WAIT] = TICKS_PER_CYCLE, 0
        rows[i, Cell.WRITE] = rows[i, Cell.READ] = -1
        if yes and traced.code[i].written:
            rows[i, Cell.WRITE] = turn % SCOREBOARDS
            turn += 1
    for stream in {tuple(warp.rows) for warp in traced.warps.values()}:
        ready: dict[int, tuple[int, int]] = {}  # by register: tick, and scoreboard or -1
        now, before = 0, -1
        for i in stream:
            written, read = spans[i]
            for first, count in (*read, *written):
                for register in range(first, first + count):
                    tick, board = ready.pop(register, (0, -1))
                    if board >= 0:
                        rows[i, Cell.WAIT] |= 1 << board
                    elif tick > now and before >= 0:
                        rows[before, Cell.STALL] += tick - now
                        now = tick
            for first, count in written:
                for register in range(first, first + count):
                    ready[register] = (now + int(rows[i, Cell.LATENCY]), int(rows[i, Cell.WRITE]))
            now += int(rows[i, Cell.STALL])
            before = i


def _varies(row: np.ndarray) -> bool:
    """Whether the latency of a row is not fixed, so that a scoreboard says when its result is there."""
    return row[Cell.UNIT] not in (Unit.MATH, Unit.UNIFORM) or row[Cell.PIPE] == Pipe.XU


def _streams(traced: TracedKernel, warps: int, memory: int, shared: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What warps execute, where each begins, and addresses of lanes as they lie here."""
    pages = _pages(traced)
    lanes = np.zeros((len(traced.addresses) + 1, LANES), dtype=np.int64)
    kinds = _spaces(traced)
    for k, given in enumerate(traced.addresses):
        if kinds[k] is Unit.LDS:
            lanes[k] = np.where(given >= traced.shared_base, given - traced.shared_base, given) + shared
        else:
            lanes[k] = [memory + pages.get(int(a) >> _PAGE_BITS, 0) + (int(a) & ((1 << _PAGE_BITS) - 1)) for a in given]
    ctas = traced.grid[0] * traced.grid[1] * traced.grid[2]
    parts, first, at = [], np.zeros(ctas * warps + 1, dtype=np.int64), 0
    streams = {(cta, warp): one for cta, warp, one in instructions(traced)}
    nothing = np.zeros((1, Traced.WIDTH), dtype=np.int64)
    for cta in range(ctas):
        for warp in range(warps):
            one = streams.get((cta, warp))
            part = np.array([one.rows, one.masks, one.accesses], dtype=np.int64).T if one and one.rows else nothing
            first[cta * warps + warp] = at
            parts.append(part)
            at += len(part)
    first[-1] = at
    return np.ascontiguousarray(np.concatenate(parts)), first, lanes


def _spaces(traced: TracedKernel) -> dict[int, Unit]:
    """By access: LDS where its addresses are of shared memory, else LDG."""
    shared = [row.opcode.startswith(("LDS", "STS", "ATOMS", "LDSM", "STSM")) for row in traced.code]
    found: dict[int, Unit] = {}
    for warp in traced.warps.values():
        for row, access in zip(warp.rows, warp.accesses, strict=True):
            if access >= 0:
                found[access] = Unit.LDS if shared[row] else Unit.LDG
    return found


def _pages(traced: TracedKernel) -> dict[int, int]:
    """Where each page of 2 MiB that is touched lies, side by side, in the order of their addresses."""
    kinds = _spaces(traced)
    found: set[int] = set()
    for k, given in enumerate(traced.addresses):
        if kinds.get(k) is Unit.LDG:
            found |= {int(a) >> _PAGE_BITS for a in given if a} | {int(a) + 15 >> _PAGE_BITS for a in given if a}
    return {page: i << _PAGE_BITS for i, page in enumerate(sorted(found))}


def traced_program(traced: TracedKernel, path: str) -> Program:
    """One launch as a program: all memory that it touches is one array."""
    function = Function(traced.name, [_instruction(row, path) for row in traced.code])
    for instruction in function.instructions:
        form_of(_timed(instruction))  # names what is not known
    compiled = CompiledKernel(traced.name, max(traced.generation, 70), traced.registers, 0, 0, (), function)
    size = max(1, len(_pages(traced))) << _PAGE_BITS
    tensor = GlobalTensor(_ARRAY, (size,), "int8", (1,))
    threads = traced.block[0] * traced.block[1] * traced.block[2]
    shared = traced.shared_bytes
    kernel = TracedSassKernel(
        name=traced.name,
        grid=traced.grid,
        cluster=(1, 1, 1),
        roles=(Role("warps", -(-threads // LANES), traced.registers, ()),),
        shared=(SharedTile("shared", (shared,), "int8"),) if shared else (),
        barriers=(),
        launch_registers=max(traced.registers, 1),
        code_bytes=INSTRUCTION_BYTES * (1 + max(row.pc for row in traced.code) // INSTRUCTION_BYTES),
        compiled=compiled,
        block=traced.block,
        arrays=((_ARRAY, size),),
        traced=traced,
    )
    return SassLaunchProgram(traced.name, (tensor,), (kernel,), "trace")
