import pytest
from chairlift.api.types import FinishReason

from tests.engine.drive import assert_empty, cancel_at_random, drain, end, greedy, run, token_ids
from tests.engine.tiny_model import prompts


def test_cancel_while_waiting(make_engine):
    engine = make_engine(max_num_seqs=1)
    ids = [engine.add(greedy([1, 2, 3], 8)).request_id for _ in range(2)]
    engine.step()
    assert engine.abort(ids[1])
    events = drain(engine)
    assert end(events[ids[1]]).reason is FinishReason.CANCELLED
    assert end(events[ids[1]]).timeline.prefill_s is None
    assert_empty(engine)


def test_cancel_before_the_first_step(engine):
    request_id = engine.add(greedy([1, 2, 3])).request_id
    assert engine.abort(request_id)
    assert end(drain(engine)[request_id]).reason is FinishReason.CANCELLED
    assert_empty(engine)


def test_cancel_amid_a_chunked_prompt(make_engine):
    engine = make_engine(max_num_batched_tokens=16)
    request_id = engine.add(greedy([7] * 200)).request_id
    assert engine.step() == []
    engine.abort(request_id)
    assert end(drain(engine)[request_id]).usage.output_tokens == 0
    assert_empty(engine)


def test_cancel_while_it_answers_keeps_what_there_is(engine):
    request_id = engine.add(greedy([1, 2, 3], 100, ignore_eos=True)).request_id
    before = [event for _ in range(5) for event in engine.step()]
    engine.abort(request_id)
    after = drain(engine)[request_id]
    assert end(after).usage.output_tokens == len(token_ids(before)) == 5
    assert token_ids(after) == []
    assert_empty(engine)


def test_cancel_of_a_preempted_request(make_engine, kv_blocks):
    engine = make_engine(kv_cache_memory=kv_blocks(10), max_num_seqs=2)
    ids = [engine.add(greedy([i] * 60, 100, ignore_eos=True)).request_id for i in (1, 2)]
    while engine.load().num_preemptions == 0:
        engine.step()
    engine.abort(ids[1])
    events = drain(engine)
    assert end(events[ids[1]]).timeline.num_preemptions == 1
    assert end(events[ids[0]]).reason is FinishReason.LENGTH
    assert_empty(engine)


def test_cancel_twice_and_after_the_end_and_of_nobody_is_no_op(engine):
    request_id = engine.add(greedy([1, 2, 3])).request_id
    assert engine.abort(request_id)
    assert not engine.abort(request_id)
    assert len(drain(engine)[request_id]) == 1
    assert not engine.abort(request_id)
    assert not engine.abort(12345)
    assert engine.step() == []


@pytest.mark.parametrize(
    "batching", ["static", "dynamic", pytest.param("continuous", marks=pytest.mark.always)]
)
def test_random_cancels_leave_the_pool_full(make_engine, kv_blocks, clock, batching):
    engine = make_engine(
        batching=batching, kv_cache_memory=kv_blocks(30), max_num_batched_tokens=24
    )
    reference = [
        token_ids(events) for events in run(make_engine(), [greedy(p, 30) for p in prompts()])
    ]
    cancel_at_random(engine, clock, prompts(), reference, 30)
