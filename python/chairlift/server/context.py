"""The state that all calls of a server share."""

from dataclasses import dataclass

from chairlift.metrics import Metrics
from chairlift.server.auth import Authenticator
from chairlift.server.backlog import Backlog
from chairlift.server.gate import Gate
from chairlift.server.outbox import Outboxes
from chairlift.server.quotas import Quotas
from chairlift.server.registry import Registry
from chairlift.server.resumables import Resumables
from chairlift.server.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class ServerContext:
    """One per server; every service reads it."""

    gate: Gate
    model_names: tuple[str, ...]
    """Names by which requests may call the model."""
    authenticator: Authenticator
    quotas: Quotas
    outboxes: Outboxes
    backlog: Backlog
    live: Registry
    resumables: Resumables
    metrics: Metrics
    telemetry: Telemetry
    write_timeout_s: float
    """A call whose client reads nothing for this long ends."""
