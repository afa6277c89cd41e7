"""What every operator is: a frozen dataclass declared under the word that people type, checked on creation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import BLOCK_FORMATS, DTYPE_BYTES, FORMATS, format_of, is_integer, round_to
from arch.errors import InputError
from arch.near import hint
from workloads.ops.dtypes import epsilon

Array = NDArray[Any]

MAX_EXTENT = 2**31 - 1
"""Largest extent of one dimension: coordinates in kernels are 32-bit."""

DATA_KINDS = ("normal", "uniform", "integers", "zeros")
"""Kinds of operand data that `inputs` makes."""

KINDS = ("contraction", "normalisation", "elementwise", "copy", "communication")
"""Kinds of operators by how they move data: sums of products; reductions and what rests on them; element by element;
to and from the host; between devices."""

REGISTRY: dict[str, type[Operator]] = {}
"""Operators by their word."""

Declared = TypeVar("Declared", bound="Operator")


def operator(word: str, *, kind: str = "", example: str = "") -> Callable[[type[Declared]], type[Declared]]:
    """Class decorator that declares an operator: `workloads.ops` finds it by reading that the decorator stands there.

    word: what people type, written as a text. kind: one of `KINDS`, under which a profile counts it; left out, that of
    the base class, and nothing for a whole model, which is no step of a graph. example: keys with values that run, for
    the help; left out, those of the base class.
    """
    if kind and kind not in KINDS:
        raise InputError(f"operator {word}: kind={kind}: must be one of {', '.join(KINDS)}{hint(kind, KINDS)}")

    def declare(cls: type[Declared]) -> type[Declared]:
        cls.word, cls.kind, cls.example = word, kind or cls.kind, example or cls.example
        REGISTRY[word] = cls
        return cls

    return declare


def extent(default: int | None = None, help: str = "") -> Any:
    """A dataclass field that holds a positive integer; needed where there is no default."""
    meta = {"kind": "extent", "help": help}
    return field(metadata=meta) if default is None else field(default=default, metadata=meta)


def derived_extent(help: str = "") -> Any:
    """A dataclass field that holds a positive integer, or None where it follows from others."""
    return field(default=None, metadata={"kind": "extent", "help": help})


def count(default: int | None, help: str = "", most: int = MAX_EXTENT) -> Any:
    """A dataclass field that holds an integer of at least 0, and of at most `most`; derived from others where None."""
    return field(default=default, metadata={"kind": "count", "help": help, "most": most})


def size(help: str = "", most: int = MAX_EXTENT) -> Any:
    """A dataclass field that holds bytes, which texts may write as `64MiB`; 0 where another field says how many."""
    return field(default=0, metadata={"kind": "count", "help": help, "most": most, "bytes": True})


def choice(default: str | None, choices: tuple[str, ...], help: str = "") -> Any:
    """A dataclass field that holds one word of `choices`; derived from others where None."""
    return field(default=default, metadata={"kind": "choice", "choices": choices, "help": help})


def words(help: str = "") -> Any:
    """A dataclass field that holds a word or numbers, or None."""
    return field(default=None, metadata={"kind": "words", "help": help})


def number_format(help: str = "", *, blocks: bool = False) -> Any:
    """A dataclass field that names a number format, or None for the default. blocks: or a block format."""
    return field(default=None, metadata={"kind": "dtype", "help": help, "blocks": blocks})


class Operand(NamedTuple):
    """One operand or result as it lies in device memory, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes in device memory."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Operator:
    """Base of all operators: frozen dataclasses declared by `operator`; fields are checked on creation."""

    word: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    """One of `KINDS`, or nothing: see `operator`."""
    example: ClassVar[str] = ""
    """Keys with values that run, for the help."""
    abreast: ClassVar[bool] = False
    """Whether a kernel of it walks its matrices together, from their first line to their last, as rows and elements."""

    def __post_init__(self) -> None:
        """Checks every field; InputError names the key, the value and the rule."""
        check_fields(self.word, self)

    def __str__(self) -> str:
        """The operator as people type it, keys at their default left out: `gemm m=64 n=64 k=32 dtype=fp16`."""
        given = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return " ".join([self.word, *(f"{f.name}={getattr(self, f.name)}" for f in given)])

    @property
    def dtype(self) -> str | None:
        """Number format of the operands, None while it is open; operators on numbers have a field of this name."""
        return None

    def with_defaults(self, dtype: str) -> Self:
        """The same operator with every number format filled in; `dtype` is the machine's default."""
        raise NotImplementedError

    @property
    def macs(self) -> int:
        """Multiply-accumulates of matrix products that the result needs."""
        return 0

    @property
    def flops(self) -> int:
        """Arithmetic operations, two per multiply-accumulate."""
        return 2 * self.macs

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What is read, in the order of `inputs`; number formats must be known."""
        raise NotImplementedError

    @property
    def results(self) -> tuple[Operand, ...]:
        """What is written, in the order of `references`; number formats must be known."""
        raise NotImplementedError

    @property
    def operand_bytes(self) -> int:
        """Bytes of all operands and results, each touched once; number formats must be known."""
        return sum(operand.size_bytes for operand in (*self.operands, *self.results))

    def inputs(self, seed: int = 0, data: str = "normal") -> tuple[Array, ...]:
        """Operands as stored in device memory, repeatable from `seed`; `data` is one of `DATA_KINDS`."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return tuple(random_array(rng, operand.shape, operand.dtype, data) for operand in self.operands)

    def references(self, *operands: Array) -> tuple[Array, ...]:
        """The results in NumPy, each rounded to its format."""
        raise NotImplementedError

    def reference(self, *operands: Array) -> Array:
        """The first result in NumPy, rounded to its format."""
        return self.references(*operands)[0]

    def scales(self, *operands: Array) -> tuple[Array, ...]:
        """For each result, what its rounding errors are relative to: the size of what was added up; the result's own
        size where nothing cancels."""
        return tuple(np.abs(result) for result in self.references(*operands))

    def largest_error(self, results: Sequence[Array], *operands: Array) -> float:
        """Largest error of `results`, relative to `scales` and the smallest normal number; NaN gives infinity."""
        worst = 0.0
        expected = self.references(*operands)
        for result, right, scale, kind in zip(results, expected, self.scales(*operands), self.results, strict=True):
            got = np.asarray(result, dtype=np.float64).reshape(right.shape)
            with np.errstate(invalid="ignore"):
                error = np.where(got == right, 0.0, np.abs(got - right))
            smallest = 1.0 if is_integer(kind.dtype) else 2.0 ** FORMATS[kind.dtype].min_exponent
            relative = error / (scale.reshape(right.shape) + smallest)
            worst = max(worst, float(np.nan_to_num(relative, nan=np.inf).max()))
        return worst

    @property
    def tolerance(self) -> float:
        """`largest_error` that rounding alone can explain, whatever the order of summation."""
        raise NotImplementedError

    @property
    def chosen_dtype(self) -> str:
        """The number format; InputError while it is open."""
        dtype = self.dtype
        if dtype is None:
            raise InputError(f"{self}: dtype is not set, such as dtype=bf16")
        return dtype


