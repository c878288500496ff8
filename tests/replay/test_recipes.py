"""Recipes against the statistics of the traces that they stand for."""

import numpy as np
import pytest
from chairlift.api.config import Batching
from chairlift.replay.format import StepTime
from chairlift.replay.padding import replay_padded
from chairlift.replay.recipes import RECIPES, draw_trace
from chairlift.replay.run import replay

MANY = 20_000


def percentiles(values, *which):
    return np.percentile(values, which)


def test_chat_is_like_the_conversations_of_azure(lengths_of):
    prompts, answers, times = lengths_of("chat", num_requests=MANY)
    # The median of the trace, 1020, is a mode of its own that no log-normal law has.
    assert percentiles(prompts, 10, 25, 90, 95) == pytest.approx([207, 396, 2735, 4083], rel=0.1)
    assert prompts.mean() == pytest.approx(1154.7, rel=0.1)
    assert percentiles(answers, 10, 25, 50, 75, 90) == pytest.approx(
        [54, 85, 129, 395, 424], rel=0.2
    )
    assert answers.mean() == pytest.approx(211.1, rel=0.1)
    assert answers.max() <= 1000
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(5.53, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, rel=0.1)
    # Lengths are drawn independently.
    assert abs(np.corrcoef(np.log(prompts), np.log(answers))[0, 1]) < 0.03


def test_code_is_like_the_completions_of_azure(lengths_of):
    prompts, answers, times = lengths_of("code", num_requests=MANY)
    assert prompts.mean() == pytest.approx(2047.8, rel=0.1)
    assert percentiles(prompts, 75, 95) == pytest.approx([2745, 7303], rel=0.1)
    assert percentiles(answers, 25, 75, 90) == pytest.approx([9, 24, 55], rel=0.25)
    assert answers.mean() == pytest.approx(27.9, rel=0.2)
    gaps = np.diff(times)
    # Bursts within minutes, and minutes with hardly any.
    assert gaps.std() / gaps.mean() > 3.2


def test_sharegpt_opt_has_the_means_of_the_paper_within_the_context_of_opt(lengths_of):
    prompts, answers, _ = lengths_of("sharegpt-opt", num_requests=MANY)
    # Cut at 1,024, so that the means are somewhat below 161 and 338.
    assert prompts.mean() == pytest.approx(161, rel=0.1)
    assert answers.mean() == pytest.approx(338, rel=0.1)
    assert (prompts + answers).max() <= 2048


def test_long_sends_its_history_again(lengths_of):
    prompts, answers, _ = lengths_of("long", num_requests=MANY)
    assert prompts.mean() == pytest.approx(12_035, rel=0.1)
    assert percentiles(prompts, 50, 75, 90) == pytest.approx([6909, 15_367, 27_367], rel=0.15)
    assert answers.max() == 2000
    seen, num_pages, num_known = set(), 0, 0
    for request in draw_trace("long", num_requests=2000).requests:
        # The name of a page's last block depends on all blocks before it.
        pages = request.blocks[31::32].tolist()
        num_pages += len(pages)
        num_known += len(seen.intersection(pages))
        seen.update(pages)
    assert num_known / num_pages == pytest.approx(0.37, abs=0.05)


def test_sharegpt_like_has_the_means_of_the_sample(lengths_of):
    prompts, answers, _ = lengths_of("sharegpt-like", num_requests=MANY)
    assert prompts.mean() == pytest.approx(202, rel=0.06)
    assert answers.mean() == pytest.approx(180, rel=0.05)


@pytest.mark.parametrize("cap", [32, 128, 512, 1536])
def test_anyscale_is_exponential_up_to_its_cap(lengths_of, cap):
    name = "anyscale" if cap == 1536 else f"anyscale-{cap}"
    prompts, answers, times = lengths_of(name, num_requests=MANY)
    assert set(prompts) == {512}
    assert answers.max() <= cap
    # Lengths above the cap are drawn again: they do not heap up at it.
    assert (answers == cap).mean() < 2 / cap
    assert answers.mean() == pytest.approx(128 - cap / np.expm1(cap / 128), rel=0.03)
    assert not times.any()


