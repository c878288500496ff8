"""The engine behind an asyncio event loop: submit, abort, and events that arrive at their requests.

One thread runs the engine (`loop.py`); everything here runs on the event loop. A step's events
reach the event loop in one call, and become Python objects only there.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, Unpack

from chairlift import _core
from chairlift.api.config import EngineSettings, engine_config
from chairlift.api.errors import EngineDownError, EngineState, Reason, refusal
from chairlift.api.types import Change, Event, Request, Waiting
from chairlift.core.tenant_view import TenantView
from chairlift.engine.adapter_changes import AdapterChanges
from chairlift.engine.deliveries import Deliveries
from chairlift.engine.engine import Engine
from chairlift.engine.leaks import has_leaked
from chairlift.engine.loading.load import load_model
from chairlift.engine.loading.loaded import OnProgress
from chairlift.engine.loop import EngineLoop, LoopProgress
from chairlift.engine.open_requests import OpenRequests
from chairlift.engine.prepare.prepared import Prepared, PreparedChange
from chairlift.engine.prepare.text_queue import TextQueue, caller, is_short, size_of
from chairlift.engine.submitted_request import Mailbox, SubmittedRequest

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
"""How long `stop` waits for the last events, and then for the thread."""

EXPLAIN_TIMEOUT_S = 5.0
"""How long `explain` waits for the engine thread, which answers between two steps."""

Answer = TypeVar("Answer")

_PAUSE = Change(paused=True)
_RESUME = Change(paused=False)


class AsyncEngine:
    """An engine for many concurrent callers on one event loop."""

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        on_progress: OnProgress | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        **settings: Unpack[EngineSettings],
    ) -> None:
        """Check the settings; `start` loads the model.

        Args:
            model: Its name, as `resolve_model` takes it.
            on_progress: Called with the bytes of weights that are read, on another thread.
            clock: Time in nanoseconds; tests bring their own.
            settings: Fields of `EngineConfig`.

        Raises:
            ConfigError: A setting is wrong.
        """
        self.config = engine_config(**settings)
        self.texts = TextQueue(self.config.queue_timeout_s)
        """Where long texts are tokenized."""
        self._new_engine = lambda: Engine(
            model, on_progress=on_progress, clock=clock, loader=load_model, **settings
        )
        self._state = EngineState.STARTING
        self.has_leaked = False
        """After `stop`: whether blocks or rows were still taken though all requests had ended."""
        self._engine: Engine | None = None
        self._thread: EngineLoop | None = None
        self._requests = OpenRequests(self.abort)
        self.adapters = AdapterChanges(lambda work: self._running().call(work))
        """Loads and unloads adapters while requests run."""
        self.deliveries = Deliveries(self._requests, self._die)
        """Watches steps, and routes their events."""

    @classmethod
    def of(cls, engine: Engine) -> "AsyncEngine":
        """Serve an engine that exists; it must have no work and no other user."""
        self = cls(**engine.config.model_dump())
        self._new_engine = lambda: engine
        return self

    @property
    def state(self) -> EngineState:
        """What happens to a request that is submitted now."""
        return self._state

    @property
    def engine(self) -> Engine:
        """The engine; other than `prepare` and constants, it belongs to its thread.

        Raises:
            RuntimeError: Before `start`.
        """
        if self._engine is None:
            raise _not_started()
        return self._engine

    @property
    def progress(self) -> LoopProgress:
        """Signs of life of the engine thread; RuntimeError before `start`."""
        return self._running().progress

    @property
    def num_waiting(self) -> int:
        """Requests without a row, those included that the thread has not seen yet."""
        return self._running().num_waiting

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last heartbeat of the engine's thread; for any thread."""
        return self._running().heartbeat_age_s

    async def start(self) -> None:
        """Load the model on a worker thread and start to serve.

        Raises:
            ModelError: The model cannot be loaded.
            ConfigError: A setting does not fit the model.
        """
        try:
            self._engine = await asyncio.to_thread(self._new_engine)
        except BaseException:
            self._state = EngineState.DEAD
            raise
        if self._state is not EngineState.STARTING:
            # `stop` came first.
            return
        self._start_thread(num_steps=0)

    async def restart(self) -> None:
        """Serve again after a fault: same weights, an idle scheduler, a new thread.

        No effect unless the engine is dead.

        Raises:
            EngineDownError: The old thread does not end.
        """
        thread = self._running()
        if self._state is not EngineState.DEAD:
            return
        if not await asyncio.to_thread(thread.join, JOIN_TIMEOUT_S):
            message = "the engine thread does not end"
            raise EngineDownError(message)
        await asyncio.to_thread(self.engine.restart)
        # `stop` may have come meanwhile.
        if self.state is EngineState.DEAD:
            self._start_thread(num_steps=thread.progress.num_steps)

    def _start_thread(self, *, num_steps: int) -> None:
        self._thread = EngineLoop(self.engine, self.deliveries.post, num_steps=num_steps)
        self.deliveries.begin(self._thread)
        self._thread.start()
        self._state = EngineState.SERVING

    async def stop(self, grace_s: float = 0) -> None:
        """Stop: waiting requests fail at once, running ones after a grace period.

        Every request has ended when this returns. A thread that is stuck in a step is left behind.

        Args:
            grace_s: How long running requests may go on.
        """
        thread = self._thread
        was_dead = self._state is EngineState.DEAD
        self._state = EngineState.DRAINING
        self.texts.close()
        if thread is None:
            return
        if not was_dead:
            thread.put(lambda engine: engine.abort_waiting(Reason.DRAINING))
            if grace_s > 0:
                await self._wait_for_all(grace_s)
            for request in self._requests.all():
                _abort(thread, request, Reason.DRAINING)
            await self._wait_for_all(JOIN_TIMEOUT_S)
        thread.stop()
        if not await asyncio.to_thread(thread.join, JOIN_TIMEOUT_S):
            logger.error("the engine thread does not end: a step takes too long")
        else:
            if not was_dead and not self._requests:
                self.has_leaked = has_leaked(self.engine)
            await asyncio.to_thread(self.engine.stepper.close_exchange)
        self._requests.fail(self._requests.all(), Reason.ENGINE_DOWN)

    def fail_all(self) -> None:
        """Fail every request with ENGINE_DOWN, whatever the thread does, and be dead."""
        thread = self._thread
        if thread is not None and self._state in (EngineState.SERVING, EngineState.DRAINING):
            thread.stop()
            self._die()

    async def prepare(self, request: Request, connection: str = "") -> Prepared:
        """Tokenize and validate a request; a long prompt does not hold up the event loop.

        Args:
            request: What the client wrote.
            connection: The client's: without tenants, connections take turns.

        Raises:
            RequestError: With the path of the first field that is wrong, or as `TextQueue.run`.
        """
        preparer = self.engine.preparer
        if is_short(request) and preparer.is_quick(request):
            return preparer.prepare(request)
        within_s = preparer.check(request).start_within_s
        # A conversation of more than `max_bytes` characters is refused: it is not walked further.
        size = size_of(request, 2 * preparer.text_limits.max_bytes)
        return await self.texts.run(
            lambda: preparer.prepare(request),
            tenant=caller(request.tenant, connection),
            size=size,
            within_s=within_s,
        )

    def submit(self, request: SubmittedRequest) -> None:
        """Hand a request to the engine.

        The first event that the request gets is `Accepted`, or `Failed` for a request that is
        refused; the last is `Finished` or `Failed`. None arrives before this returns.
        """
        self._requests.add(request)
        reason = self._refusal()
        if reason is None:
            self._running().put(request)
        else:
            asyncio.get_running_loop().call_soon(self._requests.fail, [request], reason)

    def abort(self, request: SubmittedRequest) -> None:
        """End a request in whatever state it is; no effect on one that has ended."""
        if not request.ended and not request.aborted and self._thread is not None:
            request.aborted = True
            _abort(self._thread, request, "cancelled")

    async def update(self, request: SubmittedRequest, change: Change, connection: str = "") -> None:
        """Change a request as `change` does; patterns do not hold up the event loop.

        Args:
            request: The request to change.
            change: What the client wrote.
            connection: The client's; see `prepare`.

        Raises:
            RequestError: See `change` and `TextQueue.run`; nothing has changed.
        """
        preparer, num_prompt_tokens = self.engine.preparer, len(request.prepared.prompt)
        size = preparer.patterns_size(change)
        if not size:
            self.change(request, change)
            return
        prepared = await self.texts.run(
            lambda: preparer.prepare_change(change, num_prompt_tokens),
            tenant=caller(request.prepared.tenant, connection),
            size=size,
        )
        self._change(request, prepared)

    def change(self, request: SubmittedRequest, change: Change) -> None:
        """Change a request from its next step on; no effect on one that has ended.

        Raises:
            RequestError: With the path of the first field that is wrong; nothing has changed.
        """
        num_prompt_tokens = len(request.prepared.prompt)
        self._change(request, self.engine.preparer.prepare_change(change, num_prompt_tokens))

    def _change(self, request: SubmittedRequest, prepared: PreparedChange) -> None:
        if not request.ended and not request.aborted and self._thread is not None:
            self._thread.put(
                lambda engine: (
                    request.engine_id is not None and engine.change(request.engine_id, prepared)
                )
            )

    def pause(self, request: SubmittedRequest) -> None:
        """Suspend a request after the current step; it keeps row and blocks while it can."""
        self.change(request, _PAUSE)

    def resume(self, request: SubmittedRequest) -> None:
        """Let a paused request go on."""
        self.change(request, _RESUME)

    async def explain(self, requests: Sequence[SubmittedRequest]) -> list[Waiting | None]:
        """Return why requests wait, one answer per request; None for one that has ended.

        Raises:
            RequestError: ENGINE_BUSY: the engine thread does not answer in time.
        """

        def explain(engine: Engine) -> list[Waiting | None]:
            ids = [request.engine_id for request in requests]
            return [None if number is None else engine.explain(number) for number in ids]

        return await self._ask(explain)

    async def view(self, tenant: str, max_listed: int) -> TenantView:
        """Return the queue and the KV cache as a tenant may see them.

        Args:
            tenant: Whose waiting requests are listed.
            max_listed: How many of them.

        Raises:
            RequestError: See `explain`.
        """
        return await self._ask(lambda engine: engine.view(tenant, max_listed))

    async def _ask(self, question: Callable[[Engine], Answer]) -> Answer:
        """Return what the engine answers between two steps."""
        answer = asyncio.wrap_future(self._running().call(question))
        try:
            return await asyncio.wait_for(answer, EXPLAIN_TIMEOUT_S)
        except TimeoutError:
            raise refusal(Reason.ENGINE_BUSY) from None

    def call(self, work: "Callable[[Engine], Answer]") -> "Future[Answer]":
        """Run a function on the engine's thread, between two steps; any thread may call this.

        The future does not end where the thread does.
        """
        return self._running().call(work)

    def flush(self) -> None:
        """Let the requests submitted so far run in a partial batch (static, dynamic)."""
        self._running().put(Engine.flush)

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        """Answer one request; closing the iterator aborts it.

        Raises:
            RequestError: The request is wrong. A request that is refused later yields `Failed`.
        """
        mailbox = Mailbox(await self.prepare(request))
        self.submit(mailbox)
        try:
            while not mailbox.is_read:
                for event in await mailbox.take():
                    yield event
        finally:
            self.abort(mailbox)

    def load(self) -> _core.Load:
        """Return a snapshot of queue, batch and KV cache; RuntimeError before `start`."""
        return self._running().load

    def _running(self) -> EngineLoop:
        if self._thread is None:
            raise _not_started()
        return self._thread

    def _refusal(self) -> Reason | None:
        """Return why a request cannot be submitted now."""
        if self._state is not EngineState.SERVING:
            return self._state.refusal
        # The scheduler checks its queue again, but only between two steps.
        is_full = self.num_waiting >= self.config.max_queued_requests
        return Reason.QUEUE_FULL if is_full else None

    def _die(self) -> None:
        self._state = EngineState.DEAD
        self._requests.fail(self._requests.all(), Reason.ENGINE_DOWN)

    async def _wait_for_all(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._requests.wait_until_ended(), timeout_s)


def _not_started() -> RuntimeError:
    return RuntimeError("the engine has not started: await start() first")


def _abort(thread: EngineLoop, request: SubmittedRequest, reason: str) -> None:
    def abort(engine: Engine) -> None:
        # Without an id the request was refused: commands run in the order they were posted.
        if request.engine_id is not None:
            engine.abort(request.engine_id, reason)

    thread.put(abort)
