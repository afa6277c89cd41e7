"""What GEMM kernels execute: multiply-accumulates are conserved, loops have the instructions that compilers emit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.dtypes import DTYPE_BYTES
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check.instances import Instance, places, run_warp
from sim.gpu.language import Const, GlobalTensor, Loop, Program, Statement, Var, evaluate, walk
from workloads.gpu.gemm import threadblock
from workloads.gpu.gemm.mma import MmaConfig
from workloads.gpu.gemm.plan import Plan
from workloads.gpu.gemm.problem import problem
from workloads.gpu.gemm.simt import SimtConfig
from workloads.gpu.gemm.wgmma import WgmmaConfig
from workloads.ops import Gemm
from workloads.registry import build

MACHINES: dict[str, GpuSpec] = {name: load_arch(name) for name in ("h100-sxm", "a100-sxm4-80gb", "v100-sxm2", "t4")}
LANE_MACS = {"ffma": 32, "hfma2": 64, "dp4a": 128}


def instances(program: Program) -> Iterator[Instance]:
    """Every op that every warp executes."""
    for kernel in program.kernels:
        for place in places(kernel):
            for warp in range(kernel.warps):
                yield from run_warp(kernel, place, warp)


def macs_of(instance: Instance, spec: GpuSpec) -> int:
    op = instance.op
    if op.opcode == "mma":
        return op.count * spec.instruction("mma", op.dtype, op.shape).macs
    if op.opcode == "wgmma":  # each of the four warps of a warpgroup executes its quarter
        return op.count * spec.instruction("wgmma", op.dtype, op.shape).macs // 4
    return op.count * LANE_MACS.get(op.opcode, 0)


Tiled = WgmmaConfig | MmaConfig | SimtConfig

PADDED: list[tuple[str, Gemm, Tiled]] = [
    ("h100-sxm", Gemm(m=300, n=200, k=200, batch=2, dtype="bf16"), WgmmaConfig(128, 64, 64, stages=3)),
    ("h100-sxm", Gemm(m=200, n=200, k=200, dtype="bf16"), WgmmaConfig(64, 64, 64, stages=3, pingpong=True)),
    ("h100-sxm", Gemm(m=128, n=200, k=520, dtype="bf16"), WgmmaConfig(128, 64, 64, stages=3, split=3)),
    ("a100-sxm4-80gb", Gemm(m=100, n=72, k=200, dtype="fp16"), MmaConfig(64, 64, 32, 32, 32, 3, "cp.async")),
    (
        "a100-sxm4-80gb", Gemm(m=100, n=72, k=512, dtype="fp16"),
        MmaConfig(64, 64, 32, 32, 32, 3, "cp.async", stream_k=True),
    ),
    ("t4", Gemm(m=100, n=72, k=100, dtype="fp16"), MmaConfig(64, 64, 32, 32, 32)),
    ("v100-sxm2", Gemm(m=100, n=72, k=100, dtype="fp16"), MmaConfig(64, 64, 32, 32, 32)),
    ("t4", Gemm(m=100, n=72, k=100, dtype="fp32"), SimtConfig(64, 64, 8, 32, 32)),
    ("t4", Gemm(m=100, n=72, k=100, dtype="int8"), SimtConfig(64, 64, 32, 32, 32)),
]  # fmt: skip


@pytest.mark.parametrize("case", PADDED, ids=lambda case: f"{case[0]}: {case[2]}")
def test_macs_are_the_operators_and_the_padding_of_its_tiles(case: tuple[str, Gemm, Tiled]) -> None:
    machine, op, config = case
    spec = MACHINES[machine]
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    padded = op.batch * math.prod(-(-x // t) * t for x, t in ((op.m, tile_m), (op.n, tile_n), (op.k, tile_k)))
    done = sum(macs_of(i, spec) for i in instances(build(op, spec, config)))
    assert done == padded
    assert done >= op.macs


@pytest.mark.parametrize("case", PADDED, ids=lambda case: f"{case[0]}: {case[2]}")
def test_every_result_is_stored_once(case: tuple[str, Gemm, Tiled]) -> None:
    machine, op, config = case
    stored = 0
    for i in instances(build(op, MACHINES[machine], config)):
        if i.dst is not None and isinstance(i.dst.buffer, GlobalTensor) and i.dst.buffer.name == "C":
            stored += math.prod(i.dst.clipped().shape)
    assert stored == op.batch * op.m * op.n


def test_multicast_divides_what_is_asked_from_memory() -> None:
    op = Gemm(m=512, n=512, k=256, dtype="bf16")
    asked = {}
    for cluster_m, cluster_n in ((1, 1), (2, 1), (2, 2)):
        config = WgmmaConfig(128, 128, 64, cluster_m, cluster_n, 3)
        per_tensor: Counter[str] = Counter()
        for i in instances(build(op, MACHINES["h100-sxm"], config)):
            if i.op.opcode == "tma_load":
                per_tensor[i.srcs[0].buffer.name] += math.prod(i.srcs[0].shape) * DTYPE_BYTES["bf16"]
        asked[cluster_m, cluster_n] = per_tensor
    one = asked[1, 1]
    assert one["A"] == op.m * op.k * 2 * (op.n // 128)
    assert asked[2, 1] == {"A": one["A"], "B": one["B"] // 2}
    assert asked[2, 2] == {"A": one["A"] // 2, "B": one["B"] // 2}


@pytest.mark.parametrize(("out", "swap", "vector_bytes"), [("bf16", False, 16), ("fp32", False, 8), ("fp32", True, 4)])
def test_the_epilogue_stores_to_shared_memory_what_a_thread_holds(out: str, swap: bool, vector_bytes: int) -> None:
    """stmatrix for 2-byte values; of 4-byte ones two neighbours of a row, which lie apart where C is transposed."""
    op = Gemm(m=128, n=128, k=64, dtype="bf16", out=out)
    config = WgmmaConfig(128, 128, 64, stages=2, swap=swap)
    stores = [i for i in instances(build(op, MACHINES["h100-sxm"], config)) if i.op.opcode == "sts"]
    assert {i.op.vector_bytes for i in stores} == {vector_bytes}
    assert sum(i.op.count * 32 * vector_bytes for i in stores) == op.m * op.n * DTYPE_BYTES[out]


# Instructions of one warp in one trip of the k loop, from the machine code of CUTLASS kernels (4.7.0, nvcc 13.0):
# machine, configuration, total, of which: tensor or FMA, fragment loads, copies, stores to shared memory.
FP16_128 = {"mma": 64, "ldmatrix": 16, "cp_async": 8}
COMPILED: list[tuple[str, str, str, Tiled, int, dict[str, int]]] = [
    ("a100-sxm4-80gb", "fp16", "NT", MmaConfig(128, 128, 32, 64, 64, 4, "cp.async"), 162, FP16_128),
    ("a100-sxm4-80gb", "fp16", "NN", MmaConfig(128, 128, 32, 64, 64, 4, "cp.async"), 157, FP16_128),
    ("a100-sxm4-80gb", "fp16", "NT", MmaConfig(128, 256, 32, 64, 64, 3, "cp.async"), 150, FP16_128 | {"cp_async": 6}),
    (
        "a100-sxm4-80gb", "fp16", "NT", MmaConfig(128, 256, 64, 64, 64, 3, "cp.async"), 273,
        {"mma": 128, "ldmatrix": 32, "cp_async": 12},
    ),
    ("t4", "fp16", "NT", MmaConfig(128, 128, 32, 64, 64), 240, {"mma": 128, "ldmatrix": 16, "ldg": 8, "sts": 8}),
    ("t4", "fp16", "NT", MmaConfig(256, 128, 32, 64, 64), 220, {"mma": 128, "ldmatrix": 16, "ldg": 6, "sts": 6}),
    ("t4", "fp32", "TN", SimtConfig(128, 128, 8, 32, 64), 625, {"ffma": 512, "lds": 32, "ldg": 8, "sts": 8}),
    ("h100-sxm", "bf16", "NT", WgmmaConfig(128, 256, 64, 2, 1, 4), 46, {"wgmma": 4}),
    ("h100-sxm", "bf16", "NT", WgmmaConfig(128, 128, 64, 2, 1, 4, pingpong=True), 56, {"wgmma": 8}),
]  # fmt: skip


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: f"{row[0]} {row[3]}")
def test_the_k_loop_has_the_instructions_that_compilers_emit(
    row: tuple[str, str, str, Tiled, int, dict[str, int]],
) -> None:
    machine, dtype, layout, config, total, exact = row
    # CUTLASS's default SIMT kernels load element by element, as rows of 511 fp32 demand.
    side = 511 if dtype == "fp32" else 512
    op = Gemm(m=side, n=side, k=512, ta=layout[0], tb=layout[1], dtype=dtype)
    kernel = build(op, MACHINES[machine], config).kernels[0]
    loop = k_loop(kernel.roles[-1].body)
    counted: Counter[str] = Counter()
    for body_op in walk(loop.body):
        counted[body_op.opcode] += body_op.count
        for load in body_op.loads:
            counted[load.opcode] += load.count
        for opcode, count in body_op.mix:
            counted[opcode] += count
    assert {opcode: counted[opcode] for opcode in exact} == exact
    # The end of a group is a bit of the last wgmma, not an instruction.
    assert sum(n for opcode, n in counted.items() if opcode != "wgmma_commit") == pytest.approx(total, rel=0.05)


def k_loop(body: Sequence[Statement]) -> Loop:
    """The loop over k of a role."""
    for statement in body:
        if isinstance(statement, Loop):
            if statement.var == "k":
                return statement
            inside = [s for s in statement.body if isinstance(s, Loop)]
            if inside:
                return k_loop(statement.body)
    raise AssertionError("the role has no loop over k")


@pytest.mark.parametrize("case", PADDED, ids=lambda case: f"{case[0]}: {case[2]}")
def test_declared_resources_fit_the_machine(case: tuple[str, Gemm, Tiled]) -> None:
    machine, op, config = case
    spec = MACHINES[machine]
    kernel = build(op, spec, config).kernels[0]
    assert kernel.shared_bytes <= spec.shared.max_per_cta_bytes
    assert kernel.launch_registers <= spec.sm.max_registers_per_thread


@pytest.mark.parametrize(("m", "n"), [(1024, 256), (256, 1024)])
def test_a_group_of_one_tile_is_the_order_of_launch(m: int, n: int) -> None:
    """Along n, where the result is contiguous, whichever side is the longer; larger groups run across the shorter."""
    op, spec = Gemm(m=m, n=n, k=64, dtype="fp32"), MACHINES["t4"]
    p, config = problem(op), SimtConfig(64, 64, 16, 32, 32, group=1)
    order = threadblock.plan(p, spec, config, config.inner(p, spec))
    tiles = [order.tile(Const(i)) for i in range(order.tiles)]
    assert [(evaluate(t.m, {}), evaluate(t.n, {})) for t in tiles] == [divmod(i, n // 64) for i in range(order.tiles)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    tiles_m, tiles_n, batch = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    steps, tiles = draw(st.integers(1, 9)), tiles_m * tiles_n * batch
    shared = draw(st.sampled_from([0, tiles, draw(st.integers(0, tiles))]))
    workers = draw(st.integers(1, min(3 * tiles, shared * steps) if shared else tiles))
    return Plan(tiles_m, tiles_n, batch, steps, workers, shared, draw(st.integers(1, 4)), draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_plan_deals_every_k_step_to_one_worker(plan: Plan) -> None:
    worker, index = Var("worker"), Var("index")
    holder: dict[tuple[tuple[int, int, int], int], int] = {}
    peers: dict[tuple[int, int, int], tuple[int, int]] = {}
    for w in range(plan.workers):
        env, before = {"worker": w}, 0
        for i in range(evaluate(plan.pieces(worker), env)):
            env["index"] = i
            u = plan.unit(worker, index)
            tile = (evaluate(u.tile.batch, env), evaluate(u.tile.m, env), evaluate(u.tile.n, env))
            begin, trips = evaluate(u.k_begin, env), evaluate(u.k_trips, env)
            assert evaluate(u.first, env) == before
            assert trips > 0
            before += trips
            for step in range(begin, begin + trips):
                assert (tile, step) not in holder
                holder[tile, step] = w
            if evaluate(u.owner, env):
                peers[tile] = (w, evaluate(u.peers, env))
        assert before == evaluate(plan.steps_done(worker), {"worker": w})
    assert len(holder) == plan.tiles * plan.k_steps
    assert {t[0][0] for t in holder} == set(range(plan.batch))
    for tile, (owner, others) in peers.items():
        assert {w for (t, _), w in holder.items() if t == tile} == set(range(owner, owner + others + 1))
