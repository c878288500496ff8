"""Read the blocks of the documentation, and run them as a page says.

A block of commands is `sh`, or indented by four spaces; a program is `python`. A `text` block right
behind shows what a block prints, where `...` on a line of its own stands for any lines. A comment
before a block says how it is tested:

- `<!-- figures differ -->`: it runs, and its output is that of another machine.
- `<!-- not run: why -->`: it does not run.
- `<!-- not started: why -->`: the settings of its `chairlift serve` are read, and it ends.
- `<!-- FILE -->`: it is the content of a file, which later commands of the page read.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cli.conftest import Run, environment
from tests.cli.terminal import Terminal
from tests.clients.console import assert_shown
from tests.forked import Python

ROOT = Path(__file__).parents[2]

OTHER_PROGRAMS = {
    "ghz": "it is not installed here",
    "go": "it is not installed here",
    "kubectl": "there is no cluster",
    "make": "it installs, and CI runs it",
    "pip": "it installs",
    "serve": "`make check-ray` runs it",
    "smg": "`make check-gateways` runs it",
    "uv": "it installs",
}
"""Programs that no test runs, and why."""

_COMMENT = re.compile(r"<!-- (.*) -->")
_FILE = re.compile(r"\S+\.\w+")
_RUN = ("sh", "python")
_CLIENTS = ("generate", "chat", "top")
_HAS_SHELL = re.compile(r"\s(\||>|<|&&)\s|\$\(")
_GRPC, _HTTP = "127.0.0.1:50051", "127.0.0.1:8000"

_INTERPRETER = r"""
import sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(eval(line), "<page>", "exec"), names)
    print("\x04", flush=True)
