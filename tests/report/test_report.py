"""Reports against hand calculations on a made-up machine with round figures, the schema, and the words."""

import dataclasses
import json
import re
import sys
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest

from sim.app.families.gpu import report as gpu_report
from sim.app.families.gpu.report import REMEDIES
from sim.app.report.compare import Comparison, Unsupported
from sim.app.report.figures import Figures, hit_rates, level_bytes, shares
from sim.app.report.record import (
    WARP_STATES,
    Candidate,
    CheckResult,
    GpuLaunch,
    KernelRecord,
    MachineFigures,
    Occupancy,
    RunRecord,
    SimulatorStats,
)
from sim.app.report.render import as_html, as_text, show
from sim.app.report.report import Report
from sim.app.report.sections import Meter, Section, sections_of
from sim.app.report.text import bytes_text, time_text

MACHINE = MachineFigures(
    name="round",
    family="gpu",
    view=gpu_report,
    boost_hz=2_000_000_000,
    peak_ops_per_s=100 * 10**12,
    bandwidths={"dram": 10**12, "l2": 4 * 10**12},
    clocked=("l2",),
    power_limit_mw=300_000,
    instances={"tensor": 40},
)

KERNEL = KernelRecord(
    name="mma_128x128x32",
    schedule="mma",
    cycles=100_000,
    clock_hz=1_000_000_000,
    time_ps=100_000_000,  # 100 us
    counters={
        "macs": 2 * 10**9,
        "l2_read_bytes": 60_000_000,
        "l2_write_bytes": 20_000_000,
        "l2_hits": 3,
        "l2_misses": 1,
        "dram_read_bytes": 30_000_000,
        "dram_write_bytes": 10_000_000,
        "tensor_busy_cycles": 40 * 80_000,
    },
    stalls={
        "warps": {"selected": 100, "long_scoreboard": 300, "barrier": 0, "wait": 100},
        "issue": {"issued": 1, "no_warp": 3},
    },
    own=GpuLaunch((20, 1, 1), (1, 1, 1), Occupancy(2, 16, "registers", 64, 12_500), 1000, 20_000, 10_000),
    energy_fj=20 * 10**12,  # 20 mJ
    launch_ps={"command": 2_000_000},
    throttle_reason="power",
)

RUN = RunRecord(
    machine=MACHINE,
    workload="gemm m=1000 n=1000 k=2000 dtype=fp16",
    dtype="fp16",
    flops=4 * 10**9,
    macs=2 * 10**9,
    operand_bytes=10_000_000,
    schedule="mma",
    kernels=(KERNEL,),
    candidates=(Candidate("mma", 90_000, chosen=True), Candidate("simt", 500_000, simulated_cycles=510_000)),
    check=CheckResult(passed=True, max_rel_error=1e-4),
    simulator=SimulatorStats(300, 0.5, 0.6, 10**8, 1000, 200),
)


def changed(*, kernel: dict[str, Any] | None = None, **fields: Any) -> Report:
    """A report on the made-up run with some fields changed."""
    kernels = (dataclasses.replace(KERNEL, **(kernel or {})),)
    return Report(dataclasses.replace(RUN, **{"kernels": kernels, **fields}))


def validate_schema(document: dict[str, Any]) -> None:
    schema = json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(document)))


def test_figures_by_hand() -> None:
    document = Report(RUN).to_dict()
    assert document["cycles"] == 100_000
    assert document["time_us"] == pytest.approx(100)
    assert document["tflops"] == pytest.approx(40)  # 4e9 in 100 us
    assert document["percent_of_peak"] == pytest.approx(40)
    assert document["bytes"]["dram"] == {"read": 30_000_000, "write": 10_000_000}
    assert document["energy_j"] == pytest.approx(0.02)
    assert document["power_w"] == pytest.approx(200)
    assert document["stalls"] == {
        "warps": {"long_scoreboard": 0.6, "selected": 0.2, "wait": 0.2},
        "issue": {"no_warp": 0.75, "issued": 0.25},
    }
    gpu = document["gpu"]
    assert gpu["intensity"] == pytest.approx(100)
    assert gpu["hit_rates"] == {"l2": 0.75}
    assert gpu["waves"] == 1.0
    assert (gpu["tail_fraction"], gpu["tail_idle_fraction"]) == pytest.approx((0.2, 0.1))
    assert gpu["occupancy"]["achieved"] == 12.5
    # At half the boost clock: compute 40 of 50 TFLOPS, L2 80 of 200 MB, DRAM 40 of 100 MB; tensor pipe 80 of 100 k.
    expected = {"compute": 0.8, "dram": 0.4, "l2": 0.4, "tensor pipe": 0.8}
    assert gpu["speed_of_light"] == pytest.approx(expected)
    assert document["bound"] == "compute"


