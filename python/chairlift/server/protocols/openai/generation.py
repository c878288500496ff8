"""Runs the requests of one exchange, and writes their answer.

A stream sends no headers before the first token, so that a refusal still has its own status. If
that takes long, headers are sent earlier: a proxy may close a connection that sends nothing.
"""

import asyncio
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from chairlift.api.errors import Reason, RequestError
from chairlift.engine.prepare.prepared import Prepared
from chairlift.server.calls.context import ServerContext
from chairlift.server.http.errors import HttpError, refused
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import EVENT_STREAM, HttpCall
from chairlift.server.limits.quotas import sequences_of
from chairlift.server.protocols.openai.handing import with_params
from chairlift.server.protocols.openai.job import Job, Origin, Stream
from chairlift.server.protocols.openai.resuming import (
    HANDLE_HEADER,
    EventId,
    Written,
    last_event_id,
    numbered,
    window_s,
)
from chairlift.server.rpc.status import from_error
from chairlift.v1 import generation_pb2 as pb

_KEEP_ALIVE: Final = b": waiting\n\n"


class Generation(HttpCall):
    """The live requests of one exchange, which a job has."""

    def __init__(self, server: ServerContext, exchange: Exchange, job: Job) -> None:
        """Start nothing yet.

        Raises:
            HttpError: The deadline is malformed.
        """
        super().__init__(server, exchange)
        self._job = job
        self._window_s = window_s(server, exchange, job)
        self.has_ids = self._window_s is not None
        self.origin = Origin("", 0, job.model)
        self._prepared: Prepared | None = None

    async def start(self) -> None:
        """Submit the requests.

        Raises:
            RequestError: One is refused; none runs then.
        """
        traceparent = self._exchange.header("traceparent") or ""
        num_kept_bytes = 0 if self._window_s is None else self._job.num_kept_bytes
        self._exchange.on_disconnect = self._outbox.wake
        if len(self._job.requests) > 1:
            num = sum(sequences_of(request).num for request in self._job.requests)
            self._server.quotas.check_call(num, num, "prompt")
        for number, request in enumerate(self._job.requests):
            if number:
                # Short prompts are tokenized at once: many must not hold the event loop together.
                await asyncio.sleep(0)
            live = await self._requests.submit(
                request,
                self._job.output,
                str(number),
                arrived_at=self._exchange.arrived_at,
                traceparent=traceparent,
                resume_window_s=self._window_s,
                num_kept_bytes=num_kept_bytes,
                handoff=self._job.handoff,
            )
            if number == 0:
                if self._job.handoff is not None and self._job.handoff.wants_ticket:
                    # A request that is kept keeps its adapter, which then makes no room.
                    self._prepared = live.prepared
                self.origin = Origin(live.handle, int(time.time()), self._job.model)
            if live.resumable is not None:
                live.resumable.context = Written.of(self._job, self.origin)
        self._end_requests()

    def with_params(self, pieces: list[bytes]) -> list[bytes]:
        """Return the body of a response with what another server needs, if a gateway wants it."""
        if self._prepared is None:
            return pieces
        return with_params(self._server, pieces, self._prepared)

    def resume(self, origin: Origin) -> None:
        """Take over the stream of another exchange; all its events come again.

        Raises:
            RequestError: It is over, or its events are not all there.
        """
        self._exchange.on_disconnect = self._outbox.wake
        self.origin = origin
        self.has_ids = True
        self._requests.resume(pb.Resume(handle=origin.handle, request_id="0"))
        self._end_requests()

    def number(self, event: pb.Event) -> int:
        """Return the number of the answer that an event is of."""
        return int(event.request_id) * self._job.num_answers + event.index

    def numbers(self, event: pb.Event) -> range:
        """Return the numbers of the answers to the prompt that an event is of."""
        first = int(event.request_id) * self._job.num_answers
        return range(first, first + self._job.num_answers)


def _check(events: Iterable[pb.Event]) -> None:
    """Raise what has failed; all requests of an exchange fail together."""
    for event in events:
        kind = event.WhichOneof("event")
        if kind in ("failed", "rejected"):
            raise from_error(event.failed.error if kind == "failed" else event.rejected.error)
        if kind == "finished" and event.finished.reason == pb.FINISH_REASON_CANCELLED:
            message = "the request was cancelled from elsewhere"
            raise refused(HTTPStatus.CONFLICT, message, "cancelled")


