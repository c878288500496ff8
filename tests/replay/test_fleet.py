"""One replica does what a replay does; of many, the caches hold what an independent cache holds."""

from collections import Counter, OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.replay.day import by_day
from chairlift.replay.fleet import INFINITELY_FAST, FleetReplayed, fleet_settings, replay_fleet
from chairlift.replay.fleet_options import FleetOptions, Routing
from chairlift.replay.format import StepTime
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import replay
from chairlift.replay.trace import Trace

STEP = StepTime(fixed_s=0.004, per_token_s=3e-5, per_context_token_s=3e-8)
ONE = FleetOptions(replicas=1)


def varied(name: str = "prefix", num_requests: int = 150) -> Trace:
    """A trace with all that a request may have."""
    random = np.random.default_rng(5)
    trace = draw_trace(name, num_requests=num_requests, rate_per_s=40, seed=2, scale=2)
    for number, request in enumerate(trace.requests):
        request.tenant = int(random.integers(3))
        request.priority = int(random.integers(-1, 2))
        request.cache_read, request.cache_write = number % 7 != 3, number % 5 != 4
        if number % 6 == 1:
            request.queue_timeout = int(random.integers(1, 10**9))
        if number % 6 == 2:
            request.time_limit = int(random.integers(10**7, 3 * 10**9))
        if number % 6 == 3:
            request.time_to_first_token = 10**8
        if number % 9 == 4:
            request.cancelled = request.arrival + int(random.integers(10**8))
            request.num_output = None
    return trace


