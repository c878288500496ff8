"""When a request whose stream was lost is resumed, and until when that is tried again."""

import time
from collections.abc import Callable
from typing import Final

from chairlift.api.errors import ChairliftError, Reason, RequestError, ServerError
from chairlift.v1 import generation_pb2 as pb

FIRST_DELAY_S: Final = 0.05
MAX_DELAY_S: Final = 2.0
"""Between two attempts; each takes twice as long as the one before."""

ABORT_S: Final = 1.0
"""Time for the server to take the end of requests that would outlive their client."""


class Recovery:
    """The state of one request with a window.

    Attributes:
        handle: By which it is resumed; empty until the request is accepted.
        after_number: Number of the last event that came.
    """

    def __init__(
        self, window_s: float, handle: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with a stream.

        Args:
            window_s: How long attempts are made after a loss, in seconds; 0 makes none.
            handle: If it is known already.
            clock: Returns seconds.
        """
        self.handle = handle
        self.after_number = 0
        self._window_s = window_s
        self._clock = clock
        self._lost_at: float | None = None
        self._delay_s = FIRST_DELAY_S

    @property
    def may_outlive(self) -> bool:
        """Return whether the request would go on without this client."""
        return self._window_s > 0 and bool(self.handle)

    def note(self, event: pb.Event) -> None:
        """Note an event of the request: the stream is there."""
        if event.HasField("accepted"):
            self.handle = event.accepted.handle
        self.after_number = max(self.after_number, event.number)
        self._lost_at = None
        self._delay_s = FIRST_DELAY_S

    def delay_s(self, error: ChairliftError | None) -> float | None:
        """Return the seconds to wait before the next attempt; None if none is made.

        Args:
            error: Why the stream ended; None without an error.
        """
        now = self._clock()
        self._lost_at = now if self._lost_at is None else self._lost_at
        left_s = self._lost_at + self._window_s - now
        if not (self.may_outlive and _is_lost(error)) or left_s <= 0:
            return None
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, MAX_DELAY_S)
        return min(delay_s, left_s)

    def command(self, request_id: str) -> pb.GenerateRequest:
        """Return the command that resumes the request."""
        resume = pb.Resume(
            handle=self.handle, after_number=self.after_number, request_id=request_id
        )
        return pb.GenerateRequest(resume=resume)


def _is_lost(error: ChairliftError | None) -> bool:
    """Return whether another stream may have what this one has not."""
    if isinstance(error, RequestError):
        return error.reason is Reason.SLOW_READER or error.retry_after_s is not None
    return error is None or isinstance(error, ServerError)
