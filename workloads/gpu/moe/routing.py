"""Choice of experts: softmax over a router's logits, its largest, their share of each other.

Kernels of vLLM (csrc/moe/topk_softmax_kernels.cu). `topkGating` is compiled for numbers of experts that lanes of a warp
share out evenly: a row takes as many lanes as leave each a vector, a warp as many rows as fit. Others take a CTA a
token in two kernels. Instructions are those that Nsight Compute counted on H100 (vLLM 0.24, CUDA 13), in classes as in
`steps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, RegisterTile, RoleBuilder, View
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import looked_up
from workloads.gpu.moe.product import in_a_row
from workloads.gpu.moe.steps import alone, chain, sample
from workloads.gpu.overhead import DEPENDENT_CYCLES
from workloads.gpu.pointwise import lanes
from workloads.gpu.pointwise.lanes import Cost
from workloads.ops import Moe
from workloads.ops.base import Array

WARPS, REGISTERS, CODE_BYTES = 4, 39, 16_384
LARGEST, ODD_LARGEST, ODD_STEP, ODD_BYTES = 512, 576, 64, 4
"""Experts that `topkGating` is compiled for: powers of two, and multiples of 64, of which a lane reads 4 B at once."""
SETUP: Cost = {"iadd.int32": 6.0, "ffma.fp32": 15.0}
"""Up to the first load."""
BEHIND: Cost = {"iadd.int32": 17.0, "ffma.fp32": 47.0, "rcp.fp32": 1.0}
"""Before the first choice and behind the last."""
ELEMENT: Cost = {"iadd.int32": 3.75, "ffma.fp32": 13.0, "ex2.fp32": 1.0}
"""Of an expert of a lane: conversion, maximum, exponential, sum, quotient, whether it is infinite, no bias. With 8 of
them 228 instructions a warp before the first choice, 10 of them shuffles, and 21 behind the last."""
CHOICE: Cost = {"iadd.int32": 16.0, "ffma.fp32": 26.0}
CHOICE_ELEMENT: Cost = {"iadd.int32": 4.5, "ffma.fp32": 1.0}
CHOICE_STEP: Cost = {"shfl.b32": 3.0, "iadd.int32": 8.0}
"""Of a choice, of each expert of a lane, and of each step over the lanes, in which a maximum, its number and its weight
change places: 147 instructions a choice with 8 experts on each of 32 lanes, three of them stores."""
CHOICE_PATH, ELEMENT_PATH, STEP_PATH = 26 * DEPENDENT_CYCLES, 2 * DEPENDENT_CYCLES, 44
"""Cycles of a choice one after the other: 26 instructions; a comparison and a selection; a shuffle and five more."""
SHARE: Cost = {"iadd.int32": 0.75, "ffma.fp32": 9.75, "rcp.fp32": 1.0}
"""Of the division of a choice by the sum of all."""
SHARED_SECTOR = 2
"""Weights that are read back at one trip to the L2. Each is read behind the store of the one before to the same sector;
how many of these loads the L1 answers is not constant (52 and 40 % with 96 and 80 CTAs, 13 % with 1024, all
of one CTA)."""
CTA_WARPS = 8
"""Of the CTA that a token has in two kernels; their instructions are not counted, but for what the source has."""
LOOP: Cost = {"iadd.int32": 6.0, "ffma.fp32": 6.0}
PRIOR: Cost = {"iadd.int32": 4.0, "ffma.fp32": 2.0}


def makes(op: Moe) -> bool:
    """Whether `topkGating` is compiled for the layer's number of experts."""
    power = op.experts & (op.experts - 1) == 0
    return op.experts <= LARGEST if power else op.experts % ODD_STEP == 0 and op.experts <= ODD_LARGEST


