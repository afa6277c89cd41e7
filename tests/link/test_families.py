"""All-reduce alone and inside layers, on GPUs and on dataflow sockets, by the same code."""

from __future__ import annotations

import pytest

from arch.errors import InputError
from sim.app.run import simulate


def test_allreduce_runs_on_both_families_and_checks_its_sums() -> None:
    text = "allreduce bytes=16777216 devices=8"
    gpu, rdu = simulate(text, "h100-sxm"), simulate(text, "sn40l", check=True)
    assert rdu.record.check is not None
    assert rdu.record.check.passed
    # Seven eighths of the buffer leave every device twice.
    assert rdu.figures.counters["link_write_bytes"] == 2 * 7 * 16777216
    assert gpu.figures.counters["link_write_bytes"] == 2 * 7 * 16777216 // 8
    assert rdu.bound == "link"
    with pytest.raises(InputError, match="t4 has no links"):
        simulate(text, "t4")


def test_sockets_hide_what_gpus_wait_for() -> None:
    """Two sums a layer: kernels of their own on a GPU, stages of the pipeline on sockets."""
    report = simulate("llama model=tiny phase=decode seq=64 tp=2", "h100-sxm", schedule="fused_graph")
    names = [kernel.name for kernel in report.record.kernels]
    assert sum("all_reduce" in name for name in names) == 2
    sockets = simulate("llama model=tiny phase=decode seq=64 tp=2", "sn40l")
    assert [s.kind for s in sockets.record.kernels[0].own.stages].count("collective") == 2
