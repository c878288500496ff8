"""No holder takes all of a common resource."""

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.server.limits.shares import Capacity, Shares, holders_of
from hypothesis import given
from hypothesis import strategies as st


def fill(shares, *holders):
    """Take until it is refused; return the shares and the refusal."""
    taken = []
    while True:
        try:
            taken.append(shares.take(holders))
        except RequestError as error:
            return taken, error


def test_one_holder_takes_three_quarters_and_the_next_the_same_of_the_rest():
    shares = Shares("rows", 1024)
    first, refusal = fill(shares, ("connection", "a"))
    assert len(first) == 768
    assert refusal.reason is Reason.QUOTA_EXCEEDED
    expected = "quota connection_share: this connection has 768 rows, and 256 of 1024 are free"
    assert refusal.message == expected
    second, _ = fill(shares, ("connection", "b"))
    assert len(second) == 192


def test_the_refusal_says_when_nothing_is_free():
    shares = Shares("rows", 2)
    taken, refusal = fill(shares, ("connection", "a"))
    assert len(taken) == 2
    assert refusal.reason is Reason.QUOTA_EXCEEDED
    assert refusal.message == "all 2 rows of this server are taken"


def test_a_tenant_with_many_connections_has_one_share():
    shares = Shares("rows", 1024)
    num = sum(len(fill(shares, *holders_of(f"{i}", "ann"))[0]) for i in range(50))
    assert num == 768
    assert shares.take(holders_of("other", "bob"))
    assert shares.held(("tenant", "ann")) == 768


def test_what_is_held_elsewhere_is_not_taken_from_a_share():
    free = 8
    shares = Shares("requests", 0, lambda _held: Capacity(8, free, max_running=4))
    assert len(fill(shares, ("connection", "a"))[0]) == 4 + 24
    free = 0
    # A full resource refuses by itself, and knows why.
    assert shares.take((("connection", "a"),))


def test_callers_without_a_name_are_no_tenant():
    assert holders_of("a", "") == (("connection", "a"),)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans())))
def test_what_is_held_never_exceeds_what_there_is_and_all_of_it_comes_back(steps):
    shares = Shares("rows", 16)
    held = []
    for name, num, is_release in steps:
        if is_release and held:
            held.pop(0)[0].release()
            continue
        try:
            held.append((shares.take((("connection", name),), num), num))
        except RequestError:
            assert sum(num for _, num in held) > 0
        assert sum(num for _, num in held) <= 16
    for share, _ in held:
        share.release()
        share.release()
    with pytest.raises(RequestError):
        shares.take((("connection", "a"),), 17)
    assert shares.take((("connection", "a"),), 16)
