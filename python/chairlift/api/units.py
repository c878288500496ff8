"""Sizes such as `2GiB` and durations such as `50ms`, from text to numbers."""

import re

from chairlift.api.errors import ConfigError

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Return the bytes of `2GiB`, `512MB` or `1073741824`.

    Raises:
        ConfigError: Not a size; the message shows one that is.
    """
    return int(_scaled(text, _BYTES, "a size such as 2GiB, 512MB or a number of bytes"))


def parse_duration(text: str) -> float:
    """Return the seconds of `50ms`, `5s`, `2m` or `0.05`.

    Raises:
        ConfigError: Not a duration; the message shows one that is.
    """
    return _scaled(text, _SECONDS, "a duration such as 50ms, 5s or 2m")


def _scaled(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        message = f"expected {expected}, got {text!r}"
        raise ConfigError(message)
    return float(match[1]) * units[match[2].lower()]
