"""What a recording holds, what it must not hold, and that it never hurts the engine."""

import json
import logging
from pathlib import Path

import pytest
from chairlift.api.errors import ConfigError
from chairlift.api.types import PrefixCache, Request, Schedule, Stopping
from chairlift.engine.engine import Engine
from chairlift.replay.recorder import TraceRecorder
from chairlift.replay.trace import read_trace
from chairlift.server.ops.recording import record

from tests.engine.drive import drain, end, greedy
from tests.engine.test_steps_in_flight import fail_on_the_device


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_header_has_the_settings_of_the_scheduler(recorded):
    trace, path, _, engine = recorded(requests=[greedy([1, 2, 3])], batch_size=3)
    assert lines(path)[0]["event"] == "header"
    header = trace.header
    assert (header.max_num_seqs, header.max_num_batched_tokens, header.batch_size) == (4, 32, 3)
    assert header.num_kv_blocks == engine.num_kv_blocks
    assert header.num_kv_blocks * header.kv_bytes_per_block == engine.runner.kv_cache.nbytes


def test_a_request_is_recorded_by_lengths_and_times(recorded):
    _, path, _, _ = recorded(requests=[greedy([7] * 40, 5, ignore_eos=True)])
    arrival, ended = (
        next(line for line in lines(path) if line["event"] == event) for event in ("arrival", "end")
    )
    assert (arrival["request"], arrival["prompt"], arrival["max_tokens"]) == (1, 40, 5)
    assert arrival["queue_timeout"] == 30_000_000_000
    assert (ended["request"], ended["tokens"], ended["reason"]) == (1, 5, "length")
    assert arrival["t"] < ended["first_token"] < ended["t"]


def test_steps_are_those_of_the_engine(recorded):
    requests = [greedy([i] * size, 6, ignore_eos=True) for i, size in enumerate((40, 3, 17, 9, 25))]
    trace, _, steps, _ = recorded(requests=requests)
    assert [(step.rows, step.tokens) for step in trace.steps] == steps
    prompts = sum(len(request.prompt) for request in requests)
    assert sum(step.prefill for step in trace.steps) == prompts
    assert trace.steps[0].context == trace.steps[0].tokens
    assert all(step.kv_tokens <= step.kv_blocks * 16 for step in trace.steps)
    gaps = sum(count for step in trace.steps for _, count in step.itl)
    assert gaps == 5 * (6 - 1)


def test_no_prompt_and_no_token_id_is_in_the_file(recorded):
    # Ids of three digits whose decimal and hexadecimal forms would be seen.
    prompt = [251, 263, 277, 281] * 10
    first, path, _, _ = recorded(requests=[greedy(prompt, 4, ignore_eos=True)])
    names = first.requests[0].blocks.tolist()
    assert len(names) == 2
    text = path.read_text()
    assert "251,263" not in text.replace(" ", "")
    second, _, _, _ = recorded(requests=[greedy(prompt, 4, ignore_eos=True)])
    # Each recording has another key: names cannot be compared across files.
    assert not set(names) & set(second.requests[0].blocks.tolist())


def test_equal_beginnings_have_equal_names_within_a_tenant_and_salt(recorded):
    same = [5] * 48
    prompts = [same, [*same[:20], 9, *same[21:]], same, same]
    requests = [Request(p, stopping=Stopping(max_tokens=1, ignore_eos=True)) for p in prompts]
    requests[2] = Request(same, stopping=Stopping(max_tokens=1), tenant="other")
    requests[3] = Request(
        same, stopping=Stopping(max_tokens=1), prefix_cache=PrefixCache(salt="pepper")
    )
    trace, _, _, _ = recorded(requests=requests)
    one, two, tenant, salted = (r.blocks.tolist() for r in trace.requests)
    assert one[0] == two[0]
    assert not set(one[1:]) & set(two[1:])
    assert len({one[0], tenant[0], salted[0]}) == 3
    assert [r.tenant for r in trace.requests] == [0, 0, 1, 0]


