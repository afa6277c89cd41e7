"""Instructions of the elementwise functions, for one element of a thread, as compilers emit them.

Counts are those of CUDA kernels compiled for sm_80 with nvcc 13.0, without fast math, along the path that ordinary
arguments take (sm_75 and sm_90 differ by one or two instructions in four elements): loads, stores and addresses left
out, moves, branches and predicates as `iadd`.
"""

from __future__ import annotations

from arch.dtypes import FORMATS, is_integer
from workloads.gpu.pointwise.lanes import Cost, scaled, total

DIVIDE = {"rcp.fp32": 1.0, "ffma.fp32": 6.0, "iadd.int32": 4.0}
"""IEEE division: reciprocal, Newton steps, range test and branch (the part of silu that is not its exponential)."""
EXPONENTIAL = {"ffma.fp32": 4.0, "fadd.fp32": 1.0, "fmul.fp32": 1.0, "ex2.fp32": 1.0, "shf.int32": 1.0}
_LOGARITHM = {
    "ffma.fp32": 12.0, "setp.int32": 4.0, "fmul.fp32": 2.0, "iadd.int32": 5.0, "fadd.fp32": 1.0, "cvt.int32": 1.0,
}  # fmt: skip
_SINE = {
    "ffma.fp32": 9.0, "setp.int32": 4.0, "imad.int32": 2.5, "fmul.fp32": 2.0, "lop.int32": 2.0, "iadd.int32": 3.0,
    "cvt.int32": 2.0,
}  # fmt: skip
_SIGMOID = {
    "ffma.fp32": 7.0, "fadd.fp32": 2.0, "iadd.int32": 6.0, "ex2.fp32": 1.0, "rcp.fp32": 1.0, "shf.int32": 1.0,
}  # fmt: skip
_GELU = {
    "setp.int32": 10.0, "ffma.fp32": 7.0, "fmul.fp32": 4.0, "fadd.fp32": 2.0, "lop.int32": 1.0, "ex2.fp32": 1.0,
    "iadd.int32": 2.0,
}  # fmt: skip
_GELU_TANH = {
    "ffma.fp32": 7.0, "fmul.fp32": 7.0, "setp.int32": 3.0, "fadd.fp32": 2.0, "lop.int32": 1.0, "ex2.fp32": 1.0,
    "rcp.fp32": 1.0,
}  # fmt: skip
_TANH = {
    "ffma.fp32": 6.0, "setp.int32": 3.0, "fmul.fp32": 2.0, "fadd.fp32": 1.0, "lop.int32": 1.0, "ex2.fp32": 1.0,
    "rcp.fp32": 1.0,
}  # fmt: skip
_PHILOX = {"imad.int32": 5.0, "lop.int32": 5.0, "iadd.int32": 3.0, "fmul.fp32": 1.0}
"""Philox4x32-10, by arithmetic: ten rounds of two wide multiplies and four logic operations make four numbers."""

