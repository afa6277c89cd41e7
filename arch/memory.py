"""External memory with channels, banks and rows, on machines of every family that models them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from arch.spec import Count, Documents, Group, Share
from arch.units import Bytes, BytesPerSecond, Picoseconds

PagePolicy = Literal["closed_adaptive", "closed"]
"""When a row closes: after tRAS unless more requests for it have come by then, or after each access."""


class BankedMemory(Group):
    """External memory. Another `bandwidth` brings other `channels` (`arch.belongs`); timings of the core stay."""

    standard: str = Field(
        default="", description="DRAM standard whose organisation and timings hold where nothing else is stated"
    )
    type: Annotated[str, Documents("the name of the standard in reports", "standard, bandwidth or a timing")]
    size_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond = Field(description="peak of the data buses together")
    overhead: Share = Field(description="share of the data bus that inline error correction and the like take")
    channels: Count = Field(description="independent (pseudo-)channels")
    banks: Count = Field(description="of one channel")
    row_bytes: Bytes = Field(description="row buffer of one bank of one channel")
    atom_bytes: Bytes = Field(description="one burst")
    latency_ps: Picoseconds = Field(description="from a request to its data, row open, channel idle")
    t_rcd_ps: Picoseconds = Field(description="activate to column command")
    t_rp_ps: Picoseconds = Field(description="precharge to activate")
    t_ras_ps: Picoseconds = Field(description="activate to precharge")
    t_rc_ps: Picoseconds = Field(description="activate to activate, same bank; t_ras + t_rp where that is longer")
    t_faw_ps: Picoseconds = Field(description="window of at most four activates of a channel")
    t_wtr_ps: Picoseconds = Field(description="data bus idle between a write and a read")
    t_rtw_ps: Picoseconds = Field(description="data bus idle between a read and a write")
    t_refi_ps: Picoseconds = Field(description="between two refreshes of the same bank")
    t_rfc_ps: Picoseconds = Field(description="for which a bank under refresh is away")
    page_policy: PagePolicy = Field(default="closed_adaptive", description="when the controller closes a row")
    queue: Count = Field(description="reads of a line each that a channel's controller holds and reorders")
    write_batch: Count = Field(description="bursts that a channel writes before it turns back to reads")
