"""The table of opcodes: what it allows is what the builder takes, and every reader knows every entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.gpu.check import replay
from sim.gpu.check.interpret import interpret
from sim.gpu.check.mutants import mutants
from sim.gpu.engine.api import Device
from sim.gpu.language import Buffer, KernelBuilder, Op, Program, RegisterTile, RoleBuilder, walk
from sim.gpu.language.ops import ARITHMETIC, GROUPS, OPS, Action, OpSpec, Space, Unit, op_spec
from sim.gpu.lower.kernel import LOWERING, lower_kernel
from sim.gpu.lower.listing import listing
from sim.gpu.lower.tables import Col, Kind
from sim.gpu.units.events import Event
from tests.gpu.kernels import (
    Array,
    dynamic_copy,
    exchange,
    matrix,
    mma_gemm,
    numbers,
    split_sum,
    tensor_gemm,
    tma_copy,
    two_kernels,
    wgmma_gemm,
)
from tests.reference.gpu_executor import execute
from tests.reference.mutation import assert_mutants_caught

PAGE = (Path(__file__).parents[2] / "docs" / "tile-language.md").read_text()
PROGRAMS = (
    tma_copy,
    wgmma_gemm,
    lambda: wgmma_gemm(cluster=2),
    mma_gemm,
    split_sum,
    two_kernels,
    dynamic_copy,
    exchange,
    lambda: tensor_gemm(clc=True),
)


def ops_of(program: Program) -> list[Op]:
    return [op for kernel in program.kernels for role in kernel.roles for op in walk(role.body)]


def unread(table: Iterable[OpSpec]) -> list[str]:
    """Entries that some reader does not know, each with the reader."""
    programs = [make() for make in PROGRAMS]
    executed = {op.opcode for program in programs for op in ops_of(program)}
    listed = {word.partition(".")[0] for program in programs for word in listing(program).split()}
    found = []
    for spec in table:
        beside = spec.action is Action.OPERATE and (spec.lands or spec.group is not None)
        passed = spec.action in replay.AT_END and spec.action not in (Action.NEXT_TILE, Action.READ_CANCELLED)
        known = {
            "the engine": any(find_spec(f"sim.gpu.{folder}.{spec.unit.value}") for folder in ("engine", "units")),
            "the engine's kinds": spec.kind in Kind.__members__,
            "the lowering": spec.action is not Action.OPERATE or spec.unit in LOWERING,
            "the interpreter": spec.action in {*replay.AT_ISSUE, *replay.AT_END, Action.NOTE},
            "the mutants": spec.waits == passed,
            "the trace": not beside or bool(spec.track) or spec.accumulates,
            "the listing": spec.opcode in listed,
            "a kernel of these tests": spec.opcode in executed,
            "docs/tile-language.md": f"`{spec.opcode}" in PAGE,
        }
        found += [f"{spec.opcode}: not known to {reader}" for reader, knows in known.items() if not knows]
    return found


def test_every_reader_knows_every_opcode() -> None:
    assert unread(OPS.values()) == []


def test_an_opcode_that_a_reader_does_not_know_is_named() -> None:
    new = OpSpec("tensor_store", Unit.BARRIERS, "TENSOR_STORE", group=GROUPS[0])
    assert unread([*OPS.values(), new]) == [
        f"tensor_store: not known to {reader}"
        for reader in (
            "the engine's kinds",
            "the lowering",
            "the trace",
            "the listing",
            "a kernel of these tests",
            "docs/tile-language.md",
        )
    ]


def test_another_opcode_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but the table knows `product`; it is checked, lowered, simulated, listed and computed all the same."""
    monkeypatch.setitem(OPS, "product", replace(OPS["mma"], opcode="product"))
    a, b, c = matrix("a", 16, 16, "fp16"), matrix("b", 16, 8, "fp16"), matrix("c", 16, 8, "fp32", "output")
    x, y, z = (RegisterTile(t.name, t.shape, t.dtype) for t in (a, b, c))
    kernel = KernelBuilder("k", (1, 1, 1))
    with kernel.role("r", 1, 64) as r:
        r.ldg(x.whole, a[:, :], 1, into="loads")
        r.ldg(y.whole, b[:, :], 1, into="loads")
        r.op(
            "product", dst=z.whole, srcs=(x.whole, y.whole), dtype="fp16", shape="m16n8k16", after=("loads",),
            compute=lambda old, p, q: old + p @ q,
        )  # fmt: skip
        r.stg(c[:, :], z.whole, 1)
        with pytest.raises(InputError, match="product: writes to registers, not to c"):
            r.op("product", dst=c[:, :], srcs=(x.whole, y.whole))
    program, spec = Program("p", (a, b, c), (kernel.build(),), ""), _machine("a100-sxm4-80gb")
    run = Device(spec, log=True).run(program.kernels[0], program.addresses())
    assert run.events is not None
    inputs = {"a": numbers(16, 16), "b": numbers(16, 8, seed=1)}
    check = interpret(program, run.events, inputs)
    assert check.violations == []
    np.testing.assert_array_equal(check.outputs["c"], inputs["a"] @ inputs["b"])
    assert run.counters["macs_tensor"] == 16 * 8 * 16
    row = spec.instruction("mma", "fp16", "m16n8k16")
    assert f"latency {row.latency_cycles:g}" in next(t for t in listing(program, spec).splitlines() if "product" in t)