def test_roofs_by_hand() -> None:
    """At half the boost clock; the products are the lowest roof, twice over: all that moves could be twice as fast."""
    roofs = {roof["unit"]: roof for roof in Report(RUN).to_dict()["roofs"]}
    assert next(iter(roofs)) in ("compute", "tensor pipe")
    assert roofs["compute"]["tflops"] == pytest.approx(50)
    assert roofs["tensor pipe"]["tflops"] == pytest.approx(50)  # 40 in 80 of 100 k cycles
    assert roofs["dram"] == {"unit": "dram", "tflops": pytest.approx(100), "ops_per_byte": pytest.approx(100)}
    assert roofs["l2"] == {"unit": "l2", "tflops": pytest.approx(100), "ops_per_byte": pytest.approx(50)}
    assert "ops_per_byte" not in roofs["compute"]
    few = changed(kernel={"counters": {**KERNEL.counters, "dram_read_bytes": 80_000_000}}).figures.roofs()
    assert few[0].name == "dram"
    assert few[0].intensity == pytest.approx(4e9 / 9e7)
    assert few[0].ops_per_s == pytest.approx(few[0].bytes_per_s * few[0].intensity)


def test_shared_memory_bounds_a_run_whose_pipes_are_not_busy() -> None:
    """Its arrays are busy for 90 of 100 k cycles, the tensor pipe for 80, or not at all."""
    busy = {**KERNEL.counters, "smem_busy_cycles": 90_000 * 2, "smem_read_bytes": 10**9}
    machine = dataclasses.replace(RUN.machine, instances={**RUN.machine.instances, "smem": 2})
    both = changed(kernel={"counters": busy}, machine=machine)
    assert both.figures.speed_of_light()["smem"] == pytest.approx(0.9)
    assert both.bound == "compute"
    roof = both.figures.roofs()[0]
    assert (roof.name, roof.bytes_per_s) == ("smem", 0)
    kernel = {"counters": busy | {"tensor_busy_cycles": 10}, "throttle_reason": None}
    alone = changed(kernel=kernel, machine=machine, flops=RUN.flops // 2)
    assert alone.bound == "smem"
    assert "Shared memory is busy: 90.0 % of its cycles" in " ".join(str(alone).split())


def test_a_roof_holds_for_what_is_drawn() -> None:
    axes = changed(kernel={"counters": {**KERNEL.counters, "dram_read_bytes": 80_000_000}}).plot_roofline()
    labels = axes.get_legend_handles_labels()[1]
    assert [label for label in labels if label.endswith("holds")] == ["dram: 44.4 TFLOPS, holds"]
    assert len(labels) == 4
    assert changed(flops=0).plot_roofline().get_legend() is None


def test_a_comparison_says_what_each_time_contains() -> None:
    own = changed(kernel={"transfer_ps": 30_000_000}, time_ps=105_000_000)
    comparison = Comparison(RUN.workload, [own, Unsupported("other", "cannot")])
    (contents,) = [s for s in comparison.sections() if s.title == "What each time contains"]
    row = dict(zip(contents.header, contents.rows[0], strict=True))
    assert row["launches"] == "2.00 us"
    assert row["host transfers"] == "30.00 us"
    assert row["outside kernels"] == "5.00 us"
    assert row["without transfers"] == "70.00 us"
    assert "PCIe" in str(row["energy without"])
    assert own.to_dict()["on_device_us"] == pytest.approx(70)


def test_several_kernels_sum_and_weigh_the_clock_by_cycles() -> None:
    second = dataclasses.replace(KERNEL, name="reduce", cycles=300_000, clock_hz=2_000_000_000, time_ps=150_000_000)
    figures = Figures.of_run(dataclasses.replace(RUN, kernels=(KERNEL, second)))
    assert figures.cycles == 400_000
    assert figures.clock_hz == 1_750_000_000
    assert figures.time_ps == 250_000_000
    assert figures.counters["macs"] == 4 * 10**9
    assert figures.energy_j == pytest.approx(0.04)


def test_power_is_that_of_the_kernels_and_energy_that_of_an_operation() -> None:
    """20 mJ in 100 us of kernels and 4e9 operations; the host's 300 us around them take none of it."""
    figures = Figures.of_run(dataclasses.replace(RUN, time_ps=400_000_000))
    assert figures.device_ps == 100_000_000
    assert figures.power_w == pytest.approx(200)
    assert figures.joules_per_op == pytest.approx(5e-12)


def test_a_duplex_level_is_as_busy_as_its_busier_direction() -> None:
    """60 MB read and 20 MB written in 100 us: of two ways, 600 GB/s on the busier one; of one, 800 GB/s."""
    share = {}
    duplex: tuple[str, ...]
    for duplex in ((), ("l2",)):
        machine = dataclasses.replace(MACHINE, duplex=duplex)
        share[len(duplex)] = Figures.of_run(dataclasses.replace(RUN, machine=machine)).speed_of_light()["l2"]
    assert share[1] == pytest.approx(share[0] * 60 / 80)


def test_schema_holds_for_full_and_bare_runs_and_refuses_wrong_ones() -> None:
    full = Report(RUN).to_dict()
    validate_schema(full)
    two = dataclasses.replace(RUN, kernels=(KERNEL, KERNEL), host_ps={"framework": 5}, notes=("a note",))
    validate_schema(Report(two).to_dict())
    bare = KernelRecord("k", "simt", 10, 10**9, 10_000, own=GpuLaunch((1,)))
    validate_schema(Report(dataclasses.replace(RUN, kernels=(bare,), check=None, simulator=None)).to_dict())
    for key, value in (("cycles", 1.5), ("bound", "magic"), ("unheard_of", 1), ("family", "cpu")):
        with pytest.raises(jsonschema.ValidationError):
            validate_schema({**full, key: value})
    del full["time_us"]
    with pytest.raises(jsonschema.ValidationError, match="time_us"):
        validate_schema(full)


def test_what_was_not_counted_is_absent() -> None:
    document = Report(RUN).to_dict()
    assert set(document["bytes"]) == {"l2", "dram"}
    bare = KernelRecord("k", "simt", 10, 10**9, 10_000, own=GpuLaunch((1,)))
    document = Report(dataclasses.replace(RUN, kernels=(bare,), check=None, simulator=None)).to_dict()
    assert document["bytes"] == {}
    assert document["stalls"] == {}
    assert not {"energy_j", "power_w", "check", "simulator", "host_us", "notes"} & set(document)
    assert "occupancy" not in document["gpu"]


def test_bound_names_the_unit_that_is_busy() -> None:
    counters = dict(KERNEL.counters)
    del counters["tensor_busy_cycles"]
    small: dict[str, Any] = {"flops": 10**8}
    assert changed().bound == "compute"
    assert changed(kernel={"counters": {**counters, "dram_read_bytes": 80_000_000}}, **small).bound == "dram"
    l2 = {**counters, "l2_read_bytes": 180_000_000}
    assert changed(kernel={"counters": l2}, **small).bound == "power"  # a clock twice as high halves its time
    assert changed(kernel={"counters": l2, "throttle_reason": "locked"}, **small).bound == "l2"
    assert changed(kernel={"counters": counters, "throttle_reason": None}, **small).bound == "latency"
    assert changed(time_ps=200_000_000, scope="host").bound == "overhead"
    assert changed(time_ps=150_000_000, scope="host").bound == "compute"


@pytest.mark.parametrize(
    ("bound", "phrase"),
    [("compute", "Arithmetic is busy: 80.0 %"), ("overhead", "51.0 % of the time"), ("latency", "No unit is near")],
)
def test_verdict_says_what_would_move_it(bound: str, phrase: str) -> None:
    report = {
        "compute": changed(),
        "overhead": changed(time_ps=200_000_000),
        "latency": changed(flops=10**8, kernel={"counters": {"dram_read_bytes": 1}, "throttle_reason": None}),
    }[bound]
    text = " ".join(str(report).split())
    assert phrase in text
    assert re.search(r"(would|may) move it", text)


def test_verdict_quotes_losses() -> None:
    text = " ".join(str(changed()).split())
    assert "60.0 % of their cycles in long scoreboard" in text
    assert "the clock that the power limit allows (1.000 of 2.000 GHz, at 200 W of 300 W)" in text
    assert "The clock is 50.0 % below boost (locked)." in str(changed(kernel={"throttle_reason": "locked"}))
    assert "SMs that have run out of work wait for 10.0 %" in text
    few = GpuLaunch((1,), tail_cycles=99_000, tail_idle_cycles=99)
    assert "run out of work" not in str(changed(kernel={"own": few}))


def test_text_has_the_sections_in_order() -> None:
    titles = [section.title.split(" (")[0] for section in sections_of(Report(RUN))]
    assert titles[1:] == [
        *("What bounds it", "Speed of light", "Roofline", "Stall stack", "Memory chart", "Occupancy"),
        *("Clock and power", "Where the time went", "Candidates"),
    ]
    text = str(Report(RUN))
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "100.0 us (kernel)" in text
    assert "2 CTAs an SM, 16 of 64 warps; limit: registers" in text


def test_html_escapes_what_people_named() -> None:
    html = changed(workload="<script>")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_comparison_keeps_the_order_and_the_reasons() -> None:
    comparison = Comparison(RUN.workload, [Report(RUN), Unsupported("t4", "t4 has no bf16"), changed(flops=10**8)])
    document = comparison.to_dict()
    assert [row["machine"] for row in document["rows"]] == ["round", "t4", "round"]
    assert document["rows"][1]["reason"] == "t4 has no bf16"
    validate_schema(document["rows"][0])
    text = str(comparison)
    assert "t4  t4 has no bf16" in text
    assert text.splitlines()[1].split()[:4] == ["machine", "dtype", "time", "cycles"]
    assert len(comparison.reports) == 2
    everything_refused = Comparison(RUN.workload, [Unsupported("t4", "no")])
    assert "Not run" in str(everything_refused)


def test_pictures_draw_into_given_axes() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    _, axes = plt.subplots(1, 2)
    report = Report(RUN)
    assert report.plot_roofline(ax=axes[0]) is axes[0]
    points = [line.get_xydata() for line in axes[0].lines if line.get_marker() == "o"]  # of DRAM and L2
    assert np.sort(np.concatenate([np.asarray(p) for p in points]), axis=0) == pytest.approx(
        np.array([[50, 40], [100, 40]])
    )
    assert report.plot_stalls(ax=axes[1]) is axes[1]
    assert sum(patch.get_width() for patch in axes[1].patches if isinstance(patch, Rectangle)) == pytest.approx(1)
    compared = Comparison(RUN.workload, [report, changed(machine=dataclasses.replace(MACHINE, name="b"))])
    assert len([line for line in compared.plot_roofline().lines if line.get_marker() == "o"]) == 2
    plt.close("all")


def test_pure_ratios() -> None:
    assert shares({"b": 1, "a": 1, "none": 0}) == {"a": 0.5, "b": 0.5}
    assert shares({}) == {}
    assert level_bytes({"l2_read_bytes": 0}) == {"l2": {"read": 0}}
    assert hit_rates({"l1_hits": 0, "l1_misses": 0, "l2_misses": 2}) == {"l2": 0.0}


def test_units_for_people() -> None:
    assert [bytes_text(n) for n in (10, 1536, 3 << 20, 5 << 40)] == ["10 B", "1.50 KiB", "3.00 MiB", "5.00 TiB"]
    times = [time_text(ps) for ps in (1_234_000, 193_400_000, 43_090_000_000, 2 * 10**12)]
    assert times == ["1.23 us", "193.4 us", "43.09 ms", "2.000 s"]
    assert str(Meter(0.5)).count("#") * 2 == len(str(Meter(0.5)))
    assert [str(Meter(share))[0] for share in (-1, 0, 1, 2)] == [".", ".", "#", "#"]


WIDE = Section(
    "wide",
    (("a", "1.5 us", "a long schedule of many words", Meter(0.5)), ("b", "20 us", "another", Meter(1))),
    ("name", "time", "schedule", ""),
)
"""About 80 columns."""


def on_screen(sections: list[Section], width: int, colours: bool = False) -> list[str]:
    """The lines that a terminal shows."""
    from rich.console import Console

    from sim.app.report.console import on_terminal

    system: Any = "standard" if colours else None
    return on_terminal(sections, Console(width=width, force_terminal=True, color_system=system)).splitlines()


def test_text_is_plain_and_of_one_width_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    before = str(Report(RUN))
    for name, value in (("COLUMNS", "30"), ("TERM", "xterm-256color"), ("FORCE_COLOR", "1"), ("LINES", "3")):
        monkeypatch.setenv(name, value)
    assert str(Report(RUN)) == before
    assert "\x1b" not in before
    assert all(line == line.rstrip() for line in before.splitlines())
    assert as_text([WIDE]).splitlines() == [
        "wide",
        "  name    time  schedule",
        f"  a     1.5 us  a long schedule of many words  {Meter(0.5)}",
        f"  b      20 us  another                        {Meter(1)}",
    ]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 24])
