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
from sim.gpu.language import CTA_X, WARP, Expr, GlobalTensor, Kernel, KernelBuilder, RegisterTile, RoleBuilder
from workloads.gpu.gemm.problem import ceil_div
from workloads.gpu.gemm.threadblock import WARP_SIZE
from workloads.gpu.moe.blocks import looked_up
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
class Chosen:
    """What the choice leaves: ids, weights and a third number of each choice; unscaled: weights before they are divided
    by their sum, a pair a sector. shares: probabilities of all experts, where a kernel of its own leaves them."""

    ids: GlobalTensor
    weights: GlobalTensor
    order: GlobalTensor
    unscaled: GlobalTensor
    shares: GlobalTensor | None

    @classmethod
    def of(cls, op: Moe, ids: GlobalTensor, weights: GlobalTensor) -> Chosen:
        """With tensors for what only these kernels use."""
        order = GlobalTensor("order", ids.shape, "int32", (ids.shape[1], 1), "scratch")
        pairs, sector = ceil_div(op.topk, SHARED_SECTOR), 8
        shape, strides = (pairs, op.tokens, sector), (op.tokens * sector, sector, 1)
        shares = None
        if not makes(op):
            shares = GlobalTensor("shares", (op.tokens, op.experts), "fp32", (op.experts, 1), "scratch")
        return cls(ids, weights, order, GlobalTensor("unscaled", shape, "fp32", strides, "scratch"), shares)

    @property
    def scratch(self) -> tuple[GlobalTensor, ...]:
        """Tensors of its own."""
        return (self.order, self.unscaled) if self.shares is None else (self.order, self.unscaled, self.shares)


def choose_experts(op: Moe, spec: GpuSpec, logits: GlobalTensor, chosen: Chosen) -> list[Kernel]:
    """The kernels."""
    if chosen.shares is None:
        return [_gating(op, spec, logits, chosen)]
    return [_softmax(op, spec, logits, chosen.shares), _largest(op, spec, chosen, chosen.shares)]


def _weights(op: Moe, values: Array, token: int) -> Array:
    """Of the choices of the rows from `token` on."""
    rows = np.minimum(np.arange(token, token + len(values)), op.tokens - 1)
    exponents = np.exp(np.take_along_axis(values.astype(np.float64), op.ids[rows], axis=1))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def _gating(op: Moe, spec: GpuSpec, logits: GlobalTensor, chosen: Chosen) -> Kernel:
    size = DTYPE_BYTES[logits.dtype]
    power = op.experts & (op.experts - 1) == 0
    vector = min(lanes.MAX_VECTOR_BYTES if power else ODD_BYTES, op.experts * size)
    own = max(vector // size, op.experts // WARP_SIZE)
    across = op.experts // own
    rows = WARP_SIZE // across
    steps = int(math.log2(across))
    simulated, sampled = sample(ceil_div(op.tokens, WARPS * rows), (12 + 8 * op.topk) * WARPS)
    k = KernelBuilder("topk_softmax", (len(simulated), 1, 1), code_bytes=CODE_BYTES)
    row = RegisterTile("logits", (rows, op.experts), logits.dtype)
    picked, numbers = (RegisterTile(name, (rows, op.topk), dtype) for name, dtype in (("w", "fp32"), ("ids", "int32")))
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
                lanes.warp_reduce(r, "fmnmx", picked.whole, 1, across)
                lanes.warp_reduce(r, "fadd", picked.whole, 1, across)
            r.run(
                "iadd", 1, dtype="int32", dst=numbers.whole, indices=(token,), nominal=True,
                compute=lambda old, t: op.ids[np.minimum(np.arange(t, t + len(old)), op.tokens - 1)].astype(np.float64),
            )  # fmt: skip
            cost = lanes.total(CHOICE, lanes.scaled(CHOICE_ELEMENT, own), lanes.scaled(CHOICE_STEP, steps))
            path = chain(spec, cost, CHOICE_PATH + ELEMENT_PATH * own + STEP_PATH * steps)
            for i in range(op.topk):
                one, number = picked[:, i:1], numbers[:, i:1]  # type: ignore[misc]
                lanes.write(r, spec, cost, dst=one, srcs=(one,), compute=lanes.keep, chain=path)
                pair, place = divmod(i, SHARED_SECTOR)
                r.stg(chosen.unscaled[pair, token:rows, place:1], one, vector_bytes=4)  # type: ignore[misc]
                r.stg(chosen.ids[token:rows, i:1], number, vector_bytes=4)  # type: ignore[misc]
                r.stg(chosen.order[token:rows, i:1], number, vector_bytes=4)  # type: ignore[misc]
            _share(r, op, spec, chosen, token, rows)
    return replace(k.build(), stands_for=sampled)


def _share(r: RoleBuilder, op: Moe, spec: GpuSpec, chosen: Chosen, token: Expr, rows: int) -> None:
    """Divides the weights of each token by their sum: each is read back."""
    one = RegisterTile("one", (rows, 1), "fp32")
    path = chain(spec, SHARE, lanes.instruction(spec, "rcp.fp32").latency_cycles + 5 * DEPENDENT_CYCLES)
    for i in range(op.topk):
        pair, place = divmod(i, SHARED_SECTOR)
        r.ldg(one.whole, chosen.unscaled[pair, token:rows, place:1], into="again", vector_bytes=4)  # type: ignore[misc]
        lanes.write(r, spec, SHARE, dst=one.whole, srcs=(one.whole,), compute=lanes.keep, after=("again",), chain=path)
        r.stg(chosen.weights[token:rows, i:1], one.whole, vector_bytes=4)  # type: ignore[misc]


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


def _largest(op: Moe, spec: GpuSpec, chosen: Chosen, shares: GlobalTensor) -> Kernel:
    """`moeTopK`: each choice reads the probabilities again, and for each thread the choices before, one by one; then a
    maximum over the CTA. One thread divides by their sum."""
    simulated, sampled = sample(op.tokens, (12 + op.topk) * op.topk * CTA_WARPS)
    k = KernelBuilder("topk", (len(simulated), 1, 1), code_bytes=CODE_BYTES // 4)
    block = lanes.BlockReduction(k, CTA_WARPS)
    row, prior = (RegisterTile("row", (1, WARP_SIZE), "fp32"), RegisterTile("prior", (1, 1), "int32"))
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
                    for before in range(i):
                        r.ldg(prior.whole, chosen.ids[token:1, before:1], into="prior", vector_bytes=4)  # type: ignore[misc]
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
                        compute=lambda _, t: op.ids[t][None, :].astype(np.float64),
                    )  # fmt: skip
                pair, place = divmod(i, SHARED_SECTOR)
                r.stg(chosen.unscaled[pair, token:1, place:1], picked[:, i:1], vector_bytes=4)  # type: ignore[misc]
                r.stg(chosen.ids[token:1, i:1], numbers[:, i:1], vector_bytes=4)  # type: ignore[misc]
                r.stg(chosen.order[token:1, i:1], numbers[:, i:1], vector_bytes=4)  # type: ignore[misc]
            r.bar_sync(0, CTA_WARPS)
        with r.when(WARP.equals(0)):
            _share(r, op, spec, chosen, token, 1)
    return replace(k.build(), stands_for=sampled)


def _zeros(old: Array, *_: Array) -> Array:
    return np.zeros(old.shape)
