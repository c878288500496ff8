"""Connections of the HTTP port: no caller keeps those of another one out."""

import asyncio
import os
import resource
import socket
from contextlib import AsyncExitStack, contextmanager, suppress

import pytest
from chairlift.server.http.connections import Connections, Stage

from tests.server.connection import accepted

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
BODY = {"model": "tiny", "prompt": "one", "max_tokens": 2}
UNFINISHED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 1000\r\n%s\r\n{"
)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def guarded(tmp_path):
    """Settings of a server that requires tokens."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    return {"auth_tokens": str(file)}


async def unfinished(stack, api, num, header=b""):
    """Send the heads of requests whose bodies do not come."""
    raws = [await stack.enter_async_context(api.raw()) for _ in range(num)]
    for raw in raws:
        await raw.send(UNFINISHED % header)
    return raws


async def all_are_read(api):
    """Wait until the server has seen what came before: its answer to a later request says so."""
    assert (await api.get("/health")).status == 200


async def test_slow_bodies_of_a_tenant_do_not_refuse_another_of_the_same_host(api, guarded):
    async with api(server=guarded) as server, AsyncExitStack() as stack:
        await unfinished(stack, server, 100, f"authorization: Bearer {ANN}\r\n".encode())
        await all_are_read(server)
        for _ in range(10):
            assert (await server.post("/v1/completions", BODY, **bearer(BOB))).status == 200


async def test_tenants_of_a_trusted_gateway_have_shares_of_their_own(api):
    async with (
        api(server={"trust_tenant_metadata": True}) as server,
        AsyncExitStack() as stack,
    ):
        await unfinished(stack, server, 100, b"chairlift-tenant: ann\r\n")
        await all_are_read(server)
        for _ in range(10):
            answer = await server.post("/v1/completions", BODY, chairlift_tenant="bob")
            assert answer.status == 200


async def test_slow_bodies_on_an_open_server_give_way_to_a_new_connection(api):
    async with api() as server, AsyncExitStack() as stack:
        await unfinished(stack, server, 100)
        await all_are_read(server)
        for _ in range(10):
            assert (await server.post("/v1/completions", BODY)).status == 200


async def test_silent_connections_give_way_to_new_ones(api):
    async with api(server={"max_connections": 8}) as server, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(server.raw()) for _ in range(24)]
        for _ in range(10):
            assert (await server.post("/v1/completions", BODY)).status == 200
        ends = [await raw.at_end() for raw in silent[:8]]
        assert all(ends)


async def test_a_stream_that_is_answered_stays_when_the_port_is_full(api):
    async with api(server={"max_connections": 4}) as server, AsyncExitStack() as stack:
        stream = await server.chat(stream=True, max_tokens=100)
        chunks = aiter(stream)
        await anext(chunks)
        for _ in range(40):
            await stack.enter_async_context(server.raw())
        assert (await server.get("/health")).status == 200
        assert len([chunk async for chunk in chunks]) > 50


async def test_a_tenant_leaves_connections_for_others(api, guarded):
    setting = {**guarded, "max_connections": 8}
    async with api(server=setting) as server, AsyncExitStack() as stack:
        long = {**BODY, "max_tokens": 250, "stream": True, "ignore_eos": True}
        statuses = []
        for _ in range(8):
            raw = await stack.enter_async_context(server.raw())
            await raw.post("/v1/completions", long, **bearer(ANN))
            statuses.append((await raw.head()).status)
        assert statuses.count(200) == 6
        assert statuses.count(429) == 2
        assert (await server.post("/v1/completions", BODY, **bearer(BOB))).status == 200


@contextmanager
def no_file_left():
    """Let no further file be opened in this process, the server's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_file_the_port_pauses_with_one_line_and_streams_go_on(api, caplog):
    async with api() as server, AsyncExitStack() as stack:
        chunks = aiter(await server.chat(stream=True, max_tokens=100))
        await anext(chunks)
        waiting = [stack.enter_context(socket.socket()) for _ in range(50)]
        for client in waiting:
            client.connect(("127.0.0.1", server.port))
        with no_file_left():
            assert len([chunk async for chunk in chunks]) > 50
        assert (await server.post("/v1/completions", BODY)).status == 200
        lines = [r for r in caplog.records if "accepts no connection" in r.getMessage()]
        assert [line.exc_info for line in lines] == [None]


def test_the_holder_with_the_most_connections_gives_way_and_the_answered_stay():
    connections = Connections(6)
    ended = []

    def add(host):
        connection = connections.add(host)
        if connection is not None:
            connection.close = lambda: ended.append(connection)
        return connection

    few = add("few")
    many = [add("many") for _ in range(4)]
    known = add("known")
    known.admit("ann")
    add("other")
    assert ended == [many[0]]
    many[1].admit("")
    many[1].is_received()
    assert many[1].stage is Stage.ANSWERED
    for _ in range(3):
        add("many")
    # One in its body gives way after all of unknown callers.
    assert few not in ended
    assert known not in ended
    for connection in (few, known, *many):
        connection.leave()
        connection.leave()
    assert many[1] not in ended


async def test_a_part_of_an_answer_does_not_wait_for_the_client_to_acknowledge_another(api):
    async with api() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await asyncio.to_thread(client.recv, 4096)
            with accepted(client) as side:
                assert side.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
