"""The steps of the engine for all `WatchSteps` calls: encoded once, and kept for slow watchers.

Each tenant sees the names of its own requests only, so the watchers of a tenant share one ring of
encoded steps, and tenants without a row in a step share its encoding. A ring is bounded in bytes; a
watcher that falls behind gets the number of steps that it has missed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from chairlift.core.step_rows import RowWork
from chairlift.server.calls.registry import Registry, RequestNames
from chairlift.server.rpc.status import duration
from chairlift.v1 import server_pb2 as pb

if TYPE_CHECKING:
    from chairlift.engine.step import StepRecord, StepTimes

CAPACITY_BYTES: Final = 2**20
"""Size of a tenant's ring, and hence of a message; gRPC clients accept four times as much."""

_WORK: Final = {
    RowWork.PREFILL: pb.ROW_WORK_PREFILL,
    RowWork.DECODE: pb.ROW_WORK_DECODE,
    RowWork.VERIFY: pb.ROW_WORK_VERIFY,
}


def _parts(times: "StepTimes") -> list[tuple[str, float]]:
    """Name of the proto's fields, with seconds."""
    return [(name.removesuffix("_s"), seconds) for name, seconds in times._asdict().items()]


class _Ring:
    """The last encoded steps for one tenant."""

    def __init__(self) -> None:
        self.num_watchers = 0
        self.num_added = 0
        self._steps: deque[bytes] = deque()
        self._num_bytes = 0
        self._added = asyncio.Event()

    def add(self, step: bytes) -> None:
        """Add a step; the oldest ones are dropped."""
        self._steps.append(step)
        self._num_bytes += len(step)
        self.num_added += 1
        while self._num_bytes > CAPACITY_BYTES and len(self._steps) > 1:
            self._num_bytes -= len(self._steps.popleft())
        self.wake()

    def wake(self) -> None:
        """Wake every watcher."""
        self._added.set()
        self._added = asyncio.Event()

    async def wait(self) -> None:
        """Wait for a step, or for `wake`."""
        await self._added.wait()

    def since(self, position: int) -> tuple[bytes, int]:
        """Return the steps from a position on, and how many of them were dropped."""
        first = self.num_added - len(self._steps)
        num_dropped = max(0, first - position)
        steps = islice(self._steps, max(0, position - first), None)
        return b"".join(steps), num_dropped


class _EncodedStep:
    """A step, each part of which is encoded once, whatever the number of tenants."""

    def __init__(
        self, record: "StepRecord", names: list[RequestNames | None], head: pb.Step
    ) -> None:
        done = record.done
        columns = zip(
            record.rows,
            done.work.tolist(),
            done.num_drafts.tolist(),
            done.num_accepted.tolist(),
            done.finished.tolist(),
            strict=True,
        )
        rows = [
            pb.StepRow(
                row=row,
                num_tokens=num_tokens,
                sampled=sampled,
                work=_WORK[work],
                num_drafts=drafts,
                num_accepted=accepted,
                finished=finished,
            )
            for (row, _, num_tokens, sampled), work, drafts, accepted, finished in columns
        ]
        self._head = head.SerializeToString()
        self._rows = [pb.Step(rows=[row]).SerializeToString() for row in rows]
        self._named: dict[str, list[tuple[int, bytes]]] = {}
        """The rows of each tenant with their names, and where they are."""
        for number, (row, name) in enumerate(zip(rows, names, strict=True)):
            if name is not None:
                row.handle, row.request_id = name.handle, name.request_id
                encoded = pb.Step(rows=[row]).SerializeToString()
                self._named.setdefault(name.tenant, []).append((number, encoded))

    def of(self, tenant: str | None, preempted: list[str]) -> bytes:
        """Return the step as an encoded `WatchStepsResponse`.

        Args:
            tenant: The rows of its requests have their names; None is no tenant.
            preempted: Handles of its requests that were preempted.
        """
        rows = list(self._rows)
        for number, row in () if tenant is None else self._named.get(tenant, ()):
            rows[number] = row
        # Concatenated encoded messages are one message with the fields of both.
        step = pb.Step.FromString(self._head + b"".join(rows))
        step.preempted_handles.extend(preempted)
        encoded: bytes = pb.WatchStepsResponse(steps=[step]).SerializeToString()
        return encoded


class StepFeed:
    """The position of one watcher in the ring of its tenant."""

    def __init__(self, ring: _Ring) -> None:
        self._ring = ring
        self._position = ring.num_added

    async def take(self) -> bytes:
        """Wait, and return the steps that came as an encoded message; none after `wake`."""
        if self._position == self._ring.num_added:
            await self._ring.wait()
        steps, num_dropped = self._ring.since(self._position)
        self._position = self._ring.num_added
        # Concatenated encoded messages are one message with the fields of both.
        dropped: bytes = pb.WatchStepsResponse(num_dropped=num_dropped).SerializeToString()
        return steps + dropped


class StepFeeds:
    """The feeds of all watchers; for one event loop."""

    def __init__(self, live: Registry, started_ns: int) -> None:
        """Start without watchers.

        Args:
            live: The registry, which has the names of requests.
            started_ns: Start of the server on the engine's clock.
        """
        self._live = live
        self._started_ns = started_ns
        self._rings: dict[str, _Ring] = {}
        self._unsubscribe: Callable[[], None] = lambda: None

    @contextmanager
    def watch(
        self,
        tenant: str,
        subscribe: "Callable[[Callable[[StepRecord], None]], Callable[[], None]]",
    ) -> Iterator[StepFeed]:
        """Open a feed for a tenant, from the next step on.

        Args:
            tenant: The tenant whose requests have names in the feed.
            subscribe: Registers a callback for each step; used while there are watchers.
        """
        if not self._rings:
            self._unsubscribe = subscribe(self.add)
        ring = self._rings.setdefault(tenant, _Ring())
        ring.num_watchers += 1
        try:
            yield StepFeed(ring)
        finally:
            ring.num_watchers -= 1
            if not ring.num_watchers:
                del self._rings[tenant]
            if not self._rings:
                self._unsubscribe()

    def wake(self) -> None:
        """Wake every watcher, although there may be no step."""
        for ring in self._rings.values():
            ring.wake()

    def add(self, record: "StepRecord") -> None:
        """Add a step that the engine has finished; called on the event loop."""
        names = [self._live.names(engine_id) for engine_id in record.request_ids.tolist()]
        preempted = [self._live.names(engine_id) for engine_id in record.done.preempted]
        tenants = {name.tenant for name in (*names, *preempted) if name is not None}
        step = _EncodedStep(record, names, self._head(record))
        nameless = None
        for tenant, ring in self._rings.items():
            if tenant in tenants:
                ring.add(step.of(tenant, self._of_tenant(record.done.preempted, tenant)))
                continue
            if nameless is None:
                nameless = step.of(None, [])
            ring.add(nameless)

    def _head(self, record: "StepRecord") -> pb.Step:
        """Return a step without rows and names."""
        return pb.Step(
            step=record.step,
            start=duration((record.started_ns - self._started_ns) * 1e-9),
            duration=duration(record.duration_s),
            num_waiting=record.num_waiting,
            times=pb.StepTimes(**{k: duration(v) for k, v in _parts(record.times)}),
            num_preempted=len(record.done.preempted),
        )

    def _of_tenant(self, engine_ids: list[int], tenant: str | None) -> list[str]:
        """Return the handles of a tenant's requests among some."""
        names = [self._live.names(engine_id) for engine_id in engine_ids]
        return [name.handle for name in names if name is not None and name.tenant == tenant]
