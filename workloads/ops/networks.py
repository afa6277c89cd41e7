"""Networks as layers over quantised tensors: the six applications of the TPU v1 paper (Jouppi et al., ISCA 2017).

Published (table 1): numbers of layers by kind, weights, batch, multiply-accumulates a weight byte. Per-layer sizes are
not published; those here are stand-ins that agree with all of these figures, each with its reason. Values are integers;
after each layer sums are scaled by a power of two and saturated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.ops.pyramids import BATCH, CONVOLUTIONS, INPUT_CHANNELS, Pyramid

Array = NDArray[np.int64]

FRACTION_BITS = 4
"""Fraction bits of the argument of sigmoid and tanh; results have one bit less than their format."""


@dataclass(frozen=True)
class Dense:
    """out = function(x W / 2**shift); `gates`: function of each equal part of the columns."""

    source: str
    out: str
    inputs: int
    outputs: int
    gates: tuple[str, ...] = ("relu",)

    @property
    def weights(self) -> int:
        """Elements of W."""
        return self.inputs * self.outputs

    @property
    def shift(self) -> int:
        """So that sums of random operands fill the result's range and seldom leave it."""
        return 3 + round(math.log2(self.inputs) / 2)


@dataclass(frozen=True)
class Convolution:
    """out = relu(conv(x, W) / 2**shift), NHWC, padded so that `size` is kept."""

    source: str
    out: str
    size: int
    channels: int
    filters: int
    window: int

    @property
    def weights(self) -> int:
        """Elements of W."""
        return self.channels * self.filters * self.window**2

    @property
    def shift(self) -> int:
        """As of a dense layer."""
        return 3 + round(math.log2(self.channels * self.window**2) / 2)


@dataclass(frozen=True)
class Pool:
    """Maximum over windows, NHWC; with stride 1 padded so that `size` is kept."""

    source: str
    out: str
    size: int
    channels: int
    window: int
    stride: int

    @property
    def pad(self) -> int:
        """Rows and columns around the image."""
        return self.window // 2 if self.stride == 1 else 0

    @property
    def out_size(self) -> int:
        """Rows and columns of the result."""
        return (self.size + 2 * self.pad - self.window) // self.stride + 1


@dataclass(frozen=True)
class Elementwise:
    """A vector layer: steps `(operation, a, b, out)` over `width` columns of tensors."""

    width: int
    steps: tuple[tuple[str, str, str, str], ...]


Layer = Dense | Convolution | Pool | Elementwise


