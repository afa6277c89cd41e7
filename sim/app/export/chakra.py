"""Chakra execution traces of one step of a model, a file for each device, as ASTRA-sim's feeder reads them.

A file is the metadata and the nodes of `et_def.proto`, each behind its length. Durations there are whole microseconds:
a node's is what the sum of times so far rounds to, so that no error adds up, and its attribute `duration_nanos` has
the exact one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.app.report.record import OperatorTime
from workloads.graphs import Graph, Step
from workloads.ops import AllReduce, Collective

VERSION = "0.0.4"
_COMP_NODE, _COMM_COLL_NODE = 4, 7
_TYPES = {"all_reduce": 0, "allreduce": 0, "all_gather": 2, "alltoall": 6, "reduce_scatter": 7}
"""`CollectiveCommType` by the operator's word."""
_STRING, _INT64, _UINT64, _BOOL = 29, 9, 13, 27
"""Fields of `AttributeProto.value`."""


def traces(graph: Graph, times: list[OperatorTime]) -> bytes:
    """One device's file: equal on all of them. times: of the graph's steps, in their order."""
    made: dict[str, int] = {}
    parts = [_behind_length(_text(1, VERSION))]
    done_ps = 0
    for number, (step, time) in enumerate(zip(graph.steps, times, strict=True)):
        before = {made[value.buffer] for value in step.operands if value.buffer in made}
        whole_us = (done_ps + time.device_ps + 500_000) // 10**6 - (done_ps + 500_000) // 10**6
        done_ps += time.device_ps
        parts.append(_behind_length(b"".join(_node(number, step, time, sorted(before), whole_us))))
        made |= {value.buffer: number for value in step.results}
    return b"".join(parts)


def write(graph: Graph, times: list[OperatorTime], folder: Path) -> list[Path]:
    """Writes `trace.N.et` for each device."""
    folder.mkdir(parents=True, exist_ok=True)
    data = traces(graph, times)
    paths = [folder / f"trace.{rank}.et" for rank in range(graph.devices)]
    for path in paths:
        path.write_bytes(data)
    return paths


def _node(number: int, step: Step, time: OperatorTime, before: list[int], whole_us: int) -> Iterator[bytes]:
    """Fields of a node. Its operators run in the order of the stream, so that it also waits for the one before."""
    op = step.op
    collective = isinstance(op, AllReduce | Collective)
    yield _number(1, number + 1)
    yield _text(2, f"{step.label} {number}")
    yield _number(3, _COMM_COLL_NODE if collective else _COMP_NODE)
    for dependency in before:
        yield _number(5, dependency + 1)
    yield _number(7, whole_us)
    attributes: dict[str, tuple[int, Any]] = {"is_cpu_op": (_BOOL, False)}
    if collective:
        size = op.operands[0].size_bytes if not isinstance(op, AllReduce) else op.bytes
        attributes |= {"comm_type": (_INT64, _TYPES[op.word]), "comm_size": (_INT64, size)}
    else:
        attributes |= {"num_ops": (_INT64, op.flops), "tensor_size": (_UINT64, op.operand_bytes)}
    attributes |= {"duration_nanos": (_UINT64, round(time.device_ps / 1000)), "operator": (_STRING, str(op))}
    for name, (kind, value) in attributes.items():
        yield _field(10, _text(1, name) + (_text(kind, value) if kind == _STRING else _number(kind, int(value))))


# Protocol Buffers' wire format: a tag of field number and kind (0: a number, 2: bytes behind their length).


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _behind_length(data)


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode())


def _behind_length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def read(data: bytes) -> list[dict[int, list[Any]]]:
    """Messages of a file as fields by their numbers: numbers, or bytes."""
    found, at = [], 0
    while at < len(data):
        size, at = _read_varint(data, at)
        found.append(fields(data[at : at + size]))
        at += size
    return found


def fields(data: bytes) -> dict[int, list[Any]]:
    """Fields of one message."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            found.setdefault(tag >> 3, []).append(data[at : at + value])
            at += value
        else:
            found.setdefault(tag >> 3, []).append(value)
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
