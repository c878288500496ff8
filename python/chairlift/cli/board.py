"""Several answers at once: one line each while they grow, in full at the end."""

from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from chairlift.timeline.colours import COLOURS, ink


@dataclass(slots=True)
class Line:
    """One request as the terminal shows it."""

    prompt: str
    text: str = ""
    num_tokens: int = 0
    outcome: str = ""
    """Why it ended; empty while it runs."""
    has_failed: bool = False


class Board:
    """The lines of all requests; may be rendered any number of times."""

    def __init__(self, prompts: list[str]) -> None:
        self.lines = [Line(prompt) for prompt in prompts]

    def __rich__(self) -> RenderableType:
        """Return a line per request: number, prompt, state and the end of its text."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=3)
        table.add_column(max_width=30, no_wrap=True, style="bold")
        table.add_column(width=18, no_wrap=True)
        table.add_column(ratio=1, no_wrap=True)
        for i, line in enumerate(self.lines):
            table.add_row(chip(i), _one_line(line.prompt), _state(line), _Tail(line.text))
        return table

    def answers(self) -> RenderableType:
        """Return every prompt with its whole answer."""
        parts: list[RenderableType] = []
        for i, line in enumerate(self.lines):
            head = Text.assemble(chip(i), " ", (line.prompt, "bold"), "  ", _state(line))
            parts += [head, Text(line.text.strip()), Text()]
        return Group(*parts)


class _Tail:
    """The last characters of a text, as many as the column holds."""

    def __init__(self, text: str) -> None:
        self._text = _one_line(text)

    def __rich_console__(self, console: Console, options: object) -> "list[Text]":
        width = getattr(options, "max_width", console.width)
        text = self._text
        return [Text(text if len(text) <= width else "…" + text[1 - width :], no_wrap=True)]


def chip(number: int) -> Text:
    """Return the coloured number of a request; `number` counts from 0."""
    colour = COLOURS[number % len(COLOURS)]
    return Text(f" {number + 1} ", style=f"bold {ink(colour)} on {colour}")


def _state(line: Line) -> Text:
    if line.has_failed:
        return Text(line.outcome, style="red")
    if line.outcome:
        return Text(f"{line.outcome}, {line.num_tokens} tokens", style="green")
    if line.num_tokens:
        return Text(f"{line.num_tokens} tokens", style="cyan")
    return Text("waiting", style="bright_black")


def _one_line(text: str) -> str:
    return " ".join(text.split())
