"""A stream over HTTP outlives its connection: `GET /v1/streams/{handle}` continues it."""

import gc
import json

import pytest

from tests.server.connection import until
from tests.server.openai.conftest import HELLO

LONG = 120
BODIES = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": LONG},
    "/v1/completions": {"prompt": "one two three", "max_tokens": LONG, "logprobs": 1},
    "/v1/responses": {"input": "one two three", "max_output_tokens": LONG},
}
SHARED = {"stream": True, "temperature": 0, "ignore_eos": True}
WINDOW = {"x_chairlift_resume_window": "60"}


def events(data):
    """The events of a body, as (id, the rest); a part of an event at its end is dropped."""
    found = []
    for event in data.decode().split("\n\n")[:-1]:
        lines = event.split("\n")
        ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        rest = [line for line in lines if not line.startswith(("id: ", ":"))]
        if rest:
            found.append((ids[0] if ids else None, rest))
    return found


async def part_of(api, path, num_chunks, **headers):
    """The beginning of a stream whose connection is reset then: its handle and its events."""
    async with api.raw() as raw:
        await raw.post(path, {**BODIES[path], **SHARED}, **WINDOW, **headers)
        head = await raw.head()
        assert head.status == 200
        data = b""
        for _ in range(num_chunks):
            data += await raw.chunk()
        raw.writer.transport.abort()
    return head.headers["x-chairlift-handle"], events(data)


async def is_lost(api):
    resumables = api.server.server._context.resumables
    await until(lambda: all(r.is_detached or r.has_ended for r in resumables.by_handle.values()))


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_is_cut_goes_on_with_no_event_lost_and_none_twice(api, path):
    async with api() as served:
        handle, got = await part_of(served, path, 3)
        for _ in range(3):
            await is_lost(served)
            async with served.raw() as raw:
                target = f"/v1/streams/{handle}"
                await raw.request("GET", target, last_event_id=got[-1][0])
                assert (await raw.head()).headers["x-chairlift-handle"] == handle
                got += events(await raw.chunk())
                raw.writer.transport.abort()
        await is_lost(served)
        rest = await served.get(f"/v1/streams/{handle}?after={got[-1][0]}")
        assert rest.headers["content-type"].startswith("text/event-stream")
        got += events(rest.body)
        # The same again in one piece, from the log.
        whole = events((await served.get(f"/v1/streams/{handle}")).body)
        assert got == whole
        ids = [tuple(map(int, number.split("."))) for number, _ in whole]
        assert ids == sorted(set(ids))
        # A stream without cuts has as many events, and the same text.
        plain = events((await served.post(path, {**BODIES[path], **SHARED})).body)
        assert [number for number, _ in plain] == [None] * len(plain)
        assert text_of(plain) == text_of(whole)
        await served.server.until_idle()


def text_of(parsed):
    """The text of the tokens, whatever the API."""
    found = ""
    for _, lines in parsed:
        data = lines[-1].removeprefix("data: ")
        fields = {} if data == "[DONE]" else json.loads(data)
        for choice in fields.get("choices", []):
            found += choice.get("text") or choice.get("delta", {}).get("content") or ""
        if isinstance(fields.get("delta"), str):
            found += fields["delta"]
    return found


async def test_a_stream_with_a_reader_ends_when_another_takes_it_over(api):
    async with api() as served, served.raw() as old:
        path = "/v1/chat/completions"
        await old.post(path, {**BODIES[path], **SHARED}, **WINDOW)
        handle = (await old.head()).headers["x-chairlift-handle"]
        await old.chunk()
        rest = await served.get(f"/v1/streams/{handle}")
        assert text_of(events(rest.body))
        left = b""
        while chunk := await old.chunk():
            left += chunk
        assert "another stream has resumed the request" in left.decode()


