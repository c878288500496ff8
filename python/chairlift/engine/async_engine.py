"""The engine behind an asyncio event loop: submit, abort, and events that arrive at sinks.

One thread runs the engine (`loop.py`); everything here runs on the event loop. A step's events
cross over in one hop, and become Python objects only on this side.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from chairlift import _core
from chairlift.config import engine_config
from chairlift.engine.engine import Engine
from chairlift.engine.events import failed, refused, to_event
from chairlift.engine.explain import ask_why
from chairlift.engine.handle import Handle, Router, Sink, by_sink
from chairlift.engine.inbox import Inbox
from chairlift.engine.leak import has_leaked
from chairlift.engine.loading import Progress as LoadingProgress
from chairlift.engine.loop import (
    Abort,
    Alter,
    Delivery,
    EngineLoop,
    FailWaiting,
    Flush,
    Progress,
    Submit,
)
from chairlift.engine.prepare import Prepared
from chairlift.engine.state import EngineState
from chairlift.engine.step_record import StepRecord
from chairlift.engine.stepper import StepOutput
from chairlift.engine.text_queue import TextQueue
from chairlift.engine.watchers import StepWatchers
from chairlift.errors import EngineDownError, Reason, RequestError
from chairlift.types import Change, Event, Failed, Finished, Request, Waiting

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
"""How long `stop` waits for the last events, and then for the thread."""

_NS = 1e-9
_PAUSE = Change(paused=True)
_RESUME = Change(paused=False)


class AsyncEngine:
    """An engine for many concurrent callers on one event loop."""

    engine: Engine
    """Set by `start`; other than `prepare` and constants, it belongs to its thread."""

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        on_progress: LoadingProgress | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        **settings: object,
    ) -> None:
        """Checks the settings; `start` loads the model.

        Args:
            model: `demo`, a local folder, or a Hugging Face id.
            on_progress: Told how much of the weights is read, on another thread.
            clock: Time in nanoseconds; tests bring their own.
            settings: Fields of `EngineConfig`.

        Raises:
            ConfigError: A setting is wrong.
        """
        self.config = engine_config(**settings)
        self.texts = TextQueue(self.config.queue_timeout_s)
        """Where long texts are tokenized."""
        self._new_engine = lambda: Engine(model, on_progress=on_progress, clock=clock, **settings)
        self._state = EngineState.STARTING
        self.has_leaked = False
        """After `stop`: whether blocks or rows were still taken though all requests had ended."""
        self._thread: EngineLoop | None = None
        # A handle is in `_submitted` until the engine's answer, then in `_live` until its end.
        self._submitted: set[Handle] = set()
        self._live: dict[int, Handle] = {}
        self._router: Router | None = None
        self._watchers = StepWatchers(self._tell_watched)
        self._delivery_watchers: list[Callable[[float, float], None]] = []
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @classmethod
    def of(cls, engine: Engine) -> "AsyncEngine":
        """Serves an engine that exists; it must have no work and no other user."""
        self = cls(**engine.config.model_dump())
        self._new_engine = lambda: engine
        return self

    @property
    def state(self) -> EngineState:
        """What happens to a request that is submitted now."""
        return self._state

    @property
    def progress(self) -> Progress:
        """Signs of life of the engine thread; RuntimeError before `start`."""
        return self._running().progress

    @property
    def num_waiting(self) -> int:
        """Requests without a row, those included that the thread has not seen yet."""
        return self._running().num_waiting

    @property
    def silence_s(self) -> float:
        """Seconds that the engine thread has been in one forward pass, or stuck; for any thread."""
        return self._running().silence_s

    async def start(self) -> None:
        """Loads the model on a worker thread and starts to serve.

        Raises:
            ModelError: The model cannot be loaded.
            ConfigError: A setting does not fit the model.
        """
        self._loop = asyncio.get_running_loop()
        try:
            self.engine = await asyncio.to_thread(self._new_engine)
        except BaseException:
            self._state = EngineState.DEAD
            raise
        if self._state is not EngineState.STARTING:
            # `stop` came first.
            return
        self._start_thread(num_steps=0)

    async def restart(self) -> None:
        """Serves again after a fault: same weights, an idle scheduler, a new thread.

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
        self._thread = EngineLoop(self.engine, self._hop, num_steps=num_steps)
        self._thread.watched = bool(self._watchers)
        self._thread.start()
        self._state = EngineState.SERVING

    async def stop(self, grace_s: float = 0) -> None:
        """Ends: what runs may finish for a while, what waits fails at once, then the rest fails.

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
            thread.put(FailWaiting(Reason.DRAINING))
            if grace_s > 0:
                await self._wait_for_all(grace_s)
            for handle in (*self._submitted, *self._live.values()):
                thread.put(Abort(handle, Reason.DRAINING))
            await self._wait_for_all(JOIN_TIMEOUT_S)
        thread.stop()
        if not await asyncio.to_thread(thread.join, JOIN_TIMEOUT_S):
            logger.error("the engine thread does not end: a step takes too long")
        elif not was_dead and not self._live:
            self.has_leaked = has_leaked(self.engine)
        self._fail([*self._submitted, *self._live.values()], Reason.ENGINE_DOWN)

    def give_up(self) -> None:
        """Ends every request as lost with the engine, whatever its thread does; then it is dead."""
        thread = self._thread
        if thread is not None and self._state in (EngineState.SERVING, EngineState.DRAINING):
            thread.stop()
            self._lose()

    async def prepare(self, request: Request) -> Prepared:
        """Tokenizes and validates a request; a long prompt does not hold up the event loop.

        Raises:
            RequestError: With the path of the first field that is wrong, or as `TextQueue.run`.
        """
        return await self.texts.prepare(self.engine, request)

    def submit(self, prepared: Prepared, sink: Sink) -> Handle:
        """Hands a request to the engine.

        The first event that arrives at the sink is `Accepted`, or `Failed` for a request that is
        refused; the last is `Finished` or `Failed`. None arrives before this returns.
        """
        handle = Handle(prepared, sink)
        self._submitted.add(handle)
        self._all_ended.clear()
        refusal = self._refusal()
        if refusal is None:
            self._running().put(Submit(handle))
        else:
            asyncio.get_running_loop().call_soon(self._fail, [handle], refusal)
        return handle

    def abort(self, handle: Handle) -> None:
        """Ends a request in whatever state it is; no effect on one that has ended."""
        if not handle.ended and not handle.aborted and self._thread is not None:
            handle.aborted = True
            self._thread.put(Abort(handle, "cancelled"))

    def change(self, handle: Handle, change: Change) -> None:
        """Changes a request from its next step on; no effect on one that has ended.

        Raises:
            RequestError: With the path of the first field that is wrong; nothing has changed.
        """
        num_prompt_tokens = len(handle.prepared.prompt)
        prepared = self.engine.prepare_change(change, num_prompt_tokens)
        if not handle.ended and not handle.aborted and self._thread is not None:
            self._thread.put(Alter(handle, prepared))

    def pause(self, handle: Handle) -> None:
        """Stops a request after the step that runs now; it keeps what nobody else needs."""
        self.change(handle, _PAUSE)

    def resume(self, handle: Handle) -> None:
        """Lets a paused request go on."""
        self.change(handle, _RESUME)

    async def explain(self, handles: Sequence[Handle]) -> list[Waiting | None]:
        """As `ask_why`: tells why requests wait; None for one that has ended."""
        return await ask_why(self._running(), handles)

    def flush(self) -> None:
        """Lets the requests submitted so far run in a partial batch (static, dynamic)."""
        self._running().put(Flush())

    async def generate(self, request: Request) -> AsyncIterator[Event]:
        """Answers one request; closing the iterator cancels it.

        Raises:
            RequestError: The request is wrong. A request that is refused later gives `Failed`.
        """
        inbox = Inbox()
        handle = self.submit(await self.prepare(request), inbox)
        try:
            while not inbox.ended:
                for event in await inbox.take():
                    yield event
        finally:
            self.abort(handle)

    def route_to(self, router: Router) -> None:
        """Lets a router take from each step what it delivers itself; sinks get the rest."""
        self._router = router

    def load(self) -> _core.Load:
        """Gives a snapshot of queue, batch and KV cache; RuntimeError before `start`."""
        return self._running().load

    def watch_steps(self, callback: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Calls back on the event loop after every step; gives a function that ends this."""
        return self._watchers.add(callback)

    def watch_deliveries(self, callback: Callable[[float, float], None]) -> None:
        """Calls back on the event loop after every delivery of a step's events.

        Args:
            callback: Told how long the delivery waited for the event loop and how long the event
                loop worked on it, in seconds.
        """
        self._delivery_watchers.append(callback)

    def _tell_watched(self) -> None:
        if self._thread is not None:
            self._thread.watched = bool(self._watchers)

    def _running(self) -> EngineLoop:
        if self._thread is None:
            message = "the engine has not started"
            raise RuntimeError(message)
        return self._thread

    def _refusal(self) -> Reason | None:
        """Gives why a request cannot be submitted now."""
        if self._state is not EngineState.SERVING:
            return self._state.refusal
        # The scheduler has the last word on its queue, but only between two steps.
        is_full = self.num_waiting >= self.config.max_queued_requests
        return Reason.QUEUE_FULL if is_full else None

    def _hop(self, delivery: Delivery) -> None:
        """Takes a delivery to the event loop; the one thing here that the engine thread calls."""
        self._loop.call_soon_threadsafe(self._take, delivery)

    def _take(self, delivery: Delivery) -> None:
        taken = self.engine.clock()
        self._receive(delivery)
        worked_s = (self.engine.clock() - taken) * _NS
        for watcher in self._delivery_watchers:
            watcher((taken - delivery.sent_ns) * _NS, worked_s)

    def _receive(self, delivery: Delivery) -> None:
        self._running().delivered()
        if delivery.output is None:
            self._lose()
            return
        self._sort(self._answers(delivery))
        # After the answers: a router knows a request from its `Accepted` on.
        self._sort(self._events(delivery.output))
        self._note_ends()
        self._watchers.tell(delivery.output.record)

    def _lose(self) -> None:
        self._state = EngineState.DEAD
        self._fail([*self._submitted, *self._live.values()], Reason.ENGINE_DOWN)

    def _answers(self, delivery: Delivery) -> list[tuple[Handle, Event]]:
        events: list[tuple[Handle, Event]] = []
        for handle, answer in delivery.answers:
            if handle.ended:
                continue
            self._submitted.discard(handle)
            if isinstance(answer, RequestError):
                handle.ended = True
                events.append((handle, refused(answer)))
            else:
                self._live[answer.request_id] = handle
                events.append((handle, answer))
        return events

    def _events(self, output: StepOutput) -> list[tuple[Handle, Event]]:
        events: list[tuple[Handle, Event]] = []
        rest = output.events if self._router is None else self._router.post(output)
        for core_event in rest:
            handle = self._live.get(core_event.request_id)
            if handle is None:
                # `stop` did not wait for a thread that was stuck, and now it has come back.
                continue
            event = to_event(core_event, handle.prepared.output, output.sampled)
            if isinstance(event, Failed) or (isinstance(event, Finished) and event.last):
                handle.ended = True
                del self._live[core_event.request_id]
            events.append((handle, event))
        return events

    def _sort(self, events: list[tuple[Handle, Event]]) -> None:
        """Gives each sink its events in one call."""
        for sink, its_events in by_sink(events):
            self._give(sink, its_events)

    def _give(self, sink: Sink, events: list[tuple[Handle, Event]]) -> None:
        try:
            sink.deliver(events)
        except Exception:
            logger.exception("a sink failed; its requests are aborted")
            for handle, _ in events:
                self.abort(handle)

    def _fail(self, handles: list[Handle], reason: Reason) -> None:
        """Ends requests on this side alone."""
        for handle in handles:
            if handle.ended:
                continue
            handle.ended = True
            self._submitted.discard(handle)
            if handle.request_id is not None:
                self._live.pop(handle.request_id, None)
            self._give(handle.sink, [(handle, failed(handle.request_id, reason))])
        self._note_ends()

    def _note_ends(self) -> None:
        if not self._submitted and not self._live:
            self._all_ended.set()

    async def _wait_for_all(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), timeout_s)
