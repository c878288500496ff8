"""Sends a trace to real servers through the real router, and notes what came back when."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from chairlift import _core
from chairlift.client import AsyncClient, connect_async
from chairlift.replay.token_ids import prompt_token_ids
from chairlift.replay.trace import Request, Trace

NAMES_PER_ROUTER_NAME = 8
"""The simulated router looks at every eighth name of 16 tokens; this one does, too."""

NUM_IDS = 2000
"""Ids of prompts are below it, so that every model of the demo's size takes them."""


@dataclass(slots=True)
class Answered:
    """One request, as its client saw it; seconds after the start."""

    replica: int
    sent: float
    first_token: float = 0.0
    ended: float = 0.0
    num_output: int = 0
    num_cached: int = 0


def router_of(num_replicas: int, blocks_per_replica: int, *, seed: int) -> _core.Router:
    """Return the router as the simulation makes it."""
    names = max(1, blocks_per_replica // NAMES_PER_ROUTER_NAME)
    return _core.Router(
        routing="both", num_replicas=num_replicas, names_per_replica=names, seed=seed
    )


def drive(trace: Trace, addresses: Sequence[str], router: _core.Router) -> list[Answered]:
    """Send each request when it arrives in the trace; return all when the last has ended."""
    return asyncio.run(_drive(trace, addresses, router))


async def _drive(trace: Trace, addresses: Sequence[str], router: _core.Router) -> list[Answered]:
    clients = [connect_async(address) for address in addresses]
    try:
        for client in clients:
            # Streams are open, and kernels warm, before the clock starts.
            await client.generate([1, 2, 3], max_tokens=8, ignore_eos=True).all()
        start = time.monotonic()
        requests = [
            _send(index, request, trace.tokens_per_name, clients, router, start)
            for index, request in enumerate(trace.requests)
        ]
        return list(await asyncio.gather(*requests))
    finally:
        for client in clients:
            await client.close()


async def _send(
    index: int,
    request: Request,
    tokens_per_name: int,
    clients: list[AsyncClient],
    router: _core.Router,
    start: float,
) -> Answered:
    prompt = [3 + token % NUM_IDS for token in prompt_token_ids(index, request, tokens_per_name)]
    await asyncio.sleep(request.arrival * 1e-9 - (time.monotonic() - start))
    names = np.ascontiguousarray(request.blocks[NAMES_PER_ROUTER_NAME - 1 :: NAMES_PER_ROUTER_NAME])
    routed = router.route(
        names.view(np.int64), tokens_per_name * NAMES_PER_ROUTER_NAME, len(prompt)
    )
    assert routed is not None
    number, replica = routed
    answered = Answered(replica, sent=time.monotonic() - start)
    generation = clients[replica].generate(
        prompt, max_tokens=request.max_tokens, ignore_eos=True, temperature=0.0
    )
    async for event in generation.events():
        if event.HasField("tokens") and not answered.first_token:
            answered.first_token = time.monotonic() - start
        if event.HasField("finished"):
            answered.num_output = event.finished.usage.output_tokens
            answered.num_cached = event.finished.usage.cached_tokens
    answered.ended = time.monotonic() - start
    router.end(number)
    return answered
