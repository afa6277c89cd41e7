"""Reads rows of the silicon schema, says in which environment a source measured, and makes the operator of a row."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arch import reading
from arch.errors import InputError
from arch.near import hint
from workloads.accuracy.splits import Split, split
from workloads.ops import Attention, Conv2d, Gemm, LayerNorm, Moe, Operator
from workloads.parse import parse
from workloads.silicon.firesim import is_firesim, records
from workloads.silicon.measurements import measurement

T = TypeVar("T")

SILICON_CSV = Path(__file__).with_name("silicon.csv")
"""Operators of many sources."""

TABLES = (
    SILICON_CSV,
    *map(
        Path(__file__).with_name,
        (
            "aic_gemm.csv",
            "aic_attention.csv",
            "aic_moe.csv",
            "aic_collectives.csv",
            "l40s_collectives.csv",
            "locked_clock_attention.csv",
            "pipeweave_fp8.csv",
            "measured.csv",
            "gemmini_firesim.csv",
            "blackwell.csv",
            "unmeasured_boards.csv",
        ),
    ),
)
"""The reference rows that travel with the project, a file a family of sources."""

ENVIRONMENTS_YAML = Path(__file__).with_name("environments.yaml")

SCOPES = ("kernel", "event", "stream", "graph", "host")
L2_STATES = ("cold", "warm", "mixed", "unknown")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. time_us and overhead_us are in microseconds; `shape` is the operator's keys as text. kind: of
    the kernels that its source's environment says it ran; empty where `schedule` says it. overrides:
    figures of the machine that a row states beside its preset. core_mhz: the core clock at which it is simulated, MHz;
    0 where its source's environment decides. named: the machine by the row's own name, where its source's environment
    says another. stated: simulated with what its source states alone, without what was inferred."""

    machine: str
    op: str
    dtype: str
    shape: str
    schedule: str
    time_us: float
    scope: str
    overhead_us: float
    l2: str
    quality: str
    source: str
    url: str
    kind: str = ""
    overrides: tuple[str, ...] = ()
    core_mhz: float = 0.0
    named: str = ""
    stated: bool = False

    @property
    def environment(self) -> Environment:
        """How its source measured."""
        found = environment_of(self.source)
        return found.as_stated if self.stated else found

    @property
    def as_stated(self) -> Row:
        """The row without what was inferred of its source."""
        inferred = environment_of(self.source).inferred
        return dataclasses.replace(
            self,
            machine=self.named if self.named and "machine" in inferred else self.machine,
            kind="" if "schedules" in inferred else self.kind,
            stated=True,
        )

    @property
    def compared_us(self) -> float:
        """Microseconds that a simulated time is compared with: in scope `host` what is left without the overhead."""
        return self.time_us - self.overhead_us if self.scope == "host" else self.time_us

    @property
    def split(self) -> Split:
        """Whether figures may be calibrated on it, and who looks at it otherwise."""
        return split(self.shape, self.source)

    @property
    def cold_l2(self) -> bool:
        """Whether the L2 is flushed before the operator; `mixed` and `unknown` count as cold."""
        return self.l2 != "warm"

    def as_dict(self) -> dict[str, str | float]:
        """The row by column."""
        return asdict(self)

    def __str__(self) -> str:
        """For people: `h100-sxm gemm bf16 m=... (vendor, xla_matmul_table)`."""
        return f"{self.machine} {self.op} {self.dtype} {self.shape} ({self.schedule}, {self.source})"


_READ_FROM_ELSEWHERE = ("kind", "overrides", "core_mhz", "named", "stated")

COLUMNS = tuple(name for name in Row.__dataclass_fields__ if name not in _READ_FROM_ELSEWHERE)
"""Columns of the silicon schema."""

Data = Literal["normal", "uniform", "zeros", "half_zeros"]


