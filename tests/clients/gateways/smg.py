"""The smg gateway in front of two servers: OpenAI's API over HTTP, and prefixes kept together."""

import contextlib
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
from chairlift.client import connect

PACKAGE = "smg==1.13.0"
STORY = "Once upon a time there was a lift that carried people up a mountain. "
MODEL = "demo"


def free_port() -> int:
    """Return a port that is free now."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def check(
    command: Path, workers: Sequence[str], metrics: Sequence[int], kill: Callable[[], None]
) -> None:
    """Run the gateway, and talk to it.

    Args:
        command: The gateway's.
        workers: Addresses of two servers of the demo model.
        metrics: Ports of their metrics, in the same order.
        kill: Kills the first server.
    """
    with (
        gateway(command, workers) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        print("models:", [model.id for model in client.models.list()])
        check_answers(client)
        check_prefixes(client, metrics)
        check_events(client, workers, metrics)
        check_death(client, workers, kill)
    print("smg: passed")


@contextlib.contextmanager
def gateway(command: Path, workers: Sequence[str]) -> Iterator[str]:
    """Start the gateway; yield its URL once it is ready."""
    port, metrics = free_port(), free_port()
    urls = [f"grpc://{worker}" for worker in workers]
    arguments = ["launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls]
    arguments += ["--policy", "cache_aware", "--prometheus-port", str(metrics)]
    arguments += ["--prometheus-host", "127.0.0.1"]
    arguments += ["--log-level", "warn"]
    with subprocess.Popen([command, *arguments]) as process:
        try:
            until_answered(f"http://127.0.0.1:{port}/readiness", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def until_answered(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a URL is answered with 200."""
    for _ in range(600):
        assert process.poll() is None, "the gateway ended"
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)


def check_answers(client: openai.OpenAI) -> None:
    """Compare answers whole and in parts, with their usage."""
    given = {"model": MODEL, "max_tokens": 16, "temperature": 0}
    messages = [{"role": "user", "content": "Tell me a story."}]
    whole = client.chat.completions.create(messages=messages, **given)
    text = whole.choices[0].message.content
    assert text, whole
    usage = whole.usage
    assert usage is not None
    assert usage.completion_tokens <= 16
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **given
    )
    chunks = list(stream)
    parts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(parts) == text, (parts, text)
    last = next(chunk.usage for chunk in reversed(chunks) if chunk.usage)
    assert last.completion_tokens == usage.completion_tokens, (last, usage)
    assert last.prompt_tokens == usage.prompt_tokens
    completion = client.completions.create(prompt=STORY, seed=7, **given)
    assert completion.choices[0].text
    for wrong in ({"temperature": -1}, {"max_tokens": 10**9}):
        status = status_of(client, messages, given | wrong)
        assert status is None or status < 500, wrong
    print("smg: answers agree, whole and streamed")


def status_of(client: openai.OpenAI, messages: Any, given: Any) -> int | None:
    """Return the status of an error, or None without one."""
    try:
        client.chat.completions.create(messages=messages, **given)
    except openai.APIStatusError as error:
        return error.status_code
    return None


def check_prefixes(client: openai.OpenAI, metrics: Sequence[int]) -> None:
    """Send texts with seven long beginnings, four times: one server should compute each of them.

    By turns, both servers would compute every beginning, since their number is odd: then no more
    than half of the blocks would come from a cache.
    """
    before = [cached(port) for port in metrics]
    for number in range(4):
        for part in range(7):
            prompt = f"Part {part}. {STORY * 12}Chapter {number}."
            client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    after = [cached(port) for port in metrics]
    hits, queries = (
        [now[k] - then[k] for then, now in zip(before, after, strict=True)] for k in (0, 1)
    )
    print(f"smg: from prefix caches came {hits} of {queries} blocks")
    assert sum(hits) > 0.65 * sum(queries)


def check_events(client: openai.OpenAI, workers: Sequence[str], metrics: Sequence[int]) -> None:
    """Send first turns past the gateway: by events alone it knows where to send the second."""
    for number in range(8):
        place, turn = number % 2, f"Turn {number}. {STORY * 12}"
        with connect(workers[place]) as direct:
            direct.generate(turn, max_tokens=4).text()
        # Until the gateway has taken the events.
        time.sleep(1)
        before = [cached(port) for port in metrics]
        client.completions.create(model=MODEL, prompt=turn + "And then", max_tokens=4)
        after = [cached(port) for port in metrics]
        hits = [now[0] - then[0] for then, now in zip(before, after, strict=True)]
        assert hits[place] > 10, (number, hits)
        assert hits[1 - place] == 0, (number, hits)
    print("smg: each second turn went to the server that events name")


def check_death(client: openai.OpenAI, workers: Sequence[str], kill: Callable[[], None]) -> None:
    """Kill the server that has a prefix amid its answer: the answer ends, the other one goes on."""
    turn = f"The last turn. {STORY * 12}"
    with connect(workers[0]) as direct:
        direct.generate(turn, max_tokens=4).text()
    time.sleep(1)
    given = {"model": MODEL, "prompt": turn, "temperature": 0}
    stream = client.completions.create(
        **given, max_tokens=256, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    kill()
    num_chunks, ending = 0, "an end"
    try:
        for _ in stream:
            num_chunks += 1
    except (openai.APIError, ConnectionError) as error:
        ending = type(error).__name__
    print(f"smg: {num_chunks} chunks after the kill, then {ending}")
    failed = 0
    for number in range(20):
        try:
            client.completions.create(**given | {"prompt": f"{turn}{number}"}, max_tokens=4)
        except openai.APIError:
            failed += 1
    print(f"smg: of 20 requests with the prefix of a killed server {20 - failed} were answered")
    assert failed == 0


def cached(port: int) -> tuple[float, float]:
    """Return blocks found in the prefix cache, and looked up."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    hits, queries = (
        float(re.search(rf"^chairlift_prefix_cache_{name}_total(?:{{.*}})? (\S+)", text, re.M)[1])
        for name in ("hits", "queries")
    )
    return hits, queries
