"""The tokens of a request that ends with its prompt."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from chairlift.api import checks
from chairlift.api.errors import Reason, RequestError
from chairlift.api.pooled import PoolingAbilities
from chairlift.api.types import Chat, Pooling, Prompt, Request
from chairlift.engine.pooling.prompts import check_without_text, prompt_text
from chairlift.engine.prepare.text_queue import TextLimits, context_words


class InputEncoder(Protocol):
    """What this needs of a tokenizer."""

    def encode_input(
        self, text: str, second: str | None, limit: int | None, *, add_special_tokens: bool
    ) -> tuple[list[int], int]:
        """Return the token ids of a text or a pair, and how many of them are the first's."""


class PoolingInput(NamedTuple):
    """The tokens of an input."""

    ids: list[int]
    num_first: int | None
    """Tokens of the first text of a pair; None is no pair."""
    num_prompt: int
    """Tokens at the start that do not count in the pooling."""


def pooling_ids(
    request: Request,
    options: Pooling,
    encoder: InputEncoder,
    abilities: PoolingAbilities,
    keep: int | None,
    vocab_size: int,
) -> PoolingInput:
    """Return the token ids of an input.

    Args:
        request: Its prompt is a text, or token ids.
        options: What the request asks for.
        encoder: The model's tokenizer.
        abilities: What the model gives.
        keep: Only so many tokens at the end are used; None is all.
        vocab_size: Ids are below it.

    Raises:
        RequestError: The input is malformed, empty, or longer than the model takes.
    """
    prompt, limit = request.prompt, abilities.max_length
    num_first: int | None = None
    num_prompt = 0
    if isinstance(prompt, Chat):
        expected = "text or token ids, got a conversation"
        raise _bad(expected)
    if isinstance(prompt, str):
        before = prompt_text(options, abilities)
        text = before + prompt
        if before and not abilities.pools_prompt and not abilities.labels:
            num_prompt = _num_prompt(encoder, before, special=request.add_special_tokens)
        ids, num_first = encoder.encode_input(
            text,
            options.text_pair,
            limit if options.truncate_end else None,
            add_special_tokens=request.add_special_tokens,
        )
    else:
        if options.text_pair is not None:
            expected = "a text as the second of the pair is, got token ids"
            raise _bad(expected)
        check_without_text(options, abilities)
        ids = checks.token_ids(prompt, "token_ids", vocab_size)
        ids = ids[:limit] if options.truncate_end else ids
    if keep is not None:
        num_prompt = max(0, num_prompt - max(0, len(ids) - keep))
        ids = ids[-keep:]
    checks.encoded_ids(ids, "input", vocab_size)
    if len(ids) > limit:
        raise _too_long(limit, len(ids))
    is_pair = options.text_pair is not None and abilities.has_token_types
    return PoolingInput(ids, num_first if is_pair else None, num_prompt)


def _num_prompt(encoder: InputEncoder, text: str, *, special: bool) -> int:
    """Return the tokens of a prompt alone, without a special token at the end."""
    whole, _ = encoder.encode_input(text, None, None, add_special_tokens=special)
    plain, _ = encoder.encode_input(text, None, None, add_special_tokens=False)
    return len(whole) - (whole[-1:] != plain[-1:])


def check_input_size(prompt: Prompt, abilities: PoolingAbilities, limits: TextLimits) -> None:
    """Check what the size of an input alone tells.

    Raises:
        RequestError: It is longer than the model takes, or than any text may be.
    """
    limit = abilities.max_length
    if isinstance(prompt, str):
        num_bytes = limits.check_text(prompt, "input")
        num = 0
        if limits.longest_token_bytes is not None:
            num = -(-num_bytes // limits.longest_token_bytes)
    else:
        num = len(prompt) if isinstance(prompt, Sequence) else 0
    if num > limit:
        raise _too_long(limit, num, "at least " if isinstance(prompt, str) else "")


def _too_long(limit: int, got: int, number_prefix: str = "") -> RequestError:
    message = (
        f"input: {context_words(limit)}expected at most {limit} tokens, got {number_prefix}{got};"
        " a request may ask to leave out the end"
    )
    return RequestError(Reason.PROMPT_TOO_LONG, message, field="input")


def _bad(expected: str) -> RequestError:
    return RequestError(Reason.BAD_PARAMETER, f"input: expected {expected}", field="input")
