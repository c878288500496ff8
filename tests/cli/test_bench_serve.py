"""`chairlift bench serve` on servers of the OpenAI API, and its report."""

import asyncio
import itertools
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from chairlift.api.errors import ConfigError
from chairlift.bench.report.page import MAX_BYTES
from chairlift.bench.workload import Item
from chairlift.cli.bench.http_stream import url_of
from chairlift.cli.bench.openai_load import send_openai_load

from tests.cli.conftest import Run, environment
from tests.cli.test_bench import SERVE_KEYS, results
from tests.cli.test_bench_report import HOSTILE, Parsed
from tests.forked import Python

LOAD = ("--requests", 5, "--max-tokens", 12)


@pytest.fixture(scope="module")
def url(tiny_folder: Path) -> Iterator[str]:
    """The OpenAI API of a server of the tiny model."""
    command = ["-m", "chairlift", "serve", str(tiny_folder)]
    command += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--max-num-seqs", "4"]
    with Python(*command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        yield next(line.split()[3] for line in lines if line.startswith("OpenAI API"))
        process.terminate()
        assert process.wait(30) == 0


@contextmanager
def stand_in(answer: Callable[[str, bytes], bytes | Iterable[bytes]]) -> Iterator[str]:
    """Answer each request, given its first line and its body, with a response or its pieces."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, connection.makefile("rb") as file:
                    first, length = file.readline().decode(), 0
                    while (line := file.readline().strip().lower()) != b"":
                        if line.startswith(b"content-length:"):
                            length = int(line.partition(b":")[2])
                    response = answer(first, file.read(length))
                    pieces = [response] if isinstance(response, bytes) else response
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    # A client that has seen enough closes the connection.
                    with suppress(ConnectionError):
                        for piece in pieces:
                            connection.sendall(piece)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def chunked(*pieces: str, status: str = "200 OK") -> bytes:
    """A response whose pieces are chunks; lines may span several."""
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    body = b"".join(b"%x\r\n%s\r\n" % (len(p.encode()), p.encode()) for p in pieces)
    return head + body + b"0\r\n\r\n"


DONE = "data: [DONE]\n\n"


def chunk(**fields: object) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def test_a_server_of_the_openai_api_is_measured(chairlift: Run, url: str) -> None:
    (row,) = results(chairlift("bench", "serve", "--url", url, "--json", *LOAD))
    assert list(row) == SERVE_KEYS
    assert (row["rate_per_s"], row["requests"], row["failed"]) == ("max", 5, 0)
    assert 5 <= row["output_tokens"] <= 5 * 12
    assert 0 < row["ttft_p50_s"] <= row["latency_p50_s"] <= row["seconds"]
    assert row["total_tokens_per_s"] > row["tokens_per_s"]


def test_rates_and_bounds_make_a_report(chairlift: Run, target: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = chairlift(
        *("bench", "serve", "--target", target, "--json", "--rates", "200,400", *LOAD),
        *("--slo", "latency_p99=60s", "--repeat", 2, "--report", path),
    )
    rows = results(run)
    assert [row["rate_per_s"] for row in rows] == [200, 400, 200, 400]
    assert all(row["good_requests"] == 5 for row in rows)
    parsed = Parsed(path.read_text())
    assert parsed.headings[0] == "Within the bounds, the server takes 400 requests/s or more."
    for title in ("The server", "Requests over time", "Goodput", "The knee", "Definitions"):
        assert title in parsed.headings
    assert "How it was measured" in parsed.headings
    assert len(path.read_bytes()) < MAX_BYTES


@pytest.mark.parametrize("is_http", [False, True])
def test_a_closed_loop_sends_a_request_when_another_has_ended(
    chairlift: Run, url: str, target: str, tmp_path: Path, is_http: bool
) -> None:
    path = tmp_path / "report.html"
    server = ("--url", url) if is_http else ("--target", target)
    run = chairlift(
        *("bench", "serve", *server, "--concurrency", 2, "--json", "--report", path, *LOAD)
    )
    assert results(run)[0]["requests"] == 5
    parsed = Parsed(path.read_text())
    assert parsed.headings[0].startswith("With requests 2 at a time, the server gave ")
    (data,) = (text for name, text in parsed.raw if name == "script" and '"runs"' in text)
    flow = json.loads(data)["runs"][0]["flow"]
    assert max(sent - ended for _, sent, _, ended in flow) <= 2
    assert flow[-1][1:] == [5, 5, 5]


def test_what_a_server_names_becomes_no_markup(chairlift: Run, tmp_path: Path) -> None:
    text = chunk(choices=[{"text": " a"}])
    asked = []

    def answer(first: str, body: bytes) -> bytes:
        if first.startswith("GET /v1/models "):
            return chunked(json.dumps({"data": [{"id": HOSTILE}]}))
        asked.append(json.loads(body))
        count = min(3, asked[-1]["max_tokens"])
        usage = chunk(choices=[], usage={"prompt_tokens": 7, "completion_tokens": count})
        return chunked(text[:9], text[9:] + text, usage, "data: [DONE]\n\n")

    path = tmp_path / "report.html"
    with stand_in(answer) as url:
        arguments = ("bench", "serve", "--url", url, "--json", "--report", path, *LOAD)
        (row,) = results(chairlift(*arguments))
    num_tokens = sum(min(3, body["max_tokens"]) for body in asked)
    assert (row["output_tokens"], row["failed"]) == (num_tokens, 0)
    assert num_tokens > 2 * 5
    assert {body["model"] for body in asked} == {HOSTILE}
    assert all(body["stream"] and body["ignore_eos"] for body in asked)
    assert {len(body["prompt"].split()) for body in asked} != {0}
    parsed = Parsed(path.read_text())
    assert (parsed.count("img"), parsed.count("script")) == (0, 2)
    assert "alert(1)" in path.read_text()
    assert parsed.headings[0].startswith("With requests all at once, the server gave ")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (chunked('{"error": "busy"}', status="503 Busy"), 'HTTP 503: {"error": "busy"}'),
        (chunked(chunk(error={"message": "lost"})), "'message': 'lost'"),
        (chunked("data: 7\n\n"), "expected a chunk of a completion"),
        (chunked(chunk(choices=[{}])), "expected a chunk of a completion"),
        (chunked("data: x")[:-7], "the response was cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "the size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", "at most 1048576"),
        (chunked("data: " + "[" * 100_000 + "\n\n"), "expected a chunk of a completion"),
        (chunked('data: {"usage": ' + "9" * 5000 + "}\n\n"), "expected a chunk of a completion"),
        (chunked(chunk(choices=[{"text": "a"}])), "the answer ended without [DONE]"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "the answer ended without [DONE]"),
        (chunked(DONE), "the answer has no text"),
        (
            chunked(chunk(usage={"completion_tokens": 9, "prompt_tokens": 1}), DONE),
            "the answer has no text",
        ),
        (chunked("\x1b[2J", status="500 Oh"), r"HTTP 500: \x1b[2J"),
        (b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n", "expected a response of HTTP/1.1"),
        (b"hello\r\n", "expected a response of HTTP/1.1"),
        (b"", "expected a response of HTTP/1.1"),
    ],
)
def test_a_server_that_fails_is_quoted(chairlift: Run, response: bytes, message: str) -> None:
    with stand_in(lambda _first, _body: response) as url:
        run = chairlift("bench", "serve", "--url", url, "--model", "m", *LOAD)
    assert run.returncode == 1
    assert "every request failed, the first with" in run.stderr
    assert message in " ".join(run.stderr.split())


@pytest.mark.parametrize("number", [-3, 1e308, float("inf"), 10**9, True, "7", None])
def test_a_number_of_tokens_that_cannot_be_true_does_not_count(
    chairlift: Run, number: object
) -> None:
    usage = chunk(usage={"completion_tokens": number, "prompt_tokens": number})
    response = chunked(chunk(choices=[{"text": "a"}]) * 3, usage, DONE)
    with stand_in(lambda _first, _body: response) as url:
        (row,) = results(chairlift("bench", "serve", "--url", url, "--model", "m", *LOAD, "--json"))
    assert (row["failed"], row["output_tokens"]) == (0, 5 * 3)


def test_lines_are_read_wherever_their_chunks_are_cut(chairlift: Run) -> None:
    text = chunk(choices=[{"text": "a"}]) * 3 + DONE
    with stand_in(lambda _first, _body: chunked(*text)) as url:
        (row,) = results(chairlift("bench", "serve", "--url", url, "--model", "m", *LOAD, "--json"))
    assert (row["failed"], row["output_tokens"]) == (0, 5 * 3)


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", "Connection: close"])
def test_a_response_that_comes_byte_by_byte_is_read_like_any_other(
    chairlift: Run, head: str
) -> None:
    text = chunk(choices=[{"text": "a"}]) * 3 + DONE
    plain = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{text}".encode()
    response = chunked(text) if "chunked" in head else plain
    with stand_in(lambda _first, _body: (bytes([byte]) for byte in response)) as url:
        (row,) = results(chairlift("bench", "serve", "--url", url, "--model", "m", *LOAD, "--json"))
    assert (row["failed"], row["output_tokens"]) == (0, 5 * 3)


def test_a_request_fails_at_its_bound_although_its_server_sends_on() -> None:
    text = chunk(choices=[{"text": "a"}]).encode()
    drip = itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(text))
    with stand_in(lambda _first, _body: drip) as url:
        load = asyncio.run(send_openai_load(url_of(url), "m", [Item([1], 4)], max_request_s=0.25))
    (request,) = load.requests
    assert request.failure == "the answer had no end after 0.25 s"


def test_a_host_that_is_no_name_is_an_error(chairlift: Run) -> None:
    run = chairlift("bench", "serve", "--url", f"http://{'a' * 70}.x/v1", *LOAD)
    assert run.returncode == 1
    assert run.stderr.startswith("error: no server at http://aaa")


def test_failures_beside_answers_are_counted_and_said(chairlift: Run, tmp_path: Path) -> None:
    left = [2]

    def answer(_first: str, _body: bytes) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            return chunked("no", status="429 Too Many Requests")
        return chunked(chunk(choices=[{"text": "a"}]), DONE)

    path = tmp_path / "report.html"
    with stand_in(answer) as url:
        arguments = ("bench", "serve", "--url", url, "--model", "m", "--report", path, "--json")
        (row,) = results(chairlift(*arguments, *LOAD))
    assert (row["requests"], row["failed"], row["output_tokens"]) == (5, 2, 3)
    assert "2 of 5 requests failed; the figures are of the others." in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "null", "--rates", "2"), "--rates: expected none with --engine null"),
        (("--engine", "null", "--url", "http://x"), "--url: expected none with --engine null"),
        (("--model", "m"), "--model: expected --url beside it"),
        (("--url", "http://x", "--streams", "2"), "--streams: expected none with --url"),
        (("--url", "ftp://x"), "--url: expected one such as http://127.0.0.1:8000/v1"),
        (("--rates", "0"), "--rates: expected rates such as 2,4,8,max"),
        (("--concurrency", "2", "--rates", "2"), "--concurrency: expected no --rates"),
        (("--report", "/nowhere/at/all.html"), "--report: cannot write"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    chairlift: Run, arguments: tuple[str, ...], message: str
) -> None:
    run = chairlift("bench", "serve", *arguments)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:8000", "http://", "http://a:b", "http://a b", "http://u:p@a", "http://a/?x"],
)
def test_a_url_is_checked(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^url: expected"):
        url_of(text)


def test_a_url_is_written_without_its_token() -> None:
    assert str(url_of("https://[::1]/v1/", "secret")) == "https://[::1]:443/v1"