@dataclass(frozen=True)
class ExpertChoices:
    """What the choice leaves: ids, weights and a third number of each choice, seen one after the other; unscaled:
    weights before they are divided by their sum, a pair of a warp's choices a sector. shares: probabilities of all
    experts, where a kernel of its own leaves them.

    rows: of a warp. Its choices lie together in its part of the tensors, as many at once as it has rows. That the
    kernel's own order is another one changes neither what is moved nor the numbers in the end.
    """

    ids: GlobalTensor
    weights: GlobalTensor
    order: GlobalTensor
    unscaled: GlobalTensor
    shares: GlobalTensor | None
    rows: int
    topk: int

    @classmethod
    def of(cls, op: Moe, ids: GlobalTensor, weights: GlobalTensor, logits: str) -> ExpertChoices:
        """With tensors for what only these kernels use. logits: their format."""
        flat = op.tokens * op.topk
        rows = WARP_SIZE // _across(op, logits) if makes(op) else 1
        parts, width = ceil_div(op.tokens, rows), max(8, SHARED_SECTOR * rows)
        shape = (ceil_div(op.topk, SHARED_SECTOR), parts, width)
        unscaled = GlobalTensor("unscaled", shape, "fp32", (parts * width, width, 1), "scratch")
        shares = None
        if not makes(op):
            shares = GlobalTensor("shares", (op.tokens, op.experts), "fp32", (op.experts, 1), "scratch")
        in_turn = GlobalTensor("weights_in_a_row", (1, flat), "fp32", (flat, 1), "scratch", alias=weights.name)
        order = GlobalTensor("order", (1, flat), "int32", (flat, 1), "scratch")
        return cls(in_a_row(ids), in_turn, order, unscaled, shares, rows, op.topk)

    @property
    def scratch(self) -> tuple[GlobalTensor, ...]:
        """Tensors of its own."""
        own = (self.order, self.unscaled, self.weights)
        return own if self.shares is None else (*own, self.shares)

    def part(self, tensor: GlobalTensor, token: Expr, i: int) -> View:
        """Choices number i of the rows of a warp from `token` on."""
        return tensor[0:1, token * self.topk + i * self.rows : self.rows]  # type: ignore[misc]

    def unscaled_part(self, token: Expr, i: int) -> View:
        """The same before the division."""
        pair, place = divmod(i, SHARED_SECTOR)
        return self.unscaled[pair, token // self.rows, place * self.rows : self.rows]  # type: ignore[misc]

    def store(self, r: RoleBuilder, token: Expr, i: int, weights: View, numbers: View) -> None:
        """What a choice leaves."""
        r.stg(self.unscaled_part(token, i), weights, vector_bytes=4)
        for tensor in (self.ids, self.order):
            r.stg(self.part(tensor, token, i), numbers, vector_bytes=4)


def _own(op: Moe, logits: str) -> int:
    """Experts of a lane."""
    size = DTYPE_BYTES[logits]
    vector = min(lanes.MAX_VECTOR_BYTES if op.experts & (op.experts - 1) == 0 else ODD_BYTES, op.experts * size)
    return max(vector // size, op.experts // WARP_SIZE)


def _across(op: Moe, logits: str) -> int:
    """Lanes of a row."""
    return op.experts // _own(op, logits)


def choose_experts(op: Moe, spec: GpuSpec, logits: GlobalTensor, chosen: ExpertChoices) -> list[Kernel]:
    """The kernels."""
    if chosen.shares is None:
        return [_gating(op, spec, logits, chosen)]
    return [_softmax(op, spec, logits, chosen.shares), _largest(op, spec, chosen, chosen.shares)]


def _weights(op: Moe, values: Array, token: int) -> Array:
    """Of the choices of the rows from `token` on, in a row."""
    rows = np.minimum(np.arange(token, token + len(values)), op.tokens - 1)
    exponents = np.exp(np.take_along_axis(values.astype(np.float64), op.ids[rows], axis=1))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True)).reshape(1, -1)


def _numbers(op: Moe, rows: int, token: int) -> Array:
    """Experts of these choices."""
    return op.ids[np.minimum(np.arange(token, token + rows), op.tokens - 1)].astype(np.float64).reshape(1, -1)


