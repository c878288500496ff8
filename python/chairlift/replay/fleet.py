"""Runs a trace over a fleet: many real schedulers behind the real router, on a virtual clock.

The loop is the core's (`chairlift-fleet`); with one replica it does what `replay` does, to the bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.api.errors import ConfigError
from chairlift.api.figures import Run
from chairlift.core.scheduler import nanoseconds
from chairlift.replay.day import by_day
from chairlift.replay.fleet_options import FleetOptions
from chairlift.replay.format import Header, StepTime
from chairlift.replay.run import output_lengths, scheduler_of
from chairlift.replay.trace import Request, Trace

_NS: Final = 1e-9

_EVENTS_AT_ONCE: Final = 20_000
"""Events between two looks at signals: a fraction of a second."""

_MAX_GAPS: Final = 10_000_000
"""With more gaps between tokens, every so many count."""

_MIN_QUEUE: Final = 256
"""Cap of a replica's queue at least, where the trace has one for all requests."""

_QUEUE_SHARE: Final = 4
"""The cap is so many times the replica's part of the requests: each takes memory."""

INFINITELY_FAST: Final = StepTime(fixed_s=0, per_token_s=0, per_context_token_s=0)


@dataclass(frozen=True, slots=True)
class FleetReplayed:
    """The result of a run over a fleet."""

    run: Run
    unanswered: dict[str, int]
    """Requests that were refused or failed, by reason, in the order of their reasons."""
    hit_rate: float
    """Blocks of prompts that were found, over those that could be."""
    ceiling: float
    """The same of one cache without bounds."""
    replica_tokens: NDArray[np.int64]
    """`[num_replicas]` tokens that each computed."""
    replica_of: NDArray[np.int64]
    """`[num_requests]` the replica that each request was sent to last."""
    num_cached: NDArray[np.int64]
    """`[num_requests]` tokens of each prompt that were found."""
    num_resent: int
    """Requests that were sent again after the loss of their replica."""
    num_losses: int
    """Replicas that were lost."""
    max_replicas: int
    """Replicas that were there at once, at most."""
    replica_s: float
    """Time that each replica was there, summed."""
    num_transferred_tokens: int
    """Tokens of prompts that other replicas computed."""
    num_whole: int
    """Prompts that other replicas computed."""
    num_partial: int
    """Prompts of which blocks did not come in time."""
    num_local: int
    """Long prompts that were computed where they are, since too many waited."""


def replay_fleet(
    trace: Trace, settings: Header, step_time: StepTime, options: FleetOptions, *, seed: int
) -> FleetReplayed:
    """Run a trace over a fleet; the same arguments give the same result on every machine.

    Args:
        trace: What arrives when, and how long its answers are.
        settings: The settings of each replica's scheduler.
        step_time: Moves the clock of each replica.
        options: The replicas and their router.
        seed: The seed of all draws: ties of the router, and losses of replicas.

    Raises:
        ConfigError: A setting is out of range.
    """
    fleet = _fleet(trace, settings, step_time, options, seed)
    while fleet.run(_EVENTS_AT_ONCE):
        pass
    return _result(fleet, trace, _arrivals(trace, options))


