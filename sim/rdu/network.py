"""What a section's channels send over the three networks of the mesh, and for how long that holds their links.

Tiles go over the vector network; single words (the result of a reduction, a scalar that many units need) go over the
scalar network: both are packet-switched, with credits by the hop. Tokens go over the control network: `done`, which
announces data to its reader, and the credit that comes back when a slot is free. What one output sends to several
buffers it sends once: the way branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.rdu import RduSpec
from sim.engine.clock import TICKS_PER_CYCLE, bytes_per_cycle, cycles_to_ticks, ps_to_ticks
from sim.rdu import place, route
from sim.rdu.cost import StageCost
from sim.rdu.layout import Channels, Links, Network
from sim.rdu.place import Flow, Grid, Ints
from sim.rdu.program import WORD_BYTES, Read, Stage
from sim.rdu.route import StageUnits

FIGURES = (
    "clock.boost",
    "dies.bandwidth",
    "dies.count",
    "dies.latency",
    "mesh.control",
    "mesh.control_wires",
    "mesh.credits",
    "mesh.flit",
    "mesh.hop",
    "mesh.scalar",
    "mesh.vector",
    "tiles.bandwidth",
    "tiles.latency",
)
"""Figures of a preset that this module reads."""

Loads = NDArray[np.float64]


@dataclass(frozen=True)
class Ways:
    """What a channel puts on the links, each an array (4, rows, columns).

    write: bytes of a piece of the producer; what goes to several channels counts with the first of them. read: bytes of
    a firing of the reader. done, credit: tokens.
    """

    write: Loads
    read: Loads
    done: Loads
    credit: Loads
    write_network: Network
    read_network: Network
    hops: int
    """Links from the producer to the reader, by the longest way."""
    latency_ticks: int
    control_ticks: int
    """The same way for a control token."""


def ways(
    spec: RduSpec,
    grid: Grid,
    stages: Sequence[Stage],
    costs: Sequence[StageCost],
    units_of: Sequence[StageUnits],
    reads: Sequence[Read],
    pmus: Sequence[Ints],
    number: Mapping[int, int],
) -> list[Ways]:
    """Routes all channels. pmus: coordinates of their buffers; number: of each stage, by its identity."""
    to = [
        route.receivers(units, units_of[number[id(read.reader)]], read, stages[number[id(read.reader)]])
        for read, units in zip(reads, pmus, strict=True)
    ]
    together: dict[int, list[int]] = {}
    for i, read in enumerate(reads):
        together.setdefault(id(read.output), []).append(i)
    found = []
    for i, read in enumerate(reads):
        producer, reader = number[id(read.output.stage)], number[id(read.reader)]
        made, used = units_of[producer], units_of[reader]
        port = costs[reader].ports[read.port]
        into = route.write_flow(grid, read, made, [to[i]])
        out_of = route.read_flow(grid, read, stages[reader], used, pmus[i], port)
        done, credit = route.token_flows(grid, stages[producer], stages[reader], made, used, pmus[i])
        others = together[id(read.output)]
        sent = place.NOWHERE if i != others[0] else into
        if i == others[0] and len(others) > 1:
            sent = route.write_flow(grid, read, made, [to[j] for j in others])
        write_ticks, write_control_ticks = _way_ticks(spec, grid, into)
        read_ticks, read_control_ticks = _way_ticks(spec, grid, out_of)
        found.append(
            Ways(
                write=place.link_bytes(grid, sent),
                read=place.link_bytes(grid, out_of),
                done=place.link_bytes(grid, done),
                credit=place.link_bytes(grid, credit),
                write_network=Network.SCALAR if read.output.out.scalar else Network.VECTOR,
                read_network=Network.SCALAR if port.read_bytes <= WORD_BYTES else Network.VECTOR,
                hops=place.hops(into) + place.hops(out_of),
                latency_ticks=write_ticks + read_ticks,
                control_ticks=write_control_ticks + read_control_ticks,
            )
        )
    return found


def busiest_cycles(spec: RduSpec, grid: Grid, load: Loads) -> float:
    """Cycles that the busiest link of the vector network works for so many bytes over each link."""
    rate, flit = spec.mesh.vector_bytes_per_cycle, spec.mesh.flit_bytes
    return float((load * _ticks_per_byte(spec, grid, rate, flit, across=True)).max()) / TICKS_PER_CYCLE


def link_tables(spec: RduSpec, grid: Grid, found: Sequence[Ways], channel: Ints) -> Ints:
    """Writes the columns of links into `channel`; the shared links (columns: `Links`) to which they refer.

    A link that no other transfer uses holds its channel alone (`READ_PRIVATE`, `WRITE_PRIVATE`), and needs no calendar.
    Nor does a link with a control wire for each of its circuits; where there are fewer, their tokens take turns.
    """
    users = np.zeros((len(Network), 4, grid.rows, grid.columns), np.int64)
    for way in found:
        users[way.write_network] += way.write > 0
        users[way.read_network] += way.read > 0
        users[Network.CONTROL] += (way.done > 0).astype(np.int64) + (way.credit > 0)
    per_unit = (
        _ticks_per_byte(spec, grid, spec.mesh.vector_bytes_per_cycle, spec.mesh.flit_bytes, across=True),
        _ticks_per_byte(spec, grid, spec.mesh.scalar_bytes_per_cycle, WORD_BYTES, across=False),
        np.full((4, grid.rows, grid.columns), TICKS_PER_CYCLE / spec.mesh.control_wires),
    )
    links: list[Ints] = []
    count = 0
    for row, way in zip(channel, found, strict=True):
        for load, network, private, begin, end in (
            (way.read, way.read_network, Channels.READ_PRIVATE, Channels.READ_LINKS, Channels.READ_LINKS_END),
            (way.write, way.write_network, Channels.WRITE_PRIVATE, Channels.WRITE_LINKS, Channels.WRITE_LINKS_END),
            (way.done, Network.CONTROL, None, Channels.DONE_LINKS, Channels.DONE_LINKS_END),
            (way.credit, Network.CONTROL, None, Channels.CREDIT_LINKS, Channels.CREDIT_LINKS_END),
        ):
            ticks = np.ceil(load * per_unit[network]).astype(np.int64)
            if private is not None:
                row[private] = int(ticks[users[network] < 2].max(initial=0))
            alone = spec.mesh.control_wires if network == Network.CONTROL else 1
            shared = np.flatnonzero((users[network] > alone) & (load > 0))
            table = np.zeros((len(shared), len(Links)), np.int64)
            table[:, Links.LINK] = network * grid.links + shared
            table[:, Links.TICKS] = ticks.reshape(-1)[shared]
            table[:, Links.OTHERS] = users[network].reshape(-1)[shared] - 1
            table[:, Links.NETWORK] = network
            links.append(table)
            row[begin], row[end] = count, count + len(shared)
            count += len(shared)
    return np.concatenate([*links, np.zeros((1, len(Links)), np.int64)])


def _ticks_per_byte(spec: RduSpec, grid: Grid, rate: float, flit_bytes: int, *, across: bool) -> Loads:
    """Ticks a byte of every link: its bandwidth or what credits allow; `across`: of borders, theirs."""
    round_trip = 2 * spec.mesh.hop_cycles
    if round_trip:
        rate = min(rate, spec.mesh.credits * flit_bytes / round_trip)
    found = np.full((4, grid.rows, grid.columns), TICKS_PER_CYCLE / rate)
    if across and spec.tiles is not None:
        found[grid.borders] = max(TICKS_PER_CYCLE / rate, TICKS_PER_CYCLE / spec.tiles.bandwidth_bytes_per_cycle)
    if across and spec.dies.count > 1:
        each = grid.columns // spec.dies.count
        between = bytes_per_cycle(spec.dies.bandwidth_bytes_per_s, spec.clock.boost_hz) / grid.rows
        slow = max(TICKS_PER_CYCLE / rate, TICKS_PER_CYCLE / float(between))
        for boundary in range(each, grid.columns, each):
            found[place.EAST, :, boundary - 1] = slow
            found[place.WEST, :, boundary] = slow
    return found


def _way_ticks(spec: RduSpec, grid: Grid, flow: Flow) -> tuple[int, int]:
    """Ticks of a flow's longest way, and of the same way for a control token."""
    hops, beyond = place.hops(flow), 0
    if spec.dies.count > 1 and place.crosses_dies(flow, spec):
        beyond += ps_to_ticks(spec.dies.latency_ps, spec.clock.boost_hz)
    if spec.tiles is not None:
        beyond += cycles_to_ticks(spec.tiles.latency_cycles) * place.borders(grid, flow)
    vector, control = (cycles_to_ticks(each * hops) for each in (spec.mesh.hop_cycles, spec.mesh.control_cycles))
    return vector + beyond, control + beyond
