"""From a request as a client writes it to one that the scheduler can take.

`Preparer.prepare` is total: for any value it returns a `Prepared` that is safe to run beside
others, or raises `RequestError` with the path of the field and what was expected of it. It holds no
state that changes, so that any thread may call it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from chairlift import _core
from chairlift.api import chats, checks
from chairlift.api.config import EngineConfig
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import check_pooling
from chairlift.api.sampler_options import SamplingParameters
from chairlift.api.types import Change, Chat, Output, Pooling, Request, Sampling, Schedule
from chairlift.engine.lora.types import AdapterNames, AdapterUse
from chairlift.engine.prepare.chat import ChatEncoder, ChatPreparer
from chairlift.engine.prepare.grammars import ConstraintPreparer
from chairlift.engine.prepare.pooling import check_input_size, pooling_ids
from chairlift.engine.prepare.prepared import Prepared, PreparedChange, Times
from chairlift.engine.prepare.sampling import (
    SamplingPreparer,
    check_prompt_output,
    with_candidates,
)
from chairlift.engine.prepare.stopping import RequestLimits, StoppingPreparer, Stops

MAX_SALT_BYTES = 128
MAX_PRIORITY = 10

ALL_THAT_FITS = -1
"""A `truncate_prompt`: the end of the prompt, as much as the context holds beside a token."""

_MAX_UINT32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Checked:
    """All of a request but its prompt, and what its answer's length depends on."""

    sampling: SamplingParameters
    stops: Stops
    times: Times
    credit: int | None
    num_answers: int
    num_kept: int | None
    """Tokens of the prompt that are kept; None is all."""
    adapter: AdapterUse | None
    constraint: Source | None


class _Encoded(NamedTuple):
    """A prompt, and what reads and holds its answer."""

    ids: list[int]
    parser: _core.AnswerParser | None
    source: Source | None


_T = TypeVar("_T")


class Encoder(ChatEncoder, Protocol):
    """What preparation needs of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    def encode_input(
        self, text: str, second: str | None, limit: int | None, *, add_special_tokens: bool
    ) -> tuple[list[int], int]:
        """Return the token ids of a text or a pair, and how many of them are the first's."""


