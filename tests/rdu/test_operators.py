"""Softmax, norms, chains and attention as pipelines: numbers, traffic, overlap, and FIFOs that are too shallow."""

from __future__ import annotations

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.report.report import Report
from sim.app.run import simulate
from tests.rdu.conftest import SMALL
from workloads.parse import parse
from workloads.rdu.select import build, choose

CASES = [
    "softmax rows=70 cols=96",
    "layernorm rows=33 cols=128",
    "rmsnorm rows=33 cols=128",
    "gelu n=5000",
    "silu_backward n=5000",
    "softmax_backward rows=33 cols=96",
    "pointwise chain=cos+cos n=9000 repeat=2",
    "pointwise chain=exp+add+silu fused=0 n=9000",
    "attention batch=2 heads=4 kv_heads=2 seq=80 head_dim=32",
    "attention batch=1 heads=2 seq_q=40 seq_k=100 head_dim=32 causal=1",
]


def passed(report: Report) -> bool:
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes
    return True


@pytest.mark.parametrize("text", CASES)
def test_operators_compute_what_numpy_says(text: str) -> None:
    assert passed(simulate(text, load_arch("sn40l", SMALL), check=True))


@pytest.mark.parametrize("schedule", ["auto", "auto by vectors"])
@pytest.mark.parametrize("text", ["gelu n=20000", "gelu_tanh n=20000", "silu_backward n=20000"])
def test_sums_that_cancel_are_judged_by_what_they_add(text: str, schedule: str) -> None:
    """In fp32, 1 + erf(x) leaves few digits where x is well below 0; a constant that is off is still found."""
    assert passed(simulate(text, "plasticine", schedule=schedule, check=True))
    op = parse(text).with_defaults("fp32")
    given = op.inputs()
    right = op.references(*given)[0]
    assert op.largest_error([right * (1 + 1e-5)], *given) > op.tolerance


@pytest.mark.parametrize(
    "schedule",
    [
        "streaming 32x32 heads 1",
        "streaming 32x96 heads 2",
        "streaming 32x32 heads 1 pipelines 2",
        "naive 32x32 heads 1 fifo 5",
    ],
)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_in_tiles_of_queries_and_keys(schedule: str, causal: int) -> None:
    text = f"attention batch=1 heads=2 seq=96 head_dim=32 causal={causal}"
    assert passed(simulate(text, load_arch("sn40l", SMALL), schedule=schedule, check=True))


def test_fused_pipelines_touch_memory_once() -> None:
    for text in (
        "softmax rows=512 cols=256",
        "rmsnorm rows=512 cols=256",
        "attention batch=1 heads=2 seq=96 head_dim=32",
    ):
        report = simulate(text, load_arch("sn40l", SMALL))
        assert report.figures.external_bytes == report.record.operand_bytes
    fused, unfused = (simulate(f"pointwise chain=cos+cos n=65536 fused={f}", "sn40l") for f in (1, 0))
    assert unfused.figures.external_bytes == 2 * fused.figures.external_bytes
    assert len(unfused.record.kernels) == 2


def test_softmax_has_all_stages_in_flight() -> None:
    report = simulate("softmax rows=2048 cols=512", load_arch("sn40l", SMALL), schedule="streaming 64 rows")
    section = report.record.kernels[0].own
    names = [stage.name for stage in section.stages]
    assert names == ["load_x", "row_max", "subtract", "exponent", "row_sum", "divide", "store_y"]
    busy = [{stage for stage, start, end in section.log if start <= at < end} for _, at, _ in section.log]
    assert max(map(len, busy)) >= 5


def test_large_streams_run_at_the_pace_of_memory() -> None:
    report = simulate("gelu n=67108864", "sn40l")
    assert report.bound == "hbm"
    assert report.figures.speed_of_light()["hbm"] > 0.9


def test_streaming_attention_needs_no_fifo_and_naive_needs_a_row() -> None:
    spec = load_arch("sn40l", SMALL)
    text = "attention batch=1 heads=1 seq_q=32 seq_k=512 head_dim=32"
    row = 512 // 32
    with pytest.raises(InputError, match=r"attention deadlocks: .*exponent -> divide .*lets it run"):
        simulate(text, spec, schedule=f"naive 32x32 heads 1 fifo {row - 3}")
    times = {fifo: simulate(text, spec, schedule=f"naive 32x32 heads 1 fifo {fifo}").cycles for fifo in (row, row + 1)}
    streaming = simulate(text, spec, schedule="streaming 32x32 heads 1").cycles
    assert streaming < 1.5 * times[row]
    op = parse(text).with_defaults("bf16")
    depths = {}
    for form in ("naive", "streaming"):
        program = build(op, spec, choose(op, spec, form).config)
        depths[form] = max(read.depth for read in program.calls[0].section.channels)
    assert depths["streaming"] == 4  # tiles on their way, whatever the number of keys
    assert depths["naive"] > 2


def test_a_pipeline_on_each_die_spares_the_border_between_them() -> None:
    """One over both sends scores or exponentials across; a border as wide as the mesh helps that one alone."""
    text, wide = "attention batch=1 heads=2 seq=4096 head_dim=128", ["dies.bandwidth=8.192 TB/s"]
    one, two = "streaming 256x384 heads 2", "streaming 256x384 heads 1 pipelines 2"
    cycles = {(s, bool(o)): simulate(text, "sn40l", schedule=s, set=o).cycles for s in (one, two) for o in ([], wide)}
    assert cycles[two, False] < 0.93 * cycles[one, False]
    assert cycles[one, True] < 0.93 * cycles[one, False]
    assert cycles[two, True] == pytest.approx(cycles[two, False], rel=0.02)
    with pytest.raises(InputError, match="2 pipelines of 2 heads a tile do not divide 2 heads"):
        simulate(text, "sn40l", schedule="streaming 256x384 heads 2 pipelines 2")


def test_firings_of_a_double_buffer_overlap() -> None:
    report = simulate("softmax rows=1024 cols=512", load_arch("sn40l", SMALL), schedule="streaming 64 rows")
    log = report.record.kernels[0].own.log
    top = [(s, e) for stage, s, e in log if stage == 1]
    minus = [(s, e) for stage, s, e in log if stage == 2]
    overlaps = sum(a[0] < b[1] and b[0] < a[1] for a, b in zip(top[1:], minus, strict=False))
    assert overlaps > len(top) // 2


@pytest.mark.parametrize("change", ["pcu.count=8", "pcu.count=520", "pmu.count=520", "mesh.rows=20", "dies.count=1"])
def test_other_geometries_run_too(change: str) -> None:
    assert passed(simulate("softmax rows=64 cols=64", "sn40l", set=[change], check=True))
