"""`chairlift generate` against a real server in another process."""

import json
import re
from pathlib import Path

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


def test_a_refused_prompt_alone_leaves_stdout_empty(chairlift: Run, target: str) -> None:
    run = chairlift("generate", "snow " * 400, "--target", target, *GREEDY)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: prompt: this model's maximum context length is 256 tokens")


def test_json_is_one_object_per_answer_and_per_error(chairlift: Run, target: str) -> None:
    drawn = ("-n", "2", "--seed", "1", "--max-tokens", "4", "--json")
    run = chairlift("generate", "one two", "snow " * 400, "up", "--target", target, *drawn)
    assert run.returncode == 1
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    errors = [line for line in lines if "error" in line]
    answers = [line for line in lines if "error" not in line]
    assert [list(line) for line in errors] == [["prompt", "request_id", "error"]]
    assert errors[0]["prompt"] == 1
    error = errors[0]["error"]
    assert (error["reason"], error["field"]) == ("PROMPT_TOO_LONG", "prompt")
    assert run.stderr == f"error: {error['message']}\n"
    keys = ["prompt", "request_id", "answer", "text", "finish_reason", "usage"]
    assert all(list(line) == keys for line in answers)
    places = sorted((line["prompt"], line["answer"]) for line in answers)
    assert places == [(0, 0), (0, 1), (2, 0), (2, 1)]
    for line in answers:
        assert line["finish_reason"] in ("length", "stop")
        assert 1 <= line["usage"]["output_tokens"] <= 4
        assert (line["usage"]["prompt_tokens"] > 0) == (line["answer"] == 0)
    assert len({line["request_id"] for line in lines}) == 3


def test_json_has_the_text_that_is_printed_without_it(chairlift: Run, target: str) -> None:
    plain = chairlift("generate", "one two", "--target", target, *GREEDY)
    run = chairlift("generate", "one two", "--target", target, *GREEDY, "--json")
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["text"] + "\n" == plain.stdout


def test_chat_makes_each_prompt_a_turn_of_the_user(chairlift: Run, target: str) -> None:
    as_chat = chairlift("generate", "go", "--chat", "--target", target, *GREEDY)
    as_text = chairlift("generate", "<user>go\n<assistant>", "--target", target, *GREEDY)
    assert as_chat.returncode == 0, as_chat
    assert as_chat.stdout == as_text.stdout


@pytest.mark.parametrize("command", [["generate"], ["chat"], ["top"], ["bench", "serve"]])
def test_help_of_every_client_names_the_token_and_tls(chairlift: Run, command: list[str]) -> None:
    run = chairlift(*command, "--help")
    for name in ("CHAIRLIFT_TOKEN", "--tls-ca", "--tls-cert", "--tls-key"):
        assert name in run.stdout


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_no_server_is_one_line(chairlift: Run, command: str, tmp_path: object) -> None:
    prompt = ("hello",) if command == "generate" else ()
    run = chairlift(command, *prompt, "--target", f"unix:{tmp_path}/none.sock")
    assert run.returncode == 1
    assert (
        run.stderr
        == f"error: no server at unix:{tmp_path}/none.sock: `chairlift serve` starts one\n"
    )


def test_an_answer_keeps_to_a_schema_an_expression_or_a_choice(
    chairlift: Run, target: str, tmp_path: Path
) -> None:
    def text(*options: str) -> str:
        run = chairlift("generate", "one", "--target", target, "--max-tokens", "60", *options)
        assert run.returncode == 0, run
        return run.stdout.strip()

    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}')
    grammar.write_text('start: "up" | "down"')
    assert all(isinstance(item, bool) for item in json.loads(text("--json-schema", str(schema))))
    assert re.fullmatch("[a-z]{3}", text("--regex", "[a-z]{3}"))
    assert text("--lark", str(grammar)) in ("up", "down")
    assert text("--choice", "yes", "--choice", "no") in ("yes", "no")


def test_a_constraint_that_is_wrong_is_one_line(
    chairlift: Run, target: str, tmp_path: Path
) -> None:
    run = chairlift("generate", "one", "--target", target, "--regex", "a(")
    assert run.returncode == 1
    assert "constraint.regex" in run.stderr
    run = chairlift("generate", "one", "--target", target, "--lark", str(tmp_path / "none"))
    assert run.returncode == 1
    assert "cannot read" in run.stderr
