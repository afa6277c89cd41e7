"""The kernels of `sass/lab.cu`: their launches, and what NumPy says that they write."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.gpu.language import GlobalTensor
from sim.gpu.sass.cubin import CompiledKernel
from sim.gpu.sass.floats import bf16, fp8, of_bf16, of_fp8
from sim.gpu.sass.kernel import Pointer, SassKernel, Value, sass_program
from sim.gpu.sass.replay import KernelValues, Memory

N = 128
U32, U64, MASK = np.uint32, np.uint64, 0xFFFFFFFF
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Lab:
    """A kernel with its launch. given: makes its arguments by name, in order, arrays and numbers. wanted: what arrays
    hold behind it, of those before. tolerance: relative to the largest number, 0 for the same bits."""

    name: str
    given: Callable[[np.random.Generator], Arrays]
    wanted: Callable[..., Arrays]
    tolerance: float = 0.0
    block: tuple[int, ...] = (N,)
    grid: tuple[int, ...] = (1,)
    shared: int = 0
    least: int = 75
    formats: Mapping[str, str] = field(default_factory=dict)

    def arrays(self) -> Arrays:
        """Its arguments, always the same."""
        return self.given(np.random.default_rng(7))

    def format(self, name: str, value: np.ndarray) -> str:
        """The number format of an argument."""
        names = {"float16": "fp16", "float32": "fp32", "float64": "fp64", "uint16": "bf16"}
        return self.formats.get(name) or names.get(value.dtype.name, value.dtype.name)


def run(lab: Lab, compiled: CompiledKernel, arrays: Arrays, late: bool) -> tuple[Arrays, list[str]]:
    """What the arrays hold behind a launch, and what it violated."""
    whole = lambda t: (*t, *(1,) * (3 - len(t)))  # noqa: E731
    bytes_ = {
        name: np.frombuffer(v.tobytes(), dtype=np.uint8) for name, v in arrays.items() if isinstance(v, np.ndarray)
    }
    tensors = tuple(GlobalTensor(name, v.shape, "int8", (1,)) for name, v in bytes_.items())
    values: tuple[Value, ...] = tuple(
        Pointer(name) if name in bytes_ else int.from_bytes(v, "little") if isinstance(v, bytes) else v
        for name, v in arrays.items()
    )
    shared = lab.shared + compiled.shared_bytes
    program = sass_program(compiled, whole(lab.grid), whole(lab.block), values, tensors, shared, "lab", contents={})
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    at = program.addresses()
    bytes_ |= {name: v.view(np.uint8) for name, v in kernel.contents.items()}
    first = min(at.values())
    content = np.zeros(max(at[name] + len(v) for name, v in bytes_.items()) - first, dtype=np.uint8)
    for name, v in bytes_.items():
        content[at[name] - first :][: len(v)] = v
    places = {name: (at[name], len(v)) for name, v in bytes_.items()}
    replay = KernelValues(kernel, kernel.bank(at), Memory(content, first, places), kernel.shared_range, late=late)
    replay.run()
    after = {
        name: content[at[name] - first :][: v.nbytes].view(v.dtype).reshape(v.shape).copy()
        for name, v in arrays.items() if isinstance(v, np.ndarray)
    }  # fmt: skip
    return after, replay.violations


def judged(lab: Lab, compiled: CompiledKernel) -> str:
    """What is wrong with the values of a kernel, empty where nothing is."""
    arrays = lab.arrays()
    with np.errstate(all="ignore"):
        wanted = lab.wanted(**{n: v.copy() if isinstance(v, np.ndarray) else v for n, v in arrays.items()})
    for late in (False, True):
        after, violations = run(lab, compiled, arrays, late)
        if violations:
            return violations[0]
        for name, right in wanted.items():
            wrong = _apart(lab, name, after[name], np.asarray(right))
            if wrong:
                return f"{'late ' * late}{wrong}"
    return ""


def _numbers(lab: Lab, name: str, value: np.ndarray) -> np.ndarray:
    kind = lab.format(name, value)
    if value.dtype == np.uint16 and kind == "bf16":
        return of_bf16(value).astype(np.float64)
    return value


def _apart(lab: Lab, name: str, found: np.ndarray, right: np.ndarray) -> str:
    found, right = _numbers(lab, name, found), _numbers(lab, name, right)
    if found.dtype.kind != "f":
        different = np.flatnonzero(found.ravel() != right.astype(found.dtype).ravel())
    else:
        a, b = found.astype(np.float64).ravel(), right.astype(np.float64).ravel()
        scale = np.maximum(np.abs(b), 1.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= lab.tolerance * scale)
        different = np.flatnonzero(~same)
    if not len(different):
        return ""
    at = int(different[0])
    return f"{name}[{at}] is {found.ravel()[at]}, not {right.ravel()[at]} ({len(different)} of {found.size} differ)"


# ---- arguments


def normal(r: np.random.Generator, n: int = N + 1, dtype: Any = np.float32) -> np.ndarray:
    return r.standard_normal(n).astype(dtype)


def whole(
    r: np.random.Generator, n: int = N + 1, low: int = 0, high: int = 1 << 16, dtype: Any = np.int32
) -> np.ndarray:
    return r.integers(low, high, n, dtype=np.int64).astype(dtype)


def full(r: np.random.Generator, n: int = N + 1, dtype: Any = U32) -> np.ndarray:
    """Numbers of all bits."""
    return np.frombuffer(r.bytes(n * np.dtype(dtype).itemsize), dtype=dtype).copy()


def out(dtype: Any = np.float32, n: int = N) -> np.ndarray:
    return np.zeros(n, dtype=dtype)


LAB: list[Lab] = []


def lab(
    name: str, given: Callable[..., Arrays], wanted: Callable[..., Arrays], tolerance: float = 0.0, **rest: Any
) -> None:
    LAB.append(Lab(name, given, wanted, tolerance, **rest))


def of_x(
    name: str, of: Callable[..., Any], make: Callable[..., np.ndarray], to: Any, tolerance: float = 0.0, **rest: Any
) -> None:
    """y[i] from x[i], its neighbour x[i + 1] and i."""

    def wanted(y: np.ndarray, x: np.ndarray) -> Arrays:
        return {"y": np.asarray(of(x[:N], x[1 : N + 1], np.arange(N))).astype(to)}

    lab(name, lambda r: {"y": out(to), "x": make(r)}, wanted, tolerance, **rest)


def each(f: Callable[..., Any], dtype: Any = np.float64) -> Callable[..., np.ndarray]:
    """A function of Python's numbers for arrays."""
    return lambda *arrays: np.array([f(*(one.item() for one in row)) for row in zip(*arrays, strict=True)], dtype=dtype)