@runtime_checkable
class OfFile(Protocol):
    """An operator that a file says: a program of one's own, a network."""

    @property
    def path(self) -> str | Path:
        """Where the file lies."""

    @property
    def sha256(self) -> str:
        """Hash of what is in it: a changed file is another workload."""


def rounding(dtype: str, sums: int = 0) -> float:
    """Relative error of one rounding to `dtype` after `sums` additions in fp32 and a few operations around them."""
    return epsilon(dtype) + (sums + 8) * epsilon("fp64" if dtype == "fp64" else "fp32")


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, data: str) -> Array:
    """An array of `shape` whose values are exact in `dtype`.

    data: `normal` (mean 0, deviation 1), `uniform` (-1 to 1), `integers` (-3 to 3: sums are exact in every format while
    k < 2**20) or `zeros`. Integer formats spread normal and uniform over their range, up to +-127; formats without
    a sign hold the sizes, bool what is above 0.
    """
    if data not in DATA_KINDS:
        near = hint(str(data), DATA_KINDS)
        raise InputError(f"data={data}: unknown kind of data, one of {', '.join(DATA_KINDS)}{near}")
    scale = 1.0
    if is_integer(dtype) and data in ("normal", "uniform"):
        scale = 32.0 if data == "normal" else 127.0
    match data:
        case "normal":
            values: Array = scale * rng.standard_normal(shape)
        case "uniform":
            values = scale * rng.uniform(-1.0, 1.0, shape)
        case "integers":
            values = rng.integers(-3, 4, shape)
        case _:
            values = np.zeros(shape)
    if dtype == "bool":
        values = values > 0
    return round_to(values if format_of(dtype).signed else np.abs(values), dtype)


def check_fields(word: str, declared: Any) -> None:
    """Checks every field of a dataclass whose fields are declared as those of operators; InputError names the key."""
    for f in fields(declared):
        _check(word, f.name, getattr(declared, f.name), f.default is None, f.metadata)


def _check(word: str, key: str, value: Any, optional: bool, meta: Mapping[str, Any]) -> None:
    """Checks one field of an operator by its kind; `optional`: None is allowed."""
    if value is None and optional:
        return
    match meta.get("kind"):
        case "extent" | "count" as kind:
            least, most = 1 if kind == "extent" else 0, meta.get("most", MAX_EXTENT)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise InputError(f"{word} {key}={value}: must be an integer from {least} to {most}")
        case "choice":
            if value not in meta["choices"]:
                near = hint(str(value), meta["choices"])
                raise InputError(f"{word} {key}={value}: must be one of {', '.join(meta['choices'])}{near}")
        case "dtype" if not (meta.get("blocks") and value in BLOCK_FORMATS):
            format_of(value, f"{word} {key}")
