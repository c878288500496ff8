"""From a request as a client writes it to one that the scheduler can take.

`Preparer.prepare` is total: whatever comes in, it gives a `Prepared` that is safe to run beside
others, or raises `RequestError` with the path of the field and what was expected of it. It holds no
state that changes, so that any thread may call it.
"""

import secrets
from dataclasses import astuple, dataclass, field
from typing import Protocol, TypeVar

from chairlift.config import EngineConfig
from chairlift.engine import checks
from chairlift.errors import Reason, RequestError
from chairlift.types import (
    Change,
    Chat,
    Output,
    PrefixCache,
    Request,
    Sampling,
    Schedule,
    Stopping,
)

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 128
MAX_STOP_TOKEN_IDS = 128
MAX_SALT_BYTES = 128
MAX_PRIORITY = 10

_MAX_UINT32 = 2**32 - 1
_MAX_FLOAT32 = 3.4028234e38
_MIN_FLOAT32 = 1.1754944e-38
"""The least that float32 holds in full; below it top_p could become 0 in the table."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the next token is drawn, complete."""

    temperature: float
    """0 is greedy."""
    top_k: int
    """0 is off."""
    top_p: float
    """1 is off."""
    min_p: float
    """0 is off."""
    seed: int
    """64 bits, unsigned."""


@dataclass(frozen=True, slots=True)
class Ending:
    """When an answer ends, complete."""

    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...] = field(repr=False)
    stop_token_ids: tuple[int, ...] = field(repr=False)
    include_stop: bool


@dataclass(frozen=True, slots=True)
class Times:
    """When a request runs, complete; from its arrival on, None is no limit."""

    priority: int
    queue_timeout_s: float | None
    time_to_first_token_s: float | None
    time_limit_s: float | None

    @property
    def start_within_s(self) -> float | None:
        """The longest that the request may wait."""
        limits = (self.queue_timeout_s, self.time_to_first_token_s, self.time_limit_s)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change with every default filled in and every value checked."""

    ending: Ending | None
    times: Times | None
    credit: int
    paused: bool | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with every default filled in and every value checked."""

    prompt: list[int] = field(repr=False)
    drawing: Drawing
    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...] = field(repr=False)
    stop_token_ids: tuple[int, ...] = field(repr=False)
    include_stop: bool
    output: Output
    times: Times
    prefix_cache: PrefixCache = field(repr=False)
    tenant: str
    credit: int | None = None
    """None is no limit."""
    num_answers: int = 1


_T = TypeVar("_T")


class Encoder(Protocol):
    """What preparation needs of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Gives the token ids of a text."""

    def encode_chat(self, chat: Chat) -> list[int]:
        """Gives the token ids of a conversation, rendered by the model's template."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and this server can hold."""

    vocab_size: int
    """Width of the logits."""
    max_model_len: int
    """Tokens of prompt and answer that the model takes."""
    max_context_len: int
    """The same for this server, whose KV cache may hold less."""
    eos_token_ids: tuple[int, ...]
    max_answers: int
    """Of one request."""


