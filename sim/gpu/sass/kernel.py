"""A compiled kernel as the engine launches it: grid, block and parameters beside its code."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.engine.chip import Chip
from sim.gpu.engine.cta import Cta
from sim.gpu.engine.events import Reason
from sim.gpu.engine.own_loop import OwnLoopKernel, SpentLine, warps_of
from sim.gpu.engine.tree import FAR, TreeFigure
from sim.gpu.engine.warp import Warp
from sim.gpu.language import GlobalTensor, Program, Role, SharedTile
from sim.gpu.sass.cubin import HOPPER, RESERVED_BYTES, CompiledKernel
from sim.gpu.sass.loop import advance
from sim.gpu.sass.lower import lower
from sim.gpu.sass.tables import LANES, LOCAL_BYTES, WAITING, Cell, Fault, FaultKind, Launched, SassProgram, Scalar, Turn
from sim.gpu.sass.text import INSTRUCTION_BYTES, Instruction

FIGURES = ("shared.banks", "sm.sub_cores", "sm.wgmma_in_flight")
"""Figures of a preset that this module reads."""

_BLOCK_AT, _GRID_AT, _STACK_AT = 0x0, 0xC, 0x28
_BARRIERS = 16
_FIRST_ADDRESS = 1 << 21
_LOCAL_ADDRESS = 1 << 37
_GAP_BYTES = 1 << 20  # between arrays, at least


@dataclass(frozen=True)
class Pointer:
    """A parameter that is the address of an array's first element."""

    array: str


Value = Pointer | int | float


