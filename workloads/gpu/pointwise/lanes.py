"""What kernels over elements and rows share: instructions of one thread's elements, vector widths, conversions,
reductions over the lanes of a warp and over a CTA, and the estimate that ranks their configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from arch.dtypes import DTYPE_BYTES, FORMATS, is_integer
from arch.errors import InputError
from arch.gpu import GpuSpec, Instruction
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import Expr, GlobalTensor, KernelBuilder, RegisterTile, RoleBuilder, View
from workloads.gpu.figures import PS_PER_S, fetch, figures, transfer
from workloads.ops import Operand
from workloads.ops.base import Array

Cost = Mapping[str, float]
"""Instructions of a thread by `opcode.dtype` of the machine's instruction table, for each element or once."""

FLOATS = ("fp32", "fp16", "bf16")
"""Formats that these kernels calculate with; arithmetic is fp32 in all of them."""
FP8 = ("fp8", "fp8_e5m2")
_BY_FP64: Cost = {"dadd.fp64": 1.0}
MAX_VECTOR_BYTES = 16
SHUFFLES = 5
"""Steps of a butterfly over the 32 lanes of a warp."""


def total(*costs: Cost) -> dict[str, float]:
    """Costs added up."""
    out: dict[str, float] = {}
    for cost in costs:
        for name, count in cost.items():
            out[name] = out.get(name, 0.0) + count
    return out


def scaled(cost: Cost, times: float) -> dict[str, float]:
    """A cost some times over."""
    return {name: times * count for name, count in cost.items()}


def counts(cost: Cost) -> list[tuple[str, int]]:
    """Whole instructions."""
    return [(name, math.ceil(count)) for name, count in cost.items() if count > 0]


def instruction(spec: GpuSpec, name: str) -> Instruction:
    """The row `opcode.dtype` of the machine's instruction table."""
    opcode, _, dtype = name.partition(".")
    return spec.instruction(opcode, dtype)


def widen(dtype: str, arithmetic: str = "fp32") -> Cost:
    """An element from its format in memory to the one that is computed in: HADD2.F32 for fp16, a shift for bf16, I2F
    for integers, which leave their vector by PRMT for integer arithmetic (instruction counts of compiled kernels, sm_75
    to sm_90). A conversion of 64 bits counts as one of the fp64 pipe, whose rate it has (CUDA guide, throughput)."""
    if dtype == arithmetic and FORMATS[dtype].bytes >= 4:
        return {}
    if is_integer(arithmetic):
        return {"shf.int32": {1: 1.0, 2: 0.5}.get(FORMATS[dtype].bytes, 0.0)}
    own: Cost = {"fp16": {"hfma2.fp16": 1.0}, "bf16": {"shf.int32": 1.0}}.get(dtype, {})
    if dtype in FP8:
        own = {"cvt.fp8": 0.5, "hfma2.fp16": 1.0}
    elif is_integer(dtype):
        own = _BY_FP64 if FORMATS[dtype].bytes == 8 else {"cvt.int32": 1.0}
    return total(own, _BY_FP64 if arithmetic == "fp64" or dtype == "fp64" else {})


def narrow(spec: GpuSpec, dtype: str, arithmetic: str = "fp32") -> Cost:
    """An element of what is computed in to its format in memory: F2FP packs two where the machine has it; bf16 in
    integers before; PRMT packs four bytes."""
    packing: Cost = {"lop.int32": {1: 0.75, 2: 0.5}.get(FORMATS[dtype].bytes, 0.0)}
    if is_integer(arithmetic):
        return packing
    if arithmetic == "fp64":
        return {} if dtype == "fp64" else total(_BY_FP64, narrow(spec, dtype))
    if is_integer(dtype) and dtype != "bool":
        return total(_BY_FP64 if FORMATS[dtype].bytes == 8 else {"cvt.int32": 1.0}, packing)
    if dtype in FP8:
        return {"cvt.fp8": 0.5}
    if dtype in ("fp32", "bool"):
        return {}
    if not spec.has_instruction("cvt", dtype):
        return {"iadd.int32": 3.0}
    packed = spec.instruction("cvt", dtype).pipe == "alu"
    return {f"cvt.{dtype}": 0.5 if packed else 1.0}


