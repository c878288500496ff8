"""`chairlift batch`: formats, orders, wrong lines, refusals, and what is held in memory."""

import json
import os
import re
from pathlib import Path

import pytest
from chairlift.api.errors import ChairliftError
from chairlift.api.types import (
    Answer,
    Chat,
    ChatMessage,
    Finished,
    FinishReason,
    Sampling,
    Stopping,
    ToolCall,
    Usage,
)
from chairlift.cli.batch.entries import answer_line, body_of, task_of
from chairlift.cli.batch.lines import Source
from chairlift.cli.batch.local import LocalRunner, as_tokens
from chairlift.engine.engine import Engine
from chairlift.server.convert.messages import from_finished

from tests.cli.batch_files import openai, prompts, read, write
from tests.engine import tiny_encoder

SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64")


@pytest.fixture
def run(chairlift, tiny_folder, tmp_path):
    """Run a job over lines; return the result of the command and the lines of the output."""

    def batch(lines, *options, model=tiny_folder, name="out.jsonl"):
        source = write(tmp_path / "in.jsonl", lines)
        output = tmp_path / name
        done = chairlift("batch", source, output, model, *SMALL, *options)
        assert done.returncode == 0, done
        assert not list(tmp_path.glob("*.journal")) + list(tmp_path.glob("*.part"))
        return done, read(output)

    return batch


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoder.write(folder)
    return folder


def test_every_form_of_a_line_is_answered_as_the_engine_answers(run, tiny_folder):
    turn = [{"role": "user", "content": "go up"}]
    model, greedy = tiny_folder.name, {"temperature": 0, "max_tokens": 8}
    lines = [
        openai("a", "/v1/chat/completions", model=model, messages=turn, **greedy),
        openai("b", "/v1/completions", model=model, prompt=["go up", "snow"], **greedy),
        openai("c", "/v1/responses", input="go up", temperature=0, max_output_tokens=8),
        b"",
        {"id": "d", "prompt": "go up", **greedy},
        {"id": 5, "messages": turn, **greedy},
        {"id": "f", "prompt": "go up", "n": 2, "seed": 1, "max_tokens": 8},
    ]
    _, found = run(lines)
    with Engine(tiny_folder) as engine:
        stopping = Stopping(max_tokens=8)
        chat, text, snow = (
            answer.text
            for answer in engine.generate(
                [Chat([ChatMessage("user", "go up")]), "go up", "snow"],
                Sampling(temperature=0),
                stopping,
            )
        )
        two = [a.text for a in engine.generate("go up", Sampling(seed=1, n=2), stopping)]
    assert [line.get("custom_id", line["id"]) for line in found] == ["a", "b", "c", "d", 5, "f"]
    body = found[0]["response"]["body"]
    assert found[0]["error"] is None
    assert found[0]["response"]["status_code"] == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == chat
    texts = [choice["text"] for choice in found[1]["response"]["body"]["choices"]]
    assert texts == [text, snow]
    assert found[2]["response"]["body"]["output"][0]["content"][0]["text"] == chat
    assert found[3]["text"] == text
    assert found[3]["finish_reason"] in ("stop", "length")
    assert found[3]["usage"]["completion_tokens"] <= 8
    assert found[4]["text"] == chat
    assert [answer["text"] for answer in found[5]["answers"]] == two


@pytest.mark.parametrize(
    ("batching", "order"),
    [
        ("static", "input"),
        ("continuous", "input"),
        ("dynamic", "completion"),
        ("static", "completion"),
    ],
)
def test_policies_and_orders_change_no_answer(run, tiny_folder, batching, order):
    lines = prompts(30)
    _, found = run(lines, "--batching", batching, "--order", order)
    with Engine(tiny_folder) as engine:
        expected = {
            line["id"]: engine.generate(
                line["prompt"], Sampling(temperature=0), Stopping(max_tokens=line["max_tokens"])
            )[0].text
            for line in lines
        }
    assert {line["id"]: line["text"] for line in found} == expected
    assert len(found) == 30
    if order == "input":
        assert [line["id"] for line in found] == list(expected)


@pytest.mark.parametrize("batching", ["static", "continuous", "dynamic"])
def test_vectors_are_those_of_chairlift_embed(run, chairlift, encoder, batching):
    texts = tiny_encoder.texts(12)
    lines = [{"id": number, "input": text} for number, text in enumerate(texts)]
    lines.append(openai("all", "/v1/embeddings", input=texts, encoding_format="float"))
    _, found = run(lines, "--batching", batching, model=encoder)
    done = chairlift("embed", "--model", encoder, "--json", *texts)
    by_place = {e["index"]: e["vector"] for e in map(json.loads, done.stdout.splitlines())}
    for number in range(len(texts)):
        assert found[number]["embedding"] == by_place[number]
        assert found[-1]["response"]["body"]["data"][number]["embedding"] == by_place[number]