F = np.float64
d = lambda f: lambda x, w, i: f(x.astype(F), w.astype(F), i)  # noqa: E731

# ---- math in fp32

of_x("f_divide", d(lambda x, w, i: x / w), normal, np.float32, 3e-7)
of_x(
    "f_roots",
    d(lambda x, w, i: np.sqrt(abs(x)) + 1 / np.sqrt(abs(x)) + np.cbrt(abs(x)) + np.hypot(x, 2)),
    normal,
    np.float32,
    1e-6,
)
of_x(
    "f_powers",
    d(lambda x, w, i: abs(x) ** np.float32(2.3) + np.exp(-abs(x)) + 2 ** abs(x) + 10 ** -abs(x) + np.expm1(-abs(x))),
    normal,
    np.float32,
    1e-6,
)
of_x(
    "f_logs",
    d(lambda x, w, i: np.log(abs(x)) + np.log2(abs(x)) + np.log10(abs(x)) + np.log1p(abs(x))),
    normal,
    np.float32,
    1e-6,
)
of_x(
    "f_trig",
    d(lambda x, w, i: np.sin(x) + 2 * np.cos(x) + np.tan(x) + np.sin(np.pi * x) + np.cos(np.pi * x)),
    normal,
    np.float32,
    2e-6,
)
of_x(
    "f_large_angles",
    lambda x, w, i: np.sin((np.float32(1e6) * x).astype(F)) + np.cos((np.float32(1e6) * x).astype(F)),
    normal,
    np.float32,
    1e-6,
)
of_x(
    "f_inverse",
    lambda x, w, i: (
        v := (x / (1 + abs(x))).astype(F),
        np.arcsin(v) + np.arccos(v) + np.arctan(v) + np.arctan2(v, w.astype(F)),
    )[1],
    normal,
    np.float32,
    2e-6,
)
of_x(
    "f_hyperbolic",
    d(
        lambda x, w, i: (
            np.sinh(x)
            + np.cosh(x)
            + np.tanh(x)
            + np.arcsinh(x)
            + np.arccosh(np.float32(1 + x * x).astype(F))
            + np.arctanh(x / (1 + abs(x)))
        )
    ),
    normal,
    np.float32,
    3e-6,
)
of_x(
    "f_special",
    lambda x, w, i: each(lambda v: math.erf(v) + math.erfc(v) + math.lgamma(v) + math.gamma(v))(
        abs(x) + np.float32(0.5)
    ),
    normal,
    np.float32,
    3e-6,
)
_half_away = lambda v: np.copysign(np.floor(abs(v) + 0.5), v)  # noqa: E731
of_x(
    "f_rounding",
    lambda x, w, i: (
        v := (np.float32(10) * x).astype(F),
        np.floor(v)
        + 2 * np.ceil(v)
        + 3 * np.trunc(v)
        + 5 * np.rint(v)
        + 7 * _half_away(v)
        + np.fmod(v, 3)
        + each(math.remainder)(v, np.full(N, 3.0)),
    )[1],
    normal,
    np.float32,
    1e-6,
)
of_x(
    "f_parts",
    lambda x, w, i: (
        p := np.frexp(x),
        m := p[0].astype(F),
        f := np.modf(x),
        m + p[1] + 2 * f[1] + f[0] + m * 8 + m * 4 + np.copysign(2, x) + np.maximum(x - np.float32(0.1), 0) + p[1] - 1,
    )[3],
    normal,
    np.float32,
    1e-6,
)


def _directed(y: np.ndarray, x: np.ndarray) -> Arrays:
    v, w = x[:N].astype(F), x[1:].astype(F)
    down = lambda e: np.where((n := e.astype(np.float32)) > e, np.nextafter(n, np.float32(-np.inf)), n)  # noqa: E731
    up = lambda e: np.where((n := e.astype(np.float32)) < e, np.nextafter(n, np.float32(np.inf)), n)  # noqa: E731
    zero = lambda e: np.where(abs((n := e.astype(np.float32)).astype(F)) > abs(e), np.nextafter(n, np.float32(0)), n)  # noqa: E731
    return {"y": np.stack([down(v + w), up(v * w), zero(v * w + v), (v / w).astype(np.float32)], axis=1).ravel()}


lab("f_directed", lambda r: {"y": out(n=4 * N), "x": normal(r)}, _directed)
of_x(
    "f_fast",
    d(
        lambda x, w, i: (
            np.sin(x)
            + np.cos(x)
            + np.exp(x)
            + np.log(abs(x))
            + x / 3
            + np.clip(x, 0, 1)
            + x * x
            + np.tan(x)
            + 1 / x
            + np.sqrt(abs(x))
        )
    ),
    normal,
    np.float32,
    1e-5,
)
of_x(
    "f_conversions",
    lambda x, w, i: (
        v := np.float32(100) * x,
        (np.rint(v) + 3 * np.floor(v) + 5 * np.ceil(v) + np.trunc(abs(v)) + np.trunc(v) + i).astype(np.int64)
        + v.view(np.int32)
        & MASK,
    )[1],
    normal,
    np.int64,
)
LAB[-1] = Lab(
    "f_conversions",
    lambda r: {"y": out(np.int32), "x": normal(r)},
    lambda y, x: {
        "y": (
            v := np.float32(100) * x[:N],
            (
                (np.rint(v) + 3 * np.floor(v) + 5 * np.ceil(v) + np.trunc(abs(v)) + np.trunc(v) + np.arange(N)).astype(
                    np.int64
                )
                + v.view(np.int32)
            ).astype(np.int32),
        )[1]
    },
)


def _classes(x: np.ndarray, w: np.ndarray, i: np.ndarray) -> np.ndarray:
    v = np.where(i % 5 == 0, np.float32(np.inf), np.where(i % 5 == 1, np.float32(np.nan), x))
    least, most = np.fmin(v, 1), np.fmax(v, 0)
    return (
        np.isnan(v)
        + 2 * np.isinf(v)
        + 4 * np.isfinite(v)
        + 8 * np.signbit(v)
        + 16 * (v < 0)
        + 32 * (least == 1)
        + 64 * (most == 0)
    )


