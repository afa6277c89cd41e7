"""Loading: inheritance, overrides, derived figures, and one clear line for everything that is wrong."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape
from pydantic import ValidationError

from arch.errors import InputError
from arch.load import load_arch
from arch.show import describe

ROOT = Path(__file__).parents[2]


def message(name: str | Path, overrides: list[str] | dict[str, object] = []) -> str:  # noqa: B006
    """The one line that loading raises."""
    with pytest.raises(InputError) as caught:
        load_arch(name, overrides)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- overrides and derived figures ----


def test_overrides_change_one_figure_and_say_so() -> None:
    base, more = load_arch("h100-sxm"), load_arch("h100-sxm", ["sm.count=144", 'l2.size="60 MiB"'])
    assert (more.sm.count, more.l2.size_bytes) == (144, 60 * 2**20)
    assert more.sources["sm.count"] == "set by the user"
    assert base.model_dump(exclude={"sm", "l2"}) == more.model_dump(exclude={"sm", "l2"})
    assert base.sm.count == 132


def test_numbers_from_python_are_in_the_attributes_unit() -> None:
    assert load_arch("t4", {"l2.size": 2 * 2**20}).l2.size_bytes == 2 * 2**20
    assert load_arch("t4", {"dram.bandwidth": "640 GB/s"}).dram.bandwidth_bytes_per_s == 640 * 10**9


def test_instruction_rows_can_be_overridden() -> None:
    spec = load_arch("a100-sxm4-80gb", ["instructions.mma.bf16.m16n8k16.interval=16 cycles"])
    assert spec.instruction("mma", "bf16", "m16n8k16").interval_cycles == 16
    assert spec.instruction("mma", "fp16", "m16n8k16").interval_cycles == 8


def test_boost_clock_moves_every_peak() -> None:
    base, slow = load_arch("h100-sxm"), load_arch("h100-sxm", ["clock.boost=0.99 GHz"])
    assert slow.peak_flops("bf16") == pytest.approx(base.peak_flops("bf16") / 2)
    assert slow.peak_flops("fp32") == pytest.approx(base.peak_flops("fp32") / 2)


@given(st.integers(8, 400))
@settings(max_examples=20, deadline=None)
def test_sms_spread_over_gpcs_as_evenly_as_possible(count: int) -> None:
    spread = load_arch("a100-sxm4-80gb", {"sm.count": count}).sms_per_gpc
    assert sum(spread) == count
    assert max(spread) - min(spread) <= 1


@given(st.integers(16, 400), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_gpcs_have_whole_tpcs(count: int, single: int) -> None:
    spec = load_arch("h100-sxm", {"sm.count": count, "gpc.single_tpcs": single})
    *spread, last = spec.sms_per_gpc
    assert sum(spread) + last == sum(spec.sms_per_place) == count
    assert all(sms % 2 == 0 for sms in spread)
    assert max(spread) - last <= 2
    # The middle GPC keeps some SMs of its own.
    alone = spec.sms_per_place[: -len(spec.sms_per_gpc)]
    assert set(alone) <= {2}
    assert len(alone) <= single
    assert min(spec.sms_per_place) > 0


def test_an_h100_holds_as_many_clusters_as_were_counted() -> None:
    """By Nsight Compute, and by where they started (`cluster_places.csv`)."""
    spec = load_arch("h100-sxm")
    assert spec.sms_per_gpc == (18, 18, 16, 16, 16, 16, 16, 16)
    assert [sum(sms // size for sms in spec.sms_per_place) for size in (2, 3, 4, 8, 16)] == [66, 39, 30, 15, 7]


@given(st.integers(1, 2**28))
@settings(max_examples=20, deadline=None)
def test_a_refused_l2_size_names_two_sizes_that_are_taken(size: int) -> None:
    try:
        load_arch("h100-sxm", {"l2.size": size})
    except InputError as error:
        nearest = str(error).partition("nearest: ")[2].split(" or ")
        assert len(nearest) == 2
        taken = [load_arch("h100-sxm", {"l2.size": text}).l2.size_bytes for text in nearest]
        assert taken[1] - taken[0] == load_arch("h100-sxm").l2.granule_bytes
        assert taken[0] <= size <= taken[1] or size < taken[0] == load_arch("h100-sxm").l2.granule_bytes
    else:
        assert size % load_arch("h100-sxm").l2.granule_bytes == 0


# ---- identity ----


def test_content_hash_is_the_same_in_every_process_and_follows_figures_only(tmp_path: Path) -> None:
    program = "from arch.load import load_arch; print(load_arch('h100-sxm').content_hash())"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            text=True,
            capture_output=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    spec = load_arch("h100-sxm")
    assert hashes == {spec.content_hash()}
    assert load_arch("h100-sxm", ["title=Another title"]).content_hash() == spec.content_hash()
    assert load_arch("h100-sxm", ["l2.hit_latency=281 cycles"]).content_hash() != spec.content_hash()
    assert load_arch("h100-sxm", ["instructions.ffma.fp32.latency=5 cycles"]).content_hash() != spec.content_hash()


def test_specs_are_frozen_hashable_and_travel_between_processes() -> None:
    spec = load_arch("a100-sxm4-80gb")
    with pytest.raises(ValidationError):
        spec.l2.size_bytes = 1  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.sources == spec.sources
    assert again.content_hash() == spec.content_hash()
    assert {spec: 1}[again] == 1


# ---- instructions ----


def test_wgmma_interval_is_half_of_n_with_a_floor() -> None:
    spec = load_arch("h100-sxm")
    rows = {n: spec.instruction("wgmma", "bf16", f"m64n{n}k16") for n in (8, 40, 48, 64, 256)}
    assert {n: row.interval_cycles for n, row in rows.items()} == {8: 18, 40: 20, 48: 24, 64: 32, 256: 128}
    assert {row.latency_cycles - row.interval_cycles for row in rows.values()} == {43}
    assert rows[256].macs == 64 * 256 * 16


def test_volta_warp_mma_is_four_quad_pair_products() -> None:
    row = load_arch("v100-sxm2").instruction("mma", "fp16", "m8n8k4")
    assert row.macs == 4 * 8 * 8 * 4
    assert row.macs / row.interval_cycles == 128  # 1024 operations a clock an SM
    assert row.cadence_cycles == 8.7  # as often as it issues in practice; the peak is the sheet's


@pytest.mark.parametrize(
    ("arch", "row", "nearest"),
    [
        ("v100-sxm2", ("mma", "bf16", "m16n8k16"), "mma.fp16.m8n8k4"),
        ("a100-sxm4-80gb", ("mma", "bf16", "m16n8k17"), "mma.bf16.m16n8k16"),
        ("h100-sxm", ("wgmma", "bf16", "m64n100k16"), "96"),
        ("h100-sxm", ("wgmma", "bf16", "m64n512k16"), "256"),
        ("t4", ("fffma", "fp32", ""), "ffma.fp32"),
    ],
)
def test_a_missing_instruction_names_the_nearest(arch: str, row: tuple[str, str, str], nearest: str) -> None:
    spec = load_arch(arch)
    assert not spec.has_instruction(*row)
    with pytest.raises(InputError, match=re.escape(f"nearest: {nearest}")):
        spec.instruction(*row)


# ---- wrong input ----

WRONG = [
    ("l2.sise=4 MiB", "unknown figure 'l2.sise'", "nearest: l2.size"),
    ("l2.size=61 MiB", "l2.size: 61 MiB is not a multiple", "nearest: 60.9375 MiB or 61.09375 MiB"),
    ("l2.size=61", "l2.size = 61", "has no unit"),
    ("l2.size=5 GHz", "'GHz'", "'50 MiB'"),
    ("l2.size=-50 MiB", "l2.size = -50 MiB", "greater than or equal to 0"),
    ("l2=50 MiB", "l2 is a group", "l2.size"),
    ("l2.partitions=3", "l2.partitions = 3", "less than or equal to 2"),
    ("l2.line=100 B", "l2.line", "nearest: 128 B"),
    ("l2.interleave=500 B", "l2.interleave", "nearest: 256 B or 512 B"),
    ("l1.sector=48 B", "l1.sector", "nearest: 32 B"),
    ("l1.size=255.5 KiB", "l1.size", "nearest: 255 KiB or 256 KiB"),
    ("shared.max_per_sm=300 KiB", "larger than the combined array", "at most l1.size = 256 KiB"),
    ("shared.max_per_cta=228 KiB", "shared.max_per_cta", "at most 227 KiB"),
    ("shared.granule=0 B", "shared.granule", "nearest: 128 B"),
    ("sm.count=0", "sm.count = 0", "greater than 0"),
    ("sm.count=7", "cannot fill 8 GPCs", "nearest: 8"),
    ("sm.count=many", "sm.count = many", "must be a valid integer"),
    ("sm.max_warps=63", "sm.max_warps", "nearest: 60 or 64"),
    ("sm.max_threads=4096", "sm.max_threads", "nearest: 2048"),
    ("sm.max_threads_per_cta=4096", "sm.max_threads_per_cta", "nearest: 2048"),
    ("sm.count=979", "sm.count", "the model takes 978"),
    ("l1.size=32 MiB", "l1.size", "the model takes 16 MiB"),
    ("l2.hit_latency=1e10 cycles", "l2.hit_latency", "less than or equal to 2147483648 cycles"),
    ("dram.bandwidth=1 B/s", "dram.bandwidth", "greater than or equal to 100 MB/s"),
    ("tma.max_in_flight=64 B", "tma.max_in_flight", "from a line of 128 B to 1 MiB"),
    ("sm.registers=65537", "sm.registers", "nearest: 65536 or 66560"),
    ("sm.scheduler=gtp", "must be one of gto, lrr, oldest", "nearest: gto"),
    ("dram.channels=161", "dram.channels", "nearest: 160 or 162"),
    ("l2.slices=81", "l2.slices", "nearest: 80 or 82"),
    ("dram.channels=33", "dram.channels", "nearest: 32 or 34"),
    ("dram.atom=48 B", "dram.atom", "32 B or 64 B"),
    ("dram.row=1000 B", "dram.row", "nearest: 992 B or 1 KiB"),
    ("dram.t_rfc=4 us", "dram.t_rfc", "never leave refresh"),
    ("dram.overhead=1", "dram.overhead", "at most 0.9"),
    ("dram.size=1 MiB", "dram.size", "l2.size = 50 MiB"),
    ("clock.boost=2", "clock.boost = 2", "'1.98 GHz'"),
    ("clock.recovery=1 us", "clock.recovery", "nearest: 30 us"),
    ("clock.undershoot=0", "clock.undershoot", "more than 0"),
    ("clock.under_tensor=0", "clock.under_tensor", "more than 0"),
    ("clock.lowest=1.98 GHz", "clock.lowest", "not below clock.boost = 1.98 GHz"),
    ("clock.step=2 GHz", "clock.step", "not below clock.boost = 1.98 GHz"),
    ("clock.tensor=0", "clock.tensor", "more than 0"),
    ("power.limit=100 W", "power.limit", "power.static = 140 W"),
    ("power.voltage.max=0.5 V", "power.voltage.max", "at least 550 mV"),
    ("power.voltage.max_clock=1 GHz", "power.voltage.max_clock", "1.2 GHz"),
    ("launch.kernel=nan us", "launch.kernel", "ns'"),
    ("compute_capability=nine", "documents only", "the rows of instructions"),
    ("instructions.mma.bf16.m16n8k16.rate=4", "override", "nearest: instructions.mma.bf16.m16n8k16."),
    ("sm.count", "path=value", "'l2.size=60 MiB'"),
]


@pytest.mark.parametrize(("override", "what", "hint"), WRONG, ids=[wrong[0] for wrong in WRONG])
def test_a_wrong_override_is_one_clear_line(override: str, what: str, hint: str) -> None:
    line = message("h100-sxm", [override])
    assert "override" in line
    assert what in line
    assert hint in line


def test_one_partition_keeps_no_copies() -> None:
    assert "l2.local_copies: needs two partitions" in message("t4", ["l2.local_copies=true"])
    assert "l2.link_bandwidth: is missing" in message("t4", ["l2.partitions=2"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, [1]])
def test_values_that_are_no_quantity_are_refused(value: object) -> None:
    assert "l2.size" in message("h100-sxm", {"l2.size": value})


def test_unknown_machine_names_the_nearest() -> None:
    line = message("h100-smx")
    assert "unknown machine 'h100-smx'; nearest: h100-sxm" in line


FILES = [
    ("base: h100-sxm\nl2:\n  size: [40 MiB\nsm: {count: 4}\n", "own.yaml line 4", "not valid YAML"),
    ("base: h100-sxm\nl2: {size: 61 MiB}\n", "own.yaml line 2", "nearest: 60.9375 MiB"),
    ("base: h100-sxm\nl2: {size: 50 MiB, size: 40 MiB}\n", "own.yaml line 2", "given twice"),
    ("base: h100-sxm\n\nl2:\n  sise: 50 MiB\n", "own.yaml line 4", "nearest: l2.size"),
    ("base: h100-sxm\nl2: {size: [50 MiB, shet]}\n", "own.yaml line 2", "unknown source 'shet'; nearest: sheet"),
    ("base: h100-sxm\nl2: {size: [50 MiB]}\n", "own.yaml line 2", "[value, source]"),
    ("base: h100-sxm\nl2: {size: {value: 50 MiB}}\n", "own.yaml line 2", "unknown figure 'l2.size.value'"),
    ("base: h100-sxm\ninstructions: {ffma.fp32: [fma, 1]}\n", "own.yaml line 2", "[pipe, interval, latency, source]"),
    ("base: h100-sxm\ninstructions: {ffma.fp32: [fmq, 1, 4, guide]}\n", "own.yaml line 2", "nearest: fma"),
    ("base: h100-sxm\ninstructions: {ffma.fp32: {pipe: fma, speed: 1}}\n", "own.yaml line 2", "'speed' is no column"),
    ("base: h100-sxm\ninstructions: {ffma: [fma, 1, 4, guide]}\n", "own.yaml line 2", "op.dtype"),
    ("base: h100-sxn\n", "own.yaml", "nearest: h100-sxm"),
    ("base: own.yaml\n", "own.yaml", "leads back to itself"),
    ("family: gpy\n", "own.yaml line 1", "nearest: gpu"),
    ("title: nothing\n", "own.yaml", "family is missing"),
    ("family: gpu\n", "own.yaml", "is missing"),
    ("- 1\n", "own.yaml line 1", "must be a mapping"),
    ("", "own.yaml", "must be a mapping"),
]


@pytest.mark.parametrize(("text", "where", "what"), FILES, ids=[text.replace("\n", "|") for text, _, _ in FILES])
def test_a_wrong_file_is_one_clear_line_with_its_place(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    line = message(path)
    assert where in line
    assert what in line


def test_a_file_that_is_not_there() -> None:
    assert "machine file nowhere/none.yaml: cannot be read" in message("nowhere/none.yaml")


def test_own_files_inherit_and_need_no_sources(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("base: h100-sxm\nl2: {size: 60 MiB}\n")
    child = tmp_path / "bigger.yml"
    child.write_text("base: big.yaml\nname: mine\nsm: {count: 144}\n")
    spec = load_arch(child)
    assert (spec.name, spec.sm.count, spec.l2.size_bytes) == ("mine", 144, 60 * 2**20)
    assert spec.sources["l2.size"] == "stated in big.yaml line 2"
    assert spec.sources["l2.hit_latency"] == load_arch("h100-sxm").sources["l2.hit_latency"]


@pytest.mark.parametrize("name", ["t4", "tpu-v1", "sn40l"])
def test_notebooks_show_figures_with_sources(name: str) -> None:
    machine = load_arch(name, ["clock.boost=1 GHz"] if name == "t4" else [])
    html = machine._repr_html_()
    assert machine.title in html
    for row in describe(machine)[:40]:
        assert escape(row.path) in html
        assert escape(row.source) in html
    assert ("set by the user" in html) == (name == "t4")


@pytest.mark.parametrize("text", ['"a\\e[31mb"', '"a\\u202Eb"', '"a\\rb"'])
def test_control_characters_in_names_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    for key in ("title", "name"):
        path.write_text(f"base: t4\n{key}: {text}\n")
        with pytest.raises(InputError, match=r"mine.yaml line 2: .* has the control character"):
            load_arch(str(path))
    (tmp_path / "a\x1b.yaml").write_text("base: t4\n")
    with pytest.raises(InputError, match="control character"):
        load_arch(str(tmp_path / "a\x1b.yaml"))


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    for text, message in (
        ("[" * 50_000, "more than 16 levels"),
        ("base: t4\nl2: &a {x: *a}\n", "too many levels"),
        ("# x\n" * 500_000, "more than 1,024 KiB"),
        ("base: /dev/zero\n", "no regular file"),
        (f"base: ../{tmp_path.name}/mine.yaml\n", "more than 16 machine files"),
    ):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(InputError, match=message):
            load_arch(str(tmp_path / "mine.yaml"))


def test_zero_needs_no_unit_and_other_numbers_do() -> None:
    assert load_arch("t4", ["sm.register_conflict=0"]).sm.register_conflict_cycles == 0
    with pytest.raises(InputError, match="has no unit"):
        load_arch("t4", ["sm.register_conflict=1"])


# ---- what is kept between machines ----


def test_groups_that_no_override_touches_are_the_same_objects() -> None:
    base, more = load_arch("h100-sxm"), load_arch("h100-sxm", ["sm.count=144"])
    assert more.l2 is base.l2
    assert more.instructions[0] is base.instructions[0]
    assert more.sm is not base.sm
    assert more.sm.count == 144 != base.sm.count


def test_a_machine_is_the_same_whatever_was_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides: list[list[str]] = [
        [],
        ["l2.size=2 MiB"],
        ["dram.standard=hbm3"],
        ["instructions.ffma.fp32.latency=9 cycles"],
        ["clock.tensor=0.9"],
    ]
    for name in ("t4", "sn40l", "tpu-v1"):
        for words in overrides[: 5 if name == "t4" else 1]:
            kept = load_arch(name, words)
            monkeypatch.setattr("arch.load._valid", {})
            fresh = load_arch(name, words)
            assert fresh == kept
            assert fresh.content_hash() == kept.content_hash()
            assert (fresh.sources, fresh.overrides, fresh.implausible, fresh.file) == (
                kept.sources, kept.overrides, kept.implausible, kept.file,
            )  # fmt: skip


def test_what_was_wrong_stays_wrong_with_the_same_words() -> None:
    for override in ("l2.size=0 MiB", "l2.ways=17.5", "instructions.ffma.fp32.interval=none", "sm.count=True"):
        load_arch("t4")
        first = message("t4", [override])
        load_arch("t4", ["l2.size=2 MiB"])
        assert message("t4", [override]) == first
    assert "not a quantity" in message("t4", {"l2.hit_latency": True})
    assert load_arch("t4", {"l2.hit_latency": 1}).l2.hit_latency_cycles == 1
    assert "not a quantity" in message("t4", {"l2.hit_latency": True})


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for count in (20, 40, 20):
        path.write_text(f"base: t4\nsm: {{count: {count}}}\n", encoding="utf-8")
        assert load_arch(path).sm.count == count
        assert load_arch(path, ["l2.size=2 MiB"]).sm.count == count


def test_a_changed_copy_of_a_machine_has_a_hash_of_its_own() -> None:
    spec = load_arch("t4")
    before = spec.content_hash()
    copy = spec.model_copy(update={"sm": spec.sm.model_copy(update={"count": 20})})
    assert copy.content_hash() != before == spec.content_hash()
    assert copy.content_hash() == load_arch("t4", ["sm.count=20"]).content_hash()


def test_nearest_silicon_marks_what_it_takes_over_as_assumed(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("base: h100-sxm\nl1: {hit_latency: 33 cycles}\n")
    path = tmp_path / "new.yaml"
    path.write_text("nearest: other.yaml\nname: new\nlacks: [instructions.wgmma, sm.wgmma_in_flight]\n")
    spec = load_arch(path)
    assert spec.sources["l1.hit_latency"] == "assumed: as OTHER has it (stated in other.yaml line 2)"
    assert spec.sources["l2.size"] == load_arch("h100-sxm").sources["l2.size"]
    assert not spec.has_instruction("wgmma", "bf16", "m64n256k16")
    assert spec.has_instruction("wgmma_rs", "bf16", "m64n256k16")
    assert spec.sm.wgmma_in_flight is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: h100-sxm\nlacks: [instructions.wgma]", "new.yaml line 2: lacks instructions.wgma"),
        ("base: h100-sxm\nlacks: tma", "must be a list of paths"),
        ("base: h100-sxm\nnearest: a100-pcie-80gb", "base and nearest"),
    ],
)
def test_what_a_machine_lacks_is_of_its_base(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load_arch(path)
