"""When an answer ends, from a request as a client writes it to what the scheduler takes."""

from dataclasses import dataclass
from typing import NamedTuple

from chairlift import _core
from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import NOTHING, PoolingAbilities
from chairlift.api.types import Stopping
from chairlift.engine.prepare.prepared import StopConditions
from chairlift.engine.prepare.shared import Shared
from chairlift.engine.prepare.text_queue import TextLimits

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 128
MAX_STOP_TOKEN_IDS = 128
MAX_STOP_PATTERNS = 4
MAX_PATTERN_BYTES = 512

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the model and this server can hold."""

    vocab_size: int
    """Width of the logits."""
    text: TextLimits
    eos_token_ids: tuple[int, ...]
    max_answers: int
    """Answers of one request."""
    has_scores: bool = True
    """Whether the device scores prompts."""
    pooling: PoolingAbilities = NOTHING


class Stops(NamedTuple):
    """What ends an answer but its length."""

    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    patterns: tuple[str, ...]


class StoppingPreparer:
    """Checks when answers end; holds no state that changes."""

    def __init__(self, default_max_tokens: int | None, limits: RequestLimits) -> None:
        """Keep the limits.

        Args:
            default_max_tokens: Tokens of an answer; None is what the context leaves.
            limits: Limits of the model and the server.
        """
        self._default_max_tokens = default_max_tokens
        self._limits = limits
        self._compiled: Shared[_core.StopRegex | None] = Shared()

    def stops(self, params: Stopping, path: str = "") -> Stops:
        """Check what ends an answer; patterns are not compiled yet.

        Raises:
            RequestError: With the path of the field that is wrong.
        """
        stop = checks.strings(
            params.stop, f"{path}stopping.stop", limit=MAX_STOP_STRINGS, max_bytes=MAX_STOP_BYTES
        )
        patterns = checks.strings(
            params.stop_regex,
            f"{path}stopping.stop_regex",
            limit=MAX_STOP_PATTERNS,
            max_bytes=MAX_PATTERN_BYTES,
        )
        ids_path = f"{path}stopping.stop_token_ids"
        ids = checks.token_ids(params.stop_token_ids, ids_path, self._limits.vocab_size)
        checks.check_count(ids, ids_path, MAX_STOP_TOKEN_IDS)
        ignore_eos = checks.flag(params.ignore_eos, f"{path}stopping.ignore_eos")
        eos_ids = () if ignore_eos else self._limits.eos_token_ids
        return Stops(stop, tuple(dict.fromkeys((*eos_ids, *ids))), patterns)

    def conditions(
        self,
        params: Stopping,
        stops: Stops,
        num_prompt_tokens: int,
        path: str = "",
    ) -> StopConditions:
        """Fill defaults, and compile patterns.

        Args:
            params: What the client wrote.
            stops: The checked stops of `params`.
            num_prompt_tokens: Prompt tokens of the request.
            path: Begins the paths of fields in errors.

        Raises:
            RequestError: With the path of the field that is wrong.
        """
        room = max(self._limits.text.max_context_len - num_prompt_tokens, 1)
        longest = self._default_max_tokens if params.max_tokens is None else params.max_tokens
        max_path, min_path = f"{path}stopping.max_tokens", f"{path}stopping.min_tokens"
        max_tokens = room
        if longest is not None:
            max_tokens = min(checks.integer(longest, max_path, 1, _MAX_UINT32), room)
        min_tokens = checks.integer(params.min_tokens, min_path, 0, _MAX_UINT32)
        if min_tokens > max_tokens:
            expected = f"at most the {max_tokens} tokens of the answer"
            raise checks.bad(min_path, expected, min_tokens)
        include_stop = checks.flag(params.include_stop, f"{path}stopping.include_stop")
        return StopConditions(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=stops.stop,
            stop_token_ids=stops.stop_token_ids,
            include_stop=include_stop,
            # `stops` has checked it.
            ignore_eos=params.ignore_eos,
            stop_regex=self._compiled.of(
                params, lambda: _compiled(stops.patterns, f"{path}stopping.stop_regex")
            ),
        )


def _compiled(patterns: tuple[str, ...], path: str) -> _core.StopRegex | None:
    """Return the automaton of patterns that end an answer; its time and size are bounded.

    Raises:
        RequestError: `BAD_PARAMETER`: one is no pattern of the kind that there may be.
    """
    if not patterns:
        return None
    try:
        return _core.StopRegex(patterns)
    except ValueError as error:
        position, why = error.args
        message = f"{path}[{position}]: {why}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=path) from None
