"""Inference of one batch of a published application."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from arch.errors import InputError
from workloads.ops import networks
from workloads.ops.base import Array, Operand, Operator, derived_extent, number_format, operator


@operator("inference", example="app=mlp0")
@dataclass(frozen=True)
class Inference(Operator):
    """One batch of an application of the TPU v1 paper; layer sizes are stand-ins (`workloads.ops.networks`)."""

    app: str = field(metadata={"kind": "choice", "choices": tuple(networks.APPS), "help": "application"})
    batch: int | None = derived_extent(help="examples; default: as published")
    dtype: str | None = number_format("of the weights; default: int8")

    def __post_init__(self) -> None:
        """Checks the fields and that weights have 8 bits."""
        super().__post_init__()
        if self.dtype not in (None, "int8"):
            raise InputError(f"inference dtype={self.dtype}: the published applications have int8 weights; dtype=int8")

    def with_defaults(self, dtype: str) -> Self:
        """With the batch filled in; weights are int8 on every machine."""
        return dataclasses.replace(self, batch=self.examples, dtype="int8")

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

    @property
    def activations(self) -> str:
        """Number format of activations."""
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
