"""A slow client gets fewer and larger events, and the server keeps a bounded number.

The oracle of the encoding is the generated code; that of the merging is a list per request.
"""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from chairlift import _core
from chairlift.core.events import SampledLogprobs
from chairlift.core.new_request import NewRequest
from chairlift.server.calls.outbox import CAPACITY, MAX_TOKEN_BYTES, Outboxes
from chairlift.server.convert.messages import DeliveryOptions
from chairlift.v1 import generation_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

VOCAB = 300
ALL = DeliveryOptions(text=True, token_ids=True, logprobs=True, timeline=False, interval=1)


class Engine:
    """A scheduler with prompts of one token, whose tokens the test chooses."""

    def __init__(self, num_requests, max_tokens=1_000_000):
        self.core = _core.Scheduler(
            policy="continuous",
            batch_size=8,
            batch_window=0,
            batch_timeout=0,
            max_num_seqs=8,
            max_num_batched_tokens=8,
            max_model_len=1_000_000,
            max_queued_requests=8,
            vocab_size=VOCAB,
            block_size=1024,
            num_blocks=8 * 1024,
            kv_windows=[None],
            prefix_cache=False,
            hash_key=bytes(32),
            token_table=_core.TokenTable([b"<%d>" % i for i in range(VOCAB)], []),
        )
        self.plan = torch.zeros(self.core.plan_capacity, dtype=torch.int32)
        self.requests = [
            self.core.add(0, NewRequest([1], max_tokens=max_tokens)).request_id
            for _ in range(num_requests)
        ]

    def step(self, token):
        """Return each request that runs `token`, with minus the token as its log probability."""
        step = self.core.schedule(0, self.plan)
        num = int(self.plan[2])
        tokens = torch.full((num,), token, dtype=torch.int32)
        events = self.core.update(0, step, tokens)
        sampled = SampledLogprobs(-tokens.float(), tokens + 1)
        return SimpleNamespace(events=events, sampled=sampled)


def accept(outbox, engine, output=ALL):
    for i, request in enumerate(engine.requests):
        accepted = pb.Accepted(handle=f"h{i}")
        outbox.accept(request, f"r{i}", accepted, output, tenant_label="", arrived_at=0.0)


def read(outbox):
    return [
        event
        for message in outbox.take()
        for event in pb.GenerateResponse.FromString(message).events
    ]


async def test_tokens_that_wait_become_one_event_with_the_last_number():
    outboxes, engine = Outboxes(), Engine(1)
    with outboxes.open() as outbox:
        accept(outbox, engine)
        for token in range(VOCAB):
            assert outboxes.post(engine.step(token)).rest == []
        accepted, merged = read(outbox)
        assert (accepted.request_id, accepted.number) == ("r0", 1)
        assert accepted.accepted.handle == "h0"
        assert merged == pb.Event(
            request_id="r0",
            number=1 + VOCAB,
            tokens=pb.Tokens(
                text="".join(f"<{n}>" for n in range(VOCAB)),
                token_ids=range(VOCAB),
                num_tokens=VOCAB,
                logprobs=pb.Logprobs(
                    logprobs=[-float(n) for n in range(VOCAB)], ranks=range(1, VOCAB + 1)
                ),
            ),
        )
        assert not outbox


async def test_waiting_tokens_come_before_the_end():
    outboxes, engine = Outboxes(), Engine(1, max_tokens=1)
    with outboxes.open() as outbox:
        accept(outbox, engine)
        (finished,) = outboxes.post(engine.step(1)).rest
        assert finished.reason == "length"
        outbox.end(engine.requests[0], "r0", finished=pb.Finished())
        _, tokens, last = read(outbox)
        assert tokens.HasField("tokens")
        assert (tokens.number, tokens.last) == (2, False)
        assert (last.number, last.last, last.HasField("finished")) == (3, True, True)


async def test_kept_tokens_of_an_interval_are_no_reason_to_write():
    outboxes, engine = Outboxes(), Engine(1)
    with outboxes.open() as outbox:
        accept(outbox, engine, DeliveryOptions(True, True, False, False, interval=3))
        read(outbox)
        for number in range(6):
            outboxes.post(engine.step(number))
            if number in (0, 3):
                assert [e.tokens.num_tokens for e in read(outbox)] == [1 if number == 0 else 3]
            else:
                assert not outbox
        outbox.end(engine.requests[0], "r0", finished=pb.Finished())
        assert [e.tokens.num_tokens for e in read(outbox)] == [2, 0]


async def test_tokens_go_to_the_stream_of_their_request_and_wake_it_once():
    outboxes, engine = Outboxes(), Engine(2)
    with outboxes.open() as first, outboxes.open() as second:
        asked = {"tenant_label": "", "arrived_at": 0.0}
        first.accept(engine.requests[0], "a", pb.Accepted(), ALL, **asked)
        second.accept(engine.requests[1], "b", pb.Accepted(), ALL, **asked)
        assert [read(first)[0].request_id, read(second)[0].request_id] == ["a", "b"]
        await first.wait()
        waiting = asyncio.create_task(first.wait())
        assert outboxes.post(engine.step(5)).started == engine.requests
        await waiting
        assert outboxes.post(engine.step(6)).started == []
        assert [(e.request_id, e.tokens.num_tokens) for e in read(first)] == [("a", 2)]
        assert [(e.request_id, e.tokens.num_tokens) for e in read(second)] == [("b", 2)]


