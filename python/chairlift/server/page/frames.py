"""Frames: what happened in the steps since the last one, encoded once for all feeds of one view.

A frame costs about as much as it has spans. All sources of frames together may use a twentieth of a
core: where there are many, or the batch is large, frames come more rarely and have more steps.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from chairlift.server.calls.registry import Registry
from chairlift.server.page.frame import Frame
from chairlift.server.page.numbers import Numbers
from chairlift.server.page.spans import Cells, spans_of
from chairlift.server.page.step_history import KeptStep, StepHistory
from chairlift.server.page.subscriber import Subscriber

MAX_PLAIN_ROWS: Final = 256
"""A larger batch is shown as bands, and a part of its rows."""
_SHARE: Final = 0.05
"""Share of one core, for all sources together."""


class View(NamedTuple):
    """What a feed shows; feeds of the same view share their frames."""

    tenant: str
    fps: int
    """Frames a second, at most."""
    rows: range
    """Whose spans are sent."""


class FrameSource:
    """Makes the frames of one view, while it has readers; for one event loop."""

    def __init__(
        self,
        view: View,
        history: StepHistory,
        live: Registry,
        started_ns: int,
        num_rows: int,
        num_sources: Callable[[], int],
    ) -> None:
        """Begin with the next step.

        Args:
            view: What it shows.
            history: History of the steps.
            live: Which has the names of requests.
            started_ns: Zero of the times, on the engine's clock.
            num_rows: Rows of the batch.
            num_sources: Returns how many there are.
        """
        self.position = history.end
        self.readers: list[Subscriber] = []
        self._view = view
        self._history = history
        self._numbers = Numbers(live, view.tenant)
        self._started_ns = started_ns
        self._num_rows = num_rows
        self._num_sources = num_sources
        self._num_frames = 0
        self._timer = self._later(1 / view.fps)

    def _later(self, within_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(within_s, self._tick)

    def close(self) -> None:
        """Make no further frame."""
        self._timer.cancel()

    def _tick(self) -> None:
        started = time.perf_counter()
        frame = self.next_frame()
        if frame is not None:
            for reader in self.readers:
                reader.add_frame(frame)
        took_s = time.perf_counter() - started
        self._timer = self._later(max(1 / self._view.fps, took_s * self._num_sources() / _SHARE))

    def next_frame(self) -> Frame | None:
        """Return the frame of the steps since the last one; None if there are none."""
        kept, first = self._history.since(self.position)
        num_missed = first - self.position
        self.position = self._history.end
        if not kept:
            return None
        self._num_frames += 1
        body = self._body(kept, first + self._history.first_number)
        # Before those that end here lose their numbers.
        new, known = self._numbers.take_new(), self._numbers.known()
        body["ended"] = self._numbers.take_ended()
        if num_missed:
            for reader in self.readers:
                reader.miss(num_missed)
        return Frame(body, new, known)

    def _body(self, kept: list[KeptStep], first: int) -> dict[str, Any]:
        """Return the fields that the steps give; `first` is the number of the first of them."""
        records = [step.record for step in kept]
        cells = Cells.of(records)
        num_tokens, num_sampled = cells.sums(len(records))
        starts = [(record.started_ns - self._started_ns) // 1000 for record in records]
        parts_us = np.rint(np.array([record.times for record in records]) * 1e6)
        rows, body = self._view.rows, {}
        if self._num_rows > MAX_PLAIN_ROWS:
            body["bands"] = cells.bands(len(records), self._num_rows)
            cells = cells.of_rows(rows)
        preempted = [
            (row, first + index, lost)
            for index, step in enumerate(kept)
            for row, lost in step.preempted
            if row in rows
        ]
        lost = self._numbers.of([request for _, _, request in preempted])
        return {
            "n": self._num_frames,
            "first_step": first,
            "start_us": starts,
            "duration_us": [round(record.duration_s * 1e6) for record in records],
            "parts_us": parts_us.astype(np.int64).tolist(),
            "num_waiting": [record.num_waiting for record in records],
            "num_tokens": num_tokens,
            "num_sampled": num_sampled,
            "spans": spans_of(cells, first, self._numbers.of),
            "preempted": [
                [row, step, number] for (row, step, _), number in zip(preempted, lost, strict=True)
            ],
            **body,
        }
