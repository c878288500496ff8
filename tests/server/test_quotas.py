"""Quotas: what one tenant may use, refused by name and with a time to retry."""

from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Request, Sampling
from chairlift.server.limits.quotas import QuotaLimits, Quotas, Sequences, sequences_of
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from tests.server.connection import cancel, next_event, receive, start

HALF_A_BATCH = {"batching": "static", "batch_size": 8, "batch_timeout_s": 60}
"""Requests wait as long as their stream is open."""


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def refusal(quotas, tenant="ann"):
    with pytest.raises(RequestError) as error:
        quotas.acquire(tenant)
    assert error.value.reason is Reason.QUOTA_EXCEEDED
    return error.value


def test_a_bucket_allows_a_burst_of_one_second_and_then_the_rate():
    clock = Clock()
    quotas = Quotas(QuotaLimits(rate=4.0), clock)
    for _ in range(4):
        quotas.acquire("ann")
    assert refusal(quotas).retry_after_s == 0.25
    clock.now += 0.25
    quotas.acquire("ann")
    assert "tenant_rate" in refusal(quotas).message
    clock.now += 1000
    for _ in range(4):
        quotas.acquire("ann")
    refusal(quotas)
    quotas.acquire("bob")


def test_a_rate_below_one_allows_one_request():
    clock = Clock()
    quotas = Quotas(QuotaLimits(rate=0.1), clock)
    quotas.acquire("ann")
    assert refusal(quotas).retry_after_s == pytest.approx(10)
    clock.now += 10
    quotas.acquire("ann")


@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0.1, 8))
def test_no_arrivals_pass_more_than_the_rate_allows(gaps, rate):
    clock = Clock()
    quotas = Quotas(QuotaLimits(rate=rate), clock)
    num_passed = 0
    for gap in gaps:
        clock.now += gap
        try:
            quotas.acquire("ann").release()
            num_passed += 1
        except RequestError as error:
            # A request that waits as long as the refusal says is admitted.
            clock.now += error.retry_after_s + 1e-9
            quotas.acquire("ann").release()
            num_passed += 1
        assert num_passed <= max(rate, 1) + rate * clock.now + 1e-6


def test_a_lease_that_is_released_twice_counts_once():
    quotas = Quotas(QuotaLimits(max_requests=1, max_queued_tokens=10))
    lease = quotas.acquire("ann")
    lease.reserve(10)
    for _ in range(2):
        lease.start()
        lease.release()
    quotas.acquire("ann").reserve(10)
    refusal(quotas)


def test_tenants_that_come_and_go_are_forgotten():
    clock = Clock()
    quotas = Quotas(QuotaLimits(rate=1.0), clock)
    staying = quotas.acquire("staying")
    for number in range(10_000):
        clock.now += 0.01
        quotas.acquire(f"tenant {number}").release()
    assert len(quotas) < 2048
    staying.release()


async def events_of(server, commands, tenant):
    metadata = (("chairlift-tenant", tenant),)
    return await receive(server.generation.Generate(iter(commands), metadata=metadata))


def error_of(event, reason="QUOTA_EXCEEDED"):
    assert event.HasField("rejected")
    error = event.rejected.error
    assert (error.reason, error.code) == (reason, pb.STATUS_CODE_RESOURCE_EXHAUSTED)
    assert error.retry_after.ToMilliseconds() > 0
    return error.message


async def test_live_requests_have_a_quota_that_is_given_back(serve):
    settings = {"tenant_max_requests": 2, "trust_tenant_metadata": True}
    async with serve(server=settings, **HALF_A_BATCH) as server:
        ann = server.generation.Generate(metadata=(("chairlift-tenant", "ann"),))
        for name in "abc":
            await ann.write(start(name))
        events = await next_event(ann, "rejected")
        (rejected,) = (event for event in events if event.HasField("rejected"))
        assert rejected.request_id == "c"
        assert "tenant_max_requests" in error_of(rejected)
        # Another tenant has its own; another stream of the same one has not.
        bob = server.generation.Generate(metadata=(("chairlift-tenant", "bob"),))
        await bob.write(start("a"))
        await next_event(bob, "accepted")
        (other,) = (await events_of(server, [start("a")], "ann")).events
        assert "tenant_max_requests" in error_of(other)
        await ann.write(cancel("a"))
        await next_event(ann, "finished")
        await ann.write(start("d"))
        assert (await next_event(ann, "accepted"))[-1].request_id == "d"
        ann.cancel()
        bob.cancel()
        await server.until_idle()
        received = await events_of(server, [start("a"), start("b")], "ann")
        assert received.end("a").HasField("finished")
        assert received.end("b").HasField("finished")


