"""The requests of one call that yield vectors or scores."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.api.pooled import Pooled
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.outbox import Outbox
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.calls.result_requests import ResultRequests

Result = Pooled | RequestError

MAX_LIVE_INPUTS: Final = 256
"""Inputs of a call that are submitted and have no result yet; the others follow."""


class PoolingRequests(ResultRequests):
    """The live requests of one call, whose results are waited for by label."""

    def __init__(
        self,
        server: ServerContext,
        outbox: Outbox,
        *,
        tenant: str,
        connection: str,
        time_remaining: Callable[[], float | None],
        on_result: Callable[[str, Result], None],
    ) -> None:
        """Start without requests.

        Args:
            server: The state that all calls share.
            outbox: The outbox of the call; it stays empty.
            tenant: Owner of the requests.
            connection: The connection of the call.
            time_remaining: Returns the seconds until the call's deadline, or None without one.
            on_result: Called with the label and the result, or the error, of each request.
        """
        super().__init__(
            server,
            outbox,
            tenant=tenant,
            connection=connection,
            time_remaining=time_remaining,
        )
        self._on_result = on_result

    async def begin(self, request: types.Request, label: str) -> None:
        """Submit a request; its result comes by `on_result`.

        Raises:
            RequestError: It is wrong, its label is in use, or the server takes no request now.
        """
        if label in self.live:
            message = "request_id: a live input of this stream has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field="request_id")
        await self.submit_counted(request, label)

    def on_end(self, live: LiveRequest, end: types.Finished | RequestError) -> None:
        """Pass the result on."""
        self._on_result(live.label, end if isinstance(end, RequestError) else _result(live, end))


def _result(live: LiveRequest, event: types.Finished) -> Result:
    pooled = live.prepared.pooled
    assert pooled is not None, "each of these requests asks for a vector or scores"
    if event.reason is types.FinishReason.CANCELLED:
        return refusal(Reason.ABORTED)
    if pooled.raw is None:
        message = "the request ended before it was computed: its time limit passed"
        return RequestError(Reason.QUEUE_TIMEOUT, message)
    return pooled


def of_tenant(request: types.Request, tenant: str) -> types.Request:
    """Return a request as one of a tenant."""
    return replace(request, tenant=tenant)


async def pool(
    server: ServerContext,
    requests: Sequence[types.Request],
    *,
    tenant: str,
    connection: str,
    time_remaining: Callable[[], float | None],
    labels: Sequence[str] = (),
    field: str = "inputs",
) -> list[Pooled]:
    """Run requests together and return their results in order; closing the call cancels them.

    Args:
        server: The state that all calls share.
        requests: Requests of the tenant.
        tenant: Owner of the requests.
        connection: The connection of the call.
        time_remaining: Returns the seconds until the call's deadline, or None without one.
        labels: The client's name of each request; without any they are numbered.
        field: The field that lists them, for errors.

    Raises:
        RequestError: The first that is refused or fails; the others are aborted.
    """
    labels = labels or [str(number) for number in range(len(requests))]
    config = server.gate.engine().config
    # Less than the share of a connection in the queue; a static batch has to become full.
    limit = max(MAX_LIVE_INPUTS, config.batch_size or config.max_num_seqs)
    server.quotas.check_call(min(limit, len(requests)), len(requests), field)
    results: dict[str, Pooled] = {}
    errors: list[RequestError] = []
    arrived = asyncio.Event()

    def on_result(label: str, result: Result) -> None:
        if isinstance(result, Pooled):
            results[label] = result
        else:
            errors.append(result)
        arrived.set()

    async def next_results() -> None:
        """Wait for results, and raise the first that is an error."""
        await arrived.wait()
        arrived.clear()
        if errors:
            raise errors[0]

    with server.outboxes.open() as outbox:
        live = PoolingRequests(
            server,
            outbox,
            tenant=tenant,
            connection=connection,
            time_remaining=time_remaining,
            on_result=on_result,
        )
        try:
            for label, request in zip(labels, requests, strict=True):
                while len(live) >= limit:
                    await next_results()
                await live.begin(request, label)
                # Short texts are tokenized at once: many must not hold the event loop together.
                await asyncio.sleep(0)
            live.half_close()
            while len(results) < len(requests):
                await next_results()
        finally:
            # Only synchronous work here: this also runs when the call is being cancelled.
            live.close()
    return [results[label] for label in labels]
