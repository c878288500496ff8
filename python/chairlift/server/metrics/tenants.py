"""Names of tenants as label values, bounded in number unless the operator lists them."""

from typing import Final

MAX_NAMES: Final = 100
"""Most names that callers bring; each is a time series for as long as the server runs."""

OTHER: Final = "other"
"""The label of all tenants after the first `MAX_NAMES`."""


class TenantLabels:
    """The label of each tenant: its own name while there is room."""

    def __init__(self, *, is_closed: bool) -> None:
        """Start with no tenant.

        Args:
            is_closed: Whether the operator lists the names, so that all have room.
        """
        self._is_closed = is_closed
        self._names: set[str] = set()

    def __call__(self, tenant: str) -> str:
        """Return the label of a tenant; empty if callers have no name."""
        if tenant not in self._names:
            if not self._is_closed and len(self._names) >= MAX_NAMES:
                return OTHER
            self._names.add(tenant)
        return tenant
