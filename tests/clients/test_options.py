"""Keyword arguments of the clients: each value is right, or refused by its name."""

import pytest
from chairlift import Chat, ChatMessage, Constraint
from chairlift.api.errors import ConfigError, Reason, RequestError
from chairlift.client import connect, connect_async, new_start

NAN, INF = float("nan"), float("inf")
USER = ChatMessage("user", "go")


def test_a_stop_string_given_as_text_is_one_stop():
    assert list(new_start("x", stop="lived").stopping.stop) == ["lived"]
    assert list(new_start("x", stop=["live", "d"]).stopping.stop) == ["live", "d"]


async def test_both_clients_end_an_answer_at_a_stop_given_as_text(serve):
    async with serve() as server, connect_async(server.address) as client:
        options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 30}
        whole = await client.generate([1, 2, 3], **options).text()
        stop = whole[8:12]
        expected = whole[: whole.index(stop)]
        assert expected
        assert await client.generate([1, 2, 3], stop=stop, **options).text() == expected


WRONG = [
    ({"stop": b"secret"}, "stopping.stop"),
    ({"stop": [b"secret"]}, "stopping.stop"),
    ({"stop": ["a", 3]}, "stopping.stop"),
    ({"stop": 3}, "stopping.stop"),
    ({"stop": {"secret": 1}}, "stopping.stop"),
    ({"stop": "\ud800"}, "stopping.stop"),
    ({"stop_token_ids": b"secret"}, "stopping.stop_token_ids"),
    ({"stop_token_ids": "12"}, "stopping.stop_token_ids"),
    ({"stop_token_ids": [True]}, "stopping.stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stopping.stop_token_ids"),
    ({"stop_token_ids": 5}, "stopping.stop_token_ids"),
    ({"logprobs": -1}, "output.logprobs"),
    ({"logprobs": "no"}, "output.logprobs"),
    ({"token_ids": 1}, "output.token_ids"),
    ({"timeline": [1]}, "output.timeline"),
    ({"ignore_eos": "no"}, "stopping.ignore_eos"),
    ({"max_tokens": True}, "stopping.max_tokens"),
    ({"max_tokens": -1}, "stopping.max_tokens"),
    ({"max_tokens": 1.5}, "stopping.max_tokens"),
    ({"max_tokens": 2**32}, "stopping.max_tokens"),
    ({"min_tokens": "3"}, "stopping.min_tokens"),
    ({"temperature": True}, "sampling.temperature"),
    ({"temperature": "hot"}, "sampling.temperature"),
    ({"temperature": NAN}, "sampling.temperature"),
    ({"top_p": True}, "sampling.top_p"),
    ({"min_p": b"1"}, "sampling.min_p"),
    ({"top_k": -2}, "sampling.top_k"),
    ({"seed": -1}, "sampling.seed"),
    ({"seed": 2**64}, "sampling.seed"),
    ({"n": True}, "sampling.n"),
    ({"interval": -1}, "output.interval"),
    ({"queue_timeout_s": NAN}, "schedule.queue_timeout"),
    ({"queue_timeout_s": INF}, "schedule.queue_timeout"),
    ({"time_limit_s": -1}, "schedule.time_limit"),
    ({"time_limit_s": True}, "schedule.time_limit"),
    ({"time_to_first_token_s": "3"}, "schedule.time_to_first_token"),
    ({"priority": True}, "schedule.priority"),
    ({"credit": -1}, "credit"),
    ({"model": 3}, "model"),
    ({"model": b"demo"}, "model"),
    ({"request_id": b"a"}, "request_id"),
    ({"constraint": "up"}, "constraint"),
    ({"constraint": Constraint()}, "constraint"),
    ({"constraint": Constraint(regex=b"up")}, "constraint.regex"),
    ({"constraint": Constraint(json_schema=[1])}, "constraint.json_schema"),
    ({"constraint": Constraint(choices=["a", 3])}, "constraint.choices"),
]