def test_the_engine_has_no_kind_that_no_opcode_asks_for() -> None:
    control = {"LOOP", "NEXT", "ASSIGN", "EXIT"}
    assert {spec.kind for spec in (*OPS.values(), ARITHMETIC)} | control == set(Kind.__members__)


def test_the_page_names_no_opcode_that_there_is_not() -> None:
    """Methods of the builder that are named otherwise than their opcode are said to be."""
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", PAGE[PAGE.index("## Ops") :], re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+)", row)}
    assert named - {"run"} == set(OPS)


def test_groups_and_actions_belong_together() -> None:
    """What is asynchronous can be committed and awaited, and only that."""
    for group in GROUPS:
        actions = {spec.action for spec in OPS.values() if spec.group is group}
        assert Action.OPERATE in actions
        assert actions & {Action.AWAIT_GROUPS, Action.ARRIVE_AFTER_GROUP}
        assert (Action.COMMIT_GROUP in actions) == group.closes
        assert (Action.FENCE_REGISTERS in actions) == group.register_fence
    of_groups = (Action.COMMIT_GROUP, Action.AWAIT_GROUPS, Action.FENCE_REGISTERS, Action.ARRIVE_AFTER_GROUP)
    assert all((spec.group is not None) for spec in OPS.values() if spec.action in of_groups)


def test_a_machine_has_the_instruction_of_each_row_that_the_table_names() -> None:
    rows = {row.op for name in ("h100-sxm", "t4", "b200") for row in _machine(name).instructions}
    named = {row for spec in OPS.values() for row in (spec.row, spec.row_of_registers) if row}
    assert named <= rows


def test_every_buffer_has_a_space() -> None:
    assert {buffer.space for buffer in get_args(Buffer)} == {Space.GLOBAL, Space.SHARED, Space.REGISTERS, Space.TENSOR}
    assert str(Space.REGISTERS | Space.SHARED) == "shared memory or registers"


# ------------------------------------------------------------------------------------------------- what is refused

X = matrix("x", 8, 8, "fp16")
R = RegisterTile("r", (8, 8), "fp16")

