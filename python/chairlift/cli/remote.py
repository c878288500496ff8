"""Shared by the commands that call a server: the target, the request's options, the events."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.api.errors import ChairliftError, NoServerError, RequestError, ServerError
from chairlift.cli.board import Board, Line

if TYPE_CHECKING:
    from chairlift.client import Answer, AsyncClient, AsyncGeneration
    from chairlift.v1 import generation_pb2

DEFAULT_TARGET = "127.0.0.1:50051"
NO_SERVER = "no server at {}: `chairlift serve` starts one"

Target = Annotated[
    str,
    typer.Option(
        envvar="CHAIRLIFT_TARGET",
        help="Server: HOST:PORT or unix:PATH. Its token is read from the variable CHAIRLIFT_TOKEN.",
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        envvar="CHAIRLIFT_TLS_CA",
        help="PEM file of the authorities whose servers are trusted; default: plain text.",
    ),
]
TlsCert = Annotated[str | None, typer.Option(help="PEM file of a client certificate.")]
TlsKey = Annotated[str | None, typer.Option(help="PEM file of its key.")]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer.", min=1)]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; default: the model's.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Draw from this share of the likelihood.")]
MinP = Annotated[
    float | None, typer.Option(help="Drop tokens below this share of the top probability.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the draws.", min=0)]
NumAnswers = Annotated[
    int, typer.Option("-n", "--n", help="Answers to each prompt, drawn apart.", min=1)
]
Stop = Annotated[list[str] | None, typer.Option(help="Ends the answer; may be repeated.")]


@asynccontextmanager
async def connected(
    target: str,
    *,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> AsyncIterator["AsyncClient"]:
    """Yield a client of a server that serves.

    The token is that of CHAIRLIFT_TOKEN: an option would be visible to every user of the machine.

    Raises:
        ChairliftError: There is no server, or it does not serve yet.
    """
    # Otherwise gRPC logs failed handshakes to the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from chairlift.client import connect_async

    token = os.environ.get("CHAIRLIFT_TOKEN")
    async with connect_async(
        target, token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key
    ) as client:
        try:
            is_serving = await client.is_serving()
        except ServerError as error:
            raise ChairliftError(no_connection(target, error)) from None
        if not is_serving:
            message = f"the server at {target} does not serve yet, or is about to end"
            raise ChairliftError(message)
        yield client


def no_connection(target: str, error: ServerError) -> str:
    """Return why there is no connection."""
    from chairlift.client.proxies import proxy_of

    if isinstance(error, NoServerError):
        proxy = proxy_of(target)
        return NO_SERVER.format(f"{target} ({proxy})" if proxy else target)
    return f"{target}: {str(error).removeprefix('UNAVAILABLE: ')}"


async def follow(
    generation: "AsyncGeneration",
    on_text: Callable[[int, str, int], None],
    on_reasoning: Callable[[str], None] | None = None,
) -> str:
    """Pass on answers as they come: the index, the text and its number of tokens.

    Args:
        generation: The request.
        on_text: Takes what is shown; reasoning, too, without the next one.
        on_reasoning: Takes reasoning alone.

    Returns:
        The error as text, or an empty text.
    """
    try:
        async for event in generation.events():
            if event.HasField("tokens"):
                tokens = event.tokens
                text = _after_reasoning(generation.answers[event.index], tokens)
                if on_reasoning is None:
                    text = tokens.reasoning + text
                elif tokens.reasoning:
                    on_reasoning(tokens.reasoning)
                on_text(event.index, text, tokens.num_tokens)
    except RequestError as error:
        return for_people(error)
    return ""


def _after_reasoning(answer: "Answer", tokens: "generation_pb2.Tokens") -> str:
    """Return the new text; the first text after reasoning begins a paragraph."""
    is_first = bool(tokens.text) and answer.text == tokens.text
    return f"\n\n{tokens.text}" if is_first and answer.reasoning else tokens.text


def for_people(error: RequestError) -> str:
    """Return the message of an error, with its field."""
    names_field = error.message.startswith(error.field)
    return error.message if names_field else f"{error.field}: {error.message}"


def outcome(answer: "Answer") -> str:
    """Return how an answer ended, in one word."""
    from chairlift.v1 import generation_pb2

    assert answer.finished is not None, "events ended without an error"
    name: str = generation_pb2.FinishReason.Name(answer.finished.reason)
    return name.removeprefix("FINISH_REASON_").lower()


async def answer_all(
    client: "AsyncClient",
    board: Board,
    starts: "list[generation_pb2.Start]",
    on_piece: Callable[[int, str], None] | None = None,
) -> None:
    """Send requests over one stream of their own and show the answers on the board.

    Args:
        client: From `connected`.
        board: One line per answer of each request.
        starts: The requests, in the order of the lines.
        on_piece: Called with the number of a line that has changed, and its new text.
    """
    generations = await client.generate_all(starts)

    notify = on_piece or (lambda _number, _text: None)

    async def one(first: int, lines: list[Line], generation: "AsyncGeneration") -> None:
        def grow(index: int, text: str, num_tokens: int) -> None:
            lines[index].text += text
            lines[index].num_tokens += num_tokens
            notify(first + index, text)

        error = await follow(generation, grow)
        for line, answer in zip(lines, generation.answers, strict=True):
            line.outcome, line.has_failed = error or outcome(answer), bool(error)
            notify(first + answer.index, "")

    num_answers = len(board.lines) // len(starts)
    firsts = range(0, len(board.lines), num_answers)
    lines = [board.lines[first : first + num_answers] for first in firsts]
    await asyncio.gather(*map(one, firsts, lines, generations))