def check_format(op: object, dtype: str) -> None:
    """InputError where these kernels do not calculate in a format."""
    if dtype not in FLOATS:
        raise InputError(f"{op}: dtype={dtype} is not available for it on GPUs, one of {', '.join(FLOATS)}")


def check_conversions(op: object, spec: GpuSpec, *dtypes: str) -> None:
    """InputError where a machine has no unit for a format that is converted or calculated in."""
    for dtype in dtypes:
        if dtype in FP8 and not spec.has_instruction("cvt", "fp8"):
            raise InputError(f"{op}: {spec.name} has no instruction that converts {dtype}, Ada and Hopper have")
        if dtype == "fp64" and not spec.has_instruction("dadd", "fp64"):
            raise InputError(f"{op}: the vector units of {spec.name} for fp64 are not described; dtype=fp32")


def tensor(operand: Operand, role: str = "input", shape: tuple[int, ...] | None = None) -> GlobalTensor:
    """An operand or result as a tensor in device memory, seen in `shape` (row-major)."""
    shape = shape or operand.shape
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return GlobalTensor(operand.name, shape, operand.dtype, strides, role)


def vector_bytes(row_elements: int, dtype: str, most: int = MAX_VECTOR_BYTES) -> int:
    """Bytes of the widest vector that every row of `row_elements` starts and ends with."""
    size = DTYPE_BYTES[dtype]
    width = most
    while width > size and row_elements * size % width:
        width //= 2
    return max(width, size)


def write(
    r: RoleBuilder,
    spec: GpuSpec,
    cost: Cost,
    *,
    dst: View,
    srcs: tuple[View, ...] = (),
    compute: Callable[..., Array],
    indices: tuple[Expr, ...] = (),
    after: tuple[str, ...] = (),
    chain: int = 1,
) -> None:
    """One op that stands for all instructions of `cost`; the busiest pipe's is its opcode, the others go with it.

    chain: steps of which each waits for the one before; then the opcode is the one with the longest latency.
    """
    costly = counts(cost)
    whole = costly or [("iadd.int32", 1)]
    rows = {name: instruction(spec, name) for name, _ in whole}

    def weight(item: tuple[str, int]) -> tuple[float, str]:
        row = rows[item[0]]
        return (row.latency_cycles if chain > 1 else item[1] * row.interval_cycles), item[0]

    main = max(whole, key=weight)
    opcode, _, dtype = main[0].partition(".")
    r.run(
        opcode, main[1], dtype=dtype, dst=dst, srcs=srcs, compute=compute, indices=indices, after=after, chain=chain,
        mix=tuple(item for item in whole if item is not main), nominal=not costly,
    )  # fmt: skip


ADDITION: dict[str, Cost] = {
    "fp32": {"fadd.fp32": 1.0}, "fp64": _BY_FP64, "int32": {"iadd.int32": 1.0}, "int64": {"iadd.int32": 2.0},
}  # fmt: skip
"""Of two numbers, by the format that sums are kept in."""
ADD_OPCODE = {"fp32": "fadd", "fp64": "dadd.fp64", "int32": "iadd.int32", "int64": "iadd.int32"}
"""Of reductions over lanes: one for each word of integers."""


def sum_format(dtype: str, out: str) -> str:
    """Format that sums of a format are kept in: integers of 64 bits where the result has them, of 32 else, fp64 where
    one of the two is, else fp32."""
    if is_integer(dtype) and is_integer(out):
        return "int64" if FORMATS[out].bytes == 8 else "int32"
    return "fp64" if "fp64" in (dtype, out) else "fp32"


def keep(old: Array, value: Array) -> Array:
    """A reduction's later steps: its number has been calculated by the first."""
    return value


