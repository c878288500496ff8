"""Requests whose results do not go through an outbox: one end each, a value or an error.

They pass through the same stages as all requests: gate, quotas, deadline, registry, metrics, log.
"""

import time
from abc import abstractmethod
from typing import Final

from chairlift.api import types
from chairlift.api.errors import RequestError
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.server.calls.registry import LiveRequest, Stage
from chairlift.server.calls.request_log import log_end
from chairlift.server.calls.requests import Requests
from chairlift.server.convert.messages import DeliveryOptions

_NO_OUTPUT: Final = DeliveryOptions(
    text=False, token_ids=False, logprobs=False, timeline=False, interval=0
)


class ResultRequests(Requests):
    """The live requests of one call; the tokens that the scheduler draws are not looked at."""

    async def submit_counted(
        self, request: types.Request, label: str = "", *, export: BlockExport | None = None
    ) -> None:
        """Submit a request, and count it if it is refused; its end comes by `on_end`.

        Args:
            request: A request of the tenant of this call.
            label: The client's, which no live request of this call has; empty is the handle.
            export: Takes the KV blocks of its prompt.

        Raises:
            RequestError: The same as of `submit`.
        """
        try:
            await self.submit(
                request, _NO_OUTPUT, label, arrived_at=time.monotonic(), export=export
            )
        except RequestError as error:
            self._server.metrics.refused(self._tenant, error.reason)
            raise

    @abstractmethod
    def on_end(self, live: LiveRequest, end: types.Finished | RequestError) -> None:
        """Handle the end of a request."""

    def on_event(self, live: LiveRequest, event: types.Event) -> None:
        """Handle an event."""
        match event:
            case types.Tokens():
                if live.stage is Stage.QUEUED:
                    self.on_first_token(live)
            case types.Accepted():
                self._server.live.queued(live, event.request_id)
                self._server.metrics.accepted(self._tenant, event.num_prompt_tokens)
            case types.Finished():
                live.use(event.usage)
                log_end(self._server, live, event.reason, "OK", event)
                self._server.live.ended(live, event.reason)
                self.on_end(live, event)
            case types.Failed():
                error, was_accepted = self.end_failed(live, event)
                if not was_accepted:
                    self._server.metrics.refused(self._tenant, error.reason)
                self.on_end(live, error)
