"""Log probabilities of given tokens, against the twin."""

import pytest
import torch
from chairlift import _core

from tests.kernels import reference


def score(logits, tokens, num_candidates):
    rows = len(logits)
    logprobs, ranks = torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
    ids = torch.zeros(rows, num_candidates, dtype=torch.int32)
    values = torch.zeros(rows, num_candidates)
    _core.score_tokens(logits, tokens, logprobs, ranks, ids, values)
    return logprobs, ranks, ids, values


@pytest.mark.parametrize("num_candidates", [0, 1, 20])
@pytest.mark.parametrize("vocab_size", [3, 61, 5003])
def test_they_equal_the_twin(vocab_size, num_candidates):
    random = torch.Generator().manual_seed(vocab_size)
    logits = 3 * torch.randn(40, vocab_size, generator=random)
    # Some logits are equal: ranks are the best, and candidates go by id.
    logits[::3] = logits[::3].round()
    tokens = torch.randint(vocab_size, (40,), generator=random, dtype=torch.int32)
    found = score(logits, tokens, num_candidates)
    expected = reference.score_tokens(logits, tokens, num_candidates)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(found[1], expected[1])
    width = min(num_candidates, vocab_size)
    assert torch.equal(found[2][:, :width], expected[2])
    torch.testing.assert_close(found[3][:, :width], expected[3], atol=1e-5, rtol=1e-5)
    assert (found[3][:, width:] == -torch.inf).all()


def test_the_bits_of_a_row_do_not_depend_on_the_others():
    logits = torch.randn(9, 700, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(9, dtype=torch.int32)
    together = score(logits, tokens, 5)
    for row in range(9):
        alone = score(logits[row : row + 1], tokens[row : row + 1], 5)
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_raise(value):
    logits = torch.zeros(3, 8)
    logits[1, 4] = value
    with pytest.raises(ArithmeticError, match="not finite"):
        score(logits, torch.zeros(3, dtype=torch.int32), 2)


@pytest.mark.parametrize("token", [-1, 8])
def test_a_token_that_there_is_not_is_refused(token):
    with pytest.raises(ValueError, match="tokens"):
        score(torch.zeros(1, 8), torch.tensor([token], dtype=torch.int32), 0)
