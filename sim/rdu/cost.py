"""What a stage's operations take on PCUs: how many units, how long a firing keeps them, how deep they are.

A matrix product uses PCUs as output-stationary arrays: `lanes` rows by `stages` columns of cells, `macs` steps of k a
cycle. Everything else is SIMD: a chain of PCUs, each with up to `stages` operations and at most one of the tail's
functions at its end, through which vectors of `lanes` elements stream. Chains, arrays and buffers all work at once, so
a firing takes as long as the slowest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.rdu import RduSpec
from sim.engine.clock import PS_PER_S
from sim.link.collective import fabric_of, fastest
from sim.rdu.program import VIEWS, Body, Node, Read, Stage, chain

FIGURES = (
    "clock.boost",
    "mesh.hop",
    "pcu.dtypes",
    "pcu.fifo",
    "pcu.lanes",
    "pcu.latency",
    "pcu.macs",
    "pcu.stages",
    "pcu.systolic",
    "pcu.tail_interval",
    "pcu.vector_inputs",
    "pcu.vector_outputs",
    "pmu.latency",
    "pmu.size",
)
"""Figures of a preset that this module reads."""

Spread = str
"""How a tile is spread over a stage's PCUs: `rows` (parts along row_par, each sent to all of col_par), `columns` (the
other way round), `even`."""


@dataclass(frozen=True)
class PortCost:
    """What one input takes a firing: bytes that leave its buffer, and how they spread."""

    read_bytes: int
    spread: Spread


@dataclass
class StageCost:
    """Units and cycles of one stage: a firing is busy for `interval_cycles`, and `latency_cycles` deep."""

    pcus: int = 0
    array_pcus: int = 0
    crossed: bool = False
    """Whether the columns of the product, not its rows, lie over the lanes."""
    array_cycles: int = 0
    """Of all products of a body: they take turns on its array."""
    fill_cycles: int = 0
    """From an operand's first value at the array to the first sum that leaves it, PCU latency apart: through the
    rows and columns of cells that a product fills, or up the reduction tree over all lanes."""
    interval_cycles: int = 1
    latency_cycles: int = 0
    macs: int = 0
    lane_operations: int = 0
    ports: dict[str, PortCost] = field(default_factory=dict)


def stage_cost(stage: Stage, spec: RduSpec) -> StageCost:
    """Cost of one firing."""
    cost = StageCost()
    for port, read in stage.reads.items():
        share = _columns_read(stage, port) if stage.body is not None else 1
        size = math.prod(read.shape) * DTYPE_BYTES[read.output.out.dtype]
        cost.ports[port] = PortCost(math.ceil(size * share), "even")
    if stage.kind == "lookup":  # what leaves the banks; `sim.rdu.banks` says when
        out = stage.outputs["out"].out
        cost.ports["table"] = PortCost(math.prod(out.shape) * DTYPE_BYTES[out.dtype], "even")
        cost.latency_cycles = spec.pmu.latency_cycles
    if stage.interval_cycles is not None:
        cost.interval_cycles, cost.latency_cycles = stage.interval_cycles, stage.latency_cycles
    if stage.kind == "collective":
        size_bytes = next(iter(cost.ports.values())).read_bytes
        outcome = fastest(fabric_of(spec, stage.devices), "all_reduce", size_bytes)
        # The links are free for the next tile when the last byte has left; the sum is there later.
        cost.interval_cycles = max(1, ceil_div(outcome.port_ps * spec.clock.boost_hz, PS_PER_S))
        cost.latency_cycles = ceil_div(outcome.time_ps * spec.clock.boost_hz, PS_PER_S) - cost.interval_cycles
    if stage.body is None:
        return cost
    for node in stage.body.nodes:
        if node.op == "matmul":
            _matmul(stage, node, spec, cost)
    if cost.array_pcus:
        cost.latency_cycles += cost.fill_cycles + spec.pcu.latency_cycles
    steps = chain(stage.body, spec.pcu.lanes, spec.pcu.stages)
    links = simd_links(stage, spec)
    chain_latency = links * (spec.pcu.stages + spec.pcu.latency_cycles + spec.mesh.hop_cycles)
    for elements, tail, operations in steps:
        vectors = ceil_div(elements, spec.pcu.lanes * stage.simd_par)
        cost.interval_cycles = max(cost.interval_cycles, vectors * (spec.pcu.tail_interval_cycles if tail else 1))
        cost.lane_operations += operations
    cost.latency_cycles += chain_latency
    cost.pcus = cost.array_pcus + links * stage.simd_par
    if stage.carry:
        # The next firing needs this one's result where it begins.
        cost.interval_cycles = max(cost.interval_cycles, chain_latency)
    if not cost.array_pcus and not steps:  # a plain move: one pass through PCUs
        links = max(1, links)
        cost.pcus = links * stage.simd_par
        elements = max(math.prod(read.shape) for read in stage.reads.values())
        cost.interval_cycles = ceil_div(elements, spec.pcu.lanes * stage.simd_par)
        cost.latency_cycles = links * (spec.pcu.stages + spec.pcu.latency_cycles) + (links - 1) * spec.mesh.hop_cycles
    return cost


def simd_links(stage: Stage, spec: RduSpec) -> int:
    """PCUs of a stage's SIMD chain, one after the other; 0 where an array, or a plain move, does without.

    As many as its operations need, and as its streams need ports: units without an operation pass on what enters or
    leaves there.
    """
    assert stage.body is not None
    array = any(node.op == "matmul" for node in stage.body.nodes)
    ports = _port_links(stage, spec)
    return max(len(chain(stage.body, spec.pcu.lanes, spec.pcu.stages)), ports - 1 if array or ports == 1 else ports)


def _port_links(stage: Stage, spec: RduSpec) -> int:
    """PCUs that must follow one another for a stage's vector streams to find ports; scalars have ports of their own.

    Each link between two of them spends an output and an input on what is handed on. InputError where none is left.
    """
    links = 1
    for ends, verb, name, ports in (
        ([read.output for read in stage.reads.values()], "reads", "vector_inputs", spec.pcu.vector_inputs),
        (list(stage.outputs.values()), "sends", "vector_outputs", spec.pcu.vector_outputs),
    ):
        streams = sum(not output.out.scalar for output in ends)
        if streams > 1 and ports == 1:
            raise InputError(
                f"stage {stage.name} {verb} {streams} vector streams, {spec.name} has pcu.{name} = 1: "
                f"at least 2 are needed, or {streams} stages"
            )
        if streams > 1:
            links = max(links, ceil_div(streams - 1, ports - 1))
    return links


def least_pmus(read: Read, reader: StageCost, spec: RduSpec) -> int:
    """PMUs that a buffer needs for its size; none where the FIFOs of its reader's PCUs hold it."""
    held = read.depth * entry_bytes(read, spec)
    size = ceil_div(held, spec.pmu.size_bytes)
    if read.pmus is not None:
        return max(read.pmus, size)
    in_fifos = read.stream or read.vectors or (read.output.out.scalar and read.output.out.pieces == 1)
    if in_fifos and held <= spec.pcu.fifo_bytes * max(1, reader.pcus):
        return 0
    return size


