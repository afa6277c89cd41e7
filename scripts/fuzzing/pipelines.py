"""Kinds: programs of one's own for TPUs and dataflow machines, with random edits of what they are written with."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arch import limits
from arch.load import load_arch
from fuzzing.frame import changed, kind
from fuzzing.programs import STEPS
from sim.app.run import request_of, run
from sim.rdu.program import Call, Carry, Counter, Out, Program, Section, Tensor
from workloads.written import OwnProgram, told

Odd = Callable[[Any], Any]
"""What takes a literal of a program, and gives it or another one."""

SN40L, TPU = load_arch("sn40l"), load_arch("tpu-v1")

_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 1.5, float("nan"), float("inf"), "", "x", "\x1b[31m", b"a", (), (1,), [], {}),
    *(np.int32(3), 2, 3, 7, 64, 10**6, 10**9, 2**31, 2**63, 10**30, (0, 0), (-1, 2), (10**9, 10**9), (64, "x")),
    *("fp32", "int8", "zz", "ddr", "scratch", "vector", "rsqrt"),
)


def _product(odd: Odd) -> Program:
    """A product with relu behind it."""
    a, b = Tensor(odd("a"), odd((128, 64)), odd("bf16")), Tensor("b", odd((64, 96)), "bf16", place=odd("hbm"))
    c = Tensor("c", odd((128, 96)), "bf16", odd("output"))
    section = Section(odd("product"), odd("token"))
    m, n = Counter(odd("m"), odd(2)), Counter("n", odd(2))
    rows = section.load(odd("load_a"), a, (m * odd(64), odd(0)), odd((64, 64)), (m,))
    columns = section.load("load_b", b, (0, n * odd(48)), odd((64, 48)), odd((m, n)))
    tile = Out(odd((64, 48)), odd("bf16"), odd((m, n)))
    read = columns.read(depth=odd(3), pmus=odd(1))
    product = section.stage(
        "multiply", (m, n), odd({"a": rows, "b": read}), lambda a, b: a @ b, tile, row_par=odd(2), col_par=odd(1)
    )
    active = section.stage("relu", (m, n), {"x": product}, lambda x: x.maximum(odd(0.0)), tile)
    section.store("store_c", c, (m * 64, n * odd(48)), active, odd((m, n)))
    return Program(odd("relu"), odd((Call(section, odd(1)),)), odd("by hand"))


def _softmax(odd: Odd) -> Program:
    """A softmax, vector by vector."""
    section, i = Section("softmax", odd("vector")), Counter("rows", odd(4))
    x, y = (Tensor(name, odd((64, 32)), "bf16", role) for name, role in (("x", "input"), ("y", "output")))
    tile = Out(odd((16, 32)), odd("bf16"), odd((i,)), axis=odd(-1))
    block = section.load("load_x", x, (i * odd(16), 0), odd((16, 32)), (i,))
    e = section.stage("exponent", (i,), {"x": block}, lambda x: (x - x.row_max()).tail(odd("exp")), tile)
    done = section.stage(
        "divide", odd((i,)), {"e": e.read(depth=odd(2), stream=odd(False), vectors=odd(False))},
        lambda e: e / e.row_sum(), tile,
    )  # fmt: skip
    section.store("store_y", y, (i * 16, odd(0)), done, (i,))
    return Program("softmax", (Call(section),), "by hand", reference=odd(None))


def _sums(odd: Odd) -> Program:
    """Sums of columns in a tile that is carried, of views, with counters that depend on each other."""
    section, i = Section("sums"), Counter("i", odd(2))
    j = Counter("j", odd(2), odd(i), odd((1, 2)))
    x, y = Tensor("x", odd((64, 32)), "bf16"), Tensor("y", odd((2, 32)), "fp32", "output")
    block = section.load("load_x", x, (i * 32 + j * odd(16), 0), (16, 32), (i, j))
    out = section.stage(
        "add", (i, j), {"x": block},
        lambda x, s: {"out": (new := s + x.transpose().row_sum().reshape(odd(1), odd(32))), "s": new},
        Out((1, 32), "fp32", odd((i,))), carry={"s": Carry(odd((1, 32)), odd(0.0), odd((i,)))},
    )  # fmt: skip
    section.store("store_y", y, (i * odd(1), 0), out, (i,))
    return Program("sums", (Call(section, cut=odd(())),), "by hand")


PIPELINES: dict[str, Callable[[Odd], Program]] = {"product": _product, "softmax": _softmax, "sums": _sums}


def _with_edits(name: str, seed: str) -> Program:
    """A pipeline of which one to three literals are others."""
    write, rng, seen = PIPELINES[name], random.Random(seed), [0]

    def counted(value: Any) -> Any:
        seen[0] += 1
        return value

    program = write(counted)
    if not seed:
        return program
    edited, at = {rng.randrange(seen[0]) for _ in range(rng.choice((1, 1, 2, 3)))}, [0]

    def edit(value: Any) -> Any:
        at[0] += 1
        if at[0] - 1 not in edited:
            return value
        near = (value + 1, value - 1, value * 2, value // 2) if isinstance(value, int) else ()
        turned = (value[::-1], value[:-1], value * 2) if isinstance(value, tuple) else ()
        return rng.choice((*near, *turned)) if (near or turned) and rng.random() < 0.5 else rng.choice(_ODD)

    return write(edit)


@kind("dataflow program", *PIPELINES, change=lambda rng, name: f"{name}/{rng.getrandbits(48)}")
def _dataflow(given: str, folder: Path) -> None:
    """Writes, places, runs and checks a pipeline with other literals; a deadlock is a refusal."""
    os.environ[limits.VARIABLE] = STEPS
    name, _, seed = given.partition("/")
    with told("own.py"):
        program = OwnProgram("own.py:f", _with_edits(name, seed))
    run(request_of(program, "sn40l", check=True))


def _changed_program(rng: random.Random, text: str) -> str:
    """A program with other numbers in its fields, with lines twice, gone or in another order, or other letters."""
    if rng.random() < 0.2:
        return changed(rng, text)
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines.insert(j, lines[i])
            case 1 if len(lines) > 1:
                del lines[i]
            case 2:
                lines[i], lines[j] = lines[j], lines[i]
            case _ if "=" in lines[i]:
                words = lines[i].split()
                place = rng.randrange(1, len(words))
                key = words[place].partition("=")[0]
                other = rng.choice((0, 1, 2, 3, 8, 16, 255, 256, 257, 4096, 65536, 10**6, 2**24, 2**31, 2**40, 2**63))
                words[place] = f"{key}={other}"
                lines[i] = " ".join(words)
            case _:
                pass
        if not lines:
            break
    return "\n".join(lines) + "\n"


_WORK = "gemm m=300 n=40 k=500"


def _listed() -> str:
    from sim.app.run import program_listing

    return program_listing(_WORK, "tpu-v1")


@kind("TPU program that runs", _listed(), change=_changed_program)
def _tpu(given: str, folder: Path) -> None:
    """Assembles, checks and runs a changed listing in a product's place."""
    os.environ[limits.VARIABLE] = STEPS
    path = folder / "own.tpu"
    path.write_text(given, encoding="utf-8", errors="surrogatepass")
    run(request_of(_WORK, "tpu-v1", program=str(path), check=True))
