"""A replay under the recorded settings does what the engine did; under others, what they would."""

from dataclasses import replace

import pytest
from chairlift.api.config import Batching
from chairlift.api.errors import ConfigError
from chairlift.api.figures import summarize
from chairlift.api.types import Change, Schedule
from chairlift.api.types import Request as EngineRequest
from chairlift.replay.format import StepTime
from chairlift.replay.options import ReplayOptions
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import output_lengths, recorded_run, replay
from chairlift.replay.settings import settings_of, step_time_of
from chairlift.replay.trace import Request, read_trace

from tests.engine.drive import drain, greedy

STEP = StepTime(fixed_s=0.01, per_token_s=0, per_context_token_s=0)


def requests(count):
    sizes = [(11 * i) % 70 + 1 for i in range(count)]
    return [greedy([i + 1] * n, (7 * i) % 23 + 1, ignore_eos=True) for i, n in enumerate(sizes)]


def shape(replayed):
    return list(zip(replayed.step_rows.tolist(), replayed.step_tokens.tolist(), strict=True))


@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_same_settings_give_the_same_steps(recorded, batching, prefix_cache):
    trace, _, steps, _ = recorded(
        requests=requests(30), batching=batching, prefix_cache=prefix_cache
    )
    for request in trace.requests:
        request.arrival = 0
    trace.flushes = [0]
    assert shape(replay(trace, trace.header, STEP)) == steps


def test_a_pool_that_is_too_small_preempts_as_it_did(recorded, tiny_folder):
    trace, _, _, engine = recorded(requests=requests(4))
    block = trace.header.kv_bytes_per_block
    trace, _, steps, engine = recorded(requests=requests(30), kv_cache_memory=9 * block)
    assert engine.load().num_preemptions > 0
    for request in trace.requests:
        request.arrival = 0
    assert shape(replay(trace, trace.header, STEP)) == steps


def test_hits_on_prompts_and_on_answers_are_those_of_the_engine(recorded):
    def course(engine):
        history = [3] * 20
        # A conversation: each turn sends all of the one before, answer included.
        for turn in range(4):
            request_id = engine.add(greedy(history, 14, ignore_eos=True)).request_id
            answer = [t for e in drain(engine)[request_id] for t in getattr(e, "token_ids", [])]
            history = [*history, *answer, turn + 30]

    trace, _, steps, engine = recorded(course)
    hits = engine.load().num_prefix_hits
    assert hits > 6
    replayed = replay(
        trace, trace.header, StepTime(fixed_s=1e-4, per_token_s=0, per_context_token_s=0)
    )
    assert replayed.num_prefix_hits == hits
    assert shape(replayed) == steps


def test_a_smaller_block_finds_no_less_than_the_whole_blocks_that_are_alike(recorded):
    trace, _, _, _ = recorded(requests=[greedy([4] * 64, 2, ignore_eos=True)])
    first = trace.requests[0]
    trace.requests.append(Request(10**12, first.num_prompt, 2, num_output=2, blocks=first.blocks))
    hits = {}
    for size in (8, 16, 32):
        settings = settings_of(trace.header, ReplayOptions(block_size=size), None)
        hits[size] = size * replay(trace, settings, STEP).num_prefix_hits
    # The last token is always computed, and with it the block it is in.
    assert hits == {8: 56, 16: 48, 32: 32}


def test_recorded_figures_are_those_of_the_engine(recorded):
    trace, _, steps, _ = recorded(requests=requests(12))
    run = recorded_run(trace)
    assert run.num_requests == 12
    assert run.num_output_tokens == sum(r.stopping.max_tokens for r in requests(12))
    assert (run.num_rows, run.num_tokens) == tuple(map(sum, zip(*steps, strict=True)))
    assert len(run.ttft_s) == len(run.latency_s) == 12
    assert len(run.itl_s) == run.num_output_tokens - 12
    assert 0 < min(run.ttft_s) < max(run.latency_s) <= run.seconds


