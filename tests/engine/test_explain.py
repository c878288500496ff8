"""Why a request waits: told while it does, and by its timeline."""

import asyncio
import threading

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Accepted, Change, RequestState, WaitCause
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.submitted_request import Mailbox

from tests.engine.drive import drain, end, greedy


def test_the_queued_time_is_the_sum_of_its_causes(make_engine, clock):
    engine = make_engine(max_num_seqs=1)
    first = engine.add(greedy([1, 2, 3], 4, ignore_eos=True)).request_id
    events = engine.step()
    waits = engine.add(greedy([4, 5], 2, ignore_eos=True)).request_id
    clock.advance(1)
    events += engine.step()
    told = engine.explain(waits)
    assert (told.state, told.cause) == (RequestState.WAITING, WaitCause.ROW)
    assert (told.num_before, told.num_computed_tokens, told.num_tokens) == (0, 0, 2)
    assert engine.explain(first).state is RequestState.RUNNING
    assert engine.explain(first).cause is None
    engine.change(waits, Change(paused=True))
    assert engine.explain(waits).state is RequestState.SUSPENDED
    clock.advance(2)
    engine.change(waits, Change(paused=False))
    clock.advance(4)
    timeline = end(drain(engine)[waits]).timeline
    assert engine.explain(waits) is None
    by_cause = timeline.queued_by_cause_s
    assert by_cause[WaitCause.SUSPENDED] == pytest.approx(2.0)
    assert by_cause[WaitCause.ROW] == pytest.approx(4.0)
    assert sum(by_cause.values()) == pytest.approx(timeline.queued_s)


async def test_the_engine_thread_answers_many_at_once(tiny):
    engine = AsyncEngine(tiny.folder, max_num_seqs=1)
    await engine.start()
    prepared = [await engine.prepare(greedy([i], 200, ignore_eos=True)) for i in (1, 2, 3)]
    handles = [Mailbox(request) for request in prepared]
    for handle in handles:
        engine.submit(handle)
    while not any(not isinstance(event, Accepted) for event in await handles[0].take()):
        pass
    runs, *queued = await engine.explain(handles)
    assert runs.state is RequestState.RUNNING
    assert [told.state for told in queued] == [RequestState.WAITING] * 2
    assert [told.num_before for told in queued] == [0, 1]
    for handle in handles:
        engine.abort(handle)
    assert await engine.explain(handles) == [None] * 3
    await engine.stop()


async def test_a_thread_that_does_not_answer_is_not_waited_for(tiny, monkeypatch):
    monkeypatch.setattr("chairlift.engine.async_engine.EXPLAIN_TIMEOUT_S", 0.01)
    engine = AsyncEngine(tiny.folder, max_num_seqs=1)
    await engine.start()
    forward = engine.engine.runner.model.forward
    entered, may_go_on = threading.Event(), threading.Event()

    def held(*inputs):
        entered.set()
        may_go_on.wait()
        return forward(*inputs)

    engine.engine.runner.model.forward = held
    handle = Mailbox(await engine.prepare(greedy([1], 3)))
    engine.submit(handle)
    assert await asyncio.to_thread(entered.wait, 60)
    try:
        with pytest.raises(RequestError) as error:
            await engine.explain([handle])
        assert error.value.reason is Reason.ENGINE_BUSY
    finally:
        may_go_on.set()
    # The late answer is dropped, and the thread goes on.
    while not handle.is_read:
        await handle.take()
    monkeypatch.undo()
    assert await engine.explain([handle]) == [None]
    await engine.stop()
