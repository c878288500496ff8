"""Bounds on the times of requests."""

import pytest
from chairlift.api.errors import ConfigError
from chairlift.bench.driven_request import DrivenRequest
from chairlift.bench.slo import bounds_of, capacity, num_good


def request(*event_times_s, arrival_s=0.0):
    last = event_times_s[-1]
    return DrivenRequest(
        arrival_s,
        8,
        num_output=len(event_times_s),
        event_times_s=list(event_times_s),
        finished_s=last,
    )


def test_a_request_is_good_if_each_of_its_own_times_is():
    requests = [request(1.0, 1.1, 1.2), request(3.0, 3.1, 3.2), request(1.0, 1.1, 2.0)]
    assert num_good(requests, bounds_of("ttft_p50=2s,itl_p99=200ms")) == 1
    assert num_good(requests, bounds_of("ttft_p50=2s")) == 2
    assert num_good(requests, bounds_of("tpot_mean=100.1ms")) == 2
    assert num_good(requests, bounds_of("latency_p99=3s")) == 2


def test_an_answer_of_one_token_keeps_a_bound_on_gaps():
    assert num_good([request(1.0)], bounds_of("itl_p99=1ms,tpot_p99=1ms")) == 1


def test_the_capacity_is_the_highest_rate_up_to_which_the_bounds_are_kept():
    bounds = bounds_of("itl_p99=100ms")
    runs = [
        (rate, {"itl_p99_s": itl}) for rate, itl in [(4, 0.05), (2, 0.02), (8, 0.3), (16, 0.01)]
    ]
    assert capacity(runs, bounds) == (4, True)
    assert capacity(runs[:2], bounds) == (4, False)
    assert capacity([(8, {"itl_p99_s": 0.3})], bounds) == (0, True)


def test_most_runs_of_a_rate_must_keep_the_bounds():
    bounds = bounds_of("itl_p99=100ms")
    runs = [(2, {"itl_p99_s": itl}) for itl in (0.05, 0.3, 0.05)]
    assert capacity(runs, bounds) == (2, False)
    assert capacity(runs[:2], bounds) == (0, True)


@pytest.mark.parametrize(
    "text", ["", "itl=100ms", "itl_p98=1s", "itl_std=1s", "x_p99=1s", "itl_p99=soon", "itl_p99=1s,"]
)
def test_a_bound_that_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^slo: "):
        bounds_of(text)