class Preparer:
    """Tokenizes, validates and fills defaults."""

    def __init__(
        self,
        config: EngineConfig,
        encoder: Encoder,
        limits: RequestLimits,
        defaults: Sampling,
        adapters: AdapterNames,
        constraints: ConstraintPreparer,
    ) -> None:
        """Keep the limits and defaults that every request is checked against.

        Args:
            config: For the defaults of lengths and times.
            encoder: The model's tokenizer.
            limits: Limits of the model and the server.
            defaults: The model's `generation_config.json`.
            adapters: Those that requests may name.
            constraints: Compiles them.
        """
        self._adapters = adapters
        self._constraints = constraints
        self._chats = ChatPreparer(config, encoder, constraints)
        self._config = config
        self._encoder = encoder
        self._limits = limits
        self.text_limits = limits.text
        self._stopping = StoppingPreparer(config.default_max_tokens, limits)
        self._sampling = SamplingPreparer(defaults, limits.vocab_size, encoder.encode)

    def prepare(self, request: Request) -> Prepared:
        """Return the request that the scheduler can take.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        request = chats.request(request)
        checked = self._checked(request)
        if request.pooling is not None:
            return self._prepare_pooling(request, request.pooling, checked)
        # The prompt comes last, because tokenizing costs more than all the rest.
        encoded = self._prompt(request, checked)
        prompt, source = encoded.ids, encoded.source
        stopping = self._stopping.conditions(request.stopping, checked.stops, len(prompt))
        return Prepared(
            prompt=prompt,
            sampling=self._sampling.with_bad_words(checked.sampling, request.sampling),
            max_tokens=stopping.max_tokens,
            min_tokens=stopping.min_tokens,
            stop=stopping.stop,
            stop_token_ids=stopping.stop_token_ids,
            include_stop=stopping.include_stop,
            output=request.output,
            times=checked.times,
            prefix_cache=request.prefix_cache,
            tenant=request.tenant,
            credit=checked.credit,
            num_answers=checked.num_answers,
            adapter=checked.adapter,
            grammar=self._compiled(request, source),
            end_ids=() if source is None else self._constraints.end_ids,
            ends_early=not stopping.ignore_eos,
            stop_regex=stopping.stop_regex,
            parser=encoded.parser,
        )

    def num_chat_tokens(self, chat: Chat) -> int:
        """Return how many tokens a conversation has as a prompt, also beyond the context.

        Raises:
            RequestError: It cannot be rendered.
        """
        request, limits = chats.request(Request(chat)), self._limits.text
        limits.check_chat(chat)
        assert isinstance(request.prompt, Chat), "invariant: it stays a conversation"
        try:
            text = self._chats.prepare(
                request.prompt, None, limits.max_bytes, wants_text=False
            ).text
            limits.check_text(text, "chat")
            return len(self._encoder.encode(text, False))
        except (KeyboardInterrupt, SystemExit, RequestError):
            raise
        except BaseException as error:
            raise _tokenizer_failed(error) from None

    def is_quick(self, request: Request) -> bool:
        """Return whether the constraint of a request, if it has one, needs no compiling."""
        constraint, tenant = getattr(request, "constraint", None), getattr(request, "tenant", None)
        if constraint is None or not isinstance(tenant, str):
            return True
        return self._constraints.is_known(constraint, tenant)

    def _prepare_pooling(self, request: Request, options: Pooling, checked: "_Checked") -> Prepared:
        if checked.constraint is not None:
            message = "constraint: expected none of a request for a vector or scores"
            raise RequestError(Reason.BAD_PARAMETER, message, field="constraint")
        abilities = self._limits.pooling
        pooled = check_pooling(options, abilities)
        given = pooling_ids(
            request, options, self._encoder, abilities, checked.num_kept, self._limits.vocab_size
        )
        prompt, pooled.num_first, pooled.num_prompt = given
        pooled.num_tokens = len(prompt)
        # One token, which is not looked at, and nothing that could end it before.
        return Prepared(
            prompt=prompt,
            sampling=checked.sampling,
            max_tokens=1,
            min_tokens=0,
            stop=(),
            stop_token_ids=(),
            include_stop=False,
            output=Output(text=False),
            times=checked.times,
            prefix_cache=request.prefix_cache,
            tenant=request.tenant,
            adapter=checked.adapter,
            pooled=pooled,
        )

    def check(self, request: Request) -> Times:
        """Check what takes no time, however large a request is; return its times.

        These are the types of its parts, its times, and the length of a text: one that is far too
        long need not wait for a thread.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        checks.request(request)
        checks.utf8_len(request.tenant, "tenant")
        is_whole = request.pooling is None and request.truncate_prompt is None
        if isinstance(request.prompt, str) and is_whole:
            self._check_size(request, None)
        return self._times(request.schedule)

    def _checked(self, request: Request) -> _Checked:
        if request.pooling is None and not self._limits.pooling.generates:
            message = (
                "model: this model generates no text, but vectors or scores: /v1/embeddings and"
                " /v1/rerank over HTTP, EmbeddingService over gRPC"
            )
            raise RequestError(Reason.UNSUPPORTED, message, field="model")
        cache = request.prefix_cache
        output = request.output
        check_prompt_output(output, has_scores=self._limits.has_scores)
        sampling = with_candidates(self._sampling.prepare(request.sampling), output)
        limit = self._limits.max_answers
        num_answers = checks.integer(request.sampling.n, "sampling.n", 1, limit)
        stops = self._stopping.stops(request.stopping)
        times = self._times(request.schedule)
        credit = request.credit
        if credit is not None:
            credit = checks.integer(credit, "credit", 0, _MAX_UINT32)
        checks.utf8_len(request.tenant, "tenant")
        checks.utf8_len(request.adapter, "adapter")
        adapter = self._adapters.find(request.adapter, request.tenant) if request.adapter else None
        checks.short_text(cache.salt, "prefix_cache.salt", MAX_SALT_BYTES)
        keep = request.truncate_prompt
        if keep is not None and keep == ALL_THAT_FITS:
            keep = self._limits.text.max_context_len - 1
        elif keep is not None:
            keep = checks.integer(keep, "truncate_prompt", 1, _MAX_UINT32)
        if request.pooling is None or (keep is not None and not request.pooling.truncate_end):
            self._check_size(request, keep)
        elif not request.pooling.truncate_end:
            check_input_size(request.prompt, self._limits.pooling, self._limits.text)
        constraint = request.constraint
        source = None if constraint is None else self._constraints.check(constraint)
        return _Checked(
            sampling=sampling,
            stops=stops,
            times=times,
            credit=credit,
            num_answers=num_answers,
            num_kept=keep,
            adapter=adapter,
            constraint=source,
        )

    def prepare_change(self, change: Change, num_prompt_tokens: int = 0) -> PreparedChange:
        """Return the change that the scheduler can take.

        Args:
            change: The change of a live request.
            num_prompt_tokens: Prompt tokens of that request.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        checks.change(change)
        stopping = times = None
        if change.stopping is not None:
            stops = self._stopping.stops(change.stopping, "update.")
            stopping = self._stopping.conditions(
                change.stopping, stops, num_prompt_tokens, "update."
            )
        if change.schedule is not None:
            times = self._times(change.schedule, "update.")
        return PreparedChange(
            stopping,
            times,
            credit=checks.integer(change.credit, "credit.tokens", 0, _MAX_UINT32),
            credit_is_final=checks.flag(change.credit_is_final, "credit_is_final"),
            paused=None if change.paused is None else checks.flag(change.paused, "paused"),
        )

    def patterns_size(self, change: Change) -> int:
        """Return the characters of the patterns of a change, which take time to compile.

        Raises:
            RequestError: With the path of the first field of `stopping` that is wrong.
        """
        checks.change(change)
        if change.stopping is None:
            return 0
        return sum(map(len, self._stopping.stops(change.stopping, "update.").patterns))

    def _times(self, schedule: Schedule, path: str = "") -> Times:
        config = self._config
        queue_timeout_s = _first(schedule.queue_timeout_s, config.queue_timeout_s)
        time_limit_s = _first(schedule.time_limit_s, config.time_limit_s)
        priority_path = f"{path}schedule.priority"
        return Times(
            checks.integer(schedule.priority, priority_path, -MAX_PRIORITY, MAX_PRIORITY),
            checks.seconds(queue_timeout_s, f"{path}schedule.queue_timeout"),
            checks.seconds(schedule.time_to_first_token_s, f"{path}schedule.time_to_first_token"),
            checks.seconds(time_limit_s, f"{path}schedule.time_limit"),
            schedule.turn_delay_s,
        )

    def _check_size(self, request: Request, keep: int | None) -> None:
        """Check what the size alone tells; of a prompt that is cut there is no shortest length."""
        limits, prompt, num_answer = self._limits.text, request.prompt, _min_answer(request)
        if isinstance(prompt, Chat):
            limits.check_chat(prompt)
        elif isinstance(prompt, str):
            self._check_text(prompt, "prompt", keep, num_answer)
        elif _is_sequence(prompt) and keep is None:
            limits.check_length(len(prompt), num_answer=num_answer)

    def _prompt(self, request: Request, checked: _Checked) -> _Encoded:
        """Return the ids of the prompt, and what reads and holds its answer."""
        keep = checked.num_kept
        encoded = self._encode(request, checked)
        ids = encoded.ids if keep is None else encoded.ids[-keep:]
        checks.encoded_ids(ids, "prompt", self._limits.vocab_size)
        self._limits.text.check_length(len(ids), num_answer=_min_answer(request))
        return encoded._replace(ids=ids)

    def _encode(self, request: Request, checked: _Checked) -> _Encoded:
        prompt, keep, source = request.prompt, checked.num_kept, checked.constraint
        if not isinstance(prompt, str | Chat):
            # What is cut off is not looked at.
            ids = prompt[-keep:] if keep is not None and _is_sequence(prompt) else prompt
            ids = checks.token_ids(ids, "token_ids", self._limits.vocab_size)
            return _Encoded(ids, None, source)
        try:
            if isinstance(prompt, str):
                ids = self._encoder.encode(prompt, request.add_special_tokens)
                return _Encoded(ids, None, source)
            limit = self._limits.text.max_bytes
            chat = self._chats.prepare(prompt, source, limit, wants_text=request.output.text)
            self._check_text(chat.text, "chat", keep, _min_answer(request))
            return _Encoded(self._encoder.encode(chat.text, False), chat.parser, chat.source)
        except RequestError as error:
            raise self._limits.text.in_context(error) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise _tokenizer_failed(error) from None

    def _compiled(self, request: Request, source: Source | None) -> _core.Grammar | None:
        if source is None:
            return None
        if isinstance(request.prompt, Chat):
            return self._chats.compile(request.prompt, source, request.tenant)
        return self._constraints.compile(source, request.tenant)

    def _check_text(self, text: str, field: str, keep: int | None, num_answer: int) -> None:
        limits = self._limits.text
        if keep is None:
            limits.check_prompt(text, field, num_answer)
        else:
            limits.check_text(text, field)


def _min_answer(request: Request) -> int:
    """Return the tokens of an answer that the context has to hold.

    A prompt that comes back with one token behind it is scored: that token is never computed.
    """
    return 0 if request.output.has_prompt and request.stopping.max_tokens == 1 else 1


def _tokenizer_failed(error: BaseException) -> RequestError:
    """Return the error of one request: the tokenizer is Rust, whose panic is a BaseException."""
    message = f"prompt: the tokenizer failed with {type(error).__name__}"
    return RequestError(Reason.INTERNAL, message, field="prompt")


def _is_sequence(prompt: object) -> bool:
    """Return whether a prompt is a sequence; another value is refused when it is converted."""
    return isinstance(prompt, Sequence)


def _first(*values: _T | None) -> _T:
    """Return the first value that is set."""
    return next(value for value in values if value is not None)
