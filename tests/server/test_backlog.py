"""Requests that would wait too long are refused at once."""

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.server.limits.backlog import Backlog
from chairlift.v1 import generation_pb2 as pb
from google.protobuf import duration_pb2
from grpc import StatusCode as Code

from tests.server.connection import next_event, start


class Queue:
    """A server with one row, seen from the backlog: a request starts every two seconds."""

    def __init__(self):
        self.now = 0.0
        self.slots = []
        self.backlog = Backlog(lambda: len(self.slots), lambda: self.now)

    def enter(self, tenant="", within_s=None):
        self.slots.append(self.backlog.admit(tenant, within_s))

    def start(self, num):
        for _ in range(num):
            self.now += 2.0
            self.slots.pop(0).end(started=True)


@pytest.fixture
def queue():
    """Twenty requests, of which ten have started."""
    queue = Queue()
    for _ in range(20):
        queue.enter()
    queue.start(10)
    return queue


def test_a_request_waits_for_all_before_it(queue):
    assert queue.backlog.wait_s("") == pytest.approx(22.0)


def test_a_request_that_would_wait_too_long_is_refused_with_the_wait(queue):
    with pytest.raises(RequestError) as refused:
        queue.enter(within_s=27.0)
    assert refused.value.reason is Reason.DEADLINE_UNREACHABLE
    assert refused.value.retry_after_s == pytest.approx(22.0)
    queue.enter(within_s=28.0)


def test_a_tenant_does_not_wait_for_the_flood_of_another(queue):
    assert queue.backlog.wait_s("quiet") == pytest.approx(4.0)


def test_no_request_is_refused_before_the_start_rate_is_known():
    queue = Queue()
    for _ in range(20):
        queue.enter(within_s=1e-6)
    queue.start(7)
    assert queue.backlog.wait_s("") == 0.0


def test_on_an_idle_server_no_request_waits(queue):
    queue.start(10)
    queue.now += 3600.0
    assert queue.backlog.wait_s("") == 0.0
    queue.enter()
    assert queue.backlog.wait_s("") == pytest.approx(4.0), "the pause is not counted"


def test_a_request_that_ends_without_a_token_does_not_count_as_a_start(queue):
    for slot in queue.slots[5:]:
        slot.end(started=False)
        slot.end(started=False)
    del queue.slots[5:]
    assert queue.backlog.wait_s("") == pytest.approx(12.0)


def test_a_request_does_not_wait_for_the_suspended_until_they_have_credit(queue):
    suspended = [queue.backlog.admit("", None, suspended=True) for _ in range(5)]
    assert queue.backlog.wait_s("") == pytest.approx(22.0)
    queue.slots += suspended
    for slot in suspended:
        slot.begin()
        slot.begin()
    assert queue.backlog.wait_s("") == pytest.approx(32.0)
    suspended[0].end(started=False)
    suspended[0].begin()
    assert queue.backlog.wait_s("") == pytest.approx(30.0)


async def test_suspended_requests_make_none_miss_its_target(serve):
    async with serve(max_num_seqs=1) as server:
        received = await server.say(*(start(f"short{i}", max_tokens=20) for i in range(12)))
        assert len({event.request_id for event in received.events}) == 12
        call = server.generation.Generate()
        for i in range(500):
            await call.write(start(f"r{i}", credit=0))
        num_accepted = 0
        while num_accepted < 500:
            num_accepted += sum(e.HasField("accepted") for e in (await call.read()).events)
        command = start("prompt", max_tokens=1)
        within = duration_pb2.Duration(seconds=5)
        command.start.schedule.time_to_first_token.CopyFrom(within)
        assert (await server.one(command)).end("prompt").HasField("finished")
        call.cancel()
        await server.until_idle()


async def busy(server):
    """A call on a server with one row: the pace is known, one request runs and two wait."""
    call = server.generation.Generate()
    for i in range(12):
        await call.write(start(f"short{i}", max_tokens=5))
    for i in range(3):
        await call.write(start(f"long{i}", max_tokens=250))
    seen = []
    while not any(e.request_id == "long0" and e.HasField("tokens") for e in seen):
        seen += await next_event(call, "tokens")
    return call


def urgent(name):
    command = start(name, max_tokens=1)
    command.start.schedule.time_to_first_token.CopyFrom(duration_pb2.Duration(nanos=1_000_000))
    return command


async def test_a_target_that_would_be_missed_is_refused_on_a_stream(serve):
    async with serve(max_num_seqs=1) as server:
        call = await busy(server)
        await call.write(urgent("urgent"))
        events = await next_event(call, "rejected")
        (error,) = [e.rejected.error for e in events if e.HasField("rejected")]
        assert (error.code, error.reason) == (
            pb.STATUS_CODE_DEADLINE_EXCEEDED,
            "DEADLINE_UNREACHABLE",
        )
        assert error.retry_after.ToNanoseconds() > 1_000_000
        call.cancel()
        await server.until_idle()


async def test_a_target_that_would_be_missed_is_the_status_of_generate_one(serve):
    async with serve(max_num_seqs=1) as server:
        call = await busy(server)
        received = await server.one(urgent("urgent"))
        assert received.status.code is Code.DEADLINE_EXCEEDED
        assert received.status.reason == "DEADLINE_UNREACHABLE"
        call.cancel()
        await server.until_idle()


@pytest.mark.parametrize("place", ["engine.prepare", "engine.submit", "backlog.admit"])
async def test_a_start_that_fails_leaves_no_request_waiting(serve, monkeypatch, place):
    async with serve() as server:
        context = server.server._context

        def fail(*_, **__):
            raise MemoryError

        owner = context.backlog if place == "backlog.admit" else context.gate.engine()
        with monkeypatch.context() as broken:
            broken.setattr(owner, place.partition(".")[2], fail)
            received = await server.say(start("a"))
        (rejected,) = (e.rejected for e in received.events if e.HasField("rejected"))
        assert rejected.error.reason == "INTERNAL"
        assert (len(context.backlog), len(context.live)) == (0, 0)
        received = await server.say(start("a", max_tokens=1))
        assert received.end("a").HasField("finished")
        assert len(context.backlog) == 0
