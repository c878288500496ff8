"""What became of a tenant's requests in the last minute: its own, and no other tenant's."""

import pytest
from chairlift.server.metrics import MAX_NAMES, OTHER
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import server_pb2

from tests.server.connection import receive, start
from tests.server.test_auth import ANN, BOB, bearer, guarded, named, token_file

__all__ = ["guarded", "token_file"]


async def load_of(server, metadata=()):
    response = await server.info.GetLoad(server_pb2.GetLoadRequest(), metadata=metadata)
    watch = server.info.WatchLoad(server_pb2.WatchLoadRequest(), metadata=metadata)
    watched = await watch.read()
    watch.cancel()
    assert watched.load.tenants == response.load.tenants
    return {activity.tenant: activity for activity in response.load.tenants}


async def say(server, metadata, *commands):
    await receive(server.generation.Generate(iter(commands), metadata=metadata))


def reasons(activity):
    return {(entry.reason, entry.is_error): entry.count for entry in activity.reasons}


async def test_a_tenant_sees_its_own_figures_alone(serve, guarded):
    async with serve(server=guarded) as server:
        ann, bob = bearer(ANN), bearer(BOB)
        wrong = start("wrong", sampling=pb.Sampling(top_p=2))
        await say(server, ann, start("a", max_tokens=5), start("b", max_tokens=7), wrong)
        assert await load_of(server, bob) == {}
        await say(server, bob, start("a", max_tokens=3))
        (of_ann,) = (await load_of(server, ann)).values()
        (of_bob,) = (await load_of(server, bob)).values()
    assert (of_ann.tenant, of_bob.tenant) == ("ann", "bob")
    assert (of_ann.num_generated_tokens, of_bob.num_generated_tokens) == (12, 3)
    assert (of_ann.num_started, of_bob.num_started) == (2, 1)
    assert reasons(of_ann) == {("length", False): 2, ("BAD_PARAMETER", True): 1}
    assert reasons(of_bob) == {("length", False): 1}
    median, slowest = of_ann.time_to_first_token_p50, of_ann.time_to_first_token_p99
    assert 0 < median.ToMicroseconds() <= slowest.ToMicroseconds()


async def test_without_authentication_all_tenants_are_seen(serve):
    async with serve(server={"trust_tenant_metadata": True}) as server:
        for name in ("x", "y"):
            await say(server, named(name), start("a", max_tokens=3))
        assert set(await load_of(server)) == {"x", "y"}
        assert set(await load_of(server, named("z"))) == {"x", "y"}


async def test_callers_without_a_name_are_one_tenant(serve):
    async with serve() as server:
        assert await load_of(server) == {}
        await say(server, (), start("a", max_tokens=3))
        (activity,) = (await load_of(server)).values()
    assert (activity.tenant, activity.num_generated_tokens) == ("", 3)


@pytest.mark.parametrize("name", [OTHER, "late"])
async def test_tenants_that_share_a_label_see_nothing_of_each_other(serve, guarded, name):
    settings = {**guarded, "trust_tenant_metadata": True}
    async with serve(server=settings) as server:
        for number in range(MAX_NAMES):
            server.server.metrics.tenant_label(f"early-{number}")
        for tenant in (name, "hidden"):
            await say(server, bearer(ANN) + named(tenant), start("a", max_tokens=3))
        assert await load_of(server, bearer(ANN) + named(name)) == {}


async def test_a_request_that_fails_is_an_error(serve):
    slow = {"batching": "static", "batch_size": 2, "batch_timeout_s": 60}
    async with serve(queue_timeout_s=0.05, **slow) as server:
        call = server.generation.Generate()
        await call.write(start("a"))
        while not (received := await call.read()).events[-1].last:
            pass
        assert received.events[-1].failed.error.reason == "QUEUE_TIMEOUT"
        (activity,) = (await load_of(server)).values()
        call.cancel()
    assert reasons(activity) == {("QUEUE_TIMEOUT", True): 1}
    assert activity.num_started == 0
    assert not activity.HasField("time_to_first_token_p50")
