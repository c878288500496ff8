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
from chairlift.bench.workload import Item
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.client import AsyncClient


@dataclass(slots=True)
class SentRequest:
    """The times of one request as its client saw them; seconds of the monotonic clock."""

    sent_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    """Time of each event with tokens."""
    num_tokens: int = 0
    ended_s: float = 0.0
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


async def send_load(
    client: "AsyncClient",
    work: Sequence[Item],
    num_streams: int,
    on_end: Callable[[], None] = lambda: None,
) -> LoadResult:
    """Send all of the work over some streams of one connection and wait for every end.

    Args:
        client: A connected client.
        work: Requests in the order of arrival.
        num_streams: Calls that carry it.
        on_end: Called when a request has ended.

    Raises:
        ChairliftError: A call broke.
    """
    load = LoadResult([SentRequest() for _ in work], on_end=on_end)
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
                request.num_tokens += event.tokens.num_tokens
                request.token_times_s.append(now)
            else:
                _note(request, event, now)
                if event.last:
                    load.on_end()


def _note(request: SentRequest, event: pb.Event, now: float) -> None:
    if event.HasField("rejected"):
        request.failure = event.rejected.error.reason
    elif event.HasField("failed"):
        request.failure = event.failed.error.reason
    request.ended_s = now


async def _commands(
    share: list[tuple[int, Item]], load: LoadResult, start: float
) -> AsyncIterator[pb.GenerateRequest]:
    for number, item in share:
        wait_s = start + item.arrival_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        load.requests[number].sent_s = time.monotonic()
        yield pb.GenerateRequest(
            start=pb.Start(
                request_id=str(number),
                token_ids=pb.TokenIds(ids=item.prompt_token_ids),
                sampling=pb.Sampling(temperature=0),
                stopping=pb.Stopping(max_tokens=item.max_tokens, ignore_eos=True),
            )
        )
