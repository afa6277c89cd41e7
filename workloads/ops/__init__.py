"""Operators: what is computed, with the work that it needs and a NumPy reference. Nothing here knows a machine.

A new operator is a class in a module of this package, whose name and word stand in the tables below; its fields are the
keys of `workloads.parse`. A module is imported when an operator of it is asked for, so that a run pays for its own.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.near import hint
from workloads.ops.base import DATA_KINDS, MAX_EXTENT, REGISTRY, Array, Operand, Operator, random_array

if TYPE_CHECKING:
    from workloads.ops.attention import Attention
    from workloads.ops.attention_backward import AttentionBackward
    from workloads.ops.collectives import AllGather, AllReduceGpus, AllToAll, Collective, ReduceScatter
    from workloads.ops.contractions import Conv2d, Matvec
    from workloads.ops.gemm import Gemm
    from workloads.ops.gradients import Conv2dDgrad, Conv2dWgrad
    from workloads.ops.grouped_gemm import GroupedGemm
    from workloads.ops.inference import Inference
    from workloads.ops.lookups import Gather, KvWrite
    from workloads.ops.moe import Moe
    from workloads.ops.movement import AllReduce, CopyH2D, Sum, Transpose
    from workloads.ops.network_file import NetworkFile, NetworkLayer, shipped_networks
    from workloads.ops.pointwise import FUNCTIONS, Pointwise
    from workloads.ops.rowwise import LayerNorm, LayerNormBackward, RmsNorm, RowOperator, Softmax, SoftmaxBackward

_NAMES = {
    "attention": ("Attention",),
    "attention_backward": ("AttentionBackward",),
    "collectives": ("AllGather", "AllReduceGpus", "AllToAll", "Collective", "ReduceScatter"),
    "contractions": ("Conv2d", "Matvec"),
    "gemm": ("Gemm",),
    "gradients": ("Conv2dDgrad", "Conv2dWgrad"),
    "grouped_gemm": ("GroupedGemm",),
    "inference": ("Inference",),
    "lookups": ("Gather", "KvWrite"),
    "moe": ("Moe",),
    "movement": ("AllReduce", "CopyH2D", "Sum", "Transpose"),
    "network_file": ("NetworkFile", "NetworkLayer", "shipped_networks"),
    "pointwise": ("FUNCTIONS", "Pointwise"),
    "rowwise": ("LayerNorm", "LayerNormBackward", "RmsNorm", "RowOperator", "Softmax", "SoftmaxBackward"),
}
"""By module, names that are loaded on first use."""

_WORDS = {
    "attention": ("attention",),
    "attention_backward": ("attention_backward",),
    "collectives": ("all_reduce", "reduce_scatter", "all_gather", "alltoall"),
    "pointwise": ("pointwise",),
    "gemm": ("gemm",),
    "contractions": ("conv2d", "matvec"),
    "gradients": ("conv2d_dgrad", "conv2d_wgrad"),
    "grouped_gemm": ("grouped_gemm",),
    "inference": ("inference",),
    "lookups": ("gather", "kv_write"),
    "moe": ("moe",),
    "movement": ("sum", "transpose", "copy_h2d", "allreduce"),
    "network_file": ("network",),
    "rowwise": ("softmax", "softmax_backward", "layernorm", "layernorm_backward", "rmsnorm"),
}
"""By module, words of the operators that its import registers, in the order in which they are listed."""

_HOMES, _MODULES = ({name: module for module, names in table.items() for name in names} for table in (_NAMES, _WORDS))

__all__ = [
    "DATA_KINDS", "FUNCTIONS", "GRAPHS", "MAX_EXTENT", "AllGather", "AllReduce", "AllReduceGpus", "AllToAll",
    "Array", "Attention", "AttentionBackward", "Collective", "Conv2d", "Conv2dDgrad", "Conv2dWgrad", "CopyH2D",
    "Gather", "Gemm", "GroupedGemm", "Inference", "KvWrite", "LayerNorm", "LayerNormBackward", "Matvec", "Moe",
    "NetworkFile", "NetworkLayer", "Operand", "Operator", "Pointwise", "ReduceScatter", "RmsNorm", "RowOperator",
    "Softmax", "SoftmaxBackward", "Sum", "Transpose",
    "operator_class", "operator_words", "random_array", "shipped_networks", "short_words",
]  # fmt: skip

GRAPHS = {"bert_layer": "workloads.graphs.bert", "llama": "workloads.graphs.llama"}
"""Words of graphs of operators, and the module whose import registers each."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def operator_words() -> tuple[str, ...]:
    """Words of all operators, without the short words of single pointwise functions."""
    return (*_MODULES, *GRAPHS)


def short_words(word: str) -> Mapping[str, str]:
    """Fields that a short word stands for: `exp` is `pointwise chain=exp`."""
    return {"chain": word} if word in _functions() else {}


def operator_class(word: str) -> type[Operator]:
    """The operator called `word`; InputError names the nearest if there is none."""
    if word in GRAPHS:
        importlib.import_module(GRAPHS[word])
    elif word in _MODULES:
        importlib.import_module(f"{__name__}.{_MODULES[word]}")
    elif word in _functions():
        word = "pointwise"
    if word in REGISTRY:
        return REGISTRY[word]
    known = operator_words()
    raise InputError(f"unknown operator {word}, one of {', '.join(known)}{hint(word, [*known, *_functions()])}")


def _functions() -> Mapping[str, Any]:
    """Functions of `pointwise`, whose names are words by themselves."""
    from workloads.ops.pointwise import FUNCTIONS

    return FUNCTIONS
