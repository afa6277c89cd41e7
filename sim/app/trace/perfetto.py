"""Writes a timeline as a Perfetto trace (TrackEvent protobuf): open it at ui.perfetto.dev or with `trace_processor`.

One cycle is one nanosecond, and the trace says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from arch.errors import InputError
from sim.app.trace.timeline import Slice, Timeline

_SEQUENCE = 1


def write(found: Timeline, path: Path) -> None:
    """Writes the file; InputError if the `perfetto` package is missing."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError:
        raise InputError("Perfetto traces need the perfetto package; pip install 'tilewave[trace]'") from None
    with open(path, "wb") as file:
        _Writer(found, StreamingTraceProtoBuilder(file), pb, file).write()


class _Writer:
    """Packets of one trace."""

    def __init__(self, found: Timeline, builder: Any, pb: Any, file: IO[bytes]) -> None:
        self.found, self.builder, self.event, self.file = found, builder, pb.TrackEvent, file
        self.first = True

    def write(self) -> None:
        """Tracks, then events in the order of time."""
        for number, track in enumerate(self.found.tracks):
            packet = self._packet()
            descriptor = packet.track_descriptor
            descriptor.uuid = number + 1
            descriptor.name = track.name
            if track.parent is not None:
                descriptor.parent_uuid = track.parent + 1
            descriptor.sibling_order_rank = number
            descriptor.child_ordering = descriptor.EXPLICIT
            if track.counter:
                descriptor.counter.unit_name = track.unit
            self.builder.write_packet(packet)
        # At one time: what ends, then what takes no whole cycle, then what begins.
        events: list[tuple[int, int, int, bool, Any]] = [(self.found.span[0], -1, 0, True, self.found.facts)]
        for number, piece in enumerate(self.found.slices):
            short = piece.begin == piece.end
            events.append((piece.begin, 1 if short else 2, number, True, piece))
            events.append((piece.end, 1 if short else 0, number, False, piece))
        events += [(sample.at, 2, number, True, sample) for number, sample in enumerate(self.found.samples)]
        # Of one slice the begin is listed before the end, and sorting keeps that order.
        for at, _, _, begins, what in sorted(events, key=lambda event: event[:3]):
            packet = self._packet(at)
            if isinstance(what, Mapping):
                self._facts(packet, what)
            elif isinstance(what, Slice):
                self._slice(packet, what, begins=begins)
            else:
                packet.track_event.type = self.event.TYPE_COUNTER
                packet.track_event.track_uuid = what.track + 1
                packet.track_event.double_counter_value = what.value
            self.builder.write_packet(packet)

    def _packet(self, at: int | None = None) -> Any:
        packet = self.builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if at is not None:
            packet.timestamp = at
        if self.first:
            packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
            packet.first_packet_on_sequence = True
            self.first = False
        return packet

    def _facts(self, packet: Any, facts: Mapping[str, str]) -> None:
        """What a reader must know, as an instant on the first track."""
        packet.track_event.type = self.event.TYPE_INSTANT
        packet.track_event.track_uuid = 1
        packet.track_event.name = self.found.title
        packet.track_event.categories.append("about")
        _annotate(packet.track_event, facts)

    def _slice(self, packet: Any, piece: Slice, *, begins: bool) -> None:
        event = packet.track_event
        event.track_uuid = piece.track + 1
        event.type = self.event.TYPE_SLICE_BEGIN if begins else self.event.TYPE_SLICE_END
        if begins:
            event.name = piece.name
            event.categories.append(piece.category)
            event.flow_ids.extend(piece.flows)
            _annotate(event, piece.args)


def _annotate(event: Any, args: Mapping[str, str | int]) -> None:
    for name, value in args.items():
        note = event.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = value
