"""Random runs by seed: small ones over all machines, products of middle size on GPUs; scripts draw cases from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from arch.load import list_archs, load_arch


@dataclass(frozen=True)
class RandomCase:
    """One run: arguments of `sim.simulate`."""

    workload: str
    arch: str
    set: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [self.workload, f"--arch {self.arch}", *(f"--set '{s}'" for s in self.set)]
        return " ".join([*words, *(f"--{k} {v}" for k, v in self.options.items())])


def _size(rng: random.Random, most: int, step: int = 1) -> int:
    """A size of any magnitude up to `most`, in steps: small ones are as likely as large ones."""
    return max(step, round(2 ** rng.uniform(0, most.bit_length() - 1)) // step * step)


def _gpu_workload(rng: random.Random, dtype: str) -> str:
    """An operator that every GPU has, small enough for a tenth of a second."""
    kind = rng.choice(("gemm", "gemm", "gemm", "softmax", "norm", "sum", "pointwise", "transpose", "attention"))
    rows, cols = _size(rng, 1024), _size(rng, 4096)
    if kind == "gemm":
        ta, tb = rng.choice("NT"), rng.choice("NT")
        m, n, k = (_size(rng, 768, rng.choice((1, 8, 32))) for _ in "mnk")
        return f"gemm m={m} n={n} k={k} dtype={dtype} ta={ta} tb={tb}"
    if kind == "norm":
        return f"{rng.choice(('layernorm', 'rmsnorm'))} rows={rows} cols={cols} dtype={dtype}"
    if kind == "sum":
        return rng.choice((f"sum n={rows * cols}", f"sum rows={rows} cols={cols} axis={rng.randrange(2)}"))
    if kind == "pointwise":
        return f"{rng.choice(('add', 'gelu', 'copy', 'exp'))} n={rows * cols // 4 + 1} dtype={dtype}"
    if kind == "attention":
        heads = rng.choice((1, 2, 4))
        seq, causal = _size(rng, 384, 16), rng.randrange(2)
        return f"attention batch=1 heads={heads} seq={seq} head_dim={rng.choice((64, 128))} causal={causal} dtype=fp16"
    return f"{kind} rows={rows} cols={cols} dtype={dtype}"


def _tpu_workload(rng: random.Random) -> str:
    m, n, k = (_size(rng, 700) for _ in "mnk")
    return rng.choice((f"gemm m={m} n={n} k={k}", f"matvec rows={m} cols={n}", f"softmax rows={m // 8 + 1} cols={n}"))


def _rdu_workload(rng: random.Random) -> str:
    m, n, k = (_size(rng, 512, 32) for _ in "mnk")
    dtype = "dtype=bf16"
    return rng.choice((f"gemm m={m} n={n} k={k}", f"softmax rows={m} cols={n} {dtype}", f"gelu n={m * n}"))


def _gemmini_workload(rng: random.Random) -> str:
    m, n, k = (rng.randint(1, 160) for _ in range(3))
    size, c, r = rng.randint(4, 20), rng.choice((3, 16, 40)), rng.choice((1, 3))
    stride = rng.choice((1, 2))
    conv = f"conv2d n=1 c={c} h={size} w={size} k={n} r={r} s={r} stride={stride} pad={r // 2} out=int8"
    return rng.choice((f"gemm m={m} n={n} k={k}", conv))


LARGE_GPUS = ("v100-sxm2", "t4", "a100-sxm4-80gb", "a40", "rtx-4090", "l40s", "h100-sxm", "h200-sxm")
"""Machines of large products."""
LARGE_MACS = (2**25, 2**29)
"""Multiply-adds of a large product, at least and at most."""


def large_products(seed: int | str, archs: tuple[str, ...] = ()) -> Iterator[RandomCase]:
    """Products without end, the same ones for the same seed: any shape, a third of them with sizes that are no multiple
    of 8. archs: machines to draw from, by default `LARGE_GPUS`."""
    rng = random.Random(f"large {seed}")
    least, most = LARGE_MACS
    while True:
        step = rng.choice((1, 8, 32))
        m, n, k = (_size(rng, 16384, step) for _ in "mnk")
        if not least <= m * n * k <= most:
            continue
        dtype, ta, tb = rng.choice(("fp16", "fp32")), rng.choice("NT"), rng.choice("NT")
        arch = rng.choice(archs or LARGE_GPUS)
        yield RandomCase(f"gemm m={m} n={n} k={k} dtype={dtype} ta={ta} tb={tb}", arch)


def busy_cases(seed: int) -> Iterator[RandomCase]:
    """Runs without end, the same ones for the same seed, of all families and with enough work to keep a unit busy."""
    rng = random.Random(f"busy {seed}")
    families = {name: load_arch(name).family for name in list_archs()}
    while True:
        family = rng.choices(("gpu", "tpu", "rdu", "gemmini"), (4, 1, 1, 1))[0]
        arch = rng.choice([name for name, kind in families.items() if kind == family])
        m, n, k = (rng.choice((256, 384, 512, 768, 1024)) for _ in "mnk")
        dtype, size = rng.choice(("fp16", "fp32")), rng.choice((2**20, 2**21, 2**22))
        if family == "gpu":
            work = rng.choice(
                (f"gemm m={m} n={n} k={k}", f"copy n={size}", f"add n={size}", f"softmax rows={m} cols={4 * n}")
            )
            options = {"l2": "warm"} if rng.random() < 0.3 else {}
            yield RandomCase(f"{work} dtype={dtype}", arch, (), options)
        elif family == "gemmini":
            yield RandomCase(f"gemm m={m // 2} n={n // 4} k={k // 4}", arch)
        else:
            options = {"scope": "array"} if family == "tpu" and rng.random() < 0.3 else {}
            work = f"gemm m={m} n={n} k={k}" if options or rng.random() < 0.7 else f"softmax rows={m} cols={n}"
            yield RandomCase(work, arch, (), options)


def random_cases(seed: int, archs: tuple[str, ...] = ()) -> Iterator[RandomCase]:
    """Cases without end, the same ones for the same seed. archs: machines to draw from, by default all presets."""
    rng = random.Random(seed)
    names = archs or tuple(list_archs())
    families = {name: load_arch(name).family for name in names}
    kinds = sorted(set(families.values()))
    while True:
        # GPUs have most presets and most operators.
        family = rng.choices(kinds, [4 if kind == "gpu" else 1 for kind in kinds])[0]
        arch = rng.choice([name for name in names if families[name] == family])
        if family == "tpu":
            yield RandomCase(_tpu_workload(rng), arch)
        elif family == "rdu":
            yield RandomCase(_rdu_workload(rng), arch)
        elif family == "gemmini":
            yield RandomCase(_gemmini_workload(rng), arch)
        else:
            options: dict[str, Any] = {}
            if rng.random() < 0.2:
                options["l2"] = rng.choice(("warm", "dirty"))
            if rng.random() < 0.2:
                options["clock"] = "sustained"
            if rng.random() < 0.1:
                options["exact"] = True
            policy = rng.choice(("gto", "gto", "gto", "lrr", "oldest"))
            set_ = () if policy == "gto" else (f"sm.scheduler={policy}",)
            yield RandomCase(_gpu_workload(rng, rng.choice(("fp16", "fp32"))), arch, set_, options)
