"""Arrivals by the definitions of `vllm bench serve`."""

import math

import numpy as np
import pytest
from chairlift.bench.arrivals import Arrivals

MANY = 20_000


def gaps(arrivals):
    times = arrivals.times_s(np.random.default_rng(0), MANY)
    return np.diff(times, prepend=0), times


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variation_of_their_gamma_distribution(burstiness):
    found, times = gaps(Arrivals(5.0, burstiness))
    assert times[-1] == pytest.approx(MANY / 5)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_seed_offers_the_same_pattern_at_each_rate():
    slow, fast = (gaps(Arrivals(rate))[1] for rate in (2.0, 8.0))
    assert slow / fast == pytest.approx(4)


def test_without_a_rate_all_arrive_at_once():
    assert not gaps(Arrivals(math.inf))[1].any()
