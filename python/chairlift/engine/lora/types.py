"""Values that describe adapters (LoRA); this module loads no torch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

MAX_TENANTS: Final = 1024
"""Tenants of one adapter."""


class AdapterState(StrEnum):
    """What becomes of a request that names an adapter."""

    LOADING = "loading"
    """It is refused, so far."""
    READY = "ready"
    UNLOADING = "unloading"
    """New ones are refused; those that use it go on."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class AdapterUse:
    """The adapter of a request; while one is kept, the adapter makes no room for another."""

    name: str
    slot: int
    generation: int
    """Number of its load."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter as it is listed."""

    name: str
    slot: int
    generation: int
    state: AdapterState
    rank: int
    """0 until it is read."""
    num_bytes: int
    tenants: tuple[str, ...]
    """Those that may use it; none is all."""


class AdapterNames(Protocol):
    """Adapters by name."""

    def find(self, name: str, tenant: str) -> AdapterUse:
        """Return the adapter of a request.

        Raises:
            RequestError: There is none that the tenant may use.
        """