async def serve(server: ServerContext, exchange: Exchange, job: Job) -> None:
    """Run the requests and write the response.

    Raises:
        HttpError: It is refused or has failed, and nothing of the response is sent.
        Disconnected: The client is gone.
    """
    try:
        with Generation(server, exchange, job) as generation:
            await generation.start()
            if job.is_stream:
                await _write_stream(exchange, job, generation)
                return
            answer = job.answer(generation.origin)
            while not generation.is_over():
                events = await generation.events()
                _check(events)
                for event in events:
                    if event.HasField("prompt"):
                        answer.prompt(generation.numbers(event), event.prompt)
                    elif event.HasField("tokens"):
                        answer.tokens(generation.number(event), event.tokens)
                    elif event.HasField("finished"):
                        answer.finished(generation.number(event), event.finished)
    except RequestError as error:
        raise HttpError.of(job.names.translate(error)) from None
    headers = (("content-type", "application/json"), *_names(generation))
    await exchange.respond_in_turns(generation.with_params(answer.body()), headers)


async def continue_stream(server: ServerContext, exchange: Exchange) -> None:
    """Write the rest of a stream whose connection was lost, or that its client has given up.

    Raises:
        HttpError: There is no such stream of this tenant, or a part of it is no longer kept.
        Disconnected: The client is gone.
    """
    handle, after = exchange.scope["path_params"]["handle"], last_event_id(exchange)
    found = server.resumables.find(exchange.tenant, handle, after[0])
    if not isinstance(found.context, Written):
        message = "handle: this request was not started over HTTP; Resume of gRPC continues it"
        raise RequestError(Reason.UNKNOWN_REQUEST, message, field="handle")
    exchange.watch()
    with Generation(server, exchange, found.context.job) as generation:
        generation.resume(found.context.origin)
        await _write_stream(exchange, found.context.job, generation, after)


def _names(generation: Generation) -> tuple[tuple[str, str], ...]:
    handle = generation.origin.handle
    return ("x-request-id", handle), (HANDLE_HEADER, handle)


async def _write_stream(
    exchange: Exchange, job: Job, generation: Generation, after: EventId = (0, 0)
) -> None:
    """Write the events of a stream after one of them, and keep it alive in between."""
    stream = job.stream(generation.origin)
    headers = (*EVENT_STREAM, *_names(generation))
    try:
        while not generation.is_over():
            events = await generation.events()
            _check(events)
            pieces: list[bytes] = []
            for event in events:
                pieces += _encode(stream, generation, event, after)
            is_over = generation.is_over()
            if is_over and not generation.has_ids:
                pieces += stream.end()
            elif not pieces and not is_over and generation.is_silent():
                pieces = [_KEEP_ALIVE]
            if pieces or is_over:
                await generation.write(pieces, headers, more=not is_over)
    except (RequestError, HttpError) as error:
        is_slow = isinstance(error, RequestError) and error.reason is Reason.SLOW_READER
        if is_slow or not exchange.has_begun:
            raise
        if isinstance(error, RequestError):
            error = HttpError.of(job.names.translate(error))
        await exchange.write_in_turns(stream.failed(error), more=False)


def _encode(
    stream: Stream, generation: Generation, event: pb.Event, after: EventId
) -> Iterable[bytes]:
    kind = event.WhichOneof("event")
    pieces: list[bytes] = []
    if kind == "accepted":
        for number in generation.numbers(event):
            stream.accepted(number, event.accepted.num_prompt_tokens)
    elif kind == "prompt":
        pieces = stream.prompt(generation.numbers(event), event.prompt)
    elif kind == "tokens":
        pieces = stream.tokens(generation.number(event), event.tokens)
    elif kind == "finished":
        pieces = stream.finished(generation.number(event), event.finished)
    if not generation.has_ids:
        return pieces
    # There is one request: its last event makes the last ones of the response, too.
    return numbered(pieces + stream.end() if event.last else pieces, event.number, after)
