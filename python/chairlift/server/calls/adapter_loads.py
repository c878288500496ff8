"""Loads the adapters that requests name, where the settings say so (`adapters_on_demand`).

    find -> it is there                                               the request goes on
         -> a folder of that name, for this tenant -> load, find      the request waits for it

An adapter that no request uses makes room, the one that was named least recently first. Callers
take turns: a caller has one load at a time, so that many names of one do not delay another's.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chairlift.api.errors import ModelError, Reason, RequestError, refusal
from chairlift.api.logs import fields
from chairlift.api.types import Request
from chairlift.engine.lora.types import AdapterUse
from chairlift.engine.prepare.text_queue import caller
from chairlift.server.limits.gate import Gate

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_MAX_LOADS: Final = 2
"""Adapters that are read at a time."""
_MAX_WAITING: Final = 64
"""Adapters that are loaded or wait for it."""
_MAX_CALLER_WAITING: Final = 16
"""Those of one caller."""
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.02
"""How often a load looks for room while requests use every adapter."""
_BAD_S: Final = 10.0
"""How long an adapter that cannot be loaded is not read again."""
_MAX_BAD: Final = 256

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Load:
    """An adapter that is being loaded."""

    task: "asyncio.Task[AdapterUse]"
    num_waiting: int = 0
    """Requests that wait for it; without one it does not begin."""


@dataclass(slots=True, eq=False)
class _Turns:
    """The loads of one caller."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_loads: int = 0


class AdapterLoads:
    """Loads adapters for requests; for one event loop."""

    def __init__(self, gate: Gate, *, is_on: bool) -> None:
        """Load none yet.

        Args:
            gate: Has the engine.
            is_on: Whether any is loaded (`adapters_on_demand`).
        """
        self._is_on = is_on
        self._gate = gate
        self._loads: dict[str, _Load] = {}
        self._turns: dict[Hashable, _Turns] = {}
        self._running = asyncio.Semaphore(_MAX_LOADS)
        self._bad: deque[tuple[str, float]] = deque(maxlen=_MAX_BAD)
        """Adapters that cannot be loaded, and until when they are not read again."""

    async def hold(self, request: Request, connection: str) -> AdapterUse | None:
        """Return the adapter of a request, which stays loaded while the value is kept.

        Args:
            request: What the client wrote.
            connection: The client's: without tenants, connections take turns.

        Returns:
            None: the request names no adapter, or adapters are not loaded on demand.

        Raises:
            RequestError: A part or a time of the request is wrong; `UNKNOWN_ADAPTER`: there is none
                that the tenant may use, or it cannot be loaded; `QUEUE_FULL`, `QUOTA_EXCEEDED`: too
                many are being loaded; `QUEUE_TIMEOUT`: it was not loaded in time.
        """
        name, tenant = request.adapter, request.tenant
        if not self._is_on or not name:
            return None
        engine = self._gate.admit()
        limit_s = engine.engine.preparer.check(request).start_within_s
        adapters = engine.engine.adapters
        try:
            return adapters.find(name, tenant)
        except RequestError as unknown:
            if not await asyncio.to_thread(adapters.can_load, name, tenant):
                raise
            if self._is_bad(name):
                raise _cannot_be_loaded() from unknown
        load = self._loads.get(name)
        if load is None:
            load = self._begin(engine, name, tenant, caller(tenant, connection))
        load.num_waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(load.task)
        except TimeoutError:
            message = f"the adapter was not loaded within {limit_s:.3g} s"
            raise RequestError(Reason.QUEUE_TIMEOUT, message, retry_after_s=_RETRY_S) from None
        finally:
            load.num_waiting -= 1

    def may_name(self, name: str, tenant: str) -> bool:
        """Return whether an adapter may have a name: it is loaded for the tenant, or may be."""
        adapters = self._gate.engine().engine.adapters
        return name in adapters.names(tenant) or (self._is_on and adapters.allows(name, tenant))

    def _begin(self, engine: "AsyncEngine", name: str, tenant: str, by: Hashable) -> _Load:
        turns = self._turns.get(by) or _Turns()
        if len(self._loads) >= _MAX_WAITING:
            message = f"{len(self._loads)} adapters wait to be loaded already"
            raise RequestError(Reason.QUEUE_FULL, message, retry_after_s=_RETRY_S)
        if turns.num_loads >= _MAX_CALLER_WAITING:
            message = f"quota: {turns.num_loads} adapters wait to be loaded already"
            raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=_RETRY_S)
        task = asyncio.create_task(self._in_turn(engine, name, tenant, by))
        # Its requests may be gone: an error that nothing asks for would be logged.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._turns[by] = turns
        turns.num_loads += 1
        load = self._loads[name] = _Load(task)
        return load

    async def _in_turn(
        self, engine: "AsyncEngine", name: str, tenant: str, by: Hashable
    ) -> AdapterUse:
        turns = self._turns[by]
        try:
            async with turns.lock, self._running:
                while self._loads[name].num_waiting:
                    self._gate.admit()
                    if await engine.adapters.make_room():
                        use = await self._load(engine, name, tenant)
                        if use is not None:
                            return use
                    await asyncio.sleep(_POLL_S)
            raise refusal(Reason.QUEUE_TIMEOUT)
        finally:
            # At once: a request that comes now begins another load.
            del self._loads[name]
            turns.num_loads -= 1
            if not turns.num_loads:
                del self._turns[by]

    async def _load(self, engine: "AsyncEngine", name: str, tenant: str) -> AdapterUse | None:
        """Load an adapter; None where another load has taken the room meanwhile."""
        adapters = engine.engine.adapters
        try:
            folder = await asyncio.to_thread(adapters.in_folder, name)
            loaded = await engine.adapters.load(
                engine.engine, name, folder, adapters.tenants_of(name), is_on_demand=True
            )
        except ModelError as error:
            _log.warning("an adapter cannot be loaded", extra=fields(name=name, error=str(error)))
            self._bad.append((name, time.monotonic() + _BAD_S))
            raise _cannot_be_loaded() from None
        except RequestError as error:
            if error.reason is Reason.QUOTA_EXCEEDED:
                return None
            if error.reason is not Reason.BAD_PARAMETER:
                raise
            # An administrator took the name meanwhile, or a link leads out of the folder by now.
            return adapters.find(name, tenant)
        _log.info("adapter loaded", extra=fields(name=name, rank=loaded.rank))
        return adapters.find(name, tenant)

    def _is_bad(self, name: str) -> bool:
        now = time.monotonic()
        while self._bad and self._bad[0][1] <= now:
            self._bad.popleft()
        return any(bad == name for bad, _ in self._bad)


def _cannot_be_loaded() -> RequestError:
    # Why is in the log: the files are the server's.
    message = "adapter: its files cannot be loaded"
    return RequestError(Reason.UNKNOWN_ADAPTER, message, field="adapter")