async def test_what_cannot_be_continued_is_refused(api):
    async with api() as served:
        unknown = await served.get("/v1/streams/unknown")
        assert (unknown.status, unknown.error["code"]) == (404, "unknown_request")
        path = "/v1/chat/completions"
        plain = await served.post(path, {**BODIES[path], **SHARED})
        gone = await served.get(f"/v1/streams/{plain.headers['x-chairlift-handle']}")
        assert gone.error == unknown.error
        handle, _ = await part_of(served, path, 1)
        for query in ("after=x", "after=1", "after=1.0x"):
            wrong = await served.get(f"/v1/streams/{handle}?{query}")
            assert (wrong.status, wrong.error["param"]) == (400, "after")
        ahead = await served.get(f"/v1/streams/{handle}?after=99999.0")
        assert (ahead.status, ahead.error["param"]) == (400, "after_number")


async def test_windows_that_are_not_granted_are_refused(api):
    async with api() as served:
        path = "/v1/completions"
        header = "x-chairlift-resume-window"
        for value in ("0", "-1", "x", "inf", "nan", "301"):
            body = {**BODIES[path], **SHARED}
            refused = await served.post(path, body, x_chairlift_resume_window=value)
            assert (refused.status, refused.error["param"]) == (400, header)
        for change in ({"stream": False}, {"prompt": ["one", "two"]}):
            refused = await served.post(path, {**BODIES[path], **SHARED, **change}, **WINDOW)
            assert (refused.status, refused.error["param"]) == (400, header)


async def test_only_the_tenant_continues_its_stream(api, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("mine:" + "a" * 32 + "\nother:" + "b" * 32 + "\n")
    tokens.chmod(0o600)
    async with api(server={"auth_tokens": str(tokens)}) as served:
        mine = {"authorization": "Bearer " + "a" * 32}
        handle, got = await part_of(served, "/v1/chat/completions", 1, **mine)
        target = f"/v1/streams/{handle}?after={got[-1][0]}"
        assert (await served.get(target)).status == 401
        other = await served.get(target, authorization="Bearer " + "b" * 32)
        assert (other.status, other.error["code"]) == (404, "unknown_request")
        assert (await served.get(target, **mine)).status == 200


async def test_a_client_that_goes_before_the_headers_ends_its_request(api):
    async with api(max_num_seqs=1) as served:
        path = "/v1/chat/completions"
        async with served.raw() as first, served.raw() as queued:
            await first.post(path, {**BODIES[path], **SHARED})
            await first.head()
            await queued.post(path, {**BODIES[path], **SHARED}, **WINDOW)
            await served.server.until_load(lambda load: load.num_waiting)
            queued.writer.transport.abort()
            await until(lambda: not served.server.server._context.resumables.by_handle)
        await served.server.until_idle()


def junk(num):
    """A tool of a type that is skipped, whose values take twenty times the memory of its JSON."""
    return {"type": "web_search", "a": [{"b": [i]} for i in range(num)]}


async def test_what_a_stream_repeats_of_its_request_is_counted_while_it_can_be_continued(api):
    bounds = {"resume_request_bytes": 131_072, "resume_memory_bytes": 2**20}
    async with api(server=bounds) as served:
        resumables = served.server.server._context.resumables
        path, tools = "/v1/responses", [junk(20_000)]
        body = {**BODIES[path], **SHARED, "max_output_tokens": 4, "tools": tools}
        first = await served.post(path, body, **WINDOW)
        handle = first.headers["x-chairlift-handle"]
        await until(lambda: resumables.by_handle[handle].has_ended)
        size = len(json.dumps(tools, separators=(",", ":")))
        held = resumables._shares._num_held
        assert size < held < size + 100_000
        # Events are written again with what they repeat.
        assert events((await served.get(f"/v1/streams/{handle}")).body) == events(first.body)
        # The same again and again: older streams give way, and the bound holds.
        for _ in range(8):
            assert (await served.post(path, body, **WINDOW)).status == 200
            assert resumables._shares._num_held <= 2**20
        assert (await served.get(f"/v1/streams/{handle}")).status == 404
        # What is kept is the JSON, and nothing of the values.
        gc.collect()
        live = sum(type(found) is dict and found.keys() == {"b"} for found in gc.get_objects())
        assert live <= 20_000
