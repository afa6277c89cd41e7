"""Models of PyTorch as graphs: what `torch.export.export` gives, or a module that is exported on the meta device.

An exported program is read by its nodes and their `meta["val"]` (shapes, formats, strides); no value of a weight is
looked at. What ATen's operators mean is said in `workloads.graphs.aten`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from arch.errors import InputError
from workloads.graphs.aten import Aten, dtype_of
from workloads.graphs.fusion import fused, turned
from workloads.graphs.graph import Graph, GraphOperator
from workloads.graphs.meanings import Model, Node, Tensor, written

_NO_WORK = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "empty", "empty_like",
            "new_empty", "sym_size", "_local_scalar_dense", "_set_grad_enabled", "empty_permuted")  # fmt: skip


@dataclass(frozen=True, eq=False)
class TorchModel(GraphOperator):
    """An exported program. text: how it was asked for. others: one of `OTHERS`; `refuse` where what has no kernel is
    to be refused."""

    word: ClassVar[str] = "torch"
    text: str
    model: Model
    others: str = "stream"
    _graphs: dict[bool, Graph] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it was asked for."""
        return self.text

    @property
    def dtype(self) -> str:
        """Number format of most of its tensors."""
        formats = Counter(tensor.dtype for tensor in self.model.tensors.values())
        return max(("bf16", "fp16", "fp32", "fp64", "fp8"), key=lambda dtype: formats[dtype])

    def with_defaults(self, dtype: str) -> Self:
        """The same; a model states its own number formats."""
        return self

    def graph(self, fused: bool) -> Graph:
        """The operators as PyTorch calls them eagerly, or with chains of them as Inductor fuses them."""
        if fused not in self._graphs:
            self._graphs[fused] = written(_fused(self.model) if fused else self.model, self.others)
        return self._graphs[fused]


_fused = fused


def is_exported(given: Any) -> bool:
    """Whether something is an exported program of PyTorch."""
    return hasattr(given, "graph_module") and hasattr(given, "graph_signature")


def read_exported(program: Any, text: str = "", *, strict: bool = False) -> TorchModel:
    """An exported program as a workload. text: what reports call it. strict: operators without a kernel are refused,
    rather than taking as long as their bytes. InputError for open dimensions, and for what is no such program."""
    if not is_exported(program):
        raise InputError(f"torch: {type(program).__name__} is no exported program; torch.export.export(model, args) is")
    reader = _Reader(text or "torch.export")
    outputs = reader.read(program.graph_module, ())
    if not reader.nodes:
        raise InputError(f"{reader.name}: calls no operator")
    kept = tuple(dict.fromkeys(name for name in outputs if isinstance(name, str)))
    model = turned(Model(reader.name, reader.aten.tensors, tuple(reader.nodes), kept))
    return TorchModel(reader.name, model, "refuse" if strict else "stream")


def exported_from(make: Callable[..., Any], arguments: Mapping[str, Any], text: str, *, strict: bool) -> TorchModel:
    """What somebody's function makes, exported on the meta device: a module with its arguments, or an exported program.

    make: gives `(module, args)`, `(module, args, kwargs)` or an exported program.
    """
    try:
        import torch
    except ImportError:
        raise InputError(f"{text}: needs PyTorch, its wheel for CPUs suffices: pip install 'tilewave[torch]'") from None
    with torch.device("meta"):
        made = make(**arguments)
    if not is_exported(made):
        module, args, *rest = made if isinstance(made, tuple | list) and len(made) in (2, 3) else (None, None)
        if not isinstance(module, torch.nn.Module) or not isinstance(args, tuple | list):
            raise InputError(f"{text}: must return (module, args), (module, args, kwargs) or an exported program")
        try:
            with warnings.catch_warnings(action="ignore"):  # of PyTorch, about itself
                made = torch.export.export(module.to("meta").eval(), tuple(args), *rest)
        except Exception as error:  # of whatever the model calls
            line = " ".join(str(error).split())[:300]
            raise InputError(f"{text}: cannot be exported: {type(error).__name__}: {line}") from None
    return read_exported(made, text, strict=strict)


