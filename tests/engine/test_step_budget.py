"""A budget of time: prompts are cut into chunks that fit, and answers stay what they are."""

import pytest

from tests.engine.drive import greedy, run, token_ids
from tests.engine.tiny_model import prompts

FIXED_S, TOKEN_S = 0.01, 0.001
"""What a step takes on this machine: 10 ms, and 1 ms for each token."""


@pytest.fixture
def timed(make_engine, clock):
    """Build engines whose steps take their time; return also the tokens of each step."""

    def build(**settings):
        engine, steps = make_engine(max_num_batched_tokens=256, **settings), []
        compute = engine.runner.run

        def run_timed(inputs):
            steps.append(len(inputs.input_ids))
            clock.advance(FIXED_S + TOKEN_S * steps[-1])
            return compute(inputs)

        engine.runner.run = run_timed
        return engine, steps

    return build


def test_once_it_is_learnt_no_step_takes_longer_than_its_budget(timed):
    engine, steps = timed(step_budget_s=0.05)
    # What the server's own requests at its start teach.
    for num_prompt in (120, 30):
        run(engine, [greedy([1] * num_prompt, 4)])
    steps.clear()
    chats = [greedy([i + 1], 40) for i in range(8)]
    run(engine, [*chats, greedy(list(range(1, 120)), 4)])
    longest_s = FIXED_S + TOKEN_S * max(steps)
    assert 0.8 * 0.05 < longest_s < 1.1 * 0.05


def test_a_prompt_comes_to_its_end_though_the_decodes_take_all_the_time(timed):
    engine, steps = timed(step_budget_s=0.001)
    run(engine, [greedy([i + 1], 40) for i in range(4)])
    steps.clear()
    run(engine, [greedy(list(range(1, 101)), 2)])
    assert steps == [16] * 6 + [4, 1]


def test_answers_do_not_depend_on_the_budget(timed):
    requests = [greedy(prompt, 12) for prompt in prompts(6)]
    (plain, whole), (cut, chunks) = timed(), timed(step_budget_s=0.02)
    expected = [token_ids(events) for events in run(plain, requests)]
    # Twice: at first nothing is known.
    for _ in range(2):
        assert [token_ids(events) for events in run(cut, requests)] == expected
    assert max(chunks[len(chunks) // 2 :]) < max(whole)
