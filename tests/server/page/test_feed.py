"""`GET /page/feed`: what it shows of a real batch, to whom, and how it ends."""

import asyncio
import json

import pytest
from chairlift.server.page import frame
from chairlift.v1 import server_pb2

from tests.server.connection import start
from tests.server.page.events import Events, opened
from tests.server.test_auth import ANN, BOB, guarded, token_file

__all__ = ["guarded", "token_file"]

FEED = "/page/feed"
BODY = {"prompt": list(range(1, 40)), "max_tokens": 20, "ignore_eos": True, "temperature": 0}


def feed(served, query="", **headers):
    return opened(served.raw(), "GET", FEED + query, **headers)


async def seen(events, until):
    """All fields of the frames until one fulfils a condition; lists are joined."""
    found = {}
    async for name, value in events:
        if name == "frame":
            for key, part in value.items():
                found[key] = found.get(key, []) + (part if isinstance(part, list) else [part])
            if until(value):
                return found
    raise AssertionError(found)


async def test_hello_says_what_the_services_say(api):
    async with api(max_num_seqs=4) as served, feed(served) as events:
        hello = await events.until("hello")
        info = await served.server.info.GetServerInfo(server_pb2.GetServerInfoRequest())
        model = await served.server.info.GetModelInfo(server_pb2.GetModelInfoRequest())
    assert events.headers["cache-control"] == "no-store"
    assert events.headers["x-content-type-options"] == "nosniff"
    assert (hello["v"], hello["server"]["state"]) == (1, "serving")
    for name in ("version", "max_num_seqs", "num_blocks", "batching", "prefix_cache"):
        assert hello["server"][name] == getattr(info, name)
    assert hello["server"]["start_ms"] == info.start_time.ToMilliseconds()
    assert hello["server"]["step_budget_ms"] is None
    assert hello["model"]["name"] == model.name == "tiny"
    assert hello["model"]["max_context_len"] == model.max_context_len
    assert hello["caller"] == {"tenant": "", "sees_all": True, "may_run": True}


async def test_the_frames_of_a_request_have_its_steps_its_name_and_its_end(api):
    async with api(max_num_batched_tokens=16, drafts="off") as served, feed(served) as events:
        await events.until("hello")
        response = await served.post("/v1/completions", BODY)
        found = await seen(events, lambda frame: frame["ended"])
    (number, handle, name), *more = found["new"]
    assert (more, name) == ([], "0")
    assert handle in response.json()["id"]
    assert found["ended"] == [[number, "length", 20]]
    spans = found["spans"]
    assert {span[3] for span in spans} == {number}
    by_kind = {kind: [span for span in spans if span[4] == kind] for kind in range(4)}
    # 39 tokens in chunks of 16, then 19 decodes of which the last ends the answer.
    assert sum(span[5] for span in by_kind[0]) == 39
    assert sum(span[2] for span in by_kind[0]) == 3
    assert (sum(span[2] for span in by_kind[1]), sum(span[2] for span in by_kind[2])) == (18, 1)
    assert sum(found["num_sampled"]) == 20
    assert len(found["start_us"]) == len(found["duration_us"]) == len(found["parts_us"]) == 22
    assert found["start_us"] == sorted(found["start_us"])
    assert all(len(parts) == 5 for parts in found["parts_us"])
    assert set(found["num_dropped"]) == {0}
    steps = [step for span in spans for step in range(span[1], span[1] + span[2])]
    assert steps == list(range(steps[0], steps[0] + 22))


async def test_the_figures_are_those_of_the_services(api):
    async with api() as served, feed(served) as events:
        await served.post("/v1/completions", BODY)
        load = await events.until("load", lambda load: load["itl_p50_us"] is not None)
        blocks = await events.until("blocks", lambda blocks: sum(blocks["cached"]))
        request = server_pb2.GetLoadRequest(block_map=True)
        expected = (await served.server.info.GetLoad(request)).load
    for name in ("num_steps", "num_blocks", "num_prefix_queries", "num_waiting", "num_running"):
        assert load[name] == getattr(expected, name)
    assert load["itl_p50_us"] == expected.inter_token_latency_p50.ToMicroseconds()
    assert (load["state"], load["tenants"][0]["num_generated_tokens"]) == ("serving", 20)
    for name in ("held", "own", "shared", "cached", "free"):
        assert blocks[name] == list(getattr(expected.block_map, name))
    assert (blocks["num_blocks"], blocks["cells"]) == (expected.num_blocks, len(blocks["free"]))


