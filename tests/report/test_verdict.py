"""Verdicts, tested by doing what they advise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.app.report.report import Report
from sim.app.run import simulate

BUSY = {"External memory": "dram.bandwidth", "The L2": "l2.bandwidth", "The link to the host": "pcie.bandwidth"}


def _words(report: Report) -> str:
    return " ".join(str(report).split())


def _changed(workload: str, machine: str, path: str, factor: float, schedule: str) -> Report:
    """The same run on a machine with more of one figure."""
    return _with(workload, machine, schedule, {path: factor})


def _with(workload: str, machine: str, schedule: str, factors: dict[str, float]) -> Report:
    """The same run on a machine whose figures are multiplied by factors."""
    from arch.load import load_arch

    spec, figures = load_arch(machine), {}
    for path, factor in factors.items():
        group, name = path.split(".")
        leaf = getattr(spec, group)
        now = next(getattr(leaf, f) for f in type(leaf).model_fields if f == name or f.startswith(f"{name}_"))
        figures[path] = round(now * factor)
    return simulate(workload, machine, set=figures, schedule=schedule)  # type: ignore[arg-type]


def _saved(before: Report, after: Report) -> float:
    return 1 - after.time_us / before.time_us


@pytest.mark.parametrize(
    ("workload", "machine"),
    [
        ("softmax rows=1024 cols=4096 dtype=bf16", "h100-sxm"),
        ("gemm m=512 n=512 k=4096 dtype=fp16", "t4"),
        ("softmax rows=512 cols=512", "tpu-v1"),
    ],
)
def test_twice_a_bandwidth_saves_what_the_report_allows(workload: str, machine: str) -> None:
    before = simulate(workload, machine)
    found = re.findall(r"([A-Z][\w ]+) moves data for ([\d.]+) %", _words(before))
    assert found
    for level, share in found:
        after = _changed(workload, machine, BUSY[level], 2, before.record.schedule)
        saved = 1 - after.time_us / before.time_us
        assert saved <= float(share) / 100 / 2 + 0.01
        assert saved > -0.01


def test_external_memory_that_bounds_a_run_moves_it() -> None:
    before = simulate("copy n=8000000 dtype=fp32", "t4")
    assert before.bound == "dram"
    assert "more memory bandwidth would move it" in _words(before)
    after = _changed("copy n=8000000 dtype=fp32", "t4", "dram.bandwidth", 2, before.record.schedule)
    assert after.time_us < 0.75 * before.time_us


def test_shared_memory_that_bounds_a_run_moves_it() -> None:
    """A T4 with half the width: its fp32 products read each operand from shared memory once a k step."""
    half, work, schedule = "shared.bandwidth=32 B/clk", "gemm m=128 n=512 k=256 dtype=fp32", "simt 64x64x16 warp 32x32"
    before = simulate(work, "t4", set=[half, "sm.count=16"], schedule=schedule)
    assert before.bound == "smem"
    assert before.figures.roofs()[0].name == "smem"
    assert "a wider array of shared memory would move it" in _words(before)
    after = simulate(work, "t4", set=["shared.bandwidth=64 B/clk", "sm.count=16"], schedule=schedule)
    assert after.time_us < 0.85 * before.time_us


def test_the_host_that_bounds_a_tpu_is_named_and_moves_it() -> None:
    work = "softmax rows=1024 cols=1024"
    before = simulate(work, "tpu-v1")
    reached = before.figures.speed_of_light()
    assert max(reached, key=lambda name: reached[name]) == "host"
    assert "A faster host (host.ops, host.bandwidth, host.turnaround) or a vector unit would move it" in _words(before)
    assert "faster link to the host" not in _words(before)
    faster = simulate(work, "tpu-v1", set=["host.ops=1000 GHz"])
    assert faster.time_us < (1 - 0.7 * reached["host"]) * before.time_us
    # Now the link is busier than the host, and the advice moves with it.
    assert "A faster and nearer link to the host" in _words(faster)


def test_a_pipe_is_called_busy_only_where_it_is() -> None:
    bursts = simulate(
        "gemm m=512 n=512 k=4096 dtype=fp16", "t4", schedule="mma 128x128x32 warp 64x64 ldg stages 2 split 2"
    )
    assert bursts.bound == "latency"
    assert "math pipe throttle; it moves with work that is spread over time and SMs" in _words(bursts)
    busy = simulate("gemm m=2048 n=2048 k=512 dtype=fp16", "t4")
    assert busy.bound == "compute"
    assert "math pipe throttle; it moves with a faster tensor pipe" in _words(busy)


def test_softmax_is_not_told_to_split_k() -> None:
    text = _words(simulate("softmax rows=64 cols=4096 dtype=fp16", "t4"))
    assert "would move it: smaller tiles for more CTAs" in text or "more loads in flight" in text
    assert "parts of k" not in text
    assert "split-K" not in text


NEARER = {"clock.boost": 1.25, "l2.hit_latency": 0.5, "dram.latency": 0.5}


@pytest.mark.parametrize(
    ("workload", "machine"),
    [
        ("add n=500000 dtype=fp32", "a30"),
        ("gemm m=512 n=512 k=512 dtype=fp16", "t4"),
        ("rmsnorm rows=256 cols=4096 dtype=bf16", "l40s"),
    ],
)
def test_a_run_that_waits_moves_with_nearer_memory_and_not_with_another_schedule(workload: str, machine: str) -> None:
    before = simulate(workload, machine)
    assert before.bound == "latency"
    text = _words(before)
    assert re.search(r"None of the \d+ schedules that were simulated is faster; a higher clock together", text)
    assert "smaller tiles" not in text.partition("waits bound it")[2].partition("Warps spend")[0]
    assert _saved(before, simulate(workload, machine, tune=True)) < 0.01
    assert _saved(before, _with(workload, machine, before.record.schedule, NEARER)) > 0.05


def test_a_run_whose_schedule_was_given_is_told_of_others() -> None:
    work, given = "gemm m=512 n=512 k=4096 dtype=fp16", "mma 128x128x32 warp 64x64 ldg stages 2"
    before = simulate(work, "t4", schedule=given)
    assert "Another schedule may move it (--tune tries all): smaller tiles or parts of k" in _words(before)
    assert _saved(before, simulate(work, "t4", tune=True)) > 0.05


@pytest.mark.parametrize(
    ("workload", "machine"),
    [("exp n=263981 dtype=fp16", "v100-pcie"), ("softmax rows=512 cols=512 dtype=bf16", "sn40l")],
)
def test_a_faster_chip_saves_no_more_than_what_is_not_launch(workload: str, machine: str) -> None:
    before = simulate(workload, machine)
    assert before.bound == "overhead"
    found = re.search(r"the fastest chip would save no more than the other ([\d.]+) %", _words(before))
    assert found
    rest = float(found[1]) / 100
    assert rest == pytest.approx(1 - before.figures.overhead_ps / before.figures.time_ps, abs=0.001)
    saved = _saved(before, _with(workload, machine, before.record.schedule, {"clock.boost": 1.25}))
    assert 0.02 < saved < rest


def test_memory_that_is_busy_beside_the_array_is_named() -> None:
    """Operands of a TPU v4 come for 60 % of the time, and not all of that hides behind the array."""
    work = "gemm m=2048 n=2048 k=512"
    before = simulate(work, "tpu-v4")
    assert before.bound == "compute"
    assert re.search(r"memory is busy for [\d.]+ %, too: more bandwidth would move it less", _words(before))
    held = before.record.schedule
    memory, clock = (_saved(before, _changed(work, "tpu-v4", p, 1.25, held)) for p in ("dram.bandwidth", "clock.boost"))
    assert 0.01 < memory < clock / 2
    alone = simulate("gemm m=1024 n=1024 k=512 dtype=fp32", "v100-sxm2")
    assert "more memory bandwidth would not" in _words(alone)
    more = _changed("gemm m=1024 n=1024 k=512 dtype=fp32", "v100-sxm2", "dram.bandwidth", 2, alone.record.schedule)
    assert abs(_saved(alone, more)) < 0.01


def test_rows_that_stream_through_a_tpu_are_bound_by_its_memory() -> None:
    """Blocks come, pass the vector unit and leave side by side: bandwidth moves them, and more of it never slows."""
    work, times = "softmax rows=2048 cols=2048", []
    before = simulate(work, "tpu-v4")
    assert before.figures.speed_of_light()["dram"] > 0.85
    text = _words(before)
    assert "External memory is busy" in text
    assert "weight" not in text.partition("What bounds it")[2].partition("Speed of light")[0]
    assert "matrix unit" not in text.partition("What bounds it")[2].partition("Speed of light")[0]
    for factor in (0.5, 1, 1.5, 2, 4):
        times.append(_changed(work, "tpu-v4", "dram.bandwidth", factor, before.record.schedule).time_us)
    assert times == sorted(times, reverse=True)
    assert times[3] < 0.8 * times[1]
    assert _saved(before, _changed(work, "tpu-v4", "clock.boost", 1.25, before.record.schedule)) < 0.06


def test_a_gemmini_that_waits_for_memory_says_so() -> None:
    work = "gemm m=96 n=69 k=154"
    before = simulate(work, "gemmini")
    assert "Operands that the L2 holds before (--l2 warm), or a faster clock together with a nearer" in _words(before)
    held = before.record.schedule
    warm = simulate(work, "gemmini", l2="warm", schedule=held)
    assert _saved(before, warm) > 0.3
    assert "--l2 warm" not in _words(warm).partition("What bounds it")[2].partition("The array waits")[0]
    near = {"memory_cache.latency": 0.5, "memory_cache.port": 4}
    assert _saved(before, _with(work, "gemmini", held, near)) > 0.1


@pytest.mark.parametrize(
    ("workload", "machine", "says", "factors"),
    [
        ("gemm m=256 n=256 k=256", "tpu-v4", "nearer memory (dram.latency)", {"dram.latency": 0.5}),
        ("matvec rows=368 cols=27", "tpu-v3", "nearer memory (dram.latency)", {"dram.latency": 0.5}),
        (
            *("gemm m=11 n=2 k=2", "tpu-v1", "A faster and nearer link to the host"),
            {"pcie.latency": 0.5, "pcie.bandwidth": 2},
        ),
    ],
)
def test_a_tpu_that_waits_moves_with_what_it_waits_for(
    workload: str, machine: str, says: str, factors: dict[str, float]
) -> None:
    before = simulate(workload, machine)
    assert before.bound == "latency"
    text = _words(before).partition("What bounds it")[2]
    assert says in text
    assert "faster activation unit" not in text
    assert _saved(before, _with(workload, machine, before.record.schedule, factors)) > 0.1
    activation = {"activation.values": 4.0}
    assert abs(_saved(before, _with(workload, machine, before.record.schedule, activation))) < 0.02


@pytest.mark.parametrize(
    ("workload", "machine"), [("gemm m=128 n=128 k=512", "plasticine"), ("gemm m=1024 n=1024 k=1024", "sn40l")]
)
def test_a_stage_that_works_moves_with_more_units(workload: str, machine: str) -> None:
    """With its own choice: a schedule names the divisions, so that a held one leaves new units idle."""
    before = simulate(workload, machine)
    assert "more PCUs and PMUs for it would move it" in _words(before)
    assert _saved(before, _with(workload, machine, "auto", {"pcu.count": 2, "pmu.count": 2})) > 0.08


@pytest.mark.parametrize("workload", ["softmax rows=128 cols=256", "gemm m=128 n=128 k=512"])
def test_a_stage_that_waits_for_memory_outside_moves_with_its_bandwidth(workload: str) -> None:
    before = simulate(workload, "plasticine")
    assert "spends" in _words(before)
    assert "in memory; it moves with fewer bytes (fusion, larger tiles) or more bandwidth." in _words(before)
    assert _saved(before, _with(workload, "plasticine", before.record.schedule, {"ddr.bandwidth": 2})) > 0.1


def test_a_stage_that_waits_more_than_it_works_does_not_move_with_more_units() -> None:
    work = "softmax rows=128 cols=256"
    before = simulate(work, "plasticine")
    assert "and waits for longer: more PCUs would not move it" in _words(before)
    assert abs(_saved(before, _with(work, "plasticine", "auto", {"pcu.count": 2, "pmu.count": 2}))) < 0.02


def test_ports_of_memory_units_are_not_taken_for_memory_outside() -> None:
    """Scores read keys across rows, each vector from one bank: DDR is idle, and has nothing to do with it."""
    work = "attention batch=1 heads=2 seq=256 head_dim=64"
    before = simulate(work, "plasticine")
    held = before.record.schedule
    assert "with pmu.transpose where it reads across rows" in _words(before)
    assert _saved(before, simulate(work, "plasticine", set=["pmu.transpose=true"], schedule=held)) > 0.3
    assert _saved(before, _with(work, "plasticine", held, {"pmu.count": 2})) > 0.25
    # One bank gives one word at a time, however wide all of them are together.
    assert abs(_saved(before, _with(work, "plasticine", held, {"pmu.bandwidth": 2}))) < 0.01
    assert _saved(before, _with(work, "plasticine", held, {"ddr.bandwidth": 2})) < 0.02


FULLY_CONNECTED = "Layer,M,N,K,\nfc,2048,4096,1024,\n"
SMALL_LAYERS = "Layer,M,N,K,\ngemm,256,256,768,\ngemv,1,256,768,\n"
SMALL_ARRAY = ["array.rows=128", "array.columns=128", "array.dataflow=ws", "array.overlap_weights=false"]


@pytest.mark.parametrize(
    ("layers", "figures", "cycles"),
    [
        (FULLY_CONNECTED, [], [131_838]),
        (FULLY_CONNECTED, ["pcie.bandwidth=1000 GB/s"], [131_838]),
        (SMALL_LAYERS, SMALL_ARRAY, [12 * (128 + m + 254) for m in (256, 1)]),
    ],
)
def test_units_outside_the_scope_bound_nothing(
    layers: str, figures: list[str], cycles: list[int], tmp_path: Path
) -> None:
    """The array alone: link, memories and buffers take no time, and so have no share of it."""
    file = tmp_path / "layers.csv"
    file.write_text(layers, encoding="utf-8")
    report = simulate(f"network file={file}", "tpu-v1", set=figures, scope="array")
    assert [layer["cycles"] for layer in report.to_dict()["layers"]] == cycles
    assert {layer["bound"] for layer in report.to_dict()["layers"]} == {report.bound} == {"compute"}
    assert set(report.figures.speed_of_light()) == {"compute", "matrix pipe"}
    text = _words(report).partition("What bounds it ")[2]
    assert text.startswith("The array bounds it")
    assert "link to the host is busy" not in text


@pytest.mark.parametrize(
    ("figures", "bound", "says"),
    [
        (["dram.bandwidth=640GB/s"], "power", "The power limit bounds it: it holds the clock at 0.3"),
        ([], "dram", "as memory bounds it, a higher one would not move it"),
    ],
)
def test_the_power_limit_can_be_what_bounds(figures: list[str], bound: str, says: str) -> None:
    """An addition on 70 W. Memory twice as fast leaves the clock at a quarter, and a little more power moves it."""
    work = "pointwise n=16M chain=add dtype=fp32"
    before = simulate(work, "t4", set=figures)
    assert before.bound == bound
    text = _words(before).partition("What bounds it ")[2]
    assert says in text
    assert "multicast" not in text
    assert "at boost the same cycles take less time" not in text
    held = before.record.schedule
    more, faster = (
        simulate(work, "t4", set=[*figures, change], schedule=held)
        for change in ("power.limit=77 W", "clock.boost=1.749 GHz")
    )
    assert (_saved(before, more) > 0.02) == (bound == "power")
    assert abs(_saved(before, faster)) < 0.02


def test_advice_is_what_operator_and_machine_can_take() -> None:
    """Multicast needs clusters and a product; T4 has none, and an addition reads nothing twice."""
    from sim.app.families.gpu.report import _fewer_reads

    said = {
        (word, machine): " ".join(_fewer_reads(simulate(work, machine)))
        for word, work in (("gemm", "gemm m=64 n=64 k=64 dtype=fp16"), ("add", "add n=4096 dtype=fp16"))
        for machine in ("t4", "h100-sxm")
    }
    assert {key for key, text in said.items() if "multicast" in text} == {("gemm", "h100-sxm")}
    assert {key[0] for key, text in said.items() if "tiles" in text} == {"gemm"}


def test_claims_are_in_the_report_as_data() -> None:
    report = simulate("copy n=8000000 dtype=fp32", "t4").to_dict()
    first = report["verdict"][0]
    assert "more memory bandwidth would move it" in first["text"]
    assert {"figures": ["dram.bandwidth"], "moves": True} in first["claims"]
    moved = {tuple(claim["figures"]): claim["moves"] for said in report["verdict"] for claim in said["claims"]}
    assert moved.get(("clock.boost",)) is not True


PROGRAMS = Path(__file__).parents[1] / "reference"


def test_bank_conflicts_come_first_with_their_lines_and_cost() -> None:
    """The stores and loads of columns: rows of 32 words put all of a column into one bank, a pad spreads them."""
    source = PROGRAMS / "turned_softmax.py"
    work = f"{source}:softmax rows=4096 cols=32"
    before, padded = (simulate(f"{work} pad={pad}", "a100-sxm4-80gb") for pad in (0, 4))
    text = _words(before).partition("What bounds it ")[2]
    lines = [n for n, line in enumerate(source.read_text("utf-8").splitlines(), 1) if "32, :].T" in line]
    assert len(lines) == 2
    assert text.startswith("Bank conflicts keep the shared memory of an SM with work busy for ")
    assert all(f"turned_softmax.py:{line} (50.0 % of that)" in text for line in lines)
    found = re.search(r"it takes at most ([\d.]+) us less", text)
    assert found
    saved = before.time_us - padded.time_us
    assert 0.85 * float(found[1]) < saved <= float(found[1])
    held = re.search(r"in barrier, ([\d.]+) % of that because the last warp to arrive is longer in mio throttle", text)
    assert held
    causes = before.to_dict()["gpu"]["barrier_waits"]
    assert sum(causes.values()) == before.figures.stalls["warps"]["barrier"]
    assert causes["mio_throttle"] / sum(causes.values()) == pytest.approx(float(held[1]) / 100, abs=0.001)
    assert causes["mio_throttle"] + causes["short_scoreboard"] > 0.9 * sum(causes.values())
    assert re.search(r"last at barrier +mio throttle", str(before))
    assert "Bank conflicts" not in _words(padded)
    per_line = {line["place"]: line["conflict_cycles"] for line in before.to_dict()["gpu"]["memory_lines"]}
    assert sum(per_line.values()) == pytest.approx(before.figures.counters["smem_conflict_cycles"], abs=2)


def test_uncoalesced_access_comes_first_with_its_lines_and_sectors() -> None:
    """A warp reads and writes a column of 32 rows: 32 sectors a request, of which it uses 4 of 32 bytes each."""
    source = PROGRAMS / "columns.py"
    text, rows = (
        _words(simulate(f"{source}:columns n=2048 turned={turned}", "a100-sxm4-80gb")).partition("What bounds it ")[2]
        for turned in (1, 0)
    )
    places = [n for n, line in enumerate(source.read_text("utf-8").splitlines(), 1) if "c:1]" in line]
    assert text.startswith(
        f"Access of global memory is not coalesced, at columns.py:{places[0]} and columns.py:{places[1]}: "
        "32.0 sectors a request, 87.5 % of whose bytes (28.00 MiB) nobody asked for."
    )
    assert "coalesced" not in rows
