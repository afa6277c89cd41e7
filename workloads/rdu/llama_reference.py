"""Numbers for decoder layers shared by devices: operands, and what NumPy gives for them in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import round_to
from sim.rdu.program import Program
from workloads.graphs.llama import Llama
from workloads.rdu.decoder import EPSILON

Array = NDArray[Any]

TOLERANCE = 0.03
"""Largest error, relative to the largest result, that a dozen roundings to bf16 a layer explain."""

_SHARED = ("x", "dy", "norm1", "norm2", "cos", "sin")
"""Tensors that all devices hold alike."""


def operands(op: Llama, program: Program, seed: int = 0) -> dict[str, Array]:
    """Input tensors of a program by name, [devices, ...]: sizes at which nothing over- or underflows."""
    rng = np.random.Generator(np.random.PCG64(seed))
    found = {}
    for tensor in program.tensors:
        if tensor.role != "input":
            continue
        if tensor.name in ("cos", "sin"):
            positions = np.array([op.seq - 1]) if op.phase == "decode" else np.arange(tensor.shape[0])
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
    sizes = op.sizes
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


def expected(op: Llama, given: Mapping[str, Array]) -> dict[str, Array]:
    """Every output of a program by name: of all devices, or [1, ...] where they are the same on all."""
    if op.phase != "training":
        return {"y": result(op, given)[None]}
    y = result(op, given)
    return {"y": y[None], **_gradients(op, given)}


def _gradients(op: Llama, given: Mapping[str, Array]) -> dict[str, Array]:
    """The backward pass of one layer, step by step as it is derived by hand; gradients of weights by device."""
    sizes = op.sizes
    d = sizes.hidden // sizes.heads
    extents = sizes.heads // op.tp, max(1, sizes.kv_heads // op.tp), d
    x, dy = (np.asarray(given[name][0], np.float64) for name in ("x", "dy"))
    h1 = _norm(x, given["norm1"][0, 0])
    attended = [_attention(op, h1 @ given["qkv_weight"][dev, 0], given, dev, 0, extents) for dev in range(op.tp)]
    middle = x + sum(attended[dev] @ given["wo_weight"][dev, 0] for dev in range(op.tp))
    h2 = _norm(middle, given["norm2"][0, 0])
    found: dict[str, list[Array]] = {f"d_{name}": [] for name in ("gate", "up", "down", "wo", "qkv")}
    dh2 = np.zeros_like(x)
    for dev in range(op.tp):
        gate, up, down = (given[f"{name}_weight"][dev, 0] for name in ("gate", "up", "down"))
        g, u = h2 @ gate, h2 @ up
        s = 1 / (1 + np.exp(-g))
        da = dy @ down.T
        dg, du = da * u * s * (1 + g * (1 - s)), da * g * s
        found["d_down"].append((g * s * u).T @ dy)
        found["d_gate"].append(h2.T @ dg)
        found["d_up"].append(h2.T @ du)
        dh2 = dh2 + dg @ gate.T + du @ up.T
    dmiddle, dnorm2 = _norm_slope(middle, given["norm2"][0, 0], dh2)
    dmiddle = dmiddle + dy
    dh1 = np.zeros_like(x)
    for dev in range(op.tp):
        wo, qkv = given["wo_weight"][dev, 0], given["qkv_weight"][dev, 0]
        found["d_wo"].append(attended[dev].T @ dmiddle)
        dqkv = _attention_slope(op, h1 @ qkv, dmiddle @ wo.T, given, extents)
        found["d_qkv"].append(h1.T @ dqkv)
        dh1 = dh1 + dqkv @ qkv.T
    dx, dnorm1 = _norm_slope(x, given["norm1"][0, 0], dh1)
    shared = {"dx": dx + dmiddle, "d_norm1": dnorm1[None], "d_norm2": dnorm2[None]}
    return {name: np.stack(each) for name, each in found.items()} | {name: a[None] for name, a in shared.items()}


def _norm_slope(x: Array, weight: Array, dh: Array) -> tuple[Array, Array]:
    """Gradients of a norm's operand and weight."""
    root = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)
    unit, scaled = x * root, dh * weight
    return root * (scaled - unit * (scaled * unit).mean(axis=1, keepdims=True)), (dh * unit).sum(axis=0)


def _attention_slope(
    op: Llama, qkv: Array, do: Array, given: Mapping[str, Array], extents: tuple[int, int, int]
) -> Array:
    """Gradient of queries, keys and values before rotary positions, [tokens, (heads + 2 kv) * d]."""
    heads, kv, d = extents
    cos, sin = (np.asarray(given[name][0])[:, None, :] for name in ("cos", "sin"))
    found = np.empty_like(qkv)
    for b in range(op.batch):
        at = slice(b * op.seq, (b + 1) * op.seq)
        rows = qkv[at].reshape(op.seq, heads + 2 * kv, d)
        q, k = (_turn(part, cos, sin) for part in (rows[:, :heads], rows[:, heads : heads + kv]))
        v, dout = rows[:, heads + kv :], do[at].reshape(op.seq, heads, d)
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for head in range(heads):
            own = head * kv // heads
            s = np.where(np.tri(op.seq, dtype=bool), q[:, head] @ k[:, own].T / math.sqrt(d), -np.inf)
            p = np.exp(s - s.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            dp = dout[:, head] @ v[:, own].T
            ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) / math.sqrt(d)
            dq[:, head] = ds @ k[:, own]
            dk[:, own] += ds.T @ q[:, head]
            dv[:, own] += p.T @ dout[:, head]
        whole = np.concatenate([_turn_back(dq, cos, sin), _turn_back(dk, cos, sin), dv], axis=1)
        found[at] = whole.reshape(op.seq, -1)
    return found


def _turn_back(x: Array, cos: Array, sin: Array) -> Array:
    """The transpose of a rotary turn."""
    half = x.shape[-1] // 2
    turned = x * sin
    return x * cos + np.concatenate([turned[..., half:], -turned[..., :half]], axis=-1)


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
