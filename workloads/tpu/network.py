"""Networks on a TPU: weights rest in weight memory, activations stay in the unified buffer between layers.

A batch: its inputs come from the host; layers follow each other behind synchronisations; the result goes to the host,
which is interrupted and sends the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.program import (
    Convolve,
    Image,
    InterruptHost,
    MatrixMultiply,
    Program,
    Vector,
)
from workloads.graphs.inference import Inference
from workloads.ops.networks import FRACTION_BITS, Convolution, Dense, Elementwise, Layer, Network, Pool
from workloads.registry import register
from workloads.tpu.choose import Config, block_rows, estimate
from workloads.tpu.emit import Emitter, Weights, load, store, store_bytes


@dataclass(frozen=True)
class Tensor:
    """Rows in the unified buffer, `pitch` bytes apart."""

    address: int
    rows: int
    columns: int
    pitch: int


@register("inference", "tpu", "auto")
def candidates(op: Inference, spec: TpuSpec, schedule: str) -> list[tuple[Config, int]]:
    """The one schedule, with the sum of the layers' estimates."""
    if schedule not in ("auto", "layers"):
        raise InputError(f"schedule={schedule}: must be auto or layers; did you mean layers?")
    if spec.floats:
        raise InputError(
            f"{op}: it computes with integers, {spec.name} with bf16; tpu-v1 runs it, schedule=steps its layers"
        )
    if op.dtype != "int8":
        raise InputError(f"inference dtype={op.dtype}: the published applications have int8 weights; dtype=int8")
    if spec.array.dataflow == "is":
        raise InputError(f"{op}: activations are made on the chip and stream, so array.dataflow must be ws or os")
    total = 0
    for layer in op.network.layers:
        if isinstance(layer, Dense | Convolution):
            rows, depth, columns = _product(op.network, layer, op.examples)
            total += min(estimate(spec, rows, depth, columns, op.network.bits, 1, whole) for whole in (False, True))
    return [(Config("layers"), total)]


@register("inference", "tpu", "layers")
def build(op: Inference, spec: TpuSpec, config: Config) -> Program:
    """The program of one batch."""
    writer = _Writer(Emitter(spec, str(op)), op.network, op.examples)
    writer.batch()
    e, network, count = writer.e, op.network, len(op.network.inputs)
    kind = spec.format_of(network.bits)

    def fill(memory: Any, operands: Sequence[NDArray[Any]]) -> None:
        for address, values in zip(writer.inputs, operands, strict=False):
            store(memory.host, address, np.asarray(values), kind)
        for area, matrix in zip(writer.weights, operands[count:], strict=True):
            flat = np.asarray(matrix).astype(np.int64)
            store_bytes(memory.weights, area.address, area.image(flat.reshape(area.depth, area.columns)))

    def results(memory: Any) -> list[NDArray[Any]]:
        rows, columns = network.tensors[network.result]
        return [load(memory.host, writer.result, (op.examples * rows, columns), kind)]

    return Program(
        f"{op.word} {network.name}", str(config), e.instructions, e.host_bytes, e.weight_bytes, fill, results,
        notes=("Layer sizes are stand-ins: only their numbers, weights and intensity are published.",),
    )  # fmt: skip


def _product(network: Network, layer: Dense | Convolution, batch: int) -> tuple[int, int, int]:
    """Rows, depth and columns of the product that a layer is."""
    if isinstance(layer, Dense):
        return batch * network.tensors[layer.out][0], layer.inputs, layer.outputs
    return batch * layer.size**2, layer.channels * layer.window**2, layer.filters


