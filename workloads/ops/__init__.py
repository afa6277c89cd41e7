"""Operators: what is computed, with the work that it needs and a NumPy reference. Nothing here knows a machine.

A new operator is a class in a module of this package, imported below; its fields are the keys of `workloads.parse`.
"""

import importlib
from collections.abc import Mapping

from arch.errors import InputError
from arch.near import hint
from workloads.ops.attention import Attention
from workloads.ops.attention_backward import AttentionBackward
from workloads.ops.base import DATA_KINDS, MAX_EXTENT, REGISTRY, Array, Operand, Operator, random_array
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


def operator_words() -> tuple[str, ...]:
    """Words of all operators, without the short words of single pointwise functions."""
    for module in GRAPHS.values():
        importlib.import_module(module)
    return tuple(REGISTRY)


def short_words(word: str) -> Mapping[str, str]:
    """Fields that a short word stands for: `exp` is `pointwise chain=exp`."""
    return {"chain": word} if word in FUNCTIONS else {}


def operator_class(word: str) -> type[Operator]:
    """The operator called `word`; InputError names the nearest if there is none."""
    if word in GRAPHS:
        importlib.import_module(GRAPHS[word])
    if word in REGISTRY:
        return REGISTRY[word]
    if word in FUNCTIONS:
        return Pointwise
    known = operator_words()
    raise InputError(f"unknown operator {word}, one of {', '.join(known)}{hint(word, [*known, *FUNCTIONS])}")
