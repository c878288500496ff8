"""`chairlift batch --target`: the same file by a server, with the answers of a model at hand."""

import asyncio
import contextlib
import json
import threading

import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import Reason, RequestError
from chairlift.cli.batch.lines import Source
from chairlift.client import connect
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.server.app.server import Server, ServerConfig

from tests.cli.batch_files import openai, prompts, read, write
from tests.engine import tiny_encoder

TURN = [{"role": "user", "content": "go up"}]
LINES = [
    *prompts(20),
    {"id": "chat", "messages": TURN, "temperature": 0, "max_tokens": 4},
    {"id": "two", "prompt": ["go", "up"], "n": 2, "seed": 5, "max_tokens": 3},
    {"id": "hot", "prompt": "x", "temperature": -1.0},
    {"id": "long", "prompt": "x " * 400},
    {"id": "cut", "prompt": "x " * 300, "truncate_prompt_tokens": 8, "max_tokens": 2, "seed": 2},
    {
        "id": "biased",
        "prompt": "x",
        "logit_bias": {"5": 3},
        "stop": ["s"],
        "max_tokens": 4,
        "seed": 1,
    },
    b"{torn",
    openai("other", "/v1/completions", model="other", prompt="x"),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoder.write(folder)
    return folder


def digest(path):
    with Source(path) as source:
        return source.scan().digest


@contextlib.contextmanager
def served(folder, tmp_path, **settings):
    """Serve a model on a thread of this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    config = ServerConfig(model=str(folder), listen=f"unix:{tmp_path}/s.sock")
    server = Server(engine_config(**settings), config)
    try:
        address = run(server.bind())
        run(server.serve(AsyncEngine.of(Engine(folder, **settings))))
        yield address
    finally:
        run(server.stop(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def same(chairlift, source, tmp_path, model, target):
    """Return the output of a job by a server, which is that of a model in this process."""
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert chairlift("batch", source, here, model).returncode == 0
    done = chairlift("batch", source, there, "--target", target)
    assert done.returncode == 0, done
    assert read(there) == read(here)
    return read(there)


def test_a_server_answers_a_file_as_the_model_does(chairlift, tiny_folder, tmp_path, target):
    source = write(tmp_path / "in.jsonl", LINES)
    found = same(chairlift, source, tmp_path, tiny_folder, target)
    errors = {line.get("custom_id", line["id"]): line for line in found if line.get("error")}
    assert set(errors) == {"hot", "long", None, "other"}
    assert errors["hot"]["error"]["message"].startswith("line 23: temperature: expected")


def test_a_value_of_another_type_is_an_error_line(chairlift, tmp_path, target):
    lines = [
        {"id": "a", "prompt": "x", "temperature": "hot"},
        {"id": "b", "prompt": "x", "logprobs": 1},
    ]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert chairlift("batch", source, output, "--target", target).returncode == 0
    codes = [(line["error"]["code"], line["error"]["message"][:20]) for line in read(output)]
    assert codes == [
        ("bad_parameter", "line 1: temperature:"),
        ("unsupported", "line 2: logprobs: no"),
    ]


def test_a_server_computes_vectors_of_a_file(chairlift, encoder, tmp_path):
    texts = tiny_encoder.texts(20)
    lines = [{"id": number, "input": text} for number, text in enumerate(texts)]
    lines += [{"id": "all", "input": texts, "dimensions": 8}, {"id": "bad", "input": "lift " * 200}]
    source = write(tmp_path / "in.jsonl", lines)
    with served(encoder, tmp_path) as address:
        found = same(chairlift, source, tmp_path, encoder, address)
        with connect(address) as client:
            one, two = client.embed([texts[0], texts[1]], dimensions=8)
            assert found[20]["embeddings"][:2] == [list(one.values), list(two.values)]
            with pytest.raises(RequestError, match="prompt_name"):
                client.embed(["x"], prompt_name="none")
            with pytest.raises(RequestError, match="inputs: expected a list"):
                client.embed("x")
    assert found[21]["error"]["code"] == "context_length_exceeded"


def test_a_full_queue_is_waited_for(chairlift, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("chairlift.cli.batch.remote._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(Reason.QUEUE_FULL, "retry_after_s", None)
    source = write(tmp_path / "in.jsonl", prompts(40))
    settings = {"max_num_seqs": 1, "max_queued_requests": 1}
    monkeypatch.setattr("chairlift.cli.batch.remote.MAX_ATTEMPTS", 1000)
    monkeypatch.setattr("chairlift.cli.batch.remote._MORE_LINES", 8)
    with served(tiny_folder, tmp_path, **settings) as address:
        same(chairlift, source, tmp_path, tiny_folder, address)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--target", "unix:/no/such.sock"), "no server at unix:/no/such.sock"),
        (("other", "--target", "{target}"), "not 'other'"),
    ],
)
def test_a_server_that_cannot_do_it_is_one_line(chairlift, tmp_path, target, options, words):
    source = write(tmp_path / "in.jsonl", prompts(3))
    options = [option.format(target=target) for option in options]
    done = chairlift("batch", source, tmp_path / "out.jsonl", *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out.jsonl.journal").exists()


def test_a_job_goes_on_with_the_same_model_alone(chairlift, tmp_path, tiny_folder, target):
    source, output = write(tmp_path / "in.jsonl", prompts(3)), tmp_path / "out.jsonl"
    header = {"format": 1, "input": digest(source), "model": "other"}
    (tmp_path / "out.jsonl.journal").write_text(json.dumps(header, sort_keys=True) + "\n")
    done = chairlift("batch", source, output, "--target", target)
    assert done.returncode == 1
    assert f"model was 'other' when it was begun, now it is '{tiny_folder.name}'" in done.stderr


def test_a_server_that_ends_leaves_a_job_that_goes_on(
    chairlift, tiny_folder, tmp_path, monkeypatch
):
    from chairlift.cli.batch.journal import Journal

    source, output = write(tmp_path / "in.jsonl", prompts(300)), tmp_path / "out.jsonl"
    stopped = threading.Event()
    append = Journal.append

    with contextlib.ExitStack() as stack:
        address = stack.enter_context(served(tiny_folder, tmp_path, max_num_seqs=2))

        def stop_once(self, *arguments, **options):
            append(self, *arguments, **options)
            if self.num_answered == 20 and not stopped.is_set():
                stopped.set()
                stack.close()

        monkeypatch.setattr(Journal, "append", stop_once)
        done = chairlift("batch", source, output, "--target", address)
    assert done.returncode == 1
    assert " of 300 lines are answered: the same command goes on" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with served(tiny_folder, tmp_path) as address:
        done = chairlift("batch", source, output, "--target", address)
    assert done.returncode == 0, done
    assert "by an earlier run" in done.stdout
    assert [line["id"] for line in read(output)] == [f"p{number}" for number in range(300)]
