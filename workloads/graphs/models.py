"""Decoders by the `config.json` that lies beside a model's weights, as Hugging Face's `transformers` writes it.

`models.json` has the sizes of published models as their own `config.json` gives them; a file or folder of one's own is
read by the same rules. A key that is not known is an error and is never guessed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from arch.errors import InputError
from arch.near import hint

MODELS_JSON = Path(__file__).with_name("models.json")


class Model(NamedTuple):
    """Sizes of a model: elements of a token's vector, query heads, key and value heads, and of the gated layers.

    head_dim: elements of a head's vector, where it is not a head's share of `hidden`. experts, topk: gated layers
    beside each other, and how many of them a token takes; 0 where there is one. vocab: tokens that it knows. window:
    keys that a query sees, 0 for all. qk_norm: whether queries and keys are normalised head by head. qkv_bias: whether
    the product that gives queries, keys and values adds a vector.
    """

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int
    experts: int = 0
    topk: int = 0
    head_dim: int = 0
    vocab: int = 0
    window: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False

    @property
    def head_elements(self) -> int:
        """Elements of a head's vector."""
        return self.head_dim or self.hidden // self.heads


_GATED = {
    "llama": ("intermediate_size",),
    "mistral": ("intermediate_size",),
    "mixtral": ("intermediate_size", "num_local_experts"),
    "qwen2": ("intermediate_size",),
    "qwen3": ("intermediate_size",),
    "qwen3_moe": ("moe_intermediate_size", "num_experts"),
}
"""By `model_type`, the keys of its gated layers or experts: elements inside one, and how many there are."""
MODEL_TYPES = tuple(_GATED)
"""Values of `model_type` that are read."""

_SIZES = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("num_hidden_layers", "vocab_size", "num_local_experts", "num_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "sliding_window"),
)
"""Keys that hold a whole number, or null."""

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "pretraining_tp": (1,),
    "is_encoder_decoder": (False,),
}
"""Keys that change what runs, and the values for which it is what is simulated."""

_NO_TIME = frozenset(
    (
        *("architectures", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"),
        *("initializer_range", "max_position_embeddings", "rms_norm_eps", "rope_scaling", "rope_theta"),
        *("rope_parameters", "tie_word_embeddings", "torch_dtype", "dtype", "transformers_version", "use_cache"),
        *("max_window_layers", "use_sliding_window", "layer_types", "attention_bias", "norm_topk_prob"),
        *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "_name_or_path", "model_type"),
        *("hidden_dropout", "resid_pdrop", "embd_pdrop", "auto_map", "id2label", "label2id", "return_dict"),
        *("output_attentions", "output_hidden_states", "_attn_implementation", "use_mrope"),
    )
)
"""Keys that do not change what is computed, or that are read by name below."""


def _is_file(model: str) -> bool:
    """Whether a model is a file or folder, not the name of a published one."""
    return "/" in model or model.endswith(".json")


@functools.cache
def _published() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(MODELS_JSON.read_text(encoding="utf-8"))
    return found


def names() -> tuple[str, ...]:
    """Published models, by name."""
    return tuple(_published())


def model_of(model: str) -> Model:
    """The sizes of a published model, or of a `config.json` (file, or the folder it lies in). InputError where there is
    none, or where it holds what is not understood."""
    if not _is_file(model):
        if model not in _published():
            read = "published ones are " + ", ".join(names())
            raise InputError(
                f"model={model}: unknown{hint(model, names())}; {read}, or a config.json: model=./config.json"
            )
        return _read(_published()[model], model)
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"model={model}: {path} cannot be read as JSON: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"model={model}: {path} holds no object; it should be a model's config.json")
    return _read(found, str(path))


def _read(config: Mapping[str, Any], where: str) -> Model:
    """A model's sizes. where: what an error names."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        near = hint(kind, MODEL_TYPES) if isinstance(kind, str) else ""
        raise InputError(f"{where}: model_type={kind}: must be one of {', '.join(MODEL_TYPES)}{near}")
    _check_keys(config, where)
    sizes = {key: _whole(config, key, where) for key in _SIZES}
    required = ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", *_GATED[kind]]
    if sizes["num_local_experts"] or sizes["num_experts"]:
        required.append("num_experts_per_tok")
    for key in required:
        if not sizes[key]:
            raise InputError(f"{where}: {key} is missing")
    return Model(
        hidden=sizes["hidden_size"],
        heads=sizes["num_attention_heads"],
        kv_heads=sizes["num_key_value_heads"] or sizes["num_attention_heads"],
        ffn=sizes[_GATED[kind][0]],
        layers=sizes["num_hidden_layers"],
        experts=sizes["num_local_experts"] or sizes["num_experts"],
        topk=sizes["num_experts_per_tok"],
        head_dim=sizes["head_dim"],
        vocab=sizes["vocab_size"],
        window=_window(config, sizes, where),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
    )


def _check_keys(config: Mapping[str, Any], where: str) -> None:
    """InputError for keys that are not understood, and for values with which another thing runs."""
    known = {*_SIZES, *_FIXED, *_NO_TIME}
    for key, value in config.items():
        if key == "quantization_config" and value is not None:
            raise InputError(
                f"{where}: quantization_config: weights are not quantised by it; leave it out and say dtype=fp8"
            )
        if key not in known and value is not None:
            raise InputError(
                f"{where}: the key {key} is not understood{hint(key, known)}; leave it out if it costs no time"
            )
        if key in _FIXED and value not in _FIXED[key]:
            right = " or ".join(json.dumps(fixed) for fixed in _FIXED[key])
            raise InputError(f"{where}: {key}={json.dumps(value)}: only {right} is simulated")


def _whole(config: Mapping[str, Any], key: str, where: str) -> int:
    """A size; 0 where it is missing or null."""
    value = config.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise InputError(f"{where}: {key}={json.dumps(value)}: must be a whole number above 0")
    return value


def _window(config: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> int:
    """Keys that a query sees. InputError where layers differ in it."""
    if (
        not sizes["sliding_window"]
        or config.get("use_sliding_window", config["model_type"] in ("mistral", "mixtral")) is False
    ):
        return 0
    kinds = set(config.get("layer_types") or ())
    all_first = config.get("max_window_layers") or 0
    if len(kinds) > 1 or 0 < all_first < sizes["num_hidden_layers"]:
        raise InputError(
            f"{where}: layers with and without sliding_window are not simulated; leave it out, or make all alike"
        )
    return 0 if kinds == {"full_attention"} or all_first else sizes["sliding_window"]


def whole_model(model: str, keys: list[str]) -> str:
    """The operator that runs all of a model: its layers, embedding and head. keys: `key=value`, which stand in the
    place of these."""
    sizes = model_of(model)
    given = {key.partition("=")[0] for key in keys}
    own = {"layers": sizes.layers, "vocab": sizes.vocab}
    return " ".join(["llama", f"model={model}", *(f"{k}={v}" for k, v in own.items() if k not in given), *keys])
