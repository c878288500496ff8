"""Queue, time and configuration: every wait has a bound and every queue a cap."""

import pytest
from chairlift.api.errors import ConfigError, ModelError, Reason, RequestError
from chairlift.api.types import Finished, FinishReason, Request, Sampling, Schedule, Stopping

from tests.engine.drive import assert_empty, drain, end, greedy


def test_a_full_queue_refuses(make_engine):
    engine = make_engine(max_queued_requests=3, max_num_seqs=1)
    ids = [engine.add(greedy([1], 4)).request_id for _ in range(3)]
    with pytest.raises(RequestError) as refused:
        engine.add(greedy([1], 4))
    assert refused.value.reason is Reason.QUEUE_FULL
    assert refused.value.retry_after_s > 0
    events = drain(engine)
    assert all(isinstance(end(events[request_id]), Finished) for request_id in ids)


def test_queue_positions_are_told(make_engine):
    engine = make_engine(max_num_seqs=1)
    assert [engine.add(greedy([1], 4)).queue_position for _ in range(3)] == [0, 1, 2]
    drain(engine)


def test_a_request_that_does_not_start_in_time_fails(make_engine, clock):
    engine = make_engine(max_num_seqs=1)
    first = engine.add(greedy([1], 200, ignore_eos=True)).request_id
    engine.step()
    second = engine.add(
        Request([2], Sampling(0), Stopping(max_tokens=4), schedule=Schedule(queue_timeout_s=2))
    ).request_id
    clock.advance(1.9)
    assert engine.step()[-1].request_id == first
    clock.advance(0.2)
    failed = [event for event in engine.step() if event.request_id == second]
    assert end(failed).reason is Reason.QUEUE_TIMEOUT
    assert failed[0].timeline.queued_s == pytest.approx(2.1)
    drain(engine)
    assert_empty(engine)


def test_the_time_limit_ends_an_answer_with_what_there_is(engine, clock):
    request = Request(
        [1],
        Sampling(temperature=0),
        Stopping(max_tokens=200, ignore_eos=True),
        schedule=Schedule(time_limit_s=5),
    )
    request_id = engine.add(request).request_id
    engine.step()
    engine.step()
    clock.advance(5)
    finished = end(drain(engine)[request_id])
    assert (finished.reason, finished.usage.output_tokens) == (FinishReason.TIME_LIMIT, 2)
    assert_empty(engine)


def test_timelines_add_up(engine, clock):
    request_id = engine.add(greedy([1], 3, ignore_eos=True)).request_id
    clock.advance(2)
    run_step = engine.runner.run

    def slow(inputs):
        clock.advance(0.5)
        return run_step(inputs)

    engine.runner.run = slow
    timeline = end(drain(engine)[request_id]).timeline
    assert (timeline.queued_s, timeline.prefill_s) == (2.0, 0.5)
    assert timeline.decode_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens"),
        ({"max_model_len": 10_000}, "max_model_len"),
        ({"kv_cache_memory": 1}, "kv_cache_memory"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"batch_size": 9, "batching": "static"}, "batch_size"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(make_engine, settings, named):
    with pytest.raises(ConfigError, match=named) as error:
        make_engine(**settings)
    assert "\n" not in str(error.value)


def test_a_missing_model_is_one_line(tmp_path):
    from chairlift.engine.engine import Engine

    with pytest.raises(ModelError) as error:
        Engine(tmp_path)
    assert "\n" not in str(error.value)
