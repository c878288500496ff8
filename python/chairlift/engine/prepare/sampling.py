"""The part of a request that says how its tokens are drawn: checked, and with every default."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.api.types import Output, Sampling
from chairlift.engine.prepare.shared import Shared

MAX_LOGIT_BIASES: Final = 1024
MAX_BIAS: Final = 100.0
MAX_BANNED_IDS: Final = 1024
MAX_BAD_WORDS: Final = 64
MAX_BAD_WORD_BYTES: Final = 128
MAX_BREAKERS: Final = 16
MAX_BREAKER_BYTES: Final = 32
MAX_CANDIDATES: Final = 20

_MAX_UINT32 = 2**32 - 1
_MAX_FLOAT32 = 3.4028234e38
_MIN_FLOAT32 = 1.1754944e-38
"""The least that float32 holds in full; below it top_p could become 0 in the table."""

_BREAKERS: Final = ("\n", ":", '"', "*")
"""Those of llama.cpp."""

_T = TypeVar("_T")


class Encode(Protocol):
    """A tokenizer's function from text to ids."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""


class SamplingPreparer:
    """Checks `Sampling` and fills its defaults: the model's, else the neutral ones."""

    def __init__(self, defaults: Sampling, vocab_size: int, encode: Encode) -> None:
        """Keep what every request is checked against.

        Args:
            defaults: The model's `generation_config.json`.
            vocab_size: Width of the logits.
            encode: Returns the ids of a text; the tokenizer's.
        """
        self._defaults = defaults
        self._vocab_size = vocab_size
        self._encode = encode
        self._known_options: Shared[SamplerOptions] = Shared()
        self._known_words: Shared[tuple[tuple[int, ...], ...]] = Shared()

    def prepare(self, params: Sampling) -> SamplingParameters:
        """Take each value from the request, else the model's default, else the neutral one.

        Bad words are checked and left out: see `with_bad_words`.

        Raises:
            RequestError: With the path of the first field that is wrong.
        """
        top_k = checks.integer(self._value(params, "top_k", 0), "sampling.top_k", -1, _MAX_UINT32)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        return SamplingParameters(
            temperature=self._real(
                params, "temperature", 1.0, 0.0, _MAX_FLOAT32, "a finite number, at least 0"
            ),
            # Beyond the vocabulary top_k changes nothing, and the kernel's int32 holds the rest.
            # -1 is off, as 0 is.
            top_k=max(0, min(top_k, self._vocab_size)),
            top_p=self._share(params, "top_p"),
            min_p=self._real(params, "min_p", 0.0, 0.0, 1.0, "a number from 0 to 1"),
            seed=checks.integer(seed, "sampling.seed", 0, 2**64 - 1),
            options=self._known_options.of(params, lambda: self._options(params)),
        )

    def _options(self, params: Sampling) -> SamplerOptions:
        _words(params)
        penalty = "a number from 0.01 to 100; 1 is off"
        two = "a number from -2 to 2"
        allowed, banned = self._allowed(params), self._banned(params)
        if allowed is not None and set(allowed) <= set(banned):
            field = "sampling.allowed_token_ids"
            message = f"{field}: expected an id that banned_token_ids does not have, got none"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
        multiplier = self._real(params, "dry_multiplier", 0.0, 0.0, 100.0, "a number from 0 to 100")
        return SamplerOptions(
            allowed_token_ids=allowed,
            banned_token_ids=banned,
            logit_bias=self._biases(params.logit_bias),
            repetition_penalty=self._real(params, "repetition_penalty", 1.0, 0.01, 100.0, penalty),
            presence_penalty=self._real(params, "presence_penalty", 0.0, -2.0, 2.0, two),
            frequency_penalty=self._real(params, "frequency_penalty", 0.0, -2.0, 2.0, two),
            dry_multiplier=multiplier,
            **self._dry(params, is_on=multiplier > 0),
            top_n_sigma=self._real(
                params, "top_n_sigma", 0.0, 0.0, 100.0, "a number from 0 to 100"
            ),
            typical_p=self._share(params, "typical_p"),
            **self._xtc(params),
        )

    def _dry(self, params: Sampling, *, is_on: bool) -> dict[str, Any]:
        """Check what DRY has beside its multiplier; it counts only where DRY is on."""
        field = "sampling.dry_sequence_breakers"
        breakers = (
            _BREAKERS if params.dry_sequence_breakers is None else params.dry_sequence_breakers
        )
        texts = checks.strings(breakers, field, limit=MAX_BREAKERS, max_bytes=MAX_BREAKER_BYTES)
        last_n = params.dry_penalty_last_n
        if last_n is not None:
            last_n = checks.integer(last_n, "sampling.dry_penalty_last_n", 1, _MAX_UINT32)
        length = self._value(params, "dry_allowed_length", 2)
        options = {
            "dry_base": self._real(params, "dry_base", 1.75, 1.0, 100.0, "a number from 1 to 100"),
            "dry_allowed_length": checks.integer(
                length, "sampling.dry_allowed_length", 1, _MAX_UINT32
            ),
            "dry_penalty_last_n": last_n,
            "dry_sequence_breakers": tuple(text.encode() for text in texts),
        }
        return options if is_on else {}

    def _xtc(self, params: Sampling) -> dict[str, Any]:
        to_1 = "a number from 0 to 1"
        probability = self._real(params, "xtc_probability", 0.0, 0.0, 1.0, to_1)
        threshold = self._real(params, "xtc_threshold", 0.1, 0.0, 1.0, to_1)
        # Two tokens cannot have more than half each, as llama.cpp says.
        is_on = probability > 0 and threshold <= 0.5
        return {"xtc_probability": probability, "xtc_threshold": threshold} if is_on else {}

    def _allowed(self, params: Sampling) -> tuple[int, ...] | None:
        field = "sampling.allowed_token_ids"
        ids = checks.token_ids(params.allowed_token_ids, field, self._vocab_size)
        checks.check_count(ids, field, self._vocab_size)
        return tuple(ids) or None

    def _banned(self, params: Sampling) -> tuple[int, ...]:
        field = "sampling.banned_token_ids"
        ids = checks.token_ids(params.banned_token_ids, field, self._vocab_size)
        checks.check_count(ids, field, MAX_BANNED_IDS)
        return tuple(ids)

    def with_bad_words(self, sampling: SamplingParameters, params: Sampling) -> SamplingParameters:
        """Encode the bad words, which takes longer than all the rest.

        Each is encoded with and without a space before it: it may begin a text or stand in one.
        """
        if not params.bad_words:
            return sampling
        sequences = self._known_words.of(params, lambda: self._sequences(_words(params)))
        return replace(sampling, options=replace(sampling.options, bad_words=sequences))

    def _sequences(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        forms = [form for word in words for form in (word, " " + word.lstrip())]
        encoded = (tuple(self._encode(form, False)) for form in forms)
        # A word with a token that the model cannot draw is not in its answers.
        drawn = (ids for ids in encoded if ids and max(ids) < self._vocab_size)
        return tuple(dict.fromkeys(drawn))

    def _biases(self, biases: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
        field = "sampling.logit_bias"
        if not isinstance(biases, Mapping):
            raise checks.bad(field, "numbers by token id", biases)
        checks.check_count(biases, field, MAX_LOGIT_BIASES)
        ids = checks.token_ids(list(biases), field, self._vocab_size)
        expected = f"numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}"
        values = [
            checks.real(bias, field, -MAX_BIAS, MAX_BIAS, expected) for bias in biases.values()
        ]
        return tuple(zip(ids, values, strict=True))

    def _share(self, params: Sampling, name: str) -> float:
        return self._real(params, name, 1.0, _MIN_FLOAT32, 1.0, "a number above 0 and at most 1")

    def _real(
        self, params: Sampling, name: str, off: float, low: float, high: float, expected: str
    ) -> float:
        value = self._value(params, name, off)
        return checks.real(value, f"sampling.{name}", low, high, expected)

    def _value(self, params: Sampling, name: str, off: _T) -> _T:
        values = (getattr(params, name), getattr(self._defaults, name), off)
        return next(value for value in values if value is not None)


def check_prompt_output(output: Output, *, has_scores: bool) -> None:
    """Check what the output asks for of the prompt.

    Args:
        output: What the answer has.
        has_scores: Whether the device scores prompts.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    field = "output.prompt_logprobs"
    checks.flag(output.echo, "output.echo")
    has_logprobs = checks.flag(output.prompt_logprobs, field)
    num = checks.integer(output.prompt_candidates, field, 0, MAX_CANDIDATES)
    if num > 0 and not has_logprobs:
        raise checks.bad(field, "log probabilities, since candidates are asked for", False)
    if has_logprobs and not has_scores:
        message = f"{field}: not supported on a GPU by this version"
        raise RequestError(Reason.UNSUPPORTED, message, field=field)


def with_candidates(sampling: SamplingParameters, output: Output) -> SamplingParameters:
    """Let the draws report the likeliest tokens that the output asks for.

    Raises:
        RequestError: They are too many, or come without log probabilities.
    """
    field = "output.logprobs"
    num = checks.integer(output.candidates, field, 0, MAX_CANDIDATES)
    if num > 0 and not output.logprobs:
        raise checks.bad(field, "log probabilities, since candidates are asked for", False)
    if num == 0:
        return sampling
    return replace(sampling, options=replace(sampling.options, num_candidates=num))


def _words(params: Sampling) -> tuple[str, ...]:
    return checks.strings(
        params.bad_words, "sampling.bad_words", limit=MAX_BAD_WORDS, max_bytes=MAX_BAD_WORD_BYTES
    )
