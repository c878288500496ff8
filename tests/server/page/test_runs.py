"""`POST /page/runs`: many requests in one response, and their cancels."""

import asyncio

import pytest

from tests.server.openai.conftest import HELLO
from tests.server.page.events import decoded, opened
from tests.server.test_auth import ANN, BOB, guarded, token_file

__all__ = ["guarded", "token_file"]

RUNS = "/page/runs"
LONG = {"prompt": "one two three", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
SHORT = {**LONG, "max_tokens": 5}


def bodies(*requests, **named):
    numbered = {str(number): request for number, request in enumerate(requests)}
    return {"requests": [{"id": name, **body} for name, body in {**numbered, **named}.items()]}


def text_of(events, name):
    return "".join(v["text"] for kind, v in events if kind == "tokens" and v["id"] == name)


async def test_many_requests_share_one_response(api):
    chat = {"messages": HELLO, "max_tokens": 7, "ignore_eos": True, "temperature": 0}
    async with api() as served:
        alone = (await served.post("/v1/completions", LONG)).json()
        talk = (await served.post("/v1/chat/completions", chat)).json()
        response = await served.post(RUNS, bodies(long=LONG, short=SHORT, chat=chat))
        events = decoded(response.body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert text_of(events, "long") == alone["choices"][0]["text"]
    assert text_of(events, "chat") == talk["choices"][0]["message"]["content"]
    ends = {value["id"]: value for kind, value in events if kind == "finished"}
    assert {name: end["reason"] for name, end in ends.items()} == dict.fromkeys(ends, "length")
    assert {name: end["usage"]["output_tokens"] for name, end in ends.items()} == {
        "long": 200,
        "short": 5,
        "chat": 7,
    }
    order = [value["id"] for kind, value in events if kind == "finished"]
    assert order[-1] == "long"
    for name, end in ends.items():
        count = sum(1 for kind, value in events if kind == "tokens" and value["id"] == name)
        assert len(end["itl_ms"]) == count - 1
        assert end["ttft_ms"] > 0
        num = sum(v["num_tokens"] for kind, v in events if kind == "tokens" and v["id"] == name)
        assert num == end["usage"]["output_tokens"]


async def test_what_is_wrong_with_one_request_ends_that_one_alone(api):
    wrong = {
        "hot": {**SHORT, "temperature": -1},
        "odd": {**SHORT, "colour": 1},
        "none": {"max_tokens": 5},
        "two": {**SHORT, "n": 2},
        "many": {**SHORT, "prompt": ["a", "b"]},
        "whole": {**SHORT, "stream": False},
        "probable": {**SHORT, "logprobs": 1},
        "long": {"prompt": "one " * 5000},
        "other": {**SHORT, "model": "nothing"},
    }
    async with api() as served:
        events = decoded((await served.post(RUNS, bodies(right=SHORT, **wrong))).body)
    failed = {value["id"]: value for kind, value in events if kind == "failed"}
    assert failed.keys() == wrong.keys()
    assert [value["id"] for kind, value in events if kind == "finished"] == ["right"]
    assert failed["hot"]["param"] == "temperature"
    assert failed["odd"]["message"] == "colour: unknown field"
    assert "messages or prompt" in failed["none"]["message"]
    assert failed["long"]["code"] == "context_length_exceeded"
    assert failed["other"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ([], 400, "body"),
        ({}, 400, "requests"),
        ({"requests": {}}, 400, "requests"),
        ({"requests": [1]}, 400, "requests[0]"),
        ({"requests": [SHORT]}, 400, "requests[0].id"),
        ({"requests": [{**SHORT, "id": 7}]}, 400, "requests[0].id"),
        ({"requests": [{**SHORT, "id": "x" * 129}]}, 400, "requests[0].id"),
        ({"requests": [{**SHORT, "id": "a"}, {**SHORT, "id": "a"}]}, 409, "requests[1].id"),
        (bodies(*[SHORT] * 65), 400, "requests"),
        ({**bodies(SHORT), "more": 1}, 400, "more"),
    ],
)
async def test_a_malformed_body_is_refused_before_anything_runs(api, body, status, param):
    async with api() as served:
        response = await served.post(RUNS, body)
        assert (response.status, response.error["param"]) == (status, param)
        assert not len(served.server.server._context.live)


async def test_sixty_four_requests_are_answered(api):
    async with api() as served:
        events = decoded((await served.post(RUNS, bodies(*[SHORT] * 64))).body)
    assert sorted(int(v["id"]) for kind, v in events if kind == "finished") == list(range(64))


async def test_quotas_count_each_request(api):
    async with api(server={"tenant_max_requests": 2}) as served:
        events = decoded((await served.post(RUNS, bodies(LONG, LONG, LONG))).body)
    failed = [value for kind, value in events if kind == "failed"]
    assert [value["code"] for value in failed] == ["rate_limit_exceeded"]
    assert sum(kind == "finished" for kind, _ in events) == 2


async def test_a_cancel_ends_one_request_and_the_others_go_on(api):
    async with api() as served, opened(served.raw(), "POST", RUNS, bodies(a=LONG, b=LONG)) as runs:
        handle = (await runs.until("accepted", lambda value: value["id"] == "a"))["handle"]
        response = await served.post(f"{RUNS}/{handle}/cancel", b"")
        assert (response.status, response.body) == (204, b"")
        ends = {}
        async for kind, value in runs:
            if kind == "finished":
                ends[value["id"]] = value["reason"]
        assert ends == {"a": "cancelled", "b": "length"}
        assert (await served.post(f"{RUNS}/{handle}/cancel", b"")).status == 404


async def test_a_request_of_another_tenant_cannot_be_cancelled(api, guarded):
    ann, bob = ({"authorization": f"Bearer {token}"} for token in (ANN, BOB))
    async with api(server=guarded) as served:
        assert (await served.post(RUNS, bodies(a=SHORT))).status == 401
        async with opened(served.raw(), "POST", RUNS, bodies(a=LONG), **ann) as runs:
            handle = (await runs.until("accepted"))["handle"]
            for name in (handle, "x" * 4000, "%00"):
                response = await served.post(f"{RUNS}/{name}/cancel", b"", **bob)
                assert (response.status, response.error["param"]) == (404, "handle")
            assert (await runs.until("finished"))["reason"] == "length"


async def test_a_client_that_goes_ends_all_its_requests(api):
    body = {**LONG, "max_tokens": 1000}
    async with api() as served:
        async with opened(served.raw(), "POST", RUNS, bodies(a=body, b=body)) as runs:
            await runs.until("tokens")
        live = served.server.server._context.live
        async with asyncio.timeout(10):
            while len(live):
                await asyncio.sleep(0.01)


async def test_the_deadline_ends_what_is_not_complete(api):
    # A step takes a millisecond at least.
    body = bodies(long={**LONG, "max_tokens": 240})
    async with api() as served:
        response = await served.post(RUNS, body, x_request_timeout="0.1")
        (*_, (kind, last)) = decoded(response.body)
        assert (kind, last["id"], last["code"]) == ("failed", "long", "request_timeout")
        assert not len(served.server.server._context.live)


async def test_a_draining_server_takes_no_runs(api):
    async with api() as served:
        served.server.server.gate.drain()
        response = await served.post(RUNS, bodies(SHORT))
        assert (response.status, response.error["code"]) == (503, "draining")


async def test_pages_of_other_sites_may_not_call(api):
    async with api() as served:
        for site in ("cross-site", "same-site"):
            for path in (RUNS, f"{RUNS}/x/cancel"):
                response = await served.post(path, bodies(SHORT), sec_fetch_site=site)
                assert (response.status, response.error["param"]) == (403, "sec-fetch-site")
        for site in ("same-origin", "none"):
            response = await served.post(RUNS, bodies(SHORT), sec_fetch_site=site)
            assert response.status == 200
        response = await served.post(RUNS, bodies(SHORT), content_type="text/plain")
        assert response.status == 415
