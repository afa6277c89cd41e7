"""Softmax where TPU v1 stands: it has no exponential, row maximum or division, so the host does it and PCIe is between.

The matrix is a layer's result in the unified buffer and goes back there. Values are fixed point: arguments with 4
fraction bits, shares with all bits but the sign. A machine with a vector unit (`tpu-v1-ext`) does it on the chip.

Later machines have it in their own memory: blocks of rows come, pass the vector unit three times and go back, while the
next block is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import (
    FRACTION_BITS,
    HostWork,
    InterruptHost,
    Program,
    Vector,
)
from workloads.ops import Softmax
from workloads.registry import register
from workloads.tpu.choose import Config
from workloads.tpu.emit import BITS, Emitter, formats, load, store

OPS_BESIDE_EXP = 4
"""Operations of an element beside its exponential: maximum, difference, sum, product."""


@register("softmax", "tpu", "auto")
def candidates(op: Softmax, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """On the host, or in the vector unit where there is one."""
    name = "vector" if spec.vector else "host"
    if schedule not in ("auto", name):
        raise InputError(f"schedule={schedule}: softmax on {spec.name} must be auto or {name}; did you mean {name}?")
    if not spec.floats and (op.dtype not in ("int8", "int16") or op.out != op.dtype):
        raise InputError(f"{op}: {spec.name} holds int8 and int16 results of one format, not {op.dtype} to {op.out}")
    size = op.rows * op.cols
    if spec.floats:
        return [(Config(name), int(_float_cycles(op, spec)))]
    if spec.vector:
        return [(Config(name), 3 * size // spec.vector.lanes)]
    return [(Config(name), 2 * size * spec.clock.boost_hz // spec.pcie.bandwidth_bytes_per_s)]


@register("softmax", "tpu", "vector")
@register("softmax", "tpu", "host")
def build(op: Softmax, spec: TpuSpec, config: Config) -> Program:
    """The program; InputError where the matrix, or a row of it, does not fit the unified buffer."""
    if spec.floats:
        return _streamed(op, spec, config)
    bits = BITS[op.chosen_dtype]
    e = Emitter(spec, str(op))
    width = op.cols * bits // 8
    source, target = e.ub(op.rows * width), e.ub(op.rows * width)
    x = e.host(op.rows * width)
    y = e.host(op.rows * width)
    kind = spec.format_of(bits)
    if config.schedule == "vector":
        for step in ("row_max", "exp_sum", "softmax"):
            e.add(Vector(step, source, 0, target, op.rows, op.cols, width, bits=bits))
    else:
        e.write(source, x, op.rows, width, width, width)
        e.sync("host", e.outbound)
        e.host_work["softmax"] = host_softmax(spec, x, y, (op.rows, op.cols), bits)
        e.add(InterruptHost("softmax"))
        e.sync(e.inbound, "host")
        e.read(y, target, op.rows, width, width, width)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        store(memory.ub, source, np.asarray(operands[0]), kind)

    def results(memory: Any) -> list[NDArray[Any]]:
        return [load(memory.ub, target, (op.rows, op.cols), kind)]

    return Program(
        op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results,
        reference=lambda operands: [softmax(np.asarray(operands[0]), bits)], host_work=e.host_work,
        notes=(
            f"Fixed point: {FRACTION_BITS} fraction bits in, {bits - 1} out. The matrix lies in the unified "
            "buffer before and after.",
        ),
        resident=((source, op.rows * width),),
    )  # fmt: skip


def _float_cycles(op: Softmax, spec: TpuSpec) -> float:
    """Estimate: the longer of the vector unit's passes and of the memory's traffic."""
    assert spec.vector is not None
    size = op.rows * op.cols
    moved = size * sum(DTYPE_BYTES[str(name)] for name in (op.dtype, op.out))
    memory = moved * spec.clock.boost_hz / (spec.dram.bandwidth_bytes_per_s * (1 - spec.dram.overhead))
    return max((1 + 2 * spec.vector.exp) * size / spec.vector.lanes, memory)


_BLOCKS = 16
"""Blocks that a matrix is cut into where it is large enough: the first and the last overlap with nothing."""


def _streamed(op: Softmax, spec: TpuSpec, config: Config) -> Program:
    """Blocks of rows from the machine's own memory and back; InputError where a row does not fit four times."""
    bits, out_bits = formats(op, spec, str(op.dtype), str(op.out))
    e = Emitter(spec, str(op))
    width, out_width = op.cols * bits // 8, op.cols * out_bits // 8
    fits = (spec.unified_buffer.size_bytes - 4 * e.align) // (2 * (width + out_width))
    block = max(1, min(fits, -(-op.rows // _BLOCKS)))
    sources, targets = ([e.ub(block * each) for _ in range(2)] for each in (width, out_width))
    x, y = e.host(op.rows * width), e.host(op.rows * out_width)
    starts = range(0, op.rows, block)

    def fetch(number: int) -> None:
        rows = min(block, op.rows - starts[number])
        e.sync(e.inbound, "activation")
        e.read(x + starts[number] * width, sources[number % 2], rows, width, width, width)

    fetch(0)
    for number, start in enumerate(starts):
        rows = min(block, op.rows - start)
        e.sync("activation", e.inbound)
        if number + 1 < len(starts):
            fetch(number + 1)
        source, target = sources[number % 2], targets[number % 2]
        for step in ("row_max", "exp_sum", "softmax"):
            e.add(
                Vector(step, source, 0, target, rows, op.cols, width, bits=bits, out_pitch=out_width, out_bits=out_bits)
            )
        # The next block's results go where those of the one before this one lay, which have to have left by then.
        e.sync("activation", e.outbound)
        e.sync(e.outbound, "activation")
        e.write(target, y + start * out_width, rows, out_width, out_width, out_width)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        store(memory.host, x, operands[0], spec.format_of(bits))

    def results(memory: Any) -> list[NDArray[Any]]:
        return [load(memory.host, y, (op.rows, op.cols), spec.format_of(out_bits))]

    return Program(op.word, str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results)


def host_softmax(
    spec: TpuSpec,
    x: int,
    y: int,
    shape: tuple[int, int],
    bits: int,
    seen: Callable[[], NDArray[np.bool_]] | None = None,
) -> HostWork:
    """Softmax by row of fixed-point values at x in host memory, to y; seen: which columns count."""
    kind = spec.format_of(bits)
    elements = shape[0] * shape[1]
    size = elements * bits // 8

    def run(memory: Any) -> None:
        values = load(memory.host, x, shape, kind)
        store(memory.host, y, softmax(values, bits, None if seen is None else seen()), kind)

    ops = elements * (spec.host.exp_ops + OPS_BESIDE_EXP)
    return HostWork(2 * size, ops, run, reads=(x, size), writes=(y, size))


def softmax(values: NDArray[Any], bits: int, seen: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Shares of each row in `bits` - 1 fraction bits, saturated; rows that see nothing give zeros."""
    real = np.asarray(values, dtype=np.float64) / 2**FRACTION_BITS
    if seen is not None:
        real = np.where(seen, real, -np.inf)
    top = real.max(axis=-1, keepdims=True)
    weights = np.exp(real - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    shares = weights / np.where(total > 0, total, 1.0)
    return np.clip(np.rint(shares * 2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1).astype(np.int64)
