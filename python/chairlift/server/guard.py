"""The interceptor around every method: no call ends as UNKNOWN, hangs or tells a traceback.

Three habits of grpc.aio make it necessary. A message that cannot be decoded and an exception of a
handler both become UNKNOWN, the latter with its text. A handler that raises `CancelledError` by
itself, or anything that is no `Exception` (a Rust panic, say), sends no status at all, and its
client waits for ever.

A fourth is the client's: if it writes while the status of its call arrives, it makes INTERNAL of
the status (grpc/grpc#36066). So a call that ends with an error first reads what is under way.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from chairlift.errors import Reason, RequestError
from chairlift.logs import fields
from chairlift.server.status import INTERNAL_MESSAGE, to_status

_log = logging.getLogger(__name__)

Context = Any
"""A `grpc.aio.ServicerContext`; grpcio ships no types."""

Handler = Any
"""A `grpc.RpcMethodHandler`."""

End = Callable[[Context, BaseException, Any], Awaitable[None]]
"""Ends a call whose behaviour raised; told what the client sends, where it may still send."""


class _Undecodable:
    """Stands for a message that could not be decoded."""


_UNDECODABLE: Final = _Undecodable()

_QUIET_S: Final = 0.05
"""A client that has sent nothing for so long is not writing."""
_HEAR_OUT_S: Final = 0.5
"""A client that never stops writing learns its status nevertheless, or INTERNAL."""


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps the deserialiser and the behaviour of every handler."""

    def __init__(
        self, on_failure: Callable[[str, Reason], None] = lambda _method, _reason: None
    ) -> None:
        """Takes who wants to know.

        Args:
            on_failure: Told the method and the reason of each call that ends with an error.
        """
        self._on_failure = on_failure

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Handler | None]],
        handler_call_details: Any,
    ) -> Handler | None:
        """Gives the guarded handler; None (an unknown method) stays UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        end = functools.partial(self._end, handler_call_details.method)
        decode = _tolerant(handler.request_deserializer)
        encode = handler.response_serializer
        if handler.request_streaming and handler.response_streaming:
            behavior = _guarded_stream(handler.stream_stream, end)
            return grpc.stream_stream_rpc_method_handler(behavior, decode, encode)
        if handler.request_streaming:
            unary = _guarded_unary(handler.stream_unary, end)
            return grpc.stream_unary_rpc_method_handler(unary, decode, encode)
        if handler.response_streaming:
            behavior = _guarded_stream(handler.unary_stream, end)
            return grpc.unary_stream_rpc_method_handler(behavior, decode, encode)
        unary = _guarded_unary(handler.unary_unary, end)
        return grpc.unary_unary_rpc_method_handler(unary, decode, encode)

    async def _end(
        self, method: str, context: Context, error: BaseException, received: Any
    ) -> None:
        """Ends the call with a status, unless it has one already or its client is gone."""
        if isinstance(error, grpc.aio.AbortError) or _is_real_cancellation(error):
            raise error
        if not isinstance(error, RequestError):
            _log.error("a handler failed", exc_info=error, extra=fields(method=method))
            error = RequestError(Reason.INTERNAL, INTERNAL_MESSAGE)
        self._on_failure(method, error.reason)
        if isinstance(received, _Messages):
            await received.hear_out()
        await context.abort_with_status(to_status(error))


def _tolerant(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if decode is None:
        return None

    def decode_or_mark(data: bytes) -> Any:
        try:
            return decode(data)
        except (DecodeError, UnicodeDecodeError):
            return _UNDECODABLE

    return decode_or_mark


def _checked(message: Any) -> Any:
    if message is _UNDECODABLE:
        text = "the message is not valid protobuf of this type, or holds text that is not UTF-8"
        raise RequestError(Reason.BAD_PARAMETER, text)
    return message


class _Messages:
    """What a client sends, each message checked when it is taken."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._is_reading = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        # Stays set after the end of the messages, or where the reader was cancelled amid a read.
        self._is_reading = True
        message = await anext(self._messages)
        self._is_reading = False
        return _checked(message)

    async def hear_out(self) -> None:
        """Takes what the client still sends and drops it, for a moment and unless it is read."""
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_HEAR_OUT_S):
                while not self._is_reading:
                    async with asyncio.timeout(_QUIET_S):
                        await anext(self._messages)


def _received(request: Any) -> Any:
    """What a behaviour is given: one message, or many."""
    return _Messages(request) if isinstance(request, AsyncIterator) else _checked(request)


def _guarded_unary(
    behavior: Callable[[Any, Context], Awaitable[Any]], end: End
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def run(request: Any, context: Context) -> Any:
        try:
            return await behavior(_received(request), context)
        except BaseException as error:
            await end(context, error, None)

    return run


def _guarded_stream(
    behavior: Callable[[Any, Context], Any], end: End
) -> Callable[[Any, Context], Awaitable[None]]:
    async def run(request: Any, context: Context) -> None:
        received = None
        try:
            received = _received(request)
            responses = behavior(received, context)
            if inspect.isawaitable(responses):
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response)
        except BaseException as error:
            await end(context, error, received)

    return run


def _is_real_cancellation(error: BaseException) -> bool:
    """Whether gRPC cancels this task, as opposed to a cancelled future that the handler awaited."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
