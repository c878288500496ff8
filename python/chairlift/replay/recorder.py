"""Records the calls and results of a scheduler without delaying it.

    engine ──▶ RecordedScheduler ──▶ Scheduler
                      │ one queue
                      ▼
                writer thread ──▶ trace file

The engine thread only queues references. A disk that is full or too slow ends the recording with
one warning; the file then ends with the last complete line.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chairlift import _core
from chairlift.api.errors import ConfigError
from chairlift.core.new_request import NewRequest
from chairlift.core.plan import plan_len
from chairlift.core.step_rows import StepRows
from chairlift.replay.format import Header
from chairlift.replay.trace_writer import (
    Added,
    Cancelled,
    Entry,
    Flushed,
    OtherEvents,
    Restarted,
    Stepped,
    TraceWriter,
)

if TYPE_CHECKING:
    from chairlift._core import _Buffer

logger = logging.getLogger(__name__)

MAX_PENDING = 65_536
"""Most entries that the writer may lag behind."""

_WRITE_EVERY_S = 0.25


class TraceRecorder:
    """Owns a trace file and the thread that writes it."""

    def __init__(self, path: Path) -> None:
        """Open the file and truncate it.

        Raises:
            ConfigError: It cannot be written.
        """
        self._path = path
        try:
            self._file: FileIO = path.open("wb", buffering=0)
        except OSError as error:
            message = f"record: cannot write {path}: {(error.strerror or 'unknown error').lower()}"
            raise ConfigError(message) from None
        self._pending: queue.SimpleQueue[Entry] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._stopped = False
        self._num_bytes = 0
        self._thread: threading.Thread | None = None

    def record(
        self, scheduler: _core.Scheduler, header: Header, clock: Callable[[], int]
    ) -> _core.Scheduler:
        """Record a scheduler, or continue with one that replaces a lost one.

        Args:
            scheduler: An idle scheduler.
            header: Its settings.
            clock: The engine's clock; the trace begins with the first call.

        Returns:
            The object to call instead of the scheduler.
        """
        if self._thread is None:
            writer = TraceWriter(header, clock())
            self._thread = threading.Thread(
                target=self._main, args=(writer,), name="chairlift-record", daemon=True
            )
            self._thread.start()
        else:
            self.put(Restarted(clock()))
        # The class of the core is final: the recorded one has its methods without inheriting.
        return cast("_core.Scheduler", RecordedScheduler(scheduler, self.put, clock))

    def put(self, entry: Entry) -> None:
        """Queue an entry; drop it once the recording has stopped."""
        if self._stopped:
            return
        if self._pending.qsize() >= MAX_PENDING:
            self._stop("the disk is too slow")
            return
        self._pending.put(entry)

    def close(self) -> None:
        """Write what is queued and close the file."""
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
        self._file.close()

    def _main(self, writer: TraceWriter) -> None:
        try:
            self._append(writer.header())
            while not self._closing.wait(_WRITE_EVERY_S):
                self._write(writer)
            self._write(writer)
        except OSError as error:
            self._stop((error.strerror or "unknown error").lower())
        except Exception:
            logger.exception("a fault of the recorder")
            self._stop("a fault of the recorder")

    def _write(self, writer: TraceWriter) -> None:
        entries = []
        with suppress(queue.Empty):
            while True:
                entries.append(self._pending.get_nowait())
        self._append("".join(line for entry in entries for line in writer.lines(entry)))

    def _append(self, text: str) -> None:
        if self._stopped:
            return
        rest = memoryview(text.encode("ascii"))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # An incomplete line would spoil the file. What cannot be truncated is no regular file.
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._num_bytes)
            raise
        self._num_bytes += len(text)

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = True
            logger.warning("recording to %s stopped: %s", self._path, why)


class RecordedScheduler:
    """A scheduler whose calls are recorded; all other attributes are the scheduler's own."""

    def __init__(
        self, scheduler: _core.Scheduler, put: Callable[[Entry], None], clock: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._put = put
        self._clock = clock
        self._planned: dict[int, tuple[int, np.ndarray[Any, np.dtype[np.int32]]]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, whatever the scheduler has
        return getattr(self._scheduler, name)

    def add(self, now: int, request: NewRequest) -> _core.Added:
        """Add a request; a refused one is not recorded: the length of its answer is unknown."""
        added = self._scheduler.add(now, request)
        self._put(Added(now, added.request_id, request, added.slots))
        return added

    def abort(self, now: int, request_id: int, reason: str = "cancelled") -> bool:
        """Abort a request; only cancels by clients are recorded, others show in the end."""
        was_live = self._scheduler.abort(now, request_id, reason)
        if was_live and reason == "cancelled":
            self._put(Cancelled(now, request_id))
        return was_live

    def flush(self) -> None:
        """Flush, and record it."""
        self._scheduler.flush()
        self._put(Flushed(self._clock()))

    def schedule(self, now: int, plan: "_Buffer") -> int | None:
        """Schedule a step, and keep a copy of its plan."""
        step = self._scheduler.schedule(now, plan)
        if step is not None:
            buffer = np.asarray(plan)
            self._planned[step] = now, buffer[: plan_len(buffer)].copy()
        return step

    def update(self, now: int, step: int, tokens: "_Buffer") -> _core.Events:
        """Update after a step, and record it."""
        events = self._scheduler.update(now, step, tokens)
        self._note_step(step, now, events, failed=False)
        return events

    def fail(self, now: int, step: int, failed_ids: Sequence[int]) -> _core.Events:
        """Fail a step and the later one in flight, and record both."""
        events = self._scheduler.fail(now, step, failed_ids)
        self._note_step(step, now, events, failed=True)
        for later in list(self._planned):
            self._note_lost_step(later, now)
        return events

    def take_events(self) -> _core.Events:
        """Take events, and record them."""
        events = self._scheduler.take_events()
        if len(events):
            self._put(OtherEvents(events))
        return events

    def _note_step(self, step: int, now: int, events: _core.Events, *, failed: bool) -> None:
        planned = self._planned.pop(step, None)
        if planned is not None:
            started, plan = planned
            load, done = self._scheduler.load(), StepRows.of(self._scheduler)
            self._put(Stepped(started, now, self._clock(), plan, events, load, failed, done))

    def _note_lost_step(self, step: int, now: int) -> None:
        """Record a step that a failed one took with it: its rows have no record."""
        started, plan = self._planned.pop(step)
        events, load = self._scheduler.take_events(), self._scheduler.load()
        self._put(Stepped(started, now, self._clock(), plan, events, load, failed=True, done=None))
