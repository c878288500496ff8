"""What `transformers` answers, one prompt at a time."""

import torch

TIE = 1e-5
"""Top two logits this close are a tie: rounding may choose either."""


def generate(reference, prompt, max_tokens):
    """Return the greedy continuation of a prompt."""
    ids = reference.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
    )
    return ids[0, len(prompt) :].tolist()


def assert_same_tokens(reference, prompt, got, expected):
    """Fail where an answer leaves the reference's, unless the reference is at a tie there."""
    if got == expected:
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    logits = reference(torch.tensor([prompt + expected[:at]])).logits[0, -1]
    first, second = logits.topk(2).values.tolist()
    assert first - second < TIE, f"token {at} differs: {got[at:][:1]}, not {expected[at:][:1]}"
