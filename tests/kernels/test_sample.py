"""Sampling against its PyTorch twin."""

import pytest
import torch
from chairlift import _core

from tests.kernels import reference


def sample(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, scored=None):
    """Draw one token per row; the position is the row's number."""
    rows = len(logits)
    tokens, ranks = (torch.empty(rows, dtype=torch.int32) for _ in range(2))
    logprobs = torch.empty(rows)
    _core.sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.full((rows,), seed),
        torch.zeros(rows, dtype=torch.int32),
        torch.arange(rows, dtype=torch.int32),
        tokens,
        logprobs,
        ranks,
        scored=scored,
    )
    return tokens, logprobs, ranks


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_that_is_not_scored_draws_the_same_token(temperature):
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(3))
    tokens, logprobs, ranks = sample(logits, temperature=temperature)
    scored = torch.tensor([1, 0, 1, 0, 0], dtype=torch.int32)
    drawn = sample(logits, temperature=temperature, scored=scored)
    assert torch.equal(drawn[0], tokens)
    assert torch.equal(drawn[1], logprobs * scored)
    assert torch.equal(drawn[2], ranks * scored)


def test_as_many_rows_are_scored_or_not_as_there_are():
    with pytest.raises(ValueError, match="scored: expected one per row: 2, got 1"):
        sample(torch.zeros(2, 8), scored=torch.ones(1, dtype=torch.int32))


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9, "min_p": 0.1}],
)
def test_draws_follow_the_distribution_of_the_twin(temperature, filters):
    logits = torch.randn(60, generator=torch.Generator().manual_seed(3))
    draws = 3000
    tokens, logprobs, ranks = sample(
        logits.expand(draws, -1).contiguous(), temperature=temperature, seed=11, **filters
    )
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    expected = reference.probabilities(logits.double(), temperature, **off | filters)
    got = torch.bincount(tokens, minlength=60) / draws
    deviation = (expected * (1 - expected) / draws).sqrt()
    assert ((got - expected).abs() <= 5 * deviation + 1e-12).all()
    torch.testing.assert_close(logprobs, logits.log_softmax(0)[tokens], rtol=0, atol=1e-5)
    order = torch.argsort(logits, descending=True)
    assert torch.equal(order[ranks - 1], tokens.long())


def test_a_draw_does_not_depend_on_its_batch():
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(3))
    together = sample(logits, top_p=0.9)[0]
    half = sample(logits[:10], top_p=0.9)[0]
    assert torch.equal(together[:10], half)


def test_a_seed_may_have_all_64_bits():
    logits = torch.zeros(64, 1000)
    seeds = (0, -1, 1 << 62, -(1 << 63))
    drawn = {tuple(sample(logits, seed=seed)[0].tolist()) for seed in seeds}
    assert len(drawn) == len(seeds)


def test_a_poisoned_row_is_reported_and_harms_no_other():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(3))
    sound = sample(logits)[0]
    logits[1, 7] = torch.nan
    tokens = sample(logits)[0]
    assert tokens.tolist() == [sound[0], -1, sound[2]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, "^temperature: expected finite and at least 0, got -1$"),
        ({"top_k": -2}, "^top_k: expected at least 0, got -2$"),
        ({"top_p": 0.0}, "^top_p: expected above 0 and at most 1, got 0$"),
        ({"min_p": 1.5}, "^min_p: expected 0 to 1, got 1.5$"),
    ],
)
def test_parameters_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        sample(torch.zeros(1, 4), **wrong)
