"""What a request counts while it waits to be prepared: the memory of all that it brings."""

import asyncio
import threading
from types import MappingProxyType

import pytest
from chairlift import _core
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Chat, ChatMessage, Request, Sampling, Tool, ToolCall
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.prepare import text_queue

NUM_PARTS = 2_000
NESTED = {"x": [[{"": 0}] for _ in range(NUM_PARTS)]}
"""Few names, and in memory twenty times as many bytes as its JSON text has."""
MOST = 2**20


def chat(**parts):
    return Chat([ChatMessage("user", "up")], **parts)


def called(arguments):
    turn = ChatMessage("assistant", "", tool_calls=[ToolCall("a", "look", arguments)])
    return Chat([ChatMessage("user", "up"), turn])


BRINGS = {
    "tools": Request(chat(tools=[Tool("look", parameters=NESTED)])),
    "tools of another type": Request(
        chat(tools=[Tool("look", parameters=MappingProxyType(NESTED))])
    ),
    "tools as OpenAI writes them": Request(
        chat(tools=[{"type": "function", "function": {"name": "look", "parameters": NESTED}}])
    ),
    "calls": Request(called(NESTED)),
    "template arguments": Request(chat(template_arguments={"x": "y" * 200_000})),
    "wide characters": Request([{"role": "user", "content": "\N{CHICKEN}" * 60_000}]),
}


@pytest.fixture
async def engine(make_engine):
    engine = AsyncEngine.of(make_engine())
    await engine.start()
    yield engine
    await engine.stop()


@pytest.mark.parametrize("request_", BRINGS.values(), ids=BRINGS)
async def test_the_memory_of_what_waits_is_bounded(engine, monkeypatch, request_):
    monkeypatch.setattr(text_queue, "MAX_TENANT_WAITING_BYTES", MOST)
    may_end = threading.Event()
    own = text_queue.caller("", "")
    busy = [
        asyncio.create_task(engine.texts.run(may_end.wait, tenant=own, size=0)) for _ in range(4)
    ]
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(engine.prepare(request_)) for _ in range(40)]
    for _ in range(4):
        await asyncio.sleep(0)
    refused = [task for task in tasks if task.done()]
    for task in refused:
        with pytest.raises(RequestError) as caught:
            task.result()
        assert caught.value.reason is Reason.QUOTA_EXCEEDED
    # Each takes 200,000 bytes or more.
    assert len(tasks) - len(refused) <= MOST // 200_000
    assert len(refused) < len(tasks)
    for task in tasks:
        task.cancel()
    may_end.set()
    await asyncio.gather(*busy, *tasks, return_exceptions=True)


def test_ids_count_as_numbers_do():
    many = range(60_000)
    assert text_queue.size_of(Request("up", sampling=Sampling(allowed_token_ids=many))) > 400_000
    assert text_queue.size_of(Request(many)) > 400_000


def test_a_tool_longer_than_any_text_may_be_is_refused(make_engine):
    engine = make_engine(max_text_bytes=4_096)
    with pytest.raises(RequestError) as caught:
        engine.add(Request(chat(tools=[Tool("look", parameters=NESTED)])))
    assert caught.value.reason is Reason.PROMPT_TOO_LONG
    with pytest.raises(RequestError) as caught:
        engine.add(Request(called(NESTED)))
    assert caught.value.reason is Reason.PROMPT_TOO_LONG


def test_a_value_that_holds_itself_is_longer_than_any_bound():
    endless = {}
    endless["x"] = [endless]
    num_characters, num_bytes = _core.value_size(endless, 10_000)
    assert 10_000 < num_characters < 20_000
    assert num_bytes > 10_000


def test_a_value_counts_with_all_that_it_holds():
    items = ["\N{CHICKEN}" * 1_000, 2**200, 1.5, None, True]
    value = {"items": items, "call": ToolCall("", "a", (1,))}
    num_characters, num_bytes = _core.value_size(value, 10_000)
    # Of 14 values and three names: `call`, `name`, and the fields of the call.
    assert 1_000 + 2 * 12 <= num_characters <= 1_000 + 2 * 20 + 20
    assert num_bytes > 4_000
