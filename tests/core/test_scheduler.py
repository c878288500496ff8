"""The scheduler through its Python binding; its behaviour is tested in rust/chairlift-core."""

import numpy as np
import pytest
import torch
from chairlift import _core
from chairlift.core.new_request import NewRequest
from chairlift.core.plan import PlanView

VOCAB = 100


def new_scheduler(**changes):
    settings = {
        "policy": "continuous",
        "batch_size": 4,
        "batch_window": 0,
        "batch_timeout": 0,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
        "max_model_len": 64,
        "max_queued_requests": 2,
        "vocab_size": VOCAB,
        "block_size": 4,
        "num_blocks": 17,
        "kv_windows": [None],
        "prefix_cache": True,
        "max_step_drafts": 16,
        "hash_key": bytes(32),
        "token_table": _core.TokenTable([b"%d " % i for i in range(VOCAB)], special=[]),
    }
    return _core.Scheduler(**settings | changes)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def run_step(scheduler, plan, token=7, now=0):
    """Runs one step whose sample slots all draw `token`; gives its events, or None when idle."""
    step = scheduler.schedule(now, plan)
    if step is None:
        return None
    num_samples = int(plan[2])
    return list(scheduler.update(now, step, int32(*[token] * num_samples)))


@pytest.fixture
def scheduler():
    return new_scheduler()


@pytest.fixture
def plan(scheduler):
    return torch.zeros(scheduler.plan_capacity, dtype=torch.int32)


def test_a_request_runs_from_add_to_finished(scheduler, plan):
    added = scheduler.add(5, NewRequest([1, 2, 3], max_tokens=2))
    assert added.queue_position == 0
    first, *none = run_step(scheduler, plan, now=6)
    assert none == []
    assert (first.request_id, first.text, first.token_ids, first.sample_slot) == (
        added.request_id,
        "7 ",
        [7],
        0,
    )
    second, finished = run_step(scheduler, plan, now=7)
    assert second.token_ids == [7]
    assert (finished.reason, finished.stop, finished.stop_token_id) == ("length", None, None)
    account = finished.account
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (3, 0, 2)
    times = (account.arrival, account.first_scheduled, account.first_token, account.finished)
    assert times == (5, 6, 6, 7)
    assert run_step(scheduler, plan) is None
    scheduler.check_invariants()


def test_a_stop_string_is_named_and_cut(scheduler, plan):
    scheduler.add(0, NewRequest([1], max_tokens=9, stop=["7 7"]))
    *tokens, finished = run_step(scheduler, plan) + run_step(scheduler, plan)
    assert (finished.reason, finished.stop) == ("stop", "7 7")
    assert "".join(event.text for event in tokens) == ""


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reason", "field"),
    [
        ([], 1, "BAD_PARAMETER", "prompt"),
        ([VOCAB], 1, "BAD_PARAMETER", "token_ids"),
        ([-1], 1, "BAD_PARAMETER", "token_ids"),
        ([1], 0, "BAD_PARAMETER", "stopping.max_tokens"),
        ([1] * 65, 1, "PROMPT_TOO_LONG", "prompt"),
        ([1] * 64, 2, "PROMPT_TOO_LONG", "prompt"),
    ],
)
def test_a_refusal_names_reason_and_field(scheduler, prompt, max_tokens, reason, field):
    with pytest.raises(_core.Refused) as refusal:
        scheduler.add(0, NewRequest(prompt, max_tokens=max_tokens))
    assert (refusal.value.reason, refusal.value.field) == (reason, field)
    assert refusal.value.message


def test_what_the_pool_can_never_hold_is_refused_as_capacity():
    scheduler = new_scheduler(num_blocks=3)
    assert scheduler.max_context_len == 8
    with pytest.raises(_core.Refused) as refusal:
        scheduler.add(0, NewRequest([1] * 9, max_tokens=1))
    assert refusal.value.reason == "KV_CAPACITY"


@pytest.mark.parametrize("field", [{"tenant": 5}, {"stop": "a"}, {"num_sequences": -1}])
def test_a_field_of_a_wrong_type_is_named(scheduler, field):
    request = NewRequest([1], **{"max_tokens": 1} | field)
    with pytest.raises(TypeError, match=f"NewRequest.{next(iter(field))}"):
        scheduler.add(0, request)