WRONG: dict[str, tuple[Callable[[RoleBuilder, KernelBuilder], None], str]] = {
    "source": (
        lambda r, k: r.stg(X[:, :], k.shared("s", (8, 8), "fp16").stage(), 1),
        r"kernel k, role r, .*stg: reads from registers, not from s\[0:8, 0:8\] in shared memory",
    ),
    "destination": (
        lambda r, k: r.tma_load(R.whole, X[:, :], k.mbarrier("b", 1, 1), 0),
        r"tma_load: writes to shared memory of the cluster, not to r\[0:8, 0:8\] in registers",
    ),
    "destination of arithmetic": (
        lambda r, k: r.run("ffma", 1, dst=X[:, :]),
        "ffma: writes to registers, not to x",
    ),
    "number of sources": (lambda r, k: r.op("sts", srcs=(R.whole, R.whole)), "sts: has 1 sources, not 2"),
    "no barrier": (lambda r, k: r.op("mbarrier_arrive"), "mbarrier_arrive: needs an mbarrier"),
    "a barrier": (
        lambda r, k: r.op("mbarrier_arive", barrier=k.mbarrier("b", 1, 1)),
        "mbarrier_arive: takes no mbarrier; nearest opcode: mbarrier_arrive",
    ),
    "no phase": (lambda r, k: r.op("mbarrier_wait", barrier=k.mbarrier("b", 1, 1)), "mbarrier_wait: needs a phase"),
    "an expression": (
        lambda r, k: r.op("cp_wait", value=r.assign("i", 1)),
        "cp_wait: its number must be known when the kernel is built, not i",
    ),
    "not arithmetic": (lambda r, k: r.run("stg", 1), "role r: `run` is for arithmetic, stg has its own method"),
    "loads": (
        lambda r, k: r.run("ffma", 1, loads=(Op("ldg", 1, srcs=(X[:, :],)),)),
        "ffma: loads are of shared memory, without destination; not ldg",
    ),
    "loads of global memory": (
        lambda r, k: r.run("ffma", 1, loads=(Op("lds", 1, srcs=(X[:, :],)),)),
        "ffma: loads by lds, which reads from shared memory, not from x",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_builder_refuses_what_the_table_does_not_allow(case: str) -> None:
    write, message = WRONG[case]
    kernel = KernelBuilder("k", (1, 1, 1))
    with pytest.raises(InputError, match=message), kernel.role("r", 1, 32) as r:
        write(r, kernel)


# ------------------------------------------------------------------------------- fragments, clusters and reductions


def _machine(name: str) -> GpuSpec:
    return load_arch(name, ["gpc.count=1", "sm.count=2"])


def _exchange() -> tuple[Program, dict[str, Array], dict[str, Array]]:
    x, y = numbers(32, 16), numbers(32, 16, seed=1)
    return exchange(), {"x": x, "y": y}, {"y": y + 2 * x + 2 * np.tile(x[:16], (2, 1)) + 2 * np.roll(x, 16, axis=0)}


def test_fragments_clusters_and_reductions_compute_the_sum() -> None:
    program, inputs, expected = _exchange()
    check = interpret(program, execute(program), inputs)
    assert check.violations == []
    np.testing.assert_array_equal(check.outputs["y"], expected["y"])


def test_what_the_engine_says_of_them_computes_the_sum() -> None:
    program, inputs, expected = _exchange()
    run = Device(_machine("h100-sxm"), log=True).run(program.kernels[0], program.addresses())
    assert run.events is not None
    check = interpret(program, run.events, inputs)
    assert check.violations == []
    np.testing.assert_array_equal(check.outputs["y"], expected["y"])


def test_all_their_waits_matter() -> None:
    assert assert_mutants_caught(_exchange, execute) > 8


def test_a_fragment_store_costs_what_its_layout_does() -> None:
    """Rows of 32 bytes: every fourth is in the same banks, a matrix takes two wavefronts."""
    text = listing(exchange(), _machine("h100-sxm"))
    (line,) = [line for line in text.splitlines() if " stmatrix " in line]
    assert "8 wavefronts (4 without conflicts)" in line


def test_the_first_operand_in_registers_takes_the_row_for_it() -> None:
    kernel = KernelBuilder("k", (1, 1, 1))
    tile = kernel.shared("tile", (64, 64), "bf16")
    acc, a = RegisterTile("acc", (16, 64), "fp32"), RegisterTile("a", (16, 64), "bf16")
    with kernel.role("r", 4, 128) as r:
        for source in (tile[0, 0:16, :], a.whole):
            r.wgmma(acc.whole, source, tile.stage(), shape="m64n64k16", dtype="bf16", count=4)
    program, spec = Program("p", (), (kernel.build(),), ""), _machine("h100-sxm")
    lines = [line for line in listing(program, spec).splitlines() if "wgmma" in line]
    for line, opcode in zip(lines, ("wgmma", "wgmma_rs"), strict=True):
        row = spec.instruction(opcode, "bf16", "m64n64k16")
        assert line.endswith(f"every {row.interval_cycles:g}, latency {row.latency_cycles:g}")
    first, second = lower_kernel(program.kernels[0], {}, spec).code[:2]
    assert first[Col.BYTES] == second[Col.BYTES] + 64 * 16 * 2 // 4


@pytest.mark.parametrize(
    ("write", "machine", "message"),
    [
        (lambda r, k: r.op("stg"), "t4", "kernel k, role r, .*stg: stg needs an operand in global memory"),
        (lambda r, k: r.tma_store(X[:, :], k.shared("s", (8, 8), "fp16").stage()), "t4", "tma_store needs a TMA"),
        (lambda r, k: r.mbarrier_arrive(k.mbarrier("b", 1, 1), 0), "t4", "mbarrier_arrive needs mbarriers"),
        (
            lambda r, k: r.run("ffmma", 1, dtype="fp32"),
            "t4",
            "^kernel k, role r, .*: t4 has no instruction ffmma.fp32; nearest: ffma.fp32",
        ),
        (
            lambda r, k: r.dsmem_ld(R.whole, k.shared("s", (8, 8), "fp16").stage(), 1, 0),
            "a100-sxm4-80gb",
            "dsmem_ld needs clusters, which a100-sxm4-80gb does not have",
        ),
        (
            lambda r, k: r.dsmem_st(k.shared("s", (8, 8), "fp16").stage(), R.whole, 1, 3),
            "h100-sxm",
            "dsmem_st names rank 3 of a cluster of 1 CTAs; the last is 0",
        ),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    write: Callable[[RoleBuilder, KernelBuilder], None], machine: str, message: str
) -> None:
    kernel = KernelBuilder("k", (1, 1, 1))
    with kernel.role("r", 1, 32) as r:
        write(r, kernel)
    with pytest.raises(InputError, match=message):
        lower_kernel(kernel.build(), {"x": 0}, load_arch(machine))


def test_what_orders_is_what_mutants_leave_out() -> None:
    program = exchange()
    left_out = {what.split(" ")[1] for what, _ in mutants(program) if " after " not in what}
    assert left_out == {op.opcode for op in ops_of(program) if op_spec(op.opcode).waits or op_spec(op.opcode).fences}
    assert "bar_arrive" not in left_out


def test_rows_of_the_log_are_one_an_op() -> None:
    program = exchange()
    log = execute(program)
    assert set(log[:, Event.OP]) == set(range(len(ops_of(program))))
