"""Mixtures of experts on GPUs: numbers against NumPy, what is moved and multiplied, samples, refusals, every wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.gpu.check.interpret import interpret
from sim.gpu.language import Program
from workloads.gpu.moe.blocks import Blocks
from workloads.gpu.moe.config import EarlierMoeConfig, MarlinMoeConfig, MoeConfig, tuned
from workloads.gpu.moe.layer import build, choose, parts
from workloads.ops import Moe
from workloads.ops.routing import _nearest_to_mean
from workloads.parse import parse
from workloads.silicon import environment_of, operator_of
from workloads.silicon.rows import Row

from tests.reference.gpu_executor import execute  # isort: skip
from tests.reference.mutation import assert_mutants_caught  # isort: skip

A100, H100, B200 = "a100-sxm4-80gb", "h100-sxm", "b200"

CASES = [
    (A100, "vllm", "tokens=20 hidden=72 inter=40 topk=2 experts=4"),
    (A100, "vllm-0.14", "tokens=30 hidden=64 inter=40 topk=3 experts=6 ep=3 distribution=power_law_1.2 gate=0"),
    (A100, "vllm-0.14", "tokens=70 hidden=64 inter=64 topk=4 experts=8 ep=4 distribution=balanced"),
    (H100, "vllm", "tokens=70 hidden=128 inter=64 topk=2 experts=4 tp=2 router=1"),
    (H100, "vllm 64x64x64 warps 4 stages 4 group 2", "tokens=70 hidden=192 inter=64 topk=2 experts=4"),
    (A100, "vllm-0.14", "tokens=2 hidden=32 inter=32 topk=22 experts=24 ep=8"),
    (A100, "auto", "tokens=3 hidden=64 inter=32 topk=1 experts=4 distribution=0,2,0,1"),
    (A100, "vllm", "tokens=3 hidden=64 inter=32 topk=2 experts=24 distribution=power_law_1.2"),
    (H100, "vllm", "tokens=41 hidden=64 inter=64 topk=5 experts=96 ep=2 router=1"),
    (H100, "vllm", "tokens=13 hidden=64 inter=64 topk=7 experts=192 router=1"),
    (A100, "marlin", "tokens=20 hidden=128 inter=96 topk=2 experts=4 weights=mxfp4"),
    (A100, "auto", "tokens=4 hidden=64 inter=64 topk=1 experts=2 weights=int8 group=64"),
    (H100, "auto", "tokens=70 hidden=192 inter=64 topk=2 experts=4 weights=nvfp4 gate=0"),
    (H100, "auto", "tokens=20 hidden=128 inter=64 topk=2 experts=8 ep=2 weights=int4 group=32 router=1"),
    (H100, "auto", "tokens=70 hidden=128 inter=256 topk=2 experts=4 ep=2 router=1 gate=0 scale=block dtype=fp8"),
    (H100, "vllm", "tokens=64 hidden=256 inter=128 topk=2 experts=4 distribution=balanced scale=block dtype=fp8"),
    (H100, "vllm", "tokens=300 hidden=64 inter=32 topk=2 experts=8 router=1 gate=0"),
    (B200, "auto", "tokens=70 hidden=136 inter=64 topk=2 experts=4 ep=2 router=1"),
    (B200, "auto", "tokens=520 hidden=36 inter=20 topk=1 experts=2"),
    (B200, "auto", "tokens=9 hidden=64 inter=200 topk=5 experts=24 distribution=power_law_1.2"),
]


@pytest.mark.parametrize(("machine", "schedule", "keys"), CASES)
def test_numbers_are_those_of_numpy(machine: str, schedule: str, keys: str) -> None:
    report = simulate(
        f"moe {keys}" if "dtype=" in keys else f"moe {keys} dtype=bf16", machine, schedule=schedule, check=True
    )
    assert report.record.check is not None
    assert report.record.check.passed, report.record.notes


def test_results_of_experts_in_fp8_are_not_rounded_to_it() -> None:
    """They go through shared memory in their own format: with what lies there in fp8, errors are 0.04."""
    report = simulate(
        "moe tokens=20 hidden=256 inter=128 topk=1 experts=2 gate=0 scale=block dtype=fp8", H100, check=True
    )
    assert report.record.check is not None
    assert report.record.check.passed
    assert (report.record.check.max_rel_error or 1.0) < 0.03


def test_a_step_of_operands_with_scales_by_block_is_waited_for() -> None:
    """Products of a step are added by the vector units: two multiply-adds and more a step."""
    text = "moe tokens=64 hidden=512 inter=128 topk=1 experts=1 gate=0 dtype=fp8"
    schedule = "vllm 64x128x128 warps 4 stages 3 group 1"

    def up(scale: str) -> Any:
        kernels = simulate(f"{text} scale={scale}", H100, schedule=schedule).record.kernels
        return next(k for k in kernels if k.name.startswith("up"))

    plain, scaled = up("none"), up("block")
    added = scaled.counters["fma_busy_cycles"] - plain.counters["fma_busy_cycles"]
    assert added >= 4 * 64 * 128 / 32
    assert scaled.time_ps > plain.time_ps


def test_weights_of_four_bits_are_read_as_such() -> None:
    """A byte for two weights, and one for the scale of 32 (mxfp4) or 16 (nvfp4)."""
    read, time = {}, {}
    for weights in ("same", "nvfp4", "mxfp4"):
        text = f"moe tokens=20 hidden=1024 inter=1024 topk=2 experts=8 distribution=balanced weights={weights}"
        kernels = simulate(f"{text} dtype=bf16", H100).record.kernels
        products = [k for k in kernels if k.name.startswith(("up", "down"))]
        read[weights] = sum(k.counters["dram_read_bytes"] for k in products) / (8 * 3 * 1024 * 1024)
        time[weights] = sum(k.time_ps for k in products)
    assert read == pytest.approx({"same": 2.0, "nvfp4": 9 / 16, "mxfp4": 17 / 32}, rel=0.03)
    assert time["mxfp4"] < time["nvfp4"] < time["same"]


def test_blocks_of_packed_weights_have_the_fewest_rows_that_choices_fill() -> None:
    def tile(tokens: int) -> str:
        op = Moe(tokens=tokens, hidden=512, inter=256, topk=4, experts=16, dtype="bf16", weights="mxfp4")
        return str(choose(op, load_arch(H100)).config)

    assert [tile(tokens).split()[1] for tokens in (57, 58, 130, 4096)] == [
        "16x256x64",
        "32x256x64",
        "48x256x64",
        "64x256x64",
    ]


def test_only_what_lands_here_is_multiplied_and_only_its_weights_are_read() -> None:
    text = "moe tokens=64 hidden=512 inter=256 topk=2 experts=8 ep=4 distribution=40,0,20,10,20,10,20,8 dtype=bf16"
    report = simulate(text, A100, schedule="vllm-0.14")
    up, down = (k for k in report.record.kernels if k.name.startswith(("up", "down")))
    # 40 rows of expert 0 fill a block of 64; expert 1 has none.
    assert up.counters["macs"] == 64 * 512 * 512
    assert down.counters["macs"] == 64 * 256 * 512
    weights = 512 * 512 * 2
    assert weights <= up.counters["dram_read_bytes"] < 1.4 * weights


@pytest.mark.parametrize(("distribution", "size"), [("balanced", 16), ("power_law_1.2", 64), ("uniform", 16)])
def test_blocks_hold_each_row_once(distribution: str, size: int) -> None:
    op = Moe(tokens=90, hidden=64, inter=32, topk=3, experts=12, ep=3, distribution=distribution, dtype="bf16")
    b = Blocks.of(op, size)
    assert sorted(b.flat[b.flat >= 0]) == list(range(90 * 3))
    for block, expert in enumerate(b.experts):
        rows = b.flat[block][: b.valid[block]]
        assert (b.flat[block][b.valid[block] :] == -1).all()
        chosen = op.ids.reshape(-1)[rows]
        assert len(set(chosen)) == 1
        assert (chosen[0] if chosen[0] < op.local_experts else -1) == expert
    assert len(set(b.places)) == 90 * 3
    assert b.launched >= b.count


def test_neighbours_in_turns_lie_evenly_apart() -> None:
    op = Moe(tokens=256, hidden=64, inter=32, topk=2, experts=8, distribution="balanced", dtype="bf16")
    b = Blocks.of(op, 16)
    assert (b.spacing, b.group) == (4, 16)
    assert b.even(16).all()


def test_few_choices_among_many_experts_are_not_sorted() -> None:
    op = Moe(tokens=3, hidden=64, inter=32, topk=2, experts=24, distribution="power_law_1.2", dtype="bf16")
    b = Blocks.of(op, 16)
    assert (b.count, b.launched) == (6, 6)
    assert (b.experts == op.ids.reshape(-1)).all()
    assert not b.sorted
    assert Blocks.of(dataclasses.replace(op, experts=23), 16).sorted

    def names(op: Moe) -> list[str]:
        return [k.name.partition("_")[0] for k in build(op, load_arch(A100), MoeConfig(16, 32, 64)).kernels]

    assert names(op) == ["fill", "up", "silu", "down", "moe"]
    assert names(dataclasses.replace(op, experts=23)) == ["moe", "up", "silu", "down", "moe"]
    assert names(dataclasses.replace(op, ep=2))[:3] == ["moe", "widen", "index"]


def test_an_earlier_vllm_leaves_blocks_of_other_devices_out_and_clears_the_rest() -> None:
    op = Moe(tokens=90, hidden=64, inter=32, topk=3, experts=12, ep=3, dtype="bf16")
    program = build(op, load_arch(A100), EarlierMoeConfig(16, 32, 64))
    assert [k.name for k in program.kernels if k.name == "clear"] == ["clear"]
    b = Blocks.of(op, 16, filtered=True)
    assert 0 < len(b.taken) < b.count
    assert (b.experts[b.taken] >= 0).all()
    assert "clear" not in [k.name for k in build(op, load_arch(A100), MoeConfig(16, 32, 64)).kernels]


def test_vllm_takes_tiles_of_its_tables_where_it_has_been_tuned() -> None:
    def tile(
        machine: str, tokens: int, schedule: str = "auto", inter: int = 7168, experts: int = 8, share: int = 1
    ) -> str:
        op = Moe(tokens=tokens, hidden=512, inter=inter, topk=1, experts=experts, ep=share, dtype="bf16")
        return str(choose(op, load_arch(machine), schedule).config)

    # The nearest number of tokens of the table; the tuned layer is that of one device.
    assert tile(A100, 2048, "vllm-0.14") == "vllm-0.14 128x128x64 warps 8 stages 4 group 16"
    assert tile(A100, 2300, "vllm-0.14", experts=16, share=2) == tile(A100, 2048, "vllm-0.14")
    assert tile(A100, 2048, "vllm-0.14", inter=7104) == "vllm-0.14 64x64x32 warps 4 stages 3 group 8"
    assert tile(H100, 768, experts=128, inter=384) == "vllm 64x64x64 warps 4 stages 3 group 64"
    # A table that only the later release has.
    assert tile(H100, 768, "vllm-0.14", experts=128, inter=384) == "vllm-0.14 64x64x32 warps 4 stages 3 group 8"


def test_every_tuned_tile_is_one_that_its_machine_takes() -> None:
    for (machine, experts, inter), (since, tiles) in tuned().items():
        assert since in ("0.14", "0.24")
        for tokens, tile in tiles.items():
            config = MoeConfig(*tile)
            op = Moe(tokens=tokens, hidden=1024, inter=inter, topk=1, experts=experts, dtype="bf16")
            buffers = config.stages - (machine == A100 or config.block_m < 64)
            size = buffers * (config.block_m + config.block_n) * config.block_k * 2
            assert size <= load_arch(machine).shared.max_per_cta_bytes, (machine, op, config)


def test_vllm_takes_larger_tiles_for_more_tokens() -> None:
    spec = load_arch(H100)

    def tile(tokens: int, schedule: str) -> str:
        op = Moe(tokens=tokens, hidden=512, inter=256, topk=2, experts=16, dtype="bf16")
        return str(choose(op, spec, schedule).config)

    assert tile(20, "vllm") == "vllm 16x64x128 warps 4 stages 4 group 1"
    assert tile(90, "vllm") == "vllm 32x128x64 warps 4 stages 3 group 1"
    assert tile(4096, "auto") == "vllm 128x128x64 warps 8 stages 3 group 16"
    assert tile(16, "vllm-0.14") == "vllm-0.14 16x32x64 warps 4 stages 3 group 1"
    assert tile(17, "vllm-0.14") == "vllm-0.14 64x64x32 warps 4 stages 3 group 8"
    assert tile(17, "vllm 32x64x64 warps 4 stages 3 group 1") == "vllm 32x64x64 warps 4 stages 3 group 1"


def test_a_sample_of_a_long_kernel_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "moe tokens=1024 hidden=512 inter=512 topk=4 experts=8 distribution=balanced dtype=bf16"
    whole = simulate(text, A100, schedule="vllm-0.14").record
    monkeypatch.setattr("workloads.gpu.moe.layer.MOST_OPS", 300_000)
    monkeypatch.setattr("workloads.gpu.moe.layer.LEAST_TILES", 500)
    sampled = simulate(text + " seed=1", A100, schedule="vllm-0.14").record
    up, up_sampled = (next(k for k in r.kernels if k.name.startswith("up")) for r in (whole, sampled))
    assert up_sampled.counters["events"] < up.counters["events"] / 1.5
    assert up_sampled.counters["macs"] == pytest.approx(up.counters["macs"], rel=0.01)
    assert up_sampled.time_ps == pytest.approx(up.time_ps, rel=0.15)
    assert any(note.startswith("Of up_64x64x32, which is long") for note in sampled.notes)
    assert not any("which is long" in note for note in whole.notes)
    with pytest.raises(InputError, match="a smaller problem runs the same code"):
        simulate(text + " seed=2", A100, schedule="vllm-0.14", check=True)


def test_a_sample_is_a_part_of_the_launch_with_its_mix_of_experts() -> None:
    op = Moe(tokens=1024, hidden=6144, inter=1280, topk=8, experts=160, distribution="power_law_1.01", dtype="bf16")
    b = Blocks.of(op, 64)
    (part,) = parts(b, MoeConfig(64, 64, 32), op.first_columns, op.hidden)
    assert part.tiles_n == 40  # all columns: the eight blocks of a group read the same weights
    first = int(part.picked[0])
    assert first % 8 == len(part.picked) % 8 == 0
    assert (part.picked == first + np.arange(len(part.picked))).all()

    def weights(blocks: Any) -> float:
        """Experts of all groups, by block: how often weights are read."""
        groups = {(int(i) // 8, int(b.experts[i])) for i in blocks}
        return len(groups) / len(blocks)

    away = [weights(b.taken[i : i + len(part.picked)]) / weights(b.taken) - 1 for i in range(0, len(b.taken) - 79, 8)]
    assert len(part.picked) == 80
    assert abs(away[first // 8]) == min(map(abs, away)) < 0.03 < 0.06 < max(map(abs, away))
    wide = Moe(tokens=8192, hidden=512, inter=32768, topk=2, experts=8, distribution="balanced", dtype="bf16")
    (part,) = parts(Blocks.of(wide, 64), MoeConfig(64, 64, 32), wide.first_columns, wide.hidden)
    assert (len(part.picked), part.tiles_n < 1024) == (16, True)


def test_a_sample_keeps_blocks_of_other_devices_apart() -> None:
    op = Moe(tokens=8192, hidden=4096, inter=2048, topk=4, experts=64, ep=8, distribution="power_law_1.2", dtype="bf16")
    b = Blocks.of(op, 64)
    here, elsewhere = parts(b, MoeConfig(64, 64, 32), op.first_columns, op.hidden)
    assert (b.experts[here.picked] >= 0).all()
    assert (b.experts[elsewhere.picked] < 0).all()
    assert here.stands_for + (elsewhere.stands_for or len(elsewhere.picked) * 64) == b.count * 64


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("tp=3", "moe tp=3: must divide inter=64"),
        ("ep=3", "moe ep=3: must divide experts=4"),
        ("topk=5", "moe topk=5: at most experts=4"),
        ("distribution=powerlaw", "moe distribution=powerlaw: uniform, balanced, power_law_A"),
        ("distribution=1,2,3", "3 counts; one for each of experts=4"),
        ("distribution=1,2,3,1", "counts add up to 7"),
        ("scale=block dtype=bf16", "moe scale=block: weights=same dtype=bf16; nearest: weights=same dtype=fp8"),
        ("scale=block dtype=fp8", "moe scale=block: hidden = 64: must be a multiple of 128, nearest: 128"),
        ("weights=mxfp4 dtype=fp8", "moe weights=mxfp4: fp8 rows; nearest: dtype=bf16"),
        ("weights=int4 group=48", "moe weights=int4 group=48: must be 16, 32 or a multiple of 64, nearest: 64"),
    ],
)
def test_what_cannot_be_is_refused(keys: str, told: str) -> None:
    words = {"tokens": "4", "hidden": "64", "inter": "64", "topk": "1", "experts": "4"}
    words |= dict(word.split("=") for word in keys.split())
    with pytest.raises(InputError, match=told):
        simulate("moe " + " ".join(f"{key}={value}" for key, value in words.items()), A100)


def test_machines_and_schedules_that_have_no_such_kernel_are_refused() -> None:
    text = "moe tokens=4 hidden=64 inter=64 topk=1 experts=4 dtype=fp16"
    with pytest.raises(InputError, match=r"t4 has no cp\.async"):
        simulate(text, "t4")
    with pytest.raises(InputError, match=r"one of auto, vllm, vllm-0\.14, marlin, or a whole"):
        simulate(text, A100, schedule="fused")
    with pytest.raises(InputError, match="moe weights=int4 schedule=vllm: has no such kernel; nearest: marlin"):
        simulate(f"{text} weights=int4", A100, schedule="vllm")
    wide = "moe tokens=4 hidden=128 inter=128 topk=1 experts=4 dtype=fp8 scale=block"
    for machine in (A100, "b200"):
        with pytest.raises(InputError, match=f"needs wgmma in fp8 on {machine}"):
            simulate(wide, machine)
    with pytest.raises(InputError, match="a step has 128 of k"):
        simulate(wide, H100, schedule="vllm 64x256x128 warps 4 stages 3 group 1")
    with pytest.raises(InputError, match="nearest: vllm"):
        simulate(text, A100, schedule="marlin 16x256x64 warps 8 stages 4 group 1")


COUNTED_ON_H100 = {
    "tokens=4 hidden=2816 inter=704 topk=8 experts=128 ep=32": {
        "topk_softmax": (1, 2834), "moe_align_block_size": (2, 9837), "count_and_sort_expert_tokens": (1, 125),
        "widen": (1, 201), "index": (1, 199), "up_16x64x128": (704, 581_570), "silu_and_mul": (32, 49_977),
        "down_16x64x128": (1408, 887_348), "reduce_kernel": (22, 38_984),
    },
    "tokens=320 hidden=3072 inter=1024 topk=8 experts=256 ep=128": {
        "topk_softmax": (80, 479_040), "moe_align_block_size": (2, 16_283), "count_and_sort_expert_tokens": (10, 3840),
        "widen": (1, 616), "index": (1, 917), "up_64x128x64": (4672, 6_466_048), "silu_and_mul": (2560, 5_395_440),
        "down_64x128x64": (7008, 9_010_944), "reduce_kernel": (1920, 3_402_240),
    },
    "tokens=768 hidden=6144 inter=3072 topk=4 experts=128 ep=64": {
        "topk_softmax": (96, 310_656), "moe_align_block_size": (2, 16_268), "count_and_sort_expert_tokens": (12, 4608),
        "widen": (1, 385), "index": (1, 527), "up_128x128x64": (7248, 18_887_808), "silu_and_mul": (3072, 19_346_112),
        "down_128x128x64": (7248, 15_364_224), "moe_sum": (768, 6_365_184),
    },
}  # fmt: skip
"""CTAs and warp instructions of the kernels of vLLM 0.24 (PyTorch 2.11, Triton 3.6, CUDA 13), by Nsight Compute."""


@pytest.mark.parametrize("keys", COUNTED_ON_H100)
def test_kernels_are_those_that_were_counted(keys: str) -> None:
    report = simulate(f"moe {keys} distribution=balanced router=1 dtype=bf16", H100, schedule="vllm")
    counted = COUNTED_ON_H100[keys]
    assert [k.name for k in report.record.kernels] == list(counted)
    for kernel in report.record.kernels:
        ctas, instructions = counted[kernel.name]
        assert kernel.counters["ctas"] == ctas, kernel.name
        assert kernel.counters["warp_instructions"] == pytest.approx(instructions, rel=0.08), kernel.name


def test_other_layers_run_other_kernels() -> None:
    def names(**keys: object) -> list[str]:
        given = {"tokens": 40, "hidden": 64, "inter": 32, "topk": 2, "experts": 72, "distribution": "balanced"} | keys
        op = Moe(dtype="bf16", **given)  # type: ignore[arg-type]
        return [k.name for k in build(op, load_arch(H100), MoeConfig(16, 64, 64)).kernels]

    # Experts that no power of two has take two kernels, those of multiples of 64 one.
    assert names(router="1")[:3] == ["softmax", "topk", "moe_align_block_size"]
    assert names(router="1", experts=192)[:2] == ["topk_softmax", "moe_align_block_size"]
    assert names(experts=64)[0] == "moe_align_block_size_small"
    assert names(experts=64, tokens=512)[:2] == ["moe_align_block_size", "count_and_sort_expert_tokens"]
    assert names(gate="0")[3:5] == ["relu", "square"]
    assert [names(topk=topk)[-1] for topk in (1, 2, 4, 5)] == ["reduce_kernel", "moe_sum", "moe_sum", "reduce_kernel"]


def test_rows_of_zeros_take_the_slow_path_of_a_division() -> None:
    def instructions(ep: int) -> int:
        text = f"moe tokens=64 hidden=64 inter=256 topk=2 experts=128 ep={ep} distribution=balanced dtype=bf16"
        kernels = simulate(text, H100, schedule="vllm").record.kernels
        return next(k.counters["warp_instructions"] for k in kernels if k.name == "silu_and_mul")

    # 128 rows of a warp, half of them of experts elsewhere: 8 divisions of 33.6 instructions each.
    assert instructions(2) - instructions(1) == pytest.approx(64 * 8 * 33.6, rel=0.02)


KNOWN = "which rows and experts a block has is known when the program is written"
COUNTED = "what the warps count is there for its time alone"
IN_THE_SUM = "weights multiply in the sum, here they cost time"
FENCE = "no register that wgmma reads or writes is touched by anything else between two k steps"
NUMBERS = ((9, "rows"), (9, "expert"))
SORTING = {f"moe_align_block_size_small/warps/{at} bar_sync": COUNTED for at in (12, 16, 23)}
AGAIN = "each step of the loop begins with the same wait"
LAST = "the last step's barrier comes after its last read of the buffers"
MMA = {f"{product}/{wait}": AGAIN for product in ("up", "down") for wait in ("18 cp_wait", "19 bar_sync")}
MMA |= {"up/37 bar_sync": LAST, "down/39 bar_sync": LAST}
MARLIN = {f"{product}/{wait}": AGAIN for product in ("up", "down") for wait in ("20 cp_wait", "21 bar_sync")}
MARLIN |= {"up/53 bar_sync": LAST, "down/55 bar_sync": LAST}
OWN = "results have a place of their own here, which hardware lays over the operands'"
ONE_STEP = "the loop behind the first step has no trip"
BLOCK = dict.fromkeys(("up/52 bar_sync", "down/52 bar_sync"), OWN)
BLOCK |= dict.fromkeys(
    (f"down/{wait}" for wait in ("32 cp_wait", "33 fence_async", "34 bar_sync", "38 wgmma_fence", "41 wgmma_wait")),
    ONE_STEP,
)
BLOCK["down/42 ffma after scales"] = ONE_STEP
WAITS = {
    "mma": (A100, MoeConfig(16, 128, 32, 2, 3), MMA, "down/36"),
    "marlin": (A100, MarlinMoeConfig(16, 64, 64, 2, 3), MARLIN, "down/52"),
    "block": (H100, MoeConfig(64, 64, 128, 4, 3), BLOCK, "down/49"),
    "wgmma": (
        H100,
        MoeConfig(64, 256, 64, 8, 3),
        {"up/34 wgmma_fence": FENCE, "down/34 wgmma_fence": FENCE},
        "down/46",
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_matters(name: str) -> None:
    machine, config, redundant, weighing = WAITS[name]
    keys = {"marlin": {"weights": "int4"}, "block": {"scale": "block", "dtype": "fp8", "out": "fp16"}}.get(name, {})
    size = (3 if keys else 4) * config.block_k
    inter = config.block_k if name == "block" else size
    op = Moe(tokens=4, hidden=size, inter=inter, topk=1, experts=1, gate="0", **{"dtype": "fp16", **keys})  # type: ignore[arg-type]
    program = build(op, load_arch(machine), config)
    operands = dict(zip((o.name for o in op.operands), op.inputs(seed=1, data="integers"), strict=True))
    inputs = {name: program.config["stored"].get(name, np.asarray)(array) for name, array in operands.items()}
    expected = interpret(program, execute(program, seed=1), inputs).outputs

    def case() -> tuple[Program, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        return program, inputs, expected

    def run(mutant: Program) -> NDArray[np.int64]:
        return execute(mutant, seed=2)

    excused = SORTING | {f"{weighing} fmul after w": IN_THE_SUM}
    excused |= {f"{product}/{at} iadd after {what}": KNOWN for product in ("up", "down") for at, what in NUMBERS}
    excused |= redundant
    tile = f"{config.block_m}x{config.block_n}x{config.block_k}"
    named = {
        what.replace("up/", f"up_{tile}/warps/").replace("down/", f"down_{tile}/warps/"): why
        for what, why in excused.items()
    }
    assert assert_mutants_caught(case, run, named) > 0


def test_rows_run_as_their_sources_did() -> None:
    shape = "tokens=8 hidden=2688 inter=1856 topk=6 experts=128 tp=2 ep=1 distribution=balanced"
    source = "aiconfigurator_vllm_vllm_unquantizedfusedmoe_triton_tritonexperts"
    row = Row(H100, "moe", "bf16", shape, "fused", 1.0, "graph", 0, "mixed", "A", source, "")
    op = operator_of(row)
    assert isinstance(op, Moe)
    assert (op.gate, op.router, op.first_columns) == ("0", "1", 928)
    earlier = environment_of("aiconfigurator_vllm_vllm_fused_moe")
    assert (earlier.router, earlier.schedules["moe"]["fused"]) == (False, "vllm-0.14")
    row = dataclasses.replace(
        row, shape=shape.replace("balanced", "power_law_1.2"), source="aiconfigurator_vllm_vllm_fused_moe"
    )
    assert operator_of(row).distribution == "power_law_1.2_packed"  # type: ignore[attr-defined]


def test_of_several_draws_the_one_nearest_to_their_mean_is_run() -> None:
    # By its rows the fourth is nearest, but one of its experts reads no weights.
    draws = [np.array(loads) for loads in ([20, 20, 20], [30, 30, 0], [70, 20, 20], [37, 37, 0], [24, 24, 22])]
    assert _nearest_to_mean(draws) == 4
    assert _nearest_to_mean(draws[:2] + draws[:1] * 3) == 0
    assert _nearest_to_mean([np.array([0, 0])] * 2) == 0
    shape = "tokens=160 hidden=64 inter=64 topk=8 experts=384 ep=128 distribution=power_law_1.2_packed dtype=bf16"
    for seed in range(15):
        op = parse(f"moe {shape} seed={seed}")
        assert isinstance(op, Moe)
        assert np.unique(op.ids[op.ids < op.local_experts]).size == 3  # two in one draw of seven


def test_a_power_law_settles_on_devices_in_turns() -> None:
    op = Moe(tokens=8, hidden=64, inter=64, topk=8, experts=160, ep=8, distribution="power_law_1.2", dtype="bf16")
    counts = np.bincount(op.ids.reshape(-1), minlength=160).reshape(8, 20)
    assert counts.sum() == 64
    # No device has all its experts busy while others have a few: what rounding lost goes to all of them in turns.
    assert counts[0].sum() == counts.sum(axis=1).max()
    assert (counts > 0).sum(axis=1).max() < 16
    packed = dataclasses.replace(op, tokens=1, distribution="power_law_1.2_packed")
    assert (np.bincount(packed.ids.reshape(-1), minlength=160)[:20] > 0).sum() == 8
    full = Moe(tokens=50, hidden=64, inter=64, topk=4, experts=6, ep=2, distribution="power_law_1.2", dtype="bf16")
    loads = np.bincount(full.ids.reshape(-1), minlength=6)
    assert (loads.sum(), loads.max()) == (200, 50)
