"""Whole models by their name or their `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.cli import main
from sim.app.serving.deployment import Deployment, Memory
from workloads.graphs.llama import Llama
from workloads.graphs.models import model_of, names, whole_model

SMALL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 320,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip


def written(tmp_path: Path, **changes: Any) -> str:
    """The folder of a small model; keys whose value is `...` are left out."""
    config = {key: value for key, value in (SMALL | changes).items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return f"{tmp_path}/"


def labels(model: str, **keys: Any) -> list[str]:
    """What one layer calls."""
    return [step.label for step in Llama(model=model, dtype="bf16", **keys).graph(fused=False).steps]


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama3.1-8b", 8.03),
        ("llama3.1-70b", 70.55),
        ("llama3.1-405b", 405.85),
        ("mistral-7b-v0.3", 7.25),
        ("mistral-small-24b", 23.57),
        ("mixtral-8x7b", 46.70),
        ("mixtral-8x22b", 140.6),
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-72b", 72.7),
        ("qwen3-8b", 8.19),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.1),
        ("qwen3-0.6b", 0.596),
        ("gemma2-2b", 2.614),
        ("gemma2-27b", 27.227),
        ("gemma3-1b", 1.0),
        ("gemma3-27b", 27.009),
        ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.83),
        ("deepseek-v3", 671.03),
        ("phi-2", 2.780),
        ("phi3-mini", 3.821),
        ("phi4", 14.66),
        ("gpt2", 0.12444),
        ("gpt2-xl", 1.5576),
        ("bert-base", 0.10948),
        ("bert-large", 0.33514),
        ("vit-base", 0.08657),
        ("vit-large", 0.30433),
        ("whisper-tiny", 0.03776),
        ("whisper-small", 0.24173),
        ("whisper-large-v3", 1.5435),
    ],
)
def test_models_have_the_parameters_that_their_cards_state(model: str, billions: float) -> None:
    sizes = model_of(model)

    def weights(layers: int) -> int:
        """Of so many layers, with embedding and head."""
        seq = sizes.positions if sizes.patch else 1
        op = Llama(model=model, layers=layers, vocab=sizes.vocab, dtype="bf16", experts_dtype="same", seq=seq)
        graph = op.graph(fused=False)
        return sum(graph.sizes_bytes[name] // 2 for name in graph.inputs if name.endswith(("_weight", "_bias")))

    def encoder() -> int:
        """Of the encoder of a model that has one."""
        if not sizes.frames:
            return 0
        op = Llama(model=model, layers=sizes.encoder_layers, phase="encode", seq=sizes.frames, dtype="bf16")
        graph = op.graph(fused=False)
        return sum(graph.sizes_bytes[name] // 2 for name in graph.inputs if name.endswith(("_weight", "_bias")))

    first = sizes.dense + 1
    layer = weights(first + 1) - weights(first)
    decoder = weights(first) + layer * (sizes.layers - first)
    assert decoder + encoder() == pytest.approx(billions * 1e9, rel=0.002)


def test_all_published_models_can_be_run() -> None:
    assert len(names()) > 50
    for model in names():
        sizes = model_of(model)
        first = {"seq": sizes.positions} if sizes.patch else {"seq": 64}
        for phase in ("prefill",) if sizes.encoder else ("prefill", "decode"):
            page = 0 if sizes.encoder else 16
            assert labels(model, phase=phase, batch=2, page=page, vocab=sizes.vocab, **first)


OTHERS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"intermediate_size": 192, "head_dim": 64, "hidden_size": 128, "num_hidden_layers": 2,
                    "sliding_window": 16, "sliding_window_pattern": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "vocab_size": 320},
    "gemma2": {"intermediate_size": 192, "head_dim": 64, "hidden_size": 128, "num_hidden_layers": 1,
               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "final_logit_softcapping": 30.0},
    "gpt_oss": {"intermediate_size": 64, "head_dim": 64, "hidden_size": 128, "num_hidden_layers": 1,
                "sliding_window": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
                "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi": {"intermediate_size": 192, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "vocab_size": 320},
    "gpt2": {"n_embd": 128, "n_layer": 1, "n_head": 2, "vocab_size": 320, "n_positions": 64},
    "bert": {"intermediate_size": 192, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
             "vocab_size": 320},
    "vit": {"intermediate_size": 192, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 56, "patch_size": 16, "num_labels": 10},
    "whisper": {"d_model": 128, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 320,
                "num_mel_bins": 16, "max_source_positions": 24, "max_target_positions": 32},
    "deepseek_v3": {"intermediate_size": 128, "moe_intermediate_size": 128, "hidden_size": 128, "num_hidden_layers": 2,
                    "num_attention_heads": 2, "vocab_size": 320, "n_routed_experts": 4, "n_shared_experts": 1,
                    "num_experts_per_tok": 2, "first_k_dense_replace": 0, "q_lora_rank": 64, "kv_lora_rank": 512,
                    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}  # fmt: skip
"""Small models of other types."""


def small(tmp_path: Path, kind: str, **changes: Any) -> str:
    """The folder of a small model of a type."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **OTHERS[kind], **changes}))
    return f"{tmp_path}/"


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gemma3_text", "seq=48 layers=2 phase=decode batch=2 page=16"),
        ("gemma2", "seq=48"),
        ("gpt_oss", "seq=32 page=16"),
        ("gpt_oss", "seq=32 page=16 experts_dtype=mxfp4 tp=2 adp=2 batch=2"),
        ("phi", "seq=32"),
        ("gpt2", "seq=32 phase=decode batch=2"),
        ("bert", "seq=32"),
        ("vit", "seq=10"),
        ("whisper", "seq=16"),
        ("whisper", "seq=16 phase=decode page=16"),
        ("whisper", "seq=24 phase=encode batch=2"),
        ("deepseek_v3", "seq=40 phase=decode batch=2 page=16 prompts=1 chunk=24 past=8"),
        ("deepseek_v3", "seq=40 phase=decode batch=4 page=16 dtype=fp8 scale=block"),
    ],
)
def test_numbers_of_other_types_are_those_of_numpy(tmp_path: Path, kind: str, keys: str) -> None:
    vocab = OTHERS[kind].get("vocab_size", 10)
    work = f"llama model={small(tmp_path, kind)} vocab={vocab} {keys}"
    report = simulate(work, "h100-sxm", schedule="fused", check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_windows_come_in_turns() -> None:
    assert model_of("gemma2-2b").windows == (4096, 0)
    assert model_of("gemma3-27b").windows == (1024,) * 5 + (0,)
    op = Llama(model="gpt-oss-20b", layers=4, phase="decode", seq=512, dtype="bf16")
    seen = [step.op for step in op.graph(fused=True).steps if "attention" in step.label]
    assert [getattr(found, "window", None) for found in seen] == [128, 0, 128, 0]


def test_latent_attention_has_one_cache_and_a_step_of_it_few_products() -> None:
    steps = labels("deepseek-v3", phase="decode", batch=2, seq=64, page=16)
    assert steps.count("aten::bmm") == 2
    prefill = labels("deepseek-v3", batch=2, seq=64, page=16)
    assert "aten::bmm" not in prefill
    assert model_of("deepseek-v3").cached_elements(8) == 576
    assert model_of("llama3.1-70b").cached_elements(8) == 2 * 128


def test_published_weights_of_8_bits_are_products_of_8_bits() -> None:
    op = Llama(model="deepseek-v3", phase="decode", layers=4).with_defaults("bf16")
    assert op.dtype == "fp8"
    formats = {step.label: step.op.dtype for step in op.graph(fused=True).steps}
    assert formats["vllm:fused_moe"] == formats["vllm:w8a8_block_fp8_matmul"] == "fp8"
    assert formats["aten::rms_norm"] == formats["aten::bmm"] == "bf16"
    assert formats["aten::mm"] == "bf16"  # the router


def test_published_scales_by_block_are_those_of_products_and_experts() -> None:
    def steps(**keys: Any) -> list[tuple[str, str]]:
        op = Llama(model="deepseek-v3", phase="decode", layers=4, **keys).with_defaults("bf16")
        return [(step.label, getattr(step.op, "scale", "")) for step in op.graph(fused=True).steps]

    blocks = steps()
    assert ("vllm:fused_moe", "block") in blocks
    products = blocks.count(("vllm:w8a8_block_fp8_matmul", "block"))
    assert blocks.count(("vllm:per_token_group_quant", "group")) == products + 1
    assert ("vllm:fused_moe", "none") in steps(scale="tensor")
    assert ("vllm:fused_moe", "none") in steps(dtype="bf16")
    assert model_of("kimi-k2").weights == "fp8_block"


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gemma3_text", {"hidden_activation": "relu"}, 'only "gelu_pytorch_tanh" is simulated'),
        ("gemma3_text", {"num_experts": 4}, "the key num_experts is not understood"),
        ("gpt_oss", {"num_local_experts": None}, "num_local_experts is missing"),
        ("gpt_oss", {"layer_types": ["linear_attention"]}, "linear_attention is not simulated"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("deepseek_v3", {"first_k_dense_replace": 1.5}, "first_k_dense_replace=1.5: must be a whole number from 0 on"),
        ("deepseek_v3", {"n_shared_experts": [1]}, "n_shared_experts=[1]: must be a whole number from 0 on"),
        ("deepseek_v3", {"index_topk": 2048}, "the key index_topk is not understood"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "awq"}}, 'quant_method="awq"'),
        (
            "deepseek_v3",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            "weight_block_size=[64, 64]: only [128, 128]",
        ),
        ("phi", {"qk_layernorm": True}, "qk_layernorm=true: only false"),
        ("gpt2", {"activation_function": "relu"}, 'only "gelu_new"'),
        ("bert", {"position_embedding_type": "relative_key"}, 'only "absolute"'),
        ("vit", {"qkv_bias": False}, "qkv_bias=false: only true"),
        ("whisper", {"encoder_ffn_dim": 64}, "encoder_ffn_dim=64: only 128"),
    ],
)
def test_what_other_types_do_not_have_is_named(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:  # fmt: skip
    with pytest.raises(InputError) as error:
        model_of(small(tmp_path, kind, **changes))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("model=bert-base phase=decode", "is an encoder, which has no cache"),
        ("model=gpt2 seq=2048", "has 1024 positions"),
        ("model=whisper-tiny phase=encode seq=100", "nearest: seq=1500"),
        ("model=gpt2 phase=encode", "a model that has an encoder, whisper-tiny"),
        ("model=vit-base seq=64 vocab=1000", "seq=197 patches"),
        ("model=deepseek-v3 batch=2 tp=2 overlap=1", "not cut into halves"),
        ("model=gemma2-2b schedule=wgmma", "unknown key"),
    ],
)
def test_what_a_type_cannot_run_is_refused(keys: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(f"llama {keys}", "h100-sxm")


def test_a_file_is_read_as_its_name_is(tmp_path: Path) -> None:
    path = written(
        tmp_path, hidden_size=5120, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
        intermediate_size=25600, num_hidden_layers=64, vocab_size=151936,
    )  # fmt: skip
    assert model_of(path) == model_of(path + "config.json") == model_of("qwen3-32b")


def test_queries_and_keys_of_qwen3_are_normalised_and_qwen2_adds_a_vector() -> None:
    assert labels("qwen3-8b").count("aten::rms_norm") == labels("llama3.1-8b").count("aten::rms_norm") + 2
    assert "aten::addmm" in labels("qwen2.5-7b")
    assert "aten::addmm" not in labels("qwen3-8b")


def test_a_query_sees_the_window_of_its_model() -> None:
    assert model_of("mistral-7b-v0.1").window == 4096
    near, all_ = (
        simulate(f"llama model={model} phase=decode seq=16384", "h100-sxm")
        for model in ("mistral-7b-v0.1", "mistral-7b-v0.3")
    )
    assert near.record.time_ps < all_.record.time_ps


def test_numbers_are_those_of_numpy(tmp_path: Path) -> None:
    report = simulate(f"llama model={written(tmp_path)} seq=64 vocab=320", "h100-sxm", check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_a_step_of_a_server_takes_prompts_along(tmp_path: Path) -> None:
    model = written(tmp_path)
    work = f"llama model={model} phase=decode batch=2 seq=40 page=16 vocab=320 prompts=2 chunk=24 past=8"
    report = simulate(work, "h100-sxm", check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    steps = Llama(model=model, phase="decode", batch=2, seq=40, page=16, prompts=2, chunk=24, past=8, dtype="bf16")
    called = [str(step.op) for step in steps.graph(fused=True).steps if step.label == "vllm:unified_attention"]
    assert ["batch=2" in op and "seq_q=24 seq_k=32" in op for op in called] == [False, True]
    behind = simulate(f"llama model={model} seq=24 past=8 page=16", "h100-sxm", check=True)
    assert behind.record.check is not None
    assert behind.record.check.passed


def test_the_next_token_is_the_greatest_of_the_logits(tmp_path: Path) -> None:
    work = f"llama model={written(tmp_path)} phase=decode batch=2 seq=40 vocab=320 tp=2 sample=greedy"
    report = simulate(work, "h100-sxm", check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    called = labels(written(tmp_path), vocab=320, tp=2, sample="greedy")
    assert called[-3:] == ["nccl:all_gather", "aten::to", "aten::argmax"]
    with pytest.raises(InputError, match="needs logits of a decoder"):
        simulate("llama model=tiny sample=greedy", "h100-sxm")


@pytest.mark.parametrize("keys", ["rows=3 cols=1000 dtype=fp32", "rows=5 cols=33 dtype=bf16"])
def test_a_row_of_many_tiles_has_one_greatest_element(keys: str) -> None:
    report = simulate(f"argmax {keys}", "h100-sxm", check=True)
    assert report.record.check is not None
    assert report.record.check.passed


def test_experts_of_8_bits_are_multiplied_by_wgmma_on_hopper() -> None:
    work = "moe tokens=4 hidden=256 inter=256 topk=2 experts=4 dtype=fp8"
    report = simulate(work, "h100-sxm", check=True)
    assert report.record.check is not None
    assert report.record.check.passed
    assert report.record.schedule.startswith("vllm 64x")
    with pytest.raises(InputError, match="fp8"):
        simulate(work, "a100-sxm4-80gb")


def test_devices_share_out_whole_experts() -> None:
    op = Llama(model="qwen3-30b-a3b", phase="decode", tp=4, ep=2, dtype="bf16", routing="balanced")
    (experts,) = [step.op for step in op.graph(fused=True).steps if step.label == "vllm:fused_moe"]
    assert "tp=2 ep=2 distribution=balanced" in str(experts)


def test_published_experts_of_four_bits_are_stored_so() -> None:
    def experts(**keys: Any) -> Any:
        op = Llama(model="gpt-oss-20b", phase="decode", **keys).with_defaults("bf16")
        return next(step.op for step in op.graph(fused=True).steps if step.label == "vllm:fused_moe")

    assert (experts().weights, experts().dtype) == ("mxfp4", "bf16")
    assert experts(experts_dtype="same").weights == "same"
    assert experts(experts_dtype="int4").weights == "int4"
    memory = Memory.of(Deployment.of("gpt-oss-120b"), load_arch("h200-sxm"))
    assert memory.weights == pytest.approx(65.3e9, rel=0.02)  # the checkpoint's files


def test_groups_of_devices_have_attention_of_their_own_sequences() -> None:
    def steps(**keys: Any) -> dict[str, Any]:
        op = Llama(model="qwen3-30b-a3b", phase="decode", batch=8, tp=4, dtype="bf16", **keys)
        return {step.label: step.op for step in op.graph(fused=True).steps}

    shared, apart, both = steps(), steps(adp=4), steps(adp=2)
    attention = "aten::scaled_dot_product_attention"
    assert [(s[attention].batch, s[attention].heads) for s in (shared, apart, both)] == [(8, 8), (2, 32), (4, 16)]
    assert [(s["vllm:fused_moe"].tokens, s["vllm:fused_moe"].tp) for s in (shared, apart, both)] == [(8, 4)] * 3
    assert [label for label in apart if label.startswith(("nccl", "vllm:all"))] == [
        "nccl:all_gather", "nccl:reduce_scatter",
    ]  # fmt: skip
    assert apart["nccl:all_gather"].elements == apart["nccl:reduce_scatter"].elements == 8 * 2048
    assert both["vllm:all_reduce"].devices == both["nccl:all_gather"].gpus == 2
    h200 = load_arch("h200-sxm")
    one, four = (Memory.of(Deployment.of(f"deepseek-v3 tp=8 adp={adp}"), h200) for adp in (1, 4))
    assert four.token == one.token // 4  # all heads read one cache, which each device of a group has whole


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("model=qwen3-30b-a3b tp=4 adp=3", "must divide tp=4 of a model with experts"),
        ("tp=2 adp=2", "of a model with experts"),
        ("model=qwen3-30b-a3b tp=2 adp=2 overlap=1 batch=2", "overlap=1 is of devices that share attention"),
        ("prompts=2 phase=decode", "phase=decode page=16"),
        ("prompts=2 page=16", "phase=decode page=16"),
        ("past=64", "page=16"),
        ("past=64 phase=decode page=16", "prompts beside a decode"),
        ("ep=2", "must divide tp=1"),
    ],
)
def test_steps_that_no_server_has_are_refused(keys: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(f"llama {keys if 'model=' in keys else f'model=tiny {keys}'}", "h100-sxm")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma9"}, "model_type=gemma9: must be one of llama,"),
        ({"model_type": ...}, "model_type=None"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"hidden_size": "128"}, 'hidden_size="128": must be a whole number from 1 on'),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings="no": must be true or false'),
        ({"sliding_window": 32, "layer_types": 5}, "layer_types=5: must be a list"),
        ({"intermediate_size": -3}, "intermediate_size=-3: must be a whole number"),
        ({"num_atention_heads": 4}, "num_atention_heads is not understood; did you mean num_attention_heads"),
        ({"hidden_act": "gelu"}, 'hidden_act="gelu": only "silu" is simulated'),
        ({"quantization_config": {"bits": 4}}, "say dtype=fp8"),
        ({"num_experts": 4}, "num_experts_per_tok is missing"),
        ({"model_type": "qwen3_moe"}, "moe_intermediate_size is missing"),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        (
            {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1},
            "layers with and without sliding_window",
        ),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=r"config\.json") as error:
        model_of(written(tmp_path, **changes))
    assert said in str(error.value)


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean qwen3-32b"):
        model_of("qwen3-33b")
    with pytest.raises(InputError, match="No such file"):
        model_of(f"{tmp_path}/nothing")
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="holds no object"):
        model_of(f"{tmp_path}/")
    for text, said in (("{", "is not JSON"), ("[" * 20_000 + "]" * 20_000, "nested more than 100 levels deep")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match=said):
            model_of(f"{tmp_path}/")


def test_a_whole_model_has_all_layers_and_its_vocabulary_unless_others_are_given() -> None:
    assert whole_model("qwen3-8b", ["seq=64"]) == "llama model=qwen3-8b layers=36 vocab=151936 seq=64"
    assert whole_model("qwen3-8b", ["layers=2", "vocab=0"]) == "llama model=qwen3-8b layers=2 vocab=0"


def test_the_command_runs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert main(["model", path, "phase=decode", "seq=64", "--arch", "h100-sxm", "--profile"]) == 0
    out = capsys.readouterr().out
    assert "aten::scaled_dot_product_attention" in out
    assert "aten::embedding" in out
    assert main(["model", "qwen3-33b", "--arch", "h100-sxm"]) == 2
    assert "did you mean qwen3-32b" in capsys.readouterr().err


def test_models_without_a_plan_of_their_own_run_step_by_step_on_other_machines(tmp_path: Path) -> None:
    work = f"llama model={written(tmp_path)} seq=64"
    assert simulate(work, "sn40l", schedule="steps").record.time_ps > 0
    with pytest.raises(InputError, match="schedule=steps"):
        simulate(work, "sn40l", schedule="fused by hardware tokens 64")
