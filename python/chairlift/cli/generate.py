"""`chairlift generate`: send prompts to a server, print the answers as they come."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.api.errors import ChairliftError, RequestError
from chairlift.api.types import Chat, ChatMessage, Constraint
from chairlift.cli.board import Board
from chairlift.cli.errors import print_error
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
    for_people,
    outcome,
)
from chairlift.cli.wrap import Printer

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from chairlift.client import AsyncClient, AsyncGeneration, RequestOptions
    from chairlift.v1 import generation_pb2 as pb


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
    adapter: Annotated[str | None, typer.Option(help="Adapter (LoRA) of the server.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File of a JSON schema that each answer must fit.")
    ] = None,
    json_object: Annotated[
        bool, typer.Option("--json-object", help="Each answer is a JSON object.")
    ] = False,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that each answer must match.")
    ] = None,
    lark: Annotated[
        Path | None, typer.Option(help="File of a Lark grammar that each answer must fit.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="A text that an answer may be; repeat it for more.")
    ] = None,
    as_chat: Annotated[
        bool, typer.Option("--chat", help="Each prompt is a user's turn of a conversation.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per line and answer, when the answer ends."),
    ] = False,
) -> None:
    """Answer one or many prompts at once, over one stream, each once or several times."""
    texts = prompts or _lines_of_stdin()
    constraint = Constraint(
        json_schema=None if json_schema is None else _text_of(json_schema),
        json_object=json_object,
        regex=regex,
        lark=None if lark is None else _text_of(lark),
        choices=tuple(choice or ()),
    )
    options: RequestOptions = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop,
        "n": n,
        "adapter": adapter,
        "constraint": None if constraint == Constraint() else constraint,
    }
    starts = _starts(texts, options, as_chat=as_chat)
    connection = connected(target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
    if as_json:
        errors = asyncio.run(_print_json(connection, starts))
    else:
        board = Board([text for text in texts for _ in range(n)])
        asyncio.run(_answer(connection, starts, board))
        # An error applies to all answers to a prompt.
        errors = [line.outcome for line in board.lines[::n] if line.has_failed]
    for error in errors:
        print_error(error)
    raise typer.Exit(1 if errors else 0)


def _starts(texts: list[str], options: "RequestOptions", *, as_chat: bool) -> list["pb.Start"]:
    from chairlift.client import new_start

    prompts = [Chat([ChatMessage("user", text)]) if as_chat else text for text in texts]
    return [new_start(prompt, **options) for prompt in prompts]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        message = f"cannot read {path}: {why}"
        raise ChairliftError(message) from None


def _lines_of_stdin() -> list[str]:
    lines = [] if sys.stdin.isatty() else [line.rstrip("\n") for line in sys.stdin]
    if not lines:
        message = "expected a prompt: as an argument, or as a line of standard input"
        raise ChairliftError(message)
    return lines


async def _answer(
    connection: "AbstractAsyncContextManager[AsyncClient]", starts: list["pb.Start"], board: Board
) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    async with connection as client:
        if len(board.lines) == 1:
            (line,), printer = board.lines, Printer()
            await answer_all(client, board, starts, lambda _number, text: printer.write(text))
            printer.end()
            if not line.text and not line.has_failed:
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


async def _print_json(
    connection: "AbstractAsyncContextManager[AsyncClient]", starts: list["pb.Start"]
) -> list[str]:
    """Print each answer when it ends, and each error; return the errors as text."""
    async with connection as client:
        generations = await client.generate_all(starts)
        errors = await asyncio.gather(*map(_print_answers, range(len(starts)), generations))
    return [error for error in errors if error]


async def _print_answers(prompt: int, generation: "AsyncGeneration") -> str:
    head = {"prompt": prompt, "request_id": generation.request_id}
    try:
        async for event in generation.events():
            if event.HasField("finished"):
                answer, usage = generation.answers[event.index], event.finished.usage
                counts = {
                    "prompt_tokens": usage.prompt_tokens,
                    "cached_tokens": usage.cached_tokens,
                    "output_tokens": usage.output_tokens,
                }
                end = {"finish_reason": outcome(answer), "usage": counts}
                fields = {"reasoning": answer.reasoning} if answer.reasoning else {}
                said = {"text": answer.text, **fields}
                _print_line({**head, "answer": event.index, **said, **end})
    except RequestError as error:
        details = {"reason": error.reason, "field": error.field, "message": error.message}
        _print_line({**head, "error": details})
        return for_people(error)
    return ""


def _print_line(entry: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()
