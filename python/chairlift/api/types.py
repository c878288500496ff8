"""The values of the engine: requests in, events out. No proto, no tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chairlift.api.errors import Reason


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | str = field(default_factory=dict)
    """JSON schema of its arguments, perhaps as a text; empty takes an object without properties."""
    strict: bool = False
    """Whether calls are held to their schemas, those of other tools included."""


class ToolMode(StrEnum):
    """Whether an answer calls functions."""

    AUTO = "auto"
    """The model chooses."""
    NONE = "none"
    """Never: the model does not see the tools."""
    REQUIRED = "required"
    """At least once."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which functions an answer calls."""

    mode: ToolMode = ToolMode.AUTO
    name: str = ""
    """The function that must be called, if it must be this one; the mode is `REQUIRED` then."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call of the model."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """An object, or a text, which need not be JSON; in an answer the text."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a function call in a stream."""

    position: int
    """Number of the call within the answer."""
    id: str = ""
    """Set in the first part."""
    name: str = ""
    """Set in the first part."""
    arguments: str = ""
    """The next piece of the JSON text."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str
    name: str = ""
    reasoning: str = ""
    """What the model thought, in an assistant turn."""
    tool_calls: Sequence[ToolCall] = ()
    """Functions that an assistant turn calls."""
    tool_call_id: str = ""
    """Id of the call that a tool turn answers."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, rendered by the model's own template.

    Messages, tools and the tool choice may be mappings as the OpenAI API writes them.
    """

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """Whether an answer may hold more than one call."""


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Chat
"""Text, token ids or a conversation; mappings with `role` and `content` are its messages."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sampling:
    """How the next token is drawn; None takes the model's default, then the engine's."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    """Answers to one prompt, which is computed once. Answer i does not depend on `n`."""
    repetition_penalty: float | None = None
    """Makes tokens of prompt and output less likely; 1 is off."""
    presence_penalty: float | None = None
    """Subtracted from the logits of tokens of the output; 0 is off."""
    frequency_penalty: float | None = None
    """The same, times the number of such tokens."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these ids."""
    typical_p: float | None = None
    top_n_sigma: float | None = None
    dry_multiplier: float | None = None
    """Factor of the penalty of a token that would continue a repeated sequence; 0 is off."""
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    """Texts over which no sequence reaches; None takes a line break, a colon, `"` and `*`."""
    dry_penalty_last_n: int | None = None
    """So many tokens at the end are looked at; None is all."""
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    allowed_token_ids: Sequence[int] = ()
    """Only these are drawn; an empty list allows all."""
    banned_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    """Texts that no answer holds as the tokenizer encodes them, with a space before and without."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Stopping:
    """When an answer ends."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    """Texts that end the answer; a single text is a list of one."""
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    stop_regex: str | Sequence[str] = ()
    """Patterns that end the answer where they first match, as `stop` does; no anchors."""


@dataclass(frozen=True, slots=True)
class Output:
    """What comes back."""

    text: bool = True
    logprobs: bool = False
    candidates: int = 0
    """The likeliest tokens that come with each log probability, at most 20."""
    skip_special_tokens: bool = True
    prompt_logprobs: bool = False
    """The same as `logprobs` for the prompt; such a request does not read the prefix cache."""
    prompt_candidates: int = 0
    echo: bool = False
    """Whether the text of the prompt comes back."""

    @property
    def has_prompt(self) -> bool:
        """Whether the prompt comes back."""
        return self.echo or self.prompt_logprobs


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a request runs; None takes the engine's default.

    A higher priority, -10 to 10, starts first: as if the request had come ten seconds earlier for
    each level. Among equals the one that has to start first does. Times count from its arrival.
    """

    queue_timeout_s: float | None = None
    time_limit_s: float | None = None
    priority: int = 0
    time_to_first_token_s: float | None = None
    """A target: it orders, and a server refuses what would miss it."""
    turn_delay_s: float = 0.0
    """How much later it stands in the queue: a call with many requests takes turns with others."""


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What a request shares."""

    read: bool = True
    write: bool = True
    salt: str = ""


class PoolingTask(StrEnum):
    """What a request yields instead of text."""

    EMBED = "embed"  # a vector
    CLASSIFY = "classify"  # a score for each label of a classifier; a reranker has one label


@dataclass(frozen=True, slots=True)
class Pooling:
    """Asks for a vector or scores instead of text."""

    task: PoolingTask = PoolingTask.EMBED
    pooling: str | None = None  # `cls`, `mean`, `max` or `last`; None is the model's own
    normalize: bool | None = None  # to length 1; None is the model's own
    dimensions: int | None = None  # numbers at the start of the vector; None is all
    text_pair: str | None = None  # second text of a pair, whose first is the prompt
    truncate_end: bool = False  # leave out the end of an input that is too long, else refuse it
    prompt_name: str | None = None  # of the model's text before the input; None is its default
    input_type: str | None = None  # what the input is for, such as `query`: names the text, too


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must be; one of these is set.

    Only tokens that keep the answer within it are drawn, and an answer ends where it is complete.
    """

    json_schema: Mapping[str, Any] | bool | str | None = None
    """A value that this JSON schema describes; as a text, JSON."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A text that this regular expression (of Rust's `regex` crate) matches as a whole."""
    lark: str | None = None
    """A text of this grammar, in the form of Lark that `llguidance` reads."""
    choices: Sequence[str] = ()
    """One of these texts."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to answer it."""

    prompt: Prompt
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    output: Output = Output()
    schedule: Schedule = Schedule()
    prefix_cache: PrefixCache = PrefixCache()
    add_special_tokens: bool = True
    truncate_prompt: int | None = None
    adapter: str = ""
    """Name of an adapter (LoRA) that the engine has loaded; empty is the model alone."""
    constraint: Constraint | None = None
    tenant: str = ""
    credit: int | None = None
    """Output tokens that all its answers may produce before `Change.credit` adds more; None is no
    limit."""
    pooling: Pooling | None = None
    """Set, the request ends with its prompt; sampling, stopping and output do not matter."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes different about a live request from its next step on; None leaves it as it is.

    What is set replaces the whole of the old one, with the defaults of a new request.
    """

    stopping: Stopping | None = None
    """Stops are looked for in text that was not given out before."""
    schedule: Schedule | None = None
    credit: int = 0
    """More output tokens; no effect on a request without a limit of credit."""
    credit_is_final: bool = False
    """No more credit follows: each answer ends with the last token that its credit pays for.

    An answer that has that token already ends at once. An answer without credit for any token is
    cancelled.
    """
    paused: bool | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer; the prompt counts for the first answer of a request alone."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    transferred_tokens: int = 0
    """Cached tokens whose blocks came from a prefill server, or from disk, for this request."""