def test_a_full_queue_is_refused(scheduler):
    for _ in range(2):
        scheduler.add(0, NewRequest([1], max_tokens=1))
    with pytest.raises(_core.Refused) as refusal:
        scheduler.add(0, NewRequest([1], max_tokens=1))
    assert (refusal.value.reason, refusal.value.field) == ("QUEUE_FULL", "")


def test_abort_is_idempotent_and_its_events_are_taken(scheduler):
    request_id = scheduler.add(0, NewRequest([1], max_tokens=1)).request_id
    assert scheduler.abort(1, request_id)
    assert not scheduler.abort(1, request_id)
    (event,) = scheduler.take_events()
    assert isinstance(event, _core.FinishedEvent)
    assert event.reason == "cancelled"
    assert len(scheduler.take_events()) == 0


def test_an_abort_with_an_error_is_a_failed_event(scheduler):
    scheduler.abort(1, scheduler.add(0, NewRequest([1], max_tokens=1)).request_id, "DRAINING")
    (event,) = scheduler.take_events()
    assert isinstance(event, _core.FailedEvent)
    assert event.reason == "DRAINING"
    with pytest.raises(ValueError, match="reason"):
        scheduler.abort(1, 1, "no such reason")


def test_a_row_that_is_not_finite_fails_alone(scheduler, plan):
    bad = scheduler.add(0, NewRequest([1], max_tokens=2)).request_id
    good = scheduler.add(0, NewRequest([2], max_tokens=2)).request_id
    step = scheduler.schedule(0, plan)
    events = list(scheduler.update(0, step, int32(-1, 7)))
    assert [(e.request_id, type(e)) for e in events] == [
        (bad, _core.FailedEvent),
        (good, _core.TokensEvent),
    ]
    assert events[0].reason == "NUMERIC_FAULT"
    assert events[1].sample_slot == 1


def test_a_failed_step_is_rolled_back(scheduler, plan):
    failed_ids = scheduler.add(0, NewRequest([1], max_tokens=2)).request_id
    other = scheduler.add(0, NewRequest([2], max_tokens=2)).request_id
    (event,) = scheduler.fail(0, scheduler.schedule(0, plan), [failed_ids])
    assert (event.request_id, event.reason) == (failed_ids, "STEP_FAILED")
    assert [event.request_id for event in run_step(scheduler, plan)] == [other]


def test_a_step_that_is_not_in_flight_is_unknown(scheduler, plan):
    scheduler.add(0, NewRequest([1], max_tokens=2))
    step = scheduler.schedule(0, plan)
    with pytest.raises(_core.UnknownStep):
        scheduler.update(0, step + 1, int32(7))
    with pytest.raises(_core.UnknownStep, match="sampled 2 tokens"):
        scheduler.update(0, step, int32(7, 7))
    scheduler.update(0, step, int32(7))
    with pytest.raises(_core.UnknownStep):
        scheduler.fail(0, step, [])


def test_idle_tells_when_something_is_due(plan):
    scheduler = new_scheduler(policy="dynamic", batch_window=50)
    scheduler.add(10, NewRequest([1], max_tokens=1))
    assert scheduler.schedule(10, plan) is None
    assert scheduler.wake_at == 60
    assert scheduler.schedule(60, plan) is not None


def test_load_counts_requests_rows_and_blocks(scheduler, plan):
    for _ in range(2):
        scheduler.add(0, NewRequest([1] * 5, max_tokens=4))
    run_step(scheduler, plan)
    load = scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_rows_held) == (2, 0, 2)
    assert (load.num_blocks, load.num_free_blocks, load.num_kv_tokens) == (16, 13, 8)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("policy", "sometimes"),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 3),
        ("num_blocks", 1),
        ("batch_size", 5),
        ("steps_in_flight", 3),
    ],
)
def test_a_setting_out_of_range_is_named(setting, value):
    policy = {} if setting == "policy" else {"policy": "static"}
    with pytest.raises(_core.ConfigError, match=setting):
        new_scheduler(**policy | {setting: value})


def test_the_plan_buffer_is_checked(scheduler):
    with pytest.raises(TypeError, match="plan"):
        scheduler.schedule(0, torch.zeros(scheduler.plan_capacity))
    with pytest.raises(ValueError, match="plan"):
        scheduler.schedule(0, torch.zeros(3, dtype=torch.int32))


