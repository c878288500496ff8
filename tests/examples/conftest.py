import runpy
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.forked import Python

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Served:
    """Where a server listens."""

    address: str
    url: str


@contextmanager
def served(*words):
    """Serve a model on free ports in a process of its own."""
    command = ["-m", "chairlift", "serve", *words, "--log-level", "error"]
    command += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    with Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            address = line_of(server, "serving on ").split()[2]
            url = line_of(server, "OpenAI API on ").split()[3]
            yield Served(address, url)
        finally:
            server.terminate()


def line_of(server, beginning):
    """Return the next line with such a beginning; fail if the server ends before."""
    before = []
    for line in server.stdout:
        if line.startswith(beginning):
            return line
        before.append(line)
    printed = "".join(before)
    pytest.fail(f"the server ended with {server.wait(30)} before {beginning!r}: {printed!r}")


def program(path, *arguments):
    """Return the words that run an example as `python PATH ARGUMENT...` does."""
    words = [str(EXAMPLES / path), *map(str, arguments)]
    return (
        "-c",
        f"import runpy, sys; sys.argv = {words}; runpy.run_path({words[0]!r}, None, '__main__')",
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example in this process; return what it prints."""

    def printed_by(path, *arguments):
        words = [str(EXAMPLES / path), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(words[0], run_name="__main__")
        return capsys.readouterr().out

    return printed_by


def shown(path):
    """Return the last output that the README beside an example shows."""
    readme = (EXAMPLES / path).parent / "README.md"
    return readme.read_text(encoding="utf-8").rpartition("```text\n")[2].partition("```")[0]
