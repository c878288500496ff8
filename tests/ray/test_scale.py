"""The number of engines on a local Ray; skipped where Ray is not installed (`make check-ray`)."""

import asyncio
import importlib.util

import pytest
from chairlift.client import connect_async

from tests.ray.cluster import LONG, outcome, port, running

pytestmark = [
    # Ray waits for none of the processes that it starts.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("ray"),
]

WAIT_S = 400


@pytest.fixture
def cluster(tmp_path):
    scale = {"num_replicas": 1, "max_replicas": 2, "target_tokens": 300}
    delays = {"scale_up_delay_s": 1.0, "scale_down_delay_s": 2.0}
    server = {"max_num_seqs": 4, "drain_grace_s": 20.0}
    with running(tmp_path, port(), port(), server=server, **scale, **delays) as found:
        yield found


async def test_engines_follow_the_tokens_that_wait_and_run_and_no_request_is_lost(cluster):
    async with connect_async(cluster.address) as client:
        assert len(cluster.engines()) == 1
        is_busy, is_over, tags, errors = True, False, set(), []

        async def stream(number):
            # The first one goes on when the others have ended: scaling down costs no request.
            while not is_over and (is_busy or number == 0):
                options = LONG | {"queue_timeout_s": WAIT_S}
                generation = client.generate([3 + number, 5, 8], **options)
                errors.append(await outcome(generation))
                if generation.handle:
                    tags.add(generation.handle.partition(".")[0])

        tasks = [asyncio.create_task(stream(number)) for number in range(16)]
        async with asyncio.timeout(WAIT_S):
            while len(tags) < 2 and not any(errors):
                await asyncio.sleep(0.2)
        assert not any(errors)
        assert len(cluster.engines()) == 2
        is_busy = False
        async with asyncio.timeout(WAIT_S):
            while len(cluster.engines()) > 1:
                await asyncio.sleep(0.2)
        is_over = True
        await asyncio.gather(*tasks)
        assert not any(errors)
