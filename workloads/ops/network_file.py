"""A network from a file: its layers one after the other, each an operator of its own."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from arch.errors import InputError
from arch.near import hint
from workloads import networks
from workloads.networks.topology import FORMATS, ConvLayer, GemmLayer, Layer, read_topology
from workloads.ops.base import Operator, choice, extent, number_format
from workloads.ops.contractions import Conv2d
from workloads.ops.gemm import Gemm

SHIPPED = Path(networks.__file__).parent / "shipped"

_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class NetworkLayer:
    """A layer and the operator that computes it. parts: as many equal ones does SCALE-Sim make of it (channels of a
    depthwise layer)."""

    name: str
    op: Operator
    parts: int = 1


@dataclass(frozen=True)
class NetworkFile(Operator):
    """The layers of a file, one after the other.

    Nothing joins them: such files say shapes, not whose result a layer reads.
    """

    word: ClassVar[str] = "network"
    example: ClassVar[str] = "file=gemm_vit_s"

    file: str = field(metadata={"kind": "text", "help": "a topology file of SCALE-Sim, or a network that is shipped"})
    format: str = choice("auto", ("auto", *FORMATS), help="of the file; auto: as its header says")
    batch: int = extent(1, help="images, where layers are convolutions")
    dtype: str | None = number_format("of all tensors; default: the machine's")
    out: str | None = number_format("of the layers' results; default: the input's")

    def __post_init__(self) -> None:
        """Reads the file."""
        super().__post_init__()
        products = any(isinstance(layer, GemmLayer) for layer in self._read)
        if self.batch > 1 and products:
            raise InputError(f"network batch={self.batch}: {self.file} has matrix products; a batch is part of their M")

    @property
    def path(self) -> Path:
        """Where the file lies: as it was typed, or among those that are shipped."""
        given = Path(self.file)
        shipped = SHIPPED / f"{given.name.removesuffix('.csv')}.csv"
        return shipped if not given.exists() and given.name == self.file and shipped.is_file() else given

    @property
    def sha256(self) -> str:
        """Hash of the file: a changed network is another workload to every store and lock."""
        return hashlib.sha256(self._content).hexdigest()

    @cached_property
    def _content(self) -> bytes:
        try:
            if not self.path.is_file():
                raise FileNotFoundError(2, "no such file")
            with self.path.open("rb") as file:
                found = file.read(_MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            names = shipped_networks()
            reason = getattr(error, "strerror", None) or error
            near = hint(Path(self.file).stem, names)
            shipped = f"shipped are {', '.join(names)}{near}"
            raise InputError(f"network file={self.file}: cannot be read: {reason}; {shipped}") from None
        if len(found) > _MOST_BYTES:
            raise InputError(f"network file={self.file}: has more than {_MOST_BYTES >> 20} MiB")
        return found

    @cached_property
    def _read(self) -> tuple[Layer, ...]:
        try:
            text = self._content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"network file={self.file}: is no text: byte {error.start} is not UTF-8") from None
        return read_topology(text, f"network file={self.file}", self.format)

    @cached_property
    def layers(self) -> tuple[NetworkLayer, ...]:
        """The layers with their operators."""
        return tuple(
            NetworkLayer(
                layer.name,
                self._operator(layer),
                layer.channels if isinstance(layer, ConvLayer) and layer.depthwise else 1,
            )
            for layer in self._read
        )

    def _operator(self, layer: Layer) -> Operator:
        if isinstance(layer, GemmLayer):
            return Gemm(m=layer.m, n=layer.n, k=layer.k, dtype=self.dtype, out=self.out)
        height, width = layer.reach
        groups = layer.channels if layer.depthwise else 1
        conv = Conv2d(
            n=self.batch, c=layer.channels, h=height, w=width, k=layer.filters * groups, r=layer.filter_height,
            s=layer.filter_width, stride=layer.stride_h, groups=groups,
            stride_w=None if layer.stride_w == layer.stride_h else layer.stride_w, dtype=self.dtype, out=self.out,
        )  # fmt: skip
        return conv.as_gemm() if _is_product(conv) else conv

    def with_defaults(self, dtype: str) -> Self:
        """With the number formats filled in; results have the input's, as the next layer reads them."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or chosen)

    @property
    def macs(self) -> int:
        """Of all layers."""
        return sum(layer.op.macs for layer in self.layers)

    @property
    def operand_bytes(self) -> int:
        """Of all layers, each by itself."""
        return sum(layer.op.operand_bytes for layer in self.layers)

    @property
    def hangs_over(self) -> tuple[str, ...]:
        """Names of layers whose last window hangs over the edge of the image."""
        return tuple(
            layer.name
            for layer in self._read
            if isinstance(layer, ConvLayer) and layer.reach != (layer.height, layer.width)
        )


def shipped_networks() -> list[str]:
    """Names of the networks that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.csv"))


def _is_product(conv: Conv2d) -> bool:
    """Whether patches are rows of X as they lie in memory, side by side: the convolution is a product already."""
    if conv.groups > 1:
        return False
    (rows, columns), (down, right) = conv.output, conv.strides
    single = conv.r == conv.s == 1 and (down == 1 or rows == 1) and (right == 1 or columns == 1)
    whole_rows = conv.s == conv.w and (rows == 1 or conv.r == down)
    return single or whole_rows
