"""Timelines of replays and of recorded runs: both say what the scheduler did."""

import json
from pathlib import Path

import pytest
from chairlift.api.errors import ConfigError
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import replay
from chairlift.replay.step_time import DEFAULT
from chairlift.replay.trace import read_trace
from chairlift.timeline.from_replay import ReplayTimeline
from chairlift.timeline.from_trace import recorded_timeline
from chairlift.timeline.values import Timeline, Work

from tests.engine.drive import drain, greedy
from tests.replay.conftest import recorded

__all__ = ["recorded"]


def replayed(max_steps: int | None = None, **changed: object) -> tuple[Timeline, int]:
    """Return the timeline of six requests in four rows, and its steps."""
    trace = draw_trace("nano", num_requests=6)
    settings = trace.header.model_copy(update={"max_num_seqs": 4, **changed})
    steps = ReplayTimeline(settings, trace.requests, max_steps=max_steps)
    result = replay(trace, settings, DEFAULT, steps.note)
    return steps.timeline(), result.run.num_steps


def test_a_replay_has_every_step_and_every_row_of_it() -> None:
    timeline, num_steps = replayed()
    assert timeline.num_steps == num_steps
    requests = draw_trace("nano", num_requests=6).requests
    for index, request in enumerate(requests):
        own = [span for span in timeline.spans if span.request == index]
        assert sum(s.num_tokens for s in own if s.work is Work.PREFILL) == request.num_prompt
        assert [span.num_steps for span in own if span.work is Work.FINISH] == [1]
        # The last chunk of the prompt gives the first token.
        decoded = sum(s.num_tokens for s in own if s.work in (Work.DECODE, Work.FINISH))
        assert decoded == (request.num_output or 0) - 1


def test_a_preemption_after_the_last_noted_step_is_not_in_the_timeline() -> None:
    whole, _ = replayed(num_kv_blocks=150)
    first = min(lost.step for lost in whole.preemptions)
    # The step after the last one in the row is the one before which it was lost.
    assert not replayed(first + 1, num_kv_blocks=150)[0].preemptions
    assert replayed(first + 2, num_kv_blocks=150)[0].preemptions


def test_steps_follow_one_another_and_know_the_blocks_in_use() -> None:
    timeline, _ = replayed()
    steps = timeline.steps
    assert (steps.start_ns[1:] >= steps.end_ns[:-1]).all()
    assert steps.num_used_blocks.max() <= timeline.num_blocks
    assert steps.num_used_blocks.max() > 0
    assert (steps.num_waiting[0], steps.num_waiting[-1]) == (3, 0)


def test_a_recording_is_drawn_as_it_is_replayed(recorded) -> None:  # type: ignore[no-untyped-def]
    requests = [greedy([i] * size, 6, ignore_eos=True) for i, size in enumerate((40, 3, 17, 9, 25))]
    trace, _, _, _ = recorded(requests=requests)
    drawn = recorded_timeline(trace)
    again = ReplayTimeline(trace.header, trace.requests)
    replay(trace, trace.header, DEFAULT, again.note)
    expected = again.timeline()
    assert drawn.spans == expected.spans
    assert drawn.steps.num_used_blocks.tolist() == expected.steps.num_used_blocks.tolist()


def test_a_recorded_preemption_is_drawn(recorded) -> None:  # type: ignore[no-untyped-def]
    def course(engine):  # type: ignore[no-untyped-def]
        for prompt in range(4):
            engine.add(greedy([prompt] * 30, 60, ignore_eos=True))
        drain(engine)

    trace, _, _, engine = recorded(course, kv_cache_memory=small_cache(recorded))
    drawn = recorded_timeline(trace)
    assert engine.load().num_preemptions == len(drawn.preemptions) > 0


def small_cache(recorded) -> int:  # type: ignore[no-untyped-def]
    """Return the bytes of twelve blocks."""
    trace, _, _, _ = recorded(requests=[greedy([1, 2, 3], 1)])
    return 12 * trace.header.kv_bytes_per_block


def test_a_recording_that_does_not_say_what_rows_did_is_refused(recorded, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, path, _, _ = recorded(requests=[greedy([1, 2, 3], 4, ignore_eos=True)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("changes", None)
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="step 1 of the trace says what 0 of its 1 rows did"):
        recorded_timeline(read_trace(old))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([9, 1, 0, 3, 0, 0], "expected a row below 4, got 9"),
        ([0, 1, 0], "expected 1 or 6 numbers, got 3"),
        ([0, 1, 3, 3, 0, 0], "expected work below 3, got 3"),
        ([0, 2, 0, 3, 0, 0], "request 2 has not arrived"),
    ],
)
def test_a_change_that_means_nothing_names_its_step(  # type: ignore[no-untyped-def]
    recorded, change: list[int], message: str
) -> None:
    trace, _, _, _ = recorded(requests=[greedy([1, 2, 3], 4, ignore_eos=True)])
    trace.steps[0] = trace.steps[0].model_copy(update={"changes": [change]})
    with pytest.raises(ConfigError, match=f"step 1 of the trace: .*{message}"):
        recorded_timeline(trace)
