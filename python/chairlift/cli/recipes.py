"""Traces of recipes: the options that generate one, and the loader of a file or a recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.api.errors import ConfigError

if TYPE_CHECKING:
    from chairlift.replay.trace import Trace

RecipeRequests = Annotated[
    int | None, typer.Option(help="Recipe: how many requests. Default: its own.", min=1)
]
RecipeRate = Annotated[
    float | None, typer.Option(help="Recipe: arrivals per second. Default: its own.")
]
RecipeScale = Annotated[
    float | None, typer.Option(help="Recipe: divide all lengths by this.", min=1)
]


def draws_of(
    *, requests: int | None, rate_per_s: float | None, seed: int | None, scale: float | None
) -> dict[str, Any]:
    """Return the arguments of `draw_trace` that were given as options."""
    options = {"num_requests": requests, "rate_per_s": rate_per_s, "seed": seed, "scale": scale}
    return {name: value for name, value in options.items() if value is not None}


def load_trace(
    name: str, drawn: dict[str, Any], *, to_be_written: bool, has_fleet: bool = False
) -> "Trace":
    """Return the trace of a recipe, or that of a file.

    Args:
        name: The recipe, or the file.
        drawn: Options of `draw_trace`.
        to_be_written: Whether the trace is to be written to a file.
        has_fleet: Whether a fleet runs it.

    Raises:
        ConfigError: An option of recipes is given for a file, or the file cannot be read.
    """
    from chairlift.replay.mooncake import is_mooncake, read_mooncake
    from chairlift.replay.recipes import RECIPES, draw_trace
    from chairlift.replay.trace import read_trace

    if name in RECIPES:
        return draw_trace(name, **drawn)
    if drawn.keys() - ({"seed"} if has_fleet else set()) or to_be_written:
        message = (
            "--requests, --rate, --seed, --scale and --write are for recipes "
            f"({', '.join(RECIPES)}), got {name!r}"
        )
        raise ConfigError(message)
    path = Path(name)
    return read_mooncake(path) if is_mooncake(path) else read_trace(path)
