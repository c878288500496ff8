"""The fit finds the law of steps that follow one, and never a negative time."""

import numpy as np
import pytest
from chairlift.replay.format import Step
from chairlift.replay.step_time import fit


def step(seconds, tokens, context, *, failed=False):
    return Step(
        t=0,
        duration=round(seconds * 1e9),
        rows=1,
        tokens=tokens,
        prefill=0,
        context=context,
        kv_blocks=1,
        kv_tokens=1,
        failed=failed,
    )


@pytest.mark.parametrize(
    "law", [(5e-3, 4e-5, 4e-8), (0, 3e-4, 0), (2e-3, 0, 1e-7), (1e-3, 0, 0), (0, 0, 2e-8)]
)
def test_a_law_is_found(law):
    random = np.random.default_rng(1)
    shapes = [(int(t), int(c)) for t, c in random.integers(1, 4000, (200, 2))]
    steps = [step(law[0] + law[1] * t + law[2] * c, t, c) for t, c in shapes]
    found = fit([*steps, step(9.0, 1, 1, failed=True)])
    got = (found.fixed_s, found.per_token_s, found.per_context_token_s)
    assert got == pytest.approx(law, rel=1e-3, abs=1e-10)


def test_steps_that_get_shorter_with_work_get_no_negative_coefficient():
    found = fit([step(1.0 - 0.001 * t, t, 10 * t) for t in range(1, 100)])
    assert found.fixed_s == pytest.approx(0.95)
    assert (found.per_token_s, found.per_context_token_s) == (0, 0)


def test_steps_that_are_all_alike_have_a_fixed_time():
    found = fit([step(0.25, 7, 90)] * 5)
    assert found.fixed_s == pytest.approx(0.25)
    assert (found.per_token_s, found.per_context_token_s) == (0, 0)