def test_the_last_credit_ends_a_request_where_it_did(recorded):
    def course(engine):
        limited = [replace(r, credit=(0, 3, 9, None)[i % 4]) for i, r in enumerate(requests(16))]
        for request_id in [engine.add(request).request_id for request in limited]:
            assert engine.change(request_id, Change(credit_is_final=True))
        drain(engine)

    trace, _, steps, _ = recorded(course)
    for i, request in enumerate(trace.requests):
        asked = requests(16)[i].stopping.max_tokens
        paid = (0, 3, 9, asked)[i % 4]
        assert (request.num_output, request.cancelled is None) == (
            min(paid, asked) or None,
            paid > 0,
        )
        request.arrival = 0
        request.cancelled = None if paid else 0
    assert shape(replay(trace, trace.header, STEP)) == steps


def test_a_request_cancelled_early_is_cancelled_in_the_replay():
    trace = draw_trace("nano", num_requests=8)
    trace.requests[3].cancelled = 1
    trace.requests[3].num_output = None
    replayed = replay(trace, trace.header.model_copy(update={"max_num_seqs": 2}), STEP)
    others = sum(r.num_output for i, r in enumerate(trace.requests) if i != 3)
    assert replayed.run.num_output_tokens == others
    assert replayed.run.num_requests == 8


def test_unknown_lengths_are_the_mean_of_the_known():
    known = [Request(0, 1, 99, num_output=n) for n in (10, 20)]
    unknown = [Request(0, 1, 99), Request(0, 1, 4)]
    assert output_lengths([*known, *unknown]) == [10, 20, 15, 4]
    assert output_lengths(unknown) == [99, 4]


def test_timeouts_and_refusals_are_counted_not_hidden(recorded):
    many = [
        EngineRequest(r.prompt, r.sampling, r.stopping, schedule=Schedule(queue_timeout_s=0.2))
        for r in requests(20)
    ]
    trace, _, _, _ = recorded(requests=many, max_num_seqs=16, max_num_batched_tokens=256)
    slow = settings_of(trace.header, ReplayOptions(max_num_seqs=1, max_queued_requests=12), None)
    for request in trace.requests:
        request.arrival = 0
    replayed = replay(trace, slow, STEP)
    assert set(replayed.unanswered) == {"QUEUE_FULL", "QUEUE_TIMEOUT"}
    assert replayed.run.num_requests + sum(replayed.unanswered.values()) == 20


def test_the_same_trace_has_the_same_figures(tmp_path):
    one, two = (draw_trace("prefix", num_requests=200, scale=8, seed=4) for _ in range(2))
    figures = [
        summarize("x", replay(t, t.header, STEP).run, max_num_seqs=256, max_num_batched_tokens=2048)
        for t in (one, two)
    ]
    assert figures[0] == figures[1]


def test_memory_stays_where_only_the_block_size_differs():
    header = draw_trace("nano", num_requests=1).header
    settings = settings_of(header, ReplayOptions(block_size=64), None)
    assert settings.num_kv_blocks * settings.kv_bytes_per_block == (
        header.num_kv_blocks * header.kv_bytes_per_block
    )
    small = settings_of(header, ReplayOptions(kv_cache_memory=8 * 2**20), None)
    assert small.num_kv_blocks == 4
    with pytest.raises(ConfigError, match="kv_cache_memory: expected at least"):
        settings_of(header, ReplayOptions(kv_cache_memory=1), None)


def test_the_core_refuses_settings_that_do_not_fit():
    trace = draw_trace("nano", num_requests=1)
    settings = settings_of(trace.header, ReplayOptions(max_num_batched_tokens=1), None)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        replay(trace, settings, STEP)


def test_options_replace_parts_of_the_step_time(recorded):
    trace, path, _, _ = recorded(requests=requests(12))
    fitted = step_time_of(trace.header, trace.steps, ReplayOptions())
    given = step_time_of(trace.header, trace.steps, ReplayOptions(step_per_token_s=0.25))
    assert given == fitted.model_copy(update={"per_token_s": 0.25})
    assert read_trace(path).header == trace.header


def test_requests_that_a_restart_cut_off_are_replayed_to_the_mean_of_the_others(recorded):
    def course(engine):
        engine.add(greedy([1] * 40, 50, ignore_eos=True))
        for _ in range(4):
            engine.step()
        engine.restart()
        for length in (4, 6):
            engine.add(greedy([2] * 20, length, ignore_eos=True))
        drain(engine)

    trace, _, _, _ = recorded(course)
    replayed = replay(trace, trace.header, STEP)
    assert replayed.run.num_requests == 3
    assert replayed.run.num_output_tokens == 5 + 4 + 6
    assert recorded_run(trace).num_requests == 2
