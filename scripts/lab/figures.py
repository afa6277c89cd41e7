"""Doubles and halves every figure of every machine, and says what moved.

    python scripts/lab/figures.py [MACHINE ...] [--own] [--all]

For each figure of a preset it changes that figure alone: numbers are doubled and halved (a zero becomes a small
number), switches are turned, words are replaced by each other word that is allowed. Small workloads that the figure
could matter to run before and after, with the schedule held, until one answers with another time, energy, counter or
report. A figure that nothing answers to, and whose change nothing refuses, is a bug, and is listed. --own: only the
figures that a preset sets itself. --all: the figures that move or are refused are listed too.
"""

# ruff: noqa: E501  (a case a line)

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from arch.dram_standards import list_standards
from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction
from arch.leaves import documents, leaves, spec_class
from arch.library import PRESETS, list_archs
from arch.load import load_arch
from arch.policies import Policy
from arch.preset_file import IDENTITY, read
from arch.spec import MachineSpec
from sim import simulate
from sim.gpu.engine.api import Device
from sim.gpu.power.regulator import PowerRegulator
from sim.gpu.program import CLUSTER_RANK, GlobalTensor, KernelBuilder, Program, RegisterTile
from sim.gpu.sass.cubin import CompiledKernel
from sim.gpu.sass.kernel import sass_program
from sim.gpu.sass.text import read_functions
from sim.rdu.engine import run_section
from sim.rdu.host import Launch, run_launches
from sim.rdu.program import Call, Counter, Out, Section, Tensor
from sim.rdu.program import Program as RduProgram
from workloads.gpu import micro
from workloads.rdu.access import chase
from workloads.rdu.sparse import sparse_matvec

Make = Callable[[GpuSpec], Program]


@dataclass(frozen=True)
class Case:
    """Something small to run. figures: prefixes of those that it is for, "" for any; only machines with all of `needs`.

    text: a workload with `options` of `simulate`, or the name of what `make` gives, a program of the tile language, or
    `section`, one of the dataflow language. base: overrides of the machine on which it runs, before and after.
    """

    text: str = ""
    figures: tuple[str, ...] = ("",)
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    base: tuple[str, ...] = ()
    make: Make | None = None
    section: Callable[[], RduProgram] | None = None

    def __hash__(self) -> int:
        return id(self)

    @property
    def name(self) -> str:
        """What the table calls it."""
        options = (f"{key}={value}" for key, value in self.options.items())
        return " ".join([self.text, *options, *self.base])


class Answer(NamedTuple):
    """What a run says: `schedule` is held where the machine still takes it."""

    numbers: tuple[Any, ...]
    schedule: str


class Found(NamedTuple):
    """What became of one figure: `moved` with the workload that answered, `refused` with the reason, or `nothing`."""

    path: str
    outcome: Literal["moved", "refused", "nothing"]
    by: str


# ---------------------------------------------------------------------------------------------------- what changes


def changes(spec: MachineSpec, path: str) -> Iterator[str]:
    """Values to which a figure is changed, as one types them."""
    if path.startswith("instructions."):
        yield from _row_changes(spec, path)
        return
    leaf = leaves(type(spec))[path]
    value: Any = spec
    for attribute in leaf.attributes:
        value = getattr(value, attribute)
    policies = [mark.shipped for mark in leaf.field.metadata if isinstance(mark, Policy)]
    words = get_args(leaf.field.annotation) if get_origin(leaf.field.annotation) is Literal else ()
    words = policies[0] if policies else words
    if isinstance(value, bool):
        yield str(not value).lower()
    elif words:
        yield from (word for word in words if word != value)
    elif isinstance(value, str):
        yield from (word for word in _WORDS.get(path, ()) if word != value)
    else:
        yield from _numbers(value, str(leaf.unit.printed[-1]) if leaf.unit else "")


_WORDS = {
    "pcu.dtypes": ("fp32", "bf16"),
    **dict.fromkeys(("dram.standard", "hbm.standard", "ddr.standard"), list_standards()),
}
"""Words that figures of free text may be."""


def _row_changes(spec: MachineSpec, path: str) -> Iterator[str]:
    assert isinstance(spec, GpuSpec)
    name, column = path.removeprefix("instructions.").rpartition(".")[::2]
    row = next(row for row in spec.instructions if row.name == name)
    if column == "pipe":
        pipes = get_args(Instruction.model_fields["pipe"].annotation)
        yield from (pipe for pipe in pipes if pipe != row.pipe)
    else:
        yield from _numbers(getattr(row, f"{column}_cycles"), "cycles")


