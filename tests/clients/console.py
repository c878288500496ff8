"""Commands and what they print, as the README shows them.

$ command that
> goes on
a line that is printed
...
another one, after any number of others
"""

import re
from dataclasses import dataclass, field


@dataclass
class Example:
    """One command and the lines that are shown of its output."""

    command: str
    shown: list[str] = field(default_factory=list)


def examples(text, marker):
    """The commands of the console blocks between a marker and the next heading."""
    _, found, rest = text.partition(f"<!-- {marker} -->")
    if not found:
        return []
    section = re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]
    result = []
    for block in re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                result.append(Example(line[2:]))
            elif line.startswith("> "):
                result[-1].command += "\n" + line[2:]
            else:
                result[-1].shown.append(line)
    return result


def assert_shown(shown, output):
    """What is shown was printed, line by line; `...` stands for any lines."""
    parts = "\n".join(shown).split("...")
    pattern = r"(?:.*\n)*?".join(re.escape(part.strip("\n")) + r"\n?" for part in parts)
    assert re.fullmatch(pattern, output.rstrip("\n") + "\n"), f"{output}\nis not\n{shown}"
