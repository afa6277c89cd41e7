"""Programs of a TPU: the published instructions with their operands, in the order in which the host sends them.

Addresses of the unified buffer, of weight memory and of host memory are in bytes; accumulators are counted in rows.
Units run their instructions in order and beside each other. What the hardware itself orders: weights by the FIFO,
accumulators between matrix and activation unit. What a program orders by `Sync`: everything that passes through the
unified buffer, weight memory or host memory. `sim.tpu.verify` checks that it does.

Published: names, the fields of the matrix instruction (unified buffer 3 bytes, accumulators 2, length 4), the repeat
field, the two kinds of synchronisation. Not published, so chosen here: all other fields, and `Vector`, which the
vector layers of the published LSTMs need in some form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from arch.errors import InputError
from arch.tpu import TpuSpec

FIGURES = ("array.count", "unified_buffer.behind")
"""Figures of a preset that this module reads."""

ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh")
"""Functions of the activation unit. `sigmoid` and `tanh` read their argument as fixed point with 4 fraction bits (after
the instruction's shift) and give one with 7 (16-bit results: 15)."""

ELEMENTWISE = ("add", "multiply", "sigmoid", "tanh", "max_pool")
"""Operations of the activation unit on the unified buffer."""

VECTOR_UNIT = ("row_max", "exp_sum", "softmax")
"""Operations that need a vector unit: maximum of each row; sum of exp(x - maximum); exp(x - maximum) / sum."""

FRACTION_BITS = 4
"""Fraction bits of the fixed-point argument of sigmoid, tanh and exp."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base: `UNIT` is the unit that runs it; matrix instructions and weight reads name their array as well."""

    NAME: ClassVar[str] = ""
    UNIT: ClassVar[str] = ""

    @property
    def unit(self) -> str:
        """Name of the unit whose queue it enters."""
        return self.UNIT


@dataclass(frozen=True, slots=True)
class ReadHostMemory(Instruction):
    """Copies `rows` rows of `row_bytes` from host memory to the unified buffer, or (`weights=1`) to weight memory."""

    NAME: ClassVar[str] = "read_host_memory"
    UNIT: ClassVar[str] = "host_read"

    host: int
    address: int
    rows: int
    row_bytes: int
    host_pitch: int
    pitch: int
    weights: int = 0


@dataclass(frozen=True, slots=True)
class WriteHostMemory(Instruction):
    """Copies `rows` rows of `row_bytes` from the unified buffer to host memory."""

    NAME: ClassVar[str] = "write_host_memory"
    UNIT: ClassVar[str] = "host_write"

    ub: int
    host: int
    rows: int
    row_bytes: int
    pitch: int
    host_pitch: int


@dataclass(frozen=True, slots=True)
class ReadMemory(ReadHostMemory):
    """As ReadHostMemory, from the chip's own memory (`unified_buffer.behind = dram`); `host` is an address of it."""

    NAME: ClassVar[str] = "read_memory"
    UNIT: ClassVar[str] = "load"


@dataclass(frozen=True, slots=True)
class WriteMemory(WriteHostMemory):
    """As WriteHostMemory, to the chip's own memory; `host` is an address of it."""

    NAME: ClassVar[str] = "write_memory"
    UNIT: ClassVar[str] = "store"


@dataclass(frozen=True, slots=True)
class ReadWeights(Instruction):
    """Sends for `repeat` consecutive tiles of weight memory; done when the addresses are sent."""

    NAME: ClassVar[str] = "read_weights"

    address: int
    repeat: int = 1
    array: int = 0

    @property
    def unit(self) -> str:
        """What fetches for its array."""
        return fetcher(self.array)


@dataclass(frozen=True, slots=True)
class Image:
    """Geometry of a convolution: NHWC images, and which part of the channels a group reads."""

    h: int
    w: int
    c: int
    r: int
    s: int
    p: int
    q: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation: int = 1
    first_channel: int = 0
    channels: int = 0


@dataclass(frozen=True, slots=True)
class MatrixMultiply(Instruction):
    """Streams `rows` rows of the unified buffer through the array into the accumulators from row `acc` on.

    depth: elements of a row. `repeat` times, each time the next `array.rows` elements with the next weight tile
    (`switch=1`; 0: the tile that is in the array). accumulate: the first time adds to the accumulators, later ones
    always do. bits: of an activation, 8 or 16. unsigned, shift: weights are 0 to 255, products count 2**shift: lower
    and upper half of 16-bit weights.
    columns: those with weights. With an output-stationary array `rows` are rows of the array and the depth streams.
    """

    NAME: ClassVar[str] = "matrix_multiply"

    ub: int
    pitch: int
    rows: int
    depth: int
    columns: int
    acc: int
    accumulate: int = 0
    switch: int = 1
    bits: int = 8
    shift: int = 0
    unsigned: int = 0
    repeat: int = 1
    array: int = 0

    @property
    def unit(self) -> str:
        """The array's queue."""
        return f"matrix{self.array}"


@dataclass(frozen=True, slots=True)
class Convolve(MatrixMultiply):
    """As MatrixMultiply, but row i is the patch of output position `first` + i, gathered by the systolic set-up, from
    its element `tap` on."""

    NAME: ClassVar[str] = "convolve"

    image: Image = field(default=Image(1, 1, 1, 1, 1, 1, 1))
    first: int = 0
    tap: int = 0


@dataclass(frozen=True, slots=True)
class Activate(Instruction):
    """Reads accumulators, `columns` from column `first` on, applies `function` to value / 2**shift, saturates to `bits`
    and writes the unified buffer."""

    NAME: ClassVar[str] = "activate"
    UNIT: ClassVar[str] = "activation"

    acc: int
    rows: int
    columns: int
    ub: int
    pitch: int
    function: str = "identity"
    bits: int = 8
    shift: int = 0
    array: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Vector(Instruction):
    """Elementwise or pooling operation from the unified buffer to the unified buffer.

    Rows of the operands and of the result are `pitch`, `b_pitch` and `out_pitch` apart (0: as `pitch`). `multiply`
    gives a * b / 2**shift. Pooling reads `rows` = n * p * q windows of `image`. Operations of `VECTOR_UNIT` need a
    machine with a vector unit and keep maximum and sum of each row in it.

    Of `VECTOR_UNIT` on floating-point numbers alone: out_bits of what they write (0: `bits`); arguments are divided by
    the root of `dim`; row i is query `query` + i of `queries` (0: each sees all columns), and sees columns as far as
    `causal` and `window` of attention allow.
    """

    NAME: ClassVar[str] = "vector"
    UNIT: ClassVar[str] = "activation"

    op: str
    a: int
    b: int
    ub: int
    rows: int
    columns: int
    pitch: int
    bits: int = 8
    shift: int = 0
    image: Image = field(default=Image(1, 1, 1, 1, 1, 1, 1))
    b_pitch: int = 0
    out_pitch: int = 0
    out_bits: int = 0
    dim: int = 1
    query: int = 0
    queries: int = 0
    causal: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class InterruptHost(Instruction):
    """Tells the host, which does the piece of work called `work` (empty: it only answers)."""

    NAME: ClassVar[str] = "interrupt_host"
    UNIT: ClassVar[str] = "host"

    work: str = ""


@dataclass(frozen=True, slots=True)
class Sync(Instruction):
    """`waiter` goes on when `after` has ended every instruction that the program gave it before this one."""

    NAME: ClassVar[str] = "sync"

    waiter: str
    after: str

    @property
    def unit(self) -> str:
        """The unit that waits."""
        return self.waiter


@dataclass(frozen=True, slots=True)
class Nop(Instruction):
    """Nothing, at the cost of its issue."""

    NAME: ClassVar[str] = "nop"
    UNIT: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Halt(Instruction):
    """End of the program."""

    NAME: ClassVar[str] = "halt"
    UNIT: ClassVar[str] = ""


INSTRUCTIONS: tuple[type[Instruction], ...] = (
    *(ReadHostMemory, WriteHostMemory, ReadMemory, WriteMemory, ReadWeights),
    *(MatrixMultiply, Convolve, Activate, Vector),
    *(InterruptHost, Sync, Nop, Halt),
)


def fetcher(array: int) -> str:
    """Name of the unit that fetches the weights of an array."""
    return f"weights{array}" if array else "weights"


def carriers(spec: TpuSpec) -> tuple[str, str]:
    """Names of the units that bring data to the unified buffer and take results from it."""
    return ("host_read", "host_write") if spec.unified_buffer.behind == "host" else ("load", "store")


def units(spec: TpuSpec) -> tuple[str, ...]:
    """Names of the units of a machine."""
    count = spec.array.count
    matrices, fetchers = (f"matrix{i}" for i in range(count)), (fetcher(i) for i in range(count))
    return (*matrices, "activation", *fetchers, *carriers(spec), "host")


@dataclass(frozen=True)
class HostWork:
    """What the host does between two pieces of a program: `run` changes host memory (a `sim.tpu.data.Memory`).

    reads, writes: (address, size) of host memory.
    """

    bytes_moved: int
    ops: int
    run: Callable[[Any], None]
    reads: tuple[int, int] = (0, 0)
    writes: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Program:
    """Instructions and where their operands lie.

    host_bytes, weight_bytes: sizes of what is used of those memories. fill: puts operands where they are before the
    run. results: reads results after it. reference: results that the quantised schedule must give; None: the operator's
    own. resident: (address, size) of the unified buffer that holds data before the run. loops: of its mapping, the
    outermost first: memory, what it holds, loop. tile: rows and columns of the arrays that it uses; empty: all.
    """

    name: str
    schedule: str
    instructions: Sequence[Instruction]
    host_bytes: int
    weight_bytes: int
    fill: Callable[[Any, Sequence[Any]], None]
    results: Callable[[Any], Sequence[Any]]
    reference: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    host_work: Mapping[str, HostWork] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resident: tuple[tuple[int, int], ...] = ()
    loops: tuple[tuple[str, str, str], ...] = ()
    tile: tuple[int, ...] = ()

    def part(self, spec: TpuSpec) -> TpuSpec:
        """The machine with as much of its arrays as the program uses."""
        return spec.using(*self.tile) if self.tile else spec


def wrong(index: int, instruction: Instruction, why: str) -> InputError:
    """The error for instruction number `index` of a program."""
    return InputError(f"instruction {index} ({instruction.NAME}): {why}")
