"""A network from a file: its layers one after the other, each an operator of its own."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os.path import exists, isfile
from pathlib import Path
from typing import Any, ClassVar, Self

from arch import reading
from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.near import hint
from workloads import networks
from workloads.graphs.graph import OTHERS, Graph, GraphOperator, Step, Unread, counted
from workloads.graphs.meanings import is_product, layer_operator, pair
from workloads.networks.onnx_model import read_onnx
from workloads.networks.onnx_operators import ModelConv, ModelProduct
from workloads.networks.topology import FORMATS, ConvLayer, GemmLayer, Layer, read_topology
from workloads.ops.base import Operator, choice, extent, number_format, operator
from workloads.ops.contractions import Conv2d
from workloads.ops.gemm import Gemm

SHIPPED = Path(networks.__file__).parent / "shipped"


@dataclass(frozen=True)
class NetworkLayer:
    """A layer and the operator that computes it."""

    name: str
    op: Operator


@dataclass(frozen=True)
class _Contents:
    """What a file says; the fields are those of `NetworkFile`."""

    sha256: str
    layers: tuple[NetworkLayer, ...]
    others: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    unsized: int = 0
    hangs_over: tuple[str, ...] = ()


def given_or_shipped(name: str, suffix: str) -> Path:
    """A file as it was typed, or, where there is none of that name, the one of the suffix that is shipped."""
    given = Path(name)
    shipped = SHIPPED / f"{given.name.removesuffix(suffix)}{suffix}"
    return shipped if not exists(given) and given.name == name and isfile(shipped) else given


@operator("network", example="file=gemm_vit_s")
@dataclass(frozen=True)
class NetworkFile(GraphOperator):
    """The layers of a file, one after the other.

    Nothing joins them: such files say shapes, not whose result a layer reads.
    """

    joined: ClassVar[bool] = False
    file: str = field(
        metadata={"kind": "text", "help": "a topology of SCALE-Sim, an ONNX model, or a network that is shipped"}
    )
    format: str = choice("auto", ("auto", *FORMATS, "onnx"), help="of the file; auto: as its name and its header say")
    batch: int = extent(1, help="images, where layers are convolutions or a model leaves it open")
    others: str = choice("count", OTHERS, help="operators of a model that are no products")
    dtype: str | None = number_format("of all tensors; default: the machine's")
    out: str | None = number_format("of the layers' results; default: the input's")

    def __post_init__(self) -> None:
        """Reads the file."""
        super().__post_init__()
        self._read  # noqa: B018 - what is wrong with the file is said before anything runs

    @property
    def path(self) -> Path:
        """Where the file lies: as it was typed, or among those that are shipped."""
        return given_or_shipped(self.file, ".csv")

    @property
    def sha256(self) -> str:
        """Hash of the file: a changed network is another workload to every store and lock."""
        return self._read.sha256

    @property
    def layers(self) -> tuple[NetworkLayer, ...]:
        """The layers with their operators."""
        return self._read.layers

    @property
    def others_left_out(self) -> Mapping[str, int]:
        """Operators of a model that are no layers, and how many of each."""
        return self._read.others

    @property
    def hangs_over(self) -> tuple[str, ...]:
        """Names of layers whose last window hangs over the edge of the image."""
        return self._read.hangs_over

    @cached_property
    def _read(self) -> _Contents:
        """What the file says. Its bytes, which may be weights, are not kept."""
        content, what = self._content(), f"network file={self.file}"
        sha256 = hashlib.sha256(content).hexdigest()
        if self.format == "onnx" or (self.format == "auto" and self.path.suffix == ".onnx"):
            model = read_onnx(content, what, self.batch)
            if model.others and self.others == "refuse":
                raise InputError(f"{what} others=refuse: has {counted(model.others)}, which are no layers")
            if model.unknown and self.others == "host":
                raise InputError(
                    f"{model.unknown[0]}: its shapes cannot be inferred, others=host needs them; others=count"
                )
            operators = {layer: self._of_model(what, layer) for layer in dict.fromkeys(model.layers)}
            found = tuple(NetworkLayer(layer.name, operators[layer]) for layer in model.layers)
            return _Contents(sha256, found, model.others, model.elements, len(model.unknown))
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{what}: is no text: byte {error.start} is not UTF-8") from None
        layers = read_topology(text, what, self.format)
        if self.batch > 1 and any(isinstance(layer, GemmLayer) for layer in layers):
            raise InputError(f"network batch={self.batch}: {self.file} has matrix products; a batch is part of their M")
        return _Contents(
            sha256,
            tuple(NetworkLayer(layer.name, self._of_topology(layer)) for layer in layers),
            hangs_over=tuple(layer.name for layer in layers if isinstance(layer, ConvLayer) and layer.hangs_over),
        )

    def _content(self) -> bytes:
        most = reading.MOST_BINARY_BYTES if self.path.suffix == ".onnx" else reading.MOST_BYTES
        try:
            return reading.content(self.path, f"network file={self.file}", most)
        except InputError as error:
            names = shipped_networks()
            shipped = f"shipped are {', '.join(names)}{hint(Path(self.file).stem, names)}"
            raise InputError(f"{error}; {shipped}") from None

    def _of_topology(self, layer: Layer) -> Operator:
        if isinstance(layer, GemmLayer):
            return self._product(m=layer.m, n=layer.n, k=layer.k)
        height, width = layer.reach
        groups = layer.channels if layer.depthwise else 1
        return self._convolution(
            n=self.batch, c=layer.channels, h=height, w=width, k=layer.filters * groups, r=layer.filter_height,
            s=layer.filter_width, groups=groups, **pair("stride", layer.stride_h, layer.stride_w),
        )  # fmt: skip

    def _of_model(self, what: str, layer: ModelConv | ModelProduct) -> Operator:
        try:
            return layer_operator(layer, self.dtype, self.out)
        except InputError as error:
            raise InputError(f"{what} layer {layer.name}: {error}") from None

    def _product(self, **sizes: Any) -> Gemm:
        return Gemm(**sizes, dtype=self.dtype, out=self.out)

    def _convolution(self, **sizes: Any) -> Operator:
        conv = Conv2d(**sizes, dtype=self.dtype, out=self.out)
        return conv.as_gemm() if is_product(conv) else conv

    def with_defaults(self, dtype: str) -> Self:
        """With the number formats filled in; results have the input's, as the next layer reads them."""
        chosen = self.dtype or dtype
        return dataclasses.replace(self, dtype=chosen, out=self.out or chosen)

    def graph(self, fused: bool = False) -> Graph:
        """The layers as steps without operands; number formats must be known."""
        found, names = self._read, self.hangs_over
        others = Unread(found.others, found.elements, DTYPE_BYTES[self.out] if self.out else 1, found.unsized)
        notes = []
        if names:
            over = ", ".join(names[:3]) + (" and others" if names[3:] else "")
            notes.append(
                f"The last window of {over} hangs over the edge of the image and counts, as in SCALE-Sim: the image "
                "is that much larger."
            )
        steps = tuple(Step(layer.name, layer.op, (), ()) for layer in self.layers)
        return Graph(str(self), steps, others=self.others, joined=False, unread=others, notes=tuple(notes))


def shipped_networks() -> list[str]:
    """Names of the networks that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.csv"))
