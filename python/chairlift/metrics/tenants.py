"""Names of tenants as label values: never more of them than somebody answers for."""

from typing import Final

MOST_NAMES: Final = 100
"""From callers; each name is a time series for as long as the server runs."""

OTHER: Final = "other"
"""The label of all tenants that came after `MOST_NAMES` others."""


class TenantLabels:
    """Gives each tenant a label, its own name while there is room."""

    def __init__(self, *, is_closed: bool) -> None:
        """Starts with no tenant.

        Args:
            is_closed: Whether the names come from a list of the operator, so that all have room.
        """
        self._is_closed = is_closed
        self._names: set[str] = set()

    def __call__(self, tenant: str) -> str:
        """The label of a tenant; empty where callers have no name."""
        if tenant not in self._names:
            if not self._is_closed and len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add(tenant)
        return tenant