WRONG = [
    (b"{not json", "invalid_json"),
    (b"\xff", "invalid_json"),
    (b"[" * 100 + b"]" * 100, "invalid_json"),
    ([1], "invalid_line"),
    ({"prompt": "x"}, "missing_id"),
    ({"id": "w", "prompt": "x", "messages": []}, "invalid_line"),
    ({"id": "w"}, "invalid_line"),
    ({"id": "w", "prompt": "x", "tempersture": 1}, "bad_parameter"),
    ({"id": "w", "prompt": "x", "temperature": -1}, "bad_parameter"),
    ({"id": "w", "prompt": "x " * 400}, "context_length_exceeded"),
    ({"id": "w", "prompt": "x", "stream": True}, "unsupported"),
    ({"id": "w", "input": "x", "dimensions": 9999}, "bad_parameter"),
    ({"id": "w", "prompt": "x", "model": "other"}, "model_not_found"),
    (openai("w", "/v1/moderations", input="x"), "invalid_url"),
    ({**openai("w", "/v1/completions", prompt="x"), "method": "GET"}, "invalid_method"),
    ({**openai("w", "/v1/completions", prompt="x"), "more": 1}, "invalid_line"),
    (openai("w", "/v1/completions", prompt="x", n=5000), "bad_parameter"),
    (openai("w", "/v1/completions", prompt=["x", [999_999]]), "bad_parameter"),
]


def test_a_wrong_line_is_reported_with_its_number_and_stops_nothing(run):
    good = prompts(2)
    renamed = [
        {**line, name: f"w{number}"} if isinstance(line, dict) and (name := _name(line)) else line
        for number, (line, _) in enumerate(WRONG)
    ]
    done, found = run([good[0], *renamed, good[1]])
    assert [line for line in found[1:-1] if not line.get("error")] == []
    assert f"{len(WRONG)} of them errors" in done.stdout
    assert found[0]["id"] == "p0"
    assert found[-1]["id"] == "p1"
    for number, (line, (_, code)) in enumerate(zip(found[1:-1], WRONG, strict=True), start=2):
        assert line["error"]["code"] == code, line
        assert line["error"]["line"] == number
        assert line["error"]["message"].startswith(f"line {number}: ")
    status = found[-2]["response"]
    assert status["status_code"] == 400
    assert status["body"]["error"]["param"] == "prompt[1]" or "prompt" in str(status)


def _name(line):
    return next((name for name in ("id", "custom_id") if name in line), None)


def test_a_line_that_is_too_long_is_an_error_of_its_own(run, monkeypatch):
    monkeypatch.setattr("chairlift.cli.batch.lines.MAX_LINE_BYTES", 300)
    first, last = prompts(2, max_tokens=2)
    _, found = run([first, {"id": "long", "prompt": "x" * 70_000}, last])
    assert found[1]["error"]["code"] == "line_too_long"
    assert [found[0]["id"], found[2]["id"]] == ["p0", "p1"]


def test_log_probabilities_come_with_the_texts_of_their_tokens(run):
    _, found = run([{"id": "a", "prompt": "go", "max_tokens": 3, "temperature": 0, "logprobs": 2}])
    # A part of a character has a name of its own, where the text has U+FFFD.
    first = next(token for token in found[0]["logprobs"]["tokens"] if token)
    assert first.startswith(("bytes:", found[0]["text"][:1]))
    assert all(len(top) <= 3 for top in found[0]["logprobs"]["top_logprobs"])


def test_function_calls_and_reasoning_are_in_both_formats():
    calls = [ToolCall("c1", "ride", '{"up": true}')]
    usage = Usage(3, 0, 5)
    answer = Answer("", [1, 2], FinishReason.STOP, usage, None, reasoning="so", tool_calls=calls)
    turn = {"messages": [{"role": "user", "content": "go"}]}
    for line in ({"id": "a", **turn}, openai("a", "/v1/chat/completions", **turn)):
        task = task_of(1, json.dumps(line).encode(), ("m",), None)
        whole = task.job.answer(task.origin)
        whole.tokens(0, as_tokens(answer))
        finished = Finished(1, 0, FinishReason.STOP, None, None, usage, None)
        whole.finished(0, from_finished(finished, task.job.output))
        found = json.loads(answer_line(task.head, body_of(whole)))
        said = found if "text" in found else found["response"]["body"]["choices"][0]["message"]
        assert said["reasoning_content"] == "so"
        assert said["tool_calls"][0]["function"] == {"name": "ride", "arguments": '{"up": true}'}


