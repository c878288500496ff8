"""What became of each tenant's requests in the last minute; Python sees requests, not tokens."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chairlift.errors import Reason
from chairlift.metrics.deliveries import Deliveries
from chairlift.metrics.tenants import OTHER, TenantLabels
from chairlift.recent import Recent, size_class
from chairlift.types import FinishReason


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One tenant."""

    tenant: str
    num_generated_tokens: int
    """Since the start."""
    first_token: Counter[int]
    """Requests of the last minute by the `size_class` of their time to the first token."""
    reasons: Counter[FinishReason | Reason]
    """Requests of the last minute by how they ended or why they were refused."""


@dataclass(frozen=True, slots=True)
class _Windows:
    first_token: Recent[int] = field(default_factory=Recent)
    reasons: Recent[FinishReason | Reason] = field(default_factory=Recent)


class Activity:
    """Counts of the tenants that have a label of their own, and of all others together."""

    def __init__(self, tenant_label: TenantLabels, deliveries: Deliveries) -> None:
        """Starts with no tenant.

        Args:
            tenant_label: Names tenants.
            deliveries: Counts tokens by that name.
        """
        self._tenant_label = tenant_label
        self._deliveries = deliveries
        self._windows: dict[str, _Windows] = {}

    def started(self, tenant: str, seconds: float) -> None:
        """A request's first token was delivered so long after its arrival."""
        self._of(tenant).first_token.add(size_class(seconds))

    def ended(self, tenant: str, reason: FinishReason | Reason) -> None:
        """A request ended, or was refused."""
        self._of(tenant).reasons.add(reason)

    def of(self, tenant: str) -> Iterator[TenantFigures]:
        """Gives what a tenant may see: its own figures, if it has any and a label of its own."""
        if tenant in self._windows and tenant != OTHER:
            yield self._figures(tenant)

    def all(self) -> Iterator[TenantFigures]:
        """Gives the figures of every label."""
        for label in self._windows:
            yield self._figures(label)

    def _of(self, tenant: str) -> _Windows:
        return self._windows.setdefault(self._tenant_label(tenant), _Windows())

    def _figures(self, label: str) -> TenantFigures:
        windows = self._windows[label]
        return TenantFigures(
            tenant=label,
            num_generated_tokens=self._deliveries.tokens.get(label, 0),
            first_token=windows.first_token.counts(),
            reasons=windows.reasons.counts(),
        )