def warp_reduce(r: RoleBuilder, opcode: str, partial: View, values: int, lanes: int = WARP_SIZE) -> None:
    """Butterfly over the lanes of a warp for `values` numbers, each a shuffle a word and one `opcode`, of fp32 if it
    does not say another format, a step."""
    steps = max(1, math.ceil(math.log2(lanes)))
    words = max(1, DTYPE_BYTES[partial.buffer.dtype] // 4)
    name, each = (opcode, words) if opcode.startswith("iadd") else (_of_fp32(opcode), 1)
    r.run(
        "shfl", steps * values * words, dtype="b32", dst=partial, srcs=(partial,), compute=keep, chain=steps,
        mix=((name, steps * values * each),),
    )  # fmt: skip


def _of_fp32(opcode: str) -> str:
    return opcode if "." in opcode else f"{opcode}.fp32"


class BlockReduction:
    """Reductions over the warps of a CTA through shared memory: each warp stores its numbers, all read all of them.

    A second reduction of the same CTA needs a barrier before it: the buffer may still be read.
    """

    def __init__(self, kernel: KernelBuilder, warps: int, values: int = 1, dtype: str = "fp32") -> None:
        self.warps, self.values, self.width = warps, values, DTYPE_BYTES[dtype]
        self.parts = kernel.shared("parts", (warps, values), dtype)
        self.all = RegisterTile("all_parts", (warps, values), dtype)
        self.busy = False

    def write(
        self, r: RoleBuilder, warp: Expr, partial: View, opcode: str, combine: Callable[[Array], Array], *, again: bool
    ) -> None:
        """Reduces `partial` (1, values) over the CTA, in place. again: the buffer may be in use (a loop around it)."""
        if self.busy or again:
            r.bar_sync(0, self.warps)
        self.busy = True
        r.sts(self.parts[0, warp, :], partial, self.values, vector_bytes=self.width)
        r.bar_sync(0, self.warps)
        r.lds(self.all.whole, self.parts.stage(), self.values, vector_bytes=self.width)
        steps = max(1, math.ceil(math.log2(self.warps)))
        r.run(
            "shfl", steps * self.values, dtype="b32", dst=partial, srcs=(self.all.whole,), chain=steps,
            compute=lambda _, every: combine(every)[None, :], mix=((_of_fp32(opcode), steps * self.values),),
        )  # fmt: skip


class SerialReduction:
    """The same as PyTorch's older softmax does it: every lane stores its number, one warp adds up each warp's 32, lane
    by lane with bank conflicts, and one thread what those leave."""

    def __init__(self, kernel: KernelBuilder, warps: int) -> None:
        self.warps = warps
        self.parts = kernel.shared("parts", (warps, WARP_SIZE), "fp32")
        self.busy = False

    def write(
        self, r: RoleBuilder, warp: Expr, partial: View, opcode: str, combine: Callable[[Array], Array], *, again: bool
    ) -> None:
        """Reduces `partial` (1, 1) over the CTA, in place. again: the buffer may be in use (a loop around it)."""
        warps, dtype = self.warps, "fp32"
        own = RegisterTile("own_lanes", (1, WARP_SIZE), dtype)
        every = RegisterTile("every_lane", (WARP_SIZE, warps), dtype)
        sums = RegisterTile("every_warp", (1, warps), dtype)
        # The lanes' numbers are one here: any of them stands for what they add up to.
        r.run("iadd", 1, dtype="int32", dst=own.whole, srcs=(partial,), compute=lambda _, v: np.tile(v, WARP_SIZE))
        if self.busy or again:
            r.bar_sync(0, warps)
        self.busy = True
        r.sts(self.parts[0, warp, :], own.whole, 1, vector_bytes=4)
        r.bar_sync(0, warps)
        with r.when(warp.equals(0)):
            r.lds(every.whole, self.parts.stage().T, WARP_SIZE // 4, vector_bytes=16)
            self._combine(r, opcode, WARP_SIZE, sums.whole, every.whole, lambda _, v: v[:1])
            r.sts(self.parts[0, 0, 0:warps], sums.whole, 1, vector_bytes=4)  # type: ignore[misc]
        r.bar_sync(0, warps)
        with r.when(warp.equals(0)):
            r.lds(sums.whole, self.parts[0, 0, 0:warps], warps, vector_bytes=4)  # type: ignore[misc]
            self._combine(r, opcode, warps, partial, sums.whole, lambda _, v: combine(v.T)[None, :])
            r.sts(self.parts[0, 0, 0:1], partial, 1, vector_bytes=4)  # type: ignore[misc]
        r.bar_sync(0, warps)
        r.lds(partial, self.parts[0, 0, 0:1], 1, vector_bytes=4)  # type: ignore[misc]

    @staticmethod
    def _combine(r: RoleBuilder, opcode: str, count: int, dst: View, src: View, compute: Callable[..., Array]) -> None:
        """One number after the other. The maximum is a comparison and a selection, as its NaN asks for."""
        chosen = opcode == "fmnmx"
        main, dtype, mix = ("setp", "int32", (("sel.int32", count),)) if chosen else (opcode, "fp32", ())
        r.run(main, count, dtype=dtype, dst=dst, srcs=(src,), chain=count, compute=compute, mix=mix)


class HalvingReduction:
    """The same as PyTorch's norms do it: the upper half of the warps leaves its numbers in shared memory, the lower
    half adds them to its own, until the first warp has all and leaves them to everyone; two barriers a step and one
    more. The loop is not unrolled: in each step every warp computes whether it stores or adds, and where (machine code
    of PyTorch 2.11, sm_90)."""

    BEFORE = (5, 5)
    STEP = (8, 5)
    AFTER = (3, 5)
    MEAN = (4, 13)
    """Instructions of the ALU, and others of one issue slot (moves, branches, the first warp's last division), before
    the steps, of a step, behind them, and of the first warp."""
    WELFORD_MIX = (("fadd.fp32", 12), ("fmul.fp32", 5), ("ffma.fp32", 4), ("iadd.int32", 6))
    WELFORD_CHAIN = 2
    """Of what combines count, mean and squares of two warps: all opcodes once, twice, about 80 cycles
    one after the other."""

    def __init__(self, kernel: KernelBuilder, warps: int, values: int = 1) -> None:
        self.warps, self.values = warps, values
        self.parts = kernel.shared("parts", (warps, values), "fp32")

    def write(
        self, r: RoleBuilder, warp: Expr, partial: View, opcode: str, combine: Callable[[Array], Array], *, again: bool
    ) -> None:
        """Reduces `partial` (1, values) over the CTA, in place. again: the buffer may be in use (a loop around it)."""
        warps, values = self.warps, self.values
        other = RegisterTile("other_warp", (1, values), "fp32")
        if again:
            r.bar_sync(0, warps)
        half = warps // 2
        place = RegisterTile("exchange_place", (1, 1), "int32")
        self._run(r, self.BEFORE, place.whole)
        while half:
            self._run(r, self.STEP, place.whole)
            with r.when((warp // half).equals(1)):
                r.sts(self.parts[0, warp, :], partial, values, vector_bytes=4)
            r.bar_sync(0, warps)
            with r.when((warp // half).equals(0)):
                r.lds(other.whole, self.parts[0, warp + half, :], values, vector_bytes=4)
                welford = values > 1
                r.run(
                    "rcp" if welford else opcode, 1, dtype="fp32", dst=partial, srcs=(other.whole,),
                    chain=self.WELFORD_CHAIN if welford else 1, mix=self.WELFORD_MIX if welford else (),
                    compute=lambda own, v: combine(np.concatenate([own, v]))[None, :],
                )  # fmt: skip
            r.bar_sync(0, warps)
            half //= 2
        self._run(r, self.AFTER, place.whole)
        with r.when(warp.equals(0)):
            r.run(
                "rcp", 1, dtype="fp32", dst=partial, srcs=(partial,), compute=keep, chain=2,
                mix=(("iadd.int32", self.MEAN[0]), ("ffma.fp32", self.MEAN[1])),
            )  # fmt: skip
            r.sts(self.parts[0, 0, :], partial, values, vector_bytes=4)
        r.bar_sync(0, warps)
        r.lds(partial, self.parts[0, 0, :], values, vector_bytes=4)

    @staticmethod
    def _run(r: RoleBuilder, counts: tuple[int, int], dst: View) -> None:
        r.run("iadd", counts[0], dtype="int32", dst=dst, compute=np.zeros_like, mix=(("ffma.fp32", counts[1]),))


class FirstWarpReduction:
    """The same as PyTorch does it since 2.1: every warp leaves its number in shared memory, the first warp combines
    them by shuffles, and all read what it leaves; three barriers."""

    def __init__(self, kernel: KernelBuilder, warps: int) -> None:
        self.warps = warps
        self.parts = kernel.shared("parts", (warps, 1), "fp32")

    def write(
        self, r: RoleBuilder, warp: Expr, partial: View, opcode: str, combine: Callable[[Array], Array], *, again: bool
    ) -> None:
        """Reduces `partial` (1, 1) over the CTA, in place; `again` makes no difference: it begins with a barrier."""
        warps = self.warps
        every = RegisterTile("every_warp", (warps, 1), "fp32")
        r.bar_sync(0, warps)
        r.sts(self.parts[0, warp, :], partial, 1, vector_bytes=4)
        r.bar_sync(0, warps)
        with r.when(warp.equals(0)):
            r.lds(every.whole, self.parts.stage(), 1, vector_bytes=4)
            r.run(
                "shfl", SHUFFLES, dtype="b32", dst=partial, srcs=(every.whole,), chain=SHUFFLES,
                compute=lambda _, v: combine(v)[None, :], mix=((f"{opcode}.fp32", SHUFFLES),),
            )  # fmt: skip
            r.sts(self.parts[0, 0, :], partial, 1, vector_bytes=4)
        r.bar_sync(0, warps)
        r.lds(partial, self.parts[0, 0, :], 1, vector_bytes=4)


@dataclass(frozen=True)
class Load:
    """Counts of one kernel for the estimate.

    ctas: launched. resident: that an SM holds at once. read_bytes, written_bytes: of the whole kernel, from and to
    DRAM; again_bytes: read again from the L2. code_bytes: of machine code. issue: issue slots of a sub-core for one
    CTA. path: cycles of one CTA's longest warp besides waiting for memory. trips: times that it waits for memory, one
    after the other.
    """

    ctas: int
    resident: int
    read_bytes: int
    written_bytes: int
    issue: int
    path: int
    trips: int = 1
    again_bytes: int = 0
    code_bytes: int = 0


def load_ps(spec: GpuSpec, loads: list[Load]) -> int:
    """Picoseconds of kernels that run one after the other: each is as slow as DRAM, the issue slots, its CTAs in
    turn, or the scheduler that hands them out. What CTAs move passes their SM's port, or waits for a place among its
    misses in flight."""
    f = figures(spec)
    cycles = 0
    for load in loads:
        on_sm = -(-load.ctas // f.sms)
        waves = -(-on_sm // load.resident)
        memory = transfer(load.read_bytes + load.written_bytes, f.dram_rate)
        memory = max(memory, transfer(load.read_bytes + load.again_bytes, f.l2_rate))
        arriving = transfer((load.read_bytes + load.again_bytes) // load.ctas, min(f.read_rate, f.miss_rate))
        moving = arriving + transfer(load.written_bytes // load.ctas, f.write_rate)
        alone = load.path + load.trips * f.load_latency + int(spec.sm.cta_launch_cycles)
        alone += moving
        handed = load.ctas * spec.launch.cta_interval_ps * f.clock_hz // PS_PER_S
        busy = max(on_sm * load.issue, (on_sm - 1) * moving, (waves - 1) * alone)
        cycles += alone + max(memory, busy, handed)
        cycles += f.start + fetch(f, load.code_bytes)
    return f.fixed_ps * len(loads) + cycles * PS_PER_S // f.clock_hz


def resident(spec: GpuSpec, warps: int, registers: int, shared_bytes: int = 0) -> int:
    """CTAs that an SM holds; 0 where not even one fits."""
    granule = spec.sm.register_granule
    held = -(-registers * WARP_SIZE // granule) * granule
    step = spec.shared.granule_bytes
    shared = -(-(shared_bytes + spec.shared.reserved_per_cta_bytes) // step) * step
    if shared_bytes > spec.shared.max_per_cta_bytes or registers > spec.sm.max_registers_per_thread:
        return 0
    limits = [
        spec.sm.max_warps // warps,
        spec.sm.registers // spec.sm.sub_cores // held * spec.sm.sub_cores // warps,
        spec.sm.max_ctas,
        spec.shared.max_per_sm_bytes // shared if shared else spec.sm.max_ctas,
    ]
    return min(limits)