_DADD: Cost = {"dadd.fp64": 1.0}
_ONE: Cost = {"iadd.int32": 1.0}
_CHOICE: Cost = {"setp.int32": 2.0, "sel.int32": 2.0}
FP64: dict[str, Cost] = {
    "neg": {"dadd.fp64": 1.0},
    "abs": {"dadd.fp64": 1.0},
    "relu": {"dadd.fp64": 1.0, "sel.int32": 2.0, "lop.int32": 1.0},
    "relu_backward": {"dadd.fp64": 1.0, "sel.int32": 2.0},
    "scale": {"dmul.fp64": 1.0},
    "triad": {"dfma.fp64": 1.0},
    "exp": {
        "dfma.fp64": 14.0, "dadd.fp64": 3.0, "dmul.fp64": 1.0, "imad.int32": 8.0, "iadd.int32": 6.0, "shf.int32": 2.0,
        "setp.int32": 2.0, "sel.int32": 2.0,
    },
    "log": {
        "dfma.fp64": 17.0, "dadd.fp64": 8.0, "dmul.fp64": 5.0, "rcp.fp32": 1.0, "imad.int32": 14.0, "iadd.int32": 7.0,
        "lop.int32": 3.0, "setp.int32": 4.0, "sel.int32": 2.0,
    },
    "tanh": {
        "dfma.fp64": 28.0, "dadd.fp64": 4.0, "dmul.fp64": 2.0, "rcp.fp32": 2.0, "cvt.int32": 4.0, "imad.int32": 6.0,
        "iadd.int32": 3.0, "lop.int32": 2.0, "setp.int32": 1.0, "sel.int32": 2.0,
    },
    **dict.fromkeys(("add", "sub", "bias"), _DADD),
    "mul": {"dmul.fp64": 1.0},
}  # fmt: skip
"""In fp64, a comparison (DSETP) as an addition. Other functions' routines were not counted."""
INTEGERS: dict[str, Cost] = {
    **dict.fromkeys(("add", "sub", "bias", "neg", "abs", "relu"), _ONE),
    "mul": {"imad.int32": 1.0},
    "relu_backward": {"setp.int32": 1.0, "sel.int32": 1.0},
}
"""In integers of up to 32 bits."""
WIDE_INTEGERS: dict[str, Cost] = {
    **dict.fromkeys(("add", "sub", "bias", "neg"), scaled(_ONE, 2)),
    "mul": {"imad.int32": 4.0, "iadd.int32": 1.0},
    "abs": {"iadd.int32": 1.0, "imad.int32": 2.0, "setp.int32": 1.0, "sel.int32": 2.0},
    **dict.fromkeys(("relu", "relu_backward"), _CHOICE),
}
"""In 64-bit integers; a wide multiply takes the slots of two."""


def costs_in(arithmetic: str) -> dict[str, Cost]:
    """Costs of the functions that can be computed in a format."""
    moves: dict[str, Cost] = {"copy": {}, "cast": {}, "fill": {}}
    if arithmetic == "fp64":
        return {**moves, **FP64}
    if is_integer(arithmetic):
        return {**moves, **(WIDE_INTEGERS if FORMATS[arithmetic].bytes == 8 else INTEGERS)}
    return COSTS


COSTS: dict[str, Cost] = {
    "copy": {},
    "cast": {},
    "fill": {},
    "scale": {"fmul.fp32": 1.0},
    "neg": {"fadd.fp32": 1.0},
    "abs": {"fadd.fp32": 1.0},
    "relu": {"fmnmx.fp32": 1.0},
    "exp": EXPONENTIAL,
    "log": _LOGARITHM,
    "log10": total(_LOGARITHM, {"fmul.fp32": 1.0}),
    "sin": _SINE,
    "cos": _SINE,
    "tanh": _TANH,
    "sqrt": {"ffma.fp32": 2.0, "fmul.fp32": 2.0, "iadd.int32": 5.0, "rsq.fp32": 1.0},
    "rsqrt": {"fmul.fp32": 2.0, "setp.int32": 1.0, "rsq.fp32": 1.0},
    # Assumption: a logarithm and an exponential in more than single precision.
    "pow": total(_LOGARITHM, EXPONENTIAL, {"ffma.fp32": 8.0}),
    "sigmoid": _SIGMOID,
    "silu": total(DIVIDE, EXPONENTIAL),
    "gelu": _GELU,
    "gelu_tanh": _GELU_TANH,
    "add": {"ffma.fp32": 1.0},
    "sub": {"ffma.fp32": 1.0},
    "mul": {"fmul.fp32": 1.0},
    "triad": {"ffma.fp32": 1.0},
    "bias": {"fadd.fp32": 1.0},
    "dropout": total(_PHILOX, {"fmul.fp32": 1.0, "setp.int32": 1.0, "sel.int32": 2.0}),
    "dropout_backward": {"fmul.fp32": 1.0, "sel.int32": 1.0},
    "relu_backward": {"setp.int32": 1.0, "sel.int32": 1.0},
    # Assumption: the forward function, and its derivative's product rule.
    "silu_backward": total(_SIGMOID, {"ffma.fp32": 3.0, "fmul.fp32": 1.0}),
    "gelu_backward": total(_GELU, {"ex2.fp32": 1.0, "ffma.fp32": 3.0, "fmul.fp32": 3.0}),
}
"""By the names of `workloads.ops.FUNCTIONS`."""
