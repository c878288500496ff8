"""Values with units: sizes such as `2GiB`, durations such as `50ms`."""

import re
from collections.abc import Callable
from typing import Any

import typer

from chairlift.errors import ConfigError

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
    """Parse `2GiB`, `512MB` or `1073741824`; return bytes.

    Raises:
        ConfigError: Not a size; the message has an example.
    """
    return int(_scaled(text, _BYTES, "a size such as 2GiB, 512MB or a number of bytes"))


def format_size(num_bytes: int) -> str:
    """Return a size with its unit: `2.00 GiB`."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{num_bytes} B"


def parse_duration(text: str) -> float:
    """Parse `50ms`, `5s`, `2m` or `0.05`; return seconds.

    Raises:
        ConfigError: Not a duration; the message has an example.
    """
    return _scaled(text, _SECONDS, "a duration such as 50ms, 5s or 2m")


def _scaled(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        message = f"expected {expected}, got {text!r}"
        raise ConfigError(message)
    return float(match[1]) * units[match[2].lower()]


def duration(name: str, **option: Any) -> Any:  # noqa: ANN401, as typer.Option
    """Return a `typer.Option` whose value is a duration; the command gets seconds."""
    return typer.Option(name, parser=_reported(parse_duration), metavar="DURATION", **option)


def size(name: str, **option: Any) -> Any:  # noqa: ANN401, as typer.Option
    """Return a `typer.Option` whose value is a size; the command gets bytes."""
    return typer.Option(name, parser=_reported(parse_size), metavar="SIZE", **option)


def _reported(parse: Callable[[str], object]) -> Callable[[object], object]:
    """Return a parser whose errors name the option; defaults come parsed."""

    def parser(value: object) -> object:
        try:
            return parse(str(value))
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None

    return parser
