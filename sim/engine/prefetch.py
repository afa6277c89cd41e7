"""Asking the host's caches for data ahead of time: look-ups of the lines of one request then miss side by side."""

from typing import Any

from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

_READ, _KEEP, _DATA = 0, 3, 1
"""Arguments of llvm.prefetch: for reading, into all levels, of the data cache."""


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, word(_READ), word(_KEEP), word(_DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _nothing(array: Any, index: int) -> None:
    """Plain Python has no caches to ask."""


prefetch: Any = _nothing if getattr(config, "DISABLE_JIT", 0) else _prefetch
"""prefetch(array, index): asks for the element `index` of a C-contiguous array, counted over all its dimensions."""
