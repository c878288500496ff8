"""The events of a feed beside its frames: load, queue and KV blocks, once for each tenant."""

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from chairlift.api.errors import RequestError
from chairlift.server.calls.context import ServerContext
from chairlift.server.page.access import event
from chairlift.server.services.overview import Overview, num_by_cause
from chairlift.v1 import server_pb2 as pb

if TYPE_CHECKING:
    from chairlift.api.types import Waiting
    from chairlift.core.tenant_view import TenantView
    from chairlift.server.page.subscriber import Subscriber

MAX_LISTED: Final = 100
"""Waiting requests of a tenant that are listed."""
_QUEUE_EACH_S: Final = 0.5
_LOAD_EACH: Final = 2
"""Updates of the queue for one of the load and of the blocks."""


class Panels:
    """Asks the engine for a tenant while its feeds have readers; for one event loop."""

    def __init__(self, server: ServerContext, overview: Overview, tenant: str) -> None:
        """Begin at once.

        Args:
            server: The state that all calls share.
            overview: Which has the load.
            tenant: Whose rights the readers have.
        """
        self.readers: list[Subscriber] = []
        self._server = server
        self._overview = overview
        self._tenant = tenant
        self._last: dict[str, bytes] = {}
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Ask no more."""
        self._task.cancel()

    def add(self, reader: "Subscriber") -> None:
        """Add a reader, which gets the last events at once."""
        self.readers.append(reader)
        for name, data in self._last.items():
            reader.add_panel(name, data)

    async def _run(self) -> None:
        number = 0
        while True:
            # The engine may restart, or be in a long step: the next time may be better.
            with suppress(RequestError):
                await self._update(with_load=number % _LOAD_EACH == 0)
            number += 1
            await asyncio.sleep(_QUEUE_EACH_S)

    async def _update(self, *, with_load: bool) -> None:
        engine = self._server.gate.engine()
        if with_load:
            # First: it needs no answer of the engine's thread.
            activity = self._overview.activity(self._tenant)
            state = self._server.gate.phase.value
            self._send("load", {**load_fields(self._overview.load(activity())), "state": state})
        view = await engine.view(self._tenant, MAX_LISTED)
        self._send_queue(view)
        if with_load:
            cells = {name: counts.tolist() for name, counts in view.blocks._asdict().items()}
            self._send(
                "blocks",
                {"num_blocks": view.load.num_blocks, "cells": len(view.blocks.held), **cells},
            )

    def _send(self, name: str, value: dict[str, Any], *, only_changes: bool = False) -> None:
        data = event(name, value)
        if only_changes and self._last.get(name) == data:
            return
        self._last[name] = data
        for reader in self.readers:
            reader.add_panel(name, data)

    def _send_queue(self, view: "TenantView") -> None:
        listed = [self._waiting(engine_id, waiting) for engine_id, waiting in view.waiting]
        causes = {cause.name: count for cause, count in num_by_cause(view.load).items()}
        value = {
            "own": [entry for entry in listed if entry is not None],
            "num_own": view.num_waiting,
            "num_other": max(0, view.load.num_waiting - view.num_waiting),
            "causes": causes,
        }
        self._send("queue", value, only_changes=True)

    def _waiting(self, engine_id: int, waiting: "Waiting") -> list[Any] | None:
        """Return the entry of a request; None if it has ended meanwhile."""
        names = self._server.live.names(engine_id)
        live = None if names is None else self._server.live.get(names.handle)
        if names is None or live is None or names.tenant != self._tenant:
            return None
        wait_s = self._server.backlog.starts_in_s(waiting.num_before)
        return [
            names.handle,
            names.request_id,
            None if waiting.cause is None else waiting.cause.name,
            waiting.num_before,
            waiting.num_computed_tokens,
            waiting.num_tokens,
            None if wait_s is None else round(wait_s * 1e3),
            round((time.monotonic() - live.arrived_at) * 1e3),
        ]


def load_fields(load: pb.Load) -> dict[str, Any]:
    """Return a load by the names of its fields; times are in milliseconds and microseconds."""
    counts = {
        field.name: getattr(load, field.name)
        for field in pb.Load.DESCRIPTOR.fields
        if field.message_type is None
    }
    has_tokens = load.HasField("inter_token_latency_p50")
    return {
        **counts,
        "itl_p50_us": load.inter_token_latency_p50.ToMicroseconds() if has_tokens else None,
        "itl_p99_us": load.inter_token_latency_p99.ToMicroseconds() if has_tokens else None,
        "tenants": [_tenant(activity) for activity in load.tenants],
    }


def _tenant(activity: pb.TenantActivity) -> dict[str, Any]:
    has_started = activity.HasField("time_to_first_token_p50")
    p50, p99 = activity.time_to_first_token_p50, activity.time_to_first_token_p99
    return {
        "tenant": activity.tenant,
        "num_generated_tokens": activity.num_generated_tokens,
        "num_started": activity.num_started,
        "ttft_p50_ms": round(p50.ToMicroseconds() / 1e3, 1) if has_started else None,
        "ttft_p99_ms": round(p99.ToMicroseconds() / 1e3, 1) if has_started else None,
        "reasons": [[count.reason, count.is_error, count.count] for count in activity.reasons],
    }