def _gating(op: Moe, spec: GpuSpec, logits: GlobalTensor, chosen: ExpertChoices) -> Kernel:
    own, across, rows = _own(op, logits.dtype), _across(op, logits.dtype), chosen.rows
    vector = math.gcd(lanes.MAX_VECTOR_BYTES, own * DTYPE_BYTES[logits.dtype])
    steps = int(math.log2(across))
    simulated, sampled = sample(ceil_div(op.tokens, WARPS * rows), (12 + 8 * op.topk) * WARPS)
    k = KernelBuilder("topk_softmax", (len(simulated), 1, 1), code_bytes=CODE_BYTES)
    row = RegisterTile("logits", (rows, op.experts), logits.dtype)
    flat = rows * op.topk
    picked, numbers = RegisterTile("w", (1, flat), "fp32"), RegisterTile("ids", (1, flat), "int32")
    with k.role("warps", WARPS, REGISTERS + own - 8) as r:
        token = r.assign("token", ((looked_up(simulated, CTA_X) if sampled else CTA_X) * WARPS + WARP) * rows)
        alone(r, spec, SETUP)
        with r.when(token < op.tokens):
            r.ldg(row.whole, logits[token:rows, :], into="row", vector_bytes=vector)  # type: ignore[misc]
            lanes.write(
                r, spec, lanes.total(BEHIND, lanes.scaled(ELEMENT, own)), dst=picked.whole, srcs=(row.whole,),
                compute=lambda _, values, t: _weights(op, values, t), indices=(token,), after=("row",),
            )  # fmt: skip
            if steps:
                first = picked[:, 0:rows]  # type: ignore[misc]
                lanes.warp_reduce(r, "fmnmx", first, 1, across)
                lanes.warp_reduce(r, "fadd", first, 1, across)
            r.run(
                "iadd", 1, dtype="int32", dst=numbers.whole, indices=(token,), nominal=True,
                compute=lambda _, t: _numbers(op, rows, t),
            )  # fmt: skip
            cost = lanes.total(CHOICE, lanes.scaled(CHOICE_ELEMENT, own), lanes.scaled(CHOICE_STEP, steps))
            path = chain(spec, cost, CHOICE_PATH + ELEMENT_PATH * own + STEP_PATH * steps)
            for i in range(op.topk):
                one = picked[:, i * rows : rows]  # type: ignore[misc]
                lanes.write(r, spec, cost, dst=one, srcs=(one,), compute=lanes.keep, chain=path)
                chosen.store(r, token, i, one, numbers[:, i * rows : rows])  # type: ignore[misc]
            _share(r, spec, chosen, token)
    return replace(k.build(), stands_for=sampled)


def _share(r: RoleBuilder, spec: GpuSpec, chosen: ExpertChoices, token: Expr) -> None:
    """Divides the weights of each token by their sum: each is read back."""
    one = RegisterTile("one", (1, chosen.rows), "fp32")
    path = chain(spec, SHARE, lanes.instruction(spec, "rcp.fp32").latency_cycles + 5 * DEPENDENT_CYCLES)
    for i in range(chosen.topk):
        r.ldg(one.whole, chosen.unscaled_part(token, i), into="again", vector_bytes=4)
        lanes.write(r, spec, SHARE, dst=one.whole, srcs=(one.whole,), compute=lanes.keep, after=("again",), chain=path)
        r.stg(chosen.part(chosen.weights, token, i), one.whole, vector_bytes=4)


