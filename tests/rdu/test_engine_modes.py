"""The engine compiled, as plain Python and with checked bounds; and the waits without which numbers go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arch.dtypes import round_to
from arch.load import load_arch
from sim.rdu.engine import FAR, Deadlock, Run
from sim.rdu.interpret import Replay, interpret
from sim.rdu.layout import Channels
from sim.rdu.lower import lower_section
from sim.rdu.program import Call, Counter, Out, Program, Section, Tensor
from tests.rdu.conftest import SMALL
from workloads.rdu.sparse import sparse_matvec

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = np.arange(6 * 32 * 4).reshape(6 * 32, 4) * 7 % 100
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
    program = sparse_matvec(COLUMNS, 100, tile=32, pmus=2)
    section = program.calls[0].section
    i = section.stages[-1].over[0]
    y = section.stages[-2].outputs["out"]
    norm = section.stage(
        "norm", (i,), {"y": y}, lambda y: (y * y).reshape(1, 32).row_sum().tail("rsqrt"), Out((1, 1), "fp32", (i,))
    )
    scaled = section.stage("scale", (i,), {"y": y.read(3), "n": norm}, lambda y, n: y * n, Out((32, 1), "fp32", (i,)))
    section.store("store_scaled", Tensor("z", (6 * 32, 1), "fp32", "output"), (i * 32, 0), scaled, (i,))
    return program


def test_all_modes_give_the_same_run() -> None:
    outputs = []
    for mode in ({}, {"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_BOUNDSCHECK": "1"}):
        environment = {**os.environ, **mode, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", TINY], env=environment, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]


def _replay(program: Program, without: tuple[int, int] | None = None) -> Replay:
    """Numbers of a program of one section; without: (channel, column of its wait) that is switched off."""
    section = program.calls[0].section
    run = Run(lower_section(section, load_arch("sn40l", SMALL), program.addresses()))
    if without is not None:
        run.state.channel[without] = 0
    run.advance(FAR)
    return interpret(program, {id(section): run.result.log}, _numbers(program))


def _numbers(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    inputs = {
        t.name: round_to(rng.standard_normal((1, *t.shape)), t.dtype) for t in program.tensors if t.role == "input"
    }
    if "columns" in inputs:
        inputs["columns"] = COLUMNS.reshape(1, -1, 1).astype(float)
    return inputs


def _right(program: Program, replay: Replay) -> bool:
    """Whether nothing was violated and the numbers are NumPy's."""
    given = {name: value[0] for name, value in _numbers(program).items()}
    if "a" in given:
        expected = {"c": 2 * given["a"] @ given["b"]}
    else:
        y = (given["x"][COLUMNS, 0] * given["values"]).sum(axis=1).reshape(-1, 32, 1)
        scaled = y / np.sqrt((y * y).sum(axis=1, keepdims=True))
        expected = {"y": y.reshape(-1, 1), "z": scaled.reshape(-1, 1)}
    return not replay.violations and all(
        np.allclose(replay.outputs[name][0], value, rtol=0.02, atol=0.05) for name, value in expected.items()
    )


@pytest.mark.parametrize("make", [scaled_product, scaled_sparse_product])
def test_the_programs_themselves_compute_without_violations(make: Callable[[], Program]) -> None:
    program = make()
    assert _right(program, _replay(program))


REDUNDANT = {
    (
        scaled_product,
        2,
        Channels.WAITS_ROOM,
    ): "the array is slower than the chain behind it, which has always made room",
    (scaled_product, 3, Channels.WAITS_ROOM): "the chain is slower to fill than the store to empty",
    (scaled_sparse_product, 0, Channels.WAITS_TOKEN): "x is loaded before the first column numbers",
    (scaled_sparse_product, 3, Channels.WAITS_TOKEN): "values are loaded before what their columns are looked up",
    (scaled_sparse_product, 6, Channels.WAITS_TOKEN): "the norm comes later than the y that it is made of",
    (scaled_sparse_product, 0, Channels.WAITS_ROOM): "x is loaded once",
} | {
    (
        scaled_sparse_product,
        channel,
        Channels.WAITS_ROOM,
    ): "memory brings tiles more slowly than the stages behind take them"
    for channel in (2, 4, 5, 6, 7, 8)
}
"""Waits that the rates of this machine make unnecessary."""


@pytest.mark.parametrize(
    ("make", "channel"), [(m, c) for m, n in ((scaled_product, 4), (scaled_sparse_product, 9)) for c in range(n)]
)
@pytest.mark.parametrize("wait", [Channels.WAITS_TOKEN, Channels.WAITS_ROOM])
def test_every_wait_left_out_is_noticed(make: Callable[[], Program], channel: int, wait: Channels) -> None:
    program = make()
    try:
        replay = _replay(program, (channel, int(wait)))
    except Deadlock:
        return
    assert _right(program, replay) == ((make, channel, wait) in REDUNDANT)
