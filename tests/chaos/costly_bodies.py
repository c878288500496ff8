"""Bodies over HTTP that are small for the work, the time or the memory that they ask for."""

import asyncio
import json
from itertools import count

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside, in_words
from tests.server.openai.raw_http import Raw

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 5, Scale.LONG: 50}
WITHIN_S = 120.0
MOST_GAP_S = 0.25
"""Between two messages of tokens of another client."""
MOST_BYTES = 2**20
WINDOW = {"x_chairlift_resume_window": "60"}
NUM_STREAMS = {Scale.QUICK: 8, Scale.MEDIUM: 40, Scale.LONG: 80}
"""That could be continued, each of a body of 1 MiB."""
SETUP = {**PACED, "server": {"http_listen": "127.0.0.1:0", "max_receive_bytes": MOST_BYTES}}

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"role": "user", "content": ""}
CALL = {"type": "function_call", "name": "a"}
CALLS = [{"function": {"name": "a", "arguments": ""}}] * 8


def nesting():
    """Bodies whose levels cost more to count than to read."""
    yield CHAT, b"[" * 65 + b'"' + b'\\"' * 25_000
    for part in (b'\\"', b'"a', b'"', b'"[",', b"[],", b"{},", b"\\"):
        yield CHAT, (b"[" * 65 + b'"' + part * (MOST_BYTES // len(part)))[:MOST_BYTES]
    yield CHAT, b"[" + (b"[" * 62 + b"]" * 62 + b",") * (MOST_BYTES // 126) + b"1]"
    yield CHAT, b'{"messages":[' + b"9" * 4300 + (b"," + b"9" * 4300) * 240 + b"]}"


def prepared():
    """Bodies whose fields cost much for each prompt, message or item."""
    shared = {"max_tokens": 1, "ignore_eos": True, "temperature": 1.0}
    words = [f"{i:03} and other words" for i in range(64)]
    prompts = ["one"] * 700
    yield COMPLETIONS, {**shared, "prompt": prompts, "bad_words": words}
    yield COMPLETIONS, {**shared, "prompt": prompts, "stop_regex": [f"({w})+x" for w in words[:4]]}
    biases = {str(i): 1 for i in range(300)}
    yield COMPLETIONS, {**shared, "prompt": prompts, "logit_bias": biases}
    yield COMPLETIONS, {**shared, "prompt": prompts, "allowed_token_ids": [5, 6, 7] * 400}
    yield COMPLETIONS, {**shared, "prompt": ["one"], "allowed_token_ids": [5] * 300_000}
    yield COMPLETIONS, {**shared, "prompt": ["one two " * 20] * 1000}
    yield RESPONSES, {"input": [CALL] * 29_000}
    yield RESPONSES, {"input": [USER, *[CALL] * 120] * 60}
    yield RESPONSES, {"input": [{"role": "assistant", "content": "a"}, CALL] * 4000}
    yield CHAT, {"messages": [USER] * 30_000}
    yield CHAT, {"messages": [{"role": "assistant", "tool_calls": CALLS}] * 1500}
    yield CHAT, {"messages": [{**USER, "content": [{"type": "text", "text": ""}] * 30_000}]}
    tool = {"name": "a", "parameters": {"enum": [1] * 400_000}}
    yield CHAT, {"messages": [USER], "tools": [{"type": "function", "function": tool}]}
    yield CHAT, {"messages": [USER], "chat_template_kwargs": {"a": [1] * 400_000}}
    schema = {"name": "a", "schema": {"enum": [1] * 400_000}}
    form = {"type": "json_schema", "json_schema": schema}
    yield CHAT, {"messages": [USER], "response_format": form}
    yield CHAT, {"messages": [USER], "logit_bias": {str(i): 1 for i in range(80_000)}}


def repeating(num):
    """A body of 1 MiB whose response repeats a deep tool."""
    tool = {"type": "web_search", "a": [{"b": [i]} for i in range(32_000)], "c": "x" * 500_000}
    return {"input": f"one {num}", "max_output_tokens": 2, "stream": True, "tools": [tool]}


async def run(scale, lab):
    server = await lab.server(**SETUP)
    port = int((await server.inside("http_url")).rpartition(":")[2])
    bodies = [(path, encoded(value)) for path, value in (*nesting(), *prepared())]
    statuses, numbers = {}, count()

    async def send(path, data, **headers):
        async with asyncio.timeout(WITHIN_S), Raw(port) as raw:
            await raw.post(path, data, **headers)
            response = await raw.response()
        assert response.status < 500 or response.status == 503, (path, data[:100], response)
        statuses[response.status] = statuses.get(response.status, 0) + 1

    async def attack():
        for i in range(ROUNDS[scale]):
            await asyncio.gather(*(send(path, data) for path, data in bodies))
            lab.progress(f"costly bodies: {i} rounds")

    async def keep():
        for _ in range(NUM_STREAMS[scale]):
            await send(RESPONSES, encoded(repeating(next(numbers))), **WINDOW)

    (alone,), (during,) = await beside(lab, server, attack())
    await server.until_idle()
    before = await server.inside("figures")
    _, (kept,) = await beside(lab, server, keep())
    after = await server.inside("figures")
    grown = after["memory"] - before["memory"]
    assert max(during.worst_gap_s, kept.worst_gap_s) < MOST_GAP_S, (during, kept)
    # What is counted for them is their JSON: before, each kept 23 MB.
    assert grown < (10 + 2 * NUM_STREAMS[scale]) * MOST_BYTES, grown
    counted = ", ".join(f"{statuses[status]:,} of {status}" for status in sorted(statuses))
    return Figures(
        "costly bodies over HTTP",
        f"{ROUNDS[scale]} x {len(bodies)} bodies, {NUM_STREAMS[scale]} streams with a window",
        [
            counted,
            in_words(alone, during, "alone"),
            f"with streams that are kept: worst gap {kept.worst_gap_s * 1e3:.0f} ms,"
            f" memory {grown / 2**20:+.1f} MiB",
        ],
    )


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return data[:MOST_BYTES]
