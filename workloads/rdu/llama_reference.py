"""Numbers for decoder layers shared by devices: operands, and what NumPy gives for them in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import round_to
from sim.rdu.program import Program
from workloads.graphs.llama import MODELS, Llama
from workloads.rdu.llama import EPSILON

Array = NDArray[Any]

TOLERANCE = 0.03
"""Largest error, relative to the largest result, that a dozen roundings to bf16 a layer explain."""

_SHARED = ("x", "norm1", "norm2", "cos", "sin")
"""Tensors that all devices hold alike."""


def operands(op: Llama, program: Program, seed: int = 0) -> dict[str, Array]:
    """Input tensors of a program by name, [devices, ...]: sizes at which nothing over- or underflows."""
    rng = np.random.Generator(np.random.PCG64(seed))
    found = {}
    for tensor in program.tensors:
        if tensor.role != "input":
            continue
        if tensor.name in ("cos", "sin"):
            positions = np.arange(tensor.shape[0]) if op.phase == "prefill" else np.array([op.seq - 1])
            angles = positions[:, None] * 10000.0 ** (-2 * (np.arange(tensor.shape[1]) // 2) / tensor.shape[1])
            values = (np.cos if tensor.name == "cos" else np.sin)(angles)[None]
        else:
            devices = 1 if tensor.name in _SHARED else op.tp
            scale = 1 / math.sqrt(tensor.shape[1]) if tensor.name.endswith("_weight") else 1.0
            values = scale * rng.standard_normal((devices, *tensor.shape))
        stored = round_to(values, tensor.dtype)
        found[tensor.name] = np.broadcast_to(stored, (op.tp, *tensor.shape))
    return found


def result(op: Llama, given: Mapping[str, Array]) -> Array:
    """Result of every layer whose weights are given, [layers, tokens, hidden].

    Layers that are launched one by one have one set: their launches differ in addresses alone.
    """
    sizes = MODELS[op.model]
    d = sizes.hidden // sizes.heads
    heads, kv = sizes.heads // op.tp, max(1, sizes.kv_heads // op.tp)
    x = np.asarray(given["x"][0], np.float64)
    results = []
    for layer in range(given["norm1"].shape[1]):
        h = _norm(x, given["norm1"][0, layer])
        x = x + sum(
            _attention(op, h @ given["qkv_weight"][dev, layer], given, dev, layer, (heads, kv, d))
            @ given["wo_weight"][dev, layer]
            for dev in range(op.tp)
        )
        h = _norm(x, given["norm2"][0, layer])
        for_all = 0.0
        for dev in range(op.tp):
            gate, up = h @ given["gate_weight"][dev, layer], h @ given["up_weight"][dev, layer]
            for_all = for_all + (gate / (1 + np.exp(-gate)) * up) @ given["down_weight"][dev, layer]
        x = x + for_all
        results.append(x)
    return np.stack(results)


def _norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight


def _attention(
    op: Llama, qkv: Array, given: Mapping[str, Array], dev: int, layer: int, extents: tuple[int, int, int]
) -> Array:
    """Attended values of one device, [tokens, heads * d]."""
    heads, kv, d = extents
    tokens = len(qkv) // op.batch
    cos, sin = (np.asarray(given[name][0])[:, None, :] for name in ("cos", "sin"))
    out = np.empty((len(qkv), heads * d))
    for b in range(op.batch):
        rows = qkv[b * tokens : (b + 1) * tokens].reshape(tokens, heads + 2 * kv, d)
        q, k = (_turn(part, cos, sin) for part in (rows[:, :heads], rows[:, heads : heads + kv]))
        v = rows[:, heads + kv :]
        if op.phase == "decode":
            past = op.seq - 1
            k = np.concatenate([given["keys"][dev, layer, b, :past], k])
            v = np.concatenate([given["values"][dev, layer, b, :past], v])
        seen = np.arange(len(k))[None, :] <= np.arange(tokens)[:, None] + len(k) - tokens
        for head in range(heads):
            own = head * kv // heads
            s = np.where(seen, q[:, head] @ k[:, own].T / math.sqrt(d), -np.inf)
            p = np.exp(s - s.max(axis=1, keepdims=True))
            out[b * tokens : (b + 1) * tokens, head * d : (head + 1) * d] = p / p.sum(axis=1, keepdims=True) @ v[:, own]
    return out


def _turn(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin
