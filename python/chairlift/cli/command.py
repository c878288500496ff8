"""What all commands share: the layout of --help, and how an error ends them."""

import sys
from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.cli.config_sources import nearest
from chairlift.cli.errors import (
    FAILED,
    WRONG_USE,
    UsageError,
    exit_code_of,
    message_of,
    print_error,
    with_source,
)

_WIDEST: Final = 100
"""Columns of --help on a wide terminal."""
_SENTENCE: Final = 200
"""Characters that the first sentence of a command's help may have."""


class Command(TyperCommand):
    """One command."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, typer's own types
        """Write the options by panel; a name too long for its column has a line of its own."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None)
                heading = "Arguments" if is_argument else panel or "Options"
                panels.setdefault(heading, []).append(record)
        for heading, records in panels.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401, typer's own signature
        """Run the command; an error about a setting names where the setting came from.

        Raises:
            ConfigError: A setting is wrong.
        """
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise with_source(error, ctx) from None


class Commands(TyperGroup):
    """A group of commands; that of the whole program ends the process."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002, as typer
        """Write the first sentence of each command's help, whole."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_SENTENCE))
                    for name, command in self.commands.items()
                ]
            )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401, typer's own
        """Print the help if no command follows.

        Raises:
            typer.Exit: No command follows.
        """
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(WRONG_USE)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401, typer's own
        """Find the command, or fail with the nearest name."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            ctx.fail(f"no such command: {name}{nearest(name, self.commands)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401, typer's own signature
        """Run a command and end the process; an expected error is one line."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except (ChairliftError, UsageError) as error:
            print_error(message_of(error))
            code = exit_code_of(error)
        except typer.Abort:
            print_error("the input has ended")
            code = FAILED
        sys.exit(code)


def new_app(text: str, name: str | None = None) -> typer.Typer:
    """Return an empty group of commands.

    Args:
        text: Its help.
        name: Name of the program, unless the group is part of another.
    """
    return typer.Typer(
        name=name,
        cls=Commands,
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": _WIDEST,
        },
    )


def add_command(app: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command to a group."""
    app.command(name, cls=Command)(command)
