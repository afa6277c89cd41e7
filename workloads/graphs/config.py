"""Reads the `config.json` of a model by its `model_type`; what is not understood is named.

A reader takes each key that it knows; of those that nobody has taken, one that does not change what runs is let go, and
another one is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arch.errors import InputError
from arch.near import hint
from workloads.graphs.model import Latent, Model
from workloads.ops.gemm import SCALE_BLOCK

_NO_TIME = frozenset(
    (
        *("architectures", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"),
        *("initializer_range", "max_position_embeddings", "rms_norm_eps", "rope_scaling", "rope_theta"),
        *("rope_parameters", "torch_dtype", "dtype", "transformers_version", "use_cache", "norm_topk_prob"),
        *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "_name_or_path", "model_type"),
        *("hidden_dropout", "resid_pdrop", "embd_pdrop", "auto_map", "id2label", "label2id", "return_dict"),
        *("output_attentions", "output_hidden_states", "_attn_implementation", "use_mrope", "layer_norm_eps"),
    )
)
"""Keys that do not change what is computed."""


class Config:
    """A `config.json` from which keys are taken. where: what an error names."""

    def __init__(self, found: Mapping[str, Any], where: str) -> None:
        self.found, self.where = found, where
        self.taken = set(_NO_TIME)

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it is; the default where it is missing or null."""
        self.taken.add(key)
        value = self.found.get(key)
        return default if value is None else value

    def size(self, key: str, default: int = 0, least: int = 1) -> int:
        """A whole number from `least` on; the default where it is missing or null."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise InputError(f"{self.where}: {key}={json.dumps(value)}: must be a whole number from {least} on")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; the default where it is missing or null."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {key}={json.dumps(value)}: must be true or false")
        return value

    def entries(self, key: str) -> list[Any]:
        """The entries of a list, or the names of an object; none where it is missing or null."""
        value = self.get(key, [])
        if not isinstance(value, list | dict):
            raise InputError(f"{self.where}: {key}={json.dumps(value)}: must be a list")
        return list(value)

    def needed(self, key: str) -> int:
        """A whole number that has to be there."""
        return self.size(key) or self.lacks(key)

    def lacks(self, key: str) -> int:
        """InputError: a key is missing."""
        raise InputError(f"{self.where}: {key} is missing")

    def only(self, key: str, *values: Any) -> None:
        """InputError where a value is another one than those for which it is what is simulated."""
        value = self.get(key)
        if value is not None and value not in values:
            right = " or ".join(json.dumps(fixed) for fixed in values)
            raise InputError(f"{self.where}: {key}={json.dumps(value)}: only {right} is simulated")

    def ignored(self, *keys: str) -> None:
        """Keys that do not change what is computed in a model of this type."""
        self.taken.update(keys)

    def check(self) -> None:
        """InputError for keys that nobody has taken."""
        for key, value in self.found.items():
            if key not in self.taken and value is not None:
                near = hint(key, self.taken)
                raise InputError(
                    f"{self.where}: the key {key} is not understood{near}; leave it out if it costs no time"
                )

    @property
    def weights(self) -> str:
        """The format of quantised weights; InputError for one that is not simulated."""
        quantised = self.get("quantization_config")
        if quantised is None:
            return ""
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        if method not in ("fp8", "mxfp4"):
            right = "only fp8 and mxfp4 are simulated; leave it out, and say dtype=fp8 for products of 8 bits"
            raise InputError(f"{self.where}: quantization_config: quant_method={json.dumps(method)}: {right}")
        if method == "fp8" and (block := quantised.get("weight_block_size")) is not None:
            if block != [SCALE_BLOCK, SCALE_BLOCK]:
                right = f"only [{SCALE_BLOCK}, {SCALE_BLOCK}] is simulated"
                raise InputError(f"{self.where}: quantization_config: weight_block_size={json.dumps(block)}: {right}")
            return "fp8_block"
        return str(method)


def read_config(found: Mapping[str, Any], where: str) -> Model:
    """A model of what its `config.json` holds. where: what an error names."""
    kind = found.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        near = hint(kind, READERS) if isinstance(kind, str) else ""
        raise InputError(f"{where}: model_type={kind}: must be one of {', '.join(READERS)}{near}")
    config = Config(found, where)
    model = READERS[kind](config)
    config.check()
    return model


def windows(config: Config, window: int, default: Sequence[str]) -> tuple[int, ...]:
    """Keys that a query sees in layers in turn. default: kinds of layers in turn where the file does not list them."""
    if not window:
        return (0,)
    kinds = config.entries("layer_types") or list(default)
    unknown = next((kind for kind in kinds if kind not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise InputError(f"{config.where}: layer_types: {unknown} is not simulated")
    turn = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:turn])


def _sizes(config: Config, inner: str = "intermediate_size") -> dict[str, Any]:
    """Sizes that decoders have under the same keys."""
    heads = config.needed("num_attention_heads")
    return {
        "hidden": config.needed("hidden_size"),
        "heads": heads,
        "kv_heads": config.size("num_key_value_heads", heads),
        "layers": config.needed("num_hidden_layers"),
        "ffn": config.needed(inner),
        "vocab": config.needed("vocab_size"),
        "head_dim": config.size("head_dim"),
        "tied": config.flag("tie_word_embeddings", False),
    }


def _llama(config: Config, inner: str = "intermediate_size", experts: str = "") -> Model:
    """Llama, Mistral, Mixtral, Qwen and Phi-3: layers that differ in sizes and a few products. inner, experts: keys of
    elements inside a gated layer or an expert, and of how many of these there are."""
    config.only("hidden_act", "silu")
    config.only("mlp_bias", False)
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    config.only("pretraining_tp", 1)
    config.only("is_encoder_decoder", False)
    config.ignored("intermediate_size", "original_max_position_embeddings", "partial_rotary_factor", "embd_pdrop")
    kind, sizes = config.found["model_type"], _sizes(config, inner)
    count = config.size("num_local_experts") or config.size("num_experts")
    if experts and not count:
        config.lacks(experts)
    topk = config.size("num_experts_per_tok")
    if count and not topk:
        config.lacks("num_experts_per_tok")
    return Model(
        **sizes, experts=count, topk=topk, windows=_llama_windows(config, sizes["layers"]),
        qk_norm=kind in ("qwen3", "qwen3_moe"), qkv_bias=config.flag("attention_bias", kind == "qwen2"),
        weights=config.weights,
    )  # fmt: skip


def _llama_windows(config: Config, layers: int) -> tuple[int, ...]:
    """Windows of models that have them by a switch, or in all layers."""
    kind, window = config.found["model_type"], config.size("sliding_window")
    used = config.flag("use_sliding_window", kind in ("mistral", "mixtral", "phi3"))
    first = config.size("max_window_layers", 0, 0)
    kinds = config.entries("layer_types")
    if not window or not used:
        return (0,)
    if not kinds and 0 < first < layers:
        raise InputError(
            f"{config.where}: layers with and without sliding_window are not simulated by max_window_layers; "
            "leave it out, or list layer_types"
        )
    return windows(config, window, ["full_attention" if first else "sliding_attention"])


def _gemma(config: Config) -> Model:
    """Gemma 2 and 3: norms around attention and gated layer, windows in turn, GELU."""
    kind = config.found["model_type"]
    if kind == "gemma3":
        return _gemma_with_pictures(config)
    third = kind == "gemma3_text"
    defaults = {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
        "vocab_size": 262208 if third else 256000, "sliding_window": 4096,
    }  # fmt: skip
    config.found = {**defaults, **config.found}
    for key in ("hidden_activation", "hidden_act"):
        config.only(key, "gelu_pytorch_tanh")
    config.only("attention_bias", False)
    config.ignored("query_pre_attn_scalar", "attn_logit_softcapping", "cache_implementation", "rope_local_base_freq")
    turn = config.size("sliding_window_pattern", 6 if third else 2)
    kinds = ["sliding_attention"] * (turn - 1) + ["full_attention"]
    return Model(
        **_sizes(config), windows=windows(config, config.size("sliding_window"), kinds), qk_norm=third,
        act="gelu_tanh", normed="around", capped=config.get("final_logit_softcapping") is not None, scaled=True,
        weights=config.weights,
    )  # fmt: skip


def _gemma_with_pictures(config: Config) -> Model:
    """Gemma 3 with a vision tower, which is not run: the text model alone."""
    config.ignored("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
    text = config.get("text_config")
    if not isinstance(text, dict):
        config.lacks("text_config")
    return read_config({**text, "model_type": "gemma3_text"}, f"{config.where}: text_config")


def _gpt_oss(config: Config) -> Model:
    """GPT-OSS: experts, windows in turn, biases, a weight of each head for no key."""
    config.only("hidden_act", "silu")
    config.ignored("swiglu_limit", "initial_context_length", "experts_per_token", "num_local_experts")
    bias = config.flag("attention_bias", True)
    return Model(
        **_sizes(config), experts=config.needed("num_local_experts"), topk=config.needed("num_experts_per_tok"),
        windows=windows(config, config.size("sliding_window"), ["sliding_attention", "full_attention"]),
        qkv_bias=bias, out_bias=bias, sinks=True, weights=config.weights,
    )  # fmt: skip


def _deepseek(config: Config) -> Model:
    """DeepSeek V3 and its kind: latent attention, a shared expert beside the others, dense layers in front."""
    config.only("hidden_act", "silu")
    config.only("moe_layer_freq", 1)
    config.only("attention_bias", False)
    config.only("ep_size", 1)
    config.only("pretraining_tp", 1)
    config.ignored(
        *("n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor", "aux_loss_alpha", "seq_aux"),
        *("num_nextn_predict_layers", "num_key_value_heads"),
    )
    latent = Latent(
        config.size("q_lora_rank"), config.needed("kv_lora_rank"), config.needed("qk_nope_head_dim"),
        config.needed("qk_rope_head_dim"), config.needed("v_head_dim"),
    )  # fmt: skip
    sizes = _sizes(config)
    inner = config.needed("moe_intermediate_size")
    return Model(
        **{**sizes, "ffn": inner, "kv_heads": sizes["heads"], "head_dim": latent.nope + latent.rope},
        experts=config.needed("n_routed_experts"), topk=config.needed("num_experts_per_tok"),
        dense=config.size("first_k_dense_replace", 0, 0), dense_ffn=sizes["ffn"],
        shared=config.size("n_shared_experts", 0, 0) * inner, latent=latent, weights=config.weights,
    )  # fmt: skip


_BIASED: dict[str, Any] = {
    "qkv_bias": True, "out_bias": True, "inner_bias": True, "norm": "layer", "gated": False,
}  # fmt: skip
"""Layers with layer norm, one product with a function in the inner layer, and biases."""


def _phi(config: Config) -> Model:
    """Phi 1 and 2: attention and inner layer beside each other."""
    config.only("hidden_act", "gelu_new")
    config.only("qk_layernorm", False)
    config.ignored("partial_rotary_factor")
    return Model(**_sizes(config), **_BIASED, act="gelu_tanh", parallel=True, head_bias=True)


def _gpt2(config: Config) -> Model:
    """GPT-2: positions by a table."""
    config.only("activation_function", "gelu_new")
    config.ignored(
        *("attn_pdrop", "n_ctx", "layer_norm_epsilon", "task_specific_params", "reorder_and_upcast_attn"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
    )
    hidden, heads = config.needed("n_embd"), config.needed("n_head")
    return Model(
        hidden, heads, heads, config.size("n_inner", 4 * hidden), config.needed("n_layer"),
        vocab=config.needed("vocab_size"), tied=config.flag("tie_word_embeddings", True), **_BIASED,
        act="gelu_tanh", rotary=False, positions=config.size("n_positions", 1024),
    )  # fmt: skip


def _encoder(config: Config) -> dict[str, Any]:
    """What encoders have under the same keys."""
    config.only("hidden_act", "gelu")
    config.ignored("attention_probs_dropout_prob", "hidden_dropout_prob", "gradient_checkpointing", "initializer_range")
    heads = config.needed("num_attention_heads")
    return {
        "hidden": config.needed("hidden_size"), "heads": heads, "kv_heads": heads,
        "ffn": config.needed("intermediate_size"), "layers": config.needed("num_hidden_layers"),
        **_BIASED, "act": "gelu", "rotary": False, "encoder": True,
    }  # fmt: skip


def _bert(config: Config) -> Model:
    """BERT: norms behind the sums, a pooler; there is no head over its vocabulary."""
    config.only("position_embedding_type", "absolute")
    config.ignored("classifier_dropout", "tie_word_embeddings")
    return Model(
        **_encoder(config), vocab=config.needed("vocab_size"), normed="behind", pooled=True,
        positions=config.size("max_position_embeddings", 512), kinds=config.size("type_vocab_size", 2),
    )  # fmt: skip


def _vit(config: Config) -> Model:
    """ViT: patches of a picture behind a class token, whose vector gives the class."""
    config.only("qkv_bias", True)
    config.ignored("encoder_stride")
    size, patch = config.needed("image_size"), config.needed("patch_size")
    labels = config.size("num_labels", len(config.entries("id2label")) or 2)
    return Model(
        **_encoder(config), vocab=labels, head_bias=True, positions=(size // patch) ** 2 + 1,
        patch=config.size("num_channels", 3) * patch**2,
    )  # fmt: skip


def _whisper(config: Config) -> Model:
    """Whisper: an encoder of sound, and a decoder that reads what it gives."""
    config.only("activation_function", "gelu")
    config.only("is_encoder_decoder", True)
    config.ignored(
        *("activation_dropout", "apply_spec_augment", "begin_suppress_tokens", "classifier_proj_size", "dropout"),
        *("decoder_layerdrop", "decoder_start_token_id", "encoder_layerdrop", "init_std", "mask_feature_length"),
        *("mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob"),
        *("max_length", "median_filter_width", "num_hidden_layers", "scale_embedding", "suppress_tokens"),
        *("use_weighted_layer_sum", "forced_decoder_ids"),
    )
    for part in ("attention_heads", "ffn_dim"):
        config.only(f"encoder_{part}", config.needed(f"decoder_{part}"))
    heads = config.needed("decoder_attention_heads")
    return Model(
        config.needed("d_model"), heads, heads, config.needed("decoder_ffn_dim"), config.needed("decoder_layers"),
        vocab=config.needed("vocab_size"), tied=True, **_BIASED, act="gelu", rotary=False,
        positions=config.size("max_target_positions", 448), frames=config.size("max_source_positions", 1500),
        mel=config.size("num_mel_bins", 80), encoder_layers=config.needed("encoder_layers"),
    )  # fmt: skip


def _of_experts(inner: str, experts: str) -> Callable[[Config], Model]:
    return lambda config: _llama(config, inner, experts)


READERS: Mapping[str, Callable[[Config], Model]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3"), _llama),
    "mixtral": _of_experts("intermediate_size", "num_local_experts"),
    "qwen3_moe": _of_experts("moe_intermediate_size", "num_experts"),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text"), _gemma),
    "gpt_oss": _gpt_oss,
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _deepseek),
    "phi": _phi,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
    "whisper": _whisper,
}
"""Readers by `model_type`."""
