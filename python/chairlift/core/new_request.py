"""What `Scheduler.add` takes."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from chairlift._core import AnswerParser, StopRegex


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as the scheduler takes it; times are nanoseconds of its clock."""

    prompt: Sequence[int]
    _: KW_ONLY
    max_tokens: int
    """Output tokens of a sequence, at most what the context leaves."""
    num_sequences: int = 1
    """Each has a row of its own."""
    min_tokens: int = 0
    """No stop is looked for before this many output tokens."""
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    stop_regex: StopRegex | None = None
    include_stop: bool = False
    """The stop that matched stays part of the text."""
    end_ids: Sequence[int] = ()
    """Tokens that end a sequence whatever `min_tokens` says, and a later change of its stops."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    parser: AnswerParser | None = None
    """Finds reasoning and function calls in the text."""
    tenant: str = ""
    salt: str = ""
    """Requests share blocks of the prefix cache where tenant, salt and adapter are equal."""
    adapter: tuple[int, int] = (0, 0)
    """Slot and number of its load; slot 0 is no adapter."""
    cache_read: bool = True
    cache_write: bool = True
    echo: bool = False
    """The prompt is sent back, once for all sequences."""
    prompt_logprobs: bool = False
    queue_deadline: int | None = None
    """The request fails when it has not started by then."""
    first_token_by: int | None = None
    """It should have its first token by then; this only orders."""
    deadline: int | None = None
    """It ends with what there is by then."""
    credit: int | None = None
    """Output tokens, over all sequences, before more is given; None is no limit."""
    priority: int = 0
    """Higher is admitted first."""
    turn_delay: int = 0
    """The request stands in the queue as if it had arrived so much later."""
