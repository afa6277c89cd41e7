"""A model behind a server: its scheduler, how steps are joined, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.cli import main
from sim.app.serving.curve import serve
from sim.app.serving.deployment import Deployment, Memory, fitted
from sim.app.serving.scheduler import ROUNDS, Server
from sim.app.serving.steps import Chunk, Step, StepCost, StepTimes, between, grid_of

DECODE_S, PROMPT_S = 0.010, 0.050


def even(step: Step) -> StepCost:
    """A decode takes always as long, a prompt by its tokens."""
    prompts = PROMPT_S * sum(chunk.tokens for chunk in step.chunks) / 100
    return StepCost((DECODE_S if step.decode else 0.0) + prompts, 0.0, 1.0)


def server(text: str, room: int = 1 << 30) -> Server:
    return Server(Deployment.of(f"tiny isl=100 osl=51 {text}"), even, room)


def test_one_client_waits_for_its_prompt_and_then_for_its_steps() -> None:
    served = server("concurrency=1").run()
    assert served.ttft_s == pytest.approx(PROMPT_S)
    assert served.tpot_s == pytest.approx(DECODE_S)
    assert served.done.tokens == 51 * (ROUNDS - 2)
    assert served.done.now_s == pytest.approx((ROUNDS - 2) * (PROMPT_S + 50 * DECODE_S))


def test_prompts_of_others_come_between_the_tokens_of_an_answer() -> None:
    served = server("concurrency=4 budget=103").run()
    # Each answer has the prompts of the three other clients between its tokens; steps with a prompt decode, too.
    assert served.tpot_s == pytest.approx(DECODE_S + 3 * PROMPT_S / 50, rel=0.02)


def test_prompts_that_go_alone_all_go_before_the_first_step_of_decoding() -> None:
    served = server("concurrency=4 prefill=alone").run()
    assert served.ttft_s == pytest.approx(4 * PROMPT_S)
    assert served.tpot_s == pytest.approx(DECODE_S)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    seen: list[Step] = []

    def take(step: Step) -> StepCost:
        seen.append(step)
        return even(step)

    Server(Deployment.of("tiny isl=100 osl=2 concurrency=1 budget=40"), take, 1 << 30).run()
    chunks = [step.chunks for step in seen if step.chunks][:3]
    assert chunks == [(Chunk(40, 0),), (Chunk(40, 40),), (Chunk(20, 80),)]
    assert sum(chunk.pairs for (chunk,) in chunks) == 100 * 101 // 2


def test_requests_wait_for_room_in_the_cache() -> None:
    full, half = server("concurrency=4").run(), server("concurrency=4", room=2 * 151).run()
    assert half.done.decoded / half.done.steps <= 2
    assert half.ttft_s > 2 * full.ttft_s
    assert half.tpot_s is not None
    assert full.tpot_s is not None
    assert half.tpot_s < full.tpot_s


def test_lengths_differ_within_the_spread_and_time_of_the_host_is_added() -> None:
    seen: set[int] = set()

    def take(step: Step) -> StepCost:
        seen.update(chunk.tokens for chunk in step.chunks)
        return even(step)

    Server(Deployment.of("tiny isl=100 osl=10 spread=20 concurrency=8"), take, 1 << 30).run()
    assert min(seen) >= 80
    assert 100 < max(seen) <= 120
    served = server("concurrency=1 host=1000").run()
    assert served.tpot_s == pytest.approx(DECODE_S + 0.001)


def test_straight_lines_go_through_points_and_on() -> None:
    points = [(1.0, 10.0), (2.0, 20.0), (4.0, 20.0)]
    assert [between(points, x) for x in (0, 1, 1.5, 2, 3, 4, 8)] == [0, 10, 15, 20, 20, 20, 20]
    assert between([(3.0, 7.0)], 100) == 7.0


def test_steps_are_joined_from_those_of_the_grid() -> None:
    deployment = Deployment.of("tiny isl=100 osl=100 concurrency=4")
    grid = grid_of(deployment, 4)
    assert [str(step) for step in grid[::3]] == ["decode 2 x 64 keys", "decode 4 x 256 keys"]
    assert [str(step) for step in grid[-2:]] == ["prefill 1 x 64 tokens", "prefill 4 x 100 tokens"]

    def exact(step: Step) -> StepCost:
        """What straight lines can join: attention by keys and pairs, all else by tokens."""
        attention = 1e-6 * step.keys + 1e-8 * sum(chunk.pairs for chunk in step.chunks)
        return StepCost(0.01 + 1e-5 * step.tokens + attention, attention, 1.0)

    times = StepTimes({step: exact(step) for step in grid})
    others = [Step(3, 3 * 150), Step(2, 2 * 100), Step(0, 0, (Chunk(100, 0),) * 2), Step(3, 3 * 150, (Chunk(100, 0),))]
    for step in others:
        assert times(step).time_s == pytest.approx(exact(step).time_s)


def test_a_mixed_step_is_the_operator_with_prompts_beside() -> None:
    op = Step(4, 4 * 96, (Chunk(64, 32), Chunk(64, 32))).op(Deployment.of("tiny tp=2"))
    assert (op.phase, op.batch, op.seq, op.prompts, op.chunk, op.past) == ("decode", 4, 96, 2, 64, 32)


def test_experts_are_chosen_by_a_power_law_where_there_are_some() -> None:
    assert Deployment.of("qwen3-30b-a3b").step(phase="decode").routing == "power_law_1.2"
    assert Deployment.of("qwen3-30b-a3b routing=balanced").step(phase="decode").routing == "balanced"
    assert Deployment.of("qwen3-8b").step(phase="decode").routing == "uniform"


def test_memory_is_that_of_weights_and_cache() -> None:
    h100 = load_arch("h100-sxm")
    memory = Memory.of(Deployment.of("qwen3-32b tp=2"), h100)
    assert memory.weights == pytest.approx(32.76e9, rel=0.002)  # two bytes each, on two devices
    assert memory.token == 64 * 2 * 4 * 128 * 2
    assert memory.free + memory.weights + memory.activations == h100.dram.size_bytes * 90 // 100
    with pytest.raises(InputError, match=r"nearest that fits: llama3\.1-70b tp=2 or llama3\.1-70b dtype=fp8"):
        fitted(Deployment.of("llama3.1-70b"), h100)
    with pytest.raises(InputError, match=r"nearest that fits: llama3\.1-70b tp=2$"):
        fitted(Deployment.of("llama3.1-70b"), load_arch("a100-sxm4-80gb"))  # which multiplies no fp8
    experts = Memory.of(Deployment.of("deepseek-v3 tp=8"), load_arch("h200-sxm"))  # some layers have none
    assert experts.weights == pytest.approx(671e9 / 8, rel=0.03)  # 8 bits, embedding, head and latent products more
    with pytest.raises(InputError, match="no number of devices"):
        fitted(Deployment.of("tiny isl=2000000000 osl=100000000"), h100)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiny islands=3", "unknown key 'islands'"),
        ("tiny isl=0", "serve isl=0: must be an integer from 1"),
        ("tiny prefill=first", "must be one of mixed, alone"),
        ("tiny memory=101", "at most 100 percent"),
        ("tiny dp=4 concurrency=2", "more copies than concurrency=2"),
        ("tiny tp=3", "nearest below: 2"),
        ("qwen3-33b", "did you mean qwen3-32b"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Deployment.of(text)


def test_the_command_gives_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "tiny", "--arch", "h100-sxm", "tp=2", "isl=64", "osl=16", "--vary", "concurrency=1,2"]
    words += ["--store", f"{tmp_path}/kept.sqlite", "--workers", "1"]
    assert main([*words, "--json", "--joins", "--plot", f"{tmp_path}/curve.png"]) == 0
    found = json.loads(capsys.readouterr().out)
    one, two = found["rows"]
    assert two["tokens_per_s_gpu"] > 1.5 * one["tokens_per_s_gpu"]
    assert two["joules_per_token"] < one["joules_per_token"]
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    decode, mixed = (abs(joined["error"]) for joined in found["joined"])
    assert decode < 0.05
    assert mixed < 0.4  # the host calls so small a step's operators one by one, and attention hides behind that
    assert main(words) == 0  # all steps are in the store
    out = capsys.readouterr().out
    assert "to first token" in out
    assert "decode 2 x 64 keys" in out


def test_a_machine_without_graphs_is_refused() -> None:
    with pytest.raises(InputError, match="runs no graph of a model"):
        serve("tiny", "tpu-v1")