async def test_waiting_tokens_have_a_quota(serve):
    settings = {"tenant_max_queued_tokens": 40}
    async with serve(server=settings, **HALF_A_BATCH) as server:
        call = server.generation.Generate()
        await call.write(start("a", prompt=range(1, 31)))
        await next_event(call, "accepted")
        await call.write(start("b", prompt=range(1, 21)))
        events = await next_event(call, "rejected")
        (rejected,) = (event for event in events if event.HasField("rejected"))
        assert rejected.request_id == "b"
        assert error_of(rejected) == "quota tenant_max_queued_tokens: 30 of 40 tokens wait already"
        await call.write(start("c", prompt=range(1, 11)))
        assert (await next_event(call, "accepted"))[-1].request_id == "c"
        await call.done_writing()
        received = await receive(call)
        assert received.end("a").HasField("finished")
        assert received.end("c").HasField("finished")
        received = await server.say(start("b", prompt=range(1, 41)))
        assert received.end("b").HasField("finished")


async def test_waiting_tokens_of_all_tenants_have_a_cap(serve):
    settings = {"max_queued_tokens": 40, "trust_tenant_metadata": True}
    async with serve(server=settings, **HALF_A_BATCH) as server:
        ann, bob = (
            server.generation.Generate(metadata=(("chairlift-tenant", name),))
            for name in ("ann", "bob")
        )
        await ann.write(start("a", prompt=range(1, 31)))
        await next_event(ann, "accepted")
        await bob.write(start("b", prompt=range(1, 21)))
        events = await next_event(bob, "rejected")
        (rejected,) = (event for event in events if event.HasField("rejected"))
        message = error_of(rejected, "QUEUE_FULL")
        assert message == "max_queued_tokens: 30 of 40 tokens wait already"
        await ann.done_writing()
        assert (await receive(ann)).end("a").HasField("finished")
        await bob.write(start("b", prompt=range(1, 41)))
        await bob.done_writing()
        assert (await receive(bob)).end("b").HasField("finished")
        status = (await server.one(start("a", prompt=range(1, 42)))).status
        assert status.reason == "PROMPT_TOO_LONG"
        assert "max_queued_tokens is 40" in status.message


async def test_a_prompt_over_the_quota_of_tokens_has_no_retry_delay(serve):
    async with serve(server={"tenant_max_queued_tokens": 40}) as server:
        status = (await server.one(start("a", prompt=range(1, 42)))).status
        assert (status.code, status.reason) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "PROMPT_TOO_LONG",
        )
        assert status.retry_after_s is None


async def test_a_wrong_request_keeps_no_lease(serve):
    async with serve(server={"tenant_max_requests": 1}) as server:
        for _ in range(3):
            status = (await server.one(start("a", prompt=range(400)))).status
            assert status.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (await server.one(start("a"))).status.code is grpc.StatusCode.OK


async def test_the_rate_is_the_status_of_a_call(serve):
    async with serve(server={"tenant_rate": 0.001}) as server:
        assert (await server.one(start("a"))).status.code is grpc.StatusCode.OK
        status = (await server.one(start("a"))).status
        assert (status.code, status.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUOTA_EXCEEDED",
        )
        assert "tenant_rate" in status.message
        assert status.retry_after_s > 900