def _numbers(value: float, unit: str) -> Iterator[str]:
    small = {"": "0.1" if isinstance(value, float) else "4", "cycles": "64", "ps": "500000"}
    if not value:
        yield f"{small.get(unit, '1000')} {unit}".strip()
        return
    for changed in (2 * value, value / 2 if isinstance(value, float) else value // 2):
        yield f"{changed!r} {unit}".strip()


def figures(machine: str, *, own: bool = False) -> list[str]:
    """Paths of all figures of a machine that have a value, columns of instruction rows included."""
    spec = load_arch(machine)
    stated = read(PRESETS / f"{machine}.yaml").figures if own else spec.sources
    return [path for path in stated if path not in IDENTITY]


# ---------------------------------------------------------------------------------------------------- what runs


def cases_of(spec: MachineSpec, path: str) -> list[Case]:
    """What could answer to a figure, what is made for it first."""
    made_for: list[tuple[int, Case]] = []
    paths = {**spec.sources}
    for case in CASES[spec.family]:
        best = max((len(prefix) for prefix in case.figures if path.startswith(prefix)), default=-1)
        if best >= 0 and all(any(known.startswith(need) for known in paths) for need in case.needs):
            made_for.append((-best, case))
    return [*_row_cases(spec, path), *(case for _, case in sorted(made_for, key=lambda entry: entry[0]))]


def _row_cases(spec: MachineSpec, path: str) -> list[Case]:
    """A kernel that does nothing but the instruction of a row."""
    if not path.startswith("instructions."):
        return []
    assert isinstance(spec, GpuSpec)
    name = path.removeprefix("instructions.").rpartition(".")[0]
    if name in _COMPILED_ALONE:
        return [Case(f"chain of {name} in compiled code", make=_compiled_chain(name))]
    cases = [Case(f"row {name}", make=_of_row(name))]
    if any(row.name == name and row.pipe == "fp64_shared" for row in spec.instructions):
        cases.append(Case(f"chain of {name} in compiled code", make=_compiled_chain(name)))
    return cases


_COMPILED_ALONE = {
    **{f"mma.int4.{shape}": f"IMMA.{code}.S4.S4" for shape, code in
       (("m8n8k32", "8832"), ("m16n8k32", "16832"), ("m16n8k64", "16864"))},
    **{f"mma.int1.{shape}": f"BMMA.{code}.AND.POPC" for shape, code in
       (("m8n8k128", "88128"), ("m16n8k128", "168128"), ("m16n8k256", "168256"))},
}  # fmt: skip
"""Opcodes of rows whose formats the tile language does not have."""


@cache
def _of_row(name: str) -> Make:
    op, dtype, shape = [*name.split("."), ""][:3]
    if op == "mma":
        return lambda _: _both(micro.mma_loop(dtype, shape, 8, independent=4, warps=8), micro.mma_loop(dtype, shape, 8))
    if op in ("wgmma", "wgmma_rs"):
        least, most = (
            micro.wgmma_loop(dtype, shape.replace("n*", n), 8, 1, wait=False, registers=op == "wgmma_rs")
            for n in ("n8", "n256")
        )
        return lambda _: _both(least, most)
    if op in ("lds", "sts", "ldmatrix", "stmatrix"):
        return lambda _: _moves(op, 4 if "matrix" in op else int(dtype.removeprefix("b")) // 8)
    return lambda _: _runs(op, dtype)


def _both(first: Program, second: Program) -> Program:
    """The kernels of two programs, one after the other."""
    return Program(first.name, first.tensors + second.tensors, first.kernels + second.kernels, first.schedule)


def _runs(op: str, dtype: str) -> Program:
    """Independent instructions of the warps of all sub-cores, then a chain."""
    kernel = KernelBuilder("row", (1, 1, 1), code_bytes=512)
    value = RegisterTile("value", (1, 32), "fp32")
    with kernel.role("warps", warps=16, registers=32) as r:
        with r.loop("i", 4):
            r.run(op, 16, dtype=dtype, dst=value.whole)
        with r.loop("i", 4):
            r.run(op, 1, dtype=dtype, dst=value.whole, srcs=(value.whole,))
    return Program("row", (), (kernel.build(),), "row")


@cache
def _compiled_chain(name: str) -> Make:
    """Two instructions of one warp, the second of which waits for the first on a scoreboard. A program of the tile
    language gives each sub-core its share of a pipe that they have in common; a compiled warp that is alone has all of
    it, and waits for the latency."""
    if opcode := _COMPILED_ALONE.get(name):
        lines = (f"{opcode} R4, R16.ROW, R20.COL, R12", f"{opcode} R8, R16.ROW, R20.COL, R4", "EXIT")
    else:
        sources = {"dfma": ("R2", "R2", "R2")}.get(op := name.partition(".")[0], ("R2", "R2"))
        lines = (
            f"{op.upper()} R4, {', '.join(sources)}",
            f"{op.upper()} R6, {', '.join(('R4', *sources[1:]))}",
            "EXIT",
        )
    words = (1 << 41 | 1 << 45 | 0 << 46 | 7 << 49, 1 << 41 | 1 << 45 | 1 << 46 | 7 << 49 | 1 << 52, 0xFE2 << 40)
    text = [" .section .text.chain,"]
    for at, (line, word) in enumerate(zip(lines, words, strict=True)):
        text += [f" /*{16 * at:04x}*/ {line} ; /* 0x{0:016x} */", f" /* 0x{word:016x} */"]
    (function,) = read_functions("\n".join(text)).values()

    def make(spec: GpuSpec) -> Program:
        major, _, minor = str(spec.compute_capability).partition(".")
        compiled = CompiledKernel("chain", int(major + minor), 32, 0, 0x160, (), function)
        return sass_program(compiled, (1, 1, 1), (32, 1, 1), (), (), 0, "chain")

    return make


def _moves(op: str, width: int) -> Program:
    """Loads from and stores to shared memory, `width` bytes a thread."""
    kernel = KernelBuilder("row", (1, 1, 1), code_bytes=512)
    shape, dtype = ((16, 16), "fp16") if "matrix" in op else ((1, 32 * width), "int8")
    shared, value = kernel.shared("tile", shape, dtype), RegisterTile("value", shape, dtype)
    with kernel.role("warps", warps=4, registers=32) as r, r.loop("i", 8):
        if op == "lds":
            r.lds(value.whole, shared.stage(), 1, into="x", after=("x",), vector_bytes=width)
        elif op == "sts":
            r.sts(shared.stage(), value.whole, 1, vector_bytes=width)
            r.bar_sync(0, 4)
        elif op == "ldmatrix":
            r.ldmatrix(value.whole, shared.stage(), 1, into="x", after=("x",))
        else:
            r.stmatrix(shared.stage(), value.whole, 1)
            r.bar_sync(0, 4)
    return Program("row", (), (kernel.build(),), "row")


def _full(warps: int = 4, registers: int = 32, shared_bytes: int = 0, cluster: int = 1) -> Make:
    """As many CTAs as an SM takes and more: what an SM holds of them decides."""

    def make(spec: GpuSpec) -> Program:
        kernel = KernelBuilder("full", (16 * spec.sm.max_ctas, 1, 1), (cluster, 1, 1), code_bytes=512)
        if shared_bytes:
            kernel.shared("tile", (shared_bytes,), "int8")
        x, value = GlobalTensor("x", (1, 32), "fp32", (32, 1)), RegisterTile("value", (1, 32), "fp32")
        with kernel.role("warps", warps=warps, registers=registers) as r:
            with r.loop("i", 16):
                r.ldg(value.whole, x[:, :], 1, into="x", after=("x",))
            if cluster > 1:
                r.cluster_sync()
        return Program("full", (x,), (kernel.build(),), "full")

    return make


def _barriers(_: GpuSpec) -> Program:
    """Two named barriers."""
    kernel = KernelBuilder("barriers", (1, 1, 1), code_bytes=512)
    with kernel.role("warps", warps=4, registers=32) as r:
        r.bar_sync(0, 4)
        r.bar_sync(1, 4)
    return Program("barriers", (), (kernel.build(),), "barriers")


def _packed(spec: GpuSpec, *, reserved: bool = False) -> Program:
    """CTAs of one warp whose shared memory just fits an SM, so that a coarser granule, or another reserve, costs one."""
    shared, room = spec.shared, spec.shared.max_per_sm_bytes
    if reserved:
        return _full(1, 32, room // 4 - shared.reserved_per_cta_bytes * 3 // 4)(spec)
    ctas = next(n for n in range(3, 99) if room // n // shared.granule_bytes % 2)
    return _full(1, 32, room // ctas // shared.granule_bytes * shared.granule_bytes - shared.reserved_per_cta_bytes)(
        spec
    )


def _hot(trips: int) -> Make:
    """Work that keeps all FMA pipes of the chip busy."""

    def make(spec: GpuSpec) -> Program:
        kernel = KernelBuilder("hot", (spec.sm.count, 1, 1), code_bytes=512)
        value = RegisterTile("value", (1, 32), "fp32")
        with kernel.role("warps", warps=8, registers=32) as r, r.loop("i", trips):
            r.run("ffma", 4096, dtype="fp32", dst=value.whole)
        return Program("hot", (), (kernel.build(),), "hot")

    return make


def _relay(trips: int) -> Make:
    """Two warps that wait for each other on mbarriers."""

    def make(spec: GpuSpec) -> Program:
        kernel = KernelBuilder("relay", (1, 1, 1), code_bytes=512)
        there, back = kernel.mbarrier("there", 1, 1), kernel.mbarrier("back", 1, 1)
        with kernel.role("first", warps=1, registers=32) as r, r.loop("i", trips) as i:
            r.mbarrier_arrive(there, 0)
            r.mbarrier_wait(back, 0, i)
        with kernel.role("second", warps=1, registers=32) as r, r.loop("i", trips) as i:
            r.mbarrier_wait(there, 0, i)
            r.mbarrier_arrive(back, 0)
        return Program("relay", (), (kernel.build(),), "relay")

    return make


def _bulk(boxes: int, rows: int, cluster: int = 1) -> Make:
    """One warp loads `boxes` boxes of `rows` rows of 256 B by TMA before it waits; with a cluster, for all its CTAs."""

    def make(spec: GpuSpec) -> Program:
        x = GlobalTensor("x", (boxes * rows * cluster, 64), "fp32", (64, 1))
        kernel = KernelBuilder("bulk", (cluster, 1, 1), (cluster, 1, 1), code_bytes=512)
        tile, full = kernel.shared("tile", (rows, 64), "fp32", boxes), kernel.mbarrier("full", 1, 1)
        with kernel.role("warp", warps=1, registers=32) as r:
            if cluster > 1:
                r.cluster_sync()
            r.mbarrier_expect(full, 0, boxes * rows * 256)
            for box in range(boxes):
                everyone = (1 << cluster) - 1 if cluster > 1 else None
                part = rows // cluster
                at = tile[box, CLUSTER_RANK * part : part, :] if cluster > 1 else tile.stage(box)
                r.tma_load(at, x[box * rows + CLUSTER_RANK * part : part, :], full, 0, multicast=everyone)
            r.mbarrier_wait(full, 0, 0)
            if cluster > 1:
                r.cluster_sync()
        return Program("bulk", (x,), (kernel.build(),), "bulk")

    return make


def _halves(spec: GpuSpec) -> Program:
    """The TMA brings the first halves of 64 lines, and then the others."""
    x = GlobalTensor("x", (64, 32), "fp32", (32, 1))
    kernel = KernelBuilder("halves", (1, 1, 1))
    tile, full = kernel.shared("tile", (64, 16), "fp32"), kernel.mbarrier("full", 1, 1)
    with kernel.role("warp", warps=1, registers=32) as r:
        for half in range(2):
            r.mbarrier_expect(full, 0, 64 * 64)
            r.tma_load(tile.stage(), x[0:64, 16 * half : 16], full, 0)
            r.mbarrier_wait(full, 0, half)
    return Program("halves", (x,), (kernel.build(),), "halves")


def _peers(spec: GpuSpec) -> Program:
    """The CTAs of a cluster of two each store 16 KiB to the other's shared memory."""
    kernel = KernelBuilder("peers", (2, 1, 1), (2, 1, 1))
    tile, value = kernel.shared("tile", (32, 4), "fp32"), RegisterTile("value", (32, 4), "fp32")
    with kernel.role("warps", warps=1, registers=32) as r:
        r.cluster_sync()
        r.dsmem_st(tile.stage(), value.whole, 32, rank=1 - CLUSTER_RANK)
        r.cluster_sync()
    return Program("peers", (), (kernel.build(),), "peers")


def _chase(share: float) -> Make:
    """A pointer chase over a share of the L1."""
    return lambda spec: micro.pointer_chase(int(share * spec.l1.size_bytes), 6000, 128)


def _copy_on(place: Literal["hbm", "ddr"]) -> RduProgram:
    """y = x through one memory, by tiles that touch many rows of it."""
    section, i = Section("copy"), Counter("i", 64)
    x, y = (Tensor(name, (64, 2048), "fp32", role, place=place) for name, role in (("x", "input"), ("y", "output")))
    tile = section.load("load", x, (i, 0), (1, 2048), (i,))
    same = section.stage("same", (i,), {"x": tile.read()}, lambda x: x + x, Out((1, 2048), "fp32", (i,)))
    section.store("store", y, (i, 0), same, (i,))
    return RduProgram("copy", (Call(section),), "copy")


def _streamed() -> RduProgram:
    """y = 4 x by two stages with a stream between them, two tokens of 768 B: FIFOs of their reader hold it, or a PMU."""
    section, i, row = Section("streamed"), Counter("i", 64), (1, 192)
    x, y = (Tensor(name, (64, 192), "fp32", role, place="ddr") for name, role in (("x", "input"), ("y", "output")))
    tile = section.load("load", x, (i, 0), row, (i,))
    twice = section.stage("twice", (i,), {"x": tile.read()}, lambda x: x + x, Out(row, "fp32", (i,)))
    again = section.stage("again", (i,), {"x": twice.read(stream=True)}, lambda x: x + x, Out(row, "fp32", (i,)))
    section.store("store", y, (i, 0), again, (i,))
    return RduProgram("streamed", (Call(section),), "streamed")


def _words() -> RduProgram:
    """Two stages send words to a third one."""
    section, i, word = Section("words"), Counter("i", 16), (1, 1)
    made = {name: section.timed(name, (i,), {}, Out(word, "fp32", (i,)), interval_cycles=100) for name in ("a", "b")}
    inputs = {name: output.read() for name, output in made.items()}
    section.stage("add", (i,), inputs, lambda a, b: a + b, Out(word, "fp32", (i,)))
    return RduProgram("words", (Call(section),), "words")


def answer(case: Case, machine: str, overrides: Sequence[str], schedule: str = "") -> Answer:
    """Runs a case on a machine."""
    if case.section is not None:
        spec = load_arch(machine, overrides)
        section_program = case.section()
        results = [run_section(c.section, spec, section_program.addresses()) for c in section_program.calls]
        played = run_launches(spec, [Launch(0, 10**6, prefetch_bytes=1 << 20, memory_ps=10**6)] * 2, "host")
        found = ((r.ticks, r.configuration.pmus_used, *r.read_bytes.values()) for r in results)
        return Answer((played.total_ps, *found), "")
    if case.make is not None:
        spec = load_arch(machine, overrides)
        program = case.make(load_arch(machine, case.base))
        device = Device(spec, regulator=PowerRegulator(spec, sustained=False))
        addresses = program.addresses()
        results = [device.build(kernel, addresses).run() for kernel in program.kernels]
        return Answer(tuple((r.ticks, r.time_ps, r.energy_fj, *r.counters.values()) for r in results), "")
    options = dict(case.options)
    if schedule:
        options["schedule"] = schedule
    record = simulate(case.text, load_arch(machine, overrides), **options).record
    m = record.machine
    report = (m.boost_hz, m.peak_ops_per_s, m.peak_hz, *m.bandwidths.items(), m.power_limit_mw, *m.instances.items())
    kernels = tuple(
        (k.cycles, k.clock_hz, k.time_ps, k.energy_fj, *k.counters.items(), *k.launch_ps.items(), str(k.own))
        for k in record.kernels
    )
    return Answer((record.time_ps, *kernels, *report), record.schedule)


_plain: dict[tuple[Case, str], Answer | None] = {}


def plain(case: Case, machine: str) -> Answer | None:
    """The answer of the machine as it is, None where it does not take the case."""
    if (case, machine) not in _plain:
        try:
            _plain[case, machine] = answer(case, machine, case.base)
        except InputError:
            _plain[case, machine] = None
    return _plain[case, machine]


def examine(machine: str, path: str) -> Found:
    """What becomes of one figure."""
    spec = load_arch(machine)
    if (mark := documents(spec_class(spec.family), path)) is not None:
        return Found(path, "refused", f"documents only: {mark.reason}")
    tried, limit, reason = False, "", ""
    for case in cases_of(spec, path):
        before = plain(case, machine)
        if before is None:
            continue
        for value in changes(load_arch(machine, case.base), path):
            changed = [*(b for b in case.base if not b.startswith(f"{path}=")), f"{path}={value}"]
            try:
                load_arch(machine, changed)
            except InputError as error:
                reason = reason or str(error)
                continue
            try:
                after = _held(case, machine, changed, before)
            except InputError as error:
                limit = limit or f"{case.name}: {error}"
                continue
            if after.numbers != before.numbers:
                return Found(path, "moved", f"{case.name} ({value})")
            tried = True
    if limit or (reason and not tried):
        return Found(path, "refused", limit or reason)
    return Found(path, "nothing", reason)


def _held(case: Case, machine: str, overrides: Sequence[str], before: Answer) -> Answer:
    """The answer of a changed machine, with the schedule of the unchanged one where that is a single kernel's."""
    held = "schedule" not in case.options and load_arch(machine).family == "gpu"
    return answer(case, machine, overrides, before.schedule if held else "")


# fmt: off
_SMALL = ("sm.count=4", "gpc.count=2")
_TINY_L2 = ("dram.channels=2", "l2.slices=2", "l2.size=64 KiB")
_BUSY = (
    ("channels=2", "banks=2"),
    ("channels=1", "banks=1", "bandwidth=10 GB/s", "row=512 B"),
    ("channels=1", "banks=2", "bandwidth=20 GB/s"),
    ("channels=1", "banks=32", "bandwidth=100 GB/s", "row=512 B", "t_faw=80 ns"),
)
_AT_ONCE = ("pcie.bandwidth=10000 GB/s", "pcie.latency=0 us", "control.sync=0 cycles", "host.turnaround=0 us")
_FETCHES = ("gemm m=64 n=256 k=2048", "attention batch=1 heads=1 head_dim=64 seq=512")
CASES: dict[str, tuple[Case, ...]] = {
    "gpu": (
        Case("gemm m=128 n=128 k=64", options={"schedule": "auto"}),
        Case("gemm m=256 n=256 k=128", ("", "tma", "sync", "sm.wgmma"), ("tma",), options={"schedule": "wgmma"}),
        Case("softmax rows=32 cols=256"),
        Case("full", ("sm.max", "sm.reg"), base=_SMALL, make=_full(1)),
        Case("full of registers", ("sm.max", "sm.reg"), base=_SMALL, make=_full(1, 168)),
        Case("full of threads", ("sm.max",), base=_SMALL, make=_full(32)),
        Case("packed shared memory", ("shared",), base=_SMALL, make=_packed),
        Case("reserved shared memory", ("shared.reserved",), base=(*_SMALL, "shared.max_per_cta=60 KiB"), make=lambda spec: _packed(spec, reserved=True)),
        Case("full of shared memory", ("shared.max",), base=(*_SMALL, "shared.max_per_cta=20 KiB"), make=_full(4, 32, 18000)),
        Case("full of registers", ("sm.max_registers",), base=_SMALL, make=_full(4, 160)),
        Case("chase", ("l1",), make=_chase(0.4)),
        Case("chase", ("l1",), base=("l1.ways=4",), make=_chase(1.0)),
        *(Case("chase", ("l1.reserved", "l1.size"), make=_chase(share)) for share in (0.9, 0.985)),
        Case(
            "gemm m=256 n=256 k=256 dtype=fp32", ("l1.replacement",), base=(*_SMALL, "l1.reserved=1 KiB"),
            options={"schedule": "simt 32x32x16 warp 16x16 ldg stages 2"},
        ),
        Case("add n=1048576 dtype=fp32", ("sm.per_tpc",), base=("sm.count=6", "gpc.count=2", "port.gpc=64 B/clk")),
        Case(
            "gemm m=512 n=512 k=512", ("gpc.single_tpcs",), base=("sm.count=8", "gpc.count=2"),
            options={"schedule": "wgmma 64x64x64 cluster 4x1 stages 4"},
        ),
        Case("gemm m=256 n=256 k=256", ("l2.replacement",), base=(*_SMALL, *_TINY_L2)),
        Case("gemm m=512 n=512 k=512", ("l2.replacement",), base=(*_SMALL, *_TINY_L2)),
        Case("sweeps", ("dram",), base=(*_SMALL, *_TINY_L2), make=lambda _: micro.private_read(1 << 16, 3, 1)),
        Case("add n=65536 dtype=fp32", ("l1.miss_queue",), base=(*_SMALL, "l1.miss_queue=4")),
        Case("add n=65536 dtype=fp32", ("l1.queue",), base=(*_SMALL, "l1.queue=4 cycles")),
        Case("softmax rows=64 cols=2048", ("shared.queue",), base=(*_SMALL, "shared.queue=4 cycles")),
        Case("gemm m=128 n=128 k=64 dtype=fp32", ("shared.queue",), base=(*_SMALL, "shared.queue=4 cycles")),
        Case("gemm m=128 n=128 k=64 dtype=fp32", ("sm.round_robin_run",), base=(*_SMALL, "sm.scheduler=lrr")),
        Case("gemm m=256 n=256 k=64 dtype=fp32", ("sm.active_warps",), base=("sm.count=1", "gpc.count=1", "sm.scheduler=two_level", "sm.active_warps=2")),
        Case("barriers", ("sync.named_barriers",), base=("sync.named_barriers=2",), make=_barriers),
        Case("halves", ("tma.promotion",), ("tma",), make=_halves),
        Case("bulk", ("tma.issue_gap",), ("tma",), base=("tma.issue_gap=40 cycles",), make=_bulk(6, 128)),
        Case("gemm m=512 n=512 k=4096 dtype=fp16", ("clock.under_tensor",), base=("sm.count=8", "gpc.count=2")),
        Case("bulk", ("tma.queue",), ("tma",), base=("tma.queue=2",), make=_bulk(6, 128)),
        Case("add n=65536 dtype=fp32", ("port.receive",), base=(*_SMALL, "port.receive=8 B/clk")),
        Case("clusters", ("dsmem.max",), ("dsmem",), make=_full(4, 32, 0, 16)),
        Case("peers", ("dsmem.write",), ("dsmem",), make=_peers),
        Case("softmax rows=64 cols=16384 dtype=bf16", ("dsmem", "sync.cluster_sync"), ("dsmem",), options={"schedule": "cluster"}),
        Case(
            "gemm m=1024 n=1024 k=1024 dtype=bf16", ("dsmem.max_portable",), ("dsmem",),
            base=("dsmem.max_portable_cluster=2", "l2.coalescer=0"), options={"schedule": "wgmma"},
        ),
        Case("relay", ("sync.mbarrier",), ("sync.mbarrier",), make=_relay(50)),
        Case("bulk", ("tma.max_in_flight",), ("tma",), base=("tma.max_in_flight=4 KiB",), make=_bulk(6, 128)),
        Case("bulk", ("tma",), ("tma",), make=_bulk(6, 128)),
        Case("bulk multicast", ("tma.max_multicast", "port.receive"), ("tma",), base=("tma.max_multicast=8",), make=_bulk(2, 128, 8)),
        Case("hot", ("clock", "power"), base=("sm.count=8", "gpc.count=2", "power.limit=150 W", "power.static=100 W", "power.energy.fma=120 pJ"), make=_hot(60)),
        Case("hot", ("clock.lowest",), base=("sm.count=8", "gpc.count=2", "power.limit=101 W", "power.static=100 W", "power.energy.fma=120 pJ"), make=_hot(60)),
        Case("hot", ("clock.undershoot",), base=("sm.count=8", "gpc.count=2", "power.limit=150 W", "power.static=100 W", "power.energy.fma=120 pJ", "clock.recovery=200 us"), make=_hot(60)),
        Case("hot", ("clock.recovery",), base=("sm.count=8", "gpc.count=2", "power.limit=150 W", "power.static=100 W", "power.energy.fma=120 pJ", "clock.undershoot=0.8"), make=_hot(60)),
        Case("gemm m=128 n=128 k=64", ("power.data.zeros", "power.data.moved_zeros", "power.data.dram_zeros"), options={"data": "zeros"}),
        Case("gemm m=128 n=128 k=64", ("power.data.half_zeros",), options={"data": "half_zeros"}),
        Case("gemm m=128 n=128 k=64", ("power.data.uniform",), options={"data": "uniform"}),
        *(Case(f"gemm m=128 n=128 k=64 dtype={dtype}", (f"power.energy.tensor.{dtype}",)) for dtype in ("fp16", "tf32", "fp8", "int8", "fp64")),
        Case("compiled hfma2", ("power.energy.hfma",), ("instructions.hfma2",), make=_compiled_chain("hfma2.fp16")),
        Case("row dfma.fp64", ("power.energy.dfma",), ("instructions.dfma",), make=_of_row("dfma.fp64")),
        Case("gemm m=256 n=256 k=128", ("launch", "pcie"), options={"scope": "host"}),
        *(Case("add n=65536 dtype=fp32", ("launch.release",), ("launch.release",), options={"scope": scope, "pdl": True}) for scope in ("stream", "graph")),
        Case("gemm m=256 n=256 k=64", base=_SMALL),
        Case("softmax rows=64 cols=2048", base=_SMALL, options={"l2": "dirty"}),
        Case("add n=65536 dtype=fp32", base=_SMALL),
        Case("add n=65536 dtype=fp32", ("dram",), base=(*_SMALL, "dram.channels=2", "l2.slices=2", "l2.size=64 KiB")),
        Case("add n=65536 dtype=fp32", ("dram.write", "l2.clean_first"), base=(*_SMALL, "dram.channels=2", "l2.slices=2", "l2.size=64 KiB"), options={"l2": "dirty"}),
        Case("add n=262144 dtype=fp32", ("dram.size",), base=("dram.size=6 MiB", "l2.slices=2", "l2.size=64 KiB", "dram.channels=2")),
        Case("gemm m=512 n=1024 k=256 dtype=bf16", ("l2.coalescer",), ("tma",), options={"schedule": "wgmma 64x64x64 stages 12", "l2": "warm"}),
        Case(
            "gemm m=256 n=2048 k=128 dtype=fp16", ("l2.coalescer_",),
            base=("l2.coalescer=16", "l2.coalescer_reads=2", "l2.coalescer_wait=45 cycles", "l2.bandwidth=8 B/clk"),
            options={"l2": "warm"},
        ),
        Case("add n=262144 dtype=fp32", ("dram.t_ccd",), base=("dram.t_ccd=20 ns", "dram.channels=1", "dram.row=128 B")),
        Case("add n=262144 dtype=fp32", ("l2.link",), ("l2.link",), base=("l2.link_bandwidth=64 B/clk",)),
        Case("transpose rows=256 cols=256 dtype=fp32", base=_SMALL),
        Case("sum n=300000", base=_SMALL),
        Case("allreduce bytes=65536 devices=16", ("link.latency", "node"), ("node",), options={"schedule": "eager"}),
        *(
            Case(text, ("collectives", "link"), options={"schedule": library})
            for text, library in (
                ("all_gather gpus=2 elements=4M", "nccl"),
                ("all_reduce gpus=2 elements=4k", "vllm"),
                ("alltoall gpus=2 elements=4M", "nccl"),
                ("all_gather gpus=2 elements=4k", "nccl"),
                ("all_gather gpus=8 elements=4M", "nccl"),
                ("all_reduce gpus=8 elements=4M", "nccl"),
                ("alltoall gpus=4 elements=4M", "nccl"),
                ("alltoall gpus=2 elements=16k", "nccl"),
                ("reduce_scatter gpus=4 elements=16k", "nccl"),
                ("all_reduce gpus=4 elements=4k", "vllm"),
            )
        ),
        Case("copy_h2d bytes=1000000", ("pcie",), options={"schedule": "eager"}),
        Case("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ("launch", "host"), options={"scope": "stream", "schedule": "eager"}),
        Case("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ("launch", "host"), options={"scope": "stream", "schedule": "graph"}),
        Case("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ("launch.replay_ready",), base=("launch.gap_replay_more=5 us", "launch.replay_ready=16"), options={"scope": "stream", "schedule": "graph"}),
        Case("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ("host.graph_launch",), options={"scope": "host", "schedule": "graph"}),
        Case("bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64", ("sm.instruction_cache",), base=("sm.instruction_cache=32 KiB",)),
        Case("gemm m=128 n=128 k=64", ("launch.event",), options={"scope": "event"}),
        Case("gemm m=128 n=128 k=64", ("cp_async", "sm.register_conflict"), ("cp_async",), options={"schedule": "mma"}),
        Case("attention batch=1 heads=2 seq=512 head_dim=64 dtype=fp16", ("sm.beside_wgmma",), options={"schedule": "flash3"}),
        Case("full", ("launch.gap",), base=(*_SMALL, "launch.api=0 ns"), make=_full(1)),
    ),
    "tpu": (
        Case("gemm m=256 n=512 k=512"),
        Case("gemm m=1 n=512 k=512", ("array.issue", "")),
        Case("gemm m=64 n=64 k=64 dtype=int16"),
        Case("softmax rows=16 cols=256"),
        Case("softmax rows=256 cols=4096", ("host.bandwidth",), base=("host.ops=1000 GHz",)),
        Case("attention batch=1 heads=1 head_dim=64 seq=64 causal=1", ("host",)),
        Case("attention batch=1 heads=1 head_dim=64 seq=64 causal=1", ("host.bandwidth",), base=("host.ops=1000 GHz",)),
        Case("gemm m=4096 n=256 k=512", ("accumulators",)),
        Case("gemm m=4096 n=256 k=2048", ("unified_buffer.size",), base=("unified_buffer.size=1 MiB",)),
        Case("gemm m=64 n=4096 k=4096", ("dram.size", "control.queue", "control.buffer"), base=("dram.size=18 MiB", "control.queue=4", "control.buffer=8")),
        Case("gemm m=1 n=512 k=2048", ("control.buffer",), base=("dram.bandwidth=3400 GB/s", "control.buffer=4")),
        Case("inference app=mlp1", options={"scope": "host"}),
        Case("attention batch=1 heads=1 head_dim=64 seq=512", ("dram.queue",), base=("dram.queue=1", "dram.channels=1", "dram.banks=32", "dram.bandwidth=500 GB/s", *_AT_ONCE)),
        *(Case(work, ("dram",), base=(*(f"dram.{f}" for f in base), *_AT_ONCE)) for work in _FETCHES for base in _BUSY),
        Case("conv2d n=1 c=16 h=8 w=8 k=32 r=3 s=3 pad=1"),
    ),
    "rdu": (
        Case("gemm m=256 n=256 k=256"),
        Case("softmax rows=64 cols=256"),
        *(Case(f"copy by {m}", (m,), (m,), base=tuple(f"{m}.{f}" for f in base), section=lambda m=m: _copy_on(m)) for m in ("hbm", "ddr") for base in _BUSY),
        Case("copy by agcu", ("agcu",), base=("agcu.count=2", "agcu.in_flight=2 KiB"), section=lambda: _copy_on("ddr")),
        Case("sparse", ("pmu",), section=lambda: sparse_matvec(np.random.default_rng(0).integers(0, 512, (64, 4)), 512)),
        Case("chase", ("pmu",), section=lambda: chase(16, on_chip=True)),
        Case("gemm m=64 n=64 k=64 dtype=fp32"),
        Case("attention batch=1 heads=2 head_dim=64 seq=128"),
        Case("gemm m=256 n=256 k=256", ("dies",), base=("dies.count=2",)),
        Case("attention batch=1 heads=4 head_dim=64 seq=512", ("dies",)),
        Case("attention batch=1 heads=4 head_dim=64 seq=512", ("tiles",), base=("tiles.bandwidth=8 B/clk",)),
        Case("gemm m=256 n=256 k=256", ("mesh",), base=("mesh.credits=1", "mesh.hop=2 cycles")),
        Case("softmax rows=64 cols=256", ("pcu.vector",), base=("pcu.vector_inputs=2", "pcu.vector_outputs=2")),
        Case("attention batch=1 heads=2 head_dim=64 seq=128", ("pmu", "mesh", "pcu"), base=("pmu.count=128", "pcu.count=128")),
        Case("words", ("mesh.scalar",), base=("mesh.scalar=0.01 B/clk",), section=_words),
        *(Case("streamed", ("pcu.fifo",), base=(f"pcu.fifo={size} B",), section=_streamed) for size in (96, 256, 1024)),
        Case("allreduce bytes=65536 devices=4", ("link", "node", "power.energy.link"), ("link",)),
        Case("allreduce bytes=65536 devices=16", ("link", "node"), ("node",)),
        Case("copy_h2d bytes=100000", ("host",)),
        Case("gemm m=64 n=64 k=64", ("launch",), options={"scope": "host"}),
        Case("gemm m=256 n=256 k=256", ("hbm.size", "ddr.size"), base=("hbm.size=512 KiB",)),
        Case("gemm m=256 n=256 k=256", ("ddr.size",), base=("ddr.size=1 MiB",)),
        Case("llama model=tiny phase=decode seq=64", ("ddr.size", "power.energy.ddr"), ("hbm",), {"schedule": "cut by host tokens 1 from ddr"}, ("hbm.size=1700 KiB", "ddr.size=1 MiB")),
        Case("gemm m=256 n=256 k=256", ("pmu.size",), base=("pmu.size=16 KiB",)),
        Case("llama model=tiny phase=decode seq=64 layers=2 tp=2", needs=("link",)),
    ),
}
# fmt: on


def main() -> int:
    """The table; exit code 1 where a figure does nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", metavar="MACHINE")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    silent = 0
    for machine in asked.machines or list_archs():
        found = [examine(machine, path) for path in figures(machine, own=asked.own)]
        counts = {o: sum(f.outcome == o for f in found) for o in ("moved", "refused", "nothing")}
        print(f"{machine}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
        for figure in found:
            if asked.all or figure.outcome == "nothing":
                print(f"  {figure.path:<40} {figure.outcome.upper():<8} {figure.by}")
        silent += counts["nothing"]
        sys.stdout.flush()
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
