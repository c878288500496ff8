"""The requests that have not ended, to which their events are delivered."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from chairlift import _core
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Accepted, Event
from chairlift.core.events import CoreEvent, failed, refused, to_event
from chairlift.engine.step import StepOutput
from chairlift.engine.submitted_request import SubmittedRequest, is_last

logger = logging.getLogger(__name__)


class Router(Protocol):
    """Delivers tokens without an object for each."""

    def post(self, output: StepOutput) -> _core.Posted:
        """Deliver a step's tokens and return the rest; called on the event loop."""


class OpenRequests:
    """The requests that have not ended; each ends once, whatever the engine does.

    A request is submitted until the engine has answered, then live until its end.
    """

    def __init__(self, abort: Callable[[SubmittedRequest], None]) -> None:
        """Start without requests.

        Args:
            abort: Called for each request whose owner raised on an event.
        """
        self.router: Router | None = None
        """Delivers a part of each step's events; requests receive the rest."""
        self._abort = abort
        self._submitted: set[SubmittedRequest] = set()
        self._live: dict[int, SubmittedRequest] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    def __len__(self) -> int:
        return len(self._submitted) + len(self._live)

    def all(self) -> list[SubmittedRequest]:
        """Return all requests that have not ended."""
        return [*self._submitted, *self._live.values()]

    def add(self, request: SubmittedRequest) -> None:
        """Enter a request that is submitted."""
        self._submitted.add(request)
        self._all_ended.clear()

    async def wait_until_ended(self) -> None:
        """Wait until there is no request."""
        await self._all_ended.wait()

    def receive(
        self,
        answers: Iterable[tuple[SubmittedRequest, Accepted | RequestError]],
        output: StepOutput,
    ) -> None:
        """Deliver the engine's answers to submitted requests, and the events of a step."""
        for request, answer in answers:
            self._take_answer(request, answer)
        # After the answers: a router knows a request from its `Accepted` on.
        for core_event in self._routed(output):
            live = self._live.get(core_event.request_id)
            if live is None:
                # `stop` did not wait for a thread that was stuck in a step, which has now ended.
                continue
            event = to_event(core_event, live.prepared.output, output.sampled)
            if is_last(event):
                live.ended = True
                del self._live[core_event.request_id]
            self._deliver(live, event)
        self._note_ends()

    def fail(self, requests: Iterable[SubmittedRequest], reason: Reason) -> None:
        """End requests whatever the engine does with them."""
        for request in requests:
            if request.ended:
                continue
            request.ended = True
            self._submitted.discard(request)
            if request.engine_id is not None:
                self._live.pop(request.engine_id, None)
            self._deliver(request, failed(request.engine_id, reason))
        self._note_ends()

    def _routed(self, output: StepOutput) -> Iterable[CoreEvent]:
        """Pass a step to the router, if there is one, and return the events that it leaves."""
        if self.router is None:
            return output.events
        posted = self.router.post(output)
        for engine_id in posted.started:
            self._live[engine_id].on_first_token()
        return posted.rest

    def _take_answer(self, request: SubmittedRequest, answer: Accepted | RequestError) -> None:
        if request.ended:
            return
        self._submitted.discard(request)
        if isinstance(answer, RequestError):
            request.ended = True
            self._deliver(request, refused(answer))
        else:
            self._live[answer.request_id] = request
            self._deliver(request, answer)

    def _deliver(self, request: SubmittedRequest, event: Event) -> None:
        try:
            request.deliver(event)
        except Exception:
            logger.exception("the owner of a request failed; the request is aborted")
            self._abort(request)

    def _note_ends(self) -> None:
        if not len(self):
            self._all_ended.set()