@dataclass(frozen=True, eq=False)
class SassKernel(OwnLoopKernel):
    """A compiled kernel with its launch. values: of its parameters, in order. arrays: name and bytes of each."""

    compiled: CompiledKernel = None  # type: ignore[assignment]
    block: tuple[int, int, int] = (LANES, 1, 1)
    values: tuple[Value, ...] = ()
    arrays: tuple[tuple[str, int], ...] = ()

    def parameters(self, p: np.ndarray) -> None:
        """Makes room for the events of sub-cores beside those of warps."""
        p[TreeFigure.LEVELS] = int(p[Chip.WARPS_PER_SM] + 2 + p[Chip.SUB_CORES]).bit_length()

    def tables(self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec) -> SassProgram:
        """Lowers the code for these addresses, and makes what warps hold."""
        _check_machine(self.compiled, spec)
        lowered = lower(self.compiled.function, self._bank(addresses), spec)
        warps, rows = warps_of(p), len(lowered.code)
        sub_cores, per_sub_core = (
            int(p[Chip.SMS] * p[Chip.SUB_CORES]),
            -(-int(p[Chip.WARPS_PER_SM]) // int(p[Chip.SUB_CORES])),
        )
        turns = np.zeros((sub_cores, per_sub_core, Turn.WIDTH), dtype=np.int64)
        turns[:, :, Turn.READY] = FAR
        floats = np.zeros(4, dtype=np.float32)
        ranges = [(addresses[name], addresses[name] + size) for name, size in self.arrays] or [(0, 0)]
        return SassProgram(
            code=lowered.code,
            warp_entry=np.array([(-1, warp) for warp in range(self.warps)], dtype=np.int64),
            barrier_arrivals=np.ones(1, dtype=np.int64),
            launch=self._launch(warps, p, spec),
            ranges=np.array(ranges, dtype=np.int64),
            registers=np.zeros((warps, lowered.registers, LANES), dtype=np.uint32),
            scalars=np.zeros((warps, Scalar.WIDTH), dtype=np.int64),
            turns=turns,
            queues=np.zeros((sub_cores, WAITING + 1), dtype=np.int64),
            barriers=np.zeros((int(p[Chip.SMS] * p[Chip.CTAS_PER_SM]), _BARRIERS, 2), dtype=np.int64),
            operands=np.zeros((5, LANES), dtype=np.int64),
            floats=floats,
            words=floats.view(np.int32),
            addresses=np.zeros((1, LANES), dtype=np.int64),
            lines=np.zeros((3, 2 * LANES), dtype=np.int64),
            covered=np.zeros((2 * LANES, 4), dtype=np.int64),
            spent=np.zeros((rows, len(Reason)), dtype=np.int64),
            issued=np.zeros((rows, 2), dtype=np.int64),
            patterns=np.full((rows, LANES + 2), -1, dtype=np.int64),
            fault=np.zeros(Fault.WIDTH, dtype=np.int64),
        )

    @property
    def loop(self) -> Callable[..., int]:
        """The loop of compiled kernels."""
        return advance

    def _launch(self, warps: int, p: np.ndarray, spec: GpuSpec) -> np.ndarray:
        launch = np.zeros(Launched.WIDTH, dtype=np.int64)
        launch[: Launched.THREADS] = self.block
        launch[Launched.THREADS] = self.block[0] * self.block[1] * self.block[2]
        begin = RESERVED_BYTES if self.compiled.sm >= HOPPER else 0
        launch[Launched.SHARED_BEGIN], launch[Launched.SHARED_END] = begin, begin + self.shared_bytes
        launch[Launched.BANKS] = spec.shared.banks
        launch[Launched.LOCAL_BEGIN] = _LOCAL_ADDRESS
        launch[Launched.FIRST_SUB_CORE] = warps + 3 * p[Chip.SMS]
        launch[Launched.WGMMA_IN_FLIGHT] = spec.sm.wgmma_in_flight or 0
        return launch

    def _bank(self, addresses: Mapping[str, int]) -> bytes:
        """The constant bank: what a launch writes to it."""
        compiled = self.compiled
        end = max((offset + size for offset, size in compiled.parameters), default=0)
        bank = bytearray(compiled.bank_bytes + end)
        struct.pack_into("<III", bank, _BLOCK_AT, *self.block)
        struct.pack_into("<III", bank, _GRID_AT, *self.grid)
        struct.pack_into("<I", bank, _STACK_AT, LOCAL_BYTES)
        for (offset, size), value in zip(compiled.parameters, self.values, strict=False):
            at = compiled.bank_bytes + offset
            if isinstance(value, float):
                bank[at : at + size] = struct.pack("<f" if size == 4 else "<d", value)
            else:
                number = addresses[value.array] if isinstance(value, Pointer) else value
                bank[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return bytes(bank)

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
        elif kind is FaultKind.MISALIGNED:
            size = int(tables.code[fault[Fault.ROW], Cell.BYTES])
            text = f"address {address:#x} is no multiple of the {size} bytes of the access"
        else:
            text = f"address {address:#x} {self._nearest(address, tables)}; is the grid right?"
        return InputError(f"kernel {self.name}: {where}: {text}")

    def _nearest(self, address: int, tables: SassProgram) -> str:
        """Where an address lies with respect to the array that is nearest."""
        distances = []
        for (name, size), (begin, end) in zip(self.arrays, tables.ranges.tolist(), strict=False):
            if address < begin:
                distances.append((begin - address, f"lies {begin - address} bytes before array {name}"))
            else:
                distances.append((address - end, f"lies {address - begin} bytes into array {name} of {size} bytes"))
        return min(distances)[1] if distances else "lies in no array, of which the kernel has none"

    def waiting(self, tables: SassProgram, state: Any) -> str:
        """The barriers at which warps of the first CTA that has not ended wait, with the lines behind them."""
        for slot in np.flatnonzero(state.ctas[:, Cta.ACTIVE] == 1)[:1]:
            row, found = state.ctas[slot], []
            for number in range(self.warps):
                warp = int(row[Cta.FIRST_WARP]) + number
                barrier = int(tables.scalars[warp, Scalar.BARRIER_WAIT]) - 1
                at = int(state.warps[warp, Warp.PROGRAM_COUNTER]) - 1
                if barrier >= 0:
                    place = self.compiled.function.instructions[at].place
                    found.append(f"warp {number} waits at barrier {barrier}, {place}")
            where = f"CTA ({row[Cta.X]}, {row[Cta.Y]}, {row[Cta.Z]})"
            return f"kernel {self.name} deadlocks: {where}: " + "; ".join(found)
        return f"kernel {self.name} deadlocks: CTAs are left and no SM can take one"

    def instructions(self) -> list[Instruction]:
        """The code, a row each."""
        return self.compiled.function.instructions


@dataclass(frozen=True)
class SassLaunchProgram(Program):
    """A launch of a compiled kernel. Nothing lies between its arrays, so that an access behind one is noticed."""

    def addresses(self) -> dict[str, int]:
        """Byte address of each array's first element."""
        address, found = _FIRST_ADDRESS, {}
        for tensor in self.tensors:
            found[tensor.name] = address
            address += -(-(tensor.size_bytes + _GAP_BYTES) // _GAP_BYTES) * _GAP_BYTES
        return found


def _check_machine(compiled: CompiledKernel, spec: GpuSpec) -> None:
    """InputError for code of another generation than the machine's."""
    major, _, minor = str(spec.compute_capability).partition(".")
    machine = 10 * int(major) + int(minor or 0)
    fits = compiled.sm // 10 == machine // 10 and compiled.sm <= machine
    if not fits:
        raise InputError(f"kernel {compiled.name} is compiled for sm_{compiled.sm}; {spec.name} is sm_{machine}")


def sass_program(
    compiled: CompiledKernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    values: tuple[Value, ...],
    arrays: tuple[GlobalTensor, ...],
    shared_bytes: int,
    schedule: str,
) -> Program:
    """One launch of a compiled kernel as a program. values: of its parameters, in order; those that are left out are 0.
    shared_bytes: shared memory of a CTA, what the kernel declares itself included."""
    threads = block[0] * block[1] * block[2]
    warps = -(-threads // LANES)
    kernel = SassKernel(
        name=compiled.name,
        grid=grid,
        cluster=(1, 1, 1),
        roles=(Role("warps", warps, compiled.registers, ()),),
        shared=(SharedTile("shared", (shared_bytes,), "int8"),) if shared_bytes else (),
        barriers=(),
        launch_registers=max(compiled.registers, 1),
        code_bytes=INSTRUCTION_BYTES * len(compiled.function.instructions),
        compiled=compiled,
        block=block,
        values=values,
        arrays=tuple((array.name, array.size_bytes) for array in arrays),
    )
    return SassLaunchProgram(compiled.name, arrays, (kernel,), schedule)
