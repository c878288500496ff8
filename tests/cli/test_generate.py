"""`chairlift generate` against a real server in another process."""

import pytest

from tests.cli.conftest import Run

GREEDY = ("--temperature", "0", "--max-tokens", "8")


def test_several_prompts_share_a_stream_and_come_in_order(chairlift: Run, target: str) -> None:
    prompts = ["one two", "snow slope", "lift chair ride", "up", "go stop", "three", "né"]
    together = chairlift("generate", *prompts, "--target", target, *GREEDY)
    assert together.returncode == 0, together
    alone = chairlift("generate", prompts[2], "--target", target, *GREEDY)
    assert f"[3] {alone.stdout.strip()}" in together.stdout
    starts = [together.stdout.index(f"[{i}] ") for i in range(1, len(prompts) + 1)]
    assert starts == sorted(starts)


def test_lines_of_stdin_are_prompts(chairlift: Run, target: str) -> None:
    run = chairlift("generate", "--target", target, *GREEDY, stdin="one\ntwo\n")
    assert run.returncode == 0, run
    assert "[2] " in run.stdout


def test_a_prompt_may_have_several_answers(chairlift: Run, target: str) -> None:
    drawn = ("--temperature", "1", "--seed", "4", "--max-tokens", "8")
    run = chairlift("generate", "one", "two", "-n", "2", "--target", target, *drawn)
    assert run.returncode == 0, run
    lines = [run.stdout.index(f"[{i}] ") for i in (1, 2, 3, 4)]
    assert lines == sorted(lines)
    refused = chairlift("generate", "one", "-n", "1000", "--target", target)
    assert refused.returncode == 1
    assert "sampling.n" in refused.stderr


def test_no_prompt(chairlift: Run, target: str) -> None:
    run = chairlift("generate", "--target", target)
    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert "expected a prompt" in run.stderr


def test_refused_prompt_leaves_the_others(chairlift: Run, target: str) -> None:
    run = chairlift("generate", "one", "snow " * 400, "--target", target, *GREEDY)
    assert run.returncode == 1
    assert run.stdout.startswith("[1] ")
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_no_server_is_one_line(chairlift: Run, command: str, tmp_path: object) -> None:
    prompt = ("hello",) if command == "generate" else ()
    run = chairlift(command, *prompt, "--target", f"unix:{tmp_path}/none.sock")
    assert run.returncode == 1
    assert (
        run.stderr
        == f"error: no server at unix:{tmp_path}/none.sock: `chairlift serve` starts one\n"
    )


def test_chat_answers_each_line(chairlift: Run, target: str) -> None:
    run = chairlift("chat", "--target", target, *GREEDY, stdin="one\n/new\ntwo\n")
    assert run.returncode == 0, run
    assert run.stdout.count("> ") == 4
