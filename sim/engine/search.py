"""Searches without loops: a tag among the sixteen of a cache set by one vector comparison, the lowest bit of a mask.

A compiler vectorises a loop for more tags than there are, so that its scalar remainder runs.
"""

from typing import Any

from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from sim.engine.jit import inner

TAGS = 16
"""Tags of a set; sets of fewer ways fill up with -1."""

_INT32_BYTES = 4


@intrinsic  # type: ignore[untyped-decorator]
def _find(typing_context: Any, array: Any, first: Any, tag: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        word, index = ir.IntType(32), arguments[1].type
        row = ir.VectorType(word, TAGS)
        first_tag = builder.gep(data, [arguments[1]])
        tags = builder.load(builder.bitcast(first_tag, row.as_pointer()), align=_INT32_BYTES)
        lane = builder.insert_element(ir.Constant(row, ir.Undefined), builder.trunc(arguments[2], word), word(0))
        wanted = builder.shuffle_vector(lane, lane, ir.Constant(row, [0] * TAGS))
        equal = builder.bitcast(builder.icmp_signed("==", tags, wanted), ir.IntType(TAGS))
        mask = builder.zext(equal, index)
        place = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
        return builder.select(builder.icmp_signed("==", mask, index(0)), index(-1), place)

    return types.int64(array, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _lowest(typing_context: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


def _lowest_plainly(mask: int) -> int:
    return int(mask & -mask).bit_length() - 1


def _find_plainly(tags: Any, first: int, tag: int) -> int:
    for place in range(TAGS):
        if tags[first + place] == tag:
            return place
    return -1


checked = getattr(config, "DISABLE_JIT", 0) or getattr(config, "BOUNDSCHECK", None)
find_tag: Any = inner(inline=True)(_find_plainly) if checked else _find
"""find_tag(tags, first, tag): place of a tag among those of a set, int32, from index `first` on; -1 where it is not."""
lowest_bit: Any = _lowest_plainly if getattr(config, "DISABLE_JIT", 0) else _lowest
"""lowest_bit(mask): number of the lowest bit that is set in an int64 other than 0."""
