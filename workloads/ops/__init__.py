"""Operators: what is computed, with the work that it needs and a NumPy reference. Nothing here knows a machine.

A new operator is a class in a module of this package, imported below; its fields are the keys of `workloads.parse`.
"""

import difflib
from collections.abc import Mapping

from arch.errors import InputError
from workloads.ops.attention import Attention
from workloads.ops.base import DATA_KINDS, MAX_EXTENT, REGISTRY, Array, Operand, Operator, random_array
from workloads.ops.contractions import Conv2d, Matvec
from workloads.ops.gemm import Gemm
from workloads.ops.movement import AllReduce, CopyH2D, Sum, Transpose
from workloads.ops.pointwise import FUNCTIONS, Pointwise
from workloads.ops.rowwise import LayerNorm, LayerNormBackward, RmsNorm, RowOperator, Softmax, SoftmaxBackward

__all__ = [
    "DATA_KINDS", "FUNCTIONS", "MAX_EXTENT", "PLANNED", "AllReduce", "Array", "Attention", "Conv2d", "CopyH2D", "Gemm",
    "LayerNorm", "LayerNormBackward", "Matvec", "Operand", "Operator", "Pointwise", "RmsNorm", "RowOperator", "Softmax",
    "SoftmaxBackward", "Sum", "Transpose", "operator_class", "operator_words", "random_array", "short_words",
]  # fmt: skip

PLANNED = ("bert_layer", "llama")
"""Graphs of operators, which later versions will take; this one answers that they are not available."""


def operator_words() -> tuple[str, ...]:
    """Words of all operators, without the short words of single pointwise functions."""
    return tuple(REGISTRY)


def short_words(word: str) -> Mapping[str, str]:
    """Fields that a short word stands for: `exp` is `pointwise chain=exp`."""
    return {"chain": word} if word in FUNCTIONS else {}


def operator_class(word: str) -> type[Operator]:
    """The operator called `word`; InputError says whether it is unknown (nearest name) or not in this version."""
    if word in REGISTRY:
        return REGISTRY[word]
    if word in FUNCTIONS:
        return Pointwise
    if word in PLANNED:
        raise InputError(f"operator {word} is not available in this version; available: {', '.join(REGISTRY)}")
    near = difflib.get_close_matches(word, [*REGISTRY, *FUNCTIONS, *PLANNED], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"unknown operator {word}, one of {', '.join(REGISTRY)}{hint}")
