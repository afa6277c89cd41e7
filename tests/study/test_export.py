"""Tables and traces that other simulators read."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.export import chakra
from sim.app.export.table import Dense, Place, Table, TableRequest, places
from sim.app.export.writers import WRITERS
from sim.app.run import simulate
from sim.app.serving.deployment import Deployment
from sim.app.shared_model import SharedModel
from workloads.graphs.llama import Llama
from workloads.ops.base import Operator


@pytest.fixture(scope="module")
def table() -> Table:
    """Operators of a small model, whose times are their numbers."""
    h100 = load_arch("h100-sxm")
    asked = TableRequest.of("tiny tp=2 tokens=256 batch=4 keys=256")
    ops = places(asked, h100)
    return Table(asked, h100, ops, {op: 1_000_000 * (n + 1) for n, op in enumerate(dict.fromkeys(ops.values()))})


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# The columns below are those of the published files: systems/data of AIConfigurator, data/profiling of Vidur, and the
# bundle that LLMServingSim's profiler writes.


def test_aiconfigurator_reads_the_columns_that_it_has(table: Table, tmp_path: Path) -> None:
    written = {path.name: rows(path) for path in WRITERS["aiconfigurator"](table, tmp_path)}
    assert ",".join(written["gemm_perf.txt"][0]) == (
        "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency"
    )
    for name in ("context", "generation"):
        assert ",".join(written[f"{name}_attention_perf.txt"][0]) == (
            "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,"
            "beam_width,attn_dtype,kv_cache_dtype,step,latency"
        )
    assert ",".join(written["custom_allreduce_perf.txt"][0]) == (
        "framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,latency"
    )
    gemm = next(row for row in written["gemm_perf.txt"] if (row["m"], row["n"]) == ("16", "256"))
    assert gemm["gemm_dtype"] == "bfloat16"
    assert float(gemm["latency"]) == table.time_us(Dense("qkv", 16)) / 1000
    decode = written["generation_attention_perf.txt"]
    assert {(row["batch_size"], row["isl"], row["step"]) for row in decode} == {
        (f"{n}", f"{k}", "1") for n in (1, 2, 4) for k in (127, 255)
    }
    assert {row["num_heads"] for row in decode} == {"2"}  # of one of two devices


@pytest.mark.parametrize(
    ("asked", "name", "form"),
    [
        ("gpt-oss-20b", "moe", "w4a16_mxfp4"),
        ("gpt-oss-20b", "gemm", "bfloat16"),
        ("deepseek-v3 tp=8", "moe", "fp8_block"),
    ],
)
def test_aiconfigurator_knows_formats_by_its_own_names(asked: str, name: str, form: str, tmp_path: Path) -> None:
    machine = load_arch("h100-sxm")
    ops = places(TableRequest.of(f"{asked} tokens=2 batch=1 keys=128"), machine)
    dense: dict[Place, Operator] = {place: op for place, op in ops.items() if isinstance(place, Dense)}
    written = Table(TableRequest.of(asked), machine, dense, dict.fromkeys(dense.values(), 1))
    (path,) = (path for path in WRITERS["aiconfigurator"](written, tmp_path) if path.name == f"{name}_perf.txt")
    assert {row[f"{name}_dtype"] for row in rows(path)} == {form}


def test_vidur_reads_the_columns_that_its_predictor_trains_on(table: Table, tmp_path: Path) -> None:
    mlp, attention, sums = (rows(path) for path in WRITERS["vidur"](table, tmp_path))
    for name in ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act",
                 "mlp_down_proj", "post_attention_layernorm", "add"):  # fmt: skip
        assert all(f"time_stats.{name}.{kind}" in mlp[0] for kind in ("min", "max", "mean", "median", "std"))
    filters = {"n_head": "4", "n_kv_head": "2", "n_embd": "256", "n_expanded_embd": "256", "use_gated_mlp": "True",
               "vocab_size": "1024", "num_tensor_parallel_workers": "2"}  # fmt: skip
    assert [row for row in mlp if row.items() >= filters.items()] == mlp
    assert [row["num_tokens"] for row in mlp] == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    prompts = [row for row in attention if row["is_prefill"] == "True"]
    assert [(row["batch_size"], row["prefill_chunk_size"]) for row in prompts] == [("1", "128"), ("1", "256")]
    assert all(float(row["time_stats.attn_decode.median"]) == 0 for row in prompts)
    decodes = [row for row in attention if row["is_prefill"] == "False"]
    assert len(decodes) == 6
    assert all(float(row["time_stats.attn_decode.median"]) > 0 for row in decodes)
    assert sums[0]["collective"] == "all_reduce"
    assert {row["num_workers"] for row in sums} == {row["devices_per_node"] for row in sums} == {"2"}


def test_llmservingsim_reads_its_bundle(table: Table, tmp_path: Path) -> None:
    dense, sequences, attention, meta = WRITERS["llmservingsim"](table, tmp_path)
    assert dense.parent.relative_to(tmp_path).as_posix() == "h100-sxm/tiny/bf16/tp2"
    assert list(rows(dense)[0]) == ["layer", "tokens", "time_us"]
    assert {row["layer"] for row in rows(dense)} == {
        *("embedding", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj"),
        "final_layernorm",
    }
    assert {row["layer"] for row in rows(sequences)} == {"lm_head", "sampler"}
    grid = rows(attention)
    assert list(grid[0]) == ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    at = {tuple(int(row[key]) for key in list(row)[:4]): float(row["time_us"]) for row in grid}
    assert at[128, 0, 4, 256] == pytest.approx(at[128, 0, 0, 0] + at[0, 0, 4, 256])
    assert yaml.safe_load(meta.read_text())["attention_grid"]["n_decode"] == [1, 2, 4]


def test_tables_of_experts_and_of_what_has_no_form() -> None:
    h100 = load_arch("h100-sxm")
    asked = TableRequest.of("qwen3-30b-a3b tp=2 ep=2 tokens=16 batch=1 keys=128")
    ops = places(asked, h100)
    made = Table(asked, h100, ops, dict.fromkeys(ops.values(), 1))
    assert {place.role for place in made.of(Dense)} >= {"experts", "router", "q_norm"}
    with pytest.raises(InputError, match="dense layers alone"):
        WRITERS["vidur"](made, Path("/nowhere"))


def test_chakra_traces_are_messages_behind_their_lengths(tmp_path: Path) -> None:
    work = "llama model=tiny layers=2 phase=decode seq=64 tp=2 vocab=1024"
    times = list(simulate(work, "h100-sxm", schedule="fused_graph").record.operators)
    graph = Llama(model="tiny", layers=2, phase="decode", seq=64, tp=2, vocab=1024, dtype="bf16").graph(fused=True)
    first, second = chakra.write(graph, times, tmp_path)
    assert first.read_bytes() == second.read_bytes()
    head, *nodes = chakra.read(first.read_bytes())
    assert head[1] == [b"0.0.4"]
    assert len(nodes) == len(graph.steps)
    assert [node[1] for node in nodes] == [[n + 1] for n in range(len(nodes))]

    def attributes(node: Any) -> dict[str, Any]:
        found = (chakra.fields(data) for data in node[10])
        return {one[1][0].decode(): next(value[0] for key, value in one.items() if key != 1) for one in found}

    sums = [node for node in nodes if node[3] == [7]]
    assert len(sums) == 1 + 2 * 2 + 1  # embedding, two a layer, logits
    assert [attributes(node)["comm_type"] for node in sums] == [0] * 5 + [2]
    assert attributes(sums[0])["comm_size"] == 256 * 2
    products = [node for node in nodes if node[2][0].startswith(b"aten::mm")]
    assert all(attributes(node)["num_ops"] > 0 and node[5][0] < node[1][0] for node in products)
    # Whole microseconds add up to the time of all, exact ones to each.
    whole_us = sum(node[7][0] for node in nodes)
    assert abs(whole_us - sum(time.device_ps for time in times) * 1e-6) <= 0.5
    assert [attributes(node)["duration_nanos"] for node in nodes] == [round(t.device_ps / 1000) for t in times]


def test_the_command_writes_into_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "chakra", "tiny", "layers=1", "phase=decode", "seq=64", "tp=2", "--arch", "h100-sxm"]
    assert main([*words, "--out", f"{tmp_path}/traces"]) == 0
    assert capsys.readouterr().out.count(".et") == 2
    assert main([*words, "--out", f"{tmp_path}/traces"]) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err
    assert main(["export", "chakro", "tiny", "--arch", "h100-sxm", "--out", f"{tmp_path}/other"]) == 2
    assert "did you mean chakra" in capsys.readouterr().err
    assert main(["export", "vidur", "tiny", "--arch", "tpu-v1", "--out", f"{tmp_path}/other"]) == 2
    assert "runs no graph of a model" in capsys.readouterr().err


def test_keys_of_serve_and_export_are_declared_once() -> None:
    own = [{*vars(cls)["__annotations__"]} - {"command"} for cls in (Deployment, TableRequest)]
    assert own[0] & own[1] == set()
    shared = {field.name for field in fields(SharedModel)}
    assert {"tp", "ep", "page", "dtype"} < shared
    assert not shared & (own[0] | own[1])


@pytest.mark.parametrize(
    ("asked", "tokens"), [("qwen3-32b tp=2", 16), ("kimi-k2 tp=8", 64), ("kimi-k2 tp=8 page=32", 32)]
)
def test_pages_of_latent_vectors_are_those_that_flashmla_reads(asked: str, tokens: int) -> None:
    assert Deployment.of(asked).page_tokens == tokens