class _Reader:
    """Reads the nodes of a graph and of those that it calls. values: by node, what it gives: the name of a tensor, or a
    list of such."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.aten = Aten()
        self.nodes: list[Node] = []
        self.values: dict[Any, Any] = {}

    def read(self, module: Any, arguments: Sequence[Any]) -> list[Any]:
        """A graph's nodes; what it gives. arguments: in the place of its placeholders; none: these are inputs."""
        given = iter(arguments)
        for node in module.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node] = next(given) if arguments else self._value(node)
                case "get_attr":
                    found = module
                    for part in str(node.target).split("."):
                        found = getattr(found, part)
                    self.values[node] = found if hasattr(found, "graph") else self._value(node, found)
                case "output":
                    return list(self._flat(node.args))
                case _:
                    self.values[node] = self._called(node)
        return []

    def _called(self, node: Any) -> Any:
        """What a call gives, once its nodes are written."""
        if getattr(node.target, "__name__", "") == "getitem":
            holder, number = node.args[:2]
            found = self.values.get(holder)
            return found[number] if isinstance(found, list) else found
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return self._higher(node)
        label, outputs = str(schema.name), self._value(node)
        if label.partition("::")[2] in _NO_WORK or outputs is None:
            return outputs
        names = list(self._flat([outputs]))
        self.nodes += self.aten.nodes(label, list(self._arguments(node, schema)), [self.aten.tensors[n] for n in names])
        return outputs

    def _higher(self, node: Any) -> Any:
        """A call of a graph (`torch.no_grad` within a model), or of Python on sizes."""
        for number, one in enumerate(node.args):
            body = self.values.get(one) if hasattr(one, "op") else None
            if hasattr(body, "graph"):
                return self.read(body, [self.values.get(other, other) for other in node.args[number + 1 :]])
        outputs = self._value(node)
        if outputs is not None:
            names = tuple(self._flat([outputs]))
            inputs = tuple(self._flat([self.values.get(one) for one in node.args if hasattr(one, "op")]))
            self.nodes.append(Node(str(getattr(node.target, "__name__", node.target)), "", inputs, names))
        return outputs

    def _value(self, node: Any, value: Any = None) -> Any:
        """What a node gives, as tensors of the model; None of what is none."""
        found = node.meta.get("val", value)
        if isinstance(found, list | tuple):
            return [self._tensor(f"{node.name}.{number}", one) for number, one in enumerate(found)]
        return self._tensor(str(node.name), found)

    def _tensor(self, name: str, value: Any) -> str | None:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return None
        try:
            shape = tuple(int(size) for size in value.shape)
        except Exception:  # of a size that is a symbol
            raise InputError(f"{self.name}: {name} is {list(value.shape)}; export it with fixed sizes") from None
        strides = tuple(int(step) for step in value.stride())
        dtype = dtype_of(value.dtype)
        if not dtype:
            raise InputError(f"{self.name}: {name} is of {value.dtype}, which is no number format here")
        return self.aten.take(Tensor(f"{name}{'_' * (name in self.aten.tensors)}", shape, dtype, strides)).name

    def _arguments(self, node: Any, schema: Any) -> Iterator[Any]:
        """A call's arguments in the order of its schema, tensors in the place of nodes."""
        for number, argument in enumerate(schema.arguments):
            given = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name, _default(argument))
            yield self._argument(given)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [self._argument(one) for one in given]
        if hasattr(given, "op"):
            found = self.values.get(given)
            return self.aten.tensors[found] if isinstance(found, str) else None
        return given if given is None or isinstance(given, int | float | str) else str(given)

    def _flat(self, found: Any) -> Iterator[str]:
        """Names of tensors in nested lists of names and nodes."""
        for one in found:
            one = self.values.get(one) if hasattr(one, "op") else one
            if isinstance(one, str):
                yield one
            elif isinstance(one, list | tuple):
                yield from self._flat(one)


def _default(argument: Any) -> Any:
    return argument.default_value if argument.has_default_value() else None
