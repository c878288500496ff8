"""What every call of a server shares."""

from dataclasses import dataclass

from chairlift.metrics import Metrics
from chairlift.server.auth import Authenticator
from chairlift.server.backlog import Backlog
from chairlift.server.batch_end import BatchEnd
from chairlift.server.gate import Gate
from chairlift.server.live import LiveRequests
from chairlift.server.outbox import Outboxes
from chairlift.server.quotas import Quotas


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What every call of a server shares."""

    gate: Gate
    model_names: tuple[str, ...]
    """What requests may call the model."""
    authenticator: Authenticator
    quotas: Quotas
    outboxes: Outboxes
    backlog: Backlog
    live: LiveRequests
    metrics: Metrics
    batch_end: BatchEnd
    write_timeout_s: float
    """A call whose client reads nothing for so long ends."""