"""
"""Runs a program for each line, all with the same variables."""


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    kind: str
    """sh, python or the language of a file."""
    code: str
    mark: str = ""
    """The comment before it."""
    shown: str | None = None
    """The output that the page shows."""
    is_indented: bool = False

    @property
    def is_run(self) -> bool:
        return self.kind in _RUN and not self.mark.startswith("not run: ")

    @property
    def is_server(self) -> bool:
        """Whether it starts a server, and is no list of ways to do so."""
        is_marked = self.mark.startswith("not started: ")
        one = re.fullmatch(r"chairlift serve\b.*\n", self.code.replace("\\\n", ""))
        return one is not None and not self.is_indented and not is_marked

    @property
    def commands(self) -> list[str]:
        """The commands of the block, each in one line unless a quotation has several."""
        found, unfinished = [], ""
        for line in self.code.replace("\\\n", "").splitlines():
            unfinished += line
            try:
                words = shlex.split(unfinished, comments=True)
            except ValueError:
                unfinished += "\n"
                continue
            if words:
                found.append(unfinished)
            unfinished = ""
        assert not unfinished, f"a quotation does not end: {unfinished}"
        return found

    @property
    def others(self) -> list[str]:
        """The commands whose programs no test runs."""
        if self.kind != "sh":
            return []
        return [c for c in self.commands if shlex.split(c, comments=True)[0] in OTHER_PROGRAMS]


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page that run or are files, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    mark, is_right_behind, at = "", False, 0
    while at < len(lines):
        line, end = lines[at], at + 1
        if line.startswith("```"):
            end = lines.index("```", at + 1) + 1
            kind, code = line[3:], _joined(lines[at + 1 : end - 1])
            if kind != "text" or _FILE.fullmatch(mark):
                found.append(Block(kind, code, mark))
            elif is_right_behind:
                found[-1] = replace(found[-1], shown=code)
            is_right_behind = kind in _RUN
            mark = ""
        elif line.startswith("    ") and not lines[at - 1]:
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            code = _joined([each.removeprefix("    ") for each in lines[at:end]])
            found.append(Block("sh", code.rstrip("\n") + "\n", mark, is_indented=True))
            is_right_behind, mark = True, ""
        elif comment := _COMMENT.fullmatch(line):
            mark = comment[1]
        elif line:
            is_right_behind, mark = False, ""
        at = end
    yield from found


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


class Reader:
    """Does what a reader of a page does, in the folder of this process.

    A `chairlift serve` in a `sh` block of its own starts a server, which stays until the page ends,
    on free ports in place of those of the page. Those in lists have their settings read; the first
    one is started where a command needs a server.
    """

    def __init__(
        self,
        chairlift: Run,
        stack: ExitStack,
        *,
        addresses: Mapping[str, str] | None = None,
        stand_ins: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a page.

        Args:
            chairlift: Runs the command.
            stack: Ends what is started.
            addresses: Real addresses by those of the page.
            stand_ins: Real words by those of the page.
        """
        self._chairlift = chairlift
        self._stack = stack
        self._addresses = dict(addresses or {})
        self._stand_ins = dict(stand_ins or {})
        self._python: Python | None = None
        self._listed: list[str] | None = None

    def read(self, read: Iterable[Block]) -> None:
        """Do blocks in turn, and compare what is printed with what is shown."""
        for block in read:
            if block.kind not in _RUN:
                if _FILE.fullmatch(block.mark):
                    Path(block.mark).write_text(block.code, encoding="utf-8")
                continue
            if not block.is_run:
                continue
            printed = self.do(block)
            if block.shown is not None and block.mark != "figures differ":
                assert_shown(block.shown, printed)

    def do(self, block: Block) -> str:
        """Return what a block printed."""
        code = block.code
        if block.kind == "python":
            if _GRPC in code or _HTTP in code:
                self._need_server()
            return self._program(self._with_addresses(code))
        if block.is_server:
            self._serve(self._words(code)[1:])
            return ""
        others = block.others
        return "".join(self._command(each) for each in block.commands if each not in others)

    def _with_addresses(self, code: str) -> str:
        for shown, real in self._addresses.items():
            code = code.replace(shown, real)
        return code

    def _need_server(self) -> None:
        """Start the first server of the page, unless one runs."""
        if _GRPC not in self._addresses:
            assert self._listed is not None, "the page starts no server"
            self._serve(self._listed)

    def _words(self, command: str) -> list[str]:
        words = shlex.split(self._with_addresses(command), comments=True)
        words = [self._stand_ins.get(word, word) for word in words]
        words[0] = words[0].removeprefix(".venv/bin/")
        return words

    def _command(self, command: str) -> str:
        if _HTTP in command and "serve" not in command:
            self._need_server()
        words = self._words(command)
        if words[0] != "chairlift" or _HAS_SHELL.search(command):
            shell = ["bash", "-c", self._with_addresses(command)]
            run = subprocess.run(shell, capture_output=True, text=True, check=False)
            assert run.returncode == 0, f"{command}\n{run.stderr}"
            return run.stdout
        if words[1] == "serve":
            self._listed = self._listed or words[1:]
            words.append("--print-config")
        if words[1] in _CLIENTS:
            self._need_server()
            words += ["--target", self._addresses[_GRPC]]
        if words[1] == "top":
            # It would go on until a key is pressed.
            words.append("--once")
        result = self._chairlift(*words[1:])
        assert result.returncode == 0, f"{command}\n{result.stderr}"
        return result.stdout + result.stderr

    def _serve(self, words: list[str]) -> None:
        words = [re.sub(r"^127\.0\.0\.1:\d+$", "127.0.0.1:0", word) for word in words]
        if "--listen" not in words:
            words += ["--listen", "127.0.0.1:0"]
        server = self._stack.enter_context(Terminal(*words, columns=200))
        server.until("serving on ")
        self._addresses[_GRPC] = server.until(" ").strip()
        if "--http-listen" in words:
            server.until("OpenAI API on http://")
            self._addresses[_HTTP] = server.until("/v1")

    def _program(self, code: str) -> str:
        """Run a program behind those before it."""
        pipe = subprocess.PIPE
        if self._python is None:
            self._python = self._stack.enter_context(
                Python("-c", _INTERPRETER, stdin=pipe, stdout=pipe, text=True, env=environment())
            )
            self._stack.callback(self._python.kill)
        process = self._python
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{code!r}\n")
        process.stdin.flush()
        printed = ""
        for line in process.stdout:
            # A program may print without an end of line.
            printed += line.removesuffix("\x04\n") if line.endswith("\x04\n") else line
            if line.endswith("\x04\n"):
                return printed
        message = f"a program of the page failed: it printed {printed!r}"
        raise AssertionError(message)


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder like a clone with an active environment, and go there."""
    for name in ("docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copyfile(ROOT / "docs" / "traces" / "demo.jsonl", folder / "trace.jsonl")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{Path('/usr/bin')}:{Path('/bin')}")
