"""Load over real gRPC, open loop: requests are sent when due, whatever the state of the others.

Definitions are those of `vllm bench serve`: time to first token (TTFT) runs from when the request
is sent to its first event with tokens, inter-token latency (ITL) between its events with tokens,
latency to its last event; rates are over the time from the first request to the last event.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from chairlift.api.errors import ChairliftError
from chairlift.bench.driven_request import DrivenRequest
from chairlift.bench.workload import Item
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from chairlift.client import AsyncClient

Connect = Callable[[], "AbstractAsyncContextManager[AsyncClient]"]
"""Opens a connection."""


@dataclass(slots=True)
class SentRequest(DrivenRequest):
    """One request as its client saw it; seconds of the monotonic clock, it arrives when sent."""

    failure: str = ""
    """Reason of a refusal or failure."""


@dataclass(slots=True)
class LoadResult:
    """The requests of one load as the clients saw them."""

    requests: list[SentRequest]
    message_times_ns: list[int] = field(default_factory=list)
    """Arrival of each message, of all streams."""
    on_end: Callable[[], None] = lambda: None
    """Called when a request has ended."""
    places: asyncio.Semaphore | None = None
    """Places of the requests at a time; None is any number."""


async def send_load(
    client: "AsyncClient",
    work: Sequence[Item],
    num_streams: int,
    on_end: Callable[[], None] = lambda: None,
    concurrency: int | None = None,
) -> LoadResult:
    """Send all of the work over some streams of one connection and wait for every end.

    Args:
        client: A connected client.
        work: Requests in the order of arrival.
        num_streams: Calls that carry it.
        on_end: Called when a request has ended.
        concurrency: Requests at a time: one is sent when it is due and so many others have ended.

    Raises:
        ChairliftError: A call broke.
    """
    requests = [SentRequest(0.0, len(item.prompt_token_ids)) for item in work]
    places = None if concurrency is None else asyncio.Semaphore(concurrency)
    load = LoadResult(requests, on_end=on_end, places=places)
    start = time.monotonic()
    shares = [
        [(i, work[i]) for i in range(stream, len(work), num_streams)]
        for stream in range(num_streams)
    ]
    try:
        await asyncio.gather(*(_stream(client, share, load, start) for share in shares if share))
    except grpc.RpcError as error:
        message = f"a call broke: {error.code().name}: {error.details()}"
        raise ChairliftError(message) from None
    return load


async def _stream(
    client: "AsyncClient", share: list[tuple[int, Item]], load: LoadResult, start: float
) -> None:
    requests = load.requests
    async for response in client.stream(_commands(share, load, start)):
        now = time.monotonic()
        load.message_times_ns.append(round(now * 1e9))
        for event in response.events:
            request = requests[int(event.request_id)]
            if event.HasField("tokens"):
                request.num_output += event.tokens.num_tokens
                request.event_times_s.append(now)
            else:
                _note(request, event, now)
                if event.last:
                    load.on_end()
                    if load.places is not None:
                        load.places.release()


def _note(request: SentRequest, event: pb.Event, now: float) -> None:
    if event.HasField("rejected"):
        request.failure = event.rejected.error.reason
    elif event.HasField("failed"):
        request.failure = event.failed.error.reason
    request.finished_s = now


async def _commands(
    share: list[tuple[int, Item]], load: LoadResult, start: float
) -> AsyncIterator[pb.GenerateRequest]:
    for number, item in share:
        wait_s = start + item.arrival_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if load.places is not None:
            await load.places.acquire()
        load.requests[number].arrival_s = time.monotonic()
        yield pb.GenerateRequest(
            start=pb.Start(
                request_id=str(number),
                token_ids=pb.TokenIds(ids=item.prompt_token_ids),
                sampling=pb.Sampling(temperature=0),
                stopping=pb.Stopping(max_tokens=item.max_tokens, ignore_eos=True),
            )
        )


def send_over_grpc(
    connect: Connect,
    work: Sequence[Item],
    num_streams: int,
    on_end: Callable[[], None] = lambda: None,
    concurrency: int | None = None,
) -> LoadResult:
    """Do `send_load` over a connection of its own.

    Args:
        connect: Opens it.
        work: Requests in the order of arrival.
        num_streams: Calls that carry it.
        on_end: Called when a request has ended.
        concurrency: Requests at a time.

    Raises:
        ChairliftError: There is no server, or a call broke.
    """

    async def send() -> LoadResult:
        async with connect() as client:
            return await send_load(client, work, num_streams, on_end, concurrency)

    return asyncio.run(send())