@pytest.mark.parametrize(("options", "field"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(options, field):
    with pytest.raises(RequestError) as refused:
        new_start("x", **options)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)
    assert refused.value.message.startswith(f"{field}: expected ")
    assert "secret" not in refused.value.message


PROMPTS = [
    (None, "prompt"),
    (b"secret", "prompt"),
    (5, "prompt"),
    ({"secret": 1}, "prompt"),
    ("\ud800", "prompt"),
    (["secret", "secret"], "token_ids"),
    ([True], "token_ids"),
    ([1.5], "token_ids"),
    ([-1], "token_ids"),
    (Chat("secret"), "chat.messages"),
    (Chat([("user", "secret")]), "chat.messages[0]"),
    (Chat([USER, ChatMessage("user", b"secret")]), "chat.messages[1].content"),
    (Chat([USER], add_generation_prompt=1), "chat.add_generation_prompt"),
    (Chat([USER], template_arguments=["secret"]), "chat.template_arguments"),
    (Chat([USER], template_arguments={"a": object()}), "chat.template_arguments"),
    (Chat([USER], template_arguments={1: "secret"}), "chat.template_arguments"),
]


@pytest.mark.parametrize(("prompt", "field"), PROMPTS, ids=range(len(PROMPTS)))
def test_what_is_no_prompt_is_refused_with_its_field(prompt, field):
    with pytest.raises(RequestError) as refused:
        new_start(prompt)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, field)
    assert "secret" not in refused.value.message


def test_none_leaves_a_value_to_the_server():
    names = new_start.__annotations__["options"].__args__[0].__annotations__
    assert new_start("x", **dict.fromkeys(names)) == new_start("x")


@pytest.mark.parametrize(
    ("options", "field"),
    [(o, f) for o, f in WRONG if f.startswith(("stopping.", "schedule."))],
)
async def test_a_wrong_value_of_an_update_is_refused_with_its_field(options, field):
    async with connect_async("127.0.0.1:1") as client:
        generation = client.generate("x")
        with pytest.raises(RequestError) as refused:
            await generation.update(**options)
    assert refused.value.field == f"update.{field}"
    assert refused.value.message.startswith(f"update.{field}: expected ")


async def test_an_update_of_nothing_or_of_another_option_is_refused():
    async with connect_async("127.0.0.1:1") as client:
        generation = client.generate("x")
        with pytest.raises(RequestError, match="update: expected an option"):
            await generation.update(max_tokens=None)
        with pytest.raises(TypeError, match=r"update\(\) .* 'temperature'"):
            await generation.update(temperature=0.5)


def test_an_unknown_option_is_a_type_error_that_names_it():
    with connect("127.0.0.1:1") as client, pytest.raises(TypeError, match="'max_tokenz'"):
        client.generate("x", max_tokenz=3)


async def test_an_unknown_option_of_the_async_client_is_the_same():
    async with connect_async("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="'max_tokenz'"):
            client.generate("x", max_tokenz=3)


async def test_other_calls_refuse_wrong_values_too(serve):
    async with serve() as server, connect_async(server.address) as client:
        with pytest.raises(RequestError, match="text: expected text"):
            await client.tokenize(b"go")
        with pytest.raises(RequestError, match="handle: expected text"):
            await client.abort(b"go")
        with pytest.raises(RequestError, match="interval: expected a positive"):
            await anext(client.watch_load(NAN))
        generation = client.generate([1, 2, 3], credit=1, ignore_eos=True)
        async for _ in generation.events():
            for credit in (-1, True, 1.5):
                with pytest.raises(RequestError, match=r"credit\.tokens: expected a whole"):
                    await generation.credit(credit)
            break


SECURITY = [("token", b"secret"), ("token", 5), ("tls_ca", b"secret"), ("tls_cert", True)]


@pytest.mark.parametrize(("name", "value"), SECURITY)
def test_security_of_the_wrong_type_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected") as refused:
        connect("127.0.0.1:1", **{name: value})
    assert "secret" not in str(refused.value)
