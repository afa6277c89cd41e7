"""Reads SCALE-Sim's topology files: one layer a line, a convolution or a matrix product.

As SCALE-Sim reads them: the first line is a header whose text says nothing, every row ends in a comma and what stands
behind the last one is ignored, names that contain `DP` are depthwise. Unlike it, rows without the last comma and lines
of commas alone are read, and what it would misread is refused with line and column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arch.digits import whole_number
from arch.errors import InputError

CONV_COLUMNS = (
    "name", "input height", "input width", "filter height", "filter width", "channels", "filters", "stride",
)  # fmt: skip
GEMM_COLUMNS = ("name", "M", "N", "K")
FORMATS = {"conv": CONV_COLUMNS, "gemm": GEMM_COLUMNS}
"""Columns of both formats; a second stride may follow, of the columns."""

_TITLES = {
    "conv": (
        "ifmap height", "ifmap width", "filter height", "filter width", "channels", "num filter", "strides",
    ),
    "gemm": ("m", "n", "k"),
}  # fmt: skip
"""Titles of the columns behind the name, as SCALE-Sim's own files have them."""

MOST_LAYERS = 100_000
MOST_EXTENT = 2**31 - 1

_SPARSITY = re.compile(r"(\d+)\s*:\s*(\d+)")


@dataclass(frozen=True)
class ConvLayer:
    """A convolution of one image whose height and width include the padding. depthwise: each channel by itself, with
    `filters` filters each."""

    name: str
    height: int
    width: int
    filter_height: int
    filter_width: int
    channels: int
    filters: int
    stride_h: int
    stride_w: int
    depthwise: bool = False

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the result: a last window that hangs over the edge counts, as in SCALE-Sim."""
        sides = ((self.height, self.filter_height, self.stride_h), (self.width, self.filter_width, self.stride_w))
        rows, columns = (-(-(size - window) // stride) + 1 for size, window, stride in sides)
        return rows, columns

    @property
    def hangs_over(self) -> bool:
        """Whether the last window does."""
        return self.reach != (self.height, self.width)

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of the input that the windows cover: more than there are where the last one hangs over."""
        rows, columns = self.output
        return (rows - 1) * self.stride_h + self.filter_height, (columns - 1) * self.stride_w + self.filter_width


@dataclass(frozen=True)
class GemmLayer:
    """C[m, n] = A[m, k] B[k, n]."""

    name: str
    m: int
    n: int
    k: int


Layer = ConvLayer | GemmLayer


def read_topology(text: str, what: str, form: str = "auto") -> tuple[Layer, ...]:
    """The layers of a file's text. what: its name, for errors. form: `conv`, `gemm`, or `auto`: as the header says, or
    the number of values in the first row. InputError names line and column of what is wrong."""
    numbered = enumerate(text.splitlines(), 1)
    lines = [(number, line) for number, line in numbered if line.strip(" \t,;") and _fields(line)]
    if not lines:
        raise InputError(f"{what}: is empty; the first line is a header, such as Layer, M, N, K,")
    (first, header), *rows = lines
    fields = _fields(header)
    if len(fields) > 1 and whole_number(fields[1]) is not None:
        raise InputError(
            f"{what} line {first}: is a layer, but the first line is a header that is never read; put one above it, "
            "such as Layer, M, N, K,"
        )
    if not rows:
        raise InputError(f"{what}: has no layer below its header")
    if len(rows) > MOST_LAYERS:
        raise InputError(f"{what}: has {len(rows)} layers, at most {MOST_LAYERS}")
    if form == "auto":
        form = _form(fields, _fields(rows[0][1]))
    _refuse_order(what, first, fields, _TITLES[form])
    make = _gemm if form == "gemm" else _conv
    return tuple(make(f"{what} line {number}", f"layer {i}", _fields(line)) for i, (number, line) in enumerate(rows))


