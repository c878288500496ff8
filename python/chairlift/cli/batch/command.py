"""`chairlift batch`: the requests of a file, answered into a file; a crash loses no answer."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chairlift.api.config import checked, engine_config
from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import (
    ADAPTER_SETTINGS,
    ANSWER_SETTINGS,
    ENGINE_SETTINGS,
    engine_options,
)
from chairlift.cli.progress import Progress
from chairlift.cli.remote import TlsCa, TlsCert, TlsKey, connected
from chairlift.server.config import ServerConfig

if TYPE_CHECKING:
    from chairlift.cli.batch.entries import Task
    from chairlift.cli.batch.journal import Journal
    from chairlift.cli.batch.lines import Source
    from chairlift.cli.batch.local import LocalRunner
    from chairlift.cli.batch.remote import RemoteRunner

_WITHOUT: Final = ADAPTER_SETTINGS | {
    *("queue_timeout_s", "time_limit_s", "batch_window_s", "batch_timeout_s"),
}


class Order(StrEnum):
    """The order of the output."""

    INPUT = "input"
    COMPLETION = "completion"


@engine_options(without=_WITHOUT)
def batch(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="A request per line; see docs/batch.md.")
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="An answer per line; it must not exist.")
    ],
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help=f"{MODEL_HELP} Default: demo."),
    ] = None,
    *,
    order: Annotated[Order, typer.Option(help="Of the answers.")] = Order.INPUT,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name of the model in bodies; repeat it for more."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Let a server do the work: HOST:PORT or unix:PATH. Its token is read from the "
            "variable CHAIRLIFT_TOKEN."
        ),
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as one JSON object.")
    ] = False,
    settings: dict[str, Any],
) -> None:
    """Answer the requests of a file into a file: generations, chats and vectors.

    The lines are in OpenAI's batch format or plain. A line that is wrong is answered by an error.
    The same command goes on where an earlier one ended, however it ended: what is answered is in
    OUT.jsonl.journal until OUT.jsonl is whole. With --target a server does the work.
    """
    began = time.monotonic()
    if target is not None:
        _check_no_engine_options(context)
        security = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        work: _Local | _Remote = _Remote(target, security, model)
    else:
        check_model(model or "demo")
        work = _Local(model or "demo", tuple(served_model_name or ()), settings)
    outcome = _run(source, output, work, is_in_order=order is Order.INPUT, as_json=as_json)
    outcome["seconds"] = round(time.monotonic() - began, 3)
    if as_json:
        sys.stdout.write(json.dumps({"output": str(output), **outcome}) + "\n")
        return
    errors = f", {outcome['errors']} of them errors" if outcome["errors"] else ""
    earlier = f", {outcome['earlier']} by an earlier run" if outcome["earlier"] else ""
    typer.echo(
        f"{output}: {outcome['lines']} answers{errors}{earlier}, in {outcome['seconds']:.1f} s"
    )


def _check_no_engine_options(context: typer.Context) -> None:
    names = (set(ENGINE_SETTINGS) - _WITHOUT) | {"served_model_name"}
    for parameter in context.command.params:
        given = parameter.name in names and context.get_parameter_source(parameter.name)
        if given and given.name == "COMMANDLINE":
            message = f"{parameter.opts[0]}: with --target it is a setting of the server"
            raise ConfigError(message)


class _Local:
    """A model in this process."""

    def __init__(self, model: str, names: tuple[str, ...], settings: dict[str, Any]) -> None:
        self._model = model
        self._settings = settings
        config = engine_config(**settings)
        self.header = {
            "model": model,
            **{name: str(getattr(config, name)) for name in ANSWER_SETTINGS},
        }
        self._names = checked(
            ServerConfig, model=model, served_model_name=names or None
        ).model_names

    @contextmanager
    def runner(self) -> "Iterator[tuple[LocalRunner, tuple[str, ...], Any]]":
        """Yield a runner, the names of the model and what returns its tokenizer."""
        from chairlift.cli.batch.local import LocalRunner
        from chairlift.engine.engine import Engine

        with Engine(self._model, **self._settings) as engine:
            yield LocalRunner(engine), self._names, lambda: engine.tokenizer


class _Remote:
    """A model behind a server."""

    def __init__(self, target: str, security: dict[str, str | None], model: str | None) -> None:
        """Ask the server for its model.

        Raises:
            ChairliftError: There is no server, it does not serve, or not this model.
        """
        self._target = target
        self._security = security
        self._names = asyncio.run(self._served())
        if model is not None and model not in self._names:
            names = " and ".join(map(repr, self._names))
            message = f"{target}: the server serves {names}, not {model!r}"
            raise ChairliftError(message)
        self.header = {"model": self._names[0]}

    async def _served(self) -> tuple[str, ...]:
        async with connected(self._target, **self._security) as client:
            model = await client.model_info()
        return (model.name, *model.aliases)

    @contextmanager
    def runner(self) -> "Iterator[tuple[RemoteRunner, tuple[str, ...], Any]]":
        """Yield a runner, the names of the model and what returns its tokenizer."""
        from chairlift.cli.batch.remote import RemoteRunner

        with RemoteRunner(self._target, self._security) as runner:
            # Without the model there is none; log probabilities, which need it, are refused.
            yield runner, self._names, lambda: None


def _run(
    source: Path, output: Path, work: "_Local | _Remote", *, is_in_order: bool, as_json: bool
) -> dict[str, Any]:
    """Answer all lines; return the numbers of lines, of errors, and of those answered before."""
    from chairlift.cli.batch.journal import Journal, file_error
    from chairlift.cli.batch.lines import Source

    path = output.with_name(f"{output.name}.journal")
    exists = output.exists()
    if exists and not path.exists():
        raise file_error(output, "it exists; remove it or choose another name")
    if not output.parent.is_dir():
        raise file_error(output.parent, "no such folder")
    with Source(source) as lines:
        scan = lines.scan()
        header = {"input": scan.digest, **work.header}
        with Journal(path, header, scan.num_lines) as journal:
            num_before = journal.num_answered
            outcome = {"lines": scan.num_requests, "earlier": num_before}
            if exists:
                is_whole = num_before == scan.num_requests and journal.end_finished(output)
                if not is_whole:
                    raise file_error(output, f"it exists, and {path} has other answers")
                return {**outcome, "errors": journal.num_errors}
            if num_before < scan.num_requests:
                progress = Progress(
                    "lines",
                    scan.num_requests,
                    as_json=as_json,
                    doing=str(output),
                    num_before=num_before,
                )
                _answer(lines, journal, work, progress, scan.num_requests)
            lines.check_unchanged()
            journal.finish(output, in_order=is_in_order)
            return {**outcome, "errors": journal.num_errors}


def _answer(
    lines: "Source",
    journal: "Journal",
    work: "_Local | _Remote",
    progress: Progress,
    num_requests: int,
) -> None:
    """Write the answers that are missing into the journal.

    Raises:
        ChairliftError: The work cannot go on; the message has how far it is.
    """
    from chairlift.cli.batch.entries import answer_line, error_line
    from chairlift.server.http.errors import HttpError
    from chairlift.server.protocols.openai.logprobs import TokenTexts

    try:
        with work.runner() as (runner, served, tokenizer), progress:
            tasks = _tasks(lines, journal, served, TokenTexts(tokenizer), progress)
            for task, result in runner.run(tasks):
                if isinstance(result, HttpError):
                    line = error_line(task.head, result)
                else:
                    line = answer_line(task.head, result)
                journal.append(task.head.number, line, is_error=isinstance(result, HttpError))
                progress.tick()
    except (ChairliftError, KeyboardInterrupt) as error:
        if isinstance(error, ConfigError):
            raise
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        kept = f"{journal.num_answered} of {num_requests} lines are answered"
        message = f"{why}; {kept}: the same command goes on"
        raise ChairliftError(message) from None


def _tasks(
    lines: "Source",
    journal: "Journal",
    served: tuple[str, ...],
    texts: Any,  # noqa: ANN401, imported when the work begins
    progress: Progress,
) -> "Iterator[Task]":
    """Yield the tasks that have no answer yet; lines that are none are answered here."""
    from chairlift.cli.batch.entries import Bad, Head, LineError, error_line, task_of
    from chairlift.cli.batch.lines import MAX_LINE_BYTES

    for line in lines.lines():
        if journal.has(line.number):
            continue
        if line.data is None:
            error = LineError(f"expected at most {MAX_LINE_BYTES} bytes", "line_too_long")
            found: Task | Bad = Bad(Head(line.number), error)
        else:
            found = task_of(line.number, line.data, served, texts)
        if isinstance(found, Bad):
            journal.append(line.number, error_line(found.head, found.error), is_error=True)
            progress.tick()
        else:
            yield found
