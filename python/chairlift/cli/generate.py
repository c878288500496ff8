"""`chairlift generate`: prompts to a server, answers to the terminal as they come."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.board import Board
from chairlift.cli.errors import complain
from chairlift.cli.remote import (
    DEFAULT_TARGET,
    MaxTokens,
    MinP,
    NumAnswers,
    Seed,
    Stop,
    Target,
    Temperature,
    TlsCa,
    TlsCert,
    TlsKey,
    TopK,
    TopP,
    answer_all,
    connected,
)
from chairlift.errors import ChairliftError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from chairlift.client import AsyncClient


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Default: the lines of standard input."),
    ] = None,
    *,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    n: NumAnswers = 1,
) -> None:
    """Answer one or many prompts at once, over one stream, each once or several times."""
    texts = prompts or _lines_of_stdin()
    options: dict[str, object] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or (),
        "n": n,
    }
    board = Board([text for text in texts for _ in range(n)])
    connection = connected(target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    asyncio.run(_answer(connection, texts, board, options))
    # An error is that of all answers to a prompt.
    failed = [line for line in board.lines[::n] if line.has_failed]
    for line in failed:
        complain(line.outcome)
    raise typer.Exit(1 if failed else 0)


def _lines_of_stdin() -> list[str]:
    lines = [] if sys.stdin.isatty() else [line.rstrip("\n") for line in sys.stdin]
    if not lines:
        message = "expected a prompt: as an argument, or as a line of standard input"
        raise ChairliftError(message)
    return lines


async def _answer(
    connection: "AbstractAsyncContextManager[AsyncClient]",
    texts: list[str],
    board: Board,
    options: dict[str, object],
) -> None:
    from rich.console import Console
    from rich.live import Live

    from chairlift.client import new_start

    console = Console()
    starts = [new_start(text, **options) for text in texts]  # type: ignore[arg-type]
    async with connection as client:
        if len(board.lines) == 1:
            await answer_all(client, board, starts, on_piece=_print_now)
            typer.echo()
        elif console.is_terminal:
            with Live(board, console=console, transient=True, refresh_per_second=12):
                await answer_all(client, board, starts)
            console.print(board.answers())
        else:
            await answer_all(client, board, starts)
            for i, line in enumerate(board.lines, start=1):
                if not line.has_failed:
                    typer.echo(f"[{i}] {line.text.strip()}")


def _print_now(_number: int, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