class _Writer:
    """Writes the layers of one batch."""

    def __init__(self, e: Emitter, network: Network, batch: int) -> None:
        self.e = e
        self.network = network
        self.examples = batch
        self.wide = network.bits // 8
        self.weights: list[Weights] = []
        self.inputs: list[int] = []
        self.result = 0
        self._places = _places(e, network, batch)
        self._made_by = {network.part(name)[0]: {self.e.inbound} for name in network.inputs}
        """Units that wrote parts of each tensor."""

    def batch(self) -> None:
        """Inputs, layers, result, interrupt."""
        e, network = self.e, self.network
        for name in network.inputs:
            tensor = self._view(name)
            rows, columns = network.input_shape(name, self.examples)
            size = columns * self.wide
            host = e.host(rows * size)
            self.inputs.append(host)
            e.read(host, tensor.address, rows, size, size, tensor.pitch)
        for layer in network.layers:
            self._layer(layer)
        tensor = self._places[network.result]
        size = tensor.columns * self.wide
        self.result = e.host(tensor.rows * size)
        e.sync(self.e.outbound, "activation")
        e.write(tensor.address, self.result, tensor.rows, size, tensor.pitch, size)
        e.sync("host", self.e.outbound)
        e.add(InterruptHost())

    def _layer(self, layer: Layer) -> None:
        match layer:
            case Dense() | Convolution():
                self._multiply(layer)
            case Pool():
                self._await("activation", layer.source)
                source, out = self._places[layer.source], self._places[layer.out]
                image = Image(
                    layer.size, layer.size, layer.channels, layer.window, layer.window, layer.out_size, layer.out_size,
                    layer.stride, layer.stride, layer.pad, layer.pad,
                )  # fmt: skip
                rows, width = self.examples * layer.out_size**2, layer.channels
                self.e.add(
                    Vector("max_pool", source.address, 0, out.address, rows, width, width * self.wide,
                           bits=self.network.bits, image=image)
                )  # fmt: skip
                self._made(layer.out)
            case Elementwise():
                for step in layer.steps:
                    self._elementwise(layer, *step)

    def _elementwise(self, layer: Elementwise, operation: str, a: str, b: str, out: str) -> None:
        names = [a, b] if b else [a]
        for name in names:
            self._await("activation", name)
        left, right, target = (self._view(name) for name in (a, b or a, out))
        bits = self.network.bits
        shift = {"multiply": bits - 1, "tanh": bits - 1 - FRACTION_BITS, "sigmoid": bits - 1 - FRACTION_BITS}
        self.e.add(
            Vector(operation, left.address, right.address, target.address, self.examples, layer.width, left.pitch,
                   bits=bits, shift=shift.get(operation, 0), b_pitch=right.pitch, out_pitch=target.pitch)
        )  # fmt: skip
        self._made(out)

    def _multiply(self, layer: Dense | Convolution) -> None:
        """A layer: rows in blocks, each through all columns of tiles; sums leave through the activation unit."""
        e, spec = self.e, self.e.spec
        rows, depth, columns = _product(self.network, layer, self.examples)
        area = e.weights(depth, columns)
        self.weights.append(area)
        whole = min((False, True), key=lambda w: estimate(spec, rows, depth, columns, self.network.bits, 1, w))
        block = block_rows(spec, rows, whole)
        for array in e.matrices:
            self._await(array, layer.source)
        for first in range(0, rows, block):
            for n in range(area.wide):
                self._column(layer, area, n, first, min(block, rows - first))
        self._made(layer.out)

    def _column(self, layer: Dense | Convolution, area: Weights, n: int, first: int, rows: int) -> None:
        e = self.e
        array = n % e.spec.array.count
        acc = e.accumulators(array, rows, e.spec.accumulators.rows)
        height = e.spec.array.rows if e.spec.array.dataflow == "os" else rows
        for row in range(0, rows, height):
            make = partial(self._instruction, layer, area, first + row, min(height, rows - row))
            e.column(area, n, make, acc + row, array)
        out = self._places[layer.out]
        gates = layer.gates if isinstance(layer, Dense) else ("relu",)
        width = layer.outputs // len(gates) if isinstance(layer, Dense) else layer.filters
        start, end = n * area.width, n * area.width + area.columns_of(n)
        for part, function in enumerate(gates):
            left, right = max(start, part * width), min(end, (part + 1) * width)
            if left < right:
                target = out.address + first * out.pitch + left * self.wide
                e.activate(
                    acc, rows, right - left, target, out.pitch, self.network.bits, array,
                    function=function, shift=layer.shift, first=left - start,
                )  # fmt: skip

    def _instruction(
        self, layer: Dense | Convolution, area: Weights, first: int, rows: int, step: int, repeat: int
    ) -> MatrixMultiply:
        height, bits = self.e.spec.array.rows, self.network.bits
        source = self._places[layer.source]
        depth = min(repeat * height, area.depth - step * height)
        if isinstance(layer, Dense):
            pitch = source.rows * source.pitch // self.examples
            address = source.address + first * pitch + step * height * self.wide
            return MatrixMultiply(address, pitch, rows, depth, area.width, 0, bits=bits, repeat=repeat)
        image = Image(
            layer.size, layer.size, layer.channels, layer.window, layer.window, layer.size, layer.size,
            pad_h=layer.window // 2, pad_w=layer.window // 2, channels=layer.channels,
        )  # fmt: skip
        return Convolve(
            source.address, source.pitch, rows, depth, area.width, 0, bits=bits, repeat=repeat, image=image,
            first=first, tap=step * height,
        )  # fmt: skip

    def _await(self, unit: str, name: str) -> None:
        """`unit` waits for who made a tensor."""
        self.e.sync(unit, *sorted(self._made_by[self.network.part(name)[0]]))

    def _made(self, name: str) -> None:
        """The activation unit has written a tensor, beside what the host sent of it."""
        self._made_by.setdefault(self.network.part(name)[0], set()).add("activation")

    def _view(self, name: str) -> Tensor:
        tensor, column = self.network.part(name)
        place = self._places[tensor]
        return Tensor(place.address + column * self.wide, place.rows, place.columns, place.pitch)


def _places(e: Emitter, network: Network, batch: int) -> dict[str, Tensor]:
    """Where each tensor lies: its place is free again behind the last layer that reads it."""
    last = dict.fromkeys(network.tensors, -1)
    for number, layer in enumerate(network.layers):
        for name in _names(layer):
            last[name] = number
    last[network.result] = len(network.layers)
    free: list[tuple[int, int]] = []  # size and address of places that nobody needs any more
    places: dict[str, Tensor] = {}
    sizes: dict[str, int] = {}
    order = [(-1, network.part(name)[0]) for name in network.inputs]
    order += [(number, name) for number, layer in enumerate(network.layers) for name in _names(layer)]
    gone: set[str] = set()
    for number, name in order:
        for other, end in last.items():
            if other in places and other not in gone and end < number:
                gone.add(other)
                free.append((sizes[other], places[other].address))
        if name in places:
            continue
        rows, columns = network.tensors[name]
        pitch = columns * network.bits // 8
        size = batch * rows * pitch
        fitting = sorted(place for place in free if place[0] >= size)
        if fitting:
            free.remove(fitting[0])
            address, size = fitting[0][1], fitting[0][0]
        else:
            address = e.ub(size)
        places[name], sizes[name] = Tensor(address, batch * rows, columns, pitch), size
    return places


def _names(layer: Layer) -> list[str]:
    """Tensors that a layer touches, in order."""
    if isinstance(layer, Elementwise):
        found = [name for _, *names in layer.steps for name in names if name]
    else:
        found = [layer.source, layer.out]
    return [name.partition("+")[0] for name in found]