async def test_the_queue_names_own_requests_and_counts_all_causes(api, guarded):
    long = {**BODY, "max_tokens": 200}
    ann, bob = ({"authorization": f"Bearer {token}"} for token in (ANN, BOB))
    async with api(server=guarded, max_num_seqs=1) as served:
        calls = [
            asyncio.create_task(served.post("/v1/completions", long, **caller))
            for caller in (ann, ann, bob, bob)
        ]
        async with feed(served, **ann) as events:
            queue = await events.until("queue", lambda queue: queue["num_other"])
        for call in calls:
            call.cancel()
    assert len(queue["own"]) == queue["num_own"]
    assert sum(queue["causes"].values()) == queue["num_own"] + queue["num_other"]
    for _, name, cause, num_before, num_computed, num_tokens, _, age_ms in queue["own"]:
        assert (name, num_computed, num_tokens) == ("0", 0, 39)
        assert cause in ("ROW", "SHARE", "STEP")
        assert num_before <= 3
        assert age_ms >= 0


async def test_another_tenant_has_rows_without_names_and_no_text(api, guarded):
    secret = {**BODY, "prompt": "one two three", "max_tokens": 60}
    ann, bob = ({"authorization": f"Bearer {token}"} for token in (ANN, BOB))
    async with api(server=guarded) as served:
        assert (await served.get(FEED)).status == 401
        async with feed(served, **bob) as events:
            hello = await events.until("hello")
            assert hello["caller"]["sees_all"] is False
            response = await served.post("/v1/completions", secret, **ann)
            found = await seen(events, lambda frame: 2 in [span[4] for span in frame["spans"]])
            load = await events.until("load", lambda load: load["num_steps"] >= 60)
            text = json.dumps([found, load])
    assert {span[3] for span in found["spans"]} == {0}
    assert (found["new"], found["ended"], load["tenants"]) == ([], [], [])
    answer = response.json()
    for word in ("ann", answer["id"].rpartition("-")[2], answer["choices"][0]["text"].split()[0]):
        assert word not in text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?fps=0", "fps"),
        ("?fps=11", "fps"),
        ("?fps=10000", "fps"),
        ("?fps=1e1", "fps"),
        ("?fps=", "fps"),
        ("?fps=1&fps=2", "fps"),
        ("?fps=%EF%BC%91", "fps"),
        ("?first_row=8", "first_row"),
        ("?first_row=-1", "first_row"),
        ("?num_rows=129", "num_rows"),
        ("?num_rows=" + "9" * 4000, "num_rows"),
        ("?colour=red", "colour"),
    ],
)
async def test_a_wrong_parameter_is_named(api, query, param):
    async with api() as served:
        response = await served.get(FEED + query)
        assert (response.status, response.error["param"]) == (400, param)


async def test_a_large_batch_is_shown_in_bands_and_a_part_of_its_rows(api):
    body = {**BODY, "prompt": [[i, i + 1, i + 2] for i in range(1, 40)], "max_tokens": 30}
    async with (
        api(max_num_seqs=512, max_num_batched_tokens=1024) as served,
        feed(served, "?first_row=8&num_rows=16") as events,
    ):
        await events.until("hello")
        await served.post("/v1/completions", body)
        found = await seen(events, lambda frame: frame["ended"])
    assert {span[0] for span in found["spans"]} == set(range(8, 24))
    assert len(found["new"]) == 16
    bands = found["bands"]
    assert len(bands) % 64 == 0
    assert sum(prefill + decode for prefill, decode, _ in bands) > len(found["spans"])
    assert sum(map(sum, bands)) == 512 * len(found["start_us"])


