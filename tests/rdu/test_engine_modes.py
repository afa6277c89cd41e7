"""The engine compiled, as plain Python and with checked bounds; and the waits without which numbers go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arch.dtypes import round_to
from arch.load import load_arch
from sim.rdu.engine import FAR, Deadlock, Run
from sim.rdu.interpret import Replay, interpret
from sim.rdu.layout import Q
from sim.rdu.lower import lower_section
from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor
from tests.rdu.conftest import SMALL
from workloads.rdu.sparse import sparse_matvec

ROOT = Path(__file__).resolve().parents[2]
TINY = """
from arch.load import load_arch
from sim.rdu.engine import run_section
from tests.rdu.test_engine_modes import scaled_product, scaled_sparse_product
from tests.rdu.conftest import SMALL
spec = load_arch("sn40l", SMALL | {"mesh.control_wires": 1})
for program in (scaled_product(), scaled_sparse_product()):
    result = run_section(program.calls[0].section, spec, program.addresses())
    print(result.ticks, result.reasons.tolist(), result.read_bytes, result.write_bytes, result.link_wait_ticks)
    print(result.log.tolist())
"""


def scaled_product() -> Program:
    """C = 2 A B over tiles, with a loop in a loop: loads, an array, a chain and a store."""
    a, b = Tensor("a", (96, 64), "bf16"), Tensor("b", (64, 128), "bf16")
    c = Tensor("c", (96, 128), "bf16", "output")
    section, m, n = Section("product"), Counter("m", 3), Counter("n", 4)
    left = section.load("load_a", a, (m * 32, 0), (32, 64), (m,))
    right = section.load("load_b", b, (0, n * 32), (64, 32), (m, n))
    tile = Out((32, 32), "bf16", (m, n))
    product = section.stage("multiply", (m, n), {"a": left, "b": right}, lambda a, b: a @ b, tile, row_par=1, col_par=2)
    twice = section.stage("double", (m, n), {"x": product}, lambda x: x * 2.0, tile, row_par=1)
    section.store("store_c", c, (m * 32, n * 32), twice, (m, n))
    return Program("product", (Call(section),), "test")


def scaled_sparse_product() -> Program:
    """y / |y| of y = A x by tiles: lookups, scalars, and an output with two readers."""
    program = sparse_matvec(np.arange(4 * 32 * 4).reshape(4 * 32, 4) * 7 % 100, 100, tile=32, pmus=2)
    section = program.calls[0].section
    i = section.stages[-1].over[0]
    y = section.stages[-2].outputs["out"]
    norm = section.stage(
        "norm", (i,), {"y": y}, lambda y: (y * y).reshape(1, 32).row_sum().tail("rsqrt"), Out((1, 1), "fp32", (i,))
    )
    scaled = section.stage("scale", (i,), {"y": y.read(3), "n": norm}, lambda y, n: y * n, Out((32, 1), "fp32", (i,)))
    section.store("store_scaled", Tensor("z", (4 * 32, 1), "fp32", "output"), (i * 32, 0), scaled, (i,))
    return program


def test_all_modes_give_the_same_run() -> None:
    outputs = []
    for mode in ({}, {"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_BOUNDSCHECK": "1"}):
        environment = {**os.environ, **mode, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", TINY], env=environment, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]


def _replay(without: tuple[int, int] | None = None) -> tuple[Replay, np.ndarray]:
    """Numbers of the product; without: (channel, column of its wait) that is switched off."""
    program = scaled_product()
    section = program.calls[0].section
    run = Run(lower_section(section, load_arch("sn40l", SMALL), program.addresses()))
    if without is not None:
        run.state.channel[without] = 0
    run.advance(FAR)
    rng = np.random.default_rng(1)
    inputs = {
        t.name: round_to(rng.standard_normal((1, *t.shape)), "bf16") for t in program.tensors if t.role == "input"
    }
    expected = 2 * inputs["a"][0] @ inputs["b"][0]
    return interpret(program, {id(section): run.result.log}, inputs), expected


def test_the_program_itself_computes_without_violations() -> None:
    replay, expected = _replay()
    assert replay.violations == []
    assert np.allclose(replay.outputs["c"][0], expected, rtol=0.02, atol=0.05)


REDUNDANT = {
    (2, int(Q.WAITS_ROOM)): "the array is slower than the chain behind it, which has always made room",
    (3, int(Q.WAITS_ROOM)): "the chain is slower to fill than the store to empty",
}
"""Waits for room that the rates of this machine make unnecessary."""


@pytest.mark.parametrize("channel", range(4))
@pytest.mark.parametrize("wait", [Q.WAITS_TOKEN, Q.WAITS_ROOM])
def test_every_wait_left_out_is_noticed(channel: int, wait: Q) -> None:
    try:
        replay, expected = _replay((channel, int(wait)))
    except Deadlock:
        return
    got = replay.outputs["c"][0]
    caught = bool(replay.violations) or not np.allclose(got, expected, rtol=0.02, atol=0.05, equal_nan=False)
    assert caught != ((channel, int(wait)) in REDUNDANT)
