"""The names by which the GPU's engine calls the L2, until it imports them from where they are."""

from sim.memory.ahead import AHEAD, LINE, l2_prefetch, l2_prefetch_changes
from sim.memory.l2 import l2_change_ahead, l2_read_ahead
from sim.memory.sets import count_sectors

__all__ = [
    "AHEAD",
    "LINE",
    "count_sectors",
    "l2_change_ahead",
    "l2_prefetch",
    "l2_prefetch_changes",
    "l2_read_ahead",
]