def test_an_empty_file_has_an_empty_answer(run):
    done, found = run([])
    assert found == []
    assert "0 answers" in done.stdout


def test_the_outcome_is_one_object_with_json(run):
    done, _ = run([*prompts(3), b"{"], "--json")
    outcome = json.loads(done.stdout)
    assert (outcome["lines"], outcome["errors"], outcome["earlier"]) == (4, 1, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lines": [{"id": "a", "prompt": "x"}] * 2}, "line 2 has the id of line 1"),
        ({"output": "x"}, "out.jsonl: it exists; remove it or choose another name"),
        ({"folder": "no/such"}, "no such folder"),
        ({"source": "nothing.jsonl"}, "nothing.jsonl: no such file"),
        ({"source": "."}, "not a regular file"),
        ({"source": "/dev/zero"}, "/dev/zero: not a regular file"),
    ],
)
def test_what_cannot_begin_is_one_line(chairlift, tiny_folder, tmp_path, change, words):
    source = write(tmp_path / "in.jsonl", change.get("lines", prompts(2)))
    source = tmp_path / change["source"] if "source" in change else source
    output = tmp_path / change.get("folder", "") / "out.jsonl"
    if "output" in change:
        output.write_text(change["output"])
    done = chairlift("batch", source, output, tiny_folder)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.journal"))


def test_an_id_as_text_is_not_the_same_number(run):
    lines = [{**line, "id": name} for line, name in zip(prompts(2), ("1", 1), strict=True)]
    _, found = run(lines)
    assert [line["id"] for line in found] == ["1", 1]


def test_options_of_the_engine_are_refused_with_a_target(chairlift, tmp_path):
    source = write(tmp_path / "in.jsonl", prompts(1))
    options = ("--target", "127.0.0.1:1", "--quantize", "int8")
    done = chairlift("batch", source, tmp_path / "out.jsonl", *options)
    assert done.returncode == 2
    assert done.stderr == "error: --quantize: with --target it is a setting of the server\n"


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_lines_are_read_as_they_are_needed(tiny_folder, batching):
    num_read = 0

    def tasks():
        nonlocal num_read
        for number in range(1, 601):
            num_read += 1
            line = {"id": number, "prompt": "go", "max_tokens": 1 + number % 3}
            yield task_of(number, json.dumps(line).encode(), ("m",), None)

    ahead, done = 0, 0
    with Engine(tiny_folder, max_num_seqs=4, batching=batching) as engine:
        for _ in LocalRunner(engine).run(tasks()):
            done += 1
            ahead = max(ahead, num_read - done)
        engine.check_invariants()
        assert not engine.has_work
    assert (done, num_read) == (600, 600)
    assert ahead <= (40 if batching == "static" else 16)


def test_a_file_that_changes_while_it_is_read_gives_no_output(
    chairlift, tiny_folder, tmp_path, monkeypatch
):
    source = write(tmp_path / "in.jsonl", prompts(4))
    generate = LocalRunner.run

    def run(self, tasks):
        yield from generate(self, tasks)
        os.utime(source, ns=(1, 1))

    monkeypatch.setattr(LocalRunner, "run", run)
    done = chairlift("batch", source, tmp_path / "out.jsonl", tiny_folder)
    assert done.returncode == 1
    assert "the file has changed while it was read" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_the_example_of_the_page_has_the_answers_that_it_shows(chairlift, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")

    def block(name):
        return page.partition(f"<!-- {name} -->\n```json\n")[2].partition("```")[0]

    (tmp_path / "in.jsonl").write_text(block("requests.jsonl"))
    done = chairlift("batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert "5 answers, 1 of them errors" in done.stdout
    created = re.compile(r'"created":\d+')
    found = (tmp_path / "out.jsonl").read_text()
    assert created.sub("", found) == created.sub("", block("answers.jsonl"))


def test_a_byte_order_mark_and_windows_ends_of_lines_are_no_part_of_a_line(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"id": "a", "prompt": "one"}\r\n\r\n{"id": "b"}')
    with Source(path) as source:
        assert [(line.number, line.data) for line in source.lines()] == [
            (1, b'{"id": "a", "prompt": "one"}\r\n'),
            (3, b'{"id": "b"}'),
        ]
        assert source.scan().num_requests == 2
    path.write_bytes(b"\xef\xbb\xbf")
    with Source(path) as source:
        assert list(source.lines()) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_by_name(tmp_path, encoding):
    path = tmp_path / "in.jsonl"
    path.write_bytes(("\ufeff" + '{"id": "a"}\n').encode(encoding))
    with Source(path) as source, pytest.raises(ChairliftError, match="expected UTF-8, got UTF-16"):
        source.scan()
