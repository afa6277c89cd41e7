"""Programmatic dependent launch: what it saves, where it is refused, what reports and stores say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from arch import load_arch
from arch.errors import InputError
from sim.app.cli import main
from sim.app.families.request import Request
from sim.app.report.record import RunRecord
from sim.app.run import compare, run, run_recorded, simulate
from sim.gpu.engine.api import Device
from sim.gpu.engine.dependents import all_running, first_instruction
from sim.gpu.language import Kernel, KernelBuilder
from sim.gpu.lower.occupancy import room_left, room_of_cta
from workloads.graphs import Graph, GraphBuilder
from workloads.ops import Pointwise

MACHINE = "h100-sxm"
SMALL = "softmax rows=512 cols=1024 dtype=fp16"
SEVERAL = "attention batch=1 heads=16 seq=512 head_dim=64 dtype=fp16"


def chain() -> Graph:
    """Four small kernels that depend on each other."""
    g = GraphBuilder("chain")
    op = Pointwise(n=1 << 16, chain="add", dtype="fp16").with_defaults("fp16")
    x, y = (g.tensor(name, 1 << 16, "fp16") for name in "xy")
    for i in range(4):
        x = g.call(f"add {i}", op, x, y)
    return g.build(x)


def pair(workload: Graph | str, **options: str) -> tuple[RunRecord, RunRecord]:
    """Without and with it."""
    off, on = (simulate(workload, MACHINE, pdl=pdl, **options).record for pdl in (False, True))  # type: ignore[arg-type]
    return off, on


def cycles(record: RunRecord) -> list[int]:
    return [kernel.cycles for kernel in record.kernels]


def cta_launch_ps() -> float:
    """From a free slot to the first instruction."""
    spec = load_arch(MACHINE)
    return spec.sm.cta_launch_cycles * 1e12 / spec.clock.boost_hz


def test_calls_save_hand_over_and_the_launch_of_a_cta() -> None:
    spec = load_arch(MACHINE)
    launch = spec.launch
    for scope, saved_ps in (
        ("stream", launch.gap_stream_ps - launch.release_stream_ps),
        ("graph", launch.gap_graph_ps - launch.release_graph_ps),
    ):
        off, on = pair(SMALL, scope=scope)
        assert cycles(off) == cycles(on)
        assert off.time_ps - on.time_ps == pytest.approx(saved_ps - launch.drain_ps + cta_launch_ps(), abs=1000)


def test_the_gap_is_what_a_probe_of_it_measures() -> None:
    """`kernel_gap` of h100_probes.csv: from the last CTA's end to the next kernel's first instruction, us."""
    spec = load_arch(MACHINE)
    for scope, plain_us, dependent_us in (("stream", 1.76, 0.832), ("graph", 0.736, 0.48)):
        off, on = pair(SMALL, scope=scope)
        assert (off.time_ps - on.time_ps) / 1e6 == pytest.approx(plain_us - dependent_us, abs=0.2)
    assert (spec.launch.drain_ps + spec.launch.release_stream_ps) / 1e6 == pytest.approx(0.832, abs=0.01)
    assert (spec.launch.drain_ps + spec.launch.release_graph_ps) / 1e6 == pytest.approx(0.48, abs=0.01)


def test_one_kernel_by_itself_has_nothing_to_overlap() -> None:
    for scope in ("kernel", "host", "event"):
        off, on = pair(SMALL, scope=scope)
        assert (off.time_ps, cycles(off)) == (on.time_ps, cycles(on))


def test_kernels_of_an_operator_begin_in_the_one_before_and_never_before_their_data() -> None:
    off, on = pair(SEVERAL, schedule="unfused")
    assert [kernel.time_ps for kernel in off.kernels] == [kernel.time_ps for kernel in on.kernels]
    early = [kernel.beside_ps for kernel in on.kernels]
    assert early[0] == 0
    assert sum(early) > 0
    assert off.time_ps - on.time_ps == sum(early)
    # No more than what comes before the first instruction, set-up and code included.
    spec = load_arch(MACHINE)
    most_ps = spec.launch.setup_ps + 2_000_000
    assert all(ps < most_ps for ps in early)
    assert any(ps > spec.launch.setup_ps - spec.launch.release_stream_ps for ps in early), "a whole set-up"


def test_a_graph_is_shorter_by_what_its_kernels_overlap() -> None:
    off, on = pair(chain(), schedule="graph", scope="graph")
    assert cycles(off) == cycles(on)
    assert off.time_ps > on.time_ps
    # What needs no time cannot be hidden.
    figures = ["sm.cta_launch=0 cycles", "launch.gap_graph=400 ns"]
    times = {
        simulate(chain(), MACHINE, set=figures, schedule="graph", scope="graph", pdl=pdl).time_us
        for pdl in (False, True)
    }
    assert len(times) == 1


def long_ctas(ctas: int, shared_bytes: int = 0) -> Kernel:
    """CTAs of 10,000 cycles and more."""
    kernel = KernelBuilder("long", (ctas, 1, 1))
    if shared_bytes:
        kernel.shared("tile", (shared_bytes,), "int8")
    with kernel.role("warps", warps=4, registers=64) as r:
        r.run("ffma", 5000)
    return kernel.build()


def test_the_trigger_is_the_start_of_the_last_wave() -> None:
    spec = load_arch(MACHINE)
    kernel = long_ctas(3 * spec.sm.count, shared_bytes=200 << 10)
    launch = Device(spec).build(kernel, {})
    result = launch.run()
    first, last, end = (launch.since_launch_ps(tick) for tick in (
        first_instruction(launch), all_running(launch), launch.last_warp_tick,
    ))  # fmt: skip
    assert result.time_ps - end == pytest.approx(spec.launch.drain_ps, abs=1000)
    # Three waves, one after the other, with the launch of a CTA between them.
    assert last - first == pytest.approx(2 * (end - last + cta_launch_ps()), rel=0.02)


def test_what_an_sm_has_left() -> None:
    spec = load_arch(MACHINE)
    half, most = (room_left(long_ctas(ctas, 100 << 10), spec) for ctas in (spec.sm.count, 5 * spec.sm.count))
    # 64 warps, a quarter of 64 K registers and 228 KiB, of which the system keeps 1 KiB a CTA.
    assert half == (60, 16384 - 64 * 32, 127 << 10, 31)
    assert most == (56, 16384 - 2 * 64 * 32, 26 << 10, 30)
    assert room_of_cta(long_ctas(1, 100 << 10), spec) == (4, 64 * 32, 101 << 10, 1)


def test_the_timeline_shows_one_kernel_after_the_other() -> None:
    asked = Request(chain(), load_arch(MACHINE), schedule="graph", pdl=True)
    record, timeline = run_recorded(asked)
    assert "Programmatic dependent launch: within one call, 3 of 4 kernels" in record.notes[0]
    found = [piece for piece in timeline().slices if piece.category == "kernel" and "number" in piece.args]
    kernels = sorted(found, key=lambda piece: piece.begin)
    assert len(kernels) == 4
    assert all(before.end <= after.begin for before, after in pairwise(kernels))
    assert ["overlap_cycles" in piece.args for piece in kernels] == [False, True, True, True]


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"pdl: .* needs compute capability 9.0, a100-sxm4-40gb has 8.0"):
        simulate(SMALL, "a100-sxm4-40gb", pdl=True)
    with pytest.raises(InputError, match="means nothing on tpu-v1"):
        simulate("gemm m=64 n=64 k=64 dtype=int8", "tpu-v1", pdl=True)
    with pytest.raises(InputError, match="pdl: all_reduce"):
        simulate("all_reduce gpus=2 elements=1024", MACHINE, pdl=True)
    rows = compare(SMALL, [MACHINE, "a100-sxm4-40gb"], pdl=True, scope="stream").to_dict()["rows"]
    assert ["reason" in row for row in rows] == [False, True]


def test_reports_and_stores_tell_the_runs_apart(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", *SMALL.split(), "--arch", MACHINE, "--scope", "graph")
    documents = []
    for more in ((), ("--pdl",)):
        assert main([*words, *more, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert [document.get("pdl") for document in documents] == [None, True]
    assert documents[1]["time_us"] < documents[0]["time_us"]
    main([*words, "--pdl"])
    assert "pdl" in capsys.readouterr().out.splitlines()[0]
    asked = Request(SMALL, load_arch(MACHINE))
    assert replace(asked, pdl=True).chosen() == {**asked.chosen(), "pdl": True}
    assert run(replace(asked, pdl=True)).asked.pdl


CUT = "gemm m=32 n=256 k=8192 tb=T dtype=bf16"
CUT_SCHEDULE = "wgmma 64x32x64 stages 12 split 8 reduce"


def test_the_sum_of_pieces_begins_before_their_kernel_has_ended_on_hopper() -> None:
    """Without `pdl`: cuBLAS launches its reduction so behind kernels of the TMA."""
    spec = load_arch(MACHINE)
    record = simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="stream").record
    assert [kernel.name.split("_")[0] for kernel in record.kernels] == ["gemm", "splitk"]
    alone = ["launch.gap_stream=400 ns", "launch.release_stream=0 ns"]
    fastest = simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="stream", set=alone).record
    late = simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="stream", set=["launch.release_stream=9 us"]).record
    saved_ps = late.time_ps - record.time_ps
    hand_over_ps = spec.launch.gap_stream_ps - spec.launch.drain_ps
    assert saved_ps == pytest.approx(hand_over_ps - spec.launch.release_stream_ps, abs=1000)
    assert fastest.time_ps < record.time_ps


def test_a_profiler_sees_both_kernels_one_by_one() -> None:
    times = {
        simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="kernel", set=[f"launch.release_{where}=0 ns"]).time_us
        for where in ("stream", "graph")
    }
    assert times == {simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="kernel").time_us}


def test_the_sum_of_pieces_begins_early_in_graphs_too() -> None:
    spec = load_arch(MACHINE)
    runs = [
        simulate(CUT, MACHINE, schedule=CUT_SCHEDULE, scope="graph", set=[f"launch.release_graph={release}"]).record
        for release in ("80 ns", "9 us")
    ]
    saved_ps = runs[1].time_ps - runs[0].time_ps
    assert saved_ps == pytest.approx(spec.launch.gap_graph_ps - spec.launch.drain_ps - 80_000, abs=1000)


def test_kernels_that_copy_by_themselves_are_waited_for() -> None:
    """CUTLASS's kernels of the generation before let nothing begin early."""
    schedule = "mma 64x64x64 warp 32x32 cp.async stages 4 split 4 reduce"
    times = [
        simulate(CUT, MACHINE, schedule=schedule, scope="stream", set=[f"launch.release_stream={ns} ns"]).time_us
        for ns in (0, 400)
    ]
    assert times[0] == times[1]
