"""`chairlift chat`, typed into a real terminal and read from a pipe."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.server.connection import Serving

STEP_S = 0.05
"""So long that no answer ends before it is cancelled."""

GREEDY = ("--temperature", "0", "--max-tokens", "8")
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


@pytest.fixture
async def slow(
    serve: Callable[[], AbstractAsyncContextManager[Serving]], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Serving]:
    """A server in this process that takes its time for each token."""
    monkeypatch.setattr("tests.server.conftest.STEP_S", STEP_S)
    async with serve() as server:
        yield server


def test_chat_answers_each_line(chairlift: Run, target: str) -> None:
    run = chairlift("chat", "--target", target, *GREEDY, stdin="one\n/new\ntwo\n")
    assert run.returncode == 0, run
    assert run.stdout.count("> ") == 4


def answers(run: object) -> list[str]:
    """What was printed after each prompt of the command."""
    return [part.strip() for part in run.stdout.split("> ")[1:]]


def test_new_forgets_the_conversation(chairlift: Run, target: str) -> None:
    run = chairlift("chat", "--target", target, *GREEDY, stdin="one\none\n/new\none\n")
    first, second, anew, again, _ = answers(run)
    assert (again, anew) == (first, "A new conversation.")
    assert second != first


def test_system_sets_the_system_message_and_begins_anew(chairlift: Run, target: str) -> None:
    lines = "one\n/system up and go\none\n/new\none\n/system\none\n"
    run = chairlift("chat", "--target", target, *GREEDY, stdin=lines)
    assert (run.returncode, run.stderr) == (0, "")
    plain, begun, first, again, second, without, last, _ = answers(run)
    assert begun == again == "A new conversation, with a system message."
    assert without == "A new conversation."
    assert (second, last) == (first, plain)
    assert first != plain
    option = ("--system", "up and go")
    started = chairlift("chat", "--target", target, *GREEDY, *option, stdin="one\n")
    assert answers(started)[0] == first


def test_help_lists_the_commands_and_quit_leaves(chairlift: Run, target: str) -> None:
    run = chairlift("chat", "--target", target, stdin="/help\n/quit\none\n")
    assert run.returncode == 0
    for name in ("/system", "/new", "/help", "/quit", "Ctrl-C", "Ctrl-D"):
        assert name in answers(run)[0]
    assert run.stdout.count("> ") == 2


def test_an_unknown_command_is_not_sent_to_the_model(chairlift: Run, target: str) -> None:
    run = chairlift("chat", "--target", target, *GREEDY, stdin="/quite\n/usr/bin is a path\n")
    assert run.stderr == "error: no such command: /quite; /help lists them\n"
    unknown, answered, _ = answers(run)
    assert unknown == ""
    assert answered


def test_a_refused_line_leaves_the_conversation_as_it_was(chairlift: Run, target: str) -> None:
    lines = "one\n" + "snow " * 400 + "\none\n"
    run = chairlift("chat", "--target", target, *GREEDY, stdin=lines)
    assert run.stderr.count("error: ") == run.stderr.count("\n") == 1
    without = chairlift("chat", "--target", target, *GREEDY, stdin="one\none\n")
    assert answers(run)[2] == answers(without)[1]


@pytest.mark.parametrize("columns", [30, 50, 80])
def test_a_terminal_gets_whole_words_in_lines_of_its_width(
    chairlift: Run, demo: str, columns: int
) -> None:
    question = "Tell me a story about a fox and a river.\n"
    options = ("--target", demo, "--temperature", "0", "--max-tokens", "120")
    whole = answers(chairlift("chat", *options, stdin=question))[0]
    with Terminal("chat", *options, columns=columns) as terminal:
        terminal.until("> ")
        terminal.type(question)
        terminal.until("river.\n")
        shown = terminal.until("\n> ")
        assert shown.split() == whole.split()
        assert shown.count("\n") >= len(whole) // columns
        assert max(map(len, shown.split("\n"))) <= columns
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_line_can_be_edited_and_called_back(target: str) -> None:
    pytest.importorskip("readline")
    with Terminal("chat", "--target", target, *GREEDY) as terminal:
        terminal.until("> ")
        # Two keys to the left, and then the letter that was forgotten.
        terminal.type("/hlp\x1b[D\x1b[De\n")
        assert "/quit" in terminal.until("\n> ")
        terminal.type(UP + "\n")
        assert "/quit" in terminal.until("\n> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0


async def test_ctrl_c_cancels_the_answer_and_the_conversation_goes_on(slow: Serving) -> None:
    def talk(terminal: Terminal) -> None:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("one\n")
        terminal.until(" ")  # the answer has begun
        terminal.type(CTRL_C)
        terminal.until(" …\n> ")

    def go_on(terminal: Terminal) -> None:
        # At the prompt it leaves nothing but the line.
        terminal.type("/quit")
        terminal.until("/quit")
        terminal.press_until(CTRL_C, "Ctrl-D leaves.\n> ")
        terminal.type("two\n")
        terminal.until("two\n")
        terminal.until(" ")
        terminal.type(CTRL_C)
        terminal.until(" …\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0

    with Terminal("chat", "--target", slow.address, "--temperature", "0") as terminal:
        await asyncio.to_thread(talk, terminal)
        # The client waits for a line, and has cancelled the request before.
        assert (await slow.load()).num_running == 0
        await asyncio.to_thread(go_on, terminal)


def test_a_server_that_is_gone_is_an_error_and_not_the_end(
    chairlift: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    with Terminal("serve", tiny_folder, "--listen", f"unix:{tmp_path}/s.sock") as server:
        server.until("serving on")
        with Terminal("chat", "--target", f"unix:{tmp_path}/s.sock", *GREEDY) as terminal:
            terminal.until("> ")
            server.type(CTRL_C)
            assert server.end() == 0
            terminal.type("one\n")
            terminal.until("error: ")
            terminal.until("\n> ")
            terminal.type("/quit\n")
            assert terminal.end() == 0
