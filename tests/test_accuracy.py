"""What tilewave says of its accuracy: it is no older than its cycles, pages say the same, and intervals hold."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch import load_arch
from scripts import accuracy as script
from scripts.tables import accuracy as pages
from scripts.tables.place import standing
from sim.app.cli import main
from sim.app.machines import Machines
from sim.app.run import row_request, simulate, simulate_row
from sim.app.study.validate import MissingRow
from sim.app.trust import board_of
from workloads.accuracy.known import FEWEST, Board, Case, Known, holds, known, ratios, word_and_kind
from workloads.accuracy.left_out import left_out
from workloads.accuracy.results import Errors, Result, judges, read_results, write_results
from workloads.silicon import Row, packaged_rows

RESULTS = read_results()
ROWS = script.keyed(packaged_rows())


def cheapest() -> dict[str, Result]:
    """By machine and operator, the result that costs least to simulate again."""
    found: dict[str, Result] = {}
    for result in sorted(RESULTS, key=lambda result: (result.cpu_s, result.key)):
        if result.ran and result.split != "sealed":
            found.setdefault(f"{result.machine} {result.op}", result)
    return found


CHEAPEST = cheapest()


@pytest.mark.parametrize("name", CHEAPEST)
def test_results_are_no_older_than_the_cycles(name: str) -> None:
    result = CHEAPEST[name]
    again = simulate_row(ROWS[result.key])
    assert (round(again.time_ps * 1e-6, 6), again.schedule) == (result.simulated_us, result.kernel), (
        f"{name} moved: run scripts/accuracy --stale"
    )


def test_results_are_of_rows_that_ship() -> None:
    assert len({result.key for result in RESULTS}) == len(RESULTS)
    assert {result.key for result in RESULTS} <= set(ROWS)


def test_pages_say_what_the_results_say() -> None:
    for (page, name), text in pages.texts().items():
        said = standing(page.read_text(encoding="utf-8"), name)
        assert said.strip() == text.strip(), f"{page.name}, {name}: run scripts/docs tables accuracy"


def test_intervals_hold_sealed_rows_as_often_as_they_say() -> None:
    cases = list(pages.sealed_cases(RESULTS, 0.8))
    found = {kind: [ok for r, ok in cases if kind == word_and_kind(r.op)[1]] for kind in pages.kinds(cases)}
    found[""] = [ok for _, ok in cases]
    judged = {kind: 100 * sum(oks) / len(oks) for kind, oks in found.items() if len(oks) >= 100}
    assert "" in judged
    assert all(76 <= share <= 84 for share in judged.values()), judged


def test_results_are_written_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    some = RESULTS[::50]
    write_results(reversed(some), path)
    assert read_results(path) == some
    errors = Errors.of(some)
    assert errors
    assert errors.mean >= abs(errors.bias)
    assert Errors.of(result for result in some if not result.ran) is None


# ---------------------------------------------------------------------------------------------------- intervals

BASE = Result("b", "gemm", "bf16", "vendor", "", "s", "m=1", "kernel", "cold", 10.0, 10.0, "k", 0.1, "2026-01-01")
HERE = Board("gpu", "chip", "b")


def boards(machine: str) -> Board:
    return Board("tpu" if machine == "t" else "gpu", "chip" if machine in "bc" else machine, machine)


def some(errors: Iterable[float], **changes: Any) -> list[Result]:
    return [dataclasses.replace(BASE, simulated_us=10 * (1 + error / 100), **changes) for error in errors]


def of(case: Case, results: Iterable[Result]) -> Known:
    said = known(case, tuple(results), boards)
    assert said
    return said


CASE = Case(HERE, "gemm", "bf16", 10.0)


def test_the_interval_is_that_of_ranks() -> None:
    said = of(CASE, some(range(-9, 10)))  # 19 rows: ranks 2 and 18 of 20
    assert (said.rows, said.own, round(said.bias, 9)) == (19, True, 0)
    assert (round(said.low, 9), round(said.high, 9)) == (-8, 8)
    assert holds(said, 8)
    assert not holds(said, 8.1)
    assert said.text.startswith("Measured rows like it (gemm in bf16 on b, a third to three times as long): 5 % off")


def test_the_nearest_kind_with_enough_rows_speaks() -> None:
    near, longer = some(range(FEWEST)), some([50] * FEWEST, measured_us=100, shape="m=2")
    longer = [dataclasses.replace(result, simulated_us=150) for result in longer]
    assert of(CASE, near + longer).high < 50
    assert of(dataclasses.replace(CASE, time_us=1000), near + longer).high == 50
    assert "gemm on b" in of(dataclasses.replace(CASE, dtype="fp8"), near).of
    assert "contraction" in of(dataclasses.replace(CASE, op="matvec"), near).of
    assert known(CASE, tuple(near[1:]), boards) is None


def test_a_board_without_rows_is_judged_by_others_of_its_family() -> None:
    of_chip = some(range(FEWEST), machine="c")
    said = of(CASE, of_chip)
    assert not said.own
    assert "chip chip" in said.of
    others = [result for machine in "xyz" for result in some(range(10), machine=machine)]
    said = of(CASE, others + some([90] * 200, machine="t"))
    assert said.high < 10  # not of a TPU
    assert said.text.startswith("No row of it was measured on this machine.")
    assert known(CASE, tuple(others[:20]), boards) is None  # two boards
    assert known(dataclasses.replace(CASE, op="my.py:kernel"), tuple(others), boards) is None


def test_an_interval_from_other_boards_is_wider_by_their_number() -> None:
    others = of(CASE, [result for machine in "xyzw" for result in some(range(-9, 10), machine=machine)])
    assert all(map(math.isclose, (others.low, others.high), (-9, 9)))  # 80 % by 5/4 is all of them
    assert "80 % of its own would be between" in others.text
    of_chip = of(CASE, some(range(-9, 10), machine="c"))
    assert all(map(math.isclose, (of_chip.low, of_chip.high), (-8, 8)))


def test_no_board_speaks_for_all_others() -> None:
    many = some([80] * 1000, machine="x") + [r for m in "yzw" for r in some(range(12), machine=m)]
    said = of(CASE, many)
    assert said.rows == 48


@given(st.integers(FEWEST, 60), st.integers(0, 10**6))
def test_intervals_hold_four_of_five_of_exchangeable_rows(count: int, seed: int) -> None:
    draw = random.Random(seed)
    hits = []
    for _ in range(40):
        errors = [draw.gauss(0, 5) for _ in range(count)]
        said = of(CASE, some(errors))
        hits += [holds(said, draw.gauss(0, 5)) for _ in range(10)]
    assert 0.66 < sum(hits) / len(hits) < 0.92


def test_ratios_are_of_rows_that_differ_in_the_machine_alone() -> None:
    shapes = [f"m={m}" for m in range(FEWEST)]
    a = [dataclasses.replace(BASE, shape=shape, simulated_us=11) for shape in shapes]
    b = [dataclasses.replace(BASE, shape=shape, machine="c", simulated_us=11) for shape in shapes]
    found = ratios("gemm", tuple(a + b))
    assert found
    assert (found.pairs, round(found.mean, 9)) == (FEWEST, 0)
    assert ratios("gemm", tuple(a + [dataclasses.replace(r, source="other") for r in b])) is None


# ---------------------------------------------------------------------------------------------------- reports


def test_a_report_ends_with_how_far_it_can_be_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    report = simulate("softmax rows=64 cols=64", "h100-sxm")
    last = report.sections()[-1]
    assert last.title == "How far to trust it"
    said = report.to_dict()["accuracy"]
    assert said["own_machine"]
    assert said["low_percent"] < said["high_percent"]
    assert f"{said['rows']} rows on which nothing was calibrated" in last.sentences[0]
    changed = simulate("softmax rows=64 cols=64", "h100-sxm", set=["dram.bandwidth=3TB/s"])
    assert any("Figures of the machine were changed" in line for line in changed.sections()[-1].sentences)
    assert main(["compare", "softmax", "rows=64", "cols=64", "--arch", "h100-sxm", "a10", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["accuracy"]["own_machine"] for row in rows] == [True, False]


def test_a_machine_without_rows_of_its_kind_says_so() -> None:
    report = simulate("gemm m=8 n=8 k=8", "tpu-v1")
    assert "accuracy" not in report.to_dict()
    assert report.sections()[-1].sentences == ["No row of this operator was measured on a machine of this kind."]


def test_a_graph_is_weighed_by_the_time_of_its_operators() -> None:
    report = simulate("bert_layer batch=1 seq=32 hidden=64 heads=1", "h100-sxm")
    assert "No whole model was measured here." in report.sections()[-1].sentences[0]
    assert "accuracy" not in report.to_dict()


def test_archs_says_what_the_results_say() -> None:
    machines = Machines()
    found = machines.accuracy["h100-sxm"]["gemm"]
    rows = [r for r in RESULTS if (r.machine, r.op) == ("h100-sxm", "gemm") and r.ran and r.split != "fitted"]
    assert found == Errors.of(rows)
    assert f"gemm {found.mean:.1f} % ({found.rows} rows)" in machines.validated("h100-sxm")
    assert all(board_of(machine).family for machine in machines.accuracy)


def test_readme_quotes_neither_short_kernels_nor_hosts() -> None:
    rows = [dataclasses.replace(r, machine="h100-sxm") for r in some([5] * 20, measured_us=20.0, shape="m=3 n=64 k=64")]
    rows = [dataclasses.replace(r, simulated_us=21, shape=f"{r.shape} x={n}") for n, r in enumerate(rows)]
    rows = [r for r in rows if r.split != "fitted"] * 3
    quoted = pages.quoted(rows)
    assert quoted == f"h100-sxm 5 % ({len(rows)} rows)"
    assert pages.quoted([dataclasses.replace(r, scope="host") for r in rows]) == ""
    assert pages.quoted([dataclasses.replace(r, measured_us=5) for r in rows]) == ""


def test_stale_groups_are_found() -> None:
    result = min((r for r in RESULTS if r.ran), key=lambda r: r.cpu_s)
    assert list(script.stale([result], packaged_rows())) == []
    moved = dataclasses.replace(result, simulated_us=result.simulated_us + 1)
    assert list(script.stale([moved], packaged_rows())) == [result.group]
    gone = dataclasses.replace(result, shape="m=1 n=1 k=1234567")
    assert list(script.stale([gone], packaged_rows())) == [result.group]


def test_results_stay_as_they_are_while_rows_run_and_an_interrupted_run_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.csv"
    write_results([], path)
    before = path.read_bytes()
    rows = sorted(packaged_rows(), key=lambda row: row.time_us)[:3]

    def refuse(part: Sequence[Row], workers: int | None) -> SimpleNamespace:
        assert path.read_bytes() == before
        if part == [rows[1]] and not (tmp_path / "again").exists():
            raise KeyboardInterrupt
        return SimpleNamespace(outcomes=(), failed=(), skipped=[MissingRow(row, "refused") for row in part])

    monkeypatch.setattr(script, "BATCH", 1)
    monkeypatch.setattr(script, "validate", refuse)
    with pytest.raises(KeyboardInterrupt):
        script.simulate(rows, path, workers=None)
    (tmp_path / "again").touch()
    script.simulate(rows[1:], path, workers=None)
    assert {result.key for result in read_results(path)} == {pages.result_of(row).key for row in rows}
    assert not path.with_suffix(".part").exists()


def test_judges_are_held_rows() -> None:
    assert {result.split for result in judges()} == {"held"}


# ---------------------------------------------------------------------------------------------------- boards


def test_a_board_left_out_has_no_figure_that_was_calibrated_on_its_rows() -> None:
    rows = packaged_rows()
    own = {machine: {row.source for row in rows if row.machine == machine} for machine in ("a100-sxm4-80gb", "l4")}
    found = left_out("a100-sxm4-80gb", own["a100-sxm4-80gb"])
    spec = load_arch("a100-sxm4-80gb", found.taken)
    assert (spec.dram.t_ccd_ps, load_arch("a100-sxm4-80gb").dram.t_ccd_ps) == (0, 1620)
    assert {"l2.request", "dram.queue"} <= set(found.kept)
    assert left_out("l4", own["l4"]) == ((), ())


def test_rows_of_a_board_left_out_are_simulated_with_these_figures() -> None:
    row = next(r for r in packaged_rows() if r.machine == "h200-sxm" and r.op == "gemm" and r.split == "held")
    row = dataclasses.replace(row, time_us=11.0)
    (other,) = script.without_own("h200-sxm", [row])
    assert other.overrides == ("dram.t_ccd=1.75 ns",)
    assert row_request(other).machine.overrides == {"dram.t_ccd": "1.75 ns"}
    assert pages.result_of(other).key == pages.result_of(row).key
    assert not script.without_own("h200-sxm", [dataclasses.replace(row, time_us=9.0)])
