"""Micro-benchmark kernels: each isolates one figure of a machine, as the benchmarks of `scripts/lab/microbench.csv` do.

Every function returns a `Program` of one or two kernels. Latencies are read from dependent chains, rates from loops;
both as the difference of two lengths, so that launch, warm-up and tail drop out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.gpu_rules import WARP_SIZE
from arch.tcgen05 import SCALED_FORMATS
from sim.gpu.language import (
    CTA_X,
    WARP,
    Expr,
    GlobalTensor,
    IntLike,
    Kernel,
    KernelBuilder,
    Program,
    RegisterTile,
    RoleBuilder,
    Var,
    table,
)
from workloads.gpu.overhead import mix

_SMALL_CODE = 512
"""Bytes of machine code of a micro-benchmark: a handful of instructions."""
_ELEMENT = 8  # bytes: streams and chases move one double a thread
STREAMS: dict[str, tuple[int, int]] = {"init": (0, 1), "read": (1, 0), "scale": (1, 1), "triad": (2, 1)}
"""Arrays that each streaming kernel loads and stores."""


def vector(name: str, elements: int, role: str = "input") -> GlobalTensor:
    """A vector of doubles in device memory."""
    return GlobalTensor(name, (elements,), "fp64", (1,), role)


def _program(name: str, tensors: Sequence[GlobalTensor], *kernels: Kernel) -> Program:
    return Program(name, tuple(tensors), kernels, "micro")


# ---------------------------------------------------------------------------------------------------------- latencies


def chase_length(footprint_bytes: int, stride_bytes: int) -> int:
    """Elements of a chase: the nearest number without prime factors above 7, for which `_walk` has a full period."""
    wanted = max(1, round(footprint_bytes / stride_bytes))

    def smooth(n: int) -> bool:
        for prime in (2, 3, 5, 7):
            while n % prime == 0:
                n //= prime
        return n == 1

    return next(n for d in range(wanted) for n in (wanted + d, wanted - d) if smooth(n))


def _walk(r: RoleBuilder, length: int, at: Expr) -> None:
    """at = (a * at + c) mod length: all places in a scattered order (Hull and Dobell: a - 1 holds every prime)."""
    a = 1 + 420 * max(1, round(0.618 * length / 420))
    c = next(c for c in range(round(0.382 * length) | 1, 3 * length + 12) if math.gcd(c, 210) == 1)
    r.assign("at", (at * (a % length) + c) % length)


def _load_chain(r: RoleBuilder, x: GlobalTensor, element: IntLike, *, indexed: bool = False) -> None:
    """One load of a double by one thread, after the one before; indexed: see `pointer_chase`."""
    value = RegisterTile("value", (1,), "fp64")
    if indexed:
        _address_step(r, value, 2)  # LEA and LEA.HI.X, which waits for the carry
    r.ldg(value.whole, x[element:1], 1, into="chase", after=("chase",), vector_bytes=_ELEMENT)


def _address_step(r: RoleBuilder, value: RegisterTile, words: int = 1) -> None:
    """What lies between two loads of x = a[x]: address = base + size * x, an instruction a word of the address."""
    r.run("iadd", words, dtype="int32", dst=value.whole, after=("chase",), chain=words)


def pointer_chase(footprint_bytes: int, loads: int, stride_bytes: int = 64, *, indexed: bool = False) -> Program:
    """`loads` dependent loads of one warp over a footprint, one element every `stride_bytes`, in scattered order.

    indexed: what is loaded is an index, x = a[x], whose address takes two instructions; otherwise it is a pointer.
    """
    length = chase_length(footprint_bytes, stride_bytes)
    step = stride_bytes // _ELEMENT
    x = vector("x", length * step)
    kernel = KernelBuilder("chase", (1, 1, 1), code_bytes=_SMALL_CODE)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.assign("at", 0)
        with r.loop("i", loads):
            _load_chain(r, x, Var("at") * step, indexed=indexed)
            _walk(r, length, Var("at"))
    return _program("pointer_chase", [x], kernel.build())


def chase_lines(lines: Sequence[int], total_lines: int, warm_cta: int) -> Program:
    """Two kernels: CTA `warm_cta` of one an SM reads the lines, then the first SM chases once through them.

    lines: numbers of 128 B lines of a tensor of `total_lines`; with lines whose home is the other L2 partition the
    chase meets far hits only.
    """
    x = vector("x", total_lines * 16)
    order = tuple(lines)
    warm = KernelBuilder("warm", (warm_cta + 1, 1, 1), code_bytes=_SMALL_CODE)
    with warm.role("warp", warps=1, registers=32) as r, r.when(CTA_X.equals(warm_cta)), r.loop("i", len(order)) as i:
        _load_chain(r, x, table(order, i) * 16)
    chase = KernelBuilder("chase", (1, 1, 1), code_bytes=_SMALL_CODE)
    with chase.role("warp", warps=1, registers=32) as r, r.loop("i", len(order)) as i:
        _load_chain(r, x, table(order, i) * 16)
    return _program("chase_lines", [x], warm.build(), chase.build())


def shared_chase(loads: int, ways: int = 1, *, indexed: bool = False) -> Program:
    """`loads` dependent 4 B loads from shared memory, each with `ways`-way bank conflicts (1 to 32, a power of two).

    indexed: see `pointer_chase`.
    """
    kernel = KernelBuilder("shared_chase", (1, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (WARP_SIZE, ways), "fp32")
    value = RegisterTile("value", (1, WARP_SIZE), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r, r.loop("i", loads):
        if indexed:
            _address_step(r, value)
        r.lds(value.whole, tile[0, :, 0:1].T, 1, into="chase", after=("chase",), vector_bytes=4)
    return _program("shared_chase", [], kernel.build())


def ldmatrix_chain(loads: int) -> Program:
    """`loads` dependent ldmatrix.x4 without bank conflicts."""
    kernel = KernelBuilder("ldmatrix_chain", (1, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (64, 64), "fp16", swizzle_bytes=128)
    value = RegisterTile("value", (16, 16), "fp16")
    with kernel.role("warp", warps=1, registers=32) as r, r.loop("i", loads):
        r.ldmatrix(value.whole, tile[0, 0:16, 0:16], 1, into="chase", after=("chase",))
    return _program("ldmatrix_chain", [], kernel.build())


def chain(opcode: str, dtype: str, length: int, warps: int = 1, independent: int = 1) -> Program:
    """`length` times `independent` instructions of an opcode by each of `warps` warps, these after those before."""
    kernel = KernelBuilder("chain", (1, 1, 1), code_bytes=_SMALL_CODE)
    value = RegisterTile("value", (1, WARP_SIZE), "fp32")
    with kernel.role("warp", warps=warps, registers=32) as r, r.loop("i", length):
        r.run(opcode, independent, dtype=dtype, dst=value.whole, srcs=(value.whole,))
    return _program("chain", [], kernel.build())


def barriers(warps: int, trips: int) -> Program:
    """`trips` bar.sync of a CTA of `warps` warps."""
    kernel = KernelBuilder("barriers", (1, 1, 1), code_bytes=_SMALL_CODE)
    with kernel.role("warps", warps=warps, registers=32) as r, r.loop("i", trips):
        r.bar_sync(0, warps)
    return _program("barriers", [], kernel.build())


def null(ctas: int, warps: int = 1) -> Program:
    """A kernel that does nothing, as `__global__ void null() {}`."""
    kernel = KernelBuilder("null", (ctas, 1, 1), code_bytes=128)
    with kernel.role("warp", warps=warps, registers=16):
        pass
    return _program("null", [], kernel.build())


def cluster_barriers(size: int, warps: int, trips: int) -> Program:
    """`trips` barriers of one cluster of `size` CTAs of `warps` warps."""
    kernel = KernelBuilder("cluster_barriers", (size, 1, 1), (size, 1, 1), code_bytes=_SMALL_CODE)
    with kernel.role("warps", warps=warps, registers=32) as r, r.loop("i", trips):
        r.cluster_sync()
    return _program("cluster_barriers", [], kernel.build())


def dsmem_chase(size: int, loads: int) -> Program:
    """`loads` dependent loads of 4 B by the first CTA of a cluster from the shared memory of the second."""
    kernel = KernelBuilder("dsmem_chase", (size, 1, 1), (size, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (1, WARP_SIZE), "fp32")
    value = RegisterTile("value", (1, WARP_SIZE), "fp32")
    with kernel.role("warp", warps=1, registers=32) as r:
        with r.when(CTA_X.equals(0)), r.loop("i", loads):
            r.dsmem_ld(value.whole, tile.stage(), 1, 1, into="chase", after=("chase",), vector_bytes=4)
        r.cluster_sync()
    return _program("dsmem_chase", [], kernel.build())


# ------------------------------------------------------------------------------------------------------- tensor cores


def mma_loop(dtype: str, shape: str, trips: int, independent: int = 1, warps: int = 1, ctas: int = 1) -> Program:
    """`trips` times `independent` mma.sync into as many accumulators; 1 is a dependent chain."""
    kernel = KernelBuilder("mma_loop", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    m, n, k = (int(size) for size in re.split("[mnk]", shape)[1:])
    a, b = RegisterTile("a", (m, k), "fp16"), RegisterTile("b", (k, n), "fp16")
    acc = RegisterTile("acc", (m, n * independent), "fp32")
    with kernel.role("warps", warps=warps, registers=128) as r, r.loop("i", trips):
        r.mma(acc.whole, a.whole, b.whole, shape=shape, dtype=dtype, count=independent)
    return _program("mma_loop", [], kernel.build())


def wgmma_loop(dtype: str, shape: str, trips: int, groups: int, *, wait: bool, registers: bool = False) -> Program:
    """`trips` wgmma by each of `groups` warpgroups; wait: each is awaited before the next. registers: A from them.

    `shape` is m64n*k* with n of 8 to 256.
    """
    n, k = (int(part) for part in shape.removeprefix("m64n").split("k"))
    element = {"tf32": "fp32", "fp8": "fp8", "int8": "int8"}.get(dtype, dtype)
    kernel = KernelBuilder("wgmma_loop", (1, 1, 1), code_bytes=_SMALL_CODE)
    b = kernel.shared("b", (k, n), element)
    shared_a = kernel.shared("a", (64, k), element)
    a = RegisterTile("fragments", (16, k), element)
    acc = RegisterTile("acc", (16, n), "fp32")
    with kernel.role("warpgroups", warps=4 * groups, registers=168) as r:
        r.wgmma_fence()
        with r.loop("i", trips):
            source = a.whole if registers else shared_a[0, (WARP % 4) * 16 : 16, :]
            r.wgmma(acc.whole, source, b.stage(), shape=shape, dtype=dtype, count=1)
            r.wgmma_commit()
            if wait:
                r.wgmma_wait(0)
        r.wgmma_wait(0)
    return _program("wgmma_loop", [], kernel.build())


# --------------------------------------------------------------------------------------------------------- bandwidths


def stream(op: str, spec: GpuSpec, threads: int, ctas: int, repeat: int = 1) -> Program:
    """`op` of STREAMS on doubles, one element a thread, `threads` a CTA, two CTAs an SM forced by shared memory.

    repeat: CTA i works on part i mod (ctas / repeat), so that the same data are met `repeat` times.
    """
    if op not in STREAMS:
        raise InputError(f"stream {op}: must be one of {', '.join(STREAMS)}")
    if threads % WARP_SIZE or ctas % repeat:
        raise InputError(f"stream: {threads} threads must be warps of {WARP_SIZE}, {ctas} CTAs a multiple of {repeat}")
    loads, stores = STREAMS[op]
    parts = ctas // repeat
    inputs = [vector(name, parts * threads) for name in ("b", "c")[:loads]]
    outputs = [vector("a", parts * threads, "output")][:stores]
    kernel = KernelBuilder(f"stream_{op}", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    half = spec.shared.max_per_sm_bytes // 2 - spec.shared.reserved_per_cta_bytes
    kernel.shared("spoiler", (min(half, spec.shared.max_per_cta_bytes),), "int8")
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=32) as r:
        # Thread and block index, bounds test, addresses: S2R, S2R, IMAD, ISETP, EXIT, IMAD.WIDE for each array.
        position = RegisterTile("position", (1, WARP_SIZE), "int32")
        r.run("imad", 1, dtype="int32", dst=position.whole, mix=mix(alu=4, imad=loads + stores))
        at = (CTA_X % parts) * threads + WARP * WARP_SIZE
        values = [RegisterTile(x.name, (WARP_SIZE,), "fp64") for x in inputs]
        for x, value in zip(inputs, values, strict=True):
            r.ldg(value.whole, x[at:WARP_SIZE], 1, into=x.name, vector_bytes=_ELEMENT)
        result = RegisterTile("result", (WARP_SIZE,), "fp64")
        # The arithmetic on doubles is one instruction; the read kernel compares instead.
        r.run("fmul", 1, dtype="fp32", dst=result.whole, after=tuple(x.name for x in inputs))
        for y in outputs:
            r.stg(y[at:WARP_SIZE], result.whole, 1, vector_bytes=_ELEMENT)
    return _program(f"stream_{op}", [*inputs, *outputs], kernel.build())


def dot(spec: GpuSpec, trips: int, unroll: int = 4) -> Program:
    """The dot product of BabelStream: 4 CTAs of 1024 threads an SM, each `trips` times `unroll` pairs of doubles."""
    threads, ctas = 1024, 4 * spec.sm.count
    step = ctas * threads
    x, y = vector("x", step * trips * unroll), vector("y", step * trips * unroll)
    kernel = KernelBuilder("dot", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=32) as r, r.loop("i", trips) as i:
        for tensor in (x, y):
            for u in range(unroll):
                value = RegisterTile(f"{tensor.name}{u}", (WARP_SIZE,), "fp64")
                at = (i * unroll + u) * step + CTA_X * threads + WARP * WARP_SIZE
                r.ldg(value.whole, tensor[at:WARP_SIZE], 1, into=f"load{u}", vector_bytes=_ELEMENT)
        total = RegisterTile("total", (1, WARP_SIZE), "fp32")
        boards = tuple(f"load{u}" for u in range(unroll))
        r.run("ffma", unroll, dtype="fp32", dst=total.whole, srcs=(total.whole,), after=boards)
    return _program("dot", [x, y], kernel.build())


def footprint_read(parts: int, ctas: int, loads: int = 32, unroll: int = 4) -> Program:
    """CTAs of 1024 threads, each `loads` loads of a double a thread, CTA i over part i mod `parts` of one footprint.

    A part is 8 KiB of every 8 KiB * parts block: `loads` such pieces a CTA, `loads` * 8 KiB * parts in all.
    """
    threads = 1024
    x = vector("x", parts * threads * loads)
    kernel = KernelBuilder("footprint_read", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=32) as r:
        _sum_loop(r, x, (CTA_X % parts) * threads + WARP * WARP_SIZE, parts * threads, loads, unroll)
    return _program("footprint_read", [x], kernel.build())


def private_read(elements: int, sweeps: int, ctas: int, unroll: int = 32) -> Program:
    """One CTA of 256 threads an SM, each sweeping `sweeps` times over the same `elements` doubles, one a thread."""
    threads = 256
    x = vector("x", elements)
    pieces = elements // threads
    kernel = KernelBuilder("private_read", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    # Nothing else shares the SM: the benchmark launches one CTA for each.
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=96) as r, r.loop("sweep", sweeps):
        _sum_loop(r, x, WARP * WARP_SIZE, threads, pieces, unroll)
    return _program("private_read", [x], kernel.build())


def _sum_loop(r: RoleBuilder, x: GlobalTensor, first: Expr, step: int, loads: int, unroll: int) -> None:
    """Sums x[first + i * step + lane] for i in range(loads), `unroll` loads in flight a warp."""
    width = 8 if x.dtype == "fp64" else 4
    total = RegisterTile("total", (1, WARP_SIZE), "fp32")

    def batch(start: IntLike, count: int) -> None:
        boards = [f"load{u % 8}" for u in range(count)]
        for u in range(count):
            value = RegisterTile(f"value{u % 8}", (WARP_SIZE,), x.dtype)
            at = first + (start + u) * step
            r.ldg(value.whole, x[at:WARP_SIZE], 1, into=boards[u], vector_bytes=width)
        r.run("fadd", count, dtype="fp32", dst=total.whole, srcs=(total.whole,), after=tuple(dict.fromkeys(boards)))

    with r.loop("i", loads // unroll) as i:
        batch(i * unroll, unroll)
    if loads % unroll:
        batch(loads // unroll * unroll, loads % unroll)


def shared_read(loads: int, ctas: int, warps: int = 16) -> Program:
    """`loads` independent 16 B a thread loads from shared memory by each of `warps` warps."""
    kernel = KernelBuilder("shared_read", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (1, WARP_SIZE * 4), "fp32")
    value = RegisterTile("value", (1, WARP_SIZE * 4), "fp32")
    with kernel.role("warps", warps=warps, registers=64) as r, r.loop("i", loads // 8):
        r.lds(value.whole, tile.stage(), 8, into="loads", after=("loads",), vector_bytes=16)
    return _program("shared_read", [], kernel.build())


def scale(elements: int, threads: int = 256) -> Program:
    """Two kernels, a = c * b and b = c * a, on doubles, one element a thread."""
    x, y = vector("b", elements), vector("a", elements, "output")

    def one(name: str, source: GlobalTensor, target: GlobalTensor) -> Kernel:
        kernel = KernelBuilder(name, (-(-elements // threads), 1, 1), code_bytes=_SMALL_CODE)
        with kernel.role("warps", warps=threads // WARP_SIZE, registers=32) as r:
            position = RegisterTile("position", (1, WARP_SIZE), "int32")
            r.run("imad", 1, dtype="int32", dst=position.whole, mix=mix(alu=4, imad=2))
            value = RegisterTile("value", (WARP_SIZE,), "fp64")
            at = CTA_X * threads + WARP * WARP_SIZE
            r.ldg(value.whole, source[at:WARP_SIZE], 1, into="x", vector_bytes=_ELEMENT)
            r.run("fmul", 1, dtype="fp32", dst=value.whole, after=("x",))
            r.stg(target[at:WARP_SIZE], value.whole, 1, vector_bytes=_ELEMENT)
        return kernel.build()

    return _program("scale", [x, y], one("there", x, y), one("back", y, x))


# ------------------------------------------------------------------------------------ as scripts/lab/probe_memory.py

_WHOLE_SM = 200 << 10
"""Shared memory with which one CTA fills an SM."""
_DEEP = 8
"""Loads or stores of 16 B a thread in a row."""


def grid_stride(spec: GpuSpec, threads: int, loads: int, width: int, trips: int, writes: bool = False) -> Program:
    """All SMs, `threads` threads each, over neighbouring pieces of `width` bytes a thread: `trips` times `loads` reads
    on their way, or as many writes."""
    block = min(threads, 1024)
    ctas = spec.sm.count * threads // block
    pitch = ctas * block * width // _ELEMENT
    x = vector("x", pitch * loads * trips, "output" if writes else "input")
    kernel = KernelBuilder("grid_stride", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    piece = WARP_SIZE * width // _ELEMENT
    with kernel.role("warps", warps=block // WARP_SIZE, registers=32) as r, r.loop("i", trips) as i:
        first = i * (loads * pitch) + CTA_X * (block * width // _ELEMENT) + WARP * piece
        value = RegisterTile("value", (piece,), "fp64")
        for k in range(loads):
            if writes:
                r.stg(x[first + k * pitch : piece], value.whole, 1, vector_bytes=width)
            else:
                r.ldg(value.whole, x[first + k * pitch : piece], 1, into="loads", vector_bytes=width)
        if not writes:
            r.run("iadd", loads, dtype="int32", dst=value.whole, srcs=(value.whole,), after=("loads",))
    return _program("grid_stride", [x], kernel.build())


ORDERS = ("in step", "rotated", "own share", "hashed")
"""In which SMs read the blocks of a footprint: all from the first on, each from another on, each its own, or any."""


def sweep(
    ctas: int, threads: int, blocks: int, steps: int, order: str, *, writes: bool = False, gpc: int = 1
) -> Program:
    """`ctas` CTAs, one an SM, over blocks of `_DEEP` times 16 B a thread: `steps` blocks each, `_DEEP` reads or writes
    a thread in a row. gpc: CTAs of a cluster, which share a GPC."""
    if order not in ORDERS:
        raise InputError(f"sweep {order}: must be one of {', '.join(ORDERS)}")
    piece = WARP_SIZE * 16 // _ELEMENT
    row = threads * 16 // _ELEMENT
    share = max(1, blocks // ctas)
    x = vector("x", row * _DEEP * blocks, "output" if writes else "input")
    kernel = KernelBuilder("sweep", (ctas, 1, 1), (gpc, 1, 1), code_bytes=_SMALL_CODE)
    kernel.shared("whole", (_WHOLE_SM,), "int8")
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=48) as r, r.loop("i", steps) as i:
        block = {
            "in step": i % blocks,
            "rotated": (i + CTA_X * blocks // ctas) % blocks,
            "own share": CTA_X * share + i % share,
            "hashed": ((i + CTA_X * 7919) * 40503 // 16) % blocks,
        }[order]
        value = RegisterTile("value", (piece,), "fp64")
        for k in range(_DEEP):
            at = x[block * (row * _DEEP) + k * row + WARP * piece : piece]
            if writes:
                r.stg(at, value.whole, 1, vector_bytes=16)
            else:
                r.ldg(value.whole, at, 1, into="loads", vector_bytes=16)
        if not writes:
            r.run("iadd", 4 * _DEEP, dtype="int32", dst=value.whole, srcs=(value.whole,), after=("loads",))
    return _program("sweep", [x], kernel.build())


def bulk_copies(ctas: int, piece: int, depth: int, pieces: int, count: int, cluster: int = 1) -> Program:
    """Each CTA, one an SM, loads `count` pieces by TMA, `depth` on their way, the CTAs in turn over `pieces` of them.

    cluster: CTAs that load a part of each piece, for all of them.
    """
    rows = piece // 128
    part = rows // cluster
    x = GlobalTensor("x", (rows * pieces, 64), "fp16", (64, 1), "input")
    kernel = KernelBuilder("bulk_copies", (ctas, 1, 1), (cluster, 1, 1), code_bytes=_SMALL_CODE)
    kernel.shared("whole", (max(1, _WHOLE_SM - depth * piece),), "int8")
    tile = kernel.shared("tile", (rows, 64), "fp16", stages=depth)
    ring = kernel.ring(depth, consumers=cluster)
    everyone = (1 << cluster) - 1
    with kernel.role("producer", warps=1, registers=32) as r, r.loop("i", count) as i:
        ring.acquire(r, i, piece)
        source = (CTA_X // cluster + i * (ctas // cluster)) % pieces * rows
        rank = CTA_X % cluster
        box = math.gcd(part, 256)
        for k in range(0, part, box):
            target = tile[ring.stage(i), rank * part + k : box, :]
            r.tma_load(
                target, x[source + rank * part + k : box, :], ring.full, ring.stage(i),
                multicast=everyone if cluster > 1 else None,
            )  # fmt: skip
    with kernel.role("consumer", warps=1, registers=32) as r, r.loop("i", count) as i:
        ring.wait(r, i)
        ring.release(r, i, cluster=everyone if cluster > 1 else None)
    return _program("bulk_copies", [x], kernel.build())


def dsmem_reads(ctas: int, cluster: int, trips: int, *, writes: bool = False) -> Program:
    """Every CTA, 32 warps on an SM of its own, reads or writes the shared memory of the next one of its cluster:
    `trips` times four loads or stores of 16 B a thread."""
    kernel = KernelBuilder("dsmem_reads", (ctas, 1, 1), (cluster, 1, 1), code_bytes=_SMALL_CODE)
    kernel.shared("whole", (_WHOLE_SM - 16384,), "int8")
    tile = kernel.shared("tile", (32, WARP_SIZE * 4), "fp32")
    value = RegisterTile("value", (1, WARP_SIZE * 4), "fp32")
    with kernel.role("warps", warps=32, registers=48) as r:
        peer = (CTA_X % cluster + 1) % cluster
        with r.loop("i", trips):
            for _ in range(4):
                if writes:
                    r.dsmem_st(tile[0, WARP:1, :], value.whole, 1, peer, vector_bytes=16)
                else:
                    r.dsmem_ld(value.whole, tile[0, WARP:1, :], 1, peer, into="loads", vector_bytes=16)
            if not writes:
                r.run("iadd", 4, dtype="int32", dst=value.whole, srcs=(value.whole,), after=("loads",))
        r.cluster_sync()
    return _program("dsmem_reads", [], kernel.build())


# -------------------------------------------------------- as SemiAnalysisAI/microbench-blackwell: streams of DRAM


def tma_stream(ctas: int, box: tuple[int, int], stages: int, trips: int) -> Program:
    """One warp an SM loads boxes (columns, rows) of fp32 by TMA, `stages` of them on their way, `trips` in all."""
    columns, rows = box
    x = GlobalTensor("x", (ctas * rows * trips, columns), "fp32", (columns, 1), "input")
    kernel = KernelBuilder("tma_stream", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (rows, columns), "fp32", stages=stages)
    full = kernel.mbarrier("full", stages, 1)
    with kernel.role("warp", warps=1, registers=32) as r, r.loop("i", trips + stages) as i:
        with r.when(i >= stages):
            r.mbarrier_wait(full, i % stages, i // stages - 1)
        with r.when(i < trips):
            r.mbarrier_expect(full, i % stages, rows * columns * 4)
            r.tma_load(tile[i % stages, 0:rows, :], x[(i * ctas + CTA_X) * rows : rows, :], full, i % stages)
    return _program("tma_stream", [x], kernel.build())


def shared_tiles(
    ctas: int, box: tuple[int, int], trips: int, cluster: int, sharing: int, *, multicast: bool
) -> Program:
    """Four warps an SM, each a box (columns, rows) of fp32 by TMA at a time; the cluster's CTAs meet behind each.

    sharing: neighbouring CTAs that load the same boxes; multicast: the first one of the cluster loads for all.
    """
    columns, rows = box
    groups = ctas // sharing
    x = GlobalTensor("x", (groups * 4 * rows * trips, columns), "fp32", (columns, 1), "input")
    kernel = KernelBuilder("shared_tiles", (ctas, 1, 1), (cluster, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (rows, columns), "fp32", stages=4)
    kernel.shared("whole", (_WHOLE_SM - 16 * rows * columns,), "int8") if 16 * rows * columns < _WHOLE_SM else None
    full = kernel.mbarrier("full", 4, 1)
    with kernel.role("warps", warps=4, registers=32) as r, r.loop("i", trips) as i:
        source = x[((i * groups + CTA_X // sharing) * 4 + WARP) * rows : rows, :]
        r.mbarrier_expect(full, WARP, rows * columns * 4)
        if multicast:
            with r.when(CTA_X % cluster < 1):
                r.tma_load(tile[WARP, 0:rows, :], source, full, WARP, multicast=(1 << cluster) - 1)
        else:
            r.tma_load(tile[WARP, 0:rows, :], source, full, WARP)
        r.mbarrier_wait(full, WARP, i)
        r.cluster_sync()
    return _program("shared_tiles", [x], kernel.build())


def copy_stream(ctas: int, threads: int, width: int, stages: int, trips: int) -> Program:
    """`ctas` CTAs copy neighbouring pieces of `width` bytes a thread by cp.async, `stages` groups on their way."""
    element = {4: "fp32", 8: "fp64", 16: "fp64"}[width]
    piece = WARP_SIZE * max(1, width // 8)
    block = threads // WARP_SIZE * piece
    x = GlobalTensor("x", (ctas * block * trips,), element, (1,), "input")
    kernel = KernelBuilder("copy_stream", (ctas, 1, 1), code_bytes=_SMALL_CODE)
    tile = kernel.shared("tile", (block,), element, stages=stages)
    with kernel.role("warps", warps=threads // WARP_SIZE, registers=32) as r, r.loop("i", trips) as i:
        r.cp_wait(stages - 1)
        source = x[(i * ctas + CTA_X) * block + WARP * piece : piece]
        r.cp_async(tile[i % stages, WARP * piece : piece], source, 1, vector_bytes=width)
        r.cp_commit()
    return _program("copy_stream", [x], kernel.build())


def tensor_products(shape: str, dtype: str, count: int, *, pair: bool = False, from_shared: bool = True) -> Program:
    """`count` products of a shape (`tcgen05.mma`), a commit and a wait for it, by one CTA or a pair. from_shared: the
    first operand is in shared memory, else in tensor memory."""
    m, n, k = (int(x) for x in re.findall(r"\d+", shape))
    sms, scaled = 2 if pair else 1, dtype in SCALED_FORMATS
    elements = dtype if dtype in DTYPE_BYTES else "uint8"  # of four bits two to a byte: nobody reads their values
    kernel = KernelBuilder("tensor_products", (sms, 1, 1), (sms, 1, 1), code_bytes=_SMALL_CODE)
    first, second = (kernel.shared(name, (rows // sms, k), elements) for name, rows in (("a", m), ("b", n)))
    sums = kernel.tensor("sums", (m // sms, n), "fp32")
    given = kernel.tensor("given", (m // sms, k), elements)
    scales = kernel.tensor("scales", (128, 16), "uint8")
    over = kernel.mbarrier("over", 1, 1)
    with kernel.role("warp", warps=1, registers=32) as r:
        r.tcgen05_alloc()
        r.cluster_sync()
        with r.when(CTA_X.equals(0)):
            r.tcgen05_mma(
                sums.stage(), (first if from_shared else given).stage(), second.stage().T, shape=shape, dtype=dtype,
                count=count, pair=pair, scales=(scales.stage(), scales.stage()) if scaled else None,
            )  # fmt: skip
            r.tcgen05_commit(over, 0)
            r.mbarrier_wait(over, 0, 0)
        r.cluster_sync()
        r.tcgen05_dealloc()
    return _program("tensor_products", [], kernel.build())
