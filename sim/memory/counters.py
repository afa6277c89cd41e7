"""What the memory system counts: always on, one int64 array indexed by this enum."""

from enum import IntEnum


class MemoryCounter(IntEnum):
    """Index of each count in the `counters` array; sectors are those of the L2, bytes are data on wires."""

    L2_READ_SECTORS = 0
    """Sectors that SMs asked for."""
    L2_READ_HIT_SECTORS = 1
    """Of these, found in the L2: in the asking partition or, beyond it, at the line's home."""
    L2_READ_MISS_SECTORS = 2
    """Of these, fetched from DRAM; reads = hits + misses."""
    L2_MERGED_SECTORS = 3
    """Hits that waited for data already on its way."""
    L2_FAR_READ_SECTORS = 4
    """Sectors read over the link between partitions."""
    L2_WRITE_SECTORS = 5
    """Sectors that SMs wrote."""
    L2_REDUCE_SECTORS = 6
    """Sectors that SMs added to by atomics at the L2."""
    L2_FAR_WRITE_SECTORS = 7
    """Sectors written or reduced over the link."""
    L2_FETCH_SECTORS = 8
    """Sectors fetched because a write covered them in part or an atomic needed them."""
    L2_LINK_BYTES = 9
    """Data over the link, both directions together."""
    L2_EVICTIONS = 10
    """Lines that made room for others."""
    L2_WRITE_BACK_SECTORS = 11
    """Dirty sectors of evicted lines, sent to DRAM."""
    L2_INVALIDATIONS = 12
    """Copies dropped because their line was written."""
    DRAM_READ_BYTES = 13
    """Bytes that the data buses moved for reads."""
    DRAM_WRITE_BYTES = 14
    """Bytes that entered the channels' write buffers."""
    DRAM_ROW_HITS = 15
    """Accesses that joined an open or pending row."""
    DRAM_ROW_MISSES = 16
    """Accesses that opened a row in a bank that was ready."""
    DRAM_ROW_CONFLICTS = 17
    """Accesses that opened a row and waited for the bank to close another."""
    DRAM_TURN_ROUNDS = 18
    """Changes of a bus between reads and writes."""
    DRAM_REFRESH_WAITS = 19
    """Activates that waited for a bank under refresh."""
    L2_COALESCED_SECTORS = 20
    """Reads answered with another read of the same line that waited at its slice; they take no time of the slice."""
    L2_PREFETCHED_SECTORS = 21
    """Sectors fetched from DRAM beside those that a read missed, by its prefetch size."""
