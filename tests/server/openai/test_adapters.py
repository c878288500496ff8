"""An adapter is named as the model of a request over HTTP."""

import openai
import pytest
from chairlift.client import connect_async
from transformers import AutoModelForCausalLM

from tests.engine import adapters
from tests.server.openai.conftest import HELLO

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
TEXT = {"prompt": "one two three", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    for seed, name in enumerate(("up", "down")):
        adapters.write(root / name, model, seed=seed)
    return root


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"ann:{ANN}\nbob:{BOB}\n")
    return {"auth_tokens": str(path)}


async def complete(client, model, **fields):
    fields = {**TEXT, "extra_body": {"ignore_eos": True}, **fields}
    return await client.completions.create(model=model, **fields)


async def refusal(call):
    with pytest.raises(openai.NotFoundError) as caught:
        await call
    return caught.value.code, caught.value.param


async def test_a_model_that_is_an_adapter_answers_as_over_grpc(api, folder):
    async with api(adapters={"up": str(folder / "up")}) as served:
        async with connect_async(served.server.address) as client:
            generation = client.generate(
                TEXT["prompt"], adapter="up", max_tokens=8, temperature=0, ignore_eos=True
            )
            (expected,) = await generation.all()
        whole = await complete(served.client, "up")
        pieces = [piece async for piece in await complete(served.client, "up", stream=True)]
        assert whole.choices[0].text == expected.text
        assert "".join(piece.choices[0].text for piece in pieces) == expected.text
        assert {whole.model, *(piece.model for piece in pieces)} == {"up"}
        assert (await complete(served.client, "tiny")).choices[0].text != expected.text
        chats = [await served.chat(model=model) for model in ("up", "tiny")]
        responses = [
            await served.client.responses.create(
                model=model,
                input=HELLO,
                max_output_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            for model in ("up", "tiny")
        ]
        texts = [chat.choices[0].message.content for chat in chats]
        assert [response.output_text for response in responses] == texts
        assert texts[0] != texts[1]
        assert [response.model for response in responses] == ["up", "tiny"]


async def test_adapters_are_listed_as_models_of_their_tenants(api, folder, tokens):
    settings = {"adapters": {"up": str(folder / "up")}, "adapter_tenants": {"up": "ann"}}
    async with api(server=tokens, token=ANN, **settings) as served:
        listed = {model.id: model async for model in served.client.models.list()}
        assert list(listed) == ["tiny", "up"]
        assert (listed["up"].parent, hasattr(listed["tiny"], "parent")) == ("tiny", False)
        assert (await served.client.models.retrieve("up")).id == "up"
        await complete(served.client, "up")
        bob = served.client.with_options(api_key=BOB)
        assert [model.id async for model in bob.models.list()] == ["tiny"]
        for call in (bob.models.retrieve("up"), complete(bob, "up"), complete(bob, "down")):
            assert await refusal(call) == ("model_not_found", "model")


async def test_a_model_is_loaded_on_demand(api, folder):
    settings = {"adapter_folder": str(folder), "max_adapters": 1}
    async with api(server={"adapters_on_demand": True}, **settings) as served:
        up, down = [await complete(served.client, name) for name in ("up", "down")]
        assert up.choices[0].text != down.choices[0].text
        assert [model.id async for model in served.client.models.list()] == ["tiny", "down"]
        unknown = served.client.models.retrieve("missing")
        assert await refusal(unknown) == ("model_not_found", "model")
        for name in ("missing", "../up", "x" * 65):
            assert await refusal(complete(served.client, name)) == ("model_not_found", "model")
        vectors = served.client.embeddings.create(model="up", input="one")
        assert await refusal(vectors) == ("model_not_found", "model")
