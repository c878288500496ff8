"""Turns between calls: a call with many requests stands back for one with few."""

from chairlift.api.types import Schedule
from chairlift.server.calls.turns import MAX_DELAY_S, TURN_S, Turns


def delays(turns, num, now=0.0, **schedule):
    """Return how much later each of these requests stands, none of which ends."""
    taken = (turns.take(Schedule(**schedule), now, is_first=False) for _ in range(num))
    return [schedule.turn_delay_s for schedule in taken]


def test_each_request_of_a_call_stands_a_little_later_than_the_one_before():
    assert delays(Turns(), 3) == [0.0, TURN_S, 2 * TURN_S]


def test_no_request_stands_back_without_end():
    assert max(delays(Turns(), 10_000)) == MAX_DELAY_S


def test_requests_of_a_call_keep_their_order():
    turns = Turns()
    places = [
        now + turns.take(Schedule(), now, is_first=False).turn_delay_s
        for now in (0.0, 0.0, 0.0, 0.05, 0.5, 0.5, 30.0)
    ]
    assert places == sorted(places)
    assert places[-1] == 30.0


def test_a_request_of_a_higher_priority_does_not_stand_behind_others_of_its_call():
    turns = Turns()
    delays(turns, 100)
    assert delays(turns, 1, priority=1) == [0.0]


def test_a_call_without_live_requests_begins_anew():
    turns = Turns()
    delays(turns, 100)
    assert turns.take(Schedule(), 1.0, is_first=True).turn_delay_s == 0.0


def test_a_priority_that_is_none_is_left_to_the_check_of_the_field():
    for priority in ([], None, 1 << 70):
        assert delays(Turns(), 2, priority=priority) == [0.0, 0.0]
