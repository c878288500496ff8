"""What the server writes down of requests, calls and its own life."""

import logging

import pytest
from chairlift.api.logs import TextFormatter
from chairlift.engine.engine import Engine
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import next_event, receive, start, until


@pytest.fixture
def records(caplog):
    """Return the fields of the records with a message."""
    caplog.set_level(logging.INFO)
    return lambda message: [r.fields for r in caplog.records if r.getMessage() == message]


async def test_each_request_leaves_one_line(serve, records):
    async with serve() as server:
        received = await server.say(start("a", max_tokens=8), start("b", prompt=[5] * 20))
        await server.one(start("c", max_tokens=2))
    lines = {line["request_id"]: line for line in records("request ended")}
    assert len(records("request ended")) == 3
    line = lines["a"]
    handle = next(e.accepted.handle for e in received.of("a") if e.HasField("accepted"))
    assert (line["handle"], line["status"], line["reason"]) == (handle, "OK", "length")
    assert (line["prompt_tokens"], line["output_tokens"], line["num_preemptions"]) == (3, 8, 0)
    parts = line["queued_s"] + line["prefill_s"] + line["decode_s"]
    assert 0 < parts <= line["seconds"]
    assert lines["b"]["prompt_tokens"] == 20
    assert lines["c"]["output_tokens"] == 2


async def test_a_request_whose_client_disconnects_is_logged_as_cancelled(serve, records):
    async with serve() as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=250))
        await next_event(call, "tokens")
        call.cancel()
        await server.until_idle()
    (line,) = records("request ended")
    assert (line["status"], line["reason"]) == ("CANCELLED", "cancelled")


async def test_a_refusal_is_logged_without_what_was_sent(serve, records):
    async with serve() as server:
        await server.say(start("x" * 200), start("a", sampling=pb.Sampling(top_p=2)))
    assert records("request refused") == [
        {"reason": "BAD_PARAMETER", "field": "request_id"},
        {"reason": "BAD_PARAMETER", "field": "sampling.top_p"},
    ]


async def test_a_label_cannot_pass_for_other_fields(serve, caplog):
    caplog.set_level(logging.INFO)
    label = 'a" status=OK handle=forged \\n'
    async with serve() as server:
        received = await server.say(start(label, max_tokens=1), start("a\nINFO forged"))
    assert received.end(label).HasField("finished")
    (record,) = [r for r in caplog.records if r.getMessage() == "request ended"]
    line = TextFormatter().format(record)
    assert r'request_id="a\" status=OK handle=forged \\n" ' in line
    # A label of two lines is refused, and not written down.
    assert "INFO forged" not in caplog.text


async def test_a_failed_request_is_logged_with_the_status_of_its_reason(serve, records):
    async with serve(max_num_seqs=1) as server:
        call = server.generation.Generate()
        await call.write(start("a", max_tokens=200))
        await next_event(call, "tokens")
        late = start("b")
        late.start.schedule.queue_timeout.FromMilliseconds(1)
        await call.write(late)
        await call.done_writing()
        await receive(call)
    lines = {line["request_id"]: line for line in records("request ended")}
    assert (lines["b"]["status"], lines["b"]["reason"]) == ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT")
    assert "prefill_s" not in lines["b"]


async def test_restart_and_drain_are_logged(serve, records, caplog, monkeypatch):
    async with serve() as server:
        with monkeypatch.context() as broken:

            def break_down(*_):
                raise MemoryError

            broken.setattr(Engine, "advance", break_down)
            await server.say(start("a"))
        await until(lambda: "the engine serves again" in caplog.messages)
    assert records("draining") == [{"grace_s": 0, "live": 0}]
