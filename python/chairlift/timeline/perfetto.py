"""Timelines as a trace of Perfetto: TrackEvent, its format for tracks of slices and numbers.

continuous (a process)
engine             step > schedule, inputs, forward, sample, update
waiting, running, KV blocks, tokens
rows > row 0       request 3 > prompt, decode
requests > 3       queue, prompt, decode, with an arrow to its rows
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from chairlift.timeline.stubs import perfetto_trace_pb2 as pb
from chairlift.timeline.values import PARTS, Request, Run, Span, Timeline, Work

_SEQUENCE: Final = 1
_WORDS: Final = {
    Work.PREFILL: "prompt",
    Work.DECODE: "decode",
    Work.VERIFY: "verify drafts",
    Work.FINISH: "last token",
}

Figure = int | str


def render_perfetto(timelines: Sequence[Timeline]) -> bytes:
    """Return a file that Perfetto opens: each timeline is a process of it."""
    writer = _Writer()
    for index, timeline in enumerate(timelines):
        _Process(writer, index, timeline).write()
    return writer.encoded()


class _Writer:
    """Numbers tracks, and keeps events until they can be sorted by time."""

    def __init__(self) -> None:
        self._tracks: list[pb.TracePacket] = []
        self._events: list[pb.TracePacket] = []

    def track(self, name: str, parent: int = 0, *, is_counter: bool = False) -> int:
        """Add a track, below another one and behind the tracks before it; return its number."""
        uuid = len(self._tracks) + 1
        packet = pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        descriptor = packet.track_descriptor
        descriptor.uuid, descriptor.name = uuid, name
        descriptor.child_ordering = pb.TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = uuid
        if parent:
            descriptor.parent_uuid = parent
        if is_counter:
            descriptor.counter.unit = pb.CounterDescriptor.UNIT_COUNT
        self._tracks.append(packet)
        return uuid

    def process(self, name: str, pid: int) -> int:
        """Add an outermost track; return its number."""
        uuid = self.track(name)
        process = self._tracks[-1].track_descriptor.process
        process.pid, process.process_name = pid, name
        return uuid

    def begin(self, track: int, at_ns: int, name: str, flow: int = 0, **figures: Figure) -> None:
        """Begin a slice; what begins before it ends is inside of it."""
        event = self._event(track, at_ns, pb.TrackEvent.TYPE_SLICE_BEGIN)
        event.name = name
        if flow:
            event.flow_ids.append(flow)
        for key, value in figures.items():
            annotation = event.debug_annotations.add(name=key)
            if isinstance(value, str):
                annotation.string_value = value
            else:
                annotation.int_value = value

    def end(self, track: int, at_ns: int) -> None:
        """End the slice that began last."""
        self._event(track, at_ns, pb.TrackEvent.TYPE_SLICE_END)

    def count(self, track: int, at_ns: int, value: int) -> None:
        """Set a number."""
        self._event(track, at_ns, pb.TrackEvent.TYPE_COUNTER).counter_value = value

    def _event(self, track: int, at_ns: int, kind: "pb.TrackEvent.Type") -> pb.TrackEvent:
        packet = pb.TracePacket(timestamp=at_ns, trusted_packet_sequence_id=_SEQUENCE)
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        self._events.append(packet)
        event: pb.TrackEvent = packet.track_event
        return event

    def encoded(self) -> bytes:
        """Return the file: tracks, and then events by time.

        Events of one time stay in their order, so that a slice ends before the next one begins.
        """
        events = sorted(self._events, key=lambda packet: packet.timestamp)
        encoded: bytes = pb.Trace(packet=[*self._tracks, *events]).SerializeToString()
        return encoded


class _Process:
    """Writes one timeline."""

    def __init__(self, writer: _Writer, index: int, timeline: Timeline) -> None:
        self._writer, self._timeline = writer, timeline
        self._uuid = writer.process(timeline.name or "timeline", index + 1)
        self._first_flow = 1 + index * 2**32
        self._runs = list(timeline.runs())

    def write(self) -> None:
        """Write all tracks."""
        self._engine()
        self._counters()
        self._rows()
        self._requests()

    def _engine(self) -> None:
        writer, steps = self._writer, self._timeline.steps
        track = writer.track("engine", self._uuid)
        columns = (steps.start_ns, steps.end_ns, steps.num_tokens, self._timeline.num_used_rows())
        parts = steps.parts_ns.tolist()
        for index, (start, end, num_tokens, num_rows) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            writer.begin(track, start, f"step {index}", rows=num_rows, tokens=num_tokens)
            at = start
            for name, duration in zip(PARTS, parts[index], strict=False):
                until = min(end, at + duration)
                if until > at:
                    writer.begin(track, at, name)
                    writer.end(track, until)
                at = until
            writer.end(track, end)

    def _counters(self) -> None:
        steps, writer = self._timeline.steps, self._writer
        counters = {
            "waiting": steps.num_waiting,
            "running": self._timeline.num_used_rows(),
            "tokens": steps.num_tokens,
        }
        if self._timeline.num_blocks and (steps.num_used_blocks >= 0).any():
            counters["KV blocks"] = steps.num_used_blocks
        for name, values in counters.items():
            track = writer.track(name, self._uuid, is_counter=True)
            last = None
            for at, value in zip(steps.start_ns.tolist(), values.tolist(), strict=True):
                if value not in (last, -1):
                    writer.count(track, at, value)
                    last = value

    def _rows(self) -> None:
        writer = self._writer
        group = writer.track("rows", self._uuid)
        tracks = [writer.track(f"row {row}", group) for row in range(self._timeline.num_rows)]
        for run in self._runs:
            track, request = tracks[run.row], self._timeline.requests[run.request]
            begin, end = self._times(run)
            writer.begin(track, begin, _name(request), self._flow(run.request))
            for span in run.spans:
                self._span(track, span)
            writer.end(track, end)

    def _span(self, track: int, span: Span) -> None:
        steps = self._timeline.steps
        self._writer.begin(
            track,
            int(steps.start_ns[span.first_step]),
            _WORDS[span.work],
            first_step=span.first_step,
            steps=span.num_steps,
            tokens=span.num_tokens,
            accepted_drafts=span.num_accepted,
        )
        self._writer.end(track, int(steps.end_ns[span.end - 1]))

    def _requests(self) -> None:
        writer = self._writer
        group = writer.track("requests", self._uuid)
        runs: dict[int, list[Run]] = defaultdict(list)
        for run in self._runs:
            runs[run.request].append(run)
        for index, request in enumerate(self._timeline.requests):
            track = writer.track(_name(request), group)
            flow = self._flow(index)
            for name, begin, end in self._stages(request, runs[index]):
                if end > begin:
                    writer.begin(track, begin, name, flow)
                    writer.end(track, end)
                    # The arrow goes from the first stage to the rows.
                    flow = 0

    def _stages(self, request: Request, runs: Sequence[Run]) -> Iterator[tuple[str, int, int]]:
        """Yield name, begin and end of what a request went through, one after the other."""
        steps = self._timeline.steps
        runs = sorted(runs, key=lambda run: run.first_step)
        at = self._times(runs[0])[0] if request.arrived_ns is None else request.arrived_ns
        waits = "queue"
        for run in runs:
            begin, end = self._times(run)
            # The answers of one request run beside one another.
            begin = max(begin, at)
            yield waits, at, begin
            prompt = [span for span in run.spans if span.work is Work.PREFILL]
            computed = int(steps.end_ns[prompt[-1].end - 1]) if prompt else begin
            yield "prompt", begin, computed
            yield "decode", max(begin, computed), end
            at, waits = max(at, end), "preempted or suspended"

    def _times(self, run: Run) -> tuple[int, int]:
        steps = self._timeline.steps
        return int(steps.start_ns[run.first_step]), int(steps.end_ns[run.end - 1])

    def _flow(self, request: int) -> int:
        return self._first_flow + request


def _name(request: Request) -> str:
    return f"{request.number} {request.label}" if request.label else f"request {request.number}"
