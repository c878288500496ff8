"""The options of one request, as both clients take them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from chairlift.api.types import Constraint, Tool, ToolChoice


class StoppingOptions(TypedDict, total=False):
    """When an answer ends."""

    max_tokens: int | None
    """Most tokens of an answer."""
    min_tokens: int | None
    """Fewest tokens of an answer."""
    stop: str | Sequence[str] | None
    """Texts that end the answer; a single text is a list of one."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end the answer, in addition to the model's own."""
    ignore_eos: bool | None
    """Continue after the model's own end tokens."""
    include_stop: bool | None
    """Keep the stop string, or what matched a pattern, in the text."""
    stop_regex: str | Sequence[str] | None
    """Patterns that end the answer where they first match."""


class ScheduleOptions(TypedDict, total=False):
    """When a request runs."""

    queue_timeout_s: float | None
    """Fail if not started by then."""
    time_to_first_token_s: float | None
    """Refuse the request if it would miss this; of equal requests the most urgent starts first."""
    time_limit_s: float | None
    """End by then with the tokens so far."""
    priority: int | None
    """-10 to 10, higher first."""


class UpdateOptions(StoppingOptions, ScheduleOptions, total=False):
    """Keyword arguments of `update`; None is as absent.

    One option of `StoppingOptions` replaces all of them, and one of `ScheduleOptions` all of those:
    what is not given takes the server's default.
    """


class RequestOptions(StoppingOptions, ScheduleOptions, total=False):
    """Keyword arguments of `generate` and `new_start`; None takes the server's default."""

    temperature: float | None
    """0 is greedy."""
    top_k: int | None
    """0 is off."""
    top_p: float | None
    """In (0, 1]."""
    min_p: float | None
    """In [0, 1]."""
    typical_p: float | None
    """In (0, 1]."""
    top_n_sigma: float | None
    """0 is off."""
    repetition_penalty: float | None
    """Penalty of tokens of prompt and output; 1 is off."""
    presence_penalty: float | None
    """Penalty of tokens of the output; 0 is off."""
    frequency_penalty: float | None
    """Penalty of tokens of the output, by their number; 0 is off."""
    dry_multiplier: float | None
    """Factor of the penalty of a token that would continue a repeated sequence; 0 is off."""
    dry_base: float | None
    """At least 1."""
    dry_allowed_length: int | None
    """Tokens that may be repeated."""
    dry_sequence_breakers: str | Sequence[str] | None
    """Texts over which no repeated sequence reaches."""
    dry_penalty_last_n: int | None
    """Tokens at the end that are searched; None is all."""
    xtc_probability: float | None
    """In [0, 1]; 0 is off."""
    xtc_threshold: float | None
    """In [0, 1]."""
    logit_bias: Mapping[int, float] | None
    """Numbers from -100 to 100 that are added to logits, by token id."""
    allowed_token_ids: Sequence[int] | None
    """Only these tokens are drawn."""
    banned_token_ids: Sequence[int] | None
    """These tokens are never drawn."""
    bad_words: str | Sequence[str] | None
    """Texts that no answer holds."""
    seed: int | None
    """Seed of the draws."""
    n: int | None
    """Number of answers, drawn independently."""
    tools: Sequence[Tool | Mapping[str, Any]] | None
    """Functions that the model may call; the prompt is a conversation then."""
    tool_choice: ToolChoice | Mapping[str, Any] | str | None
    """auto, none, required, or a function."""
    parallel_tool_calls: bool | None
    """Allow more than one call."""
    skip_special_tokens: bool | None
    """Leave special tokens out of the text; None is True."""
    token_ids: bool | None
    """Send token ids beside text."""
    logprobs: bool | int | None
    """Send the log probability and rank of each token; a number: with so many candidates."""
    prompt_logprobs: bool | int | None
    """The same for the prompt."""
    echo: bool | None
    """Send the prompt back."""
    timeline: bool | None
    """Send the timeline with the last event."""
    interval: int | None
    """Tokens per event after the first; 0 is one event at the end."""
    credit: int | None
    """Tokens allowed before the first `credit` command; None is no limit."""
    resume_window_s: float | None
    """Outlive a lost connection for this long; the client resumes by itself."""
    adapter: str | None
    """Name of an adapter (LoRA) of the server."""
    constraint: Constraint | None
    """What an answer must be: a JSON schema, a regular expression, a grammar, one of some texts."""
    model: str | None
    """Name of the model; None is the served one."""
    request_id: str | None
    """Label, unique among the live requests of the stream; None chooses one."""


NAMES = RequestOptions.__optional_keys__
STOPPING_NAMES = StoppingOptions.__optional_keys__
SCHEDULE_NAMES = ScheduleOptions.__optional_keys__
