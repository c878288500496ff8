"""The page of the command line: each command with its arguments and options."""

import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeAlias

import typer
from chairlift.cli import app

from tools.reference.markdown import page, table

# Those of click, of which typer has a copy without a public name.
_Command: TypeAlias = Any
_Parameter: TypeAlias = Any

_LEAD = """
`chairlift COMMAND --help` prints the same. What `serve` takes from the environment and from a file
is in [settings.md](settings.md).
"""


def command_line_page() -> str:
    """Return the page, the commands in the order of `chairlift --help`."""
    return page("Command line", _LEAD, *_commands(typer.main.get_command(app), "chairlift"))


def _commands(command: _Command, name: str) -> Iterator[str]:
    if not (subcommands := getattr(command, "commands", {})):
        yield from _command(command, name)
    for part, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from _commands(subcommand, f"{name} {part}")


def _command(command: _Command, name: str) -> Iterator[str]:
    yield f"## `{name}`"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    lines = [line for parameter in command.params if (line := _parameter(parameter))]
    if lines:
        yield table(("Argument or option", "Default", "Meaning"), lines)


def _parameter(parameter: _Parameter) -> tuple[str, str, str] | None:
    if getattr(parameter, "hidden", False):
        return None
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name]
    text = ", ".join(f"`{name}`" for name in names)
    return text, _default(parameter), getattr(parameter, "help", None) or ""


def _default(parameter: _Parameter) -> str:
    shown, value = getattr(parameter, "show_default", None), parameter.default
    if parameter.required:
        return "required"
    if isinstance(shown, str):
        return shown
    if shown is False or value in (None, False, (), []) or callable(value):
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"
