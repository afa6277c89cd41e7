"""Where a line lies: its home slice, its set there and in the other partition, its channel of DRAM.

Lines of a page of 2 to 2.5 MiB are dealt evenly to the slices, but neighbours as if drawn at random: with neighbours in
turn no slice or channel ever had a queue, and streams that nearly saturate DRAM were up to 20 % faster than gpu-benches
measures on V100, A100 and H100. Where `l2.interleave` is more than a line, that many bytes stay together, in two slices
of one channel.
"""

from sim.engine.jit import inner, kernel
from sim.memory.hashing import divide, product, rotate

PAGE_SHIFT = 8
"""Lines that keep their low bits: 32 KiB are scattered, 32 KiB times the slices (2 to 2.5 MiB, a page) are balanced."""


@kernel(inline=True)
def index_of(spec, line):
    """A line's index within its slice. A slice has one line in `slices` of those that share their low bits."""
    group = divide(line >> PAGE_SHIFT, spec.slice_multiplier, spec.slice_shift)
    return (group << PAGE_SHIFT) | (line & ((1 << PAGE_SHIFT) - 1))


@kernel(inline=True)
def home_slice(spec, line, index):
    """Slice that owns a line: neighbours are scattered as if drawn at random, larger ranges are balanced.

    Lines that stay together alternate between two neighbouring slices.
    """
    place = rotate(
        (line >> PAGE_SHIFT) - product(index >> PAGE_SHIFT, spec.slices), index >> spec.interleave_shift, spec.slices
    )
    return place ^ (index & spec.alternate)


@kernel(inline=True)
def set_of(spec, index, slice_index):
    """Number of a line's set: each run of `sets` indices meets every set of the slice once."""
    group = divide(index, spec.set_multiplier, spec.set_shift)
    place = rotate(index - product(group, spec.sets), product(group, spec.slices) + slice_index, spec.sets)
    return product(place, spec.slices) + slice_index


@inner(inline=True)
def locate(spec, partition, line):
    """A line's home slice, the slice that a read asks first, the line's set there and at home."""
    index = index_of(spec, line)
    home = home_slice(spec, line, index)
    asked = home
    if spec.local_copies != 0 and (home >= spec.slices_per_partition) != (partition == 1):
        asked = home + (2 * partition - 1) * spec.slices_per_partition
    cache_set = set_of(spec, index, asked)
    return home, asked, cache_set, set_of(spec, index, home) if spec.local_copies != 0 else cache_set


@inner(inline=True)
def locate_change(spec, line):
    """The slice where a line is changed, its set there, and the set that may hold a copy in the other partition (the
    same one where there are none)."""
    index = index_of(spec, line)
    home = home_slice(spec, line, index)
    other = home
    if spec.local_copies != 0:
        other += spec.slices_per_partition
        if other >= spec.slices:
            other -= spec.slices
    return home, set_of(spec, index, home), set_of(spec, index, other)


@kernel(inline=True)
def channel_of(spec, slice_index, line):
    """Channel of a slice's line and the line's place in that channel, as channel << 32 | place.

    Places follow addresses, so that neighbours share a row; lines that the scatter brings together may share a place.
    With as many slices as channels, or a multiple, a slice has one channel; otherwise it uses several.
    """
    block = divide(line, spec.slice_multiplier, spec.slice_shift)
    place = block * spec.slices + slice_index
    group = divide(place, spec.channel_multiplier, spec.channel_shift)
    channel = place - group * spec.dram.channels
    if spec.dram.channels > spec.slices:
        channel = rotate(channel, group, spec.dram.channels)
    return (channel << 32) | group