of_x("f_classes", _classes, normal, np.int32)


def _norm(y: np.ndarray, x: np.ndarray) -> Arrays:
    v = x.reshape(-1, 4).astype(F)
    cdf = each(lambda t: 0.5 * math.erfc(-t / math.sqrt(2)))(v[:, 0])
    return {"y": np.sqrt((v[:, :3] ** 2).sum(axis=1)) + 1 / np.sqrt((v**2).sum(axis=1)) + cdf}


lab("f_norm", lambda r: {"y": out(), "x": normal(r, 4 * N)}, _norm, 2e-6)

# ---- fp64

wide = lambda r: normal(r, dtype=F)  # noqa: E731
of_x(
    "d_arithmetic",
    lambda x, w, i: x * w + x - x * w + np.where(x > w, x, -w) + abs(x) + np.fmin(x, w) + 2 * np.fmax(x, w),
    wide,
    F,
    1e-14,
)
of_x("d_divide", lambda x, w, i: x / w + 1 / x, wide, F, 1e-15)
of_x("d_roots", lambda x, w, i: np.sqrt(abs(x)) + 1 / np.sqrt(abs(x)) + np.cbrt(x), wide, F, 1e-14)
of_x(
    "d_functions",
    lambda x, w, i: np.exp(x) + np.log(abs(x)) + np.sin(x) + np.cos(x) + np.tanh(x) + abs(x) ** 1.5,
    wide,
    F,
    1e-13,
)
of_x(
    "d_conversions",
    lambda x, w, i: (
        v := 1000 * x,
        t := np.trunc(v),
        (
            t + np.rint(v) + t + abs(t) + np.floor(v) + np.trunc(v.astype(np.float32).astype(F)) + i + np.rint(v) + i
        ).astype(np.int64),
    )[2],
    wide,
    np.int64,
)
LAB[-1] = Lab("d_conversions", lambda r: {"y": out(np.int64), "x": wide(r)}, LAB[-1].wanted)

# ---- integers


def wrapped(f: Callable[..., int], bits: int = 32) -> Callable[..., np.ndarray]:
    """A function of Python's whole numbers, its results as `bits` hold them."""
    mask = (1 << bits) - 1
    signed = np.int32 if bits == 32 else np.int64
    unsigned = U32 if bits == 32 else U64
    return lambda *arrays: np.array(
        [f(*(one.item() for one in row)) & mask for row in zip(*arrays, strict=True)], dtype=unsigned
    ).view(signed)


def s32(v: int) -> int:
    v &= MASK
    return v - (1 << 32) if v >> 31 else v


def s64(v: int) -> int:
    v &= (1 << 64) - 1
    return v - (1 << 64) if v >> 63 else v


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def u(v: int, bits: int = 32) -> int:
    return v & (1 << bits) - 1


ints = lambda r: full(r, dtype=np.int32)  # noqa: E731
longs = lambda r: full(r, dtype=np.int64) >> r.integers(0, 50, N + 1)  # noqa: E731


def _divided(bits: int) -> Callable[..., int]:
    def f(v: int, w: int, i: int) -> int:
        w |= 1
        q = quotient(v, w)
        a, b = u(v, bits), u(w, bits)
        return q + (v - q * w) + a // b + a % b + (quotient(v, 7) if bits == 32 else 0)

    return f


of_x("i_divide32", wrapped(_divided(32)), ints, np.int32)
of_x("i_divide64", wrapped(_divided(64), 64), longs, np.int64)


def _multiplied(v: int, w: int, i: int) -> int:
    a, b = s32(v), s32(w)
    low = lambda t: (u(t, 24) ^ 1 << 23) - (1 << 23)  # noqa: E731
    return (
        s64(v * w)
        + (v * w >> 64)
        + (u(v, 64) * u(w, 64) >> 64)
        + (a * b >> 32)
        + (u(a) * u(b) >> 32)
        + s32(low(a) * low(b))
    )


of_x("i_multiply", wrapped(_multiplied, 64), longs, np.int64)


def _product128(y: np.ndarray, x: np.ndarray) -> Arrays:
    whole = [int(a) * int(b) + int(a) for a, b in itertools.pairwise(x)]
    return {"y": np.array([part for v in whole for part in (v & (1 << 64) - 1, v >> 64)], dtype=U64)}


lab("i_128bits", lambda r: {"y": out(U64, 2 * N), "x": full(r, dtype=U64)}, _product128)


def _bits(v: int, w: int, i: int) -> int:
    clz = lambda t, n: n - u(t, n).bit_length()  # noqa: E731
    ffs = lambda t, n: (u(t, n) & -u(t, n)).bit_length()  # noqa: E731
    back = lambda t, n: int(f"{u(t, n):0{n}b}"[::-1], 2)  # noqa: E731
    return (
        clz(v, 32)
        + ffs(v, 32)
        + u(v).bit_count()
        + back(v, 32)
        + clz(v << 9, 64)
        + ffs(v << 7, 64)
        + u(v, 64).bit_count()
        + back(v, 64)
    )


of_x("i_bits", wrapped(_bits), ints, np.int32)


def _bytes(v: int, w: int, i: int) -> int:
    every = [v >> 8 * k & 255 for k in range(4)] + [w >> 8 * k & 255 for k in range(4)]
    permuted = sum(every[0x3614 >> 4 * k & 7] << 8 * k for k in range(4))
    a, b, pair = s32(v), s32(w), w << 32 | v
    left = lambda n: pair << n >> 32 & MASK  # noqa: E731
    return (
        permuted
        + left(i & 31)
        + (pair >> 5 & MASK)
        + left(min(i, 32))
        + abs(a - b)
        + 3
        + abs(v - w)
        + 5
        + (a + b >> 1)
        + (a + b + 1 >> 1)
        + (v + w >> 1)
    )


unsigned = lambda f: lambda *a: wrapped(f)(*a).view(U32)  # noqa: E731
of_x("i_bytes", unsigned(_bytes), full, U32)


