"""`chairlift chat`: a conversation in the terminal."""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer

from chairlift.cli.errors import complain
from chairlift.cli.remote import (
    DEFAULT_TARGET,
    MaxTokens,
    MinP,
    Seed,
    Stop,
    Target,
    Temperature,
    TlsCa,
    TlsCert,
    TlsKey,
    TopK,
    TopP,
    connected,
    follow,
)
from chairlift.types import Chat, ChatMessage

if TYPE_CHECKING:
    from chairlift.client import AsyncClient

HELP = "Ctrl-C cancels an answer, /new begins again, Ctrl-D leaves."


def chat(
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
) -> None:
    """Talk to the model; the conversation is kept."""
    options: dict[str, object] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or (),
    }
    # One event loop for the whole conversation: between answers it rests while input() waits.
    with asyncio.Runner() as runner:
        connection = AsyncExitStack()
        opened = connected(target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        client = runner.run(connection.enter_async_context(opened))
        typer.secho(HELP, dim=True)
        try:
            _converse(runner, client, options)
        finally:
            runner.run(connection.aclose())


def _converse(runner: asyncio.Runner, client: "AsyncClient", options: dict[str, object]) -> None:
    messages: list[ChatMessage] = []
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        if text == "/new":
            messages.clear()
        elif text:
            _turn(runner, client, messages, text, options)


def _turn(
    runner: asyncio.Runner,
    client: "AsyncClient",
    messages: list[ChatMessage],
    text: str,
    options: dict[str, object],
) -> None:
    """One question and its answer, both kept; a cancelled answer is kept as far as it came."""
    messages.append(ChatMessage("user", text))
    pieces: list[str] = []
    error = ""
    try:
        error = runner.run(_answer(client, messages, options, pieces))
    except KeyboardInterrupt:
        sys.stdout.write(" …")
    typer.echo()
    if error:
        complain(error)
        messages.pop()
    else:
        messages.append(ChatMessage("assistant", "".join(pieces)))


async def _answer(
    client: "AsyncClient",
    messages: list[ChatMessage],
    options: dict[str, object],
    pieces: list[str],
) -> str:
    """Prints the answer as it comes; leaving early cancels it. Gives the error, if it was one."""

    def on_text(_index: int, text: str, _num_tokens: int) -> None:
        pieces.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    generation = client.generate(Chat(messages), **options)
    return await follow(generation, on_text)
