"""Tickets: what a prefill server gives for a prompt that it has computed.

A ticket pins no block. It lets the call that shows it use the prefix cache of the tenant and the
salt that the prompt was computed for, for that prompt alone. The caller has to know all three.
"""

import hashlib
import hmac
import secrets
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from chairlift.engine.prepare.block_source import scope_of
from chairlift.engine.prepare.prepared import Prepared

MAX_TICKETS: Final = 4096
"""All tenants together; beyond it the tenant that has most of them loses its oldest."""
TICKET_S: Final = 60.0
"""How long a ticket is good for."""
_NUM_RANDOM_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Holder:
    """The tenant and the salt that a prompt was computed for."""

    tenant: str
    salt: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Given:
    holder: Holder
    digest: bytes = field(repr=False)
    """The hash of the tokens of all full blocks of the prompt, and one more."""
    until: float
    """Monotonic seconds."""


class Tickets:
    """The tickets of one prefill server; for one event loop."""

    def __init__(self, block_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without tickets.

        Args:
            block_size: Tokens of a block.
            clock: Monotonic seconds.
        """
        self._block_size = block_size
        self._clock = clock
        self._given: dict[str, _Given] = {}
        """By ticket, in the order in which they end."""
        self._counts: Counter[str] = Counter()
        """The number of each tenant that has any."""

    def __len__(self) -> int:
        return len(self._given)

    def give(self, prepared: Prepared) -> str:
        """Return a ticket for a prompt that was computed."""
        self._make_room()
        size, prompt = self._block_size, prepared.prompt
        num_tokens = max(0, len(prompt) - 1) // size * size + 1
        ticket = secrets.token_urlsafe(_NUM_RANDOM_BYTES)
        holder = Holder(prepared.tenant, prepared.prefix_cache.salt)
        until = self._clock() + TICKET_S
        self._given[ticket] = _Given(holder, _digest(prompt[:num_tokens]), until)
        self._counts[holder.tenant] += 1
        return ticket

    def find(self, ticket: str, scope: str, token_ids: Sequence[int]) -> Holder | None:
        """Return for which tenant and salt a prompt was computed; None if that is not known.

        Args:
            ticket: Opens it.
            scope: `scope_of` the caller's tenant and salt with the ticket as the key.
            token_ids: The tokens of all full blocks of the prompt, and one more.
        """
        given = self._given.get(ticket)
        if given is None or given.until <= self._clock():
            return None
        expected = scope_of(given.holder.tenant, given.holder.salt, ticket.encode())
        is_same = hmac.compare_digest(expected.encode(), scope.encode(errors="replace"))
        return given.holder if is_same and given.digest == _digest(token_ids) else None

    def _make_room(self) -> None:
        """Forget tickets that have ended, and one more where there are too many."""
        now = self._clock()
        while self._given:
            ticket, given = next(iter(self._given.items()))
            if given.until > now:
                break
            self._forget(ticket)
        if len(self._given) >= MAX_TICKETS:
            tenant = max(self._counts, key=self._counts.__getitem__)
            oldest = (t for t, given in self._given.items() if given.holder.tenant == tenant)
            self._forget(next(oldest))

    def _forget(self, ticket: str) -> None:
        tenant = self._given.pop(ticket).holder.tenant
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]


def _digest(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("I", token_ids).tobytes(), digest_size=16).digest()
