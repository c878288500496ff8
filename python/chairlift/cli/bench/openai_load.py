"""Load on any server of the OpenAI API: streamed completions over HTTP, open loop.

The definitions are those of `load`. An event with tokens is a chunk with text; how many tokens an
answer has is what the server says in `usage`, else the number of those chunks.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from chairlift.api.errors import ChairliftError
from chairlift.bench.workload import Item
from chairlift.cli.bench.http_stream import HttpError, Url, request
from chairlift.cli.bench.load import LoadResult, SentRequest

_TEXT: Final = (
    "the of and to in is that it for was on are as with be at by this have from or one had not but "
    "what all were when we there can an your which their said if do will each about how up out "
    "them then she many some so these would other into has more her two like him see time could no "
    "make than first been its who now people my made over did down only way find use may water long"
)
# Most tokenizers have each of them, with the space before it, as one token.
WORDS: Final = tuple(_TEXT.split())
_MAX_REQUEST_S: Final = 3600.0
"""Longest time of a request, also of one whose server sends without an end."""
_MAX_ERROR: Final = 200
_MAX_BODY: Final = 1 << 20
_MAX_PROMPT: Final = 1 << 24


async def first_model(url: Url) -> str:
    """Return the name of the first model that the server lists.

    Raises:
        ChairliftError: It lists none.
    """
    async with request(url, "/models") as response:
        body = await _text(response.lines)
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        message = f"expected a list of models at {url}/models, got HTTP {response.status}"
        raise ChairliftError(message) from None


async def send_openai_load(
    url: Url,
    model: str,
    work: Sequence[Item],
    on_end: Callable[[], None] = lambda: None,
    concurrency: int | None = None,
    max_request_s: float = _MAX_REQUEST_S,
) -> LoadResult:
    """Send all of the work, each request over a connection of its own, and wait for every end.

    Args:
        url: Base of the API.
        model: Its name there.
        work: Requests in the order of arrival; ids of prompts are places in `WORDS`.
        on_end: Called when a request has ended.
        concurrency: Requests at a time: one is sent when it is due and so many others have ended.
        max_request_s: Seconds after which a request has failed, although its server sends.
    """
    places = asyncio.Semaphore(concurrency or len(work))
    load = LoadResult([SentRequest(0.0, len(item.prompt_token_ids)) for item in work])
    start = time.monotonic()

    async def one(item: Item, sent: SentRequest) -> None:
        wait_s = start + item.arrival_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        async with places:
            sent.arrival_s = time.monotonic()
            try:
                async with asyncio.timeout(max_request_s):
                    await _stream(url, _body(model, item), sent, item.max_tokens)
            except TimeoutError:
                sent.failure = f"the answer had no end after {max_request_s:g} s"
            except HttpError as error:
                sent.failure = str(error)
            on_end()

    await asyncio.gather(*map(one, work, load.requests))
    return load


def _body(model: str, item: Item) -> bytes:
    prompt = " ".join(WORDS[number % len(WORDS)] for number in item.prompt_token_ids)
    fields = {
        "model": model,
        "prompt": prompt,
        "max_tokens": item.max_tokens,
        "temperature": 0,
        # No field of OpenAI's, but of the servers that are measured: answers have equal lengths.
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


async def _stream(url: Url, body: bytes, sent: SentRequest, max_tokens: int) -> None:
    is_complete = False
    async with request(url, "/completions", body) as response:
        if response.status != 200:
            sent.failure = f"HTTP {response.status}: {await _text(response.lines, _MAX_ERROR)}"
            return
        async for line in response.lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                is_complete = True
                break
            if not line.startswith(b"data:"):
                continue
            try:
                _note(json.loads(data), sent, max_tokens)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                message = "expected a chunk of a completion"
                raise HttpError(message) from None
    # A server that dies amid an answer ends the body, too.
    if not is_complete or not sent.event_times_s:
        message = "the answer has no text" if is_complete else "the answer ended without [DONE]"
        raise HttpError(message)
    sent.finished_s = sent.event_times_s[-1]


def _note(chunk: dict[str, Any], sent: SentRequest, max_tokens: int) -> None:
    """Note a chunk: its time if it has text, the number of tokens if that can be true."""
    if "error" in chunk:
        message = str(chunk["error"])[:_MAX_ERROR]
        raise HttpError(message)
    if chunk.get("choices") and chunk["choices"][0]["text"]:
        sent.event_times_s.append(time.monotonic())
        sent.num_output = max(sent.num_output, len(sent.event_times_s))
    if usage := chunk.get("usage"):
        sent.num_output = _count(usage["completion_tokens"], max_tokens) or sent.num_output
        sent.num_prompt = _count(usage["prompt_tokens"], _MAX_PROMPT) or sent.num_prompt


def _count(value: object, highest: int) -> int | None:
    """Return a number of tokens, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= highest else None


async def _text(lines: Any, max_chars: int = _MAX_BODY) -> str:  # noqa: ANN401, an iterator of bytes
    found = ""
    async for line in lines:
        found += line.decode("utf-8", "replace")
        if len(found) > max_chars:
            break
    return found[:max_chars]
