"""Rules between the figures of a GPU: what the model cannot take is refused, with the nearest right value.

Each rule raises ValueError "path: reason"; the loader turns it into one line with the file and the line of that figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.units import BYTES, HERTZ, POWER, TIME

if TYPE_CHECKING:
    from arch.gpu import GpuSpec

WARP_SIZE = 32
"""Threads in a warp, on every machine of the family."""

MOST_COMPONENTS = 2**16 - 1
"""Warps and queues that the engine's event keys can name; an SM has three queues."""

_BANKS = (8, 16, 32, 64, 128)
"""Banks of shared memory over which layouts and swizzles repeat."""
_PREFETCHES = (32, 64, 128)
"""Bytes that a load without and with a prefetch size within its line has the L2 fetch."""

MOST_CTAS_PER_CLUSTER = 16
"""CTAs of a cluster that the engine's rows have room for."""

_MOST_L1_BYTES = 16 * 2**20
"""The model holds a tag for every line of every SM."""


def check(spec: GpuSpec) -> None:
    """Raise ValueError for the first rule that the spec breaks."""
    _check_sm(spec)
    _check_shared(spec)
    _check_caches(spec)
    _check_clusters(spec)
    _check_tma(spec)
    _check_dram(spec)
    _check_clock_and_power(spec)
    _check_instructions(spec)


def _rule(holds: bool, path: str, reason: str) -> None:
    if not holds:
        raise ValueError(f"{path}: {reason}")