class Preparer:
    """Tokenizes, validates and fills defaults."""

    def __init__(
        self, config: EngineConfig, encoder: Encoder, limits: Limits, defaults: Sampling
    ) -> None:
        """Keeps what every request is checked against.

        Args:
            config: For the defaults of lengths and times.
            encoder: The model's tokenizer.
            limits: Of the model and the server.
            defaults: Of the model's `generation_config.json`.
        """
        self._config = config
        self._encoder = encoder
        self._limits = limits
        self._defaults = defaults

    def prepare(self, request: Request) -> Prepared:
        """Gives the request that the scheduler can take.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        cache = request.prefix_cache
        drawing = self._drawing(request.sampling)
        num_answers = checks.integer(request.sampling.n, "sampling.n", 1, self._limits.max_answers)
        stops = self._stops(request.stopping)
        times = self._times(request.schedule)
        credit = request.credit
        if credit is not None:
            credit = checks.integer(credit, "credit", 0, _MAX_UINT32)
        checks.utf8_len(request.tenant, "tenant")
        checks.short_text(cache.salt, "prefix_cache.salt", MAX_SALT_BYTES)
        # The prompt comes last, because tokenizing costs more than all the rest.
        prompt = self._prompt(request)
        ending = self._ending(request.stopping, stops, len(prompt))
        return Prepared(
            prompt=prompt,
            drawing=drawing,
            max_tokens=ending.max_tokens,
            min_tokens=ending.min_tokens,
            stop=ending.stop,
            stop_token_ids=ending.stop_token_ids,
            include_stop=ending.include_stop,
            output=Output(*map(bool, astuple(request.output))),
            times=times,
            prefix_cache=PrefixCache(bool(cache.read), bool(cache.write), cache.salt),
            tenant=request.tenant,
            credit=credit,
            num_answers=num_answers,
        )

    def prepare_change(self, change: Change, num_prompt_tokens: int) -> PreparedChange:
        """Gives the change that the scheduler can take.

        Args:
            change: Of a live request.
            num_prompt_tokens: Of that request.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        ending = times = None
        if change.stopping is not None:
            stops = self._stops(change.stopping, "update.")
            ending = self._ending(change.stopping, stops, num_prompt_tokens, "update.")
        if change.schedule is not None:
            times = self._times(change.schedule, "update.")
        return PreparedChange(
            ending,
            times,
            credit=checks.integer(change.credit, "credit.tokens", 0, _MAX_UINT32),
            paused=None if change.paused is None else bool(change.paused),
        )

    def _times(self, asked: Schedule, path: str = "") -> Times:
        config = self._config
        queue_timeout_s = _first(asked.queue_timeout_s, config.queue_timeout_s)
        time_limit_s = _first(asked.time_limit_s, config.time_limit_s)
        priority_path = f"{path}schedule.priority"
        return Times(
            checks.integer(asked.priority, priority_path, -MAX_PRIORITY, MAX_PRIORITY),
            checks.seconds(queue_timeout_s, f"{path}schedule.queue_timeout"),
            checks.seconds(asked.time_to_first_token_s, f"{path}schedule.time_to_first_token"),
            checks.seconds(time_limit_s, f"{path}schedule.time_limit"),
        )

    def _drawing(self, asked: Sampling) -> Drawing:
        """Takes each value from the request, else the model's default, else the neutral one."""
        model = self._defaults
        temperature = _first(asked.temperature, model.temperature, 1.0)
        top_k = _first(asked.top_k, model.top_k, 0)
        top_p = _first(asked.top_p, model.top_p, 1.0)
        min_p = _first(asked.min_p, model.min_p, 0.0)
        seed = secrets.randbits(64) if asked.seed is None else asked.seed
        above_0 = "a number above 0 and at most 1"
        return Drawing(
            temperature=checks.real(
                temperature,
                "sampling.temperature",
                0.0,
                _MAX_FLOAT32,
                "a finite number, at least 0",
            ),
            # Beyond the vocabulary top_k changes nothing, and the kernel's int32 holds the rest.
            top_k=min(
                checks.integer(top_k, "sampling.top_k", 0, _MAX_UINT32), self._limits.vocab_size
            ),
            top_p=checks.real(top_p, "sampling.top_p", _MIN_FLOAT32, 1.0, above_0),
            min_p=checks.real(min_p, "sampling.min_p", 0.0, 1.0, "a number from 0 to 1"),
            seed=checks.integer(seed, "sampling.seed", 0, 2**64 - 1),
        )

    def _stops(self, asked: Stopping, path: str = "") -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Gives the stop strings and the token ids that end an answer."""
        stop = checks.strings(
            asked.stop, f"{path}stopping.stop", most=MAX_STOP_STRINGS, most_bytes=MAX_STOP_BYTES
        )
        ids_path = f"{path}stopping.stop_token_ids"
        ids = checks.token_ids(asked.stop_token_ids, ids_path, self._limits.vocab_size)
        checks.at_most(ids, ids_path, MAX_STOP_TOKEN_IDS)
        own = () if asked.ignore_eos else self._limits.eos_token_ids
        return stop, tuple(dict.fromkeys((*own, *ids)))

    def _prompt(self, request: Request) -> list[int]:
        ids = self._encode(request)
        if request.truncate_prompt is not None:
            keep = checks.integer(request.truncate_prompt, "truncate_prompt", 1, _MAX_UINT32)
            ids = ids[-keep:]
        if not ids:
            message = "prompt: expected at least one token, got none"
            raise RequestError(Reason.BAD_PARAMETER, message, field="prompt")
        limits = self._limits
        self._check_length(len(ids), limits.max_model_len, Reason.PROMPT_TOO_LONG, "the model has")
        self._check_length(
            len(ids), limits.max_context_len, Reason.KV_CAPACITY, "this server's KV cache has"
        )
        return ids

    @staticmethod
    def _check_length(num_tokens: int, context: int, reason: Reason, who: str) -> None:
        if num_tokens >= context:
            message = (
                f"prompt: expected at most {context - 1} tokens, because {who} room for {context}"
                f" with the answer, got {num_tokens}"
            )
            raise RequestError(reason, message, field="prompt")

    def _encode(self, request: Request) -> list[int]:
        prompt = request.prompt
        if not isinstance(prompt, str | Chat):
            return checks.token_ids(prompt, "token_ids", self._limits.vocab_size)
        try:
            if isinstance(prompt, Chat):
                return self._encoder.encode_chat(prompt)
            return self._encoder.encode(prompt, request.add_special_tokens)
        except (KeyboardInterrupt, SystemExit, RequestError):
            raise
        except BaseException as error:
            # The tokenizer is Rust, and a panic there is a BaseException: one request's trouble.
            message = f"prompt: the tokenizer failed with {type(error).__name__}"
            raise RequestError(Reason.INTERNAL, message, field="prompt") from None

    def _ending(
        self,
        asked: Stopping,
        stops: tuple[tuple[str, ...], tuple[int, ...]],
        num_prompt_tokens: int,
        path: str = "",
    ) -> Ending:
        longest = _first(asked.max_tokens, self._config.default_max_tokens)
        room = self._limits.max_context_len - num_prompt_tokens
        max_path, min_path = f"{path}stopping.max_tokens", f"{path}stopping.min_tokens"
        max_tokens = min(checks.integer(longest, max_path, 1, _MAX_UINT32), room)
        min_tokens = checks.integer(asked.min_tokens, min_path, 0, _MAX_UINT32)
        if min_tokens > max_tokens:
            expected = f"at most the {max_tokens} tokens of the answer"
            raise checks.bad(min_path, expected, min_tokens)
        return Ending(max_tokens, min_tokens, *stops, include_stop=bool(asked.include_stop))


def _first(*values: _T | None) -> _T:
    """Gives the first value that is set."""
    return next(value for value in values if value is not None)
