"""Commands and what they print, as the documentation shows them: a `sh` block, then a `text` block.

In the text, `...` on a line of its own stands for any lines.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One command and the lines that are shown of its output."""

    command: str
    shown: str


def examples(text, marker):
    """The pairs of blocks between each such marker and the next heading."""
    _, *marked = text.split(f"<!-- {marker} -->")
    sections = [re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0] for rest in marked]
    blocks = re.compile(r"^```sh\n(.*?)^```\n+```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
    pairs = [pair for section in sections for pair in blocks.findall(section)]
    return [Example(command.strip(), shown) for command, shown in pairs]


def assert_shown(shown, output):
    """What is shown was printed, line by line."""
    parts = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    pattern = r"(?:.*\n)*?".join(re.escape(part.strip("\n")) + r"\n?" for part in parts)
    assert re.fullmatch(pattern, output.rstrip("\n") + "\n"), f"{output}\nis not\n{shown}"
