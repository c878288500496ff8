"""The interceptor around every method: no call ends as UNKNOWN, hangs or tells a traceback.

Three habits of grpc.aio make it necessary. A message that cannot be decoded and an exception of a
handler both become UNKNOWN, the latter with its text. A handler that raises `CancelledError` by
itself, or anything that is no `Exception` (a Rust panic, say), sends no status at all, and its
client waits for ever.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
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

End = Callable[[Context, BaseException], Awaitable[None]]
"""Ends a call whose behaviour raised."""


class _Undecodable:
    """Stands for a message that could not be decoded."""


_UNDECODABLE: Final = _Undecodable()


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
            behavior = _guarded_stream(handler.stream_stream, _checked_all, end)
            return grpc.stream_stream_rpc_method_handler(behavior, decode, encode)
        if handler.request_streaming:
            unary = _guarded_unary(handler.stream_unary, _checked_all, end)
            return grpc.stream_unary_rpc_method_handler(unary, decode, encode)
        if handler.response_streaming:
            behavior = _guarded_stream(handler.unary_stream, _checked, end)
            return grpc.unary_stream_rpc_method_handler(behavior, decode, encode)
        unary = _guarded_unary(handler.unary_unary, _checked, end)
        return grpc.unary_unary_rpc_method_handler(unary, decode, encode)

    async def _end(self, method: str, context: Context, error: BaseException) -> None:
        """Ends the call with a status, unless it has one already or its client is gone."""
        if isinstance(error, grpc.aio.AbortError) or _is_real_cancellation(error):
            raise error
        if not isinstance(error, RequestError):
            _log.error("a handler failed", exc_info=error, extra=fields(method=method))
            error = RequestError(Reason.INTERNAL, INTERNAL_MESSAGE)
        self._on_failure(method, error.reason)
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


async def _checked_all(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _checked(message)


def _guarded_unary(
    behavior: Callable[[Any, Context], Awaitable[Any]], check: Callable[[Any], Any], end: End
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def run(request: Any, context: Context) -> Any:
        try:
            return await behavior(check(request), context)
        except BaseException as error:
            await end(context, error)

    return run


def _guarded_stream(
    behavior: Callable[[Any, Context], Any], check: Callable[[Any], Any], end: End
) -> Callable[[Any, Context], Awaitable[None]]:
    async def run(request: Any, context: Context) -> None:
        try:
            responses = behavior(check(request), context)
            if inspect.isawaitable(responses):
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response)
        except BaseException as error:
            await end(context, error)

    return run


def _is_real_cancellation(error: BaseException) -> bool:
    """Whether gRPC cancels this task, as opposed to a cancelled future that the handler awaited."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
