"""Tables of operators in the forms of AIConfigurator, Vidur and LLMServingSim, as their published files have them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from sim.app.cost import version
from sim.app.export.table import Decode, Dense, Prompts, Table
from workloads.ops import AllReduce, Gemm, Moe
from workloads.ops.attention import Attention

_FRAMEWORK = "tilewave"
_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp32": "float32"}
"""AIConfigurator's names of number formats."""
_STORED = {"int8": "int8_wo", "int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "nvfp4": "nvfp4"}
"""Its names of weights that are stored with fewer bits."""
_LATENT = "latent attention has tables of its own, which are not written; a model with heads of its own"


def aiconfigurator(table: Table, folder: Path) -> list[Path]:
    """`gemm_perf.txt`, `context_attention_perf.txt`, `generation_attention_perf.txt`, `moe_perf.txt` and
    `custom_allreduce_perf.txt` of a system's folder; latencies are milliseconds."""
    own = {
        "framework": _FRAMEWORK, "version": version(), "device": table.machine.name,
        "kernel_source": "simulated",
    }  # fmt: skip
    gemms, experts, sums = [], [], []
    for place in table.of(Dense):
        op, ms = table.ops[place], table.time_us(place) / 1000
        if isinstance(op, Gemm):
            gemms.append({"op_name": "gemm", "gemm_dtype": _format(op), "m": op.m, "n": op.n, "k": op.k, "latency": ms})
        elif isinstance(op, Moe):
            experts.append({
                "op_name": "moe", "moe_dtype": _format(op), "num_tokens": op.tokens,
                "hidden_size": op.hidden, "inter_size": op.inter, "topk": op.topk, "num_experts": op.experts,
                "moe_tp_size": op.tp, "moe_ep_size": op.ep, "distribution": op.distribution, "latency": ms,
            })  # fmt: skip
        elif isinstance(op, AllReduce):
            elements = op.bytes // DTYPE_BYTES[op.chosen_dtype]
            dtype = _FORMATS.get(op.chosen_dtype, op.chosen_dtype)
            sums.append({"op_name": "all_reduce", "allreduce_dtype": dtype, "num_gpus": op.devices,
                         "message_size": elements, "latency": ms})  # fmt: skip
    files = {
        "gemm_perf.txt": _distinct(gemms), "moe_perf.txt": experts, "custom_allreduce_perf.txt": _distinct(sums),
        "context_attention_perf.txt": _attentions(table, "context_attention"),
        "generation_attention_perf.txt": _attentions(table, "generation_attention"),
    }  # fmt: skip
    heads = ("framework", "version", "device", "op_name", "kernel_source")
    return [
        _written(folder / name, [{key: (own | row)[key] for key in (*heads, *row) if key in own | row} for row in rows])
        for name, rows in files.items()
        if rows
    ]


def _format(op: Gemm | Moe) -> str:
    """AIConfigurator's name of what a product multiplies."""
    if op.blockwise:
        return "fp8_block"
    return _STORED[op.weights] if op.weights != "same" else _FORMATS.get(op.chosen_dtype, op.chosen_dtype)


def _attentions(table: Table, name: str) -> list[dict[str, Any]]:
    """Rows of attention: prompts have all of their tokens new, a decode has `isl` keys before its `step`-th one."""
    found = []
    places: list[Prompts] | list[Decode] = table.of(Prompts) if name == "context_attention" else table.of(Decode)
    for place in places:
        op = _attention(table, place)
        dtype = _FORMATS.get(op.chosen_dtype, op.chosen_dtype)
        isl = place.tokens if isinstance(place, Prompts) else place.keys - 1
        found.append({
            "op_name": name, "batch_size": op.batch, "isl": isl, "num_heads": op.heads,
            "num_key_value_heads": op.key_heads, "head_dim": op.head_dim, "beam_width": 1, "attn_dtype": dtype,
            "kv_cache_dtype": dtype, "step": int(isinstance(place, Decode)), "latency": table.time_us(place) / 1000,
        })  # fmt: skip
    return found


def vidur(table: Table, folder: Path) -> list[Path]:
    """`mlp.csv` and `attention.csv` of a device and model, and `all_reduce.csv` of a node; times are milliseconds, and
    where Vidur has five statistics of many calls the simulated time is all of them and the deviation is 0."""
    asked, sizes = table.asked, table.asked.sizes
    if sizes.latent or sizes.experts:
        raise InputError(f"export vidur {asked.model}: Vidur has dense layers alone; export aiconfigurator")
    model = {"n_embd": sizes.hidden, "num_tensor_parallel_workers": asked.tp}
    names = {
        "emb": "embedding", "input_layernorm": "norm1", "attn_pre_proj": "qkv", "attn_rope": "rotary",
        "attn_post_proj": "out", "post_attention_layernorm": "norm2", "mlp_up_proj": "gate_up", "mlp_act": "act",
        "mlp_down_proj": "down", "add": "add",
    }  # fmt: skip
    mlp = []
    for tokens in sorted({dense.tokens for dense in table.of(Dense)}):
        row: dict[str, Any] = {}
        for name, role in names.items():
            dense = Dense(role, tokens)
            row |= _statistics(name, table.time_us(dense) / 1000 if dense in table.ops else 0.0)
        mlp.append({
            **row, "n_head": sizes.heads, "n_kv_head": sizes.kv_heads, "n_expanded_embd": sizes.ffn,
            "vocab_size": sizes.vocab, "use_gated_mlp": sizes.gated, "num_tokens": tokens, **model,
        })  # fmt: skip
    heads = {"n_q_head": sizes.heads, "n_kv_head": sizes.kv_heads, "block_size": asked.page_tokens,
             "max_model_len": asked.keys, "attention_backend": "AttentionBackend.FLASH_ATTENTION"}  # fmt: skip
    attention = []
    attended: list[Prompts | Decode] = [*table.of(Prompts), *table.of(Decode)]
    for place in attended:
        ms = table.time_us(place) / 1000
        prompt = place.tokens if isinstance(place, Prompts) else 0
        if prompt and place.batch > 1:
            continue  # Vidur's prompts come one by one
        attention.append({
            **_statistics("attn_prefill", ms if prompt else 0.0), **_statistics("attn_decode", 0.0 if prompt else ms),
            **_statistics("attn_kv_cache_save", _saved_ms(table, place)), **model, **heads,
            "batch_size": place.batch, "prefill_chunk_size": prompt,
            "kv_cache_size": place.keys if isinstance(place, Decode) else 0, "is_prefill": bool(prompt),
        })  # fmt: skip
    sums: list[dict[str, Any]] = [
        {
            **_statistics("all_reduce", table.time_us(dense) / 1000), "rank": 0, "num_workers": asked.tp,
            "size": op.bytes, "collective": "all_reduce", "devices_per_node": asked.tp,
        }
        for dense in table.of(Dense)
        if isinstance(op := table.ops[dense], AllReduce)
    ]  # fmt: skip
    compute = folder / "compute" / table.machine.name / asked.model
    network = folder / "network" / table.machine.name
    files: dict[Path, list[dict[str, Any]]] = {
        compute / "mlp.csv": mlp,
        compute / "attention.csv": attention,
        network / "all_reduce.csv": sums,
    }
    return [_written(path, rows) for path, rows in files.items() if rows]


def _saved_ms(table: Table, place: Prompts | Decode) -> float:
    """Milliseconds of writing the new tokens to the cache."""
    tokens = place.batch * (place.tokens if isinstance(place, Prompts) else 1)
    cache = Dense("cache", tokens)
    return table.time_us(cache) / 1000 if cache in table.ops else 0.0


def _statistics(name: str, ms: float) -> dict[str, float]:
    """Vidur's columns of one operator."""
    found = {f"time_stats.{name}.{statistic}": ms for statistic in ("min", "max", "mean", "median")}
    return {**found, f"time_stats.{name}.std": 0.0}


def llmservingsim(table: Table, folder: Path) -> list[Path]:
    """`dense.csv`, `per_sequence.csv` and `attention.csv` of a profile's folder, beside its `meta.yaml`; microseconds.
    Attention of prompts beside sequences that decode is the sum of both."""
    asked, sizes = table.asked, table.asked.sizes
    if sizes.latent or sizes.experts:
        raise InputError(f"export llmservingsim {asked.model}: dense layers alone; export aiconfigurator")
    names = {
        "embedding": "embedding", "norm1": "layernorm", "qkv": "qkv_proj", "rotary": "rotary_emb", "out": "o_proj",
        "gate_up": "gate_up_proj", "act": "act_fn", "down": "down_proj", "norm": "final_layernorm", "q_norm": "q_norm",
        "k_norm": "k_norm",
    }  # fmt: skip
    dense: list[dict[str, Any]] = []
    sequences: list[dict[str, Any]] = []
    for place in table.of(Dense):
        role, tokens = place.role, place.tokens
        time_us = round(table.time_us(place), 4)
        if role in names:
            dense.append({"layer": names[role], "tokens": tokens, "time_us": time_us})
        elif role == "head":
            sequences.append({"layer": "lm_head", "sequences": tokens, "time_us": time_us})
    sequences += [{**row, "layer": "sampler", "time_us": 0.0} for row in sequences]
    prompts = {place.tokens: table.time_us(place) for place in table.of(Prompts) if place.batch == 1}
    decodes = {(p.batch, p.keys): table.time_us(p) for p in table.of(Decode)}
    attention = [
        {"prefill_chunk": chunk, "kv_prefill": 0, "n_decode": n, "kv_decode": keys, "time_us": round(a + b, 4)}
        for chunk, a in {0: 0.0, **prompts}.items()
        for (n, keys), b in {(0, 0): 0.0, **decodes}.items()
        if chunk or n
    ]
    root = folder / table.machine.name / asked.model / (asked.dtype or table.machine.default_dtype)
    own = root / f"tp{asked.tp}"
    meta = {
        "profiler_version": f"{_FRAMEWORK}/{version()}", "hardware": table.machine.name,
        "model": asked.model, "variant": root.name, "architecture": "llama", "source": "simulated",
        "attention_grid": {"prefill_chunk": sorted(prompts), "kv": sorted({keys for _, keys in decodes}),
                           "n_decode": sorted({n for n, _ in decodes}), "max_kv": asked.keys},
        "skew_fit": {"enabled": False},
    }  # fmt: skip
    files = {"dense.csv": dense, "per_sequence.csv": sequences, "attention.csv": attention}
    written = [_written(own / name, rows) for name, rows in files.items()]
    path = root / "meta.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in meta.items()), encoding="utf-8")
    return [*written, path]


def _attention(table: Table, place: Prompts | Decode) -> Attention:
    op = table.ops[place]
    if not isinstance(op, Attention) or op.one_cache or op.value_dim != op.head_dim:
        raise InputError(f"export {table.asked.model}: {_LATENT}")
    return op


def _distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without those that say the same again."""
    return list({tuple(row.items()): row for row in rows}.values())


def _written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


WRITERS: Mapping[str, Callable[[Table, Path], list[Path]]] = {
    "aiconfigurator": aiconfigurator,
    "vidur": vidur,
    "llmservingsim": llmservingsim,
}
"""Writers by the name of what reads them."""
