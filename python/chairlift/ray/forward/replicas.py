"""The replicas behind an ingress: which are up, how much they have to do, and which gets a request.

```text
Serve's list of replicas --> update --> a connection and a watch of the load of each --> router
request --> choose --> router: prefix and load --> a ticket, which counts until the request ends
```
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from chairlift import _core
from chairlift.api.errors import ChairliftError, ConfigError, Reason, RequestError
from chairlift.api.logs import fields
from chairlift.client import AsyncClient
from chairlift.client.security import Security
from chairlift.ray.forward.names import TOKENS_PER_NAME, PromptNames

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
"""Between two attempts to reach a replica."""
_SILENCE_S: Final = 10.0
"""A replica that reports no load for so long hangs: its streams are cut."""
_ADAPTERS_S: Final = 5.0
"""How long an adapter that a replica loads may be unknown here."""
_ADAPTERS_TIMEOUT_S: Final = 2.0
"""How long a replica may take to say which adapters it has."""
_MAX_ADAPTERS: Final = 1024
"""Adapters that a replica is expected to have."""
_SPREAD: Final = 2, 8
"""Where replicas load adapters, one without the adapter may get a request when each one with it has
more than so many times as many requests as the one with the fewest, and so many more."""
_MAX_REPORT: Final = 2**32 - 1
_MAX_NAMES: Final = 2**20
"""Names of a replica's cache that the router keeps at most."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a replica publishes of itself."""

    address: str
    """The address of its gRPC port."""
    http_url: str = ""
    """The URL of its HTTP port, without a path."""
    num_tokens: int = 0
    """Tokens that its KV cache holds."""


@dataclass(slots=True, eq=False)
class Replica:
    """A server that gets requests."""

    tag: str
    """Its name, which begins the handles of its requests."""
    info: ReplicaInfo
    slot: int
    """Its number in the router."""
    client: AsyncClient
    is_up: bool = False
    is_draining: bool = False
    is_removed: bool = False
    models: frozenset[str] = frozenset()
    """The names of its model."""
    adapters: frozenset[str] = frozenset()
    """The adapters that it has, as far as the token of the ingress may see them."""
    num_tickets: int = 0
    calls: set[Any] = field(default_factory=set)
    """Its open streams, which end when it hangs."""
    watch: asyncio.Task[None] | None = None


class Ticket:
    """A request that a replica has."""

    def __init__(self, replicas: "Replicas", replica: Replica, number: int) -> None:
        self.replica = replica
        self._replicas = replicas
        self._number: int | None = number

    def end(self) -> None:
        """Note that the request has ended; may be called again."""
        number, self._number = self._number, None
        if number is not None:
            self._replicas._end(self.replica, number)


