"""The options of one request, as both clients take them."""

from collections.abc import Sequence
from typing import TypedDict


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `new_start`; None takes the server's default."""

    max_tokens: int | None
    """Longest answer."""
    min_tokens: int | None
    """Shortest answer."""
    temperature: float | None
    """0 is greedy."""
    top_k: int | None
    """0 is off."""
    top_p: float | None
    """In (0, 1]."""
    min_p: float | None
    """In [0, 1]."""
    seed: int | None
    """For the same draws again."""
    n: int | None
    """Answers; each draws for itself."""
    stop: str | Sequence[str] | None
    """Texts that end the answer; a text alone is one of them."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end the answer, beside the model's own."""
    ignore_eos: bool | None
    """Go on after the model's own end tokens."""
    token_ids: bool | None
    """Send token ids beside text."""
    logprobs: bool | None
    """Send the log probability and rank of each token."""
    timeline: bool | None
    """Send where the time went, with the last event."""
    interval: int | None
    """Tokens per event after the first; 0 is one event at the end."""
    queue_timeout_s: float | None
    """Fail when not started by then."""
    time_to_first_token_s: float | None
    """Refuse what would miss this; of equals the most urgent goes first."""
    time_limit_s: float | None
    """End by then with what there is."""
    priority: int | None
    """-10 to 10, higher first."""
    credit: int | None
    """Tokens before the first `credit` of the request; None is no limit."""
    model: str | None
    """Name of the model; None is the served one."""
    request_id: str | None
    """Label, unique among the live requests of the stream; None is filled."""


NAMES = RequestOptions.__optional_keys__