def _fields(line: str) -> list[str]:
    """The pieces of a row up to a comment; empty ones at the end are left out."""
    fields = [field.strip().strip("\"'").strip() for field in line.split(",")]
    for number, field in enumerate(fields):
        if field.startswith("#") and number:
            fields = fields[:number]
            break
    while fields and not fields[-1]:
        fields.pop()
    return fields


def _form(header: list[str], row: list[str]) -> str:
    """Which format a file has."""
    names = [name.lower() for name in header[1:4]]
    if sorted(names) == ["k", "m", "n"]:
        return "gemm"
    if any("ifmap" in name or "filter" in name for name in (field.lower() for field in header)):
        return "conv"
    values = [field for field in row[1:] if whole_number(field) is not None]
    return "gemm" if len(values) <= 3 else "conv"


def _refuse_order(what: str, line: int, header: list[str], titles: tuple[str, ...]) -> None:
    """InputError for a header that promises another order than that in which columns are read."""
    names = [name.lower() for name in header[1 : len(titles) + 1]]
    if any(name in titles and titles.index(name) != number for number, name in enumerate(names)):
        raise InputError(
            f"{what} line {line}: the header says {', '.join(header[1 : len(titles) + 1])}, but columns are "
            f"{', '.join(titles)} whatever it says; reorder them, or name them as they are read"
        )


def _conv(where: str, unnamed: str, fields: list[str]) -> ConvLayer:
    name = fields[0] or unnamed
    columns = (*CONV_COLUMNS, "stride of columns") if _second_stride(fields) else CONV_COLUMNS
    values = _values(where, columns, fields)
    height, width, filter_height, filter_width, channels, filters, stride, *other = values
    _refuse_sparsity(where, fields, len(columns))
    for side, size, window, column in (("height", height, filter_height, 4), ("width", width, filter_width, 5)):
        if window > size:
            raise InputError(
                f"{where} column {column} (filter {side}): {window} exceeds the input {side} {size}; padding is added "
                "to the input by hand"
            )
    return ConvLayer(
        name, height, width, filter_height, filter_width, channels, filters, stride, other[0] if other else stride,
        depthwise="DP" in name,
    )  # fmt: skip


def _gemm(where: str, unnamed: str, fields: list[str]) -> GemmLayer:
    m, n, k = _values(where, GEMM_COLUMNS, fields)
    _refuse_sparsity(where, fields, len(GEMM_COLUMNS))
    return GemmLayer(fields[0] or unnamed, m, n, k)


def _second_stride(fields: list[str]) -> bool:
    return len(fields) > len(CONV_COLUMNS) and whole_number(fields[len(CONV_COLUMNS)]) is not None


def _values(where: str, columns: tuple[str, ...], fields: list[str]) -> list[int]:
    """The numbers of a row behind its name."""
    if len(fields) < len(columns):
        raise InputError(
            f"{where}: has {len(fields)} columns, needed are {len(columns)}: {', '.join(columns)}; "
            f"missing: {', '.join(columns[len(fields) :])}"
        )
    found = []
    for number, (column, text) in enumerate(zip(columns, fields, strict=False), 1):
        if number == 1:
            continue
        value = whole_number(text)
        if not value or value > MOST_EXTENT:
            raise InputError(
                f"{where} column {number} ({column}): {text[:40]!r} must be a whole number from 1 to {MOST_EXTENT}"
            )
        found.append(value)
    for number, text in enumerate(fields[len(columns) :], len(columns) + 1):
        if whole_number(text) is not None:
            raise InputError(
                f"{where} column {number}: {text[:40]} stands for nothing; read are {', '.join(columns)}, a batch is "
                "part of M, or batch= of convolutions"
            )
    return found


def _refuse_sparsity(where: str, fields: list[str], column: int) -> None:
    """InputError for weights that are not dense."""
    match = _SPARSITY.fullmatch(fields[column]) if len(fields) > column else None
    if match and match[1] != match[2]:
        raise InputError(
            f"{where} column {column + 1} (sparsity): {fields[column]} is not modelled; 1:1, or nothing, is dense"
        )