@pytest.mark.parametrize(("cap", "rows"), [(32, 16), (128, 12), (512, 8), (1536, 4)])
def test_static_batches_of_anyscale_have_its_number_of_rows(cap, rows):
    trace = draw_trace("anyscale" if cap == 1536 else f"anyscale-{cap}", num_requests=40)
    # A step has room for all prompts, so that no answer ends before the last prompt of its batch.
    wide = trace.header.model_copy(update={"max_num_batched_tokens": 40 * 512})
    static = wide.model_copy(update={"batching": Batching.STATIC})
    assert max(replay(trace, static, trace.header.step_time).step_rows) == rows
    assert max(replay(trace, wide, trace.header.step_time).step_rows) == 40


def test_padded_batches_take_the_steps_of_the_longest_and_count_what_was_asked_for():
    trace = draw_trace("anyscale-32", num_requests=48)
    lengths = [r.num_output for r in trace.requests]
    settings = trace.header.model_copy(update={"max_num_batched_tokens": 16 * 512})
    step = StepTime(fixed_s=1, per_token_s=0, per_context_token_s=0)
    padded = replay_padded(trace, settings, step)
    plain = replay(trace, settings.model_copy(update={"batching": Batching.STATIC}), step)
    assert padded.run.num_output_tokens == plain.run.num_output_tokens == sum(lengths)
    # The step of the prompts gives the first tokens.
    assert padded.run.num_steps == 3 * max(lengths)
    assert plain.run.num_steps == sum(max(lengths[i : i + 16]) for i in (0, 16, 32))
    assert padded.run.num_prompt_tokens == 48 * 512


def test_nano_is_uniform(lengths_of):
    prompts, answers, _ = lengths_of("nano", num_requests=MANY)
    for lengths in (prompts, answers):
        assert (lengths.min(), lengths.max()) == (100, 1024)
        assert lengths.mean() == pytest.approx(562, rel=0.02)
    assert len(draw_trace("nano").requests) == 256


def test_prefix_shares_a_few_beginnings_much():
    requests = draw_trace("prefix", num_requests=MANY).requests
    first, counts = np.unique([r.blocks[0] for r in requests], return_counts=True)
    assert len(first) == 64
    popular = np.sort(counts)[::-1] / MANY
    assert popular[0] / popular[1] == pytest.approx(2**1.1, rel=0.1)
    assert all(32 <= len(r.blocks) <= 128 and r.num_prompt > 16 * len(r.blocks) for r in requests)


def test_burst_brings_ten_times_as_much_for_five_seconds_of_each_minute(lengths_of):
    _, _, times = lengths_of("burst", num_requests=MANY, rate_per_s=2)
    in_burst = times % 60 >= 55
    minutes = times[-1] / 60
    assert in_burst.sum() / (5 * minutes) == pytest.approx(20, rel=0.1)
    assert (~in_burst).sum() / (55 * minutes) == pytest.approx(2, rel=0.1)


def test_scaling_down_keeps_the_shape(lengths_of):
    prompts, answers, _ = lengths_of("chat", num_requests=MANY)
    small_prompts, small_answers, _ = lengths_of("chat", num_requests=MANY, scale=8)
    assert small_prompts.max() <= 1024
    assert small_answers.mean() == pytest.approx(answers.mean() / 8, rel=0.02)
    assert small_answers.std() / small_answers.mean() == pytest.approx(
        answers.std() / answers.mean(), rel=0.02
    )
    assert small_prompts.mean() == pytest.approx(prompts.mean() / 8, rel=0.05)


@pytest.mark.parametrize("name", RECIPES)
def test_a_seed_determines_the_trace(name):
    def key(seed):
        requests = draw_trace(name, num_requests=50, seed=seed).requests
        return [(r.arrival, r.num_prompt, r.num_output, r.blocks.tolist()) for r in requests]

    assert key(1) == key(1) != key(2)
