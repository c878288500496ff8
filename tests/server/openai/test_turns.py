"""Work that grows with a body does not hold the event loop, and lists are bounded first."""

import asyncio
import gc
import threading

from chairlift.api.chats import MAX_CALLS, MAX_TOOLS
from chairlift.engine.prepare.sampling import MAX_LOGIT_BIASES
from chairlift.engine.prepare.text_queue import MAX_MESSAGES
from chairlift.server.protocols.openai import chat, messages
from chairlift.server.protocols.openai.completions import MAX_REPEATED_IDS
from chairlift.server.protocols.openai.input_items import MAX_ITEMS

from tests.server.connection import until
from tests.server.openai.conftest import HELLO

WORDS = [f"word {i} " * 4 for i in range(64)]


class Encodings:
    """The texts that the tokenizer of a server encodes, and on which thread."""

    def __init__(self, monkeypatch, engine):
        self.calls = []
        encode = engine.tokenizer.encode

        def noted(text, *arguments):
            self.calls.append((text, threading.current_thread()))
            return encode(text, *arguments)

        preparer = engine.preparer
        monkeypatch.setattr(preparer._sampling, "_encode", noted)
        monkeypatch.setattr(preparer._encoder, "encode", noted)

    def of(self, text):
        return [thread for found, thread in self.calls if found == text]


def engine_of(served):
    return served.server.server._context.gate.engine().engine


async def test_words_of_many_prompts_are_encoded_once_and_beside_the_event_loop(api, monkeypatch):
    async with api() as served:
        encodings = Encodings(monkeypatch, engine_of(served))
        body = {"prompt": ["a"] * 50, "bad_words": WORDS, "max_tokens": 1, "ignore_eos": True}
        assert (await served.post("/v1/completions", body)).status == 200
        for word in WORDS:
            (thread,) = encodings.of(word)
            assert thread is not threading.main_thread()


async def test_what_prompts_share_is_forgotten_with_them(api):
    async with api() as served:
        body = {"prompt": ["a", "b"], "bad_words": WORDS, "max_tokens": 1, "ignore_eos": True}
        body |= {"stop_regex": ["x+"], "allowed_token_ids": list(range(3, 300))}
        assert (await served.post("/v1/completions", body)).status == 200
        preparer = engine_of(served).preparer
        kept = (preparer._sampling._known_words, preparer._stopping._compiled)

        def is_forgotten():
            gc.collect()
            return not any(map(len, kept))

        await until(is_forgotten)


async def test_the_event_loop_turns_between_short_prompts(api, monkeypatch):
    async with api() as served:
        encodings = Encodings(monkeypatch, engine_of(served))
        most, turns = 0, 0

        async def turn():
            nonlocal most, turns
            while True:
                before = len(encodings.calls)
                await asyncio.sleep(0)
                most, turns = max(most, len(encodings.calls) - before), turns + 1

        ticking = asyncio.create_task(turn())
        body = {"prompt": ["a"] * 200, "max_tokens": 1, "ignore_eos": True}
        assert (await served.post("/v1/completions", body)).status == 200
        ticking.cancel()
        assert len(encodings.of("a")) == 200
        assert most == 1


async def test_long_lists_of_ids_are_checked_beside_the_event_loop():
    from chairlift.api.types import Request, Sampling, Stopping
    from chairlift.engine.prepare.text_queue import is_short

    many = list(range(20_000))
    assert is_short(Request("a"))
    assert not is_short(Request("a", sampling=Sampling(allowed_token_ids=many)))
    assert not is_short(Request("a", sampling=Sampling(banned_token_ids=many)))
    assert not is_short(Request("a", sampling=Sampling(bad_words=["a"])))
    assert not is_short(Request("a", stopping=Stopping(stop_token_ids=many)))


CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": ""}}
ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
TOOL = {"type": "function", "function": {"name": "f"}}
TEXT = {"type": "text", "text": ""}
USER = {"role": "user", "content": "a"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]}

LISTS = {
    "messages": ("chat/completions", {"messages": [USER] * (MAX_MESSAGES + 1)}),
    "messages[0].content": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [TEXT] * (MAX_MESSAGES + 1)}]},
    ),
    "messages[0].tool_calls": (
        "chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [CALL] * (MAX_CALLS + 1)}]},
    ),
    "tools": ("chat/completions", {"messages": HELLO, "tools": [TOOL] * (MAX_TOOLS + 1)}),
    "logit_bias": (
        "chat/completions",
        {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(MAX_LOGIT_BIASES + 1)}},
    ),
    "input": ("responses", {"input": [USER] * (MAX_ITEMS + 1)}),
    "input[0].content": (
        "responses",
        {"input": [{**THOUGHT, "content": THOUGHT["content"] * (MAX_MESSAGES + 1)}]},
    ),
    f"input[{MAX_CALLS}]": ("responses", {"input": [ITEM] * (MAX_CALLS + 1)}),
    "allowed_token_ids": (
        "completions",
        {"prompt": ["a"] * 1024, "allowed_token_ids": [5] * (MAX_REPEATED_IDS // 1024 + 1)},
    ),
}


async def test_a_long_body_is_converted_beside_the_event_loop(api, monkeypatch):
    threads = []
    convert = messages.chat_messages
    monkeypatch.setattr(
        chat,
        "chat_messages",
        lambda body: threads.append(threading.current_thread()) or convert(body),
    )
    async with api() as served:
        for num in (1, 4000):
            body = {"messages": [USER] * num, "unknown": 1}
            assert (await served.post("/v1/chat/completions", body)).error["param"] == "unknown"
    short, long = threads
    assert short is threading.main_thread()
    assert long is not threading.main_thread()


async def test_the_calls_of_all_turns_are_bounded_together(api):
    async with api() as served:
        turns = [{"role": "assistant", "tool_calls": [CALL] * MAX_CALLS}]
        for num, is_fine in (
            (MAX_MESSAGES // MAX_CALLS, True),
            (MAX_MESSAGES // MAX_CALLS + 1, False),
        ):
            body = {"messages": turns * num, "unknown": 1}
            error = (await served.post("/v1/chat/completions", body)).error
            assert error["param"] == ("unknown" if is_fine else "messages")


async def test_long_lists_are_refused_by_their_own_name(api):
    async with api() as served:
        for field, (path, body) in LISTS.items():
            response = await served.post(f"/v1/{path}", body)
            assert response.status == 400, field
            assert response.error["param"] == field
            assert "expected at most" in response.error["message"]