def _multiples(value: int, step: int) -> tuple[int, int]:
    """The two multiples of `step` around `value`, the first two for less than one."""
    below = max(step, value // step * step)
    return below, below + step


def _nearest_multiples(value: int, step: int) -> str:
    return " or ".join(BYTES.format(size) for size in _multiples(value, step))


def _check_sm(spec: GpuSpec) -> None:
    sm, gpcs = spec.sm, spec.gpc.count
    _rule(sm.count >= gpcs, "sm.count", f"{sm.count} SMs cannot fill {gpcs} GPCs; nearest: {gpcs}")
    most = MOST_COMPONENTS // (sm.max_warps + 3)
    _rule(sm.count <= most, "sm.count", f"{sm.count} SMs of {sm.max_warps} warps; the model takes {most}")
    warps = " or ".join(map(str, _multiples(sm.max_warps, sm.sub_cores)))
    reason = f"{sm.max_warps} is not a multiple of the {sm.sub_cores} sub-cores; nearest: {warps}"
    _rule(sm.max_warps % sm.sub_cores == 0, "sm.max_warps", reason)
    threads = sm.max_warps * WARP_SIZE
    reason = f"{sm.max_threads} threads are more than {sm.max_warps} warps hold; nearest: {threads}"
    _rule(sm.max_threads <= threads, "sm.max_threads", reason)
    reason = f"{sm.max_threads_per_cta} is more than an SM holds; nearest: {sm.max_threads}"
    _rule(sm.max_threads_per_cta <= sm.max_threads, "sm.max_threads_per_cta", reason)
    step = sm.sub_cores * sm.register_granule
    registers = " or ".join(map(str, _multiples(sm.registers, step)))
    reason = f"{sm.registers} is not a multiple of sub_cores * register_granule = {step}; nearest: {registers}"
    _rule(sm.registers % step == 0, "sm.registers", reason)


def _check_shared(spec: GpuSpec) -> None:
    shared, array = spec.shared, spec.l1.size_bytes
    reason = f"{BYTES.format(shared.max_per_sm_bytes)} is larger than the combined array; at most l1.size = "
    _rule(shared.max_per_sm_bytes <= array, "shared.max_per_sm", reason + BYTES.format(array))
    room = shared.max_per_sm_bytes - shared.reserved_per_cta_bytes
    reason = f"{BYTES.format(shared.max_per_cta_bytes)} does not fit an SM beside what is reserved; at most "
    _rule(shared.max_per_cta_bytes <= room, "shared.max_per_cta", reason + BYTES.format(max(0, room)))
    near = min(_BANKS, key=lambda count: abs(count - shared.banks))
    _rule(shared.banks in _BANKS, "shared.banks", f"{shared.banks}; the model takes {_BANKS}; nearest: {near}")
    _rule(shared.granule_bytes > 0, "shared.granule", "must be more than 0 B; nearest: 128 B")


def _check_caches(spec: GpuSpec) -> None:
    for name, cache in (("l1", spec.l1), ("l2", spec.l2)):
        line, sector = cache.line_bytes, cache.sector_bytes
        _rule(line == 128, f"{name}.line", f"{line} B; the model has lines of four sectors; nearest: 128 B")
        sizes = (32, 64, 128) if name == "l1" else (32,)
        near = min(sizes, key=lambda size: abs(size - sector))
        what = f"{sector} B; the model has sectors of {' or '.join(map(str, sizes))} B; nearest: {near} B"
        _rule(sector in sizes, f"{name}.sector", what)
    fetched = {
        "cp_async.prefetch": spec.cp_async.prefetch_bytes if spec.cp_async else 128,
        "tma.promotion": spec.tma.promotion_bytes if spec.tma else 128,
    }
    for name, size in fetched.items():
        near = min(_PREFETCHES, key=lambda other: abs(other - size))
        what = f"{size} B; the model fetches {_PREFETCHES} B of a line; nearest: {near} B"
        _rule(size in _PREFETCHES, name, what)
    l1, l2 = spec.l1, spec.l2
    step = l1.ways * l1.line_bytes
    reason = (
        f"{BYTES.format(l1.size_bytes)} is not a multiple of ways * line = {l1.ways} * {l1.line_bytes} B; nearest: "
    )
    whole = l1.size_bytes >= step and l1.size_bytes % step == 0
    _rule(whole, "l1.size", reason + _nearest_multiples(l1.size_bytes, step))
    most = f"the model takes {BYTES.format(_MOST_L1_BYTES)} an SM"
    _rule(l1.size_bytes <= _MOST_L1_BYTES, "l1.size", f"{BYTES.format(l1.size_bytes)}; {most}")

    pair = " or ".join(map(str, _multiples(l2.slices, l2.partitions)))
    reason = f"{l2.slices} slices do not divide into {l2.partitions} partitions; nearest: {pair}"
    _rule(l2.slices % l2.partitions == 0, "l2.slices", reason)
    together = [l2.line_bytes << shift for shift in range(9)]
    two = sorted(sorted(together, key=lambda size: abs(size - l2.interleave_bytes))[:2])
    reason = f"{l2.interleave_bytes} B is not a line times a power of two up to 256; nearest: {two[0]} B or {two[1]} B"
    _rule(l2.interleave_bytes in together, "l2.interleave", reason)
    paired = l2.interleave_bytes == l2.line_bytes or l2.slices_per_partition % 2 == 0
    reason = f"{l2.interleave_bytes} B alternate between two slices, of which a partition has {l2.slices_per_partition}"
    _rule(paired, "l2.interleave", f"{reason}; nearest: {l2.line_bytes} B")
    parts = f"{l2.slices} * {l2.ways} * {l2.line_bytes} B"
    reason = f"{BYTES.format(l2.size_bytes)} is not a multiple of slices * ways * line = {parts}; nearest: "
    whole = l2.size_bytes >= l2.granule_bytes and l2.size_bytes % l2.granule_bytes == 0
    _rule(whole, "l2.size", reason + _nearest_multiples(l2.size_bytes, l2.granule_bytes))
    linked = l2.partitions == 1 or l2.link_bandwidth_bytes_per_cycle is not None
    _rule(linked, "l2.link_bandwidth", "is missing: two partitions need a link between them")
    _rule(l2.partitions == 2 or not l2.local_copies, "l2.local_copies", "needs two partitions; nearest: false")
    far = l2.partitions == 2 or not l2.far_latency_cycles
    _rule(far, "l2.far_latency", "needs two partitions; nearest: 0 cycles")


def _check_clusters(spec: GpuSpec) -> None:
    if spec.dsmem is None:
        return
    most, portable = spec.dsmem.max_cluster, spec.dsmem.max_portable_cluster
    reason = f"{most} CTAs; the model takes {MOST_CTAS_PER_CLUSTER}"
    _rule(most <= MOST_CTAS_PER_CLUSTER, "dsmem.max_cluster", reason)
    reason = f"{portable} CTAs are more than dsmem.max_cluster = {most}; nearest: {most}"
    _rule(portable <= most, "dsmem.max_portable_cluster", reason)


def _check_tma(spec: GpuSpec) -> None:
    fetched = spec.tma is not None or not spec.launch.descriptor_fetch
    _rule(fetched, "launch.descriptor_fetch", "there is no TMA that would fetch tensor maps; nearest: false")
    if spec.tma is None:
        return
    size, least, most = spec.tma.max_in_flight_bytes, spec.l1.line_bytes, 2**20
    reason = f"{BYTES.format(size)}; from a line of {BYTES.format(least)} to {BYTES.format(most)}"
    _rule(least <= size <= most, "tma.max_in_flight", reason)


def _check_dram(spec: GpuSpec) -> None:
    dram, partitions = spec.dram, spec.l2.partitions
    two = " or ".join(map(str, _multiples(dram.channels, partitions)))
    reason = f"{dram.channels} channels do not divide into {partitions} partitions; nearest: {two}"
    _rule(dram.channels % partitions == 0, "dram.channels", reason)
    reason = f"{dram.atom_bytes} B is not a burst that the model has; nearest: 32 B or 64 B"
    _rule(dram.atom_bytes in (32, 64), "dram.atom", reason)
    reason = f"{dram.row_bytes} B is not a multiple of the atom; nearest: "
    whole = dram.row_bytes > 0 and dram.row_bytes % dram.atom_bytes == 0
    _rule(whole, "dram.row", reason + _nearest_multiples(dram.row_bytes, dram.atom_bytes))
    reason = f"{TIME.format(dram.t_rfc_ps)} is not less than t_refi = {TIME.format(dram.t_refi_ps)}"
    _rule(dram.t_rfc_ps < dram.t_refi_ps, "dram.t_rfc", reason + ": a bank would never leave refresh")
    for name, overhead in (("overhead", dram.overhead), ("write_overhead", dram.write_overhead)):
        _rule(overhead <= 0.9, f"dram.{name}", f"{overhead} leaves no bandwidth; at most 0.9")
    reason = f"{BYTES.format(dram.size_bytes)} is not more than l2.size = {BYTES.format(spec.l2.size_bytes)}"
    _rule(dram.size_bytes > spec.l2.size_bytes, "dram.size", reason)


def _check_clock_and_power(spec: GpuSpec) -> None:
    clock, power, voltage = spec.clock, spec.power, spec.power.voltage
    _rule(clock.tensor > 0, "clock.tensor", "must be more than 0")
    boost = HERTZ.format(clock.boost_hz)
    for name, value in (("step", clock.step_hz), ("lowest", clock.lowest_hz)):
        _rule(value < clock.boost_hz, f"clock.{name}", f"{HERTZ.format(value)} is not below clock.boost = {boost}")
    reason = f"{TIME.format(clock.recovery_ps)} is before clock.onset; nearest: {TIME.format(clock.onset_ps)}"
    _rule(clock.recovery_ps >= clock.onset_ps, "clock.recovery", reason)
    _rule(clock.undershoot > 0, "clock.undershoot", "must be more than 0")
    _rule(clock.under_tensor > 0, "clock.under_tensor", "must be more than 0")
    reason = f"{voltage.max_mv} mV is below power.voltage.min; at least {voltage.min_mv} mV"
    _rule(voltage.max_mv >= voltage.min_mv, "power.voltage.max", reason)
    reason = f"must be above power.voltage.min_clock = {HERTZ.format(voltage.min_clock_hz)}"
    _rule(voltage.max_clock_hz > voltage.min_clock_hz, "power.voltage.max_clock", reason)
    reason = f"{POWER.format(power.limit_mw)} is not above power.static = {POWER.format(power.static_mw)}"
    _rule(power.limit_mw > power.static_mw, "power.limit", reason + ": no clock could be sustained")


def _check_instructions(spec: GpuSpec) -> None:
    has_ffma = any(row.name == "ffma.fp32" for row in spec.instructions)
    _rule(has_ffma, "instructions", "the table has no row ffma.fp32: the vector peak would be unknown")
