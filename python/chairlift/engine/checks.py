"""Checks of single values in a request: each gives the value, or raises `RequestError`.

A message says what was expected and what was got: numbers as they are, of everything else only its
type or its length, so that no part of a prompt reaches an error or a log.
"""

import operator
from collections.abc import Iterable, Sequence

from chairlift.errors import Reason, RequestError

_FOREVER_S = 1e9
"""Longer times are cut to this: thirty years, which fit the core's 64-bit nanoseconds."""


def bad(field: str, expected: str, got: object) -> RequestError:
    """Gives the error for a value that is wrong."""
    shown = repr(got) if isinstance(got, int | float) else f"a value of type {type(got).__name__}"
    message = f"{field}: expected {expected}, got {shown}"
    return RequestError(Reason.BAD_PARAMETER, message, field=field)


def real(value: object, field: str, low: float, high: float, expected: str) -> float:
    """Checks a number in `[low, high]`; NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(field, expected, value)
    return float(value)


def integer(value: object, field: str, low: int, high: int) -> int:
    """Checks a whole number in `[low, high]`."""
    expected = f"a whole number from {low} to {high}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise bad(field, expected, value) from None
    if isinstance(value, bool) or not low <= number <= high:
        raise bad(field, expected, value)
    return number


def seconds(value: float | None, field: str) -> float | None:
    """Checks a positive time; infinity is no limit, and so is None."""
    if value is None:
        return None
    time_s = real(value, field, 1e-9, float("inf"), "a positive number of seconds")
    return None if time_s == float("inf") else min(time_s, _FOREVER_S)


def utf8_len(text: object, field: str) -> int:
    """Gives the length of a text in bytes; a lone surrogate has no encoding."""
    if not isinstance(text, str):
        raise bad(field, "text", text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        message = f"{field}: expected text that UTF-8 can encode, got a lone surrogate"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field) from None


def short_text(text: str, field: str, most_bytes: int) -> None:
    """Checks a text that a request carries along."""
    size = utf8_len(text, field)
    if size > most_bytes:
        message = f"{field}: expected at most {most_bytes} bytes, got {size}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)


def strings(values: Iterable[str], field: str, *, most: int, most_bytes: int) -> tuple[str, ...]:
    """Checks a list of short texts that are not empty."""
    expected = f"at most {most} strings of 1 to {most_bytes} bytes"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise bad(field, expected, values)
    texts = tuple(values)
    at_most(texts, field, most)
    for text in texts:
        size = utf8_len(text, field)
        if not 1 <= size <= most_bytes:
            message = f"{field}: expected {expected}, got one of {size} bytes"
            raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return texts


def token_ids(values: Iterable[int], field: str, vocab_size: int) -> list[int]:
    """Checks ids against the width of the logits.

    The tokenizer's length is not the measure: an id that it knows but the logits do not have would
    read and write beside the row.
    """
    try:
        ids = list(map(operator.index, values))
    except TypeError:
        raise bad(field, "whole numbers", values) from None
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        message = f"{field}: expected ids from 0 to {vocab_size - 1}, got one outside"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
    return ids


def at_most(values: Sequence[object], field: str, most: int) -> None:
    """Checks the length of a list."""
    if len(values) > most:
        message = f"{field}: expected at most {most}, got {len(values)}"
        raise RequestError(Reason.BAD_PARAMETER, message, field=field)