@dataclass(frozen=True)
class Network:
    """Layers and tensors. tensors: rows of one example and columns, by name; where a layer names `z1+704`, that is z1
    from column 704 on. bits: of activations; weights have 8."""

    name: str
    batch: int
    bits: int
    tensors: dict[str, tuple[int, int]]
    inputs: tuple[str, ...]
    result: str
    layers: tuple[Layer, ...]

    @property
    def weights(self) -> int:
        """Weights of all layers."""
        return sum(layer.weights for layer in self.layers if isinstance(layer, Dense | Convolution))

    def part(self, name: str) -> tuple[str, int]:
        """Tensor and first column that a name stands for."""
        tensor, _, first = name.partition("+")
        return tensor, int(first or 0)

    def input_shape(self, name: str, batch: int) -> tuple[int, int]:
        """Rows and columns of an input: its tensor from the name's first column on."""
        tensor, first = self.part(name)
        rows, columns = self.tensors[tensor]
        return batch * rows, columns - first

    def macs(self, batch: int) -> int:
        """Multiply-accumulates of one batch."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, Dense):
                total += layer.weights * self.tensors[layer.out.partition("+")[0]][0]
            elif isinstance(layer, Convolution):
                total += layer.weights * layer.size**2
        return total * batch


def _mlp(name: str, layers: int, width: int, batch: int) -> Network:
    """Equal square layers."""
    tensors = {f"x{i}": (1, width) for i in range(layers + 1)}
    found = tuple(Dense(f"x{i}", f"x{i + 1}", width, width) for i in range(layers))
    return Network(name, batch, 8, tensors, ("x0",), f"x{layers}", found)


def _cell(gates: str, before: str, state: str, target: str, width: int) -> Elementwise:
    """state = forget * before + input * candidate; target = output * tanh(state). Gates: i, f, o, g side by side."""
    i, f, o, g = (f"{gates}+{width * part}" for part in range(4))
    steps = (
        ("multiply", f, before, "kept"),
        ("multiply", i, g, "new"),
        ("add", "kept", "new", state),
        ("tanh", state, "", "squashed"),
        ("multiply", o, "squashed", target),
    )
    return Elementwise(width, steps)


_GATES = ("sigmoid", "sigmoid", "sigmoid", "tanh")


def _lstm0() -> Network:
    """24 cells: 704 states and 64 new inputs make 3 tiles deep, 4 gates of 704 make 11 wide: 792 whole tiles, 51.9 M of
    the published 52 M weights, none of them idle, as published. Ten residual additions make 34 vector layers."""
    hidden, features, cells = 704, 64, 24
    tensors = {f"z{i}": (1, hidden + features) for i in range(cells)} | {f"z{cells}": (1, hidden)}
    tensors |= {f"g{i}": (1, 4 * hidden) for i in range(cells)} | {f"c{i}": (1, hidden) for i in range(cells + 1)}
    tensors |= dict.fromkeys(("kept", "new", "squashed"), (1, hidden))
    layers: list[Layer] = []
    for i in range(cells):
        layers.append(Dense(f"z{i}", f"g{i}", hidden + features, 4 * hidden, _GATES))
        layers.append(_cell(f"g{i}", f"c{i}", f"c{i + 1}", f"z{i + 1}", hidden))
        if i < 10:
            layers.append(Elementwise(hidden, (("add", f"z{i + 1}", f"z{i}", f"z{i + 1}"),)))
    inputs = ("z0", "c0", *(f"z{i}+{hidden}" for i in range(1, cells)))
    return Network("lstm0", 64, 16, tensors, inputs, f"z{cells}", tuple(layers))


def _lstm1() -> Network:
    """18 times a layer of 600 x 600, the one printed size, and four gates of 600 x 600, and gates once more: 37 dense
    layers, 19 vector layers, 33.8 M of the published 34 M weights."""
    width, cells = 600, 19
    tensors = {f"h{i}": (1, width) for i in range(cells + 1)} | {f"p{i}": (1, width) for i in range(cells)}
    tensors |= {f"g{i}": (1, 4 * width) for i in range(cells)} | {f"c{i}": (1, width) for i in range(cells + 1)}
    tensors |= dict.fromkeys(("kept", "new", "squashed"), (1, width))
    layers: list[Layer] = []
    for i in range(cells):
        source = f"h{i}"
        if i < cells - 1:
            layers.append(Dense(source, f"p{i}", width, width, ("tanh",)))
            source = f"p{i}"
        layers.append(Dense(source, f"g{i}", width, 4 * width, _GATES))
        layers.append(_cell(f"g{i}", f"c{i}", f"c{i + 1}", f"h{i + 1}", width))
    return Network("lstm1", 96, 16, tensors, ("h0", "c0"), f"h{cells}", tuple(layers))


def _cnn0() -> Network:
    """2888 multiply-accumulates a weight byte at batch 8 are 361 positions: 19 x 19. 48 planes in, fourteen layers of
    3 x 3 and two of 1 x 1 on 256 channels, whole tiles as published: 7.8 M of the published 8 M weights."""
    shapes = [(48, 256, 3), *[(256, 256, 3)] * 13, (256, 256, 1), (256, 1, 1)]
    return _convolutions("cnn0", 8, 19, shapes)


CNN1 = Pyramid(size=32, counts=(12, 24, 24, 12), channels=92, width=1024)
"""Of the sets of sizes that fit what is published of CNN1, the one with the most even stages."""


def _convolutions(name: str, batch: int, size: int, shapes: Sequence[tuple[int, int, int]]) -> Network:
    """Convolutions in a row, on images of one size."""
    tensors = {"x0": (size * size, shapes[0][0])}
    layers: list[Layer] = []
    for i, (channels, filters, window) in enumerate(shapes):
        tensors[f"x{i + 1}"] = (size * size, filters)
        layers.append(Convolution(f"x{i}", f"x{i + 1}", size, channels, filters, window))
    return Network(name, batch, 8, tensors, ("x0",), f"x{len(shapes)}", tuple(layers))


def pyramid(name: str, sizes: Pyramid, pools: int = 13) -> Network:
    """Stages of convolutions on ever smaller images, each with a pool that halves the image behind it, and four dense
    layers. Pools beyond those keep the size and stand evenly among the convolutions."""
    tensors = {"x0": (sizes.size**2, INPUT_CHANNELS)}
    layers: list[Layer] = []
    last, channels, made = "x0", INPUT_CHANNELS, 0
    spare = pools - len(sizes.counts)
    every = CONVOLUTIONS // (spare + 1)
    for size, filters, count in sizes.stages:
        for _ in range(count):
            made += 1
            layers.append(Convolution(last, f"x{made}", size, channels, filters, 3))
            tensors[f"x{made}"] = (size * size, filters)
            last, channels = f"x{made}", filters
            if made % every == 0 and made // every <= spare:
                layers.append(Pool(last, f"p{made}", size, filters, 3, 1))
                tensors[f"p{made}"] = tensors[last]
                last = f"p{made}"
        layers.append(Pool(last, f"h{made}", size, filters, 2, 2))
        tensors[f"h{made}"] = ((size // 2) ** 2, filters)
        last = f"h{made}"
    rows, columns = tensors[last]
    tensors[last] = (1, rows * columns)
    for i in range(4):
        inputs = rows * columns if i == 0 else sizes.width
        layers.append(Dense(last, f"y{i}", inputs, sizes.width))
        tensors[f"y{i}"] = (1, sizes.width)
        last = f"y{i}"
    return Network(name, BATCH, 8, tensors, ("x0",), last, tuple(layers))


APPS: dict[str, Callable[[], Network]] = {
    # 97.6 % of the cells hold useful weights (12.5 of 12.8 %): square layers of 2024 in tiles of 256.
    "mlp0": lambda: _mlp("mlp0", 5, 2024, 200),
    "mlp1": lambda: _mlp("mlp1", 4, 1118, 168),
    "lstm0": _lstm0,
    "lstm1": _lstm1,
    "cnn0": _cnn0,
    "cnn1": lambda: pyramid("cnn1", CNN1),
}


def reference(network: Network, batch: int, inputs: Mapping[str, Array], weights: Sequence[Array]) -> Array:
    """The result of one batch: integers, [batch * rows, columns]. weights: of dense layers [inputs, outputs], of
    convolutions [window, window, channels, filters]."""
    shape = {name: (batch * rows, columns) for name, (rows, columns) in network.tensors.items()}
    held = {name: np.zeros(size, dtype=np.int64) for name, size in shape.items()}
    for name, values in inputs.items():
        tensor, first = network.part(name)
        held[tensor][:, first:] = values
    remaining = iter(weights)

    def columns(name: str, width: int) -> Array:
        tensor, first = network.part(name)
        return held[tensor][:, first : first + width]

    bits = network.bits
    for layer in network.layers:
        match layer:
            case Dense():
                x = held[layer.source].reshape(shape[layer.source])
                sums = _exact(x, next(remaining))
                width = layer.outputs // len(layer.gates)
                for part, function in enumerate(layer.gates):
                    piece = slice(part * width, (part + 1) * width)
                    held[layer.out][:, piece] = activated(function, sums[:, piece], layer.shift, bits)
            case Convolution():
                image = held[layer.source].reshape(batch, layer.size, layer.size, layer.channels)
                pad = layer.window // 2
                padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
                w = next(remaining)
                sums = np.zeros((*image.shape[:3], layer.filters), dtype=np.int64)
                for r, s in np.ndindex(layer.window, layer.window):
                    sums += _exact(padded[:, r : r + layer.size, s : s + layer.size], w[r, s])
                held[layer.out][:] = activated("relu", sums.reshape(-1, layer.filters), layer.shift, bits)
            case Pool():
                image = held[layer.source].reshape(batch, layer.size, layer.size, layer.channels)
                low, pad, step = -(2 ** (bits - 1)), layer.pad, layer.stride
                padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=low)
                reach = (layer.out_size - 1) * step + 1
                windows = [
                    padded[:, r : r + reach : step, s : s + reach : step]
                    for r in range(layer.window)
                    for s in range(layer.window)
                ]
                held[layer.out][:] = np.max(windows, axis=0).reshape(held[layer.out].shape)
            case Elementwise():
                for operation, a, b, out in layer.steps:
                    left = columns(a, layer.width)
                    match operation:
                        case "add":
                            found = saturated(left + columns(b, layer.width), bits)
                        case "multiply":
                            found = saturated(scaled(left * columns(b, layer.width), bits - 1), bits)
                        case _:
                            found = activated(operation, left, bits - 1 - FRACTION_BITS, bits)
                    columns(out, layer.width)[:] = found
    return held[network.result]


def scaled(values: Array, shift: int) -> Array:
    """values / 2**shift to nearest, halves up."""
    return np.floor_divide(values + (1 << shift) // 2, 1 << shift)


def saturated(values: Array, bits: int) -> Array:
    """Held to the range of a signed integer."""
    return np.clip(values, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def activated(function: str, sums: Array, shift: int, bits: int) -> Array:
    """A function of sums / 2**shift."""
    x = scaled(sums, shift)
    if function == "relu":
        return saturated(np.maximum(x, 0), bits)
    real = x / 2.0**FRACTION_BITS
    y = np.tanh(real) if function == "tanh" else 1 / (1 + np.exp(-np.clip(real, -60, 60)))
    return saturated(np.rint(y * 2.0 ** (bits - 1)).astype(np.int64), bits)


def _exact(a: Array, b: Array) -> Array:
    """a b; sums of these networks stay below 2**53, so that floating point is exact."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
