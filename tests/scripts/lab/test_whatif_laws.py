"""The law of monotony on a few random cases, and that `scripts/lab/whatif_laws.py` notices what breaks it."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from arch.load import list_archs, load_arch

SMALL_ATTENTION = "attention batch=1 heads=1 seq=256 head_dim=64"

FOLDER = Path(__file__).resolve().parents[3] / "scripts" / "lab"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("whatif_laws")


def test_a_better_figure_makes_no_run_slower_by_accident(script: ModuleType) -> None:
    """A few per cent may come from a mechanism that hardware has, without which the law holds."""
    found = script.examine_all(list(islice(script.cases(seed=0), 50)), choices=0)
    assert len(found.outcomes) >= 2 * 40
    for mode in ("held", "auto"):
        assert [case for case, o in found.broken(mode) if not o.mechanism or o.change > script.MUCH_SLOWER] == []


@pytest.mark.parametrize(
    ("workload", "arch", "options", "path", "text"),
    [
        ("rmsnorm rows=348 cols=1 dtype=fp16", "v100-sxm2", {"l2": "dirty"}, "l2.size", "9 MiB"),
        ("gemm m=96 n=32 k=32", "plasticine", {}, "clock.boost", "4 GHz"),
        ("gemm m=192 n=64 k=32", "sn40l", {}, "clock.boost", "6.4 GHz"),
        ("layernorm rows=256 cols=512", "plasticine", {}, "ddr.bandwidth", "76.8 GB/s"),
        ("layernorm rows=256 cols=512", "plasticine", {}, "ddr.bandwidth", "102.4 GB/s"),
        (SMALL_ATTENTION, "plasticine", {}, "mesh.vector", "128 B/clk"),
        (SMALL_ATTENTION, "plasticine", {}, "pmu.banks", "32"),
        (SMALL_ATTENTION, "plasticine", {}, "pmu.bandwidth", "128 B/clk"),
        (SMALL_ATTENTION, "plasticine", {}, "pmu.count", "128"),
        ("softmax rows=192 cols=32 dtype=bf16", "sn40l", {}, "hbm.bandwidth", "7.2 TB/s"),
        ("softmax rows=64 cols=224 dtype=bf16", "sn40l", {}, "hbm.bandwidth", "3.6 TB/s"),
        ("softmax rows=512 cols=1024", "sn40l", {}, "hbm.bandwidth", "7.2 TB/s"),
        ("layernorm rows=1024 cols=4096 dtype=bf16", "sn40l", {}, "pmu.bandwidth", "128 B/clk"),
    ],
)
def test_what_broke_the_law_once(
    script: ModuleType, workload: str, arch: str, options: dict[str, str], path: str, text: str
) -> None:
    """Write buffers that the filling of a dirty L2 had left; panels whose short rows take whole bursts; buffers that
    were spread until no link was busy, whatever their banks did, and the other way round; stages over so many units
    that the ways between them grew by more than the work shrank."""
    found = script.examine_all([script.Case(script.RandomCase(workload, arch, (), options), path, text, 2.0)], 0)
    assert [o.change for _, o in found.outcomes if o.change > script.SLOWER] == []


def test_more_banks_leave_refreshes_where_they_are(script: ModuleType) -> None:
    """A rank more of them made one wait of 115 ns out of none in 2 us."""
    run = script.RandomCase("add n=36652 dtype=fp16", "gb200", (), {"clock": "sustained"})
    found = script.examine_all([script.Case(run, "dram.banks", "48", 1.5)], choices=0)
    assert [o.change for _, o in found.outcomes if o.change > script.SLOWER] == []


def test_narrower_channels_are_listed_and_no_better_machine(script: ModuleType) -> None:
    """The weights' tile of 32 KiB lies on 64 channels, whose number grows and whose rate falls."""
    run = script.RandomCase("matvec rows=2 cols=36", "tpu-v4")
    found = script.examine_all([script.Case(run, "dram.channels", "256", 4.0)], choices=0)
    assert [o.mechanism for _, o in found.broken("held")] == [script.NARROW]
    assert found.broken("held")[0][1].change > script.MUCH_SLOWER
    assert found.lawful("held")


