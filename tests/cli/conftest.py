import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from chairlift.cli import app
from typer.testing import CliRunner

from tests.cli.terminal import Terminal
from tests.forked import Python, run_python
from tests.server.conftest import serve

__all__ = ["serve"]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture(params=["in this process"])
def chairlift(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command: here, or `in its own process` as people do."""
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)

    def here(*arguments: object, stdin: str = "") -> Result:
        words = [str(argument) for argument in arguments]
        run = CliRunner().invoke(app, words, input=stdin, env=environment())
        # A traceback would be swallowed, and is what these tests must not miss.
        if run.exception is not None and not isinstance(run.exception, SystemExit):
            raise run.exception
        return Result(run.exit_code, run.stdout, run.stderr)

    def outside(*arguments: object, stdin: str = "") -> Result:
        run = run_python("-m", "chairlift", *arguments, input=stdin, env=environment())
        return Result(run.returncode, run.stdout, run.stderr)

    return here if request.param == "in this process" else outside


@pytest.fixture(scope="session")
def server(
    tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    """`chairlift serve` on the tiny model and a free port; its first lines are in `.lines`."""
    command = ["-m", "chairlift", "serve", tiny_folder]
    command += ["--listen", "127.0.0.1:0", "--max-num-seqs", "4", "--max-num-batched-tokens", "32"]
    with Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        process.lines = [process.stdout.readline() for _ in range(2)]
        yield process
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="session")
def target(server: subprocess.Popen[str]) -> str:
    """Where the server listens."""
    return server.lines[1].split()[2]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the demo model is served, which writes sentences."""
    address = f"unix:{tmp_path_factory.mktemp('demo')}/demo.sock"
    with Terminal("serve", "--listen", address) as server:
        server.until("serving on")
        yield address


def printed_by(program: str) -> str:
    """Run the Python of a page in a process of its own; return what it prints."""
    run = run_python("-c", program, env=environment())
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def environment() -> dict[str, str]:
    """This process's, without settings of the command and without colours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CHAIRLIFT_")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "200"}
