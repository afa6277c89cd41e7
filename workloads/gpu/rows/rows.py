"""Kernels over rows: what softmax, the norms and sums of rows share.

`RowKernel` writes one kernel in one of two geometries: a warp takes `rows` / `warps` whole rows (no exchange between
warps), or all warps of a CTA share one row, each with a contiguous part of it, and exchange what they have reduced
through shared memory. Rows are either kept in registers, or swept tile by tile as often as the operator needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    WARP,
    Expr,
    GlobalTensor,
    Kernel,
    KernelBuilder,
    RegisterTile,
    View,
    as_expr,
)
from workloads.gpu.configuration import Configuration, Word
from workloads.gpu.overhead import INSTRUCTION_BYTES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import (
    BlockReduction,
    Cost,
    FirstWarpReduction,
    HalvingReduction,
    Load,
    SerialReduction,
)
from workloads.ops.base import Array, Operator

SETUP: Cost = {"iadd.int32": 15.0, "imad.int32": 2.0}
"""Before the first load: 17 to 23 instructions (Triton softmax and norms, sm_80)."""
STEP: Cost = {"iadd.int32": 8.0}
"""Loop control and addresses of one tile of a sweep (Triton layer norm in three passes: 8 to 13 of 51)."""
WORTH_A_WARP = 2
"""Per cent of an estimate that twice as many warps for a row must be worth."""
Exchange = Literal["all", "serial", "first_warp", "halving"]
"""How the warps of a row combine their numbers: `BlockReduction`, `SerialReduction`, `FirstWarpReduction` or
`HalvingReduction` of `lanes`."""
MOST_ELEMENTS = 64
"""Elements of one tensor that a thread keeps in registers: 64 take 100 registers in compiled kernels, 128 all 255."""


@dataclass(frozen=True)
class RowConfig(Configuration):
    """How the rows of a matrix are shared out.

    warps, rows: of a CTA. The warps share a row where a CTA has one row and several warps.
    elements: of a thread in one tile of a sweep; 0 where rows stay in registers.
    buffers: rows ahead in shared memory (cp.async) of a CTA that does row after row; 0 where a CTA does its rows once.
    cluster: CTAs that share a row.
    """

    schedule: str
    warps: int
    rows: int
    elements: int = 0
    buffers: int = 0
    cluster: int = 1

    @property
    def shared(self) -> bool:
        """Whether the warps of a CTA share a row."""
        return self.rows == 1 and self.warps > 1

    grammar: ClassVar[tuple[Word, ...]] = (
        Word.number("warps"),
        Word.number("rows"),
        Word.number("elements", 0),
        Word.number("buffers", 0),
        Word.number("cluster", 1),
    )


def check(spec: GpuSpec, cols: int, config: RowConfig, tensors: int = 1) -> None:
    """InputError where a machine or rows of `cols` elements cannot take a configuration."""
    most = spec.sm.max_threads_per_cta // WARP_SIZE
    if not 1 <= config.warps <= most:
        raise InputError(f"schedule={config}: warps must be 1 to {most}")
    if config.rows < 1 or (config.rows > 1 and config.rows % config.warps):
        nearest = max(config.warps, config.rows // config.warps * config.warps)
        raise InputError(f"schedule={config}: rows must be 1 or a multiple of warps, such as {nearest}")
    if config.buffers and (spec.cp_async is None or not config.shared):
        raise InputError(f"schedule={config}: buffers need cp.async and warps that share a row; nearest: no buffers")
    if config.cluster > 1:
        if spec.dsmem is None:
            raise InputError(f"schedule={config}: {spec.name} has no clusters; nearest: fused")
        if config.cluster > spec.dsmem.max_cluster or not config.shared or config.elements or config.buffers:
            raise InputError(
                f"schedule={config}: clusters of 2 to {spec.dsmem.max_cluster} CTAs share one row in registers"
            )
    if not config.elements:
        held = elements(cols, config)
        used = registers(held, tensors)
        if held > MOST_ELEMENTS or used > spec.sm.max_registers_per_thread:
            more = min(most, -(-cols // (WARP_SIZE * MOST_ELEMENTS)))
            raise InputError(
                f"schedule={config}: {held} elements a thread do not stay in registers, at most {MOST_ELEMENTS}; "
                f"nearest: warps {more} rows 1"
            )


def part(cols: int, config: RowConfig) -> int:
    """Columns of a row that one warp holds: all of them, or a share in whole vectors of all lanes, in elements in
    PyTorch; of a power of two in Triton."""
    if not config.shared:
        return cols
    if config.schedule == "triton":
        return max(WARP_SIZE, 2 ** math.ceil(math.log2(cols)) // config.warps)
    sharing = config.warps * config.cluster
    vectors = cols >= sharing * WARP_SIZE * 4 and not config.schedule.startswith("torch")
    unit = WARP_SIZE * 4 if vectors else WARP_SIZE
    return -(-cols // (sharing * unit)) * unit


def elements(cols: int, config: RowConfig) -> int:
    """Elements of one tensor that a thread holds."""
    rows = 1 if config.shared else max(1, config.rows // config.warps)
    return -(-part(cols, config) * rows // WARP_SIZE)


def registers(held: int, tensors: int = 1, buffers: int = 0) -> int:
    """Registers of a thread: 21, 32, 48 and 100 with 8, 16, 32 and 64 elements, 30, 40, 55 and 127 where a CTA does row
    after row (Triton softmax, sm_80)."""
    return 16 + tensors * held * 5 // 4 + (held // 2 if buffers else 0)


def _code_bytes(held: int) -> int:
    """Machine code of a kernel whose threads have so many elements of a tile."""
    return (120 + 24 * max(1, held)) * INSTRUCTION_BYTES


class RowKernel:
    """One kernel over a matrix of `rows` x `cols` under construction.

    tensors: matrices of which a thread holds its elements at once.
    values: numbers of a row that its warps exchange.
    vector: elements of a thread's access; 0 for the widest.
    exchange: how the warps of a row combine their numbers.
    ahead: number format of the rows that are fetched ahead.
    registers_: of a thread, where its kernel is known.
    numbers: number format of the numbers of a row.
    """

    def __init__(
        self,
        name: str,
        spec: GpuSpec,
        rows: int,
        cols: int,
        config: RowConfig,
        *,
        tensors: int = 1,
        values: int = 1,
        vector: int = 0,
        exchange: Exchange = "all",
        ahead: str = "",
        registers_: int = 0,
        numbers: str = "fp32",
    ) -> None:
        self.numbers = numbers
        self.spec, self.rows, self.cols, self.config, self.vector = spec, rows, cols, config, vector
        self.loops = config.buffers > 0
        held = config.elements or elements(cols, config)
        self.registers = registers_ or registers(held, tensors, config.buffers)
        self.tile_rows = 1 if config.shared else max(1, config.rows // config.warps)
        self.span = config.elements * WARP_SIZE if config.elements else part(cols, config)
        """Columns of a warp's tile."""
        self.stride = self.span * config.warps if config.shared else self.span
        """Columns that the warps of a row cover together."""
        ctas = -(-rows // config.rows) * config.cluster
        if self.loops:
            shared = config.buffers * config.warps * self.span * DTYPE_BYTES[ahead or "fp32"]
            held_ctas = lanes.resident(spec, config.warps, self.registers, shared)
            ctas = min(ctas, max(1, held_ctas) * spec.sm.count)
        self.ctas = ctas
        self.kernel = KernelBuilder(name, (ctas, 1, 1), (config.cluster, 1, 1), code_bytes=_code_bytes(self.elements))
        self.exchanges = 0
        self.block: BlockReduction | SerialReduction | FirstWarpReduction | HalvingReduction | None = None
        if config.shared:
            match exchange:
                case "serial":
                    self.block = SerialReduction(self.kernel, config.warps)
                case "first_warp":
                    self.block = FirstWarpReduction(self.kernel, config.warps)
                case "halving":
                    self.block = HalvingReduction(self.kernel, config.warps, values)
                case "all":
                    self.block = BlockReduction(self.kernel, config.warps, values, numbers)
        self.row: Expr = CTA_X // config.cluster if config.shared else (CTA_X * config.warps + WARP) * self.tile_rows
        self.column: Expr = WARP * self.span if config.shared else as_expr(0)
        if config.cluster > 1:
            self.column = (CLUSTER_RANK * config.warps + WARP) * self.span

    @property
    def elements(self) -> int:
        """Elements of a thread in one tile."""
        return -(-self.tile_rows * self.span // WARP_SIZE)

    def write(self, body: Callable[[RowKernel], None], ahead: GlobalTensor | None = None) -> Kernel:
        """The finished kernel; `body` writes what is done for a row. ahead: the matrix that is fetched `buffers` rows
        ahead where a CTA does row after row."""
        with self.kernel.role("warps", self.config.warps, self.registers) as r:
            self.r = r
            place = RegisterTile("place", (1, 1), "int32")
            lanes.write(r, self.spec, SETUP, dst=place.whole, compute=lambda _: np.zeros((1, 1)))
            if not self.loops:
                body(self)
                if self.exchanges:
                    # A CTA stays until its peers have read its numbers.
                    r.cluster_sync()
            else:
                assert ahead is not None
                trips = (self.rows - CTA_X + self.ctas - 1) // self.ctas
                first, buffers = self.row, self.config.buffers
                self.ring = self.kernel.shared(
                    "rows_ahead", (self.config.warps, self.span), ahead.dtype, stages=buffers
                )
                self.ahead = ahead
                for i in range(buffers):
                    self._fetch(first + i * self.ctas, as_expr(i))
                with r.loop("turn", trips) as turn:
                    self.turn = turn
                    self.row = first + turn * self.ctas
                    body(self)
        return self.kernel.build()

    # ---- memory

    def _box(self, tensor: GlobalTensor) -> tuple[View, tuple[int, int]]:
        tall, wide = tensor.shape[0] > 1 or self.rows == 1, tensor.shape[1] > 1 or self.cols == 1
        rows, span = (self.tile_rows if tall else 1), (self.span if wide else 1)
        row, column = (self.row if tall else 0), (self.column if wide else 0)
        return tensor[row:rows, column:span], (rows, span)  # type: ignore[misc]

    def accesses(self, tensor: GlobalTensor, shape: tuple[int, int]) -> tuple[int, int]:
        """Instructions and bytes of a thread for one tile of a tensor."""
        width = DTYPE_BYTES[tensor.dtype]
        whole = shape[0] * shape[1] * width
        most = lanes.MAX_VECTOR_BYTES
        while most > width and whole <= WARP_SIZE * most // 2:
            most //= 2
        if self.vector or self.config.elements:
            most = min(most, (self.vector or self.config.elements) * width)
        vector = lanes.vector_bytes(tensor.shape[1], tensor.dtype, most)
        return -(-whole // (WARP_SIZE * vector)), vector

    def _fetch(self, row: Expr, stage: Expr, after: tuple[str, ...] = ()) -> None:
        """Starts the copy of this warp's part of a row to shared memory."""
        own = self.row
        self.row = row
        box, shape = self._box(self.ahead)
        self.row = own
        count, vector = self.accesses(self.ahead, shape)
        place = self.ring[stage, WARP, :]
        self.r.cp_async(place, box, count, vector_bytes=vector, after=after)
        self.r.cp_commit()

    def load(self, tensor: GlobalTensor, name: str = "", *, single: bool = False) -> View:
        """Brings this warp's tile of a matrix, a row (1, cols) or a column (rows, 1) to registers; `single`: element by
        element."""
        box, shape = self._box(tensor)
        if self.loops and tensor is self.ahead:
            return self._load_fetched(name or tensor.name, shape)
        tile = RegisterTile(name or tensor.name, shape, tensor.dtype)
        count, vector = self.accesses(tensor, shape)
        if single:
            count, vector = -(-shape[0] * shape[1] // WARP_SIZE), DTYPE_BYTES[tensor.dtype]
        self.r.ldg(tile.whole, box, count, into=tile.name, vector_bytes=vector)
        return tile.whole

    def arrived(self, tensor: GlobalTensor) -> tuple[str, ...]:
        """What the first reader of a loaded tile waits for; the copy of the next row has waited for it already."""
        return () if self.loops and tensor is self.ahead else (tensor.name,)

    def _load_fetched(self, name: str, shape: tuple[int, int]) -> View:
        """Takes a row from shared memory, and starts the copy of the one that will lie there next."""
        buffers, stage = self.config.buffers, self.turn % self.config.buffers
        tile = RegisterTile(name, shape, self.ahead.dtype)
        count, vector = self.accesses(self.ahead, shape)
        self.r.cp_wait(buffers - 1)
        self.r.lds(tile.whole, self.ring[stage, WARP, :], count, into=name, vector_bytes=max(4, vector))
        self._fetch(self.row + buffers * self.ctas, stage, after=(name,))
        return tile.whole

    def keep(self, tensor: GlobalTensor, value: View) -> None:
        """Leaves a tile of a sweep in shared memory for the sweeps that follow."""
        trips = -(-self.cols // self.stride)
        self.kept = self.kernel.shared(
            f"kept_{tensor.name}", (self.config.warps, self.span), tensor.dtype, stages=trips
        )
        count, vector = self.accesses(tensor, (1, self.span))
        self.r.sts(self.kept[self.tile, WARP, :], value, count, vector_bytes=max(4, vector))

    def load_in_turns(self, tensor: GlobalTensor, most: int, cost: Cost) -> View:
        """`load`, element by element, of which so many are on their way at most: each is waited for, at a cost, before
        another one takes its place."""
        box, shape = self._box(tensor)
        tile = RegisterTile(tensor.name, shape, tensor.dtype)
        wide = most * WARP_SIZE // shape[0]
        for first in range(0, shape[1], wide):
            width = min(wide, shape[1] - first)
            part = tile[0 : shape[0], first:width]
            row, column = box.offsets
            count = -(-shape[0] * width // WARP_SIZE)
            given = tensor[row : shape[0], column + first : width]
            self.r.ldg(part, given, count, into=tensor.name, vector_bytes=DTYPE_BYTES[tensor.dtype])
            lanes.write(
                self.r, self.spec, lanes.scaled(cost, count), dst=part, srcs=(part,), compute=lambda _, v: v,
                after=(tensor.name,),
            )  # fmt: skip
        return tile.whole

    def load_kept(self, tensor: GlobalTensor, name: str) -> View:
        """Brings the tile of this trip back to registers."""
        tile = RegisterTile(name, (1, self.span), tensor.dtype)
        count, vector = self.accesses(tensor, (1, self.span))
        self.r.lds(tile.whole, self.kept[self.tile, WARP, :], count, into=name, vector_bytes=max(4, vector))
        return tile.whole

    def store(self, tensor: GlobalTensor, value: View) -> None:
        """Stores this warp's tile; what is one number a row only by the first warp of those that share it."""
        box, shape = self._box(tensor)
        count, vector = self.accesses(tensor, shape)
        if shape[1] == 1 and self.cols > 1 and self.config.shared:
            with self.r.when(WARP.equals(0) * CLUSTER_RANK.equals(0)):
                self.r.stg(box, value, count, vector_bytes=vector)
        else:
            self.r.stg(box, value, count, vector_bytes=vector)

    @contextmanager
    def sweep(self, number: int) -> Iterator[None]:
        """Tile after tile of the row; `number` tells the sweeps of a kernel apart."""
        column = self.column
        trips = (self.cols - column + (self.stride - 1)) // self.stride  # a warp beyond the row's end skips it
        with self.r.loop(f"tile{number}", trips) as tile:
            self.tile = tile
            self.column = column + tile * self.stride
            yield
        self.column = column

    # ---- arithmetic

    def inside(self, first: int) -> Array:
        """Which columns of a tile that begins at column `first` are columns of the matrix."""
        return first + np.arange(self.span)[None, :] < self.cols

    def map(
        self, name: str, cost: Cost, srcs: Sequence[View], compute: Callable[..., Array], *, dtype: str = "fp32",
        once: Cost | None = None, after: Sequence[str] = (), chain: int = 0,
    ) -> View:  # fmt: skip
        """A tile from tiles, element by element: compute(inside, *tiles). cost: an element's; once: a thread's; chain:
        steps of an element that wait for each other, one element after the other."""
        tile = RegisterTile(name, (self.tile_rows, self.span), dtype)

        def run(_: Array, *given: Any) -> Array:
            values = [np.asarray(v, dtype=np.float64) for v in given[:-1]]
            return np.broadcast_to(compute(self.inside(int(given[-1])), *values), (self.tile_rows, self.span))

        whole = lanes.total(lanes.scaled(cost, self.elements), once or {})
        lanes.write(
            self.r, self.spec, whole, dst=tile.whole, srcs=tuple(srcs), compute=run, indices=(self.column,),
            after=tuple(after), chain=max(1, chain * self.elements),
        )  # fmt: skip
        return tile.whole

    def local(
        self, name: str, cost: Cost, srcs: Sequence[View], compute: Callable[..., Array], *, values: int = 1,
        after: Sequence[str] = (), old: bool = False, chain: int = 1,
    ) -> View:  # fmt: skip
        """Numbers of each row from this warp's tiles: compute(inside, *tiles) is (rows, values); old: it gets those
        that were there before first."""
        tile = RegisterTile(name, (self.tile_rows, values), self.numbers)

        def run(before: Array, *given: Any) -> Array:
            tiles = [np.asarray(v, dtype=np.float64) for v in (([before] if old else []) + list(given[:-1]))]
            return compute(self.inside(int(given[-1])), *tiles).reshape(self.tile_rows, values)

        lanes.write(
            self.r, self.spec, lanes.scaled(cost, self.elements), dst=tile.whole, srcs=tuple(srcs), compute=run,
            indices=(self.column,), after=tuple(after), chain=chain,
        )  # fmt: skip
        return tile.whole

    def prepare(self, name: str, cost: Cost, chain: int) -> None:
        """Integers that what follows needs: `cost` of a thread, in `chain` steps that wait for each other."""
        tile = RegisterTile(name, (1, 1), "int32").whole
        lanes.write(self.r, self.spec, cost, dst=tile, compute=lambda old: np.zeros(old.shape), chain=chain)
        used: Cost = {"setp.int32": 1.0}
        lanes.write(self.r, self.spec, used, dst=tile, srcs=(tile,), compute=lambda _, v: v)

    def start(self, name: str, initial: Sequence[float]) -> View:
        """Numbers of each row before a sweep."""
        tile = RegisterTile(name, (self.tile_rows, len(initial)), self.numbers)
        lanes.write(
            self.r, self.spec, {"iadd.int32": float(len(initial))}, dst=tile.whole,
            compute=lambda old: np.broadcast_to(np.array(initial), old.shape),
        )  # fmt: skip
        return tile.whole

    def across(self, partial: View, opcode: str, combine: Callable[[Array], Array], steps: int = 1) -> View:
        """The numbers of whole rows from those of its lanes and warps. combine: (warps, values) to (values,); steps:
        instructions of `opcode` that combine two numbers."""
        values = partial.extents[1]
        for _ in range(0 if isinstance(self.block, SerialReduction) else steps):
            lanes.warp_reduce(self.r, opcode, partial, self.tile_rows * values, min(WARP_SIZE, self.cols))
        if self.block is not None:
            self.block.write(self.r, WARP, partial, opcode, combine, again=self.loops)
        if self.config.cluster > 1:
            self._across_cluster(partial, opcode, combine)
        return partial

    def _across_cluster(self, partial: View, opcode: str, combine: Callable[[Array], Array]) -> None:
        """Each CTA leaves its number in shared memory, and every warp fetches those of all CTAs of the cluster."""
        r, size = self.r, self.config.cluster
        own = self.kernel.shared(f"exchange{self.exchanges}", (1, 1), "fp32")
        self.exchanges += 1
        every = RegisterTile("every_cta", (size, 1), "fp32")
        with r.when(WARP.equals(0)):
            r.sts(own.stage(), partial, 1, vector_bytes=4)
        r.cluster_sync()
        if isinstance(self.block, BlockReduction):
            self.block.busy = False  # all warps of the CTA have met since they read its buffer
        for rank in range(size):
            r.dsmem_ld(every[rank:1, 0:1], own.stage(), 1, rank, vector_bytes=4, into="exchange")  # type: ignore[misc]
        r.run(
            opcode, size, dtype="fp32", dst=partial, srcs=(every.whole,), chain=size, after=("exchange",),
            compute=lambda _, v: combine(v)[None, :],
        )  # fmt: skip

    def reduce(
        self, name: str, opcode: str, cost: Cost, srcs: Sequence[View], compute: Callable[..., Array],
        combine: Callable[[Array], Array], *, values: int = 1, after: Sequence[str] = (),
    ) -> View:  # fmt: skip
        """`local`, then `across`."""
        return self.across(self.local(name, cost, srcs, compute, values=values, after=after), opcode, combine)


def sums(every: Array) -> Array:
    """Combines parts of sums."""
    return np.asarray(every.sum(axis=0))


def largest(every: Array) -> Array:
    """Combines parts of maxima."""
    return np.asarray(every.max(axis=0))


# ---------------------------------------------------------------------------------------------------- candidates


def register_candidates(spec: GpuSpec, schedule: str, cols: int, tensors: int = 1) -> list[RowConfig]:
    """Configurations that keep rows of `cols` in registers."""
    found = [RowConfig(schedule, 4, 4 * rows) for rows in (1, 2, 4)]
    found += [RowConfig(schedule, warps, 1) for warps in (2, 4, 8, 16, 32)]
    out = []
    for config in found:
        held = elements(cols, config)
        fits = held <= MOST_ELEMENTS and registers(held, tensors) <= spec.sm.max_registers_per_thread
        idle = config.shared and cols < 2 * config.warps * WARP_SIZE
        if fits and not idle and (config.rows <= config.warps or cols <= 256):
            out.append(config)
    return out


def cluster_candidates(spec: GpuSpec, cols: int, tensors: int = 1) -> list[RowConfig]:
    """Configurations in which the CTAs of a cluster share a row in registers."""
    most = spec.dsmem.max_cluster if spec.dsmem else 1
    found = [RowConfig("cluster", warps, 1, cluster=size) for warps in (8, 16, 32) for size in (2, 4, 8, 16)]
    held = {config: elements(cols, config) for config in found if config.cluster <= most}
    return [
        config
        for config, count in held.items()
        if count <= MOST_ELEMENTS and registers(count, tensors) <= spec.sm.max_registers_per_thread
    ]


def sweep_candidates(spec: GpuSpec, schedule: str, cols: int, dtype: str) -> list[RowConfig]:
    """Configurations that sweep over rows of `cols`."""
    width = lanes.MAX_VECTOR_BYTES // DTYPE_BYTES[dtype]
    found = [RowConfig(schedule, warps, 1, width) for warps in (4, 8, 16, 32)]
    return [c for c in found if c.warps == 4 or cols >= c.warps * WARP_SIZE * width]


def load(
    spec: GpuSpec, rows: int, cols: int, config: RowConfig, *, read_bytes: int, written_bytes: int, cost: Cost,
    reductions: int, sweeps: int = 1, tensors: int = 1,
) -> Load:  # fmt: skip
    """Counts for the estimate. cost: all instructions of an element; sweeps: times that a row is read."""
    held = elements(cols, config) if not config.elements else -(-cols // (WARP_SIZE * config.warps))
    instructions = 30 + math.ceil(held * sum(cost.values())) + 40 * reductions
    registers_ = registers(config.elements or held, tensors)
    at_once = max(1, lanes.resident(spec, config.warps, registers_))
    in_flight = at_once * spec.sm.count * config.rows * read_bytes // (rows * config.cluster)
    again = (sweeps - 1) * read_bytes
    miss = again if in_flight > spec.l2.size_bytes else 0
    barrier = int(spec.sync.barrier_cycles + config.warps * spec.sync.barrier_per_warp_cycles) if config.shared else 0
    if config.cluster > 1:
        barrier += int(spec.sync.cluster_sync_cycles or 0)
    trips = -(-cols // (WARP_SIZE * config.warps * config.elements)) if config.elements else 1
    return Load(
        ctas=-(-rows // config.rows) * config.cluster,
        resident=at_once,
        read_bytes=read_bytes + miss,
        written_bytes=written_bytes,
        issue=-(-config.warps * instructions // spec.sm.sub_cores),
        path=2 * instructions + reductions * (150 + 2 * barrier),
        trips=sweeps * trips,
        again_bytes=again - miss,
        code_bytes=_code_bytes(config.elements or held),
    )


def ranked(
    op: Operator, spec: GpuSpec, configs: Sequence[RowConfig], estimate: Callable[[RowConfig], list[Load]]
) -> list[tuple[RowConfig, int]]:
    """Configurations with their estimated times, best first; InputError where there is none.

    What a row costs once, reductions and barriers, comes less often where fewer warps share it: each doubling of them
    is charged `WORTH_A_WARP`.
    """
    if not configs:
        raise InputError(f"{op}: no kernel of this kind takes rows of this length on {spec.name}")

    def charged(config: RowConfig) -> int:
        doublings = math.log2(config.warps * config.cluster) if config.shared else 0
        return round(lanes.load_ps(spec, estimate(config)) * (1 + WORTH_A_WARP / 100 * doublings))

    found = sorted(((charged(config), str(config), config) for config in configs), key=lambda item: item[:2])
    return [(config, time_ps) for time_ps, _, config in found]
