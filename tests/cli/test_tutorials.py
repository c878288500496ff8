"""docs/tutorials/ and docs/explanation/: every command runs, and prints what its page shows.

The commands of a page run one after the other in one folder. `chairlift serve` stays until the page
ends, on free ports in place of those of the page. A block behind `<!-- figures differ -->` runs,
and its output is that of another machine; one behind `<!-- not run: why -->` does not run.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Run, printed_by
from tests.cli.terminal import Terminal
from tests.clients.console import assert_shown

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for folder in ("tutorials", "explanation")
    for page in (ROOT / "docs" / folder).glob("*.md")
)
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<kind>sh|python)\n(?P<code>.*?)^```\n"
    r"(?:\n^```text\n(?P<shown>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
MAX_NOT_RUN = 0


@dataclass(frozen=True)
class Block:
    """A block of a page: its code, the mark before it, and the output that the page shows."""

    kind: str
    code: str
    mark: str
    shown: str | None


def blocks(page: Path) -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(found["kind"], found["code"], found["mark"] or "", found["shown"])


class Reader:
    """Does what a reader of a page does."""

    def __init__(self, chairlift: Run, stack: ExitStack) -> None:
        self._chairlift = chairlift
        self._stack = stack
        self._addresses: dict[str, str] = {}

    def do(self, block: Block) -> str | None:
        """Return what a block printed; None if it started a server."""
        code = block.code.replace("\\\n", "")
        for shown, real in self._addresses.items():
            code = code.replace(shown, real)
        if block.kind == "python":
            return printed_by(code)
        words = shlex.split(code)
        if words[:2] == ["chairlift", "serve"]:
            return self._serve(words[1:])
        if words[0] == "chairlift":
            target = self._addresses.get("127.0.0.1:50051")
            uses_server = target is not None and words[1] == "generate"
            run = self._chairlift(*words[1:], *(["--target", target] if uses_server else []))
            assert run.returncode == 0, run.stderr
            return run.stdout + run.stderr
        run = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    def _serve(self, words: list[str]) -> None:
        free = [word.replace("127.0.0.1:8000", "127.0.0.1:0") for word in words]
        server = self._stack.enter_context(Terminal(*free, "--listen", "127.0.0.1:0"))
        server.until("serving on ")
        self._addresses["127.0.0.1:50051"] = server.until(" ").strip()
        server.until("OpenAI API on http://")
        self._addresses["127.0.0.1:8000"] = server.until("/v1")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, chairlift: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{Path('/usr/bin')}:{Path('/bin')}")
    with ExitStack() as stack:
        reader = Reader(chairlift, stack)
        for block in blocks(page):
            if block.mark.startswith("not run: "):
                continue
            printed = reader.do(block)
            if block.shown is not None and block.mark != "figures differ":
                assert printed is not None
                assert_shown(block.shown, printed)


def test_a_page_has_no_block_that_does_not_run() -> None:
    not_run = [block for page in PAGES for block in blocks(page) if "not run" in block.mark]
    assert len(not_run) <= MAX_NOT_RUN, "a block that runs can become one that does not"
