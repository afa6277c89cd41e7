"""Valid inputs from which cases are made."""

from __future__ import annotations

import json
from typing import Any

PRESET = """base: t4
title: a board of one's own
sm: {count: [20, mine], max_warps: 32}
l2: {size: [2 MiB, mine, half]}
dram: {bandwidth: 100 GB/s}
sources: {mine: "assumed: a guess"}
instructions:
  ffma.fp32: [fma, 2, 4, mine]
"""

CONFIG = """tolerance = "1 %"
[[case]]
name = "a"
arch = ["t4", "h100-sxm"]
workload = "gemm m=64 n=64 k=64 dtype=fp16"
schedule = "auto"
set = ["sm.count=20"]
l2 = "warm"
exact = true
"""

PROGRAM = """read_weights address=0 rows=256
matrix_multiply ub=0 pitch=256 rows=4 depth=4 columns=4 acc=0
activate acc=0 ub=65536 pitch=256 rows=4 columns=4 function=identity
halt
"""


TOPOLOGY = """Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
first, 12, 9, 3, 3, 4, 8, 2,
DP_second, 8, 8, 3, 3, 4, 1, 1, 1:1,
"""

SCALESIM = """[general]
run_name = "run"
[architecture_presets]
ArrayHeight: 32
ArrayWidth: 32
IfmapSramSzkB: 64
FilterSramSzkB: 64
OfmapSramSzkB: 64
Dataflow: ws
Bandwidth: 10, 20, 30
[run_presets]
InterfaceBandwidth: USER
"""


LOCK = (
    'format = 2\nversion = "0"\n\n[case."a"]\narch = "t4"\nworkload = "gemm m=64 n=64 k=64"\nmachine = "00"\n'
    'kernels = "11"\nschedule = "mma"\ncycles = 5\ntime_ps = 7\nclock_hz = 9\nenergy_fj = 8\ncounters.ctas = 3\n'
    "stalls.warps.wait = 1.5\n"
)

REPORT = json.dumps(
    {
        "schema_version": "2.0", "machine": "t4", "family": "gpu", "workload": "gemm m=64", "dtype": "fp16",
        "schedule": "mma", "scope": "kernel", "cycles": 100, "clock_hz": 10**9, "time_us": 0.1, "flops": 4,
        "macs": 2, "bound": "latency", "bytes": {"dram": {"read": 4, "write": 2}}, "energy_j": 1e-6,
        "stalls": {"warps": {"wait": 0.25, "selected": 0.75}}, "kernels": [], "gpu": {"counters": {"ctas": 1}},
        "overrides": {}, "asked": {}, "conditions": {},
    }
)  # fmt: skip
"""A small report as `run --json` prints it."""

NOTEBOOK = json.dumps(
    {
        "metadata": {"tilewave": {"lab": "roofline"}},
        "cells": [{"cell_type": "code", "metadata": {"tags": ["answer"]}, "source": ["change = 3"], "outputs": []}],
    }
)
"""A lab's notebook. It is only read: to grade it would execute it."""

_MM = {"External id": 1, "Concrete Inputs": ["", ""], "Input type": ["c10::BFloat16", "c10::BFloat16"],
       "Input Strides": [[32, 1], [1, 32]], "Input Dims": [[64, 32], [32, 16]]}  # fmt: skip
_SUM = {
    "External id": 2,
    "Concrete Inputs": ["", "[-1]", "True", ""],
    "Input type": ["float", "ScalarList", "Scalar", ""],
    "Input Strides": [[32, 1], [], [], []],
    "Input Dims": [[64, 32], [], [], []],
}
_NCCL = {"correlation": 3, "Collective name": "allreduce", "In msg nelems": 64, "Group size": 2, "dtype": "BFloat16"}
_EVENTS = [
    {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9, "args": _MM},
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 1, "args": {"correlation": 1}},
    {"cat": "kernel", "name": "gemm", "ts": 5, "dur": 4.5, "args": {"correlation": 1}},
    {"cat": "cpu_op", "name": "aten::sum", "ts": 11, "dur": 9, "args": _SUM},
    {"cat": "kernel", "name": "void reduce()", "ts": 15, "dur": 2, "args": {"External id": 2, "correlation": 2}},
    {"cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 19, "dur": 9, "args": _NCCL},
    {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 30, "dur": 1, "args": {"bytes": 128}},
]
TRACE = json.dumps({"deviceProperties": [{"name": "NVIDIA H100"}],
                    "traceEvents": [{"ph": "X", "pid": 1, "tid": 1, **event} for event in _EVENTS]})  # fmt: skip

_DECODER = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
            "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 256}  # fmt: skip
_EXPERTS = _DECODER | {"model_type": "qwen3_moe", "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
                       "moe_intermediate_size": 32}  # fmt: skip
_LATENT = _DECODER | {
    "model_type": "deepseek_v3", "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "moe_intermediate_size": 32, "num_key_value_heads": 4,
}  # fmt: skip
_WINDOWS = _DECODER | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}
MODELS = tuple(json.dumps(one) for one in (_DECODER, _EXPERTS, _LATENT, _WINDOWS))
"""Configurations of small models, as `config.json` has them."""


def bomb(packing: Any) -> bytes:
    """Zeros that take 4 GiB once they are unpacked. packing: a module that packs."""
    return packing.compress(bytes(64 << 20)) * 64
