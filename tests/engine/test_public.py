"""What a program that imports chairlift uses: a context manager, sizes as text, chats as dicts."""

import gc
import weakref
from enum import StrEnum
from typing import get_args, get_type_hints

import chairlift
import pytest
from chairlift.api.config import EngineConfig, EngineSettings, engine_config
from chairlift.api.errors import ConfigError, EngineDownError, Reason, RequestError
from chairlift.api.types import Chat, ChatMessage, FinishReason, Output, Request, Sampling, Stopping
from chairlift.engine.async_engine import AsyncEngine

from tests.engine.drive import greedy

GREEDY = Sampling(temperature=0)
SHORT = Stopping(max_tokens=4, ignore_eos=True)
MESSAGES = [
    {"role": "system", "content": "one"},
    {"role": "user", "content": [{"type": "text", "text": "two "}, {"type": "text", "text": "go"}]},
]
CHAT = Chat([ChatMessage("system", "one"), ChatMessage("user", "two go")])


def test_an_engine_closes_at_the_end_of_its_block(make_engine):
    with make_engine() as engine:
        (answer,) = engine.generate("one two", GREEDY, SHORT)
        assert answer.reason is FinishReason.LENGTH
        engine.add(greedy([1, 2, 3], 200, ignore_eos=True))
        engine.step()
        weights = weakref.ref(engine.runner.model)
    gc.collect()
    assert weights() is None, "the weights are released"
    for use in (
        engine.step,
        engine.restart,
        lambda: engine.generate("one"),
        lambda: engine.add(greedy([1])),
    ):
        with pytest.raises(EngineDownError, match=r"^the engine is closed$"):
            use()
    engine.close()


def test_an_engine_that_is_down_closes_too(make_engine):
    engine = make_engine()
    engine.take_down(MemoryError())
    engine.close()
    with pytest.raises(EngineDownError, match="closed"):
        engine.step()


def test_an_error_in_the_block_closes_the_engine_and_is_raised(make_engine):
    with pytest.raises(KeyError), make_engine() as engine:
        raise KeyError
    with pytest.raises(EngineDownError, match="closed"):
        engine.step()


@pytest.mark.parametrize("name", ["kv_cache_memory", "swap_memory", "max_text_bytes"])
@pytest.mark.parametrize(
    ("text", "num_bytes"), [("64MiB", 64 << 20), ("1.5 kib", 1536), ("2000000", 2_000_000)]
)
def test_a_size_may_be_a_text(name, text, num_bytes):
    assert getattr(engine_config(**{name: text}), name) == num_bytes


@pytest.mark.parametrize("text", ["64 MB of memory", "", "-1", "MiB", "2e9"])
def test_a_text_that_is_no_size_names_its_setting_and_shows_one(text):
    with pytest.raises(ConfigError) as error:
        engine_config(kv_cache_memory=text)
    message = str(error.value)
    assert message.startswith("kv_cache_memory: expected a size such as 2GiB, 512MB")
    assert message.endswith(f"got {text!r}")


def test_a_setting_that_is_no_size_takes_no_text():
    with pytest.raises(ConfigError, match=r"^max_num_seqs: .*integer"):
        engine_config(max_num_seqs="64")


def test_an_engine_takes_a_size_as_text(make_engine):
    with make_engine(kv_cache_memory="1MiB") as engine:
        assert engine.config.kv_cache_memory == 1 << 20
        assert engine.runner.kv_cache.nbytes <= 1 << 20


@pytest.mark.parametrize("prompt", [MESSAGES, tuple(MESSAGES), Chat(MESSAGES)])
def test_a_list_of_dicts_is_a_chat(engine, prompt):
    expected = engine.prepare(Request(CHAT)).prompt
    assert engine.prepare(Request(prompt)).prompt == expected
    engine.preparer.check(Request(prompt))
    answers = engine.generate(CHAT, GREEDY, SHORT)
    assert [a.text for a in engine.generate(prompt, GREEDY, SHORT)] == [a.text for a in answers]
    assert len(engine.generate([prompt, "one", prompt], GREEDY, SHORT)) == 3


async def test_a_list_of_dicts_is_a_chat_on_the_event_loop(tiny):
    engine = AsyncEngine(tiny.folder, max_num_seqs=2)
    await engine.start()
    prepared = await engine.prepare(Request(MESSAGES))
    assert prepared.prompt == engine.engine.prepare(Request(CHAT)).prompt
    await engine.stop()


WRONG = {
    "no role": ([{"content": "secret"}], "chat.messages[0].role"),
    "no content": ([*MESSAGES, {"role": "user"}], "chat.messages[2].content"),
    "content of another type": ([{"role": "user", "content": 3}], "chat.messages[0].content"),
    "a part that is no text": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": "secret"}]}],
        "chat.messages[0].content",
    ),
    "a role of another type": ([{"role": None, "content": "secret"}], "chat.messages[0].role"),
    "a field that is not supported": (
        [{"role": "user", "content": "secret", "audio": "x"}],
        "chat.messages[0]",
    ),
    "a message that is none": ([*MESSAGES, "secret"], "chat.messages[2]"),
    "half of a surrogate pair": (
        [{"role": "user", "content": "secret \ud800"}],
        "chat.messages[0].content",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_message_is_refused_by_its_field(engine, case):
    messages, field = WRONG[case]
    for prompt in (messages, Chat(messages)):
        with pytest.raises(RequestError) as refused:
            engine.prepare(Request(prompt))
        assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)
        assert "secret" not in refused.value.message


def test_the_package_exports_what_a_program_needs():
    assert chairlift.Output is Output
    for name in chairlift.__all__:
        assert getattr(chairlift, name) is not None
    for name in ("trusted_core", "intercept", "settle"):
        assert not hasattr(chairlift.Engine, name), "internal"


async def test_an_engine_used_before_its_start_says_so(tiny):
    engine = AsyncEngine(tiny.folder)
    not_started = pytest.raises(RuntimeError, match=r"^the engine has not started: await start\(\)")
    for use in (
        lambda: engine.engine,
        lambda: engine.progress,
        lambda: engine.num_waiting,
        engine.load,
        engine.flush,
    ):
        with not_started:
            use()
    for request in ("short", "long " * 4000, MESSAGES):
        with not_started:
            await engine.prepare(Request(request))
    with not_started:
        async for _ in engine.generate(Request("one")):
            pass
    await engine.stop()


def test_a_type_checker_knows_every_setting_and_every_choice():
    typed = get_type_hints(EngineSettings)
    assert typed.keys() == EngineConfig.model_fields.keys()
    for name, field in EngineConfig.model_fields.items():
        if isinstance(field.default, StrEnum):
            kind, names = get_args(typed[name])
            assert set(get_args(names)) == {choice.value for choice in kind}
            assert kind is type(field.default)
