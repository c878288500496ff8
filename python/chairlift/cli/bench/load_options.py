"""Options of the commands that measure a load."""

from typing import Annotated

import typer

Slo = Annotated[
    str | None, typer.Option(metavar="BOUNDS", help="Such as itl_p99=100ms,ttft_p50=2s.")
]
Seed = Annotated[int, typer.Option(help="Of lengths, tokens and arrivals.", min=0)]
