"""Values with units: sizes such as `2GiB`, durations such as `50ms`."""

from collections.abc import Callable
from typing import Any

import typer

from chairlift.api.errors import ConfigError
from chairlift.api.units import parse_duration, parse_size


def format_size(num_bytes: int) -> str:
    """Return a size with its unit: `2.00 GiB`."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{num_bytes} B"


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
