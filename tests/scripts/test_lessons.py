"""Lessons in their reduced form: they run, their claims in counts hold, and their pictures are there."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.reference.pictures import faults  # isort: skip

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
    """Exit code and claims by name of the reduced lesson, whose picture can be read."""
    module = load(name, monkeypatch)
    picture = tmp_path / f"{name}.png"
    main = sys.modules["lesson"].main
    drawn = []

    def lesson(quick: bool) -> Any:
        claims, figure = module.lesson(quick)
        drawn.append(figure)
        return claims, figure

    code = main(module.__doc__, lesson, ["--quick", "--json", "--plot", str(picture)])
    assert picture.stat().st_size > 5000
    assert faults(drawn[0]) == []
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
    # It pays for the instructions and the code that kernels of libraries pay for. That it has no cluster costs little,
    # since reads of SMs of one GPC are joined.
    assert all(0.9 < claim["simulated"] < 1.03 for claim in claims.values())


def test_fusing_halves_bytes_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, claims = run("fusion", tmp_path, monkeypatch, capsys)
    moved = [claims[f"numbers an element, {form}"]["simulated"] for form in ("unfused", "fused")]
    assert 1.9 < moved[0] / moved[1] < 2.3
    assert claims["time fused over unfused"]["simulated"] == pytest.approx(0.5, rel=0.12)


def test_the_t4_profile_goes_by_the_bytes_that_an_operator_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words: pow takes what a scalar multiplication takes, a sum half of it; fill_ only writes. The matrix of the
    reduced form is four times the L2, so that a quarter may stay there."""
    code, claims = run("t4_profile", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert set(claims) == {"mul_", "pow", "fill_", "sum"}
    over = {name: claim["simulated"] / claims["mul_"]["simulated"] for name, claim in claims.items()}
    assert over["pow"] == pytest.approx(1, rel=0.12)
    assert over["sum"] == pytest.approx(0.5, rel=0.3)
    assert over["fill_"] == pytest.approx(0.5, rel=0.2)
    # Reading and writing 16 MiB each takes no less than the advertised 0.32 TB/s allow for what the L2 does not hold.
    assert claims["mul_"]["simulated"] > 0.75 * 2 * 2048**2 * 4 / 0.32e12 * 1e3


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
    assert claims["flash3 on H100"]["simulated"] > 1.3 * claims["flash2 on H100"]["simulated"]
    # At 2048 keys wgmma is worth most, and ping-pong nothing beside overlap: each hides the other's waits.
    share = {name: claim["simulated"] / claims["flash3 on H100"]["simulated"] for name, claim in claims.items()}
    cost = [share[f"flash3 without {name}"] for name in ("wgmma", "warp_specialization", "overlap", "tma", "pingpong")]
    assert cost[:3] == sorted(cost[:3])
    assert cost[0] < 0.7
    assert cost[1] < 0.9
    assert cost[3:] == pytest.approx([1, 1], abs=0.02)  # what the TMA writes is free, and so is what it saves here


def test_a_list_waits_for_every_row_and_a_stream_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("decoupled", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert claims["list against stream"]["simulated"] > 20
    # A row of the list pays the latency of memory, a row of the stream the 64 bytes' share of its bandwidth.
    latency = float(claims["cycles a row, linked list"]["remark"].rpartition(" ")[2])
    assert latency < claims["cycles a row, linked list"]["simulated"] < 1.2 * latency
    assert claims["cycles a row, stream"]["simulated"] < latency / 100
    on_chip = claims["cycles a row, linked list in PMUs"]["simulated"]
    assert on_chip < claims["cycles a row, linked list"]["simulated"] / 5


def test_each_mechanism_of_a_multiply_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("gemm_mechanisms", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert len(claims) == 8
    assert len({claim["remark"].partition(", ")[2] for claim in claims.values()}) == 8  # eight programs
    over = {name: claim["simulated"] / claims["2048 cubed"]["simulated"] for name, claim in claims.items()}
    assert over["2048 cubed without wgmma"] < 0.75
    # Reads of SMs of one GPC are joined, which saves what a cluster of two would.
    assert over["2048 cubed without multicast"] == pytest.approx(1, abs=0.02)
    # wgmma in flight hide what one warp does alone, and some of the instructions of cp.async.
    assert over["2048 cubed without warp_specialization"] == pytest.approx(1, abs=0.02)
    assert 0.9 < over["2048 cubed without tma"] < over["2048 cubed without tma and warp_specialization"] < 0.99
    short = [claims[f"k = 512{left_out}"]["simulated"] for left_out in ("", " without pingpong")]
    assert short[1] == pytest.approx(short[0], rel=0.02)


def test_a_held_schedule_has_steps_where_the_chosen_one_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("what_if", tmp_path, monkeypatch, capsys)
    found = {name: claim["simulated"] for name, claim in claims.items()}
    assert code == 0
    assert found["held, 120 over 128 SMs"] > 1.2
    assert found["held, 104 over 120 SMs"] == pytest.approx(1, abs=0.05)
    assert found["held, 132 over 128 SMs"] == pytest.approx(1, abs=0.02)
    assert found["own choice over held, 120 SMs"] < 0.85
    assert found["own choice, 120 over 128 SMs"] < found["held, 120 over 128 SMs"] - 0.1
    # A clock acts alike both ways; the number of SMs is a cliff.
    assert found["clock.boost, downwards"] == pytest.approx(found["clock.boost, upwards"], abs=0.2)
    assert found["sm.count, downwards"] < -1.5
    assert -0.3 < found["sm.count, upwards"] < 0.1


def test_one_network_is_far_below_the_peak_of_each_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("one_network", tmp_path, monkeypatch, capsys)
    assert code == 0
    shares = [claim["simulated"] for claim in claims.values() if claim["unit"] == "% of its peak"]
    assert len(shares) == 3
    assert all(0.5 < share < 20 for share in shares)
    times = {name: claims[f"{name}, all layers"]["simulated"] for name in ("h100-sxm", "sn40l", "tpu-v1")}
    assert times["tpu-v1"] > 3 * max(times["h100-sxm"], times["sn40l"])


def test_families_stay_below_their_roofs_and_energy_goes_with_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("families", tmp_path, monkeypatch, capsys)
    assert code == 0
    of_roof = {name: claim["simulated"] for name, claim in claims.items() if claim["unit"] == "% of its roof"}
    assert set(of_roof) == {f"{m}, {w}" for m in ("h100-sxm", "sn40l") for w in ("gemm", "gelu")} | {"tpu-v1, gemm"}
    assert all(1 < share <= 100 for share in of_roof.values())
    joules = [claims[f"{m}, energy of the GEMM"]["simulated"] for m in ("h100-sxm", "sn40l", "tpu-v1")]
    assert joules[2] > 2 * max(joules[:2])  # 28 nm
    assert 1 < min(joules[:2]) < max(joules[:2]) < 3  # 4 and 5 nm


def test_more_devices_serve_faster_until_sums_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("serving", tmp_path, monkeypatch, capsys)
    assert code == 0
    gain, without = claims["8 devices against one"]["simulated"], claims["without sums it would be"]["simulated"]
    assert 3 < gain < without < 8
    links, pcie = (claims[f"16 sequences, sums over 8 h100-{board}"]["simulated"] for board in ("sxm", "pcie"))
    assert links < 20 < pcie


def test_a_token_of_a_model_is_bound_by_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, claims = run("model_costs", tmp_path, monkeypatch, capsys)
    whole, half = (claims[f"{name}, a step"]["simulated"] for name in ("two H100", "half the memory bandwidth"))
    assert 1.6 < half / whole < 2.0


def test_exponentials_take_as_long_as_products_on_b200_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("softmax_costs", tmp_path, monkeypatch, capsys)
    assert code == 0
    found = {name: claim["simulated"] for name, claim in claims.items()}
    ratios = [found[f"{name}: exponentials over products"] for name in ("H100", "B200", "B300")]
    assert ratios == [0.5, 1, 0.5]
    cost = {name: found[f"{name}, all by MUFU: exponentials cost"] for name in ("B200", "B300")}
    assert cost["B200"] > 3 * max(cost["B300"], 0.5)
    # What the FMA pipe takes over is gained on B200, and on B300, whose MUFU keeps up, it is not.
    assert found["B200, a quarter by FMA: exponentials cost"] < cost["B200"] / 2
    for board, least, most in (("B200", 1.02, 1.1), ("B300", 0.95, 1.01)):
        all_by, quarter = (found[f"{board}, {how}: tensor cores busy"] for how in ("all by MUFU", "a quarter by FMA"))
        assert least < quarter / all_by < most


def test_each_mechanism_of_a_product_on_b200_has_its_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claims = run("blackwell_gemm", tmp_path, monkeypatch, capsys)
    assert code == 0
    assert len({claim["remark"].partition(", ")[2] for claim in claims.values()}) == len(claims) == 7
    ladder, without = list(claims.values())[:3], {name: c["simulated"] for name, c in list(claims.items())[3:]}
    rates = [claim["simulated"] for claim in ladder]
    assert rates == sorted(rates)
    over = {name.removeprefix("without "): rate / rates[-1] for name, rate in without.items()}
    assert over["launch control"] == pytest.approx(1, abs=0.02)
    assert over["tensor memory (mma.sync)"] < 0.5 < over["pairs"] < over["stores beside the next tile"] < 0.97
