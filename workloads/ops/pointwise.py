"""Element-by-element operators: one function, or a chain of them, over n elements.

A chain is written `cos+cos` or `bias+gelu`: what comes in runs through its functions from left to right. Fused it is
one kernel, which keeps what lies between in registers; unfused each function is a kernel of its own, through memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from arch.dtypes import is_integer, round_to, wrapped_to
from arch.errors import InputError
from arch.near import hint
from workloads.ops.base import (
    Array,
    Operand,
    Operator,
    choice,
    derived_extent,
    extent,
    number_format,
    operator,
    rounding,
    words,
)
from workloads.ops.layouts import Layout, read_layout

SCALE = 0.96875
"""Factor of `scale` and `triad`: exact in every format, and a long chain of it neither overflows nor vanishes."""
FILL = 1.0
EXPONENT = 1.75
"""Exponent of `pow`: not one that libraries replace by multiplications."""
KEEP = 0.875
"""Share of elements that dropout keeps: 1 - p, exact in every format."""


def kept(index: Array) -> Array:
    """Whether dropout keeps element `index`: a fixed hash of its number stands for the counter-based generator."""
    x = (np.asarray(index, dtype=np.int64) + 1) * 0x9E3779B1 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    return np.asarray((x ^ x >> 13) & 7) != 0


class Function(NamedTuple):
    """One elementwise function.

    apply(x, *others): its meaning in NumPy; x is what runs through the chain. others: further operands, each "full" (n
    elements), "column" (`cols` elements, the same for every row), "mask" (n bytes) or "index" (the element's number,
    which is not in memory). flops: arithmetic operations an element, one for each call of the mathematics
    library. positive: defined for positive operands only. starts: it takes no x. mask: it also writes n bytes.
    summed(x, *others): for a function with a sum whose terms cancel, the result with their sizes in their place: what
    rounding the sum is relative to.
    """

    apply: Callable[..., Any]
    others: tuple[str, ...] = ()
    flops: int = 1
    positive: bool = False
    starts: bool = False
    mask: bool = False
    summed: Callable[..., Any] | None = None


@functools.cache
def _erf() -> Callable[[Array], Array]:
    return np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf()(x / math.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _gelu_backward(dy: Array, x: Array) -> Array:
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dy * (0.5 * (1 + _erf()(x / math.sqrt(2))) + x * density)


def _gelu_backward_summed(dy: Array, x: Array) -> Array:
    return np.asarray(np.abs(dy) * (1 + np.abs(x) * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)))


def _silu_backward(dy: Array, x: Array) -> Array:
    s = _sigmoid(x)
    return dy * s * (1 + x * (1 - s))


def _silu_backward_summed(dy: Array, x: Array) -> Array:
    s = _sigmoid(x)
    return np.asarray(np.abs(dy) * s * (1 + np.abs(x) * (1 - s)))


FUNCTIONS: dict[str, Function] = {
    "copy": Function(lambda x: x, flops=0),
    "cast": Function(lambda x: x, flops=0),
    "fill": Function(lambda: FILL, flops=0, starts=True),
    "scale": Function(lambda x: SCALE * x),
    "neg": Function(lambda x: -x),
    "abs": Function(np.abs),
    "relu": Function(lambda x: np.maximum(x, 0)),
    "exp": Function(np.exp),
    "log": Function(np.log, positive=True),
    "log10": Function(np.log10, positive=True),
    "sin": Function(np.sin),
    "cos": Function(np.cos),
    "tanh": Function(np.tanh),
    "sqrt": Function(np.sqrt, positive=True),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), positive=True, flops=2),
    "pow": Function(lambda x: x**EXPONENT, positive=True),
    "sigmoid": Function(_sigmoid, flops=3),
    "silu": Function(lambda x: x * _sigmoid(x), flops=4),
    "gelu": Function(_gelu, flops=5, summed=np.abs),
    "gelu_tanh": Function(_gelu_tanh, flops=8, summed=np.abs),
    "add": Function(lambda x, y: x + y, others=("full",)),
    "sub": Function(lambda x, y: x - y, others=("full",)),
    "mul": Function(lambda x, y: x * y, others=("full",)),
    "triad": Function(lambda x, y: x + SCALE * y, others=("full",), flops=2),
    "bias": Function(lambda x, b: x + b, others=("column",)),
    "dropout": Function(lambda x, i: np.where(kept(i), x / KEEP, 0.0), others=("index",), flops=1, mask=True),
    "dropout_backward": Function(lambda dy, m: np.where(m != 0, dy / KEEP, 0.0), others=("mask",)),
    "relu_backward": Function(lambda dy, x: np.where(x > 0, dy, 0.0), others=("full",)),
    "silu_backward": Function(_silu_backward, others=("full",), flops=8, summed=_silu_backward_summed),
    "gelu_backward": Function(_gelu_backward, others=("full",), flops=10, summed=_gelu_backward_summed),
}
"""The functions of chains; each is also an operator's word of its own, `exp n=4096`."""

