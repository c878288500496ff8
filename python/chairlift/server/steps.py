"""The feed of one `WatchSteps` call: bounded, the oldest steps give way."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from chairlift.server.live import LiveRequests
from chairlift.server.status import duration
from chairlift.v1 import server_pb2 as pb

if TYPE_CHECKING:
    from chairlift.engine.step_record import StepRecord, StepTimes

CAPACITY: Final = 4096
"""Steps that wait for a slow reader."""


def _parts(times: "StepTimes") -> list[tuple[str, float]]:
    """Names of the proto's fields, with seconds."""
    return [(name.removesuffix("_s"), seconds) for name, seconds in times._asdict().items()]


class StepFeed:
    """Records of the engine, turned into messages while their requests still have names."""

    def __init__(self, live: LiveRequests, tenant: str, started_ns: int) -> None:
        """Starts empty.

        Args:
            live: Gives the names of the requests.
            tenant: Who watches.
            started_ns: Start of the server on the engine's clock.
        """
        self._live = live
        self._tenant = tenant
        self._started_ns = started_ns
        self._steps: deque[pb.Step] = deque()
        self._num_dropped = 0
        self._arrived = asyncio.Event()

    def add(self, record: "StepRecord") -> None:
        """Takes a step that the engine has finished; called on the event loop."""
        if len(self._steps) == CAPACITY:
            self._steps.popleft()
            self._num_dropped += 1
        self._steps.append(
            pb.Step(
                step=record.step,
                start=duration((record.started_ns - self._started_ns) * 1e-9),
                duration=duration(record.duration_s),
                num_waiting=record.num_waiting,
                rows=[self._row(*row) for row in record.rows],
                times=pb.StepTimes(**{k: duration(v) for k, v in _parts(record.times)}),
            )
        )
        self._arrived.set()

    def _row(self, row: int, engine_id: int, num_tokens: int, sampled: bool) -> pb.StepRow:
        request = self._live.seated(engine_id, self._tenant)
        return pb.StepRow(
            row=row,
            handle="" if request is None else request.handle,
            request_id="" if request is None else request.request_id,
            num_tokens=num_tokens,
            sampled=sampled,
        )

    def wake(self) -> None:
        """Lets the reader look although there may be no step."""
        self._arrived.set()

    async def take(self) -> pb.WatchStepsResponse:
        """Waits, and gives the steps that came; none after `wake`."""
        await self._arrived.wait()
        self._arrived.clear()
        response = pb.WatchStepsResponse(steps=self._steps, num_dropped=self._num_dropped)
        self._steps.clear()
        self._num_dropped = 0
        return response