def test_numpy_arrays_serve_as_well_as_tensors(scheduler, plan):
    scheduler.add(0, NewRequest([1, 2, 3], max_tokens=1))
    array = np.zeros(scheduler.plan_capacity, dtype=np.int32)
    step = scheduler.schedule(0, array)
    ones = np.ones(4, dtype=np.int32)
    tokens, finished = scheduler.update(1, step, ones[:1])
    assert (tokens.token_ids, finished.reason) == ([1], "length")
    other = new_scheduler()
    other.add(0, NewRequest([1, 2, 3], max_tokens=1))
    other.schedule(0, plan)
    assert array.tolist() == plan.tolist()


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros(10_000, dtype=np.int64), TypeError, "plan: expected int32, got int64"),
        (np.zeros(10_000, dtype=np.float16), TypeError, "expected float32, int32 or int64"),
        (np.zeros(20_000, dtype=np.int32)[::2], ValueError, "plan: expected .* strides"),
        (np.zeros(3, dtype=np.int32), ValueError, "plan: expected at least"),
        (np.frombuffer(bytes(40_000), dtype=np.int32), ValueError, "expected a writable array"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(scheduler, array, error, message):
    with pytest.raises(error, match=message):
        scheduler.schedule(0, array)


def test_a_live_request_can_be_changed_and_an_ended_one_not(scheduler, plan):
    added = scheduler.add(0, NewRequest([1, 2, 3], max_tokens=9, credit=1, priority=3))
    run_step(scheduler, plan)
    load = scheduler.load()
    assert (load.num_running, load.num_running_suspended, load.num_waiting_suspended) == (1, 1, 0)
    assert run_step(scheduler, plan) is None
    assert scheduler.change(0, added.request_id, credit=9, paused=True)
    assert run_step(scheduler, plan) is None
    assert scheduler.change(0, added.request_id, paused=False)
    assert len(run_step(scheduler, plan)) == 1
    assert scheduler.change(0, added.request_id, max_tokens=9, stop_token_ids=[8])
    assert scheduler.change(0, added.request_id, priority=0, time_limit=50)
    _, finished = run_step(scheduler, plan, token=8)
    assert finished.stop_token_id == 8
    assert not scheduler.change(0, added.request_id, credit=1)


def test_a_time_limit_counts_from_the_arrival(scheduler, plan):
    added = scheduler.add(100, NewRequest([1], max_tokens=9, credit=0))
    scheduler.change(120, added.request_id, priority=0, time_limit=50)
    assert scheduler.schedule(149, plan) is None
    assert scheduler.wake_at == 150
    assert scheduler.schedule(150, plan) is None
    (finished,) = scheduler.take_events()
    assert finished.reason == "time_limit"


def test_a_request_that_waits_is_told_why(plan):
    scheduler = new_scheduler(max_num_seqs=1)
    runs = scheduler.add(0, NewRequest([1, 2], max_tokens=2)).request_id
    waits = scheduler.add(0, NewRequest([1, 2, 3], max_tokens=1)).request_id
    first = run_step(scheduler, plan, now=5)
    assert [event.request_id for event in first] == [runs]
    told = scheduler.explain(waits)
    assert (told.state, told.cause, told.num_before, told.num_tokens) == ("waiting", "row", 0, 3)
    told = scheduler.explain(runs)
    assert (told.state, told.cause, told.num_computed_tokens) == ("running", None, 2)
    run_step(scheduler, plan, now=7)
    *_, finished = run_step(scheduler, plan, now=9)
    assert finished.account.waits == [("step", 5), ("row", 4)]
    assert scheduler.explain(waits) is None


def test_a_step_accepts_drafts_up_to_the_first_wrong_one(scheduler, plan):
    request_id = scheduler.add(0, NewRequest([1, 2, 3], max_tokens=9)).request_id
    assert not scheduler.draft(request_id, [7])
    run_step(scheduler, plan)
    assert scheduler.draft(request_id, [7, 7, 8, 7])
    (event,) = run_step(scheduler, plan)
    view = PlanView.of(plan.numpy())
    assert view.input_ids.tolist() == [-1, 7, 7, 8, 7]
    assert view.sample_rows.tolist() == [0, 1, 2, 3, 4]
    assert event.token_ids == [7, 7, 7]
    run_step(scheduler, plan)
    assert PlanView.of(plan.numpy()).assigned[:, 3].tolist() == [3 + 3]
    scheduler.check_invariants()
