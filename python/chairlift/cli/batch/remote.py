"""Runs the lines of a job on a server, through the client."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from chairlift.api import checks, types
from chairlift.api.errors import ChairliftError, Reason, RequestError, ServerError
from chairlift.cli.batch.entries import MAX_LIVE_BYTES, Result, Task, body_of
from chairlift.cli.remote import connected
from chairlift.client import AsyncClient, new_start
from chairlift.server.http.errors import HttpError, refused
from chairlift.server.protocols.openai.embeddings import EmbeddingsJob
from chairlift.server.protocols.openai.job import Answer
from chairlift.v1 import generation_pb2 as pb

_BUSY: Final = frozenset(
    {
        Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT,
        Reason.QUOTA_EXCEEDED,
        Reason.ENGINE_BUSY,
        Reason.DEADLINE_UNREACHABLE,
    }
)
"""The request is tried again."""
_GONE: Final = frozenset(
    {Reason.STARTING, Reason.DRAINING, Reason.ENGINE_DOWN, Reason.UNAUTHENTICATED}
)
"""No request is answered: the job stops, and goes on when the same command runs again."""

MAX_ATTEMPTS: Final = 8
"""Attempts of a request that the server is too busy for; their waits add up to two minutes."""
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_QUEUE_TIMEOUT_S: Final = 3600.0
_CLOSE_S: Final = 10.0
"""The lines of a job have time."""
_MARGIN_BYTES: Final = 1024
"""Room in a message for what the client adds to a request."""
_MORE_LINES: Final = 2
"""Lines that are sent for each row of the server."""


class RemoteRunner:
    """Runs tasks on a server; a context that ends the connection."""

    def __init__(self, target: str, security: dict[str, str | None]) -> None:
        """Prepare a connection.

        Args:
            target: HOST:PORT or unix:PATH.
            security: `tls_ca`, `tls_cert` and `tls_key`.
        """
        self._target = target
        self._security = security
        self._loop = asyncio.Runner()
        self._stack = AsyncExitStack()

    def __enter__(self) -> "RemoteRunner":
        """Connect.

        Raises:
            ChairliftError: There is no server, or it does not serve.
        """
        self._loop.__enter__()
        try:
            self._loop.run(self._connect())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        """Close the connection; a server that is going may not answer any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._stack.aclose()

    async def _connect(self) -> None:
        client = connected(self._target, **self._security)
        self._client: AsyncClient = await self._stack.enter_async_context(client)
        info = await self._client.server_info()
        self._max_bytes = info.max_receive_bytes
        self._max_live = max(1, _MORE_LINES * info.max_num_seqs)

    def run(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield the result of each task as it ends.

        Raises:
            ChairliftError: The server is gone, or too busy for too long.
        """
        live: dict[asyncio.Task[Result], Task] = {}
        num_bytes, is_exhausted = 0, False
        try:
            while True:
                while (
                    not is_exhausted
                    and len(live) < self._max_live
                    and (num_bytes < MAX_LIVE_BYTES or not live)
                ):
                    task = next(tasks, None)
                    if task is None:
                        is_exhausted = True
                        break
                    live[self._loop.get_loop().create_task(self._result(task))] = task
                    num_bytes += task.size
                if not live:
                    return
                done = self._loop.run(_first_of(live))
                for ended in done:
                    task = live.pop(ended)
                    num_bytes -= task.size
                    yield task, ended.result()
        finally:
            if live:
                self._loop.run(_cancel(live))

    async def _result(self, task: Task) -> Result:
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._answer(task)
            except HttpError as error:
                return error
            except RequestError as error:
                if error.reason in _GONE or (error.reason in _BUSY and attempt == MAX_ATTEMPTS):
                    message = f"{self._target}: {error.message}"
                    raise ChairliftError(message) from None
                if error.reason not in _BUSY:
                    return task.translate(error)
                await asyncio.sleep(max(wait_s, error.retry_after_s or 0.0))
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError(task)

    async def _answer(self, task: Task) -> dict[str, Any]:
        job = task.job
        if isinstance(job, EmbeddingsJob):
            return job.answer(await self._vectors(task.requests))
        starts = [to_start(request) for request in task.requests]
        for start in starts:
            if start.ByteSize() > self._max_bytes - _MARGIN_BYTES:
                raise self._too_large()
        answer = job.answer(task.origin)
        texts = [
            asyncio.ensure_future(self._text(start, answer, number * job.num_answers))
            for number, start in enumerate(starts)
        ]
        try:
            await asyncio.gather(*texts)
        finally:
            for text in texts:
                text.cancel()
        return body_of(answer)

    async def _text(self, start: pb.Start, answer: Answer, first: int) -> None:
        async for event in self._client.submit(start).events():
            if event.HasField("tokens"):
                answer.tokens(first + event.index, event.tokens)
            elif event.HasField("finished"):
                if event.finished.reason == pb.FINISH_REASON_CANCELLED:
                    message = "the request was cancelled from elsewhere"
                    raise refused(HTTPStatus.CONFLICT, message, "cancelled")
                answer.finished(first + event.index, event.finished)

    async def _vectors(self, requests: Sequence[types.Request]) -> list[tuple[Any, int]]:
        inputs = [request.prompt for request in requests]
        pooling = requests[0].pooling or types.Pooling()
        if pooling.input_type is not None:
            message = "input_type: not supported with --target: prompt_name names the prompt"
            raise RequestError(Reason.UNSUPPORTED, message, field="input_type")
        try:
            found = await self._client.embed(
                inputs,  # type: ignore[arg-type]
                dimensions=pooling.dimensions,
                truncate_end=pooling.truncate_end,
                prompt_name=pooling.prompt_name,
            )
        except ServerError as error:
            if str(error).startswith("RESOURCE_EXHAUSTED"):
                raise self._too_large() from None
            raise
        return [
            (np.asarray(embedding.values, np.float32), embedding.num_prompt_tokens)
            for embedding in found
        ]

    def _too_large(self) -> RequestError:
        message = f"the server takes messages of at most {self._max_bytes} bytes"
        return RequestError(Reason.PROMPT_TOO_LONG, message)


async def _first_of(live: dict[asyncio.Task[Result], Task]) -> set[asyncio.Task[Result]]:
    done, _ = await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _cancel(live: dict[asyncio.Task[Result], Task]) -> None:
    for task in live:
        task.cancel()
    await asyncio.gather(*live, return_exceptions=True)


def to_start(request: types.Request) -> pb.Start:
    """Return a request of a body as the client sends it.

    Raises:
        RequestError: A value has the wrong type, or needs the model itself.
    """
    if request.output.logprobs:
        message = "logprobs: not supported with --target: the texts of tokens are not sent"
        raise RequestError(Reason.UNSUPPORTED, message, field="logprobs")
    options = {**_given(request.sampling), **_given(request.stopping)}
    start = new_start(
        request.prompt,
        constraint=request.constraint,
        interval=0,
        queue_timeout_s=_QUEUE_TIMEOUT_S,
        **options,
    )
    start.add_special_tokens = request.add_special_tokens
    start.output.skip_special_tokens = request.output.skip_special_tokens
    start.prefix_cache.salt = request.prefix_cache.salt
    if request.truncate_prompt is not None:
        start.truncate_prompt = checks.integer(
            request.truncate_prompt, "truncate_prompt", 0, 2**32 - 1
        )
    return start


def _given(values: types.Sampling | types.Stopping) -> dict[str, Any]:
    """Return the values that a body sets."""
    found = {field.name: getattr(values, field.name) for field in fields(values)}
    return {name: value for name, value in found.items() if value is not None and value != ()}
