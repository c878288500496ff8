"""The interceptor around every method: no call ends as UNKNOWN, hangs or shows a traceback.

Three properties of grpc.aio make it necessary. A message that cannot be decoded and an exception of
a handler both become UNKNOWN, the latter with its text. A handler that raises `CancelledError` by
itself, or anything that is no `Exception` (a Rust panic, say), sends no status at all, and its
client waits forever.

A fourth is the client's: if it writes while the status of its call arrives, it turns the status
into INTERNAL (grpc/grpc#36066). So a call that ends with an error first drains its messages.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from chairlift.api.errors import Reason, RequestError
from chairlift.api.logs import fields
from chairlift.server.limits.receiving import Messages, Receiving
from chairlift.server.limits.shares import Holder, holder_of
from chairlift.server.rpc.status import INTERNAL_MESSAGE, to_status

_log = logging.getLogger(__name__)

ServicerContext = Any
"""A `grpc.aio.ServicerContext`; grpcio ships no types."""

Handler = Any
"""A `grpc.RpcMethodHandler`."""


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps the deserialiser and the behaviour of every handler."""

    def __init__(
        self,
        on_failure: Callable[[str, Reason], None] = lambda _method, _reason: None,
        receiving: Receiving | None = None,
        tenant_of: Callable[[ServicerContext], str] = lambda _context: "",
    ) -> None:
        """Set the callbacks and the bounds.

        Args:
            on_failure: Called with the method and the reason of each call that ends with an error.
            receiving: Bounds on unfinished messages; None is the default ones.
            tenant_of: Returns the tenant of a call, or raises RequestError.
        """
        self._tenant_of = tenant_of
        self._on_failure = on_failure
        self._receiving = Receiving() if receiving is None else receiving

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Handler | None]],
        handler_call_details: Any,
    ) -> Handler | None:
        """Return the wrapped handler; None (an unknown method) stays UNIMPLEMENTED.

        The handler is that of a stream, whatever the method: the wire format is the same, and
        messages are read when they are taken, so that their number and time are bounded.
        """
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        run = self._wrapped(handler, handler_call_details.method)
        return grpc.stream_stream_rpc_method_handler(run, None, handler.response_serializer)

    def _wrapped(
        self, handler: Handler, method: str
    ) -> Callable[[AsyncIterator[bytes], ServicerContext], Awaitable[None]]:
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        async def run(messages: AsyncIterator[bytes], context: ServicerContext) -> None:
            received = Messages(
                self._receiving,
                messages,
                handler.request_deserializer,
                self._holder(context),
                is_stream=handler.request_streaming,
            )
            try:
                status = await self._answer(handler, behavior, method, received, context)
                if status is not None:
                    await received.drain()
                    await _abort(context, status)
            except grpc.aio.InternalError:
                _log_reset(method)
            finally:
                received.close()

        return run

    def _holder(self, context: ServicerContext) -> Holder:
        """Return what the call counts for; a caller that is refused has no tenant."""
        try:
            tenant = self._tenant_of(context)
        except RequestError:
            tenant = ""
        return holder_of(context.peer(), tenant)

    async def _answer(
        self,
        handler: Handler,
        behavior: Callable[[Any, ServicerContext], Any],
        method: str,
        received: Messages,
        context: ServicerContext,
    ) -> Any:
        """Answer a call; return the status that it has to end with, or None if it has one.

        What the error keeps alive, the request among it, goes with this frame.
        """
        try:
            request = received if handler.request_streaming else await received.only()
            if handler.response_streaming:
                await _write_all(behavior(request, context), context)
            else:
                await context.write(await behavior(request, context))
        except BaseException as error:
            return self._status(method, error)
        return None

    def _status(self, method: str, error: BaseException) -> Any:
        """Return the status of a call, None if it has one; raise what gRPC has to see."""
        if isinstance(error, grpc.aio.AbortError):
            _forget(error)
            return None
        if isinstance(error, grpc.aio.InternalError) or _is_real_cancellation(error):
            raise error
        if not isinstance(error, RequestError):
            _log.error("a handler failed", exc_info=error, extra=fields(method=method))
            error = RequestError(Reason.INTERNAL, INTERNAL_MESSAGE)
        self._on_failure(method, error.reason)
        return to_status(error)


async def _abort(context: ServicerContext, status: Any) -> None:
    """End a call with a status."""
    try:
        await context.abort_with_status(status)
    except grpc.aio.AbortError as error:
        _forget(error)


def _forget(error: BaseException) -> None:
    """Drop what an `AbortError` keeps alive.

    gRPC keeps the error with the call, and raises it again when the handler has returned. With the
    frames of its traceback, the call and its request would stay in memory, megabytes for each.
    """
    error.__traceback__ = error.__context__ = None


def _log_reset(method: str) -> None:
    """Log that gRPC could not send to a client; it cancels the task a moment later."""
    _log.debug("the client ended the call amid a write", extra=fields(method=method))


async def _write_all(responses: Any, context: ServicerContext) -> None:
    """Write what a handler yields, or let it write by itself."""
    if inspect.isawaitable(responses):
        await responses
        return
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


def _is_real_cancellation(error: BaseException) -> bool:
    """Return whether gRPC cancels this task, and not the handler a future of its own."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
