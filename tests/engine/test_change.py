"""Live requests that change: held up, let go, given other limits, stops and times."""

from dataclasses import replace

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Accepted, Change, Finished, FinishReason, Schedule, Stopping
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.submitted_request import Mailbox

from tests.engine.drive import assert_empty, drain, end, greedy, run, text, token_ids
from tests.engine.tiny_model import prompts

MAX_TOKENS = 12


def step(engine, times=40):
    """Step, also where there is nothing to run; return the events."""
    return [event for _ in range(times) for event in engine.step()]


def of(events, request_id):
    return [event for event in events if event.request_id == request_id]


def test_a_request_that_is_held_up_gives_the_same_tokens(make_engine, kv_blocks):
    wanted = [greedy(p, MAX_TOKENS, ignore_eos=True) for p in prompts()]
    expected = [token_ids(events) for events in run(make_engine(), wanted)]
    engine = make_engine(kv_cache_memory=kv_blocks(20), max_num_seqs=3)
    ids = [engine.add(replace(request, credit=0)).request_id for request in wanted]
    seen = []
    for num_given in range(1, MAX_TOKENS + 1):
        for request_id in ids:
            assert engine.change(request_id, Change(credit=1))
            seen += step(engine, 1)
        seen += step(engine)
        counts = [len(token_ids(of(seen, request_id))) for request_id in ids]
        assert counts == [num_given] * len(ids)
    assert [token_ids(of(seen, request_id)) for request_id in ids] == expected
    assert_empty(engine)


def test_a_paused_request_gets_nothing_and_its_neighbour_everything(engine):
    held, other = (engine.add(greedy([i], 20, ignore_eos=True)).request_id for i in (1, 2))
    before = step(engine, 3)
    engine.change(held, Change(paused=True))
    after = step(engine)
    assert of(after, held) == []
    assert isinstance(end(of(before + after, other)), Finished)
    engine.change(held, Change(paused=False))
    assert len(token_ids(of(before, held) + drain(engine)[held])) == 20


def test_a_stop_that_came_later_holds_for_an_answer_without_text(engine):
    answer = text(run(engine, [greedy([1, 2, 3], 30, ignore_eos=True)])[0])
    stop = answer[-6:-3]
    request = greedy([1, 2, 3], 30, ignore_eos=True)
    quiet = replace(request, output=replace(request.output, text=False))
    request_id = engine.add(quiet).request_id
    step(engine, 2)
    engine.change(request_id, Change(stopping=Stopping(30, stop=(stop,), ignore_eos=True)))
    assert end(drain(engine)[request_id]).stop == stop


def test_times_count_from_the_arrival(engine, clock):
    request = replace(greedy([1], 250, ignore_eos=True), credit=1)
    ids = [engine.add(request).request_id for _ in range(2)]
    seen = step(engine)
    clock.advance(50)
    engine.change(ids[0], Change(schedule=Schedule(time_limit_s=60)))
    engine.change(ids[1], Change(schedule=Schedule(time_limit_s=70)))
    clock.advance(10)
    seen += step(engine)
    assert end(of(seen, ids[0])).reason is FinishReason.TIME_LIMIT
    assert len(of(seen, ids[1])) == 1
    clock.advance(10)
    assert end(step(engine)).reason is FinishReason.TIME_LIMIT
    assert_empty(engine)


def test_a_request_that_has_ended_cannot_be_changed(engine):
    request_id = engine.add(greedy([1], 2)).request_id
    drain(engine)
    assert not engine.change(request_id, Change(credit=1))
    assert not engine.change(1 << 50, Change(paused=True))


WRONG = {
    "update.stopping.max_tokens": Change(stopping=Stopping(max_tokens=0)),
    "update.stopping.min_tokens": Change(stopping=Stopping(max_tokens=3, min_tokens=4)),
    "update.stopping.stop": Change(stopping=Stopping(stop=["x" * 200])),
    "update.stopping.stop_token_ids": Change(stopping=Stopping(stop_token_ids=[-1])),
    "update.schedule.priority": Change(schedule=Schedule(priority=-11)),
    "update.schedule.time_limit": Change(schedule=Schedule(time_limit_s=0)),
    "credit.tokens": Change(credit=-1),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_change_names_its_field_and_changes_nothing(engine, field):
    request_id = engine.add(greedy([1], 5, ignore_eos=True)).request_id
    with pytest.raises(RequestError) as caught:
        engine.change(request_id, WRONG[field])
    assert (caught.value.reason, caught.value.field) == (Reason.BAD_PARAMETER, field)
    assert len(token_ids(drain(engine)[request_id])) == 5


async def test_pause_and_resume_from_the_event_loop(tiny):
    engine = AsyncEngine(tiny.folder, max_num_seqs=4, max_num_batched_tokens=32)
    await engine.start()
    request = replace(greedy([1, 2, 3], 20, ignore_eos=True), credit=0)
    handle = Mailbox(await engine.prepare(request))
    engine.submit(handle)
    engine.pause(handle)
    engine.change(handle, Change(credit=20))
    # The neighbour's whole answer goes by.
    async for _ in engine.generate(greedy([7], 50, ignore_eos=True)):
        pass
    assert [type(event) for event in await handle.take()] == [Accepted]
    engine.resume(handle)
    events = []
    while not handle.is_read:
        events += await handle.take()
    assert len(token_ids(events)) == 20
    # It has ended: none of these does anything.
    engine.pause(handle)
    engine.resume(handle)
    await engine.stop()


async def test_a_wrong_change_is_refused_on_the_event_loop(tiny):
    engine = AsyncEngine(tiny.folder, max_num_seqs=4, max_num_batched_tokens=32)
    await engine.start()
    handle = Mailbox(await engine.prepare(greedy([1] * 250, 3)))
    engine.submit(handle)
    with pytest.raises(RequestError) as caught:
        # The context of 256 has room for six tokens.
        engine.change(handle, Change(stopping=Stopping(max_tokens=9, min_tokens=7)))
    assert caught.value.field == "update.stopping.min_tokens"
    await engine.stop()
