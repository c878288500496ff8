"""Adapters over gRPC: an administrator loads and unloads them, tenants name them."""

import asyncio
import os
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.client import connect_async
from chairlift.v1 import admin_pb2, server_pb2
from chairlift.v1 import generation_pb2 as pb
from google.protobuf import duration_pb2
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.connection import cancel, next_event, start, status_of

Code = grpc.StatusCode
ADMIN, ANN, BOB = "root-0123456789abcdef", "ann-0123456789abcdef", "bob-0123456789abcdef"


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture(scope="module")
def lora(tiny_folder, tmp_path_factory):
    """A folder of adapters: two that are whole, one of another model, and a link out of it."""
    root = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    outside = adapters.write(root / "outside", model)
    folder = root / "inside"
    folder.mkdir()
    for seed, name in enumerate(("up", "down")):
        adapters.write(folder / name, model, seed=seed)
    adapters.write(folder / "big", model, rank=33)
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    for name in ("inner", *(f"inner{number}" for number in range(20))):
        (folder / name).symlink_to(folder / "up")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "adapter_config.json")
    (folder / "files").mkdir()
    for file in outside.iterdir():
        (folder / "files" / file.name).symlink_to(file)
    return SimpleNamespace(folder=folder, outside=outside)


@pytest.fixture
def secrets(tmp_path):
    """Settings of a server with two tenants and an administrator."""
    files = {"auth_tokens": f"ann:{ANN}\nbob:{BOB}\n", "admin_tokens": f"root:{ADMIN}\n"}
    for name, text in files.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in files}


@pytest.fixture
def served(serve, secrets, lora):
    settings = {"adapter_folder": str(lora.folder), "max_adapters": 2}
    return lambda server=None, **more: serve(server=secrets | (server or {}), **settings | more)


@pytest.fixture
def on_demand(served):
    return lambda **more: served(server={"adapters_on_demand": True}, **more)


def load(server, name, *, folder="", tenants=(), token=ADMIN):
    request = admin_pb2.LoadAdapterRequest(name=name, folder=folder, tenants=tenants)
    return server.admin.LoadAdapter(request, metadata=bearer(token))


def unload(server, name, timeout_s=30.0):
    timeout = duration_pb2.Duration()
    timeout.FromMilliseconds(round(timeout_s * 1000))
    request = admin_pb2.UnloadAdapterRequest(name=name, timeout=timeout)
    return server.admin.UnloadAdapter(request, metadata=bearer(ADMIN))


async def names(server):
    request = admin_pb2.ListAdaptersRequest()
    listed = await server.admin.ListAdapters(request, metadata=bearer(ADMIN))
    return [adapter.name for adapter in listed.adapters]


async def answer(server, token, adapter):
    async with connect_async(server.address, token=token) as client:
        generation = client.generate(
            [1, 2, 3], adapter=adapter, max_tokens=8, temperature=0, ignore_eos=True, token_ids=True
        )
        (answer,) = await generation.all()
        return answer.token_ids


async def test_an_administrator_loads_an_adapter_and_its_tenants_use_it(served):
    async with served() as server:
        response = await load(server, "mine", folder="up", tenants=["ann"])
        adapter = response.adapter
        assert (adapter.name, adapter.state) == ("mine", admin_pb2.ADAPTER_STATE_READY)
        assert (adapter.rank, list(adapter.tenants)) == (4, ["ann"])
        assert adapter.num_bytes > 0
        await load(server, "down")
        assert await names(server) == ["down", "mine"]
        base = await answer(server, ANN, "")
        up, down = await answer(server, ANN, "mine"), await answer(server, BOB, "down")
        assert len({tuple(base), tuple(up), tuple(down)}) == 3
        with pytest.raises(RequestError) as caught:
            await answer(server, BOB, "mine")
        assert (caught.value.reason, caught.value.field) == (Reason.UNKNOWN_ADAPTER, "adapter")
        info = server_pb2.GetModelInfoRequest()
        for token, expected in ((ANN, ["down", "mine"]), (BOB, ["down"])):
            model = await server.info.GetModelInfo(info, metadata=bearer(token))
            assert list(model.adapters) == expected


