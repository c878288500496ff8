"""Checks of single values in a request: each returns the value, or raises `RequestError`.

The engine and the clients share them: a value means the same with and without a server.

A message says what was expected and what was got: numbers as they are, of other values only their
type or length, so that no part of a prompt reaches an error or a log.
"""

import operator
import sys
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import fields
from typing import Any, TypeGuard

from chairlift.api.errors import Reason, RequestError, echo
from chairlift.api.types import (
    Change,
    Chat,
    Constraint,
    Output,
    PrefixCache,
    Prompt,
    Request,
    Sampling,
    Schedule,
    Stopping,
)

_FOREVER_S = 1e9
"""Longer times are reduced to this: thirty years, which fit the core's 64-bit nanoseconds."""

_MAX_SHOWN = 10**40
"""Larger numbers are not printed: Python refuses to from 4,300 digits on."""

_NO_LIST = (bytes, bytearray, memoryview, Mapping)
"""Collections that are no lists."""


def bad(field: str, expected: str, got: object) -> RequestError:
    """Return the error for a value that is wrong."""
    message = f"{field}: expected {expected}, got {_shown(got)}"
    return RequestError(Reason.BAD_PARAMETER, message, field=field)


def _shown(got: object) -> str:
    if isinstance(got, int) and abs(got) > _MAX_SHOWN:
        return f"a number of {got.bit_length()} bits"
    if isinstance(got, int | float):
        return repr(got)
    return f"a value of type {echo(type(got).__name__)}"


def real(value: object, field: str, low: float, high: float, expected: str) -> float:
    """Check a number in `[low, high]`; NaN is in no range.

    Raises:
        RequestError: The value is no number, or outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(field, expected, value)
    # A whole number may be beyond what a float holds.
    return float(min(value, sys.float_info.max) if isinstance(value, int) else value)


def integer(value: object, field: str, low: int, high: int) -> int:
    """Check a whole number in `[low, high]`.

    Raises:
        RequestError: The value is no whole number, or outside the range.
    """
    expected = f"a whole number from {low} to {high}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise bad(field, expected, value) from None
    if isinstance(value, bool) or not low <= number <= high:
        raise bad(field, expected, value)
    return number


def seconds(value: float | None, field: str) -> float | None:
    """Check a positive time; infinity is no limit, and so is None.

    Raises:
        RequestError: The time is no number, or not positive.
    """
    if value is None:
        return None
    time_s = real(value, field, 1e-9, float("inf"), "a positive number of seconds")
    return None if time_s == float("inf") else min(time_s, _FOREVER_S)


def utf8_len(text: object, field: str) -> int:
    """Return the length of a text in bytes of UTF-8, in which a lone surrogate has no encoding.

    Raises:
        RequestError: The value is no text, or has a lone surrogate.
    """
    if not isinstance(text, str):
        raise bad(field, "text", text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        message = f"{field}: expected text that UTF-8 can encode, got a lone surrogate"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field) from None


def short_text(text: str, field: str, max_bytes: int) -> None:
    """Check the length of a short text.

    Raises:
        RequestError: The text is too long, or has a lone surrogate.
    """
    size = utf8_len(text, field)
    if size > max_bytes:
        message = f"{field}: expected at most {max_bytes} bytes, got {size}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)


def flag(value: object, field: str) -> bool:
    """Check a boolean; numbers and texts are refused.

    Raises:
        RequestError: The value is no boolean.
    """
    if not isinstance(value, bool):
        raise bad(field, "True or False", value)
    return value


def kind(value: object, expected: type, field: str) -> None:
    """Check that a part of a request is of its type.

    Raises:
        RequestError: The part is of another type.
    """
    if not isinstance(value, expected):
        raise bad(field, f"a {expected.__name__}", value)


def is_list(value: object) -> TypeGuard[Collection[Any]]:
    """Say whether a value holds items that can be read twice; text and bytes are no lists."""
    return isinstance(value, Collection) and not isinstance(value, (str, *_NO_LIST))


def one_or_many(values: object, field: str, expected: str) -> tuple[Any, ...]:
    """Return the items of a list of texts; a single text is a list of one, not of its letters.

    Raises:
        RequestError: The value is neither a text nor a list.
    """
    if isinstance(values, str):
        return (values,)
    if not is_list(values):
        raise bad(field, expected, values)
    return tuple(values)


def strings(values: object, field: str, *, limit: int, max_bytes: int) -> tuple[str, ...]:
    """Check short texts that are not empty: a list of them, or one text.

    Raises:
        RequestError: The value is no list of texts, or a text is empty or too long, or there are
            too many.
    """
    expected = f"at most {limit} strings of 1 to {max_bytes} bytes"
    texts = one_or_many(values, field, expected)
    check_count(texts, field, limit)
    for text in texts:
        size = utf8_len(text, field)
        if not 1 <= size <= max_bytes:
            message = f"{field}: expected {expected}, got one of {size} bytes"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return texts


def token_ids(values: object, field: str, vocab_size: int) -> list[int]:
    """Check ids against the width of the logits.

    The tokenizer's length is not the bound: an id that it knows but the logits lack would read and
    write beside the row.

    Raises:
        RequestError: The value is no list of whole numbers, or an id is outside the vocabulary.
    """
    if not is_list(values):
        raise bad(field, "a list of whole numbers", values)
    try:
        ids = list(map(operator.index, values))
    except TypeError:
        raise bad(field, "whole numbers", values) from None
    if bool in set(map(type, values)):
        raise bad(field, "whole numbers", True)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        message = f"{field}: expected ids from 0 to {vocab_size - 1}, got one outside"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return ids


def encoded_ids(ids: Sequence[int], field: str, vocab_size: int) -> None:
    """Check what a tokenizer made of a text: some hold tokens that their model has no row for.

    Raises:
        RequestError: There is no token, or one that the model has no embedding for.
    """
    if not ids:
        message = f"{field}: expected at least one token, got none"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    if max(ids) >= vocab_size:
        message = f"{field}: expected text, got a token that the model has no embedding for"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)


def prompt(value: object, field: str) -> None:
    """Check that a value is of a type that a prompt may have; its contents are not read.

    Raises:
        RequestError: The value is of no such type.
    """
    if not isinstance(value, str | Chat) and not is_list(value):
        raise bad(field, "text, a list of token ids, a list of messages or a Chat", value)


def prompts(values: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return a list of prompts; a list of numbers or of messages is one prompt.

    Raises:
        RequestError: The value is of no type that a prompt may have.
    """
    prompt(values, "prompts")
    if isinstance(values, str | Chat):
        return [values]
    items: list[Any] = list(values)
    is_one = bool(items) and not isinstance(items[0], str | Chat) and not is_list(items[0])
    return [items] if is_one else items


