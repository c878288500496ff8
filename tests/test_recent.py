"""Counts of the last minute, and percentiles of durations that were counted."""

import statistics
from collections import Counter

import pytest
from chairlift.api.recent import Recent, percentile, size_class


def test_counts_are_forgotten_after_a_minute_and_kept_for_fifty_seconds() -> None:
    now = [100.0]
    recent: Recent[str] = Recent(lambda: now[0])
    recent.add("a")
    recent.add("b", 3)
    now[0] = 149.0
    recent.add("a")
    assert recent.counts() == {"a": 2, "b": 3}
    now[0] = 161.0
    assert recent.counts() == {"a": 1}
    now[0] = 1e6
    assert recent.counts() == {}


def test_memory_does_not_grow_with_time() -> None:
    now = [0.0]
    recent: Recent[int] = Recent(lambda: now[0])
    for second in range(10_000):
        now[0] = float(second)
        recent.add(size_class(second * 1e-3))
    assert recent.counts().total() <= 60


@pytest.mark.parametrize("percent", [1, 50, 99, 100])
def test_a_percentile_is_right_to_a_tenth(percent: int) -> None:
    durations = [0.0001 * 1.01**i for i in range(1000)]
    expected = durations[max(0, percent * 10 - 1)]
    found = percentile(Counter(map(size_class, durations)), percent)
    assert found == pytest.approx(expected, rel=0.1)
    assert percentile({size_class(statistics.median(durations)): 1}, percent) > 0


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 1e9, float("inf")])
def test_odd_durations_have_a_class(seconds: float) -> None:
    assert 0 < percentile({size_class(seconds): 1}, 50) < 5000
