"""The picture of the README is what its command draws."""

import re
import shlex
from pathlib import Path

from chairlift.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]


def test_the_figure_of_the_readme_is_what_its_command_draws(tmp_path, monkeypatch):
    (command,) = re.findall(r"`chairlift (timeline .*?)`", (ROOT / "README.md").read_text())
    *arguments, out = shlex.split(command)
    assert out == "docs/demo.svg"
    monkeypatch.chdir(ROOT)
    run = CliRunner().invoke(app, [*arguments, str(tmp_path / "demo.svg")])
    assert run.exit_code == 0
    assert (tmp_path / "demo.svg").read_text() == (ROOT / out).read_text()
