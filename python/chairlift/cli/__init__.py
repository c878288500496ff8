"""The `chairlift` command: one file per command, and none imports torch before it runs."""

from importlib.metadata import version
from typing import Annotated

import typer

from chairlift.cli import (
    bench,
    chat,
    demo,
    embed,
    generate,
    kernels,
    models,
    plan,
    quantize,
    rank,
    replay,
    rerank,
    serve,
    timeline,
    top,
)
from chairlift.cli.batch.command import batch as batch_command
from chairlift.cli.command import add_command, new_app

app = new_app("Language models over one gRPC stream, batched continuously.", "chairlift")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"chairlift {version('chairlift')}")
        raise typer.Exit


@app.callback()
def chairlift(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Language models over one gRPC stream, batched continuously."""


add_command(app, "serve", serve.serve)
add_command(app, "generate", generate.generate)
add_command(app, "chat", chat.chat)
add_command(app, "embed", embed.embed)
add_command(app, "rerank", rerank.rerank)
add_command(app, "batch", batch_command)
add_command(app, "demo", demo.demo)
add_command(app, "top", top.top)
add_command(app, "models", models.models)
add_command(app, "plan", plan.plan)
add_command(app, "rank", rank.rank)
add_command(app, "quantize", quantize.quantize)
add_command(app, "replay", replay.replay)
add_command(app, "timeline", timeline.timeline)
app.add_typer(bench.app, name="bench")
app.add_typer(kernels.app, name="kernels")
