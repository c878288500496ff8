"""Quotas: how much of the server one tenant may use."""

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from chairlift.api import types
from chairlift.api.errors import Reason, RequestError
from chairlift.server.config import ServerConfig
from chairlift.server.limits.shares import Capacity, Share, Shares, holders_of

_RETRY_S: Final = 1.0
_MAX_SEQUENCES: Final = 1 << 16
"""More than any request may ask for: such a number is refused as a wrong field."""
_SWEEP_FROM: Final = 1024
"""Number of tenants from which on idle ones are forgotten."""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The quotas of each tenant, and those of all tenants together; None is no limit."""

    max_requests: int | None = None
    """Most live requests; one with several sequences counts as so many."""
    max_queued_tokens: int | None = None
    """Most prompt tokens of requests that wait for their first token."""
    rate: float | None = None
    """Requests per second, on average, counted likewise; a burst may have as many, at least one."""
    total_queued_tokens: int | None = None
    """Most prompt tokens of all tenants' requests that wait for their first token."""

    @classmethod
    def of(cls, config: ServerConfig) -> "QuotaLimits":
        """Return the limits in a server's settings."""
        return cls(
            config.tenant_max_requests,
            config.tenant_max_queued_tokens,
            config.tenant_rate,
            config.max_queued_tokens,
        )


class Sequences(NamedTuple):
    """What quotas count: sequences that need a row each."""

    num: int = 1
    field: str = "sampling.n"
    """The field that asks for so many."""
    name: str = "n"
    """The same, as a message names it."""


ONE: Final = Sequences()


def sequences_of(request: types.Request) -> Sequences:
    """Return the sequences of a request; a number that is no number counts as one."""
    return Sequences(_number(request.sampling.n))


def _number(value: object) -> int:
    if isinstance(value, int) and 1 <= value <= _MAX_SEQUENCES:
        return value
    return 1


@dataclass(slots=True, eq=False)
class _Total:
    """The usage of all tenants."""

    num_queued_tokens: int = 0


@dataclass(slots=True, eq=False)
class _TenantUsage:
    bucket: float
    """Tokens of the bucket, one per sequence; filled up to the burst at `rate` per second."""
    filled_at: float
    num_live: int = 0
    num_queued_tokens: int = 0


class QuotaLease:
    """The part of a tenant's quotas that one request holds; every method may be called again."""

    def __init__(
        self,
        usage: _TenantUsage,
        total: _Total,
        limits: QuotaLimits,
        take: Callable[[int], Share],
        num_sequences: int = 1,
    ) -> None:
        self._take = take
        self._share: Share | None = None
        self._usage = usage
        self._total = total
        self._limits = limits
        self._num_tokens = 0
        self._num_sequences = num_sequences

    def reserve(self, num_tokens: int, num_answers: int = 1) -> None:
        """Count the answers as live and the prompt as waiting.

        Raises:
            RequestError: The tenant or the connection has its share of all live requests, too many
                tokens of this tenant, or of all tenants, wait already, or the prompt is too long
                even for an empty queue.
        """
        limits, usage, total = self._limits, self._usage, self._total
        name, limit = "tenant_max_queued_tokens", limits.max_queued_tokens
        _check(name, limit, usage.num_queued_tokens, num_tokens, Reason.QUOTA_EXCEEDED)
        name, limit = "max_queued_tokens", limits.total_queued_tokens
        _check(name, limit, total.num_queued_tokens, num_tokens, Reason.QUEUE_FULL)
        self._share = self._take(num_answers)
        self._num_tokens = num_tokens
        self._usage.num_queued_tokens += num_tokens
        self._total.num_queued_tokens += num_tokens

    def start(self) -> None:
        """Discount the prompt: the request no longer waits."""
        self._usage.num_queued_tokens -= self._num_tokens
        self._total.num_queued_tokens -= self._num_tokens
        self._num_tokens = 0

    def release(self) -> None:
        """Discount the request: it has ended."""
        self.start()
        if self._share is not None:
            self._share.release()
        self._usage.num_live -= self._num_sequences
        self._num_sequences = 0


def _check(name: str, limit: int | None, waiting: int, num_tokens: int, reason: Reason) -> None:
    """Raise RequestError if more than `limit` tokens would wait."""
    if limit is None:
        return
    if num_tokens > limit:
        message = f"the prompt has {num_tokens} tokens, {name} is {limit}"
        raise RequestError(Reason.PROMPT_TOO_LONG, message, field="prompt")
    if waiting + num_tokens > limit:
        quota = "quota " if reason is Reason.QUOTA_EXCEEDED else ""
        message = f"{quota}{name}: {waiting} of {limit} tokens wait already"
        raise RequestError(reason, message, retry_after_s=_RETRY_S)


