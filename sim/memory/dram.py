"""External memory of any family: channels with a data bus, banks with open rows, buffered writes, refresh.

Here are the figures (`DramSpec`, integers in ticks), the state and the lowering; `dram_kernel.py` says how time passes.
A channel is what has a data bus of its own: a pseudo-channel of HBM, a 16-bit channel of GDDR6, a 64-bit one of DDR3.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.engine.buffers import filled
from sim.engine.clock import bytes_per_cycle, ps_to_ticks, transfer_ticks
from sim.engine.search import TICKS
from sim.memory.hashing import reciprocal
from sim.memory.page_policy import POLICIES

FIGURES = (
    "dram.atom",
    "dram.bandwidth",
    "dram.banks",
    "dram.channels",
    "dram.latency",
    "dram.overhead",
    "dram.page_policy",
    "dram.queue",
    "dram.refresh",
    "dram.row",
    "dram.t_ccd",
    "dram.t_faw",
    "dram.t_ras",
    "dram.t_rc",
    "dram.t_rcd",
    "dram.t_refi",
    "dram.t_rfc",
    "dram.t_rp",
    "dram.t_rtw",
    "dram.t_wtr",
    "dram.write_batch",
    "dram.write_overhead",
)
"""Figures of a preset that this module reads; of a machine that calls its memories otherwise, those of each."""

BATCHES = 4
"""Row batches that the controller remembers for each bank, so that later requests of a pending row join it."""

BANK_WORDS = 2 + 3 * BATCHES
"""Words of a bank: tick of the next activate, newest batch, then (row, column ready, open until) for each batch."""

BUS_FREE, WRITING, ACTIVATE_FREE, PENDING_ATOMS, PENDING_WRITES, LAST_DRAINED, DRAINED_BEFORE = range(7)
"""Words of a channel: bus booked until, bus direction, next activate, write buffer, ends of the last two drains."""

CHANNEL_WORDS = 8

RANK = 16
"""Banks that take turns at refresh, as those of a rank of HBM, GDDR and LPDDR do. Further banks lie between them."""

ONE = 1 << 16
GOLDEN = 40503
"""Of `ONE`, the golden ratio's share: its multiples lie evenly, however many there are."""

NO_PLACE = 1 << 62
"""A tick after all others: where a channel's queue has no place."""


class DramFigures(Protocol):
    """What a machine description says about its memory (for example `arch.gpu.Dram`)."""

    @property
    def channels(self) -> int:
        """Channels, each with a data bus of its own."""

    @property
    def banks(self) -> int:
        """Banks of one channel."""

    @property
    def row_bytes(self) -> int:
        """Row buffer of one bank."""

    @property
    def atom_bytes(self) -> int:
        """Data of one burst."""

    @property
    def channel_bandwidth_bytes_per_s(self) -> float:
        """Usable data rate of one channel."""

    @property
    def latency_ps(self) -> int:
        """Of a request whose row is open in an idle channel."""

    @property
    def write_overhead(self) -> float:
        """Share of the data rate that writes lose."""

    @property
    def t_rcd_ps(self) -> int:
        """Activate to column command."""

    @property
    def t_rp_ps(self) -> int:
        """Precharge to activate."""

    @property
    def t_ras_ps(self) -> int:
        """Activate to precharge."""

    @property
    def t_rc_ps(self) -> int:
        """Activate to activate of one bank."""

    @property
    def t_faw_ps(self) -> int:
        """Window of at most four activates of a channel."""

    @property
    def t_wtr_ps(self) -> int:
        """Bus idle from writes to reads."""

    @property
    def t_rtw_ps(self) -> int:
        """Bus idle from reads to writes."""

    @property
    def t_refi_ps(self) -> int:
        """Between two refreshes of a bank."""

    @property
    def t_rfc_ps(self) -> int:
        """For which a bank under refresh is away."""

    @property
    def page_policy(self) -> str:
        """A policy of `page_policy`."""

    @property
    def queue(self) -> int:
        """Reads that a channel's controller holds and reorders."""

    @property
    def write_batch(self) -> int:
        """Bursts that a channel writes before it turns back to reads."""


class DramSpec(NamedTuple):
    """Figures of the memory; times in ticks. A unit is what callers address: the line of the cache in front."""

    channels: int
    banks: int
    row_multiplier: int
    row_shift: int
    """Divide a unit's index by the units in a row (see `hashing.divide`)."""
    bank_multiplier: int
    bank_shift: int
    atom_bytes: int
    burst: int
    """Bus time of one atom that is read."""
    write_burst: int
    """Bus time of one atom that is written."""
    latency: int
    """From a request to the end of its first burst's way back, row open, channel idle."""
    rcd: int
    rp: int
    ras: int
    rc: int
    activate_gap: int
    """A quarter of tFAW: activates of a channel keep this distance, which keeps any five of them tFAW apart."""
    column_gap: int
    """Of two bursts of one row. Those that a row is opened for are done before the channel opens the next one."""
    unit_atoms: int
    """That a write is taken to have."""
    wtr: int
    rtw: int
    refi: int
    rfc: int
    refresh_first: int
    """When the first bank of the first channel has its first one."""
    refresh_gap: int
    """Between refreshes of neighbouring banks of a rank."""
    refresh_step: int
    """Between refreshes of the same bank of neighbouring channels."""
    page_policy: int
    """A policy of `page_policy`."""
    queue: int
    """Reads that a channel's controller holds."""
    places: int
    """Words of `DramState.queue` for each channel: `queue` in whole vectors."""
    write_batch: int
    """Atoms that a channel collects before it writes them."""


