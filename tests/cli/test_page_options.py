"""Commands and options that the documentation names are those of the command line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chairlift.cli import app
from typer.main import get_command

from tests.test_docs import NAMES, PAGES

COMMAND = get_command(app)
NAMED = re.compile(r"(?:^|[\s`(])chairlift ((?:[a-z-]+)(?: [^`\n|]*)?)")
OPTION = re.compile(r"`(--[a-z][a-z0-9-]*)[^`]*`")
OTHERS = {"--no-deps"}
OTHERS |= {"--kind", "--only", "--rows", "--section", "--tiny"}
OTHERS |= {"--address", "--rounds", "--token"}
"""Options of other programs: of pip, benchmarks/ and clients/."""


def commands_in(page: Path) -> Iterator[list[str]]:
    """Return the words of each command that a page names."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for words in NAMED.findall(text):
        yield re.sub(r"\s#.*", "", words).split()


def options_of(command: Any) -> set[str]:
    """Return the options of a command and of those below it."""
    found = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    return found.union(*map(options_of, getattr(command, "commands", {}).values()))


def unknown(words: list[str]) -> list[str]:
    """Return the words of a command that the command line does not know."""
    command = COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if command is COMMAND:
        return []  # a sentence, such as "chairlift is"
    names = [re.match(r"--[a-z0-9-]*", word) for word in words]
    return [name[0] for name in names if name and name[0] not in options_of(command)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_command_has_the_options_that_a_page_gives_it(page: Path) -> None:
    found = {" ".join(words): unknown(words) for words in commands_in(page)}
    assert not {command: names for command, names in found.items() if names}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_an_option_that_a_page_names_is_one_of_a_command(page: Path) -> None:
    named = set(OPTION.findall(page.read_text(encoding="utf-8")))
    assert not named - options_of(COMMAND) - OTHERS


def test_pages_name_commands() -> None:
    assert sum(len(list(commands_in(page))) for page in PAGES) > 200


def test_a_wrong_option_is_found() -> None:
    assert unknown(["serve", "MODEL", "--max-seqs", "4"]) == ["--max-seqs"]
    assert unknown(["bench", "policies", "--wide"]) == ["--wide"]
    assert unknown(["serve", "--http-listen=127.0.0.1:8000"]) == []
