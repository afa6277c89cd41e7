"""A fast estimate of a GEMM kernel's time, by which candidates are ranked: an interval model in whole numbers.

One k step of a CTA takes as long as its busiest resource: tensor or vector pipes, issue slots, shared memory, the SM's
port, the L2, or the latency that its buffers do not cover. Rounds of CTAs, prologues, epilogues and the exchange of
partial sums add to it; nothing is faster than DRAM. It reads machine figures and counts of the kernel only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from workloads.gpu.figures import MILLI, PS_PER_S, Figures, fetch, figures, transfer
from workloads.gpu.gemm.plan import stream_tiles
from workloads.gpu.gemm.problem import ceil_div

__all__ = ["MILLI", "PS_PER_S", "Figures", "Work", "estimate_ps", "fetch", "figures", "round_shape", "transfer"]


class Work(NamedTuple):
    """What one kernel does, by which it is estimated; cycles are those of an SM that runs one CTA alone. It is a tuple,
    since a choice makes a thousand.

    tiles, steps: output tiles, and steps of k of each.
    ctas, resident: CTAs that are launched, and those that the chip holds at once.
    persistent: a CTA does tile after tile.
    busy: cycles of the busiest pipe in a step.
    bubble: cycles of a step in which a CTA alone does nothing.
    unicast_bytes, received_bytes, requested_bytes: of a step of a CTA, loaded for it alone, in all, and asked from the
        L2.
    ahead: steps in flight.
    latency: cycles until what is loaded is there.
    epilogue: cycles of instructions after a tile's last step; overlapped: they hide behind the next tile.
    store_bytes: of a tile.
    cuts: workers of a tile whose k is cut; stream: only tiles of the last wave are.
    partial_bytes: of the sums of one piece.
    operand_bytes, round_bytes, result_bytes: of A and B, of what one round of CTAs reads of them, and of C.
    extra_ps: the launch and the time of a second kernel.
    fetches: by number of peers, the waits of an owner for their sums.
    code_bytes: of machine code.
    setup: cycles of instructions before the first load.
    shared: cycles of the shared-memory array in a step, where loads and multiplies are one stream; elsewhere they take
        turns and `busy` holds the longer.
    apart: a second kernel adds the pieces, for which `extra_ps` stands.
    late: cycles of a step in which the buffer that was read before it is not yet asked to be filled, or has been waited
        for.
    cluster: CTAs of a cluster, which one GPC holds.
    shared_sectors: of C, that are written in parts.
    joined_bytes: of `requested_bytes`, what others on the GPC ask for at the same time.
    lines: that a step of a CTA asks the L2 for, whole or in part; 0 where all of them are whole.
    """

    tiles: int
    steps: int
    ctas: int
    resident: int
    persistent: bool
    busy: int
    bubble: int
    unicast_bytes: int
    received_bytes: int
    requested_bytes: int
    ahead: int
    latency: int
    epilogue: int
    overlapped: bool
    store_bytes: int
    cuts: int
    stream: bool
    partial_bytes: int
    operand_bytes: int
    round_bytes: int
    result_bytes: int
    extra_ps: int = 0
    fetches: Callable[[int], int] = int
    code_bytes: int = 0
    setup: int = 0
    shared: int = 0
    apart: bool = False
    late: int = 0
    cluster: int = 1
    shared_sectors: int = 0
    joined_bytes: int = 0
    lines: int = 0


def round_shape(tiles_m: int, tiles_n: int, group: int, ctas: int) -> tuple[int, int]:
    """Tiles along m and n that `ctas` neighbours in grouped order cover together; several problems count one by one."""
    across, along = (tiles_n, tiles_m) if tiles_m < tiles_n else (tiles_m, tiles_n)
    wide = min(group, across)
    long = ceil_div(ctas, wide)
    if long > along:
        # Past the end of a group the next one begins: its own rows come on top.
        wide, long = wide * ceil_div(long, along), along
    return (long, wide) if tiles_m < tiles_n else (wide, long)


def estimate_ps(w: Work, f: Figures) -> int:
    """Picoseconds of one launch, from the command processor to the end of the drain."""
    if w.stream:
        rounds, full, rest = 1, 0, min(w.resident, w.ctas)
        steps = ceil_div(w.tiles * w.steps, rest)
        # A cut line of tiles leaves most workers with a piece more than they have whole tiles.
        tiles_each = w.tiles // rest + 1
    else:
        full, rest = divmod(w.ctas, w.resident)
        rounds = full + (rest > 0)
        steps = ceil_div(w.steps, w.cuts)
        tiles_each = 1
    per_sm = ceil_div(w.resident, f.sms)
    cycles = 0
    if full:
        cycles += full * steps * _step(w, f, w.resident, per_sm) + (rounds - 1) * _between(w, f, steps, per_sm)
    if rest:
        cycles += steps * _step(w, f, rest, ceil_div(rest, f.sms)) + (tiles_each - 1) * _between(w, f, w.steps, 1)
    cycles += f.start + fetch(f, w.code_bytes) + w.setup + w.latency
    last = transfer(min(rest or w.resident, w.tiles) * w.store_bytes, f.l2_write_rate)
    cycles += w.epilogue + max(last, transfer(w.store_bytes, f.write_rate)) + f.l2_latency
    if (w.cuts > 1 and not w.apart) or w.stream:
        # One CTA stores its part, the owner sees the flag, fetches the parts and adds them.
        peers = 1 if w.stream else w.cuts - 1
        workers = min(w.ctas, w.resident)
        owners = workers if w.stream else ceil_div(workers, w.cuts)
        cycles += transfer(w.partial_bytes, f.write_rate) * ceil_div(workers, f.sms)
        cycles += transfer(peers * w.partial_bytes, f.read_rate) * ceil_div(owners, f.sms)
        cycles += (3 + w.fetches(peers)) * f.l2_latency
    dram = w.operand_bytes
    if w.operand_bytes > f.l2_bytes:
        dram = max(dram, rounds * w.round_bytes)
    if w.stream and w.operand_bytes > f.l2_reach:
        # Cut pieces are at all depths at once: what they read has been used before, but long ago, and is still in the
        # L2 for the part of the operands that it holds (each partition copies of its own).
        cut = stream_tiles(w.tiles, w.resident) * w.steps * w.requested_bytes
        dram = max(dram, cut * (w.operand_bytes - f.l2_reach) // w.operand_bytes)
    # A sector that is written in parts is fetched by the first of them, alone in its row of DRAM.
    opened = w.shared_sectors * f.activation // MILLI
    # Results stay in the L2 until it is full.
    written = min(w.result_bytes, max(0, w.operand_bytes + w.result_bytes - f.l2_bytes))
    cycles = together(cycles, w.latency + transfer(dram + written, f.dram_rate), opened)
    starts_ps = min(w.ctas, w.resident) * f.cta_ps
    return f.fixed_ps + starts_ps + cycles * PS_PER_S // f.clock_hz + w.extra_ps


def _step(w: Work, f: Figures, active: int, per_sm: int) -> int:
    """Cycles of one k step of all CTAs of an SM."""
    on_gpc = on_fullest_gpc(f.sms_per_place, f.gpcs, active, w.cluster)
    read_bytes = w.requested_bytes - w.joined_bytes
    # A buffer is on its way until the last byte of its step is there.
    arrival = w.latency + max(transfer(w.unicast_bytes, f.read_rate), transfer(w.received_bytes, f.receive_rate))
    resources = together(
        max(per_sm * w.busy, w.busy + w.bubble),
        # Both are of one port: what is asked for by the SM alone, and all that comes in.
        max(transfer(per_sm * w.unicast_bytes, f.read_rate), transfer(per_sm * w.received_bytes, f.receive_rate)),
        transfer(on_gpc * read_bytes, f.gpc_rate),
        max(transfer(active * read_bytes, f.l2_rate), active * w.lines * f.request // MILLI),
        power=POWER if w.ahead == 1 else POWER_COALESCED if f.together > 1 else POWER_BUFFERED,
    )
    # The array takes what has come through a port, in its order: no queue meets another there.
    resources = max(resources, per_sm * w.shared)
    return max(resources, (arrival + w.late) // w.ahead)


@lru_cache(maxsize=1024)
def on_fullest_gpc(sms_per_place: tuple[int, ...], gpcs: int, ctas: int, cluster: int) -> int:
    """CTAs on the GPC that has most."""
    return cluster * max(Counter(gpcs_of(sms_per_place, gpcs, ceil_div(ctas, cluster), cluster)).values())


@lru_cache(maxsize=1024)
def gpcs_of(sms_per_place: tuple[int, ...], gpcs: int, clusters: int, size: int) -> tuple[int, ...]:
    """The GPC of each of the first clusters, as the CTA scheduler places them: in turn over the places with a CTA for
    each SM, then again. The middle GPC has the single TPCs, which are the first places."""
    single = len(sms_per_place) - gpcs
    room = [sms // size for sms in sms_per_place]
    turns = [place for turn in range(max(room)) for place, number in enumerate(room) if turn < number]
    # Where no place has as many SMs, several CTAs of a cluster are on one.
    turns = turns or list(range(single, len(sms_per_place)))
    found = (turns[cluster % len(turns)] for cluster in range(clusters))
    return tuple(gpcs // 2 if place < single else place - single for place in found)


POWER, POWER_COALESCED, POWER_BUFFERED = 4, 8, 16
"""Of the norm by which resources delay each other (`together`): of a step that waits for its own operands, and of one
whose operands have been on their way for several steps, so that a queue in front of one resource is over before the
next one needs what stands in it. Simulated steps of full waves on A100 are 0 to 6 % longer than their busiest resource
needs, where others are nearly as busy; the fourth power gives 15 to 30 %. Where reads of a GPC are joined
(`joined_bytes`), nearly all that could be are reckoned to be, which is too fast; of the powers the eighth ranks random
products on Hopper best there (docs/studies.md)."""


def together(*cycles: int, power: int = POWER) -> int:
    """Cycles of work on several resources at once.

    Resources that are nearly as busy as the busiest one delay it too, because their queues meet: a norm, in whole
    numbers (with the fourth power, two equal ones give 1.19 times one, one half as busy 1.5 % more). power: of two.
    """
    total = sum(x**power for x in cycles)
    for _ in range(power.bit_length() - 1):
        total = isqrt(total)
    return total


def _between(w: Work, f: Figures, steps: int, per_sm: int) -> int:
    """Cycles between the main loops of two tiles that follow each other on an SM, in which no CTA of it multiplies."""
    store = transfer(w.store_bytes, f.write_rate)
    main = steps * w.busy
    if w.overlapped:
        return max(0, w.epilogue + store - main)
    if w.persistent:
        return w.epilogue + max(0, store - main)
    # While one CTA pauses the others of its SM multiply. The results of all leave through one port.
    return max(0, w.latency + w.epilogue + store - (per_sm - 1) * main, per_sm * (store - main))
