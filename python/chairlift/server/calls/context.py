"""The state that all calls of a server share."""

from dataclasses import dataclass

from chairlift.server.calls.adapter_loads import AdapterLoads
from chairlift.server.calls.outbox import Outboxes
from chairlift.server.calls.registry import Registry
from chairlift.server.calls.resumables import Resumables
from chairlift.server.calls.telemetry import Telemetry
from chairlift.server.handoff.handoffs import Handoffs
from chairlift.server.kv_events.kv_events import KvEvents
from chairlift.server.limits.backlog import Backlog
from chairlift.server.limits.gate import Gate
from chairlift.server.limits.quotas import Quotas
from chairlift.server.metrics import Metrics
from chairlift.server.security.auth import Authenticator


@dataclass(frozen=True, slots=True)
class ServerContext:
    """One per server; every service reads it."""

    gate: Gate
    model_names: tuple[str, ...]
    """Names by which requests may call the model."""
    authenticator: Authenticator
    adapter_loads: AdapterLoads
    quotas: Quotas
    outboxes: Outboxes
    backlog: Backlog
    live: Registry
    resumables: Resumables
    metrics: Metrics
    telemetry: Telemetry
    kv_events: KvEvents
    """Those of the tenants that share theirs."""
    handoffs: Handoffs
    """What its role makes of `kv_transfer_params`."""
    write_timeout_s: float
    """A call whose client reads nothing for this long ends."""

    def die(self) -> None:
        """Refuse requests for good, and wake every call so that it sees this."""
        self.gate.die()
        self.outboxes.wake()
