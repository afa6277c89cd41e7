"""Kernels whose addresses or branches depend on what the engine does not compute: numbers of floating point, what lies
in shared or local memory. They are executed with values first (`replay`), and the engine's warps follow what was done.

What arrays without content hold is drawn at random as a check draws it, of floating-point numbers alone: a kernel that
reads whole numbers which nobody has given is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.gpu.sass.contents import INTEGERS, drawn
from sim.gpu.sass.forms import ATOMICS, BULK, MEMORY, TMA, Form, form_of
from sim.gpu.sass.kernel import VARIABLES, SassKernel, SassLaunchProgram
from sim.gpu.sass.lower import Lowered, timed
from sim.gpu.sass.needed import ValuesError
from sim.gpu.sass.replay import KernelValues, Memory, WarpValues
from sim.gpu.sass.replay_flow import bits
from sim.gpu.sass.tables import LANES, Launched, SassProgram, Traced, Unit

_SHARED = (Unit.LDS, Unit.STS, Unit.LDSM, Unit.STSM, Unit.ATOMS)
_HINT = " (give its array as NAME=dtype[shape]:FILE.npy)"
_UNTOUCHED = "; nothing was run"
_NOT_FOLLOWED = (*TMA, *BULK, Unit.SYNCS, Unit.HGMMA, Unit.STAS, Unit.REDAS)


class RecordedValues(KernelValues):
    """A replay that notes what warps execute. unknown: arrays of whole numbers that nobody has given: name, first
    byte and the one behind the last."""

    def __init__(self, kernel: SassKernel, bank: bytes, memory: Memory, unknown: list[tuple[str, int, int]]) -> None:
        super().__init__(kernel, bank, memory, kernel.shared_range)
        self.steps: dict[int, list[tuple[int, int, int]]] = {}
        self.lanes: list[NDArray[np.int64]] = [np.zeros(LANES, dtype=np.int64)]
        self.unknown, self.stored = unknown, np.zeros(len(memory.content), dtype=bool)

    def noted(self, warp: WarpValues, form: Form) -> None:
        """Notes an instruction that a warp is about to execute, with the addresses of its lanes."""
        x, y, z = warp.cta.place
        columns, rows, _ = self.kernel.grid
        first = ((z * rows + y) * columns + x) * self.kernel.warps
        place = -1
        if form.opcode.unit in MEMORY:
            place = len(self.lanes)
            self.lanes.append(self._addresses(warp, form))
        self.steps.setdefault(first + warp.number, []).append((warp.row, int(bits(warp.mask)), place))

    def _addresses(self, warp: WarpValues, form: Form) -> NDArray[np.int64]:
        if form.opcode.unit in _SHARED:
            return warp.cta.own(warp.address(form.addresses[0], wide=False))
        if form.opcode.unit is Unit.LDGSTS:  # those of shared memory behind those of what is copied
            reads = warp.mask & (warp.predicate(form.inputs[0]) if form.inputs else True)
            found = warp.address(form.addresses[-1], wide=True)
            self.lanes.append(np.where(reads, found, found[int(np.argmax(reads))]))
            return warp.cta.own(warp.address(form.addresses[0], wide=False))
        found = warp.address(form.addresses[-1], wide=True)
        if self.unknown and form.parts[0] not in ("LDL", "STL"):
            self._judge(found[warp.mask], form)
        return found

    def _judge(self, addresses: NDArray[np.int64], form: Form) -> None:
        """ValuesError for a load from what nobody has given."""
        size, loads = form.access_bytes, form.opcode.unit in (Unit.LDG, Unit.LD, *ATOMICS)
        for name, begin, end in self.unknown:
            inside = addresses[(addresses >= begin) & (addresses + size <= end)] - self.memory.first
            places = (inside[:, None] + np.arange(size)).ravel()
            if loads and not self.stored[places].all():
                raise ValuesError(f"array {name} is read, whose content nobody has given")
            if not loads:
                self.stored[places] = True


@dataclass(frozen=True, eq=False)
class FollowedKernel(SassKernel):
    """A kernel whose warps follow what was executed. drawn: what arrays hold that are not given; unknown: those of them
    whose numbers must be."""

    drawn: Mapping[str, np.ndarray] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    recorded: dict[str, RecordedValues] = field(default_factory=dict)

    def recording(self, addresses: Mapping[str, int]) -> RecordedValues:
        """What its warps execute, once for all machines."""
        if "values" not in self.recorded:
            first = min(addresses.values())
            content = np.zeros(max(addresses[name] + size for name, size in self.arrays) - first, dtype=np.uint8)
            for name, array in {**self.drawn, **self.contents}.items():
                held = np.frombuffer(array.tobytes(), dtype=np.uint8)
                content[addresses[name] - first :][: len(held)] = held
            sizes = dict(self.arrays)
            memory = Memory(content, first, {name: (addresses[name], size) for name, size in self.arrays})
            unknown = [(name, addresses[name], addresses[name] + sizes[name]) for name in self.unknown]
            values = RecordedValues(self, self.bank(addresses), memory, unknown)
            values.run()
            self.recorded["values"] = values
        return self.recorded["values"]

    def lowered(self, addresses: Mapping[str, int], spec: GpuSpec) -> Lowered:
        """Its code, of whose flow of control issue slots are left."""
        return Lowered(timed(self.compiled.function, spec), ())

    def tables(self, p: np.ndarray, addresses: Mapping[str, int], spec: GpuSpec) -> SassProgram:
        """The tables of its code, and what warps have executed."""
        values, base = self.recording(addresses), super().tables(p, addresses, spec)
        count = self.grid[0] * self.grid[1] * self.grid[2] * self.warps
        steps = [values.steps.get(number, []) for number in range(count)]
        first = np.concatenate([[0], np.cumsum([len(one) for one in steps])]).astype(np.int64)
        trace = np.array([step for one in steps for step in one], dtype=np.int64).reshape(-1, Traced.WIDTH)
        lanes = np.ascontiguousarray(np.stack(values.lanes))
        base.launch[Launched.FOLLOWS] = 1
        return base._replace(trace=trace, trace_first=first, trace_lanes=lanes)


def with_values(program: SassLaunchProgram, spec: GpuSpec) -> SassLaunchProgram:
    """The program, its kernel one that follows what was executed where addresses or branches need that. ValuesError,
    with the instruction, where it cannot be executed so."""
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    kernel.check_machine(spec)
    try:
        kernel.lowered(program.addresses(), spec)
    except ValuesError as error:
        if any(form_of(one).opcode.unit in _NOT_FOLLOWED for one in kernel.instructions()):
            raise
        return _followed(program, kernel, error)
    return program


def _followed(program: SassLaunchProgram, kernel: SassKernel, why: ValuesError) -> SassLaunchProgram:
    given = {one.name: getattr(kernel, one.name) for one in fields(SassKernel)}
    open_ones = [(seed, tensor) for seed, tensor in enumerate(program.tensors) if tensor.name not in kernel.contents]
    unknown = tuple(tensor.name for _, tensor in open_ones if tensor.dtype in INTEGERS)
    numbers = {tensor.name: drawn(tensor, seed) for seed, tensor in open_ones}
    made = FollowedKernel(**given, drawn=numbers, unknown=unknown)
    try:
        made.recording(program.addresses())
    except ValuesError as error:
        where = str(why).removesuffix(_UNTOUCHED).replace(_HINT, "")
        raise ValuesError(f"{where}, and {error}{_HINT}{_UNTOUCHED}") from None
    except InputError as error:
        raise InputError(str(error).removeprefix("check: ")) from None
    floats = [tensor.name for _, tensor in open_ones if tensor.dtype not in INTEGERS and tensor.name != VARIABLES]
    note = (
        "Addresses or branches depend on what the kernel computes: it was executed with values, which its warps follow."
    )
    if floats:
        note = f"{note[:-1]}; {', '.join(floats)} held random numbers. NAME=dtype[shape]:FILE.npy gives others."
    return replace(program, kernels=(made,), notes=(*program.notes, note))
