"""The request by which a prefill call computes its prompt: one of the caller's, as all requests.

It passes through gate, quotas, deadline, registry, metrics and log; its one token is not looked at.
"""

import time
from collections.abc import Callable

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.engine.prepare.block_export import BlockExport
from chairlift.server.calls.registry import LiveRequest, Stage
from chairlift.server.calls.request_log import log_end
from chairlift.server.calls.requests import Requests
from chairlift.server.convert.messages import DeliveryOptions

_NO_OUTPUT = DeliveryOptions(
    text=False, token_ids=False, logprobs=False, timeline=False, interval=0
)


class PrefillRequests(Requests):
    """The request of one call.

    Attributes:
        finished: Its end; None before.
        on_change: Called when it has ended, well or not.
    """

    finished: types.Finished | None = None
    on_change: Callable[[], None]

    async def begin(self, request: types.Request, export: BlockExport) -> None:
        """Submit the request, whose blocks go to an export.

        Raises:
            RequestError: It is wrong, or the server takes no request now.
        """
        try:
            await self.submit(request, _NO_OUTPUT, arrived_at=time.monotonic(), export=export)
        except RequestError as error:
            self._server.metrics.refused(self._tenant, error.reason)
            raise

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
                self._finish(event)
            case types.Failed():
                self._fail(live, event)

    def _finish(self, event: types.Finished) -> None:
        if event.reason is types.FinishReason.CANCELLED:
            self.error = refusal(Reason.ABORTED)
        self.finished = event
        self.on_change()

    def _fail(self, live: LiveRequest, event: types.Failed) -> None:
        if event.reason is Reason.ENGINE_DOWN:
            self._server.gate.close()
        self.error = RequestError(
            event.reason, event.message, field=event.field, retry_after_s=event.retry_after_s
        )
        was_accepted = live.stage is not Stage.SUBMITTED
        self._server.live.ended(live, event.reason)
        if was_accepted:
            log_end(self._server, live, event.reason, event.reason.code, event)
        else:
            self._server.metrics.refused(self._tenant, event.reason)
        self.on_change()
