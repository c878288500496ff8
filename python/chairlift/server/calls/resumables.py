"""Requests with a `resume_window`: they outlive their stream, and their events can be sent again.

      call ends             Resume                      last event           window over
    ATTACHED ──▶ DETACHED ────────▶ ATTACHED (elsewhere) ────────▶ ENDED ─────────▶ forgotten
                    └── window over: the request is cancelled

Each has a log of the events that were sent (`rust/chairlift-delivery`). Its memory is reserved when
the request starts, from a bound that all tenants share, and shrinks to what is used at its end:
its log, and what its protocol keeps of its body.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from chairlift import _core
from chairlift.api.errors import Reason, RequestError
from chairlift.server.calls.outbox import MAX_TOKEN_BYTES
from chairlift.server.config import ServerConfig
from chairlift.server.convert.fields import bad
from chairlift.server.convert.messages import seconds
from chairlift.server.limits.shares import Share, Shares, holders_of
from chairlift.v1 import generation_pb2 as pb

_FIXED_BYTES: Final = 8192
"""What a request takes here besides its log and what its protocol keeps."""


class Resumable:
    """The log of one request and its window.

    Attributes:
        handle: Set when the request is submitted.
        tenant: Owner of the request.
        log: Number of the log, in the core, of the events that were sent.
        has_ended: Whether the log has the last event.
        context: What a protocol needs to write the events again in its own form.
    """

    def __init__(
        self,
        owner: "Resumables",
        tenant: str,
        window_s: float,
        share: Share,
        num_kept_bytes: int,
    ) -> None:
        self.handle = ""
        self.tenant = tenant
        self.has_ended = False
        self.context: object = None
        self._owner = owner
        self._window_s = window_s
        self._share = share
        self._num_kept_bytes = num_kept_bytes
        self._window: asyncio.TimerHandle | None = None
        self._final_credit: asyncio.TimerHandle | None = None
        self._detached = ExitStack()
        self._on_window_over: Callable[[], None] = self.forget
        self.log = owner.core.open_log(owner.request_bytes)

    def begin(self, handle: str) -> None:
        """Let the request be found by its handle."""
        self.handle = handle
        self._owner.by_handle[handle] = self

    def detach(self, resources: ExitStack, on_window_over: Callable[[], None]) -> None:
        """Start the window, because the stream is lost.

        Args:
            resources: Closed when the request is attached again, or is over.
            on_window_over: Called if it is not resumed within the window.
        """
        self._detached = resources
        self._on_window_over = on_window_over
        self._start_window()

    @property
    def is_detached(self) -> bool:
        """Return whether a live request has no stream."""
        return self._window is not None and not self.has_ended

    def attach(self) -> None:
        """End the window: another stream has the request."""
        self._stop_timers()
        self._on_window_over = self.forget
        self._detached.close()

    def end(self) -> None:
        """Note that the log has the last event; it is kept for the rest of the window."""
        self.has_ended = True
        if self._final_credit is not None:
            self._final_credit.cancel()
        self._on_window_over = self.forget
        self._detached.close()
        self._share.shrink(self._owner.core.shrink_log(self.log) + self._num_kept_bytes)
        if self._window is None:
            self._start_window()

    def forget(self) -> None:
        """Release everything; may be called again."""
        self._stop_timers()
        self._detached.close()
        self._owner.core.close_log(self.log)
        self._owner.by_handle.pop(self.handle, None)
        self._share.release()

    def after_window(self, callback: Callable[[], None]) -> None:
        """Call back after the window, unless the request moves or ends."""
        loop = asyncio.get_running_loop()
        self._final_credit = loop.call_later(self._window_s, callback)

    def expire(self) -> None:
        """End the window now."""
        self._on_window_over()

    def _start_window(self) -> None:
        loop = asyncio.get_running_loop()
        self._window = loop.call_later(self._window_s, self.expire)

    def _stop_timers(self) -> None:
        for timer in (self._window, self._final_credit):
            if timer is not None:
                timer.cancel()
        self._window = self._final_credit = None


class Resumables:
    """All requests of the server that can be resumed; for one event loop."""

    def __init__(self, core: _core.Outboxes, config: ServerConfig) -> None:
        """Start without requests.

        Args:
            core: Has the logs.
            config: Bounds of window and memory.
        """
        self.core: Final = core
        self.request_bytes: Final = config.resume_request_bytes
        self.by_handle: dict[str, Resumable] = {}
        self.detach: Callable[[Any], object]
        """Takes a `LiveRequest` from a call that is over; set when the server is built."""
        self._max_window_s = config.max_resume_window_s
        self._shares = Shares("bytes for resuming", config.resume_memory_bytes)

    def __len__(self) -> int:
        return len(self.by_handle)

    def window_s(self, start: pb.Start) -> float | None:
        """Return the window that a request asks for; None without one.

        Raises:
            RequestError: It is no positive time, or too long.
        """
        if not start.HasField("resume_window"):
            return None
        return self.checked_window_s(seconds(start.resume_window, "resume_window"))

    def checked_window_s(self, window_s: float, field: str = "resume_window") -> float:
        """Return a window that this server grants.

        Raises:
            RequestError: It is too long.
        """
        if window_s > self._max_window_s:
            message = f"expected at most {self._max_window_s:g} s (--max-resume-window)"
            raise bad(field, f"{message}, got {window_s:g} s")
        return window_s

    def reserve(
        self, tenant: str, connection: str, window_s: float, num_context_bytes: int = 0
    ) -> Resumable:
        """Reserve the memory of a request; the caller must `begin` or `forget` what it gets.

        The tenant's logs of ended requests give way to it, the oldest first.

        Args:
            tenant: Owner of the request.
            connection: The connection of its call.
            window_s: How long it outlives its call.
            num_context_bytes: Size of the `context` that it gets.

        Raises:
            RequestError: QUOTA_EXCEEDED: the tenant has its share already.
        """
        holders = holders_of(connection, tenant)
        num_kept_bytes = num_context_bytes + _FIXED_BYTES
        num_bytes = self.request_bytes + MAX_TOKEN_BYTES + num_kept_bytes
        ended = iter([r for r in self.by_handle.values() if r.has_ended and r.tenant == tenant])
        while True:
            try:
                share = self._shares.take(holders, num_bytes)
            except RequestError as error:
                oldest = next(ended, None)
                if oldest is None:
                    message = f"resume_window: {error.message}"
                    raise RequestError(
                        error.reason, message, field="resume_window", retry_after_s=1.0
                    ) from None
                oldest.forget()
            else:
                return Resumable(self, tenant, window_s, share, num_kept_bytes)

    def find(self, tenant: str, handle: str, after_number: int) -> Resumable:
        """Return what a command resumes.

        Raises:
            RequestError: The tenant has none by this handle, or its events after that number are
                not all there.
        """
        found = self.by_handle.get(handle)
        if found is None or found.tenant != tenant:
            # The same for a handle of another tenant, one that is over and one that never was.
            message = "handle: no request of this tenant can be resumed by it"
            raise RequestError(Reason.UNKNOWN_REQUEST, message, field="handle")
        dropped, last = self.core.log_range(found.log)
        if after_number > last:
            message = f"expected at most {last}, the last that was sent, got {after_number}"
            raise bad("after_number", message)
        if after_number < dropped:
            message = f"after_number: events up to {dropped} are no longer kept, got {after_number}"
            raise RequestError(Reason.EVENTS_DROPPED, message, field="after_number")
        return found

    def close(self) -> None:
        """End what no stream has: the server drains, and takes no new stream."""
        for resumable in list(self.by_handle.values()):
            if resumable.is_detached or resumable.has_ended:
                resumable.expire()
