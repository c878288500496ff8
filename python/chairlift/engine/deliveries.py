"""What the engine thread delivers, taken on the event loop: by requests, and by watchers."""

import asyncio
from collections.abc import Callable

from chairlift.engine.loop import Delivery, EngineLoop
from chairlift.engine.open_requests import OpenRequests, Router
from chairlift.engine.step import StepRecord

_NS = 1e-9


class Deliveries:
    """The way from the engine thread to the event loop; it outlives a thread that is restarted."""

    def __init__(self, requests: OpenRequests, on_down: Callable[[], None]) -> None:
        """Start without a thread.

        Args:
            requests: Take answers and events.
            on_down: Called on the event loop when the engine is down.
        """
        self._requests = requests
        self._on_down = on_down
        self._thread: EngineLoop | None = None
        self._step_watchers: list[Callable[[StepRecord], None]] = []
        self._watchers: list[Callable[[float, float], None]] = []

    def begin(self, thread: EngineLoop) -> None:
        """Take the deliveries of a thread on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        self._set_watched()

    def post(self, delivery: Delivery) -> None:
        """Pass a delivery to the event loop; the only method that the engine thread calls."""
        self._loop.call_soon_threadsafe(self._take, delivery)

    def route_to(self, router: Router) -> None:
        """Set a router, which delivers a part of each step's events; handles receive the rest."""
        self._requests.router = router

    def watch_steps(self, callback: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Call back on the event loop after every step; return a function that ends this."""
        self._step_watchers.append(callback)
        self._set_watched()

        def end() -> None:
            self._step_watchers.remove(callback)
            self._set_watched()

        return end

    def watch(self, callback: Callable[[float, float], None]) -> None:
        """Call back on the event loop after every delivery of a step's events.

        Args:
            callback: Called with the seconds that the delivery waited for the event loop, and the
                seconds that the event loop worked on it.
        """
        self._watchers.append(callback)

    def _set_watched(self) -> None:
        if self._thread is not None:
            self._thread.watched = bool(self._step_watchers)

    def _take(self, delivery: Delivery) -> None:
        assert self._thread is not None, "invariant: a thread has delivered"
        clock = self._thread.engine.clock
        taken = clock()
        self._thread.delivered()
        self._distribute(delivery)
        worked_s = (clock() - taken) * _NS
        for watcher in self._watchers:
            watcher((taken - delivery.sent_ns) * _NS, worked_s)

    def _distribute(self, delivery: Delivery) -> None:
        output = delivery.output
        if output is None:
            self._on_down()
            return
        self._requests.receive(delivery.answers, output)
        if output.record is not None:
            for watcher in tuple(self._step_watchers):
                watcher(output.record)
