"""`chairlift models`: the models that are here, from their headers alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.report import Json, Result, report
from chairlift.cli.values import format_size

if TYPE_CHECKING:
    from chairlift.engine.loading.available import ModelListing


def models(
    folder: Annotated[
        Path | None, typer.Argument(help="Also list the models in this folder, one level deep.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the models that can be served from here, and why others cannot.

    The demo, those of installed packages and those in the Hugging Face cache. A name is what
    `chairlift serve` takes. Only the headers of files are read.
    """
    rows = _rows(folder)
    if as_json:
        report(rows, title="", as_json=True)
    else:
        _print(rows)


def _rows(folder: Path | None) -> Iterator[Result]:
    from chairlift.engine.loading.available import describe

    for found in _found(folder):
        model = describe(found.path)
        yield {
            "name": found.name,
            "path": str(found.path),
            "weight_bytes": model.weight_bytes,
            "format": model.format,
            "family": model.family,
            "supported": not model.unsupported_reason,
            "reason": model.unsupported_reason,
        }


def _found(folder: Path | None) -> "Iterator[ModelListing]":
    from chairlift.engine.loading.available import cached_models, models_in, packaged_models

    # A wrong folder is an error before anything is printed.
    inside = [] if folder is None else list(models_in(folder))
    yield from packaged_models()
    yield from cached_models()
    yield from inside


def _print(rows: Iterable[Result]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("format", no_wrap=True)
    table.add_column("family", overflow="fold")
    table.add_column("supported", overflow="fold")
    for row in rows:
        size = format_size(int(row["weight_bytes"])) if row["weight_bytes"] else ""
        cells = (row["name"], size, row["format"], row["family"], row["reason"] or "yes")
        table.add_row(*(Text(_printable(str(cell))) for cell in cells))
    Console().print(table)


def _printable(text: str) -> str:
    """Return a text that a terminal shows: names of files may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
