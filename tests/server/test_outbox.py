"""A slow client gets fewer and larger events, and the server keeps a bounded number."""

import asyncio

from chairlift import types
from chairlift.server.convert import Delivery
from chairlift.server.outbox import CAPACITY, Outbox, Track
from chairlift.server.stream import in_messages
from chairlift.v1 import generation_pb2 as pb

ALL = Delivery(text=True, token_ids=True, logprobs=True, timeline=False, interval=1)


def tokens(number):
    logprobs = types.Logprobs([-float(number)], [1])
    return types.Tokens(0, 0, f"<{number}>", [number], logprobs)


def test_tokens_that_wait_become_one_event_with_the_last_number():
    outbox, track = Outbox(), Track("a", ALL)
    outbox.add(track.accepted(pb.Accepted()))
    for number in range(1000):
        outbox.add_tokens(track, tokens(number))
    accepted, merged = outbox.take()
    assert accepted.sequence == 1
    assert merged.sequence == 1001
    assert merged.tokens.num_tokens == 1000
    assert list(merged.tokens.token_ids) == list(range(1000))
    assert list(merged.tokens.logprobs.logprobs) == [-float(n) for n in range(1000)]
    assert merged.tokens.text == "".join(f"<{n}>" for n in range(1000))
    assert not outbox


def test_waiting_tokens_come_before_the_end():
    outbox, track = Outbox(), Track("a", ALL)
    outbox.add_tokens(track, tokens(1))
    outbox.end(track, pb.Finished())
    first, last = outbox.take()
    assert first.HasField("tokens")
    assert (first.sequence, first.last) == (1, False)
    assert (last.sequence, last.last) == (2, True)


def test_kept_tokens_of_an_interval_are_no_reason_to_write():
    outbox = Outbox()
    track = Track("a", Delivery(True, True, False, False, interval=3))
    for number in range(6):
        outbox.add_tokens(track, tokens(number))
        if number in (0, 3):
            assert [e.tokens.num_tokens for e in outbox.take()] == [1 if number == 0 else 3]
        else:
            assert not outbox
    outbox.end(track, pb.Finished())
    assert [e.tokens.num_tokens for e in outbox.take()] == [2, 0]


def test_no_message_outgrows_what_clients_receive():
    events = [pb.Event(tokens=pb.Tokens(text="x" * 300_000)) for _ in range(10)]
    messages = list(in_messages(events))
    assert [event for message in messages for event in message] == events
    assert all(pb.GenerateResponse(events=message).ByteSize() < 2**21 for message in messages)
    assert len(messages) == 4


async def test_commands_wait_while_events_do():
    outbox = Outbox()
    for _ in range(CAPACITY):
        assert not asyncio.ensure_future(outbox.wait_for_room()).done()
        outbox.add(pb.Event())
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(outbox.take()) == CAPACITY
    await waiting