class RequestState(StrEnum):
    """What a live request is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"


class WaitCause(StrEnum):
    """What a request waits for."""

    STEP = "step"
    """The step that is being computed: it came after that was planned."""
    ROW = "row"
    """Every row of the batch is taken."""
    BLOCKS = "blocks"
    """The KV cache has too few free blocks."""
    BUDGET = "budget"
    """The step's tokens, or its time, are spent on others."""
    POLICY = "policy"
    """Static or dynamic batching: a batch runs, or is not full yet."""
    SHARE = "share"
    """Another tenant is next: this one is over its fair share."""
    SUSPENDED = "suspended"
    """It is paused, or has no credit."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The state of a live request, as of the last step that was planned."""

    state: RequestState
    cause: WaitCause | None
    """None while it runs."""
    num_before: int
    """Requests before it in the queue; with several tenants as if they took turns."""
    num_computed_tokens: int
    """Whose keys and values are written, or will be by the step that runs."""
    num_tokens: int
    """Prompt and output so far."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time went, in seconds; None where the request never got there."""

    queued_s: float
    queued_by_cause_s: Mapping[WaitCause, float]
    """The parts of `queued_s` that are not 0."""
    prefill_s: float | None
    decode_s: float | None
    num_preemptions: int
    num_recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of chosen tokens, token by token; rank 1 is the likeliest."""

    logprobs: Sequence[float]
    ranks: Sequence[int]
    candidates: Sequence[Sequence[tuple[int, float]]] = ()
    """The likeliest ids of each token and their log probabilities; empty unless requested."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is queued."""

    request_id: int
    num_prompt_tokens: int
    queue_position: int
    seed: int


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A piece of the prompt of a request, disjoint from all before; it precedes all output."""

    request_id: int
    offset: int
    """Position of its first token."""
    text: str
    token_ids: Sequence[int]
    logprobs: Logprobs | None = None
    """Log probabilities of these tokens; the first of a prompt has none."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """New output, disjoint from all before."""

    request_id: int
    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Logprobs | None = None
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer is complete; nothing follows for it."""

    request_id: int
    index: int
    reason: FinishReason
    stop: str | None
    stop_token_id: int | None
    usage: Usage
    timeline: Timeline
    last: bool = True
    """Nothing follows for the request."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended by an error with all its answers, or was refused; nothing follows."""

    request_id: int
    reason: Reason
    message: str
    field: str = ""
    usage: Usage | None = None
    timeline: Timeline | None = None
    retry_after_s: float | None = None


Event = Accepted | PromptPiece | Tokens | Finished | Failed


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """The prompt of a complete answer, as far as the output asks for it."""

    text: str
    token_ids: list[int]
    logprobs: list[float | None]
    """Log probability of each token; None for the first, and no list without them."""
    candidates: list[Sequence[tuple[int, float]]]
    """Candidates of each token, an empty list for the first; no list unless requested."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer of `Engine.generate`."""

    text: str
    token_ids: list[int]
    reason: FinishReason
    usage: Usage
    timeline: Timeline
    logprobs: list[float] | None = None
    candidates: list[Sequence[tuple[int, float]]] | None = None
    """The likeliest ids of each token and their log probabilities."""
    index: int = 0
    """Which of the answers to its prompt."""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    prompt: PromptAnswer | None = None
    """Where the output asks for it; the same for all answers to a prompt."""
