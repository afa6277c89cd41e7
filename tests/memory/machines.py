"""Small and real machines for the tests of the memory system."""

from types import SimpleNamespace
from typing import Any

from arch.load import load_arch

CLOCK_HZ = 1_000_000_000
"""At 1 GHz a nanosecond is a cycle, so figures read the same in both."""


def tiny(base: str = "a100-sxm4-40gb", dram: dict[str, Any] | None = None, **l2: Any) -> Any:
    """A machine with the figures of a preset but a cache of 8 slices of 4 sets (2 partitions), and 8 channels.

    Keyword arguments are attributes of the L2; `size_bytes` is set from `sets`.
    """
    machine = load_arch(base)
    sets = l2.pop("sets", 4)
    l2 = {"slices": 8, "ways": 4} | l2
    l2["size_bytes"] = l2["slices"] * l2["ways"] * sets * 128
    memory = {"channels": 8, "bandwidth_bytes_per_s": 8 * 32.0 * CLOCK_HZ, "t_rfc_ps": 0} | (dram or {})
    return SimpleNamespace(l2=machine.l2.model_copy(update=l2), dram=machine.dram.model_copy(update=memory))
