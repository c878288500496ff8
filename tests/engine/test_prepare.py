"""Every bad value is refused with its field, and no message holds any of the prompt."""

import pytest
from chairlift.api.config import Batching, engine_config
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.api.types import (
    Change,
    Chat,
    ChatMessage,
    Output,
    PrefixCache,
    Request,
    Sampling,
    Schedule,
    Stopping,
)
from chairlift.engine.engine import Engine

from tests.engine.drive import run
from tests.engine.tiny_model import EOS, MAX_MODEL_LEN, VOCAB_SIZE

USER = ChatMessage("user", "go")
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
    (sampling(top_k=-2), "sampling.top_k"),
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
    (stopping(stop=b"secret"), "stopping.stop"),
    (stopping(stop=[b"secret"]), "stopping.stop"),
    (stopping(stop={"secret": 1}), "stopping.stop"),
    (stopping(stop=(text for text in ["secret"])), "stopping.stop"),
    (stopping(stop=None), "stopping.stop"),
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
    (Request([True, False]), "token_ids"),
    (Request(b"secret"), "prompt"),
    (Request(None), "prompt"),
    (Request({1: "secret"}), "prompt"),
    (sampling(temperature=True), "sampling.temperature"),
    (sampling(n=True), "sampling.n"),
    (stopping(max_tokens=True), "stopping.max_tokens"),
    (stopping(stop_token_ids=b"secret"), "stopping.stop_token_ids"),
    (stopping(stop_token_ids=[True]), "stopping.stop_token_ids"),
    (stopping(ignore_eos="no"), "stopping.ignore_eos"),
    (stopping(include_stop=1), "stopping.include_stop"),
    (Request([1], output=Output(logprobs=3)), "output.logprobs"),
    (Request([1], output=Output(text="no")), "output.text"),
    (Request([1], output=Output(skip_special_tokens=None)), "output.skip_special_tokens"),
    (Request([1], prefix_cache=PrefixCache(read="no")), "prefix_cache.read"),
    (Request([1], prefix_cache=PrefixCache(write=2)), "prefix_cache.write"),
    (Request([1], prefix_cache=PrefixCache(salt=b"secret")), "prefix_cache.salt"),
    (Request([1], schedule=Schedule(priority=True)), "schedule.priority"),
    (Request([1], schedule=Schedule(time_limit_s=True)), "schedule.time_limit"),
    (Request([1], add_special_tokens="no"), "add_special_tokens"),
    (Request([1], truncate_prompt=True), "truncate_prompt"),
    (Request([1], credit=True), "credit"),
    (Request([1], tenant=b"secret"), "tenant"),
    (Request([1], sampling=Stopping()), "sampling"),
    (Request([1], stopping={"max_tokens": 3}), "stopping"),
    (Request([1], schedule=None), "schedule"),
    (Request(Chat("secret")), "chat.messages"),
    (Request(Chat([{"role": "user", "text": "secret"}])), "chat.messages[0]"),
    (Request(Chat([ChatMessage("user", b"secret")])), "chat.messages[0].content"),
    (Request(Chat([ChatMessage("user", None)])), "chat.messages[0].content"),
    (Request(Chat([USER], add_generation_prompt="no")), "chat.add_generation_prompt"),
    (Request(Chat([USER], template_arguments=None)), "chat.template_arguments"),
    ("secret", "request"),
]


@pytest.mark.parametrize(("request_", "field"), BAD, ids=range(len(BAD)))
def test_a_bad_value_is_refused_with_its_field(engine, request_, field):
    with pytest.raises(RequestError) as refused:
        engine.add(request_)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)
    assert refused.value.message
    assert "secret" not in refused.value.message
    assert not engine.has_work


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (Change(stopping="secret"), "update.stopping"),
        (Change(schedule={}), "update.schedule"),
        (Change(stopping=Stopping(ignore_eos="no")), "update.stopping.ignore_eos"),
        (Change(paused="no"), "paused"),
        (Change(credit=True), "credit.tokens"),
    ],
)
def test_a_change_of_wrong_types_is_refused_with_its_field(engine, change, field):
    with pytest.raises(RequestError) as refused:
        engine.preparer.prepare_change(change)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)


PROMPTS = [None, b"secret", 5, {"secret": 1}, (text for text in ["secret"])]


@pytest.mark.parametrize("prompts", PROMPTS, ids=range(len(PROMPTS)))
def test_generate_refuses_what_is_no_prompt(engine, prompts):
    with pytest.raises(RequestError, match="prompts: expected text"):
        engine.generate(prompts)
    with pytest.raises(RequestError, match=r"^prompt: expected text"):
        engine.generate(["go", prompts])


def test_generate_refuses_parts_that_stand_for_false(engine):
    for name in ("sampling", "stopping", "output"):
        with pytest.raises(RequestError, match=f"{name}: expected a {name.title()}"):
            engine.generate([1], **{name: {}})


def test_a_wrong_number_of_answers_is_refused_by_generate(engine):
    with pytest.raises(RequestError, match=r"sampling\.n: expected a whole number"):
        engine.generate([1], Sampling(n="3"))


