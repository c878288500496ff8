"""Every bad value is refused with its field, and no message holds any of the prompt."""

import pytest
from chairlift.errors import Reason, RequestError
from chairlift.types import Chat, ChatMessage, PrefixCache, Request, Sampling, Schedule, Stopping

from tests.engine.drive import run
from tests.engine.tiny_model import EOS, MAX_MODEL_LEN, VOCAB_SIZE

NAN, INF = float("nan"), float("inf")


def sampling(**values):
    return Request([1], sampling=Sampling(**values))


def stopping(**values):
    return Request([1], stopping=Stopping(**values))


BAD = [
    (sampling(temperature=NAN), "sampling.temperature"),
    (sampling(temperature=-0.1), "sampling.temperature"),
    (sampling(temperature=INF), "sampling.temperature"),
    (sampling(temperature="hot"), "sampling.temperature"),
    (sampling(top_p=0.0), "sampling.top_p"),
    (sampling(top_p=2.0), "sampling.top_p"),
    (sampling(top_p=NAN), "sampling.top_p"),
    (sampling(min_p=-0.1), "sampling.min_p"),
    (sampling(min_p=1.1), "sampling.min_p"),
    (sampling(top_k=-1), "sampling.top_k"),
    (sampling(top_k=1.5), "sampling.top_k"),
    (sampling(seed=-1), "sampling.seed"),
    (sampling(seed=2**64), "sampling.seed"),
    (stopping(max_tokens=0), "stopping.max_tokens"),
    (stopping(max_tokens=-1), "stopping.max_tokens"),
    (stopping(max_tokens=4, min_tokens=5), "stopping.min_tokens"),
    (stopping(min_tokens=-1), "stopping.min_tokens"),
    (stopping(stop=[""]), "stopping.stop"),
    (stopping(stop=["x" * 129]), "stopping.stop"),
    (stopping(stop=["x"] * 17), "stopping.stop"),
    (stopping(stop="secret"), "stopping.stop"),
    (stopping(stop=["\ud800"]), "stopping.stop"),
    (stopping(stop_token_ids=[VOCAB_SIZE]), "stopping.stop_token_ids"),
    (stopping(stop_token_ids=[-1]), "stopping.stop_token_ids"),
    (stopping(stop_token_ids=[1] * 129), "stopping.stop_token_ids"),
    (Request([1], schedule=Schedule(queue_timeout_s=0)), "schedule.queue_timeout"),
    (Request([1], schedule=Schedule(queue_timeout_s=NAN)), "schedule.queue_timeout"),
    (Request([1], schedule=Schedule(time_limit_s=-1)), "schedule.time_limit"),
    (Request([1], prefix_cache=PrefixCache(salt="x" * 129)), "prefix_cache.salt"),
    (Request([1], truncate_prompt=0), "truncate_prompt"),
    (Request(""), "prompt"),
    (Request([]), "prompt"),
    (Request("secret \ud800"), "prompt"),
    (Request([VOCAB_SIZE]), "token_ids"),
    (Request([-1]), "token_ids"),
    (Request([1, "secret"]), "token_ids"),
    (Request([1.5]), "token_ids"),
]


@pytest.mark.parametrize(("request_", "field"), BAD, ids=range(len(BAD)))
def test_a_bad_value_is_refused_with_its_field(engine, request_, field):
    with pytest.raises(RequestError) as refused:
        engine.add(request_)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)
    assert refused.value.message
    assert "secret" not in refused.value.message
    assert not engine.has_work


def test_a_prompt_longer_than_the_model_is_refused(engine):
    with pytest.raises(RequestError) as refused:
        engine.add(Request([1] * MAX_MODEL_LEN))
    assert (refused.value.reason, refused.value.field) == (Reason.PROMPT_TOO_LONG, "prompt")
    engine.prepare(Request([1] * (MAX_MODEL_LEN - 1)))


def test_a_prompt_longer_than_the_kv_cache_is_refused(make_engine, kv_blocks):
    engine = make_engine(kv_cache_memory=kv_blocks(4))
    with pytest.raises(RequestError) as refused:
        engine.add(Request([1] * 64))
    assert (refused.value.reason, refused.value.field) == (Reason.KV_CAPACITY, "prompt")
    events = run(engine, [Request([1] * 63, Sampling(temperature=0))])[0]
    assert events[-1].usage.output_tokens == 1


def test_defaults_are_the_engines(engine):
    prepared = engine.prepare(Request([1, 2, 3]))
    drawing = prepared.drawing
    assert (drawing.temperature, drawing.top_k, drawing.top_p, drawing.min_p) == (1.0, 0, 1.0, 0.0)
    assert prepared.max_tokens == MAX_MODEL_LEN - 3
    assert (prepared.times.queue_timeout_s, prepared.times.time_limit_s) == (30.0, 600.0)
    assert prepared.stop_token_ids == (EOS,)


def test_default_max_tokens_is_a_setting(make_engine):
    engine = make_engine(default_max_tokens=20)
    assert engine.prepare(Request([1, 2, 3])).max_tokens == 20
    assert engine.prepare(Request([1] * 250)).max_tokens == MAX_MODEL_LEN - 250


def test_infinite_times_are_no_limit(engine):
    prepared = engine.prepare(Request([1], schedule=Schedule(INF, INF)))
    assert (prepared.times.queue_timeout_s, prepared.times.time_limit_s) == (None, None)


def test_truncate_prompt_keeps_the_last_tokens(engine):
    assert engine.prepare(Request(list(range(1, 300)), truncate_prompt=5)).prompt == [
        295,
        296,
        297,
        298,
        299,
    ]


def test_text_and_chat_are_tokenized(engine):
    assert engine.prepare(Request("one two")).prompt == engine.tokenizer.encode("one two")
    chat = Chat([ChatMessage("user", "one two")])
    rendered = engine.tokenizer.encode("<user>one two\n<assistant>", add_special_tokens=False)
    assert engine.prepare(Request(chat)).prompt == rendered


def test_a_prepared_request_does_not_show_its_prompt(engine):
    prepared = engine.prepare(Request([42, 43], Sampling(seed=0), Stopping(stop=["secret"])))
    assert "42" not in repr(prepared)
    assert "secret" not in repr(prepared)