class Quotas:
    """The usage of every tenant; for one event loop."""

    def __init__(
        self,
        limits: QuotaLimits,
        clock: Callable[[], float] = time.monotonic,
        capacity: Callable[[int], Capacity] = lambda _num: Capacity(sys.maxsize, sys.maxsize),
    ) -> None:
        """Start without tenants.

        Args:
            limits: The quotas.
            clock: Returns seconds.
            capacity: Returns the capacity of the queue while a number of answers are live, and how
                many of them may have a row instead.
        """
        self._limits = limits
        self._clock = clock
        self._shares = Shares("live requests", 0, capacity)
        self._burst = max(limits.rate or 0.0, 1.0)
        self._usages: dict[str, _TenantUsage] = {}
        self._total = _Total()
        self._sweep_from = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._usages)

    @property
    def max_requests(self) -> int:
        """Most live requests of a tenant."""
        limit = self._limits.max_requests
        return sys.maxsize if limit is None else limit

    def check_call(self, num_live: int, num_all: int, field: str) -> None:
        """Check that the quotas can ever admit the requests of one call.

        Args:
            num_live: Sequences that are live at a time.
            num_all: Sequences of all requests; they come at once.
            field: The field that lists the requests.

        Raises:
            RequestError: They are more than a quota, so that no retry succeeds.
        """
        limit, limits = self.max_requests, self._limits
        if num_live > limit:
            message = f"{field}: quota tenant_max_requests is {limit}, got {num_live} at once"
            raise RequestError(Reason.QUOTA_EXCEEDED, message, field=field)
        if limits.rate is not None and num_all > self._burst:
            message = (
                f"{field}: quota tenant_rate is {limits.rate:g} requests per second,"
                f" got {num_all} at once"
            )
            raise RequestError(Reason.QUOTA_EXCEEDED, message, field=field)

    def acquire(self, tenant: str, connection: str = "", sequences: Sequences = ONE) -> QuotaLease:
        """Acquire a lease for a request; the caller must release it.

        Args:
            tenant: Tenant of the request.
            connection: Connection of its call.
            sequences: The request's; each counts as a request.

        Raises:
            RequestError: The tenant has too many live requests, or sends them too fast; or the
                request alone has more sequences than a quota.
        """
        num = sequences.num
        if num > 1:
            self.check_call(num, num, sequences.field)
        limits, usage = self._limits, self._usage_of(tenant)
        asks = f", and {sequences.name} asks for {num}" if num > 1 else ""
        if usage.num_live + num > self.max_requests:
            live = usage.num_live
            message = f"quota tenant_max_requests: {live} requests are live already{asks}"
            raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=_RETRY_S)
        if limits.rate is not None:
            if usage.bucket < num:
                message = f"quota tenant_rate: more than {limits.rate:g} requests per second{asks}"
                wait_s = (num - usage.bucket) / limits.rate
                raise RequestError(Reason.QUOTA_EXCEEDED, message, retry_after_s=wait_s)
            usage.bucket -= num
        usage.num_live += num
        take = functools.partial(self._shares.take, holders_of(connection, tenant))
        return QuotaLease(usage, self._total, limits, take, num)

    def _usage_of(self, tenant: str) -> _TenantUsage:
        now = self._clock()
        usage = self._usages.get(tenant)
        if usage is None:
            if len(self._usages) >= self._sweep_from:
                self._sweep(now)
            usage = self._usages[tenant] = _TenantUsage(self._burst, now)
        self._fill(usage, now)
        return usage

    def _fill(self, usage: _TenantUsage, now: float) -> None:
        gained = (now - usage.filled_at) * (self._limits.rate or 0.0)
        usage.bucket = min(self._burst, usage.bucket + gained)
        usage.filled_at = now

    def _sweep(self, now: float) -> None:
        """Forget tenants with a full bucket and no live request: clients choose the names."""
        for tenant, usage in list(self._usages.items()):
            self._fill(usage, now)
            if usage.num_live == 0 and usage.bucket >= self._burst:
                del self._usages[tenant]
        self._sweep_from = max(_SWEEP_FROM, 2 * len(self._usages))
