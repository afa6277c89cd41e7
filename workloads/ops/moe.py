"""A layer of a mixture of experts, as one device computes its part."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np

from arch.dtypes import round_to
from arch.errors import InputError
from workloads.ops import packed, routing
from workloads.ops.base import (
    Array,
    Operand,
    Operator,
    choice,
    count,
    extent,
    number_format,
    operator,
    random_array,
    rounding,
)
from workloads.ops.dtypes import default_output, epsilon
from workloads.ops.gemm import SCALE_BLOCK
from workloads.ops.packed import PackedMatrices
from workloads.ops.routing import Ids
from workloads.ops.rowwise import Quantize


@operator("moe", kind="contraction", example="tokens=64 hidden=1k inter=512 topk=2 experts=8")
@dataclass(frozen=True)
class Moe(Operator):
    """Y = sum over a token's experts of its weight times W2 f(W1 x), by one device's share of a layer of experts.

    With a gate f(g, u) = silu(g) u and W1 has both halves, rows of the gate first; without one f(u) = max(u, 0)^2.
    Devices share each expert's `inter` (`tp`) or the experts (`ep`), of which this one has the first; all tokens are
    there, and Y is the device's summand. A power law is drawn so that this device is the busiest. With `router=1` the
    choice of experts from the router's logits belongs to it; without, choices and weights are given.

    `weights=mxfp4` (or nvfp4, int4, int8) stores the experts' weights with fewer bits, as `gemm` stores B; rows and
    sums stay in `dtype`, fp16 or bf16.

    `scale=block` gives fp8 weights an fp32 scale for each 128 x 128 elements, and tokens one for each 128, [groups,
    tokens], as `quantize scale=group` has them. What is between the products is quantised likewise. The sum over each
    128 elements is scaled and added in fp32, as `gemm scale=block` does.
    """

    tokens: int = extent(help="tokens")
    hidden: int = extent(help="elements of a token's vector")
    inter: int = extent(help="elements between the two products of an expert")
    topk: int = extent(help="experts that a token chooses")
    experts: int = extent(help="experts of the layer")
    tp: int = extent(1, help="devices that share each expert")
    ep: int = extent(1, help="devices that share the experts")
    distribution: str = dataclasses.field(
        default="uniform",
        metadata={"kind": "words", "help": routing.WAYS},
    )
    seed: int = count(0, help="of a random distribution")
    gate: str = choice("1", ("1", "0"), help="1: gated SiLU; 0: squared ReLU")
    router: str = choice("0", ("0", "1"), help="1: top-k of the router's logits is part of it")
    weights: str = choice("same", ("same", *packed.FORMS), help="int8, int4, mxfp4, nvfp4: weights are stored so")
    group: int = extent(packed.GROUP, help="elements that share a scale of weights=int8 or int4")
    scale: str = choice("none", ("none", "block"), help="block: fp8 tokens and weights have scales by block of 128")
    dtype: str | None = number_format("of x and the weights; default: the machine's")
    out: str | None = number_format("of y and the first product; default: the input's, fp8 to bf16")

    def __post_init__(self) -> None:
        """Checks that devices share evenly, and the distribution; one from a file is read."""
        super().__post_init__()
        object.__setattr__(self, "distribution", routing.read(self.distribution, self.word))
        for key, whole, parts in (("inter", self.inter, "tp"), ("experts", self.experts, "ep")):
            if whole % getattr(self, parts):
                raise InputError(f"moe {parts}={getattr(self, parts)}: must divide {key}={whole}")
        if self.topk > self.experts:
            raise InputError(f"moe topk={self.topk}: at most experts={self.experts}")
        routing.check(self.distribution, self.tokens, self.experts, self.topk)
        if self.weights != "same":
            where = f"moe weights={self.weights}"
            if self.dtype not in (None, "fp16", "bf16"):
                raise InputError(f"{where}: {self.dtype} rows; nearest: dtype=bf16")
            PackedMatrices.of(self.weights, self.group, self.dtype or "bf16", where)
        if self.scale == "block":
            self._check_blocks()

    def _check_blocks(self) -> None:
        """InputError for what scales by block do not go with."""
        if self.weights != "same" or self.dtype not in (None, "fp8"):
            raise InputError(
                f"moe scale=block: weights={self.weights} dtype={self.dtype}; nearest: weights=same dtype=fp8"
            )
        for key, value in (("hidden", self.hidden), ("inter / tp", self.local_inter)):
            if value % SCALE_BLOCK:
                nearest = max(1, round(value / SCALE_BLOCK)) * SCALE_BLOCK
                raise InputError(
                    f"moe scale=block: {key} = {value}: must be a multiple of {SCALE_BLOCK}, nearest: {nearest}"
                )

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or default_output(chosen))

    @property
    def out_dtype(self) -> str:
        """Format of y, of the first product, and of the logits."""
        return self.out or default_output(self.chosen_dtype)

    @property
    def local_experts(self) -> int:
        """Experts of this device."""
        return self.experts // self.ep

    @property
    def local_inter(self) -> int:
        """This device's part of an expert's inner elements."""
        return self.inter // self.tp

    @property
    def first_columns(self) -> int:
        """Rows of W1 of one expert here: results of the first product."""
        return self.local_inter * (2 if self.gate == "1" else 1)

    @property
    def packed(self) -> PackedMatrices | None:
        """How weights are stored, see `weights`."""
        return None if self.weights == "same" else PackedMatrices.of(self.weights, self.group, self.chosen_dtype, "moe")

    @property
    def blockwise(self) -> bool:
        """Whether tokens and weights have scales by block."""
        return self.scale == "block"

    @property
    def ids(self) -> Ids:
        """Experts that each token chooses, (tokens, topk); this device has those below `local_experts`."""
        return routing.chosen(self.distribution, self.tokens, self.experts, self.topk, self.ep, self.seed)

    @property
    def macs(self) -> int:
        """Both products of what lands on this device's experts."""
        landed = int((self.ids < self.local_experts).sum())
        return landed * self.hidden * (self.first_columns + self.local_inter)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Tokens; logits, or choices and their weights; the experts' weights and their scales; those of tokens."""
        dtype = self.chosen_dtype
        chosen = (
            (Operand("logits", (self.tokens, self.experts), self.out_dtype),)
            if self.router == "1"
            else (
                Operand("ids", (self.tokens, self.topk), "int32"),
                Operand("weights", (self.tokens, self.topk), "fp32"),
            )
        )
        return (
            Operand("x", (self.tokens, self.hidden), dtype),
            *chosen,
            *self.weight_operands,
            *((Operand("sx", (self.hidden // SCALE_BLOCK, self.tokens), "fp32"),) if self.blockwise else ()),
        )

    @property
    def weight_operands(self) -> tuple[Operand, ...]:
        """Weights of both products; of fewer bits all experts' blocks of k one after the other, and scales."""
        sides = (("1", self.hidden, self.first_columns), ("2", self.local_inter, self.hidden))
        if (stored := self.packed) is None:
            whole = tuple(Operand(f"w{i}", (self.local_experts, n, k), self.chosen_dtype) for i, k, n in sides)
            shapes = [(self.local_experts, n // SCALE_BLOCK, k // SCALE_BLOCK) for _, k, n in sides]
            blocks_of = (Operand(f"s{i}", shape, "fp32") for i, shape in enumerate(shapes, 1))
            return (*whole, *(blocks_of if self.blockwise else ()))
        found = []
        for i, k, n in sides:
            blocks, *block = stored.shape(k, n)
            found.append(Operand(f"w{i}", (self.local_experts * blocks, *block), stored.stored))
        scales = (Operand(f"s{i}", (self.local_experts * stored.groups(k), n), stored.scale) for i, k, n in sides)
        return (*found, *scales)

    @property
    def results(self) -> tuple[Operand, ...]:
        """Y."""
        return (Operand("y", (self.tokens, self.hidden), self.out_dtype),)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands; logits prefer the experts of the distribution, weights of a token add up to 1."""
        rng = np.random.Generator(np.random.PCG64(seed))
        found: list[Array] = []
        for operand in self.operands:
            if operand.name == "logits":
                logits = random_array(rng, operand.shape, operand.dtype, "uniform")
                np.put_along_axis(logits, self.ids, np.take_along_axis(logits, self.ids, 1) + 4, 1)
                found.append(round_to(logits, operand.dtype))
            elif operand.name == "ids":
                found.append(self.ids)
            elif operand.name == "weights":
                drawn = rng.uniform(0.5, 1.0, operand.shape)
                found.append(round_to(drawn / drawn.sum(axis=1, keepdims=True), "fp32"))
            elif operand.name in ("s1", "s2", "sx"):
                found.append(round_to(rng.uniform(0.5, 1.0, operand.shape), "fp32"))
            else:
                found.append(random_array(rng, operand.shape, operand.dtype, data))
        if (stored := self.packed) is not None:
            w1, w2, s1, s2 = (operand.shape for operand in self.weight_operands)
            first, second = (stored.random(seed + i, w, s, data) for i, (w, s) in enumerate(((w1, s1), (w2, s2))))
            found[-4:] = [first[0], second[0], first[1], second[1]]
        return tuple(found)

    def weights_of(self, logits: Array) -> Array:
        """Weights of the chosen experts: softmax over them, (tokens, topk)."""
        picked = np.exp(np.take_along_axis(np.asarray(logits, dtype=np.float64), self.ids, 1))
        return np.asarray(picked / picked.sum(axis=1, keepdims=True))

    def activated(self, first: Array) -> Array:
        """f of the first product's results, (rows, `first_columns`)."""
        if self.gate == "0":
            return np.maximum(first, 0) ** 2
        gate, up = np.split(first, 2, axis=1)
        return np.asarray(gate / (1 + np.exp(-gate)) * up)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """Y in float64, rounded once."""
        return (round_to(self._mixed(*operands, absolute=False), self.out_dtype),)

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The sum of what is added up, and of the products that the activation multiplies."""
        return (self._mixed(*operands, absolute=True),)

    @property
    def tolerance(self) -> float:
        """Roundings of both products, of the activation and of what is added up."""
        sums = self.hidden + self.local_inter + self.topk
        return rounding(self.out_dtype, sums) + (1 if self.blockwise else 8) * epsilon(self.chosen_dtype)

    def _matrices(self, *stored: Array) -> tuple[Array, Array]:
        """The experts' weights, (experts, columns, k), of what is stored."""
        if self.blockwise:
            spread = [s.repeat(SCALE_BLOCK, axis=1).repeat(SCALE_BLOCK, axis=2) for s in stored[2:]]
            return stored[0] * spread[0], stored[1] * spread[1]
        if self.packed is None:
            return stored[0], stored[1]
        found = []
        for k, w, scales in zip((self.hidden, self.local_inter), stored[:2], stored[2:], strict=True):
            each = [a.reshape(self.local_experts, -1, *a.shape[1:]) for a in (w, scales)]
            matrices = [self.packed.matrix(blocks, factors, k).T for blocks, factors in zip(*each, strict=True)]
            found.append(round_to(np.stack(matrices), self.chosen_dtype))
        return found[0], found[1]

    def _mixed(self, *operands: Array, absolute: bool) -> Array:
        x, *chosen = (np.asarray(operand, dtype=np.float64) for operand in operands)
        if self.blockwise:
            x = x * chosen.pop().T.repeat(SCALE_BLOCK, axis=1)
        w1, w2 = self._matrices(*chosen[len(chosen) - len(self.weight_operands) :])
        weights = self.weights_of(chosen[0]) if self.router == "1" else chosen[1]
        y = np.zeros((self.tokens, self.hidden))
        for expert in range(self.local_experts):
            tokens, slots = np.nonzero(self.ids == expert)
            if not len(tokens):
                continue
            first = x[tokens] @ w1[expert].T
            inner, second = self.activated(first), w2[expert]
            if self.blockwise:
                inner = quantised(inner)
            if absolute:
                inner = np.abs(first).reshape(len(tokens), -1, self.local_inter).prod(axis=1) + np.abs(inner)
                second = np.abs(second)
            np.add.at(y, tokens, weights[tokens, slots, None] * (inner @ second.T))
        return y


def quantised(values: Array) -> Array:
    """Rows in fp8 with a scale for each block, as numbers again."""
    rows, cols = values.shape
    op = Quantize(rows=rows, cols=cols, scale="group", group=SCALE_BLOCK, dtype="fp32")
    narrow, scale = op.references(values)
    return np.asarray(narrow * scale.T.repeat(SCALE_BLOCK, axis=1))
