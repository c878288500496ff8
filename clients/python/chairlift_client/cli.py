"""`chairlift-client`: the commands of `chairlift` that call a server."""

from importlib.metadata import version
from typing import Annotated

import typer
from chairlift.cli import chat, generate, top
from chairlift.cli.bench import serve
from chairlift.cli.command import add_command, new_app

app = new_app("Call a Chairlift server.", "chairlift-client")
bench = new_app("Measure; --json prints one JSON object per line.")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"chairlift-client {version('chairlift-client')}")
        raise typer.Exit


@app.callback()
def chairlift_client(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Call a Chairlift server."""


add_command(app, "generate", generate.generate)
add_command(app, "chat", chat.chat)
add_command(app, "top", top.top)
add_command(bench, "serve", serve.serve)
app.add_typer(bench, name="bench")
