"""Traces of PyTorch's profiler (Kineto) with shapes: which operator launched which kernels, and how long these took.

A trace is what `torch.profiler.profile(record_shapes=True)` exports as JSON, gzipped or not. A kernel belongs to the
operator whose `External id` it has, or that launched it by its `correlation`; else to the innermost one around its
launch. Operators within others count by themselves where their meaning is known, and else as the one around them.
"""

from __future__ import annotations

import ast
import bisect
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from workloads.graphs.aten import Aten, dtype_of
from workloads.graphs.meanings import Node, Tensor
from workloads.ops.base import MAX_EXTENT

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what takes a device's time."""
_FRACTIONS = ("fp32", "bf16", "fp16", "fp64", "fp8")
_NO_TRACE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError),
    zlib.error,
)
"""What is raised by a file that holds something else."""
MOST_BYTES = 512 << 20
"""Of a trace, packed or not."""
_NOT_THERE = "its launch is not in the trace"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_COLLECTIVES = {"allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
                "_allgather_base": "all_gather", "all_gather": "all_gather", "_reduce_scatter_base": "reduce_scatter",
                "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall", "all_to_allv": "alltoall"}  # fmt: skip
"""Operators that are collectives, by the names that profilers give to these."""


@dataclass(frozen=True)
class Call:
    """An operator's call with what it ran on the device.

    label: the operator, or of what belongs to none the kernel. kernels: their names, the longest first. measured_us: of
    all of them. nodes: what it means, the last one its result; none where that is not known (why). workload: an
    operator as text, of what is no node: a collective, a copy.
    """

    label: str
    shapes: str
    kernels: tuple[str, ...]
    measured_us: float
    nodes: tuple[Node, ...] = ()
    workload: str = ""
    why: str = ""


@dataclass(frozen=True)
class MeasuredTrace:
    """A trace. device: its name, where the trace says it. tensors: of the calls' nodes."""

    name: str
    device: str
    calls: tuple[Call, ...]
    tensors: Mapping[str, Tensor]

    @property
    def measured_us(self) -> float:
        """Device time of all calls."""
        return sum(call.measured_us for call in self.calls)


def read_trace(path: Path) -> MeasuredTrace:
    """A trace from a file. InputError for what is none, and for one without shapes or without a device."""
    what = f"trace {path}"
    content = reading.content(path, what, MOST_BYTES)
    try:
        if content[:2] == b"\x1f\x8b":
            content = reading.unpacked(gzip.GzipFile(fileobj=io.BytesIO(content)), what, MOST_BYTES)
        return _read(path.name, what, json.loads(content))
    except InputError:
        raise
    except _NO_TRACE as e:
        said = f"{type(e).__name__}: {e}"[:200]
        raise InputError(f"{what}: is no trace of PyTorch's profiler: {said}") from None


def _read(name: str, what: str, document: Any) -> MeasuredTrace:
    """A trace from its document. InputError for one without a device or shapes; another error for what is none."""
    events = document["traceEvents"] if isinstance(document, dict) else document
    found = _Events([event for event in events if isinstance(event, dict) and event.get("ph") == "X"])
    if not found.device:
        raise InputError(f"{what}: has no kernels of a device; profile with ProfilerActivity.CUDA")
    if not any("Input Dims" in _args(op) for op in found.operators):
        raise InputError(f"{what}: has no shapes; profile with record_shapes=True")
    properties = document.get("deviceProperties") if isinstance(document, dict) else None
    device = str(properties[0].get("name", "")) if properties else ""
    aten = Aten()
    calls = tuple(_call(aten, found, op, kernels) for op, kernels in found.launched())
    return MeasuredTrace(name, device, calls, aten.tensors)


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


