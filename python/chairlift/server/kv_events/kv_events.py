"""The events of all tenants that share theirs, from the engine to every reader."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Final

from chairlift import _core
from chairlift.engine.block_reports import BlockSnapshot
from chairlift.server.kv_events.events import Batch
from chairlift.server.kv_events.stream import EventStream

SNAPSHOT_TIMEOUT_S: Final = 5.0
"""How long a reader waits for the engine's thread, which answers between two steps."""

Ask = Callable[[int], "Future[tuple[int, BlockSnapshot]]"]
"""Asks the engine's thread for all blocks, and the number of the stream's last batch then."""


class KvEvents:
    """One stream per tenant; takes what the engine reports.

    Attributes:
        streams: By tenant, in the order in which the engine reports them.
    """

    def __init__(
        self, tenants: Iterable[str], new_stream: Callable[[int], EventStream] = EventStream
    ) -> None:
        """Begin without an engine.

        Args:
            tenants: Whose events there are.
            new_stream: Returns the stream of the tenant at a place.
        """
        self.streams = {tenant: new_stream(place) for place, tenant in enumerate(tenants)}
        self._by_place = tuple(self.streams.values())
        self._ask: Ask | None = None
        self._snapshots: dict[int, Batch] = {}
        self._lock = threading.Lock()

    def begin(self, ask: Ask) -> None:
        """Take snapshots of an engine that reports from now on.

        Args:
            ask: See `Ask`; any thread may call it.
        """
        self._ask = ask

    def put(self, blocks: _core.BlockEvents, adapters: Mapping[int, str]) -> None:
        """Take the changes of a step; called on the engine's thread."""
        for place in blocks.streams:
            self._by_place[place].put(blocks, adapters)

    def clear(self) -> None:
        """Note that no block is left; called on the engine's thread."""
        for stream in self._by_place:
            stream.clear()

    def snapshot(self, stream: EventStream) -> Batch:
        """Return a batch that clears and stores all there is, for a reader that is behind.

        One snapshot serves all readers until its successor is gone from the stream: readers that
        come and go do not hold up the engine. Not for the event loop.

        Raises:
            TimeoutError: The engine does not answer in time.
        """
        with self._lock:
            known = self._snapshots.get(stream.place)
            if known is None or stream.since(known.number) is None:
                known = self._snapshots[stream.place] = self._new_snapshot(stream)
            return known

    def _new_snapshot(self, stream: EventStream) -> Batch:
        if self._ask is None:
            # Nothing is in the cache while the model loads.
            return Batch(stream.number, time.time(), stream.place, True, None, {})
        number, taken = self._ask(stream.place).result(SNAPSHOT_TIMEOUT_S)
        return Batch(number, time.time(), stream.place, True, taken.blocks, taken.adapters)