def test_generate_tells_one_prompt_from_many(engine):
    one = Stopping(max_tokens=1)
    assert [len(engine.generate(prompts, stopping=one)) for prompts in (
        "go", [1, 2], (1, 2), Chat([USER]), ["go", "up"], [[1], [2]], [Chat([USER]), "go"], []
    )] == [1, 1, 1, 1, 2, 2, 2, 0]  # fmt: skip


SETTINGS = [
    ("max_num_seqs", True),
    ("max_num_seqs", "8"),
    ("max_num_seqs", 8.0),
    ("prefix_cache", "no"),
    ("prefix_cache", 0),
    ("queue_timeout_s", True),
    ("time_limit_s", b"8"),
    ("step_budget_s", NAN),
    ("batching", None),
    ("batching", True),
    ("max_num_seqz", 8),
]


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_setting_of_the_wrong_type_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        Engine("demo", **{name: value})


def test_a_setting_with_few_values_is_taken_by_its_name():
    assert engine_config(batching="static").batching is Batching.STATIC


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


class Tokenized(Exception):
    """The text was handed to the tokenizer."""


def raise_tokenized(*args):
    raise Tokenized


TOO_LONG = [
    (Request("a " * 600_000), "prompt"),
    (Request("a " * 600_000, truncate_prompt=3), "prompt"),
    (Request("é" * 600_000), "prompt"),
    (Request("\ud800" * 2_000_000), "prompt"),
    # Beyond the context by the longest token alone.
    (Request("a " * 40_000), "prompt"),
    (Request([1] * 5_000_000), "prompt"),
    (Request(range(2**60)), "prompt"),
    (Request(Chat([ChatMessage("user", "a" * 600_000)] * 2)), "chat.messages"),
]


@pytest.mark.parametrize(("request_", "field"), TOO_LONG, ids=range(len(TOO_LONG)))
def test_a_prompt_that_is_too_long_by_its_bytes_is_not_tokenized(
    engine, monkeypatch, request_, field
):
    monkeypatch.setattr(type(engine.tokenizer), "encode", raise_tokenized)
    monkeypatch.setattr(type(engine.tokenizer), "render_chat", raise_tokenized)
    with pytest.raises(RequestError) as refused:
        engine.prepare(request_)
    assert (refused.value.reason, refused.value.field) == (Reason.PROMPT_TOO_LONG, field)


def test_the_longest_text_is_a_setting(make_engine):
    engine = make_engine(max_text_bytes=2_000)
    engine.prepare(Request("é" * 1_000, truncate_prompt=3))
    for request in (
        Request("é" * 1_000 + "a", truncate_prompt=3),
        Request(Chat([ChatMessage("u" * 1_990, "a")]), truncate_prompt=3),
    ):
        with pytest.raises(RequestError) as refused:
            engine.prepare(request)
        assert refused.value.reason is Reason.PROMPT_TOO_LONG


def test_a_chat_has_at_most_4096_messages(engine):
    with pytest.raises(RequestError) as refused:
        engine.prepare(Request(Chat([ChatMessage("user", "")] * 4097), truncate_prompt=3))
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, "chat.messages")
    engine.prepare(Request(Chat([ChatMessage("user", "")] * 4096), truncate_prompt=3))


def test_of_a_list_that_is_cut_only_what_is_kept_is_read(engine):
    with pytest.raises(RequestError) as refused:
        engine.prepare(Request(range(2**60), truncate_prompt=3))
    assert refused.value.field == "token_ids"
    prompt = [2**60] * 1_000 + [1, 2, 3]
    assert engine.prepare(Request(prompt, truncate_prompt=3)).prompt == [1, 2, 3]


def test_numbers_of_any_size_have_a_message(engine):
    for request in (
        sampling(seed=10**5000),
        sampling(temperature=10**5000),
        Request([1], schedule=Schedule(time_limit_s=-(10**5000))),
        Request([1], truncate_prompt=10**5000),
    ):
        with pytest.raises(RequestError) as refused:
            engine.prepare(request)
        assert refused.value.reason is Reason.BAD_PARAMETER
        assert len(refused.value.message) < 200
    engine.prepare(Request([1], schedule=Schedule(time_limit_s=10**5000)))


def test_defaults_are_the_engines(engine):
    prepared = engine.prepare(Request([1, 2, 3]))
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (
        1.0,
        0,
        1.0,
        0.0,
    )
    assert prepared.max_tokens == MAX_MODEL_LEN - 3
    assert (prepared.times.queue_timeout_s, prepared.times.time_limit_s) == (30.0, 600.0)
    assert prepared.stop_token_ids == (EOS,)


def test_an_answer_may_be_as_long_as_the_context_unless_it_is_set(engine):
    assert engine.prepare(Request([1, 2, 3])).max_tokens == MAX_MODEL_LEN - 3
    assert engine.prepare(Request([1] * 250)).max_tokens == MAX_MODEL_LEN - 250
    assert engine.prepare(Request([1], stopping=Stopping(min_tokens=200))).min_tokens == 200


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
