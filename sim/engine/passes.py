"""Numba's passes over a function, less those that find nothing to do in kernels.

Half of the passes look for what no kernel has: closures, `with`, lists that are unrolled, expressions of whole arrays.
Each goes through the function and works out anew how its variables live.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

from numba.core.compiler_machinery import PassManager

_LEFT_OUT = (
    "WithLifting",
    "InlineClosureLikes",
    "RewriteDynamicRaises",
    "MakeFunctionToJitFunction",
    "InlineInlinables",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "InlineOverloads",
    "NopythonRewrites",
    "IRLegalization",  # says where variables end, for the sake of reference counts
    "DumpParforDiagnostics",
)
_NEEDING = frozenset(("literally", "literal_unroll", "objmode", "prange"))
"""Names whose use needs what is left out."""

_short: list[Any] = []
"""The passes, once they have been put together: they are the same for all functions."""


def passes(numbas: Callable[[], list[Any]], function: Callable[..., Any]) -> list[Any]:
    """What to compile a function with; `numbas` gives numba's own pipelines."""
    if not _plain(function.__code__):
        return numbas()
    if not _short:
        for pipeline in numbas():
            manager = PassManager(pipeline.pipeline_name)
            for kind, why in pipeline.passes:
                if kind.__name__ not in _LEFT_OUT:
                    manager.add_pass(kind, why)
            manager.finalize()
            _short.append(manager)
    return _short


def _plain(code: CodeType) -> bool:
    """Whether a function has no functions of its own, comprehensions included, nor what has a pass of its own."""
    return not any(isinstance(constant, CodeType) for constant in code.co_consts) and _NEEDING.isdisjoint(code.co_names)
