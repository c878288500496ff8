"""Live requests of the whole server: found by handle for Abort, by engine id for WatchSteps."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chairlift import types
from chairlift.errors import Reason, RequestError
from chairlift.server.backlog import AdmissionSlot
from chairlift.server.convert import OutputOptions
from chairlift.server.quotas import QuotaLease
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.engine.handle import Handle

_REMEMBERED: Final = 4096
"""Ended requests that steps still being reported may name."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request between its submission and its last event."""

    handle: "Handle"
    request_id: str
    """The client's label."""
    output: OutputOptions
    tenant: str
    lease: QuotaLease
    """In the tenant's quotas."""
    slot: AdmissionSlot
    """Among those who wait."""
    arrived_at: float
    """Monotonic seconds."""
    is_accepted: bool = False
    has_started: bool = False
    usage: types.Usage | None = None
    """Of the answers that have ended."""

    def use(self, usage: types.Usage) -> None:
        """Adds the tokens of an answer that has ended."""
        before = self.usage or types.Usage(0, 0, 0)
        self.usage = types.Usage(
            before.prompt_tokens + usage.prompt_tokens,
            before.cached_tokens + usage.cached_tokens,
            before.output_tokens + usage.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Names:
    """What a step is told of a request; kept after its end, unlike its prompt."""

    engine_id: int
    handle: str
    request_id: str
    tenant: str


class LiveRequests:
    """All live requests, whatever call they came by."""

    def __init__(self) -> None:
        self._by_name: dict[str, LiveRequest] = {}
        self._names_by_id: dict[int, Names] = {}
        self._ended: deque[Names] = deque()

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, request: LiveRequest) -> None:
        """Takes a request that was submitted."""
        self._by_name[request.handle.name] = request

    def accepted(self, request: LiveRequest) -> None:
        """Learns the engine's id of a request."""
        engine_id = request.handle.request_id
        if engine_id is not None:
            handle, label = request.handle.name, request.request_id
            self._names_by_id[engine_id] = Names(engine_id, handle, label, request.tenant)

    def remove(self, request: LiveRequest) -> None:
        """Forgets a request that ended; its names not at once, for its last step comes later."""
        self._by_name.pop(request.handle.name, None)
        engine_id = request.handle.request_id
        names = None if engine_id is None else self._names_by_id.get(engine_id)
        if names is not None and names.handle == request.handle.name:
            self._ended.append(names)
        while len(self._ended) > _REMEMBERED:
            oldest = self._ended.popleft()
            # After a restart of the engine the id may be another's.
            if self._names_by_id.get(oldest.engine_id) is oldest:
                del self._names_by_id[oldest.engine_id]

    def get(self, name: str) -> LiveRequest | None:
        """The request of this handle, if it is live."""
        return self._by_name.get(name)

    def of_tenant(self, tenant: str) -> Iterator[LiveRequest]:
        """The live requests of a tenant."""
        return (request for request in list(self._by_name.values()) if request.tenant == tenant)

    def find(self, tenant: str, request: pb.AbortRequest | pb.ExplainRequest) -> list[LiveRequest]:
        """The live requests of a tenant that the target of a request names.

        Raises:
            RequestError: It has no target.
        """
        target = request.WhichOneof("target")
        if target is None:
            names = " or ".join(field.name for field in request.DESCRIPTOR.oneofs[0].fields)
            message = f"target: expected {names}, got none of them"
            raise RequestError(Reason.BAD_PARAMETER, message, field="target")
        return [
            live
            for live in self.of_tenant(tenant)
            if target == "all"
            or (target == "handle" and live.handle.name == request.handle)
            or (target == "request_id" and live.request_id == request.request_id)
        ]

    def names(self, engine_id: int) -> Names | None:
        """Those of a request that a step names, live or just ended."""
        return self._names_by_id.get(engine_id)