class Replicas:
    """All replicas; for one event loop."""

    def __init__(
        self,
        security: Security | None = None,
        *,
        routing: str = "both",
        max_replicas: int = 256,
        report_interval_s: float = 1.0,
        load_adapters: bool = False,
    ) -> None:
        """Start without replicas.

        Args:
            security: How to connect to them.
            routing: "round-robin", "least-load", "prefix" or "both".
            max_replicas: Replicas at once; further ones get no requests.
            report_interval_s: Seconds between two reports of a replica's load.
            load_adapters: Replicas load an adapter when a request names it.
        """
        self._security = security
        self._routing = routing
        self._free_slots = list(range(max_replicas))[::-1]
        self._max_replicas = max_replicas
        self._report_interval_s = report_interval_s
        self._load_adapters = load_adapters
        self._changed = asyncio.Event()
        self._router: _core.Router | None = None
        self._replicas: dict[str, Replica] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[Replica]:
        """Return the replicas that get requests."""
        return [replica for replica in self._replicas.values() if replica.is_up]

    async def changed(self) -> None:
        """Return when a replica has come up or gone down."""
        await self._changed.wait()

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, tag: str) -> Replica | None:
        """Return the replica of a tag, as long as it has requests; None if there is none."""
        return self._replicas.get(tag)

    def update(self, found: Mapping[str, ReplicaInfo]) -> None:
        """Set which replicas there are, by their tags; those that go keep their requests."""
        for tag, replica in list(self._replicas.items()):
            if tag not in found and not replica.is_removed:
                replica.is_removed = True
                self._leave(replica)
                self._close_if_idle(replica)
        for tag, info in found.items():
            if tag not in self._replicas:
                self._add(tag, info)

    def _add(self, tag: str, info: ReplicaInfo) -> None:
        if not self._free_slots:
            _log.error("a replica gets no requests: there are too many", extra=fields(tag=tag))
            return
        try:
            client = AsyncClient(info.address, self._security)
        except ConfigError as error:
            _log.error("a replica cannot be reached", extra=fields(tag=tag, error=str(error)))
            return
        if self._router is None:
            self._router = self._new_router(info)
        replica = Replica(tag, info, self._free_slots.pop(), client)
        self._replicas[tag] = replica
        replica.watch = asyncio.create_task(self._watch(replica))

    def _new_router(self, info: ReplicaInfo) -> _core.Router:
        router = _core.Router(
            routing=self._routing,
            num_replicas=self._max_replicas,
            names_per_replica=min(max(1, info.num_tokens // TOKENS_PER_NAME), _MAX_NAMES),
            seed=secrets.randbits(64),
        )
        for slot in range(self._max_replicas):
            router.leave(slot)
        return router

    async def _watch(self, replica: Replica) -> None:
        """Follow the load of a replica, which is up while it reports."""
        while not replica.is_removed:
            loads = replica.client.watch_load(self._report_interval_s)
            asked_at = -inf
            try:
                while True:
                    async with asyncio.timeout(_SILENCE_S):
                        load = await anext(loads)
                        now = asyncio.get_running_loop().time()
                        if now - asked_at >= _ADAPTERS_S:
                            asked_at = now
                            await self._learn_adapters(replica)
                    self._report(replica, load.num_waiting + load.num_running)
            except (ChairliftError, StopAsyncIteration):
                self.lost(replica)
            except TimeoutError:
                self.lost(replica)
                for call in tuple(replica.calls):
                    call.cancel()
            await asyncio.sleep(_RETRY_S)

    async def _learn_adapters(self, replica: Replica) -> None:
        # A replica without an answer in time reports its load all the same.
        with suppress(ChairliftError, TimeoutError):
            async with asyncio.timeout(_ADAPTERS_TIMEOUT_S):
                info = await replica.client.model_info()
                replica.models = frozenset((info.name, *info.aliases))
                replica.adapters = frozenset(info.adapters)

    def _report(self, replica: Replica, num_requests: int) -> None:
        assert self._router is not None, replica
        if replica.is_removed or replica.is_draining:
            return
        if not replica.is_up:
            replica.is_up = True
            self._router.join(replica.slot)
            self._on_change()
        # The router trusts a report within bounds.
        self._router.report(replica.slot, min(num_requests, _MAX_REPORT))

    def choose(self, prompt: PromptNames) -> Ticket:
        """Choose a replica for a request, which it has until the ticket ends.

        A request that names an adapter goes to a replica that has it, if there is one. Where
        replicas load adapters, others may get it when those are down, or have much more to do.

        Raises:
            RequestError: `STARTING`: no replica is up, or none of those with the adapter.
        """
        routed, adapter = None, prompt.adapter
        if any(adapter in replica.models for replica in self._replicas.values()):
            adapter = ""
        if self._router is not None:
            among = self._with_adapter(adapter) if adapter else None
            routed = self._router.route(prompt.names, TOKENS_PER_NAME, prompt.num_tokens, among)
        if routed is None:
            raise RequestError(Reason.STARTING, "no replica is up", retry_after_s=1.0)
        number, slot = routed
        replica = next(r for r in self._replicas.values() if r.slot == slot)
        replica.num_tickets += 1
        if adapter and self._load_adapters and len(replica.adapters) < _MAX_ADAPTERS:
            # It will have it: requests that come meanwhile make no other replica load it.
            replica.adapters |= {adapter}
        return Ticket(self, replica, number)

    def _with_adapter(self, adapter: str) -> list[int] | None:
        """Return the slots that may get a request for an adapter; None is all."""
        replicas = [r for r in self._replicas.values() if not r.is_removed]
        holders = [replica for replica in replicas if adapter in replica.adapters]
        up = [replica for replica in holders if replica.is_up]
        if self._load_adapters:
            return None if self._is_hot(up) else sorted(replica.slot for replica in up)
        slots = sorted(replica.slot for replica in up)
        if holders and not slots:
            message = "no replica that has the adapter is up"
            raise RequestError(Reason.STARTING, message, retry_after_s=1.0)
        return slots or None

    def _is_hot(self, holders: list[Replica]) -> bool:
        """Return whether those that have an adapter have much more to do than the others."""
        if not holders:
            return True
        times, more = _SPREAD
        fewest = min(replica.num_tickets for replica in self.up)
        return all(replica.num_tickets > times * fewest + more for replica in holders)

    def _end(self, replica: Replica, number: int) -> None:
        assert self._router is not None, replica
        self._router.end(number)
        replica.num_tickets -= 1
        self._close_if_idle(replica)

    def lost(self, replica: Replica) -> None:
        """Note that a replica cannot be reached: it gets no requests until it reports again."""
        if replica.is_up:
            _log.warning("a replica is lost", extra=fields(tag=replica.tag))
            self._leave(replica)

    def draining(self, replica: Replica) -> None:
        """Note that a replica takes no more requests, for good."""
        replica.is_draining = True
        self._leave(replica)

    def _leave(self, replica: Replica) -> None:
        if replica.is_up:
            replica.is_up = False
            assert self._router is not None, replica
            self._router.leave(replica.slot)
            self._on_change()

    def hold(self, replica: Replica, call: Any) -> Callable[[], None]:
        """Note an open stream to a replica; return what forgets it."""
        replica.calls.add(call)

        def release() -> None:
            replica.calls.discard(call)
            self._close_if_idle(replica)

        return release

    def _close_if_idle(self, replica: Replica) -> None:
        is_idle = not replica.num_tickets and not replica.calls
        if replica.is_removed and is_idle and self._replicas.pop(replica.tag, None) is not None:
            self._free_slots.append(replica.slot)
            task = asyncio.create_task(self._close(replica))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, replica: Replica) -> None:
        if replica.watch is not None:
            replica.watch.cancel()
            with suppress(asyncio.CancelledError):
                await replica.watch
        await replica.client.close()

    async def close(self) -> None:
        """End all connections."""
        replicas, self._replicas = list(self._replicas.values()), {}
        for replica in replicas:
            replica.is_removed = True
        await asyncio.gather(*map(self._close, replicas), *self._closing)
