"""What `transformers` answers, one prompt at a time."""

import torch

TIE = 1e-5
"""Top two logits this close are a tie: rounding may choose either."""


def assert_greedy(reference, prompt, answer):
    """Fail at the first token that is not the reference's choice, unless that is at a tie there.

    One pass over prompt and answer has the choice at each position: a model that writes the same
    tokens one by one computes the same, and takes as many passes as there are tokens.
    """
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0]
    for at, (row, token) in enumerate(zip(logits[len(prompt) - 1 :], answer, strict=True)):
        gap = float(row.max() - row[token])
        assert gap < TIE, f"token {at} is {token}, not {int(row.argmax())}: {gap} apart"
