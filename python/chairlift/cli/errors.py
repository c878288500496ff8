"""Expected errors become one line on stderr and exit status 1; only bugs show a traceback."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from chairlift.errors import ChairliftError


class OneLineErrors(TyperGroup):
    """The top command; every command below it runs inside `invoke`."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401, typer's own signature
        """Runs the command; a ChairliftError ends the process with its message."""
        try:
            return super().invoke(ctx)
        except ChairliftError as error:
            complain(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def complain(message: str) -> None:
    """Prints one line for people to stderr."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
