"""The file for Perfetto, decoded: tracks, nesting, order and times."""

from collections import defaultdict

import pytest
from chairlift.timeline.perfetto import render_perfetto
from chairlift.timeline.stubs import perfetto_trace_pb2 as pb

from tests.timeline.steps import MS, example

BEGIN, END, COUNTER = (
    pb.TrackEvent.TYPE_SLICE_BEGIN,
    pb.TrackEvent.TYPE_SLICE_END,
    pb.TrackEvent.TYPE_COUNTER,
)

Slice = tuple[int, str, float, float]
"""Depth, name, begin and end in milliseconds."""


class Decoded:
    """The tracks of a file by their paths."""

    def __init__(self, encoded: bytes) -> None:
        self.packets = list(pb.Trace.FromString(encoded).packet)
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor
            for p in self.packets
            if p.HasField("track_descriptor")
        }
        self.events: dict[str, list[pb.TracePacket]] = defaultdict(list)
        for packet in self.packets:
            if packet.HasField("track_event"):
                self.events[self.path(packet.track_event.track_uuid)].append(packet)

    def path(self, uuid: int) -> str:
        track = self.tracks[uuid]
        above = f"{self.path(track.parent_uuid)}/" if track.parent_uuid else ""
        return above + str(track.name)

    def slices(self, path: str) -> list[Slice]:
        """Return the slices of a track; each end closes the one that began last."""
        found: list[Slice] = []
        is_open: list[int] = []
        for packet in self.events[path]:
            event, at = packet.track_event, packet.timestamp / MS
            if event.type == BEGIN:
                found.append((len(is_open), event.name, at, -1.0))
                is_open.append(len(found) - 1)
            elif event.type == END:
                place = is_open.pop()
                found[place] = (*found[place][:3], at)
        assert not is_open
        return found


@pytest.fixture
def decoded() -> Decoded:
    return Decoded(render_perfetto([example(), example("static")]))


def test_tracks_come_before_events_and_events_are_in_order_of_time(decoded: Decoded) -> None:
    kinds = [packet.HasField("track_event") for packet in decoded.packets]
    assert kinds == sorted(kinds)
    times = [packet.timestamp for packet in decoded.packets if packet.HasField("track_event")]
    assert times == sorted(times)


def test_each_timeline_is_a_process(decoded: Decoded) -> None:
    processes = [t.process for t in decoded.tracks.values() if t.HasField("process")]
    assert [(p.pid, p.process_name) for p in processes] == [(1, "continuous"), (2, "static")]
    assert decoded.slices("static/engine") == decoded.slices("continuous/engine")


def test_a_step_holds_its_parts_one_after_the_other(decoded: Decoded) -> None:
    slices = decoded.slices("continuous/engine")
    assert slices[:6] == [
        (0, "step 0", 0.0, 1.0),
        (1, "schedule", 0.0, 0.1),
        (1, "inputs", 0.1, 0.2),
        (1, "forward", 0.2, 0.7),
        (1, "sample", 0.7, 0.9),
        (1, "update", 0.9, 1.0),
    ]
    assert [begin for depth, _, begin, _ in slices if depth == 0] == [0, 2, 4, 6, 8, 10, 12]


def test_a_row_holds_its_requests_and_their_work(decoded: Decoded) -> None:
    assert decoded.slices("continuous/rows/row 1") == [
        (0, "2 short & <sweet>", 0.0, 3.0),
        (1, "prompt", 0.0, 1.0),
        (1, "last token", 2.0, 3.0),
        (0, "3 late", 4.0, 9.0),
        (1, "prompt", 4.0, 5.0),
        (1, "verify drafts", 6.0, 7.0),
        (1, "last token", 8.0, 9.0),
    ]


def test_a_request_goes_from_the_queue_to_its_end(decoded: Decoded) -> None:
    assert decoded.slices("continuous/requests/3 late") == [
        (0, "queue", 2.0, 4.0),
        (0, "prompt", 4.0, 5.0),
        (0, "decode", 5.0, 9.0),
    ]
    assert decoded.slices("continuous/requests/1 a long prompt") == [
        (0, "prompt", 0.0, 3.0),
        (0, "decode", 3.0, 5.0),
        (0, "preempted or suspended", 5.0, 10.0),
        (0, "prompt", 10.0, 11.0),
        (0, "decode", 11.0, 13.0),
    ]


def test_an_arrow_joins_a_request_to_each_of_its_rows(decoded: Decoded) -> None:
    flows: dict[int, list[str]] = defaultdict(list)
    for path, packets in decoded.events.items():
        for packet in packets:
            for flow in packet.track_event.flow_ids:
                flows[flow].append(path)
    of_process = [sorted(paths) for paths in flows.values() if "static" in paths[0]]
    assert sorted(of_process) == [
        ["static/requests/1 a long prompt", "static/rows/row 0", "static/rows/row 0"],
        ["static/requests/2 short & <sweet>", "static/rows/row 1"],
        ["static/requests/3 late", "static/rows/row 1"],
    ]
    assert len(flows) == 6


def test_counters_have_a_value_where_it_changes(decoded: Decoded) -> None:
    def values(name: str) -> list[tuple[float, int]]:
        events = decoded.events[f"continuous/{name}"]
        assert all(packet.track_event.type == COUNTER for packet in events)
        return [(p.timestamp / MS, p.track_event.counter_value) for p in events]

    assert values("waiting") == [(0, 3), (2, 2), (4, 1), (6, 0)]
    assert values("running") == [(0, 2), (6, 1)]
    assert values("tokens") == [(0, 20), (2, 10), (4, 4), (8, 1), (10, 26), (12, 1)]
    assert values("KV blocks")[-1] == (12, 12)


def test_tracks_are_in_the_order_in_which_they_are_described(decoded: Decoded) -> None:
    siblings = [t for t in decoded.tracks.values() if decoded.path(t.uuid).count("/") == 1]
    ranks = [track.sibling_order_rank for track in siblings]
    assert ranks == sorted(ranks)
    parents = [t for t in decoded.tracks.values() if not t.parent_uuid]
    assert {track.child_ordering for track in parents} == {pb.TrackDescriptor.EXPLICIT}


def test_figures_of_a_span_are_with_it(decoded: Decoded) -> None:
    events = [p.track_event for p in decoded.events["continuous/rows/row 1"]]
    (verify,) = [event for event in events if event.name == "verify drafts"]
    figures = {a.name: a.int_value for a in verify.debug_annotations}
    assert figures == {"first_step": 3, "steps": 1, "tokens": 4, "accepted_drafts": 2}