INTEGER_FUNCTIONS = ("copy", "cast", "fill", "neg", "abs", "relu", "add", "sub", "mul", "bias", "relu_backward")
"""Functions of integers that are integers. They keep the lowest bits, as machines and NumPy do."""
BOOLEAN_FUNCTIONS = ("copy", "cast", "fill", "add", "mul")
"""Those of truth values: an addition is `or`, a product `and`."""
MOST_CALLS = 4096
"""Functions of a whole chain, repeats counted: each is in the kernel's code."""


@operator("pointwise", kind="elementwise", example="n=4M chain=exp")
@dataclass(frozen=True)
class Pointwise(Operator):
    """y[i] = f(x[i], ...) for i in 0..n-1, f a chain of `FUNCTIONS` that is applied `repeat` times.

    Operands are x (unless the chain starts with `fill`) and then what the functions take beside it, in their order; a
    repeated chain takes the same ones again. Results are y and, for `dropout`, the mask.

    Operands may lie in another order than the result: `shape=4096x1024 layout=ab+ba` adds the transpose of a matrix of
    1024 x 4096. Letters are the result's dimensions; along those that an operand leaves out it is spread.
    """

    abreast: ClassVar[bool] = True

    n: int = extent(help="elements")
    chain: str = field(
        default="copy", metadata={"kind": "chain", "help": "functions from left to right, joined by +, such as cos+cos"}
    )
    repeat: int = extent(1, help="times that the chain is applied")
    fused: str = choice("1", ("0", "1"), help="1: one kernel; 0: one kernel a function, through memory")
    cols: int | None = derived_extent(help="elements of a row, for bias; default: none")
    shape: str | None = words("dimensions of the result, 16x128x64, where operands lie in another order; default: none")
    layout: str | None = words("of each operand, the dimensions abc as they lie in memory: abc+bac; default: none")
    dtype: str | None = number_format("of the operands; default: the machine's")
    out: str | None = number_format("of the result; default: the input's")

    def __post_init__(self) -> None:
        """Checks the fields and that the chain can be run."""
        names = self.functions if isinstance(self.chain, str) else []
        for name in names:
            if name not in FUNCTIONS:
                raise InputError(f"pointwise chain={self.chain}: unknown function {name!r}{hint(name, FUNCTIONS)}")
        super().__post_init__()
        most = MOST_CALLS // len(names)
        if self.repeat > most:
            rule = f"a chain has at most {MOST_CALLS} functions"
            raise InputError(f"{self._typed} repeat={self.repeat}: {rule}; nearest: {most}")
        for i, name in enumerate(names):
            if FUNCTIONS[name].starts and (i or self.repeat > 1):
                raise InputError(f"pointwise chain={self.chain}: {name} starts a chain, once; nearest: chain={name}")
        if sum(FUNCTIONS[name].mask for name in names) * self.repeat > 1:
            raise InputError(f"pointwise chain={self.chain}: one dropout a chain; nearest: repeat=1")
        needs_columns = any("column" in FUNCTIONS[name].others for name in names)
        if needs_columns and (self.cols is None or self.n % self.cols):
            right = f"{self.n % self.cols} are left over" if self.cols else "it is not set"
            raise InputError(f"{self._typed} cols={self.cols}: rows of cols elements must fill n={self.n}; {right}")
        if self.cols is not None and not needs_columns:
            raise InputError(f"{self._typed} cols={self.cols}: only bias takes cols; leave it out")
        if (self.shape is None) != (self.layout is None):
            raise InputError(f"{self._typed}: shape and layout go together, such as shape=4096x1024 layout=ab+ba")
        if self.layout is not None and needs_columns:
            raise InputError(f"{self._typed} layout={self.layout}: bias takes none; add does, layout=abc+c")
        _ = self.lying
        self._check_integers()

    def _check_integers(self) -> None:
        """InputError for functions that give no integers of integers."""
        if self.dtype is None or not is_integer(self.arithmetic):
            return
        allowed = BOOLEAN_FUNCTIONS if self.dtype == "bool" else INTEGER_FUNCTIONS
        for name in self.functions:
            if name not in allowed:
                rule = f"{name} of {self.dtype} is no {self.out_dtype}; nearest: out=fp32"
                raise InputError(f"{self._typed} dtype={self.dtype}: {rule}, or {', '.join(allowed)}")

    def __str__(self) -> str:
        """A single function as its own word, `exp n=4096`."""
        word, *pairs = super().__str__().split()
        if self._single:
            word, pairs = self.chain, [pair for pair in pairs if not pair.startswith("chain=")]
        return " ".join([word, *pairs])

    @property
    def _single(self) -> bool:
        return "+" not in self.chain

    @property
    def _typed(self) -> str:
        return self.chain if self._single else self.word

    @property
    def lying(self) -> Layout | None:
        """How operands lie; None where all of them lie as the result does."""
        if self.shape is None or self.layout is None:
            return None
        others = sum(kind != "index" for name in self.functions for kind in FUNCTIONS[name].others)
        given = others + (not FUNCTIONS[self.functions[0]].starts)
        return read_layout(self._typed, self.shape, self.layout, self.n, given)

    @property
    def functions(self) -> list[str]:
        """Names of the chain's functions, in order, once."""
        return self.chain.split("+")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` and `out` filled in."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or chosen)

    @property
    def flops(self) -> int:
        """n times the operations of the chain."""
        return self.n * self.repeat * sum(FUNCTIONS[name].flops for name in self.functions)

    @property
    def out_dtype(self) -> str:
        """Format of the result."""
        return self.out or self.chosen_dtype

    @property
    def arithmetic(self) -> str:
        """Format that is computed in: the operands' own where operands and result are integers, fp64 where one of them
        is, else fp32."""
        formats = (self.chosen_dtype, self.out_dtype)
        if all(map(is_integer, formats)):
            return self.chosen_dtype
        return "fp64" if "fp64" in formats else "fp32"

    def kept(self, values: Array) -> Array:
        """What arithmetic leaves of a function's values."""
        return wrapped_to(values, self.arithmetic) if is_integer(self.arithmetic) else values

    def stored(self, values: Array, dtype: str) -> Array:
        """The same in a result's format, before it is rounded: integers lose bits, fractions do not."""
        return wrapped_to(values, dtype) if is_integer(self.arithmetic) else np.asarray(values)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x, then each function's own."""
        dtype = self.chosen_dtype
        given = [] if FUNCTIONS[self.functions[0]].starts else [Operand("x", (self.n,), dtype)]
        for number, name in enumerate(self.functions):
            for kind in FUNCTIONS[name].others:
                label = f"{name}{number}"
                match kind:
                    case "column":
                        given.append(Operand(label, (self.cols or 1,), dtype))
                    case "mask":
                        given.append(Operand(label, (self.n,), "bool"))
                    case "index":
                        pass
                    case _:
                        given.append(Operand(label, (self.n,), dtype))
        if (lying := self.lying) is None:
            return tuple(given)
        return tuple(operand._replace(shape=lying.sizes(number)) for number, operand in enumerate(given))

    @property
    def results(self) -> tuple[Operand, ...]:
        """y, and the mask of a dropout."""
        y = Operand("y", (self.n,), self.out_dtype)
        return (y, Operand("mask", (self.n,), "bool")) if any(FUNCTIONS[f].mask for f in self.functions) else (y,)

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """As in the base; positive where the chain's first function needs it, masks 0 or 1."""
        arrays = list(super().inputs(seed, data))
        rng = np.random.Generator(np.random.PCG64(seed + 1))
        for i, operand in enumerate(self.operands):
            if operand.name.startswith("dropout_backward"):
                arrays[i] = (rng.uniform(0.0, 1.0, operand.shape) < KEEP).astype(np.float64)
        if FUNCTIONS[self.functions[0]].positive:
            arrays[0] = round_to(np.abs(arrays[0]) + 0.125, self.chosen_dtype)
        return tuple(arrays)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The chain in float64; unfused, what each function leaves in memory is rounded."""
        y, mask = self._run(operands, rounded=self.fused == "0")
        return (round_to(self.stored(y, self.out_dtype), self.out_dtype), *([] if mask is None else [mask]))

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """The result, and how much it moves where x and what it becomes on the way are off by their own size, and sums
        inside of functions by the size of what they add."""
        step = 2.0**-18
        y, mask = self._run(operands)
        if is_integer(self.out_dtype):
            return (np.zeros_like(y), *([] if mask is None else [np.ones_like(mask)]))
        moves = [self._run(operands, growth=1.0 + step)[0], self._run(operands, inside=step)[0]]
        moved = sum(np.abs(other - y) for other in moves)
        return (np.abs(y) + moved / step, *([] if mask is None else [np.ones_like(mask)]))

    @property
    def tolerance(self) -> float:
        """One rounding to the result's format, and a few of fp32 (unfused: of the format) a function; of integers none,
        and one where fractions become integers."""
        if is_integer(self.out_dtype):
            return 0.0 if is_integer(self.arithmetic) else 1.0
        calls = self.repeat * len(self.functions)
        each = rounding(self.chosen_dtype if self.fused == "0" else self.arithmetic)
        return rounding(self.out_dtype) + calls * each

    def _run(
        self, operands: tuple[Array, ...], *, growth: float = 1.0, inside: float = 0.0, rounded: bool = False
    ) -> tuple[Array, Array | None]:
        """The chain's result before the last rounding, and the mask.

        growth: multiplies what goes into each function. inside: share of their terms by which sums inside of functions
        are off. rounded: what comes out of each is rounded.
        """
        given = [np.asarray(a, dtype=np.float64) for a in operands]
        if (lying := self.lying) is not None:
            given = [lying.seen(number, values) for number, values in enumerate(given)]
        starts = FUNCTIONS[self.functions[0]].starts
        value: Any = None if starts else given[0]
        mask = None
        others_at = 0 if starts else 1
        last = self.repeat * len(self.functions) - 1
        for call in range(last + 1):
            number = call % len(self.functions)
            if number == 0:
                at = others_at
            name = self.functions[number]
            function = FUNCTIONS[name]
            others: list[Array] = []
            for kind in function.others:
                if kind == "index":
                    others.append(np.arange(self.n))
                else:
                    others.append(given[at])
                    at += 1
            if "column" in function.others:
                others = [np.tile(others[0], self.n // others[0].size)]
            taken = [] if function.starts else [growth * value]
            value = self.kept(function.apply(*taken, *others))
            if inside and function.summed is not None:
                value = value + inside * function.summed(*taken, *others)
            if function.mask:
                mask = kept(others[0]).astype(np.float64)
            if rounded and call < last:
                value = round_to(value, self.chosen_dtype)
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (self.n,)), mask
