"""A request that offers another protocol is answered as one of HTTP/1.1, with its body."""

import json

import pytest

from tests.server.openai.conftest import HELLO

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": HELLO, "max_tokens": 4, "ignore_eos": True}).encode()

OFFERS = {
    "curl --http2": (
        "User-Agent: curl/8.14.1",
        "Accept: */*",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    ),
    "the HttpClient of Java": (
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
        "Upgrade: h2c",
        "User-Agent: Java-http-client/21.0.5",
    ),
    "websocket": ("Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "an unknown protocol": ("Upgrade: gopher, h2c", "Connection: keep-alive, UPGRADE"),
    "no such option of the connection": ("Upgrade: h2c",),
}


def head(offer, *lines, method="POST", path=CHAT, version="1.1"):
    named = ("Host: localhost", "Content-Type: application/json")
    return "\r\n".join([f"{method} {path} HTTP/{version}", *named, *offer, *lines, "", ""]).encode()


def chunked(body):
    half = len(body) // 2
    parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:], b"")]
    return b"".join(parts)


FORMS = {
    "length": (f"Content-Length: {len(BODY)}", BODY),
    "chunks": ("Transfer-Encoding: chunked", chunked(BODY)),
}


@pytest.mark.parametrize("form", FORMS)
async def test_an_upgrade_that_is_not_taken_loses_no_body(api, caplog, form):
    line, body = FORMS[form]
    async with api() as served, served.raw() as raw:
        for name, offer in OFFERS.items():
            # Head and body in one piece, apart, and byte by byte; all on one connection.
            data = head(offer, line)
            for pieces in ([data + body], [data, body], [bytes([byte]) for byte in data + body]):
                for piece in pieces:
                    await raw.send(piece)
                response = await raw.response()
                assert response.status == 200, (name, response.body)
                assert response.json()["usage"]["completion_tokens"] == 4
                assert "upgrade" not in response.headers
    assert "Traceback" not in caplog.text


async def test_an_upgrade_without_a_body_leaves_the_connection_open(api):
    async with api() as served, served.raw() as raw:
        for offer in OFFERS.values():
            await raw.send(head(offer, method="GET", path="/health"))
            assert (await raw.response()).status == 200


async def test_a_body_that_waits_for_100_continue_is_read(api):
    line, body = FORMS["length"]
    async with api() as served, served.raw() as raw:
        await raw.send(head(OFFERS["curl --http2"], line, "Expect: 100-continue"))
        assert (await raw.head()).status == 100
        await raw.send(body)
        assert (await raw.response()).status == 200


async def test_bounds_of_bodies_hold_behind_an_upgrade(api):
    offer = OFFERS["curl --http2"]
    async with api(server={"max_receive_bytes": 4096}) as served:
        for data, status in (
            (head(offer, "Content-Length: 5000") + b" " * 5000, 413),
            (head(offer, "Transfer-Encoding: chunked") + chunked(b" " * 5000), 413),
            (head(offer, "Transfer-Encoding: chunked") + b"zz\r\n", 400),
            (head(offer, "Content-Length: 3") + b"abc", 400),
        ):
            async with served.raw() as raw:
                await raw.send(data)
                assert (await raw.response()).status == status


async def test_a_request_behind_an_upgrade_is_one_of_its_own(api):
    """What follows the body is no part of it: it comes before its turn, as without the offer."""
    line, body = FORMS["length"]
    codes = []
    for offer in ((), OFFERS["curl --http2"]):
        async with api() as served, served.raw() as raw:
            await raw.send(head(offer, line) + body + head((), method="GET", path="/health"))
            response = await raw.response()
            codes.append(response.status)
            assert await raw.at_end()
    assert codes == [200, 200]


async def test_the_last_request_of_a_connection_may_offer_an_upgrade(api):
    line, body = FORMS["chunks"]
    offer = ("Connection: close, Upgrade", "Upgrade: h2c")
    for version in ("1.1", "1.0"):
        async with api() as served, served.raw() as raw:
            form = (line, body) if version == "1.1" else FORMS["length"]
            await raw.send(head(offer, form[0], version=version) + form[1])
            assert (await raw.response()).status == 200
            assert await raw.at_end()


CODINGS = {
    "gzip, chunked": 501,
    "gzip": 501,
    "identity": 501,
    "deflate\r\nTransfer-Encoding: chunked": 501,
    "chunked, chunked": 400,
    "chunked, gzip": 400,
    "CHUNKED": 200,
}


async def test_only_chunks_are_a_transfer_encoding(api):
    async with api() as served:
        for coding, status in CODINGS.items():
            for offer in ((), OFFERS["curl --http2"]):
                async with served.raw() as raw:
                    await raw.send(head(offer, f"Transfer-Encoding: {coding}") + chunked(BODY))
                    response = await raw.response()
                    assert response.status == status, (coding, response.body)
                    if status == 501:
                        assert response.error["param"] == "transfer-encoding"
                        assert await raw.at_end()
