"""Unfinished messages of clients: how many at once, and for how long.

gRPC keeps the received part of a message, up to `max_receive_bytes` for each call whose handler
waits for one. So the number of calls that wait is bounded; a call with a single message waits for a
short time, and the call that has waited longest without a live request is evicted for others. A
call that is not read yet holds no more than one small window (`config.grpc_options`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from chairlift.api.errors import Reason, RequestError
from chairlift.server.limits.shares import Holder, Share, Shares

MESSAGE_S: Final = 10.0
"""Time for the message of a call with a single one; a stream may be silent for any time."""

_RELIEF_S: Final = 0.1
"""Calls that have waited for less are not evicted when memory runs short."""
_MIN: Final = 16
"""Calls of each kind that may always wait for a message."""

_QUIET_S: Final = 0.05
"""A client that has sent nothing for this long is not writing."""
_DRAIN_S: Final = 0.5
"""Bound on draining: a client that never stops writing gets its status, or INTERNAL."""

SHORT_BYTES: Final = 32 * 2**10
"""A message up to this length is decoded at once, in less than a millisecond."""

PAUSE: Final = 3.0
"""Times the duration of a decoding that passes before the next: decodings get a quarter of the time
of the event loop. A message of few long fields takes a millisecond and delays others by three."""


class MessageTimeoutError(RequestError):
    """The client has not sent its message in time."""


def _is_unnamed(holder: Holder) -> bool:
    return holder[0] == "connection"


def _never() -> bool:
    return False


class DecodingQueue:
    """Decodes long messages one at a time, with pauses in which tokens are computed and delivered.

    A decoding includes the conversion of what was decoded, in Python, which may take longer; it
    runs on a thread, so that the event loop has its turns meanwhile. Protobuf decodes a message of
    1 MiB in up to 25 ms, with the interpreter's lock held. The engine thread takes that lock
    several times in a step, so decodings without pauses would delay the tokens of all streams by
    the time of several of them. Each holder has one message in the queue, so that a holder with
    many delays the message of another by one of them.
    """

    def __init__(self) -> None:
        # One thread: a decoding whose caller has gone goes on, and the next one waits for it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chairlift-decode")
        self._lock = asyncio.Lock()
        self._resume_at = 0.0
        self._holders: WeakValueDictionary[Holder, asyncio.Lock] = WeakValueDictionary()
        """Locks of the holders whose messages wait."""

    async def decode(self, decode: Callable[[bytes], Any], data: bytes, holder: Holder) -> Any:
        """Decode a message in its turn; raise what `decode` raises."""
        if len(data) <= SHORT_BYTES:
            return decode(data)
        async with self._holders.setdefault(holder, asyncio.Lock()), self._lock:
            await asyncio.sleep(self._resume_at - time.monotonic())
            began = time.monotonic()
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(self._thread, decode, data)
            finally:
                now = time.monotonic()
                self._resume_at = now + PAUSE * (now - began)


class Receiving:
    """The calls that wait for a message, of all connections; for one event loop.

    Attributes:
        ended_bytes: Bound on the bytes of ended and abandoned messages since the start.
        decoding: Queue of long messages.
    """

    def __init__(
        self,
        max_message_bytes: int = 2**20,
        memory_bytes: int = 256 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without calls.

        Args:
            max_message_bytes: gRPC refuses a longer message.
            memory_bytes: Bound on the bytes of unfinished messages.
            clock: Returns seconds.
        """
        num = memory_bytes // max_message_bytes
        num_unary = max(_MIN, num // 4)
        num_streams = max(_MIN, num - num_unary)
        self.ended_bytes = 0
        self.decoding = DecodingQueue()
        self._max_message_bytes = max_message_bytes
        self._clock = clock
        # Streams wait for a long time, single messages do not: each kind has its own bound.
        self._unary = Shares("calls that send their message", num_unary)
        self._streams = Shares("streams that may send messages", num_streams)
        self._waiting: dict[Messages, float] = {}
        """Time since when each waits; the one that has waited longest comes first."""

    def enter(self, holder: Holder, *, is_stream: bool) -> Share:
        """Let a call wait for messages.

        Raises:
            RequestError: Too many calls wait, and none that gives way to this one can be evicted.
        """
        shares = self._streams if is_stream else self._unary
        while True:
            try:
                return shares.take((holder,))
            except RequestError:
                # The call that has waited longest comes first: an honest client's wait is short.
                others = [
                    messages
                    for messages in self._evictable(0)
                    if messages.is_stream == is_stream
                    and (
                        shares.held(messages.holder) > shares.held(holder)
                        or _is_unnamed(messages.holder) > _is_unnamed(holder)
                    )
                ]
                if not others:
                    raise
                # A caller without a tenant has as many connections as it likes, of one call each.
                ranks = {m: (_is_unnamed(m.holder), shares.held(m.holder)) for m in others}
                max(others, key=ranks.__getitem__).evict()

    def evict(self) -> int:
        """End calls that may hold unfinished messages, of the holder with the most of them.

        Returns:
            The number of calls.
        """
        num: dict[Holder, int] = {}
        for messages in self._evictable(_RELIEF_S):
            num[messages.holder] = num.get(messages.holder, 0) + 1
        if not num:
            return 0
        largest = max(num, key=num.__getitem__)
        ended = [m for m in self._evictable(_RELIEF_S) if m.holder == largest]
        for messages in ended:
            messages.evict()
        return len(ended)

    def _evictable(self, after_s: float) -> "list[Messages]":
        until = self._clock() - after_s
        waiting = self._waiting.items()
        return [m for m, since in waiting if since <= until and not m.is_evicted and not m.in_use()]

    def begin(self, messages: "Messages") -> None:
        """Note that a call waits for its next message."""
        self._waiting[messages] = self._clock()

    def end(self, messages: "Messages", num_bytes: int | None) -> None:
        """Note that the message has come, or, without a number of bytes, never will."""
        del self._waiting[messages]
        self.ended_bytes += self._max_message_bytes if num_bytes is None else num_bytes


class Messages:
    """The messages of one call, each decoded when it is taken.

    Attributes:
        holder: The tenant, or the connection of a caller without one.
        is_stream: Whether more than one message may come.
        in_use: Returns whether the call has live requests, so that it is not evicted.
        is_evicted: Whether it was evicted.
    """

    def __init__(
        self,
        receiving: Receiving,
        messages: AsyncIterator[bytes],
        decode: Callable[[bytes], Any] | None,
        holder: Holder,
        *,
        is_stream: bool,
    ) -> None:
        self.holder = holder
        self.is_stream = is_stream
        self.in_use: Callable[[], bool] = _never
        self._receiving = receiving
        self._messages = messages
        self._decode = decode
        self._share: Share | None = None
        self._wait = asyncio.timeout(None)
        self._is_reading = self.is_evicted = self._is_closed = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        data = await self._next(None if self.is_stream else MESSAGE_S)
        if self._decode is None:
            return data
        try:
            return await self._receiving.decoding.decode(self._decode, data, self.holder)
        except (DecodeError, UnicodeDecodeError):
            text = "the message is not valid protobuf of this type, or holds text that is not UTF-8"
            raise RequestError(Reason.BAD_PARAMETER, text) from None

    async def only(self) -> Any:
        """Return the message of a call that has one.

        Raises:
            RequestError: It does not come in time, or is malformed.
        """
        try:
            return await anext(self)
        except StopAsyncIteration:
            text = "the call ended before its message: expected one message, got none"
            raise RequestError(Reason.BAD_PARAMETER, text) from None
        finally:
            self.close()

    async def _next(self, within_s: float | None) -> bytes:
        # Stays set after the end of the messages, or if the reader was cancelled during a read.
        self._is_reading = True
        if self._share is None:
            self._share = self._receiving.enter(self.holder, is_stream=self.is_stream)
        num_bytes = None
        self._receiving.begin(self)
        try:
            async with asyncio.timeout(within_s) as self._wait:
                data = await anext(self._messages)
            num_bytes = len(data)
        except StopAsyncIteration:
            num_bytes = 0
            self.close()
            raise
        except TimeoutError:
            raise self._refusal(within_s) from None
        finally:
            self._receiving.end(self, num_bytes)
        self._is_reading = False
        return data

    def _refusal(self, within_s: float | None) -> RequestError:
        if self.is_evicted:
            message = "this call waited longest for a message and was evicted for others"
        else:
            message = f"the call's message was not complete within {within_s:g} s"
            return MessageTimeoutError(Reason.QUOTA_EXCEEDED, message, retry_after_s=1.0)
        return RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=1.0)

    def evict(self) -> None:
        """End the wait for a message, and with it the call."""
        self.is_evicted = True
        self.close()
        # The timeout may have expired at this very moment.
        with suppress(RuntimeError):
            self._wait.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Read no further message; may be called again."""
        self._is_closed = True
        if self._share is not None:
            self._share.release()

    async def drain(self) -> None:
        """Drop what the client still sends, for a bounded time, unless a reader takes it."""
        with suppress(TimeoutError, StopAsyncIteration, RequestError):
            async with asyncio.timeout(_DRAIN_S):
                while not self._is_reading and not self._is_closed:
                    await self._next(_QUIET_S)
