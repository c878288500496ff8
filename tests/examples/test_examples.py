"""examples/: each program runs against a real server, and does what its README says."""

import io
import re
import signal
import subprocess
import sys

import pytest
from chairlift.client import connect, new_start

from tests.cli.conftest import environment
from tests.examples.conftest import EXAMPLES, program, served, shown
from tests.forked import Python, run_python

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))


@pytest.fixture(scope="module")
def server():
    with served("demo", "--max-num-seqs", "4", "--tool-format", "hermes") as found:
        yield found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_is_one_program_and_a_short_page(folder):
    assert len([*folder.glob("*.py"), *folder.glob("*.ipynb")]) == 1
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 30


def test_a_server_that_does_not_start_fails_with_its_exit_code():
    with (
        pytest.raises(pytest.fail.Exception, match="the server ended with 2 before 'serving on '"),
        served("demo", "--max-num-seqs", "0"),
    ):
        pass


def test_a_chat_prints_what_its_page_shows(server, run, monkeypatch):
    questions = ["Why is the sky blue?", "What do bees make?"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*questions, ""])))
    printed = run("chat-terminal/chat.py", server.address)
    # A terminal shows what is typed, too.
    expected = shown("chat-terminal/chat.py")
    for question in questions:
        expected = expected.replace(f"> {question}\n", "> ")
    assert printed == f"{expected}> \n"


def num_cancelled(server):
    with connect(server.address) as client:
        reasons = [each for tenant in client.load().tenants for each in tenant.reasons]
    return sum(each.count for each in reasons if each.reason == "cancelled")


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(server):
    pipe, before = subprocess.PIPE, num_cancelled(server)
    command = program("chat-terminal/chat.py", server.address)
    with Python(*command, stdin=pipe, stdout=pipe, text=True, env=environment()) as chat:
        chat.stdin.write("Count from 1 to 20.\n")
        chat.stdin.flush()
        assert chat.stdout.read(3) == "> 1"
        chat.send_signal(signal.SIGINT)
        assert chat.stdout.readline().endswith(" [stopped]\n")
        chat.stdin.write("What do bees make?\n")
        chat.stdin.close()
        printed = chat.stdout.read()
    assert printed == "> Bees make honey.\n> \n"
    assert num_cancelled(server) == before + 1


def test_watching_shows_a_row_for_each_request_and_no_idle_row_while_one_waits(server):
    starts = [new_start(word, max_tokens=6, ignore_eos=True) for word in ("a", "b", "c", "d", "e")]
    pipe = subprocess.PIPE
    command = program("watch-steps/watch.py", server.address, "--steps", 24)
    with (
        Python(*command, stdout=pipe, text=True, env=environment()) as watch,
        connect(server.address) as client,
    ):
        # What runs before the watch is open is not seen.
        for _ in range(100):
            for generation in client.generate_all(starts):
                generation.text()
            if watch.poll() is not None:
                break
        header, *lines = watch.stdout.read().splitlines()
    assert header == "    step  0 1 2 3  waiting"
    steps = [line.split() for line in lines]
    assert len(steps) == 24
    rows_of = {}
    for _, *cells in steps:
        for row, cell in enumerate(cells[:4]):
            rows_of.setdefault(cell.upper(), set()).add(row)
        assert len(cells) == 4 or "." not in cells
    assert all(len(rows) == 1 for name, rows in rows_of.items() if name != ".")
    assert any(len(cells) == 5 for _, *cells in steps)


def test_a_job_sums_up_each_text_and_an_error_is_of_its_own(server, run, tmp_path):
    texts = {"bees": "Bees make honey.", "long": "honey " * 4000, "sky": "The sky is blue."}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "summaries.jsonl"
    requests.write_text(run("bulk-summaries/summaries.py", "write", tmp_path))
    words = ("batch", requests, answers, "--target", server.address)
    assert run_python("-m", "chairlift", *words, env=environment()).returncode == 0
    lines = run("bulk-summaries/summaries.py", "show", answers).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["bees.txt", "long.txt", "sky.txt"]
    assert ["tokens" in line for line in lines] == [False, True, False]


def test_an_agent_answers_each_question_in_the_form_of_the_schema(server, run):
    lines = run("agent-json/agent.py", server.address).splitlines()
    assert len(lines) == 3
    form = r"\{'town': '(Bern|Basel|Chur)', 'kilometres': \d{1,3}\}"
    assert all(re.fullmatch(form, line) for line in lines)


def test_the_openai_package_gets_the_answer_that_the_page_shows(server, run):
    words = (server.url, "demo", "What do bees make?")
    assert run("openai-drop-in/ask.py", *words) == shown("openai-drop-in/ask.py")


def test_a_reader_without_credit_is_suspended_and_others_go_on(server, run):
    printed = run("credit-backpressure/slow_reader.py", server.address)
    assert printed == shown("credit-backpressure/slow_reader.py")


def test_a_load_from_outside_has_figures_of_all_its_requests(server, run):
    words = ("--requests", 8, "--rate", 100, "--max-tokens", 8)
    printed = run("load-from-outside/load.py", server.url, "demo", *words)
    assert printed.startswith("8 requests, ")
    figures = re.findall(
        r"^(time to the first token|between two events) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE
    )
    assert [name for name, *_ in figures] == ["time to the first token", "between two events"]
    assert all(0 <= float(middle) <= float(high) for _, middle, high in figures)


def test_a_flood_of_one_tenant_does_not_delay_another(run, tmp_path):
    tokens = {"flood": "a" * 16, "other": "b" * 16}
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("".join(f"{name}:{token}\n" for name, token in tokens.items()))
    with served("demo", "--max-num-seqs", "4", "--auth-tokens", file) as server:

        def num_before(token):
            printed = run("fair-tenants/fair.py", server.address, tokens["flood"], token)
            return int(re.match(r"(\d+) of 24 requests of the flood", printed)[1])

        # Four have a row, and may end until the other request has come.
        assert num_before(tokens["other"]) <= 8
        assert num_before(tokens["flood"]) >= 16