@dataclass
class _Events:
    """A trace's events by what they are."""

    events: Sequence[Mapping[str, Any]]
    operators: list[Mapping[str, Any]] = field(init=False)
    device: list[Mapping[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Sorts the events."""
        by_time = sorted(self.events, key=lambda event: float(event.get("ts", 0)))
        self.operators = [event for event in by_time if event.get("cat") in ("cpu_op", "operator", "Operator")]
        self.device = [event for event in by_time if event.get("cat") in DEVICE]
        self._by_id = {_args(op)["External id"]: op for op in self.operators if "External id" in _args(op)}
        launches = [event for event in by_time if event.get("cat") in _LAUNCHES]
        self._launches = {_args(one)["correlation"]: one for one in launches if "correlation" in _args(one)}
        self._threads: dict[Any, list[Mapping[str, Any]]] = {}
        for op in self.operators:
            self._threads.setdefault((op.get("pid"), op.get("tid")), []).append(op)
        formats = Counter(dtype_of(kind) for op in self.operators for kind in _args(op).get("Input type", ())
                          if isinstance(kind, str))  # fmt: skip
        self.usual = max(_FRACTIONS, key=lambda dtype: formats[dtype])
        self._starts = {key: [float(op["ts"]) for op in ops] for key, ops in self._threads.items()}

    def launched(self) -> Iterator[tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]]:
        """Operators with what they ran on the device, in the order of their first kernels; None for what no operator
        launched."""
        groups: dict[Any, tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]] = {}
        for number, kernel in enumerate(self.device):
            op = self._launcher(kernel)
            groups.setdefault(id(op) if op else -number - 1, (op, []))[1].append(kernel)
        yield from groups.values()

    def around(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Operators around an event of the same thread, the innermost first."""
        key, time = (event.get("pid"), event.get("tid")), float(event["ts"])
        ops = self._threads.get(key, [])
        for number in range(bisect.bisect_right(self._starts.get(key, []), time) - 1, -1, -1):
            op = ops[number]
            if op is not event and float(op["ts"]) + float(op.get("dur", 0)) >= time + float(event.get("dur", 0)):
                yield op

    def launch_of(self, kernel: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The call of the runtime that launched a kernel."""
        return self._launches.get(_args(kernel).get("correlation"))

    def _launcher(self, kernel: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The operator that launched a kernel."""
        args, launch = _args(kernel), self.launch_of(kernel)
        for holder in (args, _args(launch) if launch else {}):
            if (op := self._by_id.get(holder.get("External id"))) is not None:
                return op
        return next(self.around(launch), None) if launch else None


def _call(aten: Aten, events: _Events, op: Mapping[str, Any] | None, kernels: Sequence[Mapping[str, Any]]) -> Call:
    """An operator's call, as the innermost one around its kernels whose meaning is known."""
    longest_first = sorted(kernels, key=lambda kernel: -float(kernel.get("dur", 0)))
    names = tuple(str(kernel.get("name", "")) for kernel in longest_first)
    measured = sum(float(kernel.get("dur", 0)) for kernel in kernels)
    own = _of_device(kernels[0])
    if own is not None and (len(kernels) == 1 or op is None or all(_of_device(kernel) for kernel in kernels)):
        label, workload, why = own
        return Call(label, "", names, measured, workload=workload, why=why)
    if op is None:
        launched = events.launch_of(kernels[0]) is not None
        return Call(names[0], "", names, measured, why="no operator launched it" if launched else _NOT_THERE)
    for one in (op, *events.around(op)):
        args = _args(one)
        if "Input Dims" not in args:
            continue
        nodes = aten.nodes(str(one["name"]), list(_arguments(aten, args, events.usual)))
        if nodes[-1].meaning:
            return Call(str(one["name"]), _shapes(args), names, measured, tuple(nodes))
    why = "no kernel of this meaning is known" if "Input Dims" in _args(op) else "its shapes were not recorded"
    return Call(str(op["name"]), _shapes(_args(op)), names, measured, why=why)


def _of_device(kernel: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """What a copy, a fill or a collective is by itself: its name, an operator, or why there is none."""
    name, args = str(kernel.get("name", "")), _args(kernel)
    if kernel.get("cat") == "gpu_memset":
        return (name, f"fill n={args['bytes']} dtype=int8", "") if args.get("bytes") else (name, "", "of unknown size")
    if kernel.get("cat") == "gpu_memcpy":
        size = args.get("bytes")
        if not size:
            return name, "", "of unknown size"
        if "HtoD" in name:
            return name, f"copy_h2d bytes={size}", ""
        return (name, f"copy n={size} dtype=int8", "") if "DtoD" in name else (name, "", "leaves the device")
    if not name.startswith("nccl"):
        return None
    word = _COLLECTIVES.get(str(args.get("Collective name", "")))
    size, gpus, dtype = (args.get(key) for key in ("In msg nelems", "Group size", "dtype"))
    elements = max(size or 0, args.get("Out msg nelems") or 0)
    if not (word and elements and gpus and dtype_of(dtype)):
        return name, "", "what it moves among how many devices was not recorded"
    return f"nccl:{word}", f"{word} gpus={gpus} elements={elements} dtype={dtype_of(dtype)}", ""


def _arguments(aten: Aten, args: Mapping[str, Any], usual: str) -> Iterator[Any]:
    """An operator's arguments: tensors by their shapes, what else was written down as Python writes it. usual: the
    format of most tensors."""
    dims = args["Input Dims"]
    kinds = args.get("Input type") or [""] * len(dims)
    strides = args.get("Input Strides") or [()] * len(dims)
    concrete = args.get("Concrete Inputs") or [""] * len(dims)
    for shape, kind, stride, text in zip(dims, kinds, strides, concrete, strict=False):
        if isinstance(kind, list):  # of a list of tensors
            yield [aten.fresh(_shape(one), dtype_of(of)) for one, of in zip(shape, kind, strict=False)]
        elif shape and isinstance(shape[0], list):  # whose formats the profiler leaves out
            yield [aten.fresh(_shape(one), usual) for one in shape]
        elif dtype_of(kind) and not text:
            yield aten.fresh(_shape(shape), dtype_of(kind), _shape(stride))
        else:
            yield _concrete(text)


def _shape(sizes: Any) -> tuple[int, ...]:
    """Sizes or strides; ValueError for what is none."""
    found = tuple(int(size) for size in sizes)
    if any(size < 0 or size > MAX_EXTENT**2 for size in found):
        raise ValueError(f"{list(found)} are no sizes")
    return found


def _concrete(text: Any) -> Any:
    """A number, a truth value or a list as the trace writes it; None for what it left out."""
    try:
        return ast.literal_eval(str(text))
    except (ValueError, SyntaxError):
        return str(text) or None


def _shapes(args: Mapping[str, Any]) -> str:
    """`4096x4096, 4096x1024`."""
    found = []
    for shape in args.get("Input Dims") or ():
        listed = shape if shape and isinstance(shape[0], list) else [shape] if shape else []
        found += ["x".join(map(str, one)) for one in listed]
    return ", ".join(found)
