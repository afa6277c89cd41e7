"""Whole models by their name or their `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
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
    ],
)
def test_models_have_the_parameters_that_their_cards_state(model: str, billions: float) -> None:
    sizes = model_of(model)
    op = Llama(model=model, layers=1, vocab=sizes.vocab, dtype="bf16", seq=1)
    buffers = op.graph(fused=False).sizes_bytes
    weights = {name: size // 2 for name, size in buffers.items() if "_weight" in name or "_bias" in name}
    layer = sum(size for name, size in weights.items() if name[0].isdigit())
    rest = sum(weights.values()) - layer
    assert layer * sizes.layers + rest == pytest.approx(billions * 1e9, rel=0.002)


def test_all_published_models_can_be_run() -> None:
    for model in names():
        assert labels(model, phase="decode", batch=2, seq=64)


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


def test_devices_share_out_whole_experts() -> None:
    op = Llama(model="qwen3-30b-a3b", phase="decode", tp=4, ep=2, dtype="bf16")
    (experts,) = [step.op for step in op.graph(fused=True).steps if step.label == "vllm:fused_moe"]
    assert "tp=2 ep=2" in str(experts)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("prompts=2 phase=decode", "phase=decode page=16"),
        ("prompts=2 page=16", "phase=decode page=16"),
        ("past=64", "page=16"),
        ("past=64 phase=decode page=16", "prompts beside a decode"),
        ("ep=2", "must divide tp=1"),
    ],
)
def test_steps_that_no_server_has_are_refused(keys: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate(f"llama model=tiny {keys}", "h100-sxm")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma9"}, "model_type=gemma9: must be one of llama,"),
        ({"model_type": ...}, "model_type=None"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"hidden_size": "128"}, 'hidden_size="128": must be a whole number above 0'),
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
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
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
