"""What every command says about itself, at the width of a small terminal."""

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from chairlift.cli import app

from tests.cli.conftest import Run


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
@pytest.mark.parametrize("width", [80, 50])
def test_the_help_has_every_name_in_full(path: tuple[str, ...], width: int) -> None:
    command = ALL[path]
    context = command.make_context(" ".join(path), [], resilient_parsing=True, terminal_width=width)
    text = command.get_help(context)
    names = {
        name
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    words = set(text.replace(",", " ").split())
    assert names | set(getattr(command, "commands", ())) <= words
    assert "…" not in text
    assert "..." not in text.replace("]...", "")
    # A name, its values and its opposite may be wider than a very narrow terminal.
    assert max(map(len, text.splitlines())) <= max(width, 62)


def test_the_version_is_that_of_the_package(chairlift: Run) -> None:
    run = chairlift("--version")
    expected = f"chairlift {importlib.metadata.version('chairlift')}\n"
    assert (run.returncode, run.stdout, run.stderr) == (0, expected, "")


@pytest.mark.parametrize("path", [(), ("bench",), ("kernels",)], ids=" ".join)
def test_a_group_without_a_command_prints_its_help(chairlift: Run, path: tuple[str, ...]) -> None:
    run = chairlift(*path)
    assert run.returncode == 2
    for name in ALL[path].commands:
        assert f"  {name} " in run.stderr
