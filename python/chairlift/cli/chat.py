"""`chairlift chat`: a conversation in the terminal."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chairlift.api.errors import ServerError
from chairlift.api.types import Chat, ChatMessage
from chairlift.cli.errors import print_error
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
from chairlift.cli.wrap import Printer

if TYPE_CHECKING:
    from chairlift.client import AsyncClient, RequestOptions

HINT: Final = "/help lists the commands, Ctrl-D leaves."
HELP: Final = """\
/system TEXT  begin anew with this system message
/new          begin anew
/help         print this list
/quit         leave, as Ctrl-D does
Ctrl-C        cancel the answer"""

CANCEL_TIMEOUT_S: Final = 2.0
"""How long a cancelled answer may take to end."""

_COMMAND = re.compile(r"/(?P<name>[a-z]+)(?:\s+(?P<rest>.*))?", re.DOTALL)


def chat(
    *,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    system: Annotated[str, typer.Option(help="System message; default: none.")] = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
) -> None:
    """Talk to the model; the conversation is kept until /new."""
    options: RequestOptions = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop,
    }
    with suppress(ImportError):
        # Its import gives `input` line editing and a history.
        import readline  # noqa: F401
    # One event loop for the whole conversation: it is idle while input() waits.
    with asyncio.Runner() as runner:
        connection = AsyncExitStack()
        opened = connected(target, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        client = runner.run(connection.enter_async_context(opened))
        typer.secho(HINT, dim=True)
        try:
            _Conversation(runner, client, options, system.strip()).run()
        finally:
            runner.run(connection.aclose())


@dataclass
class _Conversation:
    runner: asyncio.Runner
    client: "AsyncClient"
    options: "RequestOptions"
    system: str
    turns: list[ChatMessage] = field(default_factory=list)

    def run(self) -> None:
        """Read lines until one of them ends the conversation."""
        while True:
            try:
                if not self._take(input("> ").strip()):
                    return
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                # A Ctrl-C just after the end of an answer must not leave the chat.
                typer.echo()
                if not sys.stdin.isatty():
                    raise
                typer.secho(HINT, dim=True)

    def _take(self, line: str) -> bool:
        """Execute a command or answer a line; return whether the conversation continues."""
        command = _COMMAND.fullmatch(line)
        match command["name"] if command is not None else "":
            case "":
                if line:
                    self._answer(line)
            case "quit":
                return False
            case "help":
                typer.echo(HELP)
            case "new":
                self._begin_anew(self.system)
            case "system":
                self._begin_anew(((command and command["rest"]) or "").strip())
            case name:
                print_error(f"no such command: /{name}; /help lists them")
        return True

    def _begin_anew(self, system: str) -> None:
        self.system = system
        self.turns.clear()
        with_system = ", with a system message" if system else ""
        typer.secho(f"A new conversation{with_system}.", dim=True)

    def _answer(self, text: str) -> None:
        """Answer a line and keep both; a cancelled answer is kept as far as it came."""
        head = [ChatMessage("system", self.system)] if self.system else []
        question = ChatMessage("user", text)
        printer = Printer()
        error = ""
        try:
            error = self.runner.run(self._stream([*head, *self.turns, question], printer))
        except ServerError as failure:
            error = str(failure)
        except KeyboardInterrupt:
            printer.write(" …")
        printer.end()
        if error:
            print_error(error)
        elif printer.text:
            self.turns += [question, ChatMessage("assistant", printer.text)]

    async def _stream(self, messages: list[ChatMessage], printer: "Printer") -> str:
        """Print the answer as it comes; return the error, if it was one."""

        def on_text(_index: int, text: str, _num_tokens: int) -> None:
            # A paragraph after reasoning; the turn has no reasoning and begins with its text.
            printer.text += text if printer.text else text.removeprefix("\n\n")
            printer.write(text)

        generation = self.client.generate(Chat(messages), **self.options)
        following = asyncio.create_task(follow(generation, on_text, printer.write))
        try:
            return await asyncio.shield(following)
        except asyncio.CancelledError:
            # The loop does not run between two answers: send the cancel now.
            await generation.cancel()
            await asyncio.wait({following}, timeout=CANCEL_TIMEOUT_S)
            raise
        finally:
            following.cancel()