def check_count(values: Sized, field: str, limit: int) -> None:
    """Check the length of a list.

    Raises:
        RequestError: The list is longer than the limit.
    """
    if len(values) > limit:
        message = f"{field}: expected at most {limit}, got {len(values)}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)


_PARTS = {
    "sampling": Sampling,
    "stopping": Stopping,
    "output": Output,
    "schedule": Schedule,
    "prefix_cache": PrefixCache,
}


def request(value: Request) -> None:
    """Check the type of each part of a request, and its switches; `chats` checks conversations.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    kind(value, Request, "request")
    for name, part in _PARTS.items():
        kind(getattr(value, name), part, name)
    for field in fields(Output):
        if field.name.endswith("candidates"):  # numbers, checked where their limit is known
            continue
        flag(getattr(value.output, field.name), f"output.{field.name}")
    flag(value.prefix_cache.read, "prefix_cache.read")
    flag(value.prefix_cache.write, "prefix_cache.write")
    flag(value.add_special_tokens, "add_special_tokens")
    if value.constraint is not None:
        kind(value.constraint, Constraint, "constraint")
    prompt(value.prompt, "prompt")


def change(value: Change) -> None:
    """Check the type of each part of a change.

    Raises:
        RequestError: With the path of the first field that is wrong.
    """
    kind(value, Change, "change")
    if value.stopping is not None:
        kind(value.stopping, Stopping, "update.stopping")
    if value.schedule is not None:
        kind(value.schedule, Schedule, "update.schedule")