def _softmax(op: Moe, spec: GpuSpec, logits: GlobalTensor, shares: GlobalTensor) -> Kernel:
    """`moeSoftmax`: probabilities of all experts of a token, by a maximum and a sum over a CTA."""
    simulated, sampled = sample(op.tokens, 30 * CTA_WARPS)
    k = KernelBuilder("softmax", (len(simulated), 1, 1), code_bytes=CODE_BYTES // 4)
    block = lanes.BlockReduction(k, CTA_WARPS)
    size = DTYPE_BYTES[logits.dtype]
    row, out, part = (
        RegisterTile(name, (1, WARP_SIZE if name != "part" else 1), dtype)
        for name, dtype in (("row", logits.dtype), ("out", "fp32"), ("part", "fp32"))
    )
    trips = ceil_div(op.experts, CTA_WARPS * WARP_SIZE)
    with k.role("warps", CTA_WARPS, REGISTERS) as r:
        token = r.assign("token", looked_up(simulated, CTA_X) if sampled else CTA_X)
        alone(r, spec, SETUP)
        for i, opcode in enumerate(("fmnmx", "fadd")):
            for j in range(trips):
                at = (j * CTA_WARPS + WARP) * WARP_SIZE
                with r.when(at < op.experts):
                    r.ldg(row.whole, logits[token:1, at:WARP_SIZE], into="row", vector_bytes=size)  # type: ignore[misc]
                    cost = lanes.total(LOOP, {"ex2.fp32": float(i)})
                    lanes.write(r, spec, cost, dst=part.whole, srcs=(row.whole,), compute=_zeros, after=("row",))
            lanes.warp_reduce(r, opcode, part.whole, 1)
            block.write(r, WARP, part.whole, opcode, lambda _: np.zeros(1), again=False)
        for j in range(trips):
            at = (j * CTA_WARPS + WARP) * WARP_SIZE
            with r.when(at < op.experts):
                r.ldg(row.whole, logits[token:1, at:WARP_SIZE], into="row", vector_bytes=size)  # type: ignore[misc]
                cost = lanes.total(LOOP, {"ex2.fp32": 1.0})
                lanes.write(
                    r, spec, cost, dst=out.whole, srcs=(row.whole, part.whole), after=("row",),
                    compute=lambda _, values, __: values.astype(np.float64),
                )  # fmt: skip
                r.stg(shares[token:1, at:WARP_SIZE], out.whole, vector_bytes=4)  # type: ignore[misc]
    return replace(k.build(), stands_for=sampled)


def _largest(op: Moe, spec: GpuSpec, chosen: ExpertChoices, shares: GlobalTensor) -> Kernel:
    """`moeTopK`: each choice reads the probabilities again, and for each thread the choices before, one by one; then a
    maximum over the CTA. One thread divides by their sum."""
    simulated, sampled = sample(op.tokens, (12 + op.topk) * op.topk * CTA_WARPS)
    k = KernelBuilder("topk", (len(simulated), 1, 1), code_bytes=CODE_BYTES // 4)
    block = lanes.BlockReduction(k, CTA_WARPS)
    row, prior = RegisterTile("row", (1, WARP_SIZE), "fp32"), RegisterTile("prior", (1, 1), "fp32")
    part, picked = RegisterTile("part", (1, 1), "fp32"), RegisterTile("picked", (1, op.topk), "fp32")
    everything = RegisterTile("everything", (1, op.experts), "fp32")
    numbers = RegisterTile("numbers", (1, op.topk), "int32")
    trips = ceil_div(op.experts, CTA_WARPS * WARP_SIZE)
    with k.role("warps", CTA_WARPS, REGISTERS) as r:
        token = r.assign("token", looked_up(simulated, CTA_X) if sampled else CTA_X)
        alone(r, spec, SETUP)
        for i in range(op.topk):
            for j in range(trips):
                at = (j * CTA_WARPS + WARP) * WARP_SIZE
                with r.when(at < op.experts):
                    r.ldg(row.whole, shares[token:1, at:WARP_SIZE], into="row", vector_bytes=4)  # type: ignore[misc]
                    lanes.write(r, spec, LOOP, dst=part.whole, srcs=(row.whole,), compute=_zeros, after=("row",))
                    for before in range(i):  # stands for a choice, which lies beside it
                        r.ldg(prior.whole, shares[token:1, before:1], into="prior", vector_bytes=4)
                        lanes.write(
                            r, spec, PRIOR, dst=prior.whole, srcs=(prior.whole,), compute=lanes.keep, after=("prior",)
                        )
            lanes.warp_reduce(r, "fmnmx", part.whole, 2)
            block.write(r, WARP, part.whole, "fmnmx", lambda _: np.zeros(1), again=False)
            with r.when(WARP.equals(0)):
                if not i:
                    r.ldg(everything.whole, shares[token:1, :], into="row", vector_bytes=4)  # type: ignore[misc]
                    r.run(
                        "ffma", 1, dtype="fp32", dst=picked.whole, srcs=(everything.whole,), indices=(token,),
                        compute=lambda _, values, t: _weights(op, values, t), after=("row",), nominal=True,
                    )  # fmt: skip
                    r.run(
                        "iadd", 1, dtype="int32", dst=numbers.whole, indices=(token,), nominal=True,
                        compute=lambda _, t: _numbers(op, 1, t),
                    )  # fmt: skip
                chosen.store(r, token, i, picked[:, i:1], numbers[:, i:1])  # type: ignore[misc]
            r.bar_sync(0, CTA_WARPS)
        with r.when(WARP.equals(0)):
            _share(r, spec, chosen, token)
    return replace(k.build(), stands_for=sampled)


def _zeros(old: Array, *_: Array) -> Array:
    return np.zeros(old.shape)
