"""The HTTP port with a release of uvicorn whose parts are not the known ones."""

import sys

import pytest
from chairlift.server.http import protocol
from uvicorn.protocols.http import httptools_impl

from tests.server.openai.conftest import HELLO

BODY = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}


def without_a_callback(monkeypatch):
    monkeypatch.delattr(httptools_impl.HttpToolsProtocol, "on_url")


def with_another_exchange(monkeypatch):
    class Exchange:
        def __init__(self):
            self.is_complete = False

    monkeypatch.setattr(protocol, "RequestResponseCycle", Exchange)


def without_the_protocol(monkeypatch):
    monkeypatch.delattr(httptools_impl, "HttpToolsProtocol")
    monkeypatch.delitem(sys.modules, "chairlift.server.http.protocol")


OTHERS = [without_a_callback, with_another_exchange, without_the_protocol]


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: change.__name__)
async def test_with_a_uvicorn_of_other_parts_the_port_serves_without_bounds_on_time(
    api, monkeypatch, caplog, change
):
    change(monkeypatch)
    async with api() as served:
        response = await served.post("/v1/chat/completions", BODY)
        assert (response.status, response.json()["usage"]["completion_tokens"]) == (200, 4)
        assert len(await served.chunks(max_tokens=3)) >= 3
        refused = await served.post("/v1/chat/completions", {**BODY, "max_tokens": "x"})
        assert refused.status == 400
    assert caplog.text.count("has other parts") == 1


async def test_a_connection_of_another_uvicorn_gives_way_between_two_requests(api, monkeypatch):
    without_a_callback(monkeypatch)
    async with api(server={"max_connections": 1}) as served, served.raw() as first:
        await first.post("/v1/chat/completions", BODY)
        assert (await first.response()).status == 200
        assert (await served.post("/v1/chat/completions", BODY)).status == 200


def test_this_uvicorn_is_known():
    assert protocol.is_known()
