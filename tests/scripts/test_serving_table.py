"""The table of served points: which rows run, what they are told, and what the table says."""

from __future__ import annotations

import pytest

from scripts.tables import serving
from sim.app.serving.deployment import Deployment


def row(**changes: str) -> dict[str, str]:
    """The first row of a dense model, with changes."""
    found = next(row for row in serving.rows() if row["model"] == "qwen3-32b" and row["framework"] == "sglang")
    return {**found, **changes}


def test_a_row_is_a_deployment_under_its_frameworks_habits() -> None:
    text = serving.deployment(row())
    deployment = Deployment.of(text)
    assert (deployment.prefill, deployment.budget, deployment.dtype, deployment.spread) == ("alone", 8192, "bf16", 0)
    assert "prefill=mixed budget=2048" in serving.deployment(row(framework="vllm"))
    assert "ep=2" in serving.deployment(row(moe_ep="2", tp="4"))
    assert "tp=4 ep=2 adp=2" in serving.deployment(row(moe_ep="2", moe_tp="2", tp="2"))
    assert serving.deployment(row(model="deepseek-v3", dtype="fp8")).endswith("page=64")
    assert "dtype=fp8 scale=block" in serving.deployment(row(model="qwen3-235b-a22b", dtype="fp8"))
    assert "tp=4 adp=2" in serving.deployment(row(attention_dp="2", tp="2"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "gpt-oss-120b", "dtype": "nvfp4", "tp": "1"}, ""),
        ({"model": "qwen3-235b-a22b", "dtype": "fp8", "machine": "h200-sxm", "tp": "1", "moe_tp": "4"}, ""),
        ({"tp": "8", "moe_ep": "8", "moe_tp": "8"}, "several nodes"),
        ({"model": "deepseek-v3", "dtype": "fp8", "tp": "4"}, "does not fit the memory"),
        ({}, ""),
    ],
)
def test_rows_without_a_form_say_why(changes: dict[str, str], why: str) -> None:
    assert serving.refusal(row(**changes)) == why


def test_the_table_has_a_line_for_each_group_and_part() -> None:
    made = [
        {**row(), "split": split, "error": error} for split, error in (("held", 10.0), ("held", -20.0), ("fitted", 5.0))
    ]
    text = serving.table(made, {("gpt-oss-120b", "h200-sxm", "experts of 4 bits"): 7}, 100)
    assert "of 3 rows of 100, 7 of which do not run" in text
    assert "| qwen3-32b | h100-sxm | unstated | sglang | 1 | 5.0 | +5.0 | +5 | 2 | 15.0 | -5.0 | -20 |" in text
    assert "| 7 | gpt-oss-120b | h200-sxm | experts of 4 bits |" in text
