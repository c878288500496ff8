"""Adapters over gRPC: an administrator loads and unloads them, tenants name them."""

import asyncio
import os
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.client import connect_async
from chairlift.v1 import admin_pb2, server_pb2
from chairlift.v1 import generation_pb2 as pb
from google.protobuf import duration_pb2
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.connection import next_event, start, status_of

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
    (folder / "inner").symlink_to(folder / "up")
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
    return lambda **more: serve(
        server=secrets, adapter_folder=str(lora.folder), max_adapters=2, **more
    )


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
