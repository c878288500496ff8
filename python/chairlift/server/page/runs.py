"""`POST /page/runs`: many requests, one response.

A browser opens six connections to a host: a page that asks several prompts at once needs a stream
that many answers share. Each request is one of chat completions or completions, and is handled
like those. An error of one request ends that request only.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

from chairlift.api.checks import bad
from chairlift.api.errors import Reason, RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.convert.messages import MAX_REQUEST_ID_BYTES
from chairlift.server.http.errors import HttpError
from chairlift.server.http.exchange import Exchange
from chairlift.server.http.http_call import HttpCall
from chairlift.server.http.json_pieces import quoted, to_json
from chairlift.server.page.access import SIGN_OF_LIFE, STREAM_HEADERS, check_page, event
from chairlift.server.page.static_files import DATA_HEADERS
from chairlift.server.protocols.names import Names
from chairlift.server.protocols.openai.chat import chat_job
from chairlift.server.protocols.openai.completions import completions_job
from chairlift.server.protocols.openai.fields import Fields, unsupported
from chairlift.server.protocols.openai.job import Job
from chairlift.server.protocols.openai.logprobs import TokenTexts
from chairlift.server.protocols.openai.tools import call_delta
from chairlift.server.rpc.status import from_error
from chairlift.v1 import generation_pb2 as pb

MAX_RUNS: Final = 64
"""Requests of one body."""
_MAX_INTERVALS: Final = 4096
"""The last intervals of an answer that are kept: `itl_ms` has as many entries at most."""

ToJob = Callable[[dict[str, Any], str], Job]


class _Run:
    """One request, as its client sees it."""

    def __init__(self, name: str, started_at: float) -> None:
        self.names = Names({})
        self._name = name
        self._started_at = started_at
        self._before_text = b'event: tokens\ndata: {"id":%b,"text":' % to_json(name)
        self._ttft_ms: float | None = None
        self._last_at = started_at
        self._intervals_ms: deque[float] = deque(maxlen=_MAX_INTERVALS)

    def accepted(self, accepted: pb.Accepted) -> bytes:
        """Encode that the request waits or runs."""
        value = {
            "id": self._name,
            "handle": accepted.handle,
            "request_id": self._name,
            "num_prompt_tokens": accepted.num_prompt_tokens,
        }
        return event("accepted", value)

    def tokens(self, tokens: pb.Tokens) -> bytes:
        """Encode new text, and note its time."""
        now = time.monotonic()
        if self._ttft_ms is None:
            self._ttft_ms = (now - self._started_at) * 1e3
        else:
            self._intervals_ms.append(round((now - self._last_at) * 1e3, 2))
        self._last_at = now
        more = b',"num_tokens":%d' % tokens.num_tokens
        if tokens.reasoning:
            more += b',"reasoning":' + quoted(tokens.reasoning)
        if tokens.tool_calls:
            more += b',"tool_calls":' + to_json([call_delta(part) for part in tokens.tool_calls])
        return self._before_text + quoted(tokens.text) + more + b"}\n\n"

    def finished(self, finished: pb.Finished) -> bytes:
        """Encode the end of the answer."""
        reason, usage = pb.FinishReason.Name(finished.reason), finished.usage
        value = {
            "id": self._name,
            "reason": reason.removeprefix("FINISH_REASON_").lower(),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
            },
            "ttft_ms": None if self._ttft_ms is None else round(self._ttft_ms, 2),
            "itl_ms": list(self._intervals_ms),
        }
        return event("finished", value)

    def failed(self, error: HttpError) -> bytes:
        """Encode that the request is refused, or failed."""
        return event(
            "failed",
            {"id": self._name, "code": error.code, "message": error.message, "param": error.param},
        )


class Runs(HttpCall):
    """The requests of one body."""

    def __init__(self, server: ServerContext, exchange: Exchange, to_job: ToJob) -> None:
        """Start nothing yet.

        Args:
            server: The state that all calls share.
            exchange: Whose response has the answers.
            to_job: Converts a request of the exchange's tenant.

        Raises:
            HttpError: The deadline is malformed.
        """
        super().__init__(server, exchange)
        self._to_job = to_job
        self._runs: dict[str, _Run] = {}

    async def serve(self, bodies: dict[str, dict[str, Any]]) -> None:
        """Submit requests, and write what becomes of them until all have ended.

        Args:
            bodies: The requests by their names.

        Raises:
            RequestError: The client does not read.
            Disconnected: The client is gone.
        """
        self._exchange.on_disconnect = self._outbox.wake
        for name, body in bodies.items():
            await self._submit(name, body)
            # Short prompts are tokenized at once, and the first answers need not wait for all.
            await asyncio.sleep(0)
            await self._write(self._take())
        self._end_requests()
        try:
            while not self.is_over():
                await self._write(await self.events())
        except HttpError as error:
            data = b"".join([run.failed(error) for run in self._runs.values()])
            await self.write([data], STREAM_HEADERS, more=True)
        await self.write([], STREAM_HEADERS, more=False)

    async def _submit(self, name: str, body: dict[str, Any]) -> None:
        run = self._runs[name] = _Run(name, time.monotonic())
        try:
            job = self._to_job(body, self._exchange.tenant)
            run.names = job.names
            await self._requests.submit(
                job.requests[0],
                job.output,
                name,
                arrived_at=time.monotonic(),
                traceparent=self._exchange.header("traceparent") or "",
            )
        except RequestError as error:
            self._requests.refuse(name, error)

    async def _write(self, events: Iterable[pb.Event]) -> None:
        data = b"".join([self._encoded(event) for event in events])
        if not data and self.is_silent():
            data = SIGN_OF_LIFE
        if data:
            await self.write([data], STREAM_HEADERS, more=True)

    def _encoded(self, event: pb.Event) -> bytes:
        run = self._runs[event.request_id]
        if event.last:
            del self._runs[event.request_id]
        match event.WhichOneof("event"):
            case "accepted":
                return run.accepted(event.accepted)
            case "tokens":
                return run.tokens(event.tokens)
            case "finished":
                return run.finished(event.finished)
            case "failed":
                failure = event.failed.error
            case _:
                failure = event.rejected.error
        return run.failed(HttpError.of(run.names.translate(from_error(failure))))


class RunRoutes:
    """The handlers of requests that the page sends."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._texts = TokenTexts(lambda: server.gate.engine().engine.tokenizer)

    async def start(self, exchange: Exchange) -> None:
        """Run requests; the stream ends with the last of them, and ends them if it is closed."""
        check_page(exchange)
        self._server.gate.admit()
        bodies = _bodies(await exchange.json())
        with Runs(self._server, exchange, self._job) as runs:
            await runs.serve(bodies)

    async def cancel(self, exchange: Exchange) -> None:
        """End a live request of the caller's tenant.

        Raises:
            RequestError: There is none of this name.
        """
        check_page(exchange)
        live = self._server.live.get(exchange.scope["path_params"]["handle"])
        if live is None or live.tenant != exchange.tenant:
            message = "handle: no live request of this tenant has it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="handle")
        self._server.gate.engine().abort(live)
        await exchange.respond(b"", status=HTTPStatus.NO_CONTENT, headers=DATA_HEADERS)

    def _job(self, body: dict[str, Any], tenant: str) -> Job:
        """Convert a request.

        Raises:
            RequestError: With the path of the field that is wrong or not supported.
        """
        to_job = chat_job if "messages" in body else completions_job
        if not body.keys() & {"messages", "prompt"}:
            message = "expected the fields of chat completions or completions: messages or prompt"
            raise RequestError(Reason.BAD_PARAMETER, message, field="messages")
        if body.setdefault("stream", True) is not True:
            raise unsupported("stream", "only true is supported here: all answers are streams")
        job = to_job(body, self._server.model_names, self._texts, tenant)
        if job.num_answers != 1 or len(job.requests) != 1:
            raise unsupported("n", "only one answer to one prompt is supported here")
        if job.output.logprobs or job.output.echo:
            raise unsupported("logprobs", "not supported here, nor is echo: events have text alone")
        return job


def _bodies(value: object) -> dict[str, dict[str, Any]]:
    """Return the requests of a body by their names.

    Raises:
        RequestError: With the path of the field that is wrong.
    """
    body = Fields(value)
    items = list(body.objects("requests", MAX_RUNS))
    body.end()
    if not items:
        message = f"requests: expected 1 to {MAX_RUNS} requests, got none"
        raise RequestError(Reason.BAD_PARAMETER, message, field="requests")
    bodies: dict[str, dict[str, Any]] = {}
    for fields in items:
        name, path = fields.take("id"), fields.path_of("id")
        is_text = isinstance(name, str) and name.isascii() and name.isprintable()
        if not is_text or not 0 < len(name) <= MAX_REQUEST_ID_BYTES:
            raise bad(path, f"1 to {MAX_REQUEST_ID_BYTES} printable ASCII characters", name)
        if name in bodies:
            message = f"{path}: another request of this body has the same"
            raise RequestError(Reason.DUPLICATE_REQUEST_ID, message, field=path)
        bodies[name] = fields.rest()
    return bodies