def test_a_cancel_records_what_the_client_had_got(recorded):
    def course(engine):
        early, late = (engine.add(greedy([i] * 8, 50, ignore_eos=True)).request_id for i in (1, 2))
        engine.abort(early)
        for _ in range(3):
            engine.step()
        engine.abort(late)
        drain(engine)

    trace, path, _, _ = recorded(course)
    cancels = [line for line in lines(path) if line["event"] == "cancel"]
    assert [line.get("tokens", 0) for line in cancels] == [0, 3]
    early, late = trace.requests
    assert (early.num_output, early.cancelled is None) == (None, False)
    assert (late.num_output, late.cancelled) == (3, None)


def test_a_failed_step_is_recorded_and_the_engine_goes_on(recorded):
    def course(engine):
        forward = engine.runner.model.forward

        def broken(input_ids, *args):
            if 300 in input_ids.tolist():
                raise MemoryError
            return forward(input_ids, *args)

        engine.runner.model.forward = broken
        engine.add(greedy([1, 2, 3], 3, ignore_eos=True))
        engine.add(greedy([300], 3, ignore_eos=True))
        drain(engine)

    trace, _, _, _ = recorded(course)
    assert [step.failed for step in trace.steps] == [True, False, False, False]


def test_a_recording_goes_on_after_a_restart_of_the_engine(recorded):
    def course(engine):
        engine.add(greedy([1] * 40, 9, ignore_eos=True))
        for _ in range(4):
            engine.step()
        engine.restart()
        engine.add(greedy([1] * 40, 5, ignore_eos=True))
        drain(engine)

    trace, path, steps, _ = recorded(course)
    kinds = [line["event"] for line in lines(path)]
    assert (kinds.count("header"), kinds.count("restart")) == (1, 1)
    lost = lines(path)[kinds.index("restart") - 1]
    assert (lost["event"], lost["request"], lost["reason"]) == ("end", 1, "ENGINE_DOWN")
    (restarted,) = trace.restarts
    first, second = trace.requests
    assert first.arrival < lost["t"] == restarted < second.arrival
    assert (first.num_output, first.ended, second.num_output) == (None, None, 5)
    # Block names stay comparable: it is one recording with one key.
    assert first.blocks[:2].tolist() == second.blocks[:2].tolist()
    assert [(step.rows, step.tokens) for step in trace.steps] == steps
    assert trace.steps[4].tokens == 32


def test_a_queue_timeout_ends_a_request_of_unknown_length(recorded):
    def course(engine):
        waits = Request([1], schedule=Schedule(queue_timeout_s=1.0))
        engine.add(greedy([1] * 4, 3, ignore_eos=True))
        engine.add(waits)
        engine.clock.advance(2)
        engine.flush()
        drain(engine)

    trace, _, _, _ = recorded(course, batching="static")
    assert [r.num_output for r in trace.requests] == [3, None]


def test_a_full_disk_stops_the_recording_and_nothing_else(tiny_folder, caplog):
    engine = Engine(tiny_folder, max_num_seqs=4, max_num_batched_tokens=32)
    recorder = TraceRecorder(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        record(engine, recorder)
        for _ in range(2):
            request_id = engine.add(greedy([1, 2, 3], 4, ignore_eos=True)).request_id
            assert end(drain(engine)[request_id]).reason == "length"
        recorder.close()
    (warning,) = caplog.records
    assert "no space left on device" in warning.getMessage()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^record: cannot write .*: no such file or directory$"):
        TraceRecorder(tmp_path / "nowhere" / "trace.jsonl")


def test_a_recording_without_requests_says_so(recorded, tmp_path):
    with pytest.raises(ConfigError, match="holds no request"):
        recorded(lambda engine: None)
    assert lines(tmp_path / "trace.jsonl")[0]["version"] == 1
    with pytest.raises(ConfigError, match="cannot read trace"):
        read_trace(tmp_path / "missing.jsonl")


def test_of_two_steps_in_flight_both_are_recorded_as_failed(recorded):
    def course(engine):
        fail_on_the_device(engine, lambda call: call == 2)
        engine.add(greedy([1, 2, 3], 4, ignore_eos=True))
        drain(engine)

    trace, _, _, _ = recorded(course, steps_in_flight=2)
    assert [step.failed for step in trace.steps] == [False, True, True, False, False, False]
    assert [step.tokens for step in trace.steps] == [3, 1, 1, 4, 1, 1]