class Environment(BaseModel):
    """How one source measured: what the simulator must assume beside the row itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured_as: str = Field(default="", alias="as")
    """Its kind of measurement (`measurements.yaml`), whose settings it has where it says nothing else."""
    inferred: tuple[str, ...] = ()
    """Settings that its source does not state, chosen by what its times show; it states the others."""
    clock: Literal["isolated", "sustained"]
    """`isolated`: idle before each kernel, only the fast regulator acts; `sustained`: back to back, power-limited."""
    machine: str = ""
    """The preset that its machine is, where its rows name another."""
    figures: tuple[str, ...] = ()
    """Figures of the machine that its source had set, such as `power.limit=400 W`."""
    locked_clock_mhz: float | None = Field(default=None, gt=0)
    """Core clock in MHz where the machine was locked to one."""
    statistic: str
    """What the source made of its repetitions."""
    flush: Literal["cold", "dirty", "turns", "uploaded"] = "cold"
    """What a cold row finds in the L2: nothing, the lines with which the benchmark overwrote it, what calls before it
    left, on operands of their own, or operands that the host has just copied to the device."""
    replays: int = Field(default=0, ge=0)
    """Replays of one CUDA graph between two events on an idle device, of which rows of scope `graph` are the mean; 0
    where a time in a graph is from kernel to kernel."""
    layers: int = Field(default=1, ge=1)
    """Operators with weights of their own that one replay runs after each other."""
    code: Literal["cold", "warm"] = "cold"
    """Whether instruction caches hold a kernel's code when it starts, as where it is repeated between small kernels."""
    schedules: Mapping[str, Mapping[str, str | tuple[str, ...]]] = Field(default_factory=dict)
    """By operator, or by this and the machine, kinds of kernels that its names of schedules stand for, where they are
    not those of this program.
    Several: of rows that differ in nothing but their time, in their order; of a row alone, the last."""
    scopes: Mapping[str, Literal["kernel", "stream", "graph"]] = Field(default_factory=dict)
    """By kind of kernel, the scope of its rows where it is not the one that they state."""
    host_call_us: Mapping[str, float] = Field(default_factory=dict)
    """By kind of kernel, or by operator and dtype: for how long the source's host is busy with a call, microseconds.
    `KIND multimem`: with a call that sums through the switch."""
    host_spread_us: Mapping[str, float] = Field(default_factory=dict)
    """By kind of kernel, the standard deviation of that among hosts: a collective waits for the slowest of them."""
    tiles: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """By operator and dtype, or by these and the machine, the tiles of the kernels that the source's library has, with
    whole sums; `128x128 split`: there are kernels that cut them, too."""
    pad_channels: Mapping[str, int] = Field(default_factory=dict)
    """By operator, dtype and machine, or the first two: the benchmark pads channels of X and Y to a multiple of so
    many."""
    pad_image: Mapping[str, int] = Field(default_factory=dict)
    """The same of rows and columns of X."""
    order: Literal["row", "column"] = "row"
    """Storage that `ta` and `tb` refer to; `column` is BLAS's own."""
    layout: Mapping[str, Literal["NN", "NT", "TN", "TT"]] = Field(default_factory=dict)
    """By dtype, `ta` and `tb` of products where the source's call fixes them and its rows do not say."""
    data: Data = "normal"
    """Operand data."""
    data_by_dtype: Mapping[str, Data] = Field(default_factory=dict)
    """Operand data by dtype where it differs."""
    acc: Mapping[str, str] = Field(default_factory=dict)
    """Accumulator by dtype where the source asked for another than the default."""
    kind: Mapping[str, str] = Field(default_factory=dict)
    """Kind of kernel by dtype, or by operator and dtype, where the source's library has one kind only."""
    raster: Mapping[str, Literal["grouped", "linear"]] = Field(default_factory=dict)
    """By kind of kernel, the order in which the source's library launches the tiles of a product where it is not
    grouped."""
    beta: Literal["0", "1"] = "0"
    """Whether its multiplies add to what C holds."""
    functions: Mapping[str, str] = Field(default_factory=dict)
    """By operator of its rows, the one that its call computes where it is a variant."""
    affine: Literal["0", "1"] = "1"
    """Whether its layer norms have weight and bias."""
    scale: Mapping[str, Literal["none", "block"]] = Field(default_factory=dict)
    """By dtype, the scales that operands of its products have."""
    formats: Mapping[str, str] = Field(default_factory=dict)
    """By dtype, the format in which its products take operands, where they take another."""
    page: int = Field(default=0, ge=0)
    """Keys of a page of the cache that its attention reads; 0 where they lie together."""
    append: tuple[str, ...] = ()
    """Versions, as its rows' urls name them, whose attention first writes the keys and values of the queries to the
    cache."""
    router: bool = False
    """Whether its layers of experts choose them by their router's logits."""
    without_gate: tuple[str, ...] = ()
    """`HIDDENxINTER` of the layers of experts whose model has no gate."""
    packed: bool = False
    """Whether what rounding lost of its power laws went to the smallest loads in a row, not to devices in turns."""
    left_out: str = ""
    """Why its rows cannot be compared; empty where they can."""
    evidence: str
    """Where each of these comes from."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Environment:
        """An environment as a file says it, with the settings of its kind of measurement."""
        kind = fields.get("as", "")
        found = cls(**{**(measurement(kind).settings if kind else {}), **fields})
        for name in found.inferred:
            if name not in fields:
                raise InputError(f"inferred: {name} is no setting of it{hint(name, fields)}")
        return found

    @property
    def as_stated(self) -> Environment:
        """Without what was inferred: with what its kind of measurement has instead."""
        own = {name: getattr(self, name) for name in self.model_fields_set if name not in self.inferred}
        kind = measurement(self.measured_as).settings if self.measured_as else {}
        return self.model_construct(**{**kind, **own})

    def kind_of(self, op: str, dtype: str) -> str:
        """Kind of kernel that the source's library has for an operator; `auto` where it has several."""
        return self.kind.get(f"{op} {dtype}", self.kind.get(dtype, "auto"))

    def tiles_of(self, row: Row) -> tuple[str, ...]:
        """Tiles that the source's library has for a row; empty where the source says nothing."""
        return _of_row(self.tiles, row, ())

    def padded(self, op: Conv2d, row: Row) -> Conv2d:
        """A convolution as the source's benchmark runs it."""
        channels, image = _of_row(self.pad_channels, row, 1), _of_row(self.pad_image, row, 1)
        steps = {"c": channels, "k": channels, "h": image, "w": image}
        sizes = {key: -(-getattr(op, key) // step) * step for key, step in steps.items()}
        padded = dataclasses.replace(op, **sizes, p=None, q=None)
        return op if padded == dataclasses.replace(op, p=None, q=None) else padded

    def data_of(self, row: Row) -> Data:
        """Operand data of a row of the source."""
        return _of_row(self.data_by_dtype, row, self.data_by_dtype.get(row.dtype, self.data))


def _of_row(table: Mapping[str, T], row: Row, default: T) -> T:
    """What a table says of a row by its operator, dtype and machine, or by the first two."""
    general = table.get(f"{row.op} {row.dtype}", default)
    return table.get(f"{row.op} {row.dtype} {row.machine}", general)


def packaged_rows() -> list[Row]:
    """The rows of all tables that travel with the project."""
    return [row for path in TABLES for row in read_rows(path)]


def read_rows(path: str | Path = SILICON_CSV, *, measured_clock: bool = False) -> list[Row]:
    """Rows of a CSV file of the silicon schema, in its order; InputError names the file, line and column.

    measured_clock: rows that have a clock in column `core_mhz` are simulated at it, so that the model of power plays no
    part in their errors.
    """
    try:
        reader = csv.DictReader(io.StringIO(reading.text(path)))
        header = list(reader.fieldnames or [])
        if is_firesim(header):
            lines = ((reader.line_num, record) for record in reader)
            return [Row(**fields) for fields in records(path, lines)]
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            near = hint(missing[0], header, "; {} looks like it")
            raise InputError(f"{path}: column {missing[0]} is missing{near}")
        if measured_clock and "core_mhz" not in header:
            raise InputError(f"{path}: column core_mhz is missing, which the measured clock is read from")
        return _with_kinds([_row(path, reader.line_num, record, measured_clock) for record in reader])
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read as a CSV file: {error}") from None


@functools.cache
def _environments(path: Path = ENVIRONMENTS_YAML) -> dict[str, Environment]:
    """All stated environments by source."""
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return {source: Environment.read(fields) for source, fields in table.items()}
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: {first['msg']}") from None


def environment_of(source: str) -> Environment:
    """The stated environment of a source; one that is not listed gets that of `default`."""
    table = _environments()
    return table.get(source, table["default"])


def operator_of(row: Row) -> Operator:
    """The operator that a row measured; InputError where this version does not have it."""
    environment = row.environment
    dtype = environment.formats.get(row.dtype, row.dtype)
    operator = parse(f"{environment.functions.get(row.op, row.op)} {row.shape} dtype={dtype}")
    if isinstance(operator, Gemm):
        layout = environment.layout.get(row.dtype, operator.ta + operator.tb)
        acc = environment.acc.get(row.dtype)
        scale = environment.scale.get(row.dtype, operator.scale)
        operator = dataclasses.replace(
            operator, ta=layout[0], tb=layout[1], acc=acc, beta=environment.beta, scale=scale
        )
        return operator.read_as_column_major() if environment.order == "column" else operator
    if isinstance(operator, Attention):
        return dataclasses.replace(operator, page=environment.page, append=_appends(environment, row))
    if isinstance(operator, Moe):
        gate = "0" if f"{operator.hidden}x{operator.inter}" in environment.without_gate else operator.gate
        law = operator.distribution.startswith("power_law") and environment.packed
        distribution = f"{operator.distribution}_packed" if law else operator.distribution
        router = "1" if environment.router else operator.router
        return dataclasses.replace(operator, gate=gate, router=router, distribution=distribution)
    if isinstance(operator, LayerNorm):
        return dataclasses.replace(operator, affine=environment.affine)
    return environment.padded(operator, row) if isinstance(operator, Conv2d) else operator


def _appends(environment: Environment, row: Row) -> str:
    return "1" if any(version in row.url for version in environment.append) else "0"


def _with_kinds(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with the kind of kernel that its source means by its schedule."""
    alike: dict[Row, list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault(dataclasses.replace(row, time_us=0.0, overhead_us=0.0), []).append(number)
    found = list(rows)
    for row, numbers in alike.items():
        schedules = environment_of(row.source).schedules
        meant = schedules.get(f"{row.op} {row.machine}", schedules.get(row.op, {})).get(row.schedule, ())
        kinds = (meant,) if isinstance(meant, str) else meant
        for place, number in enumerate(numbers):
            if kinds:
                kind = kinds[place if len(numbers) == len(kinds) else -1]
                found[number] = dataclasses.replace(rows[number], kind=kind)
    return found


def _row(path: str | Path, line: int, record: Mapping[str, str | None], measured_clock: bool) -> Row:
    """One checked row, with its measured clock if asked."""
    text: dict[str, Any] = {column: (record[column] or "").strip() for column in COLUMNS}
    time_us = _number(path, line, "time_us", text.pop("time_us"))
    overhead_us = _number(path, line, "overhead_us", text.pop("overhead_us") or "0")
    if not time_us > 0:
        raise InputError(f"{path}:{line}: time_us={time_us:g}: must be more than 0 microseconds")
    for column, allowed in (("scope", SCOPES), ("l2", L2_STATES)):
        if text[column] not in allowed:
            raise InputError(f"{path}:{line}: {column}={text[column]}: must be one of {', '.join(allowed)}")
    text["named"] = text["machine"]
    text["machine"] = environment_of(text["source"]).machine or text["machine"]
    clock = (record["core_mhz"] or "").strip() if measured_clock else ""
    core_mhz = _number(path, line, "core_mhz", clock, "MHz") if clock else 0.0
    return Row(time_us=time_us, overhead_us=overhead_us, core_mhz=core_mhz, **text)


def _number(path: str | Path, line: int, column: str, text: str, unit: str = "microseconds") -> float:
    """A finite number of a unit, at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{path}:{line}: {column}={text}: must be a number of {unit}, at least 0")
    return value