class DramState(NamedTuple):
    """Calendars of channels (`CHANNEL_WORDS` each) and banks (`BANK_WORDS` each); ends of the reads that each channel's
    queue holds (`DramSpec.places` each, those beyond `DramSpec.queue` `NO_PLACE`); bank and row of buffered writes."""

    channel: NDArray[np.int64]
    bank: NDArray[np.int64]
    queue: NDArray[np.int64]
    pending: NDArray[np.int64]


def lower_dram(dram: DramFigures, unit_bytes: int, clock_hz: int) -> DramSpec:
    """Figures in ticks of a core clock, for requests of at most `unit_bytes`.

    Raises InputError where a row does not hold whole units.
    """
    if dram.row_bytes % unit_bytes:
        below = max(unit_bytes, dram.row_bytes // unit_bytes * unit_bytes)
        raise InputError(
            f"dram.row={dram.row_bytes} B: must be a multiple of the cache line ({unit_bytes} B): "
            f"{below} or {below + unit_bytes}"
        )
    refi, rfc = (ps_to_ticks(ps, clock_hz) for ps in (dram.t_refi_ps, dram.t_rfc_ps))
    # Banks in turn, those of a bank number channel by channel within its turn; or all of a channel, the channels one
    # after the other so that the last of them has just ended at tick 0.
    together, turns = getattr(dram, "refresh", "bank") == "all", min(dram.banks, RANK)
    gap, step = refi // turns, refi // (turns * dram.channels)
    row_multiplier, row_shift = reciprocal(dram.row_bytes // unit_bytes)
    bank_multiplier, bank_shift = reciprocal(dram.banks)
    rate = bytes_per_cycle(Fraction(dram.channel_bandwidth_bytes_per_s), clock_hz)
    return DramSpec(
        channels=dram.channels,
        banks=dram.banks,
        row_multiplier=row_multiplier,
        row_shift=row_shift,
        bank_multiplier=bank_multiplier,
        bank_shift=bank_shift,
        atom_bytes=dram.atom_bytes,
        burst=transfer_ticks(dram.atom_bytes, rate),
        write_burst=transfer_ticks(dram.atom_bytes, rate * (1 - Fraction(dram.write_overhead))),
        latency=ps_to_ticks(dram.latency_ps, clock_hz),
        rcd=ps_to_ticks(dram.t_rcd_ps, clock_hz),
        rp=ps_to_ticks(dram.t_rp_ps, clock_hz),
        # A bank that may not open another row before tRC gains nothing by closing its row any earlier than that takes.
        ras=ps_to_ticks(max(dram.t_ras_ps, dram.t_rc_ps - dram.t_rp_ps), clock_hz),
        rc=ps_to_ticks(dram.t_rc_ps, clock_hz),
        activate_gap=-(-ps_to_ticks(dram.t_faw_ps, clock_hz) // 4),
        column_gap=ps_to_ticks(getattr(dram, "t_ccd_ps", 0), clock_hz),
        unit_atoms=max(1, unit_bytes // dram.atom_bytes),
        wtr=ps_to_ticks(dram.t_wtr_ps, clock_hz),
        rtw=ps_to_ticks(dram.t_rtw_ps, clock_hz),
        refi=refi,
        rfc=rfc,
        refresh_first=refi - rfc if together else gap,
        refresh_gap=0 if together else gap,
        refresh_step=-rfc if together else step,
        page_policy=POLICIES.index(dram.page_policy),
        queue=dram.queue,
        places=-(-dram.queue // TICKS) * TICKS,
        write_batch=dram.write_batch,
    )


def new_dram_state(spec: DramSpec) -> DramState:
    """State at tick 0: buses idle, every row closed, write buffers empty."""
    queue = filled((spec.channels, spec.places), np.int64, 0)
    queue[:, spec.queue :] = NO_PLACE
    state = DramState(
        channel=np.zeros(spec.channels * CHANNEL_WORDS, np.int64),
        bank=np.zeros(spec.channels * spec.banks * BANK_WORDS, np.int64),
        queue=queue.reshape(-1),
        pending=np.zeros(spec.channels * (spec.write_batch + 1) * 2, np.int64),
    )
    settle_dram(state)
    return state


def settle_dram(state: DramState) -> None:
    """Bring every calendar to tick 0 and close every row; buffered writes stay."""
    words = state.channel.reshape(-1, CHANNEL_WORDS)
    words[:, _calendar_words(words.shape[1], (PENDING_ATOMS, PENDING_WRITES))] = 0
    banks = state.bank.reshape(-1, BANK_WORDS)
    state.queue[state.queue < NO_PLACE] = 0
    banks[:] = 0
    banks[:, 2::3] = -1


def drop_writes(state: DramState) -> None:
    """Empties the write buffers, as channels do that have nothing else to do."""
    words = state.channel.reshape(-1, CHANNEL_WORDS)
    words[:, [PENDING_ATOMS, PENDING_WRITES]] = 0


def _calendar_words(count: int, others: Iterable[int]) -> list[int]:
    return [word for word in range(count) if word not in set(others)]
