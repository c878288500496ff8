"""Expected errors are one line on stderr; only bugs show a traceback.

error: --max-num-seqs: input should be a valid integer, got 'many'
error: chairlift.toml:3: max-num-seqs: input should be greater than or equal to 1, got 0
"""

import sys
from typing import Any, Final

import typer
from pydantic import ValidationError

from chairlift.api.errors import ConfigError
from chairlift.cli.config_sources import nearest, place_of

FAILED: Final = 1
"""Exit code of a command that failed while it ran: no server, a model that does not load."""
WRONG_USE: Final = 2
"""Exit code where the command line, a variable, a file or a setting is wrong."""

_PARAMETERS: Final = {"address": "target"}
"""Settings of the client that have another name on the command line."""

UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]
"""Base of the parser's errors, which typer does not export."""


def print_error(message: str) -> None:
    """Print an error as one line to stderr."""
    line = " ".join(message.split())
    # A message may quote a server, whose characters could move the cursor of the terminal.
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    sys.stderr.write(f"error: {safe}\n")


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that ends with an error."""
    return WRONG_USE if isinstance(error, ConfigError | UsageError) else FAILED


def message_of(error: Exception) -> str:
    """Return an error in the style of this project: lower case, no period, its source first."""
    if not isinstance(error, UsageError):
        return str(error)
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    option: str | None = getattr(error, "option_name", None)
    if isinstance(error, typer.BadParameter) and error.message and parameter and context:
        return f"{place_of(context, parameter)}: {_plain(error.message)}{_got(error)}"
    if hasattr(error, "possibilities") and option is not None and context is not None:
        options = [name for known in context.command.params for name in known.opts]
        return f"no such option: {option}{nearest(option, options)}"
    return _plain(error.format_message())


def with_source(error: ConfigError, context: typer.Context) -> ConfigError:
    """Replace the setting in an error by its flag, its variable or its line of the file.

    Args:
        error: Its message begins with the setting's name, or the names of several.
        context: Context of the command, whose parameters have the names of settings.
    """
    names, separator, rest = str(error).partition(": ")
    parameters = {parameter.name: parameter for parameter in context.command.params}
    found = [parameters.get(_PARAMETERS.get(name, name)) for name in names.split(", ")]
    places = [place_of(context, parameter) for parameter in found if parameter is not None]
    if not separator or len(places) != len(found):
        return error
    return ConfigError(f"{', '.join(places)}: {rest}")


def _plain(message: str) -> str:
    """Return a message of the parser, which is a sentence, in the style of this project."""
    text = message.strip().removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]


def _got(error: Exception) -> str:
    """Return the value, if the message does not name it."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return ""
    value = repr(cause.errors()[0]["input"])
    return "" if value in str(error) else f", got {value}"
