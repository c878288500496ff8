"""Two engines on a local Ray; skipped where Ray is not installed (`make check-ray`)."""

import asyncio
import importlib.util
import json
import os
import signal
from collections import Counter

import pytest
from chairlift.client import connect_async

from tests.ray.cluster import LONG, NUM_TOKENS, outcome, port, running, until_up

pytestmark = [
    # Ray waits for none of the processes that it starts.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(600),
    # One cluster for all tests of this file, one after another.
    pytest.mark.xdist_group("ray"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    server = {"max_num_seqs": 16, "drain_grace_s": 5.0}
    with running(folder, port(), port(), server=server) as found:
        yield found


async def test_both_engines_answer_over_grpc_and_the_openai_api(cluster):
    async with connect_async(cluster.address) as client:
        await until_up(client, 2)
        generations = [client.generate([3 + n, 5, 8], **LONG) for n in range(32)]
        assert not any(await asyncio.gather(*map(outcome, generations)))
        assert {len(g.answers[0].token_ids) for g in generations} == {NUM_TOKENS}
        counts = Counter(g.handle.partition(".")[0] for g in generations)
        assert len(counts) == 2
        assert min(counts.values()) >= 8
    body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 5}
    answer = json.loads(await asyncio.to_thread(cluster.post, "/v1/completions", body))
    assert answer["usage"]["completion_tokens"] == 5
    events = await asyncio.to_thread(cluster.post, "/v1/completions", {**body, "stream": True})
    assert events.endswith(b"data: [DONE]\n\n")


async def test_a_killed_engine_costs_only_what_it_had_begun_and_is_replaced(cluster):
    async with connect_async(cluster.address) as client:
        before = await until_up(client, 2)
        generations = [client.generate([3 + n, 5, 8], **LONG) for n in range(64)]
        waits = [asyncio.create_task(outcome(generation)) for generation in generations]
        while sum(bool(g.answers[0].num_tokens) for g in generations) < 8:
            await asyncio.sleep(0.001)
        victim = next(iter(cluster.engines().values()))
        os.kill(victim, signal.SIGKILL)
        errors = await asyncio.wait_for(asyncio.gather(*waits), 120)
        failed = [g for g, error in zip(generations, errors, strict=True) if error]
        ended = [g for g, error in zip(generations, errors, strict=True) if not error]
        # It had 16 rows: what waited was answered by the other, what had begun is UNAVAILABLE.
        assert 0 < len(failed) <= 16 + 1
        assert {error.reason.code for error in errors if error} == {"UNAVAILABLE"}
        assert all(g.answers[0].num_tokens > 0 for g in failed)
        assert {len(g.answers[0].token_ids) for g in ended} == {NUM_TOKENS}
        after = await until_up(client, 2)
        assert len(before & after) == 1


async def test_streams_go_on_and_begin_when_the_head_of_the_cluster_is_gone(cluster):
    async with connect_async(cluster.address) as client:
        await until_up(client, 2)
        generations = [client.generate([3 + n, 5, 8], **LONG) for n in range(32)]
        waits = [asyncio.create_task(outcome(generation)) for generation in generations]
        while not all(g.accepted for g in generations):
            await asyncio.sleep(0.001)
        cluster.kill_head()
        late = [client.generate([3 + n, 7, 8], **LONG) for n in range(8)]
        waits += [asyncio.create_task(outcome(generation)) for generation in late]
        assert not any(await asyncio.wait_for(asyncio.gather(*waits), 60))
        assert {len(g.answers[0].token_ids) for g in generations + late} == {NUM_TOKENS}