def entry_bytes(read: Read, spec: RduSpec) -> int:
    """Bytes of what a channel's depth counts: a token, or a vector for each of the reader's PCUs."""
    if not read.vectors:
        return read.token_bytes
    reader = read.reader
    assert reader is not None
    vector = spec.pcu.lanes * DTYPE_BYTES[read.output.out.dtype]
    return min(read.token_bytes, vector * max(1, reader.simd_par if reader.body is not None else 1))


def carry_pmus(stage: Stage, cost: StageCost, spec: RduSpec) -> int:
    """PMUs for what a stage carries beyond the sums that the cells of its PCUs hold, in fp32."""
    sums = sum(math.prod(carry.shape) for carry in stage.carry.values())
    held = cost.pcus * spec.pcu.lanes * spec.pcu.stages
    return ceil_div(max(0, sums - held) * DTYPE_BYTES["fp32"], spec.pmu.size_bytes)


def _columns_read(stage: Stage, port: str) -> Fraction:
    """Share of an input's columns that leaves its buffer: those that the body looks at."""
    assert stage.body is not None
    number = stage.body.inputs[port]
    users = [node for node in stage.body.nodes if number in node.args]
    if not users or any(node.op != "columns" for node in users) or number in stage.body.outputs.values():
        return Fraction(1)
    wanted = {column for node in users for column in range(*node.attrs)}
    return Fraction(len(wanted), stage.body.nodes[number].shape[-1])


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def _matmul(stage: Stage, node: Node, spec: RduSpec, cost: StageCost) -> None:
    """Adds a product; the operand with more rows of cells to fill takes the lanes."""
    assert stage.body is not None
    left, right = (stage.body.nodes[i] for i in node.args)
    batch = math.prod(node.shape[:-2])
    m, n, k = node.shape[-2], node.shape[-1], left.shape[-1]
    row_par, col_par = stage.row_par, stage.col_par
    ends = [_behind_views(value, stage.body) for value in (left, right)]
    sources = [stage.reads[a.attrs[0]] for a in ends if a.op == "input" and a.attrs[0] in stage.reads]
    direct = all(read.output.out.dtype in spec.array_dtypes for read in sources)
    cost.macs += batch * m * n * k
    if spec.pcu.systolic and direct:
        straight = _blocks(m, n, batch, spec, row_par, col_par)
        crossed = _blocks(n, m, batch, spec, col_par, row_par)
        # Rows lie over the lanes unless that costs an eighth more: the operand over the lanes is the wider stream.
        cost.crossed = 8 * crossed[0] < 7 * straight[0]
        rounds, again_lanes, again_stages = crossed if cost.crossed else straight
        cycles = rounds * ceil_div(k, spec.pcu.macs)
        # Each block streams its rows and columns anew: nothing but the sums stays in an array.
        again_left, again_right = (again_stages, again_lanes) if cost.crossed else (again_lanes, again_stages)
        rows, columns = (n, m) if cost.crossed else (m, n)
        fill = min(rows, spec.pcu.lanes) + min(columns, spec.pcu.stages)
    else:  # inner products over the lanes
        cycles = ceil_div(m * batch, row_par) * ceil_div(n, col_par) * ceil_div(k, spec.pcu.lanes)
        again_left, again_right = ceil_div(n, col_par), ceil_div(m * batch, row_par)
        fill = (spec.pcu.lanes - 1).bit_length() + 1 + spec.pcu.stages
    cost.fill_cycles = max(cost.fill_cycles, fill)
    cost.array_cycles += cycles
    cost.interval_cycles = max(cost.interval_cycles, cost.array_cycles)
    cost.array_pcus = max(cost.array_pcus, row_par * col_par)
    for value, again, spread in ((left, again_left, "rows"), (right, again_right, "columns")):
        operand = _behind_views(value, stage.body)
        if operand.op == "input" and operand.attrs[0] in stage.reads:
            read: Read = stage.reads[operand.attrs[0]]
            size = math.prod(value.shape) * DTYPE_BYTES[read.output.out.dtype]
            cost.ports[operand.attrs[0]] = PortCost(size * max(1, again), spread)


def _behind_views(node: Node, body: Body) -> Node:
    """What a value is before it is looked at in another shape: views are addresses."""
    while node.op in VIEWS:
        node = body.nodes[node.args[0]]
    return node


def _blocks(m: int, n: int, batch: int, spec: RduSpec, row_par: int, col_par: int) -> tuple[int, int, int]:
    """(blocks that the busiest array works through, times the rows' operand is streamed, times the columns' is)."""
    down = ceil_div(batch * ceil_div(m, spec.pcu.lanes), row_par)
    across = ceil_div(ceil_div(n, spec.pcu.stages), col_par)
    return down * across, across, ceil_div(down, batch)