CALLS = {
    "LoadAdapter": admin_pb2.LoadAdapterRequest(name="up"),
    "UnloadAdapter": admin_pb2.UnloadAdapterRequest(name="up"),
    "ListAdapters": admin_pb2.ListAdaptersRequest(),
}


@pytest.mark.parametrize("method", CALLS)
async def test_no_token_but_an_administrators_changes_adapters(served, serve, method):
    async with served() as server:
        await load(server, "up")
        for metadata in ((), bearer(ANN), bearer(ADMIN[:-1]), bearer(ADMIN) + bearer(ADMIN)):
            call = getattr(server.admin, method)(CALLS[method], metadata=metadata)
            assert (await status_of(call)).code is Code.UNAUTHENTICATED
        assert await names(server) == ["up"]
        # And an administrator's token is no tenant's.
        request = server_pb2.GetServerInfoRequest()
        info = server.info.GetServerInfo(request, metadata=bearer(ADMIN))
        assert (await status_of(info)).code is Code.UNAUTHENTICATED


def test_the_calls_above_are_all_of_the_service():
    methods = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    assert {method.name for method in methods} == {*CALLS}


@pytest.mark.parametrize("method", CALLS)
async def test_a_server_without_administrators_changes_no_adapter(serve, method):
    async with serve(max_adapters=1) as server:
        call = getattr(server.admin, method)(CALLS[method], metadata=bearer(ADMIN))
        status = await status_of(call)
        assert (status.code, status.reason) == (Code.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "admin_tokens" in status.message


REFUSED = {
    "a parent": ({"name": "x", "folder": "../outside"}, "folder: expected 1 to 64 letters"),
    "parents": ({"name": "x", "folder": ".."}, "folder: expected 1 to 64 letters"),
    "the folder itself": ({"name": "."}, "folder: expected 1 to 64 letters"),
    "an absolute path": ({"name": "x", "folder": "/etc"}, "folder: expected 1 to 64 letters"),
    "a link out": ({"name": "link"}, "folder: expected one inside adapter_folder"),
    "a link to itself": ({"name": "loop"}, "folder: expected a folder"),
    "links of files": ({"name": "files"}, "folder: expected one inside adapter_folder"),
    "a pipe": ({"name": "pipes"}, "adapter_config.json: not a regular file"),
    "a long name": ({"name": "x", "folder": "x" * 65}, "folder: expected 1 to 64 letters"),
    "a name with a NUL": ({"name": "x", "folder": "a\0"}, "folder: expected 1 to 64 letters"),
    "nothing": ({"name": "missing"}, "expected a folder with adapter_config.json"),
    "no name": ({"name": ""}, "folder: expected 1 to 64 letters"),
    "a name of two lines": ({"name": "a\nb", "folder": "up"}, "name: expected 1 to 64 letters"),
    "a rank that is too large": ({"name": "big"}, "r: expected at most 32 (max_adapter_rank)"),
    "an empty tenant": ({"name": "up", "tenants": [""]}, "tenants: expected names of 1 to"),
    "many tenants": ({"name": "up", "tenants": ["a"] * 1025}, "tenants: expected at most 1024"),
    "a name in use": ({"name": "down"}, "name: expected one that is free, got one that is ready"),
}


async def test_what_cannot_be_loaded_is_refused_alone(served):
    async with served() as server:
        await load(server, "down")
        for name, (fields, message) in REFUSED.items():
            status = await status_of(load(server, **fields))
            assert status.code is Code.INVALID_ARGUMENT, name
            assert message in status.message, name
        assert await names(server) == ["down"]
        await load(server, "inner")
        full = await status_of(load(server, "up"))
        assert (full.code, full.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert await answer(server, ANN, "inner") != await answer(server, ANN, "down")


async def test_an_adapter_in_use_is_unloaded_when_its_requests_end_or_time_is_up(served):
    async with served() as server:
        await load(server, "up")
        call = server.generation.Generate(metadata=bearer(ANN))
        for label, adapter in (("base", ""), ("long", "up")):
            await call.write(start(label, max_tokens=200, adapter=adapter))
        await next_event(call, "tokens")
        response = await unload(server, "up", timeout_s=0.002)
        assert response.num_failed == 1
        assert await names(server) == []
        gone = await status_of(unload(server, "up"))
        assert (gone.code, gone.reason) == (Code.NOT_FOUND, "UNKNOWN_ADAPTER")
        ends = {}
        while len(ends) < 2:
            ends |= {event.request_id: event for event in (await call.read()).events if event.last}
        assert ends["long"].failed.error.reason == "UNKNOWN_ADAPTER"
        assert ends["base"].finished.reason == pb.FINISH_REASON_LENGTH
        call.cancel()
        # The slot is free again, and what was computed before is not used.
        await load(server, "up", folder="down")
        await load(server, "down")
        assert await answer(server, ANN, "up") == await answer(server, ANN, "down")


@pytest.mark.parametrize("timeout_s", [-1.0, 601.0])
async def test_the_time_of_an_unload_is_bounded(served, timeout_s):
    async with served() as server:
        status = await status_of(unload(server, "up", timeout_s))
        assert status.code is Code.INVALID_ARGUMENT
        assert status.fields == ["timeout"]


async def test_a_lost_administrator_leaves_no_half_loaded_adapter(served):
    async with served() as server:
        call = load(server, "up")
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        # Whether it had begun or not, it is whole or gone, and its name can be used.
        if await names(server):
            await unload(server, "up")
        await load(server, "up")
        assert await answer(server, ANN, "up") != await answer(server, ANN, "")


async def test_memory_is_planned_for_adapters(served):
    async with served() as server:
        plans = [
            await server.info.PlanMemory(
                server_pb2.PlanMemoryRequest(max_adapters=number), metadata=bearer(ANN)
            )
            for number in (0, 1, 4)
        ]
        none, one, four = (plan.adapter_bytes for plan in plans)
        assert none == 0 < one
        assert four == 4 * one


# --- on demand --------------------------------------------------------------------------------


async def reason_of(call):
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.reason, caught.value.field


async def test_a_request_loads_the_adapter_that_it_names(on_demand, served):
    async with served() as server:
        await load(server, "up")
        expected = await answer(server, ANN, "up")
        # And without the setting none is loaded.
        assert (await reason_of(answer(server, ANN, "down")))[0] is Reason.UNKNOWN_ADAPTER
    async with on_demand() as server:
        answers = await asyncio.gather(*(answer(server, ANN, "up") for _ in range(8)))
        assert answers == [expected] * 8
        request = admin_pb2.ListAdaptersRequest()
        (adapter,) = (await server.admin.ListAdapters(request, metadata=bearer(ADMIN))).adapters
        assert (adapter.name, adapter.generation) == ("up", 1)


UNKNOWN = ("missing", "../outside", "/etc", ".", "link", "loop", "files", "a\nb", "x" * 65, "big")


async def test_a_name_without_an_adapter_loads_nothing(on_demand):
    async with on_demand() as server:
        for name in UNKNOWN:
            found = await reason_of(answer(server, ANN, name))
            assert found == (Reason.UNKNOWN_ADAPTER, "adapter"), name
        assert await names(server) == []


async def test_a_tenant_loads_the_adapters_that_the_settings_give_it(on_demand):
    async with on_demand(adapter_tenants={"up": "ann"}) as server:
        for _ in range(2):
            found = await reason_of(answer(server, BOB, "up"))
            assert found == (Reason.UNKNOWN_ADAPTER, "adapter")
            await answer(server, BOB, "down")
        assert await names(server) == ["down"]
        await answer(server, ANN, "up")
        assert await reason_of(answer(server, BOB, "up")) == (Reason.UNKNOWN_ADAPTER, "adapter")


async def test_the_adapter_that_was_named_least_recently_makes_room(on_demand):
    async with on_demand() as server:
        first = await answer(server, ANN, "up")
        await answer(server, BOB, "down")
        await answer(server, ANN, "up")
        await answer(server, ANN, "inner")
        assert await names(server) == ["inner", "up"]
        await answer(server, ANN, "down")
        assert await names(server) == ["down", "inner"]
        # What was computed with the load before is not used for the next one.
        assert await answer(server, ANN, "up") == first


async def test_an_adapter_that_an_administrator_loaded_makes_no_room(on_demand):
    async with on_demand() as server:
        await load(server, "up")
        for name in ("down", "inner", "down"):
            await answer(server, ANN, name)
        assert await names(server) == ["down", "up"]


async def read_end(call):
    while True:
        for event in (await call.read()).events:
            if event.last:
                return event


async def test_an_adapter_in_use_makes_no_room_until_its_request_ends(on_demand):
    async with on_demand(max_adapters=1) as server:
        call = server.generation.Generate(metadata=bearer(ANN))
        await call.write(start("held", adapter="up", credit=0))
        await next_event(call, "accepted")
        late = server.generation.Generate(metadata=bearer(BOB))
        schedule = pb.Schedule()
        schedule.queue_timeout.FromMilliseconds(100)
        await late.write(start("late", adapter="down", schedule=schedule))
        assert (await read_end(late)).rejected.error.reason == "QUEUE_TIMEOUT"
        waiting = asyncio.create_task(answer(server, BOB, "down"))
        # Requests for what is loaded, or for none, go on meanwhile.
        await answer(server, BOB, "up")
        await answer(server, BOB, "")
        assert not waiting.done()
        await call.write(cancel("held"))
        assert len(await waiting) == 8
        assert await names(server) == ["down"]
        for open_call in (call, late):
            open_call.cancel()


async def test_waiting_loads_of_a_tenant_are_bounded_and_end_with_their_requests(on_demand):
    async with on_demand(max_adapters=1) as server:
        held = server.generation.Generate(metadata=bearer(BOB))
        await held.write(start("held", adapter="up", credit=0))
        await next_event(held, "accepted")
        many = [asyncio.create_task(answer(server, ANN, f"inner{number}")) for number in range(20)]
        done, waiting = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 4:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert {task.exception().reason for task in done} == {Reason.QUOTA_EXCEEDED}
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        # Another tenant's load is not behind those of requests that are gone.
        await held.write(cancel("held"))
        await answer(server, BOB, "down")
        assert await names(server) == ["down"]
        held.cancel()


async def test_requests_that_wait_for_an_adapter_end_when_the_server_drains(on_demand):
    async with on_demand(max_adapters=1) as server:
        held = server.generation.Generate(metadata=bearer(ANN))
        await held.write(start("held", adapter="up", credit=0))
        await next_event(held, "accepted")
        waiting = server.generation.Generate(metadata=bearer(BOB))
        await waiting.write(start("waiting", adapter="down"))
        await answer(server, BOB, "")
        ends = asyncio.create_task(read_end(waiting))
        await server.server.stop(0)
        assert (await ends).rejected.error.reason == "DRAINING"


async def test_a_load_whose_room_another_one_took_waits_for_more(on_demand):
    async with on_demand(max_adapters=1) as server:
        changes = server.server.gate.engine().adapters
        make_room, both, first_two = changes.make_room, asyncio.Barrier(2), iter(range(2))

        async def together():
            found = await make_room()
            if next(first_two, None) is not None:
                await both.wait()
            return found

        changes.make_room = together
        up, down = await asyncio.gather(answer(server, ANN, "up"), answer(server, BOB, "down"))
        assert next(first_two, None) is None
        assert up != down


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "expected adapter_folder beside it, got none"),
        ({"adapter_folder": ".", "max_adapters": 0}, "expected max_adapters of at least 1"),
    ],
    ids=["folder", "room"],
)
async def test_adapters_on_demand_need_a_folder_and_room(serve, settings, problem):
    with pytest.raises(ConfigError, match=f"adapters_on_demand: {problem}"):
        async with serve(server={"adapters_on_demand": True}, **settings):
            pass
