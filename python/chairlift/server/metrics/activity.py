"""Outcomes of each tenant's requests in the last minute, counted per request, not per token."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chairlift.api.errors import Reason
from chairlift.api.recent import Recent, size_class
from chairlift.api.types import FinishReason
from chairlift.server.metrics.deliveries import Deliveries
from chairlift.server.metrics.tenants import OTHER, TenantLabels


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """One tenant."""

    tenant: str
    num_generated_tokens: int
    """Since the start."""
    first_token: Counter[int]
    """Requests of the last minute by the `size_class` of their time to the first token."""
    reasons: Counter[FinishReason | Reason]
    """Requests of the last minute by the reason of their end or refusal."""


@dataclass(frozen=True, slots=True)
class _Windows:
    first_token: Recent[int] = field(default_factory=Recent)
    reasons: Recent[FinishReason | Reason] = field(default_factory=Recent)


class Activity:
    """Counts of the tenants that have a label, and of all others together."""

    def __init__(self, tenant_label: TenantLabels, deliveries: Deliveries) -> None:
        """Start with no tenant.

        Args:
            tenant_label: Returns the label of a tenant.
            deliveries: The tokens delivered, by label.
        """
        self._tenant_label = tenant_label
        self._deliveries = deliveries
        self._windows: dict[str, _Windows] = {}

    def started(self, tenant: str, seconds: float) -> None:
        """Note the seconds from the arrival of a request to the delivery of its first token."""
        self._of(tenant).first_token.add(size_class(seconds))

    def ended(self, tenant: str, reason: FinishReason | Reason) -> None:
        """Count a request that ended or was refused."""
        self._of(tenant).reasons.add(reason)

    def of(self, tenant: str) -> Iterator[TenantFigures]:
        """Return the figures that a tenant may see: its own, if it has a label."""
        if tenant in self._windows and tenant != OTHER:
            yield self._figures(tenant)

    def all(self) -> Iterator[TenantFigures]:
        """Return the figures of every label."""
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