async def test_feeds_of_one_view_share_their_frames(api, monkeypatch):
    made = []
    encode = frame.Frame.__init__
    monkeypatch.setattr(
        frame.Frame,
        "__init__",
        lambda new, *args, **names: made.append(1) or encode(new, *args, **names),
    )
    async with api() as served:
        raws = [served.raw() for _ in range(20)]
        streams = []
        for raw in raws:
            await raw.__aenter__()
            await raw.request("GET", FEED + "?fps=10")
            streams.append(Events(raw, await raw.head()))
        await asyncio.gather(*(events.until("hello") for events in streams))
        await served.post("/v1/completions", {**BODY, "max_tokens": 100})
        ends = [await seen(events, lambda frame: frame["ended"]) for events in streams]
        assert all(end == ends[0] for end in ends)
        assert len(made) == len(ends[0]["n"])
        for raw in raws:
            await raw.__aexit__()


async def test_a_feed_ends_with_the_server(api):
    async with api() as served, feed(served) as events:
        await events.until("hello")
        served.server.server.gate.drain()
        assert await events.until("bye") == {"reason": "draining"}
        assert [event async for event in events] == []
        assert (await served.get(FEED)).status == 503


async def test_a_feed_ends_when_its_token_is_withdrawn(api, guarded, token_file):
    own = {"authorization": f"Bearer {ANN}"}
    async with api(server=guarded) as served, feed(served, **own) as events:
        await events.until("hello")
        lines = token_file.read_text().splitlines(keepends=True)
        replaced = token_file.with_name("next")
        replaced.write_text("".join(line for line in lines if not line.startswith("ann")))
        replaced.chmod(0o600)
        replaced.rename(token_file)
        assert await events.until("bye") == {"reason": "unauthenticated"}


async def test_feeds_count_as_watches(api):
    async with api(listen="127.0.0.1:0") as served:
        raws = []
        for _ in range(48):
            raw = await served.raw().__aenter__()
            await raw.request("GET", FEED)
            assert (await raw.head()).status == 200
            raws.append(raw)
        response = await served.get(FEED)
        assert (response.status, response.error["code"]) == (429, "rate_limit_exceeded")
        for raw in raws:
            await raw.__aexit__()
        # The places are free again.
        async with asyncio.timeout(10):
            while (await status_of_feed(served)) != 200:
                await asyncio.sleep(0.01)


async def status_of_feed(served):
    async with served.raw() as raw:
        await raw.request("GET", FEED)
        return (await raw.head()).status


async def test_pages_of_other_sites_and_other_names_get_no_feed(api):
    async with api() as served:
        response = await served.get(FEED, sec_fetch_site="cross-site")
        assert (response.status, response.error["param"]) == (403, "sec-fetch-site")
        response = await served.get(FEED, host="evil.example")
        assert (response.status, response.error["code"]) == (403, "unknown_host")


async def test_names_full_of_markup_are_text(api):
    name = "<script>alert(1)</script>\"'&--"
    runs = {"requests": [{**BODY, "id": name}]}
    async with api() as served, feed(served) as events:
        await events.until("hello")
        await served.post("/page/runs", runs)
        found = await seen(events, lambda frame: frame["ended"])
    assert found["new"][0][2] == name


async def test_readers_that_do_not_read_delay_no_other_and_learn_what_they_missed(api):
    body = {**BODY, "prompt": [[i, i + 1] for i in range(1, 9)], "max_tokens": 200}
    async with api() as served:
        raws = []
        for _ in range(40):
            # With room for a few frames alone.
            raw = await type(served.raw())(served.port, read_bytes=1024).__aenter__()
            await raw.request("GET", FEED)
            raws.append(raw)
        for _ in range(3):
            response = await served.post("/v1/completions", body)
            assert response.json()["usage"]["completion_tokens"] == 1600
        assert (await served.server.say(start("a", max_tokens=9))).end("a").HasField("finished")
        for raw in raws:
            await raw.__aexit__()
