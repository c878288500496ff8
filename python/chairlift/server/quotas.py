"""What one tenant may take of the server, so that none takes it from the others."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chairlift.errors import Reason, RequestError

_RETRY_S: Final = 1.0
_SWEEP_FROM: Final = 1024
"""Fewer tenants than this are all remembered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The quotas of every tenant, and what all have together; None is no limit."""

    max_requests: int | None = None
    """Most live requests."""
    max_queued_tokens: int | None = None
    """Most prompt tokens of requests that wait for their first token."""
    rate: float | None = None
    """Requests per second, on average; as many may come at once, and at least one."""
    total_queued_tokens: int | None = None
    """Most prompt tokens of all tenants' requests that wait for their first token."""


@dataclass(slots=True, eq=False)
class _Total:
    """Of all tenants."""

    num_queued_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Account:
    bucket: float
    """Requests that may come now; filled up to the burst at `rate` per second."""
    filled_at: float
    num_live: int = 0
    num_queued_tokens: int = 0


class Seat:
    """A request's place in its tenant's account; every method may be called again."""

    def __init__(self, account: _Account, total: _Total, limits: Limits) -> None:
        self._account = account
        self._total = total
        self._limits = limits
        self._num_tokens = 0
        self._is_taken = True

    def queue(self, num_tokens: int) -> None:
        """Counts the prompt as waiting.

        Raises:
            RequestError: Too many tokens of this tenant, or of all, wait already, or this prompt is
                too long even for an empty queue.
        """
        limits, account, total = self._limits, self._account, self._total
        name, most = "tenant_max_queued_tokens", limits.max_queued_tokens
        _check(name, most, account.num_queued_tokens, num_tokens, Reason.QUOTA)
        name, most = "max_queued_tokens", limits.total_queued_tokens
        _check(name, most, total.num_queued_tokens, num_tokens, Reason.QUEUE_FULL)
        self._num_tokens = num_tokens
        self._account.num_queued_tokens += num_tokens
        self._total.num_queued_tokens += num_tokens

    def start(self) -> None:
        """The request no longer waits."""
        self._account.num_queued_tokens -= self._num_tokens
        self._total.num_queued_tokens -= self._num_tokens
        self._num_tokens = 0

    def leave(self) -> None:
        """The request has ended."""
        self.start()
        self._account.num_live -= self._is_taken
        self._is_taken = False


def _check(name: str, most: int | None, waiting: int, num_tokens: int, reason: Reason) -> None:
    """Raises RequestError if more than `most` tokens would wait."""
    if most is None:
        return
    if num_tokens > most:
        message = f"the prompt has {num_tokens} tokens, {name} is {most}"
        raise RequestError(Reason.PROMPT_TOO_LONG, message, field="prompt")
    if waiting + num_tokens > most:
        quota = "quota " if reason is Reason.QUOTA else ""
        message = f"{quota}{name}: {waiting} of {most} tokens wait already"
        raise RequestError(reason, message, retry_after_s=_RETRY_S)


class Quotas:
    """The accounts of all tenants; for one event loop."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with no tenant.

        Args:
            limits: Of each tenant.
            clock: Gives seconds.
        """
        self._limits = limits
        self._clock = clock
        self._burst = max(limits.rate or 0.0, 1.0)
        self._accounts: dict[str, _Account] = {}
        self._total = _Total()
        self._sweep_from = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, tenant: str) -> Seat:
        """Takes a request; its seat must be left whatever becomes of it.

        Raises:
            RequestError: The tenant has too many live requests, or they come too fast.
        """
        limits, account = self._limits, self._account(tenant)
        if limits.max_requests is not None and account.num_live >= limits.max_requests:
            message = f"quota tenant_max_requests: {account.num_live} requests are live already"
            raise RequestError(Reason.QUOTA, message, retry_after_s=_RETRY_S)
        if limits.rate is not None:
            if account.bucket < 1.0:
                message = f"quota tenant_rate: more than {limits.rate:g} requests per second"
                wait_s = (1.0 - account.bucket) / limits.rate
                raise RequestError(Reason.QUOTA, message, retry_after_s=wait_s)
            account.bucket -= 1.0
        account.num_live += 1
        return Seat(account, self._total, limits)

    def _account(self, tenant: str) -> _Account:
        now = self._clock()
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self._sweep_from:
                self._sweep(now)
            account = self._accounts[tenant] = _Account(self._burst, now)
        self._fill(account, now)
        return account

    def _fill(self, account: _Account, now: float) -> None:
        gained = (now - account.filled_at) * (self._limits.rate or 0.0)
        account.bucket = min(self._burst, account.bucket + gained)
        account.filled_at = now

    def _sweep(self, now: float) -> None:
        """Forgets tenants that a new account would treat no better: names come from outside."""
        for tenant, account in list(self._accounts.items()):
            self._fill(account, now)
            if account.num_live == 0 and account.bucket >= self._burst:
                del self._accounts[tenant]
        self._sweep_from = max(_SWEEP_FROM, 2 * len(self._accounts))
