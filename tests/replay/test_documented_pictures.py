"""The pictures of docs/batching.md and of the README are what their commands draw."""

import re
import shlex
from pathlib import Path

import pytest
from chairlift.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "batching.md").read_text()
PICTURES = re.findall(r"    \$ chairlift (replay .*)\n((?:    (?:row|step) .*\n)+)", TEXT)


@pytest.mark.parametrize(("command", "picture"), PICTURES, ids=[c for c, _ in PICTURES])
def test_a_picture_is_what_its_command_draws(command, picture, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "80"})
    assert run.exit_code == 0
    drawn = [line.rstrip() for line in run.output.splitlines()]
    for line in picture.splitlines():
        assert line.strip() in drawn


def test_there_are_pictures():
    assert len(PICTURES) == 5


def test_the_figure_of_the_readme_is_what_its_command_draws(tmp_path, monkeypatch):
    (command,) = re.findall(r"`chairlift (timeline .*?)`", (ROOT / "README.md").read_text())
    *arguments, out = shlex.split(command)
    assert out == "docs/demo.svg"
    monkeypatch.chdir(ROOT)
    run = CliRunner().invoke(app, [*arguments, str(tmp_path / "demo.svg")])
    assert run.exit_code == 0
    assert (tmp_path / "demo.svg").read_text() == (ROOT / out).read_text()