def _fields(v: int, w: int, i: int) -> int:
    a, size = v >> (i & 31) & 511, i & 15
    c = s32(v) >> 5 & (1 << size) - 1
    c -= (c >> size - 1 << size) if size else 0
    b = (w & ~(2047 << 7)) | (v & 2047) << 7
    return a + 3 * b + 5 * c


of_x("i_fields", unsigned(_fields), full, U32)
of_x(
    "i_shifts64",
    lambda x, w, i: wrapped(
        lambda v, k: (v << (k & 63)) + (v >> (k & 63)) + (s64(v) >> (k & 63)) + (u(v << 33, 64) | v >> 31), 64
    )(x, i).view(U64),
    lambda r: full(r, dtype=U64),
    U64,
)
of_x(
    "i_minmax",
    wrapped(
        lambda v, w, i: (
            min(v, w) + max(u(v, 64), u(w, 64)) + min(s32(v), s32(w)) + max(u(v), u(w)) + abs(v) + abs(s32(w))
        ),
        64,
    ),
    longs,
    np.int64,
)


def _carries(y: np.ndarray, x: np.ndarray) -> Arrays:
    pairs = x[::2].astype(object) | x[1::2].astype(object) << 32
    a, b = pairs[:-1], pairs[1:]
    found = [(p + q ^ p - q) & (1 << 64) - 1 for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    return {"y": np.array([part for v in found for part in (v & MASK, v >> 32)], dtype=U32)}


lab("i_carries", lambda r: {"y": out(U32, 2 * N), "x": full(r, 2 * N + 2)}, _carries)


def simd(bits: int, f: Callable[[int, int, int, int], list[int]]) -> Callable[..., np.ndarray]:
    """Exclusive or of what each part of two words gives. f: of a part of both, unsigned, and signed."""

    def word(v: int, w: int, i: int) -> int:
        total, mask = 0, (1 << bits) - 1
        sign = lambda t: t - (1 << bits) if t >> bits - 1 else t  # noqa: E731
        for at in range(0, 32, bits):
            a, b = v >> at & mask, w >> at & mask
            for one in f(a, b, sign(a), sign(b)):
                total ^= (one & mask) << at
        return total

    return unsigned(word)


of_x(
    "i_simd2",
    simd(
        16,
        lambda a, b, p, q: [
            a + b,
            a - b,
            max(p, q),
            min(a, b),
            abs(p),
            a + b + 1 >> 1,
            -(p > q),
            abs(p - q),
            int(a == b),
            min(max(p + q, -32768), 32767),
        ],
    ),
    full,
    U32,
)


def _simd4(v: np.ndarray, w: np.ndarray, i: np.ndarray) -> np.ndarray:
    equal = simd(8, lambda a, b, p, q: [-(a == b)])(v, w & U32(255), i)
    rest = simd(
        8, lambda a, b, p, q: [a + b, a - b, max(p, q), min(a, b), abs(a - b), a + b + 1 >> 1, -a, min(a + b, 255)]
    )(v, w, i)
    sums = unsigned(lambda a, b: sum(abs((a >> k & 255) - (b >> k & 255)) for k in (0, 8, 16, 24)))(v, w)
    return equal ^ rest ^ sums


of_x("i_simd4", _simd4, full, U32)


def _dots(v: int, w: int, i: int) -> int:
    b8 = lambda t, k: ((t >> 8 * k & 255) ^ 128) - 128  # noqa: E731
    b16 = lambda t, k: ((t >> 16 * k & 65535) ^ 32768) - 32768  # noqa: E731
    signs = sum(b8(v, k) * b8(w, k) for k in range(4)) + i
    plain = sum((v >> 8 * k & 255) * (w >> 8 * k & 255) for k in range(4)) + i
    low, high = (sum(b16(v, k) * b8(w, k + at) for k in range(2)) + i for at in (0, 2))
    return signs + 3 * plain + 5 * low + 7 * high


of_x("i_dots", wrapped(_dots), ints, np.int32)


def _dynamic(v: int, w: int, i: int) -> int:
    b16 = lambda t, k: ((t >> 16 * k & 65535) ^ 32768) - 32768  # noqa: E731
    wrap = lambda t: ((t & 65535) ^ 32768) - 32768  # noqa: E731
    pack = lambda f: sum((f(k) & 65535) << 16 * k for k in range(2))  # noqa: E731
    added = pack(lambda k: max(wrap(b16(v, k) + b16(w, k)), b16(5, k)))
    largest = pack(lambda k: max(b16(v, k), b16(w, k), b16(i, k)))
    least = pack(lambda k: min((v >> 16 * k) + (w >> 16 * k) & 65535, 7 >> 16 * k & 65535))
    return max(s32(v + w), 5) + max(v, w, i) + min(u(v), u(w), 1 << 30) + max(v, w, 0) + added + largest + least


of_x("i_dynamic_programming", wrapped(_dynamic), ints, np.int32)

# ---- control flow


def _collatz(v: int, w: int, i: int) -> int:
    n = 0
    while v != 1 and n < 1000:
        v, n = (3 * v + 1 if v & 1 else v // 2), n + 1
        if n == 50:
            break
    return n


small = lambda r: whole(r, low=1, high=1000)  # noqa: E731
of_x("c_while", each(_collatz, np.int32), small, np.int32)


def _switch(v: int, w: int, k: int) -> float:
    i = np.float32(k)
    ways = [i * 2, np.sqrt(i), i + 3, i * i, 1 - i, np.float32(i / np.float32(3)), -i, i + 8]
    return float(ways[v]) if 0 <= v < 8 else float(i)


of_x("c_switch", each(_switch), lambda r: whole(r, low=-2, high=10), np.float32, 1e-7)


def _table(x: int, w: int, i: int) -> int:
    v = 0
    for k in range(4):
        case = (x + 3 * k) % 13
        if case in (1, 2):
            v = (v ^ 99 if case == 1 else v) * 3 + 1
        else:
            ways = {0: v + 7, 3: v - k, 4: v << 1, 5: ~v, 6: v + 2, 7: v | 64, 8: v & 0xFFFF, 9: quotient(v, 3)}
            v = ways.get(case, v + 1000)
    return v


of_x("c_jump_table", each(_table, np.int32), small, np.int32)


def _nested(x: int, w: int, i: int) -> int:
    s = 0
    for a in range(x & 7):
        if a == 3:
            continue
        for b in range(a, 9):
            if b * a > 20:
                break
            s += a ^ b
            if s > 60:
                return s
    return s


of_x("c_nested", each(_nested, np.int32), small, np.int32)


def _helper(a: np.float32, n: int) -> np.float32:
    s = np.float32(0)
    for j in range(n):
        s += np.float32(a / np.float32(j + 1))
    return s


def _calls(y: np.ndarray, x: np.ndarray, n: int) -> Arrays:
    return {"y": [_helper(x[i], n) + (_helper(x[i + 1], n + 1) if i & 1 else np.float32(0)) for i in range(N)]}


lab("c_calls", lambda r: {"y": out(), "x": normal(r), "n": 6}, _calls, 1e-6)


def _inner(v: int, n: int) -> int:
    while v < n:
        v = 2 * v + 1
    return v


of_x(
    "c_nested_calls",
    each(lambda v, w, i: _inner(v, 50) + _inner(v + 3, 100) if v & 4 else _inner(v, 9), np.int32),
    small,
    np.int32,
)
lab(
    "c_pointers", lambda r: {"y": out(), "x": normal(r), "which": whole(r, high=3)},
    lambda y, x, which: {"y": np.choose(which[:N], [2 * x[:N], x[:N] * x[:N], x[:N] * np.float32(0.25)])},
)  # fmt: skip
of_x("c_virtual", lambda x, w, i: np.where(i & 1, x * x, (x * np.float32(3)) * x), normal, np.float32, 2e-7)
of_x("c_recursion", each(lambda v, w, i: [0, 1, 1, 2, 3, 5, 8, 13][v & 7], np.int32), small, np.int32)
lab(
    "c_early_exit", lambda r: {"y": out(np.int32), "x": whole(r, low=-50, high=200), "n": 100},
    lambda y, x, n: {"y": [-1 if v < 0 else math.isqrt(v - 1) + 1 if v else 0 for v in x[:n].tolist()] + [0] * (N - n)},
)  # fmt: skip
of_x("c_assert", lambda x, w, i: 2 * x, small, np.int32)


def _newton(x: float, w: float, i: int) -> float:
    a = np.float32(abs(x)) + np.float32(1)
    r, n = a, 0
    while abs(np.float32(F(r) * F(r) - F(a))) > np.float32(1e-4) * a and n < 40:
        r, n = np.float32(0.5) * (r + np.float32(a / r)), n + 1
    return float(r + np.float32(n))


of_x("c_newton", each(_newton), normal, np.float32, 1e-5)
of_x("c_gcd", each(lambda v, w, i: math.gcd(v + 1, w + 1), np.int32), small, np.int32)


def _mandelbrot(y: np.ndarray, width: int) -> Arrays:
    found = []
    f = np.float32
    for i in range(N):
        cr = f(F(f(f(f(3) * f(i % width)) / f(width))) - 2)
        ci = f(F(f(f(f(2) * f(i // width)) / f(width))) - 1)
        r = m = f(0)
        n = 0
        while n < 60 and f(F(r) * F(r) + F(f(m * m))) < 4:
            r, m, n = f(F(f(F(r) * F(r) - F(f(m * m)))) + F(cr)), f(F(f(r + r)) * F(m) + F(ci)), n + 1
        found.append(n)
    return {"y": found}


lab("c_mandelbrot", lambda r: {"y": out(np.int32), "width": 16}, _mandelbrot)


def _stack(x: int, w: int, i: int) -> int:
    stack, s = [x & 31], 0
    while stack:
        v = stack.pop()
        s += v
        if v > 3:
            stack += [v // 2, v // 3]
    return s


of_x("c_local_stack", each(_stack, np.int32), small, np.int32)

# ---- warps


def warps(f: Callable[[np.ndarray], Any]) -> Callable[..., np.ndarray]:
    return lambda x, w, i: np.concatenate([np.broadcast_to(f(x[at : at + 32]), 32) for at in range(0, N, 32)])


def ballot(p: np.ndarray) -> int:
    return sum(1 << k for k in range(len(p)) if p[k])


of_x("w_votes", warps(lambda x: ballot(x & 1) + int((x < 1000).all()) + 2 * int((x == 3).any()) + 128), small, U32)


def _shuffled(v: np.ndarray) -> np.ndarray:
    lane = np.arange(32)
    v = v + v[np.where(lane + 16 < 32, lane + 16, lane)]
    v = v + v[lane ^ 8]
    v = v + v[np.where(lane % 16 >= 4, lane - 4, lane)]
    return v + v[lane // 8 * 8 + 3]


of_x("w_shuffles", warps(_shuffled), normal, np.float32)
of_x("w_shuffle64", warps(lambda v: v.sum()), wide, F, 1e-14)


def _matched(x: np.ndarray) -> np.ndarray:
    alike = lambda v: np.array([ballot(v == one) for one in v])  # noqa: E731
    same = bool((x >> 20 == x[0] >> 20).all())
    return (alike(x & 3) + (MASK if same else 0) + int(same) + 3 * alike(x & 7)) & MASK


of_x(
    "w_match",
    warps(_matched),
    lambda r: np.repeat(whole(r, (N + 31) // 32 + 1, high=3), 32)[: N + 1] << 20 | whole(r, high=8),
    U32,
)


def _masked(x: np.ndarray) -> np.ndarray:
    lane = np.arange(32)
    inside = lane & 4 != 0
    count = int((x[inside] & 1).sum())
    return np.where(inside, x[5] + count, 0)


of_x("w_masked", warps(_masked), small, np.int32)
of_x(
    "w_tiles",
    lambda x, w, i: (
        np.repeat(x.reshape(-1, 8).sum(axis=1), 8) + i % 8 + np.repeat((x == 3).reshape(-1, 8).any(axis=1), 8)
    ),
    lambda r: whole(r, high=20),
    np.int32,
)


def _grouped(y: np.ndarray, count: np.ndarray, x: np.ndarray) -> Arrays:
    x = x[:N]
    odd = (x & 1).reshape(-1, 32)
    ranks = np.where(odd, np.cumsum(odd, axis=1) - 1, 0).ravel()
    return {"y": np.repeat(x.reshape(-1, 32).sum(axis=1), 32) + ranks, "count": [odd.sum()]}


lab("w_groups", lambda r: {"y": out(np.int32), "count": out(np.int32, 1), "x": small(r)}, _grouped)
fold = lambda f, x: int(f.reduce(x))  # noqa: E731
of_x(
    "w_reduce",
    warps(
        lambda x: (
            x.sum() + x.min() + x.max() + fold(np.bitwise_xor, x) + fold(np.bitwise_or, x) + fold(np.bitwise_and, x)
        )
    ),
    small,
    np.int32,
    least=80,
)
of_x("w_scan", warps(np.cumsum), small, np.int32)

# ---- atomics


def _counted(y: np.ndarray, x: np.ndarray) -> Arrays:
    x = x[:N].astype(np.int64)
    y[:] = [
        x.sum(), -x.sum(), min(y[2], x.min()), x.max(), y[4] & fold(np.bitwise_and, x | 1 << 20),
        fold(np.bitwise_or, x),
        fold(np.bitwise_xor, x), N, (0 - N) % 1001, min(int(y[9]), int(x.min())),
    ]  # fmt: skip
    return {"y": y}


start = [0, 0, 1 << 30, 0, -1, 0, 0, 0, 0, 1 << 30]
lab("a_integers", lambda r: {"y": np.array(start, dtype=np.int32), "x": small(r)}, _counted)


def _answered(y: np.ndarray, n: np.ndarray, x: np.ndarray) -> Arrays:
    return {"n": [int((x[:N] & 1).sum())]}


lab("a_answers", lambda r: {"y": out(np.int32), "n": np.array([0, 1000000, 0, 0], dtype=np.int32), "x": small(r)},
    lambda y, n, x: {}, )  # fmt: skip
lab(
    "a_floats", lambda r: {"y": out(n=8 + N), "z": out(F, 1), "h": out(np.float16, 2), "x": normal(r)},
    lambda y, z, h, x: {"z": [x[:N].astype(F).sum()], "h": [N, 2 * N]}, 1e-6,
)  # fmt: skip


def _wide(y: np.ndarray, x: np.ndarray) -> Arrays:
    v = [int(one) for one in x[:N]]
    f = lambda g, s: __import__("functools").reduce(g, v, s)  # noqa: E731
    return {
        "y": [
            *np.array(
                [
                    sum(v) & (1 << 64) - 1,
                    max(v),
                    min(s64(one) for one in v) & (1 << 64) - 1,
                    f(lambda a, b: a & (b | 3), (1 << 64) - 1),
                    f(lambda a, b: a | b, 0),
                    f(lambda a, b: a ^ b, 0),
                ],
                dtype=U64,
            )
        ]
    }


lab("a_wide", lambda r: {"y": np.array([0, 0, 0, (1 << 64) - 1, 0, 0, 0, 0], dtype=U64), "x": full(r, dtype=U64)},
    lambda y, x: {"y": np.array([*_wide(y, x)["y"], 9, 5], dtype=U64)})  # fmt: skip
lab("a_scopes", lambda r: {"y": out(np.int32, 3)}, lambda y: {"y": [N, 2 * N, N - 1]})
lab("a_float_max", lambda r: {"y": out(n=1), "x": normal(r)}, lambda y, x: {"y": [x[:N].max()]})
lab(
    "a_short",
    lambda r: {"y": out(np.uint16, 2)},
    lambda y: {"y": np.array([N, 0], dtype=np.uint16)},
    formats={"y": "int16"},
)
lab(
    "a_histogram", lambda r: {"y": out(np.int32, 32), "x": small(r)},
    lambda y, x: {"y": np.bincount(x[:N] & 31, minlength=32)},
)  # fmt: skip


def _shared(y: np.ndarray, z: np.ndarray, x: np.ndarray) -> Arrays:
    v = x[:N]
    total = int(v.sum())
    s = [s32(257 * total), v.max(), v.min(), fold(np.bitwise_or, v), fold(np.bitwise_xor, v), N % 41, 7, -N]
    return {"y": [*s, *(1,) * N], "z": [N]}


lab("a_shared", lambda r: {"y": out(np.int32, 8 + N), "z": out(n=1), "x": small(r)}, _shared)
lab(
    "a_lock",
    lambda r: {"lock": out(np.int32, 1), "y": out(np.int32, 1)},
    lambda lock, y: {"y": [6], "lock": [0]},
    grid=(6,),
)
lab(
    "a_last_block", lambda r: {"y": out(np.int32, 2), "count": out(np.int32, 1), "x": whole(r, 4 * N)},
    lambda y, count, x: {"y": [x.sum(), 2 * x.sum()], "count": [0]}, grid=(4,),
)  # fmt: skip

# ---- memory

lab(
    "m_hints",
    lambda r: {"y": out(n=4 * N), "x": normal(r)},
    lambda y, x: {"y": np.repeat(6 * x[:N].astype(F), 4)},
    1e-6,
)
lab("m_fences", lambda r: {"y": out(np.int32), "x": out(np.int32)}, lambda y, x: {"y": np.arange(N) + 3})
lab("m_barriers", lambda r: {"y": out(np.int32, 64), "x": small(r)},
    lambda y, x: {"y": np.full(64, int((x[:64] & 1).sum()) + 100)}, block=(64,))  # fmt: skip
lab("m_clock", lambda r: {"y": out(np.int64)}, lambda y: {"y": np.full(N, 7)})
lane = np.arange(N) % 32
lab("m_specials", lambda r: {"y": out(U32)},
    lambda y: {"y": (lane + 1 + (1 << lane) - 1 + 3 * ((1 << 32) - (1 << lane)) + N + 32) & MASK})  # fmt: skip
of_x("m_constants", lambda x, w, i: 2.0 ** (x & 7) + 8, small, np.float32)
lab("m_globals", lambda r: {"y": out(np.int32)}, lambda y: {"y": np.arange(N) % 4 + 5})
PACK = np.array([100], dtype=np.int32).tobytes() + np.array([2, 1, 2, 3, 4, 5], dtype=np.float32).tobytes()
lab("m_structure", lambda r: {"y": out(), "p": PACK},
    lambda y, p: {"y": np.where(np.arange(N) < 100, 2.0 * (np.arange(N) % 5 + 1), 0)})  # fmt: skip
lab(
    "m_bytes",
    lambda r: {"y": out(np.int16), "a": full(r, N, np.int8), "b": full(r, N, np.uint8), "c": full(r, N, np.uint16)},
    lambda y, a, b, c: {"y": (2 * a.astype(np.int32) + b - c).astype(np.int16)}, formats={"c": "uint16"},
)  # fmt: skip
lab(
    "m_vectors", lambda r: {"y": out(n=4 * N), "x": normal(r, 4 * N), "z": full(r, 4 * N, np.uint8)},
    lambda y, x, z: {"y": x.reshape(-1, 4)[:, ::-1].ravel() + z.astype(np.float32)},
)  # fmt: skip


def _local(x: int, w: int, i: int) -> int:
    a = [k * k for k in range(32)]
    a[x & 31] = -1
    return a[i & 31] + a[(x + 1) & 31]


of_x("m_local", each(_local, np.int32), small, np.int32)
lab("m_gather", lambda r: {"y": out(), "x": normal(r), "at": whole(r, high=N)}, lambda y, x, at: {"y": x[at[:N]]})


def _sparse(r: np.random.Generator) -> Arrays:
    counts = whole(r, N, high=6)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    total = int(first[-1])
    return {
        "y": out(),
        "first": first,
        "column": whole(r, total, high=N),
        "value": normal(r, total),
        "x": normal(r),
        "n": N,
    }


lab("m_csr", _sparse, lambda y, first, column, value, x, n: {
    "y": [(value[a:b].astype(F) * x[column[a:b]]).sum() for a, b in itertools.pairwise(first)]}, 1e-6)  # fmt: skip
lab("m_search", lambda r: {"y": out(np.int32), "sorted": np.sort(whole(r, 500, high=1000)), "x": small(r), "n": 500},
    lambda y, sorted, x, n: {"y": np.searchsorted(sorted, x[:N])})  # fmt: skip

# ---- shared memory

lab("s_transpose", lambda r: {"y": out(n=4096), "x": normal(r, 4096), "n": 64},
    lambda y, x, n: {"y": x.reshape(64, 64).T.ravel()}, block=(32, 8), grid=(2, 2))  # fmt: skip
lab("s_reduce", lambda r: {"y": out(n=4), "x": normal(r, 4 * N)},
    lambda y, x: {"y": x.astype(F).reshape(4, N).sum(axis=1)},
    1e-5, grid=(4,), shared=4 * N)  # fmt: skip
of_x("s_scan", lambda x, w, i: np.cumsum(x), small, np.int32)
of_x("s_bitonic", lambda x, w, i: np.sort(x), ints, np.int32)
lab(
    "s_stencil", lambda r: {"y": out(n=2 * N), "x": normal(r, 2 * N), "n": 2 * N},
    lambda y, x, n: {"y": np.convolve(np.pad(x.astype(F), 1), [.25, .5, .25], "valid")}, 1e-6, grid=(2,),
)  # fmt: skip
lab(
    "s_matmul", lambda r: {"c": out(n=1024), "a": normal(r, 1024), "b": normal(r, 1024), "n": 32},
    lambda c, a, b, n: {"c": (a.astype(F).reshape(32, 32) @ b.astype(F).reshape(32, 32)).ravel()},
    1e-5, block=(16, 16), grid=(2, 2),
)  # fmt: skip


def _permuted(y: np.ndarray, x: np.ndarray) -> Arrays:
    p = np.arange(64)
    for _ in range(5):
        p = x[p]
    return {"y": p}


lab("s_permute", lambda r: {"y": out(np.int32, 64), "x": r.permutation(64).astype(np.int32)}, _permuted, block=(64,))
lab("s_queue", lambda r: {"y": out(np.int32, 2), "x": whole(r, 64, high=100), "n": 40},
    lambda y, x, n: {"y": [x[x < 40].sum(), (x < 40).sum()]}, block=(64,))  # fmt: skip
of_x("s_copies", lambda x, w, i: 2 * x[::-1], normal, np.float32, least=80)

# ---- halves and narrower formats

H = np.float16
halves = lambda r: normal(r, dtype=H)  # noqa: E731
of_x(
    "h_arithmetic",
    d(lambda v, w, i: v * w + (v * w + v) - (v - w) + np.maximum(v, w) + np.minimum(v, w) + abs(v) - w),
    halves,
    H,
    8e-3,
)


def _pairs(y: np.ndarray, x: np.ndarray) -> Arrays:
    v, w = x[: 2 * N].astype(F).reshape(-1, 2), x[2 : 2 * N + 2].astype(F).reshape(-1, 2)
    swapped, low = v[:, ::-1], w[:, :1]
    return {"y": (v * w + (v * low + swapped) + (v > w) + np.maximum(v * w + v, 0)).ravel()}


lab("h_pairs", lambda r: {"y": out(H, 2 * N), "x": normal(r, 2 * N + 2, H)}, _pairs, 8e-3)
of_x(
    "h_functions",
    d(
        lambda v, w, i: (
            np.exp(abs(v))
            + np.log(abs(v))
            + np.sqrt(abs(v))
            + 1 / abs(v)
            + np.sin(abs(v))
            + np.floor(abs(v))
            + np.tanh(abs(v))
        )
    ),
    halves,
    np.float32,
    2e-3,
)
of_x("h_divide", d(lambda v, w, i: v / w), halves, H, 1e-3)


def _compared(v: np.ndarray, w: np.ndarray, i: np.ndarray) -> np.ndarray:
    tenfold = np.rint((H(10) * v).astype(F))
    return (v < w) + 2 * (v == v) + 8 * (v >= w) + 16 * tenfold + 1000 * np.trunc(v.astype(F))


of_x("h_compare", _compared, halves, np.int32)


def _narrowed(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Arrays:
    x, z = x[:N], z[:N]
    near = x.astype(H)
    zero = np.where(abs(near.astype(F)) > abs(x), np.nextafter(near, H(0)), near)
    return {"y": np.stack([near, z.astype(H), zero, near], axis=1).ravel()}


lab("h_conversions", lambda r: {"y": out(H, 4 * N), "x": normal(r), "z": whole(r, high=2000)}, _narrowed)
B = lambda r, n=N + 1: bf16(normal(r, n))  # noqa: E731


def brain(f: Callable[..., np.ndarray], pairs: int = 1) -> Callable[..., Arrays]:
    def wanted(y: np.ndarray, x: np.ndarray) -> Arrays:
        v = of_bf16(x).astype(F)
        return {"y": bf16(f(v[: pairs * N], v[pairs : pairs * (N + 1)]))}

    return wanted


lab(
    "b_arithmetic",
    lambda r: {"y": out(np.uint16), "x": B(r)},
    brain(lambda v, w: v * w + v + np.maximum(v, w) + v * w),
    4e-2,
    least=80,
)
lab(
    "b_pairs",
    lambda r: {"y": out(np.uint16, 2 * N), "x": B(r, 2 * N + 2)},
    brain(lambda v, w: (v + w) * (v * w + v), 2),
    4e-2,
    least=80,
)


def _to_fp32(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Arrays:
    b, v = of_bf16(bf16(x)), of_bf16(z)
    return {"y": b[:N] + b[1:] + v[:N] + np.rint(v[:N]) + (v[:N] > v[1:])}


lab("b_conversions", lambda r: {"y": out(), "x": normal(r), "z": B(r)}, _to_fp32, 1e-6)


def _narrow(y: np.ndarray, z: np.ndarray, x: np.ndarray, w: np.ndarray) -> Arrays:
    found = np.stack([fp8(x[:N], "fp8"), fp8(x[:N], "fp8_e5m2")], axis=1).ravel()
    return {"z": found, "y": of_fp8(w[:N], "fp8") + of_fp8(w[1:] & np.uint8(0x7B), "fp8_e5m2")}


lab(
    "q_conversions",
    lambda r: {"y": out(), "z": out(np.uint8, 2 * N), "x": 20 * normal(r), "w": full(r, dtype=np.uint8)},
    _narrow,
)


def _unpacked(y: np.ndarray, x: np.ndarray, scale: np.ndarray) -> Arrays:
    s = np.repeat(scale, 32)[:N]
    return {"y": np.stack([((x[:N] & 15).astype(H) - 8) * s, ((x[:N] >> 4).astype(H) - 8) * s], axis=1).ravel()}


lab("q_unpack", lambda r: {"y": out(H, 2 * N), "x": full(r, dtype=np.uint8), "scale": normal(r, 4, H)}, _unpacked)

# ---- matrices

WARP = (32,)


def product(
    name: str,
    m: int,
    n: int,
    k: int,
    of: Any,
    to: Any,
    layout: str,
    tolerance: float,
    columns: bool = False,
    **rest: Any,
) -> None:
    """d = a b + c of matrices whose rows, or columns, lie 64 apart."""
    makes = {np.int8: whole8(np.int8), np.uint8: whole8(np.uint8), "bf16": lambda r: B(r, 4096)}
    make = makes.get(of) or (lambda r: normal(r, 4096, of))

    def given(r: np.random.Generator) -> Arrays:
        c = whole(r, 4096, -99, 99) if to is np.int32 else normal(r, 4096, to)
        return {"a": make(r), "b": make(r), "c": c}

    def wanted(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
        left, right = ((of_bf16(x) if of == "bf16" else x).astype(F).reshape(64, 64) for x in (a, b))
        left = left[:m, :k] if layout[0] == "r" else left[:k, :m].T
        right = right[:k, :n] if layout[1] == "r" else right[:n, :k].T
        square = c.reshape(64, 64)
        view = square[:n, :m].T if columns else square[:m, :n]
        view[:] = (left @ right + view.astype(F)).astype(to)
        return {"c": c}

    lab(name, given, wanted, tolerance, block=WARP, **rest)


def whole8(dtype: Any) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda r: full(r, 4096, dtype)


product("p_half_rr", 16, 16, 16, H, H, "rr", 1e-2)
product("p_half_rc", 16, 16, 16, H, H, "rc", 1e-2, columns=True)
product("p_half_cr", 16, 16, 16, H, np.float32, "cr", 1e-4)
product("p_half_cc", 16, 16, 16, H, np.float32, "cc", 1e-4, columns=True)
product("p_half_wide", 8, 32, 16, H, np.float32, "rr", 1e-4)
product("p_half_tall", 32, 8, 16, H, np.float32, "rc", 1e-4)
product("p_s8_rc", 16, 16, 16, np.int8, np.int32, "rc", 0)
product("p_u8_cr", 16, 16, 16, np.uint8, np.int32, "cr", 0)
product("p_s8_rr", 16, 16, 16, np.int8, np.int32, "rr", 0)
product("p_s8_tall", 32, 8, 16, np.int8, np.int32, "rc", 0, columns=True)
product("p_bf16", 16, 16, 16, "bf16", np.float32, "rc", 1e-4, least=80)
product("p_bf16_wide", 8, 32, 16, "bf16", np.float32, "cr", 1e-4, least=80)
product("p_tf32", 16, 16, 8, np.float32, np.float32, "rc", 5e-3, least=80)
product("p_tf32_cr", 16, 16, 8, np.float32, np.float32, "cr", 5e-3, least=80)
product("p_fp64", 8, 8, 4, F, F, "rc", 1e-13, least=80)


def _nibbles(x: np.ndarray) -> np.ndarray:
    low, high = x & 15, x >> 4
    return np.stack([(one.astype(np.int32) ^ 8) - 8 for one in (low, high)], axis=-1).reshape(8, 32)


lab("p_s4", lambda r: {"a": full(r, 128, np.uint8), "b": full(r, 128, np.uint8), "c": out(np.int32, 64)},
    lambda a, b, c: {"c": (_nibbles(a) @ _nibbles(b).T).ravel()}, block=WARP)  # fmt: skip


def _exclusive(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
    p, q = (np.unpackbits(x, bitorder="little").reshape(8, 128) for x in (a, b))
    return {"c": (p[:, None] ^ q[None]).sum(axis=2).ravel()}


lab(
    "p_bits",
    lambda r: {"a": full(r, 128, np.uint8), "b": full(r, 128, np.uint8), "c": out(np.int32, 64)},
    _exclusive,
    block=WARP,
)
lab("p_fragments", lambda r: {"c": out(H, 256), "a": normal(r, 256, H)},
    lambda c, a: {"c": (a * H(2) + H(1)).reshape(16, 16).T.ravel()}, 1e-3, block=WARP)  # fmt: skip
