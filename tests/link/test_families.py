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
    # Each reads the others' shares through the switch, and writes its own sum once.
    assert gpu.figures.counters["link_write_bytes"] == 16777216 * 9 // 8
    assert rdu.bound == "link"
    with pytest.raises(InputError, match="t4 has no network beyond a node of 8"):
        simulate("allreduce bytes=65536 devices=16", "t4")
    with pytest.raises(InputError, match="the model of one node takes 8"):
        simulate("all_reduce gpus=16 elements=64k", "t4")


def test_graphs_sum_as_libraries_do() -> None:
    """A sum inside a graph is the library's kernel, not its messages alone."""
    graph, alone = (
        simulate(text, "h100-sxm") for text in ("allreduce bytes=8192 devices=8", "all_reduce gpus=8 elements=4k")
    )
    assert graph.record.kernels[0].time_ps == alone.record.kernels[0].time_ps
    assert "nccl ring LL" in graph.record.kernels[0].name
    serving = simulate("allreduce bytes=8192 devices=8", "h100-sxm", schedule="fused_graph")
    assert "vllm one_shot" in serving.record.kernels[0].name
    assert serving.record.kernels[0].time_ps < graph.record.kernels[0].time_ps


def test_sockets_hide_what_gpus_wait_for() -> None:
    """Two sums a layer: kernels of their own on a GPU, stages of the pipeline on sockets."""
    report = simulate("llama model=tiny phase=decode seq=64 tp=2", "h100-sxm", schedule="fused_graph")
    names = [kernel.name for kernel in report.record.kernels]
    assert sum("all_reduce" in name for name in names) == 2
    sockets = simulate("llama model=tiny phase=decode seq=64 tp=2", "sn40l")
    assert [s.kind for s in sockets.record.kernels[0].own.stages].count("collective") == 2
