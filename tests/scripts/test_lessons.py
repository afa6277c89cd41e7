"""Lessons in their reduced form: they run, their claims in counts hold, and their pictures are there."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "lessons"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A lesson as a module; the folder is on the path only meanwhile."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Exit code and claims by name of the reduced lesson."""
    module = load(name, monkeypatch)
    picture = tmp_path / f"{name}.png"
    main = sys.modules["lesson"].main
    code = main(module.__doc__, module.lesson, ["--quick", "--json", "--plot", str(picture)])
    assert picture.stat().st_size > 5000
    claims = json.loads(capsys.readouterr().out)
    return code, {claim["what"]: claim for claim in claims}


def test_one_more_column_of_tiles_takes_a_second_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("waves", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert claims["tiles at 1792"]["simulated"] == 98
    assert claims["waves after the step"]["simulated"] == 2
    assert 1.7 < claims["time after the step over time before"]["simulated"] < 2.1


def test_a_row_that_is_no_whole_line_touches_more_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("alignment", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert claims["lines of a tile, rows of 12"]["simulated"] == 4
    assert claims["lines of a tile, rows of 13"]["simulated"] == 7
    assert claims["multiply, rows of 513"]["simulated"] < 0.8 * claims["multiply, rows of 512"]["simulated"]


def test_a_page_of_code_is_close_at_small_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("page_of_code", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert all(0.7 < claim["simulated"] < 1.3 for claim in claims.values())


def test_fusing_halves_bytes_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, claims = run("fusion", tmp_path, monkeypatch, capsys)
    moved = [claims[f"numbers an element, {form}"]["simulated"] for form in ("unfused", "fused")]
    assert 1.9 < moved[0] / moved[1] < 2.3
    assert claims["time fused over unfused"]["simulated"] == pytest.approx(0.5, rel=0.12)


def test_the_t4_profile_lists_what_was_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("t4_profile", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert set(claims) == {"mul_", "pow", "fill_", "sum"}
    assert all(claim["published"] is None for claim in claims.values())  # small matrices: other regimes


def test_contractions_of_a_bert_layer_are_nearly_all_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, claims = run("bert", tmp_path, monkeypatch, capsys)
    kinds = ("contraction", "normalisation", "elementwise")
    assert claims["contraction: operations"]["simulated"] > 97
    assert claims["contraction: run time"]["simulated"] < 90
    assert sum(claims[f"{kind}: run time"]["simulated"] for kind in kinds) == pytest.approx(100)


def test_a_missed_claim_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    load("alignment", monkeypatch)
    lesson = sys.modules["lesson"]
    arguments = ["--plot", str(tmp_path / "x.png")]
    for simulated, code in ((1.04, 0), (1.06, 1)):
        claims = [lesson.Claim("x", simulated, "ms", 1.0, 0.05)]
        assert lesson.main("X", lambda _, claims=claims: (claims, Figure()), arguments) == code


def test_repeating_a_multiply_leaves_the_memory_bound_regime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, claims = run("regimes", tmp_path, monkeypatch, capsys)
    assert claims["throughput at r = 1"]["remark"].startswith("dram bound")
    assert claims["plateau"]["remark"].startswith("compute bound")
    assert 10 * claims["throughput at r = 1"]["simulated"] < claims["plateau"]["simulated"] < 9.75
    assert claims["1024 elements, r = 1"]["remark"].startswith("overhead bound")


def test_a_layer_on_few_tokens_is_overhead_bound_and_a_graph_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("overhead", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert claims["time at batch 2 over batch 1, eager"]["simulated"] < 1.1
    times = [claims[f"batch 1, {form}"]["simulated"] for form in ("eager", "graph", "fused_graph")]
    assert times == sorted(times, reverse=True)


def test_each_mechanism_of_flash3_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("flash_attention", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert len(claims) == 8
    assert claims["flash2 on A100"]["simulated"] > claims["flash2 on H100"]["simulated"]
    assert claims["flash3 without wgmma"]["simulated"] < claims["flash3 on H100"]["simulated"]


def test_a_list_waits_for_every_row_and_a_stream_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("decoupled", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert claims["list against stream"]["simulated"] > 20
    on_chip = claims["cycles a row, linked list in PMUs"]["simulated"]
    assert on_chip < claims["cycles a row, linked list"]["simulated"] / 5


def test_each_mechanism_of_a_multiply_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("gemm_mechanisms", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert len(claims) == 8
    assert len({claim["remark"].partition(", ")[2] for claim in claims.values()}) == 8  # eight programs
    assert claims["2048 cubed without wgmma"]["simulated"] < claims["2048 cubed"]["simulated"]
