"""Calls that watch the server: bounded in number, and in what waits for those that do not read."""

import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest
from chairlift.api.types import Sampling, Stopping
from chairlift.server.calls.registry import Registry, RequestNames
from chairlift.server.services import steps
from chairlift.server.services.overview import MAX_WATCHES
from chairlift.v1 import server_pb2, server_pb2_grpc

from tests.server.connection import Status, start


@pytest.fixture
def feeds():
    return steps.StepFeeds(Registry(), started_ns=0)


@pytest.fixture
def watch(feeds):
    """Start a feed of a tenant; return it and what to call with each record."""

    def begin(stack, tenant="ann"):
        return stack.enter_context(feeds.watch(tenant, lambda _callback: lambda: None))

    return begin


@pytest.fixture
def records(tiny_folder):
    """The records of some steps of an engine."""
    from chairlift.engine.engine import Engine

    engine = Engine(tiny_folder, max_num_seqs=2, max_num_batched_tokens=8)
    found = []
    engine.watch_steps(found.append)
    engine.generate([1, 2, 3], Sampling(temperature=0), Stopping(max_tokens=20, ignore_eos=True))
    assert len(found) > 10
    return found


def decoded(data):
    return server_pb2.WatchStepsResponse.FromString(data)


async def test_a_step_is_encoded_once_for_all_tenants_without_a_row_in_it(
    feeds, watch, records, monkeypatch
):
    made = []
    encode = steps._EncodedStep.of
    monkeypatch.setattr(steps._EncodedStep, "of", lambda *given: made.append(1) or encode(*given))
    async with AsyncExitStack() as stack:
        watchers = [watch(stack, tenant) for tenant in ("ann", "ann", "bob", "eve")]
        for record in records:
            feeds.add(record)
        first, *others = [decoded(await watcher.take()) for watcher in watchers]
        assert [step.step for step in first.steps] == [record.step for record in records]
        assert all(other == first for other in others)
    assert len(made) == len(records)


async def test_a_row_is_made_once_whatever_the_number_of_tenants(records, monkeypatch):
    """With a tenant for each row, and a watcher for each tenant, rows times tenants were made."""
    ids = sorted({engine_id for record in records for engine_id in record.request_ids.tolist()})
    names = {
        i: RequestNames(engine_id=i, handle=f"h{i}", request_id=f"r{i}", tenant=f"t{i}")
        for i in ids
    }
    feeds = steps.StepFeeds(SimpleNamespace(names=names.get), started_ns=0)
    made = []
    row = steps.pb.StepRow
    monkeypatch.setattr(steps.pb, "StepRow", lambda **fields: made.append(1) or row(**fields))
    with ExitStack() as stack:
        watchers = {
            i: stack.enter_context(feeds.watch(names[i].tenant, lambda _callback: lambda: None))
            for i in ids
        }
        for record in records:
            feeds.add(record)
        assert len(made) == sum(len(record.rows) for record in records)
        for i, watcher in watchers.items():
            for step, record in zip(decoded(await watcher.take()).steps, records, strict=True):
                own = [name == i for name in record.request_ids.tolist()]
                assert [row.request_id == f"r{i}" for row in step.rows] == own
                assert all(row.request_id in ("", f"r{i}") for row in step.rows)


async def test_all_learn_how_many_were_preempted_and_a_tenant_which_of_its_own(records):
    names = {
        7: RequestNames(engine_id=7, handle="h7", request_id="r", tenant="ann"),
        8: RequestNames(engine_id=8, handle="h8", request_id="r", tenant="bob"),
    }
    feeds = steps.StepFeeds(SimpleNamespace(names=names.get), started_ns=0)
    record = replace(records[0], done=records[0].done._replace(preempted=[7, 8, 9]))
    found = {}
    async with AsyncExitStack() as stack:
        watchers = {
            tenant: stack.enter_context(feeds.watch(tenant, lambda _callback: lambda: None))
            for tenant in ("ann", "bob", "eve")
        }
        feeds.add(record)
        for tenant, watcher in watchers.items():
            (step,) = decoded(await watcher.take()).steps
            found[tenant] = step.num_preempted, list(step.preempted_handles)
    assert found == {"ann": (3, ["h7"]), "bob": (3, ["h8"]), "eve": (3, [])}


async def test_what_is_kept_for_a_slow_watcher_is_bounded_in_bytes(
    feeds, watch, records, monkeypatch
):
    monkeypatch.setattr(steps, "CAPACITY_BYTES", 400)
    async with AsyncExitStack() as stack:
        slow, fast = watch(stack), watch(stack)
        for record in records:
            feeds.add(record)
            (seen,) = decoded(await fast.take()).steps
            assert seen.step == record.step
        data = await slow.take()
        assert len(data) <= 400 + 8
        response = decoded(data)
        assert response.num_dropped + len(response.steps) == len(records)
        assert response.num_dropped > 0
        assert response.steps[-1].step == records[-1].step


async def test_watches_of_a_connection_have_a_share_and_others_can_watch(serve):
    async with serve(listen="127.0.0.1:0") as server:
        load, step = server_pb2.WatchLoadRequest(), server_pb2.WatchStepsRequest()
        steps_calls = [server.info.WatchSteps(step) for _ in range(MAX_WATCHES // 2)]
        for call in steps_calls:
            await call.initial_metadata()
        load_calls = [server.info.WatchLoad(load) for _ in range(MAX_WATCHES // 4)]
        for call in load_calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await server.info.WatchSteps(step).read()
        status = Status.of(failed.value)
        assert (status.code, status.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUOTA_EXCEEDED",
        )
        assert "quota connection_share: this connection has 48 watches" in status.message
        own = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(server.address, options=own) as channel:
            watch = server_pb2_grpc.ServerServiceStub(channel).WatchSteps(step)
            await watch.initial_metadata()
            await server.say(start("a"))
            assert (await watch.read()).steps
        for call in steps_calls + load_calls:
            call.cancel()


def test_the_server_starts_with_a_health_package_that_has_no_list():
    # Before 1.85 the package has neither the messages nor the method.
    program = (
        "from grpc_health.v1 import health_pb2\n"
        "del health_pb2.HealthListRequest, health_pb2.HealthListResponse\n"
        "import chairlift.server.ops.health\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
