"""Replays in which requests reserve KV memory at their start, and device models by name."""

from dataclasses import replace

import numpy as np
import pytest
from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.replay.device_models import DEVICE_MODELS, DeviceName
from chairlift.replay.options import ReplayOptions
from chairlift.replay.recipes import draw_trace
from chairlift.replay.reservation import Reserve
from chairlift.replay.run import Replayed, replay
from chairlift.replay.settings import settings_of, step_time_of
from chairlift.replay.trace import Trace

OPT = ReplayOptions(device_model=DeviceName.A100_OPT_13B, max_model_len=2048)


def run(trace: Trace, reserve: Reserve, options: ReplayOptions = OPT) -> Replayed:
    options = options.model_copy(update={"reserve": reserve})
    settings = settings_of(trace.header, options, Batching.CONTINUOUS)
    step_time = step_time_of(trace.header, [], options)
    return replay(trace, settings, step_time, reserve=reserve)


def test_each_rule_reserves_what_its_system_did() -> None:
    assert [Reserve.MAX.num_tokens(100, n, 2048) for n in (1, 900)] == [2048, 2048]
    assert [Reserve.POW2.num_tokens(100, n, 2048) for n in (28, 29, 924, 925)] == [
        *(128, 256, 1024, 2048)
    ]
    assert Reserve.POW2.num_tokens(1000, 300, 1500) == 1500
    assert [Reserve.EXACT.num_tokens(100, n, 2048) for n in (1, 1948, 3000)] == [101, 2048, 2048]


def test_memory_for_seven_longest_sequences_has_seven_rows() -> None:
    # 12 GiB hold 15,712 tokens of 800 KiB, 7.7 times 2,048.
    trace = draw_trace("sharegpt-opt", num_requests=60, rate_per_s=100)
    assert run(trace, Reserve.MAX).step_rows.max() == 7


def test_less_reserved_memory_is_more_rows_and_less_waste() -> None:
    trace = draw_trace("sharegpt-opt", num_requests=120, rate_per_s=100)
    runs = [run(trace, reserve) for reserve in Reserve]
    assert [done.run.num_requests for done in runs] == [120] * 4
    assert {done.run.num_output_tokens for done in runs} == {runs[0].run.num_output_tokens}
    rows = [done.step_rows.mean() for done in runs]
    waste = [done.run.kv_waste / done.run.num_steps for done in runs]
    assert rows == sorted(rows)
    assert waste == sorted(waste, reverse=True)
    assert waste[-1] < 0.04 < waste[-2]


def test_requests_get_their_reservations_in_the_order_of_their_arrival() -> None:
    trace = draw_trace("sharegpt-opt", num_requests=40, rate_per_s=100)
    options = OPT.model_copy(update={"reserve": Reserve.MAX, "max_num_batched_tokens": 8192})
    settings = settings_of(trace.header, options, None)
    step_time = step_time_of(trace.header, [], options)
    begun = []
    replay(
        trace,
        settings,
        step_time,
        lambda step: begun.extend(step.indices.tolist()),
        Reserve.MAX,
    )
    assert list(dict.fromkeys(begun)) == list(range(40))


def test_a_request_that_the_pool_cannot_hold_is_not_answered() -> None:
    trace = draw_trace("anyscale-32", num_requests=3)
    trace.requests[1] = replace(trace.requests[1], num_prompt=900)
    options = OPT.model_copy(update={"kv_cache_memory": 700 * 800 * 2**10})
    done = run(trace, Reserve.EXACT, options)
    assert done.unanswered == {"KV_RESERVATION": 1}
    assert done.run.num_requests == 2


def test_a_request_that_is_cancelled_before_it_has_a_reservation_needs_none() -> None:
    trace = draw_trace("anyscale-32", num_requests=3)
    options = OPT.model_copy(update={"kv_cache_memory": 700 * 800 * 2**10})
    alone = run(
        replace(trace, requests=[trace.requests[0], trace.requests[2]]), Reserve.EXACT, options
    )
    trace.requests[1] = replace(trace.requests[1], cancelled=1)
    done = run(trace, Reserve.EXACT, options)
    assert done.unanswered == {}
    assert done.run.num_steps == alone.run.num_steps


def test_waiting_for_a_reservation_is_part_of_the_time_to_the_first_token() -> None:
    trace = draw_trace("anyscale-32", num_requests=3)
    options = OPT.model_copy(update={"kv_cache_memory": 700 * 800 * 2**10})
    # The pool holds one of them, so that each begins when the one before it has ended.
    done = run(trace, Reserve.EXACT, options).run
    assert (np.sort(done.ttft_s)[1:] > np.sort(done.latency_s)[:-1]).all()


def test_reservations_are_refused_where_requests_do_not_join_at_every_step() -> None:
    trace = draw_trace("anyscale-32", num_requests=3)
    settings = settings_of(trace.header, OPT, Batching.STATIC)
    with pytest.raises(
        ConfigError, match="reserve: expected continuous batching alone, got static"
    ):
        replay(trace, settings, step_time_of(trace.header, [], OPT), reserve=Reserve.EXACT)


def test_a_reservation_has_no_prefix_cache() -> None:
    header = draw_trace("prefix", num_requests=3).header
    assert header.prefix_cache
    for reserve, has_cache in ((Reserve.EXACT, False), (Reserve.NONE, True), (None, True)):
        settings = settings_of(header, ReplayOptions(reserve=reserve), None)
        assert settings.prefix_cache is has_cache
    with pytest.raises(ConfigError, match="prefix_cache: expected none with --reserve"):
        settings_of(header, ReplayOptions(reserve=Reserve.EXACT, prefix_cache=True), None)


@pytest.mark.parametrize("name", list(DeviceName))
def test_a_device_model_gives_step_time_and_memory(name: DeviceName) -> None:
    trace, device = draw_trace("chat", num_requests=2), DEVICE_MODELS[name]
    options = ReplayOptions(device_model=name)
    assert step_time_of(trace.header, [], options) == device.step_time
    settings = settings_of(trace.header, options, None)
    assert settings.kv_bytes_per_block == 16 * device.kv_bytes_per_token
    assert settings.num_kv_blocks == device.kv_memory // settings.kv_bytes_per_block
    parts = options.model_copy(update={"step_fixed_s": 1.0, "kv_cache_memory": 2**30})
    assert step_time_of(trace.header, [], parts).fixed_s == 1.0
    assert step_time_of(trace.header, [], parts).per_token_s == device.step_time.per_token_s
    assert settings_of(trace.header, parts, None).num_kv_blocks == 2**30 // (
        settings.kv_bytes_per_block
    )