def fleet_settings(
    settings: Header, options: FleetOptions, num_requests: int, *, has_queue: bool
) -> Header:
    """Return the settings of each replica.

    Args:
        settings: The trace's, with options in their place.
        options: The fleet.
        num_requests: Requests of the trace.
        has_queue: Whether the cap of the queue was asked for; drawn traces have one for all of
            their requests, and a replica takes memory for each.
    """
    changes: dict[str, int] = {}
    if options.blocks_per_replica is not None:
        # The null block is none of them.
        changes["num_kv_blocks"] = options.blocks_per_replica + 1
    if options.replicas > 1 and not has_queue:
        share = max(_MIN_QUEUE, _QUEUE_SHARE * num_requests // options.replicas)
        changes["max_queued_requests"] = min(settings.max_queued_requests, share)
    return settings.model_copy(update=changes)


def _fleet(
    trace: Trace, settings: Header, step_time: StepTime, options: FleetOptions, seed: int
) -> _core.Fleet:
    names = [request.blocks for request in trace.requests]
    failures, autoscale = None, None
    if options.failures_per_hour is not None:
        delays = (_ns(options.detection_s), _ns(options.restart_s))
        failures = (options.failures_per_hour, *delays)
    if options.min_replicas is not None:
        delays = (_ns(options.scale_up_delay_s), _ns(options.scale_down_delay_s))
        autoscale = (options.min_replicas, options.target_requests, *delays, _ns(options.restart_s))
    roles = None
    if options.roles is not None:
        roles = (options.num_prefill, options.transfer_per_token_s)
    try:
        return _core.Fleet(
            scheduler_of(settings),
            np.array(list(_columns(trace, _arrivals(trace, options))), dtype=np.int64).ravel(),
            np.concatenate(names).view(np.int64),
            trace.flushes if settings.batching.value == "static" else [],
            tokens_per_name=trace.tokens_per_name,
            step_time=(step_time.fixed_s, step_time.per_token_s, step_time.per_context_token_s),
            num_replicas=options.replicas,
            routing=options.routing.value,
            seed=seed,
            num_routers=options.routers,
            lag=_ns(options.router_lag_s),
            report_interval=nanoseconds(options.report_interval_s),
            failures=failures,
            autoscale=autoscale,
            roles=roles,
        )
    except _core.ConfigError as error:
        raise ConfigError(str(error)) from None


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _arrivals(trace: Trace, options: FleetOptions) -> NDArray[np.int64]:
    arrivals = [request.arrival for request in trace.requests]
    if options.day_s is None:
        return np.array(arrivals, dtype=np.int64)
    return by_day(arrivals, options.day_s)


def _columns(trace: Trace, arrivals: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    lengths = output_lengths(trace.requests)
    for request, length, arrival in zip(trace.requests, lengths, arrivals.tolist(), strict=True):
        cancelled = request.cancelled
        if cancelled is not None:
            cancelled += arrival - request.arrival
        yield (
            *(arrival, request.num_prompt, length, len(request.blocks), request.tenant),
            *_delays(request),
            *(request.priority, request.cache_read, request.cache_write, _or_none(cancelled)),
        )


def _delays(request: Request) -> tuple[int, int, int]:
    return (
        _or_none(request.queue_timeout),
        _or_none(request.time_to_first_token),
        _or_none(request.time_limit),
    )


def _or_none(value: int | None) -> int:
    return -1 if value is None else value


def _result(fleet: _core.Fleet, trace: Trace, arrivals: NDArray[np.int64]) -> FleetReplayed:
    done = fleet.result()
    progress = np.frombuffer(done.progress, dtype=np.int64).reshape(-1, 5).T
    first_token, ended, num_output, num_cached, replica_of = progress
    answered, begun = ended >= 0, first_token >= 0
    start = int(arrivals.min())
    last = int(ended[answered].max(initial=start))
    prompts = np.array([request.num_prompt for request in trace.requests], dtype=np.int64)
    timed = answered & begun & (num_output > 1)
    run = Run(
        num_requests=int(answered.sum()),
        num_prompt_tokens=int(prompts[answered].sum()),
        num_output_tokens=int(num_output.sum()),
        seconds=(last - start) * _NS,
        num_steps=done.num_steps,
        num_rows=done.num_rows,
        num_tokens=sum(done.replica_tokens),
        kv_waste=done.kv_waste,
        ttft_s=(first_token - arrivals)[begun].astype(np.float64) * _NS,
        tpot_s=(ended - first_token)[timed] / (num_output[timed] - 1) * _NS,
        itl_s=_gaps(done.gaps).astype(np.float64) * _NS,
        latency_s=(ended - arrivals)[answered].astype(np.float64) * _NS,
    )
    names = max(1, done.num_names)
    return FleetReplayed(
        run=run,
        unanswered=dict(sorted(done.unanswered.items())),
        hit_rate=done.num_found / names,
        ceiling=fleet.ceiling() / names,
        replica_tokens=np.array(done.replica_tokens, dtype=np.int64),
        replica_of=replica_of,
        num_cached=num_cached,
        num_resent=done.num_resent,
        num_losses=done.num_losses,
        max_replicas=done.max_replicas,
        replica_s=done.replica_s,
        num_transferred_tokens=done.num_transferred_tokens,
        num_whole=done.num_whole,
        num_partial=done.num_partial,
        num_local=done.num_local,
    )


def _gaps(packed: bytes) -> NDArray[np.int64]:
    values, counts = np.frombuffer(packed, dtype=np.int64).reshape(-1, 2).T
    every = int(counts.sum()) // _MAX_GAPS + 1
    return np.sort(np.repeat(values, -(-counts // every)))
