"""Programs of one's own and traces, with random edits: any field of any op, loop, view, barrier or tensor."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arch import limits
from arch.load import load_arch
from fuzzing.frame import changed_file, file, kind
from sim.gpu.check.interpret import interpret
from sim.gpu.engine.api import Device
from sim.gpu.engine.deadlock import DeadlockError
from sim.gpu.language import (
    CLUSTER_RANK,
    CTA_X,
    CTA_Y,
    WARP,
    Binary,
    Const,
    Expr,
    Kernel,
    Program,
    Table,
    Var,
)
from sim.gpu.lower.kernel import lower_kernel
from sim.gpu.sass.trace_files import read_trace
from sim.gpu.sass.traced import traced_program
from tests.gpu import kernels

PROGRAMS: dict[str, Callable[[], Program]] = {
    "tma_copy": lambda: kernels.tma_copy(rows=40),
    "wgmma": lambda: kernels.wgmma_gemm(128, 128, 128),
    "wgmma in a cluster": lambda: kernels.wgmma_gemm(256, 128, 128, cluster=2),
    "mma": lambda: kernels.mma_gemm(48, 32, 64),
    "split": lambda: kernels.split_sum(),
    "dynamic": lambda: kernels.dynamic_copy(),
    "exchange": lambda: kernels.exchange(),
    "butterfly": lambda: kernels.butterfly(),
    "two": lambda: kernels.two_kernels(),
    "tensor memory": lambda: kernels.tensor_gemm(256, 64, 128),
    "tensor memory of a pair": lambda: kernels.tensor_gemm(512, 64, 64, pair=True, clc=True),
}
BLACKWELL = load_arch("b200", ["gpc.count=1", "sm.count=2"])
MACHINE, AMPERE = load_arch("h100-sxm", {"sm.count": 8, "gpc.count": 1}), load_arch("a100-sxm4-80gb")
STEPS = "1000000"
"""What a mutant may take, so that thousands of cases end soon."""

TRACE = """-kernel name = k
-grid dim = (2,1,1)
-block dim = (64,1,1)
-shmem = 1024
-nregs = 18
-binary version = 80
-shmem base_addr = 0x00007efeb0000000
-local mem base_addr = 0x00007efeb2000000
-accelsim tracer version = 4
-enable lineinfo = 0
""" + "".join(
    f"#BEGIN_TB\nthread block = {cta},0,0\n"
    + "".join(
        f"warp = {warp}\ninsts = 6\n"
        "0010 ffffffff 1 R4 LDG.E 1 R2 4 1 0x7f0000000100 4\n"
        "0020 0000000f 1 R5 LDG.E 1 R2 4 0 0x7f0000000100 0x7f0000000200 0x7f0000000300 0x7f0000000400\n"
        "0030 ffffffff 0 STS 2 R3 R4 4 2 0x7efeb0000000 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4\n"
        "0040 ffffffff 0 BAR.SYNC 0 0 0\n"
        "0050 ffffffff 1 R6 FADD 2 R4 R5 0\n"
        "0060 ffffffff 0 EXIT 0 0\n"
        for warp in range(2)
    )
    + "#END_TB\n"
    for cta in range(2)
)


# ------------------------------------------------------------------------------------------------------------- edits


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field below a value, with the way to it."""
    if path:
        yield path, value
    if dataclasses.is_dataclass(value) and not isinstance(value, Const | Var):
        for field in dataclasses.fields(value):
            if field.init and field.name not in ("config", "reference", "compute", "line", "notes"):
                yield from _places(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _places(item, (*path, number))


def _edited(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A value with another one at a place below it."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, tuple):
        return (*value[:key], _edited(value[key], tuple(rest), new), *value[key + 1 :])
    return dataclasses.replace(value, **{key: _edited(getattr(value, key), tuple(rest), new)})


def _other(rng: random.Random, value: Any) -> Any:
    """Something else in a value's place, of its kind or not."""
    if rng.random() < 0.06:
        return rng.choice(
            (None, True, -1, 0, 1.5, float("nan"), "", "x", (), (1,), np.int32(3), 10**30, b"a", Const(1))
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            (0, 1, -1, value + 1, value - 1, value * 2, value // 2, 7, 8, 9, 77, 10**6, 10**9, 2**31, 2**63, 2**70)
        )
    if isinstance(value, str):
        return rng.choice(
            (
                "",
                "zz",
                "fp32",
                "bf16",
                "int8",
                value + "x",
                value[:-1],
                "m64n8k16",
                "ldg",
                "mma",
                "wgmma_wait",
                "\x1b[31m",
            )
        )
    if isinstance(value, Expr):
        return _other_expr(rng, value)
    if isinstance(value, tuple):
        i = rng.randrange(len(value) + 1)
        return rng.choice((value[:i] + value[i + 1 :], value + value[i : i + 1], value[::-1], ()))
    return rng.choice((None, value))


def _other_expr(rng: random.Random, value: Expr) -> Expr:
    number = Const(rng.choice((0, 1, -1, 2, 3, 16, 64, 10**6, 10**9, 2**40, 2**62, -(2**62))))
    other = rng.choice((number, CTA_X, CTA_Y, WARP, CLUSTER_RANK, Var("i"), Var("k"), Var("nobody"), value))
    op = rng.choice(("+", "-", "*", "//", "%", "^", "&", "<<", "<", "==", "min", "max", "table"))
    if op == "table":
        return Table((1, 2, 5), rng.choice((value, other)))
    return Binary(op, *rng.choice(((value, other), (other, value), (value, number))))


def mutant(seed: str, program: Program) -> Program:
    """A program with one to three edits. InputError where the language does not take them."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path, value = rng.choice(list(_places(program)))
        program = _edited(program, path, _other(rng, value))
    return program


# ------------------------------------------------------------------------------------------------------------- kinds


@kind("own kernels", *PROGRAMS, change=lambda rng, name: f"{name}/{rng.getrandbits(48)}")
def own_kernels(given: str, folder: Path) -> None:
    """Builds, lowers, runs and replays a mutant of a kernel; a deadlock is an answer."""
    os.environ[limits.VARIABLE] = STEPS  # of this process, which is there for cases alone
    name, _, seed = given.partition("/")
    program = PROGRAMS[name]()
    program = mutant(seed, program) if seed else program
    if not isinstance(program, Program):
        return
    addresses = program.addresses()
    machine = BLACKWELL if name.startswith("tensor memory") else MACHINE
    for kernel in program.kernels:
        lower_kernel(kernel, addresses, machine)
    inputs = {t.name: np.zeros(t.shape) for t in program.tensors if t.size_bytes < 1 << 22 and t.role == "input"}
    device, logs = Device(machine, log=True), []
    try:
        for number, kernel in enumerate(program.kernels):
            assert isinstance(kernel, Kernel)
            logs.append(device.run(kernel, addresses).events)
            logs[-1][:, 0] = number  # type: ignore[index]
    except (DeadlockError, MemoryError):
        return
    if len(inputs) == sum(t.role == "input" for t in program.tensors):
        interpret(program, np.concatenate(logs), inputs)


@kind("traces", TRACE, change=changed_file)
def traces(given: str, folder: Path) -> None:
    """Reads, lowers and runs a trace of Accel-Sim."""
    path = str(file(given, folder, "k.traceg"))
    program = traced_program(read_trace(path), path)
    Device(AMPERE).run(program.kernels[0], program.addresses())
