"""Inference of one batch of a published application: a program of its own on TPU v1, a graph everywhere else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from arch.dtypes import is_integer
from workloads.graphs import fusion
from workloads.graphs.graph import OTHERS, Graph, GraphOperator
from workloads.graphs.meanings import Model, Node, Tensor, written
from workloads.networks.onnx_operators import ModelConv
from workloads.ops import networks
from workloads.ops.base import Array, Operand, Operator, choice, derived_extent, number_format, operator


@operator("inference", example="app=mlp0")
@dataclass(frozen=True)
class Inference(GraphOperator):
    """One batch of an application of the TPU v1 paper; layer sizes are stand-ins (`workloads.ops.networks`)."""

    app: str = field(metadata={"kind": "choice", "choices": tuple(networks.APPS), "help": "application"})
    batch: int | None = derived_extent(help="examples; default: as published")
    dtype: str | None = number_format("of all tensors; default: the machine's")
    others: str = choice("stream", OTHERS, help="operators that the machine cannot run, or that have no kernel")

    def with_defaults(self, dtype: str) -> Self:
        """With the batch filled in, and the machine's number format: 8 bits where that is an integer, as published."""
        return dataclasses.replace(
            self, batch=self.examples, dtype=self.dtype or ("int8" if is_integer(dtype) else dtype)
        )

    def graph(self, fused: bool) -> Graph:
        """The layers' operators."""
        model = _Layers(self).model()
        return written(fusion.fused(model) if fused else model, self.others, self.chosen_dtype)

    @property
    def between(self) -> str:
        """Number format of what is between products."""
        return self.chosen_dtype if is_integer(self.chosen_dtype) else super().between

    @cached_property
    def network(self) -> networks.Network:
        """Its layers."""
        return networks.APPS[self.app]()

    @property
    def examples(self) -> int:
        """Examples of a batch."""
        return self.batch or self.network.batch

    @property
    def macs(self) -> int:
        """Of all layers."""
        return self.network.macs(self.examples)

    flops = Operator.flops
    operand_bytes = Operator.operand_bytes

    @property
    def activations(self) -> str:
        """Number format of activations, as published."""
        return {8: "int8", 16: "int16"}[self.network.bits]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs by name, then the weights of each layer."""
        inputs = [
            Operand(name, self.network.input_shape(name, self.examples), self.activations)
            for name in self.network.inputs
        ]
        weights = []
        for i, layer in enumerate(self.network.layers):
            match layer:
                case networks.Dense():
                    weights.append(Operand(f"w{i}", (layer.inputs, layer.outputs), "int8"))
                case networks.Convolution():
                    shape = (layer.window, layer.window, layer.channels, layer.filters)
                    weights.append(Operand(f"w{i}", shape, "int8"))
        return (*inputs, *weights)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The last layer's result."""
        rows, columns = self.network.tensors[self.network.result]
        return (Operand("y", (self.examples * rows, columns), self.activations),)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The result, bit for bit."""
        count = len(self.network.inputs)
        inputs = {name: np.asarray(x, dtype=np.int64) for name, x in zip(self.network.inputs, operands, strict=False)}
        weights = [np.asarray(w, dtype=np.int64) for w in operands[count:]]
        return (networks.reference(self.network, self.examples, inputs, weights).astype(np.float64),)

    @property
    def tolerance(self) -> float:
        """Integers are exact."""
        return 0.0


_FUNCTIONS = {"multiply": "mul"}
"""Functions of `pointwise` that have another name there."""


class _Layers:
    """Writes the layers as nodes. parts: by tensor of the network, what has been written into its columns, by the first
    of them; layers write parts of a tensor one after the other, and into one again."""

    def __init__(self, op: Inference) -> None:
        self.op, self.network = op, op.network
        self.tensors: dict[str, Tensor] = {}
        self.parts: dict[str, dict[int, str]] = {}
        self.nodes: list[Node] = []
        for name in self.network.inputs:
            self._put(name, self._tensor(name, self.network.input_shape(name, op.examples)))

    def model(self) -> Model:
        """All layers, one after the other."""
        for number, layer in enumerate(self.network.layers):
            match layer:
                case networks.Dense():
                    self._dense(number, layer)
                case networks.Convolution():
                    self._convolution(number, layer)
                case networks.Pool():
                    shape = self._shape(layer.out)
                    self._put(layer.out, self._node("MaxPool", "", (self._all(layer.source),), shape))
                case networks.Elementwise():
                    for operation, *given, out in layer.steps:
                        operands = tuple(self._columns(name, layer.width) for name in given if name)
                        self._put(out, self._function(operation, *operands))
        return Model(str(self.op), self.tensors, tuple(self.nodes), (self._all(self.network.result),))

    def _dense(self, number: int, layer: networks.Dense) -> None:
        """A product, then the function of each part of its columns."""
        weight = self._tensor(f"w{number}", (layer.inputs, layer.outputs))
        rows, _ = self._shape(layer.out)
        sums = self._node("MatMul", "matmul", (self._all(layer.source), weight), (rows, layer.outputs))
        width = layer.outputs // len(layer.gates)
        if len(layer.gates) == 1:
            self._put(layer.out, self._function(layer.gates[0], sums))
            return
        gates = [self._tensor(f"{sums}.{part}", (rows, width)) for part in range(len(layer.gates))]
        self.nodes.append(Node("Split", "view", (sums,), tuple(gates), {"split": True}))
        for part, (function, gate) in enumerate(zip(layer.gates, gates, strict=True)):
            self._put(f"{layer.out}+{part * width}", self._function(function, gate))

    def _convolution(self, number: int, layer: networks.Convolution) -> None:
        weight = self._tensor(f"w{number}", (layer.filters, layer.channels, layer.window, layer.window))
        sides, pad = (layer.size, layer.size), layer.window // 2
        conv = ModelConv(
            layer.out, self.op.examples, layer.channels, sides, layer.filters, (layer.window, layer.window),
            (1, 1), (pad,) * 4, (1, 1), 1,
        )  # fmt: skip
        keys = {"layers": (conv,)}
        sums = self._node("Conv", "layers", (self._all(layer.source), weight), self._shape(layer.out), **keys)
        self._put(layer.out, self._function("relu", sums))

    def _function(self, name: str, *operands: str) -> str:
        function = _FUNCTIONS.get(name, name)
        shape = self.tensors[operands[0]].shape
        return self._node(function.capitalize(), "pointwise", operands, shape, function=function)

    def _node(self, label: str, meaning: str, given: tuple[str, ...], shape: tuple[int, ...], **keys: object) -> str:
        """A node with one result, whose name this gives."""
        out = self._tensor(f"t{len(self.nodes)}", shape)
        self.nodes.append(Node(label, meaning, given, (out,), keys))
        return out

    def _tensor(self, name: str, shape: tuple[int, ...]) -> str:
        self.tensors[name] = Tensor(name, shape, self.op.between)
        return name

    def _shape(self, name: str) -> tuple[int, int]:
        rows, columns = self.network.tensors[name]
        return self.op.examples * rows, columns

    def _put(self, place: str, written: str) -> None:
        """What has been written into a tensor, from the place's first column on."""
        tensor, first = self.network.part(place)
        self.parts.setdefault(tensor, {})[first] = written

    def _all(self, tensor: str) -> str:
        """A tensor as a whole: its parts side by side."""
        parts = tuple(name for _, name in sorted(self.parts[tensor].items()))
        if len(parts) == 1:
            return parts[0]
        return self._node("Concat", "move", parts, self._shape(tensor))

    def _columns(self, place: str, width: int) -> str:
        """The columns of a place."""
        tensor, first = self.network.part(place)
        part = self.parts[tensor][first]
        rows, columns = self.tensors[part].shape
        return part if columns == width else self._node("Slice", "move", (part,), (rows, width))