def test_cases_are_the_same_for_the_same_seed_and_differ_by_it(script: ModuleType) -> None:
    first, again, other = ([str(case) for case in islice(script.cases(seed), 20)] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("machine", list_archs())
def test_every_figure_of_the_tables_gets_better_one_way(script: ModuleType, machine: str) -> None:
    spec = load_arch(machine)
    more, less = (set(table[spec.family]) for table in (script.MORE, script.LESS))
    assert not more & less
    known = [path for path in script.figures_of(spec) if script.better(spec, path, 2.0)]
    assert {"clock.boost", *script.MORE[spec.family][:2]} <= set(known)
    assert len(known) > 20


def test_better_is_more_of_a_bandwidth_and_less_of_a_latency(script: ModuleType) -> None:
    spec = load_arch("h100-sxm")
    assert script.better(spec, "sm.count", 1.01) == "134"
    assert script.better(spec, "dram.bandwidth", 2) == "6704000000000 B/s"
    assert script.better(spec, "l2.hit_latency", 2) == "140 cycles"
    at_once = load_arch("h100-sxm", {"launch.setup": "0 us"})
    assert script.better(at_once, "launch.setup", 2) is None  # nothing is left to save
    assert script.better(spec, "instructions.ffma.fp32.latency", 2) == "2.0 cycles"


def test_what_breaks_the_law_is_noticed(script: ModuleType) -> None:
    """Fewer SMs passed off as an improvement."""
    case = script.Case(script.RandomCase("gelu n=400000 dtype=fp16", "a100-sxm4-80gb"), "sm.count", "7", 2.0)
    found = script.examine_all([case], choices=1)
    assert len(found.broken("held")) == 1
    assert not found.lawful("held")
    assert "grew: warps" in script.text_of(found)


def test_the_mechanism_that_breaks_the_law_is_found_by_switching_it_off(script: ModuleType) -> None:
    """Faster memory units are fewer for each buffer, and what fewer of them send meets on fewer links."""
    run = script.RandomCase("layernorm rows=256 cols=1024 dtype=bf16", "sn40l")
    found = script.examine_all([script.Case(run, "pmu.bandwidth", "128 B/clk", 2.0)], choices=0)
    assert [o.mechanism for _, o in found.broken("held")] == ["ways that streams share"]
    assert "not without ways that streams share" in script.text_of(found)


def test_large_products_are_the_same_for_the_same_seed_and_of_the_size_that_they_say(script: ModuleType) -> None:
    first, again, other = ([str(case) for case in islice(script.large_products(seed), 20)] for seed in (1, 1, 2))
    assert first == again != other
    for text in first:
        m, n, k = (int(word.partition("=")[2]) for word in text.split()[1:4])
        assert 2**25 <= m * n * k <= 2**29


def test_regret_is_what_the_best_candidate_would_save(script: ModuleType) -> None:
    made = script.choice(script.RandomCase("gemm m=256 n=256 k=64 dtype=fp16", "t4"))
    assert (made.family, made.operator) == ("gpu", "gemm")
    assert len(made.ratios) > 1
    assert made.regret >= 0
    assert (made.regret == 0) == (made.chosen == made.best)


def test_a_choice_that_moves_away_from_what_breaks_the_law_has_the_same_mechanism(script: ModuleType) -> None:
    """With more ways chance takes other victims; other tiles than before lose less by it."""
    case = script.Case(script.RandomCase("gemm m=140 n=158 k=42", "gemmini"), "l2.ways", "32", 4.0)
    found = script.examine_all([case], choices=0)
    held, auto = found.outcomes[0][1], found.outcomes[1][1]
    assert 0.01 < auto.change < held.change
    assert auto.schedules[0] != auto.schedules[1]
    assert auto.mechanism == held.mechanism == "victims by chance"


@pytest.mark.parametrize("channels", ["2", "3", "4"])
def test_more_channels_of_one_bandwidth_are_not_slower(script: ModuleType, channels: str) -> None:
    """Parts of a line are on several channels."""
    case = script.Case(script.RandomCase("gemm m=32 n=32 k=200", "gemmini"), "dram.channels", channels, 2.0)
    assert [outcome.change < script.SLOWER for outcome in script.examine(case)] == [True, True]


def test_more_bandwidth_costs_nothing_where_it_brings_channels(script: ModuleType) -> None:
    """Refreshes of four channels do not fall into a run that those of one channel leave alone."""
    case = script.Case(script.RandomCase("gemm m=32 n=32 k=200", "gemmini"), "dram.bandwidth", "68.4 GB/s", 4.0)
    assert [outcome.change < script.SLOWER for outcome in script.examine(case)] == [True, True]