async def test_tokens_of_a_request_that_is_not_tracked_are_returned():
    outboxes, engine = Outboxes(), Engine(2)
    with outboxes.open() as outbox:
        accept(outbox, engine)
        outbox.forget(engine.requests[0])
        (left,) = outboxes.post(engine.step(9)).rest
        assert (left.request_id, left.text) == (engine.requests[0], "<9>")
    # A closed call takes its requests with it.
    assert len(outboxes.post(engine.step(9)).rest) == 2


async def test_no_message_outgrows_what_clients_receive():
    outboxes = Outboxes()
    with outboxes.open() as outbox:
        events = [pb.Event(tokens=pb.Tokens(text="x" * 300_000)) for _ in range(10)]
        for event in events:
            outbox.add(event)
        messages = outbox.take()
    assert len(messages) == 4
    assert all(len(message) < 2**21 for message in messages)
    parsed = [e for m in messages for e in pb.GenerateResponse.FromString(m).events]
    assert parsed == events


async def test_commands_wait_while_events_do():
    outboxes = Outboxes()
    with outboxes.open() as outbox:
        for _ in range(CAPACITY):
            assert not asyncio.ensure_future(outbox.wait_for_room()).done()
            outbox.add(pb.Event())
        waiting = asyncio.create_task(outbox.wait_for_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert len(read(outbox)) == CAPACITY
        await waiting


async def test_unsent_tokens_beyond_the_limit_make_a_stream_full_once():
    outboxes, engine = Outboxes(), Engine(1)
    stream = outboxes.core.open()
    options = {"group": 0, "text": True, "token_ids": False, "logprobs": False, "interval": 1}
    outboxes.core.track(engine.requests[0], stream, "a", b"", arrived_at=0, **options)

    def filled():
        step = engine.step(123)
        sampled = step.sampled
        return outboxes.core.post(0, step.events, sampled.logprobs, sampled.ranks).filled

    num_steps = MAX_TOKEN_BYTES // len("<123>")
    assert [filled() for _ in range(num_steps)] == [[]] * num_steps
    assert filled() == [stream]
    assert filled() == []
    outboxes.core.take(stream)
    assert filled() == []


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, VOCAB - 1)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.sampled_from(("end", "fail", "forget")), st.integers(0, 3)),
    ),
    max_size=60,
)


class Scenario:
    """One request's side of a random run."""

    def __init__(self, outbox, request, name):
        self.outbox, self.request, self.name = outbox, request, name
        self.produced, self.events = [], []
        self.end = ""

    def do(self, operation):
        if self.end:
            return
        self.end = operation
        if operation == "forget":
            self.outbox.forget(self.request)
        elif operation == "fail":
            failed = pb.Failed(error=pb.Error(reason="X"))
            self.outbox.end(self.request, self.name, failed=failed)
        else:
            self.outbox.end(self.request, self.name, finished=pb.Finished())

    def check(self, output):
        numbers = [event.number for event in self.events]
        assert numbers == sorted(set(numbers))
        if self.end == "forget":
            return
        first, *middle, last = self.events
        assert first.HasField("accepted")
        assert last.last
        assert last.HasField("failed" if self.end == "fail" else "finished")
        assert last.number == 2 + len(self.produced)
        outputs = [event.tokens for event in middle]
        tokens = self.produced
        assert sum(o.num_tokens for o in outputs) == len(tokens)
        assert "".join(o.text for o in outputs) == "".join(f"<{n}>" for n in tokens) * output.text
        assert [n for o in outputs for n in o.token_ids] == tokens * output.token_ids
        logprobs = [x for o in outputs for x in o.logprobs.logprobs]
        assert logprobs == [-float(n) for n in tokens] * output.logprobs
        ranks = [x for o in outputs for x in o.logprobs.ranks]
        assert ranks == [n + 1 for n in tokens] * output.logprobs


@pytest.mark.parametrize("interval", [0, 1, 4])
@given(operations=OPERATIONS, text=st.booleans(), token_ids=st.booleans(), logprobs=st.booleans())
async def test_what_is_read_is_what_was_produced(operations, text, token_ids, logprobs, interval):
    outboxes, engine = Outboxes(), Engine(4)
    output = DeliveryOptions(text, token_ids, logprobs, timeline=False, interval=interval)
    with outboxes.open() as outbox:
        accept(outbox, engine, output)
        scenarios = {f"r{i}": Scenario(outbox, r, f"r{i}") for i, r in enumerate(engine.requests)}
        ends = [("end", number) for number in range(4)]
        for operation, argument in [*operations, *ends, ("read", 0)]:
            if operation == "step":
                outboxes.post(engine.step(argument))
                for scenario in scenarios.values():
                    scenario.produced += [] if scenario.end else [argument]
            elif operation == "read":
                for event in read(outbox):
                    scenarios[event.request_id].events.append(event)
            else:
                scenarios[f"r{argument}"].do(operation)
        assert not outbox
    for scenario in scenarios.values():
        scenario.check(output)
