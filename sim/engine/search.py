"""Searches without loops: a tag among the sixteen of a cache set or a tick among sixteen by one vector comparison, the
places of all equal tags, the lowest bit of a mask.

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

TICKS = 16
"""Ticks that are searched at once."""

_INT32_BYTES = 4
_INT64_BYTES = 8


def _all_of(predicate: str, width_bytes: int, count: int) -> Any:
    """Code that compares `count` elements of an array, of a width, with a value: (array, first, value) -> mask."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        word, index = ir.IntType(8 * width_bytes), arguments[1].type
        row = ir.VectorType(word, count)
        begin = builder.bitcast(builder.gep(data, [arguments[1]]), row.as_pointer())
        elements = builder.load(begin, align=width_bytes)
        value = arguments[2] if word == arguments[2].type else builder.trunc(arguments[2], word)
        lane = builder.insert_element(ir.Constant(row, ir.Undefined), value, ir.IntType(32)(0))
        wanted = builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count))
        found = builder.bitcast(builder.icmp_signed(predicate, elements, wanted), ir.IntType(count))
        return builder.zext(found, index)

    return generate


def _first_of(predicate: str, width_bytes: int, count: int) -> Any:
    """`_all_of`, but the place of the first such element, -1 where there is none."""
    compare = _all_of(predicate, width_bytes, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        index, mask = arguments[1].type, compare(context, builder, signature, arguments)
        place = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
        return builder.select(builder.icmp_signed("==", mask, index(0)), index(-1), place)

    return generate


@intrinsic  # type: ignore[untyped-decorator]
def _find(typing_context: Any, array: Any, first: Any, tag: Any) -> Any:
    return types.int64(array, types.int64, types.int64), _first_of("==", _INT32_BYTES, TAGS)


@intrinsic  # type: ignore[untyped-decorator]
def _equal(typing_context: Any, array: Any, first: Any, tag: Any) -> Any:
    return types.int64(array, types.int64, types.int64), _all_of("==", _INT32_BYTES, TAGS)


@intrinsic  # type: ignore[untyped-decorator]
def _due(typing_context: Any, array: Any, first: Any, tick: Any) -> Any:
    return types.int64(array, types.int64, types.int64), _first_of("<=", _INT64_BYTES, TICKS)


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


def _equal_plainly(tags: Any, first: int, tag: int) -> int:
    mask = 0
    for place in range(TAGS):
        mask |= int(tags[first + place] == tag) << place
    return mask


def _due_plainly(ticks: Any, first: int, tick: int) -> int:
    for place in range(TICKS):
        if ticks.flat[first + place] <= tick:
            return place
    return -1


checked = getattr(config, "DISABLE_JIT", 0) or getattr(config, "BOUNDSCHECK", None)
find_tag: Any = inner(inline=True)(_find_plainly) if checked else _find
"""find_tag(tags, first, tag): place of a tag among those of a set, int32, from index `first` on; -1 where it is not."""
equal_tags: Any = inner(inline=True)(_equal_plainly) if checked else _equal
"""equal_tags(tags, first, tag): mask of the places of a tag among `TAGS`, int32, from index `first` on."""
find_due: Any = inner(inline=True)(_due_plainly) if checked else _due
"""find_due(ticks, first, tick): place of the first of `TICKS` ticks that is not after a tick, -1 where none is.

They begin at index `first`, counted over all dimensions of a C-contiguous array."""
lowest_bit: Any = _lowest_plainly if getattr(config, "DISABLE_JIT", 0) else _lowest
"""lowest_bit(mask): number of the lowest bit that is set in an int64 other than 0."""