def test_a_terminal_is_never_too_narrow(width: int) -> None:
    reports = Comparison(RUN.workload, [Report(RUN), changed(flops=10**8), Unsupported("t4", "t4 has no bf16")])
    many = dataclasses.replace(WIDE, rows=WIDE.rows * 5)
    lines = on_screen([WIDE, many, *Report(RUN).sections(), *reports.sections()], width)
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    assert words.count("20 us") >= 6
    assert "t4 has no bf16" in words


def test_wide_tables_are_turned_or_told_row_by_row() -> None:
    wide = [line.split() for line in on_screen([WIDE], 90)]
    assert wide[1] == ["name", "time", "schedule"]
    turned = on_screen(Comparison(RUN.workload, [Report(RUN), changed(flops=10**8)]).sections(), 60)
    assert turned[1].split() == ["machine", "round", "round"]
    assert turned[2].split() == ["dtype", "fp16", "fp16"]
    told = on_screen([dataclasses.replace(WIDE, rows=WIDE.rows * 4)], 20)
    assert [line.split()[1] for line in told if line.split()[:1] == ["name"]] == ["a", "b"] * 4


def test_colours_and_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(on_screen([WIDE], 100, colours=True))
    assert "\x1b[" in text
    assert "━" * 15 in text
    assert "#" not in text
    show([WIDE])
    assert capsys.readouterr().out == as_text([WIDE]) + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    show([WIDE])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 40


