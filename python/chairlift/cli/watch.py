"""A timeline of a live server, by its streams of steps and of load."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.cli.remote import connected
from chairlift.cli.watched_steps import WatchedTimeline, watched_rows, watched_times
from chairlift.timeline.values import Timeline

if TYPE_CHECKING:
    from chairlift.client import AsyncClient
    from chairlift.v1 import server_pb2 as pb

MAX_WATCH_S: Final = 600.0
"""Longest watch: its steps are kept in memory."""
_LOAD_EVERY_S: Final = 0.1
"""The shortest interval of the server."""


def watch_timeline(target: str, seconds: float, tls: dict[str, str | None]) -> Timeline:
    """Return the steps of a server from now on.

    Args:
        target: Address of the server.
        seconds: How long to watch.
        tls: Options of `connected`.

    Raises:
        ChairliftError: There is no server, or it made no step in this time.
        ConfigError: The time is longer than `MAX_WATCH_S`.
    """
    if not 0 < seconds <= MAX_WATCH_S:
        message = f"--live: expected more than 0s and at most {MAX_WATCH_S:.0f}s, got {seconds:g}s"
        raise ConfigError(message)
    return asyncio.run(_watch(target, seconds, tls))


async def _watch(target: str, seconds: float, tls: dict[str, str | None]) -> Timeline:
    watch = _Watch()
    async with connected(target, **tls) as client:
        info = await client.server_info()
        steps = await client.watch_steps()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                tasks.create_task(watch.take_loads(client))
                tasks.create_task(watch.take_steps(steps))
    if not watch.steps:
        message = f"the server at {target} made no step in {seconds:g} s"
        raise ChairliftError(message)
    return watch.timeline(info)


class _Watch:
    """What two streams of a server said."""

    def __init__(self) -> None:
        self.steps: list[pb.Step] = []
        self._load_steps: list[int] = []
        self._used_blocks: list[int] = []

    async def take_steps(self, steps: "AsyncIterator[pb.Step]") -> None:
        async for step in steps:
            self.steps.append(step)

    async def take_loads(self, client: "AsyncClient") -> None:
        async for load in client.watch_load(_LOAD_EVERY_S):
            self._load_steps.append(load.num_steps)
            self._used_blocks.append(load.num_blocks - load.num_free_blocks)

    def timeline(self, info: "pb.GetServerInfoResponse") -> Timeline:
        """Return the steps; those that the server dropped are a gap."""
        watched = WatchedTimeline(info.batching, info.max_num_seqs, info.num_blocks)
        labels: dict[str, str] = {}
        last = self.steps[0].step - 1
        for step in self.steps:
            if step.step != last + 1:
                watched.add_gap(step.step - last - 1)
            last = step.step
            rows = list(watched_rows(step))
            times = watched_times(step, self._used_at(step.step))
            watched.add_rows(rows, step.preempted_handles, times)
            labels |= {row.handle: row.request_id for row in rows if row.handle}
        for handle in watched.handles:
            watched.name_request(handle, label=labels.get(handle, "of another tenant"))
        return watched.timeline()

    def _used_at(self, step: int) -> int:
        """Return the used blocks that the last load up to a step has; -1 before the first."""
        place = bisect_right(self._load_steps, step)
        return self._used_blocks[place - 1] if place else -1
