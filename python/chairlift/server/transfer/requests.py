"""The request by which a prefill call computes its prompt: one of the caller's, as all requests."""

import asyncio

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.server.calls.registry import LiveRequest
from chairlift.server.calls.result_requests import ResultRequests


class PrefillRequests(ResultRequests):
    """The request of one call.

    Attributes:
        arrived: Set when it has ended, well or not; its call waits for blocks by the same.
        end: How it has ended; None before.
    """

    arrived: asyncio.Event
    end: types.Finished | RequestError | None = None

    def on_end(self, live: LiveRequest, end: types.Finished | RequestError) -> None:
        """Note the end."""
        del live
        is_cancelled = (
            isinstance(end, types.Finished) and end.reason is types.FinishReason.CANCELLED
        )
        self.end = refusal(Reason.ABORTED) if is_cancelled else end
        self.arrived.set()