def test_notebooks_get_tables_with_bars_and_nothing_is_taken_for_html() -> None:
    section = Section("a <b>", (("<i>", "1", Meter(0.25)), ("&", "23", Meter(2))), ("x<y", "n", ""))
    html = as_html([section, Section("words", (("it is < 5",),))])
    for escaped in ("a &lt;b&gt;", "&lt;i&gt;", "&amp;", "x&lt;y", "it is &lt; 5"):
        assert escaped in html
    assert "width:25.0%" in html
    assert html.count("<table>") == html.count("</table>") == 1
    assert '<td style="text-align:right;white-space:nowrap">23</td>' in html
    assert "####" not in html


def test_remedies_are_for_states_that_exist() -> None:
    assert set(REMEDIES) < set(WARP_STATES)


def test_the_ridge_of_a_machine_with_two_external_memories_counts_both() -> None:
    from sim import simulate

    record = simulate("gelu n=10000", "sn40l").record
    machine = dataclasses.replace(
        record.machine, external=("hbm", "ddr"), bandwidths={"hbm": 3 * 10**12, "ddr": 10**12}
    )
    figures = Figures.of_run(dataclasses.replace(record, machine=machine))
    assert figures.external_bytes_per_s == 4 * 10**12
    assert figures.ridge == pytest.approx(machine.peak_ops_per_s / 4e12)