def small(trace: Trace, **changes: object) -> Trace:
    """The trace with a scheduler that has too little of everything."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_kv_blocks": 400, **changes}
    return Trace(trace.header.model_copy(update=settings), trace.requests, flushes=trace.flushes)


@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("routing", list(Routing))
def test_one_replica_does_what_a_replay_does(batching: Batching, routing: Routing) -> None:
    trace = small(varied(), batching=batching, max_queued_requests=60)
    alone = replay(trace, trace.header, STEP)
    fleet = replay_fleet(
        trace, trace.header, STEP, FleetOptions(replicas=1, routing=routing), seed=1
    )
    assert set(alone.unanswered) == {"QUEUE_FULL", "QUEUE_TIMEOUT"}
    assert fleet.unanswered == alone.unanswered
    one, other = alone.run, fleet.run
    for name in ("num_requests", "num_output_tokens", "num_steps", "num_rows", "num_tokens"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.seconds, one.kv_waste) == (other.seconds, other.kv_waste)
    assert np.array_equal(one.ttft_s, other.ttft_s)
    assert np.array_equal(one.latency_s, other.latency_s)
    assert np.array_equal(np.sort(one.itl_s), np.sort(other.itl_s))


def test_answers_that_later_prompts_repeat_are_found_as_in_a_replay() -> None:
    trace = draw_trace("prefix", num_requests=60, rate_per_s=2, scale=4)
    for first, later in zip(trace.requests[:30], trace.requests[30:], strict=True):
        names = np.arange(10, dtype=np.uint64) + np.uint64(1000 * first.arrival)
        first.blocks, first.num_prompt, first.num_output, first.max_tokens = names, 70, 90, 90
        later.blocks, later.num_prompt = names, 165
    alone = replay(trace, trace.header, STEP)
    fleet = replay_fleet(trace, trace.header, STEP, ONE, seed=0)
    assert alone.num_prefix_hits >= 30 * 9
    assert fleet.num_cached.sum() == alone.num_prefix_hits * trace.header.block_size


def independent_hits(trace: Trace, done: FleetReplayed, num_blocks: int) -> float:
    """The share of blocks that a plain LRU in each replica finds, one request at a time."""
    size = trace.header.block_size
    caches: dict[int, OrderedDict[tuple[int, ...], None]] = {}
    found = asked = 0
    for index, request in enumerate(trace.requests):
        cache = caches.setdefault(int(done.replica_of[index]), OrderedDict())
        num_output = request.num_output or 0
        names = [(int(name),) for name in request.blocks[: request.num_prompt // size]]
        # What has no name is of this request alone; the last token is never written.
        count = (request.num_prompt + num_output - 1) // size
        names += [(index, place) for place in range(len(names), count)]
        findable = (request.num_prompt - 1) // size
        hits = 0
        while hits < findable and names[hits] in cache:
            hits += 1
        found, asked = found + hits, asked + findable
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return found / asked


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("replicas", [1, 4])
def test_hits_are_those_of_an_independent_cache(routing: Routing, replicas: int) -> None:
    trace = draw_trace("long", num_requests=600, rate_per_s=0.5, scale=8, seed=3)
    for request in trace.requests:
        request.num_output = request.max_tokens = min(request.max_tokens, 20)
    options = FleetOptions(
        replicas=replicas, routing=routing, blocks_per_replica=1500, infinitely_fast=True
    )
    settings = fleet_settings(trace.header, options, len(trace.requests), has_queue=False)
    done = replay_fleet(trace, settings, INFINITELY_FAST, options, seed=0)
    expected = independent_hits(trace, done, 1500)
    assert 0.05 < expected < done.ceiling + 0.01
    assert done.hit_rate == pytest.approx(expected, rel=0.01)


def conversations(num_requests: int) -> Trace:
    """Turns of 300 conversations, each of which repeats all before it."""
    trace = draw_trace("prefix", num_requests=num_requests, rate_per_s=1, seed=1)
    random = np.random.default_rng(1)
    num_turns: Counter[int] = Counter()
    for request in trace.requests:
        conversation = int(random.integers(300))
        num_turns[conversation] += 1
        turns = np.arange(10 * num_turns[conversation], dtype=np.uint64)
        # Every conversation begins alike: affinity alone would send all of them to one replica.
        alike = np.arange(4, dtype=np.uint64)
        request.blocks = np.concatenate([alike, turns + np.uint64(1000 * (conversation + 1))])
        request.num_prompt = len(request.blocks) * trace.header.block_size + 1
        request.num_output = request.max_tokens = 4
    return trace


def hit_rate(trace: Trace, routing: Routing) -> tuple[float, float]:
    options = FleetOptions(replicas=8, routing=routing, blocks_per_replica=2000)
    settings = fleet_settings(trace.header, options, len(trace.requests), has_queue=False)
    done = replay_fleet(trace, settings, INFINITELY_FAST, options, seed=0)
    return done.hit_rate, done.replica_tokens.max() / done.replica_tokens.mean()


def test_prefixes_are_found_far_more_often_than_in_turn_and_the_load_is_even() -> None:
    trace = conversations(num_requests=1500)
    round_robin, _ = hit_rate(trace, Routing.ROUND_ROBIN)
    for routing in (Routing.PREFIX, Routing.BOTH):
        found, imbalance = hit_rate(trace, routing)
        assert found > 2 * round_robin, routing
        assert imbalance < 1.2, routing


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    trace = draw_trace("prefix", num_requests=400, seed=1)
    options = FleetOptions(replicas=5, failures_per_hour=60.0, restart_s=10.0)

    def run(seed: int) -> bytes:
        done = replay_fleet(trace, trace.header, STEP, options, seed=seed)
        assert done.num_losses > 0
        return np.asarray(done.run.latency_s).tobytes() + done.replica_of.tobytes()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_lost_replicas_leave_only_requests_that_had_begun_without_an_answer() -> None:
    trace = draw_trace("chat", num_requests=800, rate_per_s=60, seed=1)
    options = FleetOptions(replicas=6, failures_per_hour=300.0, detection_s=0.5, restart_s=4.0)
    done = replay_fleet(trace, trace.header, STEP, options, seed=2)
    assert done.num_losses > 0 < done.num_resent
    assert set(done.unanswered) == {"REPLICA_LOST"}
    assert done.run.num_requests + done.unanswered["REPLICA_LOST"] == 800


def test_an_autoscaler_has_fewer_replicas_at_night() -> None:
    trace = draw_trace("chat", num_requests=3000, rate_per_s=10, seed=1)
    options = FleetOptions(
        replicas=16,
        min_replicas=1,
        target_requests=4,
        scale_up_delay_s=1.0,
        scale_down_delay_s=10.0,
        restart_s=1.0,
        day_s=300.0,
    )
    done = replay_fleet(trace, trace.header, STEP, options, seed=0)
    assert not done.unanswered
    assert 3 < done.max_replicas <= 16
    assert done.run.seconds < done.replica_s < done.max_replicas * done.run.seconds


def test_a_day_moves_arrivals_and_loses_none() -> None:
    arrivals = np.arange(24_000, dtype=np.int64) * 3_600_000
    times = by_day(arrivals.tolist(), 86.4)
    assert len(times) == 24_000
    assert np.all(np.diff(times) >= 0)
    hours = np.histogram(times, 24, (0, 86.4e9))[0]
    assert hours.argmin() in (2, 3)
    assert hours.max() > 4 * hours.min()


def test_a_fleet_larger_than_the_limit_and_a_trace_that_is_wrong_are_refused() -> None:
    trace = draw_trace("nano", num_requests=4)
    with pytest.raises(ValueError, match="4096"):
        FleetOptions(replicas=4097)
    too_many = FleetOptions(replicas=2, min_replicas=3)
    with pytest.raises(ConfigError, match="min_replicas"):
        replay_fleet(trace, trace.header, STEP, too_many, seed=0)
    broken = replace(trace, header=trace.header.model_copy(update={"max_num_batched_tokens": 1}))
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        replay_fleet(broken, broken.header, STEP, ONE, seed=0)