@asynccontextmanager
async def suspended(server, num, **metadata):
    """A connection with requests that have no credit; return the errors of those refused."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(server.address, options=own) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(metadata=tuple(metadata.items()))
        for i in range(num):
            await call.write(start(f"r{i}", credit=0))
        events = []
        while len(events) < num:
            events += (await call.read()).events
        yield [event.rejected.error for event in events if event.HasField("rejected")]
        call.cancel()


QUEUE = {"max_num_seqs": 8, "max_queued_requests": 64}


@pytest.mark.parametrize("num_connections", [1, 2])
async def test_suspended_requests_of_others_do_not_fill_the_queue(serve, num_connections):
    async with serve(listen="127.0.0.1:0", **QUEUE) as server:
        async with AsyncExitStack() as stack:
            for _ in range(num_connections):
                refused = await stack.enter_async_context(suspended(server, 100))
                assert {error.reason for error in refused} == {"QUOTA_EXCEEDED"}
                assert "quota connection_share: this connection has" in refused[-1].message
            for _ in range(20):
                assert (await server.one(start("a"))).end("a").HasField("finished")
        await server.until_idle()


async def test_a_tenant_has_one_share_of_the_queue_over_all_its_connections(serve):
    trusting = {"trust_tenant_metadata": True}
    async with serve(listen="127.0.0.1:0", server=trusting, **QUEUE) as server:
        async with AsyncExitStack() as stack:
            refused = []
            for _ in range(6):
                ann = suspended(server, 30, **{"chairlift-tenant": "ann"})
                refused += await stack.enter_async_context(ann)
            assert {error.reason for error in refused} == {"QUOTA_EXCEEDED"}
            assert "quota tenant_share: this tenant has" in refused[-1].message
            for _ in range(20):
                received = await events_of(server, [start("a")], "bob")
                assert received.end("a").HasField("finished")
        await server.until_idle()


def test_sequences_count_in_the_quota_of_live_requests():
    quotas = Quotas(QuotaLimits(max_requests=4))
    lease = quotas.acquire("ann", sequences=Sequences(3))
    with pytest.raises(RequestError) as error:
        quotas.acquire("ann", sequences=Sequences(2))
    assert error.value.reason is Reason.QUOTA_EXCEEDED
    assert error.value.retry_after_s is not None
    assert error.value.message == (
        "quota tenant_max_requests: 3 requests are live already, and n asks for 2"
    )
    quotas.acquire("ann")
    lease.release()
    quotas.acquire("ann", sequences=Sequences(3))
    refusal(quotas)


def test_sequences_cost_as_many_tokens_of_the_bucket():
    clock = Clock()
    quotas = Quotas(QuotaLimits(rate=4.0), clock)
    quotas.acquire("ann", sequences=Sequences(3))
    with pytest.raises(RequestError) as error:
        quotas.acquire("ann", sequences=Sequences(3))
    assert "tenant_rate" in error.value.message
    assert error.value.retry_after_s == 0.5
    clock.now += 0.5
    quotas.acquire("ann", sequences=Sequences(3))


@pytest.mark.parametrize("limits", [QuotaLimits(max_requests=3), QuotaLimits(rate=3.0)])
def test_more_sequences_than_a_quota_are_refused_for_good(limits):
    quotas = Quotas(limits)
    asked = sequences_of(Request("a", sampling=Sampling(n=4)))
    with pytest.raises(RequestError) as error:
        quotas.acquire("ann", sequences=asked)
    assert error.value.reason is Reason.QUOTA_EXCEEDED
    assert error.value.retry_after_s is None
    assert error.value.field == "sampling.n"
    assert "quota tenant_" in error.value.message
    quotas.acquire("ann")


@pytest.mark.parametrize("n", [0, -1, None, "2", 1 << 40])
def test_a_number_of_sequences_that_is_none_is_left_to_the_check_of_the_field(n):
    assert sequences_of(Request("a", sampling=Sampling(n=n))).num == 1


async def test_a_request_with_more_sequences_than_the_quota_is_refused_by_name(serve):
    async with serve(server={"tenant_max_requests": 2}) as server:
        status = (await server.one(start("a", sampling=pb.Sampling(n=3)))).status
        assert status.reason == "QUOTA_EXCEEDED"
        assert status.message == "sampling.n: quota tenant_max_requests is 2, got 3 at once"
        assert status.retry_after_s is None
        received = await server.say(start("b", sampling=pb.Sampling(n=2)))
        assert received.end("b").HasField("finished")
