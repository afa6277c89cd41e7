"""From what the dataflow engine counted to the record that a report shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from arch.dtypes import DTYPE_BYTES
from arch.rdu import RduSpec
from sim.app.families.rdu import report
from sim.app.report.record import KernelRecord, MachineFigures, RduBuffer, RduSection, RduStage, RduTiles
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE, ticks_to_ps
from sim.rdu.engine import SectionResult
from sim.rdu.host import copy_ps
from sim.rdu.layout import Log, Network, Reason
from sim.rdu.program import Program, walk

REASONS = tuple(reason.name.lower() for reason in Reason)
_PART_NAMES = {"program_load": "reconfiguration"}
"""Parts of a launch that reports call otherwise."""
_LOG_SHOWN = 20_000
"""Firings that a record keeps for its timeline."""


def machine_figures(spec: RduSpec, dtype: str, devices: int = 1) -> MachineFigures:
    """What a report divides by: all devices together."""
    bandwidths = {
        "pmu": int(2 * spec.pmu.count * spec.pmu.bandwidth_bytes_per_cycle * spec.clock.boost_hz) * devices,
        "ddr": spec.ddr.bandwidth_bytes_per_s * devices,
    }
    if spec.hbm:
        bandwidths["hbm"] = spec.hbm.bandwidth_bytes_per_s * devices
    if devices > 1 and spec.link is not None:
        bandwidths["link"] = spec.link.bandwidth_bytes_per_s * devices
    return MachineFigures(
        name=spec.name,
        family=spec.family,
        view=report,
        boost_hz=spec.clock.boost_hz,
        peak_ops_per_s=int(spec.peak_flops(dtype)) * devices,
        bandwidths=bandwidths,
        external=("hbm",) if spec.hbm else ("ddr",),
        clocked=("pmu",),
        instances={"pcu": spec.pcu.count * devices},
        spec=spec.model_dump(mode="json", by_alias=True),
    )


def kernel_record(
    result: SectionResult, spec: RduSpec, program: Program, parts: Mapping[str, int], *, prefetch_bytes: int = 0
) -> KernelRecord:
    """The record of one launch. parts: its time by `sim.rdu.host.PARTS`; prefetch_bytes: copied from DDR for it."""
    configuration = result.configuration
    hz = spec.clock.boost_hz
    launch = {_PART_NAMES.get(part, part): ps for part, ps in parts.items() if ps and part != "execution"}
    time_ps = sum(parts.values())
    cycles = -(-result.ticks // TICKS_PER_CYCLE)
    waited_ps = parts.get("prefetch", 0) + parts["execution"] - ticks_to_ps(result.ticks, hz)
    outside = (time_ps - ticks_to_ps(result.ticks, hz)) * hz // PS_PER_S
    waited = waited_ps * hz // PS_PER_S
    stages = [
        RduStage(
            name=stage.name,
            kind=stage.kind,
            pcus=cost.pcus,
            firings=len(walk(stage.over)),
            interval_cycles=cost.interval_cycles,
            cycles=_to_cycles(ticks.tolist(), cycles),
            units=[(int(r), int(c)) for r, c in units] if cost.pcus else [],
        )
        for stage, cost, ticks, units in zip(
            configuration.stages, configuration.costs, result.reasons, configuration.pcus, strict=True
        )
    ]
    own = RduSection(
        name=configuration.section.name,
        stages=stages,
        buffers=[
            RduBuffer(
                name=units.read.name,
                depth=units.read.depth,
                token_bytes=units.entry_bytes,
                pmus=len(units.pmus),
                units=[(int(r), int(c)) for r, c in units.pmus],
            )
            for units in configuration.channels
        ],
        grid=(configuration.grid.rows, configuration.grid.columns),
        pcus=configuration.pcus_used,
        pcu_count=spec.pcu.count,
        pmus=configuration.pmus_used,
        pmu_count=spec.pmu.count,
        sram_bytes=sum(c.read.depth * c.entry_bytes for c in configuration.channels),
        networks=_networks(result, spec),
        log=tuple(
            (int(row[Log.STAGE]), int(row[Log.START]) // TICKS_PER_CYCLE, int(row[Log.END]) // TICKS_PER_CYCLE)
            for row in result.log[:_LOG_SHOWN]
        ),
        tiles=_tiles(result, spec),
    )
    return KernelRecord(
        name=configuration.section.name,
        schedule=program.schedule,
        cycles=cycles + outside,
        clock_hz=hz,
        time_ps=time_ps,
        counters=counters(result, spec, program.devices, prefetch_bytes),
        stalls=_stalls(result, spec, cycles, {"memory": waited, "reconfiguration": outside - waited}),
        own=own,
        energy_fj=energy_fj(result, spec, time_ps, prefetch_bytes) * program.devices,
        launch_ps=launch,
    )


def counters(result: SectionResult, spec: RduSpec, devices: int = 1, prefetch_bytes: int = 0) -> dict[str, int]:
    """Counts of one launch, all devices together; of what was copied from DDR for it too."""
    configuration = result.configuration
    macs = lane_operations = read = written = 0
    for stage, cost in zip(configuration.stages, configuration.costs, strict=True):
        firings = len(walk(stage.over))
        # Extents of a program may be NumPy's, of 32 bits.
        macs += firings * int(cost.macs)
        lane_operations += firings * int(cost.lane_operations)
    collective = 0
    for units in configuration.channels:
        reader = units.read.reader
        assert reader is not None
        if len(units.pmus):
            read += int(units.read_bytes) * len(walk(reader.over))
            written += int(units.write_bytes) * len(walk(units.read.output.out.over))
        if reader.kind == "collective":
            out = units.read.output.out
            collective += math.prod(out.shape) * DTYPE_BYTES[out.dtype] * len(walk(reader.over))
    busy = sum(int(row[Reason.BUSY]) * cost.pcus for row, cost in zip(result.reasons, configuration.costs, strict=True))
    found = {
        "macs": macs,
        "lane_operations": lane_operations,
        "events": result.events,
        "pmu_read_bytes": read,
        "pmu_write_bytes": written,
        "pcu_busy_cycles": busy // TICKS_PER_CYCLE,
        **_traffic(result),
    }
    for place in ("hbm", "ddr"):
        moved = result.read_bytes[place] + result.write_bytes[place]
        if moved:
            # A machine without HBM has its main memory in the engine's first place.
            level = place if spec.hbm is not None else "ddr"
            found[f"{level}_read_bytes"] = result.read_bytes[place]
            found[f"{level}_write_bytes"] = result.write_bytes[place]
    if prefetch_bytes:
        found["prefetch_bytes"] = prefetch_bytes
        found["hbm_write_bytes"] = found.get("hbm_write_bytes", 0) + prefetch_bytes
        found["ddr_read_bytes"] = found.get("ddr_read_bytes", 0) + prefetch_bytes
        found.setdefault("ddr_write_bytes", 0)
    if collective and devices > 1:
        found["link_write_bytes"] = collective
    found = {name: count if name == "events" else count * devices for name, count in found.items()}
    if prefetch_bytes:
        found["prefetch_ps"] = copy_ps(spec, prefetch_bytes)
    return found


def _traffic(result: SectionResult) -> dict[str, int]:
    """What went over links (bytes, or tokens, times links), and cycles that lookups lost to bank conflicts."""
    configuration = result.configuration
    names = ("mesh_vector_bytes", "mesh_scalar_bytes", "mesh_control_tokens")
    found = {name: round(load.sum()) for name, load in zip(names, configuration.link_load, strict=True)}
    conflicts = 0
    for units in configuration.channels:
        if units.lookup_cycles is not None:
            stage = next(i for i, s in enumerate(configuration.stages) if s is units.read.reader)
            even = configuration.costs[stage].interval_cycles * len(units.lookup_cycles)
            conflicts += int(units.lookup_cycles.sum()) - even
    return found | ({"pmu_conflict_cycles": conflicts} if conflicts else {})


def energy_fj(result: SectionResult, spec: RduSpec, time_ps: int, prefetch_bytes: int = 0) -> int:
    """Energy of one launch of one device: counted events and static power."""
    energy, counts = spec.power.energy, counters(result, spec, prefetch_bytes=prefetch_bytes)
    by_network = result.configuration.link_load.sum(axis=(1, 2, 3))
    # A control token is a bit.
    hops = round(by_network[Network.VECTOR] + by_network[Network.SCALAR] + by_network[Network.CONTROL] / 8)
    dynamic = (
        2 * counts["macs"] * energy.mac_fj_per_flop
        + counts["lane_operations"] * energy.simd_fj
        + (counts["pmu_read_bytes"] + counts["pmu_write_bytes"]) * energy.pmu_fj_per_byte
        + hops * energy.hop_fj_per_byte
    )
    for level, each in (("hbm", energy.hbm_fj_per_byte), ("ddr", energy.ddr_fj_per_byte)):
        dynamic += (counts.get(f"{level}_read_bytes", 0) + counts.get(f"{level}_write_bytes", 0)) * each
    return dynamic + spec.power.static_mw * time_ps


def _stalls(result: SectionResult, spec: RduSpec, cycles: int, outside: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """PCU-cycles (each PCU has its stage's reason, those without a stage are idle) and cycles of memory stages.

    outside: cycles by reason around the section's own, which all PCUs spend.
    """
    configuration = result.configuration
    pcus = dict.fromkeys(REASONS, 0)
    memory = dict.fromkeys(REASONS, 0)
    for stage, cost, ticks in zip(configuration.stages, configuration.costs, result.reasons, strict=True):
        for reason, count in _to_cycles(ticks.tolist(), cycles).items():
            if cost.pcus:
                pcus[reason] += count * cost.pcus
            elif stage.tensor is not None:
                memory[reason] += count
    pcus["idle"] += cycles * (spec.pcu.count - configuration.pcus_used)
    for reason, count in outside.items():
        pcus[reason] += count * spec.pcu.count
    found = {"pcus": pcus}
    if any(memory.values()):
        found["memory_stages"] = memory
    return found


def _to_cycles(ticks: Sequence[int], cycles: int) -> dict[str, int]:
    """Whole cycles by reason that sum to `cycles`."""
    found, seen, before = {}, 0, 0
    for name, count in zip(REASONS, ticks, strict=True):
        seen += count
        found[name] = seen // TICKS_PER_CYCLE - before
        before = seen // TICKS_PER_CYCLE
    found["idle"] += cycles - before
    return found


def _tiles(result: SectionResult, spec: RduSpec) -> RduTiles | None:
    """Tiles that hold units, and what crosses their borders."""
    if spec.tiles is None:
        return None
    configuration, grid = result.configuration, result.configuration.grid
    load = configuration.link_load[Network.VECTOR][grid.borders]
    stages = [units for units, cost in zip(configuration.pcus, configuration.costs, strict=True) if cost.pcus]
    standing = np.concatenate([*stages, *(channel.pmus for channel in configuration.channels)])
    rate = min(spec.mesh.vector_bytes_per_cycle, spec.tiles.bandwidth_bytes_per_cycle)
    return RduTiles(
        count=spec.dies.count * spec.tiles.rows * spec.tiles.columns,
        used=len(np.unique(grid.tile_of(standing))),
        border_bytes=round(load.sum()),
        busiest_border=float(load.max(initial=0)) / (rate * result.ticks / TICKS_PER_CYCLE),
        rows=grid.tile_rows,
        columns=grid.tile_columns,
    )


def _networks(result: SectionResult, spec: RduSpec) -> dict[str, tuple[float, int]]:
    """By network: share of its bandwidth that the busiest link uses, and cycles that transfers waited for links."""
    cycles = result.ticks / TICKS_PER_CYCLE
    mesh = spec.mesh
    rates = (mesh.vector_bytes_per_cycle, mesh.scalar_bytes_per_cycle, mesh.control_wires)
    return {
        network.name.lower(): (float(load.max()) / (rate * cycles), waits // TICKS_PER_CYCLE)
        for network, load, rate, waits in zip(
            Network, result.configuration.link_load, rates, result.link_wait_ticks, strict=True
        )
    }
